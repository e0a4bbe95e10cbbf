import math
from itertools import cycle, product

import pytest
import torch
from torch import Tensor, nn

from overhear.training.gradients.clipping import Examples, clip_factors
from overhear.training.gradients.ghost import BookKeeping
from overhear.training.gradients.gradients import PairGradients
from overhear.training.models.parameters import build_model, flatten
from tests.training.gradients.layout_cases import (
    FAST,
    LAYOUTS,
    MODELS,
    PAIRS,
    RECEIVERS,
    SENDERS,
    SMALL,
    case,
    make,
    oracle,
    ragged,
)


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(7)


@pytest.fixture
def lenet():
    draw = torch.Generator().manual_seed(0)
    return build_model("lenet", input_shape=(1, 28, 28), classes=10, generator=draw)


@pytest.mark.some_quick(30)
@pytest.mark.parametrize(
    ("name", "clip_norm"),
    [
        *product(MODELS, (None, 0.4)),
        *(pytest.param(*of, marks=pytest.mark.slow) for of in zip(MODELS, cycle((1e-3, 1e3)))),
    ],
)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_equals_one_backward_pass_an_example(layout, name, clip_norm):
    model, models, batches, pairs, expected = case(name, clip_norm)
    engine = PairGradients(model, layout, dtype=torch.float64)
    found = engine.clipped_sums(models, pairs, batches, clip_norm=clip_norm, coefficients=(-0.7,))
    assert engine.layout == layout
    off, size = (found - expected).norm(dim=1), expected.norm(dim=1)
    assert (off <= 1e-10 * size).all()
    assert size.count_nonzero() < len(size)  # an empty batch is among them


class _Branches(nn.Linear):
    def forward(self, x):
        return super().forward(x) * (1.0 if self.weight.sum() > 0 else 0.5)


@pytest.mark.parametrize("owned", [False, True])
def test_many_owners_of_few_examples_are_called_together_unless_the_code_is_somebodys(
    generator, monkeypatch, owned
):
    model = _Branches(3, 2) if owned else nn.Linear(3, 2)
    sizes = [*torch.randint(5, (40,), generator=generator).tolist(), 40, 3]
    batches = [
        (torch.randn(n, 3, generator=generator), torch.randint(2, (n,), generator=generator))
        for n in sizes
    ]
    models = torch.randn(2, 21, 8, generator=generator, dtype=torch.float64)
    pairs = [e // 2 for e in range(42)], list(range(42))
    coefficients = (1.0, torch.linspace(0.0, 1.0, 8).double())
    asked = {"clip_norm": 0.3, "coefficients": coefficients}
    expected = PairGradients(model, "loop", dtype=torch.float64).clipped_sums(
        models, pairs, batches, **asked
    )
    joined, vmap = list[int](), torch.func.vmap

    def counted(of, in_dims):
        joined.append(in_dims[0] == 0)
        return vmap(of, in_dims=in_dims)

    monkeypatch.setattr("torch.func.vmap", counted)
    found = PairGradients(model, "vmap", dtype=torch.float64).clipped_sums(
        models, pairs, batches, **asked
    )
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)
    assert any(joined) is not owned
    if not owned:  # those of few examples together, the one of many alone
        assert joined == [True, False]


@pytest.mark.parametrize("layout", FAST)
def test_single_precision_agrees_on_the_median_pair_of_lenet(layout):
    """Every gradient is clipped here, by the slack of float32 further than in float64."""
    model, models, batches, pairs, expected = case("lenet", 1e-3)
    expected = expected / (1 + 32 * torch.finfo(torch.float32).eps)
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
        models[old], ([new[m] for m in SENDERS], [new[d] for d in RECEIVERS]),
        [batches[i] for i in old], clip_norm=0.4,
    )  # fmt: skip
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
    monkeypatch.setattr(engine._kernel, "examples_at_once", lambda device: limit)
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


@pytest.mark.parametrize("name", ["group norm", "wide kernel"])
def test_channels_lie_innermost_unless_a_group_norm_reads_them(name, generator):
    model, _, batches = make(SMALL[name], generator)
    inputs = batches[0][0]
    ready = BookKeeping(model.double()).prepare(
        Examples(inputs=inputs, targets=batches[0][1]), uses=5
    )
    assert torch.equal(ready.inputs, inputs)
    assert (ready.inputs.stride(1) == 1) == (name == "wide kernel")


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


