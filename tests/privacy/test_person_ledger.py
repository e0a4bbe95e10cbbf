"""A person's ledger: what is written is read, what was changed is refused, and runs compose."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from overhear.privacy.accounting.accountant import composed_epsilon
from overhear.privacy.accounting.request import Adjacency
from overhear.privacy.errors import InputError
from overhear.privacy.participation import Event, Reach, group, poisson
from overhear.privacy.releases import person_ledger
from overhear.privacy.releases.chained_file import Chain, LedgerInUse
from overhear.privacy.releases.person_ledger import (
    PersonLedger,
    PersonRun,
    PersonView,
    compose,
    read_person_ledger,
)

FIRST = {Event(2.0, poisson(0.02)): 1000}
SECOND = {Event(1.0, poisson(0.01)): 1000}
EVERY = "eavesdropper"
OTHER = {
    "noise_multiplier": 1.0, "multiples": [0.0, 1.0], "probabilities": [0.9, 0.1], "reach": "place",
    "coin": 1.0, "otherwise": None,
}  # fmt: skip


def run(name: str, events: dict[Event, int], **changed: Any) -> PersonRun:
    of: dict[str, Any] = {
        "run": name, "label": f"run {name}", "whose": "one person with 1 record at agent 0",
        "adjacency": Adjacency.ADD_OR_REMOVE_ONE, "delta": 1e-5, "target": EVERY,
        "counted": "planned", "views": {EVERY: PersonView(status="proven", events=events)},
    }  # fmt: skip
    return PersonRun(**(of | changed))


@pytest.fixture
def ledger(tmp_path):
    path = tmp_path / "person.jsonl"
    PersonLedger.add(path, run("a", FIRST))
    PersonLedger.add(path, run("b", SECOND))
    return path


def test_two_runs_lose_less_than_their_sum_and_what_one_run_of_both_would(ledger):
    runs = read_person_ledger(ledger).runs
    assert [one.run for one in runs] == ["a", "b"]
    found = compose(runs, EVERY)
    assert found == pytest.approx(2.2929, abs=5e-5)
    assert found == composed_epsilon(FIRST | SECOND, delta=1e-5)
    alone = [compose([one], EVERY) for one in runs]
    assert max(alone) < found < sum(alone)
    assert compose(runs, EVERY, delta=1e-6) > found


def test_every_kind_of_round_is_read_as_it_was_written(tmp_path):
    events = {
        Event(1.7, group(3, 0.013)): 7,
        Event(0.9, poisson(0.1), Reach.BALL): 2,
        Event(2.2, poisson(1.0), Reach.SUM, 0.25): 3,
        Event(2.0, poisson(0.1), Reach.SUM, 0.6, Event(1.0, poisson(0.08), Reach.PLACE)): 4,
    }
    path = tmp_path / "person.jsonl"
    PersonLedger.add(path, run("a", events, adjacency=Adjacency.REPLACE_ONE))
    (found,) = read_person_ledger(path).runs
    assert found == run("a", events, adjacency=Adjacency.REPLACE_ONE)


def test_a_view_without_a_bound_makes_the_total_infinite():
    leaks = run("c", {}, views={EVERY: PersonView(status="no protection", events={})})
    assert compose([run("a", FIRST), leaks], EVERY) == math.inf
    assert compose([run("a", {})], EVERY) == 0.0


@pytest.mark.parametrize(
    ("runs", "said"),
    [
        ([], "no run is given"),
        ([run("a", FIRST), run("a", FIRST)], "is given twice"),
        ([run("a", FIRST), run("b", FIRST, adjacency=Adjacency.ZERO_OUT)], "adjacency differs"),
        ([run("a", FIRST), run("b", FIRST, views={"server": run("x", FIRST).views[EVERY]})],
         "'eavesdropper' is not accounted for in run b, only server"),
    ],
)  # fmt: skip
def test_runs_that_do_not_add_up_are_refused(runs, said):
    with pytest.raises(InputError, match=said):
        compose(runs, EVERY)
    with pytest.raises(InputError, match="must lie strictly between 0 and 1"):
        compose([run("a", FIRST)], EVERY, delta=0.0)


def test_a_run_is_written_once(ledger):
    before = ledger.read_bytes()
    with pytest.raises(InputError, match=r"names the run of run a in line 2 .* counted once"):
        PersonLedger.add(ledger, run("a", SECOND))
    assert ledger.read_bytes() == before


def test_no_byte_of_a_ledger_can_be_changed_and_no_line_moved(ledger):
    whole = ledger.read_bytes()
    for at in range(0, len(whole), 97):
        changed = bytearray(whole)
        changed[at] ^= 1
        ledger.write_bytes(bytes(changed))
        with pytest.raises(InputError):
            read_person_ledger(ledger)
    lines = whole.splitlines(keepends=True)
    for other in (
        [lines[0], lines[2], lines[1]],
        [lines[0], lines[2]],
        lines[1:],
        [*lines, lines[2]],
        [*lines, b"\n"],
        [whole[:-1]],
        [whole[:-30]],
    ):
        ledger.write_bytes(b"".join(other))
        with pytest.raises(InputError):
            read_person_ledger(ledger)


def written(path: Path, entries: list[dict[str, Any]]) -> Path:
    """A ledger of any entries, with digests that fit."""
    chain, text = Chain(), b""
    for entry in [{"schema": "person-1"}, *entries]:
        line = chain.line(entry, before="", most=1 << 24)
        chain.add(line)
        text += line
    path.write_bytes(text)
    return path


def entry_with(**changed: Any) -> dict[str, Any]:
    return run("a", FIRST).entry() | changed


def event_with(**changed: Any) -> dict[str, Any]:
    event = entry_with()["views"][EVERY]["events"][0] | changed
    return {"views": {EVERY: {"status": "proven", "events": [event]}}}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"more": 1}, "must be an object with the keys"),
        ({"run": ""}, "run=\"\" must be words"),
        ({"delta": 1.5}, "delta=1.5"),
        ({"delta": "x"}, "delta="),
        ({"counted": "guessed"}, "counted=\"guessed\" must be one of"),
        ({"adjacency": "none"}, "adjacency='none'"),
        ({"adjacency": 3}, "adjacency=3 must be words"),
        ({"views": {}}, "views must be an object"),
        ({"views": []}, "views must be an object"),
        ({"views": {EVERY: {"status": "sure", "events": []}}}, "status=\"sure\""),
        ({"views": {EVERY: {"status": "proven", "events": {}}}}, "events must be a list"),
        (event_with(noise_multiplier=-1.0), "noise_multiplier=-1.0"),
        (event_with(noise_multiplier="2"), "noise_multiplier"),
        (event_with(count=0), "rounds=0 must lie in"),
        (event_with(count=10**9), "rounds=1000000000 must lie in"),
        (event_with(count=1.5), "rounds=1.5 must be an integer"),
        (event_with(reach="far"), "reach='far'"),
        (event_with(coin=2.0), "coin=2.0"),
        (event_with(otherwise={}), "what takes place otherwise must be an object"),
        (event_with(otherwise=[]), "what takes place otherwise must be an object"),
        (event_with(otherwise=OTHER | {"noise_multiplier": -1.0}), "noise_multiplier=-1.0"),
        (event_with(otherwise=OTHER | {"otherwise": OTHER}), "has no lottery of its own"),
        (event_with(probabilities=[0.5, 0.1]), "must sum to 1"),
        (event_with(multiples=[1.0, 0.0]), "must rise"),
        (event_with(multiples=[0.0, -1.0]), "must be at least 0"),
        (event_with(probabilities=[0.98]), "give one for each"),
        (event_with(probabilities="ab"), "must be a list of numbers"),
    ],
    ids=str,
)  # fmt: skip
def test_a_line_that_cannot_be_read_is_a_run_without_a_bound(tmp_path, changed, said):
    path = written(tmp_path / "person.jsonl", [entry_with(**changed), entry_with(run="b")])
    unread, readable = read_person_ledger(path).runs
    assert said in unread.unread
    assert compose([readable], EVERY) < compose([unread, readable], EVERY) == math.inf


def test_lines_of_another_schema_count_without_a_bound_and_no_run_is_added_to_them(tmp_path):
    path, chain = tmp_path / "person.jsonl", Chain()
    for line in ({"schema": "person-9"}, entry_with()):
        text = chain.line(line, before="", most=1 << 20)
        chain.add(text)
        path.write_bytes((path.read_bytes() if path.exists() else b"") + text)
    known = read_person_ledger(path)
    assert compose(known.runs, EVERY) == math.inf
    assert "schema person-9, and this version reads person-1" in known.runs[0].unread
    with pytest.raises(InputError, match="schema person-9, which another version"):
        PersonLedger.add(path, run("b", SECOND))


def test_a_lottery_whose_other_side_was_left_out_counts_without_a_bound(tmp_path):
    """Lines of 23 November 2026 lack it: .623 was read where 1.684 is true."""
    for coin, bounded in ((1.0, True), (0.5, False)):
        line = entry_with()
        for event in line["views"][EVERY]["events"]:
            del event["otherwise"]
            event["coin"] = coin
        path = written(tmp_path / f"{coin}.jsonl", [line])
        assert math.isfinite(compose(read_person_ledger(path).runs, EVERY)) is bounded


def test_a_run_that_stands_twice_is_refused(tmp_path):
    path = written(tmp_path / "person.jsonl", [entry_with(), entry_with(label="again")])
    with pytest.raises(InputError, match="line 3 is no entry: it is the run of line 2 again"):
        read_person_ledger(path)


@pytest.mark.parametrize("text", ["", "{}\n", "not json\n", '{"schema": "person-2"}\n', "\x00"])
def test_what_is_no_ledger_is_refused(tmp_path, text):
    path = tmp_path / "person.jsonl"
    path.write_text(text)
    with pytest.raises(InputError):
        read_person_ledger(path)
    chain = Chain()
    path.write_bytes(chain.line({"schema": 3}, before="", most=1000))
    with pytest.raises(InputError, match="is no person's ledger"):
        read_person_ledger(path)
    with pytest.raises(FileNotFoundError):
        read_person_ledger(tmp_path / "nothing.jsonl")


def test_an_entry_is_json_without_records(ledger):
    line = json.loads(ledger.read_text().splitlines()[1])
    assert line["views"][EVERY]["events"][0] == {
        "noise_multiplier": 2.0,
        "multiples": [0.0, 1.0],
        "probabilities": [0.98, 0.02],
        "reach": "sum",
        "coin": 1.0,
        "otherwise": None,
        "count": 1000,
    }
    assert replace(run("a", FIRST), label="other").entry()["label"] == "other"


def test_a_run_that_two_processes_add_at_once_is_there_once(ledger, monkeypatch):
    """What the ledger names is read where no other process can add a line any more."""
    read = person_ledger.read_person_ledger

    def and_meanwhile(path: Path) -> PersonLedger:
        monkeypatch.setattr(person_ledger, "read_person_ledger", read)
        known = read(path)
        with pytest.raises(LedgerInUse, match=r"another process writes to .*person\.jsonl"):
            PersonLedger.add(path, run("c", FIRST))
        return known

    monkeypatch.setattr(person_ledger, "read_person_ledger", and_meanwhile)
    PersonLedger.add(ledger, run("c", FIRST))
    assert [one.run for one in read(ledger).runs] == ["a", "b", "c"]
