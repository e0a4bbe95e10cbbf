"""Odds as a field of a hundred dots: how many members are rightly named, and how many by chance."""

from __future__ import annotations

import math

from markupsafe import Markup

from ..cited import Cited
from ..schema import Report
from .chart import drawing

__all__ = ["odds_figure"]

_STEP, _RADIUS, _TOP = 13, 4.6, 44
_IN_100 = 1  # the entry of a row's hits whose odds are in 100


def odds_figure(report: Report, cited: Cited, *, name: str) -> Markup:
    """Fields of 100 members: those that a blind guess names, and those that the adversary does."""
    risk = report.risk[name]
    hit = risk.hits[_IN_100]
    up = risk.relation == "at most"
    place = ("risk", name, "hits", _IN_100)
    fields = (
        ("a blind guess", Markup(""), "false_positives", float(hit.false_positives)),
        ("this adversary", Markup("{} ").format(risk.relation), "hits", float(hit.hits)),
    )
    parts = []
    for number, (who, sign, key, value) in enumerate(fields):
        left = 6 + number * (10 * _STEP + 24)
        # Never fewer filled dots than an upper bound, never more than a lower one.
        full = math.ceil(value - 1e-9) if up else math.floor(value + 1e-9)
        parts.append(
            Markup(
                '<text x="{x}" y="14">{who}:</text><text class="label" x="{x}" y="32">{s}{n} in '
                "{of}</text>"
            ).format(
                x=left, who=who, s=sign,
                n=cited.svg("given", *place, key), of=cited.svg("whole", *place, "of"),
            )
        )  # fmt: skip
        for filled in (False, True):
            path = "".join(
                _dot(left + _STEP * (k % 10), _TOP + _STEP * (k // 10))
                for k in range(100)
                if (k < full) == filled
            )
            kind = "one hit" if filled else "one"
            if path:
                parts.append(Markup('<path class="{}" d="{}"/>').format(kind, path))
    about = (
        f"Of 100 members a blind guess names {hit.false_positives}, this adversary "
        f"{risk.relation} {float(hit.hits):g}."
    )
    box = f"0 0 {2 * 10 * _STEP + 36} {_TOP + 10 * _STEP}"
    return drawing(box, "Members rightly named out of 100", about, Markup("").join(parts))


def _dot(x: float, y: float) -> str:
    r = _RADIUS
    return f"M{x:g} {y + r:g}a{r} {r} 0 1 0 {2 * r:g} 0a{r} {r} 0 1 0 -{2 * r:g} 0z"
