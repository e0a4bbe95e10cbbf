"""Conformance: whether what was kept of a recorded system is what its log says.

    messages    value - known - scale (clipped gradients + noise) is 0, where the noise is known
    residuals   what is left of a release is N(0, B B^T): by row, in pairs, over rounds, by
                coordinate
    sums        what is left has no part along the sums, nor along what clipping took off
    rows        what each record added is what the oracle makes of it alone
    sampler     kept batches are Poisson at their rates
    points      gradients were taken where everything is released or public
    numbers     scales, clip norms, noise, weights and rounds are those declared beforehand
    knowledge   noise with a name is what those who know it make of their seed again

Gradients are those of an oracle that the auditor gives. A check that had too little to say was not
run, and says why. What passes says nothing of rounds that were not kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...attacks.checks.result import Check, Verdict
from ...privacy.errors import InputError
from ...privacy.releases.chained_file import rounds_text
from ...privacy.releases.lines import Loose, party_name
from ...privacy.releases.log import read_log
from ...privacy.releases.values import check_keys, number, shown
from .chance_checks import check_residuals, check_sampler, check_sums
from .keeping import Gradients, Oracle, plain, raised, vector_of
from .left_over import KeptRelease, KeptRounds, LeftOver
from .outcome import Conformance, check_rows, is_random

# Checks that leave nothing to chance: messages, points, knowledge.

_ROUNDING = 64
_SCALE = 1e-6  # relative; a scale that is a quotient in float32 is off by less
_SIZES = 3  # of batches, of which a scale is a quotient by no chance


class Released(NamedTuple):
    """A value that was released and kept, as a function of points is given it."""

    round: int
    sender: int
    kind: str
    value: Tensor


def check_messages(of: LeftOver) -> Check:
    """Releases without noise, or with noise that the recorder drew, are what their lines say."""
    name = "messages"
    rows = [row for row in of.rows if row.is_drawn]
    if not rows:
        return Check.not_run(
            name,
            "every release has noise that the recorder did not draw, so what it adds up to is not "
            "known exactly; see residuals",
            applies=False,
        )
    faults = [(row, float((row.left - row.drawn).norm())) for row in rows]
    wrong = [(row, off) for row, off in faults if not off <= row.rounding]
    words = (
        f"{len(rows)} releases were compared with what is known of them, their clipped gradients "
        "by the oracle and their drawn noise"
    )
    told = "none differs by more than rounding"
    if wrong:
        row, off = wrong[0]
        told = f"{len(wrong)} differ, first: {row.at.where} is off by {off:.2g}, where rounding "
        told += f"accounts for {row.rounding:.2g}"
    return Check.exact(name, f"{words}; {told}.", tests=len(rows), passed=not wrong)


def check_points(
    rounds: KeptRounds,
    *,
    points: Callable[[int, int, Sequence[Released]], Any] | None,
    public: Sequence[Any],
) -> Check:
    """Points, and what is said to be known, are released, public, or made of such.

    Args:
        points: (round, agent, released) -> the point, or several of which each must be one; without
            it a point that is none of the released values is not accused.
        public: vectors that everybody knows, such as the initial model.
    """
    # Each point and known part among what was released before, or made of it.
    name, header = "points", rounds.log.header
    history = _History(rounds, [vector_of(one, "public") for one in public])
    looked, wrong, untold, why = 0, "", set[int](), ""
    for at in rounds.releases:
        number = at.played.round
        for what, owner, vector in _given(at):
            released = history.before(at)
            made = []
            if points is not None:
                asked = _asked("points", points, number, owner, released)
                if isinstance(asked, str):
                    why = why or asked
                    continue
                made = _vectors(asked)
            if history.explains(vector, made, released):
                looked += 1
            elif points is None or history.is_partial(number):
                untold.add(number)
            else:
                looked += 1
                wrong = wrong or (
                    f"{what} of {at.where} is none that was released or is public, nor what "
                    "`points` makes of these"
                )
    words = f"{looked} points and known parts were looked for among what was released before"
    if wrong:
        return Check.exact(name, f"{words}; {wrong}.", tests=looked, passed=False)
    # A gradient may be taken anywhere, and what is said to be known may be anything, so somebody
    # must have looked.
    applies = header.public or any(
        at.release.of or at.kept.known is not None for at in rounds.releases
    )
    if untold and not why:
        why = (
            f"the points of rounds {', '.join(map(str, sorted(untold)))} are unknown: say what "
            "they are made of by points=, give the initial model as public=[...], and keep the "
            "round before each"
        )
    if not looked and not why:
        why = "no release of these rounds has its point; give point= to release"
    if why:
        return Check.not_run(name, why, applies=applies)
    return Check.exact(name, f"{words}; each is there.", tests=looked)


Numbers = Callable[[int, int, Sequence[Released]], Mapping[str, float] | None]


def check_numbers(rounds: KeptRounds, *, numbers: Numbers | None, public: Sequence[Any]) -> Check:
    """Scales, clip norms, noise, weights, rates and the number of rounds are as declared.

    A training that chooses one of them when it has seen records tells of these by the choice, and
    be it the same number in all rounds.

    Args:
        rounds: what was kept; lines of other rounds are held against the header, too.
        numbers: (round, agent, released) -> the public numbers of the releases of a round by name,
            which stand over those of the header; None where the training has ended.
        public: vectors that everybody knows; of one number, a scale that some rounds have.
    """
    name, header, log = "numbers", rounds.log.header, rounds.log
    if told := _divided(rounds.releases):
        return Check.exact(name, f"{told}.", tests=1, passed=False)
    known = {float(one[0]) for one in (vector_of(one, "public") for one in public) if len(one) == 1}
    history, kept = _History(rounds, []), {at.release.kept: at for at in rounds.releases}
    looked, wrong, free = 0, list[str](), dict[str, str]()
    # What each line says, and the scale of what was kept, against what was declared.
    for played, of in log.rounds.items():
        for release in of:
            at = kept.get(release.kept)
            said, found = dict[str, float](), list(release.loose)
            if at is not None:
                found.append(Loose("scale", at.kept.scale, release.scale))
                if numbers is not None:
                    made = numbers_of(numbers, played.round, release.sender, history.before(at))
                    if made is None:
                        wrong.append(f"round {played.round} is after the end by `numbers`")
                    said = dict(made or {})
                found += [Loose(key, of, None) for key, of in release.numbers if key in said]
            looked += len(found) + 1
            for loose in found:
                declared = said.get(loose.name, loose.said)
                usual = declared is None and loose.name == "scale" and loose.value in {1.0, *known}
                if loose.value == declared or usual:
                    continue
                words = (
                    f"{loose.name} {loose.value:.9g} of {release.kind} of "
                    f"{party_name(release.sender, header)} in round {played.round}"
                )
                # A line may say another clip norm than its header, which is no contradiction.
                if declared is None or (loose.name == "clip" and loose.name not in said):
                    free.setdefault(loose.name, words)
                else:
                    wrong.append(f"{words} is not {declared:.9g}, as was declared")
    last = max(played.round for played in log.rounds)
    if header.rounds is not None and last > header.rounds:
        wrong.append(f"round {last} comes after the last that was declared, {header.rounds}")
    if wrong:
        return Check.exact(name, f"{wrong[0]}.", tests=looked, passed=False)
    ended = numbers is not None and numbers_of(numbers, last + 1, 0, history.all()) is None
    if header.rounds is None and not ended:
        free["rounds"] = "the number of rounds"
    if free:
        functions = [str(of) for key, of in header.numbers.items() if isinstance(of, str)]
        remedy = (
            "let numbers= give them, and keep their rounds" if numbers is not None else
            f"give {functions[0]} as numbers=" if functions else
            "declare them before the first batch, "
            f"record(..., {', '.join(f'{key}=' for key in sorted(free))}), or give numbers=, a "
            "public function of releases"
        )  # fmt: skip
        missing = " and ".join(free.values()) + (" is" if len(free) == 1 else " are")
        return Check.not_run(name, f"{missing} not declared, and may depend on records: {remedy}")
    if header.rounds is not None and last < header.rounds and not ended:
        return Check.not_run(
            name,
            f"the last round is {last} of {header.rounds} that were declared, and when a training "
            "stops may tell of records: go on, or give numbers=, a public function of releases "
            "that gives None where the training has ended",
        )
    words = f"{looked} numbers of {sum(map(len, log.rounds.values()))} releases were compared with "
    return Check.exact(
        name, f"{words}those that were declared before the first batch; none differs.", tests=looked
    )


def numbers_of(
    numbers: Numbers, round: int, agent: int, released: Sequence[Released]
) -> Mapping[str, float] | None:
    """What a function of the auditor's makes of releases.

    Raises:
        ValueError: it is no mapping of numbers by their names.
    """
    found = _asked("numbers", numbers, round, agent, released)
    if found is None:
        return None
    if not isinstance(found, Mapping):
        raise InputError(f"numbers gave {shown(found)}; it must give numbers by name, or None")
    check_keys(found, ("scale", "clip", "noise", "weight", "rate"), "what numbers gave")
    return {key: number(plain(one), key) for key, one in found.items()}


def _divided(every: Sequence[KeptRelease]) -> str:
    """That scales are divided by the size of a batch, which is as private as the batch."""
    by_kind: dict[tuple[int, str], list[tuple[float, int, str]]] = {}
    for at in every:
        if at.release.of and at.release.of[0].rate < 1 and 0 in at.kept.batches:
            mine = at.kept.scale, len(at.kept.batches[0]), at.name
            for kind in (at.release.kind, ""):  # a kind may never come again
                by_kind.setdefault((at.release.sender, kind), []).append(mine)
    for of in by_kind.values():
        products = [scale * size for scale, size, _ in of if size > 0]
        alike = all(math.isclose(product, products[0], rel_tol=_SCALE) for product in products)
        if alike and len({size for _, size, _ in of if size > 0}) >= _SIZES:
            return (
                f"the scale of {of[0][2]} is divided by the size of its batch, and so tells it; "
                "divide by the expected size"
            )
    return ""


def _given(at: KeptRelease) -> list[tuple[str, int, Tensor]]:
    """What of a release must be made of releases: in words, of which agent, and the vector."""
    of = at.release.of
    found = [("the point", of[j].owner, point) for j, point in sorted(at.kept.points.items())]
    if at.kept.known is not None and bool(at.kept.known.any()):
        found.append(("what is known", at.release.sender, at.kept.known))
    return found


class _History:
    """What was released and kept, of which points may be made, in order.

    Where a release depends on public ones alone, only those.
    """

    def __init__(self, rounds: KeptRounds, initial: Sequence[Tensor]) -> None:
        self._rounds, self._initial = rounds, initial
        self._public = rounds.log.header.public
        self._made: dict[int, list[tuple[object, Released]]] = {}
        every, last = {played.round for played in rounds.log.rounds}, max(rounds.numbers)
        self._numbers = sorted(number for number in every if number <= last)

    def all(self) -> list[Released]:
        """Everything."""
        return [one for n in self._numbers for _, one in self._of(n)]

    def before(self, at: KeptRelease) -> list[Released]:
        """Everything up to a release's round but for the release itself."""
        numbers = [n for n in self._numbers if n <= at.played.round]
        return [one for n in numbers for kept, one in self._of(n) if kept is not at.kept]

    def _of(self, number: int) -> list[tuple[object, Released]]:
        if number not in self._made:
            self._made[number] = [
                (one.kept, Released(number, one.release.sender, one.release.kind, one.kept.value))
                for one in self._rounds.of_round(number)
                if not self._public or one.release.to is None
            ]
        return self._made[number]

    def explains(
        self, vector: Tensor, made: Sequence[Tensor], released: Sequence[Released]
    ) -> bool:
        """Whether a vector is one of these; the last ones are the likeliest."""
        likely = (*made, *(one.value for one in reversed(released)), *self._initial)
        return any(_same(vector, one) for one in likely)

    def is_partial(self, number: int) -> bool:
        """Whether something that was there before a round is not here to compare with."""
        last = [n for n in self._numbers if n < number][-1:]
        return not self._rounds.is_whole(last[0]) if last else not self._initial


