"""Records whose numbers lie at the ends of the box, as the binary columns of a table do.

For h = W x + b the gradient of [W, b] is the sum over records of s d [x, 1]^T: its row space holds
every [x, 1], whatever network follows. A number at the low end of its box makes

    (x_i - low_i) / span_i = 0,      linear in [x, 1],

so that a record of many such numbers is a sparse vector of the row space, which `information_sets`
finds. All numbers at either end then determine the record by least squares. What is certified is
taken away, and the rest has fewer dimensions.

**The certificate** of a record x is its own, with d_y(x) the derivative in h of its loss under y
as it would have been sent:

- x lies in the row space and in the box, and is determined by the numbers at the ends;
- for one label, d_y(x) lies in the column space of the gradient G;
- G - k d_y [x, 1]^T has one rank less, which holds for k = 1 / ([x, 1] G^+ d_y) alone (Wedderburn
  1934): k has to be a whole number, that of equal records.

A sum such as x + x' - x'' may have numbers at the ends alone, but no such d.

Vero, Balunovic, Dimitrov, Vechev (2023), "TabLeak: Tabular Data Leakage in Federated Learning",
search for such records by softmax and entropy; here nothing is searched.

Shape letters: m units, n inputs, B records, C classes, R rank of the gradient, F records found.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev

from ...training.models.parameters import unflatten
from ..problem.layers import first_linear, joint_of, parameter_name
from ..problem.observation import Observation, Sent, sent_gradient
from ..problem.problem import Box, Certified, Problem

_ROWS = 4  # that agree in their signs, at least
_ALONE = 0.01  # second singular value over the first, up to which rows are of one direction
_SIGNS = 0.05  # distance from 0 or 1 up to which a number may be a sign


def are_signs(found: Tensor) -> bool:
    """Whether all numbers but zeros are of one size, as of steps that keep signs alone.

    That size is 1 where layers have one scale for their signs.
    """
    sizes = found.abs() / found.abs().max().clamp_min(1e-300)
    return float((sizes - sizes.round()).abs().max()) <= _SIGNS


def signs_of_input(
    seen: Observation, model: nn.Module, input_shape: Sequence[int]
) -> Tensor | None:
    """The signs of a record's numbers, where every row of a first layer's gradient has them.

    A row of d [x, 1]^T has those of [x, 1] or the opposite ones. None where rows differ, or where
    all signs are alike, as those of any batch are before rows of one sign.
    """
    name = first_linear(model, seen, input_shape)
    if name is None or len(seen.gradient) > 1 or seen.records > 1 or seen.is_noisy:
        return None
    joint = joint_of(unflatten(model, seen.gradient[0]), name)
    values, right = torch.linalg.svd(joint.double(), full_matrices=False)[1:]
    if bool((values[1:2] <= _ALONE * values[0]).all()) and not are_signs(right[0]):
        return None  # it holds sizes, too
    signs = joint.sign()
    fed = signs[:, -1] != 0
    told = signs[fed] * signs[fed][:, -1:]
    if len(told) < _ROWS or bool(signs[~fed].any()) or bool((told != told[0]).any()):
        return None
    return None if bool((told[0] == told[0, 0]).all()) else told[0, :-1].reshape(*input_shape)


def most_rank(joint: Tensor) -> int:
    """The rank a matrix may have, without the rows and columns of zeros, which show no rounding."""
    return int(torch.stack([(joint != 0).any(dim=side).sum() for side in (0, 1)]).min())


def derivatives_in(model: nn.Module, flat: Tensor, layer: str, inputs: Tensor) -> Tensor:
    """(C, m) the derivative of one record's cross-entropy in a layer's output, under each label."""
    values, bias = unflatten(model, flat), parameter_name(layer, "bias")

    def logits(b: Tensor) -> Tensor:
        return functional_call(model, values | {bias: b}, (inputs,))[0]

    slopes = jacrev(logits)(values[bias])  # (C, m)
    p = logits(values[bias]).detach().softmax(dim=0)
    return p @ slopes - slopes  # p - e_y in place of the logits, for each y


# Sparse vectors of a space, by sets of coordinates on which they may vanish.
#
# For rows u_i of a basis, u_i . q = 0 on many coordinates i is a sparse vector of the space. Any D
# independent coordinates (an information set, as in decoding of linear codes: Prange 1962) make the
# basis the identity there, and a sparse vector that vanishes on all but one of them is a column:
#
#     inverse(rows of the set) = [q_1 .. q_D],   q_k vanishes on all of the set but its k-th row
#
# so that one inverse tries D vectors. A vector that vanishes on each coordinate with probability p
# is a column of a random set with probability D p^(D - 1). A column is a candidate if it vanishes
# on further coordinates, too, on which a vector without meaning does not.
#
# Dimitrov, Baader, Mueller, Vechev (2024), "SPEAR: Exact Gradient Inversion of Batches in Federated
# Learning", draw D - 1 coordinates and take the one vector that vanishes there, p^(D - 1) each.
#
# Shape letters: m coordinates, D dimensions of the space, F candidates.

FEWEST = 6
"""Zeros beyond those of its set that a candidate has, where many would be met by chance."""

TOGETHER = 256
"""Sets of one portion, which are inverted at once: a few MB."""

_LOOKED_AT = 40  # further coordinates on which a column is looked at
_VANISHING = 0.2  # share of them that a candidate vanishes on
_COARSE = 0.05  # error of a unit row beyond which zeros are met by chance
_ROUNDING = 1e-11


def sparse_mixtures(
    rows: Tensor,
    *,
    doubt: Tensor,
    chances: Tensor,
    tries: int,
    generator: torch.Generator,
    fewest: int = FEWEST,
    dependent: bool = False,
) -> Iterator[Tensor]:
    """Candidates q for which rows @ q vanishes on many coordinates, in portions.

    Args:
        rows: (m, D) of a basis; rows of zeros are left out.
        doubt: (D,) error of each column of the basis, for rows of norm 1.
        chances: (m,) how likely each coordinate is to vanish, up to a factor.
        tries: number of sets to try at most.
        generator: source of the sets.
        fewest: zeros beyond the set's own that a candidate needs.
        dependent: whether small sets of coordinates depend on each other, as those of one category
            do; then a set is made of the first of its coordinates that do not.

    Yields:
        (F, D) candidates of norm 1 of `TOGETHER` sets, F may be 0; nothing where there are too
        few coordinates to tell a sparse vector by.
    """
    if min(rows.shape) == 0:
        return
    sizes = torch.linalg.vector_norm(rows, dim=1)
    alive = sizes > 1e-9 * float(sizes.max())
    rows, chances = rows[alive] / sizes[alive, None], chances[alive].double()
    count, unknowns = rows.shape
    looked = min(_LOOKED_AT, count - unknowns)
    if looked < fewest:
        return
    needed = max(fewest, math.ceil(_VANISHING * looked))
    for done in range(0, tries, TOGETHER):
        many = min(TOGETHER, tries - done)
        # Without replacement by chances: the largest of log(chance) + Gumbel noise.
        keys = torch.rand(many, count, generator=generator, dtype=torch.float64)
        keys = chances.log() - (-keys.log()).log()
        order = keys.topk(unknowns + looked, dim=1).indices
        if dependent:
            order = _independent_first(rows, keys)
        # A column of the inverse vanishes on its set but for one; more zeros tell a sparse vector.
        drawn, further = order[:, :unknowns], order[:, unknowns : unknowns + looked]
        inverse, failed = torch.linalg.inv_ex(rows[drawn])  # (many, D, D)
        columns = inverse / torch.linalg.vector_norm(inverse, dim=1, keepdim=True)
        error = 3 * torch.linalg.vector_norm(columns * doubt.to(columns)[:, None], dim=1)
        zeros = (rows[further] @ columns).abs() <= (error + _ROUNDING)[:, None]
        fits = (zeros.sum(dim=1) >= needed) & (error <= _COARSE) & (failed == 0)[:, None]
        yield columns.transpose(1, 2)[fits]


def _independent_first(rows: Tensor, keys: Tensor) -> Tensor:
    """(N, m) coordinates by falling keys (N, m), the first D that are independent in front.

    LU picks the largest row that is left, which are made to be the earliest ones.
    """
    order = keys.argsort(dim=1, descending=True)
    many, count = order.shape
    unknowns = rows.shape[1]
    falling = torch.logspace(0, -6, count, dtype=rows.dtype)
    pivots = torch.linalg.lu_factor_ex(rows[order] * falling[:, None])[1].long() - 1  # (N, D)
    every = torch.arange(many)
    for step in range(unknowns):
        chosen = pivots[:, step]
        here, there = order[:, step].clone(), order[every, chosen]
        order[:, step] = there
        order[every, chosen] = here
    return order


TRIES = 20_000
"""Information sets by default: seconds on one core."""

_GAP = 20.0  # of the singular values behind the rank: less is no rank
_FLOOR = 1e-5  # what is above it, relative to the largest value, is a record and not rounding
_AT_END = 0.05  # of the box: ten times what rounding makes of a number, which is refused beyond
_OUTSIDE = 1e-3
_EXACT = 1e-8
_WHOLE = 1e-2  # a number of equal records is this near to a whole number
_EXAMINED = 32
_NARROW = 24  # columns
_ENOUGH = 40  # portions without a new record


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Spaces:
    """The first layer's gradient G = U S Y^T, and Y in units of the box."""

    name: str
    left: Tensor  # (m, R) U
    values: Tensor  # (R,) S
    right: Tensor  # (n + 1, R) Y
    units: Tensor  # (n, R): units @ g = (x - low) / span where last @ g = 1
    last: Tensor  # (R,)
    noise: Tensor  # (R,) error of the columns of U and Y


