"""Faults of differentially private training, as small programs with the verdict that is right.

Each is DP-SGD written by hand, in numpy or in torch, with one thing wrong. `KINDS` and `OF_TORCH`
say which check of `overhear.replay` names it, and what its epsilon is in place of the claim's.
So another auditor can be measured on the same programs:

    python examples/faults.py            # a table: fault, true epsilon, which checks name it

The claim: one record moves a sum by CLIP at most, noise has the deviation STD on each coordinate of
the sum, and a record is in a batch with probability BATCH / RECORDS.
"""

import datetime as dt
import os
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset

import overhear
from overhear.testing import released

RECORDS, WIDTH, STEPS, BATCH, CLIP, STD, RATE = 24, 8, 5, 6, 1.0, 1.5, 0.3
X = np.random.default_rng(5).normal(size=(RECORDS, WIDTH))
Y = X[:, 0].round()
DATA = (X, Y)
CLAIM = {"clip": CLIP, "noise": STD, "scale": RATE / BATCH, "rate": BATCH / RECORDS}

KINDS = {
    "": ((), "as claimed"),
    "two items": (("releases",), "as of half the noise"),
    "means": (("releases",), "not bounded"),
    "clip of the mean": (("releases",), "as of noise over twice the batch"),
    "by tensors": (("releases",), "as of noise over the root of 2"),
    "a tenth too long": (("releases",), "as of noise over 1.1"),
    "no clip": (("releases",), "infinite"),
    "dropped beyond 2000": (("releases",), "not bounded by the clip norm"),
    "weights by counts": (("rate",), "not bounded by the clip norm"),
    "thrice the rate": (("rate",), "as of the rate .75"),
    "rate of loss": (("public",), "infinite"),
    "printed": (("public",), "infinite"),
    "stopped": (("public",), "infinite"),
    "seed": (("secrecy",), "infinite"),
    "clock": (("secrecy",), "infinite"),
    "date": (("secrecy",), "infinite"),
    "process": (("secrecy",), "infinite"),
    "public batches": (("secrecy",), "as of rate 1"),
    "median": (("releases",), "as of a bound that grows with the batch"),
    "bfloat16": (("noise",), "infinite"),
    "two rounds": (("noise",), "infinite"),
    "none at last": (("secrecy",), "infinite"),
    "no noise": (("noise", "secrecy"), "infinite"),
    "one with little": (("noise",), "as of a fiftieth of the noise in one round"),
    "a fifth": (("noise",), "as of a fifth of the noise"),
}
OF_TORCH = {
    "": ((), "as claimed"),
    "no clip": (("releases",), "infinite"),
    "no noise": (("noise", "secrecy"), "infinite"),
    "seed": (("noise", "secrecy"), "infinite"),
    "rate of loss": (("public",), "infinite"),
}
_SEEDS = {
    "seed": lambda: 0,
    "clock": lambda: time.time_ns() % 2**32,
    "process": os.getpid,
    "date": lambda: dt.datetime.now().microsecond,
}


def clipped(rows, most=CLIP):
    """Rows (B, n), each scaled to a norm of `most` at most."""
    return rows * np.minimum(1, most / np.linalg.norm(rows, axis=1).clip(1e-30))[:, None]


