"""Runs of the real engine in which agents hold a canary, or nothing, in place of their data.

In each run every host holds one canary by a fair coin. Runs are independent, and so are hosts of
one run: their directions are orthogonal, and noise is white over coordinates. Agents of a cohort of
fixed size do not take part independently, so that one host alone holds a canary there.

Agents whose data make them contribute a vector of our choosing, or none at all.

What an agent contributes at unit "agent" is clipped as one vector, so that it can hold one canary
in a run:

    in     gradients along +-u, so long that the vector before clipping is that of `drawn_norms`
    out    no gradient, as of an agent without data; or the opposite vector (replace-one)

The engine's own local steps, clipping, cohorts, noise and messages do the rest. The sign is drawn
afresh for every release and round; directions of two agents are orthogonal.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...privacy.batches.sampling import Scheme
from ...privacy.errors import InputError
from ...privacy.guarantee import Adversary
from ...privacy.participation import Draws
from ...training.engine.engine import gradients_of
from ...training.engine.recording import MeanOf, Recorded
from ...training.gradients.clipping import Coefficient
from ...training.gradients.gradients import Batch, ClippedSums, Indices
from ...training.step.values import LocalSteps
from ...training.tracing.linear_forms import Contributions
from ...training.tracing.round_trace import RoundTrace
from ...training.tracing.trace import AlgorithmTrace
from ..checks.recording import WatchedRound
from .canaries import Directions, drawn_norms, furthest, rounds_with_canaries
from .canary_noise import Residue, decided, likeliest, log_ratio
from .game import Game, Scores
from .observed_rows import ObservedRows, Projected, RowsSeen
from .scores import first_block

# Score canaries that are all data of an agent, by the matched filter of an adversary's view.
#
# Of the canary of agent v, which contributes c u_v with the signs and sizes c of a round, the score
# is the log-likelihood ratio of "data" against "no data", or of +u against -u; s and nu^2 as in the
# module `scores` of the room above, p the chance of the agent to be in a secret cohort, 1 without:
#
#     zero-out       sum_t log(1 - p + p exp(s - nu^2 / 2))
#     replace-one    sum_t log(1 - p + p exp(s - nu^2 / 2)) - log(1 - p + p exp(-s - nu^2 / 2))
#
# The order of shuffled and cyclic cohorts is public, so that p is 1 in the rounds of the agent and
# 0 in all others. Of a cohort of fixed size p is its share of the agents.
#
# Known is everything but whether the agent had data: the models, what all other agents contribute,
# and who of them is in a cohort. An agent holds one canary in a run, so that how strong the noise
# really is (`strength`) is read from the same agent and round of all runs together.

Array = NDArray[np.float64]
_FEWEST = 20  # canaries from which the strength of the noise is read


class Observed(NamedTuple):
    """What one adversary saw of one host's canary in one round.

    Attributes:
        name: of the adversary.
        host, round, batch: which; batches are numbered within the round.
        rate: chance of the agent to take part.
        s: the filter's output, the canary's own part in it.
        v: nu^2, its variance, and its mean with the canary.
        decided: the ratio where something is seen without noise; None elsewhere.
        noise: s without the canary, over its deviation; NaN where rounding shows in it.
        part: 1 or -1 where the canary took part, 0 where it did not.
        sign: of the sum of what it adds to all rows.
        norm: of its vector before clipping, in clip norms.
    """

    name: str
    host: int
    round: int
    batch: int
    rate: float
    s: float
    v: float
    decided: float | None
    noise: float
    part: int
    sign: float
    norm: float


class _Planted(NamedTuple):
    """Over contributions in the trace's order: what is known, what a canary adds, and where."""

    clean: Array  # (contributions, hosts)
    size: Array  # (contributions,) with the sign
    part: NDArray[np.int64]  # (contributions,)


