"""Records put together of tokens, by layers whose rows follow from whole records.

Records do not meet in a network, so each is tested alone: all rows that a layer is fed for a true
record lie in the span of the layer's gradient. The search goes downhill in the squared distances,
one token at a time, from records that the derivatives of the first layer suggest, then from random
ones; what has no distance is a record, and the tokens that none of these holds are looked for next.

Shape letters: B records, L positions, S candidate tokens, N records that are tried at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment, nnls
from torch import Tensor, nn

from .candidates import Candidates, Space, spanned
from .layers import Layer, Network, fed_alike, rows_of

_TRIES = 1_200_000  # tokens of records that are tried at most, of one batch
_SHARP = 0.01  # tolerance up to which a space tells one wrong token of a record
_SHARPER = 1e-3  # the same of one that tells one among many others
_SPARE = 8  # records of a probe beside the inputs of a layer
_RANK = 1e-9  # of the largest singular value: a direction that is fed
_KICKS = 12  # times that a record is disturbed, and goes downhill again
_NUMBERS = 2**22  # that records at once may have in one layer
_PREFIXES = 256  # beginnings of records that are gone on with
_STARTS = 24
_ROUNDS = 20


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Test:
    """Layers that are fed the same rows, and the space of these."""

    layer: Layer
    space: Space


def tests_of(
    network: Network,
    layers: Sequence[Layer],
    gradients: Mapping[str, Tensor],
    *,
    records: int,
    rounding: float,
) -> list[Test]:
    """What a whole record is tested by.

    Args:
        network: the model.
        layers: its linear layers.
        gradients: by parameter, without noise.
        records: number B of records.
        rounding: of a number of the gradient, relative.
    """
    within = [layer for layer in layers if layer.places is None]
    if not within:
        return []
    # Random records show what each layer can be fed.
    allowed = [v for v in range(network.table.vocabulary) if v != network.table.padding]
    widest = max(layer.gradient(network.values).shape[1] for layer in within)
    draw = torch.Generator().manual_seed(0)
    at = torch.randint(len(allowed), (widest + _SPARE, network.length), generator=draw)
    probe = torch.tensor(allowed)[at]
    found = []
    for rows, group in fed_alike(within, rows_of(network, within, probe)):
        held = [layer.gradient(gradients) for layer in group]
        space = spanned(held, most=records * group[0].rows, rounding=rounding)
        if space is None or space.tolerance > _SHARP:
            continue
        # Behind a norm every row has mean 0: a space that holds all that can be fed tests nothing.
        some = rows.flatten(0, 1)
        some = some[:: max(1, len(some) // (4 * some.shape[1]))]
        if len(space.basis) < int(torch.linalg.matrix_rank(some, rtol=_RANK)):
            found.append(Test(layer=group[0], space=space))
    # What has a row for each token says most, sharp tests more; what is called first costs least.
    return sorted(
        found,
        key=lambda test: (test.layer.rows == 1, test.space.tolerance > _SHARPER, test.layer.call),
    )


@dataclass(slots=True, eq=False)
class Assembly:
    """A search for the records of one batch; counts what it has tried."""

    network: Network
    tests: Sequence[Test]
    candidates: Candidates
    records: int
    generator: torch.Generator
    tried: int = 0
    ended: list[Tensor] = field(default_factory=list)

    def distances(
        self, records: Tensor, tests: Sequence[Test] | None = None
    ) -> tuple[Tensor, Tensor]:
        """(N,) mean squared distances of records (N, L), and whether each passes every test.

        Those of the first test alone, whose layers cost least, unless tests are given.
        """
        self.tried += records.numel()
        tests = self.tests[:1] if tests is None else tests
        layers = [test.layer for test in tests]
        widest = max(test.layer.rows * test.space.basis.shape[1] for test in tests)
        padding = self.network.table.padding if self.candidates.hidden else None
        sums, passed = [], []
        for some in records.split(max(1, _NUMBERS // widest)):
            total, good = torch.zeros(len(some)).double(), torch.ones(len(some)).bool()
            for test, fed in zip(tests, rows_of(self.network, layers, some), strict=True):
                left = test.space.distances(fed)  # (n, R)
                rows = torch.ones_like(left)
                if padding is not None and left.shape[1] == some.shape[1]:
                    rows = (some != padding).double()
                    good &= rows.any(dim=1)
                left = left * rows
                total += left.square().sum(dim=1) / rows.sum(dim=1).clamp_min(1)
                total += (rows.sum(dim=1) == 0).double()  # of padding alone, nothing is tested
                good &= (left <= test.space.tolerance).all(dim=1)
            sums.append(total)
            passed.append(good)
        return torch.cat(sums), torch.cat(passed)

    def descend(self, record: Tensor) -> tuple[Tensor, bool]:
        """The record that no exchange of a token brings nearer, and whether it passes."""
        [best], [passes] = self.distances(record[None])
        options = int(self.candidates.allowed.sum()) + len(record) ** 2 // 2
        most = 2 * _TRIES // len(record)  # of neighbours that are held at once
        while not bool(passes) and self.tried < _TRIES and options <= most:
            near = self._neighbours(record)
            if len(near) == 0:
                break
            left, good = self.distances(near)
            order = left.argsort()
            if not float(left[order[0]]) < float(best) * (1 - 1e-9):
                break
            joint = self._joint(record, near[order[left[order] < best]])
            both, fine = self.distances(joint[None])
            if float(both[0]) < float(left[order[0]]):
                record, best, passes = joint, both[0], fine[0]
            else:
                record, best, passes = near[order[0]], left[order[0]], good[order[0]]
        if bool(passes) and len(self.tests) > 1:
            [passes] = self.distances(record[None], self.tests)[1]
        return record, bool(passes)

    def _neighbours(self, record: Tensor) -> Tensor:
        """(N, L) records with another token at one position, or with two exchanged."""
        held = self.candidates
        places = list(range(len(record)))
        if not held.ordered:  # any of several places of one token will do
            places = sorted({int((record == token).nonzero()[0]) for token in record.unique()})
        found = []
        for place in places:
            other = held.tokens[held.allowed[:, place] & (held.tokens != record[place])]
            near = record.repeat(len(other), 1)
            near[:, place] = other
            found.append(near)
        if held.ordered and not held.placed:
            found += self._exchanges(record)
        return torch.cat(found) if found else record[:0].reshape(0, len(record))

    def _exchanges(self, record: Tensor) -> list[Tensor]:
        """(N, L) records with two places exchanged."""
        pairs = torch.combinations(torch.arange(len(record)))
        one, two = pairs[record[pairs[:, 0]] != record[pairs[:, 1]]].T
        near, row = record.repeat(len(one), 1), torch.arange(len(one))
        near[row, one], near[row, two] = record[two], record[one]
        return [near]

    def _joint(self, record: Tensor, better: Tensor) -> Tensor:
        """The best change of each position, all at once."""
        changed = better != record
        first = better.gather(0, changed.byte().argmax(dim=0, keepdim=True))[0]
        return torch.where(changed.any(dim=0), first, record)

    def prefixes(self) -> list[Tensor]:
        """Records all of whose prefixes pass, where rows follow from prefixes, token by token.

        As behind causal attention, and of the states of recurrent layers: a prefix of another
        record than the batch's has a row outside of the span, and is not gone on with. What nothing
        goes on with is kept in `ended`, with -1 behind.
        """
        held, table, length = self.candidates, self.network.table, self.network.length
        layers = [test.layer for test in self.tests]
        choice = [held.tokens[held.allowed[:, place]] for place in range(length)]
        # The last place on which each row depends.
        words = torch.tensor([v for v in range(table.vocabulary) if v != table.padding])
        probe = torch.stack([[*options, words[0]][0] for options in choice]).repeat(length + 1, 1)
        for place in range(length):
            probe[place + 1, place] = words[int(words[0] == probe[0, place])]
        ends = [
            ((fed[1:] - fed[0]).norm(dim=2) > _RANK * fed[0].norm(dim=1)).T.long()
            * torch.arange(1, length + 1)
            for fed in rows_of(self.network, layers, probe)
        ]  # (R, L) of each test
        last = [end.amax(dim=1) - 1 for end in ends]
        if not set(range(length - 1)) <= set(torch.cat(last).tolist()):
            return []
        found = held.tokens.new_zeros(1, 0)
        for place, options in enumerate(choice):
            before, times = found, len(options)
            found = found.repeat_interleave(times, 0)
            found = torch.cat([found, options.repeat(len(before))[:, None]], dim=1)
            worst, least = torch.zeros(len(found)).double(), torch.full((len(found),), math.inf)
            some = torch.cat([found, probe[:1, place + 1 :].expand(len(found), -1)], dim=1)
            self.tried += some.numel()
            fed_rows = rows_of(self.network, layers, some) if len(some) else []
            for test, ended, fed in zip(self.tests, last, fed_rows, strict=False):
                if bool((ended == place).any()):
                    left = test.space.distances(fed[:, ended == place]).amax(dim=1)
                    left = left / test.space.tolerance
                    worst, least = torch.maximum(worst, left), torch.minimum(least, left)
            if held.hidden:
                worst[some[:, place] == table.padding] = 0
            kept = worst.argsort()[: min(_PREFIXES, int((worst <= 1).sum()))]
            goes_on = torch.zeros(len(before), dtype=torch.bool)
            goes_on[kept // max(times, 1)] = True
            # A state that a text ends with is fed to the outputs, and to no layer with a next one.
            last_one = (worst > 1) & ((least <= 1) | ~goes_on.repeat_interleave(times))
            for some in (before[~goes_on], found[last_one]):
                behind = (0, length - some.shape[1])
                self.ended += nn.functional.pad(some, behind, value=-1) if some.numel() else []
            found = found[kept]
            if len(found) == 0:
                break
        return list(found)

    def search(self, starts: Sequence[Tensor]) -> list[Tensor]:
        """Records that pass every test, at most B different ones; `starts` (L,) are tried first."""
        found: list[Tensor] = []
        waiting = list(starts)
        for _ in range(_STARTS * self.records):
            if len(found) == self.records or self.tried >= _TRIES:
                break
            record, passes = self._settle(waiting.pop(0) if waiting else self._start(found))
            if passes and not any(torch.equal(record, other) for other in found):
                found.append(record)
        return found

    def _settle(self, record: Tensor) -> tuple[Tensor, bool]:
        """Downhill, and again from a disturbed record as long as it does not pass."""
        record, passes = self.descend(record)
        left = float(self.distances(record[None])[0])
        for _ in range(_KICKS):
            if passes or self.tried >= _TRIES:
                break
            other, passes = self.descend(self._kicked(record))
            reached = float(self.distances(other[None])[0])
            if passes or reached < left:
                record, left = other, reached
        return record, passes

    def _kicked(self, record: Tensor) -> Tensor:
        """A record with random tokens at some of the places that have a choice."""
        held, other = self.candidates, record.clone()
        places = (held.allowed.sum(dim=0) > 1).nonzero().flatten()
        order = torch.randperm(len(places), generator=self.generator)
        for place in places[order[: max(2, len(places) // 4)]]:
            choice = held.tokens[held.allowed[:, place]]
            other[place] = choice[torch.randint(len(choice), (1,), generator=self.generator)]
        return other

    def _start(self, found: Sequence[Tensor]) -> Tensor:
        """A random record, of tokens that no record holds yet at their places where there are."""
        held, length = self.candidates, self.network.length
        open_ = held.allowed & held.shown[:, None]
        for record in found:
            at = torch.searchsorted(held.tokens, record)
            if held.ordered:
                open_[at, torch.arange(length)] = False
            else:
                open_[at] = False
        record = torch.empty(length, dtype=torch.int64)
        for place in range(length):
            here = open_[:, place] if bool(open_[:, place].any()) else held.allowed[:, place]
            choice = held.tokens[here]
            record[place] = choice[torch.randint(len(choice), (1,), generator=self.generator)]
        return record


def suggested(candidates: Candidates, *, records: int, generator: torch.Generator) -> list[Tensor]:
    """Records of tokens whose derivatives point alike: all tokens of a record get similar ones.

    Args:
        candidates: with derivatives; without these nothing is suggested.
        generator: of the first centres.

    Returns:
        At most B records (L,), different ones.
    """
    held, slopes = candidates, candidates.slopes
    if slopes is None:
        return []
    sizes = slopes.norm(dim=2)  # (S, L)
    unit = slopes / sizes.clamp_min(1e-300)[:, :, None]
    usable = held.allowed & (sizes > 0)
    if not bool(usable.any()):
        return []
    if not candidates.ordered:
        return _counted(candidates, slopes[:, 0], records=records, generator=generator)
    best: tuple[float, Tensor] | None = None
    # Clusters of like directions, a token a position, from several first centres.
    for _ in range(_ROUNDS):
        centres = _first_centres(unit[usable], records, generator)
        at, likeness = torch.zeros(0), 0.0
        for _ in range(_ROUNDS):
            before, (at, likeness) = at, _assigned(unit, usable, centres)
            centres = torch.stack([unit[row, torch.arange(len(row))].mean(dim=0) for row in at])
            if torch.equal(before, at):
                break
        if best is None or likeness > best[0]:
            best = likeness, at
    assert best is not None  # noqa: S101 # there is a round
    return _different(held.tokens[row] for row in best[1])


def _different(records: Iterable[Tensor]) -> list[Tensor]:
    """Each of the records once."""
    found: list[Tensor] = []
    for record in records:
        if not any(torch.equal(record, other) for other in found):
            found.append(record)
    return found


def _first_centres(unit: Tensor, records: int, generator: torch.Generator) -> Tensor:
    """(B, O) directions that lie far apart: one at random, then each time the farthest."""
    at = torch.randint(len(unit), (1,), generator=generator)
    centres = unit[at]
    while len(centres) < records:
        nearest = (unit @ centres.T).amax(dim=1)
        centres = torch.cat([centres, unit[nearest.argmin()][None]])
    return centres


def _assigned(unit: Tensor, usable: Tensor, centres: Tensor) -> tuple[Tensor, float]:
    """(B, L) token of every record at every place, and how alike they are to their centres."""
    alike = torch.einsum("slo,bo->bsl", unit, centres)
    found = torch.zeros(len(centres), usable.shape[1], dtype=torch.int64)
    total = 0.0
    for place in range(usable.shape[1]):
        options = usable[:, place].nonzero().flatten()
        if len(options) == 0:
            continue
        here = alike[:, options, place]  # (B, options)
        if len(options) >= len(centres):
            rows, columns = linear_sum_assignment(-here.numpy())
            found[rows, place] = options[columns]
        else:
            columns = here.argmax(dim=1)
            rows = torch.arange(len(centres))
            found[:, place] = options[columns]
        total += float(here[rows, columns].sum())
    return found, total


def _counted(
    candidates: Candidates, slopes: Tensor, *, records: int, generator: torch.Generator
) -> list[Tensor]:
    """Records of as many of each token as its derivative is large, where places do not count.

    A token's derivative is near to the sum over records of how often it is there, times one vector
    of the record. Those vectors are the extreme rays where each record has a token of its own, and
    non-negative least squares gives how often.
    """
    length, sizes = candidates.allowed.shape[1], slopes.norm(dim=1)
    usable = (sizes > 0).nonzero().flatten()
    if len(usable) == 0:
        return []
    rays = _extreme(slopes[usable], records)
    if rays is None:
        rays = slopes[usable][torch.randperm(len(usable), generator=generator)[:records]]
    parts = torch.tensor(np.stack([nnls(rays.T.numpy(), row.numpy())[0] for row in slopes[usable]]))
    counts = [_shares(part, length) for part in parts.T]  # (S,) of one record each
    tokens = candidates.tokens[usable]
    return _different(tokens.repeat_interleave(of) for of in counts if of is not None)


def _extreme(rows: Tensor, count: int) -> Tensor | None:
    """(count, O) of the rows (S, O) that no others make with positive factors; None if too few.

    Successive projections (Araujo et al. 2001; Gillis and Vavasis 2014) on rows of one sum.
    """
    along = (rows / rows.norm(dim=1, keepdim=True)).sum(dim=0)
    heights = rows @ along
    if not bool((heights > 0).all()):
        scaled = rows / rows.norm(dim=1, keepdim=True)  # they point apart: directions will do
    else:
        scaled = rows / heights[:, None]
    left, chosen = scaled.clone(), []
    first = float(left.norm(dim=1).max())
    for _ in range(count):
        at = int(left.norm(dim=1).argmax())
        size = float(left[at].norm())
        if size < 1e-6 * first:
            return None
        chosen.append(at)
        unit = left[at] / size
        left = left - (left @ unit)[:, None] * unit
    return rows[chosen]


def _shares(parts: Tensor, length: int) -> Tensor | None:
    """Whole numbers that sum to a length, in proportion to parts."""
    if not bool(parts.sum() > 0):
        return None
    exact = parts * length / parts.sum()
    counts = exact.floor().long()
    order = (exact - counts).argsort(descending=True)
    counts[order[: length - int(counts.sum())]] += 1
    return counts
