"""Where gradients should have been taken: the optimizer's steps done again on what was released.

The model of a round is a function of the initial model and of the gradients released before it, if
nothing else moves it. So torch's own optimizer of the same kind does the steps again, on copies,
with the numbers (learning rates and so on) that each step had. An optimizer that is not torch's, or
a log of which some rounds were not kept, is held against the model that the last step left behind.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ...privacy.errors import InputError

__all__ = ["Replay"]


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
        self._places = {id(of): place for place, of in enumerate(parameters)}
        self._members = [
            [self._places[id(of)] for of in group["params"] if id(of) in self._places]
            for group in optimizer.param_groups
        ]
        self._state = _of_trained(optimizer, self._places)
        self._numbers: list[list[dict[str, Any]]] = []
        self._left: dict[int, Tensor] = {first: _flat(parameters)}
        self._again: Any = None
        self._at = first

    def note(self, optimizer: Any) -> None:
        """Note the numbers of the step that is about to be taken."""
        self._numbers.append(
            [{key: of for key, of in group.items() if key != "params"}
             for group in optimizer.param_groups]
        )  # fmt: skip

    def note_left(self, round: int) -> None:
        """Note the model that a step left behind, for a later round that cannot be done again."""
        self._left[round] = _flat(self._parameters)

    def point(self, round: int, released: Sequence[tuple[int, Tensor]]) -> Tensor | None:
        """(D,) the model at the start of a round; None where it is not known.

        Args:
            released: (round, gradient (D,)) of every kept round before it, in order.

        Raises:
            ValueError: the round was before the first step that was watched here.
        """
        if round < self._first:
            raise InputError(
                f"round {round} is of an earlier session, whose optimizer is gone; look at rounds "
                f"from {self._first} on, by rounds=range({self._first}, ...)"
            )
        released = [one for one in released if one[0] >= self._first]
        whole = [number for number, _ in released] == list(range(self._first, round))
        if self._kind is None or not whole or len(self._numbers) < round - self._first:
            return self._left.get(round)
        if self._again is None or self._at > round:
            self._begin()
        for number, gradient in released[self._at - self._first :]:
            self._step(number, gradient)
        return _flat(self._copied)

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


def _flat(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([of.detach().reshape(-1) for of in tensors]).cpu().clone()


def _copied(state: Any) -> Any:
    if isinstance(state, Tensor):
        return state.detach().clone()
    if isinstance(state, dict):
        return {key: _copied(of) for key, of in state.items()}
    return state
