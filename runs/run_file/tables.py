"""The tables of a run file, each with its keys, their ranges and their defaults.

Unknown keys are refused, and so is a key that has no effect beside the others: a misspelt bound
must not run with the default. Names are spelled out here, so that the schema knows them; a test
compares them with the registries of the other parts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PlainValidator,
    WithJsonSchema,
    model_validator,
)

from ...privacy.errors import InputError, did_you_mean
from ...privacy.formats.toml_text import toml_value
from ...training.algorithms.learning_rates import rates_of, read_rates
from ...training.own.names import is_own
from ...training.own.objects import OBJECT, give
from .hyper_parameters import LearningRate
from .refusals import TRAINING, Unprovable, check_batches, check_largest, refuse_unprovable

if TYPE_CHECKING:
    import torch

# Devices by name: which are known, which two are one, and the one that a run computes on.

_KNOWN = re.compile(r"auto|cpu|mps|cuda(:(?P<number>0|[1-9][0-9]{0,8}))?")
_LONGEST = 40  # characters of a name that is told


def gpu_number(name: str) -> int | None:
    """The number of the GPU that a device's name gives, if it gives one.

    Args:
        name: "auto", "cpu", "mps", "cuda" or "cuda:N".

    Raises:
        ValueError: no device has such a name.

    >>> gpu_number("cuda:1"), gpu_number("cuda")
    (1, None)
    """
    known = _KNOWN.fullmatch(name)
    if known is None:
        shown = name if len(name) <= _LONGEST else f"{name[:_LONGEST]}..."
        raise InputError(
            f"device={shown!r} is unknown; choose auto, cpu, cuda, cuda:N for one of several GPUs, "
            "counted from 0, or mps"
        )
    return None if known["number"] is None else int(known["number"])


def check_rounds_device(name: str) -> str:
    """The name again, if rounds of training can run on such a device.

    Raises:
        ValueError: no device has such a name, or it has no float64, in which noise is made.
    """
    gpu_number(name)
    if name == "mps":
        raise InputError(
            "device='mps' has no float64, in which the noise of rounds is made; use device='cpu'"
        )
    return name


DeviceName = Annotated[
    str,
    AfterValidator(check_rounds_device),
    WithJsonSchema(
        {
            "anyOf": [
                {"enum": ["auto", "cpu", "cuda"]},
                {"type": "string", "pattern": "^cuda:(0|[1-9][0-9]{0,8})$"},
            ]
        }
    ),
]


def is_same_device(one: str, other: str) -> bool:
    """Whether two names are of one device of a process; "cuda" is the first GPU.

    Args:
        one: "cpu", "mps", "cuda" or "cuda:N".
        other: likewise.

    >>> is_same_device("cuda", "cuda:0"), is_same_device("cuda:0", "cuda:1")
    (True, False)
    """
    first = {"cuda": "cuda:0"}
    return first.get(one, one) == first.get(other, other)


def find_device(name: str, *, rounds: bool = False) -> torch.device:
    """The device of a name.

    Args:
        name: "auto", which is CUDA where there is some and else the CPU, "cpu", "cuda", "cuda:1"
            and so on, or "mps".
        rounds: whether rounds of training run there, whose noise is made in float64.

    Raises:
        ValueError: there is no such device, or it has no float64 and needs it.
    """
    import torch

    number = gpu_number(name)
    if rounds:
        check_rounds_device(name)
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name.startswith("cuda"):
        _check_cuda(name, number)
    if name == "mps" and not torch.backends.mps.is_available():
        raise InputError(f"device='mps' but no MPS device is there; {_INSTEAD}")
    return torch.device(name)


_INSTEAD = "use device='auto' or 'cpu', as --device or as [training] device"


def _check_cuda(name: str, number: int | None) -> None:
    import torch

    if not torch.cuda.is_available():
        raise InputError(f"device={name!r} but no CUDA device is there; {_INSTEAD}")
    count = torch.cuda.device_count()
    if number is not None and number >= count:
        held = "one, cuda:0" if count == 1 else f"{count}, cuda:0 to cuda:{count - 1}"
        raise InputError(f"device={name!r} is not there: CUDA has {held}; {_INSTEAD}")


GraphName = Literal[
    "ring",
    "full",
    "bipartite",
    "grid",
    "star",
    "server",
    "erdos-renyi",
    "directed-ring",
    "directed-exponential",
    "random-digraph",
    "file",
]
PresetName = Literal["dlg", "idlg", "inverting-gradients", "matched", "posterior"]
ScenarioName = Literal["cross-gradient", "momentum", "view"]
LOSS_NAMES = ("cross-entropy", "squared", "absolute")
MODEL_NAMES = ("linear", "mlp", "lenet", "sigmoid-lenet", "cnn", "conv4", "resnet18")
LargestBatch = Annotated[
    int | str,
    PlainValidator(check_largest),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 1}, {"enum": ["auto"]}]}),
]
Count = Annotated[int, Field(ge=1)]
Index = Annotated[int, Field(ge=0)]
Seed = Annotated[int, Field(ge=0, le=2**63 - 1)]
Tries = Annotated[int, Field(ge=1, le=10_000)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Indices = Annotated[tuple[Index, ...], Field(strict=False)]
Rounds = Annotated[tuple[Count, ...], Field(strict=False)]
Names = Annotated[tuple[str, ...], Field(strict=False)]


class Table(BaseModel):
    """One table.

    `belongs` names the keys that only one value of another key reads, `unprovable` requests that
    are refused with a reason, `paths` the keys that name files or folders.
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True
    )
    belongs: ClassVar[Mapping[str, tuple[str, str | tuple[str, ...]]]] = {}
    unprovable: ClassVar[Mapping[str, Unprovable]] = {}
    paths: ClassVar[tuple[str, ...]] = ()

    @model_validator(mode="before")
    @classmethod
    def _refuse_unprovable(cls, values: Any) -> Any:
        refuse_unprovable(values, cls.unprovable)
        return values

    @model_validator(mode="after")
    def _check_belongs(self) -> Self:
        for key in sorted(self.model_fields_set & self.belongs.keys()):
            owner = self.belongs[key][0]
            if self._idle(key) and getattr(self, key) is not None:
                homes = " or ".join(map(repr, self._homes(key)))
                raise InputError(
                    f"{key}={getattr(self, key)!r} has no effect with "
                    f"{owner}={getattr(self, owner)!r}; it belongs to {owner}={homes}, leave it out"
                )
        return self

    def _homes(self, key: str) -> tuple[str, ...]:
        """Values of its owner with which a key has an effect."""
        wanted = self.belongs[key][1]
        return (wanted,) if isinstance(wanted, str) else wanted

    def _idle(self, key: str) -> bool:
        """Whether a key that belongs to a value of another one has no effect."""
        return getattr(self, self.belongs[key][0]) not in self._homes(key)

    def entries(self) -> dict[str, object]:
        """The keys that have an effect, in the order of the table."""
        idle = set(filter(self._idle, self.belongs))
        values = self.model_dump(exclude=idle)
        return {key: value for key, value in values.items() if value is not None}


