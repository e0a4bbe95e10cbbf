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
import inspect
import math
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...privacy.errors import InputError, InputTypeError
from ...privacy.files import make_folder, read_bounded, sync_folder, write_durably
from ...privacy.releases.values import Clip, shown
from ...training.device.later import is_network, is_tensor, torch
from ...training.engine.tensor_file import tensors_of

if TYPE_CHECKING:
    from torch import Tensor, nn

# Vectors and positions as a caller has them: tensors, arrays, models, lists.


def is_precise(found: Tensor | NDArray[Any]) -> bool:
    """Whether its numbers have the digits of float32 or float64."""
    return precision_of(found) in ("float32", "float64")


def precision_of(found: Tensor | NDArray[Any]) -> str:
    """The name of its numbers, such as "float32", whichever end comes first."""
    return getattr(found.dtype, "name", str(found.dtype).removeprefix("torch."))


def as_tensor(found: Tensor | NDArray[Any]) -> Tensor:
    """The same numbers as a tensor, of an array on the host."""
    return found if is_tensor(found) else torch.from_numpy(found)


def vector_of(found: Any, name: str) -> Tensor:
    """A flat vector (D,) on the host, in the precision that it has; see `flat_of`."""
    return as_tensor(flat_of(found, name))


def flat_of(found: Any, name: str) -> Tensor | NDArray[Any]:
    """A flat vector (D,) on the host, in its own precision; an array if no part is a tensor.

    Args:
        found: a tensor, an array, a model, or a sequence or mapping of tensors, laid end to end.
        name: what it is called in errors.

    Raises:
        TypeError: it is none of these.
        ValueError: it holds a number that is not finite.

    >>> flat_of([np.ones((2, 2)), np.zeros(1)], "value").tolist()
    [1.0, 1.0, 1.0, 1.0, 0.0]
    """
    try:
        flat = _flat(found, name)
        if isinstance(flat, np.ndarray):
            finite = np.isfinite(flat)
        else:
            finite = torch.isfinite(flat if is_precise(flat) else flat.float()).numpy()
    except (RuntimeError, OverflowError) as error:  # sparse, without data, or too large a number
        raise _no_vector(found, name) from error
    if not finite.all():
        at = int(np.flatnonzero(~finite)[0])
        raise InputError(
            f"{name} holds {float(flat[at])} at coordinate {at}; nothing that is not finite may be "
            "released: a receiver would see that a sum overflowed, which depends on the records"
        )
    return flat


def _flat(found: Any, name: str) -> Tensor | NDArray[Any]:
    if is_network(found):
        from ...training.models.parameters import flatten

        return flatten(found).detach().cpu().clone()
    if isinstance(found, Mapping):
        found = list(found.values())
    if isinstance(found, Sequence) and not isinstance(found, str | bytes | bytearray) and found:
        if all(isinstance(one, np.ndarray) for one in found):
            return np.concatenate([_flat(one, name) for one in found])
        if all(is_tensor(one) or isinstance(one, np.ndarray) for one in found):
            return torch.cat([as_tensor(_flat(one, name)) for one in found])
        if all(isinstance(one, int | float) and not isinstance(one, bool) for one in found):
            return np.array(found, dtype=np.float64)
    if isinstance(found, np.ndarray) and found.dtype.kind == "f" and found.dtype.itemsize <= 8:
        # A copy: later steps of the caller may work in place.
        return np.array(found, dtype=found.dtype.newbyteorder("=")).ravel()
    if is_tensor(found) and found.is_floating_point():
        return found.detach().cpu().reshape(-1).clone()
    raise _no_vector(found, name)


def _no_vector(found: Any, name: str) -> InputTypeError:
    return InputTypeError(
        f"{name}={shown(found)} must be a tensor or array of floats, dense and of at most 64 bits "
        "each, a model, or a list of them"
    )


def plain(found: Any) -> Any:
    """Numbers of numpy as those of Python, and tuples and sets as lists."""
    if isinstance(found, np.ndarray) or is_tensor(found):
        return plain(found.tolist())
    if isinstance(found, np.generic):
        return found.item()
    if isinstance(found, Mapping):
        return {str(key): plain(of) for key, of in found.items()}
    if isinstance(found, set | frozenset):
        return sorted(map(plain, found), key=str)
    if isinstance(found, list | tuple | range):
        return [plain(one) for one in found]
    return found


