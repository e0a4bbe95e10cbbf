"""Findings: what is wrong with a figure or its evidence, by how much, and what would turn it.

A figure passes if it is proven, finite, within what is asked, of the statement that is asked for,
and if nothing that was measured speaks against its proof. Each reason why it does not is a finding
of its own. `overhear plan`, the report, `overhear check` and `overhear compare` all render these.
"""

from __future__ import annotations

import enum
import math
import string
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from typing import NamedTuple

from ...privacy.errors import InputError
from ...privacy.guarantee import (
    ALL_OTHERS,
    EAVESDROPPER,
    FINAL_MODELS,
    SINGLE_MESSAGE,
    Guarantee,
    Status,
    Unit,
)
from ...privacy.plain_text import plain
from ...privacy.target import Goal
from ..references import KINDS as WRITTEN
from ..references import Key
from ..schema import Remedy as Fix
from .facts import Facts, FigureRequirement

# Sentences that keep their figures: a terminal prints them, and the page cites them.


_TEXT = resources.files("overhear.reports.judgement").joinpath("phrases.toml").read_text("utf-8")
_TABLES: Mapping[str, Mapping[str, str]] = tomllib.loads(_TEXT)
HEADLINES, WITHOUT_TARGET = _TABLES["headlines"], _TABLES["without_target"]
AS_DECLARED = _TABLES["as_declared"]
KINDS, ACTIONS, NOTES = _TABLES["findings"], _TABLES["actions"], _TABLES["notes"]
STATEMENTS, NAMES, PARTS = _TABLES["statements"], _TABLES["names"], _TABLES["parts"]


class Figure(NamedTuple):
    """A number in a sentence.

    `kind` says how it is written, one of `cited.KINDS`; `path` where it stands in privacy.json,
    empty if it does not stand there.
    """

    kind: str
    value: float | str
    path: tuple[Key, ...] = ()

    @property
    def text(self) -> str:
        """As a reader sees it."""
        return WRITTEN[self.kind](self.value)


class Quote(NamedTuple):
    """Words that somebody else chose: a name of a run file, a sentence of an audit."""

    text: str


Piece = str | Figure | Quote  # a string is our own; backticks in it stand around code
Sentence = tuple[Piece, ...]
Value = Figure | Sentence | str | int


def fill(template: str, **values: Value) -> Sentence:
    """A template with its fields filled in; whatever is a string or an integer is quoted.

    Raises:
        KeyError: the template has a field that is not given.

    >>> text_of(fill("Epsilon {figure} is over {limit}.", figure=Figure("bound", 2.0714), limit=2))
    'Epsilon 2.08 is over 2.'
    """
    found: list[Piece] = []
    for literal, name, _, _ in string.Formatter().parse(template):
        if literal:
            found.append(literal)
        if name is not None:
            value = values[name]
            if isinstance(value, Figure):
                found.append(value)
            elif isinstance(value, str | int):
                found.append(Quote(str(value)))
            else:
                found += value
    return tuple(found)


def text_of(*sentences: Sentence) -> str:
    """Sentences as one harmless line, with a space between them."""
    return " ".join(
        "".join(one if isinstance(one, str) else plain(one.text, most=None) for one in sentence)
        for sentence in sentences
    )


class Note(enum.StrEnum):
    """What a reader of a judgement must know beside it."""

    MORE = "learns more"
    STOPPED = "stopped by its budget"
    UNFINISHED = "unfinished"
    RESUMED = "resumed"
    REPEATED = "repeated"
    TORN = "torn ledger"
    SEEDED = "seeded noise"
    DECLARED = "declared"
    DUPLICATES = "duplicates"
    ALONE = "records alone"
    SUSPICIOUS = "suspicious"
    ENCRYPTED = "encrypted links"
    COUNTED = "public number of records"


def adversary_words(adversary: str, worst: str | None) -> str:
    """The adversary that was asked for, and which one it is where the worst was searched.

    >>> adversary_words("neighbour", "neighbour:1")
    'neighbour:1 (worst)'
    """
    return adversary if worst is None or adversary == ALL_OTHERS else f"{worst} (worst)"


