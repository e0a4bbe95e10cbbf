"""`record`: a recorder for training code of one's own, which writes each release before it leaves.

    with record("ledger/agent-0.jsonl", agent=0, agents=6, clip=1.0, rate=0.1) as ledger:
        batch = ledger.batch(len(records))
        g = clipped_sum(model, records, batch) + ledger.noise(D, std=2.0)
        ledger.release(1, kind="model", to=[1, 5], noise=2.0)
        send(g)

The file is the log of releases that `privacy.releases` reads. It holds no value and no position.
"""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any, Literal

from ...privacy.errors import InputError, InputTypeError, needed
from ...privacy.guarantee import Unit
from ...privacy.releases.chained_file import LONGEST_LINE, Chain, ChainedFile, round_number
from ...privacy.releases.lines import SCHEMA, Header, read_header
from ...privacy.releases.log import TRAINING, ReleaseLog, read_log
from ...privacy.releases.values import SERVER, check_keys, party, shown
from ...training.device.later import torch
from .keeping import kept_folder, plain
from .recorder import Observing, Recorder, System

Declared = float | Sequence[float] | Callable[..., float] | Mapping[str, Any]
_ENDING = ".jsonl"
_NUMBERS = ("clip", "scale", "noise", "weight", "lr")
_OF_A_SYSTEM = ("name", "agent", "agents", "rate", "sampler", "unit", *_NUMBERS)


