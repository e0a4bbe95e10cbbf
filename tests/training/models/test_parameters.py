"""Facts about the reference networks and flat parameter vectors."""

import sys
import types

import opacus.layers
import pytest
import torch
from torch import nn
from torch.nn.functional import dropout

from overhear.privacy.errors import InputError
from overhear.training.models.parameters import (
    MODEL_NAMES,
    build_model,
    flatten,
    unflatten,
    validate_model,
)

IMAGE = (3, 32, 32)


def _build(name, input_shape=IMAGE, classes=10, seed=0):
    return build_model(
        name, input_shape=input_shape, classes=classes,
        generator=torch.Generator().manual_seed(seed),
    )  # fmt: skip


def _own(monkeypatch, function, name="build"):
    module = types.ModuleType("networks_of_my_own")
    setattr(module, name, function)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return f"{module.__name__}:{name}"


@pytest.mark.parametrize("name", MODEL_NAMES)
def test_the_generator_alone_decides_the_weights(name):
    assert torch.equal(flatten(_build(name, seed=5)), flatten(_build(name, seed=5)))
    assert not torch.equal(flatten(_build(name, seed=5)), flatten(_build(name, seed=6)))


def test_weights_are_those_of_torch_manual_seed():
    before = torch.get_rng_state()
    try:
        torch.manual_seed(1234)
        expected = flatten(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)))
    finally:
        torch.set_rng_state(before)
    assert torch.equal(flatten(_build("linear", (1, 8, 8), seed=1234)), expected)


def test_the_global_generator_is_left_alone_and_ours_moves_on():
    generator = torch.Generator().manual_seed(0)
    before = torch.get_rng_state()
    one = build_model("mlp", input_shape=(8,), classes=2, generator=generator)
    assert torch.equal(torch.get_rng_state(), before)
    two = build_model("mlp", input_shape=(8,), classes=2, generator=generator)
    assert not torch.equal(flatten(one), flatten(two))


def test_the_global_generator_is_restored_after_a_failure(monkeypatch):
    def broken(input_shape, classes):
        nn.Linear(*input_shape, classes)
        raise RuntimeError("no")

    before = torch.get_rng_state()
    with pytest.raises(InputError, match="raised RuntimeError: no;"):
        _build(_own(monkeypatch, broken), (4,))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("name", MODEL_NAMES)
def test_unflatten_inverts_flatten(name):
    model = _build(name)
    views = unflatten(model, flatten(model))
    assert list(views) == [key for key, _ in model.named_parameters()]
    assert all(torch.equal(views[key], value) for key, value in model.named_parameters())


def test_flatten_is_row_major_in_the_order_of_named_parameters():
    model = nn.Linear(3, 2)
    with torch.no_grad():
        model.weight.copy_(torch.arange(6.0).reshape(2, 3))
        model.bias.copy_(torch.tensor([6.0, 7.0]))
    assert flatten(model).tolist() == [0, 1, 2, 3, 4, 5, 6, 7]


def test_flatten_is_a_copy_and_unflatten_a_view():
    model = nn.Linear(3, 2)
    flat = flatten(model)
    unflatten(model, flat)["bias"].fill_(9.0)
    assert flat[-2:].tolist() == [9.0, 9.0]
    assert not torch.equal(model.bias.detach(), flat[-2:])


def test_stacked_models_unflatten_together():
    model = nn.Linear(3, 2)
    stacked = torch.rand(4, 8)  # (A, D)
    views = unflatten(model, stacked)
    assert views["weight"].shape == (4, 2, 3)
    assert torch.equal(views["weight"][2], unflatten(model, stacked[2])["weight"])


@pytest.mark.parametrize("shape", [(7,), (9,), (8, 1), ()])
def test_unflatten_refuses_another_number_of_parameters(shape):
    with pytest.raises(ValueError, match="has D=8 parameters; the last dimension must be D"):
        unflatten(nn.Linear(3, 2), torch.zeros(shape))


