"""An account: what a run costs, for every adversary that was asked for, and how it is shown."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ...privacy.adversary import SINGLE_MESSAGE
from ...privacy.errors import InputError
from ...privacy.goal import Goal
from ...privacy.guarantee import Guarantee, Statement
from ..algorithms.algorithm import Bound
from ..exposure.guarantees import run_epsilon
from ..exposure.sensitivity import JointSensitivity
from ..graphs.participation import participation_words
from ..presentation.explanation import Explanation, explain
from ..presentation.html import as_html
from ..presentation.paragraph import as_paragraph
from ..presentation.plots import plot
from ..presentation.rows import as_frame, as_json
from ..presentation.summary import Summary, users_words
from ..presentation.text import as_rich, as_text
from ..tracing.agents import at_unit
from ..tracing.scripts import Scripts
from ..tracing.trace import AlgorithmTrace
from .by_agent import epsilon_by_agent, exposures_by_agent
from .subject import Subject, is_amplified
from .targets import reached

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame
    from rich.table import Table

__all__ = ["Account"]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False, repr=False)
class Account:
    """What a run costs, for every requested adversary.

    Attributes:
        said_of: what every epsilon is said of.
        noise_multiplier: of the run, as given or as it meets `goal`.
        target: the adversary whose goal is met; None where the noise was given.
        goal: what is met for it; None where the noise was given.
        guarantees: by adversary, worst first.
        joint_sensitivities: by adversary, as asked for; they hold at any noise.
        message_kinds: what a round sends.
        scripts: what a run has to follow to be what was accounted for, for `Engine`.
        warnings: sentences for the reader.
        subject: what is accounted for.
        encrypted: whether nobody on a link can read it.
        memory: those of the warnings that are about noise that is taken back.
    """

    said_of: Statement
    noise_multiplier: float
    target: str | None
    goal: Goal | None
    guarantees: Mapping[str, Guarantee]
    joint_sensitivities: Mapping[str, JointSensitivity]
    message_kinds: Sequence[str]
    scripts: Scripts = field(repr=False)
    warnings: Sequence[str]
    subject: Subject = field(repr=False)
    encrypted: bool = False
    memory: Sequence[str] = ()

    @property
    def rounds(self) -> int:
        """How many rounds are accounted for."""
        return self.subject.rounds

    @property
    def sampling_rate(self) -> float:
        """The probability of a record to be in a batch that the step draws without a rate."""
        return self.subject.sampling_rate

    @property
    def bound(self) -> Bound:
        """The start and the step with every number of the account, for `Engine`.

        Raises:
            ValueError: the algorithm divides by batch_size, and none was given.
        """
        return self.subject.bound(self.noise_multiplier)

    def __getitem__(self, adversary: str) -> Guarantee:
        """The statement for one adversary."""
        self._check_asked(adversary)
        return self.guarantees[adversary]

    def __iter__(self) -> Iterator[str]:
        """The adversaries, worst first."""
        return iter(self.guarantees)

    def __len__(self) -> int:
        """How many adversaries are accounted for."""
        return len(self.guarantees)

    @property
    def epsilon_target(self) -> float | None:
        """The epsilon that the noise meets; None where it meets something else, or was given."""
        return None if self.goal is None else self.goal.epsilon

    @property
    def reached(self) -> float | None:
        """What the target adversary comes to at the noise, in the goal's own figure."""
        if self.goal is None or self.target is None:
            return None
        return reached(
            self.joint_sensitivities[self.target],
            statement=self.said_of,
            noise_multiplier=self.noise_multiplier,
            goal=self.goal,
        )

    def epsilon(self, adversary: str, *, rounds: int | None = None) -> float:
        """Epsilon of the run for one adversary, or of its start and its first `rounds` rounds.

        Raises:
            ValueError: an adversary that was not asked for, or a number of rounds that is none.
            UnsupportedView: more rounds than were traced, of rounds that differ.
        """
        self._check_asked(adversary)
        return run_epsilon(
            self.joint_sensitivities[adversary],
            statement=self.said_of,
            noise_multiplier=self.noise_multiplier,
            rounds=rounds,
        )

    def epsilon_by_agent(self) -> dict[str, list[float | None]]:
        """By adversary epsilon of every agent's records, None for agents that belong to it.

        The run is traced once more for it, at its own noise.
        """
        self._check_one_holder("epsilon of every agent's records")
        every = exposures_by_agent(
            self._traces(),
            dict(self.joint_sensitivities),
            sampling_rate=self.subject.coin,
            encrypted=self.encrypted,
            drawn=self.subject.drawn,
            records=self.said_of.at_once,
            pattern=self.subject.pattern,
            amplified=is_amplified(self.said_of),
        )
        return {
            name: epsilon_by_agent(
                of,
                agents=self.subject.graph.agents,
                statement=self.said_of,
                noise_multiplier=self.noise_multiplier,
            )
            for name, of in every.items()
        }

    def _check_one_holder(self, what: str) -> None:
        if self.said_of.holders:
            raise InputError(
                f"{what} is about the records of one agent, and this account is about "
                f"{self.said_of.whose}; leave holders out"
            )

    def _traces(self) -> AlgorithmTrace:
        """The run at its noise, traced once more."""
        traced = self.subject.trace(self.noise_multiplier)
        return at_unit(traced, self.said_of.unit, records=self.said_of.at_once)

    def _check_asked(self, adversary: str) -> None:
        if adversary not in self.guarantees:
            raise InputError(
                f"adversary {adversary!r} is not accounted for; this account is against "
                f"{', '.join(self.guarantees)}: name others as adversaries=[...]"
            )

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

    def explain(self, adversary: str) -> Explanation:
        """Which messages of the round that costs most add up to the figure; printed, in words.

        The run is traced once more for it, at its own noise.

        Raises:
            ValueError: an adversary that was not asked for.
        """
        stated = self[adversary]
        self._check_one_holder("what a figure adds up to, message by message,")
        return explain(
            self._traces(),
            stated,
            self.joint_sensitivities[adversary],
            encrypted=self.encrypted,
            counted=self.summary.counted,
        )

    def statement(self) -> str:
        """A paragraph to paste: unit, adjacency, sampling, accountant, and what is assumed."""
        return as_paragraph(self.summary, self.joint_sensitivities)

    def plot(self, kind: str = "rounds", *, axes: Axes | None = None) -> Axes:
        """Epsilon by round, or with kind="trade-off" the curves that no test beats.

        Args:
            kind: "rounds" or "trade-off".
            axes: of matplotlib, to draw on; else new ones.

        Raises:
            ValueError: an unknown kind, or nothing finite to draw.
            ImportError: matplotlib is not installed.
        """
        return plot(
            self.summary,
            self.joint_sensitivities,
            kind=kind,
            epsilon=lambda name, rounds: self.epsilon(name, rounds=rounds),
            axes=axes,
        )

    def to_pandas(self) -> DataFrame:
        """A row an adversary, worst first.

        Raises:
            ImportError: pandas is not installed.
        """
        return as_frame(self.summary.guarantees)

    def to_json(self) -> dict[str, Any]:
        """The object that `overhear plan --json` prints; infinite figures are "inf"."""
        return as_json(self.summary)

    def __repr__(self) -> str:
        """The account as a table."""
        return as_text(self.summary)

    def _repr_html_(self) -> str:
        """The same for a notebook."""
        return as_html(self.summary)

    def __rich__(self) -> Table:
        """The same for a console of rich."""
        return as_rich(self.summary)

    @property
    def summary(self) -> Summary:
        """What every way of showing the account starts from."""
        settings = self.subject.settings
        return Summary(
            algorithm=self.subject.algorithm.name,
            settings={f.name: getattr(settings, f.name) for f in dataclasses.fields(settings)},
            graph=self.subject.graph.name,
            agents=self.subject.graph.agents,
            rounds=self.rounds,
            sampling_rate=self.sampling_rate,
            clip_norm=self.subject.clip_norm,
            noise_multiplier=self.noise_multiplier,
            target=self.target,
            goal=self.goal,
            reached=self.reached,
            statement=self.said_of,
            guarantees=list(self.guarantees.values()),
            warnings=self.warnings,
            encrypted=self.encrypted,
            batches=self.subject.batches,
            counted=self.subject.counted(self.said_of) if self.noise_multiplier else None,
            participation=participation_words(self.subject.graph),
            missing=self.subject.missing_words,
            users=users_words(self.said_of),
            whole_users=self.scripts.draws_users,
        )
