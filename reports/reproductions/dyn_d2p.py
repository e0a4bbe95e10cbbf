"""The tables and figures of Dyn-D2P.

At hand are its setting but for the first clip bound and both growth factors, and its accuracies on
Fashion-MNIST of Dyn, Const and without privacy. Which of its two tables holds which data set is
taken from the order in which the text names them.
"""

from __future__ import annotations

from .entry import Entry, Figure, Order, Paper, Scale, Tables, Trend

__all__ = ["ENTRIES"]

PAPER = Paper(
    name="Dyn-D2P",
    source="Z. Zhu, Y. Huang, X. Wang, S. Ji, J. Xu, Dyn-D2P: Dynamic Differentially Private "
    "Decentralized Learning with Provable Utility Guarantee, IJCAI 2025, arXiv 2505.06651",
)
_DECAY, _GROWTH = "algorithm.clip_decay", "algorithm.budget_growth"
_EPSILON, _RATE = "privacy.epsilon", "training.learning_rate"
_VARIANTS = [
    {_DECAY: 4.0, _GROWTH: 4.0, "label": "Dyn"},
    {_DECAY: 4.0, _GROWTH: 1.0, "label": "Dyn[C]"},
    {_DECAY: 1.0, _GROWTH: 4.0, "label": "Dyn[mu]"},
    {_DECAY: 1.0, _GROWTH: 1.0, "label": "Const"},
]
_EPSILONS = [0.3, 0.7, 1.0, 3.0]

_PRIVACY = {"delta": 1e-4, "adversaries": ["eavesdropper"]}
_PAPER_BASE: Tables = {
    "data": {"name": "fashion-mnist", "agents": 20},
    "graph": {"name": "directed-exponential"},
    "model": {"name": "cnn"},
    "algorithm": {"name": "dyn-d2p"},
    "privacy": _PRIVACY,
    "training": {"rounds": 3500, "batch_size": 1, "learning_rate": 0.03},
}
_CIFAR_BASE: Tables = {
    **_PAPER_BASE,
    "data": {"name": "cifar10", "agents": 20},
    "model": {"name": "resnet18"},
    "training": {"rounds": 3500, "batch_size": 1, "learning_rate": 0.05},
}
_SMALL_TRAINING = {
    "rounds": 100,
    "batch_size": 64,
    "evaluate_every": 100,
    "checkpoint_every": 100,
}
_SMALL_BASE: Tables = {
    "data": {"name": "mnist", "agents": 20},
    "graph": {"name": "directed-exponential"},
    "model": {"name": "linear"},
    "algorithm": {"name": "dyn-d2p"},
    "privacy": _PRIVACY,
    "training": _SMALL_TRAINING,
}
_SMOKE_BASE: Tables = {
    "data": {"name": "digits", "agents": 4},
    "graph": {"name": "directed-exponential"},
    "model": {"name": "linear"},
    "algorithm": {"name": "dyn-d2p"},
    "privacy": _PRIVACY,
    "training": {"rounds": 5, "batch_size": 32, "learning_rate": 1.0},
}


def _directed(edges: float) -> list[object]:
    """Directed graphs: two that are regular, and random ones in turn."""
    random = {"graph.name": "random-digraph", "graph.edge_probability": edges, "graph.graphs": 4}
    return ["directed-ring", "directed-exponential", {**random, "label": "random in turn"}]


_ROUNDS = "training.rounds"


def _norms(base: Tables, rounds: list[int], *, seeds: int, differs: tuple[str, ...]) -> Scale:
    """Training without privacy that measures the norm of the gradient after its last round."""
    steps = {"learning_rate": 0.3, **base["training"], "gradient_norm": True}
    steps.pop("evaluate_every", None)
    steps.pop("checkpoint_every", None)
    return Scale(
        base={
            "data": base["data"],
            "graph": base["graph"],
            "model": base["model"],
            "algorithm": {"name": "dsgd"},
            "training": steps,
        },
        grid={"graph.name": ["directed-exponential"], _ROUNDS: rounds},
        seeds=seeds,
        differs=differs,
    )


