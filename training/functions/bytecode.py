"""What the code of a function reads from outside of it, by its instructions.

Instructions differ between versions of Python, so they are taken by their names, and what carries a
name and is not known here is refused. A chain `torch.linalg.norm` is read as a whole: what is asked
of a module is settled before the function runs.
"""

from __future__ import annotations

import dis
import itertools
import re
import types
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from .vocabulary import ATTRIBUTES, RANDOM

__all__ = ["Chain", "Reads", "reads_of"]

Chain = tuple[str, ...]  # the attributes that are asked one after the other, such as linalg, norm

_INSPECT = re.compile(r"(_|tb_|gi_|cr_|ag_|f_|co_|func_)")
_WRITES = ("STORE_GLOBAL", "DELETE_GLOBAL", "STORE_ATTR", "DELETE_ATTR", "STORE_NAME")
_HARMLESS = ("LOAD_CLOSURE", "MAKE_CELL", "COPY_FREE_VARS")
_ATTRIBUTE = ("LOAD_ATTR", "LOAD_METHOD")
_LOADS = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "IMPORT_NAME", "IMPORT_FROM")
_NAMED = (*_LOADS, *_ATTRIBUTE, *_WRITES, "STORE_DEREF", "DELETE_DEREF", "DELETE_FAST")


class _Step(NamedTuple):
    """An instruction on one name: LOAD or STORE of what kind, or the instruction's own name."""

    op: str
    name: str
    jumped_to: bool


@dataclass
class Reads:
    """What code reads from outside, nested functions included.

    Attributes:
        globals, cells: by name the chains that begin there; `()` where it is used itself.
        imports: the same of modules that are imported within.
        attributes: names that are asked of values.
        constants: in the order of the code.
        refusal: what it does that no such function may; empty where nothing.
        asks: which attribute it asks for that no such function may; empty where none.
        digest: of the code, the same in every process: nested tuples of text.
    """

    globals: dict[str, set[Chain]] = field(default_factory=dict)
    cells: dict[str, set[Chain]] = field(default_factory=dict)
    imports: dict[str, set[Chain]] = field(default_factory=dict)
    attributes: set[str] = field(default_factory=set)
    constants: list[object] = field(default_factory=list)
    refusal: str = ""
    asks: str = ""
    digest: object = ()

    def refuse(self, words: str) -> None:
        """Note the first thing that is refused."""
        self.refusal = self.refusal or words


_MOST_KEPT = 1024
_kept: dict[int, tuple[types.CodeType, Reads]] = {}


def reads_of(code: types.CodeType) -> Reads:
    """What a function's code reads; kept, because code does not change."""
    held = _kept.get(id(code))
    if held is not None:
        return held[1]
    found = Reads()
    _read(code, outside=frozenset(code.co_freevars), into=found)
    for name in sorted(found.attributes - ATTRIBUTES):
        found.asks = found.asks or _attribute_words(name)
    found.digest = _digest(code)
    if len(_kept) >= _MOST_KEPT:
        _kept.clear()
    _kept[id(code)] = (code, found)
    return found


def _attribute_words(name: str) -> str:
    if name in RANDOM:
        return (
            f"makes random numbers by .{name}: add round.noise, which is accounted for, "
            "or give the function round.public(seed), which everybody knows"
        )
    if _INSPECT.match(name):
        return f"asks for .{name}, which looks behind a value: use what its arguments hold"
    return (
        f"asks for .{name}, which is not among the attributes of tensors, arrays and numbers that "
        "only compute: see overhear.training.functions.vocabulary"
    )


def _read(code: types.CodeType, *, outside: frozenset[str], into: Reads) -> None:
    """Take in one code object and those that it makes functions of."""
    if code.co_flags & _SUSPENDED and code.co_name != "<genexpr>":
        into.refuse(f"makes a generator or coroutine ({code.co_name}): return the value at once")
    steps = list(_steps(code))
    imported = _imported(steps, into)
    at = 0
    while at < len(steps):
        op, name, _ = steps[at]
        at += 1
        roots = _roots(op, name, outside=outside, imported=imported, into=into)
        if roots is not None:
            chain: list[str] = []
            while at < len(steps) and steps[at].op in _ATTRIBUTE and not steps[at].jumped_to:
                chain.append(steps[at].name)
                at += 1
            begun = imported[name] if roots is into.imports else name
            roots.setdefault(begun, set()).add(tuple(chain))
        elif op in _ATTRIBUTE:
            into.attributes.add(name)
        elif op in _WRITES:
            into.refuse(_write_words(op, name))
        elif op in ("STORE_DEREF", "DELETE_DEREF") and name in outside:
            into.refuse(f"writes to {name!r} outside of it (nonlocal): return the value instead")
        elif op == "LOAD_BUILD_CLASS":
            into.refuse("makes a class: a function has no state")
        elif op == "MATCH_CLASS":
            into.refuse("matches a class, which asks for its attributes: use isinstance")
        elif op.startswith("UNKNOWN "):
            into.refuse(
                f"has the instruction {op[8:]} of Python, which is not known to be harmless"
            )
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            _read(constant, outside=outside & frozenset(constant.co_freevars), into=into)
        else:
            into.constants.append(constant)


