"""Attacks on photos, beside the figures to reach: which stage found what, and what a step costs.

    OMP_NUM_THREADS=1 python benchmarks/attacks.py --quick         # one or two images a row
    OMP_NUM_THREADS=1 python benchmarks/attacks.py                 # half an hour
    OMP_NUM_THREADS=1 python benchmarks/attacks.py --only dlg,conv --side 64
    OMP_NUM_THREADS=1 python benchmarks/attacks.py --photos "chelsea 60 90 128,rocket 60 240 200"

Photos are crops (name, top, left, side) of scikit-image's, resized with anti-aliasing; models have
seed 1234. PSNR in dB on [0, 1]. Times are process CPU time on one thread; "gradients" is the time
of a step over that of one plain training gradient. Rows named "optimisation" have the algebraic
stages switched off; "fallen back" counts images that the gradient did not speak for, which are
scored as the blind guess (a grey picture) that stands in for them.
"""

from __future__ import annotations

import argparse
import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from skimage import data
from skimage.transform import resize
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from overhear.attacks.exact.censored import censored_record
from overhear.attacks.inversion.inversion import Reconstruction, reconstruct
from overhear.attacks.inversion.restarts import Smoothed
from overhear.attacks.problem.objective import PRESETS, Preset
from overhear.attacks.problem.observation import Observation, observe
from overhear.attacks.problem.problem import Problem, build_box, distance_of, gradients_of
from overhear.attacks.scoring.metrics import match
from overhear.runs.run_file.tables import find_device
from overhear.training.data.load import load_dataset
from overhear.training.models.parameters import build_model, flatten, unflatten

CROPS = (
    "astronaut 10 130 180,coffee 60 180 260,chelsea 20 90 200,rocket 60 240 200,"
    "astronaut 300 20 200,coffee 10 20 200,chelsea 60 200 200,astronaut 60 330 170"
)
LABELS = (3, 7, 1, 9, 0, 5, 8, 2)
SEED = 1234
GREY = 0.42  # the constant that scores best on these crops
BOUNDS = (torch.tensor(0.0), torch.tensor(1.0))
SEARCH = replace(PRESETS["matched"], exact=False)
ONE_START = replace(SEARCH, adam_steps=500, starts=1, newton_steps=0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """What is attacked: photos (N, 3, side, side), their labels, how much of it, and where."""

    photos: Tensor
    labels: Tensor
    quick: bool
    device: torch.device

    def first(self, count: int, *, quick: int = 1) -> range:
        """Indices of as many photos, fewer in the quick mode."""
        return range(min(quick if self.quick else count, len(self.photos)))


def crop(photo: str, *, side: int) -> Tensor:
    name, top, left, size = photo.split()
    whole = getattr(data, name)()
    part = whole[int(top) : int(top) + int(size), int(left) : int(left) + int(size)]
    return torch.tensor(resize(part, (side, side), anti_aliasing=True)).permute(2, 0, 1).float()


def sigmoid_lenet(side: int) -> nn.Module:
    made = torch.Generator().manual_seed(SEED)
    return build_model("sigmoid-lenet", input_shape=(3, side, side), classes=100, generator=made)


def sure_lenet(
    photos: Tensor, labels: Tensor, *, rate: float = 0.003, steps: int = 300
) -> nn.Module:
    """A sigmoid LeNet that has learned some photos by heart: a loss of 7e-4 for four of them."""
    model = sigmoid_lenet(photos.shape[-1])
    adam = torch.optim.Adam(model.parameters(), lr=rate)
    for _ in range(steps):
        adam.zero_grad()
        cross_entropy(model(photos), labels).backward()
        adam.step()
    return model


def conv_net(side: int) -> nn.Module:
    made = torch.Generator().manual_seed(SEED)
    return build_model("conv4", input_shape=(3, side, side), classes=10, generator=made)


def mlp(side: int, *, seed: int = SEED) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * side**2, 256), nn.ReLU(), nn.Linear(256, 10))


def watch(
    model: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    *,
    clip_norm: float | None = None,
    noise_std: float = 0.0,
    points: Tensor | None = None,
    seed: int = 0,
) -> Observation:
    return observe(
        model, flatten(model).to(inputs) if points is None else points, inputs=inputs,
        targets=targets, clip_norm=clip_norm, noise_std=noise_std,
        generator=torch.Generator().manual_seed(seed),
    )  # fmt: skip


