"""Hyper-parameters of an algorithm: from its table in a run file to its own dataclass and back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Annotated, Any

from pydantic import PlainValidator, TypeAdapter, ValidationError, WithJsonSchema
from pydantic.errors import PydanticSchemaGenerationError, PydanticUndefinedAnnotation
from pydantic.json_schema import JsonSchemaValue

from ...privacy.errors import InputError, did_you_mean
from ...training.algorithms.learning_rates import Course, RateSchedule, read_rates
from .problems import stated

__all__ = ["LearningRate", "read_settings", "settings_entries", "settings_schema"]


def _rate_entry(value: object) -> object:
    """A learning rate as a run file has it."""
    given = read_rates(value)
    return given.entry if isinstance(given, RateSchedule) else given


_NUMBER = {"type": "number", "exclusiveMinimum": 0}
LearningRate = Annotated[
    Any,
    PlainValidator(_rate_entry),
    WithJsonSchema(
        {
            "anyOf": [
                _NUMBER,
                {"type": "array", "items": _NUMBER, "minItems": 1},
                {
                    "type": "object",
                    "properties": {
                        "schedule": {"enum": list(map(str, Course))},
                        "start": _NUMBER,
                        "factor": _NUMBER,
                        "every": {"type": "integer", "minimum": 1},
                        "end": {"type": "number", "minimum": 0},
                        "warmup": {"type": "integer", "minimum": 0},
                    },
                    "required": ["schedule", "start"],
                    "additionalProperties": False,
                },
            ]
        }
    ),
]


def read_settings(name: str, values: Mapping[str, object]) -> Any:
    """The settings of the algorithm `name`.

    Raises:
        ValueError: an unknown algorithm or hyper-parameter, or a value that its dataclass refuses.

    >>> read_settings("dpdl", {"momentum": 0.5}).alpha
    0.1
    """
    from ...privacy.raised import line_of, told
    from ...training.own.algorithms import algorithm_named

    settings = algorithm_named(name).settings
    known = [field.name for field in fields(settings)]
    for key in values:
        if key not in known:
            remedy = did_you_mean(key, ["name", "form", *known])
            own = f"its hyper-parameters are {', '.join(known)}" if known else "it has none"
            raise InputError(f"{key} is unknown to {name}{remedy or '; ' + own}")
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(settings)
    except (PydanticSchemaGenerationError, PydanticUndefinedAnnotation, TypeError) as error:
        first = str(error).partition("\n")[0].rstrip(".")
        raise InputError(
            f"the hyper-parameters of {name} cannot be read ({first}); make them numbers, strings, "
            "truth values or names of an enum"
        ) from None
    try:
        # JSON, because strict validation reads an enum from its string only there.
        return adapter.validate_json(json.dumps(dict(values)), strict=True)
    except ValidationError as error:
        details = error.errors(include_url=False)[0]
        if details["type"] == "value_error":  # the dataclass's own words
            raise InputError(stated(details)) from None
        key = ".".join(str(part) for part in details["loc"])
        raise InputError(f"{key}={details['input']!r} of {name}: {details['msg']}") from None
    except TypeError as error:
        raise InputError(
            f"a hyper-parameter of {name} must be a number or a name: {error}"
        ) from None
    except Exception as error:  # of a user's own dataclass
        raise InputError(
            f"the hyper-parameters of {name} raised {told(error)}{line_of(error)}; mend "
            f"{settings.__name__}"
        ) from error


def settings_entries(settings: Any) -> dict[str, object]:
    """The hyper-parameters by name; one that is None is left out."""
    values = {field.name: getattr(settings, field.name) for field in fields(settings)}
    return {name: value for name, value in values.items() if value is not None}


def settings_schema() -> JsonSchemaValue:
    """What the JSON schema of [algorithm] says for each algorithm."""
    from ...training.algorithms import ALGORITHMS

    cases = []
    for name, algorithm in ALGORITHMS.items():
        schema = TypeAdapter(algorithm.settings).json_schema()
        own = {"properties": schema.get("properties", {})}
        if "$defs" in schema:
            own["$defs"] = schema["$defs"]
        cases.append({"if": {"properties": {"name": {"const": name}}}, "then": own})
    return {"allOf": cases}
