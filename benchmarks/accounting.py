"""Noise multipliers: our answer and time beside dp-accounting's and opacus', in one run.

    python benchmarks/accounting.py [--quick] [--limit SECONDS]
    python benchmarks/accounting.py --second-opinion [--settings N] [--seed SEED]

For each question the least noise multiplier by our `pld`, by dp-accounting's PLD through its own
`calibrate_dp_mechanism` with the default bracket, by dp-accounting's RDP, and by opacus' rdp, prv
and gdp. Times are process CPU seconds on one thread, imports done before. A peer that is still busy
after the limit is stopped and shown as such; one that fails shows its error. Below, what its
PLD (dp-accounting's) says of epsilon on three grids, where the truth is one number.

With --second-opinion: random settings, extremes among them, and for each whether our epsilon lies
between dp-accounting's optimistic estimate and its pessimistic one times 1.001. Each setting that
does not is printed, with delta at our epsilon by a third method where there is one (see `third`).
About half a second for each setting.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import math
import random
import re
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

from overhear.privacy import SecondOpinion, epsilon, noise_multiplier, second_opinion
from overhear.privacy.accounting.accountant import composed_epsilon
from overhear.privacy.accounting.limits import max_rounds, max_sampling_rate, scale_for
from overhear.privacy.reference.distributions import Unanswered
from overhear.privacy.reference.second_opinion import epsilon_estimate

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


Rounds = dict[tuple[float, float], int]


def setting(draw: random.Random) -> tuple[Rounds, float, str]:
    """Rounds, delta and adjacency; every third has rounds that differ."""

    def log_uniform(low: float, high: float) -> float:
        return math.exp(draw.uniform(math.log(low), math.log(high)))

    kinds = draw.choice((1, 1, draw.randint(2, 4)))
    most = 1e5 / kinds
    rounds: Rounds = {}
    for _ in range(kinds):
        rate = 1.0 if draw.random() < 0.1 else log_uniform(1e-5, 1.0)
        rounds[log_uniform(0.3, 100.0), rate] = int(log_uniform(1.0, most + 1.0))
    adjacency = draw.choice(("add-or-remove-one", "replace-one"))
    return rounds, log_uniform(1e-12, 1e-2), adjacency


def third(rounds: Rounds, adjacency: str, at: float) -> float | None:
    """Delta at epsilon by mpmath, of one round that adds or removes: 50 digits; else None."""
    if sum(rounds.values()) > 1 or adjacency != "add-or-remove-one":
        return None
    import mpmath as mp

    mp.mp.dps = 50
    ((multiplier, rate),) = rounds
    d, q, e = 1 / mp.mpf(multiplier), mp.mpf(rate), mp.e ** mp.mpf(at)
    z = (mp.log((e - (1 - q)) / q) + d * d / 2) / d  # where the loss of removing is epsilon
    above, moved = mp.erfc(z / mp.sqrt(2)) / 2, mp.erfc((z - d) / mp.sqrt(2)) / 2
    return float((1 - q) * above + q * moved - e * above)


def opinions(settings: int, seed: int) -> None:
    draw = random.Random(seed)
    begun = time.process_time()
    answered: list[tuple[SecondOpinion, tuple[Rounds, float, str]]] = []
    refused: dict[str, int] = {}
    slowest = 0.0
    for _ in range(settings):
        rounds, delta, adjacency = case = setting(draw)
        ours = composed_epsilon(rounds, delta=delta, adjacency=adjacency)
        start = time.process_time()
        found = second_opinion(rounds, ours=ours, delta=delta, adjacency=adjacency)
        slowest = max(slowest, time.process_time() - start)
        if found.because:
            reason = re.sub(r"[-+.\d]+(e[-+]?\d+)?", "#", found.because)
            refused[reason] = refused.get(reason, 0) + 1
        else:
            answered.append((found, case))
    below = [(f, c) for f, c in answered if f.contradicts]
    above = [(f, c) for f, c in answered if f.pessimistic and f.ours > 1.001 * f.pessimistic]
    ratios = [f.ratio for f, _ in answered if f.ratio is not None and math.isfinite(f.ratio)]
    tight = [f for f, _ in answered if f.optimistic and f.optimistic > 0.9 * f.ours]
    print(f"{settings} settings, seed {seed}, {time.process_time() - begun:.0f} s of CPU; ", end="")
    print(f"the slowest second opinion {slowest:.1f} s")
    print(f"answered {len(answered)}, of which optimistic > 0.9 ours: {len(tight)}")
    for reason, count in sorted(refused.items(), key=lambda of: -of[1]):
        print(f"  refused {count}: {reason}")
    print(f"below its optimistic estimate: {len(below)}")
    print(f"above 1.001 of its pessimistic estimate: {len(above)}")
    print(f"ours / pessimistic: {min(ratios):.6f} to {max(ratios):.6f}; ", end="")
    print(f"median {statistics.median(ratios):.6f}")
    loose = [(f, c) for f, c in answered if f.ratio is not None and f.ratio < 0.999]
    print(f"below 0.999 of its pessimistic estimate, on its coarse grid: {len(loose)}; on a finer:")
    for found, (rounds, delta, adjacency) in loose:
        with contextlib.suppress(Unanswered):
            finer = epsilon_estimate(
                rounds, delta=delta, adjacency=adjacency, near=0.02 * found.ours
            )
            ratio = found.ours / finer.figure
            print(f"  {rounds} delta {delta:.3g} {adjacency}: {found.ratio:.6f}, then {ratio:.6f}")
    for found, (rounds, delta, adjacency) in below + above:
        exact = third(rounds, adjacency, found.ours)
        told = "" if exact is None else f", delta there / delta {exact / delta:.6f} by mpmath"
        print(f"  {rounds} delta {delta:.3g} {adjacency}: ours {found.ours:.8g}, ", end="")
        print(f"{found.optimistic:.8g} to {found.pessimistic:.8g}{told}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="the cases that take seconds")
    parser.add_argument("--limit", type=int, default=200, help="seconds for one answer of a peer")
    parser.add_argument("--second-opinion", action="store_true", help="random settings instead")
    parser.add_argument("--settings", type=int, default=400, help="how many of them")
    parser.add_argument("--seed", type=int, default=0, help="of the settings")
    asked = parser.parse_args()
    if asked.second_opinion:
        opinions(asked.settings, asked.seed)
        raise SystemExit
    logging.getLogger("absl").setLevel(logging.ERROR)  # orders that RDP leaves out
    questions(QUICK if asked.quick else CASES, asked.limit)
    corners(asked.limit)
    limits()
