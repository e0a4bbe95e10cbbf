"""The direction and the image that belong to one pattern of active units.

In the terms of `relu_spaces`, with U and Y the column and row spaces of [dW, db] (singular values
S), a record's direction d and its image x solve linear systems once its pattern is known:

    U q = 0 where inactive, U q = V^T r where active                        q up to a factor
    rows of Q^{-1} S Y^T = s [x, 1]                                         if all B are known
    [x, 1] = Y g, [a, 1] in the row space of [dV, dc],
        a = 0 where inactive, a = h where active                            for one alone

Each comes with the error that the rounding of the observation lets expect; a system that leaves
two solutions open within it gives none.

Shape letters: m units, n inputs, B records.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ...training.models.parameters import unflatten
from ..problem.layers import fed_to, is_fed_raw, parameter_name
from ..problem.observation import Observation
from .binary_vertices import most_rank

# What the gradients of two linear layers around a ReLU span, and how sure that is.
#
# For h = W x + b, a = relu(h), z = V a + c, the gradient of [W, b] has the records' directions as
# its column space and their [x, 1] as its row space; that of [V, c] has their [a, 1] as its row
# space. Ranks are read from gaps of the singular values, errors of a basis from the first value
# behind the gap: nothing here knows whether the gradient was computed in single precision.
#
# Shape letters: m units, n inputs, B records.

_GAP = 100.0  # of the singular values at rank B: less is no rank
_FLOOR = 1e-5  # what is above it, relative to the largest value, is a record and not rounding


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ReluLayers:
    """Names of the two linear layers around the ReLU."""

    first: str
    second: str


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ReluSpaces:
    """What one intercept says of the batch, in float64."""

    left: Tensor  # (m, B) U
    values: Tensor  # (B,) S
    right: Tensor  # (n + 1, B) Y
    noise: Tensor  # (B,) error of the columns of U and Y: the first rounding value over S
    always: Tensor  # (m,) units that every record activates
    never: Tensor
    weight: Tensor  # (m, n + 1) [W, b]
    back: Tensor  # (m, ranks) V^T R
    activations: Tensor | None  # (m + 1, B) row space of [dV, dc], where it has rank B
    activation_noise: Tensor  # (B,) error of its columns


def find_relu_layers(
    model: nn.Module, flat: Tensor, input_shape: Sequence[int]
) -> ReluLayers | None:
    """The first two parametrised layers, if probes show the input, and a ReLU between them.

    The parameters are (D,), and the input's shape is that of one record.
    """
    own = [
        (name, module)
        for name, module in model.named_modules()
        if next(module.parameters(recurse=False), None) is not None
    ]
    count = math.prod(input_shape)
    if len(own) < 2:
        return None
    (first, one), (second, two) = own[:2]
    if not (isinstance(one, nn.Linear) and isinstance(two, nn.Linear)):
        return None
    if not {"weight", "bias"} <= set(dict(one.named_parameters(recurse=False))):
        return None
    if (
        "weight" not in dict(two.named_parameters(recurse=False))
        or not is_fed_raw(model, one, flat, input_shape)
        or two.in_features != one.out_features
        or type(two).forward is not nn.Linear.forward
    ):
        return None
    # Probes show that the ReLU of the first layer is fed to the second.
    values = unflatten(model, flat)
    probe = torch.stack([torch.linspace(-1, 1, count), torch.linspace(1, -1, count) ** 3])
    probe = probe.to(flat).reshape(2, *input_shape)
    fed = fed_to(model, values, probe, [one, two])
    weight, bias = values[parameter_name(first, "weight")], values[parameter_name(first, "bias")]
    expected = (probe.reshape(2, -1) @ weight.T + bias).clamp_min(0)
    if len(fed) != 2 or fed[1].shape != expected.shape:
        return None
    if not torch.allclose(fed[1], expected, atol=1e-12):
        return None
    return ReluLayers(first=first, second=second)


def measure_spaces(seen: Observation, model: nn.Module, layers: ReluLayers) -> ReluSpaces | None:
    """Column and row spaces of both layers' gradients, None where the rank is not B.

    They are of one intercept without noise, of a model whose layers `find_relu_layers` names.
    """
    gradients = unflatten(model, seen.gradient[0].double())
    values = unflatten(model, seen.points[0, 0].double())

    def joint(source: dict[str, Tensor], layer: str) -> Tensor:
        parts = [source[parameter_name(layer, "weight")]]
        if parameter_name(layer, "bias") in source:
            parts.append(source[parameter_name(layer, "bias")][:, None])
        return torch.cat(parts, dim=1)

    # The first layer's gradient has the rank of the batch, by a clear gap.
    records = seen.records
    first, second = joint(gradients, layers.first), joint(gradients, layers.second)
    if records >= most_rank(first):
        return None
    left, strengths, right = torch.linalg.svd(first, full_matrices=False)
    top, last, behind = (float(strengths[i]) for i in (0, records - 1, records))
    behind = max(behind, 1e-16 * top)
    if top == 0 or last < _GAP * behind or behind > _FLOOR * top:
        return None
    rounding = (10 * behind / top) ** 0.75  # between the rounding and what a record leaves
    # Units that no record activates, and those that every record does.
    rows = torch.linalg.vector_norm(first, dim=1)
    never = rows <= rounding * rows.max()
    outgoing = values[parameter_name(layers.second, "weight")]
    always = torch.zeros_like(never)
    biased = parameter_name(layers.second, "bias") in gradients
    if biased:
        slope = gradients[parameter_name(layers.second, "bias")]
        sizes = outgoing.T.abs() @ slope.abs()
        always = (first[:, -1] - outgoing.T @ slope).abs() <= rounding * sizes
        always &= ~never
    # The second layer's gradient: derivatives span its columns, and activations its rows.
    classes, weights, rest = torch.linalg.svd(second, full_matrices=False)
    # All of V^T is free of rounding; where it leaves too much open, its part in dV's column space.
    back = outgoing.T
    if int(always.sum()) < records + len(weights):
        rank = int((weights > 10 * behind / top * weights[0]).sum())
        back = outgoing.T @ classes[:, : min(records, max(rank, 1))]
    activations, doubt = None, torch.ones(records).to(weights)
    if biased and len(weights) > records:
        after = max(float(weights[records]), 1e-16 * float(weights[0]))
        doubt = after / weights[:records].clamp_min(after)
        activations = rest[:records].T if float(doubt[-1]) <= 1 / _GAP else None
    return ReluSpaces(
        left=left[:, :records],
        values=strengths[:records],
        right=right[:records].T,
        noise=behind / strengths[:records],
        always=always,
        never=never,
        weight=joint(values, layers.first),
        back=back / torch.linalg.vector_norm(back, dim=0).clamp_min(1e-300),
        activations=activations,
        activation_noise=doubt,
    )


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Direction:
    """The one direction that fits a pattern."""

    pattern: Tensor  # (m,) True where active
    mixture: Tensor  # (B,) q of norm 1, its sign open
    error: float  # of q, from the measured noise
    decisive: float  # largest leverage of a unit: at 1 the direction hangs on that unit alone


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Image:
    """The one image that fits a pattern."""

    inputs: Tensor  # (n,)
    error: float  # predicted root mean square
    sign: float | None  # of the direction, where all records are known; else None


def find_direction(spaces: ReluSpaces, pattern: Tensor) -> Direction | None:
    """The direction of a pattern, None where the pattern has none or leaves several open.

    The pattern (m,) is True where active, and the spaces are those of one intercept.
    """
    # The null vector (q, f) of U q = 0 where inactive and U q = V^T R f where active.
    records = len(spaces.values)
    back = torch.where(pattern[:, None], -spaces.back, 0.0)
    left, sizes, right = torch.linalg.svd(
        torch.cat([spaces.left, back], dim=1), full_matrices=False
    )
    if len(sizes) < right.shape[1]:
        return None
    z = right[-1]
    size = float(z[:records].norm())
    if size < 1e-6:
        return None
    q = z[:records] / size
    # One null vector, clearly: small beside noise, and no second one near it.
    noise = float(torch.linalg.vector_norm(q * spaces.noise))
    residual = float(sizes[-1]) / size
    rival = float(torch.linalg.vector_norm(right[-2, :records] * spaces.noise))
    if residual > max(30 * noise, 1e-12) or float(sizes[-2]) < 10 * max(noise, rival, residual):
        return None
    spread = right[:-1, :records].square().sum(dim=1) / sizes[:-1].square()
    return Direction(
        pattern=pattern,
        mixture=q,
        error=max(noise, residual) * float(spread.sum().sqrt()),
        decisive=float(left[:, :-1].square().sum(dim=1).max()),
    )


def find_images(spaces: ReluSpaces, directions: Sequence[Direction]) -> list[Image | None]:
    """The image of each direction, None where only all records together would give it.

    Directions are of distinct patterns, and the spaces those of one intercept.
    """
    if len(directions) == len(spaces.values):
        together = _all_images(spaces, directions)
        if together is not None:
            return list(together)
    return [_single_image(spaces, direction) for direction in directions]


def _all_images(spaces: ReluSpaces, directions: Sequence[Direction]) -> list[Image] | None:
    """Images by the inverse of all B mixtures."""
    mixtures = torch.stack([direction.mixture for direction in directions], dim=1)  # (B, B)
    sizes = torch.linalg.svdvals(mixtures)
    if float(sizes[-1]) < 1e-9:
        return None
    inverse = torch.linalg.inv(mixtures)
    rows = inverse @ (spaces.values[:, None] * spaces.right.T)  # (B, n + 1)
    scales = rows[:, -1]
    if float(scales.abs().min()) == 0:
        return None
    inputs = rows[:, :-1] / scales[:, None]
    reach = torch.linalg.vector_norm(inverse, dim=1)  # (B,)
    errors = torch.tensor([direction.error for direction in directions]).to(inputs)
    # A wrong q_k mixes image k into the others; and the rows themselves are rounded.
    mixed = reach[:, None] * errors * (scales[None] / scales[:, None]) * torch.cdist(inputs, inputs)
    rounding = spaces.noise[-1] * spaces.values[-1] * reach / scales.abs()
    size = 1 + torch.linalg.vector_norm(inputs, dim=1) / math.sqrt(inputs.shape[1])
    total = torch.linalg.vector_norm(mixed, dim=1) + rounding * size
    total = total / math.sqrt(inputs.shape[1])
    return [
        Image(inputs=x, error=float(e), sign=math.copysign(1.0, float(s)))
        for x, e, s in zip(inputs, total, scales, strict=True)
    ]


def _single_image(spaces: ReluSpaces, direction: Direction) -> Image | None:
    """The image whose activations on the pattern are those of one vector of dV's row space."""
    if spaces.activations is None:
        return None
    pattern, records = direction.pattern, len(spaces.values)
    if len(pattern) < 2 * records:
        return None
    responses = spaces.weight @ spaces.right  # (m, B): h = responses g
    rows = torch.cat(
        [torch.where(pattern[:, None], -responses, 0.0), spaces.activations[:-1]], dim=1
    )
    unit = torch.cat([spaces.right[-1], -spaces.activations[-1]])
    _, sizes, right = torch.linalg.svd(torch.cat([rows, unit[None]]), full_matrices=False)
    z = right[-1]
    scale = float(spaces.right[-1] @ z[:records])
    noise = torch.cat(
        [spaces.noise * torch.linalg.matrix_norm(spaces.weight, ord=2), spaces.activation_noise]
    )
    # One solution, clearly: the next singular value is far above noise.
    own, rival = (float(torch.linalg.vector_norm(v * noise)) for v in (z, right[-2]))
    if scale == 0 or float(sizes[-2]) < 10 * max(own, rival):
        return None
    inputs = (spaces.right[:-1] @ z[:records]) / scale
    # The residual's size per equation, carried through the other singular vectors.
    freedom = max(len(rows) - 2 * records, 1)
    residual = max(float(sizes[-1]), own, 1e-15 * float(sizes[0])) / math.sqrt(freedom)
    spread = right[:-1, :records].square().sum(dim=1) / sizes[:-1].square().clamp_min(1e-300)
    norm = math.sqrt(inputs.numel())
    error = residual * float(spread.sum().sqrt()) / abs(scale)
    size = 1 + float(inputs.norm()) / norm
    return Image(inputs=inputs, error=error * size / norm, sign=None)


