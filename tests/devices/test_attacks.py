"""Attacks and audits on a device that is not the CPU: nothing is mixed or comes out otherwise."""

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from overhear.attacks.inversion import inversion, restarts
from overhear.attacks.inversion.inversion import Reconstruction, reconstruct
from overhear.attacks.problem import objective as presets
from overhear.attacks.problem import problem as problems
from overhear.attacks.problem.objective import PRESETS, Preset
from overhear.attacks.problem.observation import HOST, Observation, observe
from overhear.attacks.problem.problem import Box, Problem
from overhear.runs.attack.attack import attack_run
from overhear.runs.audit.audit import audit_config
from overhear.runs.audit.evidence_schema import Attack
from overhear.runs.folder.run import train_run
from overhear.runs.run_file.run_file import RunFile, load_run_file
from overhear.training.models.parameters import build_model, flatten
from tests.devices.stand_in import DEVICE, StandIn
from tests.small_run import run_text

META = torch.device("meta")
SHAPE, CLASSES = (1, 6, 6), 3
BOUNDS = (torch.tensor(0.0), torch.tensor(1.0))

RUN = run_text(
    "dpdl", agents=4, model={"name": "mlp"}, privacy={"noise_multiplier": 0.5, "delta": 0.0001},
    training={"rounds": 2, "sampling_rate": 0.1, "device": "cpu"}, intercept={"rounds": [2]},
    attack={"rounds": [2], "presets": ["matched"], "images": 1, "restarts": 2},
    audit={"canaries": 8, "rounds": 1, "checked_rounds": 1},
)  # fmt: skip


def short(name: str, **changes: Any) -> Preset:
    """A preset with a few steps."""
    of = PRESETS[name]
    steps = {"adam_steps": min(of.adam_steps, 8), "newton_steps": min(of.newton_steps, 1)}
    return replace(of, **(steps | {"starts": 2} | changes))


def seen_of(
    model: nn.Module, *, records: int = 1, noise_std: float = 0.0, clip_norm: float | None = 0.3
) -> Observation:
    """The observation of a batch at two models."""
    g = torch.Generator().manual_seed(2)
    flat = torch.stack([flatten(model), flatten(model) + 0.01])
    return observe(
        model, flat, inputs=torch.rand(records, *SHAPE, generator=g),
        targets=torch.arange(records) % CLASSES, clip_norm=clip_norm, noise_std=noise_std,
        generator=g,
    )  # fmt: skip


def network(name: str = "mlp") -> nn.Module:
    g = torch.Generator().manual_seed(0)
    if name == "mlp":
        return build_model(name, input_shape=SHAPE, classes=CLASSES, generator=g)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Conv2d(1, 3, 3), nn.Sigmoid(), nn.Flatten(), nn.Linear(48, CLASSES))


def found_on(
    device: torch.device, seen: Observation, preset: Preset, **named: Any
) -> Reconstruction:
    return reconstruct(
        seen, named.pop("model", None) or network(), preset=preset, input_shape=SHAPE,
        classes=CLASSES, bounds=BOUNDS, generator=torch.Generator().manual_seed(1),
        prior_image=torch.full(SHAPE, 0.5), device=device, **named,
    )  # fmt: skip


def check_alike(one: Reconstruction, other: Reconstruction) -> None:
    """The stand-in's arithmetic is the CPU's: what is moved differently shows."""
    assert (one.stage, one.supported, one.iterations) == (
        other.stage, other.supported, other.iterations,
    )  # fmt: skip
    assert one.objective == other.objective
    assert torch.equal(one.inputs, other.inputs)
    assert torch.equal(one.labels, other.labels)


def mixtures(dev: StandIn) -> list[str]:
    """What a device would refuse; a search reads results back between its steps."""
    return [said for said in dev.refused if " reads back from " not in said]


@pytest.fixture(autouse=True)
def _always_together(monkeypatch):
    """The faster way to take starts depends on the machine, and rounds otherwise."""
    monkeypatch.setattr(restarts, "is_faster_together", lambda *_: True)


