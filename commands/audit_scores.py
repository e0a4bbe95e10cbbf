"""The command `overhear audit-scores`: scores from any training, compared with a claim."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .terminal.options import Format, IsThere, TableOrJson
from .terminal.terminal import make_console, make_table, print_json, say

if TYPE_CHECKING:
    from ..attacks.foreign.claimed import Claimed
    from ..attacks.foreign.scores_audit import ScoresAudit


def audit_scores(
    scores: Annotated[
        Path,
        typer.Argument(metavar="FILE.csv", help="A file with score,included of each canary."),
        IsThere("{}: No such file or directory"),
    ],
    *,
    claim: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE,...",
            help="What is claimed: epsilon=3,delta=1e-5; noise=1.0,rate=.0769,rounds=104.",
        ),
    ] = None,
    ledger: Annotated[
        Path | None,
        typer.Option(metavar="LOG", help="A log of releases, which gives the mechanism."),
    ] = None,
    confidence: Annotated[float, typer.Option(metavar="C", help="Confidence of the bound.")] = 0.95,
    ratios: Annotated[
        bool, typer.Option("--ratios", help="The scores are log-likelihood ratios.")
    ] = False,
    format: Format = TableOrJson.TABLE,
) -> None:
    """Measure epsilon by the scores of canaries in any training.

    The scores give a lower bound on epsilon, which is compared with what is claimed of the
    training. The exit code is 4 if they contradict the claim.
    """
    from ..attacks.foreign import scores_audit
    from ..attacks.foreign.score_file import read_scores
    from ..runs.errors import ContradictedProof

    claimed = _claim(claim or (), ledger)
    read = read_scores(scores)
    found = scores_audit.audit_scores(
        read.scores,
        read.included,
        claim=claimed,
        confidence=confidence,
        ratios=ratios,
    )
    if format is TableOrJson.JSON:
        print_json(found.dump())
    else:
        _show(found)
    if found.contradicted:
        raise ContradictedProof(found.words())


def _claim(texts: Sequence[str], ledger: Path | None) -> Claimed:
    from ..attacks.foreign.claimed import DELTA, claim_of_log, parse_claim, parsed_numbers
    from ..privacy.errors import InputError
    from ..privacy.releases.log import read_log

    if ledger is None:
        if not texts:
            raise InputError(
                "audit-scores takes a claim: --claim epsilon=3,delta=1e-5, or --ledger LOG"
            )
        return parse_claim(texts)
    numbers = parsed_numbers(texts)
    if stray := [name for name in numbers if name not in ("epsilon", "delta")]:
        raise InputError(
            f"{stray[0]} is claimed beside --ledger, which says what the mechanism is; leave the "
            "one or the other out"
        )
    return claim_of_log(
        read_log(ledger), delta=numbers.get("delta", DELTA), epsilon=numbers.get("epsilon")
    )


def _show(found: ScoresAudit) -> None:
    from ..attacks.foreign.scores_audit import ideal_words
    from ..runs.numbers import lower_bound

    console = make_console()
    say(console, ideal_words(found))
    table = make_table(f"Bounds that hold together, at {100 * found.confidence:g} %")
    table.add_column("threshold", no_wrap=True)
    for name in ("at", "guessed", "errors", "epsilon at least"):
        table.add_column(name, justify="right")
    for bound in found.bounds:
        table.add_row(
            bound.name,
            f"{bound.threshold:.4g}",
            str(bound.guesses),
            f"{bound.false_alarms} + {bound.misses}",
            lower_bound(bound.epsilon),
        )
    console.print(table)
    say(console, f"{found.bounds[0].assumptions}")
    if not found.contradicted:  # which is said on standard error
        say(console, f"{found.words()}.")
    say(console, f"Verdict: {found.verdict}.")
