"""The tables that commands print."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from ...privacy.guarantee import SINGLE_MESSAGE, Guarantee, Holder, Status, Unit
from ...privacy.plain_text import in_columns, markdown_table, markdown_text
from ...reports.judgement.findings import adversary_words
from ...reports.references import STATUSES, epsilon_text
from ...reports.schema import PersonTotal, Total
from ...runs.audit.evidence import MembershipPart, MembershipRate
from ...runs.audit.evidence_schema import AttackRow, Audit, AuditCheck
from ...runs.numbers import bound, figure, is_infinite, lower_bound, score, small
from ...runs.plan.opinions import bracket_words
from ...runs.plan.schema import SecondOpinion
from .terminal import make_table, say

if TYPE_CHECKING:
    from rich.console import Console

    from ...runs.plan.schema import Recipient, Recipients

_MOST_COLUMNS = 20  # that are shown; the others are in attack.json


def _caption(table: Table, found: Collection[str]) -> None:
    """Say under a table what the statuses in it mean that are no guarantee."""
    said = [of for one, of in STATUSES.items() if one in found and one is not Status.PROVEN]
    if said:
        table.caption = "\n".join(said)


def adversary_table(adversaries: Sequence[Guarantee]) -> Table:
    """Epsilon for every adversary of a plan; `reasons` says what stands behind each."""
    several = any(row.holders for row in adversaries)
    about = Unit.RECORD.words
    if adversaries:
        about = adversaries[0].unit.words_with(adversaries[0].records_per_person)
    about = "the records of one person" if several else about
    table = make_table(f"Who could learn what about {about}")
    table.add_column("adversary", style="bold")
    for head in ("victim", "joint\nsens.", "effective\nmultipl.", "epsilon", "delta"):
        table.add_column(head, justify="right")
    for one in (adversaries[0].group if adversaries else None) or ():
        table.add_column(f"epsilon of\n{one.records} records", justify="right")
    table.add_column("status", no_wrap=True)
    apart = SINGLE_MESSAGE.name
    ordered = sorted(adversaries, key=lambda row: row.adversary == apart)
    for row in ordered:
        if row.adversary == apart and len(adversaries) > 1:
            table.add_row(Text("\nhow papers count:"))
        cells = (
            adversary_words(row.adversary, row.worst_adversary),
            _victims(row),
            figure(row.joint_sensitivity, 4),
            figure(row.effective_noise_multiplier),
            bound(row.epsilon),
            small(row.delta),
            *(bound(one.epsilon) for one in row.group or ()),
            row.status.replace("be ", "be\n").replace("no ", "no\n"),  # no wider than others
        )
        # Text, because a name of the run file must not be read as markup.
        table.add_row(*(Text(cell) for cell in cells))
    _caption(table, {row.status for row in adversaries})
    return table


def _victims(row: Guarantee) -> str:
    """The agents whose records are meant, with how many of them where it is not one."""
    held = row.holders or [Holder(agent=row.victim, records=1)]
    return ", ".join(
        str(one.agent) + (f" ({one.records})" if one.records > 1 else "") for one in held
    )


def reasons(adversaries: Iterable[Guarantee]) -> list[str]:
    """Why each figure is what it is: one line for each reason, with the adversaries it is for."""
    said = by_words((row.because, row.adversary) for row in adversaries)
    return [f"{names}: {because}" for because, names in said]


def by_words(said: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Words of which each is said of a name, with all names that they are said of."""
    grouped: dict[str, list[str]] = {}
    for words, name in said:
        grouped.setdefault(words, []).append(name)
    return [(words, ", ".join(names)) for words, names in grouped.items()]


def second_opinions(opinions: Mapping[str, SecondOpinion]) -> list[str]:
    """What another library says of finite figures: a line for each bracket, with adversaries."""
    said = by_words(
        (f"{one.by.split()[0]}: {bracket_words(one)}", name)
        for name, one in opinions.items()
        if not is_infinite(one.epsilon)
    )
    return [f"second opinion on {names} by {words}" for words, names in said]


