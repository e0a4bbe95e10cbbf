"""Networks, batches and the oracle of the tests of gradient layouts."""

import copy
import functools
import types

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from overhear.training.models.parameters import build_model, flatten

LAYOUTS = ("loop", "vmap", "book-keeping", "grouped")


FAST = ("vmap", "book-keeping", "grouped")


RAGGED = (5, 0, 3, 1)


# A ring of four with self-loops, and once a pair that is named twice.
SENDERS = [0, 1, 3, 0, 1, 2, 1, 2, 3, 0, 2, 3, 3]


RECEIVERS = [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3, 3]


PAIRS = (SENDERS, RECEIVERS)


class Twice(nn.Module):
    """One layer called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.outer(self.inner(torch.tanh(self.inner(x))))


class Recurrent(nn.Module):
    """Layers, a norm among them, that are called for each step of a sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.read, self.held, self.norm = (
            nn.Linear(2, 4),
            nn.Linear(4, 4, bias=False),
            nn.LayerNorm(4),
        )
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = x.new_zeros(x.shape[0], 4)
        for step in self.read(x.unflatten(1, (3, 2))).unbind(1):
            h = self.norm(step + self.held(h)).tanh()
        return self.head(h)


class Bare(nn.Module):
    """Matrices and shifts that are no layer's: of a record, of a position, and one number."""

    def __init__(self) -> None:
        super().__init__()
        for name, shape in {
            "place": (1, 3, 2), "first": (2, 4), "shift": (4,), "all": (1,), "one": (),
            "last": (12, 3),
        }.items():  # fmt: skip
            self.register_parameter(name, nn.Parameter(torch.randn(shape)))

    def forward(self, x: Tensor) -> Tensor:
        x = x.unflatten(1, (3, 2)) + self.place
        return ((x @ self.first + self.shift).tanh() + self.all + self.one).flatten(1) @ self.last


class Patched(nn.Module):
    """A convolution called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Conv2d(2, 2, 2), nn.Linear(2, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.outer(self.inner(self.inner(x).tanh()).flatten(1))


class Borrowed(nn.Module):
    """A layer whose weight is also used outside its call."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.outer(torch.tanh(self.inner(x))) + (x @ self.inner.weight)[:, :3]


class Text(nn.Module):
    """The mean of a text's tokens, of which 0 is padding, and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.head = nn.Embedding(5, 4, padding_idx=0), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.tokens(x).mean(1))


class TwiceRead(Text):
    """A text whose tokens are looked up twice, in another order and in part."""

    def forward(self, x: Tensor) -> Tensor:
        return self.head((self.tokens(x) * self.tokens(x.flip(1))).mean(1) + self.tokens(x[:, 0]))


class Sequence(nn.Module):
    """A fully connected layer over positions."""

    def __init__(self) -> None:
        super().__init__()
        self.each, self.head = nn.Linear(3, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.each(x.unflatten(1, (2, 3)))).mean(1))


class Scaled(nn.Module):
    """Inputs in units of the batch's largest number, where that is above a bound."""

    def __init__(self, least: float = 4.0) -> None:
        super().__init__()
        self.inner, self.outer, self.least = nn.Linear(6, 16), nn.Linear(16, 3), least

    def forward(self, x: Tensor) -> Tensor:
        x = x * (3 * self.least) / x.abs().amax().clamp(min=self.least)
        return self.outer(torch.tanh(self.inner(x)))


class Centred(nn.Module):
    """Features less their mean over the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(6, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        found = torch.tanh(self.inner(x))
        return self.outer(found - found.mean(0))


class TwoReaders(nn.Module):
    """Two convolutions that read the input, with patches of one shape."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Conv2d(2, 4, 3, padding=2, dilation=2)
        self.near = nn.Conv2d(2, 4, 3, padding=1)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        read = [torch.tanh(reader(x)).mean((2, 3)) for reader in (self.wide, self.near)]
        return self.head(torch.cat(read, 1))


def over_the_largest(module, inputs, outputs):
    return outputs / outputs.abs().amax().clamp(min=4.0)


def hooked():
    model = nn.Sequential(nn.Linear(6, 3))
    model[0].register_forward_hook(over_the_largest)
    return model


def overridden():
    def forward(self, x):
        return over_the_largest(self, x, nn.Linear.forward(self, x))

    model = nn.Sequential(nn.Linear(6, 3))
    model[0].forward = types.MethodType(forward, model[0])
    return model


# Networks in which one example moves another's gradient; the last one shows it above every probe.
MIXING = {
    "scaled": Scaled,
    "centred": Centred,
    "softmax over examples": lambda: nn.Sequential(nn.Linear(6, 3), nn.Softmax(dim=0)),
    "hook": hooked,
    "own forward": overridden,
    "scaled late": lambda: Scaled(1e6),
}


