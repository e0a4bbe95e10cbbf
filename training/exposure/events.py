"""From releases to what an accountant is asked about.

which rounds are meant     `asked_releases`   of everything released, or of some rounds
what a ledger names        `accounted`        rounds that were released more often
each kind of round         `counted`          how it is drawn, how far it moves, how often
what has no proof          `check_scheme`, `check_draws`
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...privacy.accounting.request import Adjacency
from ...privacy.batches.patterns import least_epsilon_of_shuffled
from ...privacy.batches.sampling import Drawing, EpochRound, Scheme, epoch_events
from ...privacy.errors import InputError, UnsupportedView, within
from ...privacy.guarantee import Sees, Statement, Status
from ...privacy.participation import Draws, Event, Reach, cohort, group
from .sensitivity import JointSensitivity, Release, UnsupportedMechanism, bound_of

if TYPE_CHECKING:
    from ..tracing.round_trace import RoundTrace

_MOST_COUNTS = 64  # numbers of records that a lower bound is looked at for


def asked_releases(
    sensitivity: JointSensitivity, rounds: int | Sequence[int] | None
) -> tuple[Release, ...]:
    """The releases that are meant and cost anything."""
    _check_rounds(rounds)
    if rounds is not None and not isinstance(rounds, int):
        _check_replays(sensitivity, rounds)
    return spent_releases(_of_rounds(sensitivity, rounds))


def _of_rounds(
    sensitivity: JointSensitivity, rounds: int | Sequence[int] | None
) -> tuple[Release, ...]:
    """The releases of some rounds, or what bounds those of each record."""
    if rounds is None:
        return sensitivity.releases
    if sensitivity.planned is not None:
        _check_within(sensitivity, rounds)
        if not isinstance(rounds, int):  # whichever they are, all of a record's may be among them
            return sensitivity.releases
    if sensitivity.each:
        return bound_of([_released(of, rounds) for of in sensitivity.each])
    return _released(sensitivity.releases, rounds)


def _check_within(sensitivity: JointSensitivity, rounds: int | Sequence[int]) -> None:
    """Refuse rounds beyond those that were looked at together."""
    planned = sensitivity.planned
    last = rounds if isinstance(rounds, int) else max(rounds, default=0)
    if planned is not None and last > planned:
        raise UnsupportedView(
            f"round {last} is beyond the {planned} that were accounted for together; plan a run of "
            "so many"
        )


def _check_rounds(rounds: int | Sequence[int] | None) -> None:
    """Refuse what is no number of rounds: less than nothing would cost nothing."""
    if rounds is None or isinstance(rounds, Sequence):
        return
    if isinstance(rounds, bool) or not isinstance(rounds, int) or rounds < 0:
        raise InputError(f"rounds={rounds!r} must be an integer of at least 0, or a list of rounds")


def _released(releases: Sequence[Release], rounds: int | Sequence[int]) -> tuple[Release, ...]:
    """The releases of the start and of so many rounds, or of the rounds of these numbers."""
    if not isinstance(rounds, int):
        return _replayed(releases, Counter(rounds))
    last = max((r.first + r.rounds - 1 for r in releases), default=0)
    if rounds > last:
        of_rounds = {r.first for r in releases if r.first > 0}
        if of_rounds - {1}:
            raise UnsupportedView(f"{rounds} rounds of {last} that differ: the rest has no trace")
        return tuple(r._replace(rounds=rounds) if r.first else r for r in releases)
    begun = [r for r in releases if r.first <= rounds]
    return tuple(r._replace(rounds=min(r.rounds, rounds - r.first + 1)) for r in begun)


def _replayed(releases: Sequence[Release], entries: Counter[int]) -> tuple[Release, ...]:
    alike = {r.first for r in releases if r.first} <= {1}  # every round has the one trace
    last = max((r.first + r.rounds - 1 for r in releases), default=0)
    if not alike and max(entries, default=0) > last:
        raise UnsupportedView(f"round {max(entries)} was released, but only {last} were traced")
    found = []
    for r in releases:
        end = math.inf if alike and r.first else r.first + r.rounds
        inside = {number: n for number, n in entries.items() if r.first <= number < end}
        counted = sum(inside.values())
        if r.in_epochs:
            # A round that is released again holds the same records.
            last_inside = max(inside, default=r.first - 1)
            again = counted - len(inside)
            found.append(r._replace(rounds=last_inside - r.first + 1, replays=again))
            continue
        found.append(r._replace(rounds=max(counted, int(r.first == 0))))
    return tuple(r for r in found if r.rounds)


def _check_replays(
    sensitivity: JointSensitivity, entries: Sequence[int], *, torn: bool = False
) -> None:
    twice = [number for number, count in Counter(entries).items() if count > 1]
    if sensitivity.whole_run and (twice or torn):
        which = f"round {min(twice)}" if twice else "the round of a torn line"
        raise UnsupportedView(
            f"{which} may have been released twice, and for {sensitivity.adversary.name} all "
            "rounds are one release in which none may repeat; give the run a closed state (form = "
            '"repaired") to account for it'
        )


def accounted(
    sensitivity: JointSensitivity, entries: Sequence[int], *, torn: bool = False
) -> JointSensitivity:
    """The joint sensitivity with every planned round, more often where the ledger has more.

    A run that stopped early is accounted as planned, because what stopped it may depend on the
    data. A torn line may be any round, all of its batches, so every release counts once more.

    Args:
        sensitivity: of the planned run.
        entries: the number of each round in the ledger.
        torn: whether the last line of the ledger was cut off.

    Raises:
        UnsupportedView: a round was released again where all rounds are one release.
    """
    _check_replays(sensitivity, entries, torn=torn)
    _check_within(sensitivity, entries)
    if not sensitivity.each:
        return sensitivity._replace(releases=_accounted(sensitivity.releases, entries, torn=torn))
    each = tuple(_accounted(of, entries, torn=torn) for of in sensitivity.each)
    if each == sensitivity.each:
        return sensitivity
    return sensitivity._replace(releases=bound_of(each), each=each)


def _accounted(
    releases: Sequence[Release], entries: Sequence[int], *, torn: bool
) -> tuple[Release, ...]:
    counted = dict[Release, Release]()
    for r in _replayed(releases, Counter(entries)):
        origin = next(o for o in releases if o._replace(rounds=r.rounds, replays=r.replays) == r)
        counted[origin] = r
    return tuple(_spent(r, counted.get(r), more=int(torn)) for r in releases)


def _spent(planned: Release, counted: Release | None, *, more: int) -> Release:
    """A release as planned, or more often where so much was counted."""
    released = 0 if counted is None else counted.rounds
    if not planned.in_epochs:
        return planned._replace(rounds=max(planned.rounds, released) + more)
    again = 0 if counted is None else counted.replays
    return planned._replace(rounds=max(planned.rounds, released), replays=again + more)


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
            within(name, getattr(release, name), "[0, 1]")
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
    epochs: dict[Drawing, list[EpochRound]] = {}
    for r in releases:
        if r.drawn is not None:
            continue
        if r.reach is Reach.BALL and r.interleaved and not added and r.rate < 1:
            raise UnsupportedMechanism(
                "clipped means of a batch that interleaves with another batch, or that one of "
                f"several holders makes, have no bound under adjacency='{adjacency}'; take all "
                "contributions of a batch before those of the next, or use round.clipped_sums"
            )
        held = r.held(records)
        if r.several > 1 and held > 1:
            raise UnsupportedMechanism(
                f"records_per_person={held} has no bound where {r.several} batches of one "
                "secret cohort are released; leave it out, or draw one batch a round"
            )
        # Several records move one ball no further than one does; each may move balls of its own.
        apart = r.several > 1 or (held > 1 and r.interleaved and r.rate == 1)
        ball = r.reach is Reach.BALL and not apart
        # The coin of a cohort moves the agent's other records, too, and shows by them. It hides the
        # record where all lies in one ball around 0; elsewhere it counts as seen, and so does who
        # is in a cohort that is drawn otherwise.
        hidden = ball and not added and r.members is None
        if r.several > 1:
            moves = cohort(1.0, r.several, r.sampling_rate)
        else:
            moves = group(held, r.sampling_rate, within=r.cohort if hidden else 1.0)
        moves = moves.as_ball if ball else moves
        coin = 1.0 if hidden else r.cohort
        # A record that is added changes what stays in a ball by twice the radius, as it would a sum
        # of that sensitivity.
        if ball and not added:
            radius = 0.5 * r.joint_sensitivity
            event = Event(noise_multiplier / radius, moves, Reach.BALL, coin)
        else:
            event = Event(noise_multiplier / r.joint_sensitivity, moves, coin=coin)
        if r.members is not None and r.in_epochs:
            of_epoch = EpochRound(
                event.noise_multiplier, event.reach, r.first, r.rounds, r.replays, moves
            )
            epochs.setdefault(r.members, []).append(of_epoch)
            continue
        counts[event] += r.rounds
    counts.update(_drawn(releases, noise_multiplier, adjacency, records=records))
    counts.update(_of_epochs(epochs, adjacency))
    return counts


def _of_epochs(epochs: dict[Drawing, list[EpochRound]], adjacency: Adjacency) -> Counter[Event]:
    """What a unit costs that is in one round of each epoch."""
    counts: Counter[Event] = Counter()
    for drawn, rounds in epochs.items():
        replaced = adjacency is Adjacency.REPLACE_ONE
        counts.update(epoch_events(rounds, drawn.epoch, replaced=replaced))
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
        held = max(records, r.records)
        check_scheme(r.drawn.scheme, adjacency, records=held)
        radius = r.joint_sensitivity * (0.5 if r.reach is Reach.BALL else 1.0)
        multiplier = noise_multiplier / radius
        if r.drawn.scheme.in_epochs:
            # k records move a round k times as far as one, or so many rounds of an epoch.
            epoch_round = EpochRound(multiplier / held, r.reach, r.first, r.rounds, r.replays)
            epochs.setdefault(r.drawn, []).append(epoch_round)
            continue
        event = r.drawn.event(multiplier, r.reach, r.sampling_rate, added=added)
        if r.interleaved and not added and event.rate < 1:
            raise UnsupportedMechanism(
                f"{r.drawn.named} of which one interleaves with another in a round have no bound "
                f"under adjacency='{adjacency}'; take all contributions of one before those of the "
                "next, or draw Poisson ones"
            )
        counts[event] += r.rounds
    counts.update(_of_epochs(epochs, adjacency))
    return counts


def check_draws(trace: RoundTrace, scheme: Scheme, *, first: int) -> None:
    """Refuse a round that draws a batch at a rate of its own, or that no epoch has room for.

    Args:
        scheme: how batches are drawn; any but Poisson.
        first: the number of the round, 0 for the start.

    Raises:
        UnsupportedMechanism: with the reason, and what can be drawn so.
    """
    from ..tracing.linear_forms import Contributions

    groups = [g for g in trace.groups if isinstance(g, Contributions)]
    if any(g.users is not None for g in groups):
        raise UnsupportedMechanism(
            f"sums that are clipped by user have no bound with batches='{scheme}': records of one "
            "user, or of others that stand in their place, move several sums together; use "
            "batches='poisson' without largest_batch"
        )
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
    sensitivity is what it moves, and not only a bound on it. It is stated of who reads every link;
    others see less, and what counts as seen bounds what they learn from above only. Where agents
    hold different numbers of records, the least of their lower bounds is given.

    Args:
        sensitivity: of the run.
        statement: what epsilon is said of.
    """
    releases = spent_releases(sensitivity.releases)
    if len(releases) != 1 or sensitivity.status is not Status.PROVEN or not noise_multiplier > 0:
        return None
    if sensitivity.adversary.sees is not Sees.LINKS:
        return None
    # One sum that a record moves, in shuffled batches: its sensitivity is exact there.
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