class _MyNorm(nn.BatchNorm2d):
    """A subclass is what opacus passes over."""


@pytest.mark.parametrize(
    "layer",
    [
        nn.BatchNorm2d(4),
        nn.BatchNorm2d(4, affine=False),
        nn.BatchNorm2d(4, track_running_stats=False),
        nn.SyncBatchNorm(4),
        _MyNorm(4),
        nn.InstanceNorm2d(4, track_running_stats=True),
    ],
)
def test_layers_that_mix_examples_are_refused_with_the_remedy(layer):
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Sequential(layer))
    with pytest.raises(ValueError, match=r"layer '1\.0' \(.*use nn\.GroupNorm instead"):
        validate_model(model)


@pytest.mark.parametrize(
    "layer",
    [
        nn.BatchNorm2d(4),
        nn.BatchNorm2d(4, affine=False),
        _MyNorm(4),
        nn.InstanceNorm2d(4, track_running_stats=True),
        nn.Dropout2d(0.5),
        nn.MultiheadAttention(4, 2, dropout=0.1),
    ],
)
def test_in_evaluation_mode_statistics_are_constants_and_nothing_is_random(layer):
    validate_model(nn.Sequential(nn.Conv2d(3, 4, 3), layer).eval(), evaluated=True)


def test_what_normalises_by_the_batch_in_evaluation_mode_too_is_refused():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, track_running_stats=False))
    with pytest.raises(ValueError, match="mixes the examples"):
        validate_model(model.eval(), evaluated=True)


def test_attention_passes_and_is_refused_where_it_is_random():
    validate_model(nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0))
    with pytest.raises(ValueError, match=r"layer '0' \(MultiheadAttention\) is random.*dropout=0"):
        validate_model(nn.ModuleList([nn.MultiheadAttention(4, 2, dropout=0.1)]))


def test_all_that_opacus_refuses_but_attention_and_recurrent_layers_is_refused():
    kinds = set(opacus.validators.ModuleValidator.VALIDATORS) - {nn.MultiheadAttention}
    refused = (nn.modules.batchnorm._BatchNorm, nn.modules.instancenorm._InstanceNorm)
    kinds -= {nn.RNN, nn.LSTM, nn.GRU}  # which go step by step
    assert len(kinds) >= 6
    assert all(issubclass(kind, refused) for kind in kinds)


def test_dropout_frozen_and_empty_models_are_refused():
    with pytest.raises(ValueError, match="is random"):
        validate_model(nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.1)))
    with pytest.raises(ValueError, match="no parameters"):
        validate_model(nn.ReLU())
    with pytest.raises(ValueError, match="'weight' is frozen"):
        validate_model(nn.Linear(2, 2).requires_grad_(requires_grad=False))


@pytest.mark.parametrize("name", MODEL_NAMES)
def test_reference_networks_and_group_norm_pass(name):
    model = _build(name)
    model.append(nn.Unflatten(1, (10, 1)))
    model.append(nn.GroupNorm(2, 10))
    validate_model(model.eval())
    assert not model.training


def test_a_network_of_your_own_is_built_and_seeded(monkeypatch):
    name = _own(monkeypatch, lambda shape, classes: nn.Sequential(nn.Linear(shape[0], classes)))
    assert torch.equal(flatten(_build(name, (4,), 3)), flatten(_build(name, (4,), 3)))


@pytest.mark.parametrize(
    ("function", "error", "message"),
    [
        (3, TypeError, r"must name a function \(input_shape, classes\) -> nn.Module"),
        (lambda _shape, _classes: "x", TypeError, "returned str, must be an nn.Module"),
        (
            lambda shape, classes: nn.Linear(shape[0], classes + 1),
            ValueError,
            r"gives \(2, 4\) for 2 inputs \(4,\), must be logits \(2, 3\)",
        ),
        (
            lambda shape, classes: nn.Sequential(
                nn.Linear(shape[0], classes), nn.BatchNorm1d(classes)
            ),
            ValueError,
            "use nn.GroupNorm instead",
        ),
    ],
)
def test_a_network_of_your_own_must_fit(monkeypatch, function, error, message):
    with pytest.raises(error, match=message):
        _build(_own(monkeypatch, function), (4,), 3)


