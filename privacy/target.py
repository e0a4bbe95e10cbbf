"""What the noise of a run is found for: an epsilon, or a bound on tests of membership."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from .accounting.request import Accountant, check_epsilon
from .errors import InputError, check_real
from .formats.codec import Delta, Fraction, NotNegative, described


@dataclass(frozen=True, kw_only=True, slots=True)
class Goal:
    """What the noise of a run is calibrated to: epsilon, or what membership inference achieves.

    Attributes:
        epsilon: largest privacy loss that is allowed, in nats, at the delta of the statement.
        advantage: largest true-positive rate minus false-positive rate of any test, in (0, 1).
        tpr: largest true-positive rate of any test at `fpr`, in (fpr, 1).
        fpr: false-positive rate of `tpr`, in (0, 1).

    Raises:
        ValueError: not exactly one of epsilon, advantage and tpr; tpr without fpr, or fpr without
            tpr; a value out of range.
        TypeError: a value that is no number.

    Source: Kulynych et al., arXiv:2407.02191: noise for the risk that is meant, not for epsilon.

    >>> Goal(advantage=0.1).words, Goal(tpr=0.2, fpr=0.01).figure
    ('advantage 0.1', 0.2)
    """

    epsilon: float | None = None
    advantage: float | None = None
    tpr: float | None = None
    fpr: float | None = None

    def __post_init__(self) -> None:
        """Check that one target is there, and that it can be met by some noise."""
        given = [n for n in ("epsilon", "advantage", "tpr") if getattr(self, n) is not None]
        if (self.tpr is None) != (self.fpr is None):
            there, gone = ("tpr", "fpr") if self.fpr is None else ("fpr", "tpr")
            raise InputError(
                f"{there}={getattr(self, there)!r:.40} needs {gone} beside it: the true-positive "
                "rate that is allowed (tpr), and the false-positive rate at which it is (fpr)"
            )
        if len(given) != 1:
            found = " and ".join(given) or "none"
            raise InputError(f"give epsilon, advantage or tpr, exactly one of them; {found} given")
        # Each target lies where some noise, and not every noise, may meet it.
        if self.epsilon is not None:
            check_epsilon(self.epsilon, positive=True)
        if self.advantage is not None:
            check_real("advantage", self.advantage)
            if not 0.0 < self.advantage < 1.0:
                raise InputError(
                    f"advantage={self.advantage} must lie strictly between 0 and 1; it is the "
                    "largest true-positive rate minus false-positive rate of a membership test"
                )
        if self.tpr is not None and self.fpr is not None:
            check_real("tpr", self.tpr)
            check_real("fpr", self.fpr)
            if not 0.0 < self.fpr < self.tpr < 1.0:
                raise InputError(
                    f"tpr={self.tpr} at fpr={self.fpr}: both must lie strictly between 0 and 1, "
                    "and tpr above fpr, which a blind guess has"
                )

    @property
    def of_risk(self) -> bool:
        """Whether it is about membership inference, not about epsilon."""
        return self.epsilon is None

    @property
    def figure(self) -> float:
        """The largest value that is allowed of what it is about."""
        return next(v for v in (self.epsilon, self.advantage, self.tpr) if v is not None)

    @property
    def words(self) -> str:
        """It in words.

        >>> Goal(tpr=0.2, fpr=0.01).words
        'TPR 0.2 at FPR 0.01'
        """
        if self.tpr is not None:
            return f"TPR {self.tpr:g} at FPR {self.fpr:g}"
        name = "advantage" if self.epsilon is None else "epsilon"
        return f"{name} {self.figure:g}"

    def check_accountant(self, accountant: Accountant) -> None:
        """Refuse an accountant that gives no trade-off curve.

        Raises:
            ValueError: risk is found from the privacy loss distribution alone.
        """
        if self.of_risk and accountant is not Accountant.PLD:
            raise InputError(
                f"a target of {self.words} is met by accountant='pld' alone, not '{accountant}', "
                "which gives no trade-off curve; leave accountant out, or give epsilon"
            )


@described()
@dataclass(frozen=True, kw_only=True)
class Target:
    """What the run file asks for."""

    epsilon: NotNegative | None
    """Largest that is allowed; null where something else is the target, or nothing."""
    delta: Delta
    adversary: str | None
    advantage: Fraction | None = None
    """Largest TPR minus FPR of a membership test that is allowed, where that is the target."""
    tpr: Fraction | None = None
    """Largest true-positive rate that is allowed at `fpr`, where that is the target."""
    fpr: Fraction | None = None
    reached: Fraction | None = None
    """What advantage or tpr comes to at the noise of the plan, where one is the target."""

    @classmethod
    def of(
        cls, goal: Goal | None, *, delta: float, adversary: str | None, reached: float | None
    ) -> Self:
        """The target of a goal.

        Args:
            goal: what is met; None where the noise was given.
            reached: what it comes to, in the goal's own figure.
        """
        if goal is None or not goal.of_risk:
            epsilon = None if goal is None else goal.epsilon
            return cls(epsilon=epsilon, delta=delta, adversary=adversary)
        return cls(
            epsilon=None,
            delta=delta,
            adversary=adversary,
            advantage=goal.advantage,
            tpr=goal.tpr,
            fpr=goal.fpr,
            reached=reached,
        )

    @property
    def goal(self) -> Goal | None:
        """It as it is calibrated to; None where the noise was given."""
        if self.epsilon is None and self.advantage is None and self.tpr is None:
            return None
        return Goal(epsilon=self.epsilon, advantage=self.advantage, tpr=self.tpr, fpr=self.fpr)
