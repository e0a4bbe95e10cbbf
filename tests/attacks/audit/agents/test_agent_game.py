"""Canaries that are all data of an agent, in runs of the real engine."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from overhear.attacks.audit import agents_game
from overhear.attacks.audit import canary_noise as strength
from overhear.attacks.audit.audit import audit
from overhear.attacks.audit.audited import Proven, Verdict
from overhear.attacks.audit.canaries import Directions
from overhear.attacks.bounds.mechanism import Claim, epsilon
from overhear.privacy.batches.sampling import Scheme
from overhear.privacy.errors import InputError
from overhear.privacy.guarantee import EAVESDROPPER, Statement, Status, Unit
from overhear.privacy.participation import Event, poisson
from overhear.training.algorithms import ALGORITHMS, Algorithm
from overhear.training.algorithms.algorithm import Clip
from overhear.training.algorithms.dp_fedavg import Cohorts
from overhear.training.batches import taking_part
from overhear.training.data.store import Examples
from overhear.training.engine import engine as engine_module
from overhear.training.engine.randomness import SecretRandomness
from overhear.training.engine.recording import MeanOf, Recorded
from overhear.training.gradients import whole_vectors as changes
from overhear.training.graphs.topologies import ring
from overhear.training.step.values import ALL, Cohort, LocalSteps
from overhear.training.tracing.trace import at_unit, trace
from tests.attacks.planted.noise import noise_halved
from tests.training import contract
from tests.training.states import State

GRAPH = ring(5)
DELTA = 1e-5
MU = contract.CLIP / contract.NOISE  # of one round in which an agent takes part for sure


def start(round):
    return State(round.initial())


def averaged(state, round, *, learning_rate, clip_norm, noise_std, momentum=0.0, proximal=0.0):
    """A trusted sum of everybody's local steps, without a cohort."""
    changed = round.local_update(
        state.x, steps=3, learning_rate=learning_rate, batch=ALL, clip_norm=clip_norm,
        momentum=momentum, proximal=proximal,
    )  # fmt: skip
    mean = round.average(changed)
    noisy = mean + round.noise(mean, std=noise_std / round.agents)
    return State(state.x + round.download(noisy, kind="model change"))


def bent(state, round, *, learning_rate, clip_norm, noise_std):
    """The same with momentum, a pull to the start, and a local step that overshoots it."""
    return averaged(
        state, round, learning_rate=learning_rate, clip_norm=clip_norm, noise_std=noise_std,
        momentum=0.5, proximal=9.0,
    )  # fmt: skip


SUMMED = Algorithm(name="summed", init=start, step=averaged)
BENT = Algorithm(name="bent", init=start, step=bent)


def of(algorithm="dp-fedavg", *, rounds=2, settings=None, **how) -> agents_game.AgentGame:
    if algorithm == "dp-fedavg" and settings is None:
        settings = replace(ALGORITHMS["dp-fedavg"].settings(), cohort_rate=0.4, local_steps=2)
    bound = contract.bound_to(algorithm, GRAPH, settings=settings)
    traces = trace(
        bound.init, bound.step, graph=GRAPH, rounds=40, noise_multiplier=bound.noise_multiplier
    )
    fixed = {
        "setting": contract.setting(GRAPH), "bound": bound, "traces": traces,
        "of_agents": at_unit(traces, Unit.AGENT), "rounds": rounds,
        "adversaries": {"eavesdropper": dict.fromkeys(range(5), EAVESDROPPER)}, "canaries": 150,
    }  # fmt: skip
    return agents_game.AgentGame(**(fixed | how))


def played(game: agents_game.AgentGame, seed: int):
    return game.play(generator=np.random.default_rng(seed))


def signed(found) -> np.ndarray:
    return np.where(found.included, found.scores, -found.scores)


def proven(mu: float, *, rate: float = 1.0, rounds: int = 2, adjacency="zero-out") -> Proven:
    claim = Claim(rounds={Event(1.0 / mu, poisson(rate)): rounds}, adjacency=adjacency)
    return Proven(
        name="eavesdropper", epsilon=epsilon(claim, DELTA),
        statement=Statement(delta=DELTA, adjacency=adjacency, unit="agent"), status=Status.PROVEN,
        claim=claim,
    )  # fmt: skip


