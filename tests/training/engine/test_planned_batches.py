"""An engine with the scripts of an account draws the batches that its figures rest on, or none."""

from dataclasses import replace

import pytest
import torch

from overhear.privacy.batches.sampling import drawings
from overhear.privacy.errors import InputError
from overhear.training import account
from overhear.training.batches import Sampler
from overhear.training.engine.engine import Engine
from overhear.training.graphs.topologies import ring
from tests.training.contract import setting

GRAPH, RECORDS, SIZE = ring(3), 40, 5
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
        "dp-dpsgd", graph=GRAPH, rounds=6, sampling_rate=SIZE / records, delta=1e-5,
        noise_multiplier=2.0, batch_size=SIZE, records=records, sampling=sampling,
        largest_batch=largest, adversaries=["eavesdropper"], **adjacency | more,
    )  # fmt: skip


def run(scheme, *, rate=SIZE / RECORDS, size=SIZE):
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
        Engine(run("fixed", rate=SIZE / 80), found.bound, scripts=found.scripts)
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
