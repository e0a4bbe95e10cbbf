"""Operations one by one: what a run sends and keeps equals its rows, and what each costs."""

import dataclasses
import math
from typing import NamedTuple

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from overhear.privacy.adversary import parse_adversary
from overhear.training.algorithms.algorithm import Bound
from overhear.training.engine import Engine, Setting
from overhear.training.exposure import exposures
from overhear.training.graph import Graph
from overhear.training.models import flatten
from overhear.training.randomness import SecretRandomness
from overhear.training.round import SERVER, Agents, Round, Server, UndeclaredOperation
from overhear.training.sources import Contributions, Known, Messages, NoiseSources
from overhear.training.tasks import ClassWeights, project_to_simplex
from overhear.training.tensor_round import Examples, Sources
from overhear.training.topologies import ring, star
from overhear.training.trace import RoundTrace, trace
from overhear.training.transcript import Transcript

BETA, CLIP = 0.3, 0.2
ADVERSARIES = ("eavesdropper", "neighbour:1", "coalition:1,2", "final-models")


class X(NamedTuple):
    x: Agents


class Pair(NamedTuple):
    x: Agents
    before: Agents


def start(round: Round) -> X:
    return X(round.initial())


def start_pair(round: Round) -> Pair:
    x = round.initial()
    return Pair(x, 0.5 * x)


def setting(graph: Graph) -> Setting:
    rng = torch.Generator().manual_seed(3)
    net = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
    for p in net.parameters():
        p.data.normal_(generator=rng)
    shards = [
        Examples(torch.randn(9, 4, generator=rng), torch.randint(2, (9,), generator=rng))
        for _ in range(graph.agents)
    ]
    return Setting(
        graph=graph,
        model=net,
        shards=shards,
        sampling_rate=0.5,
        device=torch.device("cpu"),
        dtype=torch.float64,
    )


def traced(init, step, graph: Graph) -> RoundTrace:
    return trace(init, step, graph=graph, rounds=5).rounds[0][0]


def joint(one: RoundTrace, adversary: str, victim: int = 0) -> float:
    who = parse_adversary(adversary, one.record.agents)
    (only,) = one.sensitivities(who, victim)
    return only.mu


def check_rows(init, step, graph: Graph, *, s: Setting | None = None) -> None:
    """Every message and end state of a run equals its row over what the round drew and sent."""
    record, transcript = traced(init, step, graph), Transcript()
    bound = Bound(init, step)
    engine = Engine(s or setting(graph), bound, randomness=SecretRandomness(5), taps=[transcript])
    engine.start()
    for _ in range(3):
        before, sources = engine.snapshot(), Sources()
        engine.advance(sources=sources)
    sent = transcript.of(round=engine.round)
    drawn = {
        Contributions: iter(sources.contributions),
        NoiseSources: iter(sources.noise),
        Known: iter([*before.values(), *sources.known]),
        Messages: iter([m.rows for m in sent]),
    }
    values = [next(drawn[type(group)]) for group in record.groups]
    assert all(next(rest, None) is None for rest in drawn.values())
    assert [len(v) for v in values] == [group.size for group in record.groups]

    def check(rows, value: torch.Tensor) -> None:
        """Columns of another block have another width, and may not occur."""
        held = torch.zeros_like(value)
        for group, column in zip(record.groups, values, strict=True):
            part = rows[:, group.start : group.start + group.size]
            if part.nnz:
                held += torch.from_numpy(part.toarray()) @ column[: part.shape[1]]
        torch.testing.assert_close(held, value, rtol=1e-12, atol=1e-13)

    for group, message in zip(record.messages, sent, strict=True):
        assert (message.kind, message.senders.tolist()) == (group.kind, group.senders.tolist())
        assert message.links.tolist() == group.links.tolist()
        check(group.rows, message.rows)
    ends = zip(record.record.end_state.values(), engine.snapshot().values(), strict=True)
    for rows, value in ends:
        check(rows, value)


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
        now,
        now + round.spread(state.before),
        batch=round.draw(),
        coefs=(1.0, BETA - 1.0),
        clip_norm=CLIP,
    )
    got = round.reply(sums + round.noise(sums, std=CLIP), kind="gradient")
    return Pair(state.x - 0.1 * round.sum_in(got), state.x)