@pytest.mark.parametrize("algorithm", [SUMMED, BENT])
def test_scores_of_agents_are_those_of_two_normals(monkeypatch, algorithm):
    """n = 150 at one vector a round: log ratios N(+-v/2, v), v = 2 mu^2.

    Mean within 5 standard errors (6e-7 each), variance within 5.5 (below 1e-5, as it is skew).
    """
    monkeypatch.setattr(strength, "SURE", math.inf)
    found = played(of(algorithm), 1).guesses["eavesdropper"]
    v, n = 2 * MU**2, len(found.scores)
    assert n == 150
    for coin in (True, False):  # each by itself, or a threshold that is off would cancel
        part = signed(found)[found.included == coin]
        assert part.mean() == pytest.approx(v / 2, abs=5 * math.sqrt(v / len(part)))
    assert signed(found).var() == pytest.approx(v, rel=5.5 * math.sqrt(2 / n))


def test_an_agent_s_data_and_their_opposite_are_twice_as_far_apart(monkeypatch):
    """n = 150, the mean within 5 standard errors: 6e-7."""
    monkeypatch.setattr(strength, "SURE", math.inf)
    found = played(of(SUMMED, replace=True), 2).guesses["eavesdropper"]
    v = 8 * MU**2
    assert signed(found).mean() == pytest.approx(v / 2, abs=5 * math.sqrt(v / 150))


@pytest.mark.slow
def test_scores_under_a_secret_cohort_are_log_likelihood_ratios(monkeypatch):
    """E[exp(-ratio)] with data and E[exp(ratio)] without are 1; n = 200 or so, 6 standard errors.

    Exceeded with probability below 1e-6 each.
    """
    monkeypatch.setattr(strength, "SURE", math.inf)
    found = played(of(canaries=400), 3).guesses["eavesdropper"]
    for odds in (np.exp(-found.scores[found.included]), np.exp(found.scores[~found.included])):
        assert odds.mean() == pytest.approx(1.0, abs=6 * odds.std() / math.sqrt(len(odds)))
    assert found.scores.std() > 0.05  # they tell something


def test_a_mean_that_is_clipped_holds_a_canary_as_well():
    """Correlated noise and a mean of a batch: DECOR, n = 100 at mu^2 = 6 / 4.

    The mean is expected 6 standard errors from 0; below 1 has probability 3e-7.
    """
    settings = replace(ALGORITHMS["decor"].settings(), clip=Clip.BATCH)
    game = of("decor", settings=settings, canaries=100, rounds=6)
    found = played(game, 4)
    of_all = signed(found.guesses["eavesdropper"])
    assert of_all.mean() > of_all.std() / math.sqrt(100)
    assert all(check.passed for check in game.checks(found))


def test_a_sound_run_passes_all_checks_of_its_canaries():
    """150 canaries in two rounds; all tests of a check together fail with probability 1e-6."""
    game = of()
    found = game.checks(played(game, 5))
    assert [one.name for one in found] == ["absent canaries", "clipping", "independence"]
    assert [one.passed for one in found] == [True] * 3


@pytest.mark.slow
@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
def test_a_sound_run_is_not_contradicted(adjacency):
    """1,000 canaries at the exact epsilon, 99 %: contradicted with probability 1e-5."""
    game = of(SUMMED, canaries=1000, replace=adjacency == "replace-one")
    (found,) = audit(game, [proven(MU, adjacency=adjacency)], seed=6, confidence=0.99)
    assert found.verdict is not Verdict.CONTRADICTED
    # About .8 is expected; less than a fifth is measured with probability 3e-6.
    assert found.measured > 0.2 * found.proven.epsilon


def contradicted(game: agents_game.AgentGame, claim: Proven) -> tuple[bool, list[str]]:
    checks = []
    (found,) = audit(game, [claim], seed=8, checks=checks)
    return found.verdict is Verdict.CONTRADICTED, [one.name for one in checks if not one.passed]