def record(
    path: str | Path,
    *,
    agent: int | str | None = None,
    agents: int | None = None,
    clip: Declared | str | None = None,
    rate: float = 1.0,
    rounds: int | None = None,
    scale: Declared | None = None,
    noise: Declared | None = None,
    weight: Declared | None = None,
    unit: str | Unit = "record",
    depends_on: Literal["released", "public"] = "released",
    links: Literal["clear", "encrypted"] = "clear",
    system: str | System | None = None,
    keep: Sequence[int] | Literal["all"] = (),
    resume: bool = False,
    sampler: Literal["poisson", "other"] | None = None,
    data: Any = None,
) -> Recorder:
    """Write down what a system of one's own releases, each release before it leaves.

    Every line is on the disk when `Recorder.release` returns. The file is new, or goes on with
    `resume`; one process at a time has it.

    Args:
        path: the log, a `.jsonl` file; with an adapter as `system` a folder may be named, in which
            a further training has a folder of its own, "training-2".
        agent: whose releases these are, 0 to agents - 1 or "server"; None where the file holds
            everybody's, and each release names its sender.
        agents: how many there are; a server is none of them.
        clip: bound on the L2 norm of what one unit adds to a vector; "none" where nothing is
            clipped, and then nothing is hidden; {"parts": [12, 12], "each": 1.0} where parts of
            these sizes are clipped by themselves, whose bound is the norm of theirs;
            {"bounded": 2.0} where vectors are bounded by a rule of the system's own.
        rate: probability, in [0, 1], that a unit is in a batch; it counts as 1 unless batches are
            drawn by `Recorder.batch` or `sampler` says "poisson".
        rounds: the number of the last round.
        scale, noise, weight: as `release` takes them; like `clip` a number, a list by round (of
            weight by vector), a function of the round, or such by kind of releases. A function
            (round, agent, released) is named in the log, and given to `conformance` as numbers=.
        unit: "record", or "client" where all that a client sends is clipped as one vector.
        depends_on: on what everything else in a release depends: any release, or public ones.
        links: "encrypted" where nobody on a link can read what crosses it.
        system: its name, or an adapter of a library.
        keep: rounds whose transcripts are kept beside the log for `conformance`, or "all"; they
            are private.
        resume: go on with a log that is there.
        sampler: "poisson" where the system itself draws each unit on its own.
        data: what is trained on, for `Recorder.canaries`: of the data of an audit, which hold
            canaries, nothing is released, and the log is temporary.

    Returns:
        The recorder, a context manager; on an exception what was written stays, and counts.

    Raises:
        ValueError: a value out of range, or a log that is damaged or of other settings.
        FileExistsError: the file exists, and `resume` was not asked for.
        FileNotFoundError: `resume` was asked for, and there is none.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with record(f"{folder}/0.jsonl", agent=0, agents=2, clip=1.0, rate=0.1) as ledger:
    ...         for t in range(1, 101):
    ...             batch = ledger.batch(500)
    ...             ledger.release(t, kind="model", to=1, noise=2.0)
    ...     found = ledger.account(delta=1e-5)
    >>> round(found["eavesdropper"].epsilon, 2), str(found["eavesdropper"].status)
    (2.34, 'declared')
    """
    # What the header says: settings given here stand over those of an adapter.
    given: dict[str, Any] = {
        "agent": agent, "agents": agents, "clip": clip, "sampler": sampler, "unit": Unit(unit),
    }  # fmt: skip
    if rate != 1.0:
        given["rate"] = rate
    name, adapter = (system, None) if system is None or isinstance(system, str) else (None, system)
    if adapter is not None:
        if not isinstance(getattr(adapter, "settings", None), Mapping):
            raise InputTypeError(
                f"system={shown(adapter)} must be the name of the system, or what an adapter made "
                "of a library, such as opacus.watch(optimizer, loader)"
            )
        check_keys(adapter.settings, _OF_A_SYSTEM, "the settings of the system")
        said = dict(adapter.settings)
        name = said.pop("name", None)
        given = {**said, **{key: value for key, value in given.items() if value is not None}}
    numbers = {"scale": scale, "noise": noise, "weight": weight}
    given |= {key: of for key, of in numbers.items() if of is not None}
    for key in _NUMBERS:
        given[key] = _declared(given.get(key), rounds, key)
    given |= {"system": name, "depends_on": depends_on, "links": links, "rounds": rounds}
    entry, header = _header(given)
    # The file, new or gone on with, and which rounds are kept beside it.
    rehearsal = adapter.rehearsal if isinstance(adapter, Observing) else None
    planted = None
    if adapter is None and data is not None and "torch" in sys.modules:  # of which canaries are
        from ...attacks.foreign.audit_training import Planted
        from .canaries import rehearsal_of

        planted = data if isinstance(data, Planted) else None
        rehearsal = None if planted is None else rehearsal_of(planted)
    new = not resume and rehearsal is None
    file_path = _path(Path(path), header, folder=adapter is not None, new=new)
    kept = rounds_to_keep(keep)
    if kept:
        with needed("keep"):  # transcripts are tensors
            torch.get_default_dtype()
    if rehearsal is not None:
        file_path, kept = rehearsal, frozenset()
    file, log = _opened(file_path, entry, header, resume=resume)
    header = header if log is None else log.header
    if kept:
        warnings.warn(
            f"transcripts of {'all rounds' if kept == 'all' else f'{len(kept)} rounds'} are kept "
            f"in {kept_folder(file_path)}; they are private: anyone who reads them knows who was "
            "in a batch and what noise hides it, so keep them as safe as the records",
            stacklevel=2,
        )
    recorder = Recorder(file, header, keep=kept, before=log, planted=planted)
    if adapter is not None:
        recorder.listen_to(adapter)
    return recorder


def _header(given: Mapping[str, Any]) -> tuple[dict[str, Any], Header]:
    entry = {"schema": SCHEMA, **{key: plain(of) for key, of in given.items() if of is not None}}
    entry["unit"] = str(entry["unit"])
    if "agents" not in entry:
        raise InputError("agents is missing; say how many agents there are, a server not counted")
    header = read_header(entry)
    if header.agent is None and header.agents == 1:
        entry["agent"] = party(0, "agent", 1)
        header = read_header(entry)
    return entry, header