def attack(
    seen: Observation,
    model: nn.Module,
    preset: Preset,
    *,
    shape: Sequence[int],
    classes: int = 10,
    prior: Tensor | None = None,
) -> tuple[Reconstruction, float]:
    """The reconstruction and the CPU seconds that it took."""
    begin = time.process_time()
    found = reconstruct(
        seen, model, preset=preset, input_shape=shape, classes=classes, bounds=BOUNDS,
        generator=torch.Generator().manual_seed(SEED), prior_image=prior,
    )  # fmt: skip
    return found, time.process_time() - begin


def milliseconds(run: Callable[[], Any], *, times: int = 10) -> float:
    """CPU time of a call: the least of three means, after one call that pays for set-up."""
    run()
    best = float("inf")
    for _ in range(3):
        begin = time.process_time()
        for _ in range(times):
            run()
        best = min(best, (time.process_time() - begin) / times)
    return 1e3 * best


def plain_gradient(model: nn.Module, inputs: Tensor, targets: Tensor) -> float:
    own = list(model.parameters())
    return milliseconds(lambda: torch.autograd.grad(cross_entropy(model(inputs), targets), own))


def attack_step(
    model: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    *,
    softness: float = 0.0,
    starts: int = 1,
    together: bool = False,
    times: int = 10,
) -> float:
    """CPU time of the slope of the distance in the pixels of all starts."""
    seen = watch(model, inputs, targets)
    classes = model(inputs).shape[1]
    problem = Problem(
        observation=seen, model=model, preset=SEARCH, shape=tuple(inputs.shape[1:]),
        classes=classes, labels=targets, prior_image=None,
        box=build_box(BOUNDS, inputs.shape[1:], dtype=inputs.dtype),
    )  # fmt: skip
    soft = nn.functional.one_hot(targets, classes).to(inputs).expand(starts, -1, -1)
    pixels = (0.45 + 0.1 * torch.randn(starts, *inputs.shape)).to(inputs).requires_grad_()

    def run() -> Tensor:
        sent = gradients_of(problem, pixels, soft, together=together)
        return torch.autograd.grad(distance_of(problem)(sent).sum(), pixels)[0]

    with Smoothed(softness):
        return milliseconds(run, times=times)


def row(name: str, result: str, *, reach: str, stage: str, cost: str) -> None:
    print(f"| {name} | {result} | {reach} | {stage} | {cost} |", flush=True)


def scored(psnr: Sequence[float]) -> str:
    mean = sum(psnr) / len(psnr)
    return f"{len(psnr)} images: mean {mean:.1f}, least {min(psnr):.1f} dB"


def crops_row(work: Work) -> None:
    grey = torch.full_like(work.photos, GREY)
    scores = [match(x[None], g[None]).psnr[0] for x, g in zip(work.photos, grey, strict=True)]
    row("a grey picture", scored(scores), reach="12.7 dB", stage="none", cost="")


def dlg_row(work: Work) -> None:
    side = work.photos.shape[-1]
    model, scores, stages, seconds = sigmoid_lenet(side), [], [], 0.0
    for i in work.first(8):
        x, y = work.photos[i : i + 1], work.labels[i : i + 1]
        found, spent = attack(
            watch(model, x, y), model, PRESETS["dlg"], shape=x.shape[1:], classes=100
        )
        scores.append(match(x, found.inputs).psnr[0])
        stages.append(found.stage)
        seconds += spent
    model.double()  # as L-BFGS runs
    step = attack_step(model, work.photos[:1].double(), work.labels[:1])
    ratio = step / plain_gradient(model, work.photos[:1].double(), work.labels[:1])
    solved = sum(score > 30 for score in scores)
    row(
        "dlg, sigmoid LeNet, optimisation, labels joint", f"{solved} solved; {scored(scores)}",
        reach="8 of 8 at 43 dB", stage=counted(stages),
        cost=f"{step:.1f} ms a closure, {ratio:.1f} gradients; {seconds / len(scores):.0f} s each",
    )  # fmt: skip


