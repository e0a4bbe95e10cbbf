import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from skimage import data
from skimage.transform import resize
from torch import Tensor, nn

from overhear.attacks.inversion.inversion import Reconstruction, reconstruct
from overhear.attacks.inversion.optimisation import optimise
from overhear.attacks.inversion.restarts import Search, Smoothed, _stop
from overhear.attacks.problem.objective import (
    PRESETS,
    Preset,
    cosine_distance,
    squared_distance,
    whitened_residual,
)
from overhear.attacks.problem.observation import Observation, observe
from overhear.attacks.problem.problem import (
    Problem,
    build_box,
    distance_of,
    gradients_of,
    scores,
    variations,
)

SHAPE = (3, 6, 6)
SHORT = replace(PRESETS["matched"], adam_steps=24, newton_steps=0, exact=False, starts=2)


class Interrupted(Exception):
    pass


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    torch.set_num_threads(1)


def _network(activation: type[nn.Module] = nn.ReLU) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), activation(), nn.Conv2d(4, 4, 3, 2, 1), activation(),
        nn.Flatten(), nn.Linear(36, 5),
    )  # fmt: skip


def _seen(
    model: nn.Module, *, records: int = 1, models: int = 1, clip_norm: float | None = None,
    noise_std: float = 0.0, dtype: torch.dtype = torch.float32,
) -> tuple[Tensor, Observation]:  # fmt: skip
    generator = torch.Generator().manual_seed(3)
    x = torch.rand(records, *SHAPE, generator=generator)
    flat = torch.cat([p.detach().flatten() for p in model.parameters()])
    points = flat + 0.1 * torch.arange(models)[:, None] * torch.randn(
        flat.shape, generator=generator
    )
    seen = observe(
        model, points.to(dtype), inputs=x.to(dtype), targets=torch.arange(records) % 5,
        clip_norm=clip_norm, noise_std=noise_std, generator=generator,
    )  # fmt: skip
    return x, seen


def _problem(
    model: nn.Module, seen: Observation, preset: Preset, *, labels: Tensor | None = None
) -> Problem:
    return Problem(
        observation=seen, model=model, preset=preset, shape=SHAPE, classes=5, labels=labels,
        box=build_box((torch.tensor(0.0), torch.tensor(1.0)), SHAPE, dtype=seen.gradient.dtype),
        prior_image=None,
    )  # fmt: skip


def _attack(
    model: nn.Module, seen: Observation, preset: Preset, *, checkpoint: Path | None = None,
    progress: Callable[[int, int], None] | None = None, seed: int = 7,
) -> Reconstruction:  # fmt: skip
    return reconstruct(
        seen, model, preset=preset, input_shape=SHAPE, classes=5,
        bounds=(torch.tensor(0.0), torch.tensor(1.0)), progress=progress, checkpoint=checkpoint,
        generator=torch.Generator().manual_seed(seed),
    )  # fmt: skip


@pytest.mark.parametrize("records", [1, 3])
@pytest.mark.parametrize("softness", [0.0, 0.5])
@pytest.mark.parametrize("objective", [cosine_distance, squared_distance, whitened_residual])
def test_the_slope_in_the_pixels_is_that_of_finite_differences(
    objective, softness, records, monkeypatch
):
    # The width follows the layer's size in the search, where the slope holds it fixed.
    monkeypatch.setattr(
        "overhear.attacks.inversion.restarts._size", lambda _: torch.tensor(0.2).double()
    )
    model = _network(nn.Sigmoid if softness == 0 else nn.ReLU).double()
    _, seen = _seen(
        model, records=records, models=2, clip_norm=0.05, noise_std=1e-3, dtype=torch.float64
    )
    preset = replace(SHORT, objective=objective, follow_noise=False)
    labels = torch.arange(records) % 5
    problem = _problem(model, seen, preset, labels=labels)
    soft = nn.functional.one_hot(labels, 5).double()[None]
    generator = torch.Generator().manual_seed(1)
    pixels = torch.rand(1, records, *SHAPE, generator=generator, dtype=torch.float64)
    way = torch.randn(pixels.shape, generator=generator, dtype=torch.float64)
    with Smoothed(softness):
        clipped = gradients_of(problem, pixels, soft, together=False)
        if records == 1:
            assert clipped.norm(dim=-1).flatten().tolist() == pytest.approx([0.05, 0.05])

        def value(x: Tensor) -> Tensor:
            sent = gradients_of(problem, x, soft, together=False)
            return (distance_of(problem)(sent) + variations(problem, x)).sum()

        asked = pixels.clone().requires_grad_()
        (slope,) = torch.autograd.grad(value(asked), asked)
        h = 1e-6
        quotient = float((value(pixels + h * way) - value(pixels - h * way)) / (2 * h))
    assert float((slope * way).sum()) == pytest.approx(quotient, rel=1e-5)


