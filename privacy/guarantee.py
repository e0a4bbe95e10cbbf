"""Who sees what; what an epsilon is said of; and a guarantee, with its figures and its reason."""

from __future__ import annotations

import enum
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated

from .accounting.request import Accountant, Adjacency, Bound, check_delta
from .batches.sampling import Sampling
from .errors import InputError, InputTypeError, whole
from .formats.codec import Count, Delta, NotNegative, Positive, Words, described
from .participation import group

# Who sees what.


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


class Status(enum.StrEnum):
    """What is known of a figure; a policy passes proven ones, and declared ones where it says so.

    PROVEN: the view is closed, linear and bounded, so epsilon is an upper bound; it is finite.
    DECLARED: an upper bound for releases that somebody listed; nothing shows that the list is true.
    CHECKED: declared, and what was kept of the releases agrees with the list.
    HEURISTIC: no upper bound is known, and epsilon is at least what is stated, which is finite.
    NO_PROTECTION: epsilon is infinite: something about the data is shown that nothing hides.
    CANNOT_BE_EXPRESSED: epsilon may be finite in truth, but this accounting has no finite bound.
    """

    PROVEN = "proven"
    DECLARED = "declared"
    CHECKED = "declared, checked"
    HEURISTIC = "heuristic"
    NO_PROTECTION = "no protection"
    CANNOT_BE_EXPRESSED = "cannot be expressed"

    @property
    def is_finite(self) -> bool:
        """Whether it is the status of a finite figure.

        >>> [str(status) for status in Status if not status.is_finite]
        ['no protection', 'cannot be expressed']
        """
        return self not in (Status.NO_PROTECTION, Status.CANNOT_BE_EXPRESSED)

    @property
    def is_bound(self) -> bool:
        """Whether it is that of an upper bound: proven, or of a list of releases if that is true.

        >>> [str(status) for status in Status if status.is_bound]
        ['proven', 'declared', 'declared, checked']
        """
        return self in (Status.PROVEN, Status.DECLARED, Status.CHECKED)


NOT_A_CLIENT = (
    "only declared releases have unit='client'; use unit='agent', which is all that one agent holds"
)
NO_CAP = (
    "unit='user' needs records_per_person: the largest number of records that any user has, a "
    "public cap, since nothing else says how many there are"
)


class Unit(enum.StrEnum):
    """Whose data are hidden.

    RECORD: one record of one agent.
    USER: all records of one user, which one agent holds; at most `records_per_person` of them.
    AGENT: all data of one agent of a run. The agent stays in the graph and makes its noise.
    CLIENT: all data of one client, of declared releases.
    """

    RECORD = "record"
    USER = "user"
    AGENT = "agent"
    CLIENT = "client"

    @classmethod
    def _missing_(cls, value: object) -> Unit:
        raise InputError(f"unit={value!r} must be 'record', 'user' or 'agent'")

    @property
    def words(self) -> str:
        """What it is one of.

        >>> Unit.AGENT.words
        'all data of one agent'
        """
        if self is Unit.USER:
            return "all records of one user"
        return "one record" if self is Unit.RECORD else f"all data of one {self.value}"

    def name_with(self, records: int | None) -> str:
        """What it is one of, after "one" or "a", with the cap on the records of a user.

        >>> Unit.USER.name_with(3), Unit.AGENT.name_with(None)
        ('user with at most 3 records', 'agent')
        """
        if self is not Unit.USER or records is None:
            return self.value
        return f"{self.value} with at most {records} {'record' if records == 1 else 'records'}"

    def words_with(self, records: int | None) -> str:
        """As `words`, with that cap.

        >>> Unit.USER.words_with(3), Unit.RECORD.words_with(None)
        ('all records of one user (at most 3)', 'one record')
        """
        capped = self is Unit.USER and records is not None
        return f"{self.words} (at most {records})" if capped else self.words

    @property
    def usual_adjacency(self) -> Adjacency:
        """How data sets differ where nobody says it.

        >>> Unit.AGENT.usual_adjacency
        <Adjacency.ZERO_OUT: 'zero-out'>
        """
        return Adjacency.ZERO_OUT if self is Unit.AGENT else Adjacency.ADD_OR_REMOVE_ONE


_LARGE_DELTA = 1e-3  # above, one record of a thousand may be published


