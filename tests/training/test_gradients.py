import copy
import functools
import math
import types
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from overhear.training import gradients, layout_choice
from overhear.training.bookkeeping import BookKeeping
from overhear.training.clipping import Examples, clip_factors
from overhear.training.gradients import PairGradients
from overhear.training.grouped import Grouped
from overhear.training.layout_choice import unknown_forward
from overhear.training.models import MODEL_NAMES, build_model, flatten

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
    "positions": (Sequence, (6,)),
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
    "twice": (Twice, (6,)),
    "borrowed": (Borrowed, (6,)),
}


def make(case, generator):
    build, shape = case
    model = build()
    tokens = 5 if isinstance(model, Text) else None
    batches = ragged(shape, 3, generator, tokens=tokens)
    model(batches[0][0].to(torch.int64 if tokens else torch.float32))  # lazy layers learn a shape
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
                cross_entropy(model(x[None]), y[None]).backward()
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


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(7)


@pytest.fixture
def lenet():
    draw = torch.Generator().manual_seed(0)
    return build_model("lenet", input_shape=(1, 28, 28), classes=10, generator=draw)


@pytest.mark.parametrize("clip_norm", [None, 1e-3, 0.4, 1e3])
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_equals_one_backward_pass_an_example(layout, name, clip_norm):
    model, models, batches, pairs, expected = case(name, clip_norm)
    engine = PairGradients(model, layout, dtype=torch.float64)
    found = engine.clipped_sums(models, pairs, batches, clip_norm=clip_norm, coefficients=(-0.7,))
    assert engine.layout == layout
    off, size = (found - expected).norm(dim=1), expected.norm(dim=1)
    assert (off <= 1e-10 * size).all()
    assert size.count_nonzero() < len(size)  # an empty batch is among them


@pytest.mark.parametrize("layout", FAST)
def test_single_precision_agrees_on_the_median_pair_of_lenet(layout):
    """Every gradient is clipped here, by the slack of float32 further than in float64."""
    model, models, batches, pairs, expected = case("lenet", 1e-3)
    expected = expected / (1 + 16 * torch.finfo(torch.float32).eps)
    found = PairGradients(model, layout, dtype=torch.float32).clipped_sums(
        models, pairs, batches, clip_norm=1e-3, coefficients=(-0.7,)
    )
    filled = expected.norm(dim=1) > 0
    off = (found.double() - expected).norm(dim=1)[filled] / expected.norm(dim=1)[filled]
    assert off.median() < 1e-6


@pytest.mark.parametrize("layout", FAST)
def test_single_precision_agrees_on_every_pair_of_a_smooth_network(layout, generator):
    model = nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2), nn.Tanh(), nn.AvgPool2d(2), nn.Conv2d(6, 16, 5), nn.Tanh(),
        nn.AvgPool2d(2), nn.Flatten(), nn.Linear(400, 120), nn.Tanh(), nn.Linear(120, 10),
    )  # fmt: skip
    size = flatten(model).numel()
    models = 0.05 * torch.randn(4, size, generator=generator, dtype=torch.float64)
    batches = ragged((1, 28, 28), 10, generator, sizes=(8, 0, 6, 7))
    found, exact = (
        PairGradients(model, name, dtype=dtype).clipped_sums(models, PAIRS, batches, clip_norm=0.5)
        for name, dtype in ((layout, torch.float32), ("loop", torch.float64))
    )
    filled = exact.norm(dim=1) > 0
    off = (found.double() - exact).norm(dim=1)[filled] / exact.norm(dim=1)[filled]
    assert off.max() < 1e-5


