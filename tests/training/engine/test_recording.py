"""What a round notes of its batches, its contributions and the makers of its noise."""

import pytest
import torch

from overhear.training.algorithms import ALGORITHMS
from overhear.training.engine.engine import Engine
from overhear.training.engine.randomness import SecretRandomness
from overhear.training.engine.tensor_round import Examples, Sources
from overhear.training.graphs.graph import Graph
from overhear.training.graphs.topologies import ring
from tests.training.contract import CLIP, bound_to, setting, started


def noted(name: str, graph: Graph, *, planted=None) -> tuple[Engine, Sources]:
    engine, sources = started(bound_to(name, graph), graph), Sources()
    engine.advance(planted=planted, sources=sources)
    return engine, sources


def test_the_batches_are_those_that_were_summed():
    engine, sources = noted("dp-dpsgd", ring(5))
    (batch,), (taken,) = sources.batches, sources.taken
    again = [engine.draw_batch(round=1, call=0, agent=a, rate=None) for a in range(5)]
    assert [at.tolist() for at in batch] == [at.tolist() for at in again]
    assert (taken.batch, taken.clip_norm) == (0, CLIP)
    assert taken.holders.tolist() == [0, 1, 2, 3, 4]
    given = [
        (shard.inputs[at], shard.targets[at])
        for shard, at in zip(engine.setting.shards, batch, strict=True)
    ]
    sums = engine._gradients.clipped_sums(
        taken.models[0], (range(5), range(5)), given, clip_norm=CLIP
    )
    assert torch.equal(sums, sources.contributions[0])


def test_a_planted_batch_has_no_positions():
    shard = setting(ring(5)).shards[2]
    _, sources = noted("dpdl", ring(5), planted={2: Examples(*shard)})
    (batch,) = sources.batches
    assert [at is None for at in batch] == [False, False, True, False, False]


def test_every_draw_of_a_round_is_noted():
    _, sources = noted("dp-netfleet", ring(5))
    assert [taken.batch for taken in sources.taken] == [0, 1]
    one, other = sources.batches
    assert [a.tolist() for a in one] != [b.tolist() for b in other]


def test_a_rate_of_its_own_is_used():
    engine = started(bound_to("dp-dpsgd", ring(5)), ring(5))
    assert engine.draw_batch(round=1, call=0, agent=0, rate=1.0).tolist() == list(range(9))
    assert engine.draw_batch(round=1, call=0, agent=0, rate=0.0).tolist() == []


def test_the_start_notes_its_batch_too():
    bound, sources = bound_to("dpmixsgd", ring(5)), Sources()
    engine = Engine(setting(ring(5), min_max=True), bound, randomness=SecretRandomness(5))
    engine.start(sources=sources)
    assert [[len(at) for at in batch] for batch in sources.batches] == [[9] * 5]
    assert [taken.batch for taken in sources.taken] == [0, 0]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("dp-dpsgd", [{0}, {1}, {2}]),
        ("dpdl", [{0}, {0}, {0}, {1}, {1}, {1}, {2}, {2}, {2}]),
        ("whisper", [{0, 1, 2}] * 3),
        ("cdp-dsgd", [set()]),
        ("decor", [{0}, {1}, {2}, {0, 1}, {0, 2}, {1, 2}]),
    ],
)
def test_makers_are_the_holders_of_the_rows_that_a_source_enters(name, expected):
    _, sources = noted(name, ring(3))
    found = [set(of) for of in sources.makers[0]]
    assert found == expected
    assert [len(of) for of in sources.makers] == [len(z) for z in sources.noise]


def test_every_private_algorithm_notes_as_many_entries_as_the_lists_that_they_explain():
    for name, algorithm in ALGORITHMS.items():
        _, sources = noted(name, ring(3))
        assert len(sources.taken) == len(sources.contributions), name
        assert len(sources.makers) == len(sources.noise) >= algorithm.private, name
        assert {t.batch for t in sources.taken if t} <= set(range(len(sources.batches))), name
