"""The exact stages, one after the other, before anything is optimised: `STAGES`.

A stage says when it is tried, what it finds, and what this proves; whoever tells of it, in words or
numbers, asks `proof_of` or `count_proven`. What a stage finds is accepted by the gradient that it
would have sent, never by the truth. Where only some records of a batch are certified, their
gradients are subtracted and the rest remains as an observation of fewer records.
"""

from __future__ import annotations

import enum
import functools
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..problem.columns import Given
from ..problem.labels import Fit, fitted, last_layer
from ..problem.layers import tried_once
from ..problem.observation import HOST, Observation, rounding_of, sent_gradients
from ..problem.problem import Certified, Found, OtherLoss, Problem, squared_size
from .binary_vertices import records_at_corners, signs_of_input
from .censored import censored_record
from .first_layer import (
    NEAR,
    NEARER,
    PICTURE,
    angle_of_others,
    first_linear_input,
    least_records,
    left_by_two,
    may_be_two,
    open_numbers,
    repeated_input,
    residual,
    rounding_of_input,
    scaled_input,
    shares_of,
    shows_several,
    whole_layer,
)
from .imprinted import isolate
from .patches import attended_patches, embedded_patches
from .rgap import peel
from .spear import separate_records

_IMPRINTED = 1e-3  # residual of a whole batch of which each record fills its slot to a third of it
_TRUSTED = 0.05  # predicted error of a pixel up to which a noisy first layer needs no search
_TRUSTED_PICTURE = 0.7  # the same of a picture, whose noise is smoothed away before
_EXPLAINED = 1e-4  # float32 gradients leave about 1e-6; a wrong input leaves about 1
_DETERMINED = 1e-2  # the same of a picture that the equations determine: a ReLU on its edge turns
_ROUNDED = 5.0  # times what rounding of messages may leave
SIGNS = "signs"
"""The stage by the signs of a first layer's gradient, which tell no sizes."""

RANK_ONE = "rank one"
"""The stage by the quotient of a first layer's weight and bias, which nothing else confirms."""
FEWER = "fewer directions"
"""The stage by as many records as a first layer's gradient has directions: fewer than the batch."""
ONE_OUTPUT = (
    "a network of one output has no cross-entropy of logits, so algebra alone was tried, and it "
    "found nothing"
)
LOOKED_UP = (
    "categories are looked up in tables, and what the first linear layer is fed does not tell them "
    "and the numbers of several records apart, so no search was made"
)
_TOLD = 2.0  # times what rounding may leave
_BY_ONE = 100.0  # the same where one number tells one record from two
_FAR = 10.0  # times what one record leaves: two leave more
_BINARY = 0.01  # off 0 and 1, which no two unlike records have where they are mixed
_ALIKE = 1e-3  # of derivatives of two losses that are one
_APART = 1e-3  # sine of the angle to another record's derivative
_PART = re.compile(r"(\d+) certified, (\d+) by optimisation")


class Proof(enum.Enum):
    """What follows from it that a stage found records, without a look at the truth."""

    RECORD = "record"  # it was in the batch: the equations determine it
    PART = "part"  # so were some of the batch, as many as the name of the stage says
    NOTHING = "nothing"  # others may explain the gradient as well


@dataclass(frozen=True, kw_only=True, slots=True)
class Unsolved:
    """Why the stage that came farthest found nothing that it certifies, in words."""

    reason: str


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Stage:
    """A way to read records out of a gradient in closed form.

    Attributes:
        name: as it stands in the results.
        solve: f(problem, generator): the whole batch, a part of it, why not, or nothing.
        proves: what follows from it that it found a batch.
        several: whether it is for batches; None where also for one record.
        noisy: whether it is for gradients under noise.
        alone: whether it is for one record, without a look at the rank of the first layer.
        whole: whether it takes every number of a gradient for what was sent.
    """

    name: str
    solve: Callable[[Problem, torch.Generator], Certified | Found | Unsolved | None]
    proves: Proof = Proof.RECORD
    several: bool | None = False
    noisy: bool = False
    whole: bool = True
    alone: bool = False

    def applies(self, problem: Problem) -> bool:
        """Whether it is tried on a problem."""
        seen = problem.observation
        if self.whole and seen.shown is not None:
            return False
        return seen.is_noisy is self.noisy and self.several in (None, seen.records > 1)


