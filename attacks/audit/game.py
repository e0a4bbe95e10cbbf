"""One game of canaries: planted by coins in runs of the real engine, and scored for adversaries.

In each run every host holds as many canaries as fit, each put there or not by a fair coin (or
turned round by it, where neighbouring data sets differ in one record's value). Nothing of the run
is replaced but what a canary's gradient is. What a canary is, how one run is played and what is
scored in it differs: records (`CanaryGame`), all data of an agent (`agents`), and records in runs
that are one release (`whole_run_game`).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...privacy.batches.sampling import Scheme
from ...privacy.errors import InputError, Progress, whole
from ...privacy.guarantee import Adversary
from ...training.algorithms.algorithm import Bound
from ...training.engine.engine import gradients_of
from ...training.engine.setting import Setting
from ...training.gradients.gradients import Batch
from ...training.models.parameters import flatten
from ...training.tracing.trace import AlgorithmTrace
from ..bounds.lower_bounds import Guesses
from ..checks.reference_sums import Oracle
from ..checks.result import Check
from . import canaries as audit_canaries
from .audited import LinkGuesses
from .canary_noise import CanaryNoise, ObservedNoise, Residue, canary_checks, gathered
from .scores import BatchRates, LinkScores, Scorer

# Clipping in the run's own layout: records whose gradients are from a half to 1,000 clip norms.
#
# Canaries meet the clipping of torch.func's layout, because no network has the gradients that they
# need. So real records are clipped by the layout that the run settles on, on its device and in its
# precision, one record a row, at bounds C from twice to a thousandth of their norms, and each row
# is held against
#
#     min(1, C / |g|) g        g: by the oracle of `reference_sums`
#
# in the run's precision and in double precision, where nothing but a difference is left.

_NAME = "layout"
_RECORDS, _BOUNDS = 24, 32
_LEAST, _MOST = 0.5, 1000.0  # norms of records, in clip norms
_ALLOWED = {torch.float64: 1e-6, torch.float32: 0.1}  # in clip norms; a ReLU at 0 may turn


def layout_check(setting: Setting) -> Check:
    """Clip real records at many bounds in the run's own layout, and compare with the oracle.

    Args:
        setting: graph, model and data of the run.

    Returns:
        Passed if every row agrees with the oracle; nothing is left to chance.
    """
    # Gradients of single records, unclipped, by the oracle.
    batches = _single(setting)
    start = setting.task.initial() if setting.task else flatten(setting.model)
    point = start.detach()[None]
    rows = range(len(batches))
    clean = Oracle(setting.task or setting.model).sums(
        point[None], [0] * len(batches), holders=list(rows), batches=batches, clip_norm=None
    )
    norms = torch.linalg.vector_norm(clean, dim=1)
    # A record without a gradient to speak of shows no clipping.
    kept = [b for b in rows if float(norms[b]) > 1e-6 * float(norms.max())]
    # In the run's precision and in double: bounds that cut hardly, and by far.
    tests, fault, layouts = 0, "", list[str]()
    for dtype in sorted({setting.dtype, torch.float64}, key=str):
        gradients = gradients_of(replace(setting, dtype=dtype))
        for share in np.geomspace(_LEAST, _MOST, _BOUNDS) if kept else ():
            bound = float(norms[kept].median()) / float(share)
            found = gradients.clipped_sums(
                point.to(setting.device, dtype),
                ([0] * len(batches), list(rows)),
                batches,
                clip_norm=bound,
            )
            expected = clean * (bound / norms.clamp_min(1e-300)).clamp_max(1.0)[:, None]
            off = torch.linalg.vector_norm(found.cpu().double() - expected, dim=1)[kept] / bound
            tests += len(kept)
            worst = int(off.argmax())
            if not fault and not float(off[worst]) <= _ALLOWED[dtype]:
                fault = (
                    f"a gradient of {float(norms[kept[worst]]) / bound:.3g} clip norms is off by "
                    f"{float(off[worst]):.2g} clip norms"
                )
        layouts.append(str(getattr(gradients, "layout", "given")))
    words = (
        f"{tests} gradients of {len(kept)} records were clipped in the run's own layout "
        f"({', '.join(sorted(set(layouts)))}) at bounds that make them {_LEAST:g} to {_MOST:,.0f} "
        "clip norms long"
    )
    words += f"; {fault}" if fault else "; each is as long as it may be"
    return Check.exact(_NAME, f"{words}.", tests=tests, passed=not fault)


def _single(setting: Setting) -> Sequence[Batch]:
    """Records of all agents, the first of each before the second of any, one a batch."""
    batches, depth = list[Batch](), 0
    most = max(shard.size for shard in setting.shards)
    while len(batches) < _RECORDS and depth < most:
        for shard in setting.shards:
            if depth < shard.size and len(batches) < _RECORDS:
                taken = shard.take(torch.tensor([depth]))
                batches.append((taken.inputs, taken.targets))
        depth += 1
    return batches


MOST = 250  # canaries of an agent in one run
SHORT = 25  # of so many one more is planted that is shorter than the clip norm
_SCORED = (Scheme.POISSON, Scheme.FIXED, Scheme.SHUFFLED, Scheme.CYCLIC)
_Scored = tuple[NDArray[np.float64], NDArray[np.bool_]]  # scores and coins


class Scores(NamedTuple):
    """What one run leaves: scores by adversary and host, what noise did, and of messages."""

    scores: Mapping[str, Mapping[int, NDArray[np.float64]]]
    residues: Mapping[str, Sequence[Residue]]
    links: Mapping[tuple[str, int], LinkScores] = {}
    heard: Sequence[ObservedNoise] = ()


class Played(NamedTuple):
    """Scores and coins: by adversary of all canaries it looks at, and of single messages.

    `noise` is what the noise alone did to the scores, `heard` all that was seen of a whole run.
    """

    guesses: dict[str, Guesses]
    links: list[LinkGuesses]
    noise: Sequence[CanaryNoise] = ()
    heard: Sequence[ObservedNoise] = ()


@dataclass(frozen=True, kw_only=True)
class Game(ABC):
    """What is played, and who looks on.

    Attributes:
        bound: the algorithm with its numbers.
        traces: of the algorithm at the noise of the run, as its step was traced.
        rounds: how many are run.
        adversaries: by name and host, whose view is scored.
        canaries: how many in all; rounded up to equal numbers in every host and run.
        linked: the adversary of whose view each message is scored by itself, too; None for none.
        replace: whether neighbouring data sets differ in the value of what a canary is.
        apart: whether hosts need directions of their own, because what is scored of one shares
            noise with what is scored of another, and their errors would go together.
        beside: a game with coins of its own that is played after this one, of the same run and
            hosts, whose adversaries have other names; None for none.
    """

    setting: Setting
    bound: Bound
    traces: AlgorithmTrace
    rounds: int
    adversaries: Mapping[str, Mapping[int, Adversary]]
    canaries: int
    linked: str | None = None
    replace: bool = False
    apart: bool = False
    beside: Game | None = None

    def __post_init__(self) -> None:
        """Check that there is something to plant and somebody to look on."""
        whole("canaries", self.canaries, "[1, inf)")
        if not self.hosts:
            raise InputError("adversaries names no host; give at least one adversary with a victim")
        if self.apart and self.dimension < len(self.hosts):
            raise InputError(
                f"{len(self.hosts)} hosts need a direction each, but there are {self.dimension} "
                "coordinates; audit fewer canaries, or a larger model"
            )

    @property
    def hosts(self) -> list[int]:
        """The agents who hold canaries."""
        return sorted({host for of in self.adversaries.values() for host in of})

    @property
    def dimension(self) -> int:
        """Coordinates of the first block."""
        if self.setting.task is not None:
            return int(self.setting.task.dimensions[0])
        return sum(p.numel() for p in self.setting.model.parameters())

    @property
    @abstractmethod
    def runs(self) -> int:
        """How many runs share the canaries."""

    @property
    def of_each(self) -> int:
        """Canaries of a host in a run."""
        return -(-self.canaries // (self.runs * len(self.hosts)))

    def own(self, host: int) -> slice:  # noqa: ARG002 # of games whose hosts share directions
        """Which of the host's scores are those of its canaries that are guessed."""
        return slice(0, self.of_each)

    @abstractmethod
    def run(
        self,
        coins: NDArray[np.bool_],
        *,
        generator: np.random.Generator,
        progress: Callable[[int], None],
    ) -> Any:
        """Plant what (hosts, of_each) coins show, and play one run; what `scored` takes of it."""

    def scored(self, runs: Sequence[Any]) -> Sequence[Scores]:
        """The scores of every run, once all of them are played."""
        return runs

    def checks(self, played: Played) -> list[Check]:
        """Checks of what the noise did to the scores of a game that was played."""
        return canary_checks(played.noise, replace=self.replace)

    def narrowed(self, name: str, *, linked: str | None) -> Game:
        """The same with one adversary; the game beside it where that has the adversary."""
        if name not in self.adversaries and self.beside is not None:
            return self.beside.narrowed(name, linked=linked)
        return replace(self, adversaries={name: self.adversaries[name]}, linked=linked, beside=None)

    def play(self, *, generator: np.random.Generator, progress: Progress | None = None) -> Played:
        """Plant, run and score.

        Args:
            generator: of coins, directions, norms and signs; noise and batches come from the
                system's entropy.
            progress: called with (rounds done, rounds in all, "canaries").
        """
        own, other = self.runs * self.rounds, self.beside
        total = own + (0 if other is None else other.runs * other.rounds)

        def tick(done: int) -> None:
            if progress is not None:
                progress(done, total, "canaries")

        # Runs of this game, each with coins of its own, and then the game beside it.
        coins, runs = list[NDArray[np.bool_]](), []
        for run in range(self.runs):
            tossed = generator.integers(2, size=(len(self.hosts), self.of_each)).astype(bool)

            def of_run(round: int, before: int = run * self.rounds) -> None:
                tick(before + round)

            coins.append(tossed)
            runs.append(self.run(tossed, generator=generator, progress=of_run))
        played = self._joined(coins, self.scored(runs))
        if other is None:
            return played
        second = other.play(generator=generator, progress=lambda done, *_: tick(own + done))
        return Played(
            guesses={**played.guesses, **second.guesses},
            links=played.links,
            noise=[*played.noise, *second.noise],
        )

    def _joined(self, coins: Sequence[NDArray[np.bool_]], runs: Sequence[Scores]) -> Played:
        of_names: dict[str, list[_Scored]] = {name: [] for name in self.adversaries}
        of_links: dict[tuple[str, int], list[_Scored]] = {}
        rounds: dict[tuple[str, int], Mapping[tuple[float, float], int]] = {}
        for tossed, run in zip(coins, runs, strict=True):
            of = dict(zip(self.hosts, tossed, strict=True))
            for name, by_host in run.scores.items():
                of_names[name] += [(at[self.own(h)], of[h]) for h, at in by_host.items()]
            for key, link in run.links.items():
                scores = link.scores[self.own(key[1])]
                of_links.setdefault(key, []).append((scores, of[key[1]]))
                rounds[key] = link.rounds
        return Played(
            guesses={name: _guesses(found) for name, found in of_names.items()},
            links=[
                LinkGuesses(message, host, rounds[message, host], _guesses(found))
                for (message, host), found in of_links.items()
            ],
            noise=gathered([run.residues for run in runs]),
            heard=[one for run in runs for one in run.heard],
        )


