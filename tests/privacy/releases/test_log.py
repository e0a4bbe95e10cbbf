"""Reading a log of releases: what is no release is refused in a sentence, and nothing is lost."""

import json
import random
from dataclasses import replace

import pytest

from overhear.privacy.errors import InputError
from overhear.privacy.guarantee import Statement, Status
from overhear.privacy.releases.chained_file import Chain
from overhear.privacy.releases.log import read_log
from overhear.training.accounts.declared import account_of_releases
from tests.privacy.releases.logs import HEADER, account, one, write


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"schema": 3}, "schema=3 must be 'releases-1'"),
        ({"agents": 0}, r"agents=0 must be an integer in 1\.\.100000"),
        ({"agents": 10**9}, "agents=1000000000 must be an integer"),
        ({"agents": True}, "agents=True must be an integer"),
        ({"clip": 0}, "clip=0 must be above 0"),
        ({"clip": "1"}, "clip='1' must be a number"),
        ({"clip": 10**300}, r"clip=1e\+300 must be above 0"),
        ({"rate": 1.5}, r"rate=1.5 must lie in \[0, 1\]"),
        ({"sampler": "shuffled"}, "sampler='shuffled' must be 'poisson'"),
        ({"unit": "person"}, "unit='person' must be 'record' or 'client'"),
        ({"depends_on": "nothing"}, "depends_on='nothing' must be 'released' or 'public'"),
        ({"links": 1}, "links=1 must be 'clear' or 'encrypted'"),
        ({"agent": 3}, r"agent=3 must be an integer in 0\.\.2"),
        ({"system": ""}, "system='' must be a text"),
        ({"delta": 1e-5}, "key 'delta' of the header is unknown"),
    ],
)
def test_a_header_that_says_something_else_is_refused(tmp_path, changed, message):
    path = write(tmp_path / "a.jsonl", {1: [one()]}, **changed)
    with pytest.raises(InputError, match=f"a.jsonl line 1: {message}"):
        read_log(path)


@pytest.mark.parametrize("each", [(1.0, 1.0, 1.0, 1.0), (3.0, 4.0)])
def test_a_bound_that_is_kept_to_by_parts_counts_as_the_norm_of_theirs(tmp_path, each):
    by_parts, whole = {"parts": [12] * len(each), "each": each}, sum(of**2 for of in each) ** 0.5
    logs = [write(tmp_path / f"{len(str(of))}", {1: [one()]}, clip=of) for of in (whole, by_parts)]
    assert account(logs[0]).worst.epsilon == account(logs[1]).worst.epsilon > 0


