"""The min-max algorithms: their recursions written out by hand, and what each release costs."""

import math
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from overhear.attacks.checks.reference_sums import Oracle
from overhear.privacy.errors import InputError
from overhear.privacy.guarantee import Statement, parse_adversary
from overhear.training.accounts.account import account
from overhear.training.algorithms import ALGORITHMS, Form, bind, dp_sgda, dpmixsgd, sgda
from overhear.training.algorithms.min_max_step import FirstBatch, Recursion
from overhear.training.data.store import Examples
from overhear.training.engine.engine import Engine
from overhear.training.engine.randomness import Purpose, SecretRandomness
from overhear.training.engine.recording import GradientCall, Recorded
from overhear.training.engine.setting import Setting
from overhear.training.engine.transcript import Transcript
from overhear.training.exposure.guarantees import run_epsilon
from overhear.training.exposure.joint_sensitivities import joint_sensitivities
from overhear.training.exposure.whole_run import (
    InAllRounds,
    replace_infinite_by_whole_run,
    whole_run_joint_sensitivities,
)
from overhear.training.graphs.graph import Graph
from overhear.training.graphs.topologies import full, ring, star
from overhear.training.models.tasks import ClassWeights, project_to_simplex
from overhear.training.tracing.linear_forms import Contributions, Known, Messages, NoiseSources
from overhear.training.tracing.trace import AlgorithmTrace, trace

ETA, ETA_Y, B, B0, RATE, RECORDS, ROOT = 0.3, 0.2, 4.5, 6.0, 0.5, 9, 5
BX, BY = 0.3, 0.6
STRENGTH, PENALTY = 0.7, 0.05
CLASSES = 3
NAMES = ("dpmixsgd", "dm-hsgd", "sgda", "dp-sgda")
CHOSEN = {
    "dpmixsgd": {"learning_rate_y": ETA_Y, "beta_x": BX, "beta_y": BY, "initial_batch": B0},
    "dm-hsgd": {"learning_rate_y": ETA_Y, "beta_x": BX, "beta_y": BY, "initial_batch": B0},
    "sgda": {"learning_rate_y": ETA_Y},
    "dp-sgda": {"learning_rate_y": ETA_Y},
}


def setting(graph: Graph, *, task: bool = True) -> Setting:
    rng = torch.Generator().manual_seed(3)
    net = nn.Sequential(nn.Linear(4, 2), nn.Tanh(), nn.Linear(2, CLASSES)).double()
    for p in net.parameters():
        p.data.normal_(generator=rng)
    shards = [
        Examples(
            torch.randn(RECORDS, 4, generator=rng, dtype=torch.float64),
            torch.randint(CLASSES, (RECORDS,), generator=rng),
        )
        for _ in range(graph.agents)
    ]
    robust = ClassWeights(net, classes=CLASSES, strength=STRENGTH, penalty=PENALTY)
    return Setting(
        graph=graph, model=net, shards=shards, sampling_rate=RATE, device=torch.device("cpu"),
        dtype=torch.float64, task=robust if task else None,
    )  # fmt: skip


def engine(
    name: str,
    graph: Graph,
    *,
    form: Form = Form.REPAIRED,
    clip_norm: float | None = None,
    noise_std: float = 0.0,
    taps=(),
    **chosen: float,
) -> Engine:
    algorithm = ALGORITHMS[name]
    bound = bind(
        algorithm, algorithm.settings(**CHOSEN[name] | chosen), form=form, learning_rate=ETA,
        clip_norm=clip_norm, noise_std=noise_std, batch_size=B, records=RECORDS,
    )  # fmt: skip
    return Engine(setting(graph), bound, randomness=SecretRandomness(ROOT), taps=list(taps))


def drawn(s: Setting, agent: int, number: int, rate: float) -> np.ndarray:
    """The records that a run of this root draws."""
    stream = SecretRandomness(ROOT).stream(Purpose.BATCH, round=number, call=0, row=agent)
    return np.flatnonzero(stream.random(len(s.shards[agent].targets)) < rate)


