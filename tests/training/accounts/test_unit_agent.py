"""All data of one agent as the unit: bounds of whole vectors, every round, and secret cohorts."""

import math

import numpy as np
import pytest
from scipy.stats import norm

from overhear import account
from overhear.privacy import Event, Status, composed_epsilon, group
from overhear.privacy.accounting.gaussian import delta_from_mu
from overhear.privacy.batches.sampling import Sampling
from overhear.privacy.errors import InputError, UnsupportedView
from overhear.training import ALL, UndeclaredOperation
from tests.training.states import State, start

RUN = {"rounds": 1000, "sampling_rate": 0.02, "delta": 1e-5}
WATCH = {"adversaries": ["eavesdropper"]}


def mean_step(state, round, *, learning_rate, clip_norm, noise_std, batch_size):
    """Step, then mix: the mean gradient of a batch is clipped as one vector."""
    mean = round.clipped_mean(
        state.x, batch=round.draw(), batch_size=batch_size, clip_norm=clip_norm
    )
    noisy = mean + round.noise(mean, std=noise_std)
    return State(round.mix(state.x - learning_rate * noisy, kind="model"))


def three_batches(state, round, *, learning_rate, clip_norm, noise_std, batch_size):
    """Three noisy means of batches of their own, one after the other."""
    x = state.x
    for _ in range(3):
        mean = round.clipped_mean(x, batch=round.draw(), batch_size=batch_size, clip_norm=clip_norm)
        x = x - learning_rate * (mean + round.noise(mean, std=noise_std))
    return State(round.mix(x, kind="model"))


def of(step, *, graph="ring:10", adversary="eavesdropper", **asked):
    given = RUN | {"unit": "agent", "adversaries": [adversary]} | asked
    return account(start, step, graph=graph, **given)


@pytest.mark.parametrize(("adjacency", "expected"), [("zero-out", 7.5113), ("replace-one", 17.857)])
def test_an_agent_in_every_round_is_a_gaussian_without_amplification(adjacency, expected):
    found = of(mean_step, noise_multiplier=20.0, adjacency=adjacency)["eavesdropper"]
    assert found.joint_sensitivity == pytest.approx(1.0)
    assert found.epsilon == pytest.approx(expected, rel=1e-4)
    assert found.status is Status.PROVEN
    assert found.sampling is Sampling.EVERY


def test_the_sampling_rate_of_records_changes_nothing_for_an_agent():
    rates = (0.001, 0.02, 1.0)
    figures = {
        of(mean_step, noise_multiplier=20.0, sampling_rate=q).epsilon("eavesdropper") for q in rates
    }
    assert len(figures) == 1


def test_whisper_as_printed_has_the_figure_of_its_paper_s_own_adjacency():
    found = account(
        "whisper", graph="ring:10", rounds=5000, sampling_rate=0.1, delta=1e-5, clip="batch",
        noise_multiplier=100, unit="agent", adjacency="replace-one", **WATCH,
    )["eavesdropper"]  # fmt: skip
    assert found.mu_per_round * 2 * np.sqrt(5000) == pytest.approx(1.4142, rel=1e-4)
    assert found.epsilon == pytest.approx(6.573, rel=1e-4)


@pytest.mark.parametrize("name", ["whisper", "decor"])
def test_correlated_noise_hides_an_agent_as_it_hides_a_record(name):
    found = account(
        name, graph="ring:10", noise_multiplier=20.0, clip="batch", unit="agent", **RUN, **WATCH
    )
    assert found["eavesdropper"].joint_sensitivity == pytest.approx(1.0, rel=1e-6)


@pytest.mark.parametrize(("graph", "expected"), [("ring:10", 3**0.5), ("full:10", 10**0.5)])
def test_gradients_on_all_neighbours_models_count_jointly(graph, expected):
    found = account(
        "dp-cga", graph=graph, noise_multiplier=20.0, clip="batch", unit="agent", **RUN, **WATCH
    )
    assert found["eavesdropper"].joint_sensitivity == pytest.approx(expected, rel=1e-6)


def test_separate_batches_of_a_round_are_one_event_of_an_agent():
    agent = of(three_batches, noise_multiplier=20.0)["eavesdropper"]
    assert agent.joint_sensitivity == pytest.approx(3**0.5, rel=1e-6)
    record = of(three_batches, noise_multiplier=20.0, unit="record")["eavesdropper"]
    assert record.joint_sensitivity == pytest.approx(2.0, rel=1e-6)  # each a ball, by itself


