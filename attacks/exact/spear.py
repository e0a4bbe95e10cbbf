"""Every image of a small batch, exactly, where the first layer is linear and a ReLU follows.

For h = W x + b, a = relu(h), z = V a + c, record e contributes to the gradient of [W, b]

    s_e d_e [x_e, 1]^T,    d_e = 1[h_e > 0] V^T r_e,    r_e = dloss/dz,                      (1)

with s_e > 0 the mean's and the clip's factor. The sum over B records has rank B, and each d_e is a
sparse direction of its column space: Dimitrov, Baader, Mueller, Vechev (2024), "SPEAR: Exact
Gradient Inversion of Batches in Federated Learning".

    G = [dW, db] = U S Y^T, rank B        U q = d for a record's q; V^T R f = V^T r for its f
    d_i = 0 or d_i = (V^T r)_i            for every unit: `sparse_directions` gives the patterns
    db_i = (V^T dc)_i                     exactly where every record activates unit i
    U q = 0 where inactive, V^T R f where active: one q_e per pattern; D = U Q
    s_e [x_e, 1] = rows of Q^{-1} S Y^T

Where only some patterns are found, an image follows from its pattern alone: [x, 1] = Y g and
[a, 1] in the row space of [dV, dc], with a = 0 where inactive and a = h where active.

**The certificate** is joint, and per image:
- the direction of the pattern is unique, and so is the image;
- h = W x + b is positive exactly on the pattern;
- a = relu(h) lies in the row space of [dV, dc], where that has rank B;
- for one label y, the derivative of the loss of (x, y) in h, through the whole network, is d.
An image that fails one of them counts as missing. Which record of the batch is missing cannot be
told: a gradient knows no order.

**Where we differ from the paper**: patterns by algebra instead of sampling; the certificate of one
image does not need the others.

Shape letters: m units, n inputs, B records, C classes, K intercepts, F images found.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from ..problem.observation import Observation
from ..problem.problem import Box, Certified, Problem
from .binary_vertices import TOGETHER, derivatives_in, sparse_mixtures
from .spear_images import (
    Direction,
    Image,
    ReluLayers,
    ReluSpaces,
    activity_patterns,
    find_direction,
    find_images,
    find_relu_layers,
    measure_spaces,
)

# Patterns of the last one or two records of a batch, from the directions of all others.
#
# With G = [dW, db] = U S Y^T and D = U Q the directions, the images are the rows of Q^{-1} S Y^T,
# and a row of Q^{-1} is orthogonal to the mixtures q of all other records:
#
#     one missing     its row is known up to a factor, which the 1 of [x, 1] decides
#     two missing     [x, 1] = Y S (c_0 + t c_1): a line, within the box a segment, on which the
#     signs
#                     of h = W x + b change at most m times: every stretch has one pattern
#
# Shape letters: m units, n inputs, B records, F patterns.

_BEYOND = 1e-3  # of the box


def last_patterns(
    spaces: ReluSpaces, directions: Sequence[Direction], *, low: Tensor, span: Tensor
) -> Tensor:
    """(F, m) patterns that the missing records may have, F = 0 where none or more than two miss.

    Spaces are of one intercept, directions of all records but one or two; (n,) least inputs and
    their (n,) span are the box.
    """
    records, nothing = len(spaces.values), torch.zeros(0, len(spaces.left), dtype=torch.bool)
    missing = records - len(directions)
    if not 1 <= missing <= 2:
        return nothing
    # The space that is left; the last number of an input is 1.
    known = torch.stack([d.mixture for d in directions], dim=1) if directions else None
    free = torch.eye(records, dtype=spaces.left.dtype)
    if known is not None:
        free = torch.linalg.qr(known, mode="complete")[0][:, len(directions) :]
    images = spaces.right @ (spaces.values[:, None] * free)  # (n + 1, missing)
    last = images[-1]
    if float(last.norm()) <= 1e-12 * float(images.norm()):
        return nothing
    begin = images @ (last / last.square().sum())
    if missing == 1:
        return (spaces.weight @ begin > 0)[None]
    # Of two records a line is left, cut by the box and where units change sign.
    along = images @ torch.stack([-last[1], last[0]])
    along = along / along.norm().clamp_min(1e-300)
    ends = torch.stack([low - _BEYOND * span - begin[:-1], low + (1 + _BEYOND) * span - begin[:-1]])
    ends = (ends / torch.where(along[:-1] == 0, 1e-300, along[:-1])).sort(dim=0).values
    first, final = float(ends[0].max()), float(ends[1].min())
    if not first < final:
        return nothing
    base, slope = spaces.weight @ begin, spaces.weight @ along
    turns = -base / torch.where(slope == 0, 1e-300, slope)
    turns = turns[(turns > first) & (turns < final)].sort().values
    marks = torch.cat([turns.new_tensor([first]), turns, turns.new_tensor([final])])
    at = (marks[1:] + marks[:-1]) / 2
    return torch.unique(base + at[:, None] * slope > 0, dim=0)


# Directions of records by sampling, one after the other, each making the next ones easier.
#
# A record's direction is a sparse vector of the column space U of [dW, db], with zeros where the
# record is inactive: `information_sets` finds one in 2^B / B^2 tries or so. Behind it the space is
# smaller. On the units that a known record does not activate its direction vanishes, and the others
# have rank B - 1 there:
#
#     K known records, I the units that none of them activates        m / 2^|K| rows, rank B - |K|
#     q  = sparse on I, orthogonal to the known q_k                    2^(B - |K|) / (B - |K|)^2
#     tries
#     q' = sparse on all units in the span of q and q_k                few dimensions
#     pattern = units on which U q' is not zero; its direction by `spear_images.find_direction`
#
# All is accepted by `find_direction`, whose equations are far more than its unknowns.
#
# Dimitrov, Baader, Mueller, Vechev (2024), "SPEAR: Exact Gradient Inversion of Batches in Federated
# Learning", sample rows of the whole gradient for each record, 2^(B - 1) tries, and filter by
# zeros.
#
# **Where we differ from the paper**: one inverse tries B vectors; what is found cuts the space
# down.
#
# Shape letters: m units, B records, F candidates.

_SPARE = 24  # units beyond the rank that a smaller space must leave
_EXAMINED = 48  # candidates of one portion
_PORTION = 1024  # sets after which the known records are taken another way
_LIFTS = 64
_COMPARED = 512
_SAME = 1e-7  # one minus the cosine of candidates of one direction
_ALIKE = 1e-5  # of a candidate's size may differ from V^T r: others differ by about 1


def sampled_directions(
    spaces: ReluSpaces,
    *,
    chances: Tensor,
    known: Sequence[Direction],
    tries: int,
    generator: torch.Generator,
) -> list[Direction]:
    """Directions beyond those that are known.

    Args:
        spaces: of one intercept.
        chances: (m,) how likely a record is not to activate each unit.
        known: directions that were found before.
        tries: information sets at most.
        generator: source of the sets; decides nothing that is certified.

    Returns:
        The known directions and those found, at most B; which ones, and whether all, is a matter
        of the tries.
    """
    found, records = list(known), len(spaces.values)
    mixed = ~spaces.always & ~spaces.never
    for turn in itertools.count():
        if tries <= 0 or len(found) == records:
            break
        tries -= 1  # of a turn without a set, too
        # Without the directions that are known the space is smaller, and the next is found sooner.
        inside, apart = _smaller(spaces, found, mixed, turn=turn)
        weights = torch.ones_like(chances)
        if turn % 3 == 0:  # units differ in how often they rest, by far or hardly
            weights = chances
        elif turn % 3 == 1:
            weights = torch.stack([chances, *(1.0 - d.pattern.double() for d in found)]).mean(dim=0)
        # Units that a record leaves at rest make the vector sparse.
        for columns in sparse_mixtures(
            spaces.left[inside] @ apart,
            doubt=torch.linalg.vector_norm(apart * spaces.noise[:, None], dim=0),
            chances=weights[inside].clamp(0.02, 1.0),
            tries=min(_PORTION, tries),
            generator=generator,
        ):
            tries -= TOGETHER
            before = len(found)
            for column in _plausible(spaces, _unknown(columns, apart, found), apart, inside)[
                :_EXAMINED
            ]:
                direction = _lifted(spaces, column, apart, inside, mixed, generator=generator)
                if direction is not None and _is_new(direction, found):
                    found.append(direction)
                    break  # into the smaller space
            if len(found) > before:
                break
    return found


def _smaller(
    spaces: ReluSpaces, found: Sequence[Direction], mixed: Tensor, *, turn: int
) -> tuple[Tensor, Tensor]:
    """Units on which some known directions vanish, (m,), and what is left of the space, (B, D)."""
    records = len(spaces.values)
    best = (mixed, torch.eye(records, dtype=spaces.left.dtype))
    for size in range(1, len(found) + 1):
        ways = list(itertools.islice(itertools.combinations(range(len(found)), size), 400))
        order = sorted(ways, key=lambda way: -int(_quiet(found, way, mixed).sum()))
        fitting = [
            w for w in order if int(_quiet(found, w, mixed).sum()) >= records - size + _SPARE
        ]
        if not fitting:
            break
        way = fitting[turn % len(fitting)]
        mixtures = torch.stack([found[k].mixture for k in way], dim=1)
        apart = torch.linalg.qr(mixtures, mode="complete")[0][:, size:]
        best = (_quiet(found, way, mixed), apart)
    return best


def _quiet(found: Sequence[Direction], way: Sequence[int], mixed: Tensor) -> Tensor:
    return mixed & ~torch.stack([found[k].pattern for k in way]).any(dim=0)


def _lifted(
    spaces: ReluSpaces,
    column: Tensor,
    apart: Tensor,
    inside: Tensor,
    mixed: Tensor,
    *,
    generator: torch.Generator,
) -> Direction | None:
    """The direction that agrees with a mixture on some units, up to known ones that rest there."""
    mixture = apart @ column
    sizes = torch.linalg.vector_norm(spaces.left, dim=1)
    zeros = inside & _vanishes(spaces, mixture, sizes)
    _, values, right = torch.linalg.svd(spaces.left[zeros], full_matrices=True)
    rest = spaces.left[mixed & ~inside]
    open_ = len(mixture) - int((values > 1e-6 * values.max()).sum()) if len(values) else 0
    if open_ != len(mixture) - apart.shape[1] + 1:
        return None
    span = right[len(mixture) - open_ :].T  # (B, open)
    if open_ == 1:
        return _settled(spaces, span[:, 0])
    doubt = torch.linalg.vector_norm(span * spaces.noise[:, None], dim=0)
    for columns in sparse_mixtures(
        rest @ span, doubt=doubt, chances=torch.ones(len(rest)), tries=_LIFTS << open_,
        generator=generator,
    ):  # fmt: skip
        own = columns[(columns @ (span.T @ mixture)).abs() > 1e-6]
        for column in _plausible(spaces, own, span, mixed)[:_EXAMINED]:
            direction = _settled(spaces, span @ column)
            if direction is not None:
                return direction
    return None


def _unknown(columns: Tensor, apart: Tensor, found: Sequence[Direction]) -> Tensor:
    """The candidates (F, D) that are no known direction."""
    if not found or len(columns) == 0:
        return columns
    known = torch.stack([d.mixture for d in found]) @ apart
    known = known / torch.linalg.vector_norm(known, dim=1, keepdim=True).clamp_min(1e-300)
    return columns[(columns @ known.T).abs().amax(dim=1) < 1 - _SAME]


def _plausible(spaces: ReluSpaces, columns: Tensor, apart: Tensor, inside: Tensor) -> Tensor:
    """The candidates (F, D) that are V^T r on the units on which they do not vanish."""
    if len(columns) == 0:
        return columns
    mixtures = columns @ apart.T  # (F, B)
    values = mixtures @ spaces.left[inside].T  # (F, units)
    sizes = torch.linalg.vector_norm(spaces.left[inside], dim=1)
    error = 3 * torch.linalg.vector_norm(mixtures * spaces.noise, dim=1) + 1e-10
    active = values.abs() > error[:, None] * sizes
    back = spaces.back[inside]
    weights = torch.where(active, values, 0.0)
    gram = torch.einsum("fi,ia,ib->fab", active.to(back), back, back)
    right = weights @ back  # (F, C)
    ridge = 1e-13 * gram.diagonal(dim1=1, dim2=2).sum(dim=1)
    gram = gram + (ridge[:, None, None] + 1e-300) * torch.eye(len(back.T), dtype=back.dtype)
    fitted = torch.linalg.solve_ex(gram, right)[0]
    left = torch.linalg.vector_norm(torch.where(active, values - fitted @ back.T, 0.0), dim=1)
    allowed = _ALIKE + 10 * error
    fits = left <= allowed * torch.linalg.vector_norm(weights, dim=1)
    # With as many coefficients as active units anything fits, which is for `find_direction` to say.
    return _distinct(columns[fits])


def _distinct(columns: Tensor) -> Tensor:
    """The first of each group of candidates that are alike, of up to some hundred."""
    columns = columns[:_COMPARED]
    alike = (columns @ columns.T).abs() > 1 - _SAME
    return columns[~torch.triu(alike, diagonal=1).any(dim=0)]


def _settled(spaces: ReluSpaces, mixture: Tensor) -> Direction | None:
    """The direction of the pattern that a mixture shows."""
    sizes = torch.linalg.vector_norm(spaces.left, dim=1)
    pattern = ~_vanishes(spaces, mixture, sizes) & ~spaces.never | spaces.always
    return find_direction(spaces, pattern)


def _vanishes(spaces: ReluSpaces, mixture: Tensor, sizes: Tensor) -> Tensor:
    error = 3 * float(torch.linalg.vector_norm(mixture * spaces.noise) / mixture.norm())
    return (spaces.left @ mixture).abs() <= (error + 1e-10) * sizes * float(mixture.norm())


def _is_new(direction: Direction, found: Sequence[Direction]) -> bool:
    return all(not torch.equal(direction.pattern, other.pattern) for other in found)


def resting_chances(weight: Tensor, low: Tensor, span: Tensor) -> Tensor:
    """(m,) how likely h = W x + b <= 0 is, of records about the middle of the box.

    The weight is (m, n + 1) [W, b]; the box is (n,) least inputs, and their (n,) span.
    """
    middle = weight[:, :-1] @ (low + span / 2) + weight[:, -1]
    spread = 0.25 * torch.linalg.vector_norm(weight[:, :-1] * span, dim=1)
    return torch.special.ndtr(-middle / spread.clamp_min(1e-300))


SAMPLED = 60_000
"""Information sets by default: ten seconds to a minute on one core."""

_AT_LEAST, _SURELY = 1024, 8  # sets that find few records if they can be found at all
_PIXEL_ERROR = 3e-4  # predicted, of the box; a certified image is within 1e-6 in MSE
_OUTSIDE = 1e-3  # of the box
_EXACT = 1e-8  # residual of what double precision determines
_DECISIVE = 0.99  # leverage of a unit on which a direction hangs alone


def separate_records(problem: Problem, generator: torch.Generator) -> Certified | None:
    """The certified images of a batch, from the gradients of its first two linear layers.

    Args:
        problem: without noise, of a network whose first parametrised layer is linear with a bias,
            followed by a ReLU and a second linear layer; records or their mean may be clipped.
        generator: source of the random combinations; decides nothing that is certified.

    Returns:
        The images that are certified, none of them perhaps; of several intercepts the one with
        most images. None where nothing can be said: noise, another loss or several points, another
        architecture, or a gradient whose rank is not the number of records (equal records, records
        without loss, or rounding without a gap).
    """
    observation, model = problem.observation, problem.model
    # The clip of a mean is one factor of all records, like those of (1).
    plain = replace(observation, mean_of=None).is_plain and observation.shown is None
    if observation.is_noisy or not plain:
        return None
    best: Certified | None = None
    for k in range(len(observation.gradient)):
        seen = observation.only(k)
        layers = find_relu_layers(model, seen.points[0, 0].double(), problem.shape)
        spaces = None if layers is None else measure_spaces(seen, model, layers)
        if layers is not None and spaces is not None:
            part = _certified(
                seen, model, layers, spaces, shape=problem.shape, box=problem.box,
                generator=generator,
            )  # fmt: skip
            if best is None or len(part.inputs) > len(best.inputs):
                best = part
        if best is not None and len(best.inputs) == observation.records:
            break
    return best


def _certified(
    seen: Observation,
    model: nn.Module,
    layers: ReluLayers,
    spaces: ReluSpaces,
    *,
    shape: tuple[int, ...],
    box: Box,
    generator: torch.Generator,
) -> Certified:
    """The images of one intercept whose every condition holds."""
    # Directions by the patterns of units, and where these are too few, by sampling.
    nothing = torch.zeros_like(spaces.back)
    patterns = activity_patterns(
        torch.cat([spaces.left, nothing], dim=1),
        torch.cat([spaces.left, -spaces.back], dim=1),
        always=spaces.always,
        never=spaces.never,
        records=seen.records,
        noise=float(spaces.noise[-1]),
        generator=generator,
    )
    directions = _directions(spaces, patterns, known=[])
    if len(directions) < seen.records:
        low, span = (v.double().expand(shape).flatten() for v in (box.low, box.span))
        directions = sampled_directions(
            spaces,
            chances=resting_chances(spaces.weight, low, span),
            known=directions,
            tries=min(SAMPLED, _AT_LEAST + (_SURELY << min(seen.records, 24))),
            generator=generator,
        )
        last = last_patterns(spaces, directions, low=low, span=span)
        directions = _directions(spaces, last, known=directions)
    # An image counts by its box, its error, its activations and its derivative together: that of
    # one label or, where none has one, under any loss that explains the batch.
    images = find_images(spaces, directions)
    sound: list[tuple[Direction, Image, Tensor, float]] = []
    for direction, image in zip(directions, images, strict=True):
        if image is None:
            continue
        pixels = box.pixels(image.inputs.reshape(shape).to(box.span))
        if not float((pixels - pixels.clamp(0, 1)).abs().max()) <= _OUTSIDE:
            continue
        if not image.error <= _PIXEL_ERROR * float(box.span.min()):
            continue
        rest = _activation_residual(spaces, direction, image)
        if rest is not None:
            sound.append((direction, image, box.inputs(pixels.clamp(0, 1)), rest))
    kept: list[tuple[Tensor, int, float]] = []
    for direction, image, inputs, rest in sound:
        derivatives = _derivatives(seen, model, layers, image.inputs.reshape(1, *shape))
        match = _match(spaces, direction, image, derivatives)
        if match is not None:
            kept.append((inputs, -1 if match[0] is None else match[0], max(rest, match[1])))
    if not kept and len(sound) == seen.records:
        kept = [(inputs, -1, max(rest, direction.error)) for direction, _, inputs, rest in sound]
    return Certified(
        torch.stack([inputs for inputs, _, _ in kept]) if kept else box.span.new_zeros(0, *shape),
        torch.tensor([label for _, label, _ in kept], dtype=torch.int64),
        left=tuple(left for _, _, left in kept),
    )


def _directions(
    spaces: ReluSpaces, patterns: Tensor, *, known: Sequence[Direction]
) -> list[Direction]:
    """The known directions, and those of further patterns that have one."""
    held = {tuple(d.pattern.tolist()) for d in known}
    new = [pattern for pattern in patterns if tuple(pattern.tolist()) not in held]
    return [*known, *(d for d in (find_direction(spaces, pattern) for pattern in new) if d)]


def _activation_residual(spaces: ReluSpaces, direction: Direction, image: Image) -> float | None:
    """Distance of a = relu(h) from dV's row space, None where it or the signs of h do not fit."""
    x = image.inputs
    h = spaces.weight[:, :-1] @ x + spaces.weight[:, -1]
    slack = 3 * image.error * math.sqrt(len(x)) * spaces.weight.norm(dim=1)
    if bool((((h > 0) != direction.pattern) & (h.abs() > slack)).any()):
        return None
    if spaces.activations is None:
        return 0.0
    a = torch.cat([h.clamp_min(0), h.new_ones(1)])
    rest = a - spaces.activations @ (spaces.activations.T @ a)
    relative = float(rest.norm() / a.norm())
    allowed = _EXACT + 30 * float(spaces.activation_noise[-1]) + image.error
    return relative if relative <= allowed else None


