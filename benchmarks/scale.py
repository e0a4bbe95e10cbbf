"""What work costs as it grows, and what it should cost: the CPU's rows of the page on scale.

    OMP_NUM_THREADS=1 python benchmarks/scale.py           # one Markdown table, 15 minutes
    OMP_NUM_THREADS=1 python benchmarks/scale.py --long    # the audit of 100 agents, too
    OMP_NUM_THREADS=1 python benchmarks/scale.py --quick   # fewer rounds and lines
    OMP_NUM_THREADS=1 python benchmarks/scale.py --only round    # rows whose name begins so

"Before" is what was measured at 94fac5ab (2026-11), "wanted" is the aim. Each row is a process of
its own, and a row that fails has its error in the cell. Times are CPU seconds of one thread; those
of commands are of the whole process, with what it takes to start, by `wait4`, as the peak of memory
is. Ratios are medians over turns, in which the two sides follow one another.

"Plain" beside a round is `PlainDpdl` below: DPDL as repaired on a network of two layers, all agents
and links in one tensor, with `torch.randn`, without a secret, a trace or a check. Before it is
timed, two rounds without noise must give the engine's models. "Plain" beside gradients is one
forward and one backward a pair, without a clip (`engine.plain`).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor

    from overhear.training.engine.setting import Setting

ROOT = Path(__file__).resolve().parents[1]
LIMIT = 240.0  # seconds of a command


class Spent(NamedTuple):
    """What a process took: CPU seconds, peak MB, what it printed, and its exit code."""

    seconds: float
    megabytes: float
    out: str
    errors: str
    code: int

    @property
    def words(self) -> str:
        """Seconds and memory, or how it failed."""
        if self.code < 0:
            return f"stopped after {self.seconds:.0f} CPU s, {self.megabytes:,.0f} MB"
        if self.code:
            return f"exit code {self.code}: {' '.join(self.errors.split())[:160]}"
        return f"{self.seconds:.1f} s, {self.megabytes:,.0f} MB"


def spent(*command: str, folder: Path, limit: float = LIMIT) -> Spent:
    """Run Python with these arguments, and end it after `limit` seconds of the clock."""
    out, errors = folder / "out.txt", folder / "errors.txt"
    env = os.environ | {"PYTHONDONTWRITEBYTECODE": ""}  # modules are compiled once, as by a user
    with out.open("wb") as one, errors.open("wb") as other:
        running = subprocess.Popen(  # noqa: S603 - this package's own commands
            [sys.executable, *command], cwd=folder, stdout=one, stderr=other, env=env
        )
        end = time.monotonic() + limit
        found, status, used = os.wait4(running.pid, os.WNOHANG)
        while not found:
            time.sleep(0.05)
            if time.monotonic() > end:
                running.kill()
                end = float("inf")
            found, status, used = os.wait4(running.pid, os.WNOHANG)
    running.returncode = os.waitstatus_to_exitcode(status)
    texts = (file.read_text(encoding="utf-8", errors="replace") for file in (out, errors))
    seconds = used.ru_utime + used.ru_stime
    return Spent(seconds, used.ru_maxrss / 1024, *texts, running.returncode)


# Rounds and evaluations.


class PlainDpdl:
    """DPDL as repaired (`training/algorithms/dpdl.py`), on x -> relu(x W1' + b1) W2' + b2."""

    def __init__(self, setting: Setting, *, clip_norm: float, noise_std: float) -> None:
        import torch

        graph = setting.graph.at(1)
        self.data, self.model = (
            torch.as_tensor(of.tolist()) for of in (graph.senders, graph.receivers)
        )  # symmetric weights: a link is a pair of a model owner and a data owner either way
        weights = torch.tensor(graph.weights, dtype=torch.float32)
        self.weights, self.mix = weights[self.model, self.data][:, None], weights.to_sparse()
        self.own = torch.nonzero(self.data == self.model)[:, 0]
        self.inputs = torch.stack([shard.inputs for shard in setting.shards])
        self.wanted = torch.nn.functional.one_hot(
            torch.stack([shard.targets for shard in setting.shards]), 10
        ).float()
        self.shapes = [p.shape for p in setting.model.parameters()]
        start = torch.cat([p.detach().flatten() for p in setting.model.parameters()])
        self.x = start.expand(len(self.inputs), -1).clone()
        self.v, self.clip_norm, self.noise_std = torch.zeros_like(self.x), clip_norm, noise_std

    def clipped_sums(self) -> Tensor:
        """(E, D) of every model on its own data and on that of its neighbours."""
        import torch

        x, parts = self.inputs[self.data], self.x.split([s.numel() for s in self.shapes], dim=1)
        w1, b1, w2, b2 = (
            p.unflatten(1, tuple(s))[self.model] for p, s in zip(parts, self.shapes, strict=True)
        )
        h = torch.baddbmm(b1[:, None], x, w1.mT).relu_()
        dz = torch.baddbmm(b2[:, None], h, w2.mT).softmax(2) - self.wanted[self.data]
        dh = torch.bmm(dz, w2) * (h > 0)
        (xx, hh), (d1, d2) = (
            [one.square().sum(2, keepdim=True) for one in pair] for pair in ((x, h), (dh, dz))
        )
        scale = (self.clip_norm / (d1 * (xx + 1) + d2 * (hh + 1)).sqrt()).clamp_(max=1.0)
        dh, dz = dh * scale, dz * scale
        found = torch.bmm(dh.mT, x), dh.sum(1), torch.bmm(dz.mT, h), dz.sum(1)
        return torch.cat([one.flatten(1) for one in found], dim=1)

    def advance(self) -> None:
        """One round, with the numbers of `rounds.engine_of`."""
        import torch

        agents, examples = self.inputs.shape[:2]
        g = self.clipped_sums()
        g = g.add_(torch.randn_like(g), alpha=self.noise_std).div_(examples)
        own = g[self.own]
        cosines = torch.cosine_similarity(g, own[self.model], dim=1)[:, None]
        pull = torch.zeros(agents, 1)
        pull.index_add_(0, self.model, self.weights * torch.sigmoid(-cosines))
        heard = torch.zeros_like(self.x)
        heard.index_add_(0, self.model, g / (self.weights.sqrt() * agents))
        self.v = 0.9 * self.v + heard + 0.1 * pull * own
        self.x, self.v = self.mix @ (self.x - 0.05 * self.v), self.mix @ self.v


def in_turn(runs: dict[str, Callable[[], object]], *, turns: int) -> dict[str, list[float]]:
    """CPU seconds of each, one after the other in every turn."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(turns):
        for name, run in runs.items():
            start = time.process_time()
            run()
            times[name].append(time.process_time() - start)
    return times


def ratio(ours: list[float], others: list[float]) -> float:
    """Median over turns."""
    return statistics.median(a / b for a, b in zip(ours, others, strict=True))


def round_beside_plain(agents: int, *, quick: bool) -> str:
    """A round of DPDL, MLP 64-32-10, 8 examples each, on a ring, over the same in plain torch."""
    import torch
    from rounds import CLIP_NORM, NOISE_STD, Case, engine_of, setting_of

    from overhear.runs.stop import keep_freed_memory

    torch.set_num_threads(1)
    keep_freed_memory()
    case = Case("mlp", "ring", agents, 8, 100)
    # Once without noise: both reach the same models, to rounding.
    quiet = engine_of(case, time.process_time, noise_std=0.0)[0]
    quiet.start()
    same = PlainDpdl(setting_of(case), clip_norm=CLIP_NORM, noise_std=0.0)
    for _ in range(2):
        quiet.advance()
        same.advance()
    moved = (quiet.models() - quiet.models()[0]).norm()
    apart = float((quiet.models() - same.x).norm() / moved)
    if not apart < 1e-4:
        raise AssertionError(f"plain torch is another method: its models are {apart:.1e} away")
    engine = engine_of(case, time.process_time)[0]
    engine.start()
    plain = PlainDpdl(setting_of(case), clip_norm=CLIP_NORM, noise_std=NOISE_STD)
    runs = {"ours": engine.advance, "plain": plain.advance}
    in_turn(runs, turns=3)
    times = in_turn(runs, turns=5 if quick else max(9, 300 // agents))
    ms = [1e3 * statistics.median(found) for found in times.values()]
    return f"{ratio(*times.values()):.1f} times ({ms[0]:.1f} / {ms[1]:.1f} ms); apart {apart:.0e}"


def evaluation(classes: int, *, quick: bool) -> str:
    """One `evaluate` of 1,000 agents' MLPs on 2,000 records, and what their products alone take."""
    import torch
    from rounds import Case, engine_of

    from overhear.runs.stop import keep_freed_memory
    from overhear.training.data.store import Examples
    from overhear.training.models.evaluation import evaluate
    from overhear.training.models.parameters import build_model, flatten, unflatten

    torch.set_num_threads(1)
    keep_freed_memory()
    engine = engine_of(Case("mlp", "ring", 1_000, 8, 100), time.process_time)[0]
    engine.start()
    draw = torch.Generator().manual_seed(1)
    net = build_model("mlp", input_shape=(64,), classes=classes, generator=draw)
    models = flatten(net).detach() + 0.1 * torch.randn(1_000, len(flatten(net)), generator=draw)
    inputs, targets = torch.randn(2_000, 64, generator=draw), torch.randint(classes, (2_000,))

    @torch.no_grad()
    def products() -> None:
        for flat in models:
            w1, b1, w2, b2 = unflatten(net, flat).values()
            torch.addmm(b2, torch.addmm(b1, inputs, w1.T).relu_(), w2.T)

    runs = {
        "evaluate": lambda: evaluate(net, models, Examples(inputs, targets), round=1),
        "round": engine.advance,
        "products": products,
    }
    in_turn(runs, turns=1)
    found = in_turn(runs, turns=2 if quick else 5)
    seconds, _, least = (statistics.median(times) for times in found.values())
    rounds = ratio(found["evaluate"], found["round"])
    return f"{seconds:.2f} s = {rounds:.1f} rounds; products alone {least:.2f} s"


# Commands.


def plan(example: str, *settings: str, quick: bool) -> str:
    """`overhear plan` of an example's file, and what it said beforehand that it would take."""
    del quick
    sets = [part for one in settings for part in ("--set", one)]
    with tempfile.TemporaryDirectory() as folder:
        file = str(ROOT / "examples" / example)
        found = spent("-m", "overhear", "plan", file, *sets, folder=Path(folder))
    estimate = re.search(r"The account takes about ([^:]+):", found.errors)
    price = f"; estimated {estimate[1]}" if estimate else "; no estimate"
    return found.words + ("" if found.code else price)


TINY = """
[data]
name = "digits"
[model]
name = "linear"
[algorithm]
name = "dp-dpsgd"
[privacy]
epsilon = 4
delta = 1e-5
[training]
rounds = {rounds}
sampling_rate = 0.05
"""
# Runs a command in this process, and says at its end which modules it has loaded.
LOADED = """
import atexit, sys
from overhear.commands.__main__ import main
name, sys.argv = sys.argv[1], ["overhear", *sys.argv[2:]]
atexit.register(lambda: print(
    "LOADED", len(sys.modules), int(name in sys.modules), flush=True, file=sys.__stderr__))
sys.exit(main())
"""


def loaded(*arguments: str, module: str, rounds: int) -> tuple[Spent, int, bool]:
    """A command on the tiny file, how many modules it loads, and whether `module` is among them."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        (folder / "run.toml").write_text(TINY.format(rounds=rounds), encoding="utf-8")
        found = spent("-c", LOADED, module, *arguments, folder=folder)
    counts = re.search(r"LOADED (\d+) (\d)", found.errors)
    if found.code or counts is None:
        raise RuntimeError(found.words)
    return found, int(counts[1]), counts[2] == "1"


def plan_of_a_tiny_file(*, quick: bool) -> str:
    """Of ten agents, 200 rounds."""
    del quick
    found, modules, torch = loaded("plan", "run.toml", module="torch", rounds=200)
    return f"{found.words}; {modules:,} modules, {'with' if torch else 'without'} torch"


def start_of_train(*, quick: bool) -> str:
    """Of one round: whether opacus is loaded, and what that costs beside torch."""
    del quick
    run, _, opacus = loaded(
        "train", "run.toml", "--out", "run", "--quiet", module="opacus", rounds=1
    )
    with tempfile.TemporaryDirectory() as made:
        alone = [
            spent("-c", f"import {name}", folder=Path(made)).seconds
            for name in ("torch", "torch, opacus")
        ]
    return (
        f"opacus {'loaded' if opacus else 'not loaded'} (it takes {alone[1] - alone[0]:.1f} s "
        f"beside torch); one round and all else {run.words}"
    )


def audit(*, quick: bool) -> str:
    """Of 100 agents on a ring, 200 canaries."""
    del quick
    sets = ("data.agents=100", "training.rounds=10", "audit.canaries=200")
    with tempfile.TemporaryDirectory() as made:
        (Path(made) / "run.toml").write_bytes((ROOT / "examples/dpdl-digits.toml").read_bytes())
        given = [part for one in sets for part in ("--set", one)]
        command = ("-m", "overhear", "audit", "run.toml", *given)
        return spent(*command, folder=Path(made), limit=20 * 60).words


READ = """
import json, sys
with open(sys.argv[1], encoding="utf-8") as lines:
    for line in lines:
        json.loads(line)
"""


def declared_log(*, quick: bool) -> str:
    """A log of releases of 1e6 lines, by `account`, and `json.loads` of its lines beside it."""
    lines = 100_000 if quick else 1_000_000
    release = '[{"from": 0, "to": [1], "kind": "model", "noise": 2000.0}]'
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        with (folder / "log.jsonl").open("w", encoding="utf-8") as log:
            log.write('{"schema": "releases-1", "agents": 2, "clip": 1.0}\n')
            log.writelines(
                f'{{"round": {k}, "releases": {release}}}\n' for k in range(1, lines + 1)
            )
        ours = spent("-m", "overhear", "account", "log.jsonl", folder=folder, limit=20 * 60)
        alone = spent("-c", READ, "log.jsonl", folder=folder)
    return f"{lines:,} lines: {ours.words}; json alone {alone.words}"


# Gradients.


def networks() -> dict[str, Callable[[], object]]:
    """Networks without a rule: their layers as fields, by their names in the table."""
    import torch
    from opacus.layers import DPGRU
    from torch import nn

    class Recurrent(nn.Module):
        """A GRU of linear layers over 16 steps of 8 numbers."""

        def __init__(self) -> None:
            super().__init__()
            self.read, self.held, self.out = nn.Linear(8, 96), nn.Linear(32, 96), nn.Linear(32, 10)

        def forward(self, x: Tensor) -> Tensor:
            h = x.new_zeros(len(x), 32)
            for step in self.read(x).unbind(1):
                a, b, c = step.chunk(3, 1)
                d, e, f = self.held(h).chunk(3, 1)
                keep = (a + d).sigmoid()
                h = keep * h + (1 - keep) * (c + (b + e).sigmoid() * f).tanh()
            return self.out(h)

    class Bare(nn.Module):
        """Two matrices that are no layer's."""

        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Parameter(torch.randn(128, 64) / 12)
            self.second = nn.Parameter(torch.randn(64, 10) / 8)

        def forward(self, x: Tensor) -> Tensor:
            return (x.flatten(1) @ self.first).tanh() @ self.second

    class Twice(nn.Module):
        """A layer through which a record goes twice."""

        def __init__(self) -> None:
            super().__init__()
            self.inner, self.out = nn.Linear(128, 128), nn.Linear(128, 10)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(self.inner(self.inner(x.flatten(1)).tanh()).tanh())

    class Constant(nn.Module):
        """A matrix that is not trained, between two layers."""

        def __init__(self) -> None:
            super().__init__()
            self.inner, self.out = nn.Linear(128, 128), nn.Linear(128, 10)
            self.register_buffer("turn", torch.randn(128, 128) / 12)

        def forward(self, x: Tensor) -> Tensor:
            return self.out((self.inner(x.flatten(1)) @ self.turn).tanh())

    class Inside(nn.Module):
        """A recurrent layer of 32 units, torch's or opacus's."""

        def __init__(self, layer: Callable[..., nn.Module]) -> None:
            super().__init__()
            self.inner, self.out = layer(8, 32, batch_first=True), nn.Linear(32, 10)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(self.inner(x)[0][:, -1])

    return {
        "recurrent": Recurrent,
        "bare": Bare,
        "twice": Twice,
        "constant": Constant,
        "gru": partial(Inside, nn.GRU),
        "dpgru": partial(Inside, DPGRU),
        "lstm": partial(Inside, nn.LSTM),
    }


def beside_plain(name: str, *, quick: bool) -> str:
    """`auto` over gradients without a clip, 16 examples of 16 x 8 numbers each, on a ring of 10."""
    import torch
    from engine import plain
    from goals import Goal, runs_of

    from overhear.privacy.errors import InputError

    torch.set_num_threads(1)
    try:
        goal = Goal(networks()[name], (16, 8), None, 10, 16, ())  # type: ignore[arg-type]
        runs = runs_of(goal, {"plain": plain})
        in_turn(runs, turns=2)
    except InputError as error:
        return f"refused: {' '.join(str(error).split())[:120]}"
    times = in_turn(runs, turns=3 if quick else 9)
    layout = layout_of(runs["layout auto"])
    return f"{ratio(times['layout auto'], times['plain']):.2f} times plain, by {layout}"


def layout_of(run: Callable[[], object]) -> str:
    """What "auto" has settled for; the layout's engine is what the run closes over."""
    cells = [cell.cell_contents for cell in run.__closure__ or ()]
    return next(str(held.layout) for held in cells if hasattr(held, "clipped_sums"))


def transformer(*, quick: bool) -> str:
    """`auto` over the best layout, for a transformer over 32 tokens."""
    import torch
    from goals import GOALS, runs_of

    torch.set_num_threads(1)
    goal = replace(GOALS["transformer"], layouts=("vmap", "book-keeping", "grouped"))
    runs = runs_of(goal, {})
    in_turn(runs, turns=1)
    times = in_turn(runs, turns=2 if quick else 5)
    ours = times.pop("layout auto")
    best = min(times, key=lambda name: statistics.median(times[name]))
    choice = layout_of(runs["layout auto"])
    return (
        f"{ratio(ours, times[best]):.2f} times ({choice}; best is {best.removeprefix('layout ')})"
    )


def first_call(name: str, *, quick: bool) -> str:
    """`auto`'s first call, over one of its later ones; that of a second engine loads no module."""
    import torch
    from goals import GOALS, runs_of

    torch.set_num_threads(1)
    goal = replace(GOALS[name], layouts=())
    engines = [runs_of(goal, {}) for _ in range(2)]
    first, again = (in_turn(runs, turns=1)["layout auto"][0] for runs in engines)
    later = statistics.median(in_turn(engines[1], turns=2 if quick else 4)["layout auto"])
    return (
        f"{first / later:.1f} rounds ({first:.2f} s / {later:.2f} s); {again / later:.1f} of a "
        "second engine in the process"
    )


# The table.


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the table: what it is called there, the page's figures, and how it is measured."""

    work: str
    before: str
    wanted: str
    measure: Callable[..., str]
    takes_long: bool = False


WHISPER = ("whisper-digits.toml", "algorithm.correlation=0.9")
DECOR = ("decor-digits.toml", "data.agents=100")
FIRST_CALLS = ("mlp", "lenet", "transformer", "resnet18")
ROWS = {
    **{
        f"round-{n}": Row(
            f"a round of {n:,} agents, beside plain torch",
            f"{before} times",
            f"{wanted} times",
            partial(round_beside_plain, n),
        )
        for n, before, wanted in ((10, 9.7, 3), (100, 6.2, 2), (1_000, 3.2, 1.5))
    },
    **{
        f"evaluate-{classes}": Row(
            f"evaluation of 1,000 agents, 2,000 records of {classes} classes",
            "2.2 s = 3.7 rounds",
            "0.2 s",
            partial(evaluation, classes),
        )
        for classes in (2, 10)
    },
    "plan-whisper-10": Row(
        "`plan`, whisper, ring of 10, 1,000 rounds",
        "12.8 s",
        "1 s",
        partial(plan, *WHISPER, "training.rounds=1000"),
    ),
    "plan-whisper-30": Row(
        "`plan`, whisper, ring of 30, 200 rounds",
        "26 s",
        "1 s",
        partial(plan, *WHISPER, "training.rounds=200", "data.agents=30"),
    ),
    "plan-decor": Row("`plan`, decor, ring of 100", "37 s", "1 s", partial(plan, *DECOR)),
    **{
        f"plan-dyn-{rounds}": Row(
            f"`plan`, dyn-d2p, {rounds:,} rounds",
            before,
            wanted,
            partial(plan, "dyn-d2p-digits.toml", f"training.rounds={rounds}"),
        )
        for rounds, before, wanted in ((200, "9.8 s", "3 s"), (1_000, "> 40 s", "10 s"))
    },
    "plan-dpdl": Row(
        "`plan`, DPDL, ring of 10,000",
        "69 s, 1,800 MB",
        "15 s, 500 MB",
        partial(plan, "dpdl-ring.toml", "data.agents=10000"),
    ),
    "plan-tiny": Row("`plan` of a tiny file", "6.0 s, 2,292 modules", "2 s", plan_of_a_tiny_file),
    "audit": Row(
        "audit of 100 agents, 200 canaries",
        "> 45 s before the first, 2,500 MB",
        "a price beforehand",
        audit,
        takes_long=True,
    ),
    "log": Row("a declared log, read", "37 s, 1,500 MB; json 7.3 s", "10 s, 100 MB", declared_log),
    "text": Row(
        "text transformer, `auto` beside the best layout", "1.29 times", "1.1 times", transformer
    ),
    **{
        f"gradients-{name}": Row(f"{work}, `auto` beside plain", before, "1.3", measure)
        for name, work, before, measure in (
            (name, work, before, partial(beside_plain, name))
            for name, work, before in (
                ("recurrent", "GRU of linear layers", "1.2 to 3.0 times"),
                ("bare", "bare parameters", "1.2 to 3.0 times"),
                ("twice", "a weight used twice", "1.2 to 3.0 times"),
                ("constant", "a constant matrix", "1.2 to 3.0 times"),
                ("gru", "`nn.GRU`", "refused"),
                ("dpgru", "opacus's `DPGRU`", ""),
                ("lstm", "`nn.LSTM`", "refused"),
            )
        )
    },
    **{
        f"first-{name}": Row(
            f"`auto`'s first call, {name}", "4 to 13 rounds", "2 rounds", partial(first_call, name)
        )
        for name in FIRST_CALLS
    },
    "train": Row("`train`'s start", "opacus loaded, 3 s", "0 s", start_of_train),
}


def measured(name: str, *, quick: bool) -> tuple[str, float]:
    """The cell of a row, from a process of its own, and the seconds of the clock it took."""
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as made:
        how = ["--row", name, *(["--quick"] if quick else [])]
        found = spent(str(Path(__file__).resolve()), *how, folder=Path(made), limit=25 * 60)
    lines = [line for line in found.out.splitlines() if line.startswith("CELL ")]
    if found.code or not lines:
        last = (found.errors.strip().splitlines() or ["it printed nothing"])[-1]
        return f"failed ({found.code}): {last[:160]}".replace("|", "/"), time.monotonic() - begun
    return json.loads(lines[-1].removeprefix("CELL ")).replace("|", "/"), time.monotonic() - begun


def chosen_rows(only: str | None, *, long: bool) -> Iterator[str]:
    """The rows that are asked for; one that takes long by its name, or with --long."""
    for name, row in ROWS.items():
        if name.startswith(only or "") and (long or only == name or not row.takes_long):
            yield name


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="fewer rounds and lines")
    parser.add_argument("--long", action="store_true", help="the audit of 100 agents, too")
    parser.add_argument("--only", help=f"rows whose name begins so: {', '.join(ROWS)}")
    parser.add_argument("--row", choices=tuple(ROWS), help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.row:
        print("CELL", json.dumps(ROWS[chosen.row].measure(quick=chosen.quick)))
        return
    names = list(chosen_rows(chosen.only, long=chosen.long))
    if not names:
        parser.error(f"--only {chosen.only}: no row's name begins so; rows are {', '.join(ROWS)}")
    from importlib.metadata import version

    print(f"torch {version('torch')}, Python {platform.python_version()}\n")
    print("| work | figure of the page (before) | now | wanted | |\n|---|---|---|---|---|")
    for name in names:
        row = ROWS[name]
        cell, seconds = measured(name, quick=chosen.quick)
        note = f"`{name}`, {seconds:.0f} s"
        print(f"| {row.work} | {row.before} | {cell} | {row.wanted} | {note} |", flush=True)


if __name__ == "__main__":
    main()
