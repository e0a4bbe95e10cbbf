"""Operations one by one: what a run sends and keeps equals its rows, and what each costs."""

import math
from typing import NamedTuple

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from overhear.privacy.errors import InputTypeError, UndeclaredOperation
from overhear.privacy.guarantee import parse_adversary
from overhear.training.algorithms.algorithm import Bound
from overhear.training.engine.engine import Engine
from overhear.training.engine.randomness import SecretRandomness
from overhear.training.engine.recording import Recorded
from overhear.training.engine.setting import Setting
from overhear.training.engine.tensor_round import TensorRound
from overhear.training.engine.transcript import Transcript
from overhear.training.graphs.topologies import ring, star
from overhear.training.models.parameters import flatten
from overhear.training.second_tracer.dense_round import DenseRound
from overhear.training.step.operations import OPERATIONS, Readers
from overhear.training.step.round import Round
from overhear.training.step.values import SERVER, Agents, Server
from overhear.training.tracing.linear_forms import Contributions, Messages, NoiseSources
from overhear.training.tracing.trace import trace
from overhear.training.tracing.traced_round import TracedRound
from tests.training.contract import bare_round, check_rows, joint, setting, traced
from tests.training.states import State, start

BETA, CLIP = 0.3, 0.2
ADVERSARIES = ("eavesdropper", "neighbour:1", "coalition:1,2", "final-models")


class Pair(NamedTuple):
    x: Agents
    before: Agents


def start_pair(round: Round) -> Pair:
    x = round.initial()
    return Pair(x, 0.5 * x)


def by_example(s: Setting, points, coefs, batch, clip_norm) -> torch.Tensor:
    """One example at a time, by autograd on the module itself."""
    net = s.model.double()
    total = torch.zeros(flatten(net).numel(), dtype=torch.float64)
    for x, y in zip(batch.inputs.double(), batch.targets, strict=True):
        vector = torch.zeros_like(total)
        for coef, point in zip(coefs, points, strict=True):
            nn.utils.vector_to_parameters(point, net.parameters())
            found = torch.autograd.grad(cross_entropy(net(x[None]), y[None]), net.parameters())
            vector += coef * torch.cat([g.flatten() for g in found])
        total += vector * min(1.0, clip_norm / float(vector.norm()))
    return total


def variance_reduced(state: Pair, round: Round) -> Pair:
    """A recursive gradient: the difference of two points, clipped as one vector."""
    sums = round.clipped_sums(
        state.x, state.before, batch=round.draw(), coefs=(1.0, BETA - 1.0), clip_norm=CLIP
    )
    noisy = sums + round.noise(sums, std=CLIP)
    return Pair(round.mix(state.x - 0.1 * noisy, kind="model"), state.x)


def variance_reduced_for_neighbours(state: Pair, round: Round) -> Pair:
    """The same on the models of all neighbours; the second point is no longer one row a sender."""
    now = round.broadcast(state.x, kind="model")
    sums = round.clipped_sums(
        now, now + round.spread(state.before), batch=round.draw(), coefs=(1.0, BETA - 1.0),
        clip_norm=CLIP,
    )  # fmt: skip
    got = round.reply(sums + round.noise(sums, std=CLIP), kind="gradient")
    return Pair(state.x - 0.1 * round.sum_in(got), state.x)


@pytest.mark.parametrize("step", [variance_reduced, variance_reduced_for_neighbours])
@pytest.mark.parametrize("graph", [ring(4), star(4)], ids=lambda g: g.name)
def test_rows_hold_for_gradients_at_several_points(step, graph):
    check_rows(Bound(start_pair, step), graph)


