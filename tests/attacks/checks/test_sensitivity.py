"""One record moves what enters each noise by its bound, and what moves more is found and named."""

import functools
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

from overhear.attacks.checks.checks import message_check
from overhear.attacks.checks.sensitivity import _passes, sensitivity_check
from overhear.attacks.checks.watched_run import watch
from overhear.training.algorithms import Form, dp_cga
from overhear.training.algorithms.algorithm import Bound
from overhear.training.data.store import Examples
from overhear.training.engine.randomness import SecretRandomness
from overhear.training.engine.setting import Setting
from overhear.training.graphs.topologies import build_graph, ring, star
from overhear.training.step.handles import Agents
from tests.attacks.checks.sensitivity_faults import FAULTS, bound_of_the_batch
from tests.attacks.checks.watched import IN_A_PRECISION, a_run, a_setting, sound_run
from tests.training.contract import bound_to
from tests.training.states import State


def checked(run, *, records=15, seed=1):
    return sensitivity_check(run, records=records, generator=np.random.default_rng(seed))


@pytest.mark.some_quick(4)
@pytest.mark.parametrize(("name", "form", "dtype"), IN_A_PRECISION)
def test_a_sound_run_passes(name, form, dtype):
    found = checked(a_run(name, form=form, dtype=dtype))
    assert found.passed, found.words
    assert found.p is None
    # Local steps move a model by less than the clip norm, and a cohort leaves most of them out.
    assert "is 1.000 of its bound" in found.words or name == "dp-fedavg"


@pytest.mark.some_quick(5)
@pytest.mark.parametrize("name", list(FAULTS))
def test_a_fault_is_found(name):
    with FAULTS[name]():
        found = checked(a_run("dpdl", rounds=4, rate=0.4))
    assert not found.passed, found.words
    assert nothing_is_left()


@pytest.mark.parametrize("of", [torch.mean, torch.median])
def test_a_clip_norm_that_follows_the_batch_is_found_where_no_real_record_shows_it(of):
    with bound_of_the_batch(of):
        run = a_run("dp-dpsgd", rounds=1, clip_norm=0.05)  # all real gradients are longer
        found = [checked(run, records=1, seed=seed) for seed in range(2)]
    assert message_check(run).passed
    assert not any(one.passed for one in found)
    assert all("made again on other records: a contribution of agent" in one.words for one in found)


@functools.cache
def nothing_is_left():
    return checked(sound_run("dpdl")).passed


def test_who_moves_what_by_how_much_is_said():
    with FAULTS["twice_the_factor_from_20_to_90"]():
        words = checked(a_run("dpdl")).words
    assert "of agent" in words
    assert "by 0.4, where its bound is 0.2" in words


def test_what_is_remembered_outside_the_state_is_told_from_what_a_record_does():
    with FAULTS["running_mean_of_clean_gradients"]():
        words = checked(a_run("dpdl")).words
    assert "nothing was changed, and something besides the recorded state moves" in words


def test_another_agents_gradient_is_named():
    with FAULTS["mean_by_all_agents_batches"]():
        words = checked(a_run("dpdl")).words
    assert "where none of that agent's records changed" in words


def test_who_decides_on_others_is_named():
    with FAULTS["records_drawn_by_their_size"]():
        words = checked(a_run("dpdl", rate=0.8)).words
    assert "changes which other records are in batch 0 of agent" in words


@pytest.mark.parametrize("rate", [0.0, 0.05, 1.0])
def test_any_rate_passes_and_a_record_shows_in_every_round(rate):
    found = checked(a_run("dp-netfleet", rate=rate, rounds=2))
    assert found.passed, found.words
    assert "is 1.000 of its bound" in found.words


@pytest.mark.parametrize("rate", [0.0, 0.05])
def test_a_value_without_noise_that_an_empty_batch_leaves_at_zero_passes(rate):
    found = checked(a_run("dpdl", form=Form.PUBLISHED, rate=rate, rounds=2, root=0))
    assert found.passed, found.words


