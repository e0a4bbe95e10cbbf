"""Whether the observation speaks for an image, or the public guess takes its place.

What an exact stage proves to be the record stands. Else, without noise, where the truth leaves
nothing of the gradient, an image replaces the prior image x0 if it leaves less of it than x0 does
under any label, by the preset's distance, and the search did not plainly fail. A single image that
a search found has to leave less than a fifth of what x0 leaves, of the whole and parameter by
parameter, each by its own length: a search with hundreds of free pixels takes away half of it and
more at places that are farther from the truth than x0 is.
docs/attack-rows.md has the counts from which the fifth was taken.

Under noise an image x with n pixels replaces x0 where one of two tests says so, r being the
whitened residual:

- Mallows' C_p: r(x0) - r(x) > 2 n, x0 under any label. Fitting noise alone buys n; the error it
  leaves is another n.
- For a batch of one, where the total variation lets fewer than n degrees of freedom through: the
  observation is split into two with independent noise, o + a s w and o - (s / a) w with s the
  noise_std and w standard normal (Robins and van der Vaart 2006). The image found from the first
  half must explain the second better than x0 does under any label, by two standard deviations.

Of several ways to search, that one is taken whose image from the first half explains the second
best.

Shape letters: B records, C classes, D parameters.

Brightness and contrast of a picture, where a network that normalises hardly shows them.

A layer of normalisation takes the mean out of its inputs and divides by their spread: of a picture

    x' = m + s (x - mean x)

the gradient changes little with the brightness m and the contrast s, and a search ends at any. So
the picture goes half the way to the public image's brightness, or a quarter, if it explains the
gradient about as well there, with the contrast that explains it best. Where the gradient shows the
brightness nothing is moved.

Where a normalisation is over places, as of GroupNorm behind a first convolution, the contrast of a
whole picture is next to free in the search, too: one whose prior fades away ends at far too much of
it, and L-BFGS goes on in that direction. So the prior is heavier there and stays (`steadied`).

Nothing is decided by the truth; the steps of the grid were chosen on five crops of photos, the
weight on two.

How often the test that keeps an image would keep the true one: what a blind result is worth.

An attack that falls back to the prior image says nothing where the test of `inversion` would have
rejected the truth as well. With the true image in place of the one found, both halves of the test
are functions of a normal vector of one entry a label, whose covariance is known; it is drawn.

Shape letters: N candidates, C classes, K intercepts, D parameters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from ...training.models.parameters import unflatten
from ..exact.stages import count_proven
from ..posterior import Candidates, Posterior, sent_by, squared
from ..problem.objective import cosine_distance, whitened_residual
from ..problem.observation import Observation, sent_gradients
from ..problem.problem import Found, Problem, gradients_of

Search = Callable[[Problem], Found]
"""A way to find a batch, of the whole observation or of a half of it."""

_FAILED = 0.3
"""Cosine distance at which a search without noise, whose truth has 0, found nothing."""

_FAILED_ALONE = 0.1
"""The same of a single image."""

_CONVINCED = 20.0
"""Times the likelihood of the public guess that public records together must have."""

_LEFT = 0.2
"""Share of the prior image's distance that a single image may leave without noise."""


def guessed(problem: Problem) -> Found:
    """The prior image, or a grey one, where nothing is searched for."""
    prior, records = problem.prior_image, problem.observation.records
    grey = problem.box.span.new_full(problem.shape, 0.5) if prior is None else prior
    labels = torch.zeros(records, dtype=torch.int64, device=grey.device)
    pixels = grey.repeat(records, *[1] * grey.ndim)
    return Found(pixels=pixels, labels=labels, iterations=0, stage="prior")


