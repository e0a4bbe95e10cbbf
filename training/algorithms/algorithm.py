"""Algorithm: what the registry knows of one, its two forms, and how its numbers are bound."""

from __future__ import annotations

import enum
import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, get_type_hints

from ...privacy.errors import InputError, InputTypeError, describe, line_of, within
from ...privacy.guarantee import Statement, Status
from ...privacy.published.claim import PublishedClaim
from ..graphs.graph import Topology
from ..graphs.mixing import Sums
from ..step.final_release import FinalRelease, released_fields
from .learning_rates import LearningRates, at_rates

if TYPE_CHECKING:
    from torch import Tensor

# What every step may take by name.
_COMMON = {"form", "settings", "learning_rate", "clip_norm", "noise_std", "batch_size", "records"}
_RESERVED = _COMMON | {"state", "round", "name", "graph", "rounds"}


class Form(enum.StrEnum):
    """Which of the two forms of an algorithm is meant: as published, or repaired to be proven."""

    REPAIRED = "repaired"
    PUBLISHED = "published"


class Clip(enum.StrEnum):
    """What is clipped: each example's gradient, or the mean of a batch."""

    PER_EXAMPLE = "per-example"
    BATCH = "batch"


@dataclass(frozen=True, kw_only=True, slots=True)
class NoSettings:
    """An algorithm without hyper-parameters of its own."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedRun:
    """What a paper's bound may ask about a planned run: public facts alone.

    Attributes:
        settings: the algorithm's own hyper-parameters.
        form: published or repaired.
        graph: of the run.
        noise_multiplier: noise std on a sum of clipped gradients over the clip norm.
        clip_norm: None where nothing is clipped.
        statement: delta, adjacency, unit and accountant of the run.
        rounds, sampling_rate: how often a batch is drawn, and how likely a record is in it.
        records: public number of records of an average agent; None where the run needs none.
        joint_sensitivity: the largest of the adversaries', at noise multiplier 1.
        status: whether that one is proven.
    """

    settings: Any
    form: Form
    graph: Topology
    noise_multiplier: float
    clip_norm: float | None
    statement: Statement
    rounds: int
    sampling_rate: float
    records: float | None
    joint_sensitivity: float
    status: Status


class OwnGradient(NamedTuple):
    """An agent's own gradient, as far as a message of its algorithm shows it.

    Attributes:
        multiple: (D,) float64, `factor` times the sum of the batch's gradients over batch_size.
        factor: a public number.
        noise_share: how much of the declared noise is left in `multiple / factor`.
    """

    multiple: Tensor
    factor: float
    noise_share: float


def other_step(_settings: object) -> str | None:
    """Why steered figures cover no step but those that were checked, whatever its settings."""
    return (
        "its step is not a mixed model less its own gradients: momentum, tracking, compression, "
        "local steps and gradients on others' models are not covered"
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Algorithm:
    """An algorithm: the last thing that its file defines.

    Attributes:
        name: its name in a run file.
        init: `init(round, *, hyper-parameters) -> State`.
        step: `step(state, round, *, hyper-parameters) -> State`.
        settings: frozen dataclass of its own hyper-parameters, with defaults; a function takes some
            by name, or all as `settings`.
        private: whether it clips and adds noise at all.
        private_counterpart: of one that is not private, the name of the one to use in its place.
        prepare: `prepare(*, graph, rounds, hyper-parameters) -> {name: public value}`, which takes
            what it names: what the step takes by name, like its hyper-parameters, but depends on
            the run: schedules, factors of a covariance. `step_sizes` has a learning rate of each
            round, if they differ. Nothing here may depend on data.
        weights: which sums of the mixing weights must be 1; both keep the mean of the models.
        blocks: of a point: 1 for parameters alone, 2 where a task adds dual variables.
        model: the field of the state that holds the models.
        released: the fields of the state that leave their agents after the last round, the models
            among them; all fields of `Agents` where None. What is left out must stay with its
            agent, and is accounted for so.
        published_bound: what its paper claims of a run; None where no bound of its own is known.
        single_gradients: kinds of its messages from which one agent's gradient on one model can
            be had without the others': what an attack can aim at beside the whole view.
        own_gradient: for messages of the kind "momentum" how: `own_gradient(sent, *, before, heard,
            own_weight, agents, settings, form) -> OwnGradient` undoes the step for the sender.
        unsteered: `unsteered(settings)` says why steered figures of recipients do not cover its
            step, in a clause; None where it is a mixed model less its own clipped gradients and
            noise that each agent makes alone.

    Raises:
        ValueError: a private algorithm with a counterpart, or another without one; or a name that
            cannot be shown, a start or a step that is no function, a hyper-parameter whose name
            is taken, or released fields without the models.
    """

    name: str
    init: Callable[..., Any]
    step: Callable[..., Any]
    settings: type = NoSettings
    private: bool = True
    private_counterpart: str | None = None
    prepare: Callable[..., dict[str, object]] | None = None
    weights: Sums = Sums.BOTH
    blocks: int = 1
    model: str = "x"
    released: tuple[str, ...] | None = None
    published_bound: Callable[[PlannedRun], PublishedClaim | None] | None = None
    single_gradients: tuple[str, ...] = ()
    own_gradient: Callable[..., OwnGradient] | None = None
    unsteered: Callable[[Any], str | None] = other_step

    def __post_init__(self) -> None:
        """Check the parts, and that what adds no noise names what to use in its place."""
        if not (isinstance(self.name, str) and self.name.isprintable() and self.name):
            raise InputError(f"name={self.name!a} of an algorithm must be a printable text")
        for what in ("init", "step"):
            if not callable(getattr(self, what)):
                raise InputTypeError(
                    f"{what} of algorithm {self.name!r} is {type(getattr(self, what)).__name__}; "
                    "it must be a function"
                )
        released = released_fields(self.released, model=self.model)
        object.__setattr__(self, "released", released)
        own = fields(self.settings) if is_dataclass(self.settings) else ()
        for field in own:
            if field.name in _RESERVED:
                raise InputError(
                    f"the hyper-parameter {field.name!r} of algorithm {self.name!r} has the name "
                    "of what every run gives to a step; rename it"
                )
        if self.private != (self.private_counterpart is None):
            raise InputError(
                f"private={self.private} and private_counterpart={self.private_counterpart!r} of "
                f"algorithm {self.name!r}: name the private algorithm to use in place of one that "
                "is not, and of no other"
            )

    @property
    def needs_records(self) -> bool:
        """Whether the start draws a batch whose rate depends on how many records an agent has."""
        return "records" in inspect.signature(self.init).parameters

    @property
    def forms(self) -> tuple[Form, ...]:
        """The forms that differ: the repaired one alone where the published one is the same."""
        taken = {*inspect.signature(self.init).parameters, *inspect.signature(self.step).parameters}
        return tuple(Form) if "form" in taken else (Form.REPAIRED,)


class Bound(NamedTuple):
    """`init(round)` and `step(state, round)` with every number given.

    `weights` says which sums of the mixing weights must be 1, `blocks` how many a point has where
    that is known beforehand, `noise_multiplier` is noise_std / clip_norm, or noise_std where
    nothing is clipped, and `release` which fields of the state leave after the last round.
    """

    init: Callable[..., Any]
    step: Callable[..., Any]
    weights: Sums = Sums.BOTH
    blocks: int | None = None
    noise_multiplier: float | None = None
    release: FinalRelease = FinalRelease()


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


def check_blocks(bound: Bound, blocks: int) -> None:
    """Refuse points of another number of blocks than the algorithm's."""
    if bound.blocks not in (None, blocks):
        raise InputError(
            f"the points of the algorithm have {bound.blocks} blocks, but those of the setting "
            f"{blocks}: a min-max algorithm needs a task with dual variables, such as "
            "ClassWeights, and any other needs a task of parameters alone, or none"
        )


