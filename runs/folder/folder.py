"""The run folder: fixed names, nothing overwritten, no pickle; every file is whole or not there."""

from __future__ import annotations

import errno
import hashlib
import importlib.metadata
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from ...privacy.bounded import check_size
from ...privacy.durable import PART, make_folder, open_private, sync_folder
from ...privacy.errors import InputError
from ...privacy.ledgers.ledger import read_ledger
from ...privacy.releases.log import holds_logs
from ...training.engine.round_files import round_name
from ..run_file.device import is_same_device
from .records import Environment, header_of, read_environment, read_metrics, read_stopped

RUN, ENVIRONMENT, LEDGER, METRICS = "run.toml", "environment.json", "ledger.jsonl", "metrics.jsonl"
RECORDS = "records.json"
CHECKPOINTS, TRANSCRIPT, ATTACKS = "checkpoints", "transcript", "attacks"
ATTACK, AUDIT = "attacks/attack.json", "audit.json"
MEMBERSHIP, LAST_MODEL = "membership.json", "last-model.json"
PRIVACY, REPORT, SUMS = "privacy.json", "report.html", "SHA256SUMS"
SIGNATURE = f"{SUMS}.sig"
STOPPED = "stopped.json"
_PACKAGES = ("overhear", "torch", "dp-accounting", "numpy", "scipy", "scikit-image")


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
        make_folder(folder)
        probe = folder / RUN
        probe.touch(exist_ok=False)
        probe.unlink()
        sync_folder(folder.parent)
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
    return [path for path in folder.iterdir() if path.suffix != PART]


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
        return read_stopped(folder / STOPPED).round
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
    versions = {}
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
    told = read_environment(folder / ENVIRONMENT)
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
    told = read_environment(folder / ENVIRONMENT)
    told.model_copy(update={"layout": layout, "ranks": ranks}).write(folder / ENVIRONMENT)


@contextmanager
def metrics_file(folder: Path) -> Iterator[TextIO]:
    """metrics.jsonl of a run, open for more lines."""
    make_folder(folder / CHECKPOINTS)
    with open(folder / METRICS, "a", encoding="utf-8", opener=open_private) as lines:
        sync_folder(folder)
        yield lines


def digest(path: Path, *, most: int = 1 << 62) -> str:
    """SHA-256 of a file.

    Raises:
        ValueError: it is no regular file, which may have no end, or has more than `most` bytes.
    """
    check_size(path, most)
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
