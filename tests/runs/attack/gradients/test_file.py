"""The tensors of a file of gradients: how they are named, ordered, and refused."""

import gzip
import pickle
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from overhear.runs.attack.layouts import between, told_apart
from overhear.runs.attack.model import gradients_of
from overhear.runs.attack.prior_records import read_tensors
from overhear.runs.requests import GradientRequest
from overhear.training.engine.tensor_file import TensorFile
from tests.hostile_files import HOSTILE

HERE = Path("g.safetensors")
SHAPES = {"weight": (2, 3), "bias": (2,)}


def ones() -> dict[str, Tensor]:
    return {name: torch.ones(shape) for name, shape in SHAPES.items()}


def named(kind: str) -> dict[str, Tensor]:
    return {f"{kind}.{name}": tensor for name, tensor in ones().items()}


def read(
    tensors: dict[str, Tensor], model: nn.Module | None = None
) -> tuple[Tensor, Tensor | None]:
    file = TensorFile(path=HERE, tensors=tensors, metadata={})
    return gradients_of(file, nn.Linear(3, 2) if model is None else model)[:2]


def refused(tensors: dict[str, Tensor], kind: type[Exception] = ValueError) -> str:
    with pytest.raises(kind) as caught:
        read(tensors)
    return str(caught.value)


def test_names_without_a_prefix_are_gradients_even_of_a_layer_called_gradient():
    model = nn.Sequential()
    model.add_module("gradient", nn.Linear(3, 2))
    assert read(named("gradient"), model)[0].shape == (1, 8)


def test_gradients_are_put_in_the_order_of_the_model():
    found, parameters = read(
        {"bias": torch.tensor([7.0, 8.0]), "weight": torch.arange(6.0).reshape(2, 3)}
    )
    assert found.tolist() == [[0, 1, 2, 3, 4, 5, 7, 8]]
    assert parameters is None


def test_intercepts_are_in_the_order_of_their_numbers():
    tensors = {f"{k}.gradient.{n}": k + t for k in (10, *range(10)) for n, t in ones().items()}
    assert read(tensors)[0][:, 0].tolist() == [1 + k for k in range(11)]


def test_parameters_without_a_number_are_those_of_every_intercept():
    found = read(named("0.gradient") | named("1.gradient") | named("parameter"))
    assert [part.shape for part in found if part is not None] == [(2, 8), (2, 8)]


