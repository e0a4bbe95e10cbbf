from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional

from overhear.attacks.inversion.inversion import Reconstruction, reconstruct
from overhear.attacks.problem.objective import PRESETS, Preset
from overhear.attacks.problem.observation import Observation, observe
from overhear.attacks.scoring.metrics import blind_guess, match

SHAPE = (1, 8, 8)
BOUNDS = (torch.tensor(0.0), torch.tensor(1.0))


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def digits():
    raw = load_digits()
    images = torch.tensor(raw.images / 16, dtype=torch.float32)[:, None]
    return images, torch.tensor(raw.target)


def _network(name: str) -> nn.Module:
    torch.manual_seed(0)
    networks = {
        "mlp": lambda: nn.Sequential(
            nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)
        ),
        "conv": lambda: nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 16, 3, 2, 1), nn.ReLU(),
            nn.Flatten(), nn.Linear(256, 10),
        ),
        "sigmoid": lambda: nn.Sequential(
            nn.Conv2d(1, 6, 3, padding=1), nn.Sigmoid(), nn.Conv2d(6, 12, 3, 2, 1), nn.Sigmoid(),
            nn.Flatten(), nn.Linear(192, 10),
        ),
    }  # fmt: skip
    return networks[name]()


def _observe(
    model: nn.Module, batch: tuple[Tensor, Tensor], *, clip_norm: float | None = None,
    noise_std: float = 0.0, seed: int = 0,
) -> Observation:  # fmt: skip
    return observe(
        model, torch.cat([p.detach().flatten() for p in model.parameters()]), inputs=batch[0],
        targets=batch[1], clip_norm=clip_norm, noise_std=noise_std,
        generator=torch.Generator().manual_seed(seed),
    )  # fmt: skip


def _attack(
    seen: Observation,
    model: nn.Module,
    preset: str | Preset,
    *,
    prior: Tensor | None = None,
    labels: Tensor | None = None,
) -> Reconstruction:
    return reconstruct(
        seen, model, preset=preset, input_shape=SHAPE, classes=10, bounds=BOUNDS,
        generator=torch.Generator().manual_seed(7), prior_image=prior, labels=labels,
    )  # fmt: skip


SHORT = replace(PRESETS["inverting-gradients"], adam_steps=800)


@pytest.mark.parametrize(
    ("network", "preset"),
    [
        ("mlp", "dlg"),
        ("mlp", "matched"),
        ("sigmoid", "dlg"),  # L-BFGS asks for a smooth network: ReLU convolutions stop it early
        ("sigmoid", "idlg"),
        pytest.param("conv", SHORT, marks=pytest.mark.slow, id="conv-inverting-gradients"),
        pytest.param("conv", "matched", marks=pytest.mark.slow),
    ],
)
def test_an_undefended_gradient_is_a_copy_of_its_image(network, preset, digits):
    images, labels = digits
    model, solved = _network(network), 0
    for index in range(4):
        truth = images[index : index + 1]
        seen = _observe(model, (truth, labels[index : index + 1]))
        found = _attack(seen, model, preset)
        solved += match(truth, found.inputs).psnr[0] >= 30
    assert solved >= 3


def test_signed_adam_on_the_cosine_solves_a_digit(digits):
    model, truth = _network("mlp"), digits[0][:1]
    found = _attack(_observe(model, (truth, digits[1][:1])), model, SHORT)
    assert match(truth, found.inputs).psnr[0] >= 30


@pytest.mark.parametrize("network", ["mlp", "sigmoid"])
def test_a_clip_alone_hides_nothing(network, digits):
    model, truth = _network(network), digits[0][:1]
    found = _attack(_observe(model, (truth, digits[1][:1]), clip_norm=0.1), model, "idlg")
    assert match(truth, found.inputs).psnr[0] >= 30


def test_a_batch_of_four_is_rebuilt_in_some_order(digits):
    model, truth = _network("mlp"), digits[0][:4]
    settings = replace(PRESETS["matched"], adam_steps=200, starts=1, exact=False)
    found = _attack(_observe(model, (truth, digits[1][:4])), model, settings)
    assert min(match(truth, found.inputs).psnr) >= 30
    assert found.labels.tolist() == [0, 1, 2, 3]


