"""Who is drawn into a cohort: sizes, turns, and that all ranks and a run that goes on agree."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import binom, chisquare

from overhear.privacy.batches.sampling import Scheme, drawings
from overhear.privacy.errors import InputError
from overhear.training import account
from overhear.training.batches import Sampler, taking_part
from overhear.training.engine.engine import Engine
from overhear.training.engine.randomness import Purpose, SecretRandomness
from overhear.training.graphs.topologies import ring
from overhear.training.step.values import Cohort
from tests.training.contract import setting

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


# An engine with the scripts of an account draws the batches that its figures rest on, or none.

GRAPH, RECORDS, PLANNED_BATCHES_SIZE = ring(3), 40, 5
SCHEMES = {
    "poisson": "Poisson batches",
    "truncated": "Poisson batches of 40 records, cut at 9",
    "fixed": "batches='fixed' of 5 of 40 records",
    "shuffled": "batches='shuffled' of 5 of 40 records",
    "cyclic": "batches='cyclic' of 5 of 40 records",
}


def how(scheme):
    truncated = scheme == "truncated"
    return ("poisson" if truncated else scheme), (9 if truncated else None)


def accounted(scheme, *, records=RECORDS, **more):
    sampling, largest = how(scheme)
    adjacency = {} if scheme in ("poisson", "truncated") else {"adjacency": "zero-out"}
    return account(
        "dp-dpsgd", graph=GRAPH, rounds=6, sampling_rate=PLANNED_BATCHES_SIZE / records, delta=1e-5,
        noise_multiplier=2.0, batch_size=PLANNED_BATCHES_SIZE, records=records, sampling=sampling,
        largest_batch=largest, adversaries=["eavesdropper"], **adjacency | more,
    )  # fmt: skip


def run(scheme, *, rate=PLANNED_BATCHES_SIZE / RECORDS, size=PLANNED_BATCHES_SIZE):
    sampling, largest = how(scheme)
    given = {"batch_size": size, "sampling_rate": rate, "largest_batch": largest}
    drawn = drawings(sampling, [RECORDS] * 3, **given)
    sampler = None if drawn is None else Sampler(drawn=drawn, order_seed=0)
    return replace(setting(GRAPH, records=RECORDS, rate=rate), sampler=sampler)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_batches_of_another_scheme_than_the_accounts_are_refused(scheme):
    found = accounted(scheme)
    engine = Engine(run(scheme), found.bound, scripts=found.scripts)
    engine.advance()
    for other in SCHEMES.keys() - {scheme}:
        with pytest.raises(InputError) as error:
            Engine(run(other), found.bound, scripts=found.scripts)
        assert f"draws {SCHEMES[other]}, and the plan is of {SCHEMES[scheme]}" in str(error.value)


def test_fixed_batches_of_fewer_records_or_of_another_size_are_refused():
    found = accounted("fixed", records=80)  # q = 5 / 80, and a record is in 5 of 40
    said = r"of 5 of 40 records, and the plan is of .* of 80 records"
    with pytest.raises(InputError, match=said):
        Engine(run("fixed", rate=PLANNED_BATCHES_SIZE / 80), found.bound, scripts=found.scripts)
    found = accounted("fixed")
    with pytest.raises(InputError, match=r"of 8 of 40 records, and the plan is of .* 5 of 40"):
        Engine(run("fixed", size=8), found.bound, scripts=found.scripts)


class Own(Sampler):
    """Draws what it likes."""


def test_a_sampler_of_ones_own_and_coarse_floats_are_refused():
    found, of = accounted("fixed"), run("fixed")
    own = replace(of, sampler=Own(drawn=of.sampler.drawn, order_seed=0))
    with pytest.raises(InputError, match="sampler is a Own, of whose batches nothing is known"):
        Engine(own, found.bound, scripts=found.scripts)
    with pytest.raises(InputError, match=r"dtype=torch\.bfloat16 must be torch\.float32 or"):
        replace(of, dtype=torch.bfloat16)


def test_agents_that_hold_the_same_records_are_refused_unless_the_account_says_so():
    plain = run("poisson")
    copies = replace(plain, shards=[plain.shards[0], plain.shards[1], plain.shards[0]])
    found = accounted("poisson")
    with pytest.raises(InputError, match="agents 0 and 2 hold the same 40 records"):
        Engine(copies, found.bound, scripts=found.scripts)
    said = accounted("poisson", holders=[0, 2])
    Engine(copies, said.bound, scripts=said.scripts).advance()
    Engine(copies, found.bound).advance()  # of which no figure is claimed


def test_users_with_more_records_than_the_account_says_are_refused():
    found = accounted("poisson", unit="user", records_per_person=2)
    for each, allowed in ((2, True), (4, False)):
        of = replace(run("poisson"), users=[torch.arange(RECORDS) // each] * 3)
        if allowed:
            Engine(of, found.bound, scripts=found.scripts).advance()
            continue
        with pytest.raises(InputError, match="a user has more than 2 records"):
            Engine(of, found.bound, scripts=found.scripts)