@pytest.mark.slow
def test_half_the_noise_contradicts_what_is_proven_of_an_agent():
    """1,000 canaries at twice the claimed mu of .71: missed with probability below 1e-6."""
    with noise_halved():
        bad, failed = contradicted(of(SUMMED, canaries=1000), proven(MU))
    assert bad
    assert "absent canaries" in failed


@pytest.mark.slow
def test_a_local_update_that_is_clipped_to_twice_the_norm_is_found(monkeypatch):
    """1,000 canaries at twice the claimed mu of .71: missed with probability below 1e-6."""
    sound = changes.clipped_rows
    monkeypatch.setattr(
        changes, "clipped_rows", lambda rows, norm, **how: sound(rows, 2 * norm, **how)
    )
    bad, failed = contradicted(of(SUMMED, canaries=1000), proven(MU))
    assert bad
    assert failed == ["clipping"]


@pytest.mark.slow
def test_a_cohort_in_which_everybody_is_contradicts_its_rate(monkeypatch):
    """1,000 canaries at rate .4 claimed and 1 played, four rounds: missed below 1e-6."""

    def everybody(self, *, round, call, rows, rate):
        return torch.ones(len(rows), 1, dtype=torch.bool)

    monkeypatch.setattr(SecretRandomness, "coins", everybody)
    joint = 1.0 / (contract.NOISE / contract.CLIP)
    bad, _ = contradicted(of(rounds=4, canaries=1000), proven(joint, rate=0.4, rounds=4))
    assert bad


def test_every_vector_has_the_length_before_clipping_that_was_drawn():
    """Local steps with momentum and a pull, and a mean: exact up to rounding."""
    directions = Directions(1, 6, generator=np.random.default_rng(0))
    planted = agents_game.PlantedAgents(
        None,  # nobody else is there
        directions=directions,
        part={0: 1},
        norms={0: 40.0},
        generator=np.random.default_rng(0),
    )
    asked = LocalSteps(
        steps=4, learning_rate=0.3, batch=ALL, clip_norm=0.5, momentum=0.5, proximal=2.0
    )
    recorded = Recorded()
    planted.begin(recorded)
    start, batch = (
        torch.zeros(1, 6, dtype=torch.float64),
        Examples(torch.zeros(7, 2), torch.zeros(7)),
    )
    recorded.asked.append(asked)
    whole = replace(asked, clip_norm=1e9)
    made = changes.local_change(
        start, whole, records=lambda _: [batch], gradients=planted, pairs_of_run=1
    )
    assert float(made.norm()) == pytest.approx(20.0)
    assert len(planted.calls) == 1
    recorded.asked.append(MeanOf(3.5, 0.5))
    how = {"clip_norm": None}
    mean = planted.clipped_sums(start, ([0], [0]), [batch], **how) / 3.5
    assert float(mean.norm()) == pytest.approx(20.0)


def test_steps_that_no_gradient_moves_are_refused():
    asked = LocalSteps(steps=2, learning_rate=0.5, batch=ALL, clip_norm=1.0, proximal=4.0)
    with pytest.raises(InputError, match="can hold no canary"):
        agents_game.unit_change(asked)


def test_single_records_are_not_taken_for_all_data_of_an_agent():
    game = of(SUMMED)
    bound = contract.bound_to("dp-dpsgd", GRAPH)
    traces = trace(
        bound.init, bound.step, graph=GRAPH, rounds=40, noise_multiplier=bound.noise_multiplier
    )
    wrong = replace(game, bound=bound, traces=traces, of_agents=traces)
    with pytest.raises(InputError, match="clips single records"):
        played(wrong, 0)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"canaries": 0}, "canaries=0 must be at least 1"),
        ({"adversaries": {}}, "names no host"),
        ({"linked": "eavesdropper"}, "single messages are not scored"),
    ],
)
def test_a_game_of_agents_that_cannot_be_played_is_refused(how, words):
    with pytest.raises(InputError, match=words):
        of(SUMMED, **how)


def test_a_bounded_function_of_an_agent_s_data_is_not_scored():
    bound = contract.bound_to("dpdl", GRAPH)
    traces = trace(
        bound.init, bound.step, graph=GRAPH, rounds=40, noise_multiplier=bound.noise_multiplier
    )
    blamed = any(one.blames for one, _ in traces.rounds)
    assert bool(agents_game.reason_against(traces)) is blamed


