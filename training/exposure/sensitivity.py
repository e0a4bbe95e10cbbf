"""A joint sensitivity: what a victim's record is exposed to, release by release."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ...privacy.accounting.request import Adjacency
from ...privacy.adversary import Adversary, Sees
from ...privacy.batches.at_least import least_epsilon_of_shuffled
from ...privacy.batches.drawing import Drawing, EpochRound, Scheme, epoch_events
from ...privacy.errors import InputError
from ...privacy.guarantee import Statement, Status
from ...privacy.participation import Draws, Event, Reach, cohort, group
from ...privacy.view.view import UnsupportedView
from ..tracing.linear_forms import Contributions
from ..tracing.round_trace import RoundTrace

__all__ = [
    "JointSensitivity",
    "Release",
    "UnsupportedMechanism",
    "at_least",
    "bound_of",
    "check_draws",
    "check_scheme",
    "cost",
    "counted",
    "rounded",
    "spent_releases",
    "worst",
]

_MOST_COUNTS = 64  # numbers of records that a lower bound is looked at for


class Release(NamedTuple):
    """What a victim's batches release to an adversary in `rounds` rounds from `first` on.

    Attributes:
        joint_sensitivity: between a record that is absent and one that is present.
        sampling_rate: of the batch.
        rounds: how many are alike.
        contributions: how many clipped vectors of the batch are released.
        first: 0 for the start, 1 for the first round.
        reach: "ball" where every contribution is known to stay in a ball, whose radius is then half
            of what a record that is added changes; "sum" holds always.
        interleaved: whether contributions to another batch of the round come between, or these
            between those; of a whole run, whether records may take part in rounds of their own.
        records: of one person that may be in the batch, each drawn on its own; all are there or
            none is.
        drawn: how batches are drawn that are not Poisson.
        replays: of batches in epochs, how often any of the rounds was released once more.
        cohort: probability that the agent takes part in the rounds with all of its records, which
            nobody sees; the sampling rate is that within it. An agent that is itself at risk takes
            part with the sampling rate.
        several: how many batches of a cohort have this joint sensitivity each.
    """

    joint_sensitivity: float
    sampling_rate: float
    rounds: int
    contributions: int
    first: int = 1
    reach: Reach = Reach.SUM
    interleaved: bool = False
    records: int = 1
    drawn: Drawing | None = None
    replays: int = 0
    cohort: float = 1.0
    several: int = 1

    @property
    def rate(self) -> float:
        """The probability that a record is in one batch."""
        return self.cohort * self.sampling_rate

    @property
    def shape(self) -> Release:
        """All but how much it costs: what victims are compared by."""
        return self._replace(joint_sensitivity=0.0, contributions=0)

    @property
    def is_plain(self) -> bool:
        """Whether it is one Poisson batch of each round."""
        return self.drawn is None and self.several == 1 and self.cohort == 1.0


class JointSensitivity(NamedTuple):
    """How far one victim's record can change all that one adversary sees, at noise multiplier 1.

    Attributes:
        adversary: who sees.
        victim: the agent that holds the record; of several holders the first.
        releases: a joint sensitivity for each batch and each run of equal rounds.
        status: proven or heuristic; of infinite figures, that nothing protects or is expressed.
        because: the reason in a sentence.
        whole_run: whether the only release is that of all rounds together, whoever was sampled.
        noise_multiplier: of the trace, the only one at which the figures were looked at; None where
            the step's noise was checked to keep its proportion, so that they hold at any.
        each: where agents are absent from rounds, the releases of every record at risk, which are
            then spread differently over the rounds; `releases` bounds them all, of all rounds
            together. Of some rounds `bound_of` finds the bound anew.
    """

    adversary: Adversary
    victim: int
    releases: tuple[Release, ...]
    status: Status
    because: str
    whole_run: bool = False
    noise_multiplier: float | None = None
    each: tuple[tuple[Release, ...], ...] = ()

    @property
    def largest(self) -> float:
        """The largest joint sensitivity of a round."""
        return max((r.joint_sensitivity for r in self.releases), default=0.0)

    @property
    def sum_of_squares(self) -> float:
        """Over all rounds, to nine digits: what the worst victim is chosen by."""
        return rounded(sum(r.rounds * r.joint_sensitivity**2 for r in self.releases))


class UnsupportedMechanism(InputError):
    """A composition for which no bound is known here."""


def rounded(value: float) -> float:
    """Nine digits: agents that differ by rounding alone are equal."""
    return float(f"{value:.9g}")


def worst(every: Sequence[JointSensitivity], *, absent: bool = False) -> JointSensitivity:
    """The one that costs most; where none is worst in every round, the worst of each round.

    Args:
        every: of each pair of adversary and victim.
        absent: whether agents are absent from rounds. Then a record is at risk in the rounds of
            its agent alone, and releases are compared in the order of what they cost.
    """
    # Rounds can be compared one by one only where every victim's batches are drawn alike.
    every = _drawn_as_worst(every)
    top = max(every, key=cost)
    shapes = {tuple(r.shape for r in e.releases) for e in every}
    if len(shapes) != 1:
        raise UnsupportedView("victims differ in how their batches are drawn; name one victim")
    rounds = list(zip(*(e.releases for e in every), strict=True))
    worst = [max(rounded(r.joint_sensitivity) for r in same) for same in rounds]
    most = [max(r.contributions for r in same) for same in rounds]
    if all(rounded(r.joint_sensitivity) >= w for r, w in zip(top.releases, worst, strict=True)):
        counted = zip(top.releases, most, strict=True)
        return top._replace(releases=tuple(r._replace(contributions=n) for r, n in counted))
    if absent:
        of_victims: dict[int, list[JointSensitivity]] = {}
        for one in every:
            of_victims.setdefault(one.victim, []).append(one)
        each = tuple(_of_worst_rounds(of_victims[victim]) for victim in sorted(of_victims))
        return top._replace(releases=bound_of(each, like=top.releases), each=each)
    # No victim is worst in every round: none loses more than this composition of worst rounds.
    joint = _of_worst_rounds(every)
    return top._replace(releases=joint, because=f"{top.because}; of every round the worst victim")


def _drawn_as_worst(every: Sequence[JointSensitivity]) -> Sequence[JointSensitivity]:
    """The same, each with batches that cost no less than those of any of them.

    Raises:
        UnsupportedView: epochs of several lengths, and rounds that differ: where they begin then
            decides which costs more.
    """
    drawings = {r.drawn for e in every for r in e.releases if r.drawn is not None}
    if len(drawings) < 2:
        return every
    first, *others = drawings
    joint = first
    for other in others:
        joint = joint.together(other)
    lengths = {one.epoch for one in drawings}
    if joint.scheme.in_epochs and len(lengths) > 1 and any(len(e.releases) > 1 for e in every):
        raise UnsupportedView(
            "agents have epochs of different lengths, and rounds differ; name one victim"
        )

    def drawn(r: Release) -> Release:
        if r.drawn is None:
            return r
        rate = r.sampling_rate if joint.scheme is Scheme.TRUNCATED else joint.rate
        return r._replace(drawn=joint, sampling_rate=rate)

    return [e._replace(releases=tuple(map(drawn, e.releases))) for e in every]


def _of_worst_rounds(every: Sequence[JointSensitivity]) -> tuple[Release, ...]:
    """Of every round the largest joint sensitivity."""
    return tuple(
        same[0]._replace(
            joint_sensitivity=max(r.joint_sensitivity for r in same),
            contributions=max(r.contributions for r in same),
        )
        for same in zip(*(one.releases for one in every), strict=True)
    )


def bound_of(
    each: Sequence[tuple[Release, ...]], *, like: tuple[Release, ...] | None = None
) -> tuple[Release, ...]:
    """Releases that cost at least what those of each record cost.

    What independent rounds release does not depend on their order. So of rounds that are drawn
    alike the k-th largest joint sensitivity of any record, for every k, costs no less than each.

    Args:
        each: of every record, of the same rounds.
        like: whose order the result has; by default that of the record that costs most.

    >>> rounds = [[(1.0, 1), (0.0, 2), (2.0, 3)], [(1.0, 1), (1.0, 2), (1.0, 3)]]
    >>> each = [tuple(Release(j, 0.1, 1, 1, t) for j, t in of) for of in rounds]
    >>> [r.joint_sensitivity for r in bound_of(each)]
    [1.0, 1.0, 2.0]
    """
    if not each or not each[0]:
        return ()
    if like is None:
        like = max(each, key=lambda of: sum(r.rounds * r.joint_sensitivity**2 for r in of))
    kinds: dict[tuple[object, ...], list[int]] = {}
    for at, r in enumerate(like):
        kind = r.shape._replace(first=min(r.first, 1))
        kinds.setdefault(kind, []).append(at)
    found = list(like)
    for places in kinds.values():
        sizes = np.array([[of[at].joint_sensitivity for at in places] for of in each])
        most = (-np.sort(-sizes, axis=1)).max(axis=0)  # largest first
        order = sorted(places, key=lambda at: -like[at].joint_sensitivity)
        for at, joint in zip(order, most.tolist(), strict=True):
            count = max(of[at].contributions for of in each)
            found[at] = like[at]._replace(joint_sensitivity=joint, contributions=count)
    return tuple(found)


def cost(one: JointSensitivity) -> tuple[float, bool]:
    """What the worst victim is chosen by: the figures, and of equal ones that nothing protects."""
    return one.sum_of_squares, one.status is Status.NO_PROTECTION


def spent_releases(releases: Sequence[Release]) -> tuple[Release, ...]:
    """The releases that cost anything.

    Raises:
        ValueError: a sampling rate or a joint sensitivity that is none; dropped, it would cost
            nothing.
    """
    for release in releases:
        if not release.joint_sensitivity >= 0:
            raise InputError(
                f"joint_sensitivity={release.joint_sensitivity} must be a number >= 0; the "
                "view's entries overflow or are not numbers"
            )
        for name in ("sampling_rate", "cohort"):
            if not 0 <= getattr(release, name) <= 1:
                raise InputError(f"{name}={getattr(release, name)} must lie in [0, 1]")
    return tuple(r for r in releases if r.joint_sensitivity > 0 and r.rate > 0)


def counted(
    releases: Sequence[Release], noise_multiplier: float, adjacency: Adjacency, *, records: int = 1
) -> Counter[Event]:
    """What an accountant is asked about: each kind of round, and how many there are of it.

    Args:
        releases: each costs something.
        noise_multiplier: of the run.
        adjacency: of the statement.
        records: of one person, in place of one in every batch.

    Raises:
        UnsupportedMechanism: sampled contributions that stay in a ball, with another batch's
            between them: no proof covers a record that is replaced in these. And what is not
            proven of batches that are not Poisson.
    """
    counts: Counter[Event] = Counter()
    added = adjacency is Adjacency.ADD_OR_REMOVE_ONE
    for r in releases:
        if r.drawn is not None:
            continue
        if r.reach is Reach.BALL and r.interleaved and not added and r.rate < 1:
            raise UnsupportedMechanism(
                "clipped means of a batch that interleaves with another batch, or that one of "
                f"several holders makes, have no bound under adjacency='{adjacency}'; take all "
                "contributions of a batch before those of the next, or use round.clipped_sums"
            )
        if r.several > 1 and records > 1:
            raise UnsupportedMechanism(
                f"records_per_person={records} has no bound where {r.several} batches of one "
                "secret cohort are released; leave it out, or draw one batch a round"
            )
        # Several records move one ball no further than one does; each may move balls of its own.
        held = max(records, r.records)
        apart = r.several > 1 or (held > 1 and r.interleaved and r.rate == 1)
        ball = r.reach is Reach.BALL and not apart
        # The coin of a cohort moves the agent's other records, too, and shows by them. It hides the
        # record where all lies in one ball around 0; elsewhere it counts as seen.
        hidden = ball and not added
        if r.several > 1:
            moves = cohort(1.0, r.several, r.sampling_rate)
        else:
            moves = group(held, r.sampling_rate, within=r.cohort if hidden else 1.0)
        moves = moves.as_ball if ball else moves
        coin = 1.0 if hidden else r.cohort
        # A record that is added changes what stays in a ball by twice the radius, as it would a sum
        # of that sensitivity.
        if hidden:
            event = Event(noise_multiplier / (0.5 * r.joint_sensitivity), moves, Reach.BALL)
        else:
            event = Event(noise_multiplier / r.joint_sensitivity, moves, coin=coin)
        counts[event] += r.rounds
    counts.update(_drawn(releases, noise_multiplier, adjacency, records=records))
    return counts


def check_scheme(scheme: Scheme, adjacency: Adjacency, *, records: int = 1) -> None:
    """Refuse what is not proven of batches that are drawn so.

    Raises:
        UnsupportedMechanism: with the reason, and what is proven.

    >>> check_scheme(Scheme.SHUFFLED, Adjacency.ADD_OR_REMOVE_ONE)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    overhear...UnsupportedMechanism: batches='shuffled' has no bound under adjacency='add-or-...
    """
    if scheme.in_epochs and adjacency is Adjacency.ADD_OR_REMOVE_ONE:
        raise UnsupportedMechanism(
            f"batches='{scheme}' has no bound under adjacency='{adjacency}': with one record more "
            "every later batch holds other records; use adjacency='zero-out' or 'replace-one'"
        )
    if scheme in (Scheme.FIXED, Scheme.TRUNCATED) and records > 1:
        raise UnsupportedMechanism(
            f"records_per_person={records} has no bound with batches='{scheme}': records of one "
            "person push each other out of a batch; use batches='poisson' without largest_batch"
        )


def _drawn(
    releases: Sequence[Release], noise_multiplier: float, adjacency: Adjacency, *, records: int
) -> Counter[Event]:
    """The rounds whose batches are not Poisson."""
    counts: Counter[Event] = Counter()
    added = adjacency is Adjacency.ADD_OR_REMOVE_ONE
    epochs: dict[Drawing, list[EpochRound]] = {}
    for r in releases:
        if r.drawn is None:
            continue
        check_scheme(r.drawn.scheme, adjacency, records=records)
        if r.records > 1:
            raise UnsupportedMechanism(
                f"records of several holders have no bound with batches='{r.drawn.scheme}'; use "
                "batches='poisson'"
            )
        radius = r.joint_sensitivity * (0.5 if r.reach is Reach.BALL else 1.0)
        multiplier = noise_multiplier / radius
        if r.drawn.scheme.in_epochs:
            # k records move a round k times as far as one, or so many rounds of an epoch.
            one = EpochRound(multiplier / records, r.reach, r.first, r.rounds, r.replays)
            epochs.setdefault(r.drawn, []).append(one)
            continue
        event = r.drawn.event(multiplier, r.reach, r.sampling_rate, added=added)
        if r.interleaved and not added and event.rate < 1:
            raise UnsupportedMechanism(
                f"batches='{r.drawn.scheme}' of which one interleaves with another in a round "
                f"have no bound under adjacency='{adjacency}'; take all contributions of a batch "
                "before those of the next, or use batches='poisson'"
            )
        counts[event] += r.rounds
    for drawn, rounds in epochs.items():
        replaced = adjacency is Adjacency.REPLACE_ONE
        counts.update(epoch_events(rounds, drawn.epoch, replaced=replaced))
    return counts


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
    if any(g.drawn != Draws() for g in groups):
        raise UnsupportedMechanism(
            "the step takes several batches together, all data, or the batches of a secret "
            f"cohort, of which no bound is known with batches='{scheme}'; give round.local_update "
            "one batch, or use batches='poisson' without largest_batch"
        )
    batches = {g.batch for g in groups}
    if scheme.in_epochs and batches and (first == 0 or batches != {0}):
        when = "the start draws a batch" if first == 0 else "the step draws several batches a round"
        raise UnsupportedMechanism(
            f"{when}, and an epoch of batches='{scheme}' has one for each round; use "
            "batches='poisson' or 'fixed'"
        )


def at_least(
    sensitivity: JointSensitivity, *, statement: Statement, noise_multiplier: float
) -> float | None:
    """What shuffled batches give away at least, for worst-case gradients; None if not known.

    It is known of rounds that are all alike, where a record moves one sum: then its joint
    sensitivity is what it moves, and not only a bound on it. Whoever sees final models alone sees
    less than the rounds, whose releases bound what it learns from above only. Where agents
    hold different numbers of records, the least of their lower bounds is given.

    Args:
        sensitivity: of the run.
        statement: what epsilon is said of.
        noise_multiplier: of the run.
    """
    releases = spent_releases(sensitivity.releases)
    if len(releases) != 1 or sensitivity.status is not Status.PROVEN or not noise_multiplier > 0:
        return None
    if sensitivity.adversary.sees is Sees.END_STATES:
        return None
    (one,) = releases
    simple = one.contributions == 1 and one.reach is Reach.SUM
    shuffled = one.drawn is not None and one.drawn.scheme is Scheme.SHUFFLED
    if not simple or not shuffled or one.drawn is None or math.isinf(one.joint_sensitivity):
        return None
    # The record that loses most is one of some n: the least of all n that it may be of is true.
    between = range(one.drawn.records, one.drawn.most + 1)
    if len(between) > _MOST_COUNTS:
        return None
    return min(
        least_epsilon_of_shuffled(
            noise_multiplier / one.joint_sensitivity,
            batches=drawn.epoch,
            epochs=one.rounds // drawn.epoch,
            delta=statement.delta,
            replace=statement.adjacency is Adjacency.REPLACE_ONE,
            share=drawn.epoch * drawn.size / drawn.records,
        )
        for drawn in (one.drawn._replace(records=n) for n in between)
    )
