"""Whether anything of a batch stands out of the noise: singular values against the noise edge.

    m, n           rows and columns of a layer's gradient [dW, db]
    edge           s (sqrt(m) + sqrt(n) + t),   t = sqrt(2 log(layers / a))

The largest singular value of an m x n matrix of independent N(0, s^2) is at most s (sqrt(m) +
sqrt(n)) in the mean and exceeds that by s t with probability at most exp(-t^2 / 2) (Davidson and
Szarek 2001, "Local operator theory, random matrices and Banach spaces", Theorem II.13). Pure noise
is therefore called detectable with probability at most a, over all layers together.

| symbol | name here | unit |
|---|---|---|
| s | noise_std of the observation | of one coordinate |
| a | false_positive_rate | probability |

A convolution's weight counts as the (out, in * k * k) matrix of its patches; the bias, where there
is one, is a further column. K intercepts are whitened and stacked as rows: their inputs are the
same where the layer is the first, so that it gains with K there; deeper layers need not.

A spike below the edge is not nothing: the sum of squares of a gradient, a bias alone or a candidate
batch's direction can show where no singular value does. "Not detectable spectrally" means that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ...privacy._validate import within
from ...training.models.parameters import unflatten
from ..problem.observation import Observation

FALSE_ALARM_RATE = 1e-3


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerSpectrum:
    """One layer's gradient against the noise.

    Attributes:
        layer: name of the module; empty where the network is one layer.
        shape: rows and columns of the matrix.
        largest: its largest singular value, noise included.
        edge: what pure noise stays below; 0 without noise.
        above: singular values above the edge, or above rounding without noise, in falling order.

    >>> seen = LayerSpectrum(layer="fc", shape=(10, 65), largest=3.0, edge=1.5, above=(3.0,))
    >>> seen.is_detectable, seen.strength
    (True, 2.0)
    """

    layer: str
    shape: tuple[int, int]
    largest: float
    edge: float
    above: tuple[float, ...]

    @property
    def is_detectable(self) -> bool:
        """Whether any direction stands out."""
        return len(self.above) > 0

    @property
    def strength(self) -> float:
        """Largest singular value over the edge; infinite where only the gradient is not 0."""
        if self.edge > 0:
            return self.largest / self.edge
        return math.inf if self.is_detectable else 0.0


def detectability(
    observation: Observation, model: nn.Module, *, false_positive_rate: float = FALSE_ALARM_RATE
) -> tuple[LayerSpectrum, ...]:
    """Which linear and convolutional layers show the batch.

    Args:
        observation: one batch's gradients, of the parameters of `model`.
        model: supplies names and shapes; its own values are not read.
        false_positive_rate: probability, over all layers together, that pure noise is called
            detectable; at most that.

    Returns:
        One entry per nn.Linear and convolution with a weight of its own, in the model's order;
        none where the model has no such layer.

    Raises:
        ValueError: the gradient is not of the model's parameters, or the rate is not in (0, 1).

    >>> model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    >>> seen = Observation.single(
    ...     gradient=torch.ones(26), model=torch.zeros(26), noise_std=0.1, clip_norm=1.0,
    ...     records=1,
    ... )
    >>> [(found.layer, found.shape, round(found.strength, 2))
    ...  for found in detectability(seen, model)]
    [('0', (4, 4), 5.06), ('2', (2, 5), 4.19)]
    """
    within("false_positive_rate", false_positive_rate, "(0, 1)", ".001 is usual")
    matrices = _matrices(observation, model)
    if not matrices:
        return ()
    margin = math.sqrt(2 * math.log(len(matrices) / false_positive_rate))
    rounding = torch.finfo(observation.gradient.dtype).eps
    found = []
    for layer, matrix in matrices.items():
        rows, columns = matrix.shape
        values = torch.linalg.svdvals(matrix.double())
        largest = float(values[0])
        edge = observation.noise_std * (math.sqrt(rows) + math.sqrt(columns) + margin)
        least = max(edge, rounding * max(rows, columns) * largest)
        found.append(
            LayerSpectrum(
                layer=layer,
                shape=(rows, columns),
                largest=largest,
                edge=edge,
                above=tuple(values[values > least].tolist()),
            )
        )
    return tuple(found)


def spectral_sentence(
    spectra: Sequence[LayerSpectrum], *, false_positive_rate: float = FALSE_ALARM_RATE
) -> str:
    """What the spectra say, in a sentence; never that nothing leaks.

    Args:
        spectra: of `detectability`.
        false_positive_rate: the one they were made with.

    >>> quiet = LayerSpectrum(layer="fc", shape=(10, 65), largest=1.0, edge=1.5, above=())
    >>> print(spectral_sentence([quiet]))
    Not detectable spectrally: in none of 1 layers does the gradient stand out of the noise \
(strongest: 'fc', at 0.67 of the edge; FPR at most 0.001). An attack may still succeed.
    """
    if not spectra:
        return "Not examined spectrally: the network has no linear or convolutional layer."
    strongest = max(spectra, key=lambda found: (found.strength, len(found.above)))
    shown = [found for found in spectra if found.is_detectable]
    if not shown and strongest.edge == 0:
        return f"Nothing to detect: the gradient is 0 in each of {len(spectra)} layers."
    if not shown:
        return (
            f"Not detectable spectrally: in none of {len(spectra)} layers does the gradient stand "
            f"out of the noise (strongest: {strongest.layer!r}, at {strongest.strength:.2f} of the "
            f"edge; FPR at most {false_positive_rate:g}). An attack may still succeed."
        )
    count = len(strongest.above)
    directions = f"{count} direction" + ("" if count == 1 else "s")
    how = (
        "there is no noise"
        if strongest.edge == 0
        else f"at {strongest.strength:.2f} times the noise edge"
    )
    return (
        f"Detectable spectrally in {len(shown)} of {len(spectra)} layers, most in "
        f"{strongest.layer!r}: {directions}, {how}."
    )


def _matrices(observation: Observation, model: nn.Module) -> dict[str, Tensor]:
    """(K rows, columns) whitened [dW, db] of each layer, by name."""
    gradients = unflatten(model, observation.whiten(observation.gradient))
    found = {}
    for layer, module in model.named_modules():
        # A transposed convolution's weight has its inputs first; its rows would not be outputs.
        if not isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d):
            continue
        prefix = f"{layer}." if layer else ""
        weight = gradients.get(f"{prefix}weight")  # absent where it is tied to an earlier layer
        if weight is None:
            continue
        parts = [weight.flatten(0, 1).flatten(1)]  # (K out, in * k * k)
        if f"{prefix}bias" in gradients:
            parts.append(gradients[f"{prefix}bias"].reshape(-1, 1))
        found[layer] = torch.cat(parts, dim=1)
    return found