@pytest.mark.parametrize("step", [variance_reduced, variance_reduced_for_neighbours])
def test_gradients_at_several_points_are_clipped_as_one_vector(step):
    graph = ring(4)
    engine = Engine(setting(graph), Bound(start_pair, step), randomness=SecretRandomness(5))
    engine.start()
    engine.advance()  # the two points differ from agent to agent from now on
    state, recorded = engine.snapshot(), Recorded()
    planted = dict(enumerate(engine.setting.shards))
    engine.advance(planted=planted, recorded=recorded)
    (sums,) = recorded.contributions
    x, before = state["x"], state["before"]
    pairs = [(x[d], before[d], d) for d in range(4)]
    if step is variance_reduced_for_neighbours:
        edges = zip(graph.senders.tolist(), graph.receivers.tolist(), strict=True)
        pairs = [(x[m], x[m] + before[d], d) for m, d in edges]
    expected = torch.stack(
        [
            by_example(engine.setting, (now, then), (1.0, BETA - 1.0), planted[d], CLIP)
            for now, then, d in pairs
        ]
    )
    torch.testing.assert_close(sums, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("adversary", ADVERSARIES)
def test_a_difference_of_points_is_one_contribution_whatever_its_coefficients(adversary):
    one = traced(start_pair, variance_reduced, ring(5))
    assert joint(one, adversary) <= 1.0 + 1e-9
    assert joint(one, "eavesdropper") == pytest.approx(1.0, abs=1e-9)
    (group,) = [g for g in one.groups if isinstance(g, Contributions)]
    assert group.bounds.tolist() == [CLIP] * 5


@pytest.mark.parametrize("clean", [0, 1])
def test_every_point_counts_as_seen(clean):
    def step(state: State, round: Round) -> State:
        batch = round.draw()
        sums = round.clipped_sums(state.x, batch=batch, clip_norm=1.0)
        points = [state.x, state.x]
        points[clean] = state.x - 0.1 * sums  # never sent, never released
        second = round.clipped_sums(*points, batch=batch, coefs=(1.0, -0.5), clip_norm=1.0)
        return State(round.mix(second + round.noise(second, std=1.0), kind="model"))

    assert joint(traced(start, step, ring(5)), "eavesdropper") == math.inf


@pytest.mark.parametrize(
    ("use", "error", "named"),
    [
        (lambda r, x: r.clipped_sums(x, r.spread(x), **_rest(r)), UndeclaredOperation, "Edges"),
        (lambda r, x: r.clipped_sums(**_rest(r)), UndeclaredOperation, "no value"),
        (lambda r, x: r.clipped_sums(x, x, x, **_rest(r)), ValueError, "for 3 points"),
        (lambda r, x: r.clipped_sums(x, **_rest(r, (math.nan,))), ValueError, "must be finite"),
        (lambda r, x: r.clipped_sums(x, **_rest(r, (x,))), UndeclaredOperation, "of Agents"),
        (lambda r, x: r.clipped_sums((x,), **_rest(r, ((1.0, 2.0),))), ValueError, "of 1 blocks"),
        (lambda r, x: r.clipped_sums((x,), **_rest(r, ((math.inf,),))), ValueError, "be finite"),
        (lambda r, x: r.clipped_sums(x, **_rest(r, (("a",),))), UndeclaredOperation, "of str"),
        (lambda r, x: r.clipped_sums(x, **_rest(r, 1.0)), InputTypeError, "coefs of float"),
        (lambda r, x: r.noise(x, std=10**400), ValueError, "of 1329 bits"),
        (lambda r, x: r.initial(block=None), InputTypeError, "block=None"),
        (lambda r, x: r.upload(x, kind="a", cohort="b"), UndeclaredOperation, "on a link"),
    ],
)
def test_points_and_coefficients_are_checked_in_a_trace_and_in_a_run(use, error, named):
    def step(state: State, round: Round) -> State:
        return State(use(round, state.x))

    with pytest.raises(error, match=named):
        traced(start, step, ring(4))
    with pytest.raises(error, match=named):
        Engine(setting(ring(4)), Bound(start, step), randomness=SecretRandomness(5)).advance()


def _rest(round: Round, coefs=(1.0, -0.5)) -> dict:
    return {"batch": round.draw(), "coefs": coefs, "clip_norm": 1.0}


def _written(how: dict) -> dict:
    object.__setattr__(next(iter(how.values())), "call", 1)
    return how


def central(state: State, round: Round) -> State:
    """One server, trusted with the sum, adds the noise once."""
    sums = round.clipped_sums(state.x, batch=round.draw(), clip_norm=CLIP)
    total = round.agents * round.average(sums)
    noisy = total + round.noise(total, std=CLIP)
    return State(state.x - 0.1 * round.download(noisy, kind="update"))


def local(state: State, round: Round) -> State:
    """Every agent adds noise of its own before it uploads."""
    sums = round.clipped_sums(state.x, batch=round.draw(), clip_norm=CLIP)
    noisy = sums + round.noise(sums, std=CLIP)
    return State(state.x - 0.1 * round.download(round.upload(noisy, kind="noisy"), kind="mean"))


def trusting(state: State, round: Round) -> State:
    """Clean uploads; the server adds the noise."""
    sums = round.clipped_sums(state.x, batch=round.draw(), clip_norm=CLIP)
    total = round.agents * round.upload(sums, kind="clean")
    noisy = total + round.noise(total, std=CLIP)
    return State(state.x - 0.1 * round.download(noisy, kind="update"))


def at_the_mean(state: State, round: Round) -> State:
    """What was downloaded is one row for all agents: as a point, on edges, and sent on."""
    mean = round.download(round.average(state.x), kind="mean")
    sums = round.clipped_sums(mean, batch=round.draw(), clip_norm=CLIP)
    factor = torch.tensor([[1.0, 2.0]], dtype=torch.float64)
    server = round.average(sums + round.noise(sums, std=CLIP))
    server = server - round.noise(server, std=CLIP, factor=factor)
    update = round.sum_in(round.spread(round.download(server, kind="update")))
    return State(round.mix(2.0 * mean, kind="twice") - 0.1 * update)


@pytest.mark.parametrize("step", [central, local, trusting, at_the_mean])
@pytest.mark.parametrize("graph", [ring(4), star(5), ring(1)], ids=lambda g: g.name)
def test_rows_hold_for_what_passes_a_server(step, graph):
    check_rows(Bound(start, step), graph)


@pytest.mark.parametrize("victim", [0, 3])
@pytest.mark.parametrize("adversary", ADVERSARIES)
def test_noise_once_at_a_trusted_server_costs_one_release_for_everybody(adversary, victim):
    one = traced(start, central, ring(5))
    assert joint(one, adversary, victim) == pytest.approx(1.0, abs=1e-9)


@pytest.mark.parametrize(
    ("adversary", "unknown"),
    [("eavesdropper", 1), ("neighbour:1", 4), ("coalition:1,2", 3), ("final-models", 5)],
)
def test_a_mean_hides_a_record_behind_the_noise_that_the_onlooker_did_not_make(adversary, unknown):
    assert joint(traced(start, local, ring(5)), adversary) == pytest.approx(unknown**-0.5, abs=1e-9)


def test_a_clean_upload_is_seen_on_its_link_and_by_no_other_agent():
    one = traced(start, trusting, ring(5))
    (found,) = one.sensitivities(parse_adversary("eavesdropper", 5), 0)
    assert found.mu == math.inf
    assert found.because == (
        "sent or kept without noise that the adversary does not know: "
        "clean of agent 0 to the server"
    )
    for adversary in ADVERSARIES[1:]:
        assert joint(one, adversary) == pytest.approx(1.0, abs=1e-9)


def test_the_noise_of_a_server_is_known_to_no_agent():
    sources = [g for g in traced(start, at_the_mean, ring(5)).groups if isinstance(g, NoiseSources)]
    assert list(sources[1].known_to) == [frozenset(), frozenset()]


def test_a_transcript_names_the_server():
    transcript = Transcript()
    bound = Bound(start, local)
    engine = Engine(setting(ring(4)), bound, randomness=SecretRandomness(5), taps=[transcript])
    engine.advance()
    uploads = [transcript.sent(round=1, kind="noisy", sender=a, receiver=SERVER) for a in range(4)]
    download = transcript.sent(round=1, kind="mean", sender=SERVER, receiver=2)
    torch.testing.assert_close(torch.stack(uploads).mean(0), download, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(
    ("use", "named"),
    [
        (lambda r, x: r.upload(r.spread(x), kind="a"), "upload takes Agents, not Edges"),
        (lambda r, x: r.download(x, kind="a"), "download takes Server, not Agents"),
        (lambda r, x: r.average(r.average(x)), "average takes Agents, not Server"),
        (lambda r, x: r.broadcast(r.average(x), kind="a"), "broadcast takes Agents, not Server"),
        (lambda r, x: r.reply(x, kind="a"), "reply takes Edges, not Agents"),
        (lambda r, x: r.sum_in(x), "sum_in takes Edges, not Agents"),
        (lambda r, x: r.postprocess(_first, r.average(x)), "Agents or Edges, not Server"),
        (lambda r, x: r.clipped_sums(r.average(x), **_rest(r, (1.0,))), "points of Server"),
        (lambda r, x: x + r.average(x), r"Agents \+ Server"),
        (lambda r, x: r.average(x) * x, r"Server \* Agents"),
        (lambda r, _: r.postprocess(_first), "of no value"),
        (lambda r, x: r.count(_first, x, batch=r.draw(), released=x), "released of round.count"),
        (lambda r, x: r.bounded(_first, x, private=x, lipschitz=1.0, blame="a"), "private of"),
        (lambda r, x: _drawn_at(r, (x, x), "clipped_mean", batch_size=2.0), "several blocks"),
        (lambda r, x: r.clipped_sums(x, **_written(_rest(r, (1.0,)))), "written to"),
        (lambda r, x: r.average(x, **_written({"cohort": r.cohort(0.5)})), "written to"),
    ],
)
def test_what_an_operation_does_not_take_is_refused_in_a_trace_and_in_a_run(use, named):
    def step(state: State, round: Round) -> State:
        use(round, state.x)
        return state

    with pytest.raises(UndeclaredOperation, match=named):
        traced(start, step, ring(4))
    with pytest.raises(UndeclaredOperation, match=named):
        Engine(setting(ring(4)), Bound(start, step), randomness=SecretRandomness(5)).advance()


def _first(value, *_):
    return value


def test_a_state_keeps_nothing_at_the_server():
    class Kept(NamedTuple):
        x: Agents
        s: Server

    def init(round: Round) -> Kept:
        x = round.initial()
        return Kept(x, round.average(x))

    with pytest.raises(UndeclaredOperation, match="state field 's' holds Server"):
        trace(init, lambda state, _: state, graph=ring(4), rounds=2, noise_multiplier=1.0)


def test_an_operation_is_a_row_and_a_method_of_every_kind_of_round():
    public = {"agents", "weights", "active", "index"}
    assert {n for n in vars(Round) if n[0] != "_"} - public == set(OPERATIONS)
    for kind in (TensorRound, TracedRound, DenseRound):
        assert [name for name in OPERATIONS if not callable(getattr(kind, name, None))] == []


def _drawn_at(r: Round, x, of: str, **how):
    return getattr(r, of)(x, batch=r.draw(), clip_norm=1.0, **how)


USES = {
    "broadcast": lambda r, x: r.broadcast(x, kind="a"),
    "reply": lambda r, x: r.reply(r.spread(x), kind="a"),
    "mix": lambda r, x: r.mix(x, kind="a"),
    "upload": lambda r, x: r.upload(x, kind="a"),
    "download": lambda r, x: r.download(r.average(x), kind="a"),
    "clipped_sums": lambda r, x: _drawn_at(r, x, "clipped_sums"),
    "clipped_mean": lambda r, x: _drawn_at(r, x, "clipped_mean", batch_size=2.0),
    "local_update": lambda r, x: _drawn_at(r, x, "local_update", steps=1, learning_rate=0.1),
    "count": lambda r, x: r.count(_first, x, batch=r.draw()),
    "postprocess": lambda r, x: r.postprocess(_first, x),
    "project": lambda r, x: r.project(x, block=0),
    "average": lambda r, x: r.average(x),
    "sum_in": lambda r, x: r.sum_in(r.spread(x)),
    "own": lambda r, x: r.own(r.spread(x)),
    "noise": lambda r, x: r.noise(x, std=1.0),
}


@pytest.mark.parametrize("name", USES)
def test_what_the_table_says_of_readers_is_what_a_trace_shows(name):
    def step(state: State, round: Round) -> State:
        USES[name](round, round.noise(state.x, std=1.0))
        return state

    record = traced(start, step, ring(4)).record
    sent = any(isinstance(group, Messages) for group in record.groups)
    shown = (Readers.RECEIVERS, sent), (Readers.ADVERSARIES, bool(record.closure))
    assert [of for of, is_so in shown if is_so] == [OPERATIONS[name].readers][: len(record.given)]
    assert len(record.given) == (OPERATIONS[name].readers is not Readers.HOLDER)


def test_what_is_wrapped_last_is_asked_first():
    asked, one = [], bare_round()

    def outer(carry_out, name, values, how):
        asked.append("outer")
        return carry_out(name, values, how)

    def inner(carry_out, name, values, how):
        asked.append(name)
        return 2.0 * carry_out(name, values, how)

    one.wrap(inner)
    one.wrap(outer)
    x = Agents(torch.ones(5, 23, dtype=torch.float64))
    assert float(one.do("mix", (x,), {"kind": "a"}).rows[0, 0]) == pytest.approx(2.0)
    assert asked == ["outer", "mix"]
