"""A scale of epsilon with a run's mark on it, and what 1, 3 and 8 allow at most.

The bar grows darker from left to right, so that a grey print says the same. What stands under it is
what the pair (epsilon, delta) alone allows, whatever the mechanism; the mark is the run's own.
"""

from __future__ import annotations

import itertools
import math

from markupsafe import Markup

from ...privacy.accounting.risk import true_positive_rate_of_pair
from ..cited import Cited
from ..schema import Report
from ..standing import kind_of, sign_of
from .chart import Frame, drawing

__all__ = ["scale_figure"]

_WIDE = Frame(width=900, height=118, left=16, right=16)
_NARROW = Frame(width=360, height=118, left=12, right=12, is_narrow=True)
_LEAST, _MOST = 0.1, 30.0
_SHOWN = (1, 3, 8)
_BAR, _THICK = 50, 16
_ALARMS = 0.01


def scale_figure(report: Report, cited: Cited, *, name: str, narrow: bool = False) -> Markup:
    """The drawing.

    Args:
        name: of the adversary.
        narrow: whether it is for a phone.
    """
    frame = _NARROW if narrow else _WIDE
    row = next(one for one in report.plan.adversaries if one.adversary == name)
    row, limit = row.released(report.ledger.epsilon[name]), report.plan.target.epsilon
    parts = [_zones(frame)]
    said = []
    for value in _SHOWN:
        found = _found(value, row.delta)
        x = _x(frame, value)
        parts.append(
            Markup(
                '<path class="axis" d="M{x:.1f} {a}v{b}"/>'
                '<text class="mid label" x="{x:.1f}" y="{c}">ε = {value}</text>'
                '<text class="mid" x="{x:.1f}" y="{d}">{found}{of}</text>'
            ).format(
                x=x, a=_BAR, b=_THICK + 6, c=_BAR + _THICK + 22, d=_BAR + _THICK + 40,
                value=value, found=found, of="" if narrow else " in 100",
            )
        )  # fmt: skip
        said.append(f"epsilon {value} allows {found} of 100 members to be found")
    if limit is not None:
        words = Markup("limit ε ≤ {}").format(cited.svg("bound", "plan", "target", "epsilon"))
        parts.append(_labelled(frame, float(limit), words, y=34, mark="limit"))
    figure = cited.svg(kind_of(proven=row.proven), "ledger", "epsilon", name)
    words = Markup("this run: ε {} {}").format(sign_of(row.epsilon, proven=row.proven), figure)
    parts.append(_labelled(frame, row.epsilon, words, y=14, mark="stop"))
    about = (
        f"Epsilon from {_LEAST:g} to {_MOST:g}, with the mark of this run. At a false-positive "
        f"rate of 1 in 100 {', '.join(said)} at most"
    )
    return drawing(frame.box, "Scale of epsilon", about, Markup("").join(parts))


def _found(epsilon: float, delta: float) -> int:
    """Of 100 members at most, rounded up."""
    rate = true_positive_rate_of_pair(epsilon, delta, false_positive_rate=_ALARMS)
    return math.ceil(100 * rate - 1e-9)


def _x(frame: Frame, epsilon: float) -> float:
    held = min(max(epsilon, _LEAST), _MOST)
    share = math.log(held / _LEAST) / math.log(_MOST / _LEAST)
    return frame.left + (frame.edge - frame.left) * share


def _zones(frame: Frame) -> Markup:
    ends = (_LEAST, *_SHOWN, _MOST)
    return Markup("").join(
        Markup('<rect class="zone z{}" x="{:.1f}" y="{}" width="{:.1f}" height="{}"/>').format(
            number, _x(frame, low), _BAR, _x(frame, high) - _x(frame, low), _THICK
        )
        for number, (low, high) in enumerate(itertools.pairwise(ends))
    )


def _labelled(frame: Frame, epsilon: float, words: Markup, *, y: int, mark: str) -> Markup:
    """A mark down to the bar, with its words beside it on the side where there is room."""
    x = _x(frame, epsilon)
    right = x < (frame.left + frame.edge) / 2
    return Markup(
        '<path class="{mark}" d="M{x:.1f} {top}V{low}"/>'
        '<text class="label over{side}" x="{beside:.1f}" y="{y}">{words}</text>'
    ).format(
        mark=mark,
        x=x,
        top=y - 10,
        low=_BAR + _THICK,
        side="" if right else " end",
        beside=x + 8 if right else x - 8,
        y=y,
        words=words,
    )
