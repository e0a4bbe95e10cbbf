"""How an error is told, and the one that is neither a mistake of the user nor a crash."""

from __future__ import annotations

from ..privacy.errors import InputError

__all__ = ["STATED", "ContradictedProof", "sentence"]

# What a command tells in one sentence: the user's mistake, or a file that the system refuses.
STATED = (InputError, OSError)


class ContradictedProof(Exception):
    """A measurement exceeds what was proven: the proof, the code or the measurement is wrong."""


def sentence(error: Exception) -> str:
    """The error in one sentence.

    >>> sentence(FileNotFoundError(2, "No such file or directory", "run.toml"))
    'run.toml: No such file or directory'
    """
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}"
    return str(error)
