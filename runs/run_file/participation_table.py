"""The table of a run file that says who takes part in which round, or how many may be missing."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from ...privacy.errors import InputError
from .tables import Count, Seed, Table

__all__ = ["ParticipationTable"]


class ParticipationTable(Table):
    """[participation]: who takes part in which round, by a public list; else everybody in all.

    The list is fixed before the run. It amplifies nothing, since whoever reads links sees who
    sends; an absent agent draws nothing, sends nothing and keeps its state. Without a list some
    may be missing from any round, which nobody knows when noise is made.
    """

    paths = ("path",)

    probability: Annotated[float, Field(gt=0, le=1)] | None = None
    """Probability of each agent to take part in each round, drawn from the seed."""
    agents_per_round: Count | None = None
    """Instead of probability: how many agents take part in each round, drawn from the seed."""
    path: str | None = None
    """Instead of both: file with a row a round; .csv of 1 and 0, or .json."""
    missing: Count | None = None
    """Instead of a list: how many agents, any, may be missing from any round unforeseen."""
    seed: Seed = 0
    """Public seed of a list that is drawn."""

    @model_validator(mode="after")
    def _check_one(self) -> Self:
        keys = ("probability", "agents_per_round", "path", "missing")
        given = [key for key in keys if getattr(self, key) is not None]
        if len(given) != 1:
            raise InputError(
                "give probability, agents_per_round, path or missing, exactly one of them; "
                f"{' and '.join(given) or 'none'} given"
            )
        if not self._is_drawn and "seed" in self.model_fields_set:
            raise InputError(f"seed={self.seed} has no effect with {given[0]}; leave it out")
        return self

    @property
    def _is_drawn(self) -> bool:
        """Whether the list is drawn from the seed."""
        return self.path is None and self.missing is None

    def entries(self) -> dict[str, object]:
        """The keys that have an effect."""
        found = super().entries()
        if not self._is_drawn:
            found.pop("seed")
        return found
