"""Neighbours that deviate, and agents two hops away: what they reach, beside peers and the proof.

    OMP_NUM_THREADS=1 python benchmarks/attacks_active.py                    # digits, minutes
    OMP_NUM_THREADS=1 python benchmarks/attacks_active.py --data DIR         # MNIST
    OMP_NUM_THREADS=1 python benchmarks/attacks_active.py --only imprint,pieces,noise,hops

imprint  batches of planted records, one gradient a round without noise: how many come back at 60 dB
         or more with their label, from crafted models and, by the exact stages, from an honest one
pieces   one record behind pooling, as many rounds as it takes, clipped: at 60 dB or more with its
         label, its worst PSNR, and what the search reaches from one honest gradient
noise    one record, mu of what comes back: how often it is the likeliest of 10 and of 100, on a
         crafted and on an honest model, beside what the proof allows any ranking
hops     path of 5, D-PSGD, 5 rounds, agent 0 attacks agent 2; the peer (Mrini, Cyffers, Bellet
         2402.10001) calls its own exact, for gradients that stay constant
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from overhear.attacks.interception.names import Scenario
from overhear.attacks.interception.replay import ReplayedRun
from overhear.attacks.inversion.crafted import craft, least_rounds
from overhear.attacks.inversion.inversion import reconstruct
from overhear.attacks.problem.objective import PRESETS
from overhear.attacks.problem.observation import Observation, observe, sent_gradients
from overhear.attacks.problem.problem import Imprint
from overhear.attacks.scoring.evaluation import attack_images
from overhear.attacks.scoring.metrics import match
from overhear.attacks.scoring.reconstruction_bound import lineup_bound
from overhear.privacy.accounting.risk import risk_of_mu
from overhear.runs.attack.planted import plant
from overhear.training.algorithms import ALGORITHMS, Form
from overhear.training.data.load import Dataset, load_dataset
from overhear.training.data.store import Examples
from overhear.training.engine.setting import Setting
from overhear.training.graphs.topologies import grid
from overhear.training.models.parameters import build_model, flatten

SEED = 1234
QUICK = replace(PRESETS["matched"], adam_steps=1, newton_steps=0, starts=1)  # exact stages alone
BATCHES = (("mlp", 8, 1), ("mlp", 16, 1), ("linear", 8, 1), ("linear", 8, 3), ("linear", 16, 5),
           ("conv4", 8, 3))  # fmt: skip
REBUILT_DB = 60.0
HOPS = (("linear", 1.0, 0.001), ("linear", 1.0, 0.01), ("linear", 1.0, 0.03), ("linear", 1.0, 0.1),
        ("mlp", 1.0, 0.1), ("linear", 0.3, 0.1))  # fmt: skip


def network(name: str, data: Dataset) -> nn.Module:
    made = torch.Generator().manual_seed(SEED)
    shape = tuple(data.test_inputs.shape[1:])
    return build_model(name, input_shape=shape, classes=data.classes, generator=made)


def drawn(data: Dataset, count: int, *, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Records to plant, their labels, and public ones."""
    order = torch.randperm(
        len(data.test_targets), generator=torch.Generator().manual_seed(SEED + seed)
    )
    at, rest = order[:count], order[count : count + 2000]
    return data.test_inputs[at].float(), data.test_targets[at], data.test_inputs[rest].float()


def rebuilt(
    data: Dataset,
    model: nn.Module,
    seen: Observation,
    x: Tensor,
    y: Tensor,
    imprints: Sequence[Imprint] = (),
) -> int:
    """How many records come back, with their label."""
    found = reconstruct(
        seen, model, preset=QUICK, input_shape=tuple(x.shape[1:]), classes=data.classes,
        bounds=data.bounds, generator=torch.Generator().manual_seed(SEED), imprints=imprints,
    )  # fmt: skip
    scores = match(data.pixels(x).clamp(0, 1), data.pixels(found.inputs.float()).clamp(0, 1))
    right = found.labels[list(scores.order)] == y
    return sum(db >= REBUILT_DB and bool(ok) for db, ok in zip(scores.psnr, right, strict=True))


