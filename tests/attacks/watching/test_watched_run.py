"""A watched run keeps every round as it was, and residuals that hold the noise alone."""

import pytest
import torch

from overhear.attacks.checks.messages import message_check
from overhear.attacks.watching.watched_run import watch
from overhear.training.data.dataset import Examples
from overhear.training.engine.randomness import SecretRandomness
from overhear.training.graphs.topologies import ring
from tests.attacks.checks.watched import a_run, a_setting, sound_run
from tests.training.contract import bound_to


def test_the_start_counts_and_states_follow_one_another():
    run = sound_run("dpmixsgd")
    assert [one.number for one in run.rounds] == [0, 1, 2, 3]
    assert not run.rounds[0].before
    for before, after in zip(run.rounds, run.rounds[1:], strict=False):
        assert all(torch.equal(rows, after.before[name]) for name, rows in before.after.items())
    assert len(run.rounds[0].messages) == 2  # the trackers' two blocks


def test_a_residual_is_the_noise_of_its_row():
    run = sound_run("dp-dpsgd")
    watched = run.rounds[2]
    residual = next(of for of in run.residuals[2] if of.kind == "state x")
    expected = -0.3 * 0.4 / 4.5 * watched.recorded.noise[0]  # learning rate, noise, batch size
    torch.testing.assert_close(residual.value, expected, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(residual.recorded_noise(watched), expected)


def test_kinds_that_are_sent_several_times_are_told_apart():
    run = sound_run("muffliato")
    kinds = [of.kind for of in run.residuals[1]]
    assert len(set(kinds)) == len(kinds) > 2
    assert kinds[0] == "message gossip 1"


def test_the_oracle_and_not_the_recorded_sum_is_subtracted():
    run = a_run("dp-dpsgd", rounds=1)
    run.rounds[1].recorded.contributions[0].zero_()
    assert message_check(run).passed


def test_planted_batches_are_those_that_the_oracle_takes():
    setting = a_setting(ring(5))
    planted = Examples(torch.rand(4, 1, 4, 4), torch.tensor([0, 1, 2, 0]))
    run = watch(
        setting,
        bound_to("dpdl", ring(5), rounds=2),
        rounds=2,
        randomness=SecretRandomness(3),
        planted=lambda number: {1: planted} if number == 2 else {},
    )
    assert run.rounds[1].recorded.batches[0][1] is not None
    assert run.rounds[2].recorded.batches[0][1] is None
    assert len(run.rounds[2].batches(setting, 0)[1].targets) == 4
    assert message_check(run).passed


def test_residuals_of_a_run_that_was_not_traced_are_refused():
    run = a_run("dp-dpsgd", rounds=1)
    run.rounds[1].recorded.noise.clear()
    with pytest.raises(
        ValueError, match="the run is not what was traced: round 1 has NoiseSources"
    ):
        _ = run.residuals
