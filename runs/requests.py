"""What a command is asked, as one class: options, keywords of a function, metadata of a file.

A request is a frozen dataclass. A field is an option `--field-name`, or an argument before
`KW_ONLY`; the first paragraph of the docstring below it is its help. In its `Annotated` may stand
a text, "--option VALUE" or "VALUE" alone; a tuple of the names that it may be; and a function that
reads its text. `tuple[int, ...]` is one text, numbers that commas separate; a `Sequence` is an
option that may be repeated.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import operator
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, fields
from itertools import pairwise
from pathlib import Path
from types import NoneType
from typing import (
    Annotated,
    Any,
    NamedTuple,
    ParamSpec,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
)

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class RequestField(NamedTuple):
    """One thing that can be asked.

    Attributes:
        kind: type of a value, or of each of several.
        container: `tuple` of numbers in one text, `Sequence` of an option that may be repeated.
        metavar: what stands for the value in a help text.
        choices: the names that it may be.
        reader: of its text.
        help: the first paragraph of its docstring.
        default: `dataclasses.MISSING` of what has to be given.
        is_argument: whether it is given by its place, without a name.
    """

    name: str
    kind: Any
    container: Any
    flag: str
    metavar: str | None
    choices: tuple[str, ...]
    reader: Callable[[str], Any] | None
    help: str
    default: Any
    is_argument: bool

    def read(self, text: str) -> Any:
        """The value of a text, as it stands in metadata, or after the option.

        Raises:
            ValueError: something is no number, or neither true nor false.
        """
        from ..privacy.errors import InputError  # the command line starts without numpy

        if self.reader is not None:
            return self.reader(text)
        if self.kind is bool:
            if text.lower() not in ("true", "false"):
                raise InputError(f"{self.name}={text!r} must be true or false")
            return text.lower() == "true"
        try:
            values = [self.kind(part.strip()) for part in text.split(",")]
        except ValueError as error:
            what = "whole numbers" if self.kind is int else "numbers"
            raise InputError(f"{self.name}={text!r} must be {what} separated by commas") from error
        if self.container is tuple:
            return tuple(values)
        if len(values) > 1:
            raise InputError(f"{self.name}={text!r} must be one number")
        return values[0]


def fields_of(request: type) -> dict[str, RequestField]:
    """The fields of a request, by name.

    >>> from overhear.runs.requests import BatchRequest
    >>> fields_of(BatchRequest)["mean"].read("0.5, -1")
    (0.5, -1.0)
    """
    hints, texts = get_type_hints(request, include_extras=True), _docstrings(request)
    found = {}
    for field in dataclasses.fields(request):
        kind, flag, metavar = hints[field.name], f"--{field.name.replace('_', '-')}", ""
        choices, reader = (), None
        # Beside a type stand choices, a reader, and a flag or metavar.
        for item in getattr(kind, "__metadata__", ()):
            if isinstance(item, tuple):
                choices = item
            elif callable(item):
                reader = item
            else:
                named, _, rest = item.partition(" ")
                flag, metavar = (named, rest) if named.startswith("--") else (flag, item)
        # The type without None, and of containers that of an entry.
        kind = get_args(kind)[0] if hasattr(kind, "__metadata__") else kind
        if NoneType in get_args(kind):
            kind = functools.reduce(operator.or_, [k for k in get_args(kind) if k is not NoneType])
        container = next((one for one in (tuple, Sequence) if get_origin(kind) is one), None)
        found[field.name] = RequestField(
            field.name,
            kind if container is None else get_args(kind)[0],
            container,
            flag,
            metavar or None,
            choices,
            reader,
            texts[field.name].partition("\n\n")[0].replace("\n", " "),
            field.default,
            not field.kw_only,
        )
    return found


def request_of(request: type[R], given: Mapping[str, object], *, of: str) -> R:
    """The request of keywords.

    Args:
        of: what takes them, for a refusal.

    Raises:
        TypeError: there is no such keyword, or one is missing.
        ValueError: a value that the request refuses.
    """
    from ..privacy.errors import InputTypeError, did_you_mean

    fields = {field.name: field for field in dataclasses.fields(request)}  # type: ignore[arg-type]
    for name in given:
        if name not in fields:
            remedy = did_you_mean(name, fields) or f"; it takes {', '.join(fields)}"
            raise InputTypeError(f"{of} takes no {name}{remedy}")
    for name, field in fields.items():
        if field.default is dataclasses.MISSING and name not in given:
            raise InputTypeError(f"{of} needs {name}")
    return request(**given)


def by_keywords(request: Callable[P, R], function: Callable[[R], T], name: str) -> Callable[P, T]:
    """A function of a request as one of the request's fields, with their types.

    Args:
        name: of the function that is made, which stands in the module of the other.
    """

    @functools.wraps(function)
    def called(*arguments: P.args, **keywords: P.kwargs) -> T:
        if not arguments:
            return function(request_of(request, keywords, of=name))  # type: ignore[arg-type]
        return function(request(*arguments, **keywords))

    called.__name__ = called.__qualname__ = name
    returned = inspect.signature(function).return_annotation
    called.__signature__ = inspect.signature(request).replace(  # type: ignore[attr-defined]
        return_annotation=returned
    )
    return called


def _docstrings(request: type) -> dict[str, str]:
    """The text below each field, by name, those of base classes included."""
    found: dict[str, str] = {}
    for one in reversed(request.__mro__[:-1]):
        (held,) = ast.parse(textwrap.dedent(inspect.getsource(one))).body
        for field, text in pairwise(held.body):  # type: ignore[attr-defined]
            match field, text:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(ast.Constant(str(words))):
                    found[name] = inspect.cleandoc(words)
    return found


# What a reproduction and a plot are asked.


@dataclass(frozen=True, kw_only=True, slots=True)
class ReproduceRequest:
    """What is run of a table or figure, and beside what it stands."""

    cell: Annotated[Sequence[str], "KEY=VALUE,..."] = ()
    """Run these cells alone, such as algorithm=muffliato,graph=ring|full; may be repeated."""
    seeds: Annotated[int | None, "N"] = None
    """Run the first N seeds alone."""
    figures: Annotated[Path | None, "FILE"] = None
    """CSV file with the paper's figures, which come before the entry's own."""
    retry: bool = False
    """Run again what failed."""

    def __post_init__(self) -> None:
        """Check the number of seeds."""
        from ..privacy.errors import InputError  # the command line starts without numpy

        if self.seeds is not None and self.seeds < 1:
            raise InputError(f"--seeds {self.seeds} must be at least 1")


@dataclass(frozen=True, kw_only=True, slots=True)
class PlotRequest:
    """What is drawn of a sweep: figures of its runs, or the pictures of its attacks."""

    x: Annotated[str, "NAME"] = "round"
    """round, epsilon, or a swept key."""
    y: Annotated[str, "NAME"] = "accuracy"
    """accuracy, loss, auroc, rmse, psnr, ..."""
    line: Annotated[str | None, "KEY"] = None
    """Swept key of which each value has a line; by default the algorithm, or the first left."""
    panel: Annotated[Sequence[str], "KEY"] = ()
    """Swept key of which each value has a panel; given twice, the first is that of rows."""
    cell: Annotated[Sequence[str], "KEY=VALUE,..."] = ()
    """Draw these cells alone, such as algorithm=muffliato|dpdl,seed=1; may be repeated."""
    adversary: Annotated[str | None, "NAME"] = None
    """Adversary of --x epsilon; by default the first."""
    agents: bool = False
    """Draw the mean over the agents' own models, not the mean model."""
    gallery: bool = False
    """Draw what attacks rebuilt: truth on top, then each scenario by round, with its PSNR."""

    def __post_init__(self) -> None:
        """Refuse options that contradict each other; one key or cell may be a text alone."""
        from ..privacy.errors import InputError

        for name in ("panel", "cell"):
            if (one := getattr(self, name)) is None or isinstance(one, str):
                object.__setattr__(self, name, () if one is None else (one,))
        for name, kind in (("x", str), ("y", str), ("agents", bool), ("gallery", bool)):
            if not isinstance(one := getattr(self, name), kind):
                must = "be True or False" if kind is bool else "be a name"
                raise InputError(f"{name}={one!r} must {must}")
        if len(self.panel) > 2:
            raise InputError(f"--panel is given {len(self.panel)} times; give it at most twice")
        given = {one.name for one in fields(self) if getattr(self, one.name) != one.default}
        if self.gallery and (over := given & {"x", "y", "line", "adversary", "agents"}):
            raise InputError(f"--{min(over)} has no effect with --gallery; leave one of them out")
        if self.adversary is not None and self.x != "epsilon":
            raise InputError("--adversary has no effect without --x epsilon; leave it out")


