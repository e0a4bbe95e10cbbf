"""What privacy.json holds, as types and as a JSON Schema.

Version 3 keeps its keys and their meaning; a later version 3 may add keys, so that readers must
ignore those that they do not know. Version 1 had `mending` for `fixes`, and `false_alarms` for the
`false_positives` of `risk`. Infinite figures are the string "inf".
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator
from pydantic.json_schema import JsonSchemaValue

from ..privacy.formats.codec import Count, Delta, Fraction, NotNegative, Score, schema_of
from ..privacy.guarantee import Status, WrittenAdjacency, WrittenStatus, WrittenUnit
from ..runs.audit.evidence import LastModel, Membership
from ..runs.audit.evidence_schema import Assumption, Attack, Audit, Measured, Trail
from ..runs.described import Described
from ..runs.folder.records import Environment, Items, Stopped
from ..runs.plan.schema import Planned, Recipients, SecondOpinion

_ReportSchema = Literal[3]
REPORT_SCHEMA: _ReportSchema = 3
"""Of privacy.json; raised with every change of what it holds (tests/test_formats.py)."""


class Tool(Described):
    """What wrote the file."""

    name: Literal["overhear"]
    version: str


class About(Described):
    """What the run file says about people, in [report]."""

    responsible: str | None = None
    contact: str | None = None
    data: str | None = None
    purpose: str | None = None
    controller: str | None = None
    processors: str | None = None
    legal_basis: str | None = None
    retention: str | None = None
    review_by: str | None = None
    reference: str | None = None
    records_per_person: Count | None = None
    """How many records one person has at most, as far as is known."""


class Run(Described):
    """The run, as it was configured."""

    name: str
    algorithm: str
    form: Literal["repaired", "published", "declared"]
    """Declared: the run was not ours, and its logs list what it released."""
    graph: str
    agents: Count
    edges: list[tuple[Count, Count]]
    """Pairs of agents that exchange messages; of a large network those of one agent alone."""
    edges_in_all: Count
    one_way: list[tuple[Count, Count]]
    """(from, to) of the pairs that are joined one way alone."""
    graphs_in_turn: Count
    """More than 1: the graph changes from round to round."""
    joined_within: Count | None = None
    """Then how many rounds, any in a row, join all agents both ways (B)."""
    participation: str | None = None
    """In how many rounds agents take part, where a public list says who does in which."""
    missing: str | None = None
    """How many agents may be missing from any round, where some may that no list has."""
    server: bool
    """Whether a server takes part."""
    links_used: bool
    """Whether agents send anything to each other."""
    links: Literal["clear", "encrypted"]
    data: str
    records: Count | None
    """Null where the run was declared, as are its parameters and its noise multiplier."""
    duplicate_records: Count
    """Records that are equal to another one; the figures hold for one copy."""
    model: str
    parameters: Count | None
    rounds: Count
    """Planned."""
    rounds_done: Count
    """Different rounds that the ledger names, a torn line counted; of a run that its budget ended
    those up to its end."""
    finished: bool
    """Whether it came to its last round: the planned one, or where its budget ended it."""
    stopped: Stopped | None
    """Where its budget ends it early, as stopped.json says; null where it runs to its end."""
    sampling_rate: Fraction
    clip_norm: NotNegative
    noise_multiplier: NotNegative | None
    """Noise on a sum of clipped gradients / clip_norm."""
    evaluation_noise_seed: int | None
    """Not null: the noise can be repeated, and no figure is proven."""
    device: str


class Released(Described):
    """What the ledger says was released."""

    rounds: Count
    """Releases in all: a round that was released again counts again, and a torn line counts."""
    rounds_accounted: Count
    """At least those that were planned: what stopped a run may depend on the data."""
    entries: Count
    resumed_after: list[Annotated[int, Field(ge=-1)]]
    """The rounds after which the run was resumed, in order; -1: it began anew."""
    repeated: list[tuple[Count, Annotated[int, Field(ge=2)]]]
    """(round, how often it was released) of rounds that were released more than once; 0 is the
    start."""
    torn: bool
    """Whether the last line was cut off; it counts as released."""
    epsilon: dict[str, NotNegative]
    """By adversary: the figure that may be signed."""
    reading: dict[str, NotNegative]
    """By adversary: of the released rounds alone."""


class Hits(Described):
    """How often an adversary is right about records, at a false-positive rate."""

    false_positives: Count
    of: Count
    """The rate is `false_positives` of so many records that were not in."""
    hit_rate: Fraction
    hits: NotNegative
    """Of `of` records that were in; rounded up if proven, down if not."""


class Odds(Described):
    """So many times out of so many."""

    times: NotNegative
    of: Count


class Risk(Described):
    """What a figure means for one record, for one adversary."""

    source: Annotated[str, Field(alias="from")]
    """The trade-off curve, or that nothing protects or no bound is known."""
    relation: Literal["at most", "at least"]
    advantage: Fraction
    """True-positive rate less false-positive rate, at most."""
    mu: NotNegative | None
    """Of the whole run; null where no curve is known."""
    right: Odds
    """How often the best guess whether a record was in is right."""
    hits: list[Hits]


class RoundsWithin(Described):
    """How many rounds a limit allows, and what they cost."""

    rounds: Count
    epsilon: NotNegative


class Remedy(Described):
    """What would turn the verdict, planned with the run's own accountant."""

    action: Literal["rounds", "noise", "encrypt", "repair"]
    adversary: str
    epsilon: NotNegative
    """That it leads to."""
    status: WrittenStatus
    rounds: Count | None = None
    noise_multiplier: NotNegative | None = None


