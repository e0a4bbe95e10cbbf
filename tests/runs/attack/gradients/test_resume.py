"""An attack on a file of gradients that goes on where it was interrupted."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from overhear.attacks.problem.objective import PRESETS
from overhear.attacks.problem.observation import Sent, sent_gradient
from overhear.runs.attack.invert import attack_gradients
from overhear.runs.requests import GradientRequest
from overhear.training.models.parameters import build_model, flatten, unflatten


@pytest.fixture(autouse=True)
def _gradients(tmp_path, monkeypatch):
    """The gradient of a clipped record of 16 pixels, and a search of 30 steps."""
    monkeypatch.chdir(tmp_path)
    rng = torch.Generator().manual_seed(0)
    model = build_model("mlp", input_shape=(1, 4, 4), classes=3, generator=rng)
    x = torch.rand(1, 1, 4, 4, generator=rng)
    sent = sent_gradient(
        model, flatten(model), inputs=x, targets=torch.tensor([2]), of=Sent(clip_norm=None)
    ).detach()
    tensors = {f"gradient.{name}": g.contiguous() for name, g in unflatten(model, sent).items()}
    tensors |= {f"parameter.{name}": p.detach() for name, p in model.named_parameters()}
    save_file(tensors, "g.st")
    short = replace(PRESETS["inverting-gradients"], adam_steps=30, starts=1)
    monkeypatch.setattr("overhear.attacks.problem.objective.PRESETS", {"matched": short})
    monkeypatch.setattr("overhear.attacks.inversion.restarts.SAVED_EVERY", 5)


def _attack(out: str, progress: Any = None, **changes: Any) -> Any:
    given = GradientRequest(Path("g.st"), model="mlp", out=Path(out), input_shape=(1, 4, 4))
    return attack_gradients(replace(given, **changes), progress=progress)


def _interrupt(out: str) -> None:
    def stop(step: int, *_: object) -> None:
        if step == 12:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        _attack(out, progress=stop)


def test_an_interrupted_search_goes_on_to_the_same_end():
    _attack("whole")
    _interrupt("broken")
    assert [path.name for path in Path("broken").iterdir()] == ["search.safetensors"]
    steps: list[int] = []
    _attack("broken", progress=lambda step, *_: steps.append(step))
    assert min(steps) > 5
    whole, found = (load_file(f"{out}/reconstruction.safetensors") for out in ("whole", "broken"))
    assert torch.equal(whole["inputs"], found["inputs"])
    assert not Path("broken/search.safetensors").exists()


def test_a_search_of_another_problem_is_refused():
    _interrupt("broken")
    with pytest.raises(ValueError, match="belongs to another observation, preset"):
        _attack("broken", labels=(0,))


def test_a_folder_with_anything_beside_the_search_is_refused():
    _interrupt("broken")
    Path("broken/notes").touch()
    with pytest.raises(FileExistsError, match="already holds files"):
        _attack("broken")
