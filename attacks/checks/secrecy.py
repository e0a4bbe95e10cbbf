"""Secrecy: noise, batches and cohorts are made of the system's entropy, and of nothing else.

Engines are made while every global generator, clock, process and host is held to one value, and
while the system's entropy is what the check gives. Then

    with the same entropy       every draw is the same: nothing else decides
    with other entropy          every draw is another, whichever half of it is: noise exactly;
                                batches of a holder, their coincidence having the chance
                                sum_k P(size = k)^2 / C(n, k); a record's or an agent's coin, two
                                of which are alike with probability q^2 + (1 - q)^2 in a round
    for each of its bytes       a new root draws other noise, batches and cohorts
    500 new roots               none begins as another: one of b bits is found with probability
                                1 - exp(-R^2 / 2^(b+1)), for sure up to b = 12, by half at 17

and streams of noise, of batches and of cohorts never meet: exactly, by the places of the generator
that each asks for, and by comparing coins with the numbers of the noise, in their order and by
their size. What is fed to the check is itself secret, and given to its own thread alone.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import functools
import hashlib
import itertools
import math
import os
import platform
import random
import secrets
import socket
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence, Set
from functools import partial
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import ndtri

from ...training.engine.engine import Engine
from ...training.engine.randomness import Purpose, SecretRandomness
from ...training.noise_tests.laws import at_least, binomial, least
from ...training.tracing.trace import AlgorithmTrace
from .result import Check, Finding
from .sampler import drawn_batches, drawn_cohorts
from .schemes import coincidence, mean_size
from .watched_run import WatchedRun, bare_engine, bare_rounds

# Whatever a program can draw randomness from, put into one state, and put back.


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
        _seed_torch(seeds[2])
        try:
            yield
        finally:
            random.setstate(kept[0])
            np.random.set_state(kept[1])  # noqa: NPY002


def _seed_torch(seed: int) -> None:
    """As `torch.manual_seed`, which notes its caller's stack for each device that is not there."""
    if torch.accelerator.is_available():
        torch.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)


class HoldingModules:
    """Names of the user's modules, of no installed package, that hold one of some things."""

    def __init__(self) -> None:
        self._loaded, self._found = 0, list[dict[str, Any]]()

    def of(self, real: Set[int]) -> list[dict[str, Any]]:
        """The names of those that hold a thing with one of these ids."""
        if len(sys.modules) != self._loaded:  # the first time, and once others are loaded
            self._loaded = len(sys.modules)
            theirs = (
                vars(module)
                for name, module in list(sys.modules.items())
                if name.partition(".")[0] not in sys.stdlib_module_names
                and "site-packages" not in str(getattr(module, "__file__", None))
                and hasattr(module, "__dict__")
            )
            self._found = [of for of in theirs if not real.isdisjoint(map(id, list(of.values())))]
        return self._found