def bind(
    algorithm: Algorithm,
    settings: Any,
    *,
    form: Form = Form.REPAIRED,
    learning_rate: LearningRates,
    clip_norm: float | None,
    noise_std: float,
    batch_size: float,
    graph: Topology | None = None,
    rounds: int | None = None,
    records: float | None = None,
) -> Bound:
    """Give a start and a step their numbers.

    Args:
        settings: an instance of `algorithm.settings`.
        form: published or repaired.
        learning_rate: step size of all rounds, or one of each.
        clip_norm: bound on one example's gradient; None does not clip.
        noise_std: of the noise on a sum of clipped gradients.
        batch_size: public normaliser of a batch's sum.
        graph: of the run; with `rounds` needed where the algorithm prepares something for them.
        rounds: of the run.
        records: public number of records of an average agent; needed where the start draws a batch
            of an expected size.

    Raises:
        TypeError: settings of another algorithm.
        ValueError: a number out of range or without effect, or weights that do not fit.
    """
    if form not in tuple(Form):
        raise InputError(f"form={form!r} must be 'repaired' or 'published'")
    form = Form(form)  # a step asks which member it is
    within("batch_size", batch_size, "(0, inf]")
    within("noise_std", noise_std, "[0, inf]")
    # The numbers by name, of which start and step get those that they take.
    own = hyper_parameters(algorithm, settings)
    init, name = algorithm.init, algorithm.name
    rated = at_rates(init, algorithm.step, learning_rate, name=name, rounds=rounds, own=own)
    numbers = {
        "form": form,
        "settings": settings,
        **rated.given,
        "clip_norm": clip_norm,
        "noise_std": noise_std,
        "batch_size": batch_size,
        **own,
    }
    if graph is not None:
        check_weights(graph, algorithm.weights)
    if algorithm.needs_records:
        if records is None:
            raise InputError(
                f"algorithm {name!r} needs records, the public number of an agent's; give it"
            )
        numbers["records"] = records
    first, given = _taken(init, numbers), _taken(algorithm.step, numbers)
    # What is made once, for the whole graph and all rounds.
    if algorithm.prepare is not None:
        if graph is None or rounds is None:
            raise InputError(f"algorithm {algorithm.name!r} needs graph and rounds; give both")
        made = prepared(
            algorithm, settings, graph=graph, rounds=rounds, step_sizes=rated.step_sizes
        )
        first, given = first | _taken(init, made), given | made
    return Bound(
        functools.partial(init, **first) if first else init,
        functools.partial(rated.step, **given),
        algorithm.weights,
        algorithm.blocks,
        noise_std / (clip_norm or 1.0),
        FinalRelease(algorithm.model, algorithm.released),
    )


