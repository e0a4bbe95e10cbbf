"""What several local steps changed is attacked through these steps, and under no others."""

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn.functional import cross_entropy

from overhear.attacks.exact.first_layer import repeated_input
from overhear.attacks.problem.objective import PRESETS
from overhear.attacks.problem.observation import Observation, Sent, sent_gradient
from overhear.attacks.problem.problem import Box
from overhear.runs.attack.invert import attack_gradients
from overhear.runs.requests import GradientRequest
from overhear.training.models.parameters import build_model, flatten
from tests.attacks.exact.observed import posed

STEPS, RATE = 4, 0.1


def network(seed: int) -> nn.Module:
    generator = torch.Generator().manual_seed(seed)
    return build_model("mlp", input_shape=(1, 4, 4), classes=3, generator=generator)


def trained(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> nn.Module:
    """The model after local steps by torch's own SGD."""
    own = copy.deepcopy(model)
    descent = torch.optim.SGD(own.parameters(), lr=RATE)
    for _ in range(STEPS):
        descent.zero_grad()
        cross_entropy(own(x), y).backward()
        descent.step()
    return own


def written(folder: Path, seed: int) -> tuple[Path, torch.Tensor]:
    """A file of the mean gradient of the local steps, in float32, and the record."""
    model = network(seed)
    x = torch.rand(1, 1, 4, 4, generator=torch.Generator().manual_seed(seed))
    after = trained(model, x, torch.tensor([seed % 3]))
    tensors = {}
    for (name, was), now in zip(model.named_parameters(), after.parameters(), strict=True):
        tensors[f"parameter.{name}"] = was.detach()
        tensors[f"gradient.{name}"] = ((was - now) / (STEPS * RATE)).detach()
    save_file(tensors, folder / "update.safetensors", {"input_shape": "1,4,4"})
    return folder / "update.safetensors", x


def attack(path: Path, out: str, **how: Any) -> Any:
    return attack_gradients(
        GradientRequest(path, model="mlp", out=path.parent / out, restarts=1, **how)
    )


def test_the_mean_along_the_steps_is_what_sgd_changed():
    model = network(0).double()
    x, y = torch.rand(3, 1, 4, 4, dtype=torch.float64), torch.tensor([0, 2, 1])
    change = (flatten(model) - flatten(trained(model, x, y))) / (STEPS * RATE)
    how: dict[str, Any] = {"inputs": x, "targets": y}
    of = Sent(clip_norm=None, local_steps=STEPS, local_rate=RATE)
    sent = sent_gradient(model, flatten(model), **how, of=of)
    torch.testing.assert_close(sent, change, rtol=1e-10, atol=1e-12)
    once = sent_gradient(model, flatten(model), **how, of=Sent(clip_norm=None))
    assert float((once - change).norm() / change.norm()) > 1e-3


@pytest.mark.parametrize("seed", range(8))
def test_a_record_of_several_local_steps_is_rebuilt_exactly(seed, tmp_path):
    path, x = written(tmp_path, seed)
    truth = tmp_path / "truth.safetensors"
    save_file({"inputs": x}, truth)
    found = attack(path, "found", local_steps=STEPS, local_rate=RATE, truth=truth)
    assert found.stage == ["exact"]
    assert found.scores.psnr[0] > 100
    assert "4 local steps of size 0.1" in found.notes[0]


@pytest.mark.parametrize("how", [{"momentum": 0.9}, {"weight_decay": 0.01}, {"lr": 2 * RATE}])
def test_a_record_is_read_off_the_spectrum_whatever_rule_the_steps_followed(how):
    model = network(0)
    x = torch.rand(1, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    found = by_rank(model, [(x, torch.tensor([1]))] * STEPS, classes=3, **how)
    torch.testing.assert_close(found, x, rtol=0, atol=1e-4)


@pytest.mark.parametrize("layers", [2, 1])
def test_several_records_are_never_taken_for_one_that_took_every_step(layers):
    made = torch.Generator().manual_seed(0)
    batches = [(torch.rand(1, 1, 4, 4, generator=made), torch.tensor([0])) for _ in range(STEPS)]
    torch.manual_seed(0)
    # Two classes behind one layer: the change has rank 1 whatever the records were.
    model = network(0) if layers > 1 else nn.Sequential(nn.Flatten(), nn.Linear(16, 2))
    assert by_rank(model, batches, classes=layers + 1) is None


@pytest.mark.parametrize("rule", [torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop])
@pytest.mark.parametrize("layers", [2, 1])
def test_signs_are_never_taken_for_a_picture(rule, layers):
    """Steps that divide a gradient by its own size leave rank 1, too, and of a record its signs."""
    model = network(0) if layers > 1 else nn.Sequential(nn.Flatten(), nn.Linear(16, 3))
    x = torch.rand(1, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    batches = [(x, torch.tensor([1]))] * STEPS
    assert by_rank(model, batches, classes=3, rule=rule, lr=0.01) is None


def by_rank(
    model: nn.Module, batches: Any, *, classes: int, rule: Any = torch.optim.SGD, **how: Any
) -> torch.Tensor | None:
    """What the spectrum says of steps by a rule of torch's, one on each batch."""
    own = copy.deepcopy(model)
    descent = rule(own.parameters(), **{"lr": RATE, **how})
    for x, y in batches:
        descent.zero_grad()
        cross_entropy(own(x), y).backward()
        descent.step()
    seen = Observation.single(
        gradient=(flatten(model) - flatten(own)) / (STEPS * RATE), model=flatten(model),
        noise_std=0.0, clip_norm=None, records=1,
    )  # fmt: skip
    seen = replace(seen, local_steps=STEPS, local_rate=RATE)
    box = Box(low=torch.tensor(0.0), span=torch.tensor(1.0))
    return repeated_input(posed(seen, model, (1, 4, 4), box, classes=classes))


@pytest.mark.parametrize(
    "said", [{}, {"local_steps": 4, "local_rate": 0.05}, {"local_steps": 3, "local_rate": 0.1}]
)
def test_another_step_size_or_number_of_steps_is_never_called_exact(said, tmp_path, monkeypatch):
    # The search after the exact stages may end at once.
    short = replace(PRESETS["matched"], adam_steps=1, newton_steps=0, starts=1)
    monkeypatch.setattr("overhear.attacks.problem.objective.PRESETS", {"matched": short})
    path, _ = written(tmp_path, 0)
    assert attack(path, "found", **said).stage != ["exact"]


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"local_steps": 0}, "local_steps=0 must lie in 1 to 100"),
        ({"local_steps": 101, "local_rate": 0.1}, "local_steps=101 must lie in 1 to 100"),
        ({"local_steps": 4}, "local_rate=0.0 must be finite and positive"),
        ({"local_steps": 4, "local_rate": float("nan")}, "local_rate=nan must be finite"),
        ({"local_rate": 0.1}, "local_rate=0.1 is the size of several local steps"),
        ({"local_steps": 4, "local_rate": 0.1, "clip_norm": 1.0}, "without clip_norm"),
    ],
)
def test_local_steps_that_cannot_be_are_refused(said, words, tmp_path):
    path, _ = written(tmp_path, 0)
    with pytest.raises(ValueError, match=words):
        attack(path, "found", **said)
    assert not (tmp_path / "found").exists()
