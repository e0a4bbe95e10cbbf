"""Inputs that algebra gives away before any optimisation: the first linear layer.

For h = W x + b on the flattened input, one record's gradient of [W, b] is delta [x, 1]^T: rank 1,
and its right factor is the input. Phong et al. (2018), "Privacy-Preserving Deep Learning via
Additively Homomorphic Encryption", divide a row of W's gradient by b's entry.

    u s v^T = leading term of [dW, db],   x = v_x / v_b

Where we differ from the paper: the top singular vector uses every row at once, so noise is
averaged over the rows instead of divided by one entry; a leading value inside the noise's spectrum
(up to 1.05 noise_std (sqrt(rows) + sqrt(columns))) yields nothing rather than noise; a picture is
denoised, since its noise is known; and the estimate is drawn towards the box's centre (or a public
image) by the ratio of its variance to the prior's.

A recovered input is accepted by `residual`, which compares the gradient it would have sent with
the observation and does not know the truth; or by `fitted`, whatever the loss was: with r_e the
derivative of any loss of the outputs in record e's logits, a batch's gradient is

    g = sum_e J(x_e)^T r_e,    and of the last layer R^T [a, 1], which gives R by least squares

so that the rest of the network certifies the records, and R tells of the loss.

The input of a linear first layer from a gradient or the change of local steps, whatever these were.

One record's gradient of [W, b] is delta [x, 1]^T at every model. So what plain steps, steps with
momentum, dropout or other rates than were declared add up to has rank 1 as well, with the same
right factor. Weight decay adds a multiple c of the first model, which is known:

    (before - after) / (steps rate) = d [x, 1]^T + c [W, b]

The steps need not be re-enacted. The certificate is the spectrum: what d and c leave of the change
is no more than rounding of the models does, and a second record would leave far more. That it would
is tried: where other inputs have derivatives delta in the direction of d, as of two classes behind
a single layer, the change of a batch has rank 1 too, and nothing is claimed. Nor is it where every
number of the input is 0 or 1 in size: steps that divide a gradient by its own size (Adam, RMSprop,
signs) leave of any input its signs, with rank 1. Weights and bias are taken to have one rate.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad

from ...training.models.parameters import unflatten
from ..problem.labels import fitted
from ..problem.layers import first_linear, joint_of, parameter_name
from ..problem.observation import Observation, Sent, rounding_of, sent_gradient, sent_gradients
from ..problem.problem import Problem
from .binary_vertices import are_signs

PICTURE = 3  # dimensions of a picture: channels, height, width
_STANDS_OUT = 1.05  # times the noise's edge; the largest value of noise alone varies by 1 % of it


def first_linear_input(problem: Problem) -> Tensor | None:
    """The input of a batch of one, from the gradient of a first layer that is linear.

    Under noise it is drawn to the problem's prior image, or to the centre of the box.

    Returns:
        (1, *shape) input in normalised units, within the box unless it lies far outside without
        noise; None where the batch has several records, the first layer is of another kind or has
        no bias, or its gradient does not stand out of the noise.
    """
    observation, box = problem.observation, problem.box
    if observation.records != 1 or (name := _layer(problem)) is None:
        return None
    # In one unit of noise; the input is the right factor of every intercept, so their rows stack.
    whitened = unflatten(problem.model, observation.whiten(observation.gradient))
    joint = joint_of(whitened, name).flatten(0, -2).double()
    _, values, right = torch.linalg.svd(joint, full_matrices=False)
    strength, direction = float(values[0]), right[0]
    edge = observation.noise_std * (math.sqrt(joint.shape[0]) + math.sqrt(joint.shape[1]))
    if strength <= _STANDS_OUT * edge or abs(float(direction[-1])) < 1e-12:
        return None
    found = (direction[:-1] / direction[-1]).reshape(problem.shape).to(box.span.dtype)
    error = observation.noise_std / (strength * abs(float(direction[-1])))
    risk = error**2
    if error > 0 and found.ndim == PICTURE and min(found.shape[1:]) > 1:
        found, risk, _ = denoise(found, error)
    drawn = _draw_to_prior(problem, found, error=error, risk=risk)
    pixels = box.pixels(drawn)
    inside = pixels.clamp(0, 1)
    # Far outside the network is fed otherwise than is declared, which noise alone does not show.
    beyond = not observation.is_noisy and float((pixels - inside).abs().max()) > _DETERMINED
    return box.inputs(pixels if beyond else inside)[None]


def _layer(problem: Problem) -> str | None:
    """The name of the first layer, where it is linear and its gradient is held."""
    return first_linear(problem.model, problem.observation, problem.shape, held=True)


def _linear(problem: Problem) -> str | None:
    """The same, whatever is held of it."""
    return first_linear(problem.model, problem.observation, problem.shape)


def least_records(observation: Observation, model: nn.Module, shape: tuple[int, ...]) -> int:
    """How many records a gradient is of at least: the rank of a linear first layer's; 0 if unclear.

    Each record adds one direction of [x, 1]; a rank counts where a gap to rounding shows it.
    """
    name = None if observation.is_noisy else first_linear(model, observation, shape, held=True)
    if name is None or observation.local_steps > 1 or len(observation.gradient) > 1:
        return 0
    joint = joint_of(unflatten(model, observation.gradient[0]), name).double()
    values = torch.linalg.svdvals(joint)
    unit = max(observation.rounding, torch.finfo(torch.float32).eps)
    floor = _SUMMED * unit * _size(joint) * _sides(joint)
    rank, held = int((values > floor).sum()), joint != 0
    sides = [int(held.any(dim=way).sum()) for way in (0, 1)]  # units and pixels that say anything
    if not 0 < rank < min(sides) or int(held.sum()) < 1.2 * rank * (sum(sides) - rank):
        return 0  # so few numbers have any such rank
    steps = values[: rank + 1].clamp_min(floor / _CLEAR)
    steps = steps[:-1] / steps[1:]
    return rank if float(steps[-1]) > max(_GAP, 0.99 * float(steps.max())) else 0


def shows_several(problem: Problem) -> bool:
    """Whether a linear first layer's gradient has a second direction, beyond what rounding leaves.

    Deep layers may hide of the whole what several records leave of the first.
    """
    if _layer(problem) is None or problem.observation.is_noisy:
        return False
    seen = problem.observation
    for row in seen.gradient.double():
        joint = joint_of(unflatten(problem.model, row), _layer(problem) or "")
        spread = seen.rounding * float(row.norm()) / math.sqrt(len(row))
        edge = _EDGE * max(_cast(joint), spread) * _sides(joint)
        values = torch.linalg.svdvals(joint)
        if float(values[1:2].sum()) > max(edge, _BESIDE * float(values[0])):
            return True
    return False


def _cast(joint: Tensor) -> float:
    """Root mean square of what casts of a layer's weight and bias may have left."""
    parts = (joint[:, :-1], joint[:, -1])
    left = math.hypot(*(rounding_of(part) * float(part.norm()) for part in parts))
    return left / math.sqrt(joint.numel())


