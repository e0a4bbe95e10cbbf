"""conformance.json: what checks found, beside the logs that they were about, named by digest.

Whoever wrote the logs can write this file, too. It says what was found when, not that it is true:
who relies on it gives an oracle and checks again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ....attacks.watching.result import Verdict
from ....privacy.durable import write_durably
from ....privacy.errors import InputError
from ....privacy.formats.json_text import read_json
from ....privacy.guarantee import Status
from .outcome import Conformance

FILE = "conformance.json"
_SCHEMA = 1
_MOST = 16 << 20
_KEYS = {"schema", "system", "logs", "status", "said", "rounds", "false_alarm", "checks", "assumed"}


@dataclass(frozen=True, slots=True)
class Held:
    """What an earlier check of the same logs found.

    Attributes:
        status: declared, or checked.
        said: in words.
        rounds: that were looked at.
        passed, failed: names of checks.
    """

    status: Status
    said: str
    rounds: tuple[int, ...]
    passed: tuple[str, ...]
    failed: tuple[str, ...]


def dump(found: Conformance) -> dict[str, Any]:
    """What was found, as an object for JSON."""
    return {
        "schema": _SCHEMA,
        "system": found.log.header.system,
        "logs": _digests(found.log.paths),
        "status": str(found.status),
        "said": found.said,
        "rounds": list(found.rounds),
        "false_alarm": found.false_alarm,
        "checks": [
            {
                "name": one.name,
                "verdict": str(one.verdict),
                "p": one.p,
                "tests": one.tests,
                "words": one.words,
            }
            for one in found.outcomes
        ],
        "assumed": list(found.assumed),
    }


def write_held(found: Conformance) -> Path | None:
    """Write conformance.json beside the logs; nothing where these lie in several folders."""
    folders = {path.resolve().parent for path in found.log.paths}
    if len(folders) != 1:
        return None
    path = found.log.paths[0].parent / FILE
    write_durably(path, (json.dumps(dump(found), indent=2, allow_nan=False) + "\n").encode())
    return path


def read_held(paths: Sequence[Path]) -> Held | None:
    """What conformance.json says of exactly these logs as they are; None where it says nothing.

    Raises:
        ValueError: the file cannot be read.
    """
    path = paths[0].parent / FILE
    if not path.exists():
        return None
    try:
        return _held(read_json(path, _MOST), paths)
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{path} cannot be read ({error!s:.80}); check the logs again with overhear audit-log, "
            "or remove it"
        ) from None


def _held(held: Mapping[str, Any], paths: Sequence[Path]) -> Held | None:
    if not isinstance(held, Mapping) or held.keys() != _KEYS or held["schema"] != _SCHEMA:
        raise InputError("its keys are not those of this version")
    if held["logs"] != _digests(paths):
        return None  # of other logs, or of these before more was released
    checks = {str(one["name"]): Verdict(one["verdict"]) for one in held["checks"]}
    passed = tuple(name for name, verdict in checks.items() if verdict is Verdict.PASSED)
    failed = tuple(name for name, verdict in checks.items() if verdict is Verdict.FAILED)
    status = Status(held["status"])
    if status not in (Status.DECLARED, Status.CHECKED) or (status is Status.CHECKED and failed):
        raise InputError(f"status={status!s:.40} does not fit its checks")
    rounds = tuple(int(one) for one in held["rounds"])
    if status is Status.CHECKED and not (passed and rounds):
        raise InputError("nothing that was looked at makes its status checked")
    said = str(held["said"])
    if status is Status.CHECKED and "rows" not in checks:  # written before there was this check
        status, said = Status.DECLARED, f"{said} but for rows"
    return Held(status, said, rounds, passed, failed)


def _digests(paths: Sequence[Path]) -> dict[str, str]:
    """SHA-256 of each log by its name."""
    found = {}
    for path in paths:
        with path.open("rb") as file:
            found[path.name] = hashlib.file_digest(file, "sha256").hexdigest()
    return found
