"""The model that gradients belong to: how it is found, what it is checked for, what is doubted."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from overhear.attacks.problem.observation import Sent, sent_gradient
from overhear.runs.attack.layouts import facts_of
from overhear.runs.attack.model import Posed, build_problem
from overhear.runs.attack.words import doubts
from overhear.runs.errors import STATED
from overhear.runs.requests import BatchRequest
from overhear.training.engine.tensor_file import TensorFile
from overhear.training.models.parameters import build_model, flatten, frozen_as_buffers, unflatten

SHAPE, CLASSES = (1, 4, 4), 3
MY_NETWORKS = """
import torch
from torch import nn


def drawn(input_shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, classes))


def double(input_shape, classes):
    return trained(input_shape, classes).double()

def trained(input_shape, classes):
    torch.manual_seed(7)
    return drawn(input_shape, classes)


def three(input_shape, classes):
    torch.manual_seed(7)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 3))


def nothing():
    return None


def number(input_shape, classes):
    return 3


def normed(input_shape, classes):
    norm = nn.BatchNorm2d(2, track_running_stats=False)
    return nn.Sequential(nn.Conv2d(1, 2, 3), norm, nn.Flatten(), nn.Linear(8, classes))


def averaged(input_shape, classes):
    torch.manual_seed(7)
    norm, drop = nn.BatchNorm2d(2), nn.Dropout(0.5)
    return nn.Sequential(nn.Conv2d(1, 2, 3), norm, nn.Flatten(), drop, nn.Linear(8, classes))


def frozen_norm(input_shape, classes):
    model = averaged(input_shape, classes)
    model[1].requires_grad_(False)
    return model


class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.p = nn.Parameter(torch.full((16,), 2.0))  # a layer's p need be no rate of dropout
        self.register_buffer("running_mean", torch.zeros(16), persistent=False)

    def forward(self, x):
        return self.p * (x.flatten(1) - self.running_mean)


def own(input_shape, classes):
    torch.manual_seed(7)
    return nn.Sequential(Own(), nn.Linear(16, classes))


def twice(input_shape, classes):
    torch.manual_seed(7)
    norm = nn.BatchNorm1d(8)
    layers = nn.Linear(16, 8), norm, nn.Sigmoid(), nn.Linear(8, 8), norm, nn.Linear(8, classes)
    return nn.Sequential(nn.Flatten(), *layers)


def frozen(input_shape, classes):
    model = drawn(input_shape, classes)
    model[1].requires_grad_(False)
    return model


def half(input_shape, classes):
    model = trained(input_shape, classes)
    model[1].weight.requires_grad_(False)
    return model


def unused(input_shape, classes):
    model = trained(input_shape, classes)
    model.register_buffer("cache", torch.randn(3), persistent=False)
    model.register_buffer("nothing", torch.tensor(float("nan")))
    return model


class Shared(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.a, self.b, self.head = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, classes)
        self.b.weight = self.a.weight
        self.requires_grad_(False)
        self.head.requires_grad_(True)

    def forward(self, x):
        return self.head(self.b(torch.relu(self.a(x.flatten(1)))))


def shared(input_shape, classes):
    torch.manual_seed(7)
    return Shared(classes)


class Detached(nn.Linear):
    def forward(self, x):
        return super().forward(x.detach().flatten(1))


def detached(input_shape, classes):
    torch.manual_seed(7)
    return Detached(16, classes)
