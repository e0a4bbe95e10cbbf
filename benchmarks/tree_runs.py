"""The commands that `compare_trees.py` runs, and the process that runs them with one tree's code.

    python -P benchmarks/tree_runs.py TREE FOLDER     what compare_trees.py starts, once a tree

FOLDER/cases.json names the cases; what a command prints, and its exit code, stay in a folder a
case. All cases share a process, because a command spends more time on imports than on such a run;
each command starts as `python -m` would start it. What is drawn from the system's entropy is drawn
from a seed here, so that coins of audits and noise without a seed in the run file repeat, too.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import runpy
import secrets
import shutil
import subprocess
import sys
import tomllib
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

SHORT = (  # the layout by name: what "auto" chooses is no part of what a tree computes
    "training.rounds=5",
    "training.evaluate_every=3",
    "training.checkpoint_every=2",
    'training.layout="vmap"',
    "intercept.rounds=[2, 5]",
)
SEED = "training.evaluation_noise_seed=7"
TEMPLATE = "every-algorithm"
AUDIT = ("audit.canaries=200", "audit.rounds=2", "audit.checked_rounds=4")
EVERY_AGENT = ("--every-agent",)
# Trained, audited and, where presets are named, attacked without a seed in the run file, so that
# figures can be proven.
WHOLE: dict[str, tuple[str, ...]] = {
    "dpdl-digits": ('attack.presets=["idlg"]', 'attack.scenarios=["view"]'),
    "dpdl-ring": ('attack.presets=["matched"]', 'model.name="linear"'),
    "whisper-digits": ('attack.presets=["matched"]',),
    "dpmixsgd-digits": (),
}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One row of the table: commands in a folder of their own.

    `commands` are names and arguments; `skipped` says why none is run; `files` are copied beside.
    """

    name: str
    commands: tuple[tuple[str, tuple[str, ...]], ...] = ()
    skipped: str = ""
    files: tuple[str, ...] = ()


def cli_of(tree: Path) -> str:
    """The module behind `overhear`, which lies in commands/ where a tree has that."""
    return f"overhear.{'commands' if (tree / 'commands').is_dir() else 'reports'}.cli"