def fall_back(
    problem: Problem,
    found: Found,
    generator: torch.Generator,
    *,
    search: Search,
    held: bool | None = None,
) -> Found:
    """What was found, with the prior image where the observation does not speak for it.

    Args:
        problem: the posed problem.
        found: what a stage found.
        generator: of the split of the observation.
        search: how it was found.
        held: whether what `search` finds in one half explains the other, where that is known.
    """
    seen, prior = problem.observation, problem.prior_image
    if found.stage == "prior":  # nothing was searched for
        return replace(found, supported=(False,) * seen.records)
    if found.loss is not None:  # another than that of the preset's distance
        left = math.nan if found.loss.left is None else found.loss.left
        supported = list(found.supported or (True,) * seen.records)
        pixels = found.pixels.clone()
        if prior is not None:
            pixels[[not held for held in supported]] = prior
        return replace(found, pixels=pixels, supported=tuple(supported), reached=left)
    reached = distance_left(problem, found.pixels, found.labels)
    pixels, supported = found.pixels.clone(), [True] * seen.records
    if prior is not None:
        for record in range(seen.records):
            if not seen.is_noisy:
                supported[record] = _explains_more(problem, found, record)
            else:
                gain = _distance_without(problem, found, record) - reached
                supported[record] = gain > 2 * math.prod(problem.shape) or (
                    seen.records == 1
                    and gain > 0
                    and (best_of(problem, [search], generator)[1] if held is None else held)
                )
            if not supported[record]:
                pixels[record] = prior
    return replace(found, pixels=pixels, supported=tuple(supported), reached=reached)


def _explains_more(problem: Problem, found: Found, record: int) -> bool:
    """Whether a gradient without noise speaks for an image, against the prior image."""
    seen = problem.observation
    if record < count_proven([found.stage] * seen.records):  # whatever else is left
        return True
    ours = _sent(problem, found.pixels, found.labels)
    alone = seen.records == 1
    if float(cosine_distance(ours, seen)) > (_FAILED_ALONE if alone else _FAILED):
        return False
    guesses = _without(problem, found, record)
    if not alone:
        return _distance(problem, ours) < min(_distance(problem, guess) for guess in guesses)
    return all(
        left(problem, ours) < _LEFT * min(left(problem, guess) for guess in guesses)
        for left in (_distance, _by_layer)
    )


def _by_layer(problem: Problem, sent: Tensor) -> float:
    """Mean cosine distance of the parameters' gradients, by their numbers of entries.

    One large entry, as of a task's own variables, hides in the whole what weights say of an image.
    """
    total, entries = 0.0, 0
    theirs = unflatten(problem.model, problem.observation.gradient)
    for name, ours in unflatten(problem.model, sent).items():
        norm = torch.linalg.vector_norm(theirs[name])
        if norm > 0:
            size = (torch.linalg.vector_norm(ours) * norm).clamp_min(torch.finfo(ours.dtype).tiny)
            total += ours.numel() * (1 - float((ours * theirs[name]).sum() / size))
            entries += ours.numel()
    return total / max(entries, 1)


def distance_left(problem: Problem, pixels: Tensor, labels: Tensor) -> float:
    """The whitened residual of a batch under noise, else the preset's distance."""
    return _distance(problem, _sent(problem, pixels, labels))


def speaks_for(problem: Problem, weighed: Posterior) -> bool:
    """Whether one record's observation speaks for public records, beyond what these say alone.

    Their likelihood has to be twenty times that of the prior image, under the label that suits it
    best, and of no record at all: where one of these is the truth, that has a probability of at
    most .05 (Markov), however many records are weighed.
    """
    seen, like = problem.observation, problem.box.span
    none = torch.zeros_like(seen.gradient)
    others = [none] if seen.is_noisy else []
    if problem.prior_image is not None:
        label = torch.zeros(1, dtype=torch.int64, device=like.device)
        of = Found(pixels=problem.prior_image[None], labels=label, iterations=0, stage="prior")
        others += _without(problem, of, 0)
    left = [float(squared((sent - seen.gradient)[None], seen)) for sent in others]
    least = min(left, default=math.inf)
    if not seen.is_noisy:
        return float(weighed.distances.min()) < least
    return weighed.evidence + least / 2 > math.log(_CONVINCED)


