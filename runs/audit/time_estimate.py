"""A few rounds with canaries, played for their time before an audit begins; nothing is kept."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

import numpy as np

from ...attacks.audit.agents_game import AgentGame
from ...attacks.audit.game import Game
from ..cost import Cost, Expect

_MOST_SHARE = 0.05  # of all rounds, that are played for their time
_TIMED = 3  # rounds
_SLOW_S = 5.0  # so long a first round is time enough
_A_CHECK = 12.0
"""Rounds with canaries that the checks take for one that they watch.

Between 10 and 16 in audits of an MLP of digits, of LeNet on MNIST, and of noise that is correlated
over time.
"""
_ALL_CHECKS = 5.0
"""What all checks take, in times of the first run that they watch.

Between 3.1 and 4.7 in audits with an MLP of digits where these rounds took two seconds or more
(DPDL, MAFALDA, DP-NETFLEET, DP-FedAvg), and above 6.6 for DPDL with LeNet on MNIST. Of shorter
rounds it is more, and nothing is told.
"""


class _EnoughError(Exception):
    """The rounds that are timed were played."""


def cost_of(game: Game, *, watched: int) -> Cost | None:
    """What checks and rounds with canaries will take; None where a trial would be a large part.

    The trial has coins of its own, and its noise and batches come from the system's entropy, so an
    audit is the same with and without it.

    Args:
        game: what will be played.
        watched: rounds that the checks look at.
    """
    if isinstance(game, AgentGame) and game.runs * _MOST_SHARE < 1:  # it tells of whole runs
        return None
    times: list[tuple[int, float]] = []
    rounds = 0

    def timed(done: int, total: int, _: str) -> None:
        nonlocal rounds
        rounds = total
        if _MOST_SHARE * total < _TIMED:
            raise _EnoughError
        times.append((done, time.monotonic()))
        slow = len(times) > 1 and times[-1][1] - times[-2][1] > _SLOW_S
        if slow or len(times) > _TIMED:
            raise _EnoughError

    with contextlib.suppress(_EnoughError):
        game.play(generator=np.random.default_rng(), progress=timed)
    if len(times) < 2:
        return None
    # The first of several rounds warms the machine up.
    (before, begun), (done, ended) = times[1 if len(times) > 2 else 0], times[-1]
    return Cost(
        (ended - begun) / (done - before) * (rounds + _A_CHECK * watched),
        rounds,
        f"checks of {watched} rounds, and {rounds} rounds with canaries",
    )


def pricing_checks(expect: Expect, *, watched: int) -> Callable[[int], None]:
    """What hears of each watched round, and tells after the second what the checks will take.

    It is for audits that no trial prices: nothing is played with canaries, or too little for one.
    The first round warms the machine up, so the second one stands for all others.

    Args:
        expect: called once, with a cost that covers no step of the audit's progress.
        watched: rounds that the checks look at.
    """
    ends = [time.monotonic()]

    def heard(done: int) -> None:
        ends.append(time.monotonic())
        if done == min(2, watched):
            first, last = ends[1] - ends[0], ends[-1] - ends[-2]
            seconds = _ALL_CHECKS * (first + (watched - 1) * last)
            rounds = f"{watched} {'round' if watched == 1 else 'rounds'}"
            expect(Cost(seconds, 0, f"checks of {rounds}"))

    return heard
