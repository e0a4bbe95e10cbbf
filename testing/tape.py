"""What a training shows while it runs, in its order: what leaves, and what is said beside that."""

from __future__ import annotations

import contextlib
import logging
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

from ..runs.recorder import record as opening
from ..runs.recorder.keeping import plain
from ..runs.recorder.recorder import Recorder

Values = dict[str, NDArray[Any] | str]  # numbers, and the text of all else, by their places
_SAID = ("kind", "to", "noise", "of", "scale")  # in the line of a release
_DEEP = 8  # levels of what is looked into


def _walk(value: Any, visit: Callable[[str, Any], Any], at: str = "", deep: int = 0) -> Any:
    """The value with each leaf as `visit` gives it; containers and modules stay what they are."""
    if isinstance(value, nn.Module):
        _walk(dict(value.state_dict()), visit, at, deep + 1)
    elif isinstance(value, dict):
        for key, of in list(value.items()):
            value[key] = _walk(of, visit, f"{at}.{key}" if at else str(key), deep + 1)
    elif isinstance(value, list | tuple):
        parts = [_walk(of, visit, f"{at}[{i}]", deep + 1) for i, of in enumerate(value)]
        if type(value) is tuple:
            return tuple(parts)
        if isinstance(value, list):
            value[:] = parts
    elif hasattr(value, "__dict__") and not callable(value) and not isinstance(value, Tensor):
        if deep < _DEEP:
            _walk(dict(vars(value)), visit, at, deep + 1)
    else:
        return visit(at, value)
    return value


