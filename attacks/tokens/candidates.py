"""Which tokens a batch may hold, and at which positions, before any record is put together.

Shape letters: B records, L positions, V tokens of the vocabulary, S that are left, I inputs.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.func import functional_call

from ...privacy.errors import InputError
from ..problem.observation import twice_differentiable
from .layers import Layer, Network, fed_alike, local_rows, sent_of

# Which tokens stand at a position, by the rows of learned positions: of batches of any size.
#
# With g_bp the derivative of the embedding of record b at position p, the gradients have the rows
#
#     positions: sum_b g_bp at p,    embedding: sum of g_bp over the places of a token
#
# so that the rows of B tokens that occur once each sum to the row of the position at which they all
# stand. This needs no room in the space of a layer: of B L tokens in d < B L features the span test
# says nothing. B = 2 is a search over pairs, B = 3 and 4 one over pairs of partial sums.
#
# Shape letters: B records, L positions, S tokens.

_SAME = 1e-4  # distance of a sum from a row, over the norm of what is summed
_MOST = 4  # records
_SUMS = 20_000  # partial sums at most


def by_sums(
    of_tokens: Tensor, of_places: Tensor, *, records: int, rounding: float
) -> Tensor | None:
    """(S, L) where tokens may stand.

    Args:
        of_tokens: (S, d) rows of the embedding's gradient.
        of_places: (L, d) rows of the positions' gradient, in the same unit.
        records: number B of records.
        rounding: of a number of the gradient, relative.

    Returns:
        At a position that is told, its B tokens alone; the others keep what no position took. None
        where no position is told.

    >>> rows = torch.eye(5, dtype=torch.float64)
    >>> by_sums(rows, torch.stack([rows[0] + rows[3], rows[1] + rows[4]]), records=2,
    ...         rounding=1e-16).int().T.tolist()
    [[1, 0, 0, 1, 0], [0, 1, 0, 0, 1]]
    """
    count, half = len(of_tokens), (records + 1) // 2
    if not 1 < records <= _MOST or count < records:
        return None
    # The sums of one half meet those of the other.
    chosen = [list(itertools.combinations(range(count), size)) for size in (half, records - half)]
    if max(len(sets) for sets in chosen) > _SUMS:
        return None
    left, right = (torch.tensor(sets) for sets in chosen)  # (N, half), (M, B - half)
    # One number a sum, along a fixed direction, finds the few pairs whose vectors are compared.
    generator = torch.Generator().manual_seed(0)
    width = of_tokens.shape[1]
    along = torch.randn(width, generator=generator, dtype=torch.float64)
    scale = of_tokens.norm(dim=1).mean()
    slack = max(_SAME, 30 * rounding) * float(scale)
    one, two = of_tokens[left].sum(dim=1), of_tokens[right].sum(dim=1)
    order = (two @ along).argsort()
    sorted_ = (two @ along)[order]
    reach = slack * float(along.norm())
    told: dict[int, list[int]] = {}
    # Sums that fit along the direction, and then as vectors.
    for place, row in enumerate(of_places):
        wanted = float(row @ along) - one @ along
        low = torch.searchsorted(sorted_, wanted - reach)
        high = torch.searchsorted(sorted_, wanted + reach)
        span = int((high - low).max())
        found = set()
        for step in range(span):
            at = low + step
            near = (at < high).nonzero().flatten()
            partner = order[at[near]]
            apart = (one[near] + two[partner] - row).norm(dim=1)
            for index in (apart <= slack).nonzero().flatten().tolist():
                tokens = {*left[near[index]].tolist(), *right[partner[index]].tolist()}
                if len(tokens) == records:
                    found.add(frozenset(tokens))
        if len(found) == 1:
            told[place] = sorted(next(iter(found)))
    if not told:
        return None
    # Tokens of a position that is told stand nowhere else.
    taken = {token for tokens in told.values() for token in tokens}
    free = torch.tensor([token not in taken for token in range(count)])
    allowed = free[:, None].expand(-1, len(of_places)).clone()
    for place, held in told.items():
        allowed[:, place] = False
        allowed[held, place] = True
    return allowed


# Which rows a linear layer was fed, by the span of its weight's gradient.
#
# The gradient of W is delta^T X, with a row of X for each token of the batch. Where these are fewer
# than the layer's inputs and the derivatives delta are independent, its rows span the same space as
# those of X: a row that was fed lies in that space, and another one does not, by chance, at all.
# This is the test of Petrov et al. (2024), "DAGER: Exact Gradient Inversion for Large Language
# Models", arXiv 2405.15586.
#
# Where we differ from the paper: every layer that is fed the same rows shares in one space, each
# gradient at norm 1; the rank is read from the singular values and what rounding leaves of them;
# and the derivatives of the tokens that were found, delta = dW X^+, say which of them are of one
# record, since all values of one attention get nearly the same.
#
# Shape letters: O outputs, I inputs, S dimensions of a space.

_ABOVE = 10.0  # times rounding: a singular value that is one
_WEAK = 0.1  # greatest distance at which a row counts as one of a space, however weak that is
_MARGIN = 3.0  # times what rounding does to the weakest direction
_LEAST = 1e-6
_DRAWS = 40  # samples of rows that a few directions are sought in, beside the smallest
_STEPS = 4  # from a sample to all rows that lie within
_FILLED = 20.0  # times rounding: what the rows inside hold in every direction
_HOLDS = 0.5  # share of a direction of the rows inside that is one row's
_FITS = 0.01  # of a row, what the space of the others may leave: ten times what rounding may
_APART = 10.0  # of the rows outside of a space, over those inside


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Space:
    """The space that the rows of a gradient span.

    Attributes:
        basis: (S, I) orthonormal rows.
        tolerance: relative distance up to which a row lies in it.
    """

    basis: Tensor
    tolerance: float

    def distances(self, rows: Tensor) -> Tensor:
        """(...,) distances of rows (..., I), over their norms; 1 for a row that is not finite."""
        left = rows - (rows @ self.basis.T) @ self.basis
        found = left.norm(dim=-1) / rows.norm(dim=-1).clamp_min(1e-300)
        return found.nan_to_num(nan=1.0)


def spanned(gradients: Sequence[Tensor], *, most: int, rounding: float) -> Space | None:
    """The space of gradients of layers that are fed the same rows.

    Args:
        gradients: (O, I) of each layer, without noise.
        most: number of rows that were fed.
        rounding: of a number, relative.

    Returns:
        The space; None where the gradients are 0 or span every direction.

    >>> fed = torch.tensor([[1.0, 0.0, 2.0], [0.0, 1.0, 1.0]]).double()
    >>> space = spanned([torch.randn(5, 2).double() @ fed], most=2, rounding=1e-16)
    >>> other = torch.tensor([0.0, 0.0, 1.0]).double()
    >>> [round(d.item(), 2) for d in space.distances(torch.stack([fed.sum(0), other]))]
    [0.0, 0.41]
    """
    parts = [g / g.norm() for g in gradients if bool(g.any())]
    if not parts:
        return None
    _, values, right = torch.linalg.svd(torch.cat(parts), full_matrices=False)
    rank = min(int((values > _ABOVE * rounding * values[0]).sum()), most)
    if rank >= right.shape[1]:
        return None
    weakest = float(values[rank - 1] / values[0])
    tolerance = min(max(_LEAST, _MARGIN * rounding / weakest), _WEAK)
    return Space(basis=right[:rank], tolerance=tolerance)


def derivatives(gradients: Sequence[Tensor], rows: Tensor) -> Tensor:
    """(M, sum O) derivatives of the outputs at rows (M, I) whose gradients are known.

    Those of least size, where rows are dependent.
    """
    joint = torch.cat([g / g.norm().clamp_min(1e-300) for g in gradients])
    return torch.linalg.lstsq(rows.T, joint.T, driver="gelsd").solution


def outside_few(
    rows: Tensor, *, directions: int, most: int, rounding: float, generator: torch.Generator
) -> tuple[Tensor, bool]:
    """The rows that do not lie in the space of a few directions that all others span.

    An output layer that shares the table adds sum (p - y) h^T to its gradient, of one direction a
    prediction, and the tokens of the batch add derivatives of their own to their rows. The smallest
    rows hold none of the batch, as a rule; else rows are drawn. Each is rounded at its own size.

    Args:
        rows: (V, d) gradient of a table.
        directions: how many the space has at most, fewer than d.
        most: rows that lie outside, at most.
        generator: of the draws.

    Returns:
        (S,) indices, ascending; none where no such space is told from the rows outside. And whether
        the others fill every direction: else, as of a softmax that is sure, the rows of labels may
        be among those outside.
    """
    none, inside = torch.zeros(0, dtype=torch.int64), len(rows) - most
    if directions >= rows.shape[1] or inside <= directions:
        return none, False
    sizes = rows.norm(dim=1)
    unit = rows / sizes.clamp_min(1e-300)[:, None]
    floor = _FILLED * rounding * (1 + len(rows) / rows.shape[1]) ** 0.5
    found: tuple[int, Tensor, Tensor] | None = None
    for draw in range(2 + _DRAWS):
        if draw > 1 and found is not None:
            break
        within = sizes.argsort()[: inside // (1 + draw)]
        if draw > 1:
            within = torch.randperm(len(rows), generator=generator)[: 2 * directions]
        basis = _directions_of(unit[within], directions, floor)
        for _ in range(_STEPS):
            left = (unit - unit @ basis.T @ basis).norm(dim=1)
            order = left.sort()
            basis = _directions_of(unit[order.indices[:inside]], directions, floor)
        # Rows outside are told by a clear step in what is left of them; of two spaces the smaller.
        steps = order.values[inside:] / order.values[inside - 1 : -1].clamp_min(floor)
        first = inside + int(steps.argmax())
        if float(steps.max()) >= _APART and (found is None or len(basis) < found[0]):
            found = len(basis), order.indices[:first], order.indices[first:]
    if found is None:
        return none, False
    rank, within, outside = found
    # A row that alone holds a direction has to lie in the space of the others, or it made it.
    along = torch.linalg.svd(unit[within], full_matrices=False)[0][:, :rank]
    alone = []
    for at in (along.square().sum(dim=1) > _HOLDS).nonzero().flatten().tolist():
        basis = _directions_of(unit[torch.cat([within[:at], within[at + 1 :]])], directions, floor)
        row = unit[within[at]]
        if len(basis) < rank or float((row - basis.T @ (basis @ row)).norm()) > _FITS:
            alone.append(int(within[at]))
    every = torch.cat([outside, torch.tensor(alone, dtype=torch.int64)]).sort().values
    return every, rank == directions and not alone


def _directions_of(unit: Tensor, most: int, floor: float) -> Tensor:
    """(r, d) orthonormal directions that rows of norm 1 hold above what rounding leaves."""
    _, values, right = torch.linalg.svd(unit, full_matrices=False)
    return right[: min(int((values > floor * values[0]).sum()), most)]


_SAME_CANDIDATES = 1e-6  # relative difference of derivatives, in float64, that are one
_EQUAL = 1e-3  # distance of two rows of a gradient, over the norm of one, that are one
_MOVED = 1e-4  # of the logits at a place, what a token before it has to move
_WEAKEST = 1e-4  # of the largest singular value: rows of positions that can be told apart
_PAIRS = 4096  # tokens at positions whose derivatives are solved for
_TAKEN = 0.5  # of the largest coefficient of a token: a position that has it


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Candidates:
    """Tokens that a batch may hold, by position.

    Attributes:
        tokens: (S,) tokens, ascending.
        allowed: (S, L) whether a record may hold a token at a position.
        shown: (S,) whether a token is known to be in the batch; False where nothing tells.
        slopes: (S, L, O) derivatives at each token's place, None where no layer gives them.
        ordered: whether the model sees the order of a record's tokens.
        placed: whether anything tells at which position a token stands.
        hidden: whether the model hides padding, so that nothing of it is in any gradient.
    """

    tokens: Tensor
    allowed: Tensor
    shown: Tensor
    slopes: Tensor | None
    ordered: bool
    placed: bool
    hidden: bool


def shown_tokens(
    gradients: Mapping[str, Tensor], network: Network, *, records: int, rounding: float
) -> tuple[Tensor | None, bool]:
    """The tokens whose rows of the embedding's gradient hold more than an output layer adds.

    Args:
        gradients: by parameter, without noise.
        network: the model.

    Returns:
        (S,) tokens, and whether these are in the batch and not among it alone; None where the
        embedding sends no gradient of its own, or where the tokens are not told from the rows that
        an output layer fills.

    Raises:
        ValueError: More rows are filled than the batch has tokens.
    """
    table = network.table
    if table.parameter is None:
        return None, False
    if table.tied:
        found, sure = outside_few(
            gradients[table.parameter],
            directions=_directions(network, records),
            most=records * network.length + len(table.constant),
            rounding=rounding,
            generator=torch.Generator().manual_seed(0),
        )
        return (found, sure) if len(found) else (None, False)
    filled = gradients[table.parameter].ne(0).any(dim=1).nonzero().flatten()
    most = records * network.length + len(table.constant)
    if len(filled) > most:
        raise InputError(
            f"the gradient of embedding {table.parameter!r} has {len(filled)} rows that are not 0, "
            f"where records={records} of {network.length} tokens fill at most {most}; give the "
            "number of records, or noise_std where there is noise"
        )
    return (filled, True) if len(filled) else (None, False)


def candidates_of(
    gradients: Mapping[str, Tensor],
    network: Network,
    layers: Sequence[Layer],
    *,
    records: int,
    rounding: float,
    hidden: bool = False,
) -> Candidates:
    """The tokens of a batch and where they may stand, by rows of gradients and by spans.

    Args:
        layers: its linear layers.
        hidden: whether the model hides padding.
    """
    # Tokens that the embedding's gradient shows, or all, and padding.
    shown, sure = shown_tokens(gradients, network, records=records, rounding=rounding)
    length, spans = network.length, None
    free = torch.eye(network.table.width, dtype=torch.float64)
    if network.table.tied and network.table.parameter is not None and shown is not None:
        rows = gradients[network.table.parameter]
        free = _free(rows, shown, directions=_directions(network, records))
        gradients = {**gradients, network.table.parameter: rows @ free}
    tokens = torch.arange(network.table.vocabulary) if shown is None else shown
    padding = network.table.padding
    if shown is not None and padding is not None:
        tokens = torch.cat([tokens, torch.tensor([padding])]).unique()
    allowed = torch.ones(len(tokens), length, dtype=torch.bool)
    moves = False
    # Places by the spans of layers that tell positions apart.
    for group in _groups(network, [layer for layer in layers if layer.places is not None]):
        held = [layer.gradient(gradients) for layer in group]
        space = spanned(held, most=records * group[0].rows, rounding=rounding)
        if space is not None:
            allowed &= _within(network, group[0], tokens, space)
            moves = moves or _moves(network, group[0])
            spans = spans or (group, held)
    alone = shown is not None  # a row is a sum of its places alone
    if alone and (records == 1 or spans is None):
        allowed &= _by_positions(
            gradients, network, tokens, records=records, rounding=rounding, free=free
        )
    seen = allowed.clone()
    # Padding that is hidden, or that no span holds, may stand anywhere.
    if padding is not None and (hidden or spans is None):
        allowed[tokens == padding] = True
    # Of all tokens those that may stand somewhere; shown ones in any case.
    some = allowed.any(dim=1) | (torch.zeros(len(tokens)).bool() if shown is None else True)
    tokens, allowed, seen = tokens[some], allowed[some], seen[some]
    known = torch.isin(tokens, shown if sure and shown is not None else tokens[:0])
    known &= ~torch.isin(tokens, torch.tensor(network.table.constant, dtype=torch.int64))
    candidates = Candidates(
        tokens=tokens,
        allowed=allowed,
        shown=known,
        slopes=None,
        ordered=sees_order(network),
        placed=not bool(allowed.all()),
        hidden=hidden,
    )
    if spans is not None:
        return _with_slopes(candidates, network, *spans, pairs=seen, moves=moves)
    if not alone or network.table.parameter is None:
        return candidates
    rows = gradients[network.table.parameter][tokens]  # a sum over places, alike in a record too
    return replace(candidates, slopes=rows[:, None].expand(-1, length, -1))


def _groups(network: Network, layers: Sequence[Layer]) -> list[list[Layer]]:
    """Local layers that are fed the same rows."""
    probe = torch.arange(min(2, network.table.vocabulary))
    rows = [rows for layer in layers for _, rows in local_rows(network, layer, probe)]
    return [group for _, group in fed_alike(layers, rows)]


def _moves(network: Network, layer: Layer) -> bool:
    """Whether a layer is fed other rows for one token at other positions."""
    token = next(v for v in range(network.table.vocabulary) if v != network.table.padding)
    [(_, rows)] = local_rows(network, layer, torch.tensor([token]))
    return float((rows - rows[:, :1]).norm()) > _SAME_CANDIDATES * float(rows.norm())


def _within(network: Network, layer: Layer, tokens: Tensor, space: Space) -> Tensor:
    """(S, L) whether the row of a token at a position lies in the space."""
    parts = [space.distances(rows) for _, rows in local_rows(network, layer, tokens)]
    return torch.cat(parts) <= space.tolerance


def _by_positions(
    gradients: Mapping[str, Tensor],
    network: Network,
    tokens: Tensor,
    *,
    records: int,
    rounding: float,
    free: Tensor,
) -> Tensor:
    """(S, L) by the rows of learned positions, of which a token's row is the sum over its places.

    With g_p the derivative of the embedding at position p, the gradient of the positions has the
    rows g_p and that of the embedding the rows sum of g_p over the positions of a token.
    """
    allowed = torch.ones(len(tokens), network.length, dtype=torch.bool)
    found = position_rows(network)
    if found is None or network.table.parameter is None:
        return allowed
    name, first, factor = found
    of_places = factor * gradients[name].reshape(-1, network.table.width)[first:][: network.length]
    of_places = of_places @ free
    of_tokens = gradients[network.table.parameter][tokens]
    known = tokens != (-1 if network.table.padding is None else network.table.padding)
    if records > 1:
        told = by_sums(of_tokens[known], of_places, records=records, rounding=rounding)
        if told is not None:
            allowed[known] = told
        return allowed
    return _of_one(of_tokens, of_places, known=known)


def _directions(network: Network, records: int) -> int:
    """How many an output that shares the table adds: one for each prediction."""
    return records * (network.length if network.follows else 1)


def _free(rows: Tensor, tokens: Tensor, *, directions: int) -> Tensor:
    """(d, d) projection beside the directions that an output adds to rows (V, d) of its table."""
    others = ~torch.isin(torch.arange(len(rows)), tokens)
    right = torch.linalg.svd(rows[others], full_matrices=False)[2][:directions]
    return torch.eye(rows.shape[1], dtype=rows.dtype) - right.T @ right


def _of_one(of_tokens: Tensor, of_places: Tensor, *, known: Tensor) -> Tensor:
    """(S, L) of a single record: equal rows first, then the rest as a linear system."""
    allowed = torch.ones(len(of_tokens), len(of_places), dtype=torch.bool)
    same = torch.cdist(of_tokens, of_places) <= _EQUAL * of_places.norm(dim=1)  # (S, L)
    single = same & (same.sum(dim=0) == 1) & (same.sum(dim=1, keepdim=True) == 1) & known[:, None]
    alone, there = single.any(dim=1), single.any(dim=0)
    allowed[alone], allowed[:, there] = False, False
    allowed |= single
    rest, places = (~alone & known).nonzero().flatten(), (~there).nonzero().flatten()
    if len(rest) == 0 or not 0 < len(places) <= of_places.shape[1]:
        return allowed
    values = torch.linalg.svdvals(of_places[places])
    if values[-1] <= _WEAKEST * values[0]:
        return allowed
    solved = of_tokens[rest] @ torch.linalg.pinv(of_places[places])  # (rest, places)
    allowed[rest[:, None], places] = solved > _TAKEN * solved.amax(dim=1, keepdim=True)
    return allowed


def sees_order(network: Network) -> bool:
    """Whether logits change where the tokens of a record are put in another order."""
    allowed = [v for v in range(network.table.vocabulary) if v != network.table.padding]
    draw = torch.Generator().manual_seed(0)
    at = torch.randint(len(allowed), (network.length,), generator=draw)
    at[0], at[-1] = 0, len(allowed) - 1
    record = torch.tensor(allowed)[at]
    orders = [torch.randperm(len(record), generator=draw) for _ in range(3)]
    probes = torch.stack([record, record.flip(0), *(record[order] for order in orders)])
    with torch.no_grad(), twice_differentiable():
        logits = functional_call(network.model, dict(network.values), (probes,))
    return not torch.allclose(logits, logits[:1].expand_as(logits), rtol=1e-9, atol=1e-12)


def sees_far(network: Network) -> bool:
    """Whether at every place of a language model all tokens before it move the logits.

    And whether another order of the tokens does not just put the logits in that order.
    """
    tokens = [v for v in range(network.table.vocabulary) if v != network.table.padding]
    draw = torch.Generator().manual_seed(0)
    at = torch.randint(len(tokens), (network.length,), generator=draw)
    at = torch.cat(
        [at[None].flip(1), at + torch.cat([torch.zeros(1, len(at)), torch.eye(len(at))])]
    )
    with torch.no_grad(), twice_differentiable():
        logits = functional_call(
            network.model, dict(network.values), (torch.tensor(tokens)[at.long() % len(tokens)],)
        )
    turned, logits = logits[0].flip(0), logits[1:]
    if torch.allclose(turned, logits[0], rtol=1e-9, atol=1e-12) and len(turned) > 1:
        return False
    moved = (logits[1:] - logits[0]).norm(dim=2) > _MOVED * logits[0].norm(dim=1)  # (L, L)
    return bool((moved | ~torch.ones_like(moved).triu()).all())


def position_rows(network: Network) -> tuple[str, int, float] | None:
    """Parameter, first row and factor of the learned positions, told by a gradient at a probe."""
    table, length = network.table, network.length
    name = table.parameter
    allowed = [v for v in range(table.vocabulary) if v != table.padding]
    if name is None or len(allowed) < length or table.constant:
        return None
    tokens = torch.tensor(allowed[:length])
    # The gradient at a probe, in which each token stands at one position.
    gradients = sent_of(network, tokens[None], torch.zeros(1, dtype=torch.int64))
    own = gradients.get(name)
    if own is None or not bool(own.any()):
        return None
    directions = _directions(network, 1)
    free = (
        _free(own, tokens, directions=directions) if table.tied else torch.eye(table.width).to(own)
    )
    rows = own[tokens] @ free  # (L, width), in the order of the positions
    # Rows of another parameter that are the same, up to a factor.
    for key, value in gradients.items():
        if key == name or value.shape[-1:] != rows.shape[-1:]:
            continue
        others = value.reshape(-1, rows.shape[1]) @ free
        for first in range(len(others) - length + 1):
            same = others[first : first + length]
            size = float(same.square().sum())
            factor = float((same * rows).sum()) / size if size else 0.0
            if float((factor * same - rows).norm()) <= _SAME_CANDIDATES * float(rows.norm()):
                return key, first, factor
    return None


def _with_slopes(
    found: Candidates,
    network: Network,
    layers: Sequence[Layer],
    gradients: Sequence[Tensor],
    *,
    pairs: Tensor,
    moves: bool,
) -> Candidates:
    """The same with the derivatives at every token and position (S, L) whose row was fed."""
    pairs = pairs if moves else pairs & (torch.arange(network.length) == 0)
    if not 0 < int(pairs.sum()) <= _PAIRS:
        return found
    held = torch.cat([rows for _, rows in local_rows(network, layers[0], found.tokens)])
    solved = derivatives(gradients, held[pairs])
    slopes = solved.new_zeros(*found.allowed.shape, solved.shape[1])
    slopes[pairs] = solved
    if not moves:
        slopes = slopes[:, :1].expand(-1, network.length, -1)
    return replace(found, slopes=slopes)
