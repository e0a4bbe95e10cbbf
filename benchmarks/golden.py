"""What small runs left when they were last looked at: the files of tests/golden.

A folder of goldens holds run files, what they name (a table, a file of algorithms, a policy), and
what `compare_trees.py --write` wrote: NAME.json for NAME.toml, and words.txt with every sentence
once. In NAME.json a sentence stands as `§` and the start of its digest, so that a change of words
is a change of words.txt, and a change of NAME.json is one of figures, statuses or keys. A table
that stands there before is `=` and the way to it.

A tensor is kept as shape, norm, a sum with random signs, and a digest of its bits. Numbers are
kept in full. On another machine the last digits differ: `agree` compares to `CLOSE`, and what no
tolerance fits is in `EXACT`.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

WORDS = "words.txt"
SHORT = 32  # characters of a sentence that stands in NAME.json itself
LONG = 50  # characters of a table from which on it stands there once
CLOSE = 1e-5  # relative; arithmetic in float32 differs by some 1e-7 a round
EXACT = (
    *("*.bits", "*.chain", "run folder.*.png", "run folder.environment.json.*"),
    *("*.metadata.*", "*.records", "*.reproduce.*"),
)
"""Patterns of paths that only the same machine repeats."""
ROUNDING = 120.0  # dB; above it a PSNR is that of rounding, which is another on another machine
_SUCH_A_CELL = re.compile(r"\| 1[2-9]\d(\.\d+)? +(?=\|)")
_DIGEST = re.compile(r"[0-9a-f]{40,}")


def golden_of(value: Any, ignored: Callable[[str], bool], path: str = "") -> Any:
    """What a case left, as JSON, with a summary in place of a tensor, and the start of a digest.

    Args:
        value: what stands at the path.
        ignored: whether what stands at a path is left out.
        path: keys, joined by dots.
    """
    if isinstance(value, Tensor):
        return _summary(value)
    if isinstance(value, dict):
        paths = {key: f"{path}.{key}" if path else key for key in value}
        return {
            key: golden_of(value[key], ignored, at) for key, at in paths.items() if not ignored(at)
        }
    if isinstance(value, list):
        return [golden_of(held, ignored, f"{path}.{at}") for at, held in enumerate(value)]
    return value[:12] if isinstance(value, str) and _DIGEST.fullmatch(value) else value


def _summary(tensor: Tensor) -> dict[str, Any]:
    """Shape, norm, the sum with signs drawn from a seed, and a digest.

    >>> _summary(torch.tensor([3.0, 4.0]))["norm"]
    5.0
    """
    flat = tensor.reshape(-1).double()
    signs = torch.randint(0, 2, (len(flat),), generator=torch.Generator().manual_seed(0))
    digest = hashlib.sha256(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return {
        "shape": f"{tensor.dtype} {list(tensor.shape)}",
        "norm": float(flat.norm()),
        "signed sum": float((2.0 * signs.double() - 1.0) @ flat),
        "bits": digest.hexdigest()[:12],
    }


def agree(old: Any, new: Any, path: str) -> bool:
    """Whether what stands at a path is the same but for the last digits of another machine."""
    if any(fnmatchcase(path, pattern) for pattern in EXACT):
        return True
    if isinstance(old, str) and isinstance(new, str) and path.startswith("printed."):
        return _SUCH_A_CELL.sub("| |", old) == _SUCH_A_CELL.sub("| |", new)
    if not isinstance(old, float) or not isinstance(new, float):
        return False
    if "psnr" in path.split(".") and min(old, new) > ROUNDING:
        return True
    return math.isclose(old, new, rel_tol=CLOSE, abs_tol=CLOSE) or (old != old and new != new)


def write(folder: Path, name: str, golden: dict[str, Any]) -> set[str]:
    """Write NAME.json, and return the sentences that it names."""
    said: set[str] = set()
    seen: dict[str, str] = {}

    def short(value: Any, path: str) -> Any:
        if isinstance(value, dict | list):
            first = seen.setdefault(repr(value), path)
            if first != path and len(repr(value)) > LONG:
                return f"={first}"
        if isinstance(value, dict):
            return {key: short(held, f"{path}|{key}") for key, held in value.items()}
        if isinstance(value, list):
            return [short(held, f"{path}|{at}") for at, held in enumerate(value)]
        if isinstance(value, str) and len(value) > SHORT:
            said.add(value)
            return _mark(value)
        return value

    text = json.dumps(short(golden, ""), ensure_ascii=False, indent=0, separators=(",", ":"))
    (folder / f"{name}.json").write_text(_folded(text) + "\n", encoding="utf-8")
    return said


def _mark(sentence: str) -> str:
    return f"§{hashlib.sha256(sentence.encode()).hexdigest()[:8]}"


def _folded(text: str) -> str:
    r"""Lists of numbers on a line each.

    >>> _folded("[\\n1.5,\\n2\\n]")
    '[1.5,2]'
    """
    return re.sub(r"\[[-\d.,e+\n]+\]", lambda numbers: numbers.group().replace("\n", ""), text)


def write_words(folder: Path, said: set[str]) -> None:
    """Write words.txt: a sentence a line, in the order of the alphabet."""
    lines = sorted(json.dumps(sentence, ensure_ascii=False) for sentence in said)
    (folder / WORDS).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def read(folder: Path, name: str) -> dict[str, Any]:
    """What `write` wrote, or {} where there is nothing."""
    path = folder / f"{name}.json"
    if not path.exists():
        return {}
    lines = (folder / WORDS).read_text(encoding="utf-8").splitlines()
    words = {_mark(sentence): sentence for sentence in map(json.loads, lines)}

    found = json.loads(path.read_text(encoding="utf-8"))

    def long(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: long(held) for key, held in value.items()}
        if isinstance(value, list):
            return [long(held) for held in value]
        if isinstance(value, str) and value.startswith("=|"):
            at = found
            for key in value[2:].split("|"):
                at = at[int(key) if isinstance(at, list) else key]
            return long(at)
        return words.get(value, value) if isinstance(value, str) else value

    return {key: long(held) for key, held in found.items()}
