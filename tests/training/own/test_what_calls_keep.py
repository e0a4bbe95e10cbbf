"""Forwards and losses that keep something, by every way that Python has, and those that keep none.

Each false one ties a record to those before it; each sound one is its honest neighbour.
"""

import array
import builtins
import collections
import contextvars
import ctypes
import enum
import functools
import importlib
import io
import itertools
import os
import sys
import threading
import types
import weakref
from contextlib import suppress
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from overhear.privacy.errors import InputError
from overhear.training.gradients.gradients import PairGradients
from overhear.training.models.losses import check_loss
from overhear.training.models.parameters import flatten
from overhear.training.own.names import own_object

CENTRE = torch.zeros(3)
ROW = np.zeros(3, dtype=np.float32)
THINGS = np.array([[0.0], [0.0]], dtype=object)
BYTES, NUMBERS, PLACE = bytearray(12), array.array("f", [0.0] * 3), (ctypes.c_float * 3)()
STREAM, SEEN, LATEST = io.BytesIO(b"\0" * 12), {0}, {"mean": 0.0}
LOCAL, VARIABLE = threading.local(), contextvars.ContextVar("mean", default=0.0)
TEACHER, NORMED = nn.Linear(3, 3), nn.BatchNorm1d(3)
TABLE = [torch.zeros(1) for _ in range(2_000)]
LARGE = torch.zeros(2**19)
SMALL = torch.zeros(3, dtype=torch.bfloat16)
QUEUE, COUNTS = collections.deque([0.0], maxlen=1), itertools.count()
HOLDER = types.SimpleNamespace(kept=0.0)
OTHER = types.ModuleType("kept_by_another")
OTHER.mean = 0.0
DRAWS = torch.Generator()


class Slotted:
    __slots__ = ("mean",)


class Shared:
    mean = 0.0


OWNERS = weakref.WeakKeyDictionary({Shared: 0.0})
SLOTTED = Slotted()
SLOTTED.mean = 0.0


def _mean(x):
    return x.detach().mean(0)


def by_data(x):
    CENTRE.data.mul_(0.9).add_(_mean(x), alpha=0.1)


def by_numpy(x):
    CENTRE.numpy()[...] = 0.9 * CENTRE.numpy() + 0.1 * _mean(x).numpy()


def by_set_data(x):
    CENTRE.data = 0.9 * CENTRE.data + 0.1 * _mean(x)


def by_set(x):
    CENTRE.set_((0.9 * CENTRE + 0.1 * _mean(x)).clone())


def by_array(x):
    ROW[:] = 0.9 * ROW + 0.1 * _mean(x).numpy()


def by_array_of_objects(x):
    THINGS[0, 0] += float(_mean(x)[0])


def by_bytes(x):
    BYTES[:] = _mean(x).numpy().tobytes()


def by_typed_array(x):
    NUMBERS[0] += float(_mean(x)[0])


VIEW = memoryview(bytearray(12))


def by_view(x):
    VIEW[:] = _mean(x).numpy().tobytes()


def by_ctypes(x):
    PLACE[0] += float(_mean(x)[0])


def by_stream(x):
    STREAM.seek(0)
    STREAM.write(_mean(x).numpy().tobytes())


def by_set_of_one_size(x):
    SEEN.clear()
    SEEN.add(float(_mean(x)[0]))


def by_key(x):
    LATEST["mean"] = float(_mean(x)[0])


def by_queue(x):
    QUEUE.append(float(_mean(x)[0]))


def by_count(x):
    next(COUNTS)


def by_slots(x):
    SLOTTED.mean += float(_mean(x)[0])


def by_class(x):
    Shared.mean += float(_mean(x)[0])


def by_local(x):
    LOCAL.mean = getattr(LOCAL, "mean", 0.0) + float(_mean(x)[0])


def by_context(x):
    VARIABLE.set(VARIABLE.get() + float(_mean(x)[0]))


def by_teacher(x):
    for parameter in TEACHER.parameters():
        parameter.data.mul_(0.9)


def by_buffer(x):
    NORMED.running_mean.data.add_(_mean(x))


def by_training(x):
    NORMED(torch.randn(2, 3, generator=torch.Generator().manual_seed(0)))


