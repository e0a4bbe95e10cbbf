"""A run that was cut off goes on, and what it releases twice is counted twice."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from overhear.commands import cli
from overhear.privacy import UnsupportedView, read_ledger
from overhear.privacy.errors import InputError
from overhear.privacy.releases.chained_file import LedgerInUse
from overhear.privacy.releases.ledger import Ledger
from overhear.reports.document.collect import collect
from overhear.runs.folder import resume, run
from overhear.runs.folder.folder import is_finished
from overhear.runs.folder.resume import affordable_round, resume_run
from overhear.runs.folder.run import plan_session, train_run
from overhear.runs.run_file.run_file import load_run_file
from overhear.training.algorithms import ALGORITHMS
from overhear.training.engine.tensor_file import load_checkpoint
from overhear.training.engine.transcript import Transcript
from tests.privacy.ledgers import edit_ledger
from tests.runs.folder.interrupted import (
    NO_TARGET,
    CutOffError,
    cut_off,
    cut_off_at,
    everything,
    plan_once,
    write_run_file,
)

ROOT = Path(__file__).resolve().parents[3]
SEEDED = "training.evaluation_noise_seed=1"


@pytest.fixture(autouse=True)
def planned(monkeypatch):
    plan_once(monkeypatch)


@pytest.fixture
def run_file(tmp_path):
    return write_run_file(tmp_path)


SCHEDULE = 'training.learning_rate={schedule="step",start=0.5,factor=0.25,every=5}'


def final(out: Path, round: int = 12) -> torch.Tensor:
    return load_checkpoint(out / f"checkpoints/round-{round:06d}.safetensors").state["x"]


def test_a_run_goes_on_at_the_rate_of_its_round(run_file):
    """Cut off after the rate fell for the first time; it falls again after round 10."""
    config, out = cut_off(run_file, NO_TARGET, SEEDED, SCHEDULE)
    resume_run(config, out)
    train_run(config, out.with_name("whole"))
    assert torch.equal(final(out), final(out.with_name("whole")))
    rates = [0.5] * 5 + [0.125] * 5 + [0.03125] * 2
    listed = load_run_file(run_file, [NO_TARGET, SEEDED, f"training.learning_rate={rates}"])
    train_run(listed, out.with_name("listed"))
    assert torch.equal(final(out), final(out.with_name("listed")))
    plain = load_run_file(run_file, [NO_TARGET, SEEDED, "training.learning_rate=0.5"])
    train_run(plain, out.with_name("plain"))
    assert not torch.allclose(final(out), final(out.with_name("plain")), atol=1e-3)


def test_a_run_goes_on_with_no_other_schedule(run_file):
    _, out = cut_off(run_file, NO_TARGET, SEEDED, SCHEDULE)
    other = load_run_file(run_file, [NO_TARGET, SEEDED, SCHEDULE.replace("0.25", "0.5")])
    with pytest.raises(ValueError, match="a run is continued as it was begun"):
        resume_run(other, out)


def test_a_seeded_run_that_was_cut_off_ends_with_the_same_models_bit_for_bit(run_file):
    config, out = cut_off(run_file, NO_TARGET, SEEDED)
    resume_run(config, out)
    train_run(config, out.with_name("whole"))
    assert torch.equal(final(out), final(out.with_name("whole")))
    lines = [(folder / "metrics.jsonl").read_text() for folder in (out, out.with_name("whole"))]
    assert lines[0] == lines[1]


# Of every algorithm a snapshot goes on in tests/training/engine/test_ranks.py.
@pytest.mark.some_cases(6)
@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[] if n == "dm-hsgd" else [pytest.mark.slow]) for n in ALGORITHMS],
)
def test_a_checkpoint_holds_all_that_an_algorithm_needs(name, tmp_path):
    example = f"{name}-{'ring' if name in ('dsgd', 'dp-dpsgd') else 'digits'}.toml"
    rounds = ["training.rounds=4", "training.checkpoint_every=2", SEEDED]
    few = [*rounds, "intercept.rounds=[]", "attack.rounds=[]"]
    config = load_run_file(ROOT / "examples" / example, few)
    with pytest.raises(CutOffError):
        train_run(config, tmp_path / "out", progress=cut_off_at(2))
    resume_run(config, tmp_path / "out")
    train_run(config, tmp_path / "whole")
    assert torch.equal(final(tmp_path / "out", 4), final(tmp_path / "whole", 4))


def test_rounds_that_are_released_again_cost_again(run_file):
    config, out = cut_off(run_file, NO_TARGET)
    planned = plan_session(config, out).plan.guarantee("eavesdropper").epsilon
    said: list[str] = []
    resume_run(config, out, notice=said.append)
    assert said == [
        f"The run in {out} goes on after round 4 of 12. Rounds 5 to 6 were released before; "
        "released again, each counts twice."
    ]
    spent = read_ledger(out / "ledger.jsonl")
    assert spent.numbers == [*range(7), *range(5, 13)]
    assert spent.resumed_after == (4,)
    ledger = collect(out).dump()["ledger"]
    assert (ledger["rounds"], ledger["rounds_accounted"]) == (14, 14)
    assert ledger["epsilon"]["eavesdropper"] > 1.02 * planned


def test_a_target_ends_the_run_before_the_release_that_would_exceed_it(run_file):
    config, out = cut_off(run_file)
    said: list[str] = []
    found = resume_run(config, out, notice=said.append)
    assert "Stopped after round 10 of 12" in said[-1]
    assert found.stopped is not None
    assert found.stopped.round == found.metrics.round == 10
    assert json.loads((out / "stopped.json").read_text()) == found.stopped.dump()
    assert len(read_ledger(out / "ledger.jsonl").numbers) == 1 + 12
    report = collect(out).dump()
    assert report["ledger"]["rounds_accounted"] == 12
    assert report["ledger"]["epsilon"]["eavesdropper"] <= 4
    assert is_finished(out)
    before = everything(out)
    assert resume_run(config, out).stopped == found.stopped
    assert everything(out) == before


def test_a_run_that_is_cut_off_again_and_again_keeps_to_its_target(run_file):
    config, out = cut_off(run_file)
    for at in (7, 7, 6, 9):
        try:
            resume_run(config, out, progress=cut_off_at(at))
        except CutOffError:
            continue
        break
    resume_run(config, out)
    assert len(read_ledger(out / "ledger.jsonl").numbers) == 1 + 12
    assert collect(out).ledger.epsilon["eavesdropper"] <= 4


@pytest.mark.parametrize("after", [4, 6])
def test_what_a_target_affords_is_the_planned_number_of_releases(run_file, after):
    session = plan_session(load_run_file(run_file), run_file.parent / "out")
    released = list(range(7))
    assert affordable_round(session, released, after=after) == (10 if after == 4 else 12)
    assert affordable_round(session, [*released, *range(5, 11)], after=after) == after


def test_where_rounds_differ_none_is_repeated_within_a_target(tmp_path):
    few = ["training.rounds=6", "intercept.rounds=[]", "attack.rounds=[]", "privacy.epsilon=4"]
    config = load_run_file(ROOT / "examples/dyn-d2p-digits.toml", few)
    session = plan_session(config, tmp_path)
    assert affordable_round(session, range(5), after=4) == 6
    assert affordable_round(session, range(5), after=3) == 3


def test_no_round_is_released_again_where_all_are_one_release(run_file, monkeypatch):
    planned = resume.plan_session

    def one_release(*given: Any, **named: Any) -> Any:
        session = planned(*given, **named)
        every = {n: e._replace(whole_run=True) for n, e in session.plan.exposures.items()}
        plan = dataclasses.replace(session.plan, exposures=every)
        return dataclasses.replace(session, plan=plan)

    for module in (run, resume):
        monkeypatch.setattr(module, "plan_session", one_release)
    config, out = cut_off(run_file, NO_TARGET)
    before = everything(out)
    with pytest.raises(UnsupportedView, match=r"round 5 was released already.*new run"):
        resume_run(config, out)
    assert everything(out) == before
    exact = run_file.parent / "exact"
    with pytest.raises(CutOffError):
        train_run(config, exact, progress=cut_off_at(4))
    resume_run(config, exact)
    assert read_ledger(exact / "ledger.jsonl").numbers == list(range(13))


def test_metrics_and_transcripts_are_those_of_the_rounds_behind_the_final_models(run_file):
    config, out = cut_off(run_file, NO_TARGET, at=8)
    for path in (out / "checkpoints").glob("round-000008*"):
        path.write_bytes(path.read_bytes()[:-1])
    first = (out / "transcript/round-000006.safetensors").read_bytes()
    with (out / "metrics.jsonl").open("a") as file:
        file.write('{"round": 8, "acc')
    said: list[str] = []
    resume_run(config, out, notice=said.append)
    assert "round-000008.safetensors cannot be read" in said[0]
    assert (out / "transcript/discarded-1/round-000006.safetensors").read_bytes() == first
    assert (out / "transcript/round-000006.safetensors").read_bytes() != first
    assert {m.round for m in Transcript.load(out / "transcript")} == {3, 6}
    assert collect(out).utility.rounds == [0, 2, 4, 6, 8, 10, 12]


def test_a_damaged_checkpoint_is_skipped_and_without_any_the_run_is_refused(run_file):
    config, out = cut_off(run_file, NO_TARGET, at=9)
    paths = sorted((out / "checkpoints").glob("round-*.safetensors"))
    assert [path.stem[-2:] for path in paths] == ["00", "01", "04", "08"]
    for path in paths:
        held = bytearray(path.read_bytes())
        held[-1] ^= 1
        path.write_bytes(held)
    before = everything(out)
    with pytest.raises(ValueError, match=r"no checkpoint that is whole.*9 releases.*new run"):
        resume_run(config, out)
    assert everything(out) == before


def test_files_whose_names_are_of_no_round_are_left_alone(run_file):
    """Two that a file manager may leave."""
    config, out = cut_off(run_file, NO_TARGET)
    strange = [
        out / folder / f"round-{name}.safetensors"
        for folder in ("checkpoints", "transcript")
        for name in ("zz", "000002 (copy)")
    ]
    for path in strange:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"no tensors")
    resume_run(config, out)
    assert is_finished(out)
    assert all(path.is_file() for path in strange)


@pytest.mark.parametrize("name", ["checkpoints", "transcript"])
def test_no_file_is_moved_behind_a_link(run_file, name):
    config, out = cut_off(run_file, NO_TARGET)
    elsewhere = out.with_name("elsewhere")
    (out / name).mkdir(exist_ok=True)
    (out / name).rename(elsewhere)
    (elsewhere / "round-000900.safetensors").write_bytes(b"no tensors")
    (out / name).symlink_to(elsewhere)
    before = everything(elsewhere)
    with pytest.raises(InputError, match=f"{name} is a link that leads out of"):
        resume_run(config, out)
    assert everything(elsewhere) == before


def test_checkpoints_of_another_run_are_not_continued(run_file):
    config, out = cut_off(run_file, NO_TARGET)
    other = load_run_file(run_file, [NO_TARGET, "training.seed=5"])
    train_run(other, out.with_name("other"))
    take_checkpoints_of(out.with_name("other"), out)
    with pytest.raises(ValueError, match="of round 12, but its ledger ends at round 6"):
        resume_run(config, out)
    for path in (out / "checkpoints").glob("*"):
        if path.stem > "round-000006":
            path.unlink()
    with pytest.raises(ValueError, match="no checkpoint that is whole"):
        resume_run(config, out)


def take_checkpoints_of(other: Path, out: Path) -> None:
    for path in (out / "checkpoints").glob("*"):
        path.unlink()
    for path in (other / "checkpoints").glob("*"):
        (out / "checkpoints" / path.name).write_bytes(path.read_bytes())


def test_checkpoints_of_another_run_of_the_same_run_file_are_not_continued(run_file):
    config, out = cut_off(run_file, NO_TARGET)
    with pytest.raises(CutOffError):
        train_run(config, out.with_name("other"), progress=cut_off_at(4))
    take_checkpoints_of(out.with_name("other"), out)
    said: list[str] = []
    with pytest.raises(ValueError, match="no checkpoint that is whole"):
        resume_run(config, out, notice=said.append)
    assert said[0] == (
        f"Skipped: {out}/checkpoints/round-000004.safetensors belongs to another run."
    )


def test_a_run_that_was_resumed_goes_on_from_the_checkpoints_of_its_resumption(run_file):
    config, out = cut_off(run_file, NO_TARGET)
    with pytest.raises(CutOffError):
        resume_run(config, out, progress=cut_off_at(9))
    resume_run(config, out)
    assert read_ledger(out / "ledger.jsonl").resumed_after == (4, 8)


def test_a_checkpoint_of_a_round_that_the_ledger_lacks_is_refused(run_file):
    config, out = cut_off(run_file, NO_TARGET, at=9)
    ledger = out / "ledger.jsonl"
    ledger.write_text("".join(ledger.read_text().splitlines(keepends=True)[:6]))
    with pytest.raises(ValueError, match="of round 8, but its ledger ends at round 4"):
        resume_run(config, out)


def test_a_finished_run_is_left_as_it_is(run_file, capsys):
    out = run_file.parent / "out"
    config = load_run_file(run_file)
    found = train_run(config, out)
    before = everything(out)
    assert cli.main(["train", str(run_file), "--out", str(out), "--resume"]) == 0
    assert "is finished; nothing was changed." in capsys.readouterr().out
    assert resume_run(config, out) == found
    assert everything(out) == before


def test_another_run_file_is_refused_by_the_key_that_differs(run_file, capsys):
    cut_off(run_file)
    more = ["--set", "training.rounds=20", "--resume"]
    out = run_file.parent / "out"
    assert cli.main(["train", str(run_file), "--out", str(out), *more]) == 2
    assert "[training] rounds=20 differs from 12 in" in capsys.readouterr().err


def test_without_resume_an_unfinished_run_says_how_to_continue_it(run_file, capsys):
    _, out = cut_off(run_file)
    assert cli.main(["train", str(run_file), "--out", str(out)]) == 2
    assert "not finished; add --resume to continue it" in capsys.readouterr().err
    collect(out)
    assert cli.main(["report", str(out)]) == 0
    assert not is_finished(out)


def test_where_no_run_is_nothing_is_resumed(run_file, capsys):
    out = run_file.parent / "none"
    assert cli.main(["train", str(run_file), "--out", str(out), "--resume"]) == 2
    assert "no run to continue; leave --resume out" in capsys.readouterr().err
    assert not out.exists()


def test_a_run_that_died_before_its_ledger_begins(run_file):
    config, out = load_run_file(run_file), run_file.parent / "out"
    out.mkdir()
    (out / "run.toml").write_text(config.to_toml())
    resume_run(config, out)
    assert read_ledger(out / "ledger.jsonl").numbers == list(range(13))


@pytest.mark.parametrize("name", ["checkpoints", "transcript", "metrics.jsonl", "stopped.json"])
def test_a_run_whose_ledger_is_missing_does_not_begin_again(run_file, name):
    config, out = load_run_file(run_file), run_file.parent / "out"
    out.mkdir()
    (out / "run.toml").write_text(config.to_toml())
    path = out / name if "." in name else out / name / "round-000001.safetensors"
    path.parent.mkdir(exist_ok=True)
    path.write_text("{}")
    before = everything(out)
    with pytest.raises(ValueError, match=rf"has {name} but no ledger.jsonl.*unknown.*new run in"):
        resume_run(config, out)
    assert everything(out) == before


def test_without_its_ledger_a_finished_run_is_not_said_to_be_one(run_file, capsys):
    out = run_file.parent / "out"
    resume_run(cut_off(run_file)[0], out)
    (out / "ledger.jsonl").unlink()
    assert cli.main(["train", str(run_file), "--out", str(out), "--resume"]) == 2
    assert "the ledger is missing" in " ".join(capsys.readouterr().err.split())


def test_a_run_that_died_in_its_start_begins_anew(run_file):
    config, out = cut_off(run_file, at=0)
    for path in (out / "checkpoints").glob("*"):
        path.unlink()
    said: list[str] = []
    resume_run(config, out, notice=said.append)
    assert said == [
        f"The run in {out} begins anew: no round was released. Its start was released before; "
        "released again, it counts twice."
    ]
    spent = read_ledger(out / "ledger.jsonl")
    assert (spent.numbers, spent.resumed_after) == ([0, *range(13)], (-1,))
    assert collect(out).ledger.epsilon["eavesdropper"] <= 4


def test_a_torn_line_is_a_release_that_a_target_pays_for(run_file):
    config, out = cut_off(run_file)
    with (out / "ledger.jsonl").open("a") as file:
        file.write('{"round": 7, "rel')
    stopped = resume_run(config, out).stopped
    assert stopped is not None
    assert stopped.round == 9
    assert len(read_ledger(out / "ledger.jsonl").numbers) == 1 + 12
    assert collect(out).ledger.epsilon["eavesdropper"] <= 4


def edit_header(out: Path, change: Callable[[dict[str, Any]], object]) -> None:
    edit_ledger(out / "ledger.jsonl", lambda lines: change(lines[0]))


@pytest.mark.parametrize("name", ["noise_multiplier", "sampling_rate"])
def test_a_run_is_not_continued_with_another_noise_or_rate(run_file, name):
    config, out = cut_off(run_file, NO_TARGET)
    edit_header(out, lambda header: header.update({name: 1.001 * header[name]}))
    before = everything(out)
    with pytest.raises(ValueError, match=f"begun with {name}=.*the data that it was begun with"):
        resume_run(config, out)
    assert everything(out) == before


def test_two_processes_do_not_train_into_one_folder(run_file, capsys):
    config, out = cut_off(run_file)
    other = Ledger.reopen(out / "ledger.jsonl")
    before = everything(out)
    with pytest.raises(LedgerInUse):
        resume_run(config, out)
    assert cli.main(["train", str(run_file), "--out", str(out), "--resume"]) == 2
    assert "another process writes to" in capsys.readouterr().err
    assert everything(out) == before
    other.close()
    resume_run(config, out)


def test_the_root_of_the_noise_is_in_no_file(run_file, monkeypatch):
    root = 0x0123456789ABCDEF_FEDCBA9876543210
    monkeypatch.setattr("secrets.randbits", lambda _: root)
    config, out = cut_off(run_file, NO_TARGET)
    resume_run(config, out)
    low, high = root & (2**64 - 1), root >> 64
    hidden = [str(root).encode(), f"{root:x}".encode()]
    hidden += [n.to_bytes(8, order) for n in (low, high) for order in ("little", "big")]
    hidden += [str(n).encode() for n in (low, high)]
    for path in (path for path in out.rglob("*") if path.is_file()):
        assert not [part for part in hidden if part in path.read_bytes()], path


def test_noise_that_is_released_again_is_fresh(run_file):
    config, out = cut_off(run_file, NO_TARGET, at=8)
    (out / "checkpoints/round-000008.safetensors").unlink()
    resume_run(config, out)
    first = Transcript.load(out / "transcript/discarded-1")
    again = Transcript.load(out / "transcript")
    for one, other in zip(first.of(round=6), again.of(round=6), strict=True):
        assert not torch.equal(one.rows, other.rows)
