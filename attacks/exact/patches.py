"""A picture from the gradients of a patch embedding and of learned positions.

A vision transformer (Dosovitskiy et al. 2021, "An Image is Worth 16x16 Words") cuts a picture into
n patches x_p of d pixels and adds a learned position to the embedding of each,

    z_p = W x_p + b + e_p

With g_p the loss's derivative in z_p, one record's gradient is

    de_p = g_p,    dW = sum_p g_p x_p^T,    db = sum_p g_p

The first is shown as it is, so that the second is a linear system for the patches. Lu et al.
(2022), "APRIL: Finding the Achilles' Heel on Privacy for Vision Transformers", solve instead for
the inputs of the first attention from the derivatives of its query, key and value.

Where we differ from the paper: the attention is not looked at, and may be of any kind and number;
the equations of several intercepts are stacked; and how far rounding moves the solution is
predicted, so that one which the equations leave open (N > K F above all) is refused, whatever it
explains.

The layer and the positions are recognised by a probe: a picture all of whose pixels differ shows
which pixel goes where, and a gradient at the probe shows the parameter whose derivative is g.

Shape letters: K intercepts, N patches, P pixels of a patch, F features of an embedding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy, unfold

from ...training.models.parameters import unflatten
from ..problem.layers import fed_to, is_plain, trial_records
from ..problem.observation import rounding_of, twice_differentiable
from ..problem.problem import Box, Problem, copied

_SAME = 1e-6  # relative difference of two derivatives, in float64, that are one
_AGREES = 1e-3  # of db and the sum of the g_p, whose terms cancel; rounding leaves less
_DETERMINED = 0.1  # predicted error of a pixel, of the box, up to which a picture is determined


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Embedding:
    """A layer that embeds patches, and where the derivatives of its outputs are shown.

    `pixels` (N, P) are flat places in the picture, each once; the derivatives are the rows
    `first` to `first` + N of the gradient of `positions`, whose columns they are if `turned`.
    """

    weight: str
    bias: str | None
    pixels: Tensor
    positions: str
    first: int
    turned: bool

    def derivatives(self, gradients: dict[str, Tensor]) -> Tensor:
        """(N, F) derivatives of the embeddings."""
        rows = _rows(gradients[self.positions], turned=self.turned)
        return rows[self.first : self.first + len(self.pixels)]


def embedded_patches(problem: Problem) -> Tensor | None:
    """The picture that a patch embedding with learned positions gives away.

    Returns:
        (1, *shape) picture in normalised units, clamped into the box; None where there is
        noise or a batch, no layer embeds patches that do not overlap and cover the picture, no
        parameter shows the derivatives of the embeddings, the gradient of the bias contradicts
        them, or the equations do not determine every patch to a tenth of the box.
    """
    observation, model, box = problem.observation, problem.model, problem.box
    input_shape = problem.shape
    if observation.records != 1 or observation.is_noisy or observation.task is not None:
        return None
    if len(input_shape) != 3 or len(observation.coefs) != 1:
        return None
    embedding = _recognised(model, observation.points[0, 0], input_shape)
    if embedding is None:
        return None
    # Derivatives of the embeddings times the patches are the weight's gradient.
    rounding = max(rounding_of(observation.gradient), observation.rounding)
    left, right = [], []
    for row in observation.gradient.double():
        gradients = unflatten(model, row)
        g = embedding.derivatives(gradients)  # (N, F)
        if not _agrees(g, gradients, embedding, rounding=rounding):
            return None
        left.append(g.T)
        right.append(gradients[embedding.weight].flatten(1))
    wide = box.to(dtype=torch.float64)
    solved = _solved(torch.cat(left), torch.cat(right), rounding=rounding)
    if solved is None:
        return None
    patches, error = solved
    if not error <= _DETERMINED * float(wide.span.min()):
        return None
    # Each patch at its place.
    flat = patches.new_zeros(math.prod(input_shape))
    found = flat.scatter(0, embedding.pixels.flatten(), patches.flatten()).reshape(input_shape)
    return box.inputs(box.pixels(found.to(box.span)).clamp(0, 1))[None]


def _agrees(
    g: Tensor, gradients: dict[str, Tensor], embedding: _Embedding, *, rounding: float
) -> bool:
    """Whether derivatives are not all 0, and sum to the gradient of the bias."""
    size = g.norm(dim=1).sum()
    if not bool(size > 0):
        return False
    if embedding.bias is None:
        return True
    left = (g.sum(dim=0) - gradients[embedding.bias]).norm()
    return bool(left <= max(_AGREES, 2 * rounding) * size)


def _solved(left: Tensor, right: Tensor, *, rounding: float) -> tuple[Tensor, float] | None:
    """(N, P) patches X with left (K F, N) @ X = right (K F, P), and the error of a pixel.

    Rounding of the right side alone, all of it in the direction that is seen least.
    """
    u, values, v = torch.linalg.svd(left, full_matrices=False)
    if len(values) < left.shape[1] or not bool(values[-1] > 0):
        return None
    found = v.T @ ((u.T @ right) / values[:, None])
    error = rounding * float(right.norm() / values[-1]) / math.sqrt(found.numel())
    return (found, error) if bool(torch.isfinite(found).all()) else None


def _recognised(model: nn.Module, points: Tensor, input_shape: Sequence[int]) -> _Embedding | None:
    """The layer that embeds patches, and the parameter that shows its outputs' derivatives."""
    values = {k: v.detach().double() for k, v in unflatten(model, points).items()}
    # The network in float64, whatever its own type; a copy, since its buffers are changed.
    twin = copied(model).double()
    if (found := _embedding(twin, values, input_shape)) is None:
        return None
    name, layer, pixels = found
    probe = torch.linspace(0.05, 0.95, math.prod(input_shape)).to(points).double()
    made = probed(twin, layer, values, probe.reshape(1, *input_shape))
    if made is None or (shown := _shown(*made)) is None:
        return None
    bias = None if layer.bias is None else f"{name}.bias"
    positions, first, turned = shown
    return _Embedding(
        weight=f"{name}.weight", bias=bias, pixels=pixels, positions=positions, first=first,
        turned=turned,
    )  # fmt: skip


