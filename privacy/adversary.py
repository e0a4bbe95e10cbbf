"""Who sees which message and who knows which noise.

Every adversary is honest-but-curious: it follows the protocol and keeps what it can observe.
An eavesdropper reads every link and knows no noise; an agent reads the messages sent to or by it,
and knows the noise that it generated itself and its own data; a coalition pools what its members
have. Holders of the final models see the end states alone, round by round, because earlier end
states feed later gradients. Attacks know one more, a neighbour that deviates; no figure is asked
for in its name. A single message is what papers usually account for: it is no
adversary that exists, and its figure is never a guarantee.
"""

from __future__ import annotations

import enum
from collections import Counter
from dataclasses import dataclass

from ._validate import whole
from .errors import InputError


class Sees(enum.StrEnum):
    """What kind of view an adversary has."""

    LINKS = "every message on every link"
    OWN_LINKS = "the messages sent to or by its agents"
    END_STATES = "the end states of the agents"
    ONE_MESSAGE = "one message a round"


@dataclass(frozen=True, kw_only=True, slots=True)
class Adversary:
    """Who sees what: the other party of every privacy statement.

    Attributes:
        name: the string that asks for it: "eavesdropper", "neighbour:1", "coalition:1,9",
            "final-models", "single-message".
        sees: the kind of its view.
        agents: the agents it consists of; empty for outsiders.
        deviates: whether it sends what the protocol does not; for attacks alone.
    """

    name: str
    sees: Sees
    agents: frozenset[int] = frozenset()
    deviates: bool = False

    def __post_init__(self) -> None:
        """Check that agents are named exactly where the kind of view needs them."""
        if min(self.agents, default=0) < 0:
            raise InputError(
                f"adversary {self.name!r} names agent {min(self.agents)}; agents count from 0"
            )
        if (self.sees is Sees.OWN_LINKS) != bool(self.agents):
            raise InputError(
                f"adversary {self.name!r} with agents {sorted(self.agents)}: a neighbour or a "
                "coalition names its agents, an outsider has none"
            )


EAVESDROPPER = Adversary(name="eavesdropper", sees=Sees.LINKS)
FINAL_MODELS = Adversary(name="final-models", sees=Sees.END_STATES)
SINGLE_MESSAGE = Adversary(name="single-message", sees=Sees.ONE_MESSAGE)
WORST_NEIGHBOUR = "neighbour"  # the single agent that learns most
ALL_OTHERS = "all-others"  # everybody but the victim, pooled
ACTIVE_NEIGHBOUR = "active-neighbour"  # one that sends what the protocol does not
_OUTSIDERS = {a.name: a for a in (EAVESDROPPER, FINAL_MODELS, SINGLE_MESSAGE)}


def neighbour(agent: int) -> Adversary:
    """One curious agent."""
    agent = whole("agent", agent, "[0, inf)")
    return Adversary(name=f"neighbour:{agent}", sees=Sees.OWN_LINKS, agents=frozenset({agent}))


def coalition(agents: frozenset[int] | set[int]) -> Adversary:
    """Agents that pool what they see and know."""
    name = "coalition:" + ",".join(str(a) for a in sorted(agents))
    return Adversary(name=name, sees=Sees.OWN_LINKS, agents=frozenset(agents))


def parse_adversary(text: str, agents: int, *, deviating: bool = False) -> Adversary:
    """The adversary that a string asks for, in a network of `agents` agents.

    Args:
        agents: how many there are.
        deviating: whether it may be one that deviates from the protocol, "active-neighbour:1".

    Raises:
        ValueError: an unknown name, or an agent that does not exist or is named twice.

    >>> sorted(parse_adversary("coalition:1,9", 10).agents)
    [1, 9]
    """
    if text in _OUTSIDERS:
        return _OUTSIDERS[text]
    # Who it is: one agent, an agent that deviates, or several that share what they see.
    kind, _, members = text.partition(":")
    if kind == ACTIVE_NEIGHBOUR and not deviating:
        raise InputError(
            f"adversary {text!r} deviates from the protocol, and figures are those of adversaries "
            "that follow it; ask for neighbour:K here, and attack as this one by [attack] adversary"
        )
    if kind not in ("neighbour", "agent", "coalition", ACTIVE_NEIGHBOUR) or not members:
        raise InputError(
            f"adversary {text!r} is unknown; use one of {', '.join(_OUTSIDERS)}, neighbour, "
            "neighbour:K, coalition:K,L"
        )
    # Agents by number: each is in the network, and is named once.
    try:
        listed = [int(member) for member in members.split(",")]
    except ValueError as error:
        raise InputError(
            f"adversary {text!r} must name agents by number, such as {kind}:1"
        ) from error
    named = frozenset(listed)
    outside = sorted(a for a in named if not 0 <= a < agents)
    if outside:
        raise InputError(
            f"adversary {text!r} names agent {outside[0]}, which must lie in 0..{agents - 1}"
        )
    if len(listed) > len(named):
        twice = next(a for a, count in Counter(listed).items() if count > 1)
        raise InputError(
            f"adversary {text!r} names agent {twice} more than once; name each agent once"
        )
    if kind != "coalition" and len(named) != 1:
        raise InputError(f"adversary {text!r} names several agents; did you mean coalition:?")
    deviates = kind == ACTIVE_NEIGHBOUR
    return Adversary(name=text, sees=Sees.OWN_LINKS, agents=named, deviates=deviates)