def _guesses(found: Sequence[_Scored]) -> Guesses:
    return Guesses(
        scores=np.concatenate([scored for scored, _ in found]),
        included=np.concatenate([coins for _, coins in found]),
    )


@dataclass(frozen=True, kw_only=True)
class CanaryGame(Game):
    """Canaries are single records, or several of one person.

    Attributes:
        clip_norm: of the run.
        batch_clipped: whether a batch's mean is clipped, so that an agent can hold one canary only.
        together: how many records of one person a canary is, all of one direction and sign.
    """

    clip_norm: float
    batch_clipped: bool = False
    together: int = 1

    def __post_init__(self) -> None:
        """Check that there is something to plant and somebody to look on."""
        super().__post_init__()
        if self.together > 1 and (self.batch_clipped or self.linked is not None):
            raise InputError(
                f"together={self.together} records of one person are scored in sums, and not in "
                "clipped means nor message by message"
            )
        if self.scheme not in _SCORED:
            raise InputError(f"canaries are not scored in batches that are '{self.scheme}'")
        other = self.together > 1 or self.batch_clipped or self.linked is not None
        if other and self.scheme is not Scheme.POISSON:
            raise InputError(
                f"in batches that are '{self.scheme}' canaries are single records, scored in sums "
                "and not message by message"
            )
        if not 0 < self.clip_norm < math.inf:
            raise InputError(
                f"clip_norm={self.clip_norm} must be a positive number: without clipping no bound "
                "is proven, so there is nothing to audit"
            )

    @property
    def scheme(self) -> Scheme:
        """How batches are drawn."""
        sampler = self.setting.sampler
        return Scheme.POISSON if sampler is None else sampler.scheme

    @property
    def one_of_each(self) -> bool:
        """Whether an agent can hold one canary only: of others its share in what is seen tells."""
        return self.batch_clipped or self.scheme is Scheme.FIXED

    @property
    def room(self) -> int:
        """Directions that a host has; where its records stay as many, also places for canaries.

        Half of the records are replaced at most, and no more than all rounds draw.
        """
        most = self.dimension // len(self.hosts) if self.apart else self.dimension
        sampler = self.setting.sampler
        for drawn in () if sampler is None else (sampler.drawn[h] for h in self.hosts):
            most = min(most, max(1, drawn.records // 2), drawn.size * self.rounds)
        return most

    @property
    def runs(self) -> int:
        """How many runs share the canaries."""
        held = max(1, MOST // self.together)  # so that no agent has many more records
        most = 1 if self.one_of_each else max(1, min(held, self.room - self.short))
        return -(-self.canaries // (most * len(self.hosts)))

    @property
    def short(self) -> int:
        """Canaries of a host, beside those that are guessed, that are shorter than the clip norm.

        Where an agent can hold one canary only, none is short.
        """
        return 0 if self.one_of_each else min(MOST, self.room) // SHORT

    def own(self, host: int) -> slice:
        """Which directions are those of the host's canaries that are guessed."""
        start = self.hosts.index(host) * self.of_each if self.apart else 0
        return slice(start, start + self.of_each)

    def own_short(self, host: int) -> slice:
        """Which directions are those of the host's short canaries."""
        hosts = len(self.hosts) if self.apart else 1
        start = hosts * self.of_each + (self.hosts.index(host) * self.short if self.apart else 0)
        return slice(start, start + self.short)

    @property
    def directions(self) -> int:
        """How many directions a run has."""
        return (self.of_each + self.short) * (len(self.hosts) if self.apart else 1)

    def checks(self, played: Played) -> list[Check]:
        """Checks of a game that was played, and of clipping in the run's own layout."""
        found = super().checks(played)
        return found if self.batch_clipped else [*found, layout_check(self.setting)]

    def drawn_canaries(
        self,
        *,
        generator: np.random.Generator,
        signs: Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]] | None = None,
    ) -> tuple[audit_canaries.Directions, audit_canaries.PlantedGradients]:
        """The directions of a run's canaries, and the gradients of records and canaries."""
        objective = self.setting.task or self.setting.model
        directions = audit_canaries.Directions(self.directions, self.dimension, generator=generator)
        agents, hosts = len(self.setting.shards), len(self.hosts) if self.apart else 1
        long = self.of_each * hosts
        far = audit_canaries.furthest(self.setting.dtype, self.clip_norm)
        norms = audit_canaries.drawn_norms(
            agents, long, self.directions - long, far=far, generator=generator
        )
        if self.batch_clipped:
            norms[:] = audit_canaries.LENGTH
        return directions, audit_canaries.PlantedGradients(
            audit_canaries.CanaryTask(objective, directions=directions),
            clip_norm=self.clip_norm,
            generator=generator,
            device=self.setting.device,
            dtype=self.setting.dtype,
            norms=norms,
            signs=signs,
        )

    def codes(self, coins: NDArray[np.bool_], *, together: int | None) -> dict[int, Tensor]:
        """By host the codes of its canaries, as in `codes_of`."""
        return {
            host: audit_canaries.codes_of(
                coin,
                np.r_[self.own(host)],
                np.r_[self.own_short(host)],
                replaced=self.replace,
                together=together,
            )
            for host, coin in zip(self.hosts, coins, strict=True)
        }

    def run(
        self,
        coins: NDArray[np.bool_],
        *,
        generator: np.random.Generator,
        progress: Callable[[int], None],
    ) -> Scores:
        """See `Game.run`."""
        sampler = self.setting.sampler
        directions, gradients = self.drawn_canaries(generator=generator)
        scorer = Scorer(
            self.setting.task or self.setting.model,
            directions=directions,
            adversaries=self.adversaries,
            batches=BatchRates(
                self.setting.sampling_rate,
                {h: sampler.drawn[h].rate for h in self.hosts} if sampler is not None else {},
                self.scheme.in_epochs,
            ),
            replace=self.replace,
            linked=self.linked,
            own={h: np.r_[self.own(h), self.own_short(h)] for h in self.hosts},
            together=self.together,
        )
        # Canaries stand behind an agent's records, or in their place where sizes are fixed.
        planted = self.codes(coins, together=self.together if sampler is None else None)
        own = self.setting.shards
        if sampler is None:
            shards = audit_canaries.with_codes_behind(own, planted)
        else:
            how: dict[str, Any] = {"sampler": sampler, "rounds": self.rounds}
            shards = audit_canaries.with_codes_in_place(own, planted, generator=generator, **how)
        setting = replace(self.setting, shards=shards, users=None)
        how = {"traces": self.traces, "rounds": self.rounds, "gradients": gradients}
        for happened in audit_canaries.rounds_with_canaries(setting, self.bound, **how):
            if happened.trace.has_contributions:
                scorer.add(happened)
            progress(happened.number)
        return Scores(scorer.scores, scorer.residues, scorer.links)
