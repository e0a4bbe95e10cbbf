"""Functions that a step might give to postprocess or bounded: those that pass, and all others."""

# ruff: noqa: B008, PLW0108, PTH123, S102, S307, SIM115

import ast
import enum
import functools
import itertools
import math
import os
import random
import subprocess
import sys
import threading
import time
import types
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.nn.functional import softmax

ROW = torch.tensor([0.25, -2.0, 4.0])
STASH = torch.ones(3)
NUMBERS = [1.0, 2.0]
TABLE = {"a": 1.0}
FACTOR = 3.0
DEEP = (1.0, (2, ("x", frozenset({4}))))
HIDDEN = (1.0, (2, (torch.ones(3),)))
WITH_LIST = (1.0, [2.0])
COUNTER = 0


class Clip(enum.Enum):
    ROW = "row"
    ALL = "all"


class Leaky(enum.Enum):
    HELD = torch.ones(3)


class Named(enum.Enum):
    """A member that is named as what a tensor may not be asked."""

    data_ptr = 1


class Acting(enum.Enum):
    A = 1

    def sum(self):
        return STASH


class Loud(str):
    """Text with something besides."""


class Holder:
    rows = torch.ones(3)

    def __init__(self) -> None:
        self.held = torch.ones(3)

    def __call__(self, row: Tensor) -> Tensor:
        return row + self.held

    def method(self, row: Tensor) -> Tensor:
        return row + self.held

    @classmethod
    def of_class(cls, row: Tensor) -> Tensor:
        return row + cls.rows

    @staticmethod
    def static(row: Tensor) -> Tensor:
        return 2.0 * row


class Pair(NamedTuple):
    a: float
    b: object


holder = Holder()
module = types.ModuleType("module")
vars(module).update(K=2.5, stash=torch.ones(3), double=lambda row: 2.0 * row, rows=[1.0])


def double(row: Tensor) -> Tensor:
    return 2.0 * row


def halve(row: Tensor, depth: int = 3) -> Tensor:
    return row if depth == 0 else double(quarter(row, depth)) / 2


def quarter(row: Tensor, depth: int) -> Tensor:
    return halve(row / 4, depth - 1)


def endless(row: Tensor):
    yield row


def logged(fn):
    @functools.wraps(fn)
    def wrapper(*args):
        return fn(*args)

    return wrapper


@logged
def decorated(row: Tensor) -> Tensor:
    return 2.0 * row


def counted(fn):
    calls = [0]

    def wrapper(*args):
        calls[0] += 1
        return fn(*args) * calls[0]

    return wrapper


def in_a_loop() -> list:
    return [lambda row, k=k: k * row for k in range(3)]


def closing_over(one):
    return lambda row: row + one


def recursive():
    def inner(row, depth=2):
        return row if depth == 0 else inner(row / 2, depth - 1)

    return inner


def importing(row: Tensor) -> Tensor:
    import math

    return row * math.pi


def importing_from(row: Tensor) -> Tensor:
    from math import floor
    from math import pi as circle

    return row * floor(circle)


def comprehended(row: Tensor) -> Tensor:
    parts = [row * k * FACTOR for k in range(3) if k]
    named = {k + 1: part for k, part in enumerate(parts)}
    return sum(named[k] for k in (1, 2))


def walrus(row: Tensor) -> Tensor:
    kept = [half := part / 2 for part in row]
    if (size := float(row.abs().max())) > 1:
        return torch.stack(kept) / size + half
    return row


