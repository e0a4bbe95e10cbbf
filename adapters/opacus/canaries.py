"""Canaries whose gradients an audit chooses: what an adversary could plant that chooses gradients.

Canary c has a coordinate k_c of its own. Wherever its record is in a batch, its per-example
gradient is replaced, before Opacus clips, by

    10 C e_(k_c)             C the clip norm; sound clipping makes C e_(k_c) of it

so that canaries do not disturb each other. Of a step's noisy sum y the adversary, who knows all
other records, takes u = (y - ordinary)_(k_c) / std, and scores by the log-likelihood ratio

    sum_t log(1 - q + q exp(mu u_t - mu^2 / 2)),     mu = C / std, q the sampling rate

of N(0, 1) mixed with N(mu, 1) against N(0, 1): it does not know in which batches the canary was.

Source: Nasr et al. 2023, "Tight Auditing of Differentially Private Machine Learning", whose Dirac
canaries these are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...attacks.foreign.planted import Planted
from ...privacy.errors import InputError

__all__ = ["GradientCanaries", "ratio"]

_LONGER = 10.0  # than the clip norm, so that a canary shows whether anything is clipped


class GradientCanaries:
    """The canaries of one training.

    Args:
        planted: the data set that they are in.
        sizes: of each tensor of parameters, in numbers.

    Raises:
        ValueError: more canaries than coordinates.
    """

    def __init__(self, planted: Planted, sizes: Sequence[int]) -> None:
        self.planted, self._sizes = planted, list(sizes)
        total = sum(self._sizes)
        if planted.count > total:
            raise InputError(
                f"{planted.count} canaries need a coordinate each, and the model has {total} "
                f"parameters; play more trainings with per_run={total} or less"
            )
        # Evenly over all layers; there is nothing secret in them.
        self._at: NDArray[np.int64] = np.arange(planted.count) * total // planted.count
        self._first = int(planted.positions[0])
        self._ordinary = torch.zeros(planted.count, dtype=torch.float64)
        self.scores = np.zeros(planted.count)

    def plant(
        self, samples: Sequence[Tensor], present: Sequence[int], *, clip: float
    ) -> list[Tensor]:
        """Per-example gradients with those of canaries replaced.

        Args:
            samples: (B, *shape) of each tensor of parameters.
            present: (B) positions of the rows.
            clip: the clip norm.
        """
        inside = [(row, at - self._first) for row, at in enumerate(present) if at >= self._first]
        ordinary = [row for row, at in enumerate(present) if at < self._first]
        flat = torch.cat([of.detach().reshape(len(of), -1) for of in samples], dim=1)
        self._ordinary = self._clipped_sum(flat[ordinary], clip)
        for row, canary in inside:
            flat[row] = 0.0
            flat[row, int(self._at[canary])] = _LONGER * clip
        parts = flat.split(self._sizes, dim=1)
        return [part.reshape(of.shape) for part, of in zip(parts, samples, strict=True)]

    def note(self, noisy: Tensor, *, std: float, clip: float, rate: float) -> None:
        """Add up what a step shows of each canary.

        Args:
            noisy: (D,) the noisy sum.
            std: of its noise, as declared.
            clip: the clip norm.
            rate: at which records are drawn.
        """
        at = torch.from_numpy(self._at).to(noisy.device)
        left = (noisy.detach()[at].double().cpu() - self._ordinary).numpy()
        # Without noise nothing is claimed; whatever is left of a canary then shows it.
        self.scores += left / clip if std == 0 else ratio(left / std, mu=clip / std, rate=rate)

    def _clipped_sum(self, rows: Tensor, clip: float) -> Tensor:
        """(m,) the sum of clipped gradients, at the canaries' coordinates."""
        factors = (clip / rows.norm(dim=1).clamp(min=clip)).to(rows.dtype)
        at = torch.from_numpy(self._at).to(rows.device)
        return (factors @ rows)[at].double().cpu()


def ratio(u: NDArray[np.float64], *, mu: float, rate: float) -> NDArray[np.float64]:
    """Log-likelihood ratio of a step in which a record is at the rate, against none, in nats.

    >>> round(float(ratio(np.array([2.0]), mu=1.0, rate=1.0)[0]), 2)
    1.5
    >>> round(float(ratio(np.array([2.0]), mu=1.0, rate=0.1)[0]), 3)
    0.299
    """
    if rate >= 1.0:
        return mu * u - mu**2 / 2.0
    if rate <= 0.0:
        return np.zeros_like(u)
    inside = math.log(rate) + mu * u - mu**2 / 2.0
    return np.logaddexp(math.log1p(-rate), inside)
