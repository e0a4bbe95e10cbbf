"""The evidence of a run beside its proof: attack and audits, read and checked; and their log."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import math
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import Field

from ... import __version__
from ...attacks.audit.audited import deciding
from ...attacks.membership.roc import ATTACKED, recognised
from ...privacy.errors import InputError
from ...privacy.files import BINARY, SHOWN, lock, read_bounded, write_all, write_durably
from ...privacy.formats.codec import Count, Delta, Fraction, NotNegative, Score, finite
from ...privacy.guarantee import WrittenStatus
from ..described import Described
from ..folder import folder as run_folder
from ..folder.folder import SUMS, forget_sums, write_sums
from ..numbers import rounded_down
from ..run_file.run_file import RunFile
from ..run_file.tables import AuditTable, InterceptTable
from .evidence_schema import (
    Attack,
    Audit,
    AuditedAdversary,
    AuditSettings,
    AuditVerdict,
    Measured,
    SecondLook,
    Trail,
)

_Evidence = TypeVar("_Evidence", bound=Described)


def read_attack(folder: Path) -> Attack | None:
    """All attacks of a run folder as one, with the scenarios of each; None where none was finished.

    The first attack comes first, then the others by name. Evidence is judged over all of them, so
    that an attack that finds less takes nothing away.

    Raises:
        ValueError: one is no attack; a report never leaves out evidence that is there.
    """
    every = [
        (Path(name).parent.name if name != run_folder.ATTACK else "", _with_words(found))
        for name in run_folder.attack_files(folder)
        if (found := read_evidence(folder / name, Attack, "overhear attack DIR")) is not None
    ]
    if not every:
        return None
    if [name for name, _ in every] == [""]:
        return every[0][1]
    return Attack(
        version=1,
        device=_each(one.device for _, one in every),
        exact_device=_each(one.exact_device for _, one in every),
        scenarios=[
            scenario.model_copy(update={"attack": name} if name else {})
            for name, one in every
            for scenario in one.scenarios
        ],
    )


def _with_words(attack: Attack) -> Attack:
    """An attack as it is written today; earlier versions did not say what was found."""
    return attack.model_copy(update={"scenarios": [s.with_words() for s in attack.scenarios]})


def _each(names: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(name for name in names if name))


def read_audit(folder: Path) -> Audit | None:
    """The audit of a run folder, None where none was run.

    Raises:
        ValueError: it is no audit; a report never leaves out evidence that is there.
    """
    found = read_evidence(folder / run_folder.AUDIT, Audit, "overhear audit DIR")
    if found is None:
        return None
    rows = [_as_decided(row, found.confidence) for row in found.adversaries]
    return found.model_copy(update={"adversaries": rows})


def _as_decided(row: AuditedAdversary, confidence: float) -> AuditedAdversary:
    """A row as it is written today; earlier versions told the first look of each by itself."""
    if row.measured_epsilon is None or row.single_epsilon is not None:
        return row
    single = SecondLook(
        epsilon=row.measured_epsilon, confidence=confidence, noise_scale=row.noise_scale
    )
    first, fresh, again = row.together or single, row.fresh, row.again
    look = deciding(row.verdict, row.proven_epsilon, first=first, fresh=fresh, again=again)
    return row.model_copy(
        update={
            "measured_epsilon": look.epsilon,
            "measured_confidence": look.confidence,
            "single_epsilon": single.epsilon,
            "noise_scale": look.noise_scale,
        }
    )


def read_evidence(path: Path, kind: type[_Evidence], command: str) -> _Evidence | None:
    """What a command found, None where it was not run.

    Args:
        command: that writes it, for the words of a refusal.

    Raises:
        ValueError: it is none that can be read; evidence that is there is never left out.
    """
    return kind.read_if_there(path, remedy=f"move it away and run `{command}` again")


def measured(audit: Audit | None) -> dict[str, Measured]:
    """What a page says of each audited adversary, rounded down.

    A measured lower bound must never be told too large, nor what the best audit could have found.

    >>> measured(None)
    {}
    """
    return {
        row.name: Measured(
            epsilon=_down(row.measured_epsilon, row.digits),
            digits=row.digits,
            single=_down(row.single_epsilon),
            ideal=_down(row.ideal_epsilon),
            messages=[_down(message.measured_epsilon) for message in row.messages],
        )
        for row in (audit.adversaries if audit else ())
    }


def _down(value: float | None, digits: int = 3) -> float | None:
    return None if value is None or math.isinf(value) else rounded_down(value, digits)


# What membership.json holds, as types, and how it is read.
#
# Keys may be added, so that readers must ignore those that they do not know.

MembershipVerdict = Literal[
    "within the proof", "suspicious", "contradicted", "nothing proven", "no games"
]


class MembershipRate(Described):
    """Members that a threshold finds at a rate of false positives."""

    asked: Fraction
    """Largest rate of false positives."""
    needed: Count
    """Non-members without which the rate cannot be measured."""
    true_positive_rate: Fraction | None
    """Null where there are fewer."""
    low: Fraction | None
    """Clopper-Pearson limits of the true-positive rate, at the confidence of the file."""
    high: Fraction | None
    allowed: Fraction | None
    """By the proof at this rate of false positives; null where nothing is proven."""


class MembershipRow(Described):
    """One attack on one model."""

    model: str
    """average, owner (of each record), or agent K."""
    attack: str
    auc: Fraction
    auc_error: NotNegative
    """Standard error."""
    rates: list[MembershipRate]
    above_limit: bool | None
    """Whether a rate lies above what is proven by more than chance would put there; null where
    nothing is proven."""


class MembershipAgent(Described):
    """How one agent's model tells members from others, by the attack that is named first."""

    agent: Count
    auc: Fraction
    auc_error: NotNegative


