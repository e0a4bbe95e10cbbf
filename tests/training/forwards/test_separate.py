import copy

import pytest
import torch
from torch import nn

from overhear.training.device.precision import full_precision
from overhear.training.gradients.examples_independent import Separate, separate
from overhear.training.gradients.gradients import PairGradients
from overhear.training.models.parameters import flatten
from tests.training.forwards.separate_cases import APART, MEETING, Images, Of, Transformer
from tests.training.gradients.layout_cases import MIXING, PAIRS, oracle, ragged


def network(name):
    torch.manual_seed(3)
    build, shape, tokens = APART[name]
    return build().double(), shape, tokens


def inputs_of(count, shape, tokens):
    draw = torch.Generator().manual_seed(7)
    if tokens is not None:
        return torch.randint(tokens, (count, *shape), generator=draw)
    return torch.randn(count, *shape, generator=draw, dtype=torch.float64)


@pytest.mark.parametrize("name", APART)
def test_a_graph_computes_what_the_forward_does_for_batches_of_any_size(name):
    model, shape, tokens = network(name)
    found = separate(model, inputs_of(1, shape, tokens))
    assert isinstance(found, Separate), found
    assert [p.shape for p in found.parameters()] == [p.shape for p in model.parameters()]
    assert torch.equal(flatten(found), flatten(model))
    for count in (1, 2, 6):
        inputs = inputs_of(count, shape, tokens)
        torch.testing.assert_close(found(inputs), model(inputs), rtol=1e-12, atol=1e-14)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "layout"),
    [
        (name, layout)
        for name in APART
        for layout in ("auto", "book-keeping", "grouped", "vmap")
        if name != "encoder, batch second" or layout == "auto"  # it differs by a transposition
    ],
)
def test_sums_of_a_graph_equal_one_backward_pass_an_example(name, layout):
    model, shape, tokens = network(name)
    draw = torch.Generator().manual_seed(5)
    batches = ragged(shape, 3, draw, tokens=tokens)
    models = flatten(model) + 0.1 * torch.randn(4, len(flatten(model)), generator=draw).double()
    engine = PairGradients(model, layout)
    found = engine.clipped_sums(models, PAIRS, batches, clip_norm=0.4)
    expected = oracle(copy.deepcopy(model), models, batches, 0.4)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)
    assert engine.settled
    assert engine.layout == layout or (layout == "auto" and engine.layout != "vmap")


@pytest.mark.parametrize("name", MEETING)
def test_a_forward_in_which_examples_may_meet_has_no_graph(name):
    model = Of(MEETING[name])
    before = copy.deepcopy(model.state_dict())
    found = separate(model, torch.zeros(1, 6))
    assert isinstance(found, str)
    assert "forward" in found or "parameter" in found
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())


@pytest.mark.parametrize("name", MIXING)
def test_networks_that_mix_examples_have_no_graph(name):
    assert isinstance(separate(MIXING[name](), torch.zeros(1, 6)), str)


def test_parameters_that_two_layers_share_have_no_graph():
    model = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6))
    model[2].weight = model[0].weight
    assert isinstance(separate(model, torch.zeros(1, 6)), str)


def test_what_was_checked_is_what_runs():
    """A forward that mixes examples from its third call on: its graph is that of the first."""

    class Turncoat(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head, self.calls = nn.Linear(6, 3), [0]

        def forward(self, x):
            self.calls[0] += 1
            return self.head(x - x.mean(0) if self.calls[0] > 2 else x)

    found = separate(Turncoat(), torch.zeros(1, 6))
    assert isinstance(found, Separate)
    inputs = torch.randn(4, 6)
    for _ in range(4):
        torch.testing.assert_close(found(inputs)[:2], found(inputs[:2]))


def test_examples_of_another_length_have_vmap():
    class Mean(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.each = nn.Linear(3, 3)

        def forward(self, x):
            return torch.tanh(self.each(x)).mean(1)

    engine, oracle_ = (PairGradients(Mean().double(), name) for name in ("auto", "loop"))
    point = torch.randn(1, 12, dtype=torch.float64)
    for length in (4, 7):
        batch = torch.randn(3, length, 3, dtype=torch.float64), torch.tensor([0, 1, 2])
        found, expected = (
            each.clipped_sums(point, ([0], [0]), [batch], clip_norm=0.1)
            for each in (engine, oracle_)
        )
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    assert engine.layout == "book-keeping"


def test_a_copy_of_a_graph_computes_the_same():
    found = separate(Images(), torch.zeros(1, 2, 4, 4))
    assert isinstance(found, Separate)
    inputs = torch.randn(3, 2, 4, 4)
    torch.testing.assert_close(copy.deepcopy(found)(inputs), found(inputs))


def test_evaluation_mode_has_a_graph_too():
    model = Transformer().eval()
    assert isinstance(separate(model, torch.zeros(1, 5, dtype=torch.int64)), Separate)


def test_a_graph_is_found_where_a_round_computes():
    """`torch.export` reads a switch that torch refuses to read beside full products."""
    settings = torch.backends.cudnn.conv, torch.backends.cudnn.rnn
    outside = [setting.fp32_precision for setting in settings]
    with full_precision():
        found = separate(Transformer(), torch.zeros(1, 5, dtype=torch.int64))
        assert [setting.fp32_precision for setting in settings] == ["ieee", "ieee"]
    assert isinstance(found, Separate), found
    assert [setting.fp32_precision for setting in settings] == outside