CASES: dict[str, tuple[int, float, str, Preset, str | None]] = {
    "first layer": (1, 0.0, "mlp", short("matched"), "exact"),
    "peeling": (1, 0.0, "conv", short("matched"), "peeling"),
    "separation": (2, 0.0, "mlp", short("matched", newton_steps=1), None),
    "search under noise": (1, 0.05, "mlp", short("matched", exact=False), None),
    "search without noise": (2, 0.0, "conv", short("matched", exact=False), None),
    "labels optimised": (1, 0.0, "mlp", short("dlg", starts=1), "optimisation"),
    "cosine": (1, 0.0, "mlp", short("inverting-gradients"), "optimisation"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_search_on_a_device_ends_as_on_the_cpu(case):
    records, noise_std, name, preset, stage = CASES[case]
    model = network(name)
    seen = seen_of(model, records=records, noise_std=noise_std)
    expected = found_on(HOST, seen, preset, model=model)
    with StandIn(collects=True) as dev:
        found = found_on(DEVICE, seen, preset, model=model)
        assert not dev.holds(found.inputs)
        assert not dev.holds(found.labels)
    assert dev.operations > 0
    assert mixtures(dev) == []
    assert stage is None or found.stage == stage
    check_alike(found, expected)


@pytest.mark.slow  # two searches
def test_no_step_of_a_search_under_noise_waits_for_the_device():
    model = network()
    seen = seen_of(model, noise_std=0.05)
    read = list[int]()
    for steps in (8, 24):
        preset = short("matched", exact=False, adam_steps=steps, starts=1)
        with StandIn(collects=True) as dev:
            found_on(DEVICE, seen, preset, model=model)
        read.append(sum(dev.read.values()))
    assert read[0] == read[1]  # and six looks at the losses in either


@pytest.mark.slow  # L-BFGS
def test_a_device_without_float64_gets_none(monkeypatch):
    model, preset = network(), short("matched", exact=False, adam_steps=4, starts=1)
    seen = seen_of(model)
    expected = found_on(HOST, seen, preset, model=model)
    monkeypatch.setattr(inversion, "home_of", lambda _: HOST)
    kinds: set[torch.dtype] = set()
    with StandIn(collects=True) as dev:
        put = dev.marks.put

        def note(tensor: Tensor, device: str) -> None:
            if device == str(DEVICE) and tensor.dim():  # numbers of Python are float64 on the CPU
                kinds.add(tensor.dtype)
            put(tensor, device)

        monkeypatch.setattr(dev.marks, "put", note)
        found = found_on(DEVICE, seen, preset, model=model)
    assert torch.float32 in kinds
    assert torch.float64 not in kinds
    assert mixtures(dev) == []
    check_alike(found, expected)


def test_a_search_that_was_interrupted_on_a_device_goes_on_on_the_cpu(tmp_path, monkeypatch):
    monkeypatch.setattr(restarts, "SAVED_EVERY", 4)
    model, preset = network(), short("matched", exact=False)
    seen = seen_of(model)
    expected = found_on(HOST, seen, preset, model=model)

    def stop(step: int, total: int, words: str) -> None:
        if step == 6:
            raise KeyboardInterrupt

    with StandIn(collects=True) as dev, pytest.raises(KeyboardInterrupt):
        found_on(DEVICE, seen, preset, model=model, progress=stop, checkpoint=tmp_path / "search")
    assert mixtures(dev) == []
    check_alike(found_on(HOST, seen, preset, model=model, checkpoint=tmp_path / "search"), expected)


def test_a_problem_moves_as_one():
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, CLASSES))
    model.register_buffer("scale", torch.ones(1))
    posed = Problem(
        observation=replace(seen_of(model, noise_std=0.1), coefs=(torch.ones(111),)), model=model,
        preset=short("matched"), box=Box(low=torch.zeros(()), span=torch.ones(())), shape=SHAPE,
        classes=CLASSES, labels=torch.tensor([1]), prior_image=torch.zeros(SHAPE),
    )  # fmt: skip
    # A check that the numbers are finite would read them.
    with pytest.MonkeyPatch.context() as patch:
        for kind in (Observation, Box):
            patch.setattr(kind, "__post_init__", lambda _: None)
        moved = posed.to(device=META, dtype=torch.float64)
    seen = moved.observation
    tensors = [seen.gradient, seen.points, *seen.coefs, moved.box.low, moved.box.span]
    tensors += [moved.labels, moved.prior_image, *moved.model.buffers()]
    assert {of.device for of in tensors if isinstance(of, Tensor)} == {META}
    assert seen.covariance.device == HOST
    assert next(iter(model.buffers())).device == HOST  # the caller's own stays where it is