def test_dp_fedavg_has_the_figure_of_its_secret_cohort():
    given = RUN | {"noise_multiplier": 1.0, "unit": "agent", "cohort_rate": 0.01}
    found = account("dp-fedavg", graph="server:100", **given)
    for name in ("eavesdropper", "neighbour", "final-models"):
        assert found[name].epsilon == pytest.approx(1.8283, rel=1e-4)
        assert found[name].sampling is Sampling.COHORT
    everybody = account("dp-fedavg", graph="server:100", **given | {"cohort_rate": 1.0}, **WATCH)
    assert everybody["eavesdropper"].epsilon > 100 * 1.8283


def test_a_coalition_with_its_own_coins_learns_no_more_of_another_agent():
    given = RUN | {"noise_multiplier": 1.0, "unit": "agent", "cohort_rate": 0.01}
    found = account("dp-fedavg", graph="server:5", adversaries=["coalition:0,1,2"], **given)
    assert found["coalition:0,1,2"].epsilon == pytest.approx(1.8283, rel=1e-4)


@pytest.mark.slow
def test_thousands_of_agents_are_accounted_for_without_a_matrix_of_their_links():
    found = account(
        "dp-fedavg", graph="server:3000", noise_multiplier=1.0, unit="agent", cohort_rate=0.01,
        **RUN, **WATCH,
    )  # fmt: skip
    assert found.epsilon("eavesdropper") == pytest.approx(1.8283, rel=1e-4)


def test_a_target_is_met_at_unit_agent():
    found = account(
        "dp-fedavg", graph="server:20", epsilon=2.0, unit="agent", cohort_rate=0.05, **RUN, **WATCH
    )
    assert found.epsilon("eavesdropper") == pytest.approx(2.0, rel=1e-3)
    assert found.epsilon("eavesdropper") <= 2.0


def test_single_records_that_are_clipped_bound_no_agent():
    with pytest.raises(
        UnsupportedView, match="all that an agent sends in a round is clipped as one"
    ):
        account("dp-dpsgd", graph="ring:5", noise_multiplier=1.0, unit="agent", **RUN)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"adjacency": "add-or-remove-one"}, "an agent cannot join or leave a fixed graph"),
        ({"records_per_person": 3}, "records_per_person=3 has no effect at unit='agent'"),
        ({"unit": "client"}, "use unit='agent'"),
        ({"unit": "user"}, "unit='user' needs records_per_person"),
    ],
)
def test_what_means_nothing_for_an_agent_is_refused(asked, message):
    with pytest.raises(InputError, match=message):
        of(mean_step, noise_multiplier=1.0, **asked)


def test_every_agent_has_a_figure_of_its_own():
    found = account(
        "dp-cga", graph="star:4", noise_multiplier=20.0, clip="batch", unit="agent", **RUN, **WATCH
    )
    hub, *leaves = found.epsilon_by_agent()["eavesdropper"]
    assert hub > max(leaves)
    assert "all data of agent 0" in str(found.explain("eavesdropper"))
    assert "taking away all data of one agent" in found.statement()


def update(point, round, *, batch, clip_norm, steps=2):
    return round.local_update(
        point, steps=steps, learning_rate=0.1, batch=batch, clip_norm=clip_norm
    )


def several_steps(state, round, *, inner, clip_norm, noise_std):
    """What `inner` steps on batches of their own change, clipped, with noise."""
    batch = tuple(round.draw() for _ in range(inner))
    change = update(state.x, round, batch=batch, clip_norm=clip_norm, steps=inner)
    return State(round.mix(state.x + change + round.noise(change, std=noise_std), kind="model"))


