"""The game of canaries of a run that is one release: each in its turns, and scored over all rounds.

Canaries are those of `audit.canaries`; where one is not planted a blank record has its place, so
that turns are the same either way. A canary has the turns of a record of its host, by the run's own
rule. What it adds has signs that are the worst for it: they go together over the rounds of a
pattern, so that what one round takes back of another's noise counts as it does in the proof. One
more sign, of each canary, is drawn.

Score canaries of a run that is one release: over all rounds, in the rounds that are their turns.

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

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ...privacy.batches.patterns import EVERY, Pattern, PatternKind
from ...privacy.guarantee import Adversary
from ...training.batches import Participation
from ...training.engine.setting import Setting
from ...training.step.final_release import FinalRelease
from ...training.tracing.linear_forms import Contributions
from ...training.tracing.round_trace import RoundTrace
from ..checks.recording import WatchedRound
from ..checks.result import Check
from .canaries import Directions, rounds_with_canaries, with_codes_behind
from .canary_noise import DECLARED, ObservedNoise, Residue, canary_checks, log_ratio
from .game import CanaryGame, Played, Scores, layout_check
from .observed_rows import DROWNED, Projected, heard_check
from .scores import BatchRates, Column, MatchedFilter, Planted, Scorer

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class WholeRunGame(CanaryGame):
    """Canaries are records of runs that are one release.

    Attributes:
        planned: rounds of the whole run, whose last models are released.
        signs: by round and call of the gradients, (rows,) of what a canary adds to each row.
    """

    planned: int
    signs: Sequence[Sequence[NDArray[np.int64]]]

    @classmethod
    def of(cls, canaries: CanaryGame, *, planned: int) -> WholeRunGame:
        """The game, with the signs that are worst for its canaries.

        Args:
            canaries: the run, its hosts and adversaries, and where canaries have their directions.
            planned: as above.

        Raises:
            UnsupportedView: a view of all rounds that is too large, or that rounding hides.
        """
        held = {one.name: getattr(canaries, one.name) for one in fields(canaries)}
        return cls(**held, planned=planned, signs=_signs(canaries, planned=planned))

    def checks(self, played: Played) -> list[Check]:
        """Checks of a game that was played, and of clipping in the run's own layout."""
        found = canary_checks(played.noise, replace=self.replace)
        return [*found, heard_check(played.heard), layout_check(self.setting)]

    def run(
        self,
        coins: NDArray[np.bool_],
        *,
        generator: np.random.Generator,
        progress: Callable[[int], None],
    ) -> Scores:
        """See `Game.run`."""
        # Each canary's sign, which every call turns by those of its rows.
        each = generator.integers(2, size=self.directions) * 2 - 1
        of_calls = ((rows, each) for calls in self.signs for rows in calls)
        directions, gradients = self.drawn_canaries(generator=generator, signs=of_calls)
        setting, turns = _with_canaries(self, coins)
        scorer = WholeRunScorer(
            Scorer(
                self.setting.task or self.setting.model,
                directions=directions,
                adversaries={},
                batches=BatchRates(self.setting.sampling_rate),
                replace=self.replace,
            ),
            directions=directions,
            release=self.traces.release,
            adversaries=self.adversaries,
            turns=turns,
            replace=self.replace,
        )
        # All rounds are scored together once they have run.
        after: Mapping[str, Tensor] = {}
        how: dict[str, Any] = {"traces": self.traces, "rounds": self.rounds}
        for happened in rounds_with_canaries(setting, self.bound, gradients=gradients, **how):
            scorer.add(happened)
            after = happened.after
            progress(happened.number)
        scorer.end(after if self.rounds == self.planned else None)
        return Scores(scorer.scores, scorer.residues, heard=scorer.heard)


def _signs(game: CanaryGame, *, planned: int) -> list[list[NDArray[np.int64]]]:
    """By round and call of the gradients, (rows,) the sign of what a canary adds to a row."""
    parts, turns = _parts(game), game.setting.turns
    pattern = EVERY if turns is None else turns.pattern
    sizes = [sum(g.size for g in p.groups if isinstance(g, Contributions)) for p in parts]
    found = [np.ones(size, dtype=np.int64) for size in sizes]
    done = set[int]()
    for of in game.adversaries.values():
        for host, who in of.items():
            if host in done:
                continue
            done.add(host)
            told = MatchedFilter(who, [host], release=game.traces.release)
            for part in parts:
                told.expect(part)
            if game.rounds == planned:
                told.expect_end()
            columns = told.columns[host]
            best = worst_signs(told.information(host), columns, pattern)
            for column, sign in zip(columns, best.tolist(), strict=True):
                found[column.round][column.place] = sign
    return [list(_by_call(part, signs)) for part, signs in zip(parts, found, strict=True)]


