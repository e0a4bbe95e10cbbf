"""What is heard of a run that is one release: of sound noise, and of planted faults of memory."""

from contextlib import contextmanager
from unittest.mock import patch

import numpy as np
import pytest
import torch
from scipy.stats import chi2, ncx2
from torch import nn

from overhear.attacks.audit.canary_noise import ObservedNoise
from overhear.attacks.audit.game import CanaryGame
from overhear.attacks.audit.observed_rows import heard_check, least_correlation, least_scales
from overhear.attacks.audit.whole_run_game import WholeRunGame
from overhear.attacks.checks.result import TOTAL_FALSE_ALARM
from overhear.privacy import EAVESDROPPER
from overhear.privacy.batches.patterns import pattern_of
from overhear.privacy.guarantee import neighbour
from overhear.training.algorithms import ALGORITHMS, bind
from overhear.training.batches import turns_of
from overhear.training.data.store import Examples
from overhear.training.engine.randomness import SecretRandomness
from overhear.training.engine.setting import Setting
from overhear.training.engine.tensor_round import TensorRound
from overhear.training.graphs.topologies import ring
from overhear.training.tracing.trace import trace

CANARIES = 300


def game_of(name, *, agents=4, rounds=8, cycle=4, who=EAVESDROPPER, canaries=CANARIES):
    """An algorithm with memory on a ring, noise multiplier 1, a record every fourth round."""
    graph, known = ring(agents), ALGORITHMS[name]
    run = bind(known, known.settings(period=cycle, bands=0), graph=graph, rounds=rounds,
        learning_rate=0.1, clip_norm=1.0, noise_std=1.0, batch_size=2.0)  # fmt: skip
    rng = torch.Generator().manual_seed(3)
    shards = [
        Examples(torch.randn(6, 109, generator=rng), torch.randint(3, (6,), generator=rng))
        for _ in range(agents)
    ]
    setting = Setting(graph=graph, model=nn.Linear(109, 3), shards=shards,
        sampling_rate=1 / cycle, device=torch.device("cpu"),
        turns=turns_of(pattern_of({"cycle": cycle}), shards, rounds=rounds,
            sampling_rate=1 / cycle, seed=0))  # fmt: skip
    traces = trace(run.init, run.step, graph=graph, rounds=rounds, noise_multiplier=1.0)
    of = CanaryGame(setting=setting, bound=run, traces=traces, rounds=rounds, clip_norm=1.0,
        adversaries={who.name: {0: who}}, canaries=canaries)  # fmt: skip
    return WholeRunGame.of(of, planned=rounds)


def heard_of(name, **how):
    """The check of one game."""
    game = game_of(name, **how)
    found = game.checks(game.play(generator=np.random.default_rng(2)))
    (check,) = [one for one in found if one.name == "heard"]
    return check


def _remembering(what):
    """`round.remembered` with a fault: of fresh noise, earlier noise and the row of C."""

    @contextmanager
    def planted():
        sound = TensorRound.remembered

        def remembered(self, fresh, *past, row):
            return what(lambda *of, by: sound(self, *of, row=by), fresh, past, list(row))

        with patch.object(TensorRound, "remembered", remembered):
            yield

    return planted


@contextmanager
def _drawing(change):
    """Normal draws of one call, (rows, n), with a fault."""
    sound = SecretRandomness.normal

    def normal(self, *, round, call, rows, **how):
        return change(lambda at, of: sound(self, round=at, call=call, rows=of, **how), round, rows)

    with patch.object(SecretRandomness, "normal", normal):
        yield


def _reused(draw, round, rows):
    """The last source of noise is the first one's again."""
    made = draw(round, rows).clone()
    made[-1] = made[0]
    return made


def _mode_left_out(draw, round, rows):
    """The last source of noise is not there."""
    made = draw(round, rows).clone()
    made[-1] = 0.0
    return made


def _round_again(draw, round, rows):
    """Every third round has the noise of the round before."""
    return draw(round - 1 if round % 3 == 2 else round, rows)


