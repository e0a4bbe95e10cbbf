"""A file of chained lines that one process at a time appends to, each on the disk on return.

It is there with its first line or not at all, and is never overwritten. A write that fails leaves
the file closed to others, since a next line must not stand behind half of one. The lock is the
system's, and goes with the process however that ends; where the system has none (Windows) nothing
keeps a second process out.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from ..errors import InputError
from ..files import BINARY, SHOWN, check_size, lock, named, part_of, publish, write_all
from ..formats.codec import parse_json

# Lines of a ledger: each carries a digest of all of the file before it, and has closed keys.
#
#     {"round": 41, "releases": [], "noise_tested": {"rounds": 41, "numbers": 799500}, "chain": ...}
#
# `noise_tested` may be missing: then nothing is said of the noise. The digest is SHA-256 over every
# byte of the file up to the comma before `chain`: over the line's own content, over all lines
# before it with their digests, and over what an interruption left. It begins with the header, which
# names the run, so a line of another run does not fit either. It has no key: who rewrites every
# line after a change is not found out by it.

# Raised with every change of a line or of the header (tests/test_formats.py): 1 had no digests; of
# 2 no line says which noise was tested; 3 may lack how far a release reaches.
SCHEMA = 4
READABLE = (2, 3, 4)
TESTS_NOISE = 3  # the first one whose lines say so
LONGEST_LINE = 1 << 20  # bytes
LONGEST_HEADER = 32 << 20  # it names every release where all rounds differ
_MOST_ROUND = 10**9
_KEY, _END = b', "chain": "', b'"}\n'
_TAIL = len(_KEY) + 64 + len(_END)
_DIGEST = re.compile(rb"[0-9a-f]{64}")


class Chain:
    """The digest of a file's bytes so far."""

    def __init__(self) -> None:
        self._hashed = hashlib.sha256()

    def add(self, data: bytes) -> None:
        """Take the next bytes of the file in."""
        self._hashed.update(data)

    def line(self, entry: Mapping[str, Any], *, before: str, most: int) -> bytes:
        """The line of an entry, with its digest.

        Args:
            entry: its keys without `chain`, at least one.
            before: what stands before the object.
            most: bytes that a reader takes.

        Raises:
            ValueError: the line is longer.
        """
        content = (before + json.dumps(entry, allow_nan=False)[:-1]).encode()
        if len(content) + _TAIL > most:
            raise InputError(
                f"a line of the ledger of {len(content) + _TAIL} bytes must have at most {most}; "
                "plan fewer rounds that differ, or fewer adversaries"
            )
        return content + _KEY + self._after(content).encode() + _END

    def body(self, line: bytes, *, path: Path, at: int) -> bytes | None:
        """The object of a line without its digest; None of a line that carries none.

        Raises:
            ValueError: the digest is not that of the file up to here.
        """
        content, tail = line[:-_TAIL], line[-_TAIL:]
        found = tail[len(_KEY) : -len(_END)]
        shaped = tail.startswith(_KEY) and tail.endswith(_END) and _DIGEST.fullmatch(found)
        if len(line) <= _TAIL or not shaped:
            return None
        if self._after(content).encode() != found:
            raise damaged(path, at, "by its digest, it or a line before it is not what was written")
        return content + b"}"

    def _after(self, content: bytes) -> str:
        hashed = self._hashed.copy()
        hashed.update(content)
        return hashed.hexdigest()


def sign(secret: bytes, *parts: str | bytes) -> bytes:
    """What only who has the secret can say of these parts: their HMAC-SHA-256, 32 bytes.

    >>> sign(b"a", "ab", "c") == sign(b"a", "a", "bc")
    False
    """
    told = hmac.new(secret, digestmod=hashlib.sha256)
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        told.update(len(data).to_bytes(8, "little") + data)
    return told.digest()


def damaged(path: Path, at: int, why: str) -> InputError:
    """The error of a line that no interruption explains."""
    return InputError(
        f"{path} line {at} is no entry: {why}; the ledger is damaged or was changed, and what the "
        "run released cannot be read from it: put it back as it was written"
    )


def parsed(body: bytes, *, path: Path, at: int) -> dict[str, Any]:
    """The object of a line whose digest is right.

    Raises:
        ValueError: it is none, names a key twice, or holds a number that is not finite.
    """
    try:
        found = parse_json(body.decode("utf-8"))
    except ValueError as error:
        raise damaged(path, at, "it is no JSON object whose keys differ") from error
    if not isinstance(found, dict):
        raise damaged(path, at, "it is no JSON object")
    return found


def _is_complete_object(line: bytes) -> bool:
    r"""Whether a line that carries no digest is whole nevertheless: nothing cut that off.

    >>> _is_complete_object(b'{"round": 3, "releases": []}\n')
    True
    >>> _is_complete_object(b'{"round": 3, "rel')
    False
    """
    try:
        return line.endswith(b"\n") and isinstance(parse_json(line.decode("utf-8")), dict)
    except ValueError:
        return False


