"""The labels of a batch, read off the last linear layer's gradient.

For logits z = W a + b and cross-entropy, record i contributes (p_i - y_i) a_i^T to the gradient of
W and p_i - y_i to that of b, with p_i its probabilities and y_i its one-hot label. The label is
the only class with a negative entry.

- One record: Zhao, Mopuri, Bilen (2020), "iDLG". Here the sign is read from the top singular
  vector of [W, b], which averages the noise over all columns, and from b alone where that vector
  does not stand out of the noise. All layers together say more: `likeliest_label` compares what a
  public image would have sent under each label. A difference of gradients at two points, as of
  recursive momentum, has any signs, and so may the loss of a task: only that comparison is left.
- A batch: Wainakh et al. (2022), "User-Level Label Leakage from Gradients": classes are taken one
  by one, the most negative remaining entry first, and each take adds one record's share.

Where we differ from the papers: the share and the offset come from the mean probabilities of the
model, and per-record clipping, which shrinks every entry by one unknown factor, is met by trying
factors and keeping the one that leaves the least residual.

Under another loss the last layer's gradient tells its derivative in z, and `fitted` what a batch
leaves of all other layers with that.

Shape letters: B records, C classes, D parameters.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import starmap
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from ...privacy.errors import InputError
from ...training.models.parameters import unflatten
from .objective import cosine_distance, whitened_residual
from .observation import HOST, Observation, rounding_of, sent_gradients
from .problem import with_buffers

_CLEAR = 2.0
_OFF = 5e-3  # share of a bias's gradient that casts may leave of a sum that is 0
_FIRST = 0.05  # residual of the first tensor alone, which may be a small part of the whole


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class LastLayer:
    """Gradients of the last linear layer: weight (K, C, features), bias (K, C) or None."""

    weight: Tensor
    bias: Tensor | None


def last_layer(observation: Observation, model: nn.Module, *, classes: int) -> LastLayer | None:
    """The gradient of the last parametrised layer, if it is linear with one output per class.

    Args:
        observation: supplies the gradient.
        model: network whose outputs are that layer's outputs.
        classes: number of classes C.

    Returns:
        The layer's gradient, or None where labels cannot be read from it.
    """
    own = [
        (name, module)
        for name, module in model.named_modules()
        if next(module.parameters(recurse=False), None) is not None
    ]
    if not own or not isinstance(own[-1][1], nn.Linear) or own[-1][1].out_features != classes:
        return None
    name, gradients = own[-1][0], unflatten(model, observation.gradient)
    prefix = f"{name}." if name else ""
    weight, bias = (gradients.get(f"{prefix}{of}") for of in ("weight", "bias"))
    if observation.shown is not None:
        held = unflatten(model, observation.shown)
        if not bool(held[f"{prefix}weight"].any()):
            return None
        bias = bias if bias is not None and bool(held[f"{prefix}bias"].any()) else None
    return None if weight is None else LastLayer(weight=weight, bias=bias)


def sums_to_zero(bias: Tensor, *, noise_std: float = 0.0) -> bool:
    """Whether (K, C) gradients of a last bias are those of a cross-entropy of logits, or clipped.

    These are means of p - y, whose entries sum to 0.

    >>> sums_to_zero(torch.tensor([[0.5, -0.5]])), sums_to_zero(torch.tensor([[0.5, -0.2]]))
    (True, False)
    """
    slack = _OFF * bias.abs().sum(dim=1) + 5 * noise_std * math.sqrt(bias.shape[1])
    return bool((bias.sum(dim=1).abs() <= slack).all())


class Fit(NamedTuple):
    """How far a batch explains a gradient under the loss of the outputs that suits it best.

    `left` is the relative residual, of the whole or, where that explains less than 19 in 20 of it,
    of the first tensor; `slopes` (B, C) are that loss's derivatives in the last layer's outputs,
    `logits` (B, C).
    """

    left: float
    slopes: Tensor
    logits: Tensor


def fitted(
    observation: Observation, model: nn.Module, *, inputs: Tensor, classes: int
) -> Fit | None:
    """What a batch leaves of a gradient, whatever the loss, its factor and its weights were.

    Args:
        observation: of one step, of one network's outputs; clips are factors of records.
        model: network whose last layer is linear.
        inputs: (B, *shape) candidate.
        classes: number of outputs C.

    Returns:
        None where the last layer does not tell the derivatives.
    """
    one_step = observation.task is None and observation.local_steps == 1
    one_step = one_step and observation.shown is None
    if not one_step or observation.points.shape[1] != 1 or observation.coefs != (1.0,):
        return None
    if (last := last_layer(observation, model, classes=classes)) is None:
        return None
    model, x = with_buffers(model, torch.float64), inputs.double()
    layers = [m for m in model.modules() if next(m.parameters(recurse=False), None) is not None]
    worst: Fit | None = None
    for k, point in enumerate(observation.points[:, 0].double()):
        held: list[tuple[Tensor, Tensor]] = []
        hook = layers[-1].register_forward_hook(
            lambda _, fed, out, to=held: to.append((fed[0], out))
        )
        values = {name: v.clone().requires_grad_() for name, v in unflatten(model, point).items()}
        try:
            functional_call(model, values, (x,))
        finally:
            hook.remove()
        if len(held) != 1 or held[0][0].ndim != 2 or not bool(held[0][0].isfinite().all()):
            return None
        fed, logits = held[0][0].detach(), held[0][1]
        seen = last.weight[k].double()
        if last.bias is not None:
            fed = torch.cat([fed, fed.new_ones(len(fed), 1)], dim=1)
            seen = torch.cat([seen, last.bias[k].double()[:, None]], dim=1)
        slopes = torch.linalg.pinv(fed.T) @ seen.T
        made = torch.autograd.grad(
            (slopes * logits).sum(), list(values.values()), allow_unused=True
        )
        target = list(unflatten(model, observation.gradient[k].double()).values())
        off = [float((g if m is None else m - g).norm()) for m, g in zip(made, target, strict=True)]
        sizes = [float(g.norm()) for g in target]
        first = off[0] / max(sizes[0], 1e-300)
        left = math.hypot(*off) / max(math.hypot(*sizes), 1e-300)
        left = left if first <= _FIRST else max(left, first)
        if worst is None or not left <= worst.left:
            worst = Fit(left, slopes, logits.detach())
    return worst


def recognised(
    observation: Observation, model: nn.Module, *, classes: int
) -> tuple[Observation, list[str]]:
    """An observation as its numbers show that it was made, and this in sentences.

    Looked for are weight decay, of which the last layer's gradient tells the factor (that of the
    cross-entropy sums to 0 over the classes, whatever the batch); numbers that were left out,
    where none that is held is small (top-k); numbers that were cut at a bound; and casts. Noise
    hides all of this.
    """
    seen, said = without_decay(observation, model, classes=classes)
    every = observation.gradient
    if seen.is_noisy or not seen.is_plain or not bool(every.any()):
        return seen, said
    parts = unflatten(model, every)
    left = {name: rounding_of(part) * float(part.norm()) for name, part in parts.items()}
    cast = math.hypot(*left.values()) / float(seen.gradient.double().norm())
    if cast > torch.finfo(torch.float32).eps:
        seen = replace(seen, rounding=max(seen.rounding, cast))
    if any(_is_sparse(part, left=left[name]) for name, part in parts.items()):
        held = (seen.gradient != 0).all(dim=0)
        seen = replace(seen, shown=held if seen.shown is None else held & seen.shown)
        said.append(
            f"{1 - float(held.double().mean()):.0%} of the gradient's numbers are 0 and none is "
            "small, so these are taken as left out and not as 0"
        )
    cut = every.abs() == every.abs().max()
    below = every[~cut & (every != 0)].abs()  # near the largest alone, where signs are left
    bounded = len(below) > 0 and float(below.median()) < _NEAR * float(every.abs().max())
    where = unflatten(model, cut)
    if bounded and any(_is_cut(where[name], part) for name, part in parts.items()):
        seen = replace(seen, gradient=every, cut=float(every.abs().max()), shown=None)
        said = [
            f"{float(cut.double().mean()):.0%} of the gradient's numbers are {seen.cut:.3g} or -1 "
            "times that, and none is larger, so these are taken as cut there, as by a clip of "
            "each number"
        ]
    return seen, said


def without_decay(
    seen: Observation, model: nn.Module, *, classes: int
) -> tuple[Observation, list[str]]:
    """An observation without a weight decay that it shows, and this in a sentence."""
    plain = seen.is_plain and not seen.is_noisy and bool(seen.gradient.any())
    if not plain or (decayed := _decayed(seen, model, classes=classes)) is None:
        return seen, []
    said = f"{decayed[1]:.3g} times the parameters is taken off the gradient, as of weight decay"
    return decayed[0], [said]


def _decayed(
    seen: Observation, model: nn.Module, *, classes: int
) -> tuple[Observation, float] | None:
    """The gradient without a multiple of the parameters, and that multiple."""
    if seen.clip_norm is not None or seen.points.shape[1] != 1:
        return None
    points = seen.points[:, 0, : seen.gradient.shape[1]]
    last, at = (
        last_layer(replace(seen, gradient=of), model, classes=classes)
        for of in (seen.gradient, points)
    )
    pairs = zip(*(unflatten(model, of).values() for of in (seen.gradient, points)), strict=True)
    factor = next((found for found in starmap(_common, pairs) if found is not None), None)
    if factor is None and last is not None and at is not None and classes > 1:
        factor = _of_sums(last.weight.double(), at.weight.double())
    if factor is None:
        return None
    parts = {name: torch.full_like(p, factor) for name, p in model.named_parameters()}
    if last is not None and at is not None and last.bias is not None and at.bias is not None:
        off, whole = last.bias.double().sum(), at.bias.double().sum()
        if abs(float(off - factor * whole)) > abs(float(off)):  # of weights alone
            parts = {n: p if p.ndim > 1 else torch.zeros_like(p) for n, p in parts.items()}
    flat = torch.cat([p.detach().flatten() for p in parts.values()]).to(points)
    rest = seen.gradient - flat * points
    rest = torch.where(rest.abs() <= _DECAYED * (flat * points).abs(), 0.0, rest)
    if float(rest.norm()) <= _FITS * float(seen.gradient.norm()):
        return None
    return replace(seen, gradient=rest if seen.shown is None else rest * seen.shown), factor


def _common(gradient: Tensor, points: Tensor) -> float | None:
    """The factor that most numbers of a tensor have, as of tokens that no record holds."""
    told = (points != 0) & (gradient != 0)
    ratios = gradient.double()[told] / points.double()[told]
    if len(ratios) < _MANY:
        return None
    middle = ratios.median()
    like = ratios[(ratios - middle).abs() <= _ALIKE * middle.abs()]
    return float(like.median()) if 2 * len(like) > len(ratios) else None


def _of_sums(last: Tensor, at: Tensor) -> float | None:
    """The factor of a last layer's weights (K, C, features), by their sums over the classes."""
    sums, of = last.sum(dim=1).flatten(), at.sum(dim=1).flatten()
    if len(of) < _FEATURES:  # so few numbers are some multiple
        return None
    factor = float(sums @ of / (of @ of).clamp_min(1e-300))
    unit = rounding_of(last) * float(last.norm())
    if float((sums - factor * of).norm()) > max(_FITS * float(sums.norm()), unit):
        return None
    return factor if float(sums.norm()) > _SHOWS * max(unit, 1e-7 * float(last.norm())) else None