def summed(s: Setting, agent: int, chosen, x: np.ndarray, y: np.ndarray):
    """Gradients of the objective's sum over records, by autograd on the network itself."""
    flat = torch.tensor(x, requires_grad=True)
    weights = torch.tensor(y, requires_grad=True)
    parts, start = {}, 0
    for name, p in s.model.named_parameters():
        parts[name] = flat[start : start + p.numel()].view_as(p)
        start += p.numel()
    inputs, targets = s.shards[agent].inputs[chosen], s.shards[agent].targets[chosen]
    errors = cross_entropy(functional_call(s.model, parts, (inputs,)), targets, reduction="none")
    loss = (CLASSES * weights[targets] * errors).sum()
    loss = loss - len(chosen) * STRENGTH * ((weights - 1 / CLASSES) ** 2).sum()
    loss = loss + len(chosen) * PENALTY * (10 * flat**2 / (1 + 10 * flat**2)).sum()
    gx, gy = torch.autograd.grad(loss, (flat, weights))
    return gx.numpy(), gy.numpy()


def simplex(rows: np.ndarray) -> np.ndarray:
    """Projection by bisection on what is subtracted, row by row."""
    found = np.empty_like(rows)
    for i, row in enumerate(rows):
        low, high = row.min() - 1.0, row.max()
        for _ in range(200):
            level = (low + high) / 2
            low, high = (level, high) if np.maximum(row - level, 0).sum() > 1 else (low, level)
        found[i] = np.maximum(row - level, 0)
    return found


def by_hand_dm_hsgd(s: Setting, rounds: int) -> dict[str, np.ndarray]:
    """DM-HSGD with dense matrices, one agent and one gradient at a time."""
    W, A = s.graph.weights, s.graph.agents
    start = s.task.initial().numpy()
    x, y = (np.tile(part, (A, 1)) for part in np.split(start, [s.task.dimensions[0]]))
    first = [summed(s, i, drawn(s, i, 0, B0 / RECORDS), x[i], y[i]) for i in range(A)]
    dx, dy = (np.stack([g[k] for g in first]) / B0 for k in (0, 1))
    ux, uy = W @ dx, W @ dy
    for t in range(1, rounds + 1):
        x_old, y_old = x, y
        x, y = W @ (x - ETA * ux), simplex(W @ (y + ETA_Y * uy))
        dx_old, dy_old = dx, dy
        batches = [drawn(s, i, t, RATE) for i in range(A)]
        now = [summed(s, i, batches[i], x[i], y[i]) for i in range(A)]
        past = [summed(s, i, batches[i], x_old[i], y_old[i]) for i in range(A)]
        gx, px = (np.stack([g[0] for g in of]) / B for of in (now, past))
        gy, py = (np.stack([g[1] for g in of]) / B for of in (now, past))
        dx = gx + (1 - BX) * (dx_old - px)
        dy = gy + (1 - BY) * (dy_old - py)
        ux, uy = W @ (ux + dx - dx_old), W @ (uy + dy - dy_old)
    return {"x": x, "y": y, "dx": dx, "dy": dy, "ux": ux, "uy": uy}


@pytest.mark.parametrize("graph", [ring(5), star(4), ring(1)], ids=lambda g: g.name + str(g.agents))
@pytest.mark.parametrize(
    ("name", "form"),
    [("dm-hsgd", Form.REPAIRED), ("dpmixsgd", Form.REPAIRED), ("dpmixsgd", Form.PUBLISHED)],
)
def test_without_noise_and_clipping_both_forms_are_dm_hsgd(name, form, graph):
    started = engine(name, graph, form=form)
    for _ in range(4):
        started.advance()
    found = started.snapshot()
    for field, expected in by_hand_dm_hsgd(started.setting, 4).items():
        np.testing.assert_allclose(found[field].numpy(), expected, rtol=1e-9, atol=1e-11)


def test_sgda_steps_then_mixes():
    started = engine("sgda", star(4))
    s, W = started.setting, started.setting.graph.weights
    started.start()
    x, y = (started.snapshot()[k].numpy() for k in ("x", "y"))
    for t in range(1, 4):
        started.advance()
        g = [summed(s, i, drawn(s, i, t, RATE), x[i], y[i]) for i in range(4)]
        x = W @ (x - ETA * np.stack([a for a, _ in g]) / B)
        y = simplex(W @ (y + ETA_Y * np.stack([a for _, a in g]) / B))
        np.testing.assert_allclose(started.snapshot()["x"].numpy(), x, rtol=1e-9, atol=1e-11)
        np.testing.assert_allclose(started.snapshot()["y"].numpy(), y, rtol=1e-9, atol=1e-11)


