"""What it costs that the noise of every round is tested while a run trains.

    OMP_NUM_THREADS=1 python benchmarks/rounds.py --only noise-tests

The tests are timed where they are called, in the rounds of one engine, in CPU time with one
thread. "Tests" and "round" are medians; "share" is the mean over rounds of the part that the tests
take, less a tenth of the rounds at either end. Small operations have a closer look in every fourth
round, which "one in ten above" shows.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable
from contextlib import ExitStack
from typing import NamedTuple
from unittest.mock import patch

from script_cost import Stopwatch

from overhear.training.algorithms import ALGORITHMS, Form, bind
from overhear.training.engine.engine import Engine
from overhear.training.engine.setting import Setting
from overhear.training.models.parameters import sizes_of
from overhear.training.noise_tests.noise_tests import NoiseTests, RoundNoise

_SETTLED = 9  # rounds before the first that counts: small operations are looked at closer at first


class Spent(NamedTuple):
    """Milliseconds of a round and of its tests, and their mean share."""

    round_ms: float
    tests_ms: float
    most_ms: float
    share: float


def spent(setting: Setting, *, rounds: int) -> Spent:
    """Run rounds of DPDL as repaired whose noise is tested, and time them and their tests."""
    algorithm = ALGORITHMS["dpdl"]
    bound = bind(
        algorithm,
        algorithm.settings(),
        form=Form.REPAIRED,
        learning_rate=0.05,
        clip_norm=0.5,
        noise_std=0.5,
        batch_size=float(len(setting.shards[0].targets)),
        graph=setting.graph,
        rounds=rounds + _SETTLED,
    )
    sizes, watch = sizes_of(setting.model), Stopwatch(time.process_time)
    engine = Engine(setting, bound, noise_tests=NoiseTests(parts={sum(sizes): sizes}))
    engine.start()
    for _ in range(_SETTLED):
        engine.advance()
    whole, tested = list[float](), list[float]()
    with ExitStack() as stack:
        for name in ("note", "settle"):
            timed = watch.around(getattr(RoundNoise, name))
            stack.enter_context(patch.object(RoundNoise, name, timed))
        for _ in range(rounds):
            watch.seconds, start = 0.0, time.process_time()
            engine.advance()
            whole.append(1e3 * (time.process_time() - start))
            tested.append(1e3 * watch.seconds)
    shares = sorted(a / b for a, b in zip(tested, whole, strict=True))
    return Spent(
        statistics.median(whole),
        statistics.median(tested),
        sorted(tested)[int(0.9 * len(tested))],
        statistics.mean(shares[len(shares) // 10 : len(shares) - len(shares) // 10]),
    )


def table(cases: Iterable[tuple[str, Setting, int]]) -> None:
    """Print the table of some cases: what they are called, what is run, and how many rounds."""
    print("\n| DPDL, noise tested | round ms | tests ms | one in ten above ms | share |")
    print("|---|---:|---:|---:|---:|")
    for name, setting, rounds in cases:
        c = spent(setting, rounds=rounds)
        print(
            f"| {name} | {c.round_ms:.1f} | {c.tests_ms:.2f} | {c.most_ms:.2f} | {c.share:.1%} |",
            flush=True,
        )
