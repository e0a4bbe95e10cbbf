"""How many images the proof lets any attack rebuild, beside how many were rebuilt.

    Hayes, Mahloujifar, Balle. Bounding Training Data Reconstruction in DP-SGD. NeurIPS 2023,
        arXiv:2302.07225.

    rebuilt(x, z)   MSE(x, z) <= threshold, fixed before anything is attacked
    k               sup over z of P(rebuilt(x, z)) for x from the public distribution
    bound           1 - f(k) = Phi(Phi^-1(k) + mu)

| symbol | name here | unit |
|---|---|---|
| mu | mu | standard deviations; of everything that the attack was given, and nothing else |
| k | prior_hit_rate | probability |
| f | trade-off curve of a mu-GDP release, `privacy.risk` | - |

The attack plants one record in one round and knows that it is there. The guarantee is that of this
round alone, without amplification by sampling: mu is that of the joint release for
add-or-remove-one, for a single message 1 / noise multiplier (`declared_mu`).

Formal guarantees:
- Images drawn independently from a distribution with hit rate k, each in a round of its own, are
  rebuilt with probability at most `bound`. If the mechanism is what it claims to be, `exceeded`
  happens with probability at most 1 - confidence, whatever the attack, and as much again for k.
- k is estimated and not proven: it is an upper limit for the best of some hundred guesses, not for
  the supremum. A better guess would raise the bound. Look at k before calling an exceedance a bug.
- Images picked by hand or by class are no independent draws; the bound is then as good as they are
  typical.
- Where B records are planted together, one draw of noise decides over all of them, and each meets B
  guesses. Then the first image of each batch alone is counted, chosen before anything is attacked,
  and guessing is right with probability at most min(1, B k).
- Of several attacks of one run each is tested at (1 - confidence) / tests, so that 1 - confidence
  is the probability of any false positive.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...privacy.accounting.risk import risk_of_mu
from ...privacy.errors import InputError, UnsupportedView, within
from ...privacy.guarantee import Status
from ...training.exposure.joint_sensitivities import joint_sensitivities
from ...training.tracing.trace import AlgorithmTrace
from ..interception.replay import ReplayedRun
from ..problem.observation import Observation

CONFIDENCE = 0.999
_NEARLY_ALL = 0.99


@dataclass(frozen=True, kw_only=True, slots=True)
class ReconstructionBound:
    """The proof's limit on rebuilt images, and what was rebuilt.

    Attributes:
        mu: Gaussian DP parameter of what the attack was given; may be infinite.
        threshold: largest MSE at which an image counts as rebuilt.
        prior_hit_rate: probability that the best guess without any message is rebuilt; of all
            guesses together where a batch brings several.
        bound: largest probability to rebuild an image.
        hits: images rebuilt, of batches their first.
        images: images attacked, of batches their first.
        confidence: level of `lower_limit`.
        lower_limit: one-sided Clopper-Pearson limit on the probability behind hits / images.
        guesses: reconstructions that each image meets.
        records: what is rebuilt, in a word.
        error: what is at most the threshold, in a word.

    Raises:
        ValueError: a number is out of range.
    """

    mu: float
    threshold: float
    prior_hit_rate: float
    bound: float
    hits: int
    images: int
    confidence: float
    lower_limit: float
    guesses: int = 1
    records: str = "images"
    error: str = "MSE"

    def __post_init__(self) -> None:
        within("mu", self.mu, "[0, inf]", "it counts standard deviations")
        within("threshold", self.threshold, "[0, inf)")
        if not 0 <= self.hits <= self.images or self.images < 1:
            raise InputError(
                f"hits={self.hits} must lie between 0 and images={self.images}, at least one image"
            )
        within("confidence", self.confidence, "(0, 1)", ".999 is usual")
        for name in ("prior_hit_rate", "bound", "lower_limit"):
            within(name, getattr(self, name), "[0, 1]")

    @property
    def exceeded(self) -> bool:
        """Whether more was rebuilt than the proof allows: a bug, in the proof or in the code."""
        return self.lower_limit > self.bound

    @property
    def can_be_exceeded(self) -> bool:
        """Whether so few images could exceed the bound at all, if every one were rebuilt."""
        return _lower_limit(self.images, self.images, self.confidence) > self.bound

    @property
    def allows_nearly_all(self) -> bool:
        """Whether the proof protects one in a hundred at most."""
        return self.bound >= _NEARLY_ALL

    def sentence(self) -> str:
        """What the bound says of the result, in a sentence or two."""
        what = (
            self.records
            if self.guesses == 1
            else f"first {self.records} of batches of {self.guesses}"
        )
        seen = (
            f"{self.hits} of {self.images} {what} were rebuilt or guessed "
            f"({self.error} at most {self.threshold:.3g})"
        )
        if self.mu == math.inf:
            return f"{seen}; nothing is proven of what the attack was given."
        proof = (
            f"the proof allows {self.bound:.1%} of {self.records} to be rebuilt from messages with "
            f"mu={self.mu:.3g}, if guessing rebuilds at most {self.prior_hit_rate:.2%}"
        )
        if self.exceeded:
            return (
                f"{seen}, that is at least {self.lower_limit:.1%} at "
                f"{100 * self.confidence:.6g}% confidence, and {proof}: a contradiction. The "
                "noise, the accounting or the estimate of guessing is wrong."
            )
        if self.allows_nearly_all:
            return f"{seen}; {proof}: it protects hardly any of them."
        if not self.can_be_exceeded:
            return f"{seen}; {proof}. So few {self.records} could not contradict it."
        return f"{seen}; {proof}: no contradiction."


def reconstruction_bound(
    *,
    mu: float,
    threshold: float,
    hits: int,
    images: int,
    prior_hit_rate: float,
    confidence: float = CONFIDENCE,
    guesses: int = 1,
    tests: int = 1,
) -> ReconstructionBound:
    """Set what was rebuilt against what the proof allows.

    Args:
        mu: Gaussian DP parameter of everything that the attack was given, add-or-remove-one, for
            the attacked rounds alone and a record that is surely in the batch; may be infinite.
        threshold: largest MSE of a rebuilt image, fixed in advance: `rebuilt_threshold`.
        hits: images with at most that MSE: `count_rebuilt`.
        images: images attacked, each in a round of its own; of batches their first alone.
        prior_hit_rate: `prior_hit_rate` of one guess at the same threshold.
        confidence: that none of all tests gives a false positive.
        guesses: how many reconstructions each image meets: the size of a batch.
        tests: how many bounds are looked at together, of which each may raise an alarm.

    Returns:
        The bound 1 - f(prior_hit_rate) and whether it is exceeded.

    Raises:
        ValueError: a number is out of range.

    Source: Hayes et al. 2023, Theorem 2, for the trade-off curve of a Gaussian mechanism.
    """
    for name, value in (("guesses", guesses), ("tests", tests)):
        within(name, value, "[1, inf)")
    within("prior_hit_rate", prior_hit_rate, "[0, 1]")
    guessed = min(1.0, guesses * prior_hit_rate)
    level = 1 - (1 - confidence) / tests
    return ReconstructionBound(
        mu=mu,
        threshold=threshold,
        prior_hit_rate=guessed,
        bound=risk_of_mu(mu, prior_hit_rate=guessed).reconstruction,
        hits=hits,
        images=images,
        confidence=level,
        lower_limit=_lower_limit(hits, images, level),
        guesses=guesses,
    )


def declared_mu(observation: Observation) -> float:
    """Gaussian DP parameter of an observation, if its noise is as declared.

    Args:
        observation: its clip, noise and number of records are read, never its gradient.

    Returns:
        C / B sqrt(sum |S^-1|) for clip norm C, B records and the covariance S of the intercepts:
        an upper bound over all vectors of norm C, one for each intercept; exact where the noises
        are independent. Where the mean is clipped, 2 C in place of C / B, as one record may turn
        it round. Infinite where nothing is clipped or there is no noise.
    """
    if observation.clip_norm is None or not observation.is_noisy:
        return math.inf
    precision = torch.linalg.inv(observation.covariance.double())
    if observation.mean_of is None:
        shift = observation.clip_norm / observation.records
    else:
        shift = 2 * observation.clip_norm
    return shift * math.sqrt(float(precision.abs().sum()))


def count_rebuilt(errors: Sequence[float], *, threshold: float, batch: int = 1) -> int:
    """How many of these MSEs count as rebuilt, of every batch the first alone.

    Args:
        errors: MSE of each image, batch after batch.
        threshold: largest MSE of a rebuilt image.
        batch: how many images were planted at once; the last batch may hold fewer.
    """
    return sum(error <= threshold for error in errors[::batch])


def _lower_limit(hits: int, images: int, confidence: float) -> float:
    from scipy.stats import beta

    return 0.0 if hits == 0 else float(beta.ppf(1 - confidence, hits, images - hits + 1))


def proven_mu(trial: ReplayedRun, traces: AlgorithmTrace) -> float:
    """Mu of Gaussian differential privacy of the attacked rounds, for one record of the victim.

    The planted records take part in these rounds alone, and surely, so their mu is that of the
    closed views of these rounds, without amplification by sampling. The record that is planted is
    one more than an empty batch: add-or-remove-one.

    Args:
        trial: the attacked rounds, at the noise of the run.
        traces: as `trace_of` makes them from the trial.

    Returns:
        mu; infinite where nothing is proven: the view leaks, the figure is heuristic, or the
        adversary has no closed view.
    """
    parsed = trial.parsed_adversary()
    # Its messages alone are others, and the closed view of who follows holds them whatever they
    # are: docs/threat-model.md says for which algorithms.
    who = f"neighbour:{trial.model_owner}" if parsed.deviates else parsed.name
    try:
        ((_, found),) = joint_sensitivities(traces, [who], sampling_rate=1.0, victim=trial.victim)
    except UnsupportedView:
        return math.inf
    if found.status is not Status.PROVEN:
        return math.inf
    noise = traces.noise_multiplier or 1.0  # without noise every figure is infinite or 0
    attacked = range(trial.round, trial.round + trial.together)
    squares = [
        (release.joint_sensitivity / noise) ** 2
        for number in attacked
        for release in found.releases
        if release.first <= number < release.first + release.rounds
    ]
    return math.sqrt(sum(squares))


# How often a guess without any message counts as a rebuilt image, by public images alone.

SHARE = 0.25
NEAR = 0.05
_ASKED = 2000
_REACHES = (4.0, 2.0, 1.0, 1.0)  # in thresholds; images 4 apart may share a guess between them


def rebuilt_threshold(public_images: Tensor, blind: Tensor, *, share: float = SHARE) -> float:
    """The MSE at which an image counts as rebuilt, from public images alone.

    Args:
        public_images: (N, *shape) in [0, 1], none of them attacked.
        blind: (*shape) blind guess.
        share: of the blind guess's mean MSE; 1/4 is 6 dB better than guessing.

    Returns:
        share times the mean MSE of the blind guess over the public images.

    Raises:
        ValueError: there is no image, or a shape or the share is out of range.

    >>> images = torch.stack([torch.zeros(1, 4, 4), torch.ones(1, 4, 4)])
    >>> rebuilt_threshold(images, images.mean(dim=0))
    0.0625
    """
    _check(public_images, blind)
    within("share", share, "(0, 1)", "at 1 the blind guess itself counts")
    return share * float((public_images - blind).double().square().mean())


def near_threshold(public_images: Tensor, *, share: float = NEAR) -> float:
    """The MSE below which a single image is no guess, from public images alone.

    Args:
        share: of the images that have another image this near.

    Returns:
        The quantile, over at most 2,000 images, of the MSE to the nearest other one; 0 where there
        are fewer than 20 images.

    >>> images = torch.arange(41.0).reshape(41, 1, 1, 1) / 40  # 1/40 apart
    >>> round(near_threshold(images) * 1600, 3)
    1.0
    """
    rows = public_images.reshape(len(public_images), -1).double()
    if len(rows) * share < 1:
        return 0.0
    asked = rows[:: -(-len(rows) // _ASKED)]
    far = _errors(asked, rows)
    far[torch.arange(len(asked)), torch.arange(0, len(rows), -(-len(rows) // _ASKED))] = torch.inf
    return float(far.amin(dim=1).quantile(share, interpolation="lower"))


def prior_hit_rate(
    public_images: Tensor,
    blind: Tensor,
    *,
    threshold: float,
    guesses: int = 200,
    confidence: float = CONFIDENCE,
) -> float:
    """Upper limit on how often the best of many guesses is right without any message.

    Guesses are made from one public image in four and judged on the rest: the blind guess, public
    images themselves, and each of these drawn to the mean of the images around it, several times
    over (mean shift with a flat kernel that narrows to the threshold: it climbs to dense places).

    Args:
        public_images: (N, *shape) in [0, 1], in the order that they were drawn in, none attacked.
        guesses: how many public images to start from, at most.
        confidence: that no guess is right more often than the result says.

    Returns:
        Largest Clopper-Pearson upper limit over the guesses, each at a level that makes them hold
        together. Few public images give a large one: 1.8 % from 1,000 at least.

    Raises:
        ValueError: there are fewer than 4 images, or a number is out of range.

    >>> images = torch.rand(1000, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    >>> round(prior_hit_rate(images, images.mean(dim=0), threshold=0.01), 4)  # never right
    0.0176
    """
    from scipy.stats import beta

    _check(public_images, blind)
    if len(public_images) < 4 or guesses < 1 or not threshold >= 0 or not 0 < confidence < 1:
        raise InputError(
            f"{len(public_images)} public images must be at least 4, guesses={guesses} at least 1, "
            f"threshold={threshold} at least 0 and confidence={confidence} in (0, 1)"
        )
    rows = public_images.reshape(len(public_images), -1).double()
    judging = torch.arange(len(rows)) % 4 != 0
    known, judges = rows[~judging], rows[judging]
    step = -(-len(known) // guesses)
    tried = [torch.cat([blind.reshape(1, -1).double(), known[::step]])]
    for reach in _REACHES:
        inside = (_errors(tried[-1], known) <= reach * threshold).double()
        counts = inside.sum(dim=1, keepdim=True)
        tried.append(torch.where(counts > 0, inside @ known / counts.clamp_min(1), tried[-1]))
    every = torch.cat(tried)
    most = int((_errors(every, judges) <= threshold).sum(dim=1).max())
    if most == len(judges):
        return 1.0
    risk = (1 - confidence) / len(every)
    return float(beta.isf(risk, most + 1, len(judges) - most))


def _errors(guesses: Tensor, images: Tensor) -> Tensor:
    """(G, N) mean squared errors."""
    return torch.cdist(guesses, images).square() / images.shape[1]


def _check(public_images: Tensor, blind: Tensor) -> None:
    if len(public_images) == 0 or public_images.shape[1:] != blind.shape:
        raise InputError(
            f"public_images of shape {tuple(public_images.shape)} must hold at least one image of "
            f"the blind guess's shape {tuple(blind.shape)}"
        )
    for name, value in (("public_images", public_images), ("blind", blind)):
        if not (value.min() >= -1e-5 and value.max() <= 1 + 1e-5):
            raise InputError(
                f"{name} spans [{value.min().item():.4g}, {value.max().item():.4g}] and must lie "
                "in [0, 1]; undo the normalisation (Dataset.pixels) and clamp"
            )


# How often the proof lets any ranking put the victim's record first, beside how often it was.
#
# The record is one of k with equal probability, so a guess is right with probability 1 / k, exactly
# known here, and `reconstruction_bound` gives Phi(Phi^-1(1 / k) + mu) for whatever is mu-GDP.


@dataclass(frozen=True, kw_only=True, slots=True)
class LineupBound:
    """First places in lineups of one size, and the proof's limit on them.

    Attributes:
        size: records in a lineup, k.
        ranks: of the victims' records, 1 for the first.
        limit: first places as successes, with 1 / k as the probability of a guess.
    """

    size: int
    ranks: tuple[int, ...]
    limit: ReconstructionBound

    def sentence(self) -> str:
        """First places beside the bound, in a sentence."""
        limit = self.limit
        seen = f"{limit.hits} of {limit.images} records rank first among {self.size:,}"
        if limit.mu == math.inf:
            return f"{seen} (nothing is proven)."
        said = f"{seen} (guessing {1 / self.size:.3g}, the proof allows {limit.bound:.1%}"
        if not limit.exceeded:
            return f"{said}{', nearly all' if limit.allows_nearly_all else ''})."
        return (
            f"{said}), that is at least {limit.lower_limit:.1%} at "
            f"{100 * limit.confidence:.6g}% confidence: a contradiction. The noise or the "
            "accounting is wrong."
        )


def lineup_bound(
    *, mu: float, size: int, ranks: Sequence[int], confidence: float = CONFIDENCE, tests: int = 1
) -> LineupBound:
    """Set first places against what the proof allows.

    Args:
        mu: as of `reconstruction_bound`; may be infinite.
        size: records in a lineup, at least 2.
        ranks: of the victims' records, at least one.
        tests: how many bounds are looked at together.

    Raises:
        ValueError: a number is out of range.

    Source: Hayes et al. 2023, Theorem 2, with a prior of 1 / size.

    >>> found = lineup_bound(mu=0.67, size=100, ranks=[3, 1, 57, 20])
    >>> round(found.limit.bound, 3), found.limit.exceeded
    (0.049, False)
    """
    within("size", size, "[2, inf)", ": a lineup of one has no others")
    if not all(1 <= rank <= size for rank in ranks):
        raise InputError(f"ranks={list(ranks)} must lie between 1 and size={size}")
    limit = reconstruction_bound(
        mu=mu,
        threshold=0.0,
        hits=sum(rank == 1 for rank in ranks),
        images=len(ranks),
        prior_hit_rate=1 / size,
        confidence=confidence,
        tests=tests,
    )
    return LineupBound(size=size, ranks=tuple(ranks), limit=limit)
