"""Joint sensitivity of a whole run whose state is carried without noise: participation is stated.

A round's closed view counts the state that the step returns as seen. Where records or noise stay in
that state (a momentum or a recursion that is released only with noise on top), the round by itself
costs infinity although the run may not. Here the state is carried from round to round as rows over
everything that ever entered it, and only what is sent, the points at which gradients are taken and
the final models count as seen.

A record then acts through every batch that it was in, so batches cannot be accounted for one by
one, and sampling does not amplify. What is stated instead is in which rounds a record may take
part (`privacy.batches.patterns`), and mu^2 is the largest over all that the pattern allows:

    every       all rounds: what holds for Poisson batches, which may draw a record every time
    cycle b     the rounds j, j + b, ...: the worst j
    apart b     any rounds of which two lie b apart at least: a bound by rows
    most k      at most k rounds, whichever they are: a bound by rows
    rounds      exactly these; 0 is the start

The joint sensitivity is that of the run, so the epsilon of one release of multiplier (noise
multiplier / joint sensitivity) is the epsilon of the run.

Sampling amplifies in one case: where two turns of a record are b rounds apart at least, what shows
a contribution ends before anything shows one of b or more rounds later (`StreamedView.bands` <= b),
however late both begin, and a round has one batch. Then what a record does in one of its turns is
over before the next one shows, and each turn is one Poisson-sampled Gaussian, at the rate of its
coin and behind the noise of its own column (docs/mathematics.md, with the proof):

    H. B. McMahan et al. "(Amplified) Banded Matrix Factorization", NeurIPS 2023, arXiv 2306.08153.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ...privacy.batches.patterns import EVERY, Pattern, PatternKind, pattern_of
from ...privacy.errors import UnsupportedView
from ...privacy.guarantee import Adversary, Sees, Status
from ...privacy.participation import Draws, Reach
from ...privacy.view.elimination import leak_sentence
from ...privacy.view.whole_run import StreamedView, largest_apart, largest_most
from ..tracing.linear_forms import Contributions, NoiseSources
from ..tracing.record import GRADIENTS_AT
from ..tracing.round_trace import UNCLIPPED, RoundTrace
from ..tracing.trace import AlgorithmTrace
from .dense_rounds import contributions_of, streamed_view, witness
from .rounding_error import Residues
from .sensitivity import (
    JointSensitivity,
    Release,
    UnsupportedMechanism,
    candidates,
    effective_of,
    single_message,
    worst,
)

Participation = str | int | Sequence[int] | Pattern


class InAllRounds(NamedTuple):
    """How a record takes part in a run, and how the run is observed.

    Attributes:
        sampling_rate: of a record in its turn; it matters to a single message's figure, and to
            those that it amplifies.
        encrypted: the eavesdropper cannot read links and sees the released final models alone.
        pattern: in which rounds one record may take part.
        amplified: whether a record is drawn by a secret coin in each of its turns, and is there or
            not, so that sampling may amplify.
    """

    sampling_rate: float
    encrypted: bool = False
    pattern: Pattern = EVERY
    amplified: bool = False

    @property
    def coin(self) -> float:
        """The rate of a record's coin where that may amplify; else 1."""
        return self.sampling_rate if self.amplified else 1.0


def whole_run_joint_sensitivities(
    traces: AlgorithmTrace,
    names: Sequence[str],
    *,
    participation: Participation,
    sampling_rate: float,
    victim: int | None = None,
    encrypted: bool = False,
    amplified: bool = False,
) -> list[tuple[str, JointSensitivity]]:
    """The whole run's joint sensitivity to each adversary, of `victim` or else the worst agent.

    Args:
        traces: of the run; figures are those of noise multiplier 1, whatever theirs is.
        names: as in `joint_sensitivities`.
        participation: "every", a pattern, at most so many rounds, or the rounds themselves.
        victim: the agent whose record is at risk; None searches the worst one.
        sampling_rate, encrypted, amplified: as in `InAllRounds`.

    Raises:
        ValueError: participation that is no number of rounds of the run.
        UnsupportedView: the adversary contains the victim, or rounding hides whether noise cancels.
    """
    pattern = _checked(participation, sum(count for _, count in traces.rounds))
    how = InAllRounds(sampling_rate, encrypted, pattern, amplified)
    return [
        (name, _worst(_of_each(traces, candidates(traces, name, victim), how))) for name in names
    ]


