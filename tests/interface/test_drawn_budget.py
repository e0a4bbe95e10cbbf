"""`overhear budget` of batches that are not Poisson says what an account of one sum says."""

import json

import pytest

from overhear import account
from overhear.commands import cli
from overhear.interface.budget import budget
from overhear.privacy.errors import InputError

OF = {"delta": 1e-5, "rounds": 1000, "noise_multiplier": 1.0}


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
    found = budget(**OF, **how, records=500, batch_size=5)
    same = account(
        "dp-dpsgd", graph="ring:3", **OF, **how, records=500, batch_size=5, sampling_rate=0.01,
        adversaries=["eavesdropper"],
    )["eavesdropper"]  # fmt: skip
    assert found.epsilon == pytest.approx(same.epsilon, rel=1e-9)
    assert found.epsilon == pytest.approx(expected, rel=1e-4)
    assert found.at_least == same.at_least
    assert found.sampling_rate == 0.01


def test_batches_that_are_cut_have_the_figure_of_an_account():
    given = OF | {"sampling_rate": 0.01, "records": 60_000, "largest_batch": 677}
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
    given = OF | {"sampling": "shuffled", "records": 500, "batch_size": 5, "adjacency": "zero-out"}
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
