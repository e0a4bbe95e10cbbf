import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.special import ndtr
from scipy.stats import binom

from overhear.attacks.audit import canary_noise as strength
from overhear.attacks.audit.game import MOST, CanaryGame
from overhear.privacy.guarantee import EAVESDROPPER, Adversary, Sees
from overhear.training.algorithms import ALGORITHMS
from overhear.training.graphs.topologies import ring
from overhear.training.tracing.trace import trace
from tests.training import contract

GRAPH = ring(5)


def _game(name: str = "dpdl", *, rounds: int = 2, rate: float = 1.0, **how) -> CanaryGame:
    bound = contract.bound_to(name, GRAPH)
    fixed = {
        "setting": contract.setting(GRAPH, rate=rate, min_max=bound.blocks == 2),
        "bound": bound,
        "traces": trace(
            bound.init, bound.step, graph=GRAPH, rounds=40, noise_multiplier=bound.noise_multiplier
        ),
        "rounds": rounds,
        "clip_norm": contract.CLIP,
        "adversaries": {"eavesdropper": dict.fromkeys(range(5), EAVESDROPPER)},
        "canaries": 100,
    }
    return CanaryGame(**(fixed | how))


def test_canaries_are_spread_over_hosts_and_runs():
    game = _game(canaries=300)
    assert (game.hosts, game.dimension, game.runs, game.of_each) == ([0, 1, 2, 3, 4], 23, 3, 20)
    assert _game(batch_clipped=True).runs == 20
    assert MOST == 250


def test_scores_are_those_of_two_normals(monkeypatch):
    """m = 2,300 canaries at rate 1; mean and variance within 5 standard errors (6e-7 each).

    The declared strength is kept: of the 200 choices of a play, one is another in one play of some
    thirty, and scales the scores of its 23 canaries.

    Two rounds of three cross-gradients, so nu^2 = 6 (C / sigma)^2; log ratios N(+-nu^2/2, nu^2).
    """
    monkeypatch.setattr(strength, "SURE", math.inf)
    found = _game(canaries=2300).play(generator=np.random.default_rng(3)).guesses["eavesdropper"]
    v, n = 6 * (contract.CLIP / contract.NOISE) ** 2, len(found.scores)
    signed = np.where(found.included, found.scores, -found.scores)
    assert n == 2300
    for coin in (True, False):  # each by itself, or a threshold that is off would cancel
        of = signed[found.included == coin]
        assert of.mean() == pytest.approx(v / 2, abs=5 * math.sqrt(v / len(of)))
    assert signed.mean() == pytest.approx(v / 2, abs=5 * math.sqrt(v / n))
    assert signed.var() == pytest.approx(v, rel=5 * math.sqrt(2 / n))


@pytest.mark.slow
def test_opposite_records_are_twice_as_far_apart(monkeypatch):
    monkeypatch.setattr(strength, "SURE", math.inf)
    game = _game(canaries=2300, replace=True)
    found = game.play(generator=np.random.default_rng(4)).guesses["eavesdropper"]
    v, n = 24 * (contract.CLIP / contract.NOISE) ** 2, len(found.scores)
    signed = np.where(found.included, found.scores, -found.scores)
    assert signed.mean() == pytest.approx(v / 2, abs=5 * math.sqrt(v / n))


@pytest.mark.slow
def test_scores_of_sampled_rounds_are_calibrated(monkeypatch):
    """E[exp(-ratio)] with the record is 1; n = 1,150 or so, 6 standard errors."""
    monkeypatch.setattr(strength, "SURE", math.inf)
    game = _game(canaries=2300, rate=0.3, rounds=4)
    found = game.play(generator=np.random.default_rng(5)).guesses["eavesdropper"]
    odds = np.exp(-found.scores[found.included])
    error = odds.std() / math.sqrt(len(odds))
    assert odds.mean() == pytest.approx(1.0, abs=6 * error)
    against = np.exp(found.scores[~found.included])
    error = against.std() / math.sqrt(len(against))
    assert against.mean() == pytest.approx(1.0, abs=6 * error)


@pytest.mark.slow
def test_two_batches_under_one_noise_are_not_told_apart_too_well():
    """DP-NETFLEET's third local step: m = 1,150, errors no fewer than the proof allows.

    The closed view has mu = C / sigma for each of three batches; fewer errors than that by 5
    standard errors have probability 3e-7.
    """
    settings = replace(ALGORITHMS["dp-netfleet"].settings(), local_steps=3)
    bound = contract.bound_to("dp-netfleet", GRAPH, settings=settings)
    game = _game(
        bound=bound,
        traces=trace(
            bound.init, bound.step, graph=GRAPH, rounds=40, noise_multiplier=bound.noise_multiplier
        ),
        canaries=1150,
        rounds=1,
        linked="eavesdropper",
    )
    played = game.play(generator=np.random.default_rng(9))
    found = played.guesses["eavesdropper"]
    errors = int(((found.scores > 0) != found.included).sum())
    mu = math.sqrt(3) * contract.CLIP / contract.NOISE
    least = float(ndtr(-mu / 2))
    n = len(found.scores)
    assert errors > n * least - 5 * math.sqrt(n * least * (1 - least))


