"""What private algorithms learn on a9a and a8a at equal epsilon, as Markdown tables.

    OMP_NUM_THREADS=1 python benchmarks/learning_a9a.py --table whisper    # 4 minutes
    OMP_NUM_THREADS=1 python benchmarks/learning_a9a.py --table min-max    # 10 minutes
    OMP_NUM_THREADS=1 python benchmarks/learning_a9a.py --table record-weights    # seconds

The LIBSVM files a9a, a9a.t, a8a, a8a.t lie in `libsvm` below the folder that OVERHEAR_DATA names.

whisper: logistic regression of 20 agents with noise of one trusted server (cdp-dsgd), correlated
noise (whisper, decor) and independent noise (ldp-dsgd). Beside what is learned stands the noise in
the final models x: its square, summed over agents, per coordinate, over (eta s C / B)^2 T:

    closed form   sum_k tr(W^k R W^k) / T, k = 1..T: gradients are taken not to react to the noise
    seen          |x - x'|^2 / (D (eta s C / B)^2 T), x' from the same run without noise
    in the mean   1'R1 / A: the part in which all models agree; mixing cannot change it

min-max: robust logistic regression of 10 agents, by AUROC of the mean model.

record-weights: the same problem with a weight for each of N records, of which nothing is trained:

    min over x  max over y in the simplex   sum_j y_j l_j(x) - strength |y - 1/N|^2 + R(x), R(0) = 0

Two records with the same features and opposite labels have losses of at least 2 ln 2 together. With
K such pairs and y = 1/2K on their records the objective is at least ln 2 - strength (1/2K - 1/N) at
every x. At x = 0 all losses are ln 2, and so is the objective.

A seed fixes graph, partition, initial model, batches and noise, so a command repeats its table. A
figure is the mean over the seeds ± half of what lies between the smallest and the largest.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from overhear.privacy import noise_floor
from overhear.runs.plan.plan import Plan, make_plan
from overhear.runs.run_file.build import Built, build
from overhear.runs.run_file.run_file import RunFile
from overhear.training.algorithms.algorithm import prepared
from overhear.training.data.load import load_dataset
from overhear.training.data.store import Examples
from overhear.training.engine.engine import Engine
from overhear.training.engine.randomness import SecretRandomness
from overhear.training.models.evaluation import evaluate
from overhear.training.models.metrics import Metrics

DELTA, CLIP_NORM, FEATURES = 1e-5, 1.0, 123
FILES = ("a9a", "a8a")
Tables = Mapping[str, Mapping[str, Any]]

# Table "whisper": the algorithm, its settings.
CORRELATED: tuple[tuple[str, dict[str, int]], ...] = (
    ("ldp-dsgd", {}),
    ("decor", {"horizon": 1}),
    ("decor", {"horizon": 0}),
    ("whisper", {"horizon": 1}),
    ("whisper", {"horizon": 0}),
    ("cdp-dsgd", {}),
)
CORRELATED_COLUMNS = {  # with the digits of each
    "neighbour's epsilon": 3,
    "closed form": 3,
    "seen": 3,
    "in the mean": 3,
    "loss of the mean model": 3,
    "mean loss of the agents": 3,
    "accuracy of the mean model, %": 1,
}
EDGE_PROBABILITIES = (0.2, 0.6)

# Table "min-max": the algorithm, its settings, whether it is private.
MIN_MAX: tuple[tuple[str, dict[str, float], bool], ...] = (
    ("dpmixsgd", {"beta_x": 0.01, "beta_y": 0.1}, True),
    ("dpmixsgd", {"beta_x": 1.0, "beta_y": 1.0}, True),
    ("dp-sgda", {}, True),
    ("dm-hsgd", {}, False),
    ("sgda", {}, False),
)
STOPS, STRENGTH = (100, 300, 1000), 0.5


class Run(NamedTuple):
    """Metrics at the rounds asked for, and the final models (A, D)."""

    metrics: dict[int, Metrics]
    models: Tensor


def data_root() -> Path:
    """The folder of the LIBSVM files."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    root = Path(os.environ.get("OVERHEAR_DATA") or beside) / "libsvm"
    names = [name for file in FILES for name in (file, f"{file}.t")]
    missing = [name for name in names if not (root / name).is_file()]
    if missing:
        raise SystemExit(
            f"nothing is run: no libsvm/{missing[0]} under {root.parent}; set OVERHEAR_DATA to a "
            f"folder that holds libsvm/{', libsvm/'.join(names)}"
        )
    return root


