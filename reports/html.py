"""The report as one page: no script, nothing from outside, its own data inside.

The template escapes everything that is not markup of ours, and fails on a name that the report does
not have.
"""

from __future__ import annotations

import base64
import functools
import json
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup

from .chart import key
from .cited import Cited
from .figures import epsilon_figure, epsilon_series, graph_figure, utility_figure
from .folder import finite
from .numbers import is_infinite
from .tables import HEURISTIC
from .verdict import adversary_phrase, epsilon_kind, verdict

__all__ = ["render"]

_SEES = {
    "eavesdropper": "reads every message on every link",
    "neighbour": "the single agent that learns most: what is sent to it or by it",
    "all-others": "everybody but the victim, pooling what they see and the noise they know",
    "final-models": "holds the models that the agents end with, and nothing else",
    "single-message": "one message alone, as papers often account; nobody sees so little",
    "agent": "one agent: what is sent to it or by it, and its own noise",
    "coalition": "agents that pool what they see and the noise they know",
}
_ENCRYPTED = "cannot read the links; sees the released models alone"
_BADGES = {"verified": "✔ verified", "assumed": "○ assumed", "gap": "▲ gap"}


def render(report: Mapping[str, Any], *, images: Mapping[str, bytes] | None = None) -> str:
    """Render a report.

    Args:
        report: the object of privacy.json.
        images: PNG files by the path that the report names; one that is missing is said to be.

    Returns:
        The page, complete in itself.

    Raises:
        KeyError: the report lacks a figure that the page cites.
        jinja2.UndefinedError: the report lacks a field.
    """
    report = finite(report)
    return _template().render(
        report=report,
        run=report["run"],
        plan=report["plan"],
        verdict=verdict(report),
        cite=Cited(report),
        sees=functools.partial(_sees, links=report["run"]["links"]),
        image=functools.partial(_image, images or {}),
        phrase=adversary_phrase,
        kind=epsilon_kind,
        relation=functools.partial(_relation, report["ledger"]["epsilon"]),
        bounded=_bounded(report),
        strongest=_strongest(report["attack"]),
        badges=_BADGES,
        heuristic=HEURISTIC,
        graph=graph_figure(report),
        epsilon_figure=epsilon_figure if epsilon_series(report) else None,
        series=epsilon_series(report),
        key=key,
        utility_figure=utility_figure,
        environment=_flat(report["reproduce"]["environment"]),
        data=json.dumps(report, indent=1, ensure_ascii=False, allow_nan=False),
    )


@functools.cache
def _template() -> Template:
    source = resources.files(__package__ or "overhear.reports").joinpath("report.html")
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.from_string(source.read_text(encoding="utf-8"))


def _sees(name: str, *, links: str) -> str:
    """What an adversary sees, in words."""
    if name == "eavesdropper" and links == "encrypted":
        return _ENCRYPTED
    kind = name.partition(":")[0]
    return _SEES["agent" if name.startswith("neighbour:") else kind] if kind in _SEES else ""


def _relation(spent: Mapping[str, Any], row: Mapping[str, Any]) -> str:
    """How the released epsilon of a row stands to the truth."""
    if is_infinite(spent.get(row["name"], row["epsilon"])):
        return "="
    return "≤" if row["status"] == "proven" else "≥"


def _bounded(report: Mapping[str, Any]) -> int | None:
    """Index of the first adversary with a finite, proven epsilon."""
    spent = report["ledger"]["epsilon"]
    rows = enumerate(report["plan"]["adversaries"])
    return next((i for i, row in rows if _relation(spent, row) == "≤"), None)


def _strongest(attack: Mapping[str, Any] | None) -> int | None:
    """Index of the attack whose reconstructions from the run's own messages are best."""
    found = []
    scenarios: Sequence[Mapping[str, Any]] = attack["scenarios"] if attack else []
    for number, scenario in enumerate(scenarios):
        ssim = {row["name"]: row["mean"]["ssim"] for row in scenario["rows"]}
        if {"defended", "blind guess"} <= ssim.keys():
            found.append((float(ssim["defended"]), number))
    return max(found)[1] if found else None


def _image(images: Mapping[str, bytes], path: str, *, alt: str) -> Markup:
    """A picture inside the page, its pixels kept apart."""
    if path not in images:
        return Markup('<span class="noimage">not shown</span>')
    data = base64.b64encode(images[path]).decode("ascii")
    return Markup('<img alt="{}" src="data:image/png;base64,{}">').format(alt, data)


def _flat(value: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Entries of nested objects, one line each."""
    lines: list[tuple[str, str]] = []
    for name, entry in value.items():
        if isinstance(entry, Mapping):
            lines += _flat(entry, f"{prefix}{name} ")
        else:
            lines.append((prefix + name, str(entry)))
    return lines
