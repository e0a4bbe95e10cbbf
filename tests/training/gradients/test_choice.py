from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from overhear.privacy.errors import InputError
from overhear.training.gradients import choice as layout_choice
from overhear.training.gradients import gradients
from overhear.training.gradients.choice import Grouped, NetworkSize, choose, network_size
from overhear.training.gradients.clipping import Examples
from overhear.training.gradients.ghost import BookKeeping
from overhear.training.gradients.gradients import PairGradients
from overhear.training.models.losses import unknown_forward
from overhear.training.models.parameters import MODEL_NAMES, build_model, flatten
from tests.training.gradients.layout_cases import (
    FALLBACK,
    MIXING,
    PAIRS,
    SMALL,
    Scaled,
    TwoReaders,
    hooked,
    make,
    one_more,
    oracle,
    over_the_largest,
    overridden,
    ragged,
)


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(7)


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
@pytest.mark.parametrize("name", MIXING)
@pytest.mark.parametrize("first", ["ordinary", "one", "blank"])
def test_a_name_is_refused_whatever_the_first_examples_show(layout, name, first):
    torch.manual_seed(2)
    model = MIXING[name]()
    x, y = torch.rand(1 if first == "one" else 4, 6), torch.tensor([0, 1, 2, 0])
    x, y = 0 * x if first == "blank" else x, y[: len(x)]
    engine = PairGradients(model, layout, dtype=torch.float64)
    with pytest.raises(InputError, match=f"layout='{layout}' takes .* use layout='vmap'"):
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


def test_a_hook_on_all_layers_makes_no_forward_known():
    hook = nn.modules.module.register_module_forward_hook(over_the_largest)
    try:
        assert unknown_forward(nn.Linear(6, 3)) == "all layers have hooks"
    finally:
        hook.remove()


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
        build: layout_choice.disagreement(
            build, model, layered=model, point=saturated, examples=few
        )
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
        def _add_block(self, out, points, block, of):
            points = points.flip(0) if len(block) > 1 else points
            super()._add_block(out, points, block, of)

    model, models, batches = make(SMALL["linear"], generator)
    monkeypatch.setitem(layout_choice.BY_LAYER, "grouped", Wrong)
    with pytest.raises(ValueError, match="grouped fails: its sum is off"):
        PairGradients(model, "grouped").clipped_sums(models, PAIRS, batches, clip_norm=1.0)


def size_of(name, shape=(1, 28, 28)):
    draw = torch.Generator().manual_seed(0)
    model = build_model(name, input_shape=shape, classes=10, generator=draw)
    return network_size(model, torch.zeros(1, *shape))


def text_of(tokens):
    model = nn.Sequential(nn.Embedding(tokens, 32), nn.Flatten(), nn.Linear(512, 10))
    return network_size(model, torch.zeros(1, 16, dtype=torch.int64))


DIGITS = ("mlp", (1, 8, 8))


@pytest.mark.parametrize(
    ("size", "owners", "pairs", "batch", "first"),
    [
        (size_of(*DIGITS), 1, 1, 4096, "book-keeping"),  # nobody to group with
        (size_of(*DIGITS), 3, 3, 8, "book-keeping"),
        (size_of(*DIGITS), 1000, 3000, 8, "grouped"),  # a thousand calls in one
        (size_of("mlp"), 10, 10, 32, "grouped"),
        (size_of("linear"), 30, 900, 8, "grouped"),  # book-keeping adds each pair's sums by itself
        (size_of("lenet"), 10, 10, 1, "grouped"),
        (size_of("lenet"), 10, 30, 32, "book-keeping"),  # convolutions of models of their own
        (size_of("conv4", (3, 32, 32)), 10, 10, 8, "book-keeping"),
        (size_of("resnet18", (3, 32, 32)), 10, 10, 1, "book-keeping"),  # many parameters
        (text_of(1_000), 30, 90, 8, "grouped"),
        (text_of(10_000), 30, 90, 8, "book-keeping"),
        (NetworkSize(layers=2, parameters=153_610, per_example=4_170), 10, 10, 8, "grouped"),
        (NetworkSize(layers=2, parameters=153_610, per_example=4_170), 10, 10, 256, "book-keeping"),
    ],
)
def test_the_rule_takes_what_was_measured_to_be_fastest(size, owners, pairs, batch, first):
    examples = batch * pairs / owners
    order = choose(size, owners=owners, pairs=pairs, examples=examples, device="cpu")
    assert order[0] == first
    assert sorted(order) == sorted(layout_choice.BY_LAYER)


