"""Records that a network changes before its first linear layer: looked up in tables, or scaled.

    h(x) = base + sum over numbers a_j x_j + sum over categories code_j[x_j]

is what the first linear layer is fed, where every column moves numbers of its own, but for
categories of which nothing else is used: their codes may add up. What is behind that layer is a
network of h alone, so h is rebuilt as any record is; then a number is read off its share of h, and
a category is the nearest code, or several are the nearest sum of codes. Without noise a category
whose row of the table has no gradient is none of the batch. Where nothing is looked up, h is base +
factor * x number by number (`Scaled`), before a convolution, too. Whether a network does only that
is asked by trial records, and whether its first layer is a linear map by that layer's own gradient
(`is_plain`).

Shape letters: B records, F columns, H inputs of the first linear layer, D parameters.
"""

from __future__ import annotations

import copy
import functools
import itertools
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from ...training.models.parameters import frozen_as_buffers, unflatten
from .layers import trial_records
from .observation import HOST, Observation

_MOST_CODES = 20_000  # rows of all tables, each of which is fed once
_ROUNDED = 1e-5  # of the terms that make a number
_PRECISE = 1e3  # times what a number adds at most, beside which rounding hides it
_MOST = 2_000  # columns, each of which is tried by itself
_FAITHFUL = 1e-2  # share of the distance of two codes that a record may be off
_JOINT = 100_000  # sums of the codes of categories that are compared
_LEAST = 1e-3  # width of the range of what no record moves


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Lookups:
    """The columns of a model's records, of which some are looked up in tables.

    Attributes:
        tables: for each column the name of its table and the row of its category 0; None of a
            number.
        sizes: for each column how many categories it has; 0 of a number.
        dtype: what the model takes: whole numbers alone, or others too.
    """

    tables: tuple[tuple[str, int] | None, ...]
    sizes: tuple[int, ...]
    dtype: torch.dtype

    def possible(self, j: int, observation: Observation, model: nn.Module) -> Tensor:
        """Which categories of a column the batch may hold: without noise, those with a gradient."""
        rows = self._rows(j, observation, model)
        if rows is None:
            return torch.ones(max(self.sizes[j], 1), dtype=torch.bool)
        rows[list(self._hidden(j, model))] = True
        return rows

    def _rows(self, j: int, observation: Observation, model: nn.Module) -> Tensor | None:
        """(n,) which categories have a gradient; None where nothing tells."""
        parts, (name, first) = unflatten(model, observation.gradient), self.tables[j] or ("", 0)
        if name not in parts or observation.is_noisy or not bool(parts[name].any()):
            return None  # it may be of a table that is not trained
        return parts[name].ne(0).any(dim=2).any(dim=0)[first : first + self.sizes[j]]

    def _hidden(self, j: int, model: nn.Module) -> set[int]:
        """The category of a column that has no gradient ever, if there is one."""
        name, first = self.tables[j] or ("", 0)
        padding = getattr(model.get_submodule(name.rpartition(".")[0]), "padding_idx", None)
        return {at for at in range(self.sizes[j]) if first + at == padding}

    def is_trained(self, observation: Observation, model: nn.Module) -> bool:
        """Whether every table has a gradient, so that the whole of it is to be explained."""
        looked = [j for j, n in enumerate(self.sizes) if n]
        return all(self._rows(j, observation, model) is not None for j in looked)

    def given(self, observation: Observation, model: nn.Module) -> Given | None:
        """The network of one record's numbers, where its tables show one category a column."""
        if observation.records != 1:
            return None
        record, others = torch.zeros(len(self.sizes)), dict[int, set[int]]()
        for j, n in ((j, n) for j, n in enumerate(self.sizes) if n):
            rows = self._rows(j, observation, model)
            if rows is None or int(rows.sum()) != 1:
                return None
            at = int(rows.long().argmax())
            record[j], others[j] = at, ({(at + 1) % n} | self._hidden(j, model)) - {at}
        return Given(model, record, others)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Columns(Lookups):
    """Columns that move numbers of their own, and what is behind the first linear layer.

    Attributes:
        base: (H,) of the record of zeros.
        codes: for each column what it adds to that, (n, H): of its categories, or of the number 1.
        layer: the name of the first linear layer.
        joint: columns that move the same numbers, beside each other.
    """

    base: Tensor
    codes: tuple[Tensor, ...]
    layer: str
    joint: tuple[tuple[int, ...], ...]

    def fed(self, records: Tensor) -> Tensor:
        """(..., H) what the first linear layer is fed of (..., F) records."""
        h = self.base.expand(*records.shape[:-1], -1).clone()
        for j, code in enumerate(self.codes):
            column = records[..., j].to(h)
            if (n := self.sizes[j]) == 0:
                h += column[..., None] * code[0]
            else:
                h += code[column.round().long().clamp(0, n - 1)]
        return h

    def records(self, h: Tensor) -> Tensor:
        """(..., F) of (..., H): numbers by their share of h, categories by the nearest code.

        Categories whose codes add up are 0.
        """
        rest, found = h - self.base.to(h), list[Tensor]()
        together = {j for columns in self.joint for j in columns if len(columns) > 1}
        for j, code in enumerate(self.codes):
            code = code.to(h)
            if j in together:
                found.append(rest.new_zeros(rest.shape[:-1]))
            elif self.sizes[j]:
                own = (code != 0).any(dim=0)
                far = (rest[..., None, own] - code[:, own]).square().sum(dim=-1)
                found.append(far.argmin(dim=-1).to(h))
            else:
                found.append(rest @ code[0] / code[0].square().sum())
        return torch.stack(found, dim=-1)

    def bounds(self, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        """(low, high) of h, (H,) each, of bounds of the columns that are numbers."""
        ends = torch.stack([low, high]).to(self.base).reshape(2, -1).expand(2, len(self.sizes))
        least, most = self.base.clone(), self.base.clone()
        for j, code in enumerate(self.codes):
            every = code if self.sizes[j] else ends[:, j, None] * code
            least, most = least + every.amin(0), most + every.amax(0)
        flat = most - least < _LEAST
        return least - flat * _LEAST / 2, most + flat * _LEAST / 2

    def read(
        self, h: Tensor, observation: Observation, model: nn.Module
    ) -> tuple[Tensor, list[bool]]:
        """(B, F) records of (B, H), and of which of them h is right but for rounding."""
        rest, records = h.to(self.base) - self.base, self.records(h)
        right, of = h.new_ones(len(h)).bool(), (observation, model)
        far = functools.partial(torch.cdist, compute_mode="donot_use_mm_for_euclid_dist")
        for columns in self.joint:
            if self.tables[columns[0]] is None:
                continue
            codes = [self.codes[j].double() for j in columns]
            own = torch.stack([(code != 0).any(dim=0) for code in codes]).any(dim=0)
            codes, may = [c[:, own] for c in codes], [self.possible(j, *of) for j in columns]
            some = torch.cartesian_prod(*(m.nonzero()[:, 0] for m in may)).reshape(-1, len(codes))
            sums = torch.stack([c[of] for c, of in zip(codes, some.T, strict=True)]).sum(dim=0)
            least = far(rest[:, own].double(), sums).min(dim=1)
            records[:, columns] = some[least.indices].to(records)
            # Other sums are far away in comparison, and of each column all other codes are.
            apart = far(sums[least.indices], sums).scatter(1, least.indices[:, None], 1e300).amin(1)
            for code, m, at in zip(codes, may, some[least.indices].T, strict=True):
                off = far(code[at], code).scatter(1, at[:, None], 1e300)
                apart = apart.minimum(off.masked_fill(~m & (off == 0), math.inf).amin(dim=1))
            right &= least.values < _FAITHFUL * apart
        return records, right.tolist()


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Scaled:
    """What a network does to each number of a record by itself before its first layer.

    Attributes:
        base, factor: (*fed), that layer is fed base + factor * x[column].
        column: (*fed), which number of the record; any where the factor is 0.
        first: (F,) where each number of the record is fed first, of all that is fed.
        shape: of one record.
        layer: the name of the layer.
    """

    base: Tensor
    factor: Tensor
    column: Tensor
    first: Tensor
    shape: tuple[int, ...]
    layer: str

    def records(self, h: Tensor) -> Tensor:
        """(..., *shape) of (..., *fed)."""
        x = ((h - self.base.to(h)) / self.factor.to(h)).flatten(-self.base.ndim)[..., self.first]
        return x.reshape(*x.shape[:-1], *self.shape)

    def bounds(self, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        """(low, high) of h, (*fed) each."""
        ends = torch.stack([of.to(self.base).expand(self.shape).flatten() for of in (low, high)])
        fed = (self.base + self.factor * ends[:, self.column]).sort(dim=0).values
        flat = fed[1] - fed[0] < _LEAST
        return fed[0] - flat * _LEAST / 2, fed[1] + flat * _LEAST / 2


def behind(
    front: Columns | Scaled, observation: Observation, model: nn.Module
) -> tuple[Observation, Behind] | None:
    """What is seen behind a front, and the network there; None where it cannot be called so."""
    with suppress(Exception):  # it may not be copied, or take a layer for what it is not
        if isinstance(front, Columns) and not _apart(front, observation, model):
            return None
        inner = copy.deepcopy(model)
        own = [p.requires_grad_() for p in inner.parameters()]
        network, h = Behind(inner, front), front.base.to(own[0]).expand(2, *front.base.shape)
        slopes = torch.autograd.grad(network(h).sum(), own, allow_unused=True)
        # What the layer is fed hides a part of the gradient of what makes it.
        fed = network.fed_by(h).sum()
        made = torch.autograd.grad(fed, own, allow_unused=True) if fed.requires_grad else ()
        used = [of is not None for of in slopes]
        kept = [of and by is None for of, by in itertools.zip_longest(used, made)]
        pairs = list(zip(model.named_parameters(), kept, strict=True))
        for p, of in zip(own, kept, strict=True):
            p.requires_grad_(of)
        inner = frozen_as_buffers(inner, [name for (name, _), of in pairs if of])
        chosen = torch.cat([torch.full((p.numel(),), of) for (_, p), of in pairs])
        if sum(p.numel() for p in inner.parameters()) != int(chosen.sum()):
            return None  # a layer is used in part
        shown = observation.shown
        return replace(
            observation,
            gradient=observation.gradient[:, chosen],
            points=observation.points[..., chosen],
            shown=None if shown is None else shown[chosen],
        ), Behind(inner, front, in_part=kept != used)
    return None


def _apart(columns: Columns, observation: Observation, model: nn.Module) -> bool:
    """Whether categories whose codes add up are few, and nothing but their sum is used."""
    together = [of for of in columns.joint if len(of) > 1]
    for group in together:
        if math.prod(int(columns.possible(j, observation, model).sum()) for j in group) > _JOINT:
            return False
    if not together:
        return True
    network = Behind(copy.deepcopy(model), columns)
    draw = torch.Generator().manual_seed(0)
    h = (columns.base + torch.randn(len(columns.base), generator=draw)).expand(2, -1)
    x = torch.zeros(2, len(columns.sizes)).to(columns.base)
    x[1, [j for group in together for j in group]] = 1
    with torch.no_grad():
        one, other = network.of(x, h)
    return torch.allclose(one, other, rtol=1e-6, atol=1e-9)


class Given(nn.Module):
    """A network of the numbers of a record whose categories are known.

    Args:
        inner: the network of the record.
        record: (F,) with any numbers.
        others: for each category's column other categories to try: one that has no gradient ever,
            and a next one. A row may have a gradient that the network takes by itself, or none
            where it is looked up.
    """

    def __init__(self, inner: nn.Module, record: Tensor, others: dict[int, set[int]]) -> None:
        super().__init__()
        self.inner, self.record, self.others = inner, record, others
        self.numbers = [j for j in range(len(record)) if j not in others]

    def records(self, numbers: Tensor) -> Tensor:
        """(B, F) of (B, n)."""
        known = self.record.to(numbers).expand(len(numbers), -1)
        at = torch.tensor(self.numbers, device=numbers.device)
        return known.index_copy(1, at, numbers) if self.numbers else known

    def forward(self, numbers: Tensor) -> Any:
        """The outputs of (B, n)."""
        return self.inner(self.records(numbers))


class Behind(nn.Module):
    """A network of what a layer of another is fed; what passes by that layer is read off it.

    It is so `in_part` where parameters that it holds also make what the layer is fed.
    """

    def __init__(self, inner: nn.Module, front: Columns | Scaled, *, in_part: bool = False) -> None:
        super().__init__()
        self.inner, self.front, self.fed, self.in_part = inner, front, list[Tensor](), in_part
        inner.get_submodule(front.layer).register_forward_pre_hook(self._feed)

    def _feed(self, _: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return (self.fed[0], *args[1:]) if self.fed else args

    def forward(self, h: Tensor) -> Any:
        """The outputs of (B, H), or (B, *fed)."""
        return self.of(self.front.records(h), h)

    def of(self, x: Tensor, h: Tensor) -> Any:
        """The outputs of records whose first layer is fed (B, H)."""
        self.fed.append(h)
        try:
            return self._call(x)
        finally:
            self.fed.clear()

    def fed_by(self, h: Tensor) -> Tensor:
        """(B, H) what the layer is fed of the records that are read off (B, H)."""
        fed, layer = list[Tensor](), self.inner.get_submodule(self.front.layer)
        hook = layer.register_forward_pre_hook(lambda _, args: fed.append(args[0]))
        self._call(self.front.records(h))
        hook.remove()
        return fed[0]

    def _call(self, x: Tensor) -> Any:
        whole = isinstance(self.front, Columns) and not self.front.dtype.is_floating_point
        return self.inner(x.round().long() if whole else x)


def scaled_of(
    model: nn.Module, shape: tuple[int, ...], point: Tensor, *, bounds: tuple[Tensor, Tensor]
) -> Scaled | None:
    """What a network does to each number by itself before its first linear layer or convolution.

    So do a normalisation of the model's own, BatchNorm in evaluation mode, another order, padding.
    None where it does nothing, or anything else, also to a number alone or to some within the
    bounds (broadcastable to a record), or where rounding hides the record.

    >>> network = nn.Sequential(nn.BatchNorm1d(2, affine=False), nn.Linear(2, 3)).eval()
    >>> ends = torch.zeros(2), torch.ones(2)
    >>> round(float(scaled_of(network, (2,), torch.ones(9), bounds=ends).factor[0]), 4)
    1.0
    """
    f, run = math.prod(shape), _Front(model, unflatten(model, point), whole=False, first=True)
    low, high = (of.to(point).expand(shape).flatten() for of in bounds)
    number = torch.arange(1, f + 1).to(point)
    records = torch.stack([0 * number, 0 * number + 1, number])
    with suppress(Exception):  # a model of other inputs may raise anything
        [(layer, h)] = run(records.reshape(3, *shape)).items()
        base, factor = h[0], h[1] - h[0]
        column = ((h[2] - base) / factor - 1).nan_to_num(0.0).round().long().clamp(0, f - 1)
        order = factor.abs().flatten().argsort()
        first = torch.full((f,), -1, device=column.device)
        first[column.flatten()[order]] = order  # the place of the largest factor stays
        plain = h.numel() == records.numel() and torch.equal(h.flatten(), records.flatten())
        most = factor.flatten()[first].abs()
        if plain or bool((first < 0).any()) or bool((most == 0).any()):
            return None
        known = base.flatten()[first].abs() <= _PRECISE * most * (high - low)
        drawn = trial_records(low, high)
        alone = torch.cat([run(one.reshape(1, *shape))[layer] for one in drawn])
        made, shown = base + factor * drawn[:, column], run(drawn.reshape(-1, *shape))[layer]
        sizes = factor.abs() * (drawn.abs() + (high - low))[:, column]
        off = torch.maximum((shown - made).abs(), (alone - made).abs())
        if bool(known.all() & (off <= _ROUNDED * (base.abs() + sizes)).all()):
            return Scaled(
                base=base, factor=factor, column=column, first=first, shape=shape, layer=layer
            )
    return None


def columns_of(
    model: nn.Module,
    shape: tuple[int, ...],
    point: Tensor | None = None,
    *,
    bounds: tuple[Tensor, Tensor] = (torch.tensor(0.0), torch.tensor(1.0)),
) -> Lookups | None:
    """The columns of records some of which are looked up, each in a table of its own.

    None where no column is a category, where the whole record is looked up in one table, as a text
    is, or where a category is looked up as another number; `Columns` unless h is another function
    of the columns. The parameters are those of `point` (D,), or else the model's; bounds are
    those of columns that are numbers.

    >>> class Shop(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.town, self.score = nn.Embedding(9, 4), nn.Linear(5, 2)
    ...     def forward(self, x):
    ...         return self.score(torch.cat([self.town(x[:, 0].long()), x[:, 1:]], dim=1))
    >>> found = columns_of(Shop(), (2,))
    >>> found.sizes, found.layer
    ((9, 0), 'score')
    """
    tables = [m for m in model.modules() if isinstance(m, nn.Embedding)]
    if len(shape) != 1 or not tables or any(m.max_norm is not None for m in tables):
        return None
    held, f = {name: p.detach() for name, p in model.named_parameters()}, shape[0]
    every = [id(p) for _, p in model.named_parameters(remove_duplicate=False)]
    tied = any(every.count(id(m.weight)) > 1 for m in tables)
    counted = point is None or len(point) == sum(map(Tensor.numel, held.values()))
    if tied or not counted or f > _MOST:
        return None
    held, like = held if point is None else unflatten(model, point.to(HOST)), tables[0].weight
    for whole in (_rounded in model._forward_pre_hooks.values(), True):
        run = _Front(model, held, whole=whole)
        with suppress(Exception):  # a model of whole numbers may raise anything of others
            run(torch.zeros(1, f).to(like))
            zeros = run.looked
            run(torch.ones(1, f).to(like))
            places = [
                (name, int(place))
                for (name, _, one), (_, _, two) in zip(zeros, run.looked, strict=True)
                for place in one[one != two]
            ]
            if not places or (len(places) == f and len(set(places)) == 1):  # or a text
                return None
            return _columns(run, f, like, bounds)
    return None


def round_inputs(model: nn.Module) -> None:
    """Let a network that takes whole numbers alone take others too, as `columns_of` knows."""
    model.register_forward_pre_hook(_rounded)


def _rounded(_: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
    return (args[0].round().long(), *args[1:])


class _Enough(Exception):
    """The first layer has been called."""


class _Front:
    """What a network looks up in its tables, and feeds its first linear layer, of records."""

    def __init__(
        self, model: nn.Module, held: dict[str, Tensor], *, whole: bool, first: bool = False
    ) -> None:
        self.model, self.held, self.whole, self.first = model, held, whole, first
        self.looked = list[tuple[str, int, Tensor]]()

    @torch.no_grad()
    def __call__(self, records: Tensor) -> dict[str, Tensor]:
        """(B, H) that each linear layer is fed at first, by its name, as far as it is a vector.

        Or that the first of these and of convolutions is fed, whatever its shape.
        """
        fed, self.looked = dict[str, Tensor](), list[tuple[str, int, Tensor]]()

        def note(name: str) -> Callable[[nn.Module, tuple[Any, ...]], None]:
            def hook(module: nn.Module, args: tuple[Any, ...]) -> None:
                if isinstance(module, nn.Embedding):
                    self.looked.append((f"{name}.weight", module.num_embeddings, args[0]))
                elif args[0].ndim == 2 or self.first:
                    fed.setdefault(name, args[0].clone())
                    if self.first:
                        raise _Enough

            return hook

        kinds = (nn.Linear, nn.Conv2d if self.first else nn.Embedding)
        at = [(n, m) for n, m in self.model.named_modules() if isinstance(m, kinds)]
        hooks = [module.register_forward_pre_hook(note(name)) for name, module in at]
        try:
            functional_call(self.model, self.held, (records.long() if self.whole else records,))
        except _Enough:
            pass
        finally:
            for hook in hooks:
                hook.remove()
        return fed


def _columns(run: _Front, f: int, like: Tensor, bounds: tuple[Tensor, Tensor]) -> Lookups | None:
    """The columns by what moves with each, at the first layer where that is all that h is."""
    eye = torch.eye(f).to(like)
    fed = run(torch.cat([torch.zeros_like(eye[:1]), eye]))
    at = dict[int, tuple[str, int, int]]()
    for name, rows, index in run.looked:
        if index.ndim == 0 or len(index) != f + 1:
            continue
        for place in index.reshape(f + 1, -1).T:
            moved = (place[1:] != place[0]).nonzero()[:, 0].tolist()
            if len(moved) > 1 or (moved and int(place[1 + moved[0]] - place[0]) != 1):
                return None
            at |= {j: (name, int(place[0]), rows) for j in moved if j not in at}
    # A table of several columns holds one after the other.
    firsts, sizes = [(name, first) for name, first, _ in at.values()], [0] * f
    if len(set(firsts)) < len(firsts):
        return None
    for j, (name, first, count) in at.items():
        sizes[j] = min([k for of, k in firsts if of == name and k > first], default=count) - first
    # What is drawn lies in the range and past it, and a category is seen by its row alone.
    low, high = (of.to(eye).expand(f) for of in bounds)
    drawn, tops = trial_records(low, high), torch.tensor(sizes).to(eye)
    share = torch.rand(drawn.shape, generator=torch.Generator().manual_seed(1)).to(eye)
    drawn = torch.where(tops > 0, (share * tops).floor(), drawn.round() if run.whole else drawn)
    reached, seen = run(drawn), [index for _, _, index in run.looked]
    between, again = run(drawn + 0.5 * ((tops > 0) & (not run.whole))), run.looked
    same = all(torch.equal(one, two) for one, (*_, two) in zip(seen, again, strict=True))
    if not at or not same or not all(_beyond(run, f, j, at[j][1] + sizes[j], tops) for j in at):
        return None
    looked = Lookups(
        tables=tuple(at[j][:2] if j in at else None for j in range(f)), sizes=tuple(sizes),
        dtype=torch.int64 if run.whole else next(iter(fed.values()), like).dtype,
    )  # fmt: skip
    if sum(sizes) > _MOST_CODES:
        return looked
    records = list[Tensor]()
    for j, n in enumerate(sizes):
        records.append(eye.new_zeros(max(n, 1), f))
        records[-1][:, j] = torch.arange(n).to(eye) if n else 1.0
    every = [run(of) for of in records]
    for layer, h in fed.items():
        found = Columns(
            tables=looked.tables, sizes=looked.sizes, dtype=looked.dtype, layer=layer, joint=(),
            base=h[0], codes=tuple(of[layer] - h[0] for of in every),
        )  # fmt: skip
        scale = max(float(code.abs().max()) for code in found.codes)
        near = functools.partial(torch.allclose, rtol=1e-4, atol=1e-5 * scale)
        # Each column moves numbers of its own, or categories the same ones, and they add up.
        moves = torch.stack([(code != 0).any(dim=0) for code in found.codes])
        joint = _joint(moves)
        alone = bool(moves.any(dim=1).all())
        alone &= all(len(of) == 1 or all(sizes[j] for j in of) for of in joint)
        pairs = [pair for of in joint for pair in itertools.combinations(of, 2)]
        alone &= not any(
            near(found.codes[a], found.codes[b]) for a, b in pairs if sizes[a] == sizes[b]
        )
        found = replace(found, joint=joint)
        widths = zip(sizes, found.codes, (high - low).tolist(), strict=True)
        least = min((w * float(of.abs().max()) for n, of, w in widths if not n), default=math.inf)
        alone = alone and float(h[0].abs().max()) <= _PRECISE * least
        if alone and near(reached[layer], found.fed(drawn)):
            return found if torch.equal(reached[layer], between[layer]) else looked
    return looked


def _joint(moves: Tensor) -> tuple[tuple[int, ...], ...]:
    """Columns that move the same numbers (F, H), beside each other."""
    found = list[tuple[list[int], Tensor]]()
    for j, own in enumerate(moves):
        shared = [group for group in found if bool((group[1] & own).any())]
        found = [group for group in found if not bool((group[1] & own).any())]
        columns = sum((group for group, _ in shared), [j])
        found.append((columns, torch.stack([own, *(moved for _, moved in shared)]).any(dim=0)))
    return tuple(sorted(tuple(sorted(columns)) for columns, _ in found))


def _beyond(run: _Front, f: int, j: int, wanted: int, tops: Tensor) -> bool:
    """Whether the number after the last category of a column is looked up as the next row."""
    with suppress(IndexError):  # there may be no such row
        run(torch.zeros(1, f).to(tops).index_fill(1, torch.tensor([j]), float(tops[j])))
    return any(bool((index == wanted).any()) for _, _, index in run.looked)
