"""Our attacks beside breaching's at equal CPU time, on the same gradients of the same models.

    git clone https://github.com/JonasGeiping/breaching DIR; pip install omegaconf
    OMP_NUM_THREADS=1 python benchmarks/attacks_peer.py --breaching DIR          # 20 minutes
    OMP_NUM_THREADS=1 python benchmarks/attacks_peer.py --breaching DIR --quick --only mlp

Photos and models are those of `attacks.py`. Ours runs first, as it stands, without labels and as
if the loss were the cross-entropy. Then each of breaching's attacks has as many seconds of process
CPU time, at least `--least` of them, which set its number of iterations; it is given the labels and
the loss. Its best by the truth, which an attacker does not have, is printed. PSNR in dB on [0, 1],
the mean over the row's pictures.
"""

from __future__ import annotations

import argparse
import importlib
import os
import statistics
import sys
import time
import types
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from attacks import (
    BOUNDS,
    CROPS,
    GREY,
    LABELS,
    SEED,
    Vision,
    conv_net,
    counted,
    crop,
    mlp,
    resnet8,
    sigmoid_lenet,
)
from overhear.attacks.inversion.inversion import reconstruct
from overhear.attacks.problem.observation import Observation
from overhear.attacks.scoring.metrics import match
from overhear.training.models.parameters import flatten

Loss = Callable[[Tensor, Tensor], Tensor]
SIDE = 32
PEER = {
    "inverting gradients": ("invertinggradients", {}),
    "modern": ("modern", {"regularization": {"features": {"scale": 0.0}}}),
    "L-BFGS": ("deepleakage", {"attack_type": "optimization"}),
}
TIMED = 50  # iterations that tell what one takes; with what a call takes by itself, hence more
MORE = 1.15  # times as many


def one_hot(labels: Tensor, outputs: Tensor) -> Tensor:
    return functional.one_hot(labels, outputs.shape[1]).to(outputs)


def several_labels(outputs: Tensor, labels: Tensor) -> Tensor:
    wanted = one_hot(labels, outputs)
    return functional.binary_cross_entropy_with_logits(outputs, wanted)


def squared(outputs: Tensor, labels: Tensor) -> Tensor:
    return (outputs - one_hot(labels, outputs)).square().mean()


