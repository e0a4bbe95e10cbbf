"""Which rank of how many a process is, as who started it tells in the environment."""

from __future__ import annotations

import os
from dataclasses import dataclass

from ...privacy.errors import InputError
from .names import AGENT_STORE

__all__ = ["Place"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Which rank of how many a process is, and which of those on its machine.

    Attributes:
        rank, size: among all.
        local_rank, local_size: among those of this machine.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int

    @classmethod
    def of_environment(cls) -> Place | None:
        """As torchrun tells it; None of a process that nobody started as a rank.

        Raises:
            ValueError: a variable that is not a number, or a rank beyond the number of ranks.

        >>> from unittest import mock
        >>> told = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
        >>> with mock.patch.dict("os.environ", told):
        ...     print(Place.of_environment().rank)
        1
        """
        if not {"RANK", "WORLD_SIZE", "MASTER_ADDR"} <= os.environ.keys():
            return None
        rank, size = _number("RANK", 0), _number("WORLD_SIZE", 1)
        if rank >= size:
            raise InputError(
                f"RANK={rank} in the environment must lie in [0, {size - 1}], below WORLD_SIZE; "
                "start with torchrun"
            )
        return cls(
            rank=rank,
            size=size,
            local_rank=_number("LOCAL_RANK", rank),
            local_size=_number("LOCAL_WORLD_SIZE", size),
        )

    def check_size(self, ranks: int | None) -> None:
        """Refuse another number of ranks than those that were started.

        Raises:
            ValueError: they differ.
        """
        if ranks is not None and ranks != self.size:
            raise InputError(
                f"--ranks {ranks} differs from the {self.size} ranks that are started already "
                "(WORLD_SIZE); leave --ranks out under torchrun"
            )

    @staticmethod
    def quieten_libraries() -> None:
        """Keep torch's stacks off the terminal, unless asked for; to be called before it loads.

        A rank that is gone, or does not come, is told in a sentence.
        """
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")

    @property
    def keeps_store(self) -> bool:
        """Whether the ranks meet at a store of this process, and not of the one that began it."""
        return self.rank == 0 and os.environ.get(AGENT_STORE) != str(True)


def _number(name: str, default: int) -> int:
    given = os.environ.get(name, str(default))
    if not given.isdecimal():
        raise InputError(
            f"{name}={given!r} in the environment must be a number; start with torchrun"
        )
    return int(given)
