"""Objects of a run folder: built, passed on, written as JSON and read back as one type each.

What a file holds of a number or a word is said in `privacy.formats.codec`, for dataclasses and for
the models that are made here. A key that was not set is not written, so that an object reads as it
was written, whatever version wrote it: one that knew a key less, or one that knew a key more.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, JsonValue

from ..privacy.files import read_bounded, write_durably
from ..privacy.formats.codec import CONFIG, as_text, load
from ..privacy.plain_text import plain

Refusal = Callable[[str, str], str]
LARGEST_OBJECT = 32 << 20  # bytes of a JSON file


def unreadable(path: Path, remedy: str = "put it back as it was written") -> Refusal:
    """The sentence for a file, of the place in it and what is wrong."""
    shown = plain(path, most=None)
    return lambda at, what: f"{shown} cannot be read at {plain(at)}: {plain(what)}; {remedy}"


class Described(BaseModel):
    """An object that may hold more than is described here."""

    model_config = {**CONFIG, "frozen": True}

    @classmethod
    def from_object(cls, source: object, **others: Any) -> Self:
        """The object whose fields are the attributes of these names, but for those that are given.

        >>> from types import SimpleNamespace
        >>> class Look(Described):
        ...     epsilon: float
        ...     canaries: int
        >>> Look.from_object(SimpleNamespace(epsilon=1.5, of="anything"), canaries=20).dump()
        {'epsilon': 1.5, 'canaries': 20}
        """
        names = [name for name in cls.model_fields if hasattr(source, name)]
        return cls(**({name: getattr(source, name) for name in names} | others))

    @classmethod
    def parse(cls, text: str | bytes, *, refusal: Refusal) -> Self:
        """The object of a JSON text.

        Args:
            refusal: the sentence for a text that is none, of the place in it and what is wrong.

        Raises:
            ValueError: it is none, in the sentence of `refusal`.
        """
        return load(cls, text, refusal=refusal)

    @classmethod
    def read(cls, path: Path, *, refusal: Refusal | None = None) -> Self:
        """The object of a JSON file; arguments and refusals of `parse`, by default `unreadable`.

        Raises:
            FileNotFoundError: it is not there.
            ValueError: it cannot be read, or is larger than any that is written.
        """
        held = read_bounded(path, LARGEST_OBJECT)
        return cls.parse(held, refusal=refusal or unreadable(path))

    @classmethod
    def read_if_there(cls, path: Path, *, remedy: str) -> Self | None:
        """The same, None where there is no file; the sentence of a refusal ends in the remedy."""
        return cls.read(path, refusal=unreadable(path, remedy)) if path.exists() else None

    def dump(self) -> dict[str, JsonValue]:
        """The object of JSON: what was set, under the names of the file."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True)

    def write(self, path: Path, *, mode: int | None = None) -> None:
        """Write the object as a JSON file, all at once.

        Raises:
            OSError: the system refuses; the error names the file.
        """
        write_durably(path, as_text(self.dump()).encode(), mode=mode)