def records_at_corners(problem: Problem, generator: torch.Generator) -> Certified | None:
    """The certified records of a batch whose numbers lie at the ends of their box.

    Args:
        problem: without noise, of which the first intercept is used; records may be clipped, not
            their mean.
        generator: source of the sets; decides nothing that is certified.

    Returns:
        The certified records, none of them perhaps, equal ones as often; None where nothing can be
        said.
    """
    observation, model, box, shape = (
        problem.observation, problem.model, problem.box, problem.shape
    )  # fmt: skip
    if observation.is_noisy or not observation.is_plain:
        return None
    # One intercept in float64, and the first linear layer's gradient with its bias beside it.
    seen, tries = observation.only(0), TRIES
    seen = replace(seen, gradient=seen.gradient.double(), points=seen.points.double())
    name = first_linear(model, seen, shape, held=True)
    if name is None:
        return None
    joint = joint_of(unflatten(model, seen.gradient[0]), name)
    rounding = _rounding(seen, joint)
    spaces = _measure(joint, box, shape, name=name, most=seen.records, rounding=rounding)
    if spaces is None:
        return None
    size = float(spaces.values[0])
    # Portions of sets, until one shows no record or all are found.
    kept: list[Tensor] = []
    labels: list[int] = []
    turned: list[float] = []
    rank, once = len(spaces.values), list[int]()  # the first of equal records
    common = torch.ones(len(spaces.units), dtype=torch.float64)
    while tries > 0 and len(kept) < seen.records:
        new, used = _portion(
            seen, model, spaces, box, shape=shape, chances=common, tries=tries, generator=generator
        )
        tries -= used
        for inputs, pixels, label, count, piece, error in new:
            once.append(len(kept))
            kept += [inputs] * count
            labels += [label] * count
            turned += [error] * count
            joint = joint - piece
            common = common + (pixels < 0.5).double()
        left = seen.records - len(kept)
        if not new or left < 1:
            break
        # What is found is taken away: of fewer dimensions sparse vectors are found sooner.
        rest = _measure(joint, box, shape, name=name, most=left, size=size, rounding=rounding)
        if rest is None or len(rest.values) != len(spaces.values) - len(new):
            break
        spaces = rest
    # Equal records are twice the loss of one where no room is left for the others.
    if len(kept) + rank - len(once) > seen.records:
        kept, labels = [kept[k] for k in once], [labels[k] for k in once]
        turned = [turned[k] for k in once]
    return Certified(
        inputs=torch.stack(kept) if kept else box.span.new_zeros(0, *shape),
        labels=torch.tensor(labels, dtype=torch.int64),
        left=tuple(turned),
    )


