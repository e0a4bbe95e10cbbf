"""The contract of every algorithm, and DPDL against its pseudo-code written out by hand."""

import math

import numpy as np
import pytest
import torch

from overhear.privacy.errors import UndeclaredOperation
from overhear.training.algorithms import ALGORITHMS, Form, bind, dp_dpsgd, dpdl
from overhear.training.data.store import Examples
from overhear.training.engine.engine import Engine
from overhear.training.engine.randomness import SecretRandomness
from overhear.training.engine.recording import Recorded
from overhear.training.engine.transcript import Transcript
from overhear.training.gradients.gradients import PairGradients
from overhear.training.graphs.graph import Graph
from overhear.training.graphs.topologies import build_graph, full, ring, star
from overhear.training.models.evaluation import evaluate
from overhear.training.models.parameters import flatten
from overhear.training.step.operations import Door
from overhear.training.step.values import Agents, Batch
from tests.training.contract import (
    bare_round,
    bound_to,
    check_added_noise,
    check_mean_is_kept,
    check_noise,
    setting,
)

PRIVATE = [name for name, algorithm in ALGORITHMS.items() if algorithm.private]
FORMS = [(name, form) for name, algorithm in ALGORITHMS.items() for form in algorithm.forms]
NUMBERS = {"learning_rate": 0.3, "batch_size": 4.5}


def engine(
    name: str,
    graph: Graph,
    *,
    form: Form = Form.REPAIRED,
    clip_norm: float | None = 0.2,
    noise_std: float = 0.4,
    root: int = 5,
    rate: float = 0.5,
    settings=None,
    taps=(),
) -> Engine:
    algorithm = ALGORITHMS[name]
    bound = bind(
        algorithm, settings or algorithm.settings(), form=form, clip_norm=clip_norm,
        noise_std=noise_std, graph=graph, rounds=200, records=9, **NUMBERS,
    )  # fmt: skip
    return Engine(
        setting(graph, rate=rate, min_max=algorithm.blocks == 2), bound,
        randomness=SecretRandomness(root), taps=list(taps),
    )  # fmt: skip


def run(started: Engine, rounds: int = 4) -> torch.Tensor:
    for _ in range(rounds):
        started.advance()
    return started.models()


@pytest.mark.some_quick(10)
@pytest.mark.parametrize(("name", "form"), FORMS)
def test_the_same_root_gives_the_same_run(name, form):
    first = run(engine(name, ring(5), form=form))
    assert torch.equal(first, run(engine(name, ring(5), form=form)))
    assert not torch.equal(first, run(engine(name, ring(5), form=form, root=6)))


def test_zero_noise_and_no_clipping_recover_dsgd():
    plain = run(engine("dsgd", ring(5)))
    private = run(engine("dp-dpsgd", ring(5), clip_norm=None, noise_std=0.0))
    torch.testing.assert_close(private, plain, rtol=1e-12, atol=1e-13)


def test_published_and_repaired_dpdl_agree_without_noise():
    settings = dpdl.Settings(alpha=0.7, momentum=0.9)
    runs = [
        run(engine("dpdl", ring(5), form=form, noise_std=0.0, settings=settings)) for form in Form
    ]
    torch.testing.assert_close(runs[0], runs[1], rtol=1e-12, atol=1e-13)


def test_published_and_repaired_dpdl_differ_with_noise():
    runs = [run(engine("dpdl", ring(5), form=form)) for form in Form]
    assert float((runs[0] - runs[1]).abs().max()) > 1e-3


@pytest.mark.parametrize("order", list(dp_dpsgd.Order))
def test_one_agent_is_dp_sgd(order):
    root, noise_std, clip = 11, 0.4, 0.2
    alone = engine("dp-dpsgd", ring(1), root=root, settings=dp_dpsgd.Settings(order=order))
    alone.start()
    x = flatten(alone.setting.model).detach().double()
    gradients = PairGradients(alone.setting.model, "loop", dtype=torch.float64)
    for _ in range(3):
        recorded = Recorded()
        before = x.clone()
        alone.advance(recorded=recorded)
        x = x - 0.3 * (recorded.contributions[0][0] + noise_std * recorded.noise[0][0]) / 4.5
        torch.testing.assert_close(alone.models()[0], x, rtol=1e-12, atol=1e-13)
    # and the contribution is what one-example-at-a-time clipping gives for the same batch
    shard = alone.setting.shards[0]
    stream = SecretRandomness(root).stream(_batch(), round=3, call=0, row=0)
    chosen = np.flatnonzero(stream.random(len(shard.targets)) < 0.5)
    batch = (shard.inputs[chosen].double(), shard.targets[chosen])
    oracle = gradients.clipped_sums(before[None], ([0], [0]), [batch], clip_norm=clip)
    torch.testing.assert_close(recorded.contributions[0], oracle, rtol=1e-9, atol=1e-12)


