import pytest
import torch
from torch import nn

from overhear.training.algorithms import ALGORITHMS, bind
from overhear.training.data.store import Examples
from overhear.training.engine.engine import Engine
from overhear.training.engine.randomness import SecretRandomness
from overhear.training.engine.setting import Setting
from overhear.training.engine.transcript import Transcript
from overhear.training.graphs.topologies import ring
from tests.training.contract import bound_to, setting


class Bag(nn.Module):
    """Words to classes: the mean of their vectors, and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(7, 4)
        self.out = nn.Linear(4, 2)

    def forward(self, indices: torch.Tensor) -> torch.Tensor:
        return self.out(self.words(indices).mean(1))


def test_restoring_a_snapshot_releases_nothing():
    # DPMixSGD's start sends what a first large batch gave.
    graph = ring(4)
    first = Engine(setting(graph, min_max=True), bound_to("dpmixsgd", graph))
    first.start()
    heard: list[int] = []
    again = Engine(
        setting(graph, min_max=True),
        bound_to("dpmixsgd", graph),
        taps=[lambda message: heard.append(message.round)],
    )
    again.restore(first.snapshot(), round=3)
    assert heard == []
    again.advance()
    assert set(heard) == {4}


def test_inputs_that_are_indices_stay_indices():
    graph, rng = ring(3), torch.Generator().manual_seed(0)
    shards = [
        Examples(torch.randint(7, (6, 5), generator=rng), torch.randint(2, (6,), generator=rng))
        for _ in range(3)
    ]
    algorithm = ALGORITHMS["dp-dpsgd"]
    bound = bind(
        algorithm, algorithm.settings(), learning_rate=0.1, clip_norm=1.0, noise_std=0.1,
        batch_size=3.0, graph=graph,
    )  # fmt: skip
    engine = Engine(
        Setting(
            graph=graph, model=Bag(), shards=shards, sampling_rate=0.5, device=torch.device("cpu")
        ),
        bound,
        randomness=SecretRandomness(1),
    )
    engine.start()
    before = engine.models().clone()
    engine.advance(planted={0: shards[1]})
    assert engine.layout == "book-keeping"  # a forward of its own, whose graph was looked at
    assert not torch.equal(engine.models(), before)


def test_a_transcript_that_names_no_round_keeps_nothing():
    graph = ring(4)
    transcript = Transcript(())
    engine = Engine(setting(graph), bound_to("dpdl", graph), taps=[transcript])
    engine.start()
    engine.advance()
    assert len(transcript) == 0


def test_a_round_that_failed_is_not_released_again_under_the_same_noise():
    graph = ring(4)

    def breaks(message):
        if message.round == 2:
            raise OSError("the disk is full")

    engine = Engine(setting(graph), bound_to("dpdl", graph), taps=[breaks])
    engine.start()
    engine.advance()
    for error in (OSError, RuntimeError, RuntimeError):
        with pytest.raises(error):
            engine.advance()
    assert engine.round == 1
    engine.taps = ()
    engine.start()  # of the system's entropy: fresh noise
    engine.advance()
