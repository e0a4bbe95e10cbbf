"""Noise that later rounds take back: the whole run is the matrix mechanism, and nothing less."""

import functools

import numpy as np
import pytest

from overhear.privacy import EAVESDROPPER
from overhear.privacy.errors import UnsupportedView
from overhear.training import UndeclaredOperation, account, build_graph
from overhear.training.algorithms.dp_ftrl import State
from overhear.training.exposure.dense_rounds import streamed_view
from overhear.training.exposure.joint_sensitivities import joint_sensitivities
from overhear.training.exposure.whole_run import whole_run_joint_sensitivities
from overhear.training.step.round import Round
from overhear.training.tracing.trace import trace

NUMBERS = {"learning_rate": 0.1, "clip_norm": 1.0, "noise_std": 1.0, "batch_size": 3.0}


def init(round: Round, *, length: int) -> State:
    x = round.initial()
    return State(x, (0.0 * x,) * length)


def taking_back(
    state: State,
    round: Round,
    *,
    share: float,
    learning_rate: float,
    clip_norm: float,
    noise_std: float,
    batch_size: float,
) -> State:
    """Adds z_t - share z_(t-1)."""
    sums = round.clipped_sums(state.x, batch=round.draw(), clip_norm=clip_norm)
    fresh = round.noise(sums, std=noise_std)
    noise = fresh - share * state.past[0]
    x = state.x - learning_rate * (sums + noise) / batch_size
    return State(round.mix(x, kind="model"), (fresh,))


def by_strategy(
    state: State,
    round: Round,
    *,
    strategy: np.ndarray,
    learning_rate: float,
    clip_norm: float,
    noise_std: float,
    batch_size: float,
) -> State:
    """Adds row t of C^-1 Z; strategy (T, p) has C[t, t], C[t, t-1], ..."""
    sums = round.clipped_sums(state.x, batch=round.draw(), clip_norm=clip_norm)
    fresh = round.noise(sums, std=noise_std)
    noise, past = round.remembered(fresh, state.past, row=strategy[round.index - 1].tolist())
    x = state.x - learning_rate * (sums + noise) / batch_size
    return State(round.mix(x, kind="model"), past)


def traced(step, *, graph="ring", agents=4, rounds, length=1, **own):
    return trace(
        functools.partial(init, length=length), functools.partial(step, **own, **NUMBERS),
        graph=build_graph(graph, agents), rounds=rounds, noise_multiplier=1.0,
    )  # fmt: skip


def whole_run(traces, *, participation="every", adversary="eavesdropper"):
    ((_, found),) = whole_run_joint_sensitivities(
        traces, [adversary], participation=participation, sampling_rate=0.1
    )
    return found


@pytest.mark.parametrize(
    ("share", "rounds", "every", "once"),
    [
        (0.0, 5, 2.236068, 1.0),
        (0.5, 5, 3.685381, 1.154137),
        (0.9, 5, 6.367940, 1.851488),
        (0.0, 12, 3.464102, 1.0),
        (0.5, 12, 6.429252, 1.154701),
        (0.9, 12, 17.340221, 2.200758),
    ],
)
def test_noise_that_is_taken_back_costs_what_the_matrix_mechanism_costs(share, rounds, every, once):
    """By hand: N is bidiagonal, and M = N^-T N^-1."""
    inverse = np.linalg.inv(np.eye(rounds) - share * np.eye(rounds, k=-1))
    M = inverse.T @ inverse
    assert np.sqrt(np.abs(M).sum()) == pytest.approx(every, abs=1e-6)
    assert np.sqrt(M.diagonal().max()) == pytest.approx(once, abs=1e-6)
    traces = traced(taking_back, rounds=rounds, share=share)
    assert whole_run(traces).largest == pytest.approx(every, abs=1e-6)
    assert whole_run(traces, participation=1).largest == pytest.approx(once, abs=1e-6)


@pytest.mark.parametrize("adversary", ["neighbour", "final-models", "all-others"])
def test_agents_and_final_models_learn_no_less_of_noise_that_is_taken_back(adversary):
    traces = traced(taking_back, rounds=12, share=0.5)
    assert whole_run(traces, adversary=adversary).largest == pytest.approx(6.429252, abs=1e-6)


