"""Runs of the real engine in which records are planted, scored for every adversary.

In each run every host holds as many canaries as fit, each put there or not by a fair coin (or
turned round by it, where neighbouring data sets differ in one record's value). Nothing of the run
is replaced but what a canary's gradient is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ...privacy.adversary import Adversary
from ...privacy.batches.drawing import Scheme
from ...privacy.errors import InputError
from ...training.algorithms.algorithm import Bound
from ...training.engine.engine import Setting
from ...training.tracing.trace import AlgorithmTrace
from ..bounds.guesses import Guesses
from ..watching.result import Check
from .canaries import (
    LENGTH,
    CanaryTask,
    Directions,
    PlantedGradients,
    drawn_norms,
    rounds_with_canaries,
)
from .canary_checks import canary_checks
from .canary_noise import CanaryNoise, Heard, Residue, gathered
from .coded import codes_of, with_codes_behind, with_codes_in_place
from .layout_clipping import layout_check
from .message_bounds import LinkGuesses
from .scores import LinkScores, Scorer

__all__ = [
    "MOST",
    "CanaryGame",
    "Game",
    "Played",
    "Progress",
    "play",
]

MOST = 250  # canaries of an agent in one run
SHORT = 25  # of so many one more is planted that is shorter than the clip norm
_SCORED = (Scheme.POISSON, Scheme.FIXED, Scheme.SHUFFLED, Scheme.CYCLIC)
Progress = Callable[[int, int], None]
_Scored = tuple[NDArray[np.float64], NDArray[np.bool_]]  # scores and coins


class Game(Protocol):
    """What an audit plays: canaries that are records, or all data of an agent."""

    @property
    def traces(self) -> AlgorithmTrace:
        """Of the algorithm at the noise of the run."""
        ...

    @property
    def adversaries(self) -> Mapping[str, Mapping[int, Adversary]]:
        """By name and host, whose view is scored."""
        ...

    @property
    def linked(self) -> str | None:
        """The adversary of whose view each message is scored by itself, too; None for none."""
        ...

    @property
    def hosts(self) -> list[int]:
        """The agents who hold canaries."""
        ...

    @property
    def runs(self) -> int:
        """How many runs share the canaries."""
        ...

    @property
    def of_each(self) -> int:
        """Canaries of a host in a run."""
        ...

    def narrowed(self, name: str, *, linked: str | None) -> Game:
        """The same with one adversary."""
        ...

    def checks(self, played: Played) -> list[Check]:
        """Checks of a game that was played, and of how its canaries are clipped."""
        ...

    def play(self, *, generator: np.random.Generator, progress: Progress | None = None) -> Played:
        """Plant, run and score."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class CanaryGame:
    """What is played, and who looks on.

    Attributes:
        setting: graph, model and data of the run.
        bound: the algorithm with its numbers.
        traces: of the algorithm at the noise of the run.
        rounds: how many are run.
        clip_norm: of the run.
        adversaries: by name and host, whose view is scored.
        canaries: how many in all; rounded up to equal numbers in every host and run.
        linked: the adversary of whose view each message is scored by itself, too; None for none.
        replace: whether neighbouring data sets differ in one record's value.
        apart: whether hosts need directions of their own, because what is scored of one shares
            noise with what is scored of another, and their errors would go together.
        batch_clipped: whether a batch's mean is clipped, so that an agent can hold one canary only.
        together: how many records of one person a canary is, all of one direction and sign.
    """

    setting: Setting
    bound: Bound
    traces: AlgorithmTrace
    rounds: int
    clip_norm: float
    adversaries: Mapping[str, Mapping[int, Adversary]]
    canaries: int
    linked: str | None = None
    replace: bool = False
    apart: bool = False
    batch_clipped: bool = False
    together: int = 1

    def __post_init__(self) -> None:
        """Check that there is something to plant and somebody to look on."""
        if self.canaries < 1:
            raise InputError(f"canaries={self.canaries} must be at least 1")
        if not self.hosts:
            raise InputError("adversaries names no host; give at least one adversary with a victim")
        if self.apart and self.dimension < len(self.hosts):
            raise InputError(
                f"{len(self.hosts)} hosts need a direction each, but there are {self.dimension} "
                "coordinates; audit fewer canaries, or a larger model"
            )
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

    @property
    def of_each(self) -> int:
        """Canaries of a host in a run."""
        return -(-self.canaries // (self.runs * len(self.hosts)))

    def narrowed(self, name: str, *, linked: str | None) -> CanaryGame:
        """The same with one adversary."""
        return replace(self, adversaries={name: self.adversaries[name]}, linked=linked)

    def checks(self, played: Played) -> list[Check]:
        """Checks of a game that was played, and of clipping in the run's own layout."""
        found = canary_checks(played.noise, replace=self.replace)
        return found if self.batch_clipped else [*found, layout_check(self.setting)]

    def play(self, *, generator: np.random.Generator, progress: Progress | None = None) -> Played:
        """See `play`."""
        return play(self, generator=generator, progress=progress)


class Played(NamedTuple):
    """Scores and coins: by adversary of all canaries it looks at, and of single messages.

    `noise` is what the noise alone did to the scores, `heard` all that was seen of a whole run.
    """

    guesses: dict[str, Guesses]
    links: list[LinkGuesses]
    noise: Sequence[CanaryNoise] = ()
    heard: Sequence[Heard] = ()


class Scores(Protocol):
    """What one run leaves: scores by adversary and host, of messages, and what noise did."""

    scores: dict[str, dict[int, NDArray[np.float64]]]
    links: dict[tuple[str, int], LinkScores]
    residues: dict[str, list[Residue]]


def play(
    game: CanaryGame,
    *,
    generator: np.random.Generator,
    progress: Progress | None = None,
    one_run: Callable[..., Scores] | None = None,
) -> Played:
    """Plant, run and score.

    Args:
        game: what is played.
        generator: of coins, directions and signs; noise and batches come from the system's entropy.
        progress: called with (rounds done, rounds in all).
        one_run: plays a run, called as `_one_run` is; round by round when None.
    """
    of_names: dict[str, list[_Scored]] = {name: [] for name in game.adversaries}
    of_links: dict[tuple[str, int], list[_Scored]] = {}
    rounds: dict[tuple[str, int], Mapping[tuple[float, float], int]] = {}
    residues: list[dict[str, list[Residue]]] = []
    total = game.runs * game.rounds
    for run in range(game.runs):
        done = run * game.rounds

        def tick(round: int, done: int = done) -> None:
            if progress is not None:
                progress(done + round, total)

        coins = generator.integers(2, size=(len(game.hosts), game.of_each)).astype(bool)
        scorer = (one_run or _one_run)(game, coins, generator=generator, progress=tick)
        residues.append(scorer.residues)
        of = dict(zip(game.hosts, coins, strict=True))
        for name, by_host in scorer.scores.items():
            of_names[name] += [(at[game.own(h)], of[h]) for h, at in by_host.items()]
        for key, link in scorer.links.items():
            of_links.setdefault(key, []).append((link.scores[game.own(key[1])], of[key[1]]))
            rounds[key] = link.rounds
    return Played(
        guesses={name: _joined(found) for name, found in of_names.items()},
        links=[
            LinkGuesses(message, host, rounds[message, host], _joined(found))
            for (message, host), found in of_links.items()
        ],
        noise=gathered(residues),
    )


def _joined(found: Sequence[_Scored]) -> Guesses:
    return Guesses(
        scores=np.concatenate([scored for scored, _ in found]),
        included=np.concatenate([coins for _, coins in found]),
    )


def drawn_canaries(
    game: CanaryGame,
    *,
    generator: np.random.Generator,
    signs: Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]] | None = None,
) -> tuple[Directions, PlantedGradients]:
    """The directions of a run's canaries, and the gradients of records and canaries."""
    objective = game.setting.task or game.setting.model
    directions = Directions(game.directions, game.dimension, generator=generator)
    agents, long = len(game.setting.shards), game.of_each * (len(game.hosts) if game.apart else 1)
    norms = drawn_norms(agents, long, game.directions - long, generator=generator)
    if game.batch_clipped:
        norms[:] = LENGTH
    return directions, PlantedGradients(
        CanaryTask(objective, directions=directions),
        clip_norm=game.clip_norm,
        generator=generator,
        device=game.setting.device,
        dtype=game.setting.dtype,
        norms=norms,
        signs=signs,
    )


