"""Score planted canaries by the matched filter of an adversary's view, round by round.

Of canary j of agent v, planted in round t along u_j with the signs and sizes c of its
contributions, the score is the log-likelihood ratio of "in the data" against "not", or of +u
against -u; v = c^T M c and s = c^T W^T (what was seen less all that is known along u_j):

    add-or-remove-one    sum_t log(1 - q + q exp(s - v/2))
    replace-one          sum_t log(1 - q + q exp(s - v/2)) - log(1 - q + q exp(-s - v/2))

where a host's scores of a round do not tell of other noise than is declared (`strength`). For k
records of one person 1 - q + q exp(s - v/2) becomes sum_j p_j exp(j s - j^2 v / 2), p_j the chance
of j of them to take part, Bin(k, q). What the noise alone adds to s is kept beside it, as it must
be standard normal (`canary_noise`).

Which records are in which batch of a shuffled or cyclic epoch is public: q is 1 in a canary's round
of each epoch, and its score is the sum over these.

Known is everything but whether the canary was planted: the models, the ordinary records' gradients,
all other canaries. A combination of messages without noise decides the round by itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ...privacy.guarantee import Adversary
from ...privacy.view.whole_run import Rows, StreamedView
from ...training.engine.recording import GradientCall
from ...training.exposure.dense_rounds import RoundRows
from ...training.models.tasks import Task
from ...training.step.final_release import NOTHING, FinalRelease
from ...training.tracing.linear_forms import Contributions
from ...training.tracing.round_trace import RoundTrace
from ..checks.recording import WatchedRound
from ..checks.reference_sums import Oracle
from .canaries import LENGTH, Directions, Released
from .canary_noise import DECLARED, Residue, decided, likeliest, log_ratio
from .observed_rows import ObservedRows, Projected, RowsSeen, values_of

if TYPE_CHECKING:
    from scipy.sparse import csr_array

Array = NDArray[np.float64]


class LinkScores(NamedTuple):
    """Scores of one message over the rounds: how often each (mu, rate) occurred, and their sum."""

    rounds: Mapping[tuple[float, float], int]
    scores: Array

    def plus(self, mu: float, rate: float, ratio: Array) -> LinkScores:
        """With one round more."""
        counted = dict(self.rounds)
        counted[mu, rate] = counted.get((mu, rate), 0) + 1
        return LinkScores(counted, self.scores + ratio)


@dataclass(frozen=True, kw_only=True, slots=True)
class Planted:
    """What a round planted, over contributions of the first block in the trace's order.

    Attributes:
        clean: (contributions, n) ordinary records' gradients along the canaries' directions.
        size: (contributions, n) what a canary adds where it takes part, with its sign.
        part: (contributions, n) which take part: 1, -1 for the opposite vector, 0 for none; of
            several records of one person how many.
        norms: (contributions, n) of the canaries' gradients before clipping, in clip norms.
        drawn: (contributions, n) 1 where a canary, or the blank record in its place, was drawn.
    """

    clean: Array
    size: Array
    part: Array
    norms: Array
    drawn: Array


class BatchRates(NamedTuple):
    """How likely a record is in a batch.

    Attributes:
        rate: of batches without a rate of their own.
        of_hosts: by host, of batches of fixed size, in place of it.
        public: whether everybody knows which records are in which batch, as of shuffled epochs.
    """

    rate: float
    of_hosts: Mapping[int, float] = {}
    public: bool = False


class Scorer:
    """Adds up the scores of all canaries of one run for several adversaries.

    Args:
        objective: what the run minimises, without canaries.
        directions: of the canaries.
        adversaries: by adversary name and host, whose view.
        batches: how likely a record is in one.
        replace: whether the game is +u against -u.
        linked: the adversary of whose view each message is scored by itself, too; None for none.
        own: by host, which directions have canaries of its own; all by default.
        together: how many records of one person a canary is.

    Attributes:
        scores: by adversary and host, (n,).
        residues: by adversary, what the noise alone did to the scores of a host's own canaries.
        links: by message and host, (n,): the message's name, its mu for one record and rate, and
            scores; of runs whose rounds are all alike.
    """

    def __init__(
        self,
        objective: nn.Module | Task,
        *,
        directions: Directions,
        adversaries: Mapping[str, Mapping[int, Adversary]],
        batches: BatchRates,
        replace: bool,
        linked: str | None = None,
        own: Mapping[int, NDArray[np.int64]] | None = None,
        together: int = 1,
    ) -> None:
        self._together, self._batches = together, batches
        self._own = own or {}
        self.residues: dict[str, list[Residue]] = {name: [] for name in adversaries}
        self._oracle, self._linked = Oracle(objective), linked
        self._directions, self._adversaries = directions, adversaries
        self._replace = replace
        self._rows_seen = RowsSeen()
        self.scores = {
            name: {host: np.zeros(directions.count) for host in of}
            for name, of in adversaries.items()
        }
        self.links: dict[tuple[str, int], LinkScores] = {}

    def add(self, happened: WatchedRound) -> None:
        """Add one round's log-likelihood ratios."""
        planted = self.planted(happened)
        project = Projected(self._directions.project)
        seen: dict[str, tuple[ObservedRows, Array]] = {}
        drowned: dict[str, bool] = {}
        for name, of in self._adversaries.items():
            for host, who in of.items():
                if who.name not in seen:
                    seen[who.name] = rows, _ = self._less_known(happened, who, planted, project)
                    drowned[who.name] = rows.drowned(happened)
                rows, left = seen[who.name]
                ratio, residues = self._of_host(happened, rows, left, planted, host)
                self.scores[name][host] += ratio
                if not drowned[who.name]:
                    self.residues[name] += residues
                if name == self._linked:
                    self._add_links(happened, rows, left, planted, host)

    def _less_known(
        self, happened: WatchedRound, who: Adversary, planted: Planted, project: Projected
    ) -> tuple[ObservedRows, Array]:
        rows = self._rows_seen(happened, who)
        left = rows.unexplained(happened, project)
        return rows, left - rows.contributions @ (planted.clean + planted.size * planted.part)

    def _of_host(
        self, happened: WatchedRound, rows: ObservedRows, left: Array, planted: Planted, host: int
    ) -> tuple[Array, list[Residue]]:
        total, residues = np.zeros(self._directions.count), list[Residue]()
        public = self._batches.public
        own = self._own.get(host, np.arange(self._directions.count))
        first = first_block(happened.trace)
        whole = planted.size * planted.part
        # None of the host's own canaries is known, whichever of its batches they are in.
        every = self._of_agent(happened, host, first)
        noise, left = left, left + rows.adds(every) @ whole[every]
        for number, (columns, bounds, draws) in enumerate(happened.trace.of_victim(host).values()):
            mine = [c for c, b in zip(columns, bounds, strict=True) if b > 0 and first[c]]
            if not mine:
                continue
            # The matched filter of the batch, against every direction at once.
            matched_filter = rows.filter(mine)
            size = planted.size[mine]
            q = 1.0 if public else draws.rate(self._batches.of_hosts.get(host, self._batches.rate))
            known = planted.drawn[mine[0]] > 0 if public else np.ones(len(total), dtype=bool)
            s = ((matched_filter.weights.T @ left) * size).sum(axis=0)
            v = ((matched_filter.information @ size) * size).sum(axis=0)
            norms = planted.norms[mine[0]]
            # Likelihood ratios at the strength that canaries of full length have most likely.
            guessed = own[(norms[own] >= 1.0) & known[own]]
            game: Any = {"q": q, "replace": self._replace, "together": self._together}
            ratio = log_ratio(likeliest(s[guessed], v[guessed], **game), s, v, **game)
            if matched_filter.is_perfect:
                ratio = decided(
                    matched_filter.revealing @ left, matched_filter.revealed @ size, **game
                )
            total += np.where(known, ratio, 0.0)  # who is known to be elsewhere shows nothing
            if not (v[own] > 0).all():
                continue
            # Scores without what the host's canaries add, of which the noise is tested.
            alone = ((matched_filter.weights.T @ noise) * size).sum(axis=0)
            residues.append(
                Residue(
                    round=happened.number,
                    host=host,
                    batch=number,
                    rate=q,
                    standard=(alone / np.sqrt(v))[own],
                    information=v[own],
                    part=np.sign(planted.part[mine[0]][own]),
                    sign=np.sign(size.sum(axis=0))[own],
                    norms=norms[own],
                )
            )
        return total, residues

    def _of_agent(self, happened: WatchedRound, host: int, first: NDArray[np.bool_]) -> list[int]:
        """Positions of an agent's contributions of the first block, of all its batches."""
        batches = happened.trace.of_victim(host).values()
        return [c for columns, _, _ in batches for c in columns if first[c]]

    def _add_links(
        self, happened: WatchedRound, rows: ObservedRows, left: Array, planted: Planted, host: int
    ) -> None:
        """Score every message by itself: what it adds to those before it."""
        first, sent = first_block(happened.trace), len(rows.messages)
        energy = rows.noise_energy[:sent]
        batches = happened.trace.of_victim(host).values()
        every = rows.adds(self._of_agent(happened, host, first))[:sent]
        for columns, bounds, draws in batches:
            mine = [c for c, b in zip(columns, bounds, strict=True) if b > 0 and first[c]]
            own = rows.adds(mine)[:sent]
            # Two batches under one noise are no two messages; the whole view scores them.
            reach_of = np.abs(own).sum(axis=1)
            alone = np.abs(every).sum(axis=1) - reach_of < 1e-12
            q = draws.rate(self._batches.rate)
            for row in np.flatnonzero((energy > 0) & (reach_of > 0) & alone):
                # The message's own likelihood ratio, and mu of what hides there.
                size = own[row] @ planted.size[mine]
                there = own[row] @ (planted.size[mine] * planted.part[mine])
                s = (left[row] + there) * size / energy[row]
                v = size**2 / energy[row]
                ratio = log_ratio(DECLARED, s, v, q=q, replace=self._replace)
                bound = max(b for b in bounds if b > 0)
                mu = round(float(reach_of[row]) * bound / math.sqrt(energy[row]), 12)
                key = (rows.messages[row], host)
                held_so_far = self.links.get(key)
                self.links[key] = (
                    LinkScores({(mu, q): 1}, ratio)
                    if held_so_far is None
                    else held_so_far.plus(mu, q, ratio)
                )

    def planted(self, happened: WatchedRound) -> Planted:
        """What a round planted."""
        n = self._directions.count
        groups = [g for g in happened.trace.groups if isinstance(g, Contributions)]
        total = sum(g.size for g in groups)
        clean, size, part, norms, drawn = (np.zeros((total, n)) for _ in range(5))
        calls = iter(happened.calls)
        own: dict[int, tuple[Array, ...]] = {}
        done, at = set[int](), 0
        # Each call of gradients planted once, whichever groups hold its rows.
        for place, group in enumerate(groups):
            here = slice(at, at + group.size)
            at += group.size
            if group.block != 0:
                continue
            if group.blame is not None:  # a bounded function of the owners' own clipped sums
                c, z, part[here], norms[here], drawn[here] = own[group.batch]
                gain = group.bounds[:, None] / np.abs(z).max()
                clean[here], size[here] = gain * c, gain * z
                continue
            if group.first_vector in done:
                continue
            done.add(group.first_vector)
            call = next(calls)
            asked = happened.recorded.calls[place]
            mean_of = asked.mean_of if isinstance(asked, GradientCall) else None
            clean[here], size[here] = self._amounts(call, mean_of, bound=float(group.bounds[0]))
            part[here] = call.present[call.holders.numpy()]
            norms[here] = call.norms[call.holders.numpy()]
            drawn[here] = call.drawn[call.holders.numpy()]
            # Self-loops are the owners' own sums, of which a bounded function may be made later.
            loops = at - group.size + np.flatnonzero((call.owners == call.holders).numpy())
            kept = tuple(one[loops] for one in (clean, size, part, norms, drawn))
            own.setdefault(group.batch, kept)
        return Planted(clean=clean, size=size, part=part, norms=norms, drawn=drawn)

    def _amounts(
        self, call: Released, mean_of: float | None, *, bound: float
    ) -> tuple[Array, Array]:
        sums = self._oracle.sums(
            call.models,
            call.owners,
            holders=call.holders,
            batches=call.batches,
            clip_norm=call.clip_norm,
            coefs=call.coefficients,
        )[:, : self._directions.dimension]
        project = self._directions.project
        if mean_of is None:
            added = np.minimum(call.norms, 1.0)[call.holders.numpy()]
            return project(sums).numpy(), bound * call.signs * added
        # Of a batch whose mean is clipped: with the only canary that it may hold, and without.
        most = bound / 2
        mean = sums / mean_of
        along = torch.stack([self._directions.vector(0)] * len(mean)) * torch.from_numpy(call.signs)
        with_it = _clipped(mean + LENGTH * most / mean_of * along, most)
        without = project(_clipped(mean, most)).numpy()
        return without, project(with_it).numpy() - without


