"""What is judged: the facts of a plan, or of a run with its ledger, its attack and its audit.

Nothing here is phrased, and nothing is decided.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ...privacy.guarantee import SINGLE_MESSAGE, Guarantee, Sees, Unit, parse_adversary
from ...privacy.target import Goal, Target
from ...runs.audit.assumptions import COUNTED
from ...runs.audit.evidence import LastModel, Membership
from ...runs.audit.evidence_schema import Attack, Audit
from ...runs.folder.records import Items
from ...runs.folder.signature import Signed
from ...runs.plan.schema import SecondOpinion
from ...runs.run_file.run_file import RunFile
from ...training.own.names import algorithm_named, known_algorithm
from ..schema import Declared, Report
from ..schema import Remedy as Fix
from .policy import Limit

if TYPE_CHECKING:
    from ...runs.plan.plan import Plan
    from ...training.accounts.traced_twice import TracedTwice

_ANY_NETWORK = 10**9


@dataclass(frozen=True, kw_only=True, slots=True)
class FigureRequirement:
    """What a target or a limit asks of the figure of one adversary.

    Attributes:
        epsilon: the largest that passes; None asks for nothing.
        delta, unit, adjacency: of the statement.
        records: of unit "user", how many records of a user have to be within the figure.
        any_record: whether a figure for the records of one agent alone does not pass.
        goal: what membership tests may achieve at most, in place of epsilon; delta is then 1.
    """

    adversary: str
    epsilon: float | None
    delta: float
    unit: str
    adjacency: str
    any_record: bool
    goal: Goal | None = None
    records: int | None = None

    @classmethod
    def of_limit(cls, limit: Limit) -> list[FigureRequirement]:
        """What a limit of a policy asks: of epsilon, and of membership tests."""
        stated = cls(
            adversary=limit.adversary,
            epsilon=limit.epsilon,
            delta=limit.at_delta,
            unit=limit.unit,
            adjacency=limit.adjacency,
            any_record=True,
            records=limit.records_per_person,
        )
        of_tests = [replace(stated, epsilon=None, delta=1.0, goal=goal) for goal in limit.goals]
        return [*([] if limit.epsilon is None else [stated]), *of_tests]

    @classmethod
    def of_target(cls, claim: Guarantee, epsilon: float | None) -> FigureRequirement:
        """What the target of a run file asks of a claim: its epsilon, of the same statement."""
        return cls(
            adversary=claim.adversary,
            epsilon=epsilon,
            delta=claim.delta,
            unit=claim.unit,
            adjacency=claim.adjacency,
            any_record=False,
            records=claim.records_per_person,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Ran:
    """What became of a run that was trained.

    Attributes:
        folder: as it is named in commands.
        reported: whether privacy.json is there.
        done: different rounds that the ledger names.
        missing: planned rounds that it does not name.
        finished: whether the run came to its end, the planned one or that of its budget.
        stopped: the round and the adversary at which its budget ends it early; None if it does not.
        torn: whether the last line of the ledger is cut off.
        releases, accounted: releases of rounds, and the rounds that the figures cover.
        resumed: how often the run was resumed.
        repeated: (round, how often) of what was released more than once.
        duplicates: items that occur more than once.
        items: how they were made of records; None where they come along or were made by a seed.
        alone: what is known of whether an item is made of one record alone, in words.
        attack, audit, membership, last_model: the evidence, or None.
        fixes: what would have met the target, as privacy.json holds it.
        opinions: by adversary what another library says of its figure.
        traced: by adversary what a second tracer says of its joint sensitivity; empty where none
            was asked.
        signed: whether a key that the policy names signed the folder; None where it names none.
    """

    folder: str
    reported: bool
    done: int
    missing: int
    finished: bool
    stopped: tuple[int, str] | None
    torn: bool
    releases: int
    accounted: int
    resumed: int
    repeated: Sequence[tuple[int, int]]
    duplicates: int
    attack: Attack | None
    audit: Audit | None
    fixes: Sequence[Fix]
    opinions: Mapping[str, SecondOpinion] = field(default_factory=dict)
    membership: Membership | None = None
    last_model: LastModel | None = None
    traced: Mapping[str, TracedTwice] = field(default_factory=dict)
    items: Items | None = None
    alone: str = ""
    signed: Signed | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """What is known of a plan or of a run.

    Attributes:
        claims: of each adversary, worst first, as planned; of a run with the epsilon of its ledger.
        target: the adversary that the run file names, None where it names none.
        limit: the epsilon that it allows, None where no target was set; of a target that is not
            about epsilon the one that it comes to at the noise that was found for it.
        goal: that target, None where it is about epsilon or was not set.
        algorithm, form: what is trained.
        seeded: whether the noise can be repeated.
        victim: the only agent whose records the figures are for; None if they are for any record.
        whose: whose records the figures are for where one person has some at several agents; else
            empty.
        searched: whether the agent that is worst off was searched.
        private: whether the run clips and adds noise at all.
        counterpart: the private algorithm to use where it does neither.
        counted: that the number of all records is public, in a sentence; empty where it need not.
        declared: what the figures stand on where somebody declared them; None of a run of ours.
    """

    claims: Sequence[Guarantee]
    target: str | None
    limit: float | None
    delta: float
    algorithm: str
    form: str
    agents: int
    encrypted: bool
    rounds: int
    noise_multiplier: float
    seeded: bool
    goal: Goal | None = None
    victim: int | None = None
    whose: str = ""
    searched: bool = False
    private: bool = True
    counterpart: str = ""
    ran: Ran | None = None
    counted: str = ""
    declared: Declared | None = None

    def claim(self, adversary: str) -> Guarantee | None:
        """The claim about an adversary, however it is written; None if there is none."""
        asked = adversary_key(adversary)
        return next((one for one in self.claims if adversary_key(one.adversary) == asked), None)

    def audited(self, adversary: str) -> Guarantee | None:
        """The claim that an audited adversary is held against: its own, or as the worst one."""
        asked = adversary_key(adversary)
        searched = (one for one in self.claims if one.worst_adversary is not None)
        worst = (one for one in searched if adversary_key(one.worst_adversary or "") == asked)
        return self.claim(adversary) or next(worst, None)

    @property
    def head(self) -> Guarantee:
        """The claim that a verdict speaks of: the target's, or without one the worst adversary's.

        Raises:
            KeyError: there is no claim about the target's adversary.
        """
        if self.target is None:
            of_views = (claim for claim in self.claims if claim.adversary != SINGLE_MESSAGE.name)
            return next(of_views, self.claims[0])
        found = next((claim for claim in self.claims if claim.adversary == self.target), None)
        if found is None:
            raise KeyError(f"the plan has no row for the target adversary {self.target!r}")
        return found

    def place(self, claim: Guarantee) -> tuple[str, str, int]:
        """Where privacy.json holds what was planned for it."""
        names = [one.adversary for one in self.claims]
        return ("plan", "adversaries", names.index(claim.adversary))


def adversary_key(name: str) -> object:
    """The adversary, however it is written: coalition:9,1 is coalition:1,9.

    >>> adversary_key("coalition:9,1") == adversary_key("coalition:1,9")
    True
    """
    try:
        adversary = parse_adversary(name, _ANY_NETWORK)
    except ValueError:  # "neighbour" and "all-others" ask for a search
        return name
    return (
        (adversary.sees, adversary.agents) if adversary.sees is Sees.OWN_LINKS else adversary.name
    )


def _target(target: Target, rows: Sequence[Guarantee]) -> tuple[float | None, Goal | None]:
    """The epsilon that a target allows, and the target where it is about something else.

    More of the same releases, or less noise, raise every figure; so a run is within a target of
    risk if its epsilon is at most the one that was planned at the noise for that target.
    """
    goal = target.goal
    if goal is None or target.adversary is None:
        return None, None
    if goal.epsilon is not None:
        return float(goal.epsilon), None
    found = (row.epsilon for row in rows if row.adversary == target.adversary)
    return next(found, None), goal


def whose_of(report: Report) -> str:
    """Whose records the figures of a report are for; empty where one record of one agent is."""
    return next((row.whose for row in report.plan.adversaries if row.whose), "")


def about_of(report: Report) -> str:
    """What the figures of a report are for, in words."""
    if not report.plan.adversaries:
        return Unit.RECORD.words
    row = report.plan.adversaries[0]
    return whose_of(report) or row.unit.words_with(row.records_per_person)


def facts_of_plan(config: RunFile, plan: Plan) -> Facts:
    """The facts of a plan, before anything is trained."""
    p = config.privacy
    limit, goal = _target(plan.target, plan.guarantees)
    algorithm = algorithm_named(config.algorithm.name)
    return Facts(
        claims=plan.guarantees,
        target=plan.target.adversary,
        limit=limit,
        goal=goal,
        delta=plan.target.delta,
        algorithm=config.algorithm.name,
        form=config.algorithm.form,
        agents=config.data.agents,
        encrypted=config.graph.links == "encrypted",
        rounds=plan.rounds,
        noise_multiplier=plan.noise_multiplier,
        seeded=config.training.evaluation_noise_seed is not None,
        victim=None if p is None else p.victim,
        whose=plan.said_of.whose,
        searched=(p is None or (p.victim is None and p.holders is None)) and config.data.agents > 1,
        private=p is not None and algorithm.private,
        counterpart=algorithm.private_counterpart or algorithm.name,
    )


def facts_of_report(
    report: Report,
    *,
    folder: str = "DIR",
    reported: bool = True,
    missing: int = 0,
    victim: int | None = None,
) -> Facts:
    """The facts of a run that was trained; its figures are those of the ledger.

    Args:
        missing: planned rounds that the ledger does not name.
        victim: the only agent whose records the figures are for.
    """
    run, plan, ledger = report.run, report.plan, report.ledger
    algorithm = known_algorithm(run.algorithm) if report.declared is None else None
    limit, goal = _target(plan.target, plan.adversaries)
    return Facts(
        claims=[
            row.released(ledger.epsilon.get(row.adversary, math.inf)) for row in plan.adversaries
        ],
        target=plan.target.adversary,
        limit=limit,
        goal=goal,
        delta=plan.target.delta,
        algorithm=run.algorithm,
        form=run.form,
        agents=run.agents,
        encrypted=run.links == "encrypted",
        rounds=run.rounds,
        noise_multiplier=1.0 if run.noise_multiplier is None else float(run.noise_multiplier),
        declared=report.declared,
        seeded=run.evaluation_noise_seed is not None,
        victim=victim,
        whose=whose_of(report),
        private=algorithm is None or algorithm.private,
        counterpart=(algorithm and algorithm.private_counterpart) or run.algorithm,
        counted=next(
            (assumption.text for assumption in report.assumptions if assumption.name == COUNTED), ""
        ),
        ran=Ran(
            folder=folder,
            reported=reported,
            done=run.rounds_done,
            missing=missing,
            finished=run.finished,
            stopped=None if run.stopped is None else (run.stopped.round, run.stopped.adversary),
            torn=ledger.torn,
            releases=ledger.rounds,
            accounted=ledger.rounds_accounted,
            resumed=len(ledger.resumed_after),
            repeated=ledger.repeated,
            duplicates=run.duplicate_records,
            attack=report.attack,
            audit=report.audit,
            fixes=report.fixes,
            opinions=report.second_opinion,
            membership=report.membership,
            last_model=report.last_model,
            items=report.items,
            alone=next(
                (assumption.how for assumption in report.assumptions if assumption.name == "alone"),
                "",
            ),
        ),
    )
