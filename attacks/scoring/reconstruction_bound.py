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

from ...privacy._validate import within
from ...privacy.accounting.risk import risk_of_mu
from ...privacy.errors import InputError
from ...privacy.guarantee import Status
from ...privacy.view.view import UnsupportedView
from ...training.exposure.joint_sensitivities import joint_sensitivities
from ...training.tracing.trace import AlgorithmTrace
from ..interception.replay import Trial
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
            f"{self.hits} of {self.images} {what} were rebuilt "
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

    >>> found = reconstruction_bound(
    ...     mu=1.0, threshold=0.015, hits=2, images=8, prior_hit_rate=0.02
    ... )
    >>> round(found.bound, 4), found.exceeded, found.can_be_exceeded
    (0.146, False, True)
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

    >>> seen = Observation.single(
    ...     gradient=torch.zeros(3), model=torch.zeros(3), noise_std=0.5, clip_norm=1.0,
    ...     records=1,
    ... )
    >>> declared_mu(seen)
    2.0
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

    >>> count_rebuilt([0.01, 0.015, 0.2], threshold=0.015)
    2
    >>> count_rebuilt([0.01, 0.015, 0.2], threshold=0.015, batch=2)
    1
    """
    return sum(error <= threshold for error in errors[::batch])


def _lower_limit(hits: int, images: int, confidence: float) -> float:
    from scipy.stats import beta

    return 0.0 if hits == 0 else float(beta.ppf(1 - confidence, hits, images - hits + 1))


def proven_mu(trial: Trial, traces: AlgorithmTrace) -> float:
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
