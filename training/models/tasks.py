"""Tasks: losses of one example at a point that may have several blocks of coordinates.

Classification needs no task: its loss is the cross-entropy of a network. A task states another
loss, such as that of a min-max problem over parameters x and dual variables y, whose point is
(x, y) side by side. One example's gradients with respect to all blocks are clipped as one vector.

`ClassWeights` is the distributionally robust form of any classification:

    min over x  max over y in the simplex   sum_c y_c L_c(x) - strength |y - 1/C|^2 + R(x)

    loss of one example (a, c) at (x, y) = C y_c l(x; a, c) - strength |y - 1/C|^2 + R(x)
    R(x) = penalty sum_k s x_k^2 / (1 + s x_k^2)

| symbol | name here            | shape  | meaning                                       |
|--------|----------------------|--------|-----------------------------------------------|
| x      | block 0 of a point   | (D_x,) | the network's parameters                      |
| y      | block 1              | (C,)   | weights of the classes, a public dimension    |
| L_c    |                      | scalar | mean cross-entropy over the examples of c     |
| l      |                      | scalar | cross-entropy of one example                  |
| R      |                      | scalar | penalty that is not convex: it levels off     |
| s      | penalty_steepness    | scalar | how soon: half of it is reached at x_k^2 = 1/s |

The mean of the examples' losses is the objective where classes are equally frequent; elsewhere L_c
counts by its frequency, times C.

Robust logistic regression is this task on a linear network with two classes, from the paper of
DPMixSGD (`algorithms.dpmixsgd`). DM-HSGD's code has strength 1/2, penalty .001 and steepness 10.

Where we differ from the paper: its y has one weight for each example. So as many numbers are sent
as there are records, and no noise hides one more, whatever a step computes: there is no figure. The
logistic loss of weights w is the cross-entropy of two logits that differ by w a. All of a loss is
clipped with its example, the penalty too.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ...privacy.errors import InputError, within
from .losses import ForwardCalls
from .parameters import copied, flatten, unflatten, validate_model


@runtime_checkable
class Task(Protocol):
    """A loss of one example at a flat point, and what a step needs to know of its blocks."""

    @property
    def dimensions(self) -> tuple[int, ...]:
        """Coordinates of each block, such as (D_x, D_y): public, as no noise hides a length."""
        ...

    def initial(self) -> Tensor:
        """(D,) the public initial point, its blocks side by side."""
        ...

    def loss(self, point: Tensor, inputs: Tensor, target: Tensor) -> Tensor:
        """Scalar loss at point (D,) of inputs (*shape) and a target (); runs under torch.func.

        Attacks that look for the label give probabilities (C,) in its place.

        It depends on these alone: a loss that keeps something between calls, or draws a random
        number, lets one record change the gradients of others.
        """
        ...

    def project(self, value: Tensor) -> Tensor:
        """The nearest feasible value of the last block, for `round.project`."""
        ...


class ClassWeights:
    """Classification whose classes are weighted by an opponent.

    Args:
        model: network from inputs (B, *shape) to logits (B, classes); copied.
        classes: C, the number of logits.
        strength: of the pull towards equal weights.
        penalty: most that one parameter's penalty can be.
        penalty_steepness: how soon it is.

    Raises:
        ValueError: if `validate_model` refuses the model, or a number is out of range.

    >>> task = ClassWeights(nn.Linear(2, 4), classes=4)
    >>> task.dimensions
    (12, 4)
    >>> point = torch.cat([torch.zeros(12), torch.tensor([0.4, 0.2, 0.2, 0.2])])
    >>> round(float(task.loss(point, torch.ones(2), torch.tensor(0))), 4)  # 1.6 ln 4 - 0.03
    2.1881
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        classes: int,
        strength: float = 1.0,
        penalty: float = 0.0,
        penalty_steepness: float = 10.0,
    ) -> None:
        validate_model(model)
        within("classes", classes, "[2, inf)")
        numbers = {"strength": strength, "penalty": penalty, "penalty_steepness": penalty_steepness}
        for name, value in numbers.items():
            within(name, value, "[0, inf)")
        self._model = copied(model)
        self._calls = ForwardCalls(self._model)
        self._classes, self._strength = classes, strength
        self._penalty, self._steepness = penalty, penalty_steepness
        self._parameters = sum(p.numel() for p in model.parameters())

    @property
    def dimensions(self) -> tuple[int, ...]:
        """(D_x, C)."""
        return self._parameters, self._classes

    def initial(self) -> Tensor:
        """The network's parameters and equal weights."""
        x = flatten(self._model)
        return torch.cat([x, x.new_full((self._classes,), 1.0 / self._classes)])

    def loss(self, point: Tensor, inputs: Tensor, target: Tensor) -> Tensor:
        """See `Task.loss`."""
        x, y = point.split(self.dimensions)
        parameters = unflatten(self._model, x)
        logits = self._calls(parameters, inputs.unsqueeze(0))
        error = cross_entropy(logits, target.unsqueeze(0))
        every = torch.arange(self._classes, device=target.device)
        # y[target], which vmap(grad) does not take; of probabilities its mean.
        own = (y * (target if target.ndim else every == target)).sum()
        apart = (y - 1.0 / self._classes).square().sum()
        loss: Tensor = self._classes * own * error - self._strength * apart
        if self._penalty:
            steep = self._steepness * x.square()
            loss = loss + self._penalty * (steep / (1.0 + steep)).sum()
        return loss

    def project(self, value: Tensor) -> Tensor:
        """The nearest point of the simplex."""
        return project_to_simplex(value)


