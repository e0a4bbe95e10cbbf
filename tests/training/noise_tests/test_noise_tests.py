"""Tests of noise while a run trains: sound runs pass all of them, planted faults are stopped."""

from collections.abc import Callable
from contextlib import AbstractContextManager, contextmanager
from unittest.mock import patch

import numpy as np
import pytest
import torch
from torch import nn

from overhear.privacy.errors import InputError
from overhear.training.algorithms import ALGORITHMS
from overhear.training.data.store import Examples
from overhear.training.engine.engine import Engine
from overhear.training.engine.exchange import Ranks
from overhear.training.engine.randomness import SecretRandomness
from overhear.training.engine.setting import Setting
from overhear.training.engine.tensor_round import TensorRound
from overhear.training.engine.transcript import Transcript
from overhear.training.graphs.topologies import full, ring, star
from overhear.training.models.parameters import sizes_of
from overhear.training.noise_tests import noise_tests
from overhear.training.noise_tests.measured import Closer, Coordinates, _look, _on_device, _on_host
from overhear.training.noise_tests.noise_tests import NoiseTestFailed, NoiseTests, Place
from overhear.training.step.values import Agents
from tests.training.contract import bound_to, setting

ROUNDS = 6


def wide(graph, *, dtype=torch.float32) -> Setting:
    """A network of 650 parameters, ten of them biases, and four records an agent."""
    rng = torch.Generator().manual_seed(1)
    shards = [
        Examples(torch.randn(4, 64, generator=rng), torch.randint(10, (4,), generator=rng))
        for _ in range(graph.agents)
    ]
    return Setting(
        graph=graph, model=nn.Linear(64, 10), shards=shards, sampling_rate=0.5,
        device=torch.device("cpu"), dtype=dtype,
    )  # fmt: skip


def train(
    name: str, *, rounds=ROUNDS, graph=None, of=None, noise_std=0.8, dtype=torch.float32, **more
) -> NoiseTests:
    graph = graph or ring(5)
    made = of or wide(graph, dtype=dtype)
    sizes = sizes_of(made.model)
    tests = NoiseTests(parts={sum(sizes): sizes})
    bound = bound_to(name, graph, noise_std=noise_std, rounds=rounds)
    engine = Engine(made, bound, noise_tests=tests, **more)
    for _ in range(rounds):
        engine.advance()
    assert tests.rounds == rounds + 1
    return tests


@contextmanager
def _noise(change: Callable[[TensorRound, torch.Tensor], torch.Tensor]):
    """What every operation of noise gives, changed."""
    sound = TensorRound.noise

    def noise(self, like, **how):
        return type(like)(change(self, sound(self, like, **how).rows.clone()))

    with patch.object(TensorRound, "noise", noise):
        yield


@contextmanager
def _drawn(change: Callable[[torch.Tensor], torch.Tensor]):
    """What every source draws, changed."""
    sound = SecretRandomness.normal
    with patch.object(SecretRandomness, "normal", lambda self, **how: change(sound(self, **how))):
        yield


@contextmanager
def _seeded(of: Callable[[int, int], tuple[int, int]]):
    """Streams of other (round, row)."""
    sound = SecretRandomness.counter

    def counter(self, purpose, *, round, call, row):
        number, source = of(round, row)
        return sound(self, purpose, round=number, call=call, row=source)

    with patch.object(SecretRandomness, "counter", counter):
        yield


def _set(rows: torch.Tensor, at: object, factor: float) -> torch.Tensor:
    rows[at] *= factor
    return rows


FAULTS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "all at sigma over the root of 2": lambda: _noise(lambda _, z: z / 2**0.5),
    "drawn at sigma over the root of 2": lambda: _drawn(lambda z: z / 2**0.5),
    "a tenth too small": lambda: _noise(lambda _, z: 0.9 * z),
    "too large": lambda: _noise(lambda _, z: 1.2 * z),
    "the last round alone": lambda: _noise(lambda of, z: z / 2**0.5 if of.index == ROUNDS else z),
    "one row without": lambda: _noise(lambda _, z: _set(z, 0, 0.0)),
    "one row halved": lambda: _noise(lambda _, z: _set(z, 1, 0.5)),
    "no noise on biases": lambda: _noise(
        lambda _, z: _set(z, (slice(None), slice(-10, None)), 0.0)
    ),
    "a coordinate without": lambda: _noise(lambda _, z: _set(z, (slice(None), 6), 0.0)),
    "none at all": lambda: _noise(lambda _, z: 0 * z),
    "no number": lambda: _noise(lambda _, z: z * float("nan")),
    "rounded to float16": lambda: _drawn(lambda z: z.half().to(z.dtype)),
    "on a grid": lambda: _drawn(lambda z: (50 * z).round() / 50),
    "signs": lambda: _drawn(torch.sign),
    "clamped at 2": lambda: _drawn(lambda z: z.clamp(-2, 2)),
    "uniform": lambda: _drawn(lambda z: (torch.rand_like(z) - 0.5) * 12**0.5),
    "second half a copy": lambda: _drawn(lambda z: torch.cat([z[:, :325], z[:, :325]], dim=1)),
    "two sources in one": lambda: _seeded(lambda round, row: (round, row - row % 2)),
    "reseeded every third round": lambda: _seeded(lambda round, row: (round % 3, row)),
    "one row negated": lambda: _drawn(lambda z: torch.cat([z[:1], -z[:1], z[2:]])),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_of_the_noise_stops_the_run(name):
    with FAULTS[name](), pytest.raises(NoiseTestFailed, match="was stopped"):
        train("dp-dpsgd")


