"""The small files of a run folder as types: environment, ledger's header, metrics, early end."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field

from ...privacy.batches.sampling import Drawing
from ...privacy.errors import InputError
from ...privacy.files import check_size
from ...privacy.formats.codec import Count, Delta, Fraction, NotNegative, as_text, load
from ...privacy.guarantee import Guarantee
from ...privacy.participation import Reach
from ...privacy.releases.ledger import Spent
from ...training.exposure.sensitivity import JointSensitivity, Release
from ...training.models.metrics import Metrics
from ..described import LARGEST_OBJECT, Described, unreadable

MOST_MEASURED = 4 << 30  # bytes of metrics.jsonl


class Environment(Described):
    """Where a run was trained: versions and the kind of machine, without names or paths."""

    python: str = ""
    system: str = ""
    processor: str = ""
    device: str = ""
    """That gradients are computed on."""
    packages: dict[str, str] = {}
    """Versions by name."""
    layout: str | None = None
    """How gradients were computed, once the rounds have settled it."""
    ranks: Annotated[int, Field(ge=1)] = 1
    """Processes that shared the agents."""


class RecordsFile(Described):
    """What tells whether another run is trained on the same records.

    The salt keeps it from everybody who has no more than the digest of this file. Who has the file
    and guesses every record, or knows all but one, can test that guess: it is for the operator.
    """

    salt: str
    digest: str
    """SHA-256 of the salt, of the records and of who holds which."""


class Items(Described):
    """What is known of how the items of the data were made of records, where it is not a reader."""

    source: Literal["function", "arrays", "rows"]
    """A function of the user, arrays that were made elsewhere, or rows that are read one by one."""
    left_out: Count = 0
    """Records that were left out, one at a time, while the items of the others stayed the same."""
    tied: list[str] = Field(default_factory=list)
    """What speaks for items that were made of several records."""

    @property
    def shown(self) -> bool:
        """Whether it was seen of what made the items that it makes each of one record."""
        return not self.tied and (self.source == "rows" or self.left_out > 0)


def _with_reach(release: object) -> object:
    if not isinstance(release, list):
        return release
    return (*release, None) if len(release) == 5 else tuple(release)


_Release = Annotated[
    tuple[NotNegative, Fraction, Count, Count, Count, Literal["sum", "ball"] | None],
    BeforeValidator(_with_reach),
]


class ExposureFacts(Described):
    """What a record is exposed to by one adversary, at noise multiplier 1."""

    whole_run: bool
    """Whether all rounds are one release, in which none may repeat."""
    releases: list[_Release]
    """Joint sensitivity, sampling rate, rounds, contributions, first round and reach of each; a
    ledger of schema 3 or less may not say the last."""
    records: list[Count] | None = None
    """Of one person in the batch of each release, where it is not one in all of them."""
    cohorts: list[tuple[Fraction, Count]] | None = None
    """Of each the rate of its secret cohort, and how many batches have it, where there is one."""
    schemes: list[tuple[Literal["fixed", "shuffled", "cyclic"], Count, Count] | None] | None = None
    """How cohorts are drawn where not by coins: scheme, members, and agents they are drawn of."""

    @classmethod
    def of(cls, exposure: JointSensitivity) -> ExposureFacts:
        """As the header of a ledger has it."""
        held = [r.records for r in exposure.releases]
        several = {} if set(held) <= {1} else {"records": held}
        schemes = [_scheme(r.cohort_drawn) for r in exposure.releases]
        return cls(
            whole_run=exposure.whole_run,
            **several,
            releases=[
                (
                    r.joint_sensitivity,
                    r.sampling_rate,
                    r.rounds,
                    r.contributions,
                    r.first,
                    "ball" if r.reach is Reach.BALL else "sum",
                )
                for r in exposure.releases
            ],
            cohorts=[(r.cohort, r.several) for r in exposure.releases]
            if any(r.cohort < 1 for r in exposure.releases)
            else None,
            schemes=schemes if any(schemes) else None,
        )

    def figures(self) -> dict[str, float]:
        """Each figure by its words; NaN where the ledger does not say it.

        >>> facts = ExposureFacts(whole_run=False, releases=[(1.5, 0.02, 200, 3, 1, "sum")])
        >>> facts.figures()["joint_sensitivity of release 1"]
        1.5
        """
        found: dict[str, float] = {
            "whole_run": self.whole_run,
            "number of releases": len(self.releases),
        }
        for at, release in enumerate(self.releases, start=1):
            *figures, reach = release
            names = zip(Release._fields[: len(figures)], figures, strict=True)
            found |= {f"{name} of release {at}": figure for name, figure in names}
            known = math.nan if reach is None else Reach(reach) is Reach.BALL
            found[f"release {at} stays in a ball"] = known
        for at, held in enumerate(self.records or [], start=1):
            found[f"records of release {at}"] = held
        for at, (rate, several) in enumerate(self.cohorts or (), start=1):
            found |= {f"cohort of release {at}": rate, f"batches of release {at}": several}
        for at, drawn in enumerate(self.schemes or (), start=1):
            if drawn is not None:
                scheme, members, agents = drawn
                found[f"cohorts of release {at} are {scheme}"] = True
                found |= {f"members of release {at}": members, f"agents of release {at}": agents}
        return found


def _scheme(drawn: Drawing | None) -> tuple[Any, int, int] | None:
    return None if drawn is None else (drawn.scheme.value, drawn.size, drawn.records)


class LedgerHeader(Described):
    """The first line of ledger.jsonl: what every release of the run has in common."""

    model_config = ConfigDict(extra="forbid")  # what it says is what is accounted for

    run: str
    """What tells this run from others of the same run file."""
    run_file: str
    """SHA-256 of run.toml."""
    algorithm: str
    form: str
    agents: Count
    records: str
    """SHA-256 of records.json."""
    clip_norm: NotNegative
    noise_multiplier: NotNegative
    sampling_rate: Fraction
    planned_rounds: Count
    sources: str | None = None
    """SHA-256 of sources.json; None where the run file names nothing of the user's own."""
    noise_test_rate: Fraction | None = None
    """At which false-alarm rate noise is tested while it trains, each time that the run goes on;
    None where it is not."""
    exposures: dict[str, ExposureFacts] | None = None
    """By adversary. The run file names the graph and the data, but does not hold them; what they
    cost is here."""
    participation: str | None = None
    """SHA-256 of the list of who takes part in which round; None where everybody does in all."""
    missing: Count | None = None
    """How many agents may be missing from any round although nobody knew it; None where none."""
    items: Items | None = None
    """How the items were made of records; None where they come along or were made for the run."""
    turns: dict[Literal["cycle", "apart", "most"], Count] | list[Count] | None = None
    """In which rounds one record may take part, as [privacy] participation says it; None: any."""


