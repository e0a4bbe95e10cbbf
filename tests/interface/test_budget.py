"""`overhear.budget`: the five numbers, of which one is left out."""

import json

import pytest

import overhear
from overhear.commands.cli import main
from overhear.privacy.errors import InputError

OF = {"delta": 1e-5, "rounds": 200, "sampling_rate": 0.02}
NUMBERS = ("epsilon", "delta", "rounds", "sampling_rate", "noise_multiplier")


@pytest.mark.parametrize("left_out", NUMBERS)
def test_the_one_that_is_left_out_comes_back_from_the_other_four(left_out):
    known = overhear.budget(noise_multiplier=1.3, **OF)
    given = {name: getattr(known, name) for name in NUMBERS if name != left_out}
    found = overhear.budget(**given)
    assert found.computed == left_out
    assert getattr(found, left_out) == pytest.approx(getattr(known, left_out), rel=1e-4)


@pytest.mark.parametrize(
    "known",
    [
        {"epsilon": 2.0, "rounds": 200, "sampling_rate": 0.02},
        {"noise_multiplier": 1.1, "rounds": 200, "sampling_rate": 0.02},
        {"noise_multiplier": 1.1, "epsilon": 2.0, "sampling_rate": 0.02},
        {"noise_multiplier": 1.1, "epsilon": 2.0, "rounds": 200},
    ],
)
def test_the_figures_are_those_of_the_command(known, capsys):
    found = overhear.budget(delta=1e-5, **known)  # type: ignore[arg-type]
    options = [f"--{name.replace('_', '-')}={value}" for name, value in known.items()]
    assert main(["budget", "--delta", "1e-5", *options, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert {name: printed[name] for name in NUMBERS} == {n: getattr(found, n) for n in NUMBERS}
    assert main(["budget", "--delta", "1e-5", *options]) == 0
    assert capsys.readouterr().out == f"{found}\n"


def test_all_but_one_must_be_given():
    with pytest.raises(InputError, match="all but one of them: epsilon, noise_multiplier are"):
        overhear.budget(**OF)
    with pytest.raises(InputError, match="all but one of them: none is missing"):
        overhear.budget(epsilon=1.0, noise_multiplier=1.0, **OF)


def test_the_statement_names_unit_adjacency_sampling_and_accountant():
    said = overhear.budget(noise_multiplier=1.3, adjacency="replace-one", **OF).statement()
    for part in ("200 rounds", "Poisson", "0.02", "replacing one record", "delta 1e-5", "pld"):
        assert part in said
    assert "at most epsilon 1.775 at" in said


def test_an_approximation_is_no_proof():
    said = overhear.budget(noise_multiplier=1.3, accountant="gdp-clt", **OF).statement()
    assert "at most" not in said
    assert "no proof" in said


def test_a_figure_is_never_shown_smaller_than_it_is():
    found = overhear.budget(noise_multiplier=1.3, **OF)
    shown = float(found.lines()["epsilon"].split()[0])
    assert found.epsilon <= shown <= found.epsilon * 1.001
    assert f"{shown:g}" in found._repr_html_()


def test_the_risk_is_that_of_the_rounds():
    from overhear.privacy import risk

    found = overhear.budget(noise_multiplier=1.3, **OF)
    assert found.risk == risk(noise_multiplier=1.3, rounds=200, sampling_rate=0.02)
