"""Joint sensitivity of a whole run whose state is carried without noise: participation is stated.

A round's closed view counts the state that the step returns as seen. Where records or noise stay in
that state (a momentum or a recursion that is released only with noise on top), the round by itself
costs infinity although the run may not. Here the state is carried from round to round as rows over
everything that ever entered it, and only what is sent, the points at which gradients are taken and
the final models count as seen.

A record then acts through every batch that it was in, so batches cannot be accounted for one by
one, and sampling does not amplify. What is stated instead is in how many rounds a record may take
part:

    "every"      all of them: what holds for Poisson batches, which may draw a record every time
    k            at most k rounds, whichever they are: a promise about the sampler
    (3, 7, ...)  exactly these rounds; 0 is the start

The joint sensitivity is that of the run, so the epsilon of one release of multiplier (noise
multiplier / joint sensitivity) is the epsilon of the run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ...privacy.adversary import Adversary, Sees
from ...privacy.errors import InputError
from ...privacy.guarantee import Status
from ...privacy.view.leak import leak_sentence
from ...privacy.view.view import UnsupportedView
from ...privacy.view.whole_run import StreamedView
from ..tracing.linear_forms import Contributions
from ..tracing.round_trace import UNCLIPPED
from ..tracing.trace import AlgorithmTrace
from .candidates import candidates
from .dense_rounds import contributions_of, streamed_view
from .joint_sensitivities import JointSensitivity, Release, single_message, worst
from .witness import witness

Participation = str | int | Sequence[int]
EVERY = "every"
_MOST_WORK = 1e10  # multiplications; a quarter of a minute or so
_FIRST = 4  # rounds in which a leak is looked for where the whole run is too large


def whole_run_joint_sensitivities(
    traces: AlgorithmTrace,
    names: Sequence[str],
    *,
    participation: Participation,
    sampling_rate: float,
    victim: int | None = None,
    encrypted: bool = False,
) -> list[tuple[str, JointSensitivity]]:
    """The whole run's joint sensitivity to each adversary, of `victim` or else the worst agent.

    Args:
        traces: made at noise multiplier 1.
        names: as in `joint_sensitivities`.
        participation: "every", a number of rounds, or the rounds themselves.
        sampling_rate: of a single message's figure; the other figures do not depend on it.
        victim: the agent whose record is at risk; None searches the worst one.
        encrypted: the eavesdropper cannot read links and sees the released final models alone.

    Raises:
        ValueError: participation that is no number of rounds of the run.
        UnsupportedView: the adversary contains the victim, or rounding hides whether noise cancels.
    """
    rounds = sum(count for _, count in traces.rounds)
    _check_participation(participation, rounds)
    found = []
    for name in names:
        every: list[JointSensitivity] = []
        for who, victims in candidates(traces, name, victim):
            if who.sees is Sees.ONE_MESSAGE:
                every += [single_message(traces, who, v, rate=sampling_rate) for v in victims]
                continue
            effective = _effective(who, encrypted=encrypted)
            every += _of(traces, who, victims, effective=effective, participation=participation)
        found.append((name, worst(every)))
    return found


def replace_infinite_by_whole_run(
    traces: AlgorithmTrace,
    found: Sequence[tuple[str, JointSensitivity]],
    *,
    sampling_rate: float,
    victim: int | None = None,
    encrypted: bool = False,
) -> list[tuple[str, JointSensitivity]]:
    """Joint sensitivities, those that are infinite round by round replaced by the whole run's.

    Every record may take part in every round, which holds for any sampler. One stays infinite where
    a contribution is unbounded, or where messages of the whole run show one without noise: then
    nothing protects, and these messages are named. It stays infinite, too, where only what the view
    is closed with shows one, where the run is too large for a view of all rounds, and where
    rounding hides what that shows; then a finite figure may hold and cannot be expressed.
    """
    settled = []
    for name, sensitivity in found:
        by_rounds = sensitivity.adversary.sees is not Sees.ONE_MESSAGE
        leaks = by_rounds and sensitivity.status is Status.NO_PROTECTION
        if leaks and not _bounded(traces):
            settled.append((name, _with_message(traces, sensitivity, encrypted=encrypted)))
        elif leaks:
            settled.append(
                (
                    name,
                    _together(
                        traces,
                        name,
                        sensitivity,
                        sampling_rate=sampling_rate,
                        victim=victim,
                        encrypted=encrypted,
                    ),
                )
            )
        else:
            settled.append((name, sensitivity))
    return settled


def _together(
    traces: AlgorithmTrace,
    name: str,
    sensitivity: JointSensitivity,
    *,
    sampling_rate: float,
    victim: int | None,
    encrypted: bool,
) -> JointSensitivity:
    """That of all rounds together if it is finite, or else as it was, with what shows it."""
    if _work(traces, candidates(traces, name, victim)) > _MOST_WORK:
        said = "the run is too large for a view of all its rounds together"
        return _open(traces, sensitivity, said, encrypted=encrypted)
    try:
        ((_, whole),) = whole_run_joint_sensitivities(
            traces,
            [name],
            participation=EVERY,
            sampling_rate=sampling_rate,
            victim=victim,
            encrypted=encrypted,
        )
        if math.isfinite(whole.largest):
            return whole
        who = _effective(whole.adversary, encrypted=encrypted)
        shown = witness(traces, who, victim=whole.victim)
        counted = shown or witness(traces, who, victim=whole.victim, closed=True)
    except UnsupportedView as reason:
        return _open(traces, sensitivity, f"of all rounds together: {reason}", encrypted=encrypted)
    because = leak_sentence(counted)
    return sensitivity._replace(
        adversary=whole.adversary,
        victim=whole.victim,
        status=Status.NO_PROTECTION if shown else Status.CANNOT_BE_EXPRESSED,
        because=because if shown else f"{because}; no message shows it, but it counts as seen",
    )


def _open(
    traces: AlgorithmTrace, sensitivity: JointSensitivity, said: str, *, encrypted: bool
) -> JointSensitivity:
    """One of a run whose view of all rounds is not to be had, for the reason that is said."""
    shown = _shown_first(traces, sensitivity, encrypted=encrypted)
    if shown:
        return sensitivity._replace(because=leak_sentence(shown))
    return sensitivity._replace(
        status=Status.CANNOT_BE_EXPRESSED, because=f"{sensitivity.because}; {said}"
    )


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
    if _work(first, [(who, [victim])]) > _MOST_WORK:
        return ()
    ended = sum(n for _, n in first.rounds) == sum(n for _, n in traces.rounds)
    try:
        seeing = _effective(who, encrypted=encrypted)
        return witness(first, seeing, victim=victim, ended=ended)
    except UnsupportedView:  # too large, or rounding hides what is shown
        return ()


def _first_rounds(traces: AlgorithmTrace, most: int) -> AlgorithmTrace:
    kept, left = [], most
    for part, count in traces.rounds:
        if left:
            kept.append((part, min(count, left)))
            left -= kept[-1][1]
    return AlgorithmTrace(traces.start, kept)


def _effective(who: Adversary, *, encrypted: bool) -> Adversary:
    """The adversary with what encrypted links leave of its view."""
    if encrypted and who.sees is Sees.LINKS:
        return Adversary(name=who.name, sees=Sees.END_STATES)
    return who


def _bounded(traces: AlgorithmTrace) -> bool:
    parts = [traces.start, *(part for part, _ in traces.rounds)]
    groups = (g for part in parts for g in part.groups if isinstance(g, Contributions))
    return all(np.isfinite(g.bounds).all() for g in groups)


def _work(traces: AlgorithmTrace, asked: Sequence[tuple[Adversary, Sequence[int]]]) -> float:
    """About how many multiplications the views of all rounds take."""
    carried = sum(m.shape[0] for m in traces.start.record.end_state.values())
    rounds = columns = 0
    for part, count in traces.rounds:
        width = sum(g.size for g in part.groups if isinstance(g, Contributions))
        rounds, columns = rounds + count, columns + count * width
    victims = sum(len(of) for _, of in asked) / traces.start.record.agents
    return 0.5 * carried**2 * columns * rounds * victims


def _of(
    traces: AlgorithmTrace,
    who: Adversary,
    victims: Sequence[int],
    *,
    effective: Adversary,
    participation: Participation,
) -> list[JointSensitivity]:
    inside = sorted(set(victims) & who.agents)
    if inside:
        raise UnsupportedView(f"{who.name} contains the victim {inside[0]}; choose another")
    every = participation == EVERY
    view = streamed_view(traces, effective, victims=victims, until_leak=every)
    parts = [traces.start, *(part for part, count in traces.rounds for _ in range(count))]
    finite = Status.HEURISTIC if any(p.blames for p in parts) else Status.PROVEN
    found = []
    for victim in victims:
        bounds = [b for part in parts for b in contributions_of(part, [victim])[2]]
        bounds = bounds[: len(view.rounds(victim))]  # a view that leaks ends early
        mu = _joint_sensitivity(view, victim, bounds, participation)
        release = Release(mu, 1.0, 1, len(bounds), 0)
        because = _because(view, victim, mu, participation)
        status = Status.NO_PROTECTION if math.isinf(mu) else finite
        found.append(JointSensitivity(who, victim, (release,), status, because, whole_run=True))
    return found


def _joint_sensitivity(
    view: StreamedView, victim: int, bounds: Sequence[float], participation: Participation
) -> float:
    of = view.rounds(victim)
    b = np.asarray(bounds)

    def taking(rounds: Sequence[int]) -> float:
        at = np.flatnonzero(np.isin(of, rounds))
        return view.mu(victim, at.tolist(), bounds=b[at].tolist())

    if participation == EVERY:
        return taking(np.unique(of).tolist())
    if not isinstance(participation, int):
        return taking(list(participation))  # type: ignore[arg-type] # a string was refused before
    # At most k rounds: as all of them, or where single rounds decide, the worst.
    used = np.unique(of)
    if participation >= len(used):
        return taking(used.tolist())
    single = np.array([taking([round_]) for round_ in used.tolist()])
    if participation == 1 or not np.isfinite(single).all():
        return float(single.max(initial=0.0))
    # Any k rounds: each row of |M| summed over its round and the k - 1 others that add most.
    M = np.abs(view.information(victim)) * np.outer(b, b)
    member = (of[None, :] == used[:, None]).astype(float)  # (rounds, columns)
    blocks = member @ M @ member.T
    own = np.minimum(single**2, np.diag(blocks))
    others = np.sort(blocks - np.diag(np.diag(blocks)), axis=1)[:, ::-1]
    rows = own + others[:, : participation - 1].sum(axis=1)
    return min(math.sqrt(np.sort(rows)[::-1][:participation].sum()), taking(used.tolist()))


def _because(view: StreamedView, victim: int, mu: float, participation: Participation) -> str:
    if math.isinf(mu):
        shown = view.leaks(victim)
        return leak_sentence(shown) if shown else "a contribution is unbounded"
    if participation == EVERY:
        return "a record may take part in every round; all rounds are one release"
    if isinstance(participation, int):
        most = "one round" if participation == 1 else f"{participation} rounds"
        return f"a record takes part in at most {most}; all rounds are one release"
    return "a record takes part in the stated rounds; all rounds are one release"


def _check_participation(participation: Participation, rounds: int) -> None:
    remedy = f'use "every", a number from 1 to {rounds}, or a list of rounds in 0..{rounds}'
    if isinstance(participation, str):
        wrong = participation != EVERY
    elif isinstance(participation, bool):
        wrong = True
    elif isinstance(participation, int):
        wrong = participation < 1
    else:
        wrong = not participation or any(
            isinstance(r, bool) or not isinstance(r, int) or not 0 <= r <= rounds
            for r in participation
        )
    if wrong:
        raise InputError(f"participation={participation!r} is no number of rounds; {remedy}")