def says_more(problem: Problem, image: Tensor, label: Tensor) -> bool:
    """Whether a public image explains one record's observation better than the prior image.

    Args:
        problem: of one record, with a prior image; any image explains those of several.
        image: (*shape) in normalised units.
        label: () its class; the prior image may have any.
    """
    if problem.prior_image is None or problem.observation.records != 1:
        return True
    pixels = problem.box.pixels(image.to(problem.box.span)).clamp(0, 1)[None]
    labels = label.to(pixels.device)[None]
    of = Found(pixels=pixels, labels=labels, iterations=0, stage="prior")
    return distance_left(problem, pixels, labels) < _distance_without(problem, of, 0)


def _distance(problem: Problem, sent: Tensor) -> float:
    if problem.observation.is_noisy:
        return float(whitened_residual(sent, problem.observation))
    return float(problem.preset.objective(sent, problem.observation))


def _distance_without(problem: Problem, found: Found, record: int) -> float:
    """The same with the prior image in place of a record, under the label that suits it best."""
    return min(_distance(problem, sent) for sent in _without(problem, found, record))


def _without(problem: Problem, found: Found, record: int) -> list[Tensor]:
    """What is sent with the prior image in place of a record, under each label that is possible.

    An image that undoes a wrong label beats the prior image under it without resembling anything.
    Of one gradient of a cross-entropy without noise the last layer tells the label.
    """
    assert problem.prior_image is not None  # noqa: S101 # the caller looked
    seen, sent = problem.observation, list[Tensor]()
    pixels, labels = found.pixels.clone(), found.labels.clone()
    pixels[record] = problem.prior_image
    told = not seen.is_noisy and (
        seen.records > 1 or (seen.is_plain and problem.labels is not None)
    )
    for label in [int(labels[record])] if told else range(problem.classes):
        labels[record] = label
        sent.append(_sent(problem, pixels, labels))
    return sent


def _sent(problem: Problem, pixels: Tensor, labels: Tensor) -> Tensor:
    """(K, D) gradients of a batch with hard labels."""
    inputs = problem.box.inputs(pixels)
    return sent_gradients(
        problem.observation, problem.model, inputs=inputs, targets=labels
    ).detach()


def best_of(
    problem: Problem, searches: Sequence[Search], generator: torch.Generator
) -> tuple[int, bool]:
    """Which way to search explains a half of the observation best from the other half.

    Args:
        problem: of one record.
        searches: at least one.
        generator: of the split.

    Returns:
        Its index, and whether it explains that half better than the prior image, by two standard
        deviations; never without noise or without a prior image.
    """
    seen, prior = problem.observation, problem.prior_image
    if not seen.is_noisy or (prior is None and len(searches) == 1):
        return 0, False
    noise = torch.randn(seen.gradient.shape, generator=generator, dtype=seen.gradient.dtype)
    noise = noise.to(seen.gradient)
    noise = torch.linalg.cholesky(seen.covariance.double()).to(noise) @ noise
    first, second = (
        replace(
            seen, gradient=seen.gradient + part * noise, covariance=seen.covariance * (1 + part**2)
        )
        for part in (SPLIT, -1 / SPLIT)
    )
    posed = replace(problem, observation=first, preset=replace(problem.preset, starts=1))
    every = [search(posed) for search in searches]
    sent = torch.stack([_sent(problem, one.pixels, one.labels) for one in every])  # (S, K, D)
    left = whitened_residual(sent, second)
    at = int(left.argmin())
    return at, prior is not None and _explains(problem, prior, sent[at], second)


def _explains(problem: Problem, prior: Tensor, sent: Tensor, second: Observation) -> bool:
    """Whether (K, D) gradients explain an observation better than those of the prior image."""
    # Under much noise the label is wrong, and an image that undoes a wrong label beats the prior
    # image under it without resembling anything: the prior image may choose its label.
    classes = torch.arange(problem.classes, device=prior.device)
    every = torch.stack([_sent(problem, prior[None], k[None]) for k in classes])
    residuals = whitened_residual(every, second)  # (C,)
    public = every[residuals.argmin()]
    gain = residuals.min() - whitened_residual(sent, second)
    # Given the first half, the gain is normal with twice the whitened distance of the two.
    deviation = 2 * torch.linalg.vector_norm(second.whiten(sent - public)) / second.noise_std
    return bool(gain > 2 * deviation)


