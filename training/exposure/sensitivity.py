"""A joint sensitivity: what a victim's record is exposed to; and the victims that are tried."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, overload

import numpy as np

from ...privacy import guarantee
from ...privacy.batches.patterns import EVERY, Pattern
from ...privacy.batches.sampling import Drawing, Scheme, drawing_of_cohort
from ...privacy.errors import InputError, UnsupportedView
from ...privacy.guarantee import Status
from ...privacy.participation import Draws, Reach

if TYPE_CHECKING:
    from ..tracing.round_trace import RoundTrace
    from ..tracing.trace import AlgorithmTrace


def effective_of(who: guarantee.Adversary, *, encrypted: bool) -> guarantee.Adversary:
    """The adversary with what encrypted links leave of its view."""
    if encrypted and who.sees is guarantee.Sees.LINKS:
        return guarantee.Adversary(name=who.name, sees=guarantee.Sees.END_STATES)
    return who


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
        members: how this cohort is drawn where it is not by a coin of each agent, among those that
            the adversary is not. Of an agent that is itself at risk it is `drawn`.
        whole: whether all records of a person move it by the joint sensitivity together; the
            sampling rate is then that of any of them being there.
        summed: how many batches of a round enter what is released as one sum: a record, drawn for
            each of them on its own, moves it by as many joint sensitivities as it is in.
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
    members: Drawing | None = None
    whole: bool = False
    summed: int = 1

    def held(self, records: int) -> int:
        """How often a person's records move it at most, each time by a coin of its own.

        >>> Release(1.0, 0.5, 3, 1, records=2).held(1), Release(1.0, 0.5, 3, 1, whole=True).held(3)
        (2, 1)
        >>> Release(1.0, 0.5, 3, 1, records=2, summed=4).held(1)
        8
        """
        return 1 if self.whole else max(records, self.records) * self.summed

    def in_cohort(self, draws: Draws, trace: RoundTrace, who: guarantee.Adversary) -> Release:
        """The same in the cohort that a contribution is in; as it is where coins decide.

        Args:
            who: sees it, and knows which of its own agents take part.
        """
        agents, known = trace.record.agents, len(who.agents)
        members = drawing_of_cohort(draws, agents=agents, known=known)
        if members is None:
            return self
        if trace.unit is guarantee.Unit.AGENT:
            return self._replace(drawn=members, sampling_rate=members.rate, cohort=1.0)
        return self._replace(members=members, cohort=members.rate)

    @property
    def cohort_drawn(self) -> Drawing | None:
        """How the cohort is drawn where it is not by coins, whose data ever are at risk."""
        drawn = self.drawn
        return drawn if drawn is not None and drawn.of_agents else self.members

    @property
    def in_epochs(self) -> bool:
        """Whether the unit takes part at most once an epoch, in the same round if released again.

        >>> Release(1.0, 0.5, 3, 1).in_epochs
        False
        """
        return any(of is not None and of.scheme.in_epochs for of in (self.drawn, self.members))

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
        poisson = self.drawn is None and self.members is None
        return poisson and self.several == 1 and self.cohort == 1.0


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
        pattern: of a whole run, in which rounds a record may take part.
        planned: T of the run, where `releases` are of all its rounds and do not say which; None
            where each names its own.
    """

    adversary: guarantee.Adversary
    victim: int
    releases: tuple[Release, ...]
    status: Status
    because: str
    whole_run: bool = False
    noise_multiplier: float | None = None
    each: tuple[tuple[Release, ...], ...] = ()
    pattern: Pattern = EVERY
    planned: int | None = None

    @property
    def largest(self) -> float:
        """The largest joint sensitivity of a round."""
        return max((r.joint_sensitivity for r in self.releases), default=0.0)

    @property
    def sum_of_squares(self) -> float:
        """Over all rounds, to nine digits: what the worst victim is chosen by."""
        return rounded(sum(r.rounds * r.joint_sensitivity**2 for r in self.releases))


def of_records(sensitivity: JointSensitivity, records: int) -> JointSensitivity:
    """The same of so many records of the victim, which are all there or none is.

    Each is drawn on its own, and each moves what it is in by the joint sensitivity at most; or all
    move it together, which then is what the joint sensitivity is of.

    Args:
        records: how many, from 1.

    >>> from overhear.privacy import EAVESDROPPER
    >>> one = JointSensitivity(EAVESDROPPER, 0, (Release(1.0, 0.02, 9, 1),), Status.PROVEN, "-")
    >>> [r.records for r in of_records(one, 3).releases]
    [3]
    """
    if records == 1:
        return sensitivity

    def held(releases: tuple[Release, ...]) -> tuple[Release, ...]:
        return tuple(r if r.whole else r._replace(records=records) for r in releases)

    each = tuple(held(of) for of in sensitivity.each)
    return sensitivity._replace(releases=held(sensitivity.releases), each=each)


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
    # Cohorts are drawn of all agents together, alike for every victim.
    every_drawing = {r.drawn for e in every for r in e.releases if r.drawn is not None}
    drawings = {one for one in every_drawing if not one.of_agents}
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
        if r.drawn is None or r.drawn.of_agents:
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


