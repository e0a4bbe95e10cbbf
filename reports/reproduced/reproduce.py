"""Run an entry at a scale by the engine of sweeps, and hold what comes out against the paper.

DIR/     the folder of a sweep: sweep.toml, points/, results/, ...; `table` and `plot` read it
DIR/reproduction.json, DIR/reproduction.md     the lines beside the paper's, and the verdicts
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ...privacy.errors import InputError, Progress
from ...privacy.files import SHOWN, check_links, write_durably
from ...privacy.formats.codec import finite, read_json
from ...privacy.plain_text import markdown_table, markdown_text, plain
from ...runs.described import LARGEST_OBJECT
from ...runs.numbers import bound
from ...runs.requests import ReproduceRequest
from ...runs.stop import Stop
from ...runs.sweep.engine import Engine
from ...runs.sweep.sweep import run_sweep
from ...runs.sweep.sweep_file import SWEEP, settings_words
from ..sweep.cells import ATTACK, Cells, Mean, mean_of
from ..sweep.table import VALUES, Cell, figures_of, results_of, sweep_table
from . import verdicts
from .paper_result import (
    LEAST_SEEDS,
    METRIC,
    Computed,
    Entry,
    Figure,
    Scale,
    ScaleName,
    Trend,
    cells_of,
    printed_figures,
    read_figures,
)
from .work_estimates import part_of, sweep_of

# What a reproduction came to: its lines beside the paper's figures, and its claims.


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """A line of the table or figure.

    Attributes:
        place: its settings, by swept key.
        of_mean: of the mean model, of the attack, or of the closed form.
        agents: of the mean over agents; None where there is no such figure.
        paper: the paper's figure; None where it is not at hand.
        verdict: on that figure, of the mean over agents where there is one.
        epsilons: by adversary the largest epsilon over its runs, its delta and its status.
        tuned: what was chosen for it.
        failed: how many runs failed.
        beside: other scores of an attack, by name.
        printed: the paper's figures of these.
    """

    place: Mapping[str, str]
    of_mean: Mean
    agents: Mean | None
    paper: Figure | None
    verdict: verdicts.Verdict
    epsilons: Mapping[str, tuple[float, float, str]] = field(default_factory=dict)
    tuned: Mapping[str, str] = field(default_factory=dict)
    failed: int = 0
    beside: Mapping[str, Mean] = field(default_factory=dict)
    printed: Mapping[str, Figure] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What a reproduction came to.

    Attributes:
        lines: in the order of the sweep.
        claims: each at every place.
        failures: runs that failed, in sentences.
        cells: how many cells have a run, of how many; None of a closed form.
        seeds: the least and the most seeds of these cells, and those of the whole table.
        unattacked: scores of the attacked records that take no attack, by guess and score.
        left_out: figures of a file that are of no line at this scale, or other than the entry's
            own, in sentences.
    """

    entry: Entry
    scale: ScaleName
    lines: list[Line]
    claims: list[verdicts.ClaimLine]
    failures: list[str] = field(default_factory=list)
    cells: tuple[int, int] | None = None
    seeds: tuple[int, int, int] = (0, 0, 0)
    unattacked: Mapping[str, Mapping[str, Mean]] = field(default_factory=dict)
    left_out: str = ""

    @property
    def differs(self) -> Sequence[str]:
        """What is not as in the paper."""
        return () if self.entry.closed else self.entry.scales[self.scale].differs

    @property
    def stands(self) -> str:
        """How much of the table stands, in words."""
        if self.cells is None:
            return ""
        least, most, every = self.seeds
        seeds = f"{least}" if least == most else f"{least} to {most}"
        of = "" if (least, most) == (every, every) else f" of {every}"
        return f"{self.cells[0]} of {self.cells[1]} cells, {seeds}{of} seeds"