class MembershipCurve(Described):
    """Pairs of false- and true-positive rate."""

    model: str
    attack: str
    points: list[tuple[Fraction, Fraction]]


class MembershipPart(Described):
    """All attacks on the run itself, or on the games."""

    members: Count
    others: Count
    rows: list[MembershipRow]
    agents: list[MembershipAgent]
    """Empty of a large network."""
    curves: list[MembershipCurve]

    @property
    def plain(self) -> str:
        """Who could be recognised by the attack that is named first, as one sentence."""
        first = [row for row in self.rows if (row.model, row.attack) == ATTACKED]
        row = (first or self.rows)[0]
        return recognised(f"{row.attack} on {_asked(row.model)}", row.auc, row.auc_error)


def _asked(model: str) -> str:
    return {"owner": "each owner's model", "average": "the average model"}.get(model, model)


class GuessedGames(Described):
    """What right guesses in the games say of epsilon."""

    model: str
    attack: str
    """That was right most often."""
    right: Count
    guesses: Count
    coins: Count
    epsilon: NotNegative
    """Lower bound at the confidence of the file, corrected for the number of guessers."""


class ExposedRecord(Described):
    """A training record that an attack is surest of."""

    record: Count
    """Its place in the training part of the data set."""
    agent: Count
    score: Score
    """Log-likelihood ratio in nats."""


class EarlierMembership(Described):
    """What an earlier one of the same run found."""

    file: str
    references: Count
    games: Count
    verdict: MembershipVerdict


class Membership(Described):
    """The object of membership.json."""

    version: Annotated[Literal[1], Field(alias="schema")]
    references: Count
    games: Count
    records: Count
    """At stake: half of the training set, half held out."""
    rounds: Count
    noise_multiplier: NotNegative
    confidence: Annotated[float, Field(gt=0, lt=1)]
    delta: Delta
    adversary: Literal["final-models"] = "final-models"
    proven_epsilon: NotNegative | None
    """Of holders of the final models, for the worst agent; null where nothing is proven."""
    status: WrittenStatus
    because: str
    """Why nothing is proven; empty where something is."""
    limit: list[tuple[Fraction, Fraction]]
    """Pairs of false-positive rate and the largest true-positive rate that the proof allows."""
    run: MembershipPart
    """Records that the run was trained on, against held-out ones: an attack."""
    played: MembershipPart | None
    """Games in which coins decide: what a proof is held against."""
    guessed: GuessedGames | None
    verdict: MembershipVerdict
    words: str
    exposed: list[ExposedRecord] = Field(default_factory=list)
    """Only where it was asked for: it names people."""
    run_file: str = ""
    """SHA-256 of the run file."""
    earlier: list[EarlierMembership] = Field(default_factory=list)