def conv_row(work: Work) -> None:
    side = work.photos.shape[-1]
    model, scores, stages, seconds = conv_net(side), [], [], 0.0
    for i in work.first(8, quick=2):
        x, y = work.photos[i : i + 1], work.labels[i : i + 1]
        found, spent = attack(watch(model, x, y), model, ONE_START, shape=x.shape[1:])
        scores.append(match(x, found.inputs).psnr[0])
        stages.append(found.stage)
        seconds += spent
    plain = plain_gradient(model, work.photos[:1], work.labels[:1])
    steps = [
        attack_step(model, work.photos[:1], work.labels[:1], softness=softness)
        for softness in (0.0, ONE_START.softness)
    ]
    row(
        f"matched, conv net, optimisation, {ONE_START.adam_steps} steps", scored(scores),
        reach="> 34 dB on all 8", stage=counted(stages),
        cost=f"{steps[1]:.1f} ms a step, {steps[1] / plain:.1f} gradients "
        f"(ReLU not smoothed: {steps[0] / plain:.1f}); {seconds / len(scores):.0f} s each",
    )  # fmt: skip


def batch_row(work: Work) -> None:
    model = conv_net(work.photos.shape[-1])
    x, y = work.photos[:4], work.labels[:4]
    preset = replace(ONE_START, adam_steps=200 if work.quick else 1500)
    found, seconds = attack(watch(model, x, y), model, preset, shape=x.shape[1:])
    row(
        f"matched, conv net, batch 4, optimisation, {preset.adam_steps} steps",
        scored(match(x, found.inputs).psnr), reach="> 25 dB in 1,500", stage=found.stage,
        cost=f"{1e3 * seconds / preset.adam_steps:.1f} ms a step",
    )  # fmt: skip


def noise_rows(work: Work) -> None:
    model = conv_net(work.photos.shape[-1])
    for noise, reach in ((0.001, "> 29 dB"), (0.01, "> 17 dB"), (0.1, "the blind guess")):
        scores, stages, blind, fallen, seconds = [], [], [], 0, 0.0
        for i in work.first(4) if not (work.quick and noise == 0.001) else range(0):
            x, y = work.photos[i : i + 1], work.labels[i : i + 1]
            seen = watch(model, x, y, clip_norm=1.0, noise_std=noise, seed=5 + i)
            prior = torch.full(x.shape[1:], GREY)
            found, spent = attack(seen, model, SEARCH, shape=x.shape[1:], prior=prior)
            scores.append(match(x, found.inputs).psnr[0])
            stages.append(found.stage)
            blind.append(match(x, prior[None]).psnr[0])
            fallen += found.supported.count(False)
            seconds += spent
        if scores:
            row(
                f"matched, conv net, clip 1, noise {noise}",
                f"{scored(scores)}; {fallen} fallen back",
                reach=f"{reach} (blind {sum(blind) / len(blind):.1f})", stage=counted(stages),
                cost=f"{seconds / len(scores):.0f} s each",
            )  # fmt: skip


def linear_rows(work: Work) -> None:
    side = work.photos.shape[-1]
    reach = {(1e-3, 1): "31.5 dB", (1e-3, 8): "40.3 dB"}
    for noise in (1e-3, 1e-2, 1e-1):
        for count in (1, 8):
            model, scores, stages, blind, fallen = mlp(side), [], [], [], 0
            points = torch.stack([flatten(mlp(side, seed=SEED + k)) for k in range(count)])
            preset = replace(PRESETS["matched"], adam_steps=60 if work.quick else 500)
            for i in work.first(8):
                x, y = work.photos[i : i + 1], work.labels[i : i + 1]
                seen = watch(model, x, y, clip_norm=1.0, noise_std=noise, points=points, seed=5 + i)
                prior = torch.full(x.shape[1:], GREY)
                found, _ = attack(seen, model, preset, shape=x.shape[1:], prior=prior)
                scores.append(match(x, found.inputs).psnr[0])
                stages.append(found.stage)
                blind.append(match(x, prior[None]).psnr[0])
                fallen += found.supported.count(False)
            row(
                f"first linear layer, clip 1, noise {noise}, {count} models",
                f"{scored(scores)}; {fallen} fallen back",
                reach=reach.get((noise, count), f"blind {sum(blind) / len(blind):.1f}"),
                stage=counted(stages), cost="",
            )  # fmt: skip


