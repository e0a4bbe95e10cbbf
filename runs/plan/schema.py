"""What `overhear plan --format json` prints, as types."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from ...privacy.formats.codec import Count, Delta, NotNegative
from ...privacy.guarantee import Guarantee, WrittenStatus
from ...privacy.target import Target
from ..described import Described

_ESTIMATE = (
    "estimate (heuristic, never a guarantee): what the recipient sees, as if no one else's "
    "gradients depended on the record; other agents' data can be such that it learns up to the "
    "closed figure"
)


class Recipient(Described):
    """What final models, or one agent, tell of a record of the agent that is asked about."""

    name: str
    hops: Count | None
    """A message's way from the agent that is asked about; null of final models, and of an agent
    that it never reaches."""
    closed: NotNegative
    """Epsilon as plans have it, whatever other agents compute and add."""
    closed_status: WrittenStatus
    estimate: NotNegative | None
    """The smaller one of `closed` and epsilon as if nobody else's gradients depended on the record:
    heuristic. Null where that takes too long."""
    steered: NotNegative | None
    """Proven epsilon where every step is 1-Lipschitz, of an agent that is given no final models
    but its own; null where it is refused."""
    with_final_models: NotNegative | None
    """The same of one that is given all final models."""
    refused: str | None
    """Why it is."""


class Recipients(Described):
    """Who learns how much of one record of one agent."""

    victim: Count
    delta: Delta
    rows: list[Recipient]
    rests_on: str | None
    """What steered figures rest on; null where there are none."""
    refused: str | None
    """Why there are none; null where there are."""

    def sentences(self) -> list[str]:
        """What the figures mean, and on what they rest."""
        said = [_ESTIMATE]
        if self.rests_on is not None:
            said.append(f"steered: {self.rests_on}")
        if self.refused is not None:
            said.append(f"no steered figure: {self.refused}")
        worst = "The worst agent for a record is its own neighbour, who gains nothing by distance."
        return [*said, worst]


class SecondOpinion(Described):
    """What another library says of the same releases; no figure of ours but the one it is held to.

    Without a bracket `because` says why.
    """

    by: str
    """The library and its version."""
    epsilon: NotNegative
    """Ours, which it is held to."""
    optimistic: NotNegative | None
    """Its lower bound on epsilon."""
    pessimistic: NotNegative | None
    """Its upper bound on epsilon."""
    ratio: NotNegative | None
    """Ours / its upper bound."""
    verdict: Literal["confirmed", "contradicted", "not confirmed", "none"]
    """Contradicted: its lower bound lies above ours. Not confirmed: its upper bound lies more than
    1 % above ours. None: there is no bracket."""
    because: str


class PublishedBound(Described):
    """What the algorithm's paper claims; no figure of ours."""

    paper: str
    statement: str
    epsilon: NotNegative
    delta: Delta
    caveats: list[str]


class Participation(Described):
    """Who takes part in which round, by a list that is public and fixed before the run."""

    told: str
    """Where the list is from."""
    rounds: Count
    by_agent: list[Count]
    """In how many rounds each agent takes part."""
    patterns: Count
    """How many different sets of agents take part in a round."""
    digest: str
    """SHA-256 of the list, for which alone the figures hold."""
    words: str


class Missing(Described):
    """How many agents may be missing from any round, which nobody knew when noise was made."""

    at_most: Count
    """For every set of so many agents, or fewer, the figures hold in every round."""
    agents: Count
    words: str


class Planned(Described):
    """The object of `overhear plan --format json`."""

    version: Annotated[Literal[1], Field(alias="schema")]
    noise_multiplier: NotNegative
    target: Target
    adversaries: list[Guarantee]
    """Worst first."""
    published_bound: PublishedBound | None
    warnings: list[str]
    second_opinion: dict[str, SecondOpinion] | None = None
    """By adversary; where asked for."""
    victims: dict[str, list[NotNegative | None]] | None = None
    """By adversary epsilon of every agent's records, null for members of it; where asked for."""
    participation: Participation | None = None
    """Where the run file has a list of who takes part; else everybody does, in every round."""
    missing: Missing | None = None
    """Where agents may be missing that no list has."""
    joined_within: Count | None = None
    """Where graphs take turns: how many rounds, any in a row, join all agents both ways (B)."""
