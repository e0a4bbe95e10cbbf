"""The oracle against one-example gradients, finite differences and what a run recorded."""

import ast
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from overhear.attacks.checks import reference_sums as module
from overhear.attacks.checks.reference_sums import Oracle
from overhear.training.algorithms import ALGORITHMS, dp_cga
from overhear.training.engine.recording import Recorded
from overhear.training.graphs.topologies import ring
from overhear.training.models.parameters import build_model, flatten, unflatten
from overhear.training.models.tasks import ClassWeights
from tests.training.contract import bound_to, setting, started

PRIVATE = [
    (name, form)
    for name, of in ALGORITHMS.items()
    if of.private and name != "dp-fedavg"  # whose change of a model is no sum of gradients
    for form in of.forms
]


def network(name: str) -> nn.Module:
    rng = torch.Generator().manual_seed(1)
    return build_model(name, input_shape=(1, 8, 8), classes=4, generator=rng).double()


def records(count: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    rng = torch.Generator().manual_seed(2)
    return torch.rand(count, 1, 8, 8, generator=rng), torch.randint(4, (count,), generator=rng)


def one_by_one(model, point, batch, *, clip_norm):
    """(D,) each example's gradient by a backward pass of its own."""
    total = torch.zeros_like(point)
    for x, y in zip(*batch, strict=True):
        at = point.clone().requires_grad_()
        logits = torch.func.functional_call(model, unflatten(model, at), (x[None].double(),))
        (g,) = torch.autograd.grad(cross_entropy(logits, y[None]), at)
        total += g * min(1.0, clip_norm / float(g.norm()))
    return total


@pytest.mark.parametrize("name", ["linear", "mlp", "cnn"])
def test_it_equals_one_backward_pass_an_example(name):
    model, batch = network(name), records()
    point = flatten(model).detach()
    found = Oracle(model).sums(point[None, None], [0], batches=[batch], holders=[0], clip_norm=0.5)
    expected = one_by_one(model, point, batch, clip_norm=0.5)
    torch.testing.assert_close(found[0], expected, rtol=1e-11, atol=1e-13)
    assert float(expected.norm()) > 0.5


def test_it_equals_finite_differences():
    model, batch = network("mlp"), records(1)
    point = flatten(model).detach()
    found = Oracle(model).sums(point[None, None], [0], batches=[batch], holders=[0], clip_norm=None)

    def loss(at):
        logits = torch.func.functional_call(model, unflatten(model, at), (batch[0].double(),))
        return float(cross_entropy(logits, batch[1]))

    for k in range(0, len(point), 97):
        step = torch.zeros_like(point)
        step[k] = 1e-6
        slope = (loss(point + step) - loss(point - step)) / 2e-6
        assert abs(slope - float(found[0, k])) < 1e-8


def test_two_points_are_clipped_as_one_vector_and_blocks_have_their_own_coefficients():
    model, batch = network("linear"), records(1)
    task = ClassWeights(model, classes=4)
    points = torch.stack([task.initial(), 1.1 * task.initial()])[:, None].double()
    by_block = torch.cat([torch.full((260,), -0.9), torch.full((4,), -0.5)]).double()

    def sums(clip_norm, coefs, at=points):
        return Oracle(task).sums(
            at, [0], batches=[batch], holders=[0], clip_norm=clip_norm, coefs=coefs
        )[0]

    one, other = (sums(None, (1.0,), at) for at in points.split(1))
    both = one + by_block * other
    torch.testing.assert_close(sums(None, (1.0, by_block)), both, rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(
        sums(0.01, (1.0, by_block)), 0.01 * both / both.norm(), rtol=1e-12, atol=1e-13
    )


@pytest.mark.some_quick(8)
@pytest.mark.parametrize(("name", "form"), PRIVATE)
def test_what_a_run_recorded_is_what_the_oracle_says(name, form):
    """Blocks, both kinds of rows, two points and clipped means; in the first rounds of a run."""
    min_max = ALGORITHMS[name].blocks == 2
    of = setting(ring(5), min_max=min_max)
    every = {"dp-cga": [dp_cga.Settings(clip=clip) for clip in dp_cga.Clip]}.get(name, [None])
    for settings in every:
        engine = started(bound_to(name, ring(5), form=form, settings=settings), ring(5))
        oracle, compared = Oracle(of.task or of.model), 0
        for _ in range(3):
            recorded = Recorded()
            engine.advance(recorded=recorded)
            block = 0
            for found, call in zip(recorded.contributions, recorded.calls, strict=True):
                if call is None:
                    continue
                batches = [
                    (shard.inputs[at], shard.targets[at])
                    for shard, at in zip(of.shards, recorded.batches[call.batch], strict=True)
                ]
                expected = oracle.contributions(call, batches)
                part = expected[:, block : block + found.shape[1]]
                block = (block + found.shape[1]) % expected.shape[1]
                torch.testing.assert_close(found, part, rtol=1e-9, atol=1e-12)
                compared += 1
        assert compared >= 3


def test_an_empty_batch_gives_zeros_and_memory_does_not_change_the_sum(monkeypatch):
    model, batch = network("mlp"), records(7)
    point = flatten(model).detach()[None, None]
    empty = batch[0][:0], batch[1][:0]

    def sums():
        return Oracle(model).sums(
            point, [0, 0], batches=[batch, empty], holders=[0, 1], clip_norm=0.3
        )

    whole = sums()
    assert not whole[1].any()
    monkeypatch.setattr(module, "_ENTRIES_AT_ONCE", 2 * point.shape[2])
    torch.testing.assert_close(sums(), whole, rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("owned", [False, True])
def test_many_owners_of_few_examples_are_called_together_unless_the_code_is_somebodys(
    monkeypatch, owned
):
    class Mine(nn.Sequential):
        def forward(self, x):
            return super().forward(x) * (1.0 if self[1].weight.sum() > 0 else 0.5)

    model = Mine(nn.Flatten(), nn.Linear(64, 4)).double() if owned else network("linear")
    rng, owners = torch.Generator().manual_seed(3), [m for m in range(20) for _ in range(2)]
    models = torch.randn(2, 20, flatten(model).numel(), generator=rng, dtype=torch.float64)
    x, y = records(12)
    sizes = torch.randint(5, (20,), generator=rng).tolist()
    batches = [(x[n : 2 * n], y[n : 2 * n]) for n in sizes]
    holders = [(7 * row) % 20 for row in range(40)]
    asked = {"clip_norm": 0.3, "coefs": (1.0, torch.linspace(0, 1, models.shape[2]).double())}
    oracle, calls = Oracle(model), list[object]()
    each = [
        oracle.sums(models, [m], batches=batches, holders=[d], **asked)[0]
        for m, d in zip(owners, holders, strict=True)
    ]
    vmap = torch.func.vmap
    monkeypatch.setattr(
        "torch.func.vmap", lambda of, **how: (calls.append(how), vmap(of, **how))[1]
    )
    found = oracle.sums(models, owners, batches=batches, holders=holders, **asked)
    torch.testing.assert_close(found, torch.stack(each), rtol=1e-12, atol=1e-14)
    assert len(calls) == (20 if owned else 1)


def test_it_shares_nothing_with_the_layouts_that_train():
    tree = ast.parse(Path(module.__file__).read_text(encoding="utf-8"))
    modules = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert "training.models.tasks" in modules  # they are read at all
    assert not [name for name in modules if name.startswith("training.gradients")]


def test_what_does_not_fit_is_refused():
    oracle, batch = Oracle(network("linear")), records(1)
    with pytest.raises(ValueError, match="must be \\(P, M, D\\)"):
        oracle.sums(torch.zeros(1, 260), [0], batches=[batch], holders=[0], clip_norm=1.0)
    with pytest.raises(ValueError, match=r"clip_norm=0.0 must be a number > 0"):
        oracle.sums(torch.zeros(1, 1, 260), [0], batches=[batch], holders=[0], clip_norm=0.0)
    with pytest.raises(TypeError, match=r"must be an nn\.Module or a task"):
        Oracle(3)  # type: ignore[arg-type]
