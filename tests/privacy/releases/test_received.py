"""What a party received may not leave it under a line that lists nothing, or less, of it."""

import pytest

from overhear import record
from overhear.privacy.errors import InputError
from overhear.privacy.releases.log import read_log
from tests.privacy.releases.logs import account, mu, one, write

PUBLIC = {"depends_on": "public", "links": "encrypted"}
ID = [{"id": "z0", "std": 2.0, "known_to": [0]}]


def g(owner: int = 0, **changed):
    return {"owner": owner, "vector": "g", **changed}


def upload(k: int, t: int, to="server"):
    return one(k, to=to, of=[g(k)], noise=[{"id": f"z{k} {t}", "std": 2.0, "known_to": [k]}])


def mean(t: int, sender="server", to=(0, 1, 2), agents=(0, 1, 2), **changed):
    """The mean of noisy uploads, as it is: each vector and each noise by its name."""
    return one(
        sender, to=to if to == "all" else list(to), kind="mean",
        of=[g(k, weight=1 / 3) for k in agents],
        noise=[{"id": f"z{k} {t}", "std": 2 / 3, "known_to": [k]} for k in agents], **changed,
    )  # fmt: skip


NOTHING = {"kind": "mix", "of": [], "noise": []}
RECEIVED = one(0, to=[1], of=[g()], noise=ID)


@pytest.mark.parametrize(
    ("releases", "what"),
    [
        pytest.param([RECEIVED, one(1, to=[2], **NOTHING)], "agent 1", id="a chain"),
        pytest.param([RECEIVED, one(1, to="all", **NOTHING)], "agent 1", id="to all"),
        pytest.param(
            [one(0, to="server"), one("server", to=[1, 2], **NOTHING)], "the server", id="a server"
        ),
        pytest.param(
            [one(0, to=[1]), one(1, to=[2], kind="mix", of=[], noise=1e-6)],
            "agent 1", id="no vector, and next to no noise",
        ),
        pytest.param(
            [upload(0, 1), upload(1, 1), upload(2, 1), mean(1, agents=(0, 2))],
            "the server", id="fewer than were received",
        ),
        pytest.param(
            [one(0, to=[1], of=[], noise=ID), one(1, to=[2], **NOTHING)], "agent 1", id="a mask"
        ),
    ],
)  # fmt: skip
@pytest.mark.parametrize("links", ["clear", "encrypted"])
def test_what_was_received_and_is_not_listed_is_refused(tmp_path, releases, what, links):
    how = {"depends_on": "public", "links": links}
    with pytest.raises(InputError, match=rf"line 2: .* {what} .*has received .* of agent . in"):
        account(write(tmp_path / "a.jsonl", {1: releases}, **how))
    # Somebody who says so is believed, and named; and elsewhere everybody counts as seeing all.
    releases = [*releases[:-1], releases[-1] | {"public": "a table of steps"}]
    found = account(write(tmp_path / "b.jsonl", {1: releases}, **how))
    assert any(f"1 release of {what} count as holding nothing" in s and s.endswith("steps")
               for s in found.warnings)  # fmt: skip
    account(write(tmp_path / "c.jsonl", {1: releases}, links=links))


def test_what_was_received_in_a_former_round_is_held_against_later_ones(tmp_path):
    hops = {1: [RECEIVED], 2: [one(1, to=[2], **NOTHING)]}
    with pytest.raises(InputError, match=r"line 3: .*'model' of agent 0 in round 1"):
        read_log(write(tmp_path / "a.jsonl", hops, **PUBLIC))
    # Vectors of one's own do not say that the other's are not beside them.
    own = {t: [one(k, to=[k + 1]) for k in (0, 1)] for t in (1, 2)}
    with pytest.raises(InputError, match=r"line 3: .* lists other vectors"):
        read_log(write(tmp_path / "b.jsonl", own, **PUBLIC))
    assert read_log(write(tmp_path / "c.jsonl", {1: own[1]}, **PUBLIC))  # at the same time


def test_a_relay_that_lists_what_it_holds_costs_what_it_shows(tmp_path):
    """A round of pass-public: 0 -> 1 -> 2, at mu 1/2 for both."""
    passed = one(1, to=[2], kind="mix", of=[g()], noise=ID)
    log = write(tmp_path / "a.jsonl", {1: [RECEIVED, passed]}, **PUBLIC)
    assert mu(log, "neighbour:2", victim=0) == mu(log, "neighbour:1", victim=0) == 0.5
    later = one(1, to=[2], kind="mix", of=[g(round=1)], noise=ID)
    log = write(tmp_path / "b.jsonl", {1: [RECEIVED], 2: [later]}, **PUBLIC)
    assert mu(log, "neighbour:2", victim=0) == 0.5


def test_federated_averaging_that_lists_its_updates_is_read(tmp_path):
    first = one("server", to=[0, 1, 2], kind="start", of=[], noise=[])
    rounds = {t: [upload(0, t), upload(1, t), upload(2, t), mean(t)] for t in (1, 2, 3)}
    rounds[1].insert(0, first)  # before anything was received
    log = write(tmp_path / "a.jsonl", rounds, **PUBLIC)
    # Of the mean agent 1 takes its own part off; two others' noise is left.
    assert mu(log, "neighbour:1", victim=0) == pytest.approx(0.5 / 2**0.5)
    rounds[1] = [*rounds[1][1:], first]
    with pytest.raises(InputError, match="'start' of the server"):
        read_log(write(tmp_path / "b.jsonl", rounds, **PUBLIC))


