"""What the checks of a record found together, and the status that follows."""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ... import __version__
from ...attacks.checks.result import TOTAL_FALSE_ALARM, Check, Verdict
from ...attacks.foreign.claimed import claim_of_log
from ...attacks.foreign.scores_audit import ScoresAudit
from ...privacy.accounting.request import Adjacency
from ...privacy.errors import InputError, InputTypeError
from ...privacy.files import write_durably
from ...privacy.formats.codec import as_text, read_json
from ...privacy.guarantee import EAVESDROPPER, Statement, Status, Unit
from ...privacy.releases.chained_file import rounds_text
from ...privacy.releases.log import ReleaseLog, read_log
from ...training.accounts.declared import DeclaredAccount, account_of_releases
from ...training.device.later import is_tensor, torch
from ..audit.evidence_schema import Audit
from ..folder.folder import AUDIT
from .keeping import Oracle, sketch

if TYPE_CHECKING:
    from torch import Tensor

    from ...attacks.foreign.audit_training import TrainingAudit
    from .left_over import LeftOver, OracleBatch


@dataclass(frozen=True, kw_only=True, slots=True, eq=False, repr=False)
class Conformance:
    """What was kept of a log, held against its lines.

    Attributes:
        rounds: the numbers of the rounds that were looked at.
        assumed: what nothing here shows, in sentences.
    """

    log: ReleaseLog
    rounds: Sequence[int]
    outcomes: Sequence[Check]
    assumed: Sequence[str]

    def __getitem__(self, name: str) -> Check:
        """The outcome of a check by its name."""
        return {outcome.name: outcome for outcome in self.outcomes}[name]

    @property
    def failed(self) -> Sequence[str]:
        """The checks that contradict the log."""
        return [outcome.name for outcome in self.outcomes if outcome.verdict is Verdict.FAILED]

    @property
    def passed(self) -> bool:
        """Whether some check ran and none failed."""
        return not self.failed and any(one.verdict is Verdict.PASSED for one in self.outcomes)

    @property
    def status(self) -> Status:
        """Checked only where every check that applies ran and passed, points among them if needed.

        The check of points must have passed where releases depend on public ones alone, by which
        figures for outsiders are smaller, and where a part of a value is said to be known.
        """
        needed = [outcome for outcome in self.outcomes if outcome.applies]
        whole = self.passed and all(one.verdict is Verdict.PASSED for one in needed)
        return Status.CHECKED if whole else Status.DECLARED

    @property
    def false_alarm(self) -> float:
        """At most the probability that a sound record fails, of all checks together."""
        return TOTAL_FALSE_ALARM * sum(outcome.p is not None for outcome in self.outcomes)

    @property
    def said(self) -> str:
        """What the checks come to, in words."""
        if not self.passed:
            by = " and ".join(self.failed)
            return f"declared; contradicted by {by}" if by else "declared"
        if self.status is Status.CHECKED:
            return f"declared; checked in {rounds_text(self.rounds)}"
        missing = [one.name for one in self.outcomes if one.applies and not one.tests]
        return f"declared; checked in {rounds_text(self.rounds)} but for {', '.join(missing)}"

    def account(
        self, statement: Statement, *, adversaries: Sequence[str] = (), victim: int | None = None
    ) -> DeclaredAccount:
        """What the log costs each adversary, at the status that the checks give it."""
        return account_of_releases(
            replace(self.log, status=self.status),
            statement=statement,
            adversaries=adversaries,
            victim=victim,
        )

    def __repr__(self) -> str:
        """The outcomes as a table, and what stays assumed."""
        lines = [f"{self.log.header.system}: {self.said}", ""]
        width = max(len(outcome.name) for outcome in self.outcomes)
        for outcome in self.outcomes:
            lines.append(f"{outcome.name:<{width}}  {outcome.verdict!s:<7}  {outcome.words}")
        lines += ["", "assumed all the same:"]
        lines += [f"  {sentence}" for sentence in self.assumed]
        return "\n".join(lines)


