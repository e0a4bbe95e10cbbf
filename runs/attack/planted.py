"""Which public records an attack plants, and what the others say before anything is attacked.

What a file of further records says comes first among what is weighed, or takes the place of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from ...attacks.posterior.candidates import MOST, Candidates
from ...attacks.posterior.lineup import sizes_for
from ...attacks.scoring.metrics import blind_guess
from ...attacks.scoring.prior_hit_rate import near_threshold, prior_hit_rate, rebuilt_threshold
from ...privacy.errors import InputError
from ...training.data.load import Dataset
from ..run_file.run_file import RunFile
from .prior.known import candidates_of, check_unplanted
from .prior.record_file import RecordForm, read_records


@dataclass(frozen=True, kw_only=True, slots=True)
class Public:
    """Public test records: those that are planted, and what the others say beforehand.

    Attributes:
        images, labels: what is planted, normalised.
        prior: the mean of the others, normalised.
        threshold: MSE at which an image counts as rebuilt.
        guessed: how often a guess without any message does, at most.
        near: MSE of which 19 in 20 of the others have no other one within.
        guessed_label: share of the likeliest class among the others.
        candidates: of the others, those that an attack may weigh; None where there are too few.
        decoys: of the others, those that stand beside the planted ones in lineups.
        known: what a file adds, in words; empty without one.
    """

    images: Tensor
    labels: Tensor
    prior: Tensor
    threshold: float
    guessed: float
    near: float
    guessed_label: float
    candidates: Candidates | None
    decoys: Candidates | None
    known: str = ""


def plant(data: Dataset, count: int, *, seed: int = 0) -> Public:
    """Random public test records, and what the other ones say.

    Args:
        data: supplies the public test records.
        count: how many to plant.
        seed: decides which; the proof's limits speak of records that are drawn at random.

    Raises:
        ValueError: there are not so many.
    """
    every = len(data.test_targets)
    if count > every:
        raise InputError(f"images={count} is more than the {every} public test records")
    drawn = torch.randperm(every, generator=torch.Generator().manual_seed(seed))
    at = drawn[:count]
    others = torch.ones(every, dtype=torch.bool)
    others[at] = False
    prior = blind_guess(data.test_inputs[others])
    pixels = data.pixels(data.test_inputs[others]).clamp(0, 1)
    guess = data.pixels(prior).clamp(0, 1)
    threshold = rebuilt_threshold(pixels, guess)
    # The largest lineups that leave most of the others as candidates.
    rest = drawn[count:]
    size = max((s for s in sizes_for(count + len(rest) // 2)), default=0)
    beside = max(size - count, 0)
    classes = data.test_targets[others].bincount(minlength=data.classes)
    return Public(
        images=data.test_inputs[at],
        labels=data.test_targets[at],
        prior=prior,
        threshold=threshold,
        guessed=prior_hit_rate(pixels, guess, threshold=threshold) if len(pixels) > 3 else 1.0,
        near=near_threshold(pixels),
        guessed_label=float(classes.max() / max(int(classes.sum()), 1)),
        candidates=_some(data, rest[beside : beside + MOST]),
        decoys=_some(data, rest[:beside]),
    )


def with_prior(public: Public, data: Dataset, config: RunFile) -> Public:
    """The same with the records of the run file's `[attack] prior` among the candidates.

    Args:
        public: as it was planted.
        data: with columns where its records are rows.
        config: the run file.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it cannot be read, or holds planted records.
    """
    asked = config.attack
    if asked.prior is None:
        return public
    path = Path(asked.prior).expanduser()
    tabled = config.data.name in ("csv", "parquet")
    form = RecordForm(
        shape=data.input_shape,
        classes=data.classes,
        to_unit=data.pixels,
        said="the run's mean and std" if data.image else "the ranges of the columns",
        table=config.data.declared() if tabled else None,
        separator=config.data.separator or ",",
    )
    known = read_records(path, form)
    check_unplanted(path, known, data.pixels(public.images).clamp(0, 1))
    given = candidates_of(
        known,
        to_inputs=_inputs_of(data),
        classes=data.classes,
        seed=config.training.seed,
    )
    others = None if asked.prior_only else public.candidates
    return replace(
        public,
        candidates=given if others is None else others.after(given),
        known=f"{len(known.pixels)} records of {path.name}"
        + ("" if known.labels is not None else ", each under every label")
        + (" in place of public test records" if asked.prior_only else ""),
    )


def _inputs_of(data: Dataset) -> Callable[[Tensor], Tensor]:
    """Numbers on the unit box as inputs."""
    if not data.columns:
        return data.normalise
    low, high = data.bounds
    return lambda units: low + (high - low) * units


def _some(data: Dataset, at: Tensor) -> Candidates | None:
    if len(at) == 0:
        return None
    return Candidates(inputs=data.test_inputs[at], labels=data.test_targets[at])
