"""What is clipped as one vector: where it is not finite it tells nothing of the records."""

import math
from dataclasses import replace
from typing import NamedTuple

import pytest
import torch

from overhear.privacy.errors import NotFiniteError
from overhear.training.algorithms.algorithm import Algorithm
from overhear.training.data.store import Examples
from overhear.training.engine.engine import Engine
from overhear.training.engine.randomness import SecretRandomness
from overhear.training.gradients.clipping import clipped_rows
from overhear.training.gradients.gradients import PairGradients
from overhear.training.gradients.whole_vectors import ByUser
from overhear.training.graphs.topologies import ring
from overhear.training.step.handles import Agents
from tests.training.contract import bound_to, setting

BAD = [math.inf, math.nan]


class State(NamedTuple):
    x: Agents
    shown: Agents


def init(round):
    return State(round.initial(), round.initial())


def of_sums(state, round, *, learning_rate, clip_norm, noise_std, batch_size):
    del learning_rate, noise_std, batch_size
    batch = round.draw(per="user")
    return State(state.x, round.clipped_sums(state.x, batch=batch, clip_norm=clip_norm, per="user"))


def of_means(state, round, *, learning_rate, clip_norm, noise_std, batch_size):
    del learning_rate, noise_std
    batch = round.draw()
    made = round.clipped_mean(state.x, batch=batch, batch_size=batch_size, clip_norm=clip_norm)
    return State(state.x, made)


def of_changes(state, round, *, learning_rate, clip_norm, noise_std, batch_size):
    del noise_std, batch_size
    batch = round.draw()
    made = round.local_update(
        state.x, steps=2, learning_rate=learning_rate, batch=batch, clip_norm=clip_norm
    )
    return State(state.x, made)


def shown(step, bad=None, *, clip_norm=0.1):
    """(A, D) what a round makes of everybody's records, one of agent 2 being bad."""
    graph = ring(4)
    made = setting(graph, rate=1.0)
    shards = [Examples(of.inputs.double().clone(), of.targets) for of in made.shards]
    if bad is not None:
        shards[2].inputs[4, 1] = bad
    engine = Engine(
        replace(made, shards=shards, users=[torch.arange(9) // 3 for _ in range(4)]),
        bound_to(Algorithm(name="ours", init=init, step=step), graph, clip_norm=clip_norm),
        randomness=SecretRandomness(5),
    )
    engine.advance()
    return engine.state.shown.rows


OTHERS = [0, 1, 3]


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("step", [of_means, of_changes])
def test_a_mean_or_a_change_that_overflows_is_the_zero_vector_and_the_round_goes_on(step, bad):
    found, without = shown(step, bad), shown(step)
    assert not found[2].any()
    assert without[2].norm() > 0.01
    torch.testing.assert_close(found[OTHERS], without[OTHERS], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("bad", BAD)
def test_of_users_only_the_one_whose_sum_overflows_counts_as_zero(bad):
    found, without = shown(of_sums, bad), shown(of_sums)
    torch.testing.assert_close(found[OTHERS], without[OTHERS], rtol=1e-12, atol=1e-12)
    # User 1 of agent 2 has records 3 to 5; sums of the others are what they are without it.
    left = 0.1 * (1 + 1e-9)
    assert 0 < (without[2] - found[2]).norm() <= left
    assert 0 < found[2].norm() <= 2 * left


@pytest.mark.parametrize("step", [of_means, of_changes])
def test_without_a_clip_what_is_not_finite_stops_the_run(step):
    with pytest.raises(NotFiniteError):
        shown(step, math.nan, clip_norm=None)


@pytest.mark.parametrize("bad", [*BAD, 1e200])  # the last is finite, and its square is not
def test_gradients_that_do_not_drop_say_so(bad):
    """Readiness looks at the first model, before anybody could learn of a record."""
    engine = PairGradients(torch.nn.Linear(2, 2), "loop", dtype=torch.float64)
    batch = torch.tensor([[bad, 1.0]]).double(), torch.tensor([0])
    with pytest.raises(NotFiniteError):
        ByUser(engine, [torch.tensor([0])]).clipped_sums(
            torch.zeros(1, 6), ([0], [0]), [batch], clip_norm=1.0
        )


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
def test_a_row_that_is_not_finite_leaves_the_others(bad):
    rows = torch.tensor([[3.0, 4.0], [bad, 0.0], [0.3, 0.4]])
    found = clipped_rows(rows, 1.0, drops=True)
    torch.testing.assert_close(found, torch.tensor([[0.6, 0.8], [0.0, 0.0], [0.3, 0.4]]))
    with pytest.raises(NotFiniteError):
        clipped_rows(rows, 1.0)
