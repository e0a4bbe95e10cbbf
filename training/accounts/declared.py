"""The account of releases that somebody declared: what a list of releases costs each adversary.

The list is read by `privacy.releases`; nothing here shows that it is true. Epsilon is found as for
a run of ours, and its status is that of the log: declared, or checked.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from types import MappingProxyType
from typing import Any

from ...privacy.errors import InputError, UnsupportedView, whole
from ...privacy.formats.codec import dump
from ...privacy.guarantee import (
    ALL_OTHERS,
    EAVESDROPPER,
    WORST_NEIGHBOUR,
    Adversary,
    Sees,
    Statement,
    Status,
    coalition,
    neighbour,
    parse_adversary,
)
from ...privacy.plain_text import number_of
from ...privacy.reference.second_opinion import SecondOpinion
from ...privacy.releases.log import ReleaseLog
from ...privacy.releases.values import SERVER
from ...privacy.releases.views import Exposed, Views
from ...privacy.target import Goal
from ..exposure.guarantees import guarantee, opinion_on, run_epsilon
from ..exposure.sensitivity import JointSensitivity, Release
from .paragraph import Explanation, claims_of, explain_releases, worst_off
from .summary import Figures, reached

_MOST_ACCOUNTED = 2_000_000  # releases, for epsilon by round
_MOST_PAIRS = 250_000  # of an adversary and a victim, that a name may ask about
_MOST_MEMBERS = 10_000_000  # of all coalitions that a name may ask about
_NOT_DECLARED = ("final-models", "single-message")


@dataclass(frozen=True, kw_only=True, slots=True, eq=False, repr=False)
class DeclaredAccount(Figures):
    """What declared releases cost, for every adversary that was asked for.

    Attributes:
        log: what was released; finite figures have its status.
        victim: the agent whose record is at risk, where one was named.
    """

    log: ReleaseLog
    victim: int | None

    @property
    def rounds(self) -> int:
        """How many rounds the log has, one that was gone through again counted again."""
        return len(self.log.rounds)

    @property
    def heads(self) -> Sequence[str]:
        """Which system it is, how much it releases, and what every epsilon is said of."""
        header, said = self.log.header, self.said_of
        return (
            f"{header.system}: {number_of(self.rounds, 'round')} of "
            f"{number_of(header.agents, 'agent')}, as declared",
            f"{sum(map(len, self.log.rounds.values()))} releases, each as its line says",
            f"{said.adjacency} {said.unit}, delta {said.delta:g}, accountant {said.accountant}",
        )

    def epsilon(self, adversary: str, *, rounds: int | None = None) -> float:
        """Epsilon of all rounds for one adversary, or of the first `rounds` of the log.

        Raises:
            ValueError: an adversary that was not asked for, or a number of rounds that is none.
        """
        stated = self[adversary]
        if rounds is None or rounds == self.rounds:
            return stated.epsilon
        whole("rounds", rounds, f"[0, {self.rounds}]")
        if rounds == 0:
            return 0.0
        return self._first(rounds, [adversary])[adversary].epsilon

    def _first(self, rounds: int, adversaries: Sequence[str]) -> DeclaredAccount:
        """The account of the first rounds of the log."""
        return account_of_releases(
            replace(self.log, rounds=dict(islice(self.log.rounds.items(), rounds))),
            statement=self.said_of,
            adversaries=adversaries,
            victim=self.victim,
        )

    def by_round(self, points: int = 12) -> dict[str, list[tuple[int, float]]]:
        """By adversary epsilon of the first round and up to so many others, (round, epsilon)."""
        releases = sum(map(len, self.log.rounds.values()))
        points = max(1, min(points, _MOST_ACCOUNTED // releases)) if releases else 1
        ends = sorted({1, *(max(1, round(self.rounds * k / points)) for k in range(1, points + 1))})
        every = [(end, self if end == self.rounds else self._first(end, [*self])) for end in ends]
        return {name: [(end, found[name].epsilon) for end, found in every] for name in self}

    def opinions(self) -> dict[str, SecondOpinion]:
        """By adversary what another library says of the same releases."""
        return {
            name: opinion_on(
                self[name].epsilon,
                behind,
                statement=self.said_of,
                noise_multiplier=self.noise_multiplier,
            )
            for name, behind in self.joint_sensitivities.items()
        }

    def reached(self, adversary: str, goal: Goal) -> float:
        """What membership tests of an adversary come to, if the list of releases is true.

        Raises:
            ValueError: an adversary that was not asked for, or an accountant without a curve.
        """
        _ = self[adversary]
        return reached(
            self.joint_sensitivities[adversary],
            statement=self.said_of,
            noise_multiplier=self.noise_multiplier,
            goal=goal,
        )

    @property
    def status(self) -> Status:
        """Of the worst adversary's figure."""
        return self.worst.status

    def explain(self, adversary: str) -> Explanation:
        """What is released of one batch, by how often: what the figure adds up to.

        Raises:
            ValueError: an adversary that was not asked for.
        """
        return explain_releases(self[adversary], self.joint_sensitivities[adversary])

    def statement(self) -> str:
        """A paragraph to paste: unit, adjacency, accountant, and what is assumed."""
        header, unit = self.log.header, self.said_of.unit
        whose = worst_off(unit) if self.victim is None else f"agent {self.victim}"
        figures = claims_of(
            list(self.guarantees.values()),
            self.joint_sensitivities,
            statement=self.said_of,
            noise_multiplier=self.noise_multiplier,
        )
        return " ".join(
            [
                f"{header.system} has {number_of(header.agents, 'agent')} and declares "
                f"{sum(map(len, self.log.rounds.values()))} releases in "
                f"{number_of(self.rounds, 'round')}.",
                *figures,
                "Assumed are that whatever depends on records and leaves an agent has a line, that "
                "clip norms, sampling and noise are as these lines declare them, and that noise is "
                f"secret and drawn anew; each figure is that of {whose}. Not covered are choices "
                "made by looking at the data or at results, and agents that deviate.",
                *(f"Note: {warning}." for warning in self.warnings),
            ]
        )

    def to_json(self) -> dict[str, Any]:
        """The figures as an object of JSON; infinite ones are "inf"."""
        return {
            "schema": 1,
            "system": self.log.header.system,
            "status": str(self.status),
            "adversaries": [dump(stated) for stated in self.guarantees.values()],
            "warnings": list(self.warnings),
        }


