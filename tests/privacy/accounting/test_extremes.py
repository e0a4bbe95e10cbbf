"""Epsilons of 1e-12 and of 1e6, against 50 digits of arithmetic, and refusals that help."""

import contextlib
import math
import os
import re

import pytest
from mpmath import erfc, exp, expm1, log, mp, mpf, sqrt

from overhear import budget
from overhear.privacy import composed_epsilon, delta, epsilon, noise_multiplier, second_opinion
from overhear.privacy.accounting.gaussian import LEAST_EPSILON, delta_from_mu, epsilon_from_mu
from overhear.privacy.accounting.limits import max_rounds, max_sampling_rate, scale_for
from overhear.privacy.accounting.request import Accountant
from overhear.privacy.errors import InputError
from overhear.privacy.participation import Event, Reach, poisson
from overhear.privacy.target import Goal


def above(x):
    return erfc(x / sqrt(2)) / 2


def exact_delta(multiplier, rate, nats, *, replace=False):
    """Of one sampled round in the worse order, in closed form."""
    d, q, e = 1 / mpf(multiplier), mpf(rate), mpf(nats)
    if replace:  # the ratio rises, and its threshold is a root of a quadratic in e^(d x)
        a, c = exp(e), exp(-d * d / 2)
        root = (1 - q) * expm1(e) + sqrt(((1 - q) * expm1(e)) ** 2 + 4 * q * q * c * c * a)
        x = log(root / (2 * q * c)) / d
        moved = q * above(x - d) + (1 - q) * above(x)
        return moved - a * (q * above(x + d) + (1 - q) * above(x))
    x = (log((expm1(e) + q) / q) + d * d / 2) / d
    removed = q * (above(x - d) - above(x)) - expm1(e) * above(x)
    less = -expm1(-e)
    if q <= less:
        return removed
    x = -(log((q - less) / q) + d * d / 2) / d
    added = above(x) - exp(e) * ((1 - q) * above(x) + q * above(x + d))
    return max(removed, added)


@pytest.fixture(autouse=True)
def _digits():
    with mp.workdps(50):
        yield


# (multiplier, rate, delta): the first two read 2.3e-2 and 5e-4 of themselves too little.
TINY = [
    (100.0, 1e-12, 1e-15), (1000.0, 1e-9, 1e-13), (5.0, 1e-12, 1e-30), (1000.0, 1e-10, 1e-300),
    (1e4, 1e-8, 1e-18), (1e6, 1e-4, 1e-300), (5.0, 1e-6, 1e-9),
]  # fmt: skip


@pytest.mark.parametrize(("multiplier", "rate", "dlt"), TINY)
@pytest.mark.parametrize("adjacency", ["add-or-remove-one", "replace-one"])
def test_no_tiny_epsilon_of_a_round_is_too_small(multiplier, rate, dlt, adjacency):
    # Delta at what is stated, times what its slack upwards leaves, is at most the delta asked for.
    stated = epsilon(
        noise_multiplier=multiplier, sampling_rate=rate, rounds=1, delta=dlt, adjacency=adjacency
    )
    replace = adjacency == "replace-one"
    assert stated >= LEAST_EPSILON
    assert exact_delta(multiplier, rate, stated, replace=replace) <= mpf(dlt) * (1 + mpf(10) ** -9)
    if stated > LEAST_EPSILON:  # and it is no more than a percent above the truth
        assert exact_delta(multiplier, rate, 0.99 * stated, replace=replace) > dlt


@pytest.mark.parametrize("multiplier", [1e-4, 7e-4, 9e-3])
@pytest.mark.parametrize("rate", [1e-6, 0.1])
@pytest.mark.parametrize("adjacency", ["add-or-remove-one", "replace-one"])
def test_no_huge_epsilon_of_a_round_is_too_small(multiplier, rate, adjacency):
    stated = epsilon(
        noise_multiplier=multiplier, sampling_rate=rate, rounds=1, delta=1e-8, adjacency=adjacency
    )
    replace = adjacency == "replace-one"
    found = exact_delta(multiplier, rate, stated, replace=replace)
    assert found <= mpf("1e-8") * (1 + mpf(10) ** -9)
    assert exact_delta(multiplier, rate, 0.98 * stated, replace=replace) > mpf("1e-8")