def project_to_simplex(value: Tensor) -> Tensor:
    """The nearest vector of weights that are >= 0 and add up to 1.

    J. Duchi et al., "Efficient projections onto the l1-ball for learning in high dimensions", ICML
    2008.

    Args:
        value: (C,).

    >>> project_to_simplex(torch.tensor([0.9, 0.5, -1.0]).double()).round(decimals=4).tolist()
    [0.7, 0.3, 0.0]
    """
    falling = value.sort(descending=True).values
    count = torch.arange(1, len(value) + 1, device=value.device, dtype=value.dtype)
    level = (falling.cumsum(0) - 1.0) / count  # what is subtracted if so many stay above zero
    kept = (falling > level).sum().clamp_min(1)  # none where values are no numbers
    return (value - level.gather(0, kept[None] - 1)).clamp_min(0.0)


# The area under the ROC curve, AUROC, as a min-max task over single records.
#
# Whether one record scores above another is a loss of pairs, and a record is in as many pairs as
# there are others: no gradient of it is a record's own. Its square loss is the saddle point of
# losses of single records (Y. Ying, L. Wen, S. Lyu, "Stochastic online AUC maximization", NeurIPS
# 2016; with networks M. Liu et al., "Stochastic AUC maximization with deep neural networks", ICLR
# 2020):
#
#     min over (w, a, b)  max over alpha  mean of F(w, a, b, alpha; record)
#
#     F = (1-p) (h-a)^2 [t=1] + p (h-b)^2 [t=0]
#         + 2 (1+alpha) (p h [t=0] - (1-p) h [t=1]) - p (1-p) alpha^2,    h = sigmoid(o_1 - o_0)
#
# | symbol | name here       | shape  | meaning                                                   |
# |--------|-----------------|--------|-----------------------------------------------------------|
# | w      | block 0         | (D_w,) | the network's parameters, two logits o                    |
# | a, b   | block 0, last 2 | scalar | at the saddle mean scores of the positive and negative    |
# | alpha  | block 1         | (1,)   | dual variable, at the saddle b - a                        |
# | p      | positive_share  | scalar | public share of the positive class, 1                     |
# | h      |                 | scalar | score of a record, in (0, 1)                              |
#
# With p the share of positive records, the value of the saddle in a, b and alpha is p (1-p) (E -
# 1), E the mean of (1 - h + h')^2 over pairs of a positive record and a negative one. Another p
# weighs the classes otherwise; it must not be read off the private records.
#
# Where we differ from the papers: scores are sigmoids of the difference of two logits, so that they
# lie in (0, 1) and alpha in [-1, 1], where the paper of 2016 bounds the norm of linear scores. p is
# given, where the papers estimate it along the way. All of F is clipped with its record, as one
# vector.


class AreaUnderCurve:
    """The task of learning scores of a large AUROC.

    Args:
        model: network from inputs (B, *shape) to two logits (B, 2); copied.
        positive_share: p, public, in (0, 1).

    Raises:
        ValueError: `validate_model` refuses the model, or the share is out of range.
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
