"""How an error is told, and the one that is neither a mistake of the user nor a crash."""

from __future__ import annotations

from .. import requirement
from ..privacy.errors import InputError, needs
from ..privacy.plain_text import plain_sentence

# What a command tells in one sentence: the user's mistake, a file that the system refuses, or an
# input that is too large or nested too deep for what was to be done with it.
STATED = (InputError, OSError, MemoryError, RecursionError)


_LESS_MEMORY = (
    "lower what makes the run large, such as agents, the model, batch_size, canaries or restarts, "
    "or take a machine with more"
)


class ContradictedProof(Exception):
    """A measurement exceeds what was proven: the proof, the code or the measurement is wrong."""


def sentence(error: Exception) -> str:
    """The error in one sentence.

    >>> sentence(FileNotFoundError(2, "No such file or directory", "run.toml"))
    'run.toml: No such file or directory'
    >>> sentence(RecursionError("maximum recursion depth exceeded"))
    'what was read is nested too deep (maximum recursion depth exceeded); give it fewer levels'
    """
    return plain_sentence(_words(error))


def _words(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return f"what was read is nested too deep ({error}); give it fewer levels"
    if isinstance(error, MemoryError):
        why = f" ({error})" if str(error) else ""
        return f"memory ran out{why}; {_LESS_MEMORY}"
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}"
    return str(error)


def as_stated(error: Exception) -> Exception:
    """The error: a MemoryError of torch's when memory runs out, or what names a missing package.

    >>> type(as_stated(RuntimeError("DefaultCPUAllocator: can't allocate memory"))).__name__
    'MemoryError'
    """
    if isinstance(error, ModuleNotFoundError) and requirement(error.name or "") is not None:
        return needs("this command", error.name or "")
    if isinstance(error, RuntimeError) and not isinstance(error, RecursionError):
        words = str(error)
        for mark in _OUT_OF_MEMORY:
            if mark in words:
                return MemoryError(words[words.index(mark) :].partition("\n")[0])
    return error


# How torch begins to say it, on the CPU and on a device.
_OUT_OF_MEMORY = ("DefaultCPUAllocator: ", "CUDA out of memory", "HIP out of memory")
