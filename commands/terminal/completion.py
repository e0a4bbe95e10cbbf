"""What a shell offers when Tab is pressed: keys of a run file, and the names that they may have."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

_NAME = re.compile(r"\bAlgorithm\(\s*name=\"([\w-]+)\"")
_ADVERSARIES = ("eavesdropper", "neighbour", "all-others", "final-models", "single-message")


def overrides(incomplete: str) -> list[str]:
    """Of `--set table.key=value`."""
    return _completed(incomplete, several=False)


def algorithm_names() -> list[str]:
    """Names of the registry, read off its files: to import it takes longer than a hand waits.

    >>> len(algorithm_names()) > 10
    True
    """
    folder = Path(__file__).parents[2] / "training" / "algorithms"
    texts = [path.read_text(encoding="utf-8") for path in sorted(folder.rglob("*.py"))]
    return [name for text in texts for name in _NAME.findall(text)]


def sweeps(incomplete: str) -> list[str]:
    """Of `--sweep table.key=a,b,c`, the last one of the list.

    >>> sweeps("graph.name=ring,gr")
    ['graph.name=ring,grid']
    """
    return _completed(incomplete, several=True)


def presets(incomplete: str) -> list[str]:
    """Names of attacks.

    >>> presets("i")
    ['idlg', 'inverting-gradients']
    """
    from ...runs.run_file.tables import PresetName

    return [name for name in get_args(PresetName) if name.startswith(incomplete)]


@contextlib.contextmanager
def words_of_bash(environment: MutableMapping[str, str]) -> Iterator[None]:
    """Bash takes "key=value" apart at "=": join its words, and leave the key off the answer.

    Nothing happens but where bash asks what may stand behind a "=".

    >>> given = {"_OVERHEAR_COMPLETE": "complete_bash", "COMP_CWORD": "5",
    ...     "COMP_WORDS": chr(10).join(["overhear", "plan", "--set", "graph.name", "=", "r"])}
    >>> with words_of_bash(given):
    ...     print(given["COMP_WORDS"].split(), given["COMP_CWORD"])
    ...     # What is printed is left without its key.
    ['overhear', 'plan', '--set', 'graph.name=r'] 3
    >>> with words_of_bash(given):
    ...     print("graph.name=ring")
    ring
    """
    joined: list[str] = []
    if environment.get("_OVERHEAR_COMPLETE") == "complete_bash":
        words = environment.get("COMP_WORDS", "").split("\n")
        for word in words[: int(environment.get("COMP_CWORD") or 0) + 1]:
            if joined and (word == "=" or joined[-1].endswith("=")):
                joined[-1] += word
            else:
                joined.append(word)
    if not joined or "=" not in joined[-1]:
        yield
        return
    environment["COMP_WORDS"] = "\n".join(joined)
    environment["COMP_CWORD"] = str(len(joined) - 1)
    key, answer = f"{joined[-1].partition('=')[0]}=", io.StringIO()
    try:
        with contextlib.redirect_stdout(answer):
            yield
    finally:
        print("\n".join(one.removeprefix(key) for one in answer.getvalue().splitlines()))


def _completed(incomplete: str, *, several: bool) -> list[str]:
    key, given, value = incomplete.partition("=")
    if not given:
        return [f"{name}=" for name in _keys() if name.startswith(incomplete)]
    before, _, last = value.rpartition(",") if several else ("", "", value)
    head = f"{before}," if before else ""
    found = (name for name in _values(key, several=several) if name.startswith(last))
    return [f"{key}={head}{name}" for name in found]


def _keys() -> list[str]:
    return [f"{table}.{key}" for table, of in _tables().items() for key in of]


def _values(key: str, *, several: bool) -> list[str]:
    """What a key may be, where that is a few names."""
    from ...runs.run_file.data_table import DATA_NAMES
    from ...runs.run_file.tables import LOSS_NAMES, MODEL_NAMES

    named = {
        "data.name": DATA_NAMES,
        "model.loss": LOSS_NAMES,
        "training.device": ("auto", "cpu", "cuda"),
        "algorithm.name": tuple(algorithm_names()),
        "model.name": MODEL_NAMES,
        "privacy.adversary": _ADVERSARIES,
        "attack.adversary": _ADVERSARIES,
    }
    if key in named:
        return list(named[key])
    lists = {"privacy.adversaries": _ADVERSARIES}
    table, _, field = key.partition(".")
    annotation = _tables().get(table, {}).get(field)
    if key in lists:
        return [] if several else [f'["{name}"]' for name in lists[key]]
    names, is_list = _names(annotation)
    if is_list:
        return [] if several else [f'["{name}"]' for name in names]
    return names


def _names(annotation: Any) -> tuple[list[str], bool]:
    """The names that an annotation allows, and whether it is a list of them."""
    if get_origin(annotation) is Literal:
        return [name for name in get_args(annotation) if isinstance(name, str)], False
    if annotation is bool:
        return ["true", "false"], False
    found: list[str] = []
    inside = [one for one in get_args(annotation) if one is not Ellipsis]
    for one in inside:
        found += _names(one)[0]
    return found, get_origin(annotation) is tuple


def _tables() -> dict[str, dict[str, Any]]:
    """By table its keys, and by key its annotation."""
    from ...runs.run_file.run_file import RunFile
    from ...runs.run_file.tables import Table

    found: dict[str, dict[str, Any]] = {}
    for name, held in RunFile.model_fields.items():
        of = held.annotation  # a table, or a table or None
        for one in (of, *get_args(of)):
            if isinstance(one, type) and issubclass(one, Table):
                found[name] = {key: f.annotation for key, f in one.model_fields.items()}
    return found