def dropping(model, layout, *, waits: bool) -> PairGradients:
    """On the CPU; where asked for by the way of a device, at whose sums nobody looks."""
    engine = PairGradients(model, layout, dtype=torch.float32, drops=True)
    engine._deferred = waits
    return engine


@pytest.mark.some_quick(6)
@pytest.mark.parametrize("waits", [False, True], ids=["", "device"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("name", "bad"),
    [
        *zip(SMALL, cycle((math.inf, math.nan))),
        *(("linear", math.nan), ("text", math.inf), ("linear", 1e30), ("text", 1e38)),
    ],
)
def test_where_a_record_may_tell_nothing_what_overflows_counts_as_zero(
    name, layout, bad, waits, generator
):
    """The other records of its batch are summed as they are without it."""
    model, models, batches = make(SMALL[name], generator)
    engine = dropping(model, layout, waits=waits)
    if "text" in name:  # what overflows is the model's row of a token that one record holds
        batches = [(tokens.clamp(max=3), targets) for tokens, targets in batches]
        models[:, 16:20] = bad
        bad = 4
    inputs, targets = batches[2]
    without = [*batches]
    keep = torch.arange(len(targets)) != 1
    without[2] = inputs[keep], targets[keep]
    expected = engine.clipped_sums(models, PAIRS, without, clip_norm=1.0)
    batches[2][0][1] = bad
    found = engine.clipped_sums(models, PAIRS, batches, clip_norm=1.0)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
    engine.check()


@pytest.mark.parametrize("waits", [False, True], ids=["", "device"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("bad", [math.inf, math.nan, 1e38])
def test_a_model_that_makes_every_gradient_overflow_draws_out_nothing(
    layout, bad, waits, generator
):
    model, models, batches = make(SMALL["linear"], generator)
    engine = dropping(model, layout, waits=waits)
    found = engine.clipped_sums(torch.full_like(models, bad), PAIRS, batches, clip_norm=1.0)
    longest = max(len(targets) for _, targets in batches)
    assert float(found.norm(dim=1).max()) <= longest * (1 + 1e-5)


def test_a_coefficient_that_is_no_number_is_no_record_to_drop(generator, monkeypatch):
    """It is not looked at on a device before, and would leave sums of zeros behind."""
    model, models, batches = make(SMALL["linear"], generator)
    engine = dropping(model, "vmap", waits=True)
    weights = torch.ones(models.shape[1])
    weights[3] = math.nan
    monkeypatch.setattr(engine, "_fits", lambda _: True)  # as of a tensor on a device
    engine.clipped_sums(models, PAIRS, batches, clip_norm=1.0, coefficients=(weights,))
    with pytest.raises(FloatingPointError, match="sums are not finite"):
        engine.check()


def test_without_a_clip_what_overflows_is_an_error_all_the_same(generator):
    model, models, batches = make(SMALL["linear"], generator)
    batches[2][0][1, 0] = math.inf
    with pytest.raises(FloatingPointError, match="data of agent 2"):
        PairGradients(model, "vmap", dtype=torch.float64, drops=True).clipped_sums(
            models, PAIRS, batches, clip_norm=None
        )


# Gradients of torch's own attention, clipped example by example.


class _Attending(nn.Module):
    def __init__(self, *, first: bool) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(6, 2, 8, 0.0, batch_first=True, norm_first=first)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.attention = nn.MultiheadAttention(6, 3, batch_first=True)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        z = self.encoder(x)
        return self.head((z + self.attention(z, z, z)[0]).mean(dim=1))


@pytest.mark.parametrize("layout", ["loop", "vmap"])
@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("training", [False, True])
def test_sums_of_an_encoder_are_those_of_one_backward_per_example(layout, first, training):
    torch.manual_seed(0)
    model = _Attending(first=first).double().train(training)
    models = flatten(model) + 0.1 * torch.randn(2, flatten(model).numel(), dtype=torch.float64)
    batches = [(torch.randn(n, 4, 6, dtype=torch.float64), torch.randint(3, (n,))) for n in (3, 1)]
    pairs = ([0, 1, 1], [0, 0, 1])
    found = PairGradients(model, layout=layout).clipped_sums(models, pairs, batches, clip_norm=0.3)
    expected = oracle(model, models, batches, 0.3, pairs=pairs)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
