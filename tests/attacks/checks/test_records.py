"""A record is in a batch once, and in the store as often as in its source."""

from dataclasses import replace

import pytest
import torch

from overhear.attacks.checks.checks import message_check, record_check
from overhear.attacks.checks.sampler import sampler_check
from overhear.attacks.checks.watched_run import watch
from overhear.training.data.store import Examples
from overhear.training.graphs.topologies import ring
from tests.attacks.checks.sensitivity_faults import FAULTS
from tests.attacks.checks.watched import a_run, a_setting, sound_run
from tests.training.contract import bound_to


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


def test_the_padded_batch_and_its_record_are_named():
    with FAULTS["padded_by_the_draw"]():
        words = record_check(a_run("dp-dpsgd", rate=0.3)).words
    assert "batch 0 of agent 0 in round 1 holds record" in words


def test_the_sampler_says_why_too():
    with FAULTS["padded_by_the_draw"]():
        found = sampler_check(a_run("dp-dpsgd", rate=0.3))
    assert found.p == 0.0


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
