"""Batches of whole users, and whose the records of a batch are.

Each user of an agent has a coin of its own, whatever the number of its records, and all of them
are in the batch where it falls that way. Who has records is secret, and so is how many users there
are: nothing here is sent.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...privacy.errors import InputError
from ..data.partition import poisson_batch
from ..step.script import Entry
from ..step.values import Per

__all__ = ["NO_USERS", "check_users_of", "drawn_users", "needs_users"]

NO_USERS = (
    "the step draws or clips by user, and nothing says whose a record is: name a column by [data] "
    "user, or give a data set or a setting its users"
)


def drawn_users(users: Tensor, rate: float, *, generator: np.random.Generator) -> NDArray[np.int64]:
    """(B,) ascending positions of the records of a Poisson batch of users.

    Args:
        users: (n,) the number of the user of each record of an agent.
        rate: probability of a user to be in the batch.
        generator: secret, of this batch alone.

    >>> of = torch.tensor([5, 7, 5, 9, 7])
    >>> drawn_users(of, 0.5, generator=np.random.default_rng(1)).tolist()
    [3]
    """
    names, number = np.unique(users.numpy(), return_inverse=True)
    chosen = poisson_batch(len(names), rate, generator=generator)
    return np.flatnonzero(np.isin(number, chosen)).astype(np.int64)


def check_users_of(users: Sequence[Tensor], held: Sequence[int]) -> None:
    """Refuse users that are not one for each record of each agent.

    Args:
        users: by agent the number of the user of each of its records.
        held: by agent how many records it holds.

    Raises:
        ValueError: another number of agents, or of records of one.
    """
    if len(users) != len(held):
        raise InputError(f"users are of {len(users)} agents, and there are {len(held)}")
    for agent, (of, records) in enumerate(zip(users, held, strict=True)):
        if of.dtype != torch.int64 or tuple(of.shape) != (records,):
            raise InputError(
                f"users of agent {agent} must be {records} int64 numbers, one a record, not "
                f"{tuple(of.shape)} {of.dtype}"
            )


def needs_users(script: Sequence[Entry]) -> bool:
    """Whether a round draws or clips by user.

    >>> needs_users([Entry("draw", (("sampling_rate", None), ("per", "user")))])
    True
    """
    return any(("per", Per.USER.value) in entry.given for entry in script)