def _is_sparse(part: Tensor, *, left: float) -> bool:
    """Whether some numbers of a matrix were left out: zeros beside others, and none that is small.

    A row or column of zeros may be that of a unit or a pixel.
    """
    sizes = part[part != 0].abs().double()
    if part.ndim < 3 or len(sizes) < _MANY:
        return False
    zero = part[0].flatten(1) == 0
    beside = zero & ~zero.all(dim=0) & ~zero.all(dim=1)[:, None]
    least = float(sizes.min())
    step = 4 * left / math.sqrt(part.numel())
    return bool(beside.any()) and least > max(_LARGE * float(sizes.median()), step)


def _is_cut(where: Tensor, part: Tensor) -> bool:
    """Whether numbers of a matrix were cut, of which (K, ...) says where the largest is met.

    A pixel of 1 meets it again in the same columns of every row; few bits leave few other numbers.
    """
    rows = where[0].flatten(1) if where.ndim > 2 else where[:0]
    if int(rows.sum()) < _MANY or len(part[~where].abs().unique()) < _MANY:
        return False
    return len(rows[rows.any(dim=1)].unique(dim=0)) > 1


_FITS, _SHOWS, _MANY, _LARGE, _LEAST = 1e-3, 100.0, 20, 0.2, 0.01
_NEAR = 0.9  # of the largest number: one that was not cut
_ALIKE = 1e-5  # of a factor
_FEATURES = 3
_DECAYED = 16 * torch.finfo(torch.float32).eps  # of the decay, that rounding leaves


