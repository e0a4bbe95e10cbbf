"""Batches are independent Bernoulli draws, and those that are not are found.

Sound runs have fixed roots and pass at a total false-alarm rate of 1e-6 each.
"""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import binom

from overhear.attacks.checks import sampler as module
from overhear.attacks.checks.checks import message_check, record_check
from overhear.attacks.checks.sampler import sampler_check
from overhear.attacks.checks.watched_run import watch
from overhear.training.algorithms.dp_fedavg import Cohorts, LocalData, Settings
from overhear.training.data.store import Examples
from overhear.training.engine.engine import Engine
from overhear.training.engine.randomness import SecretRandomness
from overhear.training.graphs.topologies import ring
from overhear.training.noise_tests.laws import binomial, chernoff
from tests.attacks.checks.sensitivity_faults import FAULTS
from tests.attacks.checks.watched import a_run, a_setting, sound_run, with_bug
from tests.attacks.planted.catalogue import PATCHES
from tests.training.contract import bound_to


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.5, 1.0])
def test_a_sound_run_passes_at_any_rate(rate):
    found = sampler_check(sound_run("dp-dpsgd", rounds=2, rate=rate))
    assert found.passed, found.words


@pytest.mark.parametrize("name", ["dp-netfleet", "dpmixsgd", "dp-sgda"])
def test_several_batches_a_round_and_a_first_batch_pass(name):
    found = sampler_check(sound_run(name, rounds=2, rate=0.2))
    assert found.passed, found.words


@pytest.mark.some_quick(3)
@pytest.mark.parametrize("bug", ["shuffled batches", "fixed batches"])
@pytest.mark.parametrize("rate", [0.1, 0.25, 0.5])
def test_batches_that_are_not_drawn_anew_are_found(bug, rate):
    found = with_bug(bug, sampler_check, "dp-dpsgd", rate=rate, rounds=2)
    assert not found.passed
    assert found.p is not None
    assert found.p < 1e-12


@pytest.mark.parametrize("bug", ["shuffled batches", "fixed batches"])
def test_the_batches_that_ran_are_not_taken_for_those_of_a_sound_engine(bug):
    with PATCHES[bug].plant():
        run = a_run("dp-dpsgd", rounds=2)
    found = sampler_check(run)
    assert not found.passed
    assert "is not what the engine draws" in found.words


def plant(monkeypatch, draw):
    sound = Engine.draw_batch
    monkeypatch.setattr(
        Engine, "draw_batch", lambda self, **at: draw(lambda **how: sound(self, **how), **at)
    )


def higher(sound, *, rate, **at):
    return sound(rate=0.3, **at)


def of_a_fixed_size(sound, *, rate, **at):
    order = torch.tensor(np.random.default_rng([at["round"], at["agent"]]).permutation(12))
    return order[:6].sort().values


def one_seed_for_two_agents(sound, *, agent, **at):
    return sound(agent=1 if agent == 3 else agent, **at)


def one_seed_for_two_batches(sound, *, call, **at):
    return sound(call=0, **at)


def without_record_7(sound, *, agent, **at):
    chosen = sound(agent=agent, **at)
    return chosen[chosen != 7] if agent == 2 else chosen


def less_in_round_2(sound, **at):
    return sound(**at)[1:] if at["round"] == 2 else sound(**at)


@pytest.mark.parametrize(
    ("draw", "rate", "name", "words"),
    [
        (higher, 0.2, "dp-dpsgd", "participations"),
        (of_a_fixed_size, 0.5, "dp-dpsgd", "sizes of batches"),
        (one_seed_for_two_agents, 0.2, "dp-dpsgd", "agents 1 and 3 drew"),
        (one_seed_for_two_batches, 0.2, "dp-netfleet", "batches 0 and 1 of a round"),
        (without_record_7, 0.5, "dp-dpsgd", "record 7 of agent 2"),
        (less_in_round_2, 1.0, "dp-dpsgd", ""),
    ],
)
def test_batches_that_are_drawn_otherwise_are_found_and_named(monkeypatch, draw, rate, name, words):
    plant(monkeypatch, draw)
    found = sampler_check(a_run(name, rate=rate, rounds=2))
    assert not found.passed
    assert words in found.words


@pytest.mark.parametrize(("first", "lag"), [(7, 1), (8, 1), (3, 4)])
def test_a_batch_of_one_agent_that_comes_once_more_is_found_and_named(monkeypatch, first, lag):
    """Of 80 records at rate .5: agreement on all of them has probability 2^-80 a pair."""

    def draw(sound, *, round, agent, **at):
        again = agent == 2 and round == first + lag
        return sound(round=first if again else round, agent=agent, **at)

    plant(monkeypatch, draw)
    graph = ring(5)
    run = watch(a_setting(graph, records=80), bound_to("dp-dpsgd", graph), rounds=2)
    found = sampler_check(run)
    assert not found.passed
    assert f"agent 2 in rounds {first} and {first + lag} agree on 80 of 80" in found.words