class Utility(Described):
    """Test scores at the evaluated rounds."""

    rounds: list[Count]
    consensus_accuracy: list[Fraction]
    """Empty of a regression, as are those of the agents."""
    consensus_loss: list[Score]
    agent_accuracy_min: list[Fraction]
    agent_accuracy_median: list[Fraction]
    agent_accuracy_max: list[Fraction]
    agent_accuracy_last: list[Fraction]
    """Of each agent, at the last of the rounds."""
    consensus_distance: list[Score]
    constant_accuracy: Fraction | None = None
    """Of the most frequent class of the test records, said of every one."""
    constant_rmse: Score | None = None
    """Of the mean of the test targets, said of every record."""
    consensus_rmse: list[Score] = Field(default_factory=list)
    """Root of the mean squared error; of a regression, else empty."""
    consensus_r2: list[Score | None] = Field(default_factory=list)
    agent_rmse_min: list[Score] = Field(default_factory=list)
    agent_rmse_median: list[Score] = Field(default_factory=list)
    agent_rmse_max: list[Score] = Field(default_factory=list)


class Reproduce(Described):
    """How to do it again."""

    commands: list[str]
    check: list[str]
    environment: Environment
    files: dict[str, str]
    """SHA-256 by path."""


class TotalRun(Described):
    """A run that is counted."""

    run: str
    """Its folder."""
    algorithm: str
    form: str
    agents: Count
    rounds: Count
    """Released, again ones and a torn line counted."""
    planned_rounds: Count
    victim: Count | None
    """The only agent whose records its figures are for; null if they are for any record."""


class TotalAdversary(Described):
    """What one adversary who looks on at all runs learns about one record."""

    name: str
    epsilon: NotNegative
    """Of all runs together, at the delta of the total."""
    status: WrittenStatus
    alone: list[NotNegative]
    """Of each run by itself, at the same delta, in the order of the runs."""
    because: str

    @property
    def is_bound(self) -> bool:
        """Whether epsilon is an upper bound."""
        return self.status.is_bound


class Total(Described):
    """Several runs on the same records."""

    version: Annotated[Literal[1], Field(alias="schema")]
    counted: Count
    """How many runs."""
    runs: list[TotalRun]
    delta: Delta
    unit: WrittenUnit
    records_per_person: Count | None = None
    """Of unit "user": the cap on the records of a user in every run."""
    adjacency: WrittenAdjacency
    composed: Literal["privacy loss distribution", "as its report"]
    """How; of a single run as its own report does."""
    records: Literal["the same", "assumed to be the same"]
    holders: Literal["the same", "others", "not known"]
    """Whether every agent holds the same records in all runs."""
    adversaries: list[TotalAdversary]
    left_out: list[str]
    """Adversaries that not every run accounts for."""


