"""Clipping in the run's own layout, of gradients from half a clip norm to a thousand."""

from dataclasses import replace
from unittest.mock import patch

import pytest
import torch

from overhear.attacks.audit.game import layout_check
from overhear.training.gradients import clipping
from overhear.training.graphs.topologies import ring
from tests.training import contract

SETTING = contract.setting(ring(5))
LAYOUTS = ["auto", "loop", "vmap", "grouped", "book-keeping"]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_clips_at_every_norm(layout):
    found = layout_check(replace(SETTING, layout=layout))
    assert found.passed, found.words
    assert (found.p, found.tests) == (None, 24 * 32)


def test_single_precision_is_looked_at_twice():
    found = layout_check(replace(SETTING, dtype=torch.float32))
    assert found.passed, found.words
    assert found.tests == 2 * 24 * 32


def test_tasks_of_two_blocks_are_clipped_jointly():
    found = layout_check(contract.setting(ring(5), min_max=True))
    assert found.passed, found.words


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("low", "high", "times"), [(20.0, 90.0, 1.5), (500.0, 2000.0, 1.5), (0.0, 1.0, 0.5)]
)
def test_a_factor_that_is_wrong_between_two_norms_is_found(layout, low, high, times):
    sound = clipping.clip_factors

    def wrong(squares, clip_norm, **how):
        ratio = squares.sqrt() / clip_norm
        by = torch.where((ratio > low) & (ratio < high), times, 1.0)
        return by * sound(squares, clip_norm, **how)

    with patch.object(clipping, "clip_factors", wrong):
        found = layout_check(replace(SETTING, layout=layout))
    assert not found.passed
    assert "is off by" in found.words
