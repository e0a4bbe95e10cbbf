"""A traced round: its messages and end states as rows, and any adversary's view of them.

The view is closed. Besides the messages that an adversary sees it holds every value through which
the past acts on the future: the models at which gradients are taken, the inputs of `postprocess`,
the released inputs of `bounded`, and the whole state that the step returns. Then rounds compose
adaptively and other agents' contributions may be held fixed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ...privacy.batches.sampling import Per, cohort_words
from ...privacy.errors import InexpressibleView, UnsupportedView
from ...privacy.guarantee import Adversary, Sees, Unit
from ...privacy.participation import Draws, Reach
from ...privacy.view.elimination import in_round, leak_sentence
from ...privacy.view.view import View
from .linear_forms import Contributions, Known, Messages, NoiseSources
from .record import RoundRecord
from .sparse_rows import pruned, stacked, widened

if TYPE_CHECKING:
    from scipy.sparse import csr_array

_ENTRIES_AT_ONCE = 2**21  # of rows that are written out at once

UNCLIPPED = "gradients are not clipped, so one record's influence has no bound"


Key = tuple[int, int | None]  # the calls of `draw` and `cohort`


class Sensitivity(NamedTuple):
    """mu of one batch's releases for one victim, and what decided it."""

    mu: float
    draws: Draws
    contributions: int
    because: str
    reach: Reach = Reach.SUM
    interleaved: bool = False
    several: int = 1  # batches of one secret cohort, each released with noise of its own
    summed: int = 1  # batches of one sum, of which the record is in some
    shares: bool = False  # whether its noise is that of another batch of the round, too


class Charge(NamedTuple):
    """What one batch is charged: mu, for how many batches, and whether its noise is theirs, too."""

    mu: float
    summed: int = 1
    shares: bool = False


