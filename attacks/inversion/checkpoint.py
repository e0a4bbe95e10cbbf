"""Where a long search writes down how far it is, so that it can go on after an interruption.

A checkpoint is one safetensors file of the search's tensors, with a digest of its problem: the
observation, the settings and what the attacker knows. It is written beside its place, synced and
then moved there, so that a crash leaves either the old file or the new one. Floating-point
values are kept bit by bit: a search that goes on ends where it would have ended, on a device that
adds up in the same order.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save
from torch import Tensor

from ...privacy.durable import write_durably
from ...privacy.errors import InputError
from ...training.engine.tensor_file import read_tensors
from ..problem.problem import Problem


def digest(*facts: object) -> str:
    """A name for a problem: equal facts have equal digests.

    Args:
        facts: tensors, numbers, strings, functions by name, None, and tuples or dataclasses of
            these; of anything else its type alone.

    Returns:
        64 hexadecimal digits.
    """
    hashed = hashlib.sha256()
    for fact in facts:
        for part in _parts(fact):
            hashed.update(len(part).to_bytes(8, "big") + part)
    return hashed.hexdigest()


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """A file and the digest of the problem that it belongs to.

    Attributes:
        path: of the file, which need not exist; its folder must.
        problem: the digest.
    """

    path: Path
    problem: str

    def save(self, tensors: Mapping[str, Tensor]) -> None:
        """Put the tensors in the place of what the file held.

        Raises:
            OSError: the system refuses; the error names the file, which is as it was.
        """
        kept = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
        write_durably(self.path, save(kept, metadata={"problem": self.problem}))

    def load(self) -> dict[str, Tensor] | None:
        """The tensors last saved, or None where there is no file.

        Raises:
            ValueError: the file belongs to another problem or is no checkpoint.
        """
        if not self.path.exists():
            return None
        try:
            tensor_file = read_tensors(self.path)
        except InputError as error:
            raise InputError(
                f"checkpoint={str(self.path)!r} is no checkpoint ({error}); delete it or name "
                "another file"
            ) from error
        if tensor_file.metadata.get("problem") != self.problem:
            raise InputError(
                f"checkpoint={str(self.path)!r} belongs to another observation, preset or prior "
                "knowledge; delete it or name another file"
            )
        return dict(tensor_file.tensors)

    def remove(self) -> None:
        """Delete the file, if there is one."""
        self.path.unlink(missing_ok=True)


def name_of(problem: Problem) -> str:
    """A name for everything that decides the result but the generator."""
    seen, box = problem.observation, problem.box
    return digest(
        seen, problem.preset, box, problem.shape, problem.classes, problem.labels,
        problem.prior_image, repr(problem.model),
    )  # fmt: skip


def _parts(fact: object) -> list[bytes]:
    if isinstance(fact, Tensor):
        values = fact.detach().cpu().contiguous()
        head = f"{values.dtype} {tuple(values.shape)}".encode()
        return [head, values.reshape(-1).view(torch.uint8).numpy().tobytes()]
    if dataclasses.is_dataclass(fact) and not isinstance(fact, type):
        named = [(f.name, getattr(fact, f.name)) for f in dataclasses.fields(fact)]
        return [part for name, value in named for part in (name.encode(), *_parts(value))]
    if isinstance(fact, tuple):
        return [str(len(fact)).encode(), *(part for value in fact for part in _parts(value))]
    if fact is None or isinstance(fact, (bool, int, float, str)):
        return [repr(fact).encode()]
    name = getattr(fact, "__qualname__", type(fact).__qualname__)
    return [str(name).encode()]
