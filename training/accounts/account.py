"""The account of an algorithm: what it costs each adversary, from one call that traces it itself.

    account(init, step, graph="ring:10", rounds=500, sampling_rate=0.01, delta=1e-5, epsilon=2)

Nothing between the step and the figure is the caller's to combine: the step is bound and traced
here at the noise for which the figure is given, and held against a second trace.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...privacy.accounting.request import Accountant, Adjacency, check_multiplier
from ...privacy.batches.patterns import pattern_of
from ...privacy.errors import InputError, InputTypeError
from ...privacy.guarantee import NO_CAP, NOT_A_CLIENT, Statement, Unit
from ...privacy.target import Goal
from ..algorithms.algorithm import Algorithm, Form
from ..algorithms.learning_rates import RateSchedule, read_rates
from ..exposure.guarantees import guarantee
from ..graphs.graph import Topology
from ..graphs.participation import check_missing, number_of_sets
from ..step.perform import perform
from ..step.script import Operation, TooManyOperations
from ..tracing.linear_forms import NoiseSources
from ..tracing.scripts import Basis, trace_round, with_copies
from ..tracing.trace import alike_agents, check_noise
from ..tracing.traced_round import TracedRound
from . import request
from .accounted_run import AccountedRun, check_pattern, is_amplified
from .figures import FigureRequest, adversaries_of, figures_of
from .result import Account, memory_words, unknown_users, warnings_of

# What an account takes, told from counts before it is begun.
#
# A start and the first round are traced, which is a small part of the work. Then it is known
# whether every round has to be traced by itself, what is done in one, and over how many links it
# goes. Seconds are those of one core of some years ago, to a factor of two on 24 of 27 plans that
# were measured; what views take was measured again, on rings of 100 and 10,000 agents. In the other
# three noise comes back in later rounds, whose design takes more and has limits of its own. What is
# refused goes by counts alone, so that it is refused on every
# machine.

_LONG = 5.0  # seconds that are told beforehand
_MOST = 300.0  # seconds of one account
_BASE = 0.3
_BY_ROUND = 6e-3  # seconds for a round of its own
_BY_OPERATION = 0.9e-3  # seconds for an operation of one round, arithmetic included
_BY_AGENT = 0.15e-3  # seconds for an agent of one round
_BY_SUM = 0.6e-3  # seconds for an agent of one round and each sum of what it receives
_BY_AGENT_OF_GRAPH = 0.6e-3  # seconds for an agent of one graph, whose views are looked at
_BY_AGENT_OF_SHARED_NOISE = 25e-3  # seconds for an agent, where linked rows span the graph
_MOST_PRICED = 1000  # of such agents: more take little longer
_BY_LINK = 30e-6  # seconds for a link of one graph
_BY_BATCH = 1e-5  # seconds for a batch that an agent draws, to the power below
_POWER = 2.4
_BASE_MEGABYTES, _MEGABYTES_BY_ROUND, _MEGABYTES_BY_AGENT = 40.0, 0.05, 6e-3
_MEGABYTES_BY_LINK, _MEGABYTES_BY_BATCH = 2e-3, 0.5
_MEGABYTES_BY_PAIR = 2e-6  # of agents: the weights, and which of them are links


class WorkEstimate(NamedTuple):
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

        >>> WorkEstimate(130.0, 200.0, 6000, 40, 1).words
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


def price_of(subject: AccountedRun) -> WorkEstimate:
    """What the account of a subject takes; its start and its first round are traced for it.

    Raises:
        UndeclaredOperation: the step does what no operation declares, or too much in one round.
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
    # Rounds on one graph are alike unless the step reads their number, or public state changes.
    pairs = zip(call.before, call.after, strict=True)
    alike = all(torch.equal(a, b) for a, b in pairs if isinstance(a, Tensor))
    graphs = len({id(of) for of in graph.graphs[: subject.rounds]})
    apart = graphs if alike and not one.record.reads_index else subject.rounds
    # What one round does, by which measured seconds and megabytes are multiplied.
    done = Counter(entry.operation for entry in call.script)
    batches = max(1, done["draw"])
    links = max(of.receivers.size for of in graph.graphs)
    by_agent = _BY_AGENT + _BY_SUM * done["sum_in"] + _BY_BATCH * math.pow(batches - 1, _POWER)
    by_round = _BY_ROUND + _BY_OPERATION * done.total() + by_agent * graph.agents
    by_graph = _BY_LINK * links + _BY_AGENT_OF_GRAPH * graph.agents
    sources = (g.known_to for g in one.groups if isinstance(g, NoiseSources))
    spans = any(len(who) > 1 for known in sources for who in known)
    spread = _BY_AGENT_OF_SHARED_NOISE * min(graph.agents, _MOST_PRICED) if spans else 0.0
    sets = _sets_of(subject, [begun.script, call.script])
    held = _MEGABYTES_BY_ROUND + _MEGABYTES_BY_AGENT * graph.agents
    return WorkEstimate(
        seconds=_BASE + spread + (1 + 2 * sets) * (apart * by_round + graphs * by_graph),
        megabytes=_BASE_MEGABYTES
        + (1 + 2 * sets) * apart * held
        + links * _MEGABYTES_BY_LINK
        + graph.agents**2 * _MEGABYTES_BY_PAIR
        + batches * _MEGABYTES_BY_BATCH,
        apart=apart,
        links=links,
        batches=batches,
        repeats=repeats,
        sets=sets,
    )


