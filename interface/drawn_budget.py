"""Equal rounds that are not all a Poisson batch each, for `overhear.budget`.

    lottery      each takes place with a probability, by a lottery that everybody sees

    fixed        batch_size of records, drawn anew each round
    shuffled     the next batch_size of an order, another one each epoch; or cyclic, the same
    largest      Poisson batches that are cut where they have more

The figures and the refusals are those of `overhear.account` for one clipped sum a round.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..privacy._validate import check_real
from ..privacy.accounting.names import Accountant
from ..privacy.accounting.request import Adjacency, check_multiplier, check_setting
from ..privacy.batches.patterns import counts_words, drawn_words
from ..privacy.batches.sampling import Drawing, Scheme
from ..privacy.errors import InputError, InputTypeError
from ..privacy.participation import Event, poisson

__all__ = [
    "DrawnBatches",
    "by_lottery",
    "check_participation",
    "drawn_batches",
    "lottery_events",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class DrawnBatches:
    """How one holder draws its batches.

    Attributes:
        drawing: any but Poisson.
        rate: of Poisson batches that are cut; of others batch_size / records.
    """

    drawing: Drawing
    rate: float

    def events(self, multiplier: float, rounds: int, adjacency: Adjacency) -> dict[Event, int]:
        """The rounds as an accountant sees them.

        Args:
            multiplier: noise std on the sum / clip norm, above 0.
            rounds: how many.
            adjacency: how data sets differ.

        Raises:
            ValueError: no bound is known of batches that are drawn so.
        """
        from ..training.exposure.events import counted
        from ..training.exposure.sensitivity import Release

        release = Release(1.0, self.rate, rounds, 1, drawn=self.drawing)
        return dict(counted([release], multiplier, adjacency))

    def answer(
        self, asked: str, known: Mapping[str, Any], *, adjacency: Adjacency, accountant: Accountant
    ) -> float:
        """Epsilon, delta or the noise multiplier, by the others.

        Raises:
            ValueError: something else is asked for, or the accountant is of Poisson batches.
        """
        from ..privacy.accounting import accountant as accounting
        from ..privacy.accounting.limits import scale_for

        self.check(asked, accountant)
        rounds, _ = check_setting(known["rounds"], self.rate, adjacency, accountant)
        if asked == "noise_multiplier":
            return scale_for(
                self.events(1.0, rounds, adjacency),
                epsilon=known["epsilon"],
                delta=known["delta"],
                adjacency=adjacency,
            )
        multiplier = known["noise_multiplier"]
        check_multiplier(multiplier)
        if not multiplier > 0:
            raise InputError(
                f"noise_multiplier={multiplier} must be above 0: without noise nothing protects, "
                "however batches are drawn"
            )
        events = self.events(multiplier, rounds, adjacency)
        if asked == "delta":
            return accounting.composed_delta(events, epsilon=known["epsilon"], adjacency=adjacency)
        return accounting.composed_epsilon(events, delta=known["delta"], adjacency=adjacency)

    def check(self, asked: str, accountant: Accountant) -> None:
        """Refuse what is not found of batches that are not Poisson.

        Raises:
            ValueError: rounds or a rate is asked for, or another accountant.
        """
        if accountant is not Accountant.PLD:
            raise InputError(
                f"accountant='{accountant}' adds up Poisson batches alone, not "
                f"'{self.drawing.scheme}' ones; use accountant='pld'"
            )
        if asked not in ("epsilon", "delta", "noise_multiplier"):
            raise InputError(
                f"with {self.drawing.named} epsilon, delta or the noise multiplier is found, not "
                f"{asked}; give rounds, and batch_size and records or sampling_rate"
            )

    def at_least(
        self, *, multiplier: float, rounds: int, delta: float, adjacency: Adjacency
    ) -> float | None:
        """What shuffled batches give away at least, for worst-case gradients; else None."""
        from ..privacy.batches.at_least import least_epsilon_of_shuffled

        of = self.drawing
        if of.scheme is not Scheme.SHUFFLED:
            return None
        return least_epsilon_of_shuffled(
            multiplier,
            batches=of.epoch,
            epochs=rounds // of.epoch,
            delta=delta,
            replace=adjacency is Adjacency.REPLACE_ONE,
            share=of.epoch * of.size / of.records,
        )

    @property
    def words(self) -> str:
        """How batches are drawn and what counts as public, in sentences.

        >>> drawn_batches("cyclic", records=25, batch_size=10).words
        'Each agent takes 10 of its records a round in one fixed order, leaves out 5 at most at \
the end. How many records each agent holds (25) counts as public.'
        """
        return f"{drawn_words([self.drawing], self.rate)}. {counts_words([self.drawing])}."


def drawn_batches(
    sampling: str = "poisson",
    *,
    records: int | None = None,
    batch_size: int | None = None,
    sampling_rate: float | None = None,
    largest_batch: int | str | None = None,
) -> DrawnBatches | None:
    """How batches are drawn; None where each record is drawn on its own.

    Args:
        sampling: "poisson", "fixed", "shuffled" or "cyclic".
        records: n, a public number.
        batch_size: b; not of Poisson batches.
        sampling_rate: of Poisson batches that are cut; of others b / n, where it is given.
        largest_batch: at which Poisson batches are cut, or "auto".

    Raises:
        ValueError: numbers that do not go together, or that are missing.

    >>> drawn_batches("fixed", records=500, batch_size=10).rate
    0.02
    """
    if not isinstance(sampling, str):
        raise InputTypeError(f"sampling={sampling!r:.40} must be the name of a scheme")
    if sampling == Scheme.POISSON and largest_batch is None:
        for name, value in (("records", records), ("batch_size", batch_size)):
            if value is not None:
                raise InputError(
                    f"{name}={value!r:.40} has no effect on Poisson batches, whose sampling_rate "
                    "is all of it; leave it out, or say that batches are drawn otherwise"
                )
        return None
    from ..training.accounts.request import drawn_of  # takes torch, which Poisson batches do not

    if sampling == Scheme.POISSON and batch_size is not None:
        raise InputError(
            f"batch_size={batch_size!r:.40} has no effect on Poisson batches, of which "
            "largest_batch is the largest size; give sampling_rate, records and largest_batch"
        )
    rate = sampling_rate
    if rate is None:
        if sampling == Scheme.POISSON:
            raise InputError(
                "largest_batch cuts Poisson batches, so give their sampling_rate and records"
            )
        usable = isinstance(records, int) and isinstance(batch_size, int | float) and records > 0
        rate = float(batch_size) / records if usable else 1.0  # type: ignore[arg-type,operator]
    drawings = drawn_of(
        sampling,
        agents=1,
        records=records,
        batch_size=batch_size,
        rate=min(rate, 1.0) if sampling_rate is None else rate,
        largest=largest_batch,
    )
    return None if drawings is None else DrawnBatches(drawing=drawings[0], rate=rate)


def lottery_events(multiplier: float, rate: float, rounds: int, *, coin: float) -> dict[Event, int]:
    """Equal rounds, each of which takes place with a probability."""
    return {Event(float(multiplier), poisson(rate), coin=coin): rounds}


def check_participation(value: float) -> None:
    """Refuse what is no probability of a round to take place."""
    check_real("participation", value)
    if not 0.0 < value <= 1.0:
        raise InputError(
            f"participation={value} must lie in (0, 1]; it is the probability of an agent to take "
            "part in a round, and 1 is every round"
        )


def by_lottery(
    asked: str,
    known: Mapping[str, Any],
    *,
    coin: float,
    adjacency: Adjacency,
    accountant: Accountant,
) -> float:
    """Epsilon, delta or noise of rounds that take place by a public lottery."""
    from ..privacy.accounting import accountant as accounting
    from ..privacy.accounting.limits import scale_for
    from ..privacy.accounting.request import check_pld

    if asked not in ("epsilon", "delta", "noise_multiplier"):
        raise InputError(
            f"with participation={coin:g} epsilon, delta or the noise multiplier is found, not "
            f"{asked}; give rounds and sampling_rate"
        )
    check_pld(accountant)
    rounds, _ = check_setting(known["rounds"], known["sampling_rate"], adjacency, accountant)
    rate = known["sampling_rate"]
    if asked == "noise_multiplier":
        return scale_for(
            lottery_events(1.0, rate, rounds, coin=coin),
            epsilon=known["epsilon"],
            delta=known["delta"],
            adjacency=adjacency,
        )
    check_multiplier(known["noise_multiplier"])
    events = lottery_events(known["noise_multiplier"], rate, rounds, coin=coin)
    if asked == "delta":
        return accounting.composed_delta(events, epsilon=known["epsilon"], adjacency=adjacency)
    return accounting.composed_epsilon(events, delta=known["delta"], adjacency=adjacency)
