"""Least squares whose quadratic differs between agents by a rotation.

    f_i(w, b) = (w - c_i)' H_i (w - c_i) + b^2 + s^2,    H_i = R^i H R^-i,   c_i = R^i c

The mean over the records (a, t) of agent i of (a'w + b - t)^2 is this quadratic, exactly and not in
expectation: its inputs have mean 0 and second moments H_i, and t = a'c_i + r with residuals r that
have mean 0 and deviation s, and are orthogonal to the inputs.

| symbol | name here | shape  | meaning                                                        |
|--------|-----------|--------|----------------------------------------------------------------|
| w, b   |           | (d+1,) | parameters of the network "linear" of one output               |
| H      |           | (d, d) | diagonal: 1, 1/condition, 1, 1/condition, ...                  |
| c      | centre    | (d,)   | agent 0's optimum, all entries 1 / sqrt(d)                     |
| R      | rotation  | (d, d) | turns coordinates 0 and 1, 2 and 3, ... by degrees             |
| s      | spread    | scalar | deviation of the residuals                                     |
|        | records   | scalar | of each agent; the test part has as many, of the same quadratic |

The mean over agents is least at w* = (sum_i H_i)^-1 sum_i H_i c_i, b* = 0, which `optimum` has.

In the form "whisper" they are those of A. Rodio, Z. Chen, E. G. Larsson, "Whisper D-SGD", 2025,
arXiv 2501.14644, section VI-A, with agents i = 1, ..., A, of which the second half is turned:

    i <= A/2:  15 (w_1 + i)^2 + w_2^2          i > A/2:  15 (w_1 - i)^2 + w_2^2, about (i, 0)

A turn the other way mirrors w_2 in all of them.

Where we differ from the paper: the network has an intercept, of which the loss has b^2 and s^2. The
other quadratics are ours. Nobody's data are in either: they are for evaluations.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...privacy.errors import InputError, within
from ...privacy.files import MOST_VALUES
from .load import Dataset

_Matrix = NDArray[np.float64]


def quadratic(
    agents: int,
    *,
    form: Literal["whisper"] | None = None,
    dimension: int = 2,
    rotation: float = 15.0,
    condition: float = 10.0,
    records: int = 100,
    spread: float = 0.1,
    seed: int = 0,
) -> Dataset:
    """The records of all agents, each record with the agent that holds it.

    Args:
        agents: A.
        form: "whisper", that paper's; None turns each agent's quadratic from the one before.
        dimension: d, inputs of a record, at least 2; of "whisper" 2.
        rotation: degrees between an agent and the next; of "whisper" between the two halves.
        condition: largest curvature over the smallest, at least 1; no effect in "whisper".
        records: of each agent, at least d + 2.
        spread: deviation of the residuals, at least 0; with 0 all records agree on the optimum.
        seed: public; decides the records and not the quadratics.

    Raises:
        ValueError: a number is out of range.
    """
    _check(agents, dimension=dimension, records=records, condition=condition, spread=spread)
    if form not in (None, "whisper"):
        raise InputError(f"form={form!r:.40} must be 'whisper', or None for ours")
    if not math.isfinite(rotation):
        raise InputError(f"rotation={rotation} must be a finite number of degrees")
    draw = np.random.default_rng(seed)
    if form == "whisper":
        halves = np.arange(1, agents + 1) > agents / 2  # who is in the second one
        turns = [_turn(2, math.radians(rotation * second)) for second in halves]
        curvature = np.array([15.0, 1.0])
        centres = [np.array([i if halves[i - 1] else -i, 0.0]) for i in range(1, agents + 1)]
    else:
        # Each agent's quadratic is the one of the agent before, turned once more.
        turns = [_turn(dimension, math.radians(rotation * i)) for i in range(agents)]
        curvature = np.where(np.arange(dimension) % 2, 1.0 / condition, 1.0)  # (d,)
        centres = [turn @ np.full(dimension, dimension**-0.5) for turn in turns]
    # Records whose least squares are that quadratic.
    parts = [
        [
            _least_squares(turn, curvature, centre, records=records, spread=spread, draw=draw)
            for turn, centre in zip(turns, centres, strict=True)
        ]
        for _ in ("train", "test")
    ]
    (inputs, targets), (test_inputs, test_targets) = map(_joined, parts)
    # The optimum of the sum of all quadratics, in closed form.
    hessians = [(turn * curvature) @ turn.T for turn in turns]
    pulls = [h @ centre for h, centre in zip(hessians, centres, strict=True)]
    best = np.linalg.solve(np.sum(hessians, axis=0), np.sum(pulls, axis=0))
    return Dataset(
        name="quadratic",
        inputs=inputs,
        targets=targets,
        test_inputs=test_inputs,
        test_targets=test_targets,
        classes=0,
        outputs=1,
        mean=(0.0,),
        std=(1.0,),
        image=False,
        held_by=torch.arange(agents).repeat_interleave(records),
        optimum=torch.from_numpy(np.append(best, 0.0)),
    )


def _check(agents: int, *, dimension: int, records: int, condition: float, spread: float) -> None:
    within("dimension", dimension, "[2, inf)", ": a rotation takes two")
    if records < dimension + 2:
        raise InputError(
            f"records={records} must be at least {dimension + 2}, dimension + 2: fewer cannot have "
            "these second moments"
        )
    within("condition", condition, "[1, inf)")
    within("spread", spread, "[0, inf)")
    numbers = 2 * agents * (records * (dimension + 1) + dimension**2)
    if agents < 1 or numbers > MOST_VALUES:
        raise InputError(
            f"agents={agents} with records={records} of dimension={dimension} are {numbers} "
            f"numbers; they must be at least 1 agent and at most {MOST_VALUES} numbers"
        )


def _turn(dimension: int, angle: float) -> _Matrix:
    """The rotation of coordinates 0 and 1, 2 and 3, ...; a last odd one stays."""
    found = np.eye(dimension)
    cosine, sine = math.cos(angle), math.sin(angle)
    for k in range(0, dimension - 1, 2):
        found[k : k + 2, k : k + 2] = [[cosine, -sine], [sine, cosine]]
    return found


def _least_squares(
    turn: _Matrix,
    curvature: _Matrix,
    centre: _Matrix,
    *,
    records: int,
    spread: float,
    draw: np.random.Generator,
) -> tuple[_Matrix, _Matrix]:
    """Inputs (m, d) and targets (m,) of one agent."""
    # An orthonormal basis whose first vector is that of ones: the others have mean 0.
    drawn = draw.standard_normal((records, len(curvature) + 2))
    drawn[:, 0] = 1.0
    basis = np.linalg.qr(drawn)[0] * math.sqrt(records)
    inputs = (basis[:, 1:-1] * np.sqrt(curvature)) @ turn.T
    return inputs, inputs @ centre + spread * basis[:, -1]


def _joined(parts: list[tuple[_Matrix, _Matrix]]) -> tuple[Tensor, Tensor]:
    inputs, targets = (np.concatenate(one).astype(np.float32) for one in zip(*parts, strict=True))
    return torch.from_numpy(inputs), torch.from_numpy(targets)
