from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from overhear.attacks.problem.labels import (
    likeliest_label,
    recognised,
    recover_labels,
    stands_out,
    without_decay,
)  # fmt: skip
from overhear.attacks.problem.observation import Observation, observe
from overhear.training.data.load import load_dataset
from overhear.training.models.parameters import build_model, flatten, unflatten

CLASSES = 10


def _observe(
    labels: list[int], *, bias: bool = True, clip_norm: float | None = None,
    noise_std: float = 0.0, seed: int = 0,
) -> tuple[nn.Module, Observation]:  # fmt: skip
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, CLASSES, bias=bias)
    )
    flat = torch.cat([p.detach().flatten() for p in model.parameters()])
    generator = torch.Generator().manual_seed(seed)
    seen = observe(
        model, flat, inputs=torch.rand(len(labels), 1, 8, 8, generator=generator),
        targets=torch.tensor(labels), clip_norm=clip_norm, noise_std=noise_std, generator=generator,
    )  # fmt: skip
    return model, seen


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("clip_norm", [None, 0.1])
def test_one_record_always_gives_its_label_away(bias, clip_norm):
    for label in range(CLASSES):
        model, seen = _observe([label], bias=bias, clip_norm=clip_norm, seed=label)
        found = recover_labels(seen, model, classes=CLASSES)
        assert found is not None
        assert found.tolist() == [label]


def test_a_tenth_of_noise_does_not_hide_the_label_of_one_record():
    hits = 0
    for trial in range(40):
        model, seen = _observe([trial % CLASSES], clip_norm=1.0, noise_std=0.03, seed=trial)
        found = recover_labels(seen, model, classes=CLASSES)
        hits += found is not None and int(found) == trial % CLASSES
    # n = 40; chance gives 4, and 36 hits have probability below 1e-30 under it.
    assert hits >= 36


@pytest.mark.parametrize("clip_norm", [None, 0.3])
@pytest.mark.parametrize("labels", [[3, 3, 3, 3], [0, 1, 2, 9], [5, 5, 1, 7, 7, 7, 2, 2]])
def test_a_batch_gives_its_labels_away_with_duplicates(labels, clip_norm):
    model, seen = _observe(labels, clip_norm=clip_norm)
    found = recover_labels(seen, model, classes=CLASSES)
    assert found is not None
    assert found.tolist() == sorted(labels)


def test_a_batch_without_a_bias_gives_its_labels_away():
    model, seen = _observe([4, 4, 8, 1], bias=False)
    found = recover_labels(seen, model, classes=CLASSES)
    assert found is not None
    assert found.tolist() == [1, 4, 4, 8]


def test_two_classes_are_told_apart():
    for label in (0, 1):
        model = nn.Linear(6, 2)
        flat = torch.cat([p.detach().flatten() for p in model.parameters()])
        seen = observe(
            model, flat, inputs=torch.ones(1, 6), targets=torch.tensor([label]), clip_norm=None,
            noise_std=0.0, generator=torch.Generator(),
        )  # fmt: skip
        found = recover_labels(seen, model, classes=2)
        assert found is not None
        assert found.tolist() == [label]


def test_a_network_that_ends_otherwise_gives_no_labels():
    model = nn.Sequential(nn.Conv2d(1, 3, 8), nn.Flatten())
    flat = torch.cat([p.detach().flatten() for p in model.parameters()])
    seen = observe(
        model, flat, inputs=torch.rand(1, 1, 8, 8), targets=torch.tensor([0]), clip_norm=None,
        noise_std=0.0, generator=torch.Generator(),
    )  # fmt: skip
    assert recover_labels(seen, model, classes=3) is None


def test_probabilities_that_are_none_are_refused():
    model, seen = _observe([1, 2])
    with pytest.raises(ValueError, match="sum to 1"):
        recover_labels(seen, model, classes=CLASSES, probabilities=torch.ones(CLASSES))