def _batch():
    from overhear.training.engine.randomness import Purpose

    return Purpose.BATCH


@pytest.mark.parametrize("graph", [ring(5), star(5), full(4)], ids=lambda g: g.name)
@pytest.mark.parametrize("name", ["dp-dpsgd", "dsgd"])
def test_mixing_keeps_the_mean_of_the_models(name, graph):
    check_mean_is_kept(bound_to(name, graph, noise_std=0.0), graph)


def test_an_empty_batch_sends_pure_noise():
    transcript = Transcript()
    silent = engine("dpdl", ring(5), rate=0.0, noise_std=2.0, taps=[transcript])
    silent.advance()
    (message,) = transcript.of(round=1, kind="cross-gradient")
    sent = message.rows * 4.5 / 2.0
    n = sent.numel()
    # n standard normals: variance within 5 standard errors, false alarm 6e-7.
    assert abs(float(sent.var()) - 1.0) < 5 * math.sqrt(2 / n)


@pytest.mark.parametrize(("own", "expected"), [(None, 0.5), (0.2, 0.2)])
def test_every_record_is_drawn_at_the_declared_rate_on_its_own(own, expected):
    started = engine("dp-dpsgd", ring(5), rate=0.5)
    held = torch.stack([shard.inputs for shard in started.setting.shards]).double()  # (5, 9, 4)
    draws = []
    for number in range(1, 301):
        one = started._make_round(number, planted={}, recorded=None)
        records = one._records[one.draw(Batch(call=0, sampling_rate=own)).call]
        draws.append(
            torch.stack(
                [(held[a][:, None] == records[a].inputs[None]).all(-1).any(-1) for a in range(5)]
            ).flatten()
        )
    taken = torch.stack(draws).double()  # (300 rounds, 45 records)
    n, deviation = taken.numel(), math.sqrt(expected * (1 - expected))
    # n = 13,500 coins; each statistic within 5 standard errors, false alarm 6e-7
    assert abs(float(taken.mean()) - expected) < 5 * deviation / math.sqrt(n)
    standard = (taken - expected) / deviation
    pairs = standard.T @ standard / len(standard)  # correlation between records
    across = pairs[~torch.eye(45, dtype=torch.bool)]
    assert float(across.abs().max()) < 5.5 / math.sqrt(len(standard))  # 990 pairs: 4e-5
    lagged = float((standard[1:] * standard[:-1]).mean())  # between rounds
    assert abs(lagged) < 5 / math.sqrt(n - 45)


# Noise of agents, on links, of shared seeds, of mixed sources, of a server, in two blocks, and
# remembered; the checks of noise streams and the tests of noise in training take every algorithm.
@pytest.mark.some_quick(2)
@pytest.mark.parametrize(
    "name", ["dp-dpsgd", "dpdl", "whisper", "decor", "cdp-dsgd", "dpmixsgd", "mafalda"]
)
def test_noise_has_the_declared_variance_and_sources_are_independent(name):
    check_noise(engine(name, ring(5), noise_std=0.4))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_is_added_to_a_message_has_the_declared_deviation(dtype):
    check_added_noise(bare_round(), dtype=dtype)


def test_a_batch_of_another_round_is_refused_in_a_run_too():
    def draws(*_):
        return [Examples(torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64))] * 5

    one, other = Door(bare_round(draw=draws)), Door(bare_round(draw=draws))
    batch = one.do("draw", (), {"sampling_rate": None})
    how = {"batch": batch, "coefs": (1.0,), "clip_norm": 1.0}
    with pytest.raises(UndeclaredOperation, match="another round"):
        other.do("clipped_sums", (other.operations.initial(),), how)


def test_nothing_is_broadcast_over_coordinates():
    one = bare_round()
    narrow = Agents(torch.zeros(5, 1, dtype=torch.float64))
    with pytest.raises(UndeclaredOperation, match="same width"):
        one.initial() + narrow
    with pytest.raises(UndeclaredOperation, match="must return"):
        one.postprocess(lambda m: m.norm()[None], one.initial())


def test_an_engine_that_starts_again_draws_fresh_noise_unless_its_root_was_given():
    def first_round(root):
        algorithm = ALGORITHMS["dp-dpsgd"]
        bound = bind(algorithm, algorithm.settings(), clip_norm=0.2, noise_std=0.4, **NUMBERS)
        fresh = Engine(setting(ring(5), rate=0.0), bound, randomness=SecretRandomness(root))
        seen = []
        for _ in range(2):
            fresh.start()
            fresh.advance()
            seen.append(fresh.models().clone())
        return torch.equal(*seen)

    assert not first_round(None)
    assert first_round(7)


