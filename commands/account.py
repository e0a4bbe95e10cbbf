"""What releases cost: `overhear account` of a log, and `overhear budget` of equal rounds."""

from __future__ import annotations

import enum
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Annotated

import typer

from ..runs.requests import ACCOUNTANTS, ADJACENCIES, BudgetRequest
from .terminal.terminal import Format, IsThere, TableOrJson, make_console, print_json, say, write


class AccountFormat(enum.StrEnum):
    """How an account is given."""

    TABLE = "table"
    JSON = "json"
    MARKDOWN = "markdown"
    HTML = "html"


@dataclass(frozen=True, kw_only=True)
class AccountRequest:
    """Of whom, and how, declared releases are accounted for."""

    delta: float = 1e-5
    """Delta of every epsilon, in (0, 1)."""
    adversary: Annotated[Sequence[str], "NAME"] = ()
    """eavesdropper, neighbour, neighbour:K, coalition:K,L, all-others or server; repeatable."""
    victim: Annotated[int | None, "AGENT"] = None
    """Agent whose record is at risk; by default the one with the highest risk."""
    adjacency: Annotated[str, ADJACENCIES] = ADJACENCIES[0]
    """How neighbouring data sets differ."""
    accountant: Annotated[str, ACCOUNTANTS] = ACCOUNTANTS[0]
    """How rounds are added up."""
    absent: Annotated[Sequence[str], "AGENT:ROUNDS"] = ()
    """Rounds in which an agent publicly released nothing: 3:7,9-12."""


def account(
    logs: Annotated[
        list[Path],
        typer.Argument(metavar="LOG", help="Logs of releases, or the folder of one system's."),
        IsThere("{} does not exist; name a log of releases"),
    ],
    request: AccountRequest,
    *,
    policy: Annotated[
        Path | None,
        typer.Option(metavar="POLICY.toml", help="What must hold of the figures."),
        IsThere("no policy at {}"),
    ] = None,
    format: Annotated[
        AccountFormat, typer.Option("--format", help="Format of what is printed.")
    ] = AccountFormat.TABLE,
) -> None:
    """Account for a system that runs elsewhere, by its log.

    The log is a list of releases that somebody declared. The status of every figure is "declared":
    it holds if the list is true. With --policy the exit code is 0 within it, 3 over a limit, and 5
    if evidence is missing.
    """
    from ..privacy.accounting.request import Accountant, Adjacency
    from ..reports.document.declared import account_of_logs, report_of_logs
    from ..reports.document.markdown import adversary_rows
    from ..reports.judgement.facts import facts_of_report
    from ..reports.judgement.findings import text_of
    from ..reports.judgement.policy import load_policy
    from ..reports.judgement.wording import verdict

    found = account_of_logs(
        logs,
        delta=request.delta,
        adversaries=request.adversary,
        victim=request.victim,
        adjacency=Adjacency(request.adjacency),
        accountant=Accountant(request.accountant),
        absent=_absent(request.absent),
        policy=None if policy is None else load_policy(policy),
    )
    # One object, one page, or tables on the terminal.
    decision = found.decision
    if format is AccountFormat.HTML:
        from ..reports.document.html import render

        write(render(report_of_logs(found)), end="")
    elif format is AccountFormat.JSON:
        policy_said = {} if decision is None else {"policy": decision.dump()}
        print_json(report_of_logs(found).dump() | policy_said)
    elif format is AccountFormat.TABLE:
        from .terminal.tables import rows_table

        console, report = make_console(), report_of_logs(found)
        facts = facts_of_report(report)
        said = verdict(facts)
        say(console, text_of(said.headline) + ".")
        say(console, text_of(*said.text, *said.notes))
        shown = ("adversary", "agent at risk", "epsilon", "records found, at FPR")
        table = [
            {**{head: row[head] for head in shown}, "status": f"{one.status}: {one.because}"}
            for row, one in zip(adversary_rows(report), facts.claims, strict=True)
        ]
        console.print(rows_table(table, title="Who could learn what"))
        for warning in report.plan.warnings:
            say(console, f"Note: {warning}.")
        for one in report.assumptions:
            say(console, f"{one.name}  {one.text} ({one.how})")
        for required in () if decision is None else decision.requirements:
            say(console, f"{required.outcome.value.upper()}  {required.name}: {required.sentence}")
    else:
        from ..reports.document.markdown import report_markdown

        write(report_markdown(report_of_logs(found)), end="")
    # The exit code is that of the policy.
    if decision is not None:
        raise typer.Exit(decision.exit_code)


