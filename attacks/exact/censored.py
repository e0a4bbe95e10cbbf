"""One record of a network of sigmoids that training has driven to their ends, without noise.

A sigmoid at 1 - 1e-6 in float32 hides its input to 6 %, and one at 1 hides it but for a bound. So
no layer's equations are taken to be exact. From the last layer down, each layer's input is the
bounded least-squares estimate with a deviation for every number:

    a sigmoid away from its ends     z = inverse(a), with the deviation of a over the slope
    one within three deviations      z <= the bound, or >=, an equation only where it is violated
    weight's gradient                outer(a, d) = dW, with d's deviation

What comes out starts a search with all equations on the record (`censored_system`). It is certified
where it leaves of the equations what rounding does, and they determine every pixel.

Shape letters: C classes, F features, N unknowns.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import vmap

from ...training.models.parameters import unflatten
from ..problem.layers import parameter_name
from ..problem.problem import Problem
from .censored_system import ROUNDING, Solved, System, Top, bounded, search, smooth
from .rgap_record import Activation, Affine, Layer, Reshape, read_chain, weight_gradient

_UNKNOWNS = 4096  # of one layer: a dense matrix of 128 MiB and some seconds
_SMALLEST = 1e-36  # below, float32 has no digits left
_SURE = 3.0  # deviations from an end within which a unit is censored
_SPREAD = 0.3
_MISFIT = 10.0  # deviations by rounding that a true record leaves: 1 to 5
_ERROR = 0.005  # of a pixel, root mean square: 46 dB
_WORST = 0.05  # of any pixel
_LABELLED = 1e-3
_SMALL = 1e-3  # of the largest number


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Censored:
    """What the equations of a saturated network gave.

    Attributes:
        inputs: (1, *shape) in normalised units, inside the box.
        labels: (1,) class index.
        certified: whether the equations are met and determine every pixel.
        saturated: units of the network's activations that tell a bound alone, or that may.
        units: all units of the activations that were gone through.
        reason: why it is not certified, in words; empty where it is.
    """

    inputs: Tensor
    labels: Tensor
    certified: bool
    saturated: int
    units: int
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Level:
    """An output z of an affine layer: estimate, deviation, side of a bound, and the derivative."""

    z: Tensor
    deviation: Tensor
    side: Tensor  # 0 an equation, 1 z is at least the target, -1 at most
    delta: Tensor
    variance: Tensor


def _is_masked(sizes: Tensor) -> bool:
    """Whether numbers are 0 where none is small: those of a saturated network go on for decades."""
    held = sizes[sizes > 0]
    return 0 < len(held) < len(sizes) and bool(held.min() > _SMALL * held.max())


def censored_record(problem: Problem) -> Censored | None:
    """The record and label of a batch of one, from the gradient of a network of sigmoids or tanhs.

    Returns:
        The record, which counts only where it is `certified`; None where there is noise, rounding
        of messages or a batch, the network is no chain of linear layers, convolutions, average
        pools, sigmoids and tanhs, or a convolution's input has more than 4,096 numbers.
    """
    # One record, no noise, and a chain of smooth layers.
    observation, box, shape = problem.observation, problem.box, problem.shape
    if observation.records != 1 or observation.is_noisy or not observation.is_plain:
        return None
    if observation.rounding > 0 or _is_masked(observation.gradient[0].abs()):
        return None
    values = unflatten(problem.model, observation.points[0, 0].double())
    gradients = unflatten(problem.model, observation.gradient[0].double())
    chain = read_chain(problem.model, values, shape)
    if not chain or not _is_smooth(chain):
        return None
    last = chain[-1]
    if not isinstance(last, Affine):
        return None
    # The last layer's gradient shows the features in front of it, and the label.
    known_size = observation.clip_norm is None and observation.mean_of is None
    read = _features(last, gradients, known_size=known_size)
    if read is None:
        return None
    top, label = read
    # Down to the lowest level that linear layers give; below it equations are solved.
    low = box.inputs(torch.zeros(shape).to(box.span)).double()
    high = box.inputs(torch.ones(shape).to(box.span)).double()
    descent = _descend(chain[:-1], gradients, top=top, low=low, high=high)
    if descent is None:
        return None
    top, rest, start, saturated, units = descent
    solved: Solved | None = None
    if rest:
        system = System(rest, gradients, top=top)
        solved = search(system, start, low=low, high=high, rounding=1e-3)
    # A solution that is not certain is no certified record, and says why.
    inputs = start if solved is None else solved.inputs
    certified = solved is not None and _is_certain(solved)
    explains = solved is not None and solved.misfit <= _MISFIT
    return Censored(
        inputs=inputs.clamp(low, high)[None].to(box.span),
        labels=label[None],
        certified=certified,
        saturated=saturated,
        units=units,
        reason="" if certified else _reason(explains=explains, saturated=saturated, units=units),
    )


def _is_certain(solved: Solved) -> bool:
    """Whether rounding explains what is left, and no pixel is open by that much."""
    error = solved.error * max(1.0, solved.misfit)
    return (
        solved.misfit <= _MISFIT
        and float(error.square().mean().sqrt()) <= _ERROR
        and float(error.max()) <= _WORST
    )


def _reason(*, explains: bool, saturated: int, units: int) -> str:
    said = (
        "a picture that explains the gradient was found, but others may explain it, too"
        if explains
        else "the search through saturated units found no picture that explains the gradient"
    )
    return f"{said}; {saturated:,} of {units:,} units are saturated or indistinguishable from it"


def _is_smooth(chain: list[Layer]) -> bool:
    """Whether activations are sigmoids or tanhs alone, each behind an affine layer."""
    last = chain[-1]
    if not (isinstance(last, Affine) and last.is_linear and last.bias is not None):
        return False
    has = False
    for before, layer in zip([None, *chain], chain, strict=False):
        if isinstance(layer, Activation):
            has = True
            if layer.kind not in (nn.Sigmoid, nn.Tanh):
                return False
        elif isinstance(layer, Affine):
            if layer is not chain[0] and isinstance(before, Affine) and before.name is not None:
                return False
            if not layer.is_linear and math.prod(layer.inside) > _UNKNOWNS:
                return False
        elif not isinstance(layer, Reshape):
            return False
    return has and isinstance(chain[0], Affine | Reshape)


def _features(
    layer: Affine, gradients: dict[str, Tensor], *, known_size: bool
) -> tuple[Top, Tensor] | None:
    """What the last layer is fed, the loss's derivative in it, and the label.

    Every row of dW over its db is the features, each off by rounding of its own: their mean is
    better than any row.
    """
    weight = weight_gradient(layer, gradients)
    delta = gradients[parameter_name(layer.name or "", "bias")]
    rows = delta.abs() > 1e-25
    if not bool(rows.any()):
        return None
    every = weight[rows] / delta[rows, None]  # (R, F)
    features = every.mean(dim=0)
    off = (every - features).abs() / features.abs().clamp_min(_SMALLEST)
    if bool((off[:, features.abs() > 1e-12] > 64 * ROUNDING).any()):
        return None  # not of one record, or rounded more than float32 is
    # The derivative of the logits is softmax less the label, up to one factor.
    label = delta.argmin()
    wanted = torch.softmax(layer.push(features) + layer.offset(), dim=0)
    wanted[label] = 0
    wanted[label] = -wanted.sum()
    factor = float(wanted @ delta / (wanted @ wanted).clamp_min(1e-300))
    if not (math.isfinite(factor) and factor > 0):
        return None
    if known_size:
        factor = 1.0
    slack = _LABELLED * float(wanted.norm()) + 16 * ROUNDING
    if float((delta / factor - wanted).abs().max()) > slack:
        return None
    return Top(
        features=features,
        deviation=ROUNDING * features.abs() + _SMALLEST,
        derivative=delta @ layer.weight,
        variance=(ROUNDING * (delta.abs() @ layer.weight.abs())) ** 2,
    ), label


def _descend(
    chain: list[Layer], gradients: dict[str, Tensor], *, top: Top, low: Tensor, high: Tensor
) -> tuple[Top, list[Layer], Tensor, int, int] | None:
    """The lowest level that a linear layer gives, what is below, and an estimate of the record."""
    # From the last layer down: features and derivatives, with what each is off by.
    at, level, saturated, units = top, None, 0, 0
    rest = chain
    for position in range(len(chain) - 1, -1, -1):
        layer = chain[position]
        if isinstance(layer, Reshape):
            at = Top(
                features=at.features.reshape(layer.inside),
                deviation=at.deviation.reshape(layer.inside),
                derivative=at.derivative.reshape(layer.inside),
                variance=at.variance.reshape(layer.inside),
            )
        elif isinstance(layer, Activation):
            level = _before(layer, at)
            saturated, units = saturated + int((level.side != 0).sum()), units + at.features.numel()
        elif isinstance(layer, Affine):
            if level is None:
                none = torch.zeros_like(at.features)
                level = _Level(
                    z=at.features, deviation=at.deviation, side=none, delta=at.derivative,
                    variance=at.variance,
                )  # fmt: skip
            # An input lies in the range of the activation below, or else in the record's box.
            below = next((x for x in reversed(chain[:position]) if isinstance(x, Activation)), None)
            if below is None:
                least, most = low.reshape(layer.inside), high.reshape(layer.inside)
            else:
                most = torch.ones(layer.inside).to(low)
                least = torch.zeros_like(most) if below.kind is nn.Sigmoid else -most
            if layer.is_linear:
                found = _linear_input(layer, gradients, level)
                rest = chain[:position]
            else:
                found = _input(layer, gradients, level, low=least, high=most)
            if found is None:
                return None
            spread = level.variance + (ROUNDING * level.delta) ** 2
            at = Top(
                features=found[0],
                deviation=found[1],
                derivative=layer.pull(level.delta),
                variance=layer.pull(spread, weight=layer.weight**2),
            )
            if layer.is_linear:
                top = at
            level = None
    return top, rest, at.features.reshape(low.shape), saturated, units


def _before(layer: Activation, at: Top) -> _Level:
    """The activation's input, from its output."""
    end = 0.0 if layer.kind is nn.Sigmoid else -1.0
    reach = (_SURE * at.deviation).clamp(max=(1 - end) / 2)
    side = (at.features > 1 - reach).to(reach) - (at.features < end + reach).to(reach)
    inside = at.features.clamp(end + reach, 1 - reach)
    z = layer.inverse(inside)
    _, steep, _ = smooth(layer.kind, z)
    known = side == 0
    slope = torch.where(known, layer.slope_at(at.features), 0.0)
    possible = torch.where(known, slope, steep)
    wrong = (at.derivative * torch.minimum(at.deviation, possible)) ** 2
    return _Level(
        z=z,
        deviation=at.deviation / steep.clamp_min(1e-300),
        side=side,
        delta=at.derivative * slope,
        variance=at.variance * possible**2 + wrong,
    )


