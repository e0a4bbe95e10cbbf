"""What would turn a finding, with its figure: fewer rounds, more noise, encrypted links, a repair.

Every figure is that of the accountant of the run itself. What cannot be planned, or whose figure is
no better, is not named.
"""

from __future__ import annotations

import enum
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from ...privacy.accounting.request import Accountant
from ...privacy.errors import InputError
from ...privacy.formats.codec import finite
from ...privacy.guarantee import EAVESDROPPER, SINGLE_MESSAGE, Guarantee, Status
from ...privacy.releases.ledger import Spent
from ...privacy.target import Goal
from ...runs.folder.released import epsilon_of
from ...runs.plan.plan import Plan, local_steps_words, make_plan
from ...runs.run_file.build import graph_of
from ...runs.run_file.run_file import RunFile
from ...training.accounts.summary import reached
from ...training.exposure.events import accounted
from ...training.exposure.guarantees import calibrated_multiplier, run_epsilon
from ...training.exposure.sensitivity import JointSensitivity
from ...training.graphs.graph import Topology
from ..schema import Remedy as Fix
from ..schema import RoundsWithin
from .facts import Facts, FigureRequirement, facts_of_plan
from .findings import Action, Finding, Kind, Remedy, fixed, hiding, judge, text_of
from .wording import action_sentence, closest_sentence, listed, same_sentence, sentence

_NO_BETTER = 1.0 - 1e-6  # of the figure at hand: what differs by rounding fixes nothing


def rounds_within(plan: Plan, spent: Spent, *, limit: float) -> dict[str, RoundsWithin]:
    """For each adversary how many rounds a limit allows, where the run has more.

    Args:
        spent: the ledger; rounds that it does not name are taken in order.
        limit: epsilon, at the plan's delta.

    Returns:
        By adversary, where finite and over the limit: the rounds, and what so many cost.
    """
    released = [number for number in spent.numbers if number > 0]
    numbers = released + [n for n in range(1, plan.rounds + 1) if n > len(released)]
    starts = [0] * spent.numbers.count(0)  # a start that was released twice costs twice
    known: dict[object, RoundsWithin | None] = {}  # equal releases cost the same
    found = {}
    for name, exposure in plan.exposures.items():
        key = (exposure.releases, exposure.each)
        if key not in known:

            def cost(rounds: int, exposure: JointSensitivity = exposure) -> float:
                return epsilon_of(plan, exposure, rounds=[*starts, *numbers[:rounds]])

            known[key] = _last_within(cost, len(numbers), limit)
        if (entry := known[key]) is not None:
            found[name] = entry
    return found


def fixes_of_run(
    config: RunFile, plan: Plan, spent: Spent, *, graph: Topology, epsilon: Mapping[str, float]
) -> list[Fix]:
    """What would have met the target of a run, against its adversary or the worst one without it.

    Returns:
        One for each fix with the figure that it leads to; none where the target is met.
    """
    facts = facts_of_plan(config, plan)
    adversary = facts.head.adversary
    if adversary == "single-message" and facts.target is None:
        return []
    return fixes(
        config,
        plan,
        spent,
        adversary=adversary,
        limit=facts.limit,
        epsilon=epsilon[adversary],
        graph=graph,
    )


