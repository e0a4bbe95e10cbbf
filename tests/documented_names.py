"""The names that docs/api.md shows, and what their docstrings say first."""

import importlib
import inspect
from collections.abc import Mapping, Sequence
from typing import Any, get_args

import overhear

PACKAGES = ("privacy", "attacks")  # shown is what these export; of the others what is chosen here
CHOSEN: dict[str, dict[str, tuple[str, ...]]] = {
    "overhear": {"overhear": tuple(name for name in overhear.__all__ if name[0] != "_")},
    "training": {
        "overhear.training": (),  # all that it exports
        "overhear.training.accounts.traced_twice": ("check_account", "TracedTwice"),
        "overhear.training.engine.exchange": ("Ranks", "MissingRank", "share_root"),
        "overhear.training.engine.links": ("Gathered",),
    },
    "audit": {
        "overhear.attacks.audit.audit": ("audit", "claim_of", "hosts_of"),
        "overhear.attacks.audit.audited": ("Audited", "Verdict"),
        "overhear.attacks.audit.game": ("CanaryGame",),
        "overhear.attacks.checks.checks": ("engine_checks",),
        "overhear.attacks.checks.result": ("Check",),
        "overhear.attacks.bounds.mechanism": ("Claim",),
        "overhear.attacks.bounds.lower_bounds": (
            "Guesses",
            "LowerBound",
            "ideal",
            "total_error",
        ),
        "overhear.attacks.bounds.one_run_bounds": ("one_run_f_dp", "one_run_pure", "ranked"),
        "overhear.attacks.foreign.claimed": ("claimed", "claim_of_log", "parse_claim", "Claimed"),
        "overhear.attacks.foreign.scores_audit": ("audit_scores", "ScoresAudit"),
        "overhear.attacks.foreign.audit_training": (
            "canaries",
            "Planted",
            "PlantedScores",
            "audit_training",
            "Observed",
            "TrainingAudit",
        ),
        "overhear.attacks.foreign.inference": ("membership", "MembershipResult"),
        "overhear.testing": (),
        "overhear.testing.neighbours": ("Replayed",),
    },
    "adapters": {
        "overhear.adapters.opacus.watch": ("watch",),
        "overhear.adapters.opacus.oracle": ("from_history", "DeclaredHistory"),
        "overhear.adapters.flower.record": ("record",),
    },
    "reports": {
        "overhear.runs.run_file.run_file": ("RunFile", "load_run_file", "run_file_schema"),
        "overhear.runs.plan.plan": ("Plan", "make_plan"),
        "overhear.runs.plan.sweep": ("plan_sweep",),
        "overhear.runs.folder.run": ("train_run",),
        "overhear.runs.folder.resume": ("resume_run",),
        "overhear.runs.stop": ("Stop", "Interrupted"),
        "overhear.runs.attack.attack": ("attack_run",),
        "overhear.runs.audit.audit": ("audit_config", "audit_folder"),
        "overhear.reports.document.collect": ("collect", "read_checked_run", "report_run"),
        "overhear.reports.schema": ("report_schema",),
        "overhear.reports.judgement.policy": ("Policy", "load_policy", "policy_schema"),
        "overhear.reports.judgement.gate": ("decide",),
        "overhear.reports.compare": ("compare_runs",),
        "overhear.reports.total.total": ("total_of_runs",),
        "overhear.commands.cli": ("main",),
    },
}


# What constants are that hold neither names nor a string.
CONSTANTS = {
    "ALL": "The whole data of an agent in place of a batch, for `Round.local_update`.",
    "NUMBERS": "The block of values that are one number an agent, for `Round.postprocess`.",
}


def table_of(name: str) -> str:
    """The names that a package exports, or those of `CHOSEN`, as Markdown."""
    whole: Mapping[str, Sequence[str] | None]
    whole = CHOSEN.get(name) or {f"overhear.{name}": None}
    lines = ["| name | what it is | stands in |", "| --- | --- | --- |"]
    for place, names in whole.items():
        module = importlib.import_module(place)
        for public in names or module.__all__:
            value = getattr(module, public)
            home = getattr(value, "__module__", place) if _has_docstring(value) else place
            told = (CONSTANTS.get(public) or _told(value)).replace("|", "\\|")
            lines.append(f"| `{public}` | {told} | `{home.removeprefix('overhear.')}` |")
    return "\n".join(lines) + "\n"


def _has_docstring(value: Any) -> bool:
    return inspect.isclass(value) or inspect.isfunction(value)


def _told(value: Any) -> str:
    """The first sentence of a docstring; of a constant, what it holds."""
    if _has_docstring(value):
        told = (inspect.getdoc(value) or "").partition("\n\n")[0].replace("\n", " ")
        told = told.replace("``", "`").removeprefix("Return ")
        return told[:1].upper() + told[1:]
    if isinstance(value, (tuple, Mapping)):
        return "Names: " + ", ".join(f"`{key}`" for key in value) + "."
    if isinstance(value, str):
        return f"The string `{value}`."
    if name := getattr(value, "name", None):
        return f"The {type(value).__name__} `{name}`."
    return " or ".join(f"`{part.__name__}`" for part in get_args(value)) + "."
