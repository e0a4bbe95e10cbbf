"""Runs side by side: what they cost, what they learn, what was rebuilt and measured.

Every figure is computed anew from its run. What cannot be compared, such as epsilons at different
deltas, stands in the table with its delta and is said to differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean

from ..privacy.errors import InputError
from ..privacy.formats.codec import as_text
from ..privacy.guarantee import Guarantee
from ..privacy.plain_text import markdown_table, markdown_text, plain
from ..runs.audit.evidence_schema import Attack, Audit
from ..runs.folder import folder as run_folder
from ..runs.folder.records import read_metrics
from ..runs.numbers import figure, is_infinite, lower_bound, percent, small
from .document.collect import CheckedRun, read_checked_run
from .judgement.findings import KINDS, Kind, fill, text_of
from .judgement.proofs import against_proofs
from .judgement.wording import plain_sentences
from .references import epsilon_text, template

SCHEMA = 1
_NONE = "–"


@dataclass(frozen=True, kw_only=True, slots=True)
class Accuracy:
    """Test accuracy of the agents at the last evaluation."""

    round: int
    mean: float
    worst: float


@dataclass(frozen=True, kw_only=True, slots=True)
class BestRebuilt:
    """The attack that comes closest on the run's own messages, with its blind guess."""

    psnr: float
    blind_guess_psnr: float | None
    scenario: str
    preset: str
    round: int
    found: str = ""
    """Whether records were rebuilt, or what is shown is an estimate."""
    error: float | None = None
    """Of rows of a table, in place of a PSNR."""
    blind_guess_error: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ComparedRun:
    """One run: what it was, what it costs and learns, and its evidence.

    Attributes:
        run: its folder.
        victim: the only agent whose records the figures are for; None if they are for any record.
        adversaries: the figures, as the ledger of the run gives them.
        contradictions: sentences on what was measured that refutes a proof.
    """

    run: str
    algorithm: str
    form: str
    graph: str
    agents: int
    links: str
    data: str
    model: str
    rounds: int
    rounds_done: int
    sampling_rate: float
    noise_multiplier: float
    evaluation_noise_seed: int | None
    victim: int | None
    adversaries: Sequence[Guarantee]
    accuracy: Accuracy | None
    attack: BestRebuilt | None
    audit: Audit | None
    contradictions: Sequence[str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """Runs in the order that was given, and sentences on what cannot be compared."""

    runs: Sequence[ComparedRun]
    flags: Sequence[str]

    def to_json(self) -> str:
        """One JSON object; infinite figures are the string "inf"."""
        runs = [
            asdict(replace(run, audit=None))
            | {"adversaries": [*map(_row, run.adversaries)], "audit": _audit(run.audit)}
            for run in self.runs
        ]
        return as_text({"schema": SCHEMA, "runs": runs, "flags": self.flags})

    def __str__(self) -> str:
        """The table as Markdown, which notebooks show."""
        return comparison_markdown(self)

    _repr_markdown_ = __str__


def _row(figure_of: Guarantee) -> dict[str, str | float]:
    return {
        "name": figure_of.adversary,
        "epsilon": figure_of.epsilon,
        "status": figure_of.status,
        "delta": figure_of.delta,
        "unit": figure_of.unit_name,
        "adjacency": figure_of.adjacency,
    }


def compare_runs(folders: Sequence[Path]) -> Comparison:
    """What runs have in common and where they differ.

    Args:
        folders: of finished runs, two or more; attacked, audited and reported or not.

    Raises:
        FileNotFoundError: no run is in a folder.
        ValueError: fewer than two folders, or a run was changed after it was written.
    """
    if len(folders) < 2:
        raise InputError(f"{len(folders)} run is given, and a comparison needs 2 or more")
    runs = [_compared(read_checked_run(folder, hold_report=False)) for folder in folders]
    return Comparison(runs=runs, flags=flags_of(runs))


def _compared(run: CheckedRun) -> ComparedRun:
    report, facts = run.report, run.facts
    of = report.run
    against = [finding for finding in against_proofs(facts) if finding.kind.refutes]
    return ComparedRun(
        run=plain(run.folder),
        algorithm=of.algorithm,
        form=of.form,
        graph=of.graph,
        agents=of.agents,
        links=of.links,
        data=of.data,
        model=of.model,
        rounds=of.rounds,
        rounds_done=of.rounds_done,
        sampling_rate=of.sampling_rate,
        noise_multiplier=facts.noise_multiplier,
        evaluation_noise_seed=of.evaluation_noise_seed,
        victim=run.victim,
        adversaries=facts.claims,
        accuracy=_accuracy(run.folder),
        attack=None if report.attack is None else _attack(report.attack),
        audit=report.audit,
        contradictions=[plain_sentences(one, facts) for one in against],
    )


def _accuracy(folder: Path) -> Accuracy | None:
    lines = read_metrics(run_folder.require(folder, run_folder.METRICS))
    held = lines[-1].accuracy if lines else None
    if not held:
        return None
    return Accuracy(round=lines[-1].round, mean=fmean(held), worst=min(held))


def _attack(attack: Attack) -> BestRebuilt | None:
    best: BestRebuilt | None = None
    for scenario in attack.scenarios:
        psnr = {row.name: float(row.mean.psnr) for row in scenario.rows}
        if "defended" in psnr and (best is None or psnr["defended"] > best.psnr):
            errors = {row.name: float(row.mean.mse) for row in scenario.rows if row.columns}
            best = BestRebuilt(
                error=errors.get("defended"),
                blind_guess_error=errors.get("blind guess"),
                psnr=psnr["defended"],
                blind_guess_psnr=psnr.get("blind guess"),
                scenario=scenario.scenario,
                preset=scenario.preset,
                round=scenario.round,
                found=next(row.found_in_all for row in scenario.rows if row.name == "defended"),
            )
    return best


def _measured(audit: Audit | None) -> dict[str, tuple[float, int]]:
    """By adversary the lower bound on epsilon, where there is one, and of how many canaries."""
    every = audit.adversaries if audit else ()
    return {
        row.name: (row.measured_epsilon, row.canaries)
        for row in every
        if row.measured_epsilon is not None
    }


def _audit(audit: Audit | None) -> dict[str, object] | None:
    if audit is None:
        return None
    held = {key: getattr(audit, key) for key in ("verdict", "confidence", "delta", "adjacency")}
    measured = {name: {"epsilon": e, "canaries": n} for name, (e, n) in _measured(audit).items()}
    return {**held, "adversaries": measured}


def flags_of(runs: Sequence[ComparedRun]) -> list[str]:
    """What of the runs cannot be compared, or relied on, in sentences."""
    found = [
        *_differing(runs, "delta", lambda row: small(row.delta)),
        *_differing(runs, "unit", lambda row: row.unit_name),
        *_differing(runs, "adjacency", lambda row: row.adjacency),
    ]
    links, data, model = (
        {one.run: one.links for one in runs},
        {one.run: one.data for one in runs},
        {one.run: one.model for one in runs},
    )
    found += _other("links", links, "the eavesdropper does not see the same")
    found += _other("data", data, "accuracies and attack scores are of different data")
    found += _other("model", model, "accuracies and attack scores are of different models")
    if len({one.victim for one in runs}) > 1:
        found.append(
            "victim differs: some figures are for the records of one agent alone, and the others "
            "for the worst agent's."
        )
    for one in runs:
        if one.evaluation_noise_seed is not None:
            found.append(f"{one.run}: {text_of(fill(KINDS[Kind.SEEDED]))}")
        found += [f"{one.run}: {contradiction}" for contradiction in one.contradictions]
    return [plain(one, most=None) for one in found]


def _differing(
    runs: Sequence[ComparedRun], what: str, shown: Callable[[Guarantee], str]
) -> Iterator[str]:
    by_run = {one.run: ", ".join(sorted({shown(row) for row in one.adversaries})) for one in runs}
    if len(set(by_run.values())) > 1:
        each = ", ".join(f"{run}: {value}" for run, value in by_run.items())
        yield f"{what} differs ({each}), so their epsilons cannot be compared."


def _other(what: str, of_runs: Mapping[str, str], why: str) -> list[str]:
    if len(set(of_runs.values())) < 2:
        return []
    each = ", ".join(f"{run}: {value}" for run, value in of_runs.items())
    return [f"{what} differs ({each}): {why}."]


def rows_of(runs: Sequence[ComparedRun]) -> list[tuple[str, list[str]]]:
    """The table: a head and a cell for each run, in every row."""
    # Adversaries of any of the runs have a row.
    adversaries = dict.fromkeys(row.adversary for run in runs for row in run.adversaries)
    audited = dict.fromkeys(name for run in runs for name in _measured(run.audit))
    rows: list[tuple[str, Callable[[ComparedRun], str]]] = [
        ("algorithm", lambda one: f"{one.algorithm}, {one.form}"),
        ("graph", lambda one: f"{one.graph}, {one.agents} agents, links {one.links}"),
        ("data and model", lambda one: f"{one.data}, {one.model}"),
        ("rounds", _rounds),
        ("sampling rate", lambda one: figure(one.sampling_rate)),
        ("noise multiplier", lambda one: figure(one.noise_multiplier, 4)),
        ("unit and adjacency", _unit),
        *((f"epsilon: {name}", _epsilon_cell(name)) for name in adversaries),
        (
            "test accuracy, mean of agents",
            lambda one: _NONE if one.accuracy is None else percent(one.accuracy.mean),
        ),
        (
            "test accuracy, worst agent",
            lambda one: _NONE if one.accuracy is None else percent(one.accuracy.worst),
        ),
        ("closest attack, defence on", _rebuilt),
        ("blind guess beside it", _guessed),
        ("audit", lambda one: one.audit.verdict if one.audit else "not audited"),
        *((f"measured epsilon: {name}", _measured_cell(name)) for name in audited),
    ]
    return [(plain(head), [plain(cell(run), most=None) for run in runs]) for head, cell in rows]


def _rounds(one: ComparedRun) -> str:
    done, planned = one.rounds_done, one.rounds
    return str(planned) if done == planned else f"{done} of {planned}"


def _unit(one: ComparedRun) -> str:
    found = dict.fromkeys(f"{row.unit_name}, {row.adjacency}" for row in one.adversaries)
    return "; ".join(found) or _NONE


def _epsilon_cell(name: str) -> Callable[[ComparedRun], str]:
    def cell(one: ComparedRun) -> str:
        row = next((row for row in one.adversaries if row.adversary == name), None)
        if row is None:
            return "not accounted for"
        shown = epsilon_text(row.epsilon, upper=row.is_bound)
        if is_infinite(row.epsilon):
            return f"{shown}: {row.status}"
        return f"{shown} at delta {small(row.delta)}, {row.status}"

    return cell


def _measured_cell(name: str) -> Callable[[ComparedRun], str]:
    def cell(one: ComparedRun) -> str:
        audit = one.audit
        if audit is None or (found := _measured(audit).get(name)) is None:
            return _NONE
        return (
            f"≥ {lower_bound(found[0])} at delta {small(audit.delta)}, {found[1]} "
            f"canaries, confidence {audit.confidence:g}"
        )

    return cell


def _rebuilt(one: ComparedRun) -> str:
    found = one.attack
    if found is None:
        return "not attacked"
    by = f"{found.scenario} by {found.preset}, round {found.round}"
    how = f"{found.found}; {by}" if found.found else by
    if found.error is not None:
        return f"error {figure(found.error)} of a record ({how})"
    return f"{figure(found.psnr)} dB PSNR ({how})"


def _guessed(one: ComparedRun) -> str:
    found = one.attack
    if found is None or found.blind_guess_psnr is None:
        return _NONE
    if found.blind_guess_error is not None:
        return f"error {figure(found.blind_guess_error)} of a record"
    return f"{figure(found.blind_guess_psnr)} dB PSNR"


# A comparison as Markdown and as one HTML page without a script.


def comparison_markdown(found: Comparison) -> str:
    """A comparison as a Markdown table, with what cannot be compared below it."""
    heads = ["run", *(markdown_text(one.run) for one in found.runs)]
    table = markdown_table(heads, [(head, *row) for head, row in rows_of(found.runs)])
    flags = "".join(f"- {markdown_text(flag)}\n" for flag in found.flags)
    return f"{table}\n{flags}" if flags else table


def comparison_html(found: Comparison) -> str:
    """A comparison as a page, complete in itself."""
    return template(__package__ or "overhear.reports", "compare.html").render(
        names=[plain(one.run) for one in found.runs], rows=rows_of(found.runs), flags=found.flags
    )
