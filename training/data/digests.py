"""Digests of records, which are compared and never published."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from .examples import Examples  # noqa: F401 - of the examples below
from .store import Held, Store, blocks

__all__ = ["digest_of_records", "digests_of"]

_BYTES = 32  # of a SHA-256


def digests_of(records: Store, *, targets: bool = True) -> NDArray[np.bytes_]:
    """(N,) SHA-256 of each record in their order, by default with its target; 32 bytes a record.

    >>> from torch import ones
    >>> twice = Examples(ones(2, 3), ones(2))
    >>> len(set(digests_of(twice).tolist()))
    1
    """
    found = np.empty(records.size, dtype=f"S{_BYTES}")
    for place, one in enumerate(_each(records, targets=targets)):
        found[place] = one
    return found


def _each(records: Store, *, targets: bool) -> Iterator[bytes]:
    for block in blocks(records):
        inputs = block.inputs.detach().cpu().contiguous()
        shape = f"{inputs.dtype} {tuple(inputs.shape[1:])} ".encode()
        for row, target in zip(inputs.numpy(), block.targets.cpu().tolist(), strict=True):
            label = f"{target} ".encode() if targets else b""
            yield hashlib.sha256(shape + label + row.tobytes()).digest()


def digest_of_records(shards: Sequence[Held]) -> tuple[str, str]:
    """SHA-256 of all records, in whatever order and wherever they are, and of who holds which.

    Args:
        shards: the records of each agent, normalised.

    Returns:
        Of the records; and of the records of each agent, in the order of the agents.

    >>> import torch
    >>> ones, zeros = (Examples(value * torch.ones(1, 2), torch.zeros(1)) for value in (1.0, 0.0))
    >>> first, second = digest_of_records([ones, zeros]), digest_of_records([zeros, ones])
    >>> first[0] == second[0], first[1] == second[1]
    (True, False)
    """
    every = np.empty(sum(shard.size for shard in shards), dtype=f"S{_BYTES}")
    held, start = hashlib.sha256(), 0
    for shard in shards:
        mine = every[start : start + shard.size]
        mine[:] = digests_of(shard)
        mine.sort()
        held.update(hashlib.sha256(mine.view(np.uint8).data).digest())
        start += shard.size
    every.sort()
    return hashlib.sha256(every.view(np.uint8).data).hexdigest(), held.hexdigest()
