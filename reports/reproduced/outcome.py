"""What a reproduction came to: its lines beside the paper's figures, and its claims."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ...privacy.errors import InputError
from ..reproductions.entry import Computed, Entry, Figure, Scale, ScaleName
from ..sweep.statistics import Mean, mean_of
from ..sweep.table import VALUES, Cell, figures_of, results_of, sweep_table
from .attacked import ATTACK, attacked_lines
from .verdicts import ClaimLine, Seeds, Verdict, claim_lines, figure_of, figure_verdict

__all__ = ["Line", "Outcome", "outcome_of", "outcome_of_closed_form"]


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
    """

    place: Mapping[str, str]
    of_mean: Mean
    agents: Mean | None
    paper: Figure | None
    verdict: Verdict
    epsilons: Mapping[str, tuple[float, float, str]] = field(default_factory=dict)
    tuned: Mapping[str, str] = field(default_factory=dict)
    failed: int = 0
    beside: Mapping[str, Mean] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What a reproduction came to.

    Attributes:
        entry: what was reproduced.
        scale: at which scale.
        lines: in the order of the sweep.
        claims: each at every place.
        failures: runs that failed, in sentences.
    """

    entry: Entry
    scale: ScaleName
    lines: list[Line]
    claims: list[ClaimLine]
    failures: list[str] = field(default_factory=list)


def outcome_of(entry: Entry, name: ScaleName, out: Path, *, figures: Sequence[Figure]) -> Outcome:
    """What the sweep of a scale came to, in its folder.

    Args:
        entry: what was run.

    Raises:
        ValueError: every run failed.
    """
    scale = entry.scales[name]
    columns = [key for key in entry.columns if key in scale.grid]
    results = results_of(out)
    if results and all(one.state == "failed" for one in results):
        raise InputError(
            f"every run of {entry.name} failed, the first because {results[0].error}; mend that, "
            "and add --retry"
        )
    table = sweep_table(out, value=entry.value, columns=columns)
    lines, seeds = list[Line](), list[Seeds]()
    for cell in table.cells:
        place = {key: {**cell.column, **cell.row}[key] for key in scale.grid}
        of = [one for one in results if one.settings == place]
        if scale.attack:
            for line in attacked_lines(out, of):
                at = {**place, ATTACK: line.name}
                scores = {name: mean_of(list(by.values())) for name, by in line.scores.items()}
                own = line.scores[entry.value]
                seeds.append(Seeds(place=at, compared=own, of_mean=own))
                attacked = replace(cell, mean=scores.pop(entry.value), agents=None)
                found = _line(attacked, at, entry=entry, scale=scale, figures=figures)
                lines.append(replace(found, beside=scores))
            continue
        own, agents = figures_of(out, of, entry.value)
        seeds.append(Seeds(place=place, compared=agents or own, of_mean=own))
        lines.append(_line(cell, place, entry=entry, scale=scale, figures=figures))
    return Outcome(
        entry=entry,
        scale=name,
        lines=lines,
        claims=claim_lines(entry, seeds, more=VALUES[entry.value].more is not False),
        failures=[
            ", ".join(f"{k}={v}" for k, v in one.settings.items())
            + f", seed {one.seed}: {one.error}"
            for one in results
            if one.state == "failed"
        ],
    )


def _line(
    cell: Cell,
    place: Mapping[str, str],
    *,
    entry: Entry,
    scale: Scale,
    figures: Sequence[Figure],
) -> Line:
    paper = figure_of(figures, place)
    ours = cell.agents or cell.mean
    verdict = figure_verdict(paper, ours, within=entry.within, scale=scale)
    if cell.contradicted and paper is not None:
        verdict = Verdict(word="not comparable", because="a run measured more than is proven")
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
    seeds = [Seeds(place=one.place, compared=one.values, of_mean=one.values) for one in computed]
    lines = []
    for one in computed:
        ours, paper = mean_of(list(one.values.values())), figure_of(figures, one.place)
        verdict = figure_verdict(paper, ours, within=entry.within, scale=None)
        lines.append(Line(place=one.place, of_mean=ours, agents=None, paper=paper, verdict=verdict))
    claims = claim_lines(entry, seeds, more=entry.more)
    return Outcome(entry=entry, scale=name, lines=lines, claims=claims)
