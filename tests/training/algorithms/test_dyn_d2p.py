"""Dyn-D2P: push-sum, its schedules, and what each round costs."""

import functools
import math

import numpy as np
import pytest
import torch
from torch import nn

from overhear.privacy.accounting.accountant import composed_epsilon
from overhear.privacy.guarantee import Statement, parse_adversary
from overhear.privacy.noise.schedule import Schedule, scheduled_epsilon
from overhear.training.accounts.account import account
from overhear.training.algorithms import ALGORITHMS, bind, dp_dpsgd, dyn_d2p
from overhear.training.engine.engine import Engine
from overhear.training.engine.randomness import SecretRandomness
from overhear.training.engine.recording import Recorded
from overhear.training.engine.transcript import Transcript
from overhear.training.exposure.guarantees import run_epsilon
from overhear.training.exposure.joint_sensitivities import joint_sensitivities
from overhear.training.graphs.graph import Graph, GraphSequence
from overhear.training.graphs.mixing import push_weights
from overhear.training.graphs.topologies import (
    directed_exponential,
    directed_ring,
    full,
    ring,
    star,
)
from overhear.training.models.parameters import flatten, unflatten
from overhear.training.tracing.trace import trace
from tests.training.contract import setting

CONST = dyn_d2p.Settings(clip_decay=1.0, budget_growth=1.0)
NUMBERS = {"learning_rate": 0.3, "batch_size": 4.5}


def irregular(seed: int, *, agents: int = 6, connected: bool = True) -> Graph:
    """A directed graph in which agents send to differently many others."""
    rng = np.random.default_rng(seed)
    arcs = rng.random((agents, agents)) < 0.3
    if connected:
        arcs |= np.roll(np.eye(agents, dtype=bool), 1, axis=0)
    return Graph(name=f"irregular {seed}", weights=push_weights(arcs), connected=connected)


CHANGING = GraphSequence(
    name="changing", graphs=tuple(irregular(s, connected=False) for s in (1, 2, 3))
)
GRAPHS = [irregular(0), CHANGING, directed_exponential(6)]


def engine(
    graph,
    *,
    rounds: int = 5,
    settings=CONST,
    clip_norm=0.2,
    noise_std=0.4,
    rate=0.5,
    name="dyn-d2p",
    taps=(),
) -> Engine:
    bound = bind(
        ALGORITHMS[name], settings, clip_norm=clip_norm, noise_std=noise_std, graph=graph,
        rounds=rounds, **NUMBERS,
    )  # fmt: skip
    return Engine(setting(graph, rate=rate), bound, randomness=SecretRandomness(5), taps=taps)


def traces_of(graph, *, rounds: int = 5, settings=None, clip_norm=0.2, noise_std=0.2):
    bound = bind(
        ALGORITHMS["dyn-d2p"], settings or dyn_d2p.Settings(), clip_norm=clip_norm,
        noise_std=noise_std, graph=graph, rounds=rounds, **NUMBERS,
    )  # fmt: skip
    return trace(
        bound.init, bound.step, graph=graph, rounds=rounds, noise_multiplier=bound.noise_multiplier
    )


@pytest.mark.slow
@pytest.mark.parametrize("graph", GRAPHS, ids=lambda g: g.name)
def test_push_sum_reaches_the_mean_where_columns_alone_sum_to_one(graph):
    silent = engine(graph, rounds=200, rate=0.0, noise_std=0.0)
    rng = torch.Generator().manual_seed(1)
    spread = torch.randn(6, 23, generator=rng, dtype=torch.float64)
    silent.restore({"x": spread}, round=0)
    for _ in range(200):
        silent.advance()
    torch.testing.assert_close(silent.models(), spread.mean(0).expand(6, -1), rtol=0, atol=1e-12)


def test_without_push_weights_the_same_mixing_does_not_reach_the_mean():
    product = np.linalg.matrix_power(irregular(0).weights, 200)
    assert np.ptp(product, axis=1).max() < 1e-9  # every agent's value is its share of the sum
    assert product[:, 0].max() > 1.5 * product[:, 0].min()