@pytest.mark.parametrize("name", FALLBACK)
def test_auto_falls_back_to_vmap_where_book_keeping_would_be_wrong(name, generator):
    model, models, batches = make(FALLBACK[name], generator)
    engine = PairGradients(model, dtype=torch.float64)
    found = engine.clipped_sums(models, PAIRS, batches, clip_norm=0.4)
    assert engine.layout == "vmap"
    torch.testing.assert_close(found, oracle(model, models, batches, 0.4), rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", FALLBACK)
def test_book_keeping_by_name_refuses_where_it_would_be_wrong(name, generator):
    model, models, batches = make(FALLBACK[name], generator)
    with pytest.raises(ValueError, match="use layout='vmap'"):
        PairGradients(model, "book-keeping").clipped_sums(models, PAIRS, batches, clip_norm=1.0)


def one_more(engine, model, extra):
    """How far one record more moves a sum of eight, C = 1."""
    draw = torch.Generator().manual_seed(3)
    x, y = torch.rand(8, 6, generator=draw), torch.randint(3, (8,), generator=draw)
    before, after = (
        engine.clipped_sums(flatten(model)[None], ([0], [0]), [batch], clip_norm=1.0)
        for batch in ((x, y), (torch.cat([x, extra]), torch.cat([y, y[:1]])))
    )
    return float((after - before).norm())


@pytest.mark.parametrize("size", [1.0, -100.0, 1e8])
@pytest.mark.parametrize("name", MIXING)
def test_one_record_moves_a_sum_by_at_most_the_clip_norm(name, size, generator):
    torch.manual_seed(2)
    model = MIXING[name]()
    engine = PairGradients(model, dtype=torch.float64)
    extra = size * torch.randn(1, 6, generator=generator)
    assert one_more(engine, model, extra) <= 1 + 1e-6
    assert engine.layout == "vmap"


@pytest.mark.parametrize("layout", ["book-keeping", "grouped"])
@pytest.mark.parametrize("name", ["scaled", "centred", "softmax over examples", "hook"])
@pytest.mark.parametrize("first", ["ordinary", "one", "blank"])
def test_a_name_is_refused_where_a_probe_moves_the_gradients_of_others(layout, name, first):
    torch.manual_seed(2)
    model = MIXING[name]()
    x, y = torch.rand(1 if first == "one" else 4, 6), torch.tensor([0, 1, 2, 0])
    x, y = 0 * x if first == "blank" else x, y[: len(x)]
    engine = PairGradients(model, layout, dtype=torch.float64)
    with pytest.raises(ValueError, match=f"{layout} fails: .* use layout='vmap'"):
        engine.clipped_sums(flatten(model)[None], ([0], [0]), [(x, y)], clip_norm=1.0)


def test_a_branch_on_the_data_is_refused_rather_than_taken_for_a_whole_batch():
    class Branch(Scaled):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) if bool(x.abs().amax() > 4) else self.outer(self.inner(x))

    model = Branch()
    with pytest.raises(RuntimeError, match="control flow"):
        one_more(PairGradients(model), model, torch.ones(1, 6))
    assert one_more(PairGradients(model, "loop"), model, 100 * torch.ones(1, 6)) <= 1 + 1e-6


@pytest.mark.parametrize("name", MODEL_NAMES)
def test_the_forward_of_every_reference_network_is_known(name, generator):
    model = build_model(name, input_shape=(3, 12, 12), classes=3, generator=generator)
    assert unknown_forward(model) is None


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (nn.Flatten(0), "start_dim=0"),
        (nn.Flatten(-2), "start_dim=-2"),
        (nn.Unflatten(0, (2, 1)), "dim=0"),
        (nn.LogSoftmax(dim=0), "dim=0"),
        (nn.Softmax(), "dim=None"),
        (nn.Softmax2d(), "not known"),
        (nn.InstanceNorm1d(3, track_running_stats=True), "not known"),
        (nn.MultiheadAttention(2, 1), "not known"),
        (nn.RNN(2, 2), "not known"),
        (nn.ZeroPad2d(1), "not known"),
        (type("Own", (nn.Sequential,), {})(), "not known"),
        (nn.utils.parametrizations.weight_norm(nn.Linear(2, 2)), "not known"),
        (hooked(), "has hooks"),
        (overridden(), "a method of its own"),
    ],
)
def test_a_forward_in_which_examples_may_meet_is_not_known(module, reason):
    assert reason in str(unknown_forward(nn.Sequential(nn.Linear(2, 2), module)))