@pytest.mark.some_quick(1)
@pytest.mark.parametrize(("trials", "rate"), [(12, 0.5), (40, 0.02), (3, 0.1)])
def test_the_bound_on_a_dispersion_is_one(trials, rate):
    """Against the exact distribution of the sum of 6 counts' deviations, by enumeration."""
    weights = module._log_weights(trials, rate)
    deviations = module._deviations(np.arange(trials + 1), trials, rate)
    sums = {0.0: 1.0}
    for _ in range(6):
        more: dict[float, float] = {}
        for total, p in sums.items():
            for d, w in zip(deviations.tolist(), np.exp(weights).tolist(), strict=True):
                key = round(total + d, 9)
                more[key] = more.get(key, 0.0) + p * w
        sums = {key: p for key, p in more.items() if p > 1e-30}
    ordered = sorted(sums)
    for at in ordered[:: max(1, len(ordered) // 50)]:
        upper = sum(p for key, p in sums.items() if key >= at)
        lower = sum(p for key, p in sums.items() if key <= at)
        assert chernoff([(6, weights, deviations)], at, 1.0) >= math.log(upper) - 1e-4
        assert chernoff([(6, weights, deviations)], at, -1.0) >= math.log(lower) - 1e-4


def test_binomial_tails_count_what_was_seen():
    assert binomial(0, 10, 0.5) == pytest.approx(2 / 1024)
    assert binomial(10, 10, 0.5) == pytest.approx(2 / 1024)
    assert binomial(5, 10, 0.5) == 1.0
    assert binomial(3, 10, 0.1) == pytest.approx(2 * binom.sf(2, 10, 0.1))
    assert (binomial(4, 4, 1.0), binomial(3, 4, 1.0)) == (1.0, 0.0)
    assert (binomial(0, 4, 0.0), binomial(1, 4, 0.0)) == (1.0, 0.0)


COHORTS = {"settings": Settings(cohort_rate=0.3, local_data=LocalData.EACH, local_steps=2)}


def test_secret_cohorts_and_the_batches_of_local_steps_pass():
    found = sampler_check(sound_run("dp-fedavg", rounds=2, **COHORTS))
    assert found.passed, found.words
    assert "secret cohorts of agents at the declared rates (0.3)" in found.words
    assert "sampling rates (0.5, 0.5)" in found.words


@pytest.mark.parametrize(
    ("draw", "words"),
    [
        (lambda coins, **_: torch.ones_like(coins), "the secret cohort 0, with agents as records"),
        (lambda coins, **_: coins[:1].expand(len(coins), 1), "agents as records, 350 rounds) vary"),
    ],
    ids=["everybody", "one coin for all"],
)
def test_a_cohort_that_is_not_drawn_by_coins_of_their_own_is_found(monkeypatch, draw, words):
    """500 rounds or more of five agents: missed with probability below 1e-6."""
    sound = SecretRandomness.coins
    monkeypatch.setattr(SecretRandomness, "coins", lambda self, **at: draw(sound(self, **at)))
    found = sampler_check(a_run("dp-fedavg", rounds=2, **COHORTS))
    assert not found.passed
    assert words in found.words


def test_the_cohorts_that_ran_are_not_taken_for_those_of_a_sound_engine(monkeypatch):
    sound = Engine.draw_cohort
    run = a_run("dp-fedavg", rounds=2, **COHORTS)
    monkeypatch.setattr(Engine, "draw_cohort", lambda self, of, **at: ~sound(self, of, **at))
    assert not sampler_check(run).passed


def of_scheme(scheme, rate=0.4):
    return {"settings": Settings(cohort_rate=rate, cohort=Cohorts(scheme), local_steps=1)}


@pytest.mark.parametrize("scheme", ["fixed", "shuffled", "cyclic"])
def test_cohorts_that_are_not_by_coins_pass_the_laws_of_their_scheme(scheme):
    found = sampler_check(sound_run("dp-fedavg", rounds=2, **of_scheme(scheme)))
    assert found.passed, found.words
    assert f"cohorts of agents as declared ({scheme}, 0.4 of them, in " in found.words


def everybody(drawn, cohort, **at):
    return torch.ones_like(drawn(cohort, **at))


def always_the_first(drawn, cohort, **at):
    """An agent that is in every cohort, in place of another one where it was not drawn."""
    members = drawn(cohort, **at).clone()
    if not members[0]:
        members[int(members.ravel().int().argmax())] = False
        members[0] = True
    return members


def turned(drawn, cohort, *, round):
    """A cyclic order that begins one agent later in every other epoch."""
    members = drawn(cohort, round=round)
    return members.roll(1, 0) if (round - 1) // 2 % 2 else members


@pytest.mark.parametrize(
    ("scheme", "drawn", "words"),
    [
        ("fixed", everybody, "has not 2 records"),
        ("shuffled", everybody, "has not 2 records"),
        ("shuffled", always_the_first, "2 times in the epoch"),
        ("cyclic", turned, "is not that of the first epoch"),
        ("fixed", always_the_first, "record 0 of cohort 0 (fixed, with agents as records) is in"),
    ],
)
def test_cohorts_that_are_not_drawn_as_declared_are_found(monkeypatch, scheme, drawn, words):
    """Sizes and epochs are exact. 105 rounds at .4 have one agent in all with probability 1e-42."""
    sound = Engine.draw_cohort
    monkeypatch.setattr(
        Engine,
        "draw_cohort",
        lambda self, cohort, **at: drawn(lambda c, **how: sound(self, c, **how), cohort, **at),
    )
    found = sampler_check(a_run("dp-fedavg", rounds=2, **of_scheme(scheme)))
    assert not found.passed
    assert found.p is not None
    assert found.p < 1e-12
    assert words in found.words


def test_cohorts_of_fixed_size_that_come_again_are_found(monkeypatch):
    """Those of even rounds are those of the odd ones before them: 105 rounds of 5 agents."""
    sound = Engine.draw_cohort
    monkeypatch.setattr(
        Engine, "draw_cohort", lambda self, c, *, round: sound(self, c, round=(round + 1) // 2)
    )
    assert not sampler_check(a_run("dp-fedavg", rounds=2, **of_scheme("fixed"))).passed


# A record is in a batch once, and in the store as often as in its source.


def source_of(shards) -> Examples:
    return Examples(*(torch.cat(part) for part in zip(*shards, strict=True)))


def run_of(shards):
    of = replace(a_setting(ring(3)), shards=shards)
    return watch(of, bound_to("dp-dpsgd", ring(3)), rounds=1)


@pytest.fixture
def shards():
    return list(a_setting(ring(3)).shards)


def with_copy(shards, *, to: tuple[int, int], of: tuple[int, int]):
    inputs, targets = (part.clone() for part in shards[to[0]])
    inputs[to[1]] = shards[of[0]].inputs[of[1]]
    targets[to[1]] = shards[of[0]].targets[of[1]]
    return [Examples(inputs, targets) if i == to[0] else s for i, s in enumerate(shards)]


def test_a_sound_run_passes():
    found = record_check(sound_run("dpdl"))
    assert found.passed, found.words
    assert found.tests == 3 * 5 + 60  # batches, records
    assert "no two records are equal" in found.words


@pytest.mark.parametrize("check", [record_check, sampler_check, message_check])
def test_a_batch_that_is_padded_by_repeating_a_record_is_found(check):
    with FAULTS["padded_by_the_draw"]():
        found = check(a_run("dp-dpsgd", rate=0.3))
    assert not found.passed
    assert found.p == (0.0 if check is sampler_check else None)
    assert "batch 0 of agent 0 in round 1 holds record" in found.words or check is not record_check


@pytest.mark.parametrize(("to", "of"), [((0, 3), (0, 7)), ((1, 2), (2, 5))])
def test_a_record_that_is_stored_twice_is_named_with_its_agent(shards, to, of):
    copied = with_copy(shards, to=to, of=of)
    for source in (None, source_of(shards)):
        found = record_check(run_of(copied), source=source)
        assert not found.passed
        for agent, position in (to, of):
            assert f"record {position} of agent {agent}" in found.words


def test_equal_records_of_the_source_are_told_and_pass(shards):
    natural = with_copy(shards, to=(1, 2), of=(2, 5))
    found = record_check(run_of(natural), source=source_of(natural))
    assert found.passed, found.words
    assert "1 are equal to another one" in found.words


def test_the_same_inputs_under_two_labels_are_two_records(shards):
    copied = with_copy(shards, to=(1, 2), of=(2, 5))
    copied[1].targets[2] = (copied[1].targets[2] + 1) % 3
    assert record_check(run_of(copied)).passed


def test_a_record_that_nobody_got_is_told(shards):
    less = [Examples(shards[0].inputs[1:], shards[0].targets[1:]), *shards[1:]]
    found = record_check(run_of(less), source=source_of(shards))
    assert "1 records of the source are in no agent's store" in found.words