class Views:
    """What adversaries see of canaries, round by round, in all runs of a game.

    Args:
        adversaries: by name and host, whose view.
        hosts: in the order of their directions.
        replace: whether the game is +u against -u.
    """

    def __init__(
        self,
        adversaries: Mapping[str, Mapping[int, Adversary]],
        *,
        hosts: Sequence[int],
        replace: bool,
    ) -> None:
        self._adversaries, self._replace = adversaries, replace
        self._at = {host: j for j, host in enumerate(hosts)}
        self._rows_seen = RowsSeen()

    def observed(
        self,
        happened: WatchedRound,
        directions: Directions,
        *,
        part: Mapping[int, int],
        norms: Mapping[int, float],
    ) -> list[Observed]:
        """What a round showed of every host to every adversary; the rest as of `PlantedAgents`."""
        found = list[Observed]()
        planted = self._planted(happened, directions, part)
        project = Projected(directions.project)
        seen: dict[str, tuple[ObservedRows, Array, bool]] = {}
        for name, of in self._adversaries.items():
            for host, who in of.items():
                if who.name not in seen:
                    seen[who.name] = self._less_known(happened, who, planted, project)
                held = seen[who.name]
                found += self._of_host(happened, name, host, planted, held, norm=norms[host])
        return found

    def _less_known(
        self, happened: WatchedRound, who: Adversary, planted: _Planted, project: Projected
    ) -> tuple[ObservedRows, Array, bool]:
        rows = self._rows_seen(happened, who)
        left = rows.unexplained(happened, project)
        whole = planted.clean.copy()
        owners = _owners(happened.trace)
        for host, j in self._at.items():
            mine = owners == host
            whole[mine, j] += planted.size[mine] * planted.part[mine]
        return rows, left - rows.contributions @ whole, rows.drowned(happened)

    def _of_host(
        self,
        happened: WatchedRound,
        name: str,
        host: int,
        planted: _Planted,
        seen: tuple[ObservedRows, Array, bool],
        *,
        norm: float,
    ) -> list[Observed]:
        rows, left, drowned = seen
        found = list[Observed]()
        # Of the host's own canaries none is known: what they add counts with the noise.
        first = first_block(happened.trace)
        noise = left[:, self._at[host]]
        batches = happened.trace.of_victim(host).items()
        every = [c for _, (columns, _, _) in batches for c in columns if first[c]]
        own = rows.adds(every) @ (planted.size[every] * planted.part[every])
        for number, ((_, cohort), (columns, bounds, draws)) in enumerate(batches):
            mine = [c for c, b in zip(columns, bounds, strict=True) if b > 0 and first[c]]
            if not mine:
                continue
            # The matched filter of a batch, and the evidence that it can give.
            filtered, size = rows.filter(mine), planted.size[mine]
            v = float(size @ filtered.information @ size)
            shows = filtered.is_perfect
            if not v > 0 and not shows:
                continue  # none of it is seen
            w = filtered.weights @ size
            q = _chance(draws, cohort, happened.recorded, host)
            # What is seen without noise decides by itself.
            shown = (filtered.revealing @ (noise + own))[:, None]
            whole = (filtered.revealed @ size)[:, None]
            sure = float(decided(shown, whole, q=q, replace=self._replace)[0]) if shows else None
            found.append(
                Observed(
                    name=name,
                    host=host,
                    round=happened.number,
                    batch=number,
                    rate=q,
                    s=float(w @ (noise + own)),
                    v=v,
                    decided=sure,
                    noise=math.nan if drowned or not v > 0 else float(w @ noise) / math.sqrt(v),
                    part=int(planted.part[mine[0]]),
                    sign=float(np.sign(size.sum())),
                    norm=norm,
                )
            )
        return found

    def _planted(
        self, happened: WatchedRound, directions: Directions, taking_part: Mapping[int, int]
    ) -> _Planted:
        groups = [g for g in happened.trace.groups if isinstance(g, Contributions)]
        total = sum(g.size for g in groups)
        clean = np.zeros((total, len(self._at)))
        size, part = np.zeros(total), np.zeros(total, dtype=np.int64)
        sent = iter(happened.calls)
        start, last = 0, (np.zeros(0), np.zeros(0, dtype=np.int64), torch.zeros(0))
        for place, group in enumerate(groups):
            here = slice(start, start + group.size)
            start += group.size
            made = happened.recorded.contributions[place]
            if group.block != 0:
                continue
            # Agents without a canary sent what was recorded; a canary is a sign and a coin.
            others = ~np.isin(group.owners, list(self._at))
            rows = directions.project(made).numpy()
            clean[here] = np.where(others[:, None], rows, 0.0)
            if group.cohort is None:
                signs = next(sent).signs
                coins = np.array([taking_part.get(int(v), 0) for v in group.owners])
                size[here], part[here] = group.bounds * signs, coins
                last = signs, coins, made
                continue
            # What is averaged is a multiple of the vectors before it; the bounds say how large.
            signs, coins, before = last
            turned = -1.0 if float((made.double() * before.double()).sum()) < 0.0 else 1.0
            taking = happened.recorded.cohorts[group.cohort].cpu().numpy().ravel()
            size[here] = group.bounds * signs * turned
            part[here] = coins * taking[group.owners]
        return _Planted(clean, size, part)


