"""Checks of a run that draws and clips by user: a sound one passes, each fault is found."""

from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
import torch

from overhear.attacks.checks.checks import message_check
from overhear.attacks.checks.sampler import sampler_check
from overhear.attacks.checks.sensitivity import sensitivity_check
from overhear.attacks.checks.watched_run import watch
from overhear.privacy.batches.sampling import Per
from overhear.training.algorithms import ALGORITHMS
from overhear.training.engine.engine import Engine
from overhear.training.engine.randomness import SecretRandomness
from overhear.training.gradients.whole_vectors import ByUser
from overhear.training.graphs.topologies import ring
from tests.attacks.checks.watched import a_setting
from tests.training.contract import bound_to

WHOSE = [torch.arange(12) // 3] * 5


def a_run():
    known, graph = ALGORITHMS["dp-dpsgd"], ring(5)
    bound = bound_to(known, graph, settings=known.settings(clip_per=Per.USER), rounds=3)
    setting = replace(a_setting(graph, rate=0.4), users=WHOSE)
    return watch(setting, bound, rounds=3, randomness=SecretRandomness(7))


def sensitivity(run):
    return sensitivity_check(run, records=15, generator=np.random.default_rng(1))


CHECKS = {"messages": message_check, "sampler": sampler_check, "sensitivity": sensitivity}


def passed(run):
    return {name for name, check in CHECKS.items() if check(run).passed}


def unclipped():
    sound = ByUser.clipped_sums

    def sums(self, models, pairs, batches, *, clip_norm, **how):
        return sound(self, models, pairs, batches, clip_norm=None, **how)

    return patch.object(ByUser, "clipped_sums", sums)


def by_record():
    def sums(self, models, pairs, batches, **how):
        return self._gradients.clipped_sums(models, pairs, batches, **how)

    return patch.object(ByUser, "clipped_sums", sums)


def drawn_by_record():
    sound = Engine.draw_batch

    def draw(self, *, per=Per.RECORD, **how):
        return sound(self, **how)

    return patch.object(Engine, "draw_batch", draw)


def first_user_always():
    sound = Engine.draw_batch

    def draw(self, **how):
        return torch.cat([torch.arange(3), sound(self, **how)]).unique()

    return patch.object(Engine, "draw_batch", draw)


def test_a_sound_run_passes():
    found = {name: check(a_run()) for name, check in CHECKS.items()}
    assert all(one.passed for one in found.values()), [one.words for one in found.values()]
    # A record may turn the sum of its user round: 1 of its bound is twice the clip norm.
    assert "of its bound" in found["sensitivity"].words


@pytest.mark.parametrize(
    ("fault", "by"),
    [
        (unclipped, "sensitivity"),
        (unclipped, "messages"),
        (by_record, "messages"),
        (drawn_by_record, "sampler"),
        (first_user_always, "sampler"),
    ],
    ids=["unclipped", "unclipped-2", "clipped-by-record", "drawn-by-record", "always-in"],
)
def test_a_fault_is_found(fault, by):
    with fault():
        assert not CHECKS[by](a_run()).passed
