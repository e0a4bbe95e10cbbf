"""Tokens of a batch under noise: which rows stand out, and what the likelihood says of places.

A row of the embedding's gradient that no token of the batch fills holds noise alone: its squared
norm over the variance is chi-squared with K d degrees of freedom. The tokens above the quantile of
`FALSE_ALARM` / V, at most one for each place of the batch, are in the batch, but for a false alarm
among all V tokens with that probability. How many of a batch's tokens this finds, its power, is
computed from the model: of batches drawn at random the rows are known, and a row of squared norm
s sigma^2 is found with the probability of a non-central chi-squared variable.

Places are first guessed by a soft distance from the span of the first layers' gradient, in which
every direction counts as much as it stands out of the noise,

    distance(x)^2 = 1 - sum_i w_i (x v_i)^2 / |x|^2,   w_i = max(0, 1 - (edge / s_i)^2)

and by the likeness of the token's row to that of a learned position, then improved by the
likelihood, among all tokens whose rows are large. A local best may be wrong in many places at once,
so it speaks for none unless what it leaves is what the noise makes (chi-squared with K D degrees of
freedom, at `FALSE_ALARM`). Then a token is kept at its place if what is left of its row, and of its
position's, is noise, and its probability given all others is at least `SURE`, among the candidates
and the rest of the vocabulary, of which some are drawn.

Shape letters: K intercepts, B records, L positions, V tokens, d width of the embedding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from scipy.stats import chi2, ncx2
from torch import Tensor

from ...privacy.errors import Progress
from ...training.models.parameters import unflatten
from ..problem.observation import Observation
from .assembly import suggested
from .candidates import Candidates, position_rows, sees_order
from .certificate import PRIOR, ROWS, TokenReconstruction
from .explainer import UNKNOWN, Batch, Explainer
from .layers import Layer, Network, local_rows

# Records improved by the gradient itself, where no layer tests a single record.
#
# One token is replaced or two are exchanged at a time, what is left of the gradient under the
# labels as they are decides, and the labels are read anew after each round. It costs a gradient for
# every try, and it ends at a batch that no single change improves: it finds what is almost right
# already.
#
# Shape letters: B records, L positions.

_GRADIENTS = 3000  # of records at most
_ROUNDS = 6
_BETTER = 1 - 1e-6


def refined(
    explainer: Explainer,
    candidates: Candidates,
    start: Batch | None,
    *,
    generator: torch.Generator,
    allowed: float,
    gradients: int = _GRADIENTS,
    progress: Progress | None = None,
) -> Batch | None:
    """A batch that explains the gradient at least as well.

    Args:
        candidates: which tokens may stand where.
        start: from where; random tokens where None.
        generator: of these, and of the order of tries.
        allowed: residual at which the search ends.
        gradients: of records that are computed at most.
        progress: called with (gradients so far, most, "").

    Returns:
        The best batch; None where labels cannot be tried.
    """
    best = start if start is not None else _drawn(explainer, candidates, generator)
    if best is None:
        return None
    spent = 0
    for _ in range(_ROUNDS):
        before = best.residual
        changes = _changes(best.tokens, candidates)
        for index in torch.randperm(len(changes), generator=generator).tolist():
            if spent >= gradients or best.residual <= allowed:
                return best
            tokens = _changed(best.tokens, changes[index])
            if torch.equal(tokens, best.tokens):
                continue
            spent += int((tokens != best.tokens).any(dim=1).sum())
            if progress is not None:
                progress(min(spent, gradients), gradients, "")
            left = explainer.residual(tokens, best.labels)
            if left < best.residual * _BETTER:
                best = Batch(tokens=tokens, labels=best.labels, residual=left)
        again = explainer.labelled(list(torch.unique(best.tokens, dim=0)))
        if again is not None and again.residual < best.residual:
            best = again
        if not best.residual < before * _BETTER:
            break
    return best


_Change = tuple[tuple[int, int, int], ...]  # records, places and their new tokens, or -1 - record


def _changes(tokens: Tensor, candidates: Candidates) -> list[_Change]:
    """Single changes: another token at a place, or two records' tokens of a place exchanged."""
    records, length = tokens.shape
    found: list[_Change] = []
    for place in range(length):
        options = candidates.tokens[candidates.allowed[:, place]].tolist()
        for one in range(records):
            found += [((one, place, token),) for token in options]
            found += [((one, place, -1 - two), (two, place, -1 - one)) for two in range(one)]
    return found


def _changed(tokens: Tensor, change: _Change) -> Tensor:
    other = tokens.clone()
    for record, place, token in change:
        other[record, place] = token if token >= 0 else tokens[-1 - token, place]
    return other


def _drawn(
    explainer: Explainer, candidates: Candidates, generator: torch.Generator
) -> Batch | None:
    """Random tokens that may stand where they do."""
    records, length = explainer.observation.records, candidates.allowed.shape[1]
    rows = []
    for _ in range(records):
        row = torch.empty(length, dtype=torch.int64)
        for place in range(length):
            options = candidates.tokens[candidates.allowed[:, place]]
            row[place] = options[torch.randint(len(options), (1,), generator=generator)]
        rows.append(row)
    return explainer.labelled(rows)


