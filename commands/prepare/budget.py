"""The command `overhear budget`: of epsilon, noise, rounds and sampling rate, the one left out."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from ..terminal.options import Json
from ..terminal.terminal import print_json

__all__ = ["budget"]


class AccountantName(enum.StrEnum):
    """How rounds are added up."""

    PLD = "pld"
    RDP = "rdp"
    PRV = "prv"
    DP_ACCOUNTING = "dp-accounting"
    GDP_CLT = "gdp-clt"


class AdjacencyName(enum.StrEnum):
    """How two neighbouring data sets differ."""

    ADD_OR_REMOVE_ONE = "add-or-remove-one"
    REPLACE_ONE = "replace-one"


def budget(
    *,
    delta: Annotated[float, typer.Option(help="Of the statement, in (0, 1).")],
    epsilon: Annotated[float | None, typer.Option(help="Privacy loss, in nats.")] = None,
    noise_multiplier: Annotated[
        float | None, typer.Option(help="Noise on the sum / clip norm.")
    ] = None,
    rounds: Annotated[int | None, typer.Option(help="Number of rounds.")] = None,
    sampling_rate: Annotated[
        float | None, typer.Option(help="Of a record into a batch, in [0, 1].")
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
    json: Json = False,
) -> None:
    """The plain question: of epsilon, noise, rounds and sampling rate, the one that is left out.

    Give three of the four: the least epsilon, the least noise, the most rounds or the largest
    sampling rate is the answer. One Gaussian release a round, of a sum of gradients clipped to the
    clip norm. For what the agents of a run really send, see `overhear plan`.
    """
    from ...privacy.accounting import accountant as accounting
    from ...privacy.accounting import limits
    from ...privacy.errors import InputError

    answers = {
        "epsilon": accounting.epsilon,
        "noise_multiplier": accounting.noise_multiplier,
        "rounds": limits.max_rounds,
        "sampling_rate": limits.max_sampling_rate,
    }
    given: dict[str, Any] = {
        "epsilon": epsilon,
        "noise_multiplier": noise_multiplier,
        "rounds": rounds,
        "sampling_rate": sampling_rate,
    }
    missing = [name for name, value in given.items() if value is None]
    if len(missing) != 1:
        raise InputError(
            "give --epsilon, --noise-multiplier, --rounds and --sampling-rate, all but one of "
            f"them: {len(missing)} are missing"
        )
    (asked,) = missing
    known = {name: value for name, value in given.items() if name != asked}
    how = {"delta": delta, "adjacency": adjacency.value, "accountant": accountant.value}
    given[asked] = answers[asked](**known, **how)  # type: ignore[operator] # by keyword
    kind = accounting.Accountant(accountant.value).kind
    opinion = None
    if explain:
        from ...privacy.reference.second_opinion import second_opinion
        from ...runs.plan.second_opinions import described

        asked_of = (given["noise_multiplier"], given["sampling_rate"])
        found = second_opinion(
            {asked_of: given["rounds"]},
            ours=given["epsilon"],
            delta=delta,
            adjacency=adjacency.value,
        )
        opinion = described(found)
    if json:
        asked_too = {} if opinion is None else {"second_opinion": opinion.dump()}
        print_json({**given, **how, "computed": asked, "kind": kind, **asked_too})
        return
    said = {"adjacency": adjacency.value, "accountant": f"{accountant.value}: {kind}"}
    _show_budget({**given, "delta": delta}, asked, how=said)
    if opinion is not None:
        from ...runs.plan.second_opinions import bracket_words

        print(f"second opinion   {opinion.by}: {bracket_words(opinion)}")


def _show_budget(found: Mapping[str, Any], asked: str, *, how: Mapping[str, str]) -> None:
    from ...runs.numbers import bound, small

    rate = f"{found['sampling_rate']:g}"
    if asked == "sampling_rate":  # a largest one is never rounded up
        from decimal import ROUND_FLOOR, Context, Decimal

        rate = f"{float(Context(prec=6, rounding=ROUND_FLOOR).plus(Decimal(found[asked]))):g}"
    least = "the least" if asked in ("epsilon", "noise_multiplier") else "the largest"
    noise = bound(found["noise_multiplier"], 5)
    print(f"noise multiplier {noise}  (noise on the sum / clip norm)")
    at = f"at delta {small(found['delta'])}"
    print(f"epsilon          {bound(found['epsilon'], 4)} {at}, for one record")
    print(f"adjacency        {how['adjacency']}")
    print(f"rounds           {found['rounds']}, each a Poisson batch at rate {rate}")
    print(f"accountant       {how['accountant']}")
    print(f"computed         {asked.replace('_', ' ')}, {least} for the rest")
