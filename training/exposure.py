"""What every adversary is exposed to: joint sensitivities of a traced run, and the worst victim.

Of each adversary the closed view of each traced round gives the joint sensitivity J of a record of
a victim, at noise multiplier 1, one figure for each batch that is drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..privacy.adversary import (
    ALL_OTHERS,
    WORST_NEIGHBOUR,
    Adversary,
    Sees,
    coalition,
    neighbour,
    parse_adversary,
)
from ..privacy.guarantee import Status
from ..privacy.view import UnsupportedView, View
from .trace import AlgorithmTrace, RoundTrace

CLEAR_DEFAULT = ("eavesdropper", WORST_NEIGHBOUR, "final-models", "single-message")
ENCRYPTED_DEFAULT = ("eavesdropper", WORST_NEIGHBOUR, ALL_OTHERS, "final-models", "single-message")


class Release(NamedTuple):
    """What a victim's batches release to an adversary in `rounds` rounds from `first` on.

    `first` is 0 for the start, 1 for the first round.
    """

    joint_sensitivity: float
    sampling_rate: float
    rounds: int
    contributions: int
    first: int = 1


class Exposure(NamedTuple):
    """One adversary and one victim over the whole run, at noise multiplier 1."""

    adversary: Adversary
    victim: int
    releases: tuple[Release, ...]
    status: Status
    because: str

    @property
    def worst(self) -> float:
        """The largest joint sensitivity of a round."""
        return max((r.joint_sensitivity for r in self.releases), default=0.0)

    @property
    def order(self) -> float:
        """What the worst victim is chosen by: the sum of squared sensitivities."""
        return _rounded(sum(r.rounds * r.joint_sensitivity**2 for r in self.releases))


def exposures(
    traces: AlgorithmTrace,
    names: Sequence[str],
    *,
    sampling_rate: float,
    victim: int | None = None,
    encrypted: bool = False,
) -> list[tuple[str, Exposure]]:
    """The exposure to each named adversary, of `victim` or else of the worst agent.

    Args:
        traces: made at noise multiplier 1.
        names: as in a run file; "neighbour" is the worst single agent, "all-others" the coalition
            of everybody but the victim.
        sampling_rate: of batches that the step draws without a rate of its own.
        victim: the agent whose record is at stake; None searches the worst one.
        encrypted: the eavesdropper cannot read links and sees the released final models alone.

    Raises:
        ValueError: an unknown adversary or a victim that does not exist.
        UnsupportedView: the adversary contains the victim, or no view can be proven.
    """
    agents = traces.start.record.agents
    if victim is not None and not 0 <= victim < agents:
        raise ValueError(f"victim={victim} must lie in 0..{agents - 1}")
    asked = [victim] if victim is not None else list(range(agents))
    found = []
    for name in names:
        candidates: list[tuple[Adversary, list[int]]]
        if name == WORST_NEIGHBOUR:
            candidates = [
                (neighbour(k), [v for v in asked if v != k])
                for k in range(agents)
                if agents > 1 and asked != [k]
            ]
        elif name == ALL_OTHERS:
            candidates = [(coalition(set(range(agents)) - {v}), [v]) for v in asked if agents > 1]
        else:
            who = parse_adversary(name, agents)
            candidates = [(who, asked if victim is not None else _outside(asked, who))]
        every = [
            exposure
            for who, victims in candidates
            for exposure in _of(traces, who, victims, rate=sampling_rate, encrypted=encrypted)
        ]
        if not every:
            raise UnsupportedView(f"adversary {name!r} leaves no victim among {agents} agents")
        found.append((name, _worst(every)))
    return found


def _worst(every: Sequence[Exposure]) -> Exposure:
    """The exposure that costs most; where none is worst in every round, each round's worst."""
    top = max(every, key=lambda e: e.order)
    shapes = {tuple((r.sampling_rate, r.rounds, r.first) for r in e.releases) for e in every}
    if len(shapes) != 1:
        raise UnsupportedView("victims differ in how their batches are drawn; name one victim")
    rounds = list(zip(*(e.releases for e in every), strict=True))
    worst = [max(_rounded(r.joint_sensitivity) for r in same) for same in rounds]
    most = [max(r.contributions for r in same) for same in rounds]
    if all(_rounded(r.joint_sensitivity) >= w for r, w in zip(top.releases, worst, strict=True)):
        # Whether a dominating pair is known depends on the contributions of every victim.
        counted = zip(top.releases, most, strict=True)
        return top._replace(releases=tuple(r._replace(contributions=n) for r, n in counted))
    joint = tuple(
        same[0]._replace(joint_sensitivity=max(r.joint_sensitivity for r in same), contributions=n)
        for same, n in zip(rounds, most, strict=True)
    )
    return top._replace(releases=joint, because=f"{top.because}; of every round the worst victim")


def _rounded(value: float) -> float:
    """Nine digits: agents that differ by rounding alone are equal."""
    return float(f"{value:.9g}")


def _outside(victims: list[int], who: Adversary) -> list[int]:
    return [v for v in victims if v not in who.agents]


def _of(
    traces: AlgorithmTrace,
    who: Adversary,
    victims: Sequence[int],
    *,
    rate: float,
    encrypted: bool,
) -> list[Exposure]:
    parts = _parts(traces)
    if who.sees is Sees.ONE_MESSAGE:
        return [_of_one_message(parts, who, v, rate=rate) for v in victims]
    sight = who
    if encrypted and who.sees is Sees.LINKS:
        sight = Adversary(name=who.name, sees=Sees.END_STATES)
    views: list[tuple[_Part, View]] = [(part, part.trace.view(sight)) for part in parts]
    found = []
    for victim in victims:
        releases, reasons = [], []
        for part, view in views:
            for s in part.trace.sensitivities_in(view, sight, victim):
                own = rate if s.sampling_rate is None else s.sampling_rate
                releases.append(Release(s.mu, own, part.rounds, s.contributions, part.first))
                reasons.append((s.mu, s.because))
        heuristic = any(part.trace.blames for part in parts)
        found.append(
            Exposure(
                who,
                victim,
                tuple(releases),
                Status.HEURISTIC if heuristic else Status.PROVEN,
                max(reasons, default=(0.0, "nothing about the data is released"))[1],
            )
        )
    return found


class _Part(NamedTuple):
    """A trace that stands for `rounds` rounds from `first` on."""

    trace: RoundTrace
    first: int
    rounds: int


def _parts(traces: AlgorithmTrace) -> list[_Part]:
    """The start and the rounds, those that touch data."""
    parts, first = [_Part(traces.start, 0, 1)], 1
    for one, count in traces.rounds:
        parts.append(_Part(one, first, count))
        first += count
    return [part for part in parts if part.trace.has_contributions]


def _of_one_message(
    parts: Sequence[_Part], who: Adversary, victim: int, *, rate: float
) -> Exposure:
    releases, kinds = [], []
    for part in parts:
        mu, kind = part.trace.single_message(victim)
        releases.append(Release(mu, rate, part.rounds, 1, part.first))
        kinds.append((mu, kind))
    because = (
        f"one message alone ({max(kinds, default=(0.0, 'none'))[1]}); no adversary sees so little"
    )
    return Exposure(who, victim, tuple(releases), Status.HEURISTIC, because)
