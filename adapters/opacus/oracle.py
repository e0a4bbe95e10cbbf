"""Per-example gradients by other means than Opacus', steps done again, declared histories."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ...privacy.errors import InputError, InputTypeError
from ...privacy.guarantee import Statement
from ...privacy.releases.lines import SCHEMA
from ...privacy.releases.log import read_log
from ...privacy.releases.values import integer, number, positive, probability, shown
from ...runs.recorder.keeping import gradient_of_each
from ...training.accounts.declared import DeclaredAccount, account_of_releases

# The log of a training that is finished, from the history that Opacus' accountant kept of it.


_MOST_STEPS = 5_000_000


@dataclass(frozen=True, slots=True)
class DeclaredHistory:
    """A log that was written from a history; nothing of it can be checked.

    Attributes:
        path: of the log.
    """

    path: Path

    def account(self, *, delta: float) -> DeclaredAccount:
        """What the releases cost each adversary."""
        return account_of_releases(read_log(self.path), statement=Statement(delta=delta))


def from_history(
    history: Sequence[tuple[float, float, int]],
    path: str | Path,
    *,
    poisson_sampling: bool,
    clip: float = 1.0,
) -> DeclaredHistory:
    """Declare a finished training by `accountant.history`, without having watched it.

    Args:
        history: (noise multiplier, sampling rate, steps) of each stretch of steps.
        path: the log to be written, a `.jsonl` file, or a folder.
        poisson_sampling: as `make_private` was told. A history does not say it, and without Poisson
            sampling every record counts as in each batch, at rate 1.
        clip: `max_grad_norm`; the figures depend on the noise multiplier alone.

    Raises:
        ValueError: no history, or a value out of range.
        FileExistsError: the log is there.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     log = from_history([(1.0, 1 / 13, 104)], folder, poisson_sampling=True)
    ...     round(log.account(delta=1e-5)["eavesdropper"].epsilon, 2)
    5.49
    """
    if not isinstance(poisson_sampling, bool):
        raise InputTypeError(
            f"poisson_sampling={shown(poisson_sampling)} must be True or False, as it was given to "
            "make_private"
        )
    # Steps of each stretch, as many as an account takes.
    clip = positive(clip, "clip")
    stretches = [_stretch(one, at) for at, one in enumerate(history)]
    if not sum(steps for _, _, steps in stretches):
        raise InputError(
            "the history holds no step; give the history of the accountant that counted, "
            "engine.accountant.history, after training"
        )
    if sum(steps for _, _, steps in stretches) > _MOST_STEPS:
        raise InputError(
            f"the history holds more than {_MOST_STEPS} steps; account for parts of it"
        )
    # A new log, of which each step is a line.
    path = Path(path)
    path = path / "releases.jsonl" if path.suffix != ".jsonl" else path
    header = {"schema": SCHEMA, "system": "opacus", "agents": 1, "agent": 0, "clip": clip}
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        raise FileExistsError(
            f"{path} exists; a log of releases is never overwritten: name another folder, or "
            "remove it if it is of no use"
        )
    with path.open("x", encoding="utf-8") as file:
        file.write(json.dumps(header) + "\n")
        at = 0
        for noise, rate, steps in stretches:
            vector: dict[str, Any] = {"owner": 0}
            if poisson_sampling:
                vector |= {"rate": rate, "sampler": "poisson"}
            release = {
                "from": 0, "to": "all", "kind": "gradient", "of": [vector], "noise": noise * clip,
            }  # fmt: skip
            for _ in range(steps):
                file.write(json.dumps({"round": at, "releases": [release]}) + "\n")
                at += 1
    return DeclaredHistory(path)


def _stretch(found: Any, at: int) -> tuple[float, float, int]:
    if not isinstance(found, tuple | list) or len(found) != 3:
        raise InputError(
            f"history[{at}]={shown(found)} must be (noise multiplier, sampling rate, steps)"
        )
    noise, rate, steps = found
    noise = number(noise, f"noise multiplier of history[{at}]")
    if noise < 0:
        raise InputError(f"noise multiplier of history[{at}] is {noise:g}, and must be at least 0")
    most = {"least": 0, "most": _MOST_STEPS}
    return noise, probability(rate), integer(steps, f"steps of history[{at}]", **most)


Loss = Callable[[Tensor, Tensor], Tensor]
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def gradients_of(
    model: nn.Module, parameters: list[nn.Parameter], loader: Any, *, loss: Loss
) -> Callable[[Tensor, NDArray[np.int64]], Tensor]:
    """A function of per-example gradients, as a check of conformance takes it.

    Args:
        model: as trained, wrapped by Opacus or not.
        parameters: those that are trained, in the optimizer's order.
        loader: whose data set and collation give pairs (inputs (B, ...), targets (B, ...)), asked
            for each record by itself.
        loss: of (outputs (1, ...), targets (1, ...)), a scalar.

    Returns:
        (point (D,), positions (B,)) -> (B, D) float64.

    Raises:
        ValueError: a parameter that is trained is none of the model's.
    """
    # The parameters that are trained, in the optimizer's order.
    network = getattr(model, "_module", model)
    names = {id(of): name for name, of in network.named_parameters()}
    if strays := [tuple(of.shape) for of in parameters if id(of) not in names]:
        raise InputError(
            f"the model lacks a parameter of shape {strays[0]} that the optimizer trains; give the "
            "model that make_private returned"
        )
    trained = {names[id(of)]: of.shape for of in parameters}
    # Its randomness differs, so that dropout is found to be another each time.
    each = gradient_of_each(network, trained, loss=loss, randomness="different")

    def gradients(point: Tensor, positions: NDArray[np.int64]) -> Tensor:
        if not len(positions):
            return torch.zeros(0, len(point), dtype=torch.float64)
        device = parameters[0].device
        # Each record is collated by itself, so that no other is in it.
        pairs = [_pair(loader.collate_fn([loader.dataset[int(at)]])) for at in positions]
        others = {
            name: (of.detach().double() if of.is_floating_point() else of.detach())
            for name, of in [*network.named_parameters(), *network.named_buffers()]
            if name not in trained
        }
        found = torch.zeros(len(pairs), len(point), dtype=torch.float64)
        for at, inputs, targets in _stacked(pairs):
            with _without_hooks_of_opacus(network):
                rows = each(point.to(device), others, inputs.to(device), targets.to(device))
            found[at] = rows.detach().cpu()
        return found

    return gradients


def _stacked(pairs: list[tuple[Tensor, Tensor]]) -> Iterator[tuple[list[int], Tensor, Tensor]]:
    """Records of one shape together: their places, and their inputs and targets."""
    alike: dict[tuple[torch.Size, torch.Size], list[int]] = {}
    for place, (inputs, targets) in enumerate(pairs):
        alike.setdefault((inputs.shape, targets.shape), []).append(place)
    for at in alike.values():
        yield at, torch.cat([pairs[k][0] for k in at]), torch.cat([pairs[k][1] for k in at])


def _pair(batch: Any) -> tuple[Tensor, Tensor]:
    if isinstance(batch, list | tuple) and len(batch) == 2:
        inputs, targets = batch
        if isinstance(inputs, Tensor) and isinstance(targets, Tensor):
            if len(inputs) != 1 or len(targets) != 1:
                raise InputError(
                    f"collate_fn makes {len(inputs)} inputs and {len(targets)} targets of one "
                    "record, where one vector is clipped for each; give all of a record as one"
                )
            return inputs, targets
    raise InputError(
        "batches of the loader are no pairs (inputs, targets) of tensors; give "
        "conformance(gradients=...), a function (point, positions) -> (B, D) of your own"
    )


@contextmanager
def _without_hooks_of_opacus(network: nn.Module) -> Iterator[None]:
    """Take Opacus' hooks off, which would record what the oracle computes."""
    taken = []
    for module in network.modules():
        for name in _HOOKS:
            held = getattr(module, name)
            for key in [key for key, hook in held.items() if _is_of_opacus(hook)]:
                taken.append((held, dict(held)))
                del held[key]
    try:
        yield
    finally:
        for held, before in reversed(taken):
            held.clear()
            held.update(before)