class Outcome(enum.StrEnum):
    """What became of a requirement, worst last; one that nobody can break is not passed."""

    NOT_APPLICABLE = "not applicable"
    PASSED = "passed"
    MISSING = "evidence missing"
    OVER = "over the limit"
    CONTRADICTED = "proof contradicted"


class Kind(enum.StrEnum):
    """What a finding says, and what it makes of a requirement; without a word, evidence misses."""

    outcome: Outcome

    def __new__(cls, value: str, outcome: Outcome = Outcome.MISSING) -> Kind:
        """A kind, which is its own text."""
        found = str.__new__(cls, value)
        found._value_ = value
        found.outcome = outcome
        return found

    @property
    def refutes(self) -> bool:
        """Whether it says that a proof or the code is wrong."""
        return self.outcome is Outcome.CONTRADICTED

    WITHIN = "within the limit", Outcome.PASSED
    NO_TARGET = "no target", Outcome.OVER
    NOT_ACCOUNTED = "not accounted for"
    OTHER_UNIT = "other unit", Outcome.OVER
    OTHER_ADJACENCY = "other adjacency", Outcome.OVER
    LARGER_DELTA = "larger delta", Outcome.OVER
    ONE_VICTIM = "one victim", Outcome.OVER
    UNPROTECTED = "no protection", Outcome.OVER
    INEXPRESSIBLE = "cannot be expressed", Outcome.OVER
    SEEDED = "seeded noise", Outcome.OVER
    HEURISTIC = "heuristic", Outcome.OVER
    DECLARED = "declared"
    OVER = "over the limit", Outcome.OVER
    RISK_WITHIN = "membership tests within the limit", Outcome.PASSED
    RISK_OVER = "membership tests over the limit", Outcome.OVER
    REBUILT = "contradicted by the attack", Outcome.CONTRADICTED
    MEASURED = "contradicted by the audit", Outcome.CONTRADICTED
    OPINION_CONTRADICTS = "contradicted by a second opinion", Outcome.CONTRADICTED
    TRACE_CONTRADICTS = "contradicted by a second tracer", Outcome.CONTRADICTED
    MEMBERS_GUESSED = "contradicted by guesses of members", Outcome.CONTRADICTED
    LAST_MODEL = "last models tell more than is proven", Outcome.CONTRADICTED
    CHECK_FAILED = "check failed", Outcome.CONTRADICTED
    LIST = "contradicted by kept releases", Outcome.CONTRADICTED
    SUSPICIOUS = "suspicious"
    NO_REPORT = "no report"
    STOPPED = "stopped by its budget"
    TORN = "torn ledger"
    ROUNDS_MISSING = "rounds missing"
    CUT_OFF = "cut off"
    NO_AUDIT = "no audit"
    LOW_CONFIDENCE = "low confidence"
    AUDIT_ADJACENCY = "audit of another adjacency"
    NOT_MEASURED = "not measured"
    FEW_CANARIES = "few canaries"
    WEAK_AUDIT = "audit too weak"
    NO_ATTACK = "no attack"
    NOT_TRIED = "attack not tried"
    NO_OPINION = "no second opinion"
    NOT_CONFIRMED = "not confirmed by a second opinion"
    CONFIRMED = "confirmed by a second opinion", Outcome.PASSED
    NOT_TRACED = "not held against a second tracer"
    TRACED = "held against a second tracer", Outcome.PASSED
    NO_MEMBERSHIP = "no membership inference"
    MEMBERS_DOUBTED = "guesses of members are suspicious"
    MEMBERS_NOT_MEASURED = "members not measured"
    MEMBERS_FOUND = "too many members found", Outcome.OVER
    INFERRED = "membership inferred", Outcome.PASSED
    ATTACK_AGREES = "attack agrees", Outcome.PASSED
    AUDIT_AGREES = "audit agrees", Outcome.PASSED
    CLEARED = "cleared by the second look", Outcome.PASSED
    VAIN = "audit in vain", Outcome.PASSED
    REPORTED = "reported", Outcome.PASSED
    COMPLETE = "complete", Outcome.PASSED
    AUDITED = "audited", Outcome.PASSED
    TRIED = "attack tried", Outcome.PASSED
    ALONE = "records alone", Outcome.PASSED
    NOT_ALONE = "records not shown to be alone"
    SIGNED = "signed", Outcome.PASSED
    NOT_SIGNED = "not signed"