def single_message(
    traces: AlgorithmTrace, who: guarantee.Adversary, victim: int, *, rate: float
) -> JointSensitivity:
    """What one message alone says of a victim: what papers usually account for."""
    from ..tracing.trace import parts_of

    releases, kinds = [], []
    for part in parts_of(traces):
        alone, kind = part.base.single_message(victim)
        mu = traces.per_multiplier(alone * part.factor)
        own = part.base.of_victim(victim)
        under = {batch for batch, cohort in own if cohort is not None}
        drawn = [
            draws for key, (_, _, draws) in own.items() if key[1] is not None or key[0] not in under
        ]
        likely = max(drawn, key=lambda one: one.cohort * one.rate(rate), default=Draws())
        ball = all(reach is Reach.BALL for reach, _ in part.base.reaches(victim))
        coin = likely.cohort if likely.scheme == Scheme.POISSON else 1.0
        reach = Reach.BALL if ball else Reach.SUM
        one = Release(mu, likely.rate(rate), part.rounds, 1, part.first, reach, cohort=coin)
        one = one._replace(whole=all(draws.whole for draws in drawn) and bool(drawn))
        releases.append(one.in_cohort(likely, part.base, who))
        kinds.append((mu, kind))
    most, kind = max(kinds, default=(0.0, "none"))
    because = f"one message alone ({kind}); every adversary sees more"
    status = Status.NO_PROTECTION if math.isinf(most) else Status.HEURISTIC
    return JointSensitivity(
        who, victim, tuple(releases), status, because, noise_multiplier=traces.noise_multiplier
    )


# Which adversaries a name asks for, and about whose records each of them is asked.

CLEAR_DEFAULT = ("eavesdropper", guarantee.WORST_NEIGHBOUR, "final-models", "single-message")
ENCRYPTED_DEFAULT = (
    "eavesdropper",
    guarantee.WORST_NEIGHBOUR,
    guarantee.ALL_OTHERS,
    "final-models",
    "single-message",
)


class _AllBut(Sequence[int]):
    """The numbers below a bound but for one, without a list of them for each one."""

    def __init__(self, bound: int, without: int) -> None:
        self._bound, self._without = bound, without

    def __len__(self) -> int:
        return self._bound - 1

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> list[int]: ...
    def __getitem__(self, index: int | slice) -> int | list[int]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        found = range(len(self))[index]
        return found + (found >= self._without)


def candidates(
    traces: AlgorithmTrace, name: str, victim: int | None = None
) -> list[tuple[guarantee.Adversary, Sequence[int]]]:
    """The adversaries that a name asks for, each with the victims that it is asked about.

    Raises:
        ValueError: an unknown adversary or a victim that does not exist.
        UnsupportedView: no victim is left, or the victim is one of the adversary's agents.
    """
    agents = traces.start.record.agents
    if victim is not None and not 0 <= victim < agents:
        raise InputError(f"victim={victim} must lie in 0..{agents - 1}")
    asked = [victim] if victim is not None else list(range(agents))
    found: list[tuple[guarantee.Adversary, Sequence[int]]]
    if name == guarantee.WORST_NEIGHBOUR and victim is None:
        found = [(guarantee.neighbour(k), _AllBut(agents, k)) for k in range(agents)]
    elif name == guarantee.WORST_NEIGHBOUR:
        found = [(guarantee.neighbour(k), asked) for k in range(agents) if k != victim]
    elif name == guarantee.ALL_OTHERS:
        found = [(guarantee.coalition(set(range(agents)) - {v}), [v]) for v in asked if agents > 1]
    else:
        who = guarantee.parse_adversary(name, agents)
        if victim in who.agents:
            raise UnsupportedView(f"{who.name} contains the victim {victim}; choose another")
        found = [(who, [v for v in asked if v not in who.agents])]
    found = [(who, victims) for who, victims in found if victims]
    if not found:
        raise UnsupportedView(f"adversary {name!r} leaves no victim among {agents} agents")
    return found


def usual_of_person(
    names: Sequence[str], *, holders: Sequence[tuple[int, int]], agents: int
) -> list[str]:
    """The adversaries that are accounted for where none are asked for, with several holders.

    Args:
        names: the usual ones about one record of one agent.
        holders: (agent, records) of each.
        agents: how many there are.
    """
    outside = agents - len(holders)
    of_agents = (guarantee.WORST_NEIGHBOUR, guarantee.ALL_OTHERS)
    kept = [n for n in names if n != guarantee.SINGLE_MESSAGE.name]
    return [n for n in kept if outside or n not in of_agents]