def account_of_releases(
    log: ReleaseLog,
    *,
    statement: Statement,
    adversaries: Sequence[str] = (),
    victim: int | None = None,
) -> DeclaredAccount:
    r"""What a log of releases costs each adversary.

    Args:
        log: as `read_log` reads it; figures have its status.
        statement: delta, adjacency and accountant; its unit is that of the log.
        adversaries: "eavesdropper", "neighbour", "neighbour:K", "coalition:K,L", "all-others" or
            "server"; the eavesdropper, the worst neighbour and, where one is there, the server
            when none are given.
        victim: the agent whose record is at risk; None searches the worst one.

    Raises:
        ValueError: an adversary or a victim that does not exist, or a unit that is not the log's.
        UnsupportedView: rounding hides whether noise cancels.
    """
    # What a log can say of the unit, the victim and the rounds.
    header = log.header
    if statement.unit is not header.unit:
        raise InputError(
            f"unit={str(statement.unit)!r} of the statement must be {str(header.unit)!r}, that of "
            "the log"
        )
    if statement.holders:
        raise InputError(
            f"declared releases are about one record of one agent, not about {statement.whose}: a "
            "log does not say which batches are drawn apart; leave holders out"
        )
    if victim is not None and not 0 <= victim < header.agents:
        raise InputError(f"victim={victim} must lie in 0..{header.agents - 1}")
    if not log.rounds:
        raise InputError(
            f"{log.paths[0]} holds no round; what a system released before its log was written is "
            'not known, and one that released nothing says {"round": 1, "releases": []}'
        )
    # Each adversary in its worst view. Releases state their noise, so that the multiplier is 1.
    views = Views(log)
    asked = list(dict.fromkeys(adversaries)) or usual_adversaries(log)
    every, behind = [], {}
    for name in asked:
        pairs = _pairs(views, log, name, victim)
        behind[name] = found = _worst(views, pairs, statement, log.status)
        every.append(guarantee(name, found, statement=statement, noise_multiplier=1.0))
    every.sort(key=lambda g: (-round(g.epsilon, 9), -round(g.joint_sensitivity, 9)))
    return DeclaredAccount(
        log=log,
        victim=victim,
        said_of=statement,
        noise_multiplier=1.0,
        guarantees=MappingProxyType({g.adversary: g for g in every}),
        warnings=(*log.warnings, *statement.cautions),
        joint_sensitivities=MappingProxyType(behind),
    )