@tried_once()
def solve_exactly(problem: Problem, generator: torch.Generator) -> Found | Unsolved | None:
    """The whole batch, a part of it, or nothing.

    Args:
        problem: the posed problem.
        generator: of random combinations; decides nothing that is accepted.

    Returns:
        What explains the observation; None where no stage applies or none succeeds, with the reason
        where there is one to tell.
    """
    why: Unsolved | None = None
    problem = replace(problem, observation=problem.observation.uncut())
    several = problem.observation.records == 1 and shows_several(problem)
    for stage in STAGES:
        if not stage.applies(problem) or (several and stage.alone):
            continue
        solved = stage.solve(problem, generator)
        if isinstance(solved, Found):
            return solved
        if isinstance(solved, Unsolved):
            why = solved
        elif solved is not None:
            pixels = problem.box.pixels(solved.inputs.to(problem.box.span))
            labels = solved.labels.to(pixels.device)
            return Found(
                pixels=pixels, labels=labels, iterations=0, stage=stage.name, loss=solved.loss
            )
    return _of_fewer(problem, generator) or why


def _of_fewer(problem: Problem, generator: torch.Generator) -> Found | None:
    """The records that a first layer's gradient has directions of, where these are fewer.

    Others may leave nothing there, and several may have one direction: nothing is proven.
    """
    seen, prior = problem.observation, problem.prior_image
    shown = least_records(seen, problem.model, problem.shape)
    if not 0 < shown < seen.records or seen.mean_of is not None:
        return None
    posed = replace(problem, observation=replace(seen, records=shown), labels=None)
    found, rest = solve_exactly(posed, generator), seen.records - shown
    if not isinstance(found, Found) or proof_of(found.stage) is not Proof.RECORD:
        return None
    inputs, loss = problem.box.inputs(found.pixels), found.loss
    left = residual(posed.observation, problem.model, inputs=inputs, targets=found.labels)
    loss = loss or OtherLoss(left=left, factors=None, labelled=True)
    grey = found.pixels.new_full(problem.shape, 0.5) if prior is None else prior.to(found.pixels)
    return replace(
        found,
        pixels=torch.cat([found.pixels, grey.expand(rest, *problem.shape)]),
        labels=torch.cat([found.labels, found.labels.new_zeros(rest)]),
        stage=FEWER,
        loss=replace(loss, rest=rest),
        supported=(True,) * shown + (False,) * rest,
    )


def is_explained(problem: Problem, stage: str, inputs: Tensor, labels: Tensor) -> bool:
    """Whether what was found behind a part of a network makes the gradient of all of it."""
    # What is found by rank alone was compared with no gradient.
    if proof_of(stage) is not Proof.RECORD or stage == RANK_ONE or problem.observation.is_noisy:
        return True
    return _accepted(problem, inputs, labels) is not None


def told_by_tables(problem: Problem, given: Given, record: Tensor) -> tuple[Found | None, bool]:
    """A record (1, F) whose categories tables tell, where the gradient is its own.

    And whether another category explains it as well.
    """

    def of(x: Tensor) -> Certified | None:
        return _accepted(problem, x, _label(problem, x))

    every = [(j, float(at)) for j, several in given.others.items() for at in several]
    others = (record.index_fill(1, torch.tensor([j]), at) for j, at in every)
    if (one := of(record)) is None or any(of(other) is not None for other in others):
        return None, one is not None
    at, stage = problem.box.pixels(one.inputs), "exact"
    return Found(pixels=at, labels=one.labels, iterations=0, stage=stage, loss=one.loss), False


def part_name(certified: int, searched: int) -> str:
    """The stage of a batch of which a part is certified, and the others were searched for."""
    return f"{certified} certified, {searched} by optimisation"


def proof_of(stage: str) -> Proof:
    """What the name of a stage proves; any other name than those of `STAGES` nothing.

    >>> [proof_of(name).value for name in ("exact", "2 certified, 1 by optimisation", "prior")]
    ['record', 'part', 'nothing']
    """
    if _PART.fullmatch(stage):
        return Proof.PART
    return next((one.proves for one in STAGES if one.name == stage), Proof.NOTHING)


def count_proven(stages: Sequence[str]) -> int:
    """How many records were in the batch for certain, of the stage of each.

    >>> count_proven(["2 certified, 1 by optimisation"] * 3), count_proven(["exact", "prior"])
    (2, 1)
    """
    count, rest = 0, list(stages)
    while rest:  # of a batch that is certified in part, records may be public guesses
        part = _PART.fullmatch(rest[0])
        count += int(part[1]) if part else proof_of(rest[0]) is Proof.RECORD
        rest = rest[sum(map(int, part.groups())) if part else 1 :]
    return count