# Which units each record of a batch activates, from two linear images that exclude each other.
#
# For h = W x + b, a = relu(h), every unit i and every record satisfies a_i = 0 or a_i - h_i = 0. If
# a record is an unknown vector z of a known space, both are linear in z: p_i = P_i z, n_i = N_i z
# and
#
#     p_i n_i = 0    for every unit i,                                                         (1)
#
# the statement that p is a sparse direction of the column space of P, and n its complement in N.
#
# Dimitrov, Baader, Mueller, Vechev (2024), "SPEAR: Exact Gradient Inversion of Batches in Federated
# Learning", look for the sparsest directions by sampling rows. Here (1) is solved for all records
# at once:
#
#     N z = 0 on the units that every record activates                     linear: z = R w
#     <P_i R (N_i R)^T, S> = 0 on the others, linear in S = w w^T          null space of m equations
#     the null space is spanned by the records' w_b w_b^T if its dimension is B
#     S_1 S_2^{-1} of two of its elements has the w_b as eigenvectors
#     w <- least right singular vector of the rows that its pattern selects, until the pattern stays
#
# **Where we differ from the paper**: no sampling, hence no time exponential in B. The price is that
# B (B - 1) / 2 units must be active in some records and not in others; if too few units are always
# active to tie z to P z by N z = 0, about B more for each coordinate that stays free. With fewer,
# or with records that share a pattern, the null space has further elements; then vectors w with w
# w^T in it are sought by alternating projections from random starts, which finds some or none.
#
# Shape letters: m units, B records, D unknowns of one record, F patterns found.

