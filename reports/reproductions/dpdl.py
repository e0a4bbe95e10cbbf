"""The tables and figures of DPDL.

What is at hand of the paper is its algorithm, its data, networks, graphs and sizes, and ranges of
its accuracies and of PSNR. Learning rate, clip norm, batch, momentum, alpha and epsilon are not,
and neither is what its figures and most of its tables vary: an entry says how it is taken here.
"""

from __future__ import annotations

from .entry import Entry, Figure, Order, Paper, Scale, Tables

__all__ = ["ENTRIES"]

PAPER = Paper(
    name="DPDL",
    source="Y. Yuan, F. Xiao, Y. Wang, F. Li, DPDL: Towards Differential Privacy Preservation in "
    "Decentralized Stochastic Learning on Non-IID Data, arXiv 2606.04399",
)
_SUMMARY = "ranges that a summary of the paper's tables gives; the tables are not at hand"
_ALGORITHM, _GRAPH = "algorithm.name", "graph.name"
_DATA, _AGENTS, _SPREAD = "data.name", "data.agents", "data.concentration"
_COUNT, _EPSILON, _RATE = "privacy.adversary", "privacy.epsilon", "training.learning_rate"

_PUBLISHED = {_ALGORITHM: "dpdl", "algorithm.form": "published", "label": "DPDL, published"}
_REPAIRED = {_ALGORITHM: "dpdl", "label": "DPDL, repaired"}
_BASELINES = [
    {_ALGORITHM: "dp-cga", "label": "DP-CGA"},
    {_ALGORITHM: "muffliato", "label": "MUFFLIATO"},
    {_ALGORITHM: "dp-netfleet", "label": "DP-NETFLEET"},
    {_ALGORITHM: "dp-dpsgd", "label": "DP-DPSGD"},
]
_ALL = [_PUBLISHED, _REPAIRED, *_BASELINES]
_FORMS = [_PUBLISHED, _REPAIRED]
_OTHERS = ("DP-CGA", "MUFFLIATO", "DP-NETFLEET", "DP-DPSGD")
_MNIST = {_DATA: "mnist", "model.name": "lenet", "label": "MNIST, LeNet"}
_CIFAR = {_DATA: "cifar10", "model.name": "cnn", "label": "CIFAR-10, CNN"}
_SETS = [_MNIST, _CIFAR]
_GRAPHS = ["full", "bipartite", "ring"]
_COUNTS = ["single-message", "eavesdropper"]  # the paper's way of counting, and ours

_NAMED = {"name": "dpdl"}
_PRIVACY = {"epsilon": 8.0, "delta": 1e-5, "adversaries": ["single-message", "eavesdropper"]}
_ITS_PRIVACY = {**_PRIVACY, "adversary": "single-message"}
_DEALT = {"agents": 10, "partition": "dirichlet", "concentration": 0.5}
# Of the paper: eta, C, B, beta, alpha and epsilon are not at hand, and are our defaults.
_PAPER_BASE: Tables = {
    "data": {"name": "mnist", **_DEALT},
    "graph": {"name": "ring"},
    "model": {"name": "lenet"},
    "algorithm": _NAMED,
    "privacy": _ITS_PRIVACY,
    "training": {"rounds": 1000, "batch_size": 64},
}
_SMALL_BASE: Tables = {
    **_PAPER_BASE,
    "model": {"name": "linear"},
    "privacy": _PRIVACY,
    "training": {
        "rounds": 100,
        "batch_size": 64,
        "evaluate_every": 100,
        "checkpoint_every": 100,
    },
}
_SMOKE_BASE: Tables = {
    "data": {"name": "digits", "agents": 4, "partition": "dirichlet", "concentration": 0.5},
    "graph": {"name": "ring"},
    "model": {"name": "linear"},
    "algorithm": _NAMED,
    "privacy": _ITS_PRIVACY,
    "training": {"rounds": 5, "batch_size": 32, "learning_rate": 1.0},
}
_TUNED_PAPER = {_RATE: [0.01, 0.03, 0.1, 0.3]}
_TUNED = {_RATE: [0.1, 0.3, 1.0, 3.0]}
_CURVES: Tables = {
    **_SMALL_BASE,
    "privacy": _ITS_PRIVACY,
    "training": {"rounds": 100, "batch_size": 64, "evaluate_every": 10},
}