@pytest.mark.parametrize("step", [variance_reduced, variance_reduced_for_neighbours])
@pytest.mark.parametrize("graph", [ring(4), star(4)], ids=lambda g: g.name)
def test_rows_hold_for_gradients_at_several_points(step, graph):
    check_rows(start_pair, step, graph)


@pytest.mark.parametrize("step", [variance_reduced, variance_reduced_for_neighbours])
def test_gradients_at_several_points_are_clipped_as_one_vector(step):
    graph = ring(4)
    engine = Engine(setting(graph), Bound(start_pair, step), randomness=SecretRandomness(5))
    engine.start()
    engine.advance()  # the two points differ from agent to agent from now on
    state, sources = engine.snapshot(), Sources()
    planted = dict(enumerate(engine.setting.shards))
    engine.advance(planted=planted, sources=sources)
    (sums,) = sources.contributions
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
    def step(state: X, round: Round) -> X:
        batch = round.draw()
        sums = round.clipped_sums(state.x, batch=batch, clip_norm=1.0)
        points = [state.x, state.x]
        points[clean] = state.x - 0.1 * sums  # never sent, never released
        second = round.clipped_sums(*points, batch=batch, coefs=(1.0, -0.5), clip_norm=1.0)
        return X(round.mix(second + round.noise(second, std=1.0), kind="model"))

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
    ],
    ids=["holders", "none", "count", "nan", "private", "blocks", "infinite", "text"],
)
def test_points_and_coefficients_are_checked_in_a_trace_and_in_a_run(use, error, named):
    def step(state: X, round: Round) -> X:
        return X(use(round, state.x))

    with pytest.raises(error, match=named):
        traced(start, step, ring(4))
    with pytest.raises(error, match=named):
        Engine(setting(ring(4)), Bound(start, step), randomness=SecretRandomness(5)).advance()


def _rest(round: Round, coefs=(1.0, -0.5)) -> dict:
    return {"batch": round.draw(), "coefs": coefs, "clip_norm": 1.0}


def test_a_stale_point_is_refused_wherever_it_stands():
    kept = []

    def init(round: Round) -> X:
        kept.append(round.initial())
        return X(kept[0])

    def step(state: X, round: Round) -> X:
        sums = round.clipped_sums(
            state.x, kept[0], batch=round.draw(), coefs=(1.0, -0.5), clip_norm=1.0
        )
        return X(sums + round.noise(sums, std=1.0))

    with pytest.raises(UndeclaredOperation, match="another round"):
        traced(init, step, ring(4))


def central(state: X, round: Round) -> X:
    """One server, trusted with the sum, adds the noise once."""
    sums = round.clipped_sums(state.x, batch=round.draw(), clip_norm=CLIP)
    total = round.agents * round.average(sums)
    noisy = total + round.noise(total, std=CLIP)
    return X(state.x - 0.1 * round.download(noisy, kind="update"))


def local(state: X, round: Round) -> X:
    """Every agent adds noise of its own before it uploads."""
    sums = round.clipped_sums(state.x, batch=round.draw(), clip_norm=CLIP)
    noisy = sums + round.noise(sums, std=CLIP)
    return X(state.x - 0.1 * round.download(round.upload(noisy, kind="noisy"), kind="mean"))


def trusting(state: X, round: Round) -> X:
    """Clean uploads; the server adds the noise."""
    sums = round.clipped_sums(state.x, batch=round.draw(), clip_norm=CLIP)
    total = round.agents * round.upload(sums, kind="clean")
    noisy = total + round.noise(total, std=CLIP)
    return X(state.x - 0.1 * round.download(noisy, kind="update"))


def at_the_mean(state: X, round: Round) -> X:
    """What was downloaded is one row for all agents: as a point, on edges, and sent on."""
    mean = round.download(round.average(state.x), kind="mean")
    sums = round.clipped_sums(mean, batch=round.draw(), clip_norm=CLIP)
    factor = torch.tensor([[1.0, 2.0]], dtype=torch.float64)
    server = round.average(sums + round.noise(sums, std=CLIP))
    server = server - round.noise(server, std=CLIP, factor=factor)
    update = round.sum_in(round.spread(round.download(server, kind="update")))
    return X(round.mix(2.0 * mean, kind="twice") - 0.1 * update)


