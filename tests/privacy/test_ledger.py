"""The ledger can over-count, never under-count."""

import errno
import os
import stat
from pathlib import Path

import pytest

from overhear.privacy import Ledger, read_ledger
from overhear.privacy.errors import InputError
from overhear.privacy.releases.chained_file import LedgerInUse

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
    ledger = Ledger.reopen(path)
    ledger.append(3, [])
    ledger.close()
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


def resumed(path, after):
    ledger = Ledger.reopen(path)
    ledger.resume(after)
    return ledger


def test_a_resumed_ledger_keeps_every_byte_and_says_where_it_goes_on(tmp_path):
    path = written(tmp_path / "ledger.jsonl")
    before = path.read_bytes()
    ledger = resumed(path, 2)
    ledger.append(3, [])
    ledger.close()
    assert path.read_bytes().startswith(before)
    spent = read_ledger(path)
    assert (spent.numbers, spent.resumed_after, spent.torn) == ([1, 2, 3, 3], (2,), False)


def test_a_line_that_was_cut_off_anywhere_counts_as_the_round_it_announced(tmp_path):
    whole = written(tmp_path / "ledger.jsonl").read_bytes()
    for cut in range(1, len(whole.splitlines(keepends=True)[-1])):
        path = tmp_path / f"cut-{cut}.jsonl"
        path.write_bytes(whole[:-cut])
        assert read_ledger(path).torn_round == 3
        ledger = resumed(path, 1)
        ledger.append(2, [])
        ledger.close()
        spent = read_ledger(path)
        assert (spent.numbers, spent.resumed_after, spent.torn) == ([1, 2, 3, 2], (1,), False)


def test_lines_that_were_cut_off_in_several_sessions_count_each(tmp_path):
    path = written(tmp_path / "ledger.jsonl", rounds=1)
    for _ in range(3):
        with path.open("a") as file:
            file.write('{"round": 2, "rel')
        resumed(path, 1).close()
    spent = read_ledger(path)
    assert (spent.numbers, spent.rounds, spent.resumed_after) == ([1, 2, 2, 2], 4, (1, 1, 1))


def test_an_entry_of_where_to_go_on_that_was_cut_off_announces_nothing(tmp_path):
    whole, mark = (
        written(tmp_path / "ledger.jsonl", rounds=2).read_bytes(),
        b' {"resumed_after": 12345, "chain": "0123456789"}',
    )
    for length in range(1, len(mark)):
        path = tmp_path / f"length-{length}.jsonl"
        for rest in (mark[:length], mark[:length] + b"\n" + mark[:length]):
            path.write_bytes(whole + rest)
            assert (read_ledger(path).numbers, read_ledger(path).torn) == ([1, 2], False)
            resumed(path, 2).close()
            assert (read_ledger(path).numbers, read_ledger(path).resumed_after) == ([1, 2], (2,))


def test_zeros_in_the_place_of_a_line_count_as_the_round_that_was_next(tmp_path):
    path = written(tmp_path / "ledger.jsonl", rounds=2)
    path.write_bytes(path.read_bytes() + b"\0" * 40)
    resumed(path, 2).close()
    assert read_ledger(path).numbers == [1, 2, 3]


def test_damage_that_no_interruption_leaves_is_refused(tmp_path):
    path = written(tmp_path / "ledger.jsonl", rounds=2)
    whole = path.read_bytes()
    for damage in (b'{"rou\n{"rou', b'{"round": true}\n', b'{"rounds": 7}\n', b"\n\n", b"\0\n\0"):
        path.write_bytes(whole + damage)
        with pytest.raises(ValueError, match="damaged"):
            read_ledger(path)
    path.write_bytes(whole + b'{"rou\n{"round": 3, "rel')
    with pytest.raises(ValueError, match="line 4 is no entry"):
        read_ledger(path)


def test_a_second_process_cannot_append(tmp_path):
    first = Ledger(tmp_path / "ledger.jsonl", HEADER)
    with pytest.raises(LedgerInUse, match=r"another process writes to .*ledger\.jsonl"):
        Ledger.reopen(tmp_path / "ledger.jsonl")
    first.close()
    Ledger.reopen(tmp_path / "ledger.jsonl").close()


