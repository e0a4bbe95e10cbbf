"""Who is drawn into a cohort: sizes, turns, and that all ranks and a run that goes on agree."""

import numpy as np
import pytest
from scipy.stats import binom, chisquare

from overhear.privacy.batches.sampling import Scheme
from overhear.training.batches import taking_part
from overhear.training.engine.randomness import Purpose, SecretRandomness
from overhear.training.step.values import Cohort

AGENTS, RATE, SIZE = 20, 0.2, 4
FALSE_ALARMS = 1e-6  # of each test below, whose roots are given: it passes always or never


def drawn(scheme, rounds, *, root=5, seed=1, agents=AGENTS, rate=RATE, call=0):
    """(rounds, agents) who takes part."""
    source = SecretRandomness(root)
    cohort = Cohort(call=call, rate=rate, scheme=scheme)
    return np.array(
        [
            taking_part(
                cohort,
                agents=agents,
                round=t,
                order_seed=seed,
                generator=source.stream(Purpose.FIXED_COHORT, round=t, call=call, row=0),
            )
            for t in rounds
        ]
    )


def test_a_fixed_cohort_has_its_size_and_every_agent_its_share():
    n = 3000  # rounds
    found = drawn(Scheme.FIXED, range(1, n + 1))
    assert (found.sum(axis=1) == SIZE).all()
    counts = found.sum(axis=0)
    low, high = binom.ppf([FALSE_ALARMS / 40, 1 - FALSE_ALARMS / 40], n, RATE)
    assert ((counts >= low) & (counts <= high)).all()
    # Two agents together: without replacement, less often than by coins.
    together = int((found[:, 0] & found[:, 1]).sum())
    p = RATE * (SIZE - 1) / (AGENTS - 1)
    assert binom.ppf(FALSE_ALARMS, n, p) <= together <= binom.ppf(1 - FALSE_ALARMS, n, p)
    # And rounds are drawn apart: members in common of one and the next.
    common = int((found[1:] & found[:-1]).sum())
    assert abs(common / (n - 1) - SIZE * RATE) < 5 * SIZE / n**0.5


@pytest.mark.parametrize("scheme", [Scheme.SHUFFLED, Scheme.CYCLIC])
def test_an_agent_takes_part_once_an_epoch(scheme):
    found = drawn(scheme, range(1, 51)).reshape(10, 5, AGENTS)
    assert (found.sum(axis=1) == 1).all()
    assert (found.sum(axis=2) == SIZE).all()
    again = (found == found[0]).all(axis=(1, 2))
    assert again.all() if scheme is Scheme.CYCLIC else again.sum() == 1


def test_an_epoch_leaves_out_the_agents_that_fill_no_cohort():
    found = drawn(Scheme.SHUFFLED, range(1, 13), agents=10, rate=0.3).reshape(4, 3, 10)
    assert (found.sum(axis=(1, 2)) == 9).all()
    assert found.sum(axis=1).max() == 1
    assert len({int(of.any(axis=0).argmin()) for of in found}) > 1  # another one is left out


def test_turns_are_uniform_and_epochs_are_shuffled_anew():
    epochs = 2000
    found = drawn(Scheme.SHUFFLED, range(1, 5 * epochs + 1)).reshape(epochs, 5, AGENTS)
    turns = found.argmax(axis=1)  # (epochs, agents)
    for agent in (0, 7, 19):
        assert chisquare(np.bincount(turns[:, agent], minlength=5)).pvalue > FALSE_ALARMS
    same = (turns[1:, 3] == turns[:-1, 3]).sum()
    low, high = binom.ppf([FALSE_ALARMS / 2, 1 - FALSE_ALARMS / 2], epochs - 1, 0.2)
    assert low <= same <= high


def test_a_public_order_needs_no_secret_and_a_fixed_cohort_is_nothing_else():
    for scheme in (Scheme.SHUFFLED, Scheme.CYCLIC):
        assert (drawn(scheme, range(1, 9)) == drawn(scheme, range(1, 9), root=6)).all()
    assert (
        drawn(Scheme.SHUFFLED, range(1, 9)) != drawn(Scheme.SHUFFLED, range(1, 9), seed=2)
    ).any()
    one = drawn(Scheme.FIXED, range(1, 9))
    assert (one != drawn(Scheme.FIXED, range(1, 9), root=6)).any()
    assert (one != drawn(Scheme.FIXED, range(1, 9), call=1)).any()
    assert (one == drawn(Scheme.FIXED, range(1, 9), seed=2)).all()


def test_a_round_is_the_same_whenever_it_is_drawn():
    for scheme in (Scheme.FIXED, Scheme.SHUFFLED, Scheme.CYCLIC):
        assert (drawn(scheme, range(1, 12))[6:] == drawn(scheme, range(7, 12))).all()
