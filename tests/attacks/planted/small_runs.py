"""Draws, sums, batches and short runs, with a fault and without, under one root."""

import contextlib
from collections.abc import Sequence

import torch
from torch import nn

from overhear.attacks.checks.watched_run import WatchedRun
from overhear.training.engine.engine import Engine
from overhear.training.engine.randomness import SecretRandomness
from overhear.training.gradients.gradients import PairGradients
from overhear.training.graphs.topologies import ring
from tests.attacks.checks.watched import a_run, a_setting
from tests.attacks.planted.catalogue import CATALOGUE
from tests.training.contract import NOISE, bound_to

ROOT = 7
BATCH_SIZE = 4.5  # public normaliser of the runs
SIZES = (192, 12, 36, 3)  # coordinates of the parameter tensors: weights and biases in turn


def planted(name: str) -> contextlib.AbstractContextManager[None]:
    """The fault; nothing for an empty name."""
    return CATALOGUE[name].plant() if name else contextlib.nullcontext()


def draws(name: str = "", *, round: int = 1, call: int = 0, rows: int = 15) -> torch.Tensor:
    """(rows, 650) standard normal noise of one call."""
    with planted(name):
        source = SecretRandomness(ROOT)
        return source.normal(
            round=round, call=call, rows=range(rows), width=650, dtype=torch.float64
        )


def short_run(name: str = "", *, rounds: int = 1, rate: float = 0.5) -> WatchedRun:
    """A run of DPDL on a ring of five, twelve records an agent."""
    with planted(name):
        return a_run("dpdl", rounds=rounds, rate=rate, root=ROOT)


def noise_added(run: WatchedRun, *, round: int = 1) -> torch.Tensor:
    """(15, 243) what the cross-gradients of a round hold beside the gradients, in deviations."""
    watched = run.rounds[round]
    (message,) = [of for of in watched.messages if of.kind == "cross-gradient"]
    return (message.rows * BATCH_SIZE - watched.recorded.contributions[0]) / NOISE


def receivers() -> torch.Tensor:
    """(15,) whose batch is in each row of `noise_added`."""
    return torch.tensor(ring(5).receivers.tolist())


def senders() -> torch.Tensor:
    """(15,) whose model it was made on."""
    return torch.tensor(ring(5).senders.tolist())


def an_engine(*, rate: float = 0.5, records: int = 12, root: int = ROOT) -> Engine:
    """An engine that did not start."""
    graph = ring(5)
    return Engine(
        a_setting(graph, rate=rate, records=records),
        bound_to("dpdl", graph),
        randomness=SecretRandomness(root),
    )


def batches(name: str = "", *, rounds: Sequence[int], rate: float = 0.5, agent: int = 1, **how):
    """The positions of an agent's batches in some rounds."""
    with planted(name):
        engine = an_engine(rate=rate, **how)
        return [
            engine.draw_batch(round=number, call=0, agent=agent, rate=None).tolist()
            for number in rounds
        ]


def gradients(
    name: str, *, records: int, bound: float | None, before: int | None = None
) -> torch.Tensor:
    """(243,) the sum over an agent's first records at its first model, clipped at a bound.

    With `before` a sum over so many records was formed before it.
    """
    setting = a_setting(ring(5))
    with planted(name):
        an_engine()
        sums = PairGradients(setting.model, "vmap", dtype=torch.float64)
        point = nn.utils.parameters_to_vector(setting.model.parameters()).detach().double()[None]
        shard = setting.shards[0]
        for many in [records] if before is None else [before, records]:
            batch = shard.inputs[:many].double(), shard.targets[:many]
            found = sums.clipped_sums(point, ([0], [0]), [batch], clip_norm=bound)[0]
        return found