def test_batched_starts_are_the_starts_one_by_one():
    model = _network()
    _, seen = _seen(model, records=2, clip_norm=0.05)
    problem = _problem(model, seen, SHORT, labels=torch.tensor([0, 1]))
    pixels = torch.rand(3, 2, *SHAPE, generator=torch.Generator().manual_seed(0))
    soft = nn.functional.one_hot(torch.tensor([0, 1]), 5).float().expand(3, 2, 5)
    with Smoothed(0.3):
        both = [gradients_of(problem, pixels, soft, together=flag) for flag in (True, False)]
    torch.testing.assert_close(both[0], both[1])


@pytest.mark.slow
def test_a_smoothed_search_finds_what_a_sharp_one_does_not():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 24, 3, 2, 1), nn.ReLU(),
        nn.Flatten(), nn.Linear(384, 5),
    )  # fmt: skip
    crop = data.astronaut()[10:190, 130:310]
    picture = torch.tensor(resize(crop, (8, 8), anti_aliasing=True), dtype=torch.float32)
    x, errors = picture.permute(2, 0, 1)[None], []
    seen = observe(
        model, torch.cat([p.detach().flatten() for p in model.parameters()]), inputs=x,
        targets=torch.tensor([3]), clip_norm=None, noise_std=0.0, generator=torch.Generator(),
    )  # fmt: skip
    for softness in (0.0, 1.0):
        found = reconstruct(
            seen, model, preset=replace(SHORT, adam_steps=250, starts=1, softness=softness),
            input_shape=(3, 8, 8), classes=5, bounds=(torch.tensor(0.0), torch.tensor(1.0)),
            generator=torch.Generator().manual_seed(7),
        )  # fmt: skip
        errors.append(float((found.inputs - x).square().mean()))
    assert errors[1] < errors[0] / 4


def test_the_choice_is_the_least_score_and_never_the_nearest_image():
    model = _network()
    _, seen = _seen(model)
    problem = _problem(model, seen, SHORT, labels=torch.tensor([0]))
    found = optimise(problem, torch.Generator().manual_seed(7), progress=None)
    soft = nn.functional.one_hot(torch.tensor([0]), 5).float()[None]
    best = float(scores(problem, found.pixels[None], soft))
    for seed_starts in (1, 2):
        alone = optimise(
            replace(problem, preset=replace(SHORT, starts=seed_starts)),
            torch.Generator().manual_seed(7),
            progress=None,
        )
        assert best <= float(scores(problem, alone.pixels[None], soft)) * (1 + 1e-6)


def _two(ratios: list[float]) -> Search:
    zeros = torch.zeros(len(ratios), 1, 1)
    search = Search.begin(zeros, zeros)
    search.ratios = torch.tensor(ratios, dtype=torch.float64)
    return search


def test_a_start_that_is_behind_and_falls_no_nearer_stops():
    search = _two([1.0, 4.0])
    _stop(search, torch.arange(2), torch.tensor([1.0, 4.5]), kept=0)
    assert search.running.tolist() == [True, False]


def test_a_late_winner_that_catches_up_is_not_stopped():
    search, losses = _two([math.inf, math.inf]), [(1.0, 9.0), (0.9, 5.0), (0.8, 2.0), (0.7, 0.1)]
    for pair in losses:
        _stop(search, torch.arange(2), torch.tensor(pair), kept=0)
    assert bool(search.running[1])


def test_the_best_and_the_kept_starts_never_stop():
    search = _two([1.0, 1.0, 1.0])
    _stop(search, torch.arange(3), torch.tensor([1.0, 9.0, 9.0]), kept=1)
    assert search.running.tolist() == [True, False, True]


