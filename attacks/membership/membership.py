"""Membership inference on real records: references, the run itself, and games that coins decide.

    references    K runs of the same algorithm, graph, rounds and noise, each on half of the
                  records at stake
    the run       its own final models: records that it was trained on, against held-out ones
    games         G more such runs in which a fair coin of its own decides about every record

All attacks see the final models alone. In the run itself who is in was decided long ago: held-out
records may differ from the others for reasons of their own, so what is found is an attack, which no
proof speaks of. In the games nothing but the coins tells members from others.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ...privacy._validate import Progress
from ...privacy.errors import InputError
from ...training.algorithms.algorithm import Bound
from ...training.engine.engine import Engine
from ...training.engine.setting import Setting
from ...training.tracing.scripts import Scripts
from .roc import Roc, roc
from .scores import ATTACKS, Pool, balanced_coins, confidences_by_model, fair_coins

Array = NDArray[np.float64]
Coins = NDArray[np.bool_]


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
        references: K, at least 2.
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
