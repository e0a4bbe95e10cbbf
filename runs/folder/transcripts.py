"""Transcripts of intercepted rounds in a run folder: in their place when they are whole."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import safetensors

from ...privacy.durable import sync_folder
from ...training.engine.transcript import Transcript

__all__ = ["forget_half_saved", "save_transcript"]

_HALF_SAVED = "part"  # in the folder of transcripts


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