def outcome_of(entry: Entry, name: ScaleName, out: Path, *, figures: Sequence[Figure]) -> Outcome:
    """What the sweep of a scale came to, in its folder.

    Raises:
        ValueError: every run failed.
    """
    # The table of the sweep, by the columns that this scale has.
    scale = entry.scales[name]
    columns = [key for key in entry.columns if key in scale.grid]
    results = results_of(out)
    if results and all(result.state == "failed" for result in results):
        raise InputError(
            f"every run of {entry.name} failed, the first because {results[0].error}; mend that, "
            "and add --retry"
        )
    table = sweep_table(out, value=entry.value, columns=columns)
    # A line for each cell, or for each attack on it, with its figures seed by seed.
    lines, seeds, counts = list[Line](), list[verdicts.Seeds](), list[int]()
    for cell in table.cells:
        place = {key: {**cell.column, **cell.row}[key] for key in scale.grid}
        of = [result for result in results if result.settings == place]
        counts += [done] if (done := sum(result.state == "done" for result in of)) else []
        if scale.attack:
            for line in verdicts.attacked_lines(out, of, convention=entry.convention):
                at = {**place, ATTACK: line.name}
                scores = {name: mean_of(list(by.values())) for name, by in line.scores.items()}
                own = line.scores[entry.value]
                seeds.append(verdicts.Seeds(place=at, compared=own, of_mean=own))
                attacked = replace(cell, mean=scores.pop(entry.value), agents=None)
                found = _line(attacked, at, entry=entry, scale=scale, figures=figures)
                of_scores = [one for one in figures if METRIC in one.place]
                printed = {
                    score: one
                    for score in scores
                    if (one := verdicts.figure_of(of_scores, {**at, METRIC: score})) is not None
                }
                lines.append(replace(found, beside=scores, printed=printed))
            continue
        own, agents = figures_of(out, of, entry.value)
        seeds.append(verdicts.Seeds(place=place, compared=agents or own, of_mean=own))
        lines.append(_line(cell, place, entry=entry, scale=scale, figures=figures))
    return Outcome(
        entry=entry,
        scale=name,
        lines=lines,
        claims=verdicts.claim_lines(entry, seeds, more=_is_more(entry), scale=scale),
        failures=[
            f"{settings_words(result.settings)}, seed {result.seed}: {result.error}"
            for result in results
            if result.state == "failed"
        ],
        cells=(len(counts), math.prod(map(len, scale.grid.values()))),
        seeds=(min(counts), max(counts), scale.seeds),
        unattacked=verdicts.unattacked_scores(out, results, convention=entry.convention),
    )


def _line(
    cell: Cell, place: Mapping[str, str], *, entry: Entry, scale: Scale, figures: Sequence[Figure]
) -> Line:
    paper = verdicts.figure_of(figures, place)
    ours = cell.agents or cell.mean
    verdict = verdicts.figure_verdict(paper, ours, within=entry.within, scale=scale)
    if cell.contradicted and paper is not None:
        verdict = verdicts.not_comparable("a run measured more than is proven")
    return Line(
        place=place,
        of_mean=cell.mean,
        agents=cell.agents,
        paper=paper,
        verdict=verdict,
        epsilons={s.adversary: (s.epsilon, s.delta, cell.status(s)) for s in cell.spent},
        tuned=cell.tuned,
        failed=cell.failed,
    )


def outcome_of_closed_form(
    entry: Entry, name: ScaleName, computed: Sequence[Computed], *, figures: Sequence[Figure]
) -> Outcome:
    """The same of lines that a closed form gives."""
    seeds = [
        verdicts.Seeds(place=one.place, compared=one.values, of_mean=one.values) for one in computed
    ]
    lines = []
    for one in computed:
        ours, paper = mean_of(list(one.values.values())), verdicts.figure_of(figures, one.place)
        verdict = verdicts.figure_verdict(paper, ours, within=entry.within, scale=None)
        lines.append(Line(place=one.place, of_mean=ours, agents=None, paper=paper, verdict=verdict))
    claims = verdicts.claim_lines(entry, seeds, more=_is_more(entry))
    return Outcome(entry=entry, scale=name, lines=lines, claims=claims)


# A reproduction as Markdown, and as data for other programs.


