"""The game of canaries of a run that is one release: each in its turns, and scored over all rounds.

Canaries are those of `audit.canaries`; where one is not planted a blank record has its place, so
that turns are the same either way. A canary has the turns of a record of its host, by the run's own
rule. What it adds has signs that are the worst for it: they go together over the rounds of a
pattern, so that what one round takes back of another's noise counts as it does in the proof. One
more sign, of each canary, is drawn.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ....privacy.adversary import Adversary
from ....privacy.batches.patterns import EVERY, Pattern, PatternKind
from ....training.batches.turns import Turns
from ....training.engine.setting import Setting
from ....training.tracing.linear_forms import Contributions
from ....training.tracing.round_trace import RoundTrace
from ....training.tracing.trace import AlgorithmTrace
from ...watching.result import Check
from ..canaries import rounds_with_canaries
from ..canary_checks import canary_checks
from ..canary_noise import Heard
from ..coded import codes_of, with_codes_behind
from ..game import CanaryGame, Game, Played, Progress, drawn_canaries, play
from ..layout_clipping import layout_check
from ..scores import Scorer
from .heard import heard_check
from .scores import Turn, WholeRunScorer
from .told import Column, Told

__all__ = ["WholeRunGame", "worst_signs"]

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class WholeRunGame:
    """What is played, and who looks on.

    Attributes:
        canaries: the run, its hosts and adversaries, and where canaries have their directions.
        planned: rounds of the whole run, whose last models are released.
        signs: by round and call of the gradients, (rows,) of what a canary adds to each row.
    """

    canaries: CanaryGame
    planned: int
    signs: Sequence[Sequence[NDArray[np.int64]]]

    @classmethod
    def of(cls, canaries: CanaryGame, *, planned: int) -> WholeRunGame:
        """The game, with the signs that are worst for its canaries.

        Raises:
            UnsupportedView: a view of all rounds that is too large, or that rounding hides.
        """
        return cls(canaries=canaries, planned=planned, signs=_signs(canaries, planned=planned))

    @property
    def traces(self) -> AlgorithmTrace:
        """Of the algorithm at the noise of the run."""
        return self.canaries.traces

    @property
    def adversaries(self) -> Mapping[str, Mapping[int, Adversary]]:
        """By name and host, whose view is scored."""
        return self.canaries.adversaries

    @property
    def linked(self) -> str | None:
        """None: no message is a release by itself."""
        return None

    @property
    def hosts(self) -> list[int]:
        """The agents who hold canaries."""
        return self.canaries.hosts

    @property
    def runs(self) -> int:
        """How many runs share the canaries."""
        return self.canaries.runs

    @property
    def rounds(self) -> int:
        """Rounds of each run."""
        return self.canaries.rounds

    @property
    def of_each(self) -> int:
        """Canaries of a host in a run."""
        return self.canaries.of_each

    def narrowed(self, name: str, *, linked: str | None) -> Game:
        """The same with one adversary."""
        return replace(self, canaries=self.canaries.narrowed(name, linked=linked))

    def checks(self, played: Played) -> list[Check]:
        """Checks of a game that was played, and of clipping in the run's own layout."""
        found = canary_checks(played.noise, replace=self.canaries.replace)
        return [*found, heard_check(played.heard), layout_check(self.canaries.setting)]

    def play(self, *, generator: np.random.Generator, progress: Progress | None = None) -> Played:
        """See `audit.game.play`."""
        heard: list[Heard] = []

        def one_run(game: CanaryGame, coins: NDArray[np.bool_], **how: Any) -> WholeRunScorer:
            scorer = _one_run(game, coins, planned=self.planned, signs=self.signs, **how)
            heard.extend(scorer.heard)
            return scorer

        how: dict[str, Any] = {"generator": generator, "progress": progress, "one_run": one_run}
        return play(self.canaries, **how)._replace(heard=heard)


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
            told = Told(who, [host], release=game.traces.release)
            for part in parts:
                told.expect(part)
            if game.rounds == planned:
                told.expect_end()
            columns = told.columns[host]
            best = worst_signs(told.information(host), columns, pattern)
            for one, sign in zip(columns, best.tolist(), strict=True):
                found[one.round][one.place] = sign
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
    rounds = np.array([one.round for one in columns], dtype=int)
    bound = np.array([one.bound for one in columns])
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


def _one_run(
    game: CanaryGame,
    coins: NDArray[np.bool_],
    *,
    planned: int,
    signs: Sequence[Sequence[NDArray[np.int64]]],
    generator: np.random.Generator,
    progress: Any,
) -> WholeRunScorer:
    each = generator.integers(2, size=game.directions) * 2 - 1
    of_calls = ((rows, each) for calls in signs for rows in calls)
    directions, gradients = drawn_canaries(game, generator=generator, signs=of_calls)
    setting, turns = _with_canaries(game, coins)
    scorer = WholeRunScorer(
        Scorer(
            game.setting.task or game.setting.model,
            directions=directions,
            adversaries={},
            sampling_rate=game.setting.sampling_rate,
            replace=game.replace,
        ),
        directions=directions,
        release=game.traces.release,
        adversaries=game.adversaries,
        turns=turns,
        replace=game.replace,
    )
    after: Mapping[str, Tensor] = {}
    how: dict[str, Any] = {"traces": game.traces, "rounds": game.rounds, "gradients": gradients}
    for happened in rounds_with_canaries(setting, game.bound, **how):
        scorer.add(happened)
        after = happened.after
        progress(happened.number)
    scorer.end(after if game.rounds == planned else None)
    return scorer


def _with_canaries(game: CanaryGame, coins: NDArray[np.bool_]) -> tuple[Setting, dict[int, Turn]]:
    """The setting with canaries behind the hosts' records, and the turns of these."""
    own = {h: (np.r_[game.own(h)], np.r_[game.own_short(h)]) for h in game.hosts}
    planted = {
        host: codes_of(coin, *own[host], replaced=game.replace, together=None)
        for host, coin in zip(game.hosts, coins, strict=True)
    }
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
    turns: Turns | None, host: int, held: int, canaries: int, *, rounds: int
) -> NDArray[np.bool_]:
    """(T + 1, canaries) whether it is the turn of each canary, which stand behind the records."""
    if turns is None:
        return np.ones((rounds + 1, canaries), dtype=np.bool_)
    return np.stack([turns.allowed(host, t)[held : held + canaries] for t in range(rounds + 1)])