# Rows: whether what was summed for a record is what the oracle makes of this record alone.
#
# A bound on what one record adds holds only where each summand is made of one record. Batches that
# are counted do not show it: a collation that mixes records, a loss over two targets or a layer
# that looks at the whole batch leave their number as it is. So each row
#
#     of the oracle       is asked for again among half of its batch, and must come out the same
#     of the training     is held against the oracle's, by what was kept of it; where the recorder
#                         drew the noise, the sum is known, and messages compare it
#
# What is kept of a clipped row r is short: bucket b holds the sum of +-r_d over d = b mod 64, so
# that its length is |r| to a fifth. A row may be off by rounding, and at a kink of its network by
# as much as the oracle's own row moves when the last bits of its point do.

_OFF = 1e-3  # of the clip norm, more than rounding in float32 moves a row
_SEEN = 2 * _OFF  # what a sketch of 64 numbers shows at least
_REPEATS, _FEW = 8, 3
_KINK = 4.0  # times what the oracle's row moves by
_LAST_BITS = 16.0  # units of rounding by which a point is moved to find a kink
_COARSE = 2.0**-7  # of bfloat16
_DOUBTFUL = 0.03  # of the clip norm, what bfloat16 and TF32 may make of any row
_RANDOM = "is another each time"
_MOST = 64  # rows that are looked at closely


class _Row(NamedTuple):
    """A row that differs from that of its record alone."""

    asked: OracleBatch
    place: int
    apart: float


def kept_rows(rows: Any, batch: Tensor, clip: float) -> Tensor:
    """(B, 64) what is kept of the gradients of a batch, in the order of ascending positions.

    Args:
        rows: (B, ...) gradients of its records before clipping, or a list of tensors (B, ...) that
            are laid end to end, in the order of the batch.
        batch: (B,) the positions as the caller has them.

    Raises:
        TypeError: no tensors or arrays of floats.
        ValueError: another number of rows.
    """
    every = rows if isinstance(rows, list) else [rows]
    parts = [torch.as_tensor(one) for one in every if is_tensor(one) or isinstance(one, np.ndarray)]
    if len(parts) < len(every) or not all(one.is_floating_point() and one.ndim for one in parts):
        raise InputTypeError(
            "rows must be gradients (B, D), one for each record of the batch, as a tensor, an "
            "array, or a list of tensors (B, ...) that are laid end to end"
        )
    if wrong := [len(one) for one in parts if len(one) != len(batch)]:
        raise InputError(
            f"rows has {wrong[0]} gradients, and the batch {len(batch)} records; give one for each"
        )
    return sketch(parts, clip)[torch.argsort(batch)]


def check_rows(of: LeftOver, oracle: Oracle) -> Check:
    """Each row is that of its record alone, for the oracle and in the training."""
    name, header = "rows", of.rounds.log.header
    # The oracle asked for each record by itself, and beside half of the others.
    every = [one for row in of.rows for one in row.batches]
    if header.unit is Unit.CLIENT or not every:
        words = "no release of these rounds is made of a batch of records"
        return Check.not_run(name, words, applies=False)
    before = _generators()
    off = [row for one in every for row in _among_half(one, oracle)]
    drawn = _generators() != before
    if off:
        why = "the oracle gives another row where other records are with it; let it take each "
        return _differ(off, oracle, drawn=drawn, rows=_count(every), why=f"{why}record by itself")
    # Rows that were kept are compared; without them the recorder must have drawn the noise.
    kept = [(one, one.kept) for one in every if one.kept is not None]
    unkept = [(row, one) for row in of.rows for one in row.batches if one.kept is None]
    if strange := [one for row, one in unkept if not row.is_drawn]:
        return Check.not_run(
            name,
            f"what {strange[0].where} added for each record was not kept, so that no one compared "
            "it with the record: give rows=, or let the recorder draw the noise",
        )
    for one, rows in kept:
        if len(rows) != len(one.positions):
            raise InputError(f"{one.where} keeps another number of rows than its batch has records")
        off += _differing(one, rows)
    if off and not _all_move(off, oracle, bits=_LAST_BITS):
        why = "collate_fn, the training loop, the loss or a layer mixes records, or the data are "
        rows_kept = sum(len(rows) for _, rows in kept)
        return _differ(off, oracle, drawn=drawn, rows=rows_kept, why=f"{why}others now")
    # From what length on a part of another record would have shown.
    exact = [row.rounding / _bound(one) for row, one in unkept]
    least = max([_SEEN if kept else 0.0, *exact])
    words = f"{_count(every)} rows of {len(every)} batches are those of their records alone"
    if off:
        words += f", {len(off)} of them at a kink of the network"
    words += (
        f"; a part of another record longer than {least:.2g} of the clip norm would have shown"
        + (" in a row" if kept else " in a sum")
    )
    return Check.exact(name, f"{words}.", tests=_count(every))


