"""Objects of a run folder: built, passed on, written as JSON and read back as one type each.

A figure is a float inside. JSON has no infinity, so there it is the string "inf", "-inf" or "nan".
A key that was not set is not written, so that an object reads as it was written, whatever version
wrote it: one that knew a key less, or one that knew a key more.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    PlainSerializer,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import PydanticKnownError

from ..privacy import guarantee
from ..privacy.bounded import read_bounded
from ..privacy.durable import write_durably
from ..privacy.errors import InputError
from ..privacy.formats.json_text import check_counts

__all__ = [
    "LARGEST_OBJECT",
    "Adjacency",
    "Count",
    "Delta",
    "Described",
    "Fraction",
    "NotNegative",
    "Score",
    "Status",
    "as_text",
    "finite",
    "schema_of",
    "status_word",
]


LARGEST_OBJECT = 32 << 20  # bytes of a JSON file
_MOST_LISTS = 1 << 20  # and objects, for each of which pydantic takes 800 bytes at most


def _word(value: float) -> str:
    return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"


def _reads(*words: str) -> BeforeValidator:
    """A validator of figures that may be what these words say, and else are finite."""

    def read(value: Any, info: ValidationInfo) -> Any:
        if isinstance(value, str) and value in words:
            return float(value)
        if isinstance(value, float) and not math.isfinite(value):
            # In JSON an infinity without quotes is an extension that other readers refuse.
            if info.mode == "json" or _word(value) not in words:
                raise PydanticKnownError("finite_number")
            return float(value)
        return value

    return BeforeValidator(read)


def _write(value: float) -> float | str:
    return value if math.isfinite(value) else _word(value)


_WRITES = PlainSerializer(_write, when_used="json")

Count = Annotated[int, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Delta = Annotated[float, Field(gt=0, lt=1)]
NotNegative = Annotated[
    float,
    Field(ge=0),
    _reads("inf"),
    _WRITES,
    WithJsonSchema(
        {"anyOf": [{"minimum": 0, "type": "number"}, {"const": "inf", "type": "string"}]}
    ),
]
Score = Annotated[
    float,
    _reads("inf", "-inf", "nan"),
    _WRITES,
    WithJsonSchema(
        {"anyOf": [{"type": "number"}, {"enum": ["inf", "-inf", "nan"], "type": "string"}]}
    ),
]
Status = Literal["proven", "heuristic", "no protection", "cannot be expressed"]
_STATUS_WORDS: Mapping[guarantee.Status, Status] = {
    guarantee.Status.PROVEN: "proven",
    guarantee.Status.HEURISTIC: "heuristic",
    guarantee.Status.NO_PROTECTION: "no protection",
    guarantee.Status.CANNOT_BE_EXPRESSED: "cannot be expressed",
}
Adjacency = Literal["add-or-remove-one", "zero-out", "replace-one"]


def status_word(status: guarantee.Status) -> Status:
    """The status as it stands in a file."""
    return _STATUS_WORDS[status]


class Described(BaseModel):
    """An object that may hold more than is described here.

    >>> class Spent(Described):
    ...     epsilon: NotNegative
    >>> spent = Spent(epsilon=math.inf)
    >>> spent.dump()
    {'epsilon': 'inf'}
    >>> Spent.parse('{"epsilon": "inf", "later": 1}', refusal="{} {}".format).epsilon
    inf
    """

    model_config = ConfigDict(
        extra="allow",
        frozen=True,
        strict=True,
        use_attribute_docstrings=True,
        validate_by_name=True,  # as it is built; what is read must use the names of the file
        validate_by_alias=True,
    )

    @classmethod
    def from_object(cls, source: object, **others: Any) -> Self:
        """The object whose fields are the attributes of these names, but for those that are given.

        >>> from types import SimpleNamespace
        >>> class Look(Described):
        ...     epsilon: NotNegative
        ...     canaries: Count
        >>> Look.from_object(SimpleNamespace(epsilon=1.5, of="anything"), canaries=20).dump()
        {'epsilon': 1.5, 'canaries': 20}
        """
        names = [name for name in cls.model_fields if hasattr(source, name)]
        return cls(**({name: getattr(source, name) for name in names} | others))

    @classmethod
    def parse(cls, text: str | bytes, *, refusal: Callable[[str, str], str]) -> Self:
        """The object of a JSON text.

        Args:
            text: of the file or line.
            refusal: the sentence for a text that is none, of the place in it and what is wrong.

        Raises:
            ValueError: it is none, in the sentence of `refusal`.
        """
        try:
            check_counts(text, most=_MOST_LISTS)
        except InputError as error:
            raise InputError(refusal("its root", str(error))) from error
        try:
            return cls.model_validate_json(text, by_alias=True, by_name=False)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            place = "/".join(str(part) for part in first["loc"]) or "its root"
            value = first["input"]
            told = first["msg"]
            if isinstance(value, float) and not math.isfinite(value):
                told = f"{_word(value)} is given where a finite number must stand"
            raise InputError(refusal(place, told)) from error

    @classmethod
    def read(cls, path: Path, *, refusal: Callable[[str, str], str]) -> Self:
        """The object of a JSON file; arguments and refusals of `parse`.

        Raises:
            FileNotFoundError: it is not there.
            ValueError: it cannot be read, or is larger than any that is written.
        """
        return cls.parse(read_bounded(path, LARGEST_OBJECT), refusal=refusal)

    @classmethod
    def read_if_there(cls, path: Path, *, remedy: str) -> Self | None:
        """The same, None where there is no file; the sentence of a refusal ends in the remedy."""
        if not path.exists():
            return None
        return cls.read(
            path, refusal=lambda at, what: f"{path} cannot be read at {at}: {what}; {remedy}"
        )

    def dump(self) -> dict[str, JsonValue]:
        """The object of JSON: what was set, under the names of the file."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True)

    def write(self, path: Path, *, mode: int | None = None) -> None:
        """Write the object as a JSON file, all at once.

        Args:
            mode: as for `write_durably`.

        Raises:
            OSError: the system refuses; the error names the file.
        """
        write_durably(path, as_text(self.dump()).encode(), mode=mode)


def as_text(value: object) -> str:
    """JSON as the files of a run folder hold it."""
    return json.dumps(finite(value), indent=2, allow_nan=False) + "\n"


def finite(value: Any) -> Any:
    """The value with infinite and undefined numbers as the strings that JSON lacks."""
    if isinstance(value, float):
        return _write(value)
    if isinstance(value, Mapping):
        return {key: finite(held) for key, held in value.items()}
    if isinstance(value, list | tuple):
        return [finite(held) for held in value]
    return value


def schema_of(kind: type[BaseModel], title: str) -> JsonSchemaValue:
    """JSON Schema (2020-12) of a file that holds one object of a kind.

    >>> schema_of(Described, "nothing")["title"]
    'nothing'
    """
    found = kind.model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **found, "title": title}
