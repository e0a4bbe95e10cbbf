"""The black-box audit: scores of a known law, and the real engine where the answer is known."""

import math
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from overhear.attacks.audit.audited import Verdict
from overhear.attacks.bounds.mechanism import Claim, epsilon
from overhear.attacks.membership.black_box import (
    LastModelGame,
    Played,
    guess,
    measure_last_model,
    play,
    worst_start,
)
from overhear.attacks.membership.roc import ProvenLimit
from overhear.training.algorithms import ALGORITHMS, Form, bind
from overhear.training.data.store import Examples
from overhear.training.engine.setting import Setting
from overhear.training.graphs.topologies import build_graph
from overhear.training.models.tasks import ClassWeights
from overhear.training.tracing.scripts import ScriptsOnDemand

DELTA = 1e-5


def limit_at(multiplier: float, rounds: int = 1) -> ProvenLimit:
    claim = Claim(rounds={(multiplier, 1.0): rounds})
    return ProvenLimit(claim=claim, epsilon=epsilon(claim, DELTA), delta=DELTA)


@dataclass
class Gaussian:
    """Scores of unit noise whose mean a canary moves by mu, of one model or the other."""

    mu: float
    told_by: int = 0
    after: tuple[int, float] = (10**9, 0.0)  # from this run on, another mu
    noise: np.random.Generator = field(default_factory=lambda: np.random.default_rng(3))
    count: int = 0

    def scores(self, included: bool) -> np.ndarray:
        mu = self.mu if self.count < self.after[0] else self.after[1]
        self.count += 1
        found = self.noise.normal(size=2) + 100.0  # nothing is known of where it lies
        found[self.told_by] += mu * included
        return found


def test_a_gaussian_is_measured_near_the_ideal_and_not_above_the_proof():
    found = measure_last_model(Gaussian(2.0), limit_at(0.5), runs=4000, seed=1)
    assert found.verdict is Verdict.CONSISTENT
    assert 0.85 * found.ideal < found.bound.epsilon < limit_at(0.5).epsilon
    assert found.bound.guesses == 3200


def test_a_canary_without_influence_shows_nothing():
    found = measure_last_model(Gaussian(0.0), limit_at(0.5), runs=400, seed=1)
    assert found.bound.epsilon < 0.5
    assert found.verdict is Verdict.CONSISTENT


@pytest.mark.parametrize("told_by", [0, 1])
def test_the_model_that_tells_is_chosen(told_by):
    found = measure_last_model(Gaussian(2.0, told_by), limit_at(0.5), runs=400, seed=1)
    assert found.model == ("victim", "average")[told_by]
    assert found.bound.epsilon > 0.5 * found.ideal


def test_twice_above_the_proof_contradicts_it():
    found = measure_last_model(Gaussian(4.0), limit_at(0.5), runs=400, seed=1)
    assert found.verdict is Verdict.CONTRADICTED
    assert found.again is not None
    assert found.again.epsilon > limit_at(0.5).epsilon


def test_what_fresh_runs_do_not_show_is_cleared():
    found = measure_last_model(Gaussian(4.0, after=(400, 1.0)), limit_at(0.5), runs=400, seed=1)
    assert found.bound.epsilon > limit_at(0.5).epsilon
    assert found.verdict is Verdict.CLEARED


def test_too_few_runs_for_a_weak_claim_measure_nothing():
    found = measure_last_model(Gaussian(0.1), limit_at(10.0), runs=100, seed=1)
    assert found.verdict is Verdict.NOT_MEASURED
    assert found.needed is not None
    assert found.needed > 1000


def test_choice_and_threshold_ignore_the_runs_that_are_guessed():
    """The other four fifths tell by the average alone, and have no say."""
    coins = np.arange(400) // 5 % 2 == 0
    scores = np.random.default_rng(0).normal(size=(400, 2))
    scores[::5, 0] += 9.0 * coins[::5]
    rest = np.arange(400) % 5 != 0
    scores[rest, 1] += 9.0 * coins[rest]
    model, _ = guess(Played(scores=scores, included=coins, seconds=0.1))
    assert model == "victim"


def test_scores_without_any_spread_choose_what_differs():
    coins = np.arange(40) // 5 % 2 == 0
    scores = np.stack([np.zeros(40), coins.astype(float)], axis=1)
    assert guess(Played(scores=scores, included=coins, seconds=0.1))[0] == "average"


def test_a_price_that_is_too_high_is_told_after_the_first_run():
    game = Gaussian(1.0)
    with pytest.raises(ValueError, match="are allowed; ask for fewer runs"):
        play(game, runs=20, generator=np.random.default_rng(0), most_seconds=0.0)
    assert game.count == 1


def test_few_runs_are_refused():
    with pytest.raises(ValueError, match="runs=19 must be at least 20"):
        play(Gaussian(1.0), runs=19, generator=np.random.default_rng(0))


