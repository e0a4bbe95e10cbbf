"""`watch`: the steps of an Opacus optimizer as releases, written down before the model changes.

    backward          per-example gradients
    clip_and_accumulate   wrapped: which batch it is, and where an audit plants canaries
    add_noise, scale_grad
    original.step     a pre-hook writes the line: sum_i clip(g_i) + N(0, (z C)^2), divided by the
                      expected batch size; then the model changes

Opacus calls one hook a step, which its accountant has. The pre-hook is torch's own, of the
optimizer inside: it sees the gradient that is really used, whoever wrote it.

A line holds what Opacus says of itself in that step: the rate of its sampler, its clip norm C, and
the deviation z C from its noise multiplier z. Whether this is so, conformance tests in kept rounds.
"""

from __future__ import annotations

import gc
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from numpy.typing import NDArray
from opacus.optimizers import (
    AdaClipDPOptimizer,
    DistributedDPOptimizer,
    DPOptimizer,
    DPOptimizerFastGradientClipping,
    DPPerLayerOptimizer,
    SimpleDistributedPerLayerOptimizer,
)
from opacus.utils.batch_memory_manager import BatchSplittingSampler
from opacus.utils.uniform_sampler import (
    DistributedUniformWithReplacementSampler,
    UniformWithReplacementSampler,
)
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, Sampler, SequentialSampler

from ...attacks.foreign.audit_training import Planted
from ...privacy.errors import InputError, InputTypeError
from ...runs.recorder.canaries import GradientCanaries, rehearsal_of
from ...runs.recorder.recorder import Recorder
from .oracle import Loss, Replay, flat, gradients_of


def watch(
    optimizer: Any,
    loader: Any,
    *,
    model: nn.Module | None = None,
    loss: Loss = nn.functional.cross_entropy,
    lr: Any = None,
) -> OpacusSystem:
    """A training by Opacus, for `record(..., system=watch(optimizer, loader))`.

    The log has one agent, and a release to all in each step. Batches that are not Poisson count at
    rate 1; clip norms by layer count as the root of the sum of their squares. On the data of an
    audit, which holds canaries, nothing is written where `record` says, since nothing is released.

    Args:
        optimizer: as `PrivacyEngine.make_private` returned it.
        loader: as it returned it.
        model: as it returned it; `conformance` needs it, to compute gradients by itself.
        loss: of (outputs, targets) of one example, a scalar.
        lr: the learning rate, where it is not one number: a list by step or a function of the step,
            which is held to; `record` takes noise=, scale= and rounds= as well.

    Raises:
        ValueError: adaptive or ghost clipping, a distributed training, batches that cannot be told.
        TypeError: an optimizer that is not of Opacus.

    >>> import torch
    >>> from opacus.data_loader import DPDataLoader
    >>> from opacus.optimizers import DPOptimizer
    >>> data = torch.utils.data.TensorDataset(torch.zeros(60, 2), torch.zeros(60))
    >>> inner = torch.optim.SGD(nn.Linear(2, 1).parameters(), lr=0.1)
    >>> optimizer = DPOptimizer(
    ...     inner, noise_multiplier=1.0, max_grad_norm=2.0, expected_batch_size=15
    ... )
    >>> system = watch(optimizer, DPDataLoader(data, sample_rate=0.25))
    >>> system.settings["clip"], system.settings["rate"], system.settings["sampler"]
    (2.0, 0.25, 'poisson')
    """
    _check(optimizer)
    return OpacusSystem(optimizer, Batches(loader), model=model, loss=loss, lr=lr)


class _Step(NamedTuple):
    """What is known of a step before its noise is drawn."""

    positions: list[int]
    clip: Any
    std: float
    point: Tensor | None
    gradients: list[Tensor] | None


