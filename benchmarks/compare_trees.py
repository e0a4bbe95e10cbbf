"""Two trees of the source beside each other: whether they compute the same, bit for bit.

    python benchmarks/compare_trees.py OLD NEW [--only NAME ...] [--out DIR] [--all]
    python benchmarks/compare_trees.py tests/golden NEW [--close]
    python benchmarks/compare_trees.py --write

OLD's run files are planned, trained for a few rounds and reported with the code of each tree; some
are attacked, audited and checked, too (`tree_runs.py`). Then everything they leave is compared.
Numbers, statuses and tensors must be equal; sentences are counted apart. Needs MNIST/raw and
libsvm below OVERHEAR_DATA for the examples on these data, which are skipped otherwise. The exit
code is 1 where something differs but words.

In place of OLD a folder of goldens (`golden.py`) says what its small run files left earlier;
`--close` lets the last digits differ, as on another machine. `--write` writes the goldens of the
tree in which this file stands.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

import golden
import torch
from safetensors import safe_open
from torch import Tensor
from tree_runs import Case, cases_of, environment_of, golden_cases, write_cases

ROOT = Path(__file__).resolve().parents[1]
GOLDEN = ROOT / "tests" / "golden"
RENAMED: dict[str, str] = {
    "privacy.json.*.mending": "fixes",
    "privacy.json.*.hits.*.false_alarms": "false_positives",
}
"""Patterns of paths of OLD's keys, and their names in NEW."""
GAINED: dict[str, str] = {"*.published_bound": "bounds of three papers that no command reached"}
"""Patterns of paths that may be null in OLD alone, and why."""
IGNORED: dict[str, str] = {
    "ledger.0.run": "drawn at random",
    "models.*.metadata.run": "the same",
    "*.run_file": "digest of run.toml, which is compared itself",
    "models.*.metadata.measured": "seconds by layout, which no one measures any more",
    "models.*.metadata.sha256": "of the fields, which are compared, and of the two above",
    "privacy.json.*.reproduce.files.*": "digests of files, which are compared themselves",
    "privacy.json.*.made": "the time",
    "*.version": "of the tool",
    "privacy.json.*.schema": "of the file's format: keys were renamed",
    "*.packages.overhear": "the same",
    "run folder.SHA256SUMS": "digests",
    "run folder.report.html": "words; its figures are those of privacy.json",
}
"""Patterns of paths that are not compared, and why."""
WORDS = (
    *("*.because", "*.warnings.*", "*.caveats.*", "*.statement", "*.paper", "*.notes.*"),
    *("*.assumptions.*.text", "*.assumptions.*.how", "*.estimators.*.assumptions", "*.words"),
    *("*.conclusion", "*.sentence", "*.spectral", "*.records", "*.unused.*", "*.game"),
    *("*.requirements.*.name", "*.message", "*.mending.*", "*.reproduce.c[oh]*", "said.*"),
    "printed.*",
)
"""Patterns of paths whose strings are meant for people; numbers there are compared all the same."""
PARTS = ("plan", "ledger", "models", "messages", "metrics", "privacy.json", "run folder", "others")
SENTENCES = ("said", "printed")
"""Parts that are words and stand in no column."""
_SECONDS = re.compile(r"\b\d[\d.]* (s|seconds|minutes)\b|sha256 [0-9a-f]{8,}")
_SHOWN, _WIDTH = 12, 90


class Difference(NamedTuple):
    """Where two trees differ, and what each has there."""

    path: str
    old: str
    new: str
    words: bool

    def __str__(self) -> str:
        return f"{self.path}: {self.old[:_WIDTH]} -> {self.new[:_WIDTH]}"


def renamed(value: Any, path: str) -> Any:
    """A value of OLD, which stands at a path, with the keys of NEW."""
    if isinstance(value, Mapping):
        found = {}
        for key, held in value.items():
            here = f"{path}.{key}"
            names = (name for pattern, name in RENAMED.items() if fnmatchcase(here, pattern))
            found[next(names, key)] = renamed(held, here)
        return found
    if isinstance(value, list):
        return [renamed(held, f"{path}.{at}") for at, held in enumerate(value)]
    return value


