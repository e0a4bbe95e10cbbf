"""The phrases of a judgement, once for every place that prints them.

A template names its figures; backticks stand around code. `wording` fills them in.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

from ...privacy.adversary import (
    ALL_OTHERS,
    EAVESDROPPER,
    FINAL_MODELS,
    SINGLE_MESSAGE,
    WORST_NEIGHBOUR,
)
from .findings import Action, Kind


class Note(enum.StrEnum):
    """What a reader of a judgement must know beside it."""

    MORE = "learns more"
    STOPPED = "stopped by its budget"
    UNFINISHED = "unfinished"
    RESUMED = "resumed"
    REPEATED = "repeated"
    TORN = "torn ledger"
    SEEDED = "seeded noise"
    DUPLICATES = "duplicates"
    ALONE = "records alone"
    SUSPICIOUS = "suspicious"
    ENCRYPTED = "encrypted links"
    COUNTED = "public number of records"


HEADLINES: Mapping[Kind, str] = {
    Kind.WITHIN: "The target is met against {who}",
    Kind.NO_TARGET: "No target was set, so nothing is met or missed",
    Kind.UNPROTECTED: "Nothing protects a record from {who}",
    Kind.INEXPRESSIBLE: "No bound can be expressed for {who}, so the target is not met",
    Kind.SEEDED: "Not met: the noise of this run can be repeated",
    Kind.HEURISTIC: "Not proven against {who}, so the target is not met",
    Kind.OVER: "Over the target against {who}",
    Kind.REBUILT: "Contradicted: an attack found more than is proven",
    Kind.MEASURED: "Contradicted: the audit found more than is proven",
    Kind.OPINION_CONTRADICTS: "Contradicted: another library finds more than is proven",
    Kind.TRACE_CONTRADICTS: "Contradicted: a second tracer finds more than is proven",
    Kind.MEMBERS_GUESSED: "Contradicted: more members were guessed than is proven",
    Kind.LAST_MODEL: "Contradicted: last models tell more than is proven",
    Kind.CHECK_FAILED: "Not met: a check of the audit failed",
    Kind.SUSPICIOUS: "The target is met on paper, but the audit is suspicious",
}
WITHOUT_TARGET: Mapping[Kind, str] = {
    Kind.UNPROTECTED: "No target was set, and nothing protects a record from {who}",
    Kind.INEXPRESSIBLE: "No target was set, and no bound can be expressed for {who}",
}

KINDS: Mapping[Kind, str] = {
    Kind.WITHIN: (
        "Epsilon against {who} is at most {figure} at delta {delta} for one {unit} ({adjacency}), "
        "proven; the limit is {limit} at delta {asked_delta}."
    ),
    Kind.NO_TARGET: (
        "No target is set, so no figure counts as too large: epsilon against {who} is {figure} at "
        "delta {delta} for one {unit} ({adjacency})."
    ),
    Kind.NOT_ACCOUNTED: "The run does not account for {adversary}, only for {known}.",
    Kind.OTHER_UNIT: (
        "The figure is for one {unit}, the limit for one {asked_unit}, and one says nothing of the "
        "other."
    ),
    Kind.OTHER_ADJACENCY: "The figure is for {adjacency}, the limit for {asked_adjacency}.",
    Kind.LARGER_DELTA: (
        "The figure holds at delta {delta}, which is larger than the limit's {asked_delta}."
    ),
    Kind.ONE_VICTIM: (
        "The figure is for {asked_victim} alone, the limit for any record of any agent."
    ),
    Kind.UNPROTECTED: (
        "Nothing keeps {who} from recognising, or rebuilding, {record}: no protection, epsilon is "
        "infinite{over_limit} ({because})."
    ),
    Kind.INEXPRESSIBLE: (
        "{Who} could tell whether {record} was trained on (membership inference), and how well "
        "cannot be expressed: a finite epsilon may hold in truth, but none is known here "
        "({because}){only_proven}."
    ),
    Kind.SEEDED: (
        "No figure of this run is proven: the noise comes from `evaluation_noise_seed`, and "
        "whoever knows it can subtract it; against them epsilon is infinite."
    ),
    Kind.HEURISTIC: (
        "{Who} could tell whether {record} was trained on (membership inference), and no limit to "
        "how well is proven: epsilon is heuristic, at least {figure} at delta {delta} "
        "({because}){only_proven}."
    ),
    Kind.OVER: (
        "{Who} could learn more than the limit allows about whether {record} was trained on: "
        "epsilon is {figure} at delta {delta}, {by} the limit of {limit}."
    ),
    Kind.RISK_WITHIN: (
        "Membership tests of {who} come to {name} {reached} at most for one {unit} ({adjacency}), "
        "proven; the limit is {limit_words}."
    ),
    Kind.RISK_OVER: (
        "Membership tests of {who} may come to {name} {reached}, over the limit of {limit_words}."
    ),
    Kind.REBUILT: "An attack rebuilt more than the proof allows: {said}",
    Kind.MEASURED: (
        "Against {adversary} epsilon is measured to be at least {measured} at delta {delta} and "
        "confidence {confidence}, more than the {proven} that is proven ({said})."
    ),
    Kind.OPINION_CONTRADICTS: (
        "{library} puts epsilon against {adversary} at no less than {optimistic} for the same "
        "releases, more than the {ours} that is stated."
    ),
    Kind.NO_OPINION: (
        "There is no second opinion on the figure against {adversary}: {why}. Change what it "
        "names, and train again, or leave `second_opinion` out of the policy."
    ),
    Kind.NOT_CONFIRMED: (
        "{library} puts epsilon against {adversary} between {optimistic} and {pessimistic} for the "
        "same releases, and the upper bound lies more than {within} above the {ours} that is "
        'stated. To state its figure, set `accountant = "dp-accounting"` in [privacy] and train '
        "again."
    ),
    Kind.CONFIRMED: (
        "{library} puts epsilon against {adversary} between {optimistic} and {pessimistic} for the "
        "same releases; the {ours} that is stated is {ratio} of its upper bound."
    ),
    Kind.TRACE_CONTRADICTS: (
        "A second tracer, which shares no code with the first, finds more against {adversary}: "
        "{why}; over all rounds a joint sensitivity of {second}, where {first} is stated."
    ),
    Kind.NOT_TRACED: (
        "The joint sensitivity to {adversary} was not held against a second tracer: {why}. Change "
        "what it names, and train again, or leave `second_opinion` out of the policy."
    ),
    Kind.TRACED: (
        "A second tracer, which shares no code with the first, finds no more against {adversary}: "
        "over all rounds a joint sensitivity of {second}, where {first} is stated."
    ),
    Kind.CHECK_FAILED: (
        "The check {check} of the implementation failed ({said}), so what ran is not what was "
        "accounted for."
    ),
    Kind.SUSPICIOUS: (
        "Against {adversary} epsilon is measured to be at least {measured} at delta {delta} and "
        "confidence {confidence}, once more than is proven ({said})."
    ),
    Kind.NO_REPORT: "privacy.json is missing; `overhear report {folder}` writes it.",
    Kind.STOPPED: (
        "The budget ended the run after round {end} of {planned}: rounds that were released more "
        "than once have used up the rest, and it cannot be continued. Train a new run, {waive}."
    ),
    Kind.TORN: "The last line of the ledger is torn, so the run was cut off. {Continue}, {waive}.",
    Kind.ROUNDS_MISSING: (
        "The ledger does not name {missing} of {planned} planned rounds. {Continue}, {waive}."
    ),
    Kind.CUT_OFF: "The run was cut off in its last round. {Continue}, {waive}.",
    Kind.SIGNED: "The folder is signed by {said}.",
    Kind.NOT_SIGNED: "The folder is not signed by a key of `signed_by`: {said}.",
    Kind.NO_AUDIT: "The run was not audited; `overhear audit {folder}` does it.",
    Kind.LOW_CONFIDENCE: (
        "The confidence of the audit is {confidence}, and {wanted} is asked for. Set `confidence` "
        "in [audit] of the run file, and train and audit again."
    ),
    Kind.AUDIT_ADJACENCY: (
        "The audit is for {adjacency}, the limit for {wanted}. Set `adjacency` in [privacy] of the "
        "run file, and train and audit again."
    ),
    Kind.NOT_MEASURED: (
        "The audit measured {known}, and not {adversary}. Name it in `adversaries` of [privacy] in "
        "the run file, and train and audit again, or limit one that is measured."
    ),
    Kind.FEW_CANARIES: (
        "The audit planted {canaries} canaries, and {wanted} are asked for. Set `canaries` in "
        "[audit] of the run file, and train and audit again."
    ),
    Kind.WEAK_AUDIT: (
        "Even a perfect audit of {canaries} canaries would show {best} of the figure against "
        "{adversary}, and {wanted} is asked for. Audit again with more of them (`overhear audit "
        "{folder} --again --set audit.canaries=N`)."
    ),
    Kind.NO_ATTACK: "The run was not attacked; `overhear attack {folder}` does it.",
    Kind.NOT_TRIED: (
        "No attack of this run is {preset}. Name it in `presets` of [attack] in the run file, "
        "train again, and run `overhear attack {folder}`."
    ),
    Kind.MEMBERS_GUESSED: "More members were guessed than the proof allows: {said}.",
    Kind.LAST_MODEL: "Last models tell more than is proven: {said}.",
    Kind.NO_MEMBERSHIP: (
        "Nobody tried to tell from the final models who was trained on; `overhear audit {folder} "
        "--membership` does it."
    ),
    Kind.MEMBERS_DOUBTED: (
        "Guesses of members are suspicious ({said}). Play more games: `overhear audit {folder} "
        "--membership --again --games 16`."
    ),
    Kind.MEMBERS_NOT_MEASURED: (
        "There are {others} non-members, and {needed} are needed to measure what is found at 1 % "
        "false positives. Play more games: `overhear audit {folder} --membership --again --games "
        "16`."
    ),
    Kind.MEMBERS_FOUND: (
        "{attack} on the model of {model} may find {rate} of the members at 1 % false positives, "
        "and {limit} are allowed."
    ),
    Kind.INFERRED: (
        "Membership was inferred with {references} references and {games} games: {verdict_word}."
    ),
    Kind.ATTACK_AGREES: "{attacks} rebuilt no more than the proof allows.",
    Kind.AUDIT_AGREES: (
        "The audit measured no more than is proven, and no check of the implementation failed."
    ),
    Kind.CLEARED: (
        "The audit measured more than is proven against {cleared} once, and a closer look with "
        "fresh canaries cleared it; no check of the implementation failed."
    ),
    Kind.VAIN: (
        "The audit could hold nothing against a proven figure ({called}), so it contradicts none; "
        "no check of the implementation failed."
    ),
    Kind.REPORTED: "privacy.json says what the files of the run give.",
    Kind.COMPLETE: "The ledger holds all {planned} planned rounds.",
    Kind.AUDITED: "The run was audited with {canaries} canaries{part} at confidence {confidence}.",
    Kind.TRIED: "{preset} was tried on the run's own messages{saw}.",
    Kind.ALONE: "Every item is made of one record alone, as far as can be shown: {alone}.",
    Kind.NOT_ALONE: (
        "That every item is made of one record alone is not shown: {alone}. Give a data function "
        "that takes `leave_out`, make each item of one record by public constants, and train "
        "again, or leave `records_alone` out of the policy."
    ),
}
VERDICT_ALONE = "The verdict of the audit is {verdict}."  # of an audit whose rows do not say why
NOTHING_SINGLED_OUT = (
    ", of which those that its adversary sees single nobody's gradient out, so it rebuilt nothing "
    "and shows nothing"
)
NOTHING_MEASURED = "The audit calls {adversary} {called}, and measured nothing ({said})."
WAIVE = "or set `complete_run = false`, since the planned rounds are accounted for either way"
CONTINUE = "Continue it with `overhear train {folder}/{file} --out {folder} --resume`"

ACTIONS: Mapping[Action, str] = {
    Action.ROUNDS: (
        "Train {rounds} in place of {planned}, with the same noise (`noise_multiplier = "
        "{used}` in [privacy]): {then}{still}."
    ),
    Action.AGAIN: "Train again without a repeated round, {rounds} in all: {then}{still}.",
    Action.NOISE: (
        "Add noise, with `noise_multiplier = {multiplier}` in [privacy]{now}: {then}{still}."
    ),
    Action.REPAIR: (
        'Set `form = "repaired"` in [algorithm] and {again}: with the same noise, {then}, '
        "proven{over}."
    ),
    Action.ENCRYPT: (
        'Encrypt the links, set `links = "encrypted"` in [graph] and {again}: the eavesdropper '
        "then reads the released models alone, and with the same noise {then}{over}; agents still "
        "read what is sent to them."
    ),
    Action.TARGET: (
        'Set {aim} and `adversary = "{name}"` in [privacy] and {again}: the noise '
        "that this takes is then calculated{multiplied}."
    ),
    Action.SEED: (
        "Leave `evaluation_noise_seed` out of [training] and {again}, so that nobody knows the "
        "noise{unseeded}."
    ),
    Action.PRIVATE: (
        '{algorithm} neither clips nor adds noise: set `name = "{private}"` in [algorithm], or '
        "another private algorithm, and `epsilon` and `delta` in [privacy]; the noise that it "
        "takes is then calculated."
    ),
    Action.ADD_NOISE: (
        "`noise_multiplier = 0` adds no noise: put a target in its place in [privacy], such as "
        "`epsilon = 1`{clipped}; the noise that it takes is then calculated."
    ),
    Action.HIDE: (
        "More noise does not help against {who}: choose an algorithm, or settings of it, that "
        "leave nothing of what is named above without noise."
    ),
    Action.PROVE: (
        "More noise proves nothing about {who}: choose an algorithm, or settings of it, whose "
        "messages are proven."
    ),
    Action.EXPRESS: (
        "More noise does not help against {who}, because nothing is known that it would bring: "
        "choose an algorithm, or settings of it, whose rounds can be accounted for."
    ),
    Action.ACCOUNTANT: (
        "No fix against {who} could be computed with this accountant: plan again with `--set "
        "privacy.accountant=pld`."
    ),
    Action.EAVESDROPPER: (
        "A single message is how papers count, and no adversary: name the eavesdropper instead, "
        '`adversary = "eavesdropper"`.'
    ),
    Action.NOBODY_ELSE: (
        "The run has one agent, so there is no such adversary: ask about the eavesdropper or the "
        "final models instead."
    ),
    Action.UNIT: "Ask for `{unit_key}`.",
    Action.ADJACENCY: 'Set `adjacency = "{asked_adjacency}"` in [privacy] and train again.',
    Action.DELTA: "Set `delta = {asked_delta}` in [privacy] and train again.",
    Action.VICTIM: "Leave {limiting} out of [privacy] and train again.",
    Action.ACCOUNT: "Name it in `adversaries` of [privacy] in the run file and train again.",
    Action.DISTRUST: (
        "Do not rely on any figure of this run: the proof, the program or the measurement is "
        "wrong. Report it, find which, and train again."
    ),
    Action.FAULT: (
        "Do not rely on any figure of this run. Report it, find the fault, train again, and audit "
        "again."
    ),
    Action.AUDIT_AGAIN: (
        "Audit again with four times as many fresh canaries (`overhear audit {folder} --again "
        "--set audit.canaries=N`), which adds to what was found, until that contradicts or is "
        "cleared."
    ),
    Action.SET_TARGET: (
        "No target is set: to set one, put the largest epsilon that you allow in place of "
        "`noise_multiplier` in [privacy], such as `epsilon = 1`; the noise that it takes is then "
        "calculated."
    ),
    Action.ADD_PRIVACY: (
        "No target is set, for there is no [privacy] table: to set one, add it with the largest "
        "`epsilon` that you allow and a `delta`, under an algorithm that is private."
    ),
    Action.ROUNDS_DEPEND: (
        "How many rounds stay within the limit is not computed: what a round sends or costs "
        "depends on their number here. To try one, plan again with `--set training.rounds=N`."
    ),
    Action.ONE_RELEASE: (
        "How many rounds stay within the limit is not computed: here all {planned} count as one "
        "release. To try a number, plan again with `--set training.rounds=N`."
    ),
    Action.TRY: (
        "What would fix it is not computed, because {why}. To see it, plan again with {tries}."
    ),
}

THEN = "epsilon against {who} is then at most {epsilon} at delta {delta}"
STATEMENTS: Mapping[str, str] = {
    "proven": "is protected with ε ≤",
    "doubted": "would be protected, if the proof held, with ε ≤",
    "heuristic": "is exposed with at least ε =",
    "unprotected": "has no protection: ε =",
    "inexpressible": "has no bound that can be expressed: ε ≤",
}
STATEMENT = (
    "{Subject} {lead} {figure} at δ = {delta} ({adjacency}) against {who}, over {rounds} rounds."
)
REASON = "The reason: {because}."
ALLOWED = "The run file allows ε ≤ {limit} at the same δ."
CLOSEST = (
    "No adversary that was asked about can learn more than the limit allows. Closest to it comes "
    "{who}, about whether {record} was trained on: epsilon is at most {figure} at delta {delta}, "
    "and the limit is {limit}."
)
MOST = (
    "{Who} could learn something about whether {record} was trained on: epsilon is at most "
    "{figure} at delta {delta}. No other adversary that was asked about learns more."
)
SAME = "The same goes for {others}."
HOW_PAPERS_COUNT = "How papers often count: one message at a time, to be compared with"
NAMES = {
    EAVESDROPPER.name: "the eavesdropper",
    WORST_NEIGHBOUR: "the worst single neighbour",
    ALL_OTHERS: "all other agents together",
    FINAL_MODELS.name: "a holder of the final models",
    SINGLE_MESSAGE.name: "a reader of one message",
}

NOTES: Mapping[Note, str] = {
    Note.MORE: "Beside the target, ε {sign} {figure} at the same δ and unit against {who}.",
    Note.STOPPED: (
        "The budget ended the run after round {end} of {planned}: rounds that were released more "
        "than once had used up the rest, and one more release would have exceeded the target of "
        "{who}."
    ),
    Note.UNFINISHED: (
        "The run is not finished: {done} of {planned} rounds were released. What stopped it may "
        "depend on the data, so the planned rounds are accounted for. `overhear train "
        "{folder}/{file} --out {folder} --resume` continues it{at_most}."
    ),
    Note.RESUMED: "The run was resumed {often}, and no round was released again.",
    Note.REPEATED: (
        "The run was resumed {often}. Released more than once: {which}. Each of the {releases} "
        "releases of rounds is counted.{more}"
    ),
    Note.TORN: "The last line of the ledger is torn; the release it announces is counted.",
    Note.SEEDED: (
        "The noise was drawn from `evaluation_noise_seed`: whoever knows it can subtract the noise."
    ),
    Note.DUPLICATES: (
        "{copies} records occur more than once. The figure holds for one copy: whoever is in the "
        "data k times is protected less."
    ),
    Note.ALONE: (
        "That every item of the data is made of one record alone is assumed, and every figure "
        "rests on it: {alone}."
    ),
    Note.SUSPICIOUS: "The audit is suspicious: once it measured more than is proven (section 6).",
    Note.ENCRYPTED: (
        "The links are taken to be encrypted: the eavesdropper reads the released models alone."
    ),
    Note.COUNTED: "{said}",
}
AT_MOST = ", to round {end} at the most, where its budget ends it"
# A bound on a sum whose length was not fixed beforehand needs more than composition.
MORE_THAN_PLANNED = (
    " They are more than the {planned} planned, so the figures hold if what cut the run off did "
    "not depend on the data."
)


def adversary_words(adversary: str, worst: str | None) -> str:
    """The adversary that was asked for, and which one it is where the worst was searched.

    >>> adversary_words("neighbour", "neighbour:1")
    'neighbour:1 (worst)'
    """
    return adversary if worst is None or adversary == ALL_OTHERS else f"{worst} (worst)"
