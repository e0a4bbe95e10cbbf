"""Records with the largest gradients are among those that are changed; made ones span sizes."""

import numpy as np
import torch

from overhear.attacks.checks.chosen_records import choose_records
from overhear.attacks.checks.reference_sums import Oracle
from tests.attacks.checks.watched import sound_run


def chosen(each=4, made=20):
    run = sound_run("dp-dpsgd")
    return run, choose_records(run, each=each, made=made, generator=np.random.default_rng(0))


def norms(run, agent, records):
    call = run.rounds[1].recorded.calls[0]
    return Oracle(run.setting.model).norms(call.models[:, agent], *records)


def test_half_of_the_real_ones_have_the_largest_gradients():
    run, found = chosen()
    for agent, shard in enumerate(run.setting.shards):
        largest = norms(run, agent, shard).argsort(descending=True)[:2].tolist()
        assert found.real[agent][:2] == largest
        assert len(set(found.real[agent])) == 4


def test_made_ones_run_from_half_the_bound_to_a_thousand_times_of_it():
    run, found = chosen()
    lengths = torch.cat([norms(run, 0, record) for record in found.made[0]]) / 0.2
    assert float(lengths.min()) < 2.0
    assert float(lengths.max()) > 400.0
    assert found.reach is not None
    assert found.reach[0] < 2.0 < 400.0 < found.reach[1]


def test_near_ones_are_about_as_long_as_the_bound():
    run, found = chosen()
    lengths = torch.cat([norms(run, 0, record) for record in found.near[0]]) / 0.2
    assert bool(((lengths > 0.6) & (lengths < 1.8)).float().mean() > 0.8)


def test_shards_hold_as_many_records_as_before():
    run, found = chosen()
    for shard, other in zip(run.setting.shards, found.shards, strict=True):
        assert other.inputs.shape == shard.inputs.shape


def test_what_is_chosen_keeps_none_of_what_it_was_chosen_among():
    _, found = chosen()
    one = found.made[0][0].inputs
    assert one.untyped_storage().nbytes() == one.nbytes