@pytest.mark.parametrize("step", [central, local, trusting, at_the_mean])
@pytest.mark.parametrize("graph", [ring(4), star(5), ring(1)], ids=lambda g: g.name)
def test_rows_hold_for_what_passes_a_server(step, graph):
    check_rows(start, step, graph)


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
    assert found.because == "sent or kept without noise: clean of agent 0 to the server"
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
        (lambda r, x: r.mix(r.average(x), kind="a"), "broadcast takes Agents, not Server"),
        (lambda r, x: r.sum_in(x), "sum_in takes Edges, not Agents"),
        (lambda r, x: r.own(x), "own takes Edges, not Agents"),
        (lambda r, x: r.spread(r.average(x)), "spread takes Agents, not Server"),
        (lambda r, x: r.postprocess(_first, r.average(x)), "Agents or Edges, not Server"),
        (lambda r, x: r.clipped_sums(r.average(x), **_rest(r, (1.0,))), "points of Server"),
        (lambda r, x: x + r.average(x), r"Agents \+ Server"),
        (lambda r, x: r.average(x) * x, r"Server \* Agents"),
    ],
)
def test_a_value_of_another_holder_is_refused_in_a_trace_and_in_a_run(use, named):
    def step(state: X, round: Round) -> X:
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
        trace(init, lambda state, _: state, graph=ring(4), rounds=2)


@pytest.mark.parametrize("operation", ["upload", "average", "download"])
def test_a_stale_value_does_not_pass_a_server(operation):
    kept = []

    def init(round: Round) -> X:
        x = round.initial()
        sums = round.clipped_sums(x, batch=round.draw(), clip_norm=1.0)
        kept.append(round.average(sums) if operation == "download" else sums)
        return X(x)

    def step(state: X, round: Round) -> X:
        use = getattr(round, operation)
        use(kept[0], **({} if operation == "average" else {"kind": "old"}))
        return state

    with pytest.raises(UndeclaredOperation, match="another round"):
        traced(init, step, ring(4))


class Blocks(NamedTuple):
    x: Agents
    y: Agents


def start_blocks(round: Round) -> Blocks:
    return Blocks(round.initial(), round.initial(block=1))


def min_max(state: Blocks, round: Round) -> Blocks:
    """Descent in x, projected ascent in y; both are released alike."""
    gx, gy = round.clipped_sums((state.x, state.y), batch=round.draw(), clip_norm=CLIP)
    x = round.mix(state.x - 0.1 * (gx + round.noise(gx, std=CLIP)), kind="x")
    y = round.mix(state.y + 0.1 * (gy + round.noise(gy, std=CLIP)), kind="y")
    return Blocks(x, round.postprocess(project_to_simplex, y, block=1))


def min_max_at_neighbours(state: Blocks, round: Round) -> Blocks:
    """The same on all neighbours' points, with y noised once at a server."""
    sent = round.broadcast(state.x, kind="x"), round.broadcast(state.y, kind="y")
    gx, gy = round.clipped_sums(sent, batch=round.draw(), clip_norm=CLIP)
    got = round.reply(gx + round.noise(gx, std=CLIP), kind="gx")
    mean = round.average(round.own(gy))
    noisy = round.agents * mean + round.noise(mean, std=CLIP)
    return Blocks(
        state.x - 0.1 * round.sum_in(got), state.y + 0.1 * round.download(noisy, kind="gy")
    )


def min_max_differences(state: Blocks, round: Round) -> Blocks:
    """Differences of joint points, and y released a second time."""
    points = (state.x, state.y), (0.5 * state.x, state.y)
    gx, gy = round.clipped_sums(
        *points, batch=round.draw(), coefs=(1.0, BETA - 1.0), clip_norm=CLIP
    )
    x = round.mix(state.x - 0.1 * (gx + round.noise(gx, std=CLIP)), kind="x")
    for _ in range(2):
        y = round.mix(state.y + 0.1 * (gy + round.noise(gy, std=CLIP)), kind="y")
    return Blocks(x, y)


def min_max_setting(graph: Graph) -> Setting:
    plain = setting(graph)
    task = ClassWeights(plain.model, classes=2, strength=0.5)
    return dataclasses.replace(plain, task=task)


MIN_MAX = [min_max, min_max_at_neighbours, min_max_differences]


