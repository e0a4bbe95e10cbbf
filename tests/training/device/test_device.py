"""What the engine asks of torch and of a device: products, repetition, precision, copies."""

import os

import pytest
import torch
from torch import nn
from torch.utils import deterministic

from overhear.training.device import precision
from overhear.training.device.precision import (
    computing,
    elements_at_once,
    full_precision,
    make_room,
    repeatable,
    too_large,
)
from overhear.training.engine.engine import Engine
from overhear.training.engine.randomness import SecretRandomness
from overhear.training.gradients import gradients
from overhear.training.gradients.gradients import PairGradients
from overhear.training.graphs.topologies import ring
from overhear.training.step.purity import PureFunction
from tests.training.contract import bound_to, setting

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)
GIB = 2**30


@pytest.fixture
def memory_of(monkeypatch):
    """A device with so many bytes free, of so many."""
    monkeypatch.setattr(precision, "_known", {})
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)

    def has(free, whole):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, whole))

    return has


@pytest.mark.parametrize(
    ("free", "elements"), [(8 * GIB, 2**27), (5 * GIB, 2**26), (139 * GIB, 2**30), (0, 2**20)]
)
def test_a_pass_takes_a_share_of_what_is_free(free, elements, memory_of):
    memory_of(free, 141 * GIB)
    assert elements_at_once(CUDA) == elements
    assert elements_at_once(CPU) == 2**25
    assert elements_at_once(CPU, on_cpu=7) == 7


def test_an_evaluation_run_takes_a_share_of_the_whole(memory_of):
    memory_of(GIB, 16 * GIB)
    with computing(CUDA, repeats=True):
        assert elements_at_once(CUDA) == 2**28
    assert elements_at_once(CUDA) == 2**24


def test_room_is_made_by_halves_and_stays(memory_of):
    memory_of(8 * GIB, 8 * GIB)
    assert make_room(CUDA)
    memory_of(16 * GIB, 16 * GIB)
    assert elements_at_once(CUDA) == 2**26
    assert not make_room(CPU)


def test_an_evaluation_run_is_refused_where_memory_runs_out(memory_of):
    memory_of(8 * GIB, 8 * GIB)
    with computing(CUDA, repeats=True):
        assert not make_room(CUDA)
        assert elements_at_once(CUDA) == 2**27
        said = str(too_large(CUDA, RuntimeError("CUDA out of memory")))
    assert "smaller passes would not compute the bits that evaluation_noise_seed promises" in said
    assert said.endswith("or leave out evaluation_noise_seed")
    assert make_room(CUDA)


def case():
    model = nn.Linear(3, 2)
    draw = torch.Generator().manual_seed(0)
    batches = [(torch.randn(4, 3, generator=draw), torch.tensor([0, 1, 1, 0])) for _ in range(3)]
    models = torch.randn(3, 8, generator=draw)
    return model, (models, ([0, 1, 2, 0], [0, 1, 2, 1]), batches)


def fails(kernel, times):
    """A kernel that runs out of memory after its first sums, so many times."""
    add, left = kernel.add, [times]

    def failing(out, *args, **how):
        add(out, *args, **how)
        if left[0]:
            left[0] -= 1
            raise torch.OutOfMemoryError("CUDA out of precision. Tried to allocate 2.00 GiB.")

    kernel.add = failing


@pytest.mark.parametrize("layout", ["vmap", "grouped", "book-keeping"])
def test_out_of_memory_is_tried_once_more_in_passes_of_half_the_size(layout, monkeypatch):
    model, given = case()
    expected = PairGradients(model, layout).clipped_sums(*given, clip_norm=0.5)
    halved = []
    monkeypatch.setattr(gradients, "make_room", lambda device: not halved.append(device))
    once = PairGradients(model, layout)
    once.clipped_sums(*given, clip_norm=0.5)  # settles, and measures an example
    fails(once._kernel, 1)
    assert torch.equal(once.clipped_sums(*given, clip_norm=0.5), expected)  # nothing counts twice
    assert halved == [CPU]
    fails(once._kernel, 2)
    with pytest.raises(ValueError, match=r"does not fit into the memory of cpu.*2\.00 GiB.*ranks"):
        once.clipped_sums(*given, clip_norm=0.5)


