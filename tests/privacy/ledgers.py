"""Ledgers whose lines were changed by somebody who computed every digest anew."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from overhear.privacy.releases.chained_file import Chain


def chained(*lines: dict[str, Any] | bytes) -> bytes:
    """A ledger of these objects, and of these bytes as an interruption would leave them."""
    chain, found = Chain(), b""
    for line in lines:
        if isinstance(line, bytes):
            added = line
        else:
            before = " " if "resumed_after" in line else ""
            added = chain.line(line, before=before, most=1 << 30)
        chain.add(added)
        found += added
    return found


def edit_ledger(path: Path, change: Callable[[list[dict[str, Any]]], object]) -> None:
    """Change the objects of a ledger, with digests that fit."""
    lines = [json.loads(line) for line in path.read_bytes().splitlines()]
    for line in lines:
        del line["chain"]
    change(lines)
    path.write_bytes(chained(*lines))