def _averaged(problem: Problem, _: torch.Generator) -> Certified | None:
    """The first linear layer's input, where the noise on it is small."""
    seen = problem.observation
    if (inputs := first_linear_input(problem)) is None or problem.labels is None:
        return None
    # The prior of a search draws the brightness down, which the bias alone holds up.
    factor = math.sqrt(float(problem.box.pixels(inputs).square().sum()) + 1)
    energy = squared_size(seen) - seen.gradient.numel() * seen.noise_std**2
    trusted = _TRUSTED_PICTURE if len(problem.shape) == PICTURE else _TRUSTED
    if seen.noise_std * factor > trusted * math.sqrt(max(energy, 0.0)):
        return None
    return Certified(inputs, problem.labels)


def _read(problem: Problem, _: torch.Generator) -> Certified | None:
    """The first linear layer's input, under the label that was read or else under any.

    The last layer's signs tell the label of one gradient of the cross-entropy. A difference of
    gradients at two points has other signs, and so may a task's loss: each class is tried. The
    input is determined; where its quotient enlarges what messages rounded, it may leave more. Under
    another loss it counts where several records would not have rank 1.
    """
    if (inputs := first_linear_input(problem)) is None:
        if problem.observation.shown is None or (inputs := scaled_input(problem)) is None:
            return None
        label = _label(problem, inputs)
        told = _explains(problem, inputs, label, most=_allowed(problem.observation))
        return _told_from_two(problem, Certified(inputs, label)) if told else None
    rounded = rounding_of_input(problem)
    allowed = min(_ROUNDED * rounded, _DETERMINED)
    first = [] if problem.labels is None else [problem.labels]
    every = torch.arange(problem.classes)[:, None]
    for labels in first if problem.observation.is_plain and first else [*first, *every]:
        if _explains(problem, inputs, labels, most=max(allowed, _allowed(problem.observation))):
            return _told_from_two(problem, Certified(inputs, labels), allowed=allowed)
    return _of_one(problem, _under_any_loss(problem, inputs, allowed=allowed))


def _told_from_two(
    problem: Problem, certified: Certified, *, allowed: float = 0.0
) -> Certified | None:
    """A record, where two would leave far more of the gradient than is allowed for rounding.

    Of two outputs every batch has rank 1. One number speaks for one record then, and it has to be
    far from what two would leave.
    """
    seen, joint = problem.observation, whole_layer(problem)
    most, times = max(allowed, _allowed(seen)) if seen.is_plain else 0.0, _TOLD
    rounding = max(seen.rounding, torch.finfo(torch.float32).eps)
    if joint is not None and len(joint) == 2:
        most = _ROUNDED * rounding
        pixels = problem.box.pixels(certified.inputs)
        binary = float((pixels - pixels.round().clamp(0, 1)).abs().max()) <= _BINARY
        times = _TOLD if binary and seen.shown is None else _BY_ONE
        if not (joint[:, -1].any() and _explains(problem, *certified[:2], most=most)):
            return None
    elif most <= _EXPLAINED:
        if certified.loss is not None or seen.task is not None:
            return certified
        # Of what is not rounded the record leaves less than is allowed, and others may not; what
        # rounding does not explain may be what near ones leave.
        (x, y), made = certified[:2], 2 * rounding_of(seen.gradient)
        if seen.is_plain:
            made = max(made, residual(seen, problem.model, inputs=x, targets=y))
        reach = NEAR if made <= _FAR * rounding else NEARER
        if problem.classes <= 2 and may_be_two(problem, x):
            return None
        return certified if left_by_two(problem, x, y, reach=reach) > _FAR * made else None
    return certified if left_by_two(problem, *certified[:2]) > times * most else None


def _of_one(problem: Problem, certified: Certified | None) -> Certified | None:
    """A record under any loss, where several would not have one direction as well."""
    if certified is None:
        return None
    # Of one layer alone weight and bias may be scaled apart, which is for `_repeated` to say.
    layer = whole_layer(problem)
    if certified.loss is not None and layer is not None and len(layer) > 1:
        return None
    if (certified := _told_from_two(problem, certified)) is None:
        return None
    if (certified.loss or problem.classes <= 2) and may_be_two(problem, certified.inputs):
        return None
    pixels = problem.box.pixels(certified.inputs)[0]
    return certified if angle_of_others(problem, pixels) > _APART else None


