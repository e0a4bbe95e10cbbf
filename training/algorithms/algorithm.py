"""Algorithm: what the registry knows of one, its two forms, and how its numbers are bound."""

from __future__ import annotations

import enum
import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from ...privacy.errors import InputError, InputTypeError
from ..graphs.graph import Topology
from ..graphs.mixing import Sums


class Form(enum.StrEnum):
    """Which of the two forms of an algorithm is meant: as published, or repaired to be proven."""

    REPAIRED = "repaired"
    PUBLISHED = "published"


@dataclass(frozen=True, kw_only=True, slots=True)
class NoSettings:
    """An algorithm without hyper-parameters of its own."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Algorithm:
    """An algorithm.

    Attributes:
        name: its name in a run file.
        init: `init(round, *, hyper-parameters) -> State`.
        step: `step(state, round, *, hyper-parameters) -> State`; the field `x` holds the models.
        settings: frozen dataclass of its own hyper-parameters, with defaults.
        private: whether it clips and adds noise at all.
        prepare: `prepare(settings, *, graph, rounds, clip_norm) -> {name: public value}`: what the
            step takes by name, like its hyper-parameters, but depends on the run: schedules,
            factors of a covariance. Nothing here may depend on data.
        weights: which sums of the mixing weights must be 1; both keep the mean of the models.
        blocks: of a point: 1 for parameters alone, 2 where a task adds dual variables.
    """

    name: str
    init: Callable[..., Any]
    step: Callable[..., Any]
    settings: type = NoSettings
    private: bool = True
    prepare: Callable[..., dict[str, object]] | None = None
    weights: Sums = Sums.BOTH
    blocks: int = 1

    @property
    def needs_records(self) -> bool:
        """Whether the start draws a batch whose rate depends on how many records an agent has."""
        return "records" in inspect.signature(self.init).parameters


class Bound(NamedTuple):
    """`init(round)` and `step(state, round)` with every number given.

    `weights` says which sums of the mixing weights must be 1, `blocks` how many a point has where
    that is known beforehand.
    """

    init: Callable[..., Any]
    step: Callable[..., Any]
    weights: Sums = Sums.BOTH
    blocks: int | None = None


def check_weights(graph: Topology, needed: Sums) -> None:
    """Refuse a graph whose weights would lose what the algorithm relies on.

    Raises:
        ValueError: other sums than those needed are 1.
    """
    if graph.sums.serve(needed):
        return
    remedy = {
        Sums.BOTH: 'give "edges" in place of weights or arcs, or use dyn-d2p, whose push-sum needs '
        "columns alone",
        Sums.COLUMNS: 'give "arcs" in place of weights',
        Sums.ROWS: "divide each row of the weights by its sum",
    }[needed]
    raise InputError(
        f"of graph {graph.name!r} only the {graph.sums} of the weights sum to 1, but the {needed} "
        f"must: mixing would move the mean of the models; {remedy}"
    )


def bind(
    algorithm: Algorithm,
    settings: Any,
    *,
    form: Form = Form.REPAIRED,
    learning_rate: float,
    clip_norm: float | None,
    noise_std: float,
    batch_size: float,
    graph: Topology | None = None,
    rounds: int | None = None,
    records: float | None = None,
) -> Bound:
    """Give a start and a step their numbers.

    Args:
        algorithm: one of the registry.
        settings: an instance of `algorithm.settings`.
        form: published or repaired.
        learning_rate: step size.
        clip_norm: bound on one example's gradient; None does not clip.
        noise_std: standard deviation of the noise on a sum of clipped gradients.
        batch_size: public normaliser of a batch's sum.
        graph: of the run; with `rounds` needed where the algorithm prepares something for them.
        rounds: of the run.
        records: public number of records of an average agent; needed where the start draws a batch
            of an expected size.

    Raises:
        TypeError: settings of another algorithm.
        ValueError: a number out of range, or a graph whose weights do not fit the algorithm.
    """
    if not isinstance(settings, algorithm.settings):
        raise InputTypeError(
            f"settings of {algorithm.name!r} must be {algorithm.settings.__name__}, not "
            f"{type(settings).__name__}"
        )
    if not batch_size > 0:
        raise InputError(f"batch_size={batch_size} must be positive")
    if not noise_std >= 0:
        raise InputError(f"noise_std={noise_std} must be at least 0")
    numbers = {
        "form": form,
        "learning_rate": learning_rate,
        "clip_norm": clip_norm,
        "noise_std": noise_std,
        "batch_size": batch_size,
        **{field.name: getattr(settings, field.name) for field in fields(algorithm.settings)},
    }
    if graph is not None:
        check_weights(graph, algorithm.weights)
    if algorithm.needs_records:
        if records is None:
            raise InputError(
                f"algorithm {algorithm.name!r} needs records, the public number of records of an "
                "average agent; give it"
            )
        numbers["records"] = records
    at_start = inspect.signature(algorithm.init).parameters
    first = {name: value for name, value in numbers.items() if name in at_start}
    wanted = inspect.signature(algorithm.step).parameters
    given = {name: value for name, value in numbers.items() if name in wanted}
    if algorithm.prepare is not None:
        if graph is None or rounds is None:
            raise InputError(f"algorithm {algorithm.name!r} needs graph and rounds; give both")
        prepared = algorithm.prepare(settings, graph=graph, rounds=rounds, clip_norm=clip_norm)
        foreign = sorted(prepared.keys() - wanted.keys() | prepared.keys() & numbers.keys())
        if foreign:
            raise InputTypeError(
                f"prepare of {algorithm.name!r} gives {foreign[0]!r}, which its step does not take "
                "or which has a value already; rename it"
            )
        given |= prepared
    return Bound(
        functools.partial(algorithm.init, **first) if first else algorithm.init,
        functools.partial(algorithm.step, **given),
        algorithm.weights,
        algorithm.blocks,
    )
