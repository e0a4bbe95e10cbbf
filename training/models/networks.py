"""The reference networks: inputs (B, *input_shape) to logits (B, classes).

================  ==========================================================================
Name              Layers
================  ==========================================================================
``linear``        one fully connected layer: softmax regression
``mlp``           one hidden ReLU layer of 4 sqrt(inputs) units (32 for 8x8, 112 for 28x28)
``lenet``         LeNet-5 (LeCun et al., 1998), 61,706 parameters at 1x28x28, 10 classes
``sigmoid-lenet`` three 5x5 convolutions with sigmoids: the network of DLG (Zhu et al., 2019)
``cnn``           two 3x3 convolutions and two fully connected layers, ReLU
``conv4``         four 3x3 ReLU convolutions, strides 1 2 1 2, and one fully connected layer, no
                  pooling: 134,218 parameters at 3x32x32, 10 classes
``resnet18``      ResNet-18 (He et al., 2016) for small images, with GroupNorm: 11,173,962
                  parameters at 3x32x32, 10 classes
================  ==========================================================================

Where we differ from the papers: LeNet-5 has ReLU, max-pooling and full connections between its two
convolutions, as is usual today; the sigmoid LeNet takes other input shapes than 3x32x32. ResNet-18
has GroupNorm of 32 groups where the paper has BatchNorm, which mixes the examples of a batch, and
starts with one 3x3 convolution, as is usual for images of 32x32; its count of parameters is that of
BatchNorm's.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

from torch import Tensor, nn

from ...privacy.errors import InputError

Shape = tuple[int, ...]

_GROUPS = 32


def _linear(input_shape: Shape, classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(input_shape), classes))


def _mlp(input_shape: Shape, classes: int) -> nn.Module:
    inputs = math.prod(input_shape)
    hidden = max(8, 4 * math.isqrt(inputs))
    return nn.Sequential(
        nn.Flatten(), nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, classes)
    )


def _lenet(input_shape: Shape, classes: int) -> nn.Module:
    channels, height, width = _image_shape("lenet", input_shape, least=12)
    features = 16 * ((height // 2 - 4) // 2) * ((width // 2 - 4) // 2)
    return nn.Sequential(
        nn.Conv2d(channels, 6, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(features, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, classes),
    )


def _sigmoid_lenet(input_shape: Shape, classes: int) -> nn.Module:
    channels, height, width = _image_shape("sigmoid-lenet", input_shape, least=1)
    # Two strides of 2 with padding 2 halve upwards: 32 -> 16 -> 8, 28 -> 14 -> 7, 25 -> 13 -> 7.
    features = 12 * math.ceil(height / 4) * math.ceil(width / 4)
    model = nn.Sequential(
        nn.Conv2d(channels, 12, 5, padding=2, stride=2),
        nn.Sigmoid(),
        nn.Conv2d(12, 12, 5, padding=2, stride=2),
        nn.Sigmoid(),
        nn.Conv2d(12, 12, 5, padding=2),
        nn.Sigmoid(),
        nn.Flatten(),
        nn.Linear(features, classes),
    )
    # DLG draws wide: with the default weights three sigmoids leave next to no gradient.
    for parameter in model.parameters():
        nn.init.uniform_(parameter, -0.5, 0.5)
    return model


def _cnn(input_shape: Shape, classes: int) -> nn.Module:
    channels, height, width = _image_shape("cnn", input_shape, least=4)
    return nn.Sequential(
        nn.Conv2d(channels, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * (height // 4) * (width // 4), 64),
        nn.ReLU(),
        nn.Linear(64, classes),
    )


def _conv4(input_shape: Shape, classes: int) -> nn.Module:
    channels, height, width = _image_shape("conv4", input_shape, least=4)
    # Stride 2 with padding 1 halves upwards: 32 -> 16 -> 8, 25 -> 13 -> 7.
    features = 64 * math.ceil(height / 4) * math.ceil(width / 4)
    return nn.Sequential(
        nn.Conv2d(channels, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1, stride=2),
        nn.ReLU(),
        nn.Conv2d(64, 64, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(64, 64, 3, padding=1, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(features, classes),
    )


class _Residual(nn.Module):
    """Two 3x3 convolutions beside a shortcut, which is a 1x1 convolution where shapes differ."""

    def __init__(self, inside: int, outside: int, *, stride: int) -> None:
        super().__init__()
        self.path = nn.Sequential(
            nn.Conv2d(inside, outside, 3, stride=stride, padding=1, bias=False),
            nn.GroupNorm(_GROUPS, outside),
            nn.ReLU(),
            nn.Conv2d(outside, outside, 3, padding=1, bias=False),
            nn.GroupNorm(_GROUPS, outside),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inside != outside:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inside, outside, 1, stride=stride, bias=False),
                nn.GroupNorm(_GROUPS, outside),
            )

    def forward(self, x: Tensor) -> Tensor:
        """(B, inside, height, width) to (B, outside, height / stride, width / stride)."""
        return nn.functional.relu(self.path(x) + self.shortcut(x))


def _resnet18(input_shape: Shape, classes: int) -> nn.Module:
    channels, _, _ = _image_shape("resnet18", input_shape, least=8)
    widths = (64, 64, 128, 256, 512)
    blocks: list[nn.Module] = []
    for inside, outside in itertools.pairwise(widths):
        blocks.append(_Residual(inside, outside, stride=1 if inside == outside else 2))
        blocks.append(_Residual(outside, outside, stride=1))
    return nn.Sequential(
        nn.Conv2d(channels, 64, 3, padding=1, bias=False),
        nn.GroupNorm(_GROUPS, 64),
        nn.ReLU(),
        *blocks,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(512, classes),
    )


def _image_shape(name: str, input_shape: Shape, *, least: int) -> tuple[int, int, int]:
    if len(input_shape) != 3 or min(input_shape[1:]) < least:
        raise InputError(
            f"input_shape={input_shape} does not fit {name!r}, which needs (channels, height, "
            f"width) with sides of at least {least}; use 'mlp' or 'linear' instead"
        )
    channels, height, width = input_shape
    return channels, height, width


NETWORKS: dict[str, Callable[[Shape, int], nn.Module]] = {
    "linear": _linear,
    "mlp": _mlp,
    "lenet": _lenet,
    "sigmoid-lenet": _sigmoid_lenet,
    "cnn": _cnn,
    "conv4": _conv4,
    "resnet18": _resnet18,
}
