"""Which errors are the caller's mistake, and in which words they are told.

A measurement that contradicts a proof is neither a mistake of the caller nor a crash.
"""

from __future__ import annotations

import dis

__all__ = ["ContradictedProof", "is_stated", "sentence"]


class ContradictedProof(Exception):
    """A measurement exceeds what was proven: the proof, the code or the measurement is wrong."""


def is_stated(error: Exception) -> bool:
    """Whether the error is one that our own code states about its input.

    Either the system refuses a file, or a `raise` of ours is where it comes from; the same types
    out of a library, or out of a slip of ours, are crashes.
    """
    if isinstance(error, OSError):
        return True
    at = error.__traceback__
    if at is None or not isinstance(error, ValueError | TypeError | LookupError | ArithmeticError):
        return False
    while at.tb_next is not None:
        at = at.tb_next
    ours = at.tb_frame.f_globals.get("__name__", "").startswith("overhear.")
    code = at.tb_frame.f_code.co_code
    return ours and code[at.tb_lasti] == dis.opmap["RAISE_VARARGS"]


def sentence(error: Exception) -> str:
    """The error in one sentence.

    >>> sentence(KeyError("no row for neighbour:3"))
    'no row for neighbour:3'
    """
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}"
    # A KeyError shows its message in quotes.
    return str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
