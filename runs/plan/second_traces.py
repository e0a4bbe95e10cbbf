"""What a second tracer says of the joint sensitivities behind a plan."""

from __future__ import annotations

from collections.abc import Mapping

from ...training.accounts.traced_twice import TracedTwice, Verdict, check_account
from ..numbers import figure
from ..run_file.run_file import RunFile
from .plan import Plan

__all__ = ["contradicted_trace", "second_traces", "trace_words"]

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
    if plan.account is None:
        return {}
    victim = None if config.privacy is None else config.privacy.victim
    return check_account(plan.account, victim=victim, seconds=seconds)


def trace_words(found: TracedTwice) -> str:
    """The verdict in a clause.

    >>> trace_words(TracedTwice(adversary="eavesdropper", who="eavesdropper", victim=0, first=2.0,
    ...     second=2.0, verdict=Verdict.AGREES))
    'agrees: 2.000 over all rounds'
    """
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
    said = [
        f"a second tracer finds more against {name} than is stated ({one.because})"
        for name, one in found.items()
        if one.verdict is Verdict.CONTRADICTED
    ]
    return "; ".join(said) and f"{'; '.join(said)}: do not rely on any figure, and report it"
