"""Full float32 products, whatever the process allows elsewhere.

A product in TF32 or bfloat16 keeps 10 or 7 of float32's 23 bits: a norm may then come out shorter
than the gradient by more than the clip factor's slack, and a clipped gradient be longer than its
bound. How much longer no factor can say, so neither is offered:

- a layout by layer measures a gradient by other products than it adds it up by, and where the terms
  of a product cancel, rounding them moves it by more than any share of its length;
- where gradients are measured as they are added, no clipped one is too long, but how the others'
  come out depends on the size of the batch, which one record changes: libraries take TF32 for some
  shapes and full products for others. In float32 that moves a sum by its last bits; in TF32 by
  2^-11 of every gradient before it is clipped, times what a network makes of it, which nothing
  bounds.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from typing import Any

import torch
from torch import Tensor
from torch.utils import deterministic

from ...privacy.errors import InputError, NotFiniteError

# Where a setting of its own exists: CUDA's and the CPU's products and convolutions; the setting's
# name and value there. Before torch 2.9 CUDA alone has one.
_PLACES: Sequence[tuple[str, str]] = (("cuda", "matmul"), ("cudnn", ""))
_NAME = "allow_tf32"
_FULL: bool | str = False
if hasattr(torch.backends.cuda.matmul, "fp32_precision"):
    _PLACES = (
        *(("cuda", "matmul"), ("cudnn", "conv"), ("cudnn", "rnn")),
        *(("mkldnn", "matmul"), ("mkldnn", "conv"), ("mkldnn", "rnn")),
    )
    _NAME = "fp32_precision"
    _FULL = "ieee"


@contextmanager
def full_precision() -> Iterator[None]:
    """Keep TF32 and bfloat16 out of float32 products inside, and leave the settings as found.

    So is automatic mixed precision (`torch.autocast`). The settings belong to the process: other
    threads compute in full precision meanwhile.

    Raises:
        ValueError: A setting does not take, and products would not be full ones.
    """
    with ExitStack() as given_back:
        for kind in ("cpu", "cuda"):
            if torch.is_autocast_enabled(kind):
                given_back.enter_context(torch.autocast(kind, enabled=False))
        name, full = _NAME, _FULL
        settings = [_at(*place) for place in _PLACES]
        for setting in settings:
            given_back.callback(_give_back, setting, getattr(setting, name))
            setattr(setting, name, full)
        if any(getattr(setting, name) != full for setting in settings):
            raise InputError(
                "torch does not leave TF32 or bfloat16 for float32 products "
                f"({', '.join(str(getattr(setting, name)) for setting in settings)}), which a "
                "clip norm would not bound; unset what forces them in the environment"
            )
        yield


@contextmanager
def readable_precision() -> Iterator[None]:
    """Let torch read its older switch of TF32 inside, as `torch.export` does; it computes nothing.

    Torch raises where the switch and the settings that took its place differ, as they do in
    `full_precision`. Settings are left as found; the switch is never written, since none could
    tell what it was.

    >>> with full_precision(), readable_precision():
    ...     torch.backends.cudnn.allow_tf32
    True
    """
    if _NAME == "allow_tf32":
        yield
        return
    with ExitStack() as given_back:
        settings = [_at("cudnn", part) for part in ("conv", "rnn")]
        for setting in settings:
            given_back.callback(_give_back, setting, setting.fp32_precision)
        for value in ("tf32", "ieee"):
            for setting in settings:
                setting.fp32_precision = value
            with suppress(RuntimeError):
                _ = torch.backends.cudnn.allow_tf32
                break
        yield


def _give_back(setting: Any, value: Any) -> None:
    if _NAME == "fp32_precision":
        # A setting that follows a wider one reads as that one's; it shall go on following.
        setting.fp32_precision = "none"
        if setting.fp32_precision == value:
            return
    setattr(setting, _NAME, value)


def _at(backend: str, part: str) -> Any:
    found = getattr(torch.backends, backend)
    return getattr(found, part) if part else found


# What a device computed, looked at between rounds.


def check_numbers(state: Mapping[str, Tensor], *, first: int, round: int) -> None:
    """Refuse a state that holds what is not a number, or on the CPU what is not finite.

    Within a round nothing waits for a device, so what raises an error on the CPU gives such a value
    there: a solver that does not settle, or a projection that is not the same twice. On the CPU a
    state that overflowed is one of a run whose steps are too large. A state is seen by every closed
    view, so that to stop by it tells nothing more.

    Args:
        state: by field the rows of agents, (A, D).
        first: the agent of the first row.
        round: the number of the round that ended.

    Raises:
        FloatingPointError: A value is not a number.

    >>> check_numbers({"x": torch.zeros(2, 3)}, first=0, round=1)
    """
    here = {name: rows for name, rows in state.items() if rows.device.type == "cpu"}
    for name, rows in here.items():
        # An entry that is not finite makes its row's sum so; the converse is looked at.
        if not bool(rows.sum().isfinite()) and not bool((finite := rows.isfinite().all(1)).all()):
            raise NotFiniteError(
                f"after round {round} {name} of agent {first + int((~finite).nonzero()[0])} is not "
                "finite: the run diverged; lower the learning rate, and check the inputs"
            )
    there = {name: rows for name, rows in state.items() if rows.device.type != "cpu"}
    if not there or not bool(torch.stack([rows.isnan().any() for rows in there.values()]).any()):
        return
    name, rows = next((n, rows) for n, rows in there.items() if bool(rows.isnan().any()))
    agent = first + int(rows.isnan().any(1).nonzero()[0])
    raise NotFiniteError(
        f"after round {round} {name} of agent {agent} is not a number: values overflowed, a solver "
        "did not settle, or a projection gave another result for the same value; check the "
        "learning rate, and set training.device=cpu, where each has an error of its own"
    )


# Settings under which a device computes the same bits again, for evaluation runs.
#
# A run with `evaluation_noise_seed` is to end with the same models bit for bit. On CUDA that takes
#
# | setting                               | value     | why                                      |
# |---------------------------------------|-----------|------------------------------------------|
# | `torch.use_deterministic_algorithms`  | True      | atomic additions come in any order       |
# | `torch.backends.cudnn.deterministic`  | True      | so do those of some convolutions         |
# | `torch.backends.cudnn.benchmark`      | False     | a clock would choose the convolution     |
# | environment `CUBLAS_WORKSPACE_CONFIG` | ":4096:8" | cuBLAS splits products by its workspace  |
#
# and the same chip, versions and number of ranks. Memory is not filled before it is written
# (`torch.utils.deterministic.fill_uninitialized_memory`), which costs time and which nothing here
# reads. The CPU needs none of it.

_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
_SERVE = (":4096:8", ":16:8")  # of its values, those under which cuBLAS repeats itself


@contextmanager
def computing(device: torch.device, *, repeats: bool = False) -> Iterator[None]:
    """Full products inside, and on a device the same bits again where `repeats` asks for them.

    Raises:
        ValueError: Torch allows no full products, or an operation that does not repeat itself.
    """
    with full_precision(), repeatable(device) if repeats else nullcontext():
        yield


@contextmanager
def repeatable(device: torch.device) -> Iterator[None]:
    """Let a device compute the same bits again inside; leave the settings as found.

    Args:
        device: Where the run computes; on the CPU nothing is set.

    Raises:
        ValueError: An operation inside has no algorithm that repeats itself on the device.
    """
    if device.type != "cuda":
        yield
        return
    # Settings as they are found, to be set again at the end.
    cudnn = torch.backends.cudnn
    filling: Any = deterministic  # a module with a property, which no stub knows
    algorithms = torch.are_deterministic_algorithms_enabled()
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    fills = filling.fill_uninitialized_memory
    fixed, measures = cudnn.deterministic, cudnn.benchmark
    workspace = os.environ.get(_WORKSPACE)
    # cuBLAS repeats itself with a workspace of fixed size alone.
    try:
        if workspace not in _SERVE:
            os.environ[_WORKSPACE] = _SERVE[0]
        torch.use_deterministic_algorithms(True)
        filling.fill_uninitialized_memory = False
        cudnn.deterministic, cudnn.benchmark = True, False
        yield
    except RuntimeError as error:
        if "deterministic" not in str(error):
            raise
        raise InputError(
            "evaluation_noise_seed promises the same bits again, but "
            f"{' '.join(str(error).split())[:200]}; take a network without this operation, set "
            "training.device=cpu, or leave out evaluation_noise_seed"
        ) from error
    finally:
        cudnn.deterministic, cudnn.benchmark = fixed, measures
        filling.fill_uninitialized_memory = fills
        torch.use_deterministic_algorithms(algorithms, warn_only=warns)
        if workspace is None:
            os.environ.pop(_WORKSPACE, None)
        else:
            os.environ[_WORKSPACE] = workspace


# How many elements a pass may hold at once, by the memory of the device.
#
# On the CPU the bounds are those of its caches, measured, and the same everywhere. On CUDA a pass
# costs what the host takes to launch it, so it is as large as memory allows: a 64th of the bytes,
# rounded down to a power of two, so that two runs on one kind of device mostly have the same. An
# evaluation run reads the whole memory and not what is free, since its bits must not depend on what
# else runs; for the same reason its passes are not halved where memory runs out.

_ON_CPU = 2**25  # 128 MiB in float32
# Bytes for one element: 8 of itself in float64, and what layers and sums keep beside it.
_BYTES = 64
_LEAST, _MOST = 2**20, 2**30  # above, kernels of torch count in 64 bits and slow down

_known: dict[tuple[str, bool], int] = {}


def elements_at_once(device: torch.device, *, on_cpu: int = _ON_CPU) -> int:
    """Most elements that the per-example quantities of one pass may hold.

    Args:
        device: Where the pass computes.
        on_cpu: The bound on the CPU, and on any device whose memory torch does not tell.

    >>> elements_at_once(torch.device("cpu"))
    33554432
    """
    if device.type != "cuda":
        return on_cpu
    key = _key(device)
    if key not in _known:
        free, whole = torch.cuda.mem_get_info(device)
        held = (whole if key[1] else free) // _BYTES
        _known[key] = min(max(1 << max(held.bit_length() - 1, 0), _LEAST), _MOST)
    return _known[key]


def make_room(device: torch.device) -> bool:
    """Halve what a pass may hold, after a device ran out of memory, for the rest of the process.

    Returns:
        Whether there is less now, so that it is worth trying again. Not where a device is to
        compute the same bits again: passes of another size add up in another order.
    """
    if device.type != "cuda" or _repeats() or elements_at_once(device) <= 1:
        return False
    _known[_key(device)] = elements_at_once(device) // 2
    torch.cuda.empty_cache()  # what is held in pieces of the former size
    return True


def too_large(device: torch.device, error: BaseException) -> InputError:
    """What is said where a device has no memory for a pass, nor for half of one."""
    told = " ".join(str(error).split())[:200]
    tried, instead = "in passes of half their size either", ""
    if _repeats():
        tried = "and smaller passes would not compute the bits that evaluation_noise_seed promises"
        instead = ", or leave out evaluation_noise_seed"
    return InputError(
        f"a round does not fit into the memory of {device}, {tried} ({told}); spread the agents "
        "over more ranks or devices, take a smaller network or batch, or set training.device=cpu"
        f"{instead}"
    )


def _repeats() -> bool:
    return torch.are_deterministic_algorithms_enabled()


def _key(device: torch.device) -> tuple[str, bool]:
    return str(device), _repeats()


# Copies from the host to a device that nothing waits for.


def on_device(held: Tensor, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """A tensor on a device; from the host by way of pinned memory, since another copy waits.

    Args:
        held: On the host, or already on the device.
        device: Where it goes.
        dtype: Its type there; as it is for None.

    >>> on_device(torch.ones(2), torch.device("cpu"), torch.float64).dtype
    torch.float64
    """
    if device.type == "cuda" and held.device.type == "cpu":
        converted = held.to(dtype or held.dtype)
        return converted.pin_memory().to(device, non_blocking=True)
    return held.to(device, dtype)