def test_every_line_is_synced_and_the_name_of_the_file_too(tmp_path, monkeypatch):
    events = []
    write, sync, link = os.write, os.fsync, os.link

    def record(name, call):
        def recorded(*arguments):
            kind = "folder" if name == "sync" and is_folder(arguments[0]) else ""
            events.append(f"{name} {kind}".strip())
            return call(*arguments)

        return recorded

    monkeypatch.setattr(os, "write", record("write", write))
    monkeypatch.setattr(os, "fsync", record("sync", sync))
    monkeypatch.setattr(os, "link", record("link", link))
    ledger = Ledger(tmp_path / "ledger.jsonl", HEADER)
    assert events == ["write", "sync", "link", "sync folder"]
    events.clear()
    ledger.append(0, [])
    assert events == ["write", "sync"]
    ledger.close()


def is_folder(file):
    return stat.S_ISDIR(os.fstat(file).st_mode)


def test_after_a_write_that_failed_nothing_more_is_appended(tmp_path, monkeypatch):
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(path, HEADER)
    whole = os.write

    def full(file, data):
        monkeypatch.setattr(os, "write", lambda *_: raise_full())
        return whole(file, data[:5])

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space left") as caught:
        ledger.append(1, [])
    assert caught.value.filename == str(path)
    monkeypatch.setattr(os, "write", whole)
    with pytest.raises(OSError, match="could not be written"):
        ledger.append(2, [])
    ledger.close()
    assert read_ledger(path).rounds == 1
    resumed(path, 0).close()
    assert read_ledger(path).numbers == [0]


def raise_full():
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_file_system_without_links_keeps_a_ledger_too(tmp_path, monkeypatch):
    def no_links(*_):
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    written(tmp_path / "ledger.jsonl")
    with pytest.raises(FileExistsError, match="never overwritten"):
        Ledger(tmp_path / "ledger.jsonl", HEADER)
    assert [path.name for path in tmp_path.iterdir()] == ["ledger.jsonl"]


def test_what_was_tested_counts_once_for_each_time_that_the_run_went_on(tmp_path):
    ledger = Ledger(tmp_path / "ledger.jsonl", HEADER)
    ledger.append(0, [], noise_tested={"rounds": 0, "numbers": 0})
    ledger.append(1, [], noise_tested={"rounds": 1, "numbers": 50})
    ledger.close()
    ledger = resumed(tmp_path / "ledger.jsonl", 0)
    ledger.append(1, [], noise_tested={"rounds": 0, "numbers": 0})
    ledger.conclude({"rounds": 1, "numbers": 70})
    ledger.close()
    spent = read_ledger(tmp_path / "ledger.jsonl")
    assert (spent.tested_rounds, spent.tested_numbers) == (2, 120)
    assert spent.numbers == [0, 1, 1]


def test_a_last_line_that_was_cut_off_announces_nothing(tmp_path):
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(path, HEADER)
    ledger.append(1, [])
    before = path.stat().st_size
    ledger.conclude({"rounds": 1, "numbers": 70})
    ledger.close()
    whole = path.read_bytes()
    for length in range(before + 1, len(whole)):
        path.write_bytes(whole[:length])
        spent = read_ledger(path)
        assert (spent.rounds, spent.torn, spent.tested_rounds) == (1, False, 0)
        resumed(path, 1).close()
        assert read_ledger(path).resumed_after == (1,)


@pytest.mark.parametrize(
    "said", [{}, {"rounds": 1}, {"rounds": 1, "numbers": -1}, {"rounds": True, "numbers": 0}, 3]
)
def test_what_does_not_say_how_much_was_tested_is_not_written(said, tmp_path):
    ledger = Ledger(tmp_path / "ledger.jsonl", HEADER)
    with pytest.raises(ValueError, match="noise_tested"):
        ledger.append(1, [], noise_tested=said)
    ledger.close()
    assert read_ledger(tmp_path / "ledger.jsonl").rounds == 0


def test_less_that_was_tested_than_before_is_refused(tmp_path):
    ledger = Ledger(tmp_path / "ledger.jsonl", HEADER)
    ledger.append(1, [], noise_tested={"rounds": 2, "numbers": 5})
    ledger.append(2, [], noise_tested={"rounds": 1, "numbers": 5})
    ledger.close()
    with pytest.raises(ValueError, match="less noise was tested"):
        read_ledger(tmp_path / "ledger.jsonl")


@pytest.mark.parametrize("put", [os.mkfifo, lambda path: path.symlink_to("/dev/zero"), Path.mkdir])
def test_what_is_no_file_is_neither_read_nor_gone_on_with(put, tmp_path):
    put(tmp_path / "ledger.jsonl")
    for taken in (read_ledger, Ledger.reopen):
        with pytest.raises(InputError, match="is no regular file"):
            taken(tmp_path / "ledger.jsonl")