# What overhear budget is asked.


ACCOUNTANTS = ("pld", "rdp", "prv", "dp-accounting", "gdp-clt")
ADJACENCIES = ("add-or-remove-one", "zero-out", "replace-one")
SCHEMES = ("poisson", "fixed", "shuffled", "cyclic")


def read_rates(text: str) -> tuple[float, float]:
    """TPR@FPR as two numbers."""
    from ..privacy.errors import InputError  # the command line starts without numpy

    rate, at, alarms = text.partition("@")
    try:
        return float(rate), float(alarms if at else "none")
    except ValueError:
        raise InputError(
            f"--target-tpr {text!r:.40} must be TPR@FPR, two numbers such as .2@.01"
        ) from None


def read_size(text: str) -> int | str:
    """A size as a number, or auto."""
    from ..privacy.errors import InputError

    try:
        return text if text == "auto" else int(text)
    except ValueError:
        raise InputError(f"--largest-batch {text!r:.40} must be an integer, or auto") from None


@dataclass(frozen=True, kw_only=True)
class BudgetRequest:
    """Five numbers of a private computation, of which one is left out, and what they are said of.

    With a target for the best membership inference in place of epsilon, the noise is left out too.
    """

    delta: float | None = None
    """Delta of the statement, in (0, 1)."""
    epsilon: float | None = None
    """Largest privacy loss, in nats."""
    noise_multiplier: float | None = None
    """Standard deviation of the noise on the sum / clip norm."""
    rounds: int | None = None
    """Number of rounds.

    Each has one release; from 1 to 10 million.
    """
    sampling_rate: float | None = None
    """Probability of a record to be in a batch."""
    advantage: Annotated[float | None, "--target-advantage"] = None
    """Largest TPR - FPR of membership inference, in place of epsilon."""
    true_positive_rate: Annotated[
        tuple[float, float] | None, "--target-tpr TPR@FPR", read_rates
    ] = None
    """Largest TPR at an FPR, such as .2@.01, in place of epsilon."""
    participation: float = 1.0
    """Probability of an agent to take part in a round, by a public lottery; in (0, 1].

    Of the agent that holds the record; below 1 epsilon, delta or noise is found.
    """
    sampling: Annotated[str, "--batches", SCHEMES] = "poisson"
    """How batches are drawn.

    All but Poisson ones have `batch_size` of `records`, and their sampling rate follows; then
    epsilon, delta or noise is found.
    """
    records: int | None = None
    """Number of records, which is public; for batches that are not Poisson, or cut."""
    batch_size: int | None = None
    """Size of batches that are not Poisson; replaces --sampling-rate."""
    largest_batch: Annotated[int | str | None, "N|auto", read_size] = None
    """Size at which a Poisson batch is cut."""
    accountant: Annotated[str, ACCOUNTANTS] = "pld"
    """How rounds are added up."""
    adjacency: Annotated[str, ADJACENCIES] = "add-or-remove-one"
    """How neighbouring data sets differ."""


