"""The posterior over public records given noisy gradients: the best estimate of a record's picture.

    Hayes, Mahloujifar, Balle. Bounding Training Data Reconstruction in DP-SGD. NeurIPS 2023,
        arXiv:2302.07225 (the prior-aware attack).

    w_i  proportional to  exp(-d_i / 2)        d_i = |S^-1/2 (clip(grad(x_i, y_i)) - o)|^2
    P(label c | o) = sum of w_i over y_i = c   picture = sum of w_i^(1/T) x_i, normalised

| symbol | name here | shape |
|---|---|---|
| o, S | observation | (K, D), (K, K) |
| x_i, y_i | candidates | (N, *shape), (N,) |
| d | distances | (N,) |
| w | weights | (N,) |
| T | temperature | at least 1 |

Where we differ from the paper: there the record is among the candidates. Here it is not, so that
the posterior of a strong signal settles on a single neighbour, and a mean over several would be
closer. T is the temperature at which candidates that are held out, each under noise of its own, are
rebuilt best from the others. Each candidate has its own public label, where one is known: trying
all labels for each rebuilds worse, as most pairs of a picture and a label do not occur. Where none
is known, the record is a candidate under every label, each as likely as the others beforehand.

Shape letters: N candidates, H held out, K intercepts, D parameters.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..problem.observation import Observation
from .candidates import Candidates, check_single, precision, sent_by, squared

_HELD_OUT = 64
_FEWEST = 4
_TEMPERATURES = (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 32.0, 64.0)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Posterior:
    """What candidates say of the observed record.

    Attributes:
        distances: (N,) as `distances` returns them.
        weights: (N,) posterior probabilities of the candidates.
        labels: (C,) posterior probabilities of the labels.
        temperature: of the picture.
        picture: (*shape) posterior mean in normalised units.
    """

    distances: Tensor
    weights: Tensor
    labels: Tensor
    temperature: float
    picture: Tensor


def weigh(
    observation: Observation,
    model: nn.Module,
    candidates: Candidates,
    *,
    classes: int,
    generator: torch.Generator,
) -> Posterior:
    """The posterior over candidates, whose records are all equally likely beforehand.

    Args:
        model: network with logits (B, C) as output; its parameters are taken from `observation`.
        candidates: public records; at most 2,000 are weighed.
        classes: number of classes C.
        generator: source of the noise on candidates that are held out.

    Returns:
        The posterior. Without noise the nearest candidate has all weight; several that are equally
        near share it.

    Raises:
        ValueError: the observation is of several records.

    >>> model, x = nn.Linear(2, 2), torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    >>> seen = Observation.single(
    ...     gradient=torch.tensor([-0.4, 0.0, 0.4, 0.0, -0.4, 0.4]), model=torch.zeros(6),
    ...     noise_std=0.5, clip_norm=1.0, records=1,
    ... )
    >>> found = weigh(
    ...     seen, model, Candidates(inputs=x, labels=torch.tensor([0, 1])), classes=2,
    ...     generator=torch.Generator(),
    ... )
    >>> round(found.labels[0].item(), 3)
    0.992
    """
    check_single(observation)
    candidates = candidates.affordable(observation)
    held = _held_out(observation, model, candidates, generator)
    # One pass over the candidates' gradients: they cost far more than all else.
    found, inner, own = list[Tensor](), list[Tensor](), list[Tensor]()
    less = -2 * candidates.log_priors.to(observation.gradient.device)
    for sent in sent_by(observation, model, candidates):
        found.append(squared(sent - observation.gradient, observation))
        if held is not None:
            inner.append(held @ sent.flatten(1).T)
            own.append(squared(sent, observation))
    far, noisy = torch.cat(found), observation.is_noisy
    inputs, numbers = candidates.inputs.to(far), candidates.numbers.to(far.device)
    temperature, all_told = 1.0, far + less
    if held is not None:
        others = torch.cat(own)[None] - 2 * torch.cat(inner, dim=1).double() + less  # (H, N)
        # Nobody is rebuilt from itself, under whatever label.
        others = others.masked_fill(numbers[: len(held), None] == numbers, torch.inf)
        temperature = _temperature(others, inputs.flatten(1))
    weights = _weights(all_told[None], noisy=noisy, temperature=1.0)[0]
    tempered = _weights(all_told[None], noisy=noisy, temperature=temperature)[0]
    labels = far.new_zeros(classes)
    labels.index_add_(0, candidates.labels.to(far.device), weights)
    picture = (tempered @ inputs.flatten(1)).reshape(inputs.shape[1:])
    return Posterior(
        distances=far, weights=weights, labels=labels, temperature=temperature, picture=picture
    )


def _weights(far: Tensor, *, noisy: bool, temperature: float) -> Tensor:
    """(H, N) probabilities by (H, N) squared distances."""
    if noisy:
        return (far / (-2 * temperature)).softmax(dim=1)
    nearest = (far == far.amin(dim=1, keepdim=True)).to(far)
    return nearest / nearest.sum(dim=1, keepdim=True)


def _held_out(
    observation: Observation, model: nn.Module, candidates: Candidates, generator: torch.Generator
) -> Tensor | None:
    """(H, K D) S^-1 o of the first candidates, each under noise of its own; None without noise."""
    count = min(_HELD_OUT, len(candidates) // 4)
    if not observation.is_noisy or count < _FEWEST:
        return None
    sent = torch.cat(list(sent_by(observation, model, candidates.at(torch.arange(count)))))
    noise = torch.randn(sent.shape, generator=generator, dtype=sent.dtype).to(sent)
    noise = torch.linalg.cholesky(observation.covariance.double()).to(sent) @ noise
    return (precision(observation).to(sent) @ (sent + noise)).flatten(1)


def _temperature(far: Tensor, inputs: Tensor) -> float:
    """The temperature at which the first H of the (N, n) inputs are rebuilt best from the others.

    Args:
        far: (H, N) squared distances, infinite from each to itself.
        inputs: (N, n) records.
    """
    held = inputs[: len(far)]
    errors = torch.stack(
        [
            (_weights(far, noisy=True, temperature=t) @ inputs - held).square().mean()
            for t in _TEMPERATURES
        ]
    )
    return _TEMPERATURES[int(errors.argmin())]
