"""Conformance: whether what was kept of a recorded system is what its log says.

    messages    value - known - scale (clipped gradients + noise) is 0, where the noise is known
    residuals   what is left of a release is N(0, B B^T): by row, in pairs, over rounds, by
                coordinate
    sums        what is left has no part along the sums, nor along what clipping took off
    rows        what each record added is what the oracle makes of it alone
    sampler     kept batches are Poisson at their rates
    points      gradients were taken where everything is released or public
    knowledge   noise with a name is what those who know it make of their seed again

Gradients are those of an oracle that the auditor gives. A check that had too little to say was not
run, and says why. What passes says nothing of rounds that were not kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ....attacks.watching.result import Check, Verdict
from ....privacy.releases.log import party_name, read_log
from .chance_checks import check_residuals, check_sampler, check_sums
from .exact_checks import Released, check_knowledge, check_messages, check_points
from .kept_rounds import KeptRounds
from .left_over import LeftOver, told
from .oracle import Gradients, Oracle
from .outcome import Conformance
from .rows import check_rows, is_random


def conformance(
    path: str | Path | Sequence[Path],
    *,
    gradients: Gradients,
    rounds: Sequence[int] | int | None = None,
    seed: int | None = None,
    points: Callable[[int, int, Sequence[Released]], Any] | None = None,
    public: Sequence[Any] = (),
    sources: Callable[[str, int], Any] | None = None,
    records: Mapping[int, int] | None = None,
    absent: Mapping[int, Sequence[int]] | None = None,
) -> Conformance:
    """Hold the kept transcripts of a log, or of a folder of logs, against their lines.

    Args:
        path: a folder of logs, several, or one, which alone leaves the status declared.
        gradients: (point (D',), positions (B,)) -> (B, D), or with `agent` besides, or one such
            function by agent; unclipped. `oracle.per_example` makes one of a model and its loss.
        rounds: which of the kept rounds; a number draws as many by chance, None takes all.
        seed: of the drawing; the system's entropy when None.
        points: (round, agent, released) -> the point, or several of which it must be one, where it
            is a function of what was released.
        public: vectors that everybody knows, such as the initial model.
        sources: (id, agent) -> (D,) standard normal numbers of noise with a name.
        records: by agent how many it holds, where its batches were drawn elsewhere.
        absent: by agent the rounds in which it released nothing, as is publicly known.

    Returns:
        The outcome of each check, what they come to, and what stays assumed.

    Raises:
        FileNotFoundError: a log, or a transcript that it names, is missing.
        ValueError: a log or a transcript that is not as it was written, gradients of another shape.
    """
    of = [Path(path)] if isinstance(path, str | Path) else [Path(one) for one in path]
    log = read_log(
        of[0] if len(of) == 1 else of, absent=absent, partial=len(of) == 1 and of[0].is_file()
    )
    kept = KeptRounds(log, rounds=rounds, seed=seed)
    oracle = Oracle(gradients)
    left = LeftOver(kept, oracle)
    rows = check_rows(left, oracle)
    outcomes: list[Check] = [
        *_of_gradients(left, rows),
        check_sampler(kept, dict(records or {})),
        check_points(kept, points=points, public=public),
        check_knowledge(kept, left, sources),
    ]
    if kept.unkept or left.unknown:
        first = left.unknown[:1] or [f"{kept.unkept} were not kept"]
        count = kept.unkept + len(left.unknown)
        outcomes.append(
            Check.not_run(
                "every release",
                f"{count} releases of these rounds could not be taken apart, first: {first[0]}",
            )
        )
    if log.header.agent not in (None, 0) or (log.header.agent == 0 and log.header.agents > 1):
        who = party_name(log.header.agent, log.header)
        why = f"only the log of {who} was given; what others release is in theirs"
        outcomes.append(Check.not_run("every log", why))
    return Conformance(
        log=log,
        rounds=kept.numbers,
        outcomes=tuple(outcomes),
        assumed=tuple(_assumed(kept, outcomes)),
    )


def _of_gradients(left: LeftOver, rows: Check) -> list[Check]:
    """The checks that compare with gradients; none where these are others each time."""
    if is_random(rows):
        why = rows.words.removesuffix(".")
        return [*(Check.not_run(name, why) for name in ("messages", "residuals", "sums")), rows]
    return [check_messages(left), check_residuals(left), check_sums(left), rows]


def _assumed(kept: KeptRounds, outcomes: Sequence[Check]) -> list[str]:
    """What no check here shows, in sentences."""
    every = sorted({played.round for played in kept.log.rounds})
    others = len(every) - len(kept.numbers)
    found = [
        "A1: everything that depends on records and leaves is a line; what no line announces is "
        "seen by no check.",
        "A5: seeds and generators are secret, and no one else can make the noise again.",
        "A6: a record has one owner, and what a data set gives at its position, or the oracle, is "
        "made of it alone.",
        "When messages leave, and how long they take, tells nothing of records.",
    ]
    if others:
        word = "round" if others == 1 else "rounds"
        found.append(
            f"{others} {word} beside {told(kept.numbers)} went as their lines say; nothing of them "
            "was looked at."
        )
    found += [
        f"What {one.name} would show, which was not run: {one.words}"
        for one in outcomes
        if one.verdict is Verdict.NOT_RUN and (one.applies or one.name == "points")
    ]
    return found
