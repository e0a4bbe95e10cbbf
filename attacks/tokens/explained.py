"""How much of a gradient records of tokens explain, under the labels that explain it best.

The mean of clipped gradients is linear in how often each record has each label: with G the
gradients of every record under every label,

    gradient = G w,    w >= 0,    sum w = 1,    w in multiples of 1 / B

Non-negative least squares give w, which says how often a record is in the batch too. Where the mean
is clipped and not each record, the sum is free.

Shape letters: B records, U different ones, C classes, D parameters, L positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from scipy.optimize import nnls
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from ...training.models.parameters import unflatten
from ..problem.observation import Observation, twice_differentiable
from .layers import dense

_HEAVY = 10.0  # weight of the sum's equation, in units of the gradient's norm
_COLUMNS = 512  # records times classes that are solved for at once


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Batch:
    """Records under labels, and what they leave of the gradients.

    Attributes:
        tokens: (B, L).
        labels: (B,).
        residual: ||g - o|| / ||o|| over all intercepts.
    """

    tokens: Tensor
    labels: Tensor
    residual: float


@dataclass(slots=True, eq=False)
class Explainer:
    """Gradients of single records, each computed once; in float64."""

    observation: Observation
    model: nn.Module
    classes: int
    given: tuple[int, ...] | None = None
    held: dict[tuple[tuple[int, ...], int], Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.model = dense(self.model).double()
        self.observation = self.observation.to(dtype=torch.float64)

    @property
    def labels(self) -> list[int]:
        """Classes that a record may have."""
        return sorted(set(self.given)) if self.given is not None else list(range(self.classes))

    def gradient(self, record: Tensor, label: int) -> Tensor:
        """(K D,) clipped gradient of one record; unclipped where the mean is clipped."""
        key = (tuple(record.tolist()), label)
        if key not in self.held:
            if len(self.held) > _COLUMNS:
                self.held.clear()
            every = [self._slope(point, record, label) for [point] in self.observation.points]
            self.held[key] = torch.cat(every)
        return self.held[key]

    def _slope(self, point: Tensor, record: Tensor, label: int) -> Tensor:
        """(D,) gradient at one point; of first order alone, where `sent_gradient` gives more."""
        seen = self.observation
        flat = point.detach().clone().requires_grad_()
        with twice_differentiable():  # plain operations, as in the models that were probed
            logits = functional_call(self.model, unflatten(self.model, flat), (record[None],))
        loss = cross_entropy(logits, torch.tensor([label]))
        (slope,) = torch.autograd.grad(loss, flat)
        [coef] = seen.coefs
        slope = slope if seen.clip_parts else coef * slope
        if seen.clip_norm is not None and seen.mean_of is None:
            slope = slope * min(1.0, seen.clip_norm / max(float(slope.norm()), 1e-300))
        return coef * slope if seen.clip_parts else slope

    def sent(self, tokens: Tensor, labels: Tensor) -> Tensor:
        """(K, D) gradients of a batch (B, L) with labels (B,)."""
        seen = self.observation
        rows = [self.gradient(t, int(y)) for t, y in zip(tokens, labels, strict=True)]
        sent = torch.stack(rows).sum(dim=0).reshape(seen.gradient.shape)
        sent = sent / (float(seen.records) if seen.mean_of is None else seen.mean_of)
        if seen.mean_of is not None and seen.clip_norm is not None:
            norms = sent.norm(dim=1, keepdim=True)
            sent = sent * (seen.clip_norm / norms.clamp_min(1e-300)).clamp_max(1.0)
        return sent

    def residual(self, tokens: Tensor, labels: Tensor) -> float:
        """||g - o|| / ||o|| of a batch, both whitened where there is noise."""
        seen = self.observation
        left = seen.whiten(self.sent(tokens, labels) - seen.gradient).norm()
        return float(left / seen.whiten(seen.gradient).norm())

    def distance(self, tokens: Tensor, labels: Tensor) -> float:
        """Squared whitened distance over the variance: -2 log likelihood, up to a constant."""
        seen = self.observation
        left = seen.whiten(self.sent(tokens, labels) - seen.gradient)
        return float(left.square().sum()) / seen.noise_std**2

    def labelled(self, records: Sequence[Tensor]) -> Batch | None:
        """The batch of these records, with how often each is in it and under which labels.

        Args:
            records: (L,) different records, at most B.

        Returns:
            The best batch of B; None where there are too many labels to try.
        """
        columns = [(record, label) for record in records for label in self.labels]
        if not records or len(columns) > _COLUMNS:
            return None
        weights = self._weights(torch.stack([self.gradient(*column) for column in columns]))
        if weights is None:
            return None
        chosen = _rounded(weights, self.observation.records)
        at = np.repeat(np.arange(len(columns)), chosen).tolist()
        tokens = torch.stack([columns[index][0] for index in at])
        labels = torch.tensor([columns[index][1] for index in at])
        return Batch(tokens=tokens, labels=labels, residual=self.residual(tokens, labels))

    def _weights(self, rows: Tensor) -> np.ndarray | None:
        """(columns,) share of each record under each label."""
        seen = self.observation
        size = float(seen.gradient.norm())
        # Rows are projected onto what they span, so that D does not count.
        basis, left = torch.linalg.qr(rows.T / size)
        right = basis.T @ seen.gradient.flatten() / size
        if seen.mean_of is None:
            left = torch.cat([left, left.new_full((1, len(rows)), _HEAVY)])
            right = torch.cat([right, right.new_full((1,), _HEAVY)])
        try:
            weights, _ = nnls(left.numpy(), right.numpy())
        except RuntimeError:
            return None
        return weights / weights.sum() if weights.sum() > 0 else None


def _rounded(weights: np.ndarray, records: int) -> list[int]:
    """Whole numbers that sum to a number of records, in proportion to weights."""
    shares = weights * records
    counts = np.floor(shares + 1e-6).astype(int)
    while counts.sum() < records:
        counts[int(np.argmax(shares - counts))] += 1
    while counts.sum() > records:
        counts[int(np.argmin(np.where(counts > 0, shares - counts, np.inf)))] -= 1
    return [int(count) for count in counts]