@pytest.mark.parametrize("step", MIN_MAX)
@pytest.mark.parametrize("graph", [ring(4), star(4)], ids=lambda g: g.name)
def test_rows_hold_for_blocks(step, graph):
    check_rows(start_blocks, step, graph, s=min_max_setting(graph))


@pytest.mark.parametrize("step", MIN_MAX)
def test_blocks_are_clipped_as_one_vector(step):
    graph = ring(4)
    s = min_max_setting(graph)
    engine = Engine(s, Bound(start_blocks, step), randomness=SecretRandomness(5))
    engine.start()
    engine.advance()
    state, sources = engine.snapshot(), Sources()
    planted = dict(enumerate(s.shards))
    engine.advance(planted=planted, sources=sources)
    x, y = state["x"], state["y"]
    assert not torch.allclose(x[0], x[1])
    edges = list(zip(graph.senders.tolist(), graph.receivers.tolist(), strict=True))
    pairs = edges if step is min_max_at_neighbours else [(d, d) for d in range(4)]
    clipped = []
    for m, d in pairs:
        points, coefs = [torch.cat([x[m], y[m]])], [1.0]
        if step is min_max_differences:
            points, coefs = [*points, torch.cat([0.5 * x[m], y[m]])], [1.0, BETA - 1.0]
        total = torch.zeros(25, dtype=torch.float64)
        for a, c in zip(planted[d].inputs.double(), planted[d].targets, strict=True):
            vector = torch.zeros_like(total)
            for coef, point in zip(coefs, points, strict=True):
                at = point.clone().requires_grad_()
                vector += coef * torch.autograd.grad(s.task.loss(at, a, c), at)[0]
            total += vector * min(1.0, CLIP / float(vector.norm()))
        clipped.append(total)
    gx, gy = sources.contributions
    assert (gx.shape[1], gy.shape[1]) == s.task.dimensions
    torch.testing.assert_close(
        torch.cat([gx, gy], dim=1), torch.stack(clipped), rtol=1e-10, atol=1e-12
    )


def released(x_std: float, y_std: float, *, times: int = 1):
    """Noise of these deviations on x once and on y so many times, for clip norm 1."""

    def step(state: Blocks, round: Round) -> Blocks:
        gx, gy = round.clipped_sums((state.x, state.y), batch=round.draw(), clip_norm=1.0)
        x = round.mix(gx + round.noise(gx, std=x_std), kind="x")
        for _ in range(times):
            y = round.mix(gy + round.noise(gy, std=y_std), kind="y")
        return Blocks(x, y)

    return step


@pytest.mark.parametrize(
    ("step", "squared"),
    [
        (released(1.0, 1.0), 1.0),  # two vectors would cost 2
        (released(2.0, 0.5), 4.0),
        (released(0.5, 2.0), 4.0),
        (released(1.0, 1.0, times=2), 2.0),  # all of the vector may lie in y
    ],
    ids=["alike", "y dearer", "x dearer", "y twice"],
)
def test_blocks_of_one_vector_cost_the_dearest_of_them(step, squared):
    one = traced(start_blocks, step, ring(5))
    (found,) = one.sensitivities(parse_adversary("eavesdropper", 5), 0)
    assert found.mu**2 == pytest.approx(squared, abs=1e-9)
    assert found.contributions == 1
    traces = trace(start_blocks, step, graph=ring(5), rounds=5)
    ((_, exposure),) = exposures(traces, ["neighbour"], sampling_rate=0.1)
    assert exposure.worst**2 == pytest.approx(squared, abs=1e-9)


def test_blocks_of_several_vectors_are_counted_jointly():
    """Two vectors of one batch: their x parts share a release, their y parts do not."""

    def step(state: Blocks, round: Round) -> Blocks:
        batch, point = round.draw(), (state.x, state.y)
        (ax, ay), (bx, by) = (
            round.clipped_sums(point, batch=batch, clip_norm=1.0) for _ in range(2)
        )
        round.mix(ax + bx + round.noise(ax, std=1.0), kind="x")
        y = round.mix(ay + round.noise(ay, std=3**-0.5), kind="y")
        return Blocks(state.x, y + round.mix(by + round.noise(by, std=10.0), kind="far"))

    # M is [[1, 1], [1, 1]] over the x parts and diag(3, .01) over the y parts; the best weights
    # (3, 3/2) of the two vectors meet (3 - 1)(3/2 - 1) = 1.
    found = joint(traced(start_blocks, step, ring(5)), "eavesdropper")
    assert found**2 == pytest.approx(4.5, abs=1e-6)


