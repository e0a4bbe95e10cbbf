"""The audit: measure epsilon of the real engine for each adversary, beside what is proven.

Canaries give a lower bound at 95 %. The first bound above a proven epsilon is "suspicious", as one
in twenty audits of a sound engine of worst-case leakage is: it is played again with four times as
many fresh canaries at 99.9 %, and only a second one contradicts the proof. Checks that need no
canaries stand beside it (`engine_checks`).

What is scored is what an adversary really sees: messages and end states. Where the proof counts
more as seen (values that only a recipient holds), the bound stays further below what is proven.
"""

from __future__ import annotations

import enum
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from typing import Any

import numpy as np

from ...privacy.adversary import SINGLE_MESSAGE, Adversary, Sees
from ...privacy.errors import InputError
from ...privacy.guarantee import Statement, Status
from ...training.exposure.guarantees import check_traced_at
from ...training.exposure.sensitivity import JointSensitivity
from ..bounds.lower_bounds import Guesses, LowerBound, ideal, total_error, two_sided
from ..bounds.mechanism import Claim
from ..bounds.one_run_bounds import one_run_f_dp, one_run_pure
from .game import MOST, CanaryGame, Progress, play
from .message_bounds import LinkBound, link_bounds

__all__ = ["Audited", "Proven", "Verdict", "audit", "claim_of", "hosts_of", "not_measured"]

LINKS = 0.1  # share of the risk of a first look that all single messages may have together
AGAIN = 4  # how many times as many canaries a second look takes
SURE = 0.999  # its confidence


class Verdict(enum.StrEnum):
    """What a measured bound says of a proven one."""

    CONSISTENT = "consistent"
    SUSPICIOUS = "suspicious"
    CONTRADICTED = "contradicted"
    NOTHING_PROVEN = "nothing proven"
    NOT_MEASURED = "not measured"


@dataclass(frozen=True, kw_only=True, slots=True)
class Proven:
    """What an audit holds a measurement against.

    Attributes:
        name: of the adversary, as it was asked for.
        epsilon: of the audited rounds; infinite where nothing protects or can be expressed.
        statement: what it is said of.
        status: what is known of epsilon.
        claim: the mechanism that it is the epsilon of; without noise where it is infinite.
    """

    name: str
    epsilon: float
    statement: Statement
    status: Status
    claim: Claim

    @property
    def delta(self) -> float:
        """Of the statement."""
        return self.statement.delta


@dataclass(frozen=True, kw_only=True, slots=True)
class Audited:
    """One adversary's figures.

    Attributes:
        proven: what they are held against.
        bounds: lower bounds by every estimator, the headline first; empty if not measured.
        ideal: the headline that a perfect audit of as many canaries expects; None where infinite.
        canaries: how many were scored.
        again: the headline of the second look, where there was one.
        links: single messages, of the adversary whose messages were scored one by one.
        again_links: those that were looked at again.
        verdict: of all of it.
        why: the reason where nothing was measured.
    """

    proven: Proven
    bounds: Sequence[LowerBound]
    ideal: float | None
    canaries: int
    verdict: Verdict
    again: LowerBound | None = None
    links: Sequence[LinkBound] = ()
    again_links: Sequence[LinkBound] = ()
    why: str = ""

    @property
    def measured(self) -> float:
        """The headline's epsilon, 0 where nothing was measured."""
        return self.bounds[0].epsilon if self.bounds else 0.0

    def words(self) -> str:
        """One sentence for a reader."""
        at = f"at delta {_small(self.proven.delta)}"
        if self.verdict is Verdict.NOT_MEASURED:
            if self.proven.epsilon == 0:
                return f"{self.proven.name}: nothing about the data reaches it"
            claimed = f"{self.proven.epsilon:.3g} {at} ({self.proven.status})"
            return f"{self.proven.name}: {claimed} is not measured; {self.why}"
        confidence = f"{_share(self.bounds[0].confidence)} confidence, {self.canaries} canaries"
        found = (
            f"{self.proven.name}: epsilon is at least {_least(self.measured)} {at} ({confidence})"
        )
        proven = f"the proven {_most(self.proven.epsilon)}"
        if self.verdict is Verdict.NOTHING_PROVEN:
            if self.proven.status is Status.CANNOT_BE_EXPRESSED:
                return f"{found}; no bound can be expressed to hold it against"
            if math.isinf(self.proven.epsilon):
                return f"{found}; nothing protects against it"
            over = "more" if self.measured > self.proven.epsilon else "no more"
            return f"{found}, {over} than the {self.proven.epsilon:.3g} that is claimed, unproven"
        if self.measured == 0:
            found = f"{self.proven.name}: {self.canaries} canaries show nothing {at}"
        elif self.bounds[0].epsilon <= self.proven.epsilon and _exceeds(
            self.bounds[0], self.proven
        ):
            scale = self.bounds[0].noise_scale or 0.0
            found += f"; the declared noise is rejected, it is at most {scale:.3g} of it"
        over_links = [link for link in self.links if link.exceeded]
        if over_links:
            some = ", ".join(
                f"{k.message} ({_least(k.measured)} > {_most(k.proven)})" for k in over_links
            )
            found += f"; single messages show more than their own noise promises: {some}"
        if self.verdict is Verdict.CONSISTENT:
            return found if self.measured == 0 else f"{found}, within {proven}"
        again = (
            ""
            if self.again is None
            else f"{_least(self.again.epsilon)} at {_share(SURE)} confidence"
        )
        look = f"a second look with {AGAIN} times as many canaries gives {again}"
        if self.verdict is Verdict.SUSPICIOUS:
            return f"{found}; {look}, within {proven}: chance is the likelier cause"
        if self.again is not None and self.again.epsilon <= self.proven.epsilon:
            if _exceeds(self.again, self.proven):
                return f"{found}; {look}, and rejects the declared noise, too"
            return f"{found}, and again when looked at twice: the noise on them is not as declared"
        return f"{found}; {look}, more than {proven}: the proof or the code is wrong"


