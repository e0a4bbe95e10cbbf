"""What the audits of final models are asked: options of a command, keywords of a function."""

from __future__ import annotations

import math
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
        from ...privacy.errors import InputError

        _check_minutes(self.minutes)
        if self.references < 2:
            raise InputError(
                f"references={self.references} must be at least 2: a record must be in one and out "
                "of another; 16 is usual"
            )
        if self.games < 0:
            raise InputError(f"games={self.games} must be at least 0; 4 is usual")
        for name, asked in (("references", self.references), ("games", self.games)):
            if asked > _MOST_TRAININGS:
                raise InputError(
                    f"{name}={asked} must be at most {_MOST_TRAININGS}: each is a training"
                )


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
        from ...privacy.errors import InputError

        _check_minutes(self.minutes)
        if self.runs < _LEAST_RUNS:
            raise InputError(f"runs={self.runs} must be at least {_LEAST_RUNS}; 400 is usual")
        if self.runs > _MOST_RUNS:
            raise InputError(f"runs={self.runs} must be at most {_MOST_RUNS}: each is a training")


def _check_minutes(minutes: float) -> None:
    from ...privacy.errors import InputError

    if not minutes > 0 or not math.isfinite(minutes):
        raise InputError(f"minutes={minutes:g} must be finite and above 0")
