"""A round whose noise is lost beside a large public value is stopped before its noise leaves."""

import pytest
import torch
from torch import nn

from overhear.training.algorithms.algorithm import Bound
from overhear.training.data.store import Examples
from overhear.training.engine.engine import Engine
from overhear.training.engine.setting import Setting
from overhear.training.engine.tensor_round import NoiseBelowRounding, PublicValues
from overhear.training.graphs.topologies import ring
from overhear.training.models.losses import NetworkLoss, loss_named
from overhear.training.step.floor import MOST_LOST, Beside, Floor
from tests.training.states import State, start

RATE, STD = 0.1, 2.0


def late(state, round):
    s = round.clipped_sums(state.x, batch=round.draw(), clip_norm=1.0)
    return State(round.mix(state.x - RATE * s + RATE * round.noise(s, std=STD), kind="model"))


def first(state, round):
    s = round.clipped_sums(state.x, batch=round.draw(), clip_norm=1.0)
    return State(round.mix(state.x - RATE * (s + round.noise(s, std=STD)), kind="model"))


def growing(state, round):
    s = round.clipped_sums(state.x, batch=round.draw(), clip_norm=1.0)
    return State(
        30.0 * round.mix(state.x - RATE * s + round.noise(s, std=RATE * STD), kind="model")
    )


def engine(step, *, bias=250_000.0, dtype=torch.float32, taps=()):
    net = nn.Linear(2, 1)
    nn.init.zeros_(net.weight)
    nn.init.constant_(net.bias, bias)
    setting = Setting(
        graph=ring(3), model=net, shards=[Examples(torch.ones(4, 2), torch.ones(4))] * 3,
        sampling_rate=1.0, device=torch.device("cpu"), dtype=dtype,
        task=NetworkLoss(net, loss_named("absolute", classes=0, outputs=1), regression=True),
    )  # fmt: skip
    return Engine(setting, Bound(start, step), taps=taps)


def test_a_large_weight_stops_the_round_before_anything_is_sent():
    sent = []
    with pytest.raises(NoiseBelowRounding) as told:
        engine(late, taps=[sent.append]).advance()
    for part in ("'bias'", "250000", "state x", "0.0156", "deviation 0.2", "clipped sum first"):
        assert part in str(told.value)
    assert sent == []


@pytest.mark.parametrize(
    ("step", "how"),
    [
        (first, {}),  # noise meets a bare sum, whatever the weight
        (late, {"dtype": torch.float64}),
        (late, {"bias": 1.0}),
    ],
)
def test_sound_neighbours_train(step, how):
    run = engine(step, **how)
    run.advance()
    run.advance()
    assert run.round == 2


def test_a_model_that_grows_is_stopped_where_its_rounding_shows():
    run = engine(growing, bias=1.0)
    for _ in range(3):
        run.advance()
    with pytest.raises(NoiseBelowRounding, match="round 4"):
        run.advance()


def test_the_start_is_looked_at_without_sending_or_data():
    sent = []
    with pytest.raises(NoiseBelowRounding, match="round 1"):
        engine(late, taps=[sent.append]).check_start()
    assert sent == []


def test_the_norm_over_coordinates_counts():
    floor = Floor((Beside("state x", 1.0, 1.0),))
    eps = torch.finfo(torch.float32).eps
    largest = MOST_LOST / eps / 100  # 10,000 coordinates of this size
    PublicValues(floor, round=1).note("state x", torch.full((3, 10_000), 0.99 * largest))
    with pytest.raises(NoiseBelowRounding, match="coordinate 0"):
        PublicValues(floor, round=1).note("state x", torch.full((3, 10_000), 1.01 * largest))
    with pytest.raises(NoiseBelowRounding, match="inf"):
        PublicValues(floor, round=1).note("state x", torch.full((3, 2), float("inf")))
    # What no floor names is not looked at.
    PublicValues(floor, round=1).note("state y", torch.full((3, 2), float("inf")))
