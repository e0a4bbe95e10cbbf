"""Files that somebody made to harm their readers, and every reader with a file that is honest.

`HOSTILE` are bytes by the kind of file that they pretend to be; `mutated` changes honest ones.
"""

import bz2
import functools
import gzip
import hashlib
import io
import json
import pickle
import random
import struct
import warnings
import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save

from overhear.attacks.foreign.scores_audit import read_scores
from overhear.attacks.inversion.optimisation import Checkpoint as SearchCheckpoint
from overhear.privacy.formats import codec
from overhear.privacy.releases.ledger import read_ledger
from overhear.privacy.releases.log import read_log
from overhear.privacy.releases.person_ledger import read_person_ledger
from overhear.reports.document.collect import _told_of
from overhear.reports.document.html import read_found, render_found
from overhear.reports.judgement.policy import load_policy
from overhear.reports.reproduced.paper_result import read_figures
from overhear.reports.reproduced.review import review
from overhear.reports.sweep.cells import Cells
from overhear.runs.attack.invert import read_columns
from overhear.runs.attack.points import _check_whole
from overhear.runs.attack.prior_records import RecordForm, read_records, read_tensors
from overhear.runs.attack.tokens import read_vocabulary
from overhear.runs.audit.evidence import read_trail
from overhear.runs.folder.folder import _listed
from overhear.runs.folder.records import Environment, Stopped, read_metrics
from overhear.runs.folder.resume import _round_of
from overhear.runs.folder.signature import read_key
from overhear.runs.recorder.keeping import KeptTranscript, keep, kept_folder, read_kept
from overhear.runs.recorder.outcome import read_held
from overhear.runs.run_file.run_file import load_run_file, read_tables
from overhear.runs.run_file.trust import read_sources
from overhear.runs.sweep.results import read_tuned
from overhear.runs.sweep.sweep_file import read_sweep_file
from overhear.training.data.columns import declared
from overhear.training.data.own_data import read_npy, read_npz
from overhear.training.data.readers import read_cifar10, read_idx, read_image_folder, read_libsvm
from overhear.training.data.table import read_table
from overhear.training.engine.tensor_file import Checkpoint, load_checkpoint, save_checkpoint
from overhear.training.engine.transcript import Message, Transcript
from overhear.training.graphs.participation import read_active_file
from overhear.training.graphs.topologies import read_graph_file
from tests.conftest import RUN_FILE
from tests.privacy.ledgers import chained

X, Y = np.arange(48, dtype=np.float32).reshape(16, 3) / 48, np.arange(16) % 2
COLUMNS = declared(
    {"age": [0, 100], "sex": ["f", "m"], "ill": ["no", "yes"]}, target="ill", outputs=0, clamp=False
)
FORM = RecordForm(shape=(1, 3, 4), classes=3, to_unit=lambda x: x, said="mean and std")
ROWS = RecordForm(shape=(3,), classes=2, to_unit=lambda x: x, said="ranges", table=COLUMNS)
CSV = b"age,sex,ill\n" + b"50,f,yes\n25,m,no\n" * 8


def _npz(**arrays: np.ndarray[Any, Any]) -> bytes:
    held = io.BytesIO()
    np.savez_compressed(held, **arrays)
    return held.getvalue()


def _npy(array: Any) -> bytes:
    held = io.BytesIO()
    np.save(held, array)
    return held.getvalue()


def _picture(kind: str = "PNG") -> bytes:
    held = io.BytesIO()
    Image.fromarray(np.arange(12, dtype=np.uint8).reshape(3, 4)).save(held, kind)
    return held.getvalue()


def _png_text(size: int) -> bytes:
    """A picture with a text that is unpacked into so many bytes."""
    body = b"zTXta\0\0" + zlib.compress(bytes(size), 1)
    chunk = struct.pack(">I", len(body) - 4) + body + struct.pack(">I", zlib.crc32(body))
    return _picture()[:33] + chunk + _picture()[33:]


def _parquet(**columns: Any) -> bytes:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        return bytes(100) + b"PAR1"
    held = io.BytesIO()
    rows = {"age": [50.0, 25.0] * 8, "sex": ["f", "m"] * 8, "ill": ["yes", "no"] * 8}
    pq.write_table(pa.table(rows | columns), held, compression="gzip")
    return held.getvalue()


def _idx(*shape: int, data: bytes = b"") -> bytes:
    return struct.pack(f">4B{len(shape)}I", 0, 0, 8, len(shape), *shape) + data


