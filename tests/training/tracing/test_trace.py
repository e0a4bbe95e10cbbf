"""The trace: what the code sends, as rows over gradients and noise."""

import functools
import math
from typing import NamedTuple

import numpy as np
import pytest
import torch

from overhear.privacy.errors import UndeclaredOperation, UnsupportedView
from overhear.privacy.guarantee import parse_adversary
from overhear.training.algorithms import ALGORITHMS, Form, dp_cga, dp_dpsgd, dp_netfleet, dpdl
from overhear.training.algorithms.compression import Compressor
from overhear.training.graphs.graph import Graph
from overhear.training.graphs.mixing import push_weights
from overhear.training.graphs.topologies import bipartite, directed_exponential, full, ring, star
from overhear.training.step.round import Round
from overhear.training.step.values import Agents
from overhear.training.tracing.linear_forms import NoiseSources
from overhear.training.tracing.round_trace import RoundTrace
from overhear.training.tracing.trace import trace
from tests.training.contract import bound_to, check_rows, joint, traced
from tests.training.states import State, start

ADVERSARIES = ("eavesdropper", "neighbour:1", "coalition:1,9", "final-models")
NUMBERS = {"learning_rate": 0.01, "clip_norm": 1.0, "noise_std": 1.0, "batch_size": 7.0}


def dpdl_trace(graph: Graph, form: Form, alpha: float) -> RoundTrace:
    settings = dpdl.Settings(alpha=alpha, momentum=0.9)
    step = functools.partial(dpdl.step, form=form, settings=settings, **NUMBERS)
    return traced(dpdl.init, step, graph)


@pytest.mark.parametrize(
    ("graph", "expected"),
    [(ring(10), math.sqrt(3)), (full(10), math.sqrt(10))],
    ids=["ring", "full"],
)
@pytest.mark.parametrize("adversary", ADVERSARIES)
def test_repaired_dpdl_costs_sqrt_of_the_neighbourhood(graph, expected, adversary):
    assert joint(dpdl_trace(graph, Form.REPAIRED, 1.0), adversary) == pytest.approx(
        expected, abs=1e-9
    )


@pytest.mark.parametrize(
    ("graph", "alpha", "expected"),
    [
        (ring(10), 1.0, 5.5592),
        (ring(30), 1.0, 14.1995),
        (ring(10), 0.1, 2.0166),
        (full(10), 1.0, 4.5321),
        (full(10), 0.1, 3.2461),
    ],
)
def test_published_dpdl_costs_what_its_calibration_adds(graph, alpha, expected):
    published = dpdl_trace(graph, Form.PUBLISHED, alpha)
    assert joint(published, "eavesdropper") == pytest.approx(expected, abs=5e-5)
    assert published.blames


def test_the_published_factor_follows_its_closed_form_on_an_irregular_graph():
    graph = bipartite(7)
    published = dpdl_trace(graph, Form.PUBLISHED, 0.7)
    for agent in range(7):
        own = graph.weights[agent, agent]
        kappa = 1 + 0.7 * dpdl.calibration_gain() * math.sqrt(own) * 7
        expected = math.sqrt(graph.degree(agent) - 1 + kappa**2)
        assert joint(published, "eavesdropper", agent) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("order", list(dp_dpsgd.Order))
def test_dp_dpsgd_is_one_release_a_round_for_whoever_reads_links(order):
    step = functools.partial(dp_dpsgd.step, order=order, **NUMBERS)
    one = traced(dp_dpsgd.init, step, ring(10))
    for adversary in ("eavesdropper", "neighbour:1", "coalition:1,9"):
        assert joint(one, adversary) == pytest.approx(1.0, abs=1e-9)


@pytest.mark.parametrize(
    ("graph", "mu_squared"), [(full(10), 0.1), (ring(30), 14 / 15), (ring(10), 1.0)]
)
def test_final_models_of_step_then_mix_see_what_mixing_leaves(graph, mu_squared):
    step = functools.partial(dp_dpsgd.step, order=dp_dpsgd.Order.STEP_THEN_MIX, **NUMBERS)
    one = traced(dp_dpsgd.init, step, graph)
    assert joint(one, "final-models") ** 2 == pytest.approx(mu_squared, abs=1e-9)