@pytest.mark.parametrize(
    "source",
    [
        "raise SystemExit(0)",
        "import sys; sys.exit('no')",
        "def build(:",
        "{}['missing']",
        "raise MemoryError",
        "def __getattr__(name): raise SystemExit(0)",
        "def build(*a): raise SystemExit(0)",
        "def build(*a): raise RuntimeError('boom')",
        "def build(*a): raise ValueError('x' * 10_000)",
        "def build(shape, classes):\n"
        "    from torch import nn\n"
        "    class M(nn.Linear):\n"
        "        def forward(self, x): raise SystemExit(0)\n"
        "    return M(shape[0], classes)",
    ],
)
def test_whatever_a_network_of_your_own_raises_is_told(source, monkeypatch, tmp_path):
    (tmp_path / "network_that_fails.py").write_text(source, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InputError, match=r"network_that_fails.*; mend the module") as told:
        _build("network_that_fails:build", (4,))
    assert " raised " in str(told.value)
    assert len(str(told.value)) < 700
    sys.modules.pop("network_that_fails", None)


@pytest.mark.parametrize("place", ["import", "build"])
def test_an_interrupt_in_a_network_of_your_own_passes(place, monkeypatch, tmp_path):
    body = {"import": "raise KeyboardInterrupt", "build": "def build(*a): raise KeyboardInterrupt"}
    (tmp_path / "network_that_waits.py").write_text(body[place], encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        _build("network_that_waits:build", (4,))
    sys.modules.pop("network_that_waits", None)


class _Functional(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.function = function

    def forward(self, inputs):
        return self.function(self.layer(inputs))


@pytest.mark.parametrize(
    "function",
    [
        lambda logits: logits - logits.mean(dim=0),
        lambda logits: dropout(logits, p=0.5, training=True),
    ],
)
def test_mixing_and_chance_without_a_layer_are_found_by_running(monkeypatch, function):
    name = _own(monkeypatch, lambda _shape, _classes: _Functional(function))
    with pytest.raises(ValueError, match="treat the examples of a batch separately"):
        _build(name, (4,), 3)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("resnet", "unknown; choose one of linear, mlp"),
        ("no_such_module_here:build", "no module .* or installed; run the command in its folder"),
        ("math:build", "'math' has no 'build'"),
        (":build", 'must read "module:NAME"'),
        ("..:build", 'must read "module:NAME"'),
        ("math:", 'must read "module:NAME"'),
    ],
)
def test_an_unknown_name_is_refused_with_the_remedy(name, message):
    with pytest.raises(ValueError, match=message):
        _build(name)


@pytest.mark.parametrize(
    ("name", "input_shape", "classes", "message"),
    [
        ("lenet", (1, 8, 8), 10, "sides of at least 12; use 'mlp' or 'linear'"),
        ("cnn", (123,), 2, r"needs \(channels, height, width\)"),
        ("linear", (), 2, "must hold positive sides"),
        ("linear", (0, 3), 2, "must hold positive sides"),
        ("linear", (3,), 1, "a binary task has two logits"),
    ],
)
def test_a_shape_that_does_not_fit_is_refused(name, input_shape, classes, message):
    with pytest.raises(ValueError, match=message):
        _build(name, input_shape, classes)


def test_a_network_beyond_memory_is_refused_before_it_is_made():
    with pytest.raises(ValueError, match=r"model 'linear' of 1000000000001000 parameters.* GB of"):
        build_model("linear", input_shape=(10**12,), classes=1000, generator=torch.Generator())