def _share(confidence: float) -> str:
    return f"{100 * confidence:.10g}%"


def _small(delta: float) -> str:
    """Delta as it is written elsewhere, 1e-5 and not 1e-05."""
    mantissa, exponent = f"{delta:.3e}".split("e")
    return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"


def _least(value: float) -> str:
    """A lower bound with three digits, never rounded up."""
    if value == 0:
        return "0"
    return format(Context(prec=3, rounding=ROUND_FLOOR).plus(Decimal(repr(value))), "f")


def _most(value: float) -> str:
    """A proven bound with three digits, never rounded down but for the last bits of a float."""
    if not 0 < value < math.inf:
        return format(value, "g")
    nearly = Decimal(repr(value)) * (1 - Decimal("1e-12"))
    return format(Context(prec=3, rounding=ROUND_CEILING).plus(nearly), "f")


def audit(
    game: CanaryGame,
    against: Sequence[Proven],
    *,
    generator: np.random.Generator,
    confidence: float = 0.95,
    progress: Progress | None = None,
) -> list[Audited]:
    """Play, bound, and look again where a bound exceeds what is proven.

    Args:
        game: whose adversaries are the adversaries that can be measured.
        against: what is proven of each adversary, measured or not.
        generator: of coins, directions and signs.
        confidence: of the first look.
        progress: called with (rounds done, rounds in all).

    Raises:
        ValueError: a confidence outside (0.5, 1).
    """
    if not 0.5 < confidence < 1:
        raise InputError(f"confidence={confidence} must lie in (0.5, 1), such as 0.95")
    played = play(game, generator=generator, progress=progress)
    found = []
    for one in against:
        if one.name not in played.guesses:
            continue
        guesses = played.guesses[one.name]
        bounds = _bounds(guesses, one, confidence=confidence)
        count = len(guesses.scores)
        best = None
        if math.isfinite(one.epsilon):
            best = ideal(one.claim, canaries=count, delta=one.delta, confidence=confidence)
        links = list[LinkBound]()
        if one.name == game.linked:
            sure = 1.0 - LINKS * (1.0 - confidence)
            links = link_bounds(played.links, statement=one.statement, confidence=sure)
        found.append(
            Audited(
                proven=one,
                bounds=bounds,
                ideal=best,
                canaries=count,
                links=links,
                verdict=_verdict(one, bounds[0], links),
            )
        )
    looked = [
        _second_look(game, one, generator=generator, progress=progress)
        if one.verdict is Verdict.SUSPICIOUS
        else one
        for one in found
    ]
    by_name = {one.proven.name: one for one in looked}
    return [by_name.get(one.name) or not_measured(one, looked) for one in against]


def _second_look(
    game: CanaryGame, one: Audited, *, generator: np.random.Generator, progress: Progress | None
) -> Audited:
    name = one.proven.name
    linked = name if any(link.exceeded for link in one.links) else None
    more = replace(
        game,
        canaries=AGAIN * game.canaries,
        adversaries={name: game.adversaries[name]},
        linked=linked,
    )
    played = play(more, generator=generator, progress=progress)
    again = _headline(played.guesses[name], one.proven, confidence=SURE)
    suspects = {(link.message, link.host) for link in one.links if link.exceeded}
    looked_at = [link for link in played.links if (link.message, link.host) in suspects]
    links = link_bounds(looked_at, statement=one.proven.statement, confidence=SURE)
    twice = _exceeds(again, one.proven) or any(link.exceeded for link in links)
    verdict = Verdict.CONTRADICTED if twice else Verdict.SUSPICIOUS
    return replace(one, again=again, again_links=links, verdict=verdict)


