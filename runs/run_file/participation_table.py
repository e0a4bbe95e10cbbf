"""The table of a run file that says who takes part in which round."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from ...privacy.errors import InputError
from .tables import Count, Seed, Table

__all__ = ["ParticipationTable"]


class ParticipationTable(Table):
    """[participation]: who takes part in which round, by a public list; else everybody in all.

    The list is fixed before the run. It amplifies nothing, since whoever reads links sees who
    sends; an absent agent draws nothing, sends nothing and keeps its state.
    """

    probability: Annotated[float, Field(gt=0, le=1)] | None = None
    """Of each agent to take part in each round, drawn from the seed."""
    agents_per_round: Count | None = None
    """Instead of probability: how many agents take part in each round, drawn from the seed."""
    path: str | None = None
    """Instead of both: file with a row a round; .csv of 1 and 0, or .json."""
    seed: Seed = 0
    """Of the drawn list; public."""

    @model_validator(mode="after")
    def _check_one(self) -> Self:
        given = [
            k for k in ("probability", "agents_per_round", "path") if getattr(self, k) is not None
        ]
        if len(given) != 1:
            raise InputError(
                "give probability, agents_per_round or path, exactly one of them; "
                f"{' and '.join(given) or 'none'} given"
            )
        if self.path is not None and "seed" in self.model_fields_set:
            raise InputError(f"seed={self.seed} has no effect with path; leave it out")
        return self

    def entries(self) -> dict[str, object]:
        """The keys that have an effect."""
        found = super().entries()
        if self.path is not None:
            found.pop("seed")
        return found
