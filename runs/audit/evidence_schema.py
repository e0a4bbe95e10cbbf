"""What attacks/attack.json and audit.json hold, as types, and audit.json as a JSON Schema.

Keys may be added, so that readers must ignore those that they do not know. Version 2 of audit.json
has the verdicts "cleared" and, of the whole, "not measured", and what an audit needs to be repeated
or gone on with: `seed`, `settings` and `evidence`. A version 1 is read as it is.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from ...attacks.audit.audited import LinkBound
from ...attacks.interception.names import ColumnScore, found_in_all, what_was_found
from ...privacy.formats.codec import Count, Delta, Fraction, NotNegative, Score
from ...privacy.guarantee import WrittenAdjacency, WrittenStatus
from ..described import Described
from ..numbers import bound, lower_bound

RowVerdict = Literal[
    "consistent", "cleared", "suspicious", "contradicted", "nothing proven", "not measured"
]
AuditVerdict = Literal[
    "consistent",
    "cleared",
    "suspicious",
    "contradicted",
    "failed checks",
    "nothing proven",
    "not measured",
]


class Means(Described):
    """Mean scores of reconstructions."""

    mse: Score
    psnr: Score
    ssim: Score


class ScaledMeans(Means):
    """Mean scores in another scale of images, with their bootstrap intervals."""

    interval: dict[str, tuple[Score, Score]] = Field(default_factory=dict)
    """Of mse, psnr and ssim."""


class Lineup(Described):
    """Ranks of the victims' records among others that were drawn like them."""

    of: Count
    """Records in a lineup, the victim's among them."""
    ranks: list[Count]
    """Of the victim's record by likelihood, for each image; 1 is the first."""
    first: Count
    """How many are the first."""
    most: Fraction | None = None
    """Largest expected fraction of first places that the proof allows; of the defended row."""
    exceeded: bool = False
    """More are first than the proof allows."""


class AttackRow(Described):
    """What is attacked, and how well it was rebuilt."""

    name: str
    """blind guess, no defence, clipping only, or defended: the run's own messages."""
    mse: list[Score]
    psnr: list[Score]
    ssim: list[Score]
    mean: Means
    interval: dict[str, tuple[Score, Score]] = {}
    """Of the means, by bootstrap."""
    conventions: dict[str, ScaledMeans] = {}
    """Mean scores as other papers scale images."""
    stage: list[str] = []
    """What made each reconstruction."""
    found: list[str] = []
    """Of each, whether it was rebuilt, or is an estimate or the blind guess."""
    found_in_all: str = ""
    noise_std: Score | None = None
    """On each coordinate of what was attacked."""
    intercepts: Count = 0
    """Messages that were used."""
    labels: list[int] = []
    """That the attack took the records to have; below 0 where it found none."""
    right_labels: Count | None = None
    """How many of them are right."""
    candidates: Count = 0
    """Public records that were weighed by their likelihood."""
    power: list[Fraction] = []
    """For each image, how probably the test of a search's image would keep the true one."""
    lineups: list[Lineup] = []
    spectral: str = ""
    unused: list[str] = []
    """What of the victim the attack does not use."""
    images: list[str] = []
    """Paths within the run."""
    columns: list[ColumnScore] = []
    """Of a table."""
    certified: Count | None = None
    """Records of a table that algebra gives, and no search."""
    whole: Count | None = None
    """Records of a table in which every column is right, numbers to a hundredth of their range."""
    values: list[list[str]] = []
    """Of a table, a list of values for each record that is public."""


class AllowedByProof(Described):
    """What was rebuilt, beside what the proof allows."""

    mu: NotNegative | None = None
    """Of the attacked messages together."""
    threshold: Score | None = None
    """MSE at which an image counts as rebuilt."""
    prior_hit_rate: Fraction | None = None
    """Of guessing alone, at most."""
    most: Fraction
    """Largest expected fraction that the proof allows."""
    rebuilt: Count
    images: Count
    guesses: Count = 1
    confidence: Fraction | None = None
    exceeded: bool
    """More was rebuilt than the proof allows."""
    sentence: str


