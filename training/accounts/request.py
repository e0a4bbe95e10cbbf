"""What the caller of `account` gives, read and refused where it is wrong."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ...privacy.accounting.request import Accountant, check_count
from ...privacy.batches.sampling import Drawing, Scheme, drawings
from ...privacy.errors import InputError, InputTypeError, check_real, did_you_mean, within
from ...privacy.guarantee import ALL_OTHERS, WORST_NEIGHBOUR, Statement, parse_adversary
from ...privacy.target import Goal
from ..algorithms.algorithm import Algorithm, choices
from ..exposure.events import check_scheme
from ..graphs.graph import Graph, GraphSequence, ScheduledGraph, Topology
from ..graphs.participation import check_active, scheduled
from ..graphs.topologies import build_graph
from ..own.names import algorithm_named
from ..step.final_release import released_fields
from .accounted_run import AccountedRun

# What `account` gives a start and a step by name, and nothing else may.
_GIVEN = ("form", "learning_rate", "clip_norm", "noise_std", "batch_size", "records")
_OWN_NAMES = (
    *("graph", "rounds", "sampling_rate", "delta", "epsilon", "noise_multiplier"),
    *("sampling", "largest_batch"),
)
_NAMED = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY


class Chosen(NamedTuple):
    """An algorithm with its own hyper-parameters."""

    algorithm: Algorithm
    settings: Any


def algorithm_of(
    algorithm: object,
    step: object = None,
    *,
    settings: Mapping[str, object],
    released: object = None,
) -> Chosen:
    """The algorithm that is meant, and its hyper-parameters.

    Args:
        algorithm: an `Algorithm`, the name of a registered one, "module:NAME", or the start of a
            pair.
        step: of a pair; None otherwise.
        settings: hyper-parameters by name.
        released: fields of the state that leave after the last round, of a pair.

    Raises:
        ValueError: an unknown name or hyper-parameter, or one that is missing.
        TypeError: something else than an algorithm, or a start without a step.
    """
    if isinstance(algorithm, str):
        algorithm = algorithm_named(algorithm)
    if isinstance(algorithm, Algorithm):
        if step is not None:
            raise InputTypeError(
                f"algorithm {algorithm.name!r} has a step of its own; leave the second one out"
            )
        for what, function, first in (("init", algorithm.init, 1), ("step", algorithm.step, 2)):
            _check_parameters(what, function, first=first)
        if released is not None:
            raise InputTypeError(
                f"algorithm {algorithm.name!r} declares which fields it releases; leave "
                f"released={released!r:.40} out, or declare it there"
            )
        return Chosen(algorithm, _settings_of(algorithm, settings))
    # A start and a step, or what lacks the other one.
    if callable(algorithm) and callable(step):
        return _pair(algorithm, step, settings, released)
    if callable(algorithm):
        raise InputTypeError(
            "a start without a step: give both, account(init, step, ...), or an Algorithm"
        )
    raise InputTypeError(
        f"algorithm of type {type(algorithm).__name__} must be an Algorithm, the name of a "
        "registered one, or a start and a step: account(init, step, ...)"
    )


def topology_of(graph: object, active: object, *, rounds: int) -> Topology:
    """The topology, with a list of who takes part where there is one.

    Args:
        graph: as for `graph_of`.
        active: (T, A) of 1 and 0; None where everybody takes part in every round.
        rounds: T.

    Raises:
        ValueError: a list of other rounds or agents.
    """
    found = graph_of(graph)
    if active is None:
        return found
    count = check_count(rounds)
    table = check_active(active, agents=found.agents, rounds=count)
    return scheduled(found, table, told="public list")


def graph_of(graph: object) -> Topology:
    """A topology as it is, or by name and number of agents: "ring:10".

    Raises:
        ValueError: an unknown name, or no number of agents.
        TypeError: neither a topology nor a name.
    """
    if isinstance(graph, Graph | GraphSequence | ScheduledGraph):
        return graph
    if not isinstance(graph, str):
        raise InputTypeError(
            f"graph of type {type(graph).__name__} must be a topology, or its name and the number "
            'of agents, such as "ring:10"'
        )
    name, _, agents = graph.partition(":")
    if not (agents.isascii() and agents.isdecimal() and len(agents) <= 9):
        raise InputError(
            f'graph={graph!r} must name a topology and the number of agents, such as "ring:10"; '
            "for one with options give build_graph(...)"
        )
    return build_graph(name, int(agents))


def _pair(
    init: Callable[..., Any],
    step: Callable[..., Any],
    settings: Mapping[str, object],
    released: object,
) -> Chosen:
    """An algorithm of a start and a step, whose hyper-parameters are those that are given."""
    # What start and step take besides what every run gives them.
    taken: dict[str, inspect.Parameter] = {}
    starts: dict[str, inspect.Parameter] = {}
    for what, function, first in (("init", init, 1), ("step", step, 2)):
        own = _check_parameters(what, function, first=first)
        taken |= {name: p for name, p in own.items() if name not in _GIVEN}
        if what == "init":
            starts = own
        elif "records" in own and "records" not in starts:
            raise InputError(
                "the step takes 'records', which only a start that draws a batch is given; rename "
                "it, or divide by batch_size"
            )
    # What is lacking has a default in the module's own Algorithm, or is asked for.
    lacking = [
        name
        for name, parameter in taken.items()
        if parameter.default is inspect.Parameter.empty and name not in settings
    ]
    whole = _owner(init, step)
    if lacking and whole is not None and released is None:
        return Chosen(whole, _settings_of(whole, settings))
    _check_known(settings, taken, whose="the step")
    if lacking:
        name = lacking[0]
        remedy = (
            f"account uses {name!r} itself, so rename it"
            if name in _OWN_NAMES
            else f"give {name}=..."
        )
        raise InputError(f"the step takes {name!r}, which has no default; {remedy}")
    # The settings of the pair are those that were given.
    kind = dataclasses.make_dataclass(
        "Settings", [(name, object) for name in settings], frozen=True, kw_only=True
    )
    name = getattr(step, "__name__", None) or type(step).__name__
    model = "x" if whole is None else whole.model
    fields = released_fields(released, model=model)
    if fields is None and whole is not None:
        fields = whole.released
    made = Algorithm(name=name, init=init, step=step, settings=kind, model=model, released=fields)
    return Chosen(made, kind(**settings))


def _owner(init: object, step: object) -> Algorithm | None:
    """The one algorithm of the step's own module that is made of these two; its defaults hold."""
    module = sys.modules.get(getattr(step, "__module__", None) or "")
    found = (
        [
            value
            for value in vars(module).values()
            if isinstance(value, Algorithm) and value.init is init and value.step is step
        ]
        if module is not None
        else []
    )
    return found[0] if len(found) == 1 else None


