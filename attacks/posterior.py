"""The posterior over public records given noisy gradients: the best estimate of a record's picture.

    Hayes, Mahloujifar, Balle. Bounding Training Data Reconstruction in DP-SGD. NeurIPS 2023,
        arXiv:2302.07225 (the prior-aware attack).

    w_i  proportional to  exp(-d_i / 2)        d_i = |S^-1/2 (clip(grad(x_i, y_i)) - o)|^2
    P(label c | o) = sum of w_i over y_i = c   picture = sum of w_i^(1/T) x_i, normalised

| symbol | name here | shape |
|---|---|---|
| o, S | observation | (K, D), (K, K) |
| x_i, y_i | candidates | (N, *shape), (N,) |
| d | distances | (N,) |
| w | weights | (N,) |
| T | temperature | at least 1 |

Where we differ from the paper: there the record is among the candidates. Here it is not, so that
the posterior of a strong signal settles on a single neighbour, and a mean over several would be
closer. T is the temperature at which candidates that are held out, each under noise of its own, are
rebuilt best from the others. Each candidate has its own public label, where one is known: trying
all labels for each rebuilds worse, as most pairs of a picture and a label do not occur. Where none
is known, the record is a candidate under every label, each as likely as the others beforehand.

Shape letters: N candidates, H held out, K intercepts, D parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from ..privacy.errors import InputError, describe, line_of
from .problem.observation import Observation, each, sent_gradients
from .problem.problem import Found, Problem, gradients_of, is_faster_together

# Public records that an attacker weighs, and how far each is from what was observed.
#
# Shape letters: N candidates, K intercepts, D parameters.

MOST = 2000
_NUMBERS = 4_000_000_000  # gradient entries that one observation may cost
_AT_ONCE = 8_000_000  # gradient entries in memory
_FEWEST = 50


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Candidates:
    """Public records with their labels.

    Attributes:
        inputs: (N, *shape) in normalised units.
        labels: (N,) class indices.
        records: (N,) which record a candidate is, where some are one record under several labels,
            which share its probability; None where each is a record of its own.

    Raises:
        ValueError: there is none, or not one label for each.
    """

    inputs: Tensor
    labels: Tensor
    records: Tensor | None = None

    def __post_init__(self) -> None:
        if len(self.inputs) == 0 or self.labels.shape != (len(self.inputs),):
            raise InputError(
                f"inputs of shape {tuple(self.inputs.shape)} and labels of shape "
                f"{tuple(self.labels.shape)} must be (N, *shape) and (N,), N at least 1"
            )

    def __len__(self) -> int:
        """N."""
        return len(self.inputs)

    def at(self, chosen: Tensor) -> Candidates:
        """Some of them, by index."""
        records = None if self.records is None else self.records[chosen]
        return Candidates(inputs=self.inputs[chosen], labels=self.labels[chosen], records=records)

    def after(self, first: Candidates) -> Candidates:
        """Those records, then these."""
        records = None
        if first.records is not None or self.records is not None:
            before, these = first.numbers, self.numbers
            records = torch.cat([before, these + int(before.max()) + 1])
        return Candidates(
            inputs=torch.cat([first.inputs, self.inputs]),
            labels=torch.cat([first.labels, self.labels]),
            records=records,
        )

    @property
    def numbers(self) -> Tensor:
        """(N,) which record each is."""
        return torch.arange(len(self)) if self.records is None else self.records

    @property
    def log_priors(self) -> Tensor:
        """(N,) logarithms of probabilities beforehand, of each record's labels 1 in all."""
        counts = self.numbers.unique(return_inverse=True, return_counts=True)
        return -counts[2][counts[1]].double().log()

    def affordable(self, observation: Observation) -> Candidates:
        """The first of them, as many as are weighed in bounded time: at most 2,000."""
        each = max(observation.gradient.numel() * observation.points.shape[1], 1)
        return self.at(torch.arange(min(len(self), MOST, max(_NUMBERS // each, _FEWEST))))


def sent_by(observation: Observation, model: nn.Module, candidates: Candidates) -> Iterator[Tensor]:
    """(n, K, D) what each candidate alone would have sent, clipped; a few at a time."""

    def one(x: Tensor, y: Tensor) -> Tensor:
        return sent_gradients(observation, model, inputs=x[None], targets=y[None])

    count = max(1, min(256, _AT_ONCE // max(observation.gradient.numel(), 1)))
    like = observation.gradient
    for at in torch.arange(len(candidates)).split(count):
        some = candidates.at(at)
        yield each(one, some.inputs.to(like), some.labels.to(like.device)).detach()


def distances(observation: Observation, model: nn.Module, candidates: Candidates) -> Tensor:
    """(N,) squared distances of what candidates would have sent from what was observed.

    Args:
        observation: of one record.
        model: network with logits (B, C) as output; its parameters are taken from `observation`.

    Returns:
        r' S^-1 r summed over coordinates, r being the (K, D) difference and S the covariance of the
        noise: minus twice the log-likelihood, up to a constant. Without noise the squared L2
        distance.

    Raises:
        ValueError: the observation is of several records.
    """
    check_single(observation)
    return torch.cat(
        [
            squared(sent - observation.gradient, observation)
            for sent in sent_by(observation, model, candidates)
        ]
    )


def check_single(observation: Observation) -> None:
    """Refuse observations of several records."""
    if observation.records != 1:
        raise InputError(
            f"records={observation.records} must be 1: candidates are weighed one at a time"
        )


def squared(rest: Tensor, observation: Observation) -> Tensor:
    """(n,) r' S^-1 r summed over coordinates, of (n, K, D)."""
    weighed = precision(observation).to(rest) @ rest
    return (rest * weighed).sum(dim=(1, 2), dtype=torch.float64)


def precision(observation: Observation) -> Tensor:
    """(K, K) inverse covariance of the noise; the unit matrix where there is none."""
    at = observation.gradient.device
    if not observation.is_noisy:
        return torch.eye(len(observation.gradient), dtype=torch.float64, device=at)
    return torch.linalg.inv(observation.covariance.double()).to(at)


_HELD_OUT = 64
_FEWEST_POSTERIOR = 4
_TEMPERATURES = (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 32.0, 64.0)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Posterior:
    """What candidates say of the observed record.

    Attributes:
        distances: (N,) as `distances` returns them.
        weights: (N,) posterior probabilities of the candidates.
        labels: (C,) posterior probabilities of the labels.
        temperature: of the picture.
        picture: (*shape) posterior mean in normalised units.
        evidence: logarithm of the mean of exp(-distance / 2) over the candidates.
    """

    distances: Tensor
    weights: Tensor
    labels: Tensor
    temperature: float
    picture: Tensor
    evidence: float


def weigh(
    observation: Observation,
    model: nn.Module,
    candidates: Candidates,
    *,
    classes: int,
    generator: torch.Generator,
) -> Posterior:
    """The posterior over candidates, whose records are all equally likely beforehand.

    Args:
        candidates: public records; at most 2,000 are weighed.
        classes: number of classes C.
        generator: source of the noise on candidates that are held out.

    Returns:
        The posterior. Without noise the nearest candidate has all weight; several that are equally
        near share it.

    Raises:
        ValueError: the observation is of several records.
    """
    check_single(observation)
    candidates = candidates.affordable(observation)
    held = _held_out(observation, model, candidates, generator)
    # One pass over the candidates' gradients: they cost far more than all else.
    found, inner, own = list[Tensor](), list[Tensor](), list[Tensor]()
    less = -2 * candidates.log_priors.to(observation.gradient.device)
    for sent in sent_by(observation, model, candidates):
        found.append(squared(sent - observation.gradient, observation))
        if held is not None:
            inner.append(held @ sent.flatten(1).T)
            own.append(squared(sent, observation))
    far, noisy = torch.cat(found), observation.is_noisy
    inputs, numbers = candidates.inputs.to(far), candidates.numbers.to(far.device)
    temperature, all_told = 1.0, far + less
    if held is not None:
        others = torch.cat(own)[None] - 2 * torch.cat(inner, dim=1).double() + less  # (H, N)
        # Nobody is rebuilt from itself, under whatever label.
        others = others.masked_fill(numbers[: len(held), None] == numbers, torch.inf)
        temperature = _temperature(others, inputs.flatten(1))
    weights = _weights(all_told[None], noisy=noisy, temperature=1.0)[0]
    tempered = _weights(all_told[None], noisy=noisy, temperature=temperature)[0]
    labels = far.new_zeros(classes)
    labels.index_add_(0, candidates.labels.to(far.device), weights)
    picture = (tempered @ inputs.flatten(1)).reshape(inputs.shape[1:])
    evidence = (all_told / -2).logsumexp(dim=0) - (less / -2).logsumexp(dim=0)
    return Posterior(
        distances=far, weights=weights, labels=labels, temperature=temperature, picture=picture,
        evidence=float(evidence),
    )  # fmt: skip


def _weights(far: Tensor, *, noisy: bool, temperature: float) -> Tensor:
    """(H, N) probabilities by (H, N) squared distances."""
    if noisy:
        return (far / (-2 * temperature)).softmax(dim=1)
    nearest = (far == far.amin(dim=1, keepdim=True)).to(far)
    return nearest / nearest.sum(dim=1, keepdim=True)


def _held_out(
    observation: Observation, model: nn.Module, candidates: Candidates, generator: torch.Generator
) -> Tensor | None:
    """(H, K D) S^-1 o of the first candidates, each under noise of its own; None without noise."""
    count = min(_HELD_OUT, len(candidates) // 4)
    if not observation.is_noisy or count < _FEWEST_POSTERIOR:
        return None
    sent = torch.cat(list(sent_by(observation, model, candidates.at(torch.arange(count)))))
    noise = torch.randn(sent.shape, generator=generator, dtype=sent.dtype).to(sent)
    noise = torch.linalg.cholesky(observation.covariance.double()).to(sent) @ noise
    return (precision(observation).to(sent) @ (sent + noise)).flatten(1)


def _temperature(far: Tensor, inputs: Tensor) -> float:
    """The temperature at which the first H of the (N, n) inputs are rebuilt best from the others.

    The (H, N) squared distances are infinite from each to itself.
    """
    held = inputs[: len(far)]
    errors = torch.stack(
        [
            (_weights(far, noisy=True, temperature=t) @ inputs - held).square().mean()
            for t in _TEMPERATURES
        ]
    )
    return _TEMPERATURES[int(errors.argmin())]


# The picture that a denoiser of the user's and a noisy gradient agree on.
#
#     Romano, Elad, Milanfar. The Little Engine that Could: Regularization by Denoising (RED). SIAM
#         J. Imaging Sciences 2017, arXiv:1611.02862 (the gradient of the prior).
#     Zhang, Li, Zuo, Zhang, Van Gool, Timofte. Plug-and-Play Image Restoration with Deep Denoiser
#         Prior. IEEE TPAMI 2022, arXiv:2008.13751 (noise levels that fall on the way).
#
#     x <- x - step (J' S^-1 (clip(grad(x, y)) - o) + (x - D(x, s)) / s^2),   s falling
#
# | symbol | name here | shape |
# |---|---|---|
# | o, S | observation | (K, D), (K, K) |
# | D | denoiser | (B, *shape), s -> (B, *shape) |
# | s | noise_std | pixels |
# | x, y | pixels, label | (*shape), a class |
#
# D(x, s) is the mean of what a picture was, seen under noise of deviation s; by Tweedie's formula
# (D(x, s) - x) / s^2 is the slope of the logarithm of how probable x is under that noise. So x
# climbs the posterior of the record, at first of a blurred prior and at last of a sharp one.
#
# Where we differ from the papers: the likelihood is that of the clipped gradient, which is not
# linear in the picture. Each likely label has a picture of its own, and the result is their mean by
# the labels' probabilities: under much noise the mean of the posterior is nearer than its mode.
#
# Shape letters: S labels that are tried, C classes.

Denoiser = Callable[[Tensor, float], Tensor]
"""f(pixels (B, *shape) on the unit box, noise_std) -> (B, *shape): what they were without noise."""

_STEPS = 300
_FIRST, _LAST = 1.0, 0.03
_RATE = 0.05
_MOST_LABELS, _LIKELY = 5, 0.02
_MOST_CLASSES = 20
_FAR = 10.0  # times the largest of what a denoiser is given, or of the box: what it returns is less


def denoised(
    problem: Problem, *, denoiser: Denoiser, labels: Tensor | None, given: bool = False
) -> Found:
    """The record that denoiser and observation agree on.

    Args:
        problem: of one record under noise.
        denoiser: of the user's, on the unit box.
        labels: (C,) probabilities of the labels; where None every class of at most 20 is tried, or
            else the label that the problem was posed with.
        given: whether that label is known, and no other is tried.

    Returns:
        The picture and the likeliest label.

    Raises:
        ValueError: the denoiser raises, or returns what are no pictures.
    """
    # All labels at once, in float32, from the prior image or a grey one.
    home, dtype = problem.box.span.device, problem.box.span.dtype
    tried, weights = _labels(problem, labels, given=given)
    steps = replace(problem, labels=tried[:1]).to(device=problem.device, dtype=torch.float32)
    soft = nn.functional.one_hot(tried, problem.classes).to(steps.box.span)[:, None]  # (S, 1, C)
    start = steps.prior_image
    if start is None:
        start = torch.full(problem.shape, 0.5).to(steps.box.span)
    pixels = start.expand(len(tried), 1, *problem.shape).clone()
    together = is_faster_together(steps, pixels, soft)
    moved = pixels.requires_grad_()
    adam = torch.optim.Adam([moved], lr=_RATE, betas=(0.9, 0.99))
    # Steps along the likelihood and the denoiser, whose noise falls geometrically.
    for step in range(_STEPS):
        part = step / (_STEPS - 1)
        noise_std = _FIRST * (_LAST / _FIRST) ** part
        adam.param_groups[0]["lr"] = _RATE * (1 - 0.9 * part)
        sent = gradients_of(steps, moved, soft, together=together)
        far = squared(sent - steps.observation.gradient, steps.observation)
        (slope,) = torch.autograd.grad(far.sum() / 2, moved)
        with torch.no_grad():
            clean = _clean(denoiser, moved[:, 0], noise_std)[:, None]
            moved.grad = slope + (moved - clean) / noise_std**2
        adam.step()
    # The mean picture under the posterior of the labels.
    with torch.no_grad():
        sent = gradients_of(steps, moved, soft, together=together)
        far = squared(sent - steps.observation.gradient, steps.observation)
        if weights is None:
            weights = (far / -2).softmax(dim=0)
        weights = weights.to(moved)
        picture = (weights[:, None, None] * moved.flatten(1)[:, None]).sum(dim=0)
    best = tried[int(weights.argmax())].to(home)
    return Found(
        pixels=picture.reshape(1, *problem.shape).clamp(0, 1).to(home, dtype).detach(),
        labels=best[None],
        iterations=_STEPS,
        stage="denoiser",
    )


def _clean(denoiser: Denoiser, pixels: Tensor, noise_std: float) -> Tensor:
    """What a denoiser of the user's makes of pictures.

    Raises:
        ValueError: it raises, or returns what are no pictures of that shape.
    """
    try:
        clean = denoiser(pixels.clone(), noise_std)
    except (Exception, SystemExit) as error:  # the user's own code
        raise InputError(
            f"the denoiser raised {describe(error)}{line_of(error)}; it is called as f(pixels of "
            f"shape {tuple(pixels.shape)}, noise_std={noise_std:.3g})"
        ) from error
    # Finite pictures of the same shape on the unit box, up to what a denoiser may overshoot.
    if not isinstance(clean, Tensor) or clean.shape != pixels.shape:
        shape = tuple(clean.shape) if isinstance(clean, Tensor) else type(clean).__name__
        raise InputError(
            f"the denoiser returned {shape}, must be a tensor of shape {tuple(pixels.shape)}"
        )
    if not clean.is_floating_point() or clean.layout != torch.strided:
        raise InputError(
            f"the denoiser returned a tensor of {clean.dtype}, {clean.layout}, must be a dense one "
            "of floating point: pictures on the unit box"
        )
    if not bool(torch.isfinite(clean).all()):
        raise InputError(
            f"the denoiser returned values that are not finite at noise_std={noise_std:.3g}"
        )
    largest, most = float(clean.abs().max()), _FAR * max(1.0, float(pixels.abs().max()))
    if largest > most:
        raise InputError(
            f"the denoiser returned values up to {largest:.3g} at noise_std={noise_std:.3g}, must "
            f"be at most {most:.3g}: pictures are on the unit box, from 0 to 1 and not to 255"
        )
    return clean.detach().to(pixels)


def _labels(
    problem: Problem, labels: Tensor | None, *, given: bool
) -> tuple[Tensor, Tensor | None]:
    """(S,) labels to try, and their probabilities where these are known."""
    if labels is not None and not given:
        order = labels.argsort(descending=True)[:_MOST_LABELS]
        order = order[labels[order] >= min(_LIKELY, float(labels.max()))]
        return order.cpu(), (labels[order] / labels[order].sum()).cpu()
    if problem.labels is not None and (given or problem.classes > _MOST_CLASSES):
        return problem.labels.cpu(), torch.ones(1)
    return torch.arange(problem.classes), None


# A lineup: the victim's record among others that were drawn like it, ranked by what was observed.
#
# The record is a random one of a public pool, and so are the others of its lineup: given the
# lineup, each of its k records is the victim's with probability 1 / k, and the ranking does not
# know which. Whatever is released with mu-GDP, no ranking puts the victim's first with more than
# the probability that `reconstruction_bound` gives for a prior of 1 / k.

SIZES = (10, 100, 1000)


def sizes_for(pool: int) -> tuple[int, ...]:
    """The sizes of lineups that a pool of so many records, the victim's among them, allows.

    >>> sizes_for(250)
    (10, 100)
    """
    return tuple(size for size in SIZES if size <= pool)


def ranks(
    observation: Observation,
    model: nn.Module,
    *,
    pool: Candidates,
    victim: int,
    generator: torch.Generator,
) -> Mapping[int, int]:
    """Rank of the victim's record in a lineup of each size, 1 for the first.

    Args:
        pool: records drawn at random from public ones.
        victim: index of the victim's record in the pool; itself a random one.
        generator: draws the others of each lineup and decides between equal distances.

    Returns:
        size -> rank, for each size that the pool allows.

    Raises:
        ValueError: the observation is of several records.
    """
    others = torch.randperm(len(pool), generator=generator)
    others = others[others != victim]
    sizes = sizes_for(len(pool))
    if not sizes:
        return {}
    order = torch.cat([torch.tensor([victim]), others[: max(sizes) - 1]])
    far = distances(observation, model, pool.at(order)).cpu()
    return {size: _rank(far[:size], generator) for size in sizes}


def _rank(far: Tensor, generator: torch.Generator) -> int:
    """Rank of the first by distance, a random one of those that share it."""
    before, equal = int((far < far[0]).sum()), int((far == far[0]).sum())
    return 1 + before + int(torch.randint(equal, (1,), generator=generator))
