"""[data] of a run file: a data set that comes along, files of yours, or data of your own code.

A key that has no effect beside the name is refused, and so is an unknown one, unless the name is
one of your own: then it is handed to your function.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from ...privacy.errors import InputError, did_you_mean
from ...training.own.names import is_own
from ..stop import tell
from .tables import Count, Index, NotNegative, Positive, Table
from .trust import is_foreign

if TYPE_CHECKING:
    from ...training.data.load import Dataset


_BUNDLED = ("digits", "faces", "mnist", "fashion-mnist", "cifar10", "libsvm", "image-folder")
_TABLES, _ARRAYS, _MADE = ("csv", "parquet"), ("npz", "npy"), ("quadratic",)
DATA_NAMES = (*_BUNDLED, *_MADE, *_TABLES, *_ARRAYS)

_ENVIRONMENT_ROOT = "OVERHEAR_DATA"
_ROOT_FROM_ENVIRONMENT = ("mnist", "fashion-mnist", "cifar10")
_NO_ROOT = ("digits", "faces", *_MADE, *_ROOT_FROM_ENVIRONMENT)
_OWN = '"module:NAME"'

Cells = Annotated[list[str | int | float], Field(strict=False)]
Columns = dict[str, Annotated[list[Any], Field(strict=False)]]


class DataTable(Table):
    """[data]: the records and how the agents share them."""

    belongs: ClassVar[Mapping[str, tuple[str, str | tuple[str, ...]]]] = {
        "concentration": ("partition", "dirichlet"),
        "shards": ("partition", "shards"),
        "features": ("name", "libsvm"),
        "labels": ("name", "libsvm"),
        "test": ("name", ("libsvm", *_TABLES)),
        "columns": ("name", _TABLES),
        "target": ("name", (*_TABLES, "npy")),
        "outside": ("name", _TABLES),
        "missing": ("name", _TABLES),
        "separator": ("name", "csv"),
        "cache": ("name", _TABLES),
        "user": ("name", _TABLES),
        "classes": ("name", (*_TABLES, *_ARRAYS, _OWN)),
        "outputs": ("name", (*_TABLES, *_ARRAYS, _OWN)),
        "form": ("name", _MADE),
        "dimension": ("name", _MADE),
        "rotation": ("name", _MADE),
        "condition": ("name", _MADE),
        "records": ("name", _MADE),
        "spread": ("name", _MADE),
        "seed": ("name", _MADE),
        "options": ("name", _OWN),
    }
    paths = ("root", "test", "target", "cache")
    name: str
    """A data set, csv, parquet, npz, npy, or your own as "module:NAME"; nothing is downloaded."""
    root: str | None = None
    """Where its files are; for mnist, fashion-mnist and cifar10 the environment's OVERHEAR_DATA."""
    agents: Count = 10
    """Number of agents, A."""
    partition: Literal["iid", "dirichlet", "shards"] = "iid"
    """How the records are dealt to the agents."""
    concentration: Positive = 0.5
    """Concentration of the Dirichlet draw; small: few agents hold most of a class."""
    shards: Count = 2
    """Shards for each agent."""
    validation: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Share of the training records that is kept from training; metrics are taken on them."""
    feature_norm: Positive | None = None
    """Public bound on the L2 norm of a record's inputs: longer ones are shortened to it."""
    most_records: Count | None = None
    """Public bound on the training records of any agent; a run in which one has more is refused."""
    features: Count | None = None
    """Public number of features of a libsvm file."""
    labels: Annotated[tuple[int, ...], Field(strict=False, min_length=2)] | None = None
    """Public labels of a libsvm file, in the order of their numbers; without it the file tells
    them, and they count as public."""
    test: str | None = None
    """File of test records; for libsvm by default the file's name with `.t`."""
    columns: Columns | None = None
    """Public ranges, days and categories of a table's columns, such as {age = [0, 120]}."""
    target: str | None = None
    """The column that is predicted; for npy the file with the labels."""
    outside: Literal["refuse", "clamp"] = "refuse"
    """What happens to a value outside of its column's range."""
    missing: Cells | dict[str, Cells] | None = None
    """Cells of a table that are missing, such as ["NA"], in every column or by column."""
    separator: Annotated[str, Field(pattern=r"^[^\n\r\"]$")] = ","
    """What stands between the cells of a csv file."""
    cache: str | None = None
    """Folder of converted tables; by default one beside a table of more than 32 MiB."""
    user: str | None = None
    """Column that names whose record it is; needs [privacy] records_per_person, the public cap."""
    classes: Annotated[int, Field(ge=2)] | None = None
    """Public number of classes; without it the labels tell it, and it counts as public."""
    outputs: Count | None = None
    """How many numbers are predicted of a record, in place of a class."""
    form: Literal["whisper"] | None = None
    """The quadratics of Whisper's paper, in place of some that are turned from agent to agent."""
    dimension: Annotated[int, Field(ge=2)] = 2
    """How many inputs a record of `quadratic` has."""
    rotation: Annotated[float, Field(allow_inf_nan=False)] = 15.0
    """Degrees by which an agent's quadratic is turned from the one before, or the second half."""
    condition: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 10.0
    """Largest curvature of the quadratics over the smallest."""
    records: Count = 100
    """How many records each agent has, at least dimension + 2."""
    spread: NotNegative = 0.1
    """Deviation of the targets from the quadratic's line."""
    seed: Index = 0
    """Public seed of the records that are made; the quadratics do not depend on it."""
    options: dict[str, Any] = Field(default_factory=dict)  # by name, for the user's function
    """Arguments of your own function; every other key of the table is one of them."""

    @classmethod
    def handed(cls, values: Mapping[str, object]) -> dict[str, object]:
        """What of a table's values a function of the user is handed: keys that are nobody's."""
        given = values.get("options", {})
        own = {key: value for key, value in values.items() if key not in cls._known()}
        return {**given, **own} if isinstance(given, Mapping) else {**own, "options": given}

    @classmethod
    def _known(cls) -> set[str]:
        return cls.model_fields.keys() - {k for k, at in cls.belongs.items() if at[1] == _MADE}

    @model_validator(mode="before")
    @classmethod
    def _find_options(cls, values: Any) -> Any:
        """Put the keys that are nobody's aside, where a function of the user may take them."""
        if not isinstance(values, Mapping) or not is_own(str(values.get("name", ""))):
            return values
        kept = {key: value for key, value in values.items() if key in cls._known()}
        is_table = isinstance(kept.get("options", {}), Mapping)
        return {**kept, "options": cls.handed(values)} if is_table else kept

    def _idle(self, key: str) -> bool:
        if self.belongs[key][0] == "name" and is_own(self.name):
            return _OWN not in self._homes(key)
        return super()._idle(key)

    @model_validator(mode="after")
    def _check_name(self) -> Self:
        if not is_own(self.name) and self.name not in DATA_NAMES:
            raise InputError(
                f"name={self.name!r} must be one of {', '.join(DATA_NAMES)} or "
                f"{_OWN}{did_you_mean(self.name, DATA_NAMES)}"
            )
        if is_own(self.name) and self.root is not None:
            raise InputError(
                f"root={self.root!r} has no effect with name={self.name!r}; hand a path to your "
                "function by another key, or leave it out"
            )
        if self.classes and self.outputs:
            raise InputError(f"classes={self.classes} and outputs={self.outputs}: give one of them")
        if self.outputs and self.partition != "iid":
            raise InputError(
                f"partition={self.partition!r} deals by class, and numbers to predict have none; "
                'use "iid"'
            )
        return self

    @model_validator(mode="after")
    def _check_made(self) -> Self:
        if self.name in _MADE and self.partition != "iid":
            raise InputError(
                f"partition={self.partition!r} has no effect with name={self.name!r}, whose "
                "records are made for each agent; leave it out"
            )
        if self.name in _MADE and self.root is not None:
            raise InputError(f"root={self.root!r} has no effect with name={self.name!r}")
        for key in ("dimension", "condition"):
            if self.form == "whisper" and key in self.model_fields_set:
                raise InputError(
                    f"{key}={getattr(self, key)} has no effect with form='whisper', whose "
                    "quadratics have dimension 2 and curvatures 15 and 1; leave it out"
                )
        return self

    @model_validator(mode="after")
    def _find_root(self) -> Self:
        if self.root is None and self.name in _ROOT_FROM_ENVIRONMENT:
            return self.model_copy(update={"root": os.environ.get(_ENVIRONMENT_ROOT) or None})
        if self.root is None and self.name not in _NO_ROOT and not is_own(self.name):
            raise InputError(f"root is missing; data {self.name!r} is read from a path of yours")
        if self.name == "libsvm" and self.features is None:
            raise InputError("features is missing; the number of features is a public choice")
        if self.labels is not None and len(set(self.labels)) < len(self.labels):
            raise InputError(f"labels={list(self.labels)} must name each label once")
        if self.name == "npy" and self.target is None:
            raise InputError("target is missing; name the npy file of the labels")
        return self

    @model_validator(mode="after")
    def _check_columns(self) -> Self:
        if self.name not in _TABLES:
            return self
        if not self.columns:
            from ...training.data.table_rows import undeclared

            raise undeclared(
                Path(self.root or ""), form=self.name, separator=self.separator, target=self.target
            )
        if self.target is None:
            raise InputError("target is missing; name the column that is predicted")
        of_target = self.columns.get(self.target, [])
        if self.classes and of_target:
            raise InputError(
                f"classes={self.classes} has no effect beside the declared labels of "
                f"{self.target!r}; leave it out"
            )
        self.declared()
        if self.user is not None and self.user in (self.target, *self.columns):
            raise InputError(
                f"user={self.user!r} is declared as an input or as the target, too; whose record "
                "it is may not be learned from: leave it out of columns"
            )
        return self

    @model_validator(mode="after")
    def _check_user(self) -> Self:
        if self.user is not None and self.partition != "iid":
            raise InputError(
                f"partition={self.partition!r} deals by class, and the records of a user stay "
                'together; use "iid", or leave user out'
            )
        return self

    @property
    def predicts(self) -> int | None:
        """Numbers to predict of a record; None of classes."""
        return 1 if self.name in _MADE else self.outputs

    @property
    def source(self) -> Literal["function", "arrays", "rows"]:
        """What makes items: code of the user, what made an array, or a reader that takes rows."""
        if is_own(self.name):
            return "function"
        return "arrays" if self.name in (*_ARRAYS, "libsvm") else "rows"

    @property
    def reads_classes(self) -> bool:
        """Whether the number of classes is to be told by the labels."""
        if self.classes or self.predicts or self.name in _BUNDLED:
            return False
        return self.name not in _TABLES or self.declared().classes is None

    def declared(self) -> Any:
        """The declaration of a table's columns.

        Raises:
            ValueError: a column is declared by what is no range and no list of categories.
        """
        from ...training.data.columns import declared

        return declared(
            self.columns or {},
            target=self.target or "",
            outputs=self.outputs or 0,
            clamp=self.outside == "clamp",
            missing=self.missing or (),
        )

    def check_held(self, largest: int) -> None:
        """Refuse an agent that holds more records than `most_records`.

        Raises:
            ValueError: the agent that holds most has `largest` of them.
        """
        if self.most_records is not None and largest > self.most_records:
            raise InputError(
                f"[data] most_records={self.most_records} must be at least the {largest} records "
                "of the agent that holds most; raise it, or give that agent fewer"
            )

    def read(self) -> Dataset:
        """The data set, before anything of it is kept for validation; inputs within feature_norm.

        Raises:
            FileNotFoundError: a file is missing.
            ValueError: what is read or made is no such data set.
        """
        found = self._read()
        if self.feature_norm is None:
            return found
        from ...training.recipients import with_feature_norm

        return with_feature_norm(found, self.feature_norm)

    def _read(self) -> Dataset:
        from ...training.data.load import load_dataset
        from ...training.data.own_data import own_dataset, read_npy, read_npz
        from ...training.data.quadratic import quadratic
        from ...training.data.table import read_table, read_users, table_dataset

        if is_own(self.name):
            return own_dataset(
                self.name, self.options, classes=self.classes, outputs=self.outputs or 0
            )
        # Arrays, tables and made data by their own readers; all else comes with a library.
        root = Path(self.root or "").expanduser()
        match self.name:
            case "npz":
                return read_npz(root, classes=self.classes, outputs=self.outputs or 0)
            case "npy":
                target = Path(self.target or "").expanduser()
                return read_npy(root, target, classes=self.classes, outputs=self.outputs or 0)
            case "csv" | "parquet":
                # What a folder names is not converted to where it says, nor beside its table.
                cache = None if is_foreign(("[data] cache", self.cache or "")) else self.cache
                test = [] if self.test is None else [Path(self.test).expanduser()]
                others = Counter[str]()
                declaration, form, separator = self.declared(), self.name, self.separator
                stores = [
                    read_table(
                        one,
                        declaration,
                        form=form,
                        separator=separator,
                        cache=None if cache is None else Path(cache).expanduser(),
                        keep=cache == self.cache
                        and not is_foreign(("[data] root", self.root or "")),
                        others=others,
                    )
                    for one in (root, *test)
                ]
                found = table_dataset(
                    stores,
                    declaration,
                    name=root.name,
                    classes=self.classes,
                    users=None
                    if self.user is None
                    else read_users(root, self.user, form=form, separator=separator),
                )
                if told := ", ".join(
                    f"{name} {count:,}" for name, count in others.items() if count
                ):
                    tell(
                        f"{root.name}: cells that [data] columns does not declare count as other: "
                        f"{told}. No file of the run has these counts."
                    )
                return found
            case "quadratic":
                return quadratic(
                    self.agents,
                    form=self.form,
                    dimension=self.dimension,
                    rotation=self.rotation,
                    condition=self.condition,
                    records=self.records,
                    spread=self.spread,
                    seed=self.seed,
                )
        return load_dataset(
            self.name, root=self.root, features=self.features, test=self.test, labels=self.labels
        )

    def entries(self) -> dict[str, object]:
        """See `Table.entries`; options stand as keys of their own."""
        found = super().entries()
        options = found.pop("options", {})
        return {**found, **options} if isinstance(options, dict) else found
