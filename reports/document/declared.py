"""The report of a declared system from its logs, what it rests on, and a decision on it.

The log is a list of releases that somebody declared, and nothing here shows that it is true. Its
report is one as of a run of ours, on the same page: what is "proven" there is "declared" here.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from ... import __version__
from ...privacy.accounting.request import Accountant, Adjacency
from ...privacy.errors import InputError
from ...privacy.files import SHOWN, write_durably
from ...privacy.guarantee import ALL_OTHERS, WORST_NEIGHBOUR, Statement, Status
from ...privacy.plain_text import plain
from ...privacy.releases.lines import Header
from ...privacy.releases.log import ReleaseLog, read_log
from ...privacy.releases.values import SERVER
from ...privacy.target import Target
from ...runs.audit.evidence import measured
from ...runs.audit.evidence_schema import Assumption, Audit
from ...runs.folder.folder import AUDIT, PRIVACY, REPORT, digest
from ...runs.folder.records import Environment
from ...runs.folder.signature import Signed, check_signature
from ...runs.numbers import bound, small
from ...runs.plan.opinions import described
from ...runs.plan.schema import Planned
from ...runs.recorder.outcome import FILE as CONFORMANCE
from ...runs.recorder.outcome import Held, read_held, read_kept_audit
from ...training.accounts.declared import DeclaredAccount, account_of_releases, usual_adversaries
from ..judgement.facts import Facts, FigureRequirement, facts_of_report
from ..judgement.findings import KINDS, Kind, Outcome, fill, judge, text_of
from ..judgement.gate import Decision, Requirement, audits, limit_name, proofs
from ..judgement.policy import Evidence, Limit, Policy
from ..judgement.wording import sentence
from ..schema import REPORT_SCHEMA, Declared, KeptChecks, Released, Report, Reproduce, Run, Tool
from .html import render
from .summary import MOST_LINKS, made_now, risk_of, utility

# What the figures rest on. An assumption is checked where a check of kept releases passed, and the
# entry says in which rounds.

CHECKS: Mapping[str, tuple[str, ...]] = {
    "A1": (),
    "A2": ("points", "numbers"),
    "A3": ("messages", "residuals", "sums", "rows"),
    "A4": ("sampler",),
    "A5": ("residuals", "knowledge"),
    "A6": (),
}
"""The checks that bear on each assumption; none of them shows it in full."""

_TEXTS = {
    "A1": "The list is complete: whatever depends on records and leaves an agent has a line, also "
    "losses, counts, the round in which training stops, and statistics of a normalisation.",
    "A2": "Everything else in a release, each point at which a gradient is taken, and each number "
    "that is declared, is a function of {released}.",
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
    held: Held | None = None,
) -> list[Assumption]:
    """The assumptions of a log.

    Args:
        sampled: whether some release counts as made of a batch, as it may say for itself; what the
            header says when None.
        stated: which releases count as public because they say so, in sentences.
        noise_first: how many releases say that their noise met the bare sum first.
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
        how, status = _how(number, held)
        said = text.format(**words)
        if number == "A2":
            said = " ".join([said, *(f"{one.removesuffix('.')}." for one in stated)])
        if number == "A5" and noise_first:
            said += (
                f" In {noise_first} of the releases it was added to the sum before anything else, "
                "as they say."
            )
        found.append(Assumption(name=number, text=said, status=status, how=how))
    return found


def _how(number: str, held: Held | None) -> tuple[str, Literal["assumed", "gap"]]:
    """What speaks for an assumption, or against it; no check shows one in full."""
    if held is None:
        return _ASSUMED, "assumed"
    if failed := [name for name in CHECKS[number] if name in held.failed]:
        return f"{_checks_of(failed)} FAILED in {_of(held.rounds)}", "gap"
    passed = [name for name in CHECKS[number] if name in held.passed]
    if passed and held.failed:  # nothing speaks for a list that something contradicts
        return "assumed: another check contradicts the list", "assumed"
    if passed:
        return f"{_checks_of(passed)} passed in {_of(held.rounds)}; otherwise assumed", "assumed"
    return _ASSUMED, "assumed"


