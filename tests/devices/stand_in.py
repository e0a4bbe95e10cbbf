"""A device that every machine has: tensors of the CPU that pretend to lie on a GPU.

Within a `StandIn`, `torch.device("cuda")` is there. What is made or moved there is an ordinary
tensor whose storage is marked, so that views, vmap, torch.func and autograd go on as they are;
`Tensor.device` tells the pretended device. Everything that can be wrong about devices except
arithmetic shows:

- an operation that takes tensors of both is refused, where CUDA refuses it: it allows numbers
  (tensors of no dimension) of the CPU in elementwise operations, and positions of the CPU;
- what reads a marked tensor back is refused outside of the places that the caller names: `item`,
  `bool`, `tolist`, `cpu`, `equal`, shapes that depend on values such as those of `nonzero`, and
  factorisations that look at their own success. `numpy` of a marked tensor is refused anywhere;
- between `rounds()` all that waits for a device is refused, copies to it among it that are not
  asked to be `non_blocking`: what `torch.cuda.set_sync_debug_mode("error")` refuses.

A factory that torch itself calls in C++, such as in a derivative, makes a tensor that counts as of
either device. Modes of torch are of one thread: what another thread computes is not marked, and is
refused as soon as it meets what is.
"""

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any, Self
from unittest import mock

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import overhear.training.step.purity as purity
from overhear.privacy import errors
from overhear.training.device import philox

DEVICE = torch.device("cuda", 0)
ROOT = Path(errors.__file__).resolve().parents[1]  # of the packages
TESTS = Path(__file__).resolve().parents[1]
PACKAGES = ("privacy", "training", "attacks", "runs", "reports", "commands")

Place = tuple[str, str]  # a file below the packages' folder, a function in it

_HOST, _MARKED, _EITHER = "cpu", str(DEVICE), "either"

# Operations whose results the host waits for, by the name of their overload packet.
_READS = {
    "_local_scalar_dense": "a number is read", "equal": "the answer is read",
    "nonzero": "the shape depends on values", "masked_select": "the shape depends on values",
    "_unique": "the shape depends on values", "_unique2": "the shape depends on values",
    "unique_dim": "the shape depends on values",
    "unique_consecutive": "the shape depends on values",
    "unique_dim_consecutive": "the shape depends on values",
    "bincount": "the shape depends on values", "_linalg_check_errors": "success is read",
    "_linalg_svd": "convergence is read", "_linalg_eigh": "convergence is read",
    "linalg_eig": "it is computed by the host", "linalg_lstsq": "success is read",
    "multinomial": "the weights are checked", "histc": "the range is read",
}  # fmt: skip
_INDEXED = ("index", "index_put", "index_put_", "_unsafe_index", "_index_put_impl_")
_TAKE_NUMBERS = ("fill_", "fill", "masked_fill", "masked_fill_", "index_put", "index_put_", "where")

_FACTORIES = {
    *(torch.zeros, torch.ones, torch.full, torch.empty, torch.tensor, torch.as_tensor),
    *(torch.asarray, torch.arange, torch.range, torch.linspace, torch.logspace, torch.eye),
    *(torch.rand, torch.randn, torch.randint, torch.randperm, torch.scalar_tensor),
    *(torch.empty_strided, torch.tril_indices, torch.triu_indices, torch.from_numpy),
    *(torch.frombuffer, torch.zeros_like, torch.ones_like, torch.full_like, torch.empty_like),
    *(torch.rand_like, torch.randn_like),
}
# Checks of values that torch makes for tensors of the CPU alone.
_CHECKS_ON_HOST = {torch.nn.functional.one_hot}
_GETTERS = {
    torch.Tensor.device.__get__: lambda marked: DEVICE if marked else torch.device("cpu"),
    torch.Tensor.is_cuda.__get__: lambda marked: marked,
    torch.Tensor.is_cpu.__get__: lambda marked: not marked,
    torch.Tensor.get_device: lambda marked: DEVICE.index if marked else -1,
}


class RefusedByDeviceError(RuntimeError):
    """What a device would refuse, or wait for."""


class _Marks:
    """On which device each storage is; one that nothing is known of is of the host."""

    def __init__(self) -> None:
        self._of: dict[int, tuple[StorageWeakRef, str]] = {}
        self._most = 4096

    def put(self, tensor: Tensor, device: str) -> None:
        if tensor.layout is not torch.strided:
            return
        if len(self._of) > self._most:
            self._of = {key: held for key, held in self._of.items() if not held[0].expired()}
            self._most = max(4096, 2 * len(self._of))
        ref = StorageWeakRef(tensor.untyped_storage())  # keeps the address from being used again
        self._of[ref.cdata] = ref, device

    def of(self, tensor: Tensor) -> str:
        plain = _plain(tensor)
        if plain.layout is not torch.strided:  # has no storage; on a device it is refused as mixed
            return _HOST
        held = self._of.get(plain.untyped_storage()._cdata)
        return _HOST if held is None else held[1]