SMALL = {
    "linear": (lambda: nn.Linear(6, 3), (6,)),
    "no bias": (
        lambda: nn.Sequential(nn.Linear(6, 4, bias=False), nn.ReLU(), nn.Linear(4, 3)),
        (6,),
    ),
    "in place": (
        lambda: nn.Sequential(nn.Linear(6, 4), nn.ReLU(inplace=True), nn.Linear(4, 3)),
        (6,),
    ),
    "input in place": (lambda: nn.Sequential(nn.SiLU(inplace=True), nn.Linear(6, 3)), (6,)),
    "positions": (Sequence, (6,)),
    "twice": (Twice, (6,)),
    "recurrent": (Recurrent, (6,)),
    "bare": (Bare, (6,)),
    "text read twice": (TwiceRead, (4,)),
    "layer norm": (
        lambda: nn.Sequential(
            nn.Linear(6, 4),
            nn.LayerNorm(4),
            nn.Tanh(),
            nn.Linear(4, 4),
            nn.LayerNorm(4, bias=False),
            nn.LayerNorm(4, elementwise_affine=False),
            nn.Linear(4, 3),
        ),
        (6,),
    ),
    "group norm": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 6, 3, padding=1),
            nn.GroupNorm(3, 6),
            nn.ReLU(),
            nn.Conv2d(6, 4, 3),
            nn.GroupNorm(2, 4, affine=False),
            nn.Tanh(),
            nn.Flatten(),
            nn.LazyLinear(3),
        ),
        (2, 5, 5),
    ),
    "text": (Text, (6,)),
    "wide kernel": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 4, (3, 2), stride=(2, 1), padding=(1, 2), dilation=(1, 2)),
            nn.Tanh(),
            nn.Conv2d(4, 5, 3, bias=False),
            nn.Sigmoid(),
            nn.AvgPool2d(2),
            nn.Flatten(),
            nn.LazyLinear(3),
        ),
        (3, 11, 9),
    ),
}


FALLBACK = {
    "no rule": (lambda: nn.Sequential(nn.Linear(6, 4), nn.PReLU(), nn.Linear(4, 3)), (6,)),
    "groups": (
        lambda: nn.Sequential(nn.Conv2d(2, 4, 2, groups=2), nn.Flatten(), nn.Linear(16, 3)),
        (2, 3, 3),
    ),
    "held twice": (lambda: nn.Sequential(*[nn.Linear(6, 6), nn.Tanh()] * 2, nn.Linear(6, 3)), (6,)),
    "a convolution twice": (Patched, (2, 3, 3)),
    "borrowed": (Borrowed, (6,)),
}


def make(case, generator):
    build, shape = case
    model = build()
    tokens = 5 if isinstance(model, Text) else None
    batches = ragged(shape, 3, generator, tokens=tokens)
    first = batches[0][0].to(torch.int64 if tokens else torch.float32, copy=True)
    model(first)  # lazy layers learn a shape
    size = sum(p.numel() for p in model.parameters())
    models = 0.3 * torch.randn(4, size, generator=generator, dtype=torch.float64)  # (A, D)
    return model, models, batches


def ragged(shape, classes, generator, sizes=RAGGED, tokens=None):
    return [
        (
            torch.randn(n, *shape, generator=generator, dtype=torch.float64)
            if tokens is None
            else torch.randint(tokens, (n, *shape), generator=generator),
            torch.randint(classes, (n,), generator=generator),
        )
        for n in sizes
    ]


def oracle(model, models, batches, clip_norm, coefficients=(1.0,), pairs=PAIRS):
    """The formula by hand: backward on the module itself, no code of the engine."""
    model = model.double()
    points = models if models.ndim == 3 else models[None]
    rows = []
    for m, d in zip(*pairs, strict=True):
        row = torch.zeros(points.shape[2], dtype=torch.float64)
        for x, y in zip(*batches[d], strict=True):
            gradient = torch.zeros_like(row)
            for coefficient, point in zip(coefficients, points[:, m], strict=True):
                nn.utils.vector_to_parameters(point, model.parameters())
                model.zero_grad()
                cross_entropy(model(x[None].clone()), y[None]).backward()
                found = [
                    torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()
                ]
                gradient += coefficient * torch.cat([g.flatten() for g in found])
            factor = 1.0 if clip_norm is None else min(1.0, clip_norm / float(gradient.norm()))
            row += factor * gradient
        rows.append(row)
    return torch.stack(rows)


def on_lenet(generator):
    model = build_model("lenet", input_shape=(1, 28, 28), classes=10, generator=generator)
    models = flatten(model).double() + 0.02 * torch.randn(4, 61_706, generator=generator).double()
    return model, models, ragged((1, 28, 28), 10, generator), PAIRS


def on_many(generator):
    """Thirty small models on a ring, with 0 to 6 examples each, and one agent with 40."""
    model = build_model("mlp", input_shape=(1, 4, 4), classes=3, generator=generator)
    sizes = [int(n) for n in torch.randint(7, (29,), generator=generator)] + [40]
    models = flatten(model).double() + 0.3 * torch.randn(30, flatten(model).numel()).double()
    receivers = [d for d in range(30) for _ in range(3)]
    senders = [(d + o) % 30 for d in range(30) for o in (-1, 0, 1)]
    return model, models, ragged((1, 4, 4), 3, generator, sizes), (senders, receivers)


MODELS = {name: lambda g, case=case: (*make(case, g), PAIRS) for name, case in SMALL.items()}


MODELS |= {"lenet": on_lenet, "many": on_many}


@functools.cache
def case(name, clip_norm):
    """A case with its oracle, which all layouts share."""
    torch.manual_seed(5)
    model, models, batches, pairs = MODELS[name](torch.Generator().manual_seed(7))
    expected = oracle(copy.deepcopy(model), models, batches, clip_norm, (-0.7,), pairs)
    return model, models, batches, pairs, expected


def one_more(engine, model, extra):
    """How far one record more moves a sum of eight, C = 1."""
    draw = torch.Generator().manual_seed(3)
    x, y = torch.rand(8, 6, generator=draw), torch.randint(3, (8,), generator=draw)
    before, after = (
        engine.clipped_sums(flatten(model)[None], ([0], [0]), [batch], clip_norm=1.0)
        for batch in ((x, y), (torch.cat([x, extra]), torch.cat([y, y[:1]])))
    )
    return float((after - before).norm())
