"""Every table and figure that can be reproduced, by its name."""

from __future__ import annotations

import difflib

from ...privacy.errors import InputError
from .dpdl import ENTRIES as DPDL
from .dpdl_attacks import ENTRIES as DPDL_ATTACKS
from .dpmixsgd import ENTRIES as DPMIXSGD
from .dyn_d2p import ENTRIES as DYN_D2P
from .entry import Entry
from .whisper import ENTRIES as WHISPER

__all__ = ["ENTRIES", "entry_named"]

ENTRIES: dict[str, Entry] = {**DPDL, **DPDL_ATTACKS, **DPMIXSGD, **DYN_D2P, **WHISPER}


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
