"""Every command on a run of the user's own code, each in a process of its own."""

import hashlib
import json
import os
from functools import partial

import pytest

from overhear.runs.folder.folder import write_sums
from tests.runs.folder.rank_processes import started_by_hand
from tests.runs.own.conftest import MINE, command

TRUST = "--trust-code"
NOT_IT = "is not the file that trained this run (sha256 "


def digest(path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def policy(place, allow: dict[str, str]) -> str:
    pins = ", ".join(f'"{path}" = "{value}"' for path, value in allow.items())
    names = '{key = "model.name", name = "own_mine:net"}, {key = "algorithm.name", '
    names += 'name = "own_mine.py:MOMENTUM", options = {decay = 0.5}}'
    (place / "policy.toml").write_text(
        'schema = 1\n[[limits]]\nadversary = "eavesdropper"\nepsilon = 50\ndelta = 1e-5\n'
        f"[code]\nallow = {{{pins}}}\nnames = [{names}]\n"
    )
    return "policy.toml"


def test_the_run_keeps_its_sources_and_their_digests(trained):
    held = json.loads((trained / "run" / "sources.json").read_text())
    assert list(held["files"]) == ["own_mine.py", "own_parts.py"]
    for name, value in held["files"].items():
        assert digest(trained / name) == value == digest(trained / "run" / "sources" / name)
    header = json.loads((trained / "run" / "ledger.jsonl").read_text().splitlines()[0])
    assert header["sources"] == digest(trained / "run" / "sources.json")
    assert header["algorithm"] == "own_mine.py:MOMENTUM"
    sums = (trained / "run" / "SHA256SUMS").read_text()
    assert "  sources.json\n" in sums
    assert "  sources/own_mine.py\n" in sums
    kept = (trained / "run" / "run.toml").read_text()
    assert "decay = 0.5" in kept
    assert "form" not in kept


def test_a_plan_runs_the_users_code_and_says_so(place, overhear):
    code, said = overhear("plan", "run.toml")
    assert (code, "runs code of yours: own_mine.py (sha256 " in said) == (0, True), said
    assert "proven" in said
    code, said = overhear("plan", "run.toml", "--set=algorithm.decai=0.1")
    assert (code, "did you mean decay?" in said) == (2, True), said
    code, said = overhear("plan", "run.toml", "--set=algorithm.form=published")
    assert (code, "has no effect on an algorithm of your own" in said) == (2, True), said
    code, said = overhear("plan", "run.toml", "--set=algorithm.name=own_mine:MOMENTM")
    assert (code, "did you mean 'MOMENTUM'?" in said) == (2, True), said
    code, said = overhear("plan", "run.toml", '--set=attack.scenarios=["momentum"]')
    assert (code, "use view" in said) == (2, True), said


@pytest.mark.slow
def test_attack_audit_report_and_check_read_the_run(place, overhear):
    for command_line in (["attack", "run"], ["audit", "run"], ["report", "run"]):
        code, said = overhear(*command_line, TRUST)
        assert code == 0, said
    assert (place / "run" / "report.html").is_file()
    pins = {name: digest(place / name) for name in ("own_mine.py", "own_parts.py")}
    code, said = overhear("check", "run", "--policy", policy(place, pins))
    assert code == 0, said
    code, said = overhear("total", "run", TRUST)
    assert code == 0, said


@pytest.mark.some_quick(2)
@pytest.mark.parametrize(
    "arguments",
    [
        ["report", "run"],
        ["total", "run"],
        ["compare", "run", "run"],
        ["audit", "run"],
        ["attack", "run"],
        ["plan", "run/run.toml"],
        ["train", "run/run.toml", "--out", "run", "--resume"],
        ["check", "run", "--policy", "policy.toml"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_the_code_of_a_folder_is_not_run_unless_somebody_vouches_for_it(place, overhear, arguments):
    for name in ("own_mine.py", "own_parts.py"):
        (place / name).write_text('open("ran", "w").close()\n' + (place / name).read_text())
    policy(place, {"own_mine.py": digest(place / "own_mine.py")})  # of another file than the run's
    code, said = overhear(*arguments)
    assert code == 2, said
    assert "run names code that would be run" in said
    assert "--trust-code" in said
    assert not (place / "ran").exists()


@pytest.mark.slow
def test_who_trained_a_run_need_not_vouch_for_it(place, overhear):
    parts = place / "own_parts.py"
    parts.write_text(
        f"{parts.read_text()}try:\n    import own_extra\nexcept ImportError:\n    ...\n"
    )
    assert overhear("train", "run.toml", "--out", "new")[0] == 0
    (place / "new").rename(place / "moved")
    for arguments in (["report", "moved"], ["attack", "moved"], ["audit", "moved"]):
        code, said = overhear(*arguments)
        assert code == 0, said
    policy(place, {})
    code, said = overhear("check", "moved", "--policy", "policy.toml")
    assert (code, "names code that would be run" in said) == (2, True), said
    (place / "own_extra.py").write_text('open("ran", "w").close()\n')  # what they import beside
    code, said = overhear("report", "moved")
    assert (code, "own_extra.py (sha256 " in said) == (2, True), said
    assert not (place / "ran").exists()


def test_changed_code_is_refused_before_it_runs(place, overhear):
    (place / "own_parts.py").write_text('open("ran", "w").close()\ndef decayed(): pass\n')
    for arguments in (["report", "run", TRUST], ["audit", "run", TRUST], ["attack", "run", TRUST]):
        code, said = overhear(*arguments)
        assert code == 2, said
        assert f"own_parts.py {NOT_IT}{digest(place / 'own_parts.py')[:12]}" in said
        assert "use run/sources or train again" in said
    assert not (place / "ran").exists()


def test_a_missing_file_names_the_copies(place, overhear):
    (place / "own_parts.py").unlink()
    code, said = overhear("report", "run", TRUST)
    assert code == 2
    assert "own_parts.py, which trained the run of run, is not in" in said
    assert "take the copy in run/sources" in said
    (place / "own_mine.py").unlink()
    code, said = overhear("report", "run")
    assert code == 2
    assert "own_mine.py, which is not in the working directory; read its copy" in said


def test_a_file_that_did_not_train_the_run_is_refused(place, overhear):
    held = json.loads((place / "run" / "sources.json").read_text())
    del held["files"]["own_parts.py"]
    (place / "run" / "sources.json").write_text(json.dumps(held))
    write_sums(place / "run")
    code, said = overhear("report", "run", TRUST)
    assert code == 2
    assert "own_parts.py is imported now and did not train this run" in said


def test_sources_that_the_ledger_does_not_name_are_refused(place, overhear):
    path = place / "run" / "sources.json"
    path.write_text(path.read_text() + "\n")
    (place / "run" / "SHA256SUMS").unlink()
    (place / "run" / "metrics.jsonl").unlink()  # not finished, so nothing else holds it
    code, said = overhear("report", "run", TRUST)
    assert code == 2
    assert "sources.json is not the file that the ledger names" in said


def test_a_changed_copy_is_refused_by_the_sums(place, overhear):
    (place / "run" / "sources" / "own_mine.py").write_text("")
    code, said = overhear("report", "run", TRUST)
    assert code == 2
    assert "sources/own_mine.py is not the file that SHA256SUMS names" in said


def cut_off(place) -> None:
    """Leave the run as if it had been killed after its second round."""
    folder = place / "run"
    (folder / "SHA256SUMS").unlink()
    for path in (folder / "checkpoints").glob("round-000003*"):
        path.unlink()
    lines = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    (folder / "metrics.jsonl").write_text("".join(lines[:-1]))


def test_a_run_goes_on_with_the_users_run_file_and_the_same_code_alone(place, overhear):
    cut_off(place)
    (place / "own_parts.py").write_text((place / "own_parts.py").read_text() + "\n")
    code, said = overhear("train", "run.toml", "--out", "run", "--resume")
    assert (code, f"own_parts.py {NOT_IT}" in said) == (2, True), said
    (place / "own_parts.py").write_bytes((place / "run/sources/own_parts.py").read_bytes())
    code, said = overhear("train", "run.toml", "--out", "run", "--resume")
    assert code == 0, said
    assert (place / "run" / "SHA256SUMS").is_file()
    code, said = overhear("report", "run", TRUST)
    assert code == 0, said


def test_code_that_changes_while_it_trains_leaves_the_run_open(place, overhear):
    (place / "own_mine.py").write_text(
        MINE.replace(
            "def net(input_shape, classes):\n",
            "def net(input_shape, classes):\n"
            "    import pathlib, threading\n"
            "    def change():\n"
            "        import time\n"
            "        while not pathlib.Path('new/ledger.jsonl').exists(): time.sleep(0.01)\n"
            "        pathlib.Path('own_parts.py').open('a').write('# changed\\n')\n"
            "    threading.Thread(target=change, daemon=True).start()\n",
        )
    )
    before = (place / "own_parts.py").read_bytes()
    code, said = overhear("train", "run.toml", "--out", "new", "--set=training.rounds=40")
    assert code == 2, said
    assert "since this run began its code was changed: own_parts.py" in said
    assert not (place / "new" / "SHA256SUMS").exists()
    assert (place / "new" / "sources" / "own_parts.py").read_bytes() == before


@pytest.mark.distributed
def test_each_rank_runs_the_code_of_its_working_directory(place, tmp_path):
    given = ["train", "run.toml", "--out", "ranks"]
    ended = started_by_hand([given] * 2, tmp_path, changes=[partial(os.chdir, place)] * 2)
    assert ended.codes == [0, 0], ended.said
    assert "".join(ended.said).count("runs code of yours") == 1
    assert (place / "ranks" / "sources" / "own_parts.py").is_file()


@pytest.mark.slow
@pytest.mark.distributed
def test_ranks_run_the_code_of_the_working_directory(place, overhear):
    code, said = overhear("train", "run.toml", "--out", "ranks", "--ranks", "2")
    assert code == 0, said
    assert said.count("runs code of yours") == 1
    assert (place / "ranks" / "sources" / "own_parts.py").is_file()


def test_the_fixture_needs_no_path(trained):
    assert command("plan", "run.toml", cwd=trained / "run")[0] == 2  # own_mine is not there
