"""What an attack writes of a point: its rows, pictures, conclusion, and what the proof allows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...attacks.interception.replay import Trial
from ...attacks.posterior.denoised import Denoiser
from ...attacks.scoring.columns import column_gains
from ...attacks.scoring.conclusion import conclusion
from ...attacks.scoring.evaluation import Row, score_each
from ...attacks.scoring.lineup_bound import LineupBound
from ...attacks.scoring.metrics import Scores, bootstrap_interval, conventions_for
from ...attacks.scoring.reconstruction_bound import ReconstructionBound
from ...training.data.dataset import Dataset
from ..evidence.schema import AllowedByProof, AttackRow, Lineup, Means, ScaledMeans, Scenario
from .gallery import save_gallery, save_picture
from .kept import Place
from .planted import Public
from .points import Point
from .rows import DISTANCE, HELD_OUT, row_fields, values_of

PLANTED = "public test records, planted as the victim's batch of re-enacted rounds"


@dataclass(frozen=True, kw_only=True, slots=True)
class Aim:
    """A point, the rounds that are re-enacted for it, and mu of what they release."""

    point: Point
    trial: Trial
    proven: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Planted:
    """The public records, and where they are searched for."""

    data: Dataset
    public: Public
    shown: Tensor  # (N, channels, height, width) pixels, or (N, D) of a table on the unit box
    originals: Sequence[str]  # paths of their pictures
    device: torch.device
    denoiser: Denoiser | None = None


def entry_of(
    place: Place,
    aim: Aim,
    planted: Planted,
    *,
    rows: Sequence[Row],
    bound: ReconstructionBound,
    ranked: Sequence[LineupBound],
    batch: int,
) -> Scenario:
    """The entry of a point: the four rows and what the proof allows."""
    point, trial, data = aim.point, aim.trial, planted.data
    gallery, told = None, dict[str, Any]()  # what only rows of tables say, by name
    if data.columns:
        values = [] if data.held_out else values_of(data.columns, planted.shown)
        told = {"distance": DISTANCE, "values": values}
    else:
        gallery = f"{place.held}/gallery-{point.name}.png"
        (place.folder / gallery).unlink(missing_ok=True)  # of a point that was interrupted
        save_gallery(
            place.folder / gallery,
            [("original", planted.shown), *((row.name, row.images) for row in rows)],
            captions=[[], *([f"{value:.1f} dB" for value in row.scores.psnr] for row in rows)],
        )
    return Scenario(
        scenario=str(point.scenario),
        adversary=trial.parsed_adversary().name,
        round=point.round,
        model_owner=trial.model_owner if point.scenario == "cross-gradient" else point.victim,
        victim=point.victim,
        preset=point.preset,
        batch=batch,
        together=trial.together,
        rows=[
            _row(place, point.name, row, planted, rows[0], ranked if row is rows[-1] else ())
            for row in rows
        ],
        originals=list(planted.originals),
        gallery=gallery,
        records=HELD_OUT if data.columns and data.held_out else PLANTED,
        known=planted.public.known,
        conclusion=_words(rows, planted, batch=batch),
        bound=_allowed(bound, ranked),
        **told,
    )


def save_pictures(place: Place, name: str, images: Tensor) -> list[str]:
    """Write (N, channels, height, width) pixels as PNG files; their paths within the run."""
    paths = [f"{place.held}/{name}-{i}.png" for i in range(len(images))]
    for path, image in zip(paths, images, strict=True):
        save_picture(place.folder / path, image)
    return paths


def _words(rows: Sequence[Row], planted: Planted, *, batch: int) -> str:
    """The conclusion, and whether the gradient stands out of the noise at all."""
    columns = planted.data.columns
    said = conclusion(
        rows,
        threshold=planted.public.threshold,
        guessed=planted.public.guessed,
        near=planted.public.near,
        guessed_label=planted.public.guessed_label,
        table=bool(columns),
        gains=column_gains(columns, planted.shown, rows[-1].images, usual=rows[0].images)
        if columns and batch == 1  # others are paired so that they fit best
        else (),
    )
    return f"{said} {rows[-1].spectral}".strip()


def _allowed(bound: ReconstructionBound, ranked: Sequence[LineupBound]) -> AllowedByProof:
    """Both kinds of success in one sentence; either may contradict the proof."""
    return AllowedByProof(
        mu=bound.mu,
        threshold=bound.threshold,
        prior_hit_rate=bound.prior_hit_rate,
        most=bound.bound,
        rebuilt=bound.hits,
        images=bound.images,
        guesses=bound.guesses,
        confidence=bound.confidence,
        exceeded=bound.exceeded or any(one.limit.exceeded for one in ranked),
        sentence=" ".join([bound.sentence(), *(one.sentence() for one in ranked)]),
    )


def _row(
    place: Place,
    name: str,
    row: Row,
    planted: Planted,
    blind: Row,
    ranked: Sequence[LineupBound],
) -> AttackRow:
    s, shown = row.scores, planted.shown
    limits = {one.size: one.limit for one in ranked}
    if planted.data.columns:
        more = row_fields(row, planted.data, shown, blind)
    else:
        pictures = f"{name}-{row.name.replace(' ', '-')}"
        more = {
            "conventions": {
                key: _scaled(score_each(shown, row.images, convention=convention))
                for key, convention in conventions_for(shown.shape[1]).items()
            },
            "images": save_pictures(place, pictures, row.images),
        }
    return AttackRow(
        name=row.name,
        mse=list(s.mse),
        psnr=list(s.psnr),
        ssim=list(s.ssim),
        mean=means(s),
        interval={"mse": bootstrap_interval(s.mse), "psnr": bootstrap_interval(s.psnr)},
        stage=list(row.stages),
        noise_std=row.noise_std,
        intercepts=row.intercepts,
        labels=list(row.labels),
        right_labels=row.right_labels,
        candidates=row.candidates,
        power=list(row.power),
        lineups=[
            Lineup(
                of=size,
                ranks=list(found),
                first=sum(rank == 1 for rank in found),
                most=limits[size].bound if size in limits else None,
                exceeded=size in limits and limits[size].exceeded,
            )
            for size, found in row.lineups.items()
        ],
        spectral=row.spectral,
        unused=list(row.unused),
        **more,
    )


def _scaled(scores: Scores) -> ScaledMeans:
    """The means of scores of several images, and how far they are known."""
    every = {"mse": scores.mse, "psnr": scores.psnr, "ssim": scores.ssim}
    known = {name: values for name, values in every.items() if not np.isnan(values).any()}
    return ScaledMeans(
        mse=scores.mean_mse,
        psnr=scores.mean_psnr,
        ssim=scores.mean_ssim,
        interval={name: bootstrap_interval(values) for name, values in known.items()},
    )


def means(scores: Scores) -> Means:
    """The means of scores of several images."""
    return Means(mse=scores.mean_mse, psnr=scores.mean_psnr, ssim=scores.mean_ssim)