def imprint_rows(data: Dataset, trials: int) -> None:
    print("\n| network | records | rounds | clip | crafted | honest |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name, count, rounds in BATCHES:
        for clip_norm in (None, 1.0):
            model, crafted, honest = network(name, data), 0, 0
            for seed in range(trials):
                x, y, public = drawn(data, count, seed=seed)
                made = torch.Generator().manual_seed(seed)
                sent = craft(
                    model, input_shape=tuple(x.shape[1:]), classes=data.classes,
                    bounds=data.bounds, records=count, generator=made, public=public, rounds=rounds,
                )  # fmt: skip
                sent = [one.to(dtype=torch.float32) for one in sent]
                how = {"inputs": x, "targets": y, "clip_norm": clip_norm, "noise_std": 0.0}
                points = torch.stack([one.parameters for one in sent])
                seen = observe(model, points, generator=made, **how)
                crafted += rebuilt(data, model, seen, x, y, imprints=sent)
                seen = observe(model, flatten(model)[None], generator=made, **how)
                honest += rebuilt(data, model, seen, x, y)
            every = trials * count
            print(
                f"| {name} | {count} | {rounds} | {clip_norm or 'none'} | {crafted} of {every} | "
                f"{honest} of {every} |",
                flush=True,
            )


def piece_rows(data: Dataset, count: int) -> None:
    print("\n| network | records | rounds | 60 dB and label | least | seconds each |")
    print("| --- | --- | --- | --- | --- | --- |")
    shape = tuple(data.test_inputs.shape[1:])
    for name in ("cnn", "lenet", "sigmoid-lenet"):
        if name == "lenet" and min(shape[1:]) < 12:
            continue
        model, rounds = network(name, data), least_rounds(network(name, data), shape)
        exact, least, spent = 0, float("inf"), time.process_time()
        xs, ys, _ = drawn(data, count, seed=0)
        for x, y in zip(xs.split(1), ys.split(1), strict=True):
            made = torch.Generator().manual_seed(SEED)
            sent = craft(
                model, input_shape=shape, classes=data.classes, bounds=data.bounds, records=1,
                generator=made, rounds=rounds,
            )  # fmt: skip
            sent = [one.to(dtype=torch.float32) for one in sent]
            seen = observe(
                model, torch.stack([one.parameters for one in sent]), inputs=x, targets=y,
                clip_norm=1.0, noise_std=0.0, generator=made,
            )  # fmt: skip
            found = reconstruct(
                seen, model, preset=QUICK, input_shape=shape, classes=data.classes,
                bounds=data.bounds, generator=made, imprints=sent,
            )  # fmt: skip
            pixels = [data.pixels(of.float()).clamp(0, 1) for of in (x, found.inputs)]
            db = match(*pixels).psnr[0]
            least = min(least, db)
            exact += db >= REBUILT_DB and bool(found.labels == y)
        spent = (time.process_time() - spent) / count
        print(
            f"| {name} | {count} | {rounds} | {exact} | {least:.0f} dB | {spent:.1f} |", flush=True
        )


def noise_rows(data: Dataset, victims: int) -> None:
    print("\n| network | mu | of | crafted | honest | proof allows | within |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for name in ("linear", "mlp"):
        model = network(name, data).double()
        x, y, public = drawn(data, max(victims, 100), seed=0)
        [one] = craft(
            model, input_shape=tuple(x.shape[1:]), classes=data.classes, bounds=data.bounds,
            records=1, generator=torch.Generator().manual_seed(SEED), public=public,
        )  # fmt: skip
        vectors = [clipped(model, at, x, y) for at in (one.parameters, flatten(model).double())]
        for mu in (1.0, 2.0, 4.0):
            ranks = [ranked(of, victims, std=1 / mu, sizes=(10, 100)) for of in vectors]
            for size in (10, 100):
                (crafted, honest) = [of[size] for of in ranks]
                limit = lineup_bound(mu=mu, size=size, ranks=crafted, tests=12).limit
                print(
                    f"| {name} | {mu:g} | {size} | {first(crafted):.0%} | {first(honest):.0%} | "
                    f"{risk_of_mu(mu, prior_hit_rate=1 / size).reconstruction:.0%} | "
                    f"{'NO' if limit.exceeded else 'yes'} |",
                    flush=True,
                )


def clipped(model: nn.Module, point: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """(N, D) gradients of single records, clipped to 1."""
    return torch.stack(
        [
            sent_gradients(
                Observation.single(
                    gradient=torch.zeros_like(point.detach()), model=point.detach(), noise_std=0.0,
                    clip_norm=1.0, records=1,
                ),
                model, inputs=one[None].double(), targets=label[None],
            )[0].detach()
            for one, label in zip(x, y, strict=True)
        ]
    )  # fmt: skip


def ranked(
    vectors: Tensor, victims: int, *, std: float, sizes: Sequence[int]
) -> dict[int, list[int]]:
    """Ranks of the victims by likelihood, each among so many."""
    made, found = torch.Generator().manual_seed(SEED), {size: list[int]() for size in sizes}
    for victim in range(victims):
        noise = std * torch.randn(vectors.shape[1], generator=made, dtype=vectors.dtype)
        distances = (vectors - vectors[victim] - noise).square().sum(dim=1)
        others = torch.randperm(len(vectors), generator=made)
        others = others[others != victim]
        for size in sizes:
            nearer = distances[others[: size - 1]] < distances[victim]
            found[size].append(1 + int(nearer.sum()))
    return found


def first(ranks: Sequence[int]) -> float:
    return sum(rank == 1 for rank in ranks) / len(ranks)


def hop_rows(data: Dataset, images: int) -> None:
    print(
        "\n| network | batches of others | learning rate | error, blind | error, rebuilt | kept | "
        "labels | seconds | peer |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    public, held = plant(data, images), 60
    shards = [
        Examples(data.inputs[i * held : (i + 1) * held], data.targets[i * held : (i + 1) * held])
        for i in range(5)
    ]
    for name, rate, step in HOPS:
        trial = ReplayedRun(
            setting=Setting(
                graph=grid(5, columns=5), model=network(name, data), shards=shards,
                sampling_rate=rate, device=torch.device("cpu"), dtype=torch.float32,
            ),
            algorithm="dsgd", form=Form.REPAIRED, settings=ALGORITHMS["dsgd"].settings(),
            learning_rate=step, clip_norm=None, noise_std=0.0, batch_size=rate * held,
            snapshot=None, snapshot_round=0, round=1, rounds=5, victim=2, model_owner=1,
            records_per_agent=held, together=5, adversary="neighbour:0",
        )  # fmt: skip
        begin = time.process_time()
        rows = attack_images(
            trial, data, scenario=Scenario.VIEW,
            preset=replace(PRESETS["matched"], adam_steps=300, starts=1),
            images=public.images, labels=public.labels, prior_image=public.prior,
            candidates=public.candidates, generator=torch.Generator().manual_seed(SEED),
        )  # fmt: skip
        spent = (time.process_time() - begin) / 3  # three rows are attacked, all of them alike
        blind, plain = rows[0].scores.mean_mse, rows[1]
        kept = sum(not stage.startswith("prior") for stage in plain.stages)
        batches = "whole" if rate == 1 else f"rate {rate:g}"
        print(
            f"| {name} | {batches} | {step:g} | {blind:.4f} | {plain.scores.mean_mse:.4f} | "
            f"{kept} of {images} | {plain.right_labels} of {images} | {spent:.0f} | "
            "exact, if constant |",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--only", default="imprint,pieces,noise,hops")
    parser.add_argument("--data", type=Path, help="folder that holds MNIST; else digits")
    parser.add_argument("--trials", type=int, default=4)
    parser.add_argument("--victims", type=int, default=200)
    given = parser.parse_args()
    data = load_dataset("mnist", root=given.data) if given.data else load_dataset("digits")
    asked = given.only.split(",")
    if "imprint" in asked:
        imprint_rows(data, given.trials)
    if "pieces" in asked:
        piece_rows(data, 8)
    if "noise" in asked:
        noise_rows(data, given.victims)
    if "hops" in asked:
        hop_rows(data, 4)


if __name__ == "__main__":
    main()