@dataclass(frozen=True, kw_only=True, slots=True)
class Statement:
    """What every epsilon of a run refers to; made once, from the run file, and passed on.

    Attributes:
        delta: strictly between 0 and 1.
        adjacency: how two neighbouring data sets differ.
        unit: whose presence is hidden.
        accountant: how rounds are added up.
        records_per_person: besides one record, how many of one person are spoken of; of unit
            "user" the public cap on the records of a user, which every epsilon is about.
        holders: (agent, records) of every agent that holds records of the one person that every
            epsilon is about; all of these are there, or none is, or all are replaced. Empty where
            it is about one record of one agent.

    Raises:
        ValueError: a value that is unknown, delta outside (0, 1), holders that repeat or are none,
            an accountant that does not cover several records, or an agent that would join or leave
            a fixed graph.
        TypeError: delta or a count is no number.

    >>> Statement(delta=1e-5, adjacency="replace-one").adjacency
    <Adjacency.REPLACE_ONE: 'replace-one'>
    """

    delta: float
    adjacency: Adjacency = Adjacency.ADD_OR_REMOVE_ONE
    unit: Unit = Unit.RECORD
    accountant: Accountant = Accountant.PLD
    records_per_person: int = 1
    holders: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        """Check delta, and turn the names of members into members."""
        check_delta(self.delta)
        group(self.records_per_person, 1.0)  # refuses what is no count
        object.__setattr__(self, "adjacency", Adjacency(self.adjacency))
        object.__setattr__(self, "unit", Unit(self.unit))
        object.__setattr__(self, "accountant", Accountant(self.accountant))
        if self.unit is Unit.AGENT:
            self._check_agent()
        if self.records_per_person > 1 and self.accountant is not Accountant.PLD:
            raise InputError(
                f"records_per_person={self.records_per_person} is added up by accountant='pld' "
                f"alone, not '{self.accountant}'; leave accountant out"
            )
        self._check_holders()

    def _check_holders(self) -> None:
        agents = [agent for agent, _ in self.holders]
        for agent in agents:
            if isinstance(agent, bool) or not isinstance(agent, int):
                raise InputTypeError(f"holder {agent!r:.40} must be the number of an agent")
            if agent < 0 or agents.count(agent) > 1:
                raise InputError(f"holders={agents} must be numbers of agents, from 0, each once")
        for _, records in self.holders:
            group(records, 1.0)  # refuses what is no count
        if not self.holders:
            return
        group(sum(records for _, records in self.holders), 1.0)
        # A person with records at several agents is a statement of its own.
        if self.unit is not Unit.RECORD:
            raise InputError(
                f"holders={agents} are about records, and unit='{self.unit}' is not; give one"
            )
        if self.records_per_person > 1:
            raise InputError(
                f"records_per_person={self.records_per_person} is about one agent, and holders "
                f"{agents} about a person with records at these; say how many each holds instead"
            )
        if self.accountant is not Accountant.PLD:
            raise InputError(
                f"holders={agents} are added up by accountant='pld' alone, not "
                f"'{self.accountant}'; leave accountant out"
            )

    @property
    def at_once(self) -> int:
        """How many records of one agent are there, or none of them: of a user as many as allowed.

        >>> Statement(delta=1e-5, unit="user", records_per_person=3).at_once
        3
        """
        return self.records_per_person if self.unit is Unit.USER else 1

    @property
    def about(self) -> str:
        """What every epsilon is said of, in words.

        >>> Statement(delta=1e-5, unit="user", records_per_person=3).about
        'all records of one user (at most 3)'
        """
        return self.whose or self.unit.words_with(self.records_per_person)

    @property
    def cautions(self) -> list[str]:
        """That delta is so large that epsilon says little, in a sentence; nothing elsewhere."""
        if self.delta <= _LARGE_DELTA:
            return []
        return [
            f"delta = {self.delta:g} is large: a mechanism that publishes each record with that "
            "probability has epsilon 0 there; give one well below one over the number of records"
        ]

    @property
    def whose(self) -> str:
        """Whose records every epsilon is about where it is not one record of one agent.

        >>> Statement(delta=1e-5, holders=((0, 3), (1, 1))).whose
        'one person with 3 records at agent 0 and 1 record at agent 1'
        """
        return _whose(self.holders)

    def _check_agent(self) -> None:
        """Refuse what means nothing where all data of an agent are the unit."""
        if self.adjacency is Adjacency.ADD_OR_REMOVE_ONE:
            raise InputError(
                f"adjacency='{self.adjacency}' means nothing at unit='agent': an agent cannot "
                "join or leave a fixed graph; use adjacency='zero-out', where its data become "
                "nothing, or 'replace-one', where they become other data"
            )
        if self.records_per_person > 1:
            raise InputError(
                f"records_per_person={self.records_per_person} has no effect at unit='agent', "
                "which hides all records of an agent at once; leave it out"
            )


def _whose(holders: Iterable[tuple[int, int]]) -> str:
    each = [
        f"{records} {'record' if records == 1 else 'records'} at agent {agent}"
        for agent, records in holders
    ]
    *first, last = each or [""]
    said = f"{', '.join(first)} and {last}" if first else last
    return f"one person with {said}" if said else ""


# What a file may hold of each.
WrittenStatus = Annotated[Status, Words(tuple(map(str, Status)))]
WrittenAdjacency = Annotated[Adjacency, Words(("add-or-remove-one", "zero-out", "replace-one"))]
WrittenUnit = Annotated[Unit, Words(tuple(map(str, Unit)))]


@described()
@dataclass(frozen=True, kw_only=True)
class GroupEpsilon:
    """What one adversary can learn about several records of one person at one agent."""

    records: Count
    epsilon: NotNegative


@described()
@dataclass(frozen=True, kw_only=True)
class Holder:
    """An agent that holds records of the one person that is meant."""

    agent: Count
    records: Positive