def _alike(problem: Problem, _: torch.Generator) -> Certified | None:
    """The same where several records would have one direction as well, as before one output.

    Any row is such a quotient, of noise as well: one outside of the box is none of a record.
    """
    if (inputs := first_linear_input(problem)) is None:
        allowed = _allowed(problem.observation)
        peeled = None if shows_several(problem) else peel(problem, accepted=allowed)
        if peeled is None:
            return None
        inputs = peeled.inputs
    pixels = problem.box.pixels(inputs)
    inside = float((pixels - pixels.clamp(0, 1)).abs().max()) <= _ALIKE
    return _under_any_loss(problem, inputs) if inside else None


def _signed(problem: Problem, _: torch.Generator) -> Certified | None:
    """Which numbers of a record lie above 0, below it and at it, where signs alone are left.

    Every row of the first layer's gradient d [x, 1]^T has the signs of the input, or the opposite
    ones. A number stands in the middle of what its sign leaves of the box.
    """
    box, signs = problem.box, signs_of_input(problem.observation, problem.model, problem.shape)
    if signs is None:
        return None
    sides = signs.to(box.span)
    low, high = box.low.expand_as(sides), (box.low + box.span).expand_as(sides)
    least, most = torch.where(sides > 0, low.clamp_min(0), low), high
    most = torch.where(sides < 0, high.clamp_max(0), most)
    found = torch.where(sides == 0, 0.0, (least + most) / 2)[None]
    if not bool((least < most)[sides != 0].all()) or not bool(found.isfinite().all()):
        return None
    loss = OtherLoss(left=None, factors=None, labelled=False, signs=True)
    return Certified(found, _label(problem, found), loss)


def _repeated(problem: Problem, _: torch.Generator) -> Certified | None:
    """The record of one or several steps, by the spectrum of what these changed."""
    if (found := repeated_input(problem)) is None or may_be_two(problem, found):
        return None
    seen, loss = problem.observation, None
    if seen.local_steps == 1:
        last = last_layer(seen, problem.model, classes=problem.classes)
        told = last is not None and last.bias is not None and _tells_labels(last.bias)
        told = told and problem.classes > 2
        loss = OtherLoss(left=None, factors=None, labelled=told, open=open_numbers(problem))
        label = _label(problem, found)
        if not loss.open[0] and _explains(problem, found, label, most=_allowed(seen)):
            return Certified(found, label)
    return Certified(found, _label(problem, found), loss)


def _label(problem: Problem, inputs: Tensor) -> Tensor:
    """(1,) the label that is known, or else under which an input explains the gradient best."""
    if problem.labels is not None or problem.classes == 1:
        return torch.zeros(1, dtype=torch.int64) if problem.labels is None else problem.labels
    every = torch.arange(problem.classes, device=inputs.device)[:, None]  # (C, 1)
    left = [
        residual(problem.observation, problem.model, inputs=inputs, targets=label)
        for label in every
    ]
    return every[left.index(min(left))]


def _patched(problem: Problem, found: Tensor | None) -> Certified | None:
    """The patches of a picture, under the label that explains the gradient best."""
    if found is None:
        return None
    one = _accepted(problem, found, _label(problem, found), allowed=_DETERMINED)
    return None if one is None or may_be_two(problem, one.inputs) else one


def _peeled(problem: Problem, _: torch.Generator) -> Certified | None:
    # Its residual allows for what float32 has rounded off a sure network's gradient.
    allowed = _allowed(problem.observation)
    if (peeled := peel(problem, accepted=allowed)) is None:
        return None
    return _of_one(problem, _accepted(problem, peeled.inputs, peeled.labels))


def _censored(problem: Problem, _: torch.Generator) -> Certified | Unsolved | None:
    # Its weighted misfit and the errors that it predicts certify; the plain residual of a saturated
    # network is mostly that of slopes which float32 has rounded.
    censored = censored_record(problem)
    if censored is None or (not censored.certified and not censored.saturated):
        return None
    if not censored.certified:
        return Unsolved(reason=censored.reason)
    return _told_from_two(problem, Certified(censored.inputs, censored.labels))


def _isolated(problem: Problem, _: torch.Generator) -> Certified | Found | None:
    """The records that crafted models isolate; each is certified by the slot that it fills."""
    certified = isolate(problem)
    if certified is None:
        return None
    if len(certified.labels) == problem.observation.records:
        return _accepted(problem, *certified[:2], allowed=_IMPRINTED)
    return _part(problem, *certified[:2])