def probed(
    model: nn.Module, layer: nn.Module, values: dict[str, Tensor], probe: Tensor
) -> tuple[Tensor, dict[str, Tensor]] | None:
    """The loss's derivatives in the outputs (N, F) of a layer, and in the parameters."""
    calls: list[Tensor] = []

    def note(_: nn.Module, __: tuple[Tensor, ...], output: Tensor) -> None:
        calls.append(output)

    owned = {name: value.clone().requires_grad_() for name, value in values.items()}
    handle = layer.register_forward_hook(note)
    try:
        with twice_differentiable():
            logits = functional_call(model, owned, (probe,))
    finally:
        handle.remove()
    [output] = calls
    loss = cross_entropy(logits, torch.zeros(1, dtype=torch.int64, device=probe.device))
    found = torch.autograd.grad(loss, [output, *owned.values()], allow_unused=True)
    delta = found[0]
    if delta is None:
        return None
    rows = delta[0].flatten(1).T if isinstance(layer, nn.Conv2d) else delta.flatten(0, -2)
    named = zip(owned, found[1:], strict=True)
    return rows, {name: value for name, value in named if value is not None}


def patch_positions(
    model: nn.Module, layer: nn.Module, values: dict[str, Tensor], shape: Sequence[int]
) -> Tensor | None:
    """(N, P) flat places of the pixels of each patch, where each is fed exactly once, as it is."""
    count, like = math.prod(shape), next(iter(values.values()))
    probe, places = torch.linspace(0.05, 0.95, count).to(like), None
    trials = trial_records(0 * probe, 0 * probe + 1)
    if not is_plain(model, values, layer, trials[11:13].reshape(-1, *shape)):
        return None
    for record in (probe, *trials):
        fed = fed_to(model, values, record.reshape(1, *shape), [layer])
        rows = _patches(layer, fed[0]) if len(fed) == 1 else None
        if rows is None or rows.numel() != count:
            return None
        if places is None:
            places = torch.searchsorted(probe, rows.contiguous()).clamp_max(count - 1)
        if len(places.unique()) != count or not torch.equal(record[places], rows):
            return None
    return places


def _patches(layer: nn.Module, fed: Tensor) -> Tensor | None:
    """(N, P) what a layer is fed of one record, patch by patch."""
    if isinstance(layer, nn.Conv2d):
        if layer.groups != 1 or layer.padding not in ((0, 0), "valid"):
            return None
        how = {"dilation": layer.dilation, "stride": layer.stride}
        return unfold(fed, layer.kernel_size, **how)[0].T
    return fed[0] if fed.ndim == 3 and len(fed) == 1 else None


def _shown(outputs: Tensor, gradients: dict[str, Tensor]) -> tuple[str, int, bool] | None:
    """Name, first row and turn of the parameter whose gradient holds derivatives (N, F)."""
    size = float(outputs.norm())
    if size == 0:
        return None
    count, features = outputs.shape
    for name, gradient in gradients.items():
        for turned in (False, True):
            if not turned and gradient.shape[-1:] != (features,):
                continue
            if turned and (gradient.ndim < 2 or features not in gradient.shape[:2]):
                continue
            rows = _rows(gradient, turned=turned)
            for first in range(len(rows) - count + 1):
                same = rows[first : first + count]
                if same.shape == outputs.shape and float((same - outputs).norm()) <= _SAME * size:
                    return name, first, turned
    return None


