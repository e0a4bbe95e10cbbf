"""Steered figures are given where every hypothesis holds, and refused by name elsewhere."""

import dataclasses
import math

import numpy as np
import pytest
import torch

from overhear.privacy import Statement, epsilon
from overhear.privacy.batches.sampling import Per
from overhear.privacy.errors import InputError
from overhear.privacy.guarantee import Unit, neighbour
from overhear.training import ALGORITHMS, Form, build_graph, recipients
from overhear.training.accounts.accounted_run import AccountedRun
from overhear.training.algorithms.dp_dpsgd import Order
from overhear.training.data.load import load_dataset
from overhear.training.exposure.dense_rounds import streamed_view
from overhear.training.graphs.graph import Graph

RING = build_graph("ring", 10)
SAID = Statement(delta=1e-5)
LOGISTIC = recipients.LinearModel(
    network="linear", loss="cross-entropy", outputs=2, feature_norm=1.0, most_records=100,
    batch_size=5.0,
)  # fmt: skip


def subject(name="ldp-dsgd", *, graph=RING, rounds=20, learning_rate=0.1, **settings):
    known = ALGORITHMS[name]
    return AccountedRun(
        algorithm=known, settings=known.settings(**settings), form=Form.REPAIRED, graph=graph,
        rounds=rounds, sampling_rate=0.02, clip_norm=1.0, learning_rate=learning_rate,
        batch_size=5.0,
    )  # fmt: skip


def refused(of=None, model=LOGISTIC, statement=SAID):
    of = subject() if of is None else of
    return recipients.refusal(of, model, statement=statement, traces=of.trace(1.0))


def with_(**changed):
    return dataclasses.replace(LOGISTIC, **changed)


def test_every_hypothesis_holds_of_logistic_regression_by_steps_that_are_mixed():
    assert refused() is None
    assert refused(subject("dp-dpsgd", order=Order.STEP_THEN_MIX)) is None
    squares = with_(loss="squared", outputs=1)
    assert recipients.step_limit(squares) == 2 * 5.0 / (100 * 2 * 2)
    assert refused(subject(learning_rate=0.025), squares) is None


@pytest.mark.parametrize(
    ("of", "model", "named"),
    [
        (subject("dp-dpsgd"), LOGISTIC, "before they are mixed"),
        (
            subject("dp-dpsgd", order=Order.STEP_THEN_MIX, clip_per=Per.USER),
            LOGISTIC,
            "sums of a user's gradients",
        ),
        (subject("dpdl"), LOGISTIC, "momentum"),
        (subject("muffliato"), LOGISTIC, "gossip steps, each of which is observed"),
        (subject("whisper"), LOGISTIC, "noise is shared"),
        (subject("decor"), LOGISTIC, "noise is shared"),
        (subject(learning_rate=0.1001), LOGISTIC, "learning_rate=0.1001 is above 0.1"),
        (
            subject(learning_rate=(0.11, *(0.01,) * 19)),
            LOGISTIC,
            "the largest learning_rate=0.11 is above 0.1",
        ),
        (
            subject(learning_rate=(0.1, *(0.01,) * 19)),
            LOGISTIC,
            "the learning rate changes from round to round, and with it the noise in the models",
        ),
        (subject(), with_(outputs=10), "softmax of 10 classes"),
        (subject(), with_(network="mlp"), "not linear"),
        (subject(), with_(network="mine:Net"), "not linear"),
        (subject(), with_(loss="absolute"), "no smooth convex loss"),
        (subject(), with_(loss=None), "no smooth convex loss"),
        (subject(), with_(loss="squared", outputs=3), "3 outputs"),
        (subject(), with_(feature_norm=None), "feature_norm"),
        (subject(), with_(most_records=None), "most_records"),
        (subject(), with_(batch_size=0.5), "learning_rate"),
        (subject(), with_(full_precision=False), "low precision"),
        (subject(), with_(own_noise=False), "seed"),
        (dataclasses.replace(subject(), missing=1), LOGISTIC, "missing"),
        (dataclasses.replace(subject(), clip_norm=None), LOGISTIC, "nothing is clipped"),
        (dataclasses.replace(subject(), clip_norm=1e5), LOGISTIC, "clip_norm=100000 is above"),
    ],
)
def test_what_breaks_a_hypothesis_is_refused_by_name(of, model, named):
    statement = recipients.refusal(of, model, statement=SAID, traces=subject().trace(1.0))
    assert named in (statement or "")