def _clipped(rows: Tensor, most: float) -> Tensor:
    norms = torch.linalg.vector_norm(rows, dim=1, keepdim=True).clamp_min(1e-300)
    return rows * (most / norms).clamp_max(1.0)


def first_block(trace: RoundTrace) -> NDArray[np.bool_]:
    """(contributions,) which are to the first block of coordinates."""
    blocks = [np.full(g.size, g.block == 0) for g in trace.groups if isinstance(g, Contributions)]
    return np.concatenate([np.zeros(0, dtype=bool), *blocks])


# What one adversary is told of a whole run by its messages and last models, as unit normals.
#
# A run in which noise persists is one release, so it is looked at as one. With what is known taken
# off, what the adversary sees of round t is
#
# D_t = C_t (S_t-1 - known) + A_t G_t + B_t Z_t
#
# and `StreamedView` turns it, round by round, into whitened rows e_t: what D_t adds to what the
# rounds before told of the noise that is carried on,
#
# e_t = weights_t (D_t - C_t Shat_t-1),   Shat_t = F_t Shat_t-1 + gain_t e_t
#
# Without contributions e_t is standard normal; a unit contribution of column c moves it by
# response_t[:, c]. So sum_t response_t' e_t is the matched filter of every contribution of the run,
# for all directions at once, and M is its covariance.
#
# | symbol | name here  | shape          | meaning                                        |
# |--------|------------|----------------|------------------------------------------------|
# | D      | left       | (seen, n)      | what is seen, less what is known               |
# | known  | ``_known`` | (carried, n)   | what is known of the rows that are carried     |
# | Shat   | ``_noise`` | (carried, n)   | what was told of the noise in them             |
# |        | ``scores`` | (columns, n)   | the filter of each contribution of the hosts   |