def _plain(tensor: Tensor) -> Tensor:
    """The tensor beneath what torch.func wraps it in."""
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor


@cache
def _named(file: str) -> tuple[str, bool] | None:
    """A file of the packages or of the tests as places name it, and whether it is of the tests."""
    path = Path(file).resolve()
    if path == Path(__file__).resolve():
        return None
    if path.is_relative_to(TESTS):
        return f"tests/{path.relative_to(TESTS)}", True
    if path.is_relative_to(ROOT) and path.relative_to(ROOT).parts[0] in PACKAGES:
        return str(path.relative_to(ROOT)), False
    return None


def _place() -> Place:
    """The innermost function of the packages that is running; of a test where none is."""
    frame: FrameType | None = sys._getframe(1)
    test: Place | None = None
    while frame is not None:
        named = _named(frame.f_code.co_filename)
        passes_on = frame.f_code.co_name == "__torch_function__"
        if named is not None and not named[1] and not passes_on:
            return named[0], frame.f_code.co_qualname
        if named is not None and test is None:
            test = named[0], frame.f_code.co_qualname
        frame = frame.f_back
    return test or ("?", "?")


class StandIn:
    """A pretended GPU, while it is entered.

    Args:
        places: where a read is allowed, each with its reason; a place of a test always is.
        collects: what is refused is counted in `refused` and then done all the same.

    Attributes:
        refused: by sentence how often it was refused.
        read: by place how often something was read back.
        operations: how many had marked tensors to work on.
    """

    def __init__(
        self, places: Mapping[Place, str] | None = None, *, collects: bool = False
    ) -> None:
        self.places, self._collects = dict(places or {}), collects
        self.refused: Counter[str] = Counter()
        self.read: Counter[Place] = Counter()
        self.marks = _Marks()
        self.operations = 0
        self._in_round = False
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        cuda = torch.cuda
        with ExitStack() as stack:
            # The modes below change no result, so functions of a step may run in them.
            stack.enter_context(mock.patch.object(purity, "mode_is_on", return_value=False))
            # A kernel would be given addresses of the host.
            stack.enter_context(mock.patch.object(philox, "fused", return_value=None))
            pretended = {
                "_lazy_init": None, "is_available": True, "device_count": 1, "current_device": 0,
                "set_device": None, "mem_get_info": (2**32, 2**32),
            }  # fmt: skip
            for name, value in pretended.items():
                stack.enter_context(mock.patch.object(cuda, name, return_value=value))
            stack.enter_context(mock.patch.object(cuda, "synchronize", self._wait))
            stack.enter_context(_Operations(self))
            stack.enter_context(_Functions(self))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _wait(self, *_: object) -> None:
        self.reads("torch.cuda.synchronize", "the host waits")

    @contextmanager
    def rounds(self) -> Iterator[None]:
        """Refuse all that waits for the device, in named places, too."""
        before, self._in_round = self._in_round, True
        try:
            yield
        finally:
            self._in_round = before

    def holds(self, tensor: Tensor) -> bool:
        """Whether a tensor is on the device."""
        with torch._C.DisableTorchFunction():
            return self.marks.of(tensor) == _MARKED

    def refuse(self, words: str) -> None:
        """Refuse what a device refuses."""
        file, function = _place()
        said = f"{words}, in {file}, {function}"
        self.refused[said] += 1
        if not self._collects:
            raise RefusedByDeviceError(said)

    def reads(self, name: str, why: str) -> None:
        """Refuse what the host waits for, but in a named place and between rounds."""
        place = _place()
        outer = place[0], place[1].partition(".<locals>")[0]
        self.read[outer] += 1
        if self._in_round:
            self.refuse(f"{name} waits for {DEVICE} within a round ({why})")
        elif not {place, outer} & set(self.places) and not place[0].startswith("tests/"):
            self.refuse(f"{name} reads back from {DEVICE} ({why})")

    def uploads(self, name: str) -> None:
        """Refuse a copy to the device that the host waits for, within a round."""
        if self._in_round:
            self.refuse(
                f"{name} waits for {DEVICE} within a round (a copy that is not non_blocking)"
            )


