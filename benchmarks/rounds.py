"""Whole rounds of the engine: what they cost beside their gradients, and how the cost grows.

    OMP_NUM_THREADS=1 python benchmarks/rounds.py                  # all tables, minutes
    OMP_NUM_THREADS=1 python benchmarks/rounds.py --quick          # fewer and smaller rounds
    OMP_NUM_THREADS=1 python benchmarks/rounds.py --only growth    # or another table

DPDL as repaired, float32, random records; a batch is an agent's whole shard, so that rounds are
alike. Figures are medians over rounds of the process's CPU time with one thread. "Gradients" are
the clipped sums of every pair, "noise" is its drawing, "rest" is everything else: calibration,
momentum, mixing. "Plain" is one forward and one backward a pair without a clip, the same output
without privacy. Cases run in processes of their own, so that each has a peak of memory of its own.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import resource
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import noise_speed
import noise_test_cost
import numpy as np
import script_cost
import torch
import torch.distributed as dist
from engine import plain
from torch import Tensor, nn

from overhear.runs.stop import keep_freed_memory
from overhear.training.algorithms import ALGORITHMS, Form, bind
from overhear.training.data.store import Examples
from overhear.training.engine import tensor_round
from overhear.training.engine.engine import Engine
from overhear.training.engine.exchange import Ranks
from overhear.training.engine.randomness import SecretRandomness
from overhear.training.engine.setting import Setting
from overhear.training.gradients.gradients import PairGradients
from overhear.training.graphs.graph import Graph
from overhear.training.graphs.mixing import mixing_weights
from overhear.training.graphs.topologies import build_graph
from overhear.training.models.parameters import build_model

SHAPES = {"lenet": (1, 28, 28), "cnn": (1, 28, 28), "mlp": (64,)}
CLIP_NORM, NOISE_STD = 0.5, 0.5


class Case(NamedTuple):
    """One row of a table."""

    model: str  # a network's name, or "mlp-H" with H hidden units
    graph: str
    agents: int
    examples: int
    rounds: int
    hardened: bool = False
    device: str = "cpu"
    floor: bool = False


class Cost(NamedTuple):
    """Median milliseconds of a round and of its parts, and the peak of memory in MiB."""

    total: float
    gradients: float
    noise: float
    floor: float
    memory: float


def clock(device: str) -> Callable[[], float]:
    """CPU time of this process; on CUDA wall time with the device at rest."""
    if device == "cpu":
        return time.process_time

    def now() -> float:
        torch.cuda.synchronize()
        return time.perf_counter()

    return now


class TimedGradients:
    """A layout with the time spent in it."""

    def __init__(self, inner: PairGradients, now: Callable[[], float]) -> None:
        self._inner, self._now, self.seconds = inner, now, 0.0

    def clipped_sums(self, *args: Any, **kwargs: Any) -> Tensor:
        """The same sums."""
        start = self._now()
        found = self._inner.clipped_sums(*args, **kwargs)
        self.seconds += self._now() - start
        return found


class TimedNoise(SecretRandomness):
    """Noise with the time spent in it."""

    seconds, now = 0.0, staticmethod(time.process_time)

    def normal(self, **kwargs: Any) -> Tensor:
        """The same noise."""
        start = self.now()
        found = super().normal(**kwargs)
        self.seconds += self.now() - start
        return found


def topology(name: str, agents: int) -> Graph:
    """A named graph, or "circulant": each agent hears the three before and the three after it."""
    if name != "circulant":
        graph = build_graph(name, agents)
        assert isinstance(graph, Graph)  # noqa: S101 - the names used here are static
        return graph
    adjacency = np.zeros((agents, agents), dtype=bool)
    for shift in (1, 2, 3):
        adjacency[np.arange(agents), (np.arange(agents) + shift) % agents] = True
    return Graph(name=name, weights=mixing_weights(name, adjacency, scheme="metropolis"))


def network(name: str, *, generator: torch.Generator) -> nn.Module:
    """The network of a case."""
    kind, _, width = name.partition("-")
    if not width:
        return build_model(kind, input_shape=SHAPES[kind], classes=10, generator=generator)
    return nn.Sequential(nn.Linear(64, int(width)), nn.ReLU(), nn.Linear(int(width), 10))


def setting_of(case: Case) -> Setting:
    """Random records and a model for a case."""
    generator = torch.Generator().manual_seed(0)
    shape = SHAPES[case.model.partition("-")[0]]
    shards = [
        Examples(
            torch.randn(case.examples, *shape, generator=generator),
            torch.randint(10, (case.examples,), generator=generator),
        )
        for _ in range(case.agents)
    ]
    return Setting(
        graph=topology(case.graph, case.agents),
        model=network(case.model, generator=generator),
        shards=shards,
        sampling_rate=1.0,
        device=torch.device(case.device),
    )


def engine_of(
    case: Case,
    now: Callable[[], float],
    *,
    ranks: Ranks | None = None,
    noise_std: float = NOISE_STD,
) -> tuple[Engine, TimedGradients, TimedNoise]:
    """The engine of a case with its parts timed."""
    setting = setting_of(case)
    algorithm = ALGORITHMS["dpdl"]
    bound = bind(
        algorithm,
        algorithm.settings(),
        form=Form.REPAIRED,
        learning_rate=0.05,
        clip_norm=CLIP_NORM,
        noise_std=noise_std,
        batch_size=float(case.examples),
        graph=setting.graph,
        rounds=case.rounds,
    )
    inner = PairGradients(
        setting.model, device=setting.device, agents=case.agents, batch_size=float(case.examples)
    )
    gradients = TimedGradients(inner, now)
    noise = TimedNoise(1, hardened=True) if case.hardened else TimedNoise(1)
    noise.now = now  # type: ignore[method-assign]  # the device's clock
    engine = Engine(setting, bound, randomness=noise, gradients=gradients, ranks=ranks)
    return engine, gradients, noise


def cost(case: Case) -> Cost:
    """Measure one case in this process."""
    torch.set_num_threads(1)
    keep_freed_memory()
    now = clock(case.device)
    engine, gradients, noise = engine_of(case, now)
    engine.start()
    engine.advance()
    engine.advance()
    floor = floor_of(case, engine, now) if case.floor else None
    found: list[tuple[float, float, float, float]] = []
    for _ in range(case.rounds):
        gradients.seconds = noise.seconds = 0.0
        start = now()
        engine.advance()
        total = now() - start
        start = now()
        if floor is not None:
            floor()
        found.append((total, gradients.seconds, noise.seconds, now() - start))
    medians = [1e3 * statistics.median(column) for column in zip(*found, strict=True)]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    if case.device == "cuda":
        peak = torch.cuda.max_memory_allocated() / 2**20
    return Cost(*medians, memory=peak)


def floor_of(case: Case, engine: Engine, now: Callable[[], float]) -> Callable[[], Tensor]:  # noqa: ARG001 - one shape
    """The same pairs' gradients without a clip."""
    setting = engine.setting
    graph = topology(case.graph, case.agents)
    pairs = graph.senders.tolist(), graph.receivers.tolist()
    batches = [(s.inputs.to(case.device), s.targets.to(case.device)) for s in setting.shards]
    model: nn.Module = setting.model.to(case.device)
    return lambda: plain(model, engine.models(), pairs, batches)