def check_turns(traces: AlgorithmTrace, pattern: Pattern) -> None:
    """Refuse batches that have no turn where a pattern says which rounds a record may be in.

    Raises:
        UnsupportedMechanism: with the reason, and what can be drawn so.
    """
    remedy = 'use round.draw() without a rate, in rounds alone, or participation = "every"'
    head = f"participation {pattern.entry} is not kept to by"
    for part in (traces.start, *(part for part, _ in traces.rounds)):
        groups = [g for g in part.groups if isinstance(g, Contributions)]
        if part is traces.start and groups:
            raise UnsupportedMechanism(f"{head} a batch that the start draws; {remedy}")
        if any(g.users is not None for g in groups):
            raise UnsupportedMechanism(f"{head} whole users, whose records have turns; {remedy}")
        if any(g.cohort is not None for g in groups):
            raise UnsupportedMechanism(f"{head} batches of a secret cohort; {remedy}")
        if any(rate is not None for g in groups for rate in g.drawn.rates or (1.0,)):
            raise UnsupportedMechanism(
                f"{head} a batch at a rate of its own, or by all data of an agent; {remedy}"
            )


def whole_run_by_victim(
    traces: AlgorithmTrace, name: str, how: InAllRounds
) -> dict[int, JointSensitivity]:
    """The whole run's joint sensitivity of every agent to one adversary, by agent."""
    by_victim: dict[int, list[_Found]] = {}
    for found in _of_each(traces, candidates(traces, name), how):
        by_victim.setdefault(found.together.victim, []).append(found)
    return {victim: _worst(of) for victim, of in by_victim.items()}


class _Found(NamedTuple):
    """That of all rounds as one release, and that of turns that amplify, where they do."""

    together: JointSensitivity
    turns: JointSensitivity | None = None


def _worst(every: Sequence[_Found]) -> JointSensitivity:
    """The worst of turns where they amplify for everybody, or else of all rounds together."""
    turns = [found.turns for found in every if found.turns is not None]
    return worst(turns if len(turns) == len(every) else [found.together for found in every])


def _of_each(
    traces: AlgorithmTrace, asked: Sequence[tuple[Adversary, Sequence[int]]], how: InAllRounds
) -> list[_Found]:
    """Of every pair of an adversary and a victim."""
    different = {id(part): part for part in (traces.start, *(part for part, _ in traces.rounds))}
    residues = [Residues.of(part) for part in different.values()]
    every: list[_Found] = []
    for who, victims in asked:
        if who.sees is Sees.ONE_MESSAGE:
            alone = [single_message(traces, who, v, rate=how.sampling_rate) for v in victims]
            every += map(_Found, alone)
            continue
        effective = effective_of(who, encrypted=how.encrypted)
        for of_part in residues:
            of_part.check(effective, whole_run=True)
        every += _of(traces, who, victims, effective=effective, how=how)
    return every


