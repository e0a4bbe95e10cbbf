"""Batches are drawn by the scheme that is declared, and those that are drawn otherwise are found.

Four agents of 40 to 43 records, batches of 8. Sound runs have fixed roots and pass at a total
false-alarm rate of 1e-6 each; a fault is found at the same rate.
"""

import dataclasses

import numpy as np
import pytest
import torch

from overhear.attacks.checks import schemes as module
from overhear.attacks.checks.result import Finding
from overhear.attacks.checks.schemes import test_schemes as scheme_tests
from overhear.privacy.batches.sampling import Drawing, Scheme
from overhear.privacy.errors import InputError
from overhear.training.batches import Sampler

RECORDS = (40, 41, 42, 43)
SIZE, RATE, ROUNDS = 8, 0.2, 300
DRAWN = {
    scheme: tuple(
        Drawing(scheme, n, 11 if scheme is Scheme.TRUNCATED else SIZE, n) for n in RECORDS
    )
    for scheme in Scheme
    if scheme is not Scheme.POISSON
}


def sampler(scheme):
    return Sampler(drawn=DRAWN[scheme], order_seed=7)


def drawn(of, *, rounds=ROUNDS, seed=0, again=lambda agent, round: (agent, round)):
    """(T, n) for each agent who is in which batch; `again` names whose stream is used."""
    members = [np.zeros((rounds, n), dtype=bool) for n in RECORDS]
    for agent, held in enumerate(members):
        for t in range(rounds):
            whose, when = again(agent, t + 1)
            stream = np.random.default_rng([seed, whose, when])
            at = of.draw(agent=agent, round=t + 1, call=0, rate=RATE, generator=stream)
            held[t, at] = True
    return members


def poisson(rounds=ROUNDS):
    rng = np.random.default_rng(3)
    return [rng.random((rounds, n)) < RATE for n in RECORDS]


def look(declared, members):
    found = Finding()
    scheme_tests(found, sampler(declared), members, call=0, rate=RATE)
    return found


@pytest.mark.parametrize("scheme", list(DRAWN))
@pytest.mark.parametrize("seed", [0, 1])
def test_a_sound_sampler_passes(scheme, seed):
    found = look(scheme, drawn(sampler(scheme), seed=seed))
    assert found.passed, found.what
    assert found.tests > 100


@pytest.mark.parametrize("declared", list(DRAWN))
@pytest.mark.parametrize("real", [Scheme.POISSON, *DRAWN])
def test_every_other_scheme_is_found(declared, real):
    if declared is real:
        return
    members = poisson() if real is Scheme.POISSON else drawn(sampler(real))
    assert not look(declared, members).passed


