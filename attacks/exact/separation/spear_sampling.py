"""Directions of records by sampling, one after the other, each making the next ones easier.

A record's direction is a sparse vector of the column space U of [dW, db], with zeros where the
record is inactive: `information_sets` finds one in 2^B / B^2 tries or so. Behind it the space is
smaller. On the units that a known record does not activate its direction vanishes, and the others
have rank B - 1 there:

    K known records, I the units that none of them activates        m / 2^|K| rows, rank B - |K|
    q  = sparse on I, orthogonal to the known q_k                    2^(B - |K|) / (B - |K|)^2 tries
    q' = sparse on all units in the span of q and q_k                few dimensions
    pattern = units on which U q' is not zero; its direction by `spear_images.find_direction`

All is accepted by `find_direction`, whose equations are far more than its unknowns.

Dimitrov, Baader, Mueller, Vechev (2024), "SPEAR: Exact Gradient Inversion of Batches in Federated
Learning", sample rows of the whole gradient for each record, 2^(B - 1) tries, and filter by zeros.

**Where we differ from the paper**: one inverse tries B vectors; what is found cuts the space down.

Shape letters: m units, B records, F candidates.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

from .information_sets import TOGETHER, sparse_mixtures
from .spear_images import Direction, find_direction
from .spear_spaces import ReluSpaces

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
        inside, apart = _smaller(spaces, found, mixed, turn=turn)
        weights = torch.ones_like(chances)
        if turn % 3 == 0:  # units differ in how often they rest, by far or hardly
            weights = chances
        elif turn % 3 == 1:
            weights = torch.stack([chances, *(1.0 - d.pattern.double() for d in found)]).mean(dim=0)
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

    Args:
        weight: (m, n + 1) [W, b].
        low: (n,) least inputs.
        span: (n,) of the inputs.
    """
    middle = weight[:, :-1] @ (low + span / 2) + weight[:, -1]
    spread = 0.25 * torch.linalg.vector_norm(weight[:, :-1] * span, dim=1)
    return torch.special.ndtr(-middle / spread.clamp_min(1e-300))