def sweep_tables(combinations: Sequence[Mapping[str, Any]]) -> list[Table]:
    """A row for each combination of a sweep, a column for each adversary; then what is refused.

    Args:
        combinations: as in the list of `overhear plan --sweep --format json`.
    """
    planned = [c for c in combinations if c["refused"] is None]
    refused = [c for c in combinations if c["refused"] is not None]
    tables = []
    for title, part in ((_sweep_title(planned), planned), ("Refused", refused)):
        if not part:
            continue
        table = make_table(title)
        heads, rows = _sweep_cells(part)
        for head in ("combination", *heads):  # a narrow terminal breaks names at their joints
            table.add_column(Text(re.sub(r"([- ])(?=.)", r"\1\n", head)), overflow="fold")
        for one, row in zip(part, rows, strict=True):
            swept = [f"{key}={value}" for key, value in one["swept"].items()]
            table.add_row(*(Text("\n".join(cell)) for cell in (swept, *row)), end_section=True)
        _caption(table, {a["status"] for c in part for a in c.get("adversaries", ())})
        tables.append(table)
    return tables


def total_rows(total: Total) -> list[dict[str, str]]:
    """A row for each adversary of a total: head -> text."""
    return [
        {
            "adversary": row.name,
            "largest alone": bound(max(row.alone)),
            "together": epsilon_text(row.epsilon, upper=row.is_bound),
            "delta": small(total.delta),
            "status": row.status,
        }
        for row in total.adversaries
    ]


def person_rows(total: PersonTotal) -> list[dict[str, str]]:
    """A row for each run of a person's total: head -> text."""
    return [
        {
            "run": row.label,
            "whose records": row.whose,
            "rounds": row.counted if row.unread is None else "not known",
            "alone": bound(row.alone),
        }
        for row in total.runs
    ]


def rows_table(rows: Sequence[Mapping[str, str]], *, title: str) -> Table:
    """Rows of head -> text as a table; a head that a row lacks is left empty."""
    table = make_table(Text(title))
    heads, cells = in_columns(rows)
    for head in heads:
        table.add_column(Text(head))
    for row in cells:
        table.add_row(*map(Text, row))
    return table


def rows_markdown(rows: Sequence[Mapping[str, str]]) -> str:
    """Rows of head -> text as a Markdown table.

    >>> print(rows_markdown([{"graph": "ring", "defended": "11.4 dB"}]), end="")
    | graph | defended |
    | --- | --- |
    | ring | 11.4 dB |
    """
    heads, cells = in_columns(rows)
    return markdown_table([markdown_text(head) for head in heads], cells)


def sweep_markdown(combinations: Sequence[Mapping[str, Any]]) -> str:
    """One Markdown table; a cell reads joint sensitivity, epsilon, status."""
    heads, rows = _sweep_cells(combinations)
    keys = list(dict.fromkeys(key for c in combinations for key in c["swept"]))
    cells = [
        [*(one["swept"][key] for key in keys), *map(", ".join, row)]
        for one, row in zip(combinations, rows, strict=True)
    ]
    return markdown_table([markdown_text(head) for head in (*keys, *heads)], cells)


def _sweep_title(planned: Sequence[Mapping[str, Any]]) -> str:
    deltas = {a["delta"] for c in planned for a in c["adversaries"]}
    at = f" at delta {small(min(deltas))}" if len(deltas) == 1 else ""
    return f"Joint sensitivity of a round, epsilon{at} and status"


def _sweep_cells(
    combinations: Sequence[Mapping[str, Any]],
) -> tuple[list[str], list[list[list[str]]]]:
    """The heads behind the swept keys, and every row as cells of lines."""
    names = list(dict.fromkeys(a["name"] for c in combinations for a in c.get("adversaries", ())))
    multipliers = {c["noise_multiplier"] for c in combinations if "noise_multiplier" in c}
    noise = ["noise multipl."] * (len(multipliers) > 1)
    why = ["refused because"] * any(c["refused"] is not None for c in combinations)
    rows = []
    for c in combinations:
        found = {a["name"]: a for a in c.get("adversaries", ())}
        row = [[bound(c["noise_multiplier"], 4) if found else "–"] for _ in noise]
        row += [_sweep_cell(found.get(name)) for name in names]
        row += [[c["refused"] or ""] for _ in why]
        rows.append(row)
    return [*noise, *names, *why], rows


