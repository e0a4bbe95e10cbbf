"""What the noise alone does to canaries' scores: standard normal draws, if all is as declared.

The statistic s of a canary that is not in a batch is N(0, v), that of one that is in it N(v, v). So

    z = (s - part * v) / sqrt(v)     part: 1 or -1 where the canary takes part, 0 where it does not

is a standard normal, exactly and independently over canaries, rounds and hosts, whatever the
algorithm, the graph and the adversary. `canary_checks` tests it.

A check that asks for something else than the noise's size must not fail for its size. Normal draws
of any one size have a direction that is uniform, and independent of their length: so the length is
exchanged for another, and the draws are standard normal again whatever the size was. No false alarm
is added, as what comes in depends on nothing but draws of its own, or on draws of the same size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

_FEWEST_ABSENT = 20  # from which a size is told well enough to hold others to it


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


class ObservedNoise(NamedTuple):
    """All that one adversary sees of one run, less what is known and what data add.

    Attributes:
        name: of the adversary.
        rounds: by round of the run, (rows, n) independent standard normals, if the noise is as
            declared over agents and rounds; the n directions are those of the canaries.
        along: (m,) of every canary, standard normal too: the noise in its score of all rounds,
            where it takes part in each of its turns. Its size alone decides what the score tells.
    """

    name: str
    rounds: Sequence[NDArray[np.floating]]
    along: Array


def gathered(runs: Sequence[Mapping[str, Sequence[Residue]]]) -> list[CanaryNoise]:
    """Residues of all runs, stacked by adversary and number of batch."""
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


def of_renewed_size(of: CanaryNoise) -> Array:
    """One adversary's draws z, their size and their mean in each batch exchanged for fresh ones.

    Returns:
        (H, T, n): of each host and round those in the batch by sign and those that are not, each
        with the mean and the length of as many standard normal draws. Independent standard
        normals if the draws of each such group are independent normals of one mean and size.
    """
    rng = np.random.default_rng(0)
    found = of.standard.copy()
    for part in (-1.0, 0.0, 1.0):
        chosen = np.isfinite(of.standard) & (of.part == part)
        n = chosen.sum(axis=2, keepdims=True)
        z = np.where(chosen, of.standard, 0.0)
        apart = np.where(chosen, z - z.sum(axis=2, keepdims=True) / np.maximum(n, 1), 0.0)
        length = np.sqrt((apart**2).sum(axis=2, keepdims=True))
        fresh = np.sqrt(rng.chisquare(np.maximum(n - 1, 1)))
        place = rng.normal(size=n.shape) / np.sqrt(np.maximum(n, 1))
        # One alone has no length about its mean, and equal ones have no direction.
        renewed = apart * fresh / np.where(length > 0, length, 1.0) + place
        renewed = np.where((n > 1) & (length == 0), rng.normal(size=z.shape), renewed)
        found = np.where(chosen, renewed, found)
    return found


def of_observed_size(of: CanaryNoise) -> Array:
    """One adversary's draws z of canaries in the batch, sized by those that are not in it.

    Returns:
        (H, T, n): of each host and round the squares of those in the batch, held against those of
        the others, have the law of F; their length becomes the one that chi-square has at the same
        probability. Without 20 others the draws stay as they are, and so do all others.
    """
    from scipy.special import chdtri, fdtrc

    told = np.isfinite(of.standard)
    there = told & (of.part != 0)
    squares, number = [], []
    for chosen in (there, told & ~there):
        squares.append(np.where(chosen, of.standard**2, 0.0).sum(axis=2, keepdims=True))
        number.append(chosen.sum(axis=2, keepdims=True))
    n, m = number
    is_told = (n > 0) & (m >= _FEWEST_ABSENT) & (squares[0] > 0) & (squares[1] > 0)
    within, beside = np.where(is_told, squares[0], 1.0), np.where(is_told, squares[1], 1.0)
    n, m = np.where(is_told, n, 1), np.where(is_told, m, 1)
    beyond = fdtrc(n, m, (within / n) / (beside / m))
    length = chdtri(n, np.clip(beyond, 1e-300, 1.0))
    return np.where(there & is_told, of.standard * np.sqrt(length / within), of.standard)
