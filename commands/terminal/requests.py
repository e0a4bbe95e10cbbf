"""A request that a command takes, as its options: one for each field."""

from __future__ import annotations

import dataclasses
import enum
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, get_args, get_origin

import typer

from ...runs.requests import RequestField, fields_of
from . import completion

_COMPLETIONS: Mapping[str, Callable[[str], list[str]]] = {"preset": completion.presets}


def with_requests(command: Callable[..., None]) -> Callable[..., None]:
    """The command with the fields of the requests among its parameters, in place of these."""
    parameters: list[inspect.Parameter] = []
    requests: dict[str, type] = {}
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        if dataclasses.is_dataclass(parameter.annotation):
            requests[parameter.name] = parameter.annotation  # type: ignore[assignment]
            fields = sorted(fields_of(parameter.annotation).values(), key=_rank)  # type: ignore[arg-type]
            parameters += [_parameter(field) for field in fields]
        else:
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))

    @functools.wraps(command)
    def run(**given: Any) -> None:
        made = {
            name: request(
                **{field.name: _taken(field, given.pop(field.name)) for field in fields.values()}
            )
            for name, request in requests.items()
            for fields in [fields_of(request)]
        }
        command(**made, **given)

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined] # typer reads it
    return run


def _rank(field: RequestField) -> int:
    """Arguments stand first, then what has to be given."""
    return 0 if field.is_argument else 1 if field.default is dataclasses.MISSING else 2


def _parameter(field: RequestField) -> inspect.Parameter:
    """What typer makes an option of, or an argument."""
    kind, settings = field.kind, {"metavar": field.metavar, "help": field.help}
    if get_origin(kind) is Literal:
        kind = enum.StrEnum(field.name, {name: name for name in get_args(kind)})
    if field.container is tuple:
        kind = str
    elif field.container is not None:
        kind = list[kind]
    if not field.is_argument and field.name in _COMPLETIONS:
        settings["autocompletion"] = _COMPLETIONS[field.name]
    # The one spelling of an option without a value, which would else have its opposite too.
    flag = (f"--{field.name.replace('_', '-')}",) if field.kind is bool else ()
    is_required = field.default is dataclasses.MISSING
    default = None if field.default == () else field.default
    return inspect.Parameter(
        field.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty if is_required else default,
        annotation=Annotated[
            kind if default is not None else kind | None,
            typer.Argument(**settings) if field.is_argument else typer.Option(*flag, **settings),
        ],
    )


def _taken(field: RequestField, value: Any) -> Any:
    """The value of a field, of what typer gives."""
    if field.container is tuple and isinstance(value, str):
        return field.read(value)
    if isinstance(value, enum.Enum):
        return value.value
    return field.default if value is None else tuple(value) if isinstance(value, list) else value
