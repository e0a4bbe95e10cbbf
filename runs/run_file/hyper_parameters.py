"""Hyper-parameters of an algorithm: from its table in a run file to its own dataclass and back."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Annotated, Any

from pydantic import PlainValidator, TypeAdapter, ValidationError, WithJsonSchema
from pydantic.errors import PydanticSchemaGenerationError, PydanticUndefinedAnnotation
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import ErrorDetails

from ...privacy.errors import InputError, did_you_mean
from ...privacy.plain_text import plain
from ...training.algorithms.learning_rates import Course, RateSchedule, read_rates

# What is wrong with a run file, one sentence for each problem.

_KINDS = {
    "int_type": "an integer",
    "int_from_float": "an integer",
    "float_type": "a number",
    "string_type": "a string",
    "bool_type": "true or false",
    "tuple_type": "a list",
    "list_type": "a list",
    "finite_number": "finite",
    "model_type": "a table",
    "model_attributes_type": "a table",
    "dict_type": "a table",
}
_RANGES = ("greater_than", "greater_than_equal", "less_than", "less_than_equal")
_BATCH_SIZE = ("training", "sampling_rate")


_MOST_TOLD = 20


def stated(details: ErrorDetails) -> str:
    """The words of an error that a validator raised."""
    return str(details.get("ctx", {}).get("error", details["msg"]))


def sentences(error: ValidationError, schema: JsonSchemaValue) -> tuple[list[str], int]:
    """The first problems of a run file in the words of a run file, and how many more there are.

    Args:
        schema: JSON schema of the run file; it knows the keys and their ranges.
    """
    every = error.errors(include_url=False)
    found = [_sentence(details, schema) for details in every[:_MOST_TOLD]]
    lines = [line for sentence in found for line in sentence.splitlines()]
    told = lines[:_MOST_TOLD]
    return told, len(lines) - len(told) + len(every) - len(found)


def _sentence(details: ErrorDetails, schema: JsonSchemaValue) -> str:
    loc = [plain(part) for part in details["loc"]]
    kind, value = details["type"], details["input"]
    if kind == "value_error":
        # Ours: already a sentence, which names the key inside its table.
        words = stated(details)
        if len(loc) > 1 and words.startswith((f"{loc[1]}=", f"{loc[1]} ")):
            return f"[{loc[0]}] {words}"
        return f"{_place(loc)} {words}" if loc else words
    if kind == "extra_forbidden":
        return _unknown(loc, schema)
    if kind == "missing":
        return f"[{loc[0]}] {loc[1]} is missing" if len(loc) > 1 else f"[{loc[0]}] is missing"
    if len(loc) == 1:
        return f"{loc[0]}={value!r} must be a table; write it as [{loc[0]}]"
    name = loc[1] if len(loc) == 2 else f"{loc[1]}[{loc[2]}]"
    return f"[{loc[0]}] {name}={given(value)} must {_demand(details, loc, schema)}"


def _demand(details: ErrorDetails, loc: list[str], schema: JsonSchemaValue) -> str:
    kind, value = details["type"], details["input"]
    if kind in _RANGES:
        words = _interval(_property(loc, schema))
        if tuple(loc) == _BATCH_SIZE and value > 1:
            words += "; did you mean batch_size?"
        return words
    if kind == "literal_error":
        allowed = _choices(_property(loc, schema))
        remedy = did_you_mean(value, allowed) if isinstance(value, str) else ""
        return f"be one of {', '.join(allowed)}{remedy}"
    return f"be {_KINDS[kind]}" if kind in _KINDS else f"be valid: {details['msg']}"


def unknown_key(key: str, known: Sequence[str], *, homes: Sequence[str]) -> str:
    """That a key is none of those known; the first table that has it, or the nearest key.

    >>> unknown_key("rounds", ["epsilon", "delta"], homes=["[training]"])
    'rounds is unknown; it belongs under [training]'
    """
    remedy = f"; it belongs under {homes[0]}" if homes else did_you_mean(key, known)
    return f"{key} is unknown{remedy or '; known keys: ' + ', '.join(known)}"


def _unknown(loc: list[str], schema: JsonSchemaValue) -> str:
    tables = _keys_by_table(schema)
    key = loc[-1]
    homes = [name for name, keys in tables.items() if key in keys]
    if len(loc) == 1:
        if homes:
            return f"{key} stands outside every table; put it under [{homes[0]}]"
        remedy = did_you_mean(key, tables, form="[{}]".format)
        return f"[{key}] is unknown{remedy or '; the tables are ' + ', '.join(tables)}"
    return f"[{loc[0]}] {unknown_key(key, tables[loc[0]], homes=[f'[{home}]' for home in homes])}"


def _keys_by_table(schema: JsonSchemaValue) -> dict[str, list[str]]:
    found = {}
    for name, entry in schema["properties"].items():
        references = [entry, *entry.get("anyOf", []), *entry.get("allOf", [])]
        [target] = [part["$ref"].rpartition("/")[2] for part in references if "$ref" in part]
        found[name] = list(schema["$defs"][target]["properties"])
    return found


def _property(loc: list[str], schema: JsonSchemaValue) -> JsonSchemaValue:
    """Schema of one key, or of the items of a list."""
    definition = schema["$defs"][f"{loc[0].capitalize()}Table"]
    entry: JsonSchemaValue = definition["properties"][loc[1]]
    for part in entry.get("anyOf", []):
        if part.get("type") != "null":
            entry = part
    return entry["items"] if len(loc) > 2 else entry


def _choices(entry: JsonSchemaValue) -> list[str]:
    return [str(choice) for choice in entry.get("enum", [entry.get("const")])]


def _interval(entry: JsonSchemaValue) -> str:
    """The bounds of a key, as a demand.

    >>> _interval({"exclusiveMinimum": 0, "maximum": 1})
    'lie in (0, 1]'
    """
    low, high = entry.get("minimum"), entry.get("maximum")
    above, below = entry.get("exclusiveMinimum"), entry.get("exclusiveMaximum")
    if (low, above) != (None, None) and (high, below) != (None, None):
        left = f"({above:g}" if low is None else f"[{low:g}"
        right = f"{below:g})" if high is None else f"{high:g}]"
        return f"lie in {left}, {right}"
    if above is not None:
        return f"be greater than {above:g}"
    if low is not None:
        return f"be at least {low:g}"
    return f"be at most {high:g}" if high is not None else f"be less than {below:g}"


def _place(loc: list[str]) -> str:
    return f"[{loc[0]}]" if len(loc) == 1 else f"[{loc[0]}] {'.'.join(loc[1:])}:"


def given(value: object) -> str:
    """A value in a sentence about it, on one line and cut where it is long."""
    return plain(repr(value), most=60)


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
    from ...privacy.errors import describe, line_of
    from ...training.own.names import algorithm_named

    # Keys that the settings have.
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
            f"the hyper-parameters of {name} raised {describe(error)}{line_of(error)}; mend "
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
