"""A watched run keeps every round as it was, and residuals that hold the noise alone."""

import numpy as np
import pytest
import torch

from overhear.attacks.checks.checks import function_check, message_check
from overhear.attacks.checks.result import Check, Finding
from overhear.attacks.checks.watched_run import affordable_rounds, chosen_rounds, traces_of, watch
from overhear.training.data.store import Examples
from overhear.training.engine.randomness import SecretRandomness
from overhear.training.graphs.topologies import ring
from tests.attacks.checks.watched import a_run, a_setting, sound_run
from tests.training.contract import bound_to, setting


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
        setting, bound_to("dpdl", ring(5), rounds=2), rounds=2, randomness=SecretRandomness(3),
        planted=lambda number: {1: planted} if number == 2 else {},
    )  # fmt: skip
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


@pytest.mark.parametrize(("rounds", "planned"), [(1, 9), (2, 9), (3, 9), (4, 9), (8, 9), (9, 9)])
def test_the_first_rounds_and_the_last_are_watched(rounds, planned):
    found = chosen_rounds(rounds, planned=planned, generator=np.random.default_rng(1))
    assert found == sorted(set(found))
    assert len(found) == rounds
    assert found[-1] == planned
    assert found[: rounds - 1][:2] == [1, 2][: rounds - 1]


def test_no_round_to_watch_is_refused():
    with pytest.raises(ValueError, match="rounds=0 must be at least 1"):
        chosen_rounds(0, planned=3)


def test_of_many_agents_fewer_rounds_are_watched_and_never_more_than_are_planned():
    def of(agents, asked, planned=20):
        graph = ring(agents)
        bound = bound_to("dpdl", graph)
        traces = traces_of(bound, setting(graph), rounds=planned)
        return affordable_rounds(asked, traces)

    assert [of(5, 12), of(5, 12, 3), of(5, 2)] == [12, 3, 2]
    assert [of(60, 12), of(60, 4), of(60, 12, 3)] == [6, 4, 3]
    assert of(150, 12) == 4


@pytest.mark.some_quick(2)
@pytest.mark.parametrize("seconds", [0.0, 9.0])
@pytest.mark.parametrize("name", ["dpdl", "dyn-d2p"])
def test_late_rounds_are_those_of_the_run(name, seconds):
    """With time the run reaches them; without it they are passed over to, noise and all."""
    setting, bound = a_setting(ring(5)), bound_to(name, ring(5), rounds=20)
    run = watch(
        setting, bound, rounds=chosen_rounds(4, planned=20, generator=np.random.default_rng(2)),
        randomness=SecretRandomness(3), seconds=seconds,
    )  # fmt: skip
    whole = watch(setting, bound, rounds=20, randomness=SecretRandomness(3))
    for watched in run.rounds:
        same = whole.rounds[watched.number]
        drawn = zip(watched.recorded.noise, same.recorded.noise, strict=True)
        assert all(torch.equal(z, again) for z, again in drawn)
        if seconds:
            assert all(torch.equal(rows, same.after[n]) for n, rows in watched.after.items())
    assert run.rounds[-1].number == 20
    assert message_check(run).passed
    assert function_check(run).passed


# The result of a check, and the worst of many tests.


def test_p_outside_of_0_to_1_is_refused():
    with pytest.raises(ValueError, match=r"p=1\.5 must lie in \[0, 1\]"):
        Check(name="messages", passed=True, p=1.5, tests=1, words="Nothing.")


def test_tests_below_zero_and_no_words_are_refused():
    with pytest.raises(ValueError, match="tests=-1 must be at least 0"):
        Check(name="messages", passed=True, p=None, tests=-1, words="Nothing.")
    with pytest.raises(ValueError, match="words must say"):
        Check(name="messages", passed=True, p=None, tests=1, words="")


def test_p_is_multiplied_by_the_number_of_tests_and_capped():
    found = Finding()
    found.note(0.01, tests=30, what="one")
    found.note(0.5, tests=20, what="other")
    assert (found.p, found.what, found.passed) == (0.5, "one", True)
    found.note(0.4, tests=100, what="more")
    assert found.p == 1.0


def test_what_is_not_a_number_fails():
    found = Finding()
    found.note(float("nan"), tests=1, what="an overflow")
    assert (found.p, found.what, found.passed) == (0.0, "an overflow", False)


def test_of_several_findings_the_first_that_fails_has_the_words():
    first, second, third = Finding(), Finding(), Finding()
    first.note(0.3, tests=10, what="plain")
    second.note(1e-20, tests=10, what="a row")
    third.note(0.0, tests=10, what="a pair")
    whole = Finding.of([first, second, third])
    assert (whole.tests, whole.p, whole.what) == (30, 0.0, "a row")
    assert Finding.of([first]).what == ""
