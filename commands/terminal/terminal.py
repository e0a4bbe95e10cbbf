"""The terminal: what is printed, options of several commands, and words that a shell completes."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import functools
import inspect
import io
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, Literal, TextIO, cast, get_args, get_origin

import typer

from ...runs.folder.names import LIFELINE
from ...runs.requests import RequestField, fields_of

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from ...runs.run_file.tables import Call
    from ...runs.sweep.engine import Engine

# What commands print with: a console, plain text on it, and one JSON object.


def make_console(*, stderr: bool = False) -> Console:
    """A console on standard output, or on standard error.

    What is read by a program, or kept in a file, has no blanks at the ends of its lines.
    """
    from .console import PlainConsole

    stream = sys.stderr if stderr else sys.stdout
    if stream.isatty():
        return PlainConsole(stderr=stderr)
    # It hands on whatever it does not write itself.
    trimmed = cast("IO[str]", _Trimmed(stream))
    return PlainConsole(file=trimmed, stderr=stderr)


def make_table(title: object = "") -> Table:
    """An empty table in the one style of all commands: a rule below its heads, and no others.

    The title stands above it; a text of rich is taken as it is.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    return Table(
        title=title if isinstance(title, Text) else str(title) or None,
        title_justify="left",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
    )


class _Trimmed:
    """A stream whose lines end where their last letter does."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write the text without blanks before its ends of lines."""
        *whole, last = text.split("\n")
        self._stream.write("".join(f"{line.rstrip(' ')}\n" for line in whole) + last)
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def say(console: Console, text: str) -> None:
    """Print a text."""
    console.print(text)


def say_indented(console: Console, text: str, *, by: int = 2) -> None:
    """Print a text, each line of it further to the right."""
    from rich.padding import Padding
    from rich.text import Text

    console.print(Padding(Text(text), (0, 0, 0, by), expand=False))


def write(text: object, *, end: str = "\n") -> None:
    """Print a text on standard output; what of it is not shown stands as its escape."""
    from ...privacy.plain_text import plain_lines  # a command starts without it

    print(plain_lines(str(text)), end=end)


