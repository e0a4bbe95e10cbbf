"""The recorder: writes a line for each release, and returns when it is on the disk."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Protocol, Self, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ...privacy.accounting.request import Accountant, Adjacency
from ...privacy.errors import InputError, InputTypeError, needed
from ...privacy.guarantee import Statement, Unit
from ...privacy.releases.chained_file import ChainedFile, round_number
from ...privacy.releases.lines import Header, Loose, Release, party_name, read_release
from ...privacy.releases.log import ReleaseLog, read_log
from ...privacy.releases.values import SERVER, check_size, number, party, shown
from ...training.accounts.declared import DeclaredAccount, account_of_releases
from ...training.device.later import torch
from ...training.step.floor import MOST_LOST, mu_lost
from .keeping import each_of, flat_of, is_precise, keep, plain, positions_of, precision_of
from .labels import Draws, EarlierLines, Sent, labelled, transcribed

if TYPE_CHECKING:
    from torch import Tensor

    from ...attacks.foreign.audit_training import Planted
    from ...attacks.foreign.claimed import Claimed
    from .canaries import PlantedRows
    from .outcome import Conformance


# What a recorder asks of an adapter that listens to a library.


class System(Protocol):
    """Training code that a recorder listens to, by an adapter for its library."""

    @property
    def settings(self) -> Mapping[str, Any]:
        """What the library says of itself: name, agents, agent, clip, rate, sampler, unit."""
        ...

    def attach(self, recorder: Any) -> None:
        """Call the recorder before each release from here on."""
        ...

    def detach(self) -> None:
        """Leave the library as it was."""
        ...


@runtime_checkable
class Observing(System, Protocol):
    """A system that sees gradients: it can be held against its lines, and audited by canaries.

    Attributes:
        rehearsal: where the log goes in place of what `record` says, where the training is one of
            an audit, of which nothing is released or kept; else None.
        ratios: whether scores are log-likelihood ratios at what the log claims.
    """

    rehearsal: Path | None
    ratios: bool

    def gradients(self) -> Callable[..., Any]:
        """Per-example gradients, as `conformance` takes them."""
        ...

    def points(self, round: int, agent: int, released: Sequence[Any]) -> Any:
        """Where gradients of a round should have been taken, as `conformance` asks for it."""
        ...

    def scores(self, planted: Any) -> ArrayLike:
        """(m,) one a canary of the data that were trained on, higher if it is in."""
        ...


# Whether a release's numbers are too large for its noise; see `privacy.noise.floor`.
#
# In which order a system of one's own adds up what it knows, data and noise, nobody can see. So it
# counts as the worst unless its line says `noise_first`, where noise comes last: what is known, or
# else the whole of what leaves, is rounded with clean data beside it. What leaves in fewer digits
# than float32 was summed in float32.


def check_floor(release: Release, sent: Sent) -> None:
    """Refuse a release whose noise is lost in the rounding of the numbers beside it.

    One without noise, or whose noise came first, is not looked at.

    Raises:
        ValueError: rounding would add more than 2^-8 to mu.
    """
    value, known, scale = sent
    beside = value if known is None else known
    if beside is None or not len(beside) or not release.noise or release.noise_first:
        return
    # Noise that two parties know hides nothing from one of them, unless there is no other.
    own = [n.std for n in release.noise if len(n.known_to) <= 1] or [n.std for n in release.noise]
    deviation, name = abs(scale) * math.hypot(*own), "value" if known is None else "known"
    kind = precision_of(beside)
    if known is None and not is_precise(beside):
        kind = "float32"
    known_to_numpy = kind in ("float16", "float32", "float64")
    digits = np.finfo(kind) if known_to_numpy else torch.finfo(getattr(torch, kind))
    beside = np.asarray(beside if isinstance(beside, np.ndarray) else beside.double(), np.float64)
    with np.errstate(over="ignore"):
        lost = mu_lost(float(np.linalg.norm(beside)), deviation, eps=float(digits.eps))
    if lost <= MOST_LOST:
        return
    at = int(np.abs(beside).argmax())
    raise InputError(
        f"{name} is as large as {float(beside[at]):g} (coordinate {at}), and its noise has "
        f"deviation {deviation:.3g}: where noise comes in last, the rounding of "
        f"{kind} adds {lost:.2g} to mu, and {MOST_LOST:.2g} is the "
        "most; where noise is added to the clipped sum before anything else, say noise_first=True, "
        "which is then assumed; else add it there, or centre the values"
    )


def _rows_of(planted: Planted | None) -> PlantedRows | None:
    """What replaces the rows of canaries in an audit."""
    if planted is None:
        return None
    from .canaries import PlantedRows

    return PlantedRows(planted)


class Recorder:
    """Writes releases down before they leave; made by `record`.

    Args:
        file: the log, open.
        header: what its first line says.
        keep: rounds whose transcripts are kept.
        before: what the log held when it was gone on with, None of a new one.
        planted: the data of an audit, whose canaries are planted by `canaries`.

    Attributes:
        header: as given.
        next_round: the first round that no earlier session has, 1 in a new log.
    """

    def __init__(
        self,
        file: ChainedFile,
        header: Header,
        *,
        keep: frozenset[int] | Literal["all"],
        before: ReleaseLog | None,
        planted: Planted | None = None,
    ) -> None:
        self._file, self.header, self._keep = file, header, keep
        self._planted, self._canaries = planted, _rows_of(planted)
        self._drawn, self._said, self._lock = Draws(), EarlierLines(header), threading.RLock()
        self._round, self._place, self._open = -1, 0, True
        self._goes_on = before is not None
        self._system: System | None = None
        self.next_round = 1 + max((of.round for of in before.rounds), default=0) if before else 1
        for played, releases in before.rounds.items() if before else ():
            for release in releases:
                self._said.take_in(release, round=played.round)
        self._drawn.gone = self._said.sources()

    @property
    def path(self) -> Path:
        """The log."""
        return self._file.path

    def batch(
        self, n: int, rate: float | None = None, *, owner: int | None = None
    ) -> NDArray[np.int64]:
        """Draw a Poisson batch from the system's entropy: each record on its own.

        It belongs to the round of the next release, whose line says that it was drawn so. A second
        one in a round is another batch, and then releases say of which they are made.

        Args:
            n: how many records there are.
            rate: probability of each; the log's when None.
            owner: whose records, where the log holds everybody's releases.

        Returns:
            (B,) ascending positions in 0..n-1, possibly none.

        Raises:
            ValueError: a number out of range, or the unit is a client.
        """
        if self.header.unit is Unit.CLIENT:
            raise InputError(
                "batch draws records, and here the unit is a client, who takes part as a whole; "
                "draw the clients of a round yourself, and declare their sampler and rate"
            )
        with self._lock:
            self._check_open()
            who = self._party(owner, "owner")
            if who == self.header.agents:
                raise InputError("a server holds no records to draw; name the owner of the batch")
            rate = self.header.rate if rate is None else rate
            return self._drawn.batch(who, n, rate, planted=self._planted)

    def canaries(self, rows: Any, batch: Any) -> Any:
        """Gradients of a batch, those of an audit's canaries replaced; of other data as they are.

        The audit scores each release that is made of them by its log-likelihood ratio.

        Args:
            rows: (B, D) a tensor or an array, before clipping.
            batch: (B,) as `batch` returned it for the length of `data`.

        Raises:
            ValueError: rows of another batch, or more canaries than coordinates.
        """
        if self._canaries is None:
            return rows
        return self._canaries.plant(rows, batch, clip=self.header.clip)

    def noise(
        self,
        shape: int | Sequence[int],
        std: float,
        id: str | None = None,
        *,
        like: Tensor | NDArray[Any] | None = None,
    ) -> Any:
        """Gaussian noise of the engine's secret randomness, under a root of its own.

        Args:
            std: deviation of each value.
            id: the source's name, where several releases hold it: asked for again it is the same.
            like: a tensor or an array whose kind, precision and device it shall have.

        Returns:
            A tensor, or an array where `like` is one.

        Raises:
            ValueError: a number out of range, a source of another size or of an earlier session.
        """
        with self._lock:
            self._check_open()
            return self._drawn.draw_noise(shape, std, id, like)

    def release(
        self,
        round: int,
        *,
        kind: str,
        to: int | str | Sequence[int | str],
        noise: float | Sequence[Mapping[str, Any]],
        of: Sequence[Mapping[str, Any]] | None = None,
        value: Any = None,
        batch: Any = None,
        point: Any = None,
        known: Any = None,
        scale: float | None = None,
        records: int | None = None,
        rows: Any = None,
        sender: int | str | None = None,
        public: str | None = None,
        noise_first: bool = False,
    ) -> None:
        """Write a release down; it may leave once this has returned.

        What leaves is known + scale (sum of weighted clipped vectors + noise). Neither `scale` nor
        `known` changes what it tells, as long as they depend on nothing but what `depends_on` says.

        Args:
            round: from 0, never less than before.
            kind: a name; two messages of a round to one receiver have two.
            to: an agent, "server", a list of them, or "all" where it is public.
            noise: the deviation of each coordinate of the sum, or a list of sources with std, id,
                weight and known_to; 0 or [] says that there is none.
            of: the clipped vectors in it, with owner, batch, vector, weight, clip, rate, round; one
                of the sender's when None.
            value: what leaves, for kept rounds, and so that noise lost in its rounding is refused.
            batch: positions of the records in it, each once.
            point: the model at which gradients were taken.
            known: what of the value does not depend on these records.
            scale: factor of the sum and its noise in the value, not 0; the declared one when None,
                or 1.
            records: how many the system itself drew the batches from.
            rows: (B, D) what each record of the batch added, before it was clipped, in the order of
                the batch, or a list of tensors (B, ...) laid end to end; of these a sketch is kept.
            sender: whose release it is, where the log holds everybody's.
            public: why nothing that the sender received is in it beside what is listed, where it
                received what is not public, and releases depend on public ones alone.
            noise_first: whether the noise was added to the bare sum, before `known` or any other
                number; the line says so, and the account assumes it. Otherwise a release is refused
                that would lose its noise if that had been added last.

            A tuple as batch, point or rows has one for each vector of `of`.

        Raises:
            ValueError: a line that a reader would refuse, a value that is not finite, a kept round
                without its value, a number that is not as declared; nothing was written.
            OSError: the line may not be on the disk, so nothing must leave.
        """
        with self._lock:
            # Numbers, party and vectors, in the order of rounds.
            self._check_open()
            at = round_number(plain(round), least=0)
            if at is None:
                raise InputError(f"round={shown(round)} must be a whole number of at least 0")
            if at < self._round:
                raise InputError(
                    f"round={at} stands after round {self._round}; rounds are in order, and a "
                    "system that goes back to a checkpoint opens its log again with resume=True"
                )
            who = self._party(sender, "sender")
            if self.header.rounds is not None and at > self.header.rounds:
                raise InputError(
                    f"round={at} comes after the last that was declared, rounds="
                    f"{self.header.rounds}; a training that goes on for what records show tells "
                    "of them: declare all rounds in record(...)"
                )
            self._enter(at)
            said = self.header.said("scale", kind, at - 1)
            scale = number(plain((said or 1.0) if scale is None else scale), "scale")
            check_size(scale, "scale")
            if scale == 0:
                raise InputError("scale=0 leaves nothing of the sum; declare of=[] and noise=0")
            if of is not None and (isinstance(of, str | Mapping) or not isinstance(of, Sequence)):
                raise InputError(f"of={shown(of)} must be a list of vectors")
            given = each_of(batch, 1 if of is None else len(of), "batch")
            batches = [None if one is None else positions_of(one) for one in given]
            # The line, read back as an account will read it.
            entry: dict[str, Any] = {
                "from": SERVER if who == self.header.agents else who,
                "to": plain(to),
                "kind": kind,
                **({} if of is None else {"of": plain(of)}),
                "noise": plain(noise),
                **({} if public is None else {"public": public}),
                **({} if noise_first is False else {"noise_first": plain(noise_first)}),
            }
            entry = labelled(
                entry,
                self.header,
                sender=who,
                round=at,
                drawn=self._drawn.batches,
                said=self._said,
                positions=batches,
            )
            release = read_release(entry, self.header, round=at)
            for one in (*release.loose, Loose("scale", scale, release.scale)):
                if one.said not in (None, one.value):
                    raise InputError(
                        f"{one.name} {one.value:.9g} of {shown(kind)} in round {at} is not "
                        f"{one.said:.9g}, as record(...) declared it before the first batch; a "
                        "number that changes by what records show tells of them: declare a list "
                        f"or a function of the round, {one.name}=..., or what each kind has"
                    )
            # A value whose noise is lost in rounding is refused.
            sent = Sent(
                None if value is None else flat_of(value, "value"),
                None if known is None else flat_of(known, "known"),
                scale,
            )
            check_floor(release, sent)
            if self._canaries is not None:
                self._canaries.check(release, sent, batches[0] if batches else None)
            kept = None
            if self.keeps(at):
                if sent.value is None:
                    raise InputError(
                        f"value is missing, and round {at} is kept: give value=, and batch= and "
                        "point= where it holds gradients; or leave the round out of keep"
                    )
                kept = transcribed(
                    release,
                    drawn=self._drawn,
                    sent=sent,
                    batches=batches,
                    point=point,
                    records=records,
                    rows=rows,
                    order=batch,
                )
            # Nothing is written before all has passed; the transcript precedes its line.
            self._said.check(release, round=at)
            if kept is not None:
                entry["kept"] = keep(self.path, kept, round=at, place=self._place)
            if self._goes_on:
                self._file.append_mark({"resumed_after": at - 1})
                self._goes_on = False
            self._file.append({"round": at, "releases": [entry]})
            self._place += 1
            if self._canaries is not None:
                self._canaries.note(release, sent)

    def account(
        self,
        *,
        delta: float,
        adversaries: Sequence[str] = (),
        victim: int | None = None,
        adjacency: Adjacency | str = Adjacency.ADD_OR_REMOVE_ONE,
        accountant: Accountant | str = Accountant.PLD,
    ) -> DeclaredAccount:
        """What the releases that are written so far cost each adversary.

        Where other agents write logs of their own, a warning says that these are not counted.

        Args:
            delta: in (0, 1).
            adversaries: as of `account_of_releases`.
            victim: the agent whose record is at risk; None searches the worst one.

        Raises:
            ValueError: a value that is unknown or out of range.
        """
        log = read_log(self.path, partial=True)
        statement = Statement(
            delta=delta,
            adjacency=Adjacency(adjacency),
            unit=self.header.unit,
            accountant=Accountant(accountant),
        )
        return account_of_releases(log, statement=statement, adversaries=adversaries, victim=victim)

    def conformance(
        self,
        gradients: Callable[..., Any] | Mapping[int, Callable[..., Any]] | None = None,
        *,
        rounds: Sequence[int] | int | None = None,
        **how: Any,
    ) -> Conformance:
        """Hold what was kept of this log against its lines; see `conformance`.

        What is found is written beside the log as conformance.json, which reports read.

        Args:
            gradients: the oracle; by default that of the adapter which was given to `record`.
            how: more of `conformance`.
        """
        with needed("conformance"):
            from .conformance import conformance
            from .outcome import write_held

        if gradients is None:
            seen = self._observing("gradients", "give gradients=, a function of your own")
            gradients = seen.gradients()
            how = {"points": seen.points, **how}
        found = conformance(self.path, gradients=gradients, rounds=rounds, **how)
        write_held(found)
        return found

    def listen_to(self, system: System) -> None:
        """Let an adapter of a library call this recorder until it is closed."""
        system.attach(self)
        self._system = system

    def keeps(self, round: int) -> bool:
        """Whether the transcripts of a round are kept."""
        return isinstance(self._keep, str) or round in self._keep

    @property
    def ratios(self) -> bool:
        """Whether `scores` are log-likelihood ratios at what the log claims."""
        observing = isinstance(self._system, Observing) and self._system.ratios
        return observing or self._canaries is not None

    def claim(self, delta: float) -> Claimed:
        """What the log claims of itself, for an audit of the training that it records."""
        from ...attacks.foreign.claimed import claim_of_log

        return claim_of_log(read_log(self.path, partial=True), delta=delta)

    def scores(self, planted: Any) -> ArrayLike:
        """(m,) what was seen of each canary in the training that this log records."""
        if self._canaries is not None:
            return self._canaries.scores(planted)
        remedy = "let train return the model, plant canaries by record(..., data=) and canaries()"
        return self._observing("scores", remedy).scores(planted)

    def _observing(self, what: str, remedy: str) -> Observing:
        if not isinstance(self._system, Observing):
            raise InputError(
                f"this recorder listens to no library that shows {what}; {remedy}, or record with "
                "the adapter of a library as system"
            )
        return self._system

    def close(self) -> None:
        """Close the log; nothing can be released after."""
        if self._system is not None and self._open:
            self._system.detach()
        self._open = False
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Recorder({str(self.path)!r}, round {self._round})"

    def __reduce__(self) -> NoReturn:
        raise InputTypeError(
            "a Recorder cannot be pickled or copied: two of them would draw the same noise; open "
            "one in each process"
        )

    def _check_open(self) -> None:
        self._drawn.check_process()
        if not self._open:
            raise InputError(f"{self.path} is closed; go on with it by resume=True")

    def _party(self, given: Any, name: str) -> int:
        agents, mine = self.header.agents, self.header.agent
        if given is None:
            if mine is None:
                raise InputError(
                    f"{name} is missing; this log holds everybody's releases, so name an agent of "
                    f"0..{agents - 1}"
                )
            return mine
        who = party(plain(given), name, agents)
        if name == "sender" and mine not in (None, who):
            raise InputError(
                f"sender={shown(given)} is not {party_name(mine or 0, self.header)}, whose log "
                "this is; each party writes its own"
            )
        return who

    def _enter(self, at: int) -> None:
        """Begin a round, or go on with it; what was drawn since belongs to it."""
        if at != self._round:
            self._said.new_round(self._round)
        self._drawn.enter(new=at != self._round)
        self._place = 0 if at != self._round else self._place
        self._round = at
        for batch in self._drawn.batches:
            if not batch.name:
                held = (of for of in self._drawn.batches if of.owner == batch.owner)
                taken = {of.name for of in held} | self._said.batches(batch.owner)
                free = (str(n) for n in range(len(taken) + 1))
                batch.name = next(name for name in free if name not in taken)
