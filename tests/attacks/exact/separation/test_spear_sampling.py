"""Directions by sampling, where there are too few units for algebra; and the last two records."""

import pytest
import torch
from torch import Tensor, nn

from overhear.attacks.exact.binary_vertices import sparse_mixtures
from overhear.attacks.exact.spear import last_patterns, sampled_directions, separate_records
from overhear.attacks.exact.spear_images import (
    ReluSpaces,
    find_direction,
    find_relu_layers,
    measure_spaces,
)
from overhear.attacks.problem.observation import Observation, observe
from overhear.attacks.problem.problem import Box
from overhear.training.models.parameters import flatten
from tests.attacks.exact.observed import posed as problem_of

UNIT = Box(low=torch.tensor(0.0).double(), span=torch.tensor(1.0).double())


def posed(
    records: int, *, width: int, classes: int, inputs: int = 60, single: bool = False
) -> tuple[nn.Module, Tensor, Tensor, Observation]:
    torch.manual_seed(records + width)
    model = nn.Sequential(nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, classes)).double()
    g = torch.Generator().manual_seed(records)
    x = torch.rand(records, inputs, generator=g, dtype=torch.float64)
    y = torch.randint(0, classes, (records,), generator=g)
    if single:
        model, x = model.float(), x.float()
    seen = observe(
        model, flatten(model), inputs=x, targets=y, clip_norm=None, noise_std=0.0, generator=g
    )
    return model, x, y, seen


def spaces_of(model: nn.Module, x: Tensor, seen: Observation) -> tuple[ReluSpaces, Tensor]:
    layers = find_relu_layers(model, seen.points[0, 0].double(), tuple(x.shape[1:]))
    assert layers is not None
    spaces = measure_spaces(seen, model, layers)
    assert spaces is not None
    return spaces, x.double() @ spaces.weight[:, :-1].T + spaces.weight[:, -1] > 0


@pytest.mark.parametrize(
    ("classes", "single"), [(2, False), (10, True)], ids=["float64", "float32"]
)
def test_sixteen_records_of_a_hundred_units_are_certified(classes, single):
    model, x, y, seen = posed(16, width=100, classes=classes, single=single)
    found = separate_records(problem_of(seen, model, (60,), UNIT), torch.Generator().manual_seed(0))
    assert found is not None
    assert len(found.inputs) == seen.records
    apart = (found.inputs.double()[:, None] - x.double()[None]).abs().amax(dim=2).min(dim=1)
    assert sorted(apart.indices.tolist()) == list(range(16))
    assert float(apart.values.max()) < (1e-4 if single else 1e-10)
    assert found.labels is not None
    assert torch.equal(found.labels, y[apart.indices])


def test_without_sampling_they_are_not(monkeypatch):
    model, _, _, seen = posed(18, width=100, classes=10)
    monkeypatch.setattr("overhear.attacks.exact.spear.SAMPLED", 0)
    found = separate_records(problem_of(seen, model, (60,), UNIT), torch.Generator().manual_seed(0))
    assert found is not None
    assert len(found.inputs) == seen.records - 18


def test_every_sampled_direction_is_that_of_a_record():
    model, x, _, seen = posed(12, width=90, classes=10)
    spaces, active = spaces_of(model, x, seen)
    found = sampled_directions(
        spaces, chances=torch.ones(90), known=[], tries=20_000,
        generator=torch.Generator().manual_seed(1),
    )  # fmt: skip
    assert len(found) >= 11
    true = {tuple(row) for row in active.tolist()}
    assert {tuple(d.pattern.tolist()) for d in found} <= true


@pytest.mark.parametrize("missing", [1, 2])
def test_the_last_records_follow_from_the_directions_of_the_others(missing):
    model, x, _, seen = posed(8, width=90, classes=10)
    spaces, active = spaces_of(model, x, seen)
    known = [d for d in (find_direction(spaces, row) for row in active[missing:]) if d]
    assert len(known) == 8 - missing
    zeros, ones = torch.zeros(60).double(), torch.ones(60).double()
    last = last_patterns(spaces, known, low=zeros, span=ones)
    assert {tuple(row) for row in active[:missing].tolist()} <= {tuple(r) for r in last.tolist()}
    assert len(last_patterns(spaces, known[2:], low=zeros, span=ones)) == 0


def test_a_space_without_sparse_vectors_has_no_candidates():
    g = torch.Generator().manual_seed(0)
    basis = torch.linalg.qr(torch.randn(80, 8, generator=g, dtype=torch.float64))[0]
    every = sparse_mixtures(
        basis, doubt=torch.full((8,), 1e-15), chances=torch.ones(80), tries=2048, generator=g
    )
    assert sum(len(candidates) for candidates in every) == 0


def test_dependent_coordinates_still_make_sets():
    """Coordinates of one category add up to a constant, and so do those of the next."""
    g = torch.Generator().manual_seed(0)
    drawn = torch.randint(0, 3, (6, 20), generator=g)
    sparse = nn.functional.one_hot(drawn, 3).flatten(1).double().T
    basis = torch.linalg.qr(sparse)[0]
    found = next(
        iter(
            sparse_mixtures(
                basis,
                doubt=torch.full((6,), 1e-15),
                chances=torch.ones(60),
                tries=256,
                generator=g,
                dependent=True,
            )
        )
    )
    zeros = ((basis @ found.T).abs() < 1e-9).sum(dim=0)
    assert int((zeros == 40).sum()) > 0
