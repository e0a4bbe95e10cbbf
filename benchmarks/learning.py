"""Accuracy on MNIST at equal epsilon or equal noise, as Markdown tables.

    python benchmarks/learning.py --table dpdl|forms|dyn-d2p [--graphs ring,full] [--seeds 3]
                                  [--targets single-message,eavesdropper,none]

Ten agents, labels dealt by a Dirichlet distribution of concentration .5, softmax regression (7,850
parameters), clip norm 1, 100 rounds, expected batch 64, delta 1e-5. Accuracy is that of the mean
model on the test set after the last round. Seeds 1, 2, ... decide partition and first model; noise
and batches come from the system's entropy. The learning rate is chosen for every row by the same
accuracy on seed 0, from .1 up and down the list as long as it improves: it has seen the test set,
and no epsilon counts it. Needs MNIST/raw below OVERHEAR_DATA.
"""

from __future__ import annotations

import argparse
import functools
import math
import os
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch.func import functional_call, grad, vmap

from overhear.runs.plan.plan import Plan, make_plan
from overhear.runs.run_file.build import Built, build
from overhear.runs.run_file.run_file import RunFile
from overhear.training.algorithms import ALGORITHMS, Form
from overhear.training.data.store import Examples
from overhear.training.engine.engine import Engine
from overhear.training.models.evaluation import evaluate
from overhear.training.models.parameters import unflatten

