"""Canaries whose gradients an audit chooses: what an adversary could plant that chooses gradients.

Canary c has a coordinate k_c of its own. Wherever its record is in a batch, its per-example
gradient is replaced, before it is clipped, by

    g C e_(k_c)              C the clip norm; sound clipping makes C e_(k_c) of it

with g from 1 to 1e15, so that canaries do not disturb each other. Of a step's noisy sum y the
adversary, who knows all other records, takes u = (y - ordinary)_(k_c) / std, and scores by the
log-likelihood ratio

    sum_t log(1 - q + q exp(mu u_t - mu^2 / 2)),     mu = C / std, q the sampling rate

of N(0, 1) mixed with N(mu, 1) against N(0, 1): it does not know in which batches the canary was.

Source: Nasr et al. 2023, "Tight Auditing of Differentially Private Machine Learning", whose Dirac
canaries these are.
"""

from __future__ import annotations

import math
import shutil
import tempfile
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...attacks.audit.canaries import drawn_norms, furthest
from ...attacks.audit.canary_noise import DECLARED, log_ratio
from ...attacks.foreign.audit_training import Planted
from ...privacy.errors import InputError
from ...privacy.releases.lines import Release
from ...privacy.releases.values import Clip
from .keeping import as_tensor, positions_of

if TYPE_CHECKING:
    from .labels import Sent


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
        rng = np.random.default_rng()
        far = furthest(torch.float32, 1.0)
        (self._norms,) = drawn_norms(1, planted.count, 0, far=far, generator=rng)
        self._first = int(planted.positions[0])
        self._ordinary = torch.zeros(planted.count, dtype=torch.float64)
        self.scores = np.zeros(planted.count)

    def plant(
        self, samples: Sequence[Tensor], present: Sequence[int], *, clip: float
    ) -> list[Tensor]:
        """Per-example gradients (B, *shape) of each tensor, those of canaries replaced.

        Args:
            present: (B) positions of the rows.
        """
        inside = [(row, n - self._first) for row, n in enumerate(present) if n >= self._first]
        ordinary = [row for row, n in enumerate(present) if n < self._first]
        flat = torch.cat([of.detach().reshape(len(of), -1) for of in samples], dim=1)
        # The sum of the clipped gradients of others, at the canaries' coordinates.
        rows, at = flat[ordinary], torch.from_numpy(self._at).to(flat.device)
        factors = (clip / rows.norm(dim=1).clamp(min=clip)).to(rows.dtype)
        self._ordinary = (factors @ rows)[at].double().cpu()
        most = max(1.0, math.sqrt(torch.finfo(flat.dtype).max) / 4 / max(1.0, clip))  # is squared
        for row, canary in inside:
            flat[row] = 0.0
            flat[row, int(self._at[canary])] = min(self._norms[canary], most) * clip
        parts = flat.split(self._sizes, dim=1)
        return [part.reshape(of.shape) for part, of in zip(parts, samples, strict=True)]

    def note(self, noisy: Tensor, *, std: float, clip: float, rate: float) -> None:
        """Add up what a step shows of each canary by its noisy sum (D,), as it is declared."""
        at = torch.from_numpy(self._at).to(noisy.device)
        left = (noisy.detach()[at].double().cpu() - self._ordinary).numpy()
        # Without noise nothing is claimed; whatever is left of a canary then shows it.
        if std == 0:
            self.scores += left / clip
        else:
            s, v = left * clip / std**2, np.full_like(left, (clip / std) ** 2)
            self.scores += log_ratio(DECLARED, s, v, q=rate, replace=False)


class PlantedRows:
    """The canaries of a training that a recorder sees, planted in rows and scored by release."""

    def __init__(self, planted: Planted) -> None:
        self._planted = planted
        self._made: GradientCanaries | None = None
        self._batch: NDArray[np.int64] | None = None

    def plant(self, rows: Any, batch: Any, *, clip: float | None) -> Any:
        """(B, D) rows, those of canaries replaced; see `GradientCanaries.plant`."""
        given, at = torch.as_tensor(rows), positions_of(batch)
        if given.ndim != 2 or len(given) != len(at):
            raise InputError(
                f"rows of shape {tuple(given.shape)} for a batch of {len(at)}; give (B, D), the "
                "gradient of each record of the batch"
            )
        if clip is None or isinstance(clip, Clip) or not math.isfinite(clip):
            raise InputError(
                "canaries need one clip norm, to which vectors are scaled as a whole; give "
                "record(..., clip=...) as a number"
            )
        if self._made is None:
            self._made = GradientCanaries(self._planted, [given.shape[1]])
        self._batch = at
        (found,) = self._made.plant([given], np.asarray(batch).tolist(), clip=clip)
        return found.numpy() if isinstance(rows, np.ndarray) else found

    def check(self, release: Release, sent: Sent, batch: NDArray[np.int64] | None) -> None:
        """Refuse a release whose canaries could not be scored."""
        if not release.of:
            return
        if self._batch is None or (batch is not None and not np.array_equal(batch, self._batch)):
            raise InputError(
                f"{release.kind} is of a batch whose rows did not go through ledger.canaries since "
                "the last release; replace them there, before they are clipped, once a batch"
            )
        if len(release.of) > 1 or release.of[0].weight != 1.0 or sent.value is None:
            raise InputError(
                f"{release.kind} of an audited training must be one vector of weight 1, with its "
                "value=, so that its canaries can be scored; audit such a system by its models"
            )

    def note(self, release: Release, sent: Sent) -> None:
        """Score a release."""
        if not release.of or self._made is None or sent.value is None:
            return
        noisy = as_tensor(sent.value).double()
        noisy = noisy if sent.known is None else noisy - as_tensor(sent.known)
        (vector,), self._batch = release.of, None
        std = math.hypot(*(one.std for one in release.noise))
        self._made.note(noisy / sent.scale, std=std, clip=vector.clip, rate=vector.rate)

    def scores(self, planted: object) -> NDArray[np.float64]:
        """(m,) log-likelihood ratios, in nats.

        Raises:
            ValueError: nothing was planted, or the data are others.
        """
        if self._made is None or self._planted is not planted:
            raise InputError(
                "no canary of these data was planted; record(..., data=) takes what train was "
                "given, and ledger.canaries(rows, batch) replaces their gradients"
            )
        return self._made.scores.copy()


def rehearsal_of(owner: object) -> Path:
    """Where the log of an audited training goes, of which nothing is released; it goes with it."""
    folder = tempfile.mkdtemp(prefix="overhear-audit-")
    weakref.finalize(owner, shutil.rmtree, folder, ignore_errors=True)
    return Path(folder) / "releases.jsonl"
