"""What somebody who relies on a judgement must know beside it: interruptions, copies, doubts."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from ...privacy.adversary import EAVESDROPPER
from ...runs.folder import folder as run_folder
from ..standing import sign_of
from . import phrases
from .facts import Facts, Ran
from .findings import Kind
from .phrases import NOTES, Note
from .proofs import against_proofs
from .sentence import Figure, Sentence, Value, fill
from .wording import who

__all__ = ["notes"]

_MOST_STRETCHES = 4  # of rounds that follow each other


def notes(facts: Facts, *, limited: Collection[str] = ()) -> dict[Note, list[Sentence]]:
    """The notes on a run, by what they are about; those that do not apply are left out.

    Args:
        facts: of a run that was trained.
        limited: adversaries that have a limit of a policy.
    """
    found: dict[Note, list[Sentence]] = {}
    for note, sentence in _notes(facts, limited):
        found.setdefault(note, []).append(sentence)
    return found


def _notes(facts: Facts, limited: Collection[str]) -> Iterator[tuple[Note, Sentence]]:
    ran = facts.ran
    if ran is None:
        return
    yield from _larger(facts)
    yield from _ended(facts, ran)
    yield from _resumed(facts, ran)
    if ran.torn:
        yield Note.TORN, fill(NOTES[Note.TORN])
    if facts.seeded:
        yield Note.SEEDED, fill(NOTES[Note.SEEDED])
    if ran.duplicates:
        copies = Figure("whole", ran.duplicates, ("run", "duplicate_records"))
        yield Note.DUPLICATES, fill(NOTES[Note.DUPLICATES], copies=copies)
    if ran.items is not None and not ran.items.shown:
        yield Note.ALONE, fill(NOTES[Note.ALONE], alone=ran.alone)
    if any(finding.kind is Kind.SUSPICIOUS for finding in against_proofs(facts)):
        yield Note.SUSPICIOUS, fill(NOTES[Note.SUSPICIOUS])
    if facts.counted:
        yield Note.COUNTED, fill(NOTES[Note.COUNTED], said=facts.counted)
    if facts.encrypted and EAVESDROPPER.name in limited:
        yield Note.ENCRYPTED, fill(NOTES[Note.ENCRYPTED])


def _larger(facts: Facts) -> Iterator[tuple[Note, Sentence]]:
    """Adversaries beside the target that learn more than it."""
    target = None if facts.target is None else facts.claim(facts.target)
    for claim in facts.claims if target is not None else ():
        if target is not None and claim.epsilon > target.epsilon:
            figure = Figure(claim.kind, claim.epsilon, ("ledger", "epsilon", claim.name))
            sign = sign_of(claim.epsilon, proven=claim.proven)
            said = fill(NOTES[Note.MORE], sign=sign, figure=figure, who=who(claim, facts))
            yield Note.MORE, said


def _ended(facts: Facts, ran: Ran) -> Iterator[tuple[Note, Sentence]]:
    """Where the run ended, if that is not the planned end."""
    planned = Figure("whole", facts.rounds, ("run", "rounds"))
    at_most: Sentence = ()
    end: Value = ""
    by: Value = ""
    if ran.stopped is not None:
        number, adversary = ran.stopped
        claim = facts.claim(adversary)
        end = Figure("whole", number, ("run", "stopped", "round"))
        by = adversary if claim is None else who(claim, facts)
        at_most = fill(phrases.PARTS["at_most"], end=end)
    if not ran.finished:
        yield (
            Note.UNFINISHED,
            fill(
                NOTES[Note.UNFINISHED],
                done=Figure("whole", ran.done, ("run", "rounds_done")),
                planned=planned,
                folder=ran.folder,
                file=run_folder.RUN,
                at_most=at_most,
            ),
        )
    elif ran.stopped is not None:
        yield Note.STOPPED, fill(NOTES[Note.STOPPED], end=end, planned=planned, who=by)


def _resumed(facts: Facts, ran: Ran) -> Iterator[tuple[Note, Sentence]]:
    """How often the run was resumed, and what it released more than once."""
    if not ran.resumed:
        return
    often = "once" if ran.resumed == 1 else f"{ran.resumed} times"
    if not ran.repeated:
        yield Note.RESUMED, fill(NOTES[Note.RESUMED], often=often)
        return
    planned = Figure("whole", facts.rounds, ("run", "rounds"))
    more = (
        fill(phrases.PARTS["more_than_planned"], planned=planned)
        if ran.accounted > facts.rounds
        else ()
    )
    yield (
        Note.REPEATED,
        fill(
            NOTES[Note.REPEATED],
            often=often,
            which=_which(ran.repeated),
            releases=Figure("whole", ran.releases, ("ledger", "rounds")),
            more=more,
        ),
    )


def _which(repeated: Sequence[tuple[int, int]]) -> Sentence:
    """The rounds of (round, how often), those that follow each other as one stretch."""
    stretches: list[list[int]] = []  # places of the first and the last
    for at, (number, _) in enumerate(repeated):
        if stretches and number > 1 and repeated[at - 1][0] == number - 1:
            stretches[-1][1] = at
        else:
            stretches.append([at, at])
    shown: list[Sentence] = []
    for first, last in stretches[:_MOST_STRETCHES]:
        begins, ends = (
            Figure("whole", repeated[at][0], ("ledger", "repeated", at, 0)) for at in (first, last)
        )
        if repeated[first][0] == 0:
            shown.append(("the start",))
        elif first == last:
            shown.append(("round ", begins))
        else:
            shown.append(("rounds ", begins, " to ", ends))
    if len(stretches) > _MOST_STRETCHES:
        shown.append(("others",))
    joined = list(shown[0])
    for place, one in enumerate(shown[1:], start=2):
        joined += [" and " if place == len(shown) else ", ", *one]
    return tuple(joined)
