"""Runs of the real engine in which agents hold a canary, or nothing, in place of their data.

In each run every host holds one canary by a fair coin. Runs are independent, and so are hosts of
one run: their directions are orthogonal, and noise is white over coordinates. Agents of a cohort of
fixed size do not take part independently, so that one host alone holds a canary there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....privacy.batches.drawing import Scheme
from ....privacy.errors import InputError
from ....training.engine.engine import gradients_of
from ....training.gradients.gradients import ClippedSums
from ....training.tracing.linear_forms import Contributions
from ....training.tracing.trace import AlgorithmTrace
from ..canaries import LONGEST, Directions, rounds_with_canaries
from ..game import Game, Scores
from .planted import PlantedAgents
from .scores import Observed, Views, pooled, scored


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
        lengths = LONGEST ** generator.random(len(self.hosts))
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