def _settings_of(algorithm: Algorithm, settings: Mapping[str, object]) -> Any:
    """The hyper-parameters of a registered algorithm, or of one like it."""
    own = {field.name: field for field in dataclasses.fields(algorithm.settings)}
    _check_known(settings, own, whose=f"algorithm {algorithm.name!r}")
    for name, field in own.items():
        needed = field.default is dataclasses.MISSING
        if needed and field.default_factory is dataclasses.MISSING and name not in settings:
            raise InputError(f"algorithm {algorithm.name!r} needs {name}; give {name}=...")
    given = dict(settings)
    for name, choice in choices(algorithm).items():
        if name in given:
            try:
                given[name] = choice(given[name])
            except ValueError:
                raise InputError(
                    f"{name}={given[name]!r:.60} of algorithm {algorithm.name!r} must be one of "
                    f"{', '.join(repr(str(one)) for one in choice)}"
                ) from None
    try:
        return algorithm.settings(**given)
    except TypeError as error:  # a comparison of what is no number
        raise InputTypeError(
            f"a hyper-parameter of algorithm {algorithm.name!r} is of the wrong type: {error}"
        ) from None


def _check_known(settings: Mapping[str, object], own: Iterable[str], *, whose: str) -> None:
    known = list(own)
    for name in settings:
        if name in known:
            continue
        if name == "noise_std":
            raise InputError(
                "noise_std follows from noise_multiplier and clip_norm; give noise_multiplier, "
                "which is noise_std / clip_norm"
            )
        others = (*known, *_GIVEN, *_OWN_NAMES, "accountant", "adjacency", "adversary", "victim")
        has = f"its hyper-parameters are {', '.join(known)}" if known else "it has none"
        raise InputError(f"{name} is unknown to {whose}{did_you_mean(name, others) or '; ' + has}")


