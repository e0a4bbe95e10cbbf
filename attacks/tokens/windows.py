"""Windows of tokens that filters read, and texts put together where these overlap.

A filter of a convolution over embedded tokens has the gradient sum_w a_w [e(t_1), ..., e(t_k)] over
the windows w that it hands on; behind a maximum over places that is one window of each record.
Where the tokens' embeddings are independent, each part of it is solved for the weights of the
tokens that stand there, and what stands under one weight a_w is one window. Weights in a ratio of
small whole numbers, as under a mean over places that counts windows, name none.

Shape letters: B records, L positions, S tokens, O filters, k places of a window, m numbers of one.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from ..problem.observation import twice_differentiable
from .layers import Network, sent_of

_SAME = 1e-9  # relative difference of numbers of float64 that are one
_FITS = 30.0  # times rounding: what the tokens' rows leave of a filter's gradient
_MOST_LEFT = 0.01  # of it, where rows are nearly dependent
_WEAK = 1e-3  # of the largest weight of a filter: what is read as one
_EQUAL = 1e-5  # of the largest weight of a filter: weights of one window differ by less
_APART = 4e-5  # of the same: weights of two windows differ by more
_COUNTS = 16  # of windows that may be added up
_RATIO = 1e-4  # relative, of two weights to that of two counts
_RANK = 1e-4  # of the largest singular value: rows of tokens that are independent
_PROBES = 8  # batches on which it is tried whether windows are read right
_PIECES = 300  # that are put together at most
_TRIES = 100  # ways to do so


class _Filters(NamedTuple):
    """The weight of a convolution over embedded tokens, and its axis along which it slides."""

    parameter: str
    axis: int

    def gradient(self, gradients: Mapping[str, Tensor]) -> Tensor:
        """(O, k, m) gradient of the weight."""
        return gradients[self.parameter].movedim(self.axis, 1).flatten(2)


class _Convolutions(TorchFunctionMode):
    """Notes the weight and the inputs of every convolution, and whether it reads neighbours."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[Tensor, Tensor, bool]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = dict(kwargs or {})
        if func in (functional.conv1d, functional.conv2d, torch.conv1d, torch.conv2d):
            names = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
            given = {**dict(zip(names, args, strict=False)), **named}
            apart = given.get("dilation", 1)
            plain = given.get("groups", 1) == 1 and apart in (1, (1,), (1, 1), [1], [1, 1])
            self.found.append((given["weight"], given["input"].detach(), plain))
        return func(*args, **named)


def _convolutions(network: Network, tokens: Tensor) -> list[tuple[Tensor, Tensor, bool]]:
    watch = _Convolutions()
    with torch.no_grad(), twice_differentiable(), watch:
        functional_call(network.model, dict(network.values), (tokens,))
    return watch.found


def _filters(network: Network, tokens: Tensor) -> list[tuple[_Filters, Tensor]]:
    """Convolutions that are fed each token's row at its place, and the rows (S, m) of tokens (S,).

    Whatever stands beside it, and one after the other.
    """
    names = {value.data_ptr(): name for name, value in network.values.items()}
    length, draw = network.length, torch.Generator().manual_seed(0)
    # Two texts of one token each, all tokens in turn, and some at random.
    alike = tokens[[0, -1], None].expand(2, length)
    whole = functional.pad(tokens, (0, -len(tokens) % length), value=int(tokens[0]))
    at = torch.randint(len(tokens), (_PROBES, length), generator=draw)
    texts = torch.cat([alike, whole.reshape(-1, length), tokens[at]])
    calls = _convolutions(network, texts)
    counts = Counter(weight.data_ptr() for weight, _, _ in calls)
    found = []
    for weight, fed, plain in calls:
        name = names.get(weight.data_ptr())
        once = counts[weight.data_ptr()] == 1 and plain and len(fed) == len(texts)
        if name is None or not once or network.values[name].shape != weight.shape:
            continue
        for axis in range(2, weight.ndim):
            if any(weight.shape[of] != fed.shape[of] for of in range(2, weight.ndim) if of != axis):
                continue
            by_place = fed.movedim(axis, 1).flatten(2)  # (texts, places, m)
            moved = (by_place[0] != by_place[1]).any(dim=1).nonzero()[:, 0]
            if len(moved) != length or int(moved[-1] - moved[0]) != length - 1:
                continue
            of_texts = by_place[2:, moved]
            rows = of_texts[:-_PROBES].flatten(0, 1)[: len(tokens)]
            if torch.allclose(of_texts[-_PROBES:], rows[at], rtol=_SAME, atol=1e-12):
                found.append((_Filters(parameter=name, axis=axis), rows))
    return found


