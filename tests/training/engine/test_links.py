"""What a rank holds of a graph, and sums over in-edges that round the same everywhere."""

import sys

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from overhear.privacy.batches.sampling import Per
from overhear.training import algorithms
from overhear.training.device import precision as numbers
from overhear.training.engine import links as of_links
from overhear.training.engine.exchange import Ranks
from overhear.training.engine.links import Links
from overhear.training.engine.randomness import SecretRandomness
from overhear.training.engine.tensor_round import AllRounds, Drawing, TensorRound
from overhear.training.graphs.topologies import directed_ring, erdos_renyi, full, ring, star
from overhear.training.step import perform, purity, script
from overhear.training.step.values import Agents, Batch, Edges
from overhear.training.tracing.trace import trace
from tests.training.contract import bound_to, setting

CPU = torch.device("cpu")
GRAPHS = [ring(7), full(5), star(6), directed_ring(5), erdos_renyi(9, 0.4, seed=3)]


def links(graph, *, rank=None, size=1, dtype=torch.float32):
    ranks = None if rank is None else Ranks(agents=graph.agents, rank=rank, size=size)
    return Links(graph, device=CPU, dtype=dtype, ranks=ranks)


def rows(count, *, width=37, dtype=torch.float32):
    return torch.randn(count, width, dtype=dtype, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("graph", GRAPHS, ids=lambda g: g.name)
def test_mixing_is_the_product_with_the_weights(graph):
    whole, x = links(graph, dtype=torch.float64), rows(graph.agents, dtype=torch.float64)
    found = whole.weighted_sums(x, whole.weights, whole.senders)
    expected = torch.from_numpy(graph.weights.copy()) @ x
    torch.testing.assert_close(found, expected, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("graph", GRAPHS, ids=lambda g: g.name)
@pytest.mark.parametrize("dense", [0, 1, 10**9])
def test_sums_on_a_device_are_the_sparse_product(graph, dense, monkeypatch):
    monkeypatch.setattr(of_links, "_ENTRIES", dense)
    whole, x = links(graph, dtype=torch.float64), rows(graph.agents, dtype=torch.float64)
    by_edge = rows(len(graph.receivers), dtype=torch.float64)
    picks = [(x, whole.broadcast_rows), (by_edge, None), (x, whole.receivers_here)]
    for held, pick in picks:  # the last has a row of each agent many times
        sparse = whole.weighted_sums(held, whole.weights, pick)
        found = whole._sums_on_a_device(held, whole.weights, pick)
        torch.testing.assert_close(found, sparse, rtol=1e-14, atol=1e-14)


def test_a_full_graph_is_one_product_on_a_device():
    whole, x = links(full(40)), rows(40)
    with Counted() as counted:
        whole._sums_on_a_device(x, whole.weights, whole.broadcast_rows)
    assert counted.calls <= 6
    sparse = links(ring(40))
    with Counted() as counted:
        sparse._sums_on_a_device(x, sparse.weights, sparse.broadcast_rows)
    assert counted.calls <= 5 + 5 * 3  # three in-edges an agent


class Counted(TorchDispatchMode):
    """Operations that reach a device."""

    calls = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.calls += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("graph", GRAPHS, ids=lambda g: g.name)
@pytest.mark.parametrize("size", [2, 4])
def test_the_parts_of_all_ranks_are_the_whole(graph, size):
    whole, x = links(graph), rows(graph.agents)
    parts = [links(graph, rank=rank, size=size) for rank in range(size)]
    for name in ("receivers", "senders", "weights"):
        joined = torch.cat([getattr(part, name) for part in parts])
        assert torch.equal(joined, getattr(whole, name))
    for sums, off in ((Links.weighted_sums, 0.0), (Links._sums_on_a_device, 1e-6)):
        mixed = []
        for part in parts:
            heard = torch.unique(part.senders)
            mixed.append(sums(part, x[heard], part.weights, part.broadcast_rows))
        expected = sums(whole, x, whole.weights, whole.broadcast_rows)
        torch.testing.assert_close(torch.cat(mixed), expected, rtol=0, atol=off)


@pytest.mark.parametrize("size", [2, 3])
def test_what_one_rank_offers_is_what_the_other_finds_a_place_for(size):
    graph = erdos_renyi(9, 0.4, seed=3)
    parts = [links(graph, rank=rank, size=size) for rank in range(size)]
    for way in ("broadcasts", "replies"):
        for one in parts:
            for peer, at in getattr(one, way).offers.items():
                count = len(one.mine if way == "broadcasts" else one.edges)
                place = getattr(parts[peer], way).places[one.ranks.rank]
                assert place.stop - place.start == (count if at is None else len(at))


def test_a_sender_is_sent_once_to_a_rank_however_many_hear_it():
    one = links(star(6), rank=0, size=2)  # agent 0 is heard by all three agents of rank 1
    assert one.broadcasts.offers[1].tolist() == [0]


def test_a_rank_of_a_ring_hears_nobody_but_its_neighbours():
    part = links(ring(12), rank=1, size=4)
    assert set(part.broadcasts.places) == {0, 1, 2}
    assert part.broadcasts.count == 5


def test_blocks_lie_apart_so_that_products_do_not_round_by_their_place():
    whole, x = links(ring(5)), rows(15)
    for value in (Edges(x), Edges(x[:5], whole.senders)):
        blocks = whole.rows_by_receiver(value)
        assert all(block.storage_offset() == 0 for block in blocks)
        assert torch.equal(torch.cat(blocks), value.rows)


class NoReads(TorchDispatchMode):
    """Operations whose result, or its shape, the host would have to wait for on a device."""

    REFUSED = ("_local_scalar_dense", "nonzero", "equal", "masked_select", "_unique2", "item")

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        assert name not in self.REFUSED, f"{name} reads back"
        if name in ("index", "index_put_") and isinstance(args[1], list | tuple):
            assert all(i is None or i.dtype != torch.bool for i in args[1]), "a mask reads back"
        return func(*args, **(kwargs or {}))


def by_steps_alone(read):
    """A way to read a tensor that is refused to all but a step itself, and the look between rounds.

    Of all tensors a step has public tables alone, which are on the host; the functions that it
    gives to a round are refused as well.
    """

    def guarded(self, *given, **named):
        caller = sys._getframe(1)
        home = caller.f_globals["__name__"]
        of_a_step = caller.f_code.co_name == "step" and home.startswith(algorithms.__name__)
        between = (home, caller.f_code.co_name) == (numbers.__name__, "check_numbers")
        assert of_a_step or between, "a tensor is read back"
        with _disable_current_modes():
            return read(self, *given, **named)

    return guarded


class Still:
    """Gradients and noise that touch no host memory."""

    def clipped_sums(self, models, pairs, batches, *, clip_norm, coefficients=(1.0,), **_):
        assert all(isinstance(one, list) for one in pairs), "indices are on the host already"
        return torch.zeros(len(pairs[0]), models.shape[2], dtype=models.dtype)

    def normal(self, *, round, call, rows, width, dtype, device):
        return torch.ones(len(rows), width, dtype=dtype)


@pytest.mark.parametrize("name", ["dpdl", "dp-netfleet", "dyn-d2p", "cdp-dsgd", "muffliato"])
def test_a_round_reads_nothing_back_from_the_device(name, monkeypatch):
    from overhear.training.engine.engine import Engine

    def on_host(table, **_):  # public tables stay on the host, where the script reads them
        assert table.device.type == "cpu"
        return tuple(table.shape)

    monkeypatch.setattr(purity, "mode_is_on", lambda: False)  # the mode that watches, below
    for module in (script, perform):
        monkeypatch.setattr(module, "digest", on_host)
    graph, still = ring(5), Still()
    bound = bound_to(name, graph)
    planned = trace(bound.init, bound.step, graph=graph, rounds=2, noise_multiplier=None).scripts
    engine = Engine(setting(graph), bound, gradients=still, scripts=planned)
    engine.advance()
    drawn = {a: engine.setting.shards[a] for a in range(5)}

    monkeypatch.setattr(engine._randomness, "normal", still.normal)
    for method in ("tolist", "item", "__bool__", "__float__", "__int__", "cpu", "numpy"):
        monkeypatch.setattr(torch.Tensor, method, by_steps_alone(getattr(torch.Tensor, method)))
    with NoReads():
        engine.advance(planted=drawn)
    assert engine.round == 2


def test_gradients_that_put_off_their_check_are_asked_at_the_end_of_a_round():
    from overhear.training.engine.engine import Engine

    class Overflowed(Still):
        asked = 0

        def check(self):
            self.asked += 1
            if self.asked == 2:
                raise FloatingPointError("a sum is not finite")

    graph = ring(5)
    engine = Engine(setting(graph), bound_to("dp-dpsgd", graph), gradients=Overflowed())
    engine.start()
    with pytest.raises(FloatingPointError, match="not finite"):
        engine.advance()
    assert engine.round == 0


def test_a_rank_names_the_pairs_of_the_whole_run_beside_its_own():
    class Asked(Still):
        def __init__(self):
            self.pairs = []

        def clipped_sums(self, models, pairs, batches, *, pairs_of_run, **rest):
            self.pairs.append((len(pairs[0]), pairs_of_run))
            return super().clipped_sums(models, pairs, batches, **rest)

    graph = ring(7)
    for rank in range(3):
        asked, here = Asked(), links(graph, rank=rank, size=3)
        one = TensorRound(
            here, AllRounds(torch.zeros(4), sizes=(4,), gradients=asked), index=1,
            drawing=Drawing(lambda *_: [], lambda _: [], list, lambda _: torch.ones(0, 1)),
            randomness=SecretRandomness(1),
        )  # fmt: skip
        batch = one.draw(Batch(call=0, sampling_rate=None))
        for value in (Agents(rows(len(here.mine), width=4)), Edges(rows(len(here.edges), width=4))):
            one.clipped_sums((value,), batch=batch, coefs=(1.0,), clip_norm=1.0, per=Per.RECORD)
        assert asked.pairs == [(len(here.mine), 7), (len(here.edges), 21)]


def test_an_engine_tells_its_gradients_of_the_whole_run(monkeypatch):
    from overhear.training.engine import engine

    told = {}

    def gradients(*_, **given):
        told.update(given)
        return Still()

    monkeypatch.setattr(engine, "PairGradients", gradients)
    graph = ring(5)
    of = setting(graph)
    engine.Engine(of, bound_to("dp-dpsgd", graph))
    records = sum(len(shard.targets) for shard in of.shards)
    assert told["agents"] == 5
    assert told["batch_size"] == pytest.approx(of.sampling_rate * records / 5)