PICTURE = 3  # dimensions: channels, height, width
_WORTH = 2.0  # times the distance that the search reached may be left
_WAYS = (0.5, 0.25)  # share of the way to the public image's brightness: the search knows some
_HELD = 0.1  # weight of the variation that stays
_CONTRASTS = (1.0, 0.85, 0.7, 0.5)
_NORMALISING = (nn.GroupNorm, nn.LayerNorm, nn.InstanceNorm2d, nn.LocalResponseNorm)


def normalises(model: nn.Module) -> bool:
    """Whether a network has a layer that normalises each record by itself.

    >>> normalises(nn.Sequential(nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8)))
    True
    >>> normalises(nn.InstanceNorm2d(3, track_running_stats=True).eval())
    False
    """
    return any(map(_by_itself, model.modules()))


def _by_itself(module: nn.Module) -> bool:
    """Whether a layer normalises by the record and not by running statistics, in evaluation."""
    running = getattr(module, "running_mean", None) is not None and not module.training
    return isinstance(module, _NORMALISING) and not running


def steadied(problem: Problem) -> Problem:
    """The same with a prior that stays, where a network normalises over places.

    Args:
        problem: any; only one picture without noise, and a preset that smooths colours and fades,
            is changed.
    """
    preset, seen = problem.preset, problem.observation
    alone = seen.records == 1 and len(problem.shape) == PICTURE and not seen.is_noisy
    fades = preset.colour and preset.fade is not None and preset.adam_steps > 0
    if not (alone and fades and normalises_places(problem.model)):
        return problem
    held = replace(preset, tv_weight=_HELD, fade=None, newton_steps=0)
    return replace(problem, preset=held)


def normalises_places(model: nn.Module) -> bool:
    """Whether a network has a layer that takes the mean over the places of a picture."""
    return any(map(_over_places, model.modules()))


def _over_places(module: nn.Module) -> bool:
    """Whether a layer takes the mean over the places of a picture."""
    if isinstance(module, nn.LayerNorm):
        return len(module.normalized_shape) > 1
    return _by_itself(module)


def anchored(problem: Problem, found: Found) -> Found:
    """What was found, with the brightness of the public image as far as the gradient allows.

    Args:
        problem: what was to be explained.
        found: the search's picture.

    Returns:
        The same where the network does not normalise, no public image is known, there is noise,
        which the prior of the search answers, or more than one record.
    """
    prior, seen = problem.prior_image, problem.observation
    alone = seen.records == 1 and len(problem.shape) == PICTURE and problem.preset.colour
    if prior is None or seen.is_noisy or not alone or not normalises(problem.model):
        return found
    mean, goal = found.pixels.mean(), prior.mean()
    reached = _left(problem, found.pixels, found.labels)
    for way in _WAYS:
        best, least = None, _WORTH * reached
        for contrast in _CONTRASTS:
            level = mean + way * (goal - mean)
            pixels = (level + contrast * (found.pixels - mean)).clamp(0, 1)
            left = _left(problem, pixels, found.labels)
            if left <= least:
                best, least = pixels, left
        if best is not None:
            return replace(found, pixels=best)
    return found


def _left(problem: Problem, pixels: Tensor, labels: Tensor) -> float:
    """The preset's distance of the gradient that a batch would have sent."""
    soft = nn.functional.one_hot(labels, problem.classes).to(pixels)
    with torch.no_grad():
        sent = gradients_of(problem, pixels[None], soft[None], together=False)
    return float(problem.preset.objective(sent, problem.observation)[0])


SPLIT = 0.5
"""a of the split: the first half keeps all but 1 dB of the observation."""

_DRAWS = 4000
_TRIED, _HOPELESS = 16, 0.01


