"""Which tokens a batch may hold, and at which positions, before any record is put together.

Shape letters: B records, L positions, V tokens of the vocabulary, S that are left, I inputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from ...privacy.errors import InputError
from ..problem.derivatives import twice_differentiable
from .layers import Layer, Network, fed_alike, local_rows
from .span import Space, derivatives, outside_few, spanned
from .sums import by_sums

_SAME = 1e-6  # relative difference of derivatives, in float64, that are one
_EQUAL = 1e-3  # distance of two rows of a gradient, over the norm of one, that are one
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
) -> Tensor | None:
    """The tokens whose rows of the embedding's gradient hold more than an output layer adds.

    Args:
        gradients: by parameter, without noise.
        network: the model.
        records: number B of records.
        rounding: of a number of the gradient, relative.

    Returns:
        (S,) tokens; None where the embedding sends no gradient of its own, or where the tokens are
        not told from the rows that an output layer fills.

    Raises:
        ValueError: More rows are filled than the batch has tokens.
    """
    table = network.table
    if table.parameter is None:
        return None
    if table.tied:
        found = outside_few(
            gradients[table.parameter],
            directions=records,
            most=records * network.length + len(table.constant),
            rounding=rounding,
            generator=torch.Generator().manual_seed(0),
        )
        return found if len(found) else None
    filled = gradients[table.parameter].ne(0).any(dim=1).nonzero().flatten()
    most = records * network.length + len(table.constant)
    if len(filled) > most:
        raise InputError(
            f"the gradient of embedding {table.parameter!r} has {len(filled)} rows that are not 0, "
            f"where records={records} of {network.length} tokens fill at most {most}; give the "
            "number of records, or noise_std where there is noise"
        )
    return filled


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
        gradients: by parameter, without noise.
        network: the model.
        layers: its linear layers.
        records: number B of records.
        rounding: of a number of the gradient, relative.
        hidden: whether the model hides padding.
    """
    shown = shown_tokens(gradients, network, records=records, rounding=rounding)
    length, spans = network.length, None
    tokens = torch.arange(network.table.vocabulary) if shown is None else shown
    padding = network.table.padding
    if shown is not None and padding is not None:
        tokens = torch.cat([tokens, torch.tensor([padding])]).unique()
    allowed = torch.ones(len(tokens), length, dtype=torch.bool)
    moves = False
    for group in _groups(network, [layer for layer in layers if layer.places is not None]):
        held = [layer.gradient(gradients) for layer in group]
        space = spanned(held, most=records * group[0].rows, rounding=rounding)
        if space is not None:
            allowed &= _within(network, group[0], tokens, space)
            moves = moves or _moves(network, group[0])
            spans = spans or (group, held)
    alone = shown is not None and not network.table.tied  # a row is a sum of its places alone
    if alone and (records == 1 or spans is None):
        allowed &= _by_positions(gradients, network, tokens, records=records, rounding=rounding)
    seen = allowed.clone()
    if padding is not None and (hidden or spans is None):
        allowed[tokens == padding] = True
    some = allowed.any(dim=1) | (torch.zeros(len(tokens)).bool() if shown is None else True)
    tokens, allowed, seen = tokens[some], allowed[some], seen[some]
    known = torch.isin(tokens, shown) if shown is not None else torch.zeros(len(tokens)).bool()
    known &= ~torch.isin(tokens, torch.tensor(network.table.constant, dtype=torch.int64))
    found = Candidates(
        tokens=tokens,
        allowed=allowed,
        shown=known,
        slopes=None,
        ordered=sees_order(network),
        placed=not bool(allowed.all()),
        hidden=hidden,
    )
    if spans is not None:
        return _with_slopes(found, network, *spans, pairs=seen, moves=moves)
    if not alone or network.table.parameter is None:
        return found
    rows = gradients[network.table.parameter][tokens]  # a sum over places, alike in a record too
    return replace(found, slopes=rows[:, None].expand(-1, length, -1))


def _groups(network: Network, layers: Sequence[Layer]) -> list[list[Layer]]:
    """Local layers that are fed the same rows."""
    probe = torch.arange(min(2, network.table.vocabulary))
    rows = [rows for layer in layers for _, rows in local_rows(network, layer, probe)]
    return [group for _, group in fed_alike(layers, rows)]


def _moves(network: Network, layer: Layer) -> bool:
    """Whether a layer is fed other rows for one token at other positions."""
    token = next(v for v in range(network.table.vocabulary) if v != network.table.padding)
    [(_, rows)] = local_rows(network, layer, torch.tensor([token]))
    return float((rows - rows[:, :1]).norm()) > _SAME * float(rows.norm())


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
    of_tokens = gradients[network.table.parameter][tokens]
    known = tokens != (-1 if network.table.padding is None else network.table.padding)
    if records > 1:
        told = by_sums(of_tokens[known], of_places, records=records, rounding=rounding)
        if told is not None:
            allowed[known] = told
        return allowed
    return _of_one(of_tokens, of_places, known=known)


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


def position_rows(network: Network) -> tuple[str, int, float] | None:
    """Parameter, first row and factor of the learned positions, told by a gradient at a probe."""
    table, length = network.table, network.length
    name = table.parameter
    allowed = [v for v in range(table.vocabulary) if v != table.padding]
    if name is None or len(allowed) < length or table.constant:
        return None
    tokens = torch.tensor(allowed[:length])
    owned = {key: value.clone().requires_grad_() for key, value in network.values.items()}
    with twice_differentiable():
        logits = functional_call(network.model, owned, (tokens[None],))
    loss = cross_entropy(logits, torch.zeros(1, dtype=torch.int64))
    slopes = torch.autograd.grad(loss, list(owned.values()), allow_unused=True)
    gradients = dict(zip(owned, slopes, strict=True))
    own = gradients[name]
    if own is None or not bool(own.any()):
        return None
    rows = own[tokens]  # (L, width), in the order of the positions
    for key, value in gradients.items():
        if key == name or value is None or value.shape[-1:] != rows.shape[-1:]:
            continue
        others = value.reshape(-1, rows.shape[1])
        for first in range(len(others) - length + 1):
            same = others[first : first + length]
            size = float(same.square().sum())
            factor = float((same * rows).sum()) / size if size else 0.0
            if float((factor * same - rows).norm()) <= _SAME * float(rows.norm()):
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
