import numpy as np
import pytest
import torch
from torch import nn

from overhear.attacks.audit.canaries import (
    LENGTH,
    CanaryTask,
    Directions,
    PlantedGradients,
    coded,
    drawn_norms,
    furthest,
    uncoded,
)
from overhear.attacks.checks.reference_sums import Oracle
from overhear.training.gradients.gradients import PairGradients
from overhear.training.models.tasks import ClassWeights

CPU = torch.device("cpu")
CLIP = 0.3


def _network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)).double()


def _directions(count: int = 5, dimension: int = 23) -> Directions:
    return Directions(count, dimension, generator=np.random.default_rng(2))


@pytest.mark.parametrize(("count", "dimension"), [(5, 23), (23, 23), (1, 23)])
def test_directions_are_orthonormal(count, dimension):
    ways = _directions(count, dimension)
    vectors = torch.stack([ways.vector(j) for j in range(count)])
    torch.testing.assert_close(vectors @ vectors.T, torch.eye(count, dtype=torch.float64))
    rows = torch.randn(7, dimension, dtype=torch.float64)
    torch.testing.assert_close(ways.project(rows), rows @ vectors.T)


def test_more_canaries_than_coordinates_are_refused():
    with pytest.raises(ValueError, match=r"count=24 orthogonal canaries must lie in 1\.\.23"):
        _directions(24)


@pytest.mark.parametrize("is_task", [False, True])
def test_a_canary_has_its_gradient_at_any_point(is_task):
    net = _network()
    objective = ClassWeights(net, classes=2) if is_task else net
    ways = _directions()
    task = CanaryTask(objective, directions=ways)
    task.lengths = torch.tensor([7.0])
    size = sum(task.dimensions)
    loop = PairGradients(task, "loop", dtype=torch.float64)
    points = torch.randn(2, size, dtype=torch.float64)
    batches = [(torch.zeros(1, 4, dtype=torch.float64), torch.tensor([[0, 1 + 2 * 3 + 1]]))]
    found = loop.clipped_sums(points, ([0, 1], [0, 0]), batches, clip_norm=None)
    for row in found:
        torch.testing.assert_close(row[:23], -7.0 * ways.vector(3))
        assert float(row[23:].abs().sum()) == 0


def test_ordinary_records_keep_their_gradients():
    net = _network()
    task = CanaryTask(net, directions=_directions())
    inputs, labels = torch.randn(6, 4, dtype=torch.float64), torch.tensor([0, 1, 1, 0, 1, 0])
    point = torch.randn(1, 23, dtype=torch.float64)
    one, other = (
        PairGradients(of, "vmap", dtype=torch.float64).clipped_sums(
            point, ([0], [0]), [(inputs, targets)], clip_norm=CLIP
        )
        for of, targets in ((task, coded(labels, 0 * labels)), (net, labels))
    )
    torch.testing.assert_close(one, other)


def test_a_blank_record_is_drawn_and_adds_nothing():
    net = _network()
    planted = PlantedGradients(
        CanaryTask(net, directions=_directions()), clip_norm=CLIP,
        generator=np.random.default_rng(3), device=CPU, dtype=torch.float64,
    )  # fmt: skip
    inputs, labels = torch.randn(4, 4, dtype=torch.float64), torch.tensor([0, 1, 1, 0])
    point = torch.randn(1, 23, dtype=torch.float64)
    blank = [(inputs, coded(labels, torch.tensor([0, -1 - 3, 0, -1])))]
    found = planted.clipped_sums(point, ([0], [0]), blank, clip_norm=CLIP)
    without = [(inputs[[0, 2]], labels[[0, 2]])]
    own = PairGradients(net, "vmap", dtype=torch.float64)
    torch.testing.assert_close(found, own.clipped_sums(point, ([0], [0]), without, clip_norm=CLIP))
    (call,) = planted.calls
    assert call.drawn.tolist() == [[True, False, False, True, False]]
    assert not call.present.any()
    assert len(call.batches[0][1]) == 2


