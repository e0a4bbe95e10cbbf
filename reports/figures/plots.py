"""A scale of epsilon with a run's mark on it, and what 1, 3 and 8 allow at most.

The bar grows darker from left to right, so that a grey print says the same. What stands under it is
what the pair (epsilon, delta) alone allows, whatever the mechanism; the mark is the run's own.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from markupsafe import Markup

from ...privacy.accounting.risk import true_positive_rate_of_pair
from ...runs.audit.evidence import Membership
from ...runs.audit.evidence_schema import AuditedAdversary
from ...runs.numbers import is_infinite, percent
from ..references import References, kind_of, sign_of
from ..schema import Report
from . import chart

_WIDE = chart.Frame(width=900, height=118, left=16, right=16)
_NARROW = chart.Frame(width=360, height=118, left=12, right=12, is_narrow=True)
_LEAST, _MOST = 0.1, 30.0
_SHOWN = (1, 3, 8)
_BAR, _THICK = 50, 16
_ALARMS = 0.01


def scale_figure(report: Report, cited: References, *, name: str, narrow: bool = False) -> Markup:
    """The drawing."""
    frame = _NARROW if narrow else _WIDE
    # The figure by what was released, in zones from weak to strong.
    row = next(one for one in report.plan.adversaries if one.adversary == name)
    row, limit = row.released(report.ledger.epsilon[name]), report.plan.target.epsilon
    parts = [_zones(frame)]
    said = []
    # What each epsilon allows at one false positive in 100.
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
    # The limit and this run on the scale.
    if limit is not None:
        words = Markup("limit ε ≤ {}").format(cited.svg("bound", "plan", "target", "epsilon"))
        parts.append(_labelled(frame, float(limit), words, y=34, mark="limit"))
    figure = cited.svg(kind_of(upper=row.is_bound), "ledger", "epsilon", name)
    of = "this run" if report.declared is None else "declared"
    words = Markup("{}: ε {} {}").format(of, sign_of(row.epsilon, upper=row.is_bound), figure)
    parts.append(_labelled(frame, row.epsilon, words, y=14, mark="stop"))
    about = (
        f"Epsilon from {_LEAST:g} to {_MOST:g}, with the mark of this run. At a false-positive "
        f"rate of 1 in 100 {', '.join(said)} at most"
    )
    return chart.drawing(frame.box, "Scale of epsilon", about, Markup("").join(parts))


def _found(epsilon: float, delta: float) -> int:
    """Of 100 members at most, rounded up."""
    rate = true_positive_rate_of_pair(epsilon, delta, false_positive_rate=_ALARMS)
    return math.ceil(100 * rate - 1e-9)


def _x(frame: chart.Frame, epsilon: float) -> float:
    held = min(max(epsilon, _LEAST), _MOST)
    share = math.log(held / _LEAST) / math.log(_MOST / _LEAST)
    return frame.left + (frame.edge - frame.left) * share


def _zones(frame: chart.Frame) -> Markup:
    ends = (_LEAST, *_SHOWN, _MOST)
    return Markup("").join(
        Markup('<rect class="zone z{}" x="{:.1f}" y="{}" width="{:.1f}" height="{}"/>').format(
            number, _x(frame, low), _BAR, _x(frame, high) - _x(frame, low), _THICK
        )
        for number, (low, high) in enumerate(itertools.pairwise(ends))
    )


def _labelled(frame: chart.Frame, epsilon: float, words: Markup, *, y: int, mark: str) -> Markup:
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


# Odds as a field of a hundred dots: how many members are rightly named, and how many by chance.

_STEP, _RADIUS, _TOP = 13, 4.6, 44
_IN_100 = 1  # the entry of a row's hits whose odds are in 100


def odds_figure(report: Report, cited: References, *, name: str) -> Markup:
    """Fields of 100 members: those that a blind guess names, and those that the adversary does."""
    # A blind guess beside the adversary.
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
    return chart.drawing(box, "Members rightly named out of 100", about, Markup("").join(parts))


def _dot(x: float, y: float) -> str:
    r = _RADIUS
    return f"M{x:g} {y + r:g}a{r} {r} 0 1 0 {2 * r:g} 0a{r} {r} 0 1 0 -{2 * r:g} 0z"


# Proven against measured: for each audited adversary what is proven, and what was found.
#
# The truth lies between the two marks, if the proof and the audit are right: the measured lower
# bound is a circle, the proven upper bound a bar, the most that this audit could find a diamond.

_WIDE_MEASURED = chart.Frame(width=900, height=0, left=190, right=40, top=12)
_NARROW_MEASURED = chart.Frame(width=360, height=0, left=14, right=18, top=12, is_narrow=True)
_ROW, _NAME = 56, 24  # of an adversary; a line of its own for its name where that is narrow
_LONGEST = 24  # name of an adversary

Scale = Callable[[float], float]


def measured_figure(report: Report, cited: References, *, narrow: bool = False) -> Markup | None:
    """The drawing; None where nothing finite was measured or proven."""
    frame = _NARROW_MEASURED if narrow else _WIDE_MEASURED
    row_height = _ROW + (_NAME if narrow else 0)
    # Adversaries of whom anything finite is known, on one scale.
    audit = report.audit
    found = [
        (number, row, *_figures(report, row))
        for number, row in enumerate(audit.adversaries if audit else ())
    ]
    drawn = [entry for entry in found if any(value is not None for value in entry[2:])]
    if not drawn:
        return None
    every = [value for entry in drawn for value in entry[2:] if value is not None]
    scale = chart.ticks(max(every) * 1.04)
    bottom = frame.top + row_height * len(drawn)

    def x(value: float) -> float:
        return frame.left + (frame.edge - frame.left) * min(value / scale[-1], 1.0)

    stands = "proven" if report.declared is None else "declared"
    parts = [
        Markup(
            '<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{y}" y2="{b}"/>'
            '<text class="mid" x="{x:.1f}" y="{t}">{v:g}</text>'
        ).format(x=x(value), y=frame.top, b=bottom, t=bottom + 18, v=value)
        for value in scale
    ]
    # A row each: proven, ideal and measured.
    for place, (number, row, proven, low, ideal) in enumerate(drawn):
        y = frame.top + row_height * place + (row_height - _ROW) + 29
        name = row.name
        short = name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…"
        kind, left, above = ("label over", frame.left, y - 33) if narrow else ("end", 178, y + 4)
        parts.append(
            Markup('<text class="{}" x="{}" y="{}">{}</text>').format(kind, left, above, short)
        )
        if proven is not None:
            at = cited.svg("bound", "audit", "adversaries", number, "proven_epsilon")
            words = Markup("{} ≤ {}").format(stands, at)
            parts.append(_proven(x, proven, low or 0.0, y=y, frame=frame, words=words))
        if ideal is not None:
            parts.append(
                Markup('<path class="mark s3" d="M{:.1f} {}l5 5-5 5-5-5z"/>').format(
                    x(ideal), y - 5
                )
            )
        if low is not None:
            at = cited.svg("given", "measured", name, "epsilon")
            parts.append(_measured(x, low, y=y, frame=frame, words=at))
    about = (
        f"For each adversary a bar for the {stands} upper bound, a circle for the measured lower "
        "bound, and a diamond for the most that such an audit could find"
    )
    box = f"0 0 {frame.width} {bottom + 26}"
    return chart.drawing(
        box, f"{stands.capitalize()} against measured epsilon", about, Markup("").join(parts)
    )


def _figures(
    report: Report, row: AuditedAdversary
) -> tuple[float | None, float | None, float | None]:
    """Proven, measured and at best, where there is such a figure and it is finite."""
    of, epsilon = report.measured[row.name], row.proven_epsilon
    proven = row.status.is_bound and not is_infinite(epsilon)
    return (
        float(epsilon) if proven else None,
        None if of.epsilon is None else float(of.epsilon),
        None if of.ideal is None else float(of.ideal),
    )


def _proven(
    x: Scale, proven: float, low: float, *, y: float, frame: chart.Frame, words: Markup
) -> Markup:
    at = x(proven)
    return Markup(
        '<path class="span" d="M{a:.1f} {y}H{b:.1f}"/><path class="wall" d="M{b:.1f} {u}V{d}"/>'
        '<text class="{side}" x="{b:.1f}" y="{v}">{words}</text>'
    ).format(
        a=min(x(low), at),
        b=at,
        y=y,
        u=y - 9,
        d=y + 9,
        v=y - 13,
        side="end" if at > frame.width / 2 else "start",
        words=words,
    )


def _measured(x: Scale, low: float, *, y: float, frame: chart.Frame, words: Markup) -> Markup:
    at = x(low)
    return Markup(
        '<circle class="seen" cx="{a:.1f}" cy="{y}" r="5"/>'
        '<text class="{side}" x="{a:.1f}" y="{v}">measured ≥ {words}</text>'
    ).format(a=at, y=y, v=y + 18, side="start" if at < frame.width / 2 else "end", words=words)


# Members found, by how many others are taken for members: both on a log scale.
#
# Only on such a scale is it seen whether an attack is sure of some records; a few that it is sure
# of vanish in an area under the curve.

_DECADES = 4
_TICKS = ("1 in 10,000", "1 in 1,000", "1 in 100", "1 in 10", "all")
_SHORT_TICKS = ("0.01 %", "0.1 %", "1 %", "10 %", "all")
_WIDE_ROC = replace(chart.WIDE, left=chart.WIDE.left + 30)  # labels in words
_LEGEND = 22  # a line of it


def roc_figure(found: Membership | None, *, narrow: bool = False) -> Markup | None:
    """The drawing: of the games, or of the run itself where none were played; None without one.

    Args:
        narrow: whether it is for a phone; the legend then stands below.
    """
    if found is None:
        return None
    part = found.played or found.run
    frame = chart.NARROW if narrow else _WIDE_ROC
    # Chance, what is proven, and a curve for each attack.
    parts = [_axes(frame), _line(frame, [(1e-4, 1e-4), (1.0, 1.0)], "grid")]
    # All curves end in one corner, so they are told apart by samples beside their names.
    samples = [(Markup('<path class="grid" d="M{} {}h30"/>'), "chance")]
    if found.limit:
        parts.append(_line(frame, found.limit, "limit"))
        samples.append((Markup('<path class="limit" d="M{} {}h30"/>'), "most that is proven"))
    for style, curve in enumerate(part.curves):
        points = [(_x_roc(frame, a), _y(frame, t)) for a, t in curve.points if a > 0 and t > 0]
        if points:
            parts.append(chart.draw_places(chart.Line(points=points, style=style)))
            sample = Markup('<path class="line s{}" d="M{{}} {{}}h30"/>').format(style)
            samples.append((sample, f"{curve.model}, {curve.attack}"))
    # Names stand at the side, or below on a phone.
    left, top = (12, frame.height + 8) if narrow else (frame.edge + 16, frame.top + 20)
    for number, (sample, words) in enumerate(samples):
        y = top + _LEGEND * number
        parts.append(sample.format(left, y))
        parts.append(Markup('<text x="{}" y="{}">{}</text>').format(left + 38, y + 4, words))
    names = ", ".join(words for _, words in samples)
    about = f"False positives from left to right and members found upwards, in tens: {names}"
    height = frame.height + (_LEGEND * len(samples) if narrow else 0)
    return chart.drawing(
        f"0 0 {frame.width} {height}", "Members found", about, Markup("").join(parts)
    )


def _x_roc(frame: chart.Frame, rate: float) -> float:
    return frame.left + (frame.edge - frame.left) * _share(rate)


def _y(frame: chart.Frame, rate: float) -> float:
    return frame.floor - (frame.floor - frame.top) * _share(rate)


def _share(rate: float) -> float:
    """Of the axis, 0 at 1 in 10,000 and below."""
    return max(0.0, 1.0 + math.log10(max(rate, 1e-300)) / _DECADES)


def _line(frame: chart.Frame, points: Sequence[tuple[float, float]], kind: str) -> Markup:
    path = " ".join(f"{_x_roc(frame, a):.1f},{_y(frame, t):.1f}" for a, t in points)
    return Markup('<polyline class="{}" fill="none" points="{}"/>').format(kind, path)


def _axes(frame: chart.Frame) -> Markup:
    floor, parts = frame.floor, []
    for number, words in enumerate(_SHORT_TICKS if frame.is_narrow else _TICKS):
        rate = 10.0 ** (number - _DECADES)
        parts.append(
            Markup(
                '<line class="grid" x1="{}" x2="{}" y1="{y:.1f}" y2="{y:.1f}"/>'
                '<text class="end" x="{}" y="{:.1f}">{words}</text>'
                '<line class="axis" x1="{x:.1f}" x2="{x:.1f}" y1="{}" y2="{}"/>'
                '<text class="mid" x="{x:.1f}" y="{}">{words}</text>'
            ).format(
                frame.left, frame.edge, frame.left - 8, _y(frame, rate) + 4, floor, floor + 5,
                floor + 18, x=_x_roc(frame, rate), y=_y(frame, rate), words=words,
            )
        )  # fmt: skip
    parts.append(
        Markup(
            '<path class="axis" d="M{} {}V{}H{}"/>'
            '<text class="mid" x="{}" y="{}">others taken for members</text>'
            '<text class="mid" transform="translate(13 {}) rotate(-90)">members found</text>'
        ).format(
            frame.left, frame.top, floor, frame.edge, (frame.left + frame.edge) / 2,
            frame.height - 8, (frame.top + floor) / 2,
        )
    )  # fmt: skip
    return Markup("").join(parts)


# The charts of a report: epsilon by round, utility by round.
#
# Inline SVG without script. Lines differ in dash and mark, so that a grey print says the same;
# colours are those of Okabe and Ito. Every drawing names itself to a reader that cannot see it.

_MOST_DOTS = 200  # agents whose own accuracy is a tick at the edge


@dataclass(frozen=True, kw_only=True, slots=True)
class Series:
    """Adversaries whose epsilon is the same in every round, and the style of their line."""

    names: tuple[str, ...]
    points: tuple[tuple[float, float], ...]
    style: int
    upper: bool


def epsilon_series(report: Report) -> list[Series]:
    """The lines of `epsilon_figure`; adversaries with equal figures and status share one."""
    status = {row.adversary: row.is_bound for row in report.plan.adversaries}
    grouped: dict[tuple[tuple[tuple[float, float], ...], bool], list[str]] = {}
    for name, series in report.epsilon_by_round.items():
        points = tuple((float(x), float(y)) for x, y in series if math.isfinite(float(y)))
        if points:
            grouped.setdefault((points, status.get(name, False)), []).append(name)
    return [
        Series(names=tuple(names), points=points, style=number % chart.MARKS, upper=upper)
        for number, ((points, upper), names) in enumerate(grouped.items())
    ]


def epsilon_figure(report: Report, cited: References, *, narrow: bool = False) -> Markup:
    """Epsilon spent by round for each adversary, against the limit of the run file."""
    frame, lines, target = (
        chart.NARROW if narrow else chart.WIDE,
        epsilon_series(report),
        report.plan.target,
    )
    limit = None if target.epsilon is None else float(target.epsilon)
    # Both axes reach what was spent, also by rounds that were repeated.
    top = max([y for line in lines for _, y in line.points] + ([limit] if limit else [0.0]))
    last_round = max([x for line in lines for x, _ in line.points], default=1.0)
    x_max = max(float(report.run.rounds), last_round)  # rounds may have been repeated
    area = chart.Area(x_max=x_max, y_max=chart.ticks(top * 1.04)[-1], frame=frame)
    rows = report.plan.adversaries
    about = rows[0].unit.words_with(rows[0].records_per_person) if rows else "one record"
    parts = [chart.axes(area, x_label="training round", y_label=f"ε spent so far, {about}")]
    # Lines end in labels; the limit has one, too.
    labels = []
    if limit is not None:
        y = area.y(limit)
        parts.append(
            Markup('<line class="limit" x1="{}" x2="{}" y1="{:.1f}" y2="{:.1f}"/>').format(
                frame.left, frame.edge, y, y
            )
        )
        parts.append(_crossing(report, cited, area, limit))
        labels.append((y, Markup("limit ε = ") + cited.svg("bound", "plan", "target", "epsilon")))
    for line in lines:
        parts.append(chart.draw_line(area, chart.Line(points=line.points, style=line.style)))
        name = line.names[0]
        last = len(report.epsilon_by_round[name]) - 1
        kind = kind_of(upper=line.upper)
        figure = cited.svg(kind, "epsilon_by_round", name, last, 1)
        more = f" +{len(line.names) - 1}" if len(line.names) > 1 else ""
        words = Markup("{}{}: {}{}").format(_short(name), more, "" if line.upper else "≥ ", figure)
        labels.append((area.y(line.points[-1][1]), words))
    parts.append(_end_labels(labels, frame))
    drawn = f"Lines for {', '.join(name for line in lines for name in line.names)}"
    if limit is not None:
        drawn += "; a dashed horizontal line for the limit"
    return chart.drawing(frame.box, "Epsilon by round", drawn, Markup("").join(parts))


def utility_figure(report: Report, cited: References, *, narrow: bool = False) -> Markup:
    """Test accuracy of the mean model by round, with the range of the agents' own models."""
    # The band of agents' own models, and the mean model in it.
    frame, utility = chart.NARROW if narrow else chart.WIDE, report.utility
    rounds = [float(r) for r in utility.rounds]
    area = chart.Area(x_max=max(*rounds, 1.0), y_max=1.0, frame=frame)
    parts = [
        chart.axes(
            area,
            x_label="training round",
            y_label="test accuracy",
            y_text=lambda value: percent(value, 0),
        )
    ]
    low, high = utility.agent_accuracy_min, utility.agent_accuracy_max
    outline = [*zip(rounds, high, strict=True), *reversed(list(zip(rounds, low, strict=True)))]
    band = " ".join(f"{area.x(x):.1f},{area.y(y):.1f}" for x, y in outline)
    parts.append(Markup('<polygon class="band" points="{}"/>').format(band))
    mean = utility.consensus_accuracy
    parts.append(
        chart.draw_line(area, chart.Line(points=list(zip(rounds, mean, strict=True)), style=0))
    )
    last = len(rounds) - 1
    # Agents at the end, where they are few enough to be told apart.
    each = utility.agent_accuracy_last
    if len(each) <= _MOST_DOTS:
        path = "".join(f"M{area.x(rounds[-1]) + 1:.1f} {area.y(y):.1f}h7" for y in each)
        parts.append(Markup('<path class="tick" d="{}"/>').format(path) if path else Markup(""))
    labels = [
        (
            area.y(mean[-1]),
            Markup("mean model: ") + cited.svg("percent", "utility", "consensus_accuracy", last),
        ),
        (
            area.y((low[-1] + high[-1]) / 2) + 1,
            Markup("agents: {} to {}").format(
                cited.svg("percent", "utility", "agent_accuracy_min", last),
                cited.svg("percent", "utility", "agent_accuracy_max", last),
            ),
        ),
    ]
    parts.append(_end_labels(labels, frame))
    about = (
        "Line: mean model. Band: from the worst to the best agent's own model. Ticks at the right: "
        "every agent's own model at the end."
    )
    return chart.drawing(frame.box, "Test accuracy by round", about, Markup("").join(parts))