def _sets_of(subject: AccountedRun, scripts: Sequence[Sequence[Operation]]) -> int:
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
    return " or ".join(repeat.partition("=")[0] for repeat in repeats) or "what repeats them"


_TARGET = "eavesdropper"  # whose epsilon is met where nobody is named
_LINKS = ("clear", "encrypted")


def account(  # every number that a figure depends on has a name here
    algorithm: Algorithm | str | Callable[..., Any],
    step: Callable[..., Any] | None = None,
    *,
    graph: Topology | str,
    rounds: int,
    sampling_rate: float,
    delta: float,
    epsilon: float | None = None,
    noise_multiplier: float | None = None,
    advantage: float | None = None,
    tpr: float | None = None,
    fpr: float | None = None,
    adversary: str | None = None,
    adversaries: Sequence[str] = (),
    victim: int | None = None,
    links: str = "clear",
    active: object = None,
    missing: int = 0,
    clip_norm: float | None = 1.0,
    learning_rate: float | Sequence[float] | Mapping[str, object] | RateSchedule = 0.01,
    batch_size: float | None = None,
    records: float | None = None,
    sampling: str = "poisson",
    largest_batch: int | str | None = None,
    participation: object = "every",
    form: Form | str = Form.REPAIRED,
    adjacency: Adjacency | str | None = None,
    records_per_person: int | None = None,
    holders: Mapping[int, int] | Sequence[int] = (),
    unit: Unit | str = Unit.RECORD,
    accountant: Accountant | str = Accountant.PLD,
    released: Sequence[str] | None = None,
    **settings: object,
) -> Account:
    """What an algorithm costs each adversary, at a noise multiplier or at the one for a target.

    The step is bound to its numbers and traced at the noise for which the figures are given, and
    traced again at another multiplier, clip norm and batch size: where the two do not agree, its
    noise does not keep its proportion to what is clipped, and there is no account.

    Args:
        algorithm: an `Algorithm`, the name of a registered one, or a start `init(round, ...)`.
        step: `step(state, round, ...)` beside a start; None otherwise. Where numbers of theirs are
            not given, the defaults of the `Algorithm` hold that their module makes of the two.
        graph: a topology, or its name and its number of agents: "ring:10".
        rounds: T, from 1.
        sampling_rate: probability of each record to be in a round's batch, in (0, 1].
        delta: of every epsilon, in (0, 1).
        epsilon: target in nats for `adversary`; the noise is calibrated to it.
        noise_multiplier: instead of epsilon: noise_std on a sum of clipped gradients / clip_norm;
            where a clip_quantile is set noise_std itself, and every figure is infinite.
        advantage: instead of epsilon: the largest true-positive rate minus false-positive rate
            that any membership test of `adversary` may have, in (0, 1).
        tpr: instead of epsilon: the largest true-positive rate of any such test at `fpr`.
        fpr: false-positive rate, in (0, tpr).
        adversary: whose figure meets the target, by default the eavesdropper's.
        adversaries: those to account for besides; by default outsiders and the worst neighbour.
        victim: the agent whose record is at risk; None searches the worst one.
        links: "clear", or "encrypted" where nobody on a link can read what crosses it.
        active: (T, A) public list of who takes part in which round: 1, or 0 for an agent that is
            absent; None where everybody takes part in all. The figure holds for this list.
        missing: how many agents may be missing from any round although nobody knew it when noise
            was made. The figure is that of the worst set of so many, in every round.
        clip_norm: bound on the L2 norm of one example's gradient; None or infinite does not clip.
        learning_rate: step size: of all rounds, a list with one of each, or a schedule such as
            {"schedule": "cosine", "start": 0.1}; a round is traced with its own.
        batch_size: public normaliser of a batch's sum: the expected size of a batch. What a round
            costs does not depend on it, but `Account.bound` needs it.
        records: public number of records of an average agent, where the start draws a batch; of
            each agent, where batches are not Poisson or are cut.
        sampling: "poisson", "fixed", "shuffled" or "cyclic"; all but the first have batch_size
            records of `records`, and sampling_rate is the quotient of the two.
        largest_batch: at which Poisson batches are cut, or "auto" where nearly none is.
        participation: in which rounds one record may take part: "every" (any), {"cycle": b},
            {"apart": b}, {"most": k} or a list of rounds. The sampler keeps a record to its turns.
        form: "repaired", or "published" where the algorithm has both.
        adjacency: how two neighbouring data sets differ; by default a record more or less, and
            at unit="agent" the data of an agent zeroed out.
        records_per_person: states epsilon of so many records of one person besides, by default
            of none; at unit="user" the largest number of records of any user, which is public.
        holders: agents that hold records of one person, one each, or by agent how many it holds;
            every figure is then about all of these together, and not about one record.
        unit: whose data are hidden: "record"; "user" for all records of one user, up to
            records_per_person of them at one agent, each drawn on its own unless the step draws
            users; or "agent" for all data of one agent, whose contributions have to be clipped as
            whole vectors.
        accountant: how rounds are added up.
        released: of a start and a step, the fields of the state that leave after the last round,
            "x" among them; all where None. An `Algorithm` declares its own.
        settings: the algorithm's own hyper-parameters by name.

    Raises:
        ValueError: a value out of range, an unknown name, or not exactly one of epsilon,
            noise_multiplier, advantage and tpr.
        TypeError: something else than an algorithm, a topology or a number.
        UnsupportedView: no noise meets the target, the view cannot be accounted for, or the
            step's noise does not keep its proportion to what is clipped.
        UndeclaredOperation: the step does what no operation declares.

    >>> known = account("dpdl", graph="ring:10", rounds=1000, sampling_rate=0.02, delta=1e-5,
    ...     noise_multiplier=2.512)
    >>> round(known["neighbour"].epsilon, 2), round(known.epsilon("neighbour", rounds=100), 2)
    (2.07, 0.66)
    >>> round(account("dp-dpsgd", graph="ring:10", rounds=500, sampling_rate=0.01, delta=1e-5,
    ...     epsilon=2).noise_multiplier, 3)
    0.852

    All data of one agent, of which the mean gradient is clipped:

    >>> round(account("whisper", graph="ring:10", rounds=5000, sampling_rate=0.1, delta=1e-5,
    ...     noise_multiplier=100, clip="batch", unit="agent", adjacency="replace-one",
    ...     adversaries=["eavesdropper"]).epsilon("eavesdropper"), 3)
    6.573

    Where one agent may be missing from any round, noise that is shared lacks a part; an agent that
    adds noise enough of its own needs no others:

    >>> round(account("dp-dpsgd", graph="ring:5", rounds=500, sampling_rate=0.01, delta=1e-5,
    ...     noise_multiplier=1, missing=1, adversaries=["eavesdropper"]).epsilon("eavesdropper"), 3)
    1.326

    All records of one user, of whom nobody has more than five:

    >>> round(account("dp-dpsgd", graph="ring:10", rounds=1000, sampling_rate=0.02, delta=1e-5,
    ...     noise_multiplier=2, unit="user", records_per_person=5,
    ...     adversaries=["eavesdropper"]).epsilon("eavesdropper"), 4)
    8.4253
    """
    # Names and kinds are refused before anything is traced.
    chosen = request.algorithm_of(algorithm, step, settings=settings, released=released)
    if links not in _LINKS:
        raise InputError(f"links={links!r} must be 'clear' or 'encrypted'")
    goal = request.goal_of(epsilon, noise_multiplier, advantage, tpr, fpr)
    if adversary is not None and goal is None:
        raise InputError(
            f"adversary={adversary!r} has no effect without epsilon, advantage or tpr, the target "
            "that is its own; name it in adversaries"
        )
    if form not in tuple(Form):
        raise InputError(f"form={form!r} must be 'repaired' or 'published'")
    if isinstance(adversaries, str) or not isinstance(adversaries, Sequence):
        raise InputTypeError(
            f"adversaries={adversaries!r:.40} must be a list of names, such as ['eavesdropper']"
        )
    for name in (*adversaries, *(() if adversary is None else (adversary,))):
        if not isinstance(name, str):
            raise InputTypeError(f"adversary {name!r:.40} must be a name, such as 'eavesdropper'")
    if victim is not None and (isinstance(victim, bool) or not isinstance(victim, int)):
        raise InputTypeError(f"victim={victim!r:.40} must be the number of an agent, such as 0")
    # Whose data are hidden: a user needs a public cap.
    whose = Unit(unit)
    if whose is Unit.CLIENT:
        raise InputError(f"unit={unit!r:.40} is not supported here: {NOT_A_CLIENT}")
    if whose is Unit.USER and records_per_person is None:
        raise InputError(NO_CAP)
    # The run as its figures see it, before the noise is known.
    topology = request.topology_of(graph, active, rounds=rounds)
    subject = AccountedRun(
        algorithm=chosen.algorithm,
        settings=chosen.settings,
        form=Form(form),
        graph=topology,
        rounds=rounds,
        sampling_rate=sampling_rate,
        clip_norm=None if clip_norm is None or clip_norm == float("inf") else clip_norm,
        learning_rate=read_rates(learning_rate),
        batch_size=batch_size,
        records=records,
        from_records=request.from_records_of(
            records, batch_size, sampling_rate, chosen.algorithm.needs_records
        ),
        drawn=request.drawn_of(
            sampling,
            agents=topology.agents,
            records=records,
            batch_size=batch_size,
            rate=sampling_rate,
            largest=largest_batch,
        ),
        pattern=pattern_of(participation),
        missing=check_missing(missing, topology),
    )
    return account_of(
        subject,
        statement=Statement(
            delta=delta,
            adjacency=whose.usual_adjacency if adjacency is None else Adjacency(adjacency),
            unit=whose,
            accountant=Accountant(accountant),
            records_per_person=1 if records_per_person is None else records_per_person,
            holders=request.held_by(holders),
        ),
        at=noise_multiplier if goal is None else goal,
        adversary=_TARGET if adversary is None and goal is not None else adversary,
        adversaries=adversaries,
        victim=victim,
        encrypted=links == "encrypted",
    )


