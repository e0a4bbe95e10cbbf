"""From exposures to guarantees: epsilon of what was released, and the noise that a target needs.

All releases made from one batch act as one Gaussian of effective multiplier (noise multiplier) / J;
batches are composed by the accountant, with amplification by Poisson sampling.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from ..privacy import accountant as accounting
from ..privacy.guarantee import Guarantee, Sampling, Status, Unit
from ..privacy.view import UnsupportedView
from .exposure import Exposure, Release

_SLACKS = (0.0, 1e-14, 1e-13, 1e-12, 1e-11, 1e-10, 1e-9, 1e-7, 1e-5, 1e-3)


class UnsupportedMechanism(ValueError):
    """A composition for which no bound is known here."""


def run_epsilon(
    exposure: Exposure,
    *,
    noise_multiplier: float,
    delta: float,
    adjacency: str = "add-or-remove-one",
    accountant: str = "pld",
    rounds: int | Sequence[int] | None = None,
) -> float:
    """Epsilon of the planned run, or of `rounds` of it, for one exposure.

    Args:
        exposure: at noise multiplier 1.
        noise_multiplier: of the run.
        delta: of the statement.
        adjacency: add-or-remove-one or replace-one.
        accountant: how rounds are added up.
        rounds: how many rounds were released, or the number of each; replayed ones count again.

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
    alike = {r.first for r in releases if r.first} <= {1}  # one trace stands for every round
    last = max((r.first + r.rounds - 1 for r in releases), default=0)
    if not alike and max(entries, default=0) > last:
        raise UnsupportedView(f"round {max(entries)} was released, but only {last} were traced")
    found = []
    for r in releases:
        end = math.inf if alike and r.first else r.first + r.rounds
        counted = sum(n for number, n in entries.items() if r.first <= number < end)
        found.append(r._replace(rounds=max(counted, int(r.first == 0))))
    return tuple(r for r in found if r.rounds)


def accounted(exposure: Exposure, entries: Sequence[int], *, torn: bool = False) -> Exposure:
    """The exposure with every planned round, and more of those that the ledger names more often.

    A run that stopped early is accounted as planned, because what stopped it may depend on the
    data. A torn line may be any round, all of its batches, so every release counts once more.

    Args:
        exposure: of the planned run.
        entries: the number of each round in the ledger.
        torn: whether the last line of the ledger was cut off.
    """
    counted = dict.fromkeys(exposure.releases, 0)
    for r in _replayed(exposure.releases, Counter(entries)):
        origin = next(o for o in exposure.releases if o._replace(rounds=r.rounds) == r)
        counted[origin] = r.rounds
    more = int(torn)
    spent = (r._replace(rounds=max(r.rounds, counted[r]) + more) for r in exposure.releases)
    return exposure._replace(releases=tuple(spent))


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
    bound = accounting.Accountant(accountant).kind == "upper bound"
    status = exposure.status if bound else Status.HEURISTIC
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
        status=status,
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
