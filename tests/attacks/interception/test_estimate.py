"""What the view of any adversary says of a victim's gradients, for every algorithm."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from overhear.attacks.interception.estimate import Estimate, _walk, estimate
from overhear.attacks.interception.replay import (
    Replay,
    best_weights,
    determined,
    replay,
    seen_combination,
    trace_of,
)
from overhear.training.algorithms import ALGORITHMS, Form, dp_cga, dp_dpsgd
from overhear.training.algorithms.compression import Compressor, Settings
from overhear.training.algorithms.dp_dpsgd import Order
from overhear.training.engine.transcript import Transcript
from overhear.training.exposure.joint_sensitivities import joint_sensitivities
from overhear.training.graphs.topologies import full, grid, star
from tests.attacks.interception.replays import CLIP, planted, shown, trial

PRIVATE = [name for name, known in ALGORITHMS.items() if known.private]
CENTRAL = ("cdp-dsgd", "dp-ftrl", "dp-sgda")  # only a sum over agents leaves the server
LOCAL = ("dp-fedavg",)  # what an agent gives is what it changed in several steps: no gradient
COMPRESSED = ("choco-sgd", "porter")  # what is sent is a function of a noisy gradient
OUTSIDE = [
    (name, who)
    for name in PRIVATE
    for who in ("eavesdropper", "all-others")
    if name not in LOCAL and not (name in CENTRAL and who == "eavesdropper")
]


def linear(name: str) -> object:
    """Hyper-parameters with which every message is linear in what was drawn; None by default."""
    return Settings(compressor=Compressor.NONE) if name in COMPRESSED else None


@pytest.mark.parametrize("records", [3])
@pytest.mark.parametrize(("name", "who"), [*OUTSIDE, ("dsgd", "eavesdropper")])
def test_without_noise_the_planted_gradients_come_back(name, who, records):
    t, batch = trial(name, adversary=who, settings=linear(name)), planted(records)
    seen = estimate(replay(t, batch)).observation
    assert seen is not None
    assert not seen.is_noisy
    torch.testing.assert_close(seen.gradient, shown(t, seen, batch), rtol=1e-8, atol=1e-10)


@pytest.mark.some_quick(6)
@pytest.mark.parametrize(("name", "who"), OUTSIDE)
def test_the_whitened_error_is_standard_normal(name, who):
    t = trial(name, adversary=who, noise_std=0.02, round=2, settings=linear(name))
    batch = planted()
    traces, errors = trace_of(t), []
    for _ in range(4):
        seen = estimate(replay(t, batch, traces=traces), bounded=False).observation
        assert seen is not None
        error = seen.gradient - shown(t, seen, batch)
        if seen.is_noisy:
            factor = torch.linalg.cholesky(seen.covariance)
            errors.append(torch.linalg.solve_triangular(factor, error, upper=False))
        else:
            assert float(error.abs().max()) < 1e-9
    if not errors:
        return
    z = torch.cat(errors, dim=1)  # (K, n)
    n, K = z.shape[1], len(z)
    # Variances and correlations of K rows of n normals each within 6 standard errors: false alarm
    # below 2e-9 for each, below 1e-7 for all.
    off = (z @ z.T / n - torch.eye(K)).abs()
    assert float(off.max()) < 6 * math.sqrt(2 / n)


@pytest.mark.parametrize(("name", "who"), OUTSIDE)
@pytest.mark.parametrize(
    "graph", [None, pytest.param(star(4), marks=pytest.mark.slow)], ids=["ring", "star"]
)
def test_no_estimate_is_better_than_the_accountant_says(name, who, graph):
    """Contributions that all point one way are told apart at most as well as mu says."""
    t = trial(name, adversary=who, noise_std=CLIP, graph=graph, round=2, settings=linear(name))
    traces = trace_of(t)
    seen = estimate(replay(t, planted(), traces=traces)).observation
    ((_, found),) = joint_sensitivities(traces, [who], sampling_rate=1.0, victim=t.victim)
    # Batches of one round are drawn apart, and the record is planted in each of them.
    squares = dict.fromkeys((r.first for r in found.releases if r.first), 0.0)
    for r in found.releases:
        squares[r.first] = squares.get(r.first, 0.0) + r.joint_sensitivity**2
    most = math.sqrt(max(squares.values()))
    if math.isinf(most):
        return
    assert seen is not None
    told = CLIP / seen.noise_std if seen.is_noisy else math.inf
    assert told <= most * (1 + 1e-9)


def test_cross_gradients_of_one_batch_are_as_many_intercepts():
    t = trial("dpdl", noise_std=0.02, graph=full(4))
    found = estimate(replay(t, planted()))
    assert found.owners == (0, 2, 3)
    assert found.observation is not None
    assert found.observation.noise_std == pytest.approx(0.02 / math.sqrt(3))
    assert found.missing == ("round 3, batch 0, at agent 1's model",)


def test_a_record_in_several_rounds_gives_intercepts_of_all_of_them():
    t = trial("dp-dpsgd", noise_std=0.02, together=3, round=2)
    seen = estimate(replay(t, planted())).observation
    assert seen is not None
    assert seen.noise_std == pytest.approx(0.02 / math.sqrt(3))


@pytest.mark.parametrize("round", [1, 2, 5])
def test_models_that_are_sent_after_their_step_give_it_away_too(round):
    t = replace(
        trial("dp-dpsgd", round=round), settings=dp_dpsgd.Settings(order=Order.STEP_THEN_MIX)
    )
    seen = estimate(replay(t, planted())).observation
    assert seen is not None
    torch.testing.assert_close(seen.gradient, shown(t, seen, planted()), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("records", [1, 3])
def test_a_batch_that_is_clipped_as_one_comes_back_with_its_own_clip_norm(records):
    t = trial("dp-cga", settings=dp_cga.Settings(clip=dp_cga.Clip.BATCH))
    seen = estimate(replay(t, planted(records))).observation
    assert seen is not None
    assert (seen.clip_norm, seen.mean_of) == (CLIP, t.batch_size)
    torch.testing.assert_close(seen.gradient, shown(t, seen, planted(records)))
    assert float(seen.gradient.norm(dim=1).max()) == pytest.approx(CLIP)  # the clip is felt


def test_an_agent_that_knows_the_seeds_removes_the_noise():
    t = trial("whisper", noise_std=0.02, adversary="all-others")
    seen = estimate(replay(t, planted())).observation
    assert seen is not None
    assert not seen.is_noisy
    torch.testing.assert_close(seen.gradient, shown(t, seen, planted()), rtol=1e-8, atol=1e-10)


def test_who_knows_the_noise_of_others_subtracts_what_is_correlated_with_it():
    outside, inside = (
        estimate(replay(trial("decor", noise_std=0.02, adversary=who), planted())).observation
        for who in ("eavesdropper", "all-others")
    )
    assert outside is not None
    assert inside is not None
    assert inside.noise_std < 0.7 * outside.noise_std


@pytest.mark.parametrize("noise_std", [0.0, 0.02])
def test_gradients_at_two_points_of_which_one_combination_is_sent_are_taken_together(noise_std):
    """As published, DPMixSGD clips both gradients by themselves, and sends their difference."""
    t = trial("dpmixsgd", form=Form.PUBLISHED, noise_std=noise_std)
    for records in (1, 3):
        seen = estimate(replay(t, planted(records)), bounded=False).observation
        assert seen is not None
        assert seen.coefs == pytest.approx((1.0, -0.99))
        assert seen.clip_parts
        assert seen.clip_norm == CLIP
        error = seen.gradient - shown(t, seen, planted(records))
        if noise_std == 0:
            assert float(error.abs().max()) < 1e-9
            one = shown(t, replace(seen, clip_parts=False), planted(records))
            assert float((seen.gradient - one).abs().max()) > 1e-4
        else:  # n = 323: variance within 6 standard errors, false alarm 2e-9
            z = error / seen.noise_std
            assert abs(float(z.square().mean()) - 1) < 6 * math.sqrt(2 / z.numel())


@pytest.mark.parametrize("name", CENTRAL)
def test_a_sum_over_agents_singles_nobody_out(name):
    found = estimate(replay(trial(name), planted()), bounded=False)
    assert found.observation is None
    assert len(found.missing) == 1


@pytest.mark.parametrize("name", CENTRAL)
def test_clipped_gradients_of_others_are_noise_of_bounded_size(name):
    t = trial(name, noise_std=0.001)
    seen = estimate(replay(t, planted())).observation
    assert seen is not None
    error = (seen.gradient - shown(t, seen, planted())).square().mean().sqrt()
    assert float(error) < seen.noise_std  # others are taken for as large as they may be


def test_clips_that_differ_by_round_are_attacked_one_at_a_time_and_said():
    found = estimate(replay(trial("dyn-d2p", noise_std=0.02, together=2, round=2), planted()))
    assert len(found.identified) == 1
    assert len(found.passed_over) == 1


def test_rounding_of_messages_is_measured():
    t = trial("ldp-dsgd")
    single = replace(t, setting=replace(t.setting, dtype=torch.float32))
    for of, exact in ((t, True), (single, False)):
        seen = estimate(replay(of, planted())).observation
        assert seen is not None
        points = replace(seen, points=seen.points.double(), gradient=seen.gradient.double())
        truth = shown(t, points, planted())
        left = float((points.gradient - truth).norm() / truth.norm())
        assert (seen.rounding == 0.0) == exact
        assert left <= max(seen.rounding, 1e-12)


def test_a_neighbour_that_hears_one_link_identifies_one_gradient():
    t = trial("dpdl", noise_std=0.02, adversary="neighbour:2")
    found = estimate(replay(t, planted()))
    assert found.owners == (2,)


def test_holders_of_the_final_models_see_the_end_states_alone():
    t = trial("dp-dpsgd", noise_std=0.02, adversary="final-models")
    seen = estimate(replay(t, planted())).observation
    assert seen is not None
    assert seen.noise_std == pytest.approx(0.02)


def test_a_state_from_before_the_replay_is_unknown_and_soon_determined():
    first = trial("dpdl", round=2, noise_std=0.02)
    state = replay(first, planted()).rounds[2].before
    later = replace(first, snapshot=state, snapshot_round=1)
    seen = estimate(replay(later, planted())).observation
    assert seen is not None
    assert seen.noise_std == pytest.approx(0.02 / math.sqrt(2))


def test_a_single_message_is_no_view():
    with pytest.raises(ValueError, match="has no view; use eavesdropper"):
        estimate(replay(trial("dp-dpsgd", adversary="single-message"), planted()))


@pytest.mark.parametrize(
    "form", [Form.REPAIRED, pytest.param(Form.PUBLISHED, marks=pytest.mark.slow)]
)
def test_every_form_of_every_algorithm_can_be_looked_at(form):
    for name in ALGORITHMS:
        found = estimate(replay(trial(name, form=form), planted()))
        assert found.observation is not None or found.missing or name in LOCAL


@pytest.mark.parametrize("name", COMPRESSED)
@pytest.mark.parametrize("noise_std", [0.0, 0.02])
@pytest.mark.parametrize("compressor", [Compressor.TOP_K, Compressor.QUANTISED])
def test_a_gradient_under_compressed_messages_is_missing_by_name(name, noise_std, compressor):
    t = trial(name, noise_std=noise_std, settings=Settings(compressor=compressor))
    found = estimate(replay(t, planted()))
    assert found.observation is None
    assert found.missing == ("round 3, batch 0, at agent 1's model",)


@pytest.mark.parametrize("name", LOCAL)
def test_what_an_agent_changed_is_no_gradient_to_be_estimated(name):
    for who in ("eavesdropper", "all-others"):
        found = estimate(replay(trial(name, adversary=who), planted()))
        assert found.observation is None
        assert found.identified == found.missing == ()


def test_an_empty_transcript_is_refused():
    played = replay(trial("dp-dpsgd"), planted())
    with pytest.raises(ValueError, match="the transcript is empty"):
        estimate(replace(played, transcript=Transcript()))


# Two hops away: what rounds tell together of gradients that change slowly.


def played(*, rate: float, together: int = 5, adversary: str = "neighbour:0") -> Replay:
    """A path of five in which agent 2 is two hops from agent 0; batches are whole."""
    one = trial("dsgd", graph=grid(5, columns=5), round=1, together=together)
    setting = replace(one.setting, sampling_rate=1.0)
    one = replace(
        one, victim=2, model_owner=1, setting=setting, learning_rate=rate, batch_size=9.0,
        adversary=adversary,
    )  # fmt: skip
    return replay(one, planted())


def left(found: Estimate, of: Replay) -> float:
    """Relative error of the estimate."""
    seen = found.observation
    assert seen is not None
    true = shown(of.trial, seen, planted())
    return float((seen.gradient - true).norm() / true.norm())


@pytest.mark.parametrize(("rate", "error"), [(1e-5, 1e-3), (1e-3, 0.05), (0.02, 0.5)])
def test_the_slower_gradients_change_the_nearer_is_the_estimate(rate, error):
    of = played(rate=rate)
    found = estimate(of)
    assert found.approximate
    assert left(found, of) < error
    assert found.identified == ("mean over 5 rounds, approximate, at agent 2's model",)
    assert len(found.missing) == 5  # no round tells its own


def test_an_estimate_that_rests_on_a_prior_is_never_without_an_error():
    seen = estimate(played(rate=1e-3)).observation
    assert seen is not None
    assert seen.is_noisy


def test_without_the_prior_nothing_is_told():
    assert estimate(played(rate=1e-3), bounded=False).observation is None


def test_one_round_has_no_drift():
    assert estimate(played(rate=1e-3, together=1)).observation is None


def test_who_has_no_gradients_of_its_own_has_no_measure_of_others():
    found = estimate(played(rate=1e-3, adversary="final-models"))
    assert not found.approximate


def test_a_neighbour_s_rounds_are_told_exactly_and_need_no_prior():
    found = estimate(played(rate=1e-3, adversary="neighbour:1"))
    assert not found.approximate
    assert found.observation is not None


def test_a_walk_starts_in_the_middle_and_grows_by_a_step_a_round():
    spread = torch.from_numpy(_walk(5)).square().sum(dim=1)
    assert spread.tolist() == [2.0, 1.0, 0.0, 1.0, 2.0]


def test_what_own_gradients_would_have_left_is_of_the_size_of_what_others_left():
    of = played(rate=0.02)
    seen = estimate(of).observation
    assert seen is not None
    assert seen.drift is not None
    each = replace(
        seen, points=seen.drift.points[:, None], gradient=seen.gradient.expand(5, -1),
        covariance=torch.zeros(5, 5), drift=None,
    )  # fmt: skip
    of_victim = torch.tensor(seen.drift.shares).double() @ shown(of.trial, each, planted())
    left = float((seen.gradient[0] - of_victim).norm())
    samples = seen.drift.others.norm(dim=1)
    assert abs(sum(seen.drift.shares) - 1) < 1e-9
    assert left / 3 < float(samples.median()) < 3 * left
    assert seen.drift.noise_std == 0


def _equations(seed: int, *, equations: int = 9, unknowns: int = 4, sources: int = 9):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(equations, unknowns)), rng.normal(size=(equations, sources))


@pytest.mark.parametrize("seed", range(3))
def test_the_covariance_is_that_of_generalised_least_squares(seed):
    A, B = _equations(seed)
    found = best_weights(A, B, targets=[0, 1, 2, 3])
    expected = np.linalg.inv(A.T @ np.linalg.inv(B @ B.T) @ A)
    np.testing.assert_allclose(found.covariance, expected, rtol=1e-8)


def test_the_errors_of_drawn_equations_have_the_declared_covariance():
    A, B = _equations(1)
    found = best_weights(A, B, targets=[0, 2])
    rng = np.random.default_rng(0)
    truth, noise = rng.normal(size=(4, 1)), rng.normal(size=(9, 50_000))
    errors = found.rows @ (A @ truth + B @ noise) - truth[[0, 2]]
    measured = errors @ errors.T / 50_000
    # n = 50000 normals; each entry within 6 standard errors (at most 6 sqrt(2/n) of the scale):
    # false alarms below 1e-8.
    scale = np.sqrt(np.outer(np.diag(found.covariance), np.diag(found.covariance)))
    assert np.abs(measured - found.covariance).max() < 6 * np.sqrt(2 / 50_000) * scale.max()


def test_an_unknown_that_always_comes_with_another_is_not_identified():
    A = np.array([[1.0, 1.0, 0.0], [2.0, 2.0, 1.0], [0.0, 0.0, 1.0]])
    found = best_weights(A, np.eye(3), targets=[0, 1, 2])
    assert found.identified == (2,)


def test_scaling_the_equations_changes_nothing():
    A, B = _equations(2)
    by = np.logspace(-8, 8, 9)[:, None]
    one, two = (best_weights(a, b, targets=[1]) for a, b in ((A, B), (by * A, by * B)))
    np.testing.assert_allclose(two.covariance, one.covariance, rtol=1e-6)


def test_noise_that_cancels_between_equations_leaves_a_clean_estimate():
    A, B = np.array([[1.0], [0.0]]), np.array([[0.7], [0.7]])
    found = best_weights(A, B, targets=[0])
    assert found.clean == (True,)
    np.testing.assert_allclose(found.rows, [[1.0, -1.0]], atol=1e-12)


def test_equations_that_repeat_one_another_are_no_more_than_one():
    A, B = np.array([[1.0], [1.0], [1.0]]), np.array([[0.5], [0.5], [0.5]])
    assert best_weights(A, B, targets=[0]).covariance[0, 0] == pytest.approx(0.25)


def test_sums_of_equations_are_determined_and_their_parts_are_not():
    equations = np.array([[1.0, 1.0, 0.0], [0.0, 1.0, 1.0]])
    rows = np.array([[1.0, 2.0, 1.0], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    assert determined(rows, equations).tolist() == [True, False, True]


def test_a_target_that_is_no_column_is_refused():
    with pytest.raises(ValueError, match=r"targets \[4\] must lie in \[0, 4\)"):
        best_weights(*_equations(0), targets=[4])


def test_a_combination_is_told_exactly_where_no_other_unknown_stands_in_the_way():
    hidden = np.array([[1.0, -0.9, 2.0], [0.0, 0.0, 1.0]])
    assert seen_combination(hidden, columns=[0, 1]) == pytest.approx([1.0, -0.9])
    assert seen_combination(hidden[:1], columns=[0, 1]) is None  # the third one is not known
    both = np.vstack([hidden, [0.0, 1.0, 0.0]])
    assert seen_combination(both, columns=[0, 1]) is None  # each is told alone
    found = best_weights(hidden, np.eye(2), targets=np.array([[1.0, -0.9, 0.0]]))
    assert found.identified == (0,)
    assert found.rows[0] == pytest.approx([1.0, -2.0])