def print_json(value: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
    """Print an object, or a list of them, each with its version; infinite numbers as strings."""
    import json

    from ...privacy.formats.codec import finite

    # What has no version of its own, as a file has, is of the first that commands print.
    several = [value] if isinstance(value, Mapping) else value
    found: Any = finite([{"schema": 1, **one} for one in several])
    write(json.dumps(found if several is value else found[0], indent=2, allow_nan=False))


# What a shell offers when Tab is pressed: keys of a run file, and the names that they may have.


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


# Options of several commands.


class IsThere:
    """In an annotation: the paths that are given are looked at before the command begins.

    Args:
        words: of a path at which nothing is, which stands in them as {}.
    """

    def __init__(self, words: str) -> None:
        self._words = words

    def look(self, given: Path | Iterable[Path | None] | None) -> None:
        """Refuse a path at which nothing is, before what takes seconds is loaded.

        Raises:
            FileNotFoundError: nothing is there.
        """
        for path in [given] if isinstance(given, Path) else given or ():
            if path is None:
                continue
            try:
                path.lstat()
            except (FileNotFoundError, NotADirectoryError):
                toml = path.suffix == ".toml" and self._words is NO_RUN
                said = "no run file at {}" if toml else self._words
                raise FileNotFoundError(said.replace("{}", str(path))) from None
            except (OSError, ValueError):  # of which the command speaks
                pass


NO_RUN = "{}/run.toml does not exist; is {} the --out folder of a finished `overhear train`?"
RunPath = Annotated[Path, typer.Argument(metavar="RUN.toml", help="The run file.")]
Folder = Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a run."), IsThere(NO_RUN)]


class TableOrJson(enum.StrEnum):
    """How a command prints its result."""

    TABLE = "table"
    JSON = "json"


class TextFormat(enum.StrEnum):
    """How a command prints a table that may stand in a document."""

    TABLE = "table"
    MARKDOWN = "markdown"
    JSON = "json"


_FORMAT = typer.Option("--format", help="Format of what is printed; json is one object alone.")
Format = Annotated[TableOrJson, _FORMAT]
FormatOfTable = Annotated[TextFormat, _FORMAT]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class EngineRequest:
    """Where the runs of a sweep are computed.

    Raises:
        ValueError: fewer than one process, or a name of `devices` that is no device.
    """

    jobs: Annotated[int | None, "N"] = None
    """Number of processes at once; by default one for each core."""
    backend: Annotated[str, ("loky", "dask", "ray")] = "loky"
    """Whether it runs on this machine or on a cluster."""
    address: Annotated[str | None, "HOST:PORT"] = None
    """Address of a dask scheduler or a ray cluster."""
    devices: Annotated[tuple[str, ...], "A,B"] = ()
    """Devices that the runs share, such as cuda:0,cuda:1."""

    def __post_init__(self) -> None:
        """Refuse what is none before torch is there."""
        from ...privacy.errors import InputError
        from ...runs.run_file.tables import check_rounds_device

        if self.jobs is not None and self.jobs < 1:
            raise InputError(f"--jobs {self.jobs} must be at least 1")
        for name in self.devices:
            if not name:
                raise InputError("--devices names an empty device; such as cuda:0,cuda:1")
            check_rounds_device(name)

    def engine(self) -> Engine:
        """What runs them."""
        from ...runs.sweep.engine import Engine  # torch takes a while

        return Engine(**dataclasses.asdict(self))


Retry = Annotated[bool, typer.Option("--retry", help="Run again what failed.")]
Device = Annotated[
    str | None,
    typer.Option(
        "--device",
        metavar="DEVICE",
        help="auto, cpu, cuda, cuda:N or mps; by default what the run says.",
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="table.key=value",
        help="Override a key of the run file; may be repeated.",
        autocompletion=overrides,
    ),
]
TrustCode = Annotated[
    bool,
    typer.Option(
        "--trust-code", help="Run the code that DIR names; read its run.toml and sources before."
    ),
]


def trust(code: bool, *, pins: Mapping[str, str] | None = None, calls: Iterable[Call] = ()) -> None:
    """Run code that folders name, until the command ends.

    Args:
        code: any of it.
        pins: SHA-256 by path of what is run all the same; None: what this user trained.
        calls: what of it folders may name, with which options.
    """
    from ...runs.run_file.trust import trust_code, use_remembered

    if pins is None:  # a policy says itself what it lets run, on whichever machine
        use_remembered()
    if code or pins:
        trust_code(pins=None if code else pins, calls=calls)


_COMPLETIONS: Mapping[str, Callable[[str], list[str]]] = {
    "overrides": overrides,
    "preset": presets,
    "sweeps": sweeps,
}


def with_requests(command: Callable[..., None]) -> Callable[..., None]:
    """The command with the fields of the requests among its parameters, in place of these."""
    parameters: list[inspect.Parameter] = []
    requests: dict[str, type] = {}
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        if dataclasses.is_dataclass(parameter.annotation):
            requests[parameter.name] = parameter.annotation  # type: ignore[assignment]
            fields = sorted(fields_of(parameter.annotation).values(), key=_rank)  # type: ignore[arg-type]
            parameters += [_parameter(field) for field in fields]
        else:
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))

    @functools.wraps(command)
    def run(**given: Any) -> None:
        made = {
            name: request(
                **{field.name: _taken(field, given.pop(field.name)) for field in fields.values()}
            )
            for name, request in requests.items()
            for fields in [fields_of(request)]
        }
        command(**made, **given)

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined] # typer reads it
    return run


def _rank(field: RequestField) -> int:
    """Arguments stand first, then what has to be given."""
    return 0 if field.is_argument else 1 if field.default is dataclasses.MISSING else 2