def test_dp_sgda_is_one_agent_that_holds_everybodys_batches():
    started = engine("dp-sgda", star(4), clip_norm=0.2, noise_std=0.4)
    started.start()
    x, y = (started.snapshot()[k][0] for k in ("x", "y"))
    for _ in range(3):
        recorded = Recorded()
        started.advance(recorded=recorded)
        gx, gy = (part.mean(0) for part in recorded.contributions)
        nx, ny = (z[0] * 0.4 / 4 for z in recorded.noise)
        x = x - ETA * (gx + nx) / B
        y = project_to_simplex(y + ETA_Y * (gy + ny) / B)
        end = started.snapshot()
        torch.testing.assert_close(end["x"], x.expand(4, -1), rtol=1e-12, atol=1e-13)
        torch.testing.assert_close(end["y"], y.expand(4, -1), rtol=1e-12, atol=1e-13)


def test_one_agent_with_weight_one_is_dp_sgda_after_its_first_batch():
    """With beta 1 nothing is kept of the past; a step takes the gradient of the round before."""
    alone = engine("dpmixsgd", ring(1), clip_norm=0.2, noise_std=0.4, beta_x=1.0, beta_y=1.0)
    recorded = Recorded()
    alone.start(recorded=recorded)
    x, y = (alone.snapshot()[k][0] for k in ("x", "y"))
    size, std = B0, 5 * 0.4
    for _ in range(4):
        (gx, gy), (nx, ny) = recorded.contributions, recorded.noise
        recorded = Recorded()
        alone.advance(recorded=recorded)
        x = x - ETA * (gx[0] + std * nx[0]) / size
        y = project_to_simplex(y + ETA_Y * (gy[0] + std * ny[0]) / size)
        size, std = B, 0.4
        torch.testing.assert_close(alone.models()[0], x, rtol=1e-12, atol=1e-13)
        torch.testing.assert_close(alone.snapshot()["y"][0], y, rtol=1e-12, atol=1e-13)


