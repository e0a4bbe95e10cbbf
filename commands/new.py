"""Files to start from, `overhear new`, and what files and outputs may hold, `overhear schema`."""

from __future__ import annotations

import enum
import json
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from .terminal.terminal import write


class What(enum.StrEnum):
    """What a file is for."""

    RUN = "run"
    ALGORITHM = "algorithm"
    POLICY = "policy"
    OPACUS_POLICY = "opacus-policy"
    FLOWER_POLICY = "flower-policy"
    SYSTEM = "system"
    CI = "ci"


_FILES = {
    What.RUN: "run.toml",
    What.ALGORITHM: "algorithm.py.txt",  # a template of a module is no module of ours
    What.POLICY: "policy.toml",
    What.OPACUS_POLICY: "opacus-policy.toml",
    What.FLOWER_POLICY: "flower-policy.toml",
    What.SYSTEM: "system.jsonl",
    What.CI: "ci.yml",
}


def new(
    what: Annotated[What, typer.Argument(metavar="what", help="What to start from.")],
    file: Annotated[
        Path | None,
        typer.Argument(metavar="FILE", help="Where to write it; without FILE it is printed."),
    ] = None,
) -> None:
    """Write a commented file to start from: run, algorithm, policy.

    It is a run file, a module with an algorithm, a policy of a run or of a system elsewhere, a log
    of what such a system releases, or a workflow of GitHub that holds a run file and a log to a
    policy at every change. Without FILE it is printed; a folder of FILE that is missing is made. A
    file that exists is never written over.
    """
    text = template(what, module=None if file is None else file.stem)
    if file is None:
        write(text, end="")
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    try:
        with file.open("x", encoding="utf-8") as opened:
            opened.write(text)
    except FileExistsError:
        from ..privacy.errors import InputError

        raise InputError(
            f"{file} is there already and is not written over; name another file"
        ) from None
    write(f"Written to {file}.")


def template(what: What, *, module: str | None = None) -> str:
    """The text of a template.

    Args:
        module: the name under which an algorithm will be imported; None where it is not known.

    >>> template(What.RUN).splitlines()[0]
    '# A run of decentralized training, and how much one record may cost.'
    """
    text = files("overhear.commands").joinpath("templates", _FILES[what])
    found = text.read_text(encoding="utf-8")
    if what is What.CI:
        from .. import __version__

        return found.replace("VERSION", __version__)
    if what is What.ALGORITHM:
        return found.replace("FILE", module or "mine")
    return found


class SchemaName(enum.StrEnum):
    """What has a schema."""

    RUN = "run"
    POLICY = "policy"
    PLAN = "plan"
    TRAIN = "train"
    SWEEP = "sweep"
    REPORT = "report"
    TOTAL = "total"
    PERSON = "person"
    ATTACK = "attack"
    INVERT = "invert"
    AUDIT = "audit"
    MEMBERSHIP = "membership"
    LAST_MODEL = "last-model"


# Where each is made: a module, and a function; or a type and its title.
_MADE = {
    SchemaName.RUN: ("runs.run_file.run_file", "run_file_schema", ""),
    SchemaName.POLICY: ("reports.judgement.policy", "policy_schema", ""),
    SchemaName.PLAN: ("runs.plan.schema", "Planned", "overhear plan --format json, version 1"),
    SchemaName.TRAIN: ("runs.folder.records", "TrainSummary", "overhear train --format json"),
    SchemaName.SWEEP: ("runs.sweep.results", "PointResult", "a run of overhear sweep"),
    SchemaName.REPORT: ("reports.schema", "report_schema", ""),
    SchemaName.TOTAL: ("reports.schema", "Total", "overhear total --format json, version 1"),
    SchemaName.PERSON: (
        "reports.schema",
        "PersonTotal",
        "overhear person --format json, version 1",
    ),
    SchemaName.ATTACK: ("runs.audit.evidence_schema", "Attack", "attack.json of a run, version 1"),
    SchemaName.INVERT: (
        "runs.attack.gradients_schema",
        "GradientAttack",
        "attack.json of overhear invert, version 1",
    ),
    SchemaName.AUDIT: ("runs.audit.evidence_schema", "Audit", "audit.json of overhear, version 2"),
    SchemaName.MEMBERSHIP: (
        "runs.audit.evidence",
        "Membership",
        "membership.json of overhear, version 1",
    ),
    SchemaName.LAST_MODEL: (
        "runs.audit.evidence",
        "LastModel",
        "last-model.json of overhear, version 1",
    ),
}


def schema(what: Annotated[SchemaName, typer.Argument(help="What to describe.")]) -> None:
    """Print the JSON schema of a run file, a policy or an output."""
    from ..privacy.formats.codec import schema_of

    module, name, title = _MADE[what]
    found = getattr(import_module(f"overhear.{module}"), name)
    write(json.dumps(schema_of(found, title) if title else found(), indent=2))
