"""The catalogue is whole, and every fault changes values as its sentence says."""

import pytest

from overhear.runs.audit import game
from overhear.runs.run_file import build as building
from overhear.training.engine.engine import Engine
from overhear.training.engine.randomness import SecretRandomness
from overhear.training.engine.tensor_round import TensorRound
from overhear.training.gradients.gradients import PairGradients
from overhear.training.tracing.traced_round import TracedRound
from tests.attacks.planted import (
    shown_batches,
    shown_gradients,
    shown_noise,
    shown_shapes,
    shown_values,
)
from tests.attacks.planted.catalogue import CATALOGUE, GROUPS, of_origin
from tests.attacks.planted.planted import NAMED_BY, Origin

SHOWN = {
    **shown_noise.SHOWN,
    **shown_shapes.SHOWN,
    **shown_gradients.SHOWN,
    **shown_batches.SHOWN,
    **shown_values.SHOWN,
}


def test_there_are_16_first_ones_45_from_outside_and_at_least_15_that_nobody_named():
    assert len(of_origin(Origin.FIRST)) == 16
    assert len(of_origin(Origin.OUTSIDE)) == 45
    assert len(of_origin(Origin.HOLDOUT)) >= 15
    assert len(CATALOGUE) == sum(len(of) for of in GROUPS.values())  # names are told apart


def test_every_fault_is_shown():
    assert SHOWN.keys() == CATALOGUE.keys()


@pytest.mark.parametrize("name", list(CATALOGUE))
def test_a_fault_does_what_it_says(name):
    SHOWN[name]()


def _seams() -> list[object]:
    """What faults patch, as it is now."""
    classes = (Engine, PairGradients, SecretRandomness, TensorRound, TracedRound)
    return [dict(vars(of)) for of in classes] + [vars(building).copy(), vars(game).copy()]


@pytest.mark.parametrize("fault", CATALOGUE.values(), ids=lambda of: of.name)
def test_a_fault_patches_something_and_leaves_nothing_behind(fault):
    before = _seams()
    with fault.plant():
        assert _seams() != before
    assert _seams() == before


@pytest.mark.parametrize("fault", CATALOGUE.values(), ids=lambda of: of.name)
def test_a_fault_says_what_names_it_and_how_often(fault):
    assert fault.sentence.endswith(".")
    assert fault.named_by == NAMED_BY[fault.kind] != frozenset()
    assert fault.enough(10) == (9 if fault.statistical else 10)
