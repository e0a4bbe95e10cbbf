"""The run file: one TOML document that says everything about a run.

    [data]      which records, and how the agents share them
    [graph]     who talks to whom
    [model]     what is trained
    [algorithm] how, with its own hyper-parameters
    [privacy]   the target, the adversary whose epsilon must meet it, the units of the statement
    [training]  rounds, batches, seeds
    [participation] who takes part in which round, where not everybody does in all
    [intercept] what of the traffic is kept
    [attack]    what is tried on it
    [audit]     how epsilon is measured
    [report]    who answers for the run, and whom to ask

Loading resolves every default, so that `RunFile.to_toml` is the whole story of a run. Paths are
relative to the working directory, as on the command line.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Self, get_args

import tomli_w
from pydantic import Field, ValidationError, model_validator
from pydantic.json_schema import JsonSchemaValue

from ...privacy.batches.patterns import EVERY, Pattern, pattern_of
from ...privacy.errors import InputError, InputTypeError, all_problems
from ...privacy.files import check_links
from ...privacy.formats.toml_text import NotToml, parse_toml, read_toml
from . import cross_checks
from . import tables as tables_of_file
from .data_table import DataTable
from .hyper_parameters import sentences, settings_schema
from .privacy_table import PrivacyTable, ReportTable
from .tables import AlgorithmTable
from .trust import NamedPath, ask, check_after, check_before, check_path, is_of_folder, say_of

# The table of a run file that says who takes part in which round, or how many may be missing.


class ParticipationTable(tables_of_file.Table):
    """[participation]: who takes part in which round, by a public list; else everybody in all.

    The list is fixed before the run. It amplifies nothing, since whoever reads links sees who
    sends; an absent agent draws nothing, sends nothing and keeps its state. Without a list some
    may be missing from any round, which nobody knows when noise is made.
    """

    paths = ("path",)

    probability: Annotated[float, Field(gt=0, le=1)] | None = None
    """Probability of each agent to take part in each round, drawn from the seed."""
    agents_per_round: tables_of_file.Count | None = None
    """Instead of probability: how many agents take part in each round, drawn from the seed."""
    path: str | None = None
    """Instead of both: file with a row a round; .csv of 1 and 0, or .json."""
    missing: tables_of_file.Count | None = None
    """Instead of a list: how many agents, any, may be missing from any round unforeseen."""
    seed: tables_of_file.Seed = 0
    """Public seed of a list that is drawn."""

    @model_validator(mode="after")
    def _check_one(self) -> Self:
        keys = ("probability", "agents_per_round", "path", "missing")
        given = [key for key in keys if getattr(self, key) is not None]
        if len(given) != 1:
            raise InputError(
                "give probability, agents_per_round, path or missing, exactly one of them; "
                f"{' and '.join(given) or 'none'} given"
            )
        if not self._is_drawn and "seed" in self.model_fields_set:
            raise InputError(f"seed={self.seed} has no effect with {given[0]}; leave it out")
        return self

    @property
    def _is_drawn(self) -> bool:
        """Whether the list is drawn from the seed."""
        return self.path is None and self.missing is None

    def entries(self) -> dict[str, object]:
        """The keys that have an effect."""
        found = super().entries()
        if not self._is_drawn:
            found.pop("seed")
        return found


_RUN = "run.toml"


class RunFile(tables_of_file.Table):
    """A whole run file, checked and with every default resolved.

    Raises:
        pydantic.ValidationError: if made directly; `load_run_file` raises one readable ValueError.

    >>> run = RunFile.model_validate({
    ...     "data": {"name": "digits"}, "model": {"name": "mlp"}, "algorithm": {"name": "dpdl"},
    ...     "privacy": {"epsilon": 4.0, "delta": 1e-5},
    ...     "training": {"rounds": 200, "sampling_rate": 0.02},
    ... })
    >>> run.intercept.rounds, run.algorithm.settings().momentum
    ((1, 200), 0.9)
    """

    data: DataTable
    graph: tables_of_file.GraphTable = tables_of_file.GraphTable()
    model: tables_of_file.ModelTable
    algorithm: AlgorithmTable
    privacy: PrivacyTable | None = None
    training: tables_of_file.TrainingTable
    participation: ParticipationTable | None = None
    intercept: tables_of_file.InterceptTable = tables_of_file.InterceptTable()
    attack: tables_of_file.AttackTable = tables_of_file.AttackTable()
    audit: tables_of_file.AuditTable = tables_of_file.AuditTable()
    report: ReportTable | None = None

    @model_validator(mode="after")
    def _resolve(self) -> Self:
        """Fill in the defaults that depend on another table, and check what tables say together."""
        # Each table with the defaults that another one decides.
        name, agents, rounds = self.algorithm.name, self.data.agents, self.training.rounds
        privacy, problems = cross_checks.resolved_privacy(
            self.privacy, algorithm=name, agents=agents, links=self.graph.links
        )
        model, of_model = cross_checks.resolved_model(self.model, algorithm=name, data=self.data)
        intercept, of_intercept = cross_checks.resolved_intercept(
            self.intercept,
            rounds=rounds,
            agents=agents,
            victim=None if privacy is None else privacy.victim,
        )
        attack, of_attack = cross_checks.resolved_attack(
            self.attack, intercept, algorithm=name, agents=agents, rounds=rounds
        )
        # What tables say together, all problems at once.
        problems += cross_checks.cap_problems(privacy) if self.data.user is not None else []
        problems += of_model + of_intercept + of_attack
        problems += cross_checks.audit_problems(self.audit, rounds=rounds)
        problems += cross_checks.gradient_problems(self.training, algorithm=name)
        taking = self.participation
        if taking is not None and (taking.agents_per_round or 0) > agents:
            problems.append(
                f"[participation] agents_per_round={taking.agents_per_round} must be at most the "
                f"{agents} agents of [data]"
            )
        if taking is not None and (taking.missing or 0) >= agents:
            problems.append(
                f"[participation] missing={taking.missing} must be less than the {agents} agents "
                "of [data]: one of them is there whose records are at risk"
            )
        if problems:
            raise InputError("\n".join(problems))
        resolved: dict[str, tables_of_file.Table | None] = {
            "model": model,
            "privacy": privacy,
            "intercept": intercept,
            "attack": attack,
        }
        return self.model_copy(update=resolved)

    @property
    def pattern(self) -> Pattern:
        """In which rounds one record may take part."""
        return EVERY if self.privacy is None else pattern_of(self.privacy.participation)

    def default_attack(self) -> tables_of_file.AttackTable:
        """[attack] as it is where the run file does not say anything about it."""
        found, _ = cross_checks.resolved_attack(
            tables_of_file.AttackTable(),
            self.intercept,
            algorithm=self.algorithm.name,
            agents=self.data.agents,
            rounds=self.training.rounds,
        )
        return found

    def to_toml(self) -> str:
        """The resolved run file as TOML; reading it gives an equal run file."""
        return write_toml(self.tables())

    def tables(self) -> dict[str, Mapping[str, object]]:
        """The keys that have an effect, by table."""
        held = {name: getattr(self, name) for name in type(self).model_fields}
        return {name: table.entries() for name, table in held.items() if table is not None}


def load_run_file(
    path: str | Path, overrides: Sequence[str] = (), *, notice: Callable[[str], None] | None = None
) -> RunFile:
    """Read, override, check and resolve a run file.

    What it names as "module:NAME" is imported, which runs it: of a run file as it stands; of the
    run.toml of a folder, which one beside a ledger is, as `ForeignFolder` says.

    Args:
        overrides: "table.key=value", the value as in TOML (a bare word is a string). One that
            gives epsilon, noise_multiplier, advantage or tpr, sampling_rate or batch_size replaces
            the others.
        notice: told beforehand which files of the user run, and what of the file an override
            takes the place of.

    Raises:
        FileNotFoundError: no such file.
        ValueError: with one sentence for each problem.
    """
    path = Path(path)
    if path.is_file() and is_of_folder(path):
        return _of_folder(ForeignFolder(path.parent), path, overrides, notice)
    values = _overridden(path, overrides, notice)
    return _asked(values, where=str(path), notice=notice)


def _overridden(
    path: Path, overrides: Sequence[str], notice: Callable[[str], None] | None
) -> dict[str, object]:
    """The tables of a file with the overrides in them; what of it holds no longer is told."""
    values = _values(path)
    for told in merge_overrides(values, overrides):
        if notice is not None:
            notice(f"{told}.")
    return values


class ForeignFolder:
    """The folder of a run that somebody else may have made; every reader of one opens it by this.

    No link in it leads out of it. The paths that its run.toml names lie in it, in the working
    directory or below OVERHEAR_DATA, or the user of this process named them; its code runs where
    somebody vouches for it (`runs.run_file.trust`), and if it is the code that trained the run; and
    tables that it names are not converted on the disk.

    Raises:
        InputError: a link leads out of it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        check_links(path)

    def run_file(self, overrides: Sequence[str] = ()) -> RunFile:
        """Its run.toml, checked and resolved.

        Args:
            overrides: as `load_run_file` takes them; what they name is the user's.

        Raises:
            FileNotFoundError: it has none.
            ValueError: with one sentence for each problem.
        """
        return _of_folder(self, self.path / _RUN, overrides, None)


