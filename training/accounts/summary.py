"""What an account says, apart from how it was found: what every way of showing it starts from."""

from __future__ import annotations

import enum
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ...privacy.accounting.risk import scale_for_risk
from ...privacy.accounting.search import least_that_meets
from ...privacy.accounting.trade_off import trade_off
from ...privacy.errors import InputError, UnsupportedView, needs
from ...privacy.formats.codec import dump, finite
from ...privacy.guarantee import SINGLE_MESSAGE, Guarantee, Statement, Status, Unit
from ...privacy.plain_text import aligned, html_table, number_of
from ...privacy.target import Goal, Target
from ..exposure.events import asked_releases, counted, spent_releases
from ..exposure.guarantees import calibrated_multiplier, check_traced_at, run_epsilon
from ..exposure.sensitivity import JointSensitivity, Release

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame
    from rich.table import Table


class Verdict(enum.StrEnum):
    """What a second tracer says of a figure."""

    AGREES = "agrees"
    LOOSER = "looser"
    CONTRADICTED = "contradicted"
    NOT_CHECKED = "not checked"


_STYLES = {
    Status.PROVEN: "green",
    Status.DECLARED: "yellow",
    Status.CHECKED: "yellow",
    Status.HEURISTIC: "yellow",
}


class ShownStatements(ABC):
    """Statements that show themselves: what is accounted for, a row each, then the warnings."""

    __slots__ = ()

    warnings: Sequence[str]

    @property
    @abstractmethod
    def heads(self) -> Sequence[str]:
        """What is accounted for, in lines."""

    @property
    @abstractmethod
    def stated(self) -> Sequence[Guarantee]:
        """The statements, worst first."""

    def to_pandas(self) -> DataFrame:
        """A row an adversary, worst first.

        Raises:
            ImportError: pandas is not installed.
        """
        return as_frame(self.stated)

    def __repr__(self) -> str:
        """Plain text, for a terminal of any width."""
        rows = aligned([heads_of(self.stated), *map(cells_of, self.stated)])
        return "\n".join([*self.heads, "", *rows, *([""] if self.warnings else []), *self.warnings])

    def __rich__(self) -> Table:
        """The same for a console of rich."""
        from rich import box
        from rich.markup import escape
        from rich.table import Table
        from rich.text import Text

        title, *more = self.heads
        table = Table(
            title=escape(title),
            caption=escape("\n".join((*more, *self.warnings))),
            title_justify="left",
            caption_justify="left",
            box=box.SIMPLE_HEAD,
        )
        for name in heads_of(self.stated):
            table.add_column(name)
        for stated in self.stated:
            table.add_row(
                *(Text(cell) for cell in cells_of(stated)),
                style=_STYLES.get(Status(stated.status), "red"),
            )
        return table

    def _repr_html_(self) -> str:
        """The same for a notebook; nothing is loaded for it."""
        rows = map(cells_of, self.stated)
        return html_table(self.heads, heads_of(self.stated), rows, self.warnings)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False, repr=False)
