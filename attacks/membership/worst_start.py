"""What a last model shows most of: initial parameters near a minimum, and a mislabelled canary.

Who sees only the last model sees the canary through everything that came after it. Ordinary
gradients move the models, differently in every run, and push back what the canary did. From initial
parameters that are trained already they are small, and the canary, whose label these parameters
hold for least likely, has a gradient that stays long and points one way. Both are allowed to whom
a proof holds against: epsilon is said of all initial parameters and of all records.

    start     Adam on the cross-entropy of held-out records and of the run's own, without privacy,
              from the run's own initial parameters
    canary    the record of these that the start is surest of, under its least likely label

The start is the auditor's own and never released: the same one whether the canary is in or out.

For "replace-one" the first of these records is the canary under its own label a, and under the next
one b in its place. The start is trained to hold a and b for equally likely, so that the gradients
of the two are opposite, and twice as far apart as one is long.

Source: M. S. M. S. Annamalai, E. De Cristofaro, "Nearly tight black-box auditing of differentially
private machine learning", NeurIPS 2024, arXiv:2405.14106, section 4.

Where we differ from the paper: it trains the start on half of the data set and takes the rest for
the run; ours has seen the run's records, too, whose gradients else hide much of the canary. Its
canary is blank or mislabelled; ours is mislabelled whatever the inputs are, since a blank one may
have a gradient that is shorter than the clip norm.
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

__all__ = ["Canary", "worst_start"]

_MOST_HELD_OUT, _MOST_OWN = 500, 1500  # records that the start is trained on
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


def worst_start(
    setting: Setting, records: Examples, *, replaced: bool, steps: int = _STEPS
) -> tuple[Setting, Canary]:
    """The setting from initial parameters at which such records move little, and the canary.

    Args:
        setting: of a run; its model is left as it is.
        records: (B) held-out inputs and targets, may be none; the first 500 are used, and of the
            run's own 1,500, equally many of each agent.
        replaced: whether the adjacency is "replace-one".
        steps: of Adam.

    Raises:
        ValueError: there is no record at all.

    >>> from torch import nn
    >>> from overhear.training.data.load import load_dataset
    >>> from overhear.training.graphs.topologies import build_graph
    >>> data = load_dataset("digits")
    >>> held_out = Examples(data.test_inputs[:60], data.test_targets[:60])
    >>> setting = Setting(
    ...     graph=build_graph("full", 1), model=nn.Sequential(nn.Flatten(), nn.Linear(64, 10)),
    ...     shards=[Examples(data.inputs[:60], data.targets[:60])], sampling_rate=1.0,
    ...     device=torch.device("cpu"),
    ... )
    >>> started, canary = worst_start(setting, held_out, replaced=False)
    >>> bool(cross_entropy(started.model(held_out.inputs), held_out.targets) < 0.05)
    True
    >>> bool(cross_entropy(started.model(canary.inside.inputs), canary.inside.targets) > 5)
    True
    """
    records = _chosen(setting, records)
    if len(records.targets) == 0:
        raise InputError("no agent holds a record, and none is held out; nothing can be audited")
    model = copy.deepcopy(setting.model).to(setting.device)
    inputs, targets = records.inputs.to(setting.device), records.targets.to(setting.device)
    classes = model(inputs[:1]).shape[1]
    optimiser = torch.optim.Adam(model.parameters(), lr=_LEARNING_RATE)
    for _ in range(steps):
        optimiser.zero_grad()
        logits = model(inputs)
        errors = cross_entropy(logits, targets, reduction="none")
        if replaced:  # the first record is held undecided between two labels, and counts as much
            both = cross_entropy(logits[:1], (targets[:1] + 1) % classes)
            loss = errors[1:].sum() / len(errors) + 0.5 * (errors[0] + both)
        else:
            loss = errors.mean()
        loss.backward()
        optimiser.step()
    model.zero_grad(set_to_none=True)
    canary = _undecided(records, classes) if replaced else _mislabelled(model, inputs, records)
    model = model.to(next(setting.model.parameters()).device)
    task = setting.task
    if task is not None:
        first = torch.cat([value.detach().reshape(-1) for value in model.parameters()])
        task = _StartedTask(task, first)
    return replace(setting, model=model, task=task), canary


def _chosen(setting: Setting, records: Examples) -> Examples:
    """Held-out records first, then those of the run's agents."""
    each = -(-_MOST_OWN // len(setting.shards))
    parts = [(records, _MOST_HELD_OUT), *((shard, each) for shard in setting.shards)]
    some = [part.take(torch.arange(min(most, part.size))) for part, most in parts]
    inputs, targets = (torch.cat([one.cpu() for one in both]) for both in zip(*some, strict=True))
    return Examples(inputs, targets)


def _undecided(records: Examples, classes: int) -> Canary:
    first = Examples(records.inputs[:1], records.targets[:1])
    return Canary(inside=first, outside=Examples(first.inputs, (first.targets + 1) % classes))


@torch.no_grad()
def _mislabelled(model: nn.Module, inputs: Tensor, records: Examples) -> Canary:
    logits = model(inputs)
    own = records.targets[:, None].to(logits.device)
    sure = logits.gather(1, own)[:, 0] - logits.amin(dim=1)
    place = int(sure.nan_to_num(nan=-torch.inf).argmax())
    chosen = records.inputs[place : place + 1]
    label = logits[place].argmin().cpu().reshape(1)
    return Canary(inside=Examples(chosen, label), outside=Examples(chosen[:0], label[:0]))