def _of_folder(
    folder: ForeignFolder,
    path: Path,
    overrides: Sequence[str],
    notice: Callable[[str], None] | None,
) -> RunFile:
    values = _overridden(path, overrides, notice)
    given = {text.partition("=")[0].strip() for text in overrides}  # which is the user's
    for one in named_paths(values):
        if one[0].removeprefix("[").replace("] ", ".") in given:
            ask([], [one])
        check_path(folder.path, one)
    calls = _calls(values)
    held = check_before(folder.path, calls)
    say_of(calls, notice)
    if "attack.denoiser" in given:
        ask(_calls(values, tables_of_file.ATTACK_KEYS))
    try:
        run_file = validated(values, where=str(path))
    except InputError as error:
        raise InputError(
            f"{error}\nIf no one changed {path.name}, another version of overhear wrote it, which "
            "environment.json beside it names: use that one on this run"
        ) from None
    check_after(folder.path, calls, held)
    return run_file


def _values(path: Path) -> dict[str, object]:
    """The tables of a file, as they stand."""
    if not path.is_file():
        raise FileNotFoundError(f"no run file at {path}")
    return read_toml(path)


def _calls(
    values: Mapping[str, object], keys: Sequence[tuple[str, str]] = tables_of_file.OWN_KEYS
) -> list[tables_of_file.Call]:
    handed = {"data": DataTable.handed, "algorithm": AlgorithmTable.handed}
    return tables_of_file.calls_of(values, keys, handed=handed)


