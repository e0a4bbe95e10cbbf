"""Counts of records, and a released number as a clip norm: quantile clipping, early stopping."""

import math
from dataclasses import replace
from typing import NamedTuple

import pytest
import torch
from torch import nn

from overhear.attacks.checks.checks import engine_checks
from overhear.attacks.checks.sensitivity import sensitivity_check
from overhear.attacks.checks.watched_run import watch
from overhear.privacy.accounting.accountant import epsilon
from overhear.privacy.errors import InputError
from overhear.training import NUMBERS, Agents, Round, UndeclaredOperation, account
from overhear.training.algorithms.algorithm import Bound
from overhear.training.engine.engine import Engine
from overhear.training.engine.randomness import SecretRandomness
from overhear.training.gradients import counts
from overhear.training.gradients.counts import Counts
from overhear.training.graphs.topologies import ring
from overhear.training.models.parameters import flatten
from overhear.training.noise_tests.noise_tests import NoiseTests
from overhear.training.step.operations import Of
from overhear.training.step.purity import purified
from overhear.training.tracing.linear_forms import Contributions
from tests.training.contract import check_rows, setting, traced
from tests.training.states import start

MULTIPLIER, RATE, ROUNDS, DELTA = 2.0, 0.1, 20, 1e-5
COUNT_STD = 4.0  # times the multiplier: of a count, which costs little beside the sum
BATCH = 4.5


class Adaptive(NamedTuple):
    x: Agents
    clip: Agents  # (A, 1) each agent's clip norm, which was released


def start_adaptive(round: Round) -> Adaptive:
    return Adaptive(round.initial(), round.of_agents(torch.full((round.agents, 1), 0.5)))


def within(norm, clip):
    return norm <= clip[0]


def next_clip(clip, count):
    """Andrew et al. 2021 (arXiv:1905.03871): to the median of the norms, by a geometric rule."""
    below = (count / BATCH).clamp(0.0, 1.0)
    return (clip * torch.exp(-0.2 * (below - 0.5))).clamp(1e-3, 1e3)


def times(noisy, clip):
    return noisy * clip


def quantile_clip(
    state: Adaptive, round: Round, *, clip_norm: float = 1.0, noise_std: float = 1.0
) -> Adaptive:
    batch = round.draw()
    count = round.count(within, state.x, batch=batch, of="norm", released=[state.clip])
    noisy_count = count + round.noise(count, std=COUNT_STD * noise_std / clip_norm)
    sums = round.clipped_sums(state.x, batch=batch, clip_norm=clip_norm, scale=state.clip)
    noisy = sums + round.noise(sums, std=noise_std)
    step = round.postprocess(times, noisy, state.clip)
    clip = round.postprocess(next_clip, state.clip, noisy_count, block=NUMBERS)
    return Adaptive(round.mix(state.x - 0.1 / BATCH * step, kind="model"), clip)


def clean_count(
    state: Adaptive, round: Round, *, clip_norm: float = 1.0, noise_std: float = 1.0
) -> Adaptive:
    """A false twin: the count without noise decides the next clip norm."""
    batch = round.draw()
    count = round.count(within, state.x, batch=batch, of="norm", released=[state.clip])
    sums = round.clipped_sums(state.x, batch=batch, clip_norm=clip_norm, scale=state.clip)
    noisy = sums + round.noise(sums, std=noise_std)
    clip = round.postprocess(next_clip, state.clip, count, block=NUMBERS)
    return Adaptive(round.mix(state.x - 0.1 * noisy, kind="model"), clip)


def clean_scale(
    state: Adaptive, round: Round, *, clip_norm: float = 1.0, noise_std: float = 1.0
) -> Adaptive:
    """Another: gradients are divided by a count of this round that has no noise."""
    batch = round.draw()
    count = round.count(within, state.x, batch=batch, of="norm", released=[state.clip])
    sums = round.clipped_sums(state.x, batch=batch, clip_norm=clip_norm, scale=count)
    noisy = sums + round.noise(sums, std=noise_std)
    return Adaptive(round.mix(state.x - 0.1 * noisy, kind="model"), state.clip)


def right(outputs, target):
    return outputs.argmax() == target


def early_stopping(
    state: Adaptive, round: Round, *, clip_norm: float = 1.0, noise_std: float = 1.0
) -> Adaptive:
    """How many of a batch of their own are right, for whoever reads the state between rounds."""
    sums = round.clipped_sums(state.x, batch=round.draw(), clip_norm=clip_norm)
    x = round.mix(state.x - 0.3 * (sums + round.noise(sums, std=noise_std)), kind="model")
    count = round.count(right, x, batch=round.draw(0.5), of="outputs")
    return Adaptive(x, count + round.noise(count, std=noise_std / clip_norm))