def restart_rows(work: Work) -> None:
    side, starts = work.photos.shape[-1], 8 if work.quick else 32
    for name, model, records, reach in (
        ("sigmoid LeNet", sigmoid_lenet(side), 1, "2.2"),
        ("conv net", conv_net(side), 1, "1.5"),
        ("conv net, batch 4", conv_net(side), 4, "loses"),
    ):
        apart, joint = (
            attack_step(
                model, work.photos[:records], work.labels[:records], starts=starts,
                together=flag, times=1,
            )
            for flag in (False, True)
        )  # fmt: skip
        row(
            f"{starts} restarts together, {name}", f"{apart / joint:.2f} times as fast",
            reach=reach, stage="", cost=f"{joint:.0f} ms together, {apart:.0f} ms in a loop",
        )  # fmt: skip


def mnist_row(work: Work) -> None:
    try:
        digits = load_dataset("mnist")
    except FileNotFoundError as missing:
        row("LeNet-5 on MNIST", "skipped", reach="> 20 dB", stage="", cost=str(missing))
        return
    images = digits.test_inputs[:8] * digits.std[0] + digits.mean[0]
    prior = digits.inputs[:10_000].mean(dim=0) * digits.std[0] + digits.mean[0]
    made = torch.Generator().manual_seed(SEED)
    model = build_model("lenet", input_shape=(1, 28, 28), classes=10, generator=made)
    for steps in (0, 400):
        train(model, digits.inputs * digits.std[0] + digits.mean[0], digits.targets, steps=steps)
        scores, stages, blind, seconds = [], [], [], 0.0
        for i in range(1 if work.quick else 4):
            x, y = images[i : i + 1], digits.test_targets[i : i + 1]
            preset = replace(SEARCH, starts=1) if work.quick else SEARCH
            found, spent = attack(watch(model, x, y), model, preset, shape=x.shape[1:], prior=prior)
            scores.append(match(x, found.inputs).psnr[0])
            stages.append(found.stage)
            blind.append(match(x, prior[None]).psnr[0])
            seconds += spent
        row(
            f"matched, LeNet-5 on MNIST, optimisation, after {steps} training steps",
            scored(scores), reach=f"> 20 dB (blind {sum(blind) / len(blind):.1f})",
            stage=counted(stages), cost=f"{seconds / len(scores):.0f} s each",
        )  # fmt: skip


def train(model: nn.Module, images: Tensor, targets: Tensor, *, steps: int) -> None:
    adam = torch.optim.Adam(model.parameters(), lr=2e-3)
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        chosen = torch.randint(len(images), (64,), generator=generator)
        adam.zero_grad()
        cross_entropy(model(images[chosen]), targets[chosen]).backward()
        adam.step()


def peeling_rows(work: Work) -> None:
    side = work.photos.shape[-1]
    for name, make, classes, dtype, reach in (
        ("sigmoid LeNet, float32", sigmoid_lenet, 100, torch.float32, "8 of 8 at 80 dB, 5 s"),
        ("conv net, float64", conv_net, 10, torch.float64, "8 of 8 > 120 dB"),
        ("conv net, float32", conv_net, 10, torch.float32, "8 of 8 > 55 dB"),
    ):
        scores, stages, seconds = [], [], 0.0
        for i in work.first(8):
            model = make(side).to(dtype)
            x, y = work.photos[i : i + 1].to(dtype), work.labels[i : i + 1]
            found, spent = attack(
                watch(model, x, y), model, PRESETS["matched"], shape=x.shape[1:], classes=classes
            )
            scores.append(match(x, found.inputs).psnr[0])
            stages.append(found.stage)
            seconds += spent
        row(
            f"matched, {name}", scored(scores), reach=reach, stage=counted(stages),
            cost=f"{seconds / len(scores):.1f} s each",
        )  # fmt: skip


def sure_row(work: Work) -> None:
    scores, stages, seconds = [], [], 0.0
    for first in range(0, len(work.first(8, quick=4)), 4):
        photos, labels = work.photos[first : first + 4], work.labels[first : first + 4]
        model = sure_lenet(photos, labels)
        for x, y in zip(photos.split(1), labels.split(1), strict=True):
            found, spent = attack(
                watch(model, x, y), model, PRESETS["matched"], shape=x.shape[1:], classes=100
            )
            scores.append(match(x, found.inputs).psnr[0])
            stages.append(found.stage)
            seconds += spent
    row(
        "matched, sigmoid LeNet trained on 4 photos, float32", scored(scores), reach="68 dB",
        stage=counted(stages), cost=f"{seconds / len(scores):.1f} s each",
    )  # fmt: skip


