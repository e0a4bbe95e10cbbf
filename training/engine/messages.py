"""Messages of chosen rounds, put together from all ranks as one process would send them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from .exchange import gather
from .links import Links, Route
from .transcript import Message, Tap

__all__ = ["Gathered", "whole_message"]


class Gathered:
    """Rounds whose messages are heard whole.

    Args:
        rounds: the same on every rank; the messages of other rounds stay where they are.
        taps: called with every message of those rounds, on rank 0 alone where there are ranks.
    """

    def __init__(self, rounds: Collection[int], taps: Sequence[Tap]) -> None:
        self.rounds, self.taps = frozenset(rounds), tuple(taps)


def whole_message(mine: Message, operation: str, *, links: Links) -> Message | None:
    """The message of all agents; every rank takes part, and rank 0 alone gets it.

    Args:
        mine: what this rank's agents send, in the order of their rows.
        operation: "broadcast", "reply", "upload" or "download".
        links: of the round.

    Raises:
        MissingRank: a rank did not answer in time.
    """
    # Rank 0 gets every rank's rows in their order, which is that of one process.
    rows, ranks = mine.rows, links.ranks
    if ranks is not None:
        if operation != "download":  # the server is at rank 0
            shares = links.edge_shares if operation == "reply" else links.agent_shares
            rows = gather(rows, shares=shares, ranks=ranks, to=0)
        if ranks.rank != 0:
            return None
    route: Route = getattr(links.all_routes, operation)
    return replace(mine, senders=route.senders, links=route.links, rows=rows)
