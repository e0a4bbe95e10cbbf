"""An account: what a run costs, for every adversary that was asked for, and how it is shown."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...privacy.batches.sampling import Drawing, Sampling
from ...privacy.errors import InputError
from ...privacy.guarantee import SINGLE_MESSAGE, Guarantee, Statement, Status, Unit
from ..algorithms.algorithm import Bound, Form
from ..exposure.guarantees import run_epsilon
from ..exposure.joint_sensitivities import joint_sensitivities_by_victim
from ..exposure.sensitivity import JointSensitivity, Release, of_records, rounded
from ..exposure.whole_run import InAllRounds, whole_run_by_victim
from ..graphs.participation import participation_words
from ..tracing.linear_forms import Known
from ..tracing.scripts import Scripts
from ..tracing.trace import AlgorithmTrace, at_unit
from .accounted_run import AccountedRun, is_amplified
from .paragraph import Explanation, as_paragraph, explain
from .summary import Figures, Summary, as_json, reached, rounded_down, rounded_up, users_words

# Epsilon of every agent's records, not of the worst alone.


def exposures_by_agent(
    traces: AlgorithmTrace,
    worst: Mapping[str, JointSensitivity],
    *,
    how: InAllRounds,
    drawn: Sequence[Drawing] | None = None,
    records: int = 1,
) -> dict[str, list[JointSensitivity]]:
    """The exposure of every agent to the adversaries of `worst`, accounted as the worst one is.

    Where the worst figure is that of a view of all rounds together, so are the others. What
    differs from the worst figure by rounding is the worst figure.

    Args:
        traces: at the noise of the run.
        worst: by adversary the joint sensitivity of the worst agent.
        how: a record takes part, its rate that of batches that the step draws without one.
        drawn: as for `joint_sensitivities`.
        records: of one user, which are all there or none is.
    """
    settled: dict[str, list[JointSensitivity]] = {}
    every = joint_sensitivities_by_victim(
        traces, list(worst), sampling_rate=how.sampling_rate, encrypted=how.encrypted, drawn=drawn
    )
    for name, found in every:
        whole = (
            whole_run_by_victim(traces, name, how)
            if worst[name].whole_run and traces.noise_multiplier != 0
            else {}
        )
        # Finite figures by rounds stand, unless a pattern makes rounds depend on each other.
        any_round = how.pattern.is_every
        each = [
            e if any_round and math.isfinite(e.largest) else whole.get(e.victim, e) for e in found
        ]
        joint_sensitivities = [of_records(exposure, records) for exposure in each]
        settled[name] = [_as_worst(exposure, worst[name]) for exposure in joint_sensitivities]
    return settled


def _as_worst(exposure: JointSensitivity, worst: JointSensitivity) -> JointSensitivity:
    """The same, with the worst agent's figure where the two are equal but for rounding."""
    if len(exposure.releases) != len(worst.releases):
        return exposure
    pairs = zip(exposure.releases, worst.releases, strict=True)
    releases = (w if _but_for_rounding(e) == _but_for_rounding(w) else e for e, w in pairs)
    return exposure._replace(releases=tuple(releases))


def epsilon_by_agent(
    exposures: Sequence[JointSensitivity],
    *,
    agents: int,
    statement: Statement,
    noise_multiplier: float,
) -> list[float | None]:
    """Epsilon of each agent's records, None for agents that belong to the adversary.

    Agents whose joint sensitivities differ in the tenth digit are accounted for once, by the
    largest.

    Args:
        exposures: traced at this noise or holding at any, one for each agent outside the adversary.
        agents: how many there are.
        statement: what epsilon is said of.
        noise_multiplier: of the run.
    """
    groups: dict[tuple[Release, ...], list[JointSensitivity]] = {}
    for exposure in exposures:
        key = tuple(map(_but_for_rounding, exposure.releases))
        groups.setdefault(key, []).append(exposure)
    found: list[float | None] = [None] * agents
    for alike in groups.values():
        releases = tuple(
            same[0]._replace(joint_sensitivity=max(r.joint_sensitivity for r in same))
            for same in zip(*(e.releases for e in alike), strict=True)
        )
        spent = run_epsilon(
            alike[0]._replace(releases=releases),
            statement=statement,
            noise_multiplier=noise_multiplier,
        )
        for exposure in alike:
            found[exposure.victim] = spent
    return found


def _but_for_rounding(r: Release) -> Release:
    return r._replace(joint_sensitivity=rounded(r.joint_sensitivity), replays=0)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False, repr=False)
class Account(Figures):
    """What a run costs, for every requested adversary.

    Attributes:
        target: the adversary whose goal is met; None where the noise was given.
        message_kinds: what a round sends.
        scripts: what a run has to follow to be what was accounted for, for `Engine`.
        subject: what is accounted for.
        encrypted: whether nobody on a link can read it.
        memory: those of the warnings that are about noise that is taken back.
    """

    target: str | None
    message_kinds: Sequence[str]
    scripts: Scripts
    subject: AccountedRun
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
        _ = self[adversary]
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
            how=InAllRounds(
                self.subject.coin, self.encrypted, self.subject.pattern, is_amplified(self.said_of)
            ),
            drawn=self.subject.drawn,
            records=self.said_of.at_once,
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

    def to_json(self) -> dict[str, Any]:
        """The object that `overhear plan --format json` prints; infinite figures are "inf"."""
        return as_json(self.summary)

    @property
    def heads(self) -> Sequence[str]:
        """What runs, with which noise, and what every epsilon is said of."""
        summary = self.summary
        return (summary.title, summary.noise, summary.said_of)

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