_New = tuple[Tensor, Tensor, int, int, Tensor, float]
"""Inputs, pixels, label, how many, their part of G, and what is allowed to differ."""


def _portion(
    seen: Observation,
    model: nn.Module,
    spaces: _Spaces,
    box: Box,
    *,
    shape: tuple[int, ...],
    chances: Tensor,
    tries: int,
    generator: torch.Generator,
) -> tuple[list[_New], int]:
    """What the first portions that show a record show, and how many sets that took."""
    new: list[_New] = []
    tried: set[bytes] = set()
    used = idle = 0
    rank = len(spaces.values)
    # Candidates: the one that there is, or sparse mixtures of rows that rounding leaves.
    if rank == 1:
        portions: Iterable[Tensor] = [torch.ones(1, 1, dtype=torch.float64)]
    else:
        # A number that is the same in all records leaves a row of rounding alone.
        sizes = torch.linalg.vector_norm(spaces.units, dim=1)
        shown = sizes > float(torch.linalg.vector_norm(spaces.noise))
        ends, likely = spaces.units[shown], chances[shown]
        if len(ends) < _NARROW:  # a number at the high end vanishes, too, as its complement
            ends, likely = torch.cat([ends, spaces.last - ends]), torch.ones(2 * len(ends))
        portions = sparse_mixtures(
            ends, doubt=spaces.noise, chances=likely, tries=tries, generator=generator,
            fewest=min(FEWEST, rank), dependent=True,
        )  # fmt: skip
    # A candidate counts as a record where the gradient certifies it.
    for columns in portions:
        used, idle = used + TOGETHER, idle + 1
        for column in _likely(spaces, columns):
            mixture = _settled(spaces, column)
            if mixture is None:
                continue
            pixels = _at_ends(spaces, mixture)
            name = (pixels * 1024).round().to(torch.int32).numpy().tobytes()
            if name in tried:
                continue
            tried.add(name)
            inputs = box.inputs(pixels.clamp(0, 1).reshape(shape).to(box.span))
            of = _certified(seen, model, spaces, inputs.double())
            if of is not None:
                new.append((inputs, pixels, *of))
        if new or idle > _ENOUGH:
            break
    return new, used


