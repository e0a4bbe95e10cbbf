"""What the noise alone does to canaries' scores: standard normal draws, if all is as declared.

The statistic s of a canary that is not in a batch is N(0, v), that of one that is in it N(v, v). So

    z = (s - part * v) / sqrt(v)     part: 1 or -1 where the canary takes part, 0 where it does not

is a standard normal, exactly and independently over canaries, rounds and hosts, whatever the
algorithm, the graph and the adversary. `canary_checks` tests it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

__all__ = ["CanaryNoise", "Residue", "gathered"]


class Residue(NamedTuple):
    """One host's canaries in one batch, in the view of one adversary.

    Attributes:
        round, host, batch: which; batches are numbered within the round.
        rate: chance that a record takes part.
        standard: (n,) z.
        information: (n,) v.
        part: (n,) 1, -1 or 0.
        sign: (n,) of the sum of what the canary adds to all rows.
        norms: (n,) of the canaries' gradients before clipping, in clip norms.
    """

    round: int
    host: int
    batch: int
    rate: float
    standard: Array
    information: Array
    part: Array
    sign: Array
    norms: Array


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class CanaryNoise:
    """Residues of one adversary and one number of batch, in all runs.

    Attributes:
        name: of the adversary.
        standard, information, part, sign, norms: (H, T, n), hosts of all runs by rounds by
            canaries; NaN where nothing can be scored.
        host: (H,) the agent.
        run: (H,) the run.
        rounds: (T,) their numbers.
        rate: (T,) chance that a record takes part.
    """

    name: str
    standard: Array
    information: Array
    part: Array
    sign: Array
    norms: Array
    host: NDArray[np.int64]
    run: NDArray[np.int64]
    rounds: NDArray[np.int64]
    rate: Array


def gathered(runs: Sequence[dict[str, list[Residue]]]) -> list[CanaryNoise]:
    """Residues of all runs, stacked by adversary and number of batch.

    Args:
        runs: by adversary, those of each run.
    """
    found = []
    for name in sorted({name for run in runs for name in run}):
        every = [(number, one) for number, run in enumerate(runs) for one in run.get(name, [])]
        for batch in sorted({one.batch for _, one in every}):
            chosen = [(number, one) for number, one in every if one.batch == batch]
            found.append(_stacked(name, chosen))
    return found


def _stacked(name: str, chosen: Sequence[tuple[int, Residue]]) -> CanaryNoise:
    rounds = sorted({one.round for _, one in chosen})
    hosts = sorted({(number, one.host) for number, one in chosen})
    width = max(len(one.standard) for _, one in chosen)
    at = {key: i for i, key in enumerate(hosts)}, {number: i for i, number in enumerate(rounds)}
    fields = ("standard", "information", "part", "sign", "norms")
    filled = {field: np.full((len(hosts), len(rounds), width), np.nan) for field in fields}
    rate = np.ones(len(rounds))
    for number, one in chosen:
        h, t = at[0][number, one.host], at[1][one.round]
        rate[t] = one.rate
        for field in fields:
            filled[field][h, t, : len(one.standard)] = getattr(one, field)
    return CanaryNoise(
        name=name,
        host=np.array([host for _, host in hosts]),
        run=np.array([number for number, _ in hosts]),
        rounds=np.array(rounds),
        rate=rate,
        **filled,
    )
