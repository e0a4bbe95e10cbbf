"""`overhear budget` with a target of membership inference."""

import json

import pytest

from overhear.commands import cli

RUN = ["budget", "--delta", "1e-5", "--rounds", "1000", "--sampling-rate", "0.02"]


def test_the_noise_for_an_advantage_and_its_epsilon_are_printed(capsys):
    assert cli.main([*RUN, "--target-advantage", "0.1"]) == 0
    lines = capsys.readouterr().out
    assert "noise multiplier 2.6057" in lines
    assert "epsilon          0.956" in lines
    assert "the least for advantage 0.1" in lines


def test_the_noise_for_a_rate_is_printed_as_json(capsys):
    assert cli.main([*RUN, "--target-tpr", ".2@.01", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["noise_multiplier"] == pytest.approx(0.7131, rel=1e-4)
    assert found["target"] == "TPR 0.2 at FPR 0.01 of membership inference"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["--target-tpr", ".2"], "must be TPR@FPR"),
        (["--target-tpr", "a@b"], "must be TPR@FPR"),
        (["--target-tpr", ".01@.2"], "the first above the second"),
        (["--target-advantage", "1.5"], "advantage=1.5 must lie"),
        (["--target-advantage", ".1", "--epsilon", "3"], "epsilon is given"),
        (["--target-advantage", ".1", "--accountant", "rdp"], "use 'pld'"),
        (["--target-advantage", ".1", "--target-tpr", ".2@.1"], "exactly one of them"),
    ],
)
def test_a_target_that_is_none_is_refused_in_a_sentence(given, words, capsys):
    assert cli.main([*RUN, *given]) == 2
    assert words in " ".join(capsys.readouterr().err.split())


def test_a_paragraph_to_paste_is_all_that_is_printed(capsys):
    assert cli.main([*RUN, "--noise-multiplier", "2", "--statement"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("Training takes 1000 rounds.")
    assert "at most epsilon 1.330 at delta 1e-5" in said
    assert cli.main([*RUN, "--noise-multiplier", "2", "--statement", "--json"]) == 2
    assert "leave --format and --explain out" in " ".join(capsys.readouterr().err.split())