class OpacusSystem:
    """An optimizer and a loader of Opacus; made by `watch`, which says what it takes."""

    ratios = True

    def __init__(
        self,
        optimizer: Any,
        batches: Batches,
        *,
        model: nn.Module | None,
        loss: Loss,
        lr: Any = None,
    ) -> None:
        self._optimizer, self._batches = optimizer, batches
        self._model, self._loss, self._lr = model, loss, lr
        self._dataset = batches.loader.dataset
        self._recorder: Recorder | None = None
        self._step: _Step | None = None
        self._round, self._gap, self._inside = 0, False, False
        self._canaries = self._planted()
        self.rehearsal = None if self._canaries is None else rehearsal_of(self)

    @property
    def settings(self) -> Mapping[str, Any]:
        """What `record` takes from the library."""
        found: dict[str, Any] = {
            "name": "opacus", "agents": 1, "agent": 0, "clip": _clip(self._optimizer),
            "noise": self._std, "scale": self._scale, "lr": self._lr,
        }  # fmt: skip
        if self._batches.poisson:
            found |= {"rate": self._batches.rate, "sampler": "poisson"}
        return found

    def attach(self, recorder: Recorder) -> None:
        """Write a line before each step from here on."""
        if not self._batches.poisson:
            warnings.warn(
                "batches are not drawn by Poisson sampling (poisson_sampling=False), for which "
                "no amplification is proven here: every record counts as in each batch, at rate 1",
                stacklevel=3,
            )
        if (lost := self._batches.lost_sampler()) is not None:
            warnings.warn(
                f"make_private draws each record at rate {self._batches.rate:g}: weights or an "
                f"order of the {lost} that the loader had are gone, and the figure is without them",
                stacklevel=3,
            )
        # Hooks around clipping and around the inner step: between them the line is written.
        self._recorder, self._round = recorder, recorder.next_round
        self._batches.attach()
        self._clipping = self._optimizer.clip_and_accumulate
        self._own = vars(self._optimizer).get("clip_and_accumulate")
        self._optimizer.clip_and_accumulate = self._before_clipping
        inner = self._optimizer.original_optimizer
        self._replay = Replay(inner, self._optimizer.params, first=self._round)
        self._hooks = [
            inner.register_step_pre_hook(self._before_step),
            inner.register_step_post_hook(self._after_step),
        ]
        if self._model is not None:
            self._hooks.append(
                self._model.register_forward_pre_hook(_check_input, with_kwargs=True)
            )

    def detach(self) -> None:
        """Leave optimizer and loader as they were."""
        for hook in self._hooks:
            hook.remove()
        if self._own is None:
            del self._optimizer.clip_and_accumulate
        else:
            self._optimizer.clip_and_accumulate = self._own
        self._batches.detach()
        self._recorder = None

    def gradients(self) -> Callable[..., Tensor]:
        """The oracle of conformance: per-example gradients of the model by `torch.func`.

        Raises:
            ValueError: no model was given, or the training is an audit's.
        """
        if self._canaries is not None:
            raise InputError(
                "this training is an audit's, whose canaries have gradients that no model gives; "
                "check a training on the data themselves against its lines"
            )
        if self._model is None:
            raise InputError(
                "model is missing: watch(optimizer, loader, model=model, loss=...) lets "
                "conformance compute gradients by itself, not by those that Opacus clipped"
            )
        return gradients_of(
            self._model, list(self._optimizer.params), self._batches.loader, loss=self._loss
        )

    @property
    def _std(self) -> float:
        """Of the noise on the sum."""
        return float(self._optimizer.noise_multiplier) * float(self._optimizer.max_grad_norm)

    @property
    def _scale(self) -> float:
        """The value is a mean where the optimizer divides by a public size."""
        of = self._optimizer  # steps of several batches are refused
        return 1.0 / of.expected_batch_size if of.loss_reduction == "mean" else 1.0

    def points(self, round: int, agent: int, released: Sequence[Any]) -> Tensor | str | None:  # noqa: ARG002
        """The model at the start of a round, by the optimizer's steps done again."""
        return self._replay.point(round, [(one.round, one.value) for one in released])

    def scores(self, planted: Planted) -> NDArray[Any]:
        """(m,) log-likelihood ratios of the canaries of this training, in nats.

        Raises:
            ValueError: the loader had other data than these.
        """
        if self._canaries is None or self._canaries.planted is not planted:
            raise InputError(
                f"the watched loader goes through a {type(self._dataset).__name__}, and not "
                "through the data that train was given, so its canaries cannot be recognised; give "
                "train's argument to DataLoader as it is"
            )
        return self._canaries.scores.copy()

    def _planted(self) -> GradientCanaries | None:
        if not isinstance(self._dataset, Planted):
            return None
        if isinstance(self._optimizer, DPPerLayerOptimizer):
            raise InputError(
                "clipping is by layer, where a canary of one coordinate shows the bound of one "
                'layer alone; audit with clipping="flat", or final models by canaries of records'
            )
        return GradientCanaries(self._dataset, [of.numel() for of in self._optimizer.params])

    def _before_clipping(self) -> None:
        """Tell which batch is clipped, and plant what an audit plants."""
        # A step is one batch, all of whose gradients are there.
        optimizer = self._optimizer
        if optimizer._step_skip_queue:
            raise InputError(
                "the step is one of several of a batch (BatchMemoryManager), whose sums no line "
                "says; leave the manager out, and use batches that fit"
            )
        if any(isinstance(of.grad_sample, list) and len(of.grad_sample) > 1
               for of in optimizer.params):  # fmt: skip
            raise InputError(
                "gradients of several batches are added up before a step, so that a record may be "
                "in it twice; take one step a batch"
            )
        # The batch that the loader gave, each of whose records has a gradient.
        samples = optimizer.grad_samples
        positions = self._batches.take()
        here, rows = present(self._dataset, positions), len(samples[0])
        if rows != len(here):
            raise InputError(
                f"the step has gradients of {rows} examples, and the batch that the loader gave "
                f"has {len(here)}; go through the loader that make_private returned, with one step "
                "a batch, and a collate_fn that keeps every record once"
            )
        # What the line of this step will say, with its point where the round is kept.
        clip, self._inside = _clip(optimizer), False
        kept = self._recorder is not None and self._recorder.keeps(self._round)
        self._step = _Step(
            positions=positions,
            clip=clip,
            std=self._std,
            point=flat(optimizer.params) if kept else None,
            gradients=list(samples) if kept else None,
        )
        if self._canaries is not None and not any(hasattr(of, "_processed") for of in samples):
            made = self._canaries.plant(samples, here, clip=clip)
            for parameter, sample in zip(optimizer.params, made, strict=True):
                parameter.grad_sample = sample
        self._clipping()

    def _before_step(self, inner: Any, args: Any, kwargs: Any) -> None:  # noqa: ARG002 torch's
        """Write the line of a step; nothing has changed by it yet."""
        if self._inside:  # a subclass calls the step of the class that it is derived from
            return
        # A step of a batch that was clipped, without numbers that tell of an overflow.
        step, self._step = self._step, None
        if step is None or self._recorder is None:
            raise InputError(
                "the optimizer inside takes a step without clipping and noise; call step() of the "
                "optimizer that make_private returned, once a batch"
            )
        optimizer, recorder = self._optimizer, self._recorder
        grads = [parameter.grad for parameter in optimizer.params]
        if not all(bool(torch.isfinite(of).all()) for of in grads):
            raise InputError(
                "the noisy gradient holds a number that is not finite, which shows that a sum "
                "overflowed, and that depends on the records; use a smaller learning rate"
            )
        scale = self._scale
        said = recorder.header.said("lr", "gradient", self._round - 1)
        for group in inner.param_groups if said is not None else ():
            if group["lr"] != said:
                raise InputError(
                    f"the learning rate of step {self._round} is {float(group['lr']):.9g}, and "
                    f"watch(..., lr=...) declared {said:.9g}; take the declared one, since a rate "
                    "that follows losses tells of the records"
                )
        self._gap = self._gap or not recorder.keeps(self._round)
        kept: dict[str, Any] = {}
        vector: dict[str, Any] = {"owner": 0, "clip": step.clip}
        if self._batches.poisson:
            vector |= {"rate": self._batches.rate, "sampler": "poisson"}
        # A kept round has its value, batch and rows.
        if step.point is not None:
            kept = {"value": flat(grads), "batch": step.positions, "point": step.point}
            kept |= {"records": self._batches.records, "rows": step.gradients}
        recorder.release(
            self._round,
            kind="gradient",
            to="all",
            noise=step.std,
            of=[vector],
            scale=scale,
            **kept,
        )
        # The audit scores the noisy sum; then the step counts as released.
        if self._canaries is not None:
            noisy = torch.cat([of.reshape(-1) for of in grads]) / scale
            self._canaries.note(noisy, std=step.std, clip=step.clip, rate=self._batches.rate)
        self._replay.note(inner, declared=said is not None)
        self._round += 1
        self._inside = True  # the line is written; a refusal above refuses the next step, too

    def _after_step(self, inner: Any, args: Any, kwargs: Any) -> None:  # noqa: ARG002 torch's
        self._inside = False
        if self._recorder is not None and self._recorder.keeps(self._round) and self._gap:
            self._replay.note_left(self._round)


