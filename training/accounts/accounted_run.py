"""What is accounted for: an algorithm and its numbers, on a graph, for so many rounds.

It is traced with the numbers of the run, and once more as a reference: clip norm 1, and another
batch size unless the run's own is part of its start. Who holds both traces knows whether the
step's noise keeps its proportion to what is clipped.
"""

from __future__ import annotations

import inspect
import math
from dataclasses import dataclass
from numbers import Real
from typing import Any

from ...privacy.accounting.request import Adjacency, check_count
from ...privacy.batches import patterns
from ...privacy.batches.sampling import Drawing
from ...privacy.errors import InputError, check_real, within
from ...privacy.guarantee import Statement, Unit
from ..algorithms.algorithm import Algorithm, Bound, Form, bind
from ..algorithms.learning_rates import LearningRates, Rates, rates_of, read_rates
from ..graphs.graph import ScheduledGraph, Topology
from ..graphs.participation import check_missing, missing_words
from ..tracing.trace import AlgorithmTrace, trace, with_missing

_SOME_BATCH = 37.5  # where none is given; what a round costs must not depend on it
_LEAST, _MOST = 1e-30, 1e30  # products and squares of such numbers stay within double precision


@dataclass(frozen=True, kw_only=True, slots=True)
class AccountedRun:
    """A run before its noise is known.

    Attributes:
        algorithm: what runs.
        settings: its own hyper-parameters, an instance of `algorithm.settings`.
        form: published or repaired.
        graph: who talks to whom.
        rounds: T.
        sampling_rate: of batches that the step draws without a rate of its own.
        clip_norm: bound on one example's gradient; None does not clip.
        learning_rate: step size of all rounds, or one of each.
        batch_size: public normaliser of a batch's sum; None where it is not known yet.
        records: public number of records of an average agent; None unless the start needs it.
        from_records: what is computed from the number of all records, in words.
        drawn: how each agent draws its batches; each record on its own where it is None.
        pattern: in which rounds one record may take part, which the sampler enforces.
        missing: how many agents may be missing from a round that nobody knew of.
        victim: who is at risk, where agents may be missing; None where nobody is named.
        named: agents that belong to an adversary by number, likewise.

    Raises:
        ValueError: a number out of range, or records that the start needs.
        TypeError: a number that is none.
    """

    algorithm: Algorithm
    settings: Any
    form: Form
    graph: Topology
    rounds: int
    sampling_rate: float
    clip_norm: float | None
    learning_rate: LearningRates
    batch_size: float | None = None
    records: float | None = None
    from_records: tuple[str, ...] = ()
    drawn: tuple[Drawing, ...] | None = None
    pattern: patterns.Pattern = patterns.EVERY
    missing: int = 0
    victim: int | None = None
    named: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        """Check every number, so that no trace is made of one that double precision loses."""
        object.__setattr__(self, "missing", check_missing(self.missing, self.graph))
        object.__setattr__(self, "rounds", check_count(self.rounds))
        within("sampling_rate", self.sampling_rate, "(0, 1]", "did you mean batch_size?")
        object.__setattr__(self, "sampling_rate", float(self.sampling_rate))
        for name in ("clip_norm", "batch_size", "records"):
            if (value := getattr(self, name)) is not None:
                check_real(name, value)
                _check_size(name, value)
                object.__setattr__(self, name, float(value))
        object.__setattr__(self, "learning_rate", self._read_rates())
        self.pattern.checked(self.rounds).coin(self.sampling_rate, self.rounds)
        if self.drawn is not None and len(self.drawn) != self.graph.agents:
            raise InputError(
                f"drawn has {len(self.drawn)} entries for {self.graph.agents} agents; give one each"
            )
        if self.algorithm.needs_records and self.records is None:
            raise InputError(
                f"algorithm {self.algorithm.name!r} needs records, the public number of records "
                "of an average agent; give it"
            )

    def _read_rates(self) -> Rates:
        if isinstance(given := self.learning_rate, Real) and not isinstance(given, bool):
            _check_size("learning_rate", given)
        found = rates_of(read_rates(given), self.rounds)
        for one in (min(found), max(found)) if isinstance(found, tuple) else ():
            _check_size("learning_rate", one)
        return found

    @property
    def largest_rate(self) -> float:
        """The largest learning rate of any round."""
        rates = self.learning_rate
        return max(rates) if isinstance(rates, tuple) else float(rates)  # type: ignore[arg-type]

    @property
    def coin(self) -> float:
        """The rate at which a record is drawn in a round in which it may be."""
        return self.pattern.coin(self.sampling_rate, self.rounds)

    @property
    def batches(self) -> str | None:
        """How they are drawn, in sentences, where they are not Poisson."""
        if not self.pattern.is_every:
            return patterns.turn_words(self.pattern, self.coin)
        if self.drawn is None:
            return None
        how = patterns.drawn_words(self.drawn, self.sampling_rate)
        return f"{how}. {patterns.counts_words(self.drawn)}."

    def counted(self, statement: Statement) -> str | None:
        """That the number of all records is public, in a sentence; None where it need not be.

        Where batches are not Poisson, `batches` says it of each agent.
        """
        added = statement.adjacency is Adjacency.ADD_OR_REMOVE_ONE
        if not added or not self.from_records or self.drawn is not None:
            return None
        return f"{patterns.total_words(self.from_records)}."

    def bound(self, noise_multiplier: float) -> Bound:
        """The algorithm with every number of the run.

        Raises:
            ValueError: the algorithm divides by batch_size, and none was given.
        """
        if self._batch_size is None and takes_batch_size(self.algorithm):
            raise InputError(
                f"algorithm {self.algorithm.name!r} divides by batch_size, the public expected "
                "size of a batch; give batch_size to account to run what it accounts for"
            )
        return self.bound_at(
            noise_multiplier, clip_norm=self.clip_norm, batch_size=self._batch_size or 1.0
        )

    def trace(self, noise_multiplier: float) -> AlgorithmTrace:
        """The run at a noise multiplier, with the numbers of the run."""
        batch_size = self._batch_size or _SOME_BATCH
        bound = self.bound_at(noise_multiplier, clip_norm=self.clip_norm, batch_size=batch_size)
        return self._traced(bound, noise_multiplier)

    def reference(self, noise_multiplier: float) -> AlgorithmTrace:
        """The run at a noise multiplier, at clip norm 1 and with another batch size.

        Its figures are compared with those of `trace`, where the step is traced again.
        """
        bound = self.reference_bound(noise_multiplier)
        return self._traced(bound, noise_multiplier, again=False)

    def reference_bound(self, noise_multiplier: float) -> Bound:
        """The algorithm with the numbers of `reference`.

        A start of a given size costs as it does beside batches of the run's own size alone, so
        there the batch size is the run's.
        """
        batch_size = self._batch_size or 1.0 if self.algorithm.needs_records else 1.0
        clip_norm = None if self.clip_norm is None else 1.0
        return self.bound_at(noise_multiplier, clip_norm=clip_norm, batch_size=batch_size)

    @property
    def same(self) -> frozenset[int]:
        """Agents whom neither an adversary's name nor how they draw batches tells apart."""
        if self.drawn is not None and len(set(self.drawn)) > 1:
            return frozenset()
        return frozenset(range(self.graph.agents)) - self.named - {self.victim}

    @property
    def missing_words(self) -> str | None:
        """How many agents may be missing, in words; None where none may."""
        return missing_words(self.missing, self.graph.agents) if self.missing else None

    @property
    def _batch_size(self) -> float | None:
        if self.batch_size is None and self.algorithm.needs_records and self.records is not None:
            return max(self.sampling_rate * self.records, math.ulp(1.0))
        return self.batch_size

    def bound_at(
        self, noise_multiplier: float, *, clip_norm: float | None, batch_size: float
    ) -> Bound:
        """The algorithm with the numbers of the run, but for those that are given."""
        return bind(
            self.algorithm,
            self.settings,
            form=self.form,
            learning_rate=self.learning_rate,
            clip_norm=clip_norm,
            noise_std=noise_multiplier * (1.0 if clip_norm is None else clip_norm),
            batch_size=batch_size,
            graph=self.graph,
            rounds=self.rounds,
            records=self.records if self.algorithm.needs_records else None,
        )

    def _traced(
        self, bound: Bound, noise_multiplier: float, *, again: bool = True
    ) -> AlgorithmTrace:
        algorithm_trace = trace(
            bound.init,
            bound.step,
            graph=self.graph,
            rounds=self.rounds,
            noise_multiplier=noise_multiplier,
            release=bound.release,
            again=again,
        )
        if not self.missing or isinstance(self.graph, ScheduledGraph):
            return algorithm_trace
        return with_missing(
            algorithm_trace,
            bound.init,
            bound.step,
            graph=self.graph,
            missing=self.missing,
            victim=self.victim,
            same=self.same,
        )