class RoundTrace:
    """One round as any adversary sees it.

    Args:
        record: what the round sent and returned, over its columns.

    Attributes:
        scale_of: an earlier round and a number, where mu of this round is that number times mu of
            the earlier one, for every adversary and victim.
        unit: whose data its contributions are bounded for.
    """

    def __init__(self, record: RoundRecord, *, unit: Unit = Unit.RECORD) -> None:
        self.record, self.unit = record, unit
        self.scale_of: tuple[RoundTrace, float] | None = None
        self.local_views: Any = None  # once they are asked for
        self.residues: Any = None  # likewise
        self.groups = record.groups
        self.blames = record.blames
        self.vectors = record.vectors()
        self._single_message_by_kind: dict[str | None, list[tuple[float, str]]] = {}

    @property
    def columns(self) -> int:
        """The number of columns."""
        return sum(group.size for group in self.groups)

    @property
    def messages(self) -> list[Messages]:
        """The messages, in the order of sending."""
        return [g for g in self.groups if isinstance(g, Messages)]

    @property
    def has_contributions(self) -> bool:
        """Whether the round touches data at all."""
        return any(isinstance(g, Contributions) for g in self.groups)

    @property
    def remembers(self) -> bool:
        """Whether the round begins with noise that earlier ones remember."""
        return any(isinstance(g, Known) and g.history for g in self.groups)

    def expand(self, rows: csr_array, *, unseen: Callable[[Messages], np.ndarray]) -> csr_array:
        """Replace references to messages that `unseen` masks by what the messages hold."""
        from scipy.sparse import csr_array

        # Latest first: what a message holds may refer to earlier messages, which come next.
        width = self.columns
        rows = widened(rows, width)
        for group in reversed(self.messages):
            hidden = np.flatnonzero(unseen(group))
            if not len(hidden):
                continue
            columns = group.start + hidden
            weight = rows[:, columns]
            if not weight.nnz:
                continue
            # Take its columns out, and put what it holds in their place with their weight.
            mask = np.ones(width)
            mask[columns] = 0.0
            rest = csr_array(rows.multiply(mask[None, :]))
            held = widened(group.rows[hidden], width)
            rows = pruned(rest + weight @ held, abs(rest) + abs(weight) @ abs(held))
        return rows

    def view(self, adversary: Adversary, *, end_state: bool = True) -> View:
        """The closed view of an adversary, over all agents' contributions; see `seen_rows`."""
        rows, names, unseen = self.seen_rows(adversary, end_state=end_state)
        rows = self.expand(rows, unseen=unseen)
        private = np.r_[self._contribution_columns(), self.unknown_noise(adversary)]
        keep = np.flatnonzero(np.diff(rows[:, private].indptr))
        rows = rows[keep]
        return View(
            contributions=rows[:, self._contribution_columns()],
            noise=rows[:, self.unknown_noise(adversary)],
            messages=[names[i] for i in keep],
            vectors=self.vectors,
        )

    def seen_rows(
        self, adversary: Adversary, *, end_state: bool = True, closed: bool = True
    ) -> tuple[csr_array, list[str], Callable[[Messages], np.ndarray]]:
        """Rows that an adversary sees, their names, and a mask of the messages that it does not.

        Without `end_state` the state that the step returns counts as carried on, not as seen; if
        not `closed` messages alone do, so that what leaks is sure to be shown, and nothing else is.
        """
        # Which messages the adversary sees: a mask of each group, by where the group starts.
        if adversary.sees is Sees.LINKS:
            masks = {g.start: g.crossing for g in self.messages}
        elif adversary.sees is Sees.OWN_LINKS:
            masks = {g.start: g.seen_by(adversary.agents) for g in self.messages}
        elif adversary.sees is Sees.END_STATES:
            masks = {g.start: np.zeros(g.size, dtype=bool) for g in self.messages}
        else:
            raise UnsupportedView(f"{adversary.name} has no closed view; use single_message")

        # What these messages hold. Of very many, a name each would be slow and read by nobody.
        parts: list[csr_array] = []
        names: list[str] = []
        for g in self.messages:
            seen = np.flatnonzero(masks[g.start])
            parts.append(g.rows[seen])
            names += [g.name(int(i)) for i in seen] if len(seen) <= 10_000 else [g.kind] * len(seen)

        # The values through which the past acts on the future; see the head of this module.
        known = list(self.record.closure) if closed else []
        if end_state:
            known += [
                (f"state {field} at the end of the round", matrix)
                for field, matrix in self.record.end_state.items()
            ]
        for what, matrix in known:
            parts.append(matrix)
            names += [f"{what}, row {i}" for i in range(matrix.shape[0])]
        return stacked(parts, self.columns), names, lambda g: ~masks[g.start]

    def _contribution_columns(self) -> np.ndarray:
        return _columns(g for g in self.groups if isinstance(g, Contributions))

    def unknown_noise(self, adversary: Adversary) -> np.ndarray:
        """The columns of noise sources that an adversary does not know."""
        unknown = [
            g.start + i
            for g in self.groups
            if isinstance(g, NoiseSources)
            for i, knowers in enumerate(g.known_to)
            if not knowers & adversary.agents
        ]
        return np.asarray(unknown, dtype=int)

    def of_victim(self, victim: int) -> dict[Key, tuple[list[int], list[float], Draws]]:
        """Positions among the contributions, bounds and participation, by batch and cohort."""
        batches: dict[Key, tuple[list[int], list[float], Draws]] = {}
        position = 0
        for g in self.groups:
            if isinstance(g, Contributions):
                columns, bounds, _ = batches.setdefault((g.batch, g.cohort), ([], [], g.drawn))
                mine = np.flatnonzero(g.owners == victim)
                columns += (position + mine).tolist()
                bounds += g.bounds[mine].tolist()
                position += g.size
        return batches

    def sensitivities(self, adversary: Adversary, victim: int) -> list[Sensitivity]:
        """Give mu of a record of `victim` for an adversary, one entry per batch drawn in the round.

        Raises:
            UnsupportedView: the victim is one of the adversary's agents.
            InexpressibleView: what is seen of a batch depends on a secret cohort only in part.
        """
        return self.sensitivities_in(self.view(adversary), adversary, victim)

    def sensitivities_in(
        self, view: View, adversary: Adversary, victim: int, *, round: int | None = None
    ) -> list[Sensitivity]:
        """As `sensitivities`, in a view that was already formed; what leaks is named with `round`.

        Args:
            victim: the agent that holds the record.
            round: the number of the round, 0 for the start; None names none.
        """
        if victim in adversary.agents:
            raise UnsupportedView(f"{adversary.name} contains the victim {victim}; choose another")
        # One figure for each batch, and in words what decided it.
        by_key = self.of_victim(victim)
        batches = list(by_key.values())
        held, reaches = [(columns, bounds) for columns, bounds, _ in batches], self.reaches(victim)
        charged = charges(view, held, kinds([draws for _, _, draws in batches], reaches))
        found = self.found(charged, batches, reaches)
        for at, (columns, _) in enumerate(held):
            if math.isinf(found[at].mu) and (shown := view.leaks(columns)):
                names = [name if round is None else in_round(name, round) for name in shown]
                said = (found[at].because, leak_sentence(names))
                found[at] = found[at]._replace(because="; ".join(part for part in said if part))
        return joined(found, list(by_key), unit=self.unit)

    def found(
        self,
        charged: Sequence[Charge],
        batches: Sequence[tuple[Sequence[int], Sequence[float], Draws]],
        reaches: Sequence[tuple[Reach, bool]],
    ) -> list[Sensitivity]:
        """What each batch of a victim costs by its charge, and the reason in words."""
        found = []
        for one, (columns, bounds, draws), (reach, meets) in zip(
            charged, batches, reaches, strict=True
        ):
            count = self.count(columns)
            because = self.reason(one.mu, bounds, count=count, draws=draws)
            if one.summed > 1:
                because = (
                    f"{one.summed} batches enter what is released as one sum, each drawn on its "
                    "own, and a record moves it once for each that it is in"
                )
            elif one.shares:
                because = f"{because}; its noise is that of other batches, too, counted jointly"
            ball = reach is Reach.BALL
            found.append(
                Sensitivity(
                    one.mu,
                    draws,
                    count * one.summed,
                    because,
                    reach,
                    meets or (one.shares and ball),
                    summed=one.summed,
                    shares=one.shares,
                )
            )
        return found

    def reaches(self, victim: int) -> list[tuple[Reach, bool]]:
        """Of each batch of `of_victim` its reach, and whether it and another one interleave."""
        order = [g for g in self.groups if isinstance(g, Contributions)]
        spans: dict[Key, tuple[int, int]] = {}
        for i, g in enumerate(order):
            if victim in g.owners:
                key = (g.batch, g.cohort)
                spans[key] = (spans.get(key, (i, i))[0], i)

        found = []
        for batch in dict.fromkeys((g.batch, g.cohort) for g in order):
            ball = all(g.reach is Reach.BALL for g in order if (g.batch, g.cohort) == batch)
            first, last = spans.get(batch, (0, -1))
            others = (of for other, of in spans.items() if other != batch)
            meets = any(start < last and first < end for start, end in others)
            found.append((Reach.BALL if ball else Reach.SUM, meets))
        return found

    def count(self, columns: Sequence[int]) -> int:
        """How many clipped vectors contributions are parts of."""
        return len(np.unique(self.vectors[list(columns)]))

    def reason(
        self, mu: float, bounds: Sequence[float], *, count: int, draws: Draws | None = None
    ) -> str:
        """What decided the figure of one batch; empty where it takes the messages' names."""
        if math.isinf(mu):
            if any(math.isinf(b) for b in bounds):
                return UNCLIPPED
            return ""
        if self.blames:
            return "; ".join(self.blames)
        # How many contributions count together, and then what else decided.
        of = "agent" if self.unit is Unit.AGENT else "batch"
        said = (
            f"one contribution of the {of} is released"
            if count == 1
            else f"{count} contributions of one {of} are released, counted jointly"
        )
        if draws is None:
            return said
        if draws.whole:
            return f"{said}; all records of a user enter it as one clipped vector"
        if self.unit is Unit.RECORD and any(
            isinstance(g, Contributions) and g.users is Per.USER for g in self.groups
        ):
            return f"{said}; other records of its user show whether a record is there"
        coin = draws.rate(1.0) if self.unit is Unit.AGENT else 1.0
        taking = draws._replace(cohort=coin * draws.cohort)
        if taking.cohort < 1.0:
            return f"{said}; in {cohort_words(taking)}"
        if self.unit is Unit.RECORD and draws.rates != draws.rates[:1]:
            steps = f"{len(draws.rates)} batches" if draws.rates else "all of an agent's data"
            return f"{said}; the local steps take {steps}, and the change is clipped as a whole"
        return said

    def single_message(self, victim: int, *, kind: str | None = None) -> tuple[float, str]:
        """The largest mu of one message alone, and the kind of that message.

        Messages that hold a `bounded` contribution are passed over unless `kind` asks for them.
        Where no message of the round touches the victim's data, the end state is looked at, which
        is what the next round sends; and where that is a function of what counts as seen, this.
        """
        if kind not in self._single_message_by_kind:
            self._single_message_by_kind[kind] = self._single_messages(kind)
        return self._single_message_by_kind[kind][victim]

    def _single_messages(self, kind: str | None) -> list[tuple[float, str]]:
        # What is sent, what is kept, and what counts as seen, each row as if it alone were seen.
        # For each victim the first of the three that touches its data decides; one that decides
        # for nobody is not looked at, since end states hold everybody's data.
        sent = [(g.kind, g.rows[np.flatnonzero(g.crossing)]) for g in self.messages]
        kept = [(f"state {f} at the end of the round", m) for f, m in self.record.end_state.items()]
        asked = [(name, rows) for name, rows in sent if kind in (None, name)]
        found = [(0.0, "none")] * self.record.agents
        left = list(range(self.record.agents))
        for named in (asked, kept, self.record.closure):
            if not left:
                break
            each = [(name, *self._row_by_row(rows)) for name, rows in named]
            if named is asked and kind is None:
                each = [one for one in each if not one[2]]
            for victim in left:
                of = [(float(mus[victim]), name) for name, mus, _ in each]
                found[victim] = max(of, default=(0.0, "none"))
            left = [victim for victim in left if not found[victim][0]]
        return found

    def _row_by_row(self, rows: csr_array) -> tuple[np.ndarray, bool]:
        """(A,) for each victim the largest mu among rows of which only one is seen.

        And whether a `bounded` contribution is in one of them. Batches that meet in one row count
        as if the record were in all of them.
        """
        blamed = _columns(g for g in self.groups if isinstance(g, Contributions) and g.blame)
        largest, bounded = np.zeros(self.record.agents), False
        for some in self._in_parts(rows):
            held = self.expand(rows[some], unseen=_all_of)
            np.maximum(largest, self._largest_mu(held), out=largest)
            bounded = bounded or bool(held[:, blamed].nnz)
        return largest, bounded

    def _in_parts(self, rows: csr_array) -> Iterator[slice]:
        """Rows that hold few enough entries together once no message is left in them."""
        used = np.asarray((rows != 0) @ self._entries_held[: rows.shape[1]])
        at, of = 0, np.cumsum(np.minimum(used, self.columns))
        while at < rows.shape[0]:
            before = of[at - 1] if at else 0.0
            end = max(at + 1, int(np.searchsorted(of, before + _ENTRIES_AT_ONCE, side="right")))
            yield slice(at, end)
            at = end

    @cached_property
    def _entries_held(self) -> np.ndarray:
        """(columns,) the most columns that each holds where messages are what they hold."""
        held = np.ones(self.columns)
        for g in self.messages:
            of = (g.rows != 0) @ held[: g.rows.shape[1]]
            held[g.start : g.start + g.size] = np.minimum(of, self.columns)
        return held

    @cached_property
    def _owners_and_bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """(columns,) owner and bound of each column; no bound where it is no contribution."""
        owners, bounds = np.zeros(self.columns, dtype=int), np.zeros(self.columns)
        for g in self.groups:
            if isinstance(g, Contributions):
                owners[g.start : g.start + g.size] = g.owners
                bounds[g.start : g.start + g.size] = g.bounds
        return owners, bounds

    def _largest_mu(self, rows: csr_array) -> np.ndarray:
        """(A,) for each victim the largest mu among rows without messages."""
        owners, bounds = self._owners_and_bounds
        agents = self.record.agents
        columns = np.flatnonzero(bounds)
        noise = _columns(g for g in self.groups if isinstance(g, NoiseSources))

        # By row and owner: how far a record of the owner can change the row.
        touched = abs(rows[:, columns]).tocoo()
        row, column = touched.coords[0], columns[touched.coords[1]]
        pairs, at = np.unique(row * agents + owners[column], return_inverse=True)
        change = np.zeros(len(pairs))
        np.add.at(change, at, touched.data * bounds[column])
        of_row, victim = np.divmod(pairs, agents)

        # Against the deviation of the row's noise, and of each owner's rows the largest.
        deviation = np.sqrt(np.asarray((rows[:, noise] ** 2).sum(axis=1)).ravel())[of_row]
        with np.errstate(divide="ignore", invalid="ignore"):
            mu = np.where(change > 0, change / deviation, 0.0)
        largest = np.zeros(agents)
        np.maximum.at(largest, victim, mu)
        return largest