def _is_of_opacus(hook: Any) -> bool:
    while isinstance(hook, functools.partial):
        hook = hook.func
    return str(getattr(hook, "__module__", "")).startswith("opacus.")


# Where gradients should have been taken: the optimizer's steps done again on what was released.
#
# The model of a round is a function of the initial model and of the gradients released before it,
# if nothing else moves it. So torch's own optimizer of the same kind does the steps again, on
# copies, with the numbers (learning rates and so on) that each step had. An optimizer that is not
# torch's, or a log of which some rounds were not kept, is held against the model that the last step
# left behind.


class Replay:
    """The steps of an optimizer, to be done again.

    Args:
        optimizer: the one inside that of Opacus, before the first step of the log.
        parameters: in the order of the released gradients.
        first: the number of the first round.
    """

    def __init__(self, optimizer: Any, parameters: Sequence[Tensor], *, first: int) -> None:
        self._kind = _kind(optimizer)
        self._parameters, self._first = list(parameters), first
        self._copies = [of.detach().clone() for of in parameters]
        places = {id(of): place for place, of in enumerate(parameters)}
        self._members = [
            [places[id(of)] for of in group["params"] if id(of) in places]
            for group in optimizer.param_groups
        ]
        self._state = _of_trained(optimizer, places)
        self._numbers: list[list[dict[str, Any]]] = []
        self._doubt: tuple[int, str] | None = None
        self._left: dict[int, Tensor] = {first: flat(parameters)}
        self._again: Any = None
        self._at = first

    def note(self, optimizer: Any, *, declared: bool) -> None:
        """Note the numbers of the step about to be taken, and whether its rates are declared."""
        at = self._first + len(self._numbers)
        for group, first in zip(optimizer.param_groups, self._state["param_groups"], strict=True):
            for key in first.keys() - ({"params", "lr"} if declared else {"params"}):
                if self._doubt is None and group[key] != first[key]:
                    self._doubt = (
                        at,
                        f"{key} of step {at} is {group[key]}, and was {first[key]}: a number that "
                        "follows losses tells of the records, so declare a learning rate that "
                        "changes, watch(..., lr=...) as a list or a function of the step, and keep "
                        "other numbers of the optimizer as they are",
                    )
        self._numbers.append(
            [{key: of for key, of in group.items() if key != "params"}
             for group in optimizer.param_groups]
        )  # fmt: skip

    def note_left(self, round: int) -> None:
        """Note the model that a step left behind, for a later round that cannot be done again."""
        self._left[round] = flat(self._parameters)

    def point(self, round: int, released: Sequence[tuple[int, Tensor]]) -> Tensor | str | None:
        """(D,) the model at the start of a round; None where it is not known, or why not.

        Released are (round, gradient (D,)) of every kept round before it, in order.

        Raises:
            ValueError: the round was before the first step that was watched here.
        """
        if round < self._first:
            raise InputError(
                f"round {round} is of an earlier session, whose optimizer is gone; look at rounds "
                f"from {self._first} on, by rounds=range({self._first}, ...)"
            )
        if self._doubt is not None and round > self._doubt[0]:
            return self._doubt[1]
        released = [one for one in released if one[0] >= self._first]
        whole = [number for number, _ in released] == list(range(self._first, round))
        if self._kind is None or not whole or len(self._numbers) < round - self._first:
            return self._left.get(round)
        if self._again is None or self._at > round:
            self._begin()
        for at, gradient in released[self._at - self._first :]:
            self._step(at, gradient)
        return flat(self._copied)

    def _begin(self) -> None:
        self._copied = [of.clone().requires_grad_() for of in self._copies]
        groups = [
            {**numbers, "params": [self._copied[place] for place in places]}
            for numbers, places in zip(self._state["param_groups"], self._members, strict=True)
        ]
        self._again = self._kind(groups)
        self._again.load_state_dict({**self._state, "state": _copied(self._state["state"])})
        self._at = self._first

    def _step(self, number: int, gradient: Tensor) -> None:
        parts = gradient.split([of.numel() for of in self._copied])
        for of, part in zip(self._copied, parts, strict=True):
            of.grad = part.reshape(of.shape).to(of)
        for group, numbers in zip(
            self._again.param_groups, self._numbers[number - self._first], strict=True
        ):
            group.update(numbers)
        self._again.step()
        self._at = number + 1


