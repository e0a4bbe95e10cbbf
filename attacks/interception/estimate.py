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

from ...privacy.errors import InputError
from ...privacy.guarantee import Adversary, Sees
from ...training.graphs.graph import Graph
from ...training.own.names import algorithm_named
from ..problem.observation import Drift, Observation
from .equations import Equations, Series, Target, why_hidden
from .names import Scenario, scenarios_of
from .replay import Replay, Weights, best_weights

# Gradients that change slowly: what tells a victim from others where no round does so alone.
#
# Who is two hops away sees one vector a round, in which the gradients of several agents stand
# together; no round singles one of them out. But gradients change little from round to round. Taken
# as constant, they are fewer unknowns than rounds (Mrini, Cyffers, Bellet, "Privacy Attacks in
# Decentralized Learning", ICML 2024). Here they are not constant, but Gaussian:
#
#     victim     g_t = m + d_t,   m anything,   d a random walk from the middle round of its batch,
#                whose steps are those that the adversary's own gradients show, WALK at least
#     others     g_t ~ N(0, K),   K = a 11^T + b I,  a and b those of the adversary's own gradients
#
# An estimate is then the best linear one for m, without bias in it, and has an error even where no
# noise is added: its covariance is what the prior says, and the result counts as approximate.
#
# Where we differ from the paper: there, gradients are constant and the estimate claims to be exact.
#
# Shape letters: T rounds, D parameters, R equations.

WALK = 1e-3  # least variance of a step of the walk, over that of a coordinate of the gradient
_FEWEST = 2  # rounds
_SAMPLES = 8  # of what others leave, an even number


