"""Where a run file may name something of one's own, and what stands there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...training.own.names import is_own
from ...training.own.objects import OBJECT, give

__all__ = ["ATTACK_KEYS", "OWN_KEYS", "coded", "named", "names_of", "with_names"]

OWN_KEYS = (("data", "name"), ("model", "name"), ("model", "loss"), ("algorithm", "name"))
ATTACK_KEYS = (("attack", "denoiser"),)  # what a run is attacked with is no part of what it is


def named(
    tables: Mapping[str, object], keys: Sequence[tuple[str, str]] = OWN_KEYS
) -> dict[str, str]:
    """The names of one's own in the tables of a run file, by key.

    Args:
        tables: of the run file.
        keys: where they may stand; by default all that say what the run is.

    >>> named({"model": {"name": "mine:net"}, "data": {"name": "digits"}})
    {'[model] name': 'mine:net'}
    """
    found = {}
    for table, key in keys:
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


def coded(names: Mapping[str, str]) -> dict[str, str]:
    """Those of some names that are imported, and not given by Python."""
    return {key: name for key, name in names.items() if not name.startswith(OBJECT)}


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
