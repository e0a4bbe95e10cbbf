"""The public name `budget`: of five numbers of a private computation, the one that is left out.

One Gaussian release a round, of a sum of clipped gradients: the plain question, whose figures
`overhear budget` prints. What the agents of a run really send is for `overhear.account`.

Equal rounds that are not all a Poisson batch each, for `overhear.budget`.

    lottery      each takes place with a probability, by a lottery that everybody sees

    fixed        batch_size of records, drawn anew each round
    shuffled     the next batch_size of an order, another one each epoch; or cyclic, the same
    largest      Poisson batches that are cut where they have more

The figures and the refusals are those of `overhear.account` for one clipped sum a round.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from ..privacy.accounting.request import Accountant, Adjacency, check_multiplier, check_setting
from ..privacy.batches.patterns import counts_words, drawn_words
from ..privacy.batches.sampling import Drawing, Scheme
from ..privacy.errors import InputError, InputTypeError, within
from ..privacy.participation import Event, poisson
from ..runs.numbers import bound, lower_bound, rounded_down, small
from ..runs.requests import BudgetRequest, by_keywords

if TYPE_CHECKING:
    from ..privacy.accounting.risk import Risk


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
        self.check(asked, accountant)
        rounds, _ = check_setting(known["rounds"], self.rate, adjacency, accountant)

        def events_at(multiplier: float) -> dict[Event, int]:
            if not multiplier > 0:
                raise InputError(
                    f"noise_multiplier={multiplier} must be above 0: without noise nothing "
                    "protects, however batches are drawn"
                )
            return self.events(multiplier, rounds, adjacency)

        return _composed(asked, known, events_at, adjacency)

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
        from ..privacy.batches.patterns import least_epsilon_of_shuffled

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
    # Poisson batches that nothing cuts have a rate alone.
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
    from ..training.accounts.request import drawn_of

    if sampling == Scheme.POISSON and batch_size is not None:
        raise InputError(
            f"batch_size={batch_size!r:.40} has no effect on Poisson batches, of which "
            "largest_batch is the largest size; give sampling_rate, records and largest_batch"
        )
    # The rate of batches of one size is their share of the records.
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
    remedy = "it is the probability of an agent to take part in a round, and 1 is every round"
    within("participation", value, "(0, 1]", remedy)


def by_lottery(
    asked: str,
    known: Mapping[str, Any],
    *,
    coin: float,
    adjacency: Adjacency,
    accountant: Accountant,
) -> float:
    """Epsilon, delta or noise of rounds that take place by a public lottery."""
    from ..privacy.accounting.request import check_pld

    if asked not in ("epsilon", "delta", "noise_multiplier"):
        raise InputError(
            f"with participation={coin:g} epsilon, delta or the noise multiplier is found, not "
            f"{asked}; give rounds and sampling_rate"
        )
    check_pld(accountant)
    rounds, _ = check_setting(known["rounds"], known["sampling_rate"], adjacency, accountant)

    def events_at(multiplier: float) -> dict[Event, int]:
        return lottery_events(multiplier, known["sampling_rate"], rounds, coin=coin)

    return _composed(asked, known, events_at, adjacency)


def _composed(
    asked: str,
    known: Mapping[str, Any],
    events_at: Callable[[float], dict[Event, int]],
    adjacency: Adjacency,
) -> float:
    """Epsilon, delta or the noise multiplier of rounds that differ in their noise alone."""
    from ..privacy.accounting import accountant as accounting
    from ..privacy.accounting.limits import scale_for

    # Noise scales the rounds of multiplier 1; epsilon and delta compose them.
    if asked == "noise_multiplier":
        aim = {"epsilon": known["epsilon"], "delta": known["delta"]}
        return scale_for(events_at(1.0), **aim, adjacency=adjacency)
    check_multiplier(known["noise_multiplier"])
    events = events_at(known["noise_multiplier"])
    if asked == "delta":
        return accounting.composed_delta(events, epsilon=known["epsilon"], adjacency=adjacency)
    return accounting.composed_epsilon(events, delta=known["delta"], adjacency=adjacency)


_NUMBERS = ("epsilon", "delta", "rounds", "sampling_rate", "noise_multiplier")
_CHANGES = {
    Adjacency.ADD_OR_REMOVE_ONE: "adding or removing one record",
    Adjacency.ZERO_OUT: "blanking the values of one record",
    Adjacency.REPLACE_ONE: "replacing one record by another",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """What equal rounds cost one record.

    Attributes:
        epsilon: privacy loss in nats.
        delta: of the statement, in (0, 1).
        rounds: how many, each with one release.
        sampling_rate: probability of a record to be in a round's batch.
        noise_multiplier: noise std on the sum of clipped gradients / clip norm.
        computed: which of these was left out, and found.
        adjacency: how two neighbouring data sets differ.
        accountant: how rounds are added up.
        target: what the noise was found for, where that is not epsilon, in words.
        participation: probability of each round to take place for the agent that holds the record,
            by a lottery that everybody sees; 1 where it takes part in every round.
        drawn: how batches are drawn where they are not Poisson.
    """

    epsilon: float
    delta: float
    rounds: int
    sampling_rate: float
    noise_multiplier: float
    computed: str
    adjacency: Adjacency
    accountant: Accountant
    target: str = ""
    participation: float = 1.0
    drawn: DrawnBatches | None = None

    @property
    def at_least(self) -> float | None:
        """What shuffled batches give away at least, for worst-case gradients; None of others."""
        if self.drawn is None:
            return None
        return self.drawn.at_least(
            multiplier=self.noise_multiplier,
            rounds=self.rounds,
            delta=self.delta,
            adjacency=self.adjacency,
        )

    @property
    def events(self) -> dict[Event, int]:
        """The rounds as an accountant sees them."""
        if self.drawn is not None:
            return self.drawn.events(self.noise_multiplier, self.rounds, self.adjacency)
        return lottery_events(
            self.noise_multiplier, self.sampling_rate, self.rounds, coin=self.participation
        )

    @property
    def risk(self) -> Risk:
        """What the best adversary achieves against one record, with the noise and rate above.

        >>> of = {"delta": 1e-5, "rounds": 1000, "sampling_rate": 0.01}
        >>> round(budget(noise_multiplier=1, **of).risk.advantage, 3)
        0.161
        """
        from ..privacy.accounting.risk import composed_risk, risk

        if self.participation < 1.0 or self.drawn is not None:
            return composed_risk(self.events, adjacency=self.adjacency)
        return risk(
            noise_multiplier=self.noise_multiplier,
            sampling_rate=self.sampling_rate,
            rounds=self.rounds,
            adjacency=self.adjacency,
        )

    def lines(self) -> dict[str, str]:
        """What is printed, by the name of the line; every figure is rounded to the safe side."""
        of_largest = self.computed in ("rounds", "sampling_rate")
        least = "the largest" if of_largest else "the least"
        return {
            "noise multiplier": f"{bound(self.noise_multiplier, 5)}  (noise on the sum / "
            "clip norm)",
            "epsilon": f"{bound(self.epsilon, 4)} at delta {self._delta()}, for one record",
            "adjacency": str(self.adjacency),
            "rounds": f"{self.rounds}, each {self._batch}",
            **self._least,
            **self._taking,
            "accountant": f"{self.accountant}: {self.accountant.kind}",
            "computed": f"{self.computed.replace('_', ' ')}, {least} for "
            f"{self.target or 'the rest'}",
        }

    @property
    def _batch(self) -> str:
        """What is drawn in a round."""
        if self.drawn is None:
            return f"a Poisson batch at rate {self._rate()}"
        of = self.drawn.drawing
        if of.scheme is Scheme.TRUNCATED:
            return f"a Poisson batch at rate {self._rate()}, cut at {of.size} of {of.records}"
        return f"a batch of {of.size} of {of.records} records, {of.scheme}"

    @property
    def _least(self) -> dict[str, str]:
        """The line of a lower bound, where there is one."""
        least = self.at_least
        return {} if least is None else {"at least": f"{lower_bound(least, 4)} (worst gradients)"}

    @property
    def _taking(self) -> dict[str, str]:
        """The line of the lottery, where there is one."""
        if self.participation == 1.0:
            return {}
        return {"participation": f"{self.participation:.12g} a round, by a public lottery"}

    def statement(self) -> str:
        """A paragraph to paste: unit, adjacency, sampling, accountant, and what is assumed.

        >>> of = {"delta": 1e-5, "rounds": 1000, "sampling_rate": 0.01}
        >>> print(budget(noise_multiplier=1, **of).statement()[:76])
        Training takes 1000 rounds. In each, every record is in the batch with proba
        """
        rounds = f"{self.rounds} round{'' if self.rounds == 1 else 's'}"
        proven = self.accountant.kind == "upper bound"
        by = f"{self.accountant.kind} by the accountant {self.accountant} of overhear"
        # Who takes part, and how records are drawn.
        lottery = (
            ""
            if self.participation == 1.0
            else f"The agent that holds the record takes part in each with probability "
            f"{self.participation:.12g}, by a lottery that does not depend on the data and that "
            "everybody sees; the figure is over that lottery, and a list that was drawn may cost "
            "more. Where it takes part, "
        )
        begins = "In each, every" if not lottery else f"{lottery}every"
        how = (
            f"{begins} record is in the batch with probability {self._rate()}, independently of "
            "all others (Poisson sampling); its gradient is clipped to norm C"
            if self.drawn is None
            else f"{self.drawn.words} The gradient of a record is clipped to norm C"
        )
        return (
            f"Training takes {rounds}. {how}; and only the sum of the clipped gradients is "
            "released, with Gaussian noise of standard deviation "
            f"{bound(self.noise_multiplier, 5)} C on every coordinate. Then "
            f"{_CHANGES[self.adjacency]} changes the distribution of all that is "
            f"released by {'at most' if proven else 'about'} epsilon {bound(self.epsilon, 4)} at "
            f"delta {self._delta()} ({by if proven else f'{by}, so this is no proof'}). The noise "
            "is taken to be secret and drawn anew in every round, and nothing else that depends "
            "on the records to be released."
        )

    def _delta(self) -> str:
        return bound(self.delta, 3) if self.computed == "delta" else small(self.delta)

    def _rate(self) -> str:
        if self.computed != "sampling_rate":
            return f"{self.sampling_rate:.12g}"
        return f"{rounded_down(self.sampling_rate, 6):g}"  # a largest one is never rounded up

    def __str__(self) -> str:
        """The lines that `overhear budget` prints."""
        return "\n".join(f"{name:<16} {text}" for name, text in self.lines().items())

    def _repr_html_(self) -> str:
        """The same as a table, for a notebook."""
        rows = (
            f'<tr><th style="text-align:left">{escape(name)}</th>'
            f'<td style="text-align:left">{escape(text)}</td></tr>'
            for name, text in self.lines().items()
        )
        return f"<table><tbody>{''.join(rows)}</tbody></table>"


def budget_of(request: BudgetRequest) -> Budget:
    """Of epsilon, delta, rounds, sampling rate and noise, the one that is left out.

    The least epsilon, delta or noise, the most rounds, or the largest sampling rate is the answer.
    With a target for the best membership inference in place of epsilon, the least noise. The
    keywords are the fields of `BudgetRequest`.

    Raises:
        ValueError: a value out of range, not exactly one left out, or what no value of it allows.
        TypeError: a value that is no number.

    >>> of = {"delta": 1e-5, "rounds": 1000, "sampling_rate": 0.01}
    >>> round(budget(noise_multiplier=1.0, **of).epsilon, 3)
    1.828
    >>> round(budget(epsilon=1.0, **of).noise_multiplier, 4)
    1.4146
    >>> budget(epsilon=2.0, noise_multiplier=1.0, delta=1e-5, sampling_rate=0.01).rounds
    1202
    >>> round(budget(noise_multiplier=2, delta=1e-5, rounds=1000, sampling_rate=0.02,
    ...     participation=0.1).epsilon, 4)
    0.4087
    >>> round(budget(noise_multiplier=1, delta=1e-5, rounds=1000, sampling="fixed", records=500,
    ...     batch_size=5, adjacency="replace-one").epsilon, 3)
    14.821
    """
    # How records take part: by batches of a scheme, or by a coin besides.
    participation = request.participation
    check_participation(participation)
    drawn = drawn_batches(
        request.sampling,
        records=request.records,
        batch_size=request.batch_size,
        sampling_rate=request.sampling_rate,
        largest_batch=request.largest_batch,
    )
    if drawn is not None and participation < 1.0:
        raise InputError(
            f"participation={participation:g} has no figure with {drawn.drawing.named}; leave "
            "participation out, or draw Poisson batches without largest_batch"
        )
    given: dict[str, Any] = {name: getattr(request, name) for name in _NUMBERS}
    if drawn is not None:
        given["sampling_rate"] = drawn.rate
    between, by = Adjacency(request.adjacency), Accountant(request.accountant)
    how: dict[str, Any] = {"adjacency": between, "accountant": by}
    # A target of inference asks for noise; otherwise one number is left out.
    if request.advantage is not None or request.true_positive_rate is not None:
        return _for_risk(given, request, drawn=drawn)
    missing = [name for name, value in given.items() if value is None]
    if len(missing) != 1:
        raise InputError(
            f"give {', '.join(given)}, all but one of them: "
            f"{', '.join(missing) if missing else 'none'} {'is' if not missing else 'are'} missing"
        )
    (asked,) = missing
    known = {name: value for name, value in given.items() if name != asked}
    if drawn is not None:
        given[asked] = drawn.answer(asked, known, **how)
    elif participation < 1.0:
        given[asked] = by_lottery(asked, known, coin=float(participation), **how)
    else:
        given[asked] = _answers()[asked](**known, **how)
    return Budget(**given, computed=asked, **how, participation=float(participation), drawn=drawn)


budget = by_keywords(BudgetRequest, budget_of, "budget")


def _for_risk(
    given: dict[str, Any], request: BudgetRequest, *, drawn: DrawnBatches | None
) -> Budget:
    """The least noise for a target of membership inference, and its epsilon at delta."""
    from ..privacy.accounting.accountant import composed_epsilon, epsilon
    from ..privacy.accounting.request import check_pld, check_setting
    from ..privacy.accounting.risk import scale_for_risk

    # Everything but the noise is given.
    rates, participation = request.true_positive_rate, float(request.participation)
    adjacency, accountant = Adjacency(request.adjacency), Accountant(request.accountant)
    left = [name for name in ("delta", "rounds", "sampling_rate") if given[name] is None]
    stray = [name for name in ("epsilon", "noise_multiplier") if given[name] is not None]
    if left or stray:
        raise InputError(
            "with a target of advantage or true_positive_rate give delta, rounds and "
            f"sampling_rate, and neither epsilon nor noise_multiplier: {', '.join(left or stray)} "
            f"{'is missing' if left else 'is given'}"
        )
    check_pld(accountant)
    known = {name: given[name] for name in ("delta", "rounds", "sampling_rate")}
    rate = known["sampling_rate"]
    rounds, _ = check_setting(known["rounds"], rate, adjacency, accountant)
    if drawn is not None:
        drawn.check("noise_multiplier", accountant)

    # The rounds at a noise multiplier, in which only the noise is unknown.
    def events_at(multiplier: float) -> dict[Event, int]:
        if drawn is not None:
            return drawn.events(multiplier, rounds, adjacency)
        return lottery_events(multiplier, rate, rounds, coin=participation)

    found = scale_for_risk(
        events_at(1.0), advantage=request.advantage, true_positive_rate=rates, adjacency=adjacency
    )
    words = (
        f"advantage {request.advantage:g}"
        if rates is None
        else f"TPR {rates[0]:g} at FPR {rates[1]:g} of membership inference"
    )
    # Epsilon at that noise, which the target does not fix.
    if participation < 1.0 or drawn is not None:
        spent = composed_epsilon(events_at(found), delta=known["delta"], adjacency=adjacency)
    else:
        spent = epsilon(noise_multiplier=found, adjacency=adjacency, **known)
    return Budget(
        epsilon=spent,
        noise_multiplier=found,
        computed="noise_multiplier",
        adjacency=adjacency,
        accountant=accountant,
        target=words,
        participation=participation,
        drawn=drawn,
        **known,
    )


def _answers() -> Mapping[str, Callable[..., Any]]:
    """By the number that is left out what finds it."""
    from ..privacy.accounting import accountant, limits

    return {
        "epsilon": accountant.epsilon,
        "delta": accountant.delta,
        "rounds": limits.max_rounds,
        "sampling_rate": limits.max_sampling_rate,
        "noise_multiplier": accountant.noise_multiplier,
    }
