"""Text models as people write them, and what plain PyTorch sends of a batch."""

import math
from collections.abc import Callable
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
    model: nn.Module, tokens: Tensor, labels: Tensor | None, *, noise_std: float = 0.0,
    loss: Callable[[Tensor, Tensor], Tensor] = functional.cross_entropy, **said: Any,
) -> Observation:  # fmt: skip
    """What a training script leaves, with noise on top; of text alone where there are no labels.

    Texts may end earlier, with -1 behind, which counts for nothing.
    """
    model.zero_grad()
    logits = model(tokens.clamp_min(0))
    if logits.ndim > 2:
        whole = tokens if labels is None else torch.cat([tokens, labels[:, None]], dim=1)
        labels = whole[:, 1:].flatten().masked_fill(whole[:, 1:].flatten() < 0, -100)
        logits = logits[:, : whole.shape[1] - 1].flatten(0, 1)
    loss(logits, labels).backward()
    rows = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
    gradient = torch.cat([(row.to_dense() if row.is_sparse else row).flatten() for row in rows])
    gradient = gradient + noise_std * torch.randn_like(gradient)
    return Observation.single(
        gradient=gradient, model=flatten(model), noise_std=noise_std, clip_norm=None,
        records=len(tokens), **said,
    )  # fmt: skip


class Varied(nn.Module):
    """A small model of a random kind, or a given one: what is mixed, which places are read, ..."""

    def __init__(self, draw: torch.Generator, *, spoken: bool = False, **given: Any) -> None:
        super().__init__()

        def one_of(*kinds: Any) -> Any:
            return kinds[int(torch.randint(len(kinds), (1,), generator=draw))]

        self.vocabulary, self.length, width = one_of(6, 9, 14), one_of(2, 3, 4), one_of(8, 16)
        self.mixed = one_of("none", "attention", "causal", "encoder", "convolution")
        self.read = one_of("mean", "last", "first", "some", "words", "end", "largest", "all")
        self.padding, self.hides = one_of(None, None, 0), one_of(False, True)
        self.shared, self.deep = one_of(False, False, True), one_of(False, True)
        self.classes, self.spoken = self.vocabulary if self.shared or spoken else CLASSES, spoken
        if spoken:  # each place predicts the next token
            self.mixed = one_of("none", "causal", "encoder", "convolution", "LSTM", "GRU")
            self.read = "each"
        width = given.pop("width", width)
        vars(self).update(given)
        # The table may be not trained, or shared; there may be no positions.
        self.words = nn.Parameter(torch.randn(self.vocabulary, width))
        if one_of(True, False, False) and not self.shared:
            rows = self.words.detach()
            del self.words
            self.register_buffer("words", rows)
        self.places = nn.Parameter(torch.randn(self.length, width))
        self.placed = one_of(0, 1)
        self.register_buffer("seen", torch.randint(2, (self.length,), generator=draw).float())
        self.seen[-1] = 1
        if self.mixed in ("attention", "causal"):
            self.attention = nn.MultiheadAttention(width, 2, batch_first=True)
        elif self.mixed in ("LSTM", "GRU"):
            self.states = getattr(nn, self.mixed)(width, width, batch_first=True)
        elif self.mixed == "encoder":
            self.encoder = nn.TransformerEncoderLayer(width, 2, width, 0.0, batch_first=True)
        else:
            self.convolution = nn.Conv1d(width, width, 2)
        self.inner = nn.Linear(width * (self.length if self.read == "all" else 1), width)
        self.head = nn.Linear(width, self.classes)

    def forward(self, x: Tensor) -> Tensor:
        z = functional.embedding(x, self.words, self.padding)
        z = z + self.placed * self.places[: x.shape[1]]
        empty = x.eq(-1 if self.padding is None else self.padding)
        empty = empty & ~empty.all(dim=1, keepdim=True)
        hidden = empty if self.hides else None
        if self.mixed == "attention":
            z = z + self.attention(z, z, z, key_padding_mask=hidden)[0]
        elif self.mixed == "causal":
            later = torch.ones(x.shape[1], x.shape[1]).triu(1).bool()
            z = z + self.attention(z, z, z, attn_mask=later)[0]
        elif self.mixed in ("LSTM", "GRU"):
            z = self.states(z)[0]
        elif self.mixed == "encoder":
            z = self.encoder(z, src_key_padding_mask=hidden)
        elif self.mixed == "convolution":
            shifted = functional.pad(z, (0, 0, 1, 0)).transpose(1, 2)
            z = self.convolution(shifted).transpose(1, 2).tanh()
        ends = (~empty).long().cumsum(dim=1).argmax(dim=1)
        weights = (
            None
            if self.spoken
            else {
                "mean": torch.ones_like(x),
                "last": torch.eye(self.length)[-1],
                "first": torch.eye(self.length)[0],
                "some": self.seen,
                "words": ~empty,
                "end": torch.eye(self.length)[ends],
            }.get(self.read)
        )
        if weights is not None:
            weights = weights.expand(x.shape).to(z)
            z = (weights[:, :, None] * z).sum(dim=1) / weights.sum(dim=1, keepdim=True).clamp_min(1)
        elif not self.spoken:
            z = z.amax(dim=1) if self.read == "largest" else z.flatten(1)
        z = self.inner(z).tanh() if self.deep or self.read == "all" else z
        return z @ self.words.T if self.shared else self.head(z)


def varied(seed: int, *, spoken: bool = False) -> tuple[Varied, Tensor, Tensor | None]:
    """A random model, and a batch of one or two texts of few tokens or many, that may be padded."""
    torch.manual_seed(seed)
    draw = torch.Generator().manual_seed(seed)
    model = Varied(draw, spoken=spoken)
    records, few, double = torch.randint(12, (3,), generator=draw).tolist()
    allowed = torch.randperm(model.vocabulary, generator=draw)[: (1, 2, model.vocabulary)[few % 3]]
    shape = (1 + records % 2, model.length)
    x = allowed[torch.randint(len(allowed), shape, generator=draw)]
    if model.padding is not None:
        kept = torch.randint(1, model.length + 1, (len(x), 1), generator=draw)
        x = torch.where(torch.arange(model.length) < kept, x.clamp_min(1), 0)
    y = torch.randint(model.classes, (len(x),), generator=draw)
    y = None if spoken and seed % 3 == 0 else y
    return model.double() if double % 2 else model, x, y