@pytest.mark.parametrize(("target", "needed"), [(1e5, 0.0038931), (1e6, 0.0012268)])
def test_the_noise_of_a_huge_epsilon_is_found_by_the_epsilon_that_is_stated(target, needed):
    how = {"delta": 1e-5, "rounds": 3, "sampling_rate": 0.1}
    found = noise_multiplier(epsilon=target, **how)
    assert found == pytest.approx(needed, rel=1e-4)
    assert 0.99999 * target < epsilon(noise_multiplier=found, **how) <= target
    # Three uses have probability .001, in which the loss is N(3 d^2 / 2 + 3 log .1, 3 d^2).
    d = 1 / found
    mean, deviation = 1.5 * d * d + 3 * math.log(0.1), math.sqrt(3) * d
    assert 1e-3 * above((target - mean) / deviation) == pytest.approx(1e-5, rel=1e-2)


def test_no_epsilon_is_stated_between_0_and_the_least():
    assert epsilon_from_mu(1e-13, 3e-14) == LEAST_EPSILON
    assert delta_from_mu(1e-13, LEAST_EPSILON) < 3e-14
    assert composed_epsilon({(100.0, 1e-12): 1, (90.0, 1e-12): 1}, delta=2e-15) == LEAST_EPSILON
    assert epsilon(noise_multiplier=5.0, delta=1e-5, rounds=1, sampling_rate=1e-9) == 0.0
    assert epsilon(noise_multiplier=math.inf, delta=1e-5, rounds=1, sampling_rate=0.1) == 0.0


@pytest.mark.parametrize("target", [5e-324, 1e-300, 9.99e-13])
def test_a_target_below_the_least_is_refused_with_the_bound(target):
    said = "must be at least 1e-12 and at most 1e\\+06"
    how = {"epsilon": target, "delta": 1e-5}
    for ask in (
        lambda: noise_multiplier(**how, rounds=1, sampling_rate=1.0),
        lambda: max_rounds(**how, noise_multiplier=1.0, sampling_rate=0.1),
        lambda: max_sampling_rate(**how, noise_multiplier=1.0, rounds=3),
        lambda: scale_for({(1.0, 0.1): 3}, **how),
        lambda: Goal(epsilon=target),
    ):
        with pytest.raises(InputError, match=said):
            ask()
    assert noise_multiplier(epsilon=1e-12, delta=1e-5, rounds=1, sampling_rate=1.0) > 0


GRID = [
    (target, rate, rounds, adjacency)
    for target in (1e-12, 1e-9, 1e-3, 1.0, 1e3, 1e6, 1e7)
    for rate in (1e-9, 1e-4, 0.1, 1.0)
    for rounds in (1, 1000)
    for adjacency in ("add-or-remove-one", "replace-one")
    if (target >= 1e3, rate, rounds, adjacency) != (True, 1e-4, 1000, "replace-one")
]


@pytest.mark.slow
@pytest.mark.parametrize(("target", "rate", "rounds", "adjacency"), GRID)
def test_noise_for_any_epsilon_is_answered_by_its_own_epsilon_or_refused_in_words(
    target, rate, rounds, adjacency
):
    how = {"delta": 1e-5, "rounds": rounds, "sampling_rate": rate, "adjacency": adjacency}
    try:
        found = noise_multiplier(epsilon=target, **how)
    except InputError as error:
        said = str(error)
    else:
        said = ""
    if said:
        assert re.search("at most 1e\\+06|choose a smaller delta", said), said
        return
    stated = epsilon(noise_multiplier=found, **how)
    assert stated <= target * (1 + 2e-6)  # the grids of an epsilon and of a delta differ
    if rate == 1.0:
        distance = (2.0 if adjacency == "replace-one" else 1.0) * math.sqrt(rounds) / found
        assert delta_from_mu(distance, stated) <= 1e-5 * (1 + 1e-9)
    elif rounds == 1:
        found = exact_delta(found, rate, stated, replace=adjacency == "replace-one")
        assert found <= mpf("1e-5") * (1 + mpf(10) ** -9)