def recover_labels(
    observation: Observation, model: nn.Module, *, classes: int, probabilities: Tensor | None = None
) -> Tensor | None:
    """The most likely labels of the batch, duplicates included.

    Args:
        observation: one batch's gradient.
        model: network with logits (B, C) as output.
        classes: number of classes C.
        probabilities: (C,) the model's mean probabilities on inputs like the batch; used for more
            than one record. Uniform where None.

    Returns:
        (records,) class indices in ascending order, on the CPU; None where the last layer is not
        linear.

    Raises:
        ValueError: `probabilities` is not a distribution over the classes.

    >>> from overhear.attacks.problem.observation import observe
    >>> model = nn.Linear(4, 3)
    >>> seen = observe(
    ...     model, torch.zeros(15), inputs=torch.rand(4, 4), targets=torch.tensor([2, 0, 2, 2]),
    ...     clip_norm=None, noise_std=0.0, generator=torch.Generator(),
    ... )
    >>> recover_labels(seen, model, classes=3).tolist()
    [0, 2, 2, 2]
    """
    observation = observation.to(device=HOST)  # where a look at each of its numbers costs nothing
    layer = last_layer(observation, model, classes=classes)
    if layer is None:
        return None
    if observation.records == 1:
        return _single_label(layer, noise_std=observation.noise_std)
    if probabilities is None:
        probabilities = torch.full((classes,), 1 / classes)
    if probabilities.shape != (classes,) or abs(float(probabilities.sum()) - 1) > 1e-3:
        raise InputError(
            f"probabilities of shape {tuple(probabilities.shape)} must be ({classes},) and sum to 1"
        )
    offsets = probabilities.to(observation.gradient)
    # Without a bias the row sums stand in: activations are not negative, their scale is unknown.
    entries = (layer.weight.sum(dim=2) if layer.bias is None else layer.bias).mean(dim=0)
    most = float(entries.abs().max())  # of a mean of p - y; more or next to nothing is scaled
    known_scale = layer.bias is not None and observation.clip_norm is None
    known_scale = known_scale and _LEAST / observation.records < most <= 1 + _FITS
    counts = _counts(entries, offsets, records=observation.records, known_scale=known_scale)
    return torch.repeat_interleave(torch.arange(classes), counts)