def test_the_worst_victim_of_a_star_under_the_published_form_is_a_leaf():
    one = dpdl_trace(star(10), Form.PUBLISHED, 1.0)
    hub, leaf = joint(one, "eavesdropper", 0), joint(one, "eavesdropper", 3)
    assert (round(hub, 2), round(leaf, 2)) == (4.53, 8.25)


def _clean_local_model(state: State, round: Round) -> State:
    sums = round.clipped_sums(state.x, batch=round.draw(), clip_norm=1.0)
    local = state.x - 0.1 * sums
    round.broadcast(local + round.noise(local, std=1.0), kind="noisy model")
    return State(local)


def test_noise_on_messages_with_a_clean_local_model_is_infinite():
    one = traced(start, _clean_local_model, ring(5))
    who = parse_adversary("eavesdropper", 5)
    (found,) = one.sensitivities(who, 0)
    assert found.mu == math.inf
    assert "state x" in found.because


def _seed_reused(state: State, round: Round) -> State:
    sums = round.clipped_sums(state.x, batch=round.draw(), clip_norm=1.0)
    z = round.noise(sums, std=1.0)
    round.broadcast(2.0 * sums + z, kind="first")
    return State(round.mix(sums + z, kind="second"))


def test_one_noise_in_two_different_messages_cancels_and_both_are_named():
    (found,) = traced(start, _seed_reused, ring(5)).sensitivities(
        parse_adversary("eavesdropper", 5), 0
    )
    assert found.mu == math.inf
    assert "first" in found.because
    assert "second" in found.because


def test_a_message_scaled_down_costs_the_same():
    def step(state, round):
        sums = round.clipped_sums(state.x, batch=round.draw(), clip_norm=1.0)
        return State(1e-8 * round.mix(sums + round.noise(sums, std=1.0), kind="tiny"))

    assert joint(traced(start, step, ring(5)), "eavesdropper") == pytest.approx(1.0, abs=1e-9)


def test_two_batches_of_one_sum_are_one_that_a_record_may_be_in_twice():
    def step(state, round):
        first = round.clipped_sums(state.x, batch=round.draw(), clip_norm=1.0)
        second = round.clipped_sums(state.x, batch=round.draw(), clip_norm=1.0)
        noisy = first + second + round.noise(first, std=1.0)
        return State(round.mix(noisy, kind="sum"))

    one = traced(start, step, ring(5))
    found = one.sensitivities(parse_adversary("eavesdropper", 5), 0)
    assert [(s.mu, s.summed) for s in found] == [(1.0, 2), (0.0, 1)]


def test_noise_that_an_agent_made_does_not_protect_from_it():
    def step(state, round):
        sums = round.clipped_sums(state.x, batch=round.draw(), clip_norm=1.0)
        shared = round.noise(sums, std=1.0, known_to=[frozenset({1})] * round.agents)
        return State(round.mix(sums + shared, kind="masked"))

    one = traced(start, step, ring(5))
    assert joint(one, "eavesdropper") == pytest.approx(1.0, abs=1e-9)
    assert joint(one, "neighbour:1") == math.inf


def test_a_victim_inside_the_coalition_is_refused():
    one = dpdl_trace(ring(5), Form.REPAIRED, 1.0)
    with pytest.raises(UnsupportedView, match="contains the victim"):
        joint(one, "coalition:0,1")


