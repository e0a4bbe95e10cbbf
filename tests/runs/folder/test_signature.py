"""Who signed a folder is found, and so is every change to what was signed."""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from overhear.commands.cli import main
from overhear.commands.train import What, template
from overhear.privacy.errors import InputError
from overhear.reports.judgement.policy import policy_of
from overhear.runs.folder import signature
from overhear.runs.folder.folder import write_sums
from overhear.runs.folder.signature import check_signature, read_key, sign

KINDS = ["ssh", "secret"]
LIMIT = {"adversary": "server", "epsilon": 99, "delta": 1e-5, "unit": "record"}
pytestmark = pytest.mark.skipif(
    shutil.which("ssh-keygen") is None, reason="needs ssh-keygen, of OpenSSH"
)


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    """Two pairs of OpenSSH, team and other, and two secrets."""
    place = tmp_path_factory.mktemp("keys")
    for name, text in (("team", "1f"), ("other", "2e")):
        made = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", str(place / name)]
        subprocess.run(made, check=True)
        (place / f"{name}.secret").write_text(text * 32 + "\n", encoding="ascii")
        (place / f"{name}.secret").chmod(0o600)
    return place


def pair(keys: Path, kind: str, name: str = "team") -> tuple[Path, Path]:
    """What signs, and what checks."""
    if kind == "secret":
        return keys / f"{name}.secret", keys / f"{name}.secret"
    return keys / name, keys / f"{name}.pub"


@pytest.fixture
def logs(tmp_path):
    (tmp_path / "logs").mkdir()
    text = template(What.SYSTEM)
    (tmp_path / "logs" / "releases.jsonl").write_text(text, encoding="utf-8")
    return tmp_path / "logs"


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_and_logs_that_were_signed_are_by_their_key(folder, logs, keys, kind):
    private, public = pair(keys, kind)
    for place in (folder, logs):
        count = sign(place, private)
        files = sum(path.is_file() for path in place.rglob("*"))
        assert count == files - 2  # all but the sums and their signature
        found = check_signature(place, [pair(keys, kind, "other")[1], public])
        assert found.passed
        assert read_key(public).name in found.said
        sign(place, private)  # again, as after a report
        assert check_signature(place, [public]).passed


def test_what_is_signed_can_be_checked_without_overhear(folder, keys):
    sign(folder, keys / "team")
    (keys / "allowed").write_text(f"team {(keys / 'team.pub').read_text()}", encoding="ascii")
    asked = ["ssh-keygen", "-Y", "verify", "-n", "overhear", "-I", "team", "-f", keys / "allowed"]
    sums = (folder / "SHA256SUMS").read_bytes()
    subprocess.run([*asked, "-s", folder / "SHA256SUMS.sig"], input=sums, check=True)


def _edit(folder: Path) -> None:
    path = folder / "metrics.jsonl"
    path.write_text(path.read_text(encoding="utf-8").replace("1", "2", 1), encoding="utf-8")


def _link(folder: Path) -> None:
    (folder / "checkpoints").rename(folder.parent / "checkpoints")
    (folder / "checkpoints").symlink_to(folder.parent / "checkpoints")


CHANGES: dict[str, Callable[[Path], object]] = {
    "metrics.jsonl": _edit,
    "records.json": lambda folder: (folder / "records.json").unlink(),
    "notes.txt": lambda folder: (folder / "notes.txt").write_text("x"),
    "checkpoints/SHA256SUMS": lambda folder: (folder / "checkpoints/SHA256SUMS").write_text(""),
    r"\\x1b\[2J": lambda folder: (folder / "\x1b[2J").write_text("x"),  # shown as its escape
    "x.part": lambda folder: (folder / "x.part").write_text("x"),
    "elsewhere": lambda folder: (folder / "elsewhere").symlink_to(folder.parent),
    "pipe": lambda folder: os.mkfifo(folder / "pipe"),
    "checkpoints": _link,
}


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_is_changed_added_or_taken_away_is_found(folder, keys, kind, name):
    private, public = pair(keys, kind)
    sign(folder, private)
    CHANGES[name](folder)
    with pytest.raises(InputError, match=f"run/{name} (was put|is not the file)"):
        check_signature(folder, [public])