FALSE_ALARM = 0.01
SURE = 0.99

_SIMULATED = 8  # batches for the power
_OUTSIDERS = 4  # tokens that are drawn for all that do not stand out
_TRIED = 4096  # records times places times tokens up to which places are looked for
_GRADIENTS_NOISY = 1200  # of records at most, to look for places
_MORE = 4  # tokens of a place that are tried beside the nearest
_EDGE = 1.05  # times the noise's largest singular value
_UNTRAINED = "the embedding is not trained, so that no row of its gradient stands out"
_TOO_LARGE = "the batch is too large to look for the places of tokens under noise"


def noisy_tokens(
    seen: Observation,
    network: Network,
    layers: Sequence[Layer],
    explainer: Explainer,
    *,
    generator: torch.Generator,
    public: Tensor | None,
) -> TokenReconstruction:
    """The tokens that stand out of the noise, and the places that the likelihood gives them.

    Args:
        seen: the observation, with noise, in float64.
        network: the model at the first intercept.
        layers: its linear layers.
        explainer: of the observation.
        generator: of simulated batches, starts and outsiders.
        public: (N, L) records from which batches are simulated; random tokens where None.
    """
    records, length, table = seen.records, network.length, network.table
    if table.parameter is None:
        return _told(seen, network, (), power=0.0, note=_UNTRAINED)
    # Tokens whose rows stand out, at a false-alarm rate for the whole vocabulary.
    rows = unflatten(network.model, seen.whiten(seen.gradient))[table.parameter]  # (K, V, d)
    energy = rows.square().sum(dim=(0, 2)) / seen.noise_std**2  # (V,)
    threshold = float(chi2.isf(FALSE_ALARM / table.vocabulary, rows.shape[0] * rows.shape[2]))
    order = energy.argsort(descending=True)[: records * length]
    found = order[energy[order] > threshold].sort().values
    found = found[~torch.isin(found, torch.tensor(table.constant, dtype=torch.int64))]
    power = _power(
        seen, network, explainer, threshold=threshold, generator=generator, public=public
    )
    said = tuple(found.tolist())
    # Places are looked for among more tokens, of which half a batch may be false.
    rate = max(FALSE_ALARM, 0.5 * records * length) / table.vocabulary
    loose = float(chi2.isf(min(rate, 0.5), rows.shape[0] * rows.shape[2]))
    likely = order[energy[order] > loose].sort().values
    if len(found) == 0 or records * length * len(likely) > _TRIED:
        return _told(seen, network, said, power=power, note=_TOO_LARGE if said else "")
    # Places by the likelihood, first of few tokens each and then of more.
    near = _softly_placed(seen, network, layers, likely, rows=rows[0])
    candidates = Candidates(
        tokens=likely,
        allowed=torch.ones_like(near, dtype=torch.bool),
        shown=torch.ones(len(likely), dtype=torch.bool),
        slopes=rows[0, likely][:, None].expand(-1, length, -1),
        ordered=sees_order(network),
        placed=True,
        hidden=False,
    )
    first = replace(candidates, allowed=_nearest(near, records))
    start = explainer.labelled(suggested(first, records=records, generator=generator))
    wider = replace(candidates, allowed=_nearest(near, records + _MORE))
    best = refined(
        explainer, wider, start, generator=generator, allowed=0.0, gradients=_GRADIENTS_NOISY
    )
    if best is None:
        return _told(seen, network, said, power=power, note=_TOO_LARGE)
    # A place is kept where noise alone is left, others are unlikely, and order is seen.
    kept = _left_as_noise(explainer, best, network)
    if bool(kept.any()):
        kept &= _kept(explainer, best, likely, vocabulary=table.vocabulary, generator=generator)
    kept &= candidates.ordered
    return _told(seen, network, said, power=power, best=best, kept=kept)


def _told(
    seen: Observation,
    network: Network,
    found: tuple[int, ...],
    *,
    power: float,
    note: str = "",
    best: Batch | None = None,
    kept: Tensor | None = None,
) -> TokenReconstruction:
    """What stands out, and of the likeliest batch the places (B, L) that are kept."""
    nothing = torch.full((seen.records, network.length), UNKNOWN)
    tokens = nothing if best is None or kept is None else torch.where(kept, best.tokens, UNKNOWN)
    known = tokens != UNKNOWN
    spoken = known.any(dim=1) | bool(found)
    return TokenReconstruction(
        tokens=tokens,
        labels=nothing[:, 0] if best is None else best.labels,
        found=found,
        decided="sequences" if bool(known.all()) else "set" if found else "nothing",
        stage=tuple(ROWS if of else PRIOR for of in spoken.tolist()),
        residual=1.0 if best is None else best.residual,
        certificate=None,
        false_alarm=FALSE_ALARM,
        power=power,
        notes=(note,) if note else (),
    )