@pytest.mark.parametrize("stop_at", [1, 12, 20])
def test_an_interrupted_search_ends_where_it_would_have_ended(stop_at, tmp_path):
    model = _network()
    _, seen = _seen(model, records=2, clip_norm=0.05)
    preset, place = replace(SHORT, starts=1), tmp_path / "search"
    whole = _attack(model, seen, preset)

    def interrupt(step: int, *_: object) -> None:
        if step == stop_at:
            raise Interrupted

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("overhear.attacks.inversion.restarts.SAVED_EVERY", 5)
        with pytest.raises(Interrupted):
            _attack(model, seen, preset, checkpoint=place, progress=interrupt)
        assert place.exists() == (stop_at > 5)
        # Another seed: starts and everything drawn later come from the file.
        resumed = _attack(model, seen, preset, checkpoint=place, seed=7 if stop_at < 5 else 8)
    assert torch.equal(whole.inputs, resumed.inputs)
    assert whole.iterations == resumed.iterations
    assert not place.exists()


def test_an_interrupted_lbfgs_ends_where_it_would_have_ended(tmp_path):
    model, place = _network(nn.Sigmoid), tmp_path / "search"
    _, seen = _seen(model)
    preset = replace(PRESETS["dlg"], newton_steps=9, starts=2)
    steps = []

    def interrupt(step: int, *_: object) -> None:
        steps.append(step)
        if len(steps) == 7:
            raise Interrupted

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("overhear.attacks.inversion.optimisation._REFRESHED", 4)
        whole = _attack(model, seen, preset)
        with pytest.raises(Interrupted):
            _attack(model, seen, preset, checkpoint=place, progress=interrupt)
        assert place.exists()
        resumed = _attack(model, seen, preset, checkpoint=place, seed=8)
    assert torch.equal(whole.inputs, resumed.inputs)
    assert whole.iterations == resumed.iterations


@pytest.mark.slow
@pytest.mark.parametrize("noise_std", [0.0, 1e-4])
def test_a_search_whose_label_stays_wrong_tries_each_label(noise_std):
    """A softmax that is sure of a wrong label has no slope: the descent leaves it there."""
    model = _network(nn.Sigmoid)
    x, seen = _seen(model, dtype=torch.float64, clip_norm=1.0, noise_std=noise_std)
    model = model.double()
    preset = replace(PRESETS["dlg"], starts=1, newton_steps=40)
    sure = torch.tensor([[[0.0, 0.0, 1000.0, 0.0, 0.0]]]).double()
    with pytest.MonkeyPatch.context() as patch:
        where = "overhear.attacks.inversion.optimisation."
        patch.setattr(where + "_label_starts", lambda *_, **__: sure)
        found = optimise(
            _problem(model, seen, preset), torch.Generator().manual_seed(1), progress=None
        )
        assert found.labels.tolist() == [0]
        if not noise_std:
            assert float((found.pixels - x).abs().max()) < 1e-3
        patch.setattr(where + "_asks_every_label", lambda _: False)
        kept = optimise(
            _problem(model, seen, preset), torch.Generator().manual_seed(1), progress=None
        )
        assert kept.labels.tolist() == [2]


def test_a_checkpoint_of_another_observation_is_refused(tmp_path):
    model, place = _network(), tmp_path / "search"
    _, seen = _seen(model)

    def interrupt(*_: int) -> None:
        if place.exists():
            raise Interrupted

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("overhear.attacks.inversion.restarts.SAVED_EVERY", 5)
        with pytest.raises(Interrupted):
            _attack(model, seen, SHORT, checkpoint=place, progress=interrupt)
    with pytest.raises(ValueError, match="belongs to another observation, preset"):
        _attack(model, replace(seen, gradient=2 * seen.gradient), SHORT, checkpoint=place)
    with pytest.raises(ValueError, match="belongs to another observation, preset"):
        _attack(model, seen, replace(SHORT, tv_weight=0.5), checkpoint=place)


@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_the_size_of_an_unclipped_gradient_does_not_matter_to_the_cosine(scale):
    model = _network()
    _, seen = _seen(model)
    preset = replace(SHORT, starts=1)
    plain = _attack(model, seen, preset)
    scaled = _attack(model, replace(seen, gradient=scale * seen.gradient), preset)
    torch.testing.assert_close(plain.inputs, scaled.inputs, atol=1e-3, rtol=0)
