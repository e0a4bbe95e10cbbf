"""Batches of tokens from gradients of text models: what is exact, and what noise leaves.

    OMP_NUM_THREADS=1 python benchmarks/attacks_tokens.py [--seeds 1] [--markdown]   # minutes

Tokens are drawn with the frequencies of words (1 / rank), labels at random. Every line counts
batches over seeds: those whose set of tokens is exact, those of which every record is whole (of
models that do not see the order: exact as a multiset), and those of which something false was said.
The floor of the design page is an exact set at B2 x 16.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from overhear.attacks import Observation, TokenReconstruction, reconstruct_tokens
from overhear.runs.attack.tokens import score_tokens
from overhear.training.models.parameters import flatten

VOCABULARY, CLASSES = 1000, 4


class Encoder(nn.Module):
    """An embedding, positions, `nn.TransformerEncoderLayer` and a mean."""

    def __init__(
        self, length: int, width: int, *, layers: int = 1, positions: bool = True,
        norm_first: bool = False, activation: str = "relu",
    ) -> None:  # fmt: skip
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, width)
        self.places = nn.Parameter(torch.randn(length, width)) if positions else None
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width, 4, 2 * width, 0.0, activation, batch_first=True, norm_first=norm_first
            )
            for _ in range(layers)
        )
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C) logits of tokens (B, L)."""
        z = self.words(x)
        z = z if self.places is None else z + self.places
        for layer in self.layers:
            z = layer(z)
        return self.head(z.mean(dim=1))


