"""Audit a run file or a run folder: measured lower bounds beside what is proven, as audit.json."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..attacks.audit import Audited, Proven, Verdict, audit, claim_of, hosts_of
from ..attacks.canary_runs import CanaryGame
from ..attacks.check import Check
from ..attacks.engine_checks import engine_checks
from ..privacy.guarantee import Guarantee
from ..privacy.ledger import read_ledger
from ..training.accounting import run_epsilon
from ..training.exposure import Exposure, exposures_by_victim
from ..training.trace import trace
from . import folder as run_folder
from .build import Built, build
from .config import RunFile, load_run_file
from .faults import ContradictedProof
from .plan import Plan, make_plan

__all__ = ["audit_config", "audit_folder", "raise_contradiction"]

Progress = Callable[[int, int, str], None]
_LINKED = "eavesdropper"  # the adversary who sees every message, so that each can be scored


def audit_folder(
    folder: Path,
    *,
    overrides: Sequence[str] = (),
    again: bool = False,
    progress: Progress | None = None,
) -> dict[str, Any]:
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
        raise ValueError(f"--set {stray[0]}: of a run that is over, [audit] alone can be changed")
    config = load_run_file(path, overrides)
    run_folder.check_sums(folder)
    header = read_ledger(run_folder.require(folder, run_folder.LEDGER)).header
    held = folder / run_folder.AUDIT
    if held.exists() and not again:
        raise FileExistsError(f"{held} exists; --again audits once more and keeps it beside")
    found = audit_config(config, noise_multiplier=header["noise_multiplier"], progress=progress)
    found |= {"run_file": run_folder.digest(path), "earlier": _put_aside(folder)}
    run_folder.write_json(held, found)
    if (folder / run_folder.SUMS).exists():
        run_folder.write_sums(folder)
    raise_contradiction(found)
    return found


def _put_aside(folder: Path) -> list[dict[str, Any]]:
    """Rename an audit that is there already, and say what it and those before it found."""
    held, stem = folder / run_folder.AUDIT, Path(run_folder.AUDIT).stem
    count = 1
    while (folder / f"{stem}-{count}.json").exists():
        count += 1
    earlier: list[dict[str, Any]] = []
    if held.exists():
        before = json.loads(held.read_text(encoding="utf-8"))
        name = f"{stem}-{count}.json"
        held.rename(folder / name)
        earlier = [*before.get("earlier", []), {"file": name, "verdict": before["verdict"]}]
    return earlier


def audit_config(
    config: RunFile,
    *,
    noise_multiplier: float | None = None,
    generator: np.random.Generator | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
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
    p = config.privacy
    if p is None:
        raise ValueError("[privacy] is missing: nothing is proven, so there is nothing to audit")
    built = build(config)
    if built.clip_norm is None:
        raise ValueError(
            f"{config.algorithm.name} does not clip: nothing is proven, so there is nothing to "
            "audit; attack it instead"
        )
    plan = make_plan(config, graph=built.setting.graph, batch_size=built.batch_size)
    multiplier = plan.noise_multiplier if noise_multiplier is None else noise_multiplier
    if multiplier == 0:
        raise ValueError("the noise multiplier is 0: nothing is hidden that could be measured")
    game, against = game_of(config, built, plan, multiplier=multiplier)

    def show(done: int, total: int, what: str) -> None:
        if progress is not None:
            progress(done, total, what)

    watched = min(config.audit.checked_rounds, config.training.rounds)
    show(0, watched, "checks")
    checks = engine_checks(built.setting, built.bound(multiplier), rounds=watched)
    measured = audit(
        game,
        against,
        generator=generator or np.random.default_rng(),
        confidence=config.audit.confidence,
        progress=lambda done, total: show(done, total, "canaries"),
    )
    found: dict[str, Any] = run_folder.finite(
        {
            "schema": 1,
            "canaries": game.runs * game.of_each * len(game.hosts),
            "runs": game.runs,
            "rounds": game.rounds,
            "planned_rounds": config.training.rounds,
            "hosts": game.hosts,
            "game": _GAMES[p.adjacency],
            "confidence": config.audit.confidence,
            "delta": p.delta,
            "unit": "record",
            "adjacency": p.adjacency,
            "noise_multiplier": multiplier,
            "verdict": _verdict(measured, checks),
            "adversaries": [_entry(one) for one in measured],
            "checks": [_check(one) for one in checks],
        }
    )
    return found


_GAMES = {
    "add-or-remove-one": "a canary is among its host's records, or not",
    "replace-one": "a canary is one record or its opposite",
}


def game_of(
    config: RunFile, built: Built, plan: Plan, *, multiplier: float
) -> tuple[CanaryGame, list[Proven]]:
    p = config.privacy
    assert p is not None  # noqa: S101 # checked by the caller
    setting, rounds = built.setting, config.audit.rounds or config.training.rounds
    encrypted = config.graph.links == "encrypted"
    unit = built.bound(1.0)
    of_unit = trace(unit.init, unit.step, graph=setting.graph, rounds=built.rounds)
    names = [g.adversary for g in plan.guarantees]
    by_victim = _by_victim(of_unit, names, plan, encrypted=encrypted)
    onlookers = hosts_of(by_victim, canaries=config.audit.canaries, encrypted=encrypted)
    if not onlookers:
        raise ValueError(
            "no adversary of [privacy] adversaries has a view that can be scored round by round; "
            'name one that has, such as "eavesdropper"'
        )
    bound = built.bound(multiplier)
    game = CanaryGame(
        setting=setting,
        bound=bound,
        traces=trace(bound.init, bound.step, graph=setting.graph, rounds=built.rounds),
        rounds=rounds,
        clip_norm=built.clip_norm or 0.0,
        classes=built.data.classes,
        onlookers=onlookers,
        canaries=config.audit.canaries,
        linked=_LINKED if _LINKED in onlookers and not encrypted else None,
        replace=p.adjacency == "replace-one",
        batch_clipped=_clips_batches(built, of_unit),
    )
    against = [
        _proven(g, plan.exposures[g.adversary], config, multiplier=multiplier, rounds=rounds)
        for g in plan.guarantees
    ]
    return game, against


def _by_victim(
    traces: Any, names: list[str], plan: Plan, *, encrypted: bool
) -> dict[str, list[Exposure]]:
    measured = [n for n in names if not plan.exposures[n].whole_run and n != "single-message"]
    return dict(
        exposures_by_victim(traces, measured, sampling_rate=plan.sampling_rate, encrypted=encrypted)
    )


def _clips_batches(built: Built, traces: Any) -> bool:
    """Whether what is clipped is the mean of a batch, which moves by twice the clip norm."""
    from ..training.sources import Contributions

    parts = [traces.start, *(t for t, _ in traces.rounds)]
    bounds = [
        float(g.bounds.max())
        for part in parts
        for g in part.groups
        if isinstance(g, Contributions) and g.blame is None and g.size
    ]
    return any(b == 2.0 * (built.clip_norm or 0.0) for b in bounds)


def _proven(
    stated: Guarantee, exposure: Exposure, config: RunFile, *, multiplier: float, rounds: int
) -> Proven:
    p = config.privacy
    assert p is not None  # noqa: S101 # checked by the caller
    return Proven(
        name=stated.adversary,
        epsilon=run_epsilon(
            exposure,
            noise_multiplier=multiplier,
            delta=p.delta,
            adjacency=p.adjacency,
            accountant=p.accountant,
            rounds=None if rounds == config.training.rounds else rounds,
        ),
        delta=p.delta,
        status=stated.status,
        claim=claim_of(exposure, noise_multiplier=multiplier, adjacency=p.adjacency, rounds=rounds),
    )


def _verdict(measured: list[Audited], checks: list[Check]) -> str:
    found = {one.verdict for one in measured}
    if Verdict.CONTRADICTED in found:
        return "contradicted"
    if not all(check.passed for check in checks):
        return "failed checks"
    if Verdict.SUSPICIOUS in found:
        return "suspicious"
    return "consistent"


def _entry(one: Audited) -> dict[str, Any]:
    first = one.bounds[0] if one.bounds else None
    proven = one.proven.epsilon
    return {
        "name": one.proven.name,
        "proven_epsilon": proven,
        "status": str(one.proven.status),
        "measured_epsilon": None if first is None else first.epsilon,
        "ideal_epsilon": one.ideal,
        "ratio": None if first is None or proven == 0 else first.epsilon / proven,
        "canaries": one.canaries,
        "threshold": None if first is None else first.threshold,
        "false_alarms": None if first is None else first.false_alarms,
        "misses": None if first is None else first.misses,
        "verdict": str(one.verdict),
        "estimators": [
            {"name": b.name, "epsilon": b.epsilon, "assumptions": b.assumptions} for b in one.bounds
        ],
        "again": None
        if one.again is None
        else {"epsilon": one.again.epsilon, "confidence": one.again.confidence},
        "messages": [
            {
                "message": link.message,
                "agent": link.host,
                "proven_epsilon": link.proven,
                "measured_epsilon": link.measured,
                "canaries": link.canaries,
            }
            for link in one.links
        ],
        "words": one.words(),
    }


def _check(one: Check) -> dict[str, Any]:
    return {
        "name": one.name,
        "passed": one.passed,
        "p": one.p,
        "tests": one.tests,
        "words": one.words,
    }


def raise_contradiction(found: dict[str, Any]) -> None:
    """Raise what an audit found against a proof.

    Raises:
        ContradictedProof: a bound above a proven epsilon, twice, or a check that failed.
    """
    said = [one["words"] for one in found["adversaries"] if one["verdict"] == "contradicted"]
    said += [f"{one['name']}: {one['words']}" for one in found["checks"] if not one["passed"]]
    said += [
        f"{one['file']} found: {one['verdict']}"
        for one in found.get("earlier", [])
        if one["verdict"] in ("contradicted", "failed checks")
    ]
    if said:
        raise ContradictedProof("; ".join(said))
