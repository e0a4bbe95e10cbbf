"""How often the test that keeps an image would keep the true one: what a blind result is worth.

An attack that falls back to the prior image says nothing where the test of `inversion` would have
rejected the truth as well. With the true image in place of the one found, both halves of the test
are functions of a normal vector of one entry a label, whose covariance is known; it is drawn.

Shape letters: N candidates, C classes, K intercepts, D parameters.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..posterior import Candidates, sent_by
from ..problem.observation import Observation, sent_gradients
from ..problem.problem import Problem

SPLIT = 0.5
"""a of the split: the first half keeps all but 1 dB of the observation."""

_DRAWS = 4000
_TRIED, _HOPELESS = 16, 0.01


def acceptance_power(
    observation: Observation,
    model: nn.Module,
    *,
    inputs: Tensor,
    label: int,
    prior_image: Tensor,
    classes: int,
    generator: torch.Generator,
    draws: int = _DRAWS,
) -> float:
    """Probability that the test keeps the true image and not the prior image.

    Args:
        observation: of one record; its gradient is not read, its noise is.
        model: network with logits (B, C) as output; its parameters are taken from `observation`.
        inputs: (*shape) the true record in normalised units.
        label: its class.
        prior_image: (*shape) what would replace it, under the label that suits it best.
        classes: number of classes C.
        generator: source of the draws.
        draws: how many; the standard error is at most 1 / (2 sqrt(draws)).

    Returns:
        A probability; 1 without noise, where the truth is always kept.

    >>> model = nn.Linear(2, 2)
    >>> seen = Observation.single(
    ...     gradient=torch.zeros(6), model=torch.zeros(6), noise_std=100.0, clip_norm=1.0,
    ...     records=1,
    ... )
    >>> acceptance_power(
    ...     seen, model, inputs=torch.tensor([1.0, 0.0]), label=0,
    ...     prior_image=torch.tensor([0.5, 0.5]), classes=2, generator=torch.Generator(),
    ... ) < 0.1
    True
    """
    if not observation.is_noisy:
        return 1.0
    truth = _sent(observation, model, inputs, label)
    others = _public(observation, model, prior_image, classes=classes)
    return _power(observation, truth, others, inputs.numel(), generator=generator, draws=draws)


def is_hopeless(
    problem: Problem, candidates: Candidates | None, generator: torch.Generator
) -> bool:
    """Whether the test would keep none of 16 public records with a probability above 1 %.

    A record that is drawn as they were then has no more but with probability 1 / 17, and what a
    search finds would be rejected, whatever it is.

    Args:
        problem: of one record; without noise or a prior image it is never hopeless.
        generator: source of the draws, and of which records are tried.
    """
    observation, model, prior = problem.observation, problem.model, problem.prior_image
    if prior is None or candidates is None or not observation.is_noisy:
        return False
    at = torch.randperm(len(candidates), generator=generator)[:_TRIED]
    others = _public(observation, model, problem.box.inputs(prior), classes=problem.classes)
    return all(
        _power(observation, truth, others, prior.numel(), generator=generator, draws=_DRAWS)
        <= _HOPELESS
        for some in sent_by(observation, model, candidates.at(at))
        for truth in some
    )


def _sent(observation: Observation, model: nn.Module, x: Tensor, y: int) -> Tensor:
    """(K, D) what one record would have sent."""
    like = observation.gradient
    at = torch.tensor([y], device=like.device)
    return sent_gradients(observation, model, inputs=x[None].to(like), targets=at).detach()


def _public(observation: Observation, model: nn.Module, image: Tensor, *, classes: int) -> Tensor:
    """(C, K, D) what the prior image would have sent under each label."""
    return torch.stack([_sent(observation, model, image, label) for label in range(classes)])


def _power(
    observation: Observation,
    truth: Tensor,
    others: Tensor,
    pixels: int,
    *,
    generator: torch.Generator,
    draws: int,
) -> float:
    """Share of draws in which the test keeps a record that would have sent `truth`."""
    rest = truth - others
    rows = (observation.whiten(rest) / observation.noise_std).flatten(1).double().cpu()
    products = rows @ rows.T  # (C, C) covariance of the noise along the differences
    values, vectors = torch.linalg.eigh(products)
    root = vectors * values.clamp_min(0).sqrt()
    first, second = (
        torch.randn(draws, len(others), generator=generator, dtype=torch.float64) @ root.T
        for _ in range(2)
    )
    squares = products.diagonal()
    # |o - s(x0, y)|^2 - |o - s(x)|^2 for each label y, of which the prior image takes the best.
    gain = (squares + 2 * first).amin(dim=1)
    scale = 1 + 1 / SPLIT**2
    halves = (squares + 2 * (first - second / SPLIT)) / scale
    held, at = halves.min(dim=1)
    deviation = 2 * (squares[at] / scale).sqrt()
    kept = (gain > 2 * pixels) | ((gain > 0) & (held > 2 * deviation))
    return float(kept.double().mean())
