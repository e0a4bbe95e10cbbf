"""What an audit says of one adversary: figures, a verdict, and one sentence."""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from typing import NamedTuple, Protocol, TypeVar

from ...privacy.formats.codec import Count, NotNegative, described
from ...privacy.guarantee import SINGLE_MESSAGE, Statement, Status
from ..bounds.evidence import RISK, Evidence
from ..bounds.lower_bounds import SEEN_IN, Guesses, LowerBound, total_error
from ..bounds.mechanism import Claim, epsilon

# Every message by itself: the bound of its own canaries beside what its own noise promises.
#
# A fault on one link in a hundred hardly moves the figure of a whole view; on its own link it
# stands out. The bounds of L messages are taken at a confidence of 1 - (1 - confidence) / L each,
# so that together they hold at `confidence` (C. Bonferroni 1936).


class LinkGuesses(NamedTuple):
    """One message and the canaries of one host that enter it.

    Attributes:
        message: its name.
        host: whose records are in it.
        rounds: how often the message had which mu for one record and which sampling rate.
        guesses: scores of the message alone, and the coins.
    """

    message: str
    host: int
    rounds: Mapping[tuple[float, float], int]
    guesses: Guesses


@described(title="AuditedMessage")
@dataclass(frozen=True, kw_only=True)
class LinkBound:
    """What canaries measured of one kind of message alone.

    Attributes:
        agent: the agent whose records are meant.
        proven_epsilon: of this message alone, over the rounds, from its row.
        measured_epsilon: lower bound.
        canaries: how many it rests on.
    """

    message: str
    agent: Count
    proven_epsilon: NotNegative
    measured_epsilon: NotNegative
    canaries: Count

    @property
    def exceeded(self) -> bool:
        """Whether more was measured than the row promises."""
        return self.measured_epsilon > self.proven_epsilon


def link_bounds(
    links: Sequence[LinkGuesses], *, statement: Statement, confidence: float
) -> list[LinkBound]:
    """Bounds of single messages, as `play` returns them, that hold together.

    With this confidence none of them is above the truth; every epsilon is one of the statement.
    """
    each = 1.0 - (1.0 - confidence) / max(len(links), 1)
    rounds = [{(1.0 / mu, rate): n for (mu, rate), n in link.rounds.items()} for link in links]
    claims = [Claim(rounds=one, adjacency=statement.adjacency) for one in rounds]
    proven: dict[str, float] = {}  # alike messages are many
    found = []
    for link, claim in zip(links, claims, strict=True):
        key = repr(sorted(claim.events.items()))
        if key not in proven:
            proven[key] = epsilon(claim, statement.delta)
        bound = total_error(link.guesses, claim=claim, delta=statement.delta, confidence=each)
        found.append(
            LinkBound(
                message=link.message,
                agent=link.host,
                proven_epsilon=proven[key],
                measured_epsilon=bound.epsilon,
                canaries=len(link.guesses.scores),
            )
        )
    return found


AGAIN = 4  # how many times as many canaries a second look takes


class Verdict(enum.StrEnum):
    """What a measured bound says of a proven one."""

    CONSISTENT = "consistent"
    CLEARED = "cleared"
    SUSPICIOUS = "suspicious"
    CONTRADICTED = "contradicted"
    NOTHING_PROVEN = "nothing proven"
    NOT_MEASURED = "not measured"


class Look(Protocol):
    """A lower bound of one look, in nats."""

    @property
    def epsilon(self) -> float:
        """In nats."""
        ...


_Look = TypeVar("_Look", bound=Look)


def deciding(
    verdict: str, proven: float, *, first: _Look, fresh: _Look | None, again: _Look | None
) -> _Look:
    """The bound on which a verdict rests, which is the one that is told as measured.

    Args:
        verdict: of one adversary, a `Verdict`.
        proven: epsilon.
        first: of the first look, at the confidence at which it is held against the proof.
        fresh: of a second look, at the confidence of the first; None where there was none.
        again: of the same, at its own confidence.
    """
    if verdict == Verdict.CONTRADICTED:
        above = (look for look in (again, first) if look is not None and look.epsilon > proven)
        return next(above, again or first)
    return first if fresh is None or verdict == Verdict.CONSISTENT else fresh