def usual_adversaries(log: ReleaseLog) -> list[str]:
    """The eavesdropper, the worst neighbour and the server, where they are there."""
    names = [EAVESDROPPER.name]
    if log.header.agents > 1:
        names.append(WORST_NEIGHBOUR)
    parties = {
        party
        for releases in log.distinct
        for release in releases
        for party in (release.sender, *(release.to or ()))
    }
    return [*names, SERVER] if log.header.agents in parties else names


def _pairs(
    views: Views, log: ReleaseLog, name: str, victim: int | None
) -> list[tuple[Adversary, int]]:
    """The pairs of an adversary and a victim that a name asks about, those that fare alike once.

    Raises:
        ValueError: an unknown adversary, or more pairs than are looked at.
    """
    agents, owners = log.header.agents, views.owners
    # Victims are owners of what is released, or the one that is asked about.
    asked = [v for v in owners if victim in (None, v)]
    if victim is not None and not asked:
        asked = [victim]
    asked = asked or [0]
    if name in _NOT_DECLARED:
        raise InputError(
            f"adversary {name!r} is not accounted for in declared releases, since a log does not "
            "say which of them is a final model or stands alone; ask about the eavesdropper"
        )
    # Whom the name stands for, beside each victim.
    if name == SERVER:
        who = Adversary(name=SERVER, sees=Sees.OWN_LINKS, agents=frozenset({agents}))
        pairs = [(who, v) for v in asked]
    elif name == ALL_OTHERS:
        _check_count(name, agents * len(asked), _MOST_MEMBERS)
        pairs = [(coalition(set(range(agents)) - {v}), v) for v in asked if agents > 1]
    elif name == WORST_NEIGHBOUR:
        curious = _curious(views, agents)
        _check_count(name, len(curious) * len(asked), _MOST_PAIRS)
        pairs = [(neighbour(k), v) for k in curious for v in asked if v != k]
    else:
        who = parse_adversary(name, agents)
        pairs = [(who, v) for v in asked if victim is not None or v not in who.agents]
    if not pairs:
        raise UnsupportedView(f"adversary {name!r} leaves no victim among {agents} agents")
    return pairs


def _check_count(name: str, count: int, most: int) -> None:
    if count > most:
        raise InputError(
            f"adversary {name!r} asks about {count} agents that look on, counted for each victim, "
            f"and at most {most} are looked at; name one, such as neighbour:0, and a victim"
        )


def _curious(views: Views, agents: int) -> list[int]:
    """The agents that may learn most: of those that only look on, the first two."""
    apart = views.apart()
    # Two of them, so that there is one for each victim.
    onlookers = islice((k for k in range(agents) if k not in apart), 2)
    return sorted({*(k for k in apart if k < agents), *onlookers})


def _worst(
    views: Views, pairs: Sequence[tuple[Adversary, int]], statement: Statement, status: Status
) -> JointSensitivity:
    """The pair that costs most; what is released of one batch is looked at once."""
    found: dict[tuple[tuple[float, ...], ...], tuple[float, JointSensitivity]] = {}
    for who, victim in pairs:
        exposed = views.exposed(who, victim)
        key = tuple(sorted(tuple(map(float, batch[:4])) for batch in exposed.batches))
        if key not in found:
            joint_sensitivity = _sensitivity(exposed, who, victim, status)
            found[key] = (
                run_epsilon(joint_sensitivity, statement=statement, noise_multiplier=1.0),
                joint_sensitivity,
            )
    return max(found.values(), key=lambda each: (each[0], each[1].sum_of_squares))[1]


def _sensitivity(exposed: Exposed, who: Adversary, victim: int, status: Status) -> JointSensitivity:
    infinite = any(math.isinf(batch.mu) for batch in exposed.batches)
    return JointSensitivity(
        who,
        victim,
        tuple(Release(b.mu, b.rate, b.rounds, b.vectors, b.first) for b in exposed.batches),
        Status.NO_PROTECTION if infinite else status,
        exposed.because,
        exposed.whole_run,
    )
