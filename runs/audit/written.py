"""What an audit measured and checked, as the object of audit.json."""

from __future__ import annotations

import importlib.metadata
import math

from ...attacks.audit.audited import Audited, Verdict
from ...attacks.audit.game import Game
from ...attacks.bounds.evidence import Evidence
from ...attacks.bounds.lower_bounds import LowerBound
from ...attacks.watching.result import Check
from ...privacy.accounting.request import Adjacency
from ..evidence.schema import (
    Audit,
    AuditCheck,
    AuditedAdversary,
    AuditSettings,
    AuditVerdict,
    Estimator,
    SecondLook,
    Wealth,
)
from ..run_file.privacy_table import PrivacyTable
from ..run_file.run_file import RunFile

_GAMES = {
    "add-or-remove-one": "a canary is among its host's records, or not",
    "zero-out": "a canary is among its host's records, or blank",
    "replace-one": "a canary is one record or its opposite",
}
_OF_USERS = {
    "add-or-remove-one": "a canary is all records of a user at its host, or none",
    "zero-out": "a canary is all records of a user at its host, or blank ones",
    "replace-one": "a canary is all records of a user at its host, or their opposites",
}
_OF_AGENTS = {
    "zero-out": "a canary is all data of its host, or nothing",
    "replace-one": "a canary is all data of its host, or their opposite",
}
_GAMES_OF = {"record": _GAMES, "user": _OF_USERS, "agent": _OF_AGENTS}


def audit_of(
    config: RunFile,
    privacy: PrivacyTable,
    game: Game | None,
    *,
    multiplier: float,
    measured: list[Audited],
    checks: list[Check],
    seed: int,
) -> Audit:
    """The object of what was measured and checked.

    Args:
        config: the run file.
        privacy: its table.
        game: that was played, None where none could be.
        multiplier: noise multiplier of the run.
        measured: of every adversary.
        checks: of the engine.
        seed: of the canaries.
    """
    asked, rounds = config.audit, config.audit.rounds or config.training.rounds
    return Audit(
        version=2,
        tool=importlib.metadata.version("overhear"),
        seed=seed,
        seed_given=asked.seed is not None,
        settings=AuditSettings(
            canaries=asked.canaries,
            confidence=asked.confidence,
            rounds=rounds,
            checked_rounds=asked.checked_rounds,
        ),
        canaries=0 if game is None else game.runs * game.of_each * len(game.hosts),
        runs=0 if game is None else game.runs,
        rounds=rounds,
        planned_rounds=config.training.rounds,
        hosts=[] if game is None else list(game.hosts),
        victim=privacy.victim,
        game=_GAMES_OF[privacy.unit][privacy.adjacency],
        confidence=config.audit.confidence,
        delta=privacy.delta,
        unit=privacy.unit,
        adjacency=Adjacency(privacy.adjacency),
        noise_multiplier=multiplier,
        verdict=_verdict(measured, checks),
        adversaries=[_entry(one, config) for one in measured],
        checks=[AuditCheck.from_object(one) for one in checks],
    )


def _verdict(measured: list[Audited], checks: list[Check]) -> AuditVerdict:
    found = {one.verdict for one in measured}
    if Verdict.CONTRADICTED in found:
        return "contradicted"
    if not all(check.passed for check in checks):
        return "failed checks"
    if Verdict.SUSPICIOUS in found:
        return "suspicious"
    if Verdict.CLEARED in found:
        return "cleared"
    if Verdict.CONSISTENT in found:
        return "consistent"
    missed = any(one.verdict is Verdict.NOT_MEASURED and one.proven.is_tested for one in measured)
    return "not measured" if missed else "nothing proven"


def _entry(one: Audited, config: RunFile) -> AuditedAdversary:
    first = one.bounds[0] if one.bounds else None
    proven = one.proven.epsilon
    counted = ("threshold", "false_alarms", "misses", "noise_scale")
    return AuditedAdversary(
        name=one.proven.name,
        proven_epsilon=proven,
        status=one.proven.status,
        measured_epsilon=None if first is None else first.epsilon,
        ideal_epsilon=one.ideal,
        seen_epsilon=one.seen,
        ratio=None if first is None or proven == 0 else first.epsilon / proven,
        canaries=one.canaries,
        verdict=one.verdict.value,
        estimators=[Estimator.from_object(bound) for bound in one.bounds],
        together=_look(one.together),
        again=_look(one.again),
        fresh=_look(one.fresh),
        evidence=_wealth(one.evidence),
        messages=list(one.links),
        messages_again=list(one.again_links),
        words=one.words() + _of_rounds(config),
        **{name: getattr(first, name, None) for name in counted},
    )


def _look(bound: LowerBound | None) -> SecondLook | None:
    return None if bound is None else SecondLook.from_object(bound)


def _wealth(evidence: Evidence | None) -> Wealth | None:
    if evidence is None:
        return None
    return Wealth(
        log10_odds=evidence.log_odds / math.log(10.0),
        at_zero=list(evidence.at_zero),
        learned=list(evidence.learned),
        looks=list(evidence.looks),
        canaries=evidence.canaries,
    )


def _of_rounds(config: RunFile) -> str:
    audited, planned = config.audit.rounds, config.training.rounds
    if audited is None or audited == planned:
        return ""
    return f" (all figures are of the first {audited} of {planned} rounds)"
