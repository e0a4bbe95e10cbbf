"""Candidates are weighed by the exact likelihood of what was observed."""

import math
from dataclasses import replace

import pytest
import torch
from scipy.stats import binom, chisquare, multivariate_normal
from torch import nn

from overhear.attacks.posterior import Candidates, distances, ranks, sizes_for, weigh
from overhear.attacks.problem.observation import Observation, Sent, observe, sent_gradient
from overhear.training.models.parameters import flatten


def _drawn(seed=0):
    return torch.Generator().manual_seed(seed)


def _public(count, *, seed=1):
    made = _drawn(seed)
    x = torch.rand(count, 3, generator=made, dtype=torch.float64)
    return Candidates(inputs=x, labels=torch.randint(2, (count,), generator=made))


def _model():
    torch.manual_seed(0)
    return nn.Linear(3, 2).double()


def _seen(model, x, y, *, noise_std, clip_norm=0.5, seed=2, intercepts=1):
    points = flatten(model).detach() * torch.linspace(1, 2, intercepts)[:, None].double()
    return observe(
        model, points, inputs=x, targets=y, clip_norm=clip_norm, noise_std=noise_std,
        generator=_drawn(seed),
    )  # fmt: skip


def test_without_noise_the_record_itself_has_all_weight():
    public, model = _public(40), _model()
    for record in range(10):
        at = slice(record, record + 1)
        seen = _seen(model, public.inputs[at], public.labels[at], noise_std=0.0, clip_norm=None)
        found = weigh(seen, model, public, classes=2, generator=_drawn())
        assert found.weights[record] == 1
        assert torch.equal(found.picture, public.inputs[record])
        assert found.labels[public.labels[record]] == 1


def test_distances_are_the_logarithm_of_a_multivariate_normal():
    public, model = _public(6), _model()
    seen = _seen(model, public.inputs[:1], public.labels[:1], noise_std=1.0, intercepts=2)
    covariance = torch.tensor([[0.5, 0.2], [0.2, 0.9]], dtype=torch.float64)
    seen = replace(seen, covariance=covariance)
    expected = []
    for x, y in zip(public.inputs, public.labels, strict=True):
        sent = torch.stack([
            sent_gradient(
                model, point, inputs=x[None], targets=y[None]
            , of=Sent(clip_norm=seen.clip_norm)).detach()
            for point in seen.points
        ])  # fmt: skip
        expected.append(sum(
            multivariate_normal(mean=sent[:, d], cov=covariance).logpdf(seen.gradient[:, d])
            for d in range(sent.shape[1])
        ))  # fmt: skip
    expected = torch.tensor(expected, dtype=torch.float64)
    far = distances(seen, model, public)
    assert torch.allclose((far - far[0]) / -2, expected - expected[0])
    found = weigh(seen, model, public, classes=2, generator=_drawn())
    assert torch.allclose(found.weights, expected.softmax(0))


def test_the_posterior_mean_of_a_gaussian_prior_is_that_of_the_closed_form():
    # One weight, squared features: with the gradient linear in the input the posterior is Gaussian.
    # At parameters 0 of a linear network without bias and two classes, the gradient of record
    # (x, 0) is (-x / 2, x / 2). With x ~ N(m, s^2) and noise t on both coordinates the estimate
    # x = g2 - g1 has noise variance 2 t^2, and the mean is m + s^2 / (s^2 + 2 t^2) (x - m).
    m, s, t = 1.5, 0.7, 0.6
    model = nn.Linear(1, 2, bias=False).double()
    normal = torch.distributions.Normal(torch.tensor(m).double(), s)
    x = normal.icdf((torch.arange(2000).double() + 0.5) / 2000)[:, None]
    public = Candidates(inputs=x, labels=torch.zeros(2000, dtype=torch.int64))
    seen = Observation(
        gradient=torch.tensor([[-0.2, 0.5]], dtype=torch.float64),
        points=torch.zeros(1, 1, 2, dtype=torch.float64),
        covariance=torch.tensor([[t**2]], dtype=torch.float64), clip_norm=None, records=1,
    )  # fmt: skip
    found = weigh(seen, model, public, classes=2, generator=_drawn())
    expected = m + s**2 / (s**2 + 2 * t**2) * (0.7 - m)
    assert float(found.weights @ x[:, 0]) == pytest.approx(expected, abs=1e-4)


def test_much_noise_leaves_the_mean_of_the_candidates():
    public, model = _public(50), _model()
    seen = _seen(model, public.inputs[:1], public.labels[:1], noise_std=1e5)
    found = weigh(seen, model, public, classes=2, generator=_drawn())
    assert torch.allclose(found.picture, public.inputs.mean(dim=0), atol=1e-4)


def test_the_rank_is_uniform_under_infinite_noise():
    # 1,000 lineups of 10; a uniform rank fails with probability 1e-6.
    pool, model, made = _public(10), _model(), _drawn(5)
    counts = [0] * 10
    for number in range(1000):
        victim = number % 10
        at = slice(victim, victim + 1)
        seen = _seen(model, pool.inputs[at], pool.labels[at], noise_std=1e6, seed=number)
        counts[ranks(seen, model, pool=pool, victim=victim, generator=made)[10] - 1] += 1
    assert chisquare(counts).pvalue > 1e-6


def test_equal_records_share_the_first_place_at_random():
    # 400 lineups without noise of 10 equal records: first with probability .1; fails with 1e-6.
    one, model, made = _public(1), _model(), _drawn(6)
    pool = one.at(torch.zeros(10, dtype=torch.int64))
    seen = _seen(model, one.inputs, one.labels, noise_std=0.0)
    first = sum(
        ranks(seen, model, pool=pool, victim=3, generator=made)[10] == 1 for _ in range(400)
    )
    assert binom.ppf(5e-7, 400, 0.1) <= first <= binom.isf(5e-7, 400, 0.1)


def test_the_record_is_first_without_noise():
    pool, model = _public(150), _model()
    seen = _seen(model, pool.inputs[7:8], pool.labels[7:8], noise_std=0.0, clip_norm=None)
    assert ranks(seen, model, pool=pool, victim=7, generator=_drawn()) == {10: 1, 100: 1}


def test_small_pools_have_no_lineup():
    assert sizes_for(9) == ()
    assert sizes_for(1000) == (10, 100, 1000)


def test_several_records_and_no_candidates_are_refused():
    public, model = _public(5), _model()
    seen = _seen(model, public.inputs[:2], public.labels[:2], noise_std=1.0)
    with pytest.raises(ValueError, match="records=2 must be 1"):
        distances(seen, model, public)
    with pytest.raises(ValueError, match="N at least 1"):
        Candidates(inputs=torch.zeros(0, 3), labels=torch.zeros(0, dtype=torch.int64))


def test_the_temperature_averages_neighbours_where_the_record_is_no_candidate():
    public, model = _public(400), _model()
    truth = _public(60, seed=9)
    plain = tempered = 0.0
    for record in range(60):
        at = slice(record, record + 1)
        seen = _seen(model, truth.inputs[at], truth.labels[at], noise_std=0.02, seed=record)
        found = weigh(seen, model, public, classes=2, generator=_drawn(record))
        plain += float((found.weights @ public.inputs - truth.inputs[record]).square().mean())
        tempered += float((found.picture - truth.inputs[record]).square().mean())
    assert math.isfinite(tempered)
    assert tempered <= 1.02 * plain
