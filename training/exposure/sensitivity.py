"""A joint sensitivity: what a victim's record is exposed to, release by release."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from ...privacy.accounting.request import Adjacency
from ...privacy.adversary import Adversary
from ...privacy.errors import InputError
from ...privacy.guarantee import Status
from ...privacy.participation import Event, Reach, cohort, group
from ...privacy.view.view import UnsupportedView

__all__ = [
    "JointSensitivity",
    "Release",
    "UnsupportedMechanism",
    "cost",
    "counted",
    "rounded",
    "spent_releases",
    "worst",
]


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
        cohort: probability that the agent takes part in the rounds, which nobody sees; the sampling
            rate is that within it.
        several: how many batches of a cohort have this joint sensitivity each.
    """

    joint_sensitivity: float
    sampling_rate: float
    rounds: int
    contributions: int
    first: int = 1
    reach: Reach = Reach.SUM
    interleaved: bool = False
    cohort: float = 1.0
    several: int = 1

    @property
    def rate(self) -> float:
        """The probability that a record is in one batch."""
        return self.cohort * self.sampling_rate

    @property
    def shape(self) -> tuple[object, ...]:
        """All but how much it costs: what victims are compared by."""
        return self._replace(joint_sensitivity=0.0, contributions=0)


class JointSensitivity(NamedTuple):
    """How far one victim's record can change all that one adversary sees, at noise multiplier 1.

    Attributes:
        adversary: who sees.
        victim: the agent that holds the record.
        releases: a joint sensitivity for each batch and each run of equal rounds.
        status: proven or heuristic; of infinite figures, that nothing protects or is expressed.
        because: the reason in a sentence.
        whole_run: whether the only release is that of all rounds together, whoever was sampled.
        noise_multiplier: of the trace, the only one at which the figures were looked at; None where
            the step's noise was checked to keep its proportion, so that they hold at any.
    """

    adversary: Adversary
    victim: int
    releases: tuple[Release, ...]
    status: Status
    because: str
    whole_run: bool = False
    noise_multiplier: float | None = None

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


def worst(every: Sequence[JointSensitivity]) -> JointSensitivity:
    """The one that costs most; where none is worst in every round, the worst of each round."""
    # Rounds can be compared one by one only where every victim's batches are drawn alike.
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
    # No victim is worst in every round: none loses more than this composition of worst rounds.
    joint = tuple(
        same[0]._replace(joint_sensitivity=max(r.joint_sensitivity for r in same), contributions=n)
        for same, n in zip(rounds, most, strict=True)
    )
    return top._replace(releases=joint, because=f"{top.because}; of every round the worst victim")


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
        records: of one person.

    Raises:
        UnsupportedMechanism: sampled contributions that stay in a ball, with another batch's
            between them: no proof covers a record that is replaced in these.
    """
    counts: Counter[Event] = Counter()
    for r in releases:
        added = adjacency is Adjacency.ADD_OR_REMOVE_ONE
        if r.reach is Reach.BALL and r.interleaved and not added and r.rate < 1:
            raise UnsupportedMechanism(
                "clipped means of a batch that interleaves with another batch have no bound under "
                f"adjacency='{adjacency}'; take all contributions of a batch before those of the "
                "next, or use round.clipped_sums"
            )
        if r.several > 1 and records > 1:
            raise UnsupportedMechanism(
                f"records_per_person={records} has no bound where {r.several} batches of one "
                "secret cohort are released; leave it out, or draw one batch a round"
            )
        # Several records move one ball no further than one does; each may move balls of its own.
        apart = r.several > 1 or (records > 1 and r.interleaved and r.rate == 1)
        ball = r.reach is Reach.BALL and not apart
        if r.several > 1:
            moves = cohort(r.cohort, r.several, r.sampling_rate)
        else:
            moves = group(records, r.sampling_rate, within=r.cohort)
        moves = moves.as_ball if ball else moves
        # A record that is added changes what stays in a ball by twice the radius, as it would a sum
        # of that sensitivity.
        if ball and not added:
            event = Event(noise_multiplier / (0.5 * r.joint_sensitivity), moves, Reach.BALL)
        else:
            event = Event(noise_multiplier / r.joint_sensitivity, moves)
        counts[event] += r.rounds
    return counts