def _check_parameters(
    what: str, function: Callable[..., Any], *, first: int
) -> dict[str, inspect.Parameter]:
    """What a start or a step takes by name, after the round, and the state of a step.

    Raises:
        TypeError: parameters that have no name, or too few.
        ValueError: numbers that were bound to it before, and would be replaced.
    """
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        raise InputTypeError(f"{what} has no signature to read; give a Python function") from None
    free = [p for p in parameters if p.kind in (_NAMED[0], inspect.Parameter.POSITIONAL_ONLY)]
    unnamed = [p for p in parameters[first:] if p.kind not in _NAMED]
    if len(free) < first or unnamed:
        wanted = "init(round, ...)" if first == 1 else "step(state, round, ...)"
        found = f"{what}{inspect.signature(function)}"
        raise InputTypeError(
            f"{found} must be {wanted}, and what follows is taken by name, without * or **"
        )
    bound = function.keywords if isinstance(function, functools.partial) else {}
    for name in _GIVEN:
        if name in bound:
            raise InputError(
                f"{name}={bound[name]!r} is bound to {what} already, and account binds it itself; "
                f"give the plain function, and "
                f"{'noise_multiplier' if name == 'noise_std' else name} to account"
            )
    return {p.name: p for p in parameters[first:]}


def held_by(holders: Mapping[int, int] | Sequence[int]) -> tuple[tuple[int, int], ...]:
    """(agent, records) of each holder."""
    if isinstance(holders, Mapping):
        return tuple(holders.items())
    if isinstance(holders, str) or not isinstance(holders, Sequence):
        raise InputTypeError(
            f"holders={holders!r:.40} must be a list of agents, such as [0, 1], or the records of "
            "each, such as {0: 3, 1: 2}"
        )
    return tuple((agent, 1) for agent in holders)


def from_records_of(
    records: float | None, batch_size: float | None, sampling_rate: float, needed: bool
) -> tuple[str, ...]:
    """What comes from a number of records that was given to `account`, in words.

    Args:
        records: of an average agent; None tells nothing.
        batch_size: the normaliser; None where the start has that of the records.
        sampling_rate: of Poisson batches.
        needed: whether the start is given the number.

    >>> from_records_of(100, 10, 0.1, needed=False), from_records_of(100, 16, 0.1, needed=False)
    (('the sampling rate',), ())
    """
    if records is None:
        return ()
    meets = batch_size is not None and math.isclose(
        sampling_rate * records, batch_size, rel_tol=1e-6
    )
    return (*["the sampling rate"] * meets, *["the start"] * needed)


def goal_of(
    epsilon: float | None,
    noise_multiplier: float | None,
    advantage: float | None,
    tpr: float | None,
    fpr: float | None,
) -> Goal | None:
    """The target, None where the noise is given."""
    aims = {"epsilon": epsilon, "advantage": advantage, "tpr": tpr}
    aims["noise_multiplier"] = noise_multiplier
    given = [name for name, value in aims.items() if value is not None]
    if len(given) != 1:
        found = " and ".join(given) if len(given) > 1 else "none"
        raise InputError(
            "give epsilon, noise_multiplier, advantage or tpr (with fpr), exactly one of them; "
            f"{found} given"
        )
    if noise_multiplier is None:
        return Goal(epsilon=epsilon, advantage=advantage, tpr=tpr, fpr=fpr)
    if fpr is not None:
        raise InputError(f"fpr={fpr!r:.40} has no effect without tpr; leave it out")
    return None