def read_membership(folder: Path) -> Membership | None:
    """The membership.json of a run folder, None where there is none.

    Raises:
        ValueError: it is none that can be read; evidence that is there is never left out.
    """
    path = folder / run_folder.MEMBERSHIP
    return read_evidence(path, Membership, "overhear membership DIR")


# What last-model.json holds, as types, and how it is read.
#
# Keys may be added, so that readers must ignore those that they do not know.

LastModelVerdict = Literal["consistent", "cleared", "suspicious", "contradicted", "not measured"]
_Confidence = Annotated[float, Field(gt=0, lt=1)]


class SecondLastModel(Described):
    """Lower bounds of as many fresh runs, where the first ones exceeded the proof."""

    epsilon: NotNegative
    """At `confidence`, by which a proof is contradicted."""
    confidence: _Confidence
    fresh_epsilon: NotNegative
    """At the confidence of the first look, by which it is cleared."""


class EarlierLastModel(Described):
    """What an earlier one of the same run found."""

    file: str
    runs: Count
    verdict: LastModelVerdict
    seed: Count


class LastModel(Described):
    """The object of last-model.json."""

    version: Annotated[Literal[1], Field(alias="schema")]
    runs: Count
    """Trainings of the first look; a fifth of them set the threshold."""
    rounds: Count
    noise_multiplier: NotNegative
    confidence: _Confidence
    delta: Delta
    seed: Count
    """Of the coins."""
    adversary: Literal["final-models"] = "final-models"
    victim: Count
    """The agent that holds the canary."""
    model: Literal["victim", "average"]
    """Whose final model is asked, chosen by the runs that set the threshold."""
    proven_epsilon: NotNegative
    measured_epsilon: NotNegative
    """Lower bound on which the verdict rests, at the confidence of the file or more."""
    ideal_epsilon: NotNegative
    """What as many runs show of who sees all that the proof counts, in the middle."""
    guesses: Count
    false_alarms: Count
    misses: Count
    second: SecondLastModel | None
    verdict: LastModelVerdict
    words: str
    run_file: str = ""
    """SHA-256 of the run file."""
    earlier: list[EarlierLastModel] = Field(default_factory=list)


def read_last_model(folder: Path) -> LastModel | None:
    """The last-model.json of a run folder, None where there is none.

    Raises:
        ValueError: it is none that can be read; evidence that is there is never left out.
    """
    path = folder / run_folder.LAST_MODEL
    return read_evidence(path, LastModel, "overhear audit-last-model DIR")


# audits.jsonl: every audit of a run file leaves a line beside it, so that trying again is seen.


TRAIL = "audits.jsonl"
_LARGEST = 64 << 20  # bytes; an audit has about six hundred
_TOLD = 5  # damaged places that are named


class AuditLine(Described):
    """One audit of a run file."""

    version: Annotated[Literal[1], Field(alias="schema")]
    time: str
    """Of its end, in UTC."""
    tool: str
    run: str
    """`run_digest` of the run file, overrides included."""
    settings: AuditSettings
    seed: Count
    seed_given: bool
    verdict: AuditVerdict
    measured: dict[str, NotNegative | None]
    """By adversary: the lower bound on epsilon."""
    before: str
    """SHA-256 of the line before this one; empty for the first."""


def run_digest(config: RunFile) -> str:
    """SHA-256 of a run file as it is resolved, without [intercept], [attack] and [audit].

    It is the same for a run file and for the run.toml of a folder that was trained from it.
    """
    bare = config.model_copy(
        update={
            "intercept": InterceptTable(),
            "audit": AuditTable(),
            "attack": type(config.attack)(),
        }
    )
    return hashlib.sha256(bare.to_toml().encode()).hexdigest()


