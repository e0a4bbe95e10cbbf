"""What a file defines itself: functions, classes and constants, and nothing that it imports.

Who trusts a file by its digest has read that file. A name that goes on from it into what it imports
(`mine:torch.load`, `mine:np.load`, `from os import system`) is code that nobody has read with these
arguments in mind. So each word is looked up in the source and in what holds it, and no attribute is
asked for, which could run a `__getattr__`, a property or a metaclass.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from types import FunctionType, ModuleType
from typing import Any

_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def defined(module: ModuleType, source: bytes, words: list[str]) -> object:
    r"""The object that a dotted name stands for in a module.

    Args:
        module: loaded.
        words: of the name; all but the last are classes that the file defines.

    Raises:
        LookupError: the file does not define it; a clause that says why.

    >>> import types
    >>> source = b"from math import sqrt\ndef root(x): return sqrt(x)"
    >>> mine = types.ModuleType("mine")
    >>> exec(source, vars(mine))
    >>> defined(mine, source, ["root"])(4.0)
    2.0
    >>> defined(mine, source, ["sqrt"])
    Traceback (most recent call last):
    LookupError: 'sqrt' is imported there
    """
    body: Iterable[ast.AST] = ast.parse(source).body
    held: dict[str, Any] = vars(module)
    owner: type | None = None
    found: Any = module
    last: ast.AST = ast.Pass()
    for at, word in enumerate(words):
        binders = list(_binders(body, word))
        if not binders or word not in held:
            raise LookupError(f"{word!r} is not defined there")
        if any(isinstance(binder, ast.Import | ast.ImportFrom) for binder in binders):
            raise LookupError(f"{word!r} is imported there")
        found, last = held[word], binders[-1]
        if at == len(words) - 1:
            break
        if not (isinstance(last, ast.ClassDef) and _is_class_of(found, module)):
            raise LookupError(f"{word!r} is no class that it defines")
        body, held, owner = last.body, dict(vars(found)), found
    return _of_module(found, last, module, owner)


def _of_module(found: Any, binder: ast.AST, module: ModuleType, owner: type | None) -> object:
    """What was found, where its code is the module's; no other object may be called."""
    name = getattr(binder, "name", getattr(binder, "id", ""))
    function = found.__func__ if type(found) in (staticmethod, classmethod) else found
    if type(function) is FunctionType:
        if function.__globals__ is not vars(module):
            raise LookupError(f"the code of {name!r} is another file's")
        return found.__get__(None, owner) if owner is not None else found
    if issubclass(type(found), type):
        if not (isinstance(binder, ast.ClassDef) and _is_class_of(found, module)):
            raise LookupError(f"{name!r} is a class of another file")
        return found
    is_value = not (isinstance(found, ModuleType) or callable(found))
    if is_value and isinstance(binder, ast.Name):
        return found
    raise LookupError(f"{name!r} is no plain function, class or constant of it")


def _is_class_of(found: Any, module: ModuleType) -> bool:
    return issubclass(type(found), type) and vars(found).get("__module__") == module.__name__


def _binders(nodes: Iterable[ast.AST], word: str) -> Iterator[ast.AST]:
    """What binds a word in a scope, in order; of `a = b.c` the whole assignment."""
    for node in nodes:
        if isinstance(node, _Definition):
            if node.name == word:
                yield node
        elif isinstance(node, ast.Import | ast.ImportFrom):
            if word in {one.asname or one.name.partition(".")[0] for one in node.names}:
                yield node
        elif isinstance(node, ast.Name):
            if node.id == word and isinstance(node.ctx, ast.Store):
                yield node
        elif isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(
            node.value, ast.Name | ast.Attribute
        ):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(isinstance(one, ast.Name) and one.id == word for one in targets):
                yield node
        elif not isinstance(node, ast.Lambda):
            yield from _binders(ast.iter_child_nodes(node), word)
