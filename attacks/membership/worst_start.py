"""What a last model shows most of: initial parameters near a minimum, and a mislabelled canary.

Who sees only the last model sees the canary through everything that came after it. Ordinary
gradients move the models, differently in every run, and push back what the canary did. From initial
parameters that are trained already they are small, and the canary, whose label these parameters
hold for least likely, has a gradient that stays long and points one way. Both are allowed to whom
a proof holds against: epsilon is said of all initial parameters and of all records.

    start     Adam on the cross-entropy of held-out records, without privacy, from the run's own
              initial parameters
    canary    the held-out record that the start is surest of, under its least likely label
    replaced  for "replace-one", by its mirror image -x under the same label; where inputs are no
              real numbers, by itself under the next less likely label

Source: M. S. M. S. Annamalai, E. De Cristofaro, "Nearly tight black-box auditing of differentially
private machine learning", NeurIPS 2024, arXiv:2405.14106, section 4.

Where we differ from the paper: it trains the start on half of the data set and takes the rest for
the run; we leave the run's records alone. Its canary is blank or mislabelled; ours is mislabelled
whatever the inputs are, since a blank one may have a gradient that is shorter than the clip norm.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ...privacy.errors import InputError
from ...training.data.dataset import Examples
from ...training.engine.engine import Setting
from ...training.models.tasks import Task

__all__ = ["Canary", "canary_for", "worst_start"]

_MOST_RECORDS = 2000  # that the start is trained on
_STEPS, _LEARNING_RATE = 300, 0.02


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Canary:
    """The record that a coin decides about.

    Attributes:
        inside: (1) the canary.
        outside: (0), or for "replace-one" (1) what stands in its place.
    """

    inside: Examples
    outside: Examples


@dataclass(frozen=True, slots=True)
class _StartedTask:
    """A task whose first block starts elsewhere."""

    task: Task
    first: Tensor

    @property
    def dimensions(self) -> tuple[int, ...]:
        return self.task.dimensions

    def initial(self) -> Tensor:
        whole = self.task.initial().detach().clone()
        whole[: len(self.first)] = self.first
        return whole

    def loss(self, point: Tensor, inputs: Tensor, target: Tensor) -> Tensor:
        return self.task.loss(point, inputs, target)

    def project(self, value: Tensor) -> Tensor:
        return self.task.project(value)


def worst_start(setting: Setting, records: Examples, *, steps: int = _STEPS) -> Setting:
    """The setting with initial parameters at which the gradients of such records are small.

    Args:
        setting: of a run; its model is left as it is.
        records: (B) held-out inputs and targets; the first 2,000 are used.
        steps: of Adam.

    Raises:
        ValueError: there is no record.

    >>> from overhear.training.data.load import load_dataset
    >>> from overhear.training.graphs.topologies import build_graph
    >>> data = load_dataset("digits")
    >>> held_out = Examples(data.test_inputs, data.test_targets)
    >>> setting = Setting(
    ...     graph=build_graph("full", 1), model=nn.Sequential(nn.Flatten(), nn.Linear(64, 10)),
    ...     shards=[Examples(data.inputs, data.targets)], sampling_rate=1.0,
    ...     device=torch.device("cpu"),
    ... )
    >>> model = worst_start(setting, held_out).model
    >>> bool(cross_entropy(model(held_out.inputs), held_out.targets) < 0.05)
    True
    """
    if len(records.targets) == 0:
        raise InputError(
            "the data set holds no held-out records, which initial parameters are trained on; name "
            "a part of it as the test part"
        )
    model = copy.deepcopy(setting.model).to(setting.device)
    inputs, targets = _on_device(records, setting)
    inputs, targets = inputs[:_MOST_RECORDS], targets[:_MOST_RECORDS]
    optimiser = torch.optim.Adam(model.parameters(), lr=_LEARNING_RATE)
    for _ in range(steps):
        optimiser.zero_grad()
        loss = cross_entropy(model(inputs), targets)
        loss.backward()  # type: ignore[no-untyped-call] # torch leaves it unannotated
        optimiser.step()
    model.zero_grad(set_to_none=True)
    model = model.to(next(setting.model.parameters()).device)
    task = setting.task
    if task is not None:
        first = torch.cat([value.detach().reshape(-1) for value in model.parameters()])
        task = _StartedTask(task, first)
    return replace(setting, model=model, task=task)


@torch.no_grad()
def canary_for(setting: Setting, records: Examples, *, replaced: bool) -> Canary:
    """The canary at a setting's initial parameters.

    Args:
        setting: as `worst_start` gives it.
        records: (B) held-out inputs and targets, at least one.
        replaced: whether the adjacency is "replace-one".
    """
    model: nn.Module = copy.deepcopy(setting.model).to(setting.device)
    inputs, targets = _on_device(records, setting)
    logits = model(inputs[:_MOST_RECORDS])
    sure = logits.gather(1, targets[:_MOST_RECORDS, None])[:, 0] - logits.amin(dim=1)
    place = int(sure.nan_to_num(nan=-torch.inf).argmax())
    chosen = records.inputs[place : place + 1]
    least, next_least = (one.cpu().reshape(1) for one in logits[place].argsort()[:2])
    inside = Examples(chosen, least)
    if not replaced:
        return Canary(inside=inside, outside=Examples(chosen[:0], least[:0]))
    if chosen.is_floating_point():
        return Canary(inside=inside, outside=Examples(-chosen, least))
    return Canary(inside=inside, outside=Examples(chosen, next_least))


def _on_device(records: Examples, setting: Setting) -> Examples:
    return Examples(records.inputs.to(setting.device), records.targets.to(setting.device))
