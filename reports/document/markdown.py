"""Where a page cannot go: a report as Markdown, and a decision as JUnit XML."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from xml.etree import ElementTree as ET

from ...privacy.plain_text import markdown_table, markdown_text, plain
from ...runs.audit.evidence import MembershipRate
from ...runs.audit.evidence_schema import AttackRow
from ...runs.numbers import bound, figure, lower_bound, percent, small
from ...runs.plan.opinions import bracket_words
from ..judgement.facts import about_of, facts_of_report
from ..judgement.findings import Outcome, adversary_words, text_of
from ..judgement.gate import Decision
from ..judgement.wording import verdict
from ..references import STATUSES, epsilon_text
from ..schema import Report


def report_markdown(report: Report) -> str:
    """A summary of a report; every figure is one of its figures."""
    return "\n".join(
        [
            *_verdict(report),
            *_adversaries(report),
            *_total(report),
            *_recipients(report),
            *_utility(report),
            *_attack(report),
            *_audit(report),
            *_membership(report),
            *_last_model(report),
            *_assumptions(report),
        ]
    )


def _verdict(report: Report) -> Iterator[str]:
    found, run = verdict(facts_of_report(report)), report.run
    yield f"# {markdown_text(text_of(found.headline))}\n"
    yield f"{markdown_text(text_of(*found.text))}\n"
    extra = (*found.actions, *found.notes)
    if extra:
        yield "".join(f"- {markdown_text(text_of(one))}\n" for one in extra)
    if report.declared is not None:
        digests = "".join(
            f"- {name}: SHA-256 {of}\n" for name, of in report.reproduce.files.items()
        )
        yield (
            f"{markdown_text(run.name)}: {run.agents} agent{'s' * (run.agents != 1)}, "
            f"links {run.links}, {report.declared.releases} releases in {run.rounds} rounds, "
            f"as declared; made {report.made} by overhear {report.tool.version}.\n\n{digests}"
        )
        return
    yield (
        f"Run {markdown_text(run.name)}: {markdown_text(run.algorithm)} "
        f"({run.form}), {run.agents} agents on {markdown_text(run.graph)}, links "
        f"{run.links}, {run.rounds_done} of {run.rounds} rounds, "
        f"{report.ledger.rounds} releases of rounds.\n"
    )


def adversary_rows(report: Report) -> list[dict[str, str]]:
    """A row for each adversary, by the names of the columns."""
    return [
        {
            "adversary": adversary_words(row.adversary, row.worst_adversary),
            "agent at risk": ", ".join(str(one.agent) for one in row.holders or ())
            or str(row.victim),
            "epsilon": epsilon_text(row.epsilon, upper=row.is_bound),
            "delta": small(row.delta),
            "unit": row.unit_name,
            "adjacency": row.adjacency,
            "records found, at FPR": _odds(report, row.adversary),
            "status": STATUSES[row.status],
        }
        for row in facts_of_report(report).claims
    ]


def _adversaries(report: Report) -> Iterator[str]:
    rows = adversary_rows(report)
    yield f"## Who could learn what about {about_of(report)}\n"
    yield markdown_table([*rows[0]] if rows else [], [[*row.values()] for row in rows])
    if report.second_opinion:
        yield "".join(
            f"- second opinion ({markdown_text(one.by)}) on {markdown_text(name)}: "
            f"{markdown_text(bracket_words(one))}\n"
            for name, one in report.second_opinion.items()
        )


def _total(report: Report) -> Iterator[str]:
    """What this run and the others that were named cost together."""
    if report.total is None:
        return
    from ..total.total import sentences

    rows = [["adversary", "this run, at that delta", "all runs together", "status"]]
    rows += [
        [row.name, bound(row.alone[0]), epsilon_text(row.epsilon, upper=row.is_bound), row.status]
        for row in report.total.adversaries
    ]
    yield "## Together with other runs on the same records\n"
    yield markdown_table(rows[0], rows[1:])
    yield "".join(f"- {markdown_text(one)}\n" for one in sentences(report.total))


def _recipients(report: Report) -> Iterator[str]:
    """What final models and distant agents tell, where an agent was named."""
    found = report.recipients
    if found is None:
        return
    rows = [["recipient", "hops", "closed", "estimate (heuristic)", "steered", "and final models"]]
    for row in found.rows:
        figures = (row.closed, row.estimate, row.steered, row.with_final_models)
        hops = "-" if row.hops is None else str(row.hops)
        rows.append([row.name, hops, *("-" if f is None else bound(f) for f in figures)])
    yield f"## What each recipient could learn about a record of agent {found.victim}\n"
    yield markdown_table(rows[0], rows[1:])
    yield "".join(f"- {markdown_text(one)}\n" for one in found.sentences())


def _odds(report: Report, name: str) -> str:
    """How many of 100 records that were in are found, where 1 in 100 of the others is too."""
    risk = report.risk.get(name)
    told = (h for h in risk.hits if (h.false_positives, h.of) == (1, 100)) if risk else ()
    one = next(iter(told), None)
    if risk is None or one is None:
        return "not stated"
    return f"{risk.relation} {float(one.hits):g} in 100, at 1 in 100"


def _utility(report: Report) -> Iterator[str]:
    utility = report.utility
    constant, share = utility.constant_rmse, utility.constant_accuracy
    yield "## Utility\n"
    if not utility.rounds:
        yield "Not evaluated.\n"
        return
    if utility.consensus_rmse:
        yield (
            f"Root mean squared error on test records after round {utility.rounds[-1]}: "
            f"{utility.consensus_rmse[-1]:.4g} of the agents' mean model; single agents from "
            f"{utility.agent_rmse_min[-1]:.4g} to {utility.agent_rmse_max[-1]:.4g}."
            + ("\n" if constant is None else f" The constant mean has {constant:.4g}.\n")
        )
        return
    yield (
        f"Test accuracy after round {utility.rounds[-1]}: "
        f"{percent(utility.consensus_accuracy[-1])} of the agents' mean model; single agents from "
        f"{percent(utility.agent_accuracy_min[-1])} to "
        f"{percent(utility.agent_accuracy_max[-1])}."
        + ("\n" if share is None else f" The most frequent class alone has {percent(share)}.\n")
    )


def _attack(report: Report) -> Iterator[str]:
    attack = report.attack
    yield "## Attack\n"
    if attack is None:
        how = "Logs hold no message that could be attacked."
        how = "`overhear attack DIR` does it." if report.declared is None else how
        yield f"Missing: the run was not attacked. {how}\n"
        return
    # Rows of tables have errors, and pictures PSNR.
    table = all(one.distance for one in attack.scenarios)
    scores = ["error", "certified, whole"] if table else ["PSNR (dB)"]
    heads = ["attack", "round", "agent", "what is attacked", *scores, "found"]
    rows = [[*heads, "rebuilt, proof allows"]]
    for scenario in attack.scenarios:
        allowed = scenario.bound
        most = f"{allowed.rebuilt} of {allowed.images}, {percent(allowed.most)}"
        rows += [
            [
                f"{f'{scenario.attack}: ' if scenario.attack else ''}{scenario.scenario} by "
                f"{scenario.preset}, {scenario.adversary}",
                str(scenario.round),
                str(scenario.victim),
                row.name,
                *_reached(row, table=table),
                row.found_in_all,
                most if row.name == "defended" else "",
            ]
            for row in scenario.rows
        ]
    yield markdown_table(rows[0], rows[1:])
    yield "".join(f"- {markdown_text(one.conclusion)}\n" for one in attack.scenarios)


def _reached(row: AttackRow, *, table: bool) -> list[str]:
    """The scores of a row; where images and tables stand together, in one cell."""
    if not row.columns:
        return [figure(row.mean.psnr)]
    if not table:
        return [f"error {figure(row.mean.mse)}"]
    counted = f"{row.certified} certified, {row.whole} whole of {len(row.mse)}"
    return [figure(row.mean.mse), counted]


def _audit(report: Report) -> Iterator[str]:
    audit = report.audit
    yield "## Audit\n"
    yield from _trail(report)
    if audit is None:
        how = "`overhear audit DIR`" if report.declared is None else "`audit_training`"
        yield f"Missing: the run was not audited. {how} does it.\n"
        return
    yield (
        f"Verdict: {markdown_text(audit.verdict)}; {audit.canaries} canaries, confidence "
        f"{audit.confidence:g}, delta {small(audit.delta)}, {audit.adjacency}"
        f"{'' if audit.seed is None else f'; seed of the assignment {audit.seed}'}"
        f"{f'; audit {len(audit.earlier) + 1} of this run' if audit.earlier else ''}.\n"
    )
    bounds = "proven epsilon" if report.declared is None else "declared epsilon"
    rows = [("adversary", "measured epsilon", bounds, "canaries", "verdict")]
    rows += [
        (
            adversary.name,
            _measured(adversary.measured_epsilon, adversary.digits),
            f"≤ {bound(adversary.proven_epsilon, adversary.digits)}"
            if adversary.status.is_bound
            else "none",
            str(adversary.canaries),
            adversary.verdict,
        )
        for adversary in audit.adversaries
    ]
    yield markdown_table(rows[0], rows[1:])
    yield "".join(
        f"- {'passed' if check.passed else 'FAILED'}: {markdown_text(check.name)}. "
        f"{markdown_text(check.words)}\n"
        for check in audit.checks
    )


def _last_model(report: Report) -> Iterator[str]:
    found = report.last_model
    if found is not None:
        yield "## Last model\n"
        yield f"Verdict: {found.verdict}; {found.runs} runs. {markdown_text(found.words)}.\n"


def _membership(report: Report) -> Iterator[str]:
    found = report.membership
    if found is None:
        return
    part = found.played or found.run
    yield "## Membership\n"
    yield (
        f"{markdown_text(part.plain)}. Verdict: {found.verdict}; {found.references} references, "
        f"{found.games} games. {markdown_text(found.words)}.\n"
    )
    rates = [f"TPR at FPR {percent(rate.asked)}" for rate in part.rows[0].rates]
    rows: list[Sequence[str]] = [("model", "attack", "AUC", *rates)]
    rows += [
        (row.model, row.attack, figure(row.auc), *(_rate(rate) for rate in row.rates))
        for row in part.rows
    ]
    yield markdown_table(rows[0], rows[1:])


def _rate(rate: MembershipRate) -> str:
    if rate.true_positive_rate is None:
        return f"needs {rate.needed} non-members"
    return figure(rate.true_positive_rate)


def _trail(report: Report) -> Iterator[str]:
    """Audits of the run file, which stand beside it."""
    if report.trail is None:
        return
    count = report.trail.audits
    verdicts = ", ".join(f"{n} {verdict}" for verdict, n in report.trail.verdicts.items())
    damaged = "".join(f" Damaged: {told}." for told in report.trail.damaged)
    times = "once" if count == 1 else f"{count} times"
    said = f"{times}: {verdicts}" if count else "0 times"
    yield f"The run file was audited {said} (audits.jsonl).{markdown_text(damaged)}\n"


def _measured(value: float | None, digits: int) -> str:
    return "not measured" if value is None else f"≥ {lower_bound(value, digits)}"


def _assumptions(report: Report) -> Iterator[str]:
    yield "## What this rests on\n"
    yield "".join(
        f"- {assumption.status}: {markdown_text(assumption.text)}"
        f"{'' if report.declared is None else f' ({markdown_text(assumption.how)})'}\n"
        for assumption in report.assumptions
    )


# A decision as JUnit XML, which continuous integration shows as tests: one case for each
# requirement. Over a limit and contradicted are failures, missing evidence is an error: nothing was
# found to be wrong, but the requirement could not be tested.

_ELEMENTS = {
    Outcome.NOT_APPLICABLE: "skipped",
    Outcome.OVER: "failure",
    Outcome.CONTRADICTED: "failure",
    Outcome.MISSING: "error",
}


def write_junit(decision: Decision, path: Path, *, suite: str) -> None:
    """Write a decision.

    Args:
        path: the file; it is replaced.
        suite: name of the suite, such as the folder of the run.

    Raises:
        OSError: the file cannot be written.
    """
    cases = [
        (
            requirement.name,
            requirement.outcome.value,
            _ELEMENTS.get(requirement.outcome),
            requirement.sentence,
        )
        for requirement in decision.requirements
    ]
    _write_junit(path, suite, cases, notes=[plain(note) for note in decision.notes])


def unfinished(path: Path, *, suite: str) -> None:
    """Write that a check has begun: what an earlier one left must not pass for its result.

    Raises:
        OSError: the file cannot be written.
    """
    said = "The check did not come to a decision; its standard error says why."
    _write_junit(path, suite, [("check", "unfinished", "error", said)])


def _write_junit(
    path: Path,
    suite: str,
    cases: list[tuple[str, str, str | None, str]],
    *,
    notes: list[str] | None = None,
) -> None:
    kinds = [kind for _, _, kind, _ in cases]
    counts = {
        "tests": str(len(cases)),
        "failures": str(kinds.count("failure")),
        "errors": str(kinds.count("error")),
        "skipped": str(kinds.count("skipped")),
    }
    root = ET.Element("testsuites", {"name": "overhear check", **counts})
    of = ET.SubElement(root, "testsuite", {"name": plain(suite), **counts})
    for name, outcome, kind, sentence in cases:
        case = ET.SubElement(of, "testcase", {"classname": "overhear.check", "name": plain(name)})
        said = plain(sentence, most=None)
        if kind is None:
            ET.SubElement(case, "system-out").text = said
        else:
            ET.SubElement(case, kind, {"message": said, "type": outcome}).text = said
    if notes:
        ET.SubElement(of, "system-out").text = "\n".join(notes)
    ET.indent(root)
    text = ET.tostring(root, encoding="unicode", xml_declaration=False)
    path.write_text(f'<?xml version="1.0" encoding="UTF-8"?>\n{text}\n', encoding="utf-8")