_MOST_ABSENT = 1_000_000  # rounds
_ABSENT = re.compile(r"(\d{1,9}):(\d{1,9}(?:-\d{1,9})?(?:,\d{1,9}(?:-\d{1,9})?)*)", re.ASCII)


def _absent(said: Sequence[str]) -> dict[int, list[int]]:
    """Rounds by agent, of texts such as "3:7,9-12".

    Raises:
        ValueError: a text that is none, or names very many rounds.
    """
    from ..privacy.errors import InputError

    found: dict[int, list[int]] = {}
    for text in said:
        matched = _ABSENT.fullmatch(text)
        spans = [part.split("-") for part in matched[2].split(",")] if matched else []
        rounds = [range(int(span[0]), int(span[-1]) + 1) for span in spans]
        count = sum(map(len, rounds))
        if matched is None or not all(rounds) or count > _MOST_ABSENT:
            raise InputError(
                f"--absent {text!r:.60} must be AGENT:ROUNDS of at most {_MOST_ABSENT} rounds, "
                "such as 3:7 or 3:7,9-12"
            )
        found.setdefault(int(matched[1]), []).extend(chain.from_iterable(rounds))
    return found


_NUMBERS = ("epsilon", "noise_multiplier", "rounds", "sampling_rate", "delta")


def budget(
    request: BudgetRequest,
    *,
    explain: Annotated[
        bool, typer.Option("--explain", help="Say what dp-accounting finds for the same rounds.")
    ] = False,
    statement: Annotated[
        bool, typer.Option("--statement", help="Print a paragraph to paste, and nothing else.")
    ] = False,
    format: Format = TableOrJson.TABLE,
) -> None:
    """Compute epsilon, noise, rounds or a sampling rate.

    Give delta and three of the other four, or all of these. The answer is the least epsilon, noise
    or delta, the most rounds or the largest sampling rate. Each round is taken to be one Gaussian
    release of a sum of clipped gradients (DP-SGD). `overhear plan` accounts for what the agents of
    a run really send.
    """
    from ..interface.budget import budget_of
    from ..privacy.errors import InputError

    if statement and (explain or format is TableOrJson.JSON):
        raise InputError("--statement prints a paragraph; leave --format and --explain out")
    found = budget_of(request)
    # What another library makes of the same rounds.
    opinion = None
    if explain:
        from ..privacy.reference.second_opinion import second_opinion
        from ..runs.plan.opinions import described

        other = second_opinion(
            found.events, ours=found.epsilon, delta=found.delta, adjacency=found.adjacency
        )
        opinion = described(other)
    # Figures, what they are about, and how they were computed.
    if format is TableOrJson.JSON:
        figures = {name: getattr(found, name) for name in _NUMBERS}
        how = {"adjacency": request.adjacency, "accountant": request.accountant}
        asked_too = {} if opinion is None else {"second_opinion": opinion.dump()}
        kind = found.accountant.kind
        aim: dict[str, object] = {"target": found.target} if found.target else {}
        if found.participation < 1.0:
            aim["participation"] = found.participation
        if found.drawn is not None:
            of = found.drawn.drawing
            aim |= {"batches": str(of.scheme), "records": of.records, "size": of.size}
        if found.at_least is not None:
            aim["at_least"] = found.at_least
        print_json({**figures, **how, "computed": found.computed, "kind": kind, **aim, **asked_too})
        return
    if statement:
        write(found.statement())
        return
    write(found)
    if opinion is not None:
        from ..runs.plan.opinions import bracket_words

        write(f"second opinion   {opinion.by}: {bracket_words(opinion)}")
