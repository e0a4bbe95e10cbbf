"""The operations that a step of an algorithm may use.

A step is written once, against `Round`. Given tensors it trains; given unit sources (`trace.py`)
its messages and end states come out as rows over gradients and noise. What a step does to a value
other than the operations below could not be traced, so it is refused in both cases.

    A agents   D parameters   E directed edges, self-loops included, sorted by (receiver, sender)

Values and their holders: `values.py`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TypeVar, overload

import numpy as np
import torch
from torch import Tensor

from ...privacy.errors import InputError
from ..graphs.graph import Graph
from .values import Agents, Batch, Edges, Server, UndeclaredOperation, check_drawn

__all__ = ["Coef", "P", "Round", "V", "reply_order"]

V = TypeVar("V", Agents, Edges, Server)
P = TypeVar("P", Agents, Edges)
Coef = float | tuple[float, ...]  # of a point, or of each of its blocks


def _no_projection(value: Tensor) -> NoReturn:
    raise UndeclaredOperation(
        f"round.project of a block of {len(value)} coordinates: the run has no task that says what "
        "is feasible; give the setting a task, or use round.postprocess"
    )


class Round(ABC):
    """One round. Attributes that are plain numbers or tensors are public."""

    agents: int
    weights: Edges  # (E, 1) mixing weights, public
    _drawn: list[Batch]
    _projection: Callable[[Tensor], Tensor] = staticmethod(_no_projection)

    @property
    @abstractmethod
    def index(self) -> int:
        """The number of the round; a step that reads it is traced round by round."""

    @abstractmethod
    def initial(self, *, block: int = 0) -> Agents:
        """(A, D) the public initial model, equal on all agents; a block of it where it has some."""

    @abstractmethod
    def of_agents(self, table: Tensor) -> Agents:
        """The rows of a public table (A, w), one an agent, such as step sizes of their own.

        A value that is scaled by it has a factor for each agent, wherever the agent runs.
        """

    @abstractmethod
    def draw(self, sampling_rate: float | None = None) -> Batch:
        """Draw a secret Poisson batch on every agent, at the run's rate unless one is given."""

    @overload
    def clipped_sums(
        self,
        *points: P,
        batch: Batch,
        coefs: Sequence[Coef] = ...,
        clip_norm: float | None,
    ) -> P: ...

    @overload
    def clipped_sums(
        self,
        *points: tuple[P, ...],
        batch: Batch,
        coefs: Sequence[Coef] = ...,
        clip_norm: float | None,
    ) -> tuple[P, ...]: ...

    def clipped_sums(
        self,
        *points: Any,
        batch: Batch,
        coefs: Sequence[Coef] = (1.0,),
        clip_norm: float | None,
    ) -> Any:
        """Sum over the holder's batch of per-example gradients, each clipped.

            sum over b in batch of  clip(sum over k of coefs[k] * gradient of loss_b at points[k])

        The combination over points is clipped as one vector, so a record moves the result by at
        most `clip_norm`, whatever the coefficients. Every point counts as seen.

        A point may be a tuple of blocks (x, y), such as the parameters and the dual variables of
        a min-max task. Then a vector holds the gradients with respect to all blocks and is clipped
        as one; the result is a tuple of its blocks, and values of different blocks never add up.

        Args:
            points: one value or several of one holder, or tuples of them. Row of an edge m -> d:
                gradients on model m of d's batch, computed at and held by d.
            batch: of this round.
            coefs: a public number for each point, or a tuple of one for each of its blocks.
            clip_norm: bound on one example's vector; None does not clip, so one record's influence
                has no bound.

        Raises:
            UndeclaredOperation: a batch of another round, points of several holders or of
                different blocks, or a coefficient that is no public number.
            ValueError: coefficients that are not finite, or not one a point or block.
        """
        check_drawn(batch, self._drawn)
        blocks = _split_points(points, coefs)
        sums = self._clipped_sums(blocks, batch=batch, coefs=coefs, clip_norm=clip_norm)
        return sums if isinstance(points[0], tuple) else sums[0]

    @abstractmethod
    def _clipped_sums(
        self,
        points: Sequence[tuple[P, ...]],
        *,
        batch: Batch,
        coefs: Sequence[Coef],
        clip_norm: float | None,
    ) -> tuple[P, ...]:
        """`clipped_sums` after the checks that both kinds of round share."""

    def clipped_mean(
        self, point: P, *, batch: Batch, batch_size: float, clip_norm: float | None
    ) -> P:
        """Mean gradient of the holder's batch, clipped as one vector.

            clip(1/batch_size sum over b in batch of gradient of loss_b at point)

        A record that joins or leaves the batch can turn the clipped vector round, so it moves the
        result by up to 2 `clip_norm`, whatever the batch's size.

        Args:
            point: as of `clipped_sums`; it counts as seen.
            batch: of this round.
            batch_size: public normaliser, the expected size: the real one is secret.
            clip_norm: bound on the mean's norm; None does not clip.

        Raises:
            UndeclaredOperation: a batch of another round, or a value of another holder.
            ValueError: a batch_size that is not a positive number.
        """
        check_drawn(batch, self._drawn)
        if not 0 < batch_size < math.inf:
            raise InputError(f"batch_size={batch_size} must be a positive number")
        ((only,),) = _split_points((point,), (1.0,))
        return self._clipped_mean(only, batch=batch, batch_size=batch_size, clip_norm=clip_norm)

    @abstractmethod
    def _clipped_mean(
        self, point: P, *, batch: Batch, batch_size: float, clip_norm: float | None
    ) -> P:
        """`clipped_mean` after the checks that both kinds of round share."""

    @abstractmethod
    def noise(
        self,
        like: V,
        *,
        std: float,
        factor: Tensor | None = None,
        known_to: Sequence[frozenset[int]] | None = None,
    ) -> V:
        """Gaussian noise of standard deviation `std` per coordinate, one source a row of `like`.

        With `factor` (rows, sources) the noise is `std * factor @ z`. A source is known to the
        agents whose rows it enters, unless `known_to` names the agents for each source; noise that
        the server makes is known to no agent.
        """

    @abstractmethod
    def broadcast(self, value: Agents, *, kind: str) -> Edges:
        """Send every agent's row along its out-edges; a self-loop does not cross a link."""

    @abstractmethod
    def reply(self, value: Edges, *, kind: str) -> Edges:
        """Send the value held by d for the edge m -> d back to m; needs a symmetric graph."""

    def mix(self, value: Agents, *, kind: str) -> Agents:
        """Broadcast, and sum what arrives with the mixing weights."""
        return self.sum_in(self.broadcast(value, kind=kind), weights=self.weights)

    @abstractmethod
    def upload(self, value: Agents, *, kind: str) -> Server:
        """Send every agent's row to the server, which takes their mean."""

    @abstractmethod
    def download(self, value: Server, *, kind: str) -> Agents:
        """Send the server's row to every agent."""

    @abstractmethod
    def average(self, value: Agents) -> Server:
        """The mean of the agents' rows by a trusted sum: nobody sees the rows.

        What the server does with the mean is seen by nobody either, until it is downloaded.
        """

    @abstractmethod
    def sum_in(self, value: Edges, *, weights: Edges | None = None) -> Agents:
        """Each holder's sum over its in-edges, times public (E, 1) weights."""

    @abstractmethod
    def own(self, value: Edges) -> Agents:
        """The rows of the self-loops."""

    @abstractmethod
    def spread(self, value: Agents) -> Edges:
        """Each holder's row on all its in-edges; nothing is sent."""

    @abstractmethod
    def bounded(
        self,
        fn: Callable[..., Tensor],
        secret: Agents,
        *,
        released: Sequence[Edges] = (),
        private: Sequence[Agents] = (),
        lipschitz: float,
        blame: str,
    ) -> Agents:
        """A non-linear function of a secret, as a new contribution of the secret's owner.

        `fn(secret (D,), *released (n_i - 1, .), *private (D,))` runs once per agent. `released`
        are the rows that other agents sent, so they count as seen; `private` arguments are held
        fixed, although they are not released. The bound is lipschitz times the bound of the
        secret. The guarantee becomes heuristic and says `blame`.
        """

    @abstractmethod
    def postprocess(
        self, fn: Callable[..., Tensor], *values: Agents | Edges, block: int = 0
    ) -> Agents:
        """A function of values that count as seen by every adversary that may see the result.

        `fn` runs once per agent on its (D,) rows of Agents and (n_i, D) rows of Edges, and returns
        all coordinates of the block that is named.
        """

    def project(self, value: Agents, *, block: int = 1) -> Agents:
        """The nearest feasible value of a block of the run's task; `value` counts as seen."""
        return self.postprocess(self._projection, value, block=block)


