"""The audit: measure epsilon of the real engine for each adversary, beside what is proven.

Canaries give a lower bound at 95 %, for each adversary. A first bound above a proven epsilon may be
chance; among several adversaries and all single messages together chance goes so far in at most 5
of 100 sound audits (S. Holm, Scand. J. Statist. 6, 1979, at the confidence of the first look). What
does is looked at again with four times as many fresh canaries:

    contradicted   the evidence is decisive (`evidence`): that ever happens to a sound engine with
                   probability .001, however often it is audited; the looks end as soon as it is
    cleared        the fresh canaries alone stay within what is proven, at the first confidence
    suspicious     neither

Where even a perfect audit of as many canaries would show less than a tenth of what is proven, the
adversary is not measured. Checks that need no canaries stand beside it (`engine_checks`).

What is scored is what an adversary really sees: messages and end states. Where the proof counts
more as seen (values that only a recipient holds), the bound stays further below what is proven.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...privacy.errors import InputError, Progress, whole
from ...privacy.guarantee import SINGLE_MESSAGE, Adversary, Sees, Statement, Status
from ...training.exposure.events import counted
from ...training.exposure.guarantees import check_traced_at
from ...training.exposure.sensitivity import JointSensitivity, bound_of
from ..bounds.evidence import (
    LINKS,
    SHARE,
    Evidence,
    after,
    decisive,
    headline,
    second_risk,
    second_risk_of_links,
)
from ..bounds.lower_bounds import (
    LEAST_SHARE,
    Guesses,
    LowerBound,
    best_threshold,
    canaries_for,
    seen_from,
)
from ..bounds.mechanism import Claim
from ..bounds.one_run_bounds import ideal_ranked
from ..checks.result import Check
from .audited import (
    AGAIN,
    Audited,
    LinkBound,
    LinkGuesses,
    Proven,
    Verdict,
    after_second_look,
    link_bounds,
    not_measured,
)
from .game import MOST, Game, Played

_LEAST_RISK = 1e-14  # of one look


def audit(
    game: Game,
    against: Sequence[Proven],
    *,
    seed: int,
    confidence: float = 0.95,
    before: Mapping[str, Evidence] | None = None,
    progress: Progress | None = None,
    checks: list[Check] | None = None,
) -> list[Audited]:
    """Play, bound, and look again where a bound exceeds what is proven.

    Args:
        game: whose adversaries are the adversaries that can be measured.
        against: what is proven of each adversary, measured or not.
        seed: of coins, directions and signs alone; one that no audit used whose evidence counts.
            Noise and batches come from the system's entropy.
        confidence: of the first look, of all adversaries together.
        before: by adversary the evidence of audits of the same run, to which this one adds.
        progress: called with (rounds done, rounds in all, "canaries").
        checks: a list that the checks of the canaries' noise are added to.

    Raises:
        ValueError: a confidence outside (0.5, 1), or a negative seed.
    """
    if not 0.5 < confidence < 1:
        raise InputError(f"confidence={confidence} must lie in (0.5, 1), such as 0.95")
    whole("seed", seed, "[0, inf)")
    played = game.play(generator=_coins(seed, 0), progress=progress)
    if checks is not None:
        checks += game.checks(played)
    played_against = [one for one in against if one.name in played.guesses]
    rules = _Rules(
        game=game,
        seed=seed,
        progress=progress,
        before=before or {},
        tested=max(sum(one.is_tested for one in played_against), 1),
        risk=1.0 - confidence,
        of_links=LINKS * (1.0 - confidence) if game.linked is not None else 0.0,
    )
    # First looks at each adversary, and then at all of them together.
    looks = [_first_look(one, played, rules, confidence=confidence) for one in played_against]
    looks = _among_all(looks, played, risk=1.0 - confidence - rules.of_links)
    found = []
    # Evidence decides; a suspicion is looked at again with fresh canaries.
    for place, look in enumerate(looks, start=1):
        if look.evidence is not None and decisive(look.evidence, tested=rules.tested):
            found.append(_decided(look, rules))
        elif look.verdict is Verdict.SUSPICIOUS:
            found.append(_second_look(look, played.guesses[look.proven.name], rules, place=place))
        else:
            found.append(_at_rest(look))
    by_name = {one.proven.name: one for one in found}
    return [by_name.get(one.name) or not_measured(one, found) for one in against]


def _coins(seed: int, *place: int) -> np.random.Generator:
    """The generator of one look; another look's does not depend on how far this one goes."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=place))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Rules:
    """What is played, and how surely: how many claims are tested, and risks of the first look."""

    game: Game
    seed: int
    progress: Progress | None
    before: Mapping[str, Evidence]
    tested: int
    risk: float  # that a sound claim is looked at again
    of_links: float  # the same by single messages alone


