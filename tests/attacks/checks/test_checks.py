import pytest

from overhear.attacks.checks.checks import engine_checks
from overhear.training.engine.randomness import SecretRandomness
from overhear.training.graphs.topologies import ring
from tests.attacks.planted.catalogue import PATCHES
from tests.training import contract

NAMES = [
    "messages",
    "residuals",
    "streams",
    "secrecy",
    "sampler",
    "knowledge",
    "functions",
    "values",
    "records",
    "sensitivity",
]


def _checks(name: str = "dpdl"):
    graph = ring(5)
    return engine_checks(
        contract.setting(graph),
        contract.bound_to(name, graph),
        rounds=3,
        randomness=SecretRandomness(9),
    )


def test_the_checks_come_in_their_order_and_a_sound_engine_passes():
    found = _checks()
    assert [one.name for one in found] == NAMES
    assert all(one.passed for one in found)


@pytest.mark.some_quick(1)
@pytest.mark.parametrize(
    ("bug", "check"),
    [
        ("one link without noise", "residuals"),
        ("mean by the realised size", "messages"),
        ("shuffled batches", "sampler"),
    ],
)
def test_a_bug_fails_its_own_check(bug, check):
    with PATCHES[bug].plant():
        found = {one.name: one.passed for one in _checks()}
    assert not found[check]