def likeliest_label(
    observation: Observation, model: nn.Module, *, image: Tensor, classes: int
) -> Tensor:
    """The label under which a public image explains a record's gradient best.

    Args:
        image: (*shape) in normalised units, such as the mean public one.

    Returns:
        (1,) class index.
    """
    sent = [
        sent_gradients(
            observation, model, inputs=image[None].to(observation.gradient), targets=label[None]
        ).detach()
        for label in torch.arange(classes, device=observation.gradient.device)
    ]
    left = whitened_residual if observation.is_noisy else cosine_distance
    return left(torch.stack(sent), observation).argmin()[None]


def stands_out(observation: Observation, model: nn.Module, *, classes: int) -> bool:
    """Whether the last layer's gradient tells one record's label: twice the noise's edge."""
    layer = last_layer(observation.to(device=HOST), model, classes=classes)
    if layer is None:
        return False
    joint = layer.weight.transpose(0, 1).reshape(classes, -1).double()
    edge = observation.noise_std * (math.sqrt(joint.shape[0]) + math.sqrt(joint.shape[1]))
    return float(torch.linalg.matrix_norm(joint, 2)) > _CLEAR * edge


def _single_label(layer: LastLayer, *, noise_std: float) -> Tensor:
    classes, biased = layer.weight.shape[1], layer.bias is not None
    # (C, K (features + 1)): the label is one for all intercepts
    columns = [layer.weight.transpose(0, 1).reshape(classes, -1)]
    if layer.bias is not None:
        columns.append(layer.bias.T)
    joint = torch.cat(columns, dim=1).double()
    left, values, right = torch.linalg.svd(joint, full_matrices=False)
    edge = noise_std * (math.sqrt(joint.shape[0]) + math.sqrt(joint.shape[1]))
    top, direction, strength = left[:, 0], right[0], float(values[0])
    if strength <= edge and layer.bias is not None:
        return layer.bias.sum(dim=0).argmin()[None]
    # The factor of the bias is 1 in every record, hence positive; activations are only likely so.
    side = float(direction[-len(layer.weight) :].sum() if biased else direction.sum())
    doubt = 3 * noise_std / max(strength, 1e-300)
    unsure = abs(side) <= doubt if doubt > 0 else not biased
    if unsure and len(top) > 2:
        return top.abs().argmax()[None]  # |p_y - 1| is the sum of all other probabilities
    return (top * math.copysign(1.0, side)).argmin()[None]


def _counts(entries: Tensor, offsets: Tensor, *, records: int, known_scale: bool) -> Tensor:
    """Records per class whose entries offsets - counts/B fit best, up to a positive factor."""
    size = float(entries.abs().max())
    if known_scale or size == 0:
        return _greedy(entries, offsets, records=records)
    best, least = _greedy(entries / size, offsets, records=records), math.inf
    for factor in torch.logspace(-1.5, 1.5, 121).tolist():
        counts = _greedy(entries / (size * factor), offsets, records=records)
        shape = offsets - counts / records
        fitted = float((shape @ entries) / (shape @ shape).clamp_min(1e-12))
        residual = float((entries - fitted * shape).square().sum())
        if fitted > 0 and residual < least * (1 - 1e-9):
            best, least = counts, residual
    return best


def _greedy(entries: Tensor, offsets: Tensor, *, records: int) -> Tensor:
    rest, counts = entries - offsets, torch.zeros(len(entries), dtype=torch.int64)
    for _ in range(records):
        label = int(rest.argmin())
        rest[label] += 1 / records
        counts[label] += 1
    return counts