def saturated_row(work: Work) -> None:
    """Sigmoid LeNets that four photos have driven to the ends of their sigmoids."""
    scores, seconds, told = [], 0.0, []
    for first in range(0, len(work.first(8, quick=1)), 4):
        photos, labels = work.photos[first : first + 4], work.labels[first : first + 4]
        model = sure_lenet(photos, labels, rate=0.01, steps=1000)
        for x, y in zip(photos.split(1), labels.split(1), strict=True):
            begin = time.process_time()
            posed = Problem(
                observation=watch(model, x, y), model=model, shape=tuple(x.shape[1:]),
                box=build_box(BOUNDS, x.shape[1:], dtype=x.dtype), classes=100,
            )  # fmt: skip
            found = censored_record(posed)
            seconds += time.process_time() - begin
            if found is None:
                told.append("cannot be posed")
                continue
            scores.append(match(x, found.inputs).psnr[0])
            told.append("certified" if found.certified else f"not certified ({found.reason})")
            if work.quick:
                break
    row(
        "sigmoid LeNet driven to saturation by 4 photos, float32, stage censored",
        scored(scores) if scores else "none", reach="68 dB", stage=counted(told),
        cost=f"{seconds / len(told):.0f} s each",
    )  # fmt: skip


class Vision(nn.Module):
    """A vision transformer: patches of 4 pixels, layers of 4 heads, learned positions or waves."""

    def __init__(self, side: int, *, width: int, layers: int, fixed: bool = False) -> None:
        super().__init__()
        self.embed = nn.Conv2d(3, width, 4, 4)
        places = (side // 4) ** 2
        if fixed:
            self.register_buffer("positions", waves(places, width))
        else:
            self.positions = nn.Parameter(0.02 * torch.randn(1, places, width))
        self.layers = nn.Sequential(*(
            nn.TransformerEncoderLayer(width, 4, 2 * width, 0.0, "gelu", batch_first=True)
            for _ in range(layers)
        ))  # fmt: skip
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (B, 10) of pictures (B, 3, side, side)."""
        z = self.embed(x).flatten(2).transpose(1, 2) + self.positions
        logits: Tensor = self.head(self.layers(z).mean(dim=1))
        return logits


def waves(places: int, width: int) -> Tensor:
    """(1, places, width) sines and cosines of Vaswani et al. 2017."""
    turns = torch.exp(-torch.arange(0, width, 2) / width * math.log(1e4))
    angles = torch.arange(places)[:, None] * turns
    return torch.stack([angles.sin(), angles.cos()], dim=2).flatten(1)[None]


def told(seen: Observation, model: nn.Module) -> int:
    """How many directions of tokens the gradient of the first attention tells: above rounding."""
    weight = unflatten(model, seen.gradient)["layers.0.self_attn.in_proj_weight"][0]
    values = torch.linalg.svdvals(weight.double())
    return int((values > torch.finfo(weight.dtype).eps * values[0]).sum())


def fixed_rows(work: Work) -> None:
    side = work.photos.shape[-1]
    width = (side // 4) ** 2 + 64  # of more features than patches and pixels of a patch
    for layers, dtype in ((1, torch.float64), (2, torch.float32)):
        scores, stages, seconds, least = [], [], 0.0, (side // 4) ** 2
        for i in work.first(4 if dtype == torch.float64 else 2):
            torch.manual_seed(SEED)
            model = Vision(side, width=width, layers=layers, fixed=True).to(dtype)
            x, y = work.photos[i : i + 1].to(dtype), work.labels[i : i + 1]
            preset = PRESETS["matched"] if layers == 1 else ONE_START  # the search's start alone
            seen = watch(model, x, y)
            least = min(least, told(seen, model))
            found, spent = attack(seen, model, preset, shape=x.shape[1:])
            scores.append(match(x, found.inputs).psnr[0])
            stages.append(found.stage)
            seconds += spent
        tokens = (side // 4) ** 2
        why = f"; no exact stage: rounding leaves {least} of the {tokens} directions of tokens"
        row(
            f"matched, vision transformer, fixed positions, {layers} layers, "
            f"{str(dtype).removeprefix('torch.')}",
            scored(scores), reach="patches exact, order certified",
            stage=counted(stages) + (why if least < tokens else ""),
            cost=f"{seconds / len(scores):.1f} s each",
        )  # fmt: skip


def vision_rows(work: Work) -> None:
    side = work.photos.shape[-1]
    width = max(96, (side // 4) ** 2 + 32)  # of more features than patches
    for layers, dtype, reach in (
        (2, torch.float32, "43.8 dB, least 40.2 (breaching 17.9)"),
        (1, torch.float64, "143 dB"),
    ):
        scores, stages, seconds = [], [], 0.0
        for i in work.first(8):
            torch.manual_seed(SEED)
            model = Vision(side, width=width, layers=layers).to(dtype)
            x, y = work.photos[i : i + 1].to(dtype), work.labels[i : i + 1]
            found, spent = attack(watch(model, x, y), model, PRESETS["matched"], shape=x.shape[1:])
            scores.append(match(x, found.inputs).psnr[0])
            stages.append(found.stage)
            seconds += spent
        row(
            f"matched, vision transformer, {layers} layers, {str(dtype).removeprefix('torch.')}",
            scored(scores), reach=reach, stage=counted(stages),
            cost=f"{seconds / len(scores):.1f} s each",
        )  # fmt: skip


class Residual(nn.Module):
    """Two convolutions with group norm beside a shortcut."""

    def __init__(self, inner: int, outer: int, *, stride: int) -> None:
        super().__init__()
        self.way = nn.Sequential(
            nn.Conv2d(inner, outer, 3, stride, 1, bias=False), nn.GroupNorm(4, outer), nn.ReLU(),
            nn.Conv2d(outer, outer, 3, 1, 1, bias=False), nn.GroupNorm(4, outer),
        )  # fmt: skip
        self.short = nn.Sequential()
        if stride != 1 or inner != outer:
            self.short = nn.Sequential(
                nn.Conv2d(inner, outer, 1, stride, bias=False), nn.GroupNorm(4, outer)
            )

    def forward(self, x: Tensor) -> Tensor:
        """(B, outer, H, W), halved by a stride of 2."""
        return torch.relu(self.way(x) + self.short(x))


def resnet8() -> nn.Module:
    """ResNet-8 of 16, 32 and 64 channels with GroupNorm: 78,000 parameters."""
    torch.manual_seed(SEED)
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.GroupNorm(4, 16), nn.ReLU(),
        Residual(16, 16, stride=1), Residual(16, 32, stride=2), Residual(32, 64, stride=2),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10),
    )  # fmt: skip


def resnet_rows(work: Work) -> None:
    model, shape = resnet8(), tuple(work.photos.shape[1:])
    for name, prior in (("", None), (", brightness of the public guess", torch.full(shape, GREY))):
        scores, fitted, stages, seconds = [], [], [], 0.0
        for i in work.first(8):
            x, y = work.photos[i : i + 1], work.labels[i : i + 1]
            found, spent = attack(watch(model, x, y), model, ONE_START, shape=shape, prior=prior)
            scores.append(match(x, found.inputs).psnr[0])
            fitted.append(match(x, affine_fit(found.inputs, to=x)).psnr[0])
            stages.append(found.stage)
            seconds += spent
        row(
            f"matched, ResNet-8 with GroupNorm, {ONE_START.adam_steps} steps{name}",
            f"{scored(scores)}; after an affine fit mean {sum(fitted) / len(fitted):.1f} dB",
            reach="16 to 17 dB (breaching), level after an affine fit", stage=counted(stages),
            cost=f"{seconds / len(scores):.0f} s each",
        )  # fmt: skip


def affine_fit(found: Tensor, *, to: Tensor) -> Tensor:
    """The picture times a factor and moved by a number, which are those nearest to the truth."""
    pixels = torch.stack([found.flatten(), torch.ones_like(found).flatten()], 1).double()
    solved = torch.linalg.lstsq(pixels, to.flatten().double()[:, None]).solution
    return (pixels @ solved).reshape(found.shape).to(found).clamp(0, 1)


def relu_row(work: Work) -> None:
    """Eight patches of 32x32 on a grid of step 56, whatever the photos asked for."""
    whole = torch.tensor(data.astronaut().transpose(2, 0, 1) / 255.0)
    for offset in (7,) if work.quick else (7, 20, 40):
        corners = [divmod(5 * k, 8) for k in range(8)]
        places = [(offset + 56 * r, offset + 56 * c) for r, c in corners]
        x = torch.stack([whole[:, t : t + 32, s : s + 32] for t, s in places])
        model, y = mlp(32).double(), torch.tensor([3, 7, 1, 9, 3, 5, 1, 2])
        found, seconds = attack(watch(model, x, y), model, PRESETS["matched"], shape=x.shape[1:])
        row(
            f"matched, batch 8 of a ReLU network, offset {offset}",
            scored(match(x, found.inputs).psnr),
            reach="exact with certificate, 4.4 s", stage=found.stage, cost=f"{seconds:.1f} s",
        )  # fmt: skip


def device_row(work: Work) -> None:
    """The same searches on the CPU and on the device, in seconds of the clock."""
    what = "matched, conv net, optimisation, on a device"
    if work.device.type == "cpu":
        row(what, "skipped", reach="10 times as fast", stage="", cost="no device; see --device")
        return
    model, scores, seconds = conv_net(work.photos.shape[-1]), list[list[float]](), list[float]()
    for device in (torch.device("cpu"), work.device):
        scores.append([])
        begin = time.perf_counter()
        for i in work.first(8):
            x, y = work.photos[i : i + 1], work.labels[i : i + 1]
            found = reconstruct(
                watch(model, x, y), model, preset=SEARCH, input_shape=x.shape[1:], classes=10,
                bounds=BOUNDS, generator=torch.Generator().manual_seed(SEED), device=device,
            )  # fmt: skip
            scores[-1] += match(x, found.inputs).psnr
        seconds.append(time.perf_counter() - begin)
    row(
        f"{what} ({work.device})", f"{scored(scores[1])}; CPU {scored(scores[0])}",
        reach="10 times as fast", stage="optimisation",
        cost=f"{seconds[0] / seconds[1]:.1f} times as fast, {seconds[1]:.1f} s on the clock",
    )  # fmt: skip


def counted(stages: Sequence[str]) -> str:
    """Which stage produced how many images."""
    return ", ".join(f"{name} x{count}" for name, count in Counter(stages).items())


ROWS: dict[str, Callable[[Work], None]] = {
    "crops": crops_row,
    "dlg": dlg_row,
    "conv": conv_row,
    "batch": batch_row,
    "noise": noise_rows,
    "linear": linear_rows,
    "restarts": restart_rows,
    "mnist": mnist_row,
    "peeling": peeling_rows,
    "sure": sure_row,
    "saturated": saturated_row,
    "vision": vision_rows,
    "fixed": fixed_rows,
    "resnet": resnet_rows,
    "relu": relu_row,
    "device": device_row,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="one or two images a row, few steps")
    parser.add_argument("--only", default=",".join(ROWS), help=f"rows among {', '.join(ROWS)}")
    parser.add_argument("--side", type=int, default=32, help="pixels, a multiple of 4")
    parser.add_argument("--photos", default=CROPS, help="'name top left side, ...'")
    parser.add_argument("--device", default="auto", help="of the row `device`, beside the CPU")
    asked = parser.parse_args()
    unknown = set(asked.only.split(",")) - set(ROWS)
    if unknown:
        parser.error(f"--only {', '.join(sorted(unknown))}: choose among {', '.join(ROWS)}")
    torch.set_num_threads(1)
    photos = torch.stack([crop(photo, side=asked.side) for photo in asked.photos.split(",")])
    labels = torch.tensor([LABELS[k % len(LABELS)] for k in range(len(photos))])
    device = find_device(asked.device)
    work = Work(photos=photos, labels=labels, quick=asked.quick, device=device)
    print("| work | reached | to reach | stage | cost |")
    print("|---|---|---|---|---|")
    for name in asked.only.split(","):
        ROWS[name](work)


if __name__ == "__main__":
    main()