def scored(observed: Sequence[Sequence[Observed]], *, replace: bool) -> dict[str, dict[int, Array]]:
    """By adversary and host the (runs,) scores of its canaries; `replace` is +u against -u."""
    found: dict[str, dict[int, Array]] = {}
    votes: dict[tuple[str, int], NDArray[np.int64]] = {}
    # Likelihood ratios by place, added up over the rounds of a run.
    for (name, host, _, _), every in _by_place(observed).items():
        total = found.setdefault(name, {}).setdefault(host, np.zeros(len(observed)))
        vote = votes.setdefault((name, host), np.zeros(len(observed), dtype=np.int64))
        runs = np.array([run for run, _ in every])
        s = np.array([one.s for _, one in every])
        v = np.array([one.v for _, one in every])
        q = every[0][1].rate
        told = slice(None) if len(s) >= _FEWEST else slice(0)
        strength = likeliest(s[told], v[told], q=q, replace=replace)
        ratio = log_ratio(strength, s, v, q=q, replace=replace)
        # A round that is sure of its answer votes, and adds no ratio.
        sure = np.array([math.nan if o.decided is None else o.decided for _, o in every])
        ratio = np.where(np.isnan(sure), ratio, sure)
        finite = np.isfinite(ratio)
        total[runs] += np.where(finite, ratio, 0.0)
        vote[runs] += np.where(finite, 0.0, np.sign(ratio)).astype(np.int64)
    # Rounds that are sure of opposite things, as only a faulty engine has them, are outvoted.
    for (name, host), vote in votes.items():
        kept = found[name][host]
        found[name][host] = np.where(vote == 0, kept, np.copysign(math.inf, vote))
    return found


def pooled(observed: Sequence[Sequence[Observed]]) -> dict[str, list[Residue]]:
    """By adversary what the noise did to the scores, all runs as canaries side by side."""
    found: dict[str, list[Residue]] = {}
    for (name, host, number, batch), every in _by_place(observed).items():
        fields = np.full((5, len(observed)), math.nan)
        for run, one in every:
            fields[:, run] = one.noise, one.v, one.part, one.sign, one.norm
        standard, information, part, sign, norms = fields
        found.setdefault(name, []).append(
            Residue(
                round=number,
                host=host,
                batch=batch,
                rate=every[0][1].rate,
                standard=standard,
                information=information,
                part=part,
                sign=sign,
                norms=norms,
            )
        )
    return found


def _by_place(
    observed: Sequence[Sequence[Observed]],
) -> dict[tuple[str, int, int, int], list[tuple[int, Observed]]]:
    """The canaries of one host, round and batch in all runs, each with the number of its run."""
    found: dict[tuple[str, int, int, int], list[tuple[int, Observed]]] = {}
    for run, of in enumerate(observed):
        for one in of:
            found.setdefault((one.name, one.host, one.round, one.batch), []).append((run, one))
    return found


def _chance(draws: Draws, cohort: int | None, recorded: Recorded, host: int) -> float:
    """Chance of an agent to take part, to who knows the order of epochs and no coin."""
    if cohort is None or draws.scheme == Scheme.POISSON:
        return draws.rate(1.0)
    if not Scheme(draws.scheme).in_epochs:
        return draws.cohort
    return float(bool(recorded.cohorts[cohort].ravel()[host]))


def _owners(trace: RoundTrace) -> NDArray[np.int64]:
    groups = [g.owners for g in trace.groups if isinstance(g, Contributions)]
    return np.concatenate([np.zeros(0, dtype=np.int64), *groups])


