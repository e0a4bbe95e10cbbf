"""Collect a run folder into privacy.json and report.html."""

from __future__ import annotations

import datetime as dt
import importlib.metadata
import json
from pathlib import Path
from typing import Any

from ..privacy.ledger import Spent, read_ledger
from ..training.accounting import accounted, run_epsilon
from ..training.exposure import Exposure, Release
from . import folder as run_folder
from .build import Built, build
from .config import RunFile, load_run_file
from .html import render
from .plan import Plan, make_plan

SCHEMA = 1
_POINTS = 12  # of epsilon by round


def report_run(folder: Path, *, show_records: bool = False) -> Path:
    """Write privacy.json and report.html for a run folder, from its files alone.

    Args:
        folder: a run folder of `overhear train`, attacked or not.
        show_records: show pictures of training records too. An attack plants public records, so
            today there are none to hide.

    Returns:
        The path of report.html.

    Raises:
        FileNotFoundError: no run is in the folder.
        ValueError: the ledger belongs to another run file.
    """
    del show_records
    report = collect(folder)
    pictures = {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted((folder / run_folder.ATTACKS).glob("*.png"))
    }
    page = render(report, images=pictures)
    run_folder.write_json(folder / run_folder.PRIVACY, report)
    (folder / run_folder.REPORT).write_text(page, encoding="utf-8")
    run_folder.write_sums(folder)
    return folder / run_folder.REPORT


def collect(folder: Path) -> dict[str, Any]:
    """The object of privacy.json."""
    config = load_run_file(run_folder.require(folder, run_folder.RUN))
    run_folder.check_sums(folder)
    spent = read_ledger(run_folder.require(folder, run_folder.LEDGER))
    built = build(config)
    plan = make_plan(config, graph=built.setting.graph, batch_size=built.batch_size)
    _check_ledger(folder, spent, plan)
    attack = folder / run_folder.ATTACK
    metrics = _metrics(folder)
    return {
        "schema": SCHEMA,
        "tool": {"name": "overhear", "version": importlib.metadata.version("overhear")},
        "made": dt.datetime.now(dt.UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        "run": _run(config, built, plan, spent=spent),
        "plan": plan.to_json(),
        "ledger": _ledger(config, plan, spent),
        "epsilon_by_round": _epsilon_by_round(config, plan, spent),
        "utility": _utility(metrics),
        "attack": json.loads(attack.read_text(encoding="utf-8")) if attack.exists() else None,
        "audit": None,
        "assumptions": _assumptions(config, built, spent),
        "reproduce": _reproduce(folder),
    }


def _check_ledger(folder: Path, spent: Spent, plan: Plan) -> None:
    """The ledger is what was released; a run file that says otherwise is not its run file."""
    if spent.header["run_file"] != run_folder.digest(folder / run_folder.RUN):
        raise ValueError(
            "run.toml is not the run file that the ledger was written for; the folder's files do "
            "not belong together"
        )
    for name, planned in (
        ("noise_multiplier", plan.noise_multiplier),
        ("sampling_rate", plan.sampling_rate),
    ):
        released = spent.header[name]
        if abs(released - planned) > 1e-9 * max(1.0, abs(planned)):
            raise ValueError(
                f"the ledger was written with {name}={released:g}, but run.toml gives "
                f"{planned:g}; the folder's files do not belong together"
            )


def _run(config: RunFile, built: Built, plan: Plan, *, spent: Spent) -> dict[str, Any]:
    graph = built.setting.graph
    return {
        "name": f"{config.algorithm.name}-{graph.name}-{config.data.name}",
        "algorithm": config.algorithm.name,
        "form": config.algorithm.form,
        "graph": graph.name,
        "agents": graph.agents,
        "edges": sorted({(min(p), max(p)) for p in graph.links}),
        "links": config.graph.links,
        "data": config.data.name,
        "records": len(built.data.targets),
        "duplicate_records": _duplicates(built),
        "model": config.model.name,
        "parameters": sum(p.numel() for p in built.setting.model.parameters()),
        "rounds": plan.rounds,
        "rounds_done": spent.rounds,
        "sampling_rate": plan.sampling_rate,
        "clip_norm": "inf" if built.clip_norm is None else built.clip_norm,
        "noise_multiplier": plan.noise_multiplier,
        "evaluation_noise_seed": config.training.evaluation_noise_seed,
        "device": str(built.setting.device),
    }


def _epsilon(
    config: RunFile, plan: Plan, exposure: Exposure, *, rounds: list[int] | None = None
) -> float:
    p = config.privacy
    return run_epsilon(
        exposure,
        noise_multiplier=plan.noise_multiplier,
        delta=plan.target["delta"],
        adjacency="add-or-remove-one" if p is None else p.adjacency,
        accountant="pld" if p is None else p.accountant,
        rounds=rounds,
    )


def _ledger(config: RunFile, plan: Plan, spent: Spent) -> dict[str, Any]:
    """What the ledger says was released.

    `epsilon` is what may be signed: of the planned rounds, or of more where the ledger has more.
    What stopped a run early may depend on the data, so epsilon of the rounds that were released is
    a `reading`.
    """
    return {
        "rounds": spent.rounds,
        "rounds_accounted": max(spent.rounds - spent.torn, plan.rounds) + spent.torn,
        "entries": len(spent.entries),
        "torn": spent.torn,
        "epsilon": {
            name: _epsilon(config, plan, accounted(exposure, spent.numbers, torn=spent.torn))
            for name, exposure in plan.exposures.items()
        },
        "reading": {
            name: _epsilon(config, plan, exposure, rounds=spent.numbers)
            for name, exposure in plan.exposures.items()
        },
    }


def _epsilon_by_round(config: RunFile, plan: Plan, spent: Spent) -> dict[str, Any]:
    released = [number for number in spent.numbers if number > 0]
    last = len(released)
    points = sorted({max(1, round(last * k / _POINTS)) for k in range(1, _POINTS + 1)}) * bool(last)
    known: dict[tuple[tuple[Release, ...], int], float] = {}
    found: dict[str, list[tuple[int, float]]] = {}
    for name, exposure in plan.exposures.items():
        line = []
        for at in points:
            key = (exposure.releases, at)  # equal releases cost the same
            if key not in known:
                known[key] = _epsilon(config, plan, exposure, rounds=released[:at])
            line.append((at, known[key]))
        found[name] = line
    return found


def _metrics(folder: Path) -> list[dict[str, Any]]:
    text = run_folder.require(folder, run_folder.METRICS).read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines() if line.endswith("}")]


