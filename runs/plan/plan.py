"""Before training: the noise multiplier for the target, and epsilon for every adversary."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pydantic import JsonValue

from ...privacy.accounting.accountant import composed_epsilon
from ...privacy.errors import InputError, describe, line_of
from ...privacy.guarantee import Guarantee, Statement, Status, Unit
from ...privacy.participation import MOST_RECORDS, Event, Reach, cohort, poisson
from ...privacy.published.claim import PublishedClaim
from ...privacy.target import Target
from ...training.accounts.account import WorkEstimate, account_of
from ...training.accounts.accounted_run import AccountedRun
from ...training.accounts.paragraph import Explanation, as_paragraph
from ...training.accounts.result import Account, unknown_users, warnings_of
from ...training.accounts.summary import ShownStatements, Summary, rounded_up, users_words
from ...training.algorithms import Form
from ...training.algorithms.algorithm import PlannedRun
from ...training.batches import NO_USERS
from ...training.data.load import Dataset
from ...training.exposure.events import spent_releases
from ...training.exposure.sensitivity import JointSensitivity
from ...training.graphs.graph import ScheduledGraph, Topology, joined_within
from ...training.graphs.participation import missing_words, participation_words
from ...training.models.evaluation import NOT_COUNTED
from ...training.own.names import algorithm_named, is_own
from ...training.tracing.scripts import Scripts
from ..numbers import bound
from ..run_file import build
from ..run_file.privacy_table import PrivacyTable
from ..run_file.run_file import RunFile
from ..stop import tell
from .schema import Missing, Participation, Planned, PublishedBound

if TYPE_CHECKING:
    from matplotlib.axes import Axes


_SOME_BATCH = 37.5


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class Plan(ShownStatements):
    """What a run will cost.

    Attributes:
        said_of: what every epsilon is said of.
        noise_multiplier: given, or calibrated so that the target adversary's epsilon is met.
        target: what the run file asks for.
        guarantees: one for each adversary, worst first.
        exposures: the joint sensitivity to each of them, by name; they hold at any noise.
        sampling_rate, rounds: what was accounted for.
        message_kinds: what a round sends.
        scripts: what every round of the run has to follow.
        warnings: sentences for the reader.
        victims: by adversary epsilon of every agent, None for members of it; where asked for.
        published_bound: what the algorithm's paper claims at this noise multiplier.
        summary: what the paragraph to paste starts from.
        participation: who takes part in which round; None where everybody does in all.
        missing: how many agents may be missing besides; None where none may.
        joined_within: of graphs that take turns, how many rounds in a row join all agents.
        account: what the figures are from.
    """

    said_of: Statement
    noise_multiplier: float
    target: Target
    guarantees: Sequence[Guarantee]
    exposures: dict[str, JointSensitivity]
    sampling_rate: float
    rounds: int
    message_kinds: Sequence[str]
    scripts: Scripts
    warnings: Sequence[str]
    published_bound: PublishedClaim | None = None
    victims: Mapping[str, Sequence[float | None]] | None = None
    summary: Summary | None = None
    participation: Participation | None = None
    missing: Missing | None = None
    joined_within: int | None = None
    account: Account | None = None

    def guarantee(self, adversary: str) -> Guarantee:
        """The statement for one adversary."""
        return next(g for g in self.guarantees if g.adversary == adversary)

    def statement(self) -> str:
        """A paragraph to paste: who learns how much, and what is assumed.

        Raises:
            ValueError: the plan was made without what it starts from.
        """
        if self.summary is None:
            raise InputError("this plan has no summary; make it from a run file")
        return as_paragraph(self.summary, self.exposures)

    def plot(self, kind: str = "rounds", *, axes: Axes | None = None) -> Axes:
        """Epsilon by round, or with kind="trade-off" the curves that no test beats.

        Raises:
            ValueError: an unknown kind, nothing finite to draw, or a plan without its account.
            ImportError: matplotlib is not installed.
        """
        return self._shown().plot(kind, axes=axes)

    def explain(self, adversary: str) -> Explanation:
        """Which messages of the round that costs most add up to the figure; printed, in words.

        Raises:
            ValueError: an adversary that was not asked for, or a plan without its account.
        """
        return self._shown().explain(adversary)

    def _shown(self) -> Account:
        """The account with what the run file adds: no noise that can be repeated is proven."""
        if self.account is None:
            raise InputError("this plan has no account; make it from a run file")
        every = {g.adversary: g for g in self.guarantees}
        return replace(self.account, guarantees=every, warnings=self.warnings)

    def planned(self) -> Planned:
        """The object that `overhear plan --format json` prints."""
        claim = self.published_bound
        found = Planned(
            version=1,
            noise_multiplier=self.noise_multiplier,
            target=self.target,
            adversaries=list(self.guarantees),
            published_bound=None
            if claim is None
            else PublishedBound.from_object(claim, caveats=list(claim.caveats)),
            warnings=list(self.warnings),
        )
        more = {
            "victims": self.victims and {name: list(of) for name, of in self.victims.items()},
            "participation": self.participation,
            "missing": self.missing,
            "joined_within": self.joined_within,
        }
        return found.model_copy(update={k: of for k, of in more.items() if of is not None})

    @property
    def stated(self) -> Sequence[Guarantee]:
        """The statements, worst first."""
        return self.guarantees

    @property
    def heads(self) -> list[str]:
        """How many rounds with which noise, what every epsilon is said of, and who takes part."""
        said = self.said_of
        taking = self.participation or self.missing
        return [
            f"{self.rounds} {'round' if self.rounds == 1 else 'rounds'} at sampling rate "
            f"{self.sampling_rate:g}, noise multiplier {rounded_up(self.noise_multiplier, 6)}",
            f"{said.adjacency} {said.unit.name_with(said.records_per_person)}, "
            f"delta {said.delta:g}, accountant {said.accountant}",
            *([] if taking is None else [f"participation: {taking.words}"]),
        ]

    def to_json(self) -> dict[str, JsonValue]:
        """The same as JSON; infinite figures are the string "inf"."""
        return self.planned().dump()


def make_plan(
    config: RunFile,
    *,
    graph: Topology | None = None,
    batch_size: float = _SOME_BATCH,
    every_agent: bool = False,
    begun: bool = False,
    notice: Callable[[str], None] | None = None,
) -> Plan:
    """Account for a run file.

    Args:
        config: the run file.
        graph: its graph, where it was made already.
        batch_size: the normaliser that the run will use. What a round costs must not depend on
            it, so any number does where no data are at hand; this is checked.
        every_agent: whether to give epsilon of every agent's records besides the worst.
        begun: whether the run may have released something: its plan is made however long it takes.
        notice: told beforehand what the plan takes, where that is more than some seconds; standard
            error by default of a run that was begun.

    Raises:
        ValueError: a victim or adversary that does not exist, or a plan that takes too long.
        UnsupportedView: no noise meets the target, the view cannot be accounted for, or the
            step's noise does not keep its proportion to what is clipped.
    """
    # What the account needs to know of the data: a rate, and public numbers of records.
    graph, p = graph or build.graph_of(config), config.privacy
    needs_records = algorithm_named(config.algorithm.name).needs_records
    statement, encrypted = build.statement_of(config), config.graph.links == "encrypted"
    counts = needs_records or config.training.sampling_rate is None or build.draws_otherwise(config)
    own_users = statement.unit is Unit.USER and is_own(config.data.name)
    data = build.data_of(config) if counts or own_users else None
    subject = subject_of(config, graph, data, batch_size=None if needs_records else batch_size)

    def told(price: WorkEstimate) -> None:
        if not begun:
            price.check()
        if price.words is not None and (notice is not None or begun):
            (notice or tell)(price.words)

    found = account_of(
        subject,
        statement=statement,
        at=0.0 if p is None else p.noise_multiplier if p.goal is None else p.goal,
        adversary=None if p is None else p.adversary,
        adversaries=() if p is None else p.adversaries,
        victim=None if p is None else p.victim,
        encrypted=encrypted,
        told=told,
    )
    every = _guarantees(config, found)
    # A step that clips by user needs to know whose records are whose.
    known = build.says_whose(config, data)
    if found.scripts.by_user and not known and not is_own(config.data.name):
        raise InputError(NO_USERS)
    return Plan(
        said_of=statement,
        noise_multiplier=found.noise_multiplier,
        target=_target(p, statement, reached=found.reached),
        guarantees=every,
        exposures=dict(found.joint_sensitivities),
        sampling_rate=subject.sampling_rate,
        rounds=found.rounds,
        message_kinds=found.message_kinds,
        scripts=found.scripts,
        warnings=[
            *_warnings(config, found, every),
            *found.memory,
            *read_off_the_data(config),
            *taken_to_be_alone(config),
            *([] if known else unknown_users(statement)),
            *statement.cautions,
        ],
        published_bound=_published_bound(config, found, every),
        victims=found.epsilon_by_agent() if every_agent else None,
        summary=replace(found.summary, guarantees=every, users=users_words(statement, known=known)),
        participation=participation_of(graph),
        missing=_missing_of(config),
        joined_within=joined_within(graph),
        account=found,
    )


def subject_of(
    config: RunFile, graph: Topology, data: Dataset | None, *, batch_size: float | None
) -> AccountedRun:
    """The run as its figures see it, before the noise is known.

    Args:
        graph: its graph.
        data: its records, where public numbers of them are needed.
        batch_size: the normaliser; None where the start has that of the records.
    """
    algorithm = algorithm_named(config.algorithm.name)
    needed = algorithm.needs_records
    return AccountedRun(
        algorithm=algorithm,
        settings=config.algorithm.settings(),
        form=Form(config.algorithm.form),
        graph=graph,
        rounds=config.training.rounds,
        sampling_rate=build.sampling_rate_of(config, data),
        clip_norm=build.clip_norm_of(config),
        learning_rate=config.training.learning_rate,
        batch_size=batch_size,
        records=build.records_of(config, data) if data is not None and needed else None,
        from_records=build.from_records_of(config),
        drawn=build.drawn_of(config, data),
        pattern=config.pattern,
        missing=build.missing_of(config),
    )


def participation_of(graph: Topology) -> Participation | None:
    """What a plan says of who takes part; None where there is no list."""
    if not isinstance(graph, ScheduledGraph):
        return None
    return Participation(
        told=graph.told,
        rounds=len(graph.graphs),
        by_agent=graph.active.sum(axis=0).tolist(),
        patterns=len(set(graph.graphs)),
        digest=graph.digest,
        words=participation_words(graph) or "every round",
    )


def _missing_of(config: RunFile) -> Missing | None:
    most, agents = build.missing_of(config), config.data.agents
    if not most:
        return None
    return Missing(at_most=most, agents=agents, words=missing_words(most, agents))


def _target(privacy: PrivacyTable | None, statement: Statement, *, reached: float | None) -> Target:
    if privacy is None:
        return Target(epsilon=None, delta=statement.delta, adversary=None)
    return Target.of(
        privacy.goal, delta=statement.delta, adversary=privacy.adversary, reached=reached
    )


def _guarantees(config: RunFile, found: Account) -> list[Guarantee]:
    """What is stated of each adversary, worst first."""
    every = list(found.guarantees.values())
    if config.training.evaluation_noise_seed is None:
        return every
    known = "the noise comes from evaluation_noise_seed, and anyone who knows it can subtract it"
    return [
        replace(g, status=Status.HEURISTIC, because=known) if g.status.is_finite else g
        for g in every
    ]


def _warnings(config: RunFile, found: Account, every: Sequence[Guarantee]) -> list[str]:
    return warnings_of(
        every,
        found.subject,
        target=found.target,
        encrypted=found.encrypted,
        repeatable=config.training.evaluation_noise_seed is not None,
        counted=found.summary.counted,
    )


def read_off_the_data(config: RunFile) -> list[str]:
    """What the run will read off the records and count as public, in sentences."""
    d = config.data
    found = [NOT_COUNTED] if config.training.gradient_norm else []
    if d.name == "libsvm" and d.labels is None:
        told = f"the labels of {d.root!r} are taken from its records and counted as public"
        found = [*found, f"{told}; set [data] labels"]
    if not d.reads_classes:
        return found
    return [
        *found,
        f"the number of classes is taken from the labels of {d.name!r} and counted as public; set "
        "[data] classes",
    ]


def taken_to_be_alone(config: RunFile) -> list[str]:
    """That items are records, in a sentence, where what makes them is not read row by row."""
    d = config.data
    if d.source == "rows":
        return []
    what = d.name if d.source == "function" else d.root
    remedy = "; where the function takes leave_out, train and plan --check try it"
    return [
        f"every item of {what!r} is taken to be made of one record alone, and a record to be in "
        f"one item{remedy if d.source == 'function' else ''}"
    ]


def _published_bound(
    config: RunFile, found: Account, guarantees: Sequence[Guarantee]
) -> PublishedClaim | None:
    """What the algorithm's own paper claims, of Poisson batches and of no user's records."""
    of = found.subject
    bound = of.algorithm.published_bound
    # What papers claim is about agents that take part in every round.
    if bound is None or config.privacy is None or config.participation is not None:
        return None
    if build.draws_otherwise(config) or found.said_of.unit is Unit.USER:
        return None
    worst = max(guarantees, key=lambda g: g.joint_sensitivity)
    run = PlannedRun(
        settings=of.settings,
        form=of.form,
        graph=of.graph,
        noise_multiplier=found.noise_multiplier,
        clip_norm=of.clip_norm,
        statement=found.said_of,
        rounds=of.rounds,
        sampling_rate=of.sampling_rate,
        records=of.records,
        joint_sensitivity=worst.joint_sensitivity,
        status=found.joint_sensitivities[worst.adversary].status,
    )
    try:
        claim = bound(run)
    except InputError:
        raise
    except Exception as error:  # of a user's own algorithm
        raise InputError(
            f"published_bound of {config.algorithm.name} raised {describe(error)}{line_of(error)}; "
            "mend it, or leave it out"
        ) from error
    if claim is not None and not isinstance(claim, PublishedClaim):
        raise InputError(
            f"published_bound of {config.algorithm.name} returned {type(claim).__name__}; it must "
            "return a PublishedClaim, or None"
        )
    return claim


# What dp-accounting says of the releases behind the figures of a plan, or of a run's ledger.


# Whether clipping what several steps change costs a record more than noise at each of them.


def local_steps_words(plan: Plan, adversary: str) -> tuple[str, float] | None:
    """A sentence, and epsilon with noise at each local step; None where that is not less.

    A record may turn round what the steps of its agent change, which is twice the clip norm; a sum
    of clipped gradients it changes by once the clip norm, and only where it is in the batch.

    Args:
        plan: of a run.
        adversary: whose figure is compared.
    """
    of = plan.guarantee(adversary)
    updates = [e for e in plan.scripts.of(1, None) if e.operation == "local_update"]
    releases = spent_releases(plan.exposures[adversary].releases)
    if plan.said_of.unit is not Unit.RECORD or len(updates) != 1 or len(releases) != 1:
        return None
    # One plain local update in each round can be compared.
    (one,), given = releases, dict(updates[0].given)
    steps = int(given["steps"])
    simple = one.reach is Reach.BALL and one.contributions == 1 and one.drawn is None
    whole = given["batch"] == ("batch", -1)  # of all data
    if not simple or one.members is not None or steps > MOST_RECORDS or not of.status.is_finite:
        return None
    # Each local step as a release of its own, at the same multiplier.
    rate = 1.0 if whole else plan.sampling_rate
    if one.cohort < 1.0:
        each = {Event(plan.noise_multiplier, cohort(1.0, steps, rate), coin=one.cohort): one.rounds}
    else:
        each = {Event(plan.noise_multiplier, poisson(rate)): one.rounds * steps}
    try:
        found = composed_epsilon(each, delta=plan.said_of.delta, adjacency=plan.said_of.adjacency)
    except InputError:
        return None
    if not found < of.epsilon:
        return None
    at = "all data" if whole else f"a batch of its own at rate {rate:.6g}"
    words = (
        "Clipping what the local steps change does not pay for single records: noise of the same "
        f"multiplier on the clipped sum of each of the {steps} steps, on {at}, costs epsilon "
        f"{bound(found)} in place of {bound(of.epsilon)}."
    )
    return words, found