# What the audits of final models are asked: options of a command, keywords of a function.


_LEAST_RUNS = 20  # as of `attacks.membership.black_box`, whose import takes torch
_MOST_TRAININGS = 10_000
_MOST_RUNS = 100_000


@dataclass(frozen=True, kw_only=True)
class MembershipRequest:
    """How closely membership is inferred in the final models of a run."""

    references: Annotated[int, "K"] = 16
    """Number of reference runs."""
    games: Annotated[int, "G"] = 4
    """Number of runs in which each record is in or out at random."""
    records: Annotated[int, "N"] = 2000
    """Most members, and most non-members."""
    minutes: Annotated[float, "M"] = 30.0
    """Most minutes to train."""
    show_records: bool = False
    """List the records with the highest scores."""
    again: bool = False
    """Attack once more, and keep what was found before beside it."""
    device: Annotated[str | None, "DEVICE"] = None
    """auto, cpu, cuda, cuda:N or mps; by default what the run says."""

    def __post_init__(self) -> None:
        """Refuse what nobody can be served with."""
        from ..privacy.errors import whole, within

        within("minutes", self.minutes, "(0, inf)")
        remedy = "a record must be in one and out of another; 16 is usual"
        whole("references", self.references, f"[2, {_MOST_TRAININGS}]", remedy)
        whole("games", self.games, f"[0, {_MOST_TRAININGS}]", "each is a training; 4 is usual")
        whole("records", self.records, "[1, inf)", "2000 is usual")


