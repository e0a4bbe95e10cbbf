"""Recurrent layers of torch, step by step: the same function of the same parameters.

torch's own form is one operation over all steps. It has no rule for `torch.func.vmap` and no second
derivative on every device, hence neither a gradient of one record nor an attack. Step by step it is
products, sums, sigmoids and tanh. With x_t the input and h_(t-1) the state before,

    a = W_ih x_t + b_ih,  b = W_hh h_(t-1) + b_hh

    RNN     h = tanh(a + b), or ReLU
    LSTM    i, f, g, o of a + b:  c = sigmoid(f) c + sigmoid(i) tanh(g),  h = sigmoid(o) tanh(c),
            or W_hr of that
    GRU     r, z, n of a and b:  n = tanh(a_n + sigmoid(a_r + b_r) b_n),
            h = (1 - sigmoid(a_z + b_z)) n + sigmoid(a_z + b_z) h

as the documentation of `torch.nn` has them. A layer is made so by its class alone: its parameters,
their names and their order are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from ...privacy.errors import InputError

_State = tuple[Tensor, ...]

# Steps of which a graph is taken, at .15 s each, once; 400 take .1 s a call by it, .25 by vmap.
_IN_A_GRAPH = 32
_M = TypeVar("_M", bound=nn.Module)


class _Stepwise(nn.RNNBase):
    """The loop over layers, directions and steps; `_step` is one step of one layer."""

    _step: Callable[[Tensor, _State, Sequence[Tensor | None]], _State]

    def forward(self, input: Any, hx: Any = None) -> Any:
        """Outputs of all steps and the last states, as torch's layer returns them."""
        if not isinstance(input, Tensor):
            raise InputError(
                "a recurrent layer is given a PackedSequence, and a record has one length here; "
                "give it the padded tensor, and choose the step to read by the length of the record"
            )
        # Steps first; a batch of one where there is none.
        alone = input.dim() == 2
        twofold = isinstance(self, nn.LSTM)
        whole = input.unsqueeze(0 if self.batch_first else 1) if alone else input
        values = whole.transpose(0, 1) if self.batch_first else whole
        given = () if hx is None else hx if twofold else (hx,)
        starts = tuple(state[:, None] if alone else state for state in given)
        # Their shapes alone: the layer may be called with values of another type than its own.
        if whole.dim() != 3 or whole.shape[-1] != self.input_size:
            raise RuntimeError(
                f"a recurrent layer of input_size={self.input_size} is given {tuple(input.shape)}"
            )
        sizes = [self.get_expected_hidden_size(whole, None)] * bool(starts)
        if isinstance(self, nn.LSTM) and starts:
            sizes.append(self.get_expected_cell_size(whole, None))
        for state, size in zip(starts, sizes, strict=True):
            self.check_hidden_size(state, size)
        sides = 2 if self.bidirectional else 1
        ends: list[_State] = []
        for layer in range(self.num_layers):
            found = []
            for side in range(sides):
                start = tuple(state[layer * sides + side] for state in starts)
                outputs, end = self._run(values, start, f"_l{layer}" + "_reverse" * side)
                found.append(outputs)
                ends.append(end)
            values = torch.cat(found, dim=-1) if sides > 1 else found[0]
            if self.dropout and layer < self.num_layers - 1:
                values = functional.dropout(values, self.dropout, self.training)
        # The shapes that torch gives.
        last = [torch.stack(states) for states in zip(*ends, strict=True)]
        if alone:
            values, last = values[:, 0], [state[:, 0] for state in last]
        elif self.batch_first:
            values = values.transpose(0, 1)
        return values, tuple(last) if twofold else last[0]

    def _run(self, values: Tensor, start: _State, name: str) -> tuple[Tensor, _State]:
        """Of one layer in one direction: outputs (T, B, H), and the state at the end."""
        own = getattr(self, f"weight_hr{name}", None)
        weights = (getattr(self, f"weight_hh{name}"), getattr(self, f"bias_hh{name}", None), own)
        first = getattr(self, f"weight_ih{name}"), getattr(self, f"bias_ih{name}", None)
        if len(values) > _IN_A_GRAPH and torch.compiler.is_exporting():
            raise InputError(f"it goes over {len(values)} steps, and at most {_IN_A_GRAPH} pay")
        steps = functional.linear(values, *first).unbind(0)
        if not start:
            size = values.shape[1]
            start = (values.new_zeros(size, self.proj_size or self.hidden_size),)
            if isinstance(self, nn.LSTM):
                start = (*start, values.new_zeros(size, self.hidden_size))
        state, outputs = start, []
        for fed in reversed(steps) if name.endswith("_reverse") else steps:
            state = self._step(fed, state, weights)
            outputs.append(state[0])
        if name.endswith("_reverse"):
            outputs.reverse()
        return torch.stack(outputs), state


