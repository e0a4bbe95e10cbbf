"""Faults that a private run may have, planted in the engine, in a trace or in the accounting.

Each is what somebody has really written: the run goes on, the accuracy looks right or better, and
epsilon is not what is stated. `PATCHES` change what runs or what is traced while their context is
open; `ACCOUNTING` change a figure. The sentence says what happens to the true epsilon.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from unittest.mock import patch

import numpy as np
import torch

from overhear.training.engine.engine import Engine
from overhear.training.engine.randomness import Purpose, SecretRandomness
from overhear.training.engine.tensor_round import TensorRound
from overhear.training.exposure.sensitivity import JointSensitivity
from overhear.training.gradients.clipping import clipped_rows
from overhear.training.gradients.gradients import PairGradients
from overhear.training.step.values import Edges, Value
from overhear.training.tracing.traced_round import TracedRound

BATCH_SIZE = 4.5  # public normaliser of the runs that the faults of a mean are planted in


@dataclass(frozen=True, kw_only=True, slots=True)
class Patch:
    """A fault of the engine, of its randomness or of a trace, there while `plant()` is open.

    `holders` says on which values of noise it acts: one of "any", "edges" (a noise for each
    link), "factor" (shared sources).
    """

    name: str
    sentence: str
    plant: Callable[[], AbstractContextManager[None]]
    holders: str = "any"


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """A fault of the accounting: from the right sensitivity to the wrong one."""

    name: str
    sentence: str
    apply: Callable[[JointSensitivity], JointSensitivity]


@contextmanager
def _scaled_noise(share: Callable[[TensorRound, Value], torch.Tensor]) -> Iterator[None]:
    """Every noise times a factor for each of its rows, (rows, 1)."""
    sound = TensorRound.noise

    def noise(self, like, *, std, factor=None, known_to=None):
        z = sound(self, like, std=std, factor=factor, known_to=known_to)
        return type(like)(z.rows * share(self, like).to(z.rows))

    with patch.object(TensorRound, "noise", noise):
        yield


def _ones(like: Value) -> torch.Tensor:
    return torch.ones(like.rows.shape[0], 1)


def _own_rows(round: TensorRound, like: Value) -> torch.Tensor:
    """(rows,) which rows are of self-loops; none where the noise is not on links."""
    if isinstance(like, Edges):
        return round._links.receivers == round._links.senders
    return torch.zeros(like.rows.shape[0], dtype=torch.bool)


def _first_of_each(round: TensorRound, like: Value) -> torch.Tensor:
    """(rows,) for each receiver the first link that is not its own; else the first row."""
    chosen = torch.zeros(like.rows.shape[0], dtype=torch.bool)
    if not isinstance(like, Edges):
        chosen[0] = True
        return chosen
    seen = set[int]()
    own = _own_rows(round, like).tolist()
    for row, receiver in enumerate(round._links.receivers.tolist()):
        if not own[row] and receiver not in seen:
            seen.add(receiver)
            chosen[row] = True
    return chosen


def noise_halved() -> AbstractContextManager[None]:
    """All noise at half its deviation."""
    return _scaled_noise(lambda _, like: 0.5 * _ones(like))


def noise_halved_once() -> AbstractContextManager[None]:
    """One release of each batch at half its noise; without links, that of the first agent."""

    def share(round: TensorRound, like: Value) -> torch.Tensor:
        return 1.0 - 0.5 * _first_of_each(round, like)[:, None].float()

    return _scaled_noise(share)


def one_link_without_noise() -> AbstractContextManager[None]:
    """The first row that is sent carries no noise."""

    def share(round: TensorRound, like: Value) -> torch.Tensor:
        kept = _ones(like)
        kept[int(_first_of_each(round, like).nonzero()[0])] = 0.0
        return kept

    return _scaled_noise(share)


def clean_self_gradient() -> AbstractContextManager[None]:
    """The own gradient, with which an agent goes on, carries no noise."""
    return _scaled_noise(lambda round, like: 1.0 - _own_rows(round, like)[:, None].float())


@contextmanager
def _other_stream(of: Callable[[int, int, int], tuple[int, int, int]]) -> Iterator[None]:
    """Noise from the stream of another (round, call, row)."""
    sound = SecretRandomness.counter

    def counter(self, purpose, *, round, call, row):
        at = (round, call, row)
        number, use, source = of(*at) if purpose is Purpose.NOISE else at
        return sound(self, purpose, round=number, call=use, row=source)

    with patch.object(SecretRandomness, "counter", counter):
        yield


def seed_reused_for_two_releases() -> AbstractContextManager[None]:
    """Sources 2k and 2k + 1 of a call have one seed."""
    return _other_stream(lambda round, call, row: (round, call, row - row % 2))


def seed_reused_for_two_calls() -> AbstractContextManager[None]:
    """All calls of noise in a round have the seeds of the first."""
    return _other_stream(lambda round, _, row: (round, 0, row))


def seed_reused_for_two_rounds() -> AbstractContextManager[None]:
    """Rounds 2k - 1 and 2k have one seed."""
    return _other_stream(
        lambda round, call, row: (round - (round + 1) % 2 * (round > 0), call, row)
    )


@contextmanager
def _other_noise(change: Callable[[torch.Tensor], torch.Tensor]) -> Iterator[None]:
    """What a source draws, changed."""
    sound = SecretRandomness.normal

    def normal(self, **how):
        return change(sound(self, **how))

    with patch.object(SecretRandomness, "normal", normal):
        yield


def noise_repeated_in_a_row() -> AbstractContextManager[None]:
    """The second half of every source is a copy of the first."""

    def change(z: torch.Tensor) -> torch.Tensor:
        half = z.shape[1] // 2
        return torch.cat([z[:, :half], z[:, :half], z[:, 2 * half :]], dim=1)

    return _other_noise(change)


def noise_of_two_values() -> AbstractContextManager[None]:
    """Every coordinate is one deviation up or down."""
    return _other_noise(torch.sign)


@contextmanager
def _other_sums(wrong: Callable[..., torch.Tensor]) -> Iterator[None]:
    """Sums of gradients by `wrong(sound, models, pairs, batches, clip_norm, coefficients)`."""
    sound = PairGradients.clipped_sums

    def clipped_sums(self, models, pairs, batches, *, clip_norm, coefficients=(1.0,), **_):
        def plain(bound):
            return sound(self, models, pairs, batches, clip_norm=bound, coefficients=coefficients)

        return wrong(plain, pairs, batches, clip_norm)

    with patch.object(PairGradients, "clipped_sums", clipped_sums):
        yield


def clipping_after_averaging(batch_size: float = BATCH_SIZE) -> AbstractContextManager[None]:
    """The batch's mean is clipped in place of its records."""

    def wrong(plain, pairs, batches, clip_norm):
        del pairs, batches
        return batch_size * clipped_rows(plain(None) / batch_size, clip_norm)

    return _other_sums(wrong)