class PersonTotalRun(Described):
    """A run that is counted for a person."""

    label: str
    """What the ledger calls it."""
    run: str
    """What tells it from others."""
    whose: str
    """Which records of the person it is about."""
    counted: Literal["planned", "released"]
    """Released: more than was planned."""
    alone: NotNegative
    """Epsilon of the run by itself, at the delta of the total."""
    unread: str | None = None
    """Why its line cannot be read by this version; its epsilon counts as infinite then."""


class PersonTotal(Described):
    """What one adversary who holds the views of several runs learns about one person."""

    version: Annotated[Literal[1], Field(alias="schema")]
    adversary: str
    epsilon: NotNegative
    """Of all runs together."""
    delta: Delta
    adjacency: WrittenAdjacency
    status: WrittenStatus
    runs: list[PersonTotalRun]
    named_twice: list[str]
    """Runs that several ledgers name alike; they are counted once."""


class KeptChecks(Described):
    """What checks of kept releases found of the logs as they are."""

    said: str
    rounds: list[Count]
    passed: list[str]
    failed: list[str]


class Declared(Described):
    """What a report of declared releases stands on."""

    status: WrittenStatus
    """Declared, or checked where what was kept of releases agrees with the logs."""
    releases: Count
    depends_on: Literal["released", "public"]
    """What everything else in a release depends on."""
    checks: KeptChecks | None
    """Null where no one checked."""


class Report(Described):
    """The figures of one run, of one record of one agent, for every adversary."""

    version: Annotated[_ReportSchema, Field(alias="schema")]
    tool: Tool
    made: str
    """When, in UTC."""
    run: Run
    plan: Planned
    ledger: Released
    second_opinion: dict[str, SecondOpinion] = Field(default_factory=dict)
    """By adversary: what another library says of the releases behind the figure of the ledger."""
    risk: dict[str, Risk]
    """By adversary."""
    epsilon_by_round: dict[str, list[tuple[Count, NotNegative]]]
    """By adversary: pairs of round and epsilon up to it."""
    within_limit: dict[str, RoundsWithin]
    """By adversary, where the target is passed."""
    fixes: list[Remedy]
    """What would turn the verdict."""
    utility: Utility
    attack: Attack | None
    audit: Audit | None
    measured: dict[str, Measured]
    """By audited adversary."""
    membership: Membership | None = None
    """Where it was inferred; records are never listed here."""
    last_model: LastModel | None = None
    """Where last models alone were asked of a canary."""
    items: Items | None = None
    """How the items of the data were made of records, where they do not come along."""
    assumptions: list[Assumption]
    reproduce: Reproduce
    declared: Declared | None = None
    """Where the run was not ours: what somebody listed of it."""
    trail: Trail | None = None
    """Audits of the run file that this run was trained from, where their list is beside it."""
    about: About | None = None
    """Where the run file has [report]."""
    recipients: Recipients | None = None
    """By distance, as planned, where an agent was named; not a figure that a policy reads."""
    total: Total | None = None
    """With other runs on the same records, where these were named."""

    @model_validator(mode="after")
    def _of_one_kind(self) -> Self:
        """What is proven is of a run of ours, and what is declared of a list."""
        for row in self.plan.adversaries:
            of_list = row.status in (Status.DECLARED, Status.CHECKED)
            if row.status.is_bound and of_list != (self.declared is not None):
                raise ValueError(f"status {row.status!r} does not fit a report of this kind")
        return self


def report_schema() -> JsonSchemaValue:
    """JSON Schema (2020-12) of privacy.json.

    >>> report_schema()["properties"]["schema"]["const"]
    3
    """
    return schema_of(Report, f"privacy.json of overhear, version {REPORT_SCHEMA}")
