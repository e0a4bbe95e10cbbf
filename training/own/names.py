"""Names of code of one's own in a run file, and the objects that they name.

    "mine:NAME"          NAME of the module `mine`, or of "package.module"
    "./mine.py:NAME"     NAME of a file; "mine.py:NAME" and "folder/mine.py:NAME" likewise

NAME may have dots. The working directory comes first, then what is installed, as for `python -m`;
PYTHONPATH is not needed. Files lie in the working directory: neither an absolute path nor one that
leads out of it is read, so a run can be moved and its folder names nothing of another's.

What a file defines itself: functions, classes and constants, and nothing that it imports.

Who trusts a file by its digest has read that file. A name that goes on from it into what it imports
(`mine:torch.load`, `mine:np.load`, `from os import system`) is code that nobody has read with these
arguments in mind. So each word is looked up in the source and in what holds it, and no attribute is
asked for, which could run a `__getattr__`, a property or a metaclass.
"""

from __future__ import annotations

import ast
import importlib.util
import keyword
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

import numpy as np

from ...privacy.errors import InputError, describe, did_you_mean, line_of
from ..algorithms import ALGORITHMS, Algorithm
from . import objects

_LONGEST_NAME = 300  # characters
_FOUND: dict[str, object] = {}
_ASKED: set[str] = set()


class OwnName(NamedTuple):
    """Where an object is.

    Attributes:
        module: dotted name of a module, or path of a file, relative to the working directory.
        name: of the object in it, with dots where it is an attribute of another.
        is_file: whether `module` is a path.
    """

    module: str
    name: str
    is_file: bool


def is_own(name: object) -> bool:
    """Whether a value of a run file names something of one's own; ready names have no colon."""
    return isinstance(name, str) and ":" in name


def parsed_name(name: str, *, key: str) -> OwnName:
    """The parts of a name; nothing is imported.

    Args:
        name: "module:NAME" or "folder/file.py:NAME".
        key: of the run file, for what is said.

    Raises:
        InputError: it has another form, or names a file outside of the working directory.

    >>> parsed_name("./mine.py:Nets.small", key="[model] name")
    OwnName(module='mine.py', name='Nets.small', is_file=True)
    """
    # A path of a file, or the name of a module.
    where, _, attribute = name.rpartition(":")
    is_file = where.endswith(".py") or "/" in where or "\\" in where
    parts = where.split(".")
    if (
        len(name) > _LONGEST_NAME
        or not all(map(_is_word, attribute.split(".")))
        or not (is_file or all(map(_is_word, parts)))
    ):
        raise InputError(
            f'{key}={_shown(name)} must read "module:NAME" or "./file.py:NAME", such as '
            '"mine:net": a module or a file of the working directory, and the name of an object '
            "in it"
        )
    if not is_file:
        return OwnName(where, attribute, is_file=False)
    # A file inside of the working directory, by the rules of every system.
    path = PurePosixPath(where)
    if (
        path.is_absolute()
        or PureWindowsPath(where).drive
        or ".." in path.parts
        or path.suffix != ".py"
        or not where.isprintable()
        or "\\" in where
    ):
        raise InputError(
            f"{key}={_shown(name)} must name a file of Python in the working directory, by a path "
            'relative to it and without "..", such as "./mine.py:NAME"; run the command in its '
            "folder"
        )
    return OwnName(str(path), attribute, is_file=True)


def take_as_asked(name: str) -> None:
    """Note that who runs this process named it; what it reaches is theirs to choose."""
    _ASKED.add(name)


def found_object(name: str) -> object | None:
    """What `own_object` found for a name in this process; None where it was not asked."""
    return _FOUND.get(name)


