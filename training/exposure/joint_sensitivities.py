"""What every adversary is exposed to: joint sensitivities of a traced run, and the worst victim.

Of each adversary the closed view of each traced round gives the joint sensitivity J of a record of
a victim, at noise multiplier 1, one figure for each batch that is drawn. Victims that an agent's
messages and noise do not touch fare alike against all such agents, so one pair of adversary and
victim stands for the others (`surroundings`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

from ...privacy.adversary import (
    ALL_OTHERS,
    WORST_NEIGHBOUR,
    Adversary,
    Sees,
    coalition,
    neighbour,
    parse_adversary,
)
from ...privacy.errors import InputError
from ...privacy.guarantee import Status
from ...privacy.view.view import UnsupportedView, View
from ..tracing.round_trace import RoundTrace
from ..tracing.trace import AlgorithmTrace
from .local_views import Onlooker, Surroundings

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
    """One adversary and one victim over the whole run, at noise multiplier 1.

    With `whole_run` its only release is that of all rounds together, whoever was sampled.
    """

    adversary: Adversary
    victim: int
    releases: tuple[Release, ...]
    status: Status
    because: str
    whole_run: bool = False

    @property
    def worst(self) -> float:
        """The largest joint sensitivity of a round."""
        return max((r.joint_sensitivity for r in self.releases), default=0.0)

    @property
    def order(self) -> float:
        """What the worst victim is chosen by: the sum of squared sensitivities."""
        return rounded(sum(r.rounds * r.joint_sensitivity**2 for r in self.releases))


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
    run = _Run(traces, rate=sampling_rate, encrypted=encrypted)
    found = []
    for name in names:
        every = run.exposures(candidates(traces, name, victim))
        top = max(range(len(every)), key=lambda i: every[i].order)
        every[top] = run.named(every[top])
        found.append((name, worst(every)))
    return found


def exposures_by_victim(
    traces: AlgorithmTrace,
    names: Sequence[str],
    *,
    sampling_rate: float,
    encrypted: bool = False,
) -> list[tuple[str, list[Exposure]]]:
    """The exposure of every agent to each named adversary, in the order of the agents.

    Of "neighbour" it is the agent's own worst neighbour. Members of a coalition are left out.

    Args:
        traces: made at noise multiplier 1.
        names: as for `exposures`.
        sampling_rate: of batches that the step draws without a rate of its own.
        encrypted: the eavesdropper cannot read links and sees the released final models alone.

    Raises:
        ValueError: an unknown adversary.
        UnsupportedView: no victim is left, or no view can be proven.

    >>> from overhear.training import ALGORITHMS, bind, build_graph, trace
    >>> known = ALGORITHMS["dpdl"]
    >>> run = bind(known, known.settings(), learning_rate=0.1, clip_norm=1.0, noise_std=1.0,
    ...     batch_size=1.0)
    >>> traces = trace(run.init, run.step, graph=build_graph("star", 4), rounds=9)
    >>> ((_, found),) = exposures_by_victim(traces, ["neighbour"], sampling_rate=0.02)
    >>> [round(e.worst**2, 6) for e in found]
    [4.0, 2.0, 2.0, 2.0]
    """
    run = _Run(traces, rate=sampling_rate, encrypted=encrypted)
    found = []
    for name in names:
        by_victim: dict[int, list[Exposure]] = {}
        for exposure in run.exposures(candidates(traces, name)):
            by_victim.setdefault(exposure.victim, []).append(exposure)
        of_each = [worst(by_victim[victim]) for victim in sorted(by_victim)]
        found.append((name, [run.named(exposure) for exposure in of_each]))
    return found


def candidates(
    traces: AlgorithmTrace, name: str, victim: int | None = None
) -> list[tuple[Adversary, list[int]]]:
    """The adversaries that a name stands for, each with the victims that it is asked about.

    Raises:
        ValueError: an unknown adversary or a victim that does not exist.
        UnsupportedView: no victim is left.
    """
    agents = traces.start.record.agents
    if victim is not None and not 0 <= victim < agents:
        raise InputError(f"victim={victim} must lie in 0..{agents - 1}")
    asked = [victim] if victim is not None else list(range(agents))
    if name == WORST_NEIGHBOUR:
        found = [(neighbour(k), [v for v in asked if v != k]) for k in range(agents)]
    elif name == ALL_OTHERS:
        found = [(coalition(set(range(agents)) - {v}), [v]) for v in asked if agents > 1]
    else:
        who = parse_adversary(name, agents)
        outside = [v for v in asked if v not in who.agents]
        found = [(who, asked if victim is not None else outside)]
    found = [(who, victims) for who, victims in found if victims]
    if not found:
        raise UnsupportedView(f"adversary {name!r} leaves no victim among {agents} agents")
    return found


def worst(every: Sequence[Exposure]) -> Exposure:
    """The exposure that costs most; where none is worst in every round, each round's worst."""
    top = max(every, key=lambda e: e.order)
    shapes = {tuple((r.sampling_rate, r.rounds, r.first) for r in e.releases) for e in every}
    if len(shapes) != 1:
        raise UnsupportedView("victims differ in how their batches are drawn; name one victim")
    rounds = list(zip(*(e.releases for e in every), strict=True))
    worst = [max(rounded(r.joint_sensitivity) for r in same) for same in rounds]
    most = [max(r.contributions for r in same) for same in rounds]
    if all(rounded(r.joint_sensitivity) >= w for r, w in zip(top.releases, worst, strict=True)):
        # Whether a dominating pair is known depends on the contributions of every victim.
        counted = zip(top.releases, most, strict=True)
        return top._replace(releases=tuple(r._replace(contributions=n) for r, n in counted))
    joint = tuple(
        same[0]._replace(joint_sensitivity=max(r.joint_sensitivity for r in same), contributions=n)
        for same, n in zip(rounds, most, strict=True)
    )
    return top._replace(releases=joint, because=f"{top.because}; of every round the worst victim")


