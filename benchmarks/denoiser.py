"""What a denoiser of public records adds to an attack under noise: digits, a linear network.

    python benchmarks/denoiser.py [--mu 8,12,14,20] [--victims 6]

Prints a Markdown table: the mean error over the blind guess's, and how many pictures fell back to
the blind guess, without public candidates: by the search alone, and with a Wiener filter of the
public records as well. `mu` is clip norm over noise of one observation. Noise, starts and victims
are seeded, so that a row is the same again.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

import torch
from torch import Tensor

from overhear.attacks.inversion.inversion import reconstruct
from overhear.attacks.posterior import Denoiser
from overhear.attacks.problem.objective import PRESETS
from overhear.attacks.problem.observation import observe
from overhear.training.data.load import load_dataset
from overhear.training.models.parameters import build_model, flatten


def wiener(rows: Tensor) -> Denoiser:
    """The best denoiser of normal pictures with the mean and covariance of (N, D) rows."""
    mean, covariance = rows.mean(dim=0), torch.cov(rows.T)
    values, vectors = torch.linalg.eigh(covariance)
    values = values.clamp_min(1e-8)

    def clean(pixels: Tensor, noise_std: float) -> Tensor:
        kept = values / (values + noise_std**2)
        given = pixels.flatten(1).double() - mean
        return (given @ vectors * kept @ vectors.T + mean).reshape(pixels.shape)

    return clean


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mu", default="8,12,14,20")
    parser.add_argument("--victims", type=int, default=6)
    asked = parser.parse_args()
    data, made = load_dataset("digits"), torch.Generator().manual_seed(0)
    model = build_model("linear", input_shape=data.input_shape, classes=10, generator=made)
    order = torch.randperm(len(data.test_targets), generator=made)
    victims, public = order[: asked.victims], data.test_inputs[order[asked.victims :]]
    prior, flat = public.mean(dim=0), flatten(model).detach()
    clean = wiener(data.pixels(public).flatten(1).double())
    print("| mu | search | fell back | with a Wiener filter | fell back |")
    print("| --- | --- | --- | --- | --- |")
    for mu in map(float, asked.mu.split(",")):
        cells = [f"{mu:g}"]
        for denoiser in (None, clean):
            errors, blind, lost = 0.0, 0.0, 0
            for number, at in enumerate(victims):
                seen = observe(
                    model, flat, inputs=data.test_inputs[at][None],
                    targets=data.test_targets[at][None], clip_norm=1.0, noise_std=1 / mu,
                    generator=torch.Generator().manual_seed(number),
                )  # fmt: skip
                found = reconstruct(
                    seen, model, preset=replace(PRESETS["matched"], starts=1, adam_steps=300),
                    input_shape=data.input_shape, classes=data.classes, bounds=data.bounds,
                    generator=torch.Generator().manual_seed(number), prior_image=prior,
                    denoiser=denoiser,
                )  # fmt: skip
                truth = data.pixels(data.test_inputs[at])
                errors += float((data.pixels(found.inputs[0]) - truth).square().mean())
                blind += float((data.pixels(prior) - truth).square().mean())
                lost += found.stage == "prior"
            cells += [f"{errors / blind:.0%}", f"{lost} of {len(victims)}"]
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