# What the reader of an account has to know besides its figures, in sentences.


def warnings_of(
    guarantees: Sequence[Guarantee],
    subject: AccountedRun,
    *,
    target: str | None,
    encrypted: bool,
    repeatable: bool = False,
    counted: str | None = None,
) -> list[str]:
    """Sentences for the reader, the gravest first.

    Args:
        guarantees: of every adversary, worst first.
        subject: the run.
        target: the adversary to whom the noise is calibrated; None where the noise is given.
        repeatable: whether the noise comes from a seed that somebody may know.
        counted: that the number of all records is public, where it has to be.
    """
    said = []
    # Figures that are heuristic, infinite, or without a bound that can be expressed.
    if any(g.status is Status.HEURISTIC and g.adversary != "single-message" for g in guarantees):
        blame = next(g.because for g in guarantees if g.status is Status.HEURISTIC)
        fix = (
            ' Use form = "repaired" for a proven figure.'
            if subject.form is Form.PUBLISHED and Form.PUBLISHED in subject.algorithm.forms
            else ""
        )
        said.append(f"Heuristic: {blame}.{fix}")
    leaking = [g for g in guarantees if g.status is Status.NO_PROTECTION]
    if leaking:
        said.append(f"Nothing protects against {leaking[0].adversary}: {leaking[0].because}.")
    unknown = [g for g in guarantees if g.status is Status.CANNOT_BE_EXPRESSED]
    if unknown:
        who = unknown[0].adversary
        said.append(f"No finite bound can be expressed for {who}: {unknown[0].because}.")
    # What figures rest on: the noise is secret, and batches are drawn as stated.
    if repeatable:
        said.append(
            "evaluation_noise_seed is set: anyone who knows it can subtract the noise. For "
            "evaluation."
        )
    said += [words for words in (subject.batches, counted) if words is not None]
    if (least := next((g for g in guarantees if g.at_least is not None), None)) is not None:
        what = "cohorts" if least.sampling is Sampling.SHUFFLED_COHORT else "batches"
        said.append(
            f"Of {what} that are shuffled the epsilon of {least.adversary} lies between "
            f"{rounded_down(least.at_least or 0.0)}, for worst-case gradients, and "
            f"{rounded_up(least.epsilon)}; the figure of Poisson {what} of that rate is none of "
            "theirs."
        )
    # Limits on what an adversary is taken to see.
    if target == SINGLE_MESSAGE.name:
        said.append(
            "The target is that of a single message, which no adversary is limited to; name "
            'adversary = "eavesdropper" for a figure that protects.'
        )
    if encrypted:
        said.append(
            "links = encrypted: the eavesdropper is taken to see released final models, sizes and "
            "timing; agents still see what is sent to them."
        )
    return said


def unknown_users(statement: Statement) -> list[str]:
    """What a figure of users takes for granted where the data do not say whose a record is.

    Args:
        statement: what every epsilon is said of.
    """
    if statement.unit is not Unit.USER:
        return []
    return [
        f"that no user has more than {statement.records_per_person} "
        f"{'record' if statement.records_per_person == 1 else 'records'}, and that all of them are "
        "at one agent, is assumed: nothing in the data says whose a record is ([data] user names "
        "the column that does)"
    ]


def memory_words(
    traces: AlgorithmTrace,
    found: Mapping[str, JointSensitivity],
    *,
    target: str | None,
    noise_multiplier: float,
) -> list[str]:
    """What noise that is taken back means for the figures, where there is some.

    Args:
        traces: of the run.
        found: by adversary.
        target: the adversary to whom the noise is calibrated, whose figure is told.
    """
    groups = (g for part, _ in traces.rounds for g in part.groups)
    whole = [name for name, of in found.items() if of.whole_run and math.isfinite(of.largest)]
    if not whole or not any(isinstance(g, Known) and g.history for g in groups):
        return []
    of = found[target if target in whole else whole[0]]
    said = "The noise of a round is partly taken back in the next ones."
    if any(r.sampling_rate < 1 for r in of.releases):
        return [f"{said} It is taken back before a record has its next turn: {of.because}."]
    mu = f"mu {rounded_up(of.largest / noise_multiplier, 4)}" if noise_multiplier else "mu"
    said += f" All rounds count as one release: {mu} for a record that takes part"
    if of.pattern.is_every:
        return [
            f"{said} in every round. Sampling adds no further protection here, and under this "
            "sampler independent noise would do better: state in which rounds a record may be, "
            "such as [privacy] participation = { cycle = 10 }."
        ]
    return [
        f"{said} {of.pattern.words}, which the sampler enforces. Sampling adds no further "
        "protection here."
    ]
