import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import binom, norm
from torch import Tensor, nn

from overhear.attacks.problem.observation import Observation, sent_gradients
from overhear.attacks.scoring.reconstruction_bound import (
    ReconstructionBound,
    count_rebuilt,
    declared_mu,
    lineup_bound,
    reconstruction_bound,
)
from overhear.training.models.parameters import flatten


def _bound(**changes: Any) -> ReconstructionBound:
    given: dict[str, Any] = {
        "mu": 1.0, "threshold": 0.01, "hits": 0, "images": 8, "prior_hit_rate": 0.02,
    }  # fmt: skip
    return reconstruction_bound(**(given | changes))


def _rebuilt_by_likelihood(*, mu: float, count: int, trials: int) -> int:
    """Hits of the best guess at one of `count` orthonormal records with noise of 1 / mu."""
    generator = np.random.default_rng(count)
    release = generator.normal(scale=1 / mu, size=(trials, count))
    release[:, 0] += 1.0  # which of them was sent makes no difference
    return int((release.argmax(axis=1) == 0).sum())


def test_a_release_that_says_nothing_leaves_the_rate_of_guessing():
    assert _bound(mu=0.0, prior_hit_rate=0.03).bound == pytest.approx(0.03)


def test_the_bound_is_that_of_two_gaussians():
    found = _bound(mu=1.5, prior_hit_rate=0.02).bound
    assert found == pytest.approx(float(norm.cdf(norm.ppf(0.02) + 1.5)))


def test_an_infinite_mu_bounds_nothing():
    found = _bound(mu=math.inf, prior_hit_rate=0.0, hits=8)
    assert (found.bound, found.exceeded, found.can_be_exceeded) == (1.0, False, False)
    assert found.sentence().endswith("nothing is proven of what the attack was given.")


@pytest.mark.parametrize("mu", [0.5, 1.0, 2.0, 4.0])
@pytest.mark.parametrize("count", [2, 10, 100])
def test_the_best_attack_on_a_finite_set_stays_below_the_bound(mu, count):
    # n = 10,000; each of the 12 alarms falsely with a probability of at most .001.
    hits = _rebuilt_by_likelihood(mu=mu, count=count, trials=10_000)
    assert not _bound(mu=mu, hits=hits, images=10_000, prior_hit_rate=1 / count).exceeded


def test_the_best_attack_on_opposite_records_reaches_the_bound():
    # n = 100,000 records +u or -u of norm 1: the likeliest sign is right with probability Phi(mu).
    # A bound lower by .01 would be exceeded: 8 standard deviations.
    noise = np.random.default_rng(0).normal(size=100_000)
    found = _bound(mu=1.0, hits=int((noise < 1).sum()), images=100_000, prior_hit_rate=0.5)
    assert found.lower_limit <= found.bound < found.lower_limit + 0.01


def test_half_the_declared_noise_is_an_exceedance():
    # n = 50 images, k = .01, mu 2 declared and 4 true: bound .37, the best attack rebuilds 92 %.
    # 35 hits exceed the bound, and fewer have a probability below 2e-5.
    hits = _rebuilt_by_likelihood(mu=4.0, count=100, trials=50)
    found = _bound(mu=2.0, hits=hits, images=50, prior_hit_rate=0.01)
    assert found.exceeded
    assert "a contradiction" in found.sentence()
    assert binom.cdf(34, 50, 0.9) < 2e-5
    assert _bound(mu=2.0, hits=35, images=50, prior_hit_rate=0.01).exceeded