def slow_target(system: Equations) -> tuple[Target, Series] | None:
    """What is constant in a victim's gradients of several rounds; None where there are not two."""
    found = next(
        (of for of in system.series.values() if sum(at >= 0 for at in of.target) >= _FEWEST), None
    )
    if found is None:
        return None
    members = [system.targets[at] for at in found.target if at >= 0]
    middle = members[len(members) // 2]
    name = f"mean over {len(members)} rounds, approximate, at agent {middle.owner}'s model"
    return middle._replace(name=name, columns=(), factors=()), found


def slow_weights(
    system: Equations, victim: Series, *, records: int, batch_size: float
) -> Weights | None:
    """Weights of the equations that estimate it, with the error that the prior leaves.

    Args:
        system: of an adversary that has gradients of its own.
        records: how many records were planted.
        batch_size: how many other batches hold, as expected.

    Returns:
        One row, or none where it is not told; None where the adversary has no gradients of its own.
    """
    # How much gradients stay and move, by those of the adversary.
    own = [of.values for of in system.series.values() if len(of.values) >= _FEWEST]
    if not own:
        return None
    constant, apart = _spread(own[0])
    walk = max(WALK * (constant + apart), _slope(own[0]))
    hidden, E, unknown, noise = system.seen()
    constants = np.array([column for column, at in _members(victim) if at >= 0])
    # The prior: others' series stay about constant, and the victim's walks.
    parts = [E[:, noise].toarray()] if noise else []
    taken = set(constants.tolist())
    for of in system.series.values():
        others = [column for column in of.columns if column in unknown and column not in taken]
        if not others:
            continue
        taken |= set(others)
        block = E[:, others].toarray()
        parts += [math.sqrt(apart) * block, math.sqrt(constant) * block.sum(1, keepdims=True)]
    step = math.sqrt(walk * records / max(batch_size, 1.0))  # of a sum of fewer records
    of_victim = E[:, constants].toarray()
    parts.append(step * of_victim @ _walk(len(constants)))
    # Unknown without a prior: the victim's constant, which is the target, and what is left.
    left = [column for column in unknown if column not in taken]
    known_not = np.hstack([of_victim.sum(1, keepdims=True), E[:, left].toarray()])
    weights = best_weights(known_not, np.hstack(parts), targets=[0])
    rows = np.zeros((len(weights.rows), len(hidden)))
    rows[:, hidden] = weights.rows
    return Weights(
        rows=rows,
        identified=weights.identified,
        covariance=weights.covariance,
        clean=tuple(False for _ in weights.clean),
    )


def drift_of(system: Equations, victim: Series, weights: Weights, *, scale: float) -> Drift:
    """What the estimate sums of the victim, and samples of what others leave in it.

    The adversary's own gradients of the same rounds stand in for each other agent's, under signs
    that are drawn: alike in the first two samples, as data of one distribution add up, at random in
    the others. The weights are of `slow_weights`, the scale is units of the estimate over those of
    the equations.
    """
    hidden, E, unknown, noise = system.seen()
    # How much of each column is in the estimate.
    row = weights.rows[0][hidden]
    share = dict(zip(range(E.shape[1]), np.asarray(E.T @ row).ravel().tolist(), strict=True))
    known = set(unknown)
    own = [torch.stack(of.values) for of in system.series.values() if len(of.values) >= _FEWEST]
    others = [
        of.columns
        for of in system.series.values()
        if of.owner != victim.owner and any(column in known for column in of.columns)
    ]
    drawn = np.random.default_rng(0)  # signs of a picture of the unknown, and no noise of a run
    # Signs of the other agents in opposite pairs; in the first pair all are alike.
    half = drawn.choice([-1.0, 1.0], size=(_SAMPLES // 2, len(others)))
    half[0] = 1.0
    samples = []
    for number, signs in enumerate(np.concatenate([half, -half])):
        values = own[number % len(own)].double()  # (T, D)
        total = values.new_zeros(values.shape[1])
        for sign, columns in zip(signs.tolist(), others, strict=True):
            each = [share[c] if c in known else 0.0 for c in columns]
            total += sign * values.new_tensor(each[: len(values)]) @ values[: len(each)]
        samples.append(total * scale)
    rounds = [(column, at) for column, at in _members(victim) if at >= 0]
    return Drift(
        points=torch.stack([system.targets[at].points[0] for _, at in rounds]),
        shares=tuple(share[column] for column, _ in rounds),
        others=torch.stack(samples),
        noise_std=float(np.linalg.norm(E[:, noise].T @ row)) * abs(scale) if noise else 0.0,
    )


def _members(series: Series) -> list[tuple[int, int]]:
    return list(zip(series.columns, series.target, strict=True))


def _spread(values: Sequence[Tensor]) -> tuple[float, float]:
    """Variance a coordinate of what is common to all rounds, and of what is not."""
    rows = torch.stack([value.double() for value in values])  # (T, D)
    products = rows @ rows.T / rows.shape[1]
    count = len(rows)
    every = float(products.diagonal().mean())
    common = (float(products.sum()) - count * every) / (count * (count - 1))
    constant = min(max(common, 0.0), every)
    return constant, every - constant


def _slope(values: Sequence[Tensor]) -> float:
    """Variance of a step of the walk, by how squared differences grow with the rounds between."""
    rows = torch.stack([value.double() for value in values])
    lags = [(h, rows[h:] - rows[:-h]) for h in range(1, len(rows))]
    if len(lags) < _FEWEST:
        return 0.0
    grown = np.array([float(of.square().mean()) for _, of in lags])
    return max(float(np.polyfit([h for h, _ in lags], grown, 1)[0]), 0.0)


def _walk(rounds: int) -> np.ndarray:
    """(T, T) a walk's rows over its steps, 0 in the middle round."""
    middle = rounds // 2
    steps = np.zeros((rounds, max(rounds - 1, 1)))
    for row in range(rounds):
        low, high = min(row, middle), max(row, middle)
        steps[row, low:high] = 1.0 if row > middle else -1.0
    return steps


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Estimate:
    """What a view says of a victim's contributions.

    Attributes:
        observation: the contributions that it identifies; None where it identifies none.
        identified: names of these, one for each intercept.
        missing: names of the victim's contributions that it does not identify.
        owners: for each intercept the agent at whose model the gradient was taken.
        passed_over: names of contributions that it identifies, but clipped otherwise than those
            that are used, and so not attacked with them.
        reason: why there is no observation, in words; empty where there is one.
        approximate: whether it rests on gradients that change slowly.
    """

    observation: Observation | None
    identified: tuple[str, ...]
    missing: tuple[str, ...]
    owners: tuple[int, ...]
    passed_over: tuple[str, ...] = ()
    reason: str = ""
    approximate: bool = False

    def of_owner(self, owner: int) -> Estimate:
        """The intercepts at one agent's model alone, one for each round."""
        if self.observation is None or owner not in self.owners:
            return replace(self, observation=None, identified=(), owners=())
        at = [k for k, whose in enumerate(self.owners) if whose == owner]
        return replace(
            self,
            observation=self.observation.only(*at),
            identified=tuple(self.identified[k] for k in at),
            owners=tuple(self.owners[k] for k in at),
        )


def estimate(
    replay: Replay, *, adversary: Adversary | None = None, bounded: bool = True
) -> Estimate:
    """The victim's contributions as an adversary estimates them from everything it saw.

    Args:
        replay: the re-enactment.
        adversary: whose view; the trial's by default.
        bounded: also try other agents' clipped contributions as noise of at most their size and,
            where nothing is told, gradients that change slowly, and keep what tells more; else they
            stay unknown, and the estimate is without bias.

    Returns:
        One intercept for each contribution that the view identifies, with their covariance.

    Raises:
        ValueError: an adversary without a view of its own, nothing that was intercepted, or a view
            too large to solve.
    """
    who = replay.trial.parsed_adversary() if adversary is None else adversary
    if who.sees is Sees.ONE_MESSAGE:
        raise InputError(f"adversary {who.name!r} has no view; use eavesdropper or a neighbour")
    if len(replay.transcript) == 0:
        raise InputError(
            "the transcript is empty: nothing was intercepted in these rounds, so nothing can be "
            "estimated; keep the messages of the attacked rounds"
        )
    system = Equations(replay, who)
    if not system.targets:
        why = why_hidden(replay, system)
        return Estimate(observation=None, identified=(), missing=(), owners=(), reason=why)
    ways: list[float | None] = [None]
    if bounded:
        # A sum of B clipped vectors is at most B bounds long; spread evenly over D coordinates.
        dimension = system.targets[0].points.shape[1]
        ways.append(max(replay.trial.batch_size, 1.0) / math.sqrt(dimension))
    # Contributions of others as unknowns or as noise, whichever tells more.
    found = [_solved(replay, system, spread=spread) for spread in ways]
    best = max(found, key=_told)  # the first where both tell as much
    if bounded and found[0].observation is None and (slow := _slow(replay, system)) is not None:
        best = max([best, slow], key=_told)
    return (
        best if best.observation is not None else replace(best, reason=why_hidden(replay, system))
    )


def _slow(replay: Replay, system: Equations) -> Estimate | None:
    """What several rounds tell together, if gradients change slowly."""
    found = slow_target(system)
    if found is None:
        return None
    target, series = found
    weights = slow_weights(
        system, series, records=replay.records, batch_size=replay.trial.batch_size
    )
    if weights is None or not weights.identified:
        return None
    seen = _observation(replay, system, weights, [(0, target)])
    # Of the form of an intercept: a mean over the planted records, as `_observation` makes it.
    scale = 1.0 if target.call.mean_of is not None else 1.0 / replay.records
    drift = drift_of(system, series, weights, scale=scale)
    return Estimate(
        observation=replace(seen, drift=drift.to(dtype=seen.gradient.dtype)),
        identified=(target.name,),
        missing=tuple(one.name for one in system.targets),
        owners=(target.owner,),
        approximate=True,
    )


def _solved(replay: Replay, system: Equations, *, spread: float | None) -> Estimate:
    targets = system.targets
    weights = system.solve(targets, spread=spread)
    # Where no target is told alone, those of one batch may be told together.
    if not weights.identified and (together := system.combined(targets)):
        targets = together
        weights = system.solve(targets, spread=spread)
    found = [targets[i] for i in weights.identified]
    missing = tuple(t.name for i, t in enumerate(targets) if i not in weights.identified)
    # Targets of one form are averaged; the form that tells most is kept.
    forms: list[list[int]] = []
    for i, target in enumerate(found):
        for form in forms:
            if _alike(found[form[0]], target):
                form.append(i)
                break
        else:
            forms.append([i])
    # What carries no noise says more than any average with it.
    forms = [[i for i in form if weights.clean[i]] or form for form in forms]
    every = [
        Estimate(
            observation=_observation(replay, system, weights, [(i, found[i]) for i in form]),
            identified=tuple(found[i].name for i in form),
            missing=missing,
            owners=tuple(found[i].owner for i in form),
            passed_over=tuple(t.name for i, t in enumerate(found) if i not in form),
        )
        for form in forms
    ]
    nothing = Estimate(observation=None, identified=(), missing=missing, owners=())
    return max(every, key=_told, default=nothing)


def _told(found: Estimate) -> float:
    """Length of a record's clipped vector over the noise of the best average of all intercepts."""
    seen = found.observation
    if seen is None:
        return 0.0
    if not seen.is_noisy:
        return math.inf
    return round((seen.clip_norm or 1.0) / (seen.noise_std * seen.records), 9)


def _observation(
    replay: Replay, system: Equations, weights: Weights, kept: Sequence[tuple[int, Target]]
) -> Observation:
    target = kept[0][1]
    first, at = target.call, [i for i, _ in kept]
    # Units of a mean gradient, or of one step of a local update.
    scale = 1.0 if first.mean_of is not None else 1.0 / replay.records
    steps, rate = target.local or (1, 0.0)
    if target.local is not None:  # steps along means of a batch: before less after
        scale = -1.0 / (steps * rate)
    # The covariance of what is kept; estimates that are clean have none.
    covariance = torch.from_numpy(weights.covariance[np.ix_(at, at)] * scale**2)
    clean = weights.clean[at[0]]
    covariance = torch.zeros_like(covariance) if clean else _definite(covariance)
    bound = target.bound / 2 if first.mean_of is not None else target.bound
    # Gradients, and rounding relative to their length.
    gradient = torch.stack([system.value(weights.rows[i]) * scale for i in at])
    sizes = torch.linalg.vector_norm(gradient, dim=1).clamp_min(1e-300).tolist()
    left = [system.rounding(weights.rows[i]) * abs(scale) for i in at]
    return Observation(
        gradient=gradient.to(replay.trial.setting.dtype),
        points=torch.stack([t.points for _, t in kept]),
        covariance=covariance,
        clip_norm=None if math.isinf(bound) else bound,
        records=replay.records,
        coefs=first.coefs,
        mean_of=first.mean_of,
        clip_parts=len(target.columns) > 1,
        local_steps=steps,
        local_rate=rate if steps > 1 else 0.0,
        task=replay.trial.setting.task,
        rounding=max(of / size for of, size in zip(left, sizes, strict=True)),
    )


def _alike(one: Target, other: Target) -> bool:
    """Whether two contributions are of one form: the same clip, coefficients and divisor."""
    a, b = one.call, other.call
    same = len(a.coefs) == len(b.coefs) and all(
        torch.equal(torch.as_tensor(x), torch.as_tensor(y))
        for x, y in zip(a.coefs, b.coefs, strict=True)
    )
    local = one.local == other.local
    return same and local and a.mean_of == b.mean_of and one.bound == other.bound


def _definite(covariance: Tensor) -> Tensor:
    """Combinations that carry no noise get next to none, so that a factor exists."""
    values, vectors = torch.linalg.eigh(covariance)
    return (vectors * values.clamp_min(1e-10 * float(values.max()))) @ vectors.T


# What is intercepted: one cross-gradient, the difference of momenta, or everything that was seen.


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
