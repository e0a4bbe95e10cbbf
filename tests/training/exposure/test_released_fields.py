"""What leaves after the last round is declared, and no name of a field decides it."""

import functools
import math
import sys
from collections import namedtuple
from dataclasses import replace
from itertools import cycle
from typing import NamedTuple

import pytest
import torch

from overhear.privacy.errors import InputError
from overhear.training import ALGORITHMS, Agents, Algorithm, account
from overhear.training.graphs.topologies import ring
from tests.training.contract import bound_to, started

RUN = {"graph": "ring:3", "rounds": 3, "sampling_rate": 0.1, "delta": 1e-5, "batch_size": 3.0,
    "noise_multiplier": 2.0, "learning_rate": 0.1}  # fmt: skip
EVERYBODY = ["eavesdropper", "neighbour", "final-models"]


def momentum_behind_noise(field, *, public=False):
    """Momentum of clean sums, of which each round sends what fresh noise hides."""
    more = [("t", torch.Tensor)] if public else []
    State = NamedTuple("State", [("x", Agents), (field, Agents), *more])

    def init(round):
        x = round.initial()
        return State(x, 0.0 * x, *([torch.zeros(())] if public else []))

    def step(state, round, *, learning_rate, clip_norm, noise_std, batch_size):
        sums = round.clipped_sums(state.x, batch=round.draw(), clip_norm=clip_norm)
        v = 0.9 * getattr(state, field) + sums
        noisy = (v + round.noise(v, std=noise_std)) / batch_size
        return State(round.mix(state.x - learning_rate * noisy, kind="model"), v, *state[2:])

    return init, step


@pytest.mark.parametrize("field", ["y", "v", "dual"])
def test_a_clean_momentum_costs_what_is_declared_whatever_it_is_called(field):
    """By hand: a use in round 1 shows in rounds 1, 2, 3 as 1, .9, .81, so J^2 is 2.4661."""
    pair, alone = momentum_behind_noise(field), {"adversaries": ["eavesdropper"]}
    shown = account(*pair, **RUN, **alone)["eavesdropper"]
    assert (shown.epsilon, shown.status) == (math.inf, "no protection")
    assert f"the field {field} counts as released after the last round" in shown.because
    once = {"released": ("x",), "participation": {"most": 1}}
    kept = account(*pair, **RUN, **alone, **once)["eavesdropper"]
    assert kept.joint_sensitivity == pytest.approx(math.sqrt(2.4661), abs=1e-6)
    assert kept.status == "proven"


@pytest.mark.slow
def test_what_is_declared_holds_for_every_adversary():
    pair = momentum_behind_noise("v")
    for released, expected in (
        (None, math.inf),
        (["v", "x"], math.inf),
        (["x"], math.sqrt(1 + 1.9**2 + 2.71**2)),  # of a record that is in all three rounds
    ):
        found = account(*pair, **RUN, adversaries=EVERYBODY, released=released)
        for name in EVERYBODY:  # the models of a ring of three are the mean of all
            mu = expected / math.sqrt(3.0 if name == "final-models" else 1.0)
            assert found[name].joint_sensitivity == pytest.approx(mu, rel=1e-9)


REFUSED = [
    ("x", "must be a tuple of names of fields of the state, such as ('x',)"),
    (("v",), "leaves out 'x', the models, which every run releases"),
    (("x", "x"), "names a field twice"),
    (("x", 1), "names 1, which is no name of a field"),
    (("x", "momentu"), "no field of the state: the fields that can be released are x, momentum; "
        "did you mean 'momentum'?"),
    (("x", "t"), "names 't', a public tensor, which is known in any case"),
]  # fmt: skip


@pytest.mark.parametrize(("released", "said"), REFUSED, ids=str)
def test_a_field_that_cannot_be_released_is_refused(released, said):
    pair = momentum_behind_noise("momentum", public=True)
    with pytest.raises((InputError, TypeError)) as error:
        account(*pair, **RUN, released=released)
    assert said in str(error.value)


def test_a_history_and_a_model_that_is_no_field_are_refused():
    ftrl = ALGORITHMS["dp-ftrl"]
    with pytest.raises(InputError, match="'past', a history, whose noise its agent alone knows"):
        account(replace(ftrl, released=("x", "past")), **RUN)
    with pytest.raises(InputError, match="model of the algorithm names 'theta', which is no field"):
        account(replace(ftrl, model="theta"), **RUN)
    with pytest.raises(TypeError, match="declares which fields it releases"):
        account(ftrl, **RUN, released=("x",))


def renamed(algorithm: Algorithm) -> Algorithm:
    """The same algorithm with a state whose fields have other names."""
    module = sys.modules[algorithm.step.__module__]
    old = vars(module)[algorithm.step.__annotations__["return"]]
    names = {name: f"field_{i}" for i, name in enumerate(reversed(old._fields))}
    new = namedtuple("New", [names[name] for name in old._fields])

    @functools.wraps(algorithm.init)
    def init(round, **numbers):
        return new(*algorithm.init(round, **numbers))

    @functools.wraps(algorithm.step)
    def step(state, round, **numbers):
        return new(*algorithm.step(old(*state), round, **numbers))

    of = algorithm.released
    released = None if of is None else tuple(names[name] for name in of)
    return replace(algorithm, init=init, step=step, model=names[algorithm.model], released=released)


FORMS = [(n, form) for n, known in ALGORITHMS.items() if known.private for form in known.forms]
CASES = [(*of, pattern) for of, pattern in zip(FORMS, cycle(("every", {"cycle": 2})), strict=False)]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "form", "pattern"), CASES, ids=str)
def test_no_figure_of_the_registry_rests_on_the_name_of_a_field(name, form, pattern):
    run = RUN | {"form": form, "participation": pattern, "adversaries": EVERYBODY, "records": 30.0}
    one, other = (_figures(of, run) for of in (ALGORITHMS[name], renamed(ALGORITHMS[name])))
    assert one == other


def _figures(algorithm, run):
    try:
        found = account(algorithm, **run)
    except ValueError as error:  # a pattern that it does not serve
        return str(error)
    return {n: (found[n].joint_sensitivity, found[n].epsilon, found[n].status) for n in found}


@pytest.mark.slow
def test_a_run_whose_models_have_another_name_trains_as_it_did():
    graph, models = ring(3), []
    for algorithm in (ALGORITHMS["dpdl"], renamed(ALGORITHMS["dpdl"])):
        engine = started(bound_to(algorithm, graph), graph)
        engine.advance()
        models.append(engine.models())
    assert torch.equal(*models)