def test_rounds_that_are_sure_of_opposite_things_give_no_score_that_is_no_number():
    def one(number: int, decided: float | None) -> agents_game.Observed:
        return agents_game.Observed("a", 0, number, 0, 1.0, 0.2, 1.0, decided, 0.0, 1, 1.0, 5.0)

    runs = [
        [one(1, math.inf), one(2, -math.inf), one(3, None)],
        [one(1, math.inf), one(2, math.inf), one(3, -math.inf)],
        [one(1, None), one(2, None), one(3, -math.inf)],
    ]
    found = agents_game.scored(runs, replace=False)["a"][0]
    assert found[0] == pytest.approx(0.2 - 0.5)
    assert found[1:].tolist() == [math.inf, -math.inf]


def in_cohorts(scheme: str, *, rate: float = 0.4, **how) -> agents_game.AgentGame:
    """Cohorts of two of five agents, or of another share, that are not by coins."""
    fedavg = ALGORITHMS["dp-fedavg"].settings()
    settings = replace(fedavg, cohort_rate=rate, local_steps=1, cohort=Cohorts(scheme))
    return of(settings=settings, **how)


@pytest.mark.parametrize("scheme", ["shuffled", "cyclic"])
def test_scores_in_cohorts_of_epochs_are_those_of_the_rounds_of_each_agent(monkeypatch, scheme):
    """n = 160 to 200, four rounds of two epochs: log ratios N(+-v/2, v), v = mu^2 an epoch.

    Mean within 5 standard errors (6e-7 of either coin). An agent that an epoch leaves out has less.
    """
    monkeypatch.setattr(strength, "SURE", math.inf)
    game = in_cohorts(scheme, rounds=4, canaries=200)
    taking = np.zeros(5)
    for t in (1, 2, 3, 4):
        taking += taking_part(
            Cohort(call=0, rate=0.4, scheme=Scheme(scheme)),
            agents=5,
            round=t,
            order_seed=game.setting.order_seed,
            generator=np.random.default_rng(0),
        )
    found = played(game, 21).guesses["eavesdropper"]
    epochs = np.tile(taking, 40)
    assert (found.scores[epochs == 0] == 0).all()
    v = 2 * MU**2
    for coin in (True, False):
        part = signed(found)[(found.included == coin) & (epochs == 2)]
        assert part.mean() == pytest.approx(v / 2, abs=5 * math.sqrt(v / len(part)))


@pytest.mark.slow
def test_scores_in_cohorts_of_fixed_size_are_those_of_a_coin(monkeypatch):
    """n = 200 of one agent: E[exp(-+ratio)] is 1, within 6 standard errors (1e-6 each)."""
    monkeypatch.setattr(strength, "SURE", math.inf)
    game = in_cohorts("fixed", adversaries={"eavesdropper": {0: EAVESDROPPER}}, canaries=200)
    found = played(game, 22).guesses["eavesdropper"]
    for odds in (np.exp(-found.scores[found.included]), np.exp(found.scores[~found.included])):
        assert odds.mean() == pytest.approx(1.0, abs=6 * odds.std() / math.sqrt(len(odds)))
    # In one round the ratio cannot be below log(1 - 2/5); of two it is at least twice that.
    assert found.scores.min() > 2 * math.log(0.6)


def test_one_agent_holds_the_canary_of_cohorts_of_fixed_size():
    with pytest.raises(InputError, match="do not take part independently"):
        in_cohorts("fixed")


@pytest.mark.slow
def test_an_agent_in_every_shuffled_cohort_contradicts_that_it_is_in_one_an_epoch(monkeypatch):
    """500 canaries, ten rounds of two epochs: mu .71 claimed, 1.58 played.

    22 % are guessed wrong where 36 % are claimed: missed with probability 1e-8.
    """
    monkeypatch.setattr(
        engine_module, "taking_part", lambda cohort, *, agents, **at: np.ones(agents, dtype=bool)
    )
    game = in_cohorts("shuffled", rate=0.2, rounds=10, canaries=500)
    bad, _ = contradicted(game, proven(MU, rounds=2))
    assert bad