@pytest.mark.parametrize(
    "statement",
    [
        Statement(delta=1e-5, unit=Unit.AGENT, adjacency="zero-out"),
        Statement(delta=1e-5, unit=Unit.USER, records_per_person=2),
        Statement(delta=1e-5, records_per_person=2),
        Statement(delta=1e-5, holders=((0, 1), (1, 1))),
    ],
)
def test_a_figure_of_more_than_one_record_is_refused(statement):
    assert "about one record" in refused(statement=statement)


def test_an_accountant_that_is_no_upper_bound_proves_no_steered_figure():
    assert "gdp-clt" in refused(statement=Statement(delta=1e-5, accountant="gdp-clt"))


def test_a_step_that_is_not_the_recursion_of_the_bound_is_refused_by_its_trace():
    of = subject()
    other = subject("dpdl").trace(1.0)
    assert recipients.refusal(of, LOGISTIC, statement=SAID, traces=other) is not None
    unmixed = subject("dp-dpsgd").trace(1.0)
    assert recipients.refusal(of, LOGISTIC, statement=SAID, traces=unmixed) is not None


def test_an_algorithm_of_ones_own_under_a_known_name_is_refused():
    mine = dataclasses.replace(ALGORITHMS["ldp-dsgd"])
    of = dataclasses.replace(subject(), algorithm=mine)
    assert "not one of those" in refused(of)


@pytest.mark.parametrize(
    ("hops", "spent"), [(1, 3.899), (2, 1.608), (3, 1.276), (4, 1.130), (5, 1.039)]
)
def test_late_figures_amplify(hops, spent):
    of = subject(rounds=1000)
    at = {"statement": SAID, "noise_multiplier": 1.0, "victim": 0, "agent": hops}
    found = recipients.steered(of, final_models=False, **at)
    assert found.epsilon == pytest.approx(spent, abs=5e-3)
    closed = epsilon(noise_multiplier=1.0, delta=1e-5, rounds=1000, sampling_rate=0.02)
    assert found.epsilon <= closed + 1e-9


def test_final_models_are_given_no_amplified_figure():
    at = {"statement": SAID, "noise_multiplier": 1.0, "victim": 0}
    alone = recipients.steered(subject(), agent=None, final_models=True, **at)
    assert alone.late is None
    assert alone.mu == pytest.approx(2.49174, abs=1e-5)
    both = recipients.steered(subject(), agent=3, final_models=True, **at)
    assert both.late is None
    assert both.mu >= max(
        alone.mu, recipients.steered(subject(), agent=3, final_models=False, **at).mu
    )


def test_replacing_a_record_costs_twice_its_length():
    at = {"noise_multiplier": 10.0, "victim": 0, "agent": None, "final_models": True}
    once = recipients.steered(subject(), statement=SAID, **at).epsilon
    replaced = recipients.steered(
        subject(), statement=Statement(delta=1e-5, adjacency="replace-one"), **at
    )
    half = {**at, "noise_multiplier": 5.0}
    assert replaced.epsilon == pytest.approx(
        recipients.steered(subject(), statement=SAID, **half).epsilon
    )
    assert replaced.epsilon > once


def test_one_batch_as_if_alone_on_a_ring_of_dpdl():
    traces = subject("dpdl").trace(1.0)
    found = []
    for hops in (1, 2, 3):
        view = streamed_view(traces, neighbour(hops), victims=[0], closed=False, ended=False)
        of = view.rounds(0)
        rounds = [np.flatnonzero(of == t).tolist() for t in np.unique(of)]
        found.append(max(view.mu(0, taking) for taking in rounds))
    assert found == pytest.approx([1.354, 0.9687, 0.7069], abs=5e-4)


