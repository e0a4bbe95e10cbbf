"""The registry: what an algorithm says of itself, that nothing else names it, and adding one."""

import ast
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import overhear.training
from overhear.training.algorithms import ALGORITHMS, Algorithm, Form, bind
from overhear.training.algorithms.algorithm import hyper_parameters
from overhear.training.graphs.topologies import ring
from overhear.training.tracing.trace import trace
from tests.small_run import run_text

ROOT = Path(overhear.training.__file__).parents[1]
FOLDER = ROOT / "training" / "algorithms"
PARTS = ("privacy", "training", "attacks", "runs", "reports", "commands")
FILES = [
    path
    for path in sorted(FOLDER.rglob("*.py"))
    if re.search(r"^ALGORITHM = ", path.read_text(encoding="utf-8"), re.M)
]
PAGE = Path(__file__).parents[3] / "docs" / "add-an-algorithm.md"
NUMBERS = {"learning_rate": 0.5, "clip_norm": 1.0, "noise_std": 1.0, "batch_size": 4.0}

# (file, name): a name outside the registry that is not the algorithm's.
OTHER_MEANINGS = {
    ("attacks/scoring/metrics.py", "dpdl"),  # how a paper scales images
    ("commands/attack.py", "dpdl"),  # the same
    ("commands/train.py", "dpdl"),  # the text of a run file
    ("runs/requests.py", "dpdl"),  # examples of cells
    ("runs/requests.py", "muffliato"),
    ("reports/sweep/cells.py", "dm-hsgd"),  # baselines without noise in papers' tables
    ("reports/sweep/cells.py", "sgda"),
    ("runs/attack/attack.py", "dpdl"),  # a paper's names of scenarios
    ("runs/run_file/data_table.py", "whisper"),  # quadratics of its paper
    ("training/data/quadratic.py", "whisper"),  # the same
    ("runs/plan/trainable.py", "decor"),  # which algorithm makes the noise of a design
    ("runs/plan/trainable.py", "decor-over-time"),
    ("runs/plan/trainable.py", "joint-dsgd"),
    ("runs/plan/trainable.py", "ldp-dsgd"),
    ("runs/plan/trainable.py", "mafalda"),
    ("runs/plan/trainable.py", "whisper"),
}
PAPERS = ROOT / "reports" / "reproduced"  # their tables and figures, a file a paper

# Words that hold a name: decorated, importer.
INSIDE_WORDS = r"decorat|(im|ex|re|sup|trans)port"


def test_every_file_with_an_algorithm_is_listed():
    assert len(FILES) == len(ALGORITHMS)
    assert all(name == algorithm.name for name, algorithm in ALGORITHMS.items())


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_file_ends_in_its_algorithm(path):
    last = ast.parse(path.read_text(encoding="utf-8")).body[-1]
    assert isinstance(last, ast.Assign)
    assert ast.unparse(last.targets[0]) == "ALGORITHM"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_file_opens_with_authors_title_and_year(path):
    said = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    found = re.search(r'(?P<authors>[^"]+?)\s*"(?P<title>[^"]{20,})"(?P<rest>[^"]*)', said)
    assert found is not None
    authors = found["authors"].split("\n\n")[-1]
    assert re.search(r"\b[A-Z](\.|[a-z]+)( [A-Z]\.)* [A-Z][a-z]+", authors), authors
    assert re.search(r"\b(19|20)\d\d\b(?!\.\d)", found["rest"].split("\n\n")[0]), found["rest"]
    assert re.search(r"^ +1  ", said, re.M), "its steps have no numbers"


def _docstrings(tree: ast.AST) -> set[int]:
    """Lines on which a docstring starts."""
    return {
        node.body[0].lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
        and isinstance(node.body[0].value, ast.Constant)
    }


def names_in(text: str) -> set[str]:
    """The algorithms that a source names, in strings that are no docstrings and in identifiers."""
    letters = re.sub("[-_]", "", text.lower())
    if not any(name.replace("-", "") in letters for name in ALGORITHMS):
        return set()  # which takes a tenth of reading it
    tree = ast.parse(text)
    told, found = _docstrings(tree), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if node.lineno in told:
                continue
            found |= {n for n in ALGORITHMS if re.search(rf"(?<![\w-]){n}(?![\w-])", node.value)}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.NAME:
            plain = re.sub(INSIDE_WORDS, "", token.string.lower().replace("_", ""))
            found |= {name for name in ALGORITHMS if name.replace("-", "") in plain}
    return found


def test_nothing_outside_its_folder_names_an_algorithm():
    # privacy has the bounds of papers, each in a file by the paper's name
    named = {
        (path.relative_to(ROOT).as_posix(), name)
        for part in PARTS[1:]
        for path in sorted((ROOT / part).rglob("*.py"))
        if not {FOLDER, PAPERS} & {*path.parents}
        for name in names_in(path.read_text(encoding="utf-8"))
    }
    assert named == OTHER_MEANINGS


@pytest.mark.parametrize(
    "text",
    [
        'X = {"dyn-d2p": 1}',
        "from ..algorithms.dyn_d2p import step",
        "x = DynD2PSettings()",
        'f"use dyn-d2p, {x}"',
    ],
)
def test_a_name_is_found_wherever_it_stands(text):
    assert names_in(text) == {"dyn-d2p"}