def test_a_gradient_of_zero_settles_no_layout():
    model = nn.Sequential(nn.Linear(6, 3, bias=False))
    blank, y = torch.zeros(4, 6), torch.tensor([0, 1, 2, 0])
    for layout in ("auto", "book-keeping", "grouped"):
        engine = PairGradients(model, layout)
        for x, settled in ((blank, False), (blank[:1], False), (blank + 1, True)):
            engine.clipped_sums(flatten(model)[None], ([0], [0]), [(x, y[: len(x)])], clip_norm=1.0)
            assert engine.settled is settled
            assert settled or engine.layout == ("vmap" if layout == "auto" else layout)
        assert engine.layout == ("book-keeping" if layout == "auto" else layout)
    assert PairGradients(model, "vmap").settled


@pytest.mark.parametrize("layout", ["auto", "book-keeping"])
def test_a_layout_that_is_not_settled_adds_nothing(layout, generator, monkeypatch):
    class Wrong(BookKeeping):
        def add(self, out, *args, **kwargs):
            out += 1.0

    model, models, batches = make(SMALL["linear"], generator)
    monkeypatch.setitem(layout_choice.BY_LAYER, "book-keeping", Wrong)
    monkeypatch.setattr(gradients, "disagreement", lambda *_, **__: (False, None))
    found, expected = (
        PairGradients(model, name, dtype=torch.float64).clipped_sums(
            models, PAIRS, batches, clip_norm=0.4
        )
        for name in (layout, "vmap")
    )
    assert torch.equal(found, expected)


def test_a_sum_where_the_loop_has_none_is_a_disagreement():
    class Wrong(BookKeeping):
        def add(self, out, *args, **kwargs):
            super().add(out, *args, **kwargs)
            out += 1e-9

    model = nn.Sequential(nn.Linear(2, 2), nn.Hardtanh())
    saturated = torch.tensor([0.0, 0.0, 0.0, 0.0, 9.0, 9.0])
    few = Examples(inputs=torch.ones(2, 2), targets=torch.tensor([0, 1]))
    found = {
        build: layout_choice.disagreement(build, model, point=saturated, examples=few)
        for build in (BookKeeping, Wrong)
    }
    assert found[BookKeeping] == (False, None)
    assert found[Wrong] == (True, "it has a sum where the loop has none")


def test_patches_of_the_input_serve_the_convolution_that_they_were_cut_for(generator):
    torch.manual_seed(2)
    model, models, batches = make((TwoReaders, (2, 7, 7)), generator)
    found = PairGradients(model, "book-keeping", dtype=torch.float64).clipped_sums(
        models, PAIRS, batches, clip_norm=0.4
    )
    torch.testing.assert_close(found, oracle(model, models, batches, 0.4), rtol=0, atol=1e-10)


def test_the_comparison_takes_shared_patches_too(generator, monkeypatch):
    class Wrong(BookKeeping):
        def prepare(self, examples, *, uses):
            found = super().prepare(examples, uses=uses)
            return found if found.patches is None else replace(found, patches=2 * found.patches)

    model, models, batches = make(SMALL["wide kernel"], generator)
    monkeypatch.setitem(layout_choice.BY_LAYER, "book-keeping", Wrong)
    with pytest.raises(ValueError, match="book-keeping fails: its sum is off"):
        PairGradients(model, "book-keeping").clipped_sums(models, PAIRS, batches, clip_norm=1.0)


def test_the_comparison_finds_owners_that_are_mixed(generator, monkeypatch):
    class Wrong(Grouped):
        def _add_block(self, out, points, *, block, **rest):
            points = points.flip(0) if len(block) > 1 else points
            super()._add_block(out, points, block=block, **rest)

    model, models, batches = make(SMALL["linear"], generator)
    monkeypatch.setitem(layout_choice.BY_LAYER, "grouped", Wrong)
    with pytest.raises(ValueError, match="grouped fails: its sum is off"):
        PairGradients(model, "grouped").clipped_sums(models, PAIRS, batches, clip_norm=1.0)


def test_auto_takes_book_keeping_for_lenet(lenet, generator):
    engine = PairGradients(lenet)
    engine.clipped_sums(
        flatten(lenet).expand(4, -1), PAIRS, ragged((1, 28, 28), 10, generator), clip_norm=1.0
    )
    assert engine.layout == "book-keeping"


