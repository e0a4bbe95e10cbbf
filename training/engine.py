"""The engine: all agents of a run in one process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from .algorithms.algorithm import Bound
from .data import poisson_batch
from .gradients import PairGradients
from .graph import Graph
from .models import flatten, unflatten
from .randomness import Purpose, SecretRandomness
from .round import Agents
from .tensor_round import Examples, Links, Sources, TensorRound
from .transcript import Tap


class Metrics(NamedTuple):
    """Test metrics of a round.

    Attributes:
        round: the round after which they were taken.
        accuracy, loss: (A,) of each agent's model.
        consensus_accuracy, consensus_loss: of the mean model.
        consensus_distance: root mean squared distance of the models from their mean.
    """

    round: int
    accuracy: tuple[float, ...]
    loss: tuple[float, ...]
    consensus_accuracy: float
    consensus_loss: float
    consensus_distance: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """What a run consists of, apart from its numbers.

    Attributes:
        graph: the topology and its weights.
        model: the network, with the public initial parameters.
        shards: each agent's inputs and targets.
        sampling_rate: probability that a record is in a batch.
        device: where the run computes.
        dtype: torch.float32 or torch.float64.
        layout: gradient layout.
    """

    graph: Graph
    model: nn.Module
    shards: Sequence[Examples]
    sampling_rate: float
    device: torch.device
    dtype: torch.dtype = torch.float32
    layout: str = "auto"

    def __post_init__(self) -> None:
        """Check that every agent has data and that the rate is a probability."""
        if len(self.shards) != self.graph.agents:
            raise ValueError(
                f"{len(self.shards)} shards for {self.graph.agents} agents; give one to each"
            )
        if not 0 <= self.sampling_rate <= 1:
            raise ValueError(
                f"sampling_rate={self.sampling_rate} must lie in [0, 1]; did you mean batch_size?"
            )


class Engine:
    """Runs an algorithm.

    Args:
        setting: graph, model and data.
        bound: the algorithm with its numbers.
        randomness: noise and batches; of the system's entropy when None.
        taps: called with every message before it is delivered.
    """

    def __init__(
        self,
        setting: Setting,
        bound: Bound,
        *,
        randomness: SecretRandomness | None = None,
        taps: Sequence[Tap] = (),
    ) -> None:
        self.setting, self.taps = setting, tuple(taps)
        self._bound = bound
        self._randomness = randomness or SecretRandomness()
        self._links = Links(setting.graph, device=setting.device, dtype=setting.dtype)
        self._gradients = PairGradients(
            setting.model,
            setting.layout,  # type: ignore[arg-type] # the layout's name is checked by PairGradients
            device=setting.device,
            dtype=setting.dtype,
        )
        self._initial = flatten(setting.model).detach().to(setting.device, setting.dtype)
        self._shards = [
            Examples(s.inputs.to(setting.device, setting.dtype), s.targets.to(setting.device))
            for s in setting.shards
        ]
        self.round = 0
        self.state: Any = None

    def _make_round(
        self, index: int, *, planted: Mapping[int, Examples], sources: Sources | None
    ) -> TensorRound:
        def draw(call: int, agent: int, rate: float | None) -> Examples:
            if agent in planted:
                held = planted[agent]
                return Examples(
                    held.inputs.to(self.setting.device, self.setting.dtype),
                    held.targets.to(self.setting.device),
                )
            stream = self._randomness.stream(Purpose.BATCH, round=index, call=call, row=agent)
            shard = self._shards[agent]
            chosen = poisson_batch(
                len(shard.targets),
                self.setting.sampling_rate if rate is None else rate,
                generator=stream,
            )
            at = torch.from_numpy(np.asarray(chosen, dtype=np.int64)).to(self.setting.device)
            return Examples(shard.inputs[at], shard.targets[at])

        return TensorRound(
            self._links,
            index=index,
            initial=self._initial,
            gradients=self._gradients,
            draw=draw,
            randomness=self._randomness,
            taps=self.taps,
            sources=sources,
        )

    def start(self, *, sources: Sources | None = None) -> None:
        """Run the algorithm's `init`; started again, it draws fresh noise."""
        if self.state is not None:
            self._randomness = self._randomness.renewed()
        self.state = self._bound.init(self._make_round(0, planted={}, sources=sources))
        self.round = 0

    def advance(
        self, *, planted: Mapping[int, Examples] | None = None, sources: Sources | None = None
    ) -> None:
        """Run one round.

        Args:
            planted: agents whose batch is given instead of drawn, for attacks and audits.
            sources: filled with what the round drew.
        """
        if self.state is None:
            self.start()
        current = self._make_round(self.round + 1, planted=planted or {}, sources=sources)
        self.state = self._bound.step(self.state, current)
        self.round += 1

    def models(self) -> Tensor:
        """(A, D) the models as they are now."""
        rows: Tensor = self.state.x.rows
        return rows

    def snapshot(self) -> dict[str, Tensor]:
        """The state by field, on the CPU."""
        return {
            name: (value.rows if isinstance(value, Agents) else value).detach().to("cpu", copy=True)
            for name, value in self.state._asdict().items()
        }

    def restore(self, snapshot: Mapping[str, Tensor], *, round: int) -> None:
        """Continue from a snapshot taken after the given round.

        Raises:
            ValueError: fields or shapes that are not those of the algorithm's state.
        """
        self.start()
        mine = self.snapshot()
        shapes = {name: tuple(value.shape) for name, value in mine.items()}
        given = {name: tuple(value.shape) for name, value in snapshot.items()}
        if shapes != given:
            raise ValueError(f"snapshot holds {given}, but the algorithm's state is {shapes}")
        held = self.state._asdict()
        fields = {
            name: Agents(value.to(self.setting.device, self.setting.dtype))
            if isinstance(held[name], Agents)
            else value.to(self.setting.device)
            for name, value in snapshot.items()
        }
        self.state = self.state._replace(**fields)
        self.round = round


def evaluate(
    model: nn.Module,
    models: Tensor,
    examples: Examples,
    *,
    round: int,
    batch: int = 2048,
) -> Metrics:
    """Loss and accuracy of every agent's model and of their mean.

    Args:
        model: the network; its own parameters are not used.
        models: (A, D) flat parameters.
        examples: test inputs and targets.
        round: the number that the metrics carry.
        batch: examples at once.
    """
    mean = models.mean(dim=0)
    distance = float((models - mean).square().sum(dim=1).mean().sqrt())
    own = [_score(model, flat, examples, batch=batch) for flat in models]
    consensus = _score(model, mean, examples, batch=batch)
    return Metrics(
        round=round,
        accuracy=tuple(a for a, _ in own),
        loss=tuple(loss for _, loss in own),
        consensus_accuracy=consensus[0],
        consensus_loss=consensus[1],
        consensus_distance=distance,
    )


@torch.no_grad()
def _score(
    model: nn.Module, flat: Tensor, examples: Examples, *, batch: int
) -> tuple[float, float]:
    parameters = {name: value.to(flat.device) for name, value in unflatten(model, flat).items()}
    right, loss = 0.0, 0.0
    for x, y in zip(examples.inputs.split(batch), examples.targets.split(batch), strict=True):
        inputs, targets = x.to(flat.device, flat.dtype), y.to(flat.device)
        logits = torch.func.functional_call(model, parameters, (inputs,))
        loss += float(nn.functional.cross_entropy(logits, targets, reduction="sum"))
        right += float((logits.argmax(dim=1) == targets).sum())
    return right / len(examples.targets), loss / len(examples.targets)