def limit_fixes(
    config: RunFile, spent: Spent
) -> Callable[[Guarantee, FigureRequirement], Sequence[Fix]]:
    """What would meet a limit of a policy, for a run that is over it.

    The fixes are those of a new run that makes the statement which the limit asks for: at its
    adjacency, at no larger delta, for any record, with secret noise.

    Returns:
        A function of the run's claim and of what is asked; it plans, so it may take seconds.
    """

    @functools.cache  # planned once, and only where a figure does not pass
    def as_run() -> tuple[Topology, float]:
        graph = graph_of(config)
        return graph, make_plan(config, graph=graph).noise_multiplier

    def found(claim: Guarantee, asked: FigureRequirement) -> Sequence[Fix]:
        p = config.privacy
        # The statement that the limit asks for, planned as a new run.
        if p is None or asked.unit != claim.unit or asked.records != claim.records_per_person:
            return ()
        try:
            graph, noise = as_run()
            stated = p.with_noise(
                noise,
                adversary=claim.adversary,
                delta=min(p.delta, asked.delta),
                adjacency=asked.adjacency,
                victim=None,
                holders=None,
                records_held=None,
            )
            # With secret noise, at the multiplier of the run.
            secret = config.training.model_copy(update={"evaluation_noise_seed": None})
            anew = config.model_copy(update={"privacy": stated, "training": secret})
            plan = make_plan(anew, graph=graph)
            released = accounted(plan.exposures[claim.adversary], spent.numbers, torn=spent.torn)
            return fixes(
                anew,
                plan,
                spent,
                adversary=claim.adversary,
                limit=asked.epsilon,
                epsilon=epsilon_of(plan, released),
                graph=graph,
            )
        except InputError:  # what cannot be planned or accounted for is not named
            return ()

    return found


def limit_risks(config: RunFile, spent: Spent) -> Callable[[Guarantee, Goal], float]:
    """What membership tests come to after everything that a run released.

    Returns:
        A function of the run's claim and of what is asked; it plans, so it may take seconds.
    """

    @functools.cache  # planned once, and only where a policy asks
    def planned() -> Plan:
        return make_plan(config, begun=True, notice=lambda _: None)

    def found(claim: Guarantee, goal: Goal) -> float:
        plan = planned()
        if plan.said_of.accountant is not Accountant.PLD:
            plan = replace(plan, said_of=replace(plan.said_of, accountant=Accountant.PLD))
        return reached(
            accounted(plan.exposures[claim.adversary], spent.numbers, torn=spent.torn),
            statement=plan.said_of,
            noise_multiplier=plan.noise_multiplier,
            goal=goal,
        )

    return found


def fixes(
    config: RunFile,
    plan: Plan,
    spent: Spent,
    *,
    adversary: str,
    limit: float | None,
    epsilon: float,
    graph: Topology,
    anew: bool = True,
) -> list[Fix]:
    """What would bring one adversary's figure within a limit, or make it a proven one.

    Args:
        limit: epsilon, at the plan's delta; None where there is none.
        anew: whether to leave out a number of rounds that, planned anew, is over the limit; else
            the caller plans it.
    """
    # A proven figure within its limit needs nothing.
    guarantee = plan.guarantee(adversary)
    finite = guarantee.status is Status.PROVEN and math.isfinite(epsilon)
    if finite and (limit is None or epsilon <= limit):
        return []
    found: list[Fix] = []
    # Fewer rounds or more noise, for a finite figure that is over the limit.
    if finite and limit is not None:
        within = rounds_within(plan, spent, limit=limit).get(adversary)
        if within is not None and within.rounds > 0:
            again = with_rounds(config, plan, within.rounds, graph=graph) if anew else None
            if not anew or (again is not None and again.guarantee(adversary).epsilon <= limit):
                found.append(
                    Fix(
                        action="rounds",
                        rounds=within.rounds,
                        epsilon=within.epsilon,
                        status=Status.PROVEN,
                        adversary=adversary,
                    )
                )
        found += _noise(plan, spent, adversary, limit)
    if config.algorithm.form == "published":
        algorithm = config.algorithm.model_copy(update={"form": "repaired"})
        repaired = config.model_copy(update={"algorithm": algorithm})
        # A repaired run is another claim: of a heuristic figure its own is the first proven one.
        found += _planned("repair", repaired, plan, adversary, graph)
    if config.graph.links == "clear" and adversary == "eavesdropper":
        links = config.graph.model_copy(update={"links": "encrypted"})
        hidden = config.model_copy(update={"graph": links})
        found += [
            fix
            for fix in _planned("encrypt", hidden, plan, adversary, graph)
            if float(fix.epsilon) < guarantee.epsilon * _NO_BETTER
        ]
    return found