def _likely(spaces: _Spaces, columns: Tensor) -> Tensor:
    """Of candidates (F, R) those with most numbers at either end."""
    sizes = columns @ spaces.last
    columns = columns[sizes.abs() > 1e-9]
    mixtures = columns / (columns @ spaces.last)[:, None]
    pixels = mixtures @ spaces.units.T  # (F, n)
    held = ((pixels - pixels.round().clamp(0, 1)).abs() <= _AT_END).sum(dim=1)
    return columns[held.argsort(descending=True)[:_EXAMINED]]


def _measure(
    joint: Tensor,
    box: Box,
    input_shape: Sequence[int],
    *,
    name: str,
    most: int,
    rounding: float,
    size: float = 0.0,
) -> _Spaces | None:
    """The spaces of a gradient of up to `most` records; None where no gap shows its rank."""
    left, values, right = torch.linalg.svd(joint, full_matrices=False)
    size = max(size, float(values[0]))
    if size == 0:
        return None
    floor = max(1e-15 * size, 1e-300)
    values = values.clamp_min(floor)
    # Equal records leave a smaller rank; a gap shows which.
    behind = torch.cat([values[1:], values[-1:]])[:most]
    small = behind <= max(_FLOOR * size, rounding)
    steps = torch.where(small, values[:most] / behind, 0.0)
    rank = int(steps.argmax()) + 1
    if rank >= most_rank(joint) or float(steps[rank - 1]) < _GAP:
        return None
    # Bases of both sides, and the numbers in units of the box.
    basis, last = right[:rank].T, right[:rank, -1]
    low, span = (v.double().expand(tuple(input_shape)).flatten() for v in (box.low, box.span))
    return _Spaces(
        name=name,
        left=left[:, :rank],
        values=values[:rank],
        right=basis,
        units=(basis[:-1] - low[:, None] * last) / span[:, None],
        last=last,
        noise=values[rank] / values[:rank],
    )


def _rounding(seen: Observation, joint: Tensor) -> float:
    """Spectral norm of what rounding of messages may leave in the layer's gradient.

    Spread over all coordinates it is a matrix of equal, independent numbers of that size.
    """
    left = seen.rounding * float(torch.linalg.vector_norm(seen.gradient[0]))
    return left * sum(math.sqrt(side) for side in joint.shape) / math.sqrt(seen.gradient.shape[1])


