"""Who holds which record, and who takes part in a round.

Records are indices into a data set; each agent's share is fixed before training and public to the
accountant only in its size.

A figure of k records of one person speaks of a user where nobody has more than k records, and all
of a user's records are at one agent. Both are seen to here, before anything is trained. What users
are called enters nothing: records carry a digest of the name, which is compared and never written.
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ...privacy.errors import InputError, within
from ..device.later import torch

if TYPE_CHECKING:
    from torch import Tensor

_DIGEST = 8  # bytes of a user's number

Indices = NDArray[np.int64]
PartitionScheme = Literal["iid", "dirichlet", "shards"]


def partition(
    targets: ArrayLike,
    agents: int,
    *,
    scheme: PartitionScheme = "iid",
    concentration: float = 0.5,
    shards: int = 2,
    generator: np.random.Generator,
) -> list[Indices]:
    """Deals every record to exactly one agent.

    Args:
        targets: (N,) labels of the records.
        agents: A.
        scheme: "iid": at random, shares equal up to one record. "dirichlet": each class is split in
            proportions drawn from Dirichlet(concentration, ..., concentration) (Hsu, Qi, Brown,
            2019); an agent left with nothing gets one record of the richest. "shards": records
            sorted by label are cut into agents x shards pieces, dealt at random (McMahan et al.,
            2017).
        concentration: For "dirichlet"; small means that few agents hold most of a class.
        shards: For "shards": pieces per agent.
        generator: Decides the outcome.

    Returns:
        A arrays of ascending record indices, none empty.

    Raises:
        ValueError: If there are fewer records than agents (or shards), or an argument is out of
            range.

    >>> shares = partition([0] * 50 + [1] * 50, 4, scheme="dirichlet", concentration=0.1,
    ...                    generator=np.random.default_rng(0))
    >>> [share.size for share in shares]
    [51, 31, 1, 17]
    """
    labels = np.asarray(targets)
    _check_counts(labels, agents)
    if scheme == "iid":
        shares = np.array_split(generator.permutation(labels.size), agents)
    elif scheme == "dirichlet":
        shares = _dirichlet(labels, agents, concentration, generator=generator)
    elif scheme == "shards":
        shares = _shards(labels, agents, shards, generator=generator)
    else:
        names = ", ".join(get_args(PartitionScheme))
        raise InputError(f"scheme={scheme!r} is unknown; choose one of {names}")
    return [np.sort(share).astype(np.int64) for share in shares]


def _check_counts(labels: NDArray[np.generic], agents: int) -> None:
    if labels.ndim != 1:
        raise InputError(f"targets has shape {labels.shape}, must be (N,): one label a record")
    within("agents", agents, "[1, inf)")
    if agents > labels.size:
        raise InputError(
            f"agents={agents} is more than the {labels.size} records; every agent needs at least "
            "one, so use fewer agents"
        )


def _dirichlet(
    labels: NDArray[np.generic],
    agents: int,
    concentration: float,
    *,
    generator: np.random.Generator,
) -> list[NDArray[np.int64]]:
    within("concentration", concentration, "(0, inf)")
    # Each class for itself: its records in a random order, cut in the proportions that are drawn.
    owner = np.empty(labels.size, dtype=np.int64)
    for label in np.unique(labels):
        members = generator.permutation(np.flatnonzero(labels == label))
        proportions = generator.dirichlet(np.full(agents, concentration))
        if not np.isfinite(proportions).all():  # every gamma draw underflowed
            raise InputError(f"concentration={concentration} is too small to draw from; raise it")
        cuts = np.round(np.cumsum(proportions)[:-1] * members.size).astype(np.int64)
        for agent, piece in enumerate(np.split(members, cuts)):
            owner[piece] = agent
    # No agent stays without a record.
    sizes = np.bincount(owner, minlength=agents)
    for empty in np.flatnonzero(sizes == 0):
        richest = np.bincount(owner, minlength=agents).argmax()
        owner[generator.choice(np.flatnonzero(owner == richest))] = empty
    return [np.flatnonzero(owner == agent) for agent in range(agents)]


def _shards(
    labels: NDArray[np.generic], agents: int, shards: int, *, generator: np.random.Generator
) -> list[NDArray[np.int64]]:
    within("shards", shards, "[1, inf)")
    if agents * shards > labels.size:
        raise InputError(
            f"agents={agents} times shards={shards} is more than the {labels.size} records; use "
            "fewer of either"
        )
    shuffled = generator.permutation(labels.size)
    by_label = shuffled[np.argsort(labels[shuffled], kind="stable")]
    pieces = np.array_split(by_label, agents * shards)
    hands = generator.permutation(agents * shards).reshape(agents, shards)
    return [np.concatenate([pieces[piece] for piece in hand]) for hand in hands]


def poisson_batch(records: int, sampling_rate: float, *, generator: np.random.Generator) -> Indices:
    """Each record takes part independently with probability sampling_rate.

    This is the sampling that the accountant amplifies by; the size of the batch varies and may be
    0. Shuffled batches of fixed size are not covered by it.

    Args:
        records: How many records the agent holds.
        sampling_rate: In [0, 1], per round.
        generator: Decides who takes part. Its state must stay secret wherever the guarantee counts
            on sampling.

    Returns:
        Ascending indices in [0, records), possibly none.

    Raises:
        ValueError: If sampling_rate is outside [0, 1] or records is negative.

    >>> poisson_batch(20, 0.25, generator=np.random.default_rng(0)).tolist()
    [2, 3, 11, 13, 15]
    """
    remedy = "did you mean the batch size? Divide it by the number of records"
    within("sampling_rate", sampling_rate, "[0, 1]", remedy)
    if records < 0:
        raise InputError(f"records={records} must not be negative")
    return (generator.random(records) < sampling_rate).nonzero()[0]


def user_numbers(names: Sequence[str]) -> NDArray[np.int64]:
    """(N,) a number for each name, the same for the same text, however its accents are written.

    Two names get one number with a probability of N^2 / 2^65 in all; they would count as one user,
    who then has more records, not fewer.
    """
    digests = b"".join(
        hashlib.blake2b(
            unicodedata.normalize("NFC", name).encode("utf-8", "surrogatepass"), digest_size=_DIGEST
        ).digest()
        for name in names
    )
    return np.frombuffer(digests, dtype="<i8").astype(np.int64)


def parts_held(held_by: Tensor, agents: int) -> list[Indices]:
    """By agent the indices of the records that the data say it holds.

    Args:
        held_by: (N,) agent of each record.

    Raises:
        ValueError: a record of an agent that is not there, or an agent without one.

    >>> [part.tolist() for part in parts_held(torch.tensor([1, 0, 1]), 2)]
    [[1], [0, 2]]
    """
    of = held_by.numpy()
    if of.size and not 0 <= of.min() <= of.max() < agents:
        raise InputError(
            f"the data name agents {of.min()} to {of.max()} for their records, and there are "
            f"agents={agents}; make them for as many agents"
        )
    parts = [np.flatnonzero(of == agent) for agent in range(agents)]
    for agent, part in enumerate(parts):
        if not part.size:
            raise InputError(f"agent {agent} holds no record; give every agent one or more")
    return parts


def check_cap(users: Tensor, most: int) -> None:
    """Refuse data in which a user has more records than the public cap.

    Args:
        users: (N,) number of each record's user.
        most: the cap, k.

    Raises:
        ValueError: one has. How many have, or who, is not said.

    >>> check_cap(torch.tensor([4, 4, 5]), 2)
    """
    _, counts = torch.unique(users, return_counts=True)
    if len(counts) and int(counts.max()) > most:
        raise InputError(
            f"a user has more than {most} {'record' if most == 1 else 'records'}; raise "
            "records_per_person, or drop records by a public rule"
        )


def check_together(users: Tensor, parts: Sequence[NDArray[np.int64]]) -> None:
    """Refuse a partition that spreads the records of a user over agents.

    Args:
        parts: by agent the indices of its records.

    Raises:
        ValueError: it does, so that a figure of one agent's records is not that of a user.

    >>> check_together(torch.tensor([4, 4, 5]), [np.array([0, 1]), np.array([2])])
    """
    held = [np.unique(users.numpy()[part]) for part in parts]
    if sum(map(len, held)) > len(np.unique(np.concatenate(held))):
        raise InputError(
            "the records of a user lie at several agents, and the figures are about the records "
            "that one agent holds; keep a user's records at one agent, or name the agents of one "
            "person in [privacy] holders"
        )


def deal_users(
    users: Tensor, agents: int, *, generator: np.random.Generator
) -> list[NDArray[np.int64]]:
    """Deal users to agents at random, as many to each up to one, with all of their records.

    Args:
        generator: decides the outcome.

    Returns:
        A arrays of record indices, none empty.

    Raises:
        ValueError: there are fewer users than agents.
    """
    names, of = np.unique(users.numpy(), return_inverse=True)
    if agents > len(names):
        raise InputError(
            f"agents={agents} is more than there are users, whose records stay together; use fewer "
            "agents"
        )
    owner = np.empty(len(names), dtype=np.int64)
    for agent, mine in enumerate(np.array_split(generator.permutation(len(names)), agents)):
        owner[mine] = agent
    return [np.flatnonzero(owner[of] == agent) for agent in range(agents)]


def hold_out_users(
    users: NDArray[np.int64], count: int, *, generator: np.random.Generator
) -> NDArray[np.int64]:
    """Indices of the records of users who are held out: whole ones, at least `count` records.

    Args:
        generator: decides who.

    Raises:
        ValueError: nothing would be left.
    """
    names, of, sizes = np.unique(users, return_inverse=True, return_counts=True)
    order = generator.permutation(len(names))
    last = int(np.searchsorted(np.cumsum(sizes[order]), count))
    if last + 1 >= len(names):
        raise InputError(
            "there are too few users to hold some out for testing; name a test file, [data] test"
        )
    chosen = np.zeros(len(names), dtype=bool)
    chosen[order[: last + 1]] = True
    return np.flatnonzero(chosen[of])
