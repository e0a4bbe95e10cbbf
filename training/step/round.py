"""The operations that a step of an algorithm may use.

A step is written once, against `Round`. Carried out on tensors it trains; on unit sources its
messages and end states come out as rows over gradients and noise. Every operation is noted in the
script of the round, and a round that trains follows the script of its trace. What a step does to a
value other than the operations below could not be traced, so it is refused in both cases.

    A agents   D parameters   E directed edges, self-loops included, sorted by (receiver, sender)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TypeVar, overload

from torch import Tensor

from ...privacy.errors import UndeclaredOperation
from .handles import Agents, Edges, Handle, Server, argument, handle, once, raw, shown
from .operations import OPERATIONS, Coef, Door, NoiseWatch, Operations, Readers
from .script import Script, check_memory, numbers_of
from .values import Batch, Cohort, Value, foreign_weights, unusual

V = TypeVar("V", Agents, Edges, Server)
P = TypeVar("P", Agents, Edges)


class Round:
    """One round, as a step sees it. Everything but the values is public."""

    __slots__ = ("_active", "_door", "_script", "_watch", "_weights")

    def __init__(
        self, operations: Operations, script: Script, watch: NoiseWatch | None = None
    ) -> None:
        _DOOR.__set__(self, Door(operations))
        _WATCH.__set__(self, watch)
        _SCRIPT.__set__(self, script)
        table = operations.weight_table
        _WEIGHTS.__set__(self, handle(operations.weights, script, "weights", table))
        present = operations.active_table
        _ACTIVE.__set__(self, handle(operations.active, script, "active", present))

    @property
    def agents(self) -> int:
        """The number of agents, A."""
        return _DOOR.__get__(self).operations.agents

    @property
    def weights(self) -> Edges:
        """(E, 1) the mixing weights; `round.weights.public()` is their table."""
        return _WEIGHTS.__get__(self)

    @property
    def active(self) -> Agents:
        """(A, 1) 1 for each agent that takes part in the round and 0 for an absent one; public.

        An absent agent draws, computes and sends nothing, makes no noise, and keeps its state
        whatever the step returns. `round.active.public()` is the table.
        """
        return _ACTIVE.__get__(self)

    @property
    def index(self) -> int:
        """The number of the round; a step that reads it is traced round by round."""
        return _DOOR.__get__(self).operations.index

    def initial(self, *, block: int = 0) -> Agents:
        """(A, D) the public initial model, equal on all agents; a block of it where it has some."""
        return _do(self, "initial", block=block)

    def of_agents(self, table: Tensor) -> Agents:
        """The rows of a public table (A, w), one an agent, such as step sizes of their own.

        A value that is scaled by it has a factor for each agent, wherever the agent runs. With
        (A, D) it is a value itself: a start, an addend, a message; everybody knows its rows.
        """
        return _with_table(self, "of_agents", table)

    def of_edges(self, table: Tensor) -> Edges:
        """The rows of a public table (E, w), one an edge, such as weights of the step's own.

        Edges are sorted by (receiver, sender), as the rows of `round.weights.public()` are.
        """
        return _with_table(self, "of_edges", table)

    def public(
        self, seed: int, *, kind: str = "uniform", same: bool = False, block: int = 0
    ) -> Agents:
        """(A, D) random numbers that everybody knows, new ones in every round and at every call.

        Each agent has a row of its own, or all have the `same`: uniform in [0, 1), or standard
        "normal". The same seed gives the same numbers in every run, on every device. They are for
        masks and for rounding at random; as noise they hide nothing.

        Raises:
            ValueError: a seed outside [0, 2^64), or another kind.
            TypeError: a seed that is no integer.
        """
        return _do(self, "public", seed, kind=kind, same=same, block=block)

    def draw(self, sampling_rate: float | None = None, *, per: str = "record") -> Batch:
        """Draw a secret Poisson batch on every agent, at the run's rate unless one is given.

        With per="user" each user is drawn on its own, with all of its records.
        """
        return _do(self, "draw", sampling_rate=sampling_rate, **unusual(per))

    @overload
    def clipped_sums(
        self,
        *points: P,
        batch: Batch,
        coefs: Sequence[Coef] = ...,
        clip_norm: float | tuple[float, ...] | None,
        per: str = ...,
        scale: Agents | None = ...,
        parts: Sequence[int] | None = ...,
        quantile: float | None = ...,
    ) -> P: ...

    @overload
    def clipped_sums(
        self,
        *points: tuple[P, ...],
        batch: Batch,
        coefs: Sequence[Coef] = ...,
        clip_norm: float | tuple[float, ...] | None,
        per: str = ...,
        scale: Agents | None = ...,
        parts: Sequence[int] | None = ...,
        quantile: float | None = ...,
    ) -> tuple[P, ...]: ...

    def clipped_sums(
        self,
        *points: Any,
        batch: Batch,
        coefs: Sequence[Coef] = (1.0,),
        clip_norm: float | tuple[float, ...] | None,
        per: str = "record",
        scale: Agents | None = None,
        parts: Sequence[int] | None = None,
        quantile: float | None = None,
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
            clip_norm: bound on one example's vector; without one its influence has no bound. A
                tuple has one for each of `parts`.
            per: "user" clips the sum of each user's vectors in place of each by itself.
            scale: (A, 1) positive numbers that count as seen, by which the holder of a row divides
                its vectors before they are clipped: clip(g / c), within `clip_norm` whatever c is.
            parts: coordinates of consecutive parts of a vector, which are clipped one by one; the
                whole is then within the root of the sum of their squared bounds.
            quantile: share of a batch's vectors that keep their length; longer ones are scaled to
                the norm at that quantile. It follows the data: a record's influence has no bound.

        Raises:
            UndeclaredOperation: a batch of another round, points of several holders or of
                different blocks, or a coefficient that is no public number.
            ValueError: coefficients that are not finite, or not one a point or block.
        """
        how: dict[str, Any] = {"coefs": coefs, "clip_norm": clip_norm, **unusual(per)}
        if scale is not None:
            how["scale"] = scale
        if parts is not None:
            how["parts"] = tuple(parts)
        if quantile is not None:
            how["quantile"] = quantile
        return _do(self, "clipped_sums", *points, batch=batch, **how)

    def count(
        self,
        fn: Callable[..., Tensor | bool | float],
        point: Agents,
        *,
        batch: Batch,
        of: str = "loss",
        released: Sequence[Agents] = (),
    ) -> Agents:
        """(A, 1) how many records of the agent's batch the function says yes to.

            sum over b in batch of  min(max(fn(of b), 0), 1)

        A record moves it by at most 1. What is no finite number counts as 0.

        Args:
            fn: of one record: its "loss" at `point`, the "norm" of its gradient, or its "outputs",
                (classes,), and target; and then the agent's row of each of `released`.
            point: the models; they count as seen.
            batch: of this round.
            of: what `fn` is given of a record.
            released: values that count as seen.

        Raises:
            UndeclaredOperation: a batch of another round, or a function that carries something.
            ValueError: another `of`, or a function that does not return one number.
        """
        pure = _SCRIPT.__get__(self).purified(fn, "count")
        return _do(self, "count", pure, point, batch=batch, of=of, released=released)

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
        return _do(
            self, "clipped_mean", point, batch=batch, batch_size=batch_size, clip_norm=clip_norm
        )

    def local_update(
        self,
        point: Agents,
        *,
        steps: int,
        learning_rate: float,
        batch: Batch | tuple[Batch, ...],
        clip_norm: float | None,
        momentum: float = 0.0,
        proximal: float = 0.0,
    ) -> Agents:
        """What K gradient steps of every agent on its own data change, clipped as one vector.

            v <- momentum v + (mean gradient of the batch at x_k) + proximal (x_k - x_0)
            x_k+1 <- x_k - learning_rate v            result: clip(x_K - x_0, clip_norm)

        Each gradient is a mean without clipping, 0 where no record was drawn. The start counts as
        seen, what lies between does not. One record moves the result by up to 2 `clip_norm`, all
        data of the agent (unit "agent") by `clip_norm`.

        Args:
            point: x_0, of a task without dual variables.
            steps: K, from 1 to 10,000.
            batch: one for all steps, a tuple of K that nothing else in the round takes, or
                `overhear.training.ALL`, the agent's whole data.
            clip_norm: bound on the change; None does not clip.
            momentum: in [0, 1).
            proximal: pull towards the start (FedProx), at least 0.

        Raises:
            UndeclaredOperation: a batch of another round, or a value of another holder.
            ValueError: a number out of range, or another number of batches than of steps.
            TypeError: what is no number.
        """
        how = {"learning_rate": learning_rate, "momentum": momentum, "proximal": proximal}
        return _do(
            self, "local_update", point, steps=steps, batch=batch, clip_norm=clip_norm, **how
        )

    def cohort(self, rate: float, *, scheme: str = "poisson") -> Cohort:
        """Who takes part, for `average`: each agent by a secret coin of probability `rate`.

        Or as many as `rate` is of all: "fixed", drawn anew each round; "shuffled" and "cyclic", the
        next of an order in which each is once, which is another one or the same every epoch.
        """
        return _do(self, "cohort", rate=rate, scheme=scheme)

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
        return _do(self, "noise", like, std=std, factor=factor, known_to=known_to)

    def remembered(
        self, fresh: Agents, past: tuple[Agents, ...], *, row: Sequence[float] | Tensor
    ) -> tuple[Agents, tuple[Agents, ...]]:
        """Noise that takes back some of what earlier rounds added, and the history after it.

        n_t = (fresh - sum over j of row[j] past[j - 1]) / row[0]: row t of a lower triangular
        strategy, from its diagonal backwards. `past` is a field of the state that is a tuple.
        """
        numbers = numbers_of(row)
        check_memory(fresh, past, Agents, numbers)
        noise = _do(self, "remembered", fresh, *past[: len(numbers) - 1], row=numbers)
        return noise, (noise, *past)[: len(past)]

    def broadcast(self, value: Agents, *, kind: str) -> Edges:
        """Send every agent's row along its out-edges; a self-loop does not cross a link."""
        return _do(self, "broadcast", value, kind=_SCRIPT.__get__(self).named(kind))

    def reply(self, value: Edges, *, kind: str) -> Edges:
        """Send the value held by d for the edge m -> d back to m; needs a symmetric graph."""
        return _do(self, "reply", value, kind=_SCRIPT.__get__(self).named(kind))

    def mix(self, value: Agents, *, kind: str) -> Agents:
        """Broadcast, and sum what arrives with the mixing weights."""
        return _do(self, "mix", value, kind=_SCRIPT.__get__(self).named(kind))

    def upload(self, value: Agents, *, kind: str, cohort: None = None) -> Server:
        """Send every agent's row to the server, which takes the mean of those that take part.

        It takes no cohort: on a link one sees who sends.
        """
        public: dict[str, Any] = {} if cohort is None else {"cohort": cohort}
        return _do(self, "upload", value, kind=_SCRIPT.__get__(self).named(kind), **public)

    def download(self, value: Server, *, kind: str) -> Agents:
        """Send the server's row to every agent."""
        return _do(self, "download", value, kind=_SCRIPT.__get__(self).named(kind))

    def average(self, value: Agents, *, cohort: Cohort | None = None) -> Server:
        """The mean of the rows of those that take part, by a trusted sum: nobody sees the rows.

        What the server does with the mean is seen by nobody either, until it is downloaded.

        With a cohort the value holds clipped contributions of one batch alone, and the sum of its
        members' rows is divided by rate times `round.agents`: how many took part stays secret.
        """
        public: dict[str, Any] = {} if cohort is None else {"cohort": cohort}
        return _do(self, "average", value, **public)

    def sum_in(self, value: Edges, *, weights: Edges | None = None) -> Agents:
        """Each holder's sum over its in-edges, times public (E, 1) weights."""
        if weights is not None and not isinstance(weights, Handle):
            _SCRIPT.__get__(self).refuse(UndeclaredOperation(foreign_weights(weights)))
        return _do(self, "sum_in", value, weights=weights)

    def own(self, value: Edges) -> Agents:
        """The rows of the self-loops."""
        return _do(self, "own", value)

    def spread(self, value: Agents) -> Edges:
        """Each holder's row on all its in-edges; nothing is sent."""
        return _do(self, "spread", value)

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
        pure = _SCRIPT.__get__(self).purified(fn, "bounded")
        given = {"released": released, "private": private}
        return _do(self, "bounded", pure, secret, **given, lipschitz=lipschitz, blame=blame)

    def postprocess(
        self, fn: Callable[..., Tensor], *values: Agents | Edges, block: int = 0
    ) -> Agents:
        """A function of values that count as seen by every adversary that may see the result.

        `fn` runs once per agent on its (D,) rows of Agents and (n_i, D) rows of Edges, and returns
        all coordinates of the block that is named.
        """
        pure = _SCRIPT.__get__(self).purified(fn, "postprocess")
        return _do(self, "postprocess", pure, *values, block=block)

    def project(self, value: Agents, *, block: int = 1) -> Agents:
        """The nearest feasible value of a block of the run's task; `value` counts as seen."""
        return _do(self, "project", value, block=block)

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        _refuse(self, f"round.{name} is no operation; there are {', '.join(_PUBLIC)}")

    def __setattr__(self, name: str, value: object) -> NoReturn:
        kept = "a round keeps nothing; carry it in the state that the step returns"
        _refuse(self, f"round.{name} = ...: {kept}")

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        _refuse(self, "a round can be neither copied nor stored")