def acceptance_power(
    observation: Observation,
    model: nn.Module,
    *,
    inputs: Tensor,
    label: int,
    prior_image: Tensor,
    classes: int,
    generator: torch.Generator,
    draws: int = _DRAWS,
) -> float:
    """Probability that the test keeps the true image and not the prior image.

    Args:
        observation: of one record; its gradient is not read, its noise is.
        model: network with logits (B, C) as output; its parameters are taken from `observation`.
        inputs: (*shape) the true record in normalised units.
        label: its class.
        prior_image: (*shape) what would replace it, under the label that suits it best.
        classes: number of classes C.
        generator: source of the draws.
        draws: how many; the standard error is at most 1 / (2 sqrt(draws)).

    Returns:
        A probability; 1 without noise, where the truth is always kept.
    """
    if not observation.is_noisy:
        return 1.0
    truth = _gradient_of(observation, model, inputs, label)
    others = _public(observation, model, prior_image, classes=classes)
    return _power(observation, truth, others, inputs.numel(), generator=generator, draws=draws)


def is_hopeless(
    problem: Problem, candidates: Candidates | None, generator: torch.Generator
) -> bool:
    """Whether the test would keep none of 16 public records with a probability above 1 %.

    A record that is drawn as they were then has no more but with probability 1 / 17, and what a
    search finds would be rejected, whatever it is.

    Args:
        problem: of one record; without noise or a prior image it is never hopeless.
        generator: source of the draws, and of which records are tried.
    """
    observation, model, prior = problem.observation, problem.model, problem.prior_image
    if prior is None or candidates is None or not observation.is_noisy:
        return False
    at = torch.randperm(len(candidates), generator=generator)[:_TRIED]
    others = _public(observation, model, problem.box.inputs(prior), classes=problem.classes)
    return all(
        _power(observation, truth, others, prior.numel(), generator=generator, draws=_DRAWS)
        <= _HOPELESS
        for some in sent_by(observation, model, candidates.at(at))
        for truth in some
    )


def _gradient_of(observation: Observation, model: nn.Module, x: Tensor, y: int) -> Tensor:
    """(K, D) what one record would have sent."""
    like = observation.gradient
    at = torch.tensor([y], device=like.device)
    return sent_gradients(observation, model, inputs=x[None].to(like), targets=at).detach()


def _public(observation: Observation, model: nn.Module, image: Tensor, *, classes: int) -> Tensor:
    """(C, K, D) what the prior image would have sent under each label."""
    return torch.stack([_gradient_of(observation, model, image, label) for label in range(classes)])


def _power(
    observation: Observation,
    truth: Tensor,
    others: Tensor,
    pixels: int,
    *,
    generator: torch.Generator,
    draws: int,
) -> float:
    """Share of draws in which the test keeps a record that would have sent `truth`."""
    rest = truth - others
    rows = (observation.whiten(rest) / observation.noise_std).flatten(1).double().cpu()
    products = rows @ rows.T  # (C, C) covariance of the noise along the differences
    values, vectors = torch.linalg.eigh(products)
    root = vectors * values.clamp_min(0).sqrt()
    first, second = (
        torch.randn(draws, len(others), generator=generator, dtype=torch.float64) @ root.T
        for _ in range(2)
    )
    squares = products.diagonal()
    # |o - s(x0, y)|^2 - |o - s(x)|^2 for each label y, of which the prior image takes the best.
    gain = (squares + 2 * first).amin(dim=1)
    scale = 1 + 1 / SPLIT**2
    halves = (squares + 2 * (first - second / SPLIT)) / scale
    held, at = halves.min(dim=1)
    deviation = 2 * (squares[at] / scale).sqrt()
    kept = (gain > 2 * pixels) | ((gain > 0) & (held > 2 * deviation))
    return float(kept.double().mean())