def _at_ends(spaces: _Spaces, mixture: Tensor) -> Tensor:
    """(n,) numbers on the unit box; those at either end, to their error, stand there."""
    pixels = spaces.units @ mixture
    near = pixels.round().clamp(0, 1)
    return torch.where((pixels - near).abs() <= _tolerance(spaces, mixture), near, pixels)


def _tolerance(spaces: _Spaces, mixture: Tensor) -> float:
    return 10 * float(torch.linalg.vector_norm(mixture * spaces.noise)) + 1e-9


def _settled(spaces: _Spaces, column: Tensor) -> Tensor | None:
    """(R,) the mixture that the numbers at the ends determine, None outside of the box."""
    size = float(spaces.last @ column)
    if abs(size) <= 1e-9 * float(column.norm()):
        return None
    mixture = column / size
    # The record's last number is 1: of all others those that are 0 or 1 are held.
    for _ in range(4):
        pixels = spaces.units @ mixture
        near, error = pixels.round().clamp(0, 1), _tolerance(spaces, mixture)
        held = (pixels - near).abs() <= error
        if error > _AT_END:
            return None
        rows = torch.cat([spaces.units[held], spaces.last[None]])
        right = torch.cat([near[held], near.new_ones(1)])
        if len(rows) < 2 * len(mixture):
            return None
        solved, _, _, sizes = torch.linalg.lstsq(rows, right, driver="gelsd")
        if float(sizes[-1]) <= 1e-7 * float(sizes[0]):
            return None
        if bool((solved - mixture).norm() <= 1e-12 * mixture.norm()):
            break
        mixture = solved
    pixels = spaces.units @ mixture
    return mixture if float((pixels - pixels.clamp(0, 1)).abs().max()) <= _OUTSIDE else None


def _certified(
    seen: Observation, model: nn.Module, spaces: _Spaces, inputs: Tensor
) -> tuple[int, int, Tensor, float] | None:
    """Label, number, part of G and its error of the records of one input, None where not certified.

    The part is k d [x, 1]^T; of a record whose numbers are rounded it is taken within the spaces of
    G, where it lowers the rank by one.
    """
    derivatives = _derivatives(seen, model, spaces.name, inputs)  # (C, m)
    sizes = torch.linalg.vector_norm(derivatives, dim=1).clamp_min(1e-300)
    shown = derivatives @ spaces.left  # (C, R)
    apart = torch.linalg.vector_norm(derivatives - shown @ spaces.left.T, dim=1) / sizes
    error = 30 * torch.linalg.vector_norm(shown * spaces.noise, dim=1) / sizes + _EXACT
    row = torch.cat([inputs.flatten(), inputs.new_ones(1)]) @ spaces.right  # (R,)
    inverse = (shown / spaces.values) @ row  # (C,): [x, 1] G^+ d
    counts = 1 / torch.where(inverse == 0, 1e-300, inverse)
    fits = []
    for label in range(len(derivatives)):
        count, allowed = float(counts[label].round()), float(error[label])
        off = abs(float(counts[label]) / max(count, 1.0) - 1)
        whole = 1 <= count <= seen.records and off <= min(_WHOLE, 10 * allowed)
        if float(apart[label]) <= allowed and whole:
            fits.append((label, int(count)))
    if len(fits) != 1:
        return None
    label, many = fits[0]
    full = torch.cat([inputs.flatten(), inputs.new_ones(1)])
    if bool((full == full.round()).all()):
        return label, many, many * torch.outer(derivatives[label], full), float(error[label])
    within = torch.outer(spaces.left @ shown[label], spaces.right @ row)
    return label, many, counts[label] * within, float(error[label])


def _derivatives(seen: Observation, model: nn.Module, name: str, inputs: Tensor) -> Tensor:
    """(C, m) what one record under each label adds to the gradient of the first layer's bias."""
    rows = derivatives_in(model, seen.points[0, 0], name, inputs[None]) / seen.records
    bound = seen.clip_norm
    if bound is None:
        return rows

    def clipped(label: Tensor) -> Tensor:
        alone = sent_gradient(
            model,
            seen.points[0, 0],
            inputs=inputs[None],
            targets=label[None],
            of=Sent(clip_norm=None),
        )
        return (bound / alone.norm().clamp_min(1e-300)).clamp_max(1.0)

    labels = torch.arange(len(rows))
    factors = torch.stack([clipped(label).detach() for label in labels])
    return rows * factors[:, None]