def _sides(joint: Tensor) -> float:
    """The largest singular value of independent numbers of size 1, in expectation."""
    return sum(math.sqrt(side) for side in joint.shape)


def rounding_of_input(problem: Problem) -> float:
    """What rounding of messages may leave in `first_linear_input`, over the input's length.

    The input is a quotient by the gradient of the bias, and rounding is a share of the whole.
    """
    seen, name = problem.observation, _layer(problem)
    if name is None or seen.rounding == 0:
        return 0.0
    bias = unflatten(problem.model, seen.gradient)[parameter_name(name, "bias")]
    size = torch.linalg.vector_norm(seen.gradient)
    return seen.rounding * float(size / torch.linalg.vector_norm(bias).clamp_min(1e-300))


def residual(
    observation: Observation, model: nn.Module, *, inputs: Tensor, targets: Tensor
) -> float:
    """Relative residual ||g - o|| / ||o|| of the gradient that a candidate batch would have sent.

    Args:
        observation: supplies o, the model and the clip.
        model: network with logits as output.
        inputs: (B, *shape) candidate.
        targets: (B,) class indices.

    Returns:
        A number near 0 for the true batch where there is no noise, whatever the truth looks like.
    """
    candidate = sent_gradients(observation, model, inputs=inputs, targets=targets).detach()
    size = torch.linalg.vector_norm(observation.gradient).clamp_min(1e-300)
    return float(torch.linalg.vector_norm(candidate - observation.gradient) / size)


