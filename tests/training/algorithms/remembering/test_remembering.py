"""Noise with memory: what is added, what that costs, and that a run does as it was traced."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from overhear.attacks.checks.checks import message_check
from overhear.attacks.checks.watched_run import watch
from overhear.privacy import Event, composed_epsilon, poisson
from overhear.privacy.batches.patterns import pattern_of
from overhear.privacy.errors import InputError
from overhear.privacy.noise.design import pair_exposure
from overhear.privacy.noise.over_time import grams, modes_of
from overhear.privacy.view.whole_run import StreamedView
from overhear.training import account
from overhear.training.algorithms import decor, decor_over_time, dp_ftrl, joint, mafalda
from overhear.training.algorithms.strategy import matrix_of, strategy_table
from overhear.training.batches import turns_of
from overhear.training.data.store import Examples
from overhear.training.engine.engine import Engine
from overhear.training.engine.randomness import SecretRandomness
from overhear.training.engine.recording import Recorded
from overhear.training.engine.tensor_round import TensorRound
from overhear.training.graphs.topologies import ring
from tests.training.contract import bound_to, setting
from tests.training.exposure.test_memory import by_strategy, traced, whole_run

MODULES = {
    "mafalda": mafalda,
    "dp-ftrl": dp_ftrl,
    "joint-dsgd": joint,
    "decor-over-time": decor_over_time,
}
RUN = {"rounds": 12, "sampling_rate": 0.1, "delta": 1e-5, "noise_multiplier": 2.0}


def bound(name, *, rounds=12, **own):
    return bound_to(name, ring(4), rounds=rounds, settings=MODULES[name].Settings(**own))


@pytest.mark.parametrize(("period", "bands"), [(0, 0), (4, 0), (4, 3), (3, 8)])
def test_a_record_that_is_used_as_planned_costs_mu_one(period, bands):
    C = matrix_of(strategy_table(ring(4).weights, rounds=12, period=period, bands=bands,
        algorithm="a").numpy(), rounds=12)  # fmt: skip
    M, b = C.T @ C, period or 12
    worst = max(np.abs(M[j::b, j::b]).sum() for j in range(b))
    assert worst == pytest.approx(1.0, abs=1e-6 if bands < 4 else 0.05)
    used = {"cycle": b} if period else {"most": 1}
    found = account("mafalda", graph="ring:4", period=period, bands=bands, participation=used,
        **{**RUN, "sampling_rate": 1.0 / b})["eavesdropper"]  # fmt: skip
    assert found.joint_sensitivity <= worst**0.5 + 1e-9
    assert found.joint_sensitivity == pytest.approx(worst**0.5, abs=1e-3)


@pytest.mark.parametrize("name", MODULES)
def test_a_run_adds_the_inverse_of_its_strategy_to_the_noise_that_it_draws(name):
    """Rounds 1 to 5 of a real run: what was added is C^-1 z, to the rounding of float64."""
    made = bound(name, rounds=5, bands=3)
    given = made.step.keywords
    tables = given["strategies"] if name == "joint-dsgd" else given["strategy"][None]
    mixing = given.get("bases") or [
        given["shared"].factor if "shared" in given else torch.eye(4).double()
    ]
    engine = Engine(setting(ring(4)), made, randomness=SecretRandomness(3))
    drawn, added = [], []
    engine.start()
    for _ in range(5):
        recorded = Recorded()
        engine.advance(recorded=recorded)
        share = 0.5 if name == "dp-ftrl" else 1.0
        drawn.append([0.4 * share * z.double() for z in recorded.noise])
        past = engine.snapshot()
        added.append(sum(past[f"past_{2 * k + 1}"] for k in range(len(tables))))
    expected = sum(
        torch.einsum("ts,ia,sad->tid", torch.from_numpy(np.linalg.inv(matrix_of(table.numpy(),
            rounds=5))), factor, torch.stack([of[k] for of in drawn]))
        for k, (table, factor) in enumerate(zip(tables, mixing, strict=True))
    )  # fmt: skip
    torch.testing.assert_close(torch.stack(added), expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("name", MODULES)
def test_a_restored_run_goes_on_with_the_noise_that_it_remembers(name):
    made, root = bound(name, rounds=6, bands=3), SecretRandomness(3)
    whole = Engine(setting(ring(4)), made, randomness=root)
    for _ in range(3):
        whole.advance()
    kept = whole.snapshot()
    spaces = 3 if name == "joint-dsgd" else 1
    assert [one for one in kept if one.startswith("past")] == [
        f"past_{i + 1}" for i in range(2 * spaces)
    ]
    for _ in range(3):
        whole.advance()
    resumed = Engine(setting(ring(4)), made, randomness=root)
    resumed.restore(kept, round=3)
    for _ in range(3):
        resumed.advance()
    after, again = whole.snapshot(), resumed.snapshot()
    assert all(torch.equal(after[field], again[field]) for field in after)


def test_a_run_in_turns_is_restored_with_its_own_records_alone():
    """Record 0 of agent 1 is another one today, and so may its turn be."""
    made, here = bound("mafalda", rounds=6, bands=3), setting(ring(4), rate=0.25)

    def engine_of(shards):
        how = {"rounds": 6, "sampling_rate": 0.25, "seed": 0}
        turns = turns_of(pattern_of({"cycle": 4}), shards, **how)
        return Engine(replace(here, shards=shards, turns=turns), made)

    first = engine_of(here.shards)
    for _ in range(2):
        first.advance()
    kept, own = first.snapshot(), first.setting.turns_digest
    engine_of(here.shards).restore(kept, round=2, turns=own)
    others = list(here.shards)
    others[1] = Examples(others[1].inputs.clone(), others[1].targets)
    others[1].inputs[0] += 1.0
    with pytest.raises(ValueError, match="is that of other turns"):
        engine_of(others).restore(kept, round=2, turns=own)
    with pytest.raises(ValueError, match="turns is missing"):
        engine_of(here.shards).restore(kept, round=2)


@pytest.mark.parametrize(
    ("period", "every", "own"), [(0, 6.487852, 1.0), (4, 3.267395, 1.0)], ids=["12", "4"]
)
def test_strategies_for_a_ring_of_ten_and_twelve_rounds_cost_what_was_computed_apart(
    period, every, own
):
    """A record in every round, and one in the rounds that the strategy is made for."""
    table = strategy_table(ring(10).weights, rounds=12, period=period, bands=0, algorithm="a")
    traces = traced(by_strategy, rounds=12, length=11, strategy=table.numpy())
    used = {"cycle": period} if period else 1
    assert whole_run(traces).largest == pytest.approx(every, abs=5e-6)
    assert whole_run(traces, participation=used).largest == pytest.approx(own, abs=1e-6)


def test_turns_that_are_over_before_the_next_one_amplify():
    """Four bands, a cycle of four, rate .1: three turns at rate .4; composed by hand."""
    found = account("mafalda", graph="ring:4", period=4, bands=4, participation={"cycle": 4}, **RUN)
    stated = found["eavesdropper"]
    C = matrix_of(strategy_table(ring(4).weights, rounds=12, period=4, bands=4,
        algorithm="a").numpy(), rounds=12)  # fmt: skip
    J = np.sqrt((C**2).sum(axis=0).max())
    assert stated.joint_sensitivity == pytest.approx(J, rel=1e-9)
    by_hand = composed_epsilon({Event(2.0 / J, poisson(0.4)): 3}, delta=1e-5)
    assert stated.epsilon == pytest.approx(by_hand, rel=1e-6)
    assert str(stated.sampling) == "poisson, in turns"


@pytest.mark.parametrize(
    "change",
    [
        {"bands": 5},
        {"participation": {"cycle": 3}},
        {"adjacency": "replace-one"},
        {"records_per_person": 2},
        {"participation": {"most": 3}},
    ],
    ids=["bands", "cycle", "replaced", "persons", "most"],
)
def test_nothing_amplifies_where_a_turn_is_not_one_fresh_coin(change):
    asked = {"bands": 4, "participation": {"cycle": 4}} | change
    found = account("mafalda", graph="ring:4", period=4, **asked, **RUN)
    assert found["eavesdropper"].sampling.startswith("in turns")
    assert found.joint_sensitivities["eavesdropper"].releases[0].sampling_rate == 1.0


def test_where_sampling_amplifies_for_some_victims_alone_it_does_so_for_none(monkeypatch):
    """One agent's turns are taken to be seen for a round longer than a cycle."""
    bands = StreamedView.bands
    monkeypatch.setattr(StreamedView, "bands", lambda view, of: bands(view, of) + (of == 2))
    found = account("mafalda", graph="ring:4", period=4, bands=4, participation={"cycle": 4},
        **RUN)["eavesdropper"]  # fmt: skip
    assert found.joint_sensitivity == pytest.approx(1.0, abs=1e-9)
    assert found.sampling.startswith("in turns")