@pytest.mark.parametrize("clip", list(dp_cga.Clip))
def test_clipped_means_pass(clip):
    assert checked(a_run("dp-cga", settings=dp_cga.Settings(clip=clip), rounds=2)).passed


@pytest.mark.parametrize("graph", [star(4), build_graph("full", 2)], ids=["star", "pair"])
def test_other_graphs_pass(graph):
    assert checked(a_run("dpdl", graph=graph, rounds=2)).passed


@pytest.mark.parametrize("how", [{"noise_std": 0.0}, {"noise_std": 0.0, "clip_norm": None}])
def test_runs_without_noise_or_clipping_pass(how):
    found = checked(a_run("dpdl", rounds=2, **how))
    assert found.passed, found.words
    assert ("no made one moves what has a bound" in found.words) == ("clip_norm" in how)


@pytest.mark.parametrize("sizes", [(1, 1, 1), (0, 1, 12)])
def test_few_records_pass(sizes):
    of = a_setting(ring(3))
    shards = [Examples(s.inputs[:n], s.targets[:n]) for s, n in zip(of.shards, sizes, strict=True)]
    run = watch(replace(of, shards=shards), bound_to("dpdl", ring(3)), rounds=2)
    assert checked(run).passed


def test_inputs_that_are_indices_pass():
    net = nn.Sequential(nn.Embedding(20, 3), nn.Flatten(), nn.Linear(12, 2))
    rng = torch.Generator().manual_seed(2)
    shards = [
        Examples(torch.randint(20, (9, 4), generator=rng), torch.randint(2, (9,), generator=rng))
        for _ in range(3)
    ]
    setting = Setting(
        graph=ring(3), model=net, shards=shards, sampling_rate=0.5, device=torch.device("cpu")
    )
    run = watch(setting, bound_to("dpdl", ring(3)), rounds=2)
    assert message_check(run).passed
    assert checked(run).passed


class Counted(NamedTuple):
    x: Agents
    rounds: torch.Tensor


def test_a_state_with_public_tensors_passes():
    def init(round):
        return Counted(round.initial(), torch.zeros(1))

    def step(state, round):
        sums = round.clipped_sums(state.x, batch=round.draw(), clip_norm=1.0)
        sent = sums + round.noise(sums, std=1.0)
        size = 0.1 / (1.0 + float(state.rounds))
        return Counted(round.mix(state.x - size * sent, kind="x"), state.rounds + 1)

    bound = Bound(init=init, step=step, blocks=1)
    found = checked(watch(a_setting(ring(3)), bound, rounds=3, randomness=SecretRandomness(3)))
    assert found.passed, found.words


def test_watched_rounds_need_not_follow_one_another():
    run = a_run("dpdl", rounds=4)
    run.rounds = [run.rounds[i] for i in (0, 1, 3)]
    assert checked(run).passed


def test_a_run_that_touches_no_record_has_nothing_to_look_at():
    def init(round):
        return State(round.initial())

    def step(state, round):
        return State(round.mix(state.x, kind="x"))

    found = checked(watch(a_setting(ring(3)), Bound(init=init, step=step, blocks=1), rounds=1))
    assert found.passed
    assert found.tests == 0


def test_large_networks_have_fewer_records_and_never_fewer_than_one_of_each_kind(monkeypatch):
    run = sound_run("dpdl")
    assert [(one.made, one.others) for one in _passes(run, 15)] == [
        *[(False, False)] * 3,
        (True, False),
        (True, True),
    ]
    monkeypatch.setattr("overhear.attacks.checks.sensitivity._WORK", 1.0)
    assert [(one.made, one.others) for one in _passes(run, 15)] == [
        (False, False),
        (True, False),
        (True, True),
    ]


def test_a_round_that_is_not_its_trace_fails():
    run = a_run("dpdl", rounds=1, form=Form.PUBLISHED)
    run.rounds[1].recorded.noise.pop()
    assert "Not what was traced" in checked(run).words
