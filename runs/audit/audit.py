"""Audit a run file or a run folder: measured lower bounds beside what is proven, as audit.json."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from ...attacks.audit.audit import AGAIN, Audited, Verdict, audit, not_measured
from ...attacks.audit.game import CanaryGame
from ...attacks.audit.message_bounds import LinkBound
from ...attacks.checks.checks import engine_checks
from ...attacks.watching.result import Check
from ...privacy.errors import InputError
from ...training.data.dataset import Examples
from ..described import status_word
from ..errors import ContradictedProof
from ..evidence.evidence import read_audit
from ..evidence.schema import (
    Audit,
    AuditCheck,
    AuditedAdversary,
    AuditedMessage,
    AuditVerdict,
    EarlierAudit,
    Estimator,
    RowVerdict,
    SecondLook,
)
from ..folder import folder as run_folder
from ..folder.records import header_of
from ..folder.released import read_released
from ..folder.sums import check_sums, write_sums
from ..plan.plan import make_plan
from ..run_file.build import Built, build
from ..run_file.run_file import RunFile, load_run_file
from ..run_file.tables import PrivacyTable
from .game import game_of

__all__ = ["audit_config", "audit_folder", "check_auditable", "raise_contradiction"]

Progress = Callable[[int, int, str], None]


def audit_folder(
    folder: Path,
    *,
    overrides: Sequence[str] = (),
    again: bool = False,
    progress: Progress | None = None,
) -> Audit:
    """Audit the run of a folder, at the noise that its ledger names, and write audit.json.

    Args:
        folder: of `overhear train`.
        overrides: "audit.key=value"; nothing else of a run that is over can be changed.
        again: audit once more; what was found before stays beside it as audit-1.json and so on,
            and its verdict is named in the new one.
        progress: called with (done, total, what).

    Raises:
        FileNotFoundError: no finished run is in the folder.
        FileExistsError: the run was audited already.
        ValueError: there is nothing that can be audited.
        ContradictedProof: something contradicts what is proven; audit.json is written before.
    """
    path = run_folder.require(folder, run_folder.RUN)
    stray = [text for text in overrides if not text.startswith("audit.")]
    if stray:
        raise InputError(f"--set {stray[0]}: of a run that is over, [audit] alone can be changed")
    config = load_run_file(path, overrides)
    check_sums(folder)
    run_folder.require(folder, run_folder.LEDGER)
    header = header_of(read_released(folder))
    held = folder / run_folder.AUDIT
    if held.exists() and not again:
        raise FileExistsError(f"{held} exists; --again audits once more and keeps it beside")
    found = audit_config(config, noise_multiplier=header.noise_multiplier, progress=progress)
    # What was found before stays beside it, and a suspicion stands until a closer look clears it.
    earlier = _put_aside(folder, rounds=config.training.rounds)
    verdict = found.verdict
    if verdict == "consistent" and any(_in_doubt(one, found) for one in earlier):
        verdict = "suspicious"
    found = found.model_copy(
        update={"verdict": verdict, "run_file": run_folder.digest(path), "earlier": earlier}
    )
    found.write(held)
    if (folder / run_folder.SUMS).exists():
        write_sums(folder)
    raise_contradiction(found)
    return found


def _in_doubt(before: EarlierAudit, found: Audit) -> bool:
    """Whether an earlier suspicion stands: only a look that is four times as close clears it."""
    close = found.canaries >= AGAIN * before.canaries and (found.rounds or 0) >= before.rounds
    return before.verdict == "suspicious" and not close


def _put_aside(folder: Path, *, rounds: int) -> list[EarlierAudit]:
    """Rename an audit that is there already, and say what it and those before it found.

    Args:
        folder: of the run.
        rounds: of the run, which an audit that names none had all of.
    """
    before = read_audit(folder)
    if before is None:
        return []
    stem, count = Path(run_folder.AUDIT).stem, 1
    while (folder / f"{stem}-{count}.json").exists():
        count += 1
    name = f"{stem}-{count}.json"
    (folder / run_folder.AUDIT).rename(folder / name)
    summary = EarlierAudit(
        file=name, canaries=before.canaries, rounds=before.rounds or rounds, verdict=before.verdict
    )
    return [*before.earlier, summary]


def audit_config(
    config: RunFile,
    *,
    noise_multiplier: float | None = None,
    generator: np.random.Generator | None = None,
    progress: Progress | None = None,
) -> Audit:
    """Audit what a run file describes.

    Args:
        config: the run file; its [audit] says how many canaries.
        noise_multiplier: of the run; that of its plan by default.
        generator: of coins and canaries; from the system's entropy by default.
        progress: called with (done, total, what).

    Returns:
        The object of audit.json.

    Raises:
        ValueError: the run is not private, or nothing is proven or released that could be measured.
    """
    # What is held against what: the plan, and the game that its adversaries can be scored in.
    built = build(config)
    plan = make_plan(config, graph=built.setting.graph, batch_size=built.batch_size)
    multiplier = plan.noise_multiplier if noise_multiplier is None else noise_multiplier
    p = check_auditable(config, built, multiplier=multiplier)
    game, against = game_of(config, built, plan, multiplier=multiplier)

    def show(done: int, total: int, what: str) -> None:
        if progress is not None:
            progress(done, total, what)

    # Checks of the engine, which need no canaries; then the game.
    watched = min(config.audit.checked_rounds, config.training.rounds)
    show(0, watched, "checks")
    checks = engine_checks(
        built.setting,
        built.bound(multiplier),
        rounds=watched,
        source=Examples(built.data.inputs, built.data.targets),
    )
    measured = (
        [not_measured(one, ()) for one in against]
        if game is None
        else audit(
            game,
            against,
            generator=generator or np.random.default_rng(),
            confidence=config.audit.confidence,
            progress=lambda done, total: show(done, total, "canaries"),
        )
    )
    return _audit_of(config, p, game, multiplier=multiplier, measured=measured, checks=checks)


def _audit_of(
    config: RunFile,
    privacy: PrivacyTable,
    game: CanaryGame | None,
    *,
    multiplier: float,
    measured: list[Audited],
    checks: list[Check],
) -> Audit:
    """The object of what was measured and checked."""
    return Audit(
        version=1,
        canaries=0 if game is None else game.runs * game.of_each * len(game.hosts),
        runs=0 if game is None else game.runs,
        rounds=config.audit.rounds or config.training.rounds,
        planned_rounds=config.training.rounds,
        hosts=[] if game is None else list(game.hosts),
        victim=privacy.victim,
        game=_GAMES[privacy.adjacency],
        confidence=config.audit.confidence,
        delta=privacy.delta,
        unit="record",
        adjacency=privacy.adjacency,
        noise_multiplier=multiplier,
        verdict=_verdict(measured, checks),
        adversaries=[_entry(one, config) for one in measured],
        checks=[_check(one) for one in checks],
    )


def check_auditable(config: RunFile, built: Built, *, multiplier: float) -> PrivacyTable:
    """The privacy of a run in which there is something to audit.

    Args:
        config: the run file.
        built: its objects.
        multiplier: noise multiplier of the run.

    Raises:
        ValueError: the run is not private, or hides nothing.
    """
    if config.privacy is None:
        raise InputError("[privacy] is missing: nothing is proven, so there is nothing to audit")
    if built.clip_norm is None:
        raise InputError(
            f"{config.algorithm.name} does not clip: nothing is proven, so there is nothing to "
            "audit; attack it instead"
        )
    if multiplier == 0:
        raise InputError("the noise multiplier is 0: nothing is hidden that could be measured")
    return config.privacy


_GAMES = {
    "add-or-remove-one": "a canary is among its host's records, or not",
    "replace-one": "a canary is one record or its opposite",
}


def _verdict(measured: list[Audited], checks: list[Check]) -> AuditVerdict:
    found = {one.verdict for one in measured}
    if Verdict.CONTRADICTED in found:
        return "contradicted"
    if not all(check.passed for check in checks):
        return "failed checks"
    if Verdict.SUSPICIOUS in found:
        return "suspicious"
    return "consistent" if Verdict.CONSISTENT in found else "nothing proven"


def _entry(one: Audited, config: RunFile) -> AuditedAdversary:
    first = one.bounds[0] if one.bounds else None
    proven = one.proven.epsilon
    return AuditedAdversary(
        name=one.proven.name,
        proven_epsilon=proven,
        status=status_word(one.proven.status),
        measured_epsilon=None if first is None else first.epsilon,
        ideal_epsilon=one.ideal,
        ratio=None if first is None or proven == 0 else first.epsilon / proven,
        canaries=one.canaries,
        threshold=None if first is None else first.threshold,
        false_alarms=None if first is None else first.false_alarms,
        misses=None if first is None else first.misses,
        verdict=_ROW_VERDICTS[one.verdict],
        estimators=[
            Estimator(name=b.name, epsilon=b.epsilon, assumptions=b.assumptions) for b in one.bounds
        ],
        noise_scale=None if first is None else first.noise_scale,
        again=None
        if one.again is None
        else SecondLook(
            epsilon=one.again.epsilon,
            confidence=one.again.confidence,
            noise_scale=one.again.noise_scale,
        ),
        messages=[_message(link) for link in one.links],
        messages_again=[_message(link) for link in one.again_links],
        words=one.words() + _of_rounds(config),
    )


_ROW_VERDICTS: Mapping[Verdict, RowVerdict] = {
    Verdict.CONSISTENT: "consistent",
    Verdict.SUSPICIOUS: "suspicious",
    Verdict.CONTRADICTED: "contradicted",
    Verdict.NOTHING_PROVEN: "nothing proven",
    Verdict.NOT_MEASURED: "not measured",
}


def _of_rounds(config: RunFile) -> str:
    audited, planned = config.audit.rounds, config.training.rounds
    if audited is None or audited == planned:
        return ""
    return f" (all figures are of the first {audited} of {planned} rounds)"


def _message(link: LinkBound) -> AuditedMessage:
    return AuditedMessage(
        message=link.message,
        agent=link.host,
        proven_epsilon=link.proven,
        measured_epsilon=link.measured,
        canaries=link.canaries,
    )


def _check(one: Check) -> AuditCheck:
    return AuditCheck(name=one.name, passed=one.passed, p=one.p, tests=one.tests, words=one.words)


def raise_contradiction(found: Audit) -> None:
    """Raise what an audit found against a proof.

    Raises:
        ContradictedProof: a bound above a proven epsilon, twice, or a check that failed.
    """
    said = [one.words for one in found.adversaries if one.verdict == "contradicted"]
    said += [f"{one.name}: {one.words}" for one in found.checks if not one.passed]
    said += [
        f"{one.file} found: {one.verdict}"
        for one in found.earlier
        if one.verdict in ("contradicted", "failed checks")
    ]
    if said:
        raise ContradictedProof("; ".join(said))