class Scenario(Described):
    """One attack on one intercepted round."""

    scenario: str
    adversary: str
    round: Count
    model_owner: Count
    victim: Count
    preset: str
    batch: Count = 1
    """Records that were planted together."""
    together: Count = 1
    """Rounds in which they take part."""
    rows: list[AttackRow]
    originals: list[str] = []
    gallery: str | None = None
    records: str = ""
    """Whose records are pictured."""
    known: str = ""
    """What the attacker was taken to know by a file, beside public test records."""
    distance: str = ""
    """Of a table, what `mse` is in place of the mean squared error of pixels."""
    values: list[list[str]] = []
    """Of a table, what was planted: a list of values for each record that is public."""
    conclusion: str
    bound: AllowedByProof
    attack: str = ""
    """Name of the attack, where several are read together; empty of the first."""

    def with_words(self) -> Scenario:
        """The scenario with what was found in each row, beside its blind guess."""
        blind, threshold, rows = self.rows[0], self.bound.threshold or 0.0, list[AttackRow]()
        for row in self.rows:
            each = [
                what_was_found(stage, error, guess, threshold)
                for stage, error, guess in zip(row.stage, row.mse, blind.mse, strict=False)
            ]
            whole = found_in_all(each, row.mean.mse, blind.mean.mse) if any(each) else ""
            rows.append(row.model_copy(update={"found": each, "found_in_all": whole}))
        return self.model_copy(update={"rows": rows})


class Attack(Described):
    """The object of attacks/attack.json and attacks/NAME/attack.json, or of several together."""

    version: Annotated[Literal[1], Field(alias="schema")]
    name: str = ""
    """Of its folder; empty of the first attack of a run."""
    device: str = ""
    """Where it searched; empty in files of older versions."""
    exact_device: str = ""
    """Where rounds ran and all that needs float64 was computed."""
    sources: dict[str, str] = {}
    """SHA-256 of the user's code that it used, by path or by name of an installed module."""
    scenarios: list[Scenario]


class Estimator(Described):
    """A lower bound on epsilon by one method."""

    name: str
    epsilon: NotNegative
    assumptions: str


class SecondLook(Described):
    """The bound on epsilon of one look, at a confidence of its own."""

    epsilon: NotNegative
    confidence: Fraction
    noise_scale: NotNegative | None = None


class Wealth(Described):
    """What was won by betting against one claim, over all audits of the run."""

    log10_odds: float
    """Of the odds against the claim. If it holds they ever reach 10^x with probability 10^-x."""
    at_zero: list[float]
    """Natural logarithm of what each bet has become, on errors at ratio 0."""
    learned: list[float]
    """The same at thresholds that were learned from earlier canaries."""
    looks: list[NotNegative]
    """What the stake on the two looks of each audit has become."""
    canaries: Count
    """That were bet on."""


class AuditedAdversary(Described):
    """What canaries measured of one adversary."""

    name: str
    proven_epsilon: NotNegative
    status: WrittenStatus
    measured_epsilon: NotNegative | None
    """Lower bound on the true epsilon, on which the verdict rests; null if not measured."""
    measured_confidence: Fraction | None = None
    """Of that bound; of a first look it is such that all that are tested have the audit's."""
    single_epsilon: NotNegative | None = None
    """Of the first look of this adversary by itself, at the audit's confidence."""
    ideal_epsilon: NotNegative | None
    """What a perfect attack would measure with as many canaries."""
    seen_epsilon: NotNegative | None = None
    """The least true epsilon that 95 of 100 perfect audits of as many canaries tell from it."""
    ratio: NotNegative | None = None
    """Measured / proven."""
    canaries: Count
    threshold: Score | None = None
    """On the score, fixed in advance."""
    false_alarms: Count | None = None
    misses: Count | None = None
    verdict: RowVerdict
    estimators: list[Estimator]
    """The one of `single_epsilon`, if any; up to four in files of older versions."""
    noise_scale: NotNegative | None = None
    """Largest multiple of the declared noise that is not rejected; below 1 contradicts it."""
    together: SecondLook | None = None
    """The first look's bound, corrected for how many were tested."""
    again: SecondLook | None = None
    """With fresh canaries, at the high confidence at which it contradicts."""
    fresh: SecondLook | None = None
    """Of the same canaries, at the confidence of the first look; within the proof it clears."""
    evidence: Wealth | None = None
    messages: list[LinkBound] = []
    messages_again: list[LinkBound] = []
    words: str

    @property
    def digits(self) -> int:
        """With how many measured and proven are told: more where three hide that one exceeds."""
        low, most = self.measured_epsilon or 0.0, self.proven_epsilon
        hidden = low > most and float(lower_bound(low)) <= float(bound(most))
        return 6 if hidden else 3


