"""The figures of Whisper D-SGD.

Its setting is that of its abstract and of the scripts that its authors publish. Of what its figures
show, the order of the algorithms alone is at hand.
"""

from __future__ import annotations

import math

from ...privacy.published.whisper import whisper_information
from .closed_forms import noise_energies
from .entry import Entry, Order, Paper, Scale, Tables, Trend

__all__ = ["ENTRIES"]

PAPER = Paper(
    name="Whisper D-SGD",
    source="A. Rodio, Z. Chen, E. G. Larsson, Whisper D-SGD: Correlated Noise Across Agents for "
    "Differentially Private Decentralized Learning, arXiv 2501.14644, and github.com/arodio/"
    "WhisperDSGD, paper_experiments/a9a_libsvm",
)
_ALGORITHM, _EDGES, _NOISE = "algorithm.name", "graph.edge_probability", "privacy.noise_multiplier"
_SMALL_ROUNDS, _PAPER_ROUNDS = 200, 5000
_RATE, _DELTA = "training.learning_rate", 1e-5
_ALL = [
    {_ALGORITHM: "whisper", "algorithm.correlation": 0.0, "label": "LDP"},
    {_ALGORITHM: "decor", "label": "DECOR"},
    {_ALGORITHM: "whisper", "label": "Whisper"},
    {_ALGORITHM: "cdp-dsgd", "label": "CDP"},
]


def _multiplier(epsilon: float, rounds: int) -> float:
    """Noise on a clipped gradient over clip_norm, as the paper's Theorem 2 takes it."""
    allowed = whisper_information(epsilon=epsilon, delta=_DELTA, rounds=rounds)
    return round(1.0 / math.sqrt(allowed), 6)


def _privacy(epsilon: float | None, rounds: int) -> dict[str, object]:
    """[privacy] of the paper: an agent's whole clipped gradient, replaced by another."""
    noise = {} if epsilon is None else {"noise_multiplier": _multiplier(epsilon, rounds)}
    return {
        "unit": "agent",
        "adjacency": "replace-one",
        "clip_norm": 0.1,
        "delta": _DELTA,
        "adversaries": ["eavesdropper", "neighbour"],
        **noise,
    }


def _base(epsilon: float | None, *, rounds: int, edges: float | None = None) -> Tables:
    graph: dict[str, object] = {"name": "erdos-renyi", "seed": 1}
    if edges is not None:
        graph["edge_probability"] = edges
    return {
        "data": {
            "name": "libsvm",
            "root": "libsvm/a9a",
            "features": 123,
            "agents": 20,
            "partition": "dirichlet",
            "concentration": 10,
        },
        "graph": graph,
        "model": {"name": "linear"},
        "algorithm": {"name": "whisper", "clip": "batch"},
        "privacy": _privacy(epsilon, rounds),
        "training": {
            "rounds": rounds,
            "batch_size": 128,
            "evaluate_every": rounds,
            "checkpoint_every": rounds,
        },
    }


def _smoke(epsilon: float | None, *, edges: float | None = None) -> Tables:
    graph: dict[str, object] = {"name": "erdos-renyi", "seed": 1}
    if edges is not None:
        graph["edge_probability"] = edges
    return {
        "data": {"name": "digits", "agents": 6},
        "graph": graph,
        "model": {"name": "linear"},
        "algorithm": {"name": "whisper", "clip": "batch"},
        "privacy": _privacy(epsilon, 5),
        "training": {"rounds": 5, "batch_size": 32, "learning_rate": 0.1},
    }


def _turned(rounds: int, *, agents: int) -> Tables:
    """Quadratics, each turned from the one before; 25 times fewer rounds take 25 times the rate."""
    return {
        "data": {"name": "quadratic", "agents": agents, "rotation": 15},
        "graph": {"name": "erdos-renyi", "seed": 1},
        "model": {"name": "linear"},
        "algorithm": {"name": "whisper", "clip": "batch"},
        "privacy": _privacy(10.0, rounds),
        "training": {
            "rounds": rounds,
            "sampling_rate": 1.0,
            "learning_rate": 0.005 * _PAPER_ROUNDS / rounds if rounds > 5 else 0.1,
            "evaluate_every": rounds,
            "checkpoint_every": rounds,
        },
    }


def _noises(epsilons: list[float], rounds: int) -> list[dict[str, object]]:
    return [{_NOISE: _multiplier(e, rounds), "label": f"epsilon {e:g}"} for e in epsilons]


