"""The page on an attack on gradients: true, rebuilt, guessed blind, and left by a defence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...privacy.bounded import read_bounded
from ...privacy.durable import write_durably
from ...privacy.errors import InputError
from ...runs.attack.gradients_schema import GradientAttack
from ...runs.folder.folder import REPORT
from ...runs.numbers import bound, figure
from ..template import template
from .html import Pictures

ATTACK = "attack.json"
_LARGEST_PICTURE = 8 << 20  # bytes
_MOST_SHOWN = 32  # records


def found_folder(target: Path) -> Path | None:
    """The folder that `overhear invert` wrote, of it or of its attack.json; None where it is none.

    Raises:
        ValueError: it is what `overhear attack` wrote of a run, whose report shows it.
    """
    folder = target.parent if target.name == ATTACK else target
    if not (folder / ATTACK).is_file():
        return None
    for run in folder.parents[:2]:
        if (run / "run.toml").is_file():
            raise InputError(f"{target} is of the run in {run}, whose report shows it; give {run}")
    return folder


def read_found(folder: Path) -> GradientAttack:
    """What `overhear invert` wrote.

    Raises:
        FileNotFoundError: there is none.
        ValueError: it cannot be read, contradicts itself, or names pictures elsewhere.
    """
    path = folder / ATTACK
    found = GradientAttack.read(
        path,
        refusal=lambda at, what: (
            f"{path} cannot be read at {at}: {what}; make it again by overhear invert"
        ),
    )
    shown, order = len(found.images), [] if found.scores is None else found.scores.order
    least = min(len(found.labels), len(found.stage), len(found.supported))
    if shown > least or (shown and max(order, default=0) >= shown):
        raise InputError(
            f"{path} names {shown} pictures of {least} records; make it again by overhear invert"
        )
    left = [] if found.defended is None else found.defended.images
    for name in (*found.images, *found.originals, *found.guess, *left):
        if Path(name).name != name or Path(name).suffix != ".png" or (folder / name).is_symlink():
            raise InputError(f"{path} names the picture {name!r:.80}, which is none of its folder")
    return found


def picture(folder: Path, name: str) -> bytes | None:
    """The PNG file of a picture; None where it is not there."""
    path = folder / name
    return read_bounded(path, _LARGEST_PICTURE) if path.is_file() else None


def columns_of(found: GradientAttack) -> list[tuple[str, str, list[str], list[list[str]]]]:
    """Columns of pictures: head, what it is, files, and what stands below each of them."""
    records = range(len(found.images))
    order = found.scores.order if found.scores is not None else list(records)
    given = " (given)" if found.labels_given else ""
    told = []
    for true, at in enumerate(order[: len(found.images)]):
        label = f"label {found.labels[at]}{given}"
        way = f"rebuilt: {found.stage[at]}" if found.supported[at] else "the blind guess"
        values = [] if found.scores is None else found.scores.psnr[true : true + 1]
        near = [f"PSNR {figure(value)} dB" for value in values]
        told.append([label, way, *near])
    columns: list[tuple[str, str, list[str], list[list[str]]]] = []
    if found.originals:
        columns.append(("True record", "what the attack did not see", found.originals, []))
    rebuilt = [found.images[at] for at in order[: len(found.images)]]
    columns.append(("Rebuilt", "from the gradient", rebuilt, told))
    columns.append(("Blind guess", "uses no gradient", found.guess * len(rebuilt), []))
    if (left := found.defended) is not None:
        below = [
            [
                f"PSNR {figure(value)} dB",
                "nearer than the blind guess" if better else "no better than the blind guess",
            ]
            for value, better in zip(left.psnr, left.better, strict=False)
        ]
        head = f"Clip norm {left.clip_norm:g}, noise multiplier {left.noise_multiplier:g}"
        columns.append((head, "what these would leave", left.images, below))
    return columns


def render_found(folder: Path, found: GradientAttack) -> str:
    """The page, complete in itself.

    Args:
        folder: where the pictures are.
        found: what attack.json holds.
    """
    columns = columns_of(found)
    images = {name: picture(folder, name) for *_, files, _ in columns for name in files}
    held = {name: data for name, data in images.items() if data is not None}
    facts: dict[str, Any] = {
        "model": found.model,
        "parameters": f"{found.parameters:,}, from the {found.parameters_from}",
        "records": found.records,
        "gradients": found.intercepts,
        "shape of a record": ", ".join(map(str, found.input_shape)),
        "attack": found.preset,
        "clip norm": "none" if found.clip_norm is None else figure(found.clip_norm),
        "noise on each coordinate": figure(found.noise_std),
        "unexplained of the gradient": figure(found.relative_residual, 2),
    }
    left = found.defended
    return template(__package__ or "overhear.reports", "found.html").render(
        found=found,
        facts=facts,
        columns=columns if found.images else [],
        shown=_MOST_SHOWN,
        image=Pictures(held),
        epsilon="" if left is None else bound(left.epsilon),
    )


def write_found(folder: Path) -> Path:
    """Write report.html beside an attack on gradients, readable by its user alone.

    Raises:
        FileNotFoundError: there is none.
        ValueError: as of `read_found`.
    """
    page = render_found(folder, read_found(folder))
    write_durably(folder / REPORT, page.encode())
    return folder / REPORT
