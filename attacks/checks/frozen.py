"""Whatever a program can draw randomness from, put into one state, and put back.

A training of the user's is held whole:

    generators   of Python, NumPy and torch: seeded
    clocks       a count of how often they were read, in milliseconds
    entropy      `os.urandom`, `os.getrandom`, and so `secrets`, SystemRandom and NumPy's fresh
                 generators: a stream

Names that a module of the user's took for itself (`from time import time_ns`) are replaced there,
too. What lies below Python, such as `torch.Generator().seed()`, goes on as it was.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import random
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, partial
from typing import Any
from unittest import mock

import numpy as np
import torch

_SINCE = 1_700_000_000 * 10**9  # nanoseconds, of every clock
Place = tuple[Any, str]  # a module or class, and a name in it
_CLOCKS = ("time", "monotonic", "perf_counter", "process_time", "thread_time")
CLOCKS: tuple[Place, ...] = tuple((time, f"{name}{of}") for name in _CLOCKS for of in ("", "_ns"))
ENTROPY = tuple(  # the last is of `secrets`
    place for place in ((os, "urandom"), (os, "getrandom"), (random, "_urandom")) if hasattr(*place)
)


@contextlib.contextmanager
def in_one_state(stand_ins: Mapping[Place, Any], *, seeds: Sequence[int]) -> Iterator[None]:
    """Stand-ins in their places, and generators of Python, NumPy and torch of these seeds."""
    kept = random.getstate(), np.random.get_state()  # noqa: NPY002 the one that others use
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    with torch.random.fork_rng(devices), contextlib.ExitStack() as places:
        for place, stand_in in stand_ins.items():
            places.enter_context(mock.patch.object(*place, stand_in))
        random.seed(seeds[0])
        np.random.seed(seeds[1])  # noqa: NPY002
        here = torch if torch.accelerator.is_available() else torch.default_generator
        here.manual_seed(seeds[2])  # torch's notes stacks for devices that are not there
        try:
            yield
        finally:
            random.setstate(kept[0])
            np.random.set_state(kept[1])  # noqa: NPY002


@contextlib.contextmanager
def frozen(namespace: dict[str, Any], *, seed: int | None) -> Iterator[None]:
    """Everything in one state; of real entropy, where there is no seed, the clocks alone.

    The namespace is that of the user's function, where it is in no module.
    """
    stream = np.random.default_rng(random.SystemRandom().getrandbits(64) if seed is None else seed)
    stand_ins = dict(_stand_ins(stream))
    taken = {id(getattr(*place)): stand_in for place, stand_in in stand_ins.items()}
    held = [
        (space, name, of)
        for space in {id(one): one for one in [*_theirs(len(sys.modules)), namespace]}.values()
        if not taken.keys().isdisjoint(map(id, list(space.values())))  # in most is none
        for name, of in list(space.items())
        if id(of) in taken
    ]
    with in_one_state(stand_ins, seeds=[int(stream.integers(2**32)) for _ in range(3)]):
        try:
            for space, name, of in held:
                space[name] = taken[id(of)]
            yield
        finally:
            for space, name, of in held:
                space[name] = of


@cache
def _theirs(_: int) -> list[dict[str, Any]]:
    """Names of the user's modules, where stand-ins may be held: of no installed package."""
    return [
        vars(module)
        for name, module in list(sys.modules.items())
        if name.partition(".")[0] not in sys.stdlib_module_names
        and "site-packages" not in str(getattr(module, "__file__", None))
        and hasattr(module, "__dict__")
    ]


def _stand_ins(stream: np.random.Generator) -> Iterator[tuple[Place, Any]]:
    """What stands where in the meantime."""
    reads = [0]

    def clock(unit: int) -> Any:
        reads[0] += 1
        now = _SINCE + reads[0] * 10**6
        return now if unit == 1 else now / unit

    def entropy(size: int, _flags: int = 0) -> bytes:
        return stream.bytes(size)

    for place in CLOCKS:
        yield place, partial(clock, 1 if place[1].endswith("_ns") else 10**9)
    for place in ENTROPY:
        yield place, entropy
    real = dt.datetime

    class Alike(type):
        def __instancecheck__(cls, other: object) -> bool:
            return isinstance(other, real)

    class Frozen(dt.datetime, metaclass=Alike):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return real.fromtimestamp(clock(10**9), tz)

        today = utcnow = now

    yield (dt, "datetime"), Frozen
    plain, seeded = random.Random.seed, torch.manual_seed

    def seed(self: random.Random, a: Any = None, version: int = 2) -> None:
        plain(self, int.from_bytes(stream.bytes(32)) if a is None else a, version)

    def fresh() -> int:
        seeded(value := int(stream.integers(2**63)))
        return value

    yield (random.Random, "seed"), seed
    yield (random, "seed"), partial(seed, random._inst)
    yield (torch, "seed"), fresh
