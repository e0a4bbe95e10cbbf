"""Where epsilon is decided: from joint sensitivities to guarantees, and to the noise of a target.

    epsilon of a run         `run_epsilon`            of everything released, or of some rounds
    a second opinion on it   `opinion_on`             dp-accounting's, of the same releases
    statement with figures   `guarantee`              for one adversary at a noise multiplier
    noise for a target       `calibrated_multiplier`  the inverse, evaluated once more

Plans, runs, resumptions, audits and reports call these and add nothing of their own. All releases
made from one batch act as one Gaussian of effective multiplier (noise multiplier) / J; batches are
composed by the accountant (`privacy.accounting.accountant`), with amplification by Poisson
sampling. J is decided in `joint_sensitivities`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ...privacy.accounting import accountant as accounting
from ...privacy.accounting.limits import scale_for
from ...privacy.accounting.request import Accountant, Bound, check_multiplier, orders_of
from ...privacy.accounting.search import least_that_meets
from ...privacy.batches.sampling import Sampling
from ...privacy.errors import UnsupportedView
from ...privacy.guarantee import GroupEpsilon, Guarantee, Holder, Statement, Status, Unit
from ...privacy.participation import Reach
from ...privacy.reference.second_opinion import SecondOpinion, second_opinion
from .events import asked_releases, at_least, counted, spent_releases
from .sensitivity import JointSensitivity, UnsupportedMechanism


def run_epsilon(
    sensitivity: JointSensitivity,
    *,
    statement: Statement,
    noise_multiplier: float,
    rounds: int | Sequence[int] | None = None,
    records: int = 1,
) -> float:
    """Epsilon of the planned run, or of `rounds` of it, for one adversary and victim.

    Args:
        sensitivity: of the run, which was traced at this noise multiplier or holds at any.
        statement: what epsilon is said of: delta, adjacency and accountant.
        rounds: how many rounds were released, or the number of each; replayed ones count again.
        records: of one person at the victim, drawn each on its own, that are there or not together.

    Raises:
        UnsupportedMechanism: rounds that differ, by an accountant that adds up equal ones only.
        UnsupportedView: more rounds than were traced, of rounds that differ; or a noise
            multiplier at which the sensitivity was not looked at.
    """
    check_traced_at(sensitivity, noise_multiplier)
    releases = asked_releases(sensitivity, rounds)
    records = max(records, statement.at_once)
    if not releases:
        return 0.0
    if noise_multiplier == 0 or math.isinf(sensitivity.largest):
        return math.inf
    # One plain kind of round suits every accountant; several kinds need losses to compose.
    events = counted(releases, noise_multiplier, statement.adjacency, records=records)
    if len(releases) == 1 and releases[0].held(records) == 1 and releases[0].is_plain:
        (only,), (event,) = releases, events
        noise, times = event.noise_multiplier, only.rounds
        return equal_epsilon(statement, noise, rounds=times, rate=only.rate, reach=event.reach)
    if not statement.accountant.by_losses:
        raise _not_composed(statement.accountant)
    return accounting.composed_epsilon(
        events,
        delta=statement.delta,
        adjacency=statement.adjacency,
        accountant=statement.accountant,
    )


def equal_epsilon(
    statement: Statement,
    noise_multiplier: float,
    *,
    rounds: int,
    rate: float,
    reach: Reach = Reach.SUM,
) -> float:
    """Epsilon of equal rounds, each of a Poisson batch, as a statement counts it."""
    return accounting.epsilon(
        noise_multiplier=noise_multiplier,
        delta=statement.delta,
        rounds=rounds,
        sampling_rate=rate,
        adjacency=statement.adjacency,
        accountant=statement.accountant,
        reach=reach,
    )


def _not_composed(accountant: Accountant) -> UnsupportedMechanism:
    return UnsupportedMechanism(f"accountant='{accountant}' with rounds that differ; use 'pld'")


def check_traced_at(sensitivity: JointSensitivity, noise_multiplier: float | None) -> None:
    """Refuse a noise multiplier at which nobody looked at what the step does.

    Raises:
        UnsupportedView: the sensitivity is that of another multiplier.
        ValueError: a multiplier that is no number of at least 0.
    """
    if noise_multiplier is not None:
        check_multiplier(noise_multiplier)
    traced = sensitivity.noise_multiplier
    if traced is None or (
        noise_multiplier and math.isclose(traced, noise_multiplier, rel_tol=1e-9)
    ):
        return
    if noise_multiplier == 0 and (traced == 0 or sensitivity.largest > 0):
        return  # infinite, whatever it was at other noise
    asked = "any noise" if noise_multiplier is None else f"{noise_multiplier:g}"
    raise UnsupportedView(
        f"the joint sensitivity was traced at noise multiplier {traced:g} and says nothing of "
        f"{asked}, where the step's noise may not keep its proportion; trace it there, or check "
        "that it does (training.accounts.figures)"
    )


def guarantee(
    name: str, sensitivity: JointSensitivity, *, statement: Statement, noise_multiplier: float
) -> Guarantee:
    """The statement for one adversary at a noise multiplier.

    An infinite epsilon is never proven: nothing protects, or no finite bound can be expressed.
    """
    joint = sensitivity.largest
    effective = math.inf if joint == 0 else noise_multiplier / joint
    spent = run_epsilon(sensitivity, statement=statement, noise_multiplier=noise_multiplier)
    status, because = status_of(sensitivity, statement, noise_multiplier, epsilon=spent)
    return Guarantee(
        adversary=name,
        victim=sensitivity.victim,
        worst_adversary=sensitivity.adversary.name if sensitivity.adversary.name != name else None,
        joint_sensitivity=joint,
        effective_noise_multiplier=effective,
        mu_per_round=math.inf if effective == 0 else 1.0 / effective,
        epsilon=spent,
        delta=statement.delta,
        unit=statement.unit,
        adjacency=statement.adjacency,
        sampling=_sampling(sensitivity, statement),
        status=status,
        because=because,
        bound=_bound(sensitivity, statement, noise_multiplier),
        at_least=at_least(sensitivity, statement=statement, noise_multiplier=noise_multiplier),
        records_per_person=statement.records_per_person if statement.unit is Unit.USER else None,
        group=group_of(sensitivity, spent, statement=statement, noise_multiplier=noise_multiplier),
        holders=tuple(Holder(agent=a, records=n) for a, n in statement.holders) or None,
    )


def group_of(
    sensitivity: JointSensitivity,
    epsilon: float,
    *,
    statement: Statement,
    noise_multiplier: float,
    rounds: int | Sequence[int] | None = None,
) -> tuple[GroupEpsilon, ...] | None:
    """Epsilon of as many records of one person as the statement speaks of; see `run_epsilon`."""
    records = statement.records_per_person
    if records == 1 or statement.unit is not Unit.RECORD:
        return None  # a user's records are in the figure itself
    found = run_epsilon(
        sensitivity,
        statement=statement,
        noise_multiplier=noise_multiplier,
        rounds=rounds,
        records=records,
    )
    return (GroupEpsilon(records=records, epsilon=max(found, epsilon)),)


def status_of(
    sensitivity: JointSensitivity, statement: Statement, noise_multiplier: float, *, epsilon: float
) -> tuple[Status, str]:
    """What is known of an epsilon that `run_epsilon` gave, and why it is what it is."""
    because = sensitivity.because
    if math.isinf(epsilon):
        if noise_multiplier == 0 and sensitivity.status is not Status.NO_PROTECTION:
            return Status.NO_PROTECTION, "the noise multiplier is 0: nothing hides the gradients"
        if math.isinf(sensitivity.largest):
            return sensitivity.status, because
        said = f"accountant='{statement.accountant}' gives no finite bound at this delta"
        return Status.CANNOT_BE_EXPRESSED, f"{said}; {because}"
    if not sensitivity.status.is_finite:
        return (
            Status.PROVEN,
            f"no {'agent' if statement.unit is Unit.AGENT else 'record'} is ever in a batch",
        )
    bounds = statement.accountant.kind == "upper bound"
    return sensitivity.status if bounds else Status.HEURISTIC, because


def _sampling(sensitivity: JointSensitivity, statement: Statement) -> Sampling:
    spent = [r for r in sensitivity.releases if r.joint_sensitivity > 0]
    if statement.unit is Unit.AGENT:
        secret = not sensitivity.whole_run and any(r.sampling_rate < 1 for r in spent)
        for r in spent:
            if r.drawn is not None:
                return Sampling.of_cohort(r.drawn.scheme)
        return Sampling.COHORT if secret else Sampling.EVERY
    if sensitivity.whole_run and sensitivity.pattern.is_every:
        return Sampling.ANY
    if sensitivity.whole_run:
        coins = any(r.sampling_rate < 1 for r in spent)
        return Sampling.POISSON_TURNS if coins else Sampling.TURNS
    for r in spent:
        if r.members is not None:
            return Sampling.of_cohort(r.members.scheme)
        if r.cohort < 1:
            return Sampling.COHORT
    for r in sensitivity.releases:
        if r.drawn is not None:
            return Sampling(r.drawn.scheme)
    full = all(r.sampling_rate == 1 for r in sensitivity.releases)
    return Sampling.FULL if full else Sampling.POISSON


def _bound(sensitivity: JointSensitivity, statement: Statement, noise_multiplier: float) -> Bound:
    """How `run_epsilon` finds its figure."""
    releases = spent_releases(sensitivity.releases)
    trivial = not releases or noise_multiplier == 0 or math.isinf(sensitivity.largest)
    if trivial or statement.accountant is Accountant.PLD:
        if trivial:
            return Bound.CLOSED_FORM
        events = counted(releases, noise_multiplier, statement.adjacency)
        _, orders = orders_of(events, statement.adjacency)
        if not orders:
            return Bound.CLOSED_FORM
        sides = [one for r in orders[0] for one in (r, r.otherwise) if one is not None]
        profile = any(side.pair.is_profile for side in sides)
        return Bound.PROFILE if profile else Bound.PLD
    return statement.accountant.bound


def calibrated_multiplier(
    sensitivity: JointSensitivity, *, statement: Statement, epsilon: float
) -> float:
    """The noise multiplier at which a joint sensitivity costs at most `epsilon`.

    Raises:
        UnsupportedView: no noise reaches the target, or nothing is released.
        UnsupportedMechanism: the accountant does not cover the rounds.
        ValueError: no noise meets it by the accountant.
    """
    releases = spent_releases(sensitivity.releases)
    # Targets that no noise meets, and those that every noise does.
    if math.isinf(sensitivity.largest):
        raise UnsupportedView(
            f"no noise multiplier reaches epsilon={epsilon:g} for {sensitivity.adversary.name}: "
            f"{sensitivity.because}"
        )
    check_traced_at(sensitivity, None)
    if not releases:
        raise UnsupportedView(
            f"nothing about the data is released to {sensitivity.adversary.name}, so epsilon is 0 "
            "at every noise; give noise_multiplier in place of epsilon"
        )
    # One plain kind of round has a multiplier of its own; several share a factor.
    held = max(r.held(statement.at_once) for r in releases)
    events = counted(releases, 1.0, statement.adjacency, records=statement.at_once)
    if len(releases) == 1 and held == 1 and releases[0].is_plain:
        (only,), (event,) = releases, events
        needed = (
            accounting.noise_multiplier(
                epsilon=epsilon,
                delta=statement.delta,
                rounds=only.rounds,
                sampling_rate=only.rate,
                adjacency=statement.adjacency,
                accountant=statement.accountant,
                reach=event.reach,
            )
            / event.noise_multiplier
        )
    elif not statement.accountant.by_losses:
        raise _not_composed(statement.accountant)
    else:
        needed = scale_for(
            events,
            epsilon=epsilon,
            delta=statement.delta,
            adjacency=statement.adjacency,
            accountant=statement.accountant,
        )
    # The run's figure is evaluated at that noise, which is raised until it meets the target.
    return least_that_meets(
        lambda noise: run_epsilon(sensitivity, statement=statement, noise_multiplier=noise),
        epsilon,
        start=needed,
        otherwise=f"accountant='{statement.accountant}' finds no noise for epsilon={epsilon:g}; "
        "choose a larger epsilon or a larger delta",
    )


def opinion_on(
    epsilon: float,
    sensitivity: JointSensitivity,
    *,
    statement: Statement,
    noise_multiplier: float,
    rounds: int | Sequence[int] | None = None,
) -> SecondOpinion:
    """What dp-accounting says of the releases whose `epsilon` `run_epsilon` has found.

    The other arguments are those of `run_epsilon`.
    """
    releases = asked_releases(sensitivity, rounds)
    hidden = noise_multiplier > 0 and math.isfinite(sensitivity.largest)
    return second_opinion(
        counted(releases, noise_multiplier, statement.adjacency, records=statement.at_once)
        if hidden
        else {},
        ours=epsilon,
        delta=statement.delta,
        adjacency=statement.adjacency,
    )