_OWN_NUMBERS = (
    "learning rate, clip norm, batch, momentum, alpha and epsilon of the paper are not at hand, "
    "and are this library's defaults and choices"
)
_IN_SMALL = (
    "softmax regression on MNIST in place of LeNet, and no CIFAR-10",
    "ten agents at concentration .5 on a ring; 100 rounds in place of 1000",
    _OWN_NUMBERS,
)
_IN_SMOKE = ("digits, softmax regression, four agents, five rounds: it shows that it runs",)
_FIRST = (
    "the summary of its tables: DPDL 81 to 97 % against 54 to 94 % (MNIST), 46 to 72 % against "
    "24 to 64 % (CIFAR-10)"
)
_CLAIMS = tuple(
    Order(key=_ALGORITHM, first=form, others=_OTHERS, source=_FIRST)
    for form in ("DPDL, published", "DPDL, repaired")
)
_RANGES = tuple(
    Figure(place={_DATA: data, _ALGORITHM: name}, low=low, high=high, source=_SUMMARY)
    for data, names, low, high in (
        ("MNIST, LeNet", ("DPDL, published", "DPDL, repaired"), 81.0, 97.0),
        ("MNIST, LeNet", _OTHERS, 54.0, 94.0),
        ("CIFAR-10, CNN", ("DPDL, published", "DPDL, repaired"), 46.0, 72.0),
        ("CIFAR-10, CNN", _OTHERS, 24.0, 64.0),
    )
    for name in names
)
_SMOKE = Scale(
    base=_SMOKE_BASE, grid={_GRAPH: ["ring"], _ALGORITHM: _ALL}, seeds=2, differs=_IN_SMOKE
)


def _unsaid(what: str, here: str) -> str:
    return f"The texts at hand say that {what}, and not what varies in it; here {here}."


_TABLES: dict[str, Entry] = {
    "dpdl-table-1": Entry(
        name="dpdl-table-1",
        paper=PAPER,
        title="Table I: accuracy over graphs, sizes and heterogeneity",
        columns=(_COUNT, _DATA, _AGENTS, _SPREAD, _GRAPH),
        figures=_RANGES,
        claims=_CLAIMS,
        scales={
            "smoke": _SMOKE,
            "small": Scale(
                base=_SMALL_BASE,
                grid={
                    _COUNT: ["single-message", "eavesdropper"],
                    _GRAPH: ["ring"],
                    _ALGORITHM: _ALL,
                },
                seeds=10,
                tune=_TUNED,
                differs=_IN_SMALL,
            ),
            "paper": Scale(
                base={**_PAPER_BASE, "privacy": _PRIVACY},
                grid={
                    _COUNT: _COUNTS,
                    _DATA: _SETS,
                    _AGENTS: [10, 20, 30],
                    _SPREAD: [0.1, 0.5],
                    _GRAPH: _GRAPHS,
                    _ALGORITHM: _ALL,
                },
                seeds=20,
                tune=_TUNED_PAPER,
                differs=(_OWN_NUMBERS,),
                comparable=True,
            ),
        },
    ),
    "dpdl-table-2": Entry(
        name="dpdl-table-2",
        paper=PAPER,
        title="Table II: accuracy",
        reading=_unsaid("Table II holds accuracies", "epsilon varies"),
        columns=(_COUNT, _DATA, _EPSILON),
        claims=_CLAIMS,
        scales={
            "smoke": Scale(
                base=_SMOKE_BASE,
                grid={_EPSILON: [1.0, 8.0], _ALGORITHM: _ALL},
                seeds=2,
                differs=_IN_SMOKE,
            ),
            "small": Scale(
                base=_SMALL_BASE,
                grid={_COUNT: _COUNTS, _EPSILON: [1.0, 4.0], _ALGORITHM: _ALL},
                seeds=10,
                tune=_TUNED,
                differs=_IN_SMALL,
            ),
            "paper": Scale(
                base={**_PAPER_BASE, "privacy": _PRIVACY},
                grid={
                    _COUNT: _COUNTS,
                    _DATA: _SETS,
                    _EPSILON: [1.0, 2.0, 4.0, 8.0],
                    _ALGORITHM: _ALL,
                },
                seeds=20,
                tune=_TUNED_PAPER,
                differs=(_OWN_NUMBERS,),
                comparable=True,
            ),
        },
    ),
    "dpdl-table-5": Entry(
        name="dpdl-table-5",
        paper=PAPER,
        title="Table V: accuracy",
        reading=_unsaid("Table V holds accuracies", "the weight of the calibration varies"),
        columns=(_DATA, "algorithm.alpha"),
        scales={
            "smoke": Scale(
                base=_SMOKE_BASE,
                grid={"algorithm.alpha": [0.1, 1.0], _ALGORITHM: _FORMS},
                seeds=2,
                differs=_IN_SMOKE,
            ),
            "small": Scale(
                base={**_SMALL_BASE, "privacy": _ITS_PRIVACY},
                grid={"algorithm.alpha": [0.0, 0.1, 1.0], _ALGORITHM: _FORMS},
                seeds=10,
                tune=_TUNED,
                differs=_IN_SMALL,
            ),
            "paper": Scale(
                base=_PAPER_BASE,
                grid={
                    _DATA: _SETS,
                    "algorithm.alpha": [0.0, 0.01, 0.1, 0.3, 1.0],
                    _ALGORITHM: _FORMS,
                },
                seeds=20,
                tune=_TUNED_PAPER,
                differs=(_OWN_NUMBERS,),
                comparable=True,
            ),
        },
    ),
    "dpdl-table-6": Entry(
        name="dpdl-table-6",
        paper=PAPER,
        title="Table VI: accuracy",
        reading=_unsaid("Table VI holds accuracies", "the momentum varies"),
        columns=(_DATA, "algorithm.momentum"),
        scales={
            "smoke": Scale(
                base=_SMOKE_BASE,
                grid={"algorithm.momentum": [0.0, 0.9], _ALGORITHM: _FORMS},
                seeds=2,
                differs=_IN_SMOKE,
            ),
            "small": Scale(
                base={**_SMALL_BASE, "privacy": _ITS_PRIVACY},
                grid={"algorithm.momentum": [0.0, 0.5, 0.9], _ALGORITHM: _FORMS},
                seeds=10,
                tune=_TUNED,
                differs=_IN_SMALL,
            ),
            "paper": Scale(
                base=_PAPER_BASE,
                grid={
                    _DATA: _SETS,
                    "algorithm.momentum": [0.0, 0.5, 0.9, 0.99],
                    _ALGORITHM: _FORMS,
                },
                seeds=20,
                tune=_TUNED_PAPER,
                differs=(_OWN_NUMBERS,),
                comparable=True,
            ),
        },
    ),
}


