"""Differences of noised values: x - y, where y is x with a change and its noise, in any order."""

from typing import NamedTuple

import pytest

from overhear.privacy.errors import UnsupportedView
from overhear.training import Agents, Round, account
from overhear.training.algorithms.algorithm import Bound
from overhear.training.graphs.topologies import ring
from tests.training.contract import check_rows

RATE = 0.1


class Scaffold(NamedTuple):
    x: Agents
    c: Agents
    own: Agents


def start(round: Round) -> Scaffold:
    x = round.initial()
    return Scaffold(x, 0.0 * x, 0.0 * x)


def change_of(state: Scaffold, round: Round, clip_norm: float) -> Agents:
    batches = round.draw(), round.draw(), round.draw()
    of = {"steps": 3, "learning_rate": RATE, "batch": batches}
    return round.local_update(state.x, **of, clip_norm=clip_norm)


def scaffold(
    state: Scaffold, round: Round, *, clip_norm: float = 1.0, noise_std: float = 1.0
) -> Scaffold:
    """SCAFFOLD whose local steps are clipped as a whole; the control variate is x - y."""
    change = change_of(state, round, clip_norm)
    y = state.x + change + round.noise(change, std=noise_std) - 3 * RATE * (state.c - state.own)
    own = state.own - state.c + (state.x - y) / (3 * RATE)
    x = round.download(round.upload(y, kind="model"), kind="mean")
    c = round.download(round.upload(own - state.own, kind="control"), kind="mean control")
    return Scaffold(x, state.c + c, own)


def kept(state: Scaffold, round: Round, *, clip_norm: float = 1.0, noise_std: float = 1.0):
    """The same on links, of clipped sums."""
    sums = round.clipped_sums(state.x, batch=round.draw(), clip_norm=clip_norm)
    y = state.x - RATE * sums - RATE * round.noise(sums, std=noise_std)
    return Scaffold(round.mix(y, kind="model"), (state.x - y) / RATE, state.own)


def sent_twice(state: Scaffold, round: Round, *, clip_norm: float = 1.0, noise_std: float = 1.0):
    """A false twin: the same noise without x beside it shows what x + change was rounded to."""
    change = change_of(state, round, clip_norm)
    noise = round.noise(change, std=noise_std)
    y = state.x + change + noise
    round.broadcast(change + noise, kind="change")
    return Scaffold(round.mix(y, kind="model"), state.x - y, state.own)


def rest(state: Scaffold, round: Round, *, clip_norm: float = 1.0, noise_std: float = 1.0):
    """Another: what is left of both is that rounding, and nothing else."""
    change = change_of(state, round, clip_norm)
    noise = round.noise(change, std=noise_std)
    y = state.x + change + noise
    return Scaffold(round.mix(y, kind="model"), (y - state.x) - (change + noise), state.own)


def clean_rest(state: Scaffold, round: Round, *, clip_norm: float = 1.0, noise_std: float = 1.0):
    """Another: the rounding of a clean change, beside a noised one."""
    change = change_of(state, round, clip_norm)
    left = ((state.x + change) - state.x) - change
    return Scaffold(
        round.mix(state.x + (change + round.noise(change, std=noise_std)), kind="model"),
        left,
        state.own,
    )


def unseen(state: Scaffold, round: Round, *, clip_norm: float = 1.0, noise_std: float = 1.0):
    """Another: of a value that nobody sees, what cancels is no function of what is seen."""
    change = change_of(state, round, clip_norm)
    y = state.x + change + round.noise(change, std=noise_std)
    return Scaffold(state.x, 3.0 * y - y - 2.0 * y, state.own)


def found(step, graph: str):
    run = {"graph": graph, "rounds": 20, "sampling_rate": 0.1, "delta": 1e-5}
    names = ["eavesdropper", "neighbour", "final-models"]
    return account(start, step, noise_multiplier=2, adversaries=names, **run)


@pytest.mark.parametrize(
    ("step", "graph", "joint"), [(scaffold, "server:5", 2.0), (kept, "ring:5", 1.0)]
)
def test_a_difference_costs_what_the_noised_change_does(step, graph, joint):
    every = found(step, graph)
    for name in every:
        assert every[name].joint_sensitivity == pytest.approx(joint)
        assert every[name].status == "proven"


@pytest.mark.parametrize("step", [sent_twice, rest, clean_rest, unseen])
def test_rounding_that_no_noise_hides_is_refused(step):
    with pytest.raises(UnsupportedView, match="cancels to rounding error"):
        found(step, "ring:5")


def test_the_refusal_says_how_to_write_it():
    with pytest.raises(UnsupportedView, match=r"round.local_update, .*: x \+ \(change \+ noise\)"):
        found(rest, "ring:5")


def test_a_run_does_what_is_traced():
    check_rows(Bound(start, kept), ring(5))