def is_ignored(path: str) -> bool:
    """Whether what stands at a path is not compared."""
    return any(fnmatchcase(path, pattern) for pattern in IGNORED)


def differences(old: Any, new: Any, path: str, *, close: bool = False) -> Iterator[Difference]:
    """Path by path; a float differs in any bit, and 1 differs from 1.0.

    Args:
        old: JSON, whose leaves may be tensors.
        new: the same.
        path: where they stand.
        close: whether the last digits may differ (`golden.agree`).
    """
    if is_ignored(path) or (close and golden.agree(old, new, path)):
        return
    if old is None and any(fnmatchcase(path, pattern) for pattern in GAINED):
        return
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*old, *(key for key in new if key not in old)]:
            here = f"{path}.{key}"
            if key in old and key in new:
                yield from differences(old[key], new[key], here, close=close)
            elif not is_ignored(here):
                yield Difference(here, _shown(old, key), _shown(new, key), words=False)
    elif isinstance(old, list) and isinstance(new, list):
        for at, (one, other) in enumerate(zip(old, new, strict=False)):
            yield from differences(one, other, f"{path}.{at}", close=close)
        if len(old) != len(new):
            words = all(isinstance(held, str) and _are_words(f"{path}.0") for held in [*old, *new])
            yield Difference(path, f"{len(old)} entries", f"{len(new)} entries", words)
    elif isinstance(old, Tensor) and isinstance(new, Tensor):
        if told := _apart(old, new):
            yield Difference(path, *told, words=False)
    elif type(old) is not type(new) or repr(old) != repr(new):
        words = isinstance(old, str) and isinstance(new, str) and _are_words(path)
        yield Difference(path, repr(old), repr(new), words)


def _are_words(path: str) -> bool:
    return any(fnmatchcase(path, pattern) for pattern in WORDS)


def _shown(held: Mapping[str, Any], key: str) -> str:
    return repr(held[key]) if key in held else "absent"


def _apart(old: Tensor, new: Tensor) -> tuple[str, str] | None:
    """How two tensors differ, None where every bit is equal."""
    kinds = [f"{one.dtype} {tuple(one.shape)}" for one in (old, new)]
    if kinds[0] != kinds[1]:
        return kinds[0], kinds[1]
    bits = [one.reshape(-1, 1).contiguous().view(torch.uint8) for one in (old, new)]
    other = (bits[0] != bits[1]).any(1)  # a number each
    if not bool(other.any()):
        return None
    most = (old.double() - new.double()).abs().max()
    return kinds[0], f"{int(other.sum())} numbers differ, by at most {float(most):.3g}"


def tensors(folder: Path) -> dict[str, Any]:
    """What the safetensors files of a folder hold: tensors, and what is written beside them."""
    found: dict[str, Any] = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            held = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - no mapping
            found[path.stem] = held | {"metadata": dict(sorted(file.metadata().items()))}
    return found


