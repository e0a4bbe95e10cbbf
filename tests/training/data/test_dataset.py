"""Facts about records in memory."""

import pytest
import torch

from overhear.training.data.load import Dataset


def _fields(**changes):
    fields = {
        "name": "toy", "inputs": torch.zeros(4, 1, 2, 2), "targets": torch.tensor([0, 1, 0, 1]),
        "test_inputs": torch.zeros(2, 1, 2, 2), "test_targets": torch.tensor([0, 1]), "classes": 2,
        "mean": (0.5,), "std": (0.25,), "image": True,
    }  # fmt: skip
    return fields | changes


def test_pixels_inverts_normalise_per_channel():
    fields = _fields(
        inputs=torch.zeros(4, 3, 2, 2), test_inputs=torch.zeros(2, 3, 2, 2), mean=(0.1, 0.2, 0.3),
        std=(0.5, 0.25, 2.0),
    )  # fmt: skip
    dataset = Dataset(**fields)
    pixels = torch.rand(5, 3, 2, 2, dtype=torch.float64)
    inputs = dataset.normalise(pixels)
    assert inputs.dtype == torch.float64
    assert torch.allclose(inputs[:, 1], (pixels[:, 1] - 0.2) / 0.25, rtol=0, atol=1e-14)
    assert torch.allclose(dataset.pixels(inputs), pixels, rtol=0, atol=1e-14)
    assert torch.equal(dataset.normalise(pixels[0]), inputs[0])


def test_bounds_are_normalised_black_and_white():
    low, high = Dataset(**_fields()).bounds
    assert (low.tolist(), high.tolist()) == ([-2.0], [2.0])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"classes": 1}, "classes=1 of 'toy' must be at least 2"),
        ({"inputs": torch.zeros(4, 1, 2, 2).double()}, "must be float32 and contiguous"),
        ({"inputs": torch.zeros(4, 1, 2, 3).mT}, "must be float32 and contiguous"),
        ({"targets": torch.zeros(3, dtype=torch.int64)}, "must be 4 int64 labels"),
        ({"targets": torch.zeros(4)}, "must be 4 int64 labels"),
        ({"targets": torch.tensor([0, 1, 2, 0])}, r"targets of 'toy' must lie in \[0, 1\]"),
        ({"test_targets": torch.tensor([0, -1])}, r"test_targets .* must lie in \[0, 1\]"),
        ({"test_inputs": torch.zeros(2, 1, 2, 3)}, "they must be equal"),
        (
            {"test_inputs": torch.zeros(0, 1, 2, 2), "test_targets": torch.zeros(0).long()},
            "test_inputs of 'toy' are empty",
        ),
        ({"std": (0.0,)}, "with std positive"),
        ({"mean": (0.5, 0.5)}, "must hold 1 values each"),
        (
            {"inputs": torch.zeros(4, 2), "test_inputs": torch.zeros(2, 2)},
            "set image=False for other records",
        ),
    ],
)
def test_parts_that_do_not_fit_together_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        Dataset(**_fields(**changes))