def _all_of(messages: Messages) -> np.ndarray:
    """A mask of every message: none counts as seen by itself."""
    return np.ones(messages.size, dtype=bool)


def _columns(groups: Any) -> np.ndarray:
    ranges = [np.arange(g.start, g.start + g.size) for g in groups]
    return np.concatenate(ranges) if ranges else np.zeros(0, dtype=int)


# What the batches of one round cost a victim: each by itself, those of a secret cohort as one.
#
# Batches whose releases share noise are not each by itself. Where they enter all that is seen as
# one sum, such as that of k sums accumulated under one noise, a record moves it once for each batch
# that it is in, and each of them has a coin of its own: as k records of one person move one batch.
# Other batches that share noise are charged what the certificate of all their columns together says
# (`privacy.view.view.certificate`), as those of several holders are.


def joined(found: Sequence[Sensitivity], keys: Sequence[Key], *, unit: Unit) -> list[Sensitivity]:
    """Sensitivities by batch, those of one secret cohort as one: its coin is theirs together.

    Args:
        found: one for each batch and cohort.
        keys: the batch and the cohort of each.
        unit: whose data they are of.

    Raises:
        InexpressibleView: what is seen of a batch depends on a cohort only in part.
    """
    joint, seen = list(found), [i for i, sensitivity in enumerate(found) if sensitivity.mu > 0]
    if unit is Unit.AGENT or all(cohort is None for _, cohort in keys):
        return joint
    if len({keys[i][0] for i in seen}) < len(seen):
        raise InexpressibleView(
            "one batch is seen both with and without its secret cohort, or under two of them, "
            "whose draws go together; give each a batch of its own"
        )
    for cohort in {keys[i][1] for i in seen} - {None}:
        same = [i for i in seen if keys[i][1] == cohort]
        if len(same) == 1:
            continue
        if len({joint[i].draws for i in same}) > 1:
            raise InexpressibleView(
                "batches of one secret cohort are drawn at different rates, for which no "
                "bound is known; draw them at one rate"
            )
        # The worst batch of a cohort stands for all of them, and says how many they are.
        parts = [joint[i] for i in same]
        reaches = {part.reach for part in parts}
        worst = max(parts, key=lambda part: part.mu)
        for i in same:
            joint[i] = joint[i]._replace(mu=0.0)
        joint[same[0]] = worst._replace(
            contributions=sum(part.contributions for part in parts),
            reach=Reach.BALL if reaches == {Reach.BALL} else Reach.SUM,
            interleaved=True,
            several=len(parts),
        )
    return joint


