"""Planted faults are found by the check that is named for them, and sound systems are not accused.

Two agents, 48 coordinates, 100 records each, rate .2, noise 1.5 times the clip norm, 8 rounds, all
kept. Each fault is played with 10 seeds, and must be found in at least 9, as one that is found in
half of all systems is with probability .011. A sound system fails with probability 3e-6 at most, by
three checks that leave something to chance.
"""

import pytest

from overhear.attacks.checks.result import Verdict

from .gossip import FAULTS, checked, play

IDS = [f"{fault}, {'own' if own else 'drawn'} noise" for fault, own, _ in FAULTS]


def times_found(folder, fault, own_noise, check, seeds):
    """Systems in which the named check fails, of those with these seeds."""
    verdicts = [
        checked(play(folder / str(seed), seed=seed, fault=fault, own_noise=own_noise))[check]
        for seed in seeds
    ]
    return [one.verdict for one in verdicts].count(Verdict.FAILED)


@pytest.mark.parametrize(("fault", "own_noise", "check"), FAULTS, ids=IDS)
def test_a_planted_fault_is_found(tmp_path, fault, own_noise, check):
    assert times_found(tmp_path, fault, own_noise, check, [100]) == 1


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "own_noise", "check"), FAULTS, ids=IDS)
def test_a_planted_fault_is_found_in_9_of_10(tmp_path, fault, own_noise, check):
    assert times_found(tmp_path, fault, own_noise, check, range(10)) >= 9


@pytest.mark.slow
def test_40_sound_systems_are_not_accused(tmp_path):
    """Each fails with a probability of at most 3e-6, all together of 1.2e-4; most are checked."""
    said = [
        checked(
            play(tmp_path / str(seed), seed=seed, own_noise=seed % 2 > 0, own_batches=seed % 4 > 1)
        ).said
        for seed in range(40)
    ]
    assert [one for one in said if "contradicted" in one] == []
    assert said.count("declared; checked in rounds 1 to 8") >= 38
