"""What `overhear budget` is asked: options of the command, keywords of `overhear.budget`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

ACCOUNTANTS = ("pld", "rdp", "prv", "dp-accounting", "gdp-clt")
ADJACENCIES = ("add-or-remove-one", "zero-out", "replace-one")
SCHEMES = ("poisson", "fixed", "shuffled", "cyclic")


def read_rates(text: str) -> tuple[float, float]:
    """TPR@FPR as two numbers."""
    from ..privacy.errors import InputError  # the command line starts without numpy

    rate, at, alarms = text.partition("@")
    try:
        return float(rate), float(alarms if at else "none")
    except ValueError:
        raise InputError(
            f"--target-tpr {text!r:.40} must be TPR@FPR, two numbers such as .2@.01"
        ) from None


def read_size(text: str) -> int | str:
    """A size as a number, or auto."""
    from ..privacy.errors import InputError

    try:
        return text if text == "auto" else int(text)
    except ValueError:
        raise InputError(f"--largest-batch {text!r:.40} must be an integer, or auto") from None


@dataclass(frozen=True, kw_only=True)
class BudgetRequest:
    """Five numbers of a private computation, of which one is left out, and what they are said of.

    With a target for the best membership inference in place of epsilon, the noise is left out too.
    """

    delta: float | None = None
    """Delta of the statement, in (0, 1)."""
    epsilon: float | None = None
    """Largest privacy loss, in nats."""
    noise_multiplier: float | None = None
    """Standard deviation of the noise on the sum / clip norm."""
    rounds: int | None = None
    """Number of rounds.

    Each has one release; from 1 to 10 million.
    """
    sampling_rate: float | None = None
    """Probability of a record to be in a batch."""
    advantage: Annotated[float | None, "--target-advantage"] = None
    """Largest TPR - FPR of membership inference, in place of epsilon."""
    true_positive_rate: Annotated[
        tuple[float, float] | None, "--target-tpr TPR@FPR", read_rates
    ] = None
    """Largest TPR at an FPR, such as .2@.01, in place of epsilon."""
    participation: float = 1.0
    """Probability of an agent to take part in a round, by a public lottery; in (0, 1].

    Of the agent that holds the record; below 1 epsilon, delta or noise is found.
    """
    sampling: Annotated[str, "--batches", SCHEMES] = "poisson"
    """How batches are drawn.

    All but Poisson ones have `batch_size` of `records`, and their sampling rate follows; then
    epsilon, delta or noise is found.
    """
    records: int | None = None
    """Number of records, which is public; for batches that are not Poisson, or cut."""
    batch_size: int | None = None
    """Size of batches that are not Poisson; replaces --sampling-rate."""
    largest_batch: Annotated[int | str | None, "N|auto", read_size] = None
    """Size at which a Poisson batch is cut."""
    accountant: Annotated[str, ACCOUNTANTS] = "pld"
    """How rounds are added up."""
    adjacency: Annotated[str, ADJACENCIES] = "add-or-remove-one"
    """How neighbouring data sets differ."""
