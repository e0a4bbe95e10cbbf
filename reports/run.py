"""Train a run into a run folder, with its ledger, metrics, checkpoints and intercepted rounds."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from ..privacy.ledger import Ledger
from ..training.accounting import run_epsilon
from ..training.engine import Engine, Metrics, evaluate
from ..training.randomness import SecretRandomness
from ..training.tensor_round import Examples
from ..training.transcript import Transcript
from . import folder as run_folder
from .build import Built, build
from .config import RunFile
from .plan import Plan, make_plan

Progress = Callable[[int, int, float | None, Metrics | None], None]


def snapshot_round(intercepted: int) -> int:
    """The round after which the state is kept, so that a re-enactment sees the round before too."""
    return max(intercepted - 2, 0)


def train_run(config: RunFile, out: Path, *, progress: Progress | None = None) -> dict[str, Any]:
    """Plan, train, and leave everything that attack and report need in a new folder.

    Args:
        config: the run file.
        out: the folder; it must be empty or not exist.
        progress: called with (round, rounds, epsilon of the target adversary, metrics).

    Returns:
        Noise multiplier, epsilon by adversary, and the last metrics.

    Raises:
        FileExistsError: the folder holds a run.
        ValueError: what the run file asks for cannot be done.
    """
    run_folder.check_unused(out)
    built = build(config)
    plan = make_plan(config, graph=built.setting.graph, batch_size=built.batch_size)
    run_folder.claim(out)
    (out / run_folder.RUN).write_text(config.to_toml(), encoding="utf-8")
    run_folder.write_json(
        out / run_folder.ENVIRONMENT, run_folder.environment(str(built.setting.device))
    )
    ledger = Ledger(
        out / run_folder.LEDGER,
        {
            "run_file": run_folder.digest(out / run_folder.RUN),
            "algorithm": config.algorithm.name,
            "form": config.algorithm.form,
            "agents": built.setting.graph.agents,
            "clip_norm": run_folder.finite(
                float("inf") if built.clip_norm is None else built.clip_norm
            ),
            "noise_multiplier": plan.noise_multiplier,
            "sampling_rate": plan.sampling_rate,
            "planned_rounds": plan.rounds,
        },
    )
    try:
        last = _train(config, built, plan, out=out, ledger=ledger, progress=progress)
    finally:
        ledger.close()
    run_folder.write_sums(out)
    return {
        "out": str(out),
        "noise_multiplier": plan.noise_multiplier,
        "adversaries": plan.to_json()["adversaries"],
        "metrics": run_folder.finite(last._asdict()),
    }


def _train(
    config: RunFile,
    built: Built,
    plan: Plan,
    *,
    out: Path,
    ledger: Ledger,
    progress: Progress | None,
) -> Metrics:
    watched = list(config.intercept.victims) or [_victim(config)]
    transcript = Transcript(config.intercept.rounds, agents=watched)
    seed = config.training.evaluation_noise_seed
    engine = Engine(
        built.setting,
        built.bound(plan.noise_multiplier),
        randomness=SecretRandomness(seed),
        taps=[transcript],
    )
    releases = [{"kind": kind} for kind in plan.message_kinds]
    ledger.append(0, [])  # the start
    engine.start()
    keep = {snapshot_round(r) for r in config.intercept.rounds}
    rounds, every = config.training.rounds, config.training.evaluate_every
    every = every or max(1, rounds // 20)
    test = Examples(built.data.test_inputs, built.data.test_targets)
    with (out / run_folder.METRICS).open("x", encoding="utf-8") as lines:
        while True:
            at = engine.round
            if at in keep or at == rounds:
                _save_snapshot(out, at, engine.snapshot())
            metrics = None
            if at % every == 0 or at == rounds:
                metrics = evaluate(built.setting.model, engine.models(), test, round=at)
                lines.write(json.dumps(run_folder.finite(metrics._asdict())) + "\n")
                lines.flush()
            if progress is not None:
                progress(at, rounds, _spent(config, plan, at) if metrics else None, metrics)
            if at == rounds and metrics is not None:
                return metrics
            ledger.append(at + 1, releases)  # on the disk before anything of the round leaves
            engine.advance()
            if engine.round in config.intercept.rounds:
                transcript.save(out / run_folder.TRANSCRIPT)
                transcript.clear()


def _victim(config: RunFile) -> int:
    return 0 if config.privacy is None or config.privacy.victim is None else config.privacy.victim


def _spent(config: RunFile, plan: Plan, rounds: int) -> float | None:
    p = config.privacy
    if p is None or rounds == 0:
        return None
    return run_epsilon(
        plan.exposures[p.adversary],
        noise_multiplier=plan.noise_multiplier,
        delta=p.delta,
        adjacency=p.adjacency,
        accountant=p.accountant,
        rounds=rounds,
    )


def _save_snapshot(out: Path, at: int, snapshot: Mapping[str, Tensor]) -> None:
    from safetensors.torch import save_file

    path = out / run_folder.CHECKPOINTS / f"round-{at:06d}.safetensors"
    path.parent.mkdir(exist_ok=True)
    save_file({name: value.contiguous() for name, value in snapshot.items()}, path)
