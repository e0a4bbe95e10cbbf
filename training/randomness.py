"""Secret randomness: noise and Poisson batches, seeded for each source.

Every source (purpose, round, call, row) has a stream of its own of the counter-based generator
Philox4x64 under one 128-bit root, so no two releases can share noise, and agents on several ranks
draw what one process would. The root comes from the system's entropy; a root of the caller's
choosing makes the noise reproducible, and then whoever knows the root can subtract it.

Caveat: samples are floating-point numbers of a generator that is not cryptographic; the guarantee
is the one of exact Gaussian noise.
"""

from __future__ import annotations

import enum
import secrets

import numpy as np
import torch
from torch import Tensor


class Purpose(enum.IntEnum):
    """What a stream is for; streams of different purposes never meet."""

    NOISE = 1
    BATCH = 2


class SecretRandomness:
    """Streams under one root.

    Args:
        root: an integer in [0, 2^128); drawn from the system's entropy when None.

    >>> source = SecretRandomness(root=7)
    >>> a = source.normal(round=1, call=0, rows=[3], width=4, dtype=torch.float64)
    >>> b = source.normal(round=1, call=0, rows=[2, 3], width=4, dtype=torch.float64)
    >>> bool((a[0] == b[1]).all()), round(float(a[0, 0]), 6)
    (True, -1.523994)
    """

    def __init__(self, root: int | None = None) -> None:
        self._is_given = root is not None
        root = secrets.randbits(128) if root is None else root
        if not 0 <= root < 2**128:
            raise ValueError(f"root={root} must lie in [0, 2**128)")
        self._key = np.array([root & (2**64 - 1), root >> 64], dtype=np.uint64)

    def renewed(self) -> SecretRandomness:
        """A fresh root, for releasing rounds again; the same one where the caller gave it."""
        return self if self._is_given else SecretRandomness()

    def stream(self, purpose: Purpose, *, round: int, call: int, row: int) -> np.random.Generator:
        """The generator of one source."""
        # The lowest word counts blocks within a stream: 2^64 of them before streams could meet.
        counter = np.array([0, row, (int(purpose) << 32) | call, round], dtype=np.uint64)
        return np.random.Generator(np.random.Philox(key=self._key, counter=counter))

    def normal(
        self,
        *,
        round: int,
        call: int,
        rows: list[int],
        width: int,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
    ) -> Tensor:
        """Independent standard normal noise, one row a source.

        Args:
            round: the number of the round.
            call: the number of the noise operation in the round.
            rows: the sources (agents or edges).
            width: values a source.
            dtype: torch.float32 or torch.float64.
            device: where the noise is made; on CUDA each source seeds a generator of the device.

        Returns:
            (rows, width).
        """
        if torch.device(device).type != "cpu":
            return self._normal_on_device(
                round=round, call=call, rows=rows, width=width, dtype=dtype, device=device
            )
        out = torch.empty(len(rows), width, dtype=dtype)
        values = out.numpy()
        for at, row in enumerate(rows):
            stream = self.stream(Purpose.NOISE, round=round, call=call, row=row)
            stream.standard_normal(dtype=values.dtype.type, out=values[at])
        return out

    def _normal_on_device(
        self,
        *,
        round: int,
        call: int,
        rows: list[int],
        width: int,
        dtype: torch.dtype,
        device: torch.device | str,
    ) -> Tensor:
        out = torch.empty(len(rows), width, dtype=dtype, device=device)
        generator = torch.Generator(device)
        for at, row in enumerate(rows):
            stream = self.stream(Purpose.NOISE, round=round, call=call, row=row)
            generator.manual_seed(int(stream.integers(2**63)))
            out[at].normal_(generator=generator)
        return out