def account_of(
    subject: AccountedRun,
    *,
    statement: Statement,
    at: Goal | float | None,
    adversary: str | None = None,
    adversaries: Sequence[str] = (),
    victim: int | None = None,
    encrypted: bool = False,
    told: Callable[[WorkEstimate], None] = WorkEstimate.check,
) -> Account:
    """The account of a run whose numbers were read; see `account`.

    Args:
        subject: the run before its noise is known.
        statement: what every epsilon is said of.
        at: target of `adversary`, or the noise multiplier.
        adversary: accounted for in any case; the goal is its own.
        adversaries: accounted for besides; the usual ones where none are given.
        encrypted: the eavesdropper cannot read links and sees the released final models alone.
        told: given beforehand what the account takes, which by default it refuses above some
            minutes; what was released cannot change.

    Raises:
        ValueError: likewise, or the price is refused.
    """
    goal, noise_multiplier = (at, None) if isinstance(at, Goal) else (None, at)
    # What the numbers alone decide, before anything is traced.
    if noise_multiplier != 0:
        request.check_drawn(subject, statement)
    check_pattern(subject, statement)
    if goal is not None:
        goal.check_accountant(statement.accountant)
    if noise_multiplier is not None:
        check_multiplier(noise_multiplier)
        check_noise(noise_multiplier)
        noise_multiplier = float(noise_multiplier)
    by_quantile = getattr(subject.settings, "clip_quantile", None) is not None
    if subject.clip_norm is None and noise_multiplier != 0 and (goal or not by_quantile):
        raise InputError(
            "clip_norm=None or inf does not clip, so no noise bounds what a record gives away; set "
            "a finite clip_norm, or noise_multiplier=0 for a run without protection"
        )
    if statement.holders and victim is not None:
        raise InputError(
            f"victim={victim} is about the records of one agent, and holders about a person with "
            "records at several; give one of them"
        )
    request.check_with_missing(subject, statement)
    # Whom the account is about, and what it takes, estimated from one traced round.
    names = adversaries_of(
        adversaries,
        target=adversary,
        agents=subject.graph.agents,
        encrypted=encrypted,
        holders=statement.holders,
    )
    subject = request.named_in(subject, names, victim=victim)
    told(price_of(subject))
    # The noise, given or calibrated, and each adversary's joint sensitivity.
    figures = figures_of(
        subject,
        FigureRequest(
            names,
            victim,
            encrypted,
            statement.holders,
            statement.unit,
            records=statement.at_once,
            amplified=is_amplified(statement),
        ),
        statement=statement,
        noise_multiplier=noise_multiplier,
        goal=goal,
        target=adversary,
    )
    # The largest epsilon first; differences of rounding do not decide the order.
    every = [
        guarantee(name, of, statement=statement, noise_multiplier=figures.noise_multiplier)
        for name, of in figures.joint_sensitivities.items()
    ]
    every.sort(key=lambda g: (-round(g.epsilon, 9), -round(g.joint_sensitivity, 9)))
    target = None if goal is None else adversary
    memory = memory_words(
        figures.traces,
        figures.joint_sensitivities,
        target=target,
        noise_multiplier=figures.noise_multiplier,
    )
    return Account(
        said_of=statement,
        noise_multiplier=figures.noise_multiplier,
        target=target,
        goal=goal,
        guarantees=MappingProxyType({g.adversary: g for g in every}),
        joint_sensitivities=MappingProxyType(figures.joint_sensitivities),
        message_kinds=tuple(figures.message_kinds),
        scripts=figures.traces.scripts.resting_on(
            Basis(
                sampling_rate=subject.sampling_rate,
                pattern=subject.pattern,
                drawn=subject.drawn,
                most_of_user=statement.at_once if statement.unit is Unit.USER else None,
                disjoint=not statement.holders,
            ),
            finite=any(math.isfinite(g.epsilon) for g in every),
        ),
        warnings=(
            *warnings_of(
                every,
                subject,
                target=target,
                encrypted=encrypted,
                counted=subject.counted(statement) if figures.noise_multiplier else None,
            ),
            *memory,
            *unknown_users(statement),
            *statement.cautions,
        ),
        memory=memory,
        subject=subject,
        encrypted=encrypted,
    )
