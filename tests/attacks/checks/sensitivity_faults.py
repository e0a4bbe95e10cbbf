"""Faults by which one record moves more than its share, or something that is not its own."""

from collections.abc import Callable
from contextlib import contextmanager
from unittest.mock import patch

import numpy as np
import torch

from overhear.training.data.store import Examples
from overhear.training.engine.engine import Engine
from overhear.training.engine.tensor_round import TensorRound
from overhear.training.gradients.gradients import PairGradients
from overhear.training.step.values import Agents

FAULTS: dict[str, Callable] = {}


def fault(plant):
    FAULTS[plant.__name__] = plant
    return plant


def _other_sums(wrong):
    sound = PairGradients.clipped_sums

    def clipped_sums(self, models, pairs, batches, *, clip_norm, coefficients=(1.0,), **how):
        def plain(bound, of=batches, at=pairs):
            return sound(self, models, at, of, clip_norm=bound, coefficients=coefficients, **how)

        return wrong(plain, pairs, batches, clip_norm)

    return patch.object(PairGradients, "clipped_sums", clipped_sums)


def _gradients(plain, pairs, batches):
    """For each row the gradients of its examples, unclipped."""
    alone = [Examples(x[i : i + 1], y[i : i + 1]) for x, y in batches for i in range(len(y))]
    first = np.cumsum([0, *(len(y) for _, y in batches)])
    each = [range(first[holder], first[holder + 1]) for holder in map(int, pairs[1])]
    owners = [int(m) for m, of in zip(pairs[0], each, strict=True) for _ in of]
    found = plain(None, alone, (owners, [at for of in each for at in of]))
    yield from enumerate(found.split([len(of) for of in each]))


def _clipped_by(factor):
    def wrong(plain, pairs, batches, clip_norm):
        sums = torch.zeros_like(plain(None))
        for row, gradients in _gradients(plain, pairs, batches):
            for gradient in gradients:
                sums[row] += factor(gradient, clip_norm)
        return sums

    return _other_sums(wrong)


def bound_of_the_batch(of):
    def wrong(plain, pairs, batches, clip_norm):
        sums = torch.zeros_like(plain(None))
        for row, gradients in _gradients(plain, pairs, batches):
            if len(gradients):
                sizes = gradients.norm(dim=1)
                bound = of(sizes).clamp(1e-9, clip_norm)
                sums[row] = (gradients * (bound / sizes).clamp(max=1.0)[:, None]).sum(0)
        return sums

    return _other_sums(wrong)


@fault
def twice_the_factor_from_20_to_90():
    def factor(g, bound):
        return g * min(1.0, bound / g.norm()) * (2.0 if 20 * bound < g.norm() < 90 * bound else 1)

    return _clipped_by(factor)


@fault
def clip_of_one_tensor():
    def factor(g, bound):
        return torch.cat([g[:192] * min(1.0, bound / g[:192].norm()), g[192:]])

    return _clipped_by(factor)


@fault
def clip_of_each_layer():
    def factor(g, bound):
        parts = g.split([192, 12, 36, 3])
        return torch.cat([of * min(1.0, bound / of.norm().clamp_min(1e-30)) for of in parts])

    return _clipped_by(factor)


@fault
def clip_with_a_margin():
    return _clipped_by(lambda g, bound: g * min(1.0, 1.0001 * bound / g.norm()))


@fault
def clip_norm_from_the_batch():
    def wrong(plain, pairs, batches, clip_norm):
        sums = torch.zeros_like(plain(None))
        for row, gradients in _gradients(plain, pairs, batches):
            if len(gradients):
                median = float(gradients.norm(dim=1).median())
                bound = min(clip_norm, max(median, 1e-9))
                sums[row] = sum(g * min(1.0, bound / g.norm()) for g in gradients)
        return sums

    return _other_sums(wrong)


@fault
def mean_by_the_batch():
    def wrong(plain, pairs, batches, clip_norm):
        sizes = torch.tensor([max(1, len(of[1])) for of in batches])
        return plain(clip_norm) * (6 / sizes[torch.as_tensor(pairs[1])])[:, None]

    return _other_sums(wrong)


@fault
def mean_by_all_agents_batches():
    def wrong(plain, pairs, batches, clip_norm):
        return plain(clip_norm) * 1e-3 * (990 + sum(len(of[1]) for of in batches))

    return _other_sums(wrong)


