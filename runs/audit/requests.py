"""What the audits of final models are asked: options of a command, keywords of a function."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

_LEAST_RUNS = 20  # as of `attacks.membership.black_box`, whose import takes torch
_MOST_TRAININGS = 10_000
_MOST_RUNS = 100_000


@dataclass(frozen=True, kw_only=True)
class MembershipRequest:
    """How closely membership is inferred in the final models of a run."""

    references: Annotated[int, "K"] = 16
    """Number of reference runs."""
    games: Annotated[int, "G"] = 4
    """Number of runs in which each record is in or out at random."""
    records: Annotated[int, "N"] = 2000
    """Most members, and most non-members."""
    minutes: Annotated[float, "M"] = 30.0
    """Most minutes to train."""
    show_records: bool = False
    """List the records with the highest scores."""
    again: bool = False
    """Attack once more, and keep what was found before beside it."""
    device: Annotated[str | None, "DEVICE"] = None
    """auto, cpu, cuda, cuda:N or mps; by default what the run says."""

    def __post_init__(self) -> None:
        """Refuse what nobody can be served with."""
        from ...privacy._validate import whole, within

        within("minutes", self.minutes, "(0, inf)")
        remedy = "a record must be in one and out of another; 16 is usual"
        whole("references", self.references, f"[2, {_MOST_TRAININGS}]", remedy)
        whole("games", self.games, f"[0, {_MOST_TRAININGS}]", "each is a training; 4 is usual")
        whole("records", self.records, "[1, inf)", "2000 is usual")


@dataclass(frozen=True, kw_only=True)
class LastModelRequest:
    """How closely last models are asked about a canary."""

    runs: Annotated[int, "R"] = 400
    """Number of trainings; as many again where the first exceed the proof."""
    minutes: Annotated[float, "M"] = 30.0
    """Most minutes that the trainings of one look may take."""
    device: Annotated[str | None, "DEVICE"] = None
    """auto, cpu, cuda, cuda:N or mps; by default what the run says."""

    def __post_init__(self) -> None:
        """Refuse what nobody can be served with."""
        from ...privacy._validate import whole, within

        within("minutes", self.minutes, "(0, inf)")
        whole("runs", self.runs, f"[{_LEAST_RUNS}, {_MOST_RUNS}]", "400 is usual")