@pytest.mark.parametrize("form", list(Form))
def test_dpdl_follows_its_pseudo_code(form):
    """One agent and one model at a time, from the recorded gradients and noise of a run."""
    graph = build_graph("star", 5)
    W, A, clip, std, eta, B = graph.weights, 5, 0.2, 0.4, 0.3, 4.5
    alpha, beta = 0.7, 0.9
    started = engine(
        "dpdl", graph, form=form, clip_norm=clip, noise_std=std,
        settings=dpdl.Settings(alpha=alpha, momentum=beta),
    )  # fmt: skip
    started.start()
    x, v = (started.snapshot()[k].numpy().copy() for k in ("x", "v"))
    for _ in range(3):
        recorded = Recorded()
        started.advance(recorded=recorded)
        G = recorded.contributions[0].numpy()
        Z = recorded.noise[0].numpy()
        edges = list(zip(graph.receivers.tolist(), graph.senders.tolist(), strict=True))
        at = {(m, d): e for e, (d, m) in enumerate(edges)}  # row of G[m, d]
        v_new, x_new = np.zeros_like(v), np.zeros_like(x)
        half_v, half_x = np.zeros_like(v), np.zeros_like(x)
        for i in range(A):
            noisy = {d: (G[at[i, d]] + std * Z[at[i, d]]) / B for d in graph.neighbours(i)}
            ghat = G[at[i, i]] / B if form is Form.PUBLISHED else noisy[i]
            g = np.zeros(G.shape[1])
            for d in graph.neighbours(i):
                size = np.linalg.norm(noisy[d]) * np.linalg.norm(ghat)
                cosine = noisy[d] @ ghat / size if size > 0 else 0.0
                c = 1 / (1 + math.exp(cosine))
                g += noisy[d] / (math.sqrt(W[i, d]) * A) + alpha * W[i, d] * c * ghat
            half_v[i] = beta * v[i] + g
            half_x[i] = x[i] - eta * half_v[i]
        for i in range(A):
            for j in graph.neighbours(i):
                v_new[i] += W[i, j] * half_v[j]
                x_new[i] += W[i, j] * half_x[j]
        v, x = v_new, x_new
        np.testing.assert_allclose(started.snapshot()["v"].numpy(), v, rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(started.snapshot()["x"].numpy(), x, rtol=1e-10, atol=1e-12)


def test_the_gain_of_the_calibration_is_reached_and_not_exceeded():
    """Differences of g -> c(cos(z, g)) g over 20,000 random pairs of nearby points."""
    rng = np.random.default_rng(0)
    gain = dpdl.calibration_gain()

    def pull(z: np.ndarray, g: np.ndarray) -> np.ndarray:
        cosine = (z * g).sum(1) / np.linalg.norm(z, axis=1) / np.linalg.norm(g, axis=1)
        return g / (1 + np.exp(cosine))[:, None]

    z, g = rng.normal(size=(2, 20_000, 2))
    step = 1e-6 * rng.normal(size=g.shape)
    ratio = np.linalg.norm(pull(z, g + step) - pull(z, g), axis=1) / np.linalg.norm(step, axis=1)
    assert ratio.max() <= gain * (1 + 1e-6)
    assert ratio.max() > gain * (1 - 1e-3)
    assert gain == pytest.approx(0.758, abs=5e-4)


@pytest.mark.parametrize("graph", [ring(5), full(4)], ids=lambda g: g.name)
def test_a_restored_run_continues_as_if_it_had_not_stopped(graph):
    whole = engine("dpdl", graph)
    run(whole, 2)
    kept = whole.snapshot()
    run(whole, 2)
    resumed = engine("dpdl", graph)
    resumed.restore(kept, round=2)
    run(resumed, 2)
    assert torch.equal(whole.models(), resumed.models())


def test_settings_out_of_range_are_refused():
    with pytest.raises(ValueError, match="alpha"):
        dpdl.Settings(alpha=-1.0)
    with pytest.raises(ValueError, match="momentum"):
        dpdl.Settings(momentum=1.0)
    with pytest.raises(TypeError, match="Settings"):
        bind(ALGORITHMS["dpdl"], object(), clip_norm=1.0, noise_std=1.0, **NUMBERS)


def test_metrics_of_equal_models_have_no_distance():
    started = engine("dsgd", ring(5))
    started.start()
    shard = started.setting.shards[0]
    found = evaluate(started.setting.model.double(), started.models(), shard, round=0)
    assert found.consensus_distance == pytest.approx(0.0, abs=1e-12)
    assert found.consensus_accuracy == found.accuracy[0]
    assert found.consensus_loss == pytest.approx(found.loss[3], rel=1e-12)
