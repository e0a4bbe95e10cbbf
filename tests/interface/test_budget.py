"""`overhear.budget`: the five numbers, of which one is left out."""

import json

import pytest

import overhear
from overhear import account
from overhear.commands import cli
from overhear.commands.cli import main
from overhear.interface.budget import budget
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


# `overhear budget` of batches that are not Poisson says what an account of one sum says.

DRAWN = {"delta": 1e-5, "rounds": 1000, "noise_multiplier": 1.0}


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ({"sampling": "fixed", "adjacency": "add-or-remove-one"}, 13.361),
        ({"sampling": "fixed", "adjacency": "zero-out"}, 10.499),
        ({"sampling": "fixed", "adjacency": "replace-one"}, 14.821),
        ({"sampling": "shuffled", "adjacency": "zero-out"}, 17.857),
        ({"sampling": "cyclic", "adjacency": "replace-one"}, 46.211),
    ],
)
def test_a_budget_has_the_figure_of_an_account(how, expected):
    found = budget(**DRAWN, **how, records=500, batch_size=5)
    same = account(
        "dp-dpsgd", graph="ring:3", **DRAWN, **how, records=500, batch_size=5, sampling_rate=0.01,
        adversaries=["eavesdropper"],
    )["eavesdropper"]  # fmt: skip
    assert found.epsilon == pytest.approx(same.epsilon, rel=1e-9)
    assert found.epsilon == pytest.approx(expected, rel=1e-4)
    assert found.at_least == same.at_least
    assert found.sampling_rate == 0.01


def test_batches_that_are_cut_have_the_figure_of_an_account():
    given = DRAWN | {"sampling_rate": 0.01, "records": 60_000, "largest_batch": 677}
    same = account("dp-dpsgd", graph="ring:3", **given, adversaries=["eavesdropper"])
    assert budget(**given).epsilon == pytest.approx(same.epsilon("eavesdropper"), rel=1e-9)
    auto = budget(**given | {"largest_batch": "auto"})
    assert auto.drawn.drawing.size == 742
    assert auto.epsilon == pytest.approx(1.8283, rel=1e-3)


def test_noise_and_delta_are_the_inverse():
    of = {"rounds": 100, "sampling": "fixed", "records": 50, "batch_size": 5}
    noise = budget(epsilon=3.0, delta=1e-5, adjacency="zero-out", **of).noise_multiplier
    back = budget(noise_multiplier=noise, delta=1e-5, adjacency="zero-out", **of)
    assert 2.999 < back.epsilon <= 3.0 + 1e-9
    delta = budget(noise_multiplier=noise, epsilon=3.0, adjacency="zero-out", **of).delta
    assert delta == pytest.approx(1e-5, rel=1e-2)
    risky = budget(advantage=0.2, delta=1e-5, adjacency="zero-out", **of)
    assert risky.risk.advantage == pytest.approx(0.2, rel=1e-3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"adjacency": "add-or-remove-one"}, "with one record more every later batch holds"),
        ({"records": None}, "records=None must be the public number of records"),
        ({"batch_size": None}, "needs batch_size"),
        ({"batch_size": 600}, "more than the 500 records"),
        ({"batch_size": 0}, r"must lie in \(0, 1\]|at least 1"),
        ({"sampling_rate": 0.5}, "must be batch_size / records = 0.01"),
        ({"sampling": "weighted"}, "no bound is known here for batches drawn otherwise"),
        ({"sampling": None}, "sampling=None must be the name of a scheme"),
        ({"largest_batch": 7}, "cuts Poisson batches"),
        ({"participation": 0.5}, "participation=0.5 has no figure with batches='shuffled'"),
        ({"accountant": "rdp"}, "adds up Poisson batches alone, not 'shuffled' ones"),
        ({"noise_multiplier": 0.0}, "without noise nothing protects"),
        ({"rounds": None, "epsilon": 3.0}, "is found, not rounds"),
        ({"sampling": "poisson", "sampling_rate": 0.01}, "has no effect on Poisson batches"),
    ],
)
def test_what_has_no_figure_is_refused(change, message):
    given = DRAWN | {
        "sampling": "shuffled",
        "records": 500,
        "batch_size": 5,
        "adjacency": "zero-out",
    }
    with pytest.raises((InputError, TypeError), match=message):
        budget(**given | change)


COMMAND = "budget --delta 1e-5 --rounds 1000 --noise-multiplier 1 --records 500 --batch-size 5"


def test_the_command_prints_the_same(capsys):
    asked = [*COMMAND.split(), "--batches", "shuffled", "--adjacency", "zero-out"]
    assert cli.main([*asked, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["epsilon"] == pytest.approx(17.857, rel=1e-4)
    assert found["at_least"] == pytest.approx(7.061, rel=1e-4)
    assert (found["batches"], found["records"], found["size"]) == ("shuffled", 500, 5)
    assert cli.main(asked) == 0
    lines = capsys.readouterr().out
    assert "each a batch of 5 of 500 records, shuffled" in lines
    assert "at least         7.060" in lines
    assert cli.main([*asked, "--statement"]) == 0
    said = capsys.readouterr().out
    assert "shuffles its records" in said
    assert "Poisson" not in said


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--batches", "cyclic"], "every later batch holds other records"),
        (["--batches", "fixed", "--largest-batch", "many"], "must be an integer, or auto"),
        (["--batches", "fixed", "--epsilon", "3"], "none is missing"),
        ([], "1 are missing|are missing|has no effect"),
    ],
)
def test_the_command_refuses_with_the_same_sentences(capsys, more, message):
    import re

    assert cli.main([*COMMAND.split(), *more]) == 2
    assert re.search(message, capsys.readouterr().err)
