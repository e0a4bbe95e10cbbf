"""Every command over algorithms that would be called proven and are not: none reaches a report.

Each is planned, trained, reported, checked and audited as a user would. A step may be refused by
the plan or stopped before its first unplanned message; then no later command speaks of it.
"""

import functools
import itertools
import json

import numpy as np
import pytest
import torch

from overhear.commands import cli
from overhear.training.algorithms import ALGORITHMS, Algorithm
from tests.runs.folder.test_false_proofs import RUN, clipped_and_noised
from tests.training.step.test_false_proofs import Counted, X, start, start_counted

POLICY = """
schema = 1
[[limits]]
adversary = "eavesdropper"
epsilon = 1000
delta = 1e-4
"""
STOLEN = "stolen"
LATE = 12  # calls of a step: more than plan and training make before the first round


def sent(state, round, sums, z):
    return X(round.mix(sums + z, kind="model"))


def simple(change):
    """A step that sends its noised sums, and what `change` makes of its round."""

    def step(state, round, *, clip_norm, noise_std):
        sums, z = clipped_and_noised(state, round, clip_norm=clip_norm, noise_std=noise_std)
        change(round, sums, z)
        return sent(state, round, sums, z)

    return step


def noise_reused_over_rounds():
    held = []

    def step(state, round, *, clip_norm, noise_std):
        sums, z = clipped_and_noised(state, round, clip_norm=clip_norm, noise_std=noise_std)
        held.append(z)
        return sent(state, round, sums, held[0])

    return step


def noise_reused_in_a_round():
    def change(round, sums, z):
        round.broadcast(sums * 2.0 + z, kind=STOLEN)

    return simple(change)


def schedule_that_stops_noise():
    calls = itertools.count()

    def step(state, round, *, clip_norm, noise_std):
        std = noise_std * (next(calls) < LATE)
        return sent(
            state, round, *clipped_and_noised(state, round, clip_norm=clip_norm, noise_std=std)
        )

    return step


def counter_in_place():
    def step(state, round, *, clip_norm, noise_std):
        np.asarray(state.t.numpy())[:] += 1
        std = noise_std * float(state.t.item() < 4)
        sums, z = clipped_and_noised(state, round, clip_norm=clip_norm, noise_std=std)
        return Counted(round.mix(sums + z, kind="model"), state.t)

    return step


def refusal_that_is_caught():
    def change(round, sums, z):
        try:
            round.broadcast(sums.rows, kind=STOLEN)
        except Exception:  # noqa: BLE001 # as a user writes it
            round.broadcast(sums, kind=STOLEN)

    return simple(change)


def message_in_round_three():
    rounds = itertools.count()

    def change(round, sums, z):
        if next(rounds) % 7 == 3:
            round.broadcast(sums, kind=STOLEN)

    return simple(change)


def float_residue():
    def change(round, sums, z):
        big = round.noise(sums, std=1.0) * 1e6
        round.broadcast(((sums + big) - big) - sums, kind=STOLEN)

    return simple(change)


def lambda_that_holds_a_sum():
    def change(round, sums, z):
        round.broadcast(round.postprocess(lambda v: v + sums, z), kind=STOLEN)

    return simple(change)


class Holder:
    """Remembers what it was given."""

    held = None

    def __call__(self, v):
        return v if self.held is None else v + self.held


def callable_object():
    holder = Holder()

    def change(round, sums, z):
        holder.held = getattr(sums, "rows", torch.ones(1))
        round.broadcast(round.postprocess(holder, z), kind=STOLEN)

    return simple(change)


HELD = torch.zeros(1)


def module_global():
    def shifted(v):
        return v + HELD

    return simple(
        lambda round, sums, z: round.broadcast(round.postprocess(shifted, z), kind=STOLEN)
    )


def default_argument():
    def change(round, sums, z):
        def shifted(v, by=HELD):
            return v + by

        round.broadcast(round.postprocess(shifted, z), kind=STOLEN)

    return simple(change)


def functools_partial():
    def change(round, sums, z):
        by = functools.partial(torch.add, torch.ones(1))
        round.broadcast(round.postprocess(by, z), kind=STOLEN)

    return simple(change)


def generator_of_clips():
    clips = (1.0 if k < LATE else 1e9 for k in itertools.count())

    def step(state, round, *, clip_norm, noise_std):
        bound = clip_norm * next(clips)
        sums, z = clipped_and_noised(state, round, clip_norm=bound, noise_std=noise_std)
        return sent(state, round, sums, z)

    return step


CASES = [
    noise_reused_over_rounds, noise_reused_in_a_round, schedule_that_stops_noise, counter_in_place,
    refusal_that_is_caught, message_in_round_three, float_residue, lambda_that_holds_a_sum,
    callable_object, module_global, default_argument, functools_partial, generator_of_clips,
]  # fmt: skip


@pytest.fixture
def commands(tmp_path, monkeypatch, capsys):
    """Registers what makes a step, and runs every command on a run of it: exit code by command."""
    path, out = tmp_path / "run.toml", tmp_path / "out"
    path.write_text(RUN)
    policy = tmp_path / "policy.toml"
    policy.write_text(POLICY)

    def every(make):
        begin = start_counted if make is counter_in_place else start
        codes = dict[str, int]()
        for name, arguments in (
            ("plan", ["plan", str(path), "--strict", "--check"]),
            ("train", ["train", str(path), "--out", str(out)]),
            ("report", ["report", str(out)]),
            ("check", ["check", str(out), "--policy", str(policy)]),
            (
                "audit",
                [
                    "audit",
                    str(path),
                    "--set",
                    "audit.canaries=60",
                    "--set",
                    "audit.checked_rounds=2",
                ],
            ),
        ):
            # Its counters begin anew with every command, as in a process of its own.
            odd = Algorithm(name="odd", init=begin, step=make())
            monkeypatch.setitem(ALGORITHMS, "odd", odd)
            codes[name] = cli.main(arguments)
        assert "Traceback" not in capsys.readouterr().err
        return codes, out

    return every


@pytest.mark.some_quick(1)
@pytest.mark.parametrize("make", CASES, ids=lambda f: f.__name__)
def test_no_command_calls_it_proven(make, commands):
    codes, out = commands(make)
    assert codes["check"] != 0, codes
    if codes["plan"] == 3:  # what is sent is counted, and nothing protects
        figures = json.loads((out / "privacy.json").read_text())["plan"]["adversaries"]
        worst = next(one for one in figures if one["name"] == "eavesdropper")
        assert worst["status"] == "no protection", worst
        return
    assert codes["train"] == 2, codes
    assert codes["audit"] != 0 or make is schedule_that_stops_noise, codes
    # A run that was stopped may be reported, of the rounds that were as planned, and as stopped.
    assert codes["report"] == 2 or (codes["check"] == 5 and unfinished(out)), codes


def unfinished(out):
    return json.loads((out / "privacy.json").read_text())["run"]["finished"] is False


@pytest.mark.slow
def test_a_sound_step_passes_every_command(commands):
    codes, out = commands(lambda: simple(lambda round, sums, z: None))
    assert codes["plan"] == codes["train"] == codes["report"] == codes["check"] == 0
    assert codes["audit"] == 0
    assert (out / "report.html").exists()
