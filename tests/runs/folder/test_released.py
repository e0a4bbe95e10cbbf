"""A ledger whose last lines were taken away is refused where another file shows their rounds."""

from pathlib import Path

import pytest

from overhear.privacy.errors import InputError
from overhear.reports.document.collect import collect
from overhear.runs.folder.released import read_released
from overhear.runs.folder.resume import resume_run
from tests.runs.folder.interrupted import (
    NO_TARGET,
    CutOffError,
    cut_off,
    cut_off_at,
    plan_once,
    write_run_file,
)


@pytest.fixture
def out(tmp_path, monkeypatch):
    """A run that was cut off after round 6, went on after 4, and was cut off after round 9."""
    plan_once(monkeypatch)
    config, out = cut_off(write_run_file(tmp_path), NO_TARGET)
    with pytest.raises(CutOffError):
        resume_run(config, out, progress=cut_off_at(9))
    return out


def cut(out: Path, lines: int) -> None:
    path = out / "ledger.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:lines]))


def test_a_whole_ledger_is_read(out):
    assert read_released(out).numbers == [*range(7), *range(5, 10)]


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (1, "of round 8, but its ledger ends at round 0"),
        (2, "of round 8, but its ledger ends at round 0"),
        (8, "of round 8, but its ledger ends at round 6"),
        (11, "of round 8, but its ledger ends at round 6"),
        (12, "of round 8, but its ledger ends at round 7"),
    ],
)
def test_lines_that_were_taken_from_the_end_are_missed(out, lines, words):
    cut(out, lines)
    with pytest.raises(InputError, match=words):
        read_released(out)
    with pytest.raises(InputError, match=r"lines of .* are missing"):
        collect(out)


def test_the_last_line_alone_is_missed_by_nobody(out):
    """What the threat model says: nothing was written after round 9."""
    cut(out, 13)
    assert read_released(out).numbers == [*range(7), *range(5, 9)]


@pytest.mark.parametrize("name", ["metrics.jsonl", "checkpoints", "transcript"])
def test_each_file_shows_its_rounds_by_itself(out, name):
    for path in [*out.glob("checkpoints/*"), *out.glob("transcript/**/*.safetensors")]:
        if name not in path.parts:
            path.unlink()
    if name != "metrics.jsonl":
        (out / "metrics.jsonl").unlink()
    cut(out, 5)
    with pytest.raises(InputError, match=rf"{name}.* is of round [4-8], but its ledger ends at"):
        read_released(out)


def test_a_resumption_that_set_transcripts_aside_is_missed(out):
    aside = out / "transcript" / "discarded-3"
    aside.mkdir()
    with pytest.raises(InputError, match="is of resumption 3, but the ledger names 1"):
        read_released(out)
    aside.rename(aside.with_name("discarded-2"))  # set aside, and not yet written down
    read_released(out)