@pytest.mark.parametrize(
    ("stored", "used"),
    [
        (torch.float16, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ],
)
def test_every_floating_point_type_is_read(stored, used, tmp_path):
    path = tmp_path / HERE
    save_file({name: tensor.to(stored) for name, tensor in ones().items()}, path)
    found = gradients_of(read_tensors(path), nn.Linear(3, 2)).rows
    assert (found.dtype, found.sum().item()) == (used, 8)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_a_value_that_is_not_finite_is_refused_by_name(bad, dtype, tmp_path):
    tensors = {name: tensor.to(dtype) for name, tensor in ones().items()}
    tensors["bias"][1] = bad
    save_file(tensors, tmp_path / HERE)
    with pytest.raises(ValueError, match="'bias' holds values that are not finite"):
        read_tensors(tmp_path / HERE)


def test_gradients_of_another_model_are_refused_by_name():
    said = refused({f"layer{k}.weight": torch.ones(1) for k in range(9)})
    assert "2 of 2 missing: 'weight', 'bias'" in said
    assert "9 unknown to the model: 'layer0.weight'" in said
    assert "and 5 more" in said


def test_parameters_without_a_gradient_are_named():
    file = TensorFile(path=HERE, tensors={"weight": torch.ones(2, 3)}, metadata={})
    assert gradients_of(file, nn.Linear(3, 2)).missing == {"bias"}


def test_another_shape_is_refused_and_a_transposed_one_told_so():
    said = refused({**ones(), "weight": torch.ones(3, 2)})
    assert "'weight' is (3, 2), must be (2, 3)" in said
    assert "PyTorch has outputs first: convert it:" in said
    said = refused({**ones(), "weight": torch.ones(4, 3)})
    assert "is it another model?" in said


def test_gradients_of_zero_are_refused():
    zero = {name: torch.zeros(shape) for name, shape in SHAPES.items()}
    assert "every gradient is 0" in refused(zero)
    numbered = named("0.gradient") | {f"1.gradient.{name}": t for name, t in zero.items()}
    assert "every gradient of intercept 1 is 0" in refused(numbered)


def test_integers_are_refused():
    said = refused({**ones(), "bias": torch.ones(2, dtype=torch.int32)}, TypeError)
    assert "'bias' is of int32, must be a floating-point type" in said


@pytest.mark.parametrize(
    ("kinds", "words"),
    [
        (("gradient", "1.gradient"), "with and without the number of an intercept"),
        (("0.gradient", "2.gradient"), "holds intercepts 0, 2; number them from 0"),
        (("0.gradient", "1.gradient", "0.parameter"), "no parameters of intercept 1"),
        (("gradient", "1.parameter"), "parameters of intercept 1, but no gradient of it"),
        (("0.gradient", "0.parameter", "parameter"), "with and without a number"),
        (("parameter",), "holds parameters alone"),
    ],
)
def test_intercepts_that_are_numbered_badly_are_refused(kinds, words):
    tensors = {name: tensor for kind in kinds for name, tensor in named(kind).items()}
    assert words in refused(tensors)


def test_a_gradient_is_not_given_twice():
    assert "holds gradient 'weight' twice" in refused(named("gradient") | ones())


def test_a_file_that_is_missing_or_a_folder_is_named(tmp_path):
    for path in (tmp_path / "nowhere", tmp_path):
        with pytest.raises(FileNotFoundError, match="is no file"):
            read_tensors(path)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "begins with b''"),
        (b"not a file of tensors", "begins with b'not a fi', as no file of tensors"),
        (b"PK\x03\x04" * 9, "is no npz file or archive of torch or is damaged"),
        (pickle.dumps([1.0]), 'numpy.savez("arrays.npz", **held)'),
        (b"cos\nsystem\n", "is a pickle, which can run code"),
        (gzip.compress(b""), "gunzip --stdout g.pt > unpacked"),
        (HOSTILE["torch"]["HDF5"], 'keras.models.load_model("g.pt")'),
        (HOSTILE["torch"]["a model of Keras"], 'keras.models.load_model("g.pt")'),
        (HOSTILE["torch"]["GGUF"], 'gguf.GGUFReader("g.pt")'),
        (HOSTILE["torch"]["msgpack"], "flax.serialization.msgpack_restore"),
        (HOSTILE["torch"]["a pointer of Git LFS"], "git lfs pull"),
        (HOSTILE["torch"]["torch of before 1.6"], 'torch.load("g.pt", weights_only=True)'),
        (HOSTILE["torch"]["TorchScript"], 'torch.jit.load("g.pt").state_dict()'),
        (HOSTILE["torch"]["code"], "asks for 'os system', which is no tensor and might be code"),
        (HOSTILE["torch"]["bytes of terabytes"], "asks for '__builtin__ bytearray'"),
    ],
    ids=range(15),
)
def test_a_file_of_another_kind_is_named_with_two_lines_that_convert_it(content, words, tmp_path):
    (tmp_path / "g.pt").write_bytes(content)
    with pytest.raises(ValueError, match=re.escape(words)) as caught:
        read_tensors(tmp_path / "g.pt")
    assert ("Convert it" in str(caught.value)) == (str(caught.value).count("\n  ") == 2)