@pytest.mark.parametrize("seed", range(4))
def test_the_information_of_a_run_is_that_of_its_strategy(seed):
    """Random lower triangular C with p bands: M = C'C, to rounding."""
    rng = np.random.default_rng(seed)
    rounds, bands = int(rng.integers(3, 9)), int(rng.integers(1, 5))
    rows = rng.normal(size=(rounds, bands))
    rows[:, 0] = 0.3 + np.abs(rows[:, 0])
    C = np.zeros((rounds, rounds))
    for t in range(rounds):
        for back in range(min(bands, t + 1)):
            C[t, t - back] = rows[t, back]
    graph = ["ring", "grid", "star", "full"][seed]
    traces = traced(by_strategy, graph=graph, rounds=rounds, length=bands - 1, strategy=rows)
    for victim in (0, 2):
        view = streamed_view(traces, EAVESDROPPER, victims=[victim])
        np.testing.assert_allclose(view.information(victim), C.T @ C, rtol=1e-9, atol=1e-9)


def test_memory_of_which_nothing_is_used_costs_what_fresh_noise_costs():
    traces = traced(taking_back, rounds=9, share=0.0)
    assert whole_run(traces).largest == pytest.approx(3.0)


def test_an_account_carries_remembered_noise_and_never_closes_it():
    """Closed round by round it would be infinite, as noise that everybody sees."""
    found = account(
        functools.partial(init, length=1), functools.partial(taking_back, share=0.5),
        graph="ring:4", rounds=12, sampling_rate=0.1, delta=1e-5, noise_multiplier=2.0,
    )  # fmt: skip
    stated = found["eavesdropper"]
    assert stated.joint_sensitivity == pytest.approx(6.429252, abs=1e-6)
    assert str(stated.status) == "proven"


def refused(change):
    """What the tracer says of a step that does one more thing with its history."""

    def step(state, round, *, learning_rate, clip_norm, noise_std, batch_size):
        sums = round.clipped_sums(state.x, batch=round.draw(), clip_norm=clip_norm)
        fresh = round.noise(sums, std=noise_std)
        noise, past = round.remembered(fresh, state.past, row=[1.0, 0.5])
        x = round.mix(state.x - learning_rate * (sums + noise) / batch_size, kind="model")
        return change(state, round, sums, noise, State(x, past))

    with pytest.raises(UndeclaredOperation) as error:
        traced(step, rounds=3)
    return str(error.value)


@pytest.mark.parametrize(
    ("kept", "words"),
    [
        (lambda s, r, g, n, end: end._replace(past=(n + 1e-3 * g,)), "holds clipped data"),
        (lambda s, r, g, n, end: end._replace(past=(n + s.x,)), "holds state x"),
        (lambda s, r, g, n, end: end._replace(past=(end.x,)), "holds what was sent (model)"),
        (
            lambda s, r, g, n, end: end._replace(past=(r.postprocess(lambda x: 2 * x, s.x),)),
            "holds result of postprocess",
        ),
        (lambda s, r, g, n, end: end._replace(past=[n]), "holds list"),
        (lambda s, r, g, n, end: end._replace(past=(n, n)), "a history as many values"),
    ],
    ids=["data", "x", "message", "function", "list", "longer"],
)
def test_a_history_that_holds_anything_but_noise_is_refused(kept, words):
    assert words in refused(kept)