@pytest.mark.parametrize("coefficients", [(1.0,), (1.0, -0.6)])
def test_a_row_is_the_ordinary_sum_and_its_canaries_at_the_clip_norm(coefficients):
    net = _network()
    ways = _directions()
    task = CanaryTask(net, directions=ways)
    planted = PlantedGradients(
        task, clip_norm=CLIP, generator=np.random.default_rng(3), device=CPU, dtype=torch.float64
    )
    rng = torch.Generator().manual_seed(4)
    batches = [
        (
            torch.cat([torch.randn(3, 4, generator=rng), torch.zeros(2, 4)]).double(),
            coded(torch.tensor([0, 1, 0, 0, 0]), torch.tensor([0, 0, 0, 1 + 2 * 1, 1 + 2 * 4 + 1])),
        ),
        (torch.randn(2, 4, generator=rng).double(), torch.tensor([[1, 0], [1, 0]])),
    ]
    points = torch.randn(len(coefficients), 2, 23, generator=rng).double()
    found = planted.clipped_sums(
        points, ([0, 1, 1], [0, 0, 1]), batches, clip_norm=CLIP, coefficients=coefficients
    )
    (call,) = planted.calls
    assert call.present.tolist() == [[0, 1, 0, 0, -1], [0, 0, 0, 0, 0]]
    assert set(np.unique(call.signs)) == {-1, 1}
    ordinary = Oracle(net).sums(
        call.models, call.owners, holders=call.holders, batches=call.batches, clip_norm=CLIP,
        coefs=coefficients,
    )  # fmt: skip
    size = CLIP * call.signs * call.present[call.holders.numpy()]
    canaries = torch.from_numpy(size).double() @ torch.stack([ways.vector(j) for j in range(5)])
    torch.testing.assert_close(found, ordinary + canaries)


def test_a_canary_is_far_above_the_clip_norm():
    task = CanaryTask(_network(), directions=_directions())
    planted = PlantedGradients(
        task, clip_norm=CLIP, generator=np.random.default_rng(3), device=CPU, dtype=torch.float64
    )
    batch = (torch.zeros(1, 4, dtype=torch.float64), torch.tensor([[0, 1]]))
    found = planted.clipped_sums(torch.zeros(1, 23), ([0], [0]), [batch], clip_norm=None)
    assert float(found.norm()) == pytest.approx(LENGTH * CLIP)


def test_coefficients_that_cancel_leave_no_canary():
    task = CanaryTask(_network(), directions=_directions())
    planted = PlantedGradients(
        task, clip_norm=CLIP, generator=np.random.default_rng(3), device=CPU, dtype=torch.float64
    )
    batch = (torch.zeros(1, 4, dtype=torch.float64), torch.tensor([[0, 1]]))
    with pytest.raises(ValueError, match="no canary can be planted"):
        planted.clipped_sums(
            torch.zeros(2, 1, 23), ([0], [0]), [batch], clip_norm=1.0, coefficients=(1.0, -1.0)
        )


@pytest.mark.parametrize("shape", [(3,), (3, 2)])
def test_codes_beside_targets_of_any_kind_come_back(shape):
    targets, codes = torch.randn(shape), torch.tensor([0, 2_000_001, 7])
    own, found = uncoded(coded(targets, codes))
    torch.testing.assert_close(own, targets, rtol=0, atol=0)
    assert found.tolist() == codes.tolist()


@pytest.mark.parametrize("clip", [1e-6, 1.0, 1e6, 1e12])
def test_a_drawn_gradient_can_be_squared_and_one_alone_may_be_far(clip):
    far, rng = furthest(torch.float32, clip), np.random.default_rng(0)
    norms = np.array([drawn_norms(1, 1, 0, far=far, generator=rng).item() for _ in range(400)])
    assert np.isfinite((norms * clip).astype(np.float32) ** 2).all()
    assert 60 < int((norms > 1000).sum()) < 140  # a quarter, give or take 4.6 deviations