class Stopped(Described):
    """Where its budget ends a run that releases rounds more than once."""

    round: Count
    """The last one."""
    rounds: Count
    """Planned."""
    adversary: str
    epsilon: NotNegative
    """As planned, at `delta`."""
    target: NotNegative
    delta: Delta
    because: str


class TrainSummary(Described):
    """The object of `overhear train --format json`."""

    out: str
    noise_multiplier: NotNegative
    adversaries: list[Guarantee]
    metrics: Metrics
    """The last ones."""
    stopped: Stopped | None = None
    """Set where the budget ended the run early."""
    version: Annotated[Literal[1], Field(alias="schema")] = 1


def header_of(spent: Spent) -> LedgerHeader:
    """The header of a ledger.

    Raises:
        ValueError: it lacks what every run has, or holds it in another way.
    """
    return LedgerHeader.parse(
        as_text(spent.header),
        refusal=lambda at, what: (
            f"the ledger's header, of schema {spent.schema}, cannot be read at {at}: {what}. Its "
            "digest is right, so another version of overhear wrote it, which environment.json "
            "names: report the run with that version; until then its rounds stay spent, and count "
            "as an epsilon without a bound"
        ),
    )


def read_metrics(path: Path) -> list[Metrics]:
    """The lines of metrics.jsonl that are whole; none where the run was cut off before its start.

    Raises:
        ValueError: a whole line is no evaluation.
    """
    if not path.exists():
        return []
    check_size(path, MOST_MEASURED)
    found = []
    with path.open("rb") as file:
        while line := file.readline(LARGEST_OBJECT + 1):
            if len(line) > LARGEST_OBJECT:
                raise InputError(
                    f"{path} cannot be read: a line is longer than {LARGEST_OBJECT} bytes; put it "
                    "back as it was written"
                )
            if line.rstrip().endswith(b"}"):  # else it was cut off
                found.append(load(Metrics, line, refusal=unreadable(path)))
    return found
