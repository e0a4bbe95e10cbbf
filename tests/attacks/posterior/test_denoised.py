"""A denoiser of the user's as the prior of a record under noise."""

import sys
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from overhear.attacks.inversion.inversion import Reconstruction, reconstruct
from overhear.attacks.posterior import Denoiser, denoised
from overhear.attacks.problem.objective import PRESETS
from overhear.attacks.problem.observation import Observation, observe
from overhear.attacks.problem.problem import Problem, build_box
from overhear.privacy.errors import InputError
from overhear.training.data.load import load_dataset
from overhear.training.models.parameters import build_model, flatten

BOUNDS = (torch.tensor(0.0), torch.tensor(1.0))


def _wiener(mean: Tensor, covariance: Tensor) -> Denoiser:
    """The best denoiser of normal pictures."""
    values, vectors = torch.linalg.eigh(covariance.double())
    values = values.clamp_min(1e-8)

    def clean(pixels: Tensor, noise_std: float) -> Tensor:
        rows = pixels.flatten(1).double() - mean
        kept = rows @ vectors * (values / (values + noise_std**2)) @ vectors.T
        return (kept + mean).reshape(pixels.shape)

    return clean


def test_of_normal_pictures_it_is_the_posterior_mean_in_closed_form():
    # At parameters 0 of a linear network without bias and two classes the gradient of (x, 0) is
    # (-x / 2, x / 2): with noise t on each entry x is seen under noise of variance 2 t^2.
    made, width, t = torch.Generator().manual_seed(0), 6, 0.15
    factor = 0.15 * torch.randn(width, 3, generator=made).double()
    covariance = factor @ factor.T + 0.003 * torch.eye(width).double()
    mean = torch.full((width,), 0.5).double()
    x = mean + factor @ torch.randn(3, generator=made).double()
    noise = t * torch.randn(2 * width, generator=made).double()
    seen = Observation.single(
        gradient=torch.cat([-x / 2, x / 2]) + noise, model=torch.zeros(2 * width).double(),
        noise_std=t, clip_norm=None, records=1,
    )  # fmt: skip
    problem = Problem(
        observation=seen, model=nn.Linear(width, 2, bias=False), preset=PRESETS["matched"],
        box=build_box(BOUNDS, (width,), dtype=torch.float64), shape=(width,), classes=2,
        labels=torch.tensor([0]), prior_image=None,
    )  # fmt: skip
    found = denoised(problem, denoiser=_wiener(mean, covariance), labels=None, given=True)
    shown = seen.gradient[0, width:] - seen.gradient[0, :width]
    gain = covariance @ torch.linalg.inv(covariance + 2 * t**2 * torch.eye(width).double())
    expected = mean + gain @ (shown - mean)
    assert (found.labels.tolist(), found.stage) == ([0], "denoiser")
    assert float((found.pixels[0] - expected.clamp(0, 1)).abs().max()) < 0.01
    assert float((shown - expected).abs().max()) > 0.1


class _Digits:
    """A linear network on digits, and what public records say of pictures."""

    def __init__(self) -> None:
        self.data = load_dataset("digits")
        made = torch.Generator().manual_seed(0)
        shape = self.data.input_shape
        self.model = build_model("linear", input_shape=shape, classes=10, generator=made)
        order = torch.randperm(len(self.data.test_targets), generator=made)
        self.victims, others = order[:6], self.data.test_inputs[order[6:]]
        self.prior = others.mean(dim=0)
        pixels = self.data.pixels(others).flatten(1).double()
        self.denoiser = _wiener(pixels.mean(dim=0), torch.cov(pixels.T))

    def attack(self, number: int, mu: float, denoiser: Denoiser | None) -> Reconstruction:
        at, seed = self.victims[number], torch.Generator().manual_seed(number)
        seen = observe(
            self.model, flatten(self.model).detach(), inputs=self.data.test_inputs[at][None],
            targets=self.data.test_targets[at][None], clip_norm=1.0, noise_std=1 / mu,
            generator=seed,
        )  # fmt: skip
        return reconstruct(
            seen, self.model, preset=replace(PRESETS["matched"], starts=1, adam_steps=300),
            input_shape=self.data.input_shape, classes=10, bounds=self.data.bounds,
            generator=torch.Generator().manual_seed(number), prior_image=self.prior,
            denoiser=denoiser,
        )  # fmt: skip

    def error(self, number: int, inputs: Tensor) -> float:
        truth = self.data.test_inputs[self.victims[number]]
        return float((self.data.pixels(inputs) - self.data.pixels(truth)).square().mean())


