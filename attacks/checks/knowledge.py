"""Knowledge: an agent that makes noise is declared to know it.

In a deployment a source of noise is made by every agent that holds a row which it enters, each from
the same seed. Here each of them makes it again from the seed alone; then the trace must count it
among those who know it, or its figure takes noise for secret that an adversary subtracts. Noise of
another size is the same noise: residuals and streams look at sizes.
"""

from __future__ import annotations

import torch

from ...training.tracing.linear_forms import NoiseSources
from ..watching.result import Check
from ..watching.watched_run import WatchedRun

_NAME = "knowledge"
_NAMED = 4  # agents named in words


def knowledge_check(run: WatchedRun) -> Check:
    """Let the makers of every source make it again, and look for them among its knowers.

    Args:
        run: a watched run.

    Returns:
        Passed if all of them are declared to know what they make.
    """
    if run.mismatch:
        return Check.not_as_traced(_NAME, run.mismatch)
    pairs, other, first = 0, 0, ""
    undeclared: dict[int, int] = {}
    for watched in run.rounds:
        groups = [g for g in watched.trace.groups if isinstance(g, NoiseSources)]
        made = zip(groups, watched.recorded.noise, watched.recorded.makers, strict=True)
        for call, (group, z, makers) in enumerate(made):
            again = run.randomness.normal(
                round=watched.number,
                call=call,
                rows=list(range(len(z))),
                width=z.shape[1],
                dtype=z.dtype,
                device=run.setting.device,
            ).cpu()
            for row, (agents, knowers) in enumerate(zip(makers, group.known_to, strict=True)):
                pairs += len(agents)
                is_same = torch.equal(again[row], z[row])
                other += not is_same and not _differs_in_size(again[row], z[row])
                for agent in sorted(agents - knowers):
                    undeclared[agent] = undeclared.get(agent, 0) + 1
                    first = first or (
                        f"agent {agent} makes source {row} of noise call {call} in round "
                        f"{watched.number}, which is declared known to {_named(knowers)}"
                    )
    words = f"{pairs} pairs of an agent and a source of noise that it makes were looked at"
    if undeclared:
        words += f"; {_named(frozenset(undeclared))} can subtract noise declared unknown: {first}"
    if other:
        words += f"; {other} sources are not what their seed gives, so their makers would not agree"
    if not pairs:
        words = "no agent makes noise in these rounds: the server does, so nothing was looked at"
    elif not undeclared and not other:
        words += "; each is made again from its seed, and all who can are declared to know it"
    passed = not undeclared and not other
    return Check.exact(_NAME, f"{words}.", tests=pairs, passed=passed)


def _differs_in_size(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two draws (D,) agree in sign wherever neither is 0."""
    return not bool((one * other < 0).any())


def _named(agents: frozenset[int]) -> str:
    if not agents:
        return "no one"
    some = ", ".join(str(agent) for agent in sorted(agents)[:_NAMED])
    many = "s" if len(agents) > 1 else ""
    return f"agent{many} {some}" + (f" and {len(agents) - _NAMED} more" * (len(agents) > _NAMED))
