"""Every message by itself: the bound of its own canaries beside what its own noise promises.

A fault on one link in a hundred hardly moves the figure of a whole view; on its own link it stands
out. The bounds of L messages are taken at a confidence of 1 - (1 - confidence) / L each, so that
together they hold at `confidence` (C. Bonferroni 1936).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ...privacy.formats.codec import Count, NotNegative, described
from ...privacy.guarantee import Statement
from ..bounds.guesses import Guesses
from ..bounds.lower_bounds import total_error
from ..bounds.mechanism import Claim, epsilon


class LinkGuesses(NamedTuple):
    """One message and the canaries of one host that enter it.

    Attributes:
        message: its name.
        host: whose records are in it.
        rounds: how often the message had which mu for one record and which sampling rate.
        guesses: scores of the message alone, and the coins.
    """

    message: str
    host: int
    rounds: Mapping[tuple[float, float], int]
    guesses: Guesses


@described(title="AuditedMessage")
@dataclass(frozen=True, kw_only=True)
class LinkBound:
    """What canaries measured of one kind of message alone.

    Attributes:
        message: its name.
        agent: the agent whose records are meant.
        proven_epsilon: of this message alone, over the rounds, from its row.
        measured_epsilon: lower bound.
        canaries: how many it rests on.
    """

    message: str
    agent: Count
    proven_epsilon: NotNegative
    measured_epsilon: NotNegative
    canaries: Count

    @property
    def exceeded(self) -> bool:
        """Whether more was measured than the row promises."""
        return self.measured_epsilon > self.proven_epsilon


def link_bounds(
    links: Sequence[LinkGuesses], *, statement: Statement, confidence: float
) -> list[LinkBound]:
    """Bounds of single messages that hold together.

    Args:
        links: as `play` returns them.
        statement: what every epsilon is said of.
        confidence: that none of them is above the truth.
    """
    each = 1.0 - (1.0 - confidence) / max(len(links), 1)
    claims = [Claim(rounds=_multipliers(link), adjacency=statement.adjacency) for link in links]
    proven: dict[str, float] = {}  # alike messages are many
    found = []
    for link, claim in zip(links, claims, strict=True):
        key = repr(sorted(claim.events.items()))
        if key not in proven:
            proven[key] = epsilon(claim, statement.delta)
        bound = total_error(link.guesses, claim=claim, delta=statement.delta, confidence=each)
        found.append(
            LinkBound(
                message=link.message,
                agent=link.host,
                proven_epsilon=proven[key],
                measured_epsilon=bound.epsilon,
                canaries=len(link.guesses.scores),
            )
        )
    return found


def _multipliers(link: LinkGuesses) -> dict[tuple[float, float], int]:
    return {(1.0 / mu, rate): count for (mu, rate), count in link.rounds.items()}
