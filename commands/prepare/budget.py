"""The command `overhear budget`: of epsilon, noise, rounds and sampling rate, the one left out."""

from __future__ import annotations

import enum
from typing import Annotated

import typer

from ..terminal.options import Json
from ..terminal.terminal import print_json, write

__all__ = ["budget"]


class AccountantName(enum.StrEnum):
    """How rounds are added up."""

    PLD = "pld"
    RDP = "rdp"
    PRV = "prv"
    DP_ACCOUNTING = "dp-accounting"
    GDP_CLT = "gdp-clt"


class BatchesName(enum.StrEnum):
    """How batches are drawn."""

    POISSON = "poisson"
    FIXED = "fixed"
    SHUFFLED = "shuffled"
    CYCLIC = "cyclic"


class AdjacencyName(enum.StrEnum):
    """How two neighbouring data sets differ."""

    ADD_OR_REMOVE_ONE = "add-or-remove-one"
    ZERO_OUT = "zero-out"
    REPLACE_ONE = "replace-one"


def budget(
    *,
    delta: Annotated[float, typer.Option(help="Delta of the statement, in (0, 1).")],
    epsilon: Annotated[float | None, typer.Option(help="Largest privacy loss, in nats.")] = None,
    noise_multiplier: Annotated[
        float | None, typer.Option(help="Standard deviation of the noise on the sum / clip norm.")
    ] = None,
    rounds: Annotated[int | None, typer.Option(help="Number of rounds.")] = None,
    sampling_rate: Annotated[
        float | None, typer.Option(help="Probability of a record to be in a batch.")
    ] = None,
    target_advantage: Annotated[
        float | None,
        typer.Option(help="Largest TPR - FPR of membership inference, in place of epsilon."),
    ] = None,
    target_tpr: Annotated[
        str | None,
        typer.Option(
            metavar="TPR@FPR", help="Largest TPR at an FPR, such as .2@.01, in place of epsilon."
        ),
    ] = None,
    participation: Annotated[
        float,
        typer.Option(
            help="Probability of an agent to take part in a round, by a public lottery; in (0, 1]."
        ),
    ] = 1.0,
    batches: Annotated[
        BatchesName, typer.Option(help="How batches are drawn.")
    ] = BatchesName.POISSON,
    records: Annotated[
        int | None,
        typer.Option(help="Number of records, which is public; for batches that are not Poisson."),
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(help="Size of batches that are not Poisson; replaces --sampling-rate."),
    ] = None,
    largest_batch: Annotated[
        str | None,
        typer.Option(metavar="N|auto", help="Size at which a Poisson batch is cut."),
    ] = None,
    accountant: Annotated[
        AccountantName, typer.Option(help="How rounds are added up.")
    ] = AccountantName.PLD,
    adjacency: Annotated[
        AdjacencyName, typer.Option(help="How neighbouring data sets differ.")
    ] = AdjacencyName.ADD_OR_REMOVE_ONE,
    explain: Annotated[
        bool, typer.Option("--explain", help="Say what dp-accounting finds for the same rounds.")
    ] = False,
    statement: Annotated[
        bool, typer.Option("--statement", help="Print a paragraph to paste, and nothing else.")
    ] = False,
    json: Json = False,
) -> None:
    """Compute epsilon, noise, rounds or a sampling rate.

    Give three of the four. The answer is the least epsilon, the least noise, the most rounds or
    the largest sampling rate. Each round is taken to be one Gaussian release of a sum of clipped
    gradients (DP-SGD). `overhear plan` accounts for what the agents of a run really send.
    """
    from ...interface.budget import budget as found_budget
    from ...privacy.errors import InputError

    if statement and (json or explain):
        raise InputError("--statement prints a paragraph; leave --json and --explain out")
    given = {
        "epsilon": epsilon,
        "noise_multiplier": noise_multiplier,
        "rounds": rounds,
        "sampling_rate": sampling_rate,
    }
    drawn = {"sampling_rate"} if batches is not BatchesName.POISSON else set()
    missing = [name for name, value in given.items() if value is None and name not in drawn]
    rates = None if target_tpr is None else _rates(target_tpr)
    if target_advantage is None and rates is None and len(missing) != 1:
        raise InputError(
            "give --epsilon, --noise-multiplier, --rounds and --sampling-rate, all but one of "
            f"them: {len(missing)} are missing"
            + (" beside the sampling rate, which follows" if drawn else "")
        )
    found = found_budget(
        delta=delta,
        epsilon=epsilon,
        noise_multiplier=noise_multiplier,
        rounds=rounds,
        sampling_rate=sampling_rate,
        advantage=target_advantage,
        true_positive_rate=rates,
        participation=participation,
        adjacency=adjacency.value,
        accountant=accountant.value,
        sampling=batches.value,
        records=records,
        batch_size=batch_size,
        largest_batch=_largest(largest_batch),
    )
    opinion = None
    if explain:
        from ...privacy.reference.second_opinion import second_opinion
        from ...runs.plan.second_opinions import described

        other = second_opinion(
            found.events,
            ours=found.epsilon,
            delta=delta,
            adjacency=adjacency.value,
        )
        opinion = described(other)
    if json:
        figures = {name: getattr(found, name) for name in (*given, "delta")}
        how = {"adjacency": adjacency.value, "accountant": accountant.value}
        asked_too = {} if opinion is None else {"second_opinion": opinion.dump()}
        kind = found.accountant.kind
        aim: dict[str, object] = {"target": found.target} if found.target else {}
        if found.participation < 1.0:
            aim["participation"] = found.participation
        if found.drawn is not None:
            of = found.drawn.drawing
            aim |= {"batches": str(of.scheme), "records": of.records, "size": of.size}
        if found.at_least is not None:
            aim["at_least"] = found.at_least
        print_json({**figures, **how, "computed": found.computed, "kind": kind, **aim, **asked_too})
        return
    if statement:
        write(found.statement())
        return
    write(found)
    if opinion is not None:
        from ...runs.plan.second_opinions import bracket_words

        write(f"second opinion   {opinion.by}: {bracket_words(opinion)}")


def _largest(text: str | None) -> int | str | None:
    """A size as a number."""
    from ...privacy.errors import InputError

    if text is None or text == "auto":
        return text
    try:
        return int(text)
    except ValueError:
        raise InputError(f"--largest-batch {text!r:.40} must be an integer, or auto") from None


def _rates(text: str) -> tuple[float, float]:
    """TPR@FPR as two numbers."""
    from ...privacy.errors import InputError

    rate, at, alarms = text.partition("@")
    try:
        return float(rate), float(alarms if at else "none")
    except ValueError:
        raise InputError(
            f"--target-tpr {text!r:.40} must be TPR@FPR, two numbers such as .2@.01"
        ) from None
