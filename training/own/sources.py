"""Which files of the user a run consists of: those of its own names, and all that they import.

What a file imports is read off its source, so an import inside a function counts as soon as it has
been loaded; what was imported while a module ran, in whatever way, counts too. Installed packages
are not followed: versions stand in a run's environment.
"""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType

from .imports import digest_of, file_of, imported_by, is_own_file, ran
from .names import found_object, parsed_name
from .objects import OBJECT, module_of

__all__ = ["installed_digests", "modules_of", "own_files"]


def modules_of(names: Iterable[str]) -> list[ModuleType]:
    """The modules of names that were found; one that was not, and plain data, have none."""
    found: list[ModuleType | None] = []
    for name in names:
        if name.startswith(OBJECT):
            found.append(module_of(found_object(name)))
            continue
        at = parsed_name(name, key="name")
        path = Path.cwd() / at.module
        found.append(
            next((one for one in list(sys.modules.values()) if file_of(one) == path), None)
            if at.is_file
            else sys.modules.get(at.module)
        )
    return [module for module in found if module is not None]


def own_files(modules: Iterable[ModuleType]) -> dict[str, str]:
    """SHA-256 of each file of the working directory that modules consist of, by relative path.

    It is that of what was executed, where that is known, and else of the file as it is now.

    Args:
        modules: loaded ones; those that are installed add nothing.
    """
    pending, seen = list(modules), set[str]()
    found: dict[str, str] = {}
    executed = ran()
    while pending:
        module = pending.pop()
        path = file_of(module)
        if module.__name__ in seen or path is None or not is_own_file(path):
            continue
        seen.add(module.__name__)
        relative = path.relative_to(Path.cwd()).as_posix()
        found[relative] = executed.get(path) or digest_of(path)
        names = [*_imports(module, path), *imported_by(module.__name__)]
        pending += [sys.modules[name] for name in names if name in sys.modules]
    return dict(sorted(found.items()))


def installed_digests(modules: Iterable[ModuleType]) -> dict[str, str]:
    """SHA-256 of the file of each module that is not of the working directory, by its name.

    >>> import math
    >>> installed_digests([sys])
    {'sys': 'none'}
    """
    found = {}
    for module in modules:
        path = file_of(module)
        if path is None or not path.is_file():
            found[module.__name__] = "none"
        elif not is_own_file(path):
            found[module.__name__] = digest_of(path)
    return dict(sorted(found.items()))


def _imports(module: ModuleType, path: Path) -> Iterator[str]:
    """Every module that a source names in an import, with the packages that it lies in."""
    if path.suffix != ".py":
        return
    package = module.__name__ if hasattr(module, "__path__") else module.__package__ or ""
    for node in ast.walk(ast.parse(path.read_bytes())):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = importlib.util.resolve_name("." * node.level + base, package)
            names = [base, *(f"{base}.{alias.name}" for alias in node.names)]
        for name in names:
            parts = name.split(".")
            yield from (".".join(parts[:end]) for end in range(1, len(parts) + 1))
