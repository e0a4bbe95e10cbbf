"""What it costs that every operation of a round is compared with the script of its plan.

    OMP_NUM_THREADS=1 python benchmarks/rounds.py --only script

The functions that note and compare are timed where they are called, in the rounds of an engine
that follows a plan; "share" is their part of the CPU time of the whole round. "Planning" is the
trace that makes the script, beside the same trace without its two repetitions.

A second table compares rounds of a step that adds noise last, whose model is looked at in every
round, with the same rounds without that look. Algorithms of the registry are not looked at.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest.mock import patch

from overhear.training.algorithms import ALGORITHMS, bind
from overhear.training.algorithms.algorithm import Bound
from overhear.training.engine.engine import Engine
from overhear.training.engine.setting import Setting
from overhear.training.engine.tensor_round import PublicValues
from overhear.training.step import handles, script
from overhear.training.step import round as facade
from overhear.training.tracing import trace as tracing
from overhear.training.tracing.trace import trace

if TYPE_CHECKING:
    from overhear.training.step.handles import Agents
    from overhear.training.step.round import Round


class Spent(NamedTuple):
    """Medians: milliseconds of a round, microseconds of its script, and its operations."""

    round_ms: float
    script_us: float
    operations: int


class Stopwatch:
    """Adds up the time within functions, those that call each other once."""

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self.seconds, self._depth, self._now = 0.0, 0, now

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, timed."""

        def timed(*args: Any, **kwargs: Any) -> Any:
            self._depth += 1
            start = self._now()
            try:
                return function(*args, **kwargs)
            finally:
                self._depth -= 1
                if not self._depth:
                    self.seconds += self._now() - start

        return timed


@contextmanager
def timed(watch: Stopwatch) -> Iterator[None]:
    """Time what a script is noted and compared with."""
    places = [
        (facade, "argument"),
        (facade, "purified"),
        (handles, "argument"),
        (script.Script, "note"),
        (script.Script, "finished"),
    ]
    with ExitStack() as stack:
        for owner, name in places:
            stack.enter_context(patch.object(owner, name, watch.around(getattr(owner, name))))
        yield


def spent(setting: Setting, bound: Bound, *, rounds: int) -> Spent:
    """Run rounds that follow a plan, and time them and their scripts."""
    planned = trace(
        bound.init, bound.step, graph=setting.graph, rounds=rounds + 1, noise_multiplier=None
    ).scripts
    engine, watch = Engine(setting, bound, scripts=planned), Stopwatch()
    engine.start()
    engine.advance()
    whole, noted = list[float](), list[float]()
    with timed(watch):
        for _ in range(rounds):
            watch.seconds, start = 0.0, time.process_time()
            engine.advance()
            whole.append(time.process_time() - start)
            noted.append(watch.seconds)
    operations = len(planned.of(1, None))
    return Spent(1e3 * statistics.median(whole), 1e6 * statistics.median(noted), operations)


def planning(bound: Bound, setting: Setting, *, rounds: int) -> tuple[float, float]:
    """CPU milliseconds of the trace, and without its repetitions."""
    found = []
    for repeats in (tracing.check_repeats, lambda *_, **__: None):
        with patch.object(tracing, "check_repeats", repeats):
            start = time.process_time()
            trace(bound.init, bound.step, graph=setting.graph, rounds=rounds, noise_multiplier=None)
            found.append(1e3 * (time.process_time() - start))
    return found[0], found[1]


def table(setting_of: Callable[[str], Setting], *, quick: bool) -> None:
    """Print the table for some algorithms on a LeNet."""
    rounds = 5 if quick else 15
    print(f"\n| LeNet, ring of 10, 32 examples, {rounds} rounds | operations | script us |", end="")
    print(" us an operation | round ms | share | planning ms | without repetitions |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    setting = setting_of("lenet")
    for name in ("dp-dpsgd", "dpdl", "dyn-d2p", "muffliato", "decor"):
        algorithm = ALGORITHMS[name]
        bound = bind(
            algorithm,
            algorithm.settings(),
            learning_rate=0.05,
            clip_norm=0.5,
            noise_std=0.5,
            batch_size=32.0,
            graph=setting.graph,
            rounds=rounds + 1,
        )
        c = spent(setting, bound, rounds=rounds)
        traced, once = planning(bound, setting, rounds=rounds + 1)
        print(
            f"| {name} | {c.operations} | {c.script_us:.0f} | {c.script_us / c.operations:.1f} | "
            f"{c.round_ms:.0f} | {c.script_us / c.round_ms / 1e3:.2%} | "
            f"{traced:.0f} | {once:.0f} |",
            flush=True,
        )
    floor_table(setting, rounds=rounds)


class Models(NamedTuple):
    """The state of a step that adds noise last."""

    x: Agents


def begin(round: Round) -> Models:
    """The public model."""
    return Models(round.initial())


def noise_last(state: Models, round: Round) -> Models:
    """Local SGD, and noise on the model."""
    sums = round.clipped_sums(state.x, batch=round.draw(), clip_norm=0.5)
    local = state.x - 1e-2 * sums
    return Models(round.mix(local + round.noise(local, std=1e-2), kind="model"))


def floor_table(setting: Setting, *, rounds: int) -> None:
    """Print what it costs to look at the model that late noise is added to."""
    engine, watch = Engine(setting, Bound(begin, noise_last)), Stopwatch()
    whole, looked = list[float](), list[float]()
    note = watch.around(PublicValues.note)
    with patch.object(PublicValues, "note", note):
        for _ in range(rounds + 1):
            watch.seconds, start = 0.0, time.process_time()
            engine.advance()
            whole.append(1e3 * (time.process_time() - start))
            looked.append(1e3 * watch.seconds)
    round_ms, floor_ms = statistics.median(whole[1:]), statistics.median(looked[1:])
    print("\n| noise added last | round ms | floor ms | without it | ratio |")
    print("|---|---:|---:|---:|---:|")
    without = round_ms - floor_ms
    print(f"| LeNet | {round_ms:.1f} | {floor_ms:.3f} | {without:.1f} | {round_ms / without:.4f} |")