def _crossing(report: Report, cited: References, area: chart.Area, limit: float) -> Markup:
    """The last round within the limit, of the target adversary or else of one that passes it."""
    within, target = report.within_limit, report.plan.target.adversary
    name = target if target is not None and target in within else next(iter(within), None)
    if name is None:
        return Markup("")
    x = area.x(float(within[name].rounds))
    right = x > (area.frame.left + area.frame.edge) / 2
    return Markup(
        '<line class="drop" x1="{x:.1f}" x2="{x:.1f}" y1="{top:.1f}" y2="{floor}"/>'
        '<path class="stop" d="M{x:.1f} {top:.1f}m-5 -5l10 10m0 -10l-10 10"/>'
        '<text class="{side}" x="{beside:.1f}" y="{low}">'
        "{words} up to round {round}</text>"
    ).format(
        x=x,
        top=area.y(limit),
        floor=area.y(0),
        side="end" if right else "start",
        beside=x - 8 if right else x + 8,
        low=area.y(0) - 8,
        words="within it" if area.frame.is_narrow else "within the limit",
        round=cited.svg("whole", "within_limit", name, "rounds"),
    )


def _end_labels(labels: Sequence[tuple[float, Markup]], frame: chart.Frame) -> Markup:
    """What lines are called, beside their ends; in a narrow drawing above them."""
    inside = frame.is_narrow
    up = 10 if inside else 0
    places = chart.spread([y - up for y, _ in labels], gap=19, limit=float(frame.floor - 4))
    return Markup("").join(
        Markup('<text class="label{}" x="{}" y="{:.1f}">{}</text>').format(
            " end over" if inside else "", frame.edge + (-4 if inside else 10), y + 4, words
        )
        for y, (_, words) in zip(places, labels, strict=True)
    )


def _short(name: str) -> str:
    return name if len(name) <= 16 else f"{name[:15]}…"