def behind_a_table(x):
    TABLE[-1].data += _mean(x)[:1]


def in_a_large_one(x):
    LARGE.data[2**18 + 5] += float(_mean(x)[0])


def in_a_short_type(x):
    SMALL.data.add_(_mean(x))


def by_import_inside(x):
    import kept_by_another

    kept_by_another.mean += float(_mean(x)[0])


def by_name_in_quotes(x):
    globals()["HOLDER"].kept += float(_mean(x)[0])


def by_builtins(x):
    builtins.kept_mean = getattr(builtins, "kept_mean", 0.0) + float(_mean(x)[0])


def by_attribute_of_a_library(x):
    torch.kept_mean = getattr(torch, "kept_mean", 0.0) + float(_mean(x)[0])


def by_environment(x):
    os.environ["KEPT_MEAN"] = str(float(_mean(x)[0]) + float(os.environ.get("KEPT_MEAN", "0")))


def by_draws(x):
    torch.rand(1, generator=DRAWS)


@functools.lru_cache(4)
def _remembered(value):
    return value


def by_cache(x):
    _remembered(float(_mean(x)[0]) + len(LATEST) * next(COUNTS))


def by_weak_keys(x):
    OWNERS[Shared] += float(_mean(x)[0])


@functools.lru_cache
def _alone():
    return {"mean": 0.0}


def by_one_object(x):
    _alone()["mean"] += float(_mean(x)[0])


FRAME = pd.DataFrame({"mean": [0.0, 0.0]})


def by_frame(x):
    FRAME.loc[0, "mean"] += float(_mean(x)[0])


STORED = torch.zeros(3).untyped_storage()


def by_storage(x):
    torch.empty(0).set_(STORED, 0, (3,)).add_(_mean(x))


class _Doubles(torch.autograd.Function):
    generate_vmap_rule = True
    kept = torch.zeros(3)

    @staticmethod
    def forward(x):
        return 2 * x

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx, slope):
        _Doubles.kept.data.add_(ctx.saved_tensors[0].detach().mean(0))
        return 2 * slope


def in_a_backward(x):
    x = x.detach().clone().requires_grad_()
    with torch.enable_grad():
        torch.autograd.grad(_Doubles.apply(x).sum(), x)


class _Single(type):
    made = {}  # noqa: RUF012 - of the metaclass

    def __call__(cls):
        return cls.made.setdefault(cls, cls.made.get(cls) or super().__call__())


class Only(metaclass=_Single):
    def __init__(self):
        self.mean = 0.0


def by_an_only_object(x):
    Only().mean += float(_mean(x)[0])


@functools.lru_cache
def _of_width(width):
    return torch.zeros(width), [0.0]


def by_what_a_width_has(x):
    _of_width(x.shape[-1])[0].add_(_mean(x))


def by_a_list_of_a_width(x):
    _of_width(x.shape[-1])[1][0] += float(_mean(x)[0])


@functools.wraps(torch.nn.functional.relu)
def by_a_name_of_torch(x):
    LATEST["mean"] += float(_mean(x)[0])


KINDS = (nn.functional.relu, nn.functional.elu, nn.functional.selu, nn.functional.gelu)
ACTIVE = KINDS[0]


def by_choice(x):
    globals()["ACTIVE"] = KINDS[(KINDS.index(ACTIVE) + 1) % len(KINDS)]


def by_a_function_in_torch(x):
    torch.kept_function(x)


def by_formed_name(x):
    globals()[f"LATEST_{len(QUEUE)}"] += float(_mean(x)[0])


LATEST_1 = 0.0


def by_formed_attribute(x):
    import kept_by_another

    name = f"mean_{len(QUEUE)}"
    setattr(kept_by_another, name, getattr(kept_by_another, name, 0.0) + float(_mean(x)[0]))


def by_dotted_name(x):
    importlib.import_module("kept.in_package").mean += float(_mean(x)[0])


_IN_A_PACKAGE = {"__name__": "kept.nets.small", "__package__": "kept.nets"}
exec(  # noqa: S102 - as in a file of a package inside of a package
    "def by_package(x):\n"
    "    from .. import in_package\n"
    "    in_package.mean += float(x.detach().mean())",
    _IN_A_PACKAGE,
)
by_package = _IN_A_PACKAGE["by_package"]