def _first_look(one: Proven, played: Played, rules: _Rules, *, confidence: float) -> Audited:
    """The figures of one adversary; suspicious if a message of it exceeds, else consistent."""
    guesses = played.guesses[one.name]
    count = len(guesses.scores)
    # Single messages, at a confidence of their own.
    links: list[LinkBound] = []
    if one.name == rules.game.linked:
        surely = 1.0 - rules.of_links
        links = link_bounds(played.links, statement=one.statement, confidence=surely)
    best, evidence, seen = None, None, None
    share = (rules.risk - rules.of_links) / rules.tested if one.is_tested else rules.risk
    if math.isfinite(one.epsilon):
        best = ideal_ranked(one.claim, canaries=count, delta=one.delta, confidence=1.0 - share)
    if one.is_tested:
        known = rules.before.get(one.name, Evidence())
        surely = 1.0 - (1.0 - SHARE) * share
        evidence = after(known, guesses, claim=one.claim, threshold=None)
        seen = seen_from(one.claim, canaries=count, delta=one.delta, confidence=surely)
    # A message that exceeds makes suspicious, unless nothing but a heuristic is claimed.
    over = one.status is not Status.HEURISTIC and any(link.exceeded for link in links)
    verdict = Verdict.CONSISTENT if one.is_tested else Verdict.NOTHING_PROVEN
    return Audited(
        proven=one,
        single=_headline(guesses, one, confidence=confidence),
        ideal=best,
        seen=seen,
        canaries=count,
        links=links,
        evidence=evidence,
        verdict=Verdict.SUSPICIOUS if over else verdict,
    )


def _among_all(looks: Sequence[Audited], played: Played, *, risk: float) -> list[Audited]:
    """Which first bounds exceed, at this risk together: Holm's procedure, on bounds for p-values.

    What exceeds at risk / n, n being how many are tested, is suspicious; without it n is smaller,
    and so on until nothing more exceeds.
    """
    found = {look.proven.name: look for look in looks}
    rest = [look.proven for look in looks if look.proven.is_tested]
    while rest:
        over = set[str]()
        for one in rest:
            bound = _headline(played.guesses[one.name], one, confidence=1.0 - risk / len(rest))
            found[one.name] = replace(found[one.name], together=bound)
            if bound.exceeds(one.epsilon):
                found[one.name] = replace(found[one.name], verdict=Verdict.SUSPICIOUS)
                over.add(one.name)
        if not over:
            break
        rest = [one for one in rest if one.name not in over]
    return list(found.values())


def _decided(one: Audited, rules: _Rules) -> Audited:
    """One whose evidence is decisive after the first look, so that none follows."""
    assert one.evidence is not None  # noqa: S101 # it is decisive
    won = 1.0 / rules.risk if one.verdict is Verdict.SUSPICIOUS else 0.0
    evidence = replace(one.evidence, looks=(*one.evidence.looks, won))
    return replace(one, verdict=Verdict.CONTRADICTED, decided=True, evidence=evidence)


def _at_rest(one: Audited) -> Audited:
    """One that no second look follows; not measured where it could not have shown anything."""
    if one.evidence is not None:
        one = replace(one, evidence=replace(one.evidence, looks=(*one.evidence.looks, 0.0)))
    proven, best, bound = one.proven, one.ideal, one.bound
    least = LEAST_SHARE * proven.epsilon
    if bound is None or not proven.is_tested or best is None or max(best, bound.epsilon) >= least:
        return one
    sure = bound.confidence
    more = canaries_for(proven.claim, epsilon=least, delta=proven.delta, confidence=sure)
    remedy = "no number of them would" if more is None else f"about {more} could"
    why = (
        f"a perfect audit of {one.canaries} canaries shows {best:.2g}, less than a tenth of it; "
        f"{remedy}"
    )
    return replace(one, verdict=Verdict.NOT_MEASURED, why=why)