def as_markdown(outcome: Outcome) -> str:
    """The lines beside the paper's, the claims, and what was done, as Markdown."""
    entry, parts = outcome.entry, list[str]()
    parts.append(f"## {entry.paper.name}, {entry.title}\n")
    stands = f": {outcome.stands}" if outcome.stands else ""
    parts.append(f"`{entry.name}` at scale {outcome.scale}{stands}. {entry.paper.source}.\n")
    if entry.reading:
        parts.append(f"{entry.reading}\n")
    if outcome.differs:
        parts.append("Not as in the paper:\n\n" + "".join(f"- {one}\n" for one in outcome.differs))
    parts.append(_table(_lines(outcome)))
    parts.append(_caption(outcome))
    parts += ["".join(f"- {one}\n" for one in found)] if (found := _facts(outcome)) else []
    if outcome.unattacked:
        rows = [
            {"no attack": name} | {_score_head(score): _mean(of) for score, of in scores.items()}
            for name, scores in outcome.unattacked.items()
        ]
        parts.append(_table(rows))
        parts.append(
            "Of the same records, without any message: scores no better than these say nothing of "
            "what leaks.\n"
        )
    if outcome.claims:
        parts.append(_table([_claim(claim, outcome) for claim in outcome.claims]))
        parts.append(_claims_caption(outcome))
    if outcome.failures:
        told = "".join(f"- {plain(failure, most=None)}\n" for failure in outcome.failures)
        parts.append(f"{len(outcome.failures)} runs failed and are left out:\n\n{told}")
    return "\n".join(parts)


def _facts(outcome: Outcome) -> list[str]:
    """What holds of the printed figures, and who is first in the paper and here, in sentences."""
    keys = [claim.key for claim in outcome.entry.claims if not isinstance(claim, Trend)]
    lines = [(one.place, (one.agents or one.of_mean).value, one.paper) for one in outcome.lines]
    firsts = verdicts.firsts_of(lines, keys[0], more=_is_more(outcome.entry)) if keys else ""
    if not firsts:
        return list(outcome.entry.facts)
    where = ", here in another setting" if outcome.differs else ""
    told = f"First by means in each cell that has figures of both{where}: {firsts}."
    if (least := min(line.of_mean.count for line in outcome.lines)) < LEAST_SEEDS:
        told += f" With n = {least} this tells no order."
    return [*outcome.entry.facts, told]


def _is_more(entry: Entry) -> bool:
    """Whether more is better of what an entry is about."""
    return VALUES[entry.value].more is not False if entry.value in VALUES else entry.more


def _lines(outcome: Outcome) -> list[dict[str, str]]:
    found, value = [], outcome.entry.value
    head = _score_head(value) if value in VALUES else value
    for line in outcome.lines:
        row = dict(line.place)
        own = line.agents is not None
        row[f"{head}: agents" if own else head] = _mean(line.agents or line.of_mean)
        row |= {"mean model": _mean(line.of_mean)} if own else {}
        row["paper"] = _figure(line.paper)
        for name, of in line.beside.items():
            row[_score_head(name)] = _mean(of)
            if any(name in one.printed for one in outcome.lines):
                row[f"{_score_head(name)}: paper"] = _figure(line.printed.get(name))
        row |= _judged(line.verdict)
        row |= {f"ε {name}": "" for one in outcome.lines for name in one.epsilons}
        row |= {
            f"ε {name}": f"{bound(epsilon) if math.isfinite(epsilon) else '∞'}, {status}"
            for name, (epsilon, _, status) in line.epsilons.items()
        }
        row |= line.tuned
        row["n"] = f"{line.of_mean.count}" + (f" ({line.failed} failed)" if line.failed else "")
        found.append(row)
    return found


def _judged(verdict: verdicts.Verdict) -> dict[str, str]:
    return {"verdict": f"{verdict.word}: {verdict.because}", "here": verdict.here}


def _score_head(name: str) -> str:
    return VALUES[name].head.replace(" of the defended attack", "")


def _claim(line: verdicts.ClaimLine, outcome: Outcome) -> dict[str, str]:
    of_mean = {"mean model": _signed(line.of_mean)}
    return {
        "claim": line.words,
        **line.where,
        "better by": _signed(line.difference),
        "95 % interval": f"{_short(line.low)} to {_short(line.high)}",
        **(of_mean if any(one.agents is not None for one in outcome.lines) else {}),
        "n": str(line.difference.count),
        **_judged(line.verdict),
    }


def _table(rows: Sequence[dict[str, str]]) -> str:
    """A table, below a sentence with the columns that are the same in every line."""
    cells = {head: [row.get(head, "") for row in rows] for row in rows for head in row}
    same = {h: of[0] for h, of in cells.items() if not any(of) or len(of) > len(set(of)) == 1}
    shared = "; ".join(f"{h} = {markdown_text(text)}" for h, text in same.items() if text)
    kept = {head: of for head, of in cells.items() if head not in same}
    table = markdown_table(list(kept), zip(*kept.values(), strict=True))
    return f"In every line {shared}.\n\n{table}" if shared else table


