"""What a run folder keeps of rounds: states to go on from, and what was intercepted."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable
from pathlib import Path

import safetensors

from ...privacy.durable import sync_folder
from ...training.engine.checkpoint import Checkpoint
from ...training.engine.round_files import round_files
from ...training.engine.transcript import Transcript
from ..run_file.run_file import RunFile

_HALF_SAVED = "part"  # in the folder of transcripts


def snapshot_round(intercepted: int) -> int:
    """The round after which the state is kept, so that a re-enactment sees the round before too."""
    return max(intercepted - 2, 0)


def snapshot_rounds(intercepted: Iterable[int]) -> set[int]:
    """The rounds after which the state is kept for re-enactments."""
    return {snapshot_round(number) for number in intercepted}


def layout_of(start: Checkpoint, config: RunFile) -> str:
    """The layout with which a run goes on: that of its rounds, since layouts differ in rounding.

    Before the first round none is settled.
    """
    held = start.facts.get("layout") if start.round > 0 else None
    return config.training.layout if held is None else held


def forget_states(checkpoints: Path, *, kept: Callable[[int], bool], newest: int) -> None:
    """Remove all states but the newest, and those that are kept in any case.

    Args:
        kept: whether that after a round is.
        newest: how many of the others stay.
    """
    others = [path for number, path in round_files(checkpoints) if not kept(number)]
    for path in others[: len(others) - newest]:
        path.unlink()


def forget_half_saved(transcripts: Path) -> None:
    """Remove what a process left that died while it saved a transcript."""
    half = transcripts / _HALF_SAVED
    if half.is_dir():
        for path in half.iterdir():
            path.unlink()
        half.rmdir()


def save_transcript(transcript: Transcript, folder: Path) -> None:
    """Put what was intercepted into its place when it is whole, and forget it."""
    half = folder / _HALF_SAVED
    forget_half_saved(folder)
    try:
        written = transcript.save(half)
    except safetensors.SafetensorError as error:
        reason = errno.ENOSPC if f"os error {errno.ENOSPC}" in str(error) else errno.EIO
        raise OSError(reason, os.strerror(reason), str(half)) from error
    for path in written:
        if (folder / path.name).exists():
            raise FileExistsError(f"{folder / path.name} exists; a transcript is never overwritten")
        with path.open("r+b") as file:
            os.fsync(file.fileno())
        path.replace(folder / path.name)
    half.rmdir()
    sync_folder(folder)
    sync_folder(folder.parent)
    transcript.clear()
