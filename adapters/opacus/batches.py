"""Which records a batch holds: positions as the loader's batch sampler drew them.

A loader hands out tensors without the numbers of their records. So its batch sampler is replaced by
one that notes what it passes on, and its iterator by one that knows which of these batches it has
delivered; workers may have fetched others ahead.
"""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from opacus.utils.batch_memory_manager import BatchSplittingSampler
from opacus.utils.uniform_sampler import (
    DistributedUniformWithReplacementSampler,
    UniformWithReplacementSampler,
)
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, Sampler, SequentialSampler

from ...privacy.errors import InputError, InputTypeError

Positions = list[int]


class _Drawn(NamedTuple):
    """A batch and the rate at which it was drawn."""

    positions: Positions
    rate: float


class Batches:
    """The batches of a loader, each with the positions of its records.

    Args:
        loader: as `make_private` returned it.

    Attributes:
        loader: the same.
        rate: probability that a record is in the batch that was taken last, or in the first; 1
            unless each is drawn on its own.
        poisson: whether each is.
        records: how many there are.
        ahead: what the sampler has passed on and the iterator not yet delivered.

    Raises:
        ValueError: a loader whose batches cannot be told.
        TypeError: no `DataLoader`.
    """

    def __init__(self, loader: Any) -> None:
        if not isinstance(loader, DataLoader):
            raise InputTypeError(
                f"loader of {type(loader).__name__} must be a torch.utils.data.DataLoader, as "
                "make_private returned it"
            )
        self.loader: Any = loader
        sampler: Any = self.loader.batch_sampler
        held: Any = self.loader.dataset
        _check(loader, sampler)
        self.poisson, self._sampler = isinstance(sampler, UniformWithReplacementSampler), sampler
        self.rate = self.rate_now()
        self.records = int(sampler.num_samples) if self.poisson else len(held)
        self.ahead: deque[_Drawn] = deque()
        self._delivered: list[_Drawn] = []

    def lost_sampler(self) -> str | None:
        """The class of a sampler whose weights or order `make_private` left out, if it is there.

        Opacus makes another loader, which says nothing of the one that was given.
        """
        if not self.poisson:
            return None
        for one in gc.get_referrers(self.loader.dataset):
            others = [one] if not isinstance(one, dict) else gc.get_referrers(one)
            for other in others:
                sampler = getattr(other, "sampler", None) if isinstance(other, DataLoader) else None
                usual = SequentialSampler | RandomSampler | UniformWithReplacementSampler
                if isinstance(sampler, Sampler) and not isinstance(sampler, usual):
                    return type(sampler).__name__
        return None

    def attach(self) -> None:
        """Note batches from here on."""
        # A loader lets nobody set its sampler after it was made.
        object.__setattr__(self.loader, "batch_sampler", _Noting(self._sampler, self))
        begin = self.loader._get_iterator

        def iterator() -> _Delivering:
            self.ahead = ahead = deque[_Drawn]()
            return _Delivering(begin(), ahead, self)

        self.loader._get_iterator = iterator

    def detach(self) -> None:
        """Leave the loader as it was."""
        object.__setattr__(self.loader, "batch_sampler", self._sampler)
        del self.loader._get_iterator

    def rate_now(self) -> float:
        """Probability that a record is in the batch that the sampler draws next."""
        return float(self._sampler.sample_rate) if self.poisson else 1.0

    def take(self) -> Positions:
        """The positions of the batch that was delivered; each batch is taken once.

        Raises:
            ValueError: none was delivered since, or several, or a record stands in it twice.
        """
        delivered, self._delivered = self._delivered, []
        if len(delivered) > 1:
            raise InputError(
                f"{len(delivered)} batches came since the last step, whose line says one; take a "
                "step with each, also with an empty one, since a step that is left out tells of "
                "its batch, and go through the loader under torch.no_grad() where nothing is "
                "trained"
            )
        if not delivered:
            raise InputError(
                "a step was taken without a new batch of the watched loader; go through the loader "
                "that make_private returned, not the one that was given to it, with one step a "
                "batch"
            )
        found, self.rate = delivered[0]
        if len(set(found)) < len(found):
            twice = next(at for at in found if found.count(at) > 1)
            raise InputError(
                f"record {twice} stands twice in a batch, and then moves the sum by twice its clip "
                "norm; draw without replacement"
            )
        return found

    def deliver(self, drawn: _Drawn) -> None:
        """Note a batch that the training has got; without gradients nothing is trained on it."""
        if torch.is_grad_enabled():
            self._delivered.append(drawn)


class _Noting(Sampler[Positions]):
    """A batch sampler that notes what it passes on."""

    def __init__(self, inner: Any, batches: Batches) -> None:
        self._inner, self._batches = inner, batches

    def __iter__(self) -> Iterator[Positions]:
        return self._noted(self._batches.ahead)

    def _noted(self, ahead: deque[_Drawn]) -> Iterator[Positions]:
        for positions in self._inner:
            ahead.append(_Drawn([int(at) for at in positions], self._batches.rate_now()))
            yield positions

    def __len__(self) -> int:
        return len(self._inner)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class _Delivering:
    """An iterator over batches that says which of them it delivers."""

    def __init__(self, inner: Any, ahead: deque[_Drawn], batches: Batches) -> None:
        self._inner, self._ahead, self._batches = inner, ahead, batches

    def __iter__(self) -> _Delivering:
        return self

    def __next__(self) -> Any:
        batch = next(self._inner)
        if not self._ahead:
            raise InputError(
                "a batch came that the watched sampler did not draw; keep the loader's "
                "batch_sampler as make_private returned it"
            )
        self._batches.deliver(self._ahead.popleft())
        return batch

    def __len__(self) -> int:
        return len(self._inner)


def _check(loader: Any, sampler: Any) -> None:
    """Refuse loaders whose batches cannot be told, or that are one of several."""
    if isinstance(loader.dataset, IterableDataset) or sampler is None:
        raise InputError(
            "the loader draws no batches by number, so no one knows who is in one; use a map-style "
            "data set and a batch size"
        )
    if isinstance(sampler, BatchSplittingSampler):
        raise InputError(
            "the loader is that of a BatchMemoryManager, which splits a batch into several steps; "
            "watch the loader that make_private returned, and leave the manager out"
        )
    if isinstance(sampler, DistributedUniformWithReplacementSampler) or _says(
        loader, "distributed"
    ):
        raise InputError(
            "the loader is one of several of a distributed training, whose sum no single process "
            "sees; watch a training in one process"
        )
    if _says(loader.collate_fn, "rand_on_empty"):
        raise InputError(
            "rand_on_empty=True puts a record that no one holds into an empty batch; leave it out"
        )
    if loader.num_workers and (loader.persistent_workers or not getattr(loader, "in_order", True)):
        raise InputError(
            "workers that persist or deliver out of order hide which batch comes when; use "
            "persistent_workers=False and in_order=True, or num_workers=0"
        )


def _says(of: Any, name: str) -> bool:
    return bool(getattr(of, name, False))


def present(dataset: Any, positions: Sequence[int]) -> list[int]:
    """Those of a batch's positions whose records are there; of an audit's data some are not."""
    from ...attacks.foreign.audit_training import Planted

    return dataset.present(positions) if isinstance(dataset, Planted) else list(positions)
