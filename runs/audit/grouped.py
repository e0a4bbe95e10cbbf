"""Two games as one.

Canaries that are one record, and canaries that are several of one person; or those scored round by
round, and those of adversaries to whom all rounds are one release.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ...attacks.audit.game import CanaryGame, Game, Played, Progress
from ...attacks.audit.whole_runs.game import WholeRunGame
from ...attacks.watching.result import Check
from ...privacy.adversary import Adversary
from ...training.tracing.trace import AlgorithmTrace

__all__ = ["GroupedGame", "group_name"]


def group_name(name: str, records: int) -> str:
    """The row of several records of one person, in the view of an adversary.

    >>> group_name("eavesdropper", 3)
    'eavesdropper, 3 records'
    """
    return f"{name}, {records} records"


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupedGame:
    """What is played: both, with fresh coins each.

    Attributes:
        single: of one record.
        group: of several, of the same run and hosts, or over all rounds; its adversaries have
            other names.
    """

    single: CanaryGame
    group: CanaryGame | WholeRunGame

    @property
    def traces(self) -> AlgorithmTrace:
        """Of the algorithm at the noise of the run."""
        return self.single.traces

    @property
    def adversaries(self) -> Mapping[str, Mapping[int, Adversary]]:
        """Of both games."""
        return {**self.single.adversaries, **self.group.adversaries}

    @property
    def linked(self) -> str | None:
        """Messages are scored for one record alone."""
        return self.single.linked

    @property
    def hosts(self) -> list[int]:
        """The agents who hold canaries."""
        return self.single.hosts

    @property
    def runs(self) -> int:
        """How many runs share the canaries of one record; those of several have their own."""
        return self.single.runs

    @property
    def of_each(self) -> int:
        """Canaries of a host in a run."""
        return self.single.of_each

    def narrowed(self, name: str, *, linked: str | None) -> Game:
        """The one of the two games that has this adversary, with it alone."""
        of = self.single if name in self.single.adversaries else self.group
        return of.narrowed(name, linked=linked)

    def checks(self, played: Played) -> list[Check]:
        """Checks of both."""
        return self.single.checks(played)

    def play(self, *, generator: np.random.Generator, progress: Progress | None = None) -> Played:
        """Plant, run and score, one after the other."""
        rounds = [of.runs * of.rounds for of in (self.single, self.group)]

        def tick(done: int, total: int) -> None:
            del total
            if progress is not None:
                progress(done, sum(rounds))

        def later(done: int, total: int) -> None:
            tick(rounds[0] + done, total)

        first = self.single.play(generator=generator, progress=tick)
        second = self.group.play(generator=generator, progress=later)
        return Played(
            guesses={**first.guesses, **second.guesses},
            links=first.links,
            noise=[*first.noise, *second.noise],
        )
