"""What a release costs by how far a record reaches in it."""

import functools
from typing import NamedTuple

import pytest

from overhear.privacy import EAVESDROPPER, Statement, Status
from overhear.privacy.accounting.other_accountants import Bound
from overhear.privacy.participation import Reach
from overhear.training.exposure.guarantees import guarantee, run_epsilon
from overhear.training.exposure.joint_sensitivities import joint_sensitivities
from overhear.training.exposure.sensitivity import JointSensitivity, Release, UnsupportedMechanism
from overhear.training.graphs.topologies import ring
from overhear.training.step.handles import Agents
from overhear.training.step.round import Round
from overhear.training.tracing.trace import trace

STATEMENT = Statement(delta=1e-5)


def test_each_release_is_told_apart_by_its_own_reach():
    def of(*releases):
        every = JointSensitivity(EAVESDROPPER, 0, releases, Status.PROVEN, "a test")
        statement = Statement(delta=1e-5, adjacency="replace-one")
        return guarantee("eavesdropper", every, noise_multiplier=3.0, statement=statement)

    added = Release(1.0, 0.02, 500, 1, 1)
    mean = Release(2.0, 0.02, 500, 1, 501, Reach.BALL)
    assert of(added).bound is Bound.PLD
    assert of(added, mean).bound is Bound.PROFILE
    # A mean is dearer than a sum of its norm and cheaper than one of twice that.
    sums = of(added, mean._replace(reach=Reach.SUM)).epsilon
    ones = of(added, mean._replace(reach=Reach.SUM, joint_sensitivity=1.0)).epsilon
    assert ones < of(added, mean).epsilon < sums


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
def test_a_mean_that_a_record_is_added_to_is_a_sum_of_its_diameter(accountant):
    statement = Statement(delta=1e-5, accountant=accountant)
    sums, means = (
        JointSensitivity(
            EAVESDROPPER, 0, (Release(2.0, 0.02, 500, 1, 1, reach),), Status.PROVEN, "a test"
        )
        for reach in (Reach.SUM, Reach.BALL)
    )
    asked = {"statement": statement, "noise_multiplier": 3.0}
    assert run_epsilon(means, **asked) == run_epsilon(sums, **asked)


@pytest.mark.parametrize(
    ("release", "adjacency", "records", "expected"),
    [
        (Release(2.0, 0.02, 1000, 1, 1, Reach.BALL), "replace-one", 1, 4.723421),
        (Release(2.0, 0.02, 1000, 1, 1, Reach.BALL), "zero-out", 1, 4.723421),
        (Release(2.0, 0.02, 1000, 1, 1, Reach.BALL), "add-or-remove-one", 1, 3.899),
        (Release(1.0, 0.02, 1000, 1), "replace-one", 1, 2.603),
        (Release(1.0, 0.02, 1000, 1), "add-or-remove-one", 3, 4.5969),
        (Release(1.0, 0.02, 1000, 1), "replace-one", 3, 9.352),
        # Three records move one clipped mean as one does that is drawn 1 - .98^3 of the time.
        (Release(2.0, 0.02, 1000, 1, 1, Reach.BALL), "add-or-remove-one", 3, 13.2855),
    ],
)
def test_a_release_costs_what_its_reach_and_its_person_make_of_it(
    release, adjacency, records, expected
):
    every = JointSensitivity(EAVESDROPPER, 0, (release,), Status.PROVEN, "a test")
    statement = Statement(delta=1e-5, adjacency=adjacency)
    spent = run_epsilon(every, statement=statement, noise_multiplier=2.0, records=records)
    assert spent == pytest.approx(expected, rel=3e-4)


def test_a_clipped_mean_reaches_twice_its_norm_and_a_clipped_sum_once():
    class State(NamedTuple):
        x: Agents

    def init(round: Round) -> State:
        return State(round.initial())

    def step(state: State, round: Round, *, mean: bool) -> State:
        batch = round.draw()
        how = {"batch": batch, "clip_norm": 0.5}
        if mean:
            clipped = round.clipped_mean(state.x, batch_size=3.0, **how)
        else:
            clipped = round.clipped_sums(state.x, **how)
        return State(round.mix(state.x - clipped + round.noise(clipped, std=1.0), kind="model"))

    for mean, joint in ((True, 1.0), (False, 0.5)):
        traced = trace(
            init, functools.partial(step, mean=mean), graph=ring(5), rounds=3, noise_multiplier=1.0
        )
        ((_, found),) = joint_sensitivities(traced, ["eavesdropper"], sampling_rate=0.1)
        assert found.largest == pytest.approx(joint, rel=1e-12)
        assert found.releases[0].reach is (Reach.BALL if mean else Reach.SUM)


def test_means_of_two_batches_that_interleave_have_no_bound_when_a_record_is_replaced():
    release = Release(2.0, 0.02, 500, 2, 1, Reach.BALL, interleaved=True)
    every = JointSensitivity(EAVESDROPPER, 0, (release,), Status.PROVEN, "a test")
    asked = {"noise_multiplier": 3.0}
    for adjacency in ("replace-one", "zero-out"):
        with pytest.raises(UnsupportedMechanism, match="interleaves with another batch"):
            run_epsilon(every, statement=Statement(delta=1e-5, adjacency=adjacency), **asked)
    assert run_epsilon(every, statement=STATEMENT, **asked) > 0
    full = every._replace(releases=(release._replace(sampling_rate=1.0),))
    assert run_epsilon(full, statement=Statement(delta=1e-5, adjacency="replace-one"), **asked) > 0
