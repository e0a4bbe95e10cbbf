"""Canaries in batches of fixed size, shuffled and cyclic: the number of records stays."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from overhear.attacks.audit import canary_noise as strength
from overhear.attacks.audit.audit import audit
from overhear.attacks.audit.audited import Proven, Verdict
from overhear.attacks.audit.canaries import uncoded, with_codes_in_place
from overhear.attacks.audit.game import CanaryGame
from overhear.attacks.bounds.mechanism import Claim, epsilon
from overhear.privacy.batches.sampling import Drawing, Scheme
from overhear.privacy.errors import InputError
from overhear.privacy.guarantee import EAVESDROPPER, Statement, Status
from overhear.privacy.participation import Event, always
from overhear.training.batches import Sampler
from overhear.training.graphs.topologies import ring
from overhear.training.tracing.trace import trace
from tests.attacks.checks.watched import a_setting
from tests.attacks.planted.noise import noise_halved
from tests.training import contract

GRAPH = ring(5)
RECORDS, SIZE = 60, 20
MU = contract.CLIP / contract.NOISE
DELTA = 1e-5


def _game(scheme: str, *, rounds: int = 6, noise: float = contract.NOISE, **how) -> CanaryGame:
    """Sixty records an agent, batches of twenty: epochs of three rounds."""
    drawn = (Drawing(Scheme(scheme), RECORDS, SIZE, RECORDS),) * 5
    setting = replace(
        a_setting(GRAPH, rate=SIZE / RECORDS, records=RECORDS),
        sampler=Sampler(drawn=drawn, order_seed=7),
    )
    bound = contract.bound_to("dp-dpsgd", GRAPH, noise_std=noise)
    fixed = {
        "setting": setting,
        "bound": bound,
        "traces": trace(
            bound.init, bound.step, graph=GRAPH, rounds=9, noise_multiplier=bound.noise_multiplier
        ),
        "rounds": rounds,
        "clip_norm": contract.CLIP,
        "adversaries": {"eavesdropper": dict.fromkeys(range(5), EAVESDROPPER)},
        "canaries": 140,
    }
    return CanaryGame(**(fixed | how))


def _claim(event: Event, rounds: int, adjacency: str = "zero-out") -> Proven:
    claim = Claim(rounds={event: rounds}, adjacency=adjacency)
    return Proven(
        name="eavesdropper", epsilon=epsilon(claim, DELTA),
        statement=Statement(delta=DELTA, adjacency=adjacency), status=Status.PROVEN, claim=claim,
    )  # fmt: skip


@pytest.mark.parametrize("scheme", ["shuffled", "cyclic"])
@pytest.mark.parametrize("replaced", [False, True])
def test_scores_are_those_of_the_rounds_of_each_canary(monkeypatch, scheme, replaced):
    """n = 140 in two epochs: log ratios N(+-v/2, v), v = 2 mu^2, four times that if replaced.

    Mean and deviation of either coin within 5 standard errors (6e-7 each). A score that took a
    canary's round for one of a coin of a third would deviate half as much.
    """
    monkeypatch.setattr(strength, "SURE", math.inf)
    game = _game(scheme, replace=replaced)
    assert (game.of_each, game.runs, game.short) == (28, 1, 1)
    found = game.play(generator=np.random.default_rng(51))
    guesses, v = found.guesses["eavesdropper"], 2 * MU**2 * (4 if replaced else 1)
    signed = np.where(guesses.included, guesses.scores, -guesses.scores)
    for coin in (True, False):
        of = signed[guesses.included == coin]
        assert of.mean() == pytest.approx(v / 2, abs=5 * math.sqrt(v / len(of)))
        assert of.std() == pytest.approx(math.sqrt(v), rel=5 / math.sqrt(2 * len(of)))
    assert all(one.passed for one in game.checks(found))


@pytest.mark.parametrize("canaries", [50, 140])
def test_canaries_stand_in_rounds_that_are_played(canaries):
    """Of one round of an epoch of three the twenty records that are in it hold canaries first.

    Of more canaries than these hold there are more runs.
    """
    game = _game("cyclic", rounds=1, canaries=canaries)
    assert game.of_each <= SIZE
    found = game.play(generator=np.random.default_rng(52))
    assert (found.guesses["eavesdropper"].scores != 0).all()


@pytest.mark.parametrize("scheme", ["shuffled", "cyclic", "fixed"])
def test_where_a_canary_stands_does_not_depend_on_its_coin(scheme):
    game, places = _game(scheme), []
    for codes in ([1, 3, -3, 8], [-1, 4, 5, -4]):
        shards = with_codes_in_place(
            game.setting.shards, {2: torch.tensor(codes)}, sampler=game.setting.sampler, rounds=6,
            generator=np.random.default_rng(5),
        )  # fmt: skip
        found = [uncoded(held.targets)[1] for held in shards]
        assert [int((of != 0).sum()) for of in found] == [0, 0, 4, 0, 0]
        assert [held.size for held in shards] == [RECORDS] * 5
        places.append([int((found[2] == code).nonzero()) for code in codes])
    assert places[0] == places[1]


@pytest.mark.slow
def test_one_canary_of_an_agent_is_scored_in_batches_of_fixed_size(monkeypatch):
    """n = 100, one of each of five agents in a run: E[exp(-+ratio)] is 1, 6 standard errors."""
    monkeypatch.setattr(strength, "SURE", math.inf)
    game = _game("fixed", rounds=3, canaries=100)
    assert (game.of_each, game.runs, game.short) == (1, 20, 0)
    found = game.play(generator=np.random.default_rng(53))
    guesses = found.guesses["eavesdropper"]
    for odds in (
        np.exp(-guesses.scores[guesses.included]),
        np.exp(guesses.scores[~guesses.included]),
    ):
        assert odds.mean() == pytest.approx(1.0, abs=6 * odds.std() / math.sqrt(len(odds)))
    assert guesses.scores.min() > 3 * math.log(2 / 3)  # at a rate of a third
    assert all(one.passed for one in game.checks(found))


@pytest.mark.slow
def test_faults_contradict_what_is_proven_of_shuffled_batches(monkeypatch):
    """1,000 canaries, two epochs. At half of the noise mu is 1.41 where .71 is claimed.

    That is missed below 1e-11. A batch that comes three times in its epoch, where mu 1.41 is
    claimed: of 3,000 canaries 17 % are guessed wrong in place of 24 %; it is missed below 1e-11.
    A sound run at 99 % is contradicted with probability 8e-6, and measures less than a fifth of
    what is claimed with 2e-6.
    """
    claim = _claim(Event(1.0 / MU, always()), 2)
    game = _game("shuffled", canaries=1000)
    (sound,) = audit(game, [claim], seed=1, confidence=0.99)
    assert sound.verdict is not Verdict.CONTRADICTED
    assert sound.measured > 0.2 * claim.epsilon
    with noise_halved():
        (found,) = audit(game, [claim], seed=2)
    assert found.verdict is Verdict.CONTRADICTED
    drawn = Sampler.draw
    monkeypatch.setattr(
        Sampler,
        "draw",
        lambda self, *, round, **at: drawn(self, round=round - (round - 1) % 3, **at),
    )
    game = _game("shuffled", canaries=3000, noise=0.5 * contract.NOISE)
    (found,) = audit(game, [_claim(Event(0.5 / MU, always()), 2)], seed=3)
    assert found.verdict is Verdict.CONTRADICTED


@pytest.mark.slow
def test_half_the_noise_fails_the_checks_of_canaries_in_batches_of_fixed_size():
    """Some 175 statistics at a quarter of their variance: missed with probability below 1e-9."""
    game = _game("fixed", rounds=3, canaries=70)
    with noise_halved():
        found = game.checks(game.play(generator=np.random.default_rng(54)))
    assert "absent canaries" in [one.name for one in found if not one.passed]


@pytest.mark.parametrize(
    "how", [{"together": 2}, {"linked": "eavesdropper"}, {"batch_clipped": True}]
)
def test_what_is_scored_in_poisson_batches_alone_is_refused(how):
    with pytest.raises(InputError, match="in batches that are 'shuffled'"):
        _game("shuffled", **how)


def test_batches_that_are_cut_are_refused():
    with pytest.raises(InputError, match="not scored in batches that are 'truncated'"):
        _game("truncated")
