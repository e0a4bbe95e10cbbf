"""Whether the figure of an adversary is within its limit, and what would turn it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ...privacy.adversary import Sees, parse_adversary
from ...privacy.guarantee import Bound
from ...runs.numbers import bound, figure, is_infinite, small
from ..document.checked_run import CheckedRun
from ..plain_text import plain
from .finding import Finding, Outcome
from .policy import Limit

__all__ = ["adversary_key", "check_limit", "figure_row"]

_NO_BOUND = (Bound.CENTRAL_LIMIT, Bound.NOT_STATED)
_ANY_NETWORK = 10**9


def check_limit(limit: Limit, run: CheckedRun) -> Finding:
    """Hold the figure of the limit's adversary against it.

    An adversary that the run does not account for is missing evidence: nothing says that its
    figure is too large, and nothing that it is not.
    """
    name = f"limit: {limit.adversary}, epsilon {limit.epsilon:g} at delta {small(limit.delta)}"
    row = figure_row(run, limit.adversary)
    if row is None:
        known = ", ".join(r["name"] for r in run.report["plan"]["adversaries"])
        return Finding(
            requirement=plain(name),
            outcome=Outcome.MISSING,
            sentence=plain(
                f"the run does not account for {limit.adversary}, only for {known}; name it in "
                "adversaries of [privacy] in the run file and train again"
            ),
        )
    wrong = list(_faults(limit, row, run))
    spent = run.report["ledger"]["epsilon"][row["name"]]
    passed = (
        f"epsilon at most {bound(spent)} at delta {small(row['delta'])} for one {row['unit']} "
        f"({row['adjacency']}), proven; the limit is {limit.epsilon:g} at delta "
        f"{small(limit.delta)}"
    )
    return Finding(
        requirement=plain(name),
        outcome=Outcome.OVER if wrong else Outcome.PASSED,
        sentence="; ".join(plain(one, most=None) for one in wrong) or plain(passed),
    )


def figure_row(run: CheckedRun, adversary: str) -> Mapping[str, Any] | None:
    """The planned row of an adversary that the ledger has a figure for; None if there is none."""
    rows: Sequence[Mapping[str, Any]] = run.report["plan"]["adversaries"]
    spent, asked = run.report["ledger"]["epsilon"], adversary_key(adversary)
    found = (r for r in rows if adversary_key(r["name"]) == asked and r["name"] in spent)
    return next(found, None)


def adversary_key(name: str) -> object:
    """The adversary, however it is written: coalition:9,1 is coalition:1,9.

    >>> adversary_key("coalition:9,1") == adversary_key("coalition:1,9")
    True
    """
    try:
        found = parse_adversary(name, _ANY_NETWORK)
    except ValueError:  # "neighbour" and "all-others" stand for a search
        return name
    return (found.sees, found.agents) if found.sees is Sees.OWN_LINKS else found.name


def _faults(limit: Limit, row: Mapping[str, Any], run: CheckedRun) -> Iterator[str]:
    """Why a figure does not pass: each with value, bound and remedy."""
    if row["unit"] != limit.unit:
        yield (
            f"the figure is for one {row['unit']}, the limit for one {limit.unit}, and nothing "
            f'here is proven for that; ask for unit = "{row["unit"]}"'
        )
    if row["adjacency"] != limit.adjacency:
        yield (
            f"the figure is for {row['adjacency']}, the limit for {limit.adjacency}; set "
            f'adjacency = "{limit.adjacency}" in [privacy] and train again'
        )
    if not row["delta"] <= limit.delta:
        yield (
            f"the figure holds at delta {small(row['delta'])}, larger than the limit's "
            f"{small(limit.delta)}; set delta = {small(limit.delta)} in [privacy] and train again"
        )
    if run.victim is not None:
        yield (
            f"the figure is for records of agent {run.victim} alone, the limit for any record; "
            "leave victim out of [privacy] and train again"
        )
    spent = run.report["ledger"]["epsilon"][row["name"]]
    if run.report["run"]["evaluation_noise_seed"] is not None:
        yield (
            "the noise comes from evaluation_noise_seed, and whoever knows it can subtract it; "
            "leave it out and train again"
        )
    elif not is_infinite(spent) and (row["status"] != "proven" or row["bound"] in _NO_BOUND):
        yield _not_proven(row, spent, run)
    if is_infinite(spent):
        yield (
            f"epsilon is infinite, over the limit of {limit.epsilon:g} ({row['because']}); choose "
            "an algorithm and a noise multiplier that hide what this adversary sees"
        )
    elif not float(spent) <= limit.epsilon:
        yield _over(limit, row, spent, run)


def _not_proven(row: Mapping[str, Any], spent: float | str, run: CheckedRun) -> str:
    remedy = "choose an algorithm that is proven for this adversary"
    if run.report["run"]["form"] == "published":
        remedy = 'set form = "repaired" in [algorithm] and train again'
    if row["name"] == "single-message":
        remedy = "no adversary sees so little, so limit the eavesdropper instead"
    return (
        f"epsilon {figure(spent)} is heuristic, without an upper bound ({row['because']}), and "
        f"only a proven figure passes; {remedy}"
    )


def _over(limit: Limit, row: Mapping[str, Any], spent: float | str, run: CheckedRun) -> str:
    remedy = (
        f'set epsilon = {limit.epsilon:g} and adversary = "{row["name"]}" in [privacy] and train '
        "again, with more noise"
    )
    series = run.report["epsilon_by_round"].get(row["name"], [])
    within = [at for at, epsilon in series if float(epsilon) <= limit.epsilon]
    if within and within[-1] < run.report["run"]["rounds"]:
        remedy += f", or plan {within[-1]} rounds in a new run with the same noise"
    close = math.isclose(float(spent), limit.epsilon, rel_tol=1e-3)
    shown = repr(float(spent)) if close else bound(spent, 4)
    return (
        f"epsilon {shown} at delta {small(row['delta'])} is over the limit of "
        f"{limit.epsilon:g}; {remedy}"
    )
