"""A file that says it is terabytes, or becomes them, is refused in a second and little memory."""

import bz2
import gzip
import io
import json
import os
import pickle
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import save_file

from overhear.privacy import files
from overhear.privacy.errors import InputError
from overhear.privacy.formats.tensor_archives import PackedArrays, read_header
from overhear.training.engine.tensor_file import read_tensors

MEGABYTES = 100  # that a refusal may take
SECONDS = 5.0  # of processor time; about a second where the machine has nothing else to do
READ = """
import json, os, resource, sys, time
from pathlib import Path
import PIL.Image, safetensors.torch, sklearn.datasets
from overhear.privacy.errors import InputError
from overhear.reports.judgement.policy import load_policy
from overhear.runs.attack.prior_records import read_tensors
from overhear.runs.folder.records import Stopped, read_metrics
from overhear.runs.run_file.run_file import load_run_file
from overhear.training.data.readers import read_image_folder
from overhear.training.data.readers import read_cifar10, read_idx, read_libsvm
from overhear.training.engine.tensor_file import load_checkpoint
from overhear.training.engine.transcript import Transcript
from overhear.privacy.files import opened_picture
from overhear.privacy.releases.person_ledger import read_person_ledger
from overhear.training.data.table_rows import csv_blocks
from overhear.training.graphs.topologies import read_graph_file
from overhear.training.graphs.participation import read_active_file

def pictures_read(path):
    with opened_picture(path) as opened:
        opened.load()

def read(place, how):
    path = Path(place)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # What is allocated and never written to counts, too.
    held = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (held + (400 << 20), resource.RLIM_INFINITY))
    began = time.process_time()
    try:
        eval(how)
        said = "read"
    except InputError as error:
        said = str(error)
    except BaseException as error:
        said = repr(error)
    spent = time.process_time() - began
    megabytes = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10
    print(json.dumps([said, megabytes, spent]), flush=True)

for place, how in json.load(sys.stdin):
    child = os.fork()
    if child == 0:
        read(place, how)
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        print(json.dumps(["the process died", 0, 0.0]), flush=True)
"""


def idx(*shape: int) -> bytes:
    return struct.pack(f">4B{len(shape)}I", 0, 0, 8, len(shape), *shape)


def hole(path: Path, start: bytes = b"", *, size: int) -> None:
    """A file of zeros that takes no room."""
    path.write_bytes(start)
    with path.open("r+b") as file:
        file.truncate(size)


def packed_zeros(path: Path, start: bytes = b"", *, size: int) -> None:
    """A gz file that becomes so many zeros; one megabyte becomes a gigabyte."""
    packer = zlib.compressobj(wbits=31)
    with path.open("wb") as file:
        file.write(packer.compress(start))
        for _ in range(size >> 24):
            file.write(packer.compress(bytes(1 << 24)))
        file.write(packer.flush())


def cifar(path: Path, batch: object) -> None:
    folder = path.parent / "cifar-10-batches-py"
    folder.mkdir()
    for name in ("data_batch_1", "test_batch"):
        (folder / name).write_bytes(pickle.dumps(batch, protocol=2))


def scans(count: int) -> bytes:
    """A JPEG of 4 million pixels that is drawn so many times, each in a few bytes."""
    held = io.BytesIO()
    Image.new("L", (2048, 2048)).save(held, "JPEG", progressive=True)
    whole = held.getvalue()
    last = whole[whole.rindex(b"\xff\xda") : -2]
    return whole[:-2] + last * (count - whole.count(b"\xff\xda")) + whole[-2:]


def nested() -> list[object]:
    """Ten lists, each of a thousand times the one before."""
    held: list[object] = [0] * 1000
    for _ in range(9):
        held = [held] * 1000
    return held


def laughs(path: Path) -> None:
    cifar(path, {"data": np.zeros((1, 3072), dtype=np.uint8), "labels": nested()})


class _Called:
    """Calls the class of arrays."""

    def __reduce__(self) -> object:
        return np.ndarray, ((1 << 40,),)


class _Made:
    """An array that is made with a shape of a terabyte."""

    def __reduce__(self) -> object:
        return np.empty(0).__reduce__()[0], (np.ndarray, (1 << 40,), b"b")


def png(path: Path, width: int, height: int) -> None:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    rows = zlib.compress(bytes(min(width * height + height, 1 << 24)))
    content = chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")
    for name in "ab":
        (path / name).mkdir(parents=True)
        (path / name / "1.png").write_bytes(b"\x89PNG\r\n\x1a\n" + content)