def _differ(off: Sequence[_Row], oracle: Oracle, *, drawn: bool, rows: int, why: str) -> Check:
    """What rows that differ say of the training, if anything."""
    times = _REPEATS if drawn else _FEW
    looked = sorted(off, key=lambda row: -row.apart)[:times]
    for row in looked:
        again = [_alone(row, oracle) for _ in range(times)]
        if any(float((one - again[0]).norm()) > _OFF * _bound(row.asked) for one in again):
            return _random(row)
    if drawn and 2 * len(off) < rows:  # an augmentation that is seldom
        return _random(looked[0])
    far = [row for row in off if row.apart > _DOUBTFUL]
    if _all_move(far, oracle, relative=_COARSE):
        return Check.not_run(
            "rows",
            f"{len(off)} of {rows} rows are off by up to {looked[0].apart:.2g} of the clip norm, "
            "which numbers of few bits may make as well as a part of other records; keep rounds "
            "that are trained in float32, without autocast and TF32",
        )
    worst = max(off, key=lambda row: row.apart)
    words = (
        f"{len(off)} of {rows} rows are not those of their records alone, first that of record "
        f"{int(worst.asked.positions[worst.place])} in {worst.asked.where}, which is off by "
        f"{worst.apart:.2g} of the clip norm: {why}."
    )
    return Check.exact("rows", words, tests=rows, passed=False)


def _random(row: _Row) -> Check:
    at = int(row.asked.positions[row.place])
    return Check.not_run(
        "rows",
        f"the gradient of record {at} {_RANDOM}, as with random augmentation or dropout, so that "
        "nothing that was trained on can be compared with it",
    )


def is_random(found: Check) -> bool:
    """Whether rows were not compared because the oracle's are others each time."""
    return found.verdict is Verdict.NOT_RUN and _RANDOM in found.words


