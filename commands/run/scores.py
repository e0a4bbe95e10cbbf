"""The option `--scores` of `overhear audit`: scores from any training, held against a claim."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..terminal.terminal import make_console, make_table, print_json, say

if TYPE_CHECKING:
    from ...attacks.foreign.claimed import Claimed
    from ...attacks.foreign.scores_audit import ScoresAudit

__all__ = ["ScoresWanted", "run_scores"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ScoresWanted:
    """What is asked for beside the file.

    Attributes:
        claim: texts of KEY=VALUE,...
        ledger: a log of releases, or a folder of one system's.
        confidence: of the bound.
        ratios: whether scores are log-likelihood ratios.
    """

    claim: list[str] | None
    ledger: Path | None
    confidence: float | None
    ratios: bool

    def check_unused(self) -> None:
        """Refuse what belongs to --scores alone."""
        from ...privacy.errors import InputError

        given = {"--claim": self.claim, "--ledger": self.ledger, "--ratios": self.ratios}
        given |= {"--confidence": self.confidence is not None}
        if stray := [name for name, on in given.items() if on]:
            raise InputError(f"{stray[0]} belongs to --scores; add it, or leave this out")


def run_scores(path: Path, wanted: ScoresWanted, *, others: Sequence[str], json: bool) -> None:
    """Audit a file of scores, and show what was found.

    Args:
        path: of the scores.
        wanted: claim and confidence.
        others: what else was given that does not go with scores.
        json: whether to print the object instead.

    Raises:
        ContradictedProof: the scores contradict the claim.
    """
    from ...attacks.foreign.score_file import read_scores
    from ...attacks.foreign.scores_audit import audit_scores
    from ...privacy.errors import InputError
    from ...runs.errors import ContradictedProof

    if others:
        raise InputError(f"{others[0]} does not go with --scores; leave one of the two out")
    claim = _claim(wanted)
    read = read_scores(path)
    found = audit_scores(
        read.scores,
        read.included,
        split=read.split,
        claim=claim,
        confidence=0.95 if wanted.confidence is None else wanted.confidence,
        ratios=wanted.ratios,
    )
    if json:
        print_json(found.dump())
    else:
        _show(found)
    if found.contradicted:
        raise ContradictedProof(found.words())


def _claim(wanted: ScoresWanted) -> Claimed:
    from ...attacks.foreign.claimed import DELTA, claim_of_log, parse_claim, parsed_numbers
    from ...privacy.errors import InputError
    from ...privacy.releases.log import read_log

    texts = wanted.claim or []
    if wanted.ledger is None:
        if not texts:
            raise InputError(
                "--scores takes a claim: --claim epsilon=3,delta=1e-5, or --ledger LOG"
            )
        return parse_claim(texts)
    numbers = parsed_numbers(texts)
    if stray := [name for name in numbers if name not in ("epsilon", "delta")]:
        raise InputError(
            f"{stray[0]} is claimed beside --ledger, which says what the mechanism is; leave the "
            "one or the other out"
        )
    return claim_of_log(
        read_log(wanted.ledger),
        delta=numbers.get("delta", DELTA),
        epsilon=numbers.get("epsilon"),
    )


def _show(found: ScoresAudit) -> None:
    from ...attacks.foreign.scores_audit import ideal_words
    from ...runs.numbers import lower_bound

    console = make_console()
    say(console, ideal_words(found))
    table = make_table(f"Bounds that hold together, at {100 * found.confidence:g} %")
    table.add_column("threshold", no_wrap=True)
    for name in ("at", "guessed", "errors", "epsilon at least"):
        table.add_column(name, justify="right")
    for one in found.bounds:
        table.add_row(
            one.name,
            f"{one.threshold:.4g}",
            str(one.guesses),
            f"{one.false_alarms} + {one.misses}",
            lower_bound(one.epsilon),
        )
    console.print(table)
    say(console, f"{found.bounds[0].assumptions}")
    if not found.contradicted:  # which is said on standard error
        say(console, f"{found.words()}.")
    say(console, f"Verdict: {found.verdict}.")