def test_a_record_is_clipped_once_with_all_blocks_and_both_points():
    started = engine("dpmixsgd", ring(4), clip_norm=0.2, noise_std=0.4)
    for _ in range(2):
        started.advance()
    before, recorded = started.snapshot(), Recorded()
    started.advance(recorded=recorded)
    after, s = started.snapshot(), started.setting
    for agent in range(4):
        total = np.zeros(sum(s.task.dimensions))
        for b in drawn(s, agent, 3, RATE):
            now, past = (
                summed(s, agent, [b], z["x"][agent].numpy(), z["y"][agent].numpy())
                for z in (after, before)
            )
            v = np.r_[now[0] - (1 - BX) * past[0], now[1] - (1 - BY) * past[1]]
            total += v * min(1.0, 0.2 / np.linalg.norm(v))
        found = torch.cat([part[agent] for part in recorded.contributions]).numpy()
        np.testing.assert_allclose(found, total, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("form", list(Form))
@pytest.mark.parametrize("graph", [ring(5), star(5), full(4)], ids=lambda g: g.name)
def test_the_mean_tracker_is_the_mean_of_what_was_sent(form, graph):
    started = engine("dpmixsgd", graph, form=form, clip_norm=0.2, noise_std=0.4)
    started.start()
    for _ in range(4):
        end = started.snapshot()
        for block in "xy":
            sent, tracked = end[f"s{block}"].mean(0), end[f"u{block}"].mean(0)
            torch.testing.assert_close(tracked, sent, rtol=1e-11, atol=1e-13)
            assert float(sent.abs().max()) > 1e-3
        started.advance()


@pytest.mark.parametrize("name", NAMES)
def test_the_weights_of_the_classes_stay_in_the_simplex(name):
    private = {"clip_norm": 0.2, "noise_std": 2.0} if ALGORITHMS[name].private else {}
    started = engine(name, ring(4), learning_rate_y=3.0, **private)
    started.start()
    moved = 0.0
    for _ in range(5):
        started.advance()
        y = started.snapshot()["y"]
        assert float(y.min()) >= 0.0
        torch.testing.assert_close(y.sum(1), torch.ones(4).double(), rtol=1e-12, atol=1e-12)
        moved = max(moved, float((y - 1 / CLASSES).abs().max()))
    assert moved > 0.1


def traced(
    name: str, graph: Graph, *, form: Form = Form.REPAIRED, rounds: int = 500, **numbers
) -> AlgorithmTrace:
    unit = {"learning_rate": 0.1, "clip_norm": 1.0, "noise_std": 1.0, "batch_size": 1.0}
    records = numbers.pop("records", 9.0)
    chosen = {k: numbers.pop(k) for k in list(numbers) if k not in unit}
    algorithm = ALGORITHMS[name]
    bound = bind(
        algorithm, algorithm.settings(**chosen), form=form, records=records, **unit | numbers
    )
    return trace(
        bound.init, bound.step, graph=graph, rounds=rounds,
        noise_multiplier=bound.noise_multiplier, release=bound.release,
    )  # fmt: skip


@pytest.mark.parametrize("adversary", ["eavesdropper", "neighbour:1", "final-models"])
@pytest.mark.parametrize("graph", [ring(5), star(5), full(4)], ids=lambda g: g.name)
def test_a_repaired_round_costs_one_release_and_the_start_a_fifth(graph, adversary):
    traces = traced("dpmixsgd", graph, initial_batch=3.0)
    ((one, count),) = traces.rounds
    who = parse_adversary(adversary, graph.agents)
    (found,) = one.sensitivities(who, 0)
    assert (found.mu, found.contributions) == (pytest.approx(1.0, abs=1e-9), 1)
    (first,) = traces.start.sensitivities(who, 0)
    assert first.mu == pytest.approx(1 / 5, abs=1e-9)
    assert first.draws.rate(0.01) == pytest.approx(1 / 3)  # the start's own, not the run's
    assert count == 500


def test_a_single_message_of_the_start_is_sampled_at_the_starts_rate():
    traces = traced("dpmixsgd", ring(4), initial_batch=3.0)
    found = joint_sensitivities(traces, ["single-message", "eavesdropper"], sampling_rate=0.01)
    rates = [[r.sampling_rate for r in sensitivity.releases] for _, sensitivity in found]
    assert rates[0] == rates[1] == pytest.approx([1 / 3, 0.01])


@pytest.mark.parametrize("adversary", ["eavesdropper", "neighbour:1", "final-models"])
def test_dp_sgda_costs_one_release_a_round(adversary):
    ((one, _),) = traced("dp-sgda", ring(5)).rounds
    (found,) = one.sensitivities(parse_adversary(adversary, 5), 0)
    assert found.mu == pytest.approx(1.0, abs=1e-9)


@pytest.mark.parametrize(
    ("numbers", "said"), [({}, "without noise"), ({"clip_norm": None}, "not clipped")]
)
def test_published_is_infinite_round_by_round(numbers, said):
    traces = traced("dpmixsgd", ring(4), form=Form.PUBLISHED, rounds=5, **numbers)
    found = joint_sensitivities(traces, ["eavesdropper"], sampling_rate=0.1)
    assert math.isinf(found[0][1].largest)
    assert said in found[0][1].because
    ((_, settled),) = replace_infinite_by_whole_run(traces, found, how=InAllRounds(0.1))
    assert math.isfinite(settled.largest) == (not numbers)


@pytest.mark.parametrize("adversary", ["eavesdropper", "neighbour:1"])
@pytest.mark.parametrize(
    ("rounds", "expected"), [(1, 1.99), (2, 2.80025), (5, 4.36211), (20, 8.11632)]
)
def test_published_releases_a_record_of_the_first_round_again_and_again(
    rounds, expected, adversary
):
    """1.99 sqrt(sum of .99^2k) at beta .01; the dual block, at beta .1, costs less."""
    assert expected == pytest.approx(
        1.99 * math.sqrt(sum(0.9801**k for k in range(rounds))), abs=1e-5
    )
    traces = traced("dpmixsgd", ring(4), form=Form.PUBLISHED, rounds=rounds)
    ((_, once),) = whole_run_joint_sensitivities(
        traces, [adversary], participation=[1], sampling_rate=0.1, victim=0
    )
    assert once.largest == pytest.approx(expected, abs=2e-5)


@pytest.mark.parametrize(("rounds", "expected"), [(1, 0.0), (2, 1.99), (6, 4.36211)])
def test_the_final_models_do_not_hold_the_last_rounds_estimate(rounds, expected):
    traces = traced("dpmixsgd", ring(4), form=Form.PUBLISHED, rounds=rounds)
    ((_, once),) = whole_run_joint_sensitivities(
        traces, ["final-models"], participation=[1], sampling_rate=0.1, victim=0
    )
    assert once.largest == pytest.approx(expected, abs=2e-5)


def test_published_first_batch_enters_every_later_release():
    """d_0 / b_0 is kept with weight .99^t, beside noise of 1 / b."""
    traces = traced("dpmixsgd", ring(4), form=Form.PUBLISHED, rounds=5, batch_size=2.0)
    ((_, once),) = whole_run_joint_sensitivities(
        traces, ["eavesdropper"], participation=[0], sampling_rate=0.1, victim=0
    )
    expected = 2 / 9 * math.sqrt(sum(0.9801**t for t in range(6)))
    assert once.largest == pytest.approx(expected, abs=2e-5)


@pytest.mark.parametrize(
    ("initial_noise", "expected"), [(1.0, 1.687), (5.0, 0.1233), (None, 0.0975)]
)
def test_the_first_batch_dominates_at_equal_noise(initial_noise, expected):
    """20,000 records an agent, b 10, b0 2000, 2,000 rounds, multiplier 1; None leaves it out."""
    chosen = {"initial_noise": initial_noise or 5.0, "records": 20_000.0}
    traces = traced("dpmixsgd", ring(4), rounds=2000, **chosen)
    ((_, found),) = joint_sensitivities(traces, ["eavesdropper"], sampling_rate=10 / 20_000)
    assert [(r.first, r.rounds, r.sampling_rate) for r in found.releases] == [
        (0, 1, 0.1),
        (1, 2000, 0.0005),
    ]
    if initial_noise is None:
        found = found._replace(releases=found.releases[1:])
    spent = run_epsilon(found, noise_multiplier=1.0, statement=Statement(delta=1e-5))
    assert spent == pytest.approx(expected, abs=6e-4)


@pytest.mark.parametrize("form", list(Form))
@pytest.mark.parametrize("graph", [ring(4), star(5), ring(1)], ids=lambda g: g.name + str(g.agents))
def test_the_start_sends_and_keeps_what_its_rows_say(form, graph):
    transcript, recorded = Transcript(), Recorded()
    numbers = {"form": form, "clip_norm": 0.2, "noise_std": 0.4}
    started = engine("dpmixsgd", graph, taps=[transcript], **numbers)
    started.start(recorded=recorded)
    record = trace(
        started._bound.init,
        started._bound.step,
        graph=graph,
        rounds=2,
        noise_multiplier=started._bound.noise_multiplier,
    ).start.record
    sent = transcript.of(round=0)
    made = {
        Contributions: iter(recorded.contributions),
        NoiseSources: iter(recorded.noise),
        Known: iter(recorded.known),
        Messages: iter([m.rows for m in sent]),
    }
    values = [next(made[type(group)]) for group in record.groups]
    made_of = zip(record.groups, values, strict=True)
    messages = [(group.rows, v) for group, v in made_of if isinstance(group, Messages)]
    ends = zip(record.end_state.values(), started.snapshot().values(), strict=True)
    for rows, value in [*messages, *ends]:
        held = torch.zeros_like(value)
        for group, column in zip(record.groups, values, strict=True):
            part = rows[:, group.start : group.start + group.size]
            if part.nnz:
                held += torch.from_numpy(part.toarray()) @ column[: part.shape[1]]
        torch.testing.assert_close(held, value, rtol=1e-12, atol=1e-13)
    assert len(messages) == len(sent) == 2


def test_an_agent_with_fewer_records_takes_them_all():
    assert FirstBatch.of(2000, records=20_000) == FirstBatch(size=2000.0, sampling_rate=0.1)
    assert FirstBatch.of(2000, records=140) == FirstBatch(size=140.0, sampling_rate=1.0)


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: dpmixsgd.Settings(beta_x=0.0), r"beta_x=0.0 must lie in \(0, 1\]"),
        (lambda: dpmixsgd.Settings(beta_y=1.1), "beta_y=1.1"),
        (lambda: dpmixsgd.Settings(initial_batch=0), "initial_batch=0"),
        (lambda: dpmixsgd.Settings(initial_noise=math.inf), "initial_noise=inf"),
        (lambda: Recursion(beta_x=-1.0), "beta_x=-1.0"),
        (lambda: sgda.Settings(learning_rate_y=0.0), "learning_rate_y=0.0"),
        (lambda: dp_sgda.Settings(learning_rate_y=math.nan), "learning_rate_y=nan"),
        (lambda: FirstBatch.of(10, records=0), "records=0"),
    ],
)
def test_numbers_out_of_range_are_refused(make, named):
    with pytest.raises(ValueError, match=named):
        make()


