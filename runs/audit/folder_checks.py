"""Checks of what a run left in its folder, beside those of a fresh run of the same engine."""

from __future__ import annotations

from pathlib import Path

from ...attacks.checks.transcript import transcript_check
from ...attacks.watching.result import Check
from ...attacks.watching.watched_run import traces_of
from ...training.engine.checkpoint import load_checkpoint
from ...training.engine.round_files import round_files
from ...training.engine.transcript import Transcript
from ...training.models.parameters import sizes_of
from ..folder import folder as run_folder
from ..run_file.build import Built


def folder_checks(
    folder: Path, built: Built, *, multiplier: float, noise_seed: int | None
) -> list[Check]:
    """Hold the transcripts of a run against the noise of its ledger.

    Args:
        folder: of the run.
        built: the objects of its run file.
        multiplier: the noise multiplier of its ledger.
        noise_seed: its evaluation_noise_seed, with which noise repeats where a round does.

    Raises:
        ValueError: a transcript cannot be read.
    """
    traces = traces_of(built.bound(multiplier), built.setting, rounds=built.rounds)
    sizes = sizes_of(built.setting.model)
    kept = folder / run_folder.TRANSCRIPT
    places = [kept, *sorted(kept.glob("discarded-*"))]
    states = {
        checkpoint.round: checkpoint.state
        for _, path in round_files(folder / run_folder.CHECKPOINTS)
        for checkpoint in [load_checkpoint(path)]
    }
    check = transcript_check(
        [Transcript.load(place) for place in places],
        traces,
        states=states,
        parts={sum(sizes): sizes},
        fresh=noise_seed is None,
    )
    return [check]