@pytest.mark.parametrize(
    ("held", "names", "metadata"),
    [
        (nn.Linear(3, 2).state_dict(), ["weight", "bias"], {}),
        (list(nn.Linear(3, 2).parameters()), ["0", "1"], {}),
        ({"grads": [torch.ones(2), None], "records": 4, "labels": [1, 2], "clip_batch": True},
         ["grads.0"], {"records": "4", "labels": "1,2", "clip_batch": "true"}),
        (torch.ones(2), ["0"], {}),
    ],
)  # fmt: skip
def test_what_torch_saves_of_tensors_is_read_by_name(held, names, metadata, tmp_path):
    torch.save(held, tmp_path / "g")
    found = read_tensors(tmp_path / "g")
    assert (list(found.tensors), found.metadata) == (names, metadata)
    assert not any(tensor.requires_grad for tensor in found.tensors.values())


def test_what_numpy_saves_is_read_by_name(tmp_path):
    np.savez(tmp_path / "a.npz", **{"dense/kernel:0": np.ones((3, 2), np.float16)}, n=np.uint16(7))
    np.savez(tmp_path / "b.npz", np.ones(2), np.ones(3))
    np.save(tmp_path / "c.npy", np.ones(4))
    found = read_tensors(tmp_path / "a.npz").tensors
    assert (found["dense.kernel"].dtype, found["n"].item()) == (torch.float32, 7)
    assert list(read_tensors(tmp_path / "b.npz").tensors) == ["0", "1"]
    assert read_tensors(tmp_path / "c.npy").tensors["0"].shape == (4,)
    np.savez(tmp_path / "d.npz", **{"a/b": np.ones(2), "a.b": np.ones(2)})
    with pytest.raises(ValueError, match="holds names that differ in / or :0 alone"):
        read_tensors(tmp_path / "d.npz")


def test_a_file_without_tensors_is_refused(tmp_path):
    save_file({}, tmp_path / HERE)
    with pytest.raises(ValueError, match="holds no tensors"):
        read_tensors(tmp_path / HERE)


CNN = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(12, 12))
PICTURE = (2, 4, 4)


def sent(model: nn.Module = CNN) -> dict[str, Tensor]:
    """Numbers that differ, in the shapes of a model."""
    made = torch.Generator().manual_seed(0)
    return {name: torch.randn(p.shape, generator=made) for name, p in model.named_parameters()}