@pytest.mark.parametrize("name", ["dpdl", "dp-cga", "decor", "whisper", "cdp-dsgd", "ldp-dsgd"])
@pytest.mark.parametrize("fault", ["all at sigma over the root of 2", "reseeded every third round"])
def test_it_is_found_wherever_an_algorithm_adds_its_noise(name, fault):
    with FAULTS[fault](), pytest.raises(NoiseTestFailed):
        train(name)


@pytest.mark.some_quick(8)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_sound_noise_passes(name, dtype):
    # By construction one run in 1e30 fails.
    if ALGORITHMS[name].blocks == 2:
        train(name, of=setting(ring(5), min_max=True))
        return
    for graph in (ring(5), full(4)):
        train(name, graph=graph, dtype=dtype, rounds=3)


@pytest.mark.parametrize("std", [1e-6, 1e-18, 1e12, 1e20])
def test_neither_do_very_small_and_very_large_deviations_fail(std):
    value = Agents(torch.randn(4, 40_000) * std)
    watch = NoiseTests().of_round(1, {"Agents": Place(0, 4)})
    watch.note(value, std=std, factor=None)
    watch.settle(at_end=True)


def test_hardened_noise_passes():
    train("dpdl", randomness=SecretRandomness(hardened=True))


def test_without_noise_nothing_is_tested():
    assert train("dp-dpsgd", noise_std=0.0).numbers == 0


def test_a_single_coordinate_does_not_fail():
    # Nothing can be told of 4 numbers at this rate, but of 200 rounds together.
    tests = NoiseTests()

    def look(first: int, last: int, *, factor: float) -> None:
        for number in range(first, last):
            watch = tests.of_round(number, {"Agents": Place(0, 4)})
            watch.note(Agents(factor * torch.randn(4, 1)), std=1.0, factor=None)
            watch.settle(at_end=True)

    look(0, 200, factor=1.0)
    assert (tests.rounds, tests.numbers) == (200, 800)
    with pytest.raises(NoiseTestFailed):
        look(200, 600, factor=0.3)


def _rounds_until_found(change: Callable[[torch.Tensor], torch.Tensor], *, width: int) -> int:
    """How many rounds of 30 rows pass, the last of which is stopped."""
    tests = NoiseTests()
    rng = torch.Generator().manual_seed(2)
    for number in range(1, 100):
        watch = tests.of_round(number, {"Agents": Place(0, 30)})
        watch.note(Agents(change(torch.randn(30, width, generator=rng))), std=1.0, factor=None)
        try:
            watch.settle(at_end=True)
        except NoiseTestFailed:
            return number
    raise AssertionError("nothing was found in 99 rounds")


def test_half_the_noise_on_one_coordinate_is_found_after_some_looks():
    # Some 300 of its numbers, by a chi-square law at half of the deviation: ten looks at 30 rows.
    halved = torch.ones(2410)
    halved[77] = 0.5
    assert 20 <= _rounds_until_found(lambda z: z * halved, width=2410) <= 44
    # Where an operation has more numbers there is a look in every round.
    halved = torch.ones(40_000)
    halved[77] = 0.5
    assert 8 <= _rounds_until_found(lambda z: z * halved, width=40_000) <= 15


