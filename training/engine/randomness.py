"""Secret randomness: noise, Poisson batches and cohorts, seeded for each source.

Every source (purpose, round, call, row) has a stream of its own of the counter-based generator
Philox4x64 under one 128-bit root, so no two releases can share noise, and agents on several ranks
draw what one process would. The root comes from the system's entropy; a root of the caller's
choosing makes the noise reproducible, and then whoever knows the root can subtract it.

Hardened noise is the sum of four independent draws in float64, halved and rounded once (Holohan and
Braghin, "Secure random sampling in differential privacy", 2021, arXiv:2107.10138, section 5.1)::

    z = (z_1 + z_2 + z_3 + z_4) / 2        standard normal, as each of them is

**Against what.** A sampler reaches only some of the floating-point numbers. Who sees x + std z can
ask for each candidate x whether z is among those reached, and rule out the others (Mironov 2012).
One float32 draw has about 2^32 outcomes, which can be listed, and only some 3,000 of either sign
beyond 6 standard deviations; near 0 it misses most float32 numbers. A float64 draw comes from 64
bits. A sum of four has no such list: three draws have to be searched for each value of the fourth.

**Not against** the rounding of x + std z itself, whose lowest bits show the size of x where the sum
is much smaller than x; the timing of the sampler; or a generator that is not cryptographic: whoever
inverts Philox has the noise, however many draws are added.

Caveat: the guarantee is the one of exact, real-valued Gaussian noise. Floating-point noise,
hardened or not, approximates it, and rounding what it is added to is a further step; no bound here
covers either.
"""

from __future__ import annotations

import enum
import secrets
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NoReturn, NotRequired, Protocol, TypedDict, Unpack

import numpy as np

from ...privacy.errors import InputError, InputTypeError
from ..device.later import torch

if TYPE_CHECKING:
    from torch import Tensor

_LEAST_WIDTH, _LEAST_PART = 2**12, 2**16  # of a row, and of a thread's rows together, in values
_DRAWS = 4  # of hardened noise: their sum halved has variance 1


class Purpose(enum.IntEnum):
    """What a stream is for; streams of different purposes never meet."""

    NOISE = 1
    BATCH = 2
    HARDENED_NOISE = 3
    DEVICE_KEY = 4
    COHORT = 5
    FIXED_COHORT = 6


class NoiseAsked(TypedDict):
    """What `SecretRandomness.normal` is given."""

    round: int
    call: int
    rows: Sequence[int]
    width: int
    dtype: torch.dtype
    device: NotRequired[torch.device | str]


class NoiseMaker(Protocol):
    """What a round needs to add noise."""

    def normal(self, **asked: Unpack[NoiseAsked]) -> Tensor:
        """Independent standard normal noise; see `SecretRandomness.normal`."""
        ...


