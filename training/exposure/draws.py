"""Which steps can draw batches that are not Poisson."""

from __future__ import annotations

from ...privacy.batches.drawing import Scheme
from ..tracing.linear_forms import Contributions
from ..tracing.round_trace import RoundTrace
from .sensitivity import UnsupportedMechanism

__all__ = ["check_draws"]


def check_draws(trace: RoundTrace, scheme: Scheme, *, first: int) -> None:
    """Refuse a round that draws a batch at a rate of its own, or that no epoch has room for.

    Args:
        trace: of the round.
        scheme: how batches are drawn; any but Poisson.
        first: the number of the round, 0 for the start.

    Raises:
        UnsupportedMechanism: with the reason, and what can be drawn so.
    """
    groups = [g for g in trace.groups if isinstance(g, Contributions)]
    if any(g.sampling_rate is not None for g in groups):
        raise UnsupportedMechanism(
            f"the step draws a batch at a rate of its own, which batches='{scheme}' does not have; "
            "use round.draw() without a rate, or batches='poisson' without largest_batch"
        )
    batches = {g.batch for g in groups}
    if scheme.in_epochs and batches and (first == 0 or batches != {0}):
        when = "the start draws a batch" if first == 0 else "the step draws several batches a round"
        raise UnsupportedMechanism(
            f"{when}, and an epoch of batches='{scheme}' has one for each round; use "
            "batches='poisson' or 'fixed'"
        )