def test_rates_and_units_without_turns_are_refused():
    for change, words in (
        ({"sampling_rate": 0.3}, "must be at most 1"),
        ({"unit": "user", "records_per_person": 2}, "unit='user'"),
        ({"sampling": "fixed", "batch_size": 1, "records": 10}, "'fixed'"),
        ({"missing": 1}, "absent"),
        ({"holders": [0, 1]}, "holders"),
        ({"participation": [3, 40]}, "names round 40"),
    ):
        asked = {"participation": {"cycle": 4}, **RUN} | change
        with pytest.raises(ValueError, match=words):
            account("mafalda", graph="ring:4", bands=4, **asked)


def test_memory_for_a_record_in_every_round_is_told_to_be_of_no_use():
    every = account("mafalda", graph="ring:4", bands=4, **RUN)
    (said,) = [one for one in every.warnings if "taken back" in one]
    assert "independent noise would do better" in said
    turns = account("mafalda", graph="ring:4", bands=0, participation={"cycle": 4}, **RUN)
    (said,) = [one for one in turns.warnings if "taken back" in one]
    assert "at most every 4th round, in its turn, which the sampler enforces" in said
    assert "Sampling adds no further protection here" in said


@pytest.mark.parametrize("name", MODULES)
def test_an_engine_that_forgets_the_noise_fails_the_check_of_messages(name, monkeypatch):
    """The noise of each round would be fresh, and the figure that of another run."""
    of = turns_of(
        pattern_of({"cycle": 4}), setting(ring(4)).shards, rounds=12, sampling_rate=0.25, seed=0
    )
    here = replace(setting(ring(4), rate=0.25), turns=of)

    def checked():
        run = watch(here, bound(name, bands=4), rounds=4, randomness=SecretRandomness(1))
        return message_check(run)

    assert checked().passed
    monkeypatch.setattr(TensorRound, "remembered", lambda self, fresh, *past, row: fresh / row[0])
    assert not checked().passed


