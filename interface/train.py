"""The public name `train`: a run from Python, into a folder as `overhear train` leaves it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..privacy.errors import InputTypeError
from ..runs.folder.resume import resume_run
from ..runs.folder.run import train_run
from ..runs.run_file.run_file import RunFile
from ..runs.stop import tell
from ..training.models.metrics import Metrics
from .plan import config_of
from .run import Run

__all__ = ["train"]

OnRound = Callable[[int, int, float | None, Metrics | None], None]


def train(
    run: str | Path | Mapping[str, Any] | RunFile,
    out: str | Path,
    *,
    set: Mapping[str, Any] | None = None,
    resume: bool = False,
    on_round: OnRound | None = None,
) -> Run:
    """Train a run into a folder, with its ledger, and give it back.

    Args:
        run: path of a run file, or its tables as a dict, where a name may be the object itself.
        out: the folder; new, or with `resume` that of an unfinished run.
        set: values by "table.key" that replace those of the run.
        resume: whether to go on with the run in the folder.
        on_round: called with the round, the number of rounds, epsilon of the target adversary so
            far (None where it is not known) and the test metrics (None between evaluations). It
            changes nothing of the training.

    Raises:
        FileExistsError: the folder holds a run.
        FileNotFoundError: no such run file, or nothing to go on with.
        ValueError: with one sentence for each problem.
        OSError: the system refuses a file; what was released is in the ledger.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     found = train({
    ...         "data": {"name": "digits", "agents": 3}, "model": {"name": "linear"},
    ...         "algorithm": {"name": "dp-dpsgd"}, "privacy": {"epsilon": 3, "delta": 1e-5},
    ...         "training": {"rounds": 2, "sampling_rate": 0.1},
    ...     }, out=f"{folder}/run")
    ...     print(found.ledger.rounds)
    2
    """
    if on_round is not None and not callable(on_round):
        raise InputTypeError(f"on_round={on_round!r:.60} must be a function of four arguments")
    folder, config = Path(out), config_of(run, set, notice=tell)
    if resume:
        resume_run(config, folder, progress=on_round, notice=tell)
    else:
        train_run(config, folder, progress=on_round)
    return Run(folder)
