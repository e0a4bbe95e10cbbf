"""Whatever a file holds, a reader gives a value or one sentence, in little time and memory."""

import functools
import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

from overhear.privacy.errors import InputError
from overhear.runs.folder.released import forget_states
from overhear.training.engine.tensor_file import round_files, round_name
from overhear.training.engine.transcript import Transcript
from tests.hostile_files import HOSTILE, READERS, Reader, mutated
from tests.test_architecture import ORDER, ROOT, modules

pytestmark = pytest.mark.filterwarnings("ignore")


def outcome(reader: Reader, held: bytes, folder: Path) -> str:
    """What a reader does with some bytes: "read", "refused", or an error that nobody states."""
    folder.mkdir(exist_ok=True)
    path = folder / reader.name
    path.write_bytes(held)
    try:
        reader.read(path)
    except (InputError, OSError):
        return "refused"
    except BaseException as error:  # noqa: BLE001 # that is what is looked for
        return f"{reader.module}: {error!r:.300}"
    return "read"


@pytest.mark.parametrize("reader", READERS, ids=lambda one: f"{one.module}-{one.name}")
def test_every_reader_reads_what_is_honest_and_refuses_what_is_hostile(reader, tmp_path):
    if reader.name.endswith("parquet"):
        pytest.importorskip("pyarrow")
    if reader.module.endswith("sweep_file.py"):
        (tmp_path / "a").mkdir()
        (tmp_path / "a" / "run.toml").write_text("[data]\n")
    honest = outcome(reader, reader.honest, tmp_path / "a")
    # What a check of logs wrote needs these beside it.
    assert honest == "read" or reader.name == "conformance.json"
    for kind in ("any", *reader.kinds):
        for name, held in HOSTILE[kind].items():
            found = outcome(reader, held if isinstance(held, bytes) else held(), tmp_path / "a")
            allowed = {"read", "refused"} if kind in TEXTS or name in FITS else {"refused"}
            assert found in allowed, (kind, name, found)


TEXTS = {"any", "json", "jsonl", "text", "toml"}  # of which some readers take what others do not
# Whole files of tensors, of which readers ask different things, and values that are others.
FITS = {
    "a round of digits", "parts that do not fit", "one part", "another round", "a shape of zeros",
    "a damaged page",
}  # fmt: skip


def fuzz(folder: Path, *, files: int, seed: int) -> dict[str, int]:
    """How many mutated files, in turn for every reader, had which outcome."""
    draw, found = random.Random(seed), dict[str, int]()
    for at in range(files):
        reader = READERS[at % len(READERS)]
        said = outcome(reader, mutated(reader.honest, draw), folder / str(at % len(READERS)))
        found[said] = found.get(said, 0) + 1
    return found


def test_a_hundred_mutated_files_end_in_no_traceback(tmp_path):
    found = fuzz(tmp_path, files=100, seed=1)
    assert found.keys() == {"read", "refused"}, found