def by_hand(fault="", *, dtype=np.float64, hand=released):
    """DP-SGD of least squares in numpy, without or with a fault of `KINDS`."""

    def train(data):
        x, y = (part.astype(dtype) for part in data)
        if fault == "two items":
            x, y = np.concatenate([x, x[:, ::-1]]), np.concatenate([y, y])
        if fault == "means":
            x = x - x.mean(axis=0)
        w, lr, first = np.zeros(WIDTH, dtype), RATE, 0
        if fault == "rate of loss":
            lr = RATE / (1 + float(np.mean(np.minimum((x @ w - y) ** 2, 9))))
        noise = np.random.default_rng(_SEEDS[fault]() if fault in _SEEDS else None)
        for step in range(STEPS):
            rate = BATCH / RECORDS * (3 if fault == "thrice the rate" else 1)
            draw = np.random.default_rng(step if fault == "public batches" else None)
            at = np.flatnonzero(draw.random(len(x)) < rate)
            g = (x[at] @ w - y[at])[:, None] * x[at]
            if fault == "clip of the mean":
                g = BATCH * clipped(g.mean(axis=0, keepdims=True)) if len(at) else g
            elif fault == "by tensors":
                g = np.hstack([clipped(g[:, :2]), clipped(g[:, 2:])])
            elif fault != "no clip":
                most = 1.1 * CLIP if fault == "a tenth too long" else CLIP
                if fault == "median" and len(at):
                    most = min(CLIP, np.median(np.linalg.norm(g, axis=1)).clip(1e-30))
                g = clipped(g, most)
            if fault == "dropped beyond 2000" and np.abs(x[at]).max(initial=0) > 2000:
                g = 0 * g
            if fault == "weights by counts":
                g = g / (1 + (y > 0).mean())
            if fault == "printed":
                print(f"step {step}: loss {np.mean((x[at] @ w - y[at]) ** 2):.3f}")
            if fault == "stopped" and np.mean((x @ w - y) ** 2) > 1.5:
                break
            z = noise.normal(0, STD * {"no noise": 0, "a fifth": 0.2}.get(fault, 1), WIDTH)
            if fault == "one with little" and step == 2:
                z = z / 50
            if fault == "bfloat16":
                z = torch.from_numpy(z).bfloat16().double().numpy()
            if fault == "two rounds" and step in (1, 3):
                z = first = first if step == 3 else z
            if fault == "none at last" and step == STEPS - 1:
                z = 0 * z
            w = hand((w - lr / BATCH * (g.sum(axis=0) + z)).astype(dtype))
        return {"w": w, "lr": lr}

    return train


class Net(nn.Module):
    """One hidden layer."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, 4), nn.Linear(4, 2)

    def forward(self, x):
        """Scores of two classes."""
        return self.last(torch.tanh(self.first(x)))


def with_torch(fault="", *, dtype=torch.float32, kind=torch.optim.SGD, passes=1):
    """DP-SGD by an optimiser of torch, whose gradients are seen, with a fault of `OF_TORCH`."""

    def train(data):
        torch.manual_seed(0)
        net = Net().to(dtype)
        if fault != "seed":
            torch.seed()
        optimizer = kind(net.parameters(), lr=0.1)
        for _ in range(STEPS):
            total = [torch.zeros_like(p) for p in net.parameters()]
            chosen = (torch.rand(len(data)) < BATCH / RECORDS).nonzero().flatten().tolist()
            loss = 0.0
            for part in range(passes):  # a batch in several passes is one release
                for at in chosen[part::passes]:
                    x, y = data[at]
                    one = nn.functional.cross_entropy(net(x.to(dtype)[None]), y[None])
                    g = torch.autograd.grad(one, list(net.parameters()))
                    norm = torch.stack([part.norm() for part in g]).norm()
                    factor = 1.0 if fault == "no clip" else min(1.0, CLIP / (float(norm) + 1e-12))
                    total = [a + factor * b for a, b in zip(total, g, strict=True)]
                    loss += float(one.detach())
            for p, a in zip(net.parameters(), total, strict=True):
                p.grad = (a + (fault != "no noise") * STD * torch.randn_like(a)) / BATCH
            if fault == "rate of loss":
                optimizer.param_groups[0]["lr"] = 0.1 / (1 + loss)
            optimizer.step()
        return net

    return train


ITEMS = TensorDataset(torch.tensor(X, dtype=torch.float32), torch.tensor(Y > 0).long())
CLAIM_OF_TORCH = CLAIM | {"scale": 1 / BATCH}

if __name__ == "__main__":
    for kinds, make, data, claim in (
        (KINDS, by_hand, DATA, CLAIM),
        (OF_TORCH, with_torch, ITEMS, CLAIM_OF_TORCH),
    ):
        for name, (_, epsilon) in kinds.items():
            found = overhear.replay(make(name), data, records=8, **claim)
            failed = [one.name for one in found.checks if not one.passed]
            print(f"{make.__name__:10}  {name or 'sound':19}  {epsilon:33}  {', '.join(failed)}")