def _attacked(*, noise_std: float, declared_std: float, trials: int) -> ReconstructionBound:
    """Clipped gradients of 24 images in turn, each attacked by the nearest candidate gradient."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 24)).double()
    generator = torch.Generator().manual_seed(0)
    images = (torch.rand(24, 1, 8, 8, generator=generator) > 0.5).double()
    parameters = flatten(model)
    declared = Observation.single(
        gradient=parameters, model=parameters, noise_std=declared_std, clip_norm=0.5, records=1
    )
    sent = torch.cat(
        [
            sent_gradients(declared, model, inputs=x[None], targets=torch.tensor([y])).detach()
            for y, x in enumerate(images)
        ]
    )
    truth = torch.arange(trials) % 24
    noise = torch.randn(trials, sent.shape[1], generator=generator, dtype=torch.float64)
    best = torch.cdist(sent[truth] + noise_std * noise, sent).argmin(dim=1)
    errors = (images[truth] - images[best]).square().mean(dim=(1, 2, 3)).tolist()
    return reconstruction_bound(
        mu=declared_mu(declared),
        threshold=0.1,
        hits=count_rebuilt(errors, threshold=0.1),
        images=trials,
        prior_hit_rate=1 / 24,
    )


def test_an_attack_on_real_gradients_stays_below_the_bound_of_its_noise():
    # n = 2,000, mu 2; the bound is .61 and the best attack rebuilds 54 %.
    found = _attacked(noise_std=0.25, declared_std=0.25, trials=2000)
    assert found.mu == pytest.approx(2.0)
    assert not found.exceeded


def test_an_attack_on_real_gradients_with_half_the_noise_exceeds_the_bound():
    # n = 100; the best attack rebuilds 97 %.
    assert _attacked(noise_std=0.125, declared_std=0.25, trials=100).exceeded


def test_few_images_cannot_exceed_a_high_bound_and_the_sentence_says_so():
    # 8 of 8 have a lower limit of .001^(1/8) = .42.
    found = _bound(mu=3.0, hits=8)
    assert found.bound > 0.42
    assert found.lower_limit == pytest.approx(0.001 ** (1 / 8))
    assert not found.can_be_exceeded
    assert found.sentence().endswith("So few images could not contradict it.")


def test_a_result_below_a_bound_that_it_could_exceed_is_no_contradiction():
    found = _bound(mu=1.0, hits=1)
    assert found.can_be_exceeded
    assert found.sentence() == (
        "1 of 8 images were rebuilt (MSE at most 0.01); the proof allows 14.6% of images to be "
        "rebuilt from messages with mu=1, if guessing rebuilds at most 2.00%: no contradiction."
    )


def test_the_first_exceedance_is_where_the_bound_makes_a_count_rarer_than_1_in_1000():
    first = next(hits for hits in range(1001) if _bound(hits=hits, images=1000).exceeded)
    limit = _bound().bound
    assert binom.sf(first - 1, 1000, limit) < 0.001 <= binom.sf(first - 2, 1000, limit)


def test_the_lower_limit_is_the_inverse_of_the_binomial_tail():
    limit = _bound(hits=5, images=20).lower_limit
    assert binom.sf(4, 20, limit) == pytest.approx(0.001)


def test_no_hit_has_a_lower_limit_of_zero():
    assert _bound(hits=0).lower_limit == 0.0


def test_a_batch_s_guesses_add_up_to_certainty_at_most():
    assert _bound(guesses=5, prior_hit_rate=0.02).bound == pytest.approx(
        _bound(prior_hit_rate=0.1).bound
    )
    assert _bound(guesses=60, prior_hit_rate=0.02, hits=8).bound == 1.0


def test_only_the_first_image_of_a_batch_is_counted():
    errors = [0.2, 0.0, 0.0, 0.0, 0.2, 0.0, 0.0]
    assert [count_rebuilt(errors, threshold=0.1, batch=b) for b in (1, 2, 3, 7)] == [5, 2, 2, 0]


def test_batches_that_share_their_noise_raise_no_more_false_alarms():
    # mu 1, k .02: 4,000 runs of 8 batches of 16 records, each batch rebuilt or not as a whole with
    # the bound's own probability. At .05, 200 alarms are expected at most; 260 is 4 deviations off.
    likely = _bound(guesses=16).bound
    drawn = np.random.default_rng(1).random((4000, 8)) < likely
    alarms = 0
    for whole in drawn:
        errors = np.where(np.repeat(whole, 16), 0.0, 1.0).tolist()
        hits = count_rebuilt(errors, threshold=0.01, batch=16)
        alarms += _bound(hits=hits, guesses=16, confidence=0.95).exceeded
    assert alarms <= 260


def test_several_tests_share_the_false_alarms_of_one():
    one, many = _bound(hits=4), _bound(hits=4, tests=20)
    assert many.confidence == pytest.approx(1 - 0.001 / 20)
    assert binom.sf(3, 8, many.lower_limit) == pytest.approx(0.001 / 20)
    assert many.lower_limit < one.lower_limit


def test_the_sentence_speaks_of_first_images_where_batches_were_planted():
    said = _bound(hits=8, guesses=2, prior_hit_rate=1e-6).sentence()
    assert said.startswith("8 of 8 first images of batches of 2 were rebuilt")
    assert "at 99.9% confidence" in said
    assert "at 99.99% confidence" in _bound(hits=8, tests=10, prior_hit_rate=1e-6).sentence()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mu": -1.0}, "mu=-1.0"),
        ({"mu": math.nan}, "mu=nan"),
        ({"threshold": -0.1}, "threshold=-0.1"),
        ({"hits": 9}, "hits=9"),
        ({"images": 0}, "images=0"),
        ({"prior_hit_rate": 1.5}, "1.5"),
        ({"confidence": 1.0}, "confidence=1.0"),
        ({"guesses": 0}, "guesses=0"),
        ({"tests": 0}, "tests=0"),
    ],
)
def test_what_is_out_of_range_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        _bound(**changes)


def _observation(covariance: Tensor, **changes: Any) -> Observation:
    count = len(covariance)
    given: dict[str, Any] = {
        "gradient": torch.zeros(count, 3), "points": torch.zeros(count, 1, 3),
        "covariance": covariance.double(), "clip_norm": 0.5, "records": 2,
    }  # fmt: skip
    return Observation(**(given | changes))


def test_independent_messages_add_their_squares():
    # C / B = .25 against noises of .1 and .2.
    seen = _observation(torch.diag(torch.tensor([0.01, 0.04])))
    assert declared_mu(seen) == pytest.approx(math.hypot(2.5, 1.25))


def test_noise_that_cancels_counts_at_its_worst():
    # With opposite signals the common noise cancels: 2 C / B over the noise of the difference.
    seen = _observation(torch.tensor([[1.0, 0.5], [0.5, 1.0]]))
    assert declared_mu(seen) == pytest.approx(0.5)


def test_a_clipped_mean_moves_by_twice_the_clip_norm():
    seen = _observation(torch.eye(1), mean_of=2.0)
    assert declared_mu(seen) == pytest.approx(1.0)


def test_without_a_clip_nothing_is_declared():
    assert declared_mu(_observation(torch.eye(1), clip_norm=None)) == math.inf


def test_without_noise_nothing_is_declared():
    assert declared_mu(_observation(torch.zeros(1, 1))) == math.inf


def test_a_bound_that_allows_nearly_everything_says_that_it_protects_hardly_anything():
    found = _bound(mu=8.0, hits=2)
    assert found.sentence().endswith("at most 2.00%: it protects hardly any of them.")
    ranked = lineup_bound(mu=8.0, size=100, ranks=[1, 1, 3])
    assert ranked.sentence().endswith("(guessing 0.01, the proof allows 100.0%, nearly all).")