def _checks_of(names: Sequence[str]) -> str:
    return f"the {'check' if len(names) == 1 else 'checks'} of {' and '.join(names)}"


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
    system: DeclaredSystem,
    victim: int | None = None,
    signed: Signed | None = None,
) -> Decision:
    """Hold the account of a log against a policy.

    Args:
        account: of the log, for each limit of the policy one that holds its adversary.
        victim: the agent that figures are about, where they are about one alone.
        signed: whether a key of the policy signed the logs; None where nobody looked.

    Raises:
        ValueError: no limit is applicable, so nothing would be decided.
    """
    accounts = [account(limit) for limit in policy.limits]
    found = list[Requirement]()
    for limit, one in zip(policy.limits, accounts, strict=True):
        for asked in FigureRequirement.of_limit(limit):
            outcome, said = _judged(asked, one, evidence=policy.evidence, victim=victim)
            name = plain(limit_name(asked))
            found.append(Requirement(name=name, outcome=outcome, sentence=plain(said, most=None)))
    if all(one.outcome is Outcome.NOT_APPLICABLE for one in found):
        raise InputError("the policy limits other agents alone, and there is none; limit others")
    if system.held is not None:
        found.append(_checks(system.held))
    found += _of_audit(policy, system)
    found += _evidence(policy.evidence, accounts[0])
    if policy.evidence.signed_by:
        signed = signed or Signed(False, "logs are signed by folder, so name the folder alone")
        kind = Kind.SIGNED if signed.passed else Kind.NOT_SIGNED
        said = text_of(fill(KINDS[kind], said=signed.said))
        found.append(Requirement(name="evidence: signature", outcome=kind.outcome, sentence=said))
    told = dict.fromkeys(warning for one in accounts for warning in one.warnings)
    return Decision(requirements=found, notes=tuple(told))


def _is_there(adversary: str, log: ReleaseLog) -> bool:
    """Whether an adversary can be somebody: of a system of one agent no other agent can."""
    return log.header.agents > 1 or adversary not in (WORST_NEIGHBOUR, ALL_OTHERS)


_OVER = {
    Kind.OTHER_UNIT: "The figure is about one {one.unit}, and the limit about one {asked.unit}.",
    Kind.OTHER_ADJACENCY: "The figure is for adjacency {one.adjacency}, and the limit for "
    "{asked.adjacency}; account with --adjacency {asked.adjacency}.",
    Kind.LARGER_DELTA: "The figure is at delta {delta}, above {asked_delta}; account with --delta "
    "{asked_delta}.",
    Kind.ONE_VICTIM: "The figure is about the records of agent {victim} alone; leave --victim out.",
    Kind.UNPROTECTED: "Epsilon is infinite: {one.because}.",
    Kind.INEXPRESSIBLE: "Epsilon is infinite: {one.because}.",
    Kind.RISK_OVER: "Membership tests come to {reached}, as declared, over {asked.goal.words}.",
    Kind.OVER: "Epsilon is {epsilon}, as declared, above {asked.epsilon:g}.",
    Kind.HEURISTIC: "Epsilon is {one.status}: no upper bound is known.",
}
"""What is said of a figure that is over its limit, by its first of these findings."""


def _judged(
    asked: FigureRequirement, account: DeclaredAccount, *, evidence: Evidence, victim: int | None
) -> tuple[Outcome, str]:
    if not _is_there(asked.adversary, account.log):
        return Outcome.NOT_APPLICABLE, "The system has one agent, and no other."
    one, header = account[asked.adversary], account.log.header
    facts = Facts(
        claims=list(account.guarantees.values()),
        target=None,
        limit=None,
        delta=one.delta,
        algorithm=header.system,
        form="declared",
        agents=header.agents,
        encrypted=header.encrypted,
        rounds=account.rounds,
        noise_multiplier=account.noise_multiplier,
        seeded=False,
        victim=victim,
        declared=_declared(account),
    )
    risks = functools.cache(lambda claim, goal: account.reached(claim.adversary, goal))
    found = {finding.kind for finding in judge(facts, asked, risks=risks)}
    tested = asked.goal is not None and one.is_bound and math.isfinite(one.epsilon)
    reached = bound(risks(one, asked.goal), 4) if tested else ""
    if over := found - {Kind.DECLARED, Kind.WITHIN, Kind.RISK_WITHIN}:
        said = next(said for kind, said in _OVER.items() if kind in over)
        return Outcome.OVER, said.format(
            one=one,
            asked=asked,
            victim=victim,
            reached=reached,
            epsilon=bound(one.epsilon),
            delta=small(one.delta),
            asked_delta=small(asked.delta),
        )
    # Even a declared figure holds only if the list is true, which needs evidence.
    figure = f"Membership tests come to {reached} at most" if reached else ""
    said = f"{figure or f'Epsilon is at most {bound(one.epsilon)}'} if the list of releases is true"
    if asked.adversary == SERVER and SERVER not in usual_adversaries(account.log):
        return Outcome.MISSING, f"{said}, which names no server; leave the limit out if none is."
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