def named_paths(values: Mapping[str, object]) -> list[NamedPath]:
    """The paths that the tables of a run file name, by their keys."""
    found = []
    for name, field in RunFile.model_fields.items():
        held = values.get(name)
        for table in (field.annotation, *get_args(field.annotation)):
            if (
                isinstance(held, Mapping)
                and isinstance(table, type)
                and issubclass(table, tables_of_file.Table)
            ):
                # Of a table of columns `target` is one of them.
                keys = [k for k in table.paths if k != "target" or held.get("name") == "npy"]
                given = [(key, held.get(key)) for key in keys]
                found += [(f"[{name}] {key}", one) for key, one in given if isinstance(one, str)]
    return found


def read_tables(
    values: Mapping[str, object], overrides: Sequence[str] = (), *, where: str = "dict"
) -> RunFile:
    """Check and resolve the tables of a run file that Python holds.

    Wherever a run file takes "module:NAME" the object itself may stand: a function, a class, an
    `Algorithm`, or data. It is then named "object:module.NAME@sha256"; `to_toml` says so too.

    Args:
        values: keys by table; left as they are.
        where: what sentences about them begin with.

    Raises:
        ValueError: with one sentence for each problem.
    """
    named = tables_of_file.with_names(values)
    merge_overrides(named, overrides)
    return _asked(named, where=where)


def _asked(
    values: Mapping[str, object], *, where: str, notice: Callable[[str], None] | None = None
) -> RunFile:
    """A run file that the user gives: what it names is the user's, as written and as resolved."""
    ask(_calls(values), named_paths(values), notice)
    ask(_calls(values, tables_of_file.ATTACK_KEYS))  # said where it runs
    run_file = validated(values, where=where)
    entries = run_file.tables()
    ask(_calls(entries), named_paths(entries))
    return run_file


def own_calls(run_file: RunFile) -> list[tables_of_file.Call]:
    """The names of one's own in a run file that say what the run is, with what it hands them."""
    return _calls(run_file.tables())


def validated(values: Mapping[str, object], *, where: str) -> RunFile:
    """The tables of a run file, checked and resolved; nothing in them is taken as asked for.

    Raises:
        InputError: with one sentence for each problem.
    """
    try:
        return RunFile.model_validate(values)
    except ValidationError as error:
        found, more = sentences(error, run_file_schema(algorithms=False))
        raise all_problems(where, found, more=more) from None


def run_file_schema(*, algorithms: bool = True) -> JsonSchemaValue:
    """JSON schema of the run file, by default with the hyper-parameters of every algorithm."""
    schema = RunFile.model_json_schema()
    schema["description"] = "What one run of overhear does."
    if algorithms:
        schema["$defs"]["AlgorithmTable"] |= settings_schema()
    return schema