@pytest.mark.parametrize("layout", LAYOUTS)
def test_no_example_is_longer_than_the_clip_norm(layout, lenet, generator):
    """32 examples each of sizes from 1e-3 to 1e4: norms far below and far above the bound."""
    size = torch.logspace(-3, 4, 32)
    batches = [(size.view(-1, 1, 1, 1)[i : i + 1] * torch.randn(1, 1, 28, 28, generator=generator),
                torch.randint(10, (1,), generator=generator)) for i in range(32)]  # fmt: skip
    models = flatten(lenet)[None] * 1.5
    found = PairGradients(lenet, layout).clipped_sums(
        models, ([0] * 32, list(range(32))), batches, clip_norm=0.25
    )
    norms = found.double().norm(dim=1)
    assert norms.max() <= 0.25
    assert norms.max() > 0.25 * (1 - 1e-5)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_empty_batch_has_a_row_of_zeros(layout, generator):
    model, models, batches = make(SMALL["linear"], generator)
    engine = PairGradients(model, layout, dtype=torch.float64)
    found = engine.clipped_sums(models, PAIRS, batches, clip_norm=1.0)
    empty = torch.tensor(RECEIVERS) == 1
    assert not found[empty].any()
    assert found[~empty].any(1).all()
    none = [(x[:0], y[:0]) for x, y in batches]
    assert not engine.clipped_sums(models, PAIRS, none, clip_norm=1.0).any()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_renaming_agents_renames_rows(layout, generator):
    model, models, batches = make(SMALL["wide kernel"], generator)
    engine = PairGradients(model, layout, dtype=torch.float64)
    found = engine.clipped_sums(models, PAIRS, batches, clip_norm=0.4)
    new = [2, 0, 3, 1]  # agent i becomes new[i]
    old = [new.index(i) for i in range(4)]
    renamed = engine.clipped_sums(
        models[old],
        ([new[m] for m in SENDERS], [new[d] for d in RECEIVERS]),
        [batches[i] for i in old],
        clip_norm=0.4,
    )
    torch.testing.assert_close(renamed, found, rtol=0, atol=1e-12)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_record_drawn_twice_counts_twice(layout, generator):
    model, models, batches = make(SMALL["linear"], generator)
    engine = PairGradients(model, layout, dtype=torch.float64)
    once = engine.clipped_sums(models, PAIRS, batches, clip_norm=0.4)
    doubled = [(torch.cat([x, x]), torch.cat([y, y])) for x, y in batches]
    twice = engine.clipped_sums(models, PAIRS, doubled, clip_norm=0.4)
    torch.testing.assert_close(twice, 2 * once, rtol=0, atol=1e-12)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_row_depends_on_its_own_model_and_batch_only(layout, generator):
    model, models, batches = make(SMALL["wide kernel"], generator)
    engine = PairGradients(model, layout, dtype=torch.float64)
    found = engine.clipped_sums(models, PAIRS, batches, clip_norm=0.4)
    models[2] += 1.0
    batches[3] = (batches[3][0] + 1.0, batches[3][1])
    other = engine.clipped_sums(models, PAIRS, batches, clip_norm=0.4)
    touched = (torch.tensor(SENDERS) == 2) | (torch.tensor(RECEIVERS) == 3)
    touched &= torch.tensor(RECEIVERS) != 1  # the empty batch
    changed = (other - found).abs().amax(1) > 1e-9
    assert changed.tolist() == touched.tolist()


@pytest.mark.parametrize("limit", [1, 2, 3, 100])
@pytest.mark.parametrize("layout", FAST)
def test_passes_of_any_size_give_the_same_sums(layout, limit, generator, monkeypatch):
    model, models, batches = make(SMALL["wide kernel"], generator)
    engine = PairGradients(model, layout, dtype=torch.float64)
    found = engine.clipped_sums(models, PAIRS, batches, clip_norm=0.4)
    monkeypatch.setattr(engine._kernel, "examples_at_once", lambda: limit)
    again = engine.clipped_sums(models, PAIRS, batches, clip_norm=0.4)
    torch.testing.assert_close(again, found, rtol=0, atol=1e-12)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_gradients_at_several_points_are_clipped_as_one_vector(layout, generator):
    model, models, batches = make(SMALL["wide kernel"], generator)
    both = torch.stack([models, models.flip(0)])  # (K, A, D)
    found = PairGradients(model, layout, dtype=torch.float64).clipped_sums(
        both, PAIRS, batches, clip_norm=0.3, coefficients=(1.0, -0.8)
    )
    expected = oracle(model, both, batches, 0.3, coefficients=(1.0, -0.8))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("bad", [math.inf, math.nan])
