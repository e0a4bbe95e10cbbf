"""The run file: one TOML document that says everything about a run.

    [data]      which records, and how the agents share them
    [graph]     who talks to whom
    [model]     what is trained
    [algorithm] how, with its own hyper-parameters
    [privacy]   the target, the adversary whose epsilon must meet it, the units of the statement
    [training]  rounds, batches, seeds
    [intercept] what of the traffic is kept
    [attack]    what is tried on it
    [audit]     how epsilon is measured

Loading resolves every default, so that `RunFile.to_toml` is the whole story of a run. Paths are
relative to the working directory, as on the command line.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from pydantic import ValidationError, model_validator

from ...privacy.errors import InputError
from .problems import sentences
from .tables import (
    AlgorithmTable,
    AttackTable,
    AuditTable,
    DataTable,
    GraphTable,
    InterceptTable,
    ModelTable,
    PrivacyTable,
    Table,
    TrainingTable,
)
from .toml import merge_overrides, write_toml

__all__ = ["RunFile", "load_run_file", "run_file_schema"]


class RunFile(Table):
    """A whole run file, checked and with every default resolved.

    Raises:
        pydantic.ValidationError: if made directly; `load_run_file` raises one readable ValueError.

    >>> run = RunFile.model_validate({
    ...     "data": {"name": "digits"}, "model": {"name": "mlp"}, "algorithm": {"name": "dpdl"},
    ...     "privacy": {"epsilon": 4.0, "delta": 1e-5},
    ...     "training": {"rounds": 200, "sampling_rate": 0.02},
    ... })
    >>> run.intercept.rounds, run.algorithm.settings().momentum
    ((1, 200), 0.9)
    """

    data: DataTable
    graph: GraphTable = GraphTable()
    model: ModelTable
    algorithm: AlgorithmTable
    privacy: PrivacyTable | None = None
    training: TrainingTable
    intercept: InterceptTable = InterceptTable()
    attack: AttackTable = AttackTable()
    audit: AuditTable = AuditTable()

    @model_validator(mode="after")
    def _resolve(self) -> Self:
        from .cross_checks import resolve_tables

        return self.model_copy(update=resolve_tables(self))

    def to_toml(self) -> str:
        """The resolved run file as TOML; reading it gives an equal run file."""
        tables = {name: getattr(self, name) for name in type(self).model_fields}
        return write_toml(
            {name: table.entries() for name, table in tables.items() if table is not None}
        )


def load_run_file(path: str | Path, overrides: Sequence[str] = ()) -> RunFile:
    """Read, override, check and resolve a run file.

    Args:
        path: the TOML file.
        overrides: "table.key=value", the value as in TOML (a bare word is a string). One that
            gives epsilon or noise_multiplier, sampling_rate or batch_size replaces the other.

    Raises:
        FileNotFoundError: no such file.
        ValueError: with one sentence for each problem.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no run file at {path}")
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not TOML: {error}") from error
    merge_overrides(values, overrides)
    try:
        return RunFile.model_validate(values)
    except ValidationError as error:
        found = sentences(error, run_file_schema(algorithms=False))
        if len(found) == 1:
            raise InputError(f"{path}: {found[0]}") from None
        lines = "".join(f"\n  {sentence}" for sentence in found)
        raise InputError(f"{path} has {len(found)} problems:{lines}") from None


def run_file_schema(*, algorithms: bool = True) -> dict[str, Any]:
    """JSON schema of the run file, by default with the hyper-parameters of every algorithm."""
    schema = RunFile.model_json_schema()
    schema["description"] = "What one run of overhear does."
    if algorithms:
        from .hyper_parameters import settings_schema

        schema["$defs"]["AlgorithmTable"] |= settings_schema()
    return schema