class Lines:
    """The lines of a file; each must carry a digest where the header does.

    A line that was cut off is the last one, or behind it stands from where somebody went on.

    Args:
        file: at its start.
        path: as errors name it.
        most: bytes of the header.
        whole_end: whether a last line that ends as a line does must be whole: who writes a line at
            once, and its end with it, leaves none that is cut off and has an end.
        parse: of the bytes of an object, which raises what `parsed` does.

    Attributes:
        header: the first line.
        body: its object without its digest; None where it carries none.

    Raises:
        ValueError: the header is longer, or its digest is wrong.
    """

    def __init__(
        self,
        file: BinaryIO,
        path: Path,
        *,
        most: int = LONGEST_LINE,
        whole_end: bool = False,
        parse: Callable[..., dict[str, Any]] = parsed,
    ) -> None:
        self._file, self._path, self._at, self._chain = file, path, 0, Chain()
        self._whole_end, self._parse = whole_end, parse
        self.header = self._next(most)
        self.body = self._chain.body(self.header, path=path, at=1)
        self._chain.add(self.header)

    def __iter__(self) -> Iterator[tuple[int, dict[str, Any] | None, bool]]:
        """Of each line after the header its number, its object, and whether it was half a mark.

        There is no object of a line that was cut off; a mark announces nothing.

        Raises:
            ValueError: a line that no interruption explains, was changed, or is too long.
        """
        broken: InputError | None = None  # what is wrong where nobody went on behind a line
        cut_off = 0  # the line that announced something
        line = b""
        while following := self._next(LONGEST_LINE):
            line = following
            found, why = self._found(line, cut_off or self._at)
            mark = found is None and _is_mark(line)
            goes_on = mark or not cut_off if found is None else found.keys() == {"resumed_after"}
            if broken is not None and not goes_on:  # an interruption leaves one line at most
                raise broken
            if found is not None:
                broken, cut_off = None, 0
            elif broken is None or not (mark or cut_off):
                broken, cut_off = why, 0 if mark else self._at
            yield self._at, found, mark
        if broken is not None and self._whole_end and line.endswith(b"\n"):
            raise broken

    def _found(self, line: bytes, at: int) -> tuple[dict[str, Any] | None, InputError | None]:
        """The object of a line, or what is wrong with it unless it was cut off."""
        if self.body is None:
            try:
                return self._parse(line, path=self._path, at=self._at), None
            except InputError as error:
                return None, error
        body = self._chain.body(line, path=self._path, at=at)
        self._chain.add(line)
        if body is not None:
            return self._parse(body, path=self._path, at=self._at), None
        if _is_complete_object(line):
            raise damaged(self._path, self._at, "it carries no digest of what stands before it")
        why = "it is cut off, and lines follow that no interruption leaves"
        return None, damaged(self._path, self._at, why)

    def _next(self, most: int) -> bytes:
        line = self._file.readline(most + 1)
        self._at += bool(line)
        if len(line) > most:
            raise damaged(self._path, self._at, f"it is longer than {most} bytes")
        return line


_MARKS = (b' {"resumed_after": ', b' {"noise_tested": ')


def _is_mark(line: bytes) -> bool:
    """Whether a damaged line is what is left of an entry that announces nothing."""
    left = line.removesuffix(b"\n")
    return left != b"" and any(left.startswith(m) or m.startswith(left) for m in _MARKS)


def round_number(value: Any, *, least: int) -> int | None:
    """The number of a round, None of what is none.

    >>> round_number(41, least=0), round_number(True, least=0), round_number(-1, least=0)
    (41, None, None)
    """
    whole = isinstance(value, int) and not isinstance(value, bool)
    return value if whole and least <= value <= _MOST_ROUND else None


def rounds_text(numbers: Sequence[int]) -> str:
    """Rounds in words.

    >>> rounds_text([1, 2, 50]), rounds_text(list(range(1, 31)))
    ('rounds 1, 2, 50', 'rounds 1 to 30')
    """
    word = "round" if len(numbers) == 1 else "rounds"
    if len(numbers) > 3 and list(numbers) == list(range(numbers[0], numbers[-1] + 1)):
        return f"{word} {numbers[0]} to {numbers[-1]}"
    return f"{word} {', '.join(map(str, numbers))}"


def check_release(release: Any) -> None:
    """Refuse what is no release: {"kind": words}.

    Raises:
        ValueError: another key or kind.
    """
    shaped = isinstance(release, Mapping) and release.keys() == {"kind"}
    if not shaped or not isinstance(release["kind"], str):
        raise InputError(f'a release must be {{"kind": words}}, not {str(release)[:60]}')


