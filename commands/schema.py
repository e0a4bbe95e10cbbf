"""The command `overhear schema`: what run files, policies and outputs may hold."""

from __future__ import annotations

import enum
import json
from importlib import import_module
from typing import Annotated

import typer

from .terminal.terminal import write


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
