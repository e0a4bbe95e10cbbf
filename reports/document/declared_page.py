"""A declared system as Markdown and as one page without a script.

The page is not that of a run: its word is "declared" where that one says "proven", it has no tick,
and what it rests on stands beside the figures.
"""

from __future__ import annotations

import json
from pathlib import Path

from ...privacy.durable import SHOWN, write_durably
from ...privacy.formats.codec import finite
from ...privacy.guarantee import Status
from ...privacy.plain_text import markdown_table, markdown_text, plain
from ...runs.numbers import bound, small
from ..judgement.sentence import adversary_words
from ..status import STATUSES
from ..template import template
from .declared import DELTA, DeclaredReport, declared_report

_JSON, _PAGE = "declared.json", "report.html"
HEADS = ("adversary", "victim", "epsilon", "status", "because")


def headline(found: DeclaredReport) -> str:
    """What the list costs, in a sentence."""
    account = found.account
    worst = next(iter(account.guarantees.values()))
    if found.held is not None and found.held.failed:
        return "The list is contradicted by what was kept of the releases"
    who, unit = adversary_words(worst.adversary, worst.worst_adversary), worst.unit
    if worst.status is Status.NO_PROTECTION:
        return f"As declared, nothing protects a {unit} from {who}"
    return (
        f"As declared, epsilon is at most {bound(worst.epsilon)} against {who}, for one {unit} at "
        f"delta {small(worst.delta)}"
    )


def _word(found: DeclaredReport) -> str:
    """What stands above the headline."""
    if found.held is not None and found.held.failed:
        return "contradicted"
    checked = found.account.status is Status.CHECKED
    return f"{found.held.said}, not proven" if checked and found.held else "declared, not proven"


def meaning(found: DeclaredReport) -> str:
    """What the word in the headline means."""
    if found.held is not None and found.held.failed:
        return (
            "Somebody listed what the system releases, and what was kept of these releases "
            f"contradicts the list ({', '.join(found.held.failed)}): the figures are not those of "
            "the system."
        )
    if found.account.status is Status.CHECKED:
        return (
            "Somebody listed what the system releases, and what was kept of these releases agrees "
            "with the list. The figures hold if the list is true; nothing proves that it is."
        )
    return (
        "Somebody listed what the system releases. The figures hold if the list is true; no one "
        "looked whether it is, and nothing here proves it."
    )


def facts(found: DeclaredReport) -> list[tuple[str, str]]:
    """What the list is about."""
    log, said = found.account.log, found.account.statement
    header = log.header
    return [
        ("system", header.system),
        ("agents", str(header.agents)),
        ("rounds", str(len(log.rounds))),
        ("releases", str(sum(map(len, log.rounds.values())))),
        ("unit", str(header.unit)),
        ("adjacency", str(said.adjacency)),
        ("delta", small(said.delta)),
        ("accountant", str(said.accountant)),
        ("links", "encrypted" if header.encrypted else "clear"),
        ("logs", ", ".join(str(path) for path in log.paths)),
    ]


def rows(found: DeclaredReport) -> list[tuple[str, ...]]:
    """A row for each adversary."""
    return [
        (
            adversary_words(g.adversary, g.worst_adversary),
            f"agent {g.victim}",
            bound(g.epsilon),
            str(g.status),
            g.because,
        )
        for g in found.account.guarantees.values()
    ]


def declared_markdown(found: DeclaredReport) -> str:
    """The report as Markdown."""
    parts = [f"# {markdown_text(headline(found))}\n", meaning(found) + "\n"]
    parts.append("".join(f"- {key}: {markdown_text(value)}\n" for key, value in facts(found)))
    parts.append(markdown_table(HEADS, rows(found)))
    parts.append(
        "## What the figures rest on\n\n"
        + "".join(
            f"- {assumption.number}: {markdown_text(assumption.text)} "
            f"({markdown_text(assumption.how)})\n"
            for assumption in found.assumptions
        )
    )
    if found.account.warnings:
        parts.append("".join(f"- {markdown_text(warning)}\n" for warning in found.account.warnings))
    if found.decision is not None:
        parts.append(
            "## The policy\n\n"
            + "".join(
                f"- {requirement.outcome.value}: {markdown_text(requirement.name)}: "
                f"{markdown_text(requirement.sentence)}\n"
                for requirement in found.decision.requirements
            )
        )
    return "\n".join(parts)


def declared_html(found: DeclaredReport) -> str:
    """The report as a page, complete in itself."""
    return template(__package__ or "overhear.reports", "declared.html").render(
        headline=headline(found),
        meaning=meaning(found),
        facts=[(key, plain(value, most=None)) for key, value in facts(found)],
        heads=HEADS,
        rows=rows(found),
        word=_word(found),
        words=[
            words
            for status, words in STATUSES.items()
            if status in {g.status for g in found.account.guarantees.values()}
        ],
        assumptions=found.assumptions,
        warnings=found.account.warnings,
        decision=found.decision,
    )


def write_declared(folder: Path, *, delta: float = DELTA) -> Path:
    """Write declared.json and report.html into a folder of logs.

    Returns:
        The page.

    Raises:
        ValueError: a log that cannot be read.
    """
    found = declared_report([folder], delta=delta)
    text = json.dumps(finite(found.dump()), indent=2, allow_nan=False) + "\n"
    write_durably(folder / _JSON, text.encode(), mode=SHOWN)
    page = folder / _PAGE
    write_durably(page, declared_html(found).encode(), mode=SHOWN)
    return page
