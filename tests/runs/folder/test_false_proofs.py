"""Algorithms that would be called proven and are not, planned and trained as a user would."""

import itertools
import json

import pytest

from overhear.privacy.errors import InputError, InputTypeError
from overhear.runs.folder import run as run_folder
from overhear.runs.folder.run import train_run
from overhear.runs.plan.plan import make_plan
from overhear.runs.readiness import check_ready
from overhear.runs.run_file.run_file import load_run_file
from overhear.training.algorithms import ALGORITHMS, Algorithm
from tests.small_run import run_text
from tests.training.step.test_false_proofs import X, start

RUN = run_text(
    "odd", agents=3, graph={"name": "ring"}, privacy={"noise_multiplier": 1, "delta": 0.0001},
    training={"rounds": 6, "sampling_rate": 0.05, "learning_rate": 0.2, "evaluate_every": 6},
)  # fmt: skip


def clipped_and_noised(state, round, *, clip_norm, noise_std):
    sums = round.clipped_sums(state.x, batch=round.draw(), clip_norm=clip_norm)
    return sums, round.noise(sums, std=noise_std)


def noise_that_stops(after):
    """Noise of the right size for so many calls, then none."""
    calls = itertools.count()

    def step(state, round, *, clip_norm, noise_std):
        sums, z = clipped_and_noised(
            state, round, clip_norm=clip_norm, noise_std=noise_std * (next(calls) < after)
        )
        return X(round.mix(sums + z, kind="model"))

    return step


def a_message_more(after):
    calls = itertools.count()

    def step(state, round, *, clip_norm, noise_std):
        sums, z = clipped_and_noised(state, round, clip_norm=clip_norm, noise_std=noise_std)
        if next(calls) >= after:
            round.broadcast(sums, kind="stolen")
        return X(round.mix(sums + z, kind="model"))

    return step


def traced_calls(make):
    """How often plan and training trace the step before its first round."""
    calls = itertools.count()
    sound = make(10**9)

    def counting(state, round, *, clip_norm, noise_std):
        next(calls)
        return sound(state, round, clip_norm=clip_norm, noise_std=noise_std)

    return counting, calls


@pytest.fixture
def train(tmp_path, monkeypatch):
    """Registers a step, and plans and trains a run of it."""

    def register(step):
        monkeypatch.setitem(ALGORITHMS, "odd", Algorithm(name="odd", init=start, step=step))
        path = tmp_path / "run.toml"
        path.write_text(RUN)
        return load_run_file(path)

    return register


@pytest.mark.parametrize("make", [noise_that_stops, a_message_more], ids=lambda f: f.__name__)
@pytest.mark.parametrize("late", [0, 3])
def test_a_run_that_leaves_its_plan_is_stopped_and_is_no_finished_run(
    make, late, train, tmp_path, monkeypatch
):
    # How often the step is called before the first round of a run.
    counting, calls = traced_calls(make)
    config = train(counting)
    asked = list[int]()
    whole = run_folder.Engine.start
    monkeypatch.setattr(
        run_folder.Engine, "start", lambda self: (asked.append(next(calls)), whole(self))[1]
    )
    train_run(config, tmp_path / "sound")
    (before,) = asked

    config = train(make(before + late))
    assert make_plan(config).guarantee("eavesdropper").status == "proven"
    config = train(make(before + late))
    out = tmp_path / "odd"
    with pytest.raises((InputError, InputTypeError), match=f"round {late + 1} was stopped"):
        train_run(config, out)
    assert not (out / "SHA256SUMS").exists()
    lines = [json.loads(line) for line in (out / "ledger.jsonl").read_text().splitlines()[1:]]
    assert [line["round"] for line in lines] == list(range(late + 2))


def test_a_start_beside_which_noise_is_lost_is_refused_before_a_folder_is_opened(
    train, tmp_path, monkeypatch
):
    def large(round, **_):
        return X(1e9 * round.initial())

    def late(state, round, *, clip_norm, noise_std):
        sums, z = clipped_and_noised(state, round, clip_norm=clip_norm, noise_std=noise_std)
        return X(round.mix(state.x - sums + z, kind="model"))

    config = train(late)
    monkeypatch.setitem(ALGORITHMS, "odd", Algorithm(name="odd", init=large, step=late))
    with pytest.raises(InputError, match=r"round 1 was stopped.*state x.*'1.weight'"):
        train_run(config, tmp_path / "odd")
    assert not (tmp_path / "odd").exists()
    with pytest.raises(InputError, match="round 1 was stopped"):
        check_ready(config)