class GraphTable(Table):
    """[graph]: who talks to whom."""

    belongs: ClassVar[Mapping[str, tuple[str, str | tuple[str, ...]]]] = {
        "edge_probability": ("name", ("erdos-renyi", "random-digraph")),
        "seed": ("name", ("erdos-renyi", "random-digraph")),
        "graphs": ("name", "random-digraph"),
        "window": ("name", "random-digraph"),
        "path": ("name", "file"),
        "columns": ("name", "grid"),
    }
    paths = ("path",)
    name: GraphName = "ring"
    """Topology: who is joined to whom."""
    weights: Literal["metropolis", "uniform"] = "metropolis"
    """How much an agent trusts each neighbour."""
    links: Literal["clear", "encrypted"] = "clear"
    """Whether somebody on a link can read what crosses it."""
    edge_probability: Annotated[float, Field(ge=0, le=1)] | None = None
    """Probability that a pair is joined; in `random-digraph` each direction of each graph."""
    seed: Index = 0
    """Seed of a graph that is drawn."""
    path: str | None = None
    """File with weights or links."""
    columns: Count | None = None
    """Agents in a row of the grid; by default nearly square."""
    graphs: Count = 16
    """How many graphs of a `random-digraph` take turns, one a round."""
    window: Count | None = None
    """Rounds in a row whose links must join everybody both ways, in a `random-digraph`."""

    @model_validator(mode="after")
    def _check_needs(self) -> Self:
        for key in ("edge_probability", "path"):
            if not self._idle(key) and getattr(self, key) is None:
                raise InputError(f"{key} is missing; graph {self.name!r} needs it")
        return self


