"""What is sent, as it is told to taps; of chosen rounds put together from all ranks."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from torch import Tensor

from ..step.values import Value
from .exchange import gather
from .links import Links, Route
from .transcript import Message, Tap

__all__ = ["Gathered", "Outbox", "whole_message"]


class Gathered:
    """Rounds whose messages are observed whole.

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


class Outbox:
    """Tells the taps of a round every message before it is delivered.

    Args:
        links: of the round.
        round: its number.
        taps: called with what this rank's agents send.
        gathered: rounds whose messages rank 0 hears whole.
    """

    def __init__(
        self, links: Links, *, round: int, taps: Sequence[Tap], gathered: Gathered | None
    ) -> None:
        self._links, self._round, self._taps, self._calls = links, round, taps, 0
        wanted = gathered is not None and round in gathered.rounds
        self._gathered = gathered if wanted else None

    def tell(self, operation: str, value: Value, *, kind: str) -> Tensor:
        """Let the taps hear a message; its rows that are here."""
        # Whom this rank's rows go to.
        rows: Tensor = value.rows
        route: Route = getattr(self._links.routes, operation)
        message = Message(
            round=self._round,
            call=self._calls,
            kind=kind,
            senders=route.senders,
            links=route.links,
            rows=rows[: len(route.senders)],  # all of them, or none of the server's beside rank 0
        )
        self._calls += 1
        for tap in self._taps:
            tap(message)
        # In rounds that are kept whole, rank 0 hears what everybody sends as well.
        if self._gathered is not None:
            whole = whole_message(message, operation, links=self._links)
            if whole is not None:
                for tap in self._gathered.taps:
                    tap(whole)
        return rows
