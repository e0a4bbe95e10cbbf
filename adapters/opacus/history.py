"""The log of a training that is finished, from the history that Opacus' accountant kept of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...privacy.errors import InputError, InputTypeError
from ...privacy.guarantee import Statement
from ...privacy.releases.lines import SCHEMA
from ...privacy.releases.log import read_log
from ...privacy.releases.values import integer, number, positive, probability, shown
from ...training.accounts.declared import DeclaredAccount, account_of_releases

_MOST_STEPS = 5_000_000


@dataclass(frozen=True, slots=True)
class DeclaredHistory:
    """A log that was written from a history; nothing of it can be checked.

    Attributes:
        path: of the log.
    """

    path: Path

    def account(self, *, delta: float) -> DeclaredAccount:
        """What the releases cost each adversary."""
        return account_of_releases(read_log(self.path), statement=Statement(delta=delta))


def from_history(
    history: Sequence[tuple[float, float, int]],
    path: str | Path,
    *,
    poisson_sampling: bool,
    clip: float = 1.0,
) -> DeclaredHistory:
    """Declare a finished training by `accountant.history`, without having watched it.

    Args:
        history: (noise multiplier, sampling rate, steps) of each stretch of steps.
        path: the log to be written, a `.jsonl` file, or a folder.
        poisson_sampling: as `make_private` was told. A history does not say it, and without Poisson
            sampling every record counts as in each batch, at rate 1.
        clip: `max_grad_norm`; the figures depend on the noise multiplier alone.

    Raises:
        ValueError: no history, or a value out of range.
        FileExistsError: the log is there.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     log = from_history([(1.0, 1 / 13, 104)], folder, poisson_sampling=True)
    ...     round(log.account(delta=1e-5)["eavesdropper"].epsilon, 2)
    5.49
    """
    if not isinstance(poisson_sampling, bool):
        raise InputTypeError(
            f"poisson_sampling={shown(poisson_sampling)} must be True or False, as it was given to "
            "make_private"
        )
    # Steps of each stretch, as many as an account takes.
    clip = positive(clip, "clip")
    stretches = [_stretch(one, at) for at, one in enumerate(history)]
    if not sum(steps for _, _, steps in stretches):
        raise InputError(
            "the history holds no step; give the history of the accountant that counted, "
            "engine.accountant.history, after training"
        )
    if sum(steps for _, _, steps in stretches) > _MOST_STEPS:
        raise InputError(
            f"the history holds more than {_MOST_STEPS} steps; account for parts of it"
        )
    # A new log, of which each step is a line.
    path = Path(path)
    path = path / "releases.jsonl" if path.suffix != ".jsonl" else path
    header = {"schema": SCHEMA, "system": "opacus", "agents": 1, "agent": 0, "clip": clip}
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        raise FileExistsError(
            f"{path} exists; a log of releases is never overwritten: name another folder, or "
            "remove it if it is of no use"
        )
    with path.open("x", encoding="utf-8") as file:
        file.write(json.dumps(header) + "\n")
        at = 0
        for noise, rate, steps in stretches:
            vector: dict[str, Any] = {"owner": 0}
            if poisson_sampling:
                vector |= {"rate": rate, "sampler": "poisson"}
            release = {
                "from": 0, "to": "all", "kind": "gradient", "of": [vector], "noise": noise * clip,
            }  # fmt: skip
            for _ in range(steps):
                file.write(json.dumps({"round": at, "releases": [release]}) + "\n")
                at += 1
    return DeclaredHistory(path)


def _stretch(found: Any, at: int) -> tuple[float, float, int]:
    if not isinstance(found, tuple | list) or len(found) != 3:
        raise InputError(
            f"history[{at}]={shown(found)} must be (noise multiplier, sampling rate, steps)"
        )
    noise, rate, steps = found
    noise = number(noise, f"noise multiplier of history[{at}]")
    if noise < 0:
        raise InputError(f"noise multiplier of history[{at}] is {noise:g}, and must be at least 0")
    most = {"least": 0, "most": _MOST_STEPS}
    return noise, probability(rate), integer(steps, f"steps of history[{at}]", **most)
