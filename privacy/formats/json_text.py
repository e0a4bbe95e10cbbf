r"""JSON, of which every reader takes the same: what Python and the readers after it can hold.

Refused are a key that stands twice, NaN and Infinity, a number that no float holds, text that is
half a character, nesting beyond what the interpreter follows, and millions of lists, objects and
texts: an empty one takes a hundred times the bytes that it is written in.
"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any, NoReturn

from ..errors import InputError
from ..files import read_bounded

_MOST_DIGITS = 308  # of an integer: a float holds it
_MOST_LISTS = 1 << 21  # and objects; links of a graph are lists
_MOST_TEXTS = 1 << 22
_HALF = re.compile(r"\\u[dD][89a-fA-F]")


def parse_json(text: str | bytes) -> Any:
    r"""The value of a JSON text.

    Args:
        text: of a file or a line; bytes in an encoding of Unicode.

    Raises:
        InputError: it is none, in a clause that follows the name of what was read.

    >>> parse_json('{"round": 3}')
    {'round': 3}
    >>> parse_json('{"round": NaN}')
    Traceback (most recent call last):
    overhear...InputError: is no JSON: NaN is no number of JSON
    """
    try:
        if isinstance(text, bytes):
            text = text.decode(json.detect_encoding(text))
        check_counts(text)
        found = json.loads(
            text,
            object_pairs_hook=_once,
            parse_constant=_no_constant,
            parse_float=_finite,
            parse_int=_whole,
        )
        if _HALF.search(text):
            json.dumps(found, ensure_ascii=False).encode("utf-8")
    except (UnicodeDecodeError, UnicodeEncodeError) as error:
        raise InputError(f"is no JSON: its text is no Unicode ({error.reason})") from error
    except RecursionError as error:
        raise InputError("is no JSON that is read: it is nested too deep") from error
    except InputError:
        raise
    except ValueError as error:
        raise InputError(f"is no JSON: {error}") from error
    return found


def check_counts(text: str | bytes, *, most: int = _MOST_LISTS) -> None:
    """Refuse a JSON text of millions of lists, objects and texts, before it is parsed.

    Args:
        text: of a file or a line; bytes in UTF-8.
        most: lists and objects.
    """
    signs = text.decode("latin1") if isinstance(text, bytes) else text
    lists, quotes = signs.count("[") + signs.count("{"), signs.count('"')
    if lists > most or quotes > 2 * _MOST_TEXTS:
        raise InputError(
            f"is no JSON that is read: it has {lists} lists and objects and {quotes // 2} texts, "
            f"and may have {most} and {_MOST_TEXTS}"
        )


def read_json(path: Path, most: int) -> Any:
    """The value of a JSON file of at most so many bytes.

    Raises:
        FileNotFoundError: it is not there.
        ValueError: it is larger, no regular file, or `parse_json` refuses it.
    """
    held = read_bounded(path, most)
    try:
        return parse_json(held)
    except InputError as error:
        raise InputError(f"{path} {error}; put it back as it was written") from error


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands twice")
    return found


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:20]} is too large")
    return value


def _whole(text: str) -> int:
    if len(text) > _MOST_DIGITS:
        raise ValueError(f"an integer has {len(text)} digits, and at most {_MOST_DIGITS} are read")
    return int(text)