# How far a picture is trusted whose gradient rests on a prior: rehearsals with public records.
#
# Where an estimate rests on gradients that change slowly (`Drift`), its covariance is a guess, and
# no test of residuals holds. So the attack is rehearsed: a public record x takes the victim's
# place,
#
#     o = sum_t share_t grad_x(point_t) + a sample of what others leave + noise
#
# and is rebuilt as the victim's record is. With u = what came out and v = x, both less the public
# guess, the picture with the least expected error among guess + s u is that of
#
#     s = sum <u, v> / sum <u, u>,   between 0 and 1
#
# It is used if it would have left less than three quarters of the public guess's error, each s
# being taken from the other rehearsals. Otherwise the public guess stands.
#
# Shape letters: B records, M rehearsals.

REHEARSALS = 6
_STEPS = 300  # of a search: fewer only make the rehearsal a worse one
_GAINED = 0.75  # share of the public guess's error


def rehearsed_share(
    problem: Problem, candidates: Candidates | None, generator: torch.Generator, *, way: Search
) -> float:
    """How far to go from the public guess to what was found, in [0, 1]; 0 is the public guess.

    Args:
        problem: whose observation has a drift, and a prior image.
        candidates: public records; None where none are known, and then nothing is trusted.
        generator: of which records, and of noise.
        way: how a batch is found; labels of a rehearsal's problem are those of its records, which
            it reads anew unless the attacker knows them.
    """
    drift, prior = problem.observation.drift, problem.prior_image
    records = problem.observation.records
    if candidates is None or drift is None or prior is None or len(candidates) < records:
        return 0.0
    preset = problem.preset
    quick = replace(preset, starts=1, adam_steps=min(preset.adam_steps, _STEPS))
    pairs = []
    for number in range(REHEARSALS):
        chosen = candidates.at(torch.randperm(len(candidates), generator=generator)[:records])
        seen = _rehearsal(problem, chosen, number=number, generator=generator)
        labels = None if problem.labels is None else chosen.labels.to(problem.labels.device)
        found = way(replace(problem, observation=seen, preset=quick, labels=labels))
        truth = problem.box.pixels(chosen.inputs.to(problem.box.span))
        pairs.append(((found.pixels - prior).flatten(1), (truth - prior).flatten(1)))
    moments = torch.tensor([_moments(u, v) for u, v in pairs], dtype=torch.float64)  # (M, 3)
    left = moments.sum(dim=0) - moments
    shares = (left[:, 0] / left[:, 1].clamp_min(1e-300)).clamp(0, 1)
    errors = shares**2 * moments[:, 1] - 2 * shares * moments[:, 0] + moments[:, 2]
    if not float(errors.sum()) < _GAINED * float(moments[:, 2].sum()):
        return 0.0
    whole = moments.sum(dim=0)
    return float((whole[0] / whole[1].clamp_min(1e-300)).clamp(0, 1))


def _rehearsal(
    problem: Problem, chosen: Candidates, *, number: int, generator: torch.Generator
) -> Observation:
    """The observation that public records in the victim's place would have led to."""
    seen, drift = problem.observation, problem.observation.drift
    assert drift is not None  # noqa: S101 # the caller looked
    each = replace(
        seen,
        points=drift.points[:, None],
        gradient=seen.gradient.expand(len(drift.points), -1),
        covariance=torch.zeros(len(drift.points), len(drift.points), dtype=torch.float64),
        drift=None,
    )
    like = seen.gradient
    sent = sent_gradients(
        each, problem.model, inputs=chosen.inputs.to(like), targets=chosen.labels.to(like.device)
    ).detach()  # (T, D)
    noise = torch.randn(like.shape[1], generator=generator, dtype=like.dtype).to(like.device)
    total = like.new_tensor(drift.shares) @ sent + drift.others[number % len(drift.others)]
    return replace(seen, gradient=(total + drift.noise_std * noise)[None])


def _moments(found: Tensor, truth: Tensor) -> tuple[float, float, float]:
    """<u, v>, <u, u> and <v, v> of (B, P) rows, the found ones in the order that suits best."""
    from scipy.optimize import linear_sum_assignment

    _, order = linear_sum_assignment(torch.cdist(truth.double(), found.double()).cpu().numpy())
    found = found[torch.from_numpy(order).to(found.device)]
    return (float((found * truth).sum()), float(found.square().sum()), float(truth.square().sum()))
