"""What an agent changes over local steps, where one agent's change is sent by itself."""

from dataclasses import dataclass

import pytest
import torch

from overhear.attacks.interception.estimate import estimate
from overhear.attacks.interception.replay import Protection, ReplayedRun, replay
from overhear.attacks.inversion.inversion import reconstruct
from overhear.training.algorithms import ALGORITHMS
from overhear.training.algorithms.algorithm import Algorithm
from overhear.training.step.round import Round
from tests.attacks.interception.replays import planted, shown, trial
from tests.training.states import State, start


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """How many steps."""

    steps: int = 3


def step(
    state: State,
    round: Round,
    *,
    steps: int,
    learning_rate: float,
    clip_norm: float | None,
    noise_std: float,
) -> State:
    changed = round.local_update(
        state.x, steps=steps, learning_rate=learning_rate, batch=round.draw(), clip_norm=clip_norm
    )
    noisy = changed + round.noise(changed, std=noise_std)
    return State(state.x + round.mix(noisy, kind="change"))


@pytest.fixture
def sent(monkeypatch):
    """An algorithm whose agents send what they change to their neighbours."""
    name = "sent-change"
    made = Algorithm(name=name, init=start, step=step, settings=Settings)
    monkeypatch.setitem(ALGORITHMS, name, made)
    return name


def plain(name: str, **changes: object) -> ReplayedRun:
    return trial(name, settings=Settings(**changes)).under(Protection.NONE)


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("records", [1, 3])
def test_a_change_that_is_sent_alone_is_the_mean_gradient_of_its_steps(sent, steps, records):
    one, batch = plain(sent, steps=steps), planted(records)
    seen = estimate(replay(one, batch)).observation
    assert seen is not None
    assert seen.local_steps == steps
    torch.testing.assert_close(seen.gradient, shown(one, seen, batch), rtol=1e-8, atol=1e-10)


def test_it_gives_the_record_away(sent):
    one, batch = plain(sent), planted(1)
    seen = estimate(replay(one, batch)).observation
    assert seen is not None
    found = reconstruct(
        seen, one.setting.model, preset="matched", input_shape=(1, 4, 4), classes=3,
        bounds=(torch.tensor(0.0), torch.tensor(1.0)), generator=torch.Generator().manual_seed(0),
    )  # fmt: skip
    assert found.labels.tolist() == batch.targets.tolist()
    torch.testing.assert_close(found.inputs, batch.inputs.double(), rtol=0, atol=1e-3)


def test_a_clipped_change_is_no_mean_of_gradients_and_says_so(sent):
    found = estimate(replay(trial(sent, settings=Settings()), planted()))
    assert found.observation is None
    assert "its change over local steps" in found.reason


def test_behind_a_trusted_sum_it_stays_hidden():
    found = estimate(replay(trial("dp-fedavg").under(Protection.NONE), planted()))
    assert found.observation is None
    assert "trusted sum" in found.reason
