"""A small run, cut off where a test wants it; equal run files are planned once."""

import dataclasses
import hashlib
from pathlib import Path
from typing import Any

import pytest

from overhear.runs.folder import resume, run
from overhear.runs.folder.run import Session, plan_session, train_run
from overhear.runs.run_file.run_file import RunFile, load_run_file
from tests.small_run import run_text

RUN = run_text(
    "dp-dpsgd", agents=3, privacy={"epsilon": 4, "delta": 0.0001},
    training={"rounds": 12, "sampling_rate": 0.1, "checkpoint_every": 4, "evaluate_every": 2},
    intercept={"rounds": [3, 6]}, attack={"rounds": [3]},
)  # fmt: skip
NO_TARGET = "privacy.noise_multiplier=1.5"

_PLANNED: dict[str, Session] = {}


class CutOffError(Exception):
    """What ends a run before its end."""


def plan_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plan equal run files once, which takes longer than to train them."""

    def planned(config: RunFile, out: Path, *, progress: Any = None, **_: Any) -> Session:
        key = config.to_toml()
        if key not in _PLANNED:
            _PLANNED[key] = plan_session(config, out)
        return dataclasses.replace(_PLANNED[key], out=out, progress=progress)

    for module in (run, resume):
        monkeypatch.setattr(module, "plan_session", planned)


def write_run_file(folder: Path) -> Path:
    path = folder / "run.toml"
    path.write_text(RUN, encoding="utf-8")
    return path


def cut_off_at(round: int) -> Any:
    """A progress that ends the run when this round is done."""

    def progress(at: int, *_: object) -> None:
        if at == round:
            raise CutOffError

    return progress


def cut_off(run_file: Path, *changes: str, at: int = 6) -> tuple[RunFile, Path]:
    """A run that died when round `at` was done; its newest checkpoint is of a multiple of 4."""
    config, out = load_run_file(run_file, list(changes)), run_file.parent / "out"
    with pytest.raises(CutOffError):
        train_run(config, out, progress=cut_off_at(at))
    return config, out


def everything(out: Path) -> dict[str, str]:
    """The digest of every file."""
    files = [path for path in out.rglob("*") if path.is_file()]
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