_PENCILS = 6  # pairs of elements of the null space: a pair fails where two eigenvalues meet
_STARTS = 96
_STEPS = 60


def activity_patterns(
    active_rows: Tensor,
    inactive_rows: Tensor,
    *,
    always: Tensor,
    never: Tensor,
    records: int,
    noise: float,
    generator: torch.Generator,
) -> Tensor:
    """Candidate patterns of activity, one per record if all goes well.

    Args:
        active_rows: (m, D) P, zero on a record where its unit is inactive.
        inactive_rows: (m, D) N, zero on a record where its unit is active.
        always: (m,) units that every record activates.
        never: (m,) units that no record activates.
        records: number of records B.
        noise: relative error of the rows.
        generator: source of the random combinations and starts.

    Returns:
        (F, m) boolean, True where active; candidates to be checked, F may be 0 or exceed B.
    """
    space = _null_space(
        _unit_rows(inactive_rows[always]), least=records, tolerance=max(1e-9, 10 * noise)
    )
    mixed = ~always & ~never
    if not bool(mixed.any()):
        return always[None].clone()
    # Where few units are always active, vectors with P z = 0 solve (1) and mean nothing: the last
    # coordinates are theirs, and their squares are left out of S.
    _, values, right = torch.linalg.svd(active_rows @ space, full_matrices=True)
    own = int((values > max(1e-9, 10 * noise) * float(values[0])).sum())
    space = space @ right.T
    p, n = active_rows[mixed] @ space, inactive_rows[mixed] @ space
    # Without whitening the records are nearly parallel and products of small entries are lost.
    first, rest = _white(torch.cat([p, n])[:, :own]), _white(n[:, own:])
    p = _unit_rows(torch.cat([p[:, :own] @ first, torch.zeros_like(n[:, own:] @ rest)], dim=1))
    n = _unit_rows(torch.cat([n[:, :own] @ first, n[:, own:] @ rest], dim=1))
    squares, values = _squares(p, n, own=own)
    last = min(records, len(squares))
    # Starts are settled to patterns; where these are too few, more are drawn.
    starts = _pencils(squares[-last:, :own, :own], generator=generator)
    found = _settle(_complete(starts, p, n), p, n)
    if len(found) < records:
        wide = max(last, int((values <= max(1e-8, 30 * noise)).sum()))
        drawn = _alternate(squares[-wide:, :own, :own], generator=generator)
        found = torch.unique(torch.cat([found, _settle(_complete(drawn, p, n), p, n)]), dim=0)
    patterns = always[None].repeat(len(found), 1)
    patterns[:, mixed] = found
    return patterns