class Figures(ShownStatements):
    """The figures of an account, by adversary, and every way of showing them.

    Attributes:
        said_of: what every epsilon is said of.
        noise_multiplier: at which the sensitivities are accounted for; 1 where the log of a system
            says how much noise there is in each release.
        goal: what is met for a target adversary; None where the noise was given.
        guarantees: by adversary, worst first.
        joint_sensitivities: by adversary what stands behind its figure, at noise multiplier 1.
        warnings: sentences for the reader.
    """

    said_of: Statement
    noise_multiplier: float
    goal: Goal | None = None
    guarantees: Mapping[str, Guarantee]
    joint_sensitivities: Mapping[str, JointSensitivity]
    warnings: Sequence[str]

    @property
    def stated(self) -> Sequence[Guarantee]:
        """The statements, worst first."""
        return list(self.guarantees.values())

    @property
    @abstractmethod
    def rounds(self) -> int:
        """How many rounds are accounted for."""

    @abstractmethod
    def epsilon(self, adversary: str, *, rounds: int | None = None) -> float:
        """Epsilon of all rounds for one adversary, or of the start and the first `rounds` rounds.

        Raises:
            ValueError: an adversary that was not asked for, or a number of rounds that is none.
        """

    @abstractmethod
    def explain(self, adversary: str) -> object:
        """What one adversary's figure adds up to; printed, in words.

        Raises:
            ValueError: an adversary that was not asked for.
        """

    @abstractmethod
    def statement(self) -> str:
        """A paragraph to paste: unit, adjacency, accountant, and what is assumed."""

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """The figures as an object of JSON; infinite ones are "inf"."""

    def __getitem__(self, adversary: str) -> Guarantee:
        """The statement for one adversary."""
        if adversary not in self.guarantees:
            raise InputError(
                f"adversary {adversary!r} is not accounted for; this account is against "
                f"{', '.join(self.guarantees)}: name others as adversaries=[...]"
            )
        return self.guarantees[adversary]

    def __iter__(self) -> Iterator[str]:
        """The adversaries, worst first."""
        return iter(self.guarantees)

    def __len__(self) -> int:
        """How many adversaries are accounted for."""
        return len(self.guarantees)

    @property
    def worst(self) -> Guarantee:
        """The statement with the largest epsilon; a single message is nobody's view.

        Raises:
            ValueError: nobody but a single message was asked about.
        """
        for stated in self.guarantees.values():
            if stated.adversary != SINGLE_MESSAGE.name:
                return stated
        raise InputError(
            "single-message alone is accounted for, which is how papers count and no adversary; "
            "name others as adversaries=[...]"
        )

    def plot(self, kind: str = "rounds", *, axes: Axes | None = None) -> Axes:
        """Epsilon by round, or with kind="trade-off" the curves that no test beats.

        Args:
            kind: "rounds" or "trade-off".
            axes: of matplotlib, to draw on; else new ones.

        Raises:
            ValueError: an unknown kind, or nothing finite to draw.
            ImportError: matplotlib is not installed.
        """
        return plot(self, kind=kind, axes=axes)


@dataclass(frozen=True, kw_only=True, slots=True)
class Summary:
    """An account, as it is told.

    Attributes:
        algorithm: its name.
        settings: its hyper-parameters.
        graph: its name.
        agents: how many there are.
        rounds: T.
        sampling_rate: of batches that the step draws without a rate of its own.
        clip_norm: bound on one example's gradient; None does not clip.
        noise_multiplier: of the run.
        target: the adversary whose goal is met; None where the noise was given.
        goal: what is met for it.
        reached: what it comes to at the noise, in the goal's own figure.
        statement: what every epsilon is said of.
        guarantees: worst first.
        warnings: sentences.
        batches: how they are drawn, in a sentence, where they are not Poisson.
        counted: that the number of all records is public, in a sentence, where it has to be.
        encrypted: whether nobody on a link can read it.
        participation: in how many rounds agents take part; None where everybody does in all.
        users: what is assumed of users, in a sentence; None where the unit is another one.
        whole_users: whether every batch is one of whole users, each drawn by a coin of its own.
    """

    algorithm: str
    settings: Mapping[str, object]
    graph: str
    agents: int
    rounds: int
    sampling_rate: float
    clip_norm: float | None
    noise_multiplier: float
    target: str | None
    goal: Goal | None
    reached: float | None
    statement: Statement
    guarantees: Sequence[Guarantee]
    warnings: Sequence[str]
    encrypted: bool
    batches: str | None = None
    counted: str | None = None
    participation: str | None = None
    missing: str | None = None
    users: str | None = None
    whole_users: bool = False

    @property
    def title(self) -> str:
        """What runs, in a line."""
        return (
            f"{self.algorithm}: {number_of(self.rounds, 'round')} on {self.graph} of "
            f"{number_of(self.agents, 'agent')}, sampling rate "
            f"{self.sampling_rate:.12g}{self._taking}"
        )

    @property
    def _taking(self) -> str:
        """In how many rounds agents take part, where that is said."""
        if self.missing is not None:
            return f", {self.missing}"
        if self.participation is None:
            return ""
        return f", an agent takes part in {self.participation}"

    @property
    def noise(self) -> str:
        """With which noise it runs, in a line."""
        clip_norm = self.clip_norm
        clipped = "nothing is clipped" if clip_norm is None else f"clip norm {clip_norm:g}"
        target = "" if self.goal is None else f" for {self.goal.words} against {self.target}"
        return f"noise multiplier {rounded_up(self.noise_multiplier, 6)}{target}, {clipped}"

    @property
    def said_of(self) -> str:
        """What every epsilon is said of, in a line."""
        said = self.statement
        whose = f" of {said.whose}" if said.holders else ""
        return (
            f"{said.adjacency} {said.unit.name_with(said.records_per_person)}{whose}, "
            f"delta {said.delta:g}, accountant {said.accountant}"
        )


