"""Scores of canaries under a mechanism that is exactly as declared, for tests of the estimators."""

import math

import numpy as np
from numpy.typing import NDArray

from overhear.attacks.bounds.mechanism import Claim
from overhear.privacy.accounting.request import Adjacency
from overhear.privacy.errors import InputError

__all__ = ["simulated_scores"]

_CHUNK = 65_536  # canaries whose arrays stay in the cache together
_LARGEST = np.float32(80.0)  # exp of more overflows in single precision


def simulated_scores(
    claim: Claim, included: NDArray[np.bool_], *, generator: np.random.Generator
) -> NDArray[np.float64]:
    """Draw the log-likelihood ratio of every canary over all rounds of the claim.

    Args:
        claim: the mechanism, with noise and at least one round that has any effect.
        included: of any shape, whether the coin put the canary in; +u or -u for "replace-one".
        generator: of participation and noise.

    Returns:
        Ratios in nats, of the same shape. A canary adds the whole sensitivity to a sum; what a
        proof allows for within a ball is more under "replace-one".

    Raises:
        ValueError: a round has no noise.

    >>> coins = np.array([True, False, True, False])
    >>> claim = Claim(rounds={(1.0, 0.5): 100})
    >>> simulated_scores(claim, coins, generator=np.random.default_rng(0)).round(1)
    array([  6.4, -18. ,  20.4,  -2.9])
    """
    flat = np.asarray(included, dtype=np.bool_).ravel()
    scores = np.zeros(flat.size)
    for start in range(0, flat.size, _CHUNK):
        part = slice(start, start + _CHUNK)
        scores[part] = _ratios(claim, flat[part], generator)
    return scores.reshape(np.shape(included))


def _ratios(
    claim: Claim, included: NDArray[np.bool_], generator: np.random.Generator
) -> NDArray[np.float64]:
    """(m,) sum over rounds of log P(z | in) / P(z | out)."""
    replaced = claim.adjacency is Adjacency.REPLACE_ONE
    total = np.zeros(included.size)
    for event, count in claim.events.items():
        multiplier, rate = event.noise_multiplier, event.moves.rate
        if multiplier == 0.0:
            raise InputError(
                f"noise_multiplier={multiplier} must be above 0: the ratio is infinite"
            )
        distance = 1.0 / multiplier  # in noise standard deviations
        if rate == 1.0 or distance == 0.0:  # all rounds at once: a sum of normals
            total += _gaussian(distance * math.sqrt(count), included, replaced, generator)
            continue
        signs = np.where(included, distance, -distance if replaced else 0.0).astype(np.float32)
        for _ in range(count if rate > 0.0 else 0):
            z = generator.standard_normal(included.size, dtype=np.float32)
            z += signs * (generator.random(included.size, dtype=np.float32) < rate)
            total += _log_mixture(z, distance, rate)
            if replaced:
                total -= _log_mixture(z, -distance, rate)
    return total


def _gaussian(
    distance: float, included: NDArray[np.bool_], replaced: bool, generator: np.random.Generator
) -> NDArray[np.float64]:
    """(m,) ratios between normals `distance` apart, or twice that around the middle."""
    mu = 2.0 * distance if replaced else distance
    noise = generator.standard_normal(included.size)
    return mu * (noise + np.where(included, 0.5, -0.5) * mu)


def _log_mixture(z: NDArray[np.float32], distance: float, rate: float) -> NDArray[np.float32]:
    """Log of (1 - q) N(0, 1) + q N(distance, 1) against N(0, 1), at z."""
    exponents = np.float32(distance) * z - np.float32(0.5 * distance**2)
    largest = np.minimum(exponents, _LARGEST)
    ratio = np.log(np.float32(1.0 - rate) + np.float32(rate) * np.exp(largest))
    return np.asarray(ratio + (exponents - largest), dtype=np.float32)
