"""Facts about data sets; those about real files are marked `data`."""

import gzip
import struct

import numpy as np
import pytest
import torch
from PIL import Image

from overhear.training.data.load import DATASET_NAMES, load_dataset
from tests.benchmark_scripts import benchmark
from tests.real_data import root_with


def _fits(dataset):
    for inputs, targets in (
        (dataset.inputs, dataset.targets),
        (dataset.test_inputs, dataset.test_targets),
    ):
        assert inputs.dtype == torch.float32
        assert inputs.is_contiguous()
        assert targets.dtype == torch.int64
        assert len(inputs) == len(targets)
        assert inputs.shape[1:] == dataset.input_shape


def test_digits_keep_every_record_once_and_their_constants_are_true():
    from sklearn.datasets import load_digits

    digits = load_dataset("digits")
    _fits(digits)
    assert digits.input_shape == (1, 8, 8)
    everything = torch.cat([digits.inputs, digits.test_inputs])
    # 17 shades: the original is recovered exactly and every image occurs where it should.
    shades = (digits.pixels(everything) * 16).round().to(torch.int64).reshape(-1, 64)
    original = torch.from_numpy(load_digits().data).to(torch.int64)
    assert sorted(map(tuple, shades.tolist())) == sorted(map(tuple, original.tolist()))
    assert everything.mean().item() == pytest.approx(0, abs=1e-3)
    assert everything.std().item() == pytest.approx(1, abs=1e-3)
    assert torch.bincount(digits.test_targets).min() >= 20


def test_digits_are_the_same_every_time():
    one, two = load_dataset("digits"), load_dataset("digits")
    assert torch.equal(one.inputs, two.inputs)
    assert torch.equal(one.test_targets, two.test_targets)


def test_the_held_out_part_does_not_depend_on_values_or_labels(tmp_path):
    halves = []
    for label in ("1", "2"):
        path = tmp_path / label
        lines = [f"{1 + i % 2} 1:{i}" for i in range(50)]
        lines[7] = f"{label} 1:7"
        path.write_text("\n".join(lines))
        halves.append(load_dataset("libsvm", root=path, features=1))
    assert torch.equal(halves[0].test_inputs, halves[1].test_inputs)
    assert len(halves[0].test_inputs) == 10
    assert torch.cat([halves[0].inputs, halves[0].test_inputs]).sum() == sum(range(50))


def test_faces_are_half_faces_without_a_network():
    faces = load_dataset("faces")
    _fits(faces)
    assert faces.input_shape == (1, 25, 25)
    assert (len(faces.inputs), len(faces.test_inputs), faces.classes) == (160, 40, 2)
    assert int(faces.targets.sum() + faces.test_targets.sum()) == 100
    assert faces.pixels(faces.inputs).min() >= 0
    assert faces.pixels(faces.inputs).max() <= 1


def test_records_that_are_no_images_have_no_bounds(tmp_path):
    path = tmp_path / "set"
    path.write_text("\n".join(f"{i % 2} 1:{i} 2:-1.5" for i in range(10)))
    table = load_dataset("libsvm", root=path, features=2)
    assert not table.image
    assert torch.equal(table.pixels(table.inputs), table.inputs)  # not rescaled by the data
    with pytest.raises(ValueError, match="holds no images and has no bounds"):
        _ = table.bounds


def test_fashion_mnist_is_normalised_by_its_own_constants(tmp_path):
    raw = tmp_path / "FashionMNIST" / "raw"
    raw.mkdir(parents=True)
    images = np.full((6, 28, 28), 255, dtype=np.uint8)
    for prefix in ("train", "t10k"):
        image_bytes = struct.pack(">4B3I", 0, 0, 8, 3, *images.shape) + images.tobytes()
        label_bytes = struct.pack(">4BI", 0, 0, 8, 1, 6) + bytes(range(6))
        (raw / f"{prefix}-images-idx3-ubyte.gz").write_bytes(gzip.compress(image_bytes))
        (raw / f"{prefix}-labels-idx1-ubyte").write_bytes(label_bytes)
    fashion = load_dataset("fashion-mnist", root=tmp_path)
    _fits(fashion)
    assert fashion.inputs[0, 0, 0, 0].item() == pytest.approx((1 - 0.2860) / 0.3530)
    assert fashion.classes == 10


