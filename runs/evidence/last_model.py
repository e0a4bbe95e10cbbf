"""What last-model.json holds, as types, and how it is read.

Keys may be added, so that readers must ignore those that they do not know.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field
from pydantic.json_schema import JsonSchemaValue

from ...privacy.formats.codec import Count, Delta, NotNegative, schema_of
from ..described import Described
from ..folder import folder as run_folder
from .evidence import read_evidence

__all__ = [
    "EarlierLastModel",
    "LastModel",
    "LastModelVerdict",
    "SecondLastModel",
    "last_model_schema",
    "read_last_model",
]

LastModelVerdict = Literal["consistent", "cleared", "suspicious", "contradicted", "not measured"]
_Confidence = Annotated[float, Field(gt=0, lt=1)]


class SecondLastModel(Described):
    """Lower bounds of as many fresh runs, where the first ones exceeded the proof."""

    epsilon: NotNegative
    """At `confidence`, by which a proof is contradicted."""
    confidence: _Confidence
    fresh_epsilon: NotNegative
    """At the confidence of the first look, by which it is cleared."""


class EarlierLastModel(Described):
    """What an earlier one of the same run found."""

    file: str
    runs: Count
    verdict: LastModelVerdict
    seed: Count


class LastModel(Described):
    """The object of last-model.json."""

    version: Annotated[Literal[1], Field(alias="schema")]
    runs: Count
    """Trainings of the first look; a fifth of them set the threshold."""
    rounds: Count
    noise_multiplier: NotNegative
    confidence: _Confidence
    delta: Delta
    seed: Count
    """Of the coins."""
    adversary: Literal["final-models"] = "final-models"
    victim: Count
    """The agent that holds the canary."""
    model: Literal["victim", "average"]
    """Whose final model is asked, chosen by the runs that set the threshold."""
    proven_epsilon: NotNegative
    measured_epsilon: NotNegative
    """Lower bound at the confidence of the file."""
    ideal_epsilon: NotNegative
    """What as many runs show of who sees all that the proof counts, in the middle."""
    guesses: Count
    false_alarms: Count
    misses: Count
    second: SecondLastModel | None
    verdict: LastModelVerdict
    words: str
    run_file: str = ""
    """SHA-256 of the run file."""
    earlier: list[EarlierLastModel] = Field(default_factory=list)


def read_last_model(folder: Path) -> LastModel | None:
    """The last-model.json of a run folder, None where there is none.

    Raises:
        ValueError: it is none that can be read; evidence that is there is never left out.
    """
    path = folder / run_folder.LAST_MODEL
    return read_evidence(path, LastModel, "overhear audit-last-model DIR")


def last_model_schema() -> JsonSchemaValue:
    """JSON Schema (2020-12) of last-model.json.

    >>> last_model_schema()["properties"]["schema"]["const"]
    1
    """
    return schema_of(LastModel, "last-model.json of overhear, version 1")
