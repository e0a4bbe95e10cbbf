"""A small gossiping system for tests, recorded as its code says, with a fault planted or none."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from overhear.runs.recorder.conformance import conformance
from overhear.runs.recorder.outcome import Conformance
from overhear.runs.recorder.record import record

AGENTS, D, RECORDS, ROUNDS = 2, 48, 100, 8
CLIP, STD, RATE, STEP = 1.0, 1.5, 0.2, 0.05
START = torch.zeros(D, dtype=torch.float64)
_X = torch.from_numpy(np.random.default_rng(0).normal(size=(AGENTS, RECORDS, D)))
_Y = _X @ torch.linspace(-1, 1, D, dtype=torch.float64)


def gradients(point: Tensor, positions: np.ndarray, agent: int) -> Tensor:
    at = torch.from_numpy(positions)
    x, y = _X[agent][at], _Y[agent][at]
    return (x @ point.double() - y)[:, None] * x / (2 * D**0.5)


def clipped(each: Tensor) -> Tensor:
    return (each * (CLIP / each.norm(dim=1, keepdim=True)).clamp(max=1.0)).sum(dim=0)


def start_of(round: int, agent: int, released: Sequence[Any]) -> Tensor | None:
    last = [one.value for one in released if one.round == round - 1]
    return torch.stack(last).mean(dim=0) if last else None


def play(
    folder: Path,
    *,
    seed: int = 0,
    fault: str = "",
    own_noise: bool = True,
    own_batches: bool = True,
    rounds: int = ROUNDS,
    **how: Any,
) -> Path:
    """Train two agents and record them; all that is drawn by the code's own means is seeded."""
    chance = np.random.default_rng(seed)
    order = [chance.permutation(RECORDS) for _ in range(AGENTS)]
    fixed = [np.flatnonzero(chance.random(RECORDS) < RATE) for _ in range(AGENTS)]
    model, kept_noise = START, dict[str, Tensor]()
    declared = {"rounds": rounds, "scale": -STEP, "noise": STD}
    given = {"agents": AGENTS, "clip": CLIP, "rate": RATE, "keep": "all", **declared, **how}
    if own_batches:
        given["sampler"] = "poisson"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ledgers = [record(folder / f"{k}.jsonl", agent=k, **given) for k in range(AGENTS)]
    for t in range(1, rounds + 1):
        sent = []
        for k, ledger in enumerate(ledgers):
            if fault == "shuffled":
                size = int(RATE * RECORDS)
                batch = np.roll(order[k], -size * t)[:size]
            elif fault == "fixed":
                batch = fixed[k]
            elif own_batches:
                batch = np.flatnonzero(chance.random(RECORDS) < RATE)
            else:
                batch = ledger.batch(RECORDS)
            point = model
            if fault == "private point":
                point = model - STEP * clipped(gradients(model, np.arange(9), k))
            each = gradients(point, batch, k)
            g = each.sum(dim=0) if fault == "no clipping" else clipped(each)
            g = g * (2.0 if fault == "another weight" else 1.0)
            known = point
            if fault == "hidden term" and t == 3 and k == 1:
                known = point - STEP * clipped(gradients(point, np.arange(30), k))
            if fault == "extra term" and t == 3 and k == 1:
                g = g + 0.3 * clipped(gradients(point, np.arange(30), k))
            noise = (
                torch.from_numpy(chance.normal(0.0, STD, D))
                if own_noise
                else ledger.noise(D, STD, like=g)
            )
            if fault == "noise halved":
                noise = noise / 2
            if fault == "uniform noise":
                noise = torch.from_numpy(chance.uniform(-(3**0.5), 3**0.5, D)) * STD
            if fault == "bfloat16 noise":
                noise = noise.bfloat16().double()
            if fault == "float16 draws":
                noise = STD * (noise / STD).half().double()
            name = {"one seed for both": f"{t}", "one seed for two rounds": f"{k} {t // 2}"}
            if fault in name:
                noise = kept_noise.setdefault(name[fault], noise)
            step = 1.3 * STEP if fault == "another scale" else STEP
            value = known - step * (g + noise)
            ledger.release(
                t, kind="model", to=1 - k, noise=STD,
                value=value, batch=batch, point=point, known=known, scale=-STEP,
                rows=each if own_noise else None,
            )  # fmt: skip
            sent.append(value)
        model = torch.stack(sent).mean(dim=0)
    for ledger in ledgers:
        ledger.close()
    return folder


def checked(folder: Path, **how: Any) -> Conformance:
    given: dict[str, Any] = {
        "gradients": gradients,
        "points": start_of,
        "public": [START],
        "records": dict.fromkeys(range(AGENTS), RECORDS),
        **how,
    }
    return conformance(folder, **given)


FAULTS: list[tuple[str, bool, str]] = [
    # what is planted, whether noise is the code's own, the check that finds it
    ("noise halved", True, "residuals"),
    ("noise halved", False, "messages"),
    ("uniform noise", True, "residuals"),
    ("bfloat16 noise", True, "residuals"),
    ("float16 draws", True, "residuals"),
    ("one seed for both", True, "residuals"),
    ("one seed for two rounds", True, "residuals"),
    ("no clipping", True, "sums"),
    ("no clipping", False, "messages"),
    ("another weight", True, "sums"),
    ("another scale", True, "residuals"),
    ("another scale", False, "messages"),
    ("extra term", False, "messages"),
    ("shuffled", True, "sampler"),
    ("fixed", True, "sampler"),
    ("private point", True, "points"),
    ("hidden term", True, "points"),
]
