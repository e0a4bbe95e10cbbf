"""Random numbers that everybody may know: masks, roundings, directions of a seed that is public.

They hide nothing. Each row is a stream of its own of Philox4x64, at (call, row, round) under a key
that is a digest of the seed, so that no seed meets the root of a run's secret noise; they are drawn
on the CPU, and are the same in every process, on every device and whenever they are drawn again.

Uniform numbers are multiples of 2^-24 in [0, 1), which float32 and float64 hold alike.
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...privacy._validate import whole
from ...privacy.errors import InputError, InputTypeError

__all__ = ["PublicKind", "PublicNumbers"]

_BITS = 24  # of a uniform number


class PublicKind(enum.StrEnum):
    """How public numbers are distributed."""

    UNIFORM = "uniform"
    NORMAL = "normal"


class PublicNumbers(NamedTuple):
    """What one call of `round.public` asks for.

    Attributes:
        seed: in [0, 2^64).
        kind: uniform in [0, 1), or standard normal.
        same: whether all agents have the same row.
        round: the number of the round.
        call: how many calls of the round came before.

    >>> asked = PublicNumbers.of(7, kind="uniform", same=False, round=1, call=0)
    >>> a, b = asked.rows([0, 3], width=2)
    >>> a.tolist(), bool((asked.rows([3], width=2)[0] == b).all())
    ([0.8464553356170654, 0.2951229214668274], True)
    """

    seed: int
    kind: PublicKind
    same: bool
    round: int
    call: int

    @classmethod
    def of(
        cls, seed: object, *, kind: object, same: object, round: int, call: int
    ) -> PublicNumbers:
        """What is asked for, once it is checked.

        Raises:
            TypeError: a seed that is no integer, or `same` that is neither true nor false.
            ValueError: a seed out of range, or a kind that is not known.
        """
        number = whole("round.public seed", seed, f"[0, {2**64})")
        if not isinstance(same, bool):
            raise InputTypeError(f"same={same!r:.40} of round.public must be True or False")
        if kind not in tuple(PublicKind):
            known = " or ".join(repr(str(one)) for one in PublicKind)
            raise InputError(f"kind={kind!r:.40} of round.public must be {known}")
        return cls(number, PublicKind(str(kind)), same, round, call)

    def rows(self, agents: Iterable[int], *, width: int) -> Tensor:
        """(agents, width) float64, the rows of these agents."""
        digest = hashlib.blake2b(b"public" + self.seed.to_bytes(8, "little"), digest_size=16)
        key = np.frombuffer(digest.digest(), dtype=np.uint64)
        found = []
        for agent in agents:
            at = np.array([0, 0 if self.same else agent, self.call, self.round], dtype=np.uint64)
            stream = np.random.Generator(np.random.Philox(key=key, counter=at))
            if self.kind is PublicKind.NORMAL:
                found.append(stream.standard_normal(width))
            else:
                found.append(stream.integers(2**_BITS, size=width) / 2.0**_BITS)
        return torch.from_numpy(np.array(found).reshape(-1, width))
