"""Checkpoints: the state after a round, whole or not there, and known to be what was written.

One safetensors file: the fields of the state, and beside them the round, facts of the caller's and
a SHA-256 over all of it. Noise and batches have no state that is kept: a run that goes on draws a
fresh root, so what it releases again is a new release, and who finds the file can subtract nothing.
The exception is a history, noise that later rounds take back: it is a part of the state, so such a
checkpoint is as secret as the data.

How files of a round are named, and which files of a folder are of rounds.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ...privacy.durable import write_durably
from ...privacy.errors import InputError
from ..device.later import torch
from .tensor_file import read_tensors

if TYPE_CHECKING:
    from torch import Tensor

_ROUND, _SUM, _FORMAT = "round", "sha256", "format"
FORMAT = "1"
"""Raised with every change of what a checkpoint holds; one that names none is of the first."""
_NUMBER = re.compile(r"[0-9]{1,18}")


class BrokenCheckpoint(InputError):
    """A file that is not, or not wholly, what was written as a checkpoint."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """The state after a round.

    Attributes:
        round: the round; 0 is the start.
        state: by field, as `Engine.snapshot` gives it.
        facts: what it belongs to.
    """

    round: int
    state: Mapping[str, Tensor]
    facts: Mapping[str, str] = field(default_factory=dict)


def save_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint; a crash leaves the file that was there, or this one.

    Args:
        path: the file; its folder must exist.
        checkpoint: what to write.

    Raises:
        OSError: the system refuses; the error names the file.
    """
    from safetensors.torch import save

    state = {name: value.detach().cpu().contiguous() for name, value in checkpoint.state.items()}
    facts = {**checkpoint.facts, _ROUND: str(checkpoint.round), _FORMAT: FORMAT}
    write_durably(path, save(state, metadata={**facts, _SUM: _sum(state, facts)}))


def load_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint.

    Raises:
        BrokenCheckpoint: it is not what was written, or nothing says that it is.
        ValueError: another version wrote it.
    """
    try:
        tensor_file = read_tensors(path)
    except (OSError, ValueError) as error:
        raise BrokenCheckpoint(
            f"{path} cannot be read ({error}); it is cut off or damaged"
        ) from error
    facts, state = dict(tensor_file.metadata), dict(tensor_file.tensors)
    said = facts.pop(_SUM, None)
    if said is None or not _NUMBER.fullmatch(facts.get(_ROUND, "")):
        raise BrokenCheckpoint(f"{path} carries no checksum, so it may be damaged")
    if said != _sum(state, facts):
        raise BrokenCheckpoint(f"{path} does not match its checksum; it is damaged")
    if (found := facts.pop(_FORMAT, "1")) != FORMAT:
        raise InputError(
            f"{path} is of format {found}, and this version reads {FORMAT}: another version of "
            "overhear wrote it, which environment.json of the run names; continue with that one"
        )
    return Checkpoint(round=int(facts.pop(_ROUND)), state=state, facts=facts)


def _sum(state: Mapping[str, Tensor], facts: Mapping[str, str]) -> str:
    hashed = hashlib.sha256()
    for part in [repr(sorted(facts.items())), *(sorted(state))]:
        hashed.update(part.encode() + b"\0")
    for name in sorted(state):
        value = state[name]
        hashed.update(f"{value.dtype} {tuple(value.shape)}\0".encode())
        hashed.update(value.reshape(-1).view(torch.uint8).numpy().data)
    return hashed.hexdigest()


_NAME = re.compile(r"round-([0-9]{6,18})\.safetensors")


def round_name(number: int) -> str:
    """The name of the file of a round.

    >>> round_name(7)
    'round-000007.safetensors'
    """
    return f"round-{number:06d}.safetensors"


def round_files(folder: Path) -> list[tuple[int, Path]]:
    """The rounds of which a folder has files, in their order, and the files.

    What has another name, such as a copy that a file manager made, and what is no regular file,
    is no file of a round.
    """
    found = []
    for path in folder.glob("round-*.safetensors"):
        named = _NAME.fullmatch(path.name)
        if named and path.name == round_name(int(named[1])) and path.is_file():
            found.append((int(named[1]), path))
    return sorted(found)
