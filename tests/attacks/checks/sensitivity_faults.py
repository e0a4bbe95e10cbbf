"""Faults by which one record moves more than its share, or something that is not its own."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest.mock import patch

import torch

from overhear.training.data.store import Examples
from overhear.training.engine.engine import Engine
from overhear.training.engine.tensor_round import TensorRound
from overhear.training.gradients.gradients import PairGradients
from overhear.training.step.values import Agents

FAULTS: dict[str, Callable] = {}


def fault(plant):
    FAULTS[plant.__name__] = contextmanager(plant)
    return plant


def _other_sums(wrong):
    sound = PairGradients.clipped_sums

    def clipped_sums(self, models, pairs, batches, *, clip_norm, coefficients=(1.0,), **how):
        def plain(bound, of=batches):
            return sound(self, models, pairs, of, clip_norm=bound, coefficients=coefficients, **how)

        return wrong(plain, pairs, batches, clip_norm)

    return patch.object(PairGradients, "clipped_sums", clipped_sums)


def _gradients(plain, pairs, batches):
    """For each row the gradients of its examples, unclipped."""
    for row, holder in enumerate(pairs[1]):
        inputs, targets = batches[holder]
        found = []
        for i in range(len(targets)):
            alone = [Examples(of.inputs[:0], of.targets[:0]) for of in map(Examples._make, batches)]
            alone[holder] = Examples(inputs[i : i + 1], targets[i : i + 1])
            found.append(plain(None, alone)[row])
        yield row, found


def _clipped_by(factor):
    def wrong(plain, pairs, batches, clip_norm):
        sums = torch.zeros_like(plain(None))
        for row, gradients in _gradients(plain, pairs, batches):
            for gradient in gradients:
                sums[row] += factor(gradient, clip_norm)
        return sums

    return _other_sums(wrong)


@fault
def twice_the_factor_from_20_to_90() -> Iterator[None]:
    def factor(g, bound):
        return g * min(1.0, bound / g.norm()) * (2.0 if 20 * bound < g.norm() < 90 * bound else 1)

    with _clipped_by(factor):
        yield


@fault
def clip_of_one_tensor() -> Iterator[None]:
    def factor(g, bound):
        return torch.cat([g[:192] * min(1.0, bound / g[:192].norm()), g[192:]])

    with _clipped_by(factor):
        yield


@fault
def clip_of_each_layer() -> Iterator[None]:
    def factor(g, bound):
        parts = g.split([192, 12, 36, 3])
        return torch.cat([of * min(1.0, bound / of.norm().clamp_min(1e-30)) for of in parts])

    with _clipped_by(factor):
        yield


@fault
def clip_with_a_margin() -> Iterator[None]:
    with _clipped_by(lambda g, bound: g * min(1.0, 1.0001 * bound / g.norm())):
        yield


@fault
def clip_norm_from_the_batch() -> Iterator[None]:
    def wrong(plain, pairs, batches, clip_norm):
        sums = torch.zeros_like(plain(None))
        for row, gradients in _gradients(plain, pairs, batches):
            if gradients:
                median = float(torch.stack([g.norm() for g in gradients]).median())
                bound = min(clip_norm, max(median, 1e-9))
                sums[row] = sum(g * min(1.0, bound / g.norm()) for g in gradients)
        return sums

    with _other_sums(wrong):
        yield


@fault
def mean_by_the_batch() -> Iterator[None]:
    def wrong(plain, pairs, batches, clip_norm):
        sizes = torch.tensor([max(1, len(of[1])) for of in batches])
        return plain(clip_norm) * (6 / sizes[torch.as_tensor(pairs[1])])[:, None]

    with _other_sums(wrong):
        yield


@fault
def mean_by_all_agents_batches() -> Iterator[None]:
    def wrong(plain, pairs, batches, clip_norm):
        return plain(clip_norm) * 1e-3 * (990 + sum(len(of[1]) for of in batches))

    with _other_sums(wrong):
        yield


@fault
def loss_that_mixes_records() -> Iterator[None]:
    def wrong(plain, pairs, batches, clip_norm):
        sums = plain(clip_norm)
        return sums + 0.01 * sums.square()

    with _other_sums(wrong):
        yield


@fault
def running_mean_of_clean_gradients() -> Iterator[None]:
    sound = PairGradients.clipped_sums

    def clipped_sums(self, *given, **how):
        sums = sound(self, *given, **how)
        held = getattr(self, "held", torch.zeros_like(sums))
        self.held = 0.5 * (held + sums)
        return sums + 1e-4 * held

    with patch.object(PairGradients, "clipped_sums", clipped_sums):
        yield


@fault
def momentum_outside_the_state() -> Iterator[None]:
    held: list[torch.Tensor] = []
    sound = PairGradients.clipped_sums

    def clipped_sums(self, *given, **how):
        sums = sound(self, *given, **how)
        held.append(sums)
        return sums + 1e-3 * held[-2] if len(held) > 1 else sums

    with patch.object(PairGradients, "clipped_sums", clipped_sums):
        yield


def _other_batches(change):
    sound = Engine._batch

    def batch(self, agent, **how):
        return change(self, agent, sound(self, agent, **how))

    return patch.object(Engine, "_batch", batch)


@fault
def batch_statistics() -> Iterator[None]:
    def change(engine, agent, batch):
        shift = 0.1 * batch.inputs.mean(0, keepdim=True) if len(batch.targets) else 0.0
        return Examples(batch.inputs - shift, batch.targets)

    with _other_batches(change):
        yield


@fault
def statistics_of_the_store() -> Iterator[None]:
    def change(engine, agent, batch):
        shift = 0.1 * engine._shards[agent].inputs.mean(0, keepdim=True)
        return Examples(batch.inputs - shift, batch.targets)

    with _other_batches(change):
        yield


@fault
def padded_after_the_draw() -> Iterator[None]:
    def change(engine, agent, batch):
        more = max(0, 8 - len(batch.targets)) if len(batch.targets) else 0
        every = [*range(len(batch.targets)), *[0] * more]
        return Examples(batch.inputs[every], batch.targets[every])

    with _other_batches(change):
        yield


def _other_draws(change):
    sound = Engine.draw_batch

    def draw_batch(self, *, agent, **how):
        return change(self, agent, sound(self, agent=agent, **how))

    return patch.object(Engine, "draw_batch", draw_batch)


@fault
def padded_by_the_draw() -> Iterator[None]:
    def change(engine, agent, drawn):
        return torch.cat([drawn, drawn[:1].expand(max(0, 8 - len(drawn)))]) if len(drawn) else drawn

    with _other_draws(change):
        yield


@fault
def records_drawn_by_their_size() -> Iterator[None]:
    def change(engine, agent, drawn):
        sizes = engine.setting.shards[agent].inputs.flatten(1).norm(dim=1)
        return drawn[sizes[drawn] <= 1.1 * sizes.mean()]

    with _other_draws(change):
        yield


@fault
def noise_by_the_batch() -> Iterator[None]:
    sound = TensorRound.noise

    def noise(self, like, **how):
        records = sum(len(of.targets) for of in self._records[-1]) if self._records else 0
        return type(like)(sound(self, like, **how).rows * (1 + 1e-3 * records))

    with patch.object(TensorRound, "noise", noise):
        yield


@fault
def a_message_more_where_many_take_part() -> Iterator[None]:
    sound = TensorRound.broadcast

    def broadcast(self, value, *, kind):
        if self._records and len(self._records[0][0].targets) > 5:
            self._outbox.tell("broadcast", value, kind="more")
        return sound(self, value, kind=kind)

    with patch.object(TensorRound, "broadcast", broadcast):
        yield


@fault
def function_of_the_clean_gradient() -> Iterator[None]:
    sums, post = TensorRound._sums, TensorRound._postprocessed

    def kept(self, *given, **how):
        self.clean = sums(self, *given, **how)
        return self.clean

    def postprocessed(self, pure, *values, block):
        values = [
            Agents(self.clean[: len(v.rows)] / 4.5) if isinstance(v, Agents) else v for v in values
        ]
        return post(self, pure, *values, block=block)

    with (
        patch.object(TensorRound, "_sums", kept),
        patch.object(TensorRound, "_postprocessed", postprocessed),
    ):
        yield


@fault
def result_with_the_clean_gradient() -> Iterator[None]:
    sums, post = TensorRound._sums, TensorRound._postprocessed

    def kept(self, *given, **how):
        self.clean = sums(self, *given, **how)
        return self.clean

    def postprocessed(self, pure, *values, block):
        made = post(self, pure, *values, block=block)
        return Agents(made.rows + 1e-3 * self.clean[: len(made.rows)])

    with (
        patch.object(TensorRound, "_sums", kept),
        patch.object(TensorRound, "_postprocessed", postprocessed),
    ):
        yield