def own_object(name: str, *, key: str) -> object:
    """The object that a name stands for; its module is imported, which runs it.

    Where code runs by pins alone (`imports.pinned`), only what a pinned file defines is found.

    Args:
        name: "module:NAME" or "folder/file.py:NAME", or what stands for an object from Python.
        key: of the run file, for what is said, such as "[model] name".

    Raises:
        InputError: there is no such module or object, it was not given again, or the module raises
            an error or exits.
    """
    if name.startswith(objects.OBJECT):
        _FOUND[name] = objects.given(name, key=key)
        return _FOUND[name]
    at = parsed_name(name, key=key)
    said = f"{key}={_shown(name)}"
    if objects.pins() is not None and name not in _ASKED:
        _FOUND[name] = _defined(at, said)
        return _FOUND[name]
    with objects.pinned(None):
        module = _module(at, said)
    found: object = module
    for word in at.name.split("."):
        held = found
        try:
            found = getattr(held, word)
        except AttributeError:
            known = [one for one in dir(held) if not one.startswith("_")]
            remedy = did_you_mean(word, known, form=repr) or "; name one that it has"
            raise InputError(f"{said}: {_place(at, word)} has no {word!r}{remedy}") from None
        except (Exception, SystemExit) as error:
            raise _failed(said, f"looking up {word!r}", error) from error
    _FOUND[name] = found
    return found


def _defined(at: OwnName, said: str) -> object:
    """What a pinned file itself defines by a name."""
    try:
        module = _module(at, said)
        return defined(module, objects.source_of(module), at.name.split("."))
    except objects.NotPinned as error:
        raise InputError(f"{said}: {error}") from None
    except (LookupError, SyntaxError) as error:
        raise InputError(
            f"{said} is not what {at.module} defines: {error}; a pin covers the functions, classes "
            "and constants of its file alone, so name one of them, or read where it leads and add "
            "--trust-code"
        ) from None


def _place(at: OwnName, word: str) -> str:
    """What was to have a word: the module, or the object in it that comes before."""
    before = at.name.split(".")
    before = before[: before.index(word)]
    return repr(".".join(before)) if before else repr(at.module)


def _module(at: OwnName, said: str) -> ModuleType:
    if at.is_file:
        path = Path.cwd() / at.module
        if not path.is_file():
            raise InputError(
                f"{said}: no file {at.module} in {Path.cwd()}; run the command in its folder"
            )
        return _imported(lambda: objects.import_file(path), said, at.module)
    _check_one(at.module, said)
    return _imported(lambda: objects.import_module(at.module), said, at.module)


def _check_one(module: str, said: str) -> None:
    """Refuse a name that stands for one module here and was loaded as another elsewhere."""
    top = module.partition(".")[0]
    loaded = getattr(sys.modules.get(top), "__file__", None)
    here = objects.own_path_of(top)
    if isinstance(loaded, str) and here is not None and not here.samefile(loaded):
        raise InputError(
            f"{said}: {top!r} is loaded from {loaded} already, and {here} is another file; rename "
            "one of them"
        )


def _imported(load: Callable[[], ModuleType], said: str, module: str) -> ModuleType:
    before = _process()
    try:
        found = load()
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if missing and (module == missing or module.startswith(f"{missing}.")):
            raise InputError(
                f"{said}: no module {module!r} in {Path.cwd()} or installed; run the command in "
                "its folder"
            ) from None
        if not missing:
            raise _failed(said, f"importing {module!r}", error) from error
        raise InputError(
            f"{said}: {module!r} imports {missing!r}, which is not installed; install it, or put "
            "it into the working directory"
        ) from None
    except objects.NotPinned:
        raise
    except (Exception, SystemExit, GeneratorExit) as error:
        raise _failed(said, f"importing {module!r}", error) from error
    # A module must not change the process that the run relies on.
    for what, was in before.items():
        if (now := _process()[what]) != was:
            raise InputError(
                f"{said}: importing {module!r} changes {what} from {was} to {now}, on which the "
                "rest of the run relies; leave that out of the module"
            )
    return found


def _process() -> dict[str, object]:
    """What a module may not change for everybody else."""
    return {
        "the working directory": Path.cwd(),
        "the default device of torch": _default_device(),
        "what numpy does on errors": np.geterr(),
    }


def _default_device() -> str:
    """Where torch makes tensors; a program that has not imported it has changed nothing."""
    torch = sys.modules.get("torch")
    return "cpu" if torch is None else str(torch.get_default_device())


