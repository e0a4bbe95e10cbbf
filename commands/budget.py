"""The command `overhear budget`: of epsilon, noise, rounds and sampling rate, the one left out."""

from __future__ import annotations

from typing import Annotated

import typer

from ..interface.requests import BudgetRequest
from .terminal.options import Format, TableOrJson
from .terminal.terminal import print_json, write

_NUMBERS = ("epsilon", "noise_multiplier", "rounds", "sampling_rate", "delta")


def budget(
    request: BudgetRequest,
    *,
    explain: Annotated[
        bool, typer.Option("--explain", help="Say what dp-accounting finds for the same rounds.")
    ] = False,
    statement: Annotated[
        bool, typer.Option("--statement", help="Print a paragraph to paste, and nothing else.")
    ] = False,
    format: Format = TableOrJson.TABLE,
) -> None:
    """Compute epsilon, noise, rounds or a sampling rate.

    Give delta and three of the other four, or all of these. The answer is the least epsilon, noise
    or delta, the most rounds or the largest sampling rate. Each round is taken to be one Gaussian
    release of a sum of clipped gradients (DP-SGD). `overhear plan` accounts for what the agents of
    a run really send.
    """
    from ..interface.budget import budget_of
    from ..privacy.errors import InputError

    if statement and (explain or format is TableOrJson.JSON):
        raise InputError("--statement prints a paragraph; leave --format and --explain out")
    found = budget_of(request)
    # What another library makes of the same rounds.
    opinion = None
    if explain:
        from ..privacy.reference.second_opinion import second_opinion
        from ..runs.plan.opinions import described

        other = second_opinion(
            found.events, ours=found.epsilon, delta=found.delta, adjacency=found.adjacency
        )
        opinion = described(other)
    # Figures, what they are about, and how they were computed.
    if format is TableOrJson.JSON:
        figures = {name: getattr(found, name) for name in _NUMBERS}
        how = {"adjacency": request.adjacency, "accountant": request.accountant}
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
        from ..runs.plan.opinions import bracket_words

        write(f"second opinion   {opinion.by}: {bracket_words(opinion)}")