def alone(case: Case) -> Cost:
    """Measure one case in a process of its own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(cost, (case,))


def parts(*, quick: bool) -> None:
    """What a round consists of."""
    print(
        "\n| 10 agents, 32 examples | CPU ms | gradients | noise | rest | beyond gradients |",
        end="",
    )
    print(" gradients / plain |\n|---|---:|---:|---:|---:|---:|---:|")
    for model, graph in itertools.product(("lenet", "cnn"), ("ring", "full")):
        for hardened in (False, True):
            rounds = 2 if quick else 7
            case = Case(model, graph, 10, 32, rounds, hardened=hardened, floor=True)
            c = alone(case)
            rest = c.total - c.gradients - c.noise
            name = f"{model}, {graph}, {'hardened' if hardened else 'standard'} noise"
            beyond = (c.total - c.gradients) / c.total
            print(
                f"| {name} | {c.total:.0f} | {c.gradients:.0f} | {c.noise:.0f} | {rest:.0f} | "
                f"{beyond:.0%} | {c.gradients / c.floor:.2f} |",
                flush=True,
            )


def growth(*, quick: bool) -> None:
    """Cost against agents, batch and parameters."""
    counts = (10, 100) if quick else (10, 30, 100, 300, 1000)
    for graph in ("ring", "circulant"):
        degree = {"ring": 2, "circulant": 6}[graph]
        print(
            f"\n| {graph}, {degree} neighbours; MLP, 8 examples | CPU ms a round | an agent |",
            end="",
        )
        print(" against 10 agents | peak MiB |\n|---|---:|---:|---:|---:|")
        _grow([Case("mlp", graph, n, 8, 5 if quick else 9) for n in counts], by="agents")
    print("\n| MLP 64-H-10, ring of 10, 32 examples | CPU ms a round | a parameter |", end="")
    print(" against the first | peak MiB |\n|---|---:|---:|---:|---:|")
    widths = (32, 512) if quick else (32, 128, 512, 2048)
    _grow([Case(f"mlp-{h}", "ring", 10, 32, 3 if quick else 9) for h in widths], by="parameters")
    print("\n| LeNet, ring of 10 | CPU ms a round | an example | against the first | peak MiB |")
    print("|---|---:|---:|---:|---:|")
    _grow([Case("lenet", "ring", 10, b, 2 if quick else 5) for b in (8, 32, 128)], by="examples")


def parameters(case: Case) -> int:
    """D of a case."""
    made = network(case.model, generator=torch.Generator().manual_seed(0))
    return sum(p.numel() for p in made.parameters())


def _grow(cases: Sequence[Case], *, by: str) -> None:
    first = 0.0
    for case in cases:
        found = alone(case)
        count = parameters(case) if by == "parameters" else getattr(case, by)
        share = found.total / count
        first = first or share
        print(
            f"| {by} {count} | {found.total:.1f} | {share:.3g} | {share / first:.2f} | "
            f"{found.memory:.0f} |",
            flush=True,
        )


def processes(*, quick: bool) -> None:
    """Wall time of a round on one process, on two, and on one with two threads.

    An exchange takes as long as a rank waits for rows: for the other rank, too, to come so far.
    """
    print("\n| LeNet, 10 agents, 32 examples | wall ms a round | against one process |", end="")
    print(" exchanges |\n|---|---:|---:|---:|")
    for graph in ("ring", "full"):
        case, first = Case("lenet", graph, 10, 32, 2 if quick else 7), 0.0
        for name, size, threads in (
            ("1 process", 1, 1),
            ("2 processes", 2, 1),
            ("1 process with 2 threads", 1, 2),
        ):
            with tempfile.TemporaryDirectory() as folder:
                jobs = [(case, rank, size, threads, f"{folder}/store") for rank in range(size)]
                with multiprocessing.get_context("spawn").Pool(size) as pool:
                    found, waits = max(pool.starmap(wall, jobs, chunksize=1))
            first = first or found
            times = f"{found:.0f} | {found / first:.2f} | {waits:.1f}"
            print(f"| {graph}, {name} | {times} |", flush=True)


def wall(case: Case, rank: int, size: int, threads: int, store: str) -> tuple[float, float]:
    """Median wall milliseconds of a round, and of its exchanges, on one of the ranks of a run."""
    torch.set_num_threads(threads)
    keep_freed_memory()
    ranks = None
    if size > 1:
        dist.init_process_group(
            "gloo", store=dist.FileStore(store, size), rank=rank, world_size=size
        )
        ranks = Ranks.joined(case.agents)
    engine, _, _ = engine_of(case, time.perf_counter, ranks=ranks)
    spent, inner = [0.0], tensor_round.fetch

    def fetch(*args: Any, **kwargs: Any) -> Tensor:
        start = time.perf_counter()
        found = inner(*args, **kwargs)
        spent[0] += time.perf_counter() - start
        return found

    tensor_round.fetch = fetch
    engine.start()
    engine.advance()
    times, waits = list[float](), list[float]()
    for _ in range(case.rounds):
        spent[0], start = 0.0, time.perf_counter()
        engine.advance()
        times.append(1e3 * (time.perf_counter() - start))
        waits.append(1e3 * spent[0])
    return statistics.median(times), statistics.median(waits)


def cuda(*, quick: bool) -> None:
    """Noise on the device, then DPDL: LeNet, and many small models."""
    if not torch.cuda.is_available():
        print("\nNo CUDA device: its table is left out.")
        return
    print(f"\n{torch.cuda.get_device_name()}")
    noise_speed.on_device(quick=quick)
    print("\n| DPDL | rounds a second | ms a round | gradients | noise | rest |", end="")
    print(" gradients / plain | peak MiB |\n|---|---:|---:|---:|---:|---:|---:|---:|")
    rounds = 3 if quick else 20
    cases = {
        "LeNet, 30 agents, full, 64 examples, standard noise": ("lenet", "full", 30, 64, False),
        "LeNet, 30 agents, full, 64 examples, hardened noise": ("lenet", "full", 30, 64, True),
        "LeNet, ring of 10, 32 examples": ("lenet", "ring", 10, 32, False),
        "LeNet, ring of 100, 32 examples": ("lenet", "ring", 100, 32, False),
        "MLP, ring of 1,000, 8 examples": ("mlp", "ring", 1000, 8, False),
        "MLP, full graph of 200, 8 examples": ("mlp", "full", 200, 8, False),
    }
    for name, (model, graph, agents, examples, hardened) in cases.items():
        case = Case(
            model, graph, agents, examples, rounds, hardened=hardened, device="cuda", floor=True
        )
        c = alone(case)
        rest = c.total - c.gradients - c.noise
        print(
            f"| {name} | {1e3 / c.total:.2f} | {c.total:.1f} | {c.gradients:.1f} | {c.noise:.1f} | "
            f"{rest:.1f} | {c.gradients / c.floor:.2f} | {c.memory:.0f} |",
            flush=True,
        )


def script(*, quick: bool) -> None:
    """What it costs to follow the script of a plan."""
    torch.set_num_threads(1)
    script_cost.table(lambda model: setting_of(Case(model, "ring", 10, 32, 1)), quick=quick)


def noise_tests(*, quick: bool) -> None:
    """What it costs that the noise of every round is tested."""
    torch.set_num_threads(1)
    keep_freed_memory()
    cases = [
        Case("lenet", "ring", 10, 16, 20),
        Case("lenet", "ring", 10, 64, 10),
        Case("lenet", "ring", 64, 1, 10),
        Case("mlp-32", "ring", 10, 32, 200),
        Case("mlp", "ring", 100, 8, 40),
    ]
    few = 4 if quick else 1
    noise_test_cost.table(
        (f"{c.model}, ring of {c.agents}, {c.examples} examples", setting_of(c), c.rounds // few)
        for c in cases
    )


TABLES = {
    "noise": noise_speed.table,
    "parts": parts,
    "growth": growth,
    "processes": processes,
    "cuda": cuda,
    "script": script,
    "noise-tests": noise_tests,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="fewer and smaller rounds")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="tables of one device")
    parser.add_argument("--only", choices=tuple(TABLES), help="one table")
    chosen = parser.parse_args()
    warnings.filterwarnings("ignore", message="Full backward hook")
    if chosen.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: no CUDA device is there")
    for name, table in TABLES.items():
        device = "cuda" if name == "cuda" else "cpu"
        if chosen.only in (None, name) and chosen.device in (None, device):
            table(quick=chosen.quick)


if __name__ == "__main__":
    main()
