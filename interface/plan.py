"""The public name `plan`: what a run will cost each adversary, before it is trained."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..privacy.errors import InputTypeError
from ..runs.plan.plan import Plan, make_plan
from ..runs.run_file.run_file import RunFile, load_run_file, read_tables
from .shown import overrides_of

__all__ = ["config_of", "plan"]


def config_of(
    run: str | Path | Mapping[str, Any] | RunFile,
    set: Mapping[str, Any] | None = None,
    *,
    notice: Callable[[str], None] | None = None,
) -> RunFile:
    """The run file that a path, tables of keys or a run file stand for, with some keys replaced.

    Args:
        run: path of a TOML file; keys by table, where a name may be the object itself; or a
            `RunFile`.
        set: values by "table.key".
        notice: told which files of the user run.

    Raises:
        FileNotFoundError: no such file.
        ValueError: with one sentence for each problem.
        TypeError: something else.
    """
    overrides = overrides_of(set or {})
    if isinstance(run, RunFile):
        return read_tables(run.tables(), overrides, where="run") if overrides else run
    if isinstance(run, Mapping):
        return read_tables(run, overrides)
    if isinstance(run, str | Path):
        return load_run_file(run, overrides, notice=notice)
    raise InputTypeError(
        f"run must be the path of a run file, a dict of its tables or a RunFile, not a "
        f"{type(run).__name__}"
    )


def plan(
    run: str | Path | Mapping[str, Any] | RunFile, *, set: Mapping[str, Any] | None = None
) -> Plan:
    """What a run will cost each adversary, as `overhear plan` says it.

    Args:
        run: path of a run file, or its tables as a dict, where a name may be the object itself.
        set: values by "table.key" that replace those of the run.

    Returns:
        Noise multiplier and a guarantee for each adversary, worst first; a table in a notebook.

    Raises:
        FileNotFoundError: no such file.
        ValueError: with one sentence for each problem; no noise meets the target.

    >>> found = plan({
    ...     "data": {"name": "digits", "agents": 5}, "model": {"name": "linear"},
    ...     "algorithm": {"name": "dp-dpsgd"}, "privacy": {"epsilon": 3, "delta": 1e-5},
    ...     "training": {"rounds": 20, "sampling_rate": 0.1},
    ... })
    >>> found.guarantees[0].epsilon <= 3, round(found.noise_multiplier, 3)
    (True, 1.095)
    """
    return make_plan(config_of(run, set))