def test_one_clean_block_is_infinite_and_named():
    one = traced(start_blocks, released(1.0, 0.0), ring(5))
    (found,) = one.sensitivities(parse_adversary("eavesdropper", 5), 0)
    assert found.mu == math.inf
    assert "y of agent 0" in found.because


@pytest.mark.parametrize("hidden", [0, 1])
def test_every_block_of_a_point_counts_as_seen(hidden):
    def step(state: Blocks, round: Round) -> Blocks:
        batch = round.draw()
        first = round.clipped_sums((state.x, state.y), batch=batch, clip_norm=1.0)
        point = [state.x, state.y]
        point[hidden] = point[hidden] - first[hidden]  # never sent, never released
        gx, gy = round.clipped_sums(tuple(point), batch=batch, clip_norm=1.0)
        return Blocks(gx + round.noise(gx, std=1.0), gy + round.noise(gy, std=1.0))

    assert joint(traced(start_blocks, step, ring(5)), "eavesdropper") == math.inf


@pytest.mark.parametrize(
    ("misuse", "named"),
    [
        (lambda r, s: s.x + s.y, "different coordinates"),
        (lambda r, s: s.x.rows + s.y.rows, "different coordinates"),
        (lambda r, s: _sums(r, (s.x, s.x)), "each of them once"),
        (lambda r, s: _sums(r, (s.x, s.y), (s.y, s.x)), "the same blocks"),
        (lambda r, s: _sums(r, s.x, s.y), "the same blocks"),
        (lambda r, s: _sums(r, (s.x, s.y), (s.x,)), "the same blocks"),
        (lambda r, s: _sums(r, (s.x, s.y), s.x), "the same blocks"),
        (lambda r, s: _sums(r, (s.x, r.spread(s.y))), "of Agents, Edges"),
    ],
    ids=["+", "rows +", "twice", "swapped", "two", "fewer", "mixed", "holders"],
)
def test_blocks_do_not_mix(misuse, named):
    def step(state: Blocks, round: Round) -> Blocks:
        misuse(round, state)
        return state

    with pytest.raises(UndeclaredOperation, match=named):
        traced(start_blocks, step, ring(4))


def _sums(round: Round, *points):
    coefs = (1.0, -0.5)[: len(points)]
    return round.clipped_sums(*points, batch=round.draw(), coefs=coefs, clip_norm=1.0)


def test_every_operation_keeps_the_block_of_its_value():
    def step(state: Blocks, round: Round) -> Blocks:
        _, gy = round.clipped_sums((state.x, state.y), batch=round.draw(), clip_norm=1.0)
        pull = round.bounded(_first, gy, lipschitz=0.5, blame="a test")
        kept = [
            0.5 * gy,
            gy * torch.ones(round.agents, 1),
            round.noise(gy, std=1.0),
            round.noise(gy, std=1.0, factor=torch.eye(round.agents)),
            round.mix(gy, kind="a"),
            round.own(round.reply(round.spread(gy), kind="a")),
            round.download(round.upload(gy, kind="a"), kind="a"),
            round.download(round.average(gy), kind="a"),
            pull,
            round.postprocess(_first, state.y, block=1),
        ]
        assert [value.rows.block for value in kept] == [1] * len(kept)
        assert {g.block for g in round._record.groups[2:]} == {0, 1}
        assert all(g.block == 1 for g in round._record.groups if isinstance(g, Messages))
        return state

    traced(start_blocks, step, ring(4))


def test_a_run_checks_blocks_against_the_task():
    def refused(step, error, named):
        engine = Engine(
            min_max_setting(ring(4)), Bound(start_blocks, step), randomness=SecretRandomness(5)
        )
        engine.start()
        with pytest.raises(error, match=named):
            engine.advance()

    refused(lambda s, r: _sums(r, s.x), UndeclaredOperation, r"of blocks of widths \(23,\)")
    refused(lambda s, r: _sums(r, (s.y, s.x)), UndeclaredOperation, r"widths \(2, 23\)")
    refused(lambda s, r: r.initial(block=2), ValueError, r"block=2 must lie in 0\.\.1")
    refused(lambda s, r: r.postprocess(_first, s.y), UndeclaredOperation, r"must return \(23,\)")