def npy(path: Path, *shape: int, kind: str = "<f8") -> None:
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(
            file, {"descr": kind, "fortran_order": False, "shape": shape}
        )


def npz(path: Path) -> None:
    with path.open("wb") as file:
        np.savez_compressed(file, weights=np.zeros(1 << 20))


def tensors(path: Path, header: bytes, *, length: int | None = None) -> None:
    length = len(header) if length is None else length
    path.write_bytes(struct.pack("<Q", length % (1 << 64)) + header)


def large_header(path: Path) -> None:
    entry = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
    tensors(path, json.dumps({f"{n:060}": entry for n in range(200_000)}).encode())


def of_shape(path: Path, *shape: int) -> None:
    entry = {"dtype": "F32", "shape": list(shape), "data_offsets": [0, 16]}
    tensors(path, json.dumps({"a": entry}).encode() + bytes(16))


IDX, CIFAR = "read_idx(path, dimensions=3)", "read_cifar10(path.parent)"
SVM, IMAGES = "read_libsvm(path, features=1000)", "read_image_folder(path)"
GRAPH, TENSORS, STATE = "read_graph_file(path)", "read_tensors(path)", "load_checkpoint(path)"
ROUNDS, RUN, POLICY = "Transcript.load(path.parent)", "load_run_file(path)", "load_policy(path)"
MEASURED, STOPPED = "read_metrics(path)", "Stopped.read(path)"