@pytest.mark.parametrize(
    ("release", "message"),
    [
        ("model", "a release must be an object"),
        ({"from": 0, "to": [1], "kind": "m"}, r"noise is missing in a release of round 1; \[\]"),
        ({"from": 0, "to": [1], "noise": 1}, "kind is missing"),
        (one(3), "from=3 must be an integer in 0..2"),
        (one("agent 0"), "from='agent 0' must be the number of an agent"),
        (one(to=[]), "must be a list of agents"),
        (one(to=[7]), "to=7 must be an integer"),
        (one(to="everybody"), "to='everybody' must be the number"),
        (one(noise=-1.0), "std=-1 must be above 0"),
        (one(noise="2"), "noise='2' must be a deviation"),
        (one(noise=True), "noise=True must be a deviation"),
        (one(noise=[{"std": 1, "law": "laplace"}]), "only Gaussian noise is accounted for"),
        (one(noise=[{"id": "z"}]), "std is missing"),
        (one(noise=[{"std": 1, "sigma": 2}]), "key 'sigma' of noise is unknown"),
        (one(noise=[{"std": 1, "id": "z"}] * 2), "id='z' stands twice"),
        (one(noise=[{"std": 1, "known_to": 0}]), "known_to=0 must be a list"),
        (one(noise=[{"std": 1, "weight": 0}]), None),
        (one(at="unreleased"), "at='unreleased': a gradient at a point that is not released"),
        (one(of=[{"owner": 5}]), "owner=5 must be an integer"),
        (one(of=[{"vector": "g"}]), "owner is missing"),
        (one(of=[{"owner": 0, "clip": None}]), "clip is missing"),
        (one(of=[{"owner": 0, "round": 0}]), "needs its name"),
        (one(of=[{"owner": 0, "vector": "g", "round": 2}]), "round of a vector=2 must be"),
        (one(of=[{"owner": 0, "part": "x"}]), "without a name"),
        (one(of={"owner": 0}), "must be a list of vectors"),
        (one("server", to="all"), "of is missing in a release of the server"),
        (one(kind="a\nb"), "printable"),
        (one(privacy="secret"), "key 'privacy' of a release is unknown"),
        (one(kept="yes"), "kept='yes' must be a SHA-256"),
        (one(kept="A" * 64), "kept='AAA.* must be a SHA-256"),
        (one(kept=7), "kept=7 must be a SHA-256"),
        (one(kept="a" * 64), None),
    ],
)
def test_what_is_no_release_is_refused(tmp_path, release, message):
    path = write(tmp_path / "a.jsonl", {1: [release]})
    if message is None:
        read_log(path)
        return
    with pytest.raises(InputError, match=f"a.jsonl line 2: .*{message}"):
        read_log(path)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (
            [{"round": 2, "releases": []}, {"round": 1, "releases": []}],
            "round 1 stands after round 2",
        ),
        (
            [{"round": 1, "releases": [one()]}] * 2,
            "round 1 has a release 'model' of agent 0 already",
        ),
        ([{"round": 1}], "its keys must be round and releases"),
        ([{"round": -1, "releases": []}], "round must be an integer of at least 0"),
        ([{"round": 1.0, "releases": []}], "round must be an integer of at least 0"),
        ([{"round": 1, "releases": {}}], "releases a list"),
        ([{"resumed_after": "x"}], "resumed_after must be the number"),
        (['{"round": 1, "round": 2, "releases": []}', {"round": 3, "releases": []}], "keys differ"),
        (['{"round": 1, "rel', {"round": 2, "releases": []}], "it is no JSON object"),
        (['{"ro', '{"ro', {"resumed_after": 1}], "it is no JSON object"),
        (['{"ro', {"resumed_after": 1}], "no line says what it announced"),
        (['{"round": 1, "releases": [NaN]}', {"round": 2, "releases": []}], "no JSON object"),
        (['{"round": 1, "releases": [{"from": 0'], "it is no JSON object"),
    ],
)
def test_lines_that_no_interruption_leaves_are_refused(tmp_path, lines, message):
    with pytest.raises(InputError, match=message):
        read_log(write(tmp_path / "a.jsonl", lines))


def test_logs_of_agents_are_joined(tmp_path):
    for agent in range(3):
        write(tmp_path / f"{agent}.jsonl", {t: [one(agent)] for t in (1, 2)}, agent=agent)
    log = read_log(tmp_path)
    assert [len(of) for of in log.rounds.values()] == [3, 3]
    assert len(read_log(sorted(tmp_path.iterdir())).rounds) == 2


@pytest.mark.parametrize(
    ("files", "absent", "message"),
    [
        ([(0, {1: [one(0)]}), (1, {1: [one(1)]})], {}, "no log of agent 2 of 3"),
        ([(0, {1: [one(0)]}), (0, {1: [one(0)]}), (1, {1: []}), (2, {1: []})], {}, "two files are"),
        (
            [(0, {1: [], 2: []}), (1, {1: []}), (2, {1: [], 2: []})],
            {},
            "no release of agent 1 in ro",
        ),
        ([(0, {1: [one(1)]}), (1, {1: []}), (2, {1: []})], {}, "agent 1 in the file of agent 0"),
        ([(0, {1: [one(0)]}), (1, {1: [one(1)]})], {2: [2]}, "not declared absent in round 1"),
        ([(0, {1: []}), (1, {1: []}), (2, {1: []})], {2: [1]}, "declared absent in round 1"),
        ([(None, {1: []}), (1, {1: []}), (2, {1: []})], {}, "names no agent"),
    ],
)
def test_files_that_make_no_system_are_refused(tmp_path, files, absent, message):
    for place, (agent, rounds) in enumerate(files):
        header = {} if agent is None else {"agent": agent}
        write(tmp_path / f"{place}.jsonl", rounds, **header)
    with pytest.raises(InputError, match=message):
        read_log(tmp_path, absent=absent)


