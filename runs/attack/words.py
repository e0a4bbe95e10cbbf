"""What an attack on a file of gradients found, in words; a failed attack is never protection."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import torch
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from ...attacks.exact.stages import RANK_ONE, SIGNS, count_proven
from ...attacks.interception.names import NO_BETTER, is_no_better, what_was_found
from ...attacks.problem.labels import sums_to_zero
from ...privacy.plain_text import number_of
from ..numbers import figure
from .gradients_schema import GradientAttack, TokensFound, TruthScores
from .model import FROM_MODEL, SLACK, Posed, statistics

_EXPLAINED = 0.01
"""Relative residual without noise below which a candidate explains the gradient."""

_WINDOWS = 12  # runs of tokens that are printed
_FAILED = 0.5
"""Relative residual without noise above which it explains next to nothing of it."""


def _not_shown(found: GradientAttack, why: str) -> str:
    """That nothing was shown; without noise nothing says that there is no leak."""
    if found.noise_std:
        return f"No leak shown: {why}; another attack may succeed."
    return (
        f"Undecided: {why}. Without noise a gradient may hold more than this attack finds, which "
        "reads signs of one record alone and, of text, no parts (top-k); another attack may "
        "succeed."
    )


def conclusion(found: GradientAttack) -> str:
    """The conclusion of an attack in a sentence or two.

    Without the truth it goes by the gradient alone: how much of it is explained, and for which
    records the observation speaks. With the truth it compares with the blind guess.

    Args:
        found: what an attack found; its own conclusion is not looked at.
    """
    if found.tokens is not None:
        return _of_tokens(found, found.tokens)
    records, supported = len(found.supported), sum(found.supported)
    if found.scores is not None:
        return _scored(found, found.scores)
    # Without the truth: how far the gradient speaks for what was found.
    if not supported:
        why = "nothing was found for which the gradient speaks beyond the public guess"
        return _not_shown(found, why)
    if proven := count_proven(found.stage):
        some = "the record" if records == 1 else f"{proven} of {records} records"
        rest = " The others were searched for." if proven < supported else ""
        some += f" but for {found.open} of its numbers" if found.open else ""
        if RANK_ONE in found.stage:
            some += ", or a multiple of it where weight and bias were scaled apart,"
        return f"A leak is shown: {some} can be had from the gradient by algebra.{rest}"
    if SIGNS in found.stage:
        return (
            "A leak is likely: the signs of the gradient tell on which side of 0 each number of "
            "the record lies, and no size. Several records might make them too; only the truth can "
            "tell."
        )
    some = "the record" if records == 1 else f"{supported} of {records} records"
    if found.residual_of_noise:
        return (
            f"A leak is likely: for {some} the gradient speaks for what was found, over the public "
            "guess, by more than its noise explains. How close it is only the truth can tell."
        )
    left = found.relative_residual
    if left < _EXPLAINED and found.held < 1:
        return (
            f"A leak is possible: what was found makes what is held of the gradient "
            f"({found.held:.0%} of its numbers), up to {figure(left, 2)} of its norm. Other "
            "batches may make that too; only the truth can tell."
        )
    if left < _EXPLAINED:
        return (
            f"A leak is likely: what was found makes the gradient, up to {figure(left, 2)} of its "
            "norm. Another batch might make it too; only the truth can tell."
        )
    if left < _FAILED:
        return (
            f"A leak is possible: what was found leaves {left:.0%} of the gradient's norm "
            "unexplained, so at best it resembles the batch; try more restarts."
        )
    why = f"the attack failed: it leaves {left:.0%} of the gradient's norm unexplained"
    return _not_shown(found, why)


def _of_tokens(found: GradientAttack, tokens: TokensFound) -> str:
    """What is known of the tokens of a batch; the certificate speaks, and not the truth."""
    # Under noise tokens stand out or do not; without it the certificate says what is known.
    if tokens.decided == "nothing":
        why = f"where {tokens.power:.1%} of the tokens of random batches would"
        why = f"no token stands out of the noise, {why}"
        return _not_shown(found, why if found.noise_std else "no token of the batch was found")
    if found.noise_std:
        known = sum(token >= 0 for row in tokens.tokens for token in row)
        places = f", and {known} places are known" if known else ""
        return (
            f"A leak is shown: {number_of(len(tokens.present), 'token')} of the batch "
            f"{'stands' if len(tokens.present) == 1 else 'stand'} out of the noise{places}; with "
            f"probability {1 - tokens.false_alarm:.0%} none of these is false. Of the tokens of "
            f"random batches {tokens.power:.1%} would."
        )
    what = {
        "sequences": "every token at its place",
        "multisets": "how often each record holds every token, in an order that the model does not "
        "see,",
        "batch": "how often the batch holds every token",
        "set": "which tokens the batch holds",
    }[tokens.decided]
    if tokens.windows:
        what += f" and {number_of(len(tokens.windows), 'run')} of them side by side"
    if tokens.decided == "set" and not found.relative_residual <= _FAILED:
        what += ", if its rows are those of the model, as no batch that was tried makes it,"
    left = found.records - found.records // _copies(found, tokens)
    rest = f" {number_of(left, 'record')} of the batch cannot be accounted for." if left else ""
    return f"A leak is shown: {what} can be had from the gradient by algebra.{rest}"


def _copies(found: GradientAttack, tokens: TokensFound) -> int:
    """How often each record stands in a batch, of which one of each makes the mean as well."""
    if found.noise_std or tokens.decided not in ("sequences", "multisets"):
        return 1
    return math.gcd(*Counter(zip(found.labels, map(tuple, tokens.tokens), strict=True)).values())


def _token_lines(found: GradientAttack, tokens: TokensFound) -> list[str]:
    lines = []
    known = " (given)" if found.labels_given else ""
    shown = tokens.words or [[str(t) if t >= 0 else "?" for t in row] for row in tokens.tokens]
    copies, met = _copies(found, tokens), Counter[tuple[int, ...]]()
    for index, (label, stage) in enumerate(zip(found.labels, found.stage, strict=True)):
        read = f"label {label}{known}" if label >= 0 else "label unknown"
        own = tokens.tokens[index]
        met[key := (label, *own)] += 1
        if met[key] % copies:  # the last of equal ones stands for them
            continue
        if any(token >= 0 for token in own):
            order = ", in no order" if tokens.decided in ("multisets", "batch") else ""
            end = len(own) if found.noise_std else len(own) - own.count(-1)  # of texts that end
            lines.append(f"record {index}: {read}, {stage}{order}: {' '.join(shown[index][:end])}")
        else:
            lines.append(f"record {index}: {read}, no token at a place is known")
    of = tokens.present_words or [str(token) for token in tokens.present]
    if tokens.decided in ("set", "nothing"):
        lines.append(f"{number_of(len(of), 'token')} of the batch: {' '.join(of) or 'none'}")
    windows = tokens.window_words or [[str(token) for token in run] for run in tokens.windows]
    if windows:
        more = f" and {len(windows) - _WINDOWS:,} more" if len(windows) > _WINDOWS else ""
        some = ", ".join(" ".join(run) for run in windows[:_WINDOWS])
        lines.append(f"side by side in a record: {some}{more}")
    return lines


def _token_scores(found: GradientAttack, tokens: TokensFound) -> list[str]:
    if (scores := tokens.scores) is None:
        return []

    def told(placed: float | None, multiset: float, whole: int | None) -> str:
        if placed is None or whole is None:
            return f"{multiset:.1%} wherever they stand, no order is known"
        return (
            f"{placed:.1%} at their place, {multiset:.1%} wherever they stand, {whole} of "
            f"{number_of(found.records, 'record')} whole"
        )

    lines = [
        f"right: {told(scores.placed, scores.multiset, scores.whole)}",
        f"different tokens known: {scores.present:.1%}, {scores.false} false",
    ]
    if (blind := tokens.blind) is not None:
        right = (blind.multiset, scores.multiset)
        if scores.placed is not None:
            right = (blind.placed, scores.placed)
        beside = f"; what was found is an {NO_BETTER}" if is_no_better(*right) else ""
        lines.append(f"blind guess: {told(blind.placed, blind.multiset, blind.whole)}{beside}")
    return lines


def _scored(found: GradientAttack, scores: TruthScores) -> str:
    reached, blind = scores.mean.mse, scores.blind.mse
    if scores.axes:
        return (
            f"A leak is shown: what can be had from the gradient by algebra is the truth, with its "
            f"pixels in another order ({scores.axes}); the network is fed them so."
        )
    if reached < 0.9 * blind:
        share = "less than 0.01%" if reached < 1e-4 * blind else f"{reached / blind:.2%}"
        much = "A leak" if reached < 0.5 * blind else "A weak leak"
        return f"{much} is shown: the error is {share} of the blind guess's."
    if proven := count_proven(found.stage):
        return (
            f"The truth speaks against the gradient: {number_of(proven, 'record')} can be had from "
            "it by algebra, and the truth is no nearer to what was found than the blind guess; see "
            "whether it holds the records of this gradient, as the network is fed."
        )
    said = "" if any(found.supported) else ", and the gradient speaks for none of it"
    return _not_shown(found, f"what was found is no better than the blind guess{said}")


def summary_lines(found: GradientAttack, out: Path) -> list[str]:
    """What `attack_gradients` found in a file of gradients, in lines for people."""
    # The record of the truth that each one is nearest to.
    of: dict[int, str] = {}
    if (scores := found.scores) is not None:
        for true, index in enumerate(scores.order):
            stage, error = found.stage[index], scores.mse[true]
            beside = "" if found.tokens else what_was_found(stage, error, scores.blind.mse) + ", "
            of[index] = f"{beside}{_decibel(scores.psnr[true])} to record {true} of the truth"
    length = "" if found.tokens is None else f" of {found.input_shape[0]} tokens"
    # What was attacked, and each record.
    lines = [
        f"{number_of(found.records, 'record')}{length} from "
        f"{number_of(found.intercepts, 'intercept')} of {found.parameters:,} parameters, preset "
        f"{found.preset}"
    ]
    known = " (given)" if found.labels_given else ""
    if found.tokens is not None:
        lines += _token_lines(found, found.tokens)
    pictures = () if found.tokens is not None else zip(found.labels, found.stage, strict=True)
    for index, (label, stage) in enumerate(pictures):
        how = "the public guess, nothing better is supported" if stage == "prior" else stage
        if stage == "posterior" and not found.supported[index]:
            how = "posterior, for which the gradient speaks no more than for the public guess"
        read = f"label {label}{known}" if label >= 0 else "label unknown"
        lines.append(f"record {index}: {read}, {of.get(index, how)}")
        if found.values:
            lines.append(f"  {', '.join(found.values[index])}")
    # What of the gradient is left, beside what noise and other batches leave.
    noise = found.residual_of_noise
    beside = f"; the noise alone makes {figure(noise, 2)}" if noise else ""
    if found.tokens is not None and found.tokens.runner_up is not None:
        other = figure(found.tokens.runner_up, 2)
        beside += f"; the nearest of {found.tokens.tried} other batches leaves {other}"
    lines.append(
        f"unexplained: {figure(found.relative_residual, 2)} of the gradient's norm{beside}"
    )
    if found.tokens is not None:
        lines += _token_scores(found, found.tokens)
    lines += _column_lines(found)
    if scores is not None:
        lines.append(
            f"mean PSNR {_decibel(scores.mean.psnr)}, blind guess {_decibel(scores.blind.psnr)}"
        )
    lines += [f"Note: {note}." for note in found.notes]
    return [*lines, found.conclusion, f"Written to {out}."]


def _column_lines(found: GradientAttack) -> list[str]:
    """How well each column was rebuilt, beside the public guess."""
    if found.whole is None:
        return []
    each = [
        f"{column.name} off by {figure(column.mae, 2)} (guess {figure(column.baseline, 2)})"
        if column.mae is not None
        else f"{column.name} {column.accuracy or 0:.0%} (guess {column.baseline:.0%})"
        for column in found.columns
    ]
    return [
        f"right in every column: {found.whole} of {number_of(found.records, 'record')}",
        f"by column: {', '.join(each)}",
    ]


def _decibel(value: float) -> str:
    return f"{value:.1f} dB"


def doubts(posed: Posed) -> list[str]:
    """What speaks against the gradient being that of a mean cross-entropy at these parameters.

    Returns:
        Sentences, none where nothing does.
    """
    # What is taken, and may have been otherwise when the gradient was made.
    found = [*dict.fromkeys(posed.notes)]
    if posed.parameters_from == FROM_MODEL:
        found.append(
            "the parameters are those that the model function returns; nothing shows that the "
            "gradient was taken at them"
        )
    if posed.by_batch:
        found.append(
            "layers that normalise are taken in training mode, by the statistics of the batch: in "
            "evaluation mode far more of the gradient is left"
        )
    elif held := statistics(posed.model):
        layer = posed.model.get_submodule(held[0].rpartition(".")[0])
        kind = "BatchNorm" if isinstance(layer, _BatchNorm) else type(layer).__name__
        found.append(
            f"{kind} is taken in evaluation mode, by its running statistics; a gradient of "
            "training mode holds statistics of the batch, which were tried too where these fail"
        )
        if not posed.statistics_given:
            found.append(
                "the running statistics are those that the model function returns; --weights may "
                "hold them"
            )
        points = posed.observation.points
        if not torch.equal(points, points[:1].expand_as(points)):
            found.append(
                "the same running statistics are taken for all intercepts; between models that "
                "were trained in between they differ"
            )
    if any(isinstance(layer, _DropoutNd) and layer.p > 0 for layer in posed.model.modules()):
        found.append("dropout is taken as off; a gradient with random masks is not explained")
    # Only a last layer with a bias of one number a class shows whether the loss is what it seems.
    shapes = [tuple(p.shape) for p in posed.model.parameters()]
    if shapes[-1] != (posed.classes,) or posed.classes == 1 or posed.observation.cut is not None:
        return found
    # The last bias gets the mean of p - y: entries in [-1, 1] that sum to 0, clipped or not.
    bias = posed.observation.gradient[:, -posed.classes :].double()
    noise = 5 * posed.facts.noise_std
    if float(bias.abs().max()) > 1 + SLACK + noise:
        found.append(
            f"the last bias has a gradient of {float(bias.abs().max()):.3g}, where a mean over the "
            "batch gives at most 1; divide a sum by the batch size"
        )
    others = posed.classes - posed.facts.records
    if others > posed.classes / 2 and noise == 0 and bool(((bias < 0).sum(1) >= others).all()):
        found.append(
            "the gradients of the last bias have the signs of a loss that was made larger; if they "
            "are between two models, see which is --before"
        )
    if not sums_to_zero(bias, noise_std=posed.facts.noise_std):
        found.append(
            "the gradients of the last bias do not sum to 0, as those of a cross-entropy of logits "
            "do, so that they are of another loss"
        )
    return found
