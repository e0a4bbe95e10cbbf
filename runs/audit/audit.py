"""Audit a run file or a run folder: measured lower bounds beside what is proven, as audit.json."""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path

from ... import __version__
from ...attacks.audit.audit import audit
from ...attacks.audit.audited import AGAIN, Audited, Verdict, not_measured
from ...attacks.audit.game import Game
from ...attacks.bounds.evidence import BETS, Evidence
from ...attacks.bounds.lower_bounds import LowerBound
from ...attacks.checks.checks import engine_checks
from ...attacks.checks.result import Check
from ...attacks.checks.transcript import transcript_check
from ...attacks.checks.watched_run import affordable_rounds, traces_of
from ...privacy.accounting.request import Adjacency
from ...privacy.errors import InputError, Progress
from ...privacy.guarantee import Unit
from ...training.engine.tensor_file import load_checkpoint, round_files
from ...training.engine.transcript import Transcript
from ...training.models.parameters import sizes_of
from ...training.tracing.linear_forms import Contributions
from ...training.tracing.trace import trace
from ..errors import ContradictedProof
from ..folder import folder as run_folder
from ..folder.records import Environment
from ..numbers import Expect
from ..plan.plan import make_plan
from ..run_file.build import Built, build, missing_of
from ..run_file.privacy_table import PrivacyTable
from ..run_file.run_file import RunFile
from ..run_file.tables import find_device
from ..stop import Stop, keep_freed_memory
from . import evidence_schema
from .evidence import read_audit
from .game import cost_of, game_of, pricing_checks
from .membership import AuditedFolder

# Checks of what a run left in its folder, beside those of a fresh run of the same engine.


def folder_checks(
    folder: Path, built: Built, *, multiplier: float, noise_seed: int | None
) -> list[Check]:
    """Hold the transcripts of a run against the noise of its ledger.

    Args:
        multiplier: the noise multiplier of its ledger.
        noise_seed: its evaluation_noise_seed, with which noise repeats where a round does.

    Raises:
        ValueError: a transcript cannot be read.
    """
    traces = traces_of(built.bound(multiplier), built.setting, rounds=built.rounds)
    sizes = sizes_of(built.setting.model)
    kept = folder / run_folder.TRANSCRIPT
    places = [kept, *sorted(kept.glob("discarded-*"))]
    states = {
        checkpoint.round: checkpoint.state
        for _, path in round_files(folder / run_folder.CHECKPOINTS)
        for checkpoint in [load_checkpoint(path)]
    }
    check = transcript_check(
        [Transcript.load(place) for place in places],
        traces,
        states=states,
        parts={sum(sizes): sizes},
        fresh=noise_seed is None,
    )
    return [check]


# What an audit measured and checked, as the object of audit.json.

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
) -> evidence_schema.Audit:
    """The object of what was measured and checked."""
    asked, rounds = config.audit, config.audit.rounds or config.training.rounds
    return evidence_schema.Audit(
        version=2,
        tool=__version__,
        seed=seed,
        seed_given=asked.seed is not None,
        settings=evidence_schema.AuditSettings.from_object(asked, rounds=rounds),
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
        adversaries=[_entry(audited, config) for audited in measured],
        checks=[evidence_schema.AuditCheck.from_object(check) for check in checks],
    )


def _verdict(measured: list[Audited], checks: list[Check]) -> evidence_schema.AuditVerdict:
    found = {audited.verdict for audited in measured}
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
    missed = any(
        audited.verdict is Verdict.NOT_MEASURED and audited.proven.is_tested for audited in measured
    )
    return "not measured" if missed else "nothing proven"


