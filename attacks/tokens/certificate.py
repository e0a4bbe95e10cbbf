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

How much of a gradient records of tokens explain, under the labels that explain it best.

The mean of clipped gradients is linear in how often each record has each label: with G the
gradients of every record under every label,

    gradient = G w,    w >= 0,    sum w = 1,    w in multiples of 1 / B

Non-negative least squares give w, which says how often a record is in the batch too. Where the mean
is clipped and not each record, the sum is free, and so it is where the loss is a multiple of the
declared one. Of any other loss of the logits z a record's gradient lies in the span of its dz_c/dw.

Shape letters: B records, U different ones, C classes, D parameters, L positions.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from scipy.optimize import nnls
from torch import Tensor, nn
from torch.func import functional_call

from ...training.models.parameters import unflatten
from ..problem.observation import Observation, twice_differentiable
from .candidates import Candidates
from .layers import dense, token_loss

TOKENS, ROWS, PRIOR = "tokens", "token rows", "prior"  # the stages
DECLARED, SCALED, ANY = "declared", "scaled", "any"  # losses that a batch may explain a gradient by
UNKNOWN = -1

_APART = 10.0  # times what the batch leaves of the gradient: another one is told apart
_LEAST = 1e-12  # of the gradient: what float64 leaves
_TESTED = 200  # batches of a kind that are tried at most
_REPLACED = 1000  # places at which another token is tried at most, those of nearest logits
_NEAR = 2048  # logits of such tokens that are computed at most, or one a place and kind


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

    @property
    def supported(self) -> tuple[bool, ...]:
        """Of each record, whether the gradient speaks for it."""
        return tuple(stage != PRIOR for stage in self.stage)


def certified(
    explainer: Explainer,
    batch: Batch,
    *,
    held: Candidates,
    vocabulary: int,
    generator: torch.Generator,
) -> Certificate:
    """Try the batches that differ least from one that explains a gradient.

    By position `held` has the tokens that are possible, of V in all. Where there are too many
    batches, the generator chooses which are tried.
    """
    limit, length = _APART * max(batch.residual, _LEAST), batch.tokens.shape[1]
    kinds = (
        ("order", _reordered(batch.tokens), _TESTED),
        ("order", _transposed(batch.tokens, generator), _TESTED),
        ("members", _exchanged(batch.tokens, batch.labels), _TESTED),
        ("tokens", _replaced(explainer, batch.tokens, held, vocabulary, generator), _REPLACED),
        ("members", _crossed(batch) if explainer.follows else [], _TESTED),
        ("tokens", _mixed(batch.tokens) if explainer.loss == ANY else [], _TESTED),
        ("tokens", _continued(batch, vocabulary) if explainer.follows else [], _REPLACED),
        ("ends", _resized(explainer, batch) if explainer.follows and length > 1 else [], _TESTED),
    )
    left: dict[str, list[float]] = {"order": [], "members": [], "tokens": [], "ends": []}
    loss = explainer.loss
    # A label may be the token that follows.
    if vocabulary == explainer.classes and explainer.loss != ANY:
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


def ends(tokens: Tensor) -> Tensor:
    """(B,) last places of texts (B, L) that may end earlier, with -1 behind."""
    return (tokens >= 0).sum(dim=1) - 1


_LABELS = 4  # classes a record that are tried as its label, beside the tokens


def likely_labels(rows: Tensor, tokens: Tensor, *, records: int) -> tuple[int, ...]:
    """Classes of an output that shares the table: those that hold the directions, and the tokens.

    Of a record the label has the largest coefficient, |p - 1| = sum of all other p. So its row is
    among those with the largest share of a direction, whatever size that has.

    Args:
        rows: (V, d) gradient of the table.
        tokens: (S,) tokens of the batch, whose rows hold more.
        records: number B of records.
    """
    every = torch.arange(len(rows))
    classes = every[~torch.isin(every, tokens)]
    along = torch.linalg.svd(rows[classes], full_matrices=False)[0][:, :records]
    most = along.square().sum(dim=1).topk(min(_LABELS * records, len(classes))).indices
    return tuple(torch.cat([classes[most], tokens]).unique().tolist())


