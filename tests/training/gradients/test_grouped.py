import math

import pytest
import torch
from torch import nn

from overhear.training.device.precision import full_precision
from overhear.training.gradients import choice as grouped
from overhear.training.gradients import gradients
from overhear.training.gradients.choice import cut_blocks
from overhear.training.gradients.clipping import Pass, Span
from overhear.training.gradients.gradients import PairGradients
from overhear.training.models.parameters import build_model, flatten
from tests.devices.waiting import no_waiting

LAYOUTS = ("loop", "vmap", "book-keeping", "grouped")


def ring(agents):
    senders = [(d + o) % agents for d in range(agents) for o in (-1, 0, 1)]
    return senders, [d for d in range(agents) for _ in range(3)]


def small(sizes, *, seed=0):
    """Small networks on a ring, with batches of these sizes."""
    draw = torch.Generator().manual_seed(seed)
    model = build_model("mlp", input_shape=(1, 4, 4), classes=3, generator=draw)
    count = len(flatten(model))
    models = flatten(model).double() + 0.3 * torch.randn(len(sizes), count, generator=draw).double()
    batches = [
        (
            torch.randn(n, 1, 4, 4, generator=draw, dtype=torch.float64),
            torch.randint(3, (n,), generator=draw),
        )
        for n in sizes
    ]
    return model, models, batches


def sums(layout, model, models, batches, *, clip_norm=0.4, dtype=torch.float64):
    engine = PairGradients(model, layout, dtype=dtype)
    return engine.clipped_sums(models, ring(len(batches)), batches, clip_norm=clip_norm)


@pytest.mark.parametrize(("owners", "elements"), [(1, 2**22), (3, 2**22), (200, 600), (200, 1)])
@pytest.mark.parametrize("clip_norm", [0.4, None])
def test_blocks_of_any_size_give_the_same_sums(owners, elements, clip_norm, monkeypatch):
    case = small([3, 0, 50, 1, 7, 2, 8, 4, 5, 6])
    expected = sums("book-keeping", *case, clip_norm=clip_norm)
    monkeypatch.setattr(grouped, "_CPU_OWNERS", owners)
    monkeypatch.setattr(grouped, "_CPU_ELEMENTS", elements)
    found = sums("grouped", *case, clip_norm=clip_norm)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_a_short_span_beside_a_short_pass_takes_its_own_examples_only():
    """Cells of 6 for spans of 5, 6, 6, 6 are as many as the block's two passes of 12 at most."""
    model, models, batches = small([5, 6])
    found, expected = (
        PairGradients(model, layout, dtype=torch.float64).clipped_sums(
            models, ([0, 0, 1, 1], [0, 1, 1, 1]), batches, clip_norm=0.4
        )
        for layout in ("grouped", "loop")
    )
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_a_block_has_passes_of_about_one_size_and_every_owner_once():
    draw = torch.Generator().manual_seed(0)
    lengths = torch.randint(1, 60, (200,), generator=draw).tolist()
    passes = [Pass.of(m % 150, [Span(m, 0, n)]) for m, n in enumerate(lengths)]
    blocks = cut_blocks(passes, per_example=3, per_row=5, limit=2_000, owners=20)
    assert sorted(id(work) for block in blocks for work in block) == sorted(map(id, passes))
    for block in blocks:
        owners = [work.owner for work in block]
        of = [work.spans[0].stop for work in block]
        assert len(set(owners)) == len(owners) <= 20
        assert max(of) <= 1.5 * min(of)
        assert len(block) == 1 or len(block) * (3 * max(of) + 2 * 5) <= 2_000