@pytest.mark.parametrize(
    ("shown", "words"),
    [
        (lambda s, r: r.mix(s.past[0], kind="noise"), "the message 'noise'"),
        (
            lambda s, r: r.clipped_sums(s.past[0], batch=r.draw(), clip_norm=1.0),
            "model at which gradients are taken",
        ),
        (lambda s, r: r.postprocess(lambda x: 2 * x, s.past[0]), "input of postprocess"),
        (
            lambda s, r: r.clipped_sums(s.x + s.past[0], batch=r.draw(), clip_norm=1.0),
            "model at which gradients are taken",
        ),
    ],
    ids=["sent", "point", "function", "point beside x"],
)
def test_remembered_noise_is_not_shown_and_nothing_is_computed_at_it(shown, words):
    def change(state, round, sums, noise, end):
        shown(state, round)
        return end

    said = refused(change)
    assert words in said
    assert "add the noise of round.remembered to a clipped sum first" in said


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ([], "has 0 numbers"),
        ([1.0, 0.5, 0.25], "has 3 numbers"),
        ([0.0, 0.5], "above 0"),
        ([-1.0], "above 0"),
        ([1.0, float("nan")], "finite"),
        ("1", "list of numbers"),
        (np.eye(2), "one row"),
        ([True], "list of numbers"),
    ],
)
def test_a_row_that_is_none_of_a_strategy_is_refused(row, words):
    def step(state, round, *, learning_rate, clip_norm, noise_std, batch_size):
        fresh = round.noise(state.x, std=noise_std)
        noise, past = round.remembered(fresh, state.past, row=row)
        return State(state.x + noise, past)

    with pytest.raises((ValueError, TypeError), match=words):
        traced(step, rounds=2)


def test_the_best_test_of_a_run_sees_what_is_claimed_and_refutes_less():
    """40,000 runs of a ring of four whose others' gradients jump with the models they are sent.

    The record adds 1 in each of 12 rounds, behind z_t - .5 z_(t-1) at mu 1. The statistic is the
    best one, from the information of the trace. Means lie within .03 of -.5 and .5 (four errors),
    and the bound on mu from below, at 95 %, exceeds what independent rounds, forgotten memory and
    marginal variances would claim. A fixed seed.
    """
    from scipy.stats import binom, norm

    runs, rounds, eta, share = 20_000, 12, 0.3, 0.5
    M = streamed_view(traced(taking_back, rounds=rounds, share=share), EAVESDROPPER,
        victims=[0]).information(0)  # fmt: skip
    scale = np.sqrt(np.abs(M).sum())  # noise multiplier of mu 1
    W, rng = build_graph("ring", 4).weights, np.random.default_rng(5)

    def scores(there: float) -> np.ndarray:
        x, past = np.zeros((runs, 4)), np.zeros((runs, 4))
        seen = np.zeros((runs, rounds))
        for t in range(rounds):
            honest = np.sign(x - np.median(x, axis=1, keepdims=True)) + np.floor(3 * x)
            fresh = scale * rng.standard_normal((runs, 4))
            sent = x - eta * (honest + there * np.eye(4)[0] + fresh - share * past)
            seen[:, t] = (x - sent)[:, 0] / eta - honest[:, 0]
            x, past = sent @ W.T, fresh
        return (seen / scale) @ (M / scale).sum(axis=1) - 0.5

    absent, present = scores(0.0), scores(1.0)
    for found, mean in ((absent, -0.5), (present, 0.5)):
        assert found.mean() == pytest.approx(mean, abs=0.03)
        assert found.var() == pytest.approx(1.0, abs=0.05)
    # From below: the true-positive and false-positive rates at 0, each surely to 97.5 %.
    hits = float(binom.ppf(0.025, runs, (present > 0).mean())) / runs
    alarms = float(binom.ppf(0.975, runs, (absent > 0).mean())) / runs
    least = norm.ppf(hits) - norm.ppf(alarms)
    forgotten = np.sqrt(rounds) / scale
    marginal = np.sqrt(rounds / (1 + share**2)) / scale
    alone = np.sqrt(M.diagonal().sum()) / scale
    assert max(forgotten, marginal, alone) < 0.63 < 0.95 < least <= 1.0


def test_a_coalition_with_the_victim_is_refused_where_noise_has_memory():
    """It was given an infinite epsilon, "cannot be expressed"."""
    run = traced(by_strategy, rounds=2, strategy=np.array([[1.0, 0.0], [1.0, 0.5]]))
    with pytest.raises(UnsupportedView, match="coalition:0,1 contains the victim 0"):
        joint_sensitivities(run, ["coalition:0,1"], sampling_rate=0.1, victim=0)
