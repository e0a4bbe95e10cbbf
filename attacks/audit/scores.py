"""Score planted canaries by the matched filter of an adversary's view, round by round.

Of canary j of agent v, planted in round t along u_j with the signs and sizes c of its
contributions, the score is the log-likelihood ratio of "in the data" against "not", or of +u
against -u; v = c^T M c and s = c^T W^T (what was seen less all that is known along u_j):

    add-or-remove-one    sum_t log(1 - q + q exp(s - v/2))
    replace-one          sum_t log(1 - q + q exp(s - v/2)) - log(1 - q + q exp(-s - v/2))

Known is everything but whether the canary was planted: the models, the ordinary records' gradients,
all other canaries. A combination of messages without noise decides the round by itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ...privacy.adversary import Adversary
from ...training.engine.recording import Recorded
from ...training.engine.transcript import Message
from ...training.models.tasks import Task
from ...training.tracing.linear_forms import Contributions
from ...training.tracing.round_trace import RoundTrace
from ..watching.reference_sums import Oracle
from .canaries import LENGTH, Directions, Released
from .observed_rows import ObservedRows

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class HappenedRound:
    """One round of the real engine with canaries.

    Attributes:
        trace: of the round, at the noise of the run.
        messages: as they crossed.
        before, after: the state's fields.
        recorded: what it drew and computed.
        calls: what it asked of the gradients.
    """

    trace: RoundTrace
    messages: Sequence[Message]
    before: Mapping[str, Tensor]
    after: Mapping[str, Tensor]
    recorded: Recorded
    calls: Sequence[Released]


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
        part: (contributions, n) which take part: 1, -1 for the opposite vector, 0 for none.
    """

    clean: Array
    size: Array
    part: Array