def test_the_estimate_of_all_rounds_is_that_of_the_absolute_view():
    traces = subject().trace(1.0)
    adjacent = recipients.shares_alone(traces, victim=0, agent=1)
    assert math.hypot(*adjacent) == pytest.approx(4.792, abs=1e-3)  # above the closed 4.472
    final = recipients.shares_alone(traces, victim=0, agent=None)
    assert math.hypot(*final) == pytest.approx(2.3849, abs=1e-4)
    at = {"statement": SAID, "noise_multiplier": 1.0, "sampling_rate": 0.02, "victim": 0}
    figures = [recipients.as_if_alone(traces, agent=k, **at) for k in (1, 2, 3, 4, 5)]
    assert figures == sorted(figures, reverse=True)


@pytest.mark.parametrize("clip_norm", [1e-3, 1e3])
def test_the_estimate_does_not_depend_on_the_unit_of_clipping(clip_norm):
    def shares(of):
        return recipients.shares_alone(of.trace(1.0), victim=0, agent=2)

    scaled = dataclasses.replace(subject(rounds=3), clip_norm=clip_norm)
    assert shares(scaled) == pytest.approx(shares(subject(rounds=3)), rel=1e-9)


def test_hops_are_counted_along_the_links_of_a_directed_graph():
    to_next = Graph(name="to", weights=(np.eye(4) + np.roll(np.eye(4), 1, axis=0)) / 2)
    assert recipients.distances(to_next, 0) == [0, 1, 2, 3]


def test_inputs_are_shortened_by_a_public_norm_and_short_ones_stay():
    data = load_dataset("digits").with_validation(0.25)
    found = recipients.with_feature_norm(data, 20.0)
    for inputs in (found.inputs[:99], found.test_inputs, found.measured.inputs):
        assert float(inputs.flatten(1).double().norm(dim=1).max()) <= 20.0
    wide = recipients.with_feature_norm(data, 1e6)
    assert torch.equal(wide.inputs, data.inputs)
    huge = dataclasses.replace(data, inputs=data.inputs * 1e30)
    assert float(recipients.with_feature_norm(huge, 1.0).inputs.flatten(1).norm(dim=1).max()) <= 1.0


@pytest.mark.parametrize("norm", [0.0, -1.0, math.inf, math.nan])
def test_a_norm_out_of_range_is_refused(norm):
    with pytest.raises(InputError, match="feature_norm"):
        recipients.with_feature_norm(load_dataset("digits"), norm)


def test_a_clipped_logistic_step_at_the_limit_moves_no_two_models_apart():
    # the traced hypothesis, on real gradients: two classes of a linear network with a bias
    rng = np.random.default_rng(3)
    features = np.array([1.0, 0.0, 0.0, 0.0]) + 0.2 * rng.normal(size=(40, 4))
    features /= np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1.0)
    wide = np.hstack([features, np.ones((40, 1))])
    both = np.hstack([wide, -wide])  # of the difference of both outputs
    labels = rng.integers(0, 2, 40)
    model = with_(most_records=40, batch_size=1.0)
    eta = recipients.step_limit(model)

    def step(x, scale):
        slope = 1 / (1 + np.exp(-(both @ x))) - labels
        norms = np.abs(slope) * np.linalg.norm(both, axis=1)
        factor = np.minimum(1.0, 1.1 / np.maximum(norms, 1e-300))
        return x - scale * eta * both.T @ (slope * factor)

    ratios = {1.0: 0.0, 3.0: 0.0}
    for _ in range(300):
        x, far = 0.2 * rng.normal(size=10), both[0] + 0.1 * rng.normal(size=10)
        far *= 10 ** rng.uniform(-4, 1)
        for scale, most in ratios.items():
            moved = np.linalg.norm(step(x + far, scale) - step(x, scale)) / np.linalg.norm(far)
            ratios[scale] = max(most, moved)
    assert ratios[1.0] <= 1 + 1e-9
    assert ratios[3.0] > 1.01
