"""A statement is what an epsilon is said of; a guarantee is one with its figures and its reason."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

from ._validate import check_real
from .accounting.request import Accountant, Adjacency, check_delta, check_epsilon
from .batches.sampling import Sampling
from .errors import InputError, InputTypeError
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
class Goal:
    """What the noise of a run is calibrated to: epsilon, or what membership inference achieves.

    Attributes:
        epsilon: largest privacy loss that is allowed, in nats, at the delta of the statement.
        advantage: largest true-positive rate minus false-positive rate of any test, in (0, 1).
        tpr: largest true-positive rate of any test at `fpr`, in (fpr, 1).
        fpr: false-positive rate of `tpr`, in (0, 1).

    Raises:
        ValueError: not exactly one of epsilon, advantage and tpr; tpr without fpr, or fpr without
            tpr; a value out of range.
        TypeError: a value that is no number.

    Source: Kulynych et al., arXiv:2407.02191: noise for the risk that is meant, not for epsilon.

    >>> Goal(advantage=0.1).words, Goal(tpr=0.2, fpr=0.01).figure
    ('advantage 0.1', 0.2)
    """

    epsilon: float | None = None
    advantage: float | None = None
    tpr: float | None = None
    fpr: float | None = None

    def __post_init__(self) -> None:
        """Check that one target is there, and that it can be met by some noise."""
        given = [n for n in ("epsilon", "advantage", "tpr") if getattr(self, n) is not None]
        if (self.tpr is None) != (self.fpr is None):
            there, gone = ("tpr", "fpr") if self.fpr is None else ("fpr", "tpr")
            raise InputError(
                f"{there}={getattr(self, there)!r:.40} needs {gone} beside it: the true-positive "
                "rate that is allowed (tpr), and the false-positive rate at which it is (fpr)"
            )
        if len(given) != 1:
            found = " and ".join(given) or "none"
            raise InputError(f"give epsilon, advantage or tpr, exactly one of them; {found} given")
        if self.epsilon is not None:
            check_epsilon(self.epsilon, positive=True)
        if self.advantage is not None:
            check_real("advantage", self.advantage)
            if not 0.0 < self.advantage < 1.0:
                raise InputError(
                    f"advantage={self.advantage} must lie strictly between 0 and 1; it is the "
                    "largest true-positive rate minus false-positive rate of a membership test"
                )
        if self.tpr is not None and self.fpr is not None:
            check_real("tpr", self.tpr)
            check_real("fpr", self.fpr)
            if not 0.0 < self.fpr < self.tpr < 1.0:
                raise InputError(
                    f"tpr={self.tpr} at fpr={self.fpr}: both must lie strictly between 0 and 1, "
                    "and tpr above fpr, which a blind guess has"
                )

    @property
    def of_risk(self) -> bool:
        """Whether it is about membership inference, not about epsilon."""
        return self.epsilon is None

    @property
    def figure(self) -> float:
        """The largest value that is allowed of what it is about."""
        return next(v for v in (self.epsilon, self.advantage, self.tpr) if v is not None)

    @property
    def words(self) -> str:
        """It in words.

        >>> Goal(tpr=0.2, fpr=0.01).words
        'TPR 0.2 at FPR 0.01'
        """
        if self.tpr is not None:
            return f"TPR {self.tpr:g} at FPR {self.fpr:g}"
        name = "advantage" if self.epsilon is None else "epsilon"
        return f"{name} {self.figure:g}"

    def check_accountant(self, accountant: Accountant) -> None:
        """Refuse an accountant that gives no trade-off curve.

        Raises:
            ValueError: risk is found from the privacy loss distribution alone.
        """
        if self.of_risk and accountant is not Accountant.PLD:
            raise InputError(
                f"a target of {self.words} is met by accountant='pld' alone, not '{accountant}', "
                "which gives no trade-off curve; leave accountant out, or give epsilon"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class Statement:
    """What every epsilon of a run is said of; made once, from the run file, and passed on.

    Attributes:
        delta: strictly between 0 and 1.
        adjacency: how two neighbouring data sets differ.
        unit: whose presence is hidden.
        accountant: how rounds are added up.
        records_per_person: besides one record, how many of one person are spoken of.
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
    def whose(self) -> str:
        """Whose records every epsilon is about where it is not one record of one agent.

        >>> Statement(delta=1e-5, holders=((0, 3), (1, 1))).whose
        'one person with 3 records at agent 0 and 1 record at agent 1'
        """
        each = [
            f"{records} {'record' if records == 1 else 'records'} at agent {agent}"
            for agent, records in self.holders
        ]
        *first, last = each or [""]
        said = f"{', '.join(first)} and {last}" if first else last
        return f"one person with {said}" if said else ""

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
        at_least: no bound below it is true of worst-case gradients, though the order in which
            batches are shuffled stays secret; None where nothing is known.
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
    at_least: float | None = None
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