def faults():
    """Small faults by name: the scheme that is declared, and what is drawn."""

    def swapped(members):  # a batch holds one record twice in an epoch, in place of another
        members[2][3] = members[2][2]
        return members

    def favoured(members):  # one record is in every batch of its agent
        for row in members[1]:
            if not row[0]:
                row[np.flatnonzero(row)[0]], row[0] = False, True
        return members

    def in_pairs(members):  # records come in fixed pairs, in batches of the right size
        rng = np.random.default_rng(5)
        for held in members:
            for row in held:
                row[:] = False
                two = 2 * rng.choice(len(row) // 2, SIZE // 2, replace=False)
                row[two] = row[two + 1] = True
        return members

    fixed, shuffled = sampler(Scheme.FIXED), sampler(Scheme.SHUFFLED)
    yield "one batch too large", Scheme.FIXED, _larger(drawn(fixed))
    yield "a record in every batch", Scheme.FIXED, favoured(drawn(fixed))
    yield "records in pairs", Scheme.FIXED, in_pairs(drawn(fixed))
    yield "a batch that comes again", Scheme.FIXED, drawn(fixed, again=lambda a, t: (a, t % 50))
    yield "one stream for two agents", Scheme.FIXED, drawn(fixed, again=lambda a, t: (min(a, 2), t))
    yield "one batch twice in an epoch", Scheme.SHUFFLED, swapped(drawn(shuffled))
    yield "one order for all epochs", Scheme.SHUFFLED, _one_order(shuffled)
    yield "cyclic, one round late", Scheme.CYCLIC, _late(drawn(sampler(Scheme.CYCLIC)))
    cut = sampler(Scheme.TRUNCATED)
    yield "cut to the first records", Scheme.TRUNCATED, _cut_first()
    yield "one batch too large", Scheme.TRUNCATED, _larger(drawn(cut))


def _larger(members):
    row = members[3][17]
    row[:20] = True
    return members


def _one_order(of):
    members = drawn(of)
    for held, one in zip(members, of.drawn, strict=True):
        held[:] = held[np.arange(len(held)) % one.epoch]
    return members


def _late(members):
    members[0][50:] = members[0][49:-1]
    return members


def _cut_first():
    members = poisson(1000)
    for held in members:
        for row in held:
            row[np.flatnonzero(row)[11:]] = False
    return members


@pytest.mark.parametrize(
    ("name", "declared", "members"),
    [pytest.param(*one, id=f"{one[1]}: {one[0]}") for one in faults()],
)
def test_a_small_fault_is_found(name, declared, members):
    found = look(declared, members)
    assert not found.passed, name


def test_false_alarms_are_as_rare_as_they_are_said_to_be(monkeypatch):
    # 60 sound runs of two agents: at a level of .05 a run, 60 * .05 = 3 alarms are expected at
    # most; 12 or more have probability 4e-5 at that rate.
    few = tuple(Drawing(Scheme.FIXED, n, SIZE, n) for n in RECORDS[:2])
    alarms = 0
    for seed in range(60):
        rng = np.random.default_rng([9, seed])
        members = [np.zeros((60, n), dtype=bool) for n in RECORDS[:2]]
        for held in members:
            for row in held:
                row[rng.choice(len(row), SIZE, replace=False)] = True
        found = Finding()
        scheme_tests(found, Sampler(drawn=few, order_seed=0), members, call=0, rate=RATE)
        alarms += found.p is not None and found.p < 0.05
    assert alarms < 12


def test_an_epoch_has_each_record_once_and_a_run_that_goes_on_repeats_none():
    of = sampler(Scheme.SHUFFLED)
    secret = np.random.default_rng(0)
    batches = [
        of.draw(agent=0, round=t, call=0, rate=RATE, generator=secret).tolist() for t in range(1, 6)
    ]
    assert sorted(i for batch in batches for i in batch) == list(range(40))
    other = sampler(Scheme.SHUFFLED)  # as another process draws it
    assert other.draw(agent=0, round=4, call=0, rate=RATE, generator=secret).tolist() == batches[3]
    assert not np.array_equal(of.order(0, 0), of.order(0, 1))
    assert not np.array_equal(of.order(0, 0), of.order(1, 0)[:40])


def test_a_second_batch_of_a_round_has_no_place_in_an_epoch():
    with pytest.raises(InputError, match="has no place in an epoch"):
        sampler(Scheme.CYCLIC).draw(
            agent=0, round=1, call=1, rate=RATE, generator=np.random.default_rng(0)
        )
    assert module.enough_rounds(DRAWN[Scheme.FIXED]) == 0


@pytest.mark.parametrize("scheme", list(DRAWN))
def test_a_watched_run_of_each_scheme_passes_its_sampler_check(scheme):
    from overhear.attacks.checks.sampler import sampler_check
    from overhear.attacks.checks.watched_run import watch
    from overhear.training.engine.randomness import SecretRandomness
    from overhear.training.graphs.topologies import ring
    from tests.attacks.checks.watched import a_setting
    from tests.training.contract import bound_to

    of = Sampler(drawn=(Drawing(scheme, 12, 3, 12),) * 4, order_seed=1)
    setting = dataclasses.replace(a_setting(ring(4), rate=0.25), sampler=of)
    run = watch(setting, bound_to("dp-dpsgd", ring(4)), rounds=2, randomness=SecretRandomness(5))
    found = sampler_check(run)
    assert found.passed, found.words
    assert str(scheme) in found.words
    at = run.engine.draw_batch(round=1, call=0, agent=0, rate=None)
    assert at.dtype is torch.int64