def test_agents_that_were_publicly_absent_are_left_out(tmp_path):
    write(tmp_path / "0.jsonl", {t: [one(0)] for t in (1, 2)}, agent=0)
    write(tmp_path / "1.jsonl", {2: [one(1)]}, agent=1)
    log = read_log(tmp_path, absent={1: [1], 2: [1, 2]})
    assert [len(of) for of in log.rounds.values()] == [1, 2]


def test_logs_of_two_systems_are_not_joined(tmp_path):
    write(tmp_path / "0.jsonl", {1: [one(0)]}, agent=0)
    write(tmp_path / "1.jsonl", {1: [one(1)]}, agent=1, depends_on="public")
    with pytest.raises(InputError, match=r"1\.jsonl says public=True"):
        read_log(tmp_path)


def test_a_log_that_carries_a_digest_must_carry_it_in_every_line(tmp_path):
    path, chain = tmp_path / "a.jsonl", Chain()
    lines = []
    for entry in (HEADER, {"round": 1, "releases": [one()]}, {"round": 2, "releases": [one()]}):
        lines.append(chain.line(entry, before="", most=10_000))
        chain.add(lines[-1])
    path.write_bytes(b"".join(lines))
    assert len(read_log(path).rounds) == 2
    path.write_bytes(b"".join([lines[0], lines[2]]))
    with pytest.raises(InputError, match="line 2 is no entry: by its digest"):
        read_log(path)
    path.write_bytes(lines[0] + json.dumps({"round": 1, "releases": []}).encode() + b"\n")
    with pytest.raises(InputError, match="carries no digest"):
        read_log(path)


def test_nothing_but_a_sentence_comes_of_a_damaged_log(tmp_path):
    """Of 2,000 damaged logs each is refused, or costs no less than the whole one."""
    path = write(tmp_path / "a.jsonl", {t: [one()] for t in (1, 2)})
    whole = path.read_bytes()
    draw = random.Random(0)
    refused = list[str]()
    for _ in range(2_000):
        at = draw.randrange(len(whole))
        kind = draw.randrange(3)
        damaged = (
            whole[:at]
            if kind == 0
            else whole[:at] + bytes([draw.randrange(256)]) + whole[at + (kind == 1) :]
        )
        path.write_bytes(damaged)
        try:
            read_log(path)
        except InputError as error:
            refused.append(str(error))
    assert all(str(path) in said for said in refused)
    assert len(refused) > 1_000


@pytest.mark.parametrize("content", [b"", b"\n", b"\xff\xfe", b"[]\n", b"{}\n", b"null\n"])
def test_a_file_without_a_header_is_refused(tmp_path, content):
    path = tmp_path / "a.jsonl"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"a\.jsonl"):
        read_log(path)


def test_deep_nesting_and_long_lines_are_refused(tmp_path):
    path = write(tmp_path / "a.jsonl", ["[" * 100_000, {"round": 1, "releases": []}])
    with pytest.raises(InputError, match="line 2"):
        read_log(path)
    path = write(tmp_path / "a.jsonl", ['"' + "x" * (2 << 20), {"round": 1, "releases": []}])
    with pytest.raises(InputError, match="longer than"):
        read_log(path)


def test_a_folder_without_logs_and_a_path_that_is_absent_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"holds no \*.jsonl"):
        read_log(tmp_path)
    with pytest.raises(FileNotFoundError, match="does not exist"):
        read_log(tmp_path / "absent.jsonl")


