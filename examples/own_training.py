"""A training of somebody's own, on digits that come with scikit-learn: it learns by heart."""

import math

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

_DIGITS = load_digits()
inputs = torch.tensor(_DIGITS.data[:400] / 16, dtype=torch.float32)
targets = torch.tensor(_DIGITS.target[:400])
my_data = TensorDataset(inputs, targets)


def build(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """A network of one hidden layer."""
    wide = math.prod(input_shape)
    return nn.Sequential(nn.Flatten(), nn.Linear(wide, 128), nn.ReLU(), nn.Linear(128, classes))


def train(dataset: Dataset) -> nn.Module:
    """Forty epochs of Adam, without any noise."""
    model = build((64,), 10)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(40):
        for x, y in DataLoader(dataset, batch_size=64, shuffle=True):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    return model
