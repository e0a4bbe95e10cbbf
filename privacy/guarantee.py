"""A statement is what an epsilon is said of; a guarantee is one with its figures and its reason."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

from .accounting.request import Accountant, Adjacency, check_delta
from .errors import InputError
from .participation import group


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


NOT_A_CLIENT = (
    "only declared releases have unit='client'; use unit='agent', which is all that one agent holds"
)


class Unit(enum.StrEnum):
    """Whose data are hidden.

    RECORD: one record of one agent.
    AGENT: all data of one agent of a run. The agent stays in the graph and makes its noise.
    CLIENT: all data of one client, of declared releases.
    """

    RECORD = "record"
    AGENT = "agent"
    CLIENT = "client"

    @classmethod
    def _missing_(cls, value: object) -> Unit:
        raise InputError(f"unit={value!r} must be 'record' or 'agent'")

    @property
    def words(self) -> str:
        """What it is one of.

        >>> Unit.AGENT.words
        'all data of one agent'
        """
        return "one record" if self is Unit.RECORD else f"all data of one {self.value}"

    @property
    def usual_adjacency(self) -> Adjacency:
        """How data sets differ where nobody says it.

        >>> Unit.AGENT.usual_adjacency
        <Adjacency.ZERO_OUT: 'zero-out'>
        """
        return Adjacency.ZERO_OUT if self is Unit.AGENT else Adjacency.ADD_OR_REMOVE_ONE


class Sampling(enum.StrEnum):
    """How a batch is drawn, or whether an agent takes part."""

    POISSON = "poisson"
    FULL = "full batch"
    ANY = "any: a record may be in every batch"
    EVERY = "none: an agent takes part in every round"
    COHORT = "secret cohort"

    @classmethod
    def _missing_(cls, value: object) -> Sampling:
        raise InputError(
            f"sampling={value!r} must be 'poisson' or 'full batch': no bound for shuffled batches "
            "or batches of a fixed size is known here, and amplification by Poisson sampling does "
            "not hold for them; draw each record on its own"
        )


class Bound(enum.StrEnum):
    """How epsilon was found; every one but the last two is an upper bound.

    PROFILE: of a pair that dominates, without being one that an adversary meets; dearer than PLD.
    """

    CLOSED_FORM = "closed form"
    PLD = "privacy loss distribution"
    PROFILE = "privacy loss distribution of a dominating profile"
    DP_ACCOUNTING = "privacy loss distribution by dp-accounting"
    RENYI = "Renyi divergence"
    PRV = "PRV"
    CENTRAL_LIMIT = "central limit: approximation, may be too small"
    NOT_STATED = "not stated"


@dataclass(frozen=True, kw_only=True, slots=True)
class Statement:
    """What every epsilon of a run is said of; made once, from the run file, and passed on.

    Attributes:
        delta: strictly between 0 and 1.
        adjacency: how two neighbouring data sets differ.
        unit: whose presence is hidden.
        accountant: how rounds are added up.
        records_per_person: besides one record, how many of one person are spoken of.

    Raises:
        ValueError: a value that is unknown, delta outside (0, 1), an accountant that does not
            cover several records, or an agent that would join or leave a fixed graph.
        TypeError: delta or a count is no number.

    >>> Statement(delta=1e-5, adjacency="replace-one").adjacency
    <Adjacency.REPLACE_ONE: 'replace-one'>
    """

    delta: float
    adjacency: Adjacency = Adjacency.ADD_OR_REMOVE_ONE
    unit: Unit = Unit.RECORD
    accountant: Accountant = Accountant.PLD
    records_per_person: int = 1

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


@dataclass(frozen=True, kw_only=True, slots=True)
class Guarantee:
    """What one adversary can learn about one record of one victim, or about all its data.

    Attributes:
        adversary: the name that was asked for.
        victim: the agent that holds the record; the worst one where none was asked for.
        worst_adversary: the agent behind "neighbour" where the worst one was searched.
        joint_sensitivity: mu of one round at noise multiplier 1, clip norm 1.
        effective_noise_multiplier: noise multiplier / joint sensitivity.
        mu_per_round: 1 / effective noise multiplier, for a record that is in the batch.
        epsilon: the privacy loss, in nats.
        statement: what it is said of: delta, adjacency, unit and accountant.
        sampling, status: how batches are drawn, and what is known of epsilon.
        because: the reason in a sentence.
        bound: how epsilon was found, a `Bound`.
        group: (records, epsilon) of several records of one person at the victim, where asked for.

    Raises:
        ValueError: a negative or undefined figure, or a status that does not fit it: what is
            infinite is neither proven nor heuristic.

    >>> Guarantee(adversary="eavesdropper", victim=0, joint_sensitivity=1.0,
    ...     effective_noise_multiplier=2.0, mu_per_round=0.5, epsilon=1.5,
    ...     statement=Statement(delta=1e-5), sampling=Sampling.POISSON,
    ...     status=Status.PROVEN, because="every release carries its own noise").delta
    1e-05
    """

    adversary: str
    victim: int
    joint_sensitivity: float
    effective_noise_multiplier: float
    mu_per_round: float
    epsilon: float
    statement: Statement
    sampling: Sampling
    status: Status
    because: str
    worst_adversary: str | None = None
    bound: str = Bound.NOT_STATED
    group: tuple[tuple[int, float], ...] = ()

    def __post_init__(self) -> None:
        """Check that the figures are figures."""
        for name in ("joint_sensitivity", "effective_noise_multiplier", "mu_per_round", "epsilon"):
            value = getattr(self, name)
            if math.isnan(value) or value < 0:
                raise InputError(f"{name}={value} must be a number >= 0")
        for records, epsilon in self.group:
            if not epsilon >= self.epsilon:
                raise InputError(
                    f"epsilon={epsilon} of {records} records must be at least {self.epsilon}, that "
                    "of one of them"
                )
        for kind, value in (
            (Sampling, self.sampling),
            (Status, self.status),
            (Bound, self.bound),
        ):
            kind(value)  # refuses what it does not know
        if Status(self.status).is_finite != math.isfinite(self.epsilon):
            fitting = [str(s) for s in Status if s.is_finite == math.isfinite(self.epsilon)]
            raise InputError(
                f"status={str(self.status)!r} does not fit epsilon={self.epsilon:g}; it must be "
                f"{' or '.join(map(repr, fitting))}"
            )

    @property
    def delta(self) -> float:
        """Of the statement."""
        return self.statement.delta

    @property
    def unit(self) -> Unit:
        """Of the statement."""
        return self.statement.unit

    @property
    def adjacency(self) -> Adjacency:
        """Of the statement."""
        return self.statement.adjacency
