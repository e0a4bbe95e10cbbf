"""Small watched runs for the checks of an audit."""

import functools
from collections.abc import Callable

import pytest
import torch
from torch import nn

from overhear.attacks.checks.watched_run import WatchedRun, watch
from overhear.training.algorithms import ALGORITHMS, Form
from overhear.training.data.store import Examples
from overhear.training.engine.randomness import SecretRandomness
from overhear.training.engine.setting import Setting
from overhear.training.graphs.graph import Topology
from overhear.training.graphs.topologies import ring
from overhear.training.models.tasks import ClassWeights
from tests.attacks.planted.catalogue import PATCHES
from tests.training.contract import bound_to

TWO_FORMS = ("dpdl", "dpmixsgd")
PRIVATE = [
    (name, form)
    for name, of in ALGORITHMS.items()
    if of.private
    for form in (Form if name in TWO_FORMS else [Form.REPAIRED])
]

# Every algorithm once, in single and double precision in turn.
IN_A_PRECISION = [
    pytest.param(*of, (torch.float64, torch.float32)[i % 2]) for i, of in enumerate(PRIVATE)
]


def a_setting(
    graph: Topology,
    *,
    rate: float = 0.5,
    min_max: bool = False,
    records: int = 12,
    dtype: torch.dtype = torch.float64,
) -> Setting:
    """A network of 243 parameters and records like small photos."""
    rng = torch.Generator().manual_seed(4)
    net = nn.Sequential(nn.Flatten(), nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, 3))
    for p in net.parameters():
        p.data.normal_(0.0, 0.5, generator=rng)
    shards = [
        Examples(
            torch.rand(records, 1, 4, 4, generator=rng), torch.randint(3, (records,), generator=rng)
        )
        for _ in range(graph.agents)
    ]
    return Setting(
        graph=graph, model=net, shards=shards, sampling_rate=rate, device=torch.device("cpu"),
        dtype=dtype, task=ClassWeights(net, classes=3) if min_max else None,
    )  # fmt: skip


def a_run(
    name: str,
    *,
    form: Form = Form.REPAIRED,
    graph: Topology | None = None,
    rounds: int = 3,
    rate: float = 0.5,
    root: int = 7,
    dtype: torch.dtype = torch.float64,
    **how: object,
) -> WatchedRun:
    """A run of a few rounds on a ring of five."""
    graph = graph or ring(5)
    setting = a_setting(graph, rate=rate, min_max=ALGORITHMS[name].blocks == 2, dtype=dtype)
    bound = bound_to(name, graph.at(1), form=form, rounds=rounds, **how)
    return watch(setting, bound, rounds=rounds, randomness=SecretRandomness(root))


sound_run = functools.cache(a_run)


def with_bug(bug: str, check: Callable[[WatchedRun], object], name: str = "dpdl", **how):
    """What a check says of a run in whose engine a bug is planted."""
    with PATCHES[bug].plant():
        return check(a_run(name, **how))
