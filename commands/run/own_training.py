"""The option `--train` of `overhear attack`: membership in models of one's own training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..terminal.terminal import make_console, print_json, say

__all__ = ["TrainingWanted", "run_training"]


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingWanted:
    """What is asked for beside the function that trains.

    Attributes:
        data: "module:NAME" of the data set, or of a function that gives it.
        method: lira, rmia or loss.
        references: trainings of references.
        records: at stake.
    """

    data: str | None
    method: str | None
    references: int | None
    records: int | None

    def check_unused(self) -> None:
        """Refuse what belongs to --train alone."""
        from ...privacy.errors import InputError

        given = {"--data": self.data, "--method": self.method, "--records": self.records}
        given |= {"--references": self.references}
        if stray := [name for name, value in given.items() if value is not None]:
            raise InputError(f"{stray[0]} belongs to --train; add it, or leave this out")


def run_training(train: str, wanted: TrainingWanted, *, others: Sequence[str], json: bool) -> None:
    """Infer membership of models that a function of the user's trains, and show it.

    Args:
        train: "module:NAME" of the function.
        wanted: data and method.
        others: what else was given that does not go with it.
        json: whether to print the object instead.

    Raises:
        ValueError: a name that cannot be imported, or what `membership` refuses.
    """
    from ...attacks.foreign.inference import membership
    from ...privacy.errors import InputError
    from ...training.own.names import own_object

    if others:
        raise InputError(f"{others[0]} does not go with --train; leave one of the two out")
    if wanted.data is None:
        raise InputError("--train needs --data too, such as --data mine:dataset: what it trains on")
    function: Any = own_object(train, key="--train")
    if not callable(function):
        raise InputError(f"--train {train!r:.60} must name a function, train(dataset) -> model")
    data: Any = own_object(wanted.data, key="--data")
    asked: dict[str, Any] = {
        "method": wanted.method,
        "references": wanted.references,
        "records": wanted.records,
    }
    found = membership(
        function,
        data() if callable(data) and not hasattr(data, "__getitem__") else data,
        **{name: value for name, value in asked.items() if value is not None},
    )
    if json:
        print_json(found.dump())
    else:
        say(make_console(), str(found.table()))