class ModelTable(Table):
    """[model]: what is trained."""

    belongs: ClassVar[Mapping[str, tuple[str, str | tuple[str, ...]]]] = {
        "strength": ("task", "class-weights"),
        "penalty": ("task", "class-weights"),
        "penalty_steepness": ("task", "class-weights"),
        "positive_share": ("task", "auc"),
    }
    name: str
    """linear, mlp, lenet, sigmoid-lenet, cnn, conv4, resnet18, or your own as "module:NAME"."""
    task: Literal["classification", "class-weights", "auc", "regression"] | None = None
    """What is learned; by default class-weights if the algorithm is a min-max one."""
    loss: str | None = None
    """cross-entropy, squared, absolute or your own as "module:NAME"; by default as data need."""
    strength: NotNegative = 1.0
    """Strength that pulls the weights of the classes towards equal ones."""
    penalty: NotNegative = 0.0
    """Most that a parameter's penalty can be; the penalty is not convex."""
    penalty_steepness: NotNegative = 10.0
    """How soon a parameter's penalty levels off."""
    positive_share: Annotated[float, Field(gt=0, lt=1)] = 0.5
    """Public share of class 1, in the objective of `auc`."""

    @model_validator(mode="after")
    def _check_name(self) -> Self:
        for key, known in (("name", MODEL_NAMES), ("loss", LOSS_NAMES)):
            value = getattr(self, key)
            if value is not None and value not in known and ":" not in value:
                raise InputError(
                    f"{key}={value!r} must be one of {', '.join(known)} or "
                    f'"module:NAME"{did_you_mean(value, known)}'
                )
        return self


class AlgorithmTable(Table):
    """[algorithm]: its name, its form, and its own hyper-parameters beside them."""

    model_config = ConfigDict(extra="allow")
    name: str
    """Name in the registry of algorithms, or your own as "module:NAME"."""
    form: Literal["repaired", "published"] = "repaired"
    """Repaired so that its privacy can be proven, or as published; no effect where these agree."""

    @classmethod
    def handed(cls, values: Mapping[str, object]) -> dict[str, object]:
        """What of the table's values an algorithm is handed: its hyper-parameters."""
        return {key: value for key, value in values.items() if key not in cls.model_fields}

    @model_validator(mode="after")
    def _check_settings(self) -> Self:
        from ...training.own.names import is_own
        from .hyper_parameters import settings_entries

        if is_own(self.name) and "form" in self.model_fields_set:
            raise InputError(
                f"form={self.form!r} has no effect on an algorithm of your own; leave it out, and "
                "write what differs as a hyper-parameter"
            )
        return self.model_copy(update=settings_entries(self.settings()))

    def settings(self) -> Any:
        """The hyper-parameters: an instance of the algorithm's own dataclass.

        Raises:
            ValueError: an unknown algorithm or hyper-parameter, or a value out of range.
        """
        from .hyper_parameters import read_settings

        return read_settings(self.name, self.model_extra or {})

    def entries(self) -> dict[str, object]:
        """Name, form and every hyper-parameter, given or default."""
        from ...training.own.names import is_own
        from .hyper_parameters import settings_entries

        form = {} if is_own(self.name) else {"form": self.form}
        return {"name": self.name, **form, **settings_entries(self.settings())}


