"""audits.jsonl: what stands beside a run file, and what shows when it was changed."""

import errno
import json
import os
from pathlib import Path

import pytest

from overhear.runs.audit import evidence
from overhear.runs.audit import evidence as module
from overhear.runs.audit.evidence import leave_trace
from overhear.runs.audit.evidence_schema import Audit
from overhear.runs.folder.folder import write_sums
from overhear.runs.run_file.run_file import load_run_file
from tests.conftest import sample_audit
from tests.runs.audit.test_audit import RUN  # noqa: F401 - see `run_file`


def _found(verdict: str = "consistent", seed: int = 1) -> Audit:
    settings = {"canaries": 400, "confidence": 0.95, "rounds": 3, "checked_rounds": 2}
    found = sample_audit(verdict) | {"schema": 2, "seed": seed, "settings": settings}
    return Audit.model_validate(found)


def _left(run_file: Path, count: int, *overrides: str) -> bytes:
    config = load_run_file(run_file, overrides)
    for seed in range(count):
        leave_trace(run_file, config, _found(seed=seed))
    return (run_file.parent / evidence.TRAIL).read_bytes()


def test_audits_are_counted_by_verdict_and_those_of_other_runs_apart(run_file):
    config = load_run_file(run_file, ["audit.canaries=60", "attack.restarts=3"])
    leave_trace(run_file, config, _found("suspicious"))
    other = load_run_file(run_file, ["training.rounds=2"])
    assert leave_trace(run_file, other, _found()).others == 1
    trail = leave_trace(run_file, load_run_file(run_file), _found())
    assert (trail.audits, trail.others, trail.damaged) == (2, 1, [])
    assert trail.verdicts == {"consistent": 1, "suspicious": 1}


def test_the_digest_is_that_of_the_run_a_folder_keeps(run_file, tmp_path):
    config = load_run_file(run_file, ["audit.seed=3", "intercept.rounds=[2]"])
    kept = tmp_path / "kept.toml"
    kept.write_text(config.to_toml(), encoding="utf-8")
    assert evidence.run_digest(load_run_file(kept)) == evidence.run_digest(load_run_file(run_file))
    assert evidence.run_digest(load_run_file(kept, ["training.rounds=2"])) != evidence.run_digest(
        config
    )


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda lines: [lines[0], lines[2]], "line 2 does not follow on line 1"),
        (lambda lines: lines[1:], "line 1 does not follow on line 0"),
        (lambda lines: [lines[1], lines[0], lines[2]], "line 1 does not follow"),
        (lambda lines: [lines[0].replace(b"consistent", b"suspicious"), *lines[1:]], "line 2 does"),
        (lambda lines: [lines[0], b"{", lines[2]], "line 2 is no audit"),
        (lambda lines: [lines[0], lines[1][:-9] + b"\n", lines[2]], "line 2 is no audit"),
        (lambda lines: [b"\xff\xfe", *lines], "line 1 is no audit"),
    ],
)
def test_a_line_that_was_changed_or_taken_out_shows(run_file, change, told):
    lines = _left(run_file, 3).splitlines()
    path = run_file.parent / evidence.TRAIL
    path.write_bytes(b"\n".join(change(lines)) + b"\n")
    trail = evidence.read_trail([path], load_run_file(run_file))
    assert trail is not None
    assert any(told in one for one in trail.damaged)


def test_what_is_damaged_is_gone_on_with_and_never_rewritten(run_file):
    held = _left(run_file, 2)
    path = run_file.parent / evidence.TRAIL
    path.write_bytes(held[:-30])  # the last line is cut off
    trail = leave_trace(run_file, load_run_file(run_file), _found())
    assert path.read_bytes().startswith(held[:-30] + b"\n")
    assert trail.audits == 2
    assert trail.damaged == ["audits.jsonl line 2 is no audit: it was changed or cut off"]
    assert evidence.read_trail([path], load_run_file(run_file)) == trail


def test_the_list_is_read_in_the_folder_and_beside_it_and_no_line_counts_twice(run_file, tmp_path):
    _left(run_file, 2)
    folder = tmp_path / "run"
    folder.mkdir()
    config = load_run_file(run_file)
    assert evidence.trail_of_folder(folder, config).audits == 2
    evidence.keep_trail(run_file, folder)
    _left(run_file, 1)
    assert evidence.trail_of_folder(folder, config).audits == 3
    (tmp_path / evidence.TRAIL).unlink()
    assert evidence.trail_of_folder(folder, config).audits == 2
    (folder / evidence.TRAIL).unlink()
    assert evidence.trail_of_folder(folder, config) is None


def test_a_folder_that_cannot_be_written_to_is_told(run_file, monkeypatch):
    def refuse(*_given):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(module.os, "open", refuse)
    with pytest.raises(OSError, match="Read-only file system") as error:
        leave_trace(run_file, load_run_file(run_file), _found())
    assert error.value.filename == str(run_file.parent / evidence.TRAIL)


def test_two_audits_at_once_leave_whole_lines(run_file):
    children = []
    for _ in range(4):
        child = os.fork()
        if child == 0:
            try:
                _left(run_file, 5)
            finally:
                os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)
    lines = (run_file.parent / evidence.TRAIL).read_bytes().splitlines()
    assert len([json.loads(line) for line in lines]) == 20
    trail = evidence.read_trail([run_file.parent / evidence.TRAIL], load_run_file(run_file))
    assert trail.damaged == []


def test_a_run_folder_whose_own_run_file_was_audited_stays_whole(run_file):
    folder = run_file.parent
    _left(run_file, 1)
    write_sums(folder)
    assert evidence.TRAIL in (folder / "SHA256SUMS").read_text(encoding="utf-8")
    _left(run_file, 1)
    sums = (folder / "SHA256SUMS").read_text(encoding="utf-8")
    assert evidence.TRAIL not in sums
    assert "run.toml" in sums