def environment_of(tree: Path) -> dict[str, str]:
    """What makes a child take a tree's own code, one thread, and no cache files into the tree."""
    own = {"PYTHONPATH": str(tree / ".typing"), "OMP_NUM_THREADS": "1"}
    return os.environ | own | {"PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}


def cases_of(tree: Path, data: Path) -> list[Case]:
    """Every example of a tree, the template once for each algorithm and form, and `WHOLE`."""
    cases: list[Case] = []
    policy = tree / "examples" / "policy.toml"
    for path in sorted((tree / "examples").glob("*.toml")):
        if path == policy:
            continue
        table = tomllib.loads(path.read_text(encoding="utf-8"))["data"]
        missing, sets = _data(table, data)
        if missing:
            cases.append(Case(name=path.stem, skipped=f"skipped: {missing} is absent"))
        elif path.stem == TEMPLATE:
            for algorithm, form in _registry(tree):
                chosen = (f'algorithm.name="{algorithm}"', f'algorithm.form="{form}"')
                name = f"{TEMPLATE}: {algorithm}, {form}"
                cases.append(Case(name=name, commands=_short(path, chosen, plan=())))
        else:
            cases.append(Case(name=path.stem, commands=_short(path, sets)))
    cases += [
        Case(name=f"{name}, whole", commands=_whole(policy.with_name(f"{name}.toml"), how, policy))
        for name, how in WHOLE.items()
    ]
    return cases


def golden_cases(folder: Path) -> list[Case]:
    """Every run file of a folder of goldens, attacked or audited where it has a table for that."""
    return [_golden(path) for path in sorted(folder.glob("*.toml")) if path.stem != "policy"]


def _golden(path: Path) -> Case:
    table, file = tomllib.loads(path.read_text(encoding="utf-8")), path.name
    trust = ("--trust-code",) if "own.py" in path.read_text(encoding="utf-8") else ()
    looks = tuple((n, (n, "run", "--json", *trust)) for n in ("attack", "audit") if n in table)
    text = "-text" if looks else ""  # whether what check prints is kept, or the exit code alone
    page = (("markdown-text", ("report", "run", "--format", "md", *trust)),) if looks else ()
    commands: tuple[tuple[str, tuple[str, ...]], ...] = (
        ("plan", ("plan", file, "--json")),
        ("plan-text", ("plan", file)),
        ("train-text", ("train", file, "--out", "run")),
        *looks,
        ("report", ("report", "run", "--format", "json", *trust)),
        *page,
        (f"check{text}", ("check", "run", "--policy", "policy.toml", *trust)),
    )
    beside = [one for one in sorted(path.parent.iterdir()) if one.suffix in {".csv", ".py"}]
    files = (path, path.with_name("policy.toml"), *beside)
    return Case(name=path.stem, commands=commands, files=tuple(map(str, files)))


def _data(table: dict[str, Any], data: Path) -> tuple[str, tuple[str, ...]]:
    """What is absent of an example's data, if anything, and the settings that lead to it."""
    if table["name"] == "libsvm":
        path = data / "libsvm" / table["root"]
        return "" if path.exists() else f"libsvm/{table['root']}", (f'data.root="{path}"',)
    if table["name"] == "mnist":
        return "" if (data / "MNIST").exists() else "MNIST", ()
    return "", ()


def _registry(tree: Path) -> list[tuple[str, str]]:
    """(algorithm, form) of the registry, as the schema of the run file names them."""
    command = [sys.executable, "-P", "-m", cli_of(tree), "schema", "run"]
    said = subprocess.run(  # noqa: S603 - our own command line
        command, env=environment_of(tree), capture_output=True, check=True, text=True
    ).stdout
    table = json.loads(said)["$defs"]["AlgorithmTable"]
    names = [one["if"]["properties"]["name"]["const"] for one in table["allOf"]]
    return [(name, form) for name in names for form in table["properties"]["form"]["enum"]]


def _sets(settings: Sequence[str]) -> tuple[str, ...]:
    return tuple(word for setting in settings for word in ("--set", setting))


def _short(
    path: Path, settings: Sequence[str], *, plan: tuple[str, ...] = EVERY_AGENT
) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """The plan of the file as it stands, a short run of it, and the report."""
    planned = ("plan", str(path), *plan, "--json", *_sets(settings))
    trained = ("train", str(path), "--out", "run", "--json", *_sets((*settings, *SHORT, SEED)))
    return ("plan", planned), ("train", trained), ("report", ("report", "run", "--format", "json"))


def _whole(
    path: Path, chosen: Sequence[str], policy: Path
) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Every command that reads or writes a run folder."""
    settings = (*SHORT, "attack.images=1", "attack.restarts=1", "attack.rounds=[5]", *chosen)
    attacked = (("attack", ("attack", "run", "--json")),) if chosen else ()
    return (
        ("plan", ("plan", str(path), "--json", *_sets(settings))),
        ("train", ("train", str(path), "--out", "run", "--json", *_sets(settings))),
        *attacked,
        ("audit", ("audit", "run", "--json", *_sets(AUDIT))),
        ("report", ("report", "run", "--format", "json")),
        ("html", ("report", "run")),
        ("check", ("check", "run", "--policy", str(policy), "--json")),
    )


def write_cases(cases: Sequence[Case], folder: Path) -> None:
    """Say in a tree's folder what is to be run."""
    folder.mkdir(parents=True)
    text = json.dumps([asdict(case) for case in cases])
    (folder / "cases.json").write_text(text, encoding="utf-8")


@contextlib.contextmanager
def entropy(seed: int) -> Iterator[None]:
    """Put seeds in place of the system's entropy, a stream for each way to ask."""
    kept = secrets.randbits, secrets.token_hex, np.random.default_rng
    roots, names, coins = (random.Random(seed + at) for at in (1, 2, 3))
    real = os.urandom

    def coin(given: Any = None) -> np.random.Generator:
        return kept[2](coins.getrandbits(64) if given is None else given)

    def randbits(bits: int) -> int:  # the check of secrecy gives entropy of its own
        return (roots.getrandbits if os.urandom is real else kept[0])(bits)

    secrets.randbits = randbits
    secrets.token_hex = lambda size=16: names.randbytes(size).hex()
    np.random.default_rng = coin
    try:
        yield
    finally:
        secrets.randbits, secrets.token_hex, np.random.default_rng = kept


def run(module: str, arguments: Sequence[str]) -> tuple[int, str, str]:
    """Exit code of a command, what it prints, and what it says beside that."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    sys.argv = [module, *arguments]
    with entropy(0), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        except Exception:  # noqa: BLE001 # a command that crashes is a result, too
            code = 1
            traceback.print_exc()
    return code, out.getvalue(), err.getvalue()


def main() -> None:
    """Run all cases of FOLDER with the code of TREE."""
    tree, folder = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
    for case in json.loads((folder / "cases.json").read_text(encoding="utf-8")):
        place = folder / case["name"]
        place.mkdir()
        os.chdir(place)
        for file in case["files"]:
            shutil.copy(file, place)
        codes: dict[str, int] = {}
        for name, arguments in case["commands"]:
            codes[name], out, err = run(cli_of(tree), arguments)
            Path(f"{name}.out").write_text(out, encoding="utf-8")
            Path(f"{name}.err").write_text(err, encoding="utf-8")
        Path("codes.json").write_text(json.dumps(codes), encoding="utf-8")
    for name, module in sorted(sys.modules.items()):
        held = getattr(module, "__file__", None)
        if name.startswith("overhear.") and held and tree not in Path(held).resolve().parents:
            sys.exit(f"{name} is not the code of {tree}: it lies at {held}")


if __name__ == "__main__":
    main()