def _draw_to_prior(problem: Problem, found: Tensor, *, error: float, risk: float) -> Tensor:
    if error == 0:
        return found
    box, prior = problem.box, problem.prior_image
    target = box.inputs(torch.full_like(found, 0.5) if prior is None else prior).to(found)
    # v_x and v_b carry the same noise: the quotient's error grows with the input itself.
    noise = risk + error**2 * found.square()
    spread = box.span.square() / 12  # variance of a uniform value in the box
    return target + (found - target) * spread / (spread + noise)


_WEIGHTS = (0.06, 0.12, 0.25, 0.35, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_PROBE = 0.1  # step of the divergence, in units of the noise


class Denoised(NamedTuple):
    """A picture, the mean squared error that is expected of it, and the weight that was chosen."""

    image: Tensor
    risk: float
    weight: float


def denoise(image: Tensor, noise_std: float) -> Denoised:
    """The picture of least estimated risk, among total variation of several weights and itself.

    Total variation (Rudin, Osher, Fatemi 1992) by scikit-image; its weight is the one of least
    risk by Stein's unbiased estimate, whose divergence is probed once (Ramani, Blu, Unser 2008):

        risk(f) = |f(y) - y|^2 / n - s^2 + 2 s^2 / n  div f(y)
        div f(y) ~ b^T (f(y + e b) - f(y)) / e

    A picture that is not smooth stays as it is.

    Args:
        image: (channels, height, width), in any unit.
        noise_std: of independent noise on every value, in the same unit, above 0.

    Returns:
        The picture in the image's type, with its risk in squared units, at least 0.
    """
    from skimage.restoration import denoise_tv_chambolle

    seen = image.detach().cpu().double().movedim(0, -1).numpy() / noise_std
    probe = np.random.default_rng(0).choice([-1.0, 1.0], size=seen.shape)
    best, least, chosen = seen, 1.0, 0.0
    for weight in _WEIGHTS:
        smooth = denoise_tv_chambolle(seen, weight=weight, channel_axis=-1)
        moved = denoise_tv_chambolle(seen + _PROBE * probe, weight=weight, channel_axis=-1)
        divergence = float((probe * (moved - smooth)).sum()) / _PROBE
        risk = (float(np.square(smooth - seen).sum()) + 2 * divergence) / seen.size - 1
        if risk < least:
            best, least, chosen = smooth, risk, weight
    found = torch.from_numpy(np.ascontiguousarray(best)).movedim(-1, 0).to(image)
    return Denoised(found * noise_std, max(least, 0.0) * noise_std**2, chosen)


_ROUNDS = 30  # of d and c in turn
_OPEN = 0.15  # root mean square error of a record, of the box, by numbers that were left out
_BESIDE = 1e-4  # of the first singular value, that models' rounding leaves of the second
_GAP = 100.0  # between the last record and what rounding leaves
_CHAIN = 9  # steps from row to row over a column that both hold
_SPARE = 32  # numbers of a matrix of rank 1 beyond those that determine it
_OFF = 1e-5  # of it, that rounding may leave
_EDGE = 2.0  # times the largest singular value that rounding is expected to have
_SUMMED = 6.0  # the same of gradients that an optimiser has summed, each rounded by itself
_CLEAR = 30.0  # times that: the leading one
_APART = 50.0  # times the same: the angle of another record's derivative
_LABELS = 32  # of another record, at most
_FLAT = 1e-3  # of a slope, that others may differ by
_OTHERS = 8  # records half-way to one
NEAR, NEARER = 0.15, 0.05
"""Of the way to another record, at which a record is near it, within the box."""
_WAY = 0.02  # of the box, that another record is away on average
_EXPLAINED = 1e-4  # of a gradient, that one record leaves at most under a loss of its own
_ROUNDED = 4.0  # times what rounding leaves of it: the most that the record's own slopes leave
_PAIRED = 10.0  # times what one record leaves of a gradient: two leave more
_DETERMINED = 0.05  # error of a number, of the box, up to which an input is determined


def repeated_input(problem: Problem) -> Tensor | None:
    """The record of one or several steps, of which the mean gradient is seen.

    Returns:
        (1, *shape) input in normalised units, within the box; None where there is noise, a batch
        or several intercepts, the first layer is of another kind, its change is not of
        rank 1, or that of several records would be, or the input may be signs alone.
    """
    # One record, without noise.
    observation, model, box = problem.observation, problem.model, problem.box
    steps, rate = observation.local_steps, observation.local_rate
    alone = observation.records == 1 and len(observation.gradient) == 1
    if not alone or observation.is_noisy or observation.task is not None:
        return None
    point = observation.points[0, 0]
    if (name := _linear(problem)) is None:
        return None
    changed = joint_of(unflatten(model, observation.gradient[0]), name).double()
    start = joint_of(unflatten(model, point), name).double()
    if len(changed) == 1:  # which has no second row to speak for it
        return None
    # A rounding of the model in every step, and of the quotient, are numbers of both layers.
    rounded = rounding_of(point) * _size(start) / (math.sqrt(steps) * rate) if rate else 0.0
    rounded += max(_cast(changed), observation.rounding * _size(changed))
    times = _EDGE if rate else _SUMMED
    edge = times * rounded * _sides(changed)
    # Numbers that were left out follow from the others if these are of rank 1.
    if _layer(problem) is None and observation.shown is not None:
        held = joint_of(unflatten(model, observation.shown), name)
        made = _completed(changed, held, left=edge)
        if made is None:
            return None
        changed, edge = made, max(edge, _OFF * float(made.norm()))
    # But for decay of the model the change has rank 1.
    flat = torch.cat([start[:, :-1], torch.zeros_like(start[:, -1:])], dim=1)
    for decayed in (None, start, flat):  # of the bias too, or of the weights alone
        rest = changed if decayed is None else changed - _decay(changed, decayed) * decayed
        left, values, right = torch.linalg.svd(rest, full_matrices=False)
        if len(values) > 1 and float(values[1]) <= edge and float(values[0]) > _CLEAR * edge:
            break
    else:
        return None
    if _is_one_row(left[:, 0], float(values[0]), edge):
        return None
    if whole_layer(problem) is not None and _is_flat(left[:, 0]):
        return None
    # The right direction is the input beside a 1 for the bias, up to a factor.
    direction, last = right[0], abs(float(right[0, -1]))
    if last * float(values[0]) <= rounded:
        return None
    found = (direction[:-1] / direction[-1]).reshape(problem.shape)
    if are_signs(found):
        return None
    # The error that rounding leaves; within it the record lies in its box.
    error = rounded / (last * float(values[0])) * (1 + float(found.abs().max()))
    wide = box.to(dtype=torch.float64)
    pixels = wide.pixels(found)
    error /= float(wide.span.min())
    outside = torch.maximum(-pixels, pixels - 1).max()
    if not error <= _DETERMINED or not float(outside) <= _DETERMINED:
        return None
    pixels = pixels.clamp(0, 1).to(box.span)
    count, bound = open_numbers(problem)
    if bound / float(wide.span.min()) * math.sqrt(count / (3 * found.numel())) > _OPEN:
        return None
    least = _APART * edge / float(values[0])
    apart = angle_of_others(problem, pixels, left[:, 0])
    return box.inputs(pixels)[None] if apart > least else None


def _is_one_row(direction: Tensor, size: float, edge: float) -> bool:
    """Whether rows but for one are rounding, which has rank 1 of whatever batch and mask."""
    return float(direction.abs().topk(2).values[1]) * size <= edge


def _is_flat(slopes: Tensor) -> bool:
    """Whether all outputs but one have one slope, which no record turns, as of a margin.

    So has each of two outputs whose slopes are opposite, and one alone.
    """
    others = slopes.abs().sort(descending=True).values[len(slopes) > 2 :]
    others = others[others > _FLAT * others[:1]]
    one = len(others) == 1 and len(slopes) > 2  # of which one more is not 0
    return not one and float(others[0] - others[-1]) <= _FLAT * float(others[0])


def whole_layer(problem: Problem) -> Tensor | None:
    """The gradient of a network that is one linear layer, a row for each output, the bias last."""
    name, parts = _linear(problem), unflatten(problem.model, problem.observation.gradient[0])
    if len(parts) == 1 and (weight := next(iter(parts.values()))).ndim == 2:
        return nn.functional.pad(weight, (0, 1))  # a bias that is not there shows nothing
    return joint_of(parts, name) if name is not None and len(parts) == 2 else None


def open_numbers(problem: Problem) -> tuple[int, float]:
    """How many numbers of a record no row of the first layer's gradient holds, and their bound."""
    seen, model, name = problem.observation, problem.model, _linear(problem)
    if seen.shown is None or name is None:
        return 0, 0.0
    held = joint_of(unflatten(model, seen.gradient[0]), name).abs()
    least = held[:, :-1][held[:, :-1] > 0].min()
    count = int((held[:, :-1].sum(dim=0) == 0).sum())
    return count, float(least / held[:, -1].max()) if count else 0.0


def scaled_input(problem: Problem) -> Tensor | None:
    """(1, *shape) input from the gradient of a first layer without that of its bias.

    It has the input's direction; of all lengths within the box that one which leaves least.
    """
    seen, model, box = problem.observation, problem.model, problem.box
    name = _linear(problem)
    if seen.records != 1 or name is None or not seen.holds(model, parameter_name(name, "weight")):
        return None
    weight = unflatten(model, seen.gradient)[parameter_name(name, "weight")].flatten(0, -2).double()
    right = torch.linalg.svd(weight, full_matrices=False)[2][0]
    way = (right / right.abs().max()).reshape(1, *problem.shape).to(box.span)
    ends = [box.inputs(torch.full_like(way, end)).abs().max() for end in (0.0, 1.0)]
    reach = float(max(ends))
    given = problem.labels
    labels = torch.arange(problem.classes)[:, None] if given is None else given[None]

    def left(size: float) -> float:
        return min(
            residual(seen, model, inputs=size * way, targets=y.to(way.device)) for y in labels
        )

    at = 0.0
    while reach > 1e-9 * float(max(ends)):  # an eighth in each turn
        at = min((at + reach * step / 16 for step in range(-16, 17)), key=left)
        reach /= 8
    return at * way


def shares_of(problem: Problem, inputs: Tensor, rows: Tensor) -> Tensor:
    """(F,) factors of records under the declared loss, 1 where they are not seen.

    Taking a record's outer product d [x, 1]^T w times from a first layer's gradient J lowers its
    rank where 1 / w = [x, 1] J^+ d, whatever the others are. Of the F records `inputs`, `rows` are
    the (F, D) gradients under the declared loss.
    """
    seen, ones = problem.observation, inputs.new_ones(len(inputs))
    if (name := _layer(problem)) is None:
        return ones
    joint = joint_of(unflatten(problem.model, seen.gradient[0].double()), name)
    inverse = torch.linalg.pinv(joint, rtol=1e-6)
    fed = torch.cat([inputs.flatten(1), ones[:, None]], dim=1).double()
    slopes = unflatten(problem.model, rows.double())[parameter_name(name, "bias")]
    found = seen.records / ((fed @ inverse) * slopes).sum(dim=1)
    far = (found - 1).abs() > 1e-3
    sure = far & found.isfinite() & (found > 0)
    return torch.where(sure, found, 1.0).to(ones)


def _completed(changed: Tensor, held: Tensor, *, left: float) -> Tensor | None:
    """A matrix of rank 1 from those of its numbers that are held, which are more than it needs.

    None where they are not of rank 1, or the last column or three in four others stay open, as do
    those without a number, which are 0; or rows share the last column and its equals alone.
    """
    held = held & (changed != 0)
    rows = held[:, -1]
    scale = torch.where(rows, changed[:, -1], 0.0)
    columns = torch.zeros_like(changed[0])
    for _ in range(_ROUNDS):
        weights = held * scale[:, None]
        columns = (weights * changed).sum(dim=0) / weights.square().sum(dim=0).clamp_min(1e-300)
        weights = held * columns
        scale = (weights * changed).sum(dim=1) / weights.square().sum(dim=1).clamp_min(1e-300)
    made = scale[:, None] * columns
    off = torch.where(held, made - changed, 0.0)
    spare = int(held.sum()) - int((scale != 0).sum()) - int((columns != 0).sum())
    size = float(torch.linalg.vector_norm(changed))
    own = held[:, (columns - columns[-1]).abs() > _BESIDE * columns[-1].abs()].double()
    own = own[own.any(dim=1)]
    joined = own[:1].T
    for _ in range(_CHAIN):
        joined = own.T @ (own @ joined)
    sure = bool(rows.any()) and spare >= _SPARE and 4 * int((columns != 0).sum()) > len(columns)
    sure = sure and bool((own @ joined).all())
    return made if sure and float(off.norm()) <= max(left, _OFF * size) else None


def _pairs(problem: Problem, inputs: Tensor, reach: float, *, others: int = 1) -> list[Tensor]:
    """(2, *shape) records, a reach of the way to another one before and behind a record.

    Near ones lie in the box: a number at its end is the mean of no others.
    """
    pixels, draw = problem.box.pixels(inputs), torch.Generator().manual_seed(0)
    turned = pixels.flatten(1).flip(1).reshape(pixels.shape)
    drawn = torch.rand(others, *pixels.shape, generator=draw).to(pixels)
    ways = [reach * (to - pixels) for to in (turned, *drawn)]  # the former may be none
    if reach < 0.5:
        room = torch.minimum(pixels, 1 - pixels).clamp_min(0)
        ways = [way.clamp(-room, room) for way in ways]
    far = torch.stack([way.abs().mean() for way in ways]).tolist()
    ways = [way for way, mean in zip(ways, far, strict=True) if mean > reach * _WAY]
    return [problem.box.inputs(torch.cat([pixels + way, pixels - way])) for way in ways]


def left_by_two(problem: Problem, inputs: Tensor, labels: Tensor, *, reach: float = 0.5) -> float:
    """What two records, in place of one half-way between them, leave of its gradient, relatively.

    Where that is no more than a cast may leave, one cannot be told from two. They are a reach of
    the way to another record away from it. Infinite of one output, which has no cross-entropy.
    """
    of = functools.partial(sent_gradients, problem.observation, problem.model)
    one = of(inputs=inputs, targets=labels).detach()
    both = [
        of(inputs=pair, targets=labels.repeat(2)).detach()
        for pair in _pairs(problem, inputs, reach)
    ]
    if not both or problem.classes == 1:
        return math.inf
    least = torch.stack([(two - one).norm() for two in both]).min()
    return float(least) / max(float(one.norm()), 1e-300)  # 0 where no record sends anything


def may_be_two(problem: Problem, inputs: Tensor) -> bool:
    """Whether two records explain a gradient under some loss as well as the one between them.

    So it is where units are linear about all three, before one output or where the loss has one
    slope on either side, as a margin; of any other loss where they leave more than rounding of the
    one's own slopes. Of a linear first layer with a bias `angle_of_others` tells of those far off.
    """
    of = functools.partial(fitted, problem.observation, problem.model, classes=problem.classes)
    if (one := of(inputs=inputs)) is None or one.left > _EXPLAINED:
        return False
    rounding = max(problem.observation.rounding, torch.finfo(torch.float32).eps)
    turned = not _is_flat(one.slopes[0]) and one.left <= _ROUNDED * rounding
    both = [] if turned else _pairs(problem, inputs, NEAR, others=_OTHERS)
    both += [] if _linear(problem) is not None else _pairs(problem, inputs, 0.5)
    fits = (of(inputs=pair) for pair in both)
    most = _PAIRED * max(one.left, torch.finfo(torch.float32).eps)
    return any(fit is not None and fit.left <= most for fit in fits)


def angle_of_others(problem: Problem, pixels: Tensor, direction: Tensor | None = None) -> float:
    """Sine of the least angle of other inputs' derivatives to a direction; 1 where all are 0.

    Several records have rank 1, too, where it is 0. The direction is that of the first layer's
    bias where none is given; 1 where that layer is not linear. Where a part of that layer is shown,
    the rows alone tell them apart in which both have a derivative.
    """
    seen, model, box, classes = problem.observation, problem.model, problem.box, problem.classes
    if (layer := _linear(problem)) is None:
        return 1.0
    point, name = seen.points[0, 0], parameter_name(layer, "bias")
    if direction is None:
        direction = unflatten(model, seen.gradient[0])[name].double()
        direction = direction / direction.norm().clamp_min(1e-300)
    held = direction.abs() > (_OFF if _layer(problem) is None else -1.0)

    def derivative(x: Tensor, label: int) -> Tensor:
        inputs = box.inputs(x)[None].to(point)
        if classes > 1:
            sent = sent_gradient(
                model, point, inputs=inputs, of=Sent(clip_norm=None),
                targets=torch.tensor([label], device=point.device),
            )  # fmt: skip
            return unflatten(model, sent.detach())[name].double()
        values = unflatten(model, point)

        def output(bias: Tensor) -> Tensor:
            return functional_call(model, values | {name: bias}, (inputs,)).sum()

        return grad(output)(values[name]).detach().double()

    # Under a loss that is not known records of one label may differ as little as they do here.
    labels = range(0, classes, -(-classes // _LABELS))
    own = [derivative(pixels, label) for label in labels]
    near = torch.stack([way @ direction / way.norm().clamp_min(1e-300) for way in own])
    nearest = int(near.abs().argmax())
    if not bool(own[nearest].any()):  # nor does the record itself send anything
        return 0.0
    draw = torch.Generator().manual_seed(0)
    # Before few outputs only which units it activates tells a record from others near it.
    drawn = torch.rand(_OTHERS if classes <= 2 else 2, *pixels.shape, generator=draw).to(pixels)
    turned = pixels.flatten().flip(0).reshape(pixels.shape)
    others = (turned, (turned + drawn[0]) / 2, *((pixels + x) / 2 for x in drawn[1:]))
    least = 1.0
    for x in others:
        if float((x - pixels).abs().mean()) <= _WAY:
            continue
        made = [(derivative(x, label), direction) for label in labels]
        for delta, along in [*made, (made[nearest][0], own[nearest])]:
            at = held if bool(held.all()) else held & (delta != 0)
            delta, along = delta[at], along[at]
            if bool(delta.any()) and bool(along.any()) and 2 * int(at.sum()) >= int(held.sum()):
                across = delta - (delta @ along) / (along @ along) * along
                least = min(least, float(across.norm() / delta.norm()))
    return least


def _size(values: Tensor) -> float:
    return float(values.square().mean().sqrt())


def _decay(changed: Tensor, start: Tensor) -> float:
    """The factor of a matrix that leaves most of rank 1."""
    factor = 0.0
    for _ in range(_ROUNDS):
        left, _, right = torch.linalg.svd(changed - factor * start, full_matrices=False)
        u, v = left[:, :1], right[:1]
        outer = start - u @ (u.T @ start)
        outer = outer - (outer @ v.T) @ v
        size = outer.square().sum().clamp_min(1e-300)  # 0 of a layer of zeros
        before, factor = factor, float((outer * changed).sum() / size)
        if abs(factor - before) <= 1e-12 * abs(factor):
            break
    return factor