def _curves(number: int, data: dict[str, str], agents: int) -> Entry:
    """A figure of learning curves; drawn by `overhear plot` from the folder."""
    where = f"{data['label']}, {agents} agents"
    return Entry(
        name=f"dpdl-figure-{number}",
        paper=PAPER,
        title=f"Figure {number}: loss over rounds",
        value="loss",
        reading=_unsaid(f"there is a Figure {number}", f"the loss over rounds, {where}"),
        columns=(_GRAPH,),
        claims=_CLAIMS,
        scales={
            "smoke": _SMOKE,
            "small": Scale(
                base=_CURVES,
                grid={_GRAPH: ["ring"], _ALGORITHM: _ALL},
                seeds=10,
                tune=_TUNED,
                differs=_IN_SMALL,
            ),
            "paper": Scale(
                base={
                    **_PAPER_BASE,
                    "data": {**_DEALT, "name": data[_DATA], "agents": agents},
                    "model": {"name": data["model.name"]},
                },
                grid={_GRAPH: _GRAPHS, _ALGORITHM: _ALL},
                seeds=20,
                tune=_TUNED_PAPER,
                differs=(_OWN_NUMBERS,),
                comparable=True,
            ),
        },
    )


def _sizes(number: int, data: dict[str, str]) -> Entry:
    """A figure of accuracy against the number of agents."""
    return Entry(
        name=f"dpdl-figure-{number}",
        paper=PAPER,
        title=f"Figure {number}: accuracy over the number of agents",
        reading=_unsaid(f"there is a Figure {number}", f"accuracy over agents, {data['label']}"),
        columns=(_AGENTS,),
        claims=_CLAIMS,
        scales={
            "smoke": Scale(
                base=_SMOKE_BASE,
                grid={_AGENTS: [3, 5], _ALGORITHM: _ALL},
                seeds=2,
                differs=_IN_SMOKE,
            ),
            "small": Scale(
                base={**_SMALL_BASE, "privacy": _ITS_PRIVACY},
                grid={_AGENTS: [5, 10, 20], _ALGORITHM: _ALL},
                seeds=10,
                tune=_TUNED,
                differs=_IN_SMALL,
            ),
            "paper": Scale(
                base={
                    **_PAPER_BASE,
                    "data": {**_DEALT, "name": data[_DATA]},
                    "model": {"name": data["model.name"]},
                },
                grid={_AGENTS: [10, 20, 30], _ALGORITHM: _ALL},
                seeds=20,
                tune=_TUNED_PAPER,
                differs=(_OWN_NUMBERS,),
                comparable=True,
            ),
        },
    )


_FIGURES: dict[str, Entry] = {
    "dpdl-figure-1": _curves(1, _MNIST, 10),
    "dpdl-figure-2": _curves(2, _MNIST, 20),
    "dpdl-figure-3": _curves(3, _MNIST, 30),
    "dpdl-figure-4": _curves(4, _CIFAR, 10),
    "dpdl-figure-5": _curves(5, _CIFAR, 20),
    "dpdl-figure-6": _curves(6, _CIFAR, 30),
    "dpdl-figure-8": _sizes(8, _MNIST),
    "dpdl-figure-9": _sizes(9, _CIFAR),
}
ENTRIES: dict[str, Entry] = {**_TABLES, **_FIGURES}
