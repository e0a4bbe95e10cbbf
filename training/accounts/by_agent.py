"""Epsilon of every agent's records, not of the worst alone."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from ...privacy.batches.drawing import Drawing
from ...privacy.batches.patterns import EVERY, Pattern
from ...privacy.guarantee import Statement
from ..exposure.guarantees import run_epsilon
from ..exposure.joint_sensitivities import joint_sensitivities_by_victim
from ..exposure.sensitivity import JointSensitivity, Release, of_records, rounded
from ..exposure.whole_run import whole_run_by_victim
from ..tracing.trace import AlgorithmTrace

_Release = tuple[float | str | Drawing | None, ...]
_Key = tuple[_Release, ...]


def exposures_by_agent(
    traces: AlgorithmTrace,
    worst: Mapping[str, JointSensitivity],
    *,
    sampling_rate: float,
    encrypted: bool = False,
    drawn: Sequence[Drawing] | None = None,
    records: int = 1,
    pattern: Pattern = EVERY,
    amplified: bool = False,
) -> dict[str, list[JointSensitivity]]:
    """The exposure of every agent to the adversaries of `worst`, accounted as the worst one is.

    Where the worst figure is that of a view of all rounds together, so are the others. What
    differs from the worst figure by rounding is the worst figure.

    Args:
        traces: at the noise of the run.
        worst: by adversary the joint sensitivity of the worst agent.
        sampling_rate: of batches that the step draws without a rate of its own.
        encrypted: the eavesdropper cannot read links and sees the released final models alone.
        drawn: as for `joint_sensitivities`.
        records: of one user, which are all there or none is.
        pattern: in which rounds one record may take part.
        amplified: as for `whole_run_joint_sensitivities`.
    """
    settled: dict[str, list[JointSensitivity]] = {}
    every = joint_sensitivities_by_victim(
        traces, list(worst), sampling_rate=sampling_rate, encrypted=encrypted, drawn=drawn
    )
    for name, found in every:
        whole = (
            whole_run_by_victim(
                traces,
                name,
                sampling_rate=sampling_rate,
                encrypted=encrypted,
                pattern=pattern,
                amplified=amplified,
            )
            if worst[name].whole_run and traces.noise_multiplier != 0
            else {}
        )
        any_round = pattern.is_every
        each = [
            e if any_round and math.isfinite(e.largest) else whole.get(e.victim, e) for e in found
        ]
        held = [of_records(exposure, records) for exposure in each]
        settled[name] = [_as_worst(exposure, worst[name]) for exposure in held]
    return settled


def _as_worst(exposure: JointSensitivity, worst: JointSensitivity) -> JointSensitivity:
    """The same, with the worst agent's figure where the two are equal but for rounding."""
    if len(exposure.releases) != len(worst.releases):
        return exposure
    pairs = zip(exposure.releases, worst.releases, strict=True)
    return exposure._replace(releases=tuple(w if _alike(e, w) else e for e, w in pairs))


def epsilon_by_agent(
    exposures: Sequence[JointSensitivity],
    *,
    agents: int,
    statement: Statement,
    noise_multiplier: float,
) -> list[float | None]:
    """Epsilon of each agent's records, None for agents that belong to the adversary.

    Agents whose joint sensitivities differ in the tenth digit are accounted for once, by the
    largest.

    Args:
        exposures: traced at this noise or holding at any, one for each agent outside the adversary.
        agents: how many there are.
        statement: what epsilon is said of.
        noise_multiplier: of the run.

    >>> from overhear.privacy import EAVESDROPPER, Statement, Status
    >>> found = [
    ...     JointSensitivity(EAVESDROPPER, v, (Release(j, 0.02, 1000, 1),), Status.PROVEN, "a test")
    ...     for v, j in ((0, 1.0), (2, 0.5), (3, 1.0 + 1e-15))
    ... ]
    >>> of = Statement(delta=1e-5)
    >>> known = epsilon_by_agent(found, agents=4, statement=of, noise_multiplier=2.0)
    >>> [None if e is None else round(e, 3) for e in known]
    [1.33, None, 0.579, 1.33]
    """
    groups: dict[_Key, list[JointSensitivity]] = {}
    for exposure in exposures:
        groups.setdefault(_key(exposure), []).append(exposure)
    found: list[float | None] = [None] * agents
    for alike in groups.values():
        releases = tuple(
            same[0]._replace(joint_sensitivity=max(r.joint_sensitivity for r in same))
            for same in zip(*(e.releases for e in alike), strict=True)
        )
        spent = run_epsilon(
            alike[0]._replace(releases=releases),
            statement=statement,
            noise_multiplier=noise_multiplier,
        )
        for exposure in alike:
            found[exposure.victim] = spent
    return found


def _alike(one: Release, other: Release) -> bool:
    return _release(one) == _release(other)


def _key(exposure: JointSensitivity) -> _Key:
    return tuple(_release(r) for r in exposure.releases)


def _release(r: Release) -> _Release:
    return (
        rounded(r.joint_sensitivity),
        r.sampling_rate,
        r.rounds,
        r.contributions,
        r.first,
        r.reach,
        r.interleaved,
        r.records,
        r.drawn,
        r.cohort,
        r.several,
        r.members,
        r.whole,
        r.summed,
    )
