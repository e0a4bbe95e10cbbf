"""The pretended device refuses what CUDA refuses, and leaves what is computed as it is."""

import copy
from collections.abc import Callable
from types import ModuleType

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.devices.stand_in import DEVICE, RefusedByDeviceError, StandIn

A_FILE = "training/engine/pretended_file.py"


@pytest.fixture
def device():
    with StandIn() as one:
        yield one


def pair() -> tuple[Tensor, Tensor]:
    """A tensor of the device and one of the CPU."""
    return torch.arange(6.0, device="cuda").reshape(2, 3), torch.ones(2, 3)


MIXED: dict[str, Callable[[Tensor, Tensor], object]] = {
    "aten.add.Tensor": lambda a, b: a + b,
    "aten.mm.default": lambda a, b: a @ b.T,
    "aten.cat.default": lambda a, b: torch.cat([a, b]),
    "aten.where.self": lambda a, b: torch.where(a > 0, a, b),
    "aten.mul_.Tensor": lambda a, b: b.mul_(a),
    "aten.add_.Tensor": lambda a, b: b.sum().add_(a.sum()),
    "aten.index.Tensor": lambda a, b: b[torch.zeros(1, dtype=torch.long, device="cuda")],
    "aten.index_put_.default": lambda a, b: a.__setitem__(torch.tensor([0]), b[:1]),
    "aten.bmm.default": lambda a, b: torch.vmap(torch.matmul)(a[None], b.T[None]),
    "aten.normal_.default": lambda a, b: a.normal_(generator=torch.Generator()),
}


@pytest.mark.parametrize("name", MIXED)
@pytest.mark.usefixtures("device")
def test_an_operation_on_both_devices_is_refused_by_its_name(name):
    with pytest.raises(RefusedByDeviceError, match=name.replace(".", r"\.")):
        MIXED[name](*pair())


def test_what_cuda_allows_is_done_as_on_the_cpu(device):
    a, b = pair()
    number = torch.tensor(2.0)
    found = [
        a * number, a.masked_fill(a > 2, number), a[torch.tensor([1, 0])], b.to(DEVICE) + a,
        torch.vmap(torch.func.grad(lambda x: (x**3).sum()))(a), a.new_zeros(3),
        torch.zeros_like(b, device="cuda"), a.cuda().double().t().contiguous(),
        torch.tensor([1.0, 2.0], device=a.device), copy.deepcopy(nn.Linear(3, 2).to("cuda")).weight,
    ]  # fmt: skip
    assert all(device.holds(one) and one.device == DEVICE and one.is_cuda for one in found)
    assert not device.holds(a.cpu())
    assert b.device.type == "cpu"
    assert found[4].cpu().tolist() == (3 * torch.arange(6.0).reshape(2, 3) ** 2).tolist()


def test_backward_runs_on_the_device(device):
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3)).to("cuda")
    x, y = torch.ones(2, 1, 4, 4, device="cuda"), torch.tensor([0, 2], device="cuda")
    nn.functional.cross_entropy(net(x), y).backward()
    assert all(p.grad is not None and device.holds(p.grad) for p in net.parameters())


READS: dict[str, Callable[[Tensor], object]] = {
    "item": lambda a: a.sum().item(), "bool": lambda a: bool((a > 0).all()),
    "float": lambda a: float(a[0, 0]), "index": lambda a: range(int(a.long().max())),
    "tolist": lambda a: a.tolist(), "cpu": lambda a: a.cpu(),
    "to": lambda a: a.to("cpu", torch.float64), "to other": lambda a: a.to(torch.zeros(1)),
    "copy_": lambda a: torch.zeros(2, 3).copy_(a), "equal": lambda a: torch.equal(a, a),
    "allclose": lambda a: torch.allclose(a, a), "nonzero": lambda a: a.nonzero(),
    "mask": lambda a: a[a > 2], "put by mask": lambda a: a.__setitem__(a > 2, 0.0),
    "unique": lambda a: a.unique(), "repeat": lambda a: a[0].repeat_interleave(a[0].long()),
    "cholesky": lambda a: torch.linalg.cholesky(torch.eye(2, device="cuda") + 0 * a[:, :2]),
    "synchronize": lambda a: (torch.cuda.synchronize(), a),
}  # fmt: skip


def in_a_package(call: Callable[[Tensor], object], at: str, tensor: Tensor) -> object:
    """A call from a function of the packages, as its frame tells."""
    from tests.devices import stand_in

    held = ModuleType("held")
    held.__dict__["call"] = call
    code = compile("def asks(a):\n    return call(a)\n", str(stand_in.ROOT / at), "exec")
    exec(code, held.__dict__)  # noqa: S102 - the name of a file is what is tested
    return held.__dict__["asks"](tensor)


@pytest.mark.parametrize("name", READS)
def test_reading_back_is_refused_but_in_a_place_that_is_named(name):
    with StandIn() as device:
        a = torch.arange(6.0, device="cuda").reshape(2, 3)
        with pytest.raises(RefusedByDeviceError, match=f"{A_FILE}, asks"):
            in_a_package(READS[name], A_FILE, a)
    with StandIn({(A_FILE, "asks"): "a reason"}) as device:
        a = torch.arange(6.0, device="cuda").reshape(2, 3)
        in_a_package(READS[name], A_FILE, a)
        with device.rounds(), pytest.raises(RefusedByDeviceError, match="within a round"):
            in_a_package(READS[name], A_FILE, a)


def test_an_array_of_a_tensor_of_the_device_is_refused_everywhere(device):
    a, _ = pair()
    for call in (a.numpy, lambda: np.asarray(a)):
        with pytest.raises(RefusedByDeviceError, match="copy it to the host first"):
            call()
    assert np.asarray(a.cpu()).shape == (2, 3)


def test_a_copy_to_the_device_that_waits_is_refused_within_a_round(device):
    a, b = pair()
    with device.rounds():
        b.pin_memory().to(DEVICE, non_blocking=True)
        for call in (lambda: b.to(DEVICE), lambda: torch.tensor([1.0], device=DEVICE),
                     lambda: a[[0, 1]], lambda: a.copy_(b)):  # fmt: skip
            with pytest.raises(RefusedByDeviceError, match="within a round"):
                call()


def test_it_leaves_no_trace(tmp_path):
    before = torch.cuda.is_available, torch.cuda._lazy_init
    with StandIn(collects=True) as device:
        a, b = pair()
        assert device.holds(a + b)  # counted, and done all the same
    assert sum(device.refused.values()) == 1
    assert (torch.cuda.is_available, torch.cuda._lazy_init) == before
    assert a.device.type == "cpu"
