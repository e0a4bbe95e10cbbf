"""Audit a training that runs elsewhere: plant, train, score, bound, and look again before judging.

    train gives              scored by                                   claim
    a module, an estimator   minus the loss of each canary               the caller's
    several of them          the same, in the mean over the models       the caller's
    an `Observed`            its own `scores(planted)`                   its own, or the caller's

A final model shows far less than messages do: a private training has hardly learned mislabelled
records. An adapter that sees gradients gives likelihood ratios, and is an `Observed`.

A first bound above the claim may be chance, at 95 % once in twenty audits. So four times as many
fresh canaries are played, and only what exceeds the claim at 99.9 % there contradicts it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch.utils.data import DataLoader, Dataset, Sampler

from ...privacy.errors import InputError, InputTypeError, Progress, whole, within
from ..audit.audited import AGAIN, Verdict, after_second_look, deciding
from . import own_training
from .assignment import SealedCoins
from .claimed import DELTA, Claimed
from .scores_audit import LEAST, ScoresAudit, audit_scores, ideal_words

# A data set with canaries in it, each of which a sealed coin puts in or leaves out.
#
# The length is always that of the data plus the number of canaries: a length that followed the
# coins would tell their sum, and would change a sampling rate that is computed from it. A canary
# that is left out still has a number. Asked for as part of a batch it is skipped, and the batch
# comes out shorter, so that a `DataLoader` over a `Planted` is right as it is: shuffled, or drawn
# by a sampler of its own such as that of Opacus, in which case those that are in are a Poisson
# sample at its rate. Asked for alone, by `planted[i]`, it is refused; `for record in planted` skips
# it.
#
# A loader must meet no batch that holds such canaries alone, which small batches do. That is a
# sentence, too; `planted.loader` leaves those batches out.

Bools = NDArray[np.bool_]
_MOST = 1_000_000


@dataclass(frozen=True, slots=True, eq=False)
class PlantedScores:
    """Scores of planted canaries, and their assignment.

    Attributes:
        scores: (m,) higher for canaries that look trained on.
        included: (m,) whether they were.
    """

    scores: NDArray[np.float64]
    included: Bools

    def write(self, path: str | Path) -> None:
        """Write them as `overhear audit-scores` reads them.

        Raises:
            FileExistsError: the file is there.
        """
        rows = zip(self.scores.tolist(), self.included.tolist(), strict=True)
        lines = [f"{score!r},{int(coin)}\n" for score, coin in rows]
        with Path(path).open("x", encoding="utf-8") as file:
            file.write("score,included\n" + "".join(lines))


class Planted(Dataset[Any]):
    """A map-style data set of n records and m canaries; made by `canaries`.

    Attributes:
        records: (m) the canaries.
    """

    def __init__(
        self, base: Any, records: Sequence[own_training.Record], coins: SealedCoins
    ) -> None:
        self._base, self._size = base, len(base)
        self._coins = coins
        self.records = list(records)

    @property
    def count(self) -> int:
        """How many canaries."""
        return len(self.records)

    @property
    def positions(self) -> NDArray[np.int64]:
        """(m,) their numbers in the data set, n to n + m - 1, in or out."""
        return np.arange(self._size, self._size + self.count)

    def __len__(self) -> int:
        """Of the data and all canaries, whatever the coins show."""
        return self._size + self.count

    def __getitem__(self, index: int) -> Any:
        """A record by its number.

        Raises:
            IndexError: there is no such number.
            ValueError: it is that of a canary that is left out.
        """
        at = self._place(index)
        if at < self._size:
            return self._base[at]
        if not self._coins.is_in(at - self._size):
            raise InputError(
                f"record {at} is a canary that its coin leaves out, so there is nothing to train "
                "on; ask for batches, as a DataLoader does, or go through the data by a for loop"
            )
        return self.records[at - self._size]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """The records of a batch that are there, which may be fewer than were asked for."""
        here = self.present(indices)
        if not here:
            return _NobodyHere()
        return [self._base[at] if at < self._size else self.records[at - self._size] for at in here]

    def present(self, indices: Sequence[int]) -> list[int]:
        """Those numbers of a batch whose records are there; for an adapter that labels its rows."""
        return [at for at in map(self._place, indices) if self._is_there(at)]

    def __iter__(self) -> Iterator[Any]:
        """All records that are there, in order."""
        return (self[at] for at in range(len(self)) if self._is_there(at))

    def sampler(
        self, batch_size: int, *, shuffle: bool = True, generator: torch.Generator | None = None
    ) -> Sampler[list[int]]:
        """Batches of numbers that are there, for `DataLoader(planted, batch_sampler=...)`.

        Every number has its place, in batches of one size; canaries that are left out leave theirs
        empty, and a batch of nothing else is left out. The length does not depend on the coins.

        Args:
            batch_size: places in a batch.
            shuffle: whether numbers are shuffled, in each epoch anew.
            generator: of the shuffles; torch's own by default.
        """
        within("batch_size", batch_size, "[1, inf)")
        return _Batches(self, batch_size, shuffle=shuffle, generator=generator)

    def loader(
        self,
        batch_size: int,
        *,
        shuffle: bool = True,
        generator: torch.Generator | None = None,
        **options: Any,
    ) -> DataLoader[Any]:
        """A `DataLoader` over `sampler`; `options` are passed on to it.

        >>> data = torch.utils.data.TensorDataset(torch.eye(8), torch.arange(8))
        >>> planted = canaries(data, 8, seed=3)
        >>> len(planted), len(planted.loader(4)), sum(len(y) for _, y in planted.loader(4))
        (16, 4, 14)
        """
        batches = self.sampler(batch_size, shuffle=shuffle, generator=generator)
        return DataLoader(self, batch_sampler=batches, **options)

    def score(self, model: Any, *, loss: own_training.Loss | None = None) -> PlantedScores:
        """Score all canaries by their loss, in or out, and open the coins.

        Args:
            model: that was trained on this data set; of several, such as those that were released
                one after the other, the mean loss.
            loss: (outputs, targets) -> (B,) losses; by default the cross-entropy of integer targets
                and the squared error of others.

        Returns:
            Minus the loss of each, and the coins. They stay sealed if anything goes wrong.

        Raises:
            ValueError: no model, a loss of another shape, or a model that diverged.
            TypeError: what is given is no module.
        """
        models = _models_of(model) or list(model)
        if not models:
            raise InputError("no model is given; train one on this data set")
        losses = np.mean(
            [own_training.losses_of(one, self.records, loss=loss) for one in models], axis=0
        )
        return PlantedScores(scores=-losses, included=self.reveal())

    @property
    def included(self) -> Bools:
        """(m,) the coins, once they are open.

        Raises:
            ValueError: they are sealed.
        """
        return self._coins.included

    def reveal(self) -> Bools:
        """Open the coins, where something else than `score` has scored the canaries."""
        return self._coins.open()

    def __repr__(self) -> str:
        """How many records and canaries there are, and nothing of the coins."""
        state = "open" if self._coins.opened else "sealed"
        return f"Planted({self._size} records, {self.count} canaries, assignment {state})"

    def _place(self, index: int) -> int:
        at = int(index)
        if not -len(self) <= at < len(self):
            raise IndexError(f"index {at} lies outside the {len(self)} records")
        return at % len(self)

    def _is_there(self, at: int) -> bool:
        return at < self._size or self._coins.is_in(at - self._size)


class _NobodyHere(list[Any]):
    """An empty batch: Opacus makes an empty tensor of it; whatever looks at its first record..."""

    def __getitem__(self, at: Any) -> Any:
        raise InputError(
            "a batch holds nothing but canaries that their assignment leaves out; use "
            "planted.loader(batch_size), which leaves such batches out, or larger batches"
        )


class _Batches(Sampler[list[int]]):
    def __init__(
        self, planted: Planted, batch_size: int, *, shuffle: bool, generator: torch.Generator | None
    ) -> None:
        self._planted, self._size = planted, batch_size
        self._shuffle, self._generator = shuffle, generator

    def __len__(self) -> int:
        return math.ceil(len(self._planted) / self._size)

    def __iter__(self) -> Iterator[list[int]]:
        total = len(self._planted)
        places = list(range(total))
        if self._shuffle:
            places = torch.randperm(total, generator=self._generator).tolist()
        for start in range(0, total, self._size):
            if here := self._planted.present(places[start : start + self._size]):
                yield here


def canaries(
    dataset: Any,
    count: int,
    *,
    kind: str = "mislabelled",
    seed: int | None = None,
    path: str | Path | None = None,
    records: Sequence[own_training.Record] | None = None,
    labels: int | None = None,
) -> Planted:
    """Plant canaries in a data set, each by a fair coin of its own.

    Args:
        dataset: (n) map-style, of pairs (input, integer label).
        count: m, how many canaries, from 1 to a million.
        kind: "mislabelled", "blank", "gradient" (for an adapter that sees gradients) or "yours".
        seed: of coins and canaries, for tests; from the system's entropy by default.
        path: where the coins are written before anything else, readable to the owner alone.
        records: of "yours", the canaries.
        labels: how many classes there are; by default as many as are seen.

    Returns:
        The data set to train on, of length n + m whatever the coins show.

    Raises:
        ValueError: a value out of range, or a data set that the kind cannot be made for.
        FileExistsError: `path` is there.

    >>> data = torch.utils.data.TensorDataset(torch.eye(8), torch.arange(8))
    >>> planted = canaries(data, 8, seed=3)
    >>> planted
    Planted(8 records, 8 canaries, assignment sealed)
    >>> int(planted.reveal().sum())
    6
    """
    whole("count", count, f"[1, {_MOST}]", ", canaries")
    own_training.check_dataset(dataset, name="dataset")
    coins = SealedCoins(count, seed=seed, path=None if path is None else Path(path))
    # Canaries are drawn apart from the coins, by a stream of their own.
    generator = np.random.default_rng(None if seed is None else [seed, 1])
    made = own_training.make_records(
        dataset, count, kind=kind, generator=generator, records=records, labels=labels
    )
    return Planted(dataset, made, coins)


SURE = 0.999  # confidence of a second look
_PER_RUN = 250
_MOST_CANARIES = 100_000


@runtime_checkable
class Observed(Protocol):
    """What a training gives that was observed while it ran, such as a recorder's log."""

    def claim(self, delta: float) -> Claimed | None:
        """What the training claims of itself at a delta, or None."""
        ...

    @property
    def ratios(self) -> bool:
        """Whether scores are log-likelihood ratios at that claim, in nats, of canaries apart."""
        ...

    def scores(self, planted: Planted) -> ArrayLike:
        """(m,) one a canary of `planted.positions`, higher if it is in; without its coins."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True, eq=False, repr=False)
class TrainingAudit:
    """What an audit of a training found.

    Attributes:
        first: the first look.
        again: the second, at 99.9 %, where the first exceeded the claim.
        fresh: the second at the confidence of the first.
        verdict: of both.
        trainings: how many were played.
    """

    first: ScoresAudit
    again: ScoresAudit | None
    verdict: Verdict
    trainings: int
    fresh: ScoresAudit | None = None

    @property
    def found(self) -> ScoresAudit:
        """The look on which the verdict rests."""
        first, fresh, again = self.first, self.fresh, self.again
        epsilon = self.claimed.epsilon
        return deciding(self.verdict, epsilon, first=first, fresh=fresh, again=again)

    @property
    def epsilon(self) -> float:
        """The lower bound on which the verdict rests, in nats."""
        return self.found.epsilon

    @property
    def claimed(self) -> Claimed:
        """What it was held against."""
        return self.first.claimed

    @property
    def contradicted(self) -> bool:
        """Whether more leaked than is claimed, in both looks."""
        return self.verdict is Verdict.CONTRADICTED

    def words(self) -> str:
        """What was found, in a sentence or two."""
        if self.again is None:
            return self.first.words()
        return (
            f"{self.found.measured_words()}, by {AGAIN} times as many fresh canaries; verdict on "
            f"the claim of {self.claimed.words()}: {self.verdict}. The first look exceeded it: "
            f"{self.first.measured_words()}"
        )

    def __repr__(self) -> str:
        """What a perfect audit shows, and what this one does."""
        return f"{ideal_words(self.first)}\n{self.words()}"


def audit_training(
    train: own_training.Train,
    data: Any,
    *,
    canaries: int = 500,
    claim: Claimed | None = None,
    delta: float = DELTA,
    confidence: float = 0.95,
    kind: str = "mislabelled",
    per_run: int = _PER_RUN,
    records: Sequence[own_training.Record] | None = None,
    labels: int | None = None,
    loss: own_training.Loss | None = None,
    seed: int | None = None,
    progress: Progress | None = None,
) -> TrainingAudit:
    """Plant canaries in the data, train, and check what leaked against the claim.

    Args:
        train: data set -> model, models, or an `Observed`, called as often as canaries need; or an
            estimator, as `opened` takes them.
        data: (X, y), or (n) map-style, of pairs (input, integer label) unless records are yours.
        canaries: how many, at least 20; rounded up to fill every run alike.
        claim: of the training; by default what the `Observed` claims, or nothing.
        delta: of the bound, where claim= does not say one.
        confidence: of the first look.
        kind: of the canaries, as in `canaries`.
        per_run: most canaries in one training.
        records: of kind "yours": `per_run` or as many as canaries, whichever is less.
        labels: how many classes there are; by default as many as are seen.
        loss: (outputs, targets) -> (B,) losses by which models are scored.
        seed: of coins and canaries, for tests; from the system's entropy by default.
        progress: called with (trainings done, trainings in all as far as is known, "").

    Raises:
        ValueError: a value out of range, a train that raises or changes the data, or runs that
            claim different things.
        TypeError: train gives something that cannot be scored.
    """
    within("canaries", canaries, f"[{LEAST}, {_MOST_CANARIES}]")
    within("per_run", per_run, "[1, inf)", ", canaries of one training")
    runs = math.ceil(canaries / per_run)
    train, data = own_training.opened(train, data)
    game = _Game(
        training=own_training.OwnTraining(train, data),
        data=data,
        each=math.ceil(canaries / runs),
        plant={"kind": kind, "records": records, "labels": labels},
        loss=loss,
        delta=delta,
        seed=seed,
        progress=progress,
    )
    # The first look; what is claimed may be what was observed.
    played = game.play(runs, total=runs)
    known = claim or played.claim or Claimed(epsilon=math.inf, delta=delta)
    first = played.audited(known, confidence)
    if not first.contradicted:
        return TrainingAudit(first=first, again=None, verdict=first.verdict, trainings=runs)
    second = game.play(AGAIN * runs, total=(1 + AGAIN) * runs)
    again = second.audited(known, max(SURE, confidence))
    fresh = second.audited(known, confidence)
    verdict = after_second_look(sure=again.contradicted, doubted=fresh.contradicted)
    return TrainingAudit(
        first=first, again=again, fresh=fresh, verdict=verdict, trainings=game.done
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Played:
    """Scores and coins of several trainings, and what they claim of themselves."""

    scores: NDArray[np.float64]
    included: NDArray[np.bool_]
    ratios: bool
    claim: Claimed | None

    def audited(self, claim: Claimed, confidence: float) -> ScoresAudit:
        return audit_scores(
            self.scores, self.included, claim=claim, confidence=confidence, ratios=self.ratios
        )


@dataclass(slots=True, eq=False)
class _Game:
    """Plays trainings, each with canaries of its own."""

    training: own_training.OwnTraining
    data: Any
    each: int
    plant: dict[str, Any]
    loss: own_training.Loss | None
    delta: float
    seed: int | None
    progress: Progress | None
    done: int = 0

    def play(self, runs: int, *, total: int) -> _Played:
        """So many trainings, joined.

        Raises:
            ValueError: they claim different things.
        """
        parts = []
        told = self.progress or (lambda *_: None)
        for _ in range(runs):
            told(self.done, total, "")
            parts.append(self._one())
            self.done += 1
        told(self.done, total, "")
        for one in parts[1:]:
            if one.claim != parts[0].claim or one.ratios != parts[0].ratios:
                raise InputError(
                    f"trainings claim different things: {_said(parts[0].claim)}, then "
                    f"{_said(one.claim)}; let train do the same each time, or give claim="
                )
        scores = np.concatenate([one.scores for one in parts])
        included = np.concatenate([one.included for one in parts])
        return _Played(scores, included, ratios=parts[0].ratios, claim=parts[0].claim)

    def _one(self) -> _Played:
        planted = canaries(self.data, self.each, seed=self._seed(), **self.plant)
        came = self.training(planted)
        models = _models_of(came)
        if models is not None and self.plant["kind"] == own_training.GRADIENT:
            raise InputError(
                'kind="gradient" needs a training whose gradients are seen, and train gave a '
                "model; let it return the log of a recorder with an adapter, or plant mislabelled "
                "records"
            )
        # Models are scored by their losses; what was observed has scores of its own.
        if models is not None:
            found = planted.score(models, loss=self.loss)
            return _Played(found.scores, found.included, ratios=False, claim=None)
        if not isinstance(came, Observed):
            raise InputTypeError(
                f"train gave a {type(came).__name__}, which cannot be scored; let it return the "
                "trained torch.nn.Module or estimator, a list of them, or the log of a recorder"
            )
        scores = np.asarray(came.scores(planted), dtype=np.float64)
        if scores.shape != (planted.count,):
            raise InputError(
                f"what was observed gives scores of shape {scores.shape} for {planted.count} "
                "canaries; it must give one each"
            )
        return _Played(
            scores, planted.reveal(), ratios=bool(came.ratios), claim=came.claim(self.delta)
        )

    def _seed(self) -> int | None:
        if self.seed is None:
            return None
        return int(np.random.SeedSequence([self.seed, self.done]).generate_state(1)[0])


def _models_of(came: Any) -> list[Any] | None:
    if own_training.is_model(came):
        return [came]
    if isinstance(came, list | tuple) and came and all(own_training.is_model(one) for one in came):
        return list(came)
    return None


def _said(claim: Claimed | None) -> str:
    return "nothing" if claim is None else claim.words()
