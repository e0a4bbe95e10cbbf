"""The figures of an account: joint sensitivities at the noise of the run, and that noise.

    noise multiplier given    trace at it, and a reference at another one
    target given              trace a reference at 1, find the multiplier, trace again at it

Either way what is accounted for is what the step does at the noise with which it will run, and
`proportion` holds the two traces against each other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ...privacy.errors import InputError, UnsupportedView
from ...privacy.guarantee import ALL_OTHERS, WORST_NEIGHBOUR, Statement, Status, Unit
from ...privacy.target import Goal
from ..exposure import sensitivity
from ..exposure.joint_sensitivities import joint_sensitivities
from ..exposure.whole_run import InAllRounds, check_turns, replace_infinite_by_whole_run
from ..persons import Holders, person_joint_sensitivities
from ..tracing.trace import AlgorithmTrace, at_unit, refer_to
from .accounted_run import AccountedRun
from .summary import multiplier_for

# Whether a step's noise keeps its proportion to what is clipped, whatever the noise multiplier.
#
# A joint sensitivity is mu times the noise multiplier of the trace that it comes from. Epsilon at
# another multiplier, and the multiplier for a target, follow from it only if mu falls as the noise
# grows. A step may do otherwise: it ignores noise_std, squares it, caps it, adds noise of its own,
# or behaves differently from some noise on. So a figure is that of a trace at the very noise for
# which it is printed, and it holds at other noise only where a second trace agrees: at another
# multiplier, clip norm and batch size. Where the two differ by rounding, the larger one counts.

_TOLERANCE = 1e-6  # of two traces of one step, by which the larger figure counts
_ROUNDING = 1e-9  # of two figures that count as one


def proportional(
    first: Mapping[str, sensitivity.JointSensitivity],
    second: Mapping[str, sensitivity.JointSensitivity],
    *,
    noise_multiplier: float,
) -> dict[str, sensitivity.JointSensitivity]:
    """The joint sensitivities on which two traces agree; they hold at any noise multiplier.

    Args:
        first: by adversary, as the figures are given.
        second: of the same step at another noise multiplier, clip norm or batch size.
        noise_multiplier: of the one of the two that is not the reference, for the words.

    Raises:
        UnsupportedView: they differ.
    """
    found = {}
    for name, one in first.items():
        other = second[name]
        same = (one.whole_run, one.status) == (other.whole_run, other.status)
        # Where agents are absent the releases of each record are compared, which bound all.
        lists = list(zip(one.each, other.each, strict=False)) or [(one.releases, other.releases)]
        same = same and len(one.each) == len(other.each)
        if not same or any(len(a) != len(b) for a, b in lists):
            raise UnsupportedView(
                f"the step does something else at noise_multiplier={noise_multiplier:g} than at "
                f"other noise: what {name} sees of it differs in kind; let noise_std scale the "
                "noise and decide nothing"
            )
        agreed = tuple(
            tuple(_agreed(name, a, b, noise_multiplier) for a, b in zip(*pair, strict=True))
            for pair in lists
        )
        found[name] = one._replace(
            releases=sensitivity.bound_of(agreed, like=one.releases) if one.each else agreed[0],
            each=agreed if one.each else (),
            noise_multiplier=None,
        )
    return found


def _agreed(
    name: str, one: sensitivity.Release, other: sensitivity.Release, noise_multiplier: float
) -> sensitivity.Release:
    """The larger of two releases that differ by rounding."""
    a, b = one.joint_sensitivity, other.joint_sensitivity
    alike = one._replace(joint_sensitivity=0.0) == other._replace(joint_sensitivity=0.0)
    if not alike or not math.isclose(a, b, rel_tol=_TOLERANCE):
        raise UnsupportedView(
            "the step's noise does not keep its proportion to the clipped sums at "
            f"noise_multiplier={noise_multiplier:g} and another batch_size or clip_norm: {name} "
            f"has joint sensitivity {b:g} where {a:g} was expected; scale every noise by "
            "noise_std, and everything that is clipped by clip_norm"
        )
    return other if b > a * (1 + _ROUNDING) else one


def without_noise(
    first: Mapping[str, sensitivity.JointSensitivity],
    silent: Mapping[str, sensitivity.JointSensitivity],
) -> dict[str, sensitivity.JointSensitivity]:
    """The joint sensitivities of a run without noise: infinite is what costs anything.

    Args:
        first: of the step with noise, as the figures are given.
        silent: of the same step at noise multiplier 0.

    Raises:
        UnsupportedView: the step releases without noise what it does not release with it.
    """
    for name, one in first.items():
        if one.largest == 0 and silent[name].largest > 0:
            raise UnsupportedView(
                f"the step releases to {name} without noise what it does not release with it; let "
                "noise_std scale the noise and decide nothing"
            )
    return {name: one._replace(noise_multiplier=None) for name, one in first.items()}


_PASSES = 3  # of calibration, where two traces differ by more than rounding


class FigureRequest(NamedTuple):
    """Against whom a run is accounted for.

    Attributes:
        adversaries: by name.
        victim: the agent whose record is at risk; None searches the worst one.
        encrypted: the eavesdropper cannot read links and sees the released final models alone.
        holders: (agent, records) of every agent that holds records of the one person who is meant;
            empty where one record of one agent is.
        unit: whose data are hidden.
        records: of one user, which are all there or none is; 1 where the unit is another one.
        amplified: whether a record has one coin in each of its turns: one record that is there or
            not, as turns of a record that is replaced are those of another one.
    """

    adversaries: Sequence[str]
    victim: int | None = None
    encrypted: bool = False
    holders: Holders = ()
    unit: Unit = Unit.RECORD
    records: int = 1
    amplified: bool = False

    def found_in(
        self, traces: AlgorithmTrace, subject: AccountedRun
    ) -> dict[str, sensitivity.JointSensitivity]:
        """The joint sensitivities in a traced run, those of whole runs where others are infinite.

        Without noise there is nothing that a whole run would hide, so it is not looked at; nor is
        it where batches are not Poisson.
        """
        found = self._of_one_record(traces, subject)
        return {name: sensitivity.of_records(of, self.records) for name, of in found.items()}

    def _of_one_record(
        self, traces: AlgorithmTrace, subject: AccountedRun
    ) -> dict[str, sensitivity.JointSensitivity]:
        # Contributions of the unit, and turns that the step has to keep to.
        traces = at_unit(traces, self.unit, records=self.records)
        pattern = subject.pattern
        if not pattern.is_every:
            check_turns(traces, pattern)
        # A person with records at several agents.
        if self.holders:
            return dict(
                person_joint_sensitivities(
                    traces,
                    list(dict.fromkeys(self.adversaries)),
                    holders=self.holders,
                    sampling_rate=subject.sampling_rate,
                    encrypted=self.encrypted,
                )
            )
        # One record of one agent, round by round.
        found = joint_sensitivities(
            traces,
            list(dict.fromkeys(self.adversaries)),
            sampling_rate=subject.coin,
            victim=self.victim,
            encrypted=self.encrypted,
            drawn=subject.drawn,
        )
        if traces.noise_multiplier == 0 or subject.drawn is not None:
            return dict(found)
        # What is infinite by rounds may be finite for the run as a whole.
        settled = replace_infinite_by_whole_run(
            traces._replace(without=(), alike=frozenset()),
            found,
            how=InAllRounds(subject.coin, self.encrypted, pattern, self.amplified),
            victim=self.victim,
        )
        if not traces.without:
            return dict(settled)
        pairs = zip(found, settled, strict=True)
        return {name: _one_by_one(of, whole) for (name, of), (_, whole) in pairs}


def _one_by_one(
    found: sensitivity.JointSensitivity, whole: sensitivity.JointSensitivity
) -> sensitivity.JointSensitivity:
    """The same, where a view of all rounds together says nothing, since agents may be missing.

    Nothing is proven of noise that is shared by rounds from which other agents are missing. What
    nothing protects with everybody there is protected by nothing.

    Args:
        found: round by round.
        whole: the same, or of all rounds together with everybody there.
    """
    if math.isfinite(found.largest):
        return found
    if whole.status is Status.NO_PROTECTION and not math.isfinite(whole.largest):
        return whole
    said = "where agents may be missing rounds are accounted for one by one alone"
    because = f"{found.because}; {said}" if found.because else said
    return found._replace(status=Status.CANNOT_BE_EXPRESSED, because=because)


class Figures(NamedTuple):
    """What a run costs, and the trace at its noise.

    Attributes:
        joint_sensitivities: by adversary.
        noise_multiplier: of the run.
        traces: at it; its scripts are what the run has to follow.
    """

    joint_sensitivities: dict[str, sensitivity.JointSensitivity]
    noise_multiplier: float
    traces: AlgorithmTrace

    @property
    def message_kinds(self) -> list[str]:
        """What a round sends, in the order of sending."""
        rounds = self.traces.rounds
        return list(dict.fromkeys(m.kind for one, _ in rounds for m in one.messages))


def adversaries_of(
    names: Sequence[str], *, target: str | None, agents: int, encrypted: bool, holders: Holders = ()
) -> list[str]:
    """The adversaries to account for: those that are asked for or the usual ones, and the target.

    Raises:
        ValueError: the target's is another agent, and there is none.
    """
    usual: Sequence[str] = sensitivity.ENCRYPTED_DEFAULT if encrypted else sensitivity.CLEAR_DEFAULT
    if holders:
        usual = sensitivity.usual_of_person(usual, holders=holders, agents=agents)
    asked = [str(name) for name in names or usual]
    asked += [target] if target is not None and target not in asked else []
    if agents > 1:
        return asked
    if target in (WORST_NEIGHBOUR, ALL_OTHERS):
        raise InputError(
            f"adversary={target!r} needs another agent than the victim; agents=1, so ask "
            "about the eavesdropper or the final models"
        )
    return [n for n in asked if n not in (WORST_NEIGHBOUR, ALL_OTHERS)]


def figures_of(
    subject: AccountedRun,
    asked: FigureRequest,
    *,
    statement: Statement,
    noise_multiplier: float | None = None,
    goal: Goal | None = None,
    target: str | None = None,
) -> Figures:
    """What a run costs, at a noise multiplier or at the one that meets the goal for the target.

    Raises:
        ValueError: an adversary or victim that does not exist, or a multiplier out of range.
        UnsupportedView: no noise meets the target, the view cannot be accounted for, or the
            step's noise does not keep its proportion to what is clipped.
    """
    if noise_multiplier is None:
        if goal is None or target is None:
            raise InputError("give noise_multiplier, or a goal with the adversary that it is of")
        return _calibrated(subject, asked, statement, goal=goal, target=target)
    if noise_multiplier == 0:
        traces = subject.trace(0.0)
        silent = asked.found_in(traces, subject)
        found = asked.found_in(subject.reference(1.0), subject)
        return Figures(without_noise(found, silent), 0.0, traces)
    # At 1 the run itself is what every other noise is held against.
    traces = subject.trace(noise_multiplier)
    both = [subject.reference(2.0 if noise_multiplier == 1 else 1.0), traces]
    first, second = reversed(both) if noise_multiplier == 1 else both
    refer_to(first, second)
    found = proportional(
        asked.found_in(first, subject),
        asked.found_in(second, subject),
        noise_multiplier=noise_multiplier,
    )
    return Figures(found, float(noise_multiplier), traces)


def _calibrated(
    subject: AccountedRun, asked: FigureRequest, statement: Statement, *, goal: Goal, target: str
) -> Figures:
    reference = subject.reference(1.0)
    unit = asked.found_in(reference, subject)
    expected = unit[target]
    for _ in range(_PASSES):
        # Taken to hold at any noise, which the trace at the multiplier then has to bear out.
        multiplier = multiplier_for(
            expected._replace(noise_multiplier=None), statement=statement, goal=goal
        )
        traces = subject.trace(multiplier)
        refer_to(reference, traces)
        second = asked.found_in(traces, subject)
        found = proportional(unit, second, noise_multiplier=multiplier)
        if found[target].releases == expected.releases:
            return Figures(found, multiplier, traces)
        expected = found[target]
    raise UnsupportedView(
        f"no noise multiplier is found for {goal.words} of {target}: the joint sensitivity "
        "changes with the noise"
    )