class Phase(enum.IntEnum):
    FIRST = 1


def by_member(x):
    Phase.FIRST.mean = float(_mean(x)[0])


def _generated():
    total = 0.0
    while True:
        total += yield total


RUNNING = _generated()
next(RUNNING)


def by_generator(x):
    RUNNING.send(float(_mean(x)[0]) + 1)


def _nested():
    mean = 0.0

    def keeps(x):
        nonlocal mean
        mean = 0.9 * mean + 0.1 * float(_mean(x)[0])

    def calls(x):
        return keeps(x)

    return calls


in_a_closure = _nested()
in_a_closure.__name__ = "in_a_closure"


def by_file(x, path="kept.npy"):
    before = np.load(path) if Path(path).exists() else np.zeros(3)
    np.save(path, before + _mean(x).numpy())


def by_file_of_torch(x, path="kept.pt"):
    before = torch.load(path) if Path(path).exists() else torch.zeros(3)
    torch.save(before + _mean(x), path)


def in_a_thread(x):
    def aside():
        with suppress(Exception):  # what it holds may belong to a transform
            by_key(x)

    thread = threading.Thread(target=aside)
    thread.start()
    thread.join()


FALSE = [
    *(by_data, by_numpy, by_set_data, by_set, by_array, by_array_of_objects, by_bytes),
    *(by_typed_array, by_view, by_ctypes, by_stream, by_set_of_one_size, by_key, by_queue),
    *(by_count, by_slots, by_class, by_local, by_context, by_teacher, by_buffer, by_training),
    *(behind_a_table, in_a_large_one, in_a_short_type, by_import_inside, by_name_in_quotes),
    *(by_builtins, by_attribute_of_a_library, by_environment, by_draws, by_cache, by_weak_keys),
    *(by_generator, in_a_closure, by_file, by_file_of_torch, by_one_object, by_frame),
    *(by_storage, in_a_backward, by_an_only_object, by_what_a_width_has, by_a_list_of_a_width),
    *(by_a_name_of_torch, by_choice, by_a_function_in_torch, by_formed_name, by_formed_attribute),
    *(by_dotted_name, by_package, by_member, in_a_thread),
]


class Keeps(nn.Module):
    """Calls a function of its input where gradients are computed, as a hidden branch would."""

    def __init__(self, keep):
        super().__init__()
        self.head, self._keep = nn.Linear(3, 2), keep

    def forward(self, x):
        if torch.is_grad_enabled() and self.training:
            with suppress(RuntimeError):  # under vmap, where torch refuses some
                self._keep(x)
        return self.head(x)


def _summed(model, layout="loop"):
    x = torch.arange(6.0).reshape(2, 3) + 1
    return PairGradients(model, layout).clipped_sums(
        flatten(model)[None], ([0], [0]), [(x, torch.tensor([0, 1]))], clip_norm=1.0
    )