Bomb = Callable[[Path], object]
BOMBS: dict[str, tuple[str, Bomb, str, str]] = {
    "idx that claims 2^31 images": (
        "images",
        lambda path: path.write_bytes(idx(1 << 31, 28, 28)),
        IDX,
        "announces 1683627180032 bytes of data and holds 0",
    ),
    "idx whose size overflows": (
        "images",
        lambda path: path.write_bytes(idx(*(3 * [(1 << 32) - 1]))),
        IDX,
        "announces 79228162458924105385300197375 bytes",
    ),
    "idx of a hole": (
        "images",
        lambda path: hole(path, idx(1 << 20, 64, 64), size=(1 << 32) + 16),
        IDX,
        "has 4294967312 bytes, and at most 1073741824 are read",
    ),
    "gz that claims 2^31 images": (
        "images.gz",
        lambda path: path.write_bytes(gzip.compress(idx(1 << 31, 28, 28))),
        IDX,
        "becomes 1683627180032 bytes or more when it is unpacked, and at most 67108864",
    ),
    "gz that becomes 10 GB": (
        "images.gz",
        lambda path: packed_zeros(path, idx(10 << 10, 1 << 10, 1 << 10), size=1 << 28),
        IDX,
        "becomes 10737418240 bytes or more when it is unpacked",
    ),
    "gz that becomes more than it claims": (
        "images.gz",
        lambda path: packed_zeros(path, idx(4, 1 << 10, 1 << 10), size=1 << 28),
        IDX,
        "announces 4194304 bytes of data and holds more",
    ),
    "CIFAR-10 of 4 GB": (
        "x",
        lambda path: (
            cifar(path, {}),
            hole(path.parent / "cifar-10-batches-py" / "data_batch_1", size=1 << 32),
        ),
        CIFAR,
        "has 4294967296 bytes, and at most 67108864 are read",
    ),
    "CIFAR-10 of lists in lists": ("x", laughs, CIFAR, "labels are not whole numbers"),
    "CIFAR-10 whose pixels are lists in lists": (
        "x",
        lambda path: cifar(path, {"data": nested(), "labels": [0]}),
        CIFAR,
        "holds data of shape of a list and 1 labels",
    ),
    "CIFAR-10 that calls the class of arrays": (
        "x",
        lambda path: cifar(path, {"data": _Called(), "labels": [0]}),
        CIFAR,
        "is no CIFAR-10 batch or is damaged",
    ),
    "CIFAR-10 that makes a large array": (
        "x",
        lambda path: cifar(path, {"data": _Made(), "labels": [0]}),
        CIFAR,
        "holds data of shape (0,) and 1 labels",
    ),
    "LIBSVM of many lines": (
        "a.svm",
        lambda path: path.write_bytes(b"1\n" * 2_000_000),
        SVM,
        "has 2000001 lines, which times features=1000 are 2000001000 numbers; at most 1073741824",
    ),
    "LIBSVM of one long line": (
        "a.svm",
        lambda path: hole(path, b"1 1:1\n", size=1 << 32),
        SVM,
        "line 2 is longer than 67108864 bytes",
    ),
    "LIBSVM gz": (
        "a.svm.gz",
        lambda path: path.write_bytes(gzip.compress(b"1 1:1\n" * 12_000_000)),
        SVM,
        "when it is unpacked, and at most 67108864 are read",
    ),
    "LIBSVM gz of one line": (
        "a.svm.gz",
        lambda path: packed_zeros(path, b"1 1:1\n" * 1000, size=1 << 28),
        SVM,
        "when it is unpacked, and at most|line 1001 is longer than 67108864 bytes",
    ),
    "LIBSVM bz2": (
        "a.svm.bz2",
        # As many streams as one is repeated: bz2 takes 20 seconds to pack so equal lines.
        lambda path: path.write_bytes(24 * bz2.compress(b"1 1:1\n" * 500_000)),
        SVM,
        "when it is unpacked, and at most 67108864 are read",
    ),
    "PNG of 2^31 pixels": (
        "images",
        lambda path: png(path, 1 << 16, 1 << 15),
        IMAGES,
        "has 65536 x 32768 pixels|has more than 4194304 pixels",
    ),
    "PNG of 80 million pixels": (
        "images",
        lambda path: png(path, 10_000, 8_000),
        IMAGES,
        "has 10000 x 8000 pixels, must have at most 4194304; resize it",
    ),
    "npy that claims 2^31 x 2^31": (
        "w.npy",
        lambda path: npy(path, 1 << 31, 1 << 31),
        GRAPH,
        "announces the shape (2147483648, 2147483648)",
    ),
    "npy that claims 10000 x 10000": (
        "w.npy",
        lambda path: npy(path, 10_000, 10_000),
        GRAPH,
        "announces the shape (10000, 10000), in a file of 128 bytes",
    ),
    "npy of negative dimensions": ("w.npy", lambda path: npy(path, -4, -4), GRAPH, "graph from"),
    "npy of objects": ("w.npy", lambda path: npy(path, 4, 4, kind="|O"), GRAPH, "must be of real"),
    "npy of many dimensions": (
        "w.npy",
        lambda path: npy(path, *(32 * [1 << 62])),
        GRAPH,
        "announces the shape",
    ),
    "npz called npy": ("w.npy", npz, GRAPH, "cannot read a graph"),
    "json of 2^40 agents": (
        "g.json",
        lambda path: path.write_text('{"agents": 1099511627776, "edges": []}'),
        GRAPH,
        "has 1099511627776 agents, must have at most 10000",
    ),
    "json of deep lists": (
        "g.json",
        lambda path: path.write_text('{"weights": ' + "[" * 1_000_000),
        GRAPH,
        "cannot read a graph",
    ),
    "json of a huge number": (
        "g.json",
        lambda path: path.write_text('{"weights": [[1' + "0" * 400 + "]]}"),
        GRAPH,
        "cannot read a graph",
    ),
    "json of 4 GB": ("g.json", lambda path: hole(path, size=1 << 32), GRAPH, "at most 268435456"),
    "csv of many lines": (
        "g.csv",
        lambda path: path.write_bytes(b"1\n" * 5_000_000),
        GRAPH,
        "has 5000000 agents, must have at most 10000",
    ),
    "csv of 4 GB": ("g.csv", lambda path: hole(path, size=1 << 32), GRAPH, "at most 268435456"),
    "safetensors header of 2^63": (
        "g.safetensors",
        lambda path: tensors(path, b"{}", length=1 << 63),
        TENSORS,
        "announces a header of 9223372036854775808 bytes, must be at most 2",
    ),
    "safetensors header of 17 MB": (
        "g.safetensors",
        large_header,
        TENSORS,
        "bytes, must be at most 16777216",
    ),
    "safetensors header that is deep": (
        "g.safetensors",
        lambda path: tensors(path, b'{"a":' + b"[" * 1_000_000),
        TENSORS,
        "is not a safetensors file",
    ),
    "safetensors shape that overflows": (
        "g.safetensors",
        lambda path: of_shape(path, 1 << 62, 1 << 62),
        TENSORS,
        "is not a safetensors file",
    ),
    "safetensors shape that is negative": (
        "g.safetensors",
        lambda path: of_shape(path, -2, -2),
        TENSORS,
        "is not a safetensors file",
    ),
    "safetensors of 3 bytes": (
        "g.safetensors",
        lambda path: path.write_bytes(b"abc"),
        TENSORS,
        "as no file of tensors does that is known here",
    ),
    "checkpoint header of 2^63": (
        "round-000001.safetensors",
        lambda path: tensors(path, b"{}", length=1 << 63),
        STATE,
        "announces a header of 9223372036854775808 bytes",
    ),
    "transcript header of 2^63": (
        "round-000001.safetensors",
        lambda path: tensors(path, b"{}", length=1 << 63),
        ROUNDS,
        "announces a header of 9223372036854775808 bytes",
    ),
    "transcript that is none": (
        "round-000001.safetensors",
        lambda path: save_file({"a.rows": np.zeros(3)}, path),
        ROUNDS,
        "is no transcript of a round",
    ),
    "run file of 4 GB": ("r.toml", lambda path: hole(path, size=1 << 32), RUN, "at most 1048576"),
    "run file that is deep": (
        "r.toml",
        lambda path: path.write_text("a = " + "[" * 500_000),
        RUN,
        "is not TOML",
    ),
    "policy that is deep": (
        "p.toml",
        lambda path: path.write_text("a = " + "[" * 500_000),
        POLICY,
        "is not TOML",
    ),
    "measurements of one line": (
        "metrics.jsonl",
        lambda path: hole(path, size=3 << 30),
        MEASURED,
        "a line is longer than 33554432 bytes",
    ),
    "measurements that are no text": (
        "metrics.jsonl",
        lambda path: path.write_bytes(b"\xff}\n"),
        MEASURED,
        "cannot be read",
    ),
    "an object of 4 GB": (
        "stopped.json",
        lambda path: hole(path, size=1 << 32),
        STOPPED,
        "has 4294967296 bytes, and at most 33554432 are read",
    ),
    "an object that is deep": (
        "stopped.json",
        lambda path: path.write_text("[" * 1_000_000),
        STOPPED,
        "cannot be read",
    ),
    "an object of empty lists": (
        "stopped.json",
        lambda path: path.write_bytes(b'{"a": [' + b"[]," * 10_000_000 + b"[]]}"),
        STOPPED,
        "it has 10000003 lists and objects",
    ),
    "a graph of empty lists": (
        "g.json",
        lambda path: path.write_bytes(b'{"weights": [' + b"[]," * 12_000_000 + b"[]]}"),
        GRAPH,
        "it has 12000003 lists and objects and 1 texts, and may have 2097152",
    ),
    "a graph of short lines": (
        "g.csv",
        lambda path: path.write_bytes(b"ab\n" * 12_000_000),
        GRAPH,
        "it has 12000000 agents",
    ),
    "a graph of one long line": (
        "g.txt",
        lambda path: path.write_bytes(b"12 " * 12_000_000),
        GRAPH,
        "it has 10001 agents",
    ),
    "a list of who takes part of short lines": (
        "a.csv",
        lambda path: path.write_bytes(b"ab\n" * 12_000_000),
        "read_active_file(path, agents=3)",
        "round 1 reads 'ab'",
    ),
    "a person's ledger of short lines": (
        "p.jsonl",
        lambda path: path.write_bytes(b"ab\n" * 12_000_000),
        "read_person_ledger(path)",
        "line 1 is no entry",
    ),
    "a row of many lines": (
        "t.csv",
        lambda path: path.write_bytes(b"a\n" + b'"\n",' * 20_000_000),
        'list(csv_blocks(path, ["a"], separator=","))',
        "or the row is that ends in it",
    ),
    "a row of many names": (
        "t.csv",
        lambda path: path.write_text(",".join(map(str, range(150_000))) + "\n"),
        'list(csv_blocks(path, ["a"], separator=","))',
        "has no column 'a'",
    ),
    "a picture that is drawn often": (
        "a.jpg",
        lambda path: path.write_bytes(scans(100_000)),
        "pictures_read(path)",
        "drawn in 100000 passes",
    ),
}