@dataclass(frozen=True, kw_only=True, slots=True)
class Proven:
    """What an audit holds a measurement against.

    Attributes:
        name: of the adversary, as it was asked for.
        epsilon: of the audited rounds; infinite where nothing protects or can be expressed.
        statement: what it is said of.
        status: what is known of epsilon.
        claim: the mechanism that it is the epsilon of; without noise where it is infinite.
        why: no canary can measure it; empty where one can.
    """

    name: str
    epsilon: float
    statement: Statement
    status: Status
    claim: Claim
    why: str = ""

    @property
    def delta(self) -> float:
        """Of the statement."""
        return self.statement.delta

    @property
    def is_tested(self) -> bool:
        """Whether a measurement could contradict it: it is finite, and more than a heuristic."""
        return self.status is not Status.HEURISTIC and math.isfinite(self.epsilon)


@dataclass(frozen=True, kw_only=True, slots=True)
class Audited:
    """One adversary's figures.

    Attributes:
        proven: what they are held against.
        single: the headline by itself, at the audit's confidence; None if not measured.
        ideal: the first look that a perfect audit of as many canaries expects; None where infinite.
        seen: the least true epsilon that 95 of 100 perfect first looks tell from what is proven;
            None where nothing is tested, or nothing would be told.
        canaries: how many were scored.
        verdict: of all of it.
        together: the headline at the confidence that is left to it among all that are tested.
        again: the headline of the second look at its high confidence, where there was a whole one.
        fresh: of the same canaries at the confidence of the first look.
        links: single messages, of the adversary whose messages were scored one by one.
        again_links: those that were looked at again.
        evidence: for going on; None where nothing is tested.
        decided: whether the evidence contradicts the claim, whatever a look says.
        why: the reason where nothing was measured.
    """

    proven: Proven
    single: LowerBound | None
    ideal: float | None
    canaries: int
    verdict: Verdict
    together: LowerBound | None = None
    again: LowerBound | None = None
    fresh: LowerBound | None = None
    links: Sequence[LinkBound] = ()
    again_links: Sequence[LinkBound] = ()
    evidence: Evidence | None = None
    decided: bool = False
    why: str = ""
    seen: float | None = None

    @property
    def first(self) -> LowerBound | None:
        """The first look's bound: among all that are tested, or by itself where nothing is."""
        return self.together or self.single

    @property
    def bound(self) -> LowerBound | None:
        """The bound on which the verdict rests; None where nothing was measured."""
        if self.first is None:
            return None
        epsilon = self.proven.epsilon
        found = deciding(
            self.verdict, epsilon, first=self.first, fresh=self.fresh, again=self.again
        )
        if self.decided and found.epsilon <= epsilon:  # by odds, which say no more than that
            above = math.nextafter(epsilon, math.inf)
            return replace(found, name="odds", epsilon=above, confidence=1.0 - RISK)
        return found

    @property
    def measured(self) -> float:
        """Epsilon of the bound on which the verdict rests, 0 where nothing was measured."""
        return 0.0 if self.bound is None else self.bound.epsilon

    def words(self) -> str:
        """One sentence for a reader."""
        at = f"at delta {_small(self.proven.delta)}"
        # What is not measured, or has nothing proven to be held against.
        if self.verdict is Verdict.NOT_MEASURED:
            if self.proven.epsilon == 0:
                return f"{self.proven.name}: nothing about the data reaches it"
            claimed = f"{self.proven.epsilon:.3g} {at} ({self.proven.status})"
            return f"{self.proven.name}: {claimed} is not measured; {self.why}"
        found = self._found(at)
        proven = f"the proven {_most(self.proven.epsilon)}"
        if self.verdict is Verdict.NOTHING_PROVEN:
            if self.proven.status is Status.CANNOT_BE_EXPRESSED:
                return f"{found}; no bound can be expressed to check it against"
            if math.isinf(self.proven.epsilon):
                return f"{found}; nothing protects against it"
            over = "more" if self.measured > self.proven.epsilon else "no more"
            return f"{found}, {over} than the {self.proven.epsilon:.3g} that is claimed, unproven"
        # What the looks say of the proof.
        if self.verdict is Verdict.CONSISTENT:
            within = f", within {proven}" if self.measured else ""
            return f"{found}{within}{self._seen()}"
        if self.verdict is Verdict.CONTRADICTED:
            return f"{found}; {self._against(proven)}"
        fresh = "" if self.fresh is None else f"{_least(self.fresh.epsilon)} at least"
        look = f"a second look with {AGAIN} times as many fresh canaries gives {fresh}"
        if self.verdict is Verdict.CLEARED:
            return f"{found}; {look}, within {proven}: cleared, the first look was chance"
        return f"{found}; {look}, which neither clears nor contradicts {proven}: audit it again"

    def _found(self, at: str) -> str:
        """What the first look found, and what of it exceeds."""
        first = self.first
        assert first is not None  # noqa: S101 # it was measured
        confidence = f"{_share(first.confidence)} confidence, {self.canaries} canaries"
        name = self.proven.name
        found = f"{name}: epsilon is at least {_least(first.epsilon)} {at} ({confidence})"
        if self.verdict is Verdict.NOTHING_PROVEN:
            return found
        if first.epsilon == 0:
            found = f"{name}: {self.canaries} canaries show nothing {at}"
        elif first.epsilon <= self.proven.epsilon and first.exceeds(self.proven.epsilon):
            scale = first.noise_scale or 0.0
            found += f"; the declared noise is rejected, it is at most {scale:.3g} of it"
        if over := [link for link in self.links if link.exceeded]:
            some = ", ".join(
                f"{k.message} ({_least(k.measured_epsilon)} > {_most(k.proven_epsilon)})"
                for k in over
            )
            found += f"; single messages show more than their own noise promises: {some}"
        return found

    def _seen(self) -> str:
        if self.seen is None:
            return ""
        return f"; a true one of {self.seen:.3g} would be seen in {_share(SEEN_IN)} of audits"

    def _against(self, proven: str) -> str:
        """What contradicts."""
        odds = "" if self.evidence is None else _odds(self.evidence)
        if self.again is None:
            return f"the odds against {proven} are {odds} to 1: the proof or the code is wrong"
        sure = f"{_least(self.again.epsilon)} at {_share(self.again.confidence)} confidence"
        look = f"a second look with {AGAIN} times as many fresh canaries gives {sure}"
        if self.again.epsilon > self.proven.epsilon:
            return f"{look}, more than {proven}: the proof or the code is wrong"
        if self.again.exceeds(self.proven.epsilon):
            return f"{look}, and rejects the declared noise, too"
        if not self.decided:
            return "and again when looked at twice: the noise on them is not as declared"
        return f"the odds against {proven} are {odds} to 1: the proof or the code is wrong"


