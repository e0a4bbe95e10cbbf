"""What the reader of an account has to know besides its figures, in sentences."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from ...privacy.adversary import SINGLE_MESSAGE
from ...privacy.batches.sampling import Sampling
from ...privacy.guarantee import Guarantee, Statement, Status, Unit
from ..algorithms.algorithm import Algorithm, Form
from ..exposure.sensitivity import JointSensitivity
from ..presentation.summary import rounded_down, rounded_up
from ..tracing.linear_forms import Known
from ..tracing.trace import AlgorithmTrace

__all__ = ["memory_words", "unknown_users", "warnings_of"]


def warnings_of(
    guarantees: Sequence[Guarantee],
    *,
    algorithm: Algorithm,
    form: Form,
    target: str | None,
    encrypted: bool,
    repeatable: bool = False,
    batches: str | None = None,
    counted: str | None = None,
) -> list[str]:
    """Sentences for the reader, the gravest first.

    Args:
        guarantees: of every adversary, worst first.
        algorithm: what runs.
        form: published or repaired.
        target: the adversary to whom the noise is calibrated; None where the noise is given.
        encrypted: whether nobody on a link can read it.
        repeatable: whether the noise comes from a seed that somebody may know.
        batches: how they are drawn and what counts as public, where they are not Poisson.
        counted: that the number of all records is public, where it has to be.
    """
    said = []
    if any(g.status is Status.HEURISTIC and g.adversary != "single-message" for g in guarantees):
        blame = next(g.because for g in guarantees if g.status is Status.HEURISTIC)
        fix = (
            ' Use form = "repaired" for a proven figure.'
            if form is Form.PUBLISHED and Form.PUBLISHED in algorithm.forms
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
    if repeatable:
        said.append(
            "evaluation_noise_seed is set: anyone who knows it can subtract the noise. For "
            "evaluation."
        )
    said += [words for words in (batches, counted) if words is not None]
    if (least := next((g for g in guarantees if g.at_least is not None), None)) is not None:
        what = "cohorts" if least.sampling is Sampling.SHUFFLED_COHORT else "batches"
        said.append(
            f"Of {what} that are shuffled the epsilon of {least.adversary} lies between "
            f"{rounded_down(least.at_least or 0.0)}, for worst-case gradients, and "
            f"{rounded_up(least.epsilon)}; the figure of Poisson {what} of that rate is none of "
            "theirs."
        )
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
        noise_multiplier: of the run.
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
