"""A public table as a value, such as a start or an addend: everybody knows it; it costs nothing."""

import math
from typing import NamedTuple

import pytest
import torch

from overhear.attacks.checks.checks import engine_checks
from overhear.privacy.errors import InputError
from overhear.training import Agents, Round, UndeclaredOperation, account
from overhear.training.algorithms.algorithm import Bound
from overhear.training.engine.engine import Engine
from overhear.training.engine.randomness import SecretRandomness
from overhear.training.graphs.topologies import ring
from overhear.training.step.values import NUMBERS
from tests.training.contract import check_rows, setting
from tests.training.states import State

WIDTH = 23  # parameters of the network of `setting`
TABLE = torch.linspace(-1.0, 1.0, 5 * WIDTH, dtype=torch.float64).reshape(5, WIDTH)


class XC(NamedTuple):
    x: Agents
    control: Agents


def pretrained(round: Round) -> State:
    return State(round.of_agents(TABLE))


def beside_initial(round: Round) -> XC:
    return XC(round.initial() - round.of_agents(TABLE), round.of_agents(0.0 * TABLE))


def step(state: State, round: Round, *, clip_norm: float = 1.0, noise_std: float = 1.0) -> State:
    sums = round.clipped_sums(state.x, batch=round.draw(), clip_norm=clip_norm)
    noisy = sums + round.noise(sums, std=noise_std)
    back = 0.1 * (round.of_agents(TABLE) - state.x)  # a table on the left of a value
    return State(round.mix(state.x - 0.1 * noisy + back, kind="model"))


def controlled(state: XC, round: Round, *, clip_norm: float = 1.0, noise_std: float = 1.0) -> XC:
    moved = step(State(state.x), round, clip_norm=clip_norm, noise_std=noise_std)
    public = round.mix(round.of_agents(TABLE), kind="public")  # sent as it is
    return XC(moved.x, state.control + public)


def cost(init, one):
    run = {"graph": "ring:5", "rounds": 10, "sampling_rate": 0.1, "delta": 1e-5}
    return account(init, one, noise_multiplier=1, adversaries=["eavesdropper"], **run)


@pytest.mark.parametrize(("init", "one"), [(pretrained, step), (beside_initial, controlled)])
def test_a_table_is_a_start_and_an_addend_that_costs_nothing(init, one):
    assert cost(init, one)["eavesdropper"].joint_sensitivity == pytest.approx(1.0, abs=1e-9)
    check_rows(Bound(init, one), ring(5))
    of = setting(ring(5))
    run = Engine(of, Bound(init, one), randomness=SecretRandomness(3))
    run.start()
    begun = TABLE if init is pretrained else run._every.initial - TABLE
    torch.testing.assert_close(run.models(), begun)


@pytest.mark.slow
def test_a_run_that_starts_from_a_table_is_audited():
    bound = Bound(beside_initial, controlled, noise_multiplier=1.0)
    found = engine_checks(setting(ring(5)), bound, rounds=3, randomness=SecretRandomness(9))
    assert [one.name for one in found if not one.passed] == []


def test_a_start_is_in_the_precision_of_the_run():
    from dataclasses import replace

    of = replace(setting(ring(5)), dtype=torch.float32)
    run = Engine(of, Bound(pretrained, step), randomness=SecretRandomness(3))
    run.advance()
    assert run.models().dtype is torch.float32


@pytest.mark.parametrize(
    ("table", "error", "said"),
    [
        (TABLE[:, :7], InputError, "rows of 7 numbers, and the model has 23"),
        (TABLE[:, :1], InputError, "rows of 1 numbers"),
        (TABLE[:4], InputError, "one row for each agent"),
        (TABLE[:, :0], InputError, "one row for each agent"),
        (TABLE / 0.0, UndeclaredOperation, "not finite"),
        (math.nan * TABLE, UndeclaredOperation, "no number"),
    ],
)
def test_a_table_that_is_no_start_is_refused_before_anything_is_sent(table, error, said):
    run = Engine(setting(ring(5)), Bound(lambda r: State(r.of_agents(table)), step))
    with pytest.raises(error, match=said):
        run.start()


def test_one_number_a_row_is_a_block_of_its_own():
    def numbers(round: Round) -> XC:
        return XC(round.initial(), round.of_agents(torch.ones(5, 1)))

    def mixed(state: XC, round: Round) -> XC:
        return XC(state.x + state.control, state.control)

    with pytest.raises(UndeclaredOperation, match=f"block {NUMBERS} to rows of block 0"):
        cost(numbers, mixed)


def test_noise_that_a_large_table_swallows_is_refused():
    def swallowed(state: State, round: Round, *, clip_norm: float, noise_std: float) -> State:
        sums = round.clipped_sums(state.x, batch=round.draw(), clip_norm=clip_norm)
        far = sums + round.of_agents(1e9 * TABLE)  # its lowest digits, before the noise
        return State(round.mix(far + round.noise(sums, std=noise_std), kind="model"))

    with pytest.raises(UndeclaredOperation, match=r"rounding it is lost"):
        cost(pretrained, swallowed)