def _cifar() -> bytes:
    batch = {b"data": np.zeros((2, 3072), dtype=np.uint8), b"labels": [1, 2]}
    return pickle.dumps(batch, protocol=2)


def _tensors(header: object, data: bytes = b"", *, length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def _tensor(kind: str = "F32", shape: object = (4,), span: object = (0, 16)) -> object:
    return {"dtype": kind, "shape": shape, "data_offsets": span}


def _header(text: str, *, version: int = 1) -> bytes:
    """A npy file of any header."""
    length = struct.pack("<H" if version == 1 else "<I", len(text))
    return b"\x93NUMPY" + bytes([version, 0]) + length + text.encode()


def _shaped(descr: str, shape: str) -> bytes:
    return _header(f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}}}\n")


def _zip(*members: tuple[str, bytes], how: int = zipfile.ZIP_DEFLATED) -> bytes:
    held = io.BytesIO()
    with warnings.catch_warnings(action="ignore"), zipfile.ZipFile(held, "w", how) as packed:
        for name, data in members:
            packed.writestr(name, data)
    return held.getvalue()


_FLOATS = b"(X\x07\0\0\0storagectorch\nFloatStorage\nX\x01\0\0\x000X\x03\0\0\0cpuJ%btQ"


def _of_storage(*, says: int = 4, shape: int = 4, stride: int = 1) -> bytes:
    """A pickle of torch's with one tensor."""
    numbers = [b"J" + struct.pack("<i", n) for n in (says, 0, shape, stride)]
    storage = _FLOATS.replace(b"J%b", numbers[0])
    return (
        b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n(" + storage + numbers[1]
        + numbers[2] + b"\x85" + numbers[3] + b"\x85\x89ccollections\nOrderedDict\n)RtR"
    )  # fmt: skip


def _torch(
    pickled: bytes = _of_storage() + b".",
    *others: tuple[str, bytes],
    data: bytes = np.ones(4, dtype=np.float32).tobytes(),
    how: int = zipfile.ZIP_STORED,
) -> bytes:
    """What torch.save writes of one tensor, with another pickle perhaps."""
    kept = (("a/data.pkl", pickled), ("a/byteorder", b"little"), ("a/data/0", data))
    return _zip(*kept, ("a/version", b"3\n"), *others, how=how)


@functools.cache
def _bomb(size: int) -> bytes:
    """Honest but for its size: X of zeros of so many bytes, and y."""
    zeros = np.zeros((size // 12, 3), dtype=np.float32)
    return _npz(X=zeros, y=np.arange(len(zeros)) % 2)


def _damaged(held: bytes, *, at: int) -> bytes:
    return held[:at] + bytes([held[at] ^ 0xFF]) + held[at + 1 :]


def _deep(opening: str) -> bytes:
    return b'{"weights": ' + opening.encode() * 100_000


JSON = {
    "deep lists": _deep("["), "deep objects": _deep('{"a":'),
    "digits": b'{"weights": [[' + b"9" * 5000 + b"]]}",
    "more than a float": b'{"round": 1' + b"0" * 400 + b"}",
    "NaN": b'{"weights": [[NaN]], "round": NaN}', "an overflow": b'{"weights": [[1e999]]}',
    "half a character": b'{"name": "\\ud800", "active": ["\\udfff"]}',
    "a key twice": b'{"weights": [[1]], "weights": [[2]]}',
    "UTF-16": '{"weights": [[1.0]]}'.encode("utf-16"), "no object": b"[]", "null": b"null",
    "an escape": b'{"\\u001b[2J": 1}',
}  # fmt: skip
TEXT = {
    "a long line": b"1," * (1 << 19), "digits": b"9" * 5000 + b"\n",
    "an escape": b"\x1b[2J,\x9b,\xe2\x80\xae\n1,2,3\n", "no UTF-8": b"\xff\xfe\x00a\n",
    "a quote without its end": b'score,included\n"' + b"1" * 200_000, "NUL": b"a,b\n\0,\0\n",
    "NaN": b"score,included\nnan,1\ninf,0\n", "commas": b"," * 100_000 + b"\n",
}  # fmt: skip
HOSTILE: dict[str, Mapping[str, bytes | Callable[[], bytes]]] = {
    "any": {
        "nothing": b"",
        "a byte": b"\x80",
        "NUL": bytes(4096),
        "a zip": _zip(("../../evil.npy", b"")),
        "a pickle": b"cos\nsystem\n(S'false'\ntR.",
        "braces": b"{" * 5000,
        "line ends": b"\n" * 5000,
    },
    "json": JSON,
    "jsonl": {name: text + b"\n" for name, text in JSON.items()},
    "text": TEXT,
    "toml": {
        "digits": b"a = " + b"9" * 5000,
        "deep lists": b"a = " + b"[" * 5000,
        "deep tables": b"a = " + b"{a=" * 5000,
        "parts": b"a." * 5000 + b"a = 1",
        "an escape": b'"\\u001b[2J" = 1\n["\\u202e"]\n"a\\nerror: b" = 2',
        "a time": b"[privacy]\nepsilon = 1979-05-27T07:32:00Z\n[data]\nname = [1]",
        "other types": b"[data]\nname = {}\ncolumns = 1\n[model]\nname = nan\n",
    },
    "npy": {
        "a negative shape": _shaped("'<f4'", "(-4, 3)"),
        "a huge shape": _shaped("'<f4'", "(4611686018427387904, 4)"),
        "a shape of digits": _shaped("'<f4'", f"({'9' * 5000},)"),
        "many dimensions": _shaped("'<f4'", f"({'0,' * 300})"),
        "a shape of Booleans": _shaped("'<f4'", "(True, True)") + bytes(4),
        "objects": _shaped("'|O'", "(2, 2)") + bytes(32),
        "fields": _shaped("[('a', '<f4'), ('b', '|O')]", "(2,)") + bytes(32),
        "text": _npy(np.array([["a", "b"]])),
        "complex": _npy(np.ones((4, 4), dtype=complex)),
        "long double": _npy(np.ones((4, 4), dtype=np.longdouble)),
        "a type of gigabytes": _shaped("'|V2147483647'", "(9, 9)"),
        "a deep header": _header("(" * 9000),
        "a header of signs": _header("-" * 9000 + "1"),
        "a header of 4 GB": b"\x93NUMPY\x02\x00\xff\xff\xff\xff",
        "an unknown version": b"\x93NUMPY\x09\x00\x10\x00",
        "cut off": _npy(X)[:-5],
        "more than it says": _npy(X) + b"more",
    },
    "npz": {
        "a bomb": lambda: _bomb(68 << 20),
        "damage in a stream": _damaged(_npz(X=X, y=Y), at=200),
        "a member twice": _zip(("X.npy", _npy(X)), ("y.npy", _npy(Y)), ("X.npy", _npy(X + 1))),
        "an absolute name": _zip(("/X.npy", _npy(X)), ("y.npy", _npy(Y))),
        "a name above": _zip(("../X.npy", _npy(X)), ("X.npy", _npy(X)), ("y.npy", _npy(Y))),
        "lzma": _zip(("X.npy", _npy(X)), ("y.npy", _npy(Y)), how=zipfile.ZIP_LZMA),
        "many members": _zip(*((f"{n}.npy", b"") for n in range(3000))),
        "objects": _zip(("X.npy", _shaped("'|O'", "(2, 2)") + bytes(32)), ("y.npy", _npy(Y))),
        "a shape that is not there": _zip(("X.npy", _shaped("'<f4'", "(99999999, 3)")),
                                          ("y.npy", _npy(Y))),
        "no arrays": _zip(("X.npy", b"text"), ("y.npy", b"text")),
        "a comment": _npz(X=X, y=Y)[:-2] + b"\x05\x00hello",
        "a directory of gigabytes": _npz(X=X, y=Y)[:-10] + b"\xff\xff\xff\x7f\0\0\0\0\0\0",
        "cut off": _npz(X=X, y=Y)[:-30],
    },
    "safetensors": {
        **{kind: _tensors({"inputs": _tensor(kind), "x": _tensor("F32", (0,), (16, 16))},
                          bytes(16))
           for kind in ("F8_E4M3", "F8_E5M2", "F8_E8M0", "F4", "F6_E2M3", "C64", "U16", "U64",
                        "ZZ", "", "f32")},
        "a negative shape": _tensors({"a": _tensor("F32", (-2, -2))}, bytes(16)),
        "a shape that overflows": _tensors({"a": _tensor("F32", (1 << 62, 1 << 62))}, bytes(16)),
        "a shape of digits": _tensors(b'{"a":{"shape":[' + b"9" * 5000 + b"]}}"),
        "a shape of zeros": _tensors({"a": _tensor("F32", (0, 1 << 62), (0, 0))}),
        "many dimensions": _tensors({"a": _tensor("U8", (1,) * 3000, (0, 1))}, b"0"),
        "places outside": _tensors({"a": _tensor("F32", (4,), (1 << 40, (1 << 40) + 16))}),
        "places that overlap": _tensors({"a": _tensor(), "b": _tensor()}, bytes(16)),
        "a gap": _tensors({"a": _tensor("F32", (4,), (4, 20))}, bytes(20)),
        "more than it says": _tensors({"a": _tensor()}, bytes(17)),
        "a name twice": _tensors(b'{"a":{},"a":{}}'),
        "names without an end": _tensors({"../../a": _tensor(), "\x1b[2J.rows": 3}, bytes(16)),
        "metadata of numbers": _tensors({"__metadata__": {"round": 3}}),
        "a round of digits": _tensors({"__metadata__": {"round": "9" * 5000, "sha256": "0"}}),
        "a deep header": _tensors(b'{"a":' + b"[" * 100_000),
        "a header beyond the file": _tensors({}, length=1 << 63),
        "a list": _tensors([1, 2]),
        "no tensors": _tensors({}),
        "parts that do not fit": save(
            {"000.m.rows": torch.ones(2, 3), "000.m.senders": torch.ones(5),
             "000.m.links": torch.ones(1)}, {"round": "4"}),
        "one part": save({"000.m.rows": torch.ones(2, 3)}, {"round": "4"}),
        "another round": save({"a": torch.ones(2)}, {"round": "-7"}),
        "infinite": save({"inputs": torch.full((1, 1, 3, 4), torch.inf)}),
    },
    "torch": {
        "code": _torch(b"cos\nsystem\n(S'false'\ntR."),
        "code by protocol 4": _torch(pickle.dumps(eval, protocol=4)),
        "bytes of terabytes": _torch(b"\x80\x02c__builtin__\nbytearray\n\x8a\x06" + bytes(5)
                                     + b"\x10\x85R."),
        "a tensor of terabytes": _torch(b"\x80\x02ctorch\nTensor\n\x8a\x06" + bytes(5)
                                        + b"\x10\x85R."),
        "a storage beyond its member": _torch(_of_storage(says=1 << 30, shape=1 << 30) + b"."),
        "a view of gigabytes": _torch(_of_storage(shape=1 << 30, stride=0) + b"."),
        "views of gigabytes": _torch(b"](" + _of_storage(shape=1 << 22, stride=0) + b"q\0"
                                     + b"h\0" * 999 + b"e."),
        "a pickle of megabytes": _torch(_of_storage() + b"0N" * (3 << 20) + b"."),
        "lists of lists": _torch(b"]q\0" + b"](" + b"h\0" * 999 + b"eq\0" * 1 + b"](" +
                                 b"h\0" * 999 + b"eq\0](" + b"h\0" * 999 + b"e."),
        "a list in itself": _torch(b"]q\0h\0a."),
        "deep lists": _torch(b"]" * 50_000 + b"a" * 49_999 + b"."),
        "an unknown step": _torch(b"\xfe" * 9),
        "no pickle": _torch(b""),
        "two pickles": _torch(_of_storage() + b".", ("b/data.pkl", b"N.")),
        "a member twice": _torch(_of_storage() + b".", ("a/data/0", bytes(16))),
        "packed": _torch(how=zipfile.ZIP_DEFLATED),
        "many members": _torch(_of_storage() + b".", *((f"a/data/{n}", b"") for n in range(30000))),
        "no storage": _zip(("a/data.pkl", _of_storage() + b"."), how=zipfile.ZIP_STORED),
        "not a number": _torch(data=np.full(4, np.nan, dtype=np.float32).tobytes()),
        "a name twice": _torch(b"}(X\x01\0\0\x000" + _of_storage() + b"K\0" + _of_storage()
                               + b"u."),
        "no tensors": _torch(b"}."),
        "TorchScript": _zip(("a/constants.pkl", b"N."), ("a/data.pkl", b"N.")),
        "a model of Keras": _zip(("model.weights.h5", b"")),
        "HDF5": b"\x89HDF\r\n\x1a\n" + bytes(99),
        "GGUF": b"GGUF\3\0\0\0" + b"\xff" * 99,
        "msgpack": b"\x82\xa6params\x81\xa1a\xc7\xff\xff\xff\xff",
        "torch of before 1.6": b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19." + bytes(99),
        "a pointer of Git LFS": b"version https://git-lfs.github.com/spec/v1\n",
        "cut off": _torch()[:-30],
        "more in front": b"PK\3\4" + _torch(),
        "a directory elsewhere": _damaged(_torch(), at=len(_torch()) - 6),
    },
    "picture": {
        "cut off": _picture()[:40],
        "a damaged stream": _damaged(_picture(), at=50),
        "a huge PNG": _picture()[:16] + struct.pack(">II", 1 << 30, 1 << 30) + _picture()[24:],
        "a text that unpacks": lambda: _png_text(64 << 20),
        "a cut JPEG": _picture("JPEG")[:200],
        "a BMP of lies": _damaged(_picture("BMP"), at=19),
        "a GIF": b"GIF89a" + b"\xff" * 50,
    },
    "idx": {
        "a huge shape": _idx(1 << 31, 28, 28),
        "a shape that overflows": _idx(*3 * [(1 << 32) - 1]),
        "another type": b"\0\0\x0d\x03" + bytes(12),
        "cut off": _idx(2, 2, 2, data=bytes(5)),
    },
    "gz": {
        "a bomb": lambda: gzip.compress(bytes(80 << 20), 1),
        "a bomb of a header": gzip.compress(_idx(1 << 20, 28, 28)),
        "cut off": gzip.compress(b"1 1:1\n" * 1000)[:-9],
        "damage in the stream": _damaged(gzip.compress(bytes(range(256)) * 9), at=40),
    },
    "bz2": {
        "cut off": bz2.compress(b"1 1:1\n" * 1000)[:-9],
        "damage in the stream": _damaged(bz2.compress(bytes(range(256)) * 9), at=40),
    },
    "libsvm": {
        "a huge index": b"1 99999999999999999999:1\n0 1:1\n",
        "a negative index": b"1 -5:1\n0 1:1\n",
        "many features": b"1 999999999:1\n0 1:1\n",
        "no number": b"1 1:nan\n0 1:inf\n",
        "labels of digits": b"9" * 5000 + b" 1:1\n0 1:1\n",
        "a pair": b"1,2 1:1\n0 1:1\n",
    },
    "pickle": {
        "a call": pickle.dumps({"data": eval, "labels": [0]}),
        "a table of values": b"\x80\x02}r\xff\xff\xff\x7f.",
        "bytes of terabytes": b"\x80\x04\x8e" + struct.pack("<Q", 1 << 42) + b".",
        "no batch": pickle.dumps([1, 2, 3]),
        "cut off": _cifar()[:-100],
        "deep lists": b"(" * 50_000 + b"l" * 50_000 + b".",
    },
    "parquet": {
        "many rows": lambda: _parquet(
            age=np.zeros(10**7), sex=np.zeros(10**7), ill=np.zeros(10**7)
        ),
        "a long text that all rows share": lambda: _parquet(sex=["f" * 10_000_000] * 16),
        "lists": _parquet(age=[[1.0, 2.0]] * 16),
        "cut off": _parquet()[:-20],
        "a damaged page": _damaged(_parquet(), at=60),
        "a damaged footer": _damaged(_parquet(), at=len(_parquet()) - 60),
        "a long footer": _parquet()[:-8] + b"\xff\xff\xff\x7fPAR1",
    },
}  # fmt: skip


@dataclass(frozen=True)
class Reader:
    """A reader of a file.

    Attributes:
        module: where it stands.
        kinds: which of `HOSTILE` it meets beside "any".
        name: of its file, in a folder of its own.
        honest: bytes that it reads.
        read: of the path.
    """

    module: str
    kinds: tuple[str, ...]
    name: str
    honest: bytes
    read: Callable[[Path], object]


def _made(write: Callable[[Path], object], name: str) -> bytes:
    """What a writer of ours writes."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder) / name)
        return (Path(folder) / name).read_bytes()


def _transcript() -> bytes:
    kept = Transcript()
    kept(
        Message(round=4, call=0, kind="model", senders=torch.arange(2),
                links=torch.tensor([[0, 1], [1, 0]]), rows=torch.ones(2, 5))
    )  # fmt: skip
    return _made(lambda path: kept.save(path.parent), "round-000004.safetensors")


def _kept(path: Path) -> object:
    """A kept transcript whose digest fits, as whoever writes the log can have it."""
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    place = kept_folder(path.parent / "0.jsonl")
    place.mkdir(exist_ok=True)
    (place / f"round-3-{digest[:32]}.safetensors").write_bytes(path.read_bytes())
    return read_kept([path.parent / "0.jsonl"], digest, 3)


def _honest_kept() -> bytes:
    held = KeptTranscript(
        value=torch.ones(3, dtype=torch.float64), known=None, scale=1.0,
        batches={0: torch.tensor([1])}, records={0: 5}, points={}, noise={}, rows={},
    )  # fmt: skip

    def write(path: Path) -> None:
        digest = keep(path, round=3, place=0, kept=held)
        made = kept_folder(path) / f"round-3-{digest[:32]}.safetensors"
        path.write_bytes(made.read_bytes())

    return _made(write, "0.jsonl")  # fmt: skip


def _beside(read: Callable[..., object], *arguments: Any) -> Callable[[Path], object]:
    return lambda path: read(path.parent, *arguments)


def _cifar_folder(path: Path) -> object:
    folder = path.parent / "cifar-10-batches-py"
    folder.mkdir(exist_ok=True)
    for name in ("data_batch_1", "test_batch"):
        (folder / name).write_bytes(path.read_bytes())
    return read_cifar10(path.parent)


def _image_folder(path: Path) -> object:
    for name in ("a", "b"):
        (path.parent / "set" / name).mkdir(parents=True, exist_ok=True)
        (path.parent / "set" / name / "1.png").write_bytes(path.read_bytes())
    return read_image_folder(path.parent / "set")


def _targets(path: Path) -> object:
    np.save(path.with_name("x.npy"), X)
    return read_npy(path.with_name("x.npy"), path)


def _table(form: str) -> Callable[[Path], object]:
    return lambda path: read_table(path, COLUMNS, form=form)


_METRICS = b'{"round": 3, "consensus_loss": 0.5, "consensus_distance": 0.25}\n' * 3
_LOG = b"".join(
    json.dumps(one).encode() + b"\n"
    for one in (
        {"schema": "releases-1", "agents": 3, "clip": 1.0, "rate": 0.1, "sampler": "poisson"},
        {"round": 1, "releases": [{"from": 0, "to": [1], "kind": "m", "noise": 2.0}]},
    )
)
_FOUND = json.dumps({
    "schema": 1, "model": "m", "parameters_from": "file", "parameters": 9, "intercepts": 1,
    "preset": "matched", "input_shape": [1, 2, 2], "classes": 2, "records": 1, "clip_norm": None,
    "clip_batch": False, "noise_std": 0.0, "labels": [1], "labels_given": False,
    "stage": ["exact"], "supported": [True], "objective": 0.1, "iterations": 1,
    "relative_residual": 0.1, "residual_of_noise": 0.0, "scores": None, "images": ["image-0.png"],
    "originals": [], "reconstruction": "r.safetensors", "notes": ["a"], "conclusion": "A leak.",
})  # fmt: skip
HOSTILE["json"] |= {
    "pictures elsewhere": _FOUND.replace("image-0.png", "../image-0.png").encode(),
    "more pictures than records": _FOUND.replace('["image-0.png"]', '["a.png", "b.png"]').encode(),
}
_SWEEP = b'base = "run.toml"\nseeds = 2\n[grid]\n"training.rounds" = [3, 4]\n'
_RING = Cells(name="t", scale="small", swept={"small": {"graph.name": ["ring"]}})
_SVM = b"1 1:0.5 3:1\n-1 2:0.25\n" * 8
READERS = (
    Reader("attacks/foreign/scores_audit.py", ("text",), "s.csv",
           b"score,included\n" + b"0.5,1\n-1,0\n" * 9, read_scores),
    Reader("attacks/inversion/optimisation.py", ("safetensors",), "c.safetensors",
           save({"pixels": torch.ones(3)}, {"problem": "p"}),
           lambda path: SearchCheckpoint(path=path, problem="p").load()),
    Reader("privacy/formats/codec.py", ("json",), "a.json", b'{"a": [1, 2.5, "b"]}',
           lambda path: codec.read_json(path, 1 << 20)),
    Reader("privacy/releases/ledger.py", ("jsonl",), "l.jsonl",
           chained({"schema": 2, "run": "a"}, {"round": 0, "releases": []}), read_ledger),
    Reader("privacy/releases/person_ledger.py", ("jsonl",), "p.jsonl",
           chained({"schema": "person-1"}), read_person_ledger),
    Reader("privacy/releases/log.py", ("jsonl",), "0.jsonl", _LOG, read_log),
    Reader("reports/document/collect.py", ("json",), "privacy.json",
           b'{"recipients": {"victim": 3}}', _beside(_told_of)),
    Reader("reports/document/html.py", ("json",), "attack.json", _FOUND.encode(),
           lambda path: render_found(path.parent, read_found(path.parent))),
    Reader("reports/judgement/policy.py", ("toml",), "policy.toml",
           b'schema = 1\n[[limits]]\nadversary = "eavesdropper"\nepsilon = 4.0\ndelta = 1e-5\n',
           load_policy),
    Reader("reports/reproduced/paper_result.py", ("text",), "f.csv",
           b"graph.name,figure\nring,88.3\n",
           lambda path: read_figures(path, _RING)),
    Reader("reports/reproduced/printed_table.py", ("text",), "t.csv",
           b"data,metric,graph,value\nmnist,MSE,ring,0.8 \xc2\xb1 0.1\nmnist,PSNR,ring,6.5\n",
           lambda path: review([path])),
    Reader("runs/attack/invert.py", ("toml",), "run.toml",
           b'[data]\ntarget = "b"\ncolumns = {a = [0, 1], b = ["f", "m"]}\n', read_columns),
    Reader("runs/attack/tokens.py", ("json",), "v.json", b'{"a": 0, "b": 1}',
           lambda path: read_vocabulary(
               path, SimpleNamespace(table=SimpleNamespace(vocabulary=2)))),
    Reader("runs/attack/points.py", ("safetensors",), "r.safetensors", _transcript(),
           _check_whole),
    Reader("runs/attack/prior_records.py", ("npz", "npy"), "r.npz",
           _npz(inputs=np.ones((2, 1, 3, 4), dtype=np.float32), labels=np.array([0, 1])),
           lambda path: read_records(path, FORM)),
    Reader("runs/attack/prior_records.py", ("safetensors",), "r.safetensors",
           save({"inputs": torch.ones(2, 1, 3, 4)}), lambda path: read_records(path, FORM)),
    Reader("runs/attack/prior_records.py", ("picture",), "r.png", _picture(),
           lambda path: read_records(path, FORM)),
    Reader("runs/attack/prior_records.py", ("text",), "r.csv", CSV,
           lambda path: read_records(path, ROWS)),
    Reader("runs/attack/prior_records.py", ("safetensors",), "g.safetensors",
           save({"a": torch.ones(2, 2)}, {"records": "4"}), read_tensors),
    Reader("runs/attack/prior_records.py", ("torch",), "g.pt", _torch(), read_tensors),
    Reader("runs/attack/prior_records.py", ("npy",), "g.npy", _npy(X), read_tensors),
    Reader("runs/attack/prior_records.py", ("npz", "torch"), "g.npz",
           _npz(a=X, b=X + 1), read_tensors),
    Reader("runs/audit/evidence.py", ("jsonl",), "audits.jsonl", b'{"version": 1}\n',
           lambda path: read_trail([path], _CONFIG)),
    Reader("runs/described.py", ("json",), "environment.json",
           b'{"python": "3.12", "packages": {"torch": "2"}}', Environment.read),
    Reader("runs/folder/records.py", ("jsonl",), "metrics.jsonl", _METRICS, read_metrics),
    Reader("runs/folder/records.py", ("json",), "stopped.json",
           b'{"round": 3, "rounds": 9, "adversary": "server", "epsilon": 1.5, "target": 2.0, '
           b'"delta": 1e-05, "because": "it ends"}', Stopped.read),
    Reader("runs/folder/resume.py", ("jsonl",), "metrics.jsonl", _METRICS,
           lambda path: list(map(_round_of, path.read_bytes().splitlines()))),
    Reader("runs/folder/signature.py", ("text",), "team.secret", b"0f" * 32,
           lambda path: path.chmod(0o600) or read_key(path)),
    Reader("runs/folder/folder.py", ("text",), "SHA256SUMS",
           b"0" * 64 + b"  run.toml\n" + b"1" * 64 + b"  ledger.jsonl\n", _beside(_listed)),
    Reader("runs/run_file/trust.py", ("json",), "sources.json",
           b'{"schema": 1, "files": {"a.py": "' + b"0" * 64 + b'"}, "installed": {}}',
           _beside(read_sources)),
    Reader("runs/recorder/keeping.py", ("safetensors",), "k.safetensors",
           _honest_kept(), _kept),
    Reader("runs/recorder/outcome.py", ("json",), "conformance.json",
           b'{"schema": 1, "logs": {}}', lambda path: read_held([path.with_name("0.jsonl")])),
    Reader("runs/run_file/run_file.py", ("toml",), "run.toml", RUN_FILE.encode(), load_run_file),
    Reader("runs/sweep/results.py", ("jsonl",), "tuned.jsonl",
           b'{"row": {"a": "1"}, "chosen": {"b": "2"}}\n',
           lambda path: list(read_tuned(path.parent))),
    Reader("runs/sweep/sweep_file.py", ("toml",), "sweep.toml", _SWEEP, read_sweep_file),
    Reader("training/data/own_data.py", ("npz", "npy"), "a.npz", _npz(X=X, y=Y), read_npz),
    Reader("training/data/own_data.py", ("npy", "npz"), "y.npy", _npy(Y), _targets),
    Reader("training/data/store.py", ("npy",), "x.npy", _npy(X),
           lambda path: read_npy(path, _saved_targets(path))),
    Reader("training/data/readers.py", ("picture",), "i.png", _picture(), _image_folder),
    Reader("training/data/readers.py", ("idx",), "images", _idx(2, 2, 2, data=bytes(8)),
           lambda path: read_idx(path, dimensions=3)),
    Reader("training/data/readers.py", ("gz", "idx"), "images.gz",
           gzip.compress(_idx(2, 2, 2, data=bytes(8))), lambda path: read_idx(path, dimensions=3)),
    Reader("training/data/readers.py", ("pickle",), "batch", _cifar(), _cifar_folder),
    Reader("training/data/readers.py", ("libsvm", "text"), "a.svm", _SVM,
           lambda path: read_libsvm(path, features=3)),
    Reader("training/data/readers.py", ("gz",), "a.svm.gz", gzip.compress(_SVM),
           lambda path: read_libsvm(path, features=3)),
    Reader("training/data/readers.py", ("bz2",), "a.svm.bz2", bz2.compress(_SVM),
           lambda path: read_libsvm(path, features=3)),
    Reader("training/data/table_rows.py", ("text",), "t.csv", CSV, _table("csv")),
    Reader("training/data/table_rows.py", ("parquet",), "t.parquet", _parquet(),
           _table("parquet")),
    Reader("training/engine/tensor_file.py", ("safetensors",), "round-000004.safetensors",
           _made(lambda path: save_checkpoint(
               path, Checkpoint(round=4, state={"x": torch.ones(3, 2)})), "c.safetensors"),
           load_checkpoint),
    Reader("training/engine/transcript.py", ("safetensors",), "round-000004.safetensors",
           _transcript(), _beside(Transcript.load)),
    Reader("training/graphs/topologies.py", ("json",), "g.json",
           b'{"agents": 3, "edges": [[0, 1], [1, 2]]}', read_graph_file),
    Reader("training/graphs/topologies.py", ("npy", "npz"), "g.npy", _npy(np.eye(3)),
           read_graph_file),
    Reader("training/graphs/topologies.py", ("text",), "g.csv", b"0.5,0.5\n0.5,0.5\n",
           read_graph_file),
    Reader("training/graphs/participation.py", ("json",), "a.json",
           b'{"active": [[0, 1], [1, 2]]}', lambda path: read_active_file(path, agents=3)),
    Reader("training/graphs/participation.py", ("text",), "a.csv", b"1,0,1\n0,1,1\n",
           lambda path: read_active_file(path, agents=3)),
)  # fmt: skip
_CONFIG = read_tables(
    {
        "data": {"name": "digits"}, "model": {"name": "mlp"}, "algorithm": {"name": "dpdl"},
        "privacy": {"epsilon": 4.0, "delta": 1e-5},
        "training": {"rounds": 9, "sampling_rate": 0.1},
    }
)  # fmt: skip


def _saved_targets(path: Path) -> Path:
    np.save(path.with_name("y.npy"), Y)
    return path.with_name("y.npy")


def mutated(held: bytes, draw: random.Random) -> bytes:
    """An honest file with one to three changes."""
    for _ in range(draw.choice([1, 1, 2, 3])):
        at, end = sorted(draw.randrange(len(held) + 1) for _ in range(2))
        end = min(end, at + draw.choice([1, 4, 64, 4096]))
        put: bytes = draw.choice(
            [
                bytes([draw.randrange(256)]), b"\xff" * (end - at), b"\0" * (end - at), b"",
                held[at:end] * 2, draw.randbytes(end - at), b"9" * 400, b"-1", b"1e999", b"NaN",
                b"\x1b[2J", b'"', b"[" * 2000, b"\n", "\u202e".encode(), b"\x7f\xff\xff\xff",
            ]
        )  # fmt: skip
        held = held[:at] if draw.random() < 0.1 else held[:at] + put + held[end:]
    return held
