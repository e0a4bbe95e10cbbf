"""Which fields of a state leave their agents after the last round, as the algorithm declares it.

What a step sends is traced; what becomes of a state once a run has ended no step says. So the
algorithm does: which field holds the models, and which fields are released with them. Names decide
nothing else, and where nothing is declared every field counts as released. A history never is: it
holds noise that is taken back later, which its agent alone knows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ...privacy.errors import InputError, InputTypeError, did_you_mean
from ...privacy.view.elimination import final_row


def released_fields(released: object, *, model: object = "x") -> tuple[str, ...] | None:
    """The names of released fields, or None for all; read before there is a state.

    Raises:
        TypeError: something else than names.
        ValueError: the models are not among them, or one is named twice.

    >>> released_fields(["x", "y"])
    ('x', 'y')
    """
    if not isinstance(model, str):
        raise InputTypeError(f"model={model!r:.40} must be the name of a field of the state")
    if released is None:
        return None
    if isinstance(released, str) or not isinstance(released, Sequence):
        raise InputTypeError(
            f"released={released!r:.40} must be a tuple of names of fields of the state, such as "
            f"({model!r},)"
        )
    for name in released:
        if not isinstance(name, str):
            raise InputTypeError(f"released names {name!r:.40}, which is no name of a field")
    if len(set(released)) < len(released):
        raise InputError(f"released={tuple(released)} names a field twice; name each once")
    if model not in released:
        raise InputError(
            f"released={tuple(released)} leaves out {model!r}, the models, which every run "
            "releases at its end; name it, too"
        )
    return tuple(released)


class FinalRelease(NamedTuple):
    """What leaves after the last round.

    Attributes:
        model: the field that holds the models.
        fields: the fields that are released, the models among them; None for all.

    >>> FinalRelease().includes("momentum"), FinalRelease(fields=("x",)).includes("momentum")
    (True, False)
    """

    model: str = "x"
    fields: tuple[str, ...] | None = None

    def includes(self, field: str) -> bool:
        """Whether a field is released."""
        return self.fields is None or field in self.fields

    def of(self, state: Any) -> FinalRelease:
        """The same with every released field of a state by name.

        Args:
            state: that a start returned, as a run holds it.

        Raises:
            ValueError: a name that no field of `Agents` has.
        """
        from .perform import histories_of

        histories, named, whole = histories_of(state), state._asdict(), _whole(state)
        for name in (self.model, *(self.fields or ())):
            if name not in whole:
                key = "model" if name == self.model else "released"
                why = _instead(name, named, whole, histories)
                raise InputError(f"{key} of the algorithm names {name!r}, {why}")
        return FinalRelease(self.model, tuple(name for name in whole if self.includes(name)))

    @classmethod
    def everything(cls, state: Any) -> FinalRelease:
        """Every field of a state that can be released, of whoever declares nothing."""
        return cls(fields=tuple(_whole(state)))

    def row_names(self, field: str, rows: int) -> list[str]:
        """What the released rows of a field are called.

        >>> FinalRelease().row_names("x", 1), FinalRelease().row_names("y", 1)
        (['final model, row 0'], ['final field y, row 0'])
        """
        return [final_row(i, None if field == self.model else field) for i in range(rows)]


NOTHING = FinalRelease(fields=())  # of a round that is not the last one


def _whole(state: Any) -> list[str]:
    """The fields that can be released: values of agents, but no history."""
    from .perform import histories_of  # loads torch, which declaring a release does not need
    from .values import Agents

    histories = histories_of(state)
    named = state._asdict().items()
    return [name for name, held in named if isinstance(held, Agents) and name not in histories]


def _instead(
    name: str, named: dict[str, Any], whole: Sequence[str], histories: frozenset[str]
) -> str:
    """Why a name is none of a released field, and which are, as the rest of a sentence."""
    fields = f"the fields that can be released are {', '.join(whole) or 'none'}"
    if name in named and name not in histories:
        return f"a public tensor, which is known in any case; {fields}"
    if any(name in (history, history.rpartition("_")[0]) for history in histories):
        return f"a history, whose noise its agent alone knows; {fields}"
    meant = did_you_mean(name, whole, form=repr)
    return f"which is no field of the state: {fields}{meant}"
