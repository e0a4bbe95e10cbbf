"""Planted bugs do what they say, go when their context closes, and one check finds each of them."""

import pytest
import torch

from overhear.attacks.checks.checks import engine_checks
from overhear.training.engine.randomness import SecretRandomness
from overhear.training.graphs.topologies import ring
from tests.attacks.checks.watched import a_run, a_setting
from tests.attacks.planted.catalogue import PATCHES
from tests.training.contract import bound_to

FOUND_BY = {
    "noise halved": "residuals", "noise halved on one release": "residuals",
    "seed reused for two releases": "residuals", "seed reused for two calls": "residuals",
    "seed reused for two rounds": "residuals", "clean self-gradient": "messages",
    "clipping after averaging": "messages", "mean by the realised size": "messages",
    "shuffled batches": "sampler", "fixed batches": "sampler",
    "one link without noise": "residuals", "noise repeated in a row": "residuals",
    "noise of two values": "residuals", "seed known to more than declared": "knowledge",
}  # fmt: skip
SHOWN_ON = {
    "seed reused for two calls": "dp-netfleet",
    "seed known to more than declared": "whisper",
}


def test_every_bug_has_its_check():
    assert FOUND_BY.keys() == PATCHES.keys()


def all_checks(name: str):
    bound = bound_to(name, ring(5), rounds=3)
    checks = engine_checks(a_setting(ring(5)), bound, rounds=3, randomness=SecretRandomness(7))
    return {check.name: check for check in checks}


def test_the_checks_come_in_their_order_and_a_sound_engine_passes():
    found = all_checks("dpdl")
    order = "messages residuals streams secrecy sampler knowledge functions values records"
    assert list(found) == [*order.split(), "sensitivity"]
    assert all(check.passed for check in found.values())


@pytest.mark.some_quick(1)
@pytest.mark.parametrize("bug", list(PATCHES))
def test_its_check_finds_it(bug):
    with PATCHES[bug].plant():
        found = all_checks(SHOWN_ON.get(bug, "dpdl"))
    assert not found[FOUND_BY[bug]].passed, found[FOUND_BY[bug]].words


@pytest.mark.slow
@pytest.mark.parametrize("name", SHOWN_ON.values())
def test_nothing_is_left_of_bugs_that_are_gone(name):
    for bug in PATCHES.values():
        with bug.plant():
            pass
    assert all(check.passed for check in all_checks(name).values())


def test_a_bug_of_the_noise_leaves_the_batches_alone():
    with PATCHES["noise halved"].plant():
        wrong = a_run("dp-dpsgd", rounds=1)
    sound = a_run("dp-dpsgd", rounds=1)
    pairs = zip(
        wrong.rounds[1].recorded.batches[0], sound.rounds[1].recorded.batches[0], strict=True
    )
    assert all(torch.equal(a, b) for a, b in pairs)