def _derivatives(seen: Observation, model: nn.Module, layers: ReluLayers, inputs: Tensor) -> Tensor:
    """(C, m) the loss's derivative in h, of norm 1, under each label."""
    rows = derivatives_in(model, seen.points[0, 0].double(), layers.first, inputs)
    return rows / torch.linalg.vector_norm(rows, dim=1, keepdim=True).clamp_min(1e-300)


def _match(
    spaces: ReluSpaces, direction: Direction, image: Image, derivatives: Tensor
) -> tuple[int | None, float] | None:
    """Label, if one alone fits the direction, and its residual; None where no label fits."""
    sent = spaces.left @ direction.mixture  # (m,), of norm 1
    along = derivatives @ sent  # (C,)
    apart = torch.linalg.vector_norm(derivatives - along[:, None] * sent, dim=1)
    if image.sign is not None:
        apart = torch.where(along * image.sign > 0, apart, math.inf)
    allowed = _EXACT + 30 * direction.error + image.error
    fitting = torch.nonzero(apart <= allowed).flatten().tolist()
    if not fitting:
        return None
    label = int(apart.argmin())
    # A mixture of records whose patterns differ in few units satisfies all linear conditions; the
    # loss tells it from a record, unless that is compared too coarsely or for two classes only.
    coarse = allowed > 10 * _EXACT or len(fitting) > 1
    if image.sign is None and coarse and direction.decisive > _DECISIVE:
        return None
    return label if len(fitting) == 1 else None, float(apart[label])
