"""Logs that say less than was released: their figure is no smaller, or there is none."""

import itertools
import math
import os
import random

import numpy as np
import pytest

from overhear.privacy.accounting.accountant import epsilon
from overhear.privacy.errors import InputError, UnsupportedView
from overhear.privacy.releases.log import holds_logs, read_log
from tests.privacy.releases.logs import account, mu, one, write


def of(vector: str = "g", owner: int = 0, **changed):
    return {"owner": owner, "vector": vector, **changed}


def test_a_vector_that_is_not_clipped_is_infinite_under_noise(tmp_path):
    found = account(write(tmp_path / "a.jsonl", {1: [one(clip="none")]}))["eavesdropper"]
    assert found.epsilon == math.inf
    assert found.because == "a vector that is not clipped is released"


def test_a_vector_released_whole_and_in_parts_is_refused(tmp_path):
    """The bound is shared by parts that are other coordinates; the whole shares theirs."""
    releases = [one(of=[of()]), one(kind="part", of=[of(part="x")])]
    with pytest.raises(InputError, match="whole and in parts"):
        account(write(tmp_path / "a.jsonl", {1: releases}))
    both = [one(of=[of(part="x"), of(part="y")]), one(kind="part", of=[of(part="x")])]
    assert mu(write(tmp_path / "b.jsonl", {1: both})) >= 2**0.5 / 2


def test_weights_of_one_vector_are_added_up_exactly(tmp_path):
    terms = [of(weight=weight) for weight in (1e17, 1, -1e17)]
    assert mu(write(tmp_path / "a.jsonl", {1: [one(of=terms, noise=0.5)]})) == 2.0


@pytest.mark.parametrize("other", ["z ", " z", "e\u0301", "\u212b"])
@pytest.mark.parametrize("key", ["id", "vector", "batch", "part"])
def test_names_that_look_like_others_are_refused(tmp_path, key, other):
    changed = (
        {"noise": [{"id": other, "std": 1.0}]} if key == "id" else {"of": [of() | {key: other}]}
    )
    with pytest.raises(InputError, match=f"{key}=.* normal form NFC"):
        read_log(write(tmp_path / "a.jsonl", {1: [one(**changed)]}))


@pytest.mark.parametrize("lines", [[], [{"resumed_after": 3}]])
def test_a_log_without_a_round_has_no_figure(tmp_path, lines):
    with pytest.raises(InputError, match="holds no round"):
        account(write(tmp_path / "a.jsonl", lines))


@pytest.mark.parametrize(
    ("numbers", "missing"),
    [
        ((0, 1, 2), ()),
        ((1, 2), ()),
        ((10, 20, 30), ((1, 9), (11, 19), (21, 29))),
        ((0, 2), ((1, 1),)),
    ],
)
def test_rounds_without_a_line_are_named(tmp_path, numbers, missing):
    log = read_log(write(tmp_path / "a.jsonl", {t: [one()] for t in numbers}))
    assert log.missing == missing
    assert any("no line is about rounds" in said for said in log.warnings) == bool(missing)


def test_rounds_that_a_resumption_names_and_nobody_listed_are_named(tmp_path):
    first = {"round": 1, "releases": [one()]}
    assert read_log(write(tmp_path / "a.jsonl", [first, {"resumed_after": 5}])).missing == ((2, 5),)
    lines = [first, {"resumed_after": 3}, {"round": 5, "releases": [one()]}]
    assert read_log(write(tmp_path / "b.jsonl", lines)).missing == ((2, 4),)


def test_a_vector_carried_on_is_of_the_last_time_that_its_round_was_met(tmp_path):
    """Round 2 was met twice; round 3 holds the second vector, and the noise of the first."""
    shared = [{"id": "z", "std": 2.0}]
    lines = [
        {"round": 1, "releases": []},
        {"round": 2, "releases": [one(of=[of()], noise=shared)]},
        {"resumed_after": 1},
        {"round": 2, "releases": [one(of=[of()])]},
        {"round": 3, "releases": [one(of=[of(round=2)], noise=shared)]},
    ]
    assert mu(write(tmp_path / "a.jsonl", lines)) == math.inf
    del lines[2:4]  # met once: the two releases are the same
    assert mu(write(tmp_path / "b.jsonl", lines)) == 0.5


def test_a_vector_of_another_agent_whose_round_was_met_more_often_is_refused(tmp_path):
    again = [{"round": 1, "releases": [one(0, of=[of()])]}, {"resumed_after": 0}]
    write(tmp_path / "0.jsonl", [*again, again[0]], agents=2, agent=0)
    relayed = one(1, to=[0], of=[of()])
    write(tmp_path / "1.jsonl", {1: [relayed]}, agents=2, agent=1)
    with pytest.raises(UnsupportedView, match="which vector it was is unknown"):
        read_log(tmp_path)
    write(tmp_path / "1.jsonl", {1: [one(1, to=[0])]}, agents=2, agent=1)
    assert len(read_log(tmp_path).rounds) == 2


def test_the_log_of_a_server_that_is_sent_to_is_missed(tmp_path):
    for agent in (0, 1):
        write(tmp_path / f"{agent}.jsonl", {1: [one(agent, to="server")]}, agents=2, agent=agent)
    assert "no log of the server is given" in " ".join(read_log(tmp_path).warnings)
    write(tmp_path / "s.jsonl", {1: [one("server", of=[])]}, agents=2, agent="server")
    assert not read_log(tmp_path).warnings