@fault
def loss_that_mixes_records():
    def wrong(plain, pairs, batches, clip_norm):
        sums = plain(clip_norm)
        return sums + 0.01 * sums.square()

    return _other_sums(wrong)


@fault
def running_mean_of_clean_gradients():
    sound = PairGradients.clipped_sums

    def clipped_sums(self, *given, **how):
        sums = sound(self, *given, **how)
        held = getattr(self, "held", torch.zeros_like(sums))
        self.held = 0.5 * (held + sums)
        return sums + 1e-4 * held

    return patch.object(PairGradients, "clipped_sums", clipped_sums)


@fault
def momentum_outside_the_state():
    held: list[torch.Tensor] = []
    sound = PairGradients.clipped_sums

    def clipped_sums(self, *given, **how):
        sums = sound(self, *given, **how)
        held.append(sums)
        return sums + 1e-3 * held[-2] if len(held) > 1 else sums

    return patch.object(PairGradients, "clipped_sums", clipped_sums)


def _other_batches(change):
    sound = Engine._taken

    def taken(self, where):
        return {agent: change(self, agent, of) for agent, of in sound(self, where).items()}

    return patch.object(Engine, "_taken", taken)


@fault
def batch_statistics():
    def change(engine, agent, batch):
        shift = 0.1 * batch.inputs.mean(0, keepdim=True) if len(batch.targets) else 0.0
        return Examples(batch.inputs - shift, batch.targets)

    return _other_batches(change)


@fault
def statistics_of_the_store():
    def change(engine, agent, batch):
        shift = 0.1 * engine._shards[agent].inputs.mean(0, keepdim=True)
        return Examples(batch.inputs - shift, batch.targets)

    return _other_batches(change)


@fault
def padded_after_the_draw():
    def change(engine, agent, batch):
        more = max(0, 8 - len(batch.targets)) if len(batch.targets) else 0
        every = [*range(len(batch.targets)), *[0] * more]
        return Examples(batch.inputs[every], batch.targets[every])

    return _other_batches(change)


def _other_draws(change):
    sound = Engine.draw_batch

    def draw_batch(self, *, agent, **how):
        return change(self, agent, sound(self, agent=agent, **how))

    return patch.object(Engine, "draw_batch", draw_batch)


@fault
def padded_by_the_draw():
    def change(engine, agent, drawn):
        return torch.cat([drawn, drawn[:1].expand(max(0, 8 - len(drawn)))]) if len(drawn) else drawn

    return _other_draws(change)


@fault
def records_drawn_by_their_size():
    def change(engine, agent, drawn):
        sizes = engine.setting.shards[agent].inputs.flatten(1).norm(dim=1)
        return drawn[sizes[drawn] <= 1.1 * sizes.mean()]

    return _other_draws(change)


@fault
def noise_by_the_batch():
    sound = TensorRound.noise

    def noise(self, like, **how):
        records = sum(len(of.targets) for of in self._records[-1]) if self._records else 0
        return type(like)(sound(self, like, **how).rows * (1 + 1e-3 * records))

    return patch.object(TensorRound, "noise", noise)


@fault
def a_message_more_where_many_take_part():
    sound = TensorRound.broadcast

    def broadcast(self, value, *, kind):
        if self._records and len(self._records[0][0].targets) > 5:
            self._outbox.tell("broadcast", value, kind="more")
        return sound(self, value, kind=kind)

    return patch.object(TensorRound, "broadcast", broadcast)


@contextmanager
def _with_clean_gradients(postprocessed):
    """Results of functions by `postprocessed(clean, sound, values)`."""
    sums, post = TensorRound._sums, TensorRound._postprocessed

    def kept(self, *given, **how):
        self.clean = sums(self, *given, **how)
        return self.clean

    def other(self, pure, *values, block):
        return postprocessed(self.clean, lambda *of: post(self, pure, *of, block=block), values)

    with (
        patch.object(TensorRound, "_sums", kept),
        patch.object(TensorRound, "_postprocessed", other),
    ):
        yield


@fault
def function_of_the_clean_gradient():
    def postprocessed(clean, sound, values):
        return sound(
            *(Agents(clean[: len(v.rows)] / 4.5) if isinstance(v, Agents) else v for v in values)
        )

    return _with_clean_gradients(postprocessed)


@fault
def result_with_the_clean_gradient():
    def postprocessed(clean, sound, values):
        made = sound(*values)
        return Agents(made.rows + 1e-3 * clean[: len(made.rows)])

    return _with_clean_gradients(postprocessed)