def reply_order(graph: Graph) -> Tensor:
    """(E,) for each edge d -> m the position of the edge m -> d, along which a reply came.

    Raises:
        ValueError: some link has no way back.
    """
    if not graph.symmetric:
        raise InputError(f"graph {graph.name!r} is directed: round.reply needs links both ways")
    return torch.from_numpy(np.lexsort((graph.receivers, graph.senders)))


def _split_points(points: Sequence[Any], coefs: Sequence[object]) -> list[tuple[Any, ...]]:
    """Points as tuples of blocks, one block where a point is a value, once they are checked.

    Raises:
        UndeclaredOperation: no point, holders or numbers of blocks that differ, or a coefficient
            that is no number.
        ValueError: a coefficient that is not finite, or another count than of points or blocks.
    """
    split = [point if isinstance(point, tuple) else (point,) for point in points]
    kinds = sorted({type(value).__name__ for point in split for value in point})
    if kinds not in (["Agents"], ["Edges"]):
        raise UndeclaredOperation(
            f"round.clipped_sums at points of {', '.join(kinds) or 'no value'}: give Agents, or "
            "Edges, for every point; a value of another holder has to be sent first"
        )
    if len({len(point) if isinstance(point, tuple) else None for point in points}) > 1:
        raise UndeclaredOperation(
            "round.clipped_sums at points of different blocks: every point has the same blocks"
        )
    for coef in coefs:
        numbers: tuple[Any, ...] = coef if isinstance(coef, tuple) else (coef,)
        wrong = [type(number).__name__ for number in numbers if not isinstance(number, int | float)]
        if wrong:
            raise UndeclaredOperation(
                f"round.clipped_sums with a coefficient of {wrong[0]}: coefs are public numbers"
            )
        if not all(map(math.isfinite, numbers)):
            raise InputError(f"coefs={tuple(coefs)} must be finite; drop the point instead")
        if isinstance(coef, tuple) and split and len(coef) != len(split[0]):
            raise InputError(
                f"coefs={tuple(coefs)} for points of {len(split[0])} blocks: give one number for "
                "each block, or one for all of them"
            )
    if len(coefs) != len(points):
        raise InputError(
            f"coefs={tuple(coefs)} for {len(points)} points: give one number for each point"
        )
    return split