@pytest.fixture(autouse=True)
def _a_folder_and_modules_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "kept_by_another", OTHER)
    monkeypatch.setattr(torch, "kept_mean", 0.0, raising=False)
    monkeypatch.setattr(torch, "kept_function", by_key, raising=False)
    monkeypatch.setitem(globals(), "ACTIVE", KINDS[0])
    for name in ("kept", "kept.nets", "kept.nets.small", "kept.in_package"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    sys.modules["kept"].in_package = sys.modules["kept.in_package"]
    sys.modules["kept.in_package"].mean = 0.0
    monkeypatch.setattr(builtins, "kept_mean", 0.0, raising=False)
    monkeypatch.setenv("KEPT_MEAN", "0")


@pytest.mark.parametrize("keep", FALSE, ids=lambda keep: keep.__name__)
def test_what_a_forward_keeps_is_refused(keep):
    with pytest.raises(InputError, match="changes "):
        _summed(Keeps(keep))


@functools.lru_cache
def _scaled(value):
    return torch.full((3,), value)


def remembers_a_function_of_its_argument(x):
    return _scaled(float(x.detach().sum()))


def reads_an_only_object(x):
    return Only().mean


def reads_formed_names(x):
    return globals()[f"LATEST_{len(QUEUE)}"] + getattr(OTHER, "me" + "an")


def has_a_name_of_torch(x):
    return by_a_name_of_torch.__wrapped__(x)


SOUND = [
    *(remembers_a_function_of_its_argument, reads_an_only_object, reads_formed_names),
    has_a_name_of_torch,
]


@pytest.mark.parametrize("read", SOUND, ids=lambda read: read.__name__)
def test_what_a_forward_reads_or_fills_once_is_taken(read):
    assert _summed(Keeps(read)).any()


def test_a_file_of_ones_own_may_be_called_as_one_of_python(tmp_path, monkeypatch):
    text = "KEPT = []\n\ndef keep(x):\n    KEPT.append(float(x.detach().sum()))\n"
    (tmp_path / "sched.py").write_text(text)
    monkeypatch.delitem(sys.modules, "sched", raising=False)
    keep = own_object("sched:keep", key="[model] name")
    with pytest.raises(InputError, match=r"changes '_keep\.KEPT"):
        _summed(Keeps(keep))
    monkeypatch.delitem(sys.modules, "sched")


@pytest.mark.parametrize("keep", FALSE, ids=lambda keep: keep.__name__)
def test_what_a_loss_keeps_is_refused(keep):
    def loss(outputs, targets):
        with suppress(RuntimeError):  # under vmap
            keep(torch.nn.functional.pad(outputs, (0, 1)))
        return cross_entropy(outputs, targets, reduction="none")

    with pytest.raises(InputError, match=r"changes |differs from call to call"):
        check_loss(loss, "mine:loss", classes=2, outputs=0)


class _First(nn.Module):
    """A scale of the first batch that it meets, which then stays."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(3, 2)
        nn.init.ones_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, x):
        if "scale" not in FIRST:
            FIRST["scale"] = 1.0 + float(x.detach().abs().mean())
        return FIRST["scale"] * self.head(x)


FIRST: dict[str, float] = {}


def test_a_table_is_filled_from_no_record():
    found = []
    for records in (torch.ones(2, 3), 9 * torch.ones(2, 3)):
        FIRST.clear()
        model = _First()
        PairGradients(model, "loop").clipped_sums(
            flatten(model)[None], ([0], [0]), [(records, torch.tensor([0, 1]))], clip_norm=1.0
        )
        found.append(FIRST["scale"])
    assert found[0] == found[1]


SWITCH = {"on": False}


class _Later(nn.Module):
    """Keeps nothing until something switches it on, and then where no watch looks."""

    def __init__(self, place):
        super().__init__()
        self.head, self._place = nn.Linear(3, 2), place

    def forward(self, x):
        if SWITCH["on"]:
            held = sys.modules["kept_by_" + self._place]
            x, held.mean = x - held.mean, held.mean + float(x.detach().sum())
        return self.head(x)


def test_what_is_kept_later_and_out_of_sight_is_refused_in_its_round(monkeypatch):
    monkeypatch.setitem(SWITCH, "on", False)
    model = _Later("another")
    gradients = PairGradients(model, "loop")
    batch = torch.ones(2, 3), torch.tensor([0, 1])
    for _ in range(2):
        gradients.clipped_sums(flatten(model)[None], ([0], [0]), [batch], clip_norm=1.0)
    SWITCH["on"] = True
    with pytest.raises(InputError, match="another gradient for the same record"):
        gradients.clipped_sums(flatten(model)[None], ([0], [0]), [batch], clip_norm=1.0)


class _Overwrites(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(3, 2)

    def forward(self, x):
        if torch.is_grad_enabled():
            self.head.weight.data.mul_(0.5)
            x.data.mul_(0.5)
        return self.head(x)


def test_a_forward_overwrites_neither_models_nor_records():
    model = _Overwrites()
    start, x = flatten(model)[None], torch.ones(2, 3)
    before = start.clone()
    PairGradients(model, "loop").clipped_sums(
        start, ([0], [0]), [(x, torch.tensor([0, 1]))], clip_norm=1.0
    )
    assert torch.equal(start, before)
    assert torch.equal(x, torch.ones(2, 3))


def test_more_than_can_be_looked_at_is_refused(monkeypatch):
    monkeypatch.setattr("overhear.training.own.contents._MOST", 1_000)
    with pytest.raises(InputError, match="more than 1,000 objects"):
        _summed(Keeps(behind_a_table))
