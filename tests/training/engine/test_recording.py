"""What a round notes of its batches, its contributions and the makers of its noise."""

import pytest
import torch

from overhear.training.algorithms import ALGORITHMS
from overhear.training.data.store import Examples
from overhear.training.engine.engine import Engine
from overhear.training.engine.randomness import SecretRandomness
from overhear.training.engine.recording import GradientCall, Recorded, WholeCall
from overhear.training.graphs.graph import Graph
from overhear.training.graphs.topologies import ring
from tests.training.contract import CLIP, bound_to, setting, started


def noted(name: str, graph: Graph, *, planted=None) -> tuple[Engine, Recorded]:
    engine, recorded = started(bound_to(name, graph), graph), Recorded()
    engine.advance(planted=planted, recorded=recorded)
    return engine, recorded


def batches_of(call: GradientCall | WholeCall) -> tuple[int, ...]:
    return call.batches if isinstance(call, WholeCall) else (call.batch,)


def test_the_batches_are_those_that_were_summed():
    engine, recorded = noted("dp-dpsgd", ring(5))
    (batch,), (call,) = recorded.batches, recorded.calls
    again = [engine.draw_batch(round=1, call=0, agent=a, rate=None) for a in range(5)]
    assert [at.tolist() for at in batch] == [at.tolist() for at in again]
    assert (call.batch, call.clip_norm) == (0, CLIP)
    assert call.holders.tolist() == [0, 1, 2, 3, 4]
    given = [
        (shard.inputs[at], shard.targets[at])
        for shard, at in zip(engine.setting.shards, batch, strict=True)
    ]
    sums = engine._every.gradients.clipped_sums(
        call.models[0], (range(5), range(5)), given, clip_norm=CLIP
    )
    assert torch.equal(sums, recorded.contributions[0])


def test_a_planted_batch_has_no_positions():
    shard = setting(ring(5)).shards[2]
    _, recorded = noted("dpdl", ring(5), planted={2: Examples(*shard)})
    (batch,) = recorded.batches
    assert [at is None for at in batch] == [False, False, True, False, False]


def test_every_draw_of_a_round_is_noted():
    _, recorded = noted("dp-netfleet", ring(5))
    assert [call.batch for call in recorded.calls] == [0, 1]
    one, other = recorded.batches
    assert [a.tolist() for a in one] != [b.tolist() for b in other]


def test_a_rate_of_its_own_is_used():
    engine = started(bound_to("dp-dpsgd", ring(5)), ring(5))
    assert engine.draw_batch(round=1, call=0, agent=0, rate=1.0).tolist() == list(range(9))
    assert engine.draw_batch(round=1, call=0, agent=0, rate=0.0).tolist() == []


def test_the_start_notes_its_batch_too():
    bound, recorded = bound_to("dpmixsgd", ring(5)), Recorded()
    engine = Engine(setting(ring(5), min_max=True), bound, randomness=SecretRandomness(5))
    engine.start(recorded=recorded)
    assert [[len(at) for at in batch] for batch in recorded.batches] == [[9] * 5]
    assert [call.batch for call in recorded.calls] == [0, 0]


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
    _, recorded = noted(name, ring(3))
    found = [set(of) for of in recorded.makers[0]]
    assert found == expected
    assert [len(of) for of in recorded.makers] == [len(z) for z in recorded.noise]


def test_every_private_algorithm_notes_as_many_entries_as_the_lists_that_they_explain():
    for name, algorithm in ALGORITHMS.items():
        _, recorded = noted(name, ring(3))
        assert len(recorded.calls) == len(recorded.contributions), name
        assert len(recorded.makers) == len(recorded.noise) >= algorithm.private, name
        taken = {batch for call in recorded.calls if call for batch in batches_of(call)}
        assert taken <= set(range(len(recorded.batches))), name


def test_a_round_that_is_recorded_is_the_same_round():
    for name in ALGORITHMS:
        plain = started(bound_to(name, ring(3)), ring(3))
        plain.advance()
        recorded, _ = noted(name, ring(3))
        after = recorded.snapshot()
        for field, value in plain.snapshot().items():
            assert torch.equal(value, after[field]), (name, field)


def test_noise_is_recorded_as_it_was_drawn_and_not_as_it_is_added():
    engine, recorded = noted("dp-dpsgd", ring(3))
    (z,) = recorded.noise
    again = engine._randomness.normal(round=1, call=0, rows=range(3), width=23, dtype=z.dtype)
    assert torch.equal(z, again)


def test_what_counts_as_known_is_recorded_after_it_was_projected():
    engine, recorded = noted("dp-sgda", ring(3))
    assert [torch.equal(rows, engine.state.y.rows) for rows in recorded.known] == [True]
