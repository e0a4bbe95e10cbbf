"""What faults of values, of knowledge and of the accounting do to messages and figures."""

from collections.abc import Callable

import pytest
import torch

from overhear.attacks.checks.watched_run import WatchedRun
from overhear.training.exposure.joint_sensitivities import joint_sensitivities
from overhear.training.graphs.topologies import ring
from overhear.training.tracing.linear_forms import NoiseSources
from overhear.training.tracing.trace import trace
from tests.attacks.planted.accounting import APPLIED
from tests.attacks.planted.small_runs import (
    BATCH_SIZE,
    noise_added,
    planted,
    receivers,
    senders,
    short_run,
)
from tests.training.contract import NOISE, bound_to

_CLOSE = {"rtol": 1e-4, "atol": 1e-6}


def _of_kind(run: WatchedRun, kind: str) -> list[torch.Tensor]:
    return [of.rows for of in run.rounds[1].messages if of.kind == kind]


def _self_gradient() -> None:
    own = receivers() == senders()
    found, sound = noise_added(short_run("clean self-gradient")), noise_added(short_run())
    assert found[own].abs().max() < 1e-6
    torch.testing.assert_close(found[~own], sound[~own])


def _in_postprocess() -> None:
    """Messages are as ever; the known value is a multiple of the own gradient without noise."""
    run, sound = short_run("clean gradient given to postprocess"), short_run()
    torch.testing.assert_close(
        _of_kind(run, "cross-gradient")[0], _of_kind(sound, "cross-gradient")[0]
    )
    own = (receivers() == senders()).nonzero().flatten()
    clean = run.rounds[1].recorded.contributions[0][own] / BATCH_SIZE
    for found, gradient in zip(run.rounds[1].recorded.known[-1], clean, strict=True):
        cosine = found @ gradient / found.norm() / gradient.norm()
        assert float(cosine) == pytest.approx(1.0, abs=1e-6)
    noisy = sound.rounds[1].recorded.known[-1][0]
    assert float(noisy @ clean[0] / noisy.norm() / clean[0].norm()) < 0.9


def _clean_momentum() -> None:
    """The momentum is that of a run whose noise is 0, up to the last digits."""
    run = short_run("momentum of clean gradients")
    torch.testing.assert_close(noise_added(run), noise_added(short_run()))
    sums = run.rounds[1].recorded.contributions[0] / BATCH_SIZE
    weights = torch.tensor(ring(5).edge_weights.tolist())
    scaled = sums / (weights.sqrt() * 5)[:, None]
    # A cross-gradient on the model of m belongs to m, and is made by d.
    direct = torch.zeros(5, sums.shape[1]).to(sums).index_add_(0, senders(), scaled)
    (momenta,) = _of_kind(run, "momentum")
    left = momenta - direct  # the calibration adds a multiple of the own gradient
    own = sums[(receivers() == senders()).nonzero().flatten()]
    along = (left * own).sum(dim=1, keepdim=True) / own.square().sum(dim=1, keepdim=True)
    torch.testing.assert_close(left, along * own, **_CLOSE)


def _sent_again() -> None:
    run = short_run("a message sent twice with fresh noise")
    first, second = _of_kind(run, "cross-gradient")
    assert len(_of_kind(short_run(), "cross-gradient")) == 1
    # Of 3,645 differences of independent draws: the deviation's own is 1.2 % of it.
    apart = float((first - second).std()) * BATCH_SIZE / NOISE
    assert apart == pytest.approx(2.0**0.5, rel=0.06)


def _one_knower() -> None:
    def knowers(name: str) -> set[int]:
        with planted(name):
            bound = bound_to("whisper", ring(5), clip_norm=1.0, noise_std=1.0)
            found = trace(bound.init, bound.step, graph=ring(5), rounds=2, noise_multiplier=1.0)
        groups = [g for one, _ in found.rounds for g in one.groups if isinstance(g, NoiseSources)]
        return {len(of) for g in groups for of in (g.known_to or [])}

    assert max(knowers("")) > 1
    assert knowers("seed known to more than declared") == {1}


def _smaller(name: str, factor: float) -> Callable[[], None]:
    """The sensitivity that is stated, in that of a ring of five, sqrt 3."""

    def check() -> None:
        bound = bound_to("dpdl", ring(5), clip_norm=1.0, noise_std=1.0)
        traces = trace(
            bound.init, bound.step, graph=ring(5), rounds=5, noise_multiplier=bound.noise_multiplier
        )
        ((_, found),) = joint_sensitivities(traces, ["eavesdropper"], sampling_rate=1.0)
        assert found.largest == pytest.approx(3**0.5)
        assert APPLIED[name](found).largest == pytest.approx(factor * 3**0.5)

    return check


SHOWN: dict[str, Callable[[], None]] = {
    "clean self-gradient": _self_gradient,
    "clean gradient given to postprocess": _in_postprocess,
    "momentum of clean gradients": _clean_momentum,
    "a message sent twice with fresh noise": _sent_again,
    "seed known to more than declared": _one_knower,
    **{
        name: _smaller(name, factor)
        for name, factor in (
            ("releases of one batch not counted", 3**-0.5),
            ("replace-one counted as add-or-remove-one", 0.5),
        )
    },
}