class _Functions(TorchFunctionMode):
    """What is asked of tensors in Python: their device, and to be moved or read."""

    def __init__(self, of: StandIn) -> None:
        super().__init__()
        self._of, self._move = of, _Moves(of)

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        of, first = self._of, args[0] if args else None
        is_tensor = isinstance(first, Tensor)
        if is_tensor and func in _GETTERS:
            return _GETTERS[func](of.marks.of(first) == _MARKED)
        if func in _MOVES and is_tensor:
            return getattr(self._move, _MOVES[func])(*args, **kwargs)
        if func in (torch.as_tensor, torch.asarray) and is_tensor:
            given = dict(zip(("dtype", "device"), args[1:], strict=False)) | kwargs
            return self._move.to(first, **{k: v for k, v in given.items() if v is not None})
        if (
            func in (torch.tensor, torch.as_tensor, torch.asarray)
            and kwargs.get("device") is not None
        ):
            device = kwargs.pop("device")  # torch makes it on the host and copies it
            return self._move.to(_called(func, args, kwargs), device)
        found = _called(func, args, kwargs)
        if func is torch.Tensor.__deepcopy__ and of.holds(first):
            of.marks.put(found, _MARKED)
        return found


_CURRENT: list[Any] = []  # functions of torch that Python called, and that are running


def _called(func: Any, args: Any, kwargs: Any) -> Any:
    _CURRENT.append(func)
    try:
        return func(*args, **kwargs)
    finally:
        _CURRENT.pop()


def _leaves(of: Any) -> list[Any]:
    """What lists, tuples and dictionaries hold; torch's own function takes twice as long."""
    if not isinstance(of, list | tuple | dict):
        return [of]
    return [leaf for one in (of.values() if isinstance(of, dict) else of) for leaf in _leaves(one)]


_MOVES = {
    torch.Tensor.to: "to", torch.Tensor.cpu: "cpu", torch.Tensor.cuda: "cuda",
    torch.Tensor.numpy: "numpy", torch.Tensor.__array__: "numpy", torch.Tensor.tolist: "tolist",
    torch.Tensor.pin_memory: "pin_memory", torch.Tensor.data_ptr: "data_ptr",
}  # fmt: skip
_AS_CLONE: list[str] = []  # the device to which the next clone goes