def left_by(place: Path) -> dict[str, Any]:
    """All that the commands of a case left, by the parts of the table; {} if nothing was run."""
    if not (place / "codes.json").exists():
        return {}
    run, printed = place / "run", {p.stem: p.read_text() for p in sorted(place.glob("*.out"))}
    codes: dict[str, int] = json.loads((place / "codes.json").read_text(encoding="utf-8"))
    spoken = {name: json.loads(text) for name, text in printed.items() if text.startswith("{")}
    files = {str(p.relative_to(run)): p for p in sorted(run.rglob("*")) if p.is_file()}
    lines = {
        name: [json.loads(line) for line in files[name].read_text().splitlines()]
        for name in ("ledger.jsonl", "metrics.jsonl")
        if name in files
    }
    pictures = {
        name: hashlib.sha256(path.read_bytes()).hexdigest()
        for name, path in files.items()
        if path.suffix == ".png"
    }
    written = {
        name: json.loads(files[name].read_text())
        for name in ("environment.json", "audit.json", "attacks/attack.json")
        if name in files
    }
    if "run.toml" in files:
        written["run.toml"] = tomllib.loads(files["run.toml"].read_text())
    if "privacy.json" in files:
        spoken["html"] = json.loads(files["privacy.json"].read_text())
    refused = [name for name, code in codes.items() if code and name not in spoken]
    return {
        "plan": spoken.pop("plan", None),
        "ledger": lines.get("ledger.jsonl"),
        "models": tensors(run / "checkpoints"),
        "messages": tensors(run / "transcript"),
        "metrics": lines.get("metrics.jsonl"),
        "privacy.json": {n: spoken.pop(n) for n in ("report", "html") if n in spoken},
        "run folder": dict.fromkeys(files, "there") | written | pictures,
        "others": spoken | {"exit codes": codes},
        "said": {name: (place / f"{name}.err").read_text() for name in refused},
        "printed": {
            name: _SECONDS.sub("...", text.replace(str(place), ".")).splitlines()
            for name, text in printed.items()
            if name.endswith("-text")
        },
    }


class Row(NamedTuple):
    """A case of the table: what differs of each part, and a note for people."""

    name: str
    found: dict[str, list[Difference]]
    note: str = ""

    def failures(self) -> int:
        """Differences that are not words."""
        return sum(not one.words for part in self.found.values() for one in part)

    def words(self) -> int:
        """Differences in sentences alone."""
        return sum(one.words for part in self.found.values() for one in part)

    def __str__(self) -> str:
        if not self.found:
            return f"| {self.name} | {' | '.join('-' for _ in PARTS)} | {self.note} |"
        cells = ["-"] * len(PARTS)  # for what neither tree wrote
        for at, part in enumerate(PARTS):
            if part in self.found:
                count = sum(not one.words for one in self.found[part])
                cells[at] = f"{count} differ" if count else "equal"
        words = f"{self.words()} differ" if self.words() else "equal"
        return f"| {self.name} | {' | '.join(cells)} | {words}{self.note} |"


def compare(case: Case, out: Path, folder: Path | None = None, *, close: bool = False) -> Row:
    """The row of a case.

    Args:
        case: what was run.
        out: where OLD and NEW ran.
        folder: of goldens, in place of OLD.
        close: whether the last digits may differ.
    """
    if case.skipped:
        return Row(case.name, {}, case.skipped)
    old, new = (left_by(out / side / case.name) for side in ("old", "new"))
    if folder:
        old, new = golden.read(folder, case.name), golden.golden_of(new, is_ignored)
    if not old or not new:
        side = " and ".join(name for name, held in (("OLD", old), ("NEW", new)) if not held)
        missing = [Difference("all", "not run", f"by {side}; see its log", words=False)]
        return Row(case.name, {"others": missing})
    old = {part: renamed(held, part) for part, held in old.items()}
    found = {
        part: list(differences(old[part], new[part], part, close=close))
        for part in (*PARTS, *SENTENCES)
        if old[part] or new[part]
    }
    both = sorted(old["said"].keys() & new["said"].keys())
    return Row(case.name, found, f"; both refuse {', '.join(both)}" if both else "")


def run_all(trees: Mapping[str, Path], cases: list[Case], out: Path, data: Path) -> list[str]:
    """Run all cases in all trees at once; the trees whose process failed, and how."""
    script, started = ROOT / "benchmarks" / "tree_runs.py", {}
    for side, tree in trees.items():
        write_cases([case for case in cases if not case.skipped], out / side)
        command = [sys.executable, "-P", str(script), str(tree), str(out / side)]
        environment = environment_of(tree) | {"OVERHEAR_DATA": str(data)}
        with (out / f"{side}.log").open("w", encoding="utf-8") as log:
            started[side] = subprocess.Popen(  # noqa: S603 - our own script
                command, env=environment, stdout=log, stderr=subprocess.STDOUT
            )
    ended = {side: process.wait() for side, process in started.items()}
    return [
        f"{side.upper()}: {(out / f'{side}.log').read_text().strip() or f'exit code {code}'}"
        for side, code in ended.items()
        if code
    ]