def _second_look(one: Audited, first: Guesses, rules: _Rules, *, place: int) -> Audited:
    """Play fresh canaries until the evidence is decisive, or all of them are played."""
    name, proven, evidence = one.proven.name, one.proven, one.evidence
    linked = name if any(link.exceeded for link in one.links) else None
    game = rules.game.narrowed(name, linked=linked)
    threshold = best_threshold(first.scores, first.included)
    # Fresh canaries, part by part, until the evidence is enough.
    attempt = 1 if evidence is None else len(evidence.looks) + 1
    parts: list[Played] = []
    for part in range(AGAIN):
        coins = _coins(rules.seed, 1, place, part)
        parts.append(game.play(generator=coins, progress=rules.progress))
        if evidence is None:
            continue
        guesses = parts[-1].guesses[name]
        evidence = after(evidence, guesses, claim=proven.claim, threshold=threshold)
        if decisive(evidence, tested=rules.tested):
            return _decided(replace(one, evidence=evidence), rules)
    # All parts together, at the confidence that this attempt is left.
    guesses = Guesses.joined([part.guesses[name] for part in parts])
    # A confidence that a float cannot tell from 1 is none; the stake pays for this risk.
    risk = max(_LEAST_RISK, second_risk(attempt, risk=rules.risk, tested=rules.tested))
    again = _headline(guesses, proven, confidence=1.0 - risk)
    fresh = _headline(guesses, proven, confidence=1.0 - rules.risk)
    if evidence is not None:
        won = 1.0 / (rules.risk * risk) if again.exceeds(proven.epsilon) else 0.0
        evidence = replace(evidence, looks=(*evidence.looks, won))
    decided = evidence is not None and decisive(evidence, tested=rules.tested)
    # Links whose first figure was exceeded are looked at again by themselves.
    sure, doubted = list[LinkBound](), list[LinkBound]()
    if linked is not None:
        suspects = {(link.message, link.agent) for link in one.links if link.exceeded}
        looked_at = [link for link in _joined_links(parts) if (link.message, link.host) in suspects]
        surely = 1.0 - max(_LEAST_RISK, second_risk_of_links(attempt, risk=rules.of_links))
        sure = link_bounds(looked_at, statement=proven.statement, confidence=surely)
        doubted = link_bounds(looked_at, statement=proven.statement, confidence=1.0 - rules.risk)
    verdict = after_second_look(
        sure=decided or any(link.exceeded for link in sure),
        doubted=fresh.exceeds(proven.epsilon) or any(link.exceeded for link in doubted),
    )
    return replace(
        one,
        again=again,
        fresh=fresh,
        again_links=sure,
        evidence=evidence,
        decided=decided,
        verdict=verdict,
    )


def _joined_links(parts: Sequence[Played]) -> list[LinkGuesses]:
    """Every message's guesses of all parts, each of which has the same messages."""
    found: dict[tuple[str, int], list[LinkGuesses]] = {}
    for part in parts:
        for link in part.links:
            found.setdefault((link.message, link.host), []).append(link)
    return [
        of[0]._replace(guesses=Guesses.joined([one.guesses for one in of])) for of in found.values()
    ]


def _headline(guesses: Guesses, proven: Proven, *, confidence: float) -> LowerBound:
    return headline(guesses, claim=proven.claim, delta=proven.delta, confidence=confidence)


def claim_of(
    sensitivity: JointSensitivity,
    *,
    statement: Statement,
    noise_multiplier: float,
    rounds: int,
    records: int = 1,
) -> Claim:
    """The mechanism that a joint sensitivity is accounted as; without noise where nothing protects.

    Args:
        sensitivity: of the run, which was traced at this noise multiplier or holds at any.
        statement: of the epsilon that is audited.
        noise_multiplier: of the run.
        rounds: how many of the run's are audited.
        records: of one person, that are there or not together.

    Raises:
        UnsupportedView: a noise multiplier at which the sensitivity was not looked at.
    """
    check_traced_at(sensitivity, noise_multiplier)
    every = [
        tuple(
            r._replace(rounds=min(r.rounds, rounds - r.first + 1) if r.first else r.rounds)
            for r in releases
            if not r.first or r.first <= rounds
        )
        for releases in sensitivity.each or (sensitivity.releases,)
    ]
    of_rounds = bound_of(every) if sensitivity.each else every[0]
    inside = [r for r in of_rounds if r.joint_sensitivity > 0 and r.sampling_rate > 0]
    if not inside:  # nothing is released
        return Claim(rounds={(math.inf, 1.0): 1}, adjacency=statement.adjacency)
    counts = counted(inside, noise_multiplier, statement.adjacency, records=records)
    return Claim(rounds=counts, adjacency=statement.adjacency)


def hosts_of(
    exposures: Mapping[str, Sequence[JointSensitivity]],
    *,
    canaries: int,
    encrypted: bool,
    most: int = MOST,
    together: bool = False,
) -> dict[str, dict[int, Adversary]]:
    """Who looks on whose canaries, by adversary name: each host is a worst victim of the adversary.

    Adversaries without a view of their own are left out, and those to whom all rounds are one
    release, or all others where these are asked for.

    Args:
        exposures: of every agent to each adversary.
        canaries: as many as hosts are to hold.
        encrypted: outsiders see final models alone.
        most: how many an agent holds at once.
        together: whether of adversaries to whom all rounds are one release, and of no others.
    """
    worst: dict[str, dict[int, Adversary]] = {}
    for name, every in exposures.items():
        usable = [e for e in every if e.whole_run is together and e.adversary != SINGLE_MESSAGE]
        top = max((e.sum_of_squares for e in usable), default=0.0)
        if top > 0:
            alike = [e for e in usable if e.sum_of_squares >= top * (1 - 1e-9)]
            worst[name] = {e.victim: _sight(e.adversary, encrypted=encrypted) for e in alike}
    wanted = -(-canaries // most)
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
