"""Gradients that change slowly: what tells a victim from others where no round does so alone.

Who is two hops away sees one vector a round, in which the gradients of several agents stand
together; no round singles one of them out. But gradients change little from round to round. Taken
as constant, they are fewer unknowns than rounds (Mrini, Cyffers, Bellet, "Privacy Attacks in
Decentralized Learning", ICML 2024). Here they are not constant, but Gaussian:

    victim     g_t = m + d_t,   m anything,   d a random walk from the middle round of its batch,
               whose steps are those that the adversary's own gradients show, WALK at least
    others     g_t ~ N(0, K),   K = a 11^T + b I,  a and b those of the adversary's own gradients

An estimate is then the best linear one for m, without bias in it, and has an error even where no
noise is added: its covariance is what the prior says, and the result counts as approximate.

Where we differ from the paper: there, gradients are constant and the estimate claims to be exact.

Shape letters: T rounds, D parameters, R equations.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ..problem.drift import Drift
from .best_linear_estimate import Weights, best_weights
from .equations import Equations
from .target import Series, Target

WALK = 1e-3  # least variance of a step of the walk, over that of a coordinate of the gradient
_FEWEST = 2  # rounds
_SAMPLES = 8  # of what others leave, an even number


def slow_target(system: Equations) -> tuple[Target, Series] | None:
    """What is constant in a victim's gradients of several rounds; None where there are not two."""
    found = next(
        (of for of in system.series.values() if sum(at >= 0 for at in of.target) >= _FEWEST), None
    )
    if found is None:
        return None
    members = [system.targets[at] for at in found.target if at >= 0]
    middle = members[len(members) // 2]
    name = f"mean over {len(members)} rounds, approximate, at agent {middle.owner}'s model"
    return middle._replace(name=name, columns=(), factors=()), found


def slow_weights(
    system: Equations, victim: Series, *, records: int, batch_size: float
) -> Weights | None:
    """Weights of the equations that estimate it, with the error that the prior leaves.

    Args:
        system: of an adversary that has gradients of its own.
        records: how many records were planted.
        batch_size: how many other batches hold, as expected.

    Returns:
        One row, or none where it is not told; None where the adversary has no gradients of its own.
    """
    own = [of.values for of in system.series.values() if len(of.values) >= _FEWEST]
    if not own:
        return None
    constant, apart = _spread(own[0])
    walk = max(WALK * (constant + apart), _slope(own[0]))
    hidden, E, unknown, noise = system.seen()
    constants = np.array([column for column, at in _members(victim) if at >= 0])
    parts = [E[:, noise].toarray()] if noise else []
    taken = set(constants.tolist())
    for of in system.series.values():
        others = [column for column in of.columns if column in unknown and column not in taken]
        if not others:
            continue
        taken |= set(others)
        block = E[:, others].toarray()
        parts += [math.sqrt(apart) * block, math.sqrt(constant) * block.sum(1, keepdims=True)]
    step = math.sqrt(walk * records / max(batch_size, 1.0))  # of a sum of fewer records
    of_victim = E[:, constants].toarray()
    parts.append(step * of_victim @ _walk(len(constants)))
    left = [column for column in unknown if column not in taken]
    known_not = np.hstack([of_victim.sum(1, keepdims=True), E[:, left].toarray()])
    found = best_weights(known_not, np.hstack(parts), targets=[0])
    rows = np.zeros((len(found.rows), len(hidden)))
    rows[:, hidden] = found.rows
    return Weights(
        rows=rows,
        identified=found.identified,
        covariance=found.covariance,
        clean=tuple(False for _ in found.clean),
    )


def drift_of(system: Equations, victim: Series, weights: Weights, *, scale: float) -> Drift:
    """What the estimate sums of the victim, and samples of what others leave in it.

    The adversary's own gradients of the same rounds stand in for each other agent's, under signs
    that are drawn: alike in the first two samples, as data of one distribution add up, at random in
    the others.

    Args:
        system: of an adversary that has gradients of its own.
        weights: of `slow_weights`.
        scale: units of the estimate over those of the equations.
    """
    hidden, E, unknown, noise = system.seen()
    row = weights.rows[0][hidden]
    share = dict(zip(range(E.shape[1]), np.asarray(E.T @ row).ravel().tolist(), strict=True))
    known = set(unknown)
    own = [torch.stack(of.values) for of in system.series.values() if len(of.values) >= _FEWEST]
    others = [
        of.columns
        for of in system.series.values()
        if of.owner != victim.owner and any(column in known for column in of.columns)
    ]
    drawn = np.random.default_rng(0)  # signs of a picture of the unknown, and no noise of a run
    half = drawn.choice([-1.0, 1.0], size=(_SAMPLES // 2, len(others)))
    half[0] = 1.0
    samples = []
    for number, signs in enumerate(np.concatenate([half, -half])):
        values = own[number % len(own)].double()  # (T, D)
        total = values.new_zeros(values.shape[1])
        for sign, columns in zip(signs.tolist(), others, strict=True):
            each = [share[c] if c in known else 0.0 for c in columns]
            total += sign * values.new_tensor(each[: len(values)]) @ values[: len(each)]
        samples.append(total * scale)
    rounds = [(column, at) for column, at in _members(victim) if at >= 0]
    return Drift(
        points=torch.stack([system.targets[at].points[0] for _, at in rounds]),
        shares=tuple(share[column] for column, _ in rounds),
        others=torch.stack(samples),
        noise_std=float(np.linalg.norm(E[:, noise].T @ row)) * abs(scale) if noise else 0.0,
    )


def _members(series: Series) -> list[tuple[int, int]]:
    return list(zip(series.columns, series.target, strict=True))


def _spread(values: Sequence[Tensor]) -> tuple[float, float]:
    """Variance a coordinate of what is common to all rounds, and of what is not."""
    rows = torch.stack([value.double() for value in values])  # (T, D)
    products = rows @ rows.T / rows.shape[1]
    count = len(rows)
    every = float(products.diagonal().mean())
    common = (float(products.sum()) - count * every) / (count * (count - 1))
    constant = min(max(common, 0.0), every)
    return constant, every - constant


def _slope(values: Sequence[Tensor]) -> float:
    """Variance of a step of the walk, by how squared differences grow with the rounds between."""
    rows = torch.stack([value.double() for value in values])
    lags = [(h, rows[h:] - rows[:-h]) for h in range(1, len(rows))]
    if len(lags) < _FEWEST:
        return 0.0
    grown = np.array([float(of.square().mean()) for _, of in lags])
    return max(float(np.polyfit([h for h, _ in lags], grown, 1)[0]), 0.0)


def _walk(rounds: int) -> np.ndarray:
    """(T, T) a walk's rows over its steps, 0 in the middle round."""
    middle = rounds // 2
    steps = np.zeros((rounds, max(rounds - 1, 1)))
    for row in range(rounds):
        low, high = min(row, middle), max(row, middle)
        steps[row, low:high] = 1.0 if row > middle else -1.0
    return steps
