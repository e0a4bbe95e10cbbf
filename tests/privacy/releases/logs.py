"""Logs of releases for tests, written as a user writes them."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from overhear.privacy.guarantee import Statement
from overhear.privacy.releases.log import read_log
from overhear.training.accounts.declared import DeclaredAccount, account_of_releases

HEADER = {"schema": "releases-1", "agents": 3, "clip": 1.0, "rate": 0.1, "sampler": "poisson"}


def one(sender: int | str = 0, **changed: Any) -> dict[str, Any]:
    """A release of a noisy vector to agent 1."""
    to = [1 if sender != 1 else 2]
    return {"from": sender, "to": to, "kind": "model", "noise": 2.0, **changed}


def write(
    path: Path,
    rounds: Mapping[int, Iterable[Any]] | Iterable[Any],
    *,
    end: str = "\n",
    **header: Any,
) -> Path:
    """A log: rounds by number, or its lines as they are."""
    lines: Iterable[Any] = rounds
    if isinstance(rounds, Mapping):
        lines = [{"round": number, "releases": list(of)} for number, of in rounds.items()]
    every = [{**HEADER, **header}, *lines]
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in every)
    path.write_text(text + end, encoding="utf-8")
    return path


def account(
    path: Path | list[Path], *, adversaries: Iterable[str] = (), **how: Any
) -> DeclaredAccount:
    """The account of a log at delta 1e-5."""
    absent, victim = how.pop("absent", None), how.pop("victim", None)
    log = read_log(path, absent=absent)
    statement = Statement(delta=1e-5, unit=log.header.unit, **how)
    return account_of_releases(
        log, statement=statement, adversaries=list(adversaries), victim=victim
    )


def mu(path: Path | list[Path], adversary: str = "eavesdropper", **how: Any) -> float:
    """The largest mu of a round."""
    return account(path, adversaries=[adversary], **how)[adversary].mu_per_round
