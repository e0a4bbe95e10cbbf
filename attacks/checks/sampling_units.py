"""What has a coin in a batch: a record, a user with all of its records, or a record in its turn.

Of turns nothing is left to chance but the coin: no record is drawn out of its turn, the rounds in
which it was are those of its pattern, and where one record is left out all others keep their turns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...privacy.batches.patterns import PatternKind
from ...privacy.batches.sampling import Per
from ...training.batches import Participation, turns_of
from ...training.data.store import Held, Shard
from ...training.engine.recording import WholeCall
from ...training.noise_tests.laws import binomial
from ...training.tracing.linear_forms import Contributions
from .recording import WatchedRound
from .result import Finding
from .schemes import Bools, exactly
from .watched_run import WatchedRun


class Coins(NamedTuple):
    """How a batch is declared to be drawn: q, and what is drawn with it on its own."""

    rate: float
    per: Per = Per.RECORD

    @property
    def named(self) -> str:
        """What has a coin."""
        return f"{self.per}s"

    def draw(self, run: WatchedRun, *, round: int, call: int, agent: int) -> Tensor:
        """(B,) positions of the records that the engine draws."""
        how: dict[str, Any] = {} if self.per is Per.RECORD else {"per": self.per}
        return run.engine.draw_batch(round=round, call=call, agent=agent, rate=self.rate, **how)

    def many(self, run: WatchedRun, agent: int) -> int:
        """How many of an agent's have a coin."""
        if self.per is Per.RECORD:
            return len(run.setting.shards[agent].targets)
        return len(np.unique(run.setting.users_of(agent).numpy()))

    def whose(
        self, found: Finding, run: WatchedRun, at: NDArray[np.int64], *, agent: int, where: str
    ) -> NDArray[np.int64]:
        """The numbers of those whose coins fell for a batch; no user may be there in part.

        Args:
            found: where it is noted if one is; nothing of that is left to chance.
            at: (B,) positions of the batch.
            where: the batch in words.
        """
        if self.per is Per.RECORD:
            return at
        number = np.unique(run.setting.users_of(agent).numpy(), return_inverse=True)[1]
        there = np.zeros(len(number), dtype=bool)
        there[at] = True
        users = np.unique(number[at])
        whole = np.array_equal(there, np.isin(number, users))
        what = f"{where} has some records of a user and not all, where users are drawn as a whole"
        found.exact(whole, what, tests=0 if whole else 1)
        return users


def declared_coins(run: WatchedRun, watched: WatchedRound) -> dict[int, Coins]:
    """How each call of `draw` whose batch is used is declared to draw."""
    rate, found = run.setting.sampling_rate, dict[int, Coins]()
    groups = [g for g in watched.trace.groups if isinstance(g, Contributions)]
    for g, call in zip(groups, watched.recorded.calls, strict=True):
        if isinstance(call, WholeCall):  # of several batches, of all data, or of a cohort
            of_batches = zip(call.batches, g.drawn.rates, strict=False)
            found |= {batch: Coins(rate if own is None else own) for batch, own in of_batches}
        elif g.cohort is None and call is not None:
            own = rate if g.sampling_rate is None else g.sampling_rate
            found[g.batch] = Coins(own, g.users or Per.RECORD)
    return found


def test_turns(
    found: Finding,
    turns: Participation,
    shards: Sequence[Held],
    members: Sequence[Bools],
    *,
    call: int,
) -> None:
    """Note all tests of the batches of one call of `draw` in turns.

    For each agent `members` are (T, n): whether a record took part in a round, from round 1 on.
    """
    for agent, of in enumerate(members):
        who, rounds = f"of agent {agent} (call {call})", np.arange(1, len(of) + 1)
        broken = np.flatnonzero(turns.pattern.broken(of))
        record = f"record {int(broken[0])}" if broken.size else "a record"
        what = f"{record} {who} takes part otherwise than {turns.pattern.words}"
        found.exact(not broken.size, what, tests=max(of.shape[1], 1))
        allowed = np.array([turns.allowed(agent, t) for t in rounds.tolist()]).reshape(of.shape)
        kept = np.asarray(~(of & ~allowed).any(axis=1))
        exactly(found, kept, f"a record {who} is drawn out of its turn")
        _test_left_out(found, turns, shards[agent], allowed, agent=agent)
        for axis, each in ((0, "record"), (1, "round")):
            counts, trials = of.sum(axis=axis), allowed.sum(axis=axis)
            p = binomial(counts, trials, turns.coin)
            at = int(p.argmin()) if p.size else 0
            what = f"{each} {at} {who} has other draws than {turns.coin:.4g} in its turns"
            found.note(float(p.min(initial=1.0)), tests=max(p.size, 1), what=what)


def _test_left_out(
    found: Finding, turns: Participation, held: Held, allowed: Bools, *, agent: int
) -> None:
    """A record more or less changes nobody else's turn."""
    n = allowed.shape[1]
    if n < 2:
        return
    rest = Shard(held, torch.arange(1, n))
    again = turns_of(
        turns.pattern,
        [rest],
        rounds=turns.rounds,
        sampling_rate=turns.coin / turns.pattern.stretch(turns.rounds),
        seed=turns.seed,
    )
    if again is None:
        return
    last = min(len(allowed), 3 * turns.pattern.stretch(turns.rounds) + 2)
    same = [np.array_equal(again.allowed(0, t + 1), allowed[t, 1:]) for t in range(last)]
    what = f"turns of agent {agent}'s records change where its first record is left out"
    exactly(found, np.array(same, dtype=np.bool_), what)


def of_groups(turns: Participation, members: Sequence[Bools]) -> list[Bools]:
    """In a cycle the records of one group in the rounds of their turns, (turns, records) each."""
    if turns.pattern.kind is not PatternKind.CYCLE:
        return []
    b, parts = turns.pattern.number, list[Bools]()
    times = len(members[0]) // b
    for agent, of in enumerate(members):
        for first in range(b if times else 0):
            parts.append(of[first : times * b : b][:, turns.allowed(agent, first + 1)])
    return [part for part in parts if part.shape[1]]