def test_a_batch_of_a_wide_relu_network_is_certified_before_any_search(digits):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 10)).double()
    truth = digits[0][:4].double()
    found = _attack(_observe(model, (truth, digits[1][:4])), model, "matched")
    assert (found.stage, found.iterations) == ("certified", 0)
    assert max(match(truth.float(), found.inputs.float()).mse) < 1e-10
    assert sorted(found.labels.tolist()) == [0, 1, 2, 3]


def test_what_is_not_certified_is_searched_in_what_the_certified_ones_leave(digits):
    model = _network("mlp").double()
    truth = torch.cat([digits[0][:2], digits[0][:1] * 0.999]).double()  # 0 and 2 share a pattern
    labels = torch.tensor([0, 1, 2])
    settings = replace(PRESETS["matched"], adam_steps=100, starts=1)
    found = _attack(_observe(model, (truth, labels)), model, settings)
    assert found.stage == "1 certified, 2 by optimisation"
    assert len(found.inputs) == 3
    assert sorted(match(truth.float(), found.inputs.float()).mse)[0] < 1e-10


@pytest.mark.parametrize("name", ["conv", "sigmoid"])
def test_one_record_is_peeled_off_convolutions_before_any_search(name, digits):
    model, truth = _network(name).double(), digits[0][:1].double()
    found = _attack(_observe(model, (truth, digits[1][:1])), model, "matched")
    assert (found.stage, found.iterations) == ("peeling", 0)
    assert max(match(truth.float(), found.inputs.float()).mse) < 1e-10


@pytest.mark.parametrize(
    "preset", [pytest.param("dlg", marks=pytest.mark.slow), "inverting-gradients", "matched"]
)
@pytest.mark.parametrize("network", ["mlp", pytest.param("conv", marks=pytest.mark.slow)])
def test_a_defended_gradient_falls_back_to_the_blind_guess(network, preset, digits):
    images, labels = digits
    prior, model, settings = blind_guess(images[1000:]), _network(network), PRESETS[preset]
    settings = replace(settings, adam_steps=min(settings.adam_steps, 100), starts=1)
    for index in range(1 if preset == "dlg" else 2):  # which tries each label
        batch = images[index : index + 1], labels[index : index + 1]
        seen = _observe(model, batch, clip_norm=1.0, noise_std=1 / 3, seed=index)
        found = _attack(seen, model, settings, prior=prior)
        assert (found.stage, found.supported) == ("prior", (False,))
        torch.testing.assert_close(found.inputs[0], prior)


def test_an_image_that_undoes_a_wrong_label_falls_back(digits):
    images, labels = digits
    model, prior = _network("mlp"), blind_guess(images[1000:])
    seen = _observe(model, (images[1:2], labels[1:2]), clip_norm=1.0, noise_std=0.1, seed=1)
    settings = replace(PRESETS["matched"], adam_steps=150, starts=1, exact=False)
    found = _attack(seen, model, settings, prior=prior, labels=torch.tensor([4]))
    assert found.stage == "prior"
    assert _attack(seen, model, settings, prior=prior).labels.tolist() == [1]  # which it is


@pytest.mark.slow
@pytest.mark.parametrize("noise_std", [0.01, 0.1])
def test_no_noise_level_makes_the_attack_worse_than_the_blind_guess(noise_std, digits):
    images, labels = digits
    prior, model, errors, blind = blind_guess(images[1000:]), _network("mlp"), 0.0, 0.0
    settings = replace(PRESETS["matched"], adam_steps=300, starts=2)
    for index in range(2):  # fixed seeds: deterministic, no false alarms
        batch = images[index : index + 1], labels[index : index + 1]
        seen = _observe(model, batch, clip_norm=1.0, noise_std=noise_std, seed=index)
        found = _attack(seen, model, settings, prior=prior)
        errors += match(batch[0], found.inputs).mse[0]
        blind += match(batch[0], prior[None]).mse[0]
    assert errors <= blind * (1 + 1e-6)