def _unit_rows(rows: Tensor) -> Tensor:
    size = torch.linalg.vector_norm(rows, dim=-1, keepdim=True)
    return rows / size.clamp_min(1e-300)


def _null_space(rows: Tensor, *, least: int, tolerance: float) -> Tensor:
    """(D, at least `least`) orthonormal columns that the rows send to zero, within tolerance."""
    unknowns = rows.shape[1]
    _, values, right = torch.linalg.svd(rows, full_matrices=True)
    rank = min(int((values > tolerance).sum()), unknowns - least)
    return right[rank:].T


def _white(rows: Tensor) -> Tensor:
    """(D, D) coordinates in which the rows have equal size in all directions."""
    if rows.shape[1] == 0:
        return rows.new_zeros(0, 0)
    _, values, right = torch.linalg.svd(rows, full_matrices=False)
    return right.T / values.clamp_min(1e-14 * float(values[0]) + 1e-300)


def _squares(p: Tensor, n: Tensor, *, own: int) -> tuple[Tensor, Tensor]:
    """Symmetric matrices (q, D, D), the ones nearest to satisfying (1) last, and their errors."""
    unknowns = p.shape[1]
    i, j = torch.triu_indices(unknowns, unknowns).unbind()
    i, j = i[i < own], j[i < own]
    product = p[:, :, None] * n[:, None, :]
    product = (product + product.transpose(1, 2)) / 2
    weight = torch.where(i == j, 1.0, 2**0.5).to(p)  # the Frobenius product of the full matrices
    _, values, right = torch.linalg.svd(product[:, i, j] * weight, full_matrices=True)
    values = torch.cat([values, values.new_zeros(right.shape[0] - len(values))])
    flat = right / weight
    squares = flat.new_zeros(len(flat), unknowns, unknowns)
    squares[:, i, j] = flat
    squares[:, j, i] = flat
    return squares, values