def drawn_of(
    sampling: str,
    *,
    agents: int,
    records: float | None,
    batch_size: float | None,
    rate: float,
    largest: int | str | None,
) -> tuple[Drawing, ...] | None:
    """How agents of equally many records draw their batches."""
    if sampling == Scheme.POISSON and largest is None:
        return None
    check_real("sampling_rate", rate)
    for name, value in (("records", records), ("batch_size", batch_size)):
        if value is not None:
            check_real(name, value)
    if records is None or not math.isfinite(records) or records != int(records) or records < 1:
        raise InputError(
            f"records={records} must be the public number of records of each agent, an integer, "
            f"with {'largest_batch' if sampling == Scheme.POISSON else f'sampling={sampling!r}'}"
        )
    within("sampling_rate", rate, "(0, 1]", "did you mean batch_size?")
    found = drawings(
        sampling,
        [int(records)] * agents,
        batch_size=batch_size,
        sampling_rate=rate,
        largest_batch=largest,
    )
    # A rate beside batches of one size is their share of the records.
    if found and sampling != Scheme.POISSON and not math.isclose(found[0].rate, rate, rel_tol=1e-9):
        raise InputError(
            f"sampling_rate={rate:g} must be batch_size / records = {found[0].rate:.12g} with "
            f"sampling={sampling!r}"
        )
    return found


def check_drawn(subject: AccountedRun, statement: Statement) -> None:
    """Refuse what no bound is known of where batches are not Poisson."""
    if subject.drawn is None:
        return
    scheme = subject.drawn[0].scheme
    if statement.holders:
        raise InputError(
            f"holders has no bound with batches drawn '{scheme}': how batches of several holders "
            "go together is known of Poisson ones alone; leave holders out, or draw Poisson ones"
        )
    if scheme.in_epochs and isinstance(subject.graph, ScheduledGraph):
        raise InputError(
            f"batches drawn '{scheme}' have no bound where agents are absent from rounds, since "
            "which rounds make an epoch then differs from agent to agent; draw Poisson batches, "
            "or leave participation out"
        )
    check_scheme(scheme, statement.adjacency, records=statement.records_per_person)
    if statement.accountant is not Accountant.PLD:
        raise InputError(
            f"accountant='{statement.accountant}' adds up Poisson batches alone, not "
            f"'{scheme}' ones; use accountant='pld'"
        )


def check_with_missing(subject: AccountedRun, statement: Statement) -> None:
    """Refuse what nothing is proven of where agents may be missing that nobody knew of."""
    if not subject.missing:
        return
    if statement.holders:
        raise InputError(
            f"missing={subject.missing} has no bound with holders: which of a person's agents are "
            "missing is not distinguished; leave one of the two out"
        )
    if subject.drawn is not None and subject.drawn[0].scheme.in_epochs:
        raise InputError(
            f"missing={subject.missing} has no bound with batches drawn "
            f"'{subject.drawn[0].scheme}', since which rounds make an epoch then differs from "
            "agent to agent; draw Poisson batches, or leave missing out"
        )


def named_in(subject: AccountedRun, names: Sequence[str], *, victim: int | None) -> AccountedRun:
    """The subject with the agents that are named, where agents may be missing.

    Raises:
        ValueError: an adversary or a victim that does not exist.
    """
    agents = subject.graph.agents
    if not subject.missing:
        return subject
    if victim is not None and not 0 <= victim < agents:
        raise InputError(f"victim={victim} must lie in 0..{agents - 1}")
    single = [name for name in names if name not in (WORST_NEIGHBOUR, ALL_OTHERS)]
    named = frozenset[int]().union(*(parse_adversary(name, agents).agents for name in single))
    return dataclasses.replace(subject, victim=victim, named=named)