def test_a_failed_search_without_noise_falls_back_too(digits):
    model, truth = _network("sigmoid"), digits[0][:1]
    hopeless = replace(SHORT, adam_steps=1)
    seen = _observe(model, (truth, digits[1][:1]))
    found = _attack(seen, model, hopeless, prior=truth[0])
    assert found.stage == "prior"


def test_the_choice_goes_by_the_objective(digits):
    model, batch = _network("conv"), (digits[0][2:3], digits[1][2:3])
    seen = _observe(model, batch)
    few = replace(SHORT, adam_steps=60, starts=1)
    one, several = (_attack(seen, model, replace(few, starts=n)) for n in (1, 4))
    assert several.objective <= one.objective


def test_known_labels_are_used_as_given(digits):
    model, batch = _network("mlp"), (digits[0][:1], digits[1][:1])
    found = reconstruct(
        _observe(model, batch), model, preset="dlg", input_shape=SHAPE, classes=10, bounds=BOUNDS,
        generator=torch.Generator(), labels=batch[1],
    )  # fmt: skip
    assert found.labels.tolist() == batch[1].tolist()
    assert match(batch[0], found.inputs).psnr[0] >= 30


def test_the_same_generator_gives_the_same_reconstruction(digits):
    model, batch = _network("mlp"), (digits[0][:1], digits[1][:1])
    seen = _observe(model, batch)
    first, second = (_attack(seen, model, replace(SHORT, adam_steps=5)) for _ in range(2))
    assert torch.equal(first.inputs, second.inputs)


def test_results_keep_to_bounds_that_differ_by_channel():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3))
    low, high = torch.tensor([-1.0, 2.0]), torch.tensor([1.0, 3.0])
    truth = low.view(2, 1, 1) + (high - low).view(2, 1, 1) * torch.rand(1, 2, 6, 6)
    found = reconstruct(
        _observe(model, (truth, torch.tensor([2]))), model, preset=replace(SHORT, adam_steps=20),
        input_shape=(2, 6, 6), classes=3, bounds=(low, high), generator=torch.Generator(),
    )  # fmt: skip
    lows, highs = found.inputs.amin(dim=(0, 2, 3)), found.inputs.amax(dim=(0, 2, 3))
    assert bool((lows >= low - 1e-6).all())
    assert bool((highs <= high + 1e-6).all())


def test_progress_rises_to_the_total(digits):
    model, batch, ticks = _network("conv"), (digits[0][:1], digits[1][:1]), []
    settings = replace(PRESETS["matched"], adam_steps=5, newton_steps=2, starts=2, exact=False)
    reconstruct(
        _observe(model, batch), model, preset=settings, input_shape=SHAPE, classes=10,
        bounds=BOUNDS, generator=torch.Generator(),
        progress=lambda step, total, _: ticks.append((step, total)),
    )  # fmt: skip
    steps = [step for step, _ in ticks]
    assert steps == sorted(steps)
    assert ticks[-1][0] == ticks[-1][1]


def test_an_unknown_preset_is_refused_by_name(digits):
    model, batch = _network("mlp"), (digits[0][:1], digits[1][:1])
    with pytest.raises(ValueError, match="preset='dgl' is unknown; choose one of dlg"):
        _attack(_observe(model, batch), model, "dgl")


def test_a_prior_image_of_another_shape_is_refused(digits):
    model, batch = _network("mlp"), (digits[0][:1], digits[1][:1])
    with pytest.raises(ValueError, match="prior_image of shape"):
        _attack(_observe(model, batch), model, "dlg", prior=torch.zeros(3, 8, 8))


def test_a_search_without_noise_that_explains_little_is_no_better_than_the_prior(digits):
    model, batch = _network("conv"), (digits[0][:1], digits[1][:1])
    seen = _observe(model, batch)
    generator = torch.Generator().manual_seed(0)
    other = replace(seen, gradient=torch.randn(seen.gradient.shape, generator=generator))
    settings = replace(PRESETS["matched"], adam_steps=30, newton_steps=1, starts=1, exact=False)
    assert _attack(other, model, settings, prior=torch.full(SHAPE, 0.5)).stage == "prior"


