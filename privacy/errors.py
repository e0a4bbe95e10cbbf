"""Errors by class: what the user gave and cannot be used, and the rest, which are faults of ours.

A command tells an `InputError` in one sentence and ends with exit code 2; so it does with an
`OSError`, by which the system refuses a file. Any other error shows its traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Sequence

from .plain_text import plain_sentence


class InputError(ValueError):
    """Something that the user gave cannot be used; it says which value, which bound, which remedy.

    >>> raise InputError("sampling_rate=1.3 must lie in [0, 1]")
    Traceback (most recent call last):
        ...
    overhear...InputError: sampling_rate=1.3 must lie in [0, 1]
    """

    def __init__(self, *words: object) -> None:
        super().__init__(*(plain_sentence(of) if isinstance(of, str) else of for of in words))


class InputTypeError(InputError, TypeError):
    """The user gave a value of another type than is taken."""


class UndeclaredOperation(InputTypeError):
    """A step did something to a private value that no operation declares."""


class NotFiniteError(InputError, FloatingPointError):
    """What the user set makes numbers that are not finite, such as a gradient that overflows."""


class UnsupportedView(InputError):
    """A view for which no privacy statement can be proven."""


class InexpressibleView(UnsupportedView):
    """A view that may have a finite bound in truth, but none that this accounting can express."""


def all_problems(where: str, found: Sequence[str], *, more: int = 0) -> InputError:
    """What is wrong with a file, to be raised: a sentence, or a list of them.

    Args:
        where: the file.
        found: a sentence for each problem.
        more: problems that are not listed.

    >>> print(all_problems("run.toml", ["a", "b"], more=1))
    run.toml has 3 problems:
      a
      b
      and 1 more
    """
    if len(found) == 1 and not more:
        return InputError(f"{where}: {found[0]}")
    lines = "".join(f"\n  {line}" for line in (*found, *([f"and {more} more"] if more else [])))
    return InputError(f"{where} has {len(found) + more} problems:{lines}")


def did_you_mean(word: object, known: Iterable[str], *, form: Callable[[str], str] = str) -> str:
    """A remedy to put behind a sentence, or nothing where no known word is close.

    >>> did_you_mean("epsillon", ["epsilon", "delta"])
    '; did you mean epsilon?'
    >>> did_you_mean("rows", ["row", "column"], form=repr)
    "; did you mean 'row'?"
    """
    close = difflib.get_close_matches(str(word), list(known), n=1)
    return f"; did you mean {form(close[0])}?" if close else ""
