"""No single bit of an unfinished run's ledger lowers the epsilon that a report prints."""

import random
from collections import Counter
from pathlib import Path

import pytest

from overhear.privacy.errors import InputError
from overhear.reports.document.collect import collect
from overhear.runs.folder.released import read_released
from overhear.runs.folder.resume import check_ledger, epsilon_of_ledger, resume_run
from overhear.runs.folder.run import plan_session
from overhear.runs.plan.plan import Plan
from tests.runs.folder.interrupted import (
    NO_TARGET,
    CutOffError,
    cut_off,
    cut_off_at,
    plan_once,
    write_run_file,
)


@pytest.fixture
def unfinished(tmp_path, monkeypatch):
    """A run that was cut off after round 6, went on after 4, and was cut off after round 9."""
    plan_once(monkeypatch)
    config, out = cut_off(write_run_file(tmp_path), NO_TARGET)
    with pytest.raises(CutOffError):
        resume_run(config, out, progress=cut_off_at(9))
    return out, plan_session(config, out).plan


def flips(folder: Path, plan: Plan, bits: list[int]) -> Counter[str]:
    """What becomes of each flipped bit; one that lowers an epsilon fails."""
    path = folder / "ledger.jsonl"
    whole = path.read_bytes()
    epsilon = epsilon_of_ledger(plan, read_released(folder))
    known = {}
    found = Counter[str]()
    for bit in bits:
        changed = bytearray(whole)
        changed[bit // 8] ^= 1 << bit % 8
        path.write_bytes(changed)
        try:
            spent = read_released(folder)
            check_ledger(folder, spent, plan)
        except InputError:
            found["refused"] += 1
            continue
        key = (*spent.numbers, spent.torn)
        if key not in known:
            known[key] = epsilon_of_ledger(plan, spent)
        if any(known[key][name] < epsilon[name] for name in epsilon):
            found["less"] += 1
        else:
            found["as much" if known[key] == epsilon else "more"] += 1
    path.write_bytes(whole)
    return found


def test_1500_flips_never_lower_the_epsilon(unfinished):
    folder, plan = unfinished
    assert epsilon_of_ledger(plan, read_released(folder)) == collect(folder).ledger.epsilon
    size = 8 * (folder / "ledger.jsonl").stat().st_size
    found = flips(folder, plan, random.Random(2).sample(range(size), 1500))
    assert found.keys() <= {"refused", "more", "as much"}
    assert found.total() == 1500


def test_flips_before_the_last_line_are_all_refused(unfinished):
    folder, plan = unfinished
    whole = (folder / "ledger.jsonl").read_bytes()
    before = 8 * (len(whole) - len(whole.splitlines(keepends=True)[-1]))
    assert flips(folder, plan, random.Random(0).sample(range(before), 300)) == {"refused": 300}
    last = flips(folder, plan, random.Random(1).sample(range(before, 8 * len(whole)), 300))
    assert last.keys() <= {"refused", "more"}


# A ledger whose last lines were taken away is refused where another file shows their rounds.


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