def found(step, init=start_adaptive, **how):
    run = {"graph": "ring:5", "rounds": ROUNDS, "sampling_rate": RATE, "delta": DELTA}
    names = ["eavesdropper", "neighbour", "final-models"]
    return account(init, step, noise_multiplier=MULTIPLIER, adversaries=names, **run | how)


@pytest.mark.parametrize("adjacency", ["add-or-remove-one", "replace-one"])
def test_a_quantile_clip_costs_the_sum_and_the_count_of_one_batch_jointly(adjacency):
    joint = math.hypot(1.0, 1.0 / COUNT_STD)  # Andrew et al., theorem 1
    by_hand = epsilon(
        noise_multiplier=MULTIPLIER / joint, delta=DELTA, rounds=ROUNDS, sampling_rate=RATE,
        adjacency=adjacency,
    )  # fmt: skip
    every = found(quantile_clip, adjacency=adjacency)
    for name in every:
        assert every[name].joint_sensitivity == pytest.approx(joint)
        assert every[name].epsilon == pytest.approx(by_hand, rel=1e-6)
        assert every[name].status == "proven"


@pytest.mark.parametrize("step", [clean_count, clean_scale])
def test_a_count_without_noise_costs_infinity(step):
    assert found(step)["eavesdropper"].epsilon == math.inf


def test_a_count_of_a_batch_of_its_own_is_a_release_of_its_own():
    by_batch = found(early_stopping)["eavesdropper"]
    assert by_batch.joint_sensitivity == pytest.approx(1.0)
    assert by_batch.epsilon > epsilon(
        noise_multiplier=MULTIPLIER, delta=DELTA, rounds=ROUNDS, sampling_rate=0.5
    )


def test_bounds_are_those_of_one_record_whatever_the_clip_norm():
    groups = [
        g
        for g in traced(start_adaptive, quantile_clip, ring(5)).groups
        if isinstance(g, Contributions)
    ]
    assert [(g.block, set(g.bounds.tolist())) for g in groups] == [(NUMBERS, {1.0}), (0, {1.0})]


@pytest.mark.parametrize("step", [quantile_clip, early_stopping])
def test_a_run_does_what_is_traced(step):
    check_rows(Bound(start_adaptive, step), ring(5))


@pytest.mark.slow
def test_a_clip_norm_follows_the_quantile_and_divides_what_is_clipped():
    """Without noise to speak of, half of the expected batch comes to be below each clip norm."""
    of = setting(ring(5), rate=1.0)
    bound = Bound(
        start_adaptive,
        lambda s, r: quantile_clip(s, r, clip_norm=1.0, noise_std=1e-6)._replace(x=s.x),
    )
    run = Engine(of, bound, randomness=SecretRandomness(1))
    run.start()
    for _ in range(40):
        run.advance()
    clip = run.snapshot()["clip"][:, 0]
    layout = run._every.gradients
    point = flatten(of.model).detach()[None].double()
    for agent, shard in enumerate(of.shards):
        one = [(x[None].double(), y[None]) for x, y in zip(*shard, strict=True)]
        norms = [layout.clipped_sums(point, ([0], [0]), [b], clip_norm=None).norm() for b in one]
        below = sum(float(norm) <= float(clip[agent]) for norm in norms)
        assert abs(below - 0.5 * BATCH) <= 1.0, f"{below} are below at agent {agent}"


def test_counts_are_of_each_record_and_within_0_and_1():
    def of(fn, what="loss"):
        counted = Engine(setting(ring(5), rate=1.0), Bound(start, start_adaptive))._every.counts()
        point = flatten(setting(ring(5)).model).detach()[None].double()
        shard = setting(ring(5)).shards[0]
        return float(counted.of_batches(fn, point, [(shard[0].double(), shard[1])], of=Of(what)))

    assert of(lambda loss: 1e9) == 9.0
    assert of(lambda loss: -loss) == 0.0
    assert of(lambda loss: loss / 0.0 * 0.0) == 0.0  # no number
    assert of(lambda loss: math.inf) == 0.0
    assert 0.0 < of(lambda outputs, target: outputs.softmax(0)[target], "outputs") < 9.0
    with pytest.raises(InputError, match="returned Tensor of shape"):
        of(lambda outputs, target: outputs, "outputs")
    with pytest.raises(InputError, match="returned NoneType"):
        of(lambda loss: None)


KEPT = torch.zeros(8)


