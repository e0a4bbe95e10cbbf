"""Score canaries of a run that is one release: over all rounds, in the rounds that are their turns.

With y the matched filter of a canary's contributions along its direction (`told`), c what it adds
in each where it takes part, and M the information of the run,

    every turn for sure    c'y - c'Mc / 2, the log-likelihood ratio
    by a coin of rate q    sum over turns t of log(1 - q + q exp(c_t'y_t - c_t'M_tt c_t / 2))

The second is the ratio where turns do not meet in M; elsewhere it is a score like any other. Where
one record is replaced the score of its opposite is taken off.

Less what the canary adds itself, the scores of its turns have covariance G = (c_s'M c_t).
L^-1 of them, G = L L', are standard normal and independent, whatever the algorithm and the
adversary: one draw for each turn, in the order of the turns, which `canary_checks` tests. So memory
that an engine forgets, turns round or halves shows there, even where that hides a record better.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ...privacy.adversary import Adversary
from ...training.step.final_release import FinalRelease
from .canaries import Directions, HappenedRound
from .canary_noise import ObservedNoise, Residue
from .observed_rows import DROWNED, Projected
from .scores import Planted, Scorer
from .strength import log_mixture
from .whole_run_outcome import MatchedFilter

Array = NDArray[np.float64]
_LEAST = 1e-6  # share of a turn's information that turns before it do not have, to count


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """In which rounds canaries of a host may be, and how.

    Attributes:
        own: (n,) their directions.
        allowed: (T + 1, n) whether it is the turn of each in a round; 0 is the start.
        coin: the chance that it is drawn there.
    """

    own: NDArray[np.int64]
    allowed: NDArray[np.bool_]
    coin: float


class WholeRunScorer:
    """The scores of all canaries of one run, once it is over.

    Args:
        rounds: a scorer of single rounds of the same run, which says what each planted.
        directions: of the canaries.
        adversaries: by adversary name and host, whose view.
        turns: of each host.
        release: which fields of the state leave after the last round.
        replace: whether the game is +u against -u.

    Attributes:
        scores: by adversary and host, (n,) of all directions.
        residues: by adversary, what the noise alone did to the scores of turns.
        heard: of each view, all that was seen, less what is known and what data add.
    """

    def __init__(
        self,
        rounds: Scorer,
        *,
        directions: Directions,
        adversaries: Mapping[str, Mapping[int, Adversary]],
        turns: Mapping[int, Turn],
        release: FinalRelease,
        replace: bool,
    ) -> None:
        self._rounds, self._directions, self._turns = rounds, directions, turns
        self._adversaries, self._replace = adversaries, replace
        hosts: dict[str, list[int]] = {}
        views: dict[str, Adversary] = {}
        for of in adversaries.values():
            for host, who in of.items():
                views[who.name] = who
                hosts.setdefault(who.name, []).append(host)
        self._told = {
            name: MatchedFilter(
                who, sorted(set(hosts[name])), count=directions.count, release=release
            )
            for name, who in views.items()
        }
        self._planted: list[Planted] = []
        self.scores: dict[str, dict[int, Array]] = {}
        self.residues: dict[str, list[Residue]] = {name: [] for name in adversaries}
        self.heard: list[ObservedNoise] = []
        self._along: dict[str, list[Array]] = {name: [] for name in self._told}

    def add(self, happened: HappenedRound) -> None:
        """Take in a round; every one, in its order."""
        planted = self._rounds.planted(happened)
        self._planted.append(planted)
        project = Projected(self._directions.project)
        contributed = planted.clean + planted.size * planted.part
        for told in self._told.values():
            told.add(happened, contributed, project)

    def end(self, after: Mapping[str, Tensor] | None) -> None:
        """Score what happened; `after` is what the end of a whole run releases."""
        project = Projected(self._directions.project)
        for told in self._told.values():
            if after is not None:
                told.end(after, project)
        for name, of in self._adversaries.items():
            self.scores[name] = {}
            for host, who in of.items():
                told = self._told[who.name]
                score, residues = self._of_host(told, host)
                self.scores[name][host] = score
                if told.lost <= DROWNED:
                    self.residues[name] += residues
        self.heard = [
            ObservedNoise(name, told.heard, np.concatenate(self._along[name]))
            for name, told in self._told.items()
            if told.lost <= DROWNED and self._along[name]
        ]

    def _of_host(self, told: MatchedFilter, host: int) -> tuple[Array, list[Residue]]:
        turn, columns = self._turns[host], told.columns[host]
        at = [(self._planted[column.round], column.place) for column in columns]
        of_round = np.array([column.round for column in columns], dtype=int)
        open_ = turn.allowed[of_round]  # (columns, n)
        own = turn.own
        c = np.array([of.size[place, own] for of, place in at]) * open_
        part = np.array([of.part[place, own] for of, place in at])
        M, noise = told.information(host), told.scores(host)[:, own]
        seen = noise + M @ (c * part)
        rounds = np.unique(of_round)
        member = (of_round[None, :] == rounds[:, None]).astype(float)  # (turns, columns)
        scores, alone = member @ (c * seen), member @ (c * noise)
        size = np.sqrt((c * (M @ c)).sum(axis=0))
        told_of = size > 0
        self._along[told.adversary.name].append(alone.sum(axis=0)[told_of] / size[told_of])
        if turn.coin >= 1.0:
            ratio = scores.sum(axis=0) - 0.5 * (c * (M @ c)).sum(axis=0)
            against = -scores.sum(axis=0) - 0.5 * (c * (M @ c)).sum(axis=0)
        else:
            inside = np.where(of_round[:, None] == of_round[None, :], M, 0.0)
            v = member @ (c * (inside @ c))
            ratio = log_mixture(scores - v / 2, turn.coin).sum(axis=0)
            against = log_mixture(-scores - v / 2, turn.coin).sum(axis=0)
        found = np.zeros(self._directions.count)
        found[own] = ratio - against if self._replace else ratio
        residues = self._residues(
            host, rounds, alone, of=(c, part, np.array([of.norms[p, own] for of, p in at])),
            member=member, M=M,
        )  # fmt: skip
        return found, residues

    def _residues(
        self,
        host: int,
        rounds: NDArray[np.int64],
        alone: Array,
        *,
        of: tuple[Array, Array, Array],
        member: Array,
        M: Array,
    ) -> list[Residue]:
        """Each canary's scores of its turns, less what it adds, as independent unit normals."""
        c, part, norms = of
        shape = alone.shape
        standard, information = np.full(shape, np.nan), np.full(shape, np.nan)
        there, sign, long = np.zeros(shape), np.zeros(shape), np.full(shape, np.nan)
        for j in range(shape[1]):
            made = member * c[:, j]  # (turns, columns)
            at, L = _independent(made @ M @ made.T)
            if not len(at):
                continue
            z, adds = np.linalg.solve(L, alone[at, j]), L.sum(axis=0)  # L' 1
            turned = np.where(adds < 0, -1.0, 1.0)
            standard[at, j], information[at, j] = z * turned, adds**2
            first = [int(np.flatnonzero(made[t])[0]) for t in at]
            there[at, j] = np.sign(part[first, j])
            sign[at, j] = np.sign(made[at].sum(axis=1))
            long[at, j] = norms[first, j]
        return [
            Residue(
                round=int(t),
                host=host,
                batch=0,
                rate=self._turns[host].coin,
                standard=standard[i],
                information=information[i],
                part=there[i],
                sign=sign[i],
                norms=long[i],
            )
            for i, t in enumerate(rounds)
            if np.isfinite(standard[i]).any()
        ]


def _independent(G: Array) -> tuple[list[int], Array]:
    """The turns that tell something of their own, and the Cholesky factor of their covariance.

    Where rounds were mixed for long before they are seen, early turns tell all the same.

    >>> at, L = _independent(np.array([[4.0, 2.0, 4.0], [2.0, 2.0, 2.0], [4.0, 2.0, 4.0]]))
    >>> at, L.tolist()
    ([0, 1], [[2.0, 0.0], [1.0, 1.0]])
    """
    from scipy.linalg import solve_triangular

    at, L = list[int](), np.zeros((0, 0))
    for t in np.flatnonzero(G.diagonal() > 0).tolist():
        row = solve_triangular(L, G[at, t], lower=True) if at else np.zeros(0)
        left = G[t, t] - row @ row
        if left > _LEAST * G[t, t]:
            L = np.block([[L, np.zeros((len(at), 1))], [row, np.sqrt(left)]])
            at.append(t)
    return at, L