def _of(
    traces: AlgorithmTrace,
    who: Adversary,
    victims: Sequence[int],
    *,
    effective: Adversary,
    how: InAllRounds,
) -> list[_Found]:
    inside = sorted(set(victims) & who.agents)
    if inside:
        raise UnsupportedView(f"{who.name} contains the victim {inside[0]}; choose another")
    pattern = how.pattern
    # The view of all rounds; where a record may be in each, the first leak settles it.
    view = streamed_view(traces, effective, victims=victims, until_leak=pattern.is_every)
    each = [(traces.start, 1), *traces.rounds]
    parts = [part for part, count in each for _ in range(count)]
    finite = Status.HEURISTIC if any(p.blames for p, _ in each) else Status.PROVEN
    found = []
    for victim in victims:
        # All rounds are one release, which moves in a ball if every contribution does.
        own = [contributions_of(part, [victim])[2] * count for part, count in each]
        bounds = [b for of in own for b in of]
        bounds = bounds[: len(view.rounds(victim))]  # a view that leaks ends early
        mu = _without_rounding(_joint_sensitivity(view, victim, bounds, pattern))
        reaches = {reach for part, _ in each for reach, _ in part.reaches(victim)}
        reach = Reach.BALL if reaches == {Reach.BALL} else Reach.SUM
        if not pattern.is_every:  # what takes a record's place has rounds of its own
            reach = Reach.SUM
        whole = all(draws.whole for p, _ in each for _, _, draws in p.of_victim(victim).values())
        release = Release(
            traces.per_multiplier(mu), 1.0, 1, len(bounds), 0, reach, not pattern.is_every
        )._replace(whole=whole)
        because = _because(view, victim, mu, pattern)
        status = Status.NO_PROTECTION if math.isinf(mu) else finite
        together = JointSensitivity(
            who,
            victim,
            (release,),
            status,
            because,
            True,
            traces.noise_multiplier,
            pattern=pattern,
            planned=len(parts) - 1,
        )
        # Turns that are over before the record's next one are amplified by its coin.
        turns: JointSensitivity | None = None
        sums = reaches != {Reach.BALL}
        if math.isfinite(mu) and sums and _amplifies(view, parts, victim, how):
            turn = traces.per_multiplier(_without_rounding(_worst_turn(view, victim, bounds)))
            count = pattern.most_rounds(len(parts) - 1)
            bands = view.bands(victim)
            shown = f"shows in {bands} rounds, one after another," if bands > 1 else "shows in it"
            turns = together._replace(
                releases=(Release(turn, how.coin, count, len(bounds) // max(count, 1), 0),),
                because=f"a record takes part {pattern.words}, and what it does in a round {shown} "
                f"alone; {count} turns, in each of which it is drawn with probability "
                f"{how.coin:.6g}",
            )
        found.append(_Found(together, turns))
    return found


def _amplifies(
    view: StreamedView, parts: Sequence[RoundTrace], victim: int, how: InAllRounds
) -> bool:
    """Whether each turn of a record is over before its next one, and is one secret coin."""
    if how.pattern.is_every or how.coin >= 1.0:
        return False
    if parts[0].has_contributions or view.bands(victim) > how.pattern.distance:
        return False
    return all(
        draws == Draws() and len(of) == 1
        for part in parts
        for of in [part.of_victim(victim)]
        for _, _, draws in of.values()
    )


def _without_rounding(mu: float) -> float:
    """To as many digits as the view has, so that adversaries who learn the same have one figure."""
    return float(f"{mu:.13g}")


def _worst_turn(view: StreamedView, victim: int, bounds: Sequence[float]) -> float:
    """The largest mu of one round by itself."""
    of, b = view.rounds(victim), np.asarray(bounds)
    each = (np.flatnonzero(of == round_) for round_ in np.unique(of))
    return max((view.mu(victim, at.tolist(), bounds=b[at].tolist()) for at in each), default=0.0)


def _joint_sensitivity(
    view: StreamedView, victim: int, bounds: Sequence[float], pattern: Pattern
) -> float:
    of = view.rounds(victim)
    b = np.asarray(bounds)

    def taking(rounds: Sequence[float]) -> float:
        at = np.flatnonzero(np.isin(of, rounds))
        return view.mu(victim, at.tolist(), bounds=b[at].tolist())

    used = np.unique(of)
    # Patterns of few sets of rounds: each set is looked at.
    if pattern.is_every:
        return taking(used.tolist())
    if pattern.kind is PatternKind.ROUNDS:
        return taking(list(pattern.rounds))
    if pattern.kind is PatternKind.CYCLE:
        start = [0.0] if 0 in used else []  # a batch of the start may hold any record
        later = used[used > 0]
        group = later % pattern.number
        turns = (later[group == j].tolist() for j in np.unique(group))
        return max((taking(start + turn) for turn in turns), default=0.0)
    # Patterns that are too many to look at: as all rounds, or where single ones decide, the worst.
    together = pattern.kind is PatternKind.MOST and pattern.number >= len(used)
    if together or len(used) < 2:
        return taking(used.tolist())
    single = np.array([taking([round_]) for round_ in used.tolist()])
    if not np.isfinite(single).all() or (pattern.kind is PatternKind.MOST and pattern.number == 1):
        return float(single.max(initial=0.0))
    # Of any rounds: each row of |M| summed over its round and the others that add most.
    M = np.abs(view.information(victim)) * np.outer(b, b)
    member = (of[None, :] == used[:, None]).astype(float)  # (rounds, columns)
    blocks = member @ M @ member.T
    own = np.minimum(single**2, np.diag(blocks))
    if pattern.kind is PatternKind.MOST:
        bound = largest_most(blocks, own, pattern.number)
    else:
        bound = largest_apart(blocks, own, used, pattern.number)
    return min(math.sqrt(bound), taking(used.tolist()))


def _because(view: StreamedView, victim: int, mu: float, pattern: Pattern) -> str:
    if math.isinf(mu):
        shown = view.leaks(victim)
        return leak_sentence(shown) if shown else "a contribution is unbounded"
    if pattern.is_every:
        return "a record may take part in every round; all rounds are one release"
    return f"a record takes part {pattern.words}; all rounds are one release"


def _checked(participation: Participation, rounds: int) -> Pattern:
    if isinstance(participation, int) and not isinstance(participation, bool):
        participation = pattern_of({"most": participation})
    pattern = pattern_of(participation)
    return pattern.checked(rounds)


# What becomes of joint sensitivities that are infinite round by round.
#
# All rounds together may have a finite one. Where they have none, either a message shows a
# contribution without noise, and is named, or a finite figure may hold and is not to be had here.

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