def test_a_name_in_a_docstring_or_inside_another_word_is_none():
    assert names_in('def f():\n    """As in dpdl."""\n') == set()
    assert names_in('@decorated\ndef f():\n    return "decorate"\n') == set()
    assert names_in('Reporter().importer("an importer")\n') == set()
    assert names_in("class PorterState: ...") == {"porter"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Forgotten:
    """A hyper-parameter that no function takes."""

    momentum: float = 0.9


def test_a_hyper_parameter_that_nothing_takes_is_refused():
    plain = ALGORITHMS["dp-cga"]
    own = Algorithm(name="own", init=_start, step=_step, settings=Forgotten)
    with pytest.raises(ValueError, match="'momentum' of algorithm 'own' has no effect"):
        bind(own, Forgotten(), **NUMBERS)
    assert hyper_parameters(plain, plain.settings(momentum=0.3))["momentum"] == 0.3


@pytest.mark.parametrize("taker", ["init", "step", "prepare"])
def test_a_hyper_parameter_may_be_taken_by_any_function(taker):
    def init(round, *, momentum):
        return _start(round)

    def step(state, round, *, momentum):
        return state

    def prepare(*, momentum):
        return {}

    functions = {"init": _start, "step": _step, taker: locals()[taker]}
    own = Algorithm(name="own", settings=Forgotten, **functions)
    bind(own, Forgotten(momentum=0.4), graph=ring(3), rounds=2, **NUMBERS)


def test_a_step_may_take_all_hyper_parameters_as_one():
    def step(state, round, *, settings):
        return settings.momentum

    own = Algorithm(name="own", init=_start, step=step, settings=Forgotten)
    assert bind(own, Forgotten(momentum=0.4), **NUMBERS).step(None, None) == 0.4


def _start(round):
    raise AssertionError("never run")


def _step(state, round):
    raise AssertionError("never run")


@pytest.mark.parametrize("name", list(ALGORITHMS))
def test_every_hyper_parameter_of_the_registry_is_taken(name):
    algorithm = ALGORITHMS[name]
    hyper_parameters(algorithm, algorithm.settings())


@pytest.mark.parametrize("name", [name for name, of in ALGORITHMS.items() if not of.private])
def test_what_adds_no_noise_names_a_private_algorithm_for_the_same_task(name):
    algorithm = ALGORITHMS[name]
    other = ALGORITHMS[algorithm.private_counterpart]
    assert other.private
    assert other.blocks == algorithm.blocks


@pytest.mark.parametrize("given", [{"private": False}, {"private_counterpart": "dpdl"}])
def test_a_counterpart_is_for_what_is_not_private(given):
    with pytest.raises(ValueError, match="private_counterpart"):
        Algorithm(name="own", init=_start, step=_step, **given)


def test_the_forms_are_two_where_a_function_takes_the_form():
    two = [name for name, algorithm in ALGORITHMS.items() if algorithm.forms == tuple(Form)]
    assert two == ["dpdl", "dpmixsgd"]
    assert ALGORITHMS["dp-cga"].forms == (Form.REPAIRED,)


def test_gradients_can_be_had_from_messages_that_are_sent():
    for algorithm in ALGORITHMS.values():
        graph, settings = ring(5), algorithm.settings()
        bound = bind(algorithm, settings, graph=graph, rounds=3, records=8.0, **NUMBERS)
        traces = trace(
            bound.init, bound.step, graph=graph, rounds=3, noise_multiplier=bound.noise_multiplier
        )
        kinds = {m.kind for one, _ in traces.rounds for m in one.messages}
        assert {*algorithm.single_gradients} <= kinds, algorithm.name
        assert ("momentum" in algorithm.single_gradients) == (algorithm.own_gradient is not None)


def _blocks(kind: str) -> Iterator[str]:
    yield from re.findall(rf"```{kind}\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)


def _file_of_the_page() -> str:
    """The file that docs/add-an-algorithm.md describes, put together from its blocks."""
    (header,) = (block for block in _blocks("text") if "from .algorithm import" in block)
    parts = {"State": "", "init": "", "step": "", "ALGORITHM": ""}
    for block in _blocks("python"):
        for node in ast.parse(block).body:
            name = ast.unparse(node.targets[0]) if isinstance(node, ast.Assign) else None
            name = getattr(node, "name", name)
            if name in parts:
                parts[name] = ast.get_source_segment(block, node)
    return "\n\n\n".join([header, *parts.values()]) + "\n"


RUN = run_text(
    "noisy-gossip", agents=5, privacy={"epsilon": 4.0, "delta": 1e-05},
    training={"rounds": 60, "sampling_rate": 0.1},
)  # fmt: skip


def test_an_algorithm_is_added_by_one_file_and_one_line(tmp_path):
    for part in PARTS:
        shutil.copytree(ROOT / part, tmp_path / "overhear" / part)  # with what is compiled already
    shutil.copy(ROOT / "__init__.py", tmp_path / "overhear")
    folder = tmp_path / "overhear" / "training" / "algorithms"
    (folder / "noisy_gossip.py").write_text(_file_of_the_page(), encoding="utf-8")
    (line,) = (block for block in _blocks("text") if "noisy_gossip" in block)
    registry = folder / "__init__.py"
    before, after = registry.read_text(encoding="utf-8").split("# isort: on\n")
    registry.write_text(f"{before}{line}# isort: on\n{after}", encoding="utf-8")
    (tmp_path / "run.toml").write_text(RUN, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "overhear.commands.cli", "plan", "run.toml", "--json"],
        check=False, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    assert plan["noise_multiplier"] == pytest.approx(1.198, abs=1e-3)  # as on the page
    assert plan["published_bound"] is None
