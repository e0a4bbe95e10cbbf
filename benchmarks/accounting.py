"""Noise multipliers: our answer and time beside dp-accounting's and opacus', in one run.

    python benchmarks/accounting.py [--quick] [--limit SECONDS]

For each question the least noise multiplier by our `pld`, by dp-accounting's PLD through its own
`calibrate_dp_mechanism` with the default bracket, by dp-accounting's RDP, and by opacus' rdp, prv
and gdp. Times are process CPU seconds on one thread, imports done before. A peer that is still busy
after the limit is stopped and shown as such; one that fails shows its error. Below, what its
PLD (dp-accounting's) says of epsilon on three grids, where the truth is one number.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import signal
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from types import FrameType

import dp_accounting as dp
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from opacus.accountants.utils import get_noise_multiplier

from overhear.privacy import epsilon, noise_multiplier
from overhear.privacy.accounting.accountant import composed_epsilon
from overhear.privacy.accounting.limits import max_rounds, max_sampling_rate, scale_for

CASES = (  # epsilon, delta, rounds, sampling rate
    (1.0, 1e-5, 1, 1.0),
    (8.0, 1e-5, 14062, 0.0042666667),
    (1.0, 1e-5, 1000, 0.01),
    (5.0, 1e-3, 3000, 0.032),
    (2.0, 1e-5, 100, 0.5),
    (0.5, 1e-5, 1, 0.01),
    (0.05, 1e-5, 1000, 0.01),
    (1.0, 1e-5, 14062, 0.0042666667),
    (20.0, 1e-5, 1000, 0.01),
    (0.05, 1e-6, 1_000_000, 1e-4),
)
QUICK = CASES[:6]
GRIDS = (1e-4, 1e-5, 2.5e-6)
CORNERS = (  # noise multiplier, delta, rounds, sampling rate
    (6.965, 1e-6, 1_000_000, 1e-4),
    (1.0, 1e-10, 1_000_000, 1e-4),
    (30.0, 1e-10, 1_000_000, 1e-2),
)


class TooLongError(Exception):
    """A peer ran past the limit."""


@contextlib.contextmanager
def limit(seconds: int) -> Iterator[None]:
    def stop(_: int, __: FrameType | None) -> None:
        raise TooLongError

    signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)


def timed(answer: Callable[[], float], seconds: int) -> tuple[str, float | None]:
    """What a peer says, and the CPU seconds that it took."""
    start = time.process_time()
    try:
        with limit(seconds), warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            said = answer()
    except TooLongError:
        return f"> {seconds} s", None
    except Exception as error:  # noqa: BLE001 - which error a peer fails with is the result
        return type(error).__name__, None
    took = time.process_time() - start
    return f"{said:.5f} ({took:.2f} s)", took


def by_calibration(kind: str, eps: float, delta: float, rounds: int, rate: float) -> float:
    make = PLDAccountant if kind == "pld" else RdpAccountant

    def event(multiplier: float) -> dp.DpEvent:
        sampled = dp.PoissonSampledDpEvent(rate, dp.GaussianDpEvent(multiplier))
        return dp.SelfComposedDpEvent(sampled, rounds)

    return float(dp.calibrate_dp_mechanism(make, event, eps, delta))


def by_opacus(kind: str, eps: float, delta: float, rounds: int, rate: float) -> float:
    return float(
        get_noise_multiplier(
            target_epsilon=eps, target_delta=delta, sample_rate=rate, steps=rounds, accountant=kind
        )
    )


def questions(cases: tuple[tuple[float, float, int, float], ...], seconds: int) -> None:
    names = ["ours", "dp-acc. PLD", "dp-acc. RDP", "opacus rdp", "opacus prv", "opacus gdp"]
    print("| epsilon | delta | rounds | rate | " + " | ".join(names) + " | PLD / ours |")
    print("|" + " --- |" * (len(names) + 5))
    ratios = []
    for eps, delta, rounds, rate in cases:
        case = {"epsilon": eps, "delta": delta, "rounds": rounds, "sampling_rate": rate}
        noise_multiplier(**case)  # once, so that lazy imports are not counted
        answers = [
            timed(lambda case=case: noise_multiplier(**case), seconds),
            *(
                timed(lambda k=k, c=(eps, delta, rounds, rate): by_calibration(k, *c), seconds)
                for k in ("pld", "rdp")
            ),
            *(
                timed(lambda k=k, c=(eps, delta, rounds, rate): by_opacus(k, *c), seconds)
                for k in ("rdp", "prv", "gdp")
            ),
        ]
        ours, pld = answers[0][1], answers[1][1]
        ratio = "" if not ours or pld is None else f"{pld / ours:.0f}"
        if ours and pld is not None:
            ratios.append(pld / ours)
        cells = [
            f"{eps:g}",
            f"{delta:g}",
            str(rounds),
            f"{rate:g}",
            *(a for a, _ in answers),
            ratio,
        ]
        print("| " + " | ".join(cells) + " |", flush=True)
    print(f"\nMedian ratio where both answer: {statistics.median(ratios):.0f} (n={len(ratios)})")


def corners(seconds: int) -> None:
    print("\nEpsilon of the same rounds by dp-accounting's PLD on three grids, and by ours:\n")
    print(
        "| multiplier | delta | rounds | rate | "
        + " | ".join(f"{g:g}" for g in GRIDS)
        + " | ours |"
    )
    print("|" + " --- |" * (len(GRIDS) + 5))
    for multiplier, delta, rounds, rate in CORNERS:

        def on(grid: float, m: float = multiplier, d: float = delta) -> float:
            accountant = PLDAccountant(
                dp.NeighboringRelation.ADD_OR_REMOVE_ONE, value_discretization_interval=grid
            )
            event = dp.PoissonSampledDpEvent(rate, dp.GaussianDpEvent(m))  # noqa: B023 - called at once
            accountant.compose(event, rounds)  # noqa: B023 - called at once
            return float(accountant.get_epsilon(d))

        case = {"noise_multiplier": multiplier, "delta": delta}
        ours = timed(
            lambda c=case, t=rounds, q=rate: epsilon(**c, rounds=t, sampling_rate=q), seconds
        )[0]
        peers = [timed(lambda g=grid, f=on: f(g), seconds)[0] for grid in GRIDS]
        cells = [f"{multiplier:g}", f"{delta:g}", str(rounds), f"{rate:g}", *peers, ours]
        print("| " + " | ".join(cells) + " |", flush=True)


def limits() -> None:
    """What a target allows, and thousands of different rounds: our answers and times alone."""
    decaying = [(0.25 ** (-k / 4000), 0.01) for k in range(4000)]
    asked: dict[str, Callable[[], float]] = {
        "most rounds: multiplier 7, epsilon .05, delta 1e-6, rate 1e-4": lambda: max_rounds(
            noise_multiplier=7.0, epsilon=0.05, delta=1e-6, sampling_rate=1e-4
        ),
        "largest rate: multiplier 1, epsilon 2, delta 1e-5, 1,000 rounds": lambda: (
            max_sampling_rate(noise_multiplier=1.0, epsilon=2.0, delta=1e-5, rounds=1000)
        ),
        "epsilon of 4,000 different rounds, rate .01, delta 1e-5": lambda: composed_epsilon(
            decaying, delta=1e-5
        ),
        "scale of the same for epsilon 2": lambda: scale_for(decaying, epsilon=2.0, delta=1e-5),
    }
    print("\n| question | ours |\n| --- | --- |")
    for name, answer in asked.items():
        print(f"| {name} | {timed(answer, 600)[0]} |", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="the cases that take seconds")
    parser.add_argument("--limit", type=int, default=200, help="seconds for one answer of a peer")
    asked = parser.parse_args()
    logging.getLogger("absl").setLevel(logging.ERROR)  # orders that RDP leaves out
    questions(QUICK if asked.quick else CASES, asked.limit)
    corners(asked.limit)
    limits()