def _asked(name: str, function: Callable[..., Any], *given: Any) -> Any:
    """What a function of the auditor's returns."""
    try:
        return function(*given)
    except (Exception, SystemExit) as error:
        raise raised(name, error) from error


def _vectors(found: Any) -> list[Tensor]:
    if found is None:
        return []
    several = isinstance(found, list | tuple)
    return [vector_of(one, "points") for one in (found if several else [found])]


def _same(point: Tensor, other: Tensor) -> bool:
    if point.shape != other.shape:
        return False
    unit = max(torch.finfo(point.dtype).eps, torch.finfo(other.dtype).eps)
    apart = float((point.double() - other.double()).norm())
    return apart <= _ROUNDING * unit * float(point.double().norm() + other.double().norm())


def check_knowledge(
    rounds: KeptRounds, of: LeftOver, sources: Callable[[str, int], Any] | None
) -> Check:
    """Noise with a name is what each agent that is said to know it makes of it again.

    Args:
        sources: (id, agent) -> (D,) the standard normal numbers of a source, as an agent makes
            them from the seed that it holds.
    """
    name = "knowledge"
    if sources is None:
        return Check.not_run(name, "no function was given that makes sources again", applies=False)
    # Releases whose noise is all kept, or has names.
    pairs, wrong = 0, ""
    for row in of.rows:
        named = [one for one in row.at.release.noise if one.id is not None]
        free = [j for j, one in enumerate(row.at.release.noise) if one.id is None]
        if not named or any(j not in row.at.kept.noise for j in free):
            continue
        rest = row.left.clone()
        for j in free:
            rest -= row.at.kept.noise[j].double()
        parts = {
            (one.id, agent): one.std * _made(sources, one.id or "", agent, len(rest))
            for one in named
            for agent in sorted(one.known_to)
        }
        # A source that nobody knows can be made again by nobody.
        if any(not one.known_to for one in named):
            continue
        # Each agent's source takes the place of the first one's, and must leave nothing.
        first = {one.id: parts[one.id, min(one.known_to)] for one in named}
        for (id_, agent), part in parts.items():
            pairs += 1
            left = rest - sum(first.values(), torch.zeros_like(rest)) + first[id_] - part
            if not float(left.norm()) <= row.rounding:
                who = party_name(agent, rounds.log.header)
                where = f"{row.at.name} of round {row.at.played.round}"
                wrong = wrong or f"{id_!r} in {where} is not what {who} makes of its seed"
    if not pairs:
        why = "no release has sources with names and nothing else that is secret"
        return Check.not_run(name, why)
    words = f"{pairs} pairs of a source and an agent that is declared to know it were made again"
    words += f"; {wrong}" if wrong else "; each is what the release holds"
    return Check.exact(name, f"{words}.", tests=pairs, passed=not wrong)