class _Cell(nn.RNNCellBase):
    """One step of one layer."""

    _step: Callable[[Tensor, _State, Sequence[Tensor | None]], _State]

    def forward(self, input: Tensor, hx: Any = None) -> Any:
        """The next state, as torch's cell returns it."""
        twofold = isinstance(self, nn.LSTMCell)
        state = hx if twofold else (hx,)
        if hx is None:
            state = (input.new_zeros(*input.shape[:-1], self.hidden_size),) * (1 + twofold)
        fed = functional.linear(input, self.weight_ih, self.bias_ih)
        found = self._step(fed, state, (self.weight_hh, self.bias_hh, None))
        return found if twofold else found[0]


class _OfRNN:
    nonlinearity: str

    def _step(self, fed: Tensor, state: _State, weights: Sequence[Tensor | None]) -> _State:
        total = fed + functional.linear(state[0], weights[0], weights[1])  # type: ignore[arg-type]
        return (total.tanh() if self.nonlinearity == "tanh" else total.relu(),)


class _OfLSTM:
    def _step(self, fed: Tensor, state: _State, weights: Sequence[Tensor | None]) -> _State:
        total = fed + functional.linear(state[0], weights[0], weights[1])  # type: ignore[arg-type]
        i, f, g, o = total.chunk(4, dim=-1)
        cell = f.sigmoid() * state[1] + i.sigmoid() * g.tanh()
        hidden = o.sigmoid() * cell.tanh()
        return hidden if weights[2] is None else functional.linear(hidden, weights[2]), cell


class _OfGRU:
    def _step(self, fed: Tensor, state: _State, weights: Sequence[Tensor | None]) -> _State:
        held = functional.linear(state[0], weights[0], weights[1])  # type: ignore[arg-type]
        (r, z, n), (s, y, m) = fed.chunk(3, dim=-1), held.chunk(3, dim=-1)
        kept = (z + y).sigmoid()
        return ((1 - kept) * (n + (r + s).sigmoid() * m).tanh() + kept * state[0],)


class StepwiseRNN(_OfRNN, _Stepwise, nn.RNN):
    """`nn.RNN` step by step."""


class StepwiseLSTM(_OfLSTM, _Stepwise, nn.LSTM):
    """`nn.LSTM` step by step."""


class StepwiseGRU(_OfGRU, _Stepwise, nn.GRU):
    """`nn.GRU` step by step."""


class StepwiseRNNCell(_OfRNN, _Cell, nn.RNNCell):
    """`nn.RNNCell` of products and sums."""


class StepwiseLSTMCell(_OfLSTM, _Cell, nn.LSTMCell):
    """`nn.LSTMCell` of products and sums."""


class StepwiseGRUCell(_OfGRU, _Cell, nn.GRUCell):
    """`nn.GRUCell` of products and sums."""


_FORMS: dict[type[nn.Module], type[nn.Module]] = {
    nn.RNN: StepwiseRNN,
    nn.LSTM: StepwiseLSTM,
    nn.GRU: StepwiseGRU,
    nn.RNNCell: StepwiseRNNCell,
    nn.LSTMCell: StepwiseLSTMCell,
    nn.GRUCell: StepwiseGRUCell,
}


def stepwise(model: _M) -> _M:
    """The network itself, whose recurrent layers of torch go step by step from now on.

    >>> layer = nn.GRU(2, 3)
    >>> x = torch.ones(4, 1, 2)
    >>> before = layer(x)[0]
    >>> bool(torch.allclose(stepwise(layer)(x)[0], before, atol=1e-6))
    True
    """
    return _turned(model, _FORMS)


def in_one(model: _M) -> _M:
    """The inverse of `stepwise`: the network itself, with torch's own recurrent layers."""
    return _turned(model, {new: old for old, new in _FORMS.items()})


def _turned(model: _M, forms: dict[type[nn.Module], type[nn.Module]]) -> _M:
    for layer in model.modules():
        if type(layer) in forms:
            layer.__class__ = forms[type(layer)]
    return model


def unsupported_recurrent(layer: nn.Module, *, evaluated: bool = False) -> str | None:
    """Why a recurrent layer has no gradient of one record; None where it has one, or is another."""
    if not isinstance(layer, nn.RNNBase | nn.RNNCellBase):
        return None
    if type(layer) not in (*_FORMS, *_FORMS.values()):
        return "is a recurrent layer of a class of its own; build it of nn.Linear, or use nn.GRU"
    if isinstance(layer, nn.RNNBase) and layer.dropout > 0 < layer.num_layers - 1 and not evaluated:
        return "is random; remove it or set dropout=0"
    return None
