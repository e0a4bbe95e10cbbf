"""Draws who takes part in a round, on every rank alike, where it is not by a coin of each agent.

    fixed       m of A agents, uniform, from the secret stream of its round and call
    shuffled    places i m to (i + 1) m of an order of the epoch, which follows from a public seed
    cyclic      the same of 0, 1, ..., A - 1

Orders count as public in every figure, so a run that goes on draws the cohorts that it would have
drawn; one that releases a round again does so of the same agents.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...privacy.batches.cohorts import size_of_cohort
from ...privacy.batches.drawing import Scheme
from ..step.values import Cohort
from .sampler import Indices, public_order

__all__ = ["taking_part"]

_AGENTS = 0x6167656E7473  # in the key of orders of agents, which are none of records


def taking_part(
    cohort: Cohort, *, agents: int, round: int, order_seed: int, generator: np.random.Generator
) -> NDArray[np.bool_]:
    """(A,) whether each agent is in a cohort that is not Poisson.

    Args:
        agents: A, of the run.
        round: its number, from 1 where cohorts are of epochs.
        order_seed: of the orders of shuffled epochs, in [0, 2^64); public.
        generator: secret, of this round and call alone.

    >>> of, secret = Cohort(call=0, rate=0.4, scheme=Scheme.SHUFFLED), np.random.default_rng(0)
    >>> for t in (1, 2):
    ...     drawn = taking_part(of, agents=5, round=t, order_seed=0, generator=secret)
    ...     print(drawn.nonzero()[0].tolist())
    [0, 4]
    [1, 2]
    """
    size = size_of_cohort(cohort.rate, agents, scheme=cohort.scheme)
    if cohort.scheme is Scheme.FIXED:
        members = generator.choice(agents, size, replace=False, shuffle=False)
    else:
        epoch, place = divmod(round - 1, agents // size)
        order: Indices = np.arange(agents, dtype=np.int64)
        if cohort.scheme is Scheme.SHUFFLED:
            order = public_order(agents, seed=order_seed, of=_AGENTS, at=(0, epoch))
        members = order[place * size : (place + 1) * size]
    mask = np.zeros(agents, dtype=np.bool_)
    mask[members] = True
    return mask