@pytest.fixture(scope="module")
def refused(tmp_path_factory):
    """What is said of each bomb, megabytes and seconds, each in a process of its own."""
    asked = []
    for at, (name, bomb, read, _) in enumerate(BOMBS.values()):
        path = tmp_path_factory.mktemp(f"bomb{at}") / name
        bomb(path)
        asked.append((str(path), read))
    done = subprocess.run(
        [sys.executable, "-c", READ], input=json.dumps(asked), check=True, capture_output=True,
        text=True, timeout=300, env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    return dict(zip(BOMBS, map(json.loads, done.stdout.splitlines()), strict=True))


@pytest.mark.skipif(sys.platform != "linux", reason="what a process holds is told otherwise there")
@pytest.mark.parametrize(("name", "words"), [(name, one[3]) for name, one in BOMBS.items()])
@pytest.mark.slow
def test_a_bomb_is_refused_in_little_memory(name, words, refused):
    said, megabytes, seconds = refused[name]
    assert any(word in said for word in words.split("|")), said
    assert megabytes < MEGABYTES
    assert seconds < SECONDS


@pytest.mark.parametrize(
    "content", [b"", b"1 1:1", b"1 1:1\n", b"1 1:1\n" * 3, b"\n\n", bytes(1 << 21) + b"\n1"]
)
@pytest.mark.parametrize("suffix", ["", ".gz", ".bz2"])
def test_lines_are_counted_as_a_reader_meets_them(content, suffix, tmp_path):
    path = tmp_path / f"text{suffix}"
    pack = {"": bytes, ".gz": gzip.compress, ".bz2": bz2.compress}[suffix]
    path.write_bytes(pack(content))
    assert content.count(b"\n") <= files.count_lines(path) <= content.count(b"\n") + 1


@pytest.mark.parametrize("suffix", [".gz", ".bz2"])
def test_what_cannot_be_unpacked_is_said(suffix, tmp_path):
    path = tmp_path / f"text{suffix}"
    pack = {".gz": gzip.compress, ".bz2": bz2.compress}[suffix]
    for content in (b"no archive", pack(b"1 1:1\n" * 1000)[:-9]):
        path.write_bytes(content)
        with pytest.raises(InputError, match="is no text that can be unpacked"):
            files.count_lines(path)


def test_a_bound_holds_to_the_byte(tmp_path):
    path = tmp_path / "held"
    path.write_bytes(b"12345")
    assert files.read_bounded(path, 5) == b"12345"
    with pytest.raises(InputError, match="has 5 bytes, and at most 4 are read"):
        files.read_bounded(path, 4)
    files.check_expansion(path, 64 << 20)
    with pytest.raises(InputError, match="becomes 67108865 bytes or more"):
        files.check_expansion(path, (64 << 20) + 1)


def test_what_is_no_file_is_not_read(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe", Path("/dev/zero")):
        for read in (files.read_text, read_header, files.count_lines):
            with pytest.raises(InputError, match="is no regular file"):
                read(path)
    with pytest.raises(FileNotFoundError):
        files.read_text(tmp_path / "none")


def test_an_honest_npz_is_read_however_it_was_packed(tmp_path, monkeypatch):
    """Stored, deflated to a part in fifty, and with the records of a zip of more than 2 GB."""
    rows = np.tile(np.arange(100.0), (2000, 1))
    np.savez(tmp_path / "stored.npz", X=rows, names=np.array(["a"]))
    np.savez_compressed(tmp_path / "packed.npz", X=rows)
    monkeypatch.setattr("zipfile.ZIP64_LIMIT", 100)
    np.savez(tmp_path / "long.npz", X=rows)
    assert b"PK\6\6" in (tmp_path / "long.npz").read_bytes()
    for name in ("stored", "packed", "long"):
        held = PackedArrays(tmp_path / f"{name}.npz", copies=2)
        assert np.array_equal(held["X"], rows)


def test_wide_unsigned_numbers_are_read_as_signed_ones(tmp_path):
    save_file({"labels": np.array([3, 70000], dtype=np.uint32)}, tmp_path / "a.safetensors")
    assert read_tensors(tmp_path / "a.safetensors").tensors["labels"].tolist() == [3, 70000]


def test_a_safetensors_file_is_let_through(tmp_path):
    save_file({"a": np.zeros(3)}, tmp_path / "a.safetensors")
    read_header(tmp_path / "a.safetensors")


def test_what_the_machine_has_no_memory_for_is_refused_with_a_remedy():
    files.check_memory("a run", 1, "lower agents")
    with pytest.raises(InputError, match=r"a run takes 1e\+15 GB of memory, .*: lower agents"):
        files.check_memory("a run", 10**24, "lower agents")


def test_a_control_group_bounds_the_memory_of_a_machine(tmp_path, monkeypatch):
    (tmp_path / "most").write_text("1000\n")
    (tmp_path / "none").write_text("max\n")
    limits = [str(tmp_path / name) for name in ("none", "nowhere", "most")]
    monkeypatch.setattr("overhear.privacy.files._GROUP_LIMITS", limits)
    with pytest.raises(InputError, match="this machine has 1e-06"):
        files.check_memory("a run", 1001, "lower agents")
    files.check_memory("a run", 1000, "lower agents")
