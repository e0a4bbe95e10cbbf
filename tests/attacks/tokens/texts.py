"""Text models as people write them, and what plain PyTorch sends of a batch."""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from overhear.attacks.problem.observation import Observation
from overhear.training.models.parameters import flatten

VOCABULARY, CLASSES = 60, 3


class Encoder(nn.Module):
    """An embedding, positions, `nn.TransformerEncoderLayer` and a mean or a class token."""

    def __init__(
        self, length: int, *, width: int = 32, layers: int = 1, heads: int = 2,
        activation: str = "relu", norm_first: bool = False, positions: str = "learned",
        cls: bool = False, padding: int | None = None, sparse: bool = False, scale: bool = False,
        vocabulary: int = VOCABULARY, batch_first: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        self.positions, self.scale = positions, math.sqrt(width) if scale else 1.0
        self.batch_first = batch_first
        self.words = nn.Embedding(vocabulary, width, padding_idx=padding, sparse=sparse)
        if positions == "learned":
            self.places = nn.Parameter(torch.randn(length + 2, width))
        elif positions == "table":
            self.table = nn.Embedding(length + 2, width)
        elif positions == "fixed":
            self.register_buffer("waves", torch.sin(torch.randn(length, width) * 3))
        self.cls = nn.Parameter(torch.randn(1, 1, width)) if cls else None
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width, heads, 2 * width, 0.0, activation, batch_first=batch_first,
                norm_first=norm_first,
            )
            for _ in range(layers)
        )  # fmt: skip
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        z = self.words(x) * self.scale
        length = x.shape[1]
        if self.positions == "learned":
            z = z + self.places[:length]
        elif self.positions == "table":
            z = z + self.table(torch.arange(length))
        elif self.positions == "fixed":
            z = z + self.waves[:length]
        if self.cls is not None:
            z = torch.cat([self.cls.expand(len(z), -1, -1), z], dim=1)
        z = z if self.batch_first else z.transpose(0, 1)
        for layer in self.layers:
            z = layer(z)
        z = z if self.batch_first else z.transpose(0, 1)
        return self.head(z.mean(dim=1) if self.cls is None else z[:, 0])


class Attention(nn.Module):
    """An attention of one's own: `nn.MultiheadAttention`, or products with parameters."""

    def __init__(self, length: int, *, width: int = 32, plain: bool = False) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, width)
        self.places = nn.Parameter(torch.randn(length, width))
        self.mixed = None if plain else nn.MultiheadAttention(width, 2, batch_first=True)
        if plain:
            self.query, self.key, self.value = (
                nn.Parameter(torch.randn(width, width) / math.sqrt(width)) for _ in range(3)
            )
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        z = self.words(x) + self.places
        if self.mixed is not None:
            y = self.mixed(z, z, z)[0]
        else:
            scores = (z @ self.query) @ (z @ self.key).transpose(1, 2) / math.sqrt(z.shape[2])
            y = scores.softmax(dim=-1) @ (z @ self.value)
        return self.head(functional.gelu(self.norm(z + y)).mean(dim=1))


class Bag(nn.Module):
    """The mean of a record's embeddings, and two layers."""

    def __init__(self, *, bag: bool = True, width: int = 32) -> None:
        super().__init__()
        kind = nn.EmbeddingBag if bag else nn.Embedding
        self.words, self.bag = kind(VOCABULARY, width), bag
        self.layers = nn.Sequential(nn.Linear(width, 16), nn.Tanh(), nn.Linear(16, CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        z = self.words(x)
        return self.layers(z if self.bag else z.mean(dim=1))


def drawn(records: int, length: int, *, vocabulary: int = VOCABULARY) -> tuple[Tensor, Tensor]:
    """Tokens with the frequencies of words, some of them often, and labels; of torch's state."""
    frequency = 1 / (torch.arange(vocabulary) + 3.0)
    tokens = torch.multinomial(frequency, records * length, replacement=True)
    return tokens.reshape(records, length), torch.randint(CLASSES, (records,))


def sent(
    model: nn.Module, tokens: Tensor, labels: Tensor, *, noise_std: float = 0.0, **said: Any
) -> Observation:
    """What the backward pass of a training script leaves, with noise on top."""
    model.zero_grad()
    functional.cross_entropy(model(tokens), labels).backward()
    rows = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
    gradient = torch.cat([(row.to_dense() if row.is_sparse else row).flatten() for row in rows])
    gradient = gradient + noise_std * torch.randn_like(gradient)
    return Observation.single(
        gradient=gradient, model=flatten(model), noise_std=noise_std, clip_norm=None,
        records=len(tokens), **said,
    )  # fmt: skip
