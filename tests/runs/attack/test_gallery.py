from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from overhear.runs.attack.planted import save_gallery


def _images(count: int, *, side: int = 32, channels: int = 3) -> Tensor:
    return torch.rand(count, channels, side, side, generator=torch.Generator().manual_seed(count))


def _pixels(path: Path) -> np.ndarray:
    with Image.open(path) as picture:
        assert (picture.format, picture.mode) == ("PNG", "RGB")
        return np.asarray(picture)


def _levels(image: Tensor, scale: int) -> np.ndarray:
    """(height, width, 3) what a tile must show."""
    levels = (image * 255.0).round().to(torch.uint8).expand(3, -1, -1).permute(1, 2, 0).numpy()
    return levels.repeat(scale, axis=0).repeat(scale, axis=1)


def _shown(picture: np.ndarray, tile: np.ndarray) -> list[tuple[int, int]]:
    """Top left corners at which the tile is in the picture, pixel by pixel."""
    high, wide = tile.shape[:2]
    return [
        (top, left)
        for top in range(picture.shape[0] - high + 1)
        for left in range(picture.shape[1] - wide + 1)
        if np.array_equal(picture[top, left], tile[0, 0])
        and np.array_equal(picture[top : top + high, left : left + wide], tile)
    ]


def test_every_pixel_of_every_image_is_in_the_picture(tmp_path):
    first, second = _images(3), _images(3).flip(0) * 0.5
    path = tmp_path / "gallery.png"
    save_gallery(path, [("original", first, ()), ("defended", second, ())])
    picture = _pixels(path)
    corners = [
        [_shown(picture, _levels(image, 3)) for image in images] for images in (first, second)
    ]
    assert all(len(found) == 1 for row in corners for found in row)
    places = [[found[0] for found in row] for row in corners]
    for row in places:  # one height for a row, images from left to right
        assert len({top for top, _ in row}) == 1
        assert sorted(left for _, left in row) == [left for _, left in row]
    assert [left for _, left in places[0]] == [left for _, left in places[1]]
    assert places[0][0][0] < places[1][0][0]


@pytest.mark.parametrize(("side", "scale"), [(8, 12), (28, 4), (32, 3), (96, 1), (100, 1)])
def test_images_are_enlarged_to_96_pixels_or_left_as_they_are(tmp_path, side, scale):
    path = tmp_path / "gallery.png"
    save_gallery(path, [("", _images(2, side=side, channels=1), ())])
    assert _pixels(path).shape == (scale * side + 16, 2 * (scale * side + 8) + 8, 3)


def test_grey_images_are_shown_grey(tmp_path):
    images = _images(1, channels=1)
    save_gallery(tmp_path / "gallery.png", [("", images, ())])
    assert _shown(_pixels(tmp_path / "gallery.png"), _levels(images[0], 3)) == [(8, 8)]


def test_the_background_is_white_where_nothing_is_drawn(tmp_path):
    save_gallery(tmp_path / "gallery.png", [("", torch.zeros(2, 1, 32, 32), ())])
    picture = _pixels(tmp_path / "gallery.png")
    assert (picture == 255).all(axis=2).sum() == picture.shape[0] * picture.shape[1] - 2 * 96**2


def test_labels_and_captions_are_drawn_outside_the_images(tmp_path):
    images = _images(2) * 0.5 + 0.5
    for name, captions in (("plain", ()), ("told", ("12.3 dB", "21.0 dB"))):
        rows = [("original", images, ()), ("defended", images.flip(0), captions)]
        save_gallery(tmp_path / f"{name}.png", rows)
    plain, told = _pixels(tmp_path / "plain.png"), _pixels(tmp_path / "told.png")
    assert told.shape[0] > plain.shape[0]
    assert (plain[:, :60] < 128).any()  # black letters left of the images
    assert (told[-28:, 80:] < 128).any()  # and under them
    assert not (plain[-8:, 80:] < 128).any()
    for image in images:
        assert len(_shown(told, _levels(image, 3))) == 2


def test_a_long_caption_widens_its_column(tmp_path):
    images = _images(2)
    save_gallery(tmp_path / "gallery.png", [("", images, ("a rather long caption",) * 2)])
    picture = _pixels(tmp_path / "gallery.png")
    assert picture.shape[1] > 2 * (96 + 8) + 8
    under = (picture[-28:] < 128).any(axis=(0, 2))
    assert not under[:8].any()
    assert not under[-8:].any()
    middle = picture.shape[1] // 2  # half a gap left of it and half right
    assert not under[middle - 1 : middle + 7].all()
    assert all(len(_shown(picture, _levels(image, 3))) == 1 for image in images)


def test_nothing_is_overwritten(tmp_path):
    path = tmp_path / "gallery.png"
    path.write_text("kept")
    with pytest.raises(FileExistsError):
        save_gallery(path, [("", _images(1), ())])
    assert path.read_text() == "kept"


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (torch.zeros(1, 2, 8, 8), "1 or 3 channels"),
        (torch.full((1, 1, 8, 8), 1.1), r"row 'a' .* spans \[1.1, 1.1\]"),
        (torch.full((1, 1, 8, 8), -0.1), "channels in"),
        (torch.full((1, 1, 8, 8), torch.nan), "channels in"),
    ],
)
def test_what_cannot_be_drawn_is_refused(tmp_path, images, message):
    with pytest.raises(ValueError, match=message):
        save_gallery(tmp_path / "gallery.png", [("a", images, ())])
    assert not (tmp_path / "gallery.png").exists()