def choices(algorithm: Algorithm) -> dict[str, type[enum.Enum]]:
    """The hyper-parameters that are one of some names, and which those are."""
    try:
        hints = get_type_hints(algorithm.settings)
    except (NameError, TypeError):  # of a user's own class, which is taken as it is
        return {}
    return {
        name: kind
        for name, kind in hints.items()
        if isinstance(kind, type) and issubclass(kind, enum.Enum)
    }


def hyper_parameters(algorithm: Algorithm, settings: Any) -> dict[str, Any]:
    """An algorithm's own hyper-parameters by name.

    Raises:
        TypeError: settings of another algorithm, or a text where one of some names is meant.
        ValueError: a field that no function of the algorithm takes, so that it has no effect.
    """
    if not isinstance(settings, algorithm.settings):
        raise InputTypeError(
            f"settings of {algorithm.name!r} must be {algorithm.settings.__name__}, not "
            f"{type(settings).__name__}"
        )
    own = {field.name: getattr(settings, field.name) for field in fields(algorithm.settings)}
    for name, choice in choices(algorithm).items():
        if not isinstance(own[name], choice):  # a step that asks whether it is one takes another
            raise InputTypeError(
                f"{name}={own[name]!r} of {algorithm.name!r} must be a {choice.__name__}, one of "
                f"{', '.join(map(repr, map(str, choice)))}"
            )
    functions = [f for f in (algorithm.init, algorithm.step, algorithm.prepare) if f is not None]
    taken = {name for f in functions for name in inspect.signature(f).parameters}
    unused = sorted(own.keys() - taken)
    if unused and "settings" not in taken:
        raise InputError(
            f"hyper-parameter {unused[0]!r} of algorithm {algorithm.name!r} has no effect: none of "
            "its init, step and prepare takes it by name; take it there, or drop the field"
        )
    return own


def prepared(
    algorithm: Algorithm,
    settings: Any,
    *,
    graph: Topology,
    rounds: int,
    step_sizes: tuple[float, ...] = (),
) -> dict[str, object]:
    """What the step takes besides hyper-parameters, made for a run; nothing without `prepare`.

    Raises:
        TypeError: settings of another algorithm, or a value that the step does not take or has.
        ValueError: a run that the algorithm cannot prepare for.
    """
    own = hyper_parameters(algorithm, settings)
    if algorithm.prepare is None:
        return {}
    # What the user's code makes has names that the step takes and nothing else gives.
    run = {"graph": graph, "rounds": rounds, "step_sizes": step_sizes, "settings": settings, **own}
    try:
        made = algorithm.prepare(**_taken(algorithm.prepare, run))
    except InputError:
        raise
    except (Exception, SystemExit) as error:  # of a user's own algorithm
        raise InputError(
            f"prepare of {algorithm.name!r} raised {describe(error)}{line_of(error)}; mend it"
        ) from error
    if not isinstance(made, dict):
        raise InputTypeError(
            f"prepare of {algorithm.name!r} returned {type(made).__name__}; it must return a dict "
            "of what the step takes by name"
        )
    wanted = inspect.signature(algorithm.step).parameters.keys()
    foreign = sorted(made.keys() - wanted | made.keys() & _COMMON | made.keys() & own.keys())
    if foreign:
        raise InputTypeError(
            f"prepare of {algorithm.name!r} gives {foreign[0]!r}, which its step does not take "
            "or which has a value already; rename it"
        )
    return made


def _taken(function: Callable[..., Any], numbers: Mapping[str, Any]) -> dict[str, Any]:
    """Those that the function takes by name."""
    wanted = inspect.signature(function).parameters
    return {name: value for name, value in numbers.items() if name in wanted}