@pytest.mark.slow
def test_a_wiener_filter_of_public_records_reads_what_a_search_does_not():
    digits = _Digits()
    for number in (1, 5):
        blind = digits.error(number, digits.prior)
        assert digits.attack(number, 14.0, None).stage == "prior"
        found = digits.attack(number, 14.0, digits.denoiser)
        assert found.stage == "denoiser"
        assert digits.error(number, found.inputs[0]) < 0.5 * blind


@pytest.mark.slow
def test_a_useless_denoiser_takes_nothing_from_the_search():
    digits = _Digits()
    alone = digits.attack(0, 40.0, None)
    beside = digits.attack(0, 40.0, lambda pixels, _: torch.full_like(pixels, 0.5))
    assert alone.stage == beside.stage == "first layer"
    assert torch.equal(alone.inputs, beside.inputs)


@pytest.mark.slow
def test_what_the_denoiser_finds_has_to_pass_the_fallback():
    digits = _Digits()
    found = digits.attack(2, 1.0, digits.denoiser)
    assert found.stage == "prior"
    assert torch.allclose(found.inputs[0], digits.prior, atol=1e-6)


def _attack(denoiser: Denoiser, *, noise_std: float = 0.1) -> Reconstruction:
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    seen = observe(
        model, flatten(model).detach(), inputs=torch.tensor([[0.2, 0.9, 0.4]]),
        targets=torch.tensor([1]), clip_norm=1.0, noise_std=noise_std,
        generator=torch.Generator().manual_seed(0),
    )  # fmt: skip
    return reconstruct(
        seen, model, preset="posterior", input_shape=(3,), classes=2, bounds=BOUNDS,
        generator=torch.Generator(), denoiser=denoiser,
    )  # fmt: skip


def _raises(pixels: Tensor, noise_std: float) -> Tensor:
    raise RuntimeError(f"no weights for {noise_std:.0f}")


def _exits(pixels: Tensor, noise_std: float) -> Tensor:
    sys.exit(0)


@pytest.mark.parametrize(
    ("denoiser", "words"),
    [
        (_raises, r"the denoiser raised RuntimeError: no weights for 1 in line \d+ of test_den"),
        (lambda x, _: x[:, :2], r"returned \(2, 2\), must be a tensor of shape \(2, 3\)"),
        (lambda x, _: x.numpy(), "returned ndarray, must be a tensor"),
        (lambda x, _: x / 0, "returned values that are not finite at noise_std=1"),
        (_exits, r"the denoiser raised SystemExit: 0 in line \d+ of test_denoised"),
        (lambda x, _: (x * 255).to(torch.uint8), "tensor of torch.uint8, torch.strided, must be"),
        (lambda x, _: x.to(torch.complex64), "tensor of torch.complex64"),
        (lambda x, _: x.to_sparse(), "torch.sparse_coo, must be a dense one"),
        (lambda x, _: 255 * x, "up to 128 at noise_std=1, must be at most 10: .* unit box"),
    ],
)
def test_a_denoiser_that_cannot_be_used_is_refused(denoiser, words):
    with pytest.raises(InputError, match=words):
        _attack(denoiser)


def test_what_a_denoiser_does_to_its_input_is_its_own_affair():
    kept = _attack(lambda x, _: x.clamp(0, 1))
    changed = _attack(lambda x, _: x.clamp_(0, 1))
    assert torch.equal(kept.inputs, changed.inputs)


def test_without_noise_no_denoiser_is_asked():
    with pytest.raises(InputError, match="needs candidates"):
        _attack(_raises, noise_std=0.0)