@pytest.mark.parametrize("kind", KINDS)
def test_digests_that_are_computed_anew_are_not_signed(folder, keys, kind):
    private, public = pair(keys, kind)
    sign(folder, private)
    _edit(folder)
    write_sums(folder)
    found = check_signature(folder, [public])
    assert not found.passed
    assert "is no signature of this SHA256SUMS" in found.said


@pytest.mark.parametrize("kind", KINDS)
def test_a_signature_of_another_folder_is_none(folder, logs, keys, kind):
    private, public = pair(keys, kind)
    sign(logs, private)
    write_sums(folder)
    shutil.copy(logs / "SHA256SUMS.sig", folder)
    assert not check_signature(folder, [public]).passed


def test_an_earlier_state_that_is_put_back_is_signed_as_it_was(folder, keys, tmp_path):
    sign(folder, keys / "team")
    shutil.copytree(folder, tmp_path / "earlier")
    (folder / "audit.json").write_text("{}", encoding="utf-8")
    write_sums(folder)
    assert not check_signature(folder, [keys / "team.pub"]).passed
    assert check_signature(tmp_path / "earlier", [keys / "team.pub"]).passed


def test_a_signature_by_another_key_names_it(folder, keys):
    sign(folder, keys / "other")
    found = check_signature(folder, [keys / "team.pub", keys / "team.secret"])
    assert not found.passed
    assert read_key(keys / "other.pub").name in found.said
    sign(folder, keys / "other.secret")
    assert not check_signature(folder, [keys / "team.secret", keys / "team.pub"]).passed


def test_a_signature_for_another_purpose_is_none(folder, keys):
    sums = (folder / "SHA256SUMS").read_bytes()
    made = ["ssh-keygen", "-Y", "sign", "-n", "git", "-f", keys / "team"]
    found = subprocess.run(made, input=sums, check=True, capture_output=True)
    (folder / "SHA256SUMS.sig").write_bytes(found.stdout)
    assert not check_signature(folder, [keys / "team.pub"]).passed


@pytest.mark.parametrize(
    "text", [b"", b"hmac-sha256 \n", b"-----BEGIN SSH SIGNATURE-----", b"\xff"]
)
def test_what_is_no_signature_is_none(folder, keys, text):
    (folder / "SHA256SUMS.sig").write_bytes(text)
    assert not check_signature(folder, [keys / "team.pub", keys / "team.secret"]).passed
    (folder / "SHA256SUMS").unlink()
    assert not check_signature(folder, [keys / "team.pub", keys / "team.secret"]).passed


def test_a_key_that_others_can_read_is_refused(folder, keys, tmp_path):
    for name in ("team", "team.secret"):
        shutil.copy(keys / name, tmp_path / name)
        (tmp_path / name).chmod(0o640)
        with pytest.raises(InputError, match=f"{name} has mode 640, so that others .*chmod 600"):
            sign(folder, tmp_path / name)
    with pytest.raises(InputError, match="mode 640"):
        check_signature(folder, [tmp_path / "team.secret"])
    assert not (folder / "SHA256SUMS.sig").exists()


def test_what_is_no_key_is_refused_in_a_sentence(folder, keys, tmp_path):
    for text in ("", "hello", "0" * 63, "ssh-ed25519 AAAA\nssh-ed25519 AAAA", "---- BEGIN SSH2"):
        (tmp_path / "key").write_text(text, encoding="ascii")
        with pytest.raises(InputError, match="holds no key; make a pair by `ssh-keygen"):
            sign(folder, tmp_path / "key")
    for absent in ("none", "ssh-rsa " + "A" * 600 + " cert-authority\n* ssh-rsa"):
        with pytest.raises(FileNotFoundError, match="no key at"):
            check_signature(folder, [absent])
    line = (keys / "team.pub").read_text(encoding="ascii").rsplit(" ", 1)[0]
    assert read_key(line).public == line
    for cut in (*range(28, len(line), 4), 43):  # of which ssh-keygen says that another key signed
        with pytest.raises(InputError, match="is no public key of OpenSSH; copy its line again"):
            read_key(line[:cut])
    with pytest.raises(InputError, match="is no public key of OpenSSH; copy its line again"):
        read_key(line.replace("ssh-ed25519", "ssh-rsa"))
    with pytest.raises(InputError, match=r"team is a private key, .* give .*team.pub"):
        check_signature(folder, [keys / "team"])
    shutil.copy(keys / "team.pub", tmp_path)
    with pytest.raises(InputError, match=r"team.pub cannot sign: "):  # and no agent keeps it
        sign(folder, tmp_path / "team.pub")


