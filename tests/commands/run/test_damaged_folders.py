"""Damaged folders of runs: every command says which file, and what to do, and changes nothing."""

import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from overhear.commands.cli import main
from overhear.runs.folder.folder import write_sums
from tests.small_run import run_text

RUN = run_text(
    "dp-dpsgd", agents=3, privacy={"noise_multiplier": 1, "delta": 0.0001},
    training={"rounds": 2, "sampling_rate": 0.02, "device": "cpu"}, intercept={"rounds": [2]},
    attack={"rounds": [2]},
)  # fmt: skip
TRANSCRIPT = "transcript/round-000002.safetensors"
CHECKPOINT = "checkpoints/round-000002.safetensors"

Damage = Callable[[Path], object]


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def flipped(path: Path) -> None:
    held = bytearray(path.read_bytes())
    held[len(held) // 2] ^= 1
    path.write_bytes(held)


def a_folder(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.mkdir()


def a_circle(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    path.symlink_to(path.name)


def a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def no_text(path: Path) -> None:
    path.write_bytes(b"\xff\xfe\x00")


def nested(path: Path) -> None:
    path.write_bytes(b"[" * 100_000)


def of_zeros(path: Path) -> None:
    path.write_text(f"{'0' * 64}  run.toml\n", encoding="ascii")


def a_file(path: Path) -> None:
    shutil.rmtree(path)
    path.write_bytes(b"x")


# What is damaged, how, and what is named; the remedy is a copy of the run.
CASES: dict[str, tuple[str, Damage, str]] = {
    "transcript cut": (TRANSCRIPT, cut, TRANSCRIPT),
    "transcript empty": (TRANSCRIPT, emptied, TRANSCRIPT),
    "transcript gone": (TRANSCRIPT, Path.unlink, f"{TRANSCRIPT} is not"),
    "transcript a folder": (TRANSCRIPT, a_folder, TRANSCRIPT),
    "transcript a pipe": (TRANSCRIPT, a_pipe, TRANSCRIPT),
    "transcripts gone": ("transcript", shutil.rmtree, TRANSCRIPT),
    "transcripts a circle of links": ("transcript", a_circle, "transcript is a link"),
    "transcripts a file": ("transcript", a_file, TRANSCRIPT),
    "checkpoint cut": (CHECKPOINT, cut, CHECKPOINT),
    "checkpoint flipped": (CHECKPOINT, flipped, CHECKPOINT),
    "checkpoint a circle of links": (CHECKPOINT, a_circle, CHECKPOINT),
    "ledger flipped": ("ledger.jsonl", flipped, "ledger.jsonl"),
    "ledger gone": ("ledger.jsonl", Path.unlink, "ledger.jsonl is not"),
    "ledger a circle of links": ("ledger.jsonl", a_circle, "ledger.jsonl"),
    "environment cut": ("environment.json", cut, "environment.json"),
    "records nested": ("records.json", nested, "records.json"),
    "metrics no text": ("metrics.jsonl", no_text, "metrics.jsonl"),
    "run file cut": ("run.toml", cut, "run.toml"),
    "run file a folder": ("run.toml", a_folder, "run.toml"),
    "run file a circle of links": ("run.toml", a_circle, "run.toml"),
    "sums cut": ("SHA256SUMS", cut, "SHA256SUMS is cut off"),
    "sums of another file": ("SHA256SUMS", of_zeros, "SHA256SUMS"),
    "sums gone": ("SHA256SUMS", Path.unlink, "SHA256SUMS is missing"),
    "sums a circle of links": ("SHA256SUMS", a_circle, "SHA256SUMS"),
    "sums a folder": ("SHA256SUMS", a_folder, "SHA256SUMS"),
    "audit a folder": ("audit.json", a_folder, "audit.json"),
}
# The sums name the damaged file, as where the run was never closed: what each file is decides.
UNSEEN: dict[str, tuple[str, Damage, str, str]] = {
    "transcript cut": (TRANSCRIPT, cut, "attack", "is cut off or damaged"),
    "transcript empty": (TRANSCRIPT, emptied, "attack", "is not a safetensors file"),
    "transcript cut, audited": (TRANSCRIPT, cut, "audit", "it is cut off or damaged; put it back"),
    "ledger flipped": ("ledger.jsonl", flipped, "attack", "put it back as it was written"),
    "environment cut": ("environment.json", cut, "audit", "put it back as it was written"),
    "environment nested": ("environment.json", nested, "report", "put it back as it was written"),
    "records empty": ("records.json", emptied, "report", "put"),
}
COMMANDS = ("attack", "audit", "report")


@pytest.fixture
def folder(trained, tmp_path):
    return Path(shutil.copytree(trained, tmp_path / "run"))


def held(folder: Path) -> dict[str, str]:
    """What is at every path below a folder, which is never followed out of it."""
    found = {}
    for place, folders, names in os.walk(folder):
        for path in (Path(place) / name for name in [*folders, *names]):
            what = "link" if path.is_symlink() else "folder" if path.is_dir() else "other"
            if what == "other" and path.is_file():
                what = hashlib.sha256(path.read_bytes()).hexdigest()
            found[str(path.relative_to(folder))] = what
    return found


def check_refused(command: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """The one sentence of a command that leaves everything as it was."""
    before = held(folder)
    capsys.readouterr()
    assert main([command, str(folder)]) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert said[-1].startswith("error: ")
    assert sum("error" in line.lower() for line in said) == 1
    assert held(folder) == before
    return said[-1]


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("name", CASES)
def test_a_damaged_file_is_named_with_its_remedy(name, command, folder, capsys):
    path, damage, words = CASES[name]
    damage(folder / path)
    said = check_refused(command, folder, capsys)
    assert words in said
    assert any(remedy in said for remedy in ("back", "from a copy of the run", "put a copy"))


@pytest.mark.parametrize("name", UNSEEN)
def test_damage_that_the_sums_do_not_show_is_named_too(name, folder, capsys):
    path, damage, command, words = UNSEEN[name]
    damage(folder / path)
    write_sums(folder)
    said = check_refused(command, folder, capsys)
    assert words in said
    assert Path(path).name in said


def test_a_file_in_the_place_of_the_attack_is_named(folder, capsys):
    (folder / "attacks").write_bytes(b"x")
    assert "attacks is no folder, where an attack is written; move it away" in check_refused(
        "attack", folder, capsys
    )