def held_out(records: int = 60, classes: int = 3) -> Examples:
    generator = torch.Generator().manual_seed(0)
    targets = torch.arange(records) % classes
    centres = 3.0 * torch.randn(classes, 6, generator=generator)
    return Examples(centres[targets] + torch.randn(records, 6, generator=generator), targets)


def setting_of(agents: int = 1) -> Setting:
    torch.manual_seed(0)
    shard = Examples(held_out().inputs[:12], held_out().targets[:12])
    return Setting(
        graph=build_graph("full", agents), model=nn.Sequential(nn.Linear(6, 3)),
        shards=[shard] * agents, sampling_rate=1.0, device=torch.device("cpu"),
    )  # fmt: skip


def game_of(multiplier: float, *, rounds: int = 3, replaced: bool = False) -> LastModelGame:
    """One agent, all records in every round, nothing mixed: the last model is the sum of rounds."""
    setting, canary = worst_start(setting_of(), held_out(), replaced=replaced)
    algorithm = ALGORITHMS["dp-dpsgd"]
    bound = bind(
        algorithm, algorithm.settings(), form=Form.REPAIRED, learning_rate=0.01, clip_norm=1.0,
        noise_std=multiplier, batch_size=12.0, graph=setting.graph, rounds=rounds, records=12.0,
    )  # fmt: skip
    scripts = ScriptsOnDemand(bound.init, bound.step, graph=setting.graph)  # traced once
    return LastModelGame(
        setting=setting, bound=bound, rounds=rounds, victim=0, canary=canary, scripts=scripts
    )


@pytest.mark.slow
@pytest.mark.parametrize(("replaced", "reach"), [(False, 1.0), (True, 2.0)])
def test_of_one_agent_the_last_model_tells_what_the_proof_counts(replaced, reach):
    """200 runs of 3 rounds, mu 2: scores of coins of either kind are mu apart, within .8.

    That is 4.6 standard errors of .173 (a difference of means over a pooled spread: the root of 4/R
    + mu^2/2R), 4e-6. Ordinary records, and a label that is learned, leave a few per cent.
    """
    game = game_of(reach * math.sqrt(3.0) / 2.0, replaced=replaced)
    played = play(game, runs=200, generator=np.random.default_rng(0))
    inside, outside = played.scores[played.included, 0], played.scores[~played.included, 0]
    spread = math.sqrt(0.5 * (inside.var() + outside.var()))
    assert (inside.mean() - outside.mean()) / spread == pytest.approx(2.0, abs=0.8)


def test_noise_that_is_left_out_is_contradicted():
    """Of 60 runs without noise none is guessed wrong, at any threshold that 12 of them set."""
    found = measure_last_model(game_of(1e-6), limit_at(5.0, rounds=3), runs=60, seed=2)
    assert found.verdict is Verdict.CONTRADICTED
    assert found.bound.errors == 0


def test_the_start_leaves_the_run_as_it_is_and_fits_such_records():
    setting = setting_of()
    before = [value.detach().clone() for value in setting.model.parameters()]
    started, _ = worst_start(setting, held_out(), replaced=False)
    assert all(map(torch.equal, before, setting.model.parameters()))
    records = held_out()
    assert cross_entropy(started.model(records.inputs), records.targets) < 0.1
    assert cross_entropy(setting.model(records.inputs), records.targets) > 0.5


def test_a_task_starts_there_too_and_its_second_block_as_before():
    setting = setting_of()
    started, _ = worst_start(
        Setting(
            graph=setting.graph,
            model=setting.model,
            shards=setting.shards,
            sampling_rate=1.0,
            device=setting.device,
            task=ClassWeights(setting.model, classes=3),
        ),
        held_out(),
        replaced=False,
    )
    assert started.task is not None
    first, second = started.task.initial().split(started.task.dimensions)
    assert torch.equal(first, torch.cat([one.reshape(-1) for one in started.model.parameters()]))
    assert torch.equal(second, torch.full((3,), 1.0 / 3.0))


def test_the_canary_has_the_label_that_the_start_holds_for_least_likely():
    started, canary = worst_start(setting_of(), held_out(), replaced=False)
    assert int(canary.inside.targets) == int(started.model(canary.inside.inputs).argmin())
    assert len(canary.outside.targets) == 0


def test_the_start_is_undecided_between_what_replaces_each_other():
    started, canary = worst_start(setting_of(), held_out(), replaced=True)
    sure = started.model(canary.inside.inputs).softmax(dim=1)[0].detach()
    for one in (canary.inside, canary.outside):
        assert float(sure[int(one.targets)]) == pytest.approx(0.5, abs=0.1)
    assert torch.equal(canary.outside.inputs, canary.inside.inputs)


def test_records_that_are_held_out_are_not_needed():
    none = Examples(torch.zeros(0, 6), torch.zeros(0, dtype=torch.int64))
    started, canary = worst_start(setting_of(), none, replaced=False)
    assert cross_entropy(started.model(canary.inside.inputs), canary.inside.targets) > 3.0
