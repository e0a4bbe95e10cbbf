"""The first half page of a report: what a figure means for people, what to do next, and who asks.

Everything here is said again below, with what it rests on. Nothing here is computed.
"""

from __future__ import annotations

import datetime as dt
import enum
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ...privacy.accounting.request import Adjacency
from ...privacy.accounting.risk import Risk as Curve
from ...privacy.accounting.risk import composed_risk, risk_of_mu
from ...privacy.errors import InputError
from ...privacy.guarantee import Statement, Status, Unit
from ...privacy.releases.ledger import Spent
from ...runs.folder import folder as run_folder
from ...runs.folder.records import Stopped
from ...training.exposure.events import accounted, counted, spent_releases
from ...training.exposure.sensitivity import JointSensitivity, Release
from ...training.graphs.graph import Topology
from ...training.models.metrics import Metrics
from ..judgement.facts import Facts
from ..judgement.findings import Figure, Sentence, fill
from ..judgement.wording import Outcome, Verdict, who
from ..references import kind_of
from ..schema import About, Hits, Odds, Report, Risk, Run, Utility

if TYPE_CHECKING:
    from ...runs.plan.plan import Plan
    from ...runs.run_file.build import Built
    from ...runs.run_file.run_file import RunFile

# What each adversary's figure means for one record, as odds that a reader can picture.
#
#     hits at a    1 - f(a), f the trade-off curve of all rounds together (`privacy.risk`)
#     right        1 - Bayes risk: how often the best guess whether the record was in is right,
#     where
#                  a coin is right 50 times in 100
#
# Odds of a proven row are rounded up, those of a heuristic one down: it is known to be at least so
# bad.

# False positives, and of how many records that were not in: 1 in 1000, 1 in 100, 10 in 100.
_RATES = ((1, 1000), (1, 100), (10, 100))


class Source(enum.StrEnum):
    """Where odds come from."""

    CURVE = "trade-off curve"
    NOTHING = "nothing protects"
    NO_BOUND = "no bound"