_TURNED = "two dimensions, condition 10, 100 records an agent, and full batches"
_TUNED_PAPER = {_RATE: [0.001, 0.005, 0.01, 0.05]}
# Noise is to a round's gradient as the root of the rounds, so 25 times fewer rounds and a learning
# rate 25 times as large are the same in expectation, if gradients do not react.
_SAME: Tables = {
    "training": {**_base(10.0, rounds=_SMALL_ROUNDS)["training"], "learning_rate": 0.125}
}
_IN_SMALL = (
    "200 rounds in place of 5000, with a learning rate 25 times the .005 that the authors' "
    "scripts have most often, the same for all algorithms and not tuned",
)
_GRAPHS = (
    "one random graph for each probability, drawn from our seed",
    "batches are Poisson samples, the model has two rows in place of one",
)
_IN_SMOKE = ("digits, six agents, five rounds: it shows that it runs",)
_ABSTRACT = (
    "the abstract: Whisper cancels more noise than pairwise schemes and narrows the gap of CDP and "
    "LDP under the same guarantees"
)
_CLAIMS = (
    Order(key=_ALGORITHM, first="Whisper", others=("DECOR", "LDP"), source=_ABSTRACT),
    Order(key=_ALGORITHM, first="DECOR", others=("LDP",), source=_ABSTRACT),
)
_LINES = "What the figure plots beside accuracy is not at hand."

ENTRIES: dict[str, Entry] = {
    "whisper-quadratic": Entry(
        name="whisper-quadratic",
        paper=PAPER,
        title="Distance from the optimum of quadratics that are turned by 15 degrees from agent to "
        "agent, over the edge probability, epsilon 10",
        value="optimum_distance",
        reading="Dimension, curvature, records and learning rate of the paper are not at hand. "
        "With its clip norm of .1 no agent reaches the optimum: the distances are those of noise.",
        columns=(_EDGES,),
        claims=_CLAIMS,
        within=0.1,
        scales={
            "smoke": Scale(
                base=_turned(5, agents=6),
                grid={_EDGES: [0.6, 1.0], _ALGORITHM: _ALL},
                seeds=2,
                differs=("six agents, five rounds: it shows that it runs",),
            ),
            "small": Scale(
                base=_turned(200, agents=20),
                grid={_EDGES: [0.2, 0.6, 1.0], _ALGORITHM: _ALL},
                seeds=10,
                differs=(*_IN_SMALL, _TURNED),
            ),
            "paper": Scale(
                base=_turned(_PAPER_ROUNDS, agents=20),
                grid={_EDGES: [0.2, 0.4, 0.6, 0.8, 1.0], _ALGORITHM: _ALL},
                seeds=10,
                differs=(_TURNED,),
                comparable=True,
            ),
        },
    ),
    "whisper-a9a-p": Entry(
        name="whisper-a9a-p",
        paper=PAPER,
        title="a9a over the edge probability, epsilon 10",
        reading=_LINES,
        columns=(_EDGES,),
        claims=_CLAIMS,
        scales={
            "smoke": Scale(
                base=_smoke(10.0),
                grid={_EDGES: [0.6, 1.0], _ALGORITHM: _ALL},
                seeds=2,
                differs=_IN_SMOKE,
            ),
            "small": Scale(
                base={**_base(10.0, rounds=_SMALL_ROUNDS), **_SAME},
                grid={_EDGES: [0.2, 0.6], _ALGORITHM: _ALL},
                seeds=10,
                differs=(*_IN_SMALL, *_GRAPHS),
            ),
            "paper": Scale(
                base=_base(10.0, rounds=_PAPER_ROUNDS),
                grid={_EDGES: [0.2, 0.4, 0.6, 0.8, 1.0], _ALGORITHM: _ALL},
                seeds=10,
                tune=_TUNED_PAPER,
                differs=_GRAPHS,
                comparable=True,
            ),
        },
    ),
    "whisper-a9a-epsilon": Entry(
        name="whisper-a9a-epsilon",
        paper=PAPER,
        title="a9a over epsilon, edge probability .5",
        reading=_LINES,
        columns=(_NOISE,),
        claims=_CLAIMS,
        scales={
            "smoke": Scale(
                base=_smoke(None, edges=0.6),
                grid={_NOISE: _noises([3.0, 40.0], 5), _ALGORITHM: _ALL},
                seeds=2,
                differs=_IN_SMOKE,
            ),
            "small": Scale(
                base={**_base(None, rounds=_SMALL_ROUNDS, edges=0.5), **_SAME},
                grid={_NOISE: _noises([3.0, 10.0, 40.0], _SMALL_ROUNDS), _ALGORITHM: _ALL},
                seeds=10,
                differs=(*_IN_SMALL, *_GRAPHS),
            ),
            "paper": Scale(
                base=_base(None, rounds=_PAPER_ROUNDS, edges=0.5),
                grid={
                    _NOISE: _noises([3, 5, 7, 10, 15, 20, 30, 40], _PAPER_ROUNDS),
                    _ALGORITHM: _ALL,
                },
                seeds=10,
                tune=_TUNED_PAPER,
                differs=_GRAPHS,
                comparable=True,
            ),
        },
    ),
    "whisper-noise-p": Entry(
        name="whisper-noise-p",
        paper=PAPER,
        title="Noise energy in the models after one mixing over the edge probability, epsilon 10, "
        "in closed form",
        value="noise energy",
        columns=(_EDGES,),
        claims=(
            *_CLAIMS,
            Trend(key=_EDGES, of={_ALGORITHM: "Whisper"}, source=_ABSTRACT),
        ),
        closed=noise_energies,
        more=False,
    ),
}