def _linear_input(
    layer: Affine, gradients: dict[str, Tensor], level: _Level
) -> tuple[Tensor, Tensor] | None:
    """A linear layer's input: every row of dW over its d is one, each with a deviation."""
    rows = level.delta.abs() > 1e-30
    if not bool(rows.any()):
        return None
    delta = level.delta[rows]
    weights = 1 / (level.variance[rows] / delta**2 + ROUNDING**2)
    every = weight_gradient(layer, gradients)[rows] / delta[:, None]
    found = (weights @ every) / weights.sum()
    return found, found.abs() / weights.sum().sqrt() + ROUNDING * found.abs() + _SMALLEST


def _input(
    layer: Affine, gradients: dict[str, Tensor], level: _Level, *, low: Tensor, high: Tensor
) -> tuple[Tensor, Tensor] | None:
    """A convolution's input in its bounds, and the deviation of every number."""
    # Outputs and weight gradients are both linear in the input.
    shape = layer.inside
    forward = _matrix(lambda v: layer.push(v.reshape(shape)).flatten(), like=low)
    target = (level.z - layer.offset()).flatten()
    side, spread = level.side.flatten(), level.variance + (ROUNDING * level.delta) ** 2
    off = level.deviation.flatten() ** 2 + ROUNDING**2 * (1 + target**2)
    backward, seen = forward[:0], target[:0]
    if layer.name is not None:
        backward = _matrix(lambda v: layer.outer(v.reshape(shape), level.delta).flatten(), like=low)
        seen = weight_gradient(layer, gradients).flatten()
    # Weighted least squares with a weak prior; a saturated output bounds one side alone.
    middle, prior = ((low + high) / 2).flatten(), 1 / (_SPREAD * (high - low).flatten()) ** 2
    x, active, normal = middle, side == 0, torch.diag(prior)
    for turn in range(4):
        rows = active / off
        normal = forward.T @ (rows[:, None] * forward)
        right = forward.T @ (rows * (target - forward @ x))
        if len(seen):
            size = layer.outer((x**2 + 0.01).reshape(shape), spread).flatten()
            weights = 1 / (size + (ROUNDING * seen) ** 2 + 1e-60)
            normal += backward.T @ (weights[:, None] * backward)
            right += backward.T @ (weights * (seen - backward @ x))
        normal.diagonal().add_(prior)
        right += prior * (middle - x)
        step = bounded(normal, right, low=low.flatten() - x, high=high.flatten() - x)
        if step is None:
            return None
        x = x + step
        violated = side * (target - forward @ x) > 0
        after = (side == 0) | violated
        if turn and bool((after == active).all()) and float(step.abs().max()) < 1e-3:
            break
        active = after
    # Deviations by the inverse of the normal equations.
    factor, failed = torch.linalg.cholesky_ex(normal)
    if int(failed):
        return None
    error = torch.cholesky_inverse(factor).diagonal().clamp_min(0).sqrt()
    return x.reshape(shape), error.reshape(shape)


def _matrix(linear: Callable[[Tensor], Tensor], *, like: Tensor) -> Tensor:
    """A linear map of `like` as a matrix."""
    ways = torch.eye(like.numel(), dtype=like.dtype).to(like)
    return torch.cat([vmap(linear)(part) for part in ways.split(256)]).T