def test_a_gradient_that_is_not_finite_raises_and_names_its_pair(layout, bad, generator):
    model, models, batches = make(SMALL["linear"], generator)
    batches[2][0][1, 0] = bad
    with pytest.raises(FloatingPointError, match=r"model of agent 1 over the data of agent 2"):
        PairGradients(model, layout, dtype=torch.float64).clipped_sums(
            models, PAIRS, batches, clip_norm=1.0
        )


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_finite_gradient_whose_norm_overflows_raises(layout, generator):
    model, models, batches = make(SMALL["linear"], generator)
    batches[3] = (torch.full((1, 6), 1e30), torch.zeros(1, dtype=torch.int64))
    engine = PairGradients(model, layout, dtype=torch.float32)
    with pytest.raises(FloatingPointError, match="data of agent 3"):
        engine.clipped_sums(torch.zeros_like(models), PAIRS, batches, clip_norm=1.0)


@pytest.mark.parametrize("clip_norm", [0.0, -1.0, math.inf, math.nan, 1e-13])
def test_a_clip_norm_that_cannot_be_kept_is_refused(clip_norm, generator):
    model, models, batches = make(SMALL["linear"], generator)
    with pytest.raises(ValueError, match="clip_norm="):
        PairGradients(model).clipped_sums(models, PAIRS, batches, clip_norm=clip_norm)


def test_callers_mistakes_name_the_value(generator):
    model, models, batches = make(SMALL["linear"], generator)
    engine = PairGradients(model)
    with pytest.raises(ValueError, match=r"must be \(A, D\)"):
        engine.clipped_sums(models[:, :-1], PAIRS, batches, clip_norm=1.0)
    with pytest.raises(ValueError, match=r"receivers hold 0\.\.3, must lie in 0\.\.2"):
        engine.clipped_sums(models, PAIRS, batches[:3], clip_norm=1.0)
    with pytest.raises(ValueError, match=r"senders hold -1\.\.0"):
        engine.clipped_sums(models, ([-1, 0], [0, 0]), batches, clip_norm=1.0)
    with pytest.raises(ValueError, match="1 senders but 2 receivers"):
        engine.clipped_sums(models, ([0], [0, 0]), batches, clip_norm=1.0)
    with pytest.raises(ValueError, match="one a point"):
        engine.clipped_sums(models, PAIRS, batches, clip_norm=1.0, coefficients=(1.0, 1.0))
    with pytest.raises(ValueError, match=r"use nn\.GroupNorm"):
        PairGradients(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))
    with pytest.raises(ValueError, match="layout='fast' is unknown"):
        PairGradients(model, "fast")


def test_the_callers_model_is_left_alone(generator):
    model, models, batches = make(SMALL["wide kernel"], generator)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    PairGradients(model).clipped_sums(models, PAIRS, batches, clip_norm=1.0)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(p.grad is None and p.requires_grad for p in model.parameters())
    assert not any(module._forward_hooks for module in model.modules())


def test_clip_factors_are_one_below_the_bound_and_nan_where_nothing_is_known():
    found = clip_factors(torch.tensor([0.0, 1.0, 4.0, math.inf, math.nan]).double(), 2.5)
    assert found[:3].tolist() == [1.0, 1.0, 1.0]
    assert found[3:].isnan().all()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("layout", FAST)
def test_cuda_equals_the_loop_on_the_cpu(layout, lenet, generator):
    models = flatten(lenet).double() + 0.02 * torch.randn(4, 61_706, generator=generator).double()
    batches = ragged((1, 28, 28), 10, generator)
    found, expected = (
        PairGradients(lenet, name, device=device, dtype=torch.float64).clipped_sums(
            models, PAIRS, batches, clip_norm=0.7
        )
        for name, device in ((layout, "cuda"), ("loop", "cpu"))
    )
    torch.testing.assert_close(found.cpu(), expected, rtol=0, atol=1e-10)