def mean_by_realised_size(batch_size: float = BATCH_SIZE) -> AbstractContextManager[None]:
    """Sums come as if each were divided by how many records the batch has."""

    def wrong(plain, pairs, batches, clip_norm):
        sizes = torch.tensor([max(1, len(targets)) for _, targets in batches])
        holders = torch.as_tensor(pairs[1], dtype=torch.int64)
        sums = plain(clip_norm)
        return sums * (batch_size / sizes[holders])[:, None].to(sums)

    return _other_sums(wrong)


@contextmanager
def shuffled_batches() -> Iterator[None]:
    """Each epoch of 1 / q rounds is a new order of the records, cut into batches."""

    def draw_batch(self, *, round, call, agent, rate):
        rate = self.setting.sampling_rate if rate is None else rate
        records = len(self.setting.shards[agent].targets)
        epoch = max(1, int(np.ceil(1.0 / rate)))
        first = max(round - 1, 0) // epoch * epoch
        stream = self._randomness.stream(Purpose.BATCH, round=first, call=call, row=agent)
        parts = np.array_split(stream.permutation(records), epoch)
        return torch.from_numpy(np.sort(parts[max(round - 1, 0) - first]))

    with patch.object(Engine, "draw_batch", draw_batch):
        yield


@contextmanager
def fixed_batches() -> Iterator[None]:
    """Records are put into slots once and for all, and the slots take turns."""

    def draw_batch(self, *, round, call, agent, rate):
        rate = self.setting.sampling_rate if rate is None else rate
        records = len(self.setting.shards[agent].targets)
        slots = max(1, int(np.ceil(1.0 / rate)))
        stream = self._randomness.stream(Purpose.BATCH, round=0, call=call, row=agent)
        return torch.from_numpy(
            np.flatnonzero(stream.integers(slots, size=records) == round % slots)
        )

    with patch.object(Engine, "draw_batch", draw_batch):
        yield


