"""Scores of membership: how much likelier a model's confidence is if a record was trained on.

    N. Carlini, S. Chien, M. Nasr, S. Song, A. Terzis, F. Tramer. Membership Inference Attacks From
        First Principles. IEEE S&P 2022, arXiv:2112.03570. Algorithm 1 and Eq. (4).
    S. Zarifzadeh, P. Liu, R. Shokri. Low-Cost High-Power Membership Inference Attacks. ICML 2024,
        arXiv:2312.03262. Eq. (3) to (5) and Algorithm 1.

    LiRA online    log N(phi; m_in, s_in) - log N(phi; m_out, s_out)
    LiRA offline   log P(N(m_out, s_out) < phi)
    RMIA           P over z of  (p_x / q_x) / (p_z / q_z) >= gamma
                   online   q = mean of p over references, in and out alike
                   offline  q = ((1 + a) mean of p over references that are out + (1 - a)) / 2
    threshold      phi, without references

| symbol | name here | shape | meaning |
|---|---|---|---|
| phi | target, references | (C,), (K, C) | logit-scaled confidence in the record's label |
| p | - | (C,) | 1 / (1 + exp(-phi)), the confidence itself |
| m, s | - | (C,) | mean and deviation of phi over references where the record is in, or out |
| z | - | - | the other records at stake |
| gamma | 1 | - | how much more a record must be preferred |
| a | .3 | - | how p of references that are in follows from those that are out |

Where we differ from the papers: below `_OWN_DEVIATION` references on a side LiRA's two deviations
are one, which joins what all references of a record say with the pooled value of all records, as if
that came of `_PRIOR` further references (R. Brännvall, arXiv:2603.11799, shows why few references
fail without). LiRA's own code for few references takes the deviation of all values together, means
included. RMIA's gamma is 1 in place of 2: models that are sure of nearly all records leave no ratio
of 2; p is the softmax alone. Queries are not augmented.

How sure models are of the labels of records: the statistic that membership attacks compare.

    phi(p) = log(p / (1 - p)),  p the probability that a model gives to a record's own label

Source: N. Carlini et al., "Membership Inference Attacks From First Principles", IEEE S&P 2022,
arXiv:2112.03570, section VI-A. It is computed from logits, where p near 1 would lose all digits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ...privacy.errors import InputError, Progress
from ...training.algorithms.algorithm import Bound
from ...training.data.load import Dataset
from ...training.data.store import Examples, Held, Shard, followed_by
from ...training.engine.engine import Engine
from ...training.engine.setting import Setting
from ...training.models.parameters import unflatten
from ...training.tracing.scripts import Scripts
from .roc import Roc, roc

# The records whose membership is at stake, and the training sets that coins make of them.


LEAST_RECORDS = 10  # of either kind; fewer measure nothing
Coins = NDArray[np.bool_]
Indices = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Pool:
    """Records at stake, and those that are always in.

    Attributes:
        records: (C) inputs and targets, those of the training set first.
        owners: (C,) the agent that holds a record if it is in.
        trained: (C,) whether the run itself was trained on it.
        indices: (C,) place in the training part of the data set, or in its held-out part.
        always: by agent what it holds in every training set.
    """

    records: Examples
    owners: Indices
    trained: Coins
    indices: Indices
    always: Sequence[Held]

    def shards(self, included: Coins) -> list[Held]:
        """What every agent holds where those (C,) records at stake are in."""
        held = []
        for agent, kept in enumerate(self.always):
            mine = torch.from_numpy(np.flatnonzero(included & (self.owners == agent)))
            held.append(followed_by(kept, self.records.take(mine)))
        return held


def make_pool(
    data: Dataset, parts: Sequence[Indices], *, most: int, generator: np.random.Generator
) -> Pool:
    """Choose the records at stake.

    Args:
        data: the data set of a run.
        parts: by agent the indices of its records in the training part.
        most: of either kind; a random choice of more.
        generator: chooses records, and agents for held-out ones.

    Raises:
        ValueError: fewer than `LEAST_RECORDS` of a kind.
    """
    held_out = len(data.test_targets)
    each = min(len(data.targets), held_out, most)
    if each < LEAST_RECORDS:
        raise InputError(
            f"{data.name!r} holds {len(data.targets)} training and {held_out} held-out records, "
            f"and at most {most} of each are taken: membership needs at least {LEAST_RECORDS} of "
            "each, so that members can be distinguished from others"
        )
    # As many held-out records as members, with agents given to them as members have theirs.
    owners = np.empty(len(data.targets), dtype=np.int64)
    for agent, part in enumerate(parts):
        owners[part] = agent
    inside = np.sort(generator.choice(len(data.targets), size=each, replace=False))
    outside = np.sort(generator.choice(held_out, size=each, replace=False))
    given = _owners_like(
        data.targets.numpy(), owners, data.test_targets.numpy()[outside], generator=generator
    )
    # Records at stake leave the parts that every training holds.
    at_stake = np.zeros(len(data.targets), dtype=np.bool_)
    at_stake[inside] = True
    kept = [torch.from_numpy(part[~at_stake[part]]) for part in parts]
    rows, others = torch.from_numpy(inside), torch.from_numpy(outside)
    return Pool(
        records=Examples(
            torch.cat([data.train.take(rows).inputs, data.test_inputs[others]]),
            torch.cat([data.targets[rows], data.test_targets[others]]),
        ),
        owners=np.concatenate([owners[inside], given]),
        trained=np.arange(2 * each) < each,
        indices=np.concatenate([inside, outside]),
        always=[Shard(data.train, part) for part in kept],
    )


def _owners_like(
    targets: NDArray[np.int64],
    owners: Indices,
    others: NDArray[np.int64],
    *,
    generator: np.random.Generator,
) -> Indices:
    """An agent for each held-out record: that of a random training record of the same class."""
    given = generator.choice(owners, size=len(others))  # of a class that nobody holds, anybody
    for label in np.unique(others):
        holders = owners[targets == label]
        if holders.size:
            here = others == label
            given[here] = generator.choice(holders, size=int(here.sum()))
    return given


def balanced_coins(references: int, records: int, *, generator: np.random.Generator) -> Coins:
    """Training sets of references: every record is in half of them, rounded down.

    Args:
        references: K, at least 2.
        records: C.
        generator: decides in which.

    Returns:
        (K, C).

    Raises:
        ValueError: fewer than 2 references, so that a record would be in none or in all.

    >>> int(balanced_coins(5, 100, generator=np.random.default_rng(0)).sum(axis=0).max())
    2
    """
    if references < 2:
        raise InputError(
            f"references={references} must be at least 2: a record must be in one and out of "
            "another; 16 is usual"
        )
    order = generator.random((references, records)).argsort(axis=0)
    return np.asarray(order < references // 2)


def fair_coins(games: int, records: int, *, generator: np.random.Generator) -> Coins:
    """Training sets of games: every record is in or out by a fair coin of its own; (G, C)."""
    return generator.random((games, records)) < 0.5


_OWN_DEVIATION = 32  # references on a side, from which on each record has deviations of its own
_PRIOR = 5.0  # references that the pooled deviation counts as
_LEAST_DEVIATION = 1e-6
_OFFLINE = 0.3  # a

Array = NDArray[np.float64]


def lira_online(target: Array, references: Array, included: Coins) -> Array:
    """Log-likelihood ratio of Gaussians that references with and without the record give.

    Args:
        target: (C,) statistics of the model under attack.
        references: (K, C) statistics of reference models.
        included: (K, C) in whose training sets the records are.

    Returns:
        (C,) in nats, higher for members.

    Raises:
        ValueError: shapes that differ, or a record that is in all references or in none.
    """
    _check(target, references, included)
    inside, outside = _spread(references, included), _spread(references, ~included)
    if min(inside.counts.min(), outside.counts.min()) >= _OWN_DEVIATION:
        of_in, of_out = inside.deviation(), outside.deviation()
    else:
        of_in = of_out = _shared_deviation(references, inside, outside)
    score = _log_density(target, inside.mean, of_in)
    return score - _log_density(target, outside.mean, of_out)


def lira_offline(target: Array, references: Array, included: Coins) -> Array:
    """Log-probability that a model without the record is less sure of it; arguments as online."""
    from scipy.special import log_ndtr

    _check(target, references, included)
    outside = _spread(references, ~included)
    if outside.counts.min() >= _OWN_DEVIATION:
        deviation = outside.deviation()
    else:
        deviation = _shared_deviation(references, outside)
    return np.asarray(log_ndtr((target - outside.mean) / deviation), dtype=np.float64)


def rmia_online(target: Array, references: Array, included: Coins) -> Array:
    """Share of other records that the model prefers less than this one, against all references.

    Arguments as of `lira_online`; the share is in [0, 1].
    """
    _check(target, references, included)
    inside = _mean(_probability(references), included)
    outside = _mean(_probability(references), ~included)
    return _preferred(_probability(target) / (0.5 * (inside + outside)))


def rmia_offline(target: Array, references: Array, included: Coins) -> Array:
    """The same against references without the record alone."""
    _check(target, references, included)
    outside = _mean(_probability(references), ~included)
    return _preferred(_probability(target) / (0.5 * ((1.0 + _OFFLINE) * outside + 1.0 - _OFFLINE)))


def threshold(target: Array, references: Array, included: Coins) -> Array:
    """The model's own confidence, one threshold for all records; references are not used.

    Source: Yeom et al., "Privacy Risk in Machine Learning", CSF 2018.
    """
    del references, included
    return target


Attack = Callable[[Array, Array, Coins], Array]
ATTACKS: Mapping[str, Attack] = {
    "LiRA online": lira_online,
    "LiRA offline": lira_offline,
    "RMIA online": rmia_online,
    "RMIA offline": rmia_offline,
    "loss threshold": threshold,
}


def _check(target: Array, references: Array, included: Coins) -> None:
    if references.ndim != 2 or references.shape != included.shape:
        raise InputError(
            f"references {references.shape} and included {included.shape} must be (K, C) each"
        )
    if target.shape != references.shape[1:]:
        raise InputError(f"target {target.shape} must be (C,), beside {references.shape} (K, C)")
    inside = included.sum(axis=0)
    if inside.min(initial=1) < 1 or inside.max(initial=0) >= max(len(included), 1):
        raise InputError(
            "included puts a record into all references or into none; give every record at least "
            "one of either, as balanced_coins does with 2 references and more"
        )


def _mean(values: Array, chosen: Coins) -> Array:
    """(C,) the mean of each column over the chosen rows."""
    return np.asarray(np.where(chosen, values, 0.0).sum(axis=0) / chosen.sum(axis=0))


class _Spread(NamedTuple):
    """(C,) mean of each record over some references, squares about it, and how many they are."""

    mean: Array
    squares: Array
    counts: NDArray[np.int64]

    def deviation(self) -> Array:
        return np.maximum(np.sqrt(self.squares / (self.counts - 1)), _LEAST_DEVIATION)


def _spread(values: Array, chosen: Coins) -> _Spread:
    mean = _mean(values, chosen)
    squares = np.where(chosen, (values - mean) ** 2, 0.0).sum(axis=0)
    return _Spread(mean, squares, chosen.sum(axis=0))


def _shared_deviation(values: Array, *spreads: _Spread) -> Array:
    """(C,) of all references of a record, drawn towards that of all records."""
    squares = np.sum([spread.squares for spread in spreads], axis=0)
    freedom = np.sum([spread.counts - 1 for spread in spreads], axis=0)
    # One reference of a record tells nothing of its own spread.
    pooled = squares.sum() / freedom.sum() if freedom.sum() > 0 else values.var()
    variance = (_PRIOR * pooled + squares) / (_PRIOR + freedom)
    return np.maximum(np.sqrt(variance), _LEAST_DEVIATION)


def _log_density(values: Array, mean: Array, deviation: Array) -> Array:
    """Of a Gaussian, but for a constant that cancels in a ratio."""
    return np.asarray(-0.5 * ((values - mean) / deviation) ** 2 - np.log(deviation))


def _probability(statistics: Array) -> Array:
    from scipy.special import expit

    return np.asarray(expit(statistics), dtype=np.float64)


def _preferred(ratios: Array) -> Array:
    """(C,) share of the other records whose ratio is at most that of each."""
    if len(ratios) < 2:
        return np.zeros(len(ratios))
    at_most = np.searchsorted(np.sort(ratios), ratios, side="right") - 1  # without itself
    return np.asarray(at_most / (len(ratios) - 1), dtype=np.float64)


AVERAGE, OWNER = "average", "owner"
MOST_AGENTS = 32  # whose models are attacked with everybody's records, each by itself
_LARGEST = 50.0  # of a statistic: that of a probability within 2e-22 of 1
_BATCH = 2048


@torch.no_grad()
def confidences(model: nn.Module, flat: Tensor, records: Examples) -> Array:
    """The statistic of every record under one model.

    Args:
        model: the network; its own parameters are not used.
        flat: (D,) parameters; longer ones go on with dual variables, which no record asks for.
        records: (B) inputs and targets.

    Returns:
        (B,), within [-50, 50]; 0 where a model that diverged says nothing.
    """
    found = []
    parameters = {name: value.to(flat.device) for name, value in unflatten(model, flat).items()}
    for x, y in zip(records.inputs.split(_BATCH), records.targets.split(_BATCH), strict=True):
        inputs = x.to(flat.device, flat.dtype if x.is_floating_point() else None)
        targets = y.to(flat.device)
        logits = torch.func.functional_call(model, parameters, (inputs,)).double()
        own = logits.gather(1, targets[:, None])[:, 0]
        others = logits.scatter(1, targets[:, None], -torch.inf).logsumexp(dim=1)
        phi = (own - others).nan_to_num(nan=0.0, posinf=_LARGEST, neginf=-_LARGEST)
        found.append(phi.clamp(-_LARGEST, _LARGEST).cpu().numpy())
    return np.concatenate(found) if found else np.zeros(0)


def confidences_by_model(model: nn.Module, models: Tensor, pool: Pool) -> dict[str, Array]:
    """The statistic of the records at stake under the models that are attacked.

    Args:
        model: the network.
        models: (A, D) that a run ends with.

    Returns:
        (C,) each: of the `average` model; of each record's `owner`; and of every agent, where they
        are at most `MOST_AGENTS`.
    """
    agents = len(models)
    found = {AVERAGE: confidences(model, models.mean(dim=0), pool.records)}
    owner = np.zeros(len(pool.owners))
    for agent, flat in enumerate(models):
        mine = np.flatnonzero(pool.owners == agent)
        if agents > MOST_AGENTS:
            rows = torch.from_numpy(mine)
            own = Examples(pool.records.inputs[rows], pool.records.targets[rows])
            owner[mine] = confidences(model, flat, own)
        else:
            every = confidences(model, flat, pool.records)
            owner[mine] = every[mine]
            found[f"agent {agent}"] = every
    return found | {OWNER: owner}


# Membership inference on real records: references, the run itself, and games that coins decide.


@dataclass(frozen=True, kw_only=True, slots=True)
class Attacked:
    """What one attack finds in one model.

    Attributes:
        model: average, owner, or agent K.
        attack: its name in `ATTACKS`.
        roc: its curve.
    """

    model: str
    attack: str
    roc: Roc


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Played:
    """The attacks on one run, or on several games together.

    Attributes:
        included: (C,) who was in; of several games one after the other.
        scores: (C,) by model and attack.
        rows: their curves.
    """

    included: Coins
    scores: dict[tuple[str, str], Array]
    rows: Sequence[Attacked]

    def best(self) -> Attacked:
        """The row of largest AUC, chosen afterwards, which flatters it."""
        return max(self.rows, key=lambda row: row.roc.auc)


@dataclass(frozen=True, kw_only=True, slots=True)
class Inference:
    """What all attacks find.

    Attributes:
        run: in the final models of the run itself; None where there are none.
        games: in games that coins decide; None where none was played.
        references: how many there were.
        seconds: that one training took, on the wall clock.
    """

    run: Played | None
    games: Played | None
    references: int
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Trainer:
    """Trains what a run trained on other records, and asks the models about the pool.

    Attributes:
        setting: of the run; its shards are replaced.
        bound: its algorithm, at its noise.
        pool: the records at stake.
        rounds: that it trained.
        scripts: what every round has to follow, those of the run's plan.
    """

    setting: Setting
    bound: Bound
    pool: Pool
    rounds: int
    scripts: Scripts | None = None

    def confidences(self, included: Coins) -> dict[str, Array]:
        """By model what it says of the pool's records, once it was trained on those included."""
        setting = replace(self.setting, shards=self.pool.shards(included), users=None)
        engine = Engine(setting, self.bound, scripts=self.scripts)
        engine.start()
        for _ in range(self.rounds):
            engine.advance()
        return confidences_by_model(self.setting.model, engine.models(), self.pool)


