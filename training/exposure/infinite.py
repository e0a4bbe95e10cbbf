"""What becomes of joint sensitivities that are infinite round by round.

All rounds together may have a finite one. Where they have none, either a message shows a
contribution without noise, and is named, or a finite figure may hold and is not to be had here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ...privacy.batches.patterns import Pattern
from ...privacy.errors import UnsupportedView
from ...privacy.guarantee import Adversary, Sees, Status
from ...privacy.participation import Reach
from ...privacy.view.elimination import leak_sentence
from ..tracing.linear_forms import Contributions, NoiseSources
from ..tracing.record import GRADIENTS_AT
from ..tracing.round_trace import UNCLIPPED
from ..tracing.trace import AlgorithmTrace
from .candidates import candidates
from .dense_rounds import witness
from .sensitivity import JointSensitivity, Release, effective_of
from .whole_run import InAllRounds, whole_run_joint_sensitivities

MOST_WORK = 3e10  # multiplications; half a minute or so
_TOO_LARGE = "the run is too large for a view of all its rounds together"
_FIRST = 4  # rounds in which a leak is looked for where the whole run is too large


def replace_infinite_by_whole_run(
    traces: AlgorithmTrace,
    found: Sequence[tuple[str, JointSensitivity]],
    *,
    how: InAllRounds,
    victim: int | None = None,
) -> list[tuple[str, JointSensitivity]]:
    """Joint sensitivities, those that are infinite round by round replaced by the whole run's.

    Unless a pattern is stated every record may take part in every round, which holds for any
    sampler; where one is, finite ones are replaced, too. One stays infinite where
    a contribution is unbounded, or where messages of the whole run show one without noise: then
    nothing protects, and these messages are named. It stays infinite, too, where only what the view
    is closed with shows one, where the run is too large for a view of all rounds, and where
    rounding hides what that shows; then a finite figure may hold and cannot be expressed.
    """
    settled = []
    for name, sensitivity in found:
        by_rounds = sensitivity.adversary.sees is not Sees.ONE_MESSAGE
        leaks = by_rounds and sensitivity.status is Status.NO_PROTECTION
        # An unbounded contribution leaks whatever other rounds hide.
        if by_rounds and math.isinf(sensitivity.largest) and not _bounded(traces):
            settled.append((name, _with_message(traces, sensitivity, encrypted=how.encrypted)))
        elif by_rounds and (leaks or not how.pattern.is_every):
            settled.append((name, _together(traces, name, sensitivity, how, victim=victim)))
        else:
            one = sensitivity if by_rounds else _largest(sensitivity, how.pattern, traces)
            settled.append((name, one))
    return settled


def _largest(
    sensitivity: JointSensitivity, pattern: Pattern, traces: AlgorithmTrace
) -> JointSensitivity:
    """That of a single message in the rounds that a record may be in: those that cost most."""
    planned = sum(count for _, count in traces.rounds)
    rounds = pattern.most_rounds(planned)
    if rounds >= sum(r.rounds for r in sensitivity.releases if r.first):
        return sensitivity
    kept, left = list[Release](), rounds
    for r in sorted(sensitivity.releases, key=lambda r: -r.joint_sensitivity):
        if left:
            kept.append(r._replace(rounds=min(r.rounds, left), first=0, reach=Reach.SUM))
            left -= kept[-1].rounds
    return sensitivity._replace(releases=tuple(kept), planned=planned)


def _together(
    traces: AlgorithmTrace,
    name: str,
    sensitivity: JointSensitivity,
    how: InAllRounds,
    *,
    victim: int | None,
) -> JointSensitivity:
    """That of all rounds together if it is finite, or else as it was, with what shows it."""
    encrypted = how.encrypted
    if _work(traces, candidates(traces, name, victim)) > MOST_WORK:
        return _open(traces, sensitivity, _TOO_LARGE, encrypted=encrypted)
    # All rounds as one view, in which noise may hide what it does not in a round alone.
    try:
        ((_, whole),) = whole_run_joint_sensitivities(
            traces,
            [name],
            participation=how.pattern,
            sampling_rate=how.sampling_rate,
            victim=victim,
            encrypted=encrypted,
            amplified=how.amplified,
        )
        if math.isfinite(whole.largest):
            return whole
        if math.isfinite(sensitivity.largest):
            return sensitivity
        # Messages that show the record, or else do so with what counts as public.
        who = effective_of(whole.adversary, encrypted=encrypted)
        shown = witness(traces, who, victim=whole.victim)
        counted = shown or witness(traces, who, victim=whole.victim, closed=True)
    except UnsupportedView as reason:
        return _open(traces, sensitivity, f"of all rounds together: {reason}", encrypted=encrypted)
    if not counted:  # the two methods differ by rounding; the larger figure stands
        return _open(
            traces, sensitivity, f"of all rounds together: {whole.because}", encrypted=encrypted
        )
    # Without a message that shows it, the figure cannot be expressed, which is not a leak.
    because = leak_sentence(counted)
    if not shown:
        because = f"{because}; no message shows it, but it is treated as public"
    if not shown and any(name.startswith(GRADIENTS_AT) for name in counted):
        because = f"{because}; for several local steps under one noise use round.local_update"
    return sensitivity._replace(
        adversary=whole.adversary,
        victim=whole.victim,
        status=Status.NO_PROTECTION if shown else Status.CANNOT_BE_EXPRESSED,
        because=because,
    )


def _open(
    traces: AlgorithmTrace, sensitivity: JointSensitivity, said: str, *, encrypted: bool
) -> JointSensitivity:
    """One of a run whose view of all rounds is not to be had, for the reason that is said."""
    if math.isfinite(sensitivity.largest):  # holds of every round, whoever's turn it is
        return sensitivity
    shown = _shown_first(traces, sensitivity, encrypted=encrypted)
    if shown:
        return sensitivity._replace(because=leak_sentence(shown))
    because = f"{sensitivity.because}; {said}"
    if said == _TOO_LARGE:  # that is why; what one round shows is no leak of the run
        because = (
            f"{said} (take fewer rounds or agents, or noise that is remembered for less long); "
            f"round by round, {sensitivity.because}"
        )
    return sensitivity._replace(status=Status.CANNOT_BE_EXPRESSED, because=because)


def _with_message(
    traces: AlgorithmTrace, sensitivity: JointSensitivity, *, encrypted: bool
) -> JointSensitivity:
    """One without clipping, with the first message that shows a gradient in place of a state."""
    shown = _shown_first(traces, sensitivity, encrypted=encrypted)
    if not shown or not sensitivity.because.startswith(UNCLIPPED):
        return sensitivity
    return sensitivity._replace(because=f"{UNCLIPPED}; {leak_sentence(shown)}")


def _shown_first(
    traces: AlgorithmTrace, sensitivity: JointSensitivity, *, encrypted: bool
) -> tuple[str, ...]:
    """What the first rounds show of the victim without noise; nothing where that is not known."""
    who, victim = sensitivity.adversary, sensitivity.victim
    first = _first_rounds(traces, _FIRST)
    if _work(first, [(who, [victim])]) > MOST_WORK:
        return ()
    ended = sum(n for _, n in first.rounds) == sum(n for _, n in traces.rounds)
    try:
        seeing = effective_of(who, encrypted=encrypted)
        return witness(first, seeing, victim=victim, ended=ended)
    except UnsupportedView:  # too large, or rounding hides what is shown
        return ()


def _first_rounds(traces: AlgorithmTrace, most: int) -> AlgorithmTrace:
    kept, left = [], most
    for part, count in traces.rounds:
        if left:
            kept.append((part, min(count, left)))
            left -= kept[-1][1]
    return traces._replace(rounds=kept)


def _bounded(traces: AlgorithmTrace) -> bool:
    parts = [traces.start, *(part for part, _ in traces.rounds)]
    groups = (g for part in parts for g in part.groups if isinstance(g, Contributions))
    return all(np.isfinite(g.bounds).all() for g in groups)


def _work(traces: AlgorithmTrace, asked: Sequence[tuple[Adversary, Sequence[int]]]) -> float:
    """About how many multiplications the views of all rounds take."""
    carried = sum(m.shape[0] for m in traces.start.record.end_state.values())
    rounds = columns = sources = 0
    for part, count in traces.rounds:
        width = sum(g.size for g in part.groups if isinstance(g, Contributions))
        rounds, columns = rounds + count, columns + count * width
        sources = max(sources, sum(g.size for g in part.groups if isinstance(g, NoiseSources)))
    victims = sum(len(of) for _, of in asked) / traces.start.record.agents
    return work_of(carried, columns=columns, sources=sources, rounds=rounds) * victims


def work_of(carried: int, *, columns: int, sources: int, rounds: int) -> float:
    """About how many multiplications a view of all rounds takes.

    Args:
        carried: rows that outlive a round.
        columns: contributions of all rounds.
        sources: of noise, in a round.
        rounds: of the run.

    >>> f"{work_of(2950, columns=500, sources=10, rounds=50):.3g}"
    '2.18e+10'
    """
    # What is carried is carried by dense products, or of a history by single entries.
    dense, sparse = 0.5 * carried**2 * columns, carried * (60.0 * columns + 4.0 * carried * sources)
    return min(dense, sparse) * rounds