def _separated(problem: Problem, generator: torch.Generator) -> Certified | Found | None:
    """Records at the ends of the box, and then the activation patterns of what is left."""
    # Ranks are read from gaps of rounding's size, by decompositions of many small matrices and by
    # least squares without full rank: LAPACK's work, which devices do otherwise or not at all.
    host = problem.to(device=HOST)
    corners = records_at_corners(host, generator)
    if corners is not None:
        corners = _single(host, corners)
    first = None if corners is None else _told_apart(problem, *corners[:2])
    if first is not None and not isinstance(first, Found):
        return first
    if first is not None and first.rest is not None:
        host = replace(host, observation=first.rest.to(device=HOST), labels=None)
        if first.rest.records == 1:
            last = _read(replace(problem, observation=first.rest, labels=None), generator)
            return first if last is None else _joined(problem, first, *last[:2])
    separated = separate_records(host, generator)
    if separated is None:
        return first
    if bool((separated.labels < 0).any()):
        whole = first is None and len(separated.labels) == problem.observation.records
        return _under_any_loss(problem, separated.inputs) if whole else first
    separated = _single(host, separated)
    if first is None:
        return _told_apart(problem, separated.inputs, separated.labels)
    return _joined(problem, first, separated.inputs, separated.labels)


def _single(problem: Problem, found: Certified) -> Certified:
    """Records without those that may be sums of several, or half-way between them.

    Several are alike where the derivatives that they send are, within what is allowed: of a linear
    layer of zeros all of one label. There a class that is absent tells the sum of each other one,
    which is one record where all records are counted. Unlike binary records are far apart.
    """
    labels = found.labels
    told = len(labels) == problem.observation.records and len(labels.unique()) < problem.classes
    sure = []
    for x, label, allowed in zip(found.inputs, labels, found.left, strict=True):
        pixels = problem.box.pixels(x)
        binary = bool((pixels == pixels.round()).all())
        left = left_by_two(problem, x[None], label[None], reach=0.5 if binary else NEARER)
        one = told and int((labels == label).sum()) == 1
        sure.append(one or left > (allowed if binary else _FAR * allowed))  # as of their number
    return Certified(found.inputs[sure], labels[sure])


def _joined(problem: Problem, part: Found, inputs: Tensor, labels: Tensor) -> Certified | Found:
    """A part of the batch and further certified records."""
    pixels = problem.box.pixels(inputs.to(problem.box.span))
    every = problem.box.inputs(torch.cat([part.pixels, pixels.to(part.pixels)]))
    joined = _told_apart(problem, every, torch.cat([part.labels, labels.to(part.labels)]))
    return part if joined is None else joined


def _told_apart(problem: Problem, inputs: Tensor, labels: Tensor) -> Certified | Found | None:
    """Certified records as the batch, or as a part of it."""
    seen = problem.observation
    if len(inputs) == seen.records:
        return _accepted(problem, inputs, labels)
    # More than there are contradict each other; a clipped mean hides the batch's factor.
    if not 0 < len(inputs) < seen.records or seen.mean_of is not None:
        return None
    return _part(problem, inputs.to(problem.box.span), labels.to(problem.box.span.device))


def _part(problem: Problem, inputs: Tensor, labels: Tensor) -> Found:
    """Certified records, and the gradient of the others."""
    seen = problem.observation
    left = seen.records - len(inputs)
    of = functools.partial(sent_gradients, seen, problem.model)
    pairs = zip(inputs[:, None], labels[:, None], strict=True)
    rows = torch.stack([of(inputs=x, targets=y).detach() for x, y in pairs])  # (F, K, D)
    shares = shares_of(problem, inputs, rows[:, 0])  # times records: 1 under the declared loss
    rest = (seen.gradient * seen.records - (shares[:, None, None] * rows).sum(dim=0)) / left
    if float(shares.max() - shares.min()) <= _ALIKE * float(shares.max()):
        rest = rest / shares.mean()  # of a sum in place of a mean
    return Found(
        pixels=problem.box.pixels(inputs),
        labels=labels,
        iterations=0,
        stage=part_name(len(inputs), left),
        rest=replace(seen, gradient=rest, records=left),
    )


def _allowed(seen: Observation) -> float:
    """Residual up to which a candidate explains a gradient, never a tenth of it."""
    return min(max(_EXPLAINED, _ROUNDED * seen.rounding), 0.1)


