"""Pictures that are records: PNG, JPEG and BMP, whatever the suffix says, within a size."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import InputError
from ..files import check_size, decoding

if TYPE_CHECKING:
    from PIL.Image import Image


_FORMATS = ("PNG", "JPEG", "BMP")
_MOST_PIXELS = 1 << 22  # of a record; 2048 x 2048
_LARGEST = 64 << 20  # bytes of a picture
_SCAN = b"\xff\xda"  # where a pass of a JPEG over all its pixels begins
_MOST_SCANS = 100


@contextmanager
def opened_picture(path: Path) -> Iterator[Image]:
    """A picture that is small enough to be a record, by its header; it is not decoded yet.

    Raises:
        FileNotFoundError: it is not there.
        ValueError: no regular file, too large, or no picture of a format that is read.
    """
    from PIL import Image

    check_size(path, _LARGEST)
    # Pillow's own bound lies above the one here.
    quiet = warnings.catch_warnings(action="ignore", category=Image.DecompressionBombWarning)
    with decoding(path, "picture"), quiet:
        try:
            picture = Image.open(path, formats=_FORMATS)
        except Image.DecompressionBombError:
            raise InputError(f"{path} has more than {_MOST_PIXELS} pixels; resize it") from None
        with picture as opened:
            _check_pixels(path, *opened.size)
            scans = 0 if opened.format in {"PNG", "BMP"} else path.read_bytes().count(_SCAN)
            if scans > _MOST_SCANS:
                raise InputError(
                    f"{path} is drawn in {scans} passes, must be at most {_MOST_SCANS}; save it "
                    "again, not progressively"
                )
            yield opened


def _check_pixels(path: Path, width: int, height: int) -> None:
    """Refuse a picture that is too large to be a record."""
    if width * height > _MOST_PIXELS:
        raise InputError(
            f"{path} has {width} x {height} pixels, must have at most {_MOST_PIXELS}; resize it"
        )
