"""Joint sensitivities of a traced run: how far one record can change all that an adversary sees.

The closed view of each traced round gives the joint sensitivity J of a record of one victim to one
adversary, at noise multiplier 1: one figure for each batch that is drawn. What decides it:

    adversary, victim     -> candidates                the pairs that a name asks about
    the worst of them     -> joint_sensitivities
    rows that matter      -> local_views               of the view of one adversary in one round
    batches of a round    -> tracing.round_trace       which of them are charged as one
    J of these rows       -> privacy.view.view         mu of a Gaussian view, and of its matrix M
    epsilon of all J      -> guarantees

Victims whom an agent does not touch have the same figures against all such agents, so one pair of
adversary and victim is looked at for all of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cached_property

from ...privacy.batches.sampling import Drawing, Scheme
from ...privacy.errors import InexpressibleView, UnsupportedView
from ...privacy.guarantee import Adversary, Sees, Status, Unit
from ...privacy.view.view import View
from ..tracing.trace import AlgorithmTrace, parts_of
from .events import check_draws
from .local_views import AdversaryView, LocalViews
from .rounding_error import Residues
from .sensitivity import (
    JointSensitivity,
    Release,
    candidates,
    cost,
    effective_of,
    rounded,
    single_message,
    worst,
)


def joint_sensitivities(
    traces: AlgorithmTrace,
    names: Sequence[str],
    *,
    sampling_rate: float,
    victim: int | None = None,
    encrypted: bool = False,
    drawn: Sequence[Drawing] | None = None,
) -> list[tuple[str, JointSensitivity]]:
    """The joint sensitivity to each named adversary, of `victim` or else of the worst agent.

    Args:
        traces: of the run; figures are those of noise multiplier 1, whatever theirs is.
        names: as in a run file; "neighbour" is the worst single agent, "all-others" the coalition
            of everybody but the victim.
        sampling_rate: of batches that the step draws without a rate of its own.
        victim: the agent whose record is at risk; None searches the worst one.
        encrypted: the eavesdropper cannot read links and sees the released final models alone.
        drawn: how each agent draws its batches; each record on its own where it is None.

    Raises:
        ValueError: an unknown adversary or a victim that does not exist.
        UnsupportedView: the adversary contains the victim, or no view can be proven.
        UnsupportedMechanism: a step whose batches cannot be drawn so.
    """
    runs = _runs(traces, rate=sampling_rate, encrypted=encrypted, drawn=drawn)
    found = []
    for name in names:
        asked = candidates(traces, name, victim)
        each = _each(runs, asked)
        top = max(range(len(each)), key=lambda i: cost(each[i][1]))
        every = [one for _, one in each]
        every[top] = each[top][0].named(every[top])
        found.append((name, worst(every, absent=runs[0].absent)))
    return found


def joint_sensitivities_by_victim(
    traces: AlgorithmTrace,
    names: Sequence[str],
    *,
    sampling_rate: float,
    encrypted: bool = False,
    drawn: Sequence[Drawing] | None = None,
) -> list[tuple[str, list[JointSensitivity]]]:
    """The joint sensitivity of every agent to each named adversary, in the order of the agents.

    Of "neighbour" it is the agent's own worst neighbour. Members of a coalition are left out.

    Args:
        names: as for `joint_sensitivities`.

    Raises:
        ValueError: an unknown adversary.
        UnsupportedView: no victim is left, or no view can be proven.
    """
    runs = _runs(traces, rate=sampling_rate, encrypted=encrypted, drawn=drawn)
    found = []
    for name in names:
        by_victim: dict[int, list[JointSensitivity]] = {}
        asked = candidates(traces, name)
        for _, sensitivity in _each(runs, asked):
            # Of alike agents those that are there stand for all of them.
            v = sensitivity.victim
            for of in traces.alike if v in traces.alike else (v,):
                by_victim.setdefault(of, []).append(sensitivity._replace(victim=of))
        of_each = [worst(by_victim[v], absent=runs[0].absent) for v in sorted(by_victim)]
        found.append((name, [runs[0].named(sensitivity) for sensitivity in of_each]))
    return found


def _runs(
    traces: AlgorithmTrace, *, rate: float, encrypted: bool, drawn: Sequence[Drawing] | None
) -> list[_Run]:
    """The run with everybody there, and without each set of agents that may be missing."""
    every = [(frozenset[int](), traces), *traces.without]
    return [
        _Run(one, rate=rate, encrypted=encrypted, drawn=drawn, away=away) for away, one in every
    ]


def _each(
    runs: Sequence[_Run], asked: Sequence[tuple[Adversary, Sequence[int]]]
) -> list[tuple[_Run, JointSensitivity]]:
    """Of each run what each adversary learns of each victim, charged so that they can be compared.

    Batches that are one sum to some adversaries, and not to others who see one of them apart, are
    charged one by one to all.
    """
    for sums in (True, False):
        each = [
            (run, joint_sensitivity)
            for run in runs
            for joint_sensitivity in run.of_those_there(asked, sums=sums)
        ]
        if len({tuple(r.summed for r in one.releases) for _, one in each}) <= 1:
            break
    return each


class _Run:
    """A traced run, whose local views are found once for all adversaries."""

    def __init__(
        self,
        traces: AlgorithmTrace,
        *,
        rate: float,
        encrypted: bool,
        drawn: Sequence[Drawing] | None = None,
        away: frozenset[int] = frozenset(),
    ) -> None:
        self._traces, self._rate, self._encrypted = traces, rate, encrypted
        self._away, self._sums = away, True
        self._parts = parts_of(traces)
        if traces.start.unit is Unit.AGENT:
            drawn = None  # an agent takes part in every batch, however it is drawn
        self._drawn = drawn
        if drawn:
            for part in self._parts:
                check_draws(part.base, drawn[0].scheme, first=part.first)
        self._bases = list({id(part.base): part.base for part in self._parts}.values())
        # Of every round by itself: one that is another's but for a scale may lose more.
        different = {id(part.trace): part.trace for part in self._parts}
        self._residues = [Residues.of(one) for one in different.values()]
        self._last: tuple[Adversary, list[View]] | None = None

    @property
    def absent(self) -> bool:
        """Whether some agent takes no part in some round."""
        return any(part.trace.record.absent for part in self._parts)

    @cached_property
    def _local_views(self) -> list[LocalViews]:
        for base in self._bases:  # which traces share whose rounds are it but for a scale
            base.local_views = base.local_views or LocalViews(base)
        return [base.local_views for base in self._bases]

    def of_those_there(
        self, asked: Sequence[tuple[Adversary, Sequence[int]]], *, sums: bool = True
    ) -> list[JointSensitivity]:
        """Those of `sensitivities` whose victims are not missing; see `_each` for `sums`."""
        self._sums = sums
        return [one for one in self.sensitivities(asked) if one.victim not in self._away]

    def sensitivities(
        self, asked: Sequence[tuple[Adversary, Sequence[int]]]
    ) -> list[JointSensitivity]:
        """Joint sensitivities among which every victim's largest are, and no larger one is.

        Of pairs of adversary and victim that fare alike only the first is there.
        """
        found: list[JointSensitivity] = []
        local = list[_Seen]()
        spanning = list[Adversary]()
        every = set[int]()
        for _, victims in asked:
            if len(every) < self._traces.start.record.agents:
                every.update(victims)
        # Single agents of local rows wait until those that fare alike are known, and so do those
        # to whom the graph is one problem; all others are looked at with each of their victims.
        for who, victims in asked:
            for residues in self._residues:
                residues.check(self._under_encryption(who))
            if who.sees is Sees.ONE_MESSAGE:
                alone = [single_message(self._traces, who, v, rate=self._rate) for v in victims]
                found += [self._as_drawn(one) for one in alone]
                continue
            views = self._views_of(who)
            if len(asked) == 1 or len(who.agents) != 1:
                found += [self._stated(who, v, views) for v in victims]
            elif any(view.shared.undetermined for view in views):
                spanning.append(who)
            else:
                local.append((who, views))
        found += [self._stated(who, v, on) for who, v, on in _different(local, every)]
        found += self._of_spanning(spanning, every)
        order = {who.name: i for i, (who, _) in enumerate(asked)}
        return sorted(found, key=lambda e: (order[e.adversary.name], e.victim))

    def _of_spanning(
        self, adversaries: Sequence[Adversary], victims: set[int]
    ) -> list[JointSensitivity]:
        """Of adversaries to whom the whole graph is one problem the largest figure a victim.

        A victim's figures are at most those of adversaries who see more, in local rows. Where one
        who sees less than its adversary reaches the largest of these, it is the victim's largest.
        """
        if not adversaries:
            return []
        found = list[JointSensitivity]()
        left = set(victims)
        try:
            # From above: what each victim loses at most to adversaries who see more.
            bounds = [
                (who, [one.bracket(self._under_encryption(who)) for one in self._local_views])
                for who in adversaries
            ]
            above = [(who, [more for _, more in both]) for who, both in bounds]
            most: dict[int, list[float]] = {}
            for who, v, views in _different(above, victims):
                figures = _figures(self._sensitivity(who, v, views))
                most[v] = [max(pair) for pair in zip(figures, most.get(v, figures), strict=True)]
            # From below: where one who sees less reaches that figure, it is settled.
            for (who, both), (_, more) in zip(bounds, above, strict=True):
                less = [below for below, _ in both]
                for v in sorted({v for below in less for v in below.touched()} & left):
                    if _figures(self._sensitivity(who, v, less)) == most[v]:
                        found.append(self._sensitivity(who, v, more))
                        left.discard(v)
        except UnsupportedView:  # more or less than the adversary sees is no reason to refuse
            found, left = [], set(victims)
        # Victims between whose two figures there is a gap are looked at in the view itself.
        for who in adversaries:
            if left - who.agents:
                views = self._views_of(who)
                found += [self._stated(who, v, views) for v in sorted(left - who.agents)]
        return found

    def _under_encryption(self, who: Adversary) -> Adversary:
        return effective_of(who, encrypted=self._encrypted)

    def _views_of(self, who: Adversary) -> list[AdversaryView]:
        """What it sees in each base, in local rows."""
        seeing = self._under_encryption(who)
        return [local_view.of_adversary(seeing) for local_view in self._local_views]

    def _stated(self, who: Adversary, victim: int, views: _Views) -> JointSensitivity:
        """As `_sensitivity`, and infinite where no figure of the batches can be expressed.

        It is infinite, too, where rounding hides one of a round whose closed state holds remembered
        noise, by which all noise is told: there all rounds together are looked at.
        """
        try:
            return self._sensitivity(who, victim, views)
        except UnsupportedView as reason:
            status, releases = Status.CANNOT_BE_EXPRESSED, list[Release]()
            if not isinstance(reason, InexpressibleView):
                if not any(base.remembers for base in self._bases):
                    raise
                status = Status.NO_PROTECTION
            for part in self._parts:
                batches = part.base.of_victim(victim).values()
                for (columns, bounds, draws), reach in zip(
                    batches, part.base.reaches(victim), strict=True
                ):
                    mu, count = math.inf if any(bounds) else 0.0, part.base.count(columns)
                    rate = draws.rate(self._rate)
                    release = Release(
                        mu, rate, part.rounds, count, part.first, *reach, whole=draws.whole
                    )
                    releases.append(release.in_cohort(draws, part.base, who))
            return self._as_drawn(
                JointSensitivity(who, victim, tuple(releases), status, str(reason))
            )

    def _sensitivity(self, who: Adversary, victim: int, views: _Views) -> JointSensitivity:
        # Parts of the run that share a base are looked at once.
        pairs = zip(self._bases, views, strict=True)
        found = {id(base): view.sensitivities(victim, sums=self._sums) for base, view in pairs}
        if self._drawn is not None and any(s.shares for each in found.values() for s in each):
            raise InexpressibleView(
                "the releases of two batches of one round share noise, of which a bound is known "
                "for Poisson batches alone; give each batch its own noise, or use "
                "batches='poisson' without largest_batch"
            )
        # What each part releases, as joint sensitivities at noise multiplier 1.
        releases = [
            Release(
                self._traces.per_multiplier(s.mu * part.factor),
                s.draws.rate(self._rate),
                part.rounds,
                s.contributions,
                part.first,
                s.reach,
                s.interleaved,
                cohort=s.draws.cohort,
                several=s.several,
                whole=s.draws.whole,
                summed=s.summed,
            ).in_cohort(s.draws, part.base, who)
            for part in self._parts
            for s in found[id(part.base)]
        ]
        # One infinite release leaves no protection; one blamed base makes all heuristic.
        reasons = [(s.mu, s.because) for of_base in found.values() for s in of_base]
        infinite = any(math.isinf(mu) for mu, _ in reasons)
        heuristic = any(base.blames for base in self._bases)
        status = Status.HEURISTIC if heuristic else Status.PROVEN
        return self._as_drawn(
            JointSensitivity(
                who,
                victim,
                tuple(releases),
                Status.NO_PROTECTION if infinite else status,
                "" if infinite else _most(reasons),
                noise_multiplier=self._traces.noise_multiplier,
            )
        )

    def _as_drawn(self, found: JointSensitivity) -> JointSensitivity:
        """The same, of batches as the victim draws them, and with what its adversary sees."""
        if self._drawn is None:
            return found
        of = self._drawn[found.victim]
        rate = self._rate if of.scheme is Scheme.TRUNCATED else of.rate
        releases = (r._replace(drawn=of, sampling_rate=rate) for r in found.releases)
        who = self._under_encryption(found.adversary)
        return found._replace(adversary=who, releases=tuple(releases))

    def named(self, sensitivity: JointSensitivity) -> JointSensitivity:
        """The same with the messages named between which noise cancels, if it does.

        The names are those of the adversary's whole view, which is formed for nothing else.
        """
        if self._away and math.isfinite(sensitivity.largest):
            who = ", ".join(str(agent) for agent in sorted(self._away))
            one = "agent" if len(self._away) == 1 else "agents"
            because = f"{sensitivity.because}; most while {one} {who} would be missing"
            return sensitivity._replace(because=because)
        if sensitivity.because:
            return sensitivity
        effective = self._under_encryption(sensitivity.adversary)
        if self._last is None or self._last[0] != effective:
            self._last = effective, [base.view(effective) for base in self._bases]
        first = {id(part.base): part.first for part in reversed(self._parts)}
        reasons = [
            (s.mu, s.because)
            for base, view in zip(self._bases, self._last[1], strict=True)
            for s in base.sensitivities_in(
                view, effective, sensitivity.victim, round=first[id(base)]
            )
        ]
        return sensitivity._replace(because=_most(reasons))


_Views = Sequence[AdversaryView]
_Seen = tuple[Adversary, _Views]


def _different(
    adversaries: Sequence[_Seen], victims: set[int]
) -> Iterator[tuple[Adversary, int, Sequence[AdversaryView]]]:
    """Pairs of single agents and victims, those that fare like an earlier one left out."""
    pending: dict[tuple[int, ...], set[int]] = {}
    for who, views in adversaries:
        touched = {v for view in views for v in view.touched()} & victims
        alike = tuple(id(view.shared) for view in views)
        new = pending.setdefault(alike, victims) - touched - who.agents
        pending[alike] = pending[alike] - new
        for v in sorted(touched | new):
            yield who, v, views


def _figures(sensitivity: JointSensitivity) -> list[float]:
    if any(r.summed > 1 for r in sensitivity.releases):
        raise UnsupportedView("batches of one sum are compared by their epsilon alone")
    return [rounded(r.joint_sensitivity) for r in sensitivity.releases]


def _most(reasons: Sequence[tuple[float, str]]) -> str:
    return max(reasons, default=(0.0, "nothing about the data is released"))[1]
