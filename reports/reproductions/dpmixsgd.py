"""The tables and figures of DPMixSGD.

At hand are the algorithms, the data sets, the step sizes and batches, and ranges of AUROC. Numbers
of agents and rounds, and what Tables 2a to 2d vary, are not.
"""

from __future__ import annotations

from .entry import Close, Entry, Figure, Order, Paper, Scale, Tables

__all__ = ["ENTRIES"]

PAPER = Paper(
    name="DPMixSGD",
    source="Y. Quan, C. Wang, S. Zhai, M. Fang, Z. Liu, Enhancing Privacy in Decentralized "
    "Min-Max Optimization: A Differentially Private Approach, MobiHoc 2025, arXiv 2508.07505",
)
_ALGORITHM, _EPSILON, _DELTA = "algorithm.name", "privacy.epsilon", "privacy.delta"
_EAR = {"privacy.adversaries": ["eavesdropper"]}
_PRIVATE = {_EPSILON: 1.0, _DELTA: 1e-5, **_EAR}
_ALL = [
    {_ALGORITHM: "dpmixsgd", **_PRIVATE, "label": "DPMixSGD"},
    {_ALGORITHM: "dp-sgda", **_PRIVATE, "label": "DP-SGDA"},
    {_ALGORITHM: "dm-hsgd", "label": "DM-HSGD"},
    {_ALGORITHM: "sgda", "label": "SGDA"},
]
_GRAPH = {"name": "erdos-renyi", "edge_probability": 0.5, "seed": 1}
_ROBUST = {
    "name": "linear",
    "task": "class-weights",
    "strength": 0.5,
    "penalty": 0.001,
    "penalty_steepness": 10,
}
_A8A = {"name": "libsvm", "root": "libsvm/a8a", "features": 123, "agents": 10}
_A9A = {"name": "libsvm", "root": "libsvm/a9a", "features": 123, "agents": 10}
_CIFAR = {"name": "cifar10", "agents": 10}
_MLP = {"name": "mlp", "task": "class-weights", "strength": 0.5}
_AUC = {"name": "linear", "task": "auc", "positive_share": 0.24}
_STEPS = {"batch_size": 10, "learning_rate": 0.01}
_SMOKE_BASE: Tables = {
    "data": {"name": "digits", "agents": 4},
    "graph": {"name": "ring"},
    "model": {"name": "linear", "task": "class-weights", "strength": 0.5},
    "algorithm": {"name": "dpmixsgd"},
    "training": {"rounds": 5, "batch_size": 10, "learning_rate": 0.01},
}

_FORM = (
    "as published nothing is clipped and no finite epsilon is known; the repaired form clips and "
    "adds its noise inside of the recursion"
)
_DUAL = "dual variables weigh classes, whose number is public, and not single records"
_LOST = "agents and rounds of the paper are not at hand: 10, and 2000"
_IN_SMALL = ("300 rounds", _FORM, _DUAL, _LOST)
_IN_PAPER = (_FORM, _DUAL, _LOST)
_IN_SMOKE = ("digits, softmax regression, four agents, five rounds: it shows that it runs",)
_SUMMARY = "a range that a summary of the paper's tables gives; the tables are not at hand"
_CLOSE = Close(
    key=_ALGORITHM,
    first="DPMixSGD",
    other="DM-HSGD",
    within=0.02,
    source="the abstract: the noise does not significantly compromise convergence; .02 of AUROC "
    "is our reading of it",
)
_SMOKE = Scale(base=_SMOKE_BASE, grid={_ALGORITHM: _ALL}, seeds=2, differs=_IN_SMOKE)