class SecretRandomness:
    """Streams under one root.

    It cannot be pickled or copied, and its words do not show the root: noise that can be drawn
    again can be subtracted.

    Args:
        root: an integer in [0, 2^128); drawn from the system's entropy when None.
        hardened: add four draws for each value of noise. What that hinders, and what it does not,
            is at the head of this module; it takes about 5 times as long.

    Raises:
        ValueError: a root out of range.

    >>> source = SecretRandomness(root=7)
    >>> a = source.normal(round=1, call=0, rows=[3], width=4, dtype=torch.float64)
    >>> b = source.normal(round=1, call=0, rows=[2, 3], width=4, dtype=torch.float64)
    >>> bool((a[0] == b[1]).all()), round(float(a[0, 0]), 6)
    (True, -1.523994)
    >>> source
    SecretRandomness(root given, plain)
    """

    def __init__(self, root: int | None = None, *, hardened: bool = False) -> None:
        self._is_given, self._hardened = root is not None, hardened
        root = secrets.randbits(128) if root is None else root
        if not 0 <= root < 2**128:
            raise InputError(
                "root must lie in [0, 2**128); leave it out to draw one from the system's entropy"
            )
        self._key = np.array([root & (2**64 - 1), root >> 64], dtype=np.uint64)
        self._moving = _Moving(self._key)

    @property
    def hardened(self) -> bool:
        """Whether noise is the sum of four draws."""
        return self._hardened

    def __repr__(self) -> str:
        origin = "given" if self._is_given else "of the system's entropy"
        return f"SecretRandomness(root {origin}, {'hardened' if self._hardened else 'plain'})"

    def __reduce__(self) -> NoReturn:
        raise InputTypeError(
            "SecretRandomness cannot be pickled or copied: anyone who has it can subtract the "
            "noise, so it stays in memory; make a new one where it is needed"
        )

    def renewed(self) -> SecretRandomness:
        """A fresh root, for releasing rounds again; the same one where the caller gave it."""
        return self if self._is_given else SecretRandomness(hardened=self._hardened)

    def counter(
        self, purpose: Purpose, *, round: int, call: int, row: int
    ) -> tuple[int, int, int, int]:
        """Where the stream of one source starts, in words of 64 bits.

        The lowest word counts blocks within a stream: 2^64 of them before streams could meet.

        Raises:
            ValueError: a number that does not fit its place, whose stream would be another's.

        >>> SecretRandomness(root=7).counter(Purpose.BATCH, round=5, call=1, row=3)
        (0, 3, 8589934593, 5)
        """
        if not (0 <= call < 2**32 and 0 <= row < 2**64 and 0 <= round < 2**64):
            raise InputError(
                f"call={call} must lie in [0, 2**32), row={row} and round={round} in [0, 2**64); "
                "number them from 0"
            )
        return 0, row, (int(purpose) << 32) | call, round

    def stream(self, purpose: Purpose, *, round: int, call: int, row: int) -> np.random.Generator:
        """The generator of one source."""
        at = self.counter(purpose, round=round, call=call, row=row)
        counter = np.array(at, dtype=np.uint64)
        return np.random.Generator(np.random.Philox(key=self._key, counter=counter))

    def passing_stream(
        self, purpose: Purpose, *, round: int, call: int, row: int
    ) -> np.random.Generator:
        """What `stream` gives, until this is called again; of many sources in a sixth of the time.

        >>> source, at = SecretRandomness(root=7), {"round": 5, "call": 1, "row": 3}
        >>> kept = float(source.stream(Purpose.BATCH, **at).random())
        >>> float(source.passing_stream(Purpose.BATCH, **at).random()) == kept
        True
        """
        return self._moving.to(self.counter(purpose, round=round, call=call, row=row))

    def coins(self, *, round: int, call: int, rows: Sequence[int], rate: float) -> Tensor:
        """(rows, 1) whether each agent takes part, by a coin of its own.

        Args:
            round: the number of the round.
            call: the number of the call of `cohort` in the round.
            rows: the agents.
            rate: probability of each.
        """
        of, at = Purpose.COHORT, {"round": round, "call": call}
        return torch.tensor([[self.passing_stream(of, **at, row=i).random() < rate] for i in rows])

    def normal(
        self,
        *,
        round: int,
        call: int,
        rows: Sequence[int],
        width: int,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
    ) -> Tensor:
        """Independent standard normal noise, one row a source.

        On the CPU it is drawn by `torch.get_num_threads()` threads, and is the same by any number.

        Args:
            round: the number of the round.
            call: the number of the noise operation in the round.
            rows: the sources (agents or edges).
            width: values a source.
            dtype: torch.float32 or torch.float64.
            device: where the noise is made. Elsewhere than on the CPU it is other noise: that of
                `philox.normal_rows`, keyed by 128 bits for each round and call.

        Returns:
            (rows, width).
        """
        if torch.device(device).type != "cpu":
            return self._normal_on_device(
                round=round, call=call, rows=rows, width=width, dtype=dtype, device=device
            )
        out = torch.empty(len(rows), width, dtype=dtype)
        # A row is the stream of its source from its start, so who draws it does not show.
        parts, values = _parts(len(rows), width), out.numpy()
        if len(parts) == 1:
            self._fill(values, round=round, call=call, rows=rows)
            return out
        with ThreadPoolExecutor(len(parts)) as threads:
            drawn = [
                threads.submit(self._fill, values[at], round=round, call=call, rows=rows[at])
                for at in parts
            ]
        for one in drawn:
            one.result()
        return out

    def normal_array(
        self, *, round: int, call: int, rows: Sequence[int], width: int, dtype: np.dtype[Any]
    ) -> np.ndarray[Any, Any]:
        """(rows, width) the noise that `normal` gives on the CPU, as an array, without torch."""
        out = np.empty((len(rows), width), dtype=dtype)
        self._fill(out, round=round, call=call, rows=rows)
        return out

    def _fill(
        self, out: np.ndarray[Any, Any], *, round: int, call: int, rows: Sequence[int]
    ) -> None:
        """Draw some rows, (rows, width); numpy lets other threads run meanwhile."""
        moving = _Moving(self._key)  # of a thread
        room = np.empty((2, out.shape[1] if self._hardened else 0))
        for row, into in zip(rows, out, strict=True):
            at = self.counter(self._purpose, round=round, call=call, row=row)
            generator = moving.to(at)
            if self._hardened:
                into[:] = _sum_of_draws(generator, room)
            else:
                generator.standard_normal(dtype=into.dtype.type, out=into)

    @property
    def _purpose(self) -> Purpose:
        return Purpose.HARDENED_NOISE if self._hardened else Purpose.NOISE

    def _normal_on_device(
        self,
        *,
        round: int,
        call: int,
        rows: Sequence[int],
        width: int,
        dtype: torch.dtype,
        device: torch.device | str,
    ) -> Tensor:
        from ..device.philox import normal_rows

        # A key of 64 bits and a nonce of 64: two calls share noise only where all 128 are equal.
        stream = self.stream(Purpose.DEVICE_KEY, round=round, call=call, row=self._purpose)
        return normal_rows(
            stream.integers(2**32, size=4, dtype=np.uint32).tolist(),
            rows,
            width=width,
            dtype=dtype,
            device=device,
            draws=_DRAWS if self._hardened else 1,
        )


class _Moving:
    """One generator moved from source to source: to make one takes several times as long."""

    def __init__(self, key: np.ndarray[Any, Any]) -> None:
        self._bits = np.random.Philox(key=key)
        self._generator, self._start = np.random.Generator(self._bits), self._bits.state

    def to(self, counter: Sequence[int]) -> np.random.Generator:
        """The generator at the start of a stream."""
        self._start["state"]["counter"] = np.array(counter, dtype=np.uint64)
        self._bits.state = self._start
        return self._generator


def _parts(rows: int, width: int) -> list[slice]:
    """Rows for each thread; for one alone where others would be waited for longer."""
    most = 1 if width < _LEAST_WIDTH else rows * width // _LEAST_PART
    count = max(1, min(torch.get_num_threads(), rows, most))
    ends = [rows * i // count for i in range(count + 1)]
    return [slice(*ends) for ends in pairwise(ends)]


def _sum_of_draws(
    generator: np.random.Generator, room: np.ndarray[Any, Any]
) -> np.ndarray[Any, Any]:
    """(width,) float64, so that float32 noise is rounded once; in the first row of `room`."""
    total, draw = room
    generator.standard_normal(out=total)
    for _ in range(_DRAWS - 1):
        generator.standard_normal(out=draw)
        total += draw
    total /= _DRAWS**0.5
    return total
