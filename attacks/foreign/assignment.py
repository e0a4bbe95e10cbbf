"""Coins that are tossed before training and stay sealed until scores have been taken.

The file of the coins is written, synced and closed before anything else happens, so that nobody can
choose them afterwards; it is readable to its owner alone, and never overwritten.
"""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...privacy.errors import InputError
from ...privacy.files import BINARY, sync_folder, write_all

SCHEMA = "canary-coins-1"
_OWNER_ALONE = 0o600

Bools = NDArray[np.bool_]


class SealedCoins:
    """A fair coin for each canary.

    Args:
        count: how many, at least 1.
        seed: for coins that can be tossed again, in tests; from the system's entropy by default.
        path: where they are written first; a file that is there is refused.

    Raises:
        ValueError: a seed below 0.
        FileExistsError: `path` is there.

    >>> coins = SealedCoins(400, seed=1)
    >>> coins.opened
    False
    >>> coins.open().shape
    (400,)
    """

    def __init__(self, count: int, *, seed: int | None = None, path: Path | None = None) -> None:
        if seed is not None and seed < 0:
            raise InputError(
                f"seed={seed} must be at least 0; leave it out for a random assignment"
            )
        entropy = secrets.randbits(128) if seed is None else seed
        self._coins: Bools = np.random.default_rng(entropy).random(count) < 0.5
        self._coins.setflags(write=False)
        self.opened = False
        if path is not None:
            _write(path, self._coins, seed)

    def open(self) -> Bools:
        """(m,) the coins, from now on readable as `included`."""
        self.opened = True
        return self._coins

    @property
    def included(self) -> Bools:
        """(m,) the coins, once they are open.

        Raises:
            ValueError: they are sealed.
        """
        if not self.opened:
            raise InputError(
                "the assignment is sealed until the canaries are scored; call score(model), or "
                "reveal() where something else scores them"
            )
        return self._coins

    def is_in(self, canary: int) -> bool:
        """Whether a canary is in the training set; for whoever hands out records."""
        return bool(self._coins[canary])

    def __repr__(self) -> str:
        """How many there are, and nothing of what they show."""
        return f"SealedCoins({self._coins.size}, {'open' if self.opened else 'sealed'})"


def _write(path: Path, coins: Bools, seed: int | None) -> None:
    text = json.dumps(
        {"schema": SCHEMA, "count": int(coins.size), "seed": seed}
        | {"included": "".join("1" if coin else "0" for coin in coins)}
    )
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | BINARY
    try:
        file = os.open(path, flags, _OWNER_ALONE)
    except FileExistsError:
        raise FileExistsError(
            f"{path} exists; an assignment is never drawn again over another, name another file"
        ) from None
    try:
        write_all(file, f"{text}\n".encode())
    finally:
        os.close(file)
    sync_folder(path.resolve().parent)
