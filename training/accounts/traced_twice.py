"""The figures of an account held against a second tracer, which shares no code with the first.

agrees        no adversary is told more than is stated, and the stated one just as much
looser        no adversary is told more, and the stated one less
contradicted  the second tracer finds a record that is told more of: one of the two is wrong
not checked   it has no answer, for a reason that is given
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ...privacy import guarantee
from ...privacy.batches.patterns import PatternKind
from ...privacy.batches.sampling import Drawing, Scheme
from ...privacy.errors import InputError
from ...privacy.participation import Reach
from ..exposure.sensitivity import JointSensitivity, Release
from ..graphs.graph import ScheduledGraph
from ..second_tracer.dense_round import NotAnswered
from ..second_tracer.second_trace import SecondTrace, VictimShifts
from .accounted_run import AccountedRun
from .result import Account
from .summary import Verdict

_AGREES = 1e-9  # relative
_SECONDS = 20.0  # of all figures of an account together


@dataclass(frozen=True, kw_only=True, slots=True)
class TracedTwice:
    """One figure of an account beside what a second tracer finds.

    Attributes:
        adversary: as it was asked for.
        who: the adversary of the figure, such as the worst neighbour.
        victim: the agent whose record is at risk.
        first: the stated joint sensitivity: root of its sum of squares over all rounds.
        second: the largest that the second tracer finds; None where it has no answer.
        verdict: what follows.
        because: why there is no answer, or what is told more of; empty otherwise.
    """

    adversary: str
    who: str
    victim: int
    first: float
    second: float | None
    verdict: Verdict
    because: str = ""


def check_account(
    account: Account, *, victim: int | None = None, seconds: float = _SECONDS
) -> dict[str, TracedTwice]:
    """Check every joint sensitivity of an account against a second tracer.

    The second tracer runs the same step on dense numbers, stacks what an adversary sees, and takes
    the pseudo-inverse. It looks at the worst pair of an adversary and a victim that the account
    names, and at every other one. Sampling rates are compared too; epsilon is not.

    Args:
        account: of a run with a few dozen agents; larger ones are not checked.
        victim: the only agent whose record is meant; None where any is.
        seconds: that it may take; figures that were not reached are not checked.

    Returns:
        A verdict by adversary; a single message is how papers count, and nobody's view.

    >>> from overhear import account
    >>> known = account("dpdl", graph="ring:5", rounds=10, sampling_rate=0.1, delta=1e-5,
    ...     noise_multiplier=2, adversaries=["eavesdropper"])
    >>> found = check_account(known)["eavesdropper"]
    >>> str(found.verdict), round(found.first, 6), round(found.second, 6)
    ('agrees', 5.477226, 5.477226)
    """
    asked = _CheckedFigures(
        account.subject, account.said_of, account.noise_multiplier, account.encrypted, victim
    )
    second = asked.traced(seconds)
    every = account.joint_sensitivities.items()
    return {
        name: asked.held(name, one, second)
        for name, one in every
        if name != guarantee.SINGLE_MESSAGE.name
    }


@dataclass(frozen=True, slots=True)
class _CheckedFigures:
    """What figures are held against: the run, and whom they are about."""

    subject: AccountedRun
    statement: guarantee.Statement
    noise: float
    encrypted: bool
    victim: int | None

    def traced(self, seconds: float) -> SecondTrace:
        """The run on dense numbers, with every number of the run."""
        run = self.subject
        records = run.records if run.algorithm.needs_records else None
        batch_size = run.batch_size or (run.sampling_rate * records if records else 1.0)
        bound = run.bound_at(self.noise, clip_norm=run.clip_norm, batch_size=batch_size)
        return SecondTrace(
            bound.init,
            bound.step,
            graph=run.graph,
            rounds=run.rounds,
            sampling_rate=run.coin,
            unit=self.statement.unit,
            records=self.statement.records_per_person,
            encrypted=self.encrypted,
            seconds=seconds,
            released=run.algorithm.released,
        )

    def held(self, name: str, first: JointSensitivity, second: SecondTrace) -> TracedTwice:
        """One figure beside the second tracer's."""
        who, root = first.adversary.name, _total(first)
        told = {"adversary": name, "who": who, "victim": first.victim, "first": root}
        try:
            self._check_answered(first)
            compare = self._whole_run if first.whole_run else self._by_round
            verdict, square, because = compare(name, first, second)
        except (NotAnswered, InputError) as error:
            verdict, square, because = Verdict.NOT_CHECKED, None, str(error)
        found = None if square is None else math.sqrt(square) * self.noise
        return TracedTwice(**told, second=found, verdict=verdict, because=because)  # type: ignore[arg-type]

    def _check_answered(self, first: JointSensitivity) -> None:
        """Refuse what the second tracer has no answer for, whatever it would find."""
        pattern, why = self.subject.pattern, ""
        turns = pattern.kind in (PatternKind.CYCLE, PatternKind.ROUNDS)
        apart = any(
            release.sampling_rate != 1.0 or release.rounds > 1 for release in first.releases
        )
        if self.noise == 0:
            why = "no noise is added, and no figure is finite"
        elif first.status is guarantee.Status.CANNOT_BE_EXPRESSED:
            why = "no figure is stated that it could be checked against"
        elif self.statement.holders:
            why = "it counts the records of one agent, and not those of one person at several"
        elif self.subject.missing:
            why = "it does not leave out agents that may be missing"
        elif not pattern.is_every and (not turns or not first.whole_run or apart):
            why = f"it does not count turns of a record, participation {pattern.entry}, as is done"
        if why:
            raise NotAnswered(why)

    def _pairs(
        self, name: str, first: JointSensitivity
    ) -> Iterator[tuple[guarantee.Adversary, int]]:
        """Everybody that the name of the adversary stands for, with every victim."""
        agents = range(self.subject.graph.agents)
        for v in agents if self.victim is None else [self.victim]:
            if name == guarantee.WORST_NEIGHBOUR:
                yield from ((guarantee.neighbour(k), v) for k in agents if k != v)
            elif name == guarantee.ALL_OTHERS:
                yield guarantee.coalition({*agents} - {v}), v
            elif v not in first.adversary.agents:
                yield first.adversary, v

    def _whole_run(
        self, name: str, first: JointSensitivity, second: SecondTrace
    ) -> tuple[Verdict, float, str]:
        pattern, rounds = self.subject.pattern, range(1, self.subject.rounds + 1)
        turns: list[Sequence[int]] | None = None
        if pattern.kind is PatternKind.CYCLE:
            if any(contribution.round == 0 for contribution in second.whole.sources.contributions):
                raise NotAnswered("the start draws a batch, which no turn of a cycle names")
            turns = [
                range(start, rounds.stop, pattern.number) for start in range(1, pattern.number + 1)
            ]
        elif pattern.kind is PatternKind.ROUNDS:
            turns = [pattern.rounds]
        stated = _square(first) / self.noise**2
        moved = second.move_of_run(first.adversary, first.victim, turns=turns)
        claimed = self._of_run_claimed(first, second)
        if claimed and moved.low > 0.0:
            return Verdict.CONTRADICTED, moved.low, claimed
        if _below(stated, moved.low):
            return Verdict.CONTRADICTED, moved.low, "all rounds together tell more"
        for who, victim in self._pairs(name, first):
            other = second.move_of_run(who, victim, turns=turns).low
            if _below(stated, other):
                return Verdict.CONTRADICTED, other, _more(who, victim)
        return _loose(stated, moved.high), moved.low, ""

    def _of_run_claimed(self, first: JointSensitivity, second: SecondTrace) -> str:
        """What a figure of all rounds together takes off, and no trace of them gives it."""
        if any(release.rate != 1.0 for release in first.releases):
            return "a sampling rate is charged for all rounds together, which are one release"
        balls = second.is_ball(first.victim) and self.subject.pattern.is_every
        if any(release.reach is Reach.BALL for release in first.releases) and not balls:
            return "a ball is charged for all rounds together, of which some are sums"
        return ""

    def _by_round(
        self, name: str, first: JointSensitivity, second: SecondTrace
    ) -> tuple[Verdict, float, str]:
        # Where rounds or batches have noise in common, accounting for them apart is contradicted.
        stated = _square(first) / self.noise**2
        moves = second.moves(first.adversary, first.victim)
        if second.remembers and math.isfinite(stated):
            because = "noise is carried from round to round, and rounds are accounted for apart"
            return Verdict.CONTRADICTED, moves.sum_of_squares, because
        if _is_shared(moves, first, self.noise) and math.isfinite(stated):
            because = (
                "batches of one round are traced with noise in common, and accounted for apart"
            )
            return Verdict.CONTRADICTED, moves.sum_of_squares, because
        rates = not any(_is_in_turn(release) for release in first.releases)
        agent = self.statement.unit is guarantee.Unit.AGENT
        drawn = None if self.subject.drawn is None else self.subject.drawn[first.victim]
        if not agent and any(not _bounds(release.drawn, drawn) for release in first.releases):
            because = "batches are charged as if they were drawn in another way"
            return Verdict.CONTRADICTED, moves.sum_of_squares, because
        charged = _rate_of_fewest(first.releases, second.sampling_rate)
        # Both sides by rate of sampling: what is stated, and what the second trace finds.
        ours = _ours(first, self.noise, rates=rates)
        every = [moves]
        if isinstance(self.subject.graph, ScheduledGraph):
            # What is stated bounds every pair that the name stands for, largest by largest.
            every = [second.moves(who, v) for who, v in self._pairs(name, first)]
        theirs = _largest([_theirs(one, charged, rates=rates, agent=agent) for one in every])
        square = math.fsum(s * n for of in theirs.values() for s, n in of)
        verdict, because = _compared(ours, theirs)
        # What is stated holds for every pair that the name stands for.
        if verdict is not Verdict.CONTRADICTED:
            for who, victim in self._pairs(name, first):
                other = second.moves(who, victim)
                found, _ = _compared(ours, _theirs(other, charged, rates=rates, agent=agent))
                if found is Verdict.CONTRADICTED or (
                    _is_shared(other, first, self.noise) and math.isfinite(stated)
                ):
                    return Verdict.CONTRADICTED, other.sum_of_squares, _more(who, victim)
        return verdict, square, because