class AuditCheck(Described):
    """A check of the implementation that needs no canary."""

    name: str
    passed: bool
    p: Fraction | None
    tests: Count
    words: str
    power: str = ""
    """The smallest faults that it sees in 95 of 100 runs."""


class EarlierAudit(Described):
    """What an audit of the same run found before."""

    file: str
    canaries: Count
    rounds: Count
    verdict: AuditVerdict
    seed: Count | None = None


class AuditSettings(Described):
    """What an audit was asked to do, with every default."""

    canaries: Count
    confidence: Annotated[float, Field(gt=0, lt=1)]
    rounds: Count
    checked_rounds: Count


class Trail(Described):
    """What audits.jsonl says of audits of one run file, before or without training."""

    audits: Count
    """Of this run: the same run file but for [intercept], [attack] and [audit]."""
    verdicts: dict[str, Count]
    """Of these audits, how many ended how."""
    others: Count
    """Audits of other run files, or of this one with other values."""
    damaged: list[str]
    """What is wrong with the file; lines that cannot be read are counted nowhere."""


class Audit(Described):
    """The object of audit.json."""

    version: Annotated[Literal[1, 2], Field(alias="schema")]
    tool: str = ""
    """Version of overhear."""
    seed: Count | None = None
    """Of the canaries' coins, directions and signs; with the settings it gives them again."""
    seed_given: bool = False
    """Whether it was chosen; else it was drawn from the system's entropy."""
    settings: AuditSettings | None = None
    canaries: Count
    runs: Count | None = None
    rounds: Count | None = None
    """That were run with canaries; null or absent: all."""
    planned_rounds: Count | None = None
    hosts: list[Count] = []
    """Agents that held canaries."""
    victim: Count | None = None
    """The agent whose records alone were at risk; null: the worst agents'."""
    game: str = ""
    """What a canary's coin decides."""
    confidence: Annotated[float, Field(gt=0, lt=1)]
    delta: Delta
    unit: Literal["record", "user", "agent", "client"] = "record"
    """Whose data a canary is: one record, all records of a user, or all data of an agent."""
    adjacency: WrittenAdjacency
    noise_multiplier: NotNegative | None = None
    device: str = ""
    """Where the rounds of the audit ran; empty in files of older versions."""
    run_device: str = ""
    """Where those of the run did; empty for a run file."""
    verdict: AuditVerdict
    adversaries: list[AuditedAdversary]
    checks: list[AuditCheck]
    run_file: str = ""
    """SHA-256 of the run file that was audited."""
    logs: dict[str, str] = {}
    """SHA-256 by name of the logs that declare the training that was audited."""
    earlier: list[EarlierAudit] = []
    """Audits of the same run before this one."""
    trail: Trail | None = None
    """Of a run file: the audits that stand beside it, this one among them."""


class Measured(Described):
    """What a page says of an audited adversary, rounded down."""

    epsilon: NotNegative | None
    digits: Count = 3
    """Of epsilon, and of the proven one beside it: more where three would hide which is larger."""
    single: NotNegative | None = None
    """Of the first look by itself."""
    ideal: NotNegative | None
    messages: list[NotNegative | None]
    """Of each message alone, in the order of the audit."""


class Assumption(Described):
    """What the figures rest on."""

    name: str
    text: str
    status: Literal["verified", "assumed", "gap"]
    how: str
    """How it was verified, or why it was not."""