@pytest.mark.parametrize("graph", GRAPHS, ids=lambda g: g.name)
def test_the_weighted_mean_of_the_models_is_kept_in_every_round(graph):
    silent = engine(graph, rounds=7, rate=0.0, noise_std=0.0)
    rng = torch.Generator().manual_seed(1)
    spread = torch.randn(6, 23, generator=rng, dtype=torch.float64)
    silent.restore({"x": spread}, round=0)
    w = np.ones(6)
    for index in range(1, 8):
        silent.advance()
        w = graph.at(index).weights @ w
        kept = (torch.from_numpy(w)[:, None] * silent.models()).sum(0)
        torch.testing.assert_close(kept, spread.sum(0), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("graph", GRAPHS, ids=lambda g: g.name)
def test_without_noise_and_clipping_it_is_push_sum_gradient_descent(graph):
    """Stochastic gradient push written out, one agent at a time, by autograd on all records."""
    plain = engine(graph, rounds=4, clip_norm=None, noise_std=0.0, rate=1.0)
    plain.start()
    model, shards = plain.setting.model.double(), plain.setting.shards
    x = np.repeat(flatten(model).detach().numpy()[None], 6, axis=0)
    w = np.ones(6)
    for index in range(1, 5):
        plain.advance()
        P = graph.at(index).weights
        half = np.empty_like(x)
        for i in range(6):
            z = torch.from_numpy(x[i] / w[i]).requires_grad_()
            logits = torch.func.functional_call(
                model, unflatten(model, z), (shards[i].inputs.double(),)
            )
            loss = nn.functional.cross_entropy(logits, shards[i].targets, reduction="sum")
            (gradient,) = torch.autograd.grad(loss, z)
            half[i] = x[i] - 0.3 * gradient.numpy() / 4.5
        x, w = P @ half, P @ w
        np.testing.assert_allclose(plain.models().numpy(), x / w[:, None], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    "graph", [ring(5), star(5), directed_ring(5), directed_exponential(5)], ids=lambda g: g.name
)
def test_where_weights_keep_the_mean_const_is_step_then_mix(graph):
    order = dp_dpsgd.Settings(order=dp_dpsgd.Order.STEP_THEN_MIX)
    runs = [engine(graph), engine(graph, name="dp-dpsgd", settings=order)]
    for started in runs:
        for _ in range(5):
            started.advance()
    torch.testing.assert_close(runs[0].models(), runs[1].models(), rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("graph", GRAPHS, ids=lambda g: g.name)
def test_noise_and_clip_bounds_follow_the_schedule(graph):
    """What is sent is w z - eta (sum + C_k / mu_k noise) / B, each record's part within C_k."""
    transcript = Transcript()
    settings = dyn_d2p.Settings(clip_decay=3.0, budget_growth=5.0)
    started = engine(graph, settings=settings, noise_std=0.4, taps=[transcript])
    started.start()
    w = np.ones((6, 1))
    for k in range(5):
        recorded, z = Recorded(), started.models().numpy().copy()
        started.advance(recorded=recorded)
        bound, std = 0.2 * 3.0 ** (-k / 5), 0.4 * 3.0 ** (-k / 5) * 5.0 ** (-k / 5)
        sums, noise = recorded.contributions[0].numpy(), recorded.noise[0].numpy()
        assert np.linalg.norm(sums, axis=1).max() <= 9 * bound * (1 + 1e-9)  # nine records at most
        assert np.linalg.norm(sums, axis=1).max() > bound  # and more than one was drawn
        (message,) = transcript.of(round=k + 1, kind="model")
        expected = w * z - 0.3 * (sums + std * noise) / 4.5
        np.testing.assert_allclose(message.rows.numpy(), expected, rtol=1e-11, atol=1e-12)
        w = graph.at(k + 1).weights @ w


@pytest.mark.parametrize("graph", GRAPHS, ids=lambda g: g.name)
@pytest.mark.parametrize(
    ("clip_decay", "budget_growth"), [(4.0, 4.0), (4.0, 1.0), (1.0, 4.0), (1.0, 1.0)]
)
def test_a_round_is_one_release_at_its_own_multiplier_for_the_eavesdropper(
    graph, clip_decay, budget_growth
):
    """Of noise multiplier 1: round k has mu_k / mu_0 = rho_mu^(k/K), whatever the clip bound."""
    settings = dyn_d2p.Settings(clip_decay=clip_decay, budget_growth=budget_growth)
    traces = traces_of(graph, settings=settings)
    ((_, found),) = joint_sensitivities(traces, ["eavesdropper"], sampling_rate=0.1)
    mus = [r.joint_sensitivity for r in found.releases]
    assert mus == pytest.approx([budget_growth ** (k / 5) for k in range(5)], rel=1e-9)
    neighbour = parse_adversary("neighbour:1", 6)
    heard = [one.sensitivities(neighbour, 0)[0].mu for one, _ in traces.rounds]
    assert all(h <= m * (1 + 1e-9) for h, m in zip(heard, mus, strict=True))


def test_the_epsilon_of_a_run_is_that_of_its_schedule():
    traces = traces_of(irregular(0), rounds=30)
    ((_, found),) = joint_sensitivities(traces, ["eavesdropper"], sampling_rate=0.05)
    found = found._replace(noise_multiplier=None)  # the noise scales with noise_std
    spent = run_epsilon(found, noise_multiplier=3.0, statement=Statement(delta=1e-5))
    schedule = Schedule(rounds=30, sampling_rate=0.05)
    assert spent == pytest.approx(
        scheduled_epsilon(schedule, 3.0, statement=Statement(delta=1e-5)), rel=1e-6
    )


def test_without_noise_or_without_clipping_every_onlooker_learns_everything():
    for numbers in ({"noise_std": 0.0}, {"clip_norm": None}):
        ((_, found),) = joint_sensitivities(
            traces_of(irregular(0), **numbers), ["eavesdropper"], sampling_rate=0.1
        )
        assert found.largest == math.inf


def test_a_long_schedule_shares_one_view_for_each_graph():
    traces = traces_of(directed_exponential(6), rounds=40)
    bases = {id(one.scale_of[0]) if one.scale_of else id(one) for one, _ in traces.rounds}
    assert len(traces.rounds) == 40
    assert len(bases) == len(directed_exponential(6).graphs)


def test_a_restored_run_continues_as_if_it_had_not_stopped():
    whole, resumed = engine(CHANGING), engine(CHANGING)
    for _ in range(2):
        whole.advance()
    resumed.restore(whole.snapshot(), round=2)
    for started in (whole, resumed):
        for _ in range(3):
            started.advance()
    assert torch.equal(whole.models(), resumed.models())


def test_a_round_beyond_the_schedule_is_refused():
    started = engine(ring(5), rounds=2)
    started.advance()
    started.advance()
    with pytest.raises(ValueError, match="round 3 is beyond the planned rounds=2"):
        started.advance()


@pytest.mark.parametrize("name", ["clip_decay", "budget_growth"])
@pytest.mark.parametrize("value", [0.0, -1.0, math.inf, math.nan])
def test_settings_out_of_range_are_refused(name, value):
    with pytest.raises(ValueError, match=rf"{name}=.* must be above 0"):
        dyn_d2p.Settings(**{name: value})


def listed(rounds, *, clip, noise):
    """What the step gets of lists."""
    settings = dyn_d2p.Settings(clip_norms=clip, noise_multipliers=noise)
    return dyn_d2p.prepare(graph=ring(5), rounds=rounds, settings=settings)


def test_the_geometric_schedule_as_lists_is_the_same_run():
    rounds = 12
    clip = [3.0 ** (-k / rounds) for k in range(rounds)]
    noise = [5.0 ** (-k / rounds) for k in range(rounds)]
    made = listed(rounds, clip=clip, noise=noise)
    factors = dyn_d2p.Settings(clip_decay=3.0, budget_growth=5.0)
    whole = dyn_d2p.prepare(graph=ring(5), rounds=rounds, settings=factors)
    assert np.asarray(made["scales"]) == pytest.approx(np.asarray(whole["scales"]), rel=1e-14)
    given = {"graph": ring(5), "rounds": rounds, "sampling_rate": 0.1, "delta": 1e-5}
    by_list = account(
        "dyn-d2p", noise_multiplier=3.0, clip_norms=clip, noise_multipliers=noise, **given
    )
    by_factor = account("dyn-d2p", noise_multiplier=3.0, clip_decay=3.0, budget_growth=5.0, **given)
    assert by_list.epsilon("eavesdropper") == pytest.approx(
        by_factor.epsilon("eavesdropper"), rel=1e-9
    )


def test_entries_of_a_list_hold_for_equal_stretches_of_rounds():
    made = listed(6, clip=(1.0, 0.5), noise=(2.0, 4.0, 1.0))
    clip, noise = zip(*made["scales"], strict=True)
    assert clip == (1.0, 1.0, 1.0, 0.5, 0.5, 0.5)
    assert noise == (2.0, 2.0, 4.0, 2.0, 0.5, 0.5)


@pytest.mark.parametrize("noise", [(2.0, 4.0, 1.0), (1.0, 1.0, 3.0)])
def test_a_list_costs_the_composition_of_its_rounds(noise):
    found = account(
        "dyn-d2p", noise_multiplier=1.5, noise_multipliers=list(noise), clip_norms=[1.0, 0.1],
        graph=directed_ring(4), rounds=6, sampling_rate=0.2, delta=1e-5,
    )  # fmt: skip
    rounds = [(1.5 * entry, 0.2) for entry in noise for _ in range(2)]
    wanted = composed_epsilon(rounds, delta=1e-5, adjacency="add-or-remove-one")
    assert found.epsilon("eavesdropper") == pytest.approx(wanted, rel=1e-6)
    assert found.epsilon("eavesdropper") >= wanted * (1 - 1e-9)


@pytest.mark.parametrize("name", ["clip_norms", "noise_multipliers"])
@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ((1.0, 0.0), r"\[1\]=0.0 must lie in"),
        ((1.0, -1.0), r"\[1\]=-1.0 must lie in"),
        ((math.nan,), r"\[0\]=nan must lie in"),
        ((1e7, 1.0), r"\[0\]=10000000.0 must lie in"),
        ((), "is empty"),
        ("1", "must be a list"),
        (1.0, "must be a list"),
    ],
)
def test_a_list_out_of_range_is_refused(name, entries, message):
    with pytest.raises((ValueError, TypeError), match=name + ".*" + message):
        dyn_d2p.Settings(**{name: entries})


