"""One type for one idea, from where it is made to its JSON and back: the codec of dataclasses.

A frozen dataclass that is `described` is its own file format: the docstrings of its attributes are
the descriptions of its JSON Schema, and the types below say what of a number or a word JSON holds.
`dump`, `load` and `schema_of` take such classes, and models of pydantic, which is imported when one
of them is used, so that a figure can be made without it.

A figure is a float inside. JSON has no infinity, so there it is the string "inf", "-inf" or "nan".
"""

from __future__ import annotations

import dataclasses
import enum
import json
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn, TypeVar

from ..errors import InputError
from ..files import read_bounded

if TYPE_CHECKING:
    from pydantic import ConfigDict, GetCoreSchemaHandler, TypeAdapter
    from pydantic.json_schema import JsonSchemaValue
    from pydantic_core import CoreSchema

# JSON, of which every reader takes the same: what Python and the readers after it can hold.
#
# Refused are a key that stands twice, NaN and Infinity, a number that no float holds, text that is
# half a character, nesting beyond what the interpreter follows, and millions of lists, objects and
# texts: an empty one takes a hundred times the bytes that it is written in.

_MOST_DIGITS = 308  # of an integer: a float holds it
_MOST_PARTS = 1 << 21  # and objects; links of a graph are lists
_MOST_TEXTS = 1 << 22
_HALF = re.compile(r"\\u[dD][89a-fA-F]")


def parse_json(text: str | bytes) -> Any:
    r"""The value of a JSON text.

    Args:
        text: of a file or a line; bytes in an encoding of Unicode.

    Raises:
        InputError: it is none, in a clause that follows the name of what was read.

    >>> parse_json('{"round": 3}')
    {'round': 3}
    >>> parse_json('{"round": NaN}')
    Traceback (most recent call last):
    overhear...InputError: is no JSON: NaN is no number of JSON
    """
    try:
        if isinstance(text, bytes):
            text = text.decode(json.detect_encoding(text))
        check_counts(text)
        found = json.loads(
            text,
            object_pairs_hook=_once,
            parse_constant=_no_constant,
            parse_float=_finite,
            parse_int=_whole,
        )
        if _HALF.search(text):
            json.dumps(found, ensure_ascii=False).encode("utf-8")
    except (UnicodeDecodeError, UnicodeEncodeError) as error:
        raise InputError(f"is no JSON: its text is no Unicode ({error.reason})") from error
    except RecursionError as error:
        raise InputError("is no JSON that is read: it is nested too deep") from error
    except InputError:
        raise
    except ValueError as error:
        raise InputError(f"is no JSON: {error}") from error
    return found


def check_counts(text: str | bytes, *, most: int = _MOST_PARTS) -> None:
    """Refuse a JSON text of millions of lists, objects and texts, before it is parsed.

    Args:
        text: of a file or a line; bytes in UTF-8.
        most: lists and objects.
    """
    signs = text.decode("latin1") if isinstance(text, bytes) else text
    lists, quotes = signs.count("[") + signs.count("{"), signs.count('"')
    if lists > most or quotes > 2 * _MOST_TEXTS:
        raise InputError(
            f"is no JSON that is read: it has {lists} lists and objects and {quotes // 2} texts, "
            f"and may have {most} and {_MOST_TEXTS}"
        )


def read_json(path: Path, most: int) -> Any:
    """The value of a JSON file of at most so many bytes.

    Raises:
        FileNotFoundError: it is not there.
        ValueError: it is larger, no regular file, or `parse_json` refuses it.
    """
    held = read_bounded(path, most)
    try:
        return parse_json(held)
    except InputError as error:
        raise InputError(f"{path} {error}; put it back as it was written") from error


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands twice")
    return found


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:20]} is too large")
    return value


def _whole(text: str) -> int:
    if len(text) > _MOST_DIGITS:
        raise ValueError(f"an integer has {len(text)} digits, and at most {_MOST_DIGITS} are read")
    return int(text)