def test_a_start_of_a_given_size_needs_the_number_of_records():
    numbers = {"learning_rate": 0.1, "clip_norm": 1.0, "noise_std": 1.0, "batch_size": 1.0}
    with pytest.raises(ValueError, match="'dpmixsgd' needs records"):
        bind(ALGORITHMS["dpmixsgd"], dpmixsgd.Settings(), **numbers)


@pytest.mark.parametrize(("name", "task"), [("sgda", False), ("dsgd", True)])
def test_an_algorithm_of_other_blocks_than_the_task_is_refused(name, task):
    algorithm = ALGORITHMS[name]
    numbers = {"learning_rate": 0.1, "clip_norm": 1.0, "noise_std": 1.0, "batch_size": 1.0}
    bound = bind(algorithm, algorithm.settings(), **numbers)
    with pytest.raises(ValueError, match="needs a task with dual variables"):
        Engine(setting(ring(4), task=task), bound)


@pytest.mark.parametrize("name", ["dpmixsgd", "dm-hsgd"])
def test_the_longest_gradients_of_a_batch_are_clipped_to_the_norm_at_its_quantile(name):
    """At beta 1 an estimate is the mean of the gradients now, each clipped as one vector."""
    clipped = {"clip_quantile": 0.8, "beta_x": 1.0, "beta_y": 1.0}
    started = engine(name, ring(3), form=Form.PUBLISHED, **clipped)
    started.start()
    started.advance()
    s, end = started.setting, started.snapshot()
    for agent in range(3):
        at = [end[k][agent].numpy() for k in ("x", "y")]
        each = [np.concatenate(summed(s, agent, [b], *at)) for b in drawn(s, agent, 1, RATE)]
        norms = np.linalg.norm(each, axis=1)
        factors = np.minimum(1.0, np.quantile(norms, 0.8) / norms)
        assert 0 < (factors < 1).sum() <= math.ceil(0.2 * len(each))
        expected = (factors[:, None] * each).sum(axis=0) / B
        found = np.concatenate([end["dx"][agent], end["dy"][agent]])
        np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_a_clip_at_a_quantile_has_no_finite_figure_and_no_repaired_form():
    given = {"graph": "ring:3", "rounds": 2, "sampling_rate": 0.5, "delta": 1e-5, "records": 9.0}
    given |= {"clip_quantile": 0.8, "noise_multiplier": 100.0}
    found = account("dpmixsgd", form="published", clip_norm=None, **given)
    assert {g.epsilon for g in found.guarantees.values()} == {math.inf}
    for form, clip_norm in (("repaired", None), ("published", 1.0), ("repaired", 1.0)):
        with pytest.raises(InputError, match=r"clip_quantile=0.8 .*no noise bounds"):
            account("dpmixsgd", form=form, clip_norm=clip_norm, **given)