FAULTS = {
    "memory and diagonal left out": _remembering(lambda made, z, past, row: z),
    "memory forgotten": _remembering(lambda made, z, past, row: made(z, by=row[:1])),
    "strategy halved": _remembering(
        lambda made, z, past, row: made(z, *past, by=[row[0], *(0.5 * w for w in row[1:])])
    ),
    "memory turned round": _remembering(
        lambda made, z, past, row: made(z, *past, by=[row[0], *(-w for w in row[1:])])
    ),
    "row off by one": _remembering(
        lambda made, z, past, row: made(z, *past, by=[row[0], *row[2:], row[-1]])
    ),
    "noise over sqrt 2": _remembering(lambda made, z, past, row: made(z, *past, by=row) * 0.5**0.5),
    "another source reused": lambda: _drawing(_reused),
    "a source left out": lambda: _drawing(_mode_left_out),
    "noise of the round before": lambda: _drawing(_round_again),
}


def test_independent_normals_pass_as_often_as_is_said():
    """150 sets of 32 tests; p, times their number, below .1 in 33 of them at most (2e-5)."""
    rng, few = np.random.default_rng(5), 0
    for _ in range(150):
        e = rng.normal(size=(6, 3, 20))
        check = heard_check([ObservedNoise("eavesdropper", list(e), rng.normal(size=20))])
        few += check.p < 0.1
        assert check.passed
    assert check.tests == 1 + 6 + 18 + 1 + 6
    assert few <= 33


def test_runs_are_heard_together():
    """Eight runs of too little noise: none alone is told, all together are."""
    rng = np.random.default_rng(7)
    runs = [
        ObservedNoise("eavesdropper", list(0.955 * rng.normal(size=(6, 4, 50))), np.zeros(0))
        for _ in range(8)
    ]
    assert all(heard_check([one]).passed for one in runs)
    assert not heard_check(runs).passed


def test_the_smallest_faults_that_are_told_are_seen_so_often():
    """200 draws at the limit, each seen with probability .95: 181 at least, but for 4e-3."""
    rng, n, tests = np.random.default_rng(6), 400, 30
    for scale in least_scales(n, tests=tests):
        assert abs(scale - 1) > 0.1
        squares = ((scale * rng.normal(size=(200, n))) ** 2).sum(axis=1)
        p = 2 * np.minimum(chi2.cdf(squares, n), chi2.sf(squares, n)) * tests
        assert (p < TOTAL_FALSE_ALARM).sum() >= 181
    values, degrees = 4000, 400
    rho = least_correlation(values, degrees, tests=tests)
    squares = (1 - rho**2) * ncx2.rvs(
        degrees, rho**2 / (1 - rho**2) * values, size=200, random_state=rng
    )
    assert (2 * chi2.sf(squares, degrees) * tests < TOTAL_FALSE_ALARM).sum() >= 170


def test_nothing_heard_is_no_test():
    check = heard_check([])
    assert (check.passed, check.tests, check.power) == (True, 0, "")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mafalda", "joint-dsgd", "decor-over-time"])
@pytest.mark.parametrize("who", [EAVESDROPPER, neighbour(1)], ids=lambda who: who.name)
def test_sound_memory_is_heard_as_it_is_declared(name, who):
    """A sound run fails with probability below 1e-6."""
    if name == "joint-dsgd" and who is not EAVESDROPPER:
        pytest.skip("any agent knows the seed of it")
    check = heard_of(name, who=who)
    assert check.passed, check.words
    assert check.tests > 20


@pytest.mark.slow
@pytest.mark.parametrize("name", ["joint-dsgd", "decor-over-time"])
@pytest.mark.parametrize("fault", FAULTS)
def test_300_canaries_hear_memory_that_is_wrong(name, fault):
    """Whether it shows more of a record or hides it; the check fails sound runs with 1e-6."""
    with FAULTS[fault]():
        check = heard_of(name)
    assert not check.passed, check.words