def test_a_batch_of_starts_without_room_is_not_faster(monkeypatch):
    real = problems.gradients_of

    def full(*given: Any, together: bool) -> Tensor:
        if together:
            raise torch.OutOfMemoryError
        return real(*given, together=together)

    monkeypatch.setattr(problems, "gradients_of", full)
    monkeypatch.setattr(restarts, "is_faster_together", problems.is_faster_together)
    found = found_on(HOST, seen_of(network()), short("matched", exact=False))
    assert found.iterations > 0


def test_a_search_is_in_full_precision(monkeypatch):
    held, cudnn = list[str](), cast("Any", torch.backends.cudnn)  # its stubs lack conv
    real = inversion.optimise

    def noted(*given: Any, **named: Any) -> Any:
        held.append(cudnn.conv.fp32_precision)
        return real(*given, **named)

    monkeypatch.setattr(inversion, "optimise", noted)
    found_on(HOST, seen_of(network(), noise_std=0.1), short("inverting-gradients"))
    assert held == ["ieee"]


OWN = """
import torch

class Scaled(torch.nn.Module):
    def __init__(self, inputs, classes):
        super().__init__()
        self.register_buffer("scale", torch.full((inputs,), 0.5))
        self.layer = torch.nn.Linear(inputs, classes)

    def forward(self, x):
        return self.layer(x.flatten(1) * self.scale)

def build(shape, classes):
    return Scaled(torch.Size(shape).numel(), classes)
"""


def config_of(folder: Path, *overrides: str) -> RunFile:
    path = folder / "run.toml"
    path.write_text(RUN)
    return load_run_file(path, overrides)


def attacked(folder: Path, monkeypatch: pytest.MonkeyPatch, *overrides: str) -> Attack:
    """A run that was trained on the CPU, attacked on the device."""
    train_run(config_of(folder, *overrides), folder / "out")
    few = {name: short(name, adam_steps=8) for name in PRESETS}
    monkeypatch.setattr(presets, "PRESETS", few)
    with StandIn(collects=True) as dev:
        found = attack_run(folder / "out", device="cuda")
    assert dev.operations > 0
    assert mixtures(dev) == []
    return found


@pytest.mark.slow  # a run and its attack
def test_a_run_is_attacked_on_a_device(tmp_path, monkeypatch):
    (tmp_path / "scaled_network.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    found = attacked(tmp_path, monkeypatch, "model.name=scaled_network:build")
    assert (found.device, found.exact_device) == ("cuda", "cuda")
    assert {one.scenario for one in found.scenarios} == {"cross-gradient", "momentum", "view"}


@pytest.mark.slow  # a run and its attack
def test_a_min_max_run_is_attacked_on_a_device(tmp_path, monkeypatch):
    attacked(tmp_path, monkeypatch, "algorithm.name=dpmixsgd", "model.task=class-weights")


@pytest.mark.slow  # a watched run and a game
def test_a_run_is_audited_on_a_device(tmp_path, monkeypatch):
    (tmp_path / "scaled_network.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    with StandIn(collects=True) as dev:
        found = audit_config(config_of(tmp_path, "model.name=scaled_network:build"), device="cuda")
    assert dev.operations > 0
    assert mixtures(dev) == []
    assert found.device == "cuda"
    assert all(check.passed for check in found.checks)
