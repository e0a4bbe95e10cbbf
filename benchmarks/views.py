"""Time of every adversary's and victim's sensitivity by number of agents, graph and algorithm.

    OMP_NUM_THREADS=1 python benchmarks/views.py             # up to 1,000 agents: about two minutes
    OMP_NUM_THREADS=1 python benchmarks/views.py --quick     # up to 100 agents
    OMP_NUM_THREADS=1 python benchmarks/views.py --whole 30  # beside whole views, up to 30 agents

Process CPU seconds on one thread, imports done before. "Trace" runs the step on symbols;
"exposures" is every victim against the eavesdropper, every single neighbour, the holders of the
final models, and one message alone; "all others" is A coalitions. "Whole views" forms and
factorises the view of every single neighbour, which is what the surroundings spare; both must give
the same joint sensitivities, and the last column says how far they are apart.

Rings whose length is a multiple of three, full graphs and many tori have a singular mixing matrix,
so that end states alone do not show every message.
"""

from __future__ import annotations

import argparse
import functools
import math
import time
from collections.abc import Callable
from typing import Any

import networkx as nx
import torch

from overhear.privacy.guarantee import neighbour
from overhear.training.algorithms import Form, dp_dpsgd, dpdl
from overhear.training.exposure.joint_sensitivities import joint_sensitivities_by_victim
from overhear.training.exposure.sensitivity import CLEAR_DEFAULT
from overhear.training.graphs.graph import Graph
from overhear.training.graphs.mixing import mixing_weights
from overhear.training.graphs.topologies import full, ring
from overhear.training.tracing.trace import AlgorithmTrace, trace

AGENTS = (10, 100, 200, 300, 1000)
_MOST_FULL = 200  # agents of a full graph; more take minutes and gigabytes
NUMBERS = {"learning_rate": 0.01, "clip_norm": 1.0, "noise_std": 1.0, "batch_size": 1.0}
DPDL = {"settings": dpdl.Settings(alpha=0.1, momentum=0.9), **NUMBERS}
STEPS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "dpdl, repaired": (dpdl.init, functools.partial(dpdl.step, form=Form.REPAIRED, **DPDL)),
    "dpdl, published": (dpdl.init, functools.partial(dpdl.step, form=Form.PUBLISHED, **DPDL)),
    "dp-dpsgd, step-then-mix": (
        dp_dpsgd.init,
        functools.partial(dp_dpsgd.step, order=dp_dpsgd.Order.STEP_THEN_MIX, **NUMBERS),
    ),
}


def of_links(name: str, links: nx.Graph) -> Graph:
    adjacency = nx.to_numpy_array(links, nodelist=range(len(links))) != 0
    return Graph(name=name, weights=mixing_weights(name, adjacency, scheme="metropolis"))


def graphs(agents: int) -> list[Graph]:
    side = max(n for n in range(1, math.isqrt(agents) + 1) if agents % n == 0)
    torus = nx.grid_2d_graph(side, agents // side, periodic=True)
    found = [
        ring(agents),
        of_links("circulant, 6 links", nx.circulant_graph(agents, [1, 2, 3])),
        of_links("random 6-regular", nx.random_regular_graph(6, agents, seed=1)),
        of_links("torus", nx.convert_node_labels_to_integers(torus)),
    ]
    return [*found, full(agents)] if agents <= _MOST_FULL else found


def timed(run: Callable[[], Any]) -> tuple[float, Any]:
    start = time.process_time()
    found = run()
    return time.process_time() - start, found


def by_surroundings(of: AlgorithmTrace, *names: str) -> dict[str, list[float]]:
    found = joint_sensitivities_by_victim(of, names, sampling_rate=0.02)
    return {name: [e.largest for e in every] for name, every in found}


def by_whole_views(of: AlgorithmTrace) -> list[float]:
    ((one, _),) = of.rounds
    worst = [0.0] * one.record.agents
    for k in range(one.record.agents):
        view = one.view(neighbour(k))
        for victim in set(range(one.record.agents)) - {k}:
            (found,) = one.sensitivities_in(view, neighbour(k), victim)
            worst[victim] = max(worst[victim], found.mu)
    return worst


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="up to 100 agents")
    parser.add_argument("--whole", type=int, default=0, help="agents up to which to compare")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    init, step = STEPS["dpdl, repaired"]
    by_surroundings(
        trace(init, step, graph=ring(4), rounds=9, noise_multiplier=1.0), *CLEAR_DEFAULT
    )  # late imports
    print("| algorithm | graph | agents | trace | exposures | all others | whole views | apart |")
    print("|---|---|---:|---:|---:|---:|---:|---:|")
    for agents in (a for a in AGENTS if a <= 100 or not asked.quick):
        for graph in graphs(agents):
            for name, (init, step) in STEPS.items():
                to_trace, of = timed(functools.partial(trace, init, step, graph=graph, rounds=9))
                run = functools.partial(by_surroundings, of)
                defaults, found = timed(functools.partial(run, *CLEAR_DEFAULT))
                others, _ = timed(functools.partial(run, "all-others"))
                whole, apart = "", ""
                if agents <= asked.whole:
                    seconds, expected = timed(functools.partial(by_whole_views, of))
                    pairs = zip(found["neighbour"], expected, strict=True)
                    whole = f"{seconds:.2f}"
                    apart = f"{max(math.dist([a], [b]) for a, b in pairs):.0e}"
                print(
                    f"| {name} | {graph.name} | {agents} | {to_trace:.2f} | {defaults:.2f} | "
                    f"{others:.2f} | {whole} | {apart} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
