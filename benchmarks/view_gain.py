"""What an eavesdropper gains on one cross-gradient by using everything that it saw.

    python benchmarks/view_gain.py [--replays N]

DPDL on digits in round 1, where all models are still the same, so that all contributions of the
victim are one vector. Its error in the best average of the whole view is measured over replays of
the real engine, and set against that of one cross-gradient; the noise is that of epsilon 8 for a
single message (delta 1e-5, 1,000 rounds at rate .02). Beside it stand what the covariance of the
view predicts for this round, and the joint sensitivity of the accountant, which no gradients and no
round can exceed. For the published form the accountant's figure is reached where all that the
victim hears lies at the worst angle to its gradient: the last column is the gain there, from the
Jacobian of the calibration itself, along the direction that it stretches most.
"""

from __future__ import annotations

import argparse
import math

import torch
from torch import Tensor

from overhear.attacks import Protection, ReplayedRun, Scenario, intercept, replay, trace_of
from overhear.attacks.problem.observation import sent_gradients
from overhear.attacks.scoring.reconstruction_bound import proven_mu
from overhear.privacy import noise_multiplier
from overhear.training import ALGORITHMS, Form, build_graph, build_model, load_dataset
from overhear.training.algorithms import dpdl
from overhear.training.data.store import Examples
from overhear.training.engine.setting import Setting
from overhear.training.exposure.joint_sensitivities import joint_sensitivities

AGENTS = 10


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="gain of the whole view over one message")
    parser.add_argument("--replays", type=int, default=10)
    replays = parser.parse_args().replays
    torch.set_num_threads(1)
    multiplier = noise_multiplier(epsilon=8, delta=1e-5, rounds=1000, sampling_rate=0.02)
    print(f"noise multiplier {multiplier:.4f}; error of one cross-gradient over the view's")
    print(
        f"{'graph':6} {'form':10} {'alpha':>5} {'measured':>9} {'predicted':>9} "
        f"{'accountant':>10} {'worst angle':>11}"
    )
    for graph in ("ring", "full"):
        for form in Form:
            for alpha in (0.1, 1.0):
                _row(graph, form, alpha, multiplier=multiplier, replays=replays)


def _row(graph: str, form: Form, alpha: float, *, multiplier: float, replays: int) -> None:
    trial = _trial(graph, form, alpha, noise_std=multiplier)
    traces, alone, joined, predicted = trace_of(trial), [], [], 0.0
    planted = Examples(trial.setting.shards[0].inputs[:1], trial.setting.shards[0].targets[:1])
    for _ in range(replays):
        seen = intercept(replay(trial, planted, traces=traces), scenario=Scenario.VIEW).observation
        assert seen is not None  # noqa: S101 # the eavesdropper hears every cross-gradient
        truth = sent_gradients(
            seen, trial.setting.model, inputs=planted.inputs, targets=planted.targets
        ).detach()
        one = torch.ones(len(seen.gradient), dtype=torch.float64)
        weights = torch.linalg.solve(seen.covariance, one) * seen.noise_std**2
        joined.append(weights @ (seen.gradient - truth).double())
        alone.append((seen.gradient - truth)[0].double())
        predicted = float(seen.covariance[0, 0]) ** 0.5 / seen.noise_std
    measured = _size(alone) / _size(joined)
    ((_, found),) = joint_sensitivities(traces, ["eavesdropper"], sampling_rate=1.0, victim=0)
    most = found.largest
    worst = f"{_worst(trial, alpha):11.3f}" if form is Form.PUBLISHED else f"{'':>11}"
    proven = "" if math.isfinite(proven_mu(trial, traces)) else "  heuristic"
    print(
        f"{graph:6} {form:10} {alpha:5.1f} {measured:9.3f} {predicted:9.3f} {most:10.3f} {worst}"
        f"{proven}"
    )


def _size(errors: list[Tensor]) -> float:
    return float(torch.cat(errors).square().mean().sqrt())


def _trial(graph: str, form: Form, alpha: float, *, noise_std: float) -> ReplayedRun:
    data = load_dataset("digits")
    model = build_model(
        "mlp",
        input_shape=data.input_shape,
        classes=data.classes,
        generator=torch.Generator().manual_seed(0),
    )
    shards = [Examples(data.inputs[i::AGENTS], data.targets[i::AGENTS]) for i in range(AGENTS)]
    trial = ReplayedRun(
        setting=Setting(
            graph=build_graph(graph, AGENTS),
            model=model,
            shards=shards,
            sampling_rate=0.02,
            device=torch.device("cpu"),
        ),
        algorithm="dpdl",
        form=form,
        settings=ALGORITHMS["dpdl"].settings(alpha=alpha),
        learning_rate=0.1,
        clip_norm=1.0,
        noise_std=noise_std,
        batch_size=1.0,
        snapshot=None,
        snapshot_round=0,
        round=1,
        rounds=2,
        victim=0,
        model_owner=1,
    )
    return trial.under(Protection.DEFENDED)


def _worst(trial: ReplayedRun, alpha: float) -> float:
    """sqrt(n - 1 + s^2) with s the largest stretch of the momentum, all heard at one angle."""
    graph = trial.setting.graph.at(1)
    around = [j for j in graph.neighbours(0) if j != 0]
    shares = torch.tensor([[float(graph.weights[0, j])] for j in around]).double()
    own = torch.tensor([float(graph.weights[0, 0])]).double()
    direct = 1.0 / (own.sqrt() * AGENTS)
    best = 0.0
    for angle in torch.linspace(0, math.pi, 721, dtype=torch.float64):
        heard = torch.stack([angle.cos(), angle.sin(), angle * 0])
        g = torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64)

        def momentum(x: Tensor, heard: Tensor = heard) -> Tensor:
            pull = dpdl._pull(x, heard.expand(len(around), -1), shares, heard, own)
            return direct * x + alpha * pull

        slope = torch.autograd.functional.jacobian(momentum, g)
        best = max(best, float(torch.linalg.matrix_norm(slope, ord=2) / direct))
    return math.sqrt(len(around) + best**2)


if __name__ == "__main__":
    main()
