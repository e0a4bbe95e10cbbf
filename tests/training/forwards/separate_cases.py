"""Forwards in which examples stay apart, and forwards in which they meet."""

import torch
from torch import Tensor, nn
from torch.nn import functional


class Block(nn.Module):
    """A transformer's block with an attention of its own, and a residual path that overwrites."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.norms = heads, nn.ModuleList([nn.LayerNorm(width) for _ in range(2)])
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        count, length, width = x.shape
        q, k, v = self.qkv(self.norms[0](x)).chunk(3, dim=-1)
        q, k, v = (
            t.reshape(count, length, self.heads, -1).transpose(1, 2).flatten(0, 1)
            for t in (q, k, v)
        )  # (count * heads, length, .)
        scores = torch.bmm(q, k.mT) / (width // self.heads) ** 0.5
        hidden = torch.ones(length, length, device=x.device).tril() == 0
        found = scores.masked_fill(hidden, -torch.inf).softmax(-1) @ v
        found = found.view(count, self.heads, length, -1).transpose(1, 2).reshape(x.shape)
        x = x + self.out(found)
        y = self.down(functional.gelu(self.up(self.norms[1](x))))
        y += x
        return y


class Transformer(nn.Module):
    """Tokens, of which 0 is padding and masked, with positions, and blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(7, 8, padding_idx=0), nn.Embedding(5, 8)
        self.blocks = nn.Sequential(Block(8, 2), Block(8, 4))
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(x.shape[1], device=x.device).expand(x.shape[0], -1)
        found = self.blocks(self.tokens(x) + self.positions(places))
        kept = (x != 0).to(found.dtype)[..., None]
        return self.head((found * kept).sum(1) / kept.sum(1).clamp(min=1))


class Encoder(nn.Module):
    """Torch's own encoder over tokens, with a mask of the padding."""

    def __init__(self, *, first: bool = True) -> None:
        super().__init__()
        self.tokens, self.head = nn.Embedding(7, 8), nn.Linear(8, 3)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=first)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.first = first

    def forward(self, x: Tensor) -> Tensor:
        read = self.tokens(x)
        if not self.first:
            return self.head(self.encoder(read.transpose(0, 1)).mean(0))
        hidden = torch.zeros(x.shape, device=x.device, dtype=read.dtype).masked_fill(x == 0, -9.0)
        return self.head(self.encoder(read, src_key_padding_mask=hidden).mean(1))


class Images(nn.Module):
    """Convolutions, group norms, functional calls and activations in place."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.norm, self.head, self.spare = nn.GroupNorm(2, 4), nn.Linear(16, 3), nn.Linear(2, 2)
        self.register_buffer("scale", torch.full((4, 1, 1), 0.5))

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu_(self.first(x))
        x = functional.silu(self.norm(self.second(x))) * self.scale + x
        return self.head(functional.max_pool2d(x, 2).view(x.shape[0], -1))


class Mixer(nn.Module):
    """Layers along positions and along features, by einsum and by transposed linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.along, self.across, self.head = nn.Linear(4, 4), nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = x.unflatten(1, (4, 3))
        x = torch.tanh(self.along(x.transpose(1, 2)).transpose(1, 2))
        x = x + torch.einsum("btc,bsc->bts", x, x).softmax(-1) @ x
        x = self.across(x.transpose(0, 1).reshape(-1, 3)).view(4, -1, 3)  # (positions * B, 3)
        return self.head(x.mean(0))


# A network, the shape of an example, and the number of its tokens.
APART = {
    "transformer": (Transformer, (5,), 7),
    "encoder": (Encoder, (5,), 7),
    "encoder, batch second": (lambda: Encoder(first=False), (5,), 7),
    "images": (Images, (2, 4, 4), None),
    "mixer": (Mixer, (12,), None),
    "layer twice": (lambda: Of(lambda m, x: m.inner(m.inner(x))), (6,), None),
    "bare parameter": (lambda: Of(lambda m, x: x + m.inner.bias), (6,), None),
}


class Of(nn.Module):
    """A linear layer after a function of the inputs (B, 6)."""

    def __init__(self, function, width: int = 6) -> None:
        super().__init__()
        self.function, self.inner, self.head = function, nn.Linear(width, width), nn.Linear(6, 3)
        self.register_buffer("table", torch.ones(3, 6))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.function(self, x))


