"""Runs side by side: what they cost, what they learn, what was rebuilt and measured.

Every figure is computed anew from its run. What cannot be compared, such as epsilons at different
deltas, stands in the table with its delta and is said to differ.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from ...privacy.errors import InputError
from ...runs.evidence.schema import Attack, Audit
from ...runs.folder import folder as run_folder
from ...runs.numbers import bound, figure, is_infinite, lower_bound, small
from ..document.checked_run import CheckedRun, read_checked_run
from ..judgement.proof_check import contradictions_of
from ..plain_text import plain

__all__ = ["compare_runs", "flags_of", "rows_of"]

SCHEMA = 1
Entry = Mapping[str, Any]
_NONE = "–"
_KEPT = (
    "algorithm",
    "form",
    "graph",
    "agents",
    "links",
    "data",
    "model",
    "rounds",
    "rounds_done",
    "sampling_rate",
    "noise_multiplier",
    "evaluation_noise_seed",
)


def compare_runs(folders: Sequence[Path]) -> dict[str, Any]:
    """What runs have in common and where they differ.

    Args:
        folders: of finished runs, two or more; attacked, audited and reported or not.

    Returns:
        "runs", an object for each folder, and "flags", sentences on what cannot be compared.

    Raises:
        FileNotFoundError: no run is in a folder.
        ValueError: fewer than two folders, or a run was changed after it was written.
    """
    if len(folders) < 2:
        raise InputError(f"{len(folders)} run is given, and a comparison needs 2 or more")
    runs = [_entry(read_checked_run(folder, hold_report=False)) for folder in folders]
    return {"schema": SCHEMA, "runs": runs, "flags": flags_of(runs)}


def _entry(run: CheckedRun) -> dict[str, Any]:
    report = run.report
    of, spent = report["run"], report["ledger"]["epsilon"]
    return {
        "run": plain(run.folder),
        **{key: of[key] for key in _KEPT},
        "victim": run.victim,
        "adversaries": [
            {
                "name": row["name"],
                "epsilon": spent[row["name"]],
                **{key: row[key] for key in ("status", "delta", "unit", "adjacency")},
            }
            for row in report["plan"]["adversaries"]
            if row["name"] in spent
        ],
        "accuracy": _accuracy(run.folder),
        "attack": None if run.attack is None else _attack(run.attack),
        "audit": None if run.audit is None else _audit(run.audit),
        "contradictions": contradictions_of(run),
    }


def _accuracy(folder: Path) -> dict[str, Any] | None:
    """Test accuracy of the agents at the last evaluation."""
    text = run_folder.require(folder, run_folder.METRICS).read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line.endswith("}")]
    if not lines:
        return None
    last = json.loads(lines[-1])
    return {
        "round": last["round"],
        "mean": fmean(last["accuracy"]),
        "worst": min(last["accuracy"]),
    }


def _attack(attack: Attack) -> dict[str, Any] | None:
    """The attack that comes closest on the run's own messages, with its blind guess."""
    best: dict[str, Any] | None = None
    for scenario in attack.scenarios:
        psnr = {row.name: float(row.mean.psnr) for row in scenario.rows}
        if "defended" in psnr and (best is None or psnr["defended"] > best["psnr"]):
            best = {
                "psnr": psnr["defended"],
                "blind_guess_psnr": psnr.get("blind guess"),
                "scenario": scenario.scenario,
                "preset": scenario.preset,
                "round": scenario.round,
            }
    return best


def _audit(audit: Audit) -> dict[str, Any]:
    return {
        "verdict": audit.verdict,
        "confidence": audit.confidence,
        "delta": audit.delta,
        "adjacency": audit.adjacency,
        "adversaries": {
            one.name: {"epsilon": one.measured_epsilon, "canaries": one.canaries}
            for one in audit.adversaries
            if one.measured_epsilon is not None
        },
    }


def flags_of(runs: Sequence[Entry]) -> list[str]:
    """What of the runs cannot be compared, a sentence each.

    Args:
        runs: as in the "runs" of `compare_runs`.
    """
    found = [
        *_differing(runs, "delta", lambda row: small(row["delta"])),
        *_differing(runs, "unit", lambda row: str(row["unit"])),
        *_differing(runs, "adjacency", lambda row: str(row["adjacency"])),
    ]
    found += _other(runs, "links", "the eavesdropper does not see the same")
    found += _other(runs, "data", "accuracies and attack scores are of different data")
    found += _other(runs, "model", "accuracies and attack scores are of different models")
    if len({one["victim"] for one in runs}) > 1:
        found.append(
            "victim differs: some figures are for the records of one agent alone, and the others "
            "for the worst agent's"
        )
    for one in runs:
        if one["evaluation_noise_seed"] is not None:
            found.append(
                f"{one['run']}: its noise comes from evaluation_noise_seed, so nothing is proven"
            )
        found += [f"{one['run']}: {said}" for said in one["contradictions"]]
    return [plain(one, most=None) for one in found]


