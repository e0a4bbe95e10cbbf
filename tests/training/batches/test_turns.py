"""Records keep to their turns: by the sampler, and by an engine that trusts no sampler."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from overhear.attacks.checks import sampler
from overhear.attacks.checks.sampler import sampler_check
from overhear.attacks.checks.watched_run import watch
from overhear.privacy import epsilon_from_mu
from overhear.privacy.batches.patterns import pattern_of
from overhear.training import account
from overhear.training import batches as module
from overhear.training.batches import Participation, ParticipationCheck, turns_of
from overhear.training.data.store import Examples
from overhear.training.engine.engine import Engine
from overhear.training.engine.randomness import SecretRandomness
from overhear.training.graphs.topologies import ring
from tests.training.contract import bound_to, setting

EVERY_KIND = [{"cycle": 4}, {"apart": 4}, {"most": 3}, [2, 5]]
ROUNDS = 12


def _records(n, seed=0):
    made = torch.Generator().manual_seed(seed)
    return Examples(torch.randn(n, 3, generator=made), torch.randint(2, (n,), generator=made))


def in_turns(pattern, *, rate=0.125, records=40, rounds=ROUNDS):
    plain = setting(ring(3), records=records, rate=rate)
    of = turns_of(pattern_of(pattern), plain.shards, rounds=rounds, sampling_rate=rate, seed=5)
    return replace(plain, turns=of)


@pytest.mark.parametrize("pattern", EVERY_KIND, ids=str)
def test_turns_follow_the_pattern_and_every_record_has_some(pattern):
    of = turns_of(pattern_of(pattern), [_records(300)], rounds=ROUNDS, sampling_rate=0.1, seed=1)
    members = np.array([of.allowed(0, t) for t in range(1, ROUNDS + 1)])
    assert not of.pattern.broken(members).any()
    assert members.any(axis=0).all()
    assert not of.allowed(0, 0).any()
    assert not of.allowed(0, ROUNDS + 1).any()


@pytest.mark.parametrize("pattern", EVERY_KIND[:3], ids=str)
def test_a_record_that_leaves_changes_nobody_elses_turn(pattern):
    whole = _records(50)
    rest = Examples(whole.inputs[torch.arange(50) != 7], whole.targets[torch.arange(50) != 7])
    how = {"rounds": ROUNDS, "sampling_rate": 0.1, "seed": 1}
    one, other = (turns_of(pattern_of(pattern), [held], **how) for held in (whole, rest))
    for t in range(1, ROUNDS + 1):
        kept = np.delete(one.allowed(0, t), 7)
        assert np.array_equal(kept, other.allowed(0, t))


@pytest.mark.parametrize("pattern", EVERY_KIND, ids=str)
def test_a_run_in_turns_keeps_to_them_and_passes_the_sampler_check(pattern):
    """40 records of 3 agents, 12 rounds, at a total false-alarm rate of 1e-6; a fixed root."""
    run = watch(in_turns(pattern), bound_to("dp-dpsgd", ring(3)), rounds=3,
        randomness=SecretRandomness(7))  # fmt: skip
    found = sampler_check(run)
    assert found.passed, found.words
    assert f"participation {pattern_of(pattern).entry}" in found.words


def _position(records, seed):
    return module._mixed(np.arange(records.size, dtype=np.uint64), np.uint64(seed))


BUGS = {
    "groups by position": ("_keys", _position, "first record is left out"),
    "one round late": (
        "allowed",
        lambda self, agent, round: np.roll(
            np.arange(len(self.keys[agent])) % 4 == round % 5, round
        ),
        "takes part otherwise than",
    ),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_sampler_that_does_not_keep_to_the_turns_fails_its_check(bug, monkeypatch):
    name, broken, words = BUGS[bug]
    home = Participation if name == "allowed" else module
    monkeypatch.setattr(home, name, broken)
    monkeypatch.setattr(ParticipationCheck, "note", lambda *_, **__: None)
    run = watch(in_turns({"cycle": 4}), bound_to("dp-dpsgd", ring(3)), rounds=2,
        randomness=SecretRandomness(7))  # fmt: skip
    found = sampler_check(run)
    assert not found.passed
    assert words in found.words


@pytest.mark.parametrize("pattern", EVERY_KIND, ids=str)
def test_an_engine_stops_a_round_that_draws_a_record_out_of_its_turn(pattern, monkeypatch):
    """A sampler that draws everybody always breaks each pattern at once."""
    monkeypatch.setattr(
        Participation,
        "draw",
        lambda self, *, agent, round, generator: np.arange(len(self.keys[agent])),
    )
    sent = []
    engine = Engine(
        in_turns(pattern),
        bound_to("dp-dpsgd", ring(3)),
        taps=[lambda message: sent.append(message.round)],
    )
    engine.start()

    def run():
        for _ in range(ROUNDS):
            engine.advance()

    with pytest.raises(ValueError, match="was stopped: its batch of agent 0"):
        run()
    assert engine.round < 4
    assert max(sent, default=0) <= engine.round


@pytest.mark.parametrize(
    ("pattern", "good", "bad"),
    [
        ({"cycle": 4}, [1, 5, 9], [1, 6]),
        ({"apart": 4}, [1, 5, 10], [1, 4]),
        ({"most": 2}, [1, 2], [1, 2, 3]),
        ([2, 5], [2, 5], [2, 4]),
    ],
    ids=str,
)
def test_a_record_that_comes_one_round_too_early_is_found(pattern, good, bad):
    one = {0: np.array([0])}
    kept = ParticipationCheck(pattern_of(pattern), records=[2])
    for number in good:
        kept.note(one, round=number)
    kept = ParticipationCheck(pattern_of(pattern), records=[2])
    for number in bad[:-1]:
        kept.note(one, round=number)
    with pytest.raises(ValueError, match=f"round {bad[-1]} was stopped"):
        kept.note(one, round=bad[-1])


def test_an_engine_is_held_to_the_turns_of_its_account():
    bound = bound_to("dp-dpsgd", ring(3))
    plain = setting(ring(3), records=40, rate=0.125)
    planned = account(
        "dp-dpsgd", graph=ring(3), rounds=ROUNDS, sampling_rate=0.125, delta=1e-5,
        noise_multiplier=2.0, participation={"cycle": 4},
    )  # fmt: skip
    with pytest.raises(ValueError, match="take part in any rounds of"):
        Engine(plain, bound, scripts=planned.scripts)
    with pytest.raises(ValueError, match="apart"):
        Engine(in_turns({"apart": 4}), bound, scripts=planned.scripts)
    with pytest.raises(ValueError, match="turns of 24 rounds"):
        Engine(in_turns({"cycle": 4}, rounds=24), bound, scripts=planned.scripts)
    Engine(in_turns({"cycle": 4}), bound, scripts=planned.scripts)
    every = account(
        "dp-dpsgd", graph=ring(3), rounds=ROUNDS, sampling_rate=0.125, delta=1e-5,
        noise_multiplier=2.0,
    )  # fmt: skip
    with pytest.raises(ValueError, match="records that take part in any rounds"):
        Engine(in_turns({"cycle": 4}), bound, scripts=every.scripts)


def test_turns_of_other_records_or_another_rate_are_refused():
    found = in_turns({"cycle": 4})
    with pytest.raises(ValueError, match="records that the agents hold"):
        replace(found, shards=[*found.shards[:2], _records(9)])
    with pytest.raises(ValueError, match=r"coin=0\.5"):
        replace(found, sampling_rate=0.1)


def test_groups_of_a_cycle_are_tested_as_batches_of_their_own():
    found = in_turns({"cycle": 4}, rounds=8)
    members = [np.ones((8, 40), dtype=bool)] * 3
    parts = sampler.of_groups(found.turns, members)
    assert sum(part.shape[1] for part in parts) == 3 * 40
    assert {len(part) for part in parts} == {2}


def test_what_replaces_a_record_in_a_clipped_mean_has_turns_of_its_own():
    """In its turns the mean moves by 2 J, and in those of the other record by 2 J, so by 4 J."""
    asked = {"graph": "ring:4", "rounds": 8, "delta": 1e-5, "noise_multiplier": 20.0}
    asked |= {"clip": "batch", "correlation": 0.0, "adjacency": "replace-one"}
    found = account("whisper", sampling_rate=0.25, participation={"cycle": 4}, **asked)
    stated = found["eavesdropper"]
    assert stated.joint_sensitivity == pytest.approx(2.0 * 2.0**0.5)  # two turns
    assert stated.epsilon == pytest.approx(
        epsilon_from_mu(2.0 * stated.joint_sensitivity / 20.0, delta=1e-5), rel=1e-6
    )