_T = TypeVar("_T")
_MOST_LISTS = 1 << 20  # and objects, for each of which pydantic takes 800 bytes at most
CONFIG: ConfigDict = {
    "extra": "allow",
    "strict": True,
    "use_attribute_docstrings": True,
    "validate_by_name": True,  # as it is built; what is read must use the names of the file
    "validate_by_alias": True,
}
"""Of every object: it may hold more than is described, and reads as it was written."""


def _word(value: float) -> str:
    return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"


def _write(value: float) -> float | str:
    return value if math.isfinite(value) else _word(value)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Number:
    """Marks a number: its bounds, and for a figure the words that may stand in place of it."""

    bounds: tuple[tuple[str, float], ...] = ()
    words: tuple[str, ...] = ()

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        """The number within its bounds, read from a word, and written as one."""
        from pydantic import BeforeValidator, Field, PlainSerializer, WithJsonSchema

        bounds: Any = dict(self.bounds)
        kind = Annotated[source, Field(**bounds)] if bounds else source
        if self.words:
            number = {**({"minimum": 0} if bounds else {}), "type": "number"}
            words = {"enum": list(self.words)} if self.words[1:] else {"const": self.words[0]}
            kind = Annotated[
                kind,
                BeforeValidator(self._read),
                PlainSerializer(_write, when_used="json"),
                WithJsonSchema({"anyOf": [number, {**words, "type": "string"}]}),
            ]
        return handler.generate_schema(kind)

    def _read(self, value: Any, info: Any) -> Any:
        from pydantic_core import PydanticKnownError

        if isinstance(value, str) and value in self.words:
            return float(value)
        if isinstance(value, float) and not math.isfinite(value):
            # In JSON an infinity without quotes is an extension that other readers refuse.
            if info.mode == "json" or _word(value) not in self.words:
                raise PydanticKnownError("finite_number")
            return float(value)
        return value


Count = Annotated[int, _Number(bounds=(("ge", 0),))]
Positive = Annotated[int, _Number(bounds=(("ge", 1),))]
Fraction = Annotated[float, _Number(bounds=(("ge", 0), ("le", 1)))]
Delta = Annotated[float, _Number(bounds=(("gt", 0), ("lt", 1)))]
NotNegative = Annotated[float, _Number(bounds=(("ge", 0),), words=("inf",))]
Score = Annotated[float, _Number(words=("inf", "-inf", "nan"))]


@dataclasses.dataclass(frozen=True)
class Words:
    """Marks a word of an enumeration: which ones a file may hold, or any that is known."""

    words: tuple[str, ...] = ()

    def __get_pydantic_core_schema__(self, source: Any, _: GetCoreSchemaHandler) -> CoreSchema:
        """The member of a word, written as the word."""
        from pydantic_core import core_schema

        held = core_schema.literal_schema([*self.words]) if self.words else core_schema.str_schema()
        return core_schema.no_info_before_validator_function(
            lambda value: value.value if isinstance(value, enum.Enum) else value,
            core_schema.no_info_after_validator_function(source, held),
            serialization=core_schema.plain_serializer_function_ser_schema(str),
        )