# The slots are taken off the class, so that no attribute of a round leads to what it works with.
_ACTIVE = Round.__dict__["_active"]
_DOOR = Round.__dict__["_door"]
_SCRIPT = Round.__dict__["_script"]
_WATCH = Round.__dict__["_watch"]
_WEIGHTS = Round.__dict__["_weights"]
for _name in Round.__slots__:
    delattr(Round, _name)
_PUBLIC = [name for name in vars(Round) if not name.startswith("_")]


def _refuse(held: Round, sentence: str) -> NoReturn:
    """Refuse what a step tried with a round, now and at everything that it tries after it."""
    error = UndeclaredOperation(sentence)
    _SCRIPT.__get__(held).refuse(error)
    raise error


def _do(held: Round, operation: str, *values: object, **public: object) -> Any:
    """Note an operation in the script, carry it out, and give the handles of what it made."""
    script: Script = _SCRIPT.__get__(held)
    door: Door = _DOOR.__get__(held)
    watch: NoiseWatch | None = _WATCH.__get__(held)
    try:
        values, public = once(values), {name: once(one) for name, one in public.items()}
        given = {
            name: argument(one, script, operation=operation, name=name)
            for name, one in (*((f"value {i}", v) for i, v in enumerate(values)), *public.items())
        }
        number = script.note(operation, given)
        if watch is not None and OPERATIONS[operation].readers is Readers.RECEIVERS:
            watch.settle(at_end=False)
        taken = {name: raw(one) for name, one in public.items()}
        made = door.do(operation, tuple(map(raw, values)), taken)
        if watch is not None and operation == "noise":
            watch.note(made, std=taken["std"], factor=taken["factor"])
    except Exception as error:
        script.give_up(error)
        raise
    if isinstance(made, tuple):
        return tuple(handle(one, script, (number, i)) for i, one in enumerate(made))
    return handle(made, script, number) if isinstance(made, Value) else made


def _with_table(held: Round, operation: str, table: object) -> Any:
    """A value made of a copy of a public table, which shows its numbers."""
    own = _SCRIPT.__get__(held).copied(table, operation)
    return shown(_do(held, operation, own), own)