def check_tested(tested: Any) -> None:
    """Refuse what does not say how much noise was tested: {"rounds": number, "numbers": number}.

    Raises:
        ValueError: other keys, or no whole numbers of at least 0.
    """
    if not isinstance(tested, Mapping) or tested.keys() != {"rounds", "numbers"}:
        raise InputError(
            f'noise_tested must be {{"rounds": n, "numbers": n}}, not {str(tested)[:60]}'
        )
    for name, value in tested.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise InputError(
                f"{name}={value!r:.20} of noise_tested must be a whole number, 0 or more"
            )


_BLOCK = 1 << 20


class LedgerInUse(OSError):
    """Another process appends to the ledger."""


class ChainedFile:
    """A new file with its first line; `reopen` goes on with one that is there.

    Args:
        first: what its first line holds.
        most: bytes of the first line that a reader takes.
        exists: what to say where the file exists.

    Raises:
        FileExistsError: the file exists.
        ValueError: the first line is longer than a reader takes.
        OSError: the system refuses to write; the error names the file.
    """

    def __init__(
        self, path: Path, first: Mapping[str, Any], *, most: int = LONGEST_LINE, exists: str
    ) -> None:
        part = part_of(path)
        part.unlink(missing_ok=True)  # of a dead process of the same number
        self._open(part, path, os.O_CREAT | os.O_EXCL)
        try:
            self.append(first, most=most)
            publish(part, path, new=True)
        except (OSError, InputError) as error:
            self.close()
            part.unlink(missing_ok=True)
            if isinstance(error, InputError):
                raise
            if isinstance(error, FileExistsError):
                raise FileExistsError(exists) from error
            raise named(error, path) from error

    @classmethod
    def reopen(cls, path: Path) -> ChainedFile:
        """Go on with a file; nothing is written until something is appended.

        Raises:
            LedgerInUse: another process appends to it.
            OSError: the system refuses; the error names the file.
            ValueError: it is no regular file.
        """
        check_size(path, 1 << 62)
        held = cls.__new__(cls)
        held._open(path, path, 0)
        try:
            while block := os.read(held._file, _BLOCK):
                held._chain.add(block)
        except OSError as error:
            held.close()
            raise named(error, path) from error
        return held

    def _open(self, file: Path, path: Path, flags: int) -> None:
        self.path, self._broken, self._chain = path, False, Chain()
        try:
            self._file = os.open(file, os.O_RDWR | os.O_APPEND | BINARY | flags, SHOWN)
        except OSError as error:
            raise named(error, path) from error
        try:
            _lock(self._file, path)
        except OSError:
            self.close()
            raise

    def append(
        self, entry: Mapping[str, Any], *, before: str = "", most: int = LONGEST_LINE
    ) -> None:
        """Write a line; returns only when it is on the disk.

        Args:
            entry: what it holds, without its digest.

        Raises:
            ValueError: the line is longer; nothing was written.
            OSError: it may not be on the disk; the error names the file.
        """
        if self._broken:
            raise OSError(f"{self.path} could not be written to before; go on by resuming the run")
        if sys.platform != "win32" and os.fstat(self._file).st_nlink == 0:
            raise FileNotFoundError(
                f"{self.path} was removed while it was written, so a line would be nowhere; put "
                "it back, and go on by resuming"
            )
        line = self._chain.line(entry, before=before, most=most)
        self._broken = True  # until this line is whole, the next one must not stand behind it
        try:
            write_all(self._file, line)
        except OSError as error:
            raise named(error, self.path) from error
        self._chain.add(line)
        self._broken = False

    def append_mark(self, entry: Mapping[str, Any]) -> None:
        """Write a line that announces nothing: it begins with a blank, on a line of its own.

        Raises:
            OSError: as for `append`.
        """
        # What is appended goes to the end all the same.
        os.lseek(self._file, max(os.fstat(self._file).st_size - 1, 0), os.SEEK_SET)
        cut_off = os.read(self._file, 1) not in (b"", b"\n")
        self.append(entry, before="\n " if cut_off else " ")

    def start(self, length: int) -> bytes:
        """The first bytes of the file."""
        os.lseek(self._file, 0, os.SEEK_SET)  # what is appended goes to the end all the same
        return os.read(self._file, length)

    def close(self) -> None:
        """Close the file, and let other processes have it."""
        if self._file >= 0:
            os.close(self._file)
        self._file = -1


def _lock(file: int, path: Path) -> None:
    try:
        held = lock(file)
    except OSError as error:
        raise OSError(
            f"{path} cannot be locked ({error.strerror}), so two processes could train into one "
            "folder; choose a folder on a file system that has locks"
        ) from error
    if not held:
        raise LedgerInUse(
            f"another process writes to {path}, as training and adding a run do; wait until it "
            "ends, or choose another place"
        )
