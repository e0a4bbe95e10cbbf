"""Figures of runs in which agents are absent by a public list."""

import numpy as np
import pytest

from overhear.privacy import EAVESDROPPER, Statement
from overhear.privacy.accounting.accountant import composed_epsilon, epsilon
from overhear.privacy.errors import InputError
from overhear.privacy.guarantee import Status
from overhear.training.accounts.account import account
from overhear.training.algorithms.decor import prepare
from overhear.training.exposure.events import accounted
from overhear.training.exposure.guarantees import run_epsilon
from overhear.training.exposure.sensitivity import JointSensitivity, Release, bound_of, worst
from overhear.training.graphs.topologies import build_graph

RUN = {"rounds": 6, "sampling_rate": 0.1, "delta": 1e-5, "noise_multiplier": 1.5}
LIST = np.array(
    [
        [1, 1, 1, 0, 1],
        [1, 1, 0, 0, 1],
        [0, 1, 1, 0, 1],
        [1, 1, 1, 1, 1],
        [0, 1, 0, 0, 0],
        [1, 0, 0, 1, 0],
    ]
)


def _account(name, active=LIST, *, graph="ring:5", adversaries=("eavesdropper",), **more):
    return account(name, graph=graph, active=active, adversaries=list(adversaries), **RUN | more)


def _rounds(count):
    return epsilon(noise_multiplier=1.5, delta=1e-5, rounds=count, sampling_rate=0.1)


def test_a_record_is_at_risk_in_the_rounds_of_its_agent_alone():
    found = _account("dp-dpsgd")
    assert found["eavesdropper"].victim == 1  # in 5 of 6 rounds, more than any other
    assert found["eavesdropper"].epsilon == pytest.approx(_rounds(5), rel=1e-9)
    of_each = found.epsilon_by_agent()["eavesdropper"]
    counts = LIST.sum(axis=0)
    assert of_each == pytest.approx([_rounds(int(n)) for n in counts], rel=1e-9)


@pytest.mark.parametrize("name", ["dp-dpsgd", "dpdl", "decor", "dp-netfleet", "dm-hsgd", "dyn-d2p"])
def test_no_absent_agent_changes_no_figure(name):
    more = {"noise_multiplier": 0} if name == "dm-hsgd" else {}
    more |= {"records": 100.0} if name == "dm-hsgd" else {}
    plain = account(name, graph="ring:5", adversaries=["eavesdropper", "neighbour"], **RUN | more)
    listed = _account(name, np.ones((6, 5)), adversaries=("eavesdropper", "neighbour"), **more)
    for who in plain:
        assert listed[who].epsilon == plain[who].epsilon, who


def test_cross_gradients_are_counted_over_the_neighbours_that_are_there():
    found = _account("dpdl", graph="full:5", victim=1)
    joint = [r.joint_sensitivity for r in found.joint_sensitivities["eavesdropper"].releases]
    there = LIST.sum(axis=1)
    assert np.square(joint) == pytest.approx(np.where(LIST[:, 1], there, 0), rel=1e-6)


def test_shared_noise_of_a_missing_partner_does_not_cancel():
    # Independently: what is left of the covariance is that of the agents that send.
    F = prepare(graph=build_graph("ring", 5), rounds=6, correlation=2.0, horizon=None)[
        "shared"
    ].factor
    R = F.numpy() @ F.numpy().T
    for victim in range(5):
        found = _account("decor", victim=victim, correlation=2.0)
        joint = [r.joint_sensitivity for r in found.joint_sensitivities["eavesdropper"].releases]
        wanted = []
        for row in LIST.astype(bool):
            there = np.flatnonzero(row)
            inverse = np.linalg.inv(R[np.ix_(there, there)])
            at = np.flatnonzero(there == victim)
            wanted.append(float(np.sqrt(inverse[at[0], at[0]])) if len(at) else 0.0)
        assert joint == pytest.approx(wanted, rel=1e-6)


def test_the_mean_of_those_that_take_part_has_noise_for_their_number():
    found = _account("cdp-dsgd", victim=1)
    joint = [r.joint_sensitivity for r in found.joint_sensitivities["eavesdropper"].releases]
    assert joint == pytest.approx(LIST[:, 1].tolist(), abs=1e-9)