@pytest.mark.slow
def test_a_single_canary_in_a_clipped_batch_is_scored():
    """DP-CGA clips a batch's mean: n = 300 canaries, and the scores must favour their coins."""
    game = _game("dp-cga", canaries=300, batch_clipped=True)
    found = game.play(generator=np.random.default_rng(6)).guesses["eavesdropper"]
    signed = np.where(found.included, found.scores, -found.scores)
    assert signed.mean() > 3 * signed.std() / math.sqrt(len(signed))


def test_messages_are_scored_one_by_one():
    played = _game(linked="eavesdropper").play(generator=np.random.default_rng(7))
    names = {link.message.split(" of ")[0] for link in played.links}
    assert "cross-gradient" in names
    mu = round(contract.CLIP / contract.NOISE, 12)
    replies = [link for link in played.links if link.message.startswith("cross-gradient")]
    assert len(replies) == 10
    assert all(link.rounds == {(mu, 1.0): 2} for link in replies)
    assert all(link.guesses.scores.size == 20 for link in replies)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"canaries": 0}, "canaries=0 must be at least 1"),
        ({"adversaries": {}}, "names no host"),
        ({"clip_norm": math.inf}, "without clipping no bound"),
    ],
)
def test_a_game_that_cannot_be_played_is_refused(how, words):
    with pytest.raises(ValueError, match=words):
        _game(**how)


def test_progress_counts_rounds_of_all_runs():
    said = list[tuple[int, int, str]]()
    game = replace(_game(canaries=150), rounds=1)
    who = Adversary(name="final-models", sees=Sees.END_STATES)
    game = replace(game, adversaries={"final-models": dict.fromkeys(range(5), who)})
    game.play(generator=np.random.default_rng(8), progress=lambda *at: said.append(at))
    assert said[-1] == (2, 2, "canaries")
    assert said == sorted(said)


def test_several_records_of_one_person_move_the_scores_together(monkeypatch):
    """m = 230 canaries of three records at rate 1: log ratios N(+-9 v / 2, 9 v), v of one.

    Means of either coin within 5 standard errors (6e-7 each).
    """
    monkeypatch.setattr(strength, "SURE", math.inf)
    game = _game("dp-dpsgd", canaries=230, together=3)
    found = game.play(generator=np.random.default_rng(31)).guesses["eavesdropper"]
    v = 9 * 2 * (contract.CLIP / contract.NOISE) ** 2
    signed = np.where(found.included, found.scores, -found.scores)
    for coin in (True, False):
        of = signed[found.included == coin]
        assert of.mean() == pytest.approx(v / 2, abs=5 * math.sqrt(v / len(of)))


@pytest.mark.slow
@pytest.mark.parametrize("replaced", [False, True])
def test_scores_of_several_sampled_records_are_those_of_a_mixture(monkeypatch, replaced):
    """m = 920 canaries of three records, v = 4: their mean against 200,000 draws of the mixture.

    Within 5 standard errors (6e-7 for either coin). The checks of what canaries add pass, too.
    """
    monkeypatch.setattr(strength, "SURE", math.inf)
    bound = contract.bound_to("dp-dpsgd", GRAPH, noise_std=contract.CLIP / 2.0)
    traces = trace(
        bound.init, bound.step, graph=GRAPH, rounds=40, noise_multiplier=bound.noise_multiplier
    )
    game = _game(
        bound=bound, traces=traces, canaries=920, rate=0.7, rounds=1, together=3, replace=replaced
    )
    played = game.play(generator=np.random.default_rng(32))
    found = played.guesses["eavesdropper"]

    rng, v = np.random.default_rng(33), 4.0
    for coin in (True, False):
        sign = 1.0 if coin else -1.0 if replaced else 0.0
        s = sign * rng.binomial(3, 0.7, 200_000) * v + math.sqrt(v) * rng.normal(size=200_000)

        def moved(s, v=v):
            chances = binom.pmf([0, 1, 2, 3], 3, 0.7)
            return np.log(sum(p * np.exp(j * s - j**2 * v / 2) for j, p in enumerate(chances)))

        drawn = moved(s) - (moved(-s) if replaced else 0.0)
        of = found.scores[found.included == coin]
        assert of.mean() == pytest.approx(drawn.mean(), abs=5 * drawn.std() / math.sqrt(len(of)))
        if coin:  # the score of one record would be elsewhere
            alone = np.log(0.3 + 0.7 * np.exp(s - v / 2))
            alone = alone - (np.log(0.3 + 0.7 * np.exp(-s - v / 2)) if replaced else 0.0)
            assert abs(alone.mean() - drawn.mean()) > 5 * drawn.std() / math.sqrt(len(of))
    assert all(one.passed for one in game.checks(played))


def test_several_records_are_not_scored_in_clipped_means_nor_by_message():
    for how in ({"batch_clipped": True}, {"linked": "eavesdropper"}):
        with pytest.raises(ValueError, match="together=3 records of one person are scored in sums"):
            _game(together=3, **how)