def made_now() -> str:
    """When a report is made, in UTC."""
    return dt.datetime.now(dt.UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def risk_by_adversary(plan: Plan, spent: Spent, *, epsilon: Mapping[str, float]) -> dict[str, Risk]:
    """The odds of each adversary after everything that was accounted for."""
    known: dict[tuple[tuple[Release, ...], Status], Risk] = {}
    found = {}
    for name, exposure in plan.exposures.items():
        guarantee = plan.guarantee(name)
        status = guarantee.released(epsilon[name]).status
        released = accounted(exposure, spent.numbers, torn=spent.torn)
        key = (released.releases, status)  # equal releases mean the same
        if key not in known:
            known[key] = risk_of(
                released,
                noise_multiplier=plan.noise_multiplier,
                epsilon=epsilon[name],
                statement=plan.said_of,
                status=status,
            )
        found[name] = known[key]
    return found


def odds(probability: float, of: int, *, up: bool = True) -> float:
    """A probability as so many of `of`, with two digits, rounded to the stated side.

    >>> odds(0.13801, 100), odds(0.0291, 100), odds(0.13801, 100, up=False), odds(1.0, 1000)
    (14.0, 3.0, 13.0, 1000.0)
    """
    if not 0.0 < probability < 1.0:
        return float(of) if probability >= 1.0 else 0.0
    exact = Decimal(probability) * of
    step = Decimal(1).scaleb(max(exact.adjusted() - 1, -12))
    # A probability that came out a rounding error beside a round number is that number.
    near = exact.quantize(step)
    if abs(near - exact) < exact * Decimal("1e-9"):
        return float(near)
    rounding = ROUND_CEILING if up else ROUND_FLOOR
    return min(float(exact.quantize(step, rounding=rounding)), float(of))


def risk_of(
    exposure: JointSensitivity,
    *,
    noise_multiplier: float,
    epsilon: float,
    statement: Statement,
    status: Status,
) -> Risk:
    """What a figure means: odds of an upper bound are rounded up, of another one down."""
    if math.isinf(epsilon):
        unknown = status is Status.CANNOT_BE_EXPRESSED
        source = Source.NO_BOUND if unknown else Source.NOTHING
        return _told(source, dict.fromkeys(_RATES, 1.0), advantage=1.0, mu=math.inf, up=True)
    found = _curve(exposure, noise_multiplier=noise_multiplier, adjacency=statement.adjacency)
    hits = {rate: hit for rate, (_, hit) in zip(_RATES, found.true_positive_rates, strict=True)}
    return _told(Source.CURVE, hits, advantage=found.advantage, mu=found.mu, up=status.is_bound)


def _curve(exposure: JointSensitivity, *, noise_multiplier: float, adjacency: Adjacency) -> Curve:
    """Of everything released together."""
    releases = spent_releases(exposure.releases)
    rates = [a / of for a, of in _RATES]
    if not releases:
        return risk_of_mu(0.0, false_positive_rates=rates)
    events = counted(releases, noise_multiplier, adjacency)
    return composed_risk(events, adjacency=adjacency, false_positive_rates=rates)


def _told(
    source: Source,
    hits: Mapping[tuple[int, int], float],
    *,
    advantage: float,
    mu: float | None,
    up: bool,
) -> Risk:
    return Risk(
        source=str(source),
        relation="at most" if up else "at least",
        advantage=advantage,
        mu=mu,
        # The prior is a coin, so the best guess is right with probability (1 + advantage) / 2.
        right=Odds(times=odds(0.5 * (1.0 + advantage), 100, up=up), of=100),
        hits=[
            Hits(false_positives=wrong, of=of, hit_rate=hit, hits=odds(hit, of, up=up))
            for (wrong, of), hit in hits.items()
        ],
    )


_IN_100 = 1  # the entry of a row's hits whose odds are in 100
_USED = {
    Unit.RECORD: "people whose record was used",
    Unit.USER: "people whose records were used",
    Unit.AGENT: "agents whose data were used",
    Unit.CLIENT: "clients whose data were used",
}
_NOTHING = "Nothing limits how well {who} tells {of} from others."
_UNKNOWN = "No limit is known to how well {who} tells {of} from others."
_FOUND = (
    "Of {hundred} {of}, {who} finds {relation} {hits} while accusing {alarms} of {hundred} others "
    "wrongly; a blind guess finds {alarms}."
)


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportSummary:
    """What the first half page says.

    Attributes:
        meaning: the figure in words of people.
        steps: what to do next, most urgent first.
        covered: whose records the figure covers, and whether a person may have more.
    """

    meaning: Sentence
    steps: tuple[Sentence, ...]
    covered: tuple[Sentence, ...]
    about: About


def summary_of(report: Report, facts: Facts, found: Verdict) -> ReportSummary:
    """What the first half page of a report says."""
    return ReportSummary(
        meaning=_meaning(report, facts, found),
        steps=tuple(_steps(report, facts, found)),
        covered=tuple(_covered(report, facts)),
        about=report.about or About(),
    )


def _meaning(report: Report, facts: Facts, found: Verdict) -> Sentence:
    claim = facts.head
    risk, place = report.risk[claim.adversary], ("risk", claim.adversary, "hits", _IN_100)
    words: dict[str, str | Sentence | Figure] = {"who": who(claim, facts), "of": _USED[claim.unit]}
    if risk.source in (Source.NOTHING, Source.NO_BOUND):
        template = _NOTHING if risk.source == Source.NOTHING else _UNKNOWN
    else:
        template, hits = _FOUND, risk.hits[_IN_100]
        words |= {
            "hundred": Figure("whole", hits.of, (*place, "of")),
            "relation": risk.relation,
            "hits": Figure("given", hits.hits, (*place, "hits")),
            "alarms": Figure("whole", hits.false_positives, (*place, "false_positives")),
        }
    said = fill(template, **words)
    if facts.declared is not None:
        held = "were true, this would be so: " if found.doubt else "is true: "
        return (f"If the list of releases {held}", *said)
    return ("If the proof held, this would be so: ", *said) if found.doubt else said


def _steps(report: Report, facts: Facts, found: Verdict) -> Iterator[Sentence]:
    yield from found.actions
    # What was not measured, and what a reader has to decide.
    head, about = facts.head, report.about or About()
    held = about.records_per_person
    if held is not None and held > _most_covered(report):
        yield fill(
            "The run file says that one person has up to {held} records, and no figure of this "
            "report covers so many: set `records_per_person = {held}` in [privacy], and train "
            "again.",
            held=Figure("whole", held, ("about", "records_per_person")),
        )
    if report.declared is not None:
        if report.declared.checks is None:
            yield ("Run `overhear audit-log DIR` on logs of a recorder that kept rounds: it checks "
                   "them by an oracle of gradients.",)  # fmt: skip
        if report.audit is None:
            yield ("Audit the training by `audit_training`, and keep what it finds beside the logs "
                   "by `keep_audit`.",)  # fmt: skip
    elif report.attack is None:
        yield ("Run `overhear attack DIR`: it shows what can be rebuilt from the messages.",)
    if report.audit is None and report.declared is None:
        yield ("Run `overhear audit DIR`: it checks that what ran is what was accounted for.",)
    others = "; section 3 lists the others" * (len(report.plan.adversaries) > 1)
    yield (f"Decide whether {who(head, facts)} is the adversary that matters here{others}.",)
    gaps = sum(assumption.status == "gap" for assumption in report.assumptions)
    if gaps:
        yield (f"Read the {'gap' if gaps == 1 else f'{gaps} gaps'} of section 9, and decide "
               f"whether you accept {'it' if gaps == 1 else 'them'}.",)  # fmt: skip
    if found.outcome is Outcome.MET:
        yield ("Sign in section 11, and keep `privacy.json` with what you signed.",)
    elif found.outcome is Outcome.NOT_MET:
        yield ("Until then, do not sign this report as a target that is met.",)


def _most_covered(report: Report) -> int:
    """How many records of one person some figure of the report is about."""
    [*_, most] = sorted(
        [1]
        + [row.records_per_person or 1 for row in report.plan.adversaries]
        + [one.records for row in report.plan.adversaries for one in row.group or ()]
        + [sum(one.records for one in row.holders or ()) for row in report.plan.adversaries]
        + [2**62 for row in report.plan.adversaries if row.unit == "agent"]
    )
    return most


def _covered(report: Report, facts: Facts) -> Iterator[Sentence]:
    """Whose records the figure is about, and what is known of people with more."""
    head, place = facts.head, facts.place(facts.head)
    # Whose records the figure is about.
    row = report.plan.adversaries[place[-1]]
    if row.holders:
        count = sum(holder.records for holder in row.holders)
        yield (f"the figure covers {count} records of one person, at {len(row.holders)} agents",)
    elif head.unit is Unit.RECORD:
        yield ("the figure covers one record of a person",)
    elif head.unit is Unit.USER:
        yield ("the figure covers a person with up to ", Figure(
            "whole", row.records_per_person or 1,
            (*place, "records_per_person"),
        ), " records at one agent")  # fmt: skip
    else:
        yield (f"the figure covers all data of one {head.unit}",)
    # Of a run that released more than was planned, figures of the plan are too small.
    relation = "at most" if head.is_bound else "at least"
    relation = relation if row.epsilon == head.epsilon else "more than"
    for number, one in enumerate(row.group or ()):
        at = (*place, "group", number)
        yield (
            "for ", Figure("whole", one.records, (*at, "records")),
            f" records of a person ε is {relation} ",
            Figure(kind_of(upper=head.is_bound), float(one.epsilon), (*at, "epsilon")),
        )  # fmt: skip
    # What is known of people with more records.
    held = None if report.about is None else report.about.records_per_person
    if held is not None:
        yield (
            "the run file says that a person has at most ",
            Figure("whole", held, ("about", "records_per_person")),
        )
    elif head.unit is Unit.RECORD and facts.declared is not None:
        yield ("how many records one person has is not declared",)
    elif head.unit not in (Unit.AGENT, Unit.CLIENT):
        yield ("the run file does not say how many records one person has",)


# What a run was: its objects in numbers, the network that a report draws, and what it learned.

MOST_LINKS = 1000
_TOLERANCE = 1e-6  # of the same arithmetic on another machine


class Traffic(NamedTuple):
    """Whether anything goes through a server, and whether anything crosses the graph's links."""

    server: bool
    links: bool


class Course(NamedTuple):
    """How far a run came, and where its budget ends it if that is before the planned end."""

    done: int
    finished: bool
    stopped: Stopped | None


def course(folder: Path, plan: Plan, *, spent: Spent, metrics: Sequence[Metrics]) -> Course:
    """How far the run of a folder came, by its ledger, its evaluations and its stopped.json.

    Raises:
        ValueError: stopped.json cannot be read, or is not that of this run.
    """
    stopped = _stopped(folder / run_folder.STOPPED, plan, spent)
    end = plan.rounds if stopped is None else stopped.round
    named = {*spent.numbers, *(() if spent.torn_round is None else (spent.torn_round,))}
    # Rounds past the end were released, and discarded with their models.
    done = sum(0 < number <= end for number in named)
    return Course(
        done=done,
        finished=done == end and bool(metrics) and metrics[-1].round == end,
        stopped=stopped,
    )


def _stopped(path: Path, plan: Plan, spent: Spent) -> Stopped | None:
    if not path.exists():
        return None
    stopped = Stopped.read(path)
    target = plan.target
    of_run = (
        target.goal is not None
        and (stopped.rounds, stopped.delta, stopped.adversary)
        == (plan.rounds, target.delta, target.adversary)
        and stopped.round <= plan.rounds
        and spent.resumed_after  # without a resumption the planned rounds are within the target
        and math.isclose(
            stopped.epsilon, plan.guarantee(stopped.adversary).epsilon, rel_tol=_TOLERANCE
        )
        # A target of another figure than epsilon is written down as the epsilon that is planned.
        and stopped.target == (stopped.epsilon if target.epsilon is None else target.epsilon)
    )
    if not of_run:
        raise InputError(
            f"{path} does not fit the plan and the ledger of this run; the folder's files do not "
            "belong together"
        )
    return stopped


def run_facts(
    config: RunFile, built: Built, plan: Plan, *, came: Course, sent: Traffic, device: str
) -> Run:
    """The run of a report; of a large network the links of one agent alone.

    That agent is the one whose records are most at risk: for the target adversary, or for the
    worst one where there is no target.
    """
    graph = built.setting.graph
    target = plan.target.adversary
    at_risk = plan.guarantee(target) if target else plan.guarantees[0]
    links = _links(graph, victim=at_risk.victim)
    run = Run(
        name=f"{config.algorithm.name}-{graph.name}-{config.data.name}",
        algorithm=config.algorithm.name,
        form=config.algorithm.form,
        graph=graph.name,
        agents=graph.agents,
        edges=links.shown,
        edges_in_all=links.in_all,
        one_way=links.one_way,
        graphs_in_turn=len(set(graph.graphs)) if plan.participation else len(graph.graphs),
        server=sent.server,
        links_used=sent.links,
        links=config.graph.links,
        data=config.data.name,
        records=len(built.data.targets),
        duplicate_records=duplicates(built),
        model=config.model.name,
        parameters=sum(p.numel() for p in built.setting.model.parameters()),
        rounds=plan.rounds,
        rounds_done=came.done,
        finished=came.finished,
        stopped=came.stopped,
        sampling_rate=plan.sampling_rate,
        clip_norm=math.inf if built.clip_norm is None else built.clip_norm,
        noise_multiplier=plan.noise_multiplier,
        evaluation_noise_seed=config.training.evaluation_noise_seed,
        device=device,
    )
    told = {
        "missing": plan.missing and plan.missing.words,
        "joined_within": plan.joined_within,
        "participation": plan.participation and plan.participation.words,
    }
    return run.model_copy(update={key: one for key, one in told.items() if one is not None})


class _Links(NamedTuple):
    """Pairs that are joined and drawn, how many there are, and those joined one way alone."""

    shown: list[tuple[int, int]]
    in_all: int
    one_way: list[tuple[int, int]]


def _links(graph: Topology, *, victim: int) -> _Links:
    """The links of a graph; of one that is too large to draw those of the victim."""
    arcs = {(int(j), int(i)) for j, i in graph.links}
    pairs = sorted({(min(p), max(p)) for p in arcs})
    shown = pairs
    if len(pairs) > MOST_LINKS:
        shown = [p for p in pairs if victim in p][:MOST_LINKS]
    both = [arc for j, i in shown for arc in ((j, i), (i, j)) if arc in arcs]
    return _Links(shown, len(pairs), [(j, i) for j, i in both if (i, j) not in arcs])


def traffic(built: Built, plan: Plan) -> Traffic:
    """Between whom the start and the first rounds send anything, as traced."""
    from ...training.step.values import SERVER
    from ...training.tracing.trace import trace

    bound = built.bound(plan.noise_multiplier)
    graph = built.setting.graph
    period = min(len(graph.graphs), built.rounds)
    traces = trace(bound.init, bound.step, graph=graph, rounds=period, noise_multiplier=None)
    ends = {
        (sender == SERVER, receiver == SERVER)
        for one in (traces.start, *(one for one, _ in traces.rounds))
        for message in one.messages
        for sender, receiver in zip(
            message.senders[message.links[:, 0]].tolist(), message.links[:, 1].tolist(), strict=True
        )
    }
    return Traffic(server=any(a or b for a, b in ends), links=(False, False) in ends)


def duplicates(built: Built) -> int:
    """Records that are equal to another one, over all shards."""
    from ...training.data.store import digests_of

    every = np.concatenate(
        [digests_of(shard, targets=False) for shard in built.setting.shards], axis=None
    )
    return len(every) - len(np.unique(every))


def utility(metrics: Sequence[Metrics]) -> Utility:
    """What was learned: accuracy, or error, of the mean model and of the agents' own ones.

    Raises:
        ValueError: some lack what others have.
    """
    # Every line has the figures that one of them has.
    for one, mean in (("accuracy", "consensus_accuracy"), ("rmse", "consensus_rmse")):
        if len({getattr(m, name) in (None, [], ()) for m in metrics for name in (one, mean)}) > 1:
            raise InputError(
                f"some lines of metrics.jsonl have no {one} or no {mean}, and others have; put the "
                "file back as it was written"
            )
    accuracy = [m.accuracy for m in metrics if m.accuracy is not None]
    error = [m.rmse for m in metrics if m.rmse is not None]
    return Utility(
        rounds=[m.round for m in metrics],
        consensus_accuracy=[
            m.consensus_accuracy for m in metrics if m.consensus_accuracy is not None
        ],
        consensus_loss=[m.consensus_loss for m in metrics],
        constant_accuracy=metrics[-1].constant_accuracy if metrics else None,
        constant_rmse=metrics[-1].constant_rmse if metrics else None,
        agent_accuracy_min=[min(each) for each in accuracy],
        agent_accuracy_median=[statistics.median(each) for each in accuracy],
        agent_accuracy_max=[max(each) for each in accuracy],
        agent_accuracy_last=list(accuracy[-1]) if accuracy else [],
        consensus_distance=[m.consensus_distance for m in metrics],
        consensus_rmse=[m.consensus_rmse for m in metrics if m.consensus_rmse is not None],
        consensus_r2=[m.consensus_r2 for m in metrics] if error else [],
        agent_rmse_min=[min(each) for each in error],
        agent_rmse_median=[statistics.median(each) for each in error],
        agent_rmse_max=[max(each) for each in error],
    )
