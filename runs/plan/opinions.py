"""What a second accountant, and a second tracer, say of a plan's figures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ...privacy.reference import second_opinion as reference
from ...training.exposure.guarantees import opinion_on
from ...training.exposure.sensitivity import JointSensitivity
from ..numbers import bound, figure, lower_bound
from .schema import Planned, SecondOpinion

if TYPE_CHECKING:
    from ...training.accounts.traced_twice import TracedTwice
    from ..run_file.run_file import RunFile
    from .plan import Plan


def with_opinions(plan: Plan) -> Planned:
    """The object of `overhear plan --format json`, with a second opinion on each figure."""
    epsilon = {g.adversary: g.epsilon for g in plan.guarantees}
    found = opinions(plan, plan.exposures, epsilon)
    return plan.planned().model_copy(update={"second_opinion": found})


def opinions(
    plan: Plan, exposures: Mapping[str, JointSensitivity], epsilon: Mapping[str, float]
) -> dict[str, SecondOpinion]:
    """A second opinion on epsilon of each adversary; equal releases are asked about once.

    Args:
        plan: gives the statement and the noise.
        exposures: by adversary the releases that epsilon is of, planned or accounted.
        epsilon: by adversary.
    """
    return {
        name: described(
            opinion_on(
                epsilon[name],
                exposure,
                statement=plan.said_of,
                noise_multiplier=plan.noise_multiplier,
            )
        )
        for name, exposure in exposures.items()
    }


def described(found: reference.SecondOpinion) -> SecondOpinion:
    """As JSON holds it."""
    verdict = "none"
    if not found.because:
        verdict = "confirmed" if found.confirms else "not confirmed"
        verdict = "contradicted" if found.contradicts else verdict
    return SecondOpinion.model_validate(
        {
            "by": found.by,
            "epsilon": found.ours,
            "optimistic": found.optimistic,
            "pessimistic": found.pessimistic,
            "ratio": found.ratio,
            "verdict": verdict,
            "because": found.because,
        }
    )


def bracket_words(found: SecondOpinion) -> str:
    """The bracket in a clause, or why there is none."""
    if found.optimistic is None or found.pessimistic is None or found.ratio is None:
        return f"none: {found.because}"
    if float(found.pessimistic) == 0.0:
        return "epsilon is 0"
    ends = f"epsilon between {lower_bound(found.optimistic)} and {bound(found.pessimistic)}"
    said = f"{ends}, and ours is {figure(found.ratio, 4)} of the upper one"
    if found.verdict == "contradicted":
        return f"CONTRADICTED: {said}; do not rely on it, and report it"
    return said


def contradiction(found: Mapping[str, SecondOpinion]) -> str:
    """The sentence for figures that a second opinion contradicts; empty where none does."""
    said = [
        f"{one.by} puts epsilon against {name} at no less than {float(one.optimistic):.6g}, more "
        f"than the {float(one.epsilon):.6g} that is stated"
        for name, one in found.items()
        if one.verdict == "contradicted" and one.optimistic is not None
    ]
    return "; ".join(said) and f"{'; '.join(said)}: do not rely on any figure, and report it"


# What a second tracer says of the joint sensitivities behind a plan.

_SECONDS = 20.0


def second_traces(
    config: RunFile, plan: Plan, *, seconds: float = _SECONDS
) -> dict[str, TracedTwice]:
    """A second trace of what every adversary of a plan is told; none of a plan of no run file.

    Args:
        config: the run file.
        plan: of it.
        seconds: that all of it may take; what it does not reach is not checked.
    """
    from ...training.accounts.traced_twice import check_account

    if plan.account is None:
        return {}
    victim = None if config.privacy is None else config.privacy.victim
    return check_account(plan.account, victim=victim, seconds=seconds)


def trace_words(found: TracedTwice) -> str:
    """The verdict in a clause.

    >>> from overhear.training.accounts.traced_twice import TracedTwice, Verdict
    >>> trace_words(TracedTwice(adversary="eavesdropper", who="eavesdropper", victim=0, first=2.0,
    ...     second=2.0, verdict=Verdict.AGREES))
    'agrees: 2.000 over all rounds'
    """
    from ...training.accounts.summary import Verdict

    if found.second is None:
        return f"not checked: {found.because}"
    ends = f"{figure(found.second, 4)} over all rounds"
    if found.verdict is Verdict.AGREES:
        return f"agrees: {ends}"
    ours = figure(found.first, 4)
    if found.verdict is Verdict.LOOSER:
        return f"finds no more: {ends}, and {ours} is stated"
    return f"CONTRADICTED: {found.because}; {ends}, and {ours} is stated"


def contradicted_trace(found: Mapping[str, TracedTwice]) -> str:
    """The sentence for figures that a second tracer contradicts; empty without any."""
    from ...training.accounts.summary import Verdict

    said = [
        f"a second tracer finds more against {name} than is stated ({one.because})"
        for name, one in found.items()
        if one.verdict is Verdict.CONTRADICTED
    ]
    return "; ".join(said) and f"{'; '.join(said)}: do not rely on any figure, and report it"