def _accepted(
    problem: Problem, inputs: Tensor, labels: Tensor, *, allowed: float = 0.0
) -> Certified | None:
    """The same, where its gradient is the one that was observed."""
    if _explains(problem, inputs, labels, most=max(allowed, _allowed(problem.observation))):
        at = problem.box.span
        return Certified(inputs.to(at), labels.to(at.device))
    return _under_any_loss(problem, inputs, allowed=allowed)


def _explains(problem: Problem, inputs: Tensor, labels: Tensor, *, most: float) -> bool:
    """Whether a batch sends the gradient that was observed, under the declared loss."""
    inputs, labels = inputs.to(problem.box.span), labels.to(problem.box.span.device)
    return residual(problem.observation, problem.model, inputs=inputs, targets=labels) <= most


def _under_any_loss(problem: Problem, inputs: Tensor, *, allowed: float = 0.0) -> Certified | None:
    """A batch that some loss of the outputs explains, with what its derivative says of that."""
    seen, inputs = problem.observation, inputs.to(problem.box.span)
    fit = fitted(seen, problem.model, inputs=inputs, classes=problem.classes)
    if fit is None or not fit.left <= max(allowed, _allowed(seen)):
        return None
    labels, factors = fit.slopes.argmin(dim=1), _factors(fit)
    if factors is not None:
        factors = factors * seen.records
        if seen.clip_norm is None and bool(((factors - 1).abs() <= _ALIKE).all()):
            return Certified(inputs, labels)
        # Of two classes the negative entropy of one is that of the other, by a factor of its own.
        one = len(factors) > 1 and bool((factors.max() - factors.min()) <= _ALIKE * factors.max())
        others = fit.logits.softmax(dim=1).scatter(1, labels[:, None], 0.0).sort(dim=1).values
        several = bool((others[:, -2] > 10 * _ALIKE * others[:, -1]).all())
        factors = factors if one or several else None
    loss = OtherLoss(
        left=fit.left,
        factors=None if factors is None or seen.clip_norm else tuple(factors.tolist()),
        labelled=factors is not None,
    )
    return Certified(inputs, labels, loss)


def _factors(fit: Fit) -> Tensor | None:
    """(B,) of the cross-entropy's derivatives softmax - label, None where one is no multiple.

    The label's own number is left out where float32 has rounded it.
    """
    wanted = fit.logits.softmax(dim=1)
    wanted.scatter_(1, fit.slopes.argmin(dim=1)[:, None], 0.0)
    size = wanted.square().sum(dim=1)
    factors = (wanted * fit.slopes).sum(dim=1) / size.clamp_min(1e-300)
    off = torch.where(wanted > 0, fit.slopes - factors[:, None] * wanted, 0.0).norm(dim=1)
    fits = (off <= _ALIKE * fit.slopes.norm(dim=1)) & (factors > 0) & _tells_labels(fit.slopes)
    return factors if bool(fits.all()) else None


def _tells_labels(slopes: Tensor) -> bool:
    """Whether each of (B, C) derivatives sums to 0 with one negative number, as of a label."""
    sums, sizes = slopes.sum(dim=1).abs(), slopes.abs().sum(dim=1)
    one = (slopes < -_ALIKE * sizes[:, None]).sum(dim=1) == 1
    return bool((one & (sums <= _ALIKE * sizes)).all())


FIRST_LAYER = Stage(name="first layer", solve=_averaged, proves=Proof.NOTHING, noisy=True)

STAGES = (
    FIRST_LAYER,
    Stage(name="exact", solve=_read, whole=False, alone=True),
    Stage(name=RANK_ONE, solve=_repeated, whole=False),  # not as declared behind that layer
    Stage(name="imprint", solve=_isolated, several=None),  # of models that were crafted
    Stage(name="patches", solve=lambda at, _: _patched(at, embedded_patches(at))),
    Stage(name="patches at their places", solve=lambda at, _: _patched(at, attended_patches(at))),
    Stage(name="peeling", solve=_peeled, alone=True),
    Stage(name="censored", solve=_censored, alone=True),
    Stage(name="certified", solve=_separated, several=True, whole=False),
    Stage(name="one direction", solve=_alike, proves=Proof.NOTHING),  # several have one, too
    Stage(name=SIGNS, solve=_signed, proves=Proof.NOTHING, whole=False),
)
"""In the order in which they are tried, until one finds something."""