def test_a_device_without_room_says_so():
    assert "set training.device=cpu" in str(too_large(CUDA, RuntimeError("x" * 999)))
    assert len(str(too_large(CUDA, RuntimeError("x" * 9999)))) < 500


def settings_of_torch():
    cudnn = torch.backends.cudnn
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        deterministic.fill_uninitialized_memory,
        cudnn.deterministic,
        cudnn.benchmark,
        os.environ.get("CUBLAS_WORKSPACE_CONFIG"),
    )


@pytest.mark.parametrize("workspace", [None, ":16:8", ":4096:2:16:8"])
def test_a_device_repeats_itself_inside_and_is_as_before_after(workspace, monkeypatch):
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    if workspace is not None:
        monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", workspace)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    before = settings_of_torch()
    serves = ":16:8" if workspace == ":16:8" else ":4096:8"
    with repeatable(CUDA):
        assert settings_of_torch() == (True, False, False, True, False, serves)
    assert settings_of_torch() == before
    with pytest.raises(ZeroDivisionError), repeatable(CUDA):
        raise ZeroDivisionError
    assert settings_of_torch() == before
    with repeatable(CPU):
        assert settings_of_torch() == before


def test_an_operation_that_does_not_repeat_itself_is_told_in_a_sentence():
    told = "adaptive_avg_pool2d_backward_cuda does not have a deterministic implementation"
    with pytest.raises(ValueError, match=rf"{told}.*training\.device=cpu"), repeatable(CUDA):
        raise RuntimeError(told)
    with pytest.raises(RuntimeError, match="another"), repeatable(CUDA):
        raise RuntimeError("another")


@pytest.mark.parametrize("repeats", [False, True])
def test_a_round_is_computed_with_full_products_and_repeats_where_asked(repeats, monkeypatch):
    """All of a round: sums, functions, mixing; whatever the process allows around it."""
    seen = []
    run = PureFunction.__call__

    def noted(self, *values):
        matmul = torch.backends.mkldnn.matmul.fp32_precision
        seen.append((matmul, torch.is_autocast_enabled("cpu")))
        return run(self, *values)

    monkeypatch.setattr(PureFunction, "__call__", noted)
    asked = []
    engine_module = __import__("overhear.training.engine.engine", fromlist=["computing"])
    inner = engine_module.computing
    monkeypatch.setattr(
        engine_module, "computing", lambda d, *, repeats: (asked.append(repeats), inner(d))[1]
    )
    from dataclasses import replace

    held = replace(setting(ring(3)), repeats=repeats)
    engine = Engine(held, bound_to("dpdl", held.graph), randomness=SecretRandomness(5))
    before = torch.backends.mkldnn.matmul.fp32_precision
    torch.backends.mkldnn.matmul.fp32_precision = "bf16"
    try:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            engine.advance()
    finally:
        torch.backends.mkldnn.matmul.fp32_precision = before
    assert set(seen) == {("ieee", False)}
    assert asked == [repeats, repeats]  # the start and the round


def test_mixed_precision_around_a_sum_does_not_reach_it():
    model, given = case()
    expected = PairGradients(model, "vmap").clipped_sums(*given, clip_norm=0.5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = PairGradients(model, "vmap").clipped_sums(*given, clip_norm=0.5)
    assert torch.equal(found, expected)


def test_products_that_cannot_be_made_full_ones_are_refused(monkeypatch):
    from overhear.training.device import precision

    class Stuck:
        def __getattr__(self, name):
            return "tf32"

        def __setattr__(self, name, value):
            pass

    monkeypatch.setattr(precision, "_at", lambda *place: Stuck())
    with pytest.raises(ValueError, match="does not leave TF32"), full_precision():
        pass