@pytest.mark.parametrize(
    ("inner", "adjacency", "expected"),
    [
        (1, "add-or-remove-one", 3.899),
        (1, "replace-one", 4.723),
        (5, "add-or-remove-one", 9.548),
        (20, "add-or-remove-one", 16.88),
    ],
)
def test_a_record_of_local_steps_is_a_ball_at_the_rate_of_any_batch(inner, adjacency, expected):
    asked = {"rounds": 1000 // inner, "unit": "record", "adjacency": adjacency, "inner": inner}
    found = of(several_steps, noise_multiplier=2.0, **asked)["eavesdropper"]
    assert found.joint_sensitivity == pytest.approx(2.0, rel=1e-6)
    assert found.epsilon == pytest.approx(expected, rel=2e-4)


def test_whole_data_amplify_nothing_for_a_record():
    def whole(state, round, *, clip_norm, noise_std):
        change = update(state.x, round, batch=ALL, clip_norm=clip_norm)
        return State(round.mix(state.x + change + round.noise(change, std=noise_std), kind="model"))

    (release,) = (
        of(whole, noise_multiplier=2.0, unit="record").joint_sensitivities["eavesdropper"].releases
    )
    assert (release.joint_sensitivity, release.rate) == (pytest.approx(2.0), 1.0)


def inner_sums(state, round, *, draws, cohort_rate, clip_norm, noise_std):
    """One secret cohort, whose members' sums of several batches get noise, each of its own."""
    cohort, x = round.cohort(cohort_rate), state.x
    for _ in range(draws):
        sums = round.clipped_sums(x, batch=round.draw(), clip_norm=clip_norm)
        mean = round.average(sums, cohort=cohort)
        noisy = mean + round.noise(mean, std=noise_std / (cohort_rate * round.agents))
        x = x - 0.1 * round.download(noisy, kind="gradient")
    return State(x)


@pytest.mark.parametrize(
    ("rate", "draws", "expected"), [(0.1, 5, 1.1030), (0.1, 20, 4.4986), (0.5, 3, 1.3349)]
)
def test_the_coin_of_a_cohort_hides_no_record(rate, draws, expected):
    asked = {"rounds": 200, "unit": "record", "draws": draws, "cohort_rate": rate}
    found = of(inner_sums, noise_multiplier=2.0, **asked)["eavesdropper"]
    assert found.epsilon == pytest.approx(expected, rel=3e-4)
    assert "secret cohort" in found.because


@pytest.mark.parametrize("adjacency", ["add-or-remove-one", "zero-out", "replace-one"])
def test_other_records_of_an_agent_show_its_coin(adjacency):
    # Full batches, one round: other records that are far away tell that the agent takes part, and
    # then the record's sum is seen as without a cohort. So delta is .01 times that of a Gaussian.
    asked = {"rounds": 1, "sampling_rate": 1.0, "draws": 1, "cohort_rate": 0.01}
    found = of(inner_sums, noise_multiplier=1.0, unit="record", adjacency=adjacency, **asked)[
        "eavesdropper"
    ]
    mu = 2.0 if adjacency == "replace-one" else 1.0
    assert 0.01 * delta_from_mu(mu, found.epsilon) == pytest.approx(1e-5, rel=1e-2)
    assert 0.01 * delta_from_mu(mu, found.epsilon) <= 1e-5


def _two_sided(p, q):
    """Epsilon at delta 1e-5 of one round in which an agent's change lies in the unit ball.

    It is 0 where the agent is not in the cohort, +-1 without the record and with it, noise 1.
    """
    x = np.linspace(-9.0, 9.0, 200_001)
    there, out = p * q, 1.0 - p
    with_it = out * norm.pdf(x) + (p - there) * norm.pdf(x - 1.0) + there * norm.pdf(x + 1.0)
    without = out * norm.pdf(x) + (p - there) * norm.pdf(x - 1.0) + there * norm.pdf(x - 1.0)
    pairs = ((with_it, without), (without, with_it))
    steps = np.linspace(0.0, 6.0, 1201)

    def smallest(one, other):
        deltas = [np.maximum(one - math.exp(e) * other, 0.0).sum() * (x[1] - x[0]) for e in steps]
        return float(steps[int(np.argmax(np.array(deltas) <= 1e-5))])

    return max(smallest(one, other) for one, other in pairs)


@pytest.mark.parametrize("adjacency", ["add-or-remove-one", "zero-out", "replace-one"])
@pytest.mark.parametrize("p", [0.1, 0.5])
def test_a_record_of_a_cohorts_change_costs_what_a_toy_shows_or_more(p, adjacency):
    def step(state, round, *, clip_norm, noise_std):
        change = update(state.x, round, batch=round.draw(), clip_norm=clip_norm)
        mean = round.average(change, cohort=round.cohort(p))
        mean = mean + round.noise(mean, std=noise_std / (p * round.agents))
        return State(state.x + round.download(mean, kind="mean"))

    asked = {"rounds": 1, "sampling_rate": 0.3, "adjacency": adjacency, "unit": "record"}
    found = of(step, noise_multiplier=1.0, **asked)["eavesdropper"]
    assert found.epsilon >= _two_sided(p, 0.3) - 0.005


def test_several_records_share_the_coin_of_their_agent():
    asked = {"rounds": 200, "unit": "record", "draws": 1, "cohort_rate": 0.5}
    given = asked | {"noise_multiplier": 2.0, "records_per_person": 3}
    found = of(inner_sums, **given)["eavesdropper"]
    seen = {Event(2.0, group(3, 0.02), coin=0.5): 200}
    assert found.group[0].epsilon == pytest.approx(composed_epsilon(seen, delta=1e-5), rel=1e-6)


def test_an_accountant_of_equal_rounds_does_not_answer_for_a_cohort_that_shows():
    asked = {"rounds": 200, "draws": 1, "cohort_rate": 0.5, "accountant": "rdp"}
    with pytest.raises(InputError, match="accountant='rdp' with rounds that differ; use 'pld'"):
        of(inner_sums, noise_multiplier=2.0, unit="record", **asked)


def refused(step, message, **asked):
    with pytest.raises((UndeclaredOperation, InputError), match=message):
        of(step, noise_multiplier=1.0, **asked)


def test_a_cohort_is_refused_wherever_somebody_sees_who_sends():
    seen = "who sends is seen on a link: a secret cohort can only enter a trusted sum"

    def uploaded(state, round, *, clip_norm):
        change = update(state.x, round, batch=ALL, clip_norm=clip_norm)
        return State(
            round.download(round.upload(change, kind="u", cohort=round.cohort(0.1)), kind="d")
        )

    def multiplied(state, round, *, clip_norm):
        return State(update(state.x, round, batch=ALL, clip_norm=clip_norm) * round.cohort(0.1))

    def counted(state, round, *, clip_norm):
        len(round.cohort(0.1))
        return state

    for step in (uploaded, multiplied, counted):
        refused(step, seen)


def test_a_cohort_masks_nothing_but_clipped_contributions():
    def with_models(state, round, *, clip_norm):
        change = update(state.x, round, batch=ALL, clip_norm=clip_norm)
        return State(
            round.download(round.average(state.x + change, cohort=round.cohort(0.1)), kind="d")
        )

    def with_noise(state, round, *, clip_norm, noise_std):
        change = update(state.x, round, batch=ALL, clip_norm=clip_norm)
        noisy = change + round.noise(change, std=noise_std)
        return State(round.download(round.average(noisy, cohort=round.cohort(0.1)), kind="d"))

    for step in (with_models, with_noise):
        refused(step, "must be made of clipped sums of one batch alone|clipped contributions")


def test_a_contribution_seen_with_and_without_its_cohort_has_no_figure_of_a_record():
    def both(state, round, *, clip_norm, noise_std):
        sums = round.clipped_sums(state.x, batch=round.draw(), clip_norm=clip_norm)
        mean = round.average(sums, cohort=round.cohort(0.1))
        mean = mean + round.noise(mean, std=noise_std)
        x = round.mix(state.x - sums - round.noise(sums, std=noise_std), kind="model")
        return State(x + round.download(mean, kind="mean"))

    found = of(both, noise_multiplier=1.0, unit="record")["eavesdropper"]
    assert found.status is Status.CANNOT_BE_EXPRESSED
    assert "with and without its secret cohort" in found.because


def test_what_an_agent_always_sends_beside_a_cohort_counts_in_every_round():
    def both(state, round, *, clip_norm, noise_std):
        change = update(state.x, round, batch=ALL, clip_norm=clip_norm)
        mean = round.average(change, cohort=round.cohort(0.01))
        mean = mean + round.noise(mean, std=noise_std * 100 / round.agents)
        x = round.mix(state.x + change + round.noise(change, std=noise_std), kind="model")
        return State(x + round.download(mean, kind="mean"))

    found = of(both, noise_multiplier=20.0)["eavesdropper"]
    assert found.epsilon > 7.5113  # of the part that is sent in every round
    assert found.status is Status.PROVEN


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"steps": 0}, r"steps=0 must lie in \[1, 10000\]"),
        ({"steps": 2.5}, "steps=2.5 must be an integer"),
        ({"learning_rate": float("nan")}, "learning_rate=nan must be above 0 and finite"),
        ({"momentum": 1.0}, "momentum=1.0 must lie in"),
        ({"clip_norm": 0.0}, "clip_norm=0.0 must be above 0"),
        ({"batch": 3}, "local_update with a batch of int"),
    ],
)
def test_a_local_update_of_impossible_numbers_is_refused(asked, message):
    def step(state, round):
        given = {"steps": 1, "learning_rate": 0.1, "batch": ALL, "clip_norm": 1.0} | asked
        return State(round.local_update(state.x, **given))

    refused(step, message)


def test_batches_of_a_local_update_are_its_own():
    def twice(state, round, *, clip_norm):
        b = round.draw()
        return State(update(state.x, round, batch=(b, b), clip_norm=clip_norm))

    def shared(state, round, *, clip_norm, batch_size):
        b = (round.draw(), round.draw())
        mean = round.clipped_mean(state.x, batch=b[0], batch_size=batch_size, clip_norm=clip_norm)
        return State(mean + update(state.x, round, batch=b, clip_norm=clip_norm))

    def few(state, round, *, clip_norm):
        return State(update(state.x, round, batch=(round.draw(),), clip_norm=clip_norm))

    def everything(state, round, *, clip_norm):
        return State(round.clipped_sums(state.x, batch=ALL, clip_norm=clip_norm))

    refused(twice, "one batch stands twice")
    refused(shared, "one of several of a round.local_update is used again")
    refused(few, "batch has 1 batches for steps=2")
    refused(everything, "for round.local_update alone")


def test_an_algorithm_that_sends_along_links_is_refused_without_them():
    refused(mean_step, "has no links between agents", graph="server:5")
