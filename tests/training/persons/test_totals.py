"""Several runs cost what their releases cost in one run."""

import math

import pytest

from overhear.privacy import EAVESDROPPER, Statement, Status
from overhear.privacy.accounting.accountant import composed_epsilon
from overhear.privacy.accounting.request import Adjacency
from overhear.privacy.participation import Reach
from overhear.training.exposure.guarantees import run_epsilon
from overhear.training.exposure.sensitivity import JointSensitivity, Release
from overhear.training.persons import total_epsilon

ADD = Statement(delta=1e-5)
REPLACE = Statement(delta=1e-5, adjacency=Adjacency.REPLACE_ONE)


def exposed(*releases: Release) -> JointSensitivity:
    return JointSensitivity(EAVESDROPPER, 0, releases, Status.PROVEN, "a test")


@pytest.mark.parametrize("statement", [ADD, REPLACE])
@pytest.mark.parametrize("contributions", [1, 2])
def test_one_run_costs_what_it_costs(statement, contributions):
    one = exposed(Release(1.0, 0.1, 20, contributions))
    alone = run_epsilon(one, statement=statement, noise_multiplier=2.0)
    assert total_epsilon([(one, 2.0)], statement=statement) == alone


def test_each_run_keeps_its_own_reach():
    added = exposed(Release(1.0, 0.1, 20, 1))
    mean = exposed(Release(2.0, 0.1, 20, 1, reach=Reach.BALL))
    cheap = total_epsilon([(added, 2.0), (added, 2.0)], statement=REPLACE)
    dear = total_epsilon([(mean, 2.0), (mean, 2.0)], statement=REPLACE)
    for runs in ([(added, 2.0), (mean, 2.0)], [(mean, 2.0), (added, 2.0)]):
        assert 1.01 * cheap < total_epsilon(runs, statement=REPLACE) < 0.99 * dear


def test_each_run_keeps_its_own_noise_and_rate():
    first, second = exposed(Release(1.5, 0.1, 20, 1)), exposed(Release(0.5, 0.02, 300, 1))
    found = total_epsilon([(first, 3.0), (second, 1.0)], statement=ADD)
    by_hand = composed_epsilon({(2.0, 0.1): 20, (2.0, 0.02): 300}, delta=1e-5)
    assert found == pytest.approx(by_hand, rel=1e-12)


def test_what_costs_nothing_adds_nothing_and_what_is_bare_is_infinite():
    one, free = exposed(Release(1.0, 0.1, 20, 1)), exposed(Release(0.0, 0.1, 20, 1))
    alone = total_epsilon([(one, 2.0)], statement=ADD)
    assert total_epsilon([(one, 2.0), (free, 0.0)], statement=ADD) == alone
    assert total_epsilon([(free, 0.0)], statement=ADD) == 0.0
    assert total_epsilon([(one, 2.0), (one, 0.0)], statement=ADD) == math.inf
    bare = exposed(Release(math.inf, 0.1, 1, 1))
    assert total_epsilon([(bare, 2.0), (one, 2.0)], statement=ADD) == math.inf
    with pytest.raises(ValueError, match="joint_sensitivity=nan"):
        total_epsilon([(exposed(Release(math.nan, 0.1, 1, 1)), 2.0)], statement=ADD)