# What a refusal says to use is something else than what was in use.

ASKED = {"delta": 1e-5, "rounds": 10, "sampling_rate": 0.1, "noise_multiplier": 1.0}


def _refusals():
    for by in Accountant:
        for adjacency in ("add-or-remove-one", "zero-out", "replace-one"):
            for reach in Reach:
                state = {"accountant": str(by), "adjacency": adjacency, "reach": str(reach)}
                # What takes long is asked where a record is replaced, and what takes longest of one
                # reach; what a target says once more.
                whole = os.environ.get("OVERHEAR_TESTS") == "all"
                one = reach is Reach.SUM or by not in (Accountant.DP_ACCOUNTING, Accountant.PLD)
                long = whole or (adjacency == "replace-one" and one)
                once = long or (adjacency, reach) == ("add-or-remove-one", Reach.SUM)
                less = 1e-2 if by is Accountant.DP_ACCOUNTING else 1  # it refuses all above 700
                many = [{"rounds": int(less * 10**7)}] if long else []
                targets = (1e-12, 1e-3, *([less * 1e6] if long else [])) if once else ()
                for more in ({}, {"delta": 1e-15}, {"noise_multiplier": 1e-7}, *many):
                    yield state, lambda s=state, m=more: epsilon(**{**ASKED, **s, **m})
                for target in targets:
                    calm = {k: v for k, v in ASKED.items() if k != "noise_multiplier"}
                    yield (
                        state,
                        lambda s=state, e=target, c=calm: noise_multiplier(epsilon=e, **c, **s),
                    )
                rest = {k: v for k, v in ASKED.items() if k != "delta"}
                if once or by is not Accountant.PLD:
                    yield state, lambda s=state, r=rest: delta(epsilon=1e5, **r, **s)


@pytest.mark.slow
def test_no_remedy_names_what_is_in_use():
    refused = []
    for state, ask in _refusals():
        try:
            ask()
        except InputError as error:
            refused.append((state, str(error)))
    assert len(refused) > 30
    for state, said in refused:
        for name, value in re.findall(r"use (\w+)=['\"]([\w-]+)['\"]", said):
            assert state.get(name) != value, (state, said)


def test_rounds_that_differ_are_told_of_no_accountant_that_is_in_use():
    events = {Event(1.0, poisson(0.1), coin=0.5): 3}
    assert second_opinion(events, ours=0.0, delta=1e-5).contradicts  # 0 is too small
    with pytest.raises(InputError, match="adds up equal rounds only; use 'pld'"):
        composed_epsilon(events, delta=1e-5, accountant="rdp")


@pytest.mark.parametrize("by", ["pld", "rdp", "gdp-clt"])
def test_a_delta_that_underflows_is_not_said_to_be_0(by):
    of = {"noise_multiplier": 1, "rounds": 1, "accountant": by}
    assert 0.0 < delta(epsilon=1e5, sampling_rate=1, **of) < 1e-299
    assert delta(epsilon=1e5, sampling_rate=0, **of) == delta_from_mu(1.0, math.inf) == 0.0


EXTREMES = [("noise_multiplier", value) for value in (1e-200, 1e300, 10**400)]
EXTREMES += [("epsilon", 10**20_000), ("sampling_rate", 1e-300)]


@pytest.mark.parametrize("by", ["pld", "rdp", "gdp-clt"])
@pytest.mark.parametrize(("name", "extreme"), EXTREMES, ids=range(len(EXTREMES)))
def test_what_floats_cannot_hold_is_answered_or_refused_in_words(by, name, extreme):
    of = {"epsilon": 2, "delta": 1e-5, "noise_multiplier": 1, "rounds": 2, "sampling_rate": 0.1}
    for asked in of.keys() - {name}:
        with contextlib.suppress(InputError):  # and of nothing else
            budget(accountant=by, **(of | {name: extreme, asked: None}))