@pytest.mark.parametrize("name", MODULES)
def test_settings_out_of_range_are_refused(name):
    with pytest.raises(ValueError, match="period=-1"):
        MODULES[name].Settings(period=-1)
    with pytest.raises(ValueError, match="bands=-2"):
        MODULES[name].Settings(bands=-2)
    with pytest.raises(ValueError, match="rounds=10001"):
        bound(name, rounds=10_001)


def test_a_trusted_sum_costs_an_agent_a_share_of_the_noise_that_it_knows():
    found = account("dp-ftrl", graph="server:5", period=0, bands=0, participation={"most": 1},
        adversaries=["eavesdropper", "neighbour"], **{**RUN, "sampling_rate": 0.05})  # fmt: skip
    assert found["eavesdropper"].joint_sensitivity == pytest.approx(1.0, abs=1e-9)
    assert found["neighbour"].joint_sensitivity == pytest.approx((5 / 4) ** 0.5, abs=1e-9)


SHORT = {**RUN, "rounds": 8, "sampling_rate": 0.25}
AGENTS = ["eavesdropper", "neighbour", "all-others"]


@pytest.mark.parametrize("bands", [0, 4])
def test_joint_noise_costs_an_outsider_what_it_was_made_for_and_hides_nothing_from_an_agent(bands):
    """The trace finds out by itself that every agent knows the seed."""
    found = account("joint-dsgd", graph="ring:4", period=4, bands=bands, adversaries=AGENTS,
        participation={"cycle": 4}, **SHORT)  # fmt: skip
    assert found["eavesdropper"].joint_sensitivity == pytest.approx(1.0, abs=1e-9)
    assert str(found["eavesdropper"].status) == "proven"
    for name in ("neighbour", "all-others"):
        assert found[name].epsilon == np.inf
        assert str(found[name].status) == "no protection"