def _of_loss(
    model: nn.Module, batch: tuple[Tensor, Tensor], loss: Callable[[Tensor, Tensor], Tensor]
) -> Observation:
    weights = list(model.parameters())
    made = torch.autograd.grad(loss(model(batch[0]), batch[1]), weights)
    flat, point = (torch.cat([v.detach().flatten() for v in of]) for of in (made, weights))
    return Observation.single(
        gradient=flat, model=point, noise_std=0.0, clip_norm=None, records=len(batch[0])
    )


def _bits(outputs: Tensor, labels: Tensor) -> Tensor:
    return functional.binary_cross_entropy_with_logits(
        outputs, functional.one_hot(labels, outputs.shape[1]).float()
    )


def _smooth(outputs: int, *, bias: bool = True) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 12, 5, 2, 2), nn.GELU(), nn.Conv2d(12, 24, 3, 2, 1), nn.GELU(), nn.Flatten(),
        nn.Linear(96, outputs, bias=bias),
    )  # fmt: skip


def _any_loss(seen: Observation, model: nn.Module, classes: int, prior: Tensor) -> Reconstruction:
    return reconstruct(
        seen, model, preset=replace(PRESETS["matched"], adam_steps=500, starts=1),
        input_shape=SHAPE, classes=classes, bounds=BOUNDS, prior_image=prior,
        generator=torch.Generator().manual_seed(0),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("records", "outputs", "loss", "bias", "reached"),
    [
        (1, 1, lambda o, y: (o[:, 0] - y / 10).square().mean(), True, 60),
        pytest.param(1, 10, _bits, True, 60, marks=pytest.mark.slow),
        # The declared loss is tried first.
        pytest.param(1, 10, _bits, False, 25, marks=pytest.mark.slow),
        (3, 10, _bits, True, 20),
        pytest.param(
            2,
            10,
            lambda o, y: (o - functional.one_hot(y, 10)).square().mean(),
            True,
            20,
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_search_needs_no_loss(records, outputs, loss, bias, reached, digits):
    images, labels = digits
    model, truth = _smooth(outputs, bias=bias), images[:records]
    seen = _of_loss(model, (truth, labels[:records]), loss)
    found = _any_loss(seen, model, outputs, images[100:].mean(dim=0))
    assert (found.stage, found.supported) == ("optimisation", (True,) * records)
    assert found.loss is not None
    assert (found.loss.searched, found.loss.labelled) == (True, False)
    assert sum(match(truth, found.inputs).psnr) / records > reached


@pytest.mark.slow
def test_a_search_without_a_loss_finds_nothing_where_no_record_is(digits):
    # The sizes of a gradient with their signs drawn; and fewer numbers than there are unknowns.
    images, labels = digits
    model, prior = _smooth(10), images[100:].mean(dim=0)
    seen = _of_loss(model, (images[:3], labels[:3]), _bits)
    signs = torch.randn(seen.gradient.shape, generator=torch.Generator().manual_seed(0)).sign()
    noise = replace(seen, gradient=signs * seen.gradient)
    few = nn.Sequential(nn.Conv2d(1, 1, 5, 2, 2), nn.GELU(), nn.Flatten(), nn.Linear(16, 10))
    for network, of in ((model, noise), (few, _of_loss(few, (images[:3], labels[:3]), _bits))):
        found = _any_loss(of, network, 10, prior)
        assert found.loss is None or not any(found.supported)


@pytest.mark.parametrize("bias", [True, False])
def test_multiples_speak_against_a_search_without_a_loss_where_they_explain_as_much(bias, digits):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 12, 5, 2, 2, bias=bias), nn.ReLU(), nn.Conv2d(12, 24, 3, 2, 1, bias=bias),
        nn.ReLU(), nn.Flatten(), nn.Linear(96, 1, bias=bias),
    )  # fmt: skip
    images, labels = digits
    batch = images[:1], labels[:1]
    seen = _of_loss(model, batch, lambda o, y: (o[:, 0] - y / 10 - 1).square().mean())
    found = _any_loss(seen, model, 1, images[100:].mean(dim=0))
    assert found.iterations > 0
    assert found.supported == (bias,)
