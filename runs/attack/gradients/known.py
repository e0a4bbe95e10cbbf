"""What an attacker of gradients is taken to know of the record: public ones, and a denoiser."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ....attacks.posterior.candidates import Candidates
from ....attacks.posterior.denoised import Denoiser
from ....attacks.problem.presets import Preset
from ....privacy.errors import InputError
from ...stop import tell
from ..prior.denoiser import own_denoiser
from ..prior.known import candidates_of, check_unplanted
from ..prior.record_file import RecordForm, read_records
from .batch import BatchFacts
from .table import GradientTable


@dataclass(frozen=True, kw_only=True, slots=True)
class Known:
    """What is known before the gradient is looked at.

    Attributes:
        guess: (*input_shape) pixels, to which falls back what the gradient does not speak for.
        candidates: several public records, to weigh where one record is observed.
        denoiser: of the user's.
    """

    guess: Tensor
    candidates: Candidates | None
    denoiser: Denoiser | None


def pixels_of(
    path: Path, facts: BatchFacts, *, classes: int, table: GradientTable | None = None
) -> Tensor:
    """(N, *input_shape) pixels in [0, 1] of the records of a file.

    Raises:
        FileNotFoundError: nothing is there.
        ValueError: `read_records` refuses it.
    """
    return read_records(path, _form(facts, classes=classes, table=table)).pixels


def known_of(
    prior: Path | None,
    denoiser: str | None,
    facts: BatchFacts,
    *,
    settings: Preset,
    truth: Tensor | None,
    classes: int,
    seed: int,
    table: GradientTable | None = None,
) -> Known:
    """What the options say, mid-grey where they say nothing.

    Args:
        prior: file of public records.
        denoiser: "module:NAME".
        settings: of the attack.
        truth: (records, *input_shape) pixels to score against, none of which may be in the file.
        seed: decides which of many records are weighed.
        table: the columns of a record, if it is a row of a table.

    Raises:
        ValueError: something cannot be read, holds the truth, has no effect, or is missing.
    """
    guess, candidates = torch.full(facts.input_shape, 0.5, dtype=torch.float64), None
    if prior is not None:
        known = read_records(prior, _form(facts, classes=classes, table=table))
        guess = known.pixels.mean(dim=0)
        if len(known.pixels) > 1 and facts.records == 1:
            if truth is not None:
                check_unplanted(prior, known, truth)
            low, high = facts.bounds()
            candidates = candidates_of(
                known,
                to_inputs=lambda units: low + (high - low) * units,
                classes=classes,
                seed=seed,
            )
    own = own_denoiser(denoiser, folder=None, notice=tell).denoiser
    if own is not None and not (settings.posterior and facts.records == 1 and facts.noise_std > 0):
        raise InputError(
            f"denoiser has no effect with records={facts.records} and noise_std="
            f"{facts.noise_std:g}: it is a prior of one record under noise, by matched or "
            "posterior; leave it out"
        )
    if not settings.searches and candidates is None and own is None:
        raise InputError(
            "preset='posterior' weighs public records against one record: give several by --prior, "
            "and records=1; or use matched"
        )
    return Known(guess=guess, candidates=candidates, denoiser=own)


def _form(facts: BatchFacts, *, classes: int, table: GradientTable | None) -> RecordForm:
    """What a record of a file has to be."""
    low, high = facts.bounds()
    return RecordForm(
        shape=facts.input_shape,
        classes=classes,
        to_unit=lambda inputs: (inputs - low) / (high - low),
        said="mean and std (or low and high)",
        table=None if table is None else table.declaration,
        separator="," if table is None else table.separator,
    )