def prepare(tables: Tables, algorithm: Mapping[str, Any], *, seed: int) -> tuple[Built, Plan]:
    """A run file's objects and its plan, for an algorithm and a seed of graph and data."""
    seeded = {name: {**tables[name], "seed": seed} for name in ("graph", "training")}
    config = RunFile.model_validate({**tables, **seeded, "algorithm": algorithm})
    built = build(config)
    return built, make_plan(config, graph=built.setting.graph, batch_size=built.batch_size)


def train(built: Built, noise_multiplier: float, *, seed: int, stops: Sequence[int]) -> Run:
    """Train to the last stop; batches are those of the seed, whatever the noise."""
    bound = built.bound(noise_multiplier)
    engine = Engine(built.setting, bound, randomness=SecretRandomness(seed))
    engine.start()
    test = Examples(built.data.test_inputs, built.data.test_targets)
    found = {}
    while engine.round < max(stops):
        engine.advance()
        if engine.round in stops:
            models = engine.models()
            found[engine.round] = evaluate(built.setting.model, models, test, round=engine.round)
    return Run(found, engine.models())


def spread(values: Sequence[float], digits: int) -> str:
    """Mean ± half of what lies between smallest and largest."""
    mean = statistics.fmean(values)
    if math.isinf(mean):
        return "infinite"
    half = f"{(max(values) - min(values)) / 2:.{digits}f}"
    return f"{mean:.{digits}f}" if float(half) == 0 else f"{mean:.{digits}f} ± {half}"


def row(cells: Sequence[str]) -> None:
    """Print a line of a table."""
    print("| " + " | ".join(cells) + " |", flush=True)


def header(title: str, columns: Sequence[str]) -> None:
    """Print the head of a table."""
    print(f"\n{title}\n")
    row(columns)
    row(["---"] * len(columns))


def called(name: str, settings: Mapping[str, float]) -> str:
    """An algorithm with its settings."""
    return ", ".join([name, *(f"{key} {value:g}" for key, value in settings.items())])


def learned(run: Run) -> tuple[float, float, float]:
    """Loss of the mean model, mean loss, accuracy of the mean model in percent; at the end."""
    last = run.metrics[max(run.metrics)]
    return last.consensus_loss, statistics.fmean(last.loss), 100 * last.consensus_accuracy


def whisper_table(root: Path, probability: float, *, seeds: Sequence[int], epsilon: float) -> None:
    """Correlated noise on random graphs."""
    tables: Tables = {
        "data": {
            "name": "libsvm",
            "root": str(root / "a9a"),
            "features": FEATURES,
            "agents": 20,
            "partition": "dirichlet",
            "concentration": 10.0,
        },
        "graph": {"name": "erdos-renyi", "edge_probability": probability},
        "model": {"name": "linear"},
        "privacy": {"epsilon": epsilon, "delta": DELTA, "clip_norm": CLIP_NORM},
        "training": {"rounds": 200, "batch_size": 128.0, "learning_rate": 1.0},
    }
    title = f"Erdos-Renyi {probability:g}, epsilon {epsilon:g} at delta {DELTA:g}"
    header(title, ["algorithm", *CORRELATED_COLUMNS])
    silent: dict[tuple[str, int], Run] = {}
    digits = CORRELATED_COLUMNS.values()
    for name, settings in CORRELATED:
        lines = []
        where = "at a server" if name == "cdp-dsgd" else "on the graph"
        for seed in seeds:
            built, plan = prepare(tables, {"name": name, **settings}, seed=seed)
            if (where, seed) not in silent:
                silent[where, seed] = train(built, 0.0, seed=seed, stops=(built.rounds,))
            run = train(built, plan.noise_multiplier, seed=seed, stops=(built.rounds,))
            noise = noise_in_models(built, plan, run.models - silent[where, seed].models)
            lines.append((plan.guarantee("neighbour").epsilon, *noise, *learned(run)))
        cells = [spread(c, d) for c, d in zip(zip(*lines, strict=True), digits, strict=True)]
        row([called(name, settings), *cells])
    for where in ("on the graph", "at a server"):
        lines = [(math.inf, 0.0, 0.0, 0.0, *learned(silent[where, seed])) for seed in seeds]
        cells = [spread(c, d) for c, d in zip(zip(*lines, strict=True), digits, strict=True)]
        row([f"no noise, {where}", *cells])