def _sweep_cell(adversary: Mapping[str, Any] | None) -> list[str]:
    if adversary is None:
        return ["–"]
    joint, epsilon = figure(adversary["joint_sensitivity"], 4), bound(adversary["epsilon"])
    return [joint, f"ε {epsilon}", str(adversary["status"])]


def columns_table(rows: Sequence[AttackRow]) -> Table:
    """Scores by column, of a table that was attacked."""
    table = make_table(Text("By column"))
    table.add_column("column", style="bold")
    told = [row for row in rows if row.name != "blind guess"]
    for head in ("usual value", *(row.name for row in told)):
        table.add_column(head, justify="right")
    for k, column in enumerate(told[-1].columns[:_MOST_COLUMNS]):
        number = column.kind == "number"
        known = f"MAE {figure(column.baseline)}" if number else f"{column.baseline:.0%}"
        cells = [column.name, known]
        for row in told:
            one = row.columns[k]
            of = "" if one.auc is None else f", AUC {one.auc:.2f}"
            right = f"{one.accuracy or 0:.0%}{of}"
            cells.append(right if one.mae is None else f"MAE {figure(one.mae)}")
        table.add_row(*(Text(cell) for cell in cells))
    if (left := len(told[-1].columns) - _MOST_COLUMNS) > 0:
        table.caption = Text(f"and {left} more columns in attack.json")
    return table


def attack_table(
    rows: Sequence[AttackRow], *, title: str = "Reconstruction", convention: str | None = None
) -> Table:
    """Mean scores of the four rows of one attack.

    Args:
        convention: of the scores; ours if None.
    """
    table = make_table(Text(title))
    table.add_column("what is attacked", style="bold")
    rows_of_table = any(row.columns for row in rows)
    heads = ("error", "certified", "whole") if rows_of_table else ("MSE", "PSNR (dB)", "SSIM")
    for head in heads:
        table.add_column(head, justify="right")
    table.add_column("found")
    for row in rows:
        if rows_of_table:
            of = f" of {len(row.mse)}"
            cells = (figure(row.mean.mse), f"{row.certified}{of}", f"{row.whole}{of}")
        else:
            mean = row.mean if convention is None else row.conventions[convention]
            cells = (figure(mean.mse), figure(mean.psnr), score(mean.ssim))
        table.add_row(*(Text(cell) for cell in (row.name, *cells, row.found_in_all)))
    return table


# The table of a membership attack for the terminal.


def membership_table(part: MembershipPart, *, title: str) -> Table:
    """A row for each attack on each model."""
    table = make_table(f"{title}: {part.members} members, {part.others} others")
    for name in ("model", "attack"):
        table.add_column(name, no_wrap=True)
    table.add_column("AUC", justify="right", no_wrap=True)
    rates = part.rows[0].rates
    for rate in rates:
        table.add_column(f"TPR at FPR {100 * rate.asked:g} %", justify="right")
    allowed = [
        f"{bound(rate.allowed, 2)} at {100 * rate.asked:g} %"
        for rate in rates
        if rate.allowed is not None
    ]
    if allowed:
        table.caption = f"The proof allows a TPR of at most {', '.join(allowed)}"
    for row in part.rows:
        table.add_row(
            row.model,
            row.attack,
            f"{row.auc:.3f} ± {row.auc_error:.3f}",
            *(rate_words(rate) for rate in row.rates),
        )
    return table


def rate_words(rate: MembershipRate) -> str:
    """A rate with its interval, or how many non-members it would take.

    >>> rate_words(MembershipRate(asked=0.001, needed=1000, true_positive_rate=None, low=None,
    ...                           high=None, allowed=0.02))
    'needs 1000 non-members'
    """
    if rate.true_positive_rate is None or rate.low is None or rate.high is None:
        return f"needs {rate.needed} non-members"
    interval = f"[{lower_bound(rate.low, 2)}, {bound(rate.high, 2)}]"
    return f"{figure(rate.true_positive_rate, 2)} {interval}"


