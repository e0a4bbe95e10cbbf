"""The tensors of a file of gradients: how they are named, ordered, and refused."""

import gzip
import pickle
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from overhear.runs.attack.model import gradients_of
from overhear.runs.attack.prior_records import read_tensors
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
    return gradients_of(file, nn.Linear(3, 2) if model is None else model)


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
    found, _ = gradients_of(read_tensors(path), nn.Linear(3, 2))
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


def test_gradients_of_some_of_the_layers_are_refused():
    assert "1 of 2 missing: 'bias'" in refused({"weight": torch.ones(2, 3)})


def test_another_shape_is_refused_and_a_transposed_one_told_so():
    said = refused({**ones(), "weight": torch.ones(3, 2)})
    assert "'weight' is (3, 2), must be (2, 3)" in said
    assert "transpose to PyTorch's order" in said
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
        (gzip.compress(b""), 'packed = gzip.open("g.pt")'),
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
