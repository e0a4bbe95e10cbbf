"""What an account takes, told from counts before it is begun.

A start and the first round are traced, which is a small part of the work. Then it is known whether
every round has to be traced by itself, what is done in one, and over how many links it goes.
Seconds are those of one core of some years ago, to a factor of two on 24 of 27 plans that were
measured. In the other three noise comes back in later rounds, whose design takes more and has
limits of its own. What is refused goes by counts alone, so that it is refused on every machine.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...privacy.errors import InputError
from ..graphs.missing import number_of_sets
from ..step.missing import alike_agents
from ..step.perform import perform
from ..step.script import Entry, TooManyOperations
from ..tracing.scripts import trace_round, with_copies
from ..tracing.traced_round import TracedRound
from .subject import Subject

__all__ = ["Price", "price_of"]

_LONG = 5.0  # seconds that are told beforehand
_MOST = 300.0  # seconds of one account
_BASE = 0.3
_BY_ROUND = 6e-3  # seconds for a round of its own
_BY_OPERATION = 0.9e-3  # seconds for an operation of one round, arithmetic included
_BY_AGENT = 0.15e-3  # seconds for an agent of one round
_BY_SUM = 0.6e-3  # seconds for an agent of one round and each sum of what it receives
_BY_AGENT_OF_GRAPH = 1.5e-3  # seconds for an agent of one more graph, in which few stand alike
_BY_LINK = 30e-6  # seconds for a link of one graph
_BY_BATCH = 1e-5  # seconds for a batch that an agent draws, to the power below
_POWER = 2.4
_BASE_MEGABYTES, _MEGABYTES_BY_ROUND, _MEGABYTES_BY_AGENT = 40.0, 0.05, 6e-3
_MEGABYTES_BY_LINK, _MEGABYTES_BY_BATCH = 2e-3, 0.5


class Price(NamedTuple):
    """What an account takes.

    Attributes:
        seconds: of one core, to a factor of a few.
        megabytes: of memory, likewise.
        apart: how many rounds have to be traced, each by itself.
        links: over which messages of a round go.
        batches: that an agent draws in a round.
        repeats: the algorithm's own numbers that may repeat what it does, as "name=number".
        sets: of missing agents, for each of which all of it is done once more.
    """

    seconds: float
    megabytes: float
    apart: int
    links: int
    batches: int
    repeats: tuple[str, ...] = ()
    sets: int = 0

    @property
    def words(self) -> str | None:
        """What is told of it beforehand; None where it is short.

        >>> Price(130.0, 200.0, 6000, 40, 1).words
        'The account takes about 2 minutes and 200 MB: 6000 rounds differ, each with 40 links'
        """
        if self.seconds <= _LONG:
            return None
        return f"The account takes about {self._size}: {self._why}"

    def check(self) -> None:
        """Refuse an account that takes too long.

        Raises:
            ValueError: it is estimated at more than five minutes; with what would lower it.
        """
        if self.seconds <= _MOST:
            return
        share = _MOST / self.seconds
        if self.sets:
            remedy = f"lower missing or agents, so that they are {int(self.sets * share)} or less"
        elif self.apart > 1:
            remedy = (
                f"lower rounds, to {int(self.apart * share)} or less, or choose numbers and a "
                "graph that do not change from round to round"
            )
        elif self.batches > 1:
            least = max(2, int(self.batches * share ** (1 / _POWER)))
            remedy = f"lower {_either(self.repeats)} until an agent draws {least} or less"
        else:
            remedy = "lower agents, or join fewer of them"
        raise InputError(
            f"the account would take about {self._size}, and at most {_MOST / 60:.0f} minutes are "
            f"spent on one: {self._why}; {remedy}"
        )

    @property
    def _size(self) -> str:
        minutes = self.seconds / 60.0
        time = f"{minutes:.0f} minutes" if minutes >= 2 else f"{self.seconds:.0f} seconds"
        return f"{time} and {self.megabytes:.0f} MB"

    @property
    def _why(self) -> str:
        several = f"{self.apart} rounds differ, each with" if self.apart > 1 else "a round has"
        if self.sets:
            several = f"{self.sets} sets of missing agents are looked at, and {several}"
        drawn = f", in which an agent draws {self.batches} batches" if self.batches > 1 else ""
        return f"{several} {self.links} links{drawn}"


def price_of(subject: Subject) -> Price:
    """What the account of a subject takes; its start and its first round are traced for it.

    Raises:
        UndeclaredOperation: the step does what no operation declares, or too much in one round.

    >>> from overhear.training.accounts.request import algorithm_of, graph_of
    >>> from overhear.training.algorithms.algorithm import Form
    >>> known = algorithm_of("dp-netfleet", settings={"local_steps": 9})
    >>> price_of(Subject(algorithm=known.algorithm, settings=known.settings, form=Form.REPAIRED,
    ...     graph=graph_of("ring:10"), rounds=50, sampling_rate=0.1, clip_norm=1.0,
    ...     learning_rate=0.1))[2:]
    (1, 30, 9, ('local_steps=9',), 0)
    """
    graph, repeats = subject.graph, _repeats(subject.settings)
    try:
        bound = subject.reference_bound(1.0)
        begun = perform(with_copies(bound.init), TracedRound(graph.at(0), index=0), number=0)
        one, call = trace_round(with_copies(bound.step), begun.state, graph=graph.at(1), index=1)
    except TooManyOperations as error:
        raise InputError(
            f"{subject.algorithm.name} with {', '.join(repeats) or 'these numbers'} does more than "
            f"{error.most} operations in a round, the most that can be accounted for with "
            f"agents={graph.agents}: lower {_either((*repeats, 'agents'))}"
        ) from error
    pairs = zip(call.before, call.after, strict=True)
    alike = all(torch.equal(a, b) for a, b in pairs if isinstance(a, Tensor))
    graphs = len({id(of) for of in graph.graphs[: subject.rounds]})
    apart = graphs if alike and not one.record.reads_index else subject.rounds
    done = Counter(entry.operation for entry in call.script)
    batches = max(1, done["draw"])
    links = max(of.receivers.size for of in graph.graphs)
    by_agent = _BY_AGENT + _BY_SUM * done["sum_in"] + _BY_BATCH * math.pow(batches - 1, _POWER)
    by_round = _BY_ROUND + _BY_OPERATION * done.total() + by_agent * graph.agents
    by_graph = _BY_LINK * links + (_BY_AGENT_OF_GRAPH * graph.agents if graphs > 1 else 0.0)
    sets = _sets_of(subject, [begun.script, call.script])
    held = _MEGABYTES_BY_ROUND + _MEGABYTES_BY_AGENT * graph.agents
    return Price(
        seconds=_BASE + (1 + 2 * sets) * (apart * by_round + graphs * by_graph),
        megabytes=_BASE_MEGABYTES
        + (1 + 2 * sets) * apart * held
        + links * _MEGABYTES_BY_LINK
        + batches * _MEGABYTES_BY_BATCH,
        apart=apart,
        links=links,
        batches=batches,
        repeats=repeats,
        sets=sets,
    )


def _sets_of(subject: Subject, scripts: Sequence[Sequence[Entry]]) -> int:
    """How many sets of missing agents there are to look at."""
    if not subject.missing:
        return 0
    alike = alike_agents(scripts, subject.same)
    return number_of_sets(subject.graph, subject.missing, alike=alike, victim=subject.victim)


def _repeats(settings: Any) -> tuple[str, ...]:
    """The whole numbers above 1 among the hyper-parameters."""
    names = [field.name for field in dataclasses.fields(settings)]
    found = {name: getattr(settings, name) for name in names}
    return tuple(f"{name}={n}" for name, n in found.items() if type(n) is int and n > 1)


def _either(repeats: Sequence[str]) -> str:
    return " or ".join(one.partition("=")[0] for one in repeats) or "what repeats them"
