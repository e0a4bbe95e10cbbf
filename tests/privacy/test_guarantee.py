"""Guarantee: a statement is complete and its figures are figures."""

import dataclasses
import json
import math

import pytest

from overhear.privacy import (
    Accountant,
    Adjacency,
    Bound,
    Guarantee,
    Sampling,
    Statement,
    Status,
    Unit,
)
from overhear.privacy.formats.codec import dump, load
from overhear.privacy.guarantee import GroupEpsilon
from overhear.privacy.releases.log import read_log
from overhear.training import account
from overhear.training.accounts.declared import account_of_releases
from tests.privacy.releases.logs import one, write

GOOD = Guarantee(
    adversary="eavesdropper", victim=0, worst_adversary=None, joint_sensitivity=1.0,
    effective_noise_multiplier=2.0, mu_per_round=0.5, epsilon=2.0, delta=1e-5, unit=Unit.RECORD,
    adjacency=Adjacency.ADD_OR_REMOVE_ONE, sampling=Sampling.POISSON, status=Status.PROVEN,
    bound=Bound.PLD, because="a test",
)  # fmt: skip


@pytest.mark.parametrize("field", ["epsilon", "joint_sensitivity", "mu_per_round"])
@pytest.mark.parametrize("value", [-1.0, math.nan])
def test_a_negative_or_undefined_figure_is_refused(field, value):
    with pytest.raises(ValueError, match=field):
        dataclasses.replace(GOOD, **{field: value})


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-5])
def test_delta_outside_the_unit_interval_is_refused(delta):
    with pytest.raises(ValueError, match=f"delta={delta} must lie strictly between 0 and 1"):
        Statement(delta=delta)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"adjacency": "zero-one"}, "adjacency='zero-one' must be one of 'add-or-remove-one', 'ze"),
        ({"accountant": "moments"}, "accountant='moments' must be one of 'pld', 'rdp', 'prv'"),
        ({"unit": "device"}, "unit='device' must be 'record', 'user' or 'agent'"),
        ({"unit": "agent"}, "an agent cannot join or leave a fixed graph"),
        ({"unit": "agent", "adjacency": "zero-out", "records_per_person": 2}, "has no effect at"),
    ],
)
def test_a_statement_about_something_unknown_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Statement(delta=1e-5, **options)


def test_a_statement_takes_the_names_of_its_members():
    given = Statement(delta=1e-5, adjacency="replace-one", unit="record", accountant="rdp")
    assert given.adjacency is Adjacency.REPLACE_ONE
    assert given.unit is Unit.RECORD
    assert given.accountant is Accountant.RDP


@pytest.mark.parametrize(("delta", "large"), [(1e-3, False), (1.1e-3, True), (0.9, True)])
def test_a_delta_at_which_epsilon_says_little_is_remarked(delta, large, tmp_path):
    log = read_log(write(tmp_path / "a.jsonl", {1: [one()]}))
    declared = account_of_releases(log, statement=Statement(delta=delta)).warnings
    how = {"graph": "ring:3", "rounds": 2, "sampling_rate": 0.1, "noise_multiplier": 1.0}
    for warnings in (declared, account("dp-dpsgd", delta=delta, **how).warnings):
        assert any(f"delta = {delta:g} is large" in one for one in warnings) == large


def test_a_guarantee_takes_the_names_of_its_members():
    said = dataclasses.replace(GOOD, adjacency="replace-one", unit="agent")
    assert said.adjacency is Adjacency.REPLACE_ONE
    assert said.unit is Unit.AGENT


def test_it_reads_as_it_was_written_with_keys_of_a_later_version():
    text = json.dumps(dump(GOOD) | {"later": 1})
    read = load(Guarantee, text, refusal="{} {}".format)
    assert read == GOOD
    assert dump(read)["later"] == 1
    assert "group" not in dump(read)


def test_after_more_than_was_planned_no_finite_bound_is_proven():
    several = dataclasses.replace(GOOD, group=(GroupEpsilon(records=2, epsilon=4.0),))
    assert several.released(2.0).group
    assert several.released(3.0).group is None  # it was of the planned rounds
    assert several.released(3.0).status is Status.PROVEN
    assert several.released(math.inf).status is Status.CANNOT_BE_EXPRESSED
    assert not several.released(math.inf).proven


@pytest.mark.parametrize("status", [status for status in Status if status.is_finite])
def test_an_infinite_figure_is_neither_proven_nor_heuristic(status):
    with pytest.raises(ValueError, match="must be 'no protection' or 'cannot be expressed'"):
        dataclasses.replace(GOOD, epsilon=math.inf, status=status)


@pytest.mark.parametrize("status", [Status.NO_PROTECTION, Status.CANNOT_BE_EXPRESSED])
def test_a_finite_figure_is_proven_declared_or_heuristic(status):
    with pytest.raises(
        ValueError, match="must be 'proven' or 'declared' or 'declared, checked' or 'heur"
    ):
        dataclasses.replace(GOOD, status=status)
    said = dataclasses.replace(GOOD, epsilon=math.inf, status=status)
    assert (said.epsilon, said.status) == (math.inf, status)
