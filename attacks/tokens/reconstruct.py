"""The records of a batch of tokens, rebuilt from its gradient.

    set         tokens whose rows of the embedding's gradient are not 0
    positions   rows of learned positions; rows in the span of the first layer's gradient (DAGER)
    records     put together by the spans of later layers, else by the gradient itself
    labels      how often each record has each label: non-negative least squares
    accept      by the gradient that the batch would have sent
    certify     batches that differ least are tried: what is told apart, and what is not

Without noise only. What none of this decides is not guessed: a token that is not known is -1. Under
noise `noisy` decides.

Shape letters: K intercepts, B records, L positions, V tokens of the vocabulary, N public records.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from ...privacy.errors import InputError, Progress
from ...training.device.precision import full_precision
from ...training.models.parameters import unflatten
from ..problem.layers import of_any_type
from ..problem.observation import HOST, Observation, rounding_of
from ..problem.problem import check_repeatable
from .assembly import Assembly, Test, suggested, tests_of
from .candidates import Candidates, candidates_of, sees_far
from .certificate import PRIOR, TOKENS, Certificate, TokenReconstruction, certified
from .explainer import ANY, SCALED, UNKNOWN, Batch, Explainer, ends, likely_labels
from .layers import Network, Table, faithful, linear_layers, network_of, token_table
from .noisy import noisy_tokens, refined
from .windows import joined_by, texts_of, windows_of

_EXPLAINED = 1e-4  # residual up to which a batch explains a gradient of float32
_FILLED = (
    "every row of the embedding's gradient is filled, as noise or a decay of weights that was not "
    "declared fills them too, and no batch was found that makes the gradient"
)
_NEXT = "the model predicts tokens: the label of a record is the token that follows it"
_OTHER_LOSS = {
    SCALED: (
        "the gradient is a multiple of that of the declared loss, as under a factor or of a sum",
    ),
    ANY: (
        "what is found is so under any loss of the outputs; the declared one does not explain it",
    ),
}
_ZERO = "every number of the gradient is 0, so that it shows nothing of a batch"
_SHARE = 0.05  # of the gradient of each parameter, that a batch leaves at most
_PART = "the batch that was found makes the large numbers of the gradient, and not the small ones"
_UNSEEN = "another token at some place sends the same gradient, so that not every place is known"
_ENDS = "texts end before the length that is declared, and places behind count for nothing"
_ENDED = 24  # texts that end earlier and are tried
_ROUNDED = 5.0  # times what rounding of messages may leave


@of_any_type
def reconstruct_tokens(
    observation: Observation,
    model: nn.Module,
    *,
    length: int,
    classes: int,
    generator: torch.Generator,
    labels: Tensor | None = None,
    public: Tensor | None = None,
    progress: Progress | None = None,
) -> TokenReconstruction:
    """Rebuild a batch of tokens from its gradient.

    Args:
        observation: one batch's gradient as an adversary estimates it.
        model: network that looks tokens (B, L) up in an embedding and returns logits (B, C).
        length: number L of tokens of a record.
        classes: number of classes C.
        generator: of starts and probes; decides nothing that is accepted.
        labels: (B,) labels where the attacker knows them, in the order of the records.
        public: (N, L) public records, for the power of the test under noise; random tokens where
            None.
        progress: called with (gradients of records, most, "") while these are tried one by one,
            where algebra does not end the search: without noise alone.

    Returns:
        What is known of the batch, on the CPU.

    Raises:
        ValueError: The model takes no tokens, its embedding's gradient is filled by other uses of
            the table, the gradient is of several points, steps or a task, or a shape disagrees.

    >>> from overhear.attacks.problem.observation import observe
    >>> from overhear.training.models.parameters import flatten
    >>> _ = torch.manual_seed(0)
    >>> text = nn.Sequential(
    ...     nn.Embedding(50, 32), nn.TransformerEncoderLayer(32, 2, 32, 0.0, batch_first=True),
    ...     nn.Flatten(), nn.Linear(128, 3),
    ... )
    >>> x = torch.tensor([[7, 3, 41, 3], [3, 12, 0, 30]])
    >>> seen = observe(
    ...     text, flatten(text), inputs=x, targets=torch.tensor([2, 0]), clip_norm=None,
    ...     noise_std=0.0, generator=torch.Generator(),
    ... )
    >>> found = reconstruct_tokens(
    ...     seen, text, length=4, classes=3, generator=torch.Generator().manual_seed(0)
    ... )
    >>> found.decided, sorted(found.tokens.tolist()) == sorted(x.tolist()), found.found
    ('sequences', True, (0, 3, 7, 12, 30, 41))
    """
    table = token_table(model, (length,))
    if table is None:
        raise InputError(
            "the model looks no inputs up in an embedding, so its records are no tokens; use "
            "reconstruct for pictures and numbers"
        )
    with torch.no_grad():
        outputs = model(torch.zeros(1, length, dtype=torch.int64))
    if outputs.ndim > 2 and outputs.shape[-1] < table.vocabulary:  # a tag for each token
        model, labels, classes = nn.Sequential(model, nn.Flatten()), None, outputs.numel()
        table = replace(table, parameter=table.parameter and f"0.{table.parameter}")
    _check(observation, table, labels=labels, public=public, length=length, classes=classes)
    check_repeatable(model, torch.zeros(2, length, dtype=torch.int64))
    seen = observation.to(device=HOST, dtype=torch.float64)
    with full_precision():
        network = network_of(model, seen.points[0, 0], table=table, length=length)
        given = None if labels is None else tuple(labels.tolist())
        explainer = Explainer(
            observation=seen, model=model, classes=classes, given=given, follows=network.follows
        )
        if seen.is_noisy:
            layers = linear_layers(network, generator)
            return noisy_tokens(
                seen, network, layers, explainer, generator=generator, public=public
            )
        if not seen.gradient.any():
            return _undecided(seen, (), length=length, why=_ZERO)
        rounding = max(rounding_of(observation.gradient), observation.rounding)
        how: dict[str, Any] = {"generator": generator, "rounding": rounding, "progress": progress}
        if not network.follows:
            return _exact(network, explainer, labels=labels, deep=True, **how)
        found = _exact(network, explainer, labels=labels, deep=length == 1, **how)
        if length == 1 or found.certificate is not None:
            return found
        # Of a text of which every token but the first is predicted the last is a label alone.
        with suppress(InputError):  # of more tokens than it has
            other = _exact(*_shorter(network, explainer), labels=None, deep=False, **how)
            if other.certificate is not None:
                return _with_last(other, length=length)
        return _exact(network, explainer, labels=labels, deep=True, **how)


class _WithoutLast(nn.Module):
    """A language model that takes texts of one length alone, fed all but the last token."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        """(B, L, V) logits of (B, L) tokens, which another one follows."""
        logits: Tensor = self.model(nn.functional.pad(tokens, (0, 1)))
        return logits[:, :-1]


def _shorter(network: Network, explainer: Explainer) -> tuple[Network, Explainer]:
    """The same of texts without their last token."""
    length, point = network.length - 1, explainer.observation.points[0, 0]
    try:
        network_of(network.model, point, table=network.table, length=length)
    except Exception:  # noqa: BLE001 - a network that takes one length may raise anything
        model = _WithoutLast(network.model)
        table = token_table(model, (length,))
        assert table is not None  # noqa: S101 # of the same model
        shorter = network_of(model, point, table=table, length=length)
        return shorter, replace(explainer, model=model, held={})
    return replace(network, length=length), explainer


def _with_last(found: TokenReconstruction, *, length: int) -> TokenReconstruction:
    """The same with the token that follows each record behind it, where that is of its length."""
    at = ends(found.tokens)[:, None] + 1
    tokens = nn.functional.pad(found.tokens, (0, 1), value=UNKNOWN)
    tokens = tokens.scatter(1, at, found.labels[:, None])[:, :length]
    return replace(
        found,
        tokens=tokens if found.decided == "sequences" else tokens.sort(dim=1).values,
        labels=torch.where(at[:, 0] < length, UNKNOWN, found.labels),
        notes=tuple(note for note in found.notes if note != _NEXT),
        found=tuple(tokens[tokens >= 0].unique().tolist()),
    )


def _check(
    seen: Observation, table: Table, *, labels: Tensor | None, public: Tensor | None, length: int,
    classes: int,
) -> None:  # fmt: skip
    if seen.task is not None or len(seen.coefs) != 1 or seen.local_steps != 1:
        raise InputError(
            "tokens are rebuilt from gradients of the cross-entropy at one point each, not from "
            "those of several points or steps, or of another task; give one gradient"
        )
    if seen.points.shape[2] != seen.gradient.shape[1]:
        raise InputError("tokens are rebuilt from gradients of all parameters; give those")
    if table.tied and seen.is_noisy:
        raise InputError(
            f"the table of embedding {table.parameter!r} is used in a product too, as where the "
            "output layer shares it, which fills every row of its gradient: under noise no row is "
            "distinguishable from "
            "those; only a model whose embedding has a table of its own is attacked then"
        )
    if labels is not None and labels.shape != (seen.records,):
        raise InputError(f"labels of shape {tuple(labels.shape)} must be ({seen.records},)")
    if labels is not None and not bool(((labels >= 0) & (labels < classes)).all()):
        raise InputError(f"labels {labels.tolist()} must lie in 0 to {classes - 1}, the outputs")
    if public is not None:
        check_tokens(public, vocabulary=table.vocabulary, length=length, name="public")


def check_tokens(tokens: Tensor, *, vocabulary: int, length: int, name: str) -> None:
    """Refuse what are no records of tokens.

    Args:
        tokens: to be (N, L).
        vocabulary: number V of tokens.
        length: L.
        name: at the head of the sentence.

    Raises:
        ValueError: Another shape, or a token that is not in 0..V-1.
        TypeError: No whole numbers.
    """
    if tokens.is_floating_point() or tokens.dtype == torch.bool:
        raise InputError(f"{name} is of {tokens.dtype}, must hold tokens, which are whole numbers")
    if tokens.ndim != 2 or tokens.shape[1] != length or len(tokens) == 0:
        raise InputError(
            f"{name} of shape {tuple(tokens.shape)} must be (records, {length}): one row a record"
        )
    low, high = int(tokens.min()), int(tokens.max())
    if low < 0 or high >= vocabulary:
        raise InputError(
            f"{name} holds tokens from {low} to {high}, must lie in 0 to {vocabulary - 1}, the "
            "rows of the embedding"
        )


def _exact(
    network: Network,
    explainer: Explainer,
    *,
    generator: torch.Generator,
    labels: Tensor | None,
    rounding: float,
    deep: bool,
    progress: Progress | None,
) -> TokenReconstruction:
    table, length, seen = network.table, network.length, explainer.observation
    classes = explainer.classes
    gradients = unflatten(network.model, seen.gradient[0])
    # Layers by record; where padding makes them fewer, the model hides it.
    layers = faithful(
        network, linear_layers(network, generator), records=seen.records, classes=classes,
        generator=generator,
    )  # fmt: skip
    hidden = table.padding is not None and len(layers) > len(
        faithful(
            network, layers, records=seen.records, classes=classes, generator=generator, padded=True
        )
    )
    # Tokens and their places, and a batch assembled of these.
    candidates = candidates_of(
        gradients, network, layers, records=seen.records, rounding=rounding, hidden=hidden
    )
    tied = table.tied and classes == table.vocabulary and candidates.shown.any()
    if tied and table.parameter and not network.follows:
        rows, tokens = gradients[table.parameter], candidates.tokens[candidates.shown]
        explainer.likely = likely_labels(rows, tokens, records=seen.records)
    allowed = min(max(_EXPLAINED, _ROUNDED * rounding), 0.1)
    tests = tests_of(network, layers, gradients, records=seen.records, rounding=rounding)
    windows = windows_of(
        network, gradients, candidates.tokens, records=seen.records, classes=classes,
        rounding=rounding,
    )  # fmt: skip
    texts = texts_of(windows, records=seen.records, length=length)
    windows = tuple(window for window in windows if len(window) > 1)
    batch = _explaining(explainer, texts, allowed=allowed) or _assembled(
        network, tests, candidates, explainer, generator=generator, allowed=allowed, deep=deep,
        progress=progress,
    )  # fmt: skip
    known = tuple(candidates.tokens[candidates.shown].tolist())
    # A batch that does not explain the gradient decides nothing, though tokens may be known.
    if batch is None or not batch.residual <= allowed:
        why = _why_undecided(seen, candidates, network=network)
        if len(known) + (table.padding is not None) >= table.vocabulary:
            known, why = (), _FILLED
        return _undecided(seen, known, length=length, why=why, windows=windows)
    if not _explains_all(explainer, batch, rounding=rounding):
        return _undecided(seen, known, length=length, why=_PART, windows=windows)
    # What is said to be known is what no other batch that is tried explains.
    batch = _in_order(batch, labels)
    certificate = certified(explainer, batch, held=candidates, table=table, generator=generator)
    if windows and not all(joined_by(windows, text) for text in batch.tokens.tolist()):
        certificate = replace(certificate, order=False)
    if network.follows and not sees_far(network):  # texts exchange what follows on a token
        certificate = replace(certificate, order=False, membership=seen.records == 1)
    # Of an embedding without a derivative, as below weights of zero, no row tells a token.
    at = gradients.get(table.parameter or "")
    still = at is not None and not bool(at.any()) and not bool(candidates.shown.any())
    unheld = not table.tied and not set(known) <= set(batch.tokens.flatten().tolist())
    if still or unheld or not certificate.tokens:
        return _undecided(seen, known, length=length, why=_UNSEEN, windows=windows)
    decided, notes = _said(certificate)
    ended = bool((batch.tokens < 0).any())
    # Of ended texts another one may send nothing, so that one of these counts for it.
    if ended and (decided != "sequences" or len(batch.tokens.unique(dim=0)) < seen.records):
        return _undecided(seen, known, length=length, why=_UNSEEN)
    open_label = explainer.loss == SCALED and classes == 2 and labels is None and not ended
    notes += (_NEXT,) if network.follows else ()
    notes += _OTHER_LOSS.get(explainer.loss, ()) if not ended else (_ENDS,)
    tokens = batch.tokens if decided == "sequences" else batch.tokens.sort(dim=1).values
    found = TokenReconstruction(
        tokens=tokens,
        # Of two classes every derivative that sums to 0 is a multiple of one of a label.
        labels=batch.labels.clamp(max=UNKNOWN) if open_label else batch.labels,
        found=tuple(batch.tokens.unique().tolist()),
        decided=decided,
        stage=(TOKENS,) * seen.records,
        residual=batch.residual,
        certificate=certificate,
        false_alarm=0.0,
        power=1.0,
        notes=notes,
        windows=() if decided == "sequences" else windows,
    )
    return _with_last(found, length=length) if ended else found


def _explains_all(explainer: Explainer, batch: Batch, *, rounding: float) -> bool:
    """Whether a batch makes the gradient of every parameter, small ones too, but for rounding."""
    seen = explainer.observation
    [sent], [held] = explainer.sent(batch.tokens, batch.labels)[:1], seen.gradient[:1]
    least = _ROUNDED * rounding * float(held.norm())
    return all(
        float((part - own).norm()) <= max(_SHARE * float(own.norm()), least)
        for part, own in zip(
            unflatten(explainer.model, sent).values(),
            unflatten(explainer.model, held).values(),
            strict=True,
        )
    )


def _explaining(
    explainer: Explainer, batches: Sequence[Sequence[Tensor]], *, allowed: float
) -> Batch | None:
    """The first of some batches that makes the gradient, under the declared loss or another one."""
    for rows in batches:
        batch = explainer.labelled(rows)
        if batch is not None and batch.residual <= allowed:
            return batch
        if (other := explainer.explained(rows, allowed=allowed)) is not None:
            return other
    return None


def _assembled(
    network: Network,
    tests: Sequence[Test],
    held: Candidates,
    explainer: Explainer,
    *,
    generator: torch.Generator,
    allowed: float,
    deep: bool,
    progress: Progress | None,
) -> Batch | None:
    """The batch that explains most of the gradient; by algebra alone unless the search is deep."""
    whole, records = bool(held.allowed.any(dim=0).all()), explainer.observation.records
    if not whole and not network.follows:
        return None
    starts = suggested(held, records=records, generator=generator) if whole else []
    best = explainer.labelled(starts)
    if best is not None and best.residual <= allowed:
        return best
    if (other := explainer.explained(starts, allowed=allowed)) is not None:
        return other
    if tests:
        search = Assembly(
            network=network, tests=tests, candidates=held, records=records, generator=generator
        )
        for way in (search.prefixes, lambda: search.search(starts) if deep and whole else []):
            rows = way()
            other = explainer.labelled(rows)
            if other is not None and (best is None or other.residual < best.residual):
                best = other
            if best is not None and best.residual <= allowed:
                return best
            # Texts that end earlier, whose other places count for nothing, where tokens are told.
            ended = sorted(search.ended, key=lambda row: -int((row >= 0).sum()))[:_ENDED]
            rows = [*rows, *ended] if network.follows and deep else rows
            if (other := explainer.explained(rows, allowed=allowed)) is not None:
                return other
    if not deep or not whole:
        return best
    return refined(explainer, held, best, generator=generator, allowed=allowed, progress=progress)


def _in_order(found: Batch, labels: Tensor | None) -> Batch:
    """The batch in the order of labels that are known, else in that of its tokens."""
    rows = found.tokens.tolist()
    order = sorted(range(len(rows)), key=lambda row: (rows[row], int(found.labels[row])))
    if labels is not None:
        left = list(order)
        order = []
        for label in labels.tolist():
            at = next((row for row in left if int(found.labels[row]) == label), None)
            if at is None:
                return found
            left.remove(at)
            order.append(at)
    return Batch(tokens=found.tokens[order], labels=found.labels[order], residual=found.residual)


def _said(certificate: Certificate) -> tuple[str, tuple[str, ...]]:
    """What a certificate decides, and what it leaves open."""
    if certificate.order and certificate.membership:
        return "sequences", ()
    if certificate.membership:
        return "multisets", (
            "other orders of a record's tokens may send the same gradient, so that their order is "
            "not known",
        )
    open_ = "" if certificate.order else ", nor their order"
    return "batch", (
        "tokens exchanged between records may send the same gradient, so that it is not known "
        f"which record holds which{open_}",
    )


def _why_undecided(seen: Observation, held: Candidates, *, network: Network) -> str:
    if network.table.parameter is None:
        return "the embedding is not trained, so that its gradient does not show the tokens"
    return (
        f"no batch of these tokens was found that makes the gradient: of {seen.records} x "
        f"{network.length} tokens, {int(held.allowed.sum(dim=0).max())} are possible at a position"
    )


def _undecided(
    seen: Observation,
    known: tuple[int, ...],
    *,
    length: int,
    why: str,
    windows: tuple[tuple[int, ...], ...] = (),
) -> TokenReconstruction:
    """The set alone, where a gradient shows it, and what stands side by side."""
    return TokenReconstruction(
        tokens=torch.full((seen.records, length), UNKNOWN),
        labels=torch.full((seen.records,), UNKNOWN),
        found=known,
        decided="set" if known else "nothing",
        stage=(TOKENS if known else PRIOR,) * seen.records,
        residual=1.0,
        certificate=None,
        false_alarm=0.0,
        power=1.0 if known else 0.0,
        notes=(why,),
        windows=windows if known else (),
    )