_SUSPENDED = (
    0x20 | 0x80 | 0x100 | 0x200
)  # generator, coroutine, iterable coroutine, async generator


def _write_words(op: str, name: str) -> str:
    if op.endswith("ATTR"):
        return f"writes to the attribute .{name}: what it computes is what it returns"
    return f"writes to the global {name!r}: what it computes is what it returns"


def _roots(
    op: str, name: str, *, outside: frozenset[str], imported: dict[str, str], into: Reads
) -> dict[str, set[Chain]] | None:
    """Where the chain belongs that an instruction begins; None where it begins none."""
    if op in ("LOAD_GLOBAL", "LOAD_NAME"):
        return into.globals
    if op == "LOAD_DEREF" and name in outside:
        return into.cells
    if op == "LOAD_FAST" and name in imported:
        return into.imports
    return None


def _imported(steps: list[_Step], into: Reads) -> dict[str, str]:
    """The locals that hold modules, by `import math` within the function; the rest is noted."""
    found: dict[str, str] = {}
    stored: list[int] = []
    head = "import it at the head of the file"
    for at, step in enumerate(steps):
        if step.op != "IMPORT_NAME":
            continue
        after = steps[at + 1] if at + 1 < len(steps) else _Step("", "", False)
        if after.op == "STORE_FAST" and "." not in step.name:
            found[after.name] = step.name
            into.imports.setdefault(step.name, set())
            stored.append(at + 1)
        elif after.op == "IMPORT_FROM":
            into.imports.setdefault(step.name, set())
            for one, then in itertools.pairwise(steps[at + 1 :]):
                if one.op == "IMPORT_FROM":
                    into.imports[step.name].add((one.name,))
                    if not then.op.startswith("STORE_"):  # import a.b as c
                        into.refuse(f"imports {step.name!r} within: {head}")
                elif not one.op.startswith("STORE_"):
                    break
        else:
            into.refuse(f"imports {step.name!r} within: {head}")
    for at, step in enumerate(steps):
        if step.op in ("STORE_FAST", "DELETE_FAST") and step.name in found and at not in stored:
            into.refuse(f"names both a module and a value {step.name!r}: {head}")
    return found


def _steps(code: types.CodeType) -> Iterator[_Step]:
    """The instructions, those on several locals one by one, and without those that only jump."""
    for one in dis.get_instructions(code):
        op, arg, jumped_to = one.opname, one.argval, bool(one.is_jump_target)
        if re.match(r"(LOAD|STORE)_FAST", op):
            names = arg if isinstance(arg, tuple) else (arg,)
            kinds = re.findall(r"(LOAD|STORE)_FAST", op)
            for kind, name in zip(kinds, names, strict=True):
                yield _Step(f"{kind}_FAST", str(name), jumped_to)
        elif op in _NAMED:
            yield _Step(op, str(arg), jumped_to)
        elif (one.opcode in dis.hasname or one.opcode in dis.hasfree) and op not in _HARMLESS:
            yield _Step(f"UNKNOWN {op}", str(arg), jumped_to)
        elif op not in ("PUSH_NULL", "CACHE", "EXTENDED_ARG", "NOP", "RESUME"):
            yield _Step(op, "", jumped_to)


def _digest(code: types.CodeType) -> object:
    """Nested tuples of what decides what code does; names and line numbers of the source do not."""
    return (
        "code",
        code.co_code.hex(),
        code.co_exceptiontable.hex(),
        str((code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)),
        code.co_names,
        code.co_varnames,
        code.co_cellvars,
        code.co_freevars,
        tuple(
            _digest(one) if isinstance(one, types.CodeType) else "constant"
            for one in code.co_consts
        ),
    )