def _utility(metrics: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "rounds": [m["round"] for m in metrics],
        "consensus_accuracy": [m["consensus_accuracy"] for m in metrics],
        "consensus_loss": [m["consensus_loss"] for m in metrics],
        "agent_accuracy_min": [min(m["accuracy"]) for m in metrics],
        "agent_accuracy_max": [max(m["accuracy"]) for m in metrics],
        "consensus_distance": [m["consensus_distance"] for m in metrics],
    }


def _assumptions(config: RunFile, built: Built, spent: Spent) -> list[dict[str, str]]:
    """What the statement rests on, and what speaks for each."""
    planned = spent.header["planned_rounds"]
    seed = config.training.evaluation_noise_seed
    return [
        {
            "text": f"No more rounds than the {planned} planned were released "
            f"({spent.rounds} in the ledger).",
            "status": "verified" if spent.rounds <= planned else "gap",
        },
        {
            "text": "Messages are the linear function of gradients and noise that was accounted "
            "for: the step that runs is the step that was traced, in its first and last round.",
            "status": "assumed",
        },
        {
            "text": "Agents are honest but curious: they follow the protocol.",
            "status": "assumed",
        },
        {
            "text": "Noise and batches are drawn from secret seeds of the system's entropy."
            if seed is None
            else "Noise comes from evaluation_noise_seed: whoever knows it can subtract it.",
            "status": "assumed" if seed is None else "gap",
        },
        {
            "text": "No record is held by several agents, or twice by one.",
            "status": "gap" if _duplicates(built) else "verified",
        },
        {
            "text": "Batches are Poisson samples at a public rate, drawn in secret.",
            "status": "assumed",
        },
        {
            "text": "The rate, the normaliser, the weights and the number of rounds are public "
            "constants; where they come from the number of records in all, that number is public.",
            "status": "assumed",
        },
        {
            "text": "Noise is exactly Gaussian; floating-point samples only come close to it.",
            "status": "assumed",
        },
        {
            "text": "Timing, message sizes and the machines' memory are not considered.",
            "status": "gap",
        },
        {
            "text": "An audit of the implementation by canaries.",
            "status": "gap",
        },
    ]


def _duplicates(built: Built) -> int:
    """Records that are equal to another one, over all shards."""
    seen: set[bytes] = set()
    total = 0
    for shard in built.setting.shards:
        for row in shard.inputs.flatten(1).contiguous().numpy():
            seen.add(row.tobytes())
            total += 1
    return total - len(seen)


def _reproduce(folder: Path) -> dict[str, Any]:
    kept = (run_folder.RUN, run_folder.LEDGER, run_folder.METRICS, run_folder.ATTACK)
    environment = (folder / run_folder.ENVIRONMENT).read_text(encoding="utf-8")
    return {
        "commands": [
            "overhear plan run.toml",
            "overhear train run.toml --out DIR",
            "overhear attack DIR",
            "overhear report DIR",
        ],
        "environment": json.loads(environment),
        "files": {
            name: run_folder.digest(folder / name) for name in kept if (folder / name).exists()
        },
    }
