"""Why a figure is what it is: the messages of one round that add up to mu, in words.

The rows A of the contributions and B of the noise of a round's closed view give the most powerful
test that a record is in (`privacy.view.matched_filter`): a weight for each message. A direction u
is taken in which the record moves every clipped vector by its bound, with signs c, so that

    nu^2 = c^T M c <= mu^2,  M = A_v^T (B B^T)^+ A_v

is reached; mu is the stated bound, over vectors that point anywhere.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...privacy.adversary import Sees
from ...privacy.guarantee import Guarantee, Unit
from ...privacy.view.leak import in_round
from ...privacy.view.matched_filter import matched_filter
from ...privacy.view.view import View
from ..exposure.sensitivity import JointSensitivity, Release
from ..exposure.whole_run import effective_of
from ..tracing.round_trace import RoundTrace
from ..tracing.trace import AlgorithmTrace
from .summary import rounded_up

__all__ = ["Explanation", "Part", "explain"]

_HELD = {
    Unit.RECORD: "a record",
    Unit.USER: "one record of a user",
    Unit.AGENT: "all data",
}
_MOST_MESSAGES = 4000  # of a view that is written out
_SHOWN = 12
_LEAST = 1e-6  # weight of a message that counts, next to the largest one


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """One message of the combination.

    Attributes:
        message: what was sent or kept, by whom and when.
        weight: of the message in units of its own noise; the largest one is 1 or -1.
        alone: mu of this message by itself.
    """

    message: str
    weight: float
    alone: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Explanation:
    """Why an adversary's figure is what it is; printed, it is a text.

    Attributes:
        adversary: who sees.
        victim: the agent whose record is at risk.
        mu: of the round that costs most, at the run's noise; infinite where nothing protects.
        reached: by the combination; None where there is none to show.
        parts: the combination, the largest weight first; empty likewise.
        words: the text.
    """

    adversary: str
    victim: int
    mu: float
    reached: float | None
    parts: tuple[Part, ...]
    words: str

    def __str__(self) -> str:
        """The text."""
        return self.words

    __repr__ = __str__


def explain(
    traces: AlgorithmTrace,
    stated: Guarantee,
    sensitivity: JointSensitivity,
    *,
    encrypted: bool = False,
    counted: str | None = None,
) -> Explanation:
    """Explain one adversary's figure.

    Args:
        traces: of the run, at its own noise.
        sensitivity: from which it follows.
        encrypted: the eavesdropper cannot read links and sees the released final models alone.
        counted: that the number of all records is public, where it has to be.
    """
    found = _explained(traces, stated, sensitivity, encrypted=encrypted)
    return found if counted is None else replace(found, words=f"{found.words}\n{counted}")


def _explained(
    traces: AlgorithmTrace, stated: Guarantee, sensitivity: JointSensitivity, *, encrypted: bool
) -> Explanation:
    who = stated.adversary
    if stated.worst_adversary is not None:
        who = f"{who} ({stated.worst_adversary})"
    held = _HELD[stated.unit]
    head = f"{who} and {held} of agent {sensitivity.victim}"
    if math.isinf(stated.mu_per_round) or not sensitivity.releases or not sensitivity.largest:
        seen = "mu is infinite" if math.isinf(stated.mu_per_round) else "nothing is seen, mu is 0"
        return _without_parts(stated, f"{head}: {seen}, {stated.status}: {stated.because}.")
    top = max(sensitivity.releases, key=lambda r: r.joint_sensitivity)
    head += (
        f": mu {rounded_up(stated.mu_per_round, 4)} {_when(top, whole=sensitivity.whole_run)}, "
        f"the joint sensitivity {rounded_up(stated.joint_sensitivity, 4)} / the noise multiplier; "
        f"{stated.status}: {stated.because}."
    )
    if sensitivity.whole_run or sensitivity.adversary.sees is Sees.ONE_MESSAGE:
        return _without_parts(stated, head)
    round_ = _round(traces, top.first)
    view = round_.view(effective_of(sensitivity.adversary, encrypted=encrypted))
    if view.noise.shape[0] > _MOST_MESSAGES:
        return _without_parts(
            stated, f"{head}\nIts {view.noise.shape[0]} messages are too many to weigh one by one."
        )
    reached, parts = _combination(round_, view, sensitivity.victim, number=top.first)
    return Explanation(
        adversary=stated.adversary,
        victim=sensitivity.victim,
        mu=stated.mu_per_round,
        reached=reached,
        parts=parts,
        words="\n".join((head, *_lines(parts), _end(reached, stated.mu_per_round))),
    )


def _without_parts(stated: Guarantee, words: str) -> Explanation:
    return Explanation(
        adversary=stated.adversary,
        victim=stated.victim,
        mu=stated.mu_per_round,
        reached=None,
        parts=(),
        words=words,
    )


def _when(release: Release, *, whole: bool) -> str:
    if whole and release.sampling_rate < 1:  # turns that are counted one by one
        turns = "the one turn" if release.rounds == 1 else f"each of {release.rounds} turns"
        return f"in {turns} of the record"
    if whole:
        return "for all rounds together"
    if release.first == 0:
        return "at the start"
    if release.rounds == 1:
        return f"in round {release.first}"
    last = release.first + release.rounds - 1
    return f"in each of the rounds {release.first} to {last}"


def _round(traces: AlgorithmTrace, number: int) -> RoundTrace:
    """The trace of a round; 0 is the start."""
    if number == 0:
        return traces.start
    last = 0
    for one, count in traces.rounds:
        last += count
        if number <= last:
            return one
    return traces.rounds[-1][0]


def _combination(
    round_: RoundTrace, view: View, victim: int, *, number: int
) -> tuple[float, tuple[Part, ...]]:
    """The mu that is reached by one direction for the batch that costs most, and its messages."""
    batches = [(columns, bounds) for columns, bounds, _ in round_.of_victim(victim).values()]
    columns, bounds = max(batches, key=lambda batch: view.mu(batch[0], bounds=batch[1]))
    test = matched_filter(view, columns)
    b = np.asarray(bounds)
    M = test.information * np.outer(b, b)
    signs = _signs(M, round_.vectors[list(columns)])
    weights = test.weights @ (signs * b)
    moved = np.asarray(view.contributions[:, list(columns)] @ (signs * b))
    noise = np.sqrt(np.asarray((view.noise * view.noise).sum(axis=1)).ravel())
    scaled = weights * noise
    largest = float(np.abs(scaled).max(initial=0.0))
    order = np.argsort(-np.abs(scaled), kind="stable")
    parts = tuple(
        Part(
            message=in_round(view.messages[int(i)], number),
            weight=float(scaled[i] / largest),
            alone=abs(float(moved[i] / noise[i])),
        )
        for i in order
        if largest and abs(scaled[i]) > _LEAST * largest
    )
    return math.sqrt(max(0.0, float(signs @ M @ signs))), parts


def _signs(M: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    """(columns,) +1 or -1 so that c^T M c is large; 0 for the cheaper parts of one vector."""
    kept = np.zeros(len(M))
    for vector in np.unique(vectors):
        parts = np.flatnonzero(vectors == vector)
        kept[parts[np.argmax(np.diag(M)[parts])]] = 1.0
    starts = [kept, kept * np.where(np.linalg.eigh(M)[1][:, -1] < 0, -1.0, 1.0)]
    found = []
    for start in starts:
        signs = start.copy()
        changed = True
        while changed:
            changed = False
            for i in np.flatnonzero(kept):
                pull = float(M[i] @ signs) - M[i, i] * signs[i]
                if pull * signs[i] < -1e-12 * M[i, i]:
                    signs[i], changed = -signs[i], True
        found.append(signs)
    return max(found, key=lambda c: float(c @ M @ c))


def _lines(parts: Sequence[Part]) -> list[str]:
    rows = [f"  {p.weight:+7.3f}  {p.alone:9.4g}  {p.message}" for p in parts[:_SHOWN]]
    more = len(parts) - _SHOWN
    tail = [f"  and {more} more of smaller weight"] if more > 0 else []
    return ["   weight   mu alone  message", *rows, *tail]


def _end(reached: float, mu: float) -> str:
    told = (
        "Added up with these weights, each in units of its own noise, they tell a run with the "
        "record from one without it as well as two normals of deviation 1 at distance "
        f"{rounded_up(reached, 4)}"
    )
    if reached >= mu * (1 - 1e-6):
        return f"{told}, which is mu: no other combination does better."
    return (
        f"{told}; mu is an upper bound, over gradients that point anywhere and over every "
        "victim's worst round."
    )