def check_precise(found: Tensor, name: str) -> None:
    """Refuse numbers of so few digits that rounding hides what a check looks for."""
    if not is_precise(found):
        raise InputError(
            f"{name} is {str(found.dtype).removeprefix('torch.')}, whose rounding hides faults as "
            "large as the noise; release float32 or float64, or leave the round out of keep"
        )


def positions_of(found: Any) -> NDArray[np.int64]:
    """Positions (B,) of records, ascending.

    Raises:
        TypeError: no whole numbers.
        ValueError: a position below 0, or one that stands twice.
    """
    if is_tensor(found):
        found = found.detach().cpu().numpy()
    array = np.asarray(found)
    if array.size == 0 and array.ndim == 1:
        return np.zeros(0, dtype=np.int64)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise InputTypeError(
            f"batch={shown(found)} must be the positions of its records, a list of whole numbers"
        )
    ordered = np.sort(array.astype(np.int64))
    if ordered[0] < 0:
        raise InputError(f"batch holds position {ordered[0]}; positions count from 0")
    twice = ordered[1:][ordered[1:] == ordered[:-1]]
    if len(twice):
        raise InputError(
            f"batch holds position {twice[0]} twice, and then a record moves the sum by twice its "
            "clip norm; hold each record once"
        )
    return ordered


def each_of(found: Any, vectors: int, name: str) -> tuple[Any, ...]:
    """One of a thing for each vector of `of`: a tuple as it is, one thing for all of them.

    Raises:
        ValueError: a tuple of another length.
    """
    if not isinstance(found, tuple):
        return (found,) * vectors
    if len(found) != vectors:
        raise InputError(
            f"{name} is a tuple of {len(found)}, and `of` has {vectors} vectors; give one for "
            "each, None where it is another agent's"
        )
    return found


_MOST_BYTES = 8 << 30
_PARTS = ("value", "known", "scale", "batch", "records", "point", "noise", "rows")


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class KeptTranscript:
    """The transcript of a release, in the shapes above; of vectors and sources, by their place."""

    value: Tensor
    known: Tensor | None
    scale: float
    batches: Mapping[int, Tensor]
    records: Mapping[int, int]
    points: Mapping[int, Tensor]
    noise: Mapping[int, Tensor]
    rows: Mapping[int, Tensor] = field(default_factory=dict)


def kept_folder(log: Path) -> Path:
    """Where the transcripts of a log lie."""
    return log.with_suffix(".kept")


