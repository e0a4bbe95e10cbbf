"""A denoiser of the user's, by the name that [attack] gives it; none comes with overhear."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from ...attacks.posterior import Denoiser
from ...privacy.errors import InputError
from ...training.own.names import own_object
from ..run_file.own_tables import Call
from ..run_file.trust import ask, check_of_attack, say_of, sources_of

KEY = "[attack] denoiser"


@dataclass(frozen=True, kw_only=True, slots=True)
class Own:
    """A denoiser, and the SHA-256 of the code that it is made of.

    Attributes:
        denoiser: the function; None where none is named.
        files: SHA-256 by path of a file, or by name of an installed module.
    """

    denoiser: Denoiser | None = None
    files: dict[str, str] = field(default_factory=dict)


def own_denoiser(
    name: str | None, *, folder: Path | None, notice: Callable[[str], None] | None = None
) -> Own:
    """What a name stands for; its module is imported, which runs it.

    Args:
        name: "module:NAME"; None where no denoiser is asked for.
        folder: of the run whose run file names it, perhaps; None where the user gave it.
        notice: told beforehand which file runs.

    Raises:
        InputError: nobody vouches for the code of the folder, there is no such function, or its
            module raises an error.
    """
    if name is None:
        return Own()
    call = Call(key=KEY, name=name)
    if folder is not None:
        check_of_attack(folder, call)
        say_of([call], notice)
    else:
        ask([call], notice=notice)
    found = own_object(name, key=KEY)
    if not callable(found):
        raise InputError(
            f"{KEY}={name!a} is {type(found).__name__}, must be a function f(pixels, noise_std)"
        )
    sources = sources_of({KEY: name})
    return Own(denoiser=cast(Denoiser, found), files={**sources.files, **sources.installed})
