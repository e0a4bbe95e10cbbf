"""What a pin of one file covers: what the file defines, by whatever way a name leads elsewhere."""

import hashlib
import sys
from pathlib import Path

import pytest

from overhear.privacy.errors import InputError
from overhear.training.own.names import own_object
from overhear.training.own.objects import pinned

SOURCE = """\
import functools
import math
import math as arithmetic
import operator
import os
from dataclasses import dataclass
from functools import lru_cache, wraps
from os import environ, system

LENGTH = 3
PAIR, OTHER = (1, 2), 4
ALIAS = os.environ
call = os.system
partial = functools.partial(os.system, "true")
bound = os.environ.get
getter = operator.attrgetter("nn")
instance = object()


def net(input_shape, classes):
    return input_shape, classes


def made(factor):
    def inner(x):
        return factor * x

    return inner


twice = made(2)
again = net


@lru_cache
def cached():
    return 1


@wraps(net)
def plain():
    return 2


def passed(function):
    @wraps(function)
    def inner():
        return function()

    return inner


@passed
def decorated():
    return 3


def __getattr__(name):
    open("ran", "w").close()
    return os.system


class Meta(type):
    def __getattr__(cls, name):
        open("ran", "w").close()
        return os.system


@dataclass(frozen=True)
class Nets(metaclass=Meta):
    size: int = 1
    LAYERS = (1, 2)
    module = os
    outside = os.system
    function = staticmethod(os.system)

    class Inner:
        @staticmethod
        def small():
            return "small"

    @staticmethod
    def of():
        return "of"

    @classmethod
    def chosen(cls):
        return cls.size

    @property
    def shown(self):
        open("ran", "w").close()

    def method(self):
        return self.size


class Heir(Nets):
    pass


def call_me():
    pass


call_me = os.system
"""
OWN = [
    *("net", "twice", "again", "plain", "decorated", "LENGTH", "PAIR", "OTHER", "instance"),
    *("Nets", "Nets.of", "Nets.chosen", "Nets.method", "Nets.Inner", "Nets.Inner.small", "Heir"),
]
FOREIGN = [
    *("math", "arithmetic", "arithmetic.pi", "math.sqrt", "os.system", "system", "environ"),
    *("functools.partial", "ALIAS", "call", "partial", "bound", "getter", "cached", "call_me"),
    *("lru_cache", "wraps", "dataclass", "nowhere", "nowhere.system", "__builtins__"),
    *("__builtins__.exec", "__doc__", "__name__", "__loader__", "__loader__.get_data"),
    *("net.__globals__", "net.__class__", "net.__call__", "instance.__class__", "LENGTH.real"),
    *("Nets.module", "Nets.module.system", "Nets.outside", "Nets.function", "Nets.shown"),
    *("Nets.absent", "Nets.__init__", "Nets.__dict__", "Nets.__class__", "Nets.__subclasses__"),
    *("Heir.of", "Heir.outside", "Nets.__module__", "Nets.mro", "Nets.__base__.__subclasses__"),
]


@pytest.fixture
def pins(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "defines", raising=False)
    Path("defines.py").write_text(SOURCE)
    yield {"defines.py": hashlib.sha256(SOURCE.encode()).hexdigest()}
    sys.modules.pop("defines", None)


def test_a_pin_covers_what_its_file_defines_and_nothing_else(pins):
    with pinned(pins):
        for name in OWN:
            for where in ("defines", "./defines.py"):
                found = own_object(f"{where}:{name}", key="[model] name")
                assert getattr(found, "__module__", "defines") in ("defines", "builtins")
        Path("ran").unlink(missing_ok=True)  # a dataclass looks for attributes when it is made
        for name in FOREIGN:
            with pytest.raises(InputError, match="is not what defines defines: "):
                own_object(f"defines:{name}", key="[model] name")
    assert not Path("ran").exists()
    assert own_object("defines:math.pi", key="[model] name") == pytest.approx(3.1416, abs=1e-4)


def test_no_file_is_executed_but_the_pinned_and_as_it_was_digested(pins):
    evil = 'open("ran", "w").close()\n'
    for name in ("beside.py", "pack/__init__.py", "pack/inner.py", "math_too.py"):
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(evil)
    importing = "from beside import *\ndef net(): pass\n"
    Path("defines.py").write_text(importing)
    with pinned(pins), pytest.raises(InputError, match=r"defines.py \(sha256 .* no pin names it"):
        own_object("defines:net", key="[model] name")
    held = {"defines.py": hashlib.sha256(importing.encode()).hexdigest()}
    with pinned(held), pytest.raises(InputError, match=r"beside.py \(sha256 .* no pin names it"):
        own_object("defines:net", key="[model] name")
    inner = {"pack/inner.py": hashlib.sha256(evil.encode()).hexdigest()}
    with pinned(inner), pytest.raises(InputError, match=r"pack/__init__\.py"):
        own_object("pack.inner:net", key="[model] name")
    with pinned(held), pytest.raises(InputError, match="math' has no source"):
        own_object("math:sqrt", key="[model] name")
    assert not Path("ran").exists()


def test_a_file_where_a_pinned_one_makes_python_look_is_held_to_the_pins(pins, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    source = 'import sys\nsys.path.insert(0, "below")\nfrom besides import net\ndef own(): net()\n'
    besides = 'open("ran", "w").close()\ndef net(): pass\n'
    Path("below").mkdir()
    Path("below/besides.py").write_text(besides)
    Path("defines.py").write_text(source)
    held = {"defines.py": hashlib.sha256(source.encode()).hexdigest()}
    with pinned(held), pytest.raises(InputError, match=r"below/besides\.py .* no pin names it"):
        own_object("defines:own", key="[model] name")
    assert not Path("ran").exists()
    held["below/besides.py"] = hashlib.sha256(besides.encode()).hexdigest()
    with pinned(held):
        own_object("defines:own", key="[model] name")
    assert Path("ran").exists()
    sys.modules.pop("besides")
