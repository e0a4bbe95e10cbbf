"""Which public records an attack plants, and what the others say before anything is attacked.

What a file of further records says comes first among what is weighed, or takes the place of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from ...attacks.posterior import MOST, Candidates, sizes_for
from ...attacks.scoring.columns import Distance, usual_record
from ...attacks.scoring.metrics import blind_guess
from ...attacks.scoring.reconstruction_bound import (
    near_threshold,
    prior_hit_rate,
    rebuilt_threshold,
)
from ...privacy.errors import InputError
from ...training.data.load import Dataset
from ..run_file.run_file import RunFile
from .prior_records import RecordForm, candidates_of, check_unplanted, read_records


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
        data: supplies the public test records; the rows of a table have columns.
        count: how many to plant.
        seed: decides which; the proof's limits speak of records that are drawn at random.

    Raises:
        ValueError: there are not so many, or all the other rows of a table are alike.
    """
    every = len(data.test_targets)
    if count > every:
        raise InputError(f"images={count} is more than the {every} public test records")
    drawn = torch.randperm(every, generator=torch.Generator().manual_seed(seed))
    at, rest = drawn[:count], drawn[count:]
    others = torch.ones(every, dtype=torch.bool)
    others[at] = False
    units, low, high = data.pixels(data.test_inputs[others]), *data.bounds
    if data.columns:
        usual, by = usual_record(units, data.columns), Distance.of(data.columns)
        prior, scale = low + (high - low) * usual, by.scale
        points, guess = by.points(units), by.points(usual)
        # Common rows are exactly alike; of those held out of somebody's table none is known.
        near, decoys = 0.0, None
        candidates = None if data.held_out else _some(data, others)
    else:
        prior, scale = blind_guess(data.test_inputs[others]), 1.0
        points, guess = units.clamp(0, 1), data.pixels(prior).clamp(0, 1)
        # The largest lineups that leave most of the others as candidates.
        size = max((s for s in sizes_for(count + len(rest) // 2)), default=0)
        beside = max(size - count, 0)
        near, decoys = near_threshold(points), _some(data, rest[:beside])
        candidates = _some(data, rest[beside : beside + MOST])
    threshold = rebuilt_threshold(points, guess)
    if data.columns and not threshold > 0:
        raise InputError(
            f"the {len(units)} test records of {data.name!r} that are not planted all have the "
            "same values, so there is nothing to rebuild that is not known; name others in [data] "
            "test, or lower [attack] images"
        )
    classes = data.test_targets[others].bincount(minlength=data.classes)
    return Public(
        images=data.test_inputs[at],
        labels=data.test_targets[at],
        prior=prior,
        threshold=threshold * scale,
        guessed=prior_hit_rate(points, guess, threshold=threshold) if len(points) > 3 else 1.0,
        near=near,
        guessed_label=float(classes.max() / max(int(classes.sum()), 1)),
        candidates=candidates,
        decoys=decoys,
    )


def with_prior(public: Public, data: Dataset, config: RunFile) -> Public:
    """The same with the records of the run file's `[attack] prior` among the candidates.

    Args:
        public: as it was planted.
        data: with columns where its records are rows.

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
    inputs = data.test_inputs[at]
    return Candidates(inputs=inputs, labels=data.test_targets[at]) if len(inputs) else None
