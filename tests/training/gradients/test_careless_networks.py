"""Networks in which a record reaches others: by their batch, its size, and what calls leave."""

import pytest
import torch
from torch import nn

from overhear.privacy.errors import InputError
from overhear.training import PairGradients
from overhear.training.models.losses import ForwardCalls
from overhear.training.models.tasks import ClassWeights

BY_LAYER = ("book-keeping", "grouped")
APART = ("vmap", "loop")


class Careless(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head, self.calls = nn.Linear(6, 3), [0]
        self.register_buffer("mean", torch.zeros(6))
        self.held = None


class Parity(Careless):
    def forward(self, x):
        return self.head(x * (len(x) % 2))


class SizeAsNumber(Careless):
    def forward(self, x):
        return self.head(x * (x.shape[0] % 2))


class Crowd(Careless):
    def forward(self, x):
        return self.head(x - x.mean(0)) if x.shape[0] > 12 else self.head(x)


class Centred(Careless):
    def forward(self, x):
        return self.head(x - x.mean(0))


class Branch(Careless):
    def forward(self, x):
        return self.head(x) if float(x.sum()) > 0 else self.head(-x)


class RunningMean(Careless):
    def forward(self, x):
        self.mean.mul_(0.5).add_(0.5 * x.detach().mean(0))
        return self.head(x - self.mean)


class AnotherMean(Careless):
    def forward(self, x):
        found = self.head(x - self.mean)
        self.mean = 0.5 * self.mean + 0.5 * x.detach().mean(0)
        return found


class Counting(Careless):
    def forward(self, x):
        self.calls[0] += 1
        return self.head(x * (self.calls[0] % 2))


class Memory(Careless):
    def forward(self, x):
        found = self.head(x if self.held is None else x - self.held)
        self.held = x.detach().sum(0)
        return found


class Random(Careless):
    def forward(self, x):
        return self.head(x * (torch.rand(x.shape[1], device=x.device) > 0.5))


BATCHWISE = (Parity, SizeAsNumber, Crowd, Centred, Branch)
STATEFUL = (RunningMean, AnotherMean, Counting, Memory)


def moves(objective, layout):
    """How far one record less moves the sum over its batch, C = 1, and those of three others."""
    draw = torch.Generator().manual_seed(3)
    x, y = 4 * torch.randn(13, 6, generator=draw), torch.randint(3, (13,), generator=draw)
    size = PairGradients(objective, "loop").parameters
    start = torch.randn(2, size, generator=draw)
    pairs = [0, 0, 1, 1], [0, 1, 0, 1]
    found = []
    for keep in (slice(0, None), slice(1, None)):
        torch.manual_seed(9)
        engine = PairGradients(objective, layout)
        batches = [(x[keep], y[keep]), (x, y)]
        rounds = [engine.clipped_sums(start, pairs, batches, clip_norm=1.0) for _ in range(2)]
        found.append(torch.stack(rounds))
    distance = (found[0] - found[1]).norm(dim=2)
    return float(distance[:, [0, 2]].max()), float(distance[:, [1, 3]].max())


def made(kind):
    torch.manual_seed(1)
    return kind()


@pytest.mark.parametrize("layout", BY_LAYER)
@pytest.mark.parametrize("kind", [*BATCHWISE, RunningMean, AnotherMean, Memory, Random])
def test_a_layout_by_layer_is_refused_by_name(kind, layout):
    words = rf"layout='{layout}' .* network: .*forward.*; use layout='vmap' or 'loop'.* or 'auto'"
    with pytest.raises(InputError, match=words):
        moves(made(kind), layout)


def test_a_comparison_alone_would_not_have_shown_it():
    """What is refused here agrees with the loop on the examples that a comparison takes."""
    model = made(Crowd)
    for count, is_apart in ((4, True), (13, False)):
        inputs = torch.randn(count, 6)
        alone = torch.cat([model(each[None]) for each in inputs])
        assert torch.allclose(model(inputs), alone, atol=1e-6) is is_apart


@pytest.mark.parametrize("layout", ["auto", "vmap", "loop"])
@pytest.mark.parametrize("kind", [Parity, SizeAsNumber, Crowd, Centred])
def test_a_network_that_mixes_its_batch_meets_one_record_at_a_time(kind, layout):
    own, others = moves(made(kind), layout)
    assert own <= 1 + 1e-6
    assert others == 0


@pytest.mark.parametrize("layout", ["auto", "loop"])
@pytest.mark.parametrize("kind", STATEFUL)
def test_what_a_forward_writes_reaches_no_other_record(kind, layout):
    if (kind, layout) == (RunningMean, "auto"):
        with pytest.raises(RuntimeError, match="broadcast shape"):  # under vmap torch refuses
            moves(made(kind), layout)
        return
    own, others = moves(made(kind), layout)
    assert own <= 1 + 1e-6
    assert others == 0


def test_a_branch_on_the_data_is_taken_by_the_loop_alone():
    own, others = moves(made(Branch), "loop")
    assert own <= 1 + 1e-6
    assert others == 0
    with pytest.raises(RuntimeError, match="control flow"):
        moves(made(Branch), "vmap")


@pytest.mark.parametrize("layout", ["auto", "vmap", "loop"])
def test_random_numbers_are_refused(layout):
    with pytest.raises(RuntimeError if layout != "loop" else InputError, match="random"):
        moves(made(Random), layout)


@pytest.mark.parametrize("layout", APART)
@pytest.mark.parametrize("kind", [AnotherMean, Counting, Memory])
def test_a_task_of_such_a_network_keeps_its_records_apart_too(kind, layout):
    own, others = moves(ClassWeights(made(kind), classes=3), layout)
    assert own <= 1 + 1e-6
    assert others == 0


def test_calls_leave_the_network_as_it_is():
    model = made(Counting)
    calls, parameters = ForwardCalls(model), dict(model.named_parameters())
    first = calls(parameters, torch.ones(1, 6))
    assert torch.equal(calls(parameters, torch.ones(1, 6)), first)
    assert model.calls == [0]