def _rows(gradient: Tensor, *, turned: bool) -> Tensor:
    """A parameter as rows of features: (..., F), or ([1,] F, ...) where turned."""
    if not turned:
        return gradient.reshape(-1, gradient.shape[-1])
    whole = gradient[0] if gradient.ndim > 2 and len(gradient) == 1 else gradient
    return whole.flatten(1).T


# A picture from the gradient of the first attention, where positions are fixed and known.
#
# A vision transformer whose positions e_p are not learned shows no derivative of each patch by
# itself (`patches` needs these). But a layer that is fed the tokens one by one, as queries, keys
# and values of the first attention are, has the gradient sum_t d_t a_t^T over its T tokens: its row
# space is the span S of what the tokens are, if there are fewer tokens than features (Petrov et al.
# 2024, DAGER, test words of a vocabulary by it). A patch is no word but P numbers; yet with Q a
# basis of what is orthogonal to S,
#
#     Q a_t(x_p) = 0,   <w, a_t(x_p)> = 1,   w = (sum_t d_t a_t^T)^+ sum_t d_t
#
# are F - T + 1 equations for its P pixels, linear up to a layer norm: Newton's method solves them.
# As a_t holds the position of t, the patch at *that* place solves them and no other does. The order
# is then certified with the pixels: where another patch could stand there too, the difference of
# both is a direction that the equations leave open, and the picture is refused.
#
# Rounding decides how much of S is told: float32 gradients of smooth pictures with sinusoidal
# positions leave it open, float64 ones do not.
#
# Shape letters: N patches, P pixels of a patch, T tokens, F features of a token.

_STEPS = 12  # of Newton's method
_NUMBERS = 4e7  # entries of the derivatives of all tokens
_SHIFT = 1e-4  # of a pixel, in float64, for its derivative
_ALIKE = 1e-12


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
    embedding, _, pixels = found
    x = wide.inputs(wide.span.new_full(shape, 0.5))[None]

    def feed(x: Tensor) -> list[_Fed]:
        return _fed(twin, values, x, without=embedding)

    # The tokens that each patch feeds, and the layers that read them.
    rows, layers = _apart(feed, x, pixels)
    rounding = max(rounding_of(observation.gradient), observation.rounding)
    return _solved_attended(
        feed, x, gradients, layers=layers, rows=rows, pixels=pixels, box=wide, rounding=rounding
    )


def _embedding(
    twin: nn.Module, values: dict[str, Tensor], shape: Sequence[int]
) -> tuple[str, nn.Conv2d | nn.Linear, Tensor] | None:
    """The layer that embeds patches, and (N, P) flat places of their pixels."""
    for name, layer in twin.named_modules():
        if isinstance(layer, nn.Conv2d | nn.Linear) and f"{name}.weight" in values:
            at = patch_positions(twin, layer, values, shape)
            return None if at is None else (name, layer, at)  # the first one that is called
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

    # A forward pass up to the first layer that is fed other tokens.
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


def _solved_attended(
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
    # Tokens lie in the row space of the gradients; what is orthogonal to it vanishes on them.
    count, features = layers[0].tokens.shape
    seen = torch.cat([gradients[layer.weight] for layer in layers])
    if features <= count or len(pixels.flatten()) * features > _NUMBERS or not seen.any():
        return None
    left, sizes, right = torch.linalg.svd(seen, full_matrices=True)
    if not float(sizes[count - 1]) > rounding * float(sizes[0]):
        return None
    equations, wanted = right[count:], x.new_zeros(features - count)
    # The gradient of the biases gives the direction on which every token is 1.
    if all(layer.bias in gradients for layer in layers):
        summed = torch.cat([gradients[str(layer.bias)] for layer in layers])
        one = right[:count].T @ ((left[:, :count].T @ summed) / sizes[:count])
        equations = torch.cat([equations, one[None] / one.norm()])
        wanted = torch.cat([wanted, 1 / one.norm()[None]])
    span = box.span.expand(x.shape[1:]).flatten()[pixels]  # (N, P)
    values, size = x.new_ones(1, 1), math.inf
    # Newton steps in the pixels of every patch.
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
    feed: Callable[[Tensor], list[_Fed]], x: Tensor, *, rows: Tensor, pixels: Tensor, span: Tensor
) -> Tensor:
    """(N, F, P) derivatives of each patch's token in its pixels, of the box."""
    made = []
    for place, wide in zip(pixels.T, span.T, strict=True):
        shift = torch.zeros_like(x).flatten()
        shift[place] = _SHIFT * wide
        shift = shift.reshape(x.shape)
        made.append((feed(x + shift)[0].tokens - feed(x - shift)[0].tokens)[rows] / (2 * _SHIFT))
    return torch.stack(made, dim=2)
