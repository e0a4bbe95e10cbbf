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
from ...privacy.participation import Reach
from ...privacy.view.leak import leak_sentence
from ...privacy.view.view import UnsupportedView
from ...privacy.view.whole_run import StreamedView
from ..tracing.trace import AlgorithmTrace
from .candidates import candidates
from .dense_rounds import contributions_of, streamed_view
from .residue import Residues
from .sensitivity import JointSensitivity, Release, single_message, worst

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
        traces: of the run; figures are those of noise multiplier 1, whatever theirs is.
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
    return [
        (
            name,
            worst(
                _of_each(
                    traces,
                    candidates(traces, name, victim),
                    participation=participation,
                    sampling_rate=sampling_rate,
                    encrypted=encrypted,
                )
            ),
        )
        for name in names
    ]


def whole_run_by_victim(
    traces: AlgorithmTrace, name: str, *, sampling_rate: float, encrypted: bool = False
) -> dict[int, JointSensitivity]:
    """The whole run's joint sensitivity of every agent to one adversary, by agent.

    A record may take part in every round; the arguments are those of
    `whole_run_joint_sensitivities`.
    """
    by_victim: dict[int, list[JointSensitivity]] = {}
    every = _of_each(
        traces,
        candidates(traces, name),
        participation=EVERY,
        sampling_rate=sampling_rate,
        encrypted=encrypted,
    )
    for sensitivity in every:
        by_victim.setdefault(sensitivity.victim, []).append(sensitivity)
    return {victim: worst(of) for victim, of in by_victim.items()}


def _of_each(
    traces: AlgorithmTrace,
    asked: Sequence[tuple[Adversary, Sequence[int]]],
    *,
    participation: Participation,
    sampling_rate: float,
    encrypted: bool,
) -> list[JointSensitivity]:
    """Of every pair of an adversary and a victim."""
    different = {id(part): part for part in (traces.start, *(part for part, _ in traces.rounds))}
    residues = [Residues(part) for part in different.values()]
    every: list[JointSensitivity] = []
    for who, victims in asked:
        if who.sees is Sees.ONE_MESSAGE:
            every += [single_message(traces, who, v, rate=sampling_rate) for v in victims]
            continue
        effective = effective_of(who, encrypted=encrypted)
        for of_part in residues:
            of_part.check(effective)
        every += _of(traces, who, victims, effective=effective, participation=participation)
    return every


def effective_of(who: Adversary, *, encrypted: bool) -> Adversary:
    """The adversary with what encrypted links leave of its view."""
    if encrypted and who.sees is Sees.LINKS:
        return Adversary(name=who.name, sees=Sees.END_STATES)
    return who


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
        reaches = {reach for part in parts for reach, _ in part.reaches(victim)}
        reach = Reach.BALL if reaches == {Reach.BALL} else Reach.SUM
        whole = all(draws.whole for p in parts for _, _, draws in p.of_victim(victim).values())
        release = Release(
            traces.per_multiplier(mu), 1.0, 1, len(bounds), 0, reach, not every, whole=whole
        )
        because = _because(view, victim, mu, participation)
        status = Status.NO_PROTECTION if math.isinf(mu) else finite
        found.append(
            JointSensitivity(
                who, victim, (release,), status, because, True, traces.noise_multiplier
            )
        )
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
