"""A person over several runs, from run folders to the command line."""

import json
from pathlib import Path

import pytest

from overhear.commands import cli
from overhear.privacy.errors import InputError
from overhear.privacy.formats.codec import schema_of
from overhear.privacy.releases.person_ledger import read_person_ledger
from overhear.reports.document.collect import collect
from overhear.reports.schema import PersonTotal
from overhear.reports.total.total import (
    add_runs,
    person_sentences,
    person_total,
    run_of_folder,
    total_of_runs,
)
from overhear.runs.folder.run import train_run
from overhear.runs.run_file.run_file import load_run_file
from tests.reports.test_schema import closed, found
from tests.runs.folder.interrupted import CutOffError, cut_off_at
from tests.small_run import run_text

RUN = run_text(
    "dp-dpsgd", agents=3, privacy={"noise_multiplier": 2, "delta": 1e-05},
    training={"rounds": 3, "sampling_rate": 0.1},
)  # fmt: skip


def trained(place: Path, *changes: str, stop: int | None = None) -> Path:
    (place / "run.toml").write_text(RUN, encoding="utf-8")
    out = place / f"run{len(list(place.iterdir()))}"
    config = load_run_file(place / "run.toml", list(changes))
    if stop is None:
        train_run(config, out)
    else:
        with pytest.raises(CutOffError):
            train_run(config, out, progress=cut_off_at(stop))
    return out


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    place = tmp_path_factory.mktemp("runs")
    second = ("privacy.noise_multiplier=1.5", "privacy.adversary=final-models")
    return [trained(place), trained(place, *second), trained(place, "training.rounds=9", stop=4)]


def test_a_ledger_says_of_runs_what_their_folders_together_say(runs, tmp_path):
    ledger = tmp_path / "person.jsonl"
    add_runs(ledger, runs)
    for name in ("eavesdropper", "neighbour", "final-models"):
        total = total_of_runs(runs)
        row = next(one for one in total.adversaries if one.name == name)
        of_person = person_total([ledger], adversary=name)
        assert of_person.epsilon == pytest.approx(row.epsilon, rel=1e-9)
        assert [one.alone for one in of_person.runs] == pytest.approx(row.alone, rel=1e-9)
    assert {one.counted for one in of_person.runs} == {"planned"}


def test_a_run_that_stopped_early_counts_as_planned(runs):
    stopped = run_of_folder(runs[2])
    assert sum(stopped.views["eavesdropper"].events.values()) == 9
    assert stopped.counted == "planned"


def test_a_person_with_records_at_two_agents_is_what_the_line_is_about(runs, tmp_path):
    held = trained(tmp_path, "privacy.holders=[0, 2]", "privacy.records_held=[2, 1]")
    ledger = tmp_path / "person.jsonl"
    add_runs(ledger, [held, runs[0]])
    one, other = read_person_ledger(ledger).runs
    assert one.whose == "one person with 2 records at agent 0 and 1 record at agent 2"
    assert other.whose == "one person with 1 record at the agent at highest risk"
    total = person_total([ledger])
    alone = collect(held).ledger.epsilon["eavesdropper"]
    assert total.runs[0].alone == pytest.approx(alone, rel=1e-9)
    assert total.epsilon > alone
    with pytest.raises(InputError, match="the runs are about different persons"):
        total_of_runs([held, runs[0]])


@pytest.mark.parametrize(
    ("changes", "whose"),
    [
        (["training.largest_batch=54"], "one person with 1 record at the agent at highest risk"),
        (["training.largest_batch=54", "privacy.adjacency=replace-one", "privacy.victim=2"],
         "one person with 1 record at agent 2"),
        (["algorithm.name=dp-cga", "algorithm.clip=batch", "privacy.unit=agent"],
         "all data of the agent at highest risk"),
        (["participation.agents_per_round=2", "privacy.holders=[0, 1]"],
         "one person with 1 record at agent 0 and 1 record at agent 1"),
    ],
    ids=str,
)  # fmt: skip
def test_a_line_costs_what_the_run_does_however_records_take_part(changes, whose, tmp_path):
    ledger, folder = tmp_path / "person.jsonl", trained(tmp_path, *changes)
    add_runs(ledger, [folder])
    total = person_total([ledger])
    assert total.epsilon == pytest.approx(collect(folder).ledger.epsilon["eavesdropper"], rel=1e-9)
    assert [one.whose for one in total.runs] == [whose]


def test_one_adversary_holds_all_views(runs, tmp_path):
    ledger = tmp_path / "person.jsonl"
    add_runs(ledger, runs[:2])
    with pytest.raises(InputError, match="give the one that sees both with --adversary"):
        person_total([ledger])
    assert person_total([ledger], adversary="eavesdropper").status == "proven"
    assert person_total([ledger], adversary="single-message").status == "heuristic"
    with pytest.raises(InputError, match="'server' is not accounted for"):
        person_total([ledger], adversary="server")


def test_a_run_is_added_and_counted_once(runs, tmp_path):
    ledger, copy = tmp_path / "person.jsonl", tmp_path / "copy.jsonl"
    with pytest.raises(InputError, match="hold the same run, and a run is counted once"):
        add_runs(ledger, [runs[0], runs[0]])
    assert not ledger.exists()
    add_runs(ledger, [runs[0]])
    with pytest.raises(InputError, match="hold the same run, and a run is counted once"):
        add_runs(ledger, [runs[1], runs[0]])
    assert len(read_person_ledger(ledger).runs) == 1
    copy.write_bytes(ledger.read_bytes())
    both = person_total([ledger, copy])
    assert both.epsilon == person_total([ledger]).epsilon
    assert any(
        "stands in several ledgers, and is counted once" in s for s in person_sentences(both)
    )


def test_a_run_whose_noise_can_be_repeated_is_refused(tmp_path):
    seeded = trained(tmp_path, "training.evaluation_noise_seed=3")
    with pytest.raises(InputError, match="evaluation_noise_seed=3, so its views are no releases"):
        run_of_folder(seeded)


def test_the_command_adds_and_composes(runs, tmp_path, capsys):
    ledger = str(tmp_path / "person.jsonl")
    add = ["--add", str(runs[0]), "--add", str(runs[2])]
    assert cli.main(["person", ledger, *add, "--json"]) == 0
    total = json.loads(capsys.readouterr().out)
    assert found(total, closed(schema_of(PersonTotal, ""))) == []
    assert PersonTotal.model_validate(total).epsilon == person_total([Path(ledger)]).epsilon
    assert cli.main(["person", ledger]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "Over 2 runs epsilon of the person against eavesdropper is at most" in said
    for words in ("were drawn independently", "fixed before the first run", "holds the views"):
        assert words in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["gone.jsonl"], "no ledger of a person at"),
        (["gone.jsonl", "--add", "nowhere"], "nowhere"),
        (["one.jsonl", "two.jsonl", "--add", "nowhere"], "--add appends to one ledger"),
        (["gone.jsonl", "--trust-code"], "--trust-code is for the runs of --add"),
        (["."], "is no regular file"),
    ],
    ids=str,
)
def test_bad_input_ends_with_a_sentence_and_code_2(arguments, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["person", *arguments]) == 2
    assert said in " ".join(capsys.readouterr().err.split())
