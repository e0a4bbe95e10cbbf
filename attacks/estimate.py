"""What an adversary's view says of a victim's gradients: the best linear estimate over rounds.

Every message that the adversary saw in the rounds of a re-enactment is an equation over what the
rounds drew: contributions, noise, values from before, and other messages. The rows are those of the
trace, so the estimate works unchanged for trackers, push-sum, recursions and correlated noise.

As in the guarantee, the models at which gradients were taken count as known. A state that the
rounds before left behind counts as unknown, so an estimate over few rounds may be weaker than one
over the whole run, and never stronger.

Shape letters: A agents, D parameters, K contributions of the victim, R equations.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from ..privacy.adversary import Adversary, Sees
from .equations import Equations, Target
from .linear_estimate import Weights
from .observation import Observation
from .trial import Replay


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Estimate:
    """What a view says of a victim's contributions.

    Attributes:
        observation: the contributions that it identifies; None where it identifies none.
        identified: names of these, one for each intercept.
        missing: names of the victim's contributions that it does not identify.
        owners: for each intercept the agent at whose model the gradient was taken.
    """

    observation: Observation | None
    identified: tuple[str, ...]
    missing: tuple[str, ...]
    owners: tuple[int, ...]

    def of_owner(self, owner: int) -> Estimate:
        """The first intercept at one agent's model, alone."""
        if self.observation is None or owner not in self.owners:
            return replace(self, observation=None, identified=(), owners=())
        k = self.owners.index(owner)
        return replace(
            self,
            observation=self.observation.only(k),
            identified=(self.identified[k],),
            owners=(owner,),
        )


def estimate(replay: Replay, *, adversary: Adversary | None = None) -> Estimate:
    """The victim's contributions as an adversary estimates them from everything it saw.

    Args:
        replay: the re-enactment.
        adversary: whose view; the trial's by default.

    Returns:
        One intercept for each contribution that the view identifies, with their covariance.

    Raises:
        ValueError: an adversary without a view of its own, nothing that was intercepted, or a view
            too large to solve.
    """
    who = replay.trial.onlooker() if adversary is None else adversary
    if who.sees is Sees.ONE_MESSAGE:
        raise ValueError(f"adversary {who.name!r} has no view; use eavesdropper or a neighbour")
    if len(replay.transcript) == 0:
        raise ValueError(
            "the transcript is empty: nothing was intercepted in these rounds, so nothing can be "
            "estimated; keep the messages of the attacked rounds"
        )
    system = Equations(replay, who)
    targets = system.targets
    if not targets:
        return Estimate(observation=None, identified=(), missing=(), owners=())
    weights = system.solve([t.column for t in targets])
    found = [targets[i] for i in weights.identified]
    missing = tuple(t.name for i, t in enumerate(targets) if i not in weights.identified)
    if not found:
        return Estimate(observation=None, identified=(), missing=missing, owners=())
    kept = _kept(found, weights)
    return Estimate(
        observation=_observation(replay, system, weights, [(i, found[i]) for i in kept]),
        identified=tuple(found[i].name for i in kept),
        missing=missing,
        owners=tuple(found[i].owner for i in kept),
    )


def _kept(found: Sequence[Target], weights: Weights) -> list[int]:
    """The intercepts of one form; those without noise alone, where there are such."""
    same = [i for i, target in enumerate(found) if _alike(target, found[0])]
    return [i for i in same if weights.clean[i]] or same


def _observation(
    replay: Replay, system: Equations, weights: Weights, kept: Sequence[tuple[int, Target]]
) -> Observation:
    target = kept[0][1]
    first, at = target.taken, [i for i, _ in kept]
    scale = 1.0 if first.mean_of is not None else 1.0 / replay.records
    covariance = torch.from_numpy(weights.covariance[np.ix_(at, at)] * scale**2)
    clean = weights.clean[at[0]]
    covariance = torch.zeros_like(covariance) if clean else _definite(covariance)
    bound = target.bound / 2 if first.mean_of is not None else target.bound
    gradient = torch.stack([system.value(weights.rows[i]) * scale for i in at])
    return Observation(
        gradient=gradient.to(replay.trial.setting.dtype),
        points=torch.stack([t.points for _, t in kept]),
        covariance=covariance,
        clip_norm=None if math.isinf(bound) else bound,
        records=replay.records,
        coefs=first.coefs,
        mean_of=first.mean_of,
        task=replay.trial.setting.task,
    )


def _alike(one: Target, other: Target) -> bool:
    """Whether two contributions are of one form: the same clip, coefficients and divisor."""
    a, b = one.taken, other.taken
    same = len(a.coefs) == len(b.coefs) and all(
        torch.equal(torch.as_tensor(x), torch.as_tensor(y))
        for x, y in zip(a.coefs, b.coefs, strict=True)
    )
    return same and a.mean_of == b.mean_of and one.bound == other.bound


def _definite(covariance: Tensor) -> Tensor:
    """Combinations that carry no noise get next to none, so that a factor exists."""
    values, vectors = torch.linalg.eigh(covariance)
    return (vectors * values.clamp_min(1e-10 * float(values.max()))) @ vectors.T