def _one_run(
    game: CanaryGame,
    coins: NDArray[np.bool_],
    *,
    generator: np.random.Generator,
    progress: Callable[[int], None],
) -> Scorer:
    sampler = game.setting.sampler
    directions, gradients = drawn_canaries(game, generator=generator)
    scorer = Scorer(
        game.setting.task or game.setting.model,
        directions=directions,
        adversaries=game.adversaries,
        sampling_rate=game.setting.sampling_rate,
        replace=game.replace,
        linked=game.linked,
        own={h: np.r_[game.own(h), game.own_short(h)] for h in game.hosts},
        together=game.together,
        rates={h: sampler.drawn[h].rate for h in game.hosts} if sampler is not None else {},
        public=game.scheme.in_epochs,
    )
    planted = {
        host: codes_of(
            coin,
            np.r_[game.own(host)],
            np.r_[game.own_short(host)],
            replaced=game.replace,
            together=game.together if sampler is None else None,
        )
        for host, coin in zip(game.hosts, coins, strict=True)
    }
    own = game.setting.shards
    if sampler is None:
        shards = with_codes_behind(own, planted)
    else:
        how: dict[str, Any] = {"sampler": sampler, "rounds": game.rounds, "generator": generator}
        shards = with_codes_in_place(own, planted, **how)
    setting = replace(game.setting, shards=shards, users=None)
    run = setting, game.bound
    how = {"traces": game.traces, "rounds": game.rounds}
    for happened in rounds_with_canaries(*run, gradients=gradients, **how):
        if happened.trace.has_contributions:
            scorer.add(happened)
        progress(happened.number)
    return scorer