def test_a_list_that_does_not_fit_the_rounds_or_has_a_factor_beside_it_is_refused():
    with pytest.raises(ValueError, match="clip_norms has 4 entries, which does not fit rounds=6"):
        listed(6, clip=(1.0, 1.0, 1.0, 1.0), noise=None)
    with pytest.raises(ValueError, match="noise_multipliers has 7 entries"):
        listed(6, clip=None, noise=7 * (1.0,))
    with pytest.raises(ValueError, match=r"budget_growth=4\.0 has no effect beside noise_mult"):
        dyn_d2p.Settings(noise_multipliers=(1.0,), budget_growth=4.0)


def test_graph_and_rounds_are_needed_where_something_is_prepared():
    known = ALGORITHMS["dyn-d2p"]
    with pytest.raises(ValueError, match="'dyn-d2p' needs graph and rounds"):
        bind(known, known.settings(), clip_norm=1.0, noise_std=1.0, **NUMBERS)


@pytest.mark.parametrize("name", ["dsgd", "dp-dpsgd", "dpdl"])
def test_an_algorithm_that_averages_refuses_weights_that_move_the_mean(name):
    known, graph = ALGORITHMS[name], irregular(0)
    numbers = {"clip_norm": 1.0, "noise_std": 1.0, **NUMBERS}
    with pytest.raises(ValueError, match=r"only the columns of the weights sum to 1.*dyn-d2p"):
        bind(known, known.settings(), graph=graph, rounds=3, **numbers)
    bound = bind(known, known.settings(), **numbers)
    with pytest.raises(ValueError, match="mixing would move the mean"):
        Engine(setting(graph), bound)


