"""The engine: all agents of a run in one process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from .algorithms.algorithm import Bound, check_weights
from .auroc import auroc
from .data import poisson_batch
from .gradients import ClippedSums, PairGradients
from .graph import Topology
from .models import flatten, unflatten
from .randomness import Purpose, SecretRandomness
from .round import Agents
from .tasks import Task
from .tensor_round import Examples, Links, Sources, TensorRound
from .transcript import Tap


class Metrics(NamedTuple):
    """Test metrics of a round.

    Attributes:
        round: the round after which they were taken.
        accuracy, loss: (A,) of each agent's model.
        consensus_accuracy, consensus_loss: of the mean model.
        consensus_distance: root mean squared distance of the models from their mean.
        auroc, consensus_auroc: of two classes, class 1 being the positive one; None of more.
    """

    round: int
    accuracy: tuple[float, ...]
    loss: tuple[float, ...]
    consensus_accuracy: float
    consensus_loss: float
    consensus_distance: float
    auroc: tuple[float, ...] | None = None
    consensus_auroc: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """What a run consists of, apart from its numbers.

    Attributes:
        graph: the topology and its weights, for all rounds or round by round.
        model: the network, with the public initial parameters.
        shards: each agent's inputs and targets.
        sampling_rate: probability that a record is in a batch.
        device: where the run computes.
        dtype: torch.float32 or torch.float64.
        layout: gradient layout.
        task: what is minimised in place of the model's cross-entropy; the model, whose parameters
            are its first block, is what the metrics evaluate.
    """

    graph: Topology
    model: nn.Module
    shards: Sequence[Examples]
    sampling_rate: float
    device: torch.device
    dtype: torch.dtype = torch.float32
    layout: str = "auto"
    task: Task | None = None

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
        gradients: in place of the setting's own layout, for audits.

    Raises:
        ValueError: weights or a task that do not fit the algorithm.
    """

    def __init__(
        self,
        setting: Setting,
        bound: Bound,
        *,
        randomness: SecretRandomness | None = None,
        taps: Sequence[Tap] = (),
        gradients: ClippedSums | None = None,
    ) -> None:
        check_weights(setting.graph, bound.weights)
        blocks = len(setting.task.dimensions) if setting.task else 1
        if bound.blocks not in (None, blocks):
            raise ValueError(
                f"the points of the algorithm have {bound.blocks} blocks, but those of the setting "
                f"{blocks}: a min-max algorithm needs a task with dual variables, such as "
                "ClassWeights, and any other needs a task of parameters alone, or none"
            )
        self.setting, self.taps = setting, tuple(taps)
        self._bound = bound
        self._randomness = randomness or SecretRandomness()
        self._links = {
            graph: Links(graph, device=setting.device, dtype=setting.dtype)
            for graph in setting.graph.graphs
        }
        self._gradients: ClippedSums = gradients or PairGradients(
            setting.task or setting.model,
            setting.layout,  # type: ignore[arg-type] # the layout's name is checked by PairGradients
            device=setting.device,
            dtype=setting.dtype,
        )
        initial = setting.task.initial() if setting.task else flatten(setting.model)
        self._initial = initial.detach().to(setting.device, setting.dtype)
        self._shards = [
            Examples(s.inputs.to(setting.device, setting.dtype), s.targets.to(setting.device))
            for s in setting.shards
        ]
        self.round = 0
        self.state: Any = None

    def draw_batch(self, *, round: int, call: int, agent: int, rate: float | None) -> Tensor:
        """Positions in an agent's shard of the records of one batch, drawn as the run draws them.

        Args:
            round: the number of the round.
            call: the number of the call of `draw` within the round.
            agent: whose shard.
            rate: the sampling rate; None is the run's.

        Returns:
            (B,) ascending, on the run's device.
        """
        chosen = poisson_batch(
            len(self._shards[agent].targets),
            self.setting.sampling_rate if rate is None else rate,
            generator=self._randomness.stream(Purpose.BATCH, round=round, call=call, row=agent),
        )
        return torch.from_numpy(np.asarray(chosen, dtype=np.int64)).to(self.setting.device)

    def _make_round(
        self, index: int, *, planted: Mapping[int, Examples], sources: Sources | None
    ) -> TensorRound:
        def draw(call: int, agent: int, rate: float | None) -> Examples:
            if agent in planted:
                held, at = planted[agent], None
                batch = Examples(
                    held.inputs.to(self.setting.device, self.setting.dtype),
                    held.targets.to(self.setting.device),
                )
            else:
                at = self.draw_batch(round=index, call=call, agent=agent, rate=rate)
                shard = self._shards[agent]
                batch = Examples(shard.inputs[at], shard.targets[at])
            if sources is not None:
                if call == len(sources.batches):
                    sources.batches.append([])
                sources.batches[call].append(at)
            return batch

        return TensorRound(
            self._links[self.setting.graph.at(index)],
            index=index,
            initial=self._initial,
            gradients=self._gradients,
            draw=draw,
            randomness=self._randomness,
            sizes=self.setting.task.dimensions if self.setting.task else None,
            projection=self.setting.task.project if self.setting.task else None,
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
    """Loss, accuracy and, of two classes, AUROC of every agent's model and of their mean.

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
        accuracy=tuple(s.accuracy for s in own),
        loss=tuple(s.loss for s in own),
        consensus_accuracy=consensus.accuracy,
        consensus_loss=consensus.loss,
        consensus_distance=distance,
        auroc=tuple(s.auroc for s in own if s.auroc is not None) or None,
        consensus_auroc=consensus.auroc,
    )


class _Score(NamedTuple):
    accuracy: float
    loss: float
    auroc: float | None


@torch.no_grad()
def _score(model: nn.Module, flat: Tensor, examples: Examples, *, batch: int) -> _Score:
    parameters = {name: value.to(flat.device) for name, value in unflatten(model, flat).items()}
    right, loss, margins = 0.0, 0.0, list[Tensor]()
    for x, y in zip(examples.inputs.split(batch), examples.targets.split(batch), strict=True):
        inputs, targets = x.to(flat.device, flat.dtype), y.to(flat.device)
        logits = torch.func.functional_call(model, parameters, (inputs,))
        loss += float(nn.functional.cross_entropy(logits, targets, reduction="sum"))
        right += float((logits.argmax(dim=1) == targets).sum())
        if logits.shape[1] == 2:
            margins.append(logits[:, 1] - logits[:, 0])
    area = auroc(torch.cat(margins), examples.targets == 1) if margins else None
    return _Score(right / len(examples.targets), loss / len(examples.targets), area)