def keep(log: Path, kept: KeptTranscript, *, round: int, place: int) -> str:
    """Write a transcript beside its log; returns when it is on the disk.

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


def read_kept(logs: Sequence[Path], digest: str, round: int) -> KeptTranscript:
    """Read the transcript that a line names, beside whichever of a system's logs it lies.

    Raises:
        FileNotFoundError: it is not beside the log.
        ValueError: it is another file than the line names, or no transcript.
    """
    every = [(log, _file(kept_folder(log), round, digest)) for log in logs]
    log, path = next((one for one in every if one[1].exists()), every[0])
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


def _parsed(tensors: Mapping[str, Tensor]) -> KeptTranscript:
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
    return KeptTranscript(
        value=value,
        known=known,
        scale=scale,
        batches={j: torch.from_numpy(positions_of(one)) for j, one in found["batch"].items()},
        records={j: int(n) for j, n in found["records"].items()},
        points={j: vector_of(one, "point") for j, one in found["point"].items()},
        noise=noise,
        rows={j: one.double() for j, one in found["rows"].items()},
    )


# Sketches: 64 numbers of a clipped vector, by which it is told from another one.

_BUCKETS = 64
_AT_ONCE = 1 << 16  # columns in float64


def sketch(parts: Sequence[Tensor], clip: float) -> Tensor:
    """(B, 64) of rows that are clipped: in bucket b the sum of +-r_d over d = b mod 64.

    The square of its length is that of the row but for a deviation of sqrt(2 / 64). It is linear
    in the clipped row, so differences are as long, too (Charikar, Chen and Farach-Colton 2002).

    Args:
        parts: (B, ...) tensors that are laid end to end.
        clip: the bound on the length of a row.

    >>> rows = torch.tensor([[3.0, 4.0], [0.3, 0.4]])
    >>> [round(float(one), 3) for one in sketch([rows], 1.0).norm(dim=1)]
    [1.0, 0.5]
    """
    flat = [one.detach().reshape(len(one), math.prod(one.shape[1:])) for one in parts]
    if isinstance(clip, Clip):
        flat = [clipped_rows(torch.cat(flat, dim=1), clip)]
    rows, width = len(flat[0]), sum(one.shape[1] for one in flat)
    # Public and the same for all: honest mistakes are looked for, by two who share no secret.
    signs = torch.from_numpy(
        2.0 * np.random.default_rng(width).integers(0, 2, width, dtype=np.int8) - 1.0
    )
    found = torch.zeros(rows, _BUCKETS, dtype=torch.float64)
    squares, at = torch.zeros(rows, dtype=torch.float64), 0
    for one in flat:
        for columns in one.split(_AT_ONCE, dim=1):
            values = columns.cpu().double()
            to = torch.arange(at, at + values.shape[1])
            found.index_add_(1, to % _BUCKETS, values * signs[to])
            squares += values.square().sum(dim=1)
            at += values.shape[1]
    if math.isfinite(clip):
        found *= (clip / squares.sqrt().clamp(min=clip))[:, None]
    return found


def clipped_rows(each: Tensor, clip: float) -> Tensor:
    """(B, D) rows that are no longer than a clip norm, or by parts no longer than theirs.

    Raises:
        ValueError: parts of another length than the rows.
    """
    parts = clip.parts if isinstance(clip, Clip) else ()
    parts = parts or ((each.shape[1], float(clip)),)
    if sum(size for size, _ in parts) != each.shape[1]:
        raise InputError(
            f"the parts of clip have {sum(size for size, _ in parts)} coordinates, and a vector "
            f"has {each.shape[1]}; give the sizes of all parts, end to end"
        )
    split = each.split([size for size, _ in parts], dim=1)
    return torch.cat(
        [
            part * (bound / part.norm(dim=1, keepdim=True).clamp(min=bound))
            if math.isfinite(bound)
            else part
            for part, (_, bound) in zip(split, parts, strict=True)
        ],
        dim=1,
    )


# Gradients by somebody who did not train: a function of the auditor's, or a model and its loss.

_LONGEST_ERROR = 300
_EXACT = 1e-12  # relative, what clipping in float64 may be off by
Gradients = Callable[..., Any] | Mapping[int, Callable[..., Any]]


class ClippedSum(NamedTuple):
    """Clipped gradients of a batch, added up.

    Attributes:
        value: (D,) float64.
        cut_off: (D,) what clipping took off: the sum without it, less the sum.
        norms: (B,) of the gradients before clipping.
        longer: how many of them are longer than the bound, or in a part than that of the part.
        clip: the bound.
        rows: (B, 64) sketches of the clipped gradients.
    """

    value: Tensor
    cut_off: Tensor
    norms: Tensor
    longer: int
    clip: float
    rows: Tensor


class Oracle:
    """Asks the auditor's function for gradients, and clips and adds what it returns.

    Args:
        gradients: (point, positions) -> (B, D) per-example gradients of an agent, unclipped; with a
            parameter `agent` it is told whose records they are; or such a function by agent.

    Raises:
        TypeError: it cannot be called.
    """

    def __init__(self, gradients: Gradients) -> None:
        every = gradients.values() if isinstance(gradients, Mapping) else [gradients]
        if not all(callable(one) for one in every):
            raise InputTypeError(
                f"gradients={shown(gradients)} must be a function (point, positions) -> (B, D), or "
                "one by agent"
            )
        self._gradients = gradients

    def clipped_sum(
        self, agent: int, point: Tensor, positions: Tensor, *, clip: float, shape: tuple[int, int]
    ) -> ClippedSum:
        """The sum of an agent's clipped gradients.

        Args:
            agent: whose records.
            point: (D',) as it was kept.
            positions: (B,) of the records.
            clip: the bound, infinite where nothing is clipped.
            shape: (B, D), D that of the message; (1, D) where the unit is a client.

        Raises:
            ValueError: what the function returns is no (B, D) of finite numbers.
        """
        each = self._each(agent, point, positions, shape)
        norms = each.norm(dim=1)
        short = clipped_rows(each, clip)
        value, longer = short.sum(dim=0), int((short.norm(dim=1) < norms * (1 - _EXACT)).sum())
        return ClippedSum(value, each.sum(dim=0) - value, norms, longer, clip, sketch([each], clip))

    def clipped_rows(
        self, agent: int, point: Tensor, positions: Tensor, *, clip: float, width: int
    ) -> Tensor:
        """(B, 64) sketches of clipped gradients; see `clipped_sum`."""
        return sketch([self._each(agent, point, positions, (len(positions), width))], clip)

    def _each(self, agent: int, point: Tensor, positions: Tensor, shape: tuple[int, int]) -> Tensor:
        """(B, D) of finite numbers."""
        each = self._rows(agent, point, positions)
        if each.shape != shape:
            raise InputError(
                f"gradients of {len(positions)} records of agent {agent} have the shape "
                f"{tuple(each.shape)}, and must have {shape}: a row for each clipped vector, as "
                "long as the message"
            )
        if not bool(torch.isfinite(each).all()):
            raise InputError(f"gradients of agent {agent} hold a number that is not finite")
        return each

    def _rows(self, agent: int, point: Tensor, positions: Tensor) -> Tensor:
        asked = self._gradients
        if isinstance(asked, Mapping):
            if agent not in asked:
                raise InputError(
                    f"gradients names no function for agent {agent}; it has {sorted(asked)}"
                )
            asked = asked[agent]
        # The user's function gets copies, and returns numbers.
        more = {"agent": agent} if "agent" in inspect.signature(asked).parameters else {}
        try:
            found = asked(point.clone(), positions.numpy().copy(), **more)
        except (Exception, SystemExit) as error:
            raise raised("gradients", error) from error
        if not (is_tensor(found) or isinstance(found, np.ndarray)):
            raise InputTypeError(
                f"gradients returned {type(found).__name__}; it must return a tensor or array"
            )
        try:
            if isinstance(found, np.ndarray):
                found = torch.from_numpy(np.ascontiguousarray(found))
            return found.detach().cpu().to_dense().double()
        except (TypeError, RuntimeError) as error:  # texts, or numbers of more than 64 bits
            if "memory" in str(error):
                raise
            raise InputTypeError(
                f"gradients returned a {type(found).__name__} of {found.dtype}; it must return "
                "numbers of at most 64 bits each"
            ) from error


def raised(name: str, error: BaseException) -> InputError:
    """The error of a function of the auditor's that raised one."""
    said = " ".join(f"{type(error).__name__}: {error}".split())[:_LONGEST_ERROR]
    return InputError(f"the function of {name} raised {said}; mend it, and check again")


def per_example(
    model: nn.Module,
    data: Mapping[int, tuple[Tensor, Tensor]],
    *,
    loss: Callable[[Tensor, Tensor], Tensor] | None = None,
) -> Callable[..., Tensor]:
    """A function of gradients, from a model and its loss: one backward an example, in float64.

    Args:
        model: the network; a kept point fills its parameters, in their order.
        data: by agent its inputs (n, *shape) and targets (n, ...).
        loss: of (outputs (1, ...), targets (1, ...)), a scalar; the cross-entropy when None.

    Returns:
        (point, positions, agent) -> (B, D).
    """
    import copy

    network = copy.deepcopy(model).cpu().double()
    trained = {name: of.shape for name, of in network.named_parameters()}
    each = gradient_of_each(
        network, trained, loss=torch.nn.functional.cross_entropy if loss is None else loss
    )

    def gradients(point: Tensor, positions: NDArray[np.int64], *, agent: int) -> Tensor:
        inputs, targets = data[agent]
        at = torch.from_numpy(np.asarray(positions))
        if not len(at):
            return torch.zeros(0, len(point), dtype=torch.float64)
        return each(point, {}, inputs[at], targets[at])

    return gradients


def gradient_of_each(
    network: nn.Module,
    trained: Mapping[str, torch.Size],
    *,
    loss: Callable[[Tensor, Tensor], Tensor],
    randomness: str = "error",
) -> Callable[[Tensor, dict[str, Tensor], Tensor, Tensor], Tensor]:
    """A function of single examples' gradients in float64, of parameters of these shapes.

    Returns:
        (point (D,), other parameters and buffers, inputs (B, ...), targets (B, ...)) -> (B, D).
    """

    def one(point: Tensor, others: dict[str, Tensor], inputs: Tensor, target: Tensor) -> Tensor:
        parts = zip(trained, point.split([of.numel() for of in trained.values()]), strict=True)
        values = {**others, **{name: part.view(trained[name]) for name, part in parts}}
        outputs = torch.func.functional_call(network, values, (inputs[None],))
        return loss(outputs, target[None])

    each = torch.func.vmap(torch.func.grad(one), in_dims=(None, None, 0, 0), randomness=randomness)

    def of(point: Tensor, others: dict[str, Tensor], inputs: Tensor, targets: Tensor) -> Tensor:
        x = inputs.double() if inputs.is_floating_point() else inputs
        return each(point.double(), others, x, targets)

    return of