def kinds(batches: Sequence[Draws], reaches: Sequence[tuple[Reach, bool]]) -> list[Draws | None]:
    """How records are drawn for each batch that another one may be added to; None of others.

    Each record adds to the sums of such a batch, and has a coin of its own for it.
    """
    found: list[Draws | None] = []
    for draws, (reach, _) in zip(batches, reaches, strict=True):
        plain = len(draws.rates) == 1 and draws == Draws(draws.rates)
        found.append(draws if plain and reach is Reach.SUM else None)
    return found


def charges(
    view: View,
    batches: Sequence[tuple[Sequence[int], Sequence[float]]],
    kinds: Sequence[Draws | None],
) -> list[Charge]:
    """Mu of a victim's batches, each by its columns and their bounds.

    Args:
        view: what is seen.
        batches: the columns of each, and their bounds.
        kinds: as `kinds` gives them; batches of one kind may be one sum.

    Returns:
        One charge a batch; of those that are one sum the first has all of it.
    """
    # Each batch by itself, which is all where batches have no noise in common.
    mus = [view.mu(columns, bounds=bounds) if columns else 0.0 for columns, bounds in batches]
    alone = [Charge(mu) for mu in mus]
    if len(batches) == 1:
        return alone
    moved = [
        [(c, b) for c, b in zip(columns, bounds, strict=True) if b > 0]
        for columns, bounds in batches
    ]
    finite = [[c for c, _ in of] for of, mu in zip(moved, mus, strict=True) if math.isfinite(mu)]
    if not _share_noise(view, finite):
        return alone
    # A batch that is infinite by itself makes what all of them release infinite.
    if len(finite) < len(batches):
        return [Charge(math.inf if of else 0.0) for of in moved]
    # Batches of one kind that move what is released alike are one sum.
    sums: dict[object, list[int]] = {}
    for number, (of, kind) in enumerate(zip(moved, kinds, strict=True)):
        key = number if kind is None or not of else (kind, _as_one(view, of))
        sums.setdefault(key, []).append(number)
    # What is left is each by itself, or shares noise with the others.
    heads = [of[0] for of in sums.values()]
    shared = _share_noise(view, [[c for c, _ in moved[head]] for head in heads])
    if shared:
        blocks = [([c for c, _ in moved[head]], [b for _, b in moved[head]]) for head in heads]
        together = view.shares(blocks)
        for head, mu in zip(heads, together, strict=True):
            mus[head] = mu
    found = [Charge(0.0)] * len(batches)
    for head, same in zip(heads, sums.values(), strict=True):
        if mus[head] > 0:
            found[head] = Charge(mus[head], len(same), shares=shared or len(same) > 1)
    return found


