"""The command `overhear schema`: what run files, policies, reports and audits may hold."""

from __future__ import annotations

import enum
from typing import Annotated

import typer

from .terminal.terminal import print_json


class SchemaName(enum.StrEnum):
    """What has a schema."""

    RUN = "run"
    POLICY = "policy"
    REPORT = "report"
    TOTAL = "total"
    PERSON = "person"
    MEMBERSHIP = "membership"
    LAST_MODEL = "last-model"
    AUDIT = "audit"


def schema(what: Annotated[SchemaName, typer.Argument(help="What to describe.")]) -> None:
    """Print the JSON schema of a run file, a policy or an output."""
    if what is SchemaName.RUN:
        from ..runs.run_file.run_file import run_file_schema

        print_json(run_file_schema())
    elif what is SchemaName.POLICY:
        from ..reports.judgement.policy import policy_schema

        print_json(policy_schema())
    elif what is SchemaName.TOTAL:
        from ..reports.schema import total_schema

        print_json(total_schema())
    elif what is SchemaName.PERSON:
        from ..reports.schema import person_total_schema

        print_json(person_total_schema())
    elif what is SchemaName.MEMBERSHIP:
        from ..runs.audit.evidence import membership_schema

        print_json(membership_schema())
    elif what is SchemaName.LAST_MODEL:
        from ..runs.audit.evidence import last_model_schema

        print_json(last_model_schema())
    elif what is SchemaName.AUDIT:
        from ..runs.audit.evidence_schema import audit_schema

        print_json(audit_schema())
    else:
        from ..reports.schema import report_schema

        print_json(report_schema())
