"""A picture from the gradient of the first attention, where positions are fixed and known.

A vision transformer whose positions e_p are not learned shows no derivative of each patch by itself
(`patches` needs these). But a layer that is fed the tokens one by one, as queries, keys and values
of the first attention are, has the gradient sum_t d_t a_t^T over its T tokens: its row space is the
span S of what the tokens are, if there are fewer tokens than features (Petrov et al. 2024, DAGER,
test words of a vocabulary by it). A patch is no word but P numbers; yet with Q a basis of what is
orthogonal to S,

    Q a_t(x_p) = 0,   <w, a_t(x_p)> = 1,   w = (sum_t d_t a_t^T)^+ sum_t d_t

are F - T + 1 equations for its P pixels, linear up to a layer norm: Newton's method solves them. As
a_t holds the position of t, the patch at *that* place solves them and no other does. The order is
then certified with the pixels: where another patch could stand there too, the difference of both is
a direction that the equations leave open, and the picture is refused.

Rounding decides how much of S is told: float32 gradients of smooth pictures with sinusoidal
positions leave it open, float64 ones do not.

Shape letters: N patches, P pixels of a patch, T tokens, F features of a token.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from ...training.models.parameters import unflatten
from ..problem.derivatives import twice_differentiable
from ..problem.prior import Box
from ..problem.problem import Problem, copied
from .patches import places, probed, rounding_of

_STEPS = 12  # of Newton's method
_NUMBERS = 4e7  # entries of the derivatives of all tokens
_SHIFT = 1e-4  # of a pixel, in float64, for its derivative
_ALIKE = 1e-12
_DETERMINED = 0.1  # error of a patch, of the box, up to which a picture is determined


class _Fed(NamedTuple):
    """What a layer is fed, and the parameters whose gradients are sums over its tokens."""

    tokens: Tensor  # (T, F)
    weight: str
    bias: str | None


def attended_patches(problem: Problem) -> Tensor | None:
    """The picture that the first layer of a transformer's tokens gives away, by one intercept.

    Returns:
        (1, *shape) picture in normalised units, clamped into the box, its patches in their
        places; None where there is noise or a batch, no layer embeds patches that do not overlap,
        no layer is fed tokens that have not met, there are not more features than tokens, or the
        equations do not determine every patch, at its place, to a tenth of the box.
    """
    observation, model, shape = problem.observation, problem.model, problem.shape
    if observation.records != 1 or observation.is_noisy or not observation.is_plain:
        return None
    if len(shape) != 3:
        return None
    values = {
        name: value.detach().double()
        for name, value in unflatten(model, observation.points[0, 0]).items()
    }
    gradients = {n: g.double() for n, g in unflatten(model, observation.gradient[0]).items()}
    twin = copied(model).double()
    wide = problem.box.to(dtype=torch.float64)
    found = _embedding(twin, values, shape)
    if found is None:
        return None
    embedding, pixels = found
    x = wide.inputs(wide.span.new_full(shape, 0.5))[None]

    def feed(x: Tensor) -> list[_Fed]:
        return _fed(twin, values, x, without=embedding)

    rows, layers = _apart(feed, x, pixels)
    rounding = max(rounding_of(observation.gradient), observation.rounding)
    return _solved(
        feed, x, gradients, layers=layers, rows=rows, pixels=pixels, box=wide, rounding=rounding
    )


def _embedding(
    twin: nn.Module, values: dict[str, Tensor], shape: tuple[int, ...]
) -> tuple[str, Tensor] | None:
    """The layer that embeds patches, and (N, P) flat places of their pixels."""
    count = math.prod(shape)
    like = next(iter(values.values()))
    probe = torch.linspace(0.05, 0.95, count, dtype=torch.float64, device=like.device)
    for name, layer in twin.named_modules():
        if isinstance(layer, nn.Conv2d | nn.Linear) and f"{name}.weight" in values:
            fed, _ = probed(twin, layer, values, probe.reshape(1, *shape))
            at = None if fed is None else places(layer, fed, probe)
            return None if at is None else (name, at)
    return None


class _Enough(Exception):  # the layers of interest have been called
    """Ends a forward."""


def _fed(twin: nn.Module, values: dict[str, Tensor], x: Tensor, *, without: str) -> list[_Fed]:
    """What the first layer of tokens behind the embedding is fed, and those fed the same."""
    calls: list[_Fed] = []

    def note(name: str, module: nn.Module) -> Callable[..., None]:
        attention = isinstance(module, nn.MultiheadAttention)
        part = "in_proj_" if attention else ""

        def hook(_: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
            tokens = given[0] if given else next(iter(named.values()))
            if attention and not module.batch_first and tokens.ndim == 3:
                tokens = tokens.transpose(0, 1)
            weight, bias = f"{name}.{part}weight", f"{name}.{part}bias"
            if tokens.ndim != 3 or len(tokens) != 1 or weight not in values:
                return
            if calls and not torch.equal(calls[0].tokens, tokens[0]):
                raise _Enough
            calls.append(_Fed(tokens[0].detach(), weight, bias if bias in values else None))

        return hook

    hooks = [
        module.register_forward_pre_hook(note(name, module), with_kwargs=True)
        for name, module in twin.named_modules()
        if isinstance(module, nn.Linear | nn.MultiheadAttention) and name != without
    ]
    try:
        with twice_differentiable(), torch.no_grad():
            functional_call(twin, values, (x,))
    except _Enough:
        pass
    finally:
        for hook in hooks:
            hook.remove()
    return calls


def _apart(
    feed: Callable[[Tensor], list[_Fed]], x: Tensor, pixels: Tensor
) -> tuple[Tensor | None, list[_Fed]]:
    """(N,) the token of each patch, where each is in one token and no token holds two."""
    layers = feed(x)
    if not layers:
        return None, layers
    rows = []
    for patch in pixels:
        moved = x.flatten().clone()
        moved[patch] += 0.1 * (1 + torch.arange(len(patch)).to(moved) / len(patch))
        again = feed(moved.reshape(x.shape))
        if not again or again[0].tokens.shape != layers[0].tokens.shape:
            return None, layers
        changed = (again[0].tokens - layers[0].tokens).abs().amax(dim=1)
        at = (changed > _ALIKE * layers[0].tokens.abs().max()).nonzero()[:, 0]
        if len(at) != 1:
            return None, layers
        rows.append(at)
    whole = torch.cat(rows)
    return (whole if len(whole.unique()) == len(whole) else None), layers


def _solved(
    feed: Callable[[Tensor], list[_Fed]],
    x: Tensor,
    gradients: dict[str, Tensor],
    *,
    layers: list[_Fed],
    rows: Tensor | None,
    pixels: Tensor,
    box: Box,
    rounding: float,
) -> Tensor | None:
    """Newton's method for all patches at once; None where one of them is left open."""
    if rows is None or not all(layer.weight in gradients for layer in layers):
        return None
    count, features = layers[0].tokens.shape
    seen = torch.cat([gradients[layer.weight] for layer in layers])
    if features <= count or len(pixels.flatten()) * features > _NUMBERS or not seen.any():
        return None
    left, sizes, right = torch.linalg.svd(seen, full_matrices=True)
    if not float(sizes[count - 1]) > rounding * float(sizes[0]):
        return None
    equations, wanted = right[count:], x.new_zeros(features - count)
    if all(layer.bias in gradients for layer in layers):
        summed = torch.cat([gradients[str(layer.bias)] for layer in layers])
        one = right[:count].T @ ((left[:, :count].T @ summed) / sizes[:count])
        equations = torch.cat([equations, one[None] / one.norm()])
        wanted = torch.cat([wanted, 1 / one.norm()[None]])
    span = box.span.expand(x.shape[1:]).flatten()[pixels]  # (N, P)
    values, size = x.new_ones(1, 1), math.inf
    for _ in range(_STEPS):
        tokens = feed(x)[0].tokens[rows]  # (N, F)
        slopes = equations @ _slopes(feed, x, rows=rows, pixels=pixels, span=span)  # (N, R, P)
        missing = wanted - tokens @ equations.T  # (N, R)
        u, values, v = torch.linalg.svd(slopes, full_matrices=False)
        if slopes.shape[1] <= slopes.shape[2] or not bool((values[:, -1] > 0).all()):
            return None
        step = v.mT @ ((u.mT @ missing[..., None]) / values[..., None])
        flat = x.flatten().index_add(0, pixels.flatten(), (step[..., 0] * span).flatten())
        x = flat.reshape(x.shape)
        size = float(step.abs().max())
        if not math.isfinite(size) or size < 1e-9:
            break
    # There are more equations than pixels: what rounding does to them is seen in what they leave.
    missing = wanted - feed(x)[0].tokens[rows] @ equations.T
    error = float((missing.norm(dim=1) / values[:, -1]).max())
    if not (size <= _DETERMINED and error <= _DETERMINED):
        return None
    return box.inputs(box.pixels(x[0]).clamp(0, 1))[None]


def _slopes(
    feed: Callable[[Tensor], list[_Fed]],
    x: Tensor,
    *,
    rows: Tensor,
    pixels: Tensor,
    span: Tensor,
) -> Tensor:
    """(N, F, P) derivatives of each patch's token in its pixels, of the box."""
    made = []
    for place, wide in zip(pixels.T, span.T, strict=True):
        shift = torch.zeros_like(x).flatten()
        shift[place] = _SHIFT * wide
        shift = shift.reshape(x.shape)
        made.append((feed(x + shift)[0].tokens - feed(x - shift)[0].tokens)[rows] / (2 * _SHIFT))
    return torch.stack(made, dim=2)
