"""How often an audit is wrong, and how soon it is right: simulated scores of Gaussian mechanisms.

    python benchmarks/audit_looks.py [--audits 2000] [--canaries 1000]

Each adversary's scores are those of the best test of a mechanism whose noise is `scale` times what
is claimed (mu 1 claimed); the others are sound and as tight as the proof. "before" is the rule
of two fixed looks, one at 95 % for each adversary and one at 99.9 %, which cleared nothing.
"""

from __future__ import annotations

import argparse
from collections import Counter

import numpy as np

from overhear.attacks.audit.audit import audit
from overhear.attacks.audit.audited import AGAIN, Proven
from overhear.attacks.audit.game import Played
from overhear.attacks.bounds.lower_bounds import Guesses, total_error
from overhear.attacks.bounds.mechanism import Claim, epsilon
from overhear.privacy.guarantee import Statement, Status

DELTA = 1e-5


class Game:
    """What `audit` asks of a game, with scores that are simulated."""

    linked = None

    def __init__(self, mus: dict[str, float], canaries: int, calls: list[int]) -> None:
        self.adversaries, self.canaries, self.calls = mus, canaries, calls

    def narrowed(self, name: str, *, linked: str | None) -> Game:
        """See `overhear.attacks.audit.game.Game`."""
        del linked
        return Game({name: self.adversaries[name]}, self.canaries, self.calls)

    def play(self, *, generator: np.random.Generator, progress: object = None) -> Played:
        """See `overhear.attacks.audit.game.Game`."""
        del progress
        self.calls.append(self.canaries)
        found = {n: simulated(mu, self.canaries, generator) for n, mu in self.adversaries.items()}
        return Played(found, [])


def simulated(mu: float, canaries: int, generator: np.random.Generator) -> Guesses:
    """Scores that assume mu 1 of a view whose mu is another."""
    included = generator.integers(2, size=canaries).astype(bool)
    seen = generator.normal(size=canaries) / mu + np.where(included, 0.5, -0.5)
    return Guesses(scores=seen, included=included)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--audits", type=int, default=2000)
    parser.add_argument("--canaries", type=int, default=1000)
    asked = parser.parse_args()
    print(
        "| noise | adversaries | suspicious first | cleared | suspicious | contradicted |", end=""
    )
    print(" canaries | before: suspicious | contradicted |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for scale, adversaries in (
        (1.0, 1),
        (1.0, 3),
        (0.9, 1),
        (0.9, 3),
        (0.8, 3),
        (0.7, 3),
        (0.5, 3),
    ):
        _row(scale, adversaries, audits=asked.audits, canaries=asked.canaries)


def _row(scale: float, adversaries: int, *, audits: int, canaries: int) -> None:
    claim = Claim(rounds={(1.0, 1.0): 1})
    proven = [
        Proven(
            name=str(k),
            epsilon=epsilon(claim, DELTA),
            statement=Statement(delta=DELTA),
            status=Status.PROVEN,
            claim=claim,
        )
        for k in range(adversaries)
    ]
    mus = {str(k): 1.0 / scale if k == 0 else 1.0 for k in range(adversaries)}
    ends, played, before, first = Counter[str](), 0, Counter[str](), 0
    for seed in range(audits):
        calls = list[int]()
        of = Game(mus, canaries, calls)
        found = audit(of, proven, seed=seed)  # type: ignore[arg-type] # stands in
        worst = {str(one.verdict) for one in found}
        first += any(v in worst for v in ("cleared", "suspicious", "contradicted"))
        ends[next((v for v in ("contradicted", "suspicious", "cleared") if v in worst), "-")] += 1
        played += sum(calls)
        before[_before(mus, canaries, claim, proven[0].epsilon, seed)] += 1
    share = {
        v: f"{100 * ends[v] / audits:.2f} %" for v in ("cleared", "suspicious", "contradicted")
    }
    old = {v: f"{100 * before[v] / audits:.2f} %" for v in ("suspicious", "contradicted")}
    print(
        f"| {scale:g} | {adversaries} | {100 * first / audits:.2f} % | {share['cleared']} | "
        f"{share['suspicious']} | {share['contradicted']} | {played / audits:.0f} | "
        f"{old['suspicious']} | {old['contradicted']} |",
        flush=True,
    )


def _before(mus: dict[str, float], canaries: int, claim: Claim, proven: float, seed: int) -> str:
    """The verdict of the rule of two fixed looks."""
    generator = np.random.default_rng(seed)
    found = "-"
    for mu in mus.values():
        looks = ((canaries, 0.95), (AGAIN * canaries, 0.999))
        over = [
            total_error(
                simulated(mu, many, generator), claim=claim, delta=DELTA, confidence=confidence
            ).epsilon
            > proven
            for many, confidence in looks
        ]
        if over[0]:
            found = "contradicted" if over[1] or found == "contradicted" else "suspicious"
    return found


if __name__ == "__main__":
    main()
