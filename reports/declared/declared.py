"""The report on declared releases: figures, assumptions and, where a policy asks, a decision."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...privacy.accounting.request import Accountant, Adjacency
from ...privacy.guarantee import Statement, Status
from ...privacy.releases.log import read_log
from ...runs.folder.signature import Signed, check_signature
from ...runs.recorder.conformance.written import Held, read_held
from ...training.accounts.declared import DeclaredAccount, account_of_releases
from ..judgement.gate import Decision
from ..judgement.policy import Policy
from .assumptions import Assumed, assumed
from .gate import decide_declared

__all__ = ["DELTA", "DeclaredReport", "check_declared", "declared_report"]

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
                {"number": one.number, "text": one.text, "how": one.how, "checked": one.checked}
                for one in self.assumptions
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
            {"name": one.name, "outcome": str(one.outcome), "sentence": one.sentence}
            for one in decision.requirements
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
    for delta, adjacency in dict.fromkeys((one.at_delta, one.adjacency) for one in policy.limits):
        statement = Statement(delta=delta, adjacency=Adjacency(adjacency), unit=log.header.unit)
        limited = [
            one.adversary
            for one in policy.limits
            if (one.at_delta, one.adjacency) == (delta, adjacency)
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
        asked += [one.adversary for one in policy.limits if one.adversary not in asked]
    statement = Statement(
        delta=delta, adjacency=adjacency, unit=log.header.unit, accountant=accountant
    )
    held = read_held(log.paths)
    status = Status.DECLARED if held is None else held.status
    found = account_of_releases(
        log, statement=statement, adversaries=asked, victim=victim, status=status
    )
    if policy is not None:
        more = [one.adversary for one in policy.limits if one.adversary not in found.guarantees]
        if more:
            found = account_of_releases(
                log, statement=statement, adversaries=[*found, *more], victim=victim, status=status
            )
    return DeclaredReport(
        account=found,
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
        else decide_declared(policy, lambda _: found, victim=victim, held=held, signed=signed),
        held=held,
    )