def test_small_operations_are_looked_at_closer_now_and_then_and_each_row_has_its_turn():
    turns = [turn for turn in range(1, 101) if _look(30, 650, turn=turn, mixed=True)]
    assert turns[:6] == [1, 2, 3, 4, 8, 12]
    assert turns[-1] == 100
    chosen = {_look(30, 650, turn=turn, mixed=True).alone.start for turn in range(4, 130, 4)}
    assert chosen == set(range(30))
    assert all(_look(30, 60_000, turn=turn, mixed=False) for turn in range(1, 40))
    blocks = [_look(30, 60_000, turn=turn, mixed=False).block for turn in range(1, 40)]
    assert {row for block in blocks for row in range(30)[block]} == set(range(30))


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("turn", [1, 5, 8])
def test_figures_of_a_device_are_those_of_the_host(mixed, turn):
    rows = torch.randn(6, 400) * torch.arange(1, 7)[:, None]
    scales = np.arange(1.0, 7.0)[:, None] if mixed else np.full((6, 1), 2.0)
    found = []
    for reduce in (_on_host, _on_device):
        how = {"parts": [300, 100], "coordinates": Coordinates()}
        found.append(reduce(rows, scales, look=_look(6, 400, turn=turn, mixed=mixed), **how))
    host, device = noise_tests._read(found)
    assert host.squares == pytest.approx(device.squares, rel=1e-5)
    assert host.sample == pytest.approx(device.sample, rel=1e-6)
    assert (host.closer is None) == (device.closer is None) == (turn == 5)
    for name in Closer.__dataclass_fields__ if host.closer else ():
        one, other = getattr(host.closer, name), getattr(device.closer, name)
        assert one == pytest.approx(other, rel=1e-5, abs=1e-4), name


def test_the_numbers_are_those_of_all_agents():
    # A ring of 5 has 15 edges with its loops; 650 coordinates, 6 rounds.
    assert train("dpdl").numbers == 15 * 650 * ROUNDS
    assert train("dp-dpsgd").numbers == 5 * 650 * ROUNDS


def test_no_message_of_the_round_is_heard():
    heard = Transcript()
    with FAULTS["the last round alone"](), pytest.raises(NoiseTestFailed, match="round 6 was"):
        train("dp-dpsgd", taps=[heard])
    assert {message.round for message in heard} == set(range(1, ROUNDS))


def test_a_sentence_holds_no_figure_of_the_noise():
    said = set()
    for factor in (0.5, 0.61):
        with _noise(lambda _, z, by=factor: by * z), pytest.raises(NoiseTestFailed) as failed:
            train("dp-dpsgd")
        said.add(str(failed.value))
    assert len(said) == 1


def test_mixed_noise_that_is_not_mixed_is_found():
    def apart(_, rows):
        return torch.randn_like(rows) * rows.std(dim=1, keepdim=True)

    with _noise(apart), pytest.raises(NoiseTestFailed, match="covariance"):
        train("decor")


def test_noise_that_must_cancel_and_does_not_is_found():
    factor = torch.tensor([[1.0, -1.0], [-1.0, 1.0]]) / 2**0.5
    for other, passes in ((-1.0, True), (-0.9, False)):
        z = torch.randn(2, 500)
        row = factor[0].double() @ z.double()
        value = Agents(torch.stack([row, other * row]).float())
        watch = NoiseTests().of_round(1, {"Agents": Place(0, 2)})
        watch.note(value, std=1.0, factor=factor)
        if passes:
            watch.settle(at_end=True)
        else:
            with pytest.raises(NoiseTestFailed, match="covariance"):
                watch.settle(at_end=True)


def test_a_rank_tests_the_rows_that_it_holds():
    torch.manual_seed(1)  # norms of rows that differ by chance show it, and some do not
    factor = torch.randn(6, 9, dtype=torch.float64)
    whole = (factor @ torch.randn(9, 700, dtype=torch.float64) * 0.3).float()
    for rank in range(2):
        mine = Ranks(agents=6, rank=rank, size=2).mine
        watch = NoiseTests().of_round(1, {"Agents": Place(mine.start, 6)})
        watch.note(Agents(whole[mine.start : mine.stop]), std=0.3, factor=factor)
        watch.settle(at_end=True)
        other = NoiseTests().of_round(1, {"Agents": Place(3 - mine.start, 6)})
        other.note(Agents(whole[mine.start : mine.stop]), std=0.3, factor=factor)
        with pytest.raises(NoiseTestFailed):
            other.settle(at_end=True)


def test_on_a_device_one_copy_a_round_is_awaited(monkeypatch):
    reads = []
    sound = noise_tests._read
    monkeypatch.setattr(noise_tests, "_read", lambda one: reads.append(len(one)) or sound(one))
    watch = NoiseTests().of_round(1, {"Agents": Place(0, 3)})
    for _ in range(2):
        watch.note(Agents(torch.randn(3, 50)), std=1.0, factor=None)
    with monkeypatch.context() as there:
        there.setattr(noise_tests, "_is_here", lambda _: False)
        watch.settle(at_end=False)
        assert not reads
        watch.settle(at_end=True)
    assert reads == [2]


def test_a_server_s_noise_is_counted_once():
    assert train("cdp-dsgd", graph=star(5)).numbers == 650 * ROUNDS


@pytest.mark.parametrize("rate", [0.0, 1.0, -1.0, float("nan")])
def test_a_rate_that_is_none_is_refused(rate):
    with pytest.raises(InputError, match="rate"):
        NoiseTests(rate=rate)
