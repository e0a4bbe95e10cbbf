"""The power of the fallback's test, and what takes the place of an image that it rejects."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from overhear.attacks.inversion.fallback import SPLIT, acceptance_power, is_hopeless
from overhear.attacks.inversion.inversion import reconstruct
from overhear.attacks.posterior import Candidates
from overhear.attacks.problem.objective import PRESETS, whitened_residual
from overhear.attacks.problem.observation import observe, sent_gradients
from overhear.attacks.problem.problem import Problem, build_box
from overhear.training.models.parameters import flatten

BOUNDS = (torch.tensor(0.0), torch.tensor(1.0))


def _model():
    torch.manual_seed(0)
    return nn.Linear(4, 3).double()


def _seen(model, x, y, *, noise_std, seed=0):
    points = flatten(model).detach() * torch.tensor([[1.0], [2.0]]).double()
    return observe(
        model, points, inputs=x[None], targets=torch.tensor([y]), clip_norm=1.0,
        noise_std=noise_std, generator=torch.Generator().manual_seed(seed),
    )  # fmt: skip


def _kept_by_hand(seen, model, x, y, prior, *, draws):
    """The test of the true image, on observations that are drawn entry by entry."""
    made = torch.Generator().manual_seed(7)

    def sent(image, label):
        return sent_gradients(
            seen, model, inputs=image[None], targets=torch.tensor([label])
        ).detach()

    truth, others, kept = sent(x, y), torch.stack([sent(prior, k) for k in range(3)]), 0
    for _ in range(draws):
        noise, split = (
            seen.noise_std * 2**0.5 * torch.randn(truth.shape, generator=made).double()
            for _ in range(2)
        )
        whole = replace(seen, gradient=truth + noise)
        second = replace(
            seen,
            gradient=truth + noise - split / SPLIT,
            covariance=seen.covariance * (1 + 1 / SPLIT**2),
        )
        gain = float(whitened_residual(others, whole).min() - whitened_residual(truth, whole))
        public = others[whitened_residual(others, second).argmin()]
        held = whitened_residual(public, second) - whitened_residual(truth, second)
        deviation = 2 * (second.whiten(truth - public)).norm() / second.noise_std
        kept += gain > 2 * x.numel() or (gain > 0 and bool(held > 2 * deviation))
    return kept / draws


@pytest.mark.parametrize("noise_std", [0.1, 0.25, 1.0])
def test_the_power_is_that_of_the_test_run_by_hand(noise_std):
    model, x = _model(), torch.tensor([0.9, 0.1, 0.6, 0.3]).double()
    prior = torch.full((4,), 0.5).double()
    seen = _seen(model, x, 1, noise_std=noise_std)
    said = acceptance_power(
        seen, model, inputs=x, label=1, prior_image=prior, classes=3,
        generator=torch.Generator().manual_seed(3), draws=20_000,
    )  # fmt: skip
    # 700 draws: the difference is below 5 standard errors but with probability 1e-6.
    by_hand = _kept_by_hand(seen, model, x, 1, prior, draws=700)
    assert abs(said - by_hand) < 5 * math.sqrt(max(said * (1 - said), 0.002) * (1 / 700 + 1 / 2e4))


def test_without_noise_the_truth_is_always_kept():
    model, x = _model(), torch.rand(4).double()
    seen = _seen(model, x, 1, noise_std=0.0)
    assert (
        acceptance_power(
            seen,
            model,
            inputs=x,
            label=1,
            prior_image=x * 0,
            classes=3,
            generator=torch.Generator(),
        )
        == 1.0
    )


def _public(count=60):
    made = torch.Generator().manual_seed(4)
    centres = torch.eye(3, 4).double()
    labels = torch.arange(count) % 3
    noise = 0.1 * torch.rand(count, 4, generator=made).double()
    return Candidates(inputs=(0.8 * centres[labels] + noise), labels=labels)


def _attack(preset, *, noise_std, candidates, seed=0):
    public, model = _public(), _model()
    x = public.inputs[0] * 0.95
    return x, reconstruct(
        _seen(model, x, 0, noise_std=noise_std, seed=seed), model,
        preset=replace(PRESETS[preset], starts=1, adam_steps=30 * PRESETS[preset].searches),
        input_shape=(4,), classes=3, bounds=BOUNDS, generator=torch.Generator().manual_seed(1),
        prior_image=public.inputs.mean(dim=0), candidates=candidates,
    )  # fmt: skip


@pytest.mark.parametrize("preset", ["matched", "posterior"])
def test_an_image_that_noise_hides_is_that_of_the_posterior(preset):
    x, found = _attack(preset, noise_std=0.45, candidates=_public())
    assert (found.stage, found.labels.tolist()) == ("posterior", [0])
    blind = (_public().inputs.mean(dim=0) - x).square().mean()
    assert (found.inputs[0] - x).square().mean() < 0.5 * blind


def test_without_candidates_it_is_the_prior_image():
    _, found = _attack("matched", noise_std=0.45, candidates=None)
    assert found.stage == "prior"
    with pytest.raises(ValueError, match="searches nothing needs candidates and records=1"):
        _attack("posterior", noise_std=0.45, candidates=None)


def test_no_search_is_begun_where_no_public_record_would_be_kept():
    _, hidden = _attack("matched", noise_std=3.0, candidates=_public())
    _, seen = _attack("matched", noise_std=0.45, candidates=_public())
    assert (hidden.stage, hidden.iterations) == ("posterior", 0)
    assert seen.iterations > 0


def test_a_search_is_hopeless_where_16_records_have_no_power():
    public, model = _public(), _model()
    prior = public.inputs.mean(dim=0)
    for noise_std, hopeless in ((3.0, True), (0.45, False), (0.05, False)):
        seen = _seen(model, public.inputs[0], 0, noise_std=noise_std)
        powers = [
            acceptance_power(
                seen, model, inputs=x, label=int(y), prior_image=prior, classes=3,
                generator=torch.Generator().manual_seed(1), draws=500,
            )
            for x, y in zip(public.inputs[:12], public.labels[:12], strict=True)
        ]  # fmt: skip
        assert (max(powers) <= 0.015) == hopeless
        box = build_box((torch.tensor(0.0), torch.tensor(1.0)), prior.shape, dtype=prior.dtype)
        posed = Problem(
            observation=seen, model=model, box=box, shape=tuple(prior.shape), classes=3,
            prior_image=prior,
        )  # fmt: skip
        assert hopeless == is_hopeless(posed, public, torch.Generator())


def test_the_search_is_kept_where_noise_is_small():
    x, found = _attack("matched", noise_std=1e-4, candidates=_public())
    assert found.stage != "posterior"
    assert (found.inputs[0] - x).square().mean() < 1e-5


@pytest.mark.parametrize("noise_std", [1.0, 30.0])
def test_noise_speaks_for_no_public_record(noise_std):
    kept = [
        _attack("posterior", noise_std=noise_std, candidates=_public(), seed=seed)[1].supported[0]
        for seed in range(20)
    ]
    assert sum(kept) <= 2


def test_what_stands_out_speaks_for_public_records():
    assert _attack("posterior", noise_std=0.02, candidates=_public())[1].supported == (True,)