def after_second_look(*, sure: bool, doubted: bool) -> Verdict:
    """What follows of fresh canaries, once a first look has exceeded a claim.

    Args:
        sure: whether they exceed it at the high confidence of a second look.
        doubted: whether they do at the confidence of the first.
    """
    if sure:
        return Verdict.CONTRADICTED
    return Verdict.SUSPICIOUS if doubted else Verdict.CLEARED


def not_measured(proven: Proven, measured: Sequence[Audited], *, why: str = "") -> Audited:
    """An adversary whose rounds no canary can be scored in, beside those that were measured.

    Args:
        proven: what is known of it.
        measured: the others.
        why: that reason; by default what its rounds or its view are.
    """
    why = (
        why
        or proven.why
        or "all of its rounds are one release, in which no round can be scored by itself"
    )
    if proven.name == SINGLE_MESSAGE.name:
        why = "it is no adversary that exists"
        for audited in measured:
            if audited.measured > proven.epsilon:
                why += f"; {audited.proven.name} learns more, at least {_least(audited.measured)}"
                break
    return Audited(
        proven=proven, single=None, ideal=None, canaries=0, verdict=Verdict.NOT_MEASURED, why=why
    )


def _share(confidence: float) -> str:
    return f"{100 * confidence:.6g}%"


def _small(delta: float) -> str:
    """Delta as it is written elsewhere, 1e-5 and not 1e-05."""
    mantissa, exponent = f"{delta:.3e}".split("e")
    return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"


def _least(value: float) -> str:
    """A lower bound with three digits, never rounded up."""
    if value == 0:
        return "0"
    return format(Context(prec=3, rounding=ROUND_FLOOR).plus(Decimal(repr(value))), "f")


def _most(value: float) -> str:
    """A proven bound with three digits, never rounded down but for the last bits of a float."""
    if not 0 < value < math.inf:
        return format(value, "g")
    nearly = Decimal(repr(value)) * (1 - Decimal("1e-12"))
    return format(Context(prec=3, rounding=ROUND_CEILING).plus(nearly), "f")


def _odds(evidence: Evidence) -> str:
    """The odds with two digits, rounded down; of large ones the power of ten."""
    tens = evidence.log_odds / math.log(10.0)
    return f"1e{math.floor(tens)}" if tens >= 6 else f"{math.floor(evidence.odds):,}"
