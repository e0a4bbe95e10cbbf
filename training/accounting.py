"""From what a step sends to what is guaranteed: traces, adversaries and the accountant together.

A trace at noise multiplier 1 gives each adversary's joint sensitivity J for a record of a victim.
All releases made from one batch act as one Gaussian of effective multiplier (noise multiplier) / J;
batches are composed by the accountant, with amplification by Poisson sampling.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from ..privacy import accountant as accounting
from ..privacy.adversary import (
    ALL_OTHERS,
    WORST_NEIGHBOUR,
    Adversary,
    Sees,
    coalition,
    neighbour,
    parse_adversary,
)
from ..privacy.guarantee import Guarantee, Sampling, Status, Unit
from ..privacy.view import UnsupportedView, View
from .trace import AlgorithmTrace, RoundTrace

CLEAR_DEFAULT = ("eavesdropper", WORST_NEIGHBOUR, "final-models", "single-message")
ENCRYPTED_DEFAULT = ("eavesdropper", WORST_NEIGHBOUR, ALL_OTHERS, "final-models", "single-message")


_SLACKS = (0.0, 1e-14, 1e-13, 1e-12, 1e-11, 1e-10, 1e-9, 1e-7, 1e-5, 1e-3)


class UnsupportedMechanism(ValueError):
    """A composition for which no bound is known here."""


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
    if all(_rounded(r.joint_sensitivity) >= w for r, w in zip(top.releases, worst, strict=True)):
        return top
    joint = tuple(
        same[0]._replace(
            joint_sensitivity=max(r.joint_sensitivity for r in same),
            contributions=max(r.contributions for r in same),
        )
        for same in rounds
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


def run_epsilon(
    exposure: Exposure,
    *,
    noise_multiplier: float,
    delta: float,
    adjacency: str = "add-or-remove-one",
    accountant: str = "pld",
    rounds: int | None = None,
) -> float:
    """Epsilon of the planned run, or of `rounds` rounds of it, for one exposure.

    Args:
        exposure: at noise multiplier 1.
        noise_multiplier: of the run.
        delta: of the statement.
        adjacency: add-or-remove-one or replace-one.
        accountant: how rounds are added up.
        rounds: rounds that were released: fewer than planned, or more where some were replayed.

    Raises:
        UnsupportedMechanism: replace-one with several contributions of a sampled batch.
        UnsupportedView: more rounds than were traced, of rounds that differ.
    """
    releases = exposure.releases if rounds is None else _released(exposure.releases, rounds)
    releases = tuple(r for r in releases if r.joint_sensitivity > 0 and r.sampling_rate > 0)
    if not releases:
        return 0.0
    if noise_multiplier == 0 or math.isinf(exposure.worst):
        return math.inf
    for r in releases:
        if adjacency == "replace-one" and r.contributions > 1 and r.sampling_rate < 1:
            raise UnsupportedMechanism(
                f"adjacency='replace-one' with {r.contributions} contributions of one sampled "
                "batch: no dominating pair is known; use adjacency='add-or-remove-one' or "
                "sampling_rate=1"
            )
    if len(releases) == 1:
        (only,) = releases
        return accounting.epsilon(
            noise_multiplier=noise_multiplier / only.joint_sensitivity,
            delta=delta,
            rounds=only.rounds,
            sampling_rate=only.sampling_rate,
            adjacency=adjacency,
            accountant=accountant,
        )
    if accountant != "pld":
        raise UnsupportedMechanism(f"accountant={accountant!r} with rounds that differ; use 'pld'")
    return accounting.composed_epsilon(
        _counted(releases, noise_multiplier),
        delta=delta,
        adjacency=adjacency,
    )


def _counted(releases: Sequence[Release], noise_multiplier: float) -> Counter[tuple[float, float]]:
    counts: Counter[tuple[float, float]] = Counter()
    for r in releases:
        counts[noise_multiplier / r.joint_sensitivity, r.sampling_rate] += r.rounds
    return counts


def _released(releases: Sequence[Release], rounds: int) -> tuple[Release, ...]:
    """The releases of the start and of so many rounds."""
    last = max((r.first + r.rounds - 1 for r in releases), default=0)
    if rounds > last:
        of_rounds = {r.first for r in releases if r.first > 0}
        if of_rounds - {1}:
            raise UnsupportedView(f"{rounds} rounds of {last} that differ: the rest has no trace")
        return tuple(r._replace(rounds=rounds) if r.first else r for r in releases)
    begun = [r for r in releases if r.first <= rounds]
    return tuple(r._replace(rounds=min(r.rounds, rounds - r.first + 1)) for r in begun)


def guarantee(
    name: str,
    exposure: Exposure,
    *,
    noise_multiplier: float,
    delta: float,
    adjacency: str = "add-or-remove-one",
    accountant: str = "pld",
) -> Guarantee:
    """The statement for one adversary at a noise multiplier."""
    joint = exposure.worst
    effective = math.inf if joint == 0 else noise_multiplier / joint
    full = all(r.sampling_rate == 1 for r in exposure.releases)
    because = exposure.because
    if noise_multiplier == 0 and math.isfinite(joint) and joint > 0:
        because = "the noise multiplier is 0: nothing hides the gradients"
    return Guarantee(
        adversary=name,
        victim=exposure.victim,
        worst_adversary=exposure.adversary.name if exposure.adversary.name != name else None,
        joint_sensitivity=joint,
        effective_noise_multiplier=effective,
        mu_per_round=math.inf if effective == 0 else 1.0 / effective,
        epsilon=run_epsilon(
            exposure,
            noise_multiplier=noise_multiplier,
            delta=delta,
            adjacency=adjacency,
            accountant=accountant,
        ),
        delta=delta,
        unit=Unit.RECORD,
        adjacency=adjacency,
        sampling=Sampling.FULL if full else Sampling.POISSON,
        status=exposure.status,
        because=because,
    )


def calibrated_multiplier(
    exposure: Exposure,
    *,
    epsilon: float,
    delta: float,
    adjacency: str = "add-or-remove-one",
    accountant: str = "pld",
) -> float:
    """The noise multiplier at which an exposure costs at most `epsilon`.

    Raises:
        UnsupportedView: no noise reaches the target, or the rounds differ.
    """
    releases = [r for r in exposure.releases if r.joint_sensitivity > 0]
    if math.isinf(exposure.worst):
        raise UnsupportedView(
            f"no noise multiplier reaches epsilon={epsilon:g} for {exposure.adversary.name}: "
            f"{exposure.because}"
        )
    if len(releases) != 1:
        raise UnsupportedView(
            "the rounds differ or release nothing: give noise_multiplier in place of epsilon"
        )
    (only,) = releases
    if adjacency == "replace-one" and only.contributions > 1 and only.sampling_rate < 1:
        run_epsilon(exposure, noise_multiplier=1.0, delta=delta, adjacency=adjacency)
    needed = accounting.noise_multiplier(
        epsilon=epsilon,
        delta=delta,
        rounds=only.rounds,
        sampling_rate=only.sampling_rate,
        adjacency=adjacency,
        accountant=accountant,
    )
    spent = math.inf
    for slack in _SLACKS:  # what will be reported must not exceed the target by a rounding
        multiplier = only.joint_sensitivity * needed * (1.0 + slack)
        spent = run_epsilon(
            exposure,
            noise_multiplier=multiplier,
            delta=delta,
            adjacency=adjacency,
            accountant=accountant,
        )
        if spent <= epsilon:
            return multiplier
    raise UnsupportedMechanism(
        f"accountant={accountant!r} answers noise_multiplier={needed:g} for epsilon={epsilon:g}, "
        f"but spends {spent:g} with it; use accountant='pld'"
    )