@pytest.mark.parametrize(
    ("misuse", "named"),
    [
        (lambda sums, _: torch.tanh(sums), "tanh"),
        (lambda sums, _: sums * sums, "product of two private"),
        (lambda sums, _: sums + torch.ones(5, 3), "Agents"),
        (lambda sums, round: sums if sums else round.spread(sums), "__bool__"),
        (lambda sums, _: sums.norm(), "give clip_norm to round.clipped_sums"),
        (lambda sums, _: sums.rows, "may not look at a value"),
        (lambda sums, _: torch.relu(sums), "relu"),
        (lambda sums, _: sums + torch.randn(5, 3), r"noise comes from round\.noise"),
        (lambda sums, _: torch.randn(5, 3) + sums, r"noise comes from round\.noise"),
        (lambda sums, _: sums / sums, "dividing by a private"),
        (lambda sums, round: round.spread(sums) + sums, "another holder"),
        (lambda sums, _: sums * torch.ones(5, 3), "one number a row"),
    ],
)
def test_an_undeclared_operation_is_refused_and_named(misuse, named):
    def step(state, round):
        sums = round.clipped_sums(state.x, batch=round.draw(), clip_norm=1.0)
        return State(misuse(sums, round))

    with pytest.raises(UndeclaredOperation, match=named):
        traced(start, step, ring(5))


def _two_hidden_local_steps(state: State, round: Round) -> State:
    """Two noisy local steps, each on a batch of its own; only their end is sent."""
    x = state.x
    for _ in range(2):
        sums = round.clipped_sums(x, batch=round.draw(), clip_norm=1.0)
        x = x - 0.1 * (sums + round.noise(sums, std=1.0))
    return State(round.mix(x, kind="model"))


def test_the_points_of_hidden_local_steps_count_as_seen():
    one = traced(start, _two_hidden_local_steps, ring(5))
    found = one.sensitivities(parse_adversary("eavesdropper", 5), 0)
    assert [s.mu for s in found] == pytest.approx([1.0, 1.0])  # the messages alone would say .7071


def test_a_batch_does_not_show_its_records():
    def step(state, round):
        return State(state.x * float(len(round.draw().records)))

    with pytest.raises(AttributeError, match="records"):
        traced(start, step, ring(5))


def test_the_width_of_a_value_is_not_known_in_a_trace():
    def step(state, round):
        return State(state.x * (1.0 / state.x.shape[1]))

    with pytest.raises(UndeclaredOperation, match=r"round\.noise\(like, std"):
        traced(start, step, ring(5))


@pytest.mark.parametrize("carry", ["closure", "default", "partial", "list", "method"])
def test_a_function_that_brings_a_secret_along_is_refused(carry):
    def step(state, round):
        sums = round.clipped_sums(state.x, batch=round.draw(), clip_norm=1.0)

        def fn(model, held=None):
            return model

        def closure(model):
            return model + sums

        def default(model, held=sums):
            return model

        kept = [sums]

        def from_list(model):
            return model + kept[0]

        given = {
            "closure": closure,
            "default": default,
            "partial": functools.partial(fn, held=sums),
            "list": from_list,
            "method": sums.__add__,
        }[carry]
        return State(round.postprocess(given, state.x))

    with pytest.raises(UndeclaredOperation, match="give it as an argument"):
        traced(start, step, ring(5))


def test_a_stale_value_is_refused_in_a_list():
    kept = []

    def init(round):
        x = round.initial()
        kept.append(round.clipped_sums(x, batch=round.draw(), clip_norm=1.0))
        return State(x)

    def step(state, round):
        sums = round.clipped_sums(state.x, batch=round.draw(), clip_norm=1.0)
        return State(
            round.bounded(_identity, sums, private=kept[:1], lipschitz=1.0, blame="a test")
        )

    with pytest.raises(UndeclaredOperation, match="another round"):
        trace(init, step, graph=ring(5), rounds=2, noise_multiplier=1.0)


def _identity(first, *_):
    return first


def test_coefficients_that_cancel_up_to_rounding_are_refused():
    def step(state, round):
        s = round.clipped_sums(state.x, batch=round.draw(), clip_norm=1.0)
        return State(state.x + 1e9 * ((s * 0.1 + s * 0.2) - s * 0.3))

    with pytest.raises(UndeclaredOperation, match="cancel up to rounding"):
        traced(start, step, ring(5))


def _noisy_mix(factor=None):
    def step(state, round):
        sums = round.clipped_sums(state.x, batch=round.draw(), clip_norm=1.0)
        return State(round.mix(sums + round.noise(sums, std=1.0, factor=factor), kind="noisy"))

    return step


