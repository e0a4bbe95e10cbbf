"""Networks and work for which `engine.py` compares the rule's layout with the others."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from overhear.training import build_model

Network = tuple[Callable[[], nn.Module], tuple[int, ...], int | None]


@dataclass(frozen=True, slots=True)
class Case:
    """Work for which the rule chooses.

    Attributes:
        network: a name of `networks`.
        graph: "own" for each model on its owner's data alone, "ring" or "full".
        agents: how many.
        examples: of each agent; where `poisson`, in the mean.
        poisson: whether batches differ in size, as in a run.
    """

    network: str
    graph: str
    agents: int
    examples: int
    poisson: bool = False


def networks() -> dict[str, Network]:
    """Networks by name, with the shape of an example and the number of tokens it is drawn from."""

    def reference(name: str, *shape: int) -> Network:
        draw = torch.Generator().manual_seed(0)
        build = partial(build_model, name, input_shape=shape, classes=10, generator=draw)
        return build, shape, None

    def fully_connected(*widths: int, norm: bool = False) -> nn.Module:
        layers: list[nn.Module] = [nn.Flatten()]
        for read, sent in itertools.pairwise(widths):
            layers += [nn.Linear(read, sent), *([nn.LayerNorm(sent)] if norm else []), nn.ReLU()]
        return nn.Sequential(*layers, nn.Linear(widths[-1], 10))

    def text(tokens: int) -> nn.Module:
        return nn.Sequential(nn.Embedding(tokens, 32), nn.Flatten(), nn.Linear(512, 10))

    def positions() -> nn.Module:
        inside = (nn.LayerNorm(32), nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 32))
        return nn.Sequential(nn.Embedding(500, 32), *inside, nn.Flatten(), nn.Linear(512, 10))

    def group_norms() -> nn.Module:
        first = (nn.Conv2d(1, 8, 3, padding=1), nn.GroupNorm(4, 8), nn.ReLU(), nn.MaxPool2d(2))
        second = (nn.Conv2d(8, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.ReLU(), nn.MaxPool2d(2))
        return nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(784, 10))

    return {
        "linear": reference("linear", 1, 28, 28),
        "mlp 8x8": reference("mlp", 1, 8, 8),
        "mlp 28x28": reference("mlp", 1, 28, 28),
        "wide 64-2048": (partial(fully_connected, 64, 2048), (64,), None),
        "wide 784-2048": (partial(fully_connected, 784, 2048), (784,), None),
        "layer norms": (partial(fully_connected, 64, 64, 64, norm=True), (64,), None),
        "text, 1,000 tokens": (partial(text, 1_000), (16,), 1_000),
        "text, 10,000 tokens": (partial(text, 10_000), (16,), 10_000),
        "text, by position": (positions, (16,), 500),
        "lenet": reference("lenet", 1, 28, 28),
        "sigmoid-lenet": reference("sigmoid-lenet", 3, 32, 32),
        "cnn": reference("cnn", 1, 28, 28),
        "cnn 8x8": reference("cnn", 1, 8, 8),
        "group norms": (group_norms, (1, 28, 28), None),
        "conv4": reference("conv4", 3, 32, 32),
        "resnet18": reference("resnet18", 3, 32, 32),
    }


CASES = (
    *(Case("mlp 8x8", "own", *work) for work in ((1, 1), (1, 512), (3, 16), (10, 8))),
    Case("mlp 8x8", "own", 100, 8, poisson=True),
    *(Case("mlp 8x8", *work) for work in (("ring", 1000, 8), ("full", 50, 8))),
    *(Case("linear", *work) for work in (("own", 1, 512), ("ring", 10, 32), ("full", 30, 8))),
    *(Case("mlp 28x28", "own", *work) for work in ((1, 512), (10, 1), (10, 32))),
    *(Case("mlp 28x28", *work) for work in (("ring", 100, 8), ("full", 30, 8))),
    *(Case("wide 64-2048", "own", *work) for work in ((10, 8), (10, 256))),
    *(Case("wide 784-2048", *work) for work in (("own", 1, 64), ("ring", 10, 16))),
    *(Case("layer norms", *work) for work in (("own", 1, 256), ("own", 10, 8), ("ring", 100, 8))),
    *(Case("text, 1,000 tokens", *work) for work in (("own", 1, 256), ("ring", 30, 8))),
    *(Case("text, 10,000 tokens", *work) for work in (("own", 10, 8), ("ring", 30, 8))),
    *(Case("text, by position", *work) for work in (("own", 1, 64), ("ring", 30, 8))),
    *(Case("lenet", "own", *work) for work in ((1, 1), (1, 512), (10, 1), (100, 4))),
    Case("lenet", "own", 30, 64, poisson=True),
    *(Case("lenet", *work) for work in (("ring", 10, 32), ("full", 30, 8))),
    *(Case("sigmoid-lenet", "own", *work) for work in ((1, 64), (10, 2), (10, 32))),
    *(Case("cnn", "own", *work) for work in ((1, 256), (10, 1), (10, 64))),
    *(Case("cnn", *work) for work in (("ring", 30, 2), ("full", 30, 8))),
    *(Case("cnn 8x8", *work) for work in (("own", 1, 256), ("own", 100, 8), ("full", 30, 16))),
    *(Case("group norms", *work) for work in (("own", 1, 256), ("own", 10, 2), ("ring", 10, 32))),
    *(Case("conv4", "own", *work) for work in ((1, 32), (10, 1), (10, 8))),
    *(Case("resnet18", "own", *work) for work in ((1, 4), (3, 1))),
)
