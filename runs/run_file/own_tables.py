"""Where a run file may name something of one's own, and what stands there."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ...privacy.formats.toml_text import toml_value
from ...training.own.names import is_own
from ...training.own.objects import OBJECT, give

OWN_KEYS = (("data", "name"), ("model", "name"), ("model", "loss"), ("algorithm", "name"))
ATTACK_KEYS = (("attack", "denoiser"),)  # what a run is attacked with is no part of what it is


def named(tables: Mapping[str, object]) -> dict[str, str]:
    """The names of one's own in the tables of a run file that say what the run is, by key.

    >>> named({"model": {"name": "mine:net"}, "data": {"name": "digits"}})
    {'[model] name': 'mine:net'}
    """
    found = {}
    for table, key in OWN_KEYS:
        held = tables.get(table)
        value = held.get(key) if isinstance(held, Mapping) else None
        if isinstance(value, str) and is_own(value):
            found[f"[{table}] {key}"] = value
    return found


def names_of(config: object) -> dict[str, str]:
    """The names of one's own in a run file that was read, by key.

    Args:
        config: with a table as an attribute for each key.
    """
    tables: dict[str, dict[str, object]] = {}
    for table, key in OWN_KEYS:
        tables.setdefault(table, {})[key] = getattr(getattr(config, table, None), key, None)
    return named(tables)


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """A name of one's own where it stands in a run file, with what the file hands to it."""

    key: str
    """Of the run file, such as "[data] name"."""
    name: str
    """Of the object."""
    options: Mapping[str, object] = field(default_factory=dict)
    """Arguments of a data function, or hyper-parameters of an algorithm."""

    @property
    def line(self) -> str:
        """The call as a policy names it, in TOML; equal calls have equal lines.

        >>> Call(key="[data] name", name="mine:rows", options={"path": "a.npy", "test": True}).line
        '{key = "data.name", name = "mine:rows", options = {"path" = "a.npy", "test" = true}}'
        """
        key = self.key.removeprefix("[").replace("] ", ".")
        given = f", options = {toml_value(self.options, comparable=True)}" if self.options else ""
        return f"{{key = {json.dumps(key)}, name = {json.dumps(self.name)}{given}}}"

    @property
    def is_code(self) -> bool:
        """Whether the name is imported, and not given by Python."""
        return not self.name.startswith(OBJECT)


def calls_of(
    tables: Mapping[str, object],
    keys: Sequence[tuple[str, str]] = OWN_KEYS,
    *,
    handed: Mapping[str, Callable[[Mapping[str, object]], dict[str, object]]],
) -> list[Call]:
    """The names of one's own in the tables of a run file, with what is handed to them.

    Args:
        handed: by table, what of its values is handed to what stands at `name`.
    """
    found = []
    for table, key in keys:
        held = tables.get(table)
        if isinstance(held, Mapping) and isinstance(value := held.get(key), str) and is_own(value):
            options = handed[table](held) if table in handed and key == "name" else {}
            found.append(Call(key=f"[{table}] {key}", name=value, options=options))
    return found


def with_names(tables: Mapping[str, object]) -> dict[str, object]:
    """Tables in which objects that stand where a name may stand are given, and named.

    Raises:
        InputError: nothing could be digested; see `give`.
    """
    found = {
        name: dict(held) if isinstance(held, Mapping) else held for name, held in tables.items()
    }
    for table, key in (*OWN_KEYS, *ATTACK_KEYS):
        held = found.get(table)
        if (
            isinstance(held, dict)
            and held.get(key) is not None
            and not isinstance(held[key], _FILE)
        ):
            held[key] = give(held[key], key=f"[{table}] {key}")
    return found


_FILE = (str, bool, int, float)  # what a file could say there, and the types of the tables judge
