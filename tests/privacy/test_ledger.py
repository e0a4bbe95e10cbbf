"""The ledger can over-count, never under-count."""

import json

import pytest

from overhear.privacy import Ledger, read_ledger

HEADER = {"noise_multiplier": 2.5, "clip_norm": 1.0}


def written(path, rounds=3):
    ledger = Ledger(path, HEADER)
    for number in range(1, rounds + 1):
        ledger.append(number, [{"kind": "cross-gradient"}])
    ledger.close()
    return path


def test_what_is_appended_is_read_back(tmp_path):
    spent = read_ledger(written(tmp_path / "ledger.jsonl"))
    assert spent.header["noise_multiplier"] == 2.5
    assert (spent.rounds, spent.torn) == (3, False)
    assert [entry["round"] for entry in spent.entries] == [1, 2, 3]


def test_an_entry_is_on_the_disk_before_append_returns(tmp_path):
    ledger = Ledger(tmp_path / "ledger.jsonl", HEADER)
    ledger.append(1, [])
    assert read_ledger(tmp_path / "ledger.jsonl").rounds == 1
    ledger.close()


@pytest.mark.parametrize("cut", [1, 5, 20])
def test_a_torn_last_line_counts_as_spent(tmp_path, cut):
    path = written(tmp_path / "ledger.jsonl")
    path.write_bytes(path.read_bytes()[:-cut])
    spent = read_ledger(path)
    assert spent.torn
    assert spent.rounds == 3


def test_a_replayed_round_is_a_new_release(tmp_path):
    path = written(tmp_path / "ledger.jsonl")
    with path.open("a") as file:
        file.write(json.dumps({"round": 3, "releases": []}) + "\n")
    assert read_ledger(path).rounds == 4


def test_a_ledger_is_never_overwritten(tmp_path):
    written(tmp_path / "ledger.jsonl")
    with pytest.raises(FileExistsError, match="never overwritten"):
        Ledger(tmp_path / "ledger.jsonl", HEADER)


def test_a_damaged_line_in_the_middle_is_an_error(tmp_path):
    path = written(tmp_path / "ledger.jsonl")
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], "{", *lines[2:]]) + "\n")
    with pytest.raises(ValueError, match="line 2"):
        read_ledger(path)


def test_a_missing_ledger_says_what_to_do(tmp_path):
    with pytest.raises(FileNotFoundError, match="train"):
        read_ledger(tmp_path / "none.jsonl")
