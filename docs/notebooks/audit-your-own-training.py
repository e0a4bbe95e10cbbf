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
# # Audit your own training
#
# You have a function that trains, and a claim about it. An audit plants canaries, which are
# records that a fair coin puts into the data or leaves out, trains, and asks whether the coins
# can be read off the model. What it finds is a *lower* bound on epsilon: the truth is at least
# that. If the bound is above the claim, the claim is wrong.
#
# ## A training without protection

# %%
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import overhear
from overhear.attacks.foreign.claimed import claimed

digits = load_digits()
inputs = torch.tensor(digits.data[:400] / 16, dtype=torch.float32)
my_data = TensorDataset(inputs, torch.tensor(digits.target[:400]))


def train(dataset, *, epochs=40):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(epochs):
        for x, y in DataLoader(dataset, batch_size=64, shuffle=True):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    return model


# %% [markdown]
# Somebody claims epsilon 1 for it.

# %%
claim = claimed(epsilon=1, delta=1e-5)
audit = overhear.audit(train, data=my_data, canaries=100, claim=claim, seed=1)
print(audit.verdict, f"after {audit.trainings} trainings: epsilon is at least {audit.epsilon:.2f}")

# %% [markdown]
# *Contradicted*: no training with epsilon 1 shows so much, but for one audit in a thousand.
#
# ## Who could be told?
#
# Membership inference asks the same of real records. Reference models are trained with random
# halves of the data, and one more model is attacked.

# %%
found = overhear.attack(train, data=my_data, method="rmia", references=4, records=200, seed=1)
print(found.table())

# %%
figure = found.plot().figure
figure.set_size_inches(4.2, 3.4)
figure.set_dpi(80)

# %% [markdown]
# ## With DP-SGD
#
# The same data, trained by Opacus with noise multiplier 1. The [adapter](../opacus.md) watches
# the noisy gradients, so that the audit sees much more than a final model shows; and the claim is
# what the watched steps cost.

# %%
import warnings

from opacus import PrivacyEngine

from overhear.adapters import opacus


def train_privately(dataset):
    model = nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Opacus: about its noise, and about hooks of torch
        model, optimizer, loader = PrivacyEngine().make_private(
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.5),
            data_loader=DataLoader(dataset, batch_size=50),
            noise_multiplier=1.0,
            max_grad_norm=1.0,
        )
        with overhear.record("private", system=opacus.watch(optimizer, loader)) as log:
            for _ in range(4):
                for x, y in loader:
                    optimizer.zero_grad()
                    nn.functional.cross_entropy(model(x), y).backward()
                    optimizer.step()
    return log


torch.manual_seed(2)  # for this page alone: who knows the seed knows the noise
private = overhear.audit(train_privately, data=my_data, canaries=500, delta=1e-5, seed=2)
print(private.verdict)
print(f"proven {private.claimed.epsilon:.2f}, measured at least {private.epsilon:.2f}")

# %% [markdown]
# *Consistent*: the canaries show less than what is proven. That is no proof of its own, as a bug
# may be too small for 500 canaries; what an audit can and cannot see stands in [audit your own
# training](../audit-your-own-training.md).