def rounded(value: float) -> float:
    """Nine digits: agents that differ by rounding alone are equal."""
    return float(f"{value:.9g}")


class _Run:
    """A traced run, whose surroundings are found once for all adversaries."""

    def __init__(self, traces: AlgorithmTrace, *, rate: float, encrypted: bool) -> None:
        self._traces, self._rate, self._encrypted = traces, rate, encrypted
        self._parts = _parts(traces)
        self._bases = list({id(part.base): part.base for part in self._parts}.values())
        self._last: tuple[Adversary, list[View]] | None = None

    @cached_property
    def _around(self) -> list[Surroundings]:
        return [Surroundings(base) for base in self._bases]

    def exposures(self, asked: Sequence[tuple[Adversary, Sequence[int]]]) -> list[Exposure]:
        """Exposures among which every victim's largest are, and no larger one is.

        Of pairs of adversary and victim that fare alike only the first is there.
        """
        found: list[Exposure] = []
        local = list[_Seen]()
        open_ = list[Adversary]()
        every = {v for _, victims in asked for v in victims}
        for who, victims in asked:
            if who.sees is Sees.ONE_MESSAGE:
                found += [single_message(self._traces, who, v, rate=self._rate) for v in victims]
                continue
            onlookers = [around.onlooker(self._sight(who)) for around in self._around]
            if len(asked) == 1 or len(who.agents) != 1:
                found += [self._exposure(who, v, onlookers) for v in victims]
            elif any(onlooker.ground.undetermined for onlooker in onlookers):
                open_.append(who)
            else:
                local.append((who, onlookers))
        found += [self._exposure(who, v, on) for who, v, on in _different(local, every)]
        found += self._of_open(open_, every)
        order = {who.name: i for i, (who, _) in enumerate(asked)}
        return sorted(found, key=lambda e: (order[e.adversary.name], e.victim))

    def _of_open(self, adversaries: Sequence[Adversary], victims: set[int]) -> list[Exposure]:
        """Of adversaries to whom the whole graph is one problem the largest figure a victim.

        A victim's figures are at most those of adversaries who see more, in local rows. Where one
        who sees less than its adversary reaches the largest of these, it is the victim's largest.
        """
        if not adversaries:
            return []
        found = list[Exposure]()
        left = set(victims)
        try:
            bounds = [
                (who, [around.between(self._sight(who)) for around in self._around])
                for who in adversaries
            ]
            above = [(who, [more for _, more in both]) for who, both in bounds]
            most: dict[int, list[float]] = {}
            for who, v, onlookers in _different(above, victims):
                figures = _figures(self._exposure(who, v, onlookers))
                most[v] = [max(pair) for pair in zip(figures, most.get(v, figures), strict=True)]
            for (who, both), (_, more) in zip(bounds, above, strict=True):
                less = [below for below, _ in both]
                for v in sorted({v for below in less for v in below.touched()} & left):
                    if _figures(self._exposure(who, v, less)) == most[v]:
                        found.append(self._exposure(who, v, more))
                        left.discard(v)
        except UnsupportedView:  # more or less than the adversary sees is no reason to refuse
            found, left = [], set(victims)
        for who in adversaries:
            if left - who.agents:
                onlookers = [around.onlooker(self._sight(who)) for around in self._around]
                found += [self._exposure(who, v, onlookers) for v in sorted(left - who.agents)]
        return found

    def _sight(self, who: Adversary) -> Adversary:
        if self._encrypted and who.sees is Sees.LINKS:
            return Adversary(name=who.name, sees=Sees.END_STATES)
        return who

    def _exposure(self, who: Adversary, victim: int, onlookers: Sequence[Onlooker]) -> Exposure:
        pairs = zip(self._bases, onlookers, strict=True)
        found = {id(base): onlooker.sensitivities(victim) for base, onlooker in pairs}
        releases = [
            Release(
                s.mu * part.factor,
                self._rate if s.sampling_rate is None else s.sampling_rate,
                part.rounds,
                s.contributions,
                part.first,
            )
            for part in self._parts
            for s in found[id(part.base)]
        ]
        reasons = [(s.mu, s.because) for of_base in found.values() for s in of_base]
        unnamed = any(not because for _, because in reasons)
        heuristic = any(base.blames for base in self._bases)
        return Exposure(
            who,
            victim,
            tuple(releases),
            Status.HEURISTIC if heuristic else Status.PROVEN,
            "" if unnamed else _most(reasons),
        )

    def named(self, exposure: Exposure) -> Exposure:
        """The exposure with the messages named between which noise cancels, if it does.

        The names are those of the adversary's whole view, which is formed for nothing else.
        """
        if exposure.because:
            return exposure
        sight = self._sight(exposure.adversary)
        if self._last is None or self._last[0] != sight:
            self._last = sight, [base.view(sight) for base in self._bases]
        reasons = [
            (s.mu, s.because)
            for base, view in zip(self._bases, self._last[1], strict=True)
            for s in base.sensitivities_in(view, sight, exposure.victim)
        ]
        return exposure._replace(because=_most(reasons))