def smoothed(outputs: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(outputs, labels, label_smoothing=0.1)


def vision() -> nn.Module:
    torch.manual_seed(SEED)
    return Vision(SIDE, width=96, layers=2)


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """A model, how many pictures a batch has, how many batches are attacked, and the loss."""

    name: str
    model: Callable[[], nn.Module]
    classes: int = 10
    records: int = 1
    batches: int = 2
    loss: Loss = functional.cross_entropy


ROWS = {
    "mlp": Row(name="ReLU network", model=lambda: mlp(SIDE)),
    "mlp-4": Row(name="ReLU network", model=lambda: mlp(SIDE), records=4),
    "mlp-bce": Row(
        name="ReLU network, several labels", model=lambda: mlp(SIDE), loss=several_labels
    ),
    "mlp-mse": Row(name="ReLU network, squared error", model=lambda: mlp(SIDE), loss=squared),
    "lenet": Row(name="sigmoid LeNet", model=lambda: sigmoid_lenet(SIDE), classes=100),
    "conv": Row(name="conv net", model=lambda: conv_net(SIDE)),
    "conv-smooth": Row(
        name="conv net, smoothed labels", model=lambda: conv_net(SIDE), loss=smoothed, batches=1
    ),
    "conv-mse": Row(
        name="conv net, squared error", model=lambda: conv_net(SIDE), loss=squared, batches=1
    ),
    "conv-4": Row(name="conv net", model=lambda: conv_net(SIDE), records=4, batches=1),
    "vision": Row(name="vision transformer, 2 layers", model=vision),
    "resnet": Row(name="ResNet-8 with GroupNorm", model=resnet8),
}


def breaching(folder: Path) -> Any:
    """Its attacks alone: the rest of it needs data sets, torchvision and hydra."""
    for name in ("breaching", "breaching.cases", "breaching.cases.models"):
        made = types.ModuleType(name)
        made.__path__ = [str(folder.joinpath(*name.split(".")))]
        sys.modules[name] = made
    return importlib.import_module("breaching.attacks")


def settings(folder: Path, name: str, changed: dict[str, Any]) -> Any:
    from omegaconf import OmegaConf

    files = [
        folder / "breaching/config/attack" / f"{n}.yaml"
        for n in ("_default_optimization_attack", name)
    ]
    found = OmegaConf.merge(*(OmegaConf.load(file) for file in files), changed)
    found.pop("defaults", None)
    return found


class Peer:
    """One of breaching's attacks on one gradient."""

    def __init__(self, folder: Path, row: Row, model: nn.Module, sent: list[Tensor]) -> None:
        self.attacks, self.folder, self.row = breaching(folder), folder, row
        self.model, self.sent = model, sent

    def run(self, name: str, y: Tensor, iterations: int, shape: torch.Size) -> tuple[Tensor, float]:
        """What it finds, and the CPU seconds of an iteration."""
        config, changed = PEER[name]
        chosen = settings(self.folder, config, changed)
        chosen.optim.max_iterations, chosen.optim.callback = iterations, 10**9
        torch.manual_seed(SEED)
        about = types.SimpleNamespace(
            shape=tuple(shape), modality="vision", mean=(0.0,) * 3, std=(1.0,) * 3
        )
        data = {"num_data_points": len(y), "labels": y, "local_hyperparams": None}
        begin = time.process_time()
        with sdpa_kernel(SDPBackend.MATH):  # the other kernels have no second derivative
            found = self._found(chosen, about, data)
        spent = (time.process_time() - begin) / iterations
        return found["data"].detach().clamp(0, 1), spent

    def _found(self, chosen: Any, about: object, data: dict[str, Any]) -> dict[str, Tensor]:
        attacker = self.attacks.prepare_attack(self.model, self.row.loss, chosen)
        found, _ = attacker.reconstruct(
            [{"parameters": [*self.model.parameters()], "buffers": [], "metadata": about}],
            [{"gradients": self.sent, "buffers": [], "metadata": data}],
            server_secrets={},
        )
        return found


def compared(row: Row, folder: Path, *, batches: int, least: float) -> None:
    photos = torch.stack([crop(one, side=SIDE) for one in CROPS.split(",")])
    ours, blind, stages = [], [], []
    peers: dict[str, list[float]] = {name: [] for name in PEER}
    seconds, spent_by_peer = 0.0, 0.0
    for at in range(batches):
        part = slice(at * row.records, (at + 1) * row.records)
        x, y = photos[part], torch.tensor(LABELS)[part]
        model = row.model()
        sent = torch.autograd.grad(row.loss(model(x), y), [*model.parameters()])
        flat = torch.cat([one.flatten() for one in sent])
        seen = Observation.single(
            gradient=flat, model=flatten(model), noise_std=0.0, clip_norm=None, records=len(x)
        )
        begin = time.process_time()
        found = reconstruct(
            seen, model, preset="matched", input_shape=x.shape[1:], classes=row.classes,
            bounds=BOUNDS, generator=torch.Generator().manual_seed(SEED),
        )  # fmt: skip
        spent = time.process_time() - begin
        seconds += spent
        ours += match(x, found.inputs).psnr
        stages.append(found.stage)
        blind += match(x, torch.full_like(x, GREY)).psnr
        peer = Peer(folder, row, model, [one.detach() for one in sent])
        for name, scores in peers.items():
            peer.run(name, y, TIMED, x.shape[1:])
            each = peer.run(name, y, TIMED, x.shape[1:])[1]
            iterations = max(TIMED, int(MORE * max(spent, least) / each))
            other, each = peer.run(name, y, iterations, x.shape[1:])
            spent_by_peer += each * iterations / len(peers)
            scores += match(x, other).psnr
    name, best = max(peers.items(), key=lambda one: statistics.mean(one[1]))
    others = ", ".join(f"{of} {statistics.mean(scores):.1f}" for of, scores in peers.items())
    cells = (
        f"{row.name}, {row.records} x {batches}",
        f"{statistics.mean(ours):.1f} ({counted(stages)})",
        f"{statistics.mean(best):.1f} ({name})",
        others,
        f"{statistics.mean(blind):.1f}",
        f"{seconds / batches:.1f} / {spent_by_peer / batches:.1f} s",
    )
    print(f"| {' | '.join(cells)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--breaching", type=Path, required=True, help="a checkout of it")
    parser.add_argument("--quick", action="store_true", help="one batch a row")
    parser.add_argument("--only", default=",".join(ROWS), help="rows, by name")
    parser.add_argument(
        "--least", type=float, default=10.0, help="CPU seconds that it has at least"
    )
    given = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    print(f"torch {torch.__version__}\n")
    print("| gradient of | ours, dB | breaching's best | its attacks | grey picture | CPU time |")
    print("|---|---|---|---|---|---|")
    for name in given.only.split(","):
        row = ROWS[name]
        compared(row, given.breaching, batches=1 if given.quick else row.batches, least=given.least)


if __name__ == "__main__":
    main()