_MOST_HEARD = 40_000  # values of a round that are kept, which tell of its noise to .7 %


class Column(NamedTuple):
    """A contribution of a host: its round, its place among all of the round, and its bound."""

    round: int
    place: int
    bound: float


def host_columns(part: RoundTrace, host: int) -> list[tuple[int, float]]:
    """Places among all contributions of a round, and bounds, of a host's in the first block."""
    found, start = list[tuple[int, float]](), 0
    for group in part.groups:
        if isinstance(group, Contributions):
            if group.block == 0:
                mine = np.flatnonzero(group.owners == host)
                found += [(start + int(i), float(group.bounds[i])) for i in mine]
            start += group.size
    return found


class _Part(NamedTuple):
    """A traced round as one adversary sees it: rows of the first block, and what is known."""

    rows: RoundRows
    seen: list[int]  # of the rows, those of the first block
    sent: list[tuple[int, NDArray[np.int64]]]  # which messages these are
    places: dict[int, list[tuple[int, float]]]  # of each host's contributions
    contributions: NDArray[np.int64]  # columns of everybody's
    known: list[NDArray[np.int64] | None]  # of each group's columns those that count as known
    released: dict[str, range]  # carried rows of the fields of it that are out at the end


class MatchedFilter:
    """The matched filter of one adversary, as a run goes on.

    Args:
        adversary: whose view.
        hosts: whose contributions are looked for.
        count: n, of directions; 0 for the information alone.
        release: which fields of the state leave after the last round; none where it is not played.
    """

    def __init__(
        self,
        adversary: Adversary,
        hosts: Sequence[int],
        *,
        count: int = 0,
        release: FinalRelease = NOTHING,
    ) -> None:
        self.adversary, self.hosts = adversary, list(hosts)
        self.columns: dict[int, list[Column]] = {host: [] for host in hosts}
        self.heard: list[NDArray[np.float32]] = []  # e of every round
        self.lost = 0.0  # share of a unit normal that rounding of what is sent amounts to
        self._view, self._round, self._released = StreamedView(), -1, release
        self._owners: list[int] = []
        self._parts: dict[int, _Part] = {}
        self._last: _Part | None = None
        self._known, self._noise = np.zeros((0, count)), np.zeros((0, count))
        self._scores = np.zeros((0, count))

    def information(self, host: int) -> Array:
        """M over a host's contributions so far."""
        return self._view.information(host)

    def scores(self, host: int) -> Array:
        """(columns, n) the matched filter of each of a host's contributions."""
        return self._scores[np.flatnonzero(np.equal(self._owners, host))]

    def leaks(self, host: int) -> bool:
        """Whether a contribution of a host is seen without noise."""
        return bool(self._view.leaks(host))

    def expect(self, part: RoundTrace) -> None:
        """Take in a round of which nothing but its trace is known."""
        self._advance(self._part(part))

    def expect_end(self) -> None:
        """The same of the models that the end of a run releases."""
        self._release(None)

    def add(self, happened: WatchedRound, contributed: Array, project: Projected) -> None:
        """Take in a round.

        What everybody contributed is (contributions, n), and `project` is onto the directions.
        """
        part = self._part(happened.trace)
        left, known = self._less_known(part, happened, contributed, project)
        sizes = [happened.messages[i].rows[torch.from_numpy(at)] for i, at in part.sent]
        self._advance(part, left, known, sizes)

    def end(self, after: Mapping[str, Tensor], project: Projected) -> None:
        """Take in the models that the end of a run releases."""
        self._release(after, project)

    def _part(self, part: RoundTrace) -> _Part:
        # Rounds that repeat a part share its rows.
        held = self._parts.get(id(part))
        if held is not None:
            return held
        rows = RoundRows.of(part, self.adversary, closed=False, release=self._released)
        # Messages of the first block that the adversary sees, by group.
        unseen = part.seen_rows(self.adversary, end_state=False, closed=False)[2]
        seen, sent, start = list[int](), list[tuple[int, NDArray[np.int64]]](), 0
        for number, group in enumerate(part.messages):
            at = np.flatnonzero(~unseen(group))
            if group.block == 0:
                sent.append((number, at))
                seen += range(start, start + len(at))
            start += len(at)
        # Columns whose values it knows; contributions are never among them.
        hidden = np.zeros(part.columns, dtype=bool)
        hidden[rows.unknown] = hidden[rows.held] = True
        everybody = [g for g in part.groups if isinstance(g, Contributions)]
        spans = [np.arange(g.start, g.start + g.size) for g in everybody]
        known: list[NDArray[np.int64] | None] = []
        for of in part.groups:
            told = np.flatnonzero(~hidden[of.start : of.start + of.size])
            own = isinstance(of, Contributions) or of.block != 0
            known.append(None if own or not len(told) else told)
        # Fields of the state that are released, by their place among the rows.
        released, position = dict[str, range](), 0
        for field, matrix in part.record.end_state.items():
            if position in rows.released and _block(part, matrix) == 0:
                released[field] = range(position, position + matrix.shape[0])
            position += matrix.shape[0]
        found = _Part(
            rows,
            seen,
            sent,
            {host: host_columns(part, host) for host in self.hosts},
            np.concatenate([np.zeros(0, dtype=int), *spans]),
            known,
            released,
        )
        self._parts[id(part)] = found
        return found

    def _less_known(
        self, part: _Part, happened: WatchedRound, contributed: Array, project: Projected
    ) -> tuple[Array, Array]:
        """What is seen less what is known, and what is known of what is carried on."""
        rows = part.rows
        seen = [project(happened.messages[i].rows, at) for i, at in part.sent]
        left = np.concatenate([np.zeros((0, self._known.shape[1])), *seen])
        known = np.zeros((rows.carried.shape[0], left.shape[1]))
        mine = rows.seen[part.seen]

        def take_off(columns: NDArray[np.int64], values: Array) -> None:
            nonlocal left, known
            left = left - mine[:, columns] @ values
            known = known + rows.carried[:, columns] @ values

        take_off(rows.held, self._known)
        take_off(part.contributions, contributed)
        groups = happened.trace.groups
        for group, value, told in zip(groups, values_of(happened), part.known, strict=True):
            if told is not None and value is not None:
                take_off(group.start + told, project(value)[told])
        return left, known

    def _advance(
        self,
        part: _Part,
        left: Array | None = None,
        known: Array | None = None,
        sent: Sequence[Tensor] = (),
    ) -> None:
        self._round += 1
        at, owners = list[int](), list[int]()
        for host in self.hosts:
            for place, bound in part.places[host]:
                at.append(int(part.contributions[place]))
                owners.append(host)
                self.columns[host].append(Column(self._round, place, bound))
        rows, here = part.rows, np.asarray(at, dtype=int)
        seen, carried = rows.over(rows.seen[part.seen], here), rows.over(rows.carried, here)
        self._owners += owners
        self._turn(seen, carried, owners, left=left, sent=sent)
        if known is not None:
            self._known = known
        self._last = part

    def _turn(
        self,
        seen: Rows,
        carried: Rows,
        owners: Sequence[int],
        *,
        left: Array | None,
        sent: Sequence[Tensor] = (),
    ) -> None:
        """Whiten what is seen, and add it to the filter of every contribution so far."""
        told = self._view.advance(seen, carried, owners=owners)
        n = self._scores.shape[1]
        if left is None:
            left = np.zeros((seen.carried.shape[0], n))
        if not len(self._noise):
            self._noise = np.zeros((seen.carried.shape[1], n))
        e = told.weights @ (left - seen.carried @ self._noise)
        self._noise = carried.carried @ self._noise + told.gain @ e
        if n:
            self.heard.append(_some(e))
        self._scores = np.pad(self._scores, ((0, len(owners)), (0, 0))) + told.response.T @ e
        lost = [
            torch.finfo(one.dtype).eps
            * torch.linalg.vector_norm(one.double(), dim=1).cpu().numpy()
            / np.sqrt(max(1, one.shape[1]))
            for one in sent
        ]
        if lost and len(told.weights):
            of_rows = np.sqrt(told.weights**2 @ np.concatenate(lost) ** 2)
            self.lost = max(self.lost, float(of_rows.max(initial=0.0)))

    def _release(
        self, after: Mapping[str, Tensor] | None, project: Projected | None = None
    ) -> None:
        part = self._last
        if part is None or not part.released:
            return
        at = [row for rows in part.released.values() for row in rows]
        size = part.rows.carried.shape[0]
        kept, none = np.eye(size), np.zeros((size, 0))
        seen, sent, left = Rows(kept[at], none[: len(at)], none[: len(at)]), list[Tensor](), None
        if after is not None and project is not None:
            sent = [after[field] for field in part.released]
            left = np.concatenate([project(one) for one in sent]) - self._known[at]
        self._turn(seen, Rows(kept, none, none), [], left=left, sent=sent)


def _some(e: Array) -> NDArray[np.float32]:
    """At most so many values of a round as all rounds together have room for."""
    return e[:, : max(1, _MOST_HEARD // max(1, len(e)))].astype(np.float32)


def _block(part: RoundTrace, matrix: csr_array) -> int:
    """The block of coordinates that rows belong to."""
    used = int(matrix.indices[0]) if matrix.nnz else -1
    return next((g.block for g in part.groups if g.start <= used < g.start + g.size), 0)