def last(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same as Keras has it; the dense layer reads (2, 2, 3) and not (3, 2, 2)."""
    dense = tensors["3.weight"].reshape(12, 3, 2, 2).permute(2, 3, 1, 0).reshape(12, 12)
    return {
        "conv2d.kernel": tensors["0.weight"].permute(2, 3, 1, 0), "conv2d.bias": tensors["0.bias"],
        "norm.gamma": tensors["1.weight"], "norm.beta": tensors["1.bias"],
        "dense.kernel": dense, "dense.bias": tensors["3.bias"],
    }  # fmt: skip


def numbered(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {str(place): tensor for place, tensor in enumerate(tensors.values())}


def flax(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    words = (("conv2d", "Conv_0"), ("norm", "BatchNorm_0"), ("dense", "Dense_0"),
             ("gamma", "scale"), ("beta", "bias"))  # fmt: skip
    for one, other in words:
        tensors = {name.replace(one, other): tensor for name, tensor in tensors.items()}
    return {f"params.{name}": tensors[name] for name in sorted(tensors)}


@pytest.mark.parametrize(
    ("held", "note"),
    [
        (sent(), ""),
        ({f"_module.{name}": tensor for name, tensor in sent().items()}, ""),
        ({f"grads.module.{name}": tensor for name, tensor in sent().items()}, ""),
        (sent() | {"1.running_mean": torch.ones(3), "1.num_batches_tracked": torch.tensor(3)}, ""),
        ({"grad": torch.cat([tensor.flatten() for tensor in sent().values()])}, ""),
        (numbered(sent()), "have no names and are taken in the order"),
        (numbered(last(sent())), "outputs last"),
        (last(sent()), "conv2d is 0, norm is 1, dense is 3"),
        ({f"gradient.model.{n}": t for n, t in last(sent()).items()}, "kernels were turned"),
        (flax(last(sent())), "BatchNorm_0 is 1, Conv_0 is 0, Dense_0 is 3"),
    ],
    ids=range(10),
)
def test_names_and_layouts_of_other_frameworks_become_those_of_the_model(held, note):
    file = TensorFile(path=HERE, tensors=held, metadata={})
    found = gradients_of(file, CNN.eval(), input_shape=PICTURE)
    assert torch.equal(found.rows[0], torch.cat([t.flatten() for t in sent().values()]))
    assert note in "; ".join(found.notes)
    assert bool(found.notes) == bool(note)


def test_layers_of_one_shape_are_taken_by_their_numbers_and_others_are_refused():
    deep = nn.Sequential(*(nn.Linear(3, 3) for _ in range(11)))
    kernels = {f"d_{k}.kernel": torch.full((3, 3), k + 1.0) for k in range(11)}
    biases = {f"d_{k}.bias": torch.zeros(3) for k in range(11)}
    names = [f"d_{k}.{leaf}" for k in (10, *range(10)) for leaf in ("bias", "kernel")]
    assert read({n: (kernels | biases)[n] for n in names}, deep)[0][0, ::12].tolist() == [
        k + 1 for k in range(11)
    ]
    two = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    squares = numbered(
        {str(k): torch.ones(3, 3) if k % 2 == 0 else torch.ones(3) for k in range(4)}
    )
    with pytest.raises(ValueError, match="as they are and with outputs last; name them"):
        read(squares, two)
    with pytest.raises(ValueError, match="neither by order nor by shape; name them"):
        read(numbered({"a": torch.ones(4, 3), "b": torch.ones(3)}))
    with pytest.raises(ValueError, match="fits no layer of the model") as said:
        read({"attention.kernel": torch.ones(3, 4, 5)})
    assert "{'weight': (5, 4, 3)} in PyTorch's order" in str(said.value)
    assert "kernel.transpose(3, 2, 0, 1)" in str(said.value)


def test_buffers_beside_parameters_are_kept_and_a_pair_of_models_is_a_gradient(tmp_path):
    start = CNN.state_dict() | {"1.running_mean": torch.full((3,), 7.0)}
    after = {name: start[name] - 0.5 * tensor for name, tensor in sent().items()}
    torch.save({"before": start, "after": start | after, "lr": 0.5}, tmp_path / "g.pt")
    torch.save(start, tmp_path / "before.pt")
    torch.save({"model": start | after, "optimizer": {"state": [torch.ones(1)]}}, tmp_path / "a.pt")
    asked = GradientRequest(tmp_path / "g.pt", model="", out=tmp_path)
    two = {"gradients": tmp_path / "a.pt", "before": tmp_path / "before.pt", "local_rate": 0.5}
    for request in (asked, replace(asked, **two)):
        file, told, notes = between(read_tensors(request.gradients), request)
        found = gradients_of(file, CNN.eval(), input_shape=PICTURE)
        wanted = torch.cat([tensor.flatten() for tensor in sent().values()])
        assert torch.allclose(found.rows[0], wanted, atol=1e-6)
        assert found.buffers["1.running_mean"].tolist() == [7.0] * 3
        assert (told.local_rate, len(notes)) == (None, 1)
    with pytest.raises(ValueError, match="with the learning rate: --before FILE"):
        between(read_tensors(two["gradients"]), replace(asked, before=two["before"]))
    torch.save({"0.weight": torch.ones(1)}, tmp_path / "before.pt")
    with pytest.raises(ValueError, match="is not of one shape in the models before and after"):
        between(read_tensors(two["gradients"]), replace(asked, **two))


def test_what_numpy_saves_beside_gradients_is_said_of_the_batch():
    held = ones() | {
        "records": torch.tensor(4),
        "labels": torch.tensor([1, 2]),
        "mean": ones()["bias"],
    }
    found = told_apart(TensorFile(path=HERE, tensors=held, metadata={"classes": "2"}))
    assert found.metadata == {"classes": "2", "records": "4", "labels": "1,2"}
    assert list(found.tensors) == ["weight", "bias", "mean"]