def test_the_design_has_the_noise_that_joint_dsgd_adds():
    """Ring of ten, 50 rounds, uses 10 apart: energy 2.20423 at mu 1, from the rows of the step."""
    made = joint.prepare(graph=ring(10), rounds=50, period=10, bands=0)
    W = ring(10).weights
    modes = modes_of(W)
    spent, learnt = 0.0, np.zeros((50, 50))
    for table, U, K in zip(
        made["strategies"].numpy(), made["bases"], grams(modes.eigenvalues, rounds=50), strict=True
    ):
        C = matrix_of(table, rounds=50)
        spent += U.shape[1] * np.trace(np.linalg.solve(C.T @ C, K))
        learnt += float(U[3] @ U[3]) * C.T @ C
    assert spent / 500 == pytest.approx(2.20423, abs=5e-6)
    worst = max(np.abs(learnt[j::10, j::10]).sum() for j in range(10))
    assert worst == pytest.approx(1.0, abs=1e-9)


def test_pair_secrets_over_time_cost_an_insider_what_own_noise_and_foreign_pairs_leave():
    ratio = 3.0
    found = account("decor-over-time", graph="ring:5", correlation=ratio, period=4, bands=0,
        participation={"cycle": 4}, adversaries=[*AGENTS, "coalition:1,4"],
        **SHORT)  # fmt: skip
    W, alone = ring(5).weights, pair_exposure(ring(5).weights, ratio=ratio)
    assert found["eavesdropper"].joint_sensitivity == pytest.approx(1.0, abs=1e-9)
    for name, knowing in (
        ("neighbour", [frozenset({1})]),
        ("coalition:1,4", [frozenset({1, 4})]),
        ("all-others", [frozenset({1, 2, 3, 4})]),
    ):
        worst = pair_exposure(W, ratio=ratio, knowing=knowing)
        expected = pytest.approx((worst / alone) ** 0.5, rel=1e-9)
        assert found[name].joint_sensitivity == expected, name
        assert str(found[name].status) == "proven"


def test_without_pairs_the_noise_is_that_of_mafalda():
    asked = {"graph": ring(4), "rounds": 12, "period": 4, "bands": 3}
    pairs, own = decor_over_time.prepare(correlation=0.0, **asked), mafalda.prepare(**asked)
    assert torch.equal(pairs["strategy"], own["strategy"])
    assert torch.equal(pairs["shared"].factor, torch.eye(4).double())


@pytest.mark.parametrize("name", ["mafalda", "joint-dsgd", "decor-over-time"])
def test_a_long_run_is_one_traced_round_with_a_strategy_that_is_the_same_in_all(name):
    asked = {} if name != "decor-over-time" else {"correlation": 2.0}
    found = account(name, graph="ring:4", period=20, bands=2, participation={"cycle": 20},
        adversaries=["eavesdropper"], victim=0,
        **asked, **{**RUN, "rounds": 201, "sampling_rate": 0.05})  # fmt: skip
    assert found["eavesdropper"].joint_sensitivity == pytest.approx(1.0, abs=1e-9)


@pytest.mark.slow
def test_a_run_of_joint_noise_on_a_ring_of_ten_costs_its_design():
    found = account("joint-dsgd", graph="ring:10", period=10, bands=0, participation={"cycle": 10},
        adversaries=["eavesdropper"], victim=3,
        **{**RUN, "rounds": 30})["eavesdropper"]  # fmt: skip
    assert found.joint_sensitivity == pytest.approx(1.0, abs=1e-9)


@pytest.mark.slow
def test_the_papers_strategy_on_a_ring_of_ten_costs_what_was_computed_apart_from_it():
    """50 rounds, uses 10 apart, against the eavesdropper."""
    run = RUN | {"rounds": 50, "adversaries": ["eavesdropper"]}
    found = [
        account(
            "mafalda",
            graph="ring:10",
            period=10,
            bands=0,
            participation=pattern,
            victim=3,
            **{**run, "sampling_rate": rate},
        )["eavesdropper"].joint_sensitivity
        for pattern, rate in (
            ({"cycle": 10}, 0.1),
            ({"apart": 10}, 0.05),
            ({"most": 5}, 0.1),
            ("every", 0.1),
        )
    ]
    assert found == pytest.approx([1.0, 1.1116, 1.9405, 7.9625], abs=5e-5)


@pytest.mark.parametrize("algorithm", [decor, decor_over_time])
@pytest.mark.parametrize("ratio", [1e300, 1e9, math.nan, -1.0])
def test_noise_of_pairs_that_floats_would_absorb_own_noise_in_is_refused(algorithm, ratio):
    with pytest.raises(InputError, match=r"correlation=\S+ must lie in \[0, 1e\+08\]"):
        algorithm.Settings(correlation=ratio)
