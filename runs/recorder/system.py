"""What a recorder asks of an adapter that listens to a library."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from numpy.typing import ArrayLike


class System(Protocol):
    """Training code that a recorder listens to, by an adapter for its library."""

    @property
    def settings(self) -> Mapping[str, Any]:
        """What the library says of itself: name, agents, agent, clip, rate, sampler, unit."""
        ...

    def attach(self, recorder: Any) -> None:
        """Call the recorder before each release from here on."""
        ...

    def detach(self) -> None:
        """Leave the library as it was."""
        ...


@runtime_checkable
class Observing(System, Protocol):
    """A system that sees gradients: it can be held against its lines, and audited by canaries.

    Attributes:
        rehearsal: where the log goes in place of what `record` says, where the training is one of
            an audit, of which nothing is released or kept; else None.
        ratios: whether scores are log-likelihood ratios at what the log claims.
    """

    rehearsal: Path | None
    ratios: bool

    def gradients(self) -> Callable[..., Any]:
        """Per-example gradients, as `conformance` takes them."""
        ...

    def points(self, round: int, agent: int, released: Sequence[Any]) -> Any:
        """Where gradients of a round should have been taken, as `conformance` asks for it."""
        ...

    def scores(self, planted: Any) -> ArrayLike:
        """(m,) one a canary of the data that were trained on, higher if it is in."""
        ...
