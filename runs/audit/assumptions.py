"""What the figures rest on: a declared list, and what speaks for each entry in this run.

An assumption is *verified* only by what was computed from this run's own files or by a check of its
audit that passed, and the entry says which; a check that failed makes a gap.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ...privacy.batches.patterns import CONSTANTS
from ...training.graphs.participation import MISSING
from ..folder.records import Items
from .evidence_schema import Assumption, Audit, AuditCheck

COUNTED = "record-count"

_Status = Literal["verified", "assumed", "gap"]

_AGREES = ("consistent", "cleared")
_NO_AUDIT = "no audit was run; overhear audit DIR checks it"


@dataclass(frozen=True, kw_only=True, slots=True)
class Declared:
    """One thing that the figures rest on.

    Attributes:
        name: a word for machines.
        text: what must hold.
        check: the check of audit.json that verifies it; None where none does.
        compares: whether that check must have compared something.
        status: without such a check.
        how: why that status, where there is no check.
    """

    name: str
    text: str
    check: str | None = None
    compares: bool = False
    status: _Status = "assumed"
    how: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """What the run's own files say.

    Attributes:
        planned, released: rounds in the run file, and releases of rounds in the ledger.
        repeated: how many of these are of a round that was released before.
        torn: whether a line of the ledger was cut off.
        seed: the evaluation_noise_seed, None for the system's entropy.
        duplicates: items that equal another one.
        items: how they were made of records; None where they come along or were made by a seed.
        server: whether a server sums what agents send.
        changing: whether the graph changes from round to round.
        announced: how often a round, the start among them, is announced in the ledger.
        tested: of how many of these the noise passed its tests while it was trained.
        numbers: how many numbers of noise these tests looked at.
        test_rate: their false-alarm rate each time that the run went on; None without tests.
        counted_as_public: what was read off the records and is counted as public, in words.
        batches: how they are drawn, in sentences, where they are not Poisson.
        counted: that the number of all records is public, in a sentence, where it has to be.
        participation: in how many rounds agents take part, where a public list says so.
        missing: how many agents may be missing from any round, where some may.
        records_of_user: the cap on the records of a user, where the figures are about users.
        users_known: whether the data say whose a record is, so that the cap was checked.
    """

    planned: int
    released: int
    repeated: int
    torn: bool
    seed: int | None
    duplicates: int
    records: int
    clipped: bool
    encrypted: bool
    server: bool
    changing: bool
    items: Items | None = None
    announced: int = 0
    tested: int = 0
    numbers: int = 0
    test_rate: float | None = None
    counted_as_public: tuple[str, ...] = ()
    batches: str | None = None
    counted: str | None = None
    participation: str | None = None
    missing: str | None = None
    records_of_user: int | None = None
    users_known: bool = False


# Verified by checks of the audit, else assumed.
DECLARED: tuple[Declared, ...] = (
    Declared(
        name="step",
        text="The step that runs is the step that was traced: every message is the linear function "
        "of clipped gradients and noise that was accounted for.",
        check="messages",
    ),
    Declared(
        name="noise",
        text="The noise of the messages has the covariance that was declared, within a round and "
        "from round to round.",
        check="residuals",
    ),
    Declared(
        name="sampling",
        text="Batches are Poisson samples at a public rate, drawn in secret and anew each round.",
        check="sampler",
    ),
    Declared(
        name="knowledge",
        text="No one knows more of the noise than was declared.",
        check="knowledge",
    ),
    Declared(
        name="functions",
        text="Functions of released values, and bounded functions of a secret, depend on nothing "
        "but what they are given.",
        check="functions",
    ),
    Declared(
        name="streams",
        text="No noise comes twice: not in another round, nor of another agent.",
        check="streams",
    ),
    Declared(
        name="secrecy",
        text="Noise, batches and secret cohorts are made of the system's entropy alone, and none "
        "of another.",
        check="secrecy",
    ),
    Declared(
        name="values",
        text="What functions are given, and what a round goes on with, is what was traced.",
        check="values",
    ),
    Declared(
        name="records",
        text="No item is held twice, by a batch or by the agents, that is not twice in the data.",
        check="records",
    ),
    Declared(
        name="sensitivity",
        text="One record moves what noise hides by its declared bound at most, and nothing else.",
        check="sensitivity",
        compares=True,
    ),
    Declared(
        name="clipped-gradients",
        text="Clipping takes a gradient of whatever norm to the clip norm at most.",
        check="layout",
    ),
    Declared(
        name="transcript",
        text="The messages that this very run sent are no smaller than their declared noise alone.",
        check="transcript",
        compares=True,
    ),
)
_ALWAYS: tuple[Declared, ...] = (
    Declared(
        name="honest",
        text="Agents are honest but curious: they follow the protocol.",
        how="the choice of threat model",
    ),
    Declared(
        name="constants", text=CONSTANTS, how="nothing in the run can show where a number came from"
    ),
    Declared(
        name="choices",
        text="No choice was made by looking at the data: preprocessing, weights in a loss, a "
        "network's start, tuning, other runs.",
        how="other runs on the same records add to these figures, and this report knows only one",
    ),
    Declared(
        name="gaussian",
        text="Noise is exactly Gaussian; floating-point samples only come close to it.",
        how="samplers and rounding are those of the numerical library",
    ),
    Declared(
        name="side-channels",
        text="Timing, message sizes and the machines' memory tell nothing.",
        status="gap",
        how="not looked at",
    ),
)
# Each where the run file has what makes it one.
_CLIPPING = Declared(
    name="clipping",
    text="Every example's gradient is clipped, so that noise can hide it.",
    status="gap",
    how="the run file clips nothing",
)
_ENCRYPTION = Declared(
    name="encryption",
    text="Links are encrypted, and no eavesdropper has a key.",
    how='links = "encrypted" in the run file; the transport is not part of the run',
)
_SERVER = Declared(
    name="server",
    text="The server sums what agents give it, adds its noise, and keeps and tells nothing else.",
    how="the algorithm trusts a server; no adversary of this report is one",
)
_SCHEDULE = Declared(
    name="schedule",
    text="Which links are used in which round was fixed beforehand and is public.",
    how="the graph changes from round to round by a fixed rule",
)


def assumptions(facts: Facts, audit: Audit | None) -> list[Assumption]:
    """The list of a report."""
    checks = {check.name: check for check in audit.checks} if audit else {}
    declared = [
        replace(of, text=facts.batches) if of.name == "sampling" and facts.batches else of
        for of in DECLARED
    ]
    found = [_entry(of, *_from_check(of, checks, audited=audit is not None)) for of in declared]
    return [
        *_from_ledger(facts),
        *found,
        _measured(audit),
        *_from_run_file(facts),
        *(_entry(of, of.status, of.how) for of in _ALWAYS),
    ]


def _entry(of: Declared, status: _Status, how: str) -> Assumption:
    return Assumption(name=of.name, text=of.text, status=status, how=how)


def _from_check(
    of: Declared, checks: Mapping[str, AuditCheck], *, audited: bool
) -> tuple[_Status, str]:
    if of.check is None or of.check not in checks:
        missing = f"the audit has no check of {of.check}" if audited else _NO_AUDIT
        return "assumed", missing
    check = checks[of.check]
    if not check.passed:
        return "gap", f"the audit's check of {of.check} FAILED: {check.words}"
    if of.compares and not check.tests:
        return "assumed", f"the audit's check of {of.check} compared nothing"
    tests = f", {check.tests} comparisons" if check.tests else ""
    return "verified", f"the audit's check of {of.check} passed{tests}"


def _measured(audit: Audit | None) -> Assumption:
    """The implementation as a whole, tried with canaries."""
    how = "no audit was run"
    if audit is not None:
        how = (
            f"audit with {audit.canaries} canaries at confidence {audit.confidence:g}: "
            f"{audit.verdict}"
        )
    return Assumption(
        name="canaries",
        text="Planted canaries are found no better than the proof allows.",
        status="verified" if audit is not None and audit.verdict in _AGREES else "gap",
        how=how,
    )


def _from_ledger(facts: Facts) -> Sequence[Assumption]:
    within = facts.released <= facts.planned
    return (
        Assumption(
            name="rounds",
            text=f"No more than the {facts.planned} planned rounds were released, counting one "
            "that was released again as another.",
            status="verified" if within else "gap",
            how=f"the ledger names {facts.released}"
            + (f", {facts.repeated} of them again" if facts.repeated else ""),
        ),
        Assumption(
            name="ledger",
            text="The ledger is complete, and was written for this run file.",
            status="gap" if facts.torn else "verified",
            how="a line was cut off; the release that it announces is counted"
            if facts.torn
            else "every line is whole, and its header has the digest of run.toml",
        ),
        _tested(facts),
        Assumption(
            name="duplicates",
            text="No two items, of one agent or of several, have equal inputs.",
            status="gap" if facts.duplicates else "verified",
            how=f"{facts.duplicates} of {facts.records} items equal another one"
            if facts.duplicates
            else f"all {facts.records} items were compared, number by number; other views of one "
            "record, and what is made of several, are not equal and would not show",
        ),
        _alone(facts),
    )


def _alone(facts: Facts) -> Assumption:
    """That an item is a record: a promise wherever items were made by what is not part of a run."""
    items, most = facts.items, facts.records_of_user or 1
    each = "a record is in one item" if most == 1 else f"a user has at most {most} items"
    # Who says that items are records: the library, the files, the function, or nobody.
    how = "the data come along with a library, or were made by a public seed"
    if items is not None and items.source == "rows":
        how = (
            "each row or picture is read by itself, by what the run file declares; what wrote the "
            "files is not part of the run"
        )
    elif items is not None and items.left_out:
        how = (
            f"the data function was called with {items.left_out} records left out, one at a time "
            f"(of {facts.records} items that are trained on), and the items of the others stayed "
            "the same; whether it leaves a record out of all that it computes is its author's word"
        )
    elif items is not None and items.source == "function":
        how = (
            "nothing can show it: the data function takes no leave_out, by which it would be "
            "called with one record less"
        )
    elif items is not None:
        how = "nothing can show it: the arrays are taken as they are, and what made them is unknown"
    if items is not None and items.tied:
        how = f"{'; '.join(items.tied)}"
    return Assumption(
        name="alone",
        text=f"Every item is made of one record alone, and {each}.",
        status="gap" if items is not None and items.tied else "assumed",
        how=how,
    )


def _tested(facts: Facts) -> Assumption:
    """What the ledger says of the noise; where a round was cut off, it can say nothing of that."""
    every = facts.test_rate is not None and 0 < facts.announced <= facts.tested
    how = "the ledger does not say that noise was tested"
    if facts.test_rate is not None:
        how = (
            f"the noise of {facts.tested} of {facts.announced} announced rounds, the start among "
            f"them, was tested while training: {facts.numbers} numbers at false-alarm rate "
            f"{facts.test_rate:.0e}, and passed"
        )
    return Assumption(
        name="noise-tested",
        text="The noise of every round had its declared deviation and shape, and was there once, "
        "before anything that holds it was sent.",
        status="verified" if every else "assumed",
        how=how,
    )


def _from_run_file(facts: Facts) -> Sequence[Assumption]:
    """What the run file decides: where randomness comes from, and what is trusted here alone."""
    secret = facts.seed is None
    entropy = Assumption(
        name="entropy",
        text="Noise and batches are drawn from secret seeds of the system's entropy."
        if secret
        else "Noise comes from evaluation_noise_seed: anyone who knows it can subtract it.",
        status="assumed" if secret else "gap",
        how="no evaluation_noise_seed is set; the system's generator is trusted"
        if secret
        else "evaluation_noise_seed is set in the run file",
    )
    # What is trusted because of a choice in the run file.
    cases = (
        (not facts.clipped, _CLIPPING),
        (facts.encrypted, _ENCRYPTION),
        (facts.server, _SERVER),
        (facts.changing, _SCHEDULE),
    )
    # What counts as public although it was read off the data, and what figures rest on besides.
    rests_on = [
        *(
            (
                "read-off-the-data",
                f"{words[0].upper()}{words[1:]}.",
                "the run file does not say it; [data] classes, or labels of libsvm, would",
            )
            for words in facts.counted_as_public
        ),
        (
            COUNTED,
            facts.counted,
            "the figures compare data sets of different sizes at the same rate and normaliser",
        ),
        (
            "participation",
            facts.participation
            and "Who takes part in which round was fixed beforehand, is public and does not depend "
            "on the data; no one is absent whom the list has.",
            f"an agent takes part in {facts.participation}; the ledger's header holds the digest "
            "of the list, for which alone the figures are",
        ),
        (
            "missing",
            facts.missing and f"{facts.missing[0].upper()}{facts.missing[1:]}. {MISSING}",
            "each figure is that of the worst set of so many in every round; the run was trained "
            "with everybody there",
        ),
    ]
    return [
        entropy,
        *(
            Assumption(name=name, text=text, status="assumed", how=how)
            for name, text, how in rests_on
            if text is not None
        ),
        *_users(facts),
        *(_entry(of, of.status, of.how) for there, of in cases if there),
    ]


def _users(facts: Facts) -> Sequence[Assumption]:
    """That a user has no more records than the figures are about, and has them at one agent."""
    if facts.records_of_user is None:
        return ()
    records = "record" if facts.records_of_user == 1 else "records"
    return (
        Assumption(
            name="users",
            text=f"No user has more than {facts.records_of_user} {records}, and each has all of "
            "them at one agent.",
            status="verified" if facts.users_known else "assumed",
            how="the data say whose a record is, and were checked when they were dealt"
            if facts.users_known
            else "nothing in the data says whose a record is; [data] user names the column that "
            "does",
        ),
    )