LIMITED = """
import json, resource, sys, time
from pathlib import Path
from tests.test_hostile_files import fuzz
import sklearn.datasets, PIL.Image
try: import pyarrow.parquet
except ImportError: pass
fuzz(Path(sys.argv[1]) / "warm", files=60, seed=0)
held = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (held + (500 << 20), resource.RLIM_INFINITY))
began = time.process_time()
found = fuzz(Path(sys.argv[1]) / "files", files=1000, seed=2)
print(json.dumps([found, time.process_time() - began]))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="what a process holds is told otherwise there")
def test_a_thousand_mutated_files_take_20_seconds_and_500_megabytes(tmp_path):
    for name in ("warm", "files"):
        (tmp_path / name).mkdir()
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", LIMITED, str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, check=True, timeout=300,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    found, seconds = json.loads(done.stdout.splitlines()[-1])
    assert found.keys() == {"read", "refused"}, found
    assert seconds < 20


# What makes values of bytes, and so stands in the layer of readers alone.
DECODES = (
    r"(?:np|numpy|torch)\.(?:load|loadtxt|genfromtxt|fromfile|memmap)|format\.read\w+"
    r"|(?:json|pickle|marshal|tomllib|plistlib)\.loads?|(?:zipfile|tarfile|gzip|bz2|lzma)\.\w+"
    r"|zlib\.decompress\w*|csv\.(?:reader|DictReader)|ET\.(?:parse|fromstring)|safe_open|load_file"
    r"|Image\.open|load_svmlight_file|ParquetFile|Unpickler|(?:model_)?validate_json|(?<=\.)read_(?:bytes|text)"
)
# Files outside of the layer that do so, and why they may.
OUTSIDE = {
    "training/data/readers.py": "idx, LIBSVM and CIFAR-10 are read there, with the layer's bounds",
    "training/data/load.py": "digits, of the installed scikit-learn",
    "training/data/table_rows.py": "parquet is read there, with the layer's bounds",
    "training/graphs/topologies.py": "a matrix as text, of lines that are bounded before",
    "runs/run_file/hyper_parameters.py": "what it wrote itself a line before",
    "training/own/objects.py": "code that is imported",
    "training/own/names.py": "code that is imported",
    "runs/folder/ranks.py": "what ranks of this run say",
    "runs/folder/rendezvous.py": "what ranks of this run say",
    "runs/folder/place.py": "of the system, and our own files",
    "reports/references.py": "our own templates",
    "reports/document/html.py": "our own table of deployments",
    "reports/judgement/findings.py": "our own sentences",
    "privacy/published/claim.py": "our own citations",
    "reports/reproduced/paper_result.py": "our own entries",
    "reports/reproduced/review.py": "our own scores",
    "reports/reproduced/work_estimates.py": "our own file",
    "interface/shown.py": "the report that was just written",
    "commands/train.py": "our own template and run file, and the report that was just written",
    "commands/terminal/terminal.py": "our own files",
}


def in_layer(name: str) -> bool:
    return name.startswith("privacy/formats/")


def files_with(pattern: str) -> set[str]:
    """The files of the product that have it in a line that is no doctest."""
    found = set[str]()
    for name, text in texts().items():
        for hit in re.finditer(pattern, text, re.MULTILINE):
            line = text[text.rfind("\n", 0, hit.start()) + 1 : hit.end()].lstrip()
            if not line.startswith((">>>", "... ")):
                found.add(name)
    return found


@functools.cache
def texts() -> dict[str, str]:
    return {
        path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
        for part in ORDER
        for path in modules(part)
    }


def test_bytes_become_values_in_the_layer_of_readers_alone():
    layer = {"privacy/files.py", "training/engine/tensor_file.py"}
    found = {name for name in files_with(rf"\b(?:{DECODES})\(") - layer if not in_layer(name)}
    assert found == OUTSIDE.keys()


# Files that use the layer and read nothing by it, or whose reader another one of the list calls.
WITHOUT_FILE = {
    "adapters/flower/record.py",  # sentences that are compared with a new one
    "interface/shown.py",  # copies pictures as they are
    "privacy/releases/chained_file.py",  # appends; ledger.py and log.py read
    "reports/reproduced/verdicts.py",  # files.py, as collect.py copies them
    "reports/reproduced/reproduce.py",  # read_json of codec.py with a key
    "reports/sweep/plot.py",  # files.py
    "runs/attack/layouts.py",  # a bound on memory
    "runs/attack/model.py",  # a type; prior/tensor_file.py reads
    "runs/audit/membership.py",  # copies a file as it is
    "runs/run_file/tables.py",  # writes TOML
    "runs/folder/released.py",  # described.py, of a file that the ledger names by digest
    "runs/plan/trainable.py",  # TOML that it wrote itself
    "runs/run_file/build.py",  # a bound on memory
    "runs/sweep/sweep.py",  # that no folder is a link
    "training/data/quadratic.py",  # a bound on memory
    "training/data/table.py",  # its own conversions, by tensor_archives.py
    "training/models/parameters.py",  # a bound on memory
}


# What files of the layer have beside their readers: what writes, names a place, or makes objects of
# what a reader has bounded before. Whatever else such a file has, reads.
NO_READERS = {
    "privacy/files.py": (
        "BINARY PART SHOWN lock make_file make_folder named open_private part_of publish "
        "sync_folder write_all write_durably"
    ),
    "privacy/formats/codec.py": (
        "CONFIG Count Delta Fraction NotNegative Positive Score Words as_text described dump "
        "finite load schema_of"
    ),
    "training/engine/tensor_file.py": (
        "BrokenCheckpoint Checkpoint FORMAT load_checkpoint round_files round_name save_checkpoint"
    ),
}


def importing_readers(name: str) -> str:
    """A pattern of imports of what reads in a file of the layer."""
    public = set(re.findall(r"^(?:def |class )?([A-Za-z]\w*)\b", texts()[name], re.M))
    readers = "|".join(sorted(public - {*NO_READERS.get(name, "").split()}))
    stem = Path(name).stem
    return rf"^ *from \.+(?:\w+\.)*{stem} import (?:[^(\n]*|\([^)]*)\b(?:{readers})\b"


def test_every_reader_of_the_product_meets_the_hostile_files():
    layer = [name for name in texts() if in_layer(name) or name in NO_READERS]
    found = {
        file
        for name in layer
        if Path(name).stem != "__init__"
        for file in files_with(importing_readers(name))
        if not in_layer(file)
    }
    found |= files_with("engine import tensor_file")
    listed = {one.module for one in READERS if not in_layer(one.module)}
    assert found - WITHOUT_FILE == listed


def test_only_files_of_a_round_are_taken_for_them(tmp_path):
    """A file manager's copy has a name that begins as that of a round does, and is none."""
    for name in ("zz", "000004 (copy)", "4", "0000004", "-00004", "\u0664" * 6, "9" * 200):
        (tmp_path / f"round-{name}.safetensors").write_bytes(b"no tensors")
    (tmp_path / "round-000005.safetensors").mkdir()
    os.mkfifo(tmp_path / "round-000006.safetensors")
    (tmp_path / "round-000007.safetensors").symlink_to(tmp_path / "nowhere")
    assert round_files(tmp_path) == []
    assert len(Transcript.load(tmp_path)) == 0
    forget_states(tmp_path, kept=lambda number: False, newest=0)
    assert len(list(tmp_path.iterdir())) == 10
    whole = tmp_path / round_name(8)
    whole.write_bytes(b"")
    assert round_files(tmp_path) == [(8, whole)]
