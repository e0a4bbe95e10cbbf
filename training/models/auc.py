"""The area under the ROC curve, AUROC, as a min-max task over single records.

Whether one record scores above another is a loss of pairs, and a record is in as many pairs as
there are others: no gradient of it is a record's own. Its square loss is the saddle point of losses
of single records (Y. Ying, L. Wen, S. Lyu, "Stochastic online AUC maximization", NeurIPS 2016; with
networks M. Liu et al., "Stochastic AUC maximization with deep neural networks", ICLR 2020):

    min over (w, a, b)  max over alpha  mean of F(w, a, b, alpha; record)

    F = (1-p) (h-a)^2 [t=1] + p (h-b)^2 [t=0]
        + 2 (1+alpha) (p h [t=0] - (1-p) h [t=1]) - p (1-p) alpha^2,    h = sigmoid(o_1 - o_0)

| symbol | name here       | shape  | meaning                                                   |
|--------|-----------------|--------|-----------------------------------------------------------|
| w      | block 0         | (D_w,) | the network's parameters, two logits o                    |
| a, b   | block 0, last 2 | scalar | at the saddle mean scores of the positive and negative    |
| alpha  | block 1         | (1,)   | dual variable, at the saddle b - a                        |
| p      | positive_share  | scalar | public share of the positive class, 1                     |
| h      |                 | scalar | score of a record, in (0, 1)                              |

With p the share of positive records, the value of the saddle in a, b and alpha is p (1-p) (E - 1),
E the mean of (1 - h + h')^2 over pairs of a positive record and a negative one. Another p weighs
the classes otherwise; it must not be read off the private records.

Where we differ from the papers: scores are sigmoids of the difference of two logits, so that they
lie in (0, 1) and alpha in [-1, 1], where the paper of 2016 bounds the norm of linear scores. p is
given, where the papers estimate it along the way. All of F is clipped with its record, as one
vector.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ...privacy.errors import InputError
from .forward_calls import ForwardCalls
from .parameters import copied, flatten, unflatten, validate_model

__all__ = ["AreaUnderCurve", "with_centres"]


class AreaUnderCurve:
    """The task of learning scores of a large AUROC.

    Args:
        model: network from inputs (B, *shape) to two logits (B, 2); copied.
        positive_share: p, public, in (0, 1).

    Raises:
        ValueError: `validate_model` refuses the model, or the share is out of range.

    >>> task = AreaUnderCurve(nn.Linear(3, 2), positive_share=0.25)
    >>> task.dimensions
    (10, 1)
    >>> point = torch.tensor([*8 * [0.0], 0.9, 0.2, -0.5])  # h = 1/2, a = .9, b = .2
    >>> round(float(task.loss(point, torch.ones(3), torch.tensor(1))), 4)  # .12 - .375 - .0469
    -0.3019
    """

    def __init__(self, model: nn.Module, *, positive_share: float = 0.5) -> None:
        validate_model(model)
        if not 0 < positive_share < 1:
            raise InputError(
                f"positive_share={positive_share} must lie in (0, 1); it is the public share of "
                "the positive class"
            )
        self._model = copied(model)
        self._calls = ForwardCalls(self._model)
        self._share = positive_share
        self._size = sum(p.numel() for p in model.parameters())

    @property
    def dimensions(self) -> tuple[int, ...]:
        """(D_w + 2, 1)."""
        return self._size + 2, 1

    def initial(self) -> Tensor:
        """The network's parameters, and a = b = alpha = 0."""
        w = flatten(self._model)
        return torch.cat([w, w.new_zeros(3)])

    def loss(self, point: Tensor, inputs: Tensor, target: Tensor) -> Tensor:
        """See `Task.loss`."""
        w, (a, b, alpha) = point[: self._size], point[self._size :]
        logits = self._calls(unflatten(self._model, w), inputs.unsqueeze(0))[0]
        h, p = (logits[1] - logits[0]).sigmoid(), self._share
        positive = (1 - p) * ((h - a).square() - 2 * (1 + alpha) * h)
        negative = p * ((h - b).square() + 2 * (1 + alpha) * h)
        share = target[1] if target.ndim else (target == 1).to(h.dtype)
        return share * positive + (1 - share) * negative - p * (1 - p) * alpha.square()

    def project(self, value: Tensor) -> Tensor:
        """Alpha in [-1, 1], where it is at every saddle."""
        return value.clamp(-1.0, 1.0)


class _Centres(nn.Module):
    """The variables a and b, which no forward reads."""

    def __init__(self) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.zeros(2))


class _WithCentres(nn.Module):
    """A network, and a and b beside its parameters."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network, self.centres = network, _Centres()

    def forward(self, x: Tensor) -> Tensor:
        """The network's logits."""
        found: Tensor = self.network(x)
        return found


def with_centres(model: nn.Module) -> nn.Module:
    """A network whose flat parameters are block 0 of its `AreaUnderCurve`: (w, a, b).

    >>> sum(p.numel() for p in with_centres(nn.Linear(3, 2)).parameters())
    10
    """
    return _WithCentres(model)
