"""Kinds of noise for a run file, each with the noise that meets the run's own target.

Noise without memory is fresh in every round, so Poisson batches amplify, round by round. Noise with
memory makes one release of all rounds. Two figures of it are proven, and the better one counts:

    whole run   a record is taken to be in every one of its turns, and nothing amplifies
    bands       a strategy of p coefficients, records in b >= p groups that take turns, each drawn
                in its turn by a secret coin: a round's noise meets what is used again b rounds
                later in no row, so these are ceil(T / b) rounds of Poisson batches. A plan need
                not find this for who hears a part of the messages, so there it does not count

Where a record may be in every round memory gains nothing (`privacy.noise.dual`: M may be
raised to its diagonal), so under plain Poisson batches it is shown with the groups that it needs.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from ...privacy import guarantee
from ...privacy.accounting.accountant import noise_multiplier as multiplier_for
from ...privacy.accounting.request import Adjacency
from ...privacy.batches.patterns import PatternKind
from ...privacy.errors import InputError, within
from ...privacy.noise.design import Design, Kind, design, pair_exposure
from ...privacy.noise.over_time import MOST_DENSE
from ...training.algorithms.learning_rates import rates_of, read_rates
from ...training.exposure.guarantees import equal_epsilon
from ...training.graphs.graph import Graph
from ..run_file.build import data_of, draws_otherwise, graph_of, sampling_rate_of, statement_of
from ..run_file.run_file import RunFile
from .schema import Compared, Row, advice, undone_by
from .trainable import Trained, trained

# What a run file asks of a comparison of kinds of noise, refused where no design is known.


def checked(config: RunFile) -> guarantee.Statement:
    """What every epsilon is said of; refuses what designs are not known for.

    Raises:
        ValueError: another unit than one record, batches that are not Poisson, absent agents.
    """
    statement = statement_of(config)
    if statement.unit is not guarantee.Unit.RECORD or statement.holders:
        raise InputError(
            f"unit='{statement.unit}' with {statement.about} has no design of noise; give "
            "unit='record' without holders"
        )
    if draws_otherwise(config):
        raise InputError(
            f"batches={config.training.batches!r} have no design of noise; use batches='poisson' "
            "without largest_batch"
        )
    if config.participation is not None:
        raise InputError(
            "[participation] leaves agents out, whose noise others' is made to cancel; leave the "
            "table out for a design of noise"
        )
    return statement


def step_sizes_of(config: RunFile) -> tuple[float, ...]:
    """A learning rate of each round, where they differ.

    Raises:
        ValueError: they differ in more rounds than a design takes them of.
    """
    rounds = config.training.rounds
    found = rates_of(read_rates(config.training.learning_rate), rounds)
    if not isinstance(found, tuple):
        return ()
    if rounds > MOST_DENSE:
        raise InputError(
            f"learning_rate changes from round to round, and kinds of noise for rounds={rounds} "
            f"are compared for one rate alone; give learning_rate one number, or use at most "
            f"{MOST_DENSE} rounds"
        )
    return found


def target_adversary(config: RunFile) -> str:
    """Whose epsilon the target is.

    Raises:
        ValueError: who sees the final models alone. A plan takes less noise for it than a table
            for whoever hears messages, and agents then learn more than the table says.
    """
    name = "eavesdropper" if config.privacy is None else config.privacy.adversary
    encrypted = config.graph.links == "encrypted"
    if name == guarantee.FINAL_MODELS.name or (encrypted and name == guarantee.EAVESDROPPER.name):
        sees = (
            "with links='encrypted' " if encrypted and name == guarantee.EAVESDROPPER.name else ""
        )
        clear = ", or links='clear'" if sees else ""
        raise InputError(
            f"adversary={name!r} {sees}sees the final models alone, and kinds of noise are "
            f"compared against who hears messages; use '{guarantee.WORST_NEIGHBOUR}' or "
            f"'{guarantee.ALL_OTHERS}'{clear}"
        )
    return name


def known_to(name: str, agents: int) -> list[frozenset[int]]:
    """The sets of agents that may be the adversary; none where it knows no noise.

    Raises:
        ValueError: who sees one message alone, or an agent that does not exist.
    """
    if name == guarantee.WORST_NEIGHBOUR:
        return [frozenset({k}) for k in range(agents)]
    if name == guarantee.ALL_OTHERS:
        return [frozenset(range(agents)) - {k} for k in range(agents)]
    adversary = guarantee.parse_adversary(name, agents)
    if adversary.sees is guarantee.Sees.ONE_MESSAGE:
        raise InputError(
            f"adversary={name!r} sees too little to be one; name the eavesdropper, or agents"
        )
    return [adversary.agents] if adversary.agents else []


_GROUPS = (2, 4, 8, 16, 32)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Way:
    """A design, and how it is accounted for.

    Attributes:
        made: the design.
        sampling: of records.
        multiplier: that meets the target.
        amplified: whether the secret draw counts.
        rounds: that the accountant counts.
        how: it is trained.
        noise: root mean square in the models; infinite where the target cannot be met.
    """

    made: Design
    sampling: _Sampling
    multiplier: float
    amplified: bool
    rounds: int
    how: Trained
    noise: float


@dataclass(frozen=True, kw_only=True, slots=True)
class _Sampling:
    """In how many turns a record may be, and how it is drawn in each.

    Attributes:
        groups: b; 1 is plain Poisson.
        rate: in a turn.
        own: whether the run file says so.
    """

    groups: int
    rate: float
    own: bool


def compare(config: RunFile, *, groups: int | None = None) -> Compared:
    """Every kind of noise at the epsilon of the run file, least noise first.

    Args:
        config: the run file; its algorithm does not count, and its noise only where it gives no
            epsilon.
        groups: of records that take turns; by default as the run file has it, plain Poisson
            batches where it says nothing.

    Raises:
        ValueError: what no design is known for: a graph that changes, weights that are not
            symmetric, batches that are not Poisson, another unit than one record, a target against
            who sees the final models alone.
    """
    return _Comparison(config, groups).compared()


class _Comparison:
    """The rows of one run file."""

    def __init__(self, config: RunFile, groups: int | None) -> None:
        self.config, self.rounds = config, config.training.rounds
        self.statement = checked(config)
        graph = graph_of(config)
        if not isinstance(graph, Graph) or not graph.has_links or graph.agents < 2:
            raise InputError(
                f"graph {graph.name!r} must be one graph with links between its agents in all "
                "rounds; a design of noise is made for its weights"
            )
        self.graph, self.weights = graph, graph.weights
        self.step_sizes = step_sizes_of(config)
        needs_data = config.training.sampling_rate is None
        self.sampling_rate = sampling_rate_of(config, data_of(config) if needs_data else None)
        self.own = _own_sampling(config, groups, self.sampling_rate)
        self.replaced = self.statement.adjacency is Adjacency.REPLACE_ONE
        if self.replaced and self.own.groups > 1:
            raise InputError(
                "adjacency='replace-one' has no design for records that take turns, since a record "
                "and its replacement have different ones; use 'add-or-remove-one'"
            )
        self.adversary = target_adversary(config)
        self.known = known_to(self.adversary, graph.agents)
        self.hears = self.adversary == "eavesdropper"
        self.epsilon = self._target()

    def compared(self) -> Compared:
        rows = [self._without_memory(kind) for kind in (Kind.INDEPENDENT, Kind.ACROSS, Kind.PAIRS)]
        if not self.replaced:  # turns of a record and of its replacement are not the same
            found = [self._with_memory(kind) for kind in (Kind.TIME, Kind.PAIRS, Kind.JOINT)]
            rows += [row for row in found if row.memory]  # the others are those above again
        base = rows[0].noise
        ordered = [
            row.model_copy(update={"less_energy": (base / row.noise) ** 2})
            for row in rows
            if math.isfinite(row.noise)
        ]
        ordered = sorted(ordered, key=lambda row: row.noise)
        ordered += [row for row in rows if not math.isfinite(row.noise)]
        return Compared(
            version=1,
            epsilon=self.epsilon,
            delta=self.statement.delta,
            adversary=self.adversary,
            rounds=self.rounds,
            sampling_rate=self.sampling_rate,
            rows=ordered,
            advice=advice(ordered, groups=self.own.groups, epsilon=self.epsilon),
        )

    def _target(self) -> float:
        """The epsilon that every kind has to meet."""
        privacy = self.config.privacy
        if privacy is None:
            raise InputError("[privacy] is missing; a design needs epsilon or noise_multiplier")
        if privacy.epsilon is not None:
            return privacy.epsilon
        if privacy.noise_multiplier is None or privacy.noise_multiplier == 0:
            raise InputError(
                "[privacy] needs epsilon, or a noise_multiplier above 0; kinds of noise are "
                "compared at equal epsilon"
            )
        turns, rate = -(-self.rounds // self.own.groups), self.own.rate
        return equal_epsilon(self.statement, privacy.noise_multiplier, rounds=turns, rate=rate)

    @functools.cache  # noqa: B019 - lives as long as one comparison
    def _multiplier(self, rounds: int, rate: float) -> float:
        return multiplier_for(
            epsilon=self.epsilon,
            delta=self.statement.delta,
            rounds=rounds,
            sampling_rate=rate,
            adjacency=self.statement.adjacency,
            accountant=self.statement.accountant,
        )

    def _without_memory(self, kind: Kind) -> Row:
        made = design(
            kind,
            self.weights,
            rounds=self.rounds,
            bands=1,
            step_sizes=self.step_sizes,
            knowing=self.known,
        )
        turns = -(-self.rounds // self.own.groups)
        multiplier = self._multiplier(turns, self.own.rate)
        return self._row(self._way(made, self.own, multiplier, amplified=True, rounds=turns))

    def _with_memory(self, kind: Kind) -> Row:
        """The best of the samplings that let a record have turns that lie apart."""
        if self.own.groups > 1:
            samplings = [self.own]
        else:
            samplings = [
                _Sampling(groups=b, rate=min(1.0, b * self.sampling_rate), own=False)
                for b in _GROUPS
                if b <= self.rounds and b * self.sampling_rate <= 1.0
            ] or [self.own]
        every = [way for sampling in samplings for way in self._ways(kind, sampling)]
        return self._row(min(every, key=lambda way: way.noise))

    def _ways(self, kind: Kind, sampling: _Sampling) -> list[_Way]:
        b, found = sampling.groups, list[_Way]()
        of = functools.partial(
            design,
            kind,
            self.weights,
            rounds=self.rounds,
            step_sizes=self.step_sizes,
            knowing=self.known,
        )
        if sampling.own or not self.hears:
            multiplier = self._multiplier(1, 1.0)
            few = None if sampling.own else b  # of groups that are only proposed
            made = of(period=b, bands=few, certified=sampling.own)
            found.append(self._way(made, sampling, multiplier, amplified=False, rounds=1))
        if self.hears and (sampling.rate < 1.0 or not sampling.own):
            turns = -(-self.rounds // b)
            multiplier = self._multiplier(turns, sampling.rate)
            for bands in _bands(b, own=sampling.own):
                made = of(bands=bands, certified=False)
                found.append(self._way(made, sampling, multiplier, amplified=True, rounds=turns))
        return found

    def _way(
        self, made: Design, sampling: _Sampling, multiplier: float, *, amplified: bool, rounds: int
    ) -> _Way:
        how = trained(
            made,
            self.graph,
            groups=sampling.groups,
            amplified=amplified,
            knowing=self.known,
            step_sizes=self.step_sizes,
        )
        energy = made.energy if how.energy is None else how.energy
        multiplier *= how.joint
        impossible = made.kind.common_seed and bool(self.known)
        noise = math.inf if impossible else multiplier * math.sqrt(energy)
        return _Way(
            made=made,
            sampling=sampling,
            multiplier=multiplier,
            amplified=amplified,
            rounds=rounds,
            how=how,
            noise=noise,
        )

    def _row(self, way: _Way) -> Row:
        made, sampling, how = way.made, way.sampling, way.how
        # Figures of each adversary; where turns may amplify, the larger one of both counts.
        rate = sampling.rate if way.amplified else 1.0
        base = way.multiplier / how.joint
        outsider, one, rest = self._figures(made, base, rounds=way.rounds, rate=rate)
        if self._may_amplify(way):  # a plan that counts turns one by one takes less noise
            turns = -(-self.rounds // sampling.groups)
            base = self._multiplier(turns, sampling.rate)
            less = self._figures(made, base, rounds=turns, rate=sampling.rate)
            outsider, one, rest = map(max, (outsider, one, rest), less)
        energy = made.energy if how.energy is None else how.energy
        known = made.lower_bound > 0 and (made.kind is not Kind.PAIRS or made.bands > 1)
        return Row(
            kind=_name(made),
            memory=made.bands > 1,
            coefficients=made.bands,
            groups=sampling.groups,
            rate=rate,
            amplified=way.amplified and rate < 1.0,
            own_sampling=sampling.own,
            noise_multiplier=way.multiplier,
            joint_sensitivity=way.how.joint,
            noise=way.noise,
            energy=energy,
            less_energy=0.0,
            gap=max(0.0, energy * how.joint**2 / made.lower_bound - 1.0) if known else None,
            bound_of=_bound_of(made) if known else None,
            outsider=outsider,
            one_agent=one,
            all_others=rest,
            undone_by=undone_by(made.kind),
            algorithm=how.algorithm,
            settings=how.settings,
        )

    def _figures(
        self, made: Design, multiplier: float, *, rounds: int, rate: float
    ) -> tuple[float, float, float]:
        """Epsilon for an outsider, one agent, and all others, at the multiplier of the target."""
        # A secret that an agent knows in part shows to it for longer, unless it hears all links;
        # a record that has one turn only meets no later turn of its own there.
        rates = (rate, 1.0 if rounds > 1 and self._shows_longer(made) else rate, rate)
        outsider, one, rest = (
            math.inf
            if math.isinf(factor)
            else equal_epsilon(self.statement, multiplier / factor, rounds=rounds, rate=drawn)
            for factor, drawn in zip(self._insiders(made), rates, strict=True)
        )
        return outsider, one, rest

    def _shows_longer(self, made: Design) -> bool:
        """Whether a contribution shows to an agent for longer than to who hears all links."""
        hears_all = self.graph.degrees.min() == self.graph.agents
        return made.kind is Kind.PAIRS and made.bands > 1 and not hears_all

    def _may_amplify(self, way: _Way) -> bool:
        """Whether a plan may find turns to amplify for the target, where none is counted here.

        The optimum of all rounds may leave rounds one cycle apart without a coefficient.
        """
        made, sampling = way.made, way.sampling
        if way.amplified or not 1 < made.bands <= sampling.groups + 1 or sampling.rate >= 1.0:
            return False
        return not (self.adversary == guarantee.WORST_NEIGHBOUR and self._shows_longer(made))

    def _insiders(self, made: Design) -> tuple[float, float, float]:
        """By what the noise is weaker for an outsider, one agent, and all others."""
        if made.kind.common_seed:
            return 1.0, math.inf, math.inf
        if made.kind is not Kind.PAIRS:
            return 1.0, 1.0, 1.0
        agents = range(self.graph.agents)
        scaled = pair_exposure(self.weights, ratio=made.ratio, knowing=self.known)
        sets: Sequence[Collection[frozenset[int]]] = (
            [],
            [frozenset({k}) for k in agents],
            [frozenset(agents) - {k} for k in agents],
        )
        exposed = [pair_exposure(self.weights, ratio=made.ratio, knowing=known) for known in sets]
        outsider, one, rest = (math.sqrt(e / scaled) for e in exposed)
        return outsider, one, rest


def _bands(groups: int, *, own: bool) -> list[int]:
    """Numbers of coefficients to try; of groups that are only proposed, as many as these."""
    if not own:
        return [groups]
    halved = itertools.takewhile(lambda p: p < groups, (2, 4, 8, 16, 32, 64))
    return [*halved, groups] if groups > 1 else [1]


def _name(made: Design) -> str:
    if made.kind is Kind.PAIRS and made.bands > 1:
        return "pair secrets over time"
    return str(made.kind)


def _bound_of(made: Design) -> str:
    """What noise the lower bound of a design is one of."""
    if made.of_all:
        return "all noise"
    return "its ratio" if made.kind is Kind.PAIRS else "its kind"


def _own_sampling(config: RunFile, groups: int | None, rate: float) -> _Sampling:
    pattern = config.pattern
    if groups is None and not (pattern.is_every or pattern.kind is PatternKind.CYCLE):
        raise InputError(
            f"participation={pattern.entry} has no design of noise; use {{ cycle = b }} or 'every'"
        )
    if groups is None:
        groups = 1 if pattern.is_every else pattern.number
    within("groups", groups, f"[1, {config.training.rounds}]", ", the rounds of [training]")
    if groups * rate > 1 + 1e-9:
        raise InputError(
            f"groups={groups} at sampling_rate={rate:g} would draw each group {groups * rate:g} "
            f"times; use at most {math.floor(1 / rate + 1e-9)} groups, or a smaller sampling_rate"
        )
    return _Sampling(groups=groups, rate=min(1.0, groups * rate), own=True)
