"""What an account says, apart from how it was found: what every way of showing it starts from."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...privacy.goal import Goal
from ...privacy.guarantee import Guarantee, Statement, Unit

__all__ = ["Summary", "rounded_down", "rounded_up", "users_words"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Summary:
    """An account, as it is told.

    Attributes:
        algorithm: its name.
        settings: its hyper-parameters.
        graph: its name.
        agents: how many there are.
        rounds: T.
        sampling_rate: of batches that the step draws without a rate of its own.
        clip_norm: bound on one example's gradient; None does not clip.
        noise_multiplier: of the run.
        target: the adversary whose goal is met; None where the noise was given.
        goal: what is met for it.
        reached: what it comes to at the noise, in the goal's own figure.
        statement: what every epsilon is said of.
        guarantees: worst first.
        warnings: sentences.
        batches: how they are drawn, in a sentence, where they are not Poisson.
        counted: that the number of all records is public, in a sentence, where it has to be.
        encrypted: whether nobody on a link can read it.
        participation: in how many rounds agents take part; None where everybody does in all.
        users: what is assumed of users, in a sentence; None where the unit is another one.
        whole_users: whether every batch is one of whole users, each drawn by a coin of its own.
    """

    algorithm: str
    settings: Mapping[str, object]
    graph: str
    agents: int
    rounds: int
    sampling_rate: float
    clip_norm: float | None
    noise_multiplier: float
    target: str | None
    goal: Goal | None
    reached: float | None
    statement: Statement
    guarantees: Sequence[Guarantee]
    warnings: Sequence[str]
    encrypted: bool
    batches: str | None = None
    counted: str | None = None
    participation: str | None = None
    missing: str | None = None
    users: str | None = None
    whole_users: bool = False

    @property
    def title(self) -> str:
        """What runs, in a line."""
        return (
            f"{self.algorithm}: {_of(self.rounds, 'round')} on {self.graph} of "
            f"{_of(self.agents, 'agent')}, sampling rate {self.sampling_rate:.12g}{self._taking}"
        )

    @property
    def _taking(self) -> str:
        """In how many rounds agents take part, where that is said."""
        if self.missing is not None:
            return f", {self.missing}"
        if self.participation is None:
            return ""
        return f", an agent takes part in {self.participation}"

    @property
    def noise(self) -> str:
        """With which noise it runs, in a line."""
        clip_norm = self.clip_norm
        clipped = "nothing is clipped" if clip_norm is None else f"clip norm {clip_norm:g}"
        target = "" if self.goal is None else f" for {self.goal.words} against {self.target}"
        return f"noise multiplier {rounded_up(self.noise_multiplier, 6)}{target}, {clipped}"

    @property
    def said_of(self) -> str:
        """What every epsilon is said of, in a line."""
        said = self.statement
        whose = f" of {said.whose}" if said.holders else ""
        return (
            f"{said.adjacency} {said.unit.name_with(said.records_per_person)}{whose}, "
            f"delta {said.delta:g}, accountant {said.accountant}"
        )


def users_words(statement: Statement, *, known: bool = False) -> str | None:
    """What a figure of users takes for granted, in a sentence; None where the unit is another one.

    Args:
        statement: what every epsilon is said of.
        known: whether the data say whose a record is.

    >>> users_words(Statement(delta=1e-5, unit="user", records_per_person=1), known=True)
    'No user has more than 1 record, and each has them at one agent: training checks it.'
    """
    if statement.unit is not Unit.USER:
        return None
    most = _of(statement.records_per_person, "record")
    how = "training checks it" if known else "that is assumed, and nothing here checks it"
    return f"No user has more than {most}, and each has them at one agent: {how}."


def rounded_up(value: float, digits: int = 3) -> str:
    """A figure with so many digits: none is printed smaller than it is.

    >>> rounded_up(2.0714), rounded_up(0.8515, 6), rounded_up(math.inf)
    ('2.08', '0.8515', 'inf')
    """
    if value == 0 or math.isinf(value):
        return f"{value:g}"
    scale = 10.0 ** (digits - 1 - math.floor(math.log10(value)))
    shown = math.ceil(value * scale * (1 - 1e-9)) / scale if math.isfinite(scale) else value
    return f"{shown:.{digits}g}"


def rounded_down(value: float, digits: int = 3) -> str:
    """A figure with so many digits: none is printed larger than it is.

    >>> rounded_down(2.0789), rounded_down(0.0)
    ('2.07', '0')
    """
    if value == 0 or math.isinf(value):
        return f"{value:g}"
    scale = 10.0 ** (digits - 1 - math.floor(math.log10(value)))
    shown = math.floor(value * scale * (1 + 1e-9)) / scale if math.isfinite(scale) else value
    return f"{shown:.{digits}g}"


def _of(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