def test_an_image_folder_gets_half_as_mean_and_deviation(tmp_path):
    for name in ("train/a/1.png", "train/b/1.png", "test/b/1.png"):
        (tmp_path / name).parent.mkdir(parents=True)
        Image.fromarray(np.full((4, 4, 3), 255, dtype=np.uint8)).save(tmp_path / name)
    folder = load_dataset("image-folder", root=str(tmp_path))
    _fits(folder)
    assert folder.inputs.unique().tolist() == [1.0]
    assert folder.test_targets.tolist() == [1]


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("imagenet", {}, "unknown; choose one of digits, faces"),
        ("digits", {"root": "."}, "'digits' comes with a library"),
        ("digits", {"features": 64}, "features=64 belongs to 'libsvm' and not to 'digits'"),
        ("mnist", {"root": ".", "test": "x"}, "test='x' belongs to 'libsvm'"),
        ("mnist", {}, "needs root, the folder that holds MNIST/raw"),
        ("cifar10", {}, "needs root, the folder that holds cifar-10-batches-py"),
        ("libsvm", {"features": 3}, "needs root, the training file itself"),
        ("image-folder", {}, "needs root, the folder that holds train/CLASS"),
    ],
)
def test_a_wrong_request_is_refused_with_the_remedy(name, options, message):
    with pytest.raises(ValueError, match=message):
        load_dataset(name, **options)


def test_the_seven_names_are_those_of_the_run_file():
    assert sorted(DATASET_NAMES) == sorted(
        ["digits", "faces", "mnist", "fashion-mnist", "cifar10", "libsvm", "image-folder"]
    )


def test_too_few_records_to_hold_out_are_refused(tmp_path):
    path = tmp_path / "set"
    path.write_text("1 1:1\n2 1:1\n")
    with pytest.raises(ValueError, match="holds 2 records, too few"):
        load_dataset("libsvm", root=path, features=1)


@pytest.mark.data
def test_mnist_has_its_published_size_mean_and_deviation():
    mnist = load_dataset("mnist", root=root_with("MNIST/raw"))
    _fits(mnist)
    assert tuple(mnist.inputs.shape) == (60_000, 1, 28, 28)
    assert len(mnist.test_inputs) == 10_000
    pixels = mnist.pixels(mnist.inputs)
    assert round(pixels.mean(dtype=torch.float64).item(), 4) == 0.1307
    assert round(pixels.double().std().item(), 4) == 0.3081
    assert mnist.targets[:5].tolist() == [5, 0, 4, 1, 9]
    assert torch.bincount(mnist.test_targets).tolist()[:2] == [980, 1135]


@pytest.mark.data
def test_cifar10_has_ten_unbalanced_classes_and_channels_in_order():
    cifar = load_dataset("cifar10", root=root_with("cifar-10-batches-py/data_batch_1"))
    _fits(cifar)
    assert cifar.input_shape == (3, 32, 32)
    # Each channel has its own constants; a wrong order of axes would show here.
    assert cifar.inputs.mean(dim=(0, 2, 3)).abs().max() < 0.05
    assert (cifar.inputs.std(dim=(0, 2, 3)) - 1).abs().max() < 0.05
    if len(cifar.inputs) == 10_000:
        counts = torch.bincount(cifar.targets)
        assert (int(counts.min()), int(counts.max())) == (937, 1032)


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "sizes", "positives", "pairs"),
    [("a9a", (32561, 16281), (7841, 3846), 1433), ("a8a", (22696, 9865), (5506, 2335), 842)],
)
def test_adult_has_its_published_rows_and_positives(name, sizes, positives, pairs):
    adult = load_dataset("libsvm", root=root_with(f"libsvm/{name}") / "libsvm" / name, features=123)
    _fits(adult)
    assert (len(adult.inputs), len(adult.test_inputs)) == sizes
    assert (int(adult.targets.sum()), int(adult.test_targets.sum())) == positives
    assert adult.inputs.unique().tolist() == [0, 1]
    opposite = benchmark("learning_a9a")
    assert opposite.opposite_pairs(adult.inputs, adult.targets) == pairs
    assert opposite.most_below(pairs, sizes[0]) < 0.0003
