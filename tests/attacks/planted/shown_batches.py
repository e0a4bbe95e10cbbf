"""What faults of the batches do to which records a round takes."""

import tempfile
from collections.abc import Callable
from itertools import chain
from pathlib import Path

from overhear.privacy.batches.sampling import Scheme
from overhear.runs.run_file.build import build
from overhear.runs.run_file.run_file import load_run_file
from overhear.training.engine.engine import Engine
from overhear.training.engine.randomness import SecretRandomness
from overhear.training.graphs.topologies import ring
from overhear.training.step.values import Cohort
from tests.attacks.checks.watched import a_setting
from tests.attacks.planted.audits import RUN
from tests.attacks.planted.small_runs import an_engine, batches, draws, planted
from tests.training.contract import bound_to

_MANY = range(1, 41)
_RECORDS = 12


def _in_epochs() -> None:
    found = batches("shuffled batches", rounds=range(1, 5), rate=0.25)
    assert sorted(chain.from_iterable(found)) == list(range(_RECORDS))


def _in_slots() -> None:
    found = batches("fixed batches", rounds=range(1, 9), rate=0.25)
    assert found[:4] == found[4:]
    assert sorted(chain.from_iterable(found[:4])) == list(range(_RECORDS))


def _repeats_first() -> None:
    name = "batch padded by repeating a record"
    padded = 0
    for found, sound in zip(batches(name, rounds=_MANY), batches(rounds=_MANY), strict=True):
        assert found == [sound[0]] * max(0, 6 - len(sound)) + sound if sound else found == []
        padded += len(found) > len(sound)
    assert padded


def _of_rate(name: str, rates: dict[int, float], *, rate: float = 0.5, agent: int = 1):
    """The same batches as a sound engine of another rate has them."""

    def check() -> None:
        for number, other in rates.items():
            found = batches(name, rounds=[number], rate=rate, agent=agent)
            assert found == batches(rounds=[number], rate=other, agent=agent)

    return check


def _agent_0() -> None:
    name = "full batches of agent 0"
    _of_rate(name, {1: 0.5, 2: 0.5})()
    assert batches(name, rounds=[1], agent=0) == [list(range(_RECORDS))]


def _of_one_size() -> None:
    found = batches("batches of a fixed size", rounds=_MANY)
    assert {len(set(at)) for at in found} == {len(at) for at in found} == {6}
    assert len({tuple(at) for at in found}) > 30


def _first_always() -> None:
    name = "a record in every batch"
    for found, sound in zip(batches(name, rounds=_MANY), batches(rounds=_MANY), strict=True):
        assert found == sorted({0, *sound})


def _one_after_another() -> None:
    found = batches("sequential batches", rounds=[1, 2, 3], rate=0.25)
    assert found == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]


def _second_for_first() -> None:
    name = "a record that stands in for its neighbour"
    for found, sound in zip(batches(name, rounds=_MANY), batches(rounds=_MANY), strict=True):
        assert found == [max(1, at) for at in sound]


def _twelfth_again() -> None:
    name, rounds = "a batch that comes once more", [11, 12, 13, 14]
    found, sound = batches(name, rounds=rounds), batches(rounds=rounds)
    assert found == [sound[0], sound[1], sound[1], sound[3]] != sound


def _in_step() -> None:
    found = batches("two records that share a coin", rounds=_MANY, agent=2)
    assert all((2 in at) == (5 in at) for at in found)
    name = "records of two agents that share a coin"
    mine, other = (batches(name, rounds=_MANY, agent=agent) for agent in (4, 1))
    assert [0 in at for at in mine] == [0 in at for at in other]


def _never_together() -> None:
    found = batches("two records that never meet", rounds=_MANY, agent=2)
    assert not any(2 in at and 5 in at for at in found)
    assert any(2 in at for at in found)


def _whatever_the_root(name: str) -> Callable[[], None]:
    def check() -> None:
        assert batches(name, rounds=_MANY) == batches(name, rounds=_MANY, root=8)
        assert batches(rounds=_MANY) != batches(rounds=_MANY, root=8)

    return check


def _as_the_noise() -> None:
    name = "batch coins that are numbers of the noise"
    z = draws(rows=2)[1, :_RECORDS]
    assert batches(name, rounds=[1], agent=1) == [(z < 0).nonzero().flatten().tolist()]


def _cohorts(name: str, *, root: int, scheme: Scheme = Scheme.POISSON) -> list[list[bool]]:
    with planted(name):
        engine = an_engine(root=root)
        cohort = Cohort(call=0, rate=0.4, scheme=scheme)
        return [engine.draw_cohort(cohort, round=t).flatten().tolist() for t in _MANY]


def _public_cohorts(name: str, scheme: Scheme) -> Callable[[], None]:
    def check() -> None:
        found = _cohorts(name, root=7, scheme=scheme)
        assert found == _cohorts(name, root=8, scheme=scheme)
        assert found != _cohorts("", root=7, scheme=scheme)

    return check


def _agents_in_step() -> None:
    with planted("two agents that share a cohort's coin"):
        engine = Engine(
            a_setting(ring(8)), bound_to("dpdl", ring(8)), randomness=SecretRandomness(7)
        )
        cohort = Cohort(call=0, rate=0.5)
        found = [engine.draw_cohort(cohort, round=t) for t in _MANY]
    assert all(bool(of[3] == of[7]) for of in found)


def _dealt(name: str) -> list[int]:
    """Which records each agent has, by their own numbers: how often any is held."""
    with tempfile.TemporaryDirectory() as held, planted(name):
        path = Path(held) / "run.toml"
        path.write_text(RUN, encoding="utf-8")
        built = build(load_run_file(path, ["data.partition=iid"]))
    of_all = [tuple(row.flatten().tolist()) for s in built.setting.shards for row in s.inputs]
    first = [tuple(s.inputs[0].flatten().tolist()) for s in built.setting.shards]
    return [of_all.count(one) for one in first]


def _held_twice(name: str) -> Callable[[], None]:
    def check() -> None:
        assert _dealt("") == [1] * 10
        assert _dealt(name) == [2] * 10

    return check


_FIXED = "cohorts of a fixed size of a public seed"
SHOWN: dict[str, Callable[[], None]] = {
    "two records that share a coin": _in_step,
    "records of two agents that share a coin": _in_step,
    "two records that never meet": _never_together,
    "batches of a public seed": _whatever_the_root("batches of a public seed"),
    "batch coins that are numbers of the noise": _as_the_noise,
    "cohorts of a public seed": _public_cohorts("cohorts of a public seed", Scheme.POISSON),
    _FIXED: _public_cohorts(_FIXED, Scheme.FIXED),
    "two agents that share a cohort's coin": _agents_in_step,
    "shuffled batches": _in_epochs,
    "fixed batches": _in_slots,
    "batch padded by repeating a record": _repeats_first,
    "a record stored twice": _held_twice("a record stored twice"),
    "a record dealt to two agents": _held_twice("a record dealt to two agents"),
    "sampling rate twice the declared": _of_rate(
        "sampling rate twice the declared", {1: 0.4, 2: 0.4}, rate=0.2
    ),
    "sampling rate .25 after round 10": _of_rate(
        "sampling rate .25 after round 10", {1: 0.2, 10: 0.2, 11: 0.25, 24: 0.25}, rate=0.2
    ),
    "batches of a fixed size": _of_one_size,
    "full batches of agent 0": _agent_0,
    "a record in every batch": _first_always,
    "sequential batches": _one_after_another,
    "a record that stands in for its neighbour": _second_for_first,
    "a batch that comes once more": _twelfth_again,
}
