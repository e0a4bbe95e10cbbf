"""What a command is asked, as one class: options, keywords of a function, metadata of a file.

A request is a frozen dataclass. A field is an option `--field-name`, or an argument before
`KW_ONLY`; the first paragraph of the docstring below it is its help. In its `Annotated` may stand
a text, "--option VALUE" or "VALUE" alone; a tuple of the names that it may be; and a function that
reads its text. `tuple[int, ...]` is one text, numbers that commas separate; a `Sequence` is an
option that may be repeated.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import operator
import textwrap
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from types import NoneType
from typing import Any, NamedTuple, ParamSpec, TypeVar, get_args, get_origin, get_type_hints

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class RequestField(NamedTuple):
    """One thing that can be asked.

    Attributes:
        kind: type of a value, or of each of several.
        container: `tuple` of numbers in one text, `Sequence` of an option that may be repeated.
        metavar: what stands for the value in a help text.
        choices: the names that it may be.
        reader: of its text.
        help: the first paragraph of its docstring.
        default: `dataclasses.MISSING` of what has to be given.
        is_argument: whether it is given by its place, without a name.
    """

    name: str
    kind: Any
    container: Any
    flag: str
    metavar: str | None
    choices: tuple[str, ...]
    reader: Callable[[str], Any] | None
    help: str
    default: Any
    is_argument: bool

    def read(self, text: str) -> Any:
        """The value of a text, as it stands in metadata, or after the option.

        Raises:
            ValueError: something is no number, or neither true nor false.
        """
        from ..privacy.errors import InputError  # the command line starts without numpy

        if self.reader is not None:
            return self.reader(text)
        if self.kind is bool:
            if text.lower() not in ("true", "false"):
                raise InputError(f"{self.name}={text!r} must be true or false")
            return text.lower() == "true"
        try:
            values = [self.kind(part.strip()) for part in text.split(",")]
        except ValueError as error:
            what = "whole numbers" if self.kind is int else "numbers"
            raise InputError(f"{self.name}={text!r} must be {what} separated by commas") from error
        if self.container is tuple:
            return tuple(values)
        if len(values) > 1:
            raise InputError(f"{self.name}={text!r} must be one number")
        return values[0]


def fields_of(request: type) -> dict[str, RequestField]:
    """The fields of a request, by name.

    >>> from overhear.runs.attack.request import BatchRequest
    >>> fields_of(BatchRequest)["mean"].read("0.5, -1")
    (0.5, -1.0)
    """
    hints, texts = get_type_hints(request, include_extras=True), _docstrings(request)
    found = {}
    for field in dataclasses.fields(request):
        kind, flag, metavar = hints[field.name], f"--{field.name.replace('_', '-')}", ""
        choices, reader = (), None
        # Beside a type stand choices, a reader, and a flag or metavar.
        for item in getattr(kind, "__metadata__", ()):
            if isinstance(item, tuple):
                choices = item
            elif callable(item):
                reader = item
            else:
                named, _, rest = item.partition(" ")
                flag, metavar = (named, rest) if named.startswith("--") else (flag, item)
        # The type without None, and of containers that of an entry.
        kind = get_args(kind)[0] if hasattr(kind, "__metadata__") else kind
        if NoneType in get_args(kind):
            kind = functools.reduce(operator.or_, [k for k in get_args(kind) if k is not NoneType])
        container = next((one for one in (tuple, Sequence) if get_origin(kind) is one), None)
        found[field.name] = RequestField(
            field.name,
            kind if container is None else get_args(kind)[0],
            container,
            flag,
            metavar or None,
            choices,
            reader,
            texts[field.name].partition("\n\n")[0].replace("\n", " "),
            field.default,
            not field.kw_only,
        )
    return found


def request_of(request: type[R], given: Mapping[str, object], *, of: str) -> R:
    """The request of keywords.

    Args:
        of: what takes them, for a refusal.

    Raises:
        TypeError: there is no such keyword, or one is missing.
        ValueError: a value that the request refuses.
    """
    from ..privacy.errors import InputTypeError, did_you_mean

    fields = {field.name: field for field in dataclasses.fields(request)}  # type: ignore[arg-type]
    for name in given:
        if name not in fields:
            remedy = did_you_mean(name, fields) or f"; it takes {', '.join(fields)}"
            raise InputTypeError(f"{of} takes no {name}{remedy}")
    for name, field in fields.items():
        if field.default is dataclasses.MISSING and name not in given:
            raise InputTypeError(f"{of} needs {name}")
    return request(**given)


def by_keywords(request: Callable[P, R], function: Callable[[R], T], name: str) -> Callable[P, T]:
    """A function of a request as one of the request's fields, with their types.

    Args:
        name: of the function that is made, which stands in the module of the other.
    """

    @functools.wraps(function)
    def called(*arguments: P.args, **keywords: P.kwargs) -> T:
        if not arguments:
            return function(request_of(request, keywords, of=name))  # type: ignore[arg-type]
        return function(request(*arguments, **keywords))

    called.__name__ = called.__qualname__ = name
    returned = inspect.signature(function).return_annotation
    called.__signature__ = inspect.signature(request).replace(  # type: ignore[attr-defined]
        return_annotation=returned
    )
    return called


def _docstrings(request: type) -> dict[str, str]:
    """The text below each field, by name, those of base classes included."""
    found: dict[str, str] = {}
    for one in reversed(request.__mro__[:-1]):
        (held,) = ast.parse(textwrap.dedent(inspect.getsource(one))).body
        for field, text in pairwise(held.body):  # type: ignore[attr-defined]
            match field, text:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(ast.Constant(str(words))):
                    found[name] = inspect.cleandoc(words)
    return found