def _overwritten(_: nn.Module, x: Tensor) -> Tensor:
    y = x * 2
    y[:, 0] += x.sum(1)
    return y


def _counted(module: nn.Module, x: Tensor) -> Tensor:
    module.table += 1
    return x * module.table[0]


# Of a module and its inputs (B, 6); each has an operation in which examples may meet.
MEETING = {
    "mean of the batch": lambda _, x: x - x.mean(0),
    "largest of the batch": lambda _, x: x / x.abs().amax().clamp(min=4.0),
    "size of the batch": lambda _, x: x / x.shape[0],
    "size of the batch in a constant": lambda _, x: x + torch.full((6,), float(x.shape[0])),
    "positions in the batch": lambda _, x: x + torch.arange(x.shape[0])[:, None],
    "count of the batch": lambda _, x: x * torch.ones(x.shape[0], 1).sum(0),
    "sides of the batch in a constant": lambda _, x: (
        x + (torch.zeros(x.shape[0], 1) + torch.arange(6.0)).view(6, -1).t()
    ),
    "softmax over examples": lambda _, x: x.softmax(0),
    "cumulative": lambda _, x: x.cumsum(0),
    "sorted": lambda _, x: x.sort(0).values,
    "flipped": lambda _, x: x.flip(0),
    "rolled": lambda _, x: x.roll(1),
    "rolled by whole turns of some batches": lambda _, x: x.roll(77, 0),
    "all positions rolled": lambda _, x: x.roll(77 * 6),
    "positions of examples rolled": lambda _, x: x.view(-1, 2).roll(77 * 3, 0).view(-1, 6),
    "sides squeezed": lambda _, x: x.squeeze().unsqueeze(1).softmax(-1).mean(1).view(-1, 6),
    "side squeezed": lambda _, x: x.squeeze(0).unsqueeze(1).softmax(-1).mean(1).view(-1, 6),
    "read as integers": lambda _, x: x.double().view(torch.int64).float(),
    "regrouped": lambda _, x: x.view(6, -1).t(),
    "pairs of the batch": lambda _, x: (x.reshape(-1, 2).softmax(0)).reshape(-1, 6),
    "one for all": lambda _, x: x + x[0],
    "product of examples": lambda _, x: (x @ x.t()).softmax(1) @ x,
    "einsum": lambda _, x: torch.einsum("bi,ci->bc", x, x) @ x,
    "attention": lambda m, x: functional.scaled_dot_product_attention(x, x, m.inner(x)),
    "indexed": lambda _, x: x[torch.randperm(2)],
    "scattered": lambda _, x: torch.zeros_like(x).index_add(0, torch.zeros(1).long(), x[:1]),
    "branch on data": lambda _, x: x if bool(x.amax() > 4) else 2 * x,
    "branch on the batch": lambda _, x: x if x.shape[0] > 5 else 2 * x,
    "number from data": lambda _, x: x * x.amax().item(),
    "batch norm": lambda _, x: functional.batch_norm(x, None, None, training=True),
    "convolution over examples": lambda _, x: functional.conv1d(x.t()[None], torch.ones(6, 6, 1))[
        0
    ].t(),
    "normalised over all": lambda _, x: (
        functional.layer_norm(x.t(), (2,)).t() if len(x) == 2 else x / x.norm()
    ),
    "random": lambda _, x: functional.dropout(x, 0.5),
    "drawn": lambda _, x: x + torch.rand_like(x),
    "overwritten view": _overwritten,
    "overwritten buffer": _counted,
    "shifted up": lambda m, x: (x[:, None] + m.inner.weight).mean(1),
    "weight elsewhere": lambda m, x: m.inner(x) @ m.inner.weight,
    "weight scaled": lambda m, x: functional.linear(x, 2 * m.inner.weight),
    "bare parameter": lambda m, x: x * m.inner.bias,
    "layer on what is shared": lambda m, x: x + m.inner(torch.ones(1, 6)),
    "no gradient": lambda m, x: m.inner(x) + torch.no_grad()(lambda: x * 2)(),
}