def test_files_of_several_parties_do_not_say_what_came_first_in_a_round(tmp_path):
    for k in range(3):
        write(tmp_path / f"{k}.jsonl", {1: [one(k, to="server")]}, agent=k, **PUBLIC)
    start = one("server", to=[0, 1, 2], kind="start", of=[], noise=[])
    write(tmp_path / "s.jsonl", {1: [start]}, agent="server", **PUBLIC)
    with pytest.raises(InputError, match=r"s.jsonl line 2: 'start' of the server"):
        read_log(tmp_path)
    write(tmp_path / "s.jsonl", {0: [start]}, agent="server", **PUBLIC)
    for k in range(3):
        lines = [{"round": 0, "releases": []}, {"round": 1, "releases": [one(k, to="server")]}]
        write(tmp_path / f"{k}.jsonl", lines, agent=k, **PUBLIC)
    assert not read_log(tmp_path).stated


def test_a_vector_that_no_release_brought_is_refused(tmp_path):
    releases = [upload(0, 1), upload(1, 1), mean(1)]
    with pytest.raises(InputError, match="a vector of agent 2 in round 1, and no release brought"):
        read_log(write(tmp_path / "a.jsonl", {1: releases}, **PUBLIC))


def test_noise_of_others_is_not_the_senders_own(tmp_path):
    """Of three, each knows its part; who restates all as fresh noise denies that."""
    sent = [one(k, to="server", of=[g(k)]) for k in range(3)]

    def total(std):
        return one("server", to="all", kind="sum", of=[g(k) for k in range(3)], noise=std)

    with pytest.raises(InputError, match="no more noise than these"):
        read_log(write(tmp_path / "a.jsonl", {1: [*sent, total(12**0.5)]}, **PUBLIC))
    log = write(tmp_path / "b.jsonl", {1: [*sent, total(4.0)]}, **PUBLIC)
    assert mu(log, "eavesdropper") == pytest.approx(1 / 4)
    assert mu(log, "neighbour:1", victim=0) == pytest.approx(1 / 12**0.5)  # 16 less its own 4
    own = one(1, to=[2], of=[g(1), g(0)], noise=3.0)
    with pytest.raises(InputError, match="vectors of its own beside others"):
        read_log(write(tmp_path / "c.jsonl", {1: [one(0, to=[1], of=[g()]), own]}, **PUBLIC))


@pytest.mark.parametrize(
    "how",
    [{"noise": 50.0}, {"noise": []} | {"of": [g(), g(2)]}, {"of": [g(weight=1e-6)], "noise": ID}],
)
def test_what_is_published_under_other_noise_is_not_published(tmp_path, how):
    """Who received less noise may pass that on, in the round or later."""
    loud = one(0, to="all", **{"of": [g()], **how})
    last = one(1, to=[2], **NOTHING)
    with pytest.raises(InputError, match="'model' of agent 0 in round 1"):
        read_log(write(tmp_path / "a.jsonl", {1: [RECEIVED, loud, last]}, **PUBLIC))
    shown = one(0, to="all", of=[g()], noise=ID)
    log = write(tmp_path / "b.jsonl", {1: [RECEIVED, shown, last]}, **PUBLIC)
    assert mu(log, "neighbour:2", victim=0) == 0.5


def test_a_reason_of_blanks_is_none(tmp_path):
    last = one(1, to=[2], **NOTHING) | {"public": "  "}
    with pytest.raises(InputError, match="public"):
        read_log(write(tmp_path / "a.jsonl", {1: [RECEIVED, last]}, **PUBLIC))


def test_a_recorder_writes_no_line_that_a_reader_refuses(tmp_path):
    with record(tmp_path / "a.jsonl", agents=3, clip=1.0, **PUBLIC) as ledger:
        ledger.release(1, kind="start", to=[0, 1, 2], noise=0, of=[], sender="server")
        ledger.release(1, kind="update", to="server", noise=2.0, sender=0)
        mixed = {"kind": "model", "to": [1, 2], "noise": 0, "of": [], "sender": "server"}
        with pytest.raises(InputError, match="the server has received 'update' of agent 0"):
            ledger.release(2, **mixed)
        ledger.release(2, **mixed, public="the step sizes of the next round")
    assert "the step sizes" in " ".join(ledger.account(delta=1e-5).warnings)
    with (
        record(tmp_path / "a.jsonl", agents=3, clip=1.0, resume=True, **PUBLIC) as ledger,
        pytest.raises(InputError, match="the server has received 'update' of agent 0"),
    ):
        ledger.release(3, **mixed)


def test_vectors_of_weight_0_are_read(tmp_path):
    """One that was received and published so shows nothing, and divides nothing."""
    of = [g(weight=0.0)]
    log = [one(0, to=[1], of=of, noise=ID), one(0, to="all", of=of, noise=ID)]
    path = write(tmp_path / "a.jsonl", {1: log}, **PUBLIC)
    assert mu(path, "neighbour:1", victim=0) == 0.0