_TUNED = {_RATE: [0.3, 1.0, 3.0]}
_LOST = (
    "the paper's first clip bound, its growth factors and how it deals records are not at hand: "
    "1, 4 and 4, and at random; its noise is calibrated exactly and not by a central limit, which "
    "takes more noise for the same epsilon"
)
_NORM = "GroupNorm in place of BatchNorm, which cannot be clipped example by example"
_IN_SMALL = (
    "softmax regression on MNIST, 100 rounds of expected batch 64 in place of 3500 of one example",
    _LOST,
)
_IN_SMOKE = ("digits, softmax regression, four agents, five rounds: it shows that it runs",)
_READ = "its table for Fashion-MNIST, quoted in a summary of the paper; the page is not at hand"
_IN_SMOKE_NORMS = (
    "digits, softmax regression, four agents, 2 and 8 rounds: it shows that it runs",
)
_CLAIMS = (
    Order(key=_DECAY, first="Dyn", others=("Const",), source=_READ),
    Trend(key=_EPSILON, of={_DECAY: "Dyn"}, source=_READ),
)
_SMOKE = Scale(
    base=_SMOKE_BASE,
    grid={_EPSILON: [1.0, 3.0], _DECAY: _VARIANTS},
    seeds=2,
    differs=_IN_SMOKE,
)
_SMALL = Scale(
    base=_SMALL_BASE,
    grid={_EPSILON: [1.0, 3.0], _DECAY: [_VARIANTS[0], _VARIANTS[3]]},
    seeds=10,
    tune=_TUNED,
    differs=(*_IN_SMALL, "Dyn and Const alone, at epsilon 1 and 3"),
)
_TABLES = "The text names CIFAR-10 first and Fashion-MNIST second, and so are the tables taken."