def _bounds(charged: Drawing | None, drawn: Drawing | None) -> bool:
    """Whether batches are charged as an agent draws them, or as one of several that bound it."""
    if charged is None or drawn is None:
        return charged is drawn
    return drawn.together(charged) == charged


def _rate_of_fewest(releases: Sequence[Release], rate: float) -> dict[float, float]:
    """The run's rate as that of the agent with fewest records, at which batches are charged.

    Nothing where another rate is charged than that of the drawing, or truncated batches, which are
    drawn at the run's own.
    """
    for release in releases:
        at = release.drawn
        if at is not None and not at.of_agents and at.scheme is not Scheme.TRUNCATED:
            stated = math.isclose(release.sampling_rate, at.rate, rel_tol=_AGREES)
            return {rate: release.sampling_rate} if stated else {}
    return {}


def _is_shared(moves: VictimShifts, first: JointSensitivity, noise: float) -> bool:
    """Whether batches of a round share noise, and are charged as if they did not.

    A record that is in j batches of a sum moves it by no more than the j of them add up to, however
    their noise is shared; so of batches that are charged as one each is compared by itself.

    Raises:
        NotAnswered: each is charged more than it moves by itself, as a certificate of all asks.
    """
    most = max((len(told) for _, told in moves.by_round), default=0)
    if not moves.shared or max((release.summed for release in first.releases), default=1) >= most:
        return False
    apart = math.fsum(told.squared.high * n for n, of in moves.by_round for told in of)
    if _below(apart, _square(first) / noise**2):
        raise NotAnswered("batches of a round share noise, and are charged by a certificate")
    return True