def leaves(value: Any) -> Values:
    """Numbers as arrays, and all else as its text, by place."""
    found: Values = {}

    def visit(at: str, leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            told = leaf.detach().cpu()
            found[at] = (told.float() if told.dtype is torch.bfloat16 else told).clone().numpy()
        elif type(leaf) in (int, float) or isinstance(leaf, np.ndarray | np.generic):
            found[at] = np.array(leaf)
        elif isinstance(leaf, bool | str | bytes | complex | None):
            found[at] = repr(leaf)
        else:  # a text with an address in it would never come twice
            found[at] = type(leaf).__name__
        return leaf

    _walk(value, visit)
    return found


def _put(value: Any, numbers: Values) -> Any:
    """The value with these numbers in it, in place where it can hold them."""

    def visit(at: str, leaf: Any) -> Any:
        of = numbers[at]
        if not isinstance(of, np.ndarray):
            return leaf
        if isinstance(leaf, Tensor):
            leaf.data.copy_(torch.from_numpy(of))
        elif isinstance(leaf, np.ndarray):
            if not leaf.flags.writeable:
                return of
            leaf[...] = of
        else:
            return type(leaf)(of[()])
        return leaf

    return _walk(value, visit)


def differing(one: Values, other: Values) -> str | None:
    """What differs first between two values, in words; None where they are equal."""
    for at in {**one, **other}:
        a, b = one.get(at), other.get(at)
        if a is None or b is None:
            return f"{at or 'a value'} is there in one alone"
        if not _equal(a, b):
            return f"{at + ' ' if at else ''}was {_shown(a)} and became {_shown(b)}"
    return None


def _equal(one: NDArray[Any] | str, other: NDArray[Any] | str) -> bool:
    if isinstance(one, str) or isinstance(other, str):
        return isinstance(one, str) and isinstance(other, str) and one == other
    same = one.dtype == other.dtype and one.shape == other.shape
    return same and one.tobytes() == other.tobytes()


def _shown(value: NDArray[Any] | str) -> str:
    if isinstance(value, str) or value.size == 1:
        return f"{value if isinstance(value, str) else value.item()!s:.60}"
    return f"{np.array2string(value.ravel()[:3], precision=6)[:-1]}, ...]"


class Event(NamedTuple):
    """One thing that a training shows."""

    name: str
    values: Values
    release: bool  # whether it leaves under noise; anything else must not move
    bound: float | None = None  # on what one record adds to it, where its line says so


class Tape:
    """What a training shows.

    Args:
        first: the run whose releases stand in for those of this one.
        by_hand: whether releases are named, so that an optimiser's gradients are none.

    Attributes:
        events: in their order.
        returned: what the training returns.
    """

    def __init__(self, first: Tape | None, by_hand: bool) -> None:
        self.events, self.returned = list[Event](), Values()
        self._first, self._by_hand = first, by_hand
        self._steps, self._text = 0, ""

    @property
    def releases(self) -> list[Event]:
        """What leaves under noise."""
        return [one for one in self.events if one.release]

    def public(self, name: str, value: Any) -> None:
        """Note what must not move."""
        self.events.append(Event(name, leaves(value), release=False))

    def release(self, name: str, value: Any, bound: float | None = None) -> Any:
        """Note what leaves; what the training goes on with."""
        values, at = leaves(value), len(self.releases)
        self.events.append(Event(name, values, release=True, bound=bound))
        others = self._first.releases[at : at + 1] if self._first else []
        if others and shapes(others[0]) == shapes(self.events[-1]):
            return _put(value, others[0].values)
        return value

    def write(self, text: str) -> None:
        """Note what is printed, by lines."""
        *lines, self._text = (self._text + text).split("\n")
        for line in lines:
            self.public("a line that is printed", line)

    def flush(self) -> None:
        """Nothing is held back."""

    def _before_step(self, optimizer: Optimizer, *_: Any) -> None:
        self._steps += 1
        held = list[Tensor]()
        for group in optimizer.param_groups:
            held += [one.grad for one in group["params"] if one.grad is not None]
            settings = {key: of for key, of in group.items() if key != "params"}
            self.public(f"a setting of the optimiser in step {self._steps}:", settings)
        if not self._by_hand:
            given = {f"parameter {number}": of for number, of in enumerate(held)}
            self.release(f"the gradient of step {self._steps}", given)

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Listen to optimisers, recorders, the standard output and the log."""
        write, path_of = Recorder.release, opening._path

        def release(recorder: Recorder, round: int, **of: Any) -> None:
            write(recorder, round, **of)
            line = {key: plain(of[key]) for key in _SAID if key in of}
            self.public(f"in the line of round {round}", line)
            if of.get("value") is not None:
                said, kind = recorder.header.said, str(of["kind"])
                clip, scale = (said(one, kind, round - 1) for one in ("clip", "scale"))
                scale = of.get("scale", scale or 1.0)
                bound = None if of.get("of") is not None or clip is None else clip * abs(scale)
                self.release(f"the release of round {round}", of["value"], bound)

        def path(given: Path, *of: Any, **how: Any) -> Path:
            return path_of(Path(folder()) / given.name, *of, **how)  # logs of replays are not kept

        handler = logging.Handler()
        handler.emit = lambda line: self.public("a line of the log", line.getMessage())  # type: ignore[method-assign,assignment]
        with (
            contextlib.ExitStack() as held,
            mock.patch.object(Recorder, "release", release),
            mock.patch.object(opening, "_path", path),
            contextlib.redirect_stdout(self),  # type: ignore[type-var]
        ):
            folder = cache(lambda: held.enter_context(tempfile.TemporaryDirectory()))
            held.callback(register_optimizer_step_pre_hook(self._before_step).remove)
            held.callback(logging.getLogger().removeHandler, handler)
            logging.getLogger().addHandler(handler)
            held.callback(_tapes.remove, self)
            _tapes.append(self)
            yield


def shapes(event: Event) -> Values:
    """What of a release must not move: which numbers there are, and what is no number."""
    return {
        at: of if isinstance(of, str) else f"of shape {of.shape}" for at, of in event.values.items()
    }


_tapes: list[Tape] = []  # at most one


def ulp(x: NDArray[Any]) -> float:
    """The unit in the last place of floats of its kind; 0 of whole numbers."""
    return float(np.finfo(x.dtype).eps) if x.dtype.kind == "f" else 0.0


def differs(what: str, one: Values, other: Values) -> str:
    """What of a thing differs first, in words; empty where nothing does."""
    found = differing(one, other)
    return f"{what} {found}" if found else ""


def moved_first(first: Tape, tape: Tape, *, releases: bool = False) -> str:
    """What moved first beside releases, or with them; empty where nothing did."""
    for one, other in zip(first.events, tape.events, strict=False):
        if one.name != other.name:
            return f"{other.name} came in place of {one.name}"
        values = [of.values if releases or not one.release else shapes(of) for of in (one, other)]
        if found := differs(one.name, *values):
            return found
    if (n := len(first.events)) != (m := len(tape.events)):
        last = max(first.events, tape.events, key=len)[min(n, m)].name
        return f"{n} things were shown and became {m}, as {last} came in one alone"
    return ""


def released(value: Any) -> Any:
    """Say that something leaves a training, which goes on with what this returns.

    Outside of a replay that is the value. In a replay it is what left in the first run, in the same
    object where that can hold numbers: so what a record adds is compared by itself, in each step.

    Args:
        value: a number, array, tensor or module, or a list, tuple or dict of them.

    >>> released(0.5)
    0.5
    """
    for tape in _tapes:
        value = tape.release(f"release {len(tape.releases) + 1}", value)
    return value
