"""Runs of the real engine in which agents hold a canary, or nothing, in place of their data.

In each run every host holds one canary by a fair coin. Runs are independent, and so are hosts of
one run: their directions are orthogonal, and noise is white over coordinates. Agents of a cohort of
fixed size do not take part independently, so that one host alone holds a canary there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from ....privacy.adversary import Adversary
from ....privacy.batches.drawing import Scheme
from ....privacy.errors import InputError
from ....training.algorithms.algorithm import Bound
from ....training.engine.engine import Engine, Setting, gradients_of
from ....training.engine.recording import Recorded
from ....training.engine.transcript import Transcript
from ....training.gradients.gradients import ClippedSums
from ....training.tracing.linear_forms import Contributions
from ....training.tracing.trace import AlgorithmTrace
from ...bounds.guesses import Guesses
from ...watching.on_host import on_host
from ...watching.result import Check
from ..canaries import LONGEST, Directions
from ..canary_checks import canary_checks
from ..canary_noise import gathered
from ..game import Played, Progress
from .planted import PlantedAgents
from .scores import AgentRound, Observed, Views, pooled, scored

__all__ = ["AgentGame", "has_one_host", "reason_against"]


def has_one_host(traces: AlgorithmTrace) -> bool:
    """Whether one agent alone can hold a canary in a run: who else takes part tells of others.

    Args:
        traces: of the run.
    """
    parts = (traces.start, *(one for one, _ in traces.rounds))
    groups = [g for part in parts for g in part.groups if isinstance(g, Contributions)]
    return any(g.cohort is not None and g.drawn.scheme == Scheme.FIXED for g in groups)


def reason_against(traces: AlgorithmTrace) -> str:
    """Why no canary that is all data of an agent can be scored in such a run; empty if it can.

    Args:
        traces: of the run.
    """
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


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentGame:
    """What is played, and who looks on.

    Attributes:
        setting: graph, model and data of the run.
        bound: the algorithm with its numbers.
        traces: of the algorithm at the noise of the run, as its step was traced.
        of_agents: the same for the unit "agent".
        rounds: how many are run.
        adversaries: by name and host, whose view is scored.
        canaries: how many in all; rounded up to equal numbers of every host.
        replace: whether neighbouring data sets differ in what an agent's data are.
    """

    setting: Setting
    bound: Bound
    traces: AlgorithmTrace
    of_agents: AlgorithmTrace
    rounds: int
    adversaries: Mapping[str, Mapping[int, Adversary]]
    canaries: int
    replace: bool = False
    linked: str | None = None

    def __post_init__(self) -> None:
        """Check that there is something to plant and somebody to look on."""
        if self.canaries < 1:
            raise InputError(f"canaries={self.canaries} must be at least 1")
        if not self.hosts:
            raise InputError("adversaries names no host; give at least one adversary with a victim")
        if self.dimension < len(self.hosts):
            raise InputError(
                f"{len(self.hosts)} hosts need a direction each, but there are {self.dimension} "
                "coordinates; audit fewer canaries, or a larger model"
            )
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
    def hosts(self) -> list[int]:
        """The agents who hold canaries."""
        return sorted({host for of in self.adversaries.values() for host in of})

    @property
    def dimension(self) -> int:
        """Coordinates of the parameters."""
        if self.setting.task is not None:
            return int(self.setting.task.dimensions[0])
        return sum(p.numel() for p in self.setting.model.parameters())

    @property
    def of_each(self) -> int:
        """Canaries of a host in a run."""
        return 1

    @property
    def runs(self) -> int:
        """How many runs share the canaries."""
        return -(-self.canaries // len(self.hosts))

    def narrowed(self, name: str, *, linked: str | None) -> AgentGame:
        """The same with one adversary."""
        return replace(self, adversaries={name: self.adversaries[name]}, linked=linked)

    def checks(self, played: Played) -> list[Check]:
        """Checks of what the noise did to the scores of a game that was played."""
        return canary_checks(played.noise, replace=self.replace)

    def play(self, *, generator: np.random.Generator, progress: Progress | None = None) -> Played:
        """Plant, run and score.

        Args:
            generator: of coins, directions, norms and signs; noise, cohorts and batches come from
                the system's entropy.
            progress: called with (rounds done, rounds in all).
        """
        own = gradients_of(self.setting)
        views = Views(self.adversaries, hosts=self.hosts, replace=self.replace)
        observed, coins = list[list[Observed]](), list[np.ndarray]()
        for run in range(self.runs):
            tossed = generator.integers(2, size=len(self.hosts)).astype(bool)
            coins.append(tossed)
            observed.append(self._one_run(tossed, views, own, generator))
            if progress is not None:
                progress((run + 1) * self.rounds, self.runs * self.rounds)
        at = {host: i for i, host in enumerate(self.hosts)}
        included = np.stack(coins)  # (runs, hosts)
        none = np.zeros(self.runs)
        guesses = {}
        found = scored(observed, replace=self.replace)
        for name, of in self.adversaries.items():
            scores = [found.get(name, {}).get(host, none) for host in of]
            guesses[name] = Guesses(
                scores=np.stack(scores, axis=1).ravel(),
                included=included[:, [at[host] for host in of]].ravel(),
            )
        return Played(guesses=guesses, links=[], noise=gathered([pooled(observed)]))

    def _one_run(
        self, coins: np.ndarray, views: Views, own: ClippedSums, generator: np.random.Generator
    ) -> list[Observed]:
        directions = Directions(len(self.hosts), self.dimension, generator=generator)
        lengths = LONGEST ** generator.random(len(self.hosts))
        out = -1 if self.replace else 0
        part = {host: 1 if coin else out for host, coin in zip(self.hosts, coins, strict=True)}
        norms = dict(zip(self.hosts, lengths.tolist(), strict=True))
        gradients = PlantedAgents(
            own, directions=directions, part=part, norms=norms, generator=generator
        )
        transcript = Transcript()
        engine = Engine(
            self.setting,
            self.bound,
            taps=[transcript],
            gradients=gradients,
            scripts=self.traces.scripts,
        )
        known = self.of_agents
        traces = [known.start, *(t for t, count in known.rounds for _ in range(count))]
        found, before = list[Observed](), dict[str, Tensor]()
        for number, trace in enumerate(traces[: self.rounds + 1]):
            recorded = Recorded()
            gradients.begin(recorded)
            transcript.clear()
            if number:
                engine.advance(recorded=recorded)
            else:
                engine.start(recorded=recorded)
            after = engine.snapshot()
            if trace.has_contributions:
                happened = AgentRound(
                    number=number,
                    trace=trace,
                    messages=transcript.of(round=number),
                    before=before,
                    after=after,
                    recorded=on_host(recorded),
                    sent=gradients.sent,
                    part=part,
                    norms=norms,
                )
                found += views.observed(happened, directions)
            before = after
        return found