def _as_one(view: View, moved: Sequence[tuple[int, float]]) -> tuple[bytes, bytes]:
    """What a batch does to the view, the same for batches that enter it as one sum.

    Each column times its bound, up to the sign of all, and which of them are one vector's.
    """
    from scipy.sparse import csc_array

    names = [c for c, _ in moved]
    columns = csc_array(view.contributions)[:, names].toarray() * np.array([b for _, b in moved])
    entries = columns.ravel()
    first = entries[np.flatnonzero(entries)[:1]]
    vectors = [int(view.vectors[c]) for c in names] if len(view.vectors) else names
    parts = np.unique(vectors, return_inverse=True)[1]
    return (columns * (np.sign(first[0]) if first.size else 1.0) + 0.0).tobytes(), parts.tobytes()


def _share_noise(view: View, blocks: Sequence[Sequence[int]]) -> bool:
    """Whether batches' releases are correlated: off-diagonal blocks of the information."""
    columns = [c for block in blocks for c in block]
    if not columns:
        return False
    information = view.information(columns)
    own = np.sqrt(np.diag(information))
    share = np.abs(information) / np.maximum(np.outer(own, own), np.finfo(float).tiny)
    of = np.repeat(np.arange(len(blocks)), [len(b) for b in blocks])
    across = of[:, None] != of[None, :]
    return bool(across.any() and share[across].max() > 1e-9)