def has_one_host(traces: AlgorithmTrace) -> bool:
    """Whether one agent alone can hold a canary in a run: who else takes part tells of others."""
    of_cohorts = (g for g in _contributions(traces) if g.cohort is not None)
    return any(g.drawn.scheme == Scheme.FIXED for g in of_cohorts)


def _contributions(traces: AlgorithmTrace) -> list[Contributions]:
    parts = (traces.start, *(one for one, _ in traces.rounds))
    return [g for part in parts for g in part.groups if isinstance(g, Contributions)]


def reason_against(traces: AlgorithmTrace) -> str:
    """Why no canary that is all data of an agent can be scored in such a run; empty if it can."""
    for part in (traces.start, *(one for one, _ in traces.rounds)):
        groups = [g for g in part.groups if isinstance(g, Contributions)]
        if any(g.blame is not None for g in groups):
            return (
                "a bounded function of what an agent contributes need not go along its canary, so "
                "that all data of an agent cannot be scored"
            )
        if any(g.block != 0 for g in groups):
            return "what an agent contributes to dual variables is not scored"
        before = [g for g in groups if g.cohort is None]
        if len(before) < len(groups) and len(before) != 1:
            return (
                "a secret cohort averages several vectors of an agent, of which no canary is "
                "planted"
            )
    return ""


