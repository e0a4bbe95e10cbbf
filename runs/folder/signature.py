"""The signature of a folder: who says that its files are theirs, by a key that the folder lacks.

`SHA256SUMS.sig` signs SHA256SUMS, which names every file of the folder. It is what `ssh-keygen -Y
sign -n overhear` writes, by a key of OpenSSH, or a line with an HMAC-SHA256, by a secret that
whoever checks it has as well. It says who signed, and nothing of what the signer was told: an
agent or a rank that lied from inside the group lied before.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import hmac
import os
import re
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...privacy.errors import InputError
from ...privacy.files import check_links, read_bounded, write_durably
from ...privacy.releases.chained_file import sign as signed_by
from ...privacy.releases.log import holds_logs
from .folder import RUN, SIGNATURE, SUMS, check_sums, digest, listed, require, write_sums

NAMESPACE = "overhear"  # a signature for mail or of a commit is none of a folder
_TOOL = "ssh-keygen"
_LARGEST = 1 << 16  # bytes of a key or of a signature
_LONGEST = 64 << 20  # bytes of SHA256SUMS
_PUBLIC = re.compile(
    r"((?:ssh-(?:ed25519|rsa)|ecdsa-sha2-nistp(?:256|384|521)|sk-(?:ssh-ed25519|ecdsa-sha2-nistp256)"
    r"@openssh\.com) ([A-Za-z0-9+/]{16,}={0,2}))(?: [^\r\n]*)?"
)
_SECRET = re.compile(r"[0-9a-f]{64}")
_HMAC = "hmac-sha256"


@dataclass(frozen=True, slots=True)
class Key:
    """A key: one of the fields says what it is.

    Attributes:
        name: how it is called in sentences; the fingerprint of a public key.
        public: type and base64 of a public key of OpenSSH.
        private: the file of a private one.
        secret: of both who signs and who checks.
    """

    name: str
    public: str = ""
    private: Path | None = None
    secret: bytes = b""


@dataclass(frozen=True, slots=True)
class Signed:
    """Whether one of the keys signed a folder as it is, and in words by which, or why not."""

    passed: bool
    said: str


def read_key(given: str | Path) -> Key:
    """A key from its file, or from the line of a public key of OpenSSH.

    Raises:
        FileNotFoundError: no such file.
        ValueError: it holds no key, or a secret that others can read.
    """
    if match := _PUBLIC.fullmatch(str(given).strip()):
        return _public(match)
    path = Path(given)
    if not os.path.exists(path):  # noqa: PTH110 - false of what is too long for a name
        raise FileNotFoundError(f"no key at {path}")
    text = read_bounded(path, _LARGEST).decode("latin-1").strip()
    if match := _PUBLIC.fullmatch(text):
        return _public(match)
    private = text.startswith("-----BEGIN ")
    if not private and not _SECRET.fullmatch(text):
        raise InputError(
            f"{path} holds no key; make a pair by `{_TOOL} -t ed25519 -f team`, or a secret by "
            "`(umask 077; openssl rand -hex 32 > team.secret)`"
        )
    mode = stat.S_IMODE(path.stat().st_mode)
    if os.name != "nt" and mode & 0o077:
        raise InputError(
            f"{path} has mode {mode:03o}, so that others than its owner may read it, and sign; "
            f"`chmod 600 {path}`, and make a new key if others could"
        )
    if private:
        return Key(name=str(path), private=path)
    return Key(name=f"the secret of {path}", secret=bytes.fromhex(text))


def _public(found: re.Match[str]) -> Key:
    blob = b""
    with contextlib.suppress(binascii.Error):
        blob = base64.b64decode(found[2], validate=True)
    if not _is_whole(blob, found[1].partition(" ")[0]):
        raise InputError(f"{found[1]} is no public key of OpenSSH; copy its line again")
    mark = base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")
    return Key(name=f"SHA256:{mark}", public=found[1])


def _is_whole(blob: bytes, kind: str) -> bool:
    """Whether fields behind their lengths (RFC 4253) fill a blob, the first of them its type.

    ssh-keygen says of one that is cut off that another key signed.
    """
    at, fields = 0, list[bytes]()
    while at < len(blob):
        end = at + 4 + int.from_bytes(blob[at : at + 4], "big")
        fields.append(blob[at + 4 : end])
        at = end
    return at == len(blob) and len(fields) > 1 and fields[0] == kind.encode()


def _key_of(folder: Path, given: str | Path) -> Key:
    """A key that does not come from the folder itself, whose maker would vouch for themselves."""
    key = read_key(given)
    if os.path.exists(given) and Path(given).resolve().is_relative_to(folder.resolve()):  # noqa: PTH110
        raise InputError(f"{given} lies in {folder}, for which it is to speak; move it elsewhere")
    return key


def sign(folder: Path, given: str | Path) -> int:
    """Write SHA256SUMS anew over every file of a folder, and sign it.

    Args:
        folder: of a run that was closed, or of logs of releases.
        given: the file of a private key of OpenSSH, of the public half of one that an agent
            keeps, or of a secret.

    Returns:
        How many files the signature binds.

    Raises:
        FileNotFoundError: no key, or no run is there.
        ValueError: the run is not closed or was changed, or the key cannot be used.
    """
    check_links(folder)
    key = _key_of(folder, given)
    if not holds_logs(folder):
        require(folder, RUN)
        check_sums(folder)
        if not (folder / SUMS).exists():
            raise InputError(
                f"{folder} holds a run that is not finished, so nothing names its files; finish it "
                f"with --resume, or write its report with `overhear report {folder}`"
            )
    sums = write_sums(folder)
    for path in _foreign(folder, sums):
        raise InputError(f"{path} is a link, or a name that {SUMS} cannot hold; move it away")
    message = read_bounded(folder / SUMS, _LONGEST)
    if key.secret:
        written = _mac(key, message)
    else:
        made = _ssh("sign", "-f", str(given), data=message)
        if made.returncode != 0:
            raise InputError(f"{given} cannot sign: {_last_line(made.stderr)}")
        written = made.stdout
    write_durably(folder / SIGNATURE, written)
    return len(sums)


def check_signature(folder: Path, keys: Sequence[str | Path]) -> Signed:
    """Hold a folder against its signature.

    Args:
        folder: of a run, or of logs of releases.
        keys: any of which may have signed: lines or files of public keys, or files of secrets.

    Raises:
        FileNotFoundError: a key is not there.
        ValueError: a key cannot be used, or a folder that one of them signed was changed since.
    """
    known = [_key_of(folder, one) for one in keys]
    for key in known:
        if key.private is not None:
            raise InputError(
                f"{key.private} is a private key, and its public half is enough to check: give "
                f"{key.private}.pub"
            )
    if not (folder / SIGNATURE).is_file():
        return Signed(False, f"it has no signature; `overhear sign {folder} --key FILE` makes one")
    message = read_bounded(folder / SUMS, _LONGEST) if (folder / SUMS).is_file() else b""
    signature = read_bounded(folder / SIGNATURE, _LARGEST)
    by = next((key for key in known if _is_by(key, signature, message)), None)
    if by is None:
        return Signed(False, _why_not(signature, message))
    held = listed(folder, message)
    for path in _foreign(folder, held):
        raise InputError(
            f"{path} was put into {folder} after it was signed; move it away, or have the folder "
            "signed again with it"
        )
    for name, value in held.items():
        if not (folder / name).is_file() or digest(folder / name) != value:
            raise InputError(
                f"{folder / name} is not the file that was signed; put it back from a copy"
            )
    return Signed(True, f"{by.name}, with {len(held)} files")


def _is_by(key: Key, signature: bytes, message: bytes) -> bool:
    if key.secret:
        return hmac.compare_digest(signature, _mac(key, message))
    with tempfile.TemporaryDirectory() as place:
        allowed = Path(place, "allowed")
        allowed.write_text(f'signer namespaces="{NAMESPACE}" {key.public}\n', encoding="ascii")
        Path(place, "signature").write_bytes(signature)
        asked = ("-I", "signer", "-f", str(allowed), "-s", str(Path(place, "signature")))
        return _ssh("verify", *asked, data=message).returncode == 0


def _mac(key: Key, message: bytes) -> bytes:
    return f"{_HMAC} {signed_by(key.secret, NAMESPACE, message).hex()}\n".encode()


def _why_not(signature: bytes, message: bytes) -> str:
    """Whether another key signed this very folder; else the folder is not what was signed."""
    if not signature.startswith(_HMAC.encode()):
        with tempfile.TemporaryDirectory() as place:
            Path(place, "signature").write_bytes(signature)
            asked = ("-s", str(Path(place, "signature")))
            found = _ssh("check-novalidate", *asked, data=message)
        mark = re.search(rb"SHA256:[A-Za-z0-9+/]+", found.stdout)
        if found.returncode == 0 and mark:
            return f"{mark[0].decode()} signed it"
    return (
        f"{SIGNATURE} is no signature of this {SUMS}, but of another folder, by another secret, or "
        "of what the folder held before an attack, an audit, a report or somebody else wrote to "
        "it; sign it again"
    )


def _foreign(folder: Path, sums: dict[str, str]) -> Iterator[Path]:
    """What lies in a folder and is no file that its sums name; links are followed nowhere."""

    def unreadable(error: OSError) -> None:
        raise error

    for place, folders, names in os.walk(folder, onerror=unreadable):
        for path in (Path(place, name) for name in sorted([*names, *folders])):
            name = path.relative_to(folder).as_posix()
            mode = path.lstat().st_mode
            if stat.S_ISDIR(mode) or name in (SUMS, SIGNATURE):
                continue
            if name not in sums or not stat.S_ISREG(mode):
                yield path


def _ssh(what: str, *arguments: str, data: bytes) -> subprocess.CompletedProcess[bytes]:
    """What ssh-keygen answers; a passphrase it asks for on the terminal.

    Raises:
        ValueError: it is not installed, or knows no signatures.
    """
    tool = shutil.which(_TOOL)
    if tool is None:
        raise InputError(
            f"{_TOOL} is not installed, which signs and checks by keys of OpenSSH; install "
            "OpenSSH 8.2 or newer, or sign by a secret of 64 digits 0-9 and a-f"
        )
    command = [tool, "-Y", what, "-n", NAMESPACE, *arguments]
    found = subprocess.run(command, input=data, capture_output=True, check=False)  # noqa: S603
    if found.returncode not in (0, 255):
        raise InputError(f"{tool} does not {what}: {_last_line(found.stderr)}")
    return found


def _last_line(text: bytes) -> str:
    lines = text.decode("ascii", "replace").strip().splitlines()
    return lines[-1] if lines else "it says nothing"
