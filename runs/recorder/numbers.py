"""Numbers as a caller has them, as those that a line of JSON takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor

__all__ = ["plain"]


def plain(found: Any) -> Any:
    """Numbers of numpy as those of Python, and tuples and sets as lists."""
    if isinstance(found, np.ndarray | Tensor):
        return plain(found.tolist())
    if isinstance(found, np.generic):
        return found.item()
    if isinstance(found, Mapping):
        return {str(key): plain(of) for key, of in found.items()}
    if isinstance(found, set | frozenset):
        return sorted(map(plain, found), key=str)
    if isinstance(found, list | tuple | range):
        return [plain(one) for one in found]
    return found