def infer_membership(
    trainer: Trainer,
    *,
    models: Tensor | None,
    references: int,
    games: int,
    generator: np.random.Generator,
    most_seconds: float = float("inf"),
    progress: Progress | None = None,
) -> Inference:
    """Attack a run's final models, and games, with references that are trained as the run was.

    Args:
        trainer: trains the references, and the games.
        models: (A, D) that the run ended with, or None.
        games: G, may be 0.
        most_seconds: that all trainings together may take, told from the first.
        progress: called with (trainings done, trainings in all, what comes next and its price).

    Raises:
        ValueError: fewer than 2 references, fewer than 0 games, nothing to attack, or a price above
            `most_seconds`.
    """
    if games < 0 or (games == 0 and models is None):
        raise InputError(
            f"games={games} leaves nothing to attack; play at least one, or attack a run that has "
            "final models"
        )
    setting, pool = trainer.setting, trainer.pool
    # References hold each record in balance, and games by fair coins.
    size = len(pool.owners)
    coins = balanced_coins(references, size, generator=generator)
    fair = fair_coins(games, size, generator=generator)
    done, total, price = [], references + games, 0.0
    # The first training tells the price of all.
    for number, included in enumerate([*coins, *fair]):
        if progress is not None:
            what = "reference" if number < references else "game"
            told = f", about {price * (total - number):.0f} s left" if number else ""
            progress(number, total, f"{what}{told}" if number else "first reference, for its price")
        began = time.perf_counter()
        done.append(trainer.confidences(included))
        price = max(price, time.perf_counter() - began) if number else time.perf_counter() - began
        if number == 0 and price * total > most_seconds:
            raise InputError(
                f"{references} references and {games} games take about {price * total:.0f} s, at "
                f"{price:.1f} s each, and {most_seconds:.0f} s are allowed; ask for fewer, or "
                "allow more"
            )
    if progress is not None:
        progress(total, total, "scores")
    # The run and the games are attacked by the same references.
    known, played = done[:references], done[references:]
    own = None
    if models is not None:
        flat = models.to(setting.device, setting.dtype)
        own = [confidences_by_model(setting.model, flat, pool)]
    return Inference(
        run=None if own is None else _played(own, pool.trained[None], known, coins),
        games=None if not played else _played(played, fair, known, coins),
        references=references,
        seconds=price,
    )


def _played(
    targets: Sequence[dict[str, Array]],
    included: Coins,
    references: Sequence[dict[str, Array]],
    coins: Coins,
) -> Played:
    """Every attack on every model of the targets, which are pooled."""
    inside = included.reshape(-1)
    scores = {}
    for model in targets[0]:
        known = np.stack([reference[model] for reference in references])  # (K, C)
        for name, attack in ATTACKS.items():
            found = [attack(target[model], known, coins) for target in targets]
            scores[model, name] = np.concatenate(found)
    rows = [
        Attacked(model=model, attack=name, roc=roc(values, inside))
        for (model, name), values in scores.items()
    ]
    return Played(included=inside, scores=scores, rows=rows)