def _of_trained(optimizer: Any, places: Mapping[int, int]) -> dict[str, Any]:
    """The optimizer's state but for parameters that are frozen, which are not done again."""
    found = optimizer.state_dict()
    groups, kept = [], set[int]()
    for group, said in zip(optimizer.param_groups, found["param_groups"], strict=True):
        pairs = zip(group["params"], said["params"], strict=True)
        numbers = [number for of, number in pairs if id(of) in places]
        groups.append({**said, "params": numbers})
        kept.update(numbers)
    state = {number: of for number, of in found["state"].items() if number in kept}
    return {**found, "state": _copied(state), "param_groups": groups}


def _kind(optimizer: Any) -> Any:
    """The class of torch that an optimizer is, or is derived from."""
    every = type(optimizer).__mro__
    return next(
        (of for of in every
         if of.__module__.startswith("torch.optim.") and of is not torch.optim.Optimizer),
        None,
    )  # fmt: skip


def flat(tensors: Sequence[Tensor]) -> Tensor:
    """(D,) a copy of tensors on the host, end to end."""
    return torch.cat([of.detach().reshape(-1) for of in tensors]).cpu().clone()


def _copied(state: Any) -> Any:
    if isinstance(state, Tensor):
        return state.detach().clone()
    if isinstance(state, dict):
        return {key: _copied(of) for key, of in state.items()}
    return state
