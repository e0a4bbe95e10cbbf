"""The witness of a leak: the messages whose combination shows a contribution, with their rounds.

A view of round after round finds the round in which noise cancels, and forgets what was sent before
it. Where noise is used again, what shows it is an earlier message; so all rounds up to that one are
written out as one matrix,

    O_t = C_t S_t-1 + A_t G_t + B_t Z_t
    S_t = F_t S_t-1 + K_t G_t + L_t Z_t

and the rows of O_0 .. O_t whose combination is free of noise are named.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from ...privacy.adversary import Adversary
from ...privacy.errors import UnsupportedView
from ...privacy.view.leak import in_round
from ...privacy.view.view import View
from ..tracing.trace import AlgorithmTrace
from .dense_rounds import DenseRound, dense_rounds, streamed_view

__all__ = ["witness"]

_MOST_ENTRIES = 4_000_000  # of the matrix of all rounds: 32 MB


def witness(
    traces: AlgorithmTrace,
    adversary: Adversary,
    *,
    victim: int,
    ended: bool = True,
    closed: bool = False,
) -> tuple[str, ...]:
    """The messages, in their order, that show a contribution of the victim; none if nothing does.

    Args:
        traces: of a run, or of its first rounds.
        adversary: who sees.
        victim: the agent that holds the record.
        ended: whether the traces are a whole run, whose last models are released.
        closed: whether what the view is closed with counts as seen, such as the points at which
            gradients are taken. A witness without it is what the adversary was sent.

    Raises:
        UnsupportedView: rounding hides what is shown, or a round is too large.
    """
    seen: dict[str, bool] = {"ended": ended, "closed": closed}
    view = streamed_view(traces, adversary, victims=[victim], until_leak=True, **seen)
    shown = view.leaks(victim)
    if not shown:
        return ()
    rounds = dense_rounds(traces, adversary, victims=[victim], **seen)
    return _across(list(itertools.islice(rounds, view.round + 1))) or shown


def _across(rounds: Sequence[DenseRound]) -> tuple[str, ...]:
    """What leaks from rounds written out as one matrix; nothing where that would be too large."""
    rows = sum(len(one.seen.carried) for one in rounds)
    widths = [(one.seen.contributions.shape[1], one.seen.noise.shape[1]) for one in rounds]
    columns, sources = sum(c for c, _ in widths), sum(n for _, n in widths)
    if rows * (columns + sources) > _MOST_ENTRIES:
        return ()
    # Each round over the columns of all rounds; its own stand behind those of the rounds before.
    state = np.zeros((rounds[0].seen.carried.shape[1], columns + sources))
    seen, names = [np.zeros((0, columns + sources))], list[str]()
    at, source = 0, columns
    for number, (one, (added, noise)) in enumerate(zip(rounds, widths, strict=True)):
        seen.append(one.seen.carried @ state)
        after = one.carried.carried @ state
        for rows_of, block in ((one.seen, seen[-1]), (one.carried, after)):
            block[:, at : at + added] += rows_of.contributions
            block[:, source : source + noise] += rows_of.noise
        names += [in_round(name, number) for name in one.messages]
        state, at, source = after, at + added, source + noise
    matrix = np.vstack(seen)
    view = View(contributions=matrix[:, :columns], noise=matrix[:, columns:], messages=names)
    try:
        return view.leaks(range(columns))
    except UnsupportedView:  # the names of the last round alone are sure
        return ()
