"""A reproduction as Markdown, and as data for other programs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from ...privacy.plain_text import markdown_table, plain
from ...runs.numbers import bound
from ..reproductions.entry import Figure
from ..sweep.statistics import Mean
from ..sweep.table import VALUES
from ..sweep.table_text import without_nan
from .outcome import Line, Outcome
from .verdicts import ClaimLine

__all__ = ["as_data", "as_markdown"]


def as_markdown(outcome: Outcome) -> str:
    """The lines beside the paper's, the claims, and what was done, as Markdown."""
    entry, parts = outcome.entry, list[str]()
    parts.append(f"## {entry.paper.name}, {entry.title}\n")
    parts.append(f"`{entry.name}` at scale {outcome.scale}. {entry.paper.source}.\n")
    if entry.reading:
        parts.append(f"{entry.reading}\n")
    if differs := () if entry.closed else entry.scales[outcome.scale].differs:
        parts.append("Not as in the paper:\n\n" + "".join(f"- {one}\n" for one in differs))
    parts.append(_table(_lines(outcome)))
    parts.append(_caption(outcome))
    if outcome.claims:
        parts.append(_table([_claim(one, outcome) for one in outcome.claims]))
        parts.append(_claims_caption(outcome))
    if outcome.failures:
        told = "".join(f"- {plain(one, most=None)}\n" for one in outcome.failures)
        parts.append(f"{len(outcome.failures)} runs failed and are left out:\n\n{told}")
    return "\n".join(parts)


def _lines(outcome: Outcome) -> list[dict[str, str]]:
    found, value = [], outcome.entry.value
    head = VALUES[value].head if value in VALUES else value
    head = head.replace(" of the defended attack", "")
    for line in outcome.lines:
        row = dict(line.place)
        if line.agents is None:
            row[head] = _mean(line.of_mean)
        else:
            row[f"{head}: agents"] = _mean(line.agents)
            row["mean model"] = _mean(line.of_mean)
        row |= {
            VALUES[name].head.partition(" of ")[0]: _mean(of) for name, of in line.beside.items()
        }
        row |= {
            f"ε {name}": f"{bound(epsilon) if math.isfinite(epsilon) else '∞'}, {status}"
            for name, (epsilon, _, status) in line.epsilons.items()
        }
        row |= line.tuned
        row["n"] = f"{line.of_mean.count}" + (f" ({line.failed} failed)" if line.failed else "")
        row["paper"] = "–" if line.paper is None else _figure(line.paper)
        row["verdict"] = f"{line.verdict.word}: {line.verdict.because}"
        found.append(row)
    return found


def _claim(line: ClaimLine, outcome: Outcome) -> dict[str, str]:
    of_mean = {"mean model": _signed(line.of_mean)}
    return {
        "claim": line.words,
        "where": line.where or "everywhere",
        "better by": _signed(line.difference),
        "95 % interval": f"{_short(line.low)} to {_short(line.high)}",
        **(of_mean if any(one.agents is not None for one in outcome.lines) else {}),
        "n": str(line.difference.count),
        "verdict": f"{line.verdict.word}: {line.verdict.because}",
    }


def _table(rows: Sequence[dict[str, str]]) -> str:
    heads = list(dict.fromkeys(head for row in rows for head in row))
    return markdown_table(heads, ([row.get(head, "") for head in heads] for row in rows))


def _caption(outcome: Outcome) -> str:
    entry = outcome.entry
    words = ["Mean and standard error over n seeds."]
    if any(line.agents is not None for line in outcome.lines):
        words.append(
            "The paper's figure is compared with the mean over the agents' own models, which "
            "papers report; the mean model stands beside."
        )
    deltas = {delta for line in outcome.lines for _, delta, _ in line.epsilons.values()}
    if deltas:
        words.append(f"Epsilon at delta {', '.join(f'{d:g}' for d in sorted(deltas))}.")
    if entry.closed is None and (tune := entry.scales[outcome.scale].tune):
        tried = "; ".join(f"{key}: {len(values)} values" for key, values in tune.items())
        words.append(
            f"Chosen for each line on validation records that its reported runs train on ({tried}),"
            " never on test records; no epsilon counts that choice."
        )
    elif entry.closed is None:
        words.append("Nothing was tuned.")
    sources = dict.fromkeys(line.paper.source for line in outcome.lines if line.paper is not None)
    words += [f"The paper's figures: {plain(source, most=None)}." for source in sources]
    return " ".join(words) + "\n"


def _claims_caption(outcome: Outcome) -> str:
    words = [line.verdict.word for line in outcome.claims]
    counts = ", ".join(f"{words.count(word)} {word}" for word in _WORDS if word in words)
    sources = dict.fromkeys(line.source for line in outcome.claims)
    return (
        "Differences are taken seed by seed, with the standard error of their mean and Student's "
        f"interval. Of {len(words)} lines: {counts}. Where the claims were read: "
        f"{'; '.join(sources)}.\n"
    )


def _mean(mean: Mean) -> str:
    if not mean.count:
        return "–"
    if math.isnan(mean.value):
        return "diverged"
    small = _ROUNDING * abs(mean.value)
    error = (
        "" if math.isnan(mean.error) else f" ± {_short(mean.error if mean.error > small else 0)}"
    )
    return f"{_short(mean.value)}{error}"


_WORDS = ("reproduced", "not reproduced", "not comparable")
_SMALL = 0.1
_ROUNDING = 1e-12  # of a figure; what lies below it is the error of floats


def _signed(mean: Mean) -> str:
    if not mean.count:
        return "–"
    text = _mean(mean)
    return text if text.startswith("-") else f"+{text}"


def _short(value: float) -> str:
    if not math.isfinite(value):
        return "∞" if value > 0 else ("-∞" if value < 0 else "–")
    if abs(value) >= 1:
        return f"{value:.2f}"
    return f"{value:.2g}" if abs(value) < _SMALL else f"{value:.3f}"


def _figure(figure: Figure) -> str:
    if figure.low == figure.high:
        return f"{figure.low:g}"
    return f"{figure.low:g} to {figure.high:g}"


def as_data(outcome: Outcome) -> dict[str, object]:
    """The same for other programs; figures that are not finite are words or None."""
    scale = None if outcome.entry.closed else outcome.entry.scales[outcome.scale]
    return {
        "name": outcome.entry.name,
        "paper": outcome.entry.paper.source,
        "scale": outcome.scale,
        "value": outcome.entry.value,
        "differs": [] if scale is None else list(scale.differs),
        "lines": [_line_data(line) for line in outcome.lines],
        "claims": [without_nan(dataclasses.asdict(line)) for line in outcome.claims],
        "failures": outcome.failures,
    }


def _line_data(line: Line) -> object:
    found = dataclasses.asdict(line)
    found["epsilons"] = {
        name: {"epsilon": epsilon, "delta": delta, "status": status}
        for name, (epsilon, delta, status) in line.epsilons.items()
    }
    return without_nan(found)
