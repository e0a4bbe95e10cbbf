"""A report as `overhear report` writes it, and a run file as a user writes it."""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

RUN_FILE = """\
[data]
name = "digits"

[model]
name = "mlp"

[algorithm]
name = "dpdl"
momentum = 0.5

[privacy]
epsilon = 4
delta = 1e-5

[training]
rounds = 200
sampling_rate = 0.02
"""

ROWS = ("blind guess", "no defence", "clipping only", "defended")


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    path = tmp_path / "run.toml"
    path.write_text(RUN_FILE, encoding="utf-8")
    return path


def png(pixels: np.ndarray) -> bytes:
    held = io.BytesIO()
    Image.fromarray((pixels * 255).astype(np.uint8)).save(held, format="PNG")
    return held.getvalue()


@pytest.fixture
def report() -> dict[str, Any]:
    return sample_report()


@pytest.fixture
def images() -> dict[str, bytes]:
    return sample_images()


def sample_images() -> dict[str, bytes]:
    draw = np.random.default_rng(0)
    paths = [f"attacks/original{k}.png" for k in range(2)]
    paths += [f"attacks/{name.replace(' ', '-')}{k}.png" for name in ROWS for k in range(2)]
    return {path: png(draw.random((8, 8))) for path in paths}


def sample_report() -> dict[str, Any]:
    def row(name: str, *, joint: float, epsilon: float, status: str = "proven") -> dict[str, Any]:
        return {
            "name": name,
            "victim": 0,
            "worst_adversary": "neighbour:1" if name == "neighbour" else None,
            "joint_sensitivity": joint,
            "effective_noise_multiplier": 2.5134 / joint,
            "mu_per_round": joint / 2.5134,
            "epsilon": epsilon,
            "delta": 1e-5,
            "unit": "record",
            "adjacency": "add-or-remove-one",
            "sampling": "poisson",
            "status": status,
            "because": "3 contributions of one batch are released, counted jointly",
        }

    rounds = [1, 25, 50, 75, 100, 125, 150, 175, 200]
    curve = [[r, 0.2 + 0.1325 * math.sqrt(r)] for r in rounds]
    spent = curve[-1][1]
    single = [[r, 0.15 + 0.06 * math.sqrt(r)] for r in rounds]
    scores = {
        "blind guess": (0.061, 12.1, 0.62),
        "no defence": (3.2e-7, 64.9, 1.0),
        "clipping only": (0.00021, 36.8, 0.998),
        "defended": (0.172, 7.64, -0.021),
    }
    return {
        "schema": 1,
        "tool": {"name": "overhear", "version": "0.1.0"},
        "made": "2026-11-20T17:20:00Z",
        "run": {
            "name": "dpdl-ring",
            "algorithm": "dpdl",
            "form": "repaired",
            "graph": "ring",
            "agents": 10,
            "edges": [[i, (i + 1) % 10] for i in range(10)],
            "links": "clear",
            "data": "digits",
            "records": 1438,
            "model": "mlp",
            "parameters": 2410,
            "rounds": 200,
            "rounds_done": 200,
            "sampling_rate": 0.02,
            "clip_norm": 1.0,
            "noise_multiplier": 2.5134,
            "evaluation_noise_seed": None,
            "device": "cpu",
        },
        "plan": {
            "schema": 1,
            "noise_multiplier": 2.5134,
            "target": {"epsilon": 4.0, "delta": 1e-5, "adversary": "eavesdropper"},
            "adversaries": [
                row("eavesdropper", joint=math.sqrt(3), epsilon=spent),
                row("neighbour", joint=math.sqrt(3), epsilon=spent),
                row("final-models", joint=math.sqrt(3), epsilon=spent),
                row("single-message", joint=1.0, epsilon=single[-1][1], status="heuristic"),
            ],
            "published_bound": None,
            "warnings": [],
        },
        "ledger": {
            "rounds_accounted": 200,
            "rounds": 200,
            "entries": 200,
            "torn": False,
            "epsilon": {
                "eavesdropper": spent,
                "neighbour": spent,
                "final-models": spent,
                "single-message": single[-1][1],
            },
        },
        "epsilon_by_round": {
            "eavesdropper": curve,
            "neighbour": curve,
            "final-models": curve,
            "single-message": single,
        },
        "utility": {
            "rounds": [0, *rounds],
            "consensus_accuracy": [0.1, 0.14, 0.41, 0.62, 0.7, 0.79, 0.82, 0.85, 0.86, 0.861],
            "consensus_loss": [2.3, 2.2, 1.8, 1.3, 1.0, 0.8, 0.7, 0.6, 0.58, 0.571],
            "agent_accuracy_min": [0.1, 0.11, 0.3, 0.5, 0.61, 0.7, 0.74, 0.78, 0.79, 0.793],
            "agent_accuracy_max": [0.1, 0.17, 0.45, 0.66, 0.74, 0.81, 0.85, 0.87, 0.88, 0.884],
            "consensus_distance": [0.0, 0.2, 0.4, 0.5, 0.6, 0.6, 0.7, 0.7, 0.7, 0.713],
        },
        "attack": {
            "scenarios": [
                {
                    "scenario": "cross-gradient",
                    "round": 100,
                    "model_owner": 1,
                    "victim": 0,
                    "preset": "inverting-gradients",
                    "rows": [
                        {
                            "name": name,
                            "mse": [scores[name][0], scores[name][0] * 1.3],
                            "psnr": [scores[name][1], scores[name][1] - 1.0],
                            "ssim": [scores[name][2], scores[name][2] * 0.9],
                            "mean": dict(zip(("mse", "psnr", "ssim"), scores[name], strict=True)),
                            "stage": ["", ""] if name == "blind guess" else ["adam", "prior"],
                            "images": [
                                f"attacks/{name.replace(' ', '-')}{k}.png" for k in range(2)
                            ],
                        }
                        for name in ROWS
                    ],
                    "originals": ["attacks/original0.png", "attacks/original1.png"],
                    "records": "public test records planted in the victim's batch",
                    "conclusion": "No leak shown: the attack is no better than the blind guess.",
                    "adversary": "eavesdropper",
                    "bound": {
                        "most": 0.3,
                        "rebuilt": 0,
                        "images": 2,
                        "sentence": "None of two was rebuilt; the proof allows 30 in 100.",
                    },
                }
            ]
        },
        "audit": None,
        "assumptions": [
            {"text": "Each example is clipped to the clip norm", "status": "verified"},
            {
                "text": "Clip norm, rounds and graph do not depend on private data",
                "status": "assumed",
            },
            {"text": "The noise is floating-point Gaussian, not discrete", "status": "gap"},
        ],
        "reproduce": {
            "commands": ["overhear train run.toml --out DIR", "overhear attack DIR"],
            "environment": {"python": "3.11.7", "packages": {"torch": "2.13.0"}},
            "files": {
                "run.toml": "d58f77918cb63171335bbec7dfd637d836a9787f5c1c976a1ea14b01a1d6c9d1"
            },
        },
    }