_Key = tuple[float | None, float | None, bool]  # rate, that of its cohort, whether it is a ball
_Sizes = dict[_Key, list[tuple[float, int]]]  # squares, largest first, and how often


def _ours(first: JointSensitivity, noise: float, *, rates: bool) -> _Sizes:
    found: _Sizes = {}
    for release in first.releases:
        if release.joint_sensitivity > 0.0:
            key = _key(
                release.sampling_rate, release.cohort, release.reach is Reach.BALL, rates=rates
            )
            square = (release.joint_sensitivity / noise) ** 2
            found.setdefault(key, []).append(
                (square, release.rounds * release.several * release.summed)
            )
    return {key: sorted(of, reverse=True) for key, of in found.items()}


def _theirs(
    moves: VictimShifts, charged: Mapping[float, float], *, rates: bool, agent: bool
) -> _Sizes:
    found: _Sizes = {}
    for count, told in moves.by_round:
        for one in told:
            if one.squared.low > 0.0:
                coin = 1.0 if one.cohort is None else one.cohort
                rate, cohort = (coin, 1.0) if agent else (charged.get(one.rate, one.rate), coin)
                key = _key(rate, cohort, one.ball, rates=rates)
                found.setdefault(key, []).append((one.squared.low, count))
    return {key: sorted(of, reverse=True) for key, of in found.items()}


