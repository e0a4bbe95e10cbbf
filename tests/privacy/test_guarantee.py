"""Guarantee: a statement is complete and its figures are figures."""

import dataclasses
import math

import pytest

from overhear.privacy import Guarantee, Sampling, Status, Unit

GOOD = Guarantee(
    adversary="eavesdropper",
    victim=0,
    joint_sensitivity=1.0,
    effective_noise_multiplier=2.0,
    mu_per_round=0.5,
    epsilon=math.inf,
    delta=1e-5,
    unit=Unit.RECORD,
    adjacency="add-or-remove-one",
    sampling=Sampling.POISSON,
    status=Status.PROVEN,
    because="a test",
)


@pytest.mark.parametrize("field", ["epsilon", "joint_sensitivity", "mu_per_round"])
@pytest.mark.parametrize("value", [-1.0, math.nan])
def test_a_negative_or_undefined_figure_is_refused(field, value):
    with pytest.raises(ValueError, match=field):
        dataclasses.replace(GOOD, **{field: value})


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-5])
def test_delta_outside_the_unit_interval_is_refused(delta):
    with pytest.raises(ValueError, match="delta"):
        dataclasses.replace(GOOD, delta=delta)
