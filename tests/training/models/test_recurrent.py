"""Recurrent layers step by step against torch's own, and what they are refused for."""

import copy
import itertools

import pytest
import torch
from torch import nn

from overhear.privacy.errors import InputError
from overhear.training.gradients.gradients import PairGradients
from overhear.training.models.parameters import build_model, flatten, validate_model
from overhear.training.models.recurrent import in_one, stepwise

KINDS = [
    (nn.RNN, {}),
    (nn.RNN, {"nonlinearity": "relu"}),
    (nn.LSTM, {}),
    (nn.LSTM, {"proj_size": 3}),
    (nn.GRU, {}),
]
FLAGS = ("bias", "batch_first", "bidirectional")


def _flat(given):
    return [one for part in given for one in (part if isinstance(part, tuple) else (part,))]


@pytest.mark.parametrize("flags", list(itertools.product((False, True), repeat=3)))
@pytest.mark.parametrize(("kind", "more"), KINDS)
def test_it_returns_what_torchs_own_layer_returns(kind, more, flags):
    torch.manual_seed(0)
    named = dict(zip(FLAGS, flags, strict=True))
    own = kind(4, 5, num_layers=2, **named, **more).double()
    other = stepwise(copy.deepcopy(own))
    assert type(other) is not kind
    assert type(in_one(copy.deepcopy(other))) is kind
    for shape, begins in itertools.product(((6, 4), (3, 6, 4)), (False, True)):
        x, start = torch.randn(shape).double(), None
        if begins:
            batch = () if len(shape) == 2 else (x.transpose(0, 1) if flags[1] else x).shape[1:2]
            sizes = [more.get("proj_size", 5), *([5] if kind is nn.LSTM else [])]
            states = [torch.randn(4 if flags[2] else 2, *batch, n).double() for n in sizes]
            start = tuple(states) if kind is nn.LSTM else states[0]
        for one, two in zip(_flat(own(x, start)), _flat(other(x, start)), strict=True):
            assert one.shape == two.shape
            assert torch.allclose(one, two, rtol=0, atol=1e-12)


class _Last(nn.Module):
    """The last state of a recurrent layer, and classes."""

    def __init__(self, kind=nn.GRU, **more):
        super().__init__()
        self.inner, self.out = kind(4, 5, batch_first=True, **more), nn.Linear(5, 3)

    def forward(self, x):
        return self.out(self.inner(x)[0][:, -1])


@pytest.mark.parametrize("kind", [nn.RNN, nn.LSTM, nn.GRU])
def test_gradients_are_clipped_one_by_one_as_torch_differentiates_its_own_layer(kind):
    torch.manual_seed(0)
    model = _Last(kind).double()
    x, y = torch.randn(6, 7, 4).double(), torch.randint(3, (6,))
    expected = torch.zeros_like(flatten(model))
    for one, label in zip(x, y, strict=True):
        loss = nn.functional.cross_entropy(model(one[None]), label[None])
        each = torch.cat([g.flatten() for g in torch.autograd.grad(loss, model.parameters())])
        expected += each / max(1.0, float(each.norm()) / 0.3)
    for layout in ("auto", "vmap", "loop", "grouped", "book-keeping"):
        engine = PairGradients(model, layout)
        found = engine.clipped_sums(flatten(model)[None], ([0], [0]), [(x, y)], clip_norm=0.3)
        assert torch.allclose(found[0], expected, atol=1e-10)
    assert type(model.inner) is kind  # the caller's own network stays as it was


class _Cells(nn.Module):
    """A cell that goes over the steps, and classes."""

    def __init__(self, kind):
        super().__init__()
        self.inner, self.out = kind(4, 5), nn.Linear(5, 3)

    def forward(self, x):
        state = None
        for step in x.unbind(1):
            state = self.inner(step, state)
        return self.out(state[0] if isinstance(state, tuple) else state)


@pytest.mark.parametrize("kind", [nn.RNNCell, nn.LSTMCell, nn.GRUCell])
def test_cells_are_torchs_own_and_have_gradients_of_one_record(kind):
    torch.manual_seed(0)
    model, x = _Cells(kind).double(), torch.randn(3, 6, 4).double()
    assert torch.allclose(stepwise(copy.deepcopy(model))(x), model(x), rtol=0, atol=1e-12)
    sums = [
        PairGradients(model, layout).clipped_sums(
            flatten(model)[None], ([0], [0]), [(x, torch.arange(3))], clip_norm=0.3
        )
        for layout in ("auto", "vmap", "loop")
    ]
    assert all(torch.allclose(one, sums[2], atol=1e-10) for one in sums)


def _built(monkeypatch, model, **named):
    monkeypatch.setattr(
        "overhear.training.models.parameters._own_builder", lambda _: lambda *_: model
    )
    return build_model(
        "my:own", input_shape=(7, 4), classes=3, generator=torch.Generator(), **named
    )


def test_records_that_a_layer_takes_for_steps_are_refused(monkeypatch):
    model = _Last()
    model.inner.batch_first = False
    with pytest.raises(InputError, match="treat the examples of a batch separately"):
        _built(monkeypatch, model)


def test_a_users_network_stays_as_it_is_and_one_that_looks_at_a_class_is_refused(monkeypatch):
    model = _Last()
    built = _built(monkeypatch, model)
    assert (type(model.inner), type(built.inner)) == (nn.GRU, type(stepwise(nn.GRU(1, 1))))

    class Looks(_Last):
        def forward(self, x):
            return super().forward(x) * (1 if type(self.inner) is nn.GRU else 2)

    with pytest.raises(InputError, match="must not depend on the class of a layer"):
        _built(monkeypatch, Looks())
    with pytest.raises(InputError, match="a recurrent layer of a class of its own"):
        _built(monkeypatch, _Last(type("Own", (nn.GRU,), {})), evaluated=True)


def test_what_has_no_gradient_of_one_record_is_refused():
    with pytest.raises(InputError, match=r"'inner' \(GRU\) is random; remove it or set dropout=0"):
        validate_model(_Last(num_layers=2, dropout=0.1))
    own = type("Own", (nn.LSTM,), {})
    with pytest.raises(InputError, match=r"'inner' \(Own\) is a recurrent layer of a class of its"):
        validate_model(_Last(own))
    packed = nn.utils.rnn.pack_padded_sequence(torch.ones(7, 2, 4), torch.tensor([7, 5]))
    with pytest.raises(InputError, match="is given a PackedSequence"):
        stepwise(nn.GRU(4, 5))(packed)
    with pytest.raises(RuntimeError, match="Expected hidden size"):  # torch's own check
        stepwise(nn.GRU(4, 5))(torch.ones(7, 2, 4), torch.ones(2, 5))


@pytest.mark.parametrize(("steps", "layout"), [(3, "book-keeping"), (4, "vmap")])
def test_long_records_take_no_graph_whose_making_costs_too_much(steps, layout, monkeypatch):
    monkeypatch.setattr("overhear.training.models.recurrent._IN_A_GRAPH", 3)
    engine, x = PairGradients(_Last()), torch.zeros(2, steps, 4)
    point = torch.zeros(1, engine.parameters)
    engine.clipped_sums(point, ([0], [0]), [(x, torch.tensor([0, 1]))], clip_norm=1.0)
    assert engine.layout == layout
