"""The store at which ranks meet, and what they believe of it: values that one of them has signed.

Ranks that `overhear train --ranks` has started share a file in a folder that its owner alone
enters. Who is started by torchrun, or by hand, shares a store that listens on a port, where anybody
who reaches the port may read and write. So each value is signed with the secret of the ranks, for
its key. Without a secret the signature is a checksum, and the port must be closed to strangers.

Nothing here is unpickled: a value is a text, and an exit code is one of `CODES`.
"""

from __future__ import annotations

import hmac
import json
import os
import re

from torch._C._distributed_c10d import PrefixStore, Store

from ...privacy.errors import InputError
from ...training.engine.secret import sign
from ..stop import SIGNALS
from .names import FAILED_FIRST, SECRET, STORE_PREFIX

__all__ = ["CODES", "LyingStore", "RankStore", "secret_of_ranks"]

CODES = frozenset({1, 2, 4, *(128 + number for number in SIGNALS)})
"""The exit codes with which all ranks may end because one has failed or was stopped."""

_SIGNED = 64  # hexadecimal digits of a signature
_SHORTEST_SECRET = 32  # characters


class LyingStore(ConnectionError):
    """The store holds what no rank of this run has written."""


class RankStore:
    """What ranks tell each other, before they are connected and when one fails.

    Args:
        store: where it is kept.
        prefix: of the keys, of this start of the run.

    Attributes:
        plain: the store under this prefix, with which torch connects the ranks.

    >>> from torch.distributed import HashStore
    >>> kept = HashStore()
    >>> store = RankStore(kept, b"known to the ranks")
    >>> store.claim(1, 2), store.claim(0, 130)
    ((1, 2), (1, 2))
    >>> kept.set("overhear/first", "[1, 0]")
    >>> store.claim(0, 130)
    Traceback (most recent call last):
    ...
    overhear.runs.hosts.store.LyingStore: the store of the ranks holds under 'first' ...
    """

    def __init__(self, store: Store, secret: bytes = b"", *, prefix: str = STORE_PREFIX) -> None:
        self.plain = PrefixStore(prefix, store)
        self._secret, self._prefix = secret, prefix

    def _sign(self, key: str, text: str | bytes) -> str:
        return sign(self._secret, "store", self._prefix, key, text).hex()

    def _open(self, key: str, held: bytes) -> str:
        signed, text = held[:_SIGNED], held[_SIGNED:]
        if not hmac.compare_digest(signed, self._sign(key, text).encode()):
            raise LyingStore(
                f"the store of the ranks holds under {key!r} what no rank of this run has written; "
                f"another process writes there, or ranks have different values of {SECRET}: start "
                "all ranks again with one secret that no one else knows"
            )
        return text.decode(errors="replace")

    def set(self, key: str, text: str = "") -> None:
        """Tell a text."""
        self.plain.set(key, self._sign(key, text) + text)

    def get(self, key: str) -> str:
        """A text that a rank has told.

        Raises:
            LyingStore: no rank has.
        """
        return self._open(key, self.plain.get(key))

    def has(self, *keys: str) -> bool:
        """Whether ranks have told all of these.

        Raises:
            LyingStore: one of them was told by somebody else.
        """
        return bool(self.plain.check(list(keys))) and all(self.get(key) is not None for key in keys)

    def claim(self, rank: int, code: int) -> tuple[int, int]:
        """End all ranks with an exit code, unless another has done so: who was first, its code.

        Raises:
            LyingStore: somebody else has.
        """
        text = json.dumps([rank, code])
        held = self.plain.compare_set(FAILED_FIRST, "", self._sign(FAILED_FIRST, text) + text)
        return self._first(held)

    def first(self) -> tuple[int, int]:
        """Who was the first to end all ranks, and its exit code.

        Raises:
            LyingStore: no rank was.
        """
        return self._first(self.plain.get(FAILED_FIRST))

    def _first(self, held: bytes) -> tuple[int, int]:
        text = self._open(FAILED_FIRST, held)
        for code in CODES:
            if (found := re.fullmatch(rf"\[(-1|\d+), {code}\]", text)) is not None:
                return int(found[1]), code
        raise LyingStore(
            f"the store of the ranks holds {text!r} for the rank that failed first and its exit "
            f"code, which no rank has written; one of {', '.join(map(str, sorted(CODES)))} was "
            "expected: start all ranks again"
        )


def secret_of_ranks() -> bytes:
    """The secret of all ranks, which leaves the environment here, so that no child gets it.

    Raises:
        InputError: it is so short that it can be guessed.
    """
    given = os.environ.pop(SECRET, "")
    if 0 < len(given) < _SHORTEST_SECRET:
        raise InputError(
            f"{SECRET} in the environment has {len(given)} characters, must have at least "
            f"{_SHORTEST_SECRET}; make one with `openssl rand -hex 32`, the same for all ranks"
        )
    return os.fsencode(given)