def _made(sources: Callable[[str, int], Any], id: str, agent: int, width: int) -> Tensor:
    found = vector_of(_asked("sources", sources, id, agent), "sources").double()
    if len(found) != width:
        raise InputError(f"sources({id!r}, {agent}) has {len(found)} values, and must have {width}")
    return found


def conformance(
    path: str | Path | Sequence[Path],
    *,
    gradients: Gradients,
    rounds: Sequence[int] | int | None = None,
    seed: int | None = None,
    points: Callable[[int, int, Sequence[Released]], Any] | None = None,
    public: Sequence[Any] = (),
    numbers: Numbers | None = None,
    sources: Callable[[str, int], Any] | None = None,
    records: Mapping[int, int] | None = None,
    absent: Mapping[int, Sequence[int]] | None = None,
) -> Conformance:
    """Hold the kept transcripts of a log, or of a folder of logs, against their lines.

    Args:
        path: a folder of logs, several, or one, which alone leaves the status declared.
        gradients: (point (D',), positions (B,)) -> (B, D), or with `agent` besides, or one such
            function by agent; unclipped. `oracle.per_example` makes one of a model and its loss.
        rounds: which of the kept rounds; a number draws as many by chance, None takes all.
        seed: of the drawing; the system's entropy when None.
        points: (round, agent, released) -> the point, or several of which it must be one, where it
            is a function of what was released; a text says why it is not known.
        numbers: (round, agent, released) -> scale, clip, noise, weight or rate by name, where the
            header does not have them, or None where the training has ended.
        sources: (id, agent) -> (D,) standard normal numbers of noise with a name.
        records: by agent how many it holds, where its batches were drawn elsewhere.
        absent: by agent the rounds in which it released nothing, as is publicly known.

    Returns:
        The outcome of each check, what they come to, and what stays assumed.

    Raises:
        FileNotFoundError: a log, or a transcript that it names, is missing.
        ValueError: a log or a transcript that is not as it was written, gradients of another shape.
    """
    # The log with its transcripts, taken apart by the gradients of an oracle.
    of = [Path(path)] if isinstance(path, str | Path) else [Path(one) for one in path]
    log = read_log(
        of[0] if len(of) == 1 else of, absent=absent, partial=len(of) == 1 and of[0].is_file()
    )
    kept_rounds = KeptRounds(log, rounds=rounds, seed=seed)
    oracle = Oracle(gradients)
    left_over = LeftOver(kept_rounds, oracle)
    # Rows first: other outcomes rest on each record's row being its own.
    rows = check_rows(left_over, oracle)
    outcomes: list[Check] = [
        *_of_gradients(left_over, rows),
        check_sampler(kept_rounds, dict(records or {})),
        check_points(kept_rounds, points=points, public=public),
        check_numbers(kept_rounds, numbers=numbers, public=public),
        check_knowledge(kept_rounds, left_over, sources),
    ]
    # What was not kept, or stands in another log, is no evidence.
    if kept_rounds.unkept or left_over.unknown:
        first = left_over.unknown[:1] or [f"{kept_rounds.unkept} were not kept"]
        count = kept_rounds.unkept + len(left_over.unknown)
        why = f"{count} releases of these rounds could not be taken apart, first: {first[0]}"
        outcomes.append(Check.not_run("every release", why))
    if log.header.agent not in (None, 0) or (log.header.agent == 0 and log.header.agents > 1):
        who = party_name(log.header.agent, log.header)
        why = f"only the log of {who} was given; what others release is in theirs"
        outcomes.append(Check.not_run("every log", why))
    return Conformance(
        log=log,
        rounds=kept_rounds.numbers,
        outcomes=tuple(outcomes),
        assumed=tuple(_assumed(kept_rounds, outcomes)),
    )