def as_planned(plan: Plan) -> Spent:
    """The ledger of a run that goes as planned."""
    numbers = range(plan.rounds + 1)
    return Spent(header={}, entries=[{"round": n} for n in numbers], torn=False)


def with_rounds(config: RunFile, plan: Plan, rounds: int, *, graph: Topology) -> Plan | None:
    """The plan of so many rounds with the same noise; None where it cannot be planned.

    A schedule or a correlation of noise may depend on the number of rounds, so that a shorter run
    is no part of the longer one.
    """
    training = config.training.model_copy(update={"rounds": rounds})
    shorter = config.model_copy(update={"training": training})
    return _same_noise(shorter, plan, None, graph)


def _same_noise(config: RunFile, plan: Plan, adversary: str | None, graph: Topology) -> Plan | None:
    p = config.privacy
    if p is None:
        return None
    privacy_table = p.with_noise(plan.noise_multiplier, adversary=adversary or p.adversary)
    try:
        return make_plan(config.model_copy(update={"privacy": privacy_table}), graph=graph)
    except InputError:  # what cannot be planned or accounted for is not named
        return None


def _planned(
    action: Literal["encrypt", "repair"],
    config: RunFile,
    plan: Plan,
    adversary: str,
    graph: Topology,
) -> list[Fix]:
    """The adversary's figure in another run with the same noise, where it is proven and finite."""
    found = _same_noise(config, plan, adversary, graph) if plan.noise_multiplier > 0 else None
    if found is None:
        return []
    guarantee = found.guarantee(adversary)
    if guarantee.status is not Status.PROVEN or math.isinf(guarantee.epsilon):
        return []
    epsilon = guarantee.epsilon
    return [Fix(action=action, epsilon=epsilon, status=Status.PROVEN, adversary=adversary)]


def _noise(plan: Plan, spent: Spent, adversary: str, limit: float) -> list[Fix]:
    """The noise multiplier that would have covered everything that was released."""
    released = accounted(plan.exposures[adversary], spent.numbers, torn=spent.torn)
    try:
        multiplier = calibrated_multiplier(released, epsilon=limit, statement=plan.said_of)
    except InputError:  # what cannot be planned or accounted for is not named
        return []
    spends = epsilon_of(replace(plan, noise_multiplier=multiplier), released)
    return [
        Fix(
            action="noise",
            noise_multiplier=multiplier,
            epsilon=spends,
            status=Status.PROVEN,
            adversary=adversary,
        )
    ]


def _last_within(cost: Callable[[int], float], most: int, limit: float) -> RoundsWithin | None:
    """The most rounds whose cost is within the limit; None if all are, or if no bound is finite."""
    try:
        if not limit < cost(most) < math.inf:
            return None
        low, high = 0, most  # within at low, over at high; cost grows with rounds
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if cost(middle) <= limit else (low, middle)
        spends = cost(low)
    except InputError:  # what cannot be planned or accounted for is not named
        return None
    return RoundsWithin(rounds=low, epsilon=spends) if spends <= limit else None


# What a plan means: who could learn what about whose record, and what would fix it.


_KINDS_OF_ROUND = 16  # each is composed by itself: more make every figure take a second or so
_MANY_AGENTS = 1_000  # of which a plan takes 10 s and more
_ROUNDING = 1e-9  # of a figure: less than what the noise is rounded up by
_LEAKS = (Kind.UNPROTECTED, Kind.INEXPRESSIBLE, Kind.HEURISTIC, Kind.OVER)


class What(enum.StrEnum):
    """What a sentence is about."""

    LEAK = "leak"
    WITHIN = "within"
    REPAIR = "repair"
    ENCRYPT = "encrypt"
    NOISE = "noise"
    ROUNDS = "rounds"
    ADVERSARY = "adversary"
    ALGORITHM = "algorithm"
    SEED = "seed"
    LOCAL_STEPS = "local-steps"
    SKIPPED = "skipped"
    NO_TARGET = "no-target"


