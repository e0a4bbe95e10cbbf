"""What rehearsals with public records trust of a picture whose gradient rests on a prior."""

from dataclasses import replace

import pytest
import torch

from overhear.attacks.inversion.inversion import Reconstruction, reconstruct
from overhear.attacks.posterior import Candidates
from overhear.attacks.problem.objective import PRESETS, Preset
from overhear.attacks.problem.observation import Drift, Observation, observe
from overhear.training.models.parameters import build_model, flatten

BOUNDS = (torch.tensor(0.0), torch.tensor(1.0))
PRESET = replace(PRESETS["matched"], adam_steps=30, starts=1)
PUBLIC = torch.rand(60, 1, 6, 6, generator=torch.Generator().manual_seed(1))
MODEL = build_model(
    "linear", input_shape=(1, 6, 6), classes=3, generator=torch.Generator().manual_seed(2)
)


def rested(size: float, *, records: int = 1) -> tuple[Observation, torch.Tensor]:
    """A gradient to which others have added a vector of so much of its length; a guess of a tenth.

    What others left is the gradient of public records, so that it looks like the victim's.
    """
    x, y = PUBLIC[:records], torch.arange(records) % 3
    how = {"clip_norm": None, "noise_std": 0.0, "generator": torch.Generator()}
    seen = observe(MODEL, flatten(MODEL), inputs=x, targets=y, **how)
    left = [
        observe(MODEL, flatten(MODEL), inputs=PUBLIC[at : at + 5], targets=y[:1].expand(5), **how)
        for at in (10, 15)
    ]
    length = float(seen.gradient.norm())
    others = [size * length * one.gradient[0] / one.gradient.norm() for one in left]
    guess = (0.1 * length) ** 2 / seen.gradient.numel()
    drift = Drift(
        points=flatten(MODEL).detach()[None], shares=(1.0,), others=torch.stack(others[:1])
    )
    return replace(
        seen, gradient=seen.gradient - others[1], covariance=torch.tensor([[guess]]), drift=drift
    ), x


def attacked(
    seen: Observation, *, public: bool = True, preset: str | Preset = PRESET
) -> Reconstruction:
    pool = Candidates(inputs=PUBLIC[20:], labels=torch.arange(40) % 3)
    return reconstruct(
        seen, MODEL, preset=preset, input_shape=(1, 6, 6), classes=3, bounds=BOUNDS,
        generator=torch.Generator().manual_seed(3), prior_image=torch.full((1, 6, 6), 0.5),
        candidates=pool if public else None,
    )  # fmt: skip


def error(found: Reconstruction, x: torch.Tensor) -> float:
    return float((found.inputs - x).square().mean())


def test_a_gradient_that_others_hardly_touch_is_rebuilt_from():
    seen, x = rested(0.01)
    found = attacked(seen)
    assert found.supported == (True,)
    assert error(found, x) < 0.01
    assert found.labels.tolist() == [0]


@pytest.mark.parametrize("size", [3.0, 30.0])
def test_a_gradient_that_others_drown_leaves_the_public_guess_however_sure_its_covariance_is(size):
    found = attacked(rested(size)[0])
    assert (found.stage, found.supported) == ("prior", (False,))
    assert torch.equal(found.inputs, torch.full((1, 1, 6, 6), 0.5))


def test_between_the_picture_is_drawn_to_the_public_guess():
    seen, x = rested(0.4)
    found = attacked(seen)
    assert found.supported == (True,)
    assert error(found, x) < float((x - 0.5).square().mean())


def test_without_public_records_nothing_is_trusted():
    assert attacked(rested(0.01)[0], public=False).stage == "prior"


def test_public_records_are_not_weighed_by_a_covariance_that_is_a_guess():
    found = attacked(rested(0.01)[0], preset="posterior")
    assert (found.stage, found.supported) == ("prior", (False,))


def test_records_of_a_batch_are_paired_before_they_are_compared():
    seen, _ = rested(0.0, records=2)
    assert attacked(seen).inputs.shape == (2, 1, 6, 6)