def users_words(statement: Statement, *, known: bool = False) -> str | None:
    """What a figure of users takes for granted, in a sentence; None where the unit is another one.

    Args:
        known: whether the data say whose a record is.

    >>> users_words(Statement(delta=1e-5, unit="user", records_per_person=1), known=True)
    'No user has more than 1 record, and each has them at one agent: training checks it.'
    """
    if statement.unit is not Unit.USER:
        return None
    most = number_of(statement.records_per_person, "record")
    how = "training checks it" if known else "that is assumed, and nothing here checks it"
    return f"No user has more than {most}, and each has them at one agent: {how}."


def rounded_up(value: float, digits: int = 3) -> str:
    """A figure with so many digits: none is printed smaller than it is.

    >>> rounded_up(2.0714), rounded_up(0.8515, 6), rounded_up(math.inf)
    ('2.08', '0.8515', 'inf')
    """
    return _rounded(value, digits, lambda scaled: math.ceil(scaled * (1 - 1e-9)))


def rounded_down(value: float) -> str:
    """A figure with three digits: none is printed larger than it is.

    >>> rounded_down(2.0789), rounded_down(0.0)
    ('2.07', '0')
    """
    return _rounded(value, 3, lambda scaled: math.floor(scaled * (1 + 1e-9)))


def _rounded(value: float, digits: int, whole: Callable[[float], int]) -> str:
    """A figure of as many digits as `whole` leaves when it has so many before the point."""
    if value == 0 or math.isinf(value):
        return f"{value:g}"
    scale = 10.0 ** (digits - 1 - math.floor(math.log10(value)))
    shown = whole(value * scale) / scale if math.isfinite(scale) else value
    return f"{shown:.{digits}g}"


# An account as data: rows for pandas, and the object that `overhear plan --format json` prints.


def as_json(summary: Summary) -> dict[str, Any]:
    """The object of a plan, without what only a run file knows; infinite figures are "inf"."""
    return {
        "schema": 1,
        "noise_multiplier": finite(summary.noise_multiplier),
        "target": dump(
            Target.of(
                summary.goal,
                delta=summary.statement.delta,
                adversary=summary.target,
                reached=summary.reached,
            )
        ),
        "adversaries": [dump(stated) for stated in summary.guarantees],
        "published_bound": None,
        "warnings": list(summary.warnings),
    }


def as_frame(rows: Sequence[Guarantee | Mapping[str, Any]]) -> DataFrame:
    """A data frame of rows, as of guarantees.

    Raises:
        ImportError: pandas is not installed.
    """
    try:
        from pandas import DataFrame
    except ImportError as error:
        raise needs("to_pandas", "pandas") from error
    return DataFrame([dump(r, mode="python") if isinstance(r, Guarantee) else r for r in rows])


def heads_of(guarantees: Sequence[Guarantee]) -> tuple[str, ...]:
    """Of the rows of statements; one more for each number of records of one person."""
    group = guarantees[0].group if guarantees else None
    several = tuple(f"of {one.records} records" for one in group or ())
    return ("adversary", "epsilon", *several, "status", "victim", "joint sensitivity", "because")