def test_a_part_of_the_rounds_costs_what_the_worst_record_lost_in_them():
    # Agent 3 takes part in round 4 and 6 alone, agent 1 in the first five.
    found = _account("dp-dpsgd")
    for rounds in range(1, 7):
        most = int(LIST[:rounds].sum(axis=0).max())
        assert found.epsilon("eavesdropper", rounds=rounds) == pytest.approx(_rounds(most))


def test_a_round_that_is_released_again_counts_for_whoever_takes_part_in_it():
    # Records of agents 0 and 1 take part in two rounds each; which one is repeated matters to one.
    active = np.array([[1, 0, 1], [1, 0, 1], [0, 1, 1], [0, 1, 1]])[:, :2]
    active = np.column_stack([active, [0, 0, 0, 0]])
    found = account(
        "dp-dpsgd", graph="ring:3", active=active, adversaries=["eavesdropper"],
        **RUN | {"rounds": 4},
    )  # fmt: skip
    of = found.joint_sensitivities["eavesdropper"]
    for again in (1, 2, 3, 4):
        spent = accounted(of, [0, 1, 2, 3, 4, again])
        lost = run_epsilon(spent, statement=Statement(delta=1e-5), noise_multiplier=1.5)
        assert _rounds(3) - 1e-9 <= lost <= _rounds(4), again
        reading = run_epsilon(
            of, statement=Statement(delta=1e-5), noise_multiplier=1.5, rounds=[1, 2, 3, 4, again]
        )
        assert _rounds(3) - 1e-9 <= reading <= _rounds(4), again


def test_the_bound_of_several_records_is_no_smaller_than_that_of_any():
    rng = np.random.default_rng(5)
    for _ in range(20):
        joint = rng.choice([0.0, 1.0, 1.5, 2.0], size=(4, 7))
        each = [tuple(Release(j, 0.1, 1, 1, t + 1) for t, j in enumerate(row)) for row in joint]
        stated = [
            JointSensitivity(EAVESDROPPER, v, of, Status.PROVEN, "") for v, of in enumerate(each)
        ]
        bound = worst(stated, absent=True)
        held = np.sort([r.joint_sensitivity for r in bound.releases])
        assert (held >= np.sort(joint, axis=1)).all()
        assert (held == np.sort(joint, axis=1).max(axis=0)).all()
        assert [r.first for r in bound.releases] == list(range(1, 8))
        costs = [
            composed_epsilon([(1.5 / j, 0.1) for j in row if j] or [(1.0, 0.0)], delta=1e-5)
            for row in joint
        ]
        of_bound = [(1.5 / j, 0.1) for j in held if j] or [(1.0, 0.0)]
        assert composed_epsilon(of_bound, delta=1e-5) >= max(costs) - 1e-9


def test_the_bound_keeps_rounds_apart_that_are_drawn_otherwise():
    one = (Release(2.0, 0.1, 1, 1, 1), Release(0.0, 0.5, 1, 1, 2))
    two = (Release(0.0, 0.1, 1, 1, 1), Release(1.0, 0.5, 1, 1, 2))
    assert [r.joint_sensitivity for r in bound_of([one, two])] == [2.0, 1.0]


def test_published_dpdl_stays_heuristic_and_nobody_taking_part_costs_nothing():
    active = np.array([[0] * 5] * 5 + [[1, 1, 0, 0, 0]])
    found = _account("dpdl", active, form="published", alpha=1.0)
    assert found["eavesdropper"].status is Status.HEURISTIC
    nobody = _account("dp-dpsgd", np.zeros((6, 5)))
    assert nobody["eavesdropper"].epsilon == 0


@pytest.mark.parametrize("active", [np.ones((5, 5)), np.ones((6, 4)), "half", 0.5, [[1] * 5] * 7])
def test_a_list_of_other_rounds_or_agents_is_refused(active):
    with pytest.raises(InputError, match="list of who takes part"):
        _account("dp-dpsgd", active)


def test_graphs_that_lose_a_sum_are_refused_for_who_needs_it():
    with pytest.raises(InputError, match="only the columns"):
        _account("dp-dpsgd", graph="directed-ring:5")
    assert _account("dyn-d2p", graph="directed-ring:5")["eavesdropper"].epsilon > 0
