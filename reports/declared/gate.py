"""The gate for declared releases: a policy passes them only where it says that it does.

    [evidence]
    declared = "checked"     figures of a list that kept releases agree with
    declared = "trusted"     figures of any list

Without the key a declared figure passes no limit, whatever it is. What a policy asks for that a
list cannot give, such as an audit of the engine, is missing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from ...privacy.guarantee import Status
from ...privacy.plain_text import plain
from ...runs.folder.signature import Signed
from ...runs.numbers import bound, small
from ...runs.recorder.conformance.written import Held
from ...training.accounts.declared import DeclaredAccount
from ..judgement.facts import Asked
from ..judgement.findings import Kind
from ..judgement.gate import Decision, Outcome, Requirement, limit_name
from ..judgement.policy import Evidence, Limit, Policy
from ..judgement.sentence import KINDS, fill, text_of

__all__ = ["decide_declared"]


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
        for asked in Asked.of_limit(limit)
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
    asked: Asked, account: DeclaredAccount, evidence: Evidence, victim: int | None
) -> Requirement:
    outcome, said = _held(asked, account, evidence=evidence, victim=victim)
    return Requirement(
        name=plain(limit_name(asked)), outcome=outcome, sentence=plain(said, most=None)
    )


def _held(
    asked: Asked, account: DeclaredAccount, *, evidence: Evidence, victim: int | None
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