def cells_of(stated: Guarantee) -> tuple[str, ...]:
    """The row of a statement, in the order of `heads_of`."""
    name = stated.adversary
    if stated.worst_adversary is not None:
        name = f"{name} ({stated.worst_adversary})"
    return (
        name,
        rounded_up(stated.epsilon),
        *(rounded_up(one.epsilon) for one in stated.group or ()),
        str(stated.status),
        f"agent {stated.victim}",
        rounded_up(stated.joint_sensitivity),
        stated.because,
    )


# Charts of an account, drawn by matplotlib: epsilon by round, and trade-off curves.

_KINDS = ("rounds", "trade-off")
_POINTS = 25  # of epsilon by round
_QUALIFIED = {
    Status.HEURISTIC: " (heuristic: at least)",
    Status.DECLARED: " (declared)",
    Status.CHECKED: " (declared, checked)",
}


def plot(account: Figures, *, kind: str, axes: Axes | None = None) -> Axes:
    """A line for each adversary that really exists, solid where it is an upper bound.

    Args:
        kind: "rounds", or "trade-off".
        axes: to draw on; else new ones.

    Raises:
        ValueError: an unknown kind, or no adversary with anything to draw.
        ImportError: matplotlib is not installed.
    """
    if kind not in _KINDS:
        raise InputError(f"kind={kind!r} must be 'rounds' or 'trade-off'")
    drawn = [
        g
        for g in account.guarantees.values()
        if g.status.is_finite and g.adversary != SINGLE_MESSAGE.name
    ]
    if not drawn:
        raise InputError(
            "no adversary of this account has a finite epsilon, so there is nothing to draw; "
            "print the account for the reasons"
        )
    try:
        from matplotlib import pyplot as plt
    except ImportError as error:
        raise needs("plot", "matplotlib") from error
    if axes is None:
        _, axes = plt.subplots(layout="constrained")
    if kind == "rounds":
        _draw_rounds(axes, account, drawn)
    else:
        _draw_curves(axes, account, drawn)
    axes.set_title(account.heads[0], fontsize="medium")
    axes.legend(fontsize="small")
    return axes


def _draw_rounds(axes: Axes, account: Figures, drawn: Sequence[Guarantee]) -> None:
    rounds = sorted({round(float(t)) for t in np.linspace(0, account.rounds, _POINTS)})
    for names, stated in _alike(drawn, account.joint_sensitivities):
        spent = [account.epsilon(stated.adversary, rounds=t) for t in rounds]
        axes.plot(rounds, spent, _style(stated), label=names)
    if account.goal is not None and account.goal.epsilon is not None:
        axes.axhline(account.goal.epsilon, color="grey", linestyle=":", label="target")
    axes.set_xlabel("round")
    axes.set_ylabel(f"epsilon at delta {account.said_of.delta:g}")
    axes.set_ylim(bottom=0)


def _draw_curves(axes: Axes, account: Figures, drawn: Sequence[Guarantee]) -> None:
    rates = np.linspace(0.0, 1.0, 201)
    adjacency = account.said_of.adjacency
    for names, stated in _alike(drawn, account.joint_sensitivities):
        releases = spent_releases(account.joint_sensitivities[stated.adversary].releases)
        missed = 1.0 - rates
        if releases:
            events = counted(releases, account.noise_multiplier, adjacency)
            missed = trade_off(events, adjacency=adjacency).false_negative_rates(rates)
        axes.plot(rates, missed, _style(stated), label=names)
    axes.plot([0, 1], [1, 0], color="grey", linestyle=":", label="nothing is learnt")
    axes.set_xlabel("false positive rate")
    axes.set_ylabel("false negative rate, at least")


def _alike(
    drawn: Sequence[Guarantee], sensitivities: Mapping[str, JointSensitivity]
) -> list[tuple[str, Guarantee]]:
    """Adversaries whose lines are the same share one, under all their names."""
    grouped: dict[tuple[tuple[Release, ...], Status], list[Guarantee]] = {}
    for stated in drawn:
        key = sensitivities[stated.adversary].releases, Status(stated.status)
        grouped.setdefault(key, []).append(stated)
    return [
        (", ".join(g.adversary for g in same) + _QUALIFIED.get(same[0].status, ""), same[0])
        for same in grouped.values()
    ]


