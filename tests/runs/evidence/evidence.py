"""Evidence as an attack and an audit leave it, with changes."""

import copy
from typing import Any

from overhear.runs.audit.evidence_schema import Attack, Audit

AUDIT: dict[str, Any] = {
    "schema": 1,
    "canaries": 1000,
    "runs": 4,
    "rounds": 200,
    "planned_rounds": 200,
    "hosts": [0],
    "game": "a canary is among its host's records, or not",
    "unit": "record",
    "noise_multiplier": 2.5134,
    "confidence": 0.95,
    "delta": 1e-5,
    "adjacency": "add-or-remove-one",
    "verdict": "consistent",
    "adversaries": [
        {
            "name": "eavesdropper",
            "proven_epsilon": 2.08,
            "status": "proven",
            "measured_epsilon": 1.5,
            "ideal_epsilon": 1.7,
            "ratio": 0.72,
            "threshold": 0.0,
            "false_alarms": 120,
            "misses": 130,
            "again": {"epsilon": 1.4, "confidence": 0.999},
            "messages": [
                {
                    "message": "half of agent 0 to 1",
                    "agent": 0,
                    "proven_epsilon": 1.1,
                    "measured_epsilon": 0.4,
                    "canaries": 1000,
                }
            ],
            "canaries": 1000,
            "verdict": "consistent",
            "estimators": [
                {"name": "total error", "epsilon": 1.5, "assumptions": "fair assignments"}
            ],
            "words": "within the proof",
        }
    ],
    "checks": [{"name": "residuals", "passed": True, "p": 0.3, "tests": 20, "words": "as stated"}],
}


SCORES = {"mse": 0.1, "psnr": 10.0, "ssim": 0.2}
DEFENDED = {"name": "defended", **{name: [value] for name, value in SCORES.items()}, "mean": SCORES}


def attack(
    *, exceeded: bool = False, preset: str = "matched", rows: tuple[Any, ...] = (DEFENDED,)
) -> Attack:
    bound = {
        "rebuilt": 8 if exceeded else 0, "images": 8, "most": 0.3, "exceeded": exceeded,
        "sentence": "8 of 8 images were rebuilt; the proof allows 30%.",
    }  # fmt: skip
    scenario = {
        "scenario": "view", "adversary": "eavesdropper", "round": 1, "model_owner": 0, "victim": 0,
        "preset": preset, "rows": list(rows), "conclusion": "none", "bound": bound,
    }  # fmt: skip
    return Attack.model_validate({"schema": 1, "scenarios": [scenario]})


def audit(**changes: Any) -> Audit:
    return Audit.model_validate({**copy.deepcopy(AUDIT), **changes})


def audited(**changes: Any) -> Audit:
    """The audit with changes to its one adversary."""
    return audit(adversaries=[{**AUDIT["adversaries"][0], **changes}])