class Action(enum.StrEnum):
    """What would turn a finding."""

    ROUNDS = "rounds"
    AGAIN = "again"
    NOISE = "noise"
    REPAIR = "repair"
    ENCRYPT = "encrypt"
    TARGET = "adversary"
    SEED = "seed"
    PRIVATE = "private"
    ADD_NOISE = "add-noise"
    HIDE = "hide"
    PROVE = "prove"
    EXPRESS = "express"
    ACCOUNTANT = "accountant"
    EAVESDROPPER = "eavesdropper"
    UNIT = "unit"
    ADJACENCY = "adjacency"
    DELTA = "delta"
    VICTIM = "victim"
    ACCOUNT = "account"
    NOBODY_ELSE = "nobody-else"
    DISTRUST = "distrust"
    FAULT = "fault"
    AUDIT_AGAIN = "audit-again"
    SET_TARGET = "set-target"
    ADD_PRIVACY = "add-privacy"
    ROUNDS_DEPEND = "rounds-depend"
    ONE_RELEASE = "one-release"
    TRY = "try"


@dataclass(frozen=True, kw_only=True, slots=True)
class Remedy:
    """What would turn a finding.

    Attributes:
        epsilon: the figure that it leads to, None where none is known.
        delta: at which that figure holds; None for the delta of the claim.
        words: what else its phrase names.
        over: whether the figure is still over the limit.
        others: adversaries that would still be over.
        path: where its figures stand in privacy.json, empty if they do not.

    Raises:
        ValueError: a negative or undefined epsilon.
    """

    action: Action
    epsilon: float | None = None
    delta: float | None = None
    words: Mapping[str, Value] = field(default_factory=dict)
    over: bool = False
    others: Sequence[Guarantee] = ()
    path: tuple[str | int, ...] = ()

    def __post_init__(self) -> None:
        """Check the figure."""
        if self.epsilon is not None and not self.epsilon >= 0:
            raise InputError(f"epsilon={self.epsilon} must be a number >= 0, or None for no figure")


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One thing that is so, and why it matters.

    Attributes:
        adversary: of whose figure; empty where the whole run is meant.
        figure: epsilon, or what was measured; None where there is none.
        limit: what is asked for, None where nothing is.
        claim: the claim that is meant, None where there is none.
    """

    kind: Kind
    adversary: str = ""
    figure: float | None = None
    limit: float | None = None
    remedy: Sequence[Remedy] = ()
    claim: Guarantee | None = None
    words: Mapping[str, Value] = field(default_factory=dict)


Fixes = Callable[[Guarantee, FigureRequirement], Sequence[Fix]]
Risks = Callable[[Guarantee, Goal], float]
_COMPUTED = frozenset({Kind.UNPROTECTED, Kind.INEXPRESSIBLE, Kind.HEURISTIC, Kind.OVER})


def no_fixes(_claim: Guarantee, _asked: FigureRequirement) -> Sequence[Fix]:
    """No fix was computed."""
    return ()


def judge(
    facts: Facts, asked: FigureRequirement, *, fixes: Fixes = no_fixes, risks: Risks | None = None
) -> tuple[Finding, ...]:
    """Hold the figure of one adversary against what is asked of it.

    Args:
        fixes: gives what the accountant says would turn it; called where that can help.
        risks: gives what membership tests come to; called where a goal is asked and they have a
            proven bound. Without it they may find everybody.

    Returns:
        Every reason why the figure does not pass, the more basic one first; else one finding that
        it is within the limit, or that there is none. An adversary that is not accounted for is
        missing evidence: nothing says that its figure is too large, and nothing that it is not.
    """
    claim = facts.claim(asked.adversary)
    if claim is None:
        known = ", ".join(one.adversary for one in facts.claims)
        return (
            Finding(
                kind=Kind.NOT_ACCOUNTED,
                adversary=asked.adversary,
                limit=asked.epsilon,
                remedy=(Remedy(action=_naming(asked.adversary, facts)),),
                words={"adversary": asked.adversary, "known": known},
            ),
        )
    kinds = list(_kinds(facts, claim, asked))
    computed = fixes(claim, asked) if _COMPUTED & set(kinds) else ()
    if asked.goal is not None:
        return _of_tests(facts, claim, asked, kinds, computed, risks)
    if asked.epsilon is None and facts.declared is None:
        kinds.append(Kind.NO_TARGET)
    return tuple(_finding(kind, facts, claim, asked, computed) for kind in kinds or [Kind.WITHIN])


def _finding(
    kind: Kind, facts: Facts, claim: Guarantee, asked: FigureRequirement, computed: Sequence[Fix]
) -> Finding:
    return Finding(
        kind=kind,
        adversary=claim.adversary,
        figure=claim.epsilon,
        limit=asked.epsilon,
        remedy=tuple(_remedies(kind, facts, claim, asked, computed)),
        claim=claim,
        words={
            "asked_unit": Unit(asked.unit).name_with(asked.records),
            "asked_adjacency": asked.adjacency,
            "asked_delta": Figure("small", asked.delta),
        },
    )


def _of_tests(
    facts: Facts,
    claim: Guarantee,
    asked: FigureRequirement,
    kinds: Sequence[Kind],
    computed: Sequence[Fix],
    risks: Risks | None,
) -> tuple[Finding, ...]:
    """Hold membership tests against what they may achieve; only an upper bound passes."""
    goal = asked.goal
    findings = [_finding(kind, facts, claim, asked, computed) for kind in kinds]
    # Only an upper bound, proven or declared, has tests to hold against the goal.
    if goal is None or math.isinf(claim.epsilon) or not claim.is_bound or facts.seeded:
        return tuple(findings)
    reached = 1.0 if risks is None else risks(claim, goal)
    over = not reached <= goal.figure
    if findings and not over:  # within, but of another statement
        return tuple(findings)
    key = f"tpr = {goal.tpr}`, `fpr = {goal.fpr}" if goal.tpr else f"advantage = {goal.figure}"
    return (
        *findings,
        Finding(
            kind=Kind.RISK_OVER if over else Kind.RISK_WITHIN,
            adversary=claim.adversary,
            figure=reached,
            limit=goal.figure,
            remedy=(Remedy(action=Action.TARGET),) if over else (),
            claim=claim,
            words={
                "name": ("advantage" if goal.tpr is None else f"TPR at FPR {goal.fpr:g}",),
                "reached": Figure("precise", reached),
                "limit_words": (goal.words,),
                "aim": (f"`{key}`",),
                "multiplied": (),
            },
        ),
    )


def _naming(adversary: str, facts: Facts) -> Action:
    """How an adversary that was not accounted for could be; a lone agent has no other."""
    of_readers = (EAVESDROPPER.name, FINAL_MODELS.name, SINGLE_MESSAGE.name)
    alone = facts.agents == 1 and adversary not in of_readers
    return Action.NOBODY_ELSE if alone else Action.ACCOUNT


def _kinds(facts: Facts, claim: Guarantee, asked: FigureRequirement) -> Iterator[Kind]:
    """Why a figure does not pass, the most basic reason first."""
    if claim.unit != asked.unit or (claim.records_per_person or 0) < (asked.records or 0):
        yield Kind.OTHER_UNIT
    if claim.adjacency != asked.adjacency:
        yield Kind.OTHER_ADJACENCY
    if not claim.delta <= asked.delta:
        yield Kind.LARGER_DELTA
    if asked.any_record and (facts.victim is not None or facts.whose):
        yield Kind.ONE_VICTIM
    infinite = math.isinf(claim.epsilon)
    if infinite:
        yield Kind.INEXPRESSIBLE if claim.status is Status.CANNOT_BE_EXPRESSED else Kind.UNPROTECTED
    if facts.seeded:
        yield Kind.SEEDED
    elif not infinite and not claim.proven:
        yield Kind.DECLARED if claim.is_bound else Kind.HEURISTIC
    if not infinite and asked.epsilon is not None and not claim.epsilon <= asked.epsilon:
        yield Kind.OVER


_STANDARD: Mapping[Kind, Action] = {
    Kind.OTHER_UNIT: Action.UNIT,
    Kind.OTHER_ADJACENCY: Action.ADJACENCY,
    Kind.LARGER_DELTA: Action.DELTA,
    Kind.ONE_VICTIM: Action.VICTIM,
    Kind.SEEDED: Action.SEED,
}


def _remedies(
    kind: Kind, facts: Facts, claim: Guarantee, asked: FigureRequirement, fixes: Sequence[Fix]
) -> Iterator[Remedy]:
    """What would turn a finding of this kind; nothing of ours turns what somebody declared."""
    if facts.declared is not None:
        return
    if kind in _STANDARD:
        yield Remedy(action=_STANDARD[kind])
        return
    if kind is Kind.NO_TARGET:
        if math.isinf(claim.epsilon) and not fixes and hiding(facts) is Action.ADD_NOISE:
            return  # that remedy sets a target
        yield Remedy(action=Action.SET_TARGET if facts.private else Action.ADD_PRIVACY)
        return
    # What the finding itself calls for, then what was computed.
    of_reader = claim.adversary == SINGLE_MESSAGE.name
    if kind is Kind.HEURISTIC and of_reader:
        yield Remedy(action=Action.EAVESDROPPER)
        return
    if kind is Kind.OVER and not of_reader and (claim.proven or facts.seeded):
        yield Remedy(action=Action.TARGET)
    # A new run states no larger delta than what is asked, so its figures hold at that one.
    smaller = asked.delta if asked.delta < claim.delta else None
    remedies = [fixed(fix, facts, asked.epsilon, delta=smaller) for fix in fixes]
    # Of a figure that is heuristic and over its limit, fixes are told once, with the first reason.
    told_before = kind is Kind.OVER and not claim.proven and not facts.seeded
    yield from () if told_before else remedies
    if remedies:
        return
    if kind is Kind.UNPROTECTED:
        yield Remedy(action=hiding(facts))
    elif kind is Kind.INEXPRESSIBLE:
        yield Remedy(action=Action.EXPRESS)
    elif kind is Kind.HEURISTIC:
        yield Remedy(action=Action.PROVE)


def hiding(facts: Facts) -> Action:
    """What a run lacks in which nothing protects."""
    if not facts.private:
        return Action.PRIVATE
    return Action.ADD_NOISE if facts.noise_multiplier == 0 else Action.HIDE


def fixed(
    fix: Fix,
    facts: Facts,
    limit: float | None,
    *,
    delta: float | None = None,
    others: Sequence[Guarantee] = (),
) -> Remedy:
    """A fix of the accountant as a remedy; it is cited where privacy.json holds it."""
    held = list(facts.ran.fixes) if facts.ran else []
    path = next((("fixes", at) for at, one in enumerate(held) if one is fix), ())
    action = Action(fix.action)
    if action is Action.ROUNDS and fix.rounds is not None and fix.rounds >= facts.rounds:
        action = Action.AGAIN  # more was released than planned
    words: dict[str, Value] = {}
    if fix.rounds is not None:
        number = Figure("whole", fix.rounds, (*path, "rounds") if path else ())
        words["rounds"] = (number, " round" if fix.rounds == 1 else " rounds")
    if fix.noise_multiplier is not None:
        at = (*path, "noise_multiplier") if path else ()
        words["multiplier"] = Figure("precise", fix.noise_multiplier, at)
    epsilon = float(fix.epsilon)
    return Remedy(
        action=action,
        epsilon=epsilon,
        delta=delta,
        words=words,
        over=limit is not None and epsilon > limit,
        others=others,
        path=path,
    )
