"""The engine on a device: the CPU's models, nothing read back within a round, layouts, repetition.

Each is seen twice: on a device that is pretended, where placement and waiting show, and by tests
marked `gpu` on a real one, where arithmetic and torch's own word for waiting do.
"""

import gc
import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from itertools import cycle

import numpy as np
import pytest
import torch
from torch import Tensor

from overhear.training.algorithms import ALGORITHMS, dp_cga
from overhear.training.engine.engine import Engine
from overhear.training.engine.randomness import SecretRandomness
from overhear.training.engine.setting import Setting
from overhear.training.graphs.participation import scheduled
from overhear.training.graphs.topologies import ring
from tests.devices.stand_in import StandIn
from tests.devices.waiting import no_waiting
from tests.training.contract import bound_to, setting

CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
PRIVATE = sorted(name for name, of in ALGORITHMS.items() if of.private)
DEVICES = ["pretended", pytest.param("cuda", marks=[pytest.mark.gpu, CUDA])]

# Between rounds the engine looks whether a sum overflowed; and a layout and a function are tried
# once, before the round that is watched.
BETWEEN = {
    ("training/gradients/gradients.py", "PairGradients.check"): "sums are looked at",
    ("training/device/precision.py", "check_numbers"): "models are looked at",
    ("training/gradients/choice.py", "disagreement"): "a layout is tried once",
    ("training/step/script.py", "_agree"): "a function is tried once",
    ("training/engine/engine.py", "Engine.snapshot.<locals>.<dictcomp>"): "a snapshot is read",
}


class HostNoise(SecretRandomness):
    """The CPU's noise wherever a run computes: a device's own is other noise."""

    def normal(self, *, device: torch.device | str = "cpu", **how: object) -> Tensor:
        return super().normal(**how, device="cpu").to(device)  # type: ignore[arg-type]


class Device:
    """A device, and what watches a round on it."""

    def __init__(self, stand_in: StandIn | None) -> None:
        self._stand_in = stand_in
        self.device = torch.device("cuda", 0)

    def watched(self) -> AbstractContextManager[object]:
        return no_waiting() if self._stand_in is None else self._stand_in.rounds()


@contextmanager
def a_device(name: str, places: dict[tuple[str, str], str]) -> Iterator[Device]:
    if name == "cuda":
        yield Device(None)
        return
    with StandIn(places) as stand_in:
        yield Device(stand_in)


def of(name: str, graph=None) -> Setting:
    return setting(graph or ring(4), records=4, min_max=ALGORITHMS[name].blocks == 2)


def engine_of(name: str, held: Setting, **how: object) -> Engine:
    how.setdefault("randomness", HostNoise(5))
    return Engine(held, bound_to(name, held.graph), **how)  # type: ignore[arg-type]


@pytest.mark.some_quick(2)
@pytest.mark.parametrize("where", DEVICES)
@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_models_are_those_of_the_cpu(name, where):
    here = engine_of(name, of(name))
    for _ in range(3):
        here.advance()
    expected = here.models()
    with a_device(where, BETWEEN) as device:
        there = engine_of(name, replace(of(name), device=device.device))
        for _ in range(3):
            there.advance()
        found = there.snapshot()["x"]
    off = float((found - expected).norm() / expected.norm())
    assert off <= 1e-9


@pytest.mark.some_quick(4)
@pytest.mark.parametrize("where", DEVICES)
@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_nothing_is_read_back_within_a_round(name, where):
    held = of(name)
    with a_device(where, BETWEEN) as device:
        engine = engine_of(name, replace(held, device=device.device), randomness=None)
        engine.advance()
        engine.advance()
        gc.collect()
        with device.watched():
            one = engine._make_round(3, planted={}, recorded=None)
            perform_only(engine, one)


@pytest.mark.parametrize("where", DEVICES)
@pytest.mark.parametrize("name", ["dp-dpsgd", "cdp-dsgd"])
def test_nothing_is_read_back_where_agents_are_absent(name, where):
    often = np.tile(np.array([[1, 0, 1, 1]], dtype=bool), (4, 1))  # by an upload or on links
    held = of(name, scheduled(ring(4), often, told="a list"))
    here = engine_of(name, held)
    with a_device(where, BETWEEN) as device:
        there = replace(held, device=device.device)
        alike, watched = engine_of(name, there), engine_of(name, there, randomness=None)
        for engine in (here, alike, watched):
            engine.advance()
            engine.advance()
        off = float((alike.snapshot()["x"] - here.models()).norm() / here.models().norm())
        assert off <= 1e-9
        gc.collect()
        with device.watched():
            one = watched._make_round(3, planted={}, recorded=None)
            perform_only(watched, one)


@pytest.mark.some_quick(4)
@pytest.mark.parametrize("where", DEVICES)
@pytest.mark.parametrize(("name", "bad"), [*zip(PRIVATE, cycle((math.inf, math.nan)))])
def test_a_record_that_overflows_is_told_to_nobody(name, bad, where):
    """Its agent goes on to the models that the CPU has, and no round looks at anything."""
    held = of(name)
    held.shards[1].inputs[2] = bad
    held = replace(held, sampling_rate=1.0)
    here = engine_of(name, held)
    here.advance()
    here.advance()
    assert here.models().isfinite().all()
    with a_device(where, BETWEEN) as device:
        on_it = replace(held, device=device.device)
        there, watched = engine_of(name, on_it), engine_of(name, on_it, randomness=None)
        for engine in (there, watched):
            engine.advance()
            engine.advance()
        off = float((there.snapshot()["x"] - here.models()).norm() / here.models().norm())
        assert off <= 1e-9
        gc.collect()
        with device.watched():
            one = watched._make_round(3, planted={}, recorded=None)
            perform_only(watched, one)


def unsettled(triangle: Tensor) -> Tensor:
    """A solver that does not settle on any problem."""
    return triangle[0, :-1] * float("nan")


@pytest.mark.parametrize("where", DEVICES)
def test_a_solver_that_does_not_settle_is_an_error_when_the_round_ends(where, monkeypatch):
    held = of("dp-cga")
    monkeypatch.setattr(dp_cga, "non_negative", unsettled)
    with a_device(where, BETWEEN) as device:
        engine = engine_of("dp-cga", replace(held, device=device.device))
        with pytest.raises(FloatingPointError, match="after round 1 x of agent 0 is not a number"):
            engine.advance()


def perform_only(engine: Engine, one: object) -> None:
    """A round without the look for overflow at its end, which waits for the device."""
    from overhear.training.step.perform import perform

    perform(
        engine._bound.step, one, number=3, state=engine.state,
        planned=engine.scripts.of(3, engine.state),
    )  # fmt: skip