def check_same(config: RunFile, path: Path) -> None:
    """The run file must be that of the run; the first key that differs is named.

    What a round costs does not depend on where it is computed. A default of a table that training
    does not read may be another one today: the folder keeps what it was then.

    Args:
        config: with which it is to go on.
        path: the run file that it was begun with.

    Raises:
        ValueError: it is another one.
    """
    kept = ForeignFolder(path.parent).run_file()
    where = config.training.model_copy(update={"device": kept.training.device})
    config = config.model_copy(update={"training": where})
    unread = {
        "attack": config.default_attack(),
        "audit": tables_of_file.AuditTable(),
        "report": None,
    }
    for table in type(config).model_fields:
        mine, theirs = (getattr(run, table) for run in (config, kept))
        given, held = ({} if t is None else t.entries() for t in (mine, theirs))
        default = unread.get(table)
        usual = {} if default is None else default.entries()
        for key in [*given, *(k for k in held if k not in given)]:
            if table in unread and given.get(key) == usual.get(key):
                continue
            if given.get(key) != held.get(key):
                raise InputError(
                    f"[{table}] {key}={given.get(key)!r} differs from {held.get(key)!r} in "
                    f"{path}; a run is continued as it was begun, so give that file, or choose "
                    "another folder for a new run"
                )


_BARE_WORD = re.compile(r"[A-Za-z][\w.,:/-]*")
_POINTED = re.compile(r"([+-]?)(?:\.(\d+)|(\d+)\.)((?:[eE][+-]?\d+)?)")
_LONGEST_SHOWN = 200  # characters of an override that a refusal repeats
# Ways to say the same thing, each with its keys: an override of one replaces the others.
_ALTERNATIVES = (
    ("privacy", (("epsilon",), ("noise_multiplier",), ("advantage",), ("tpr", "fpr"))),
    ("training", (("sampling_rate",), ("batch_size",))),
)


def write_toml(tables: Mapping[str, Mapping[str, object]]) -> str:
    r"""Tables of scalars, strings, lists and tables of these as TOML, in their order.

    Raises:
        TypeError: a value of another type; a run file has no dates.
    """
    return tomli_w.dumps(
        {
            name: {key: _checked(value) for key, value in table.items()}
            for name, table in tables.items()
        }
    )


def _checked(value: object) -> object:
    match value:
        case enum.Enum():
            return _checked(value.value)
        case bool() | str() | int() | float():
            return value
        case list() | tuple():
            return [_checked(item) for item in value]
        case dict():
            return {str(key): _checked(item) for key, item in value.items()}
        case _:
            # The writer would take a date, which the tables' types do not read back.
            raise InputTypeError(
                f"{value!r} of type {type(value).__name__} has no place in a run file"
            )


def merge_overrides(values: dict[str, object], overrides: Sequence[str]) -> list[str]:
    """Set "table.key=value" in the tables of a run file, in place.

    Returns:
        A sentence for each key that the tables gave and that holds no longer, since an override
        takes its place.

    Raises:
        ValueError: an override that is not of this form.
    """
    given, silenced = set[tuple[str, str]](), list[str]()
    for text in overrides:
        path, equals, value = text.partition("=")
        table, dot, key = (part.strip() for part in path.partition("."))
        if not (equals and dot and table and key) or "." in key:
            raise InputError(
                f"override {text!r} must read table.key=value, such as privacy.epsilon=4"
            )
        section = values.setdefault(table, {})
        if not isinstance(section, dict):
            raise InputError(f"override {text!r}: {table!r} is no table in this run file")
        section[key] = _parse(value.strip(), text)
        given.add((table, key))
    for table, ways in _ALTERNATIVES:
        section = values.get(table)
        asked = [way for way in ways if any((table, key) in given for key in way)]
        if not asked or not isinstance(section, dict):
            continue
        for way in ways:
            for key in [one for one in way if one in section and way not in asked]:
                lost = f"[{table}] {key} = {section.pop(key)} of the run file holds no longer"
                silenced.append(f"{lost}: {asked[0][0]} takes its place")
    return silenced


def _parse(value: str, override: str) -> object:
    shown = override if len(override) <= _LONGEST_SHOWN else f"{override[:_LONGEST_SHOWN]}..."
    try:
        parsed = parse_toml(f"value = {value}")
    except NotToml:
        if _BARE_WORD.fullmatch(value):  # a shell eats the quotes of a string
            return value
        parsed = {}
    except InputError as error:
        if _BARE_WORD.fullmatch(value):
            return value
        raise InputError(f"override {shown!r} {error}") from error
    if parsed.keys() != {"value"}:
        remedy = "quote a string as 'table.key=\"some text\"'"
        if number := _POINTED.fullmatch(value):
            sign, after, before, power = number.groups()
            remedy = f"write {sign}{before or '0'}.{after or '0'}{power}"
        raise InputError(
            f"override {shown!r}: {value[:_LONGEST_SHOWN]!r} is no TOML value; {remedy}"
        )
    return parsed["value"]
