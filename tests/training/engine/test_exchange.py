"""Ranks, plans of what crosses, the order of operations, and what is refused."""

import queue
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from overhear.privacy.errors import UndeclaredOperation
from overhear.training import build_graph
from overhear.training.engine import exchange
from overhear.training.engine.engine import Engine
from overhear.training.engine.exchange import (
    Arrivals,
    MissingRank,
    Ranks,
    _batches,
    _finish,
    _in_posting_order,
    _Posted,
    check_peers,
    share_root,
)
from overhear.training.engine.recording import Recorded
from overhear.training.step.values import Agents
from tests.training.contract import bound_to, setting

NOTHING = torch.empty(0)


@pytest.mark.parametrize(("agents", "size"), [(5, 2), (10, 4), (7, 7), (1000, 3)])
def test_each_agent_has_one_rank_and_shares_differ_by_one_at_most(agents, size):
    ranks = Ranks(agents=agents, rank=0, size=size)
    shares = [ranks.share(rank) for rank in range(size)]
    assert [agent for share in shares for agent in share] == list(range(agents))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_a_rank_without_agents_is_refused():
    with pytest.raises(ValueError, match=r"size=6 must lie in \[1, 5\]"):
        Ranks(agents=5, rank=0, size=6)
    with pytest.raises(ValueError, match="rank=2"):
        Ranks(agents=5, rank=2, size=2)
    with pytest.raises(ValueError, match="timeout=0"):
        Ranks(agents=5, rank=0, size=2, timeout=0)


def test_ranks_need_a_process_group():
    with pytest.raises(RuntimeError, match="torchrun"):
        Ranks.joined(5)


def test_both_sides_post_their_operations_in_one_order():
    """What two ranks have in common comes in the same order on both, for all pairs of six."""
    posted = {
        rank: [
            (op.lower, op.higher, op.sender)
            for op in _in_posting_order(
                {peer: NOTHING for peer in reversed(range(6)) if peer != rank},
                {peer: NOTHING for peer in range(6) if peer != rank},
                rank=rank,
            )
        ]
        for rank in range(6)
    }
    for one in range(6):
        for other in range(one + 1, 6):
            mine = [op for op in posted[one] if op[:2] == (one, other)]
            assert mine == [op for op in posted[other] if op[:2] == (one, other)]
            assert len(mine) == 2
        assert posted[one] == sorted(posted[one])


@pytest.mark.parametrize("by_peer", [True, False])
def test_no_batch_has_more_than_256_operations(by_peer):
    operations = _in_posting_order(dict.fromkeys(range(1, 301), NOTHING), {1: NOTHING}, rank=0)
    batches = list(_batches(operations, by_peer=by_peer))
    assert [op for batch in batches for op in batch] == operations
    assert max(map(len, batches)) == (2 if by_peer else 256)
    assert not by_peer or all(len({op.peer for op in batch}) == 1 for batch in batches)


def test_arrivals_come_in_the_order_of_their_numbers():
    shares, rng = [range(4), range(4, 7), range(7, 12)], np.random.default_rng(0)
    wanted = [np.sort(rng.choice(12, size=6, replace=False)) for _ in shares]
    plans = [
        Arrivals.of(wanted, shares=shares, rank=rank, device=torch.device("cpu"))
        for rank in range(3)
    ]
    for rank, plan in enumerate(plans):
        base = torch.full((plan.count,), -1)
        for peer, place in plan.places.items():
            at = plans[peer].offers[rank]
            held = torch.arange(shares[peer].start, shares[peer].stop)
            base[place] = held if at is None else held[at]
        assert base.tolist() == wanted[rank].tolist()


def test_ranks_of_another_number_of_agents_are_refused():
    graph = build_graph("ring", 5)
    ranks = Ranks(agents=4, rank=0, size=1)
    with pytest.raises(ValueError, match="ranks of 4 agents for a graph of 5"):
        Engine(setting(graph), bound_to("dsgd", graph), ranks=ranks)


def test_recording_is_refused_with_ranks(monkeypatch):
    graph = build_graph("ring", 5)
    engine = Engine(setting(graph), bound_to("dsgd", graph))
    engine.start()
    engine.ranks = Ranks(agents=5, rank=0, size=1)
    with pytest.raises(ValueError, match="which no rank has"):
        engine.advance(recorded=Recorded())


@pytest.mark.parametrize("shape", [(1, 1), (4, 1), (5,), (1,), (3, 5, 1)])
def test_a_public_tensor_that_has_not_a_row_for_each_row_is_refused(shape):
    value = Agents(torch.ones(5, 3))
    with pytest.raises(UndeclaredOperation, match="of_agents"):
        torch.ones(shape) * value
    with pytest.raises(UndeclaredOperation, match="of_agents"):
        value / torch.ones(shape)