class Scorer:
    """Adds up the scores of all canaries of one run for several adversaries.

    Args:
        objective: what the run minimises, without canaries.
        directions: of the canaries.
        adversaries: by adversary name and host, whose view.
        sampling_rate: of batches without a rate of their own.
        replace: whether the game is +u against -u.
        linked: the adversary of whose view each message is scored by itself, too; None for none.

    Attributes:
        scores: by adversary and host, (n,).
        links: by message and host, (n,): the message's name, its mu for one record and rate, and
            scores; of runs whose rounds are all alike.
    """

    def __init__(
        self,
        objective: nn.Module | Task,
        *,
        directions: Directions,
        adversaries: Mapping[str, Mapping[int, Adversary]],
        sampling_rate: float,
        replace: bool,
        linked: str | None = None,
    ) -> None:
        self._oracle, self._linked = Oracle(objective), linked
        self._directions, self._adversaries = directions, adversaries
        self._rate, self._replace = sampling_rate, replace
        self._rows_of: dict[tuple[int, str], ObservedRows] = {}
        self.scores = {
            name: {host: np.zeros(directions.count) for host in of}
            for name, of in adversaries.items()
        }
        self.links: dict[tuple[str, int], LinkScores] = {}

    def add(self, happened: HappenedRound) -> None:
        """Add one round's log-likelihood ratios."""
        planted = self._planted(happened)
        seen: dict[str, tuple[ObservedRows, Array]] = {}
        for name, of in self._adversaries.items():
            for host, who in of.items():
                if who.name not in seen:
                    seen[who.name] = self._less_known(happened, who, planted)
                rows, left = seen[who.name]
                self.scores[name][host] += self._of_host(happened, rows, left, planted, host)
                if name == self._linked:
                    self._add_links(happened, rows, left, planted, host)

    def _less_known(
        self, happened: HappenedRound, who: Adversary, planted: Planted
    ) -> tuple[ObservedRows, Array]:
        key = (id(happened.trace), who.name)
        if key not in self._rows_of:
            self._rows_of[key] = ObservedRows(happened.trace, who)
        rows = self._rows_of[key]
        left = rows.unexplained(
            messages=happened.messages,
            before=happened.before,
            after=happened.after,
            recorded=happened.recorded,
            project=self._directions.project,
        )
        return rows, left - rows.contributions @ (planted.clean + planted.size * planted.part)

    def _of_host(
        self, happened: HappenedRound, rows: ObservedRows, left: Array, planted: Planted, host: int
    ) -> Array:
        total = np.zeros(self._directions.count)
        first = _first_block(happened.trace)
        whole = planted.size * planted.part
        # None of the host's own canaries is known, whichever of its batches they are in.
        every = self._of_agent(happened, host, first)
        left = left + rows.contributions[:, every] @ whole[every]
        for columns, bounds, rate in happened.trace.of_victim(host).values():
            mine = [c for c, b in zip(columns, bounds, strict=True) if b > 0 and first[c]]
            if not mine:
                continue
            found = rows.filter(mine)
            size = planted.size[mine]
            q = self._rate if rate is None else rate
            s = ((found.weights.T @ left) * size).sum(axis=0)
            v = ((found.information @ size) * size).sum(axis=0)
            ratio = _log_mixture(s - v / 2, q)
            if self._replace:
                ratio = ratio - _log_mixture(-s - v / 2, q)
            if found.is_perfect:
                shown = found.revealing @ left
                ratio = self._decided(shown, found.revealed @ size, q)
            total += ratio
        return total

    def _of_agent(self, happened: HappenedRound, host: int, first: NDArray[np.bool_]) -> list[int]:
        """Positions of an agent's contributions of the first block, of all its batches."""
        batches = happened.trace.of_victim(host).values()
        return [c for columns, _, _ in batches for c in columns if first[c]]

    def _add_links(
        self, happened: HappenedRound, rows: ObservedRows, left: Array, planted: Planted, host: int
    ) -> None:
        """Score every message by itself: what it adds to those before it."""
        first, sent = _first_block(happened.trace), len(rows.messages)
        energy, held = rows.noise_energy[:sent], rows.contributions[:sent]
        batches = happened.trace.of_victim(host).values()
        every = held[:, self._of_agent(happened, host, first)]
        for columns, bounds, rate in batches:
            mine = [c for c, b in zip(columns, bounds, strict=True) if b > 0 and first[c]]
            own = held[:, mine].toarray()
            # Two batches under one noise are no two messages; the whole view scores them.
            alone = np.asarray(abs(every).sum(axis=1)).ravel() - np.abs(own).sum(axis=1) < 1e-12
            q = self._rate if rate is None else rate
            for row in np.flatnonzero((energy > 0) & (np.abs(own).sum(axis=1) > 0) & alone):
                size = own[row] @ planted.size[mine]
                there = own[row] @ (planted.size[mine] * planted.part[mine])
                s = (left[row] + there) * size / energy[row]
                v = size**2 / energy[row]
                ratio = _log_mixture(s - v / 2, q)
                if self._replace:
                    ratio = ratio - _log_mixture(-s - v / 2, q)
                bound = max(b for b in bounds if b > 0)
                reach = float(np.abs(own[row]).sum()) * bound
                mu = round(reach / math.sqrt(energy[row]), 12)
                key = (rows.messages[row], host)
                held_so_far = self.links.get(key)
                self.links[key] = (
                    LinkScores({(mu, q): 1}, ratio)
                    if held_so_far is None
                    else held_so_far.plus(mu, q, ratio)
                )

    def _decided(self, shown: Array, whole: Array, q: float) -> Array:
        """Where the noise cancels: what is shown is the whole canary, its opposite, or nothing."""
        of = np.abs(whole).argmax(axis=0)
        every = np.arange(whole.shape[1])
        share = shown[of, every] / whole[of, every]
        out = math.log1p(-q) if q < 1 else -math.inf
        if self._replace:
            away = np.where(share < -0.5, -math.inf, 0.0)
            return np.where(share > 0.5, math.inf, away)
        return np.where(share > 0.5, math.inf, out)

    def _planted(self, happened: HappenedRound) -> Planted:
        n = self._directions.count
        groups = [g for g in happened.trace.groups if isinstance(g, Contributions)]
        total = sum(g.size for g in groups)
        clean, size, part = np.zeros((total, n)), np.zeros((total, n)), np.zeros((total, n))
        calls = iter(happened.calls)
        own: dict[int, tuple[Array, Array, Array]] = {}
        done, at = set[int](), 0
        for place, group in enumerate(groups):
            here = slice(at, at + group.size)
            at += group.size
            if group.block != 0:
                continue
            if group.blame is not None:  # a bounded function of the owners' own clipped sums
                c, z, p = own[group.batch]
                gain = group.bounds[:, None] / np.abs(z).max()
                clean[here], size[here], part[here] = gain * c, gain * z, p
                continue
            if group.first_vector in done:
                continue
            done.add(group.first_vector)
            call = next(calls)
            asked = happened.recorded.calls[place]
            mean_of = None if asked is None else asked.mean_of
            clean[here], size[here] = self._amounts(call, mean_of, bound=float(group.bounds[0]))
            part[here] = call.present[call.holders.numpy()]
            loops = np.flatnonzero((call.owners == call.holders).numpy())
            own.setdefault(group.batch, (clean[here][loops], size[here][loops], part[here][loops]))
        return Planted(clean=clean, size=size, part=part)

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
            return project(sums).numpy(), bound * call.signs
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


def _first_block(trace: RoundTrace) -> NDArray[np.bool_]:
    blocks = [np.full(g.size, g.block == 0) for g in trace.groups if isinstance(g, Contributions)]
    return np.concatenate([np.zeros(0, dtype=bool), *blocks])


def _log_mixture(exponent: Array, q: float) -> Array:
    """log(1 - q + q exp(exponent)), without overflow."""
    if q >= 1:
        return exponent
    if q <= 0:
        return np.zeros_like(exponent)
    return np.logaddexp(math.log1p(-q), math.log(q) + exponent)
