"""What is intercepted: one cross-gradient, the difference of momenta, or everything that was seen.

    cross-gradient   the gradient on a neighbour's model that the victim sent to it
    momentum         the momenta of two rounds, less what is known (see `momentum`)
    view             all that the adversary saw in all rounds of the replay (see `estimate`)

The first two are for algorithms that send such messages, and say that one gradient can be had from
them. Where momenta can be used, the view is joined with them: their noise is independent of what
crosses.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ...privacy.adversary import Sees
from ...privacy.errors import InputError
from ...training.own.algorithms import algorithm_named
from ..problem.observation import Observation
from .estimate import Estimate, estimate
from .momentum import intercept_momentum
from .names import Scenario, scenarios_of
from .replay import Replay


def intercept(replay: Replay, *, scenario: Scenario) -> Estimate:
    """What an adversary holds of the planted batch.

    Args:
        replay: the re-enacted rounds.

    Returns:
        The estimate; without an observation where the victim's gradient cannot be singled out.

    Raises:
        ValueError: the algorithm does not have the scenario.
        LookupError: a message that it needs was not kept.
    """
    trial = replay.trial
    possible = scenarios_of(trial.algorithm)
    if scenario not in possible:
        known = ", ".join(possible)
        raise InputError(
            f"scenario={str(scenario)!r} does not exist for {trial.algorithm!r}; it has: {known}"
        )
    if scenario is Scenario.MOMENTUM:
        names = tuple(f"own gradient of round {n}" for n in replay.attacked)
        if not _hears_momenta(replay):
            return Estimate(
                observation=None,
                identified=(),
                missing=names,
                owners=(),
                reason="this adversary does not hear all momenta that the victim mixes",
            )
        found = [_momentum(replay, number) for number in replay.attacked]
        owners = (trial.victim,) * len(found)
        return Estimate(observation=join(found), identified=names, missing=(), owners=owners)
    seen = estimate(replay)
    if scenario is Scenario.CROSS_GRADIENT:
        heard = [trial.model_owner, *(owner for owner in seen.owners if owner != trial.victim)]
        return seen.of_owner(next((o for o in heard if o in seen.owners), trial.model_owner))
    # What the rows do not single out: the own gradient, wherever the calibration is on.
    hidden = [n for n in replay.attacked if any(m.startswith(f"round {n},") for m in seen.missing)]
    if not (Scenario.MOMENTUM in possible and hidden and _hears_momenta(replay)):
        return seen
    own = [_momentum(replay, number) for number in hidden]
    names = tuple(f"own gradient of round {n}, by momenta" for n in hidden)
    held = [] if seen.observation is None else [seen.observation]
    return Estimate(
        observation=join([*held, *own]),
        identified=(*seen.identified, *names),
        missing=(),
        owners=(*seen.owners, *[trial.victim] * len(own)),
    )


def join(observations: Sequence[Observation]) -> Observation:
    """Observations of one batch whose noise is independent, as one.

    Where some carry no noise, these alone: no average with noisy ones says more.

    Args:
        observations: at least one, of the same clip, coefficients and task.

    Raises:
        ValueError: there is none, or they differ in more than models, gradients and noise.

    >>> one = Observation.single(
    ...     gradient=torch.ones(3), model=torch.zeros(3), noise_std=1.0, clip_norm=None,
    ...     records=1,
    ... )
    >>> round(join([one] * 4).noise_std, 3)
    0.5
    """
    if not observations:
        raise InputError("join needs at least one observation")
    first = observations[0]
    for other in observations[1:]:
        same = (first.clip_norm, first.records, first.mean_of, len(first.coefs))
        if (other.clip_norm, other.records, other.mean_of, len(other.coefs)) != same:
            raise InputError("observations of different clips or batches cannot be joined")
    kept = [o for o in observations if not o.is_noisy] or list(observations)
    return Observation(
        gradient=torch.cat([o.gradient for o in kept]),
        points=torch.cat([o.points for o in kept]),
        covariance=torch.block_diag(*(o.covariance.double() for o in kept)),
        clip_norm=first.clip_norm,
        records=first.records,
        coefs=first.coefs,
        mean_of=first.mean_of,
        clip_parts=first.clip_parts,
        task=first.task,
        rounding=max(o.rounding for o in kept),
    )


def _momentum(replay: Replay, round: int) -> Observation:
    trial = replay.trial
    return intercept_momentum(
        replay.transcript,
        algorithm=algorithm_named(trial.algorithm),
        graph=trial.setting.graph,
        settings=trial.settings,
        form=trial.form,
        round=round,
        victim=trial.victim,
        records=replay.records,
        batch_size=trial.batch_size,
        clip_norm=trial.clip_norm,
        noise_std=trial.noise_std,
    )


def _hears_momenta(replay: Replay) -> bool:
    """Whether the adversary sees all that enters and leaves the victim."""
    trial = replay.trial
    who = trial.parsed_adversary()
    if who.sees is Sees.LINKS:
        return True
    around = {
        j
        for number in {max(n - back, 1) for n in replay.attacked for back in (0, 1)}
        for j in trial.setting.graph.at(number).neighbours(trial.victim)
    }
    return who.sees is Sees.OWN_LINKS and around - {trial.victim} <= who.agents