def _of_gradients(left: LeftOver, rows: Check) -> list[Check]:
    """The checks that compare with gradients; none where these are others each time."""
    if is_random(rows):
        why = rows.words.removesuffix(".")
        return [*(Check.not_run(name, why) for name in ("messages", "residuals", "sums")), rows]
    return [check_messages(left), check_residuals(left), check_sums(left), rows]


def _assumed(kept: KeptRounds, outcomes: Sequence[Check]) -> list[str]:
    """What no check here shows, in sentences."""
    every = sorted({played.round for played in kept.log.rounds})
    others = len(every) - len(kept.numbers)
    found = [
        "A1: everything that depends on records and leaves is a line; what no line announces is "
        "seen by no check.",
        "A5: seeds and generators are secret, and no one else can make the noise again.",
        "A6: a record has one owner, and what a data set gives at its position, or the oracle, is "
        "made of it alone.",
        "A2: what was declared before the first batch was chosen without the records.",
        "When messages leave, and how long they take, tells nothing of records.",
    ]
    if others:
        found.append(
            f"{others} {'round' if others == 1 else 'rounds'} beside {rounds_text(kept.numbers)} "
            "went as their lines say; nothing of them was looked at."
        )
    found += [
        f"What {outcome.name} would show, which was not run: {outcome.words}"
        for outcome in outcomes
        if outcome.verdict is Verdict.NOT_RUN and (outcome.applies or outcome.name == "points")
    ]
    return found