def leave_trace(run_file: Path, config: RunFile, found: Audit) -> Trail:
    """Append an audit to the audits.jsonl beside a run file, and say what stands there now.

    Args:
        config: what it says, overrides included.

    Raises:
        OSError: the system refuses; the error names the file, and no line was left.
        ValueError: there is no regular file at its place, or it is too large; likewise.
    """
    path = run_file.parent / TRAIL
    if path.exists() and not path.is_file():
        raise InputError(f"{path} is no regular file; move it away")
    assert found.settings is not None and found.seed is not None  # noqa: S101, PT018 # it is new
    # One audit after the other; a line that was cut off is ended first.
    try:
        file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | BINARY, SHOWN)
        try:
            lock(file, wait=True)  # until no other audit appends
            held = read_bounded(path, _LARGEST)
            torn = held != b"" and not held.endswith(b"\n")
            *_, last = [b"", *held.split(b"\n")[: None if torn else -1]]
            # Each line has the digest of the one before it.
            line = AuditLine(
                version=1,
                time=dt.datetime.now(dt.UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
                tool=__version__,
                run=run_digest(config),
                settings=found.settings,
                seed=found.seed,
                seed_given=found.seed_given,
                verdict=found.verdict,
                measured={
                    adversary.name: adversary.measured_epsilon for adversary in found.adversaries
                },
                before=hashlib.sha256(last).hexdigest() if held else "",
            )
            text = json.dumps(finite(line.dump()), allow_nan=False)
            write_all(file, b"\n" * torn + text.encode() + b"\n")
        finally:
            os.close(file)
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error
    if (run_file.parent / SUMS).exists():  # of a run whose own run.toml was audited
        forget_sums(run_file.parent, TRAIL)
    return read_trail([path], config) or Trail(audits=1, verdicts={}, others=0, damaged=[])


def read_trail(paths: Sequence[Path], config: RunFile) -> Trail | None:
    """What files of this kind say of a run together; None where there is none.

    A file that cannot be read is damage, which is told, and no reason to stop.

    Args:
        paths: of audits.jsonl, or of copies of it; a line that two of them hold counts once.
    """
    run, damaged = run_digest(config), list[str]()
    lines = dict[bytes, AuditLine | None]()
    there = [path for path in paths if os.path.lexists(path)]
    for path in there:
        try:
            held = read_bounded(path, _LARGEST)
        except (InputError, OSError) as error:
            damaged.append(f"{path.name} cannot be read: {error}")
            continue
        damaged += [f"{path.name} {told}" for told in _read(held, lines)]
    if not there:
        return None
    of_run = [line for line in lines.values() if line is not None and line.run == run]
    return Trail(
        audits=len(of_run),
        verdicts=dict(sorted(Counter(one.verdict for one in of_run).items())),
        others=sum(line is not None for line in lines.values()) - len(of_run),
        damaged=list(dict.fromkeys(damaged))[:_TOLD],
    )


def trail_of_folder(folder: Path, config: RunFile) -> Trail | None:
    """What is known of audits of the run file that a folder was trained from.

    Args:
        folder: of the run; the list is in it, as it was when it was trained, or beside it.
    """
    return read_trail([folder / TRAIL, folder.parent / TRAIL], config)


def keep_trail(run_file: Path, folder: Path) -> None:
    """Copy the list beside a run file into the folder that was trained from it, if there is one.

    Args:
        folder: of the run, which has ended; its digests are written anew.

    Raises:
        OSError: the folder cannot be written to.
    """
    path = run_file.parent / TRAIL
    if not path.is_file() or (folder / TRAIL).exists() or path.stat().st_size > _LARGEST:
        return
    write_durably(folder / TRAIL, read_bounded(path, _LARGEST))
    if (folder / SUMS).exists():
        write_sums(folder)


def _read(held: bytes, lines: dict[bytes, AuditLine | None]) -> list[str]:
    """Add the lines of a file; what is wrong with them."""
    damaged = []
    before = ""
    whole = held.split(b"\n")
    if whole[-1]:
        damaged.append(f"line {len(whole)} is cut off")
    else:
        whole.pop()
    for at, line in enumerate(whole, start=1):
        try:
            found = AuditLine.parse(line, refusal="{}: {}".format)
        except InputError:
            found = None
            damaged.append(f"line {at} is no audit: it was changed or cut off")
        if found is not None and found.before != before:
            damaged.append(
                f"line {at} does not follow on line {at - 1}: lines were changed, taken out or put "
                "together from two files"
            )
        lines[line] = found
        before = hashlib.sha256(line).hexdigest()
    return damaged