def _pencils(squares: Tensor, *, generator: torch.Generator) -> Tensor:
    """(starts, D) common factors of matrices sum_b t_b w_b w_b^T, for independent w_b."""
    count, unknowns = len(squares), squares.shape[1]
    span = torch.linalg.svd(squares.transpose(0, 1).reshape(unknowns, -1), full_matrices=False)[0]
    span = span[:, :count]  # (D, B): where there are more unknowns than records
    small = span.T @ squares @ span
    found = []
    for _ in range(_PENCILS):
        mix = torch.randn(2, count, generator=generator, dtype=squares.dtype)
        first, second = torch.einsum("kb,bij->kij", mix, small)
        vectors = torch.linalg.eig(first @ torch.linalg.pinv(second))[1].real
        found.append((span @ vectors).T)
    return torch.cat(found)


def _alternate(squares: Tensor, *, generator: torch.Generator) -> Tensor:
    """(starts, D) vectors whose squares lie near the span of the matrices."""
    unknowns = squares.shape[1]
    left, values, _ = torch.linalg.svd(squares.flatten(1).T, full_matrices=False)
    basis = left[:, values > 1e-9 * float(values[0])]  # (D D, q)
    w = torch.randn(_STARTS, unknowns, generator=generator, dtype=squares.dtype)
    w = _unit_rows(w)
    for _ in range(_STEPS):
        near = (w[:, :, None] * w[:, None, :]).flatten(1) @ basis @ basis.T
        values, vectors = torch.linalg.eigh(near.reshape(-1, unknowns, unknowns))
        top = values.abs().argmax(dim=1)
        w = vectors[torch.arange(len(w)), :, top]
    return w


def _complete(starts: Tensor, p: Tensor, n: Tensor) -> Tensor:
    """(starts, D) the last coordinates by least squares: n = 0 where p is not."""
    own = starts.shape[1]
    if own == p.shape[1]:
        return starts
    size = starts @ p[:, :own].T
    rows = size[:, :, None] * n[:, own:]
    rest = torch.linalg.lstsq(rows, -(size * (starts @ n[:, :own].T))[:, :, None]).solution
    return torch.cat([starts, rest[:, :, 0]], dim=1)


def _settle(starts: Tensor, p: Tensor, n: Tensor) -> Tensor:
    """(F, mixed units) distinct patterns that select rows with a common null vector."""
    w = starts
    active = (w @ p.T).abs() > (w @ n.T).abs()
    for _ in range(12):
        rows = torch.where(active[:, :, None], n, p)
        w = torch.linalg.svd(rows, full_matrices=False)[2][:, -1]
        before, active = active, (w @ p.T).abs() > (w @ n.T).abs()
        if torch.equal(before, active):
            break
    return torch.unique(active, dim=0)
