"""Public records that an attacker weighs, and how far each is from what was observed.

Shape letters: N candidates, K intercepts, D parameters.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import vmap

from ...privacy.errors import InputError
from ..problem.observation import Observation, sent_gradients

MOST = 2000
_NUMBERS = 4_000_000_000  # gradient entries that one observation may cost
_AT_ONCE = 8_000_000  # gradient entries in memory
_FEWEST = 50


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Candidates:
    """Public records with their labels.

    Attributes:
        inputs: (N, *shape) in normalised units.
        labels: (N,) class indices.
        records: (N,) which record a candidate is, where some are one record under several labels,
            which share its probability; None where each is a record of its own.

    Raises:
        ValueError: there is none, or not one label for each.
    """

    inputs: Tensor
    labels: Tensor
    records: Tensor | None = None

    def __post_init__(self) -> None:
        if len(self.inputs) == 0 or self.labels.shape != (len(self.inputs),):
            raise InputError(
                f"inputs of shape {tuple(self.inputs.shape)} and labels of shape "
                f"{tuple(self.labels.shape)} must be (N, *shape) and (N,), N at least 1"
            )

    def __len__(self) -> int:
        """N."""
        return len(self.inputs)

    def at(self, chosen: Tensor) -> Candidates:
        """Some of them, by index."""
        records = None if self.records is None else self.records[chosen]
        return Candidates(inputs=self.inputs[chosen], labels=self.labels[chosen], records=records)

    def after(self, first: Candidates) -> Candidates:
        """Those records, then these."""
        records = None
        if first.records is not None or self.records is not None:
            before, these = first.numbers, self.numbers
            records = torch.cat([before, these + int(before.max()) + 1])
        return Candidates(
            inputs=torch.cat([first.inputs, self.inputs]),
            labels=torch.cat([first.labels, self.labels]),
            records=records,
        )

    @property
    def numbers(self) -> Tensor:
        """(N,) which record each is."""
        return torch.arange(len(self)) if self.records is None else self.records

    @property
    def log_priors(self) -> Tensor:
        """(N,) logarithms of probabilities beforehand, of each record's labels 1 in all."""
        counts = self.numbers.unique(return_inverse=True, return_counts=True)
        return -counts[2][counts[1]].double().log()

    def affordable(self, observation: Observation) -> Candidates:
        """The first of them, as many as are weighed in bounded time: at most 2,000."""
        each = max(observation.gradient.numel() * observation.points.shape[1], 1)
        return self.at(torch.arange(min(len(self), MOST, max(_NUMBERS // each, _FEWEST))))


def sent_by(observation: Observation, model: nn.Module, candidates: Candidates) -> Iterator[Tensor]:
    """(n, K, D) what each candidate alone would have sent, clipped; a few at a time."""

    def one(x: Tensor, y: Tensor) -> Tensor:
        return sent_gradients(observation, model, inputs=x[None], targets=y[None])

    count = max(1, min(256, _AT_ONCE // max(observation.gradient.numel(), 1)))
    like = observation.gradient
    for at in torch.arange(len(candidates)).split(count):
        some = candidates.at(at)
        yield vmap(one)(some.inputs.to(like), some.labels.to(like.device)).detach()


def distances(observation: Observation, model: nn.Module, candidates: Candidates) -> Tensor:
    """(N,) squared distances of what candidates would have sent from what was observed.

    Args:
        observation: of one record.
        model: network with logits (B, C) as output; its parameters are taken from `observation`.

    Returns:
        r' S^-1 r summed over coordinates, r being the (K, D) difference and S the covariance of the
        noise: minus twice the log-likelihood, up to a constant. Without noise the squared L2
        distance.

    Raises:
        ValueError: the observation is of several records.

    >>> model, x = nn.Linear(2, 2), torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    >>> seen = Observation.single(
    ...     gradient=torch.zeros(6), model=torch.zeros(6), noise_std=0.5, clip_norm=1.0,
    ...     records=1,
    ... )
    >>> public = Candidates(inputs=x, labels=torch.tensor([0, 1]))
    >>> [round(value, 3) for value in distances(seen, model, public).tolist()]
    [4.0, 4.0]
    """
    check_single(observation)
    return torch.cat(
        [
            squared(sent - observation.gradient, observation)
            for sent in sent_by(observation, model, candidates)
        ]
    )


def check_single(observation: Observation) -> None:
    """Refuse observations of several records."""
    if observation.records != 1:
        raise InputError(
            f"records={observation.records} must be 1: candidates are weighed one at a time"
        )


def squared(rest: Tensor, observation: Observation) -> Tensor:
    """(n,) r' S^-1 r summed over coordinates, of (n, K, D)."""
    weighed = precision(observation).to(rest) @ rest
    return (rest * weighed).sum(dim=(1, 2), dtype=torch.float64)


def precision(observation: Observation) -> Tensor:
    """(K, K) inverse covariance of the noise; the unit matrix where there is none."""
    at = observation.gradient.device
    if not observation.is_noisy:
        return torch.eye(len(observation.gradient), dtype=torch.float64, device=at)
    return torch.linalg.inv(observation.covariance.double()).to(at)
