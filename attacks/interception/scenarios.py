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
from dataclasses import replace

import torch

from ...privacy.adversary import Sees
from ...privacy.errors import InputError
from ...training.graphs.graph import Graph
from ...training.own.names import algorithm_named
from ..problem.observation import Observation
from .estimate import Estimate, estimate
from .names import Scenario, scenarios_of
from .replay import Replay

# A gradient that never crosses a link, from momenta and cross-gradients of two rounds.
#
# Where a momentum is sent that holds the sender's own gradient beside public multiples of other
# messages, those can be taken out again: the algorithm says how (`Algorithm.own_gradient`), and
# what share of the noise is left. Here the messages are collected and the rest is accounted for.


def intercept_momentum(replay: Replay, round: int) -> Observation:
    """The victim's own gradient, from momenta and cross-gradients of two rounds.

    Args:
        replay: the re-enacted rounds, with what crossed the links in them.
        round: the later of the two; of round 1 nothing was mixed before.

    Returns:
        One intercept, of the victim's gradient on its own model.

    Raises:
        LookupError: a message of this or the previous round was not kept.
        ValueError: the victim has no neighbour, or the algorithm's momenta cannot be undone.
    """
    trial, transcript = replay.trial, replay.transcript
    algorithm, graph = algorithm_named(trial.algorithm), trial.setting.graph
    victim, records = trial.victim, replay.records
    if algorithm.own_gradient is None:
        raise InputError(f"algorithm {algorithm.name!r} sends no momenta that can be undone")
    # The victim's momentum, those that it mixed, and the cross-gradients that it heard.
    now, previous = graph.at(round), graph.at(round - 1)
    others = [j for j in now.neighbours(victim) if j != victim]
    if not others:
        raise InputError(f"agent {victim} has no neighbour; nothing of it crosses a link")
    to = others[0]
    sent = transcript.sent(round=round, kind="momentum", sender=victim, receiver=to)
    before = [
        (
            float(previous.weights[victim, j]),
            transcript.sent(
                round=round - 1,
                kind="momentum",
                sender=j,
                receiver=victim if j != victim else _receiver(previous, victim),
            ),
        )
        for j in (previous.neighbours(victim) if round > 1 else ())
    ]
    heard = [
        (
            float(now.weights[victim, d]),
            transcript.sent(round=round, kind="cross-gradient", sender=d, receiver=victim),
        )
        for d in others
    ]
    # The algorithm undoes its own momenta.
    own = algorithm.own_gradient(
        sent,
        before=before,
        heard=heard,
        own_weight=float(now.weights[victim, victim]),
        agents=graph.agents,
        settings=trial.settings,
        form=trial.form,
    )
    u = own.multiple
    observation = Observation.single(
        gradient=(u * (trial.batch_size / (records * own.factor))).to(sent.dtype),
        model=transcript.sent(round=round, kind="model", sender=victim, receiver=to),
        noise_std=trial.noise_std / records * own.noise_share,
        clip_norm=trial.clip_norm,
        records=records,
    )
    # Rounding of large momenta is left in their small difference.
    largest = float(torch.linalg.vector_norm(sent.double()))  # of what nearly cancels
    left = torch.finfo(sent.dtype).eps * largest / max(float(torch.linalg.vector_norm(u)), 1e-300)
    return replace(observation, rounding=left if sent.dtype != torch.float64 else 0.0)


def _receiver(graph: Graph, victim: int) -> int:
    """An agent that the victim sends to."""
    to = [receiver for sender, receiver in graph.links if sender == victim]
    if not to:
        raise InputError(f"agent {victim} has no neighbour; nothing of it crosses a link")
    return to[0]


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
    # By momenta alone, of which all have to be heard.
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
        observations = [intercept_momentum(replay, number) for number in replay.attacked]
        owners = (trial.victim,) * len(observations)
        return Estimate(observation=join(observations), identified=names, missing=(), owners=owners)
    # By the rows of the equations, for one owner where cross-gradients are asked for.
    seen = estimate(replay)
    if scenario is Scenario.CROSS_GRADIENT:
        heard = [trial.model_owner, *(owner for owner in seen.owners if owner != trial.victim)]
        return seen.of_owner(next((o for o in heard if o in seen.owners), trial.model_owner))
    # What the rows do not single out: the own gradient, wherever the calibration is on.
    hidden = [n for n in replay.attacked if any(m.startswith(f"round {n},") for m in seen.missing)]
    if not (Scenario.MOMENTUM in possible and hidden and _hears_momenta(replay)):
        return seen
    own = [intercept_momentum(replay, number) for number in hidden]
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