def test_an_agent_knows_the_noise_that_it_makes():
    """Agent 1's noise in what agent 0 sends protects it from everybody but agent 1."""
    swapped = torch.eye(5)[[1, 0, 2, 3, 4]]
    pair = torch.eye(5) + swapped  # agents 0 and 1 share both of their sources
    pair[1, 1] = 2.0
    one = traced(start, _noisy_mix(pair.double()), ring(5))
    assert joint(one, "neighbour:1") == math.inf
    assert joint(one, "neighbour:4") < math.inf
    plain = traced(start, _noisy_mix(), ring(5))
    (group,) = [g for g in plain.groups if isinstance(g, NoiseSources)]
    assert list(group.known_to) == [frozenset({i}) for i in range(5)]


def test_an_agent_sees_what_it_sends_and_what_is_sent_to_it():
    one = traced(start, _noisy_mix(), ring(5))
    (sent,) = one.messages
    assert sent.seen_by(frozenset({1})).tolist() == [True, True, True, False, False]
    alone = traced(start, _noisy_mix(), ring(1))
    assert not alone.messages[0].seen_by(frozenset({0})).any()


def test_the_released_inputs_of_bounded_count_as_seen():
    def step(state, round):
        models = round.broadcast(state.x, kind="model")
        sums = round.clipped_sums(models, batch=round.draw(), clip_norm=1.0)
        got = round.reply(sums + round.noise(sums, std=1.0), kind="reply")
        own = round.own(sums)
        pull = round.bounded(_identity, own, released=(got,), lipschitz=0.0, blame="a test")
        return State(state.x + pull)

    one = traced(start, step, ring(5))
    # Nothing but the closure over `released` shows a far agent's replies to the final models.
    assert joint(one, "final-models") == pytest.approx(math.sqrt(2))


class _Counted(NamedTuple):
    x: Agents
    k: torch.Tensor


def test_a_public_counter_that_changes_the_noise_is_traced_in_every_round():
    def init(round):
        return _Counted(round.initial(), torch.tensor(0.0))

    def step(state, round):
        sums = round.clipped_sums(state.x, batch=round.draw(), clip_norm=1.0)
        noisy = sums + round.noise(sums, std=0.5 ** float(state.k))
        return _Counted(round.mix(noisy, kind="fading"), state.k + 1)

    found = trace(init, step, graph=ring(5), rounds=3, noise_multiplier=1.0)
    who = parse_adversary("eavesdropper", 5)
    mus = [one.sensitivities(who, 0)[0].mu for one, _ in found.rounds]
    assert [count for _, count in found.rounds] == [1, 1, 1]
    assert mus == pytest.approx([1.0, 2.0, 4.0])


def test_a_step_that_reads_its_round_is_traced_in_every_round():
    def step(state, round):
        sums = round.clipped_sums(state.x, batch=round.draw(), clip_norm=1.0)
        return State(round.mix(sums + round.noise(sums, std=1.0 / round.index), kind="fading"))

    found = trace(start, step, graph=ring(5), rounds=3, noise_multiplier=1.0)
    who = parse_adversary("eavesdropper", 5)
    assert [one.sensitivities(who, 0)[0].mu for one, _ in found.rounds] == pytest.approx([1, 2, 3])


def test_a_step_with_a_hidden_counter_is_refused():
    calls = []

    def step(state, round):
        calls.append(1)
        sums = round.clipped_sums(state.x, batch=round.draw(), clip_norm=1.0)
        return State(round.mix(sums + round.noise(sums, std=0.5 ** len(calls)), kind="fading"))

    with pytest.raises(UnsupportedView, match="without reading"):
        trace(start, step, graph=ring(5), rounds=3, noise_multiplier=1.0)


class _Held(NamedTuple):
    x: Agents
    held: object