_HEAVY = 10.0  # weight of the sum's equation, in units of the gradient's norm
_COLUMNS = 512  # records times classes that are solved for at once
_SPLIT = 256  # records whose logits are computed at once
_FOLLOWING = 8  # tokens that are tried after a record
_STEP = 1e-5  # of the parameters' norm, along which logits are compared
_FREE = 2**26  # numbers of the derivatives of a record's logits, which are fitted under any loss
_SPANNED = 1e-14  # of the largest squared singular value: a direction that is spanned
_PASSES = 4


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Batch:
    """Records under labels, and what they leave of the gradients.

    Attributes:
        tokens: (B, L).
        labels: (B,).
        residual: ||g - o|| / ||o|| over all intercepts.
    """

    tokens: Tensor
    labels: Tensor
    residual: float


@dataclass(slots=True, eq=False)
class Explainer:
    """Gradients of single records, each computed once; in float64.

    Labels are those that are given, else those that are likely, else all classes. `follows` says
    whether they are the tokens that follow, of a language model, and `loss` by which loss a batch
    explains the gradient.
    """

    observation: Observation
    model: nn.Module
    classes: int
    given: tuple[int, ...] | None = None
    likely: tuple[int, ...] | None = None
    follows: bool = False
    loss: str = DECLARED
    held: dict[tuple[tuple[int, ...], int], Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.model = dense(self.model).double()
        self.observation = self.observation.to(dtype=torch.float64)

    @property
    def labels(self) -> list[int]:
        """Classes that a record may have."""
        known = self.likely if self.given is None else self.given
        return list(range(self.classes)) if known is None else sorted(set(known))

    def logits(self, records: Tensor) -> Tensor:
        """(N, C) logarithms of the probabilities of records (N, L), or (N, L V), as `_at`."""
        return self.at(records).log_softmax(dim=-1).flatten(1)

    def at(self, records: Tensor) -> Tensor:
        """(N, C) or (N, L, V) logits of records (N, L)."""
        return self._at(self.observation.points[0, 0], records)

    def _at(self, point: Tensor, records: Tensor) -> Tensor:
        """(N, C) or (N, L, V) logits of records (N, L) at parameters (D,)."""
        values = unflatten(self.model, point)
        with torch.no_grad(), twice_differentiable():
            parts = records.clamp_min(0).split(_SPLIT)
            return torch.cat([functional_call(self.model, values, (some,)) for some in parts])

    def _likely(self, records: Sequence[Tensor]) -> list[list[int]]:
        """Labels that each of some records may have; of a language model the tokens after it.

        What the batch sends under label 0, less what is observed, is a sum over records of the
        derivatives of the label's last logit less that of 0. So along that direction of the output
        layer the logits of the labels grow, and others hardly do.
        """
        point, together = self.observation.points[0, 0], torch.stack(list(records))
        if not self.follows or self.given is not None:
            return [self.labels] * len(records)
        logits = self._at(point, together)
        sent = torch.stack([self.gradient(record, 0) for record in records]).mean(dim=0)
        seen = self.observation.gradient.flatten()
        left = (sent * (sent @ seen) / (sent @ sent) - seen)[: len(point)]
        output = [p.new_full(p.shape, len(p) == self.classes) for p in self.model.parameters()]
        left = left * torch.cat([part.flatten() for part in output])
        step = _STEP * point.norm() / left.norm().clamp_min(1e-300)
        grown = self._at(point + step * left, together) - logits
        grown = grown[torch.arange(len(together)), ends(together)]
        batch = min(len(records), self.observation.records)
        most = grown.topk(min(_FOLLOWING + batch, self.classes), dim=1).indices
        return [sorted({0, *row}) for row in most.tolist()]

    def gradient(self, record: Tensor, label: int) -> Tensor:
        """(K D,) clipped gradient of one record; unclipped where the mean is clipped."""
        key = (tuple(record.tolist()), label)
        if key not in self.held:
            if len(self.held) > _COLUMNS:
                self.held.clear()
            every = [self._slope(point, record, label) for [point] in self.observation.points]
            self.held[key] = torch.cat(every)
        return self.held[key]

    def _slope(self, point: Tensor, record: Tensor, label: int) -> Tensor:
        """(D,) gradient at one point; of first order alone, where `sent_gradient` gives more."""
        seen = self.observation
        flat = point.detach().clone().requires_grad_()
        with twice_differentiable():  # plain operations, as in the models that were probed
            fed = record[None].clamp_min(0)
            logits = functional_call(self.model, unflatten(self.model, flat), (fed,))
        loss = token_loss(logits, record[None], torch.tensor([label]))
        (slope,) = torch.autograd.grad(loss, flat)
        [coef] = seen.coefs
        slope = slope if seen.clip_parts else coef * slope
        if seen.clip_norm is not None and seen.mean_of is None:
            slope = slope * min(1.0, seen.clip_norm / max(float(slope.norm()), 1e-300))
        return coef * slope if seen.clip_parts else slope

    def sent(self, tokens: Tensor, labels: Tensor) -> Tensor:
        """(K, D) gradients of a batch (B, L) with labels (B,)."""
        seen = self.observation
        if self.loss == ANY:
            return _projected(
                seen.gradient, torch.cat([self._derivatives(record) for record in tokens])
            )
        rows = [self.gradient(t, int(y)) for t, y in zip(tokens, labels, strict=True)]
        sent = torch.stack(rows).sum(dim=0).reshape(seen.gradient.shape)
        sent = sent / (float(seen.records) if seen.mean_of is None else seen.mean_of)
        if seen.mean_of is not None and seen.clip_norm is not None:
            norms = sent.norm(dim=1, keepdim=True)
            sent = sent * (seen.clip_norm / norms.clamp_min(1e-300)).clamp_max(1.0)
        if self.loss == SCALED:
            fit = (sent * seen.gradient).sum() / sent.square().sum().clamp_min(1e-300)
            sent = sent * fit.clamp_min(0.0)
        return sent

    def _derivatives(self, record: Tensor) -> Tensor:
        """(C, D) of a record's logits in the parameters."""
        key = (tuple(record.tolist()), UNKNOWN)
        if key not in self.held:
            flat = self.observation.points[0, 0].detach().clone().requires_grad_()
            with twice_differentiable():
                logits = functional_call(self.model, unflatten(self.model, flat), (record[None],))
            rows = [torch.autograd.grad(z, flat, retain_graph=True)[0] for z in logits[0]]
            if len(self.held) * len(rows) * len(flat) > _FREE:
                self.held.clear()
            self.held[key] = torch.stack(rows)
        return self.held[key]

    def explained(self, records: Sequence[Tensor], *, allowed: float) -> Batch | None:
        """The batch of these records under the first loss by which it explains the gradient.

        That loss is kept; where none does the batch is that of the declared one.
        """
        for self.loss in (SCALED, ANY):
            batch = self.labelled(records)
            if batch is not None and batch.residual <= allowed:
                return batch
        self.loss = DECLARED
        return None

    def residual(self, tokens: Tensor, labels: Tensor) -> float:
        """||g - o|| / ||o|| of a batch, both whitened where there is noise."""
        seen = self.observation
        left = seen.whiten(self.sent(tokens, labels) - seen.gradient).norm()
        return float(left / seen.whiten(seen.gradient).norm())

    def distance(self, tokens: Tensor, labels: Tensor) -> float:
        """Squared whitened distance over the variance: -2 log likelihood, up to a constant."""
        seen = self.observation
        left = seen.whiten(self.sent(tokens, labels) - seen.gradient)
        return float(left.square().sum()) / seen.noise_std**2

    def labelled(self, records: Sequence[Tensor]) -> Batch | None:
        """The batch of these records, with how often each is in it and under which labels.

        Args:
            records: (L,) different records, at most B.

        Returns:
            The best batch of B; None where there are too many labels to try.
        """
        if not records:
            return None
        if self.loss == ANY:
            return self._under_any(torch.stack(list(records)))
        likely = zip(records, self._likely(records), strict=True)
        columns = [(record, label) for record, labels in likely for label in labels]
        if len(columns) > _COLUMNS:
            return None
        weights = self._weights(torch.stack([self.gradient(*column) for column in columns]))
        if weights is None:
            return None
        chosen = _rounded(weights, self.observation.records)
        at = np.repeat(np.arange(len(columns)), chosen).tolist()
        tokens = torch.stack([columns[index][0] for index in at])
        labels = torch.tensor([columns[index][1] for index in at])
        return Batch(tokens=tokens, labels=labels, residual=self.residual(tokens, labels))

    def _under_any(self, records: Tensor) -> Batch | None:
        """The batch of those records (N, L) that add most under a loss that is not known.

        Of fewer than B records one may be there twice, or any other without a derivative.
        """
        seen, each = self.observation, self.classes * self.observation.gradient.numel()
        if self.follows or len(seen.gradient) > 1 or not seen.records <= len(records):
            return None
        if len(records) * each > _FREE:
            return None
        if len(records) > seen.records:
            rows = torch.cat([self._derivatives(record) for record in records])
            factors = torch.linalg.lstsq(rows.T, seen.gradient.T, driver="gelsd").solution
            added = (rows * factors).reshape(len(records), self.classes, -1).sum(dim=1)
            records = records[added.norm(dim=1).topk(seen.records).indices.sort().values]
        unknown = torch.full((len(records),), UNKNOWN)
        return Batch(tokens=records, labels=unknown, residual=self.residual(records, unknown))

    def _weights(self, rows: Tensor) -> np.ndarray | None:
        """(columns,) share of each record under each label."""
        seen = self.observation
        size = float(seen.gradient.norm())
        # Rows are projected onto what they span, so that D does not count.
        basis, left = torch.linalg.qr(rows.T / size)
        right = basis.T @ seen.gradient.flatten() / size
        if seen.mean_of is None and self.loss == DECLARED:
            left = torch.cat([left, left.new_full((1, len(rows)), _HEAVY)])
            right = torch.cat([right, right.new_full((1,), _HEAVY)])
        try:
            weights, _ = nnls(left.numpy(), right.numpy())
        except RuntimeError:
            return None
        return weights / weights.sum() if weights.sum() > 0 else None


def _projected(values: Tensor, rows: Tensor) -> Tensor:
    """(K, D) the part of values (K, D) in the span of rows (R, D), fewer than D.

    By normal equations, which cost a thirtieth of a decomposition; each pass takes what the one
    before left by rounding.
    """
    rows = rows / rows.norm(dim=1, keepdim=True).clamp_min(1e-300)
    inverse = torch.linalg.pinv(rows @ rows.T, rtol=_SPANNED, hermitian=True)
    found = torch.zeros_like(values)
    for _ in range(_PASSES):
        found = found + ((values - found) @ rows.T @ inverse) @ rows
    return found


def _rounded(weights: np.ndarray, records: int) -> list[int]:
    """Whole numbers that sum to a number of records, in proportion to weights."""
    shares = weights * records
    counts = np.floor(shares + 1e-6).astype(int)
    while counts.sum() < records:
        counts[int(np.argmax(shares - counts))] += 1
    while counts.sum() > records:
        counts[int(np.argmin(np.where(counts > 0, shares - counts, np.inf)))] -= 1
    return [int(count) for count in counts]
