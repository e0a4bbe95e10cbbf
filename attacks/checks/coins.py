"""What has a coin in a batch: a record, or a user with all of its records."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ...training.engine.recording import WholeCall
from ...training.step.values import Per
from ...training.tracing.linear_forms import Contributions
from ..watching.result import Finding
from ..watching.watched_run import WatchedRound, WatchedRun

__all__ = ["Coins", "declared_coins"]


class Coins(NamedTuple):
    """How a batch is declared to be drawn: q, and what is drawn with it on its own."""

    rate: float
    per: Per = Per.RECORD

    @property
    def named(self) -> str:
        """What has a coin.

        >>> Coins(0.1).named, Coins(0.1, Per.USER).named
        ('records', 'users')
        """
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
            run: a watched run.
            at: (B,) positions of the batch.
            agent: whose.
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
        found.note(1.0 if whole else 0.0, tests=0 if whole else 1, what=what)
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
