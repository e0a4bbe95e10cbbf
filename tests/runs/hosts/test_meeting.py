"""What ranks tell each other before they connect, and what they refuse; without a process group."""

import threading

import pytest
from torch.distributed import HashStore, TCPStore

from overhear.privacy.errors import InputError
from overhear.runs.folder import rendezvous as meeting
from overhear.runs.folder.names import CAME, FAILED_FIRST, SECRET
from overhear.runs.folder.place import Place, program_facts
from overhear.runs.folder.rendezvous import (
    CODES,
    Guest,
    LyingStore,
    RankStore,
    connect,
    introduce,
    secret_of_ranks,
    store_of,
)

PROGRAM = {"version of torch": "2.7", "code of overhear": "a0"}


def place(rank: int, size: int = 2) -> Place:
    return Place(rank=rank, size=size, local_rank=0, local_size=1)


@pytest.fixture(autouse=True)
def told(monkeypatch):
    for name, value in {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)


def test_ranks_hear_where_the_others_are_and_what_they_run():
    store, heard = RankStore(HashStore(), b"secret"), dict[int, list[Guest]]()

    def come(rank: int) -> None:
        heard[rank] = introduce(place(rank), store, program=PROGRAM, limit=10)

    threads = [threading.Thread(target=come, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert heard[0] == heard[1]
    assert [guest.program for guest in heard[0]] == [PROGRAM, PROGRAM]


def test_a_rank_that_does_not_come_is_named_first_while_it_is_waited_for(monkeypatch, capfd):
    monkeypatch.setattr(meeting, "_PATIENT", 0.05)
    with pytest.raises(ConnectionError, match=r"rank 1 did not come within 0\.3 s"):
        introduce(place(0), RankStore(HashStore()), program=PROGRAM, limit=0.3)
    assert "rank 0 waits for other ranks, at most 0.3 s" in capfd.readouterr().err


def test_no_rank_waits_for_others_once_one_has_failed():
    store = RankStore(HashStore())
    store.claim(1, 2)
    with pytest.raises(ConnectionError, match="another rank has failed"):
        introduce(place(0), store, program=PROGRAM, limit=60)


def guests(address: str, **program: str) -> list[Guest]:
    return [Guest("a", "127.0.0.1", PROGRAM), Guest("a", address, {**PROGRAM, **program})]


@pytest.mark.parametrize(
    ("address", "program", "words"),
    [
        ("127.0.0.1", {"version of torch": "2.6"}, "rank 1 of 2 has another version of torch than"),
        ("10.0.0.2", {"code of overhear": "b1"}, r"it has another code of overhear .*\(b1, not a0"),
        ("10.0.0.2", {"version of Python": "3.9"}, r"another version of Python .*\(3\.9, not none"),
    ],
)
def test_a_rank_of_another_program_is_refused_before_it_connects(address, program, words):
    with pytest.raises(ValueError, match=words):
        connect(place(1), RankStore(HashStore()), guests(address, **program), secret=b"", limit=60)


@pytest.fixture
def kept():
    return TCPStore("127.0.0.1", 0, None, is_master=True, wait_for_workers=False)


@pytest.mark.parametrize("attempt", ["0", "1"])
def test_a_run_that_was_started_again_meets_at_keys_of_its_own(kept, monkeypatch, attempt):
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", attempt)
    monkeypatch.setenv("MASTER_PORT", str(kept.port))
    RankStore(kept, b"secret").claim(0, 2)
    assert store_of(place(0), secret=b"secret", limit=5).has(FAILED_FIRST) == (attempt == "0")


def test_a_store_that_cannot_be_kept_or_reached_is_told_with_its_address(kept, monkeypatch):
    monkeypatch.setenv("MASTER_PORT", str(kept.port))
    with pytest.raises(ConnectionError, match=f"keep the store .* at 127.0.0.1:{kept.port}"):
        store_of(place(0), secret=b"", limit=1)
    del kept
    monkeypatch.setenv("MASTER_PORT", "9")
    with pytest.raises(ConnectionError, match=r"did not reach the store .* at \S+:9 within 1"):
        store_of(place(1), secret=b"", limit=1)


@pytest.mark.parametrize("port", ["", "port", "0", "65536", "-1"])
def test_a_port_that_is_none_is_refused(monkeypatch, port):
    monkeypatch.setenv("MASTER_PORT", port)
    with pytest.raises(ValueError, match=f"MASTER_PORT='{port}'"):
        store_of(place(0), secret=b"", limit=1)


@pytest.mark.parametrize(
    ("key", "text"),
    [(FAILED_FIRST, "[1, 0]"), (FAILED_FIRST, "[1, 2]"), (f"{CAME}/1", "{}"), (f"{CAME}/1", "")],
)
@pytest.mark.parametrize("secret", [b"", b"another", b"secret"])
def test_what_no_rank_has_written_is_found_at_the_store(key, text, secret):
    kept = HashStore()
    told, heard = RankStore(kept, secret), RankStore(kept, b"secret")
    if secret == b"secret":
        told.set("another key", text)  # what a rank has said elsewhere
        kept.set(f"overhear/{key}", kept.get("overhear/another key"))
    elif secret:
        told.set(key, text)
    else:
        kept.set(f"overhear/{key}", text)
    for ask in (lambda: heard.has(key), lambda: heard.get(key)):
        with pytest.raises(LyingStore, match=f"under '{key}' what no rank of this run"):
            ask()
    if key == FAILED_FIRST:
        with pytest.raises(LyingStore):
            heard.claim(0, 2)
    else:
        with pytest.raises(ConnectionError, match="no rank of this run has written"):
            introduce(place(0), heard, program=PROGRAM, limit=5)


@pytest.mark.parametrize("code", [0, 3, 137, -1, True, "0", None, [0]])
def test_an_exit_code_that_no_rank_has_is_refused(code):
    store = RankStore(HashStore(), b"secret")
    with pytest.raises(LyingStore, match="no rank"):
        store.claim(0, code)
    assert 0 not in CODES


def test_the_secret_leaves_the_environment_and_is_none_that_can_be_guessed(monkeypatch):
    monkeypatch.setenv(SECRET, "a" * 32)
    assert (secret_of_ranks(), secret_of_ranks()) == (b"a" * 32, b"")
    monkeypatch.setenv(SECRET, "a" * 31)
    with pytest.raises(InputError, match="has 31 characters, must have at least 32"):
        secret_of_ranks()


def test_the_code_is_part_of_the_program(monkeypatch, tmp_path):
    from overhear.runs.folder import place as same_run

    before = program_facts({})
    assert program_facts({}) == before
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs/one.py").write_bytes(b"a = 1\n")
    monkeypatch.setattr(same_run, "_OURS", tmp_path)
    one = program_facts({})["code of overhear"]
    (tmp_path / "runs/one.py").write_bytes(b"a = 1\r\n")  # as another system checks it out
    assert program_facts({})["code of overhear"] == one != before["code of overhear"]
    (tmp_path / "runs/one.py").write_bytes(b"a = 2\n")
    assert program_facts({})["code of overhear"] != one