@dataclass(frozen=True, kw_only=True)
class AgentGame(Game):
    """Canaries are all data of an agent.

    Attributes:
        of_agents: the traces for the unit "agent".
    """

    of_agents: AlgorithmTrace
    apart: bool = True

    def __post_init__(self) -> None:
        """Check that there is something to plant and somebody to look on."""
        super().__post_init__()
        if self.linked is not None:
            raise InputError("linked: single messages are not scored where an agent is the unit")
        if why := reason_against(self.traces):
            raise InputError(why)
        if len(self.hosts) > 1 and has_one_host(self.traces):
            raise InputError(
                f"{len(self.hosts)} hosts in cohorts of fixed size do not take part independently; "
                "give adversaries whose victim is one agent"
            )

    @property
    def runs(self) -> int:
        """How many runs share the canaries; a host has one in each."""
        return -(-self.canaries // len(self.hosts))

    @cached_property
    def _views(self) -> Views:
        return Views(self.adversaries, hosts=self.hosts, replace=self.replace)

    @cached_property
    def _gradients(self) -> ClippedSums:
        return gradients_of(self.setting)

    def run(
        self,
        coins: NDArray[np.bool_],
        *,
        generator: np.random.Generator,
        progress: Callable[[int], None],
    ) -> list[Observed]:
        """See `Game.run`."""
        directions = Directions(len(self.hosts), self.dimension, generator=generator)
        most = max(float(g.bounds.max(initial=0.0)) for g in _contributions(self.traces))
        far = furthest(self.setting.dtype, most)
        (lengths,) = drawn_norms(1, len(self.hosts), 0, far=far, generator=generator)
        out = -1 if self.replace else 0
        part = {host: 1 if coin else out for host, (coin,) in zip(self.hosts, coins, strict=True)}
        norms = dict(zip(self.hosts, lengths.tolist(), strict=True))
        gradients = PlantedAgents(
            self._gradients, directions=directions, part=part, norms=norms, generator=generator
        )
        how: dict[str, Any] = {"traces": self.of_agents, "rounds": self.rounds}
        found = list[Observed]()
        for happened in rounds_with_canaries(self.setting, self.bound, gradients=gradients, **how):
            if happened.trace.has_contributions:
                found += self._views.observed(happened, directions, part=part, norms=norms)
        progress(self.rounds)
        return found

    def scored(self, runs: Sequence[list[Observed]]) -> Sequence[Scores]:
        """The scores of every run: how strong the noise is, all runs together tell."""
        found, none = scored(runs, replace=self.replace), np.zeros(len(runs))
        residues = pooled(runs)
        return [
            Scores(
                scores={
                    name: {host: found.get(name, {}).get(host, none)[at : at + 1] for host in of}
                    for name, of in self.adversaries.items()
                },
                residues={} if at else residues,  # which are of all runs
            )
            for at in range(len(runs))
        ]


_LEAST = 1e-12  # of a change by a unit gradient, below which no gradient makes it as long as wished


class Sent(NamedTuple):
    """What the hosts were made to contribute to one operation of a round.

    Attributes:
        holders: (rows,) the agent whose data each row is of.
        signs: (rows,) of its vector, 1 or -1; that of an agent without a canary counts nowhere.
    """

    holders: np.ndarray
    signs: np.ndarray


class PlantedAgents:
    """Gradients of a run in which some agents hold canaries in place of their data.

    It takes the place of the run's own gradients in an engine, which still give those of all other
    agents.

    Args:
        own: the run's.
        directions: one for each host.
        part: by host 1 where its canary is in, -1 for the opposite vector, 0 for no data.
        norms: by host, of its vector before clipping, in clip norms.
        generator: of the signs.

    Attributes:
        recorded: of the round that runs; set before it.
        calls: what was planted in this round, in the order of its operations.
    """

    def __init__(
        self,
        own: ClippedSums,
        *,
        directions: Directions,
        part: Mapping[int, int],
        norms: Mapping[int, float],
        generator: np.random.Generator,
    ) -> None:
        self._own, self._generator = own, generator
        self._at = {host: j for j, host in enumerate(part)}
        self._part, self._norms = part, norms
        self._vectors = [directions.vector(j) for j in range(len(self._at))]
        self.recorded = Recorded()
        self.calls: list[Sent] = []

    def begin(self, recorded: Recorded) -> None:
        """A round begins, of which this is the record."""
        self.recorded, self.calls = recorded, []

    def clipped_sums(
        self,
        models: Tensor,
        pairs: tuple[Indices, Indices],
        batches: Sequence[Batch],
        *,
        clip_norm: float | None,
        coefficients: Sequence[Coefficient] = (1.0,),
        pairs_of_run: int | None = None,
    ) -> Tensor:
        """See `PairGradients.clipped_sums`.

        Raises:
            ValueError: single records are clipped, or no gradient makes a vector of this length.
        """
        if clip_norm is not None or not self.recorded.asked:
            raise InputError(
                "canaries that are all data of an agent need vectors that are clipped as a whole, "
                "and this step clips single records"
            )
        owners, holders = (torch.as_tensor(of, dtype=torch.int64).cpu() for of in pairs)
        # A local update asks for gradients in each of its steps; its vector is one.
        asked, first = self.recorded.asked[-1], len(self.recorded.asked) > len(self.calls)
        if first:
            signs = self._generator.integers(2, size=len(holders)) * 2 - 1
            self.calls.append(Sent(holders.numpy(), signs))
        planted = [e for e, d in enumerate(holders.tolist()) if d in self._at]
        made = models.new_zeros(len(holders), models.shape[-1])
        # Agents without a canary send gradients of their own.
        others = torch.tensor([e for e in range(len(holders)) if e not in set(planted)])
        if len(others):
            others = others.long()
            made[others.to(made.device)] = self._own.clipped_sums(
                models,
                (owners[others], holders[others]),
                batches,
                clip_norm=None,
                coefficients=coefficients,
                pairs_of_run=pairs_of_run,
            )
        # A planted agent sends a vector of known length, with the sign of its coin.
        for e in planted:
            host = int(holders[e])
            length = self._part[host] * self._norms[host] * int(self.calls[-1].signs[e])
            length *= _gradient(asked, len(batches[host][1]))
            made[e] = (length * self._vectors[self._at[host]]).to(made)
        return made


def unit_change(asked: LocalSteps) -> float:
    """What the model changes by along a gradient that is 1 in every step.

    Raises:
        ValueError: (nearly) nothing, so that no canary can be planted.
    """
    change = direction = 0.0
    for _ in range(asked.steps):
        direction = asked.momentum * direction + 1.0 + asked.proximal * change
        change -= asked.learning_rate * direction
    if not math.isfinite(change) or abs(change) < _LEAST:
        raise InputError(
            f"local steps that a gradient of 1 moves by {change:.3g} in all can hold no canary; "
            "audit with another learning rate or proximal term"
        )
    return change


def _gradient(asked: LocalSteps | MeanOf, records: int) -> float:
    """The sum of gradients whose vector, before clipping, is one clip norm long."""
    bound = asked.clip_norm
    if bound is None:
        raise InputError("a vector that is not clipped has no bound, so there is nothing to audit")
    if isinstance(asked, MeanOf):
        return bound * asked.batch_size
    return bound / unit_change(asked) * max(1, records)