def _entry(one: Audited, config: RunFile) -> evidence_schema.AuditedAdversary:
    found, proven = one.bound, one.proven.epsilon
    counted = ("threshold", "false_alarms", "misses")
    return evidence_schema.AuditedAdversary(
        name=one.proven.name,
        proven_epsilon=proven,
        status=one.proven.status,
        measured_epsilon=None if found is None else found.epsilon,
        measured_confidence=None if found is None else found.confidence,
        single_epsilon=None if one.single is None else one.single.epsilon,
        ideal_epsilon=one.ideal,
        seen_epsilon=one.seen,
        ratio=None if found is None or proven == 0 else found.epsilon / proven,
        canaries=one.canaries,
        verdict=one.verdict.value,
        estimators=[]
        if one.single is None
        else [evidence_schema.Estimator.from_object(one.single)],
        together=_look(one.together),
        again=_look(one.again),
        fresh=_look(one.fresh),
        evidence=_wealth(one.evidence),
        messages=list(one.links),
        messages_again=list(one.again_links),
        words=one.words() + _of_rounds(config),
        noise_scale=None if found is None else found.noise_scale,
        **{name: getattr(one.first, name, None) for name in counted},
    )


def _look(bound: LowerBound | None) -> evidence_schema.SecondLook | None:
    return None if bound is None else evidence_schema.SecondLook.from_object(bound)


