"""Agents spread over ranks: the same bits as in one process, and no run without all of them.

Where a layout stacks the data of a model's neighbours, a rank stacks those that it holds; products
of other shapes round otherwise, so gradients on links agree to 1e-12 there, and else to the bit.
"""

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import torch

from overhear.training.engine.exchange import Ranks
from tests.training.engine.rank_worker import (
    AGENTS,
    CASES,
    PATIENCE,
    ROUNDS,
    as_tensors,
    cases_of,
    run,
)

pytestmark = [pytest.mark.slow, pytest.mark.distributed]

HERE = Path(__file__).resolve()
LIMIT = 150  # seconds for a whole group; a hang shall fail, not hold up the suite


def together(size: int, folder: Path) -> dict[str, list]:
    """What the ranks of one process group found."""
    ended = subprocess.run(
        [sys.executable, "-m", "tests.training.engine.rank_worker", str(size), str(folder)],
        cwd=HERE.parents[3], env=os.environ | {"OMP_NUM_THREADS": "1"}, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, timeout=LIMIT, check=False, text=True,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout
    found = [torch.load(folder / f"found-{rank}.pt") for rank in range(size)]
    gone = [torch.load(folder / f"gone-{rank}.pt") for rank in range(size - 1)]
    return {key: [one[key] for one in found] for key in found[0]} | {"gone": gone}


@pytest.fixture(scope="module")
def groups(tmp_path_factory):
    """The process groups, each started once; a parametrised fixture starts one for each case."""
    return cache(lambda size: together(size, tmp_path_factory.mktemp(f"ranks-{size}")))


@pytest.fixture(params=[2, 4])
def found(request, groups):
    return groups(request.param)


EVERY_CASE = pytest.mark.parametrize(
    ("found", "name"),
    [(size, name) for size in (2, 4) for name in cases_of(size)],
    indirect=["found"],
)


@pytest.fixture(scope="module")
def alone():
    """Engines of the same cases in one process, their ends and messages; each is run once."""

    @cache
    def of(name):
        engine, heard, whole = run(CASES[name])
        return engine, engine.snapshot(), as_tensors(heard), as_tensors(whole)

    return of


def same(name, found, expected, what):
    """Bit by bit, unless the layout of the gradients rounds by what it stacks."""
    if CASES[name].stacks:
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-13)
    else:
        assert torch.equal(found, expected), what


@EVERY_CASE
def test_every_rank_ends_with_the_bits_of_one_process(found, alone, name):
    _, end, _, _ = alone(name)
    for rank, held in enumerate(found[name]):
        assert held["end"].keys() == end.keys()
        for field, value in end.items():
            same(name, held["end"][field], value, f"{field} on rank {rank}")


@EVERY_CASE
def test_rank_0_hears_the_whole_messages_of_the_rounds_to_intercept(found, alone, name):
    _, _, _, whole = alone(name)
    heard = found[name][0]["whole"]
    assert [one[:3] for one in heard] == [one[:3] for one in whole]
    for one, other in zip(heard, whole, strict=True):
        assert torch.equal(one[3], other[3])
        assert torch.equal(one[4], other[4])
        same(name, one[5], other[5], f"{one[2]} of round {one[0]}")
    assert not any(held["whole"] for held in found[name][1:])


@EVERY_CASE
def test_the_taps_of_all_ranks_hear_each_row_once_and_every_link(found, alone, name):
    _, _, heard, _ = alone(name)
    for number, (at, call, kind, senders, links, rows) in enumerate(heard):
        parts = [held["heard"][number] for held in found[name]]
        assert {part[:3] for part in parts} == {(at, call, kind)}
        assert torch.equal(torch.cat([part[3] for part in parts]), senders)
        same(name, torch.cat([part[5] for part in parts]), rows, f"{kind} of round {at}")
        starts = [sum(len(part[3]) for part in parts[:i]) for i in range(len(parts))]
        crossing = [
            (row + start, to)
            for part, start in zip(parts, starts, strict=True)
            for row, to in part[4].tolist()
        ]
        assert sorted(crossing) == sorted(map(tuple, links.tolist()))


@EVERY_CASE
def test_a_whole_snapshot_continues_on_every_rank(found, alone, name):
    engine, *_ = alone(name)
    engine.restore(found[name][0]["end"], round=ROUNDS)
    engine.advance()
    for held in found[name]:
        for field, value in engine.snapshot().items():
            same(name, held["continued"][field], value, field)


def test_ranks_with_other_roots_are_refused(found):
    assert all("rank 1 has another root" in said for said in found["other roots"])


def test_all_ranks_stop_by_the_largest_value_of_all(found):
    assert "whose largest number is 100000 (coordinate 1)" in found["floor"][0]
    assert len(set(found["floor"])) == 1


def test_one_root_of_the_systems_entropy_is_drawn_for_all_ranks(found):
    assert len(set(found["root"])) == 1
    fresh, given = found["root"][0]
    assert given == 2**127
    assert 0 <= fresh < 2**128
    assert fresh != given


def test_a_start_again_draws_fresh_noise_on_all_ranks(found):
    for first, again in found["fresh"]:
        assert not torch.equal(first, again)
    assert all(torch.equal(ends[0], found["fresh"][0][0]) for ends in found["fresh"])


@pytest.mark.parametrize("how", ["hangs", "gone"])
def test_a_missing_rank_stops_the_others_in_time_and_is_named_with_its_agents(found, how):
    size = len(found["root"])
    last = Ranks(agents=AGENTS, rank=0, size=size).names(size - 1)
    for said, seconds in found[how][: size - 1]:
        assert said.startswith(last), said
        assert seconds < (PATIENCE if how == "hangs" else 20.0) + 5.0
