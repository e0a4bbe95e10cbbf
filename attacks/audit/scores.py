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
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ...privacy.guarantee import Adversary
from ...training.engine.recording import GradientCall
from ...training.models.tasks import Task
from ...training.tracing.linear_forms import Contributions
from ...training.tracing.round_trace import RoundTrace
from ..checks.reference_sums import Oracle
from .canaries import LENGTH, Directions, HappenedRound, Released
from .canary_noise import DECLARED, Residue, decided, likeliest, log_ratio
from .observed_rows import ObservedRows, Projected, RowsSeen

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

    def add(self, happened: HappenedRound) -> None:
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
        self, happened: HappenedRound, who: Adversary, planted: Planted, project: Projected
    ) -> tuple[ObservedRows, Array]:
        rows = self._rows_seen(happened, who)
        left = rows.unexplained(happened, project)
        return rows, left - rows.contributions @ (planted.clean + planted.size * planted.part)

    def _of_host(
        self, happened: HappenedRound, rows: ObservedRows, left: Array, planted: Planted, host: int
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

    def _of_agent(self, happened: HappenedRound, host: int, first: NDArray[np.bool_]) -> list[int]:
        """Positions of an agent's contributions of the first block, of all its batches."""
        batches = happened.trace.of_victim(host).values()
        return [c for columns, _, _ in batches for c in columns if first[c]]

    def _add_links(
        self, happened: HappenedRound, rows: ObservedRows, left: Array, planted: Planted, host: int
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

    def planted(self, happened: HappenedRound) -> Planted:
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
