"""Folders and ledgers of earlier versions: read, totalled, added, continued, or refused by name."""

import hashlib
import json
import math
import shutil
from pathlib import Path

import pytest

import overhear
from overhear.privacy.errors import InputError
from overhear.privacy.releases.chained_file import READABLE
from overhear.privacy.releases.ledger import read_ledger
from overhear.privacy.releases.log import read_log
from overhear.privacy.releases.person_ledger import SCHEMA, compose, read_person_ledger
from overhear.reports.document.collect import read_checked_run, report_run
from overhear.reports.total.total import add_runs, person_total, run_of_folder, total_of_runs
from overhear.runs.folder.released import read_released
from overhear.runs.folder.resume import resume_run
from overhear.runs.run_file.run_file import load_run_file

MUSEUM = Path(__file__).parent / "museum"
READ = sorted(path.name for path in MUSEUM.glob("schema-[2-9]*"))
EPSILON = 0.0954  # of every run in the museum, as the version that trained it stated


@pytest.fixture
def exhibit(tmp_path, request):
    return shutil.copytree(MUSEUM / request.param, tmp_path / request.param)


def test_each_schema_has_an_exhibit():
    assert {read_ledger(MUSEUM / name / "ledger.jsonl").schema for name in READ} == set(READABLE)
    assert (MUSEUM / f"{SCHEMA}.jsonl").is_file()
    largest = max(
        sum(p.stat().st_size for p in d.rglob("*")) for d in MUSEUM.iterdir() if d.is_dir()
    )
    assert largest < 80_000


@pytest.mark.parametrize("exhibit", READ, indirect=True)
def test_a_run_of_another_version_is_added_to_a_person(exhibit, tmp_path):
    ledger = tmp_path / "person.jsonl"
    shutil.copy(MUSEUM / "person-1.jsonl", ledger)
    before = person_total([ledger])
    add_runs(ledger, [exhibit])
    found = person_total([ledger])
    assert [round(run.alone, 4) for run in found.runs] == [EPSILON] * 3
    assert before.epsilon < found.epsilon < 3 * EPSILON
    assert (found.status, found.delta) == ("proven", 1e-5)


@pytest.mark.parametrize("exhibit", ["schema-4"], indirect=True)
def test_a_run_file_with_a_key_of_another_version_is_refused_by_that_name(exhibit):
    path = exhibit / "run.toml"
    path.write_text(path.read_text().replace("[audit]", "[audit]\nlater = 1"))
    with pytest.raises(InputError, match=r"later (.|\n)* another version .* environment\.json"):
        run_of_folder(exhibit)


@pytest.mark.parametrize("exhibit", ["schema-1"], indirect=True)
def test_a_ledger_without_digests_is_refused_by_name(exhibit):
    with pytest.raises(InputError, match=r"schema 1, and this version reads .* environment\.json"):
        read_released(exhibit)
    # Finished, that version listed its files, of which a run of today has more.
    listed = sorted(exhibit.iterdir())
    sums = "".join(f"{hashlib.sha256(p.read_bytes()).hexdigest()}  {p.name}\n" for p in listed)
    (exhibit / "SHA256SUMS").write_text(sums)
    with pytest.raises(InputError, match=r"schema 1, and this version reads .* environment\.json"):
        run_of_folder(exhibit)
    assert json.loads((exhibit / "environment.json").read_text())["packages"]["overhear"] == "0.1.0"


def test_the_first_lines_of_a_person_are_read_as_they_were_written():
    known = read_person_ledger(MUSEUM / "person-1.jsonl")
    assert "otherwise" not in (MUSEUM / "person-1.jsonl").read_text()
    assert [run.unread for run in known.runs] == ["", ""]
    assert math.isfinite(compose(known.runs, "eavesdropper"))


def test_an_earlier_log_of_releases_costs_what_it_did():
    log = read_log(MUSEUM / "releases-1")
    assert (sum(map(len, log.rounds.values())), log.stated) == (6, ())


@pytest.mark.slow
@pytest.mark.parametrize(
    "exhibit", [name for name in READ if "finished" not in name], indirect=True
)
def test_an_earlier_run_goes_on_with_the_file_that_it_was_begun_with(exhibit, tmp_path):
    """Of which [attack] has other defaults today, and other tables keys that were not there."""
    run_file = MUSEUM / "run.toml"
    changed = load_run_file(run_file, ["attack.images=3"])
    with pytest.raises(InputError, match=r"\[attack\] images=3 differs from"):
        resume_run(changed, exhibit)
    with pytest.raises(InputError, match=r"\[training\] learning_rate=0.5 differs from"):
        resume_run(load_run_file(run_file, ["training.learning_rate=0.5"]), exhibit)
    before = read_ledger(exhibit / "ledger.jsonl")
    environment = exhibit / "environment.json"
    environment.write_text(environment.read_text().replace('"0.1.0"', '"0.0.9"'))
    said: list[str] = []
    resume_run(load_run_file(run_file), exhibit, notice=said.append)
    assert f"It was begun by overhear 0.0.9 and goes on by {overhear.__version__}." in said
    versions = json.loads(environment.read_text())["packages"]
    assert versions["overhear"] == f"0.0.9, after round 1 {overhear.__version__}"
    spent = read_ledger(exhibit / "ledger.jsonl")
    assert (before.numbers, spent.numbers) == ([0, 1, 2], [0, 1, 2, 2, 3])
    assert spent.schema == before.schema
    report_run(exhibit)
    assert json.loads((exhibit / "privacy.json").read_text())["ledger"]["rounds"] == 4
    add_runs(tmp_path / "person.jsonl", [exhibit])
    found = person_total([tmp_path / "person.jsonl"])
    assert found.runs[0].counted == "released"
    assert EPSILON < found.epsilon < 2 * EPSILON


@pytest.mark.slow
@pytest.mark.parametrize("exhibit", ["schema-3-finished"], indirect=True)
def test_an_earlier_report_is_refused_by_name_until_it_is_written_again(exhibit):
    with pytest.raises(InputError, match=r"is of version 2, and this program reads version 3; wr"):
        read_checked_run(exhibit)
    report_run(exhibit)
    run = read_checked_run(exhibit)
    assert run.report.attack is not None
    assert run.report.audit is not None
    assert run.facts.ran is not None


@pytest.mark.slow
def test_runs_of_all_versions_add_up():
    found = total_of_runs([MUSEUM / name for name in READ])
    of = {one.name: one for one in found.adversaries}["eavesdropper"]
    assert [round(alone, 4) for alone in of.alone] == [EPSILON] * len(READ)
    assert max(of.alone) < of.epsilon < sum(of.alone)