def test_a_batch_kept_for_later_rounds_is_refused():
    kept = []

    def init(round):
        kept.append(round.draw())
        return State(round.initial())

    def step(state, round):
        sums = round.clipped_sums(state.x, batch=kept[0], clip_norm=1.0)
        return State(sums + round.noise(sums, std=1.0))

    with pytest.raises(UndeclaredOperation, match="another round"):
        trace(init, step, graph=ring(5), rounds=3, noise_multiplier=1.0)


@pytest.mark.parametrize("hide", [lambda sums, _: (sums,), lambda _, batch: batch])
def test_a_state_holds_agents_and_public_tensors_only(hide):
    def init(round):
        return _Held(round.initial(), torch.zeros(1))

    def step(state, round):
        batch = round.draw()
        sums = round.clipped_sums(state.x, batch=batch, clip_norm=1.0)
        return _Held(sums + round.noise(sums, std=1.0), hide(sums, batch))

    with pytest.raises(UndeclaredOperation, match="state field 'held'"):
        trace(init, step, graph=ring(5), rounds=3, noise_multiplier=1.0)


def test_a_value_smuggled_past_the_state_is_refused():
    kept = []

    def step(state, round):
        sums = round.clipped_sums(state.x, batch=round.draw(), clip_norm=1.0)
        noisy = sums + round.noise(sums, std=1.0)
        if kept:
            noisy = noisy + kept[0]
        kept.append(sums)
        return State(round.mix(noisy, kind="sum"))

    with pytest.raises(UndeclaredOperation, match="another round"):
        trace(start, step, graph=ring(5), rounds=3, noise_multiplier=1.0)


IRREGULAR = Graph(
    name="irregular",
    weights=push_weights(np.roll(np.eye(5, dtype=bool), 1, axis=0) | (np.arange(5) == 2)[:, None]),
)
CONTRACT: dict[str, tuple[str, dict[str, object]]] = {
    **{name: (name, {}) for name in ALGORITHMS},
    "dp-cga-batch": ("dp-cga", {"clip": dp_cga.Clip.BATCH}),
    "dpmixsgd-1": ("dpmixsgd", {"beta_x": 1.0, "beta_y": 1.0}),
    "muffliato-1": ("muffliato", {"gossip_steps": 1}),
    "muffliato-90": ("muffliato", {"gossip_steps": 90}),
    **{
        f"{name}-{compressor}": (name, {"compressor": compressor})
        for name in ("choco-sgd", "porter")
        for compressor in Compressor
        if compressor is not Compressor.TOP_K
    },
    "dp-netfleet-1": ("dp-netfleet", {"local_steps": 1}),
    "dp-netfleet-per-round": (
        "dp-netfleet",
        {"local_steps": 3, "batches": dp_netfleet.Batches.PER_ROUND},
    ),
}
DIRECTED = ("dsgd", "dp-dpsgd", "dp-netfleet", "dyn-d2p")  # those that never reply along a link
ON_GRAPHS = [
    *(
        (name, form, g)
        for number, (name, (known_as, _)) in enumerate(CONTRACT.items())
        for form in ALGORITHMS[known_as].forms
        # A ring and a star have all kinds of neighbours; every third is seen on the full graph.
        for g in (ring(5), star(5), *([full(4)] if number % 3 == 0 or name == "dpdl" else []))
    ),
    *((name, Form.REPAIRED, directed_exponential(5)) for name in DIRECTED),
    ("dyn-d2p", Form.REPAIRED, IRREGULAR),
]


@pytest.mark.some_quick(12)
@pytest.mark.parametrize(
    ("name", "form", "graph"),
    [
        pytest.param(
            *(n, f, g),
            id=f"{n}-{f}-{g.name}",
            marks=[pytest.mark.slow] if g.name == "full" and n != "dpdl" else [],
        )
        for n, f, g in ON_GRAPHS
    ],
)
def test_every_message_and_end_state_equals_its_row(name, form, graph):
    known_as, chosen = CONTRACT[name]
    settings = ALGORITHMS[known_as].settings(**chosen)
    check_rows(bound_to(known_as, graph, form=form, rounds=5, settings=settings), graph)
