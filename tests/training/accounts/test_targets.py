"""The noise for a target of membership inference is enough, and hardly more than that."""

import math

import pytest
from scipy.stats import norm

from overhear.privacy import EAVESDROPPER, Status
from overhear.privacy.errors import InputError, InputTypeError, UnsupportedView
from overhear.privacy.guarantee import Statement
from overhear.privacy.target import Goal
from overhear.training import account
from overhear.training.accounts.summary import multiplier_for, reached
from overhear.training.exposure.sensitivity import JointSensitivity, Release

SAID = Statement(delta=1e-5)


def one(*releases: Release, status: Status = Status.PROVEN) -> JointSensitivity:
    return JointSensitivity(EAVESDROPPER, 0, releases, status, "a test")


SAMPLED = one(Release(1.0, 0.02, 1000, 1))
FULL = one(Release(1.5, 1.0, 4, 1))


@pytest.mark.parametrize(
    ("goal", "multiplier"),
    [(Goal(advantage=0.1), 2.6056), (Goal(tpr=0.2, fpr=0.01), 0.7131), (Goal(epsilon=1.33), 2.0)],
    ids=lambda value: value.words if isinstance(value, Goal) else "",
)
def test_the_noise_for_a_target(goal, multiplier):
    found = multiplier_for(SAMPLED, statement=SAID, goal=goal)
    assert found == pytest.approx(multiplier, abs=1e-3 if goal.epsilon else 6e-5)
    at = {"statement": SAID, "goal": goal}
    assert reached(SAMPLED, noise_multiplier=found, **at) <= goal.figure
    assert reached(SAMPLED, noise_multiplier=0.999 * found, **at) > goal.figure


def test_a_record_in_every_batch_has_the_closed_form():
    # Four rounds at J 1.5 are mu = 3 / z, advantage 2 Phi(mu / 2) - 1, TPR Phi(Phi^-1(f) + mu).
    z = multiplier_for(FULL, statement=SAID, goal=Goal(advantage=0.25))
    assert z == pytest.approx(3.0 / (2.0 * norm.ppf(0.625)), rel=1e-5)
    z = multiplier_for(FULL, statement=SAID, goal=Goal(tpr=0.3, fpr=0.05))
    assert z == pytest.approx(3.0 / (norm.ppf(0.3) - norm.ppf(0.05)), rel=1e-3)


def test_an_effective_multiplier_and_rounds_that_differ_scale_together():
    alone = multiplier_for(SAMPLED, statement=SAID, goal=Goal(advantage=0.1))
    louder = one(Release(2.0, 0.02, 1000, 1))
    twice = multiplier_for(louder, statement=SAID, goal=Goal(advantage=0.1))
    assert twice == pytest.approx(2.0 * alone, rel=1e-5)
    parts = one(Release(1.0, 0.02, 400, 1), Release(1.0, 0.02, 600, 1, 401))
    split = multiplier_for(parts, statement=SAID, goal=Goal(advantage=0.1))
    assert split == pytest.approx(alone, rel=1e-5)


def test_what_no_noise_reaches_or_no_noise_is_needed_for_is_refused():
    goal = Goal(advantage=0.1)
    leaks = one(Release(math.inf, 0.02, 10, 1), status=Status.NO_PROTECTION)
    with pytest.raises(UnsupportedView, match=r"no noise multiplier reaches advantage 0.1"):
        multiplier_for(leaks, statement=SAID, goal=goal)
    with pytest.raises(UnsupportedView, match="nothing about the data is released"):
        multiplier_for(one(), statement=SAID, goal=goal)
    rare = one(Release(1.0, 0.001, 3, 1))
    with pytest.raises(UnsupportedView, match=r"advantage 0.1 .* is met without any noise"):
        multiplier_for(rare, statement=SAID, goal=goal)
    rdp = Statement(delta=1e-5, accountant="rdp")
    with pytest.raises(InputError, match="is met by accountant='pld' alone, not 'rdp'"):
        multiplier_for(SAMPLED, statement=rdp, goal=goal)
    assert reached(leaks, statement=SAID, noise_multiplier=2.0, goal=goal) == 1.0
    assert reached(SAMPLED, statement=SAID, noise_multiplier=0.0, goal=goal) == 1.0
    assert reached(one(), statement=SAID, noise_multiplier=2.0, goal=goal) == 0.0
    blind = Goal(tpr=0.2, fpr=0.01)
    assert reached(one(), statement=SAID, noise_multiplier=2.0, goal=blind) == 0.01


def test_fewer_rounds_reach_less():
    at = {"statement": SAID, "noise_multiplier": 2.0, "goal": Goal(advantage=0.1)}
    found = [reached(SAMPLED, rounds=rounds, **at) for rounds in (0, 10, 100, 1000)]
    assert found == sorted(found)
    assert found[0] == 0.0


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "give epsilon, advantage or tpr, exactly one of them; none given"),
        ({"epsilon": 1.0, "advantage": 0.1}, "epsilon and advantage given"),
        ({"tpr": 0.2}, "tpr=0.2 needs fpr beside it"),
        ({"fpr": 0.2, "advantage": 0.1}, "fpr=0.2 needs tpr beside it"),
        ({"advantage": 0.0}, "advantage=0.0 must lie strictly between 0 and 1"),
        ({"advantage": math.nan}, "advantage=nan must lie strictly between 0 and 1"),
        ({"advantage": 1.0}, "advantage=1.0 must lie strictly between 0 and 1"),
        ({"tpr": 0.01, "fpr": 0.01}, "tpr above fpr"),
        ({"tpr": 1.0, "fpr": 0.01}, "both must lie strictly between 0 and 1"),
        ({"advantage": "0.1"}, "advantage='0.1'"),
        ({"advantage": True}, "advantage=True"),
        ({"epsilon": -1.0}, "epsilon=-1.0 must be at least 1e-12"),
    ],
    ids=str,
)
def test_a_target_that_is_none_is_refused(given, said):
    with pytest.raises((InputError, InputTypeError), match=said):
        Goal(**given)


def test_an_account_meets_the_target_for_its_adversary():
    setting = {"graph": "ring:6", "rounds": 40, "sampling_rate": 0.1, "delta": 1e-5}
    known = account("dpdl", adversary="neighbour", tpr=0.1, fpr=0.01, **setting)
    assert known.reached == pytest.approx(0.1, rel=1e-4)
    assert known.reached <= 0.1
    again = account("dpdl", noise_multiplier=known.noise_multiplier, **setting)
    assert again["neighbour"].epsilon == pytest.approx(known["neighbour"].epsilon, rel=1e-9)
    assert known.to_json()["target"] == {
        "epsilon": None,
        "delta": 1e-5,
        "adversary": "neighbour",
        "tpr": 0.1,
        "fpr": 0.01,
        "reached": known.reached,
    }
    assert "for TPR 0.1 at FPR 0.01 against neighbour" in repr(known)
    with pytest.raises(InputError, match=r"fpr=0.1 has no effect without tpr"):
        account("dpdl", noise_multiplier=1.0, fpr=0.1, **setting)
    with pytest.raises(InputError, match=r"advantage 0.1 is met by accountant='pld' alone"):
        account("dpdl", advantage=0.1, accountant="prv", **setting)