def measured_table(found: Audit) -> Table:
    """Proven beside measured, a row an adversary."""
    level = f"{100 * found.confidence:.10g}%"
    runs = "1 run" if found.runs == 1 else f"{found.runs} runs"
    title = (
        f"Epsilon at delta {small(found.delta)}, unit {found.unit}, {found.adjacency}: "
        f"{found.canaries} canaries, {runs} of {found.rounds} rounds"
    )
    table = make_table(title)
    for name in ("adversary", "epsilon", "at least", "ideal", "seen"):
        table.add_column(
            name, justify="left" if name == "adversary" else "right", no_wrap=name == "adversary"
        )
    table.add_column("verdict", no_wrap=True)
    for adversary in found.adversaries:
        digits, low = adversary.digits, adversary.measured_epsilon
        most = bound(adversary.proven_epsilon, digits)
        shown = most + ("" if adversary.status == "proven" else "*")
        table.add_row(
            adversary.name,
            adversary.status if math.isinf(adversary.proven_epsilon) else shown,
            "-" if low is None else lower_bound(low, digits),
            _or_dash(adversary.ideal_epsilon, "{:.2f}"),
            _or_dash(adversary.seen_epsilon, "{:.2f}"),
            adversary.verdict,
        )
    table.caption = (
        f"* not proven; at least: the lower bound that the verdict rests on, at {level} confidence "
        "for all that are tested together, or more; ideal: what a perfect audit of so many "
        "canaries expects; seen: the least true epsilon that 95 of 100 of them would tell from the "
        "proven one"
    )
    return table


def checks_table(checks: Sequence[AuditCheck]) -> Table:
    """A row for each check: its words where it failed or had nothing to look at, else its power."""
    table = make_table("Checks of the engine")
    for name in ("check", "result", "tests", "found"):
        table.add_column(name, justify="right" if name == "tests" else "left")
    for check in checks:
        told = check.power if check.passed and check.tests else check.words
        table.add_row(check.name, "passed" if check.passed else "FAILED", str(check.tests), told)
    table.caption = "what each compared, and how surely, stands in --format json and the report"
    return table


def trail_lines(found: Audit) -> Iterator[str]:
    """What stands in audits.jsonl beside the run file; nothing of a folder."""
    if found.trail is None:
        return
    trail = found.trail
    verdicts = ", ".join(f"{count} {verdict}" for verdict, count in trail.verdicts.items())
    audits = "1 audit" if trail.audits == 1 else f"{trail.audits} audits"
    others = f"; {trail.others} of other values or run files" if trail.others else ""
    yield f"Audits of this run file: {audits} in audits.jsonl ({verdicts}){others}."
    for told in trail.damaged:
        yield f"Damaged: {told}."


def _or_dash(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)


def show_recipients(found: Recipients, console: Console) -> None:
    """Print epsilon of every recipient: closed, an estimate, and where it is proven steered."""
    from rich.text import Text

    from ...runs.numbers import bound

    console.print()
    table = make_table(f"What each recipient could learn about a record of agent {found.victim}")
    table.add_column("recipient", style="bold")
    for head in ("hops", "closed", "estimate", "steered", "and final\nmodels"):
        table.add_column(head, justify="right")

    def shown(value: float | None) -> str:
        return "-" if value is None else bound(value)

    for names, row in _grouped(found.rows):
        hops = "-" if row.hops is None else str(row.hops)
        figures = (row.closed, row.estimate, row.steered, row.with_final_models)
        table.add_row(Text(names), hops, *map(shown, figures))
    console.print(table)
    for sentence in found.sentences():
        say(console, sentence)


def _grouped(rows: list[Recipient]) -> list[tuple[str, Recipient]]:
    """Rows with equal figures together, named by all of their agents."""
    grouped: dict[tuple[object, ...], list[Recipient]] = {}
    for row in rows:
        figures = (row.closed, row.estimate, row.steered, row.with_final_models)
        key = (row.hops, *(None if f is None else float(f"{f:.6g}") for f in figures))
        grouped.setdefault(key, []).append(row)
    said = []
    for same in grouped.values():
        agents = [row.name.removeprefix("agent:") for row in same]
        several = f"agents {', '.join(agents)}" if len(same) > 1 else same[0].name
        said.append((several, same[0]))
    return said
