"""The report on declared releases: figures, assumptions and, where a policy asks, a decision."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...privacy.accounting.names import Accountant
from ...privacy.accounting.request import Adjacency
from ...privacy.guarantee import Statement, Status
from ...privacy.plain_text import plain
from ...privacy.releases.log import read_log
from ...runs.folder.signature import Signed, check_signature
from ...runs.numbers import bound, small
from ...runs.recorder.outcome import Held, read_held
from ...training.accounts.declared import DeclaredAccount, account_of_releases
from ..judgement.facts import FigureRequirement
from ..judgement.findings import Kind, Outcome
from ..judgement.gate import Decision, Requirement, limit_name
from ..judgement.policy import Evidence, Limit, Policy
from ..judgement.sentence import KINDS, fill, text_of
from .assumptions import Assumed, assumed

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

    Args:
        policy: what must hold.
        account: of the log, for each limit of the policy one that holds its adversary.
        victim: the agent that figures are about, where they are about one alone.
        held: what checks of kept releases found.
        signed: whether a key of the policy signed the logs; None where nobody looked.
    """
    accounts = [account(limit) for limit in policy.limits]
    found = [
        _limited(asked, one, policy.evidence, victim)
        for limit, one in zip(policy.limits, accounts, strict=True)
        for asked in FigureRequirement.of_limit(limit)
    ]
    if held is not None:
        found.append(_checks(held))
    found += _evidence(policy.evidence, accounts[0])
    if policy.evidence.signed_by:
        signed = signed or Signed(False, "logs are signed by folder, so name the folder alone")
        kind = Kind.SIGNED if signed.passed else Kind.NOT_SIGNED
        said = text_of(fill(KINDS[kind], said=signed.said))
        found.append(Requirement(name="evidence: signature", outcome=kind.outcome, sentence=said))
    return Decision(requirements=found, notes=tuple(accounts[0].warnings))


def _limited(
    asked: FigureRequirement, account: DeclaredAccount, evidence: Evidence, victim: int | None
) -> Requirement:
    outcome, said = _held(asked, account, evidence=evidence, victim=victim)
    return Requirement(
        name=plain(limit_name(asked)), outcome=outcome, sentence=plain(said, most=None)
    )


def _held(
    asked: FigureRequirement, account: DeclaredAccount, *, evidence: Evidence, victim: int | None
) -> tuple[Outcome, str]:
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
        log, said = self.account.log, self.account.statement
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
            "assumptions": [
                {
                    "number": assumption.number,
                    "text": assumption.text,
                    "how": assumption.how,
                    "checked": assumption.checked,
                }
                for assumption in self.assumptions
            ],
            "warnings": list(self.account.warnings),
            "checks": None
            if self.held is None
            else {
                "said": self.held.said,
                "rounds": list(self.held.rounds),
                "passed": list(self.held.passed),
                "failed": list(self.held.failed),
            },
            **({} if self.decision is None else {"policy": _decided(self.decision)}),
        }


def _decided(decision: Decision) -> dict[str, Any]:
    return {
        "outcome": str(decision.outcome),
        "exit_code": decision.exit_code,
        "requirements": [
            {
                "name": requirement.name,
                "outcome": str(requirement.outcome),
                "sentence": requirement.sentence,
            }
            for requirement in decision.requirements
        ],
    }


def check_declared(folder: Path, policy: Policy) -> Decision:
    """Hold the logs of a folder against a policy, each limit at its own delta and adjacency.

    Raises:
        ValueError: a log that cannot be read.
    """
    signed = _signed([folder], policy)  # before anything of it is read
    log = read_log(folder)
    held = read_held(log.paths)
    status = Status.DECLARED if held is None else held.status
    accounts = dict[tuple[float, str], DeclaredAccount]()
    for delta, adjacency in dict.fromkeys(
        (limit.at_delta, limit.adjacency) for limit in policy.limits
    ):
        statement = Statement(delta=delta, adjacency=Adjacency(adjacency), unit=log.header.unit)
        limited = [
            limit.adversary
            for limit in policy.limits
            if (limit.at_delta, limit.adjacency) == (delta, adjacency)
        ]
        accounts[delta, adjacency] = account_of_releases(
            log, statement=statement, adversaries=limited, status=status
        )
    return decide_declared(
        policy,
        lambda one: accounts[one.at_delta, one.adjacency],
        held=held,
        signed=signed,
    )


def _signed(paths: Sequence[Path], policy: Policy) -> Signed | None:
    """Whether a key of the policy signed the one folder of all logs."""
    keys = policy.evidence.signed_by
    return (
        check_signature(paths[0], keys) if keys and len(paths) == 1 and paths[0].is_dir() else None
    )


def declared_report(
    paths: Sequence[Path],
    *,
    delta: float,
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
    signed = None if policy is None else _signed(paths, policy)
    log = read_log(list(paths), absent=absent)
    asked = list(adversaries)
    if policy is not None and asked:
        asked += [limit.adversary for limit in policy.limits if limit.adversary not in asked]
    statement = Statement(
        delta=delta, adjacency=adjacency, unit=log.header.unit, accountant=accountant
    )
    held = read_held(log.paths)
    status = Status.DECLARED if held is None else held.status
    declared_account = account_of_releases(
        log, statement=statement, adversaries=asked, victim=victim, status=status
    )
    if policy is not None:
        more = [
            limit.adversary
            for limit in policy.limits
            if limit.adversary not in declared_account.guarantees
        ]
        if more:
            declared_account = account_of_releases(
                log,
                statement=statement,
                adversaries=[*declared_account, *more],
                victim=victim,
                status=status,
            )
    return DeclaredReport(
        account=declared_account,
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
        else decide_declared(
            policy, lambda _: declared_account, victim=victim, held=held, signed=signed
        ),
        held=held,
    )
