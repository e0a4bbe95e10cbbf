"""The game of canaries of a run that is one release: each in its turns, and scored over all rounds.

Canaries are those of `audit.canaries`; where one is not planted a blank record has its place, so
that turns are the same either way. A canary has the turns of a record of its host, by the run's own
rule. What it adds has signs that are the worst for it: they go together over the rounds of a
pattern, so that what one round takes back of another's noise counts as it does in the proof. One
more sign, of each canary, is drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ...privacy.batches.patterns import EVERY, Pattern, PatternKind
from ...training.batches import Participation
from ...training.engine.setting import Setting
from ...training.tracing.linear_forms import Contributions
from ...training.tracing.round_trace import RoundTrace
from ..checks.result import Check
from .canaries import rounds_with_canaries, with_codes_behind
from .canary_checks import canary_checks
from .game import CanaryGame, Played, Scores, layout_check
from .observed_noise import heard_check
from .scores import Scorer
from .whole_run_outcome import Column, MatchedFilter
from .whole_run_scores import Turn, WholeRunScorer

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
        each = generator.integers(2, size=self.directions) * 2 - 1
        of_calls = ((rows, each) for calls in self.signs for rows in calls)
        directions, gradients = self.drawn_canaries(generator=generator, signs=of_calls)
        setting, turns = _with_canaries(self, coins)
        scorer = WholeRunScorer(
            Scorer(
                self.setting.task or self.setting.model,
                directions=directions,
                adversaries={},
                sampling_rate=self.setting.sampling_rate,
                replace=self.replace,
            ),
            directions=directions,
            release=self.traces.release,
            adversaries=self.adversaries,
            turns=turns,
            replace=self.replace,
        )
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
    found = [np.ones(_contributions(part), dtype=np.int64) for part in parts]
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

    >>> M = np.array([[1.0, -0.5], [-0.5, 1.0]])
    >>> worst_signs(M, [Column(1, 0, 1.0), Column(2, 0, 1.0)], EVERY).tolist()
    [1, -1]
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


def _contributions(part: RoundTrace) -> int:
    return sum(g.size for g in part.groups if isinstance(g, Contributions))


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
