"""Networks on which layouts were slow, beside opacus, torch.func and gradients without privacy.

Agents lie on a ring, and each model meets its own data and that of two neighbours. "torch.func" is
what fifteen lines of it do: per-example gradients of all data that a model meets, in one vmap.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention

from overhear.training.gradients.gradients import PairGradients
from overhear.training.models.parameters import build_model, flatten, unflatten

Pairs = tuple[list[int], list[int]]
Batches = list[tuple[Tensor, Tensor]]
Peer = Callable[[nn.Module, Tensor, Pairs, Batches], Tensor]
CLIP_NORM = 0.5


class Block(nn.Module):
    """A transformer's block, with an attention of its own."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.read, self.out = (
            heads,
            nn.Linear(width, 3 * width),
            nn.Linear(width, width),
        )
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """(B, positions, width) to the same shape."""
        parts = self.read(self.first(x)).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        found = scaled_dot_product_attention(*parts.unbind(0))
        x = x + self.out(found.transpose(1, 2).flatten(2))
        return x + self.down(gelu(self.up(self.second(x))))


class Text(nn.Module):
    """A transformer over 32 tokens of 1,000, written as a module of its own."""

    def __init__(self, *, of_torch: bool) -> None:
        super().__init__()
        self.tokens, self.head = nn.Embedding(1_000, 64), nn.Linear(64, 10)
        layer = nn.TransformerEncoderLayer(64, 4, 256, dropout=0.0, batch_first=True)
        own = nn.Sequential(Block(64, 4), Block(64, 4))
        self.blocks = nn.TransformerEncoder(layer, 2) if of_torch else own

    def forward(self, x: Tensor) -> Tensor:
        """(B, 32) to logits (B, 10)."""
        return self.head(self.blocks(self.tokens(x)).mean(1))


@dataclass(frozen=True, slots=True)
class Goal:
    """A network and its work.

    Attributes:
        build: the network.
        shape: of an example.
        tokens: how many an example is drawn from; None for numbers.
        agents: on a ring.
        examples: of each agent.
        layouts: beside "auto".
    """

    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    tokens: int | None
    agents: int
    examples: int
    layouts: tuple[str, ...] = ("vmap",)


def _reference(name: str, *shape: int) -> Callable[[], nn.Module]:
    draw = torch.Generator().manual_seed(0)
    return partial(build_model, name, input_shape=shape, classes=10, generator=draw)


def _bag() -> nn.Module:
    return nn.Sequential(nn.Embedding(1_000, 32), nn.Flatten(), nn.Linear(512, 10))


GOALS = {
    "transformer": Goal(partial(Text, of_torch=False), (32,), 1_000, 10, 16),
    "encoder": Goal(partial(Text, of_torch=True), (32,), 1_000, 10, 16),
    "lenet": Goal(_reference("lenet", 1, 28, 28), (1, 28, 28), None, 10, 32),
    "mlp": Goal(_reference("mlp", 1, 28, 28), (1, 28, 28), None, 10, 32),
    "text": Goal(_bag, (16,), 1_000, 10, 32),
    "linear 50,000": Goal(partial(nn.Linear, 50_000, 10), (50_000,), None, 10, 32, ()),
    "resnet18": Goal(_reference("resnet18", 3, 32, 32), (3, 32, 32), None, 3, 8, ()),
}


def torch_func(model: nn.Module, models: Tensor, pairs: Pairs, batches: Batches) -> Tensor:
    """Per-example gradients of all data that a model meets, by one vmap."""

    def loss(parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(torch.func.functional_call(model, parameters, (x[None],)), y[None])

    per_example = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))
    out = torch.empty(len(pairs[0]), models.shape[1])
    for m in range(len(models)):
        near = [(e, d) for e, (s, d) in enumerate(zip(*pairs, strict=True)) if s == m]
        x, y = (torch.cat([batches[d][part] for _, d in near]) for part in (0, 1))
        found = per_example(unflatten(model, models[m]), x, y)
        blocks = [g.flatten(1) for g in found.values()]
        norms = torch.stack([g.norm(dim=1) for g in blocks]).norm(dim=0)
        factors = (CLIP_NORM / (norms + 1e-6)).clamp(max=1.0)
        begin = 0
        for e, d in near:
            here = slice(begin, begin + len(batches[d][1]))
            out[e] = torch.cat([factors[here] @ g[here] for g in blocks])
            begin = here.stop
    return out


def runs_of(goal: Goal, peers: Mapping[str, Peer]) -> dict[str, Callable[[], Tensor]]:
    """The layouts and the peers on a network's work, by their names in the table."""
    draw = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    model = goal.build()
    start = flatten(model)
    models = start + 0.02 * torch.randn(goal.agents, len(start), generator=draw)
    batches = []
    for _ in range(goal.agents):
        size = (goal.examples, *goal.shape)
        inputs = torch.randn(size, generator=draw)
        if goal.tokens is not None:
            inputs = torch.randint(goal.tokens, size, generator=draw)
        batches.append((inputs, torch.randint(10, (goal.examples,), generator=draw)))
    found = [(d, (d + o) % goal.agents) for d in range(goal.agents) for o in (-1, 0, 1)]
    pairs = [m for _, m in found], [d for d, _ in found]

    def layout(name: str) -> Callable[[], Tensor]:
        engine = PairGradients(model, name)  # type: ignore[arg-type]  # the literals above
        return lambda: engine.clipped_sums(models, pairs, batches, clip_norm=CLIP_NORM)

    runs = {f"layout {name}": layout(name) for name in ("auto", *goal.layouts)}
    if goal.layouts:
        peers = {**peers, "torch.func": torch_func}
    return runs | {
        name: partial(peer, model, models, pairs, batches) for name, peer in peers.items()
    }


def table(
    peers: Mapping[str, Peer], *, clock: Callable[[], float], quick: bool, only: str | None
) -> None:
    """Print the time of every row, and the median of its ratios to gradients without privacy.

    Args:
        peers: By their names in the table; "plain, a pair" is what the others are held against.
        clock: Seconds.
        quick: Whether to take fewer rounds.
        only: A name of `GOALS`; all for None.
    """
    for name, goal in GOALS.items():
        if only not in (None, name):
            continue
        runs, refused = runs_of(goal, peers), list[str]()
        for row, run in list(runs.items()):
            try:
                run()
            except Exception as error:  # noqa: BLE001 - what a peer raises for a layer
                refused.append(f"| {row} | refuses: {' '.join(str(error).split())[:60]} | |")
                del runs[row]
        times: dict[str, list[float]] = {row: [] for row in runs}
        for _ in range(3 if quick else 7):
            for row, run in runs.items():
                begun = clock()
                run()
                times[row].append(1e3 * (clock() - begun))
        print(f"\n| {name}, ring of {goal.agents}, {goal.examples} examples | CPU ms | / plain |")
        print("|---|---:|---:|")
        for row, found in times.items():
            floor = times["plain, a pair"]
            ratio = statistics.median(a / b for a, b in zip(found, floor, strict=True))
            print(f"| {row} | {statistics.median(found):.0f} | {ratio:.2f} |")
        print("\n".join(refused), flush=True)