def _differing(
    runs: Sequence[Entry], what: str, shown: Callable[[Mapping[str, Any]], str]
) -> Iterator[str]:
    by_run = {
        one["run"]: ", ".join(sorted({shown(row) for row in one["adversaries"]})) for one in runs
    }
    if len(set(by_run.values())) > 1:
        each = ", ".join(f"{run}: {value}" for run, value in by_run.items())
        yield f"{what} differs ({each}), so their epsilons cannot be compared"


def _other(runs: Sequence[Entry], key: str, why: str) -> list[str]:
    if len({one[key] for one in runs}) < 2:
        return []
    each = ", ".join(f"{one['run']}: {one[key]}" for one in runs)
    return [f"{key} differs ({each}): {why}"]


def rows_of(runs: Sequence[Entry]) -> list[tuple[str, list[str]]]:
    """The table: a head and a cell for each run, in every row.

    Args:
        runs: as in the "runs" of `compare_runs`.
    """
    adversaries = dict.fromkeys(row["name"] for one in runs for row in one["adversaries"])
    audited = dict.fromkeys(
        name for one in runs if one["audit"] for name in one["audit"]["adversaries"]
    )
    rows: list[tuple[str, Callable[[Entry], str]]] = [
        ("algorithm", lambda one: f"{one['algorithm']}, {one['form']}"),
        ("graph", lambda one: f"{one['graph']}, {one['agents']} agents, links {one['links']}"),
        ("data and model", lambda one: f"{one['data']}, {one['model']}"),
        ("rounds", _rounds),
        ("sampling rate", lambda one: figure(one["sampling_rate"])),
        ("noise multiplier", lambda one: figure(one["noise_multiplier"], 4)),
        ("unit and adjacency", _unit),
        *((f"epsilon: {name}", _epsilon_cell(name)) for name in adversaries),
        ("test accuracy, mean of agents", lambda one: _percent(one["accuracy"], "mean")),
        ("test accuracy, worst agent", lambda one: _percent(one["accuracy"], "worst")),
        ("best rebuilt, defence on", _rebuilt),
        ("blind guess beside it", _guessed),
        ("audit", lambda one: one["audit"]["verdict"] if one["audit"] else "not audited"),
        *((f"measured epsilon: {name}", _measured_cell(name)) for name in audited),
    ]
    return [(plain(head), [plain(cell(one), most=None) for one in runs]) for head, cell in rows]


def _rounds(one: Entry) -> str:
    done, planned = one["rounds_done"], one["rounds"]
    return str(planned) if done == planned else f"{done} of {planned}"


def _unit(one: Entry) -> str:
    found = dict.fromkeys(f"{row['unit']}, {row['adjacency']}" for row in one["adversaries"])
    return "; ".join(found) or _NONE


def _epsilon_cell(name: str) -> Callable[[Entry], str]:
    def cell(one: Entry) -> str:
        row = next((row for row in one["adversaries"] if row["name"] == name), None)
        if row is None:
            return "not accounted for"
        if is_infinite(row["epsilon"]):
            return "∞: nothing protects"
        proven = row["status"] == "proven"
        shown = f"≤ {bound(row['epsilon'])}" if proven else f"≥ {figure(row['epsilon'])}"
        return f"{shown} at delta {small(row['delta'])}, {row['status']}"

    return cell


def _measured_cell(name: str) -> Callable[[Entry], str]:
    def cell(one: Entry) -> str:
        found = one["audit"]["adversaries"].get(name) if one["audit"] else None
        if found is None:
            return _NONE
        return (
            f"≥ {lower_bound(found['epsilon'])} at delta {small(one['audit']['delta'])}, "
            f"{found['canaries']} canaries, confidence {one['audit']['confidence']:g}"
        )

    return cell


def _percent(accuracy: Mapping[str, Any] | None, key: str) -> str:
    return _NONE if accuracy is None else f"{float(accuracy[key]):.1%}".replace("%", " %")


def _rebuilt(one: Entry) -> str:
    found = one["attack"]
    if found is None:
        return "not attacked"
    how = f"{found['scenario']} by {found['preset']}, round {found['round']}"
    return f"{figure(found['psnr'])} dB PSNR ({how})"


def _guessed(one: Entry) -> str:
    found = one["attack"]
    if found is None or found["blind_guess_psnr"] is None:
        return _NONE
    return f"{figure(found['blind_guess_psnr'])} dB PSNR"