def worst_signs(M: Array, columns: Sequence[Column], pattern: Pattern) -> NDArray[np.int64]:
    """(columns,) signs whose contributions, taken together, an adversary sees best.

    Of every group of a cycle for itself, else of all columns; by turning round one after another
    what makes more of it, from the direction that is seen best.

    Args:
        M: (columns, columns) the information of the run.
        columns: their rounds and bounds.
        pattern: the rounds of a record.
    """
    rounds = np.array([column.round for column in columns], dtype=int)
    bound = np.array([column.bound for column in columns])
    cycle = pattern.kind is PatternKind.CYCLE
    group = rounds % pattern.number if cycle else np.zeros(len(rounds), dtype=int)
    signs = np.ones(len(columns), dtype=np.int64)
    for one in np.unique(group):
        at = np.flatnonzero(group == one)
        own = M[np.ix_(at, at)] * np.outer(bound[at], bound[at])
        start = np.linalg.eigh(own)[1][:, -1]
        s = np.where(start * np.sign(start[np.abs(start).argmax()]) < -1e-12, -1, 1)
        for _ in range(2 * len(at)):
            gain = own.diagonal() - s * (own @ s)  # of turning each round, a quarter
            if gain.max() <= 1e-12 * own.diagonal().max():
                break
            s[int(gain.argmax())] *= -1
        signs[at] = s
    return signs


def _parts(game: CanaryGame) -> list[RoundTrace]:
    """The traced start and rounds that are played."""
    rounds = [part for part, count in game.traces.rounds for _ in range(count)]
    return [game.traces.start, *rounds[: game.rounds]]


def _by_call(part: RoundTrace, signs: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """Signs of a round's contributions by the calls that ask for gradients."""
    done, start = set[int](), 0
    for group in part.groups:
        if isinstance(group, Contributions):
            here = signs[start : start + group.size]
            start += group.size
            if group.block == 0 and group.blame is None and group.first_vector not in done:
                done.add(group.first_vector)
                yield here


def _with_canaries(game: CanaryGame, coins: NDArray[np.bool_]) -> tuple[Setting, dict[int, Turn]]:
    """The setting with canaries behind the hosts' records, and the turns of these."""
    own = {h: (np.r_[game.own(h)], np.r_[game.own_short(h)]) for h in game.hosts}
    planted = game.codes(coins, together=None)
    shards = with_codes_behind(game.setting.shards, planted)
    held = [shard.size for shard in game.setting.shards]
    turns = game.setting.turns
    if turns is not None:
        turns = turns.fitting([shard.size for shard in shards])
    found = {
        host: Turn(
            own=np.concatenate(of),
            allowed=_allowed(turns, host, held[host], len(planted[host]), rounds=game.rounds),
            coin=game.setting.sampling_rate if turns is None else turns.coin,
        )
        for host, of in own.items()
    }
    return replace(game.setting, shards=shards, users=None, turns=turns), found


def _allowed(
    turns: Participation | None, host: int, held: int, canaries: int, *, rounds: int
) -> NDArray[np.bool_]:
    """(T + 1, canaries) whether it is the turn of each canary, which stand behind the records."""
    if turns is None:
        return np.ones((rounds + 1, canaries), dtype=np.bool_)
    return np.stack([turns.allowed(host, t)[held : held + canaries] for t in range(rounds + 1)])


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

    def add(self, happened: WatchedRound) -> None:
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
        # Where each canary was allowed a turn, and what it adds there.
        at = [(self._planted[column.round], column.place) for column in columns]
        of_round = np.array([column.round for column in columns], dtype=int)
        open_ = turn.allowed[of_round]  # (columns, n)
        own = turn.own
        c = np.array([of.size[place, own] for of, place in at]) * open_
        part = np.array([of.part[place, own] for of, place in at])
        # What is seen of the run: noise, and what the host's canaries add.
        M, noise = told.information(host), told.scores(host)[:, own]
        seen = noise + M @ (c * part)
        # Scores by turn, and those of the noise alone.
        rounds = np.unique(of_round)
        member = (of_round[None, :] == rounds[:, None]).astype(float)  # (turns, columns)
        scores, alone = member @ (c * seen), member @ (c * noise)
        size = np.sqrt((c * (M @ c)).sum(axis=0))
        told_of = size > 0
        self._along[told.adversary.name].append(alone.sum(axis=0)[told_of] / size[told_of])
        # The likelihood ratio: all turns for certain, or each by a coin.
        if turn.coin >= 1.0:
            s, v = scores.sum(axis=0)[None], (c * (M @ c)).sum(axis=0)[None]
        else:
            inside = np.where(of_round[:, None] == of_round[None, :], M, 0.0)
            s, v = scores, member @ (c * (inside @ c))
        ratio = log_ratio(DECLARED, s, v, q=turn.coin, replace=self._replace)
        found = np.zeros(self._directions.count)
        found[own] = ratio.sum(axis=0)
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
        # A canary's turns have noise in common; a triangular factor makes them independent.
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