def _caption(outcome: Outcome) -> str:
    entry = outcome.entry
    words = ["Mean and standard error over n seeds."]
    if any(line.agents and line.paper for line in outcome.lines):
        words.append(
            "The paper's figure is compared with the mean over the agents' own models, which "
            "papers report; the mean model stands beside."
        )
    if deltas := {delta for line in outcome.lines for _, delta, _ in line.epsilons.values()}:
        words.append(f"Epsilon at delta {', '.join(f'{d:g}' for d in sorted(deltas))}.")
    if entry.closed is None and (tune := entry.scales[outcome.scale].tune):
        tried = "; ".join(f"{key}: {len(values)} values" for key, values in tune.items())
        words.append(
            f"Chosen for each line on validation records that its reported runs train on ({tried}),"
            " never on test records; no epsilon counts that choice."
        )
    elif entry.closed is None:
        words.append("Nothing was tuned in these runs.")
    sources = dict.fromkeys(line.paper.source for line in outcome.lines if line.paper is not None)
    words += [outcome.left_out] if outcome.left_out else []
    words += [f"The paper's figures: {plain(source, most=None)}." for source in sources]
    if any(line.paper is not None and line.paper.spread is not None for line in outcome.lines):
        words.append("The paper does not tell whether its ± is a deviation or an error.")
    return " ".join(words) + "\n"


def _claims_caption(outcome: Outcome) -> str:
    words = Counter(line.verdict.word for line in outcome.claims)
    counts = ", ".join(f"{count} {word}" for word, count in words.items())
    sources = dict.fromkeys(line.source for line in outcome.claims)
    return (
        "Differences are taken seed by seed, with the standard error of their mean and Student's "
        f"interval. Of {len(outcome.claims)} lines: {counts}. Where the claims were read: "
        f"{'; '.join(sources)}.\n"
    )


def _mean(mean: Mean) -> str:
    if not mean.count:
        return "–"
    if math.isnan(mean.value):
        return "diverged"
    if math.isnan(mean.error):
        return _short(mean.value)
    error = mean.error if mean.error > _ROUNDING * abs(mean.value) else 0.0
    return f"{_short(mean.value)} ± {_short(error)}"


_SMALL = 0.1
_ROUNDING = 1e-12  # of a figure; what lies below it is the error of floats


def _signed(mean: Mean) -> str:
    text = _mean(mean)
    return text if text[0] in "-–" else f"+{text}"


def _short(value: float) -> str:
    if not math.isfinite(value):
        return "∞" if value > 0 else ("-∞" if value < 0 else "–")
    if abs(value) >= 1:
        return f"{value:.2f}"
    return f"{value:.2g}" if abs(value) < _SMALL else f"{value:.3f}"


def _figure(figure: Figure | None) -> str:
    if figure is None:
        return "none for this setting"
    if figure.low == figure.high:
        return f"{figure.low:g}" + ("" if figure.spread is None else f" ± {figure.spread:g}")
    return f"{figure.low:g} to {figure.high:g}"


def as_data(outcome: Outcome) -> dict[str, object]:
    """The same for other programs; figures that are not finite are words or None."""
    return {
        "name": outcome.entry.name,
        "paper": outcome.entry.paper.source,
        "scale": outcome.scale,
        "value": outcome.entry.value,
        "facts": _facts(outcome),
        "differs": list(outcome.differs),
        "cells": outcome.cells,
        "seeds": outcome.seeds,
        "lines": [_line_data(line) for line in outcome.lines],
        "unattacked": finite(dataclasses.asdict(outcome)["unattacked"], undefined=None),
        "claims": finite(list(map(dataclasses.asdict, outcome.claims)), undefined=None),
        "failures": outcome.failures,
    }


def _line_data(line: Line) -> object:
    found = dataclasses.asdict(line)
    of = ("epsilon", "delta", "status")
    found["epsilons"] = {k: dict(zip(of, v, strict=True)) for k, v in line.epsilons.items()}
    return finite(found, undefined=None)


