"""Which public records an attack plants, and what the others say before anything is attacked.

What a file of further records says comes first among what is weighed, or takes the place of it.

Rows of a table under attack: which are planted, and what is written of those rebuilt.

Values are written of public records alone. Where [data] names no test records, those that are
planted were held out of somebody's table: they are scored by column, and no value of them is kept.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...attacks.exact.stages import count_proven
from ...attacks.posterior import MOST, Candidates, sizes_for
from ...attacks.problem.problem import total_variation
from ...attacks.scoring.columns import Distance, column_scores, usual_record
from ...attacks.scoring.evaluation import Row
from ...attacks.scoring.metrics import blind_guess
from ...attacks.scoring.reconstruction_bound import (
    near_threshold,
    prior_hit_rate,
    rebuilt_threshold,
)
from ...privacy.errors import InputError
from ...privacy.files import open_private, write_durably
from ...training.data.load import Dataset, TableColumn
from ..run_file.run_file import RunFile
from .prior_records import RecordForm, candidates_of, check_unplanted, read_records

if TYPE_CHECKING:
    from PIL import Image


# A picture for humans: what was sent, and what was rebuilt from it, as rows of enlarged images.


TILE = 96  # pixels that the longer side of an image is enlarged to, at least
_GAP = 8
_TEXT = 14  # size of the font
_LINE = 20  # height of a line of text


_Drawn = tuple[str, Tensor, Sequence[str]]


def save_gallery(path: Path, rows: Sequence[_Drawn]) -> None:
    """Write images as a PNG file: a row each of originals, blind guesses, reconstructions, ...

    Args:
        path: file to write; never overwritten.
        rows: (label, (N, channels, height, width) images in [0, 1], captions) each, of one shape;
            the label stands to the left, and column i shows image i. Captions are N short texts to
            stand under them, such as "21.3 dB", or none. The font has plain Latin letters only.

    Raises:
        FileExistsError: the file exists.
        ValueError: images that are neither grey nor of three colours, or out of range.
    """
    for label, images, _ in rows:
        if images.shape[1] not in (1, 3) or not (images.min() >= 0 and images.max() <= 1):
            raise InputError(
                f"row {label!r} of shape {tuple(images.shape)} spans [{images.min().item():.4g}, "
                f"{images.max().item():.4g}] and must have 1 or 3 channels in [0, 1]"
            )
    picture = _compose(rows)
    with open(path, "xb", opener=open_private) as file:
        picture.save(file, format="PNG")


def save_picture(path: Path, pixels: Tensor) -> None:
    """Write the (1 or 3, height, width) pixels of a record, in [0, 1], as a PNG file, anew."""
    from PIL import Image

    levels = (pixels.permute(1, 2, 0) * 255.0).round().to(torch.uint8).numpy()
    held = io.BytesIO()
    Image.fromarray(levels[..., 0] if levels.shape[2] == 1 else levels).save(held, format="PNG")
    write_durably(path, held.getvalue())


def _compose(rows: Sequence[_Drawn]) -> Image.Image:
    from PIL import Image, ImageDraw, ImageFont

    font = ImageFont.load_default(size=_TEXT)
    count, _, height, width = rows[0][1].shape
    scale = -(-TILE // max(height, width))
    high, wide = height * scale, width * scale
    margin = max(_width(font, label) for label, _, _ in rows)
    left = margin + 2 * _GAP if margin else _GAP
    column = max([wide, *(_width(font, text) for row in rows for text in row[2])]) + _GAP
    tops = [_GAP]
    for _, _, row in rows:
        tops.append(tops[-1] + high + (_LINE if any(row) else 0) + _GAP)
    picture = Image.new("RGB", (left + count * column, tops[-1]), "white")
    draw = ImageDraw.Draw(picture)
    for (label, images, row), top in zip(rows, tops, strict=False):
        draw.text((_GAP, top + high // 2), label, fill="black", font=font, anchor="lm")
        for place, image in enumerate(images):
            tile = _tile(image, scale)
            x = left + place * column + (column - _GAP - wide) // 2
            picture.paste(tile, (x, top))
            if row and row[place]:
                at = (x + wide // 2, top + high + _LINE // 2)
                draw.text(at, row[place], fill="black", font=font, anchor="mm")
    return picture


def _tile(image: Tensor, scale: int) -> Image.Image:
    """One (channels, height, width) image, every pixel repeated."""
    from PIL import Image

    levels = (image.detach().cpu().double() * 255.0).round().to(torch.uint8)
    levels = levels.expand(3, -1, -1).permute(1, 2, 0)
    large = levels.repeat_interleave(scale, dim=0).repeat_interleave(scale, dim=1)
    return Image.fromarray(large.numpy())


def _width(font: Any, text: str) -> int:
    return math.ceil(font.getlength(text))


_LAST = "height, width, channels"
AS_THE_TRUTH = 0.01  # of the blind guess's error, up to which an order is that of the truth
_SMOOTH = 0.7  # times the variation: an order in which a picture is this much smoother is its own


def orders_of(pixels: Tensor) -> dict[str, Tensor]:
    """Pictures (B, C, H, W) with their pixels in other orders than the declared one."""
    if pixels.ndim != 4:
        return {}
    channels, height, width = pixels.shape[1:]
    orders = {"mirrored rows": pixels.flip(-1), "rows from the bottom": pixels.flip(-2)}
    if channels > 1:
        last = pixels.reshape(-1, height, width, channels).permute(0, 3, 1, 2)
        orders |= {_LAST: last, "blue, green, red": pixels.flip(1)}
    if height == width:
        orders["width, height"] = pixels.transpose(-1, -2)
    return orders


def smoother(pixels: Tensor) -> list[str]:
    """That pictures which are exact look as if channels came last."""
    turned = orders_of(pixels).get(_LAST)
    if turned is None or not bool(
        (total_variation(turned) < _SMOOTH * total_variation(pixels)).all()
    ):
        return []
    return [
        f"read as ({_LAST}) the pixels make a smoother picture: if the network is fed pictures so, "
        "these are drawn in another order"
    ]


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
    # Planted are random records; all others are public.
    drawn = torch.randperm(every, generator=torch.Generator().manual_seed(seed))
    at, rest = drawn[:count], drawn[count:]
    others = torch.ones(every, dtype=torch.bool)
    others[at] = False
    units, low, high = data.pixels(data.test_inputs[others]), *data.bounds
    # The prior and what is near, for rows of a table or for pictures.
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
    # A record counts as rebuilt up to a share of the guess's mean error over the others.
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
    # Records in the form of the run, none of which is planted.
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
        known, to_inputs=_inputs_of(data), classes=data.classes, seed=config.training.seed
    )
    # Records given beforehand stand beside the public ones, or in their place.
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


HELD_OUT = (
    "records of the table that were held out, planted as the victim's batch of re-enacted rounds; "
    "no one says that they are public, so that no value of them is kept ([data] test names public "
    "ones)"
)
DISTANCE = (
    "mean over columns: 1 for a wrong category or binary value, for a number the squared "
    "difference over its range"
)
_NEAR = 0.01  # of its range, where a number counts as right


_Fields = dict[str, Any]  # of an `AttackRow`, each of its own type


def row_fields(row: Row, data: Dataset, truth: Tensor, blind: Row) -> _Fields:
    """What an `AttackRow` says of a table beside its errors, of (N, D) planted records as truth."""
    return {
        "columns": column_scores(data.columns, truth, row.images, blind=blind.images),
        "certified": count_proven(row.stages),
        "whole": whole_rows(data.columns, truth, row.images),
        "values": [] if data.held_out else values_of(data.columns, row.images),
    }


def whole_rows(columns: Sequence[TableColumn], truth: Tensor, guess: Tensor) -> int:
    """How many of (N, D) records are right in every column, numbers to a thousandth or so."""
    right = torch.ones(len(truth), dtype=torch.bool)
    for column in columns:
        at = slice(column.start, column.start + column.width)
        if column.kind == "number":
            right &= ((truth[:, at] - guess[:, at]).abs() <= _NEAR).all(dim=1)
        else:
            pairs = zip(truth[:, at].tolist(), guess[:, at].tolist(), strict=True)
            right &= torch.tensor([column.text(a) == column.text(b) for a, b in pairs])
    return int(right.sum())


def values_of(columns: Sequence[TableColumn], units: Tensor) -> list[list[str]]:
    """The values of records (N, D) on the unit box, column by column."""
    rows = units.tolist()
    return [[c.text(row[c.start : c.start + c.width]) for c in columns] for row in rows]