class _Keeps(nn.Module):
    """Keeps where no gradient is computed, which counts of losses and outputs do."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        if not torch.is_grad_enabled():
            KEPT.data.add_(x.detach().sum(0))
        return self.head(x)


class _Raises(_Keeps):
    def forward(self, x):
        raise KeyError("mask")


def test_what_a_network_keeps_or_raises_where_it_is_counted_is_refused():
    draw = torch.Generator().manual_seed(0)
    batch = torch.randn(4, 8, generator=draw), torch.tensor([0, 1, 2, 0])

    def count(net, fn=lambda outputs, target: outputs.argmax() == target):
        counted = Counts(net, device="cpu", dtype=torch.float32)
        return counted.of_batches(fn, flatten(net)[None], [batch], of=Of.OUTPUTS)

    with pytest.raises(InputError, match="changes "):
        count(_Keeps())
    with pytest.raises(InputError, match="raised KeyError: 'mask'"):
        count(_Raises())
    net = nn.Linear(8, 3)
    found = count(net)
    assert float(found) == float((net(batch[0]).argmax(1) == batch[1]).sum())
    assert torch.equal(count(_Sound(net)), found)


class _Sound(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x):
        return self.net(x)


def _fails(outputs, target):
    return {}[3]


def test_what_a_function_of_a_step_raises_is_told_in_a_sentence():
    with pytest.raises(InputError, match=r"_fails.* raised KeyError: 3 in line \d+ of test_counts"):
        purified(_fails, "count")(torch.zeros(3), torch.tensor(0))


def test_early_stopping_reads_what_was_released_and_the_plan_stands():
    run = Engine(setting(ring(5)), Bound(start_adaptive, early_stopping))
    for _ in range(ROUNDS):
        run.advance()
        if float(run.snapshot()["clip"].mean()) > 3.0:
            break
    assert run.round >= 1  # whatever round it was: what stopped it was released


def test_a_scale_in_single_precision_and_what_is_no_scale():
    of = replace(setting(ring(5)), dtype=torch.float32)
    run = Engine(of, Bound(start_adaptive, quantile_clip))
    run.advance()
    assert run.snapshot()["clip"].dtype is torch.float32

    def negative(round: Round) -> Adaptive:
        return Adaptive(round.initial(), round.of_agents(torch.full((5, 1), -1.0)))

    with pytest.raises(InputError, match=r"scale=-1.0 .* must be a positive number"):
        Engine(of, Bound(negative, quantile_clip)).advance()


@pytest.mark.parametrize(
    ("use", "said"),
    [
        (lambda r, s: r.count(within, s.x, batch=r.draw(), of="size"), "must be one of 'loss'"),
        (lambda r, s: r.count(within, s.clip, batch=r.draw()), "give a model"),
        (lambda r, s: r.count(within, s.x, batch=r.draw(per="user")), "whole users"),
        (lambda r, s: r.count(lambda norm: s, s.x, batch=r.draw()), "round.count"),
        (lambda r, s: s.x + r.count(within, s.x, batch=r.draw()), "block"),
    ],
)
def test_what_is_no_count_is_refused(use, said):
    def step(state: Adaptive, round: Round) -> Adaptive:
        use(round, state)
        return state

    with pytest.raises((UndeclaredOperation, InputError), match=said):
        traced(start_adaptive, step, ring(5))


@pytest.mark.slow
@pytest.mark.parametrize("step", [quantile_clip, early_stopping])
def test_a_run_is_audited(step):
    bound = Bound(start_adaptive, step, noise_multiplier=1.0)
    every = engine_checks(setting(ring(5)), bound, rounds=3, randomness=SecretRandomness(9))
    assert [(one.name, one.words) for one in every if not one.passed] == []


@pytest.mark.slow
def test_the_audit_sees_a_count_that_is_not_clipped(monkeypatch):
    monkeypatch.setattr(counts, "_score", lambda found, like: torch.as_tensor(found).to(like))

    def step(state: Adaptive, round: Round) -> Adaptive:
        count = round.count(times_nine, state.x, batch=round.draw())
        return Adaptive(state.x, count + round.noise(count, std=1.0))

    run = watch(setting(ring(5)), Bound(start_adaptive, step, noise_multiplier=1.0), rounds=2)
    found = sensitivity_check(run)
    assert not found.passed
    assert "where its bound is 1" in found.words


def times_nine(loss):
    return 9.0 * loss


def test_the_noise_of_counts_is_tested_while_a_run_trains():
    tests = NoiseTests()
    run = Engine(setting(ring(5)), Bound(start_adaptive, early_stopping), noise_tests=tests)
    for _ in range(3):
        run.advance()
    assert tests.rounds >= 3
