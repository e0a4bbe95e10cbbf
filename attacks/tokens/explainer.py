"""How much of a gradient records of tokens explain, under the labels that explain it best.

The mean of clipped gradients is linear in how often each record has each label: with G the
gradients of every record under every label,

    gradient = G w,    w >= 0,    sum w = 1,    w in multiples of 1 / B

Non-negative least squares give w, which says how often a record is in the batch too. Where the mean
is clipped and not each record, the sum is free, and so it is where the loss is a multiple of the
declared one. Of any other loss of the logits z a record's gradient lies in the span of its dz_c/dw.

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

from ...training.models.parameters import unflatten
from ..problem.observation import Observation, twice_differentiable
from .layers import dense, token_loss

DECLARED, SCALED, ANY = "declared", "scaled", "any"  # losses that a batch may explain a gradient by
UNKNOWN = -1


def ends(tokens: Tensor) -> Tensor:
    """(B,) last places of texts (B, L) that may end earlier, with -1 behind."""
    return (tokens >= 0).sum(dim=1) - 1


_LABELS = 4  # classes a record that are tried as its label, beside the tokens


def likely_labels(rows: Tensor, tokens: Tensor, *, records: int) -> tuple[int, ...]:
    """Classes of an output that shares the table: those that hold the directions, and the tokens.

    Of a record the label has the largest coefficient, |p - 1| = sum of all other p. So its row is
    among those with the largest share of a direction, whatever size that has.

    Args:
        rows: (V, d) gradient of the table.
        tokens: (S,) tokens of the batch, whose rows hold more.
        records: number B of records.
    """
    every = torch.arange(len(rows))
    classes = every[~torch.isin(every, tokens)]
    along = torch.linalg.svd(rows[classes], full_matrices=False)[0][:, :records]
    most = along.square().sum(dim=1).topk(min(_LABELS * records, len(classes))).indices
    return tuple(torch.cat([classes[most], tokens]).unique().tolist())


_HEAVY = 10.0  # weight of the sum's equation, in units of the gradient's norm
_COLUMNS = 512  # records times classes that are solved for at once
_SPLIT = 256  # records whose logits are computed at once
_FOLLOWING = 8  # tokens that are tried after a record
_STEP = 1e-5  # of the parameters' norm, along which logits are compared
_FREE = 2**26  # numbers of the derivatives of a record's logits, which are fitted under any loss
_SPANNED = 1e-14  # of the largest squared singular value: a direction that is spanned
_PASSES = 4


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
    """Gradients of single records, each computed once; in float64.

    Labels are those that are given, else those that are likely, else all classes. `follows` says
    whether they are the tokens that follow, of a language model, and `loss` by which loss a batch
    explains the gradient.
    """

    observation: Observation
    model: nn.Module
    classes: int
    given: tuple[int, ...] | None = None
    likely: tuple[int, ...] | None = None
    follows: bool = False
    loss: str = DECLARED
    held: dict[tuple[tuple[int, ...], int], Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.model = dense(self.model).double()
        self.observation = self.observation.to(dtype=torch.float64)

    @property
    def labels(self) -> list[int]:
        """Classes that a record may have."""
        known = self.likely if self.given is None else self.given
        return list(range(self.classes)) if known is None else sorted(set(known))

    def logits(self, records: Tensor) -> Tensor:
        """(N, C) logarithms of the probabilities of records (N, L), or (N, L V), as `_at`.

        The outputs as they are under another loss, or where there is one.
        """
        outputs = self.at(records)
        as_they_are = self.loss == ANY or outputs.shape[-1] == 1
        return (outputs if as_they_are else outputs.log_softmax(dim=-1)).flatten(1)

    def at(self, records: Tensor) -> Tensor:
        """(N, C) or (N, L, V) logits of records (N, L)."""
        return self._at(self.observation.points[0, 0], records)

    def _at(self, point: Tensor, records: Tensor) -> Tensor:
        """(N, C) or (N, L, V) logits of records (N, L) at parameters (D,)."""
        values = unflatten(self.model, point)
        with torch.no_grad(), twice_differentiable():
            parts = records.clamp_min(0).split(_SPLIT)
            return torch.cat([functional_call(self.model, values, (some,)) for some in parts])

    def _likely(self, records: Sequence[Tensor]) -> list[list[int]]:
        """Labels that each of some records may have; of a language model the tokens after it.

        What the batch sends under label 0, less what is observed, is a sum over records of the
        derivatives of the label's last logit less that of 0. So along that direction of the output
        layer the logits of the labels grow, and others hardly do.
        """
        point, together = self.observation.points[0, 0], torch.stack(list(records))
        if not self.follows or self.given is not None:
            return [self.labels] * len(records)
        logits = self._at(point, together)
        sent = torch.stack([self.gradient(record, 0) for record in records]).mean(dim=0)
        seen = self.observation.gradient.flatten()
        left = (sent * (sent @ seen) / (sent @ sent) - seen)[: len(point)]
        output = [p.new_full(p.shape, len(p) == self.classes) for p in self.model.parameters()]
        left = left * torch.cat([part.flatten() for part in output])
        step = _STEP * point.norm() / left.norm().clamp_min(1e-300)
        grown = self._at(point + step * left, together) - logits
        grown = grown[torch.arange(len(together)), ends(together)]
        batch = min(len(records), self.observation.records)
        most = grown.topk(min(_FOLLOWING + batch, self.classes), dim=1).indices
        return [sorted({0, *row}) for row in most.tolist()]

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
            fed = record[None].clamp_min(0)
            logits = functional_call(self.model, unflatten(self.model, flat), (fed,))
        loss = token_loss(logits, record[None], torch.tensor([label]))
        (slope,) = torch.autograd.grad(loss, flat)
        [coef] = seen.coefs
        slope = slope if seen.clip_parts else coef * slope
        if seen.clip_norm is not None and seen.mean_of is None:
            slope = slope * min(1.0, seen.clip_norm / max(float(slope.norm()), 1e-300))
        return coef * slope if seen.clip_parts else slope

    def sent(self, tokens: Tensor, labels: Tensor) -> Tensor:
        """(K, D) gradients of a batch (B, L) with labels (B,)."""
        seen = self.observation
        if self.loss == ANY:
            span = torch.cat([self.derivatives(record) for record in tokens])
            if not bool(span.isfinite().all()):
                return torch.full_like(seen.gradient, torch.inf)
            return _projected(seen.gradient, span)
        rows = [self.gradient(t, int(y)) for t, y in zip(tokens, labels, strict=True)]
        sent = torch.stack(rows).sum(dim=0).reshape(seen.gradient.shape)
        sent = sent / (float(seen.records) if seen.mean_of is None else seen.mean_of)
        if seen.mean_of is not None and seen.clip_norm is not None:
            norms = sent.norm(dim=1, keepdim=True)
            sent = sent * (seen.clip_norm / norms.clamp_min(1e-300)).clamp_max(1.0)
        if self.loss == SCALED:
            fit = (sent * seen.gradient).sum() / sent.square().sum().clamp_min(1e-300)
            sent = sent * fit.clamp_min(0.0)
        return sent

    def derivatives(self, record: Tensor) -> Tensor:
        """(C, D) of a record's logits in the parameters."""
        key = (tuple(record.tolist()), UNKNOWN)
        if key not in self.held:
            flat = self.observation.points[0, 0].detach().clone().requires_grad_()
            with twice_differentiable():
                logits = functional_call(self.model, unflatten(self.model, flat), (record[None],))
            rows = [torch.autograd.grad(z, flat, retain_graph=True)[0] for z in logits[0]]
            if len(self.held) * len(rows) * len(flat) > _FREE:
                self.held.clear()
            self.held[key] = torch.stack(rows)
        return self.held[key]

    def explained(self, records: Sequence[Tensor], *, allowed: float) -> Batch | None:
        """The batch of these records under the first loss by which it explains the gradient.

        That loss is kept; where none does the batch is that of the declared one.
        """
        for self.loss in (SCALED, ANY):
            batch = self.labelled(records)
            if batch is not None and batch.residual <= allowed:
                return batch
        self.loss = DECLARED
        return None

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
        if not records:
            return None
        if self.loss == ANY:
            return self._under_any(torch.stack(list(records)))
        likely = zip(records, self._likely(records), strict=True)
        columns = [(record, label) for record, labels in likely for label in labels]
        if len(columns) > _COLUMNS:
            return None
        weights = self._weights(torch.stack([self.gradient(*column) for column in columns]))
        if weights is None:
            return None
        chosen = _rounded(weights, self.observation.records)
        at = np.repeat(np.arange(len(columns)), chosen).tolist()
        tokens = torch.stack([columns[index][0] for index in at])
        labels = torch.tensor([columns[index][1] for index in at])
        return Batch(tokens=tokens, labels=labels, residual=self.residual(tokens, labels))

    def _under_any(self, records: Tensor) -> Batch | None:
        """The batch of those records (N, L) that add most under a loss that is not known.

        Of fewer than B records one may be there twice, or any other without a derivative.
        """
        seen, each = self.observation, self.classes * self.observation.gradient.numel()
        if self.follows or len(seen.gradient) > 1 or not seen.records <= len(records):
            return None
        if len(records) * each > _FREE:
            return None
        if len(records) > seen.records:
            rows = torch.cat([self.derivatives(record) for record in records])
            factors = torch.linalg.lstsq(rows.T, seen.gradient.T, driver="gelsd").solution
            added = (rows * factors).reshape(len(records), self.classes, -1).sum(dim=1)
            records = records[added.norm(dim=1).topk(seen.records).indices.sort().values]
        unknown = torch.full((len(records),), UNKNOWN)
        return Batch(tokens=records, labels=unknown, residual=self.residual(records, unknown))

    def _weights(self, rows: Tensor) -> np.ndarray | None:
        """(columns,) share of each record under each label."""
        seen = self.observation
        size = float(seen.gradient.norm())
        # Rows are projected onto what they span, so that D does not count.
        basis, left = torch.linalg.qr(rows.T / size)
        right = basis.T @ seen.gradient.flatten() / size
        if seen.mean_of is None and self.loss == DECLARED:
            left = torch.cat([left, left.new_full((1, len(rows)), _HEAVY)])
            right = torch.cat([right, right.new_full((1,), _HEAVY)])
        try:
            weights, _ = nnls(left.numpy(), right.numpy())
        except (RuntimeError, ValueError):  # it did not converge, or a gradient is not finite
            return None
        return weights / weights.sum() if weights.sum() > 0 else None


def _projected(values: Tensor, rows: Tensor) -> Tensor:
    """(K, D) the part of values (K, D) in the span of rows (R, D), fewer than D.

    By normal equations, which cost a thirtieth of a decomposition; each pass takes what the one
    before left by rounding.
    """
    rows = rows / rows.norm(dim=1, keepdim=True).clamp_min(1e-300)
    inverse = torch.linalg.pinv(rows @ rows.T, rtol=_SPANNED, hermitian=True)
    found = torch.zeros_like(values)
    for _ in range(_PASSES):
        found = found + ((values - found) @ rows.T @ inverse) @ rows
    return found


def _rounded(weights: np.ndarray, records: int) -> list[int]:
    """Whole numbers that sum to a number of records, in proportion to weights."""
    shares = weights * records
    counts = np.floor(shares + 1e-6).astype(int)
    while counts.sum() < records:
        counts[int(np.argmax(shares - counts))] += 1
    while counts.sum() > records:
        counts[int(np.argmin(np.where(counts > 0, shares - counts, np.inf)))] -= 1
    return [int(count) for count in counts]