def _style(stated: Guarantee) -> str:
    return "--" if stated.status is Status.HEURISTIC else "-"


# The noise that a target takes: an epsilon, or what the best membership test may achieve.
#
# Epsilon is calibrated in `exposure.guarantees`. For a target of risk the trade-off curve of all
# rounds is asked, and what it says at the noise that is found is evaluated once more.


def reached(
    sensitivity: JointSensitivity,
    *,
    statement: Statement,
    noise_multiplier: float,
    goal: Goal,
    rounds: int | Sequence[int] | None = None,
) -> float:
    """What a run comes to, in the figure that a goal is about: epsilon, advantage, or TPR at FPR.

    Args:
        goal: whose figure is meant; how much it allows does not matter. The others are as for
            `run_epsilon`.

    Returns:
        Nats, or a probability, rounded upwards; 1 where nothing hides a record.

    Raises:
        ValueError: an accountant that gives no trade-off curve; else as for `run_epsilon`.
    """
    goal.check_accountant(statement.accountant)
    if not goal.of_risk:
        return run_epsilon(
            sensitivity, statement=statement, noise_multiplier=noise_multiplier, rounds=rounds
        )
    check_traced_at(sensitivity, noise_multiplier)
    releases = asked_releases(sensitivity, rounds)
    if not releases:
        return goal.fpr or 0.0
    if noise_multiplier == 0 or math.isinf(sensitivity.largest):
        return 1.0
    events = counted(releases, noise_multiplier, statement.adjacency, records=statement.at_once)
    curve = trade_off(events, adjacency=statement.adjacency)
    if goal.fpr is None:
        return curve.delta(0.0)
    return 1.0 - float(curve.false_negative_rates(goal.fpr))


def multiplier_for(sensitivity: JointSensitivity, *, statement: Statement, goal: Goal) -> float:
    """The noise multiplier at which a joint sensitivity costs no more than a goal allows.

    Args:
        sensitivity: at noise multiplier 1.
        statement: what every figure is said of.

    Returns:
        Noise std on a sum of clipped gradients / clip norm, rounded up and evaluated once more.

    Raises:
        UnsupportedView: no noise reaches the goal, or none is needed.
        UnsupportedMechanism: the accountant does not cover the rounds.
        ValueError: an accountant that gives no trade-off curve.

    Source: Kulynych et al., arXiv:2407.02191.
    """
    goal.check_accountant(statement.accountant)
    if goal.epsilon is not None:
        return calibrated_multiplier(sensitivity, statement=statement, epsilon=goal.epsilon)
    # Targets that no noise meets, and those that every noise does.
    who = sensitivity.adversary.name
    if math.isinf(sensitivity.largest):
        raise UnsupportedView(
            f"no noise multiplier reaches {goal.words} for {who}: {sensitivity.because}"
        )
    check_traced_at(sensitivity, None)
    releases = spent_releases(sensitivity.releases)
    if not releases:
        raise UnsupportedView(
            f"nothing about the data is released to {who}, so {goal.words} is met at every noise; "
            "give noise_multiplier in place of it"
        )
    # The least noise for the rounds as an accountant counts them.
    needed = scale_for_risk(
        counted(releases, 1.0, statement.adjacency, records=statement.at_once),
        advantage=goal.advantage,
        true_positive_rate=None if goal.tpr is None or goal.fpr is None else (goal.tpr, goal.fpr),
        adjacency=statement.adjacency,
    )
    if needed == 0.0:
        raise UnsupportedView(
            f"{goal.words} against {who} is met without any noise, because so few rounds draw a "
            "record that a test can hardly gain; choose a smaller target, or give noise_multiplier"
        )
    # The figure itself is evaluated at that noise, which is raised until it meets the goal.
    return least_that_meets(
        lambda noise: reached(sensitivity, statement=statement, noise_multiplier=noise, goal=goal),
        goal.figure,
        start=needed,
        otherwise=f"no noise is found for {goal.words} of {who}; choose a larger target",
    )