def _power(
    seen: Observation,
    network: Network,
    explainer: Explainer,
    *,
    threshold: float,
    generator: torch.Generator,
    public: Tensor | None,
) -> float:
    """Mean probability that a token of a random batch stands out."""
    table, records = network.table, seen.records
    shares = []
    for _ in range(_SIMULATED):
        if public is None:
            tokens = torch.randint(table.vocabulary, (records, network.length), generator=generator)
        else:
            tokens = public[torch.randint(len(public), (records,), generator=generator)]
        labels = torch.randint(explainer.classes, (records,), generator=generator)
        sent = seen.whiten(explainer.sent(tokens, labels))
        rows = unflatten(network.model, sent)[table.parameter or ""]  # (K, V, d)
        inside = tokens.unique()
        strength = rows[:, inside].square().sum(dim=(0, 2)) / seen.noise_std**2
        freedom = rows.shape[0] * rows.shape[2]
        shares.append(float(ncx2.sf(threshold, freedom, strength.clamp_min(1e-12).numpy()).mean()))
    return sum(shares) / len(shares)


def _softly_placed(
    seen: Observation, network: Network, layers: Sequence[Layer], found: Tensor, *, rows: Tensor
) -> Tensor:
    """(S, L) how near tokens at places are to the spans, and to the rows of positions."""
    length = network.length
    gradients = unflatten(network.model, seen.gradient[0])
    near = torch.ones(len(found), length, dtype=torch.float64)
    noise = float(seen.covariance[0, 0]) ** 0.5
    for layer in layers:
        if layer.places is None:
            continue
        gradient = layer.gradient(gradients)
        _, values, right = torch.linalg.svd(gradient, full_matrices=False)
        edge = _EDGE * noise * (math.sqrt(gradient.shape[0]) + math.sqrt(gradient.shape[1]))
        weight = (1 - (edge / values.clamp_min(1e-300)).square()).clamp_min(0)
        if not bool(weight.any()):
            continue
        fed = torch.cat([part for _, part in local_rows(network, layer, found)])  # (S, L, I)
        unit = fed / fed.norm(dim=2, keepdim=True).clamp_min(1e-300)
        near = near * ((unit @ right.T).square() @ weight).clamp_min(1e-6)
    placed = position_rows(network)
    if placed is not None:
        name, first, factor = placed
        of_places = factor * gradients[name].reshape(-1, rows.shape[1])[first:][:length]
        alike = torch.cosine_similarity(rows[found][:, None], of_places[None], dim=2)
        near = near * alike.clamp_min(1e-3)
    return near


def _nearest(near: Tensor, count: int) -> Tensor:
    """(S, L) the nearest tokens of each place."""
    most = near.topk(min(count, len(near)), dim=0).indices
    return torch.zeros_like(near, dtype=torch.bool).scatter(0, most, True)


def _left_as_noise(explainer: Explainer, best: Batch, network: Network) -> Tensor:
    """(B, L) whether what a batch leaves is noise: of all, of a token's and a place's row."""
    seen, table = explainer.observation, network.table
    left = seen.whiten(explainer.sent(best.tokens, best.labels) - seen.gradient) / seen.noise_std
    kept = torch.zeros(best.tokens.shape, dtype=torch.bool)
    if float(left.square().sum()) > float(chi2.isf(FALSE_ALARM, left.numel())):
        return kept
    parts = unflatten(network.model, left)
    freedom = len(left) * table.width
    limit = float(chi2.isf(FALSE_ALARM / best.tokens.numel(), freedom))
    of_tokens = parts[table.parameter or ""].square().sum(dim=(0, 2))
    kept = (of_tokens <= limit)[best.tokens]
    placed = position_rows(network)
    if placed is not None:
        name, first, _ = placed
        of_places = parts[name].reshape(len(left), -1, table.width)[:, first:][:, : network.length]
        kept = kept & (of_places.square().sum(dim=(0, 2)) <= limit)
    return kept


def _kept(
    explainer: Explainer, best: Batch, found: Tensor, *, vocabulary: int, generator: torch.Generator
) -> Tensor:
    """(B, L) whether a token is likely enough at its place, given all others."""
    # Other tokens: the likely ones, and some for all of the rest.
    outside = torch.tensor(sorted(set(range(vocabulary)) - set(found.tolist())), dtype=torch.int64)
    drawn = (
        outside[torch.randint(max(len(outside), 1), (_OUTSIDERS,), generator=generator)]
        if len(outside)
        else outside
    )
    others = torch.cat([found, drawn])
    weights = torch.cat([
        torch.ones(len(found)).double(),
        torch.full((len(drawn),), len(outside) / max(len(drawn), 1)).double(),
    ])  # fmt: skip
    # The token's odds at its place, all other places held.
    reached = explainer.distance(best.tokens, best.labels)
    kept = torch.zeros(best.tokens.shape, dtype=torch.bool)
    for record, place in torch.cartesian_prod(*(torch.arange(n) for n in best.tokens.shape)):
        odds = 0.0
        for token, weight in zip(others.tolist(), weights.tolist(), strict=True):
            if token == int(best.tokens[record, place]):
                continue
            tokens = best.tokens.clone()
            tokens[record, place] = token
            gain = reached - explainer.distance(tokens, best.labels)
            odds += weight * math.exp(min(gain / 2, 700.0))
        kept[record, place] = 1 / (1 + odds) >= SURE
    return kept