class Attention(nn.Module):
    """`nn.MultiheadAttention` with a residual and a norm."""

    def __init__(self, length: int, width: int) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, width)
        self.places = nn.Parameter(torch.randn(length, width))
        self.mixed = nn.MultiheadAttention(width, 4, batch_first=True)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C) logits of tokens (B, L)."""
        z = self.words(x) + self.places
        return self.head(self.norm(z + self.mixed(z, z, z)[0]).mean(dim=1))


class Bag(nn.Module):
    """The mean of a record's embeddings, and two layers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.words = nn.EmbeddingBag(VOCABULARY, width)
        self.layers = nn.Sequential(nn.Linear(width, 32), nn.ReLU(), nn.Linear(32, CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        """(B, C) logits of tokens (B, L)."""
        return self.layers(self.words(x))


class Filters(nn.Module):
    """Filters of three, four and five words, the greatest of each, and one layer (Kim, 2014)."""

    def __init__(self, width: int, filters: int) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, width)
        self.filters = nn.ModuleList(nn.Conv1d(width, filters, size) for size in (3, 4, 5))
        self.layer = nn.Linear(3 * filters, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C) logits of tokens (B, L)."""
        z = self.words(x).transpose(1, 2)
        return self.layer(torch.cat([read(z).relu().amax(dim=2) for read in self.filters], dim=1))


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One line: a model, a batch, and the noise over the norm of the gradient."""

    name: str
    build: Callable[[], nn.Module]
    records: int
    length: int
    dtype: torch.dtype = torch.float32
    noise: float = 0.0
    loss: Callable[[Tensor, Tensor], Tensor] = functional.cross_entropy


def squared_error(logits: Tensor, labels: Tensor) -> Tensor:
    """The squared error of logits as values, which the attack takes for a cross-entropy."""
    return (logits - functional.one_hot(labels, CLASSES)).square().mean()


def cases() -> list[Case]:
    """The lines of the table."""
    single, double = torch.float32, torch.float64
    found = [
        Case(name="encoder", build=lambda: Encoder(16, 64), records=b, length=16, dtype=t)
        for b, t in ((1, single), (2, single), (2, double))
    ]
    found += [
        Case(
            name="2 layers, norm first, GELU", records=2, length=16,
            build=lambda: Encoder(16, 64, layers=2, norm_first=True, activation="gelu"),
        ),
        Case(name="encoder", build=lambda: Encoder(16, 128), records=4, length=16),
        Case(name="encoder", build=lambda: Encoder(32, 192), records=4, length=32),
        Case(name="MultiheadAttention", build=lambda: Attention(16, 64), records=2, length=16),
        Case(
            name="encoder without positions", records=2, length=16,
            build=lambda: Encoder(16, 64, positions=False),
        ),
        Case(name="EmbeddingBag", build=lambda: Bag(64), records=2, length=16),
        Case(name="filters", build=lambda: Filters(100, 64), records=2, length=16),
        Case(name="filters", build=lambda: Filters(100, 64), records=4, length=24),
        Case(name="filters", build=lambda: Filters(100, 24), records=1, length=60),
        Case(name="encoder, 32 features", build=lambda: Encoder(16, 32), records=2, length=16),
    ]  # fmt: skip
    found += [
        Case(name=f"{name}, squared error", build=build, records=b, length=16, loss=squared_error)
        for name, build, b in (
            ("encoder", lambda: Encoder(16, 64), 1),
            ("encoder", lambda: Encoder(16, 64), 2),
            ("encoder", lambda: Encoder(16, 128), 4),
            ("EmbeddingBag", lambda: Bag(64), 2),
        )
    ]
    found += [
        Case(name="encoder", build=lambda: Encoder(16, 64), records=b, length=16, noise=noise)
        for b in (1, 2)
        for noise in (0.02, 0.1, 0.3)
    ]
    return found


def attacked(case: Case, seed: int) -> tuple[Tensor, TokenReconstruction]:
    """A batch, and what the attack says of it."""
    torch.manual_seed(seed)
    model = case.build().to(case.dtype)
    frequency = 1 / (torch.arange(VOCABULARY) + 3.0)
    tokens = torch.multinomial(frequency, case.records * case.length, replacement=True)
    tokens = tokens.reshape(case.records, case.length)
    case.loss(model(tokens), torch.randint(CLASSES, (case.records,))).backward()
    gradient = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    std = case.noise * float(gradient.norm()) / len(gradient) ** 0.5
    seen = Observation.single(
        gradient=gradient + std * torch.randn_like(gradient), model=flatten(model),
        noise_std=std, clip_norm=None, records=case.records,
    )  # fmt: skip
    found = reconstruct_tokens(
        seen, model, length=case.length, classes=CLASSES,
        generator=torch.Generator().manual_seed(seed),
    )  # fmt: skip
    return tokens, found


def line(case: Case, seeds: int) -> list[str]:
    """What is reached over seeds."""
    sets = whole = false = 0
    present = power = placed = wrong = 0.0
    decided: set[str] = set()
    begin = time.process_time()
    for seed in range(seeds):
        truth, found = attacked(case, seed)
        ordered = found.decided not in ("multisets", "batch")
        scores = score_tokens(truth, found.tokens, found=found.found, ordered=ordered)
        sets += scores.present == 1 and scores.false == 0
        sorted_ = truth.sort(dim=1).values.tolist()
        whole += (
            scores.whole == case.records
            if ordered
            else sorted(found.tokens.tolist()) == sorted(sorted_)
        )
        known = float((found.tokens >= 0).double().mean()) if ordered else 0.0
        wrong += known - (scores.placed or 0.0)
        false += scores.false
        present += scores.present / seeds
        power += found.power / seeds
        placed += (scores.placed or 0.0) / seeds
        decided.add(found.decided)
    seconds = (time.process_time() - begin) / seeds
    kind = str(case.dtype).removeprefix("torch.")
    return [
        f"{case.name}, {kind}", f"{case.records} x {case.length}", f"{case.noise:.0%}",
        f"{sets} of {seeds}", f"{whole} of {seeds}", ", ".join(sorted(decided)),
        f"{present:.0%}", f"{power:.0%}", f"{placed:.0%}", f"{false}, {wrong:.1%}",
        f"{seconds:.1f}",
    ]  # fmt: skip


HEAD = (
    "model", "batch", "noise over gradient", "set exact", "whole", "decided", "tokens known",
    "power", "at their place", "false tokens, places", "CPU seconds",
)  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--markdown", action="store_true")
    options = parser.parse_args(arguments)
    rows = [list(HEAD)]
    reached = True
    for case in cases():
        row = line(case, options.seeds)
        rows.append(row)
        if case.noise == 0:
            reached &= row[3] == f"{options.seeds} of {options.seeds}"
        print(" | ".join(row), flush=True)
    if options.markdown:
        print()
        for number, row in enumerate(rows):
            print(f"| {' | '.join(row)} |")
            if number == 0:
                print(f"|{' --- |' * len(row)}")
    print(f"set of tokens exact without noise: {'reached' if reached else 'BELOW'}")


if __name__ == "__main__":
    main()
