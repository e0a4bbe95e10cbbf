"""What a finished run must have, and every way in which its SHA256SUMS can be wrong."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread

import pytest

from overhear.commands import cli
from overhear.privacy.errors import InputError
from overhear.runs.folder import folder as sums
from overhear.runs.folder.folder import check_sums, write_sums
from overhear.runs.folder.resume import resume_run
from overhear.runs.run_file.run_file import load_run_file
from tests.runs.folder.conftest import RUN
from tests.runs.folder.interrupted import cut_off

POLICY = """
schema = 1
[[limits]]
adversary = "eavesdropper"
epsilon = 9
delta = 1e-5
"""
Change = Callable[[Path], object]


def text(change: Callable[[str], str]) -> Change:
    """Change the text of SHA256SUMS."""

    def write(folder: Path) -> None:
        path = folder / "SHA256SUMS"
        changed = change(path.read_text(encoding="utf-8"))
        path.write_bytes(changed.encode("utf-8", "surrogateescape"))

    return write


def without(name: str) -> Change:
    """Take the line of a file out."""
    return text(lambda held: "".join(one for one in held.splitlines(True) if name not in one))


def named(name: str) -> Change:
    """Name a path once more, with the digest of the run file."""
    return text(lambda held: held + f"{'0' * 64}  {name}\n")


def _directory(folder: Path) -> None:
    (folder / "SHA256SUMS").unlink()
    (folder / "SHA256SUMS").mkdir()


def _link_in_its_place(folder: Path) -> None:
    moved = folder.parent / "sums"
    (folder / "SHA256SUMS").rename(moved)
    (folder / "SHA256SUMS").symlink_to(moved)


def _dangling(folder: Path) -> None:
    (folder / "SHA256SUMS").unlink()
    (folder / "SHA256SUMS").symlink_to(folder.parent / "none")


def _link_to_outside(folder: Path) -> None:
    (folder / "metrics.jsonl").rename(folder.parent / "metrics.jsonl")
    (folder / "metrics.jsonl").symlink_to(folder.parent / "metrics.jsonl")


def _linked_folder(folder: Path) -> None:
    (folder / "checkpoints").rename(folder.parent / "checkpoints")
    (folder / "checkpoints").symlink_to(folder.parent / "checkpoints")


def _circle(folder: Path) -> None:
    (folder / "metrics.jsonl").unlink()
    (folder / "metrics.jsonl").symlink_to("metrics.jsonl")


def _pipe(folder: Path) -> None:
    (folder / "metrics.jsonl").unlink()
    os.mkfifo(folder / "metrics.jsonl")


CHECKPOINT = "checkpoints/round-000000.safetensors"


def hole(name: str) -> Change:
    """A file of zeros that takes no room, in the place of another."""

    def write(folder: Path) -> None:
        with (folder / name).open("wb") as file:
            file.truncate(1 << 40)

    return write


def _huge(folder: Path) -> None:
    with (folder / "SHA256SUMS").open("r+b") as file:
        file.truncate(4 << 30)


def _new_checkpoint(folder: Path) -> None:
    held = (folder / "checkpoints" / "round-000002.safetensors").read_bytes()
    (folder / "checkpoints" / "round-000001.safetensors").write_bytes(held)


def _new_stop(folder: Path) -> None:
    (folder / "stopped.json").write_text("{}", encoding="utf-8")


def _edited(folder: Path) -> None:
    with (folder / "environment.json").open("a") as file:
        file.write("\n")


FAULTS: dict[str, tuple[Change, str]] = {
    "deleted": (lambda folder: (folder / "SHA256SUMS").unlink(), "a finished run names the digest"),
    "empty": (text(lambda _: ""), "run.toml is not in SHA256SUMS"),
    "no ledger": (without("ledger.jsonl"), "ledger.jsonl is not in SHA256SUMS"),
    "no environment": (without("environment.json"), "environment.json is not in SHA256SUMS"),
    "no metrics": (without("metrics.jsonl"), "metrics.jsonl is not in SHA256SUMS"),
    "no checkpoint": (without("000002.safe"), "000002.safetensors is not in SHA256SUMS"),
    "no transcript": (without("transcript"), "000001.safetensors is not in SHA256SUMS"),
    "a file more": (named("extra.json"), "extra.json is not the file that SHA256SUMS names"),
    "a file less": (
        lambda folder: (folder / "environment.json").unlink(),
        "environment.json is not the file",
    ),
    "a file edited": (_edited, "environment.json is not the file"),
    "a checkpoint put there": (_new_checkpoint, "000001.safetensors is not in SHA256SUMS"),
    "a stop put there": (_new_stop, "stopped.json is not in SHA256SUMS"),
    "Windows' ends of lines": (text(lambda held: held.replace("\n", "\r\n")), "line 1 is none of"),
    "a line twice": (text(lambda held: held + held.splitlines(True)[0]), "a second time"),
    "a file twice": (
        text(lambda held: held + "0" * 64 + held.splitlines(True)[0][64:]),
        "a second time",
    ),
    "out of the folder": (named("../run.toml"), "is none of sha256sum"),
    "an absolute path": (named("/etc/passwd"), "is none of sha256sum"),
    "a roundabout path": (named("checkpoints/../run.toml"), "is none of sha256sum"),
    "a dot": (named("./run.toml"), "is none of sha256sum"),
    "a folder": (named("checkpoints"), "is not the file"),
    "an escaped name": (named("a\\nb"), "is none of sha256sum"),
    "a control character": (named("a\x1b[2Jb"), "is none of sha256sum"),
    "no text": (named("\udcff"), "is no text"),
    "zeros": (text(lambda held: held + "\0" * 100 + "\n"), "is none of sha256sum"),
    "capitals": (text(str.upper), "line 1 is none of"),
    "a blank line": (text(lambda held: held + "\n"), "is none of sha256sum"),
    "a comment": (text(lambda held: "# digests\n" + held), "line 1 is none of"),
    "one blank": (text(lambda held: held.replace("  ", " ")), "line 1 is none of"),
    "cut off": (text(lambda held: held[:-1]), "cut off in its last line"),
    "a byte-order mark": (text(lambda held: "\ufeff" + held), "line 1 is none of"),
    "a folder in its place": (_directory, "is no file of the run"),
    "a link in its place": (_link_in_its_place, "is no file of the run"),
    "a link to nothing in its place": (_dangling, "is no file of the run"),
    "a link to outside": (_link_to_outside, "metrics.jsonl is not the file"),
    "a linked folder": (_linked_folder, "is not the file"),
    "a link to itself": (_circle, "metrics.jsonl is not the file"),
    "a pipe": (_pipe, "metrics.jsonl is not the file"),
    "a terabyte of evidence": (hole("ledger.jsonl"), "and at most 8589934592 are read"),
    "a terabyte of no tensors": (hole(CHECKPOINT), "is not a safetensors file"),
    "4 gigabytes": (_huge, "and at most 67108864 are read"),
}


@pytest.mark.parametrize(("change", "words"), FAULTS.values(), ids=FAULTS)
def test_sums_that_do_not_hold_are_refused(change, words, folder):
    check_sums(folder)
    change(folder)
    with pytest.raises(InputError) as caught:
        check_sums(folder)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "change",
    [
        text(lambda held: "".join(reversed(held.splitlines(True)))),
        text(lambda held: held.replace("  ", " *")),
        lambda folder: (folder / "notes.txt").write_text("of the operator"),
    ],
    ids=["another order", "binary", "a file of somebody's own"],
)
def test_sums_that_say_the_same_hold(change, folder):
    change(folder)
    check_sums(folder)


def test_every_command_that_reads_a_finished_run_refuses_it_without_sums(folder, tmp_path, capsys):
    (tmp_path / "policy.toml").write_text(POLICY, encoding="utf-8")
    shutil.copytree(folder, tmp_path / "other")
    (folder / "SHA256SUMS").unlink()
    before = sorted(folder.rglob("*"))
    for command in (
        ["report", folder],
        ["report", folder, "--format", "json"],
        ["report", folder, "--format", "md"],
        ["check", folder, "--policy", tmp_path / "policy.toml"],
        ["compare", folder, tmp_path / "other"],
        ["compare", tmp_path / "other", folder],
        ["audit", folder],
        ["attack", folder],
    ):
        assert cli.main([str(one) for one in command]) == 2
        shown = capsys.readouterr()
        said = " ".join(shown.err.split())
        assert "SHA256SUMS is missing: the last round of this run is measured" in said
        assert "--resume` closes the run" in said
        assert (shown.out, "Traceback" in said) == ("", False)
        assert sorted(folder.rglob("*")) == before


def test_an_attacker_who_hides_that_a_run_is_finished_gets_no_finished_report(folder, capsys):
    (folder / "SHA256SUMS").unlink()
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"round": 2, "accu')  # what a reader drops
    with pytest.raises(InputError, match="SHA256SUMS is missing"):
        check_sums(folder)
    lines = (folder / "metrics.jsonl").read_text().splitlines(True)
    (folder / "metrics.jsonl").write_text("".join(lines[:-2]))
    assert cli.main(["report", str(folder), "--format", "json"]) == 0
    assert not json.loads(capsys.readouterr().out)["run"]["finished"]


def test_a_finished_run_that_was_changed_is_not_said_to_be_finished(folder):
    _edited(folder)
    with pytest.raises(InputError, match=r"environment\.json is not the file"):
        resume_run(load_run_file(folder / "run.toml"), folder)


def test_links_and_names_that_sha256sum_cannot_hold_are_not_listed(folder):
    (folder / "a\nb").write_text("")
    (folder / "c").symlink_to(folder.parent)
    (folder / "d").symlink_to("run.toml")
    os.mkfifo(folder / "e")
    held = write_sums(folder)
    assert not {"a\nb", "c", "d", "e"} & set(held)
    check_sums(folder)


def test_an_unfinished_run_needs_no_sums_and_is_held_to_those_that_it_has(tmp_path):
    (tmp_path / "run.toml").write_text(RUN.replace("rounds = 2", "rounds = 5"), encoding="utf-8")
    _, out = cut_off(tmp_path / "run.toml", at=2)
    check_sums(out)
    write_sums(out)  # as a report does
    check_sums(out)
    _edited(out)
    with pytest.raises(InputError, match=r"environment\.json is not the file"):
        check_sums(out)


def test_forgotten_lines_are_gone_and_the_others_are_there(folder):
    before = (folder / "SHA256SUMS").read_text()
    sums.forget_sums(folder, "none/")
    assert (folder / "SHA256SUMS").read_text() == before
    sums.forget_sums(folder, "transcript/")
    after = (folder / "SHA256SUMS").read_text()
    assert "".join(one for one in before.splitlines(True) if "transcript/" not in one) == after


@pytest.mark.skipif(os.name != "posix", reason="needs locks of files")
def test_two_that_end_at_once_leave_sums_of_what_both_wrote(tmp_path, monkeypatch):
    (tmp_path / "run.toml").touch()
    begun, ended, digest = Event(), Event(), sums.digest

    def slowly(path: Path) -> str:
        if not begun.is_set():  # the first file of the first one
            begun.set()
            ended.wait(0.3)
        return digest(path)

    monkeypatch.setattr(sums, "digest", slowly)
    first = Thread(target=write_sums, args=(tmp_path,))
    first.start()
    assert begun.wait(10)
    (tmp_path / "audit.json").touch()
    write_sums(tmp_path)
    ended.set()
    first.join()
    assert sums.is_listed(tmp_path, "audit.json")