def _verdict(proven: Proven, bound: LowerBound, links: Sequence[LinkBound]) -> Verdict:
    if proven.status is Status.HEURISTIC:
        return Verdict.NOTHING_PROVEN
    over = any(link.exceeded for link in links)
    if math.isinf(proven.epsilon):
        return Verdict.SUSPICIOUS if over else Verdict.NOTHING_PROVEN
    over = over or _exceeds(bound, proven)
    return Verdict.SUSPICIOUS if over else Verdict.CONSISTENT


def _exceeds(bound: LowerBound, proven: Proven) -> bool:
    """Whether more leaked than the claim allows; where the claim's noise is rejected it did, too.

    Of several contributions under replace-one the bound's epsilon is that of one, so that it may be
    below the proven one although the noise cannot be as declared.
    """
    rejected = bound.noise_scale is not None and bound.noise_scale < 1.0
    return math.isfinite(proven.epsilon) and (bound.epsilon > proven.epsilon or rejected)


def not_measured(proven: Proven, measured: Sequence[Audited]) -> Audited:
    """An adversary whose rounds no canary can be scored in, beside those that were measured."""
    why = "all of its rounds are one release, in which no round can be scored by itself"
    if proven.name == SINGLE_MESSAGE.name:
        why = "it is no adversary that exists"
        for one in measured:
            if one.measured > proven.epsilon:
                why += f"; {one.proven.name} learns more, at least {_least(one.measured)}"
                break
    return Audited(
        proven=proven,
        bounds=(),
        ideal=None,
        canaries=0,
        verdict=Verdict.NOT_MEASURED,
        why=why,
    )


def _headline(guesses: Guesses, proven: Proven, *, confidence: float) -> LowerBound:
    return total_error(guesses, claim=proven.claim, delta=proven.delta, confidence=confidence)


def _bounds(guesses: Guesses, proven: Proven, *, confidence: float) -> list[LowerBound]:
    how: dict[str, Any] = {"claim": proven.claim, "delta": proven.delta, "confidence": confidence}
    return [f(guesses, **how) for f in (total_error, two_sided, one_run_f_dp, one_run_pure)]


def claim_of(
    sensitivity: JointSensitivity, *, statement: Statement, noise_multiplier: float, rounds: int
) -> Claim:
    """The mechanism that a joint sensitivity is accounted as; without noise where nothing protects.

    Args:
        sensitivity: of the run, which was traced at this noise multiplier or holds at any.
        statement: of the epsilon that is audited.
        noise_multiplier: of the run.
        rounds: how many of the run's are audited.

    Raises:
        UnsupportedView: a noise multiplier at which the sensitivity was not looked at.
    """
    check_traced_at(sensitivity, noise_multiplier)
    counts: Counter[tuple[float, float]] = Counter()
    most = 1
    for r in sensitivity.releases:
        inside = min(r.rounds, rounds - r.first + 1) if r.first else 1
        if r.joint_sensitivity > 0 and r.sampling_rate > 0 and inside > 0:
            counts[noise_multiplier / r.joint_sensitivity, r.sampling_rate] += inside
            most = max(most, r.contributions if r.sampling_rate < 1 else 1)
    counts = counts or Counter({(math.inf, 1.0): 1})  # nothing is released
    return Claim(rounds=dict(counts), adjacency=statement.adjacency, contributions=most)


def hosts_of(
    exposures: Mapping[str, Sequence[JointSensitivity]], *, canaries: int, encrypted: bool
) -> dict[str, dict[int, Adversary]]:
    """Who looks on whose canaries, by adversary name: each host is a worst victim of the adversary.

    Adversaries without a view of their own, and those to whom all rounds are one release, are left
    out.

    Args:
        exposures: of every agent to each adversary.
        canaries: as many as hosts are to hold; an agent holds `MOST` at once.
        encrypted: outsiders see final models alone.
    """
    worst: dict[str, dict[int, Adversary]] = {}
    for name, every in exposures.items():
        usable = [e for e in every if not e.whole_run and e.adversary != SINGLE_MESSAGE]
        top = max((e.sum_of_squares for e in usable), default=0.0)
        if top > 0:
            alike = [e for e in usable if e.sum_of_squares >= top * (1 - 1e-9)]
            worst[name] = {e.victim: _sight(e.adversary, encrypted=encrypted) for e in alike}
    wanted = -(-canaries // MOST)
    hosts: list[int] = []
    for of in worst.values():  # each adversary has a host
        if not set(of) & set(hosts):
            hosts.append(min(of))
    shared = Counter(v for of in worst.values() for v in of)
    for victim, _ in shared.most_common():
        if len(hosts) < wanted and victim not in hosts:
            hosts.append(victim)
    return {
        name: {host: who for host, who in of.items() if host in hosts} for name, of in worst.items()
    }


def _sight(who: Adversary, *, encrypted: bool) -> Adversary:
    if encrypted and who.sees is Sees.LINKS:
        return Adversary(name=who.name, sees=Sees.END_STATES)
    return who
