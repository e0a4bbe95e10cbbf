"""Whether a batch of tokens is the only one of its kind that explains a gradient.

A batch that explains a gradient is held against those that differ from it least: two tokens of a
record exchanged, two records' tokens at one position exchanged, a record backwards, and at every
place one token replaced by another, of those that are possible there and of all others: a token at
a place that never reaches the logits has no row, so that it is none of those that seem possible.
Where one of these explains the gradient as well, the model does not tell them apart, and nothing
could: what is then known is said to be less. That neighbours are told apart does not say that all
pairs are: a model may know the parity of a place alone. Nor does an order say that every place is
looked at.

Shape letters: B records, L positions, S tokens that are possible.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .candidates import Candidates
from .explainer import ANY, DECLARED, SCALED, UNKNOWN, Batch, Explainer, ends
from .layers import Table
from .symmetries import symmetric

TOKENS, ROWS, PRIOR = "tokens", "token rows", "prior"  # the stages

_APART = 10.0  # times what the batch leaves of the gradient: another one is told apart
_LEAST = 1e-12  # of the gradient: what float64 leaves
_TESTED = 200  # batches of a kind that are tried at most
_REPLACED = 1000  # places at which another token is tried at most, those of nearest logits
_PROBED = 4096  # tokens of which it is tried whether they count for nothing
_PLACES = 3  # at either end of a record, at which tokens are changed
_LINEAR = 1e-6  # of derivatives, what rounding in float64 leaves of sums
_NEAR = 2048  # logits of such tokens that are computed at most, or one a place and kind
_PARTS = 4096  # texts with a part elsewhere whose logits are computed at most
_FILLS = 4  # tokens that fill a text from which a part is taken
_AGAIN = 3  # of texts with a part elsewhere that are moved again
_PRODUCTS = 5 * 10**9  # of a weight and a number, for these logits
_WAYS = 20000  # places at which a part of another record is looked for
_OVERLAP = 3  # tokens with which one part ends and the next one begins
_FEW = 10  # of these that are tried
_SAME = 1e-9  # of logits, what rounding in float64 leaves


@dataclass(frozen=True, kw_only=True, slots=True)
class Certificate:
    """What a batch that explains a gradient is certain in.

    Attributes:
        order: whether another order of a record's tokens leaves more of the gradient.
        membership: whether tokens of one position exchanged between records leave more.
        tokens: whether another token at any place leaves more, and another end; else how often a
            token is there is not known.
        runner_up: least relative residual of those batches that are told apart; None where none is.
        tested: number of batches that were tried.
    """

    order: bool
    membership: bool
    tokens: bool
    runner_up: float | None
    tested: int


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TokenReconstruction:
    """What a gradient says of a batch of tokens.

    Attributes:
        tokens: (B, L) tokens, -1 where one is not known.
        labels: (B,) classes, -1 where they are not known.
        found: tokens that the batch holds, ascending; under noise those that stand out.
        decided: "sequences" where every token is known at its place, "multisets" where the model
            does not see the order, so that how often a record holds a token is known alone, "batch"
            where the same is known of all records together, "set" where only which tokens the batch
            holds is, "nothing".
        stage: of each record: "tokens", "token rows" under noise, or "prior".
        residual: ||g - o|| / ||o|| of the batch; 1 where there is none.
        certificate: what was tried beside it; None where there is no batch.
        false_alarm: probability that any token of `found` is not in the batch; 0 without noise.
        power: share of the tokens of random batches that would be found under this noise.
        notes: what could not be decided, and why.
        windows: runs of tokens that stand side by side in a record, where no order is known.
    """

    tokens: Tensor
    labels: Tensor
    found: tuple[int, ...]
    decided: str
    stage: tuple[str, ...]
    residual: float
    certificate: Certificate | None
    false_alarm: float
    power: float
    notes: tuple[str, ...]
    windows: tuple[tuple[int, ...], ...] = ()

    @property
    def supported(self) -> tuple[bool, ...]:
        """Of each record, whether the gradient speaks for it."""
        return tuple(stage != PRIOR for stage in self.stage)


def certified(
    explainer: Explainer,
    batch: Batch,
    *,
    held: Candidates,
    table: Table,
    generator: torch.Generator,
) -> Certificate:
    """Try the batches that differ least from one that explains a gradient.

    By position `held` has the tokens that are possible, of those of the table. Where there are too
    many batches, the generator chooses which are tried.
    """
    vocabulary, under_any = table.vocabulary, explainer.loss == ANY
    limit, length = _APART * max(batch.residual, _LEAST), batch.tokens.shape[1]
    kinds = (
        ("order", _reordered(batch.tokens), _TESTED),
        ("order", _transposed(batch.tokens, generator), _TESTED),
        ("order", _rearranged(batch.tokens, turned=False), _TESTED),
        ("tokens", _rearranged(batch.tokens, turned=True), _TESTED),
        *(_moved(explainer, batch.tokens, table, generator) if held.ordered else ()),
        ("order", symmetric(explainer, batch, table, generator) if held.ordered else [], _TESTED),
        ("tokens", _refilled(explainer, batch.tokens, table), _TESTED),
        ("members", _exchanged(batch.tokens, batch.labels), _TESTED),
        ("tokens", _replaced(explainer, batch.tokens, held, vocabulary, generator), _REPLACED),
        ("members", _crossed(batch) if explainer.follows else [], _TESTED),
        ("tokens", _mixed(batch.tokens) if under_any else [], _TESTED),
        *(_aligned(explainer, batch.tokens, held, generator) if under_any else ()),
        ("tokens", _continued(batch, vocabulary) if explainer.follows else [], _REPLACED),
        ("ends", _resized(explainer, batch) if explainer.follows and length > 1 else [], _TESTED),
    )
    left: dict[str, list[float]] = {"order": [], "members": [], "tokens": [], "ends": []}
    loss = explainer.loss
    # A label may be the token that follows.
    if vocabulary == explainer.classes and not under_any:
        left["tokens"] = [
            explainer.residual(batch.tokens, (batch.labels + one) % vocabulary)
            for one in torch.eye(len(batch.labels), dtype=torch.int64)
        ]
    for name, others, most in kinds:
        at = torch.randperm(len(others), generator=generator)[:most].sort().values
        # The mean runs over other places then.
        explainer.loss = SCALED if name == "ends" and loss == DECLARED else loss
        for other in (others[int(i)] for i in at):  # with labels, or without
            if bool((other[:, 1:length] > UNKNOWN).logical_and(other[:, : length - 1] < 0).any()):
                continue  # which goes on behind its end
            labels = other[:, length] if other.shape[1] > length else batch.labels
            left[name].append(explainer.residual(other[:, :length], labels))
    explainer.loss = loss
    if explainer.follows and _counts_no_start(explainer, batch.tokens):
        left["ends"].append(batch.residual)
    if under_any and _adds_up(explainer, batch.tokens, table, ordered=held.ordered):
        left["tokens"].append(batch.residual)
    every = [value for values in left.values() for value in values]
    apart = [value for value in every if value > limit]
    alike = {name: any(value <= limit for value in values) for name, values in left.items()}
    return Certificate(
        order=not alike["order"],
        membership=not alike["members"],
        tokens=not alike["tokens"] and not alike["ends"],
        runner_up=min(apart, default=None),
        tested=len(every),
    )


def _reordered(tokens: Tensor) -> list[Tensor]:
    """Batches with two neighbours of one record exchanged, or a record backwards."""
    found = []
    for record, own in enumerate(tokens):
        for place in range(len(own) - 1):
            if own[place] != own[place + 1]:
                other = tokens.clone()
                other[record, place], other[record, place + 1] = own[place + 1], own[place]
                found.append(other)
        if not torch.equal(own, own.flip(0)):
            other = tokens.clone()
            other[record] = own.flip(0)
            found.append(other)
    return found


def _exchanged(tokens: Tensor, labels: Tensor) -> list[Tensor]:
    """Batches with the tokens of one position exchanged between two records.

    Two records that differ in one position alone, under one label, are only renamed by that.
    """
    found = []
    for one in range(len(tokens)):
        for two in range(one + 1, len(tokens)):
            differing = (tokens[one] != tokens[two]).nonzero().flatten().tolist()
            if labels[one] == labels[two] and len(differing) == 1:
                continue
            for place in differing:
                other = tokens.clone()
                other[one, place], other[two, place] = tokens[two, place], tokens[one, place]
                found.append(other)
    return found


def _crossed(batch: Batch) -> list[Tensor]:
    """(B, L + 1) with all that follows on a place exchanged between two records, labels too."""
    found, whole = [], torch.cat([batch.tokens, batch.labels[:, None]], dim=1)
    for one, two in itertools.combinations(range(len(whole)), 2):
        for place in range(1, whole.shape[1]):
            parts = whole.tensor_split([place], dim=1)
            if not any(torch.equal(part[one], part[two]) for part in parts):
                other = whole.clone()
                other[[one, two], place:] = whole[[two, one], place:]
                found.append(other)
    return found


def _mixed(tokens: Tensor) -> list[Tensor]:
    """Batches with one record replaced by another whose numbers are on a line or plane of theirs.

    Under any loss a linear model sends of these what it sends of the batch. With n the number of
    times that a record has each token: n_i + t (n_j - n_i), and n_i + n_j - n_k, where these are
    whole numbers of at least 0, and the same of the tokens of each place.
    """
    found, length, records = [], tokens.shape[1], range(len(tokens))
    size = int(tokens.max()) + 1
    counts = torch.stack([row.bincount(minlength=size) for row in tokens])
    others: list[tuple[Tensor, tuple[int, ...]]] = []
    for one, two in itertools.permutations(records, 2):
        step = counts[two] - counts[one]
        step = step // max(math.gcd(*step.tolist()), 1)
        others += [(counts[one] + times * step, (one, two)) for times in range(1, 1 + length)]
    mixed: list[tuple[Tensor, tuple[int, ...]]] = []
    for (one, two), less in itertools.product(itertools.combinations(records, 2), records):
        others.append((counts[one] + counts[two] - counts[less], (one, two, less)))
        first, second, third = tokens[[one, two, less]]
        if less not in {one, two} and bool(((third == first) | (third == second)).all()):
            mixed.append((torch.where(third == first, second, first), (one, two, less)))
    every = torch.arange(size)
    mixed += [(every.repeat_interleave(n), of) for n, of in others if bool((n >= 0).all())]
    for row, replaced in mixed:
        for record in replaced:
            if torch.equal(row.bincount(minlength=size), counts[record]):
                continue  # its own tokens, maybe in another order
            found.append(tokens.clone())
            found[-1][record] = row
    return found


def _continued(batch: Batch, vocabulary: int) -> list[Tensor]:
    """(B, L + 1) with another token after one record."""
    others = (batch.labels + torch.eye(len(batch.labels), dtype=torch.int64)) % vocabulary
    return [torch.cat([batch.tokens, labels[:, None]], dim=1) for labels in others]


def _resized(explainer: Explainer, batch: Batch) -> list[Tensor]:
    """(B, L + 1) of texts that may end earlier, one of them shorter or longer.

    What a model is sure of sends nothing, and what it sends twice is sent once by half a text: a
    token is left out or is there twice, the text goes on with what the model predicts, or is cut.
    """
    found: list[Tensor] = []
    whole, length = torch.cat([batch.tokens, batch.labels[:, None]], 1), batch.tokens.shape[1]
    for record, last in enumerate(ends(batch.tokens).tolist()):
        text, label = whole[record, : last + 1], whole[record, -1:]
        texts = [torch.cat([text[:at], text[at + 1 :]]) for at in range(last + 1) if last]
        texts += [torch.cat([text[:at], text[at - 1 :]]) for at in range(1, last + 2)]
        texts += [text[: (last + 1) // part] for part in (2, 3) if last + 1 >= part]
        texts += [torch.cat([text, label])] if bool(label >= 0) else []
        texts = [text for text in texts if len(text) <= length]
        padded = [nn.functional.pad(t, (0, length - len(t)), value=UNKNOWN) for t in texts]
        after = explainer.at(torch.stack(padded)).argmax(dim=2)
        for other, sure, of in zip(padded, after, texts, strict=True):
            for follows in {int(label), int(sure[len(of) - 1])}:
                found.append(whole.clone())
                found[-1][record] = torch.cat([other, torch.tensor([follows])])
    return found


def _counts_no_start(explainer: Explainer, tokens: Tensor) -> bool:
    """Whether a text begins with a token twice, and the model says as much of it without one."""
    for text in (row[row >= 0] for row in tokens):
        if len(text) > 1 and text[0] == text[1]:
            logits, without = (explainer.at(t[None])[0] for t in (text, text[1:]))
            if torch.allclose(logits[1:], without, rtol=1e-9, atol=1e-9):
                return True
    return False


def _transposed(tokens: Tensor, generator: torch.Generator) -> list[Tensor]:
    """Batches with two tokens of one record exchanged that are no neighbours."""
    found = []
    length = tokens.shape[1]
    pairs = [(one, two) for one in range(length) for two in range(one + 2, length)]
    for record, own in enumerate(tokens):
        for index in torch.randperm(len(pairs), generator=generator)[:_TESTED].tolist():
            one, two = pairs[index]
            if own[one] != own[two]:
                other = tokens.clone()
                other[record, one], other[record, two] = own[two], own[one]
                found.append(other)
    return found


def _rearranged(tokens: Tensor, *, turned: bool) -> list[Tensor]:
    """Batches with parts of one record exchanged that begin with the same tokens, up to three.

    Its windows, as a convolution sees them, stay the same then but for their places. Those that are
    turned begin elsewhere on a circle, and may hold another token twice.
    """
    found: list[Tensor] = []
    for record, own in enumerate(tokens.tolist()):
        texts = itertools.islice(_same_windows(own), _REPLACED)
        for text in {tuple(text) for text in texts} - {tuple(own)}:
            if (sorted(text) != sorted(own)) is not turned:
                continue
            found.append(tokens.clone())
            found[-1][record] = torch.tensor(text)
    return found


def _same_windows(own: list[int]) -> Iterator[list[int]]:
    """Texts with the windows of one; from the widest on."""
    for width in (3, 2, 1):
        if width < len(own) and own[:width] == own[-width:]:  # a circle begins anywhere
            around = own[:-width]
            yield from (((around * 3)[at:])[: len(own)] for at in range(1, len(around)))
        grams = [tuple(own[at : at + width]) for at in range(len(own) - width + 1)]
        at: dict[tuple[int, ...], list[int]] = {}
        for p, gram in enumerate(grams):
            at.setdefault(gram, []).append(p)
        for p, r in (pair for same in at.values() for pair in itertools.combinations(same, 2)):
            for q in range(p + 1, r + 1):
                for s in at[grams[q]][bisect.bisect_left(at[grams[q]], max(r, q + 1)) :]:
                    yield own[:p] + own[r:s] + own[q:r] + own[p:q] + own[s:]


def _moved(
    explainer: Explainer, tokens: Tensor, table: Table, generator: torch.Generator
) -> tuple[tuple[str, list[Tensor], int], ...]:
    """Batches with a part of one record elsewhere, or taken out, where its logits stay the same.

    Behind a maximum over places a model sees no more of a text than the windows that win. Those of
    the same tokens are another order; those that are filled with others are other tokens.
    """
    order: list[Tensor] = []
    other: list[Tensor] = []
    if explainer.follows:
        return ()
    words, point = torch.arange(table.vocabulary), explainer.observation.points[0, 0]
    weights = max(1, len(point) - table.vocabulary * table.width)
    most = min(_PARTS, _PRODUCTS // (weights * tokens.shape[1])) // len(tokens)
    if not most:  # of networks of a hundred million weights
        return ()
    for record, own in enumerate(tokens):
        some = torch.randperm(table.vocabulary, generator=generator)[:_FILLS]
        fills = torch.cat([words[own.unique()][:_FILLS], words[some]]).unique().tolist()
        logits, same = explainer.logits(own[None]), [own.tolist()]
        for text in same:  # which grows: what stays the same may be moved again
            texts = _parts(text, fills, most=most, generator=generator)
            off = explainer.logits(torch.tensor(texts)) - logits
            alike = (off.norm(dim=1) <= _SAME * logits.norm()).nonzero()[:, 0].tolist()
            unlike = {tuple(texts[at]): texts[at] for at in alike}
            same += [one for one in unlike.values() if one not in same]
            others = [one for one in same if sorted(one) != sorted(same[0])]
            if others or len(same) == 1 or same.index(text) >= _AGAIN:
                break
        for text in same[1:]:
            found = other if text in others else order
            found.append(tokens.clone())
            found[-1][record] = torch.tensor(text)
    return ("order", order, _FEW), ("tokens", other, _FEW)


def _aligned(
    explainer: Explainer, tokens: Tensor, held: Candidates, generator: torch.Generator
) -> tuple[tuple[str, list[Tensor], int], ...]:
    """Batches with one record replaced by a text whose logits are on a line or plane of theirs.

    Under any loss a network that sums what it makes of windows sends of these what it sends of the
    batch. Tried are all texts of the possible tokens where they are few, else parts elsewhere, runs
    of a record's tokens, and parts of two; none where records outnumber outputs, as all fit then.
    """
    records, length = tokens.shape
    if records < 2 or explainer.follows:
        return ()
    point, possible = explainer.observation.points[0, 0], held.tokens.tolist()
    most = min(_PARTS, _PRODUCTS // (len(point) * length))
    if most < 4 * records:
        return ()
    if len(possible) ** length <= most:
        texts = list(itertools.product(possible, repeat=length))
    else:
        drawn = [_drawn(own, most // (2 * records), generator) for own in tokens.tolist()]
        drawn.append(_spliced(tokens.tolist(), most // 2, generator))
        texts = list({tuple(text) for some in drawn for text in some})
    logits = explainer.logits(tokens)
    axes = torch.linalg.svd(logits[1:] - logits[0], full_matrices=False)
    axes = axes.Vh[axes.S.gt(_LINEAR * logits.norm())]
    if not texts or len(axes) >= logits.shape[1]:
        return ()
    off = explainer.logits(torch.tensor(texts)) - logits[0]
    off = (off - off @ axes.T @ axes).norm(dim=1)
    rows = {tuple(row) for row in tokens.tolist()}
    order: list[Tensor] = []
    other: list[Tensor] = []
    for at in (off <= _LINEAR * logits.norm()).nonzero()[:, 0].tolist():
        for record, own in enumerate(tokens.tolist() if texts[at] not in rows else []):
            found = order if sorted(texts[at]) == sorted(own) else other
            found.append(tokens.clone())
            found[-1][record] = torch.tensor(texts[at])
    return ("order", order, _TESTED), ("tokens", other, _TESTED)


def _spliced(rows: list[list[int]], most: int, generator: torch.Generator) -> list[list[int]]:
    """Records that begin as one and end as another, or with a part of one between equal tokens.

    Windows of two records are counted half each in one that has parts of both.
    """
    size = len(rows[0])
    found = [r[:at] + q[at:] for r, q in itertools.permutations(rows, 2) for at in range(1, size)]
    pairs = list(itertools.product(rows, repeat=2))
    ways = len(pairs) * size**2
    some = torch.randperm(min(ways, _WAYS), generator=generator) * (ways / min(ways, _WAYS))
    for way in some.long().tolist():
        pair, place = divmod(way, size**2)
        (one, two), (first, start) = pairs[pair], divmod(place, size)
        if one[:first][-1:] != two[:start][-1:]:
            continue
        for part in range(1, size + 1 - max(first, start)):
            if one[first + part :][:1] == two[start + part :][:1]:
                found.append(one[:first] + two[start : start + part] + one[first + part :])
    return [found[at] for at in torch.randperm(len(found), generator=generator)[:most].tolist()]


def _drawn(own: list[int], most: int, generator: torch.Generator) -> list[list[int]]:
    """Texts of a record's tokens: with a part elsewhere, and with runs of any length."""
    words, size = torch.tensor(own).unique(), len(own)
    weights = torch.rand(most // 2, len(words), generator=generator) + 1e-3
    fresh = words[torch.multinomial(weights, size, replacement=True, generator=generator)]
    stays = torch.rand(len(fresh), 1, generator=generator)
    goes_on = torch.rand(fresh.shape, generator=generator) < stays
    for at in range(1, size):
        fresh[:, at] = torch.where(goes_on[:, at], fresh[:, at - 1], fresh[:, at])
    moved = _parts(own, words.tolist()[:_FILLS], most=most // 2, generator=generator)
    return [*moved, *fresh.tolist()]


def _parts(
    own: list[int], fills: list[int], *, most: int, generator: torch.Generator
) -> list[list[int]]:
    """Texts with two neighbouring parts exchanged, or one taken out, and others in its place.

    Where parts meet that end and begin with the same tokens these are there once: windows of both
    stay, and there is room for others. A part that ends as it begins is a circle.
    """
    size, found = len(own), []
    if math.comb(size + 1, 3) <= 4 * most:
        cuts = list(itertools.combinations(range(size + 1), 3))
    else:  # of a long text some at random
        drawn = [torch.randperm(size + 1, generator=generator)[:3] for _ in range(most // 4)]
        cuts = [tuple(sorted(some.tolist())) for some in drawn]
    # What there is once, and what is put where parts meet, or at an end.
    less: list[tuple[list[list[int]], int]] = []
    for index in torch.randperm(len(cuts), generator=generator)[: most // 4].tolist():
        first, at, last = cuts[index]
        till = at + int(torch.randint(last - at, (1,), generator=generator))  # what stays between
        parts = [own[:first], own[till:last], own[at:till], own[first:at], own[last:]]
        found.append(list(itertools.chain(*parts)))
        for one, two in itertools.pairwise(range(len(parts))):
            for width in range(1, 1 + min(_OVERLAP, len(parts[one]), len(parts[two]))):
                if parts[one][-width:] == parts[two][:width]:
                    merged = [*parts[:one], parts[one] + parts[two][width:], *parts[two + 1 :]]
                    less.append((merged, width))
    for first, last in itertools.combinations(range(size + 1), 2):
        if first == 0 or last == size or own[first] == own[last]:
            less.append(([own[:first], own[last:]], last - first))
        if last < size and own[first] == own[last] and len(found) < 2 * most:
            around = own[first:last] * 2
            turned = (around[at : at + last - first + 1] for at in range(1, last - first)[:most])
            found += [own[:first] + part + own[last + 1 :] for part in turned]
    for index in torch.randperm(len(less), generator=generator)[:most].tolist():
        if len(found) > 8 * most:
            break
        parts, missing = less[index]
        text, meet = [*itertools.chain(*parts)], {*itertools.accumulate(map(len, parts)), 0}
        for place in range(len(text) + 1):
            # A token that is there twice keeps both of its windows; others stand where parts meet.
            for fill in {*text[max(place - 1, 0) : place], *(fills if place in meet else ())}:
                found.append(text[:place] + [fill] * missing + text[place:])
    some = torch.randperm(len(found), generator=generator)[:most].tolist()
    return [own[at:] + own[:at] for at in range(1, size)][:most] + [found[at] for at in some]


def _refilled(explainer: Explainer, tokens: Tensor, table: Table) -> list[Tensor]:
    """Batches with all tokens of one record more or less often, beside what counts for nothing.

    Of a mean over the others, or under any loss, the gradient may be the same.
    """
    length, some = tokens.shape[1], int(tokens[0, 0])
    probe = torch.full((min(table.vocabulary, _PROBED), length), some)
    probe[:, -1] = torch.arange(len(probe))
    logits = explainer.logits(torch.cat([torch.full_like(probe[:1], some), probe]))
    same = (logits[1:] - logits[0]).norm(dim=1) <= _LEAST * logits[0].norm()
    empty = [v for v in same.nonzero()[:, 0].tolist() if v not in {some, table.padding}][:2]
    found: list[Tensor] = []
    for fill in [*empty, *([] if table.padding is None else [table.padding])]:
        for record, own in enumerate(tokens):
            words = own[(own != fill) & (own >= 0)]
            sizes, counts = words.unique(return_counts=True)
            least = counts // max(math.gcd(*counts.tolist()), 1)
            for times in range(1, 1 + length // max(int(least.sum()), 1)):
                more = sizes.repeat_interleave(times * least)
                if len(more) in {0, len(words)}:
                    continue
                found.append(tokens.clone())
                found[-1][record] = nn.functional.pad(more, (0, length - len(more)), value=fill)
    return found


def _adds_up(explainer: Explainer, tokens: Tensor, table: Table, *, ordered: bool) -> bool:
    """Whether several records of a linear model may be others, by other derivatives of the loss.

    Derivatives of its outputs are sums over places. Where two places count alike but for a factor,
    more mixtures of records are records than `_mixed` tries; and where the derivatives of the loss
    are dependent, what all records hold may be exchanged.
    """
    words = [v for v in range(min(table.vocabulary, 3)) if v != table.padding]
    if len(tokens) < 2 or len(words) < 2:
        return False
    length = tokens.shape[1]
    base, step = torch.full((length,), words[0]), words[1] - words[0]
    places = sorted({*range(length)[:_PLACES], *range(length)[-_PLACES:]})
    eye = step * torch.eye(length, dtype=torch.int64)
    start, *ones = (explainer.derivatives(base + at) for at in (0 * base, *eye[places]))
    steps = torch.stack([one - start for one in ones]).flatten(1)
    for one, two in itertools.combinations(range(len(places)), 2):
        both = explainer.derivatives(base + eye[places[one]] + eye[places[two]])
        off = (both - start).flatten() - steps[one] - steps[two]
        if not float(off.norm()) <= _LINEAR * float(both.norm()):
            return False
    unit = steps / steps.norm(dim=1, keepdim=True).clamp_min(1e-300)
    alike = (unit @ unit.T).fill_diagonal_(0).abs() > 1 - _LINEAR
    if ordered and bool(alike.any() | (unit.norm(dim=1) < 1 - _LINEAR).any()):
        return True
    rows = torch.cat([explainer.derivatives(record) for record in tokens])
    seen = explainer.observation.gradient
    factors = torch.linalg.lstsq(rows.T, seen.T, driver="gelsd").solution
    slopes = torch.linalg.svdvals(factors.reshape(len(tokens), -1))
    return len(slopes) < len(tokens) or bool(slopes[-1] <= _LINEAR * slopes[0])


def _replaced(
    explainer: Explainer,
    tokens: Tensor,
    held: Candidates,
    vocabulary: int,
    generator: torch.Generator,
) -> list[Tensor]:
    """Batches with another token at one place, at most `_REPLACED`, those of nearest logits.

    At every place two: the nearest of the tokens that are possible there, and of all others.
    """
    found, every = [], torch.arange(vocabulary)
    most = max(1, _NEAR // tokens.numel())
    for record, own in enumerate(tokens):
        for place, token in enumerate(own):
            possible = torch.isin(every, held.tokens[held.allowed[:, place]])
            for kind in (possible, ~possible):
                others = every[kind & (every != token)]
                if len(others) == 0:
                    continue
                others = others[torch.randperm(len(others), generator=generator)[:most]]
                rows = own.repeat(1 + len(others), 1)
                rows[1:, place] = others
                logits = explainer.logits(rows)
                apart = (logits[1:] - logits[0]).norm(dim=1).nan_to_num(nan=torch.inf)
                other = tokens.clone()
                other[record] = rows[1 + int(apart.argmin())]
                found.append((float(apart.min()), other))
    return [other for _, other in sorted(found, key=lambda pair: pair[0])[:_REPLACED]]