def write_goldens(cases: list[Case], out: Path) -> None:
    """Write what the runs of golden cases left into `GOLDEN`; what was not run stays."""
    run, said = {case.name for case in cases}, set[str]()
    lefts = {
        case.name: golden.golden_of(left_by(out / "new" / case.name), is_ignored)
        if case.name in run
        else golden.read(GOLDEN, case.name)
        for case in golden_cases(GOLDEN)
    }
    for name, left in lefts.items():
        said |= golden.write(GOLDEN, name, left)
    golden.write_words(GOLDEN, said)
    size = sum(path.stat().st_size for path in GOLDEN.iterdir())
    print(f"{len(cases)} goldens, {size / 1000:.0f} kB")


def main() -> int:
    """Run, compare, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("trees", nargs="*", type=Path, metavar="TREE", help="OLD and NEW")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="rows that begin so")
    parser.add_argument("--out", type=Path, help="keep the runs in this new folder")
    parser.add_argument("--all", action="store_true", help="show every difference")
    parser.add_argument("--close", action="store_true", help="let the last digits differ")
    parser.add_argument("--write", action="store_true", help="write tests/golden; takes no trees")
    given = parser.parse_args()
    if len(given.trees) != (0 if given.write else 2):
        parser.error("takes OLD and NEW, or --write alone")
    old, new = (tree.resolve() for tree in given.trees or (GOLDEN, ROOT))
    folder = None if (old / "privacy").is_dir() else old
    data = Path(os.environ.get("OVERHEAR_DATA") or old.parent / "shared" / "data").resolve()
    cases = golden_cases(folder or GOLDEN) + ([] if folder else cases_of(old, data))
    if given.only:
        cases = [case for case in cases if case.name.startswith(tuple(given.only))]
    with tempfile.TemporaryDirectory() as held:
        out = (given.out or Path(held) / "runs").resolve()
        trees = {"new": new} if folder else {"old": old, "new": new}
        failed = run_all(trees, cases, out, data)
        if given.write and not failed:
            write_goldens(cases, out)
            return 0
        rows = [compare(case, out, folder, close=given.close) for case in cases]
    return show(rows, failed, sum(bool(case.skipped) for case in cases), every=given.all)


def show(rows: list[Row], failed: list[str], skipped: int, *, every: bool) -> int:
    """Print the table and what differs; the exit code.

    Args:
        rows: of the table.
        failed: trees whose process failed, and how.
        skipped: how many rows were not run.
        every: show every difference.
    """
    print(f"| example | {' | '.join(PARTS)} | words |\n|{' --- |' * (len(PARTS) + 2)}")
    print("\n".join(map(str, rows)), end="\n\n")
    for row in rows:
        found = [one for part in row.found.values() for one in part]
        found.sort(key=lambda one: one.words)
        shown = found if every else found[:_SHOWN]
        for one in shown:
            print(f"{row.name}, {'words' if one.words else 'DIFFERS'}: {one}")
        if len(shown) < len(found):
            print(f"{row.name}: {len(found) - len(shown)} more, --all shows them")
    print(*failed, sep="\n", end="\n" if failed else "")
    wrong, words = sum(row.failures() > 0 for row in rows), sum(row.words() for row in rows)
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(
        f"{len(rows) - skipped} rows compared, {skipped} skipped; {wrong} differ, words differ in "
        f"{words} places; {spent.ru_utime + spent.ru_stime:.0f} CPU s"
    )
    return int(wrong > 0 or bool(failed) or skipped == len(rows))


if __name__ == "__main__":
    sys.exit(main())