def tried(row: Tensor) -> Tensor:
    try:
        return row / (1 // len(row))
    except (ZeroDivisionError, ValueError):
        return row / 2
    finally:
        float(f"{len(row):d}.{FACTOR!r}"[:3])


def with_a_context(row: Tensor) -> Tensor:
    with torch.no_grad():
        return row.clone().mul_(2.0)


def own_counter(row: Tensor) -> Tensor:
    total = 0.0

    def add(one):
        nonlocal total
        total += float(one)

    for one in row:
        add(one)
    return row * total


def starred(row: Tensor, *more: Tensor, scale: float = 2.0, **rest: float) -> Tensor:
    first, *others = row
    return torch.stack([first, *others]) * scale + sum(more)


def matched(row: Tensor) -> Tensor:
    match len(row):
        case 3:
            return row * 2
        case _:
            return row


def through_numpy(row: Tensor) -> Tensor:
    return torch.from_numpy(np.sort(np.abs(row.numpy())))


def first_of(row: Tensor) -> Tensor:
    out = torch.zeros_like(row)
    out[0] = row[0]
    return out


ALLOWED = {
    "identity": lambda row: row,
    "torch": lambda row: torch.sigmoid(row) + torch.linalg.vector_norm(row, dim=0),
    "a function of torch itself": torch.sigmoid,
    "torch.nn.functional": lambda row: F.softmax(row, dim=0) + softmax(row, 0),
    "its full name": lambda row: torch.nn.functional.relu(row),
    "torch.func.vmap": lambda row: torch.func.vmap(lambda one: one * 2)(row),
    "torch.func.grad": lambda row: torch.func.grad(lambda r: (r * r).sum())(row),
    "numpy of tensors": lambda row: torch.as_tensor(np.exp(np.asarray(row))),
    "numpy": through_numpy, "math": lambda row: row * math.sqrt(2.0) + math.ulp(0.0),
    "a global number": lambda row: row * FACTOR,
    "a deep tuple": lambda row: row * DEEP[0] * DEEP[1][0],
    "an enum": lambda row: row if Clip.ROW is Clip.ALL else row * len(Clip.ROW.value),
    "a captured enum": closing_over(2) and (lambda row, how=Clip.ROW: row * len(how.value)),
    "a closure": closing_over(2.5), "a numpy number": closing_over(np.float64(2.5)),
    "a dtype": lambda row, kind=torch.float64: row.to(kind), "a default": in_a_loop()[2],
    "a keyword": starred,
    "a partial": functools.partial(lambda row, k, *, c: k * row + c, k=2.0, c=1),
    "a partial of a partial": functools.partial(functools.partial(torch.mul, other=2.0)),
    "a static method": Holder.static, "wraps": decorated, "recursion": recursive(),
    "recursion of two": halve,
    "a function that is passed on": lambda row: torch.stack(list(map(double, row))),
    "a tuple of functions": functools.partial(lambda row, fns: fns[1](row), fns=(halve, double)),
    "import": importing, "from import": importing_from, "comprehensions": comprehended,
    "a generator within": lambda row: sum(part for part in row) * row, "walrus": walrus,
    "try": tried, "with": with_a_context, "its own nonlocal": own_counter, "match": matched,
    "isinstance": lambda row: row if isinstance(row, Tensor) else row / 0,
    "a module of numbers and functions": lambda row: module.double(row) * module.K,
    "sorted": lambda row: torch.stack(sorted(row, key=lambda one: float(one))),
    "itertools": lambda row: torch.stack([a * b for a, b in itertools.pairwise((*row, row[0]))]),
    "functools.reduce": lambda row: row * functools.reduce(lambda a, b: a * b, (1.0, 2.0)),
    "names of torch's fields": lambda row: row.sort().values + row.topk(3).indices,
    "in place": lambda row: row.clamp_(0.0, 1.0).add_(1.0), "its own row": first_of,
    "slices": lambda row, at=slice(0, 3): row[at] + row[::1],
}  # fmt: skip


def writes_global(row):
    global COUNTER  # noqa: PLW0603
    COUNTER += 1
    return row * COUNTER


def stashing():
    kept = torch.zeros(3)

    def fn(row):
        nonlocal kept
        kept = row + kept
        return kept

    return fn


def deeply_stashing():
    count = 0

    def fn(row):
        def inner():
            nonlocal count
            count += 1
            return count

        return row * inner()

    return fn


def stashes_on_itself(row):
    stashes_on_itself.kept = row
    return row


def on_torch(row):
    torch.kept = row
    return row


def on_the_row(row):
    row.kept = 1.0
    return row


def mutable_default(row, kept=[0.0]):  # noqa: B006
    kept[0] += 1.0
    return row * kept[0]


def imports_os(row):
    import os

    return row * os.getpid()


def imports_random_of_torch(row):
    from torch import rand

    return rand(3)


def imports_a_module_as(row):
    import torch.nn.functional as functional

    return functional.relu(row)


def makes_a_class(row):
    class Kept:
        rows = row

    return Kept.rows


def aliases(row):
    lib = torch
    return lib.rand(3) + row


def picks(row):
    lib = torch if len(row) else np
    return lib.zeros(3) + lib.ones(3)


def hides_its_import(row):
    import math

    math = row  # noqa: F811
    return math  # noqa: RET504


def by_format(row):
    return row * len("{0.__globals__}".format(double))  # noqa: UP030, UP032


def matches_a_class(row):
    match row:
        case float(__class__=kind):
            return kind
    return row


async def coroutine(row):
    return row


def asks_the_traceback(row):
    try:
        return row / 0
    except ZeroDivisionError as error:
        return error.__traceback__.tb_frame.f_back.f_locals["s"]


def deletes(row):
    del row.kept
    return row


def from_constants():
    """A lambda whose code holds a tensor in place of a number."""
    made = lambda row: row + 12345.0  # noqa: E731
    constants = tuple(STASH if one == 12345.0 else one for one in made.__code__.co_consts)
    return types.FunctionType(made.__code__.replace(co_consts=constants), {})


def with_attribute():
    def helper(row):
        return row

    helper.values = torch.ones(3)
    return lambda row: row + helper.values


def of_the_frame(row):
    return row + sys._getframe(1).f_locals["sums"]


class Partial(functools.partial):
    """A partial with room for more."""


def partial_with_more():
    made = functools.partial(double)
    made.kept = torch.ones(3)
    return made


def generator():
    sums = iter([torch.ones(3)])
    return lambda row: row + next(sums)


def stepping():
    steps = itertools.count()
    return lambda row: row * next(steps)


HOLDS = {
    "a closure": (closing_over(torch.ones(3)), "a Tensor"),
    "a parameter": (closing_over(nn.Parameter(torch.ones(3))), "a Parameter"),
    "an array": (closing_over(np.ones(3)), "a ndarray"),
    "a global": (lambda row: row + STASH, "a Tensor"),
    "a default": (lambda row, held=torch.ones(3): row + held, "a Tensor"),
    "a keyword default": (lambda row, *, held=torch.ones(3): row + held, "a Tensor"),
    "a partial": (functools.partial(torch.add, other=torch.ones(3)), "a Tensor"),
    "a partial's position": (functools.partial(torch.add, torch.ones(3)), "a Tensor"),
    "a subclass of partial": (Partial(double), "a Partial"),
    "a partial with an attribute": (partial_with_more(), "a partial"),
    "a list": (lambda row: row * NUMBERS[0], "a list"),
    "a dict": (lambda row: row * TABLE["a"], "a dict"),
    "a set": (closing_over({1.0}), "a set"),
    "a bytearray": (closing_over(bytearray(3)), "a bytearray"),
    "a memoryview": (closing_over(memoryview(b"abc")), "a memoryview"),
    "an array within tuples": (lambda row: row + HIDDEN[1][1][0], "a tuple"),
    "a list within a tuple": (lambda row: row * WITH_LIST[1][0], "a tuple"),
    "a named tuple": (closing_over(Pair(1.0, torch.ones(3))), "a Pair"),
    "a mutable default": (mutable_default, "a list"),
    "an object": (lambda row: row + holder.held, "a Holder"),
    "a callable object": (holder, "a Holder"),
    "a network": (nn.Linear(3, 3), "a Linear"),
    "a network within": (closing_over(nn.Linear(3, 3)), "a Linear"),
    "a method": (holder.method, "the method method of a Holder"),
    "a class method": (Holder.of_class, "the method of_class of a type"),
    "a method of a tensor": (torch.ones(3).add, "the method add of a Tensor"),
    "a method of a tensor within": (closing_over(torch.ones(3).sum), "the method sum"),
    "a class": (lambda row: row + Holder.rows, "the class Holder"),
    "a class to call": (Holder, "the class Holder"),
    "a cached function": (functools.lru_cache(double), "a _lru_cache_wrapper"),
    "a cached function within": (closing_over(functools.cache(double)), "a _lru_cache_wrapper"),
    "a counter within a decorator": (counted(double), "a list"),
    "a generator": (generator(), "a list_iterator"),
    "a generator object": (closing_over(endless(ROW)), "a generator"),
    "itertools.count": (stepping(), "a count"),
    "an enum that holds a tensor": (lambda row: row + Leaky.HELD.value, "a Leaky"),
    "an enum that computes": (lambda row: row + Acting.A.sum(), "an Acting"),
    "text with a state": (closing_over(Loud("x")), "a Loud"),
    "a tensor of a module": (lambda row: row + module.stash, "a Tensor"),
    "a list of a module": (lambda row: row + module.rows[0], "a list"),
    "a tensor among the constants": (from_constants(), "a Tensor"),
    "a lock": (closing_over(threading.Lock()), "a lock"),
    "a through a helper": (lambda row: closing_over(1.0)(row) + mutable_default(row), "a list"),
}


USES = {
    "a global that it writes": (writes_global, "writes to the global 'COUNTER'"),
    "a nonlocal": (stashing(), "writes to 'kept' outside of it"),
    "a counter that is nonlocal": (deeply_stashing(), "writes to 'count' outside of it"),
    "an attribute of itself": (stashes_on_itself, "writes to the attribute .kept"),
    "an attribute of torch": (on_torch, "writes to the attribute .kept"),
    "an attribute of its row": (on_the_row, "writes to the attribute .kept"),
    "deleting": (deletes, "writes to the attribute .kept"),
    "an attribute of a function": (with_attribute(), "asks for the attribute .values"),
    "globals()": (lambda row: row + globals()["STASH"], "uses globals, which may read"),
    "locals()": (lambda row: locals()["row"], "uses locals"),
    "vars()": (lambda row: vars(row), "uses vars"),
    "eval": (lambda row: eval("STASH"), "uses eval"),
    "exec": (lambda row: exec("STASH"), "uses exec"),
    "compile": (lambda row: compile("1", "", "eval"), "uses compile"),
    "getattr": (lambda row: getattr(holder, "held"), "uses getattr"),  # noqa: B009
    "setattr": (lambda row: setattr(row, "kept", 1), "uses setattr"),
    "__import__": (lambda row: __import__("os"), "uses __import__"),
    "__builtins__": (lambda row: __builtins__["open"], "uses __builtins__"),
    "open": (lambda row: open("x"), "uses open"),
    "print": (lambda row: print(row), "uses print"),
    "input": (lambda row: input(), "uses input"),
    "id": (lambda row: row * id(row), "uses id"),
    "hash": (lambda row: row * hash(row), "uses hash"),
    "memoryview": (lambda row: memoryview(b""), "uses memoryview"),
    "type": (lambda row: type(row)(3), "uses type, which shows classes"),
    "object": (lambda row: object.__subclasses__(object), "uses object"),
    "a class of builtins": (lambda row: int.__subclasses__(), "asks for the attribute"),
    "format of builtins": (lambda row: str.format("{0}", row), "asks for the attribute .format"),
    "__class__": (lambda row: row.__class__, "asks for .__class__, which looks behind"),
    "__dict__": (lambda row: row.__dict__, "asks for .__dict__"),
    "__globals__": (lambda row: double.__globals__, "asks for the attribute .__globals__"),
    "__self__": (lambda row: row.sum.__self__, "asks for .__self__"),
    "__closure__": (lambda row: (lambda: row).__closure__, "asks for .__closure__"),
    "a traceback": (asks_the_traceback, "which looks behind a value"),
    "a frame": (of_the_frame, "uses sys._getframe"),
    "str.format": (by_format, "asks for .format"),
    "match on a class": (matches_a_class, "matches a class"),
    "a class within": (makes_a_class, "makes a class"),
    "being a generator": (endless, "makes a generator or coroutine (endless)"),
    "being a coroutine": (coroutine, "makes a generator or coroutine (coroutine)"),
    "a generator that it calls": (lambda row: next(endless(row)), "makes a generator"),
    "import os": (imports_os, "imports 'os'"),
    "from torch import rand": (imports_random_of_torch, "random numbers by torch.rand"),
    "import a module as": (imports_a_module_as, "imports 'torch.nn.functional' within"),
    "a module under two names": (aliases, "as a value"),
    "one of two modules": (picks, "as a value"),
    "an import that is overwritten": (hides_its_import, "both a module and a value 'math'"),
    "a module as an argument": (lambda row, lib=torch: lib.rand(3), "holds a module"),
    "a name that is not there": (lambda row: row + not_there, "'not_there', which is not defined"),  # noqa: F821
    "torch.rand": (lambda row: torch.rand(3), "random numbers by torch.rand: add round.noise"),
    "torch.randn_like": (lambda row: torch.randn_like(row), "random numbers by torch.randn_like"),
    "torch.normal": (lambda row: torch.normal(row, 1.0), "random numbers by torch.normal"),
    "torch.manual_seed": (lambda row: torch.manual_seed(1), "by torch.manual_seed"),
    "torch.random": (lambda row: torch.random.seed(), "random numbers by torch.random"),
    "torch.Generator": (lambda row: torch.Generator(), "random numbers by torch.Generator"),
    "torch.distributions": (lambda row: torch.distributions.Normal(0, 1), "random numbers"),
    "dropout": (lambda row: F.dropout(row), "random numbers by torch.nn.functional.dropout"),
    "torch.dropout": (lambda row: torch.dropout(row, 0.5, True), "random numbers"),
    "normal_": (lambda row: row.normal_(), "random numbers by .normal_: add round.noise"),
    "uniform_": (lambda row: row.uniform_(), "random numbers by .uniform_"),
    "bernoulli": (lambda row: row.bernoulli(), "random numbers by .bernoulli"),
    "numpy.random": (lambda row: np.random.rand(3), "random numbers by numpy.random"),  # noqa: NPY002
    "random": (lambda row: row * random.random(), "random numbers by random.random"),
    "time": (lambda row: row * time.time(), "uses time.time"),
    "os": (lambda row: row * os.getpid(), "uses os.getpid"),
    "os.environ": (lambda row: os.environ["X"], "holds a _Environ"),
    "sys.modules": (lambda row: sys.modules["x"], "holds a dict"),
    "another module's function": (lambda row: ast.parse("1"), "uses compile"),
    "subprocess": (lambda row: subprocess.Popen("x"), "Popen"),
    "torch.empty": (lambda row: torch.empty(3), "uses torch.empty"),
    "torch.empty_like": (lambda row: torch.empty_like(row), "uses torch.empty_like"),
    "new_empty": (lambda row: row.new_empty(3), "asks for .new_empty"),
    "new": (lambda row: row.new(3), "asks for .new"),
    "resize_": (lambda row: row.resize_(30), "asks for .resize_"),
    "set_": (lambda row: row.set_(row), "asks for .set_"),
    "as_strided": (lambda row: row.as_strided((3,), (1,)), "asks for .as_strided"),
    "numpy.empty": (lambda row: np.empty(3), "uses numpy.empty"),
    "numpy.lib": (lambda row: np.lib.stride_tricks, "uses numpy.lib"),
    "numpy.load": (lambda row: np.load("x"), "uses numpy.load"),
    "torch.load": (lambda row: torch.load("x"), "uses torch.load"),
    "torch.save": (lambda row: torch.save(row, "x"), "uses torch.save"),
    "torch.set_default_dtype": (lambda row: torch.set_default_dtype(row.dtype), "torch.set_"),
    "torch.ops": (lambda row: torch.ops.aten.rand([3]), "uses torch.ops"),
    "torch.utils": (lambda row: torch.utils.data, "uses torch.utils"),
    "torch._C": (lambda row: torch._C, "uses torch._C"),
    "nn.Parameter": (lambda row: torch.nn.Parameter(row), "uses torch.nn.Parameter"),
    "nn.Module": (lambda row: nn.Linear(3, 3)(row), "uses torch.nn.Linear"),
    "data_ptr under the name of a member": (lambda row: (row if len(row) else Named).data_ptr, ""),
    "data_ptr": (lambda row: row.data_ptr(), "asks for .data_ptr"),
    "share_memory_": (lambda row: row.share_memory_(), "asks for .share_memory_"),
    "untyped_storage": (lambda row: row.untyped_storage(), "asks for .untyped_storage"),
    "register_hook": (lambda row: row.register_hook(double), "asks for .register_hook"),
    "requires_grad_": (lambda row: row.requires_grad_(), "asks for .requires_grad_"),
    "grad_fn": (lambda row: row.grad_fn, "asks for .grad_fn"),
    "_base": (lambda row: row._base, "asks for ._base"),
    "ctypes": (lambda row: row.numpy().ctypes, "asks for .ctypes"),
    "tofile": (lambda row: row.numpy().tofile("x"), "asks for .tofile"),
    "vmap of a function": (torch.func.vmap(double), "which a library made"),
    "no_grad as a decorator": (torch.no_grad()(double), "which a library made"),
    "a function of torch that is not listed": (torch.rand, "itself"),
}
