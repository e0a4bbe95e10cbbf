"""What dp-accounting says of the releases behind the figures of a plan, or of a run's ledger."""

from __future__ import annotations

from collections.abc import Mapping

from ...privacy.reference import second_opinion as reference
from ...training.accounts.opinions import opinion_on
from ...training.exposure.sensitivity import JointSensitivity
from ..numbers import bound, figure, lower_bound
from .plan import Plan
from .schema import Planned, SecondOpinion

__all__ = ["bracket_words", "contradiction", "described", "opinions", "with_opinions"]


def with_opinions(plan: Plan) -> Planned:
    """The object that `overhear plan --json` prints, with a second opinion on each figure."""
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
                statement=plan.statement,
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
    """The bracket in a clause, or why there is none.

    >>> from ...privacy import second_opinion
    >>> asked = second_opinion({(1.0, 0.01): 1000}, ours=1.8283, delta=1e-5)
    >>> bracket_words(described(asked))
    'epsilon between 1.70 and 1.83, and ours is 1.000 of the upper one'
    """
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