def test_on_an_accelerator_calls_alone_count():
    lenet = size_of("lenet")
    for owners, first in ((2, "book-keeping"), (3, "grouped"), (100, "grouped")):
        order = choose(lenet, owners=owners, pairs=owners, examples=512.0, device="cuda")
        assert order[0] == first


def test_the_size_of_a_network_counts_layers_with_parameters_and_what_they_read_and_return():
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(36, 5), nn.Tanh())
    found = network_size(model, torch.zeros(1, 2, 5, 5))
    patches, returned = 9 * 18, 9 * 4
    assert found == NetworkSize(
        layers=2, parameters=76 + 185, per_example=2 * (patches + returned) + 36 + 5
    )
    assert not any(module._forward_hooks for module in model.modules())


def test_a_layer_that_overwrites_its_input_leaves_the_example_alone():
    model, example = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(3, 2)), -torch.ones(1, 3)
    network_size(model, example)
    assert torch.equal(example, -torch.ones(1, 3))


def many_small(generator):
    """Six small models on their owners' data: grouped as a whole, by themselves one by one."""
    model, shape = nn.Linear(6, 3), (6,)
    models = 0.3 * torch.randn(6, 21, generator=generator)
    return model, models, ragged(shape, 3, generator, sizes=(2, 5, 3, 1, 4, 3))


def test_auto_takes_the_layout_of_the_rule_and_its_bits(generator):
    model, models, batches = many_small(generator)
    own = (list(range(6)),) * 2
    engine = PairGradients(model)
    found = engine.clipped_sums(models, own, batches, clip_norm=0.4)
    assert engine.layout == "grouped"
    named = PairGradients(model, "grouped").clipped_sums(models, own, batches, clip_norm=0.4)
    assert torch.equal(found, named)


def test_a_rank_chooses_by_the_whole_run_and_not_by_its_share(generator):
    model, models, batches = many_small(generator)
    for at in range(6):
        here = slice(at, at + 1)
        by_share, by_run = PairGradients(model), PairGradients(model, agents=6, batch_size=3.0)
        for engine in (by_share, by_run):
            engine.clipped_sums(
                models[here], ([0], [0]), batches[here], clip_norm=1, pairs_of_run=6
            )
        assert (by_share.layout, by_run.layout) == ("book-keeping", "grouped")


def test_the_choice_reads_the_expected_batch_and_not_the_one_that_was_drawn(generator):
    model = build_model("cnn", input_shape=(1, 8, 8), classes=3, generator=generator)
    models, own = flatten(model).expand(10, -1), (list(range(10)),) * 2
    chosen = {}
    for expected, size in ((4.0, 1), (4.0, 2), (4_000.0, 1), (4_000.0, 2)):
        engine = PairGradients(model, agents=10, batch_size=expected)
        batches = ragged((1, 8, 8), 3, generator, sizes=[size] * 10)
        engine.clipped_sums(models, own, batches, clip_norm=1.0, pairs_of_run=10)
        chosen.setdefault(expected, set()).add(engine.layout)
    assert chosen == {4.0: {"grouped"}, 4_000.0: {"book-keeping"}}


@pytest.mark.parametrize("wrong", [("grouped",), ("grouped", "book-keeping")])
def test_auto_goes_on_to_the_next_layout_where_one_disagrees_with_the_loop(
    wrong, generator, monkeypatch
):
    class OffGrouped(Grouped):
        def add(self, out, *args, **kwargs):
            super().add(out, *args, **kwargs)
            out *= 1.01

    class OffBookKeeping(BookKeeping):
        def add(self, out, *args, **kwargs):
            super().add(out, *args, **kwargs)
            out *= 1.01

    model, models, batches = many_small(generator)
    classes = {"grouped": OffGrouped, "book-keeping": OffBookKeeping}
    for name in wrong:
        monkeypatch.setitem(layout_choice.BY_LAYER, name, classes[name])
    engine = PairGradients(model)
    engine.clipped_sums(models, (list(range(6)),) * 2, batches, clip_norm=0.4)
    assert engine.layout == ("vmap" if len(wrong) == 2 else "book-keeping")
    with pytest.raises(ValueError, match="grouped fails: its sum is off by 1"):
        PairGradients(model, "grouped").clipped_sums(models, ([0], [0]), batches[:1], clip_norm=0.4)