@dataclass(frozen=True, kw_only=True)
class LastModelRequest:
    """How closely last models are asked about a canary."""

    runs: Annotated[int, "R"] = 400
    """Number of trainings; as many again where the first exceed the proof."""
    minutes: Annotated[float, "M"] = 30.0
    """Most minutes that the trainings of one look may take."""
    device: Annotated[str | None, "DEVICE"] = None
    """auto, cpu, cuda, cuda:N or mps; by default what the run says."""

    def __post_init__(self) -> None:
        """Refuse what nobody can be served with."""
        from ..privacy.errors import whole, within

        within("minutes", self.minutes, "(0, inf)")
        whole("runs", self.runs, f"[{_LEAST_RUNS}, {_MOST_RUNS}]", "400 is usual")


# What `overhear invert` is asked: options, keywords, and metadata of the file of gradients.


@dataclass(frozen=True, kw_only=True)
class BatchRequest:
    """What can be said of an intercepted batch, in the metadata of its file too.

    Of several local steps the file holds their mean, (before - after) / (steps rate).
    `mean`, `std`, `low` and `high` have one value, or one per channel: the network is fed
    (pixel - mean) / std of pixels in [0, 1], or `low` and `high` are what black and white become.
    """

    input_shape: Annotated[tuple[int, ...] | None, "C,H,W"] = None
    """Shape of one record."""
    classes: int | None = None
    """Number of logits."""
    records: int | None = None
    """Number of records in the batch; 1 by default."""
    labels: Annotated[tuple[int, ...] | None, "Y,..."] = None
    """Labels of the records, where they are known."""
    clip_norm: float | None = None
    """L2 bound on each record's gradient."""
    clip_batch: bool | None = None
    """The bound is on the mean of the batch instead."""
    noise_std: float | None = None
    """Noise on each coordinate of the mean, as it was sent."""
    local_steps: int | None = None
    """Gradient steps of which FILE holds the mean; 1 by default."""
    local_rate: float | None = None
    """Size of such a step."""
    mean: Annotated[tuple[float, ...] | None, "M,..."] = None
    """Means that are subtracted from pixels in [0, 1]."""
    std: Annotated[tuple[float, ...] | None, "S,..."] = None
    """Standard deviations that pixels are divided by then."""
    low: Annotated[tuple[float, ...] | None, "L,..."] = None
    """The number that stands for a pixel of 0."""
    high: Annotated[tuple[float, ...] | None, "H,..."] = None
    """The number that stands for a pixel of 1."""


BATCH: Mapping[str, RequestField] = fields_of(BatchRequest)


@dataclass(frozen=True)
class GradientRequest(BatchRequest):
    """What is asked of gradients in a file; where the batch is not described, their metadata are.

    Where nobody says the number of classes, the gradients do.
    """

    gradients: Annotated[Path, "FILE"]
    """File of gradients: safetensors, npz, or what torch.save wrote."""
    _: KW_ONLY
    model: str
    """A ready network, or module:function.

    It is called as ``function(input_shape, classes)`` and found in the current folder too.
    """
    out: Annotated[Path, "DIR"]
    """New folder for the result.

    Or one that holds nothing but the state of a search that was interrupted, which goes on if
    everything else is given as before.
    """
    weights: Annotated[Path | None, "FILE"] = None
    """State dict of the parameters, if FILE has none."""
    before: Annotated[Path | None, "FILE"] = None
    """State dict before a step of --local-rate, where FILE is the one after it."""
    prior: Annotated[Path | None, "FILE"] = None
    """Public records: one as the blind guess, several to weigh.

    A picture, a folder or a file of tensors; mid-grey where None. What the gradient does not speak
    for falls back to their mean, and under noise a single record is weighed against several of
    them, under each label where none is known. Of a model of tokens whole numbers, `tokens` or
    `inputs`; with `columns` csv or parquet too.
    """
    denoiser: Annotated[str | None, "module:NAME"] = None
    """A function of your own that removes noise from pictures.

    f(pixels (B, *shape) in [0, 1], noise_std) is what they are without; of one record under noise.
    """
    truth: Annotated[Path | None, "FILE"] = None
    """The true records, to score against.

    All of the batch, in a file such as that of `prior`.
    """
    vocabulary: Annotated[Path | None, "FILE"] = None
    """Words of the tokens: one a line, or JSON."""
    columns: Annotated[Path | None, "FILE"] = None
    """A run file whose [data] declares the columns of a table.

    Records are its rows then, and what is found is told by column.
    """
    preset: str = "matched"
    """The attack."""
    restarts: int | None = None
    """Number of starts of the search; by default the preset's."""
    seed: int = 0
    """Seed of the starts."""
    device: Annotated[str, "DEVICE"] = "auto"
    """Where to search: auto, cpu, cuda, cuda:N or mps."""
