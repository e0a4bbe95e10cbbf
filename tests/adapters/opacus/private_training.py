"""A training by Opacus as users write it, with a place for each fault."""

import warnings

import torch
from opacus import PrivacyEngine
from opacus.utils.uniform_sampler import UniformWithReplacementSampler
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import overhear as oh
from overhear.adapters import opacus


def digits(count):
    held = load_digits()
    return TensorDataset(
        torch.tensor(held.data[:count] / 16, dtype=torch.float32), torch.tensor(held.target[:count])
    )


def private(
    data, *, hidden=8, batch=50, noise=1.0, clip=1.0, lr=0.5, inner=None, network=None,
    loading=None, **how
):  # fmt: skip
    """Model, optimizer and loader as `make_private` returns them."""
    tanh = nn.Sequential(nn.Flatten(), nn.Linear(64, hidden), nn.Tanh(), nn.Linear(hidden, 10))
    model, given = network or tanh, DataLoader(data, batch_size=batch, **(loading or {}))
    optimizer = (inner or torch.optim.SGD)(model.parameters(), lr=lr)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Secure RNG turned off")
        engine = PrivacyEngine(accountant="prv")
    made = engine.make_private(
        module=model, optimizer=optimizer, data_loader=given,
        noise_multiplier=noise, max_grad_norm=clip, **how,
    )  # fmt: skip
    return engine, *made


def step(model, optimizer, x, y):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    return loss.detach()


def trained(
    folder, data, *, epochs=5, fault=None, keep="all", rates=None, after=None, rounds=0, **how
):
    """The log of a training; `fault` changes model, optimizer or loader before it begins."""
    engine, model, optimizer, loader = private(data, **how)
    scheduler = None if after is None else after(optimizer)
    if fault is not None:
        fault(optimizer, loader)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="transcripts of")
        warnings.filterwarnings("ignore", message="Full backward hook is firing")
        system = opacus.watch(optimizer, loader, model=model, lr=rates)
        rounds = rounds or epochs * len(loader)
        with oh.record(folder, system=system, keep=keep, rounds=rounds) as log:
            for _ in range(epochs):
                for x, y in loader:
                    loss = step(model, optimizer, x, y)
                    if scheduler is not None:
                        scheduler(loss)
    log.engine = engine
    return log


def noise_times(factor):
    """Noise of another deviation than the optimizer says."""

    def fault(optimizer, loader):
        add_noise = optimizer.add_noise

        def added():
            said = optimizer.noise_multiplier
            optimizer.noise_multiplier = factor * said
            add_noise()
            optimizer.noise_multiplier = said

        optimizer.add_noise = added

    return fault


def unclipped(optimizer, loader):
    clip = optimizer.clip_and_accumulate

    def clipped():
        said, optimizer.max_grad_norm = optimizer.max_grad_norm, 1e6
        clip()
        optimizer.max_grad_norm = said

    optimizer.clip_and_accumulate = clipped


def last_layer_unclipped(optimizer, loader):
    clip = optimizer.clip_and_accumulate

    def clipped():
        last = optimizer.params[-2]
        raw = last.grad_sample.sum(dim=0)
        clip()
        last.summed_grad = raw

    optimizer.clip_and_accumulate = clipped


def twice_the_sum(optimizer, loader):
    clip = optimizer.clip_and_accumulate

    def clipped():
        clip()
        for of in optimizer.params:
            of.summed_grad = 2 * of.summed_grad

    optimizer.clip_and_accumulate = clipped


class Shuffled(UniformWithReplacementSampler):
    """Says that it is Poisson, and goes through shuffled epochs."""

    def __iter__(self):
        size = round(self.num_samples * self.sample_rate)
        order = torch.randperm(self.num_samples).tolist()
        for at in range(self.steps):
            yield order[at * size : (at + 1) * size]


def shuffled(optimizer, loader):
    said = loader.batch_sampler
    other = Shuffled(num_samples=said.num_samples, sample_rate=said.sample_rate)
    object.__setattr__(loader, "batch_sampler", other)


def same_noise(optimizer, loader):
    add_noise = optimizer.add_noise
    optimizer.generator = torch.Generator()

    def added():
        optimizer.generator.manual_seed(7)
        add_noise()

    optimizer.add_noise = added


class Noiseless(torch.optim.SGD):
    """Steps along the sum before noise was added to it."""

    def step(self, closure=None):
        for of in self.param_groups[0]["params"]:
            of.grad = of.summed_grad / 50
        return super().step(closure)