_LAST_RESORT: Mapping[Kind, Action] = {
    Kind.UNPROTECTED: Action.HIDE,
    Kind.INEXPRESSIBLE: Action.EXPRESS,
    Kind.HEURISTIC: Action.PROVE,
}
_ABOUT: Mapping[Action, What] = {  # of the others What has the same word
    Action.EAVESDROPPER: What.ADVERSARY,
    Action.ADD_NOISE: What.NOISE,
    **dict.fromkeys((Action.PRIVATE, Action.HIDE, Action.PROVE, Action.EXPRESS), What.ALGORITHM),
    Action.ACCOUNTANT: What.ALGORITHM,
    **dict.fromkeys((Action.ROUNDS_DEPEND, Action.ONE_RELEASE, Action.TRY), What.SKIPPED),
    **dict.fromkeys((Action.SET_TARGET, Action.ADD_PRIVACY), What.NO_TARGET),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Advice:
    """One sentence or two about a plan.

    Attributes:
        what: what it is about.
        words: for a reader who knows neither the mathematics nor the code.
        epsilon: the figure that it names, or that the remedy leads to; None where there is none.

    Raises:
        ValueError: a negative or undefined epsilon.
    """

    what: What
    words: str
    epsilon: float | None = None

    def __post_init__(self) -> None:
        """Check the figure."""
        if self.epsilon is not None and not self.epsilon >= 0:
            raise InputError(f"epsilon={self.epsilon} must be a number >= 0, or None for no figure")

    def to_json(self) -> dict[str, str | float | None]:
        """An entry of the plan's "advice" in JSON; infinite is the string "inf"."""
        held = {"what": str(self.what), "words": self.words, "epsilon": self.epsilon}
        return dict(finite(held))


class _Case(NamedTuple):
    """A finding about the worst adversary, and the others for which the same is so."""

    finding: Finding
    claim: Guarantee
    others: tuple[Guarantee, ...]


def advise(config: RunFile, plan: Plan) -> list[Advice]:
    """What leaks in a planned run, what would fix it, and how to set a target if there is none.

    Returns:
        First what leaks, one entry a reason, or one that nothing exceeds the target; then the
        remedies that apply, each with its epsilon at the plan's delta, for one record.
    """
    # A known seed outweighs every figure, which is judged as if it were secret.
    seeded = config.training.evaluation_noise_seed is not None
    if seeded:
        config, plan = _without_seed(config, plan)
    facts = facts_of_plan(config, plan)
    cases = _cases(facts)
    advices = [_leak(case, facts) for case in cases]
    remedies = [
        entry
        for case in cases
        for remedy in _remedies(config, plan, facts, case)
        if (entry := _told(remedy, case.finding, facts)) is not None
    ]
    if seeded:
        leak, remedy = _seeded(facts)
        advices.insert(0, leak)
        remedies.insert(0, remedy)
    elif not cases:
        advices.append(_most(facts))
    # Where noise is missing, what adds it sets a target.
    if facts.limit is None and not (cases and hiding(facts) is Action.ADD_NOISE):
        action = Action.ADD_PRIVACY if config.privacy is None else Action.SET_TARGET
        remedies.append(_told(Remedy(action=action), Finding(kind=Kind.NO_TARGET), facts))
    # Noise in each local step, where that would cost less.
    worst = next(iter(_asked(facts)), None)
    steps = None if worst is None or seeded else local_steps_words(plan, worst.adversary)
    if steps is not None:
        remedies.append(Advice(what=What.LOCAL_STEPS, words=steps[0], epsilon=steps[1]))
    return [*advices, *dict.fromkeys(remedies)]


def _told(remedy: Remedy, finding: Finding, facts: Facts) -> Advice:
    words = text_of(action_sentence(remedy, finding, facts))
    return Advice(
        what=_ABOUT.get(remedy.action) or What(remedy.action), words=words, epsilon=remedy.epsilon
    )


def _without_seed(config: RunFile, plan: Plan) -> tuple[RunFile, Plan]:
    """The same run and plan with secret noise: the figures hold with the status of the trace."""
    training = config.training.model_copy(update={"evaluation_noise_seed": None})
    statements = [_secret(g, plan) if g.status.is_finite else g for g in plan.guarantees]
    return config.model_copy(update={"training": training}), replace(plan, guarantees=statements)


def _secret(g: Guarantee, plan: Plan) -> Guarantee:
    """The statement about noise that nobody knows."""
    exposure = plan.exposures[g.adversary]
    status = exposure.status if exposure.status.is_finite else g.status
    return replace(g, status=status, because=exposure.because)


def _asked(facts: Facts) -> list[Guarantee]:
    """The claims about adversaries that exist, worst first."""
    return [claim for claim in facts.claims if claim.adversary != SINGLE_MESSAGE.name]


def _seeded(facts: Facts) -> tuple[Advice, Advice]:
    """That the noise can be repeated, and what leaving the seed out gives."""
    worst = next(iter(_asked(facts)), None)
    finding = Finding(kind=Kind.SEEDED, figure=math.inf, claim=worst)
    sure = worst is not None and worst.proven and math.isfinite(worst.epsilon)
    remedy = Remedy(action=Action.SEED, epsilon=worst.epsilon if sure and worst else None)
    leak = Advice(what=What.LEAK, words=text_of(sentence(finding, facts)), epsilon=math.inf)
    return leak, _told(remedy, finding, facts)


def _cases(facts: Facts) -> list[_Case]:
    grouped: dict[tuple[Kind, str], list[tuple[Finding, Guarantee]]] = {}
    for claim in _asked(facts):
        first = judge(facts, FigureRequirement.of_target(claim, facts.limit))[0]
        if first.kind in _LEAKS:
            # What differs between adversaries is behind the colon: the messages that show it.
            reason = "" if first.kind is Kind.OVER else claim.because.partition(": ")[0]
            grouped.setdefault((first.kind, reason), []).append((first, claim))
    return [
        _Case(found[0][0], found[0][1], tuple(claim for _, claim in found[1:]))
        for found in grouped.values()
    ]


def _leak(case: _Case, facts: Facts) -> Advice:
    said = [sentence(case.finding, facts)]
    if case.others:
        said.append(same_sentence(case.finding, case.others, facts))
    return Advice(what=What.LEAK, words=text_of(*said), epsilon=case.claim.epsilon)


def _most(facts: Facts) -> Advice:
    """Of a plan in which nothing is wrong: who comes closest, or learns most."""
    worst = next(iter(_asked(facts)), None)
    if worst is None:
        finding = Finding(kind=Kind.HEURISTIC)
        return _told(Remedy(action=Action.EAVESDROPPER), finding, facts)
    finding = judge(facts, FigureRequirement.of_target(worst, facts.limit))[0]
    what = What.LEAK if facts.limit is None else What.WITHIN
    words = text_of(closest_sentence(finding, facts))
    return Advice(what=what, words=words, epsilon=worst.epsilon)


def _remedies(config: RunFile, plan: Plan, facts: Facts, case: _Case) -> Iterator[Remedy]:
    """The remedies of one case, or why none is named."""
    # A run without noise, and one whose plan takes too long, have one remedy each.
    p, name, kind = config.privacy, case.claim.adversary, case.finding.kind
    if not facts.private or p is None or plan.noise_multiplier == 0:
        clipped = p is None or math.isfinite(p.clip_norm)
        words = {} if clipped else {"clipped": (", and a finite `clip_norm` beside it",)}
        yield Remedy(action=hiding(facts), words=words)
        return
    if (why := _why_long(config, plan, name)) is not None:
        yield _skipped(config, facts, case, why)
        return
    # What would bring this adversary's figure within the limit.
    graph = graph_of(config)
    aimed = config.model_copy(update={"privacy": p.model_copy(update={"adversary": name})})
    computed = fixes(
        aimed,
        plan,
        as_planned(plan),
        adversary=name,
        limit=facts.limit,
        epsilon=case.claim.epsilon,
        graph=graph,
        anew=False,  # `_fewer_rounds` plans it, and says where it is not computed
    )
    for fix in computed:
        if fix.action == "rounds":
            yield _fewer_rounds(aimed, plan, facts, case, fix, graph)
        elif fix.action == "noise":
            more = fixed(fix, facts, facts.limit, others=_still_over(plan, facts, case, fix))
            yield more
            if name != facts.target:
                yield Remedy(action=Action.TARGET, epsilon=more.epsilon, words=more.words)
        else:
            yield fixed(fix, facts, facts.limit)
    # Where nothing was computed, what is known of such a case.
    whole = kind is Kind.OVER and plan.exposures[name].whole_run
    if whole:
        yield Remedy(action=Action.ONE_RELEASE)
    if not computed and not whole:
        yield Remedy(action=_without_fix(kind))


def _without_fix(kind: Kind) -> Action:
    return _LAST_RESORT.get(kind, Action.ACCOUNTANT)


def _still_over(plan: Plan, facts: Facts, case: _Case, fix: Fix) -> Sequence[Guarantee]:
    """The others of the case that the noise of a fix would leave over the limit."""
    limit = facts.limit
    if limit is None or fix.noise_multiplier is None:
        return ()
    multiplier, worst = float(fix.noise_multiplier), plan.exposures[case.claim.adversary]
    return [
        claim
        for claim in case.others
        if plan.exposures[claim.adversary].releases != worst.releases
        and run_epsilon(
            plan.exposures[claim.adversary], noise_multiplier=multiplier, statement=plan.said_of
        )
        > limit * (1.0 + _ROUNDING)
    ]


def _fewer_rounds(
    aimed: RunFile, plan: Plan, facts: Facts, case: _Case, fix: Fix, graph: Topology
) -> Remedy:
    """So many rounds, planned anew: a schedule or a correlation may depend on their number."""
    limit = math.inf if facts.limit is None else facts.limit
    again = with_rounds(aimed, plan, fix.rounds or 0, graph=graph)
    then = None if again is None else again.guarantee(case.claim.adversary)
    if again is None or then is None:
        return Remedy(action=Action.ROUNDS_DEPEND)
    if then.status is not Status.PROVEN or then.epsilon > limit:
        return Remedy(action=Action.ROUNDS_DEPEND)
    others = [claim for claim in case.others if again.guarantee(claim.adversary).epsilon > limit]
    planned = fix.model_copy(update={"epsilon": then.epsilon})
    return fixed(planned, facts, facts.limit, others=others)


def _why_long(config: RunFile, plan: Plan, adversary: str) -> str | None:
    """Why remedies would take long, if they would; no clock says so."""
    kinds = len(plan.exposures[adversary].releases)
    if kinds > _KINDS_OF_ROUND:
        return f"the run has {kinds} kinds of round, each accounted for by itself"
    agents = config.data.agents
    each = f"the run has {agents} agents, and each remedy is a plan of all of them"
    return each if agents > _MANY_AGENTS else None


def _skipped(config: RunFile, facts: Facts, case: _Case, why: str) -> Remedy:
    name, tries = case.claim.adversary, list[str]()
    if config.algorithm.form == "published":
        tries.append("--set algorithm.form=repaired")
    if config.graph.links == "clear" and name == EAVESDROPPER.name:
        tries.append("--set graph.links=encrypted")
    if case.finding.kind is Kind.OVER:
        if name != facts.target:
            tries.append(f"--set privacy.adversary={name} (the noise that it takes)")
        tries.append(f"--set training.rounds={max(1, facts.rounds // 2)}")
    if not tries:
        return Remedy(action=_without_fix(case.finding.kind))
    return Remedy(action=Action.TRY, words={"why": why, "tries": listed(tries, "or")})