def test_a_key_that_lies_in_the_folder_is_refused(folder, keys):
    sign(folder, keys / "team")
    for name in ("team", "team.pub"):
        shutil.copy(keys / name, folder / name)
    with pytest.raises(InputError, match=r"team.pub lies in .*, for which it is to speak"):
        check_signature(folder, [folder / "team.pub"])
    with pytest.raises(InputError, match=r"team lies in .*, for which it is to speak"):
        sign(folder, folder / "team")


def test_without_ssh_keygen_a_sentence_says_what_to_do(folder, keys, monkeypatch):
    sign(folder, keys / "team")
    monkeypatch.setattr(signature, "_TOOL", "ssh-keygen-of-nobody")
    for ask in (
        lambda: sign(folder, keys / "team"),
        lambda: check_signature(folder, [keys / "team.pub"]),
    ):
        with pytest.raises(InputError, match=r"is not installed, .* or sign by a secret"):
            ask()
    sign(folder, keys / "team.secret")
    assert check_signature(folder, [keys / "team.secret"]).passed


def test_a_run_that_was_changed_or_is_not_closed_is_not_signed(folder, keys):
    _edit(folder)
    with pytest.raises(InputError, match=r"metrics.jsonl is not the file that SHA256SUMS names"):
        sign(folder, keys / "team")
    (folder / "metrics.jsonl").unlink()
    (folder / "SHA256SUMS").unlink()
    with pytest.raises(InputError, match="holds a run that is not finished"):
        sign(folder, keys / "team")


@pytest.mark.slow
def test_the_gate_of_a_run_asks_for_a_signature(folder, keys, tmp_path, capsys):
    policy = tmp_path / "policy.toml"
    limit = "schema = 1\n[[limits]]\nadversary = 'eavesdropper'\nepsilon = 9\ndelta = 1e-5\n"
    policy.write_text(f"{limit}[evidence]\nsigned_by = ['{keys / 'team.pub'}']\n", encoding="utf-8")
    asked = ["check", str(folder), "--policy", str(policy)]
    assert main(["report", str(folder)]) == 0
    assert main(asked) == 5
    assert "The folder is not signed by a key" in capsys.readouterr().out
    assert main(["sign", str(folder), "--key", str(keys / "team")]) == 0
    assert main(asked) == 0
    (folder / "notes.txt").write_text("x", encoding="utf-8")
    assert main(asked) == 2
    (folder / "notes.txt").unlink()
    assert main(["sign", str(folder), "--key", str(keys / "other")]) == 0
    assert main(asked) == 5
    assert main(["sign", str(folder), "--key", str(tmp_path / "none")]) == 2


def test_the_gate_of_logs_asks_for_a_signature_of_their_folder(logs, keys, tmp_path, capsys):
    policy = tmp_path / "policy.toml"
    text = "schema = 1\n[[limits]]\nadversary = 'eavesdropper'\nepsilon = 99\ndelta = 1e-5\n"
    text += f"[evidence]\ndeclared = 'trusted'\nsigned_by = ['{keys / 'team.pub'}']\n"
    policy.write_text(text, encoding="utf-8")
    by_file = ["account", str(logs / "releases.jsonl"), "--policy", str(policy)]
    commands = (["check", str(logs), "--policy", str(policy)], ["account", str(logs), *by_file[2:]])
    assert [main(one) for one in commands] == [5, 5]
    sign(logs, keys / "team")
    assert [main(one) for one in commands] == [0, 0]
    capsys.readouterr()
    assert main(by_file) == 5
    assert "logs are signed by folder" in capsys.readouterr().out
    (logs / "more.jsonl").write_text(template(What.SYSTEM), encoding="utf-8")
    assert [main(one) for one in commands] == [2, 2]


def test_a_policy_that_names_nobody_who_signs_is_refused():
    tables = {"schema": 1, "limits": [LIMIT], "evidence": {"signed_by": []}}
    with pytest.raises(InputError, match=r"signed_by=.* must be a list of keys"):
        policy_of(tables)