def _of_audit(policy: Policy, system: DeclaredSystem) -> Iterator[Requirement]:
    """What an audit of the training leaves of the list, and whether it is as the policy asks."""
    if system.audit is None:
        if policy.evidence.wants_audit:
            yield Requirement(
                name="evidence: audit",
                outcome=Outcome.MISSING,
                sentence="No audit of this training is kept beside the logs; audit_training "
                "measures one, and keep_audit keeps it.",
            )
        return
    facts = facts_of_report(report_of_logs(system))
    ran = facts.ran
    if ran is None:
        return
    found = [(name.replace("proof:", "list:"), of[0]) for name, of in proofs(facts, ran)]
    found += [(f"evidence: {what}", one) for what, one in audits(policy, facts, ran)]
    for name, one in found:
        said = text_of(sentence(one, facts))
        if one.kind.outcome is not Outcome.PASSED:  # what would turn it is about a run file
            said = f"{said.partition('. ')[0].removesuffix('.')}."
        yield Requirement(name=plain(name), outcome=one.kind.outcome, sentence=said)


def _evidence(wanted: Evidence, account: DeclaredAccount) -> Iterator[Requirement]:
    """What is asked for beside the figures, of which a log has only that it is whole."""
    absent = {
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


DELTA = 1e-5  # where none is asked for, as in a run file without [privacy]


def check_declared(folder: Path, policy: Policy) -> Decision:
    """Hold the logs of a folder against a policy, each limit at its own delta and adjacency.

    Raises:
        ValueError: a log that cannot be read.
    """
    signed = _signed([folder], policy)  # before anything of it is read
    system = account_of_logs([folder])
    log = system.account.log
    accounts = dict[tuple[float, str], DeclaredAccount]()
    for limit in policy.limits:
        stated = limit.at_delta, limit.adjacency
        if stated not in accounts:
            accounts[stated] = account_of_releases(
                log,
                statement=Statement(
                    delta=limit.at_delta, adjacency=Adjacency(limit.adjacency), unit=log.header.unit
                ),
                adversaries=[
                    one.adversary
                    for one in policy.limits
                    if (one.at_delta, one.adjacency) == stated and _is_there(one.adversary, log)
                ]
                or usual_adversaries(log),
            )
    return decide_declared(
        policy, lambda one: accounts[one.at_delta, one.adjacency], system=system, signed=signed
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


@dataclass(frozen=True, kw_only=True, slots=True)
class DeclaredSystem:
    """What logs of releases cost, and what stands beside them.

    Attributes:
        held: what checks of kept releases found of these very logs, None where nobody checked.
        audit: an audit of the training that these very logs declare, None where there is none.
        decision: of a policy, None where none was given.
    """

    account: DeclaredAccount
    held: Held | None = None
    audit: Audit | None = None
    decision: Decision | None = None


def account_of_logs(
    paths: Sequence[Path],
    *,
    delta: float = DELTA,
    adversaries: Sequence[str] = (),
    victim: int | None = None,
    adjacency: Adjacency = Adjacency.ADD_OR_REMOVE_ONE,
    accountant: Accountant = Accountant.PLD,
    absent: Mapping[int, Sequence[int]] | None = None,
    policy: Policy | None = None,
) -> DeclaredSystem:
    """What logs of releases cost, with what was kept beside them.

    Args:
        paths: logs, or the folder that holds those of one system.
        delta: of every epsilon, in (0, 1).
        adversaries: those to account for; the usual ones, and those of the policy, when none are
            given.
        victim: the agent whose record is at risk; None searches the worst one.
        absent: by agent the rounds in which it released nothing, as is publicly known.

    Raises:
        FileNotFoundError: a log is not there.
        ValueError: a log that cannot be read, or an adversary that is not accounted for.
    """
    # The log, with the checks and the signature that stand beside it.
    signed = _signed(paths, policy)
    log, held = _read(list(paths), absent)
    named = [] if policy is None else [limit.adversary for limit in policy.limits]
    limited = [name for name in named if _is_there(name, log)]
    account = account_of_releases(
        log,
        statement=Statement(
            delta=delta, adjacency=adjacency, unit=log.header.unit, accountant=accountant
        ),
        adversaries=[*(adversaries or usual_adversaries(log)), *limited],
        victim=victim,
    )
    found = DeclaredSystem(account=account, held=held, audit=read_kept_audit(log.paths))
    if policy is None:
        return found
    decision = decide_declared(
        policy, lambda _: account, system=found, victim=victim, signed=signed
    )
    return replace(found, decision=decision)


def report_of_logs(found: DeclaredSystem) -> Report:
    """The report of a declared system."""
    account, held = found.account, found.held
    log, figures = account.log, account.guarantees
    rounds, again = len(log.rounds), Counter(played.round for played in log.rounds)
    epsilon = {name: one.epsilon for name, one in figures.items()}
    return Report(
        version=REPORT_SCHEMA,
        tool=Tool(name="overhear", version=__version__),
        made=made_now(),
        run=_run(log),
        plan=Planned(
            version=1,
            noise_multiplier=account.noise_multiplier,
            target=Target(epsilon=None, delta=account.said_of.delta, adversary=None),
            adversaries=list(figures.values()),
            published_bound=None,
            warnings=[*account.warnings, *_of_other_logs(found)],
        ),
        ledger=Released(
            rounds=rounds,
            rounds_accounted=rounds,
            entries=sum(map(len, log.rounds.values())),
            resumed_after=[],
            repeated=[(number, times) for number, times in again.items() if times > 1],
            torn=log.torn > 0,
            epsilon=epsilon,
            reading=epsilon,
        ),
        second_opinion={name: described(of) for name, of in account.opinions().items()},
        risk={
            name: risk_of(
                account.joint_sensitivities[name],
                noise_multiplier=account.noise_multiplier,
                epsilon=one.epsilon,
                statement=account.said_of,
                status=one.status,
            )
            for name, one in figures.items()
        },
        epsilon_by_round=account.by_round(),
        within_limit={},
        fixes=[],
        utility=utility([]),
        attack=None,
        audit=found.audit,
        measured=measured(found.audit),
        assumptions=assumed(
            log.header,
            sampled=log.sampled,
            stated=log.stated,
            noise_first=log.noise_first,
            held=held,
        ),
        reproduce=Reproduce(
            commands=["overhear account DIR", "overhear report DIR"],
            check=[],
            environment=Environment(),
            files={
                path.name: digest(path)
                for path in (*log.paths, *_kept_beside(log.paths[0].parent, found))
            },
        ),
        declared=_declared(account, held),
    )


def _declared(account: DeclaredAccount, held: Held | None = None) -> Declared:
    log = account.log
    return Declared(
        status=account.status if account.status.is_finite else log.status,
        releases=sum(map(len, log.rounds.values())),
        depends_on="public" if log.header.public else "released",
        checks=None if held is None else KeptChecks.from_object(held),
    )


def _of_other_logs(found: DeclaredSystem) -> Iterator[str]:
    """What lies beside the logs and is of others, or of these before more was released."""
    folder = found.account.log.paths[0].parent
    for name, one in ((CONFORMANCE, found.held), (AUDIT, found.audit)):
        if one is None and (folder / name).exists():
            yield (
                f"{name} beside the logs is of other logs, or of these before they went on, and "
                "counts for nothing here; check or audit again"
            )


def _kept_beside(folder: Path, found: DeclaredSystem) -> list[Path]:
    names = [(CONFORMANCE, found.held), (AUDIT, found.audit)]
    return [folder / name for name, one in names if one is not None]


def _run(log: ReleaseLog) -> Run:
    """What a log says of its system, in place of a run file."""
    header = log.header
    arcs = {
        (release.sender, to)
        for releases in log.distinct
        for release in releases
        for to in (release.to if release.to is not None else range(header.agents))
        if to != release.sender
    }
    among = sorted({(min(arc), max(arc)) for arc in arcs if max(arc) < header.agents})
    shown = among[:MOST_LINKS]
    return Run(
        name=header.system,
        algorithm=header.system,
        form="declared",
        graph="as declared",
        agents=header.agents,
        edges=shown,
        edges_in_all=len(among),
        one_way=[
            arc
            for pair in shown
            for arc in (pair, pair[::-1])
            if arc in arcs and arc[::-1] not in arcs
        ],
        graphs_in_turn=1,
        server=any(header.agents in arc for arc in arcs),
        links_used=bool(among),
        links="encrypted" if header.encrypted else "clear",
        data="not declared",
        records=None,
        duplicate_records=0,
        model="not declared",
        parameters=None,
        rounds=len(log.rounds),
        rounds_done=len(log.rounds),
        finished=True,
        stopped=None,
        sampling_rate=header.rate if header.poisson else 1.0,
        clip_norm=math.inf if header.clip is None else header.clip,
        noise_multiplier=None,
        evaluation_noise_seed=None,
        device="",
    )


def write_declared(folder: Path) -> Path:
    """Write privacy.json and report.html, which is returned, into a folder of logs.

    Raises:
        ValueError: a log that cannot be read.
    """
    report = report_of_logs(account_of_logs([folder]))
    report.write(folder / PRIVACY, mode=SHOWN)
    write_durably(folder / REPORT, render(report).encode(), mode=SHOWN)
    return folder / REPORT