def _check_size(name: str, value: Any) -> None:
    within(name, value, f"[{_LEAST}, {_MOST}]", ": rounding would decide what a message shows")


def takes_batch_size(algorithm: Algorithm) -> bool:
    """Whether its start or its step is given the public normaliser of a batch's sum."""
    functions = (algorithm.init, algorithm.step)
    return any("batch_size" in inspect.signature(f).parameters for f in functions)


def check_pattern(subject: AccountedRun, statement: Statement) -> None:
    """Refuse what nothing is proven of where a record may be in some rounds alone.

    Raises:
        ValueError: with what to leave out.
    """
    if subject.pattern.is_every:
        return
    said = f"participation {subject.pattern.entry}"
    if statement.unit is not Unit.RECORD or statement.holders:
        what = "holders" if statement.holders else f"unit='{statement.unit}'"
        raise InputError(
            f"{said} has no bound with {what}: each record has turns of its own; leave one of them "
            "out"
        )
    if subject.drawn is not None:
        raise InputError(
            f"{said} has no bound with batches that are '{subject.drawn[0].scheme}': in its turn a "
            "record is drawn by a coin of its own; use batches = 'poisson' without largest_batch"
        )
    if subject.missing or isinstance(subject.graph, ScheduledGraph):
        raise InputError(
            f"{said} has no bound where agents are absent from rounds or may be missing; leave "
            "[participation] out"
        )


def is_amplified(statement: Statement) -> bool:
    """Whether a record has one coin in each of its turns, and turns of one record are meant.

    A record that is replaced leaves its turns to another one, and several records of one person
    have turns of their own.
    """
    one = statement.records_per_person == 1 and not statement.holders
    return one and statement.adjacency is not Adjacency.REPLACE_ONE