def _among_half(one: OracleBatch, oracle: Oracle) -> list[_Row]:
    """Rows that come out another way among half of their batch."""
    count = len(one.positions)
    if count < 2:
        return []
    order = np.random.default_rng(count).permutation(count)
    again = torch.zeros_like(one.rows)
    for part in (np.sort(order[: count // 2]), np.sort(order[count // 2 :])):
        again[part] = oracle.clipped_rows(
            one.owner, one.point, one.positions[part], clip=one.clip, width=one.width
        )
    return _differing(one, again)


def _differing(one: OracleBatch, other: Tensor) -> list[_Row]:
    """Rows of a batch that are off, by the best assignment where their order is another."""
    apart = (other - one.rows).norm(dim=1)
    off = apart > _OFF * _bound(one)
    if int(off.sum()) > 1:  # a collation may sort the records of its batch
        from scipy.optimize import linear_sum_assignment

        at = off.nonzero()[:, 0]
        distances = torch.cdist(one.rows[at], other[at])
        mine, theirs = linear_sum_assignment(distances.numpy())
        apart[at[mine]] = distances[mine, theirs]
    return [
        _Row(one, place, float(apart[place]) / _bound(one))
        for place in (apart > _OFF * _bound(one)).nonzero()[:, 0].tolist()
    ]


def _all_move(
    off: Sequence[_Row], oracle: Oracle, *, bits: float = 0.0, relative: float = 0.0
) -> bool:
    """Whether the oracle's own rows move as far when their points do, in units or relatively."""
    for row in sorted(off, key=lambda row: -row.apart)[:_MOST]:
        by = relative or bits * torch.finfo(row.asked.point.dtype).eps
        if _moves(row, oracle, by) < row.apart:
            return False
    return len(off) <= _MOST or not bits


def _moves(row: _Row, oracle: Oracle, relative: float) -> float:
    """By how much of the clip norm the oracle's row may move with the last bits of its point."""
    chance = torch.Generator().manual_seed(row.place)
    point, here = row.asked.point, _alone(row, oracle)
    far = 0.0
    for _ in range(_REPEATS):
        signs = torch.randn(point.shape, generator=chance, dtype=torch.float64)
        moved = _alone(row, oracle, point=(point.double() * (1 + relative * signs)).to(point.dtype))
        far = max(far, float((moved - here).norm()))
    return _KINK * far / _bound(row.asked)


def _alone(row: _Row, oracle: Oracle, *, point: Tensor | None = None) -> Tensor:
    one = row.asked
    return oracle.clipped_rows(
        one.owner,
        one.point if point is None else point,
        one.positions[row.place : row.place + 1],
        clip=one.clip,
        width=one.width,
    )[0]


def _bound(one: OracleBatch) -> float:
    return one.clip if math.isfinite(one.clip) else max(float(one.rows.norm(dim=1).max()), 1e-300)


def _count(every: Sequence[OracleBatch]) -> int:
    return sum(len(one.positions) for one in every)


def _generators() -> tuple[object, ...]:
    """The states of the generators that data sets and collations draw from."""
    numpy = np.random.get_state(legacy=False)["state"]  # noqa: NPY002 the one that others use
    return bytes(torch.get_rng_state().numpy()), str(numpy), random.getstate()


# conformance.json: what checks found, beside the logs that they were about, named by digest.
#
# Whoever wrote the logs can write this file, too. It says what was found when, not that it is true:
# who relies on it gives an oracle and checks again.

FILE = "conformance.json"
_SCHEMA = 1
_MOST_WRITTEN = 16 << 20
_KEYS = {"schema", "system", "logs", "status", "said", "rounds", "false_alarm", "checks", "assumed"}


@dataclass(frozen=True, slots=True)
class Held:
    """What an earlier check of the same logs found.

    Attributes:
        status: declared, or checked.
        said: in words.
        rounds: that were looked at.
        passed, failed: names of checks.
    """

    status: Status
    said: str
    rounds: list[int]
    passed: list[str]
    failed: list[str]


def dump(found: Conformance) -> dict[str, Any]:
    """What was found, as an object for JSON."""
    return {
        "schema": _SCHEMA,
        "system": found.log.header.system,
        "logs": _digests(found.log.paths),
        "status": str(found.status),
        "said": found.said,
        "rounds": list(found.rounds),
        "false_alarm": found.false_alarm,
        "checks": [
            {
                "name": outcome.name,
                "verdict": str(outcome.verdict),
                "p": outcome.p,
                "tests": outcome.tests,
                "words": outcome.words,
            }
            for outcome in found.outcomes
        ],
        "assumed": list(found.assumed),
    }


def write_held(found: Conformance) -> Path | None:
    """Write conformance.json beside the logs; nothing where these lie in several folders."""
    folders = {path.resolve().parent for path in found.log.paths}
    if len(folders) != 1:
        return None
    path = found.log.paths[0].parent / FILE
    write_durably(path, as_text(dump(found)).encode())
    return path


def read_held(paths: Sequence[Path]) -> Held | None:
    """What conformance.json says of exactly these logs as they are; None where it says nothing.

    Raises:
        ValueError: the file cannot be read.
    """
    path = paths[0].parent / FILE
    if not path.exists():
        return None
    try:
        return _held(read_json(path, _MOST_WRITTEN), paths)
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{path} cannot be read ({error!s:.80}); check the logs again with overhear audit-log, "
            "or remove it"
        ) from None


def _held(held: Mapping[str, Any], paths: Sequence[Path]) -> Held | None:
    if not isinstance(held, Mapping) or held.keys() != _KEYS or held["schema"] != _SCHEMA:
        raise InputError("its keys are not those of this version")
    if held["logs"] != _digests(paths):
        return None  # of other logs, or of these before more was released
    checks = {str(one["name"]): Verdict(one["verdict"]) for one in held["checks"]}
    passed = [name for name, verdict in checks.items() if verdict is Verdict.PASSED]
    failed = [name for name, verdict in checks.items() if verdict is Verdict.FAILED]
    status = Status(held["status"])
    if status not in (Status.DECLARED, Status.CHECKED) or (status is Status.CHECKED and failed):
        raise InputError(f"status={status!s:.40} does not fit its checks")
    rounds = [int(one) for one in held["rounds"]]
    if status is Status.CHECKED and not (passed and rounds):
        raise InputError("nothing that was looked at makes its status checked")
    said = str(held["said"])
    # Written before there were these checks.
    if status is Status.CHECKED and (missing := {"rows", "numbers"} - checks.keys()):
        status, said = Status.DECLARED, f"{said} but for {', '.join(sorted(missing))}"
    return Held(status, said, rounds, passed, failed)


def _digests(paths: Sequence[Path]) -> dict[str, str]:
    """SHA-256 of each log by its name."""
    found = {}
    for path in paths:
        with path.open("rb") as file:
            found[path.name] = hashlib.file_digest(file, "sha256").hexdigest()
    return found


# audit.json: what an audit found of a training that ran elsewhere, beside the logs that declare it.


def keep_audit(found: TrainingAudit | ScoresAudit, logs: str | Path | Sequence[Path]) -> Path:
    """Write audit.json beside the logs that declare the training, for their report.

    It names the logs by their digests, so it is not attached to others, or to these once they go
    on.

    Args:
        found: an audit whose claim is that of the logs, `claim_of_log(read_log(logs))`.
        logs: logs of one folder, or the folder.

    Raises:
        ValueError: the audit is of another claim, or the logs lie in several folders.
        FileExistsError: an audit is there, which is never overwritten.
    """
    log = read_log([Path(logs)] if isinstance(logs, str | Path) else list(logs))
    folders = {path.resolve().parent for path in log.paths}
    if len(folders) != 1:
        raise InputError("the logs lie in several folders, and an audit is kept in that of all")
    from ...attacks.foreign.audit_training import TrainingAudit

    first = found.first if isinstance(found, TrainingAudit) else found
    claimed = first.claimed
    known = claim_of_log(log, delta=claimed.delta)
    if claimed.mechanism != known.mechanism or claimed.epsilon > known.epsilon * (1 + 1e-9):
        raise InputError(
            f"the audit is of {claimed.words()}, and {log.paths[0].parent} declares "
            f"{known.words()}; audit with claim=log.claim(delta) of the recorder, or "
            "claim=claim_of_log(read_log(logs))"
        )
    path = log.paths[0].parent / AUDIT
    audit = Audit.model_validate(
        {
            "version": 2,
            "tool": __version__,
            "canaries": first.canaries,
            "confidence": first.confidence,
            "delta": claimed.delta,
            "unit": str(log.header.unit),
            "adjacency": Adjacency.ADD_OR_REMOVE_ONE,
            "verdict": str(found.verdict),
            "adversaries": [_audited(found, first, log.status)],
            "checks": [],
            "logs": _digests(log.paths),
        },
        by_name=True,
    )
    write_durably(path, as_text(audit.dump()).encode(), new=True)
    return path


def _audited(
    found: TrainingAudit | ScoresAudit, first: ScoresAudit, status: Status
) -> dict[str, Any]:
    row: dict[str, Any] = {
        "name": EAVESDROPPER.name,
        "proven_epsilon": first.claimed.epsilon,
        "status": status,
        "measured_epsilon": first.epsilon,
        "ideal_epsilon": first.ideal,
        "canaries": first.canaries,
        "verdict": str(found.verdict),
        "estimators": [],
        "words": found.words(),
    }
    if (again := getattr(found, "again", None)) is not None:  # of a training that was audited
        row["again"] = {"epsilon": again.epsilon, "confidence": again.confidence}
    return row


def read_kept_audit(paths: Sequence[Path]) -> Audit | None:
    """The audit that was kept of exactly these logs as they are; None where there is none.

    Raises:
        ValueError: the file cannot be read.
    """
    path = paths[0].parent / AUDIT
    found = Audit.read_if_there(path, remedy="move it away, and keep the audit again by keep_audit")
    return found if found is not None and found.logs == _digests(paths) else None