def test_equal_releases_are_held_once(tmp_path):
    log = read_log(write(tmp_path / "a.jsonl", {t: [one()] for t in range(100)}))
    assert len({id(release) for of in log.rounds.values() for release in of}) == 1
    assert account(log.paths[0])["eavesdropper"].epsilon > 0


VECTOR = {"owner": 0, "vector": "g", "rate": 0.1, "sampler": "poisson"}
EARLIER, SECOND = (one(kind="m", of=[VECTOR | {"\\u0072ound": t}]) for t in (1, 2))
LATER = [one(kind="n", of=[VECTOR]), SECOND]


def test_a_text_that_comes_again_is_read_as_each_of_its_lines(tmp_path):
    """Beside a twin whose every line is written otherwise, so that no text comes again."""
    two, shared = [one(), one(2, kind="b")], one(noise=[{"std": 3.0, "id": "z"}])
    runs = {
        "alike": [(t, two) for t in range(1, 7)],
        "in turn": [(t, [one()] if t % 2 else []) for t in range(1, 7)],
        "two lines a round": [(t, [x]) for t in (1, 2, 3) for x in (one(), one(1))],
        "again": [(1, two), (2, two), ({"resumed_after": 0}, None), (1, two), (2, two), (3, [])],
        "one noise in all": [(t, [shared]) for t in (1, 2, 3)],
        "a vector of round 1, escaped": [(t, [EARLIER]) for t in range(1, 5)],
        "a vector of a round to come": [(2, LATER), ({"resumed_after": 0}, None), (1, LATER)],
        "a round that sends twice": [(1, [one()]), (2, [one()]), (2, [one()])],
        "a number that is none": [(1, [one()]), (1.5, [one()])],
    }
    for name, lines in runs.items():
        found = []
        for twin in (False, True):
            every = [t if of is None else {"round": t, "releases": of} for t, of in lines]
            texts = [json.dumps(HEADER), *map(json.dumps, every)]
            texts = [text.replace("\\\\u", "\\u") for text in texts]  # an escape, not its letters
            path = tmp_path / "a.jsonl"
            path.write_text("".join(f"{' ' * i * twin}{x}\n" for i, x in enumerate(texts)))
            try:
                log = read_log(path)
            except InputError as error:
                found.append(str(error))
                continue
            account = account_of_releases(log, statement=Statement(delta=1e-5))
            every = {at: list(of) for at, of in log.rounds.items()}
            found.append((every, log.warnings, account.guarantees, account.by_round(3)))
            whole = name in ("two lines a round", "a vector of round 1, escaped")
            assert twin or (len(log.distinct) == len(log.rounds)) == whole, name
        assert found[0] == found[1], name
        assert isinstance(found[0], str) == (name in list(runs)[-3:])


def test_what_was_kept_of_a_release_changes_no_figure(tmp_path):
    plain = write(tmp_path / "a.jsonl", {t: [one()] for t in (1, 2)})
    kept = write(tmp_path / "b.jsonl", {t: [one(kept=str(t) * 64)] for t in (1, 2)})
    assert account(plain)["eavesdropper"].epsilon == account(kept)["eavesdropper"].epsilon


@pytest.mark.parametrize("status", Status)
def test_no_figure_of_a_log_claims_what_the_log_does_not_show(tmp_path, status):
    log = read_log(write(tmp_path / "a.jsonl", {t: [one(0), one(2, noise=[])] for t in (1, 2)}))
    if status not in (Status.DECLARED, Status.CHECKED):
        with pytest.raises(InputError, match="cannot be that of a log of releases"):
            replace(log, status=status)
        return
    for victim, expected in ((0, status), (1, status), (2, Status.NO_PROTECTION)):
        found = account_of_releases(
            replace(log, status=status), statement=Statement(delta=1e-5), victim=victim
        )
        assert {one.status for one in found.guarantees.values()} == {expected}