"""


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    """Each test in a folder of its own, with networks beside it."""
    monkeypatch.chdir(tmp_path)
    Path("my_networks.py").write_text(MY_NETWORKS, encoding="utf-8")
    sys.modules.pop("my_networks", None)
    yield
    sys.modules.pop("my_networks", None)


def mine(function: str) -> nn.Module:
    """What a function of my_networks.py builds."""
    names: dict[str, Any] = {"__name__": "mine"}
    exec(MY_NETWORKS, names)  # noqa: S102 - our own text
    return names[function](SHAPE, CLASSES)


def network(name: str = "mlp", *, seed: int = 0) -> nn.Module:
    generator = torch.Generator().manual_seed(seed)
    return build_model(name, input_shape=SHAPE, classes=CLASSES, generator=generator)


def gradients(model: nn.Module) -> dict[str, Tensor]:
    x = torch.rand(1, *SHAPE, generator=torch.Generator().manual_seed(3))
    sent = sent_gradient(
        model, flatten(model), inputs=x, targets=torch.tensor([1]), of=Sent(clip_norm=None)
    )
    return {name: value.contiguous() for name, value in unflatten(model, sent.detach()).items()}


def file_of(model: nn.Module, change: Mapping[str, Tensor] | None = None) -> TensorFile:
    """Gradients and parameters of a model, some of the gradients changed."""
    tensors = {f"gradient.{k}": v for k, v in {**gradients(model), **(change or {})}.items()}
    tensors |= {f"parameter.{k}": v.detach() for k, v in model.named_parameters()}
    return TensorFile(path=Path("g"), tensors=tensors, metadata={})


def alone(model: nn.Module) -> TensorFile:
    """Gradients without parameters."""
    return TensorFile(path=Path("g"), tensors=gradients(model), metadata={})


def posed(
    file: TensorFile, model: str = "mlp", *, weights: Path | None = None, **said: Any
) -> Posed:
    facts, _ = facts_of({}, BatchRequest(**{"input_shape": SHAPE, **said}))
    return build_problem(file, facts, model=model, weights=weights)


def refused(*arguments: Any, kind: type[Exception] = ValueError, **how: Any) -> str:
    with pytest.raises(kind) as caught:
        posed(*arguments, **how)
    assert isinstance(caught.value, STATED)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_ready_network_takes_the_parameters_of_the_file():
    found = posed(file_of(network(seed=5)))
    assert (found.parameters_from, found.classes) == ("gradient file", CLASSES)
    assert torch.equal(found.observation.points[0, 0], flatten(network(seed=5)))


def test_a_function_in_the_current_folder_is_found_and_the_path_left_as_it_was():
    before = list(sys.path)
    found = posed(alone(mine("trained")), "my_networks:trained")
    assert found.parameters_from == "model function"
    assert torch.equal(found.observation.points[0, 0], flatten(mine("trained")))
    assert sys.path == before


def test_weights_may_come_from_a_state_dict():
    model = network(seed=5)
    save_file({name: p.detach().contiguous() for name, p in model.state_dict().items()}, "w.st")
    found = posed(alone(model), weights=Path("w.st"))
    assert found.parameters_from == "weights file"
    assert torch.equal(found.observation.points[0, 0], flatten(model))


def test_double_precision_is_kept():
    double = {name: tensor.double() for name, tensor in gradients(network()).items()}
    assert posed(file_of(network(), double)).observation.gradient.dtype == torch.float64


def test_a_function_that_builds_a_network_in_double_precision_is_taken():
    model = mine("trained").double()
    double = {name: tensor.double() for name, tensor in gradients(mine("trained")).items()}
    file = TensorFile(path=Path("g"), tensors=double, metadata={})
    found = posed(file, "my_networks:double")
    assert torch.equal(found.observation.points[0, 0], flatten(model))


def test_what_is_said_of_the_batch_reaches_the_observation():
    model = network()
    seen = posed(file_of(model), records=4, clip_norm=100.0, noise_std=1e-3).observation
    assert (seen.records, seen.clip_norm, seen.mean_of) == (4, 100.0, None)
    assert seen.noise_std == pytest.approx(1e-3)
    assert (
        posed(file_of(model), records=4, clip_norm=100.0, clip_batch=True).observation.mean_of == 4
    )


# What is refused


def test_a_shape_that_the_model_does_not_take_is_named():
    said = refused(alone(network()), "my_networks:drawn", input_shape=(1, 5, 5))
    assert "input_shape=(1, 5, 5)" in said
    assert "does it take records of that shape?" in said
    said = refused(alone(network()), "lenet")
    assert "input_shape=(1, 4, 4) does not fit 'lenet'" in said


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("my_networks:missing", "has no 'missing'"),
        ("no_such_module_at_all:build", "no module 'no_such_module_at_all'"),
        ("no_such_network", "'no_such_network' is unknown"),
        ("my_networks:nothing", "raised TypeError"),
        ("my_networks:normed", "(BatchNorm2d) mixes the examples of a batch"),
        ("mlp", "draws new weights whenever it is built"),
    ],
)
def test_a_model_that_cannot_be_attacked_is_refused(model, words):
    assert words in refused(alone(network()), model)


def averaged(path: str, **without: object) -> tuple[nn.Module, dict[str, Tensor]]:
    """A network with statistics of its own in evaluation mode, its gradients, a file of weights."""
    model = mine("averaged").eval()
    model[1].running_mean.fill_(0.25)
    model[1].running_var.fill_(4.0)
    held = {k: v.detach().contiguous() for k, v in model.state_dict().items()}
    save_file({k: v for k, v in held.items() if k not in without}, path)
    return model, gradients(model)


def test_batch_norm_is_taken_in_evaluation_mode_by_the_statistics_of_the_weights():
    model, sent = averaged("w.st")
    found = posed(
        TensorFile(path=Path("g"), tensors=sent, metadata={}),
        "my_networks:averaged",
        weights=Path("w.st"),
    )
    x = torch.rand(5, *SHAPE)
    torch.testing.assert_close(found.model(x), model(x))
    batch, dropout = doubts(found)
    assert "BatchNorm is taken in evaluation mode" in batch
    assert "dropout is taken as off" in dropout


def test_statistics_may_stand_beside_parameters_of_the_file():
    model, _ = averaged("w.st")
    kept = {k: v for k, v in model.state_dict().items() if "running" in k}
    save_file(kept, "s.st")
    found = posed(file_of(model), "my_networks:averaged", weights=Path("s.st"))
    assert found.parameters_from == "gradient file"
    assert torch.equal(found.model[1].running_var, torch.full((2,), 4.0))
    alone = doubts(posed(file_of(model), "my_networks:averaged"))
    assert any("those that the model function returns" in said for said in alone)


def test_weights_without_statistics_and_statistics_of_another_shape_are_refused():
    model, sent = averaged("w.st", **{"1.running_var": None})
    file = TensorFile(path=Path("g"), tensors=sent, metadata={})
    said = refused(file, "my_networks:averaged", weights=Path("w.st"))
    assert "holds no '1.running_var', by which the layer normalises" in said
    save_file({**model.state_dict(), "1.running_var": torch.ones(3)}, "x.st")
    said = refused(file, "my_networks:averaged", weights=Path("x.st"))
    assert "buffer '1.running_var' is (3,), must be (2,)" in said
    averaged("w.st")
    said = refused(file_of(model), "my_networks:averaged", weights=Path("w.st"))
    assert "holds parameters already" in said


def saved(model: nn.Module, path: str, **changed: Tensor) -> Path:
    """A state dict in a file, every name with a tensor of its own."""
    held = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    save_file({**held, **changed}, path)
    return Path(path)


def test_statistics_that_no_state_dict_holds_are_the_functions_and_the_layer_is_named():
    model = mine("own")
    assert "0.running_mean" not in model.state_dict()
    found = posed(alone(model), "my_networks:own", weights=saved(model, "w.st"))
    (said,) = doubts(found)
    assert said.startswith("Own is taken in evaluation mode")


def test_a_layer_that_stands_twice_is_taken_from_a_state_dict():
    model = mine("twice").eval()
    model[2].running_mean.fill_(0.25)
    weights = saved(model, "w.st")
    found = posed(alone(model), "my_networks:twice", weights=weights)
    x = torch.rand(5, *SHAPE)
    torch.testing.assert_close(found.model(x), model(x))
    weights = saved(model, "w.st", **{"5.weight": torch.zeros(8)})
    said = refused(alone(model), "my_networks:twice", weights=weights)
    assert "'2.weight' and '5.weight' differ" in said


def test_one_set_of_statistics_for_models_that_differ_is_doubted():
    model, _ = averaged("w.st")
    held = file_of(model).tensors
    save_file({name: b for name, b in model.state_dict().items() if "running" in name}, "s.st")

    def said(change: float) -> str:
        moved = {k: v + change * k.startswith("parameter") for k, v in held.items()}
        tensors = {f"{k}.{name}": v for k, of in enumerate((held, moved)) for name, v in of.items()}
        file = TensorFile(path=Path("g"), tensors=tensors, metadata={})
        return " ".join(doubts(posed(file, "my_networks:averaged", weights=Path("s.st"))))

    words = "the same running statistics are taken for all intercepts"
    assert words in said(0.1)
    assert words not in said(0.0)


@pytest.mark.parametrize("name", ["clip_norm", "noise_std"])
def test_a_bound_whose_square_is_no_number_is_refused(name):
    said = refused(file_of(network()), **{name: 1e300})
    assert f"{name}=1e+300 must be at most 1e+100" in said


def test_a_function_that_returns_no_network_is_refused():
    said = refused(alone(network()), "my_networks:number", classes=3, kind=TypeError)
    assert "returned int, must be an nn.Module" in said


def test_a_function_that_draws_its_weights_is_refused():
    said = refused(alone(mine("drawn")), "my_networks:drawn")
    assert "draws new weights whenever it is built" in said
    assert "--weights" in said


def test_what_is_frozen_is_a_buffer_unless_it_has_a_gradient():
    model = mine("frozen")
    whole = file_of(model)
    some = {k: v for k, v in whole.tensors.items() if "gradient.1" not in k}
    found = posed(TensorFile(path=Path("g"), tensors=some, metadata={}), "my_networks:frozen")
    assert [name for name, _ in found.model.named_parameters()] == ["3.weight", "3.bias"]
    assert torch.equal(found.model.get_buffer("1.weight"), model[1].weight)
    assert len(list(posed(whole, "my_networks:frozen").model.parameters())) == 4
    few = {k: v for k, v in some.items() if "1.weight" not in k}
    file = TensorFile(path=Path("g"), tensors=few, metadata={})
    assert "draws new weights" in refused(file, "my_networks:frozen")


def test_of_a_layer_frozen_by_half_nothing_is_a_buffer_and_a_cache_is_no_weight():
    file = TensorFile(path=Path("g"), tensors=file_of(mine("half")).tensors, metadata={})
    del file.tensors["gradient.1.weight"]
    assert len(list(posed(file, "my_networks:half").model.parameters())) == 4
    assert posed(alone(mine("unused")), "my_networks:unused").parameters_from == "model function"
    every = mine("half").requires_grad_(False)
    zeros = {k: torch.zeros_like(v) for k, v in every.named_parameters()}
    said = refused(TensorFile(path=Path("g"), tensors=zeros, metadata={}), "my_networks:half")
    assert "is 0" in said
    norm = mine("averaged").eval()
    norm[1].requires_grad_(False)  # its affine map is no statistics
    sent = {k: v for k, v in file_of(norm).tensors.items() if "gradient.1." not in k}
    found = posed(TensorFile(path=Path("g"), tensors=sent, metadata={}), "my_networks:frozen_norm")
    assert (len(list(found.model.parameters())), found.statistics_given) == (4, False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_frozen_tensor_of_two_names_stays_one(dtype):
    model = mine("shared").to(dtype)
    model.a.weight.data *= 2
    sent = {k: v.to(dtype) for k, v in gradients(mine("shared")).items() if k.startswith("head")}
    at = {f"parameter.{k}": v.detach() for k, v in model.named_parameters()}
    tensors = {f"gradient.{k}": v for k, v in sent.items()} | at
    found = posed(TensorFile(path=Path("g"), tensors=tensors, metadata={}), "my_networks:shared")
    assert torch.equal(found.model.a.weight, model.a.weight)
    assert torch.equal(found.model.b.weight, model.a.weight)
    assert len(list(frozen_as_buffers(model, ()).parameters())) < len(list(model.parameters())) == 5


def test_a_model_that_cuts_its_graph_is_refused():
    file = TensorFile(
        path=Path("g"),
        tensors={name: torch.ones_like(p) for name, p in mine("detached").named_parameters()},
        metadata={},
    )
    assert "cannot be differentiated twice" in refused(file, "my_networks:detached")


def test_labels_beyond_the_classes_are_refused():
    assert "labels=(7,) must lie in 0 to 2" in refused(file_of(network()), labels=(7,))


def test_classes_that_no_gradient_fits_are_told_with_what_was_tried():
    said = refused(file_of(network()), input_shape=(1, 5, 5))
    assert "(classes is not given; tried [3, 16])" in said


def test_a_model_with_its_own_number_of_classes_is_told_what_its_gradients_lack():
    said = refused(alone(network()), "my_networks:three")
    assert "2 unknown to the model: '3.weight', '3.bias'" in said


def test_wrong_classes_are_told_by_the_shapes():
    assert "'3.weight' is (3, 16), must be (5, 16)" in refused(file_of(network()), classes=5)


def test_parameters_are_not_given_twice():
    save_file({"w": torch.ones(1)}, "w.st")
    said = refused(file_of(network()), weights=Path("w.st"))
    assert "holds parameters already; leave w.st out" in said


def test_weights_of_another_model_are_refused():
    save_file({"w": torch.ones(1)}, "w.st")
    assert "4 of 4 missing" in refused(alone(network()), weights=Path("w.st"))


def test_noise_that_the_gradient_is_too_small_for_is_refused():
    said = refused(file_of(network()), noise_std=10.0)
    assert "noise multiplier * clip norm / batch size" in said


def test_a_clip_norm_that_the_gradient_is_above_is_refused():
    said = refused(file_of(network()), clip_norm=1e-3)
    assert "cannot make a mean gradient of norm" in said


def test_declared_noise_and_clip_that_fit_are_accepted():
    generator = torch.Generator().manual_seed(0)
    model = network()
    size = float(torch.cat([g.flatten() for g in gradients(model).values()]).norm())
    for noise in (1e-3, 1.0, 30.0):
        noisy = {
            name: value + noise * torch.randn(value.shape, generator=generator)
            for name, value in gradients(model).items()
        }
        posed(file_of(model, noisy), clip_norm=1.001 * size, noise_std=noise)


# What is doubted


def test_a_right_gradient_is_not_doubted():
    assert doubts(posed(file_of(network()))) == []


def test_parameters_of_the_model_function_are_doubted():
    (said,) = doubts(posed(alone(mine("trained")), "my_networks:trained"))
    assert "nothing shows that the gradient was taken at them" in said


def test_a_sum_over_the_batch_is_doubted():
    sent = {name: 4 * value for name, value in gradients(network()).items()}
    (said,) = doubts(posed(file_of(network(), sent)))
    assert "divide a sum by the batch size" in said


def test_another_loss_is_doubted():
    sent = {"3.bias": gradients(network())["3.bias"] + 0.1}
    (said,) = doubts(posed(file_of(network(), sent)))
    assert "do not sum to 0" in said