def _declared(found: Any, rounds: int | None, key: str) -> Any:
    """A function of the round as its numbers, and one of releases by its name."""
    if isinstance(found, Mapping):
        return {kind: _declared(one, rounds, key) for kind, one in found.items()}
    if not callable(found):
        return found
    if len(inspect.signature(found).parameters) > 1:
        return f"{found.__module__}:{found.__qualname__}"
    if rounds is None:
        raise InputError(f"rounds is missing; {key}= is a function of the round, so say how many")
    return [plain(found(t)) for t in range(1, rounds + 1)]


def _path(path: Path, header: Header, *, folder: bool, new: bool) -> Path:
    if folder and path.suffix != _ENDING:
        path = path / f"{'server' if header.agent == header.agents else 'releases'}{_ENDING}"
        if new and path.exists():
            path = _of_its_own(path)
    if path.is_dir():
        raise InputError(f"{path} is a folder; name a file in it, such as {path}/agent-0{_ENDING}")
    if path.suffix != _ENDING:
        raise InputError(
            f"{path} must end in {_ENDING}, by which the logs of a folder are found; call it "
            f"{path.name}{_ENDING}"
        )
    return path


def _of_its_own(path: Path) -> Path:
    """Where a further training writes, in the folder of a first one."""
    others = (path.parent / f"{TRAINING}{number}" / path.name for number in count(2))
    own = next(other for other in others if not other.exists())
    warnings.warn(
        f"{path.parent} holds another training; the log of this one is {own}: account for each, "
        "and where both have the same records, what they cost adds up",
        stacklevel=4,
    )
    return own


def rounds_to_keep(keep: Any) -> frozenset[int] | Literal["all"]:
    """The rounds to keep, as `record` takes them.

    Raises:
        ValueError: it is neither a list of rounds nor "all".
    """
    if keep == "all":
        return "all"
    if isinstance(keep, str) or not isinstance(keep, Sequence | set | frozenset | range):
        raise InputError(f'keep={shown(keep)} must be a list of rounds, or "all"')
    for number in keep:
        if round_number(number, least=0) is None:
            raise InputError(f"keep={shown(keep)} must hold numbers of rounds, from 0")
    return frozenset(keep)


def _opened(
    path: Path, entry: Mapping[str, Any], header: Header, *, resume: bool
) -> tuple[ChainedFile, ReleaseLog | None]:
    if not resume:
        path.parent.mkdir(parents=True, exist_ok=True)
        exists = (
            f"{path} exists; a log of releases is never overwritten: name another file, or go on "
            "with it by resume=True"
        )
        if path.exists():
            raise FileExistsError(exists)
        return ChainedFile(path, entry, exists=exists), None
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist; leave out resume=True to begin it")
    file = ChainedFile.reopen(path)
    try:
        _check_chained(file, path)
        log = read_log(path, partial=True)
        _check_same(log.header, header, path)
    except BaseException:
        file.close()
        raise
    return file, log


def _check_chained(file: ChainedFile, path: Path) -> None:
    """Refuse a log without digests, whose lines could not be told from those that follow."""
    first = file.start(LONGEST_LINE).splitlines(keepends=True)[:1]
    if not first or Chain().body(first[0], path=path, at=1) is None:
        raise InputError(
            f"{path} carries no digests, so it was not written by a recorder; begin another file, "
            "and account for both"
        )


def _check_same(found: Header, asked: Header, path: Path) -> None:
    for key in Header.__dataclass_fields__:
        one, two = getattr(found, key), getattr(asked, key)
        begun = not found.rounds and found.numbers in ({}, {"clip": asked.numbers.get("clip")})
        if key in ("rounds", "numbers") and begun:
            continue  # of a log that began before numbers were declared, which stays as it is
        if one != two:
            raise InputError(
                f"{path} says {key}={one!s}, and record(...) {two!s}; go on with the settings that "
                f"it began with, or begin another file ({SERVER} and agents each have their own)"
            )
