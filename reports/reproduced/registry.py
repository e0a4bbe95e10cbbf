"""Every table and figure that can be reproduced, by its name, as the files of the papers say it.

cites                its paper in `privacy.published.citations`
[shared]             values that entries name
[shared.smoke]       tables that are named by the key `like`, one or several, and completed
[entry.NAME]         fields of an `Entry`; "$name" is a shared value, spliced inside a list
[entry.NAME.printed] fields of its `Printed`: the paper's own figures
"""

from __future__ import annotations

import difflib
import itertools
import tomllib
from collections.abc import Iterator, Mapping
from importlib import resources
from typing import Any

from ...privacy.errors import InputError
from ...privacy.published.citations import CITATIONS
from .closed_forms import noise_energies
from .paper_result import SCALES, Close, Entry, Order, Paper, Printed, Scale, Trend

_PAPERS = ("dpdl", "dpmixsgd", "dyn_d2p", "whisper")
_CLAIMS = {"order": Order, "trend": Trend, "close": Close}
_CLOSED = {"noise-energies": noise_energies}


def _entries(paper: str) -> Iterator[Entry]:
    """The entries of a paper's file."""
    text = (
        resources.files("overhear.reports.reproduced").joinpath(f"{paper}.toml").read_text("utf-8")
    )
    held = tomllib.loads(text)
    cited = CITATIONS[held["cites"]]
    of = Paper(name=cited.name, source=f"{cited.full}{held.get('also', '')}")
    for name, table in held["entry"].items():
        fields = _filled(table, held["shared"])
        scales = fields.pop("scales", {})
        yield Entry(
            name=name,
            paper=of,
            scales={at: Scale(**scales[at]) for at in SCALES if at in scales},
            printed=Printed(**table) if (table := fields.pop("printed", {})) else None,
            claims=tuple(_CLAIMS[one.pop("kind")](**one) for one in fields.pop("claims", ())),
            closed=_CLOSED.get(fields.pop("closed", "")),
            **fields,
        )


def _filled(value: Any, shared: Mapping[str, Any]) -> Any:
    """A value with the shared ones in the places of their names."""
    if isinstance(value, str) and value.startswith("$"):
        return _filled(shared[value[1:]], shared)
    if isinstance(value, list):
        items = [(one, _filled(one, shared)) for one in value]
        lists = (of if isinstance(one, str) and isinstance(of, list) else [of] for one, of in items)
        return list(itertools.chain.from_iterable(lists))
    if not isinstance(value, dict):
        return value
    own = {key: _filled(one, shared) for key, one in value.items() if key != "like"}
    like = value.get("like", [])
    found: dict[str, Any] = {}
    for name in [like] if isinstance(like, str) else like:
        found = _merged(found, _filled(shared[name], shared))
    return _merged(found, own)


def _merged(first: Mapping[str, Any], then: Mapping[str, Any]) -> dict[str, Any]:
    """Both tables, key by key; where both have one that is no table, the second's."""
    found = dict(first)
    for key, value in then.items():
        both = isinstance(value, dict) and isinstance(found.get(key), dict)
        found[key] = _merged(found[key], value) if both else value
    return found


ENTRIES: dict[str, Entry] = {one.name: one for paper in _PAPERS for one in _entries(paper)}


def entry_named(name: str) -> Entry:
    """The entry of a name.

    Raises:
        ValueError: there is none; the sentence names those that are near.
    """
    if name in ENTRIES:
        return ENTRIES[name]
    close = difflib.get_close_matches(name.lower(), ENTRIES, n=3, cutoff=0.5)
    remedy = f"did you mean {' or '.join(close)}? " if close else ""
    raise InputError(
        f"no table or figure is called {name!r}; {remedy}`overhear reproduce --list` names them"
    )