_Seen = tuple[Adversary, Sequence[Onlooker]]


def _different(
    adversaries: Sequence[_Seen], victims: set[int]
) -> Iterator[tuple[Adversary, int, Sequence[Onlooker]]]:
    """Pairs of single agents and victims, those that fare like an earlier one left out."""
    pending: dict[tuple[int, ...], set[int]] = {}
    for who, onlookers in adversaries:
        touched = {v for onlooker in onlookers for v in onlooker.touched()} & victims
        alike = tuple(id(onlooker.ground) for onlooker in onlookers)
        new = pending.setdefault(alike, set(victims)) - touched - who.agents
        pending[alike] -= new
        for v in sorted(touched | new):
            yield who, v, onlookers


def _figures(exposure: Exposure) -> list[float]:
    return [rounded(r.joint_sensitivity) for r in exposure.releases]


def _most(reasons: Sequence[tuple[float, str]]) -> str:
    return max(reasons, default=(0.0, "nothing about the data is released"))[1]


class _Part(NamedTuple):
    """A trace that stands for `rounds` rounds from `first` on."""

    trace: RoundTrace
    first: int
    rounds: int

    @property
    def base(self) -> RoundTrace:
        """The trace whose mu is looked at: of the rounds that differ by a scale, the first."""
        return self.trace if self.trace.scale_of is None else self.trace.scale_of[0]

    @property
    def factor(self) -> float:
        """Mu of these rounds over mu of the base."""
        return 1.0 if self.trace.scale_of is None else self.trace.scale_of[1]


def _parts(traces: AlgorithmTrace) -> list[_Part]:
    """The start and the rounds, those that touch data."""
    parts, first = [_Part(traces.start, 0, 1)], 1
    for one, count in traces.rounds:
        parts.append(_Part(one, first, count))
        first += count
    return [part for part in parts if part.trace.has_contributions]


def single_message(traces: AlgorithmTrace, who: Adversary, victim: int, *, rate: float) -> Exposure:
    """What one message alone says of a victim: what papers usually account for."""
    releases, kinds = [], []
    for part in _parts(traces):
        alone, kind = part.base.single_message(victim)
        mu = alone * part.factor
        own = [drawn for _, _, drawn in part.base.of_victim(victim).values()]
        largest = max((rate if r is None else r for r in own), default=rate)
        releases.append(Release(mu, largest, part.rounds, 1, part.first))
        kinds.append((mu, kind))
    because = (
        f"one message alone ({max(kinds, default=(0.0, 'none'))[1]}); no adversary sees so little"
    )
    return Exposure(who, victim, tuple(releases), Status.HEURISTIC, because)
