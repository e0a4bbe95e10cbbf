"""A declared system: its figures, what they rest on, a decision on them, and its page.

The log is a list of releases that somebody declared, and nothing here shows that it is true. So the
page is not that of a run: its word is "declared" where that one says "proven", it has no tick, and
what it rests on stands beside the figures.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from ...privacy.accounting.other_accountants import Accountant
from ...privacy.accounting.request import Adjacency
from ...privacy.adversary import ALL_OTHERS, WORST_NEIGHBOUR
from ...privacy.durable import SHOWN, write_durably
from ...privacy.errors import InputError
from ...privacy.formats.codec import finite
from ...privacy.guarantee import Statement, Status
from ...privacy.plain_text import markdown_table, markdown_text, plain
from ...privacy.releases.lines import Header
from ...privacy.releases.log import ReleaseLog, read_log
from ...runs.folder.signature import Signed, check_signature
from ...runs.numbers import bound, small
from ...runs.recorder.outcome import Held, read_held
from ...training.accounts.declared import (
    DeclaredAccount,
    account_of_releases,
    usual_adversaries,
)
from ..judgement.facts import FigureRequirement
from ..judgement.findings import Kind, Outcome
from ..judgement.gate import Decision, Requirement, limit_name
from ..judgement.policy import Evidence, Limit, Policy
from ..judgement.sentence import KINDS, adversary_words, fill, text_of
from ..references import STATUSES
from ..template import template

# What the figures rest on. An assumption is checked where a check of kept releases passed, and the
# entry says in which rounds.


class Assumed(NamedTuple):
    """One thing that the figures rest on.

    Attributes:
        number: "A1" to "A6".
        text: what must hold.
        how: what speaks for it: that it is assumed, or which checks passed in which rounds.
        checked: whether some check passed that bears on it.
    """

    number: str
    text: str
    how: str
    checked: bool


CHECKS: Mapping[str, tuple[str, ...]] = {
    "A1": (),
    "A2": ("points",),
    "A3": ("messages", "residuals", "sums", "rows"),
    "A4": ("sampler",),
    "A5": ("residuals", "knowledge"),
    "A6": (),
}
"""The checks that bear on each assumption; none of them shows it in full."""

_TEXTS = {
    "A1": "The list is complete: whatever depends on records and leaves an agent has a line, also "
    "losses, counts, the round in which training stops, and statistics of a normalisation.",
    "A2": "Everything else in a release, and each point at which a gradient is taken, is a "
    "function of {released}.",
    "A3": "What one {unit} adds to a vector is at most its clip norm long; a mean that is clipped "
    "as a whole, and not its parts, is declared with twice that norm.",
    "A4": "Batches are drawn as they are declared: {sampler}.",
    "A5": "The noise is Gaussian, fresh where no id says otherwise, and secret "
    "but to those who are declared to know it.",
    "A6": "Each {unit} is held by one agent.",
}
_ASSUMED = "assumed: no one looked"


def assumed(
    header: Header,
    *,
    sampled: bool | None = None,
    stated: Sequence[str] = (),
    noise_first: int = 0,
    passed: Sequence[str] = (),
    rounds: Sequence[int] = (),
) -> list[Assumed]:
    """The assumptions of a log.

    Args:
        sampled: whether some release counts as made of a batch, as it may say for itself; what the
            header says when None.
        stated: which releases count as public because they say so, in sentences.
        noise_first: how many releases say that their noise met the bare sum first.
        passed: names of the checks of kept releases that passed.
        rounds: the rounds in which they looked.

    >>> from overhear.privacy.releases.lines import read_header
    >>> found = assumed(read_header({"schema": "releases-1", "agents": 2, "clip": 1.0}))
    >>> found[3].text
    'Batches are drawn as they are declared: every record may be in every batch.'
    """
    unit = str(header.unit)
    words = {
        "released": "public releases alone" if header.public else "what was released before",
        "unit": unit,
        "sampler": (
            f"each {unit} on its own, at its rate, in secret and anew each time that a round is "
            "gone through, without weights; no one sees who takes part, and a rate or a divisor "
            "that comes from the number of records makes that number public"
            if (header.poisson if sampled is None else sampled)
            else f"every {unit} may be in every batch"
        ),
    }
    # An assumption that checks of kept releases looked at says where.
    found = []
    for number, text in _TEXTS.items():
        by = [name for name in CHECKS[number] if name in passed]
        checks = f"the {'check' if len(by) == 1 else 'checks'} of {' and '.join(by)}"
        how = f"{checks} passed in {_of(rounds)}; otherwise assumed" if by else _ASSUMED
        said = text.format(**words)
        if number == "A2":
            said = " ".join([said, *(f"{one.removesuffix('.')}." for one in stated)])
        if number == "A5" and noise_first:
            said += (
                f" In {noise_first} of the releases it was added to the sum before anything else, "
                "as they say."
            )
        found.append(Assumed(number, said, how, bool(by)))
    return found


def _of(rounds: Sequence[int]) -> str:
    shown = ", ".join(map(str, rounds[:8])) + (f" and {len(rounds) - 8} more" * (len(rounds) > 8))
    return f"{'round' if len(rounds) == 1 else 'rounds'} {shown}"


# The gate for declared releases: a policy passes them only where it says that it does.
#
#     [evidence]
#     declared = "checked"     figures of a list that kept releases agree with
#     declared = "trusted"     figures of any list
#
# Without the key a declared figure passes no limit, whatever it is. What a policy asks for that a
# list cannot give, such as an audit of the engine, is missing.


def decide_declared(
    policy: Policy,
    account: Callable[[Limit], DeclaredAccount],
    *,
    victim: int | None = None,
    held: Held | None = None,
    signed: Signed | None = None,
) -> Decision:
    """Hold the account of a log against a policy.

    A limit of the other agents is not applicable to a system that has none, and no more than that:
    whoever may be somebody of the system has a figure.

    Args:
        policy: what must hold.
        account: of the log, for each limit of the policy one that holds its adversary.
        victim: the agent that figures are about, where they are about one alone.
        held: what checks of kept releases found.
        signed: whether a key of the policy signed the logs; None where nobody looked.

    Raises:
        ValueError: no limit is applicable, so nothing would be decided.
    """
    accounts = [account(limit) for limit in policy.limits]
    found = list[Requirement]()
    for limit, one in zip(policy.limits, accounts, strict=True):
        for asked in FigureRequirement.of_limit(limit):
            if not _is_there(asked.adversary, one.log):
                outcome, said = Outcome.NOT_APPLICABLE, "The system has one agent, and no other."
            else:
                outcome, said = _held(asked, one, evidence=policy.evidence, victim=victim)
            name, sentence = plain(limit_name(asked)), plain(said, most=None)
            found.append(Requirement(name=name, outcome=outcome, sentence=sentence))
    if all(one.outcome is Outcome.NOT_APPLICABLE for one in found):
        raise InputError(
            "the policy limits other agents alone, and the system has one agent; limit the "
            "eavesdropper"
        )
    if held is not None:
        found.append(_checks(held))
    found += _evidence(policy.evidence, accounts[0])
    if policy.evidence.signed_by:
        signed = signed or Signed(False, "logs are signed by folder, so name the folder alone")
        kind = Kind.SIGNED if signed.passed else Kind.NOT_SIGNED
        said = text_of(fill(KINDS[kind], said=signed.said))
        found.append(Requirement(name="evidence: signature", outcome=kind.outcome, sentence=said))
    return Decision(requirements=found, notes=tuple(accounts[0].warnings))


def _is_there(adversary: str, log: ReleaseLog) -> bool:
    """Whether an adversary can be somebody: of a system of one agent no other agent can."""
    return log.header.agents > 1 or adversary not in (WORST_NEIGHBOUR, ALL_OTHERS)


def _held(
    asked: FigureRequirement, account: DeclaredAccount, *, evidence: Evidence, victim: int | None
) -> tuple[Outcome, str]:
    # The limit and the figure are about the same thing: unit, adjacency, delta, any victim.
    one, goal = account[asked.adversary], asked.goal
    if str(one.unit) != asked.unit:
        return Outcome.OVER, (
            f"The figure is about one {one.unit}, and the limit about one {asked.unit}."
        )
    if str(one.adjacency) != asked.adjacency:
        return Outcome.OVER, (
            f"The figure is for adjacency {one.adjacency}, and the limit for {asked.adjacency}; "
            f"account with --adjacency {asked.adjacency}."
        )
    if goal is None and one.delta > asked.delta:
        return Outcome.OVER, (
            f"The figure is at delta {small(one.delta)}, above {small(asked.delta)}; account "
            f"with --delta {small(asked.delta)}."
        )
    if victim is not None:
        return Outcome.OVER, (
            f"The figure is about the records of agent {victim} alone; leave --victim out."
        )
    # The figure itself.
    if math.isinf(one.epsilon):
        return Outcome.OVER, f"Epsilon is infinite: {one.because}."
    said = f"Epsilon is at most {bound(one.epsilon)}"
    if goal is not None:
        reached = account.reached(one.adversary, goal)
        said = f"Membership tests come to {bound(reached, 4)}"
        if reached > goal.figure:
            return Outcome.OVER, f"{said}, as declared, over {goal.words}."
        said = f"{said} at most"
    elif asked.epsilon is None or one.epsilon > asked.epsilon * (1 + 1e-12):
        return Outcome.OVER, (
            f"Epsilon is {bound(one.epsilon)}, as declared, above {asked.epsilon:g}."
        )
    # Even a declared figure holds only if the list is true, which needs evidence.
    if one.status not in (Status.DECLARED, Status.CHECKED):
        return Outcome.OVER, f"Epsilon is {one.status}: no upper bound is known."
    said = f"{said} if the list of releases is true"
    if evidence.declared is None:
        return Outcome.MISSING, (
            f"{said}, which nothing proves; a policy that relies on it says [evidence] declared = "
            '"checked" or "trusted".'
        )
    if evidence.declared == "checked" and one.status is not Status.CHECKED:
        return Outcome.MISSING, (
            f"{said}, and no check of kept releases speaks for it; run overhear audit-log "
            "on the logs of a recorder that kept rounds."
        )
    return Outcome.PASSED, f"{said}."


def _checks(held: Held) -> Requirement:
    said = f"{held.said[:1].upper()}{held.said[1:]}."
    return Requirement(
        name="list: not contradicted by what was kept",
        outcome=Outcome.CONTRADICTED if held.failed else Outcome.PASSED,
        sentence=plain(said, most=None),
    )


def _evidence(wanted: Evidence, account: DeclaredAccount) -> Iterator[Requirement]:
    """What is asked for beside the figures, of which a log has only that it is whole."""
    absent = {
        "audit": wanted.wants_audit,
        "attack": bool(wanted.attack_presets),
        "membership": wanted.wants_membership,
        "second opinion": wanted.second_opinion,
    }
    # A log holds none of the evidence that a run of ours has.
    for what, asked in absent.items():
        if asked:
            yield Requirement(
                name=f"evidence: {what}",
                outcome=Outcome.MISSING,
                sentence="A log of releases holds none; leave the key out of a policy for "
                "declared systems, or train with the engine.",
            )
    if wanted.complete_run:
        torn, missing = account.log.torn, account.log.missing
        yield Requirement(
            name="evidence: complete log",
            outcome=Outcome.MISSING if torn or missing else Outcome.PASSED,
            sentence=(
                f"{torn} of its lines are cut off; each counts as one more of every release."
                if torn
                else f"No line is about round {missing[0][0]}, which may have released something."
                if missing
                else "No line of the log is cut off. Whether the system has more rounds than the "
                "log is not known."
            ),
        )


SCHEMA = 1
DELTA = 1e-5  # where none is asked for, as in a run file without [privacy]


@dataclass(frozen=True, kw_only=True, slots=True)
class DeclaredReport:
    """What a log of releases says and costs.

    Attributes:
        account: the figures.
        assumptions: what they rest on.
        decision: of a policy, None where none was given.
        held: what checks of kept releases found of these very logs, None where nobody checked.
    """

    account: DeclaredAccount
    assumptions: Sequence[Assumed]
    decision: Decision | None
    held: Held | None = None

    def dump(self) -> dict[str, Any]:
        """The report as an object of JSON; infinite figures are floats."""
        log, said, held = self.account.log, self.account.said_of, self.held
        header = log.header
        return {
            "schema": SCHEMA,
            "system": header.system,
            "status": str(self.account.status),
            "logs": [str(path) for path in log.paths],
            "agents": header.agents,
            "rounds": len(log.rounds),
            "releases": sum(map(len, log.rounds.values())),
            "lines_cut_off": log.torn,
            "unit": str(header.unit),
            "depends_on": "public" if header.public else "released",
            "links": "encrypted" if header.encrypted else "clear",
            "delta": said.delta,
            "adjacency": str(said.adjacency),
            "accountant": str(said.accountant),
            "adversaries": [
                {
                    "name": g.adversary,
                    "worst_adversary": g.worst_adversary,
                    "victim": g.victim,
                    "mu_per_round": g.mu_per_round,
                    "epsilon": g.epsilon,
                    "delta": g.delta,
                    "status": str(g.status),
                    "because": g.because,
                }
                for g in self.account.guarantees.values()
            ],
            "assumptions": [assumption._asdict() for assumption in self.assumptions],
            "warnings": list(self.account.warnings),
            "checks": None
            if held is None
            else {
                "said": held.said,
                "rounds": list(held.rounds),
                "passed": list(held.passed),
                "failed": list(held.failed),
            },
            **({} if self.decision is None else {"policy": self.decision.dump()}),
        }


def check_declared(folder: Path, policy: Policy) -> Decision:
    """Hold the logs of a folder against a policy, each limit at its own delta and adjacency.

    Raises:
        ValueError: a log that cannot be read.
    """
    signed = _signed([folder], policy)  # before anything of it is read
    log, held = _read([folder])
    accounts = dict[tuple[float, str], DeclaredAccount]()
    for limit in policy.limits:
        stated = limit.at_delta, limit.adjacency
        if stated not in accounts:
            accounts[stated] = account_of_releases(
                log,
                statement=Statement(
                    delta=limit.at_delta,
                    adjacency=Adjacency(limit.adjacency),
                    unit=log.header.unit,
                ),
                adversaries=[
                    one.adversary
                    for one in policy.limits
                    if (one.at_delta, one.adjacency) == stated and _is_there(one.adversary, log)
                ]
                or usual_adversaries(log),
            )
    return decide_declared(
        policy, lambda one: accounts[one.at_delta, one.adjacency], held=held, signed=signed
    )


def _read(
    paths: Sequence[Path], absent: Mapping[int, Sequence[int]] | None = None
) -> tuple[ReleaseLog, Held | None]:
    """Logs at the status that checks of them found, and what these found."""
    log = read_log(paths, absent=absent)
    held = read_held(log.paths)
    return (log if held is None else replace(log, status=held.status)), held


def _signed(paths: Sequence[Path], policy: Policy | None) -> Signed | None:
    """Whether a key of the policy signed the one folder of all logs."""
    keys = None if policy is None else policy.evidence.signed_by
    return (
        check_signature(paths[0], keys) if keys and len(paths) == 1 and paths[0].is_dir() else None
    )


def declared_report(
    paths: Sequence[Path],
    *,
    delta: float = DELTA,
    adversaries: Sequence[str] = (),
    victim: int | None = None,
    adjacency: Adjacency = Adjacency.ADD_OR_REMOVE_ONE,
    accountant: Accountant = Accountant.PLD,
    absent: Mapping[int, Sequence[int]] | None = None,
    policy: Policy | None = None,
) -> DeclaredReport:
    """What logs of releases say and cost.

    Args:
        paths: logs, or the folder that holds those of one system.
        delta: of every epsilon, in (0, 1).
        adversaries: those to account for; the usual ones, and those of the policy, when none are
            given.
        victim: the agent whose record is at risk; None searches the worst one.
        adjacency: how two neighbouring data sets differ.
        accountant: how rounds are added up.
        absent: by agent the rounds in which it released nothing, as is publicly known.
        policy: what must hold.

    Raises:
        FileNotFoundError: a log is not there.
        ValueError: a log that cannot be read, or an adversary that is not accounted for.
    """
    # The log, with the checks and the signature that stand beside it.
    signed = _signed(paths, policy)
    log, held = _read(list(paths), absent)
    limited = [
        limit.adversary
        for limit in (() if policy is None else policy.limits)
        if _is_there(limit.adversary, log)
    ]
    account = account_of_releases(
        log,
        statement=Statement(
            delta=delta, adjacency=adjacency, unit=log.header.unit, accountant=accountant
        ),
        adversaries=[*(adversaries or usual_adversaries(log)), *limited],
        victim=victim,
    )
    return DeclaredReport(
        account=account,
        assumptions=assumed(
            log.header,
            sampled=log.sampled,
            stated=log.stated,
            noise_first=log.noise_first,
            passed=() if held is None else held.passed,
            rounds=() if held is None else held.rounds,
        ),
        decision=None
        if policy is None
        else decide_declared(policy, lambda _: account, victim=victim, held=held, signed=signed),
        held=held,
    )


# The report in words, as Markdown, and as one page without a script.

_JSON, _PAGE = "declared.json", "report.html"
_FACTS = (
    "system", "agents", "rounds", "releases", "unit", "adjacency", "delta", "accountant", "links",
    "logs",
)  # fmt: skip
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
    said = found.dump()
    said |= {"delta": small(said["delta"]), "logs": ", ".join(said["logs"])}
    return [(key, str(said[key])) for key in _FACTS]


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


def write_declared(folder: Path) -> Path:
    """Write declared.json and report.html into a folder of logs.

    Returns:
        The page.

    Raises:
        ValueError: a log that cannot be read.
    """
    found = declared_report([folder])
    text = json.dumps(finite(found.dump()), indent=2, allow_nan=False) + "\n"
    write_durably(folder / _JSON, text.encode(), mode=SHOWN)
    page = folder / _PAGE
    write_durably(page, declared_html(found).encode(), mode=SHOWN)
    return page
