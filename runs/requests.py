"""What a command is asked, as one class: options, keywords of a function, metadata of a file.

A request is a frozen dataclass. A field is an option `--field-name`, or an argument before
`KW_ONLY`; the first paragraph of the docstring below it is its help, and a text in its `Annotated`
stands for a value there, behind another name of the option than the field's, if any. `tuple[int,
...]` is one text, numbers that commas separate; a `Sequence` is an option that may be repeated; a
`Literal` is one of a few names.
"""

from __future__ import annotations

import ast
import dataclasses
import difflib
import inspect
import textwrap
from collections.abc import Mapping, Sequence
from itertools import pairwise
from types import NoneType
from typing import Any, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

R = TypeVar("R")


class RequestField(NamedTuple):
    """One thing that can be asked.

    Attributes:
        name: of the keyword.
        kind: type of a value, or of each of several.
        container: `tuple` of numbers in one text, `Sequence` of an option that may be repeated.
        flag: the option.
        metavar: what stands for the value in a help text.
        help: the first paragraph of its docstring.
        default: `dataclasses.MISSING` of what has to be given.
        is_argument: whether it is given by its place, without a name.
    """

    name: str
    kind: Any
    container: Any
    flag: str
    metavar: str | None
    help: str
    default: Any
    is_argument: bool

    def read(self, text: str) -> Any:
        """The value of a text, as it stands in metadata, or after the option.

        Raises:
            ValueError: something is no number, or neither true nor false.
        """
        from ..privacy.errors import InputError  # the command line starts without numpy

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

    >>> from overhear.runs.attack.gradients.request import BatchRequest
    >>> fields_of(BatchRequest)["mean"].read("0.5, -1")
    (0.5, -1.0)
    """
    hints, texts = get_type_hints(request, include_extras=True), _docstrings(request)
    found = {}
    for field in dataclasses.fields(request):
        kind, flag, metavar = hints[field.name], f"--{field.name.replace('_', '-')}", None
        if hasattr(kind, "__metadata__"):
            kind, metavar = get_args(kind)
        if metavar is not None and metavar.startswith("--"):
            flag, _, metavar = metavar.partition(" ")
        if NoneType in get_args(kind):
            (kind,) = (one for one in get_args(kind) if one is not NoneType)
        container = next((one for one in (tuple, Sequence) if get_origin(kind) is one), None)
        found[field.name] = RequestField(
            field.name,
            kind if container is None else get_args(kind)[0],
            container,
            flag,
            metavar or None,
            texts[field.name].partition("\n\n")[0].replace("\n", " "),
            field.default,
            not field.kw_only,
        )
    return found


def request_of(request: type[R], given: Mapping[str, Any], *, of: str) -> R:
    """The request of keywords.

    Args:
        request: its class.
        given: values by name.
        of: what takes them, for a refusal.

    Raises:
        TypeError: there is no such keyword, or one is missing.
        ValueError: a value that the request refuses.
    """
    from ..privacy.errors import InputTypeError

    fields = {field.name: field for field in dataclasses.fields(request)}  # type: ignore[arg-type]
    for name in given:
        if name not in fields:
            close = difflib.get_close_matches(name, list(fields), n=1)
            remedy = f"did you mean {close[0]}?" if close else f"it takes {', '.join(fields)}"
            raise InputTypeError(f"{of} takes no {name}; {remedy}")
    for name, field in fields.items():
        if field.default is dataclasses.MISSING and name not in given:
            raise InputTypeError(f"{of} needs {name}")
    return request(**given)


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
