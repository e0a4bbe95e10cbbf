"""What code of the user keeps outside of what it is given, and whether a call changed it.

A forward or a loss that counts its calls, or keeps a mean of what it has read, ties the gradient of
a record to the records before it, and no clip norm bounds that. Compared are contents, and not how
often something says that it was written to: `.data`, `.numpy()` and `set_()` raise no version. What
is filled once and then stays, such as a table of masks, is allowed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ...privacy.errors import InputError
from .contents import Contents
from .files import Files


class Watch:
    """What some objects keep.

    Args:
        holders: functions, networks, or what else is called.

    >>> mine = {"__name__": "mine", "calls": []}
    >>> exec("def forward(x): calls.append(x)", mine)
    >>> watch = Watch(mine["forward"])
    >>> watch.changed()
    >>> mine["forward"](1)
    >>> watch.changed()
    "'calls'"
    """

    def __init__(self, *holders: object) -> None:
        self._holders, self._files = holders, Files()
        self._before = self._now()
        self.is_empty = not self._before.meets_user
        """Whether no code of the user was met, so that nothing can be kept."""

    def begin(self) -> None:
        """Take what is kept now as what has to stay."""
        self._before = self._now()
        self._files.begin()

    def changed(self) -> str | None:
        """What was changed since, in words; None where nothing was."""
        file = self._files.end()
        return self._before.difference(self._now()) or file

    @contextmanager
    def calls(self, what: str) -> Iterator[None]:
        """Refuse calls that change something.

        Args:
            what: is called, for the sentence.

        Raises:
            InputError: they did.
        """
        self.begin()
        self.refuse(what, self._before.dead)
        try:
            yield
            name = self.changed()
        finally:
            self._files.end()
        self.refuse(what, name)

    def check_dead(self, what: str) -> None:
        """Refuse what was kept of a transform of torch; its next use may end the process."""
        self.refuse(what, self._now().dead)

    @staticmethod
    def refuse(what: str, name: str | None) -> None:
        """Raise where something was changed; its name, in words."""
        if name is not None:
            raise InputError(
                f"{what} changes {name} when it is called, which ties the gradient of a record to "
                "the records before it, and no figure covers that; compute from what it is given "
                "alone"
            )

    def _now(self) -> Contents:
        return Contents(self._holders)
