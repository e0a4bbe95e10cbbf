"""The report as one page: no script, nothing from outside, its own data inside.

The template escapes everything that is not markup of ours, and fails on a name that the report does
not have.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined, Template
from markupsafe import Markup

from ...runs.described import finite
from ...runs.numbers import is_infinite
from ..cited import Cited
from ..figures.by_round import epsilon_figure, epsilon_series, utility_figure
from ..figures.chart import key
from ..figures.graph import graph_figure, network, network_key
from ..figures.measured import measured_figure
from ..figures.odds import odds_figure
from ..judgement.phrases import HEURISTIC
from ..judgement.row_words import adversary_phrase, epsilon_kind, epsilon_sign
from ..judgement.verdict import Outcome, doubt, head_row, verdict

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
_ROWS = {
    "blind guess": "uses nothing that was sent",
    "no defence": "no clipping, no noise",
    "clipping only": "clipped, no noise",
    "defended": "the run as it was",
}
_MOST_SHOWN = 4  # records of a scenario
_MOST_BYTES = 150_000  # of pictures, before they are written as text


def render(report: Mapping[str, Any], *, images: Mapping[str, bytes] | None = None) -> str:
    """Render a report.

    Args:
        report: the object of privacy.json.
        images: PNG files by the path that the report names; one that is missing is said to be.

    Returns:
        The page, complete in itself. Its embedded data and its digest are those of the file that
        `folder.write_json` writes for the same report.

    Raises:
        KeyError: the report lacks a figure that the page cites.
        jinja2.UndefinedError: the report lacks a field.
    """
    report = finite(report)
    text = json.dumps(report, indent=2, allow_nan=False) + "\n"  # as folder.write_json writes it
    head, found, spent = head_row(report), verdict(report), report["ledger"]["epsilon"]
    by_round = report["epsilon_by_round"]
    return _template().render(
        report=report,
        run=report["run"],
        plan=report["plan"],
        spent=spent,
        head=head,
        verdict=found,
        within=found.outcome is not Outcome.NOT_MET,
        cite=Cited(report),
        sees=functools.partial(_sees, links=report["run"]["links"]),
        image=_Pictures(images or {}),
        phrase=adversary_phrase,
        kind=epsilon_kind,
        sign=epsilon_sign,
        bounded=_bounded(report),
        strongest=_strongest(report["attack"]),
        badges=_BADGES,
        doubt=doubt(report),
        heuristic=HEURISTIC,
        rows_words=_ROWS,
        shown=_MOST_SHOWN,
        unused_of=_unused,
        graph=graph_figure(report),
        network=network(report),
        network_key=network_key,
        odds=odds_figure(report, head["name"]),
        epsilon_figure=epsilon_figure,
        series=epsilon_series(report),
        undrawn=[name for name, line in by_round.items() if any(is_infinite(e) for _, e in line)],
        key=key,
        partial=_partial(report),
        estimators=_estimators(report["audit"]),
        measured_figure=measured_figure(report),
        utility_figure=utility_figure,
        environment=_flat(report["reproduce"]["environment"]),
        data=text,
        digest=hashlib.sha256(text.encode()).hexdigest(),
    )


@functools.cache
def _template() -> Template:
    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        loader=FunctionLoader(_source),
    )
    return environment.get_template("report.html")


def _source(name: str) -> str:
    """A template, which lies beside this file."""
    beside = resources.files(__package__ or "overhear.reports")
    return beside.joinpath(name).read_text(encoding="utf-8")


def _sees(name: str, *, links: str) -> str:
    """What an adversary sees, in words."""
    if name == "eavesdropper" and links == "encrypted":
        return _ENCRYPTED
    kind = name.partition(":")[0]
    return _SEES["agent" if name.startswith("neighbour:") else kind] if kind in _SEES else ""


def _bounded(report: Mapping[str, Any]) -> int | None:
    """Index of the first adversary with a finite, proven epsilon."""
    spent = report["ledger"]["epsilon"]
    rows = enumerate(report["plan"]["adversaries"])
    return next((i for i, row in rows if epsilon_sign(row, spent[row["name"]]) == "≤"), None)


def _strongest(attack: Mapping[str, Any] | None) -> int | None:
    """Index of the attack whose reconstructions from the run's own messages are best."""
    found = []
    scenarios: Sequence[Mapping[str, Any]] = attack["scenarios"] if attack else []
    for number, scenario in enumerate(scenarios):
        ssim = {row["name"]: row["mean"]["ssim"] for row in scenario["rows"]}
        if {"defended", "blind guess"} <= ssim.keys():
            found.append((float(ssim["defended"]), number))
    return max(found)[1] if found else None


def _unused(scenario: Mapping[str, Any]) -> list[str]:
    """What of the victim the attack on the run's own messages does not use."""
    return [
        str(name)
        for row in scenario["rows"]
        if row["name"] == "defended"
        for name in row.get("unused", ())
    ]


def _partial(report: Mapping[str, Any]) -> bool:
    """Whether the audit ran fewer rounds than the run."""
    rounds = report["audit"].get("rounds") if report["audit"] else None
    return rounds is not None and rounds < report["run"]["rounds"]


def _estimators(audit: Mapping[str, Any] | None) -> dict[str, str]:
    """What each estimator of the audit rests on, once for all adversaries."""
    rows: Sequence[Mapping[str, Any]] = audit["adversaries"] if audit else []
    return {
        str(one["name"]): str(one["assumptions"]).rstrip(".")
        for row in rows
        for one in row.get("estimators", ())
    }


class _Pictures:
    """Pictures inside the page, their pixels kept apart, until the page would grow too large."""

    def __init__(self, images: Mapping[str, bytes]) -> None:
        self._images = images
        self._left = _MOST_BYTES

    def __call__(self, path: str, *, alt: str) -> Markup:
        held = self._images.get(path)
        if held is None:
            return Markup('<span class="noimage">not shown</span>')
        if len(held) > self._left:
            return Markup('<span class="noimage">see the run folder</span>')
        self._left -= len(held)
        data = base64.b64encode(held).decode("ascii")
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