class X(NamedTuple):
    x: Any


@pytest.mark.parametrize("adjacency", ["add-or-remove-one", "replace-one", "zero-out"])
@pytest.mark.parametrize("bounded", [0.0, 1.0])
def test_a_step_that_hides_a_sum_clipped_at_a_quantile_behind_noise_is_infinite(adjacency, bounded):
    def step(state, round, *, clip_norm, noise_std):
        batch = round.draw()
        own = round.clipped_sums(state.x, batch=batch, clip_norm=clip_norm)
        other = round.clipped_sums(state.x, batch=batch, clip_norm=None, quantile=0.5)
        sums = bounded * own + 0.001 * other + round.noise(own, std=noise_std)
        return X(round.mix(state.x - sums, kind="model"))

    given = {"graph": "full:4", "rounds": 2, "sampling_rate": 0.1, "delta": 1e-5, "clip_norm": 1.0}
    found = account(lambda round: X(round.initial()), step, noise_multiplier=9.0,
                    adjacency=adjacency, **given)  # fmt: skip
    assert {one.epsilon for one in found.guarantees.values()} == {math.inf}


def test_the_sums_that_are_checked_know_a_clip_at_a_quantile():
    started = engine("dm-hsgd", ring(3), clip_quantile=0.5)
    started.start()
    recorded = Recorded()
    started.advance(recorded=recorded)
    s, call = started.setting, next(c for c in recorded.calls if isinstance(c, GradientCall))
    batches = [s.shards[a].take(at) for a, at in enumerate(recorded.batches[0])]
    expected = Oracle(s.task).contributions(call, batches)
    found = torch.cat(list(recorded.contributions), dim=1)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-9)