_DATA, _TEXT = "reproduction.json", "reproduction.md"


def reproduce(
    entry: Entry,
    name: ScaleName,
    out: Path,
    request: ReproduceRequest | None = None,
    *,
    engine: Engine | None = None,
    progress: Progress | None = None,
    stop: Stop | None = None,
) -> Outcome:
    """Run what has not ended yet, and compare all that stands in the folder.

    Args:
        out: the folder; goes on where it stopped, and takes further cells and seeds.
        request: what is run of the table; by default all of it.
        engine: where runs are computed; by default on all cores of this machine.
        progress: called with (done, total, what) after each run.
        stop: asked to stop, it ends; what is done is kept.

    Raises:
        FileExistsError: the folder holds something else.
        FileNotFoundError: data are not at hand.
        ValueError: the entry does not have a cell or seeds, or a file of figures does not fit.
        Interrupted: it was asked to stop.
    """
    request = request or ReproduceRequest()
    only = part_of(entry, name, request.cell, request.seeds)
    _check_folder(entry, name, out)
    if entry.closed is not None:
        computed = entry.closed(name)
        held, left_out = _figures(request.figures, cells_of(entry, name, computed), entry)
        outcome = outcome_of_closed_form(entry, name, computed, figures=held)
        out.mkdir(parents=True, exist_ok=True)
    else:
        verdicts.check_data(entry.name, entry.scales[name])
        sweep, base = sweep_of(entry, name)
        held, left_out = _figures(request.figures, cells_of(entry, name), entry)
        run_sweep(
            sweep,
            base,
            out,
            only=only,
            engine=engine,
            retry=request.retry,
            progress=progress,
            stop=stop,
        )
        outcome = outcome_of(entry, name, out, figures=held)
    exchanged = _exchanged(outcome, held)
    outcome = replace(outcome, left_out=" ".join(filter(None, (left_out, exchanged))))
    data = json.dumps(as_data(outcome), indent=2, ensure_ascii=False, allow_nan=False)
    write_durably(out / _DATA, f"{data}\n".encode(), mode=SHOWN)
    write_durably(out / _TEXT, as_markdown(outcome).encode(), mode=SHOWN)
    return outcome


def _figures(path: Path | None, cells: Cells, entry: Entry) -> tuple[list[Figure], str]:
    """Those of a file of the user, before those that the paper prints."""
    printed = printed_figures(cells, entry)
    if path is None:
        return list(printed), ""
    of = entry.printed.of if entry.printed else {}
    own, left_out = read_figures(path, cells, value=entry.value, of=of)
    return [*(replace(one, own=True) for one in own), *printed], left_out


def _exchanged(outcome: Outcome, figures: Sequence[Figure]) -> str:
    """How many lines have a user's figure that is another one than the entry's, in a sentence."""
    found = list[str]()
    for line in outcome.lines:
        for score, own in {"": line.paper, **line.printed}.items():
            printed = [o for o in figures if not o.own and o.place.get(METRIC, "") == score]
            known = verdicts.figure_of(printed, {**line.place, METRIC: score})
            if known and own and (known.low, known.high) != (own.low, own.high):
                found.append(f"{_figure(own)} in place of {_figure(known)} of {known.source}")
    told = f"Figures of the file that are not the entry's: {len(found)}, the first"
    return f"{told} {found[0]}." if found else ""


def _check_folder(entry: Entry, name: ScaleName, out: Path) -> None:
    """Refuse the folder of another reproduction, or of anything else."""
    if out.exists() and not out.is_dir():
        raise FileExistsError(f"{out} is a file; name a folder for the reproduction")
    check_links(out)
    path = out / _DATA
    if path.is_file():
        try:
            held = read_json(path, LARGEST_OBJECT)
            there = f"{held['name']} at scale {held['scale']}"
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"{path} cannot be read; remove it, and it is made again") from error
        if there != f"{entry.name} at scale {name}":
            raise FileExistsError(
                f"{out} holds {there}; choose another folder for {entry.name} at scale {name}"
            )
        return
    if entry.closed is not None and out.is_dir() and (held := sorted(out.iterdir())):
        what = "a sweep" if (out / SWEEP).is_file() else held[0].name
        raise FileExistsError(f"{out} holds {what}; choose another folder for {entry.name}")