def _parameter(field: RequestField) -> inspect.Parameter:
    """What typer makes an option of, or an argument."""
    kind: Any = field.kind
    settings: dict[str, Any] = {"metavar": field.metavar, "help": field.help}
    if field.choices:
        kind = cast("Any", enum.StrEnum)(field.name, {name: name for name in field.choices})
    elif field.container is tuple or field.reader is not None:
        kind = str
    elif field.container is not None:
        kind = list[kind]
    if not field.is_argument and field.name in _COMPLETIONS:
        settings["autocompletion"] = _COMPLETIONS[field.name]
    is_required = field.default is dataclasses.MISSING
    default = None if field.default == () else field.default
    return inspect.Parameter(
        field.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty if is_required else default,
        annotation=Annotated[
            kind if default is not None else kind | None,
            typer.Argument(**settings)
            if field.is_argument
            else typer.Option(field.flag, **settings),
        ],
    )


def _taken(field: RequestField, value: Any) -> Any:
    """The value of a field, of what typer gives."""
    if (field.container is tuple or field.reader is not None) and isinstance(value, str):
        return field.read(value)
    if isinstance(value, enum.Enum):
        return value.value
    return field.default if value is None else tuple(value) if isinstance(value, list) else value


# What `--quiet` and `--log-file` ask of every command: no progress, and lines in a file.
#
# A file that can no longer be written ends no run: what it would say is then told to nobody.


class Log:
    """Where a command tells how far it is, besides the terminal.

    Attributes:
        path: of the file; None without one.
    """

    def __init__(self) -> None:
        self.title = ""
        self.quiet = False
        self.path: Path | None = None
        self._file: TextIO | None = None

    def begin(self, title: str, *, quiet: bool = False, path: Path | None = None) -> None:
        """Take what the command line says before a command's name, and what it adds behind it.

        Lines of earlier commands in the file stay.

        Args:
            title: the first line about this command.
            quiet: whether the terminal shows no progress; it stays so once it was asked for.

        Raises:
            ValueError: the file cannot be written, or a second one is named.
        """
        self.title, self.quiet = title, self.quiet or quiet
        if path is None or (self.path is not None and path.absolute() == self.path.absolute()):
            return
        from ...privacy.errors import InputError

        if self.path is not None:
            raise InputError(
                f"--log-file is given twice, as {self.path} and as {path}; name one file"
            )
        self.path = path
        if int(os.environ.get("RANK") or 0) > 0:  # rank 0 tells for all
            return
        try:
            self._file = open(path, "a", encoding="utf-8", opener=_at_once)  # noqa: SIM115 # until `end`
        except OSError as error:
            raise InputError(
                f"--log-file {path} cannot be written ({error.strerror or error}); name a file "
                "in a folder that exists, or a pipe that is read"
            ) from error
        self.outline(title)

    def outline(self, text: str) -> None:
        """Write a line about the whole command, unless whoever started this process does."""
        if os.environ.get(LIFELINE) != "1":
            self.line(text)

    def line(self, text: str) -> None:
        """Write a line with the time in UTC, at once."""
        if self._file is not None:
            from ...privacy.plain_text import plain  # a command starts without it

            stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            with suppress(OSError, ValueError):
                self._file.write(f"{stamp} {plain(' '.join(text.split()), most=None)}\n")
                self._file.flush()

    @property
    def options(self) -> list[str]:
        """What another process of the same command is given before the command's name."""
        named = [] if self.path is None else [f"--log-file={self.path}"]
        return [*(["--quiet"] if self.quiet else []), *named]

    def end(self) -> None:
        """Close the file."""
        if self._file is not None:
            with suppress(OSError):
                self._file.close()
            self._file = None


def _at_once(path: str, flags: int) -> int:
    """Open a file; a pipe that nobody reads is an error in place of a wait for a reader."""
    opened = os.open(path, flags | getattr(os, "O_NONBLOCK", 0), 0o666)
    os.set_blocking(opened, True)
    return opened


_current: ContextVar[Log | None] = ContextVar("log", default=None)


def current_log() -> Log:
    """That of the command that runs; of a caller from Python one that says nothing."""
    return _current.get() or Log()


@contextmanager
def logging() -> Iterator[Log]:
    """As long as a command runs, the log that its options may begin."""
    log = Log()
    told = _current.set(log)
    try:
        yield log
    finally:
        log.end()
        _current.reset(told)
