"""Rows from rank to rank: point to point, and only those that somebody needs.

What is wanted where follows from the graph, which every rank knows, so no sizes are sent. One
tensor goes from a rank to another in an exchange, however many edges it serves.

Hangs that are known, and what avoids them: both sides post their operations in the order of
(lower rank, higher rank, sender); no batch has more than 256 of them; NCCL's first batch follows a
collective of all ranks (`warm_up`).
"""

from __future__ import annotations

import hmac
import math
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from ...privacy.errors import InputError
from ...privacy.releases.chained_file import sign
from ..algorithms.algorithm import Bound, check_blocks, check_weights
from ..graphs.graph import Topology
from .randomness import Purpose, SecretRandomness

# Ranks: which agents each process of a run holds.


class MissingRank(RuntimeError):
    """A rank did not answer in time, or its process is gone."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Ranks:
    """This process among those that run the agents.

    Attributes:
        agents: A, of the whole run.
        rank: this process, in 0..size-1.
        size: R, how many processes there are.
        timeout: seconds that an exchange of rows may take.
        group: the process group; None is the default one.
        hosts: where each rank runs, in words; nothing where that need not be said.
        secret: which all ranks were started with and nobody else knows; empty if there is none.

    Raises:
        ValueError: a rank without an agent, or a number out of range.

    >>> ranks = Ranks(agents=10, rank=1, size=4)
    >>> list(ranks.mine), ranks.names(3)
    ([2, 3, 4], 'rank 3 of 4 (agents 7..9)')
    """

    agents: int
    rank: int
    size: int
    timeout: float = 60.0
    group: dist.ProcessGroup | None = field(default=None, repr=False)
    hosts: tuple[str, ...] = ()
    secret: bytes = field(default=b"", repr=False)

    def __post_init__(self) -> None:
        """Check that every rank has an agent."""
        if not 1 <= self.size <= self.agents:
            raise InputError(
                f"size={self.size} must lie in [1, {self.agents}], so that each rank has one of "
                f"the {self.agents} agents; start fewer ranks"
            )
        if not 0 <= self.rank < self.size:
            raise InputError(f"rank={self.rank} must lie in [0, {self.size - 1}]")
        if not 0 < self.timeout < math.inf:
            raise InputError(f"timeout={self.timeout} must be a finite number of seconds > 0")

    @classmethod
    def joined(
        cls,
        agents: int,
        *,
        timeout: float = 60.0,
        group: dist.ProcessGroup | None = None,
        hosts: tuple[str, ...] = (),
        secret: bytes = b"",
    ) -> Ranks:
        """The ranks of a process group that is initialised.

        Args:
            agents: A.
            timeout: seconds that an exchange may take.
            group: the process group; None is the default one.
            hosts: where each rank runs, in words.
            secret: of all ranks.

        Raises:
            RuntimeError: there is no process group.
        """
        if not dist.is_initialized():
            raise RuntimeError(
                "there is no process group; call torch.distributed.init_process_group first, or "
                "start the command with torchrun"
            )
        rank, size = dist.get_rank(group), dist.get_world_size(group)
        return cls(
            agents=agents,
            rank=rank,
            size=size,
            timeout=timeout,
            group=group,
            hosts=hosts,
            secret=secret,
        )

    def share(self, rank: int) -> range:
        """The agents of a rank."""
        return range(rank * self.agents // self.size, (rank + 1) * self.agents // self.size)

    @property
    def mine(self) -> range:
        """The agents of this rank."""
        return self.share(self.rank)

    @property
    def peers(self) -> tuple[int, ...]:
        """The other ranks, ascending."""
        return tuple(rank for rank in range(self.size) if rank != self.rank)

    def names(self, rank: int) -> str:
        """A rank and its agents in words."""
        held = self.share(rank)
        agents = f"agent {held[0]}" if len(held) == 1 else f"agents {held[0]}..{held[-1]}"
        where = f" on {self.hosts[rank]}" if self.hosts else ""
        return f"rank {rank} of {self.size} ({agents}{where})"

    @property
    def over_nccl(self) -> bool:
        """Whether the group exchanges CUDA tensors by NCCL."""
        return dist.get_backend(self.group) == "nccl"

    def check_device(self, device: torch.device) -> None:
        """Refuse a device whose tensors the group does not exchange.

        Gloo serves every device, by way of the host.

        Raises:
            ValueError: another device than CUDA with NCCL.
        """
        if self.over_nccl and device.type != "cuda":
            raise InputError(
                f"device={device} does not fit the backend 'nccl', which exchanges cuda tensors; "
                "initialise the group with 'gloo', or run on cuda"
            )


def check_fit(bound: Bound, graph: Topology, *, blocks: int, ranks: Ranks | None) -> None:
    """Refuse weights, blocks or ranks that are not those of the algorithm and the graph.

    Raises:
        ValueError: they are not.
    """
    check_weights(graph, bound.weights)
    check_blocks(bound, blocks)
    if ranks is not None and ranks.agents != graph.agents:
        raise InputError(
            f"ranks of {ranks.agents} agents for a graph of {graph.agents}; give both the same"
        )


_MOST_OPERATIONS = 256  # of one batch
_NONCE = 32  # bytes
_GRACE = 2.0  # seconds in which a rank that stopped as well says for whom it waited


@dataclass(frozen=True, kw_only=True, slots=True)
class Arrivals:
    """Which rows a rank gets together from all ranks, in the order of their global numbers.

    Attributes:
        count: rows in all.
        offers: for each rank, this one included, the positions in its rows that it gets from here;
            None is all rows.
        places: for each rank, this one included, where its rows come to lie.
    """

    count: int
    offers: Mapping[int, Tensor | None]
    places: Mapping[int, slice]

    @classmethod
    def of(
        cls,
        wanted: Sequence[NDArray[np.int64]],
        *,
        shares: Sequence[range],
        rank: int,
        device: torch.device,
    ) -> Arrivals:
        """What is to be sent, once every rank's wants are known.

        Args:
            wanted: for each rank the ascending global numbers of the rows that it needs.
            shares: for each rank the numbers of the rows that it holds; contiguous and ascending.
            rank: this one.
            device: where rows are.

        >>> wanted = [np.array([0, 1, 3]), np.array([1, 2, 3])]
        >>> on = {"shares": [range(2), range(2, 4)], "device": torch.device("cpu")}
        >>> found = Arrivals.of(wanted, rank=0, **on)
        >>> found.count, found.places, found.offers[1].tolist()
        (3, {0: slice(0, 2, None), 1: slice(2, 3, None)}, [1])
        """
        # What this rank gets from each, a slice because wants and shares ascend; and of its own
        # rows those that each wants.
        own, places, offers = shares[rank], dict[int, slice](), dict[int, Tensor | None]()
        for peer, share in enumerate(shares):
            start, stop = np.searchsorted(wanted[rank], [share.start, share.stop]).tolist()
            if start < stop:
                places[peer] = slice(start, stop)
            asked = wanted[peer]
            asked = asked[(asked >= own.start) & (asked < own.stop)] - own.start
            if len(asked):
                every = len(asked) == len(own)
                offers[peer] = None if every else torch.from_numpy(asked).to(device)
        return cls(count=len(wanted[rank]), offers=offers, places=places)


def fetch(rows: Tensor, arrivals: Arrivals, *, ranks: Ranks) -> Tensor:
    """The rows that this rank needs, its own among them.

    Args:
        rows: (n, D) of this rank.
        arrivals: the plan; every rank calls with its own of the same exchange.
        ranks: this process among the others.

    Returns:
        (arrivals.count, D), of the same type; widths are the same on every rank.

    Raises:
        MissingRank: a rank did not answer in time.
    """
    # Rows arrive where they belong, without a copy; a rank's own are copied there meanwhile.
    base = rows.new_empty(arrivals.count, *rows.shape[1:])
    offers = {p: rows if at is None else rows[at] for p, at in arrivals.offers.items()}
    own = offers.pop(ranks.rank, None)
    posted = _post(
        {peer: offered.contiguous() for peer, offered in offers.items()},
        {peer: base[at] for peer, at in arrivals.places.items() if peer != ranks.rank},
        ranks=ranks,
    )
    if own is not None:
        base[arrivals.places[ranks.rank]] = own
    _finish(posted, ranks=ranks)
    return base


def gather(rows: Tensor, *, shares: Sequence[range], ranks: Ranks, to: int | None = None) -> Tensor:
    """All rows of all ranks in their order, on every rank or on one.

    Args:
        shares: for each rank the numbers of the rows that it holds.
        to: the rank that gets them; None is every rank.

    Returns:
        (all rows, D); no rows at all on a rank that does not get them.

    Raises:
        MissingRank: a rank did not answer in time.
    """
    every, none = np.arange(shares[-1].stop), np.arange(0)
    wanted = [every if to in (None, rank) else none for rank in range(ranks.size)]
    plan = Arrivals.of(wanted, shares=shares, rank=ranks.rank, device=rows.device)
    return fetch(rows, plan, ranks=ranks)


class _Operation(NamedTuple):
    """One side of a transfer, in the order in which both sides post it."""

    lower: int
    higher: int
    sender: int
    peer: int
    tensor: Tensor


class _Posted(NamedTuple):
    """Transfers under way, each with a peer that it waits for, and until when."""

    works: list[tuple[Any, int]]
    deadline: float
    operations: list[_Operation]  # keeps tensors alive while they are sent
    landed: list[tuple[Tensor, Tensor]]  # rows that arrive on the host, and where they belong


def _post(sends: Mapping[int, Tensor], receives: Mapping[int, Tensor], *, ranks: Ranks) -> _Posted:
    """Begin to send tensors to other ranks and to receive theirs.

    All is posted before anything is waited for: no rank waits for another that waits for it.

    Args:
        sends: for each peer what it gets; contiguous.
        receives: for each peer where its tensor goes; contiguous, of the shape that is sent.

    Raises:
        MissingRank: the process of a rank is gone.
    """
    deadline = time.monotonic() + ranks.timeout
    # Gloo sends from the host alone, so rows of a device that ranks share pass through it.
    landing = receives
    if not ranks.over_nccl:
        sends = {peer: tensor.cpu() for peer, tensor in sends.items()}
        landing = {
            peer: into if into.device.type == "cpu" else torch.empty_like(into, device="cpu")
            for peer, into in receives.items()
        }
    # Rows that land on the host are copied to their place once they are there.
    landed = [
        (rows, receives[peer]) for peer, rows in landing.items() if rows is not receives[peer]
    ]
    # One order of posting for all ranks; a peer that is gone is named.
    operations = _in_posting_order(sends, landing, rank=ranks.rank)
    running = list[tuple[Any, int]]()
    for batch in _batches(operations, by_peer=not ranks.over_nccl):
        peer = batch[0].peer
        try:
            works = dist.batch_isend_irecv(
                [
                    dist.P2POp(
                        dist.isend if op.sender == ranks.rank else dist.irecv,
                        op.tensor,
                        group=ranks.group,
                        group_peer=op.peer,
                    )
                    for op in batch
                ]
            )
        except RuntimeError as error:
            raise _missing(peer, ranks) from error
        running += [(work, peer) for work in works]
    return _Posted(running, deadline, operations, landed)


def _finish(posted: _Posted, *, ranks: Ranks) -> None:
    """Wait for all of it, within the one deadline.

    Raises:
        MissingRank: a rank did not answer in time, or its process is gone.
    """
    for work, peer in posted.works:
        left = max(posted.deadline - time.monotonic(), 1e-3)
        try:
            if not ranks.over_nccl:
                work.wait(timedelta(seconds=left))
                continue
            # NCCL's `wait` orders the stream and lets the host go on, so that a lost peer would go
            # unseen; an event after it says when the transfer is done.
            work.wait()
            arrived = torch.cuda.Event(blocking=True)
            arrived.record(torch.cuda.current_stream(posted.operations[0].tensor.device))
            if _returns_within(left, arrived.synchronize):
                continue
        except RuntimeError as error:
            raise _missing(peer, ranks) from error
        raise _missing(peer, ranks)

    for rows, into in posted.landed:
        into.copy_(rows)


def _returns_within(seconds: float, call: Callable[[], object]) -> bool:
    """Whether a call that takes no limit returns in time; one that does not keeps its thread."""
    raised = list[RuntimeError]()

    def run() -> None:
        try:
            call()
        except RuntimeError as error:
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if raised:
        raise raised[0]
    return not thread.is_alive()


def _in_posting_order(
    sends: Mapping[int, Tensor], receives: Mapping[int, Tensor], *, rank: int
) -> list[_Operation]:
    found = [
        _Operation(min(rank, to), max(rank, to), rank, to, tensor) for to, tensor in sends.items()
    ]
    found += [
        _Operation(min(rank, of), max(rank, of), of, of, into) for of, into in receives.items()
    ]
    return sorted(found, key=lambda op: op[:3])


def _batches(operations: Sequence[_Operation], *, by_peer: bool) -> Iterator[list[_Operation]]:
    """At most 256 operations at once; of one peer each, where an error shall name it."""
    groups = [list(of) for _, of in groupby(operations, key=lambda op: op.peer)]
    for group in groups if by_peer else [list(operations)]:
        for start in range(0, len(group), _MOST_OPERATIONS):
            yield group[start : start + _MOST_OPERATIONS]


def _missing(suspect: int, ranks: Ranks) -> MissingRank:
    """The rank that is really missing: the suspect, or the one that the suspect waits for in turn.

    A rank that stops tells the store for whom it waited, so that the ranks that waited for it name
    the rank at the end of the chain. Without a store, or if its host hangs, the suspect is named.
    """
    named = [suspect]
    asking = threading.Thread(target=_follow_chain, args=(suspect, ranks, named), daemon=True)
    asking.start()  # calls of a store whose host hangs do not return
    asking.join(3 * _GRACE)
    return MissingRank(
        f"{ranks.names(named[-1])} did not answer within {ranks.timeout:g} s, or its process is "
        "gone: no round goes on without all of its agents; see what that rank printed, then start "
        "all ranks again from the last checkpoint"
    )


def _follow_chain(suspect: int, ranks: Ranks, found: list[int]) -> None:
    """Add the rank at the end of the chain to what was found."""
    named, chain = suspect, {ranks.rank}
    try:
        store = dist.distributed_c10d._get_default_store()  # there is no public way to it
        key = f"overhear/{getattr(ranks.group, 'group_name', 'all')}/stopped/"
        store.set(f"{key}{ranks.rank}", str(suspect))
        # Each rank that stopped names whom it waited for; who names nobody in time is missing.
        while named not in chain:
            chain.add(named)
            until = time.monotonic() + _GRACE
            while not store.check([f"{key}{named}"]) and time.monotonic() < until:
                time.sleep(0.02)
            if not store.check([f"{key}{named}"]):
                found.append(named)
                return
            named = int(store.get(f"{key}{named}"))
            if not 0 <= named < ranks.size:
                return
    except (RuntimeError, ValueError):
        return  # of ranks that wait for one another, or without a store, the suspect stays


def warm_up(ranks: Ranks, *, device: torch.device) -> None:
    """One collective of all ranks, before which NCCL cannot batch.

    Raises:
        ValueError: a device that the group's backend does not serve.
    """
    ranks.check_device(device)
    if ranks.over_nccl:
        dist.all_reduce(torch.zeros(1, device=device), group=ranks.group)


def check_peers(ranks: Ranks) -> None:
    """Refuse connections at whose other end is no rank of this run.

    Gloo takes whoever comes first to a port for the rank that it waits for, also another user of
    the machine. Each end tells a number that is used once, and signs the other's; to which ends a
    signature belongs is signed with them, so that none can be sent back or passed on.

    Args:
        ranks: this process among the others, which have exchanged nothing yet.

    Raises:
        ConnectionError: who is there does not know the secret of the ranks.
        MissingRank: a rank did not answer in time.
    """
    own = secrets.token_bytes(_NONCE)
    heard = _swap(dict.fromkeys(ranks.peers, own), ranks=ranks)
    answers = _swap(
        {peer: _signed(ranks, ranks.rank, peer, heard[peer], own) for peer in ranks.peers},
        ranks=ranks,
    )
    for peer, answer in answers.items():
        if not hmac.compare_digest(answer, _signed(ranks, peer, ranks.rank, own, heard[peer])):
            raise ConnectionError(
                f"who is connected to rank {ranks.rank} of {ranks.size} as rank {peer} does not "
                "know the secret of the ranks: another process has taken its place; nothing was "
                "released, so find out who uses this machine or network, then start all ranks again"
            )


def _signed(ranks: Ranks, sender: int, receiver: int, asked: bytes, own: bytes) -> bytes:
    return sign(ranks.secret, "pair", str(sender), str(receiver), asked, own)


def _swap(sends: Mapping[int, bytes], *, ranks: Ranks) -> dict[int, bytes]:
    """What each peer sends, for what is sent to it; all of one length."""
    row = {peer: torch.tensor(list(data), dtype=torch.uint8) for peer, data in sends.items()}
    found = {peer: torch.zeros_like(data) for peer, data in row.items()}
    _finish(_post(row, found, ranks=ranks), ranks=ranks)
    return {peer: bytes(data.tolist()) for peer, data in found.items()}


def share_root(ranks: Ranks, *, root: int | None = None, device: torch.device | None = None) -> int:
    """One root of all noise and batches for every rank; rank 0's counts.

    It crosses the connections of the group hidden by the secret of the ranks and a number that is
    used once; without a secret anybody who reads them knows it. It is written and logged nowhere.

    Args:
        ranks: this process among the others.
        root: in [0, 2^128) on rank 0; of the system's entropy when None.
        device: where rows are; the CPU by default.

    Raises:
        MissingRank: a rank did not answer in time.
    """
    held = torch.zeros(1, _NONCE + 16, dtype=torch.uint8)
    if ranks.rank == 0:
        chosen = secrets.randbits(128) if root is None else root
        once = secrets.token_bytes(_NONCE)
        hidden = (chosen ^ _mask(ranks, once)).to_bytes(16, "little")
        held = torch.tensor([list(once + hidden)], dtype=torch.uint8)
    shares = [range(min(rank, 1), 1) for rank in range(ranks.size)]  # rank 0 alone has a row
    mine = held.to(device or "cpu")[: len(shares[ranks.rank])]
    found = bytes(gather(mine, shares=shares, ranks=ranks).flatten().tolist())
    return int.from_bytes(found[_NONCE:], "little") ^ _mask(ranks, found[:_NONCE])


def _mask(ranks: Ranks, once: bytes) -> int:
    return int.from_bytes(sign(ranks.secret, "root", once)[:16], "little")


def check_same_root(randomness: SecretRandomness, *, ranks: Ranks, device: torch.device) -> None:
    """Refuse ranks whose randomness differs: shared noise would not be the noise of the proof.

    A number is compared that no run draws, of a stream beyond every round, and the hardening.

    Args:
        randomness: of this rank.

    Raises:
        ValueError: ranks with different roots, or of which some harden their noise.
        MissingRank: a rank did not answer in time.
    """
    last = 2**32 - 1
    stream = randomness.stream(Purpose.BATCH, round=last, call=last, row=last)
    number = 2 * int(stream.integers(2**62)) + randomness.hardened
    mine = torch.tensor([[number]], device=device)
    shares = [range(rank, rank + 1) for rank in range(ranks.size)]
    found = gather(mine, shares=shares, ranks=ranks).flatten().tolist()
    other = [rank for rank, number in enumerate(found) if number != found[0]]
    if other:
        raise InputError(
            f"rank {other[0]} has another root than rank 0, or hardens its noise otherwise, so "
            "noise that agents share would differ; leave out randomness, or give every rank "
            "SecretRandomness(share_root(ranks))"
        )