def _failed(said: str, doing: str, error: BaseException) -> InputError:
    """That code of the user raised an error; a SystemExit would else end the command."""
    return InputError(
        f"{said}: {doing} raised {describe(error)}{line_of(error)}; mend the module so that "
        "it imports without an error or an exit"
    )


def _is_word(text: str) -> bool:
    return text.isascii() and text.isidentifier() and not keyword.iskeyword(text)


def _shown(name: str) -> str:
    text = ascii(name)
    return text if len(text) <= 120 else f"{text[:117]}..."


# Which files of the user a run consists of: those of its own names, and all that they import.
#
# What a file imports is read off its source, so an import inside a function counts as soon as it
# has been loaded; what was imported while a module ran, in whatever way, counts too. Installed
# packages are not followed: versions stand in a run's environment.


def modules_of(names: Iterable[str]) -> list[ModuleType]:
    """The modules of names that were found; one that was not, and plain data, have none."""
    found: list[ModuleType | None] = []
    for name in names:
        if name.startswith(objects.OBJECT):
            found.append(objects.module_of(found_object(name)))
            continue
        at = parsed_name(name, key="name")
        path = Path.cwd() / at.module
        found.append(
            next((one for one in list(sys.modules.values()) if objects.file_of(one) == path), None)
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
    executed = objects.ran()
    while pending:
        module = pending.pop()
        path = objects.file_of(module)
        if module.__name__ in seen or path is None or not objects.is_own_file(path):
            continue
        seen.add(module.__name__)
        relative = path.relative_to(Path.cwd()).as_posix()
        found[relative] = executed.get(path) or objects.digest_of(path)
        names = [*_imports(module, path), *objects.imported_by(module.__name__)]
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
        path = objects.file_of(module)
        if path is None or not path.is_file():
            found[module.__name__] = "none"
        elif not objects.is_own_file(path):
            found[module.__name__] = objects.digest_of(path)
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


# An algorithm by its name in a run file: of the registry, or one's own as "module:NAME".

_KEY = "name"


def algorithm_named(name: str) -> Algorithm:
    """The algorithm of a name.

    Args:
        name: in the registry, or "module:NAME" of one's own.

    Raises:
        InputError: there is none, or what the name stands for is no algorithm.
    """
    if not is_own(name):
        if name not in ALGORITHMS:
            raise InputError(
                f"name={name!r} must be one of {', '.join(ALGORITHMS)}, or name your own as "
                f'"module:NAME"{did_you_mean(name, ALGORITHMS)}'
            )
        return ALGORITHMS[name]
    # One of your own, whose hyper-parameters all have defaults.
    found = own_object(name, key=_KEY)
    if not isinstance(found, Algorithm):
        kind = "function" if callable(found) and not isinstance(found, type) else None
        raise InputError(
            f"{_KEY}={name!r} is a {kind or type(found).__name__}; it must be an Algorithm(...)"
        )
    if not (isinstance(found.settings, type) and is_dataclass(found.settings)):
        raise InputError(
            f"{_KEY}={name!r} has settings={found.settings!r}; they must be a frozen dataclass of "
            "its hyper-parameters"
        )
    for field in fields(found.settings):
        if field.default is MISSING and field.default_factory is MISSING:
            raise InputError(
                f"{_KEY}={name!r}: its hyper-parameter {field.name!r} has no default; give it one "
                f"in {found.settings.__name__}"
            )
    return found


def known_algorithm(name: str) -> Algorithm | None:
    """The algorithm of a name, if it is one of the registry or was found before; nothing is run."""
    found = ALGORITHMS.get(name) or found_object(name)
    return found if isinstance(found, Algorithm) else None


_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def defined(module: ModuleType, source: bytes, words: list[str]) -> object:
    """The object that a dotted name stands for in a module.

    Args:
        module: loaded.
        words: of the name; all but the last are classes that the file defines.

    Raises:
        LookupError: the file does not define it; a clause that says why.
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
