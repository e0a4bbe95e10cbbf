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
# # Accounting beside Opacus
#
# You train with DP-SGD and Opacus tells you an epsilon. Does Overhear say the same? And what does
# it say once several agents send to each other, which an accountant of steps does not see?
#
# ## The same steps, three accountants
#
# DP-SGD with noise multiplier 1, sampling rate .01 and up to 2,000 steps, at delta 1e-5.

# %%
import warnings

import matplotlib.pyplot as plt
from opacus.accountants import PRVAccountant, RDPAccountant

import overhear

NOISE, RATE, DELTA = 1.0, 0.01, 1e-5


def of_opacus(accountant, steps):
    accountant.history = [(NOISE, RATE, steps)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the best order of RDP may be its last
        return accountant.get_epsilon(delta=DELTA)


def of_overhear(steps):
    found = overhear.budget(noise_multiplier=NOISE, rounds=steps, sampling_rate=RATE, delta=DELTA)
    return found.epsilon


steps = [100, 500, 1000, 2000]
curves = {
    "Opacus, RDP": [of_opacus(RDPAccountant(), s) for s in steps],
    "Opacus, PRV": [of_opacus(PRVAccountant(), s) for s in steps],
    "Overhear": [of_overhear(s) for s in steps],
}
for name, curve in curves.items():
    print(f"{name:12}", *(f"{epsilon:6.3f}" for epsilon in curve))

# %% [markdown]
# RDP is an upper bound that is not tight. PRV and Overhear compose the privacy loss itself; PRV
# allows itself an error, and Overhear rounds to the safe side. All of them are about the same
# thing: one clipped sum a step.

# %%
figure, axes = plt.subplots(figsize=(5, 2.8), dpi=80)
for (name, curve), style in zip(curves.items(), ("--", "-", ":"), strict=True):
    axes.plot(steps, curve, style, label=name)
axes.set(xlabel="steps", ylabel=f"epsilon at delta {DELTA:g}")
axes.legend()
figure.tight_layout()

# %% [markdown]
# ## What an accountant of steps does not see
#
# In DPDL each of ten agents on a ring computes gradients of *one* batch on three models, its own
# and its two neighbours', and sends all three. Somebody who counts a step counts one release.
# Overhear reads off the code of the step what is sent, and counts the three jointly.

# %%
run = {"graph": "ring:10", "rounds": 1000, "sampling_rate": RATE, "delta": DELTA}
counted = of_overhear(1000)
sent = overhear.account("dpdl", noise_multiplier=NOISE, **run)
print(f"counted by steps: epsilon {counted:.2f}")
print(f"what is sent:     epsilon {sent['eavesdropper'].epsilon:.2f}")
sent

# %% [markdown]
# `explain` says which messages add up to it:

# %%
print(sent.explain("eavesdropper"))

# %% [markdown]
# ## A finished training
#
# The history of Opacus' accountant is enough to declare a training, and to put it into a report
# or a gate. The status is *declared*: it holds if the history is true. With the
# [adapter](../opacus.md) the steps are watched, checked and audited.

# %%
from overhear.adapters import opacus

declared = opacus.from_history([(NOISE, RATE, 1000)], "declared", poisson_sampling=True)
print(declared.account(delta=DELTA))