def test_push_sum_refuses_weights_of_which_rows_alone_sum_to_one():
    rows = Graph(name="rows", weights=irregular(0).weights.T)
    with pytest.raises(ValueError, match=r'only the rows of the weights.*give "arcs"'):
        engine(rows)
    assert engine(full(5)).setting.graph.agents == 5


def test_a_prepared_value_that_the_step_does_not_take_is_refused():
    from dataclasses import replace

    for prepared in ({"typo": 1.0}, {"clip_norm": 2.0}):

        def prepare(*, clip_decay, budget_growth, clip_norms, noise_multipliers, given=prepared):
            return given

        wrong = replace(ALGORITHMS["dyn-d2p"], prepare=prepare)
        with pytest.raises(TypeError, match=f"prepare of 'dyn-d2p' gives '{next(iter(prepared))}'"):
            bind(wrong, CONST, clip_norm=1.0, noise_std=1.0, graph=ring(5), rounds=3, **NUMBERS)


def test_a_clip_norm_that_is_carried_in_the_state_is_refused():
    """A bound that follows released values, as adaptive clipping has it, is no public number."""

    def adaptive(state, round, *, noise_std):
        sums = round.clipped_sums(state.x, batch=round.draw(), clip_norm=state.x)
        return dyn_d2p.State(round.mix(sums + round.noise(sums, std=noise_std), kind="model"))

    with pytest.raises(TypeError, match=r"clip_norm=.* must be a number"):
        trace(
            dyn_d2p.init, functools.partial(adaptive, noise_std=1.0), graph=ring(3), rounds=2,
            noise_multiplier=1.0,
        )  # fmt: skip