def windows_of(
    network: Network,
    gradients: Mapping[str, Tensor],
    tokens: Tensor,
    *,
    records: int,
    classes: int,
    rounding: float,
) -> tuple[tuple[int, ...], ...]:
    """Runs of tokens that stand side by side in a record, as filters read them.

    Args:
        network: the model.
        gradients: by parameter, without noise.
        tokens: (S,) those that the batch may hold.
        records: number B of records.
        classes: number of logits.
        rounding: of a number of the gradient, relative.

    Returns:
        Different ones, none of which is a part of another; none where a batch whose records are
        known shows windows that it does not hold.
    """
    if network.follows or len(tokens) < 2:
        return ()
    layers, constant = _filters(network, tokens), set(network.table.constant)
    names = [-1 if token in constant else token for token in tokens.tolist()]
    found = [
        window
        for layer, rows in layers
        for window in _read(layer.gradient(gradients), rows, names, rounding=rounding)
    ]
    if not found or _adds_up(network, classes=classes):
        return ()
    if not _reads_right(network, layers, tokens, records=records, classes=classes):
        return ()
    return _longest(found)


def _reads_right(
    network: Network,
    layers: Sequence[tuple[_Filters, Tensor]],
    tokens: Tensor,
    *,
    records: int,
    classes: int,
) -> bool:
    """Whether of batches of known records no window is read that they do not hold."""
    draw, constant = torch.Generator().manual_seed(0), set(network.table.constant)
    for _ in range(_PROBES):
        few = torch.randperm(len(tokens), generator=draw)[: max(2, len(tokens) // 2)]
        at = few[torch.randint(len(few), (records, network.length), generator=draw)]
        batch = tokens[at]
        sent = sent_of(network, batch, torch.randint(classes, (records,), generator=draw))
        for layer, rows in layers:
            if layer.parameter not in sent:
                continue
            weights = layer.gradient(sent)
            held = {w for row in batch.tolist() for w in _inside(row, weights.shape[1])}
            read = _read(weights, rows, tokens.tolist(), rounding=1e-12, counts=True)
            if not held.issuperset(run for run in read if not constant.intersection(run)):
                return False
    return True


def _adds_up(network: Network, *, classes: int) -> bool:
    """Whether filters hand on several windows of a record with one weight, as a mean does."""
    every = [v for v in range(network.table.vocabulary) if v != network.table.padding]
    looked = False
    for seed in range(_PROBES):
        draw = torch.Generator().manual_seed(seed)
        words = torch.tensor(every)[torch.randperm(len(every), generator=draw)[: network.length]]
        for layer, rows in _filters(network, words):
            few = words[: max(2, min(len(words), rows.shape[1] // 2))]  # whose rows are independent
            text = few.repeat(1 + network.length // len(few))[: network.length]
            sent = sent_of(network, text[None], torch.randint(classes, (1,), generator=draw))
            if layer.parameter not in sent or not bool((slopes := layer.gradient(sent)).any()):
                continue
            looked = True
            weights = _weights(slopes, rows[: len(few)], rounding=1e-12)
            most = weights.abs().amax(dim=(1, 2), keepdim=True)
            ordered = weights.sort(dim=2).values
            same = ordered.diff(dim=2).abs() <= _APART * most
            if not len(weights) or bool((same & (ordered[..., 1:] != 0)).any()):
                return True
    return not looked


def _inside(row: Sequence[int], most: int) -> set[tuple[int, ...]]:
    """All runs of a record, of a number of tokens at most."""
    size = len(row)
    return {tuple(row[i:j]) for i in range(size) for j in range(i + 1, 1 + min(size, i + most))}


def _read(
    gradient: Tensor, rows: Tensor, names: Sequence[int], *, rounding: float, counts: bool = False
) -> list[tuple[int, ...]]:
    """Windows in the gradient (O, k, m) of filters over S named tokens, -1 any, with rows (S, m).

    Those whose weights may be counts of one and the same are read if `counts`.
    """
    weights = _weights(gradient, rows, rounding=rounding)
    apart = max(_APART, rounding)
    return [run for own in weights for run in _by_weight(own, names, apart, counts=counts)]


def _weights(gradient: Tensor, rows: Tensor, *, rounding: float) -> Tensor:
    """(O', k, S) weights of the tokens of rows (S, m) of which filters' gradients are sums."""
    sizes, width = gradient.flatten(1).norm(dim=1), rows.norm(dim=1)
    seen, parts = (width > 0).nonzero()[:, 0], gradient[sizes > 0]
    found = gradient.new_zeros(len(parts), parts.shape[1], len(rows))
    if not len(parts) or not len(seen):
        return found[:0]
    parts, rows, width = parts / sizes[sizes > 0, None, None], rows[seen], width[seen]
    strength = torch.linalg.svdvals(rows)
    if len(rows) <= rows.shape[1] and bool(strength[-1] > _RANK * strength[0]):
        spread = float(strength[0] / strength[-1])
        weights = parts @ torch.linalg.pinv(rows)
    else:  # one token a place: the nearest in direction
        spread, along = 1.0, parts @ (rows / width[:, None]).T
        nearest = along.abs().argmax(dim=2, keepdim=True)
        weights = torch.zeros_like(along).scatter(2, nearest, along.gather(2, nearest)) / width
    left = (parts - weights @ rows).flatten(1).norm(dim=1)
    # What rounding makes of a token that is not there is no weight.
    least = max(_WEAK, rounding * spread) * weights.abs().amax(dim=(1, 2), keepdim=True)
    found[..., seen] = weights.where(weights.abs() > least, 0.0)
    return found[left <= max(min(_FITS * rounding * spread, _MOST_LEFT), _SAME)]


def _by_weight(
    weights: Tensor, names: Sequence[int], apart: float, *, counts: bool
) -> list[tuple[int, ...]]:
    """Windows of one filter: the tokens that stand at its places (k, S) under one weight.

    Weights of two windows differ by a part `apart` of the largest, or none is read.
    """
    most = float(weights.abs().max())
    places = [
        [(names[at], float(own[at])) for at in own.nonzero()[:, 0].tolist()] for own in weights
    ]
    every = [weight for _, weight in max(places, key=len)]
    for at, one in enumerate(every):
        for two in every[:at]:
            if abs(one - two) <= apart * most or (not counts and _counted(one, two)):
                return []
    windows = {weight: [-1] * len(places) for weight in every}
    for place, held in enumerate(places):
        left, open_ = list(held), list(every)
        for weight in every:
            same = [entry for entry in held if abs(entry[1] - weight) <= _EQUAL * most]
            if len(same) == 1:
                windows[weight][place] = same[0][0]
                left.remove(same[0])
                open_.remove(weight)
        # A token that stands there in several windows has the sum of their weights.
        if len(left) == 1 and len(open_) > 1 and abs(left[0][1] - sum(open_)) <= _EQUAL * most:
            for weight in open_:
                windows[weight][place] = left[0][0]
    return [run for window in windows.values() for run in _known(window)]


def _counted(one: float, two: float) -> bool:
    """Whether two weights may be counts of one and the same."""
    near = float(Fraction(one / two).limit_denominator(_COUNTS))
    return near > 0 and near <= _COUNTS and abs(near * two / one - 1) <= _RATIO


def _known(window: Sequence[int]) -> list[tuple[int, ...]]:
    """Runs of a window whose tokens are known."""
    return [tuple(run) for known, run in itertools.groupby(window, lambda t: t >= 0) if known]


def _longest(windows: Sequence[tuple[int, ...]]) -> tuple[tuple[int, ...], ...]:
    """Those that are no part of another one."""
    every = sorted(set(windows), key=lambda window: (-len(window), window))
    held: set[tuple[int, ...]] = set()
    found = []
    for window in every:
        if window not in held:
            found.append(window)
            held |= _inside(window, len(window))
    return tuple(found)


def texts_of(
    windows: Sequence[tuple[int, ...]], *, records: int, length: int
) -> list[list[Tensor]]:
    """Batches of whole records that hold all windows, each with as many tokens as these need.

    Args:
        windows: of `windows_of`.
        length: number L of tokens of a record.

    Returns:
        Different ones, at most B records (L,) each; none where the windows leave places open.

    >>> [[row.tolist() for row in text] for text in texts_of([(4, 7), (7, 9)], records=1, length=3)]
    [[[4, 7, 9]]]
    """
    if not 0 < len(windows) <= _PIECES:
        return []
    draw, found = random.Random(0), []  # noqa: S311 - an order in which ways are tried
    for _ in range(_TRIES):
        pieces, chosen = _joined(list(windows), length=length, draw=draw)
        rows = _filled(pieces, records=records, length=length, draw=draw)
        if rows is not None and sorted(rows) not in found:
            found.append(sorted(rows))
        if not chosen and all(len(piece) == length for piece in pieces):
            break
    return [[torch.tensor(row) for row in rows] for rows in found]


def _joined(
    pieces: list[tuple[int, ...]], *, length: int, draw: random.Random
) -> tuple[list[tuple[int, ...]], bool]:
    """Pieces put together where one ends with what another begins with, the longest such first.

    And whether there was a choice.
    """
    draw.shuffle(pieces)
    most, chosen = max(map(len, pieces)), False
    held = dict.fromkeys(pieces)
    for width in range(most - 1, 0, -1):
        begins: dict[tuple[int, ...], dict[tuple[int, ...], None]] = defaultdict(dict)
        for piece in held:
            begins[piece[:width]][piece] = None
        waiting = list(held)
        while waiting:
            piece = waiting.pop()
            if piece not in held or len(piece) <= width:
                continue
            room = length - len(piece) + width
            fits = [p for p in begins[piece[-width:]] if p != piece and width < len(p) <= room]
            if not fits:
                continue
            chosen |= len(fits) > 1
            other = draw.choice(fits)
            made, at = piece + other[width:], len(piece)
            across = _inside(made[max(0, at - most) : at + most], most)
            for gone in ({piece, other} | across) & held.keys():
                del held[gone]
                begins[gone[:width]].pop(gone, None)
            held[made] = begins[made[:width]][made] = None
            waiting.append(made)
    return list(held), chosen


def _filled(
    pieces: Sequence[tuple[int, ...]], *, records: int, length: int, draw: random.Random
) -> list[tuple[int, ...]] | None:
    """Records of a length that pieces fill; None where they do not in the order that is drawn."""
    rows: list[tuple[int, ...]] = []
    for piece in sorted(pieces, key=lambda piece: (-len(piece), draw.random())):
        fits = [row for row in rows if len(row) + len(piece) <= length]
        if fits and len(piece) < length:
            row = draw.choice(fits)
            rows.remove(row)
            rows.append(row + piece if draw.random() < 0.5 else piece + row)
        else:
            rows.append(piece)
    whole = all(len(row) == length for row in rows)
    return rows if whole and len(rows) <= records else None


def joined_by(windows: Collection[tuple[int, ...]], text: Sequence[int]) -> bool:
    """Whether each two neighbours of a text stand in a window that is read.

    Where two do not, what is before them may stand behind.

    >>> joined_by([(4, 7), (7, 9)], [4, 7, 9]), joined_by([(4, 7)], [4, 7, 9])
    (True, False)
    """
    most, windows = max(map(len, windows), default=0), set(windows)
    pairs = {
        at + step
        for at in range(len(text))
        for size in range(2, 1 + min(most, len(text) - at))
        if tuple(text[at : at + size]) in windows
        for step in range(size - 1)
    }
    return len(pairs) == len(text) - 1
