"""The page on an attack on gradients: its columns, what is said of a defence, and refusals."""

import json
from pathlib import Path

import pytest
import torch

from overhear.commands.cli import main
from overhear.reports.document.html import found_folder, read_found, write_found
from overhear.runs.attack.planted import save_picture
from tests.hostile_files import _FOUND

LEFT = {
    "clip_norm": 1.0, "noise_multiplier": 1.0, "epsilon": 4.3771, "delta": 1e-5, "steps": 100,
    "psnr": [7.0], "better": [False], "images": ["defended-0.png"],
}  # fmt: skip


def made(folder: Path, **change: object) -> Path:
    (folder / "attack.json").write_text(json.dumps(json.loads(_FOUND) | change), encoding="utf-8")
    for name in ("image-0.png", "guess-0.png", "defended-0.png", "original-0.png"):
        save_picture(folder / name, torch.full((1, 2, 2), 0.5))
    return folder


def test_the_page_holds_every_picture_unsmoothed_and_says_what_a_defence_would_leave(tmp_path):
    folder = made(
        tmp_path, originals=["original-0.png"], guess=["guess-0.png"], defended=LEFT,
        scores={"mse": [0.0], "psnr": [99.0], "ssim": [1.0], "order": [0],
                "mean": {"mse": 0.0, "psnr": 99.0, "ssim": 1.0},
                "blind": {"mse": 0.1, "psnr": 7.0, "ssim": 0.0}},
    )  # fmt: skip
    page = write_found(folder)
    text = page.read_text(encoding="utf-8")
    assert text.count('src="data:image/png;base64,') == 4
    assert "image-rendering:pixelated" in text
    assert "PSNR 99.0 dB" in text
    assert "no better than the blind guess" in text
    assert "clipped to norm 1 and noise of 1 times" in text
    assert "&epsilon; &le; 4.38 at &delta; = 1e-05" in text
    assert "://" not in text
    assert page.stat().st_mode & 0o77 == 0  # records of whoever was attacked


def test_the_command_writes_the_page_and_its_formats(tmp_path, capsys):
    folder = made(tmp_path)
    assert main(["report", str(folder)]) == 0
    assert capsys.readouterr().out.strip() == str(folder / "report.html")
    text = (folder / "report.html").read_text(encoding="utf-8")
    assert "What was found, where the truth is not known" in text
    assert "It was not tried" in text
    assert main(["report", str(folder / "attack.json"), "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["conclusion"] == "A leak."
    assert main(["report", str(folder), "--format", "md"]) == 0
    assert "- record 0: label 1, exact" in capsys.readouterr().out
    assert main(["report", str(folder), "--show-records"]) == 2
    assert "holds no run: --show-records" in capsys.readouterr().err


def test_what_is_of_a_run_is_told_and_pictures_elsewhere_are_refused(tmp_path):
    (tmp_path / "run.toml").touch()
    (tmp_path / "attacks").mkdir()
    made(tmp_path / "attacks")
    with pytest.raises(ValueError, match="is of the run in"):
        found_folder(tmp_path / "attacks")
    assert found_folder(tmp_path) is None
    for name in ("../image-0.png", "image-0.svg", "/etc/passwd.png"):
        with pytest.raises(ValueError, match="which is none of its folder"):
            read_found(made(tmp_path, images=[name]))
    with pytest.raises(ValueError, match="names 2 pictures of 1 records"):
        read_found(made(tmp_path, images=["image-0.png", "image-0.png"]))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"noise_std": 0.1}, "This gradient was clipped or noisy as it was sent"),
        ({"images": []}, "The records are numbers and no pictures"),
        ({"images": [], "values": [["30", "f<b>"]]}, "<li>30, f&lt;b&gt;</li>"),
    ],
)
def test_what_is_no_picture_is_shown_as_it_is(change, words, tmp_path):
    assert words in write_found(made(tmp_path, **change)).read_text(encoding="utf-8")
