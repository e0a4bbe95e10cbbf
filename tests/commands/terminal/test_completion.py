"""What a shell offers when Tab is pressed."""

import os
import subprocess
import sys

import pytest

from overhear.commands.terminal.terminal import algorithm_names, overrides, presets, sweeps


def completed(shell: str, *words: str) -> str:
    """What `overhear` answers a shell that completes the last word."""
    environment = {
        **os.environ,
        "_OVERHEAR_COMPLETE": f"complete_{shell}",
        "_TYPER_COMPLETE_ARGS": " ".join(("overhear", *words)),
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
        "COMP_WORDS": "\n".join(("overhear", *words)),
        "COMP_CWORD": str(len(words)),
    }
    done = subprocess.run(
        [sys.executable, "-m", "overhear"], env=environment, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    assert done.stderr == ""
    return done.stdout


def test_algorithms_are_those_of_the_registry():
    from overhear.training import ALGORITHMS

    assert sorted(ALGORITHMS) == sorted(algorithm_names())


def test_adversaries_can_be_asked_for():
    from overhear.training.exposure.sensitivity import CLEAR_DEFAULT, ENCRYPTED_DEFAULT

    offered = {one.partition("=")[2] for one in overrides("privacy.adversary=")}
    assert offered == {*CLEAR_DEFAULT, *ENCRYPTED_DEFAULT}


@pytest.mark.parametrize(
    ("incomplete", "found"),
    [
        ("privacy.adversaries=", 5),
        ("attack.presets=", 5),
        ("graph.name=", 11),
        ("training.rounds=", 0),
        ("nothing.at.all=", 0),
    ],
)
def test_values_are_offered_where_they_are_a_few_names(incomplete, found):
    assert len(overrides(incomplete)) == found


def test_keys_that_are_offered_are_those_of_the_run_file():
    from overhear.runs.run_file.run_file import RunFile

    assert {one.partition(".")[0] for one in overrides("")} == set(RunFile.model_fields)


def test_a_sweep_goes_on_behind_the_last_comma():
    assert sweeps("graph.name=ring,st") == ["graph.name=ring,star"]


def test_presets_are_those_of_attacks():
    from overhear.attacks import PRESETS

    assert presets("") == list(PRESETS)


def test_fish_is_offered_what_stands_behind_the_key():
    said = completed("fish", "plan", "run.toml", "--set", "algorithm.name=dec")
    assert said.split() == ["algorithm.name=decor", "algorithm.name=decor-over-time"]


def test_bash_takes_words_apart_at_the_equals_sign():
    said = completed("bash", "plan", "run.toml", "--set", "algorithm.name", "=", "dec")
    assert said.split() == ["decor", "decor-over-time"]


def test_commands_are_offered():
    assert completed("bash", "bu").split() == ["budget"]