@pytest.mark.parametrize("clip_norm", [0.4, None])
@pytest.mark.parametrize("bad", [math.inf, math.nan])
def test_what_is_not_finite_stays_in_its_own_rows(bad, clip_norm, monkeypatch):
    """Agent 2 has the shortest batch, so its bad example is what pads its place in each block."""
    model, models, batches = small([8, 7, 5, 7, 8, 6])
    clean = sums("grouped", model, models, batches, clip_norm=clip_norm)
    batches[2][0][-1] = bad
    monkeypatch.setattr(gradients, "check_finite", lambda *_: None)
    found = sums("grouped", model, models, batches, clip_norm=clip_norm)
    own = torch.tensor(ring(6)[1]) == 2
    assert not found[own].isfinite().all(1).any()
    torch.testing.assert_close(found[~own], clean[~own], rtol=0, atol=1e-12)


def test_a_layer_that_is_never_called_has_a_gradient_of_zero():
    class Unused(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.spare, self.last = nn.Linear(2, 3), nn.Linear(2, 2), nn.Linear(3, 2)
            self.rest = nn.Linear(1, 1)

        def forward(self, x):
            return self.last(torch.tanh(self.used(x)))

    model = Unused()
    batches = [(torch.randn(3, 2), torch.tensor([0, 1, 1])) for _ in range(3)]
    models = flatten(model).repeat(3, 1)
    found, expected = (sums(name, model, models, batches) for name in ("grouped", "loop"))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    assert not found[:, 9:15].any()


def test_sequences_of_another_length_are_measured_again():
    model = nn.Sequential(nn.Embedding(9, 3), nn.Flatten(1, 1), nn.AdaptiveAvgPool2d((1, 3)),
                          nn.Flatten(), nn.Linear(3, 2))  # fmt: skip
    engine = PairGradients(model, "grouped", dtype=torch.float64)
    oracle = PairGradients(model, "loop", dtype=torch.float64)
    models = flatten(model).repeat(2, 1)
    for length in (4, 7):
        batches = [(torch.randint(9, (3, length)), torch.tensor([0, 1, 0])) for _ in range(2)]
        found, expected = (
            e.clipped_sums(models, ([0, 1], [1, 0]), batches, clip_norm=0.1)
            for e in (engine, oracle)
        )
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


NETWORKS = {
    "mlp": lambda: nn.Sequential(nn.Flatten(), nn.Linear(8, 4), nn.LayerNorm(4), nn.Linear(4, 3)),
    "convolutions": lambda: nn.Sequential(
        nn.Conv2d(2, 4, 2, padding=1), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(36, 3)
    ),
}


@pytest.mark.some_quick(2)
@pytest.mark.parametrize("clip_norm", [0.5, pytest.param(None, marks=pytest.mark.slow)])
@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_settled_layout_reads_nothing_back_from_its_device(layout, network, clip_norm):
    """Tensors on "meta" hold no values: any read, and any shape that depends on one, raises."""
    model = NETWORKS[network]()
    engine = PairGradients(model, layout, device="meta")
    engine._settled = True  # the comparison with the loop reads, once
    sizes = (3, 0, 5, 1)
    batches = [
        (torch.empty(n, 2, 2, 2, device="meta"), torch.empty(n, dtype=torch.int64, device="meta"))
        for n in sizes
    ]
    models = torch.empty(4, engine.parameters, device="meta")
    found = engine.clipped_sums(models, ring(4), batches, clip_norm=clip_norm)
    assert found.shape == (12, engine.parameters)
    per_coordinate = torch.ones(engine.parameters, device="meta")
    both = torch.stack([models, models])
    engine.clipped_sums(
        both, ring(4), batches, clip_norm=clip_norm, coefficients=(1.0, per_coordinate)
    )
    with pytest.raises((RuntimeError, NotImplementedError), match="meta"):
        engine.check()


@pytest.fixture
def deferring():
    """An engine that leaves its sums unchecked, as on a device other than the CPU."""
    model, models, batches = small([4, 4, 4])
    engine = PairGradients(model, "grouped", dtype=torch.float64)
    engine._deferred = True
    batches[1][0][2] = math.nan
    return engine, models, batches


def test_a_deferred_check_raises_what_the_call_would_have(deferring):
    engine, models, batches = deferring
    engine.clipped_sums(models, ([0], [0]), batches, clip_norm=1.0)
    engine.clipped_sums(models, ring(3), batches, clip_norm=1.0)
    engine.clipped_sums(models, ([2], [2]), batches, clip_norm=1.0)
    message = (
        r"3 of 9 sums are not finite, the first on the model of agent 0 over the data of ag.*1"
    )
    with pytest.raises(FloatingPointError, match=message):
        engine.check()
    engine.check()  # what was reported is not reported again


def test_sums_do_not_stay_unchecked_for_ever(deferring, monkeypatch):
    engine, models, batches = deferring
    monkeypatch.setattr(gradients, "_UNCHECKED_CALLS", 3)
    for _ in range(3):
        engine.clipped_sums(models, ([0], [1]), batches, clip_norm=1.0)
    with pytest.raises(FloatingPointError, match="1 of 1 sums"):
        engine.clipped_sums(models, ([0], [0]), batches, clip_norm=1.0)


def test_a_finite_sum_of_huge_entries_passes_a_deferred_check():
    engine = PairGradients(nn.Linear(256, 2), dtype=torch.float32)
    engine._deferred = True
    batch = torch.full((1, 256), 3e38), torch.tensor([0])
    found = engine.clipped_sums(torch.zeros(1, 514), ([0], [0]), [batch], clip_norm=None)
    assert found.isfinite().all()
    assert not found.sum(1).isfinite().any()
    engine.check()


def precisions():
    matmul, conv = torch.backends.cuda.matmul, torch.backends.cudnn.conv
    cpu = torch.backends.mkldnn
    settings = (matmul, conv, cpu.matmul, cpu.conv)
    return [setting.fp32_precision for setting in settings]


@pytest.fixture
def reduced():
    """A process that allows TF32, and bfloat16 on the CPU."""
    before = torch.backends.cuda.matmul.fp32_precision, torch.backends.mkldnn.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    torch.backends.mkldnn.matmul.fp32_precision = "bf16"
    yield precisions()
    torch.backends.cuda.matmul.fp32_precision, torch.backends.mkldnn.matmul.fp32_precision = before


@pytest.mark.parametrize("layout", LAYOUTS)
def test_products_are_full_ones_while_gradients_are_computed(layout, reduced):
    model, models, batches = small([2, 2])
    seen = []
    engine = PairGradients(model, layout)
    engine._settled = True
    add = engine._kernel.add
    engine._kernel.add = lambda *args, **kwargs: (seen.append(precisions()), add(*args, **kwargs))
    engine.clipped_sums(models, ring(2), batches, clip_norm=0.4)
    assert seen == [["ieee"] * 4]
    assert precisions() == reduced
    assert reduced[:3:2] == ["tf32", "bf16"]


def test_precision_is_given_back_after_an_error(reduced):
    with pytest.raises(ZeroDivisionError), full_precision():
        raise ZeroDivisionError
    assert precisions() == reduced


def test_a_setting_that_follows_a_wider_one_goes_on_following():
    wider = torch.backends.fp32_precision
    try:
        torch.backends.fp32_precision = "tf32"
        with full_precision():
            assert precisions() == ["ieee"] * 4
        assert torch.backends.cuda.matmul.fp32_precision == "tf32"
        torch.backends.fp32_precision = "ieee"
        assert torch.backends.cuda.matmul.fp32_precision == "ieee"
    finally:
        torch.backends.fp32_precision = wider


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("layout", ["book-keeping", "grouped", "vmap"])
def test_cuda_is_not_waited_for(layout):
    model, models, batches = small([4, 0, 3, 9])
    engine = PairGradients(model, layout, device="cuda", dtype=torch.float32)
    held = [(x.cuda().float(), y.cuda()) for x, y in batches]
    points = models.cuda().float()
    engine.clipped_sums(points, ring(4), held, clip_norm=0.4)
    with no_waiting():
        engine.clipped_sums(points, ring(4), held, clip_norm=0.4)
    engine.check()
