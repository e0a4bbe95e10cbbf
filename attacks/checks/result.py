"""Check: what one check of an audit found."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from numpy.typing import NDArray

from ...privacy.errors import InputError, within
from ...training.noise_tests.laws import least

TOTAL_FALSE_ALARM = 1e-6  # of all tests of one check together


class Verdict(enum.StrEnum):
    """Of one check."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_RUN = "not run"


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """The result of a check.

    Attributes:
        name: of the check.
        passed: whether the run is as it is declared to be, as far as the check ran.
        p: of the worst test times the number of tests, at most 1: a sound run has one below
            `TOTAL_FALSE_ALARM` with at most that probability. None where nothing is left to
            chance, so that any difference fails.
        tests: how many comparisons were made.
        words: a sentence for a report.
        power: the smallest faults that it sees in 95 of 100 runs, as a sentence; empty where nobody
            counted.
        as_traced: whether the run did what its trace did, so that anything else can be said of it.
        ran: whether there was enough to look at; `words` say what was missing where not.
        applies: whether anything is declared that this check is about.
    """

    name: str
    passed: bool
    p: float | None = None
    tests: int = 0
    words: str
    power: str = ""
    as_traced: bool = True
    ran: bool = field(default=True, repr=False)
    applies: bool = field(default=True, repr=False)

    @classmethod
    def not_run(cls, name: str, why: str, *, applies: bool = True) -> Self:
        """Of a check that had too little to say."""
        return cls(name=name, passed=False, words=f"{why}.", ran=False, applies=applies)

    @classmethod
    def not_as_traced(cls, name: str, mismatch: str) -> Self:
        """Of a run that did another thing than its trace, which fails whatever is asked of it."""
        words = f"Not what was traced: {mismatch}."
        return cls(name=name, passed=False, tests=1, words=words, as_traced=False)

    @classmethod
    def exact(cls, name: str, words: str, *, tests: int, passed: bool = True) -> Self:
        """Of comparisons in which nothing is left to chance."""
        return cls(name=name, passed=passed, tests=tests, words=words)

    @property
    def verdict(self) -> Verdict:
        """Passed, failed, or not run."""
        if not self.ran:
            return Verdict.NOT_RUN
        return Verdict.PASSED if self.passed else Verdict.FAILED

    def __post_init__(self) -> None:
        """Check the ranges."""
        if self.p is not None and not 0 <= self.p <= 1:
            raise InputError(f"p={self.p} must lie in [0, 1], or be None where it is exact")
        within("tests", self.tests, "[0, inf]")
        if not self.words:
            raise InputError("words must say what was compared")


class Finding:
    """The worst of many tests, as they come."""

    def __init__(self) -> None:
        self.tests = 0
        self.what = ""
        self._least = 1.0

    def note(self, p: float | NDArray[Any], *, what: str, tests: int = 1) -> None:
        """Take in tests whose smallest p is given, with the words for the one that has it."""
        self.tests += tests
        if tests and not p >= self._least:  # one that is not a number counts as the worst
            self._least, self.what = float(p) if p == p else 0.0, what

    def worst(self, p: NDArray[Any], what: Callable[[int], str]) -> None:
        """Take in as many tests as there are values of p, with the words by its place for one."""
        at, one = least(p)
        self.note(one, tests=len(p), what=what(at))

    def exact(self, holds: bool, what: str, *, tests: int = 1) -> None:
        """Take in comparisons in which nothing is left to chance."""
        self.note(1.0 if holds else 0.0, tests=tests, what=what)

    @classmethod
    def of(cls, parts: Sequence[Finding]) -> Finding:
        """All tests of several findings; of those that fail, the words of the first.

        Findings that hold tests share the false alarms equally, whatever the number of their tests.
        """
        whole, held = cls(), [one for one in parts if one.tests]
        whole.tests = sum(one.tests for one in held)
        shares = [one._least * one.tests * len(held) for one in held]
        whole._least = min([1.0, *(share / whole.tests for share in shares)])
        failing = [
            one for one, p in zip(held, shares, strict=True) if min(1.0, p) < TOTAL_FALSE_ALARM
        ]
        whole.what = failing[0].what if failing else ""
        return whole

    @property
    def p(self) -> float:
        """Of all tests together, by Bonferroni."""
        return min(1.0, self._least * max(self.tests, 1))

    @property
    def passed(self) -> bool:
        """Whether it is not below the false-alarm rate."""
        return self.p >= TOTAL_FALSE_ALARM

    @property
    def counted(self) -> str:
        """How many tests there were, in words."""
        return f"{self.tests} tests at a total false-alarm rate of {TOTAL_FALSE_ALARM:.0e}"

    @property
    def outcome(self) -> str:
        """What they say, in words."""
        if self.passed:
            return f"none fails, the least p times their number is {self.p:.2g}"
        return f"it fails with p = {self.p:.1g}: {self.what}"

    def check(
        self,
        name: str,
        compared: str,
        *,
        beside: str = "",
        fault: str = "",
        outcome: str = "",
        power: str = "",
    ) -> Check:
        """The check of all tests together.

        Args:
            name: of the check.
            compared: what was compared, as the beginning of a sentence.
            beside: what is said after the number of tests.
            fault: what fails it whatever the tests say; empty where nothing does.
            outcome: what the tests say; by default `outcome`.
            power: as of `Check`.
        """
        said = "" if fault and self.passed else outcome or self.outcome
        parts = [f"{compared}: {self.counted}", beside, fault, said]
        words = "; ".join(part for part in parts if part) + "."
        passed = self.passed and not fault
        return Check(name=name, passed=passed, p=self.p, tests=self.tests, words=words, power=power)