def _wealth(evidence: Evidence | None) -> evidence_schema.Wealth | None:
    if evidence is None:
        return None
    return evidence_schema.Wealth(
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


_SEED_BITS = 53  # so that every reader of JSON keeps the number


def audit_folder(
    folder: Path,
    *,
    overrides: Sequence[str] = (),
    device: str | None = None,
    again: bool = False,
    progress: Progress | None = None,
    expect: Expect | None = None,
    stop: Stop | None = None,
) -> evidence_schema.Audit:
    """Audit the run of a folder, at the noise that its ledger names, and write audit.json.

    Args:
        folder: of `overhear train`.
        overrides: "audit.key=value"; nothing else of a run that is over can be changed.
        device: where its rounds run, as `find_device` reads it; that of the run file by default.
        again: audit once more, and add its evidence to what was found before, which stays beside
            it as audit-1.json and so on; its verdict is named in the new one.
        progress: called with (done, total, what).
        expect: called with what the audit will take, once a few of its rounds were timed; where
            no round with canaries can be, with what its checks will take.
        stop: asked to stop, the audit ends at once and leaves the folder as it is.

    Raises:
        FileNotFoundError: no finished run is in the folder.
        FileExistsError: the run was audited already.
        ValueError: there is nothing that can be audited, or the seed is that of an audit before.
        ContradictedProof: something contradicts what is proven; audit.json is written before.
        Interrupted: it was asked to stop.
    """
    stray = [text for text in overrides if not text.startswith("audit.")]
    if stray:
        raise InputError(f"--set {stray[0]}: of a run that is over, [audit] alone can be changed")
    # The run as its ledger names it, and the audit before; both are refused before the work.
    opened = AuditedFolder.open(
        folder, run_folder.AUDIT, again=again, stop=stop, overrides=overrides
    )
    config = opened.config
    before, run_device = read_audit(folder), _device_of(folder)  # refused before the work
    _check_seed(config, before)
    found = audit_config(
        config,
        noise_multiplier=opened.header.noise_multiplier,
        before=_evidence_of(before),
        device=device,
        folder=folder,
        progress=progress,
        expect=expect,
    )
    # What was found before stays beside it, and a suspicion stands until a closer look clears it.
    rounds = config.training.rounds  # which an audit that names none had all of
    rounds = rounds if before is None else before.rounds or rounds
    earlier = opened.earlier(before, evidence_schema.EarlierAudit, rounds=rounds)
    verdict = found.verdict
    if verdict in ("consistent", "cleared", "not measured") and earlier:
        if any(_in_doubt(one, found) for one in earlier):
            verdict = "suspicious"
        elif verdict == "consistent" and any(one.verdict == "suspicious" for one in earlier):
            verdict = "cleared"
    found = opened.keep(found, earlier, verdict=verdict, run_device=run_device)
    raise_contradiction(found)
    return found


def _device_of(folder: Path) -> str:
    """Where the rounds of a run were trained, as far as its folder tells."""
    path = folder / run_folder.ENVIRONMENT
    return Environment.read(path).device if path.exists() else ""


def _in_doubt(before: evidence_schema.EarlierAudit, found: evidence_schema.Audit) -> bool:
    """Whether an earlier suspicion stands: only a look that is four times as close clears it."""
    close = found.canaries >= AGAIN * before.canaries and (found.rounds or 0) >= before.rounds
    vain = found.verdict == "not measured"
    return before.verdict == "suspicious" and (vain or not close)


def _check_seed(config: RunFile, before: evidence_schema.Audit | None) -> None:
    """Refuse coins that were tossed before: evidence adds up only if they are fresh."""
    if before is None or config.audit.seed is None:
        return
    if config.audit.seed in (before.seed, *(one.seed for one in before.earlier)):
        raise InputError(
            f"[audit] seed={config.audit.seed} was used in an audit of this run, and the same "
            "assignment is no new evidence; leave it out, or set another with --set audit.seed=N"
        )


def _evidence_of(before: evidence_schema.Audit | None) -> dict[str, Evidence]:
    """By adversary what audits before this one have won."""
    found = {}
    for row in before.adversaries if before is not None else ():
        held = row.evidence
        if held is not None:
            if not len(held.at_zero) == len(held.learned) == len(BETS):
                raise InputError(
                    f"{run_folder.AUDIT} keeps evidence of {len(held.at_zero)} and "
                    f"{len(held.learned)} bets where there are {len(BETS)}: another version wrote "
                    "it, or somebody changed it; audit with that version, or train anew"
                )
            found[row.name] = Evidence(
                at_zero=held.at_zero, learned=held.learned, looks=held.looks, canaries=held.canaries
            )
    return found


def audit_config(
    config: RunFile,
    *,
    noise_multiplier: float | None = None,
    device: str | None = None,
    before: Mapping[str, Evidence] | None = None,
    folder: Path | None = None,
    progress: Progress | None = None,
    expect: Expect | None = None,
) -> evidence_schema.Audit:
    """Audit what a run file describes.

    Args:
        config: the run file; its [audit] says how many canaries, and may give their seed.
        noise_multiplier: of the run; that of its plan by default.
        device: where its rounds run, as `find_device` reads it; that of the run file by default.
        before: by adversary the evidence of audits of the same run, to which this one adds.
        folder: of the run, whose transcripts are checked as well; None where there is none.
        progress: called with (done, total, what).
        expect: called with what the audit will take, once a few of its rounds were timed; where
            no round with canaries can be, with what its checks will take.

    Returns:
        The object of audit.json.

    Raises:
        ValueError: the run is not private, or nothing is proven or released that could be measured.
    """
    # What is held against what: the plan, and the game that its adversaries can be scored in.
    built = build(config, device=None if device is None else find_device(device, rounds=True))
    plan = make_plan(
        config, graph=built.setting.graph, batch_size=built.batch_size, begun=folder is not None
    )
    multiplier = plan.noise_multiplier if noise_multiplier is None else noise_multiplier
    p = check_auditable(config, built, multiplier=multiplier)
    game, against, why = game_of(config, built, plan, multiplier=multiplier)
    given = config.audit.seed
    seed = secrets.randbits(_SEED_BITS) if given is None else given

    # Checks of the engine, which need no canaries; then the game.
    bound, rounds = built.bound(multiplier), config.training.rounds
    traces = traces_of(bound, built.setting, rounds=rounds) if game is None else game.traces
    watched = affordable_rounds(min(config.audit.checked_rounds, rounds), traces)
    if progress is not None:
        progress(0, watched, "checks")
    cost = None if expect is None or game is None else cost_of(game, watched=watched)
    heard = None
    if expect is not None:
        if cost is not None:
            expect(cost)
        else:
            heard = pricing_checks(expect, watched=watched)
    checks = engine_checks(
        built.setting,
        bound,
        rounds=watched,
        traces=traces,
        source=built.data.train,
        watched_so_far=heard,
    )
    if folder is not None:
        of_noise = config.training.evaluation_noise_seed
        checks += folder_checks(folder, built, multiplier=multiplier, noise_seed=of_noise)
    # A run that is not what was traced cannot be scored by its trace.
    keep_freed_memory()  # every round with canaries has arrays of the same sizes again
    if not all(check.as_traced for check in checks):
        game, why = None, "the run is not what was traced"
    measured = (
        [not_measured(one, (), why=why) for one in against]
        if game is None
        else audit(
            game,
            against,
            seed=seed,
            confidence=config.audit.confidence,
            before=before,
            progress=progress,
            checks=checks,
        )
    )
    return audit_of(
        config, p, game, multiplier=multiplier, measured=measured, checks=checks, seed=seed
    ).model_copy(update={"device": str(built.setting.device)})


def check_auditable(config: RunFile, built: Built, *, multiplier: float) -> PrivacyTable:
    """The privacy of a run in which there is something to audit.

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
    if missing := missing_of(config):
        raise InputError(
            f"[participation] missing={missing}: an audit plays rounds with everybody there, and "
            "the figure is one of rounds from which agents are missing; audit the same run file "
            "without missing"
        )
    if not _is_of_agents(config):
        check_by_records(built, multiplier=multiplier)
    if multiplier == 0:
        raise InputError("the noise multiplier is 0: nothing is hidden that could be measured")
    if config.privacy.holders is not None:
        raise InputError(
            f"[privacy] holders={list(config.privacy.holders)} makes every figure one about a "
            "person with records at these agents, and an audit plants single records: train and "
            "audit the same run file without holders, which says what one record loses"
        )
    return config.privacy


def _is_of_agents(config: RunFile) -> bool:
    """Whether all data of an agent are hidden, and not single records."""
    return config.privacy is not None and Unit(config.privacy.unit) is Unit.AGENT


def check_by_records(built: Built, *, multiplier: float) -> None:
    """Refuse a step whose contributions are not sums or means of records' gradients.

    Raises:
        ValueError: it takes local steps, or a cohort that nobody sees.
    """
    bound = built.bound(multiplier)
    traced = trace(
        bound.init, bound.step, graph=built.setting.graph, rounds=1, noise_multiplier=None
    )
    parts = [traced.start, *(part for part, _ in traced.rounds)]
    groups = [g for part in parts for g in part.groups if isinstance(g, Contributions)]
    if any(g.scaled for g in groups):
        raise InputError(
            "a step with round.clipped_sums(..., scale=...) or parts=... cannot be audited: a "
            "canary would be clipped to another length for each; use "
            "`overhear.testing.check_algorithm`, which checks that it does what was traced"
        )
    if any(g.draws is not None and g.blame is None and g.users is None for g in groups):
        raise InputError(
            "a step with round.local_update or round.cohort cannot be audited: its contributions "
            "are no sums of records' gradients, in which canaries could be planted; "
            "audit it with [privacy] unit='agent', which plants all data of an agent, or use "
            "`overhear.testing.check_algorithm`, which checks that it does what was traced"
        )


def raise_contradiction(found: evidence_schema.Audit) -> None:
    """Raise what an audit found against a proof.

    Raises:
        ContradictedProof: a bound above a proven epsilon, twice, or a check that failed.
    """
    said = [
        adversary.words for adversary in found.adversaries if adversary.verdict == "contradicted"
    ]
    said += [f"{check.name}: {check.words}" for check in found.checks if not check.passed]
    said += [
        f"{one.file} found: {one.verdict}"
        for one in found.earlier
        if one.verdict in ("contradicted", "failed checks")
    ]
    if said:
        raise ContradictedProof("; ".join(said))
