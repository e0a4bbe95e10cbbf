"""Draws digit.svg from the folder of a demo: a digit as it was sent, and as it was rebuilt.

overhear demo --out demo-run
python docs/pictures/draw.py demo-run
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

SCENARIO, IMAGE = "view", 5  # all that the eavesdropper sees; the sixth image that was attacked
SIDE, GAP, TOP = 168, 34, 20
HERE = Path(__file__).resolve().parent


class Panel(NamedTuple):
    """A picture with two lines under it."""

    picture: Path
    head: str
    said: str


def panels(run: Path) -> list[Panel]:
    """The original and three reconstructions, with what the attack scored."""
    found = json.loads((run / "attacks/attack.json").read_text(encoding="utf-8"))["scenarios"]
    rows = next(one["rows"] for one in found if one["scenario"] == SCENARIO)
    row: dict[str, dict[str, Any]] = {one["name"]: one for one in rows}
    privacy = json.loads((run / "privacy.json").read_text(encoding="utf-8"))
    epsilon = math.ceil(100 * float(privacy["ledger"]["epsilon"]["eavesdropper"])) / 100

    def said(name: str) -> str:
        """In words: decibels say little to a reader who does not know their scale."""
        if not row[name]["found"][IMAGE].startswith("rebuilt"):
            return "only a guess"
        return "rebuilt exactly" if float(row[name]["psnr"][IMAGE]) > 99 else "rebuilt in part"

    heads = {
        "no defence": ("no defence", said("no defence")),
        "clipping only": ("clipping alone", said("clipping only")),
        "defended": (f"noise for ε = {epsilon:g}", said("defended")),
    }
    return [
        Panel(run / f"attacks/original-{IMAGE}.png", "the record", "8 × 8 pixels"),
        *(Panel(run / row[name]["images"][IMAGE], *lines) for name, lines in heads.items()),
    ]


def squares(picture: Path, x: int, y: int) -> str:
    """A grey picture as one path for each shade, so that it stays sharp at any size."""
    grey = np.asarray(Image.open(picture).convert("L"))
    side = SIDE // grey.shape[0]
    shades: dict[int, list[str]] = {}
    for (row, column), shade in np.ndenumerate(grey):
        corner = f"M{x + column * side} {y + row * side}"
        shades.setdefault(int(shade), []).append(f"{corner}h{side}v{side}h-{side}z")
    return "\n".join(
        f'<path fill="#{shade:02x}{shade:02x}{shade:02x}" d="{"".join(drawn)}"/>'
        for shade, drawn in sorted(shades.items())
    )


def drawing(shown: list[Panel]) -> str:
    """The panels side by side."""
    width = len(shown) * (SIDE + GAP) + GAP
    parts = [f'<rect width="{width}" height="{SIDE + 90}" rx="14" fill="#ffffff"/>']
    for number, panel in enumerate(shown):
        x = GAP + number * (SIDE + GAP)
        parts.append(squares(panel.picture, x, TOP))
        for line, (text, weight) in enumerate(((panel.head, 700), (panel.said, 400))):
            at = f'x="{x + SIDE // 2}" y="{TOP + SIDE + 27 + 25 * line}"'
            parts.append(f'<text {at} font-weight="{weight}">{text}</text>')
    told = "; ".join(f"{panel.head}: {panel.said}" for panel in shown)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {SIDE + 90}" role="img" '
        'font-family="system-ui, \'DejaVu Sans\', sans-serif" font-size="17" fill="#16202c" '
        'text-anchor="middle" shape-rendering="crispEdges">\n'
        f"<title>A digit, and what an eavesdropper rebuilds of it. {told}</title>\n"
        + "\n".join(parts)
        + "\n</svg>\n"
    )


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python docs/pictures/draw.py DEMO_FOLDER")
    (HERE / "digit.svg").write_text(drawing(panels(Path(sys.argv[1]))), encoding="utf-8")
