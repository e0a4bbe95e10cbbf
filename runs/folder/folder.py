"""The run folder: fixed names, nothing overwritten, no pickle; every file is whole or not there."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import importlib.metadata
import os
import platform
import re
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from ... import __version__
from ...privacy import files
from ...privacy.errors import InputError
from ...privacy.files import write_durably
from ...privacy.formats.tensor_archives import read_header
from ...privacy.releases.ledger import read_ledger
from ...privacy.releases.log import holds_logs
from ...training.engine.tensor_file import round_name
from ..run_file.tables import is_same_device
from ..run_file.trust import COPIES, SOURCES
from .records import Environment, Stopped, header_of, read_metrics

RUN, ENVIRONMENT, LEDGER, METRICS = "run.toml", "environment.json", "ledger.jsonl", "metrics.jsonl"
RECORDS = "records.json"
CHECKPOINTS, TRANSCRIPT, ATTACKS = "checkpoints", "transcript", "attacks"
ATTACK, AUDIT = "attacks/attack.json", "audit.json"
MEMBERSHIP, LAST_MODEL = "membership.json", "last-model.json"
PRIVACY, REPORT, SUMS = "privacy.json", "report.html", "SHA256SUMS"
SIGNATURE = f"{SUMS}.sig"
STOPPED = "stopped.json"
_PACKAGES = ("torch", "dp-accounting", "numpy", "scipy", "scikit-image")


@contextmanager
def stated(out: Path) -> Iterator[None]:
    """Errors of the system while a run writes, with the file and what to do."""
    try:
        yield
    except OSError as error:
        if error.errno is None or isinstance(error, FileExistsError):  # says all there is to say
            raise
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        remedy = "make room" if full else "fix that"
        path = error.filename or out
        raise OSError(
            error.errno,
            f"{error.strerror}; what was released is in the ledger: {remedy}, then continue the "
            "run with --resume",
            str(path),
        ) from error


def claim(folder: Path) -> None:
    """Make a folder for a new run.

    Raises:
        FileExistsError: it holds something already.
        ValueError: it cannot be made or written to.
    """
    check_unused(folder)
    try:
        files.make_folder(folder)
        probe = folder / RUN
        probe.touch(exist_ok=False)
        probe.unlink()
        files.sync_folder(folder.parent)
    except OSError as error:
        raise InputError(
            f"{folder} cannot be written to ({error.strerror}); choose another folder for the run"
        ) from error


def check_claimable(folder: Path) -> None:
    """Refuse a folder that `claim` would refuse; what is made for that is taken away again.

    Raises:
        FileExistsError: it holds something already.
        ValueError: it cannot be made or written to.
    """
    absent = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        claim(folder)
    finally:
        for path in absent:  # the innermost first
            if path.is_dir():
                path.rmdir()


def check_unused(folder: Path) -> None:
    """Refuse a folder that holds something already.

    Raises:
        FileExistsError: it is no folder, or holds files.
    """
    if not folder.exists() or (folder.is_dir() and not _held(folder)):
        return
    if (folder / RUN).is_file() and (folder / LEDGER).is_file() and not is_finished(folder):
        raise FileExistsError(
            f"{folder} holds a run that is not finished; add --resume to continue it, or choose "
            "another folder"
        )
    raise FileExistsError(
        f"{folder} already holds files; a run is never overwritten, choose another folder"
    )


def _held(folder: Path) -> list[Path]:
    """What a folder holds, apart from what a process left that died before its first file."""
    return [path for path in folder.iterdir() if path.suffix != files.PART]


def has_ended(folder: Path) -> bool:
    """Whether the last round of a run is measured: the planned one, or where its budget ended it.

    False where the files that say so cannot be read.
    """
    try:
        end = last_round(folder)
        return any(line.round == end for line in read_metrics(folder / METRICS))
    except (OSError, ValueError):
        return False


def is_finished(folder: Path) -> bool:
    """Whether a run came to its end, and was closed with its sums.

    A report on an unfinished run writes sums too, so these alone do not tell.
    """
    if not has_ended(folder):
        return False
    return checkpoint(folder, last_round(folder)).is_file() and (folder / SUMS).is_file()


def last_round(folder: Path) -> int:
    """The last round of a run: the planned one, or where its budget stopped it."""
    if (folder / STOPPED).is_file():
        return Stopped.read(folder / STOPPED).round
    return header_of(read_ledger(folder / LEDGER)).planned_rounds


def checkpoint(folder: Path, round: int) -> Path:
    """Where the state after a round is kept."""
    return folder / CHECKPOINTS / round_name(round)


def attack_file(name: str = "") -> str:
    """Path within a run of what an attack found: the first one's, or that of a named one.

    >>> attack_file("idlg")
    'attacks/idlg/attack.json'
    """
    return f"{ATTACKS}/{name}/{Path(ATTACK).name}" if name else ATTACK


def attack_files(folder: Path) -> list[str]:
    """Paths within a run of what its attacks found: the first one's, then the others' by name."""
    if not (folder / ATTACKS).is_dir():
        return []
    named = sorted(place.name for place in (folder / ATTACKS).iterdir() if place.is_dir())
    return [held for held in map(attack_file, ("", *named)) if os.path.lexists(folder / held)]


def require(folder: Path, name: str) -> Path:
    """The path of a file of a run.

    Raises:
        FileNotFoundError: it is missing, so this is no run folder or an unfinished one.
    """
    path = folder / name
    if not path.exists():
        if holds_logs(folder):
            raise FileNotFoundError(
                f"{folder} holds logs of releases and no run of `overhear train`; `overhear "
                f"account {folder}` adds them up, and `overhear audit-log {folder} --oracle "
                "module:NAME` checks what was kept of them"
            )
        raise FileNotFoundError(
            f"{path} does not exist; is {folder} the --out folder of a finished `overhear train`?"
        )
    return path


def environment(device: str) -> Environment:
    """Versions and the kind of machine, without names or paths."""
    versions = {"overhear": __version__}
    for package in _PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = "not installed"
    return Environment(
        python=platform.python_version(),
        system=platform.system(),
        processor=platform.machine(),
        device=device,
        packages=versions,
    )


def note_device(folder: Path, device: str, *, after: int, seeded: bool) -> str:
    """Tell the environment of a run where, and by which version, it goes on; words if it moved.

    Args:
        after: the round that its state is of; below 0 where it begins anew.
        seeded: whether its noise comes from a seed for evaluations.
    """
    told = Environment.read(folder / ENVIRONMENT)
    ours = environment(device).packages["overhear"]
    wrote, words = told.packages.get("overhear", ""), ""
    if wrote.rsplit(" ", 1)[-1] != ours:
        version = f"{wrote}, after round {after} {ours}" if wrote and after >= 0 else ours
        told = told.model_copy(update={"packages": {**told.packages, "overhear": version}})
        told.write(folder / ENVIRONMENT)
        words = f"It was begun by overhear {wrote or 'unknown'} and goes on by {ours}. "
    before = told.device.rsplit(" ", 1)[-1]
    if before == "" or is_same_device(before, device):
        return words.rstrip()
    text = device if after < 0 else f"{told.device}, after round {after} {device}"
    told.model_copy(update={"device": text}).write(folder / ENVIRONMENT)
    said = f"It was trained on {before} and goes on on {device}, which rounds otherwise"
    if seeded:
        said += " and draws other noise from the seed, so its models are not those of one device"
    return f"{words}{said}."


def tell_layout(folder: Path, layout: str, *, ranks: int) -> None:
    """Complete the environment of a run by what its rounds have settled."""
    told = Environment.read(folder / ENVIRONMENT)
    told.model_copy(update={"layout": layout, "ranks": ranks}).write(folder / ENVIRONMENT)


@contextmanager
def metrics_file(folder: Path) -> Iterator[TextIO]:
    """metrics.jsonl of a run, open for more lines."""
    files.make_folder(folder / CHECKPOINTS)
    with open(folder / METRICS, "a", encoding="utf-8", opener=files.open_private) as lines:
        files.sync_folder(folder)
        yield lines


def digest(path: Path, *, most: int = 1 << 62) -> str:
    """SHA-256 of a file.

    Raises:
        ValueError: it is no regular file, which may have no end, or has more than `most` bytes.
    """
    files.check_size(path, most)
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# SHA256SUMS of a run: what a finished run must have, and how it is written, read and held.
#
# A run is finished when its last round is measured; from then on SHA256SUMS names every file that
# the program reads of it. A report on a run that is not finished writes sums too, and they are held
# as well. They are the digests of files and no signature: who can write to the folder can write
# them anew, so what must not be changed unseen is signed (signature.py), or kept, or its SHA256SUMS
# is, where others cannot write.

_LARGEST = 64 << 20  # bytes; a line has about a hundred
_LONG = 8 << 30  # bytes of a file of a run that is no safetensors file
_LINE = re.compile(r"([0-9a-f]{64}) [ *](.+)")
_ALWAYS = (RUN, ENVIRONMENT, RECORDS, LEDGER)
_EVIDENCE = (AUDIT, MEMBERSHIP, LAST_MODEL)
_READ = (*_ALWAYS, SOURCES, METRICS, STOPPED, PRIVACY, REPORT, *_EVIDENCE)
_FOLDERS = (CHECKPOINTS, TRANSCRIPT, COPIES)  # every file in them
_EARLIER = ("audit-*.json", "membership-*.json", "last-model-*.json")


def write_sums(folder: Path) -> dict[str, str]:
    """Write SHA256SUMS over every file of the run, in the format of sha256sum.

    Links, and files whose name the format cannot hold, are none of the run's. Processes that end at
    once, as an attack and an audit may, write them one after the other: the last one names the
    files of all.
    """
    with _in_turn(folder):
        sums = {name: digest(folder / name) for name in _files(folder)}
        lines = "".join(f"{value}  {name}\n" for name, value in sums.items())
        write_durably(folder / SUMS, lines.encode())
    return sums


@contextlib.contextmanager
def _in_turn(folder: Path) -> Iterator[None]:
    """Wait until no other process writes the sums; where the system locks no files, do not."""
    with contextlib.ExitStack() as held:
        if sys.platform != "win32":
            with contextlib.suppress(OSError):
                file = os.open(folder / RUN, os.O_RDONLY | os.O_NONBLOCK)
                held.callback(os.close, file)
                files.lock(file, wait=True)
        yield


def _files(folder: Path) -> list[str]:
    """Paths in the run of regular files, apart from the sums and what a crash left."""
    found = []
    for place, _, names in os.walk(folder):
        for name in names:
            path = Path(place) / name
            held = path.relative_to(folder).as_posix()
            if (
                name == SUMS
                or held == SIGNATURE
                or path.suffix == files.PART
                or not _is_plain(held)
            ):
                continue
            if _is_done_point(path):
                continue
            if stat.S_ISREG(path.lstat().st_mode):
                found.append(held)
    return sorted(found)


def _is_done_point(path: Path) -> bool:
    """Whether a file is a point of an attack that is finished, and about to be removed."""
    of_attack = path.name.startswith("point-") and path.suffix == ".json"
    return of_attack and (path.parent / Path(ATTACK).name).exists()


def is_listed(folder: Path, name: str) -> bool:
    """Whether SHA256SUMS names a file of a run."""
    return (folder / SUMS).exists() and name in _listed(folder)


def forget_sums(folder: Path, start: str = "", *, within: str | None = None) -> None:
    """Drop the sums of files that will be written anew.

    Args:
        start: what the paths of those in the run begin with.
        within: the folder that they lie in, not below it; by default any.
    """
    if (folder / SUMS).exists():
        held = _listed(folder)
        kept = {
            name: value
            for name, value in held.items()
            if not (name.startswith(start) and within in (None, name.rpartition("/")[0]))
        }
        if kept != held:
            lines = "".join(f"{value}  {name}\n" for name, value in kept.items())
            write_durably(folder / SUMS, lines.encode())


def check_sums(folder: Path) -> None:
    """Refuse a folder whose files are not those that SHA256SUMS names.

    A run that is not finished has none until it is reported on.

    Raises:
        ValueError: a finished run has no sums, or they name a file that is missing, changed or
            outside of the folder, or leave out one that is read.
    """
    # A run without sums is not finished, or has lost them.
    if not os.path.lexists(folder / SUMS):
        if has_ended(folder):
            _check_schema(folder)
            raise InputError(
                f"{folder / SUMS} is missing: the last round of this run is measured, so it is "
                "finished, and a finished run names the digest of each of its files there; put "
                "the file back from a copy of the run. Where the run was cut off before it was "
                f"written, `overhear train {folder / RUN} --out {folder} --resume` closes the run"
            )
        return
    # Each file that is read is named, lies in the folder and has its digest.
    held = _listed(folder)
    for name in _needed(folder):
        if name not in held:
            _check_schema(folder)
            raise InputError(
                f"{folder / name} is not in {SUMS}: it was put there after the run was closed, or "
                f"its line was taken out. Put {SUMS} back as it was written; or move the file away "
                "and make it again"
            )
    root, attacks = folder.resolve(), attack_files(folder)
    for name, value in held.items():
        path = folder / name
        inside = _is_inside(path, root)
        if inside and (name in _READ or name in attacks or name.partition("/")[0] in _FOLDERS):
            _check_length(path)
        if not inside or digest(path) != value:
            why = "the run was changed after it was written" if inside else _why_outside(path)
            raise InputError(
                f"{path} is not the file that {SUMS} names; {why}: put it back from a copy of the "
                "run"
            )


def _check_schema(folder: Path) -> None:
    """Refuse a run of an earlier version, which listed other files, by its schema."""
    if (folder / LEDGER).is_file():
        read_ledger(folder / LEDGER)


def _why_outside(path: Path) -> str:
    """Why a path is no regular file of the folder."""
    return "it is a link or no regular file" if os.path.lexists(path) else "it is missing"


def _check_length(path: Path) -> None:
    """Refuse a file of gigabytes that cannot be what its name says, before all of it is read."""
    if path.stat().st_size <= _LONG:
        return
    if path.suffix == ".safetensors":
        read_header(path)
    else:
        files.check_size(path, _LONG)


def _needed(folder: Path) -> Iterator[str]:
    """What must have a line: what every run has, and of what is read what is there."""
    yield from _ALWAYS
    yield from (name for name in _READ if name not in _ALWAYS and os.path.lexists(folder / name))
    yield from attack_files(folder)
    yield from (path.name for kind in _EARLIER for path in sorted(folder.glob(kind)))
    for held in _FOLDERS:
        for name in _files(folder / held):
            yield f"{held}/{name}"


def _is_plain(name: str) -> bool:
    """Whether a path can stand in a line of sha256sum as it is, and leads to below the folder."""
    parts = name.split("/")
    return name.isprintable() and "\\" not in name and not {"", ".", ".."} & set(parts)


def _is_inside(path: Path, root: Path) -> bool:
    """Whether a path is a regular file of the folder, and no link out of it."""
    try:
        return path.is_file() and path.resolve().is_relative_to(root)
    except OSError:  # links in a circle
        return False


def _listed(folder: Path) -> dict[str, str]:
    """Digest by path, of every line.

    Raises:
        ValueError: SHA256SUMS is no such list, or names a file twice or one outside of the folder.
    """
    path = folder / SUMS
    if not _is_inside(path, folder.resolve()):
        raise InputError(f"{path} is no file of the run; put it back as it was written")
    return listed(folder, files.read_bounded(path, _LARGEST))


def listed(folder: Path, data: bytes) -> dict[str, str]:
    """Digest by path, of every line of a SHA256SUMS.

    Raises:
        ValueError: it is no such list, or names a file twice or one outside of the folder.
    """
    path = folder / SUMS
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is no text; put it back as it was written") from error
    found: dict[str, str] = {}
    *lines, rest = text.split("\n")
    if rest:
        raise InputError(f"{path} is cut off in its last line; put it back as it was written")
    for at, line in enumerate(lines, start=1):
        shaped = _LINE.fullmatch(line)
        name = shaped[2] if shaped else ""
        if shaped is None or not _is_plain(name):
            raise InputError(
                f"{path} line {at} is none of sha256sum: a digest of 64 digits, two blanks and the "
                "path of a file in the folder; put it back as it was written"
            )
        if name in found:
            raise InputError(
                f"{path} line {at} names {name} a second time; put it back as it was written"
            )
        found[name] = shaped[1]
    return found