@contextmanager
def seed_known_to_one_agent() -> Iterator[None]:
    """The trace counts each shared source as known to its first holder alone."""
    sound = TracedRound.noise

    def noise(self, like, *, std, factor=None, known_to=None):
        if known_to is not None:
            known_to = [frozenset(sorted(of)[:1]) for of in known_to]
        return sound(self, like, std=std, factor=factor, known_to=known_to)

    with patch.object(TracedRound, "noise", noise):
        yield


def _releases_not_counted(sensitivity: JointSensitivity) -> JointSensitivity:
    releases = tuple(
        r._replace(joint_sensitivity=min(1.0, r.joint_sensitivity)) for r in sensitivity.releases
    )
    return sensitivity._replace(releases=releases)


def _replacement_not_doubled(sensitivity: JointSensitivity) -> JointSensitivity:
    """What the accountant doubles for replace-one comes out as for add-or-remove-one."""
    releases = tuple(
        r._replace(joint_sensitivity=r.joint_sensitivity / 2) for r in sensitivity.releases
    )
    return sensitivity._replace(releases=releases)


PATCHES: Mapping[str, Patch] = {
    one.name: one
    for one in (
        Patch(
            name="noise halved",
            sentence="Half the noise doubles mu: of epsilon 3 at delta 1e-5 it makes 6.71.",
            plant=noise_halved,
        ),
        Patch(
            name="noise halved on one release",
            sentence="One of n releases counts four times: mu grows by sqrt(1 + 3 / n).",
            plant=noise_halved_once,
        ),
        Patch(
            name="seed reused for two releases",
            sentence="The difference of two messages has no noise: epsilon is infinite unless the "
            "two gradients are equal.",
            plant=seed_reused_for_two_releases,
        ),
        Patch(
            name="seed reused for two calls",
            sentence="The same between two releases of a round of any kind.",
            plant=seed_reused_for_two_calls,
        ),
        Patch(
            name="seed reused for two rounds",
            sentence="The difference of two rounds has no noise: epsilon is infinite for a record "
            "that is in one batch alone.",
            plant=seed_reused_for_two_rounds,
        ),
        Patch(
            name="noise repeated in a row",
            sentence="The difference of two coordinates has no noise: epsilon is infinite.",
            plant=noise_repeated_in_a_row,
        ),
        Patch(
            name="noise of two values",
            sentence="A sum that is off the grid of two values is seen: epsilon is infinite.",
            plant=noise_of_two_values,
        ),
        Patch(
            name="clean self-gradient",
            sentence="What the agent goes on with shows its gradient: epsilon is infinite.",
            plant=clean_self_gradient,
            holders="edges",
        ),
        Patch(
            name="clipping after averaging",
            sentence="One record moves a clipped mean by up to 2C in place of C / B: mu grows up "
            "to 2 B fold.",
            plant=clipping_after_averaging,
        ),
        Patch(
            name="mean by the realised size",
            sentence="A record that comes to b others moves their shares too: mu grows by up to "
            "2 B / (b + 1), most in small batches.",
            plant=mean_by_realised_size,
        ),
        Patch(
            name="shuffled batches",
            sentence="Nothing amplifies: of multiplier .8, 1000 batches, one epoch, delta 1e-6 "
            "epsilon is at least 6.05 where Poisson says .468.",
            plant=shuffled_batches,
        ),
        Patch(
            name="fixed batches",
            sentence="Nothing amplifies: a record is in one batch of 1 / q for certain, and always "
            "with the same others.",
            plant=fixed_batches,
        ),
        Patch(
            name="one link without noise",
            sentence="Whoever reads that link sees a gradient: epsilon is infinite.",
            plant=one_link_without_noise,
        ),
        Patch(
            name="seed known to more than declared",
            sentence="A holder of the seed subtracts the noise: epsilon is infinite for it.",
            plant=seed_known_to_one_agent,
            holders="factor",
        ),
    )
}

ACCOUNTING: Mapping[str, Fault] = {
    one.name: one
    for one in (
        Fault(
            name="releases of one batch not counted",
            sentence="sqrt(n_i) is forgotten: the true mu is sqrt(n_i) times what is stated, "
            "1.73 times on a ring.",
            apply=_releases_not_counted,
        ),
        Fault(
            name="replace-one counted as add-or-remove-one",
            sentence="A record that is replaced moves a sum by 2C: the true mu is twice the "
            "stated one.",
            apply=_replacement_not_doubled,
        ),
    )
}