ENTRIES: dict[str, Entry] = {
    "dyn-d2p-table-1": Entry(
        name="dyn-d2p-table-1",
        paper=PAPER,
        title="Table 1: accuracy of ResNet-18 on CIFAR-10 over epsilon",
        reading=_TABLES,
        columns=(_EPSILON,),
        claims=_CLAIMS,
        scales={
            "smoke": _SMOKE,
            "small": Scale(
                base={**_SMALL_BASE, "data": {"name": "cifar10", "agents": 20}},
                grid={_EPSILON: _EPSILONS, _DECAY: _VARIANTS},
                seeds=10,
                tune=_TUNED,
                differs=(
                    "softmax regression, and as much of CIFAR-10 as is at hand; 100 rounds of "
                    "expected batch 64 in place of 3500 of one example",
                    _LOST,
                ),
            ),
            "paper": Scale(
                base=_CIFAR_BASE,
                grid={_EPSILON: _EPSILONS, _DECAY: _VARIANTS},
                seeds=10,
                differs=(_LOST, _NORM),
                comparable=True,
            ),
        },
    ),
    "dyn-d2p-table-2": Entry(
        name="dyn-d2p-table-2",
        paper=PAPER,
        title="Table 2: accuracy of a small convolutional network on Fashion-MNIST over epsilon",
        reading=_TABLES,
        columns=(_EPSILON,),
        figures=tuple(
            Figure(place={_DECAY: name, _EPSILON: f"{at:.1f}"}, low=of, high=of, source=_READ)
            for name, values in (
                ("Dyn", (84.9, 85.4, 86.2, 87.9)),
                ("Const", (45.4, 58.6, 74.7, 80.8)),
            )
            for at, of in zip(_EPSILONS, values, strict=True)
        ),
        claims=_CLAIMS,
        scales={
            "smoke": _SMOKE,
            "small": _SMALL,
            "paper": Scale(
                base=_PAPER_BASE,
                grid={_EPSILON: _EPSILONS, _DECAY: _VARIANTS},
                seeds=10,
                differs=(_LOST,),
                comparable=True,
            ),
        },
    ),
    "dyn-d2p-figure-1": Entry(
        name="dyn-d2p-figure-1",
        paper=PAPER,
        title="Figure 1: norms of gradients over rounds",
        value="gradient_norm",
        reading="The figure is not at hand; here it is the norm of the mean gradient of all "
        "training records at the mean model, trained without clipping and without noise, after "
        "ever more rounds. Its curves are drawn by `overhear plot --y gradient_norm`.",
        columns=("graph.name",),
        claims=(
            Trend(
                key=_ROUNDS,
                of={},
                what="the norm",
                source="the abstract: clip bounds and noise follow the convergence of gradients",
            ),
        ),
        scales={
            "smoke": _norms(_SMOKE_BASE, [2, 8], seeds=2, differs=_IN_SMOKE_NORMS),
            "small": _norms(_SMALL_BASE, [10, 30, 100], seeds=10, differs=_IN_SMALL[:1]),
            "paper": _norms(_CIFAR_BASE, [100, 1000, 3500], seeds=10, differs=(_NORM,)),
        },
    ),
    "dyn-d2p-figure-4": Entry(
        name="dyn-d2p-figure-4",
        paper=PAPER,
        title="Figure 4: accuracy over both growth factors",
        reading="The values of the grid are not at hand; here they are 1, 2, 4 and 8.",
        columns=(_GROWTH,),
        scales={
            "smoke": Scale(
                base={**_SMOKE_BASE, "privacy": {**_PRIVACY, "epsilon": 1.0}},
                grid={_GROWTH: [1.0, 4.0], _DECAY: [1.0, 4.0]},
                seeds=2,
                differs=_IN_SMOKE,
            ),
            "small": Scale(
                base={**_SMALL_BASE, "privacy": {**_PRIVACY, "epsilon": 1.0}},
                grid={_GROWTH: [1.0, 2.0, 4.0], _DECAY: [1.0, 2.0, 4.0]},
                seeds=10,
                tune=_TUNED,
                differs=_IN_SMALL,
            ),
            "paper": Scale(
                base={**_PAPER_BASE, "privacy": {**_PRIVACY, "epsilon": 1.0}},
                grid={_GROWTH: [1.0, 2.0, 4.0, 8.0], _DECAY: [1.0, 2.0, 4.0, 8.0]},
                seeds=10,
                differs=(_LOST,),
                comparable=True,
            ),
        },
    ),
    "dyn-d2p-figure-5": Entry(
        name="dyn-d2p-figure-5",
        paper=PAPER,
        title="Figure 5: accuracy over graphs and numbers of agents",
        reading="Its graphs and numbers are not at hand; here they are two directed graphs and "
        "random ones in turn, and 10, 20 and 40 agents.",
        columns=("graph.name", "data.agents"),
        claims=(_CLAIMS[0],),
        scales={
            "smoke": Scale(
                base={**_SMOKE_BASE, "privacy": {**_PRIVACY, "epsilon": 1.0}},
                grid={
                    "graph.name": _directed(0.6),
                    "data.agents": [4],
                    _DECAY: [_VARIANTS[0], _VARIANTS[3]],
                },
                seeds=2,
                differs=_IN_SMOKE,
            ),
            "small": Scale(
                base={**_SMALL_BASE, "privacy": {**_PRIVACY, "epsilon": 1.0}},
                grid={
                    "graph.name": _directed(0.2),
                    "data.agents": [10, 20],
                    _DECAY: [_VARIANTS[0], _VARIANTS[3]],
                },
                seeds=10,
                tune=_TUNED,
                differs=_IN_SMALL,
            ),
            "paper": Scale(
                base={**_PAPER_BASE, "privacy": {**_PRIVACY, "epsilon": 1.0}},
                grid={
                    "graph.name": _directed(0.2),
                    "data.agents": [10, 20, 40],
                    _DECAY: [_VARIANTS[0], _VARIANTS[3]],
                },
                seeds=10,
                differs=(_LOST,),
                comparable=True,
            ),
        },
    ),
}