def described(
    *, title: str = "", names: Mapping[str, str] | None = None, whole: bool = False
) -> Callable[[type[_T]], type[_T]]:
    """Let a dataclass without slots be an object of JSON.

    Args:
        title: of its schema, by which others refer to it; the name of the class by default.
        names: in a file, of attributes that have another one in Python.
        whole: whether every key is written; else none whose value is its default.
    """
    other = dict(names or {})

    # pydantic's own schema of the dataclass, with a writer around it.
    def core_schema_of(_: type[_T], source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        from pydantic_core import core_schema

        fields = {other.get(field.name, field.name): field for field in dataclasses.fields(source)}
        known = {field.name for field in fields.values()}

        # Attributes beyond the fields are written too; defaults may be left out.
        def write(value: Any, dictionary_of: Any, info: Any) -> Any:
            more = {key: of for key, of in vars(value).items() if key not in known}
            held = dictionary_of(value) | more
            if whole or not info.exclude_unset:
                return held
            return {k: of for k, of in held.items() if k not in fields or fields[k].default != of}

        found = handler(source)
        inner: Any = handler.resolve_ref_schema(found)
        inner["strict"] = False  # a dictionary is one, too; of its values no kind is changed
        inner["serialization"] = core_schema.wrap_serializer_function_ser_schema(
            write, info_arg=True, schema={**inner}
        )
        return found

    # What pydantic reads off a class: the names of the file, and the schema above.
    def mark(kind: type[_T]) -> type[_T]:
        _TITLES[f"{kind.__module__}.{kind.__qualname__}"] = title or kind.__name__
        config = {
            **CONFIG,
            "title": title or kind.__name__,
            "alias_generator": lambda name: other.get(name, name),
            "json_schema_extra": {"description": (kind.__doc__ or "").partition("\n\n")[0]},
        }
        kind.__pydantic_config__ = config  # type: ignore[attr-defined]
        of_kind: Any = classmethod(core_schema_of)
        kind.__get_pydantic_core_schema__ = of_kind  # type: ignore[attr-defined]
        return kind

    return mark


_TITLES: dict[str, str] = {}  # of described classes, by module and name
_ADAPTERS: dict[Any, TypeAdapter[Any]] = {}


def _adapter(kind: Any) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter

    if kind not in _ADAPTERS:
        _ADAPTERS[kind] = TypeAdapter(kind)
    return _ADAPTERS[kind]


def dump(value: object, *, mode: Literal["json", "python"] = "json") -> dict[str, Any]:
    """The object of JSON, under the names of the file; of Python, infinite figures are floats."""
    found: dict[str, Any] = _adapter(type(value)).dump_python(
        value, mode=mode, by_alias=True, exclude_unset=True
    )
    return found


def load(kind: type[_T], text: str | bytes, *, refusal: Callable[[str, str], str]) -> _T:
    """The object of a JSON text.

    Args:
        kind: a described dataclass, or a model of pydantic.
        refusal: the sentence for a text that is none, of the place in it and what is wrong.

    Raises:
        ValueError: it is none, in the sentence of `refusal`.
    """
    from pydantic import ValidationError

    try:
        check_counts(text, most=_MOST_LISTS)
    except InputError as error:
        raise InputError(refusal("its root", str(error))) from error
    try:
        found: _T = _adapter(kind).validate_json(text, by_alias=True, by_name=False)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = "/".join(str(part) for part in first["loc"]) or "its root"
        value, told = first["input"], first["msg"]
        if isinstance(value, float) and not math.isfinite(value):
            told = f"{_word(value)} is given where a finite number must stand"
        raise InputError(refusal(place, told)) from error
    return found


def schema_of(kind: Any, title: str) -> JsonSchemaValue:
    """JSON Schema (2020-12) of a file that holds one object of a kind.

    >>> schema_of(float, "nothing")["title"]
    'nothing'
    """
    from pydantic.json_schema import GenerateJsonSchema

    class Titled(GenerateJsonSchema):
        """A described class is referred to by its title."""

        def get_defs_ref(self, core_mode_ref: Any) -> Any:
            name, mode = core_mode_ref
            place, _, rest = name.partition(":")
            if place in _TITLES:
                name = f"{place.rpartition('.')[0]}.{_TITLES[place]}:{rest}"
            return super().get_defs_ref((name, mode))

    found = _adapter(kind).json_schema(schema_generator=Titled)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **found, "title": title}


def as_text(value: object) -> str:
    """JSON as the files of a run folder hold it."""
    return json.dumps(finite(value), indent=2, allow_nan=False) + "\n"


def finite(value: Any, *, undefined: str | None = "nan") -> Any:
    """The value with infinite and undefined numbers as the strings that JSON lacks."""
    if isinstance(value, float):
        return undefined if math.isnan(value) else _write(value)
    if isinstance(value, Mapping):
        return {key: finite(held, undefined=undefined) for key, held in value.items()}
    if isinstance(value, list | tuple):
        return [finite(held, undefined=undefined) for held in value]
    return value
