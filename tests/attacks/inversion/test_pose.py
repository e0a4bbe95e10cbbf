"""Which way a record's label is read."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from overhear.attacks.inversion.fallback import anchored, steadied
from overhear.attacks.inversion.inversion import reconstruct
from overhear.attacks.problem.labels import recover_labels
from overhear.attacks.problem.objective import PRESETS
from overhear.attacks.problem.observation import Observation, observe, sent_gradients
from overhear.attacks.problem.problem import (
    Found,
    Problem,
    asked_weight,
    build_box,
    check_repeatable,
    gradients_of,
)
from overhear.training.models.parameters import flatten

CLASSES, PIXELS = 10, 16
BOUNDS = (torch.tensor(0.0), torch.tensor(1.0))
SHORT = replace(PRESETS["matched"], exact=False, adam_steps=1, newton_steps=0, starts=1)


def recursive(label: int) -> tuple[nn.Module, Observation]:
    """What one record sends of recursive momentum: its gradient less that at the point before."""
    torch.manual_seed(label)
    model = nn.Sequential(nn.Linear(PIXELS, 12, bias=False), nn.Sigmoid(), nn.Linear(12, CLASSES))
    generator = torch.Generator().manual_seed(label)
    x = (0.5 + 0.2 * torch.randn(1, PIXELS, generator=generator)).clamp(0, 1)
    others = torch.tensor([label + 1, label + 1, 3, 4]) % CLASSES
    step = observe(
        model, flatten(model), inputs=torch.rand(4, PIXELS, generator=generator), targets=others,
        clip_norm=None, noise_std=0.0, generator=generator,
    )  # fmt: skip
    points = torch.stack([flatten(model), flatten(model) + 0.5 * step.gradient[0]])[None]
    seen = replace(step, records=1, points=points, coefs=(1.0, -0.99))
    sent = sent_gradients(seen, model, inputs=x, targets=torch.tensor([label])).detach()
    return model, replace(seen, gradient=sent)


def read(model: nn.Module, seen: Observation, *, prior: Tensor | None) -> int:
    found = reconstruct(
        seen, model, preset=SHORT, input_shape=(PIXELS,), classes=CLASSES, bounds=BOUNDS,
        generator=torch.Generator().manual_seed(0), prior_image=prior,
    )  # fmt: skip
    return int(found.labels)


def test_signs_of_the_last_layer_do_not_tell_the_label_of_a_difference_of_gradients():
    # Ten records with fixed seeds: deterministic, no false alarms.
    signs = public = alone = 0
    for label in range(CLASSES):
        model, seen = recursive(label)
        signs += recover_labels(seen, model, classes=CLASSES).tolist() == [label]  # type: ignore[union-attr]
        public += read(model, seen, prior=torch.full((PIXELS,), 0.4)) == label
        alone += read(model, seen, prior=None) == label
    assert signs < 5
    assert (public, alone) == (CLASSES, CLASSES)


# Brightness that a network does not show moves to the public image's; what it shows stays.


SHAPE = (3, 8, 8)


def posed(*, normalised: bool) -> tuple[Problem, Tensor]:
    """A picture, and a network that is blind to its brightness if each channel is normalised."""
    torch.manual_seed(0)
    norm = nn.GroupNorm(6, 6) if normalised else nn.Identity()
    model = nn.Sequential(
        nn.Conv2d(3, 6, 3), norm, nn.Tanh(), nn.Flatten(), nn.Linear(216, 4)
    ).double()
    x = 0.3 + 0.2 * torch.rand(1, *SHAPE).double()
    seen = observe(
        model, flatten(model), inputs=x, targets=torch.tensor([1]), clip_norm=None, noise_std=0.0,
        generator=torch.Generator(),
    )  # fmt: skip
    problem = Problem(
        observation=seen, model=model, preset=PRESETS["matched"], shape=SHAPE, classes=4,
        box=build_box(BOUNDS, SHAPE, dtype=torch.float64), labels=torch.tensor([1]),
        prior_image=torch.full(SHAPE, float(x.mean())).double(),
    )  # fmt: skip
    return problem, x


def shifted(x: Tensor, by: float) -> Found:
    return Found(pixels=x + by, labels=torch.tensor([1]), iterations=1, stage="optimisation")


def test_brightness_that_the_gradient_does_not_show_moves_half_way_to_the_public_image_s():
    problem, x = posed(normalised=True)
    noise = 0.01 * torch.randn(x.shape, generator=torch.Generator().manual_seed(1)).double()
    found = shifted(x + noise, 0.4)
    moved = anchored(problem, found)
    before, after = (float(f.pixels.mean() - x.mean()) for f in (found, moved))
    assert abs(after - before / 2) < 1e-6
    assert float((moved.pixels - x).square().mean()) < 0.05
    assert float((found.pixels - x).square().mean()) > 0.15
    soft = nn.functional.one_hot(found.labels, 4).double()
    one, other = (
        gradients_of(problem, f.pixels[None], soft[None], together=False) for f in (found, moved)
    )
    assert float((one - other).norm()) < 0.05 * float(one.norm())


def test_a_network_that_shows_the_brightness_keeps_it():
    problem, x = posed(normalised=False)
    found = shifted(x, 0.1)
    assert anchored(problem, found) is found


def test_without_a_public_image_or_under_noise_nothing_is_moved():
    problem, x = posed(normalised=True)
    found = shifted(x, 0.4)
    assert anchored(replace(problem, prior_image=None), found) is found
    noisy = replace(problem.observation, covariance=torch.tensor([[1e-8]]).double())
    assert anchored(replace(problem, observation=noisy), found) is found
    other = replace(problem, preset=PRESETS["inverting-gradients"])
    assert anchored(other, found) is found


def test_the_prior_stays_where_a_normalisation_over_places_leaves_contrast_free():
    problem, _ = posed(normalised=True)
    held = steadied(problem).preset
    assert (held.fade, held.newton_steps) == (None, 0)
    assert held.tv_weight > problem.preset.tv_weight
    assert asked_weight(steadied(problem)) == held.tv_weight
    assert asked_weight(problem) == 0


def test_networks_that_normalise_no_places_noise_and_other_presets_keep_their_search():
    problem, _ = posed(normalised=False)
    assert steadied(problem) is problem
    tokens = replace(problem, model=nn.Sequential(problem.model, nn.LayerNorm(4)))
    assert steadied(tokens) is tokens
    problem, _ = posed(normalised=True)
    noisy = replace(problem.observation, covariance=torch.ones(1, 1))
    seen = replace(problem, observation=noisy)
    assert steadied(seen) is seen
    dlg = replace(problem, preset=PRESETS["dlg"])
    assert steadied(dlg) is dlg


@pytest.mark.parametrize(
    ("layer", "words"),
    [(nn.Dropout(0.5), "otherwise when it is called"), (nn.BatchNorm1d(8), "running statistics")],
)
def test_a_network_that_answers_otherwise_at_every_call_is_refused(layer, words):
    model = nn.Sequential(nn.Linear(12, 8), layer, nn.ReLU(), nn.Linear(8, 3))
    with pytest.raises(ValueError, match=words):
        check_repeatable(model.train(), torch.rand(2, 12))
    check_repeatable(model.eval(), torch.rand(2, 12))


def test_a_search_refuses_such_a_network_before_it_begins():
    model = nn.Sequential(nn.Linear(12, 8), nn.Dropout(0.5), nn.ReLU(), nn.Linear(8, 3)).eval()
    seen = observe(
        model, flatten(model), inputs=torch.rand(1, 12), targets=torch.tensor([1]), clip_norm=None,
        noise_std=0.0, generator=torch.Generator(),
    )  # fmt: skip
    zero, one = torch.tensor(0.0), torch.tensor(1.0)
    with pytest.raises(ValueError, match="so that no candidate"):
        reconstruct(
            seen, model.train(), preset="matched", input_shape=(12,), classes=3,
            bounds=(zero, one), generator=torch.Generator(),
        )  # fmt: skip
