"""Which records are changed: those with the largest gradients, others at random, and made ones.

Made records are records of the run under another label, their inputs scaled so that their gradients
run from half the clip norm to a thousand times of it: a clip factor that is wrong somewhere between
shows on them, and never on records whose gradients are all of one size. Outliers go on from there
to the largest number of their inputs, and to infinity: a batch that holds one may be refused, but
not left out. Inputs that are indices are not scaled.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ...training.data.store import Examples, Held
from ...training.engine.recording import GradientCall
from ...training.tracing.linear_forms import Contributions
from .recording import WatchedRound
from .reference_sums import Oracle
from .watched_run import WatchedRun

_ENTRIES = 2**27  # of per-example gradients that are looked at, in all
_MADE_OF = 8  # records of an agent that records are made of; fewer if the network is large
_SCALE_OF = np.geomspace(0.01, 1e4, 24).tolist()  # of the inputs of each
_FAR = 10  # outliers of an agent, besides the longest and one of infinity
_REACH = (0.5, 1000.0)  # of a made record's gradient, over the clip norm
_AROUND = (0.02, 5.0)  # the same of records that fill a shard
_NEAR = (0.9, 1.2)  # and of those that are near it


@dataclass(frozen=True, kw_only=True, slots=True)
class Chosen:
    """Records to change.

    Attributes:
        real: for each agent positions in its shard, the largest gradients first.
        made: for each agent records of our own (1, *shape), by the size of their gradients.
        near: for each agent made records (1, *shape) whose gradients are about as long as the clip
            norm, where a factor that sets in too late shows.
        outliers: for each agent records (1, *shape) beyond, the longest and one of infinity last;
            none where inputs are indices.
        shards: for each agent as many made records as it holds, whose gradients lie around the
            clip norm, so that what depends on sizes in a batch shows.
        reach: the smallest and the largest gradient of the made ones over the clip norm; None
            where nothing is clipped.
    """

    real: Sequence[Sequence[int]]
    made: Sequence[Sequence[Examples]]
    near: Sequence[Sequence[Examples]]
    outliers: Sequence[Sequence[Examples]]
    shards: Sequence[Examples]
    reach: tuple[float, float] | None


def choose_records(
    run: WatchedRun, *, each: int, made: int, generator: np.random.Generator
) -> Chosen:
    """Choose `each` real records of every agent, half of them with the largest gradients.

    The generator picks the others, and what records are made of.
    """
    oracle = Oracle(run.setting.task or run.setting.model)
    found = next(filter(None, map(_first_call, run.rounds[1:] or run.rounds)), None)
    labels = torch.cat([shard.targets.cpu() for shard in run.setting.shards]).unique()
    affordable = _ENTRIES // (_dimensions(run) * len(run.setting.shards) * 2 * len(_SCALE_OF))
    bases = min(_MADE_OF, max(1, affordable))
    real, own, near, far, shards, ratios = [], [], [], [], [], list[float]()
    for agent, shard in enumerate(run.setting.shards):
        # Real records: those of the largest gradients, and others by chance.
        candidates = _candidates(run, agent, generator=generator)
        norms = np.zeros(len(candidates))
        if found is not None:
            norms = _norms(oracle, found[0], agent, _picked(shard, candidates))
        largest = candidates[np.argsort(-norms, kind="stable")]
        rest = generator.permutation(largest[each // 2 :])
        real.append([int(i) for i in np.concatenate([largest[: (each + 1) // 2], rest])[:each]])
        # Records of our own, picked by the length of their gradients.
        every = _made_of(shard, labels, count=bases, generator=generator)
        sizes = np.zeros(len(every.targets))
        if found is not None and found[1] is not None:
            sizes = _norms(oracle, found[0], agent, every) / found[1]
        picks = _by_size(sizes, _REACH, count=made, generator=generator)
        ratios += [float(sizes[i]) for i in picks if 0 < sizes[i] < math.inf]
        own.append([_one(every, i) for i in picks])
        near.append(_near(every, sizes, count=made, generator=generator) or own[-1])
        far.append(_outliers(every, generator=generator))
        picks = _by_size(sizes, _AROUND, count=len(shard.targets), generator=generator)
        shards.append(_picked(every, generator.permutation(np.array(picks, dtype=np.int64))))
    reach = (min(ratios), max(ratios)) if ratios else None
    return Chosen(real=real, made=own, near=near, outliers=far, shards=shards, reach=reach)


def _by_size(
    sizes: np.ndarray, reach: tuple[float, float], *, count: int, generator: np.random.Generator
) -> list[int]:
    """Records whose gradients, over the clip norm, are nearest to sizes spread over a reach."""
    sizes = np.where(np.isfinite(sizes), sizes, 0.0)
    if not (sizes > 0).any():
        return [i % len(sizes) for i in range(count if len(sizes) else 0)]
    logs = np.log(np.maximum(sizes, np.finfo(float).tiny))
    # In each of `count` steps from one end of the reach to the other a size at random.
    steps = (np.arange(count) + generator.random(count)) / max(1, count)
    wanted = reach[0] * (reach[1] / reach[0]) ** steps
    return [int(np.argmin(np.abs(logs - math.log(size)))) for size in wanted]


def _near(
    every: Examples, sizes: np.ndarray, *, count: int, generator: np.random.Generator
) -> list[Examples]:
    """Records whose inputs are scaled so that their gradients come near the clip norm."""
    steps = len(_SCALE_OF)
    bases = len(every.targets) // (1 + 2 * steps)
    if not bases or not every.inputs.is_floating_point():
        return []
    # (labels, scales, bases): between which scales a size passes the one that is wanted.
    with np.errstate(divide="ignore", invalid="ignore"):
        logs, scales = np.log(sizes[bases:].reshape(2, steps, bases)), np.log(_SCALE_OF)
    found = list[Examples]()
    for _ in range(count):
        want = math.log(generator.uniform(*_NEAR))
        low, high = logs[:, :-1], logs[:, 1:]
        passes = np.argwhere((np.minimum(low, high) < want) & (np.maximum(low, high) >= want))
        if not len(passes):
            return found
        label, at, base = (int(i) for i in passes[generator.integers(len(passes))])
        before, after = logs[label, at, base], logs[label, at + 1, base]
        part = (want - before) / (after - before) if math.isfinite(after - before) else 0.5
        scale = math.exp(scales[at] + part * (scales[at + 1] - scales[at]))
        first = bases * (1 + label * steps) + base
        inputs = every.inputs[first : first + 1] / _SCALE_OF[0] * scale
        found.append(Examples(inputs, every.targets[first : first + 1]))
    return found


def _outliers(every: Examples, *, generator: np.random.Generator) -> list[Examples]:
    """Records of which the first numbers of `every` are scaled up, ever further."""
    if not every.inputs.is_floating_point() or not len(every.targets):
        return []
    largest, inputs = torch.finfo(every.inputs.dtype).max, every.inputs[0]
    room = largest / max(float(inputs.abs().max()), 1.0)
    powers = (np.arange(_FAR) + generator.random(_FAR)) / _FAR
    scales = [*(_SCALE_OF[-1] * (room / _SCALE_OF[-1]) ** powers).tolist(), room]
    records = [inputs * scale for scale in scales] + [torch.full_like(inputs, math.inf)]
    return [Examples(one[None], every.targets[:1].clone()) for one in records]


def _first_call(watched: WatchedRound) -> tuple[GradientCall, float | None] | None:
    """The first gradients of a round, and their clip norm."""
    groups = [g for g in watched.trace.groups if isinstance(g, Contributions)]
    for group, call in zip(groups, watched.recorded.calls, strict=True):
        if isinstance(call, GradientCall):
            bound = float(np.max(group.bounds, initial=0.0))
            return call, bound if 0 < bound < math.inf else None
    return None


def _dimensions(run: WatchedRun) -> int:
    task, parameters = run.setting.task, run.setting.model.parameters()
    return max(
        1, sum(task.dimensions) if task else sum(parameter.numel() for parameter in parameters)
    )


def _candidates(run: WatchedRun, agent: int, *, generator: np.random.Generator) -> np.ndarray:
    """Positions whose gradients are looked at: all of them, unless the network is large."""
    shards = run.setting.shards
    records = len(shards[agent].targets)
    most = max(1, _ENTRIES // (_dimensions(run) * len(shards)))
    return generator.permutation(records)[:most]


def _norms(oracle: Oracle, call: GradientCall, agent: int, records: Examples) -> np.ndarray:
    """(B,) lengths of records' gradients at the first model at which the agent takes some."""
    rows = (call.holders == agent).nonzero().flatten().tolist()
    if not rows:
        return np.zeros(len(records.targets))
    point = call.models[:, int(call.owners[rows[0]])]
    return oracle.norms(point, records.inputs, records.targets, coefs=call.coefs).numpy()


def _made_of(
    shard: Held, labels: Tensor, *, count: int, generator: np.random.Generator
) -> Examples:
    """Records of a shard, and the same with their inputs scaled, under their label and another."""
    base = generator.permutation(len(shard.targets))[:count]
    inputs, targets = (part.cpu() for part in _picked(shard, base))
    other = labels[(torch.searchsorted(labels, targets) + 1) % max(1, len(labels))]
    if not inputs.is_floating_point():
        return Examples(torch.cat([inputs, inputs]), torch.cat([targets, other]))
    return Examples(
        torch.cat([inputs, *[inputs * scale for scale in _SCALE_OF] * 2]),
        torch.cat([targets, *[targets] * len(_SCALE_OF), *[other] * len(_SCALE_OF)]),
    )


def _picked(shard: Held, at: np.ndarray) -> Examples:
    return shard.take(torch.from_numpy(at))


def _one(records: Examples, at: int) -> Examples:
    """One of many, which are not kept for it."""
    return Examples(records.inputs[at : at + 1].clone(), records.targets[at : at + 1].clone())
