"""Odds, against closed forms and on the stated side."""

import math
import tomllib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import ndtr, ndtri

from overhear.privacy.accounting.risk import risk
from overhear.privacy.guarantee import Status
from overhear.privacy.releases.ledger import Spent
from overhear.reports.document.summary import odds, risk_by_adversary
from overhear.reports.schema import Risk
from overhear.runs.plan.plan import Plan, make_plan
from overhear.runs.run_file.run_file import RunFile
from overhear.training.exposure.guarantees import run_epsilon

RUN = """
data.name = "digits"
data.agents = 4
model.name = "linear"
algorithm = {name = "%s", form = "%s"}
privacy = {noise_multiplier = 3, delta = 1e-5, adjacency = "%s"}
training = {rounds = %d, sampling_rate = %s}
"""


def planned(
    name: str = "dp-dpsgd",
    form: str = "repaired",
    adjacency: str = "add-or-remove-one",
    rounds: int = 9,
    rate: float = 1.0,
) -> Plan:
    text = RUN % (name, form, adjacency, rounds, rate)
    return make_plan(RunFile.model_validate(tomllib.loads(text)))


def found(plan: Plan, torn: bool = False) -> dict[str, Risk]:
    entries = [{"round": n} for n in range(plan.rounds + 1)]
    spent = Spent(header={}, entries=entries, torn=torn)
    epsilon = {
        name: run_epsilon(exposure, noise_multiplier=plan.noise_multiplier, statement=plan.said_of)
        for name, exposure in plan.exposures.items()
    }
    return risk_by_adversary(plan, spent, epsilon=epsilon)


@given(st.floats(0, 1), st.sampled_from([100, 1000]))
def test_odds_enclose_the_probability(probability, of):
    low, high = odds(probability, of, up=False), odds(probability, of)
    assert low <= probability * of * (1 + 1e-9) + 1e-15
    assert high >= probability * of * (1 - 1e-9)
    assert high <= of
    assert high - low <= max(0.11 * probability * of, 1e-11) or probability < 1e-9


def test_full_batches_have_the_odds_of_one_gaussian():
    """Nine full batches at multiplier 3 and joint sensitivity 1 are one release with mu 1."""
    of = found(planned())["eavesdropper"]
    assert of.mu == pytest.approx(1.0)
    for hit in of.hits:
        rate = hit.false_positives / hit.of
        assert hit.hit_rate == pytest.approx(float(ndtr(ndtri(rate) + 1.0)), rel=1e-6)
    assert of.right.times == math.ceil(100 * float(ndtr(0.5)))  # 69.1
    assert of.relation == "at most"


def test_sampled_batches_have_the_odds_of_the_trade_off_curve():
    of = found(planned(rounds=50, rate=0.1))["eavesdropper"]
    expected = risk(noise_multiplier=3.0, sampling_rate=0.1, rounds=50)
    assert of.advantage == pytest.approx(expected.advantage)
    assert of.hits[1].hit_rate == pytest.approx(dict(expected.true_positive_rates)[0.01])


def test_a_torn_ledger_raises_the_odds():
    plan = planned(rounds=50, rate=0.1)
    whole, torn = (found(plan, torn=t)["eavesdropper"].advantage for t in (False, True))
    assert torn > whole


def test_a_heuristic_row_is_told_as_at_least():
    of = found(planned("dpdl", "published"))["eavesdropper"]
    assert of.relation == "at least"
    for hit in of.hits:
        assert hit.hits <= hit.hit_rate * hit.of * (1 + 1e-9)


def test_a_row_that_nothing_protects_names_everybody():
    of = found(infinite("no protection"))["eavesdropper"]
    assert of.source == "nothing protects"
    assert {hit.hits / hit.of for hit in of.hits} == {1.0}


def test_a_row_without_a_bound_is_not_said_to_name_everybody():
    of = found(infinite("cannot be expressed"))["eavesdropper"]
    assert of.source == "no bound"
    assert of.relation == "at most"
    assert {hit.hits / hit.of for hit in of.hits} == {1.0}


def infinite(status: str) -> Plan:
    plan = planned()
    guarantees = [replace(g, epsilon=math.inf, status=Status(status)) for g in plan.guarantees]
    return replace(plan, noise_multiplier=0.0, guarantees=guarantees)


def test_a_replaced_record_with_several_contributions_has_its_curve():
    plan = planned("dpdl", "repaired", "replace-one", rounds=20, rate=0.1)
    of = found(plan)["eavesdropper"]
    stated = plan.guarantee("eavesdropper")
    assert of.source == "trade-off curve"
    assert of.mu is not None
    assert of.hits[1].hit_rate < math.exp(stated.epsilon) * 0.01
