"""A picture for humans: what was sent, and what was rebuilt from it, as rows of enlarged images.

Pixels are enlarged by repetition, so that nothing is smoothed and a pixel of the picture is a pixel
of the image. It complements the scores and replaces none of them.
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...attacks.problem.problem import total_variation
from ...privacy.durable import open_private, write_durably
from ...privacy.errors import InputError

if TYPE_CHECKING:
    from PIL import Image

TILE = 96  # pixels that the longer side of an image is enlarged to, at least
_GAP = 8
_TEXT = 14  # size of the font
_LINE = 20  # height of a line of text


Row = tuple[str, Tensor, Sequence[str]]


def save_gallery(path: Path, rows: Sequence[Row]) -> None:
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


def _compose(rows: Sequence[Row]) -> Image.Image:
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