_REFUSED: tuple[tuple[tuple[type, ...], str], ...] = (
    ((AdaClipDPOptimizer,), "adaptive clipping sets the clip norm by how many gradients were "
     'clipped, a release of its own that no line says; use clipping="flat"'),
    ((DPOptimizerFastGradientClipping,), "ghost clipping never holds the gradients of single "
     'examples, so no one sees which it clipped; use grad_sample_mode="hooks"'),
    ((DistributedDPOptimizer, SimpleDistributedPerLayerOptimizer), "the optimizer adds up "
     "gradients of several processes, of which no single one sees all; watch a training in one "
     "process"),
)  # fmt: skip


def _check(optimizer: Any) -> None:
    """Refuse what no line can say, or no tap can see."""
    if not isinstance(optimizer, DPOptimizer):
        raise InputTypeError(
            f"optimizer of {type(optimizer).__name__} must be that of Opacus, as "
            "PrivacyEngine.make_private returned it"
        )
    for kinds, why in _REFUSED:
        if isinstance(optimizer, kinds):
            raise InputError(why)


def _clip(optimizer: Any) -> Any:
    """Bound on what one record adds to a sum; over layers that of each."""
    if isinstance(optimizer, DPPerLayerOptimizer):
        return {
            "parts": [of.numel() for of in optimizer.params],
            "each": [float(of) for of in optimizer.max_grad_norms],
        }
    return float(optimizer.max_grad_norm)


def _check_input(module: nn.Module, inputs: tuple[Any, ...], named: Mapping[str, Any]) -> None:
    """Refuse inputs by which a gradient goes on to what stands before the model."""
    if not torch.is_grad_enabled() or not module.training:
        return
    for one in (*inputs, *named.values()):
        trained = isinstance(one, nn.Parameter) or (
            isinstance(one, Tensor) and one.requires_grad and not one.is_leaf
        )
        if trained:
            raise InputError(
                "the model's input carries a gradient, so that what stands before it may be "
                "trained without noise, which no line says; make one model of both, and give it "
                "to make_private, or .detach() the input"
            )


Positions = list[int]


# Which records a batch holds: positions as the loader's batch sampler drew them.
#
# A loader hands out tensors without the numbers of their records. So its batch sampler is replaced
# by one that notes what it passes on, and its iterator by one that knows which of these batches it
# has delivered; workers may have fetched others ahead.


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
        _check_loader(loader, sampler)
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


def _check_loader(loader: Any, sampler: Any) -> None:
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
