"""What code of one's own keeps from call to call: a forward or a loss that does is refused."""

import functools
import random
import threading

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from overhear.privacy.errors import InputError
from overhear.training.gradients.gradients import PairGradients
from overhear.training.models.losses import NetworkLoss, check_loss
from overhear.training.models.parameters import flatten
from overhear.training.own.contents import Watch

CALLS = [0]
MEAN = {"of": torch.zeros(())}
NUMBER = 0


def counts() -> None:
    CALLS[0] += 1


def counts_behind_another() -> None:
    counts()


def writes_a_tensor() -> None:
    MEAN["of"].add_(1)


def writes_a_global() -> None:
    global NUMBER  # noqa: PLW0603 - that is the fault
    NUMBER += 1


def writes_a_default(held=[0]) -> None:  # noqa: B006 - that is the fault
    held[0] += 1


def writes_to_itself() -> None:
    writes_to_itself.times = getattr(writes_to_itself, "times", 0) + 1


class Object:
    of_class = 0

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> None:
        self.calls += 1

    def shared(self) -> None:
        type(self).of_class += 1


def _closure():
    held = np.zeros(2)

    def writes() -> None:
        held[0] += 1

    return writes


@pytest.mark.parametrize(
    "function",
    [
        counts,
        counts_behind_another,
        writes_a_tensor,
        writes_a_global,
        writes_a_default,
        writes_to_itself,
        Object(),
        Object().shared,
        functools.partial(Object()),
        _closure(),
        random.random,
        np.random.rand,
    ],
)
def test_what_a_call_keeps_is_seen(function):
    watch = Watch(function)
    assert watch.changed() is None
    function()
    assert watch.changed() is not None
    watch.begin()
    assert watch.changed() is None


def warmed(outputs, targets):
    CALLS[0] += 1
    return cross_entropy(outputs, targets, reduction="none") * (1 if CALLS[0] < 1000 else 5)


def test_a_loss_that_keeps_something_is_refused():
    with pytest.raises(InputError, match=r"loss='mine:warmed' changes 'CALLS"):
        check_loss(warmed, "mine:warmed", classes=2, outputs=0)
    task = NetworkLoss(nn.Linear(2, 2), warmed, regression=False)
    batch = torch.ones(2, 2), torch.tensor([0, 1])
    with pytest.raises(InputError, match=r"changes 'per_example.CALLS"):
        PairGradients(task, "loop").clipped_sums(
            task.initial()[None], ([0], [0]), [batch], clip_norm=1.0
        )


MASKS: dict[int, torch.Tensor] = {}


def filled_once(outputs, targets):
    width = outputs.shape[-1]
    if width not in MASKS:
        MASKS[width] = torch.ones(width)
    return cross_entropy(outputs * MASKS[width], targets, reduction="none")


def test_a_table_that_is_filled_once_is_taken():
    check_loss(filled_once, "mine:filled_once", classes=2, outputs=0)


class _Mixes(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return x.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, slope):
        return _Meets.apply(slope)

    @staticmethod
    def vmap(info, dims, x):
        return _Mixes.apply(x), dims[0]


class _Meets(_Mixes):
    @staticmethod
    def backward(ctx, slope):
        return slope

    @staticmethod
    def vmap(info, dims, x):
        return x + 3 * x.mean(dims[0], keepdim=True), dims[0]


def test_a_backward_in_which_examples_meet_under_vmap_is_refused():
    def loss(outputs, targets):
        return cross_entropy(_Mixes.apply(outputs), targets, reduction="none")

    with pytest.raises(InputError, match="other gradients for 4 examples together"):
        check_loss(loss, "mine:loss", classes=2, outputs=0)


class _CountsInItself(nn.Linear):
    calls = 0

    def forward(self, x):
        self.calls += 1
        return self.calls * super().forward(x)


class _CountsOutside(nn.Linear):
    def forward(self, x):
        counts()
        return super().forward(x)


def _sum(task, records: int) -> torch.Tensor:
    x = torch.arange(6.0).reshape(3, 2)[:records] / 6
    y = torch.zeros(records)
    return PairGradients(task, "loop").clipped_sums(
        torch.zeros(1, 3), ([0], [0]), [(x, y)], clip_norm=100.0
    )[0]


def squared(outputs, targets):
    return (outputs - targets - 1).square()


def test_a_forward_that_counts_its_calls_does_not_tie_records_of_a_regression():
    task = NetworkLoss(_CountsInItself(2, 1), squared, regression=True)
    alone = [_sum(task, records) for records in (1, 2, 3)]
    again = [_sum(task, records) for records in (1, 2, 3)]
    assert all(map(torch.equal, alone, again))


@pytest.mark.parametrize("layout", ["loop", "vmap"])
def test_a_forward_that_counts_outside_is_refused(layout):
    model = _CountsOutside(2, 2)
    batch = torch.ones(2, 2), torch.tensor([0, 1])
    with pytest.raises(InputError, match=r"forward changes 'counts.CALLS"):
        PairGradients(model, layout).clipped_sums(
            flatten(model)[None], ([0], [0]), [batch], clip_norm=1.0
        )


class _Draws(nn.Linear):
    def forward(self, x):
        return super().forward(x) * (1 + 1e-4 * torch.rand(()))


def test_a_forward_that_fails_is_told_in_a_sentence():
    model = _Draws(2, 2)
    batch = torch.ones(2, 2), torch.tensor([0, 1])
    with pytest.raises(InputError, match="raised RuntimeError: vmap: called random"):
        PairGradients(model, "vmap").clipped_sums(
            flatten(model)[None], ([0], [0]), [batch], clip_norm=1.0
        )


def test_a_thread_that_runs_on_is_seen():
    ends = threading.Event()
    watch = Watch(counts)
    watch.begin()
    thread = threading.Thread(target=ends.wait)
    thread.start()
    assert watch.changed() == "what is outside of it (a thread)"
    watch.begin()
    assert watch.changed() is None  # it was there before
    ends.set()
    thread.join()