@contextlib.contextmanager
def frozen(
    namespace: dict[str, Any], *, seed: int | None, holding: HoldingModules | None = None
) -> Iterator[None]:
    """Everything in one state; of real entropy, where there is no seed, the clocks alone.

    The namespace is that of the user's function, where it is in no module; `holding` may be kept.
    """
    stream = np.random.default_rng(random.SystemRandom().getrandbits(64) if seed is None else seed)
    stand_ins = dict(_stand_ins(stream))
    taken = {id(getattr(*place)): stand_in for place, stand_in in stand_ins.items()}
    spaces = [*(holding or HoldingModules()).of(taken.keys()), namespace]
    held = [
        (space, name, of)
        for space in {id(space): space for space in spaces}.values()
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


_NAME = "secrecy"
_WIDTH = 256  # numbers of a source that are drawn
_ROUNDS = 4  # of which numbers of the noise are compared with coins
_ROOTS, _ROOT = 500, 16  # how many, and the bytes of one
_TOLD = 34.0  # -log of the chance that two coins always fall alike
_MOST_DRAWS = 1000.0  # holders times rounds of batches
_ONE_AT_A_TIME = threading.Lock()
_HELD = (
    *CLOCKS,
    *((os, name) for name in ("getpid", "getppid", "times", "uname")),
    *((of, name) for of, name in ((socket, "gethostname"), (platform, "node"))),
    *((uuid, name) for name in ("getnode", "uuid1")),
)


class _Entropy:
    """What the system's entropy is taken to be: a secret key stretched, and counted."""

    def __init__(self, key: bytes, other: Sequence[int] = ()) -> None:  # which bytes are others
        self._key, self._other, self.asked = key, set(other), 0

    def __call__(self, size: int, _flags: int = 0) -> bytes:
        """So many bytes more."""
        at = self.asked.to_bytes(8, "little")
        given = bytearray(hashlib.shake_256(self._key + at).digest(size))
        for place in self._other & set(range(self.asked, self.asked + size)):
            given[place - self.asked] ^= 0xFF
        self.asked += size
        return bytes(given)


@functools.cache
def _told_first(place: Place) -> Any:
    return getattr(*place)()


@contextlib.contextmanager
def _held(entropy: _Entropy | None) -> Iterator[None]:
    """For this thread alone one clock, process, host and state of every global generator.

    The entropy is in place of the system's; None leaves that.
    """
    mine = threading.get_ident()

    def stand_in(place: Place) -> Any:
        real = getattr(*place)
        given, told = entropy or real, None if place in ENTROPY else _told_first(place)

        def call(*a: Any, **k: Any) -> Any:
            if threading.get_ident() != mine:
                return real(*a, **k)
            return given(*a, **k) if place in ENTROPY else told

        return call

    with _ONE_AT_A_TIME:  # or the one that ends first would leave behind what it found
        stand_ins = {place: stand_in(place) for place in (*_HELD, *ENTROPY) if hasattr(*place)}
        with in_one_state(stand_ins, seeds=(0, 0, 0)):
            yield


class _Coins(NamedTuple):
    """Who takes part, anew and in secret in every round."""

    what: str
    rate: float  # the chance of each
    same: float  # an upper bound on the chance that two draws of one round are equal
    members: NDArray[np.bool_]  # (T, n) who takes part
    free: NDArray[np.bool_]  # (T, n) who may


_Noise = dict[tuple[int, int, int], NDArray[np.floating]]  # by round, call and row (W,) numbers


class _Made(NamedTuple):
    """What an engine draws, and how many bytes of entropy it was made of."""

    noise: _Noise
    coins: list[_Coins]
    asked: int


def secrecy_check(run: WatchedRun, traces: AlgorithmTrace) -> Check:
    """Make engines under one clock and of given entropy, and compare what they draw.

    Args:
        run: a watched run, whose setting and algorithm the engines have.

    Returns:
        Passed if all that is secret is made of the system's entropy alone, and streams of different
        purposes have nothing in common.
    """
    key, found = secrets.randbits(256).to_bytes(32, "little"), Finding()
    first = _made(run, traces, _Entropy(key))
    _note_same(found, first, _made(run, traces, _Entropy(key), rounds=2))
    for half, rounds in ((range(_ROOT // 2), None), (range(_ROOT // 2, 4 * _ROOT), 2)):
        _note_other(found, first, _made(run, traces, _Entropy(key, half), rounds=rounds))
    enough = first.asked >= _ROOT or not (first.noise or first.coins)
    asked = f"a new engine asks for {first.asked} bytes of the system's entropy"
    found.exact(enough, f"{asked}, where a root has {_ROOT}")
    _note_roots(found, key)
    apart = _note_apart(run, traces)
    words = (
        f"{len(first.noise)} sources of noise and {len(first.coins)} batches and cohorts of new "
        "engines were drawn under one clock, process, host and state of all global generators, "
        f"with the same entropy and with other; {_ROOTS:,} new roots, and one for each byte, were "
        "compared, and the streams of noise, batches and cohorts with each other"
    )
    return Finding.of([found, apart]).check(_NAME, words)


def _made(
    run: WatchedRun, traces: AlgorithmTrace, entropy: _Entropy, *, rounds: int | None = None
) -> _Made:
    """A new engine of such entropy, and all that it draws.

    Without a number of rounds it is as many as tell one coin from another.
    """
    with _held(entropy):
        engine = bare_engine(run.setting, run.bound, width=_WIDTH, scripts=traces.scripts)
        asked, noise = entropy.asked, _noise_of(engine, rounds=1)
        of = _with_records(engine, run)
        return _Made(noise, _coins_of_batches(of, rounds) + _coins_of_cohorts(of, rounds), asked)


def _noise_of(engine: Engine, *, rounds: int) -> _Noise:
    made, _ = bare_rounds(engine, rounds=range(1, rounds + 1), seconds=math.inf)
    return {
        (one.number, call, row): z
        for one in made
        for call, of in enumerate(one.sources)
        for row, z in enumerate(of.numpy())
    }


def _with_records(engine: Engine, run: WatchedRun) -> WatchedRun:
    """A bare engine with the records of a run, of which it draws batches."""
    engine.setting = run.setting
    return WatchedRun(engine, run.rounds, bound=run.bound, randomness=run.randomness)


def _coins_of_batches(run: WatchedRun, rounds: int | None) -> list[_Coins]:
    sampler, turns, every = run.setting.sampler, run.setting.turns, list[_Coins]()
    if sampler is not None and sampler.scheme.in_epochs:
        return []  # whose order is public
    for one in drawn_batches(Finding(), run, rounds=lambda *at: rounds or _enough(*at)):
        for agent, members in enumerate(one.members):
            free, rate = np.ones_like(members), one.rate
            if turns is not None:
                rate = turns.coin
                allowed = [turns.allowed(agent, t + 1) for t in range(len(members))]
                free = np.array(allowed, dtype=np.bool_).reshape(members.shape)
            same = _alike(rate) ** _fewest(free)
            if sampler is not None:
                same = coincidence(sampler.drawn[agent], rate)
                rate = mean_size(sampler.drawn[agent], rate) / max(members.shape[1], 1)
            what = f"the batch of agent {agent} (call {one.call})"
            every.append(_Coins(what, rate, same, members, free))
    return [one for one in every if 0 < one.rate < 1 and one.members.size]


def _coins_of_cohorts(run: WatchedRun, rounds: int | None) -> list[_Coins]:
    every = list[_Coins]()
    for cohort, members, drawing in drawn_cohorts(run, rounds=rounds):
        if (drawing is not None and drawing.scheme.in_epochs) or not 0 < cohort.rate < 1:
            continue
        rate, same = cohort.rate, _alike(cohort.rate) ** members.shape[1]
        if drawing is not None:
            rate, same = drawing.size / members.shape[1], coincidence(drawing, 1.0)
        every.append(_Coins(f"cohort {cohort.call}", rate, same, members, np.ones_like(members)))
    return every


def _alike(rate: float) -> float:
    """The chance that two independent coins fall alike."""
    return rate**2 + (1.0 - rate) ** 2


def _fewest(free: NDArray[np.bool_]) -> int:
    """In a round in which anybody may take part."""
    counts = free.sum(axis=1)
    return int(counts[counts > 0].min(initial=free.shape[1]))


def _enough(rate: float, holders: int) -> int:
    """Rounds in which one coin that is always alike is told, as far as draws go."""
    wanted = _TOLD / max(1.0 - _alike(rate), 1e-9) if 0 < rate < 1 else 0.0
    return math.ceil(min(wanted, _MOST_DRAWS / holders)) + 2


def _note_same(found: Finding, one: _Made, again: _Made) -> None:
    """With the same entropy everything is the same."""
    other = [name for name in one.noise if not _equal(one.noise[name], again.noise.get(name))]
    what = f"{_named(other)} is" if other else ""
    for a, b in zip(one.coins, again.coins, strict=True):
        if not what and not _equal(a.members[: len(b.members)], b.members[: len(a.members)]):
            what = f"{a.what} is"
    told = f"{what} another with the same entropy: something else decides it, too"
    found.exact(not what, told, tests=len(one.noise) + len(one.coins))


def _equal(one: NDArray[Any], other: NDArray[Any] | None) -> bool:
    return other is not None and np.array_equal(one, other)


def _named(sources: Sequence[tuple[int, int, int]]) -> str:
    round_, call, row = sources[0]
    return f"source {row} of noise call {call} in round {round_}"


def _note_other(found: Finding, one: _Made, other: _Made) -> None:
    """With other entropy everything is another."""
    told = "is the same whatever the system's entropy, so that others can draw it"
    same = [name for name in one.noise if _equal(one.noise[name], other.noise.get(name))]
    found.exact(not same, f"{_named(same)} {told}" if same else "", tests=len(one.noise))
    for a, b in zip(one.coins, other.coins, strict=True):
        T = min(len(a.members), len(b.members))
        free = a.free[:T]
        alike = (a.members[:T] == b.members[:T]) & free
        whole = (alike == free).all(axis=1)[free.any(axis=1)]
        what = f"{a.what} {told} in {whole.sum()} of {len(whole)} rounds"
        found.note(float(at_least(whole.sum(), len(whole), a.same)), what=what)
        counts = alike.sum(axis=0)
        at, p = least(at_least(counts, free.sum(axis=0), _alike(a.rate)))
        what = f"whether number {at} is in {a.what} {told} in {counts[at]} rounds"
        found.note(p, tests=len(counts), what=what)


def _note_roots(found: Finding, key: bytes) -> None:
    """A root is another for each byte of entropy, and for each time."""

    def drawn(others: Sequence[Purpose]) -> list[bytes]:
        root, at = SecretRandomness(), {"round": 1, "call": 0}
        z = root.normal(rows=[0], width=4, dtype=torch.float64, device="cpu", **at)
        streams = [root.stream(purpose, row=0, **at).bytes(32) for purpose in others]
        return [z.numpy().tobytes(), *streams]

    others = (Purpose.BATCH, Purpose.COHORT, Purpose.FIXED_COHORT)
    with _held(_Entropy(key)):
        first = drawn(others)
    same = 0
    for byte in range(_ROOT):
        with _held(_Entropy(key, [byte])):
            same += any(a == b for a, b in zip(first, drawn(others), strict=True))
    found.exact(
        not same, f"{same} of {_ROOT} bytes of the system's entropy change no root", tests=_ROOT
    )
    with _held(None):
        firsts = {drawn([])[0] for _ in range(_ROOTS)}
    same = _ROOTS - len(firsts)
    told = f"{same} of {_ROOTS:,} new roots draw the noise of another"
    found.exact(not same, told, tests=_ROOTS)


class _Noted(SecretRandomness):
    """Notes for what the places of the generator are that it is asked for."""

    def __init__(self, *, hardened: bool) -> None:
        super().__init__(hardened=hardened)
        self._purposes = set[int]()

    def counter(
        self, purpose: Purpose, *, round: int, call: int, row: int
    ) -> tuple[int, int, int, int]:
        """See `SecretRandomness.counter`."""
        at = super().counter(purpose, round=round, call=call, row=row)
        self._purposes.add(at[2] >> 32)
        return at

    def since_then(self) -> set[int]:
        """What was noted since this was asked before."""
        noted, self._purposes = self._purposes, set()
        return noted


def _note_apart(run: WatchedRun, traces: AlgorithmTrace) -> Finding:
    """Streams of noise, batches and cohorts, and their numbers, have nothing in common."""
    found, noted = Finding(), _Noted(hardened=run.randomness.hardened)
    dtype, device = run.setting.dtype, run.setting.device
    noted.normal(round=1, call=0, rows=[0], width=1, dtype=dtype, device=device)
    of_noise = noted.since_then()
    with _held(None):
        engine = bare_engine(
            run.setting, run.bound, width=_WIDTH, randomness=noted, scripts=traces.scripts
        )
        noise = _noise_of(engine, rounds=_ROUNDS)
        noted.since_then()  # a round itself draws noise and cohorts
        of = _with_records(engine, run)
        coins, of_batches = _coins_of_batches(of, _ROUNDS), noted.since_then()
        coins += _coins_of_cohorts(of, _ROUNDS)
    kinds = ("noise", of_noise), ("batches", of_batches), ("cohorts", noted.since_then())
    for (one, here), (other, there) in itertools.combinations(kinds, 2):
        what = f"{other} are drawn from streams of {one}, so that who knows one has the other"
        found.exact(not here & there, what)
    # Coins against numbers in the order of both: the least or largest, by value and by size.
    rounds = range(1, max((number for number, _, _ in noise), default=0) + 1)
    names = [
        (call, row)
        for number, call, row in noise
        if number == 1 and all(len(noise.get((t, call, row), ())) == _WIDTH for t in rounds)
    ]
    if not names:
        return found
    z = np.array([[noise[t, *name] for t in rounds] for name in names])
    for one_of in coins:
        n, q = min(one_of.members.shape[1], _WIDTH), one_of.rate
        drawn = one_of.members[: len(rounds), :n]
        for numbers, most in (
            (z, ndtri(q)),
            (-z, ndtri(q)),
            (abs(z), ndtri((1 + q) / 2)),
            (-abs(z), ndtri(q / 2)),
        ):
            common = ((numbers[:, :, :n] <= most) & drawn).sum(axis=(1, 2))

            at, p = least(binomial(common, int(drawn.sum()), q))
            source = f"source {names[at][1]} of noise call {names[at][0]}"
            what = f"the draws of {one_of.what} are numbers of {source}, {common[at]} of them"
            found.note(p, tests=len(common), what=what)
    return found