def _table(
    part: str, what: str, data: dict[str, object], model: dict[str, object], *,
    low: float | None = None, high: float = 1.0, reading: str = "",
) -> Entry:  # fmt: skip
    """AUROC of four algorithms on one data set."""
    base: Tables = {
        "data": data,
        "graph": _GRAPH,
        "model": model,
        "algorithm": {"name": "dpmixsgd"},
    }
    few = {**_STEPS, "rounds": 300, "evaluate_every": 300, "checkpoint_every": 300}
    grid = {_ALGORITHM: _ALL}
    figures: tuple[Figure, ...] = ()
    if low is not None:
        figures = (Figure(place={_ALGORITHM: "DPMixSGD"}, low=low, high=high, source=_SUMMARY),)
    return Entry(
        name=f"dpmixsgd-{part.lower().replace(' ', '-')}",
        paper=PAPER,
        title=f"{part}: AUROC, {what}",
        value="auroc",
        reading=reading
        or "The texts at hand name a8a, a9a and CIFAR-10 and an MLP on images, and not which of "
        f"them stands in which part; here {part} is {what}, at epsilon 1.",
        figures=figures,
        claims=(_CLOSE,),
        within=0.02,
        scales={
            "smoke": _SMOKE,
            "small": Scale(base={**base, "training": few}, grid=grid, seeds=10, differs=_IN_SMALL),
            "paper": Scale(
                base={**base, "training": {**_STEPS, "rounds": 2000}},
                grid=grid,
                seeds=10,
                differs=_IN_PAPER,
            ),
        },
    )


def _attacked(
    data: str, network: str, *, agents: int, rounds: int, images: int, seeds: int
) -> Scale:
    """A sweep whose runs are attacked at their last round."""
    return Scale(
        base={
            "data": {"name": data, "agents": agents},
            "graph": {"name": "ring"},
            "model": {"name": network, "task": "class-weights", "strength": 0.5},
            "algorithm": {"name": "dpmixsgd"},
            "training": {**_STEPS, "rounds": rounds},
            "intercept": {"rounds": [rounds], "victims": [0]},
            "attack": {"presets": ["dlg"], "restarts": 1, "images": images},
        },
        grid={_ALGORITHM: [_ALL[2], _ALL[0]]},
        seeds=seeds,
        attack=True,
        differs=(f"{data}, {network}, {rounds} rounds: data and network are not at hand", _FORM),
    )


ENTRIES: dict[str, Entry] = {
    "dpmixsgd-figure-1": Entry(
        name="dpmixsgd-figure-1",
        paper=PAPER,
        title="Figure 1: DLG on DM-HSGD and DPMixSGD",
        value="psnr",
        reading="The figure shows pictures; here PSNR of reconstructions from what an agent sends, "
        "which `overhear report` shows as pictures for each run of the folder.",
        claims=(
            Order(
                key=_ALGORITHM,
                first="DM-HSGD",
                others=("DPMixSGD",),
                source="the figure as a summary of the paper names it: DLG on both",
                verb="is rebuilt better than",
                of={"attack": "defended, view"},
            ),
        ),
        within=1.0,
        scales={
            "smoke": _attacked("digits", "linear", agents=4, rounds=2, images=1, seeds=2),
            "small": _attacked("mnist", "linear", agents=10, rounds=20, images=2, seeds=10),
            "paper": _attacked(
                "cifar10", "sigmoid-lenet", agents=10, rounds=100, images=4, seeds=10
            ),
        },
    ),
    "dpmixsgd-table-2a": _table("Table 2a", "logistic regression on a8a", _A8A, _ROBUST, low=0.67,
                                high=0.81),
    "dpmixsgd-table-2b": _table("Table 2b", "logistic regression on a9a", _A9A, _ROBUST, low=0.56,
                                high=0.70),
    "dpmixsgd-table-2c": _table("Table 2c", "logistic regression on CIFAR-10", _CIFAR, _ROBUST,
                                low=0.59, high=0.64),
    "dpmixsgd-table-2d": _table("Table 2d", "an MLP on CIFAR-10", _CIFAR, _MLP),
    "dpmixsgd-auroc": _table(
        "AUROC", "the area under the ROC curve as the objective, a9a", _A9A, _AUC,
        reading="How the paper maximises the area is not at hand; here its square loss over pairs "
        "is a saddle point over single records, with a public share of class 1.",
    ),
}  # fmt: skip