def _key(rate: float, cohort: float, ball: bool, *, rates: bool) -> _Key:
    return (round(rate, 12), round(cohort, 12), ball) if rates else (None, None, ball)


def _largest(every: Sequence[_Sizes]) -> _Sizes:
    """The k-th largest of all of them, for every k."""
    if len(every) == 1:
        return every[0]
    found: _Sizes = {}
    for key in {key for of in every for key in of}:
        lists = [[s for s, n in of.get(key, []) for _ in range(n)] for of in every]
        longest = max(map(len, lists))
        padded = [[*one, *[0.0] * (longest - len(one))] for one in lists]
        found[key] = [(max(at), 1) for at in zip(*padded, strict=True)]
    return found


def _compared(ours: _Sizes, theirs: _Sizes) -> tuple[Verdict, str]:
    """Whether what is stated covers what was found, largest by largest."""
    loose = False
    for key, found in theirs.items():
        rate, _, ball = key
        where = "" if rate is None else f" at sampling rate {rate:g}"
        stated = ours.get(key, [])
        for mine, other in _side_by_side(stated, found):
            if _below(mine, other):
                what = "a vector within a ball" if ball else "a sum"
                return Verdict.CONTRADICTED, (
                    f"a batch{where} moves {what} by {math.sqrt(other):.9g} noise deviations, and "
                    f"{math.sqrt(mine):.9g} is stated"
                    if mine
                    else f"more batches{where} move {what} than are stated"
                )
            loose = loose or _below(other, mine)
    more = any(ours.keys() - theirs.keys())
    return (Verdict.LOOSER if loose or more else Verdict.AGREES), ""


def _side_by_side(
    stated: Iterable[tuple[float, int]], found: Iterable[tuple[float, int]]
) -> Iterator[tuple[float, float]]:
    """The k-th largest of both, for every k at which one of them changes."""
    left, right = list(stated), list(found)
    while left or right:
        mine, n = left[0] if left else (0.0, math.inf)
        other, m = right[0] if right else (0.0, math.inf)
        yield mine, other
        step = min(n, m)
        left = _without(left, step)
        right = _without(right, step)


def _without(of: list[tuple[float, int]], count: float) -> list[tuple[float, int]]:
    if not of:
        return of
    square, times = of[0]
    return of[1:] if times <= count else [(square, times - int(count)), *of[1:]]


def _below(one: float, other: float) -> bool:
    """Whether a square is smaller than another one, by more than two tracers may differ."""
    return one < other * (1.0 - 2.0 * _AGREES)


def _loose(stated: float, found: float) -> Verdict:
    return Verdict.LOOSER if _below(found, stated) else Verdict.AGREES


def _more(who: guarantee.Adversary, victim: int) -> str:
    return f"{who.name} learns more of agent {victim}"


def _square(first: JointSensitivity) -> float:
    return math.fsum(
        release.joint_sensitivity**2 * release.rounds * release.several * release.summed
        for release in first.releases
    )


def _total(first: JointSensitivity) -> float:
    return math.sqrt(_square(first))


def _is_in_turn(one: Release) -> bool:
    """Whether agents take part by something else than coins, of which rates are other ones."""
    return one.members is not None or (one.drawn is not None and one.drawn.of_agents)