ROUNDS, BATCH, DELTA = 100, 64.0, 1e-5
RATES = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
FIRST_RATE = RATES.index(0.1)
TUNING_SEED = 0
Table = Mapping[str, object]
COMPARED: Mapping[str, Table] = {
    "dpdl, repaired": {"name": "dpdl"},
    "dpdl, published": {"name": "dpdl", "form": "published"},
    "dp-cga": {"name": "dp-cga"},
    "dp-netfleet": {"name": "dp-netfleet"},
    "muffliato": {"name": "muffliato"},
    "dp-dpsgd": {"name": "dp-dpsgd"},
}
TARGETS: Mapping[str, tuple[str, Table]] = {
    "single-message": (
        "Epsilon 8 for a single message",
        {"epsilon": 8.0, "adversary": "single-message"},
    ),
    "eavesdropper": (
        "Epsilon 8 for the eavesdropper",
        {"epsilon": 8.0, "adversary": "eavesdropper"},
    ),
    "none": ("Clipped, no noise", {"noise_multiplier": 0}),
}
VARIANTS = {  # of Dyn-D2P: clip_decay, budget_growth
    "Dyn, 4 and 4": (4.0, 4.0),
    "Dyn, 2 and 2": (2.0, 2.0),
    "Dyn[C], 4": (4.0, 1.0),
    "Dyn[C], 2": (2.0, 1.0),
    "Dyn[mu], 4": (1.0, 4.0),
    "Dyn[mu], 2": (1.0, 2.0),
    "Const": (1.0, 1.0),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """What one row trains: graph, table [algorithm], noise multiplier."""

    graph: str
    algorithm: Table
    noise_multiplier: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Trained:
    """What came out: the learning rate chosen on the tuning seed, an accuracy for each seed."""

    learning_rate: float
    accuracies: Sequence[float]

    def spread(self) -> str:
        """Mean and range."""
        mean = statistics.mean(self.accuracies)
        low, high = min(self.accuracies), max(self.accuracies)
        return f"{100 * mean:.1f} ({100 * low:.1f} to {100 * high:.1f})"


@functools.cache
def data_root() -> Path:
    """The folder with MNIST/raw; leaves with a word where there is none."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    root = Path(os.environ.get("OVERHEAR_DATA") or beside)
    if not (root / "MNIST").is_dir():
        sys.exit("skipped: no MNIST folder; let OVERHEAR_DATA name the folder that holds MNIST/raw")
    return root


def run_file(
    graph: str, algorithm: Table, *, privacy: Table, learning_rate: float = 0.1, seed: int = 0
) -> RunFile:
    """The run file of one run."""
    mnist = {"name": "mnist", "root": str(data_root())}
    split = {"agents": 10, "partition": "dirichlet", "concentration": 0.5}
    return RunFile.model_validate(
        {
            "data": mnist | split,
            "graph": {"name": graph},
            "model": {"name": "linear"},
            "algorithm": dict(algorithm),
            "privacy": {"delta": DELTA, "adversaries": ("eavesdropper",), **privacy},
            "training": {
                "rounds": ROUNDS,
                "batch_size": BATCH,
                "learning_rate": learning_rate,
                "seed": seed,
                "device": "cpu",
            },
        }
    )


def plan(graph: str, algorithm: Table, **privacy: object) -> Plan:
    """Noise and epsilon of a run."""
    return make_plan(run_file(graph, algorithm, privacy=privacy))


@functools.cache
def shared(graph: str, seed: int) -> Built:
    """Data, partition and first model, which the algorithms of a graph have in common."""
    return build(run_file(graph, {"name": "dp-dpsgd"}, privacy={"noise_multiplier": 1}, seed=seed))


def train(case: Case, *, learning_rate: float, seed: int) -> tuple[float, Engine]:
    """Accuracy of the mean model after the last round, and the engine that stands there."""
    config = run_file(
        case.graph,
        case.algorithm,
        privacy={"noise_multiplier": case.noise_multiplier},
        learning_rate=learning_rate,
        seed=seed,
    )
    built = replace(
        shared(case.graph, seed),
        algorithm=ALGORITHMS[config.algorithm.name],
        form=Form(config.algorithm.form),
        settings=config.algorithm.settings(),
        learning_rate=learning_rate,
    )
    engine = Engine(built.setting, built.bound(case.noise_multiplier))
    for _ in range(ROUNDS):
        engine.advance()
    mean = engine.models().mean(dim=0, keepdim=True)
    test = Examples(built.data.test_inputs, built.data.test_targets)
    found = evaluate(built.setting.model, mean, test, round=ROUNDS)
    return found.consensus_accuracy, engine


def tuned_rate(case: Case) -> float:
    """The best learning rate near the first one on the tuning seed."""
    best = FIRST_RATE
    top = train(case, learning_rate=RATES[best], seed=TUNING_SEED)[0]
    for way in (1, -1):
        while 0 <= best + way < len(RATES):
            found = train(case, learning_rate=RATES[best + way], seed=TUNING_SEED)[0]
            if found <= top:
                break
            best, top = best + way, found
        if best != FIRST_RATE:
            break
    return RATES[best]


def trained(case: Case, seeds: int, *, done: dict[str, Trained]) -> Trained:
    """Tune, then train on seeds 1, 2, ...; a case that was trained before is not trained again."""
    key = repr(case)
    if key not in done:
        rate = tuned_rate(case)
        of = [train(case, learning_rate=rate, seed=1 + seed)[0] for seed in range(seeds)]
        done[key] = Trained(learning_rate=rate, accuracies=of)
    return done[key]


def spent(planned: Plan) -> str:
    """Epsilon for the eavesdropper and what it is."""
    found = planned.guarantee("eavesdropper")
    return f"{found.epsilon:.3g}, {found.status}"


def dpdl(graphs: Sequence[str], seeds: int, *, targets: Sequence[str]) -> Iterator[str]:
    """DPDL and its baselines as the papers count, for the eavesdropper, and without noise."""
    done: dict[str, Trained] = {}
    for target in targets:
        title, privacy = TARGETS[target]
        yield f"\n{title}:\n"
        heads = ("graph", "algorithm", "noise multiplier", "epsilon, eavesdropper", "step")
        yield f"| {' | '.join((*heads, 'accuracy, %'))} |"
        yield "| --- | --- | --- | --- | --- | --- |"
        for graph in graphs:
            for name, algorithm in COMPARED.items():
                if privacy.get("noise_multiplier") == 0 and "form" in algorithm:
                    continue  # without noise both forms of DPDL are the same
                cost = plan(graph, algorithm, **privacy)
                # Rounded up, so that rows that need the same noise are the same run.
                noise = math.ceil(1e6 * cost.noise_multiplier) / 1e6
                case = Case(graph=graph, algorithm=algorithm, noise_multiplier=noise)
                found = trained(case, seeds, done=done)
                rate = f"{found.learning_rate:g}"
                said = f"| {graph} | {name} | {noise:.3f} | {spent(cost)} | {rate} "
                yield said + f"| {found.spread()} |"


def forms(graphs: Sequence[str], seeds: int) -> Iterator[str]:
    """Both forms of DPDL at the noise that proves epsilon 8 for the repaired one."""
    yield "| graph | alpha | noise multiplier | form | epsilon, eavesdropper | step | accuracy, % |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    differences = []
    for graph in graphs:
        noise = plan(graph, {"name": "dpdl"}, epsilon=8.0).noise_multiplier
        for alpha in (0.1, 1.0):
            of = {}
            for form in ("repaired", "published"):
                algorithm = {"name": "dpdl", "form": form, "alpha": alpha}
                case = Case(graph=graph, algorithm=algorithm, noise_multiplier=noise)
                of[form] = found = trained(case, seeds, done={})
                cost = spent(plan(graph, algorithm, noise_multiplier=noise))
                said = f"| {graph} | {alpha:g} | {noise:.3f} | {form} | {cost} "
                yield said + f"| {found.learning_rate:g} | {found.spread()} |"
            pairs = zip(of["repaired"].accuracies, of["published"].accuracies, strict=True)
            each = ", ".join(f"{100 * (ours - theirs):+.1f}" for ours, theirs in pairs)
            differences.append(f"{graph}, alpha {alpha:g}: {each}")
    yield "\nRepaired less published, seed by seed, in points: " + "; ".join(differences) + "."


def dyn_d2p(seeds: int) -> Iterator[str]:
    """The variants of Dyn-D2P at equal proven epsilon."""
    graph = "directed-exponential"
    yield "| epsilon | variant | noise multiplier, first to last | step | accuracy, % |"
    yield "| --- | --- | --- | --- | --- |"
    for epsilon in (1.0, 3.0):
        for name, (decay, growth) in VARIANTS.items():
            algorithm = {"name": "dyn-d2p", "clip_decay": decay, "budget_growth": growth}
            noise = plan(graph, algorithm, epsilon=epsilon).noise_multiplier
            case = Case(graph=graph, algorithm=algorithm, noise_multiplier=noise)
            found = trained(case, seeds, done={})
            last = noise * growth ** (1 / ROUNDS - 1)
            said = f"| {epsilon:g} | {name} | {noise:.2f} to {last:.2f} | {found.learning_rate:g} "
            yield said + f"| {found.spread()} |"
    _, engine = train(case, learning_rate=found.learning_rate, seed=1)
    yield "\n" + above_the_bound(engine)


def above_the_bound(engine: Engine) -> str:
    """How many records of agent 0 have gradients above the bounds, on the mean model."""
    model, shard = engine.setting.model, engine.setting.shards[0]

    def loss(flat: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        logits = functional_call(model, unflatten(model, flat), (x[None],))
        return torch.nn.functional.cross_entropy(logits, y[None])

    mean, some = engine.models().mean(dim=0), slice(1000)
    norms = vmap(grad(loss), (None, 0, 0))(mean, shard.inputs[some], shard.targets[some]).norm(
        dim=1
    )
    parts = [f"{100 * float((norms > b).float().mean()):.0f} % above {b}" for b in (1.0, 0.5, 0.25)]
    return f"Gradient norms of {len(norms)} records at the end of Const: {', '.join(parts)}."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--table", choices=("dpdl", "forms", "dyn-d2p"), required=True)
    parser.add_argument("--graphs", default="ring,full", help="of dpdl and forms")
    parser.add_argument("--targets", default=",".join(TARGETS), help="of dpdl")
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    torch.set_num_threads(1)
    graphs = given.graphs.split(",")
    lines = {
        "dpdl": lambda: dpdl(graphs, given.seeds, targets=given.targets.split(",")),
        "forms": lambda: forms(graphs, given.seeds),
        "dyn-d2p": lambda: dyn_d2p(given.seeds),
    }
    for line in lines[given.table]():
        print(line, flush=True)


if __name__ == "__main__":
    main()
