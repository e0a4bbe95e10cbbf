"""Per-example gradients by other means than Opacus': torch.func on the bare model, in float64."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ...privacy.errors import InputError

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
    trained = [names[id(of)] for of in parameters]
    shapes = [of.shape for of in parameters]
    sizes = [of.numel() for of in parameters]

    # One record's loss as a function of the flat parameters.
    def one(point: Tensor, others: dict[str, Tensor], inputs: Tensor, target: Tensor) -> Tensor:
        parts = zip(trained, point.split(sizes), shapes, strict=True)
        values = {**others, **{name: part.view(shape) for name, part, shape in parts}}
        outputs = torch.func.functional_call(network, values, (inputs[None],))
        return loss(outputs, target[None])

    # Its randomness differs, so that dropout is found to be another each time.
    each = torch.func.vmap(torch.func.grad(one), in_dims=(None, None, 0, 0), randomness="different")

    def gradients(point: Tensor, positions: NDArray[np.int64]) -> Tensor:
        if not len(positions):
            return torch.zeros(0, sum(sizes), dtype=torch.float64)
        device = parameters[0].device
        # Each record is collated by itself, so that no other is in it.
        pairs = [_pair(loader.collate_fn([loader.dataset[int(at)]])) for at in positions]
        others = {
            name: (of.detach().double() if of.is_floating_point() else of.detach())
            for name, of in [*network.named_parameters(), *network.named_buffers()]
            if name not in trained
        }
        found = torch.zeros(len(pairs), sum(sizes), dtype=torch.float64)
        for at, inputs, targets in _stacked(pairs):
            x = inputs.double() if inputs.is_floating_point() else inputs
            with _without_hooks_of_opacus(network):
                rows = each(point.double().to(device), others, x.to(device), targets.to(device))
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
        for number, gradient in released[self._at - self._first :]:
            self._step(number, gradient)
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