class TrainingTable(Table):
    """[training]: rounds, batches and seeds."""

    unprovable = TRAINING
    rounds: Count
    """Number of rounds, T."""
    sampling_rate: Annotated[float, Field(gt=0, le=1)] | None = None
    """Probability of each record to be in a round's batch."""
    batch_size: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Instead of sampling_rate: expected records in an agent's batch."""
    batches: Literal["poisson", "fixed", "shuffled", "cyclic"] = "poisson"
    """How they are drawn: each record on its own, or batch_size records by chance, by shuffled
    epochs or by one order; all but the first count each agent's number of records as public."""
    largest_batch: LargestBatch | None = None
    """Size at which a Poisson batch is cut; auto is a size that next to none reaches."""
    learning_rate: LearningRate = 0.01
    """Step size: of all rounds, a list with one of each, or { schedule = "step", start, factor,
    every }, or "cosine", "linear", "inverse-sqrt", "constant", of which each may have a warmup."""
    seed: Seed = 0
    """Seed of data and model; noise and batches come from the system's entropy."""
    device: DeviceName = "auto"
    """Where gradients are computed; `cuda:1` is the second of several GPUs."""
    noise: Literal["standard", "hardened"] = "standard"
    """Hardened noise is a sum of four draws, which no one can list; it takes 5 times as long."""
    layout: Literal["auto", "book-keeping", "grouped", "vmap", "loop"] = "auto"
    """How gradients are computed; layouts differ in speed and in rounding, not in privacy."""
    precision: Literal["float32", "tf32", "bfloat16"] = "float32"
    """Precision of products; only float32 bounds a record provably."""
    evaluation_noise_seed: Index | None = None
    """Makes noise and batches repeatable, for evaluations; who knows it can subtract the noise."""
    evaluate_every: Count = 0
    """Rounds between two evaluations, by default a twentieth of all; the last is evaluated too."""
    gradient_norm: bool = False
    """Adds to every evaluation the norm of the gradient of all training records: for evaluations,
    since it is of private records and no epsilon counts it."""
    checkpoint_every: Count = 0
    """Rounds between two checkpoints, by default a twentieth of all; a resumed run begins there."""

    @model_validator(mode="after")
    def _check_precision(self) -> Self:
        if self.precision != "float32":
            raise InputError(
                f"precision={self.precision!r} cannot be accounted for: products would come out "
                "otherwise by the size of the batch, which one record changes, and nothing bounds "
                "what that moves in the gradients of the others; use precision = "
                '"float32", or leave it out'
            )
        return self

    @model_validator(mode="after")
    def _check_batches(self) -> Self:
        if (self.sampling_rate is None) == (self.batch_size is None):
            found = "neither" if self.sampling_rate is None else "both"
            raise InputError(
                f"give sampling_rate or batch_size, exactly one of them; {found} given"
            )
        check_batches(self.batches, self.batch_size, largest=self.largest_batch)
        rates_of(read_rates(self.learning_rate), self.rounds)  # refuses what does not fit them
        often = max(1, self.rounds // 20)
        every = {k: getattr(self, k) or often for k in ("evaluate_every", "checkpoint_every")}
        return self.model_copy(update=every)


class InterceptTable(Table):
    """[intercept]: what of the traffic is kept for the attack."""

    rounds: Rounds = ()
    """Rounds, counted from 1, whose messages are kept; by default the first and the last."""
    victims: Indices = ()
    """Agents under attack; by default the victim of [privacy], or agent 0."""


class AttackTable(Table):
    """[attack]: what is tried on the intercepted traffic."""

    paths = ("prior",)

    presets: Annotated[tuple[PresetName, ...], Field(strict=False)] = ("matched",)
    """Attacks, each with settings of its own."""
    restarts: Tries | None = None
    """Starts of each reconstruction; by default the preset's own."""
    images: Count = 8
    """Reconstructions per scenario, each of another record."""
    rounds: Rounds = ()
    """Attacked rounds; by default all that are intercepted."""
    batch: Count = 1
    """Records that are planted together, as one batch."""
    together: Count = 1
    """Rounds, from the attacked one on, in which the same records take part."""
    adversary: str = "eavesdropper"
    """Whose messages are used: eavesdropper, neighbour:K, coalition:K,L, all-others, or those of
    active-neighbour:K, who sends crafted models."""
    scenarios: Annotated[tuple[ScenarioName, ...], Field(strict=False)] = ()
    """What is intercepted; by default every scenario that the algorithm has."""
    prior: str | None = None
    """File or folder of records that the attacker is taken to know, beside public test records."""
    prior_only: bool | None = None
    """Whether it knows them in place of the public test records; else besides."""
    denoiser: str | None = None
    """What pictures are without noise, by a function of your own: "module:NAME"."""

    @model_validator(mode="after")
    def _check_known(self) -> Self:
        # What is known beforehand is of one record, and of presets that weigh it.
        if self.prior is None and self.prior_only is not None:
            raise InputError(
                f"prior_only={self.prior_only} has no effect without prior; leave it out, or "
                "name a file of records"
            )
        for key in ("prior", "denoiser"):
            value = getattr(self, key)
            if value is None:
                continue
            if self.batch > 1:
                raise InputError(
                    f"{key}={value!r} has no effect with batch={self.batch}: it speaks of one "
                    f"record at a time; set batch = 1, or leave {key} out"
                )
            if not {"matched", "posterior"} & set(self.presets):
                raise InputError(
                    f"{key}={value!r} has no effect on {', '.join(self.presets) or 'no presets'}; "
                    "name matched or posterior in presets"
                )
        if self.denoiser is not None:
            from ...training.own.names import is_own, parsed_name
            from ...training.own.objects import OBJECT

            if not is_own(self.denoiser):
                raise InputError(
                    f'denoiser={self.denoiser!r} must read "module:NAME"; none comes with overhear'
                )
            if not self.denoiser.startswith(OBJECT):
                parsed_name(self.denoiser, key="[attack] denoiser")
        return self


class AuditTable(Table):
    """[audit]: how epsilon is measured on the real engine."""

    canaries: Annotated[int, Field(ge=1, le=1_000_000)] = 1000
    """Planted records, or agents of unit = "agent", over all runs of the audit."""
    confidence: Annotated[float, Field(gt=0.5, le=1 - 1e-9)] = 0.95
    """Confidence of the first look at everything; what exceeds a proof is looked at again."""
    rounds: Count | None = None
    """Rounds that are run, by default all; fewer are compared with epsilon of so many."""
    checked_rounds: Count = 12
    """Rounds of the checks that need no canaries, at most; of many agents fewer."""
    seed: Index | None = None
    """Seed of the canaries' assignment and directions; by default from the system's entropy."""


# Where a run file may name something of one's own, and what stands there.

OWN_KEYS = (("data", "name"), ("model", "name"), ("model", "loss"), ("algorithm", "name"))
ATTACK_KEYS = (("attack", "denoiser"),)  # what a run is attacked with is no part of what it is


def named(tables: Mapping[str, object]) -> dict[str, str]:
    """The names of one's own in the tables of a run file that say what the run is, by key.

    >>> named({"model": {"name": "mine:net"}, "data": {"name": "digits"}})
    {'[model] name': 'mine:net'}
    """
    found = {}
    for table, key in OWN_KEYS:
        held = tables.get(table)
        value = held.get(key) if isinstance(held, Mapping) else None
        if isinstance(value, str) and is_own(value):
            found[f"[{table}] {key}"] = value
    return found


def names_of(config: object) -> dict[str, str]:
    """The names of one's own in a run file that was read, by key.

    Args:
        config: with a table as an attribute for each key.
    """
    tables: dict[str, dict[str, object]] = {}
    for table, key in OWN_KEYS:
        tables.setdefault(table, {})[key] = getattr(getattr(config, table, None), key, None)
    return named(tables)


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """A name of one's own where it stands in a run file, with what the file hands to it."""

    key: str
    """Of the run file, such as "[data] name"."""
    name: str
    """Of the object."""
    options: Mapping[str, object] = field(default_factory=dict)
    """Arguments of a data function, or hyper-parameters of an algorithm."""

    @property
    def line(self) -> str:
        """The call as a policy names it, in TOML; equal calls have equal lines.

        >>> Call(key="[data] name", name="mine:rows", options={"path": "a.npy", "test": True}).line
        '{key = "data.name", name = "mine:rows", options = {"path" = "a.npy", "test" = true}}'
        """
        key = self.key.removeprefix("[").replace("] ", ".")
        given = f", options = {toml_value(self.options, comparable=True)}" if self.options else ""
        return f"{{key = {json.dumps(key)}, name = {json.dumps(self.name)}{given}}}"

    @property
    def is_code(self) -> bool:
        """Whether the name is imported, and not given by Python."""
        return not self.name.startswith(OBJECT)


def calls_of(
    tables: Mapping[str, object],
    keys: Sequence[tuple[str, str]] = OWN_KEYS,
    *,
    handed: Mapping[str, Callable[[Mapping[str, object]], dict[str, object]]],
) -> list[Call]:
    """The names of one's own in the tables of a run file, with what is handed to them.

    Args:
        handed: by table, what of its values is handed to what stands at `name`.
    """
    found = []
    for table, key in keys:
        held = tables.get(table)
        if isinstance(held, Mapping) and isinstance(value := held.get(key), str) and is_own(value):
            options = handed[table](held) if table in handed and key == "name" else {}
            found.append(Call(key=f"[{table}] {key}", name=value, options=options))
    return found


def with_names(tables: Mapping[str, object]) -> dict[str, object]:
    """Tables in which objects that stand where a name may stand are given, and named.

    Raises:
        InputError: nothing could be digested; see `give`.
    """
    found = {
        name: dict(held) if isinstance(held, Mapping) else held for name, held in tables.items()
    }
    for table, key in (*OWN_KEYS, *ATTACK_KEYS):
        held = found.get(table)
        if (
            isinstance(held, dict)
            and held.get(key) is not None
            and not isinstance(held[key], _FILE)
        ):
            held[key] = give(held[key], key=f"[{table}] {key}")
    return found


_FILE = (str, bool, int, float)  # what a file could say there, and the types of the tables judge