def test_of_agents_that_only_look_on_two_are_asked(tmp_path):
    """All of 100,000 agents with each of 300 victims would be 30 million questions."""
    rounds = {1: [one(k, to=[k + 1]) for k in range(300)]}
    log = write(tmp_path / "a.jsonl", rounds, agents=100_000)
    assert mu(log, "neighbour") == 0.5
    with pytest.raises(InputError, match="at most 10000000"):
        mu(log, "all-others")
    rounds = {1: [one(k, to=[k + 1]) for k in range(600)]}
    public = write(tmp_path / "b.jsonl", rounds, agents=100_000, depends_on="public")
    with pytest.raises(InputError, match="at most 250000"):
        mu(public, "neighbour")


@pytest.mark.parametrize("public", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_the_worst_neighbour_is_the_worst_of_all_of_them(tmp_path, seed, public):
    draw = random.Random(seed)
    known = {name: draw.sample(range(5), draw.choice([0, 1, 2])) for name in "uvw"}
    releases = [
        one(
            sender := draw.randrange(5),
            to=[draw.randrange(5)],
            kind=str(place),
            of=[{"owner": sender, "weight": draw.choice([1, 2])}] * draw.choice([0, 1]),
            public="drawn by chance",
            noise=[{"std": draw.choice([1.0, 2.0])}] * draw.choice([0, 1, 1])
            + [
                {"id": name, "std": draw.choice([1.0, 3.0]), "known_to": known[name]}
                for name in draw.sample("uvw", draw.choice([0, 1, 2]))
            ],
        )
        for place in range(4)
    ]
    depends = "public" if public else "released"
    log = write(tmp_path / "a.jsonl", {1: releases}, agents=5, depends_on=depends)
    every = [
        account(log, adversaries=[f"neighbour:{k}"], victim=v)[f"neighbour:{k}"].epsilon
        for k in range(5)
        for v in range(5)
        if k != v
    ]
    assert account(log, adversaries=["neighbour"])["neighbour"].epsilon == max(every)


@pytest.mark.parametrize("seed", range(40))
def test_no_choice_of_vectors_is_further_apart_than_mu(tmp_path, seed):
    """Signs of the vectors by brute force, over the covariance of what is seen."""
    draw = random.Random(seed)
    names = ["f", "g", None]
    releases = [
        one(
            kind=str(place),
            of=[
                {"owner": 0, "weight": draw.choice([1, -1, 0.5, -2])}
                | ({"vector": name} if name else {})
                for name in draw.choices(names, k=draw.choice([1, 2]))
            ],
            noise=[{"std": draw.choice([0.5, 1.0, 2.0])}]
            + [
                {"id": name, "std": draw.choice([1.0, 4.0]), "weight": draw.choice([1, -1]),
                 "known_to": [1] if name == "w" else [0]}
                for name in draw.sample("uvw", draw.choice([0, 1, 2]))
            ],
        )
        for place in range(3)
    ]  # fmt: skip
    log = write(tmp_path / "a.jsonl", {1: releases}, agents=3)
    for adversary, knows in (("neighbour:1", {"w"}), ("neighbour:2", set())):
        fresh = itertools.count()
        rows, covered = [], np.zeros((3, 3))
        for release in releases:
            row: dict[object, float] = {}
            for vector in release["of"]:
                column = vector.get("vector", next(fresh))
                row[column] = row.get(column, 0.0) + vector["weight"]
            rows.append(row)
        for i, j in itertools.product(range(3), repeat=2):
            for a, b in itertools.product(releases[i]["noise"], releases[j]["noise"]):
                same = a.get("id") == b.get("id") if a.get("id") else a is b
                if same and a.get("id") not in knows:
                    covered[i, j] += a["std"] * a.get("weight", 1) * b["std"] * b.get("weight", 1)
        columns = sorted({c for row in rows for c in row}, key=str)
        matrix = np.array([[row.get(c, 0.0) for c in columns] for row in rows])
        information = matrix.T @ np.linalg.inv(covered) @ matrix
        apart = max(
            np.array(signs) @ information @ np.array(signs)
            for signs in itertools.product([1, -1], repeat=len(columns))
        )
        found = mu(log, adversary, victim=0)
        assert found**2 >= apart * (1 - 1e-9)
        assert found**2 <= np.abs(information).sum() * (1 + 1e-9)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names on this system")
def test_a_pipe_or_a_loop_of_links_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "a.jsonl")
    assert not holds_logs(tmp_path)
    with pytest.raises(InputError, match="no regular file"):
        read_log(tmp_path)
    loop = tmp_path / "loop"
    loop.mkdir()
    (loop / "a.jsonl").symlink_to("a.jsonl")
    assert not holds_logs(loop)
    with pytest.raises(InputError, match="in a circle"):
        read_log(loop)


def test_many_vectors_of_one_round_are_refused(tmp_path):
    rounds = {1: [one(of=[{"owner": 0}] * 4_001)]}
    with pytest.raises(UnsupportedView, match="4001 vectors of agent 0"):
        account(write(tmp_path / "a.jsonl", rounds))


def test_a_batch_says_for_itself_that_it_is_drawn(tmp_path):
    log = write(tmp_path / "a.jsonl", {1: [one(sampler="poisson")]}, sampler="other")
    assert read_log(log).sampled
    assert account(log)["eavesdropper"].epsilon == epsilon(
        noise_multiplier=2.0, delta=1e-5, rounds=1, sampling_rate=0.1
    )
