"""Kept transcripts: what a release was made of, as one safetensors file beside the log.

    value/i    (D,)     what was sent, i being its place among the releases of its line's round
    known/i    (D,)     what of it everybody may know; missing where nothing
    scale/i    (1,)     value = known + scale (sum of weighted clipped vectors + noise)
    batch/i/j  (B,)     positions in the batch of vector j of `of`
    records/i/j (1,)    how many records the batch was drawn from
    point/i/j  (D',)    where the gradients of vector j were taken
    noise/i/j  (D,)     source j of `noise` as it is in the sum, where the recorder drew it
    rows/i/j   (B, 64)  sketches of what each record of the batch added to the sum
    salt       (32,)    random bytes, so that the digest in the log does not tell guesses apart

All of it is private: whoever has it knows who was in a batch and what hides them. Files are for
their owner alone.
"""

from __future__ import annotations

import hashlib
import math
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from ....privacy.bounded import read_bounded
from ....privacy.durable import make_folder, sync_folder, write_durably
from ....privacy.errors import InputError
from ....training.engine.tensor_file import tensors_of
from .vectors import check_precise, positions_of, vector_of

_MOST_BYTES = 8 << 30
_PARTS = ("value", "known", "scale", "batch", "records", "point", "noise", "rows")


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Kept:
    """The transcript of one release; of its vectors and sources, by their place.

    Attributes:
        value: (D,) what was sent.
        known: (D,), None where nothing of it is known.
        scale: of the sum and its noise.
        batches: (B,) positions of a vector's batch.
        records: that the batch was drawn from.
        points: (D',) of a vector's gradients.
        noise: (D,) of a source, with its weight.
        rows: (B, 64) sketches of what each record of a batch added.
    """

    value: Tensor
    known: Tensor | None
    scale: float
    batches: Mapping[int, Tensor]
    records: Mapping[int, int]
    points: Mapping[int, Tensor]
    noise: Mapping[int, Tensor]
    rows: Mapping[int, Tensor] = field(default_factory=dict)


def kept_folder(log: Path) -> Path:
    """Where the transcripts of a log lie.

    >>> kept_folder(Path("ledger/agent-0.jsonl")).name
    'agent-0.kept'
    """
    return log.with_suffix(".kept")


def keep(log: Path, kept: Kept, *, round: int, place: int) -> str:
    """Write a transcript beside its log; returns when it is on the disk.

    Args:
        log: the log's file.

    Returns:
        The SHA-256 of the file.

    Raises:
        OSError: it cannot be written.
    """
    from safetensors.torch import save

    tensors = {
        f"value/{place}": kept.value,
        f"scale/{place}": torch.tensor([kept.scale], dtype=torch.float64),
    }
    if kept.known is not None:
        tensors[f"known/{place}"] = kept.known
    for name, parts in (
        ("batch", kept.batches), ("point", kept.points), ("noise", kept.noise), ("rows", kept.rows)
    ):  # fmt: skip
        tensors |= {f"{name}/{place}/{j}": part.contiguous() for j, part in parts.items()}
    tensors |= {f"records/{place}/{j}": torch.tensor([n]) for j, n in kept.records.items()}
    tensors["salt"] = torch.frombuffer(bytearray(secrets.token_bytes(32)), dtype=torch.uint8)
    data = save(tensors)
    digest, folder = hashlib.sha256(data).hexdigest(), kept_folder(log)
    if not folder.is_dir():
        make_folder(folder)
        sync_folder(folder.parent)
    write_durably(_file(folder, round, digest), data)
    return digest


def _file(folder: Path, round: int, digest: str) -> Path:
    return folder / f"round-{round}-{digest[:32]}.safetensors"


def read_kept(log: Path, digest: str, round: int) -> Kept:
    """Read the transcript that a line names.

    Raises:
        FileNotFoundError: it is not beside the log.
        ValueError: it is another file than the line names, or no transcript.
    """
    path = _file(kept_folder(log), round, digest)
    if not path.exists():
        raise FileNotFoundError(
            f"{path} does not exist, which {log.name} names as kept in round {round}; put it back, "
            "since who may leave out what was kept chooses what is checked"
        )
    data = read_bounded(path, _MOST_BYTES)
    if hashlib.sha256(data).hexdigest() != digest:
        raise InputError(
            f"{path} is not what {log.name} names in round {round}, by its digest; put it back as "
            "it was written"
        )
    try:
        return _parsed(tensors_of(path, data))
    except (KeyError, ValueError, IndexError, RuntimeError, TypeError) as error:
        raise InputError(f"{path} is no transcript of a release: {error}") from error


def _parsed(tensors: Mapping[str, Tensor]) -> Kept:
    found: dict[str, dict[int, Tensor]] = {name: {} for name in _PARTS}
    for key, tensor in tensors.items():
        name, *at = key.split("/")
        if name != "salt":
            found[name][int(at[1]) if len(at) > 1 else 0] = tensor
    value, scale = vector_of(found["value"][0], "value"), float(found["scale"][0])
    check_precise(value, "value")
    known = vector_of(found["known"][0], "known") if found["known"] else None
    noise = {j: vector_of(one, "noise") for j, one in found["noise"].items()}
    added = [*noise.values(), *([] if known is None else [known])]
    if any(len(one) != len(value) for one in added):
        raise InputError("its value, what is known and its noise differ in length")
    if not math.isfinite(scale) or scale == 0:
        raise InputError(f"scale={scale} must be a number that is not 0")
    return Kept(
        value=value,
        known=known,
        scale=scale,
        batches={j: torch.from_numpy(positions_of(one)) for j, one in found["batch"].items()},
        records={j: int(n) for j, n in found["records"].items()},
        points={j: vector_of(one, "point") for j, one in found["point"].items()},
        noise=noise,
        rows={j: one.double() for j, one in found["rows"].items()},
    )