def noise_in_models(built: Built, plan: Plan, apart: Tensor) -> tuple[float, float, float]:
    """Closed form, as seen from what lies between two runs (A, D), and its part in the mean."""
    graph = built.setting.graph.at(1)
    made = prepared(built.algorithm, built.settings, graph=graph, rounds=built.rounds)
    F = np.asarray(made["shared"].factor)
    F = np.broadcast_to(F, (graph.agents, F.shape[1]))  # a server's has one row, for all agents
    R = F @ F.T
    step = built.learning_rate * built.noise_std(plan.noise_multiplier) / built.batch_size
    seen = float(apart.square().sum(dim=0).mean()) / (step**2 * built.rounds)
    closed = noise_floor(graph.weights, R, rounds=built.rounds)
    return closed, seen, float(R.sum()) / graph.agents


def min_max_table(root: Path, file: str, *, seeds: Sequence[int], epsilon: float) -> None:
    """Min-max algorithms on one data set."""
    tables: Tables = {
        "data": {"name": "libsvm", "root": str(root / file), "features": FEATURES, "agents": 10},
        "graph": {"name": "erdos-renyi", "edge_probability": 0.5},
        "model": {"name": "linear", "task": "class-weights", "strength": STRENGTH, "penalty": 1e-3},
        "training": {"rounds": max(STOPS), "batch_size": 10.0, "learning_rate": 0.01},
    }
    privacy = {"epsilon": epsilon, "delta": DELTA, "clip_norm": CLIP_NORM}
    stops = [f"AUROC at round {stop}" for stop in STOPS]
    header(file, ["algorithm", "epsilon", "noise multiplier", *stops])
    for name, settings, private in MIN_MAX:
        given = {**tables, "privacy": privacy} if private else tables
        lines = []
        for seed in seeds:
            built, plan = prepare(given, {"name": name, **settings}, seed=seed)
            run = train(built, plan.noise_multiplier, seed=seed, stops=STOPS)
            areas = [run.metrics[stop].consensus_auroc or 0.0 for stop in STOPS]
            lines.append((plan.noise_multiplier, *areas))
        cells = [spread(column, 3) for column in zip(*lines, strict=True)]
        row([called(name, settings), f"{epsilon:g}" if private else "infinite", *cells])


def opposite_pairs(inputs: Tensor, labels: Tensor) -> int:
    """How many pairs of records have the same features and opposite labels, each in one pair.

    Args:
        inputs: (N, features).
        labels: (N,) of 0 and 1.

    >>> opposite_pairs(torch.tensor([[0.0], [0.0], [0.0], [1.0]]), torch.tensor([0, 1, 1, 0]))
    1
    """
    rows = zip(inputs.numpy(), labels.tolist(), strict=True)
    count = Counter((features.tobytes(), label) for features, label in rows)
    return sum(
        min(n, count[features, 1]) for (features, label), n in list(count.items()) if not label
    )


def most_below(pairs: int, records: int) -> float:
    """How far below ln 2 an objective with a weight for each record may be, at any model.

    >>> round(most_below(842, 22_696), 6)
    0.000275
    """
    return STRENGTH * (0.5 / pairs - 1.0 / records)


def record_weights_table(root: Path) -> None:
    """What a weight for each record would leave to learn."""
    header("ln 2 at x = 0", ["file", "records", "opposite pairs", "at most so far below, anywhere"])
    for file in FILES:
        data = load_dataset("libsvm", root=root / file, features=FEATURES)
        pairs, records = opposite_pairs(data.inputs, data.targets), len(data.targets)
        row([file, f"{records}", f"{pairs}", f"{most_below(pairs, records):.6f}"])


def main() -> None:
    """Print the tables that are asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--table", choices=("whisper", "min-max", "record-weights"), required=True)
    parser.add_argument("--seeds", type=int, default=3, help="how many, from 1 on")
    parser.add_argument("--epsilon", type=float, help="by default .1 for whisper, 1 for min-max")
    asked = parser.parse_args()
    root, seeds = data_root(), range(1, asked.seeds + 1)
    torch.set_num_threads(1)
    for probability in EDGE_PROBABILITIES if asked.table == "whisper" else ():
        whisper_table(root, probability, seeds=seeds, epsilon=asked.epsilon or 0.1)
    for file in FILES if asked.table == "min-max" else ():
        min_max_table(root, file, seeds=seeds, epsilon=asked.epsilon or 1.0)
    if asked.table == "record-weights":
        record_weights_table(root)


if __name__ == "__main__":
    main()