class _Moves:
    """Methods of tensors that move or read them, for pretended devices."""

    def __init__(self, of: StandIn) -> None:
        self._of = of

    def to(self, tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        of = self._of
        copy = kwargs.pop("copy", False)
        if "other" in kwargs:
            args = (kwargs.pop("other"), *args)
        if args and isinstance(args[0], Tensor):
            args = (DEVICE if of.holds(args[0]) else torch.device("cpu"), args[0].dtype, *args[1:])
        device, dtype, non_blocking, memory_format = torch._C._nn._parse_to(*args, **kwargs)
        here = of.marks.of(tensor)
        goes = here if device is None else _MARKED if device.type == DEVICE.type else _HOST
        moved = tensor
        if dtype is not None and dtype != tensor.dtype:
            moved = moved.to(dtype)
        if memory_format is not None:
            moved = moved.contiguous(memory_format=memory_format)
        if goes == here or here == _EITHER:
            kept = moved.clone() if copy and moved is tensor else moved
            if device is not None:  # a tensor of either device is settled by being moved
                of.marks.put(kept, goes)
            return kept
        if goes == _HOST:
            of.reads("Tensor.to('cpu')", "the tensor is copied")
        elif not non_blocking:
            of.uploads("Tensor.to")
        _AS_CLONE.append(goes)
        try:
            return moved.clone()
        finally:
            _AS_CLONE.pop()

    def cpu(self, tensor: Tensor, **_: Any) -> Tensor:
        return self.to(tensor, "cpu")

    def cuda(self, tensor: Tensor, device: Any = None, non_blocking: bool = False) -> Tensor:
        return self.to(tensor, device or DEVICE, non_blocking=non_blocking)

    def numpy(self, tensor: Tensor, *args: Any, force: bool = False, **kwargs: Any) -> Any:
        if self._of.holds(tensor):
            if not force:
                self._of.refuse(
                    f"Tensor.numpy of a tensor on {DEVICE}, shape {tuple(tensor.shape)}: copy it "
                    "to the host first"
                )
            else:
                self._of.reads("Tensor.numpy", "the tensor is copied")
        return tensor.numpy(*args, force=force) if not args else tensor.__array__(*args, **kwargs)

    def tolist(self, tensor: Tensor) -> Any:
        if self._of.holds(tensor):
            self._of.reads("Tensor.tolist", "the tensor is copied")
        return tensor.tolist()

    def pin_memory(self, tensor: Tensor, *_: Any) -> Tensor:
        if self._of.holds(tensor):
            self._of.refuse(f"Tensor.pin_memory of a tensor on {DEVICE}")
        return tensor.clone()

    def data_ptr(self, tensor: Tensor) -> int:
        return tensor.data_ptr()


class _Operations(TorchDispatchMode):
    """What is computed: on which device, and whether the host waits for it."""

    def __init__(self, of: StandIn) -> None:
        super().__init__()
        self._of = of

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here, and to see to that takes as long as all the rest

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunction():
            return self._done(func, args, dict(kwargs or {}))

    def _done(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        of, marks = self._of, self._of.marks
        name = func.overloadpacket.__name__
        leaves = _leaves((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        where = [marks.of(t) for t in tensors]
        # Factories and copies to a device that is named.
        asked: str | None = None
        if (device := kwargs.get("device")) is not None:
            asked = _MARKED if device.type == DEVICE.type else None
            kwargs["device"] = torch.device("cpu")
        kwargs.pop("pin_memory", None)
        if _AS_CLONE and name == "clone":
            asked = _AS_CLONE[-1]
        elif asked == _MARKED and tensors and _MARKED not in where:
            # torch.tensor(..., device=...) copies so.
            if not kwargs.get("non_blocking", False):
                of.uploads(name)
        elif _MARKED in where:
            of.operations += 1
            if name == "copy_":
                self._copied(args, where, kwargs)
            else:
                self._check(func, name, args, tensors, where)
        found = func(*args, **kwargs)
        if _MARKED in where and isinstance(found, bool | int | float) and name not in _READS:
            of.reads(str(func), "the answer is read")

        to = asked or self._result(tensors, where)
        drawn = any(isinstance(leaf, torch.Generator) for leaf in leaves)
        if drawn and (asked == _MARKED or _MARKED in where):
            of.refuse(f"{func} on {DEVICE} by a generator of the CPU")
        if to != _HOST:
            of_result = marks.of(args[0]) if (to, name) == (_MARKED, "copy_") else to
            for made in _leaves(found):
                if isinstance(made, Tensor):
                    marks.put(made, of_result)
        return found

    def _result(self, tensors: list[Tensor], where: list[str]) -> str:
        if _MARKED in where:
            return _MARKED
        if tensors:
            return _EITHER if all(at == _EITHER for at in where) else _HOST
        return _HOST if _CURRENT and _CURRENT[-1] in _FACTORIES else _EITHER

    def _copied(self, args: tuple[Any, ...], where: list[str], kwargs: dict[str, Any]) -> None:
        into, of_what = where[0], where[1]
        waits = not (len(args) > 2 and args[2]) and not kwargs.get("non_blocking", False)
        if into == _HOST and of_what == _MARKED:
            self._of.reads("Tensor.copy_", "into a tensor of the host")
        elif into == _MARKED and of_what == _HOST and waits and args[1].dim():
            self._of.uploads("Tensor.copy_")

    def _check(
        self, func: Any, name: str, args: Any, tensors: list[Tensor], where: list[str]
    ) -> None:
        of = self._of
        if name in _INDEXED:
            self._indexed(func, name, args)
            return
        takes_numbers = torch.Tag.pointwise in func.tags or name in _TAKE_NUMBERS
        written = args[0] if name.endswith("_") and args else None
        for tensor, at in zip(tensors, where, strict=True):
            if at == _HOST and not (takes_numbers and not tensor.dim() and tensor is not written):
                shapes = zip((tuple(t.shape) for t in tensors), where, strict=True)
                told = ", ".join(f"{shape} on {device}" for shape, device in shapes)
                of.refuse(f"{func} takes tensors of {DEVICE} and of the CPU, of shapes {told}")
                break
            if at == _EITHER:
                of.marks.put(tensor, _MARKED)
        on_host = bool(_CURRENT) and _CURRENT[-1] in _CHECKS_ON_HOST
        if name in _READS and not on_host:
            of.reads(str(func), _READS[name])
        elif name == "repeat_interleave" and len(tensors) == 1:
            of.reads(str(func), "the shape depends on values")

    def _indexed(self, func: Any, name: str, args: Any) -> None:
        of, held, positions = self._of, args[0], [at for at in args[1] if at is not None]
        into = of.marks.of(held)
        for at in positions:
            if into == _HOST and of.marks.of(at) == _MARKED:
                of.refuse(f"{func} of a tensor of the CPU by positions on {DEVICE}")
            elif at.dtype in (torch.bool, torch.uint8):
                of.reads(str(func), "by a mask, whose positions are counted")
            elif into == _MARKED and of.marks.of(at) == _HOST and at.dim():
                of.uploads(f"{func} by positions of the CPU")
        if len(args) > 2 and isinstance(args[2], Tensor):
            value = of.marks.of(args[2])
            is_number = value == _HOST and not args[2].dim()
            if _EITHER not in (value, into) and value != into and not is_number:
                of.refuse(f"{func} puts values of {value} into a tensor of {into}")