def test_several_intercepts_show_a_label_that_one_of_them_hides():
    hits = {1: 0, 8: 0}
    for trial in range(20):
        label = trial % CLASSES
        model, _ = _observe([label], seed=trial)
        flat = torch.cat([p.detach().flatten() for p in model.parameters()])
        generator = torch.Generator().manual_seed(trial)
        image = torch.rand(1, 1, 8, 8, generator=generator)
        for count in hits:
            seen = observe(
                model, flat.repeat(count, 1), inputs=image, targets=torch.tensor([label]),
                clip_norm=1.0, noise_std=0.15, generator=generator,
            )  # fmt: skip
            found = recover_labels(seen, model, classes=CLASSES)
            hits[count] += found is not None and int(found) == label
    assert hits[8] > hits[1]
    assert hits[8] >= 18


@pytest.mark.parametrize("network", ["linear", "mlp"])
def test_all_layers_tell_a_label_that_noise_hides_in_the_last(network):
    # 40 digits at mu 4. Guessing reads more than 20 with probability below 1e-10.
    data, made = load_dataset("digits"), torch.Generator().manual_seed(0)
    model = build_model(network, input_shape=data.input_shape, classes=CLASSES, generator=made)
    order = torch.randperm(len(data.test_targets), generator=made)
    image, last, likeliest = data.test_inputs[order[40:]].mean(dim=0), 0, 0
    for number, at in enumerate(order[:40]):
        seen = observe(
            model, flatten(model).detach(), inputs=data.test_inputs[at][None],
            targets=data.test_targets[at][None], clip_norm=1.0, noise_std=0.25,
            generator=torch.Generator().manual_seed(number),
        )  # fmt: skip
        assert not stands_out(seen, model, classes=CLASSES)
        read = recover_labels(seen, model, classes=CLASSES)
        assert read is not None
        last += int(read[0]) == int(data.test_targets[at])
        found = likeliest_label(seen, model, image=image, classes=CLASSES)
        likeliest += int(found[0]) == int(data.test_targets[at])
    assert last < 16
    assert likeliest > 28


def test_a_last_layer_that_stands_out_of_the_noise_is_read():
    model, seen = _observe([3], noise_std=1e-4)
    assert stands_out(seen, model, classes=CLASSES)
    assert not stands_out(_observe([3], noise_std=1.0)[1], model, classes=CLASSES)


def _ternary(g: Tensor, model: nn.Module) -> Tensor:
    """Signs of each tensor's larger half, in a size of its own."""
    parts = [p.flatten() for p in unflatten(model, g[0]).values()]
    return torch.cat([p.sign() * (p.abs() > p.abs().median()) * p.abs().max() for p in parts])[None]


def test_a_last_layer_of_few_features_shows_no_decay():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 1), nn.Linear(1, CLASSES))
    z = model(torch.rand(2, 8))
    made = torch.autograd.grad((z - 1).square().mean(), list(model.parameters()))
    g = torch.cat([part.flatten() for part in made])
    seen = Observation.single(
        gradient=g, model=flatten(model).detach(), noise_std=0.0, clip_norm=None, records=2
    )
    assert without_decay(seen, model, classes=CLASSES)[1] == []


@pytest.mark.parametrize("kind", ["cut", "saturated pixels", "signs", "8 bits", "ternary"])
def test_numbers_are_taken_as_cut_where_they_were_alone(kind):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, CLASSES))
    model[2].weight.data *= 20.0
    x = torch.rand(1, 64).round() if kind == "saturated pixels" else torch.rand(1, 64)
    seen = observe(
        model, flatten(model), inputs=x, targets=torch.tensor([3]), clip_norm=None, noise_std=0.0,
        generator=torch.Generator(),
    )  # fmt: skip
    g, bound = seen.gradient, float(seen.gradient.abs().quantile(0.8))
    step = float(g.abs().max()) / 127
    few = {"signs": g.sign(), "8 bits": (g / step).round() * step, "ternary": _ternary(g, model)}
    g = {"cut": g.clamp(-bound, bound), **few}.get(kind, g)
    known, said = recognised(replace(seen, gradient=g), model, classes=CLASSES)
    assert (known.cut is not None, any("taken as cut" in one for one in said)) == (
        (kind == "cut"),
    ) * 2
    assert known.uncut().shown is None or int(known.uncut().shown.sum()) == int(
        (g.abs() < bound).sum()
    )
