"""The projection of a task: named by its task, and the same for the same value."""

import functools

import pytest
import torch
from torch import nn

from overhear.privacy.errors import UndeclaredOperation
from overhear.training.models.tasks import ClassWeights, project_to_simplex
from overhear.training.step.script import projection, same_bits
from tests.devices.stand_in import StandIn

VALUE = torch.tensor([0.9, 0.5, -1.0])


def task() -> ClassWeights:
    return ClassWeights(nn.Linear(2, 3), classes=3)


class Counting(ClassWeights):
    calls = 0

    def project(self, value):
        self.calls += 1
        return super().project(value) / self.calls


class Writing(ClassWeights):
    def project(self, value):
        return value.clamp_(min=0.0)


def test_it_projects_and_is_named_by_its_task():
    pure, again = projection(task().project), projection(task().project)
    assert torch.equal(pure(VALUE), project_to_simplex(VALUE))
    assert pure.fingerprint == again.fingerprint
    assert pure.name == "project of overhear.training.models.tasks.ClassWeights"
    other = projection(Writing(nn.Linear(2, 3), classes=3).project)
    assert other.fingerprint != pure.fingerprint


def test_one_that_counts_its_calls_is_refused():
    moody = Counting(nn.Linear(2, 3), classes=3)
    with pytest.raises(UndeclaredOperation, match="Counting gives another result for the same"):
        projection(moody.project)(VALUE)


def test_on_a_device_nothing_is_read_and_a_result_that_differs_is_not_a_number():
    moody = Counting(nn.Linear(2, 3), classes=3)
    with StandIn() as device:
        value = torch.stack([VALUE, -VALUE]).to("cuda")
        with device.rounds():
            alone, different = projection(task().project)(value[0]), projection(moody.project)
            together = torch.func.vmap(projection(task().project))(value)
            different = different(value[0])
    assert torch.equal(alone, project_to_simplex(VALUE))
    assert torch.equal(together, torch.stack([alone, project_to_simplex(-VALUE)]))
    assert bool(different.isnan().all())


def test_one_that_writes_into_its_value_is_looked_at_on_a_copy():
    value = VALUE.clone()
    found = projection(Writing(nn.Linear(2, 3), classes=3).project)(value)
    assert found.tolist() == pytest.approx([0.9, 0.5, 0.0])


@pytest.mark.parametrize(
    "given", [project_to_simplex, functools.partial(project_to_simplex), torch.sigmoid]
)
def test_one_that_is_no_method_has_a_name_too(given):
    pure = projection(given)
    assert torch.equal(pure(VALUE), given(VALUE))
    assert "." in pure.name


def test_only_the_first_value_is_projected_twice():
    calls = []

    def project(value):
        calls.append(value)
        return value

    pure = projection(project)
    for _ in range(3):
        pure(VALUE)
    assert len(calls) == 4


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (VALUE, VALUE.clone(), True),
        (VALUE, VALUE.double(), False),
        (VALUE, VALUE[None], False),
        (VALUE, VALUE + 1e-7, False),
        (torch.tensor(torch.nan), torch.tensor(torch.nan), True),
        (torch.tensor(0.0), torch.tensor(-0.0), False),
        (torch.arange(6).view(2, 3).T, torch.arange(6).view(2, 3).T.contiguous(), True),
        (torch.zeros(0), torch.zeros(0), True),
    ],
)
def test_bits_are_compared(one, other, same):
    assert same_bits(one, other) == same
