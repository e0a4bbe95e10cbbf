"""What of a run file has to be the same when its run goes on: all but the device."""

from __future__ import annotations

from pathlib import Path

from ...privacy.errors import InputError
from .run_file import RunFile, load_run_file

__all__ = ["check_same"]


def check_same(config: RunFile, path: Path) -> None:
    """The run file must be that of the run; the first key that differs is named.

    What a round costs does not depend on where it is computed.

    Args:
        config: with which it is to go on.
        path: the run file that it was begun with.

    Raises:
        ValueError: it is another one.
    """
    kept = load_run_file(path, of_folder=True)
    where = config.training.model_copy(update={"device": kept.training.device})
    config = config.model_copy(update={"training": where})
    if config == kept:
        return
    for table in type(config).model_fields:
        mine, theirs = (getattr(run, table) for run in (config, kept))
        given, held = ({} if t is None else t.entries() for t in (mine, theirs))
        for key in [*given, *(k for k in held if k not in given)]:
            if given.get(key) != held.get(key):
                raise InputError(
                    f"[{table}] {key}={given.get(key)!r} differs from {held.get(key)!r} in "
                    f"{path}; a run is continued as it was begun, so give that file, or choose "
                    "another folder for a new run"
                )
    raise InputError(f"the run file differs from {path}; give that file")
