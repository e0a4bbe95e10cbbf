# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Your own algorithm
#
# An algorithm is two functions over the [operations of a round](../round.md): `init` gives the
# first state, `step` the next one. From the code alone follows what each adversary learns. This
# notebook writes an algorithm that seems private, finds that it is not, mends it, and trains it.
#
# ## A first version
#
# Each agent takes a clipped gradient step and hides the model that it *sends* behind noise. It
# keeps its own model as it is.

# %%
import sys
from pathlib import Path
from typing import NamedTuple

import matplotlib.pyplot as plt

import overhear
from overhear.training import Agents, Round


class State(NamedTuple):
    x: Agents  # (A, D) models


def init(round: Round) -> State:
    return State(round.initial())


def leaky(state, round, *, learning_rate, clip_norm, noise_std, batch_size):
    sums = round.clipped_sums(state.x, batch=round.draw(), clip_norm=clip_norm)
    noise, rate = round.noise(sums, std=noise_std), learning_rate / batch_size
    mixed = round.mix(state.x - rate * (sums + noise), kind="masked model")
    return State(mixed + round.own(round.weights) * (rate * noise))  # its own enters as it is


run = {"graph": "ring:5", "rounds": 60, "sampling_rate": 0.1, "delta": 1e-5}
numbers = {"learning_rate": 0.5, "clip_norm": 1.0, "batch_size": 16.0}
found = overhear.account(init, leaky, noise_multiplier=2, **run, **numbers)
for name in found:
    print(f"{name:15} {found[name].epsilon:5.3g}  {found[name].status}")

# %% [markdown]
# Against who reads the links nothing protects: from one round to the next the noise cancels
# between two messages of an agent. The account names them:

# %%
print(found["eavesdropper"].because)

# %% [markdown]
# ## Mended
#
# Noise goes onto the gradient before anything else happens to it. Whatever is made of a noisy
# value afterwards costs nothing. What is to be trained stands in a file, since a run keeps the
# source of what trained it; with the two functions the file names the algorithm.

# %%
Path("mine.py").write_text("""
from typing import NamedTuple

from overhear.training import Agents, Algorithm, Round


class State(NamedTuple):
    x: Agents


def init(round: Round) -> State:
    return State(round.initial())


def step(state, round, *, learning_rate, clip_norm, noise_std, batch_size):
    sums = round.clipped_sums(state.x, batch=round.draw(), clip_norm=clip_norm)
    noisy = (sums + round.noise(sums, std=noise_std)) / batch_size
    return State(round.mix(state.x - learning_rate * noisy, kind="model"))


MENDED = Algorithm(name="mended", init=init, step=step)
""")
sys.path.insert(0, ".")
from mine import MENDED

found = overhear.account(MENDED, noise_multiplier=2, **run, **numbers)
found

# %%
rounds = [1, 5, 10, 20, 40, 60]
figure, axes = plt.subplots(figsize=(5, 2.8), dpi=80)
for adversary in ("eavesdropper", "final-models"):
    axes.plot(rounds, [found.epsilon(adversary, rounds=r) for r in rounds], label=adversary)
axes.set(xlabel="round", ylabel="epsilon at delta 1e-5")
axes.legend()
figure.tight_layout()

# %% [markdown]
# ## Trained
#
# The same two functions train. The algorithm stands in a run like any that comes with the
# library; the noise for epsilon 3 is calculated, and each round is held against what was
# accounted for.

# %%
trained = overhear.train(
    {
        "data": {"name": "digits", "agents": 5},
        "model": {"name": "linear"},
        "graph": {"name": "ring"},
        "algorithm": {"name": MENDED},
        "privacy": {"epsilon": 3, "delta": 1e-5},
        "training": {"rounds": 60, "sampling_rate": 0.1, "learning_rate": 0.5},
    },
    out="mended",
)
accuracy = trained.metrics.rows[-1]["consensus_accuracy"]
print(f"accuracy of the mean model: {accuracy:.0%}")

# %% [markdown]
# To attack it, audit it and write its report: `overhear attack mended`, `overhear audit mended`,
# `overhear report mended`. What a step may not do, and how an algorithm gets into the registry:
# [add an algorithm](../add-an-algorithm.md).