def test_a_number_a_row_scales_each_row():
    value = Agents(torch.ones(3, 2)) * torch.tensor([[1.0], [2.0], [3.0]])
    assert value.rows[:, 0].tolist() == [1.0, 2.0, 3.0]


class OnDevice:
    """A transfer over NCCL and its event, without a device: what is called, and when it arrives."""

    def __init__(self, monkeypatch, *, fails: bool = False) -> None:
        self.called, self.arrives, self.fails = list[str](), threading.Event(), fails
        monkeypatch.setattr(torch.cuda, "Event", lambda blocking: self)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)

    def wait(self) -> None:
        self.called.append("order the stream")

    def record(self, stream: None) -> None:
        self.called.append("record")

    def synchronize(self) -> None:
        self.called.append("wait")
        assert self.arrives.wait(10)
        if self.fails:
            raise RuntimeError("NCCL communicator was aborted")

    def finish(self, *, timeout: float) -> None:
        names = "rank {} of 2".format
        ranks = SimpleNamespace(over_nccl=True, timeout=timeout, rank=0, names=names, group=None)
        operations = _in_posting_order({1: NOTHING}, {}, rank=0)
        posted = _Posted([(self, 1)], time.monotonic() + timeout, operations, landed=[])
        _finish(posted, ranks=ranks)


def test_a_transfer_on_a_device_is_waited_for_by_its_event(monkeypatch):
    work = OnDevice(monkeypatch)
    threading.Timer(0.05, work.arrives.set).start()
    work.finish(timeout=5)
    assert work.arrives.is_set()
    assert work.called == ["order the stream", "record", "wait"]


def test_a_transfer_on_a_device_that_does_not_arrive_names_its_peer_in_time(monkeypatch):
    work = OnDevice(monkeypatch)
    with pytest.raises(MissingRank, match=r"rank 1 of 2 did not answer within 0\.1 s"):
        work.finish(timeout=0.1)
    work.arrives.set()


def test_a_transfer_on_a_device_that_fails_names_its_peer(monkeypatch):
    work = OnDevice(monkeypatch, fails=True)
    work.arrives.set()
    with pytest.raises(MissingRank, match="rank 1 of 2") as raised:
        work.finish(timeout=5)
    assert "aborted" in str(raised.value.__cause__)


def one_of_two(rank: int, secret: bytes) -> Ranks:
    return Ranks(agents=2, rank=rank, size=2, secret=secret)


@pytest.mark.parametrize("secret", [b"known", b"", b"knowm"])
def test_a_peer_shows_that_it_knows_the_secret_of_the_ranks(monkeypatch, secret):
    crossing = [queue.Queue(), queue.Queue()]

    def swap(sends, *, ranks):
        crossing[1 - ranks.rank].put(sends[1 - ranks.rank])
        return {1 - ranks.rank: crossing[ranks.rank].get(timeout=5)}

    refused = list[int]()

    def meet(ranks: Ranks) -> None:
        try:
            check_peers(ranks)
        except ConnectionError:
            refused.append(ranks.rank)

    monkeypatch.setattr(exchange, "_swap", swap)
    both = [
        threading.Thread(target=meet, args=[one_of_two(rank, of)])
        for rank, of in enumerate((b"known", secret))
    ]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    assert sorted(refused) == ([] if secret == b"known" else [0, 1])


def test_a_peer_that_sends_back_what_it_gets_is_refused(monkeypatch):
    monkeypatch.setattr(exchange, "_swap", lambda sends, ranks: dict(sends))
    with pytest.raises(ConnectionError, match="as rank 1 does not know the secret"):
        check_peers(one_of_two(0, b"known"))


@pytest.mark.parametrize("root", [None, 0, 2**128 - 1])
def test_the_root_crosses_hidden_by_the_secret(monkeypatch, root):
    crossed = list[torch.Tensor]()

    def gather(rows, **_: object) -> torch.Tensor:
        crossed.append(rows if len(rows) else crossed[0])
        return crossed[-1]

    monkeypatch.setattr(exchange, "gather", gather)
    found = share_root(one_of_two(0, b"known"), root=root)
    assert root in (None, found)
    assert share_root(one_of_two(1, b"known"), root=3) == found
    assert share_root(one_of_two(1, b"guessed")) != found
    (row,) = crossed[0].tolist()
    assert found.to_bytes(16, "little") not in bytes(row)
    again = share_root(one_of_two(0, b"known"), root=found)
    assert again == found
    assert not torch.equal(crossed[-1], crossed[0])  # of a mask that is used once