@described(title="PlannedAdversary", names={"adversary": "name"})
@dataclass(frozen=True, kw_only=True)
class Guarantee:
    """What one adversary can learn about one record or another unit, as planned.

    It is the row of a plan, of a ledger's figures, of a comparison and of a report, and in JSON the
    object of one.

    Attributes:
        joint_sensitivity: mu of one round at noise multiplier 1, clip norm 1.
        effective_noise_multiplier: noise multiplier / joint sensitivity.
        mu_per_round: 1 / effective noise multiplier, for a record that is in the batch.
        epsilon: the privacy loss, in nats.
        delta, unit, adjacency: what it is said of.
        sampling: how batches are drawn.
        because: the reason in a sentence.

    Raises:
        ValueError: a negative or undefined figure, or a status that does not fit it: what is
            infinite is neither proven nor heuristic.

    >>> Guarantee(adversary="eavesdropper", victim=0, worst_adversary=None, joint_sensitivity=1.0,
    ...     effective_noise_multiplier=2.0, mu_per_round=0.5, epsilon=1.5, delta=1e-5,
    ...     unit=Unit.RECORD, adjacency=Adjacency.ADD_OR_REMOVE_ONE, sampling=Sampling.POISSON,
    ...     status=Status.PROVEN, bound=Bound.PLD, because="every release has its own noise").proven
    True
    """

    adversary: str
    """The adversary that was asked for."""
    victim: Count
    """The agent whose record is meant; of several holders the first."""
    worst_adversary: str | None
    """The adversary behind the name, where the worst one was searched."""
    joint_sensitivity: NotNegative
    effective_noise_multiplier: NotNegative
    mu_per_round: NotNegative
    epsilon: NotNegative
    delta: Delta
    unit: WrittenUnit
    adjacency: WrittenAdjacency
    sampling: Annotated[Sampling, Words()]
    status: WrittenStatus
    """Only a proven epsilon is an upper bound, and it is finite. Of an infinite one: that nothing
    protects, or that a finite bound cannot be expressed."""
    bound: Annotated[Bound, Words()]
    """How epsilon was found."""
    because: str
    records_per_person: Positive | None = None
    """Of unit "user": the cap on the records of a user, which are all in the figure."""
    group: tuple[GroupEpsilon, ...] | None = None
    """Of several records of one person, where `records_per_person` asks for them."""
    holders: tuple[Holder, ...] | None = None
    """Who holds the records of the one person that the figures are about, where `holders` asks."""

    at_least: NotNegative | None = None
    """Of shuffled batches: a lower bound for worst-case gradients, though the order is secret."""

    def __post_init__(self) -> None:
        """Check that the figures are figures."""
        for name in ("joint_sensitivity", "effective_noise_multiplier", "mu_per_round", "epsilon"):
            value = getattr(self, name)
            if math.isnan(value) or value < 0:
                raise InputError(f"{name}={value} must be a number >= 0")
        for of in self.group or ():
            if not of.epsilon >= self.epsilon:
                raise InputError(
                    f"epsilon={of.epsilon} of {of.records} records must be at least "
                    f"{self.epsilon}, that of one of them"
                )
        for name, kind in _KINDS.items():
            object.__setattr__(self, name, kind(getattr(self, name)))  # refuses unknown ones
        if self.status.is_finite != math.isfinite(self.epsilon):
            fitting = [str(s) for s in Status if s.is_finite == math.isfinite(self.epsilon)]
            raise InputError(
                f"status={str(self.status)!r} does not fit epsilon={self.epsilon:g}; it must be "
                f"{' or '.join(map(repr, fitting))}"
            )

    @property
    def proven(self) -> bool:
        """Whether epsilon is an upper bound, whatever else is true."""
        return self.status is Status.PROVEN and self.bound.is_upper

    @property
    def is_bound(self) -> bool:
        """Whether epsilon is an upper bound, if the list of releases is true where there is one."""
        return self.status.is_bound and self.bound.is_upper

    @property
    def unit_name(self) -> str:
        """What it is about one of, with the cap on the records of a user; or whose records."""
        return self.whose or self.unit.name_with(self.records_per_person)

    @property
    def whose(self) -> str:
        """Whose records it is about, where it is not one record of one agent."""
        return _whose((one.agent, one.records) for one in self.holders or ())

    def released(self, epsilon: float) -> Guarantee:
        """It as it stands after what was released.

        Args:
            epsilon: of that, in nats. It may be infinite where the planned one is not, if more was
                released than the accountant has a finite bound for.
        """
        if epsilon == self.epsilon:
            return self
        status = self.status
        if status.is_finite and math.isinf(epsilon):
            status = Status.CANNOT_BE_EXPRESSED
        # Figures of several records are of the planned rounds alone.
        group = self.group if epsilon <= self.epsilon else None
        return replace(self, epsilon=epsilon, status=status, group=group)


_KINDS: Mapping[str, Callable[[str], enum.StrEnum]] = {
    "unit": Unit,
    "adjacency": Adjacency,
    "sampling": Sampling,
    "status": Status,
    "bound": Bound,
}
