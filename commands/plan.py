"""What is asked of a run before it is trained.

`plan`: a table, what leaks and what would fix it, or a sweep of plans. `check-account`: its
figures, checked against a second tracer. `design`: kinds of noise for a run file at equal epsilon.
"""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .terminal import terminal

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from ..privacy.guarantee import Guarantee
    from ..reports.judgement.gate import Decision
    from ..reports.judgement.remedies import Advice
    from ..runs.plan.plan import Plan
    from ..runs.plan.schema import Compared, Row
    from ..runs.readiness import Readiness
    from ..runs.run_file.run_file import RunFile
    from ..training.accounts.traced_twice import TracedTwice


_LEAKS = ("leak", "within")
_NOTES = ("no-target",)
_SECONDS_TRACED = 10.0  # of a second tracer, with --check


@dataclass(frozen=True, kw_only=True)
class PlanRequest:
    """What is asked of a plan, or of several."""

    overrides: Annotated[Sequence[str], "--set table.key=value"] = ()
    """Override a key of the run file; may be repeated."""
    sweeps: Annotated[Sequence[str], "--sweep table.key=a,b,c"] = ()
    """Plan every combination of these values, as one table; may be repeated."""
    every_agent: bool = False
    """Give epsilon for the records of every agent, as JSON."""
    strict: bool = False
    """Exit with 3 unless every figure is proven and the target is met."""
    check: bool = False
    """Build data and model too, refuse what train would refuse, and trace twice."""
    out: Annotated[Path | None, "DIR"] = None
    """Folder that train would write, which --check looks at."""
    recipients: Annotated[int | None, "AGENT"] = None
    """Say what each agent could learn about a record of AGENT, by distance."""
    statement: bool = False
    """Print a paragraph to paste, and nothing else."""


def plan(
    run: terminal.RunPath,
    asked: PlanRequest,
    *,
    trust_code: terminal.TrustCode = False,
    format: terminal.FormatOfTable = terminal.TextFormat.TABLE,
) -> None:
    """Plan a run: its noise, and epsilon for every adversary.

    Nothing is trained. The exit code is 2 on bad input, or with --check if train would refuse the
    run. With --strict it is 3 if a requested figure is not proven, or a target is missed.
    It is 4 if another library, or with --check a second tracer, contradicts a figure.
    """
    from ..privacy.errors import InputError
    from ..runs.run_file.run_file import load_run_file
    from ..runs.stop import tell

    gc.set_threshold(20_000, 20)  # modules are no garbage, and a plan makes little of it
    # Options that say nothing together.
    terminal.trust(trust_code)
    sweeps, every_agent, check = asked.sweeps, asked.every_agent, asked.check
    json = format is terminal.TextFormat.JSON
    if every_agent and (sweeps or not json):
        raise InputError(
            "--every-agent adds to the JSON of one plan; give --format json, and no --sweep"
        )
    if sweeps and (asked.strict or check):
        raise InputError("--strict and --check are about one plan; leave --sweep out")
    if asked.out is not None and not check:
        raise InputError("--out names the folder that --check looks at; give --check too")
    if asked.recipients is not None and (sweeps or asked.statement or every_agent):
        raise InputError("--recipients is about one plan; leave the other options but --format out")
    if asked.statement and (sweeps or format is not terminal.TextFormat.TABLE):
        raise InputError("--statement prints a paragraph; leave --format and --sweep out")
    if sweeps:
        _show_sweep(run, sweeps, asked.overrides, format=format)
        return
    if format is terminal.TextFormat.MARKDOWN:
        raise InputError("--format markdown prints a sweep; give --sweep table.key=a,b,c too")
    config, ready = load_run_file(run, asked.overrides, notice=tell), None
    from .terminal.progress import waiting

    told = terminal.make_console(stderr=True)
    with waiting(told, "plan", "loading what traces the algorithm"):
        # Only now: a bad run file is told without torch, and its import takes a while.
        from ..reports.judgement.remedies import advise
        from ..runs.errors import ContradictedProof
        from ..runs.plan.opinions import contradiction, with_opinions
        from ..runs.plan.plan import make_plan
        from .terminal.tables import second_opinions

    def notice(text: str) -> None:
        terminal.say(told, text)

    if check:
        from ..runs.readiness import check_ready

        ready = check_ready(config, out=asked.out, notice=notice)
    with waiting(told, "plan", "tracing the algorithm, and adding up its rounds"):
        planned = (
            make_plan(config, every_agent=every_agent, notice=notice)
            if ready is None
            else ready.plan
        )
    if ready is not None and every_agent:
        planned = make_plan(config, every_agent=True)
    advice = advise(config, planned)
    # A decision and a second trace, where these are asked for.
    decision = None
    if asked.strict:
        from ..reports.judgement.facts import facts_of_plan
        from ..reports.judgement.gate import decide_plan

        decision = decide_plan(facts_of_plan(config, planned))
    traced: dict[str, TracedTwice] = {}
    if check:
        from ..runs.plan.opinions import second_traces

        with waiting(told, "plan", "tracing the algorithm a second time, by other code"):
            traced = second_traces(config, planned, seconds=_SECONDS_TRACED)
    # What other libraries find, and what each recipient could learn.
    described = with_opinions(planned)
    found, opinions = described.dump(), described.second_opinion or {}
    far = None
    if asked.recipients is not None:
        from ..runs.plan.recipients import recipients as recipients_of

        far = recipients_of(config, planned, asked.recipients)
    # One object of JSON, one paragraph, or tables.
    if json:
        said: dict[str, object] = {} if far is None else {"recipients": far.dump()}
        if ready is not None:
            verdicts = {name: str(one.verdict) for name, one in traced.items()}
            items = {} if ready.items is None else {"items": ready.items.dump()}
            shown = {"attack": ready.attack, "audit": ready.audit, "traced": verdicts}
            said["check"] = shown | items
        if decision is not None:
            said["strict"] = {k: v for k, v in decision.dump().items() if k != "outcome"}
        terminal.print_json(found | {"advice": [one.to_json() for one in advice]} | said)
    elif asked.statement:
        terminal.write(planned.statement())
    else:
        _show_plan(
            found,
            described.adversaries,
            advice,
            terminal.make_console(),
            opinions=second_opinions(opinions),
        )
        if far is not None:
            from .terminal.tables import show_recipients

            show_recipients(far, terminal.make_console())
        if ready is not None:
            _show_ready(ready)
            _show_traced(traced)
    # Contradictions end the command after all is shown.
    if contradicted := contradiction(opinions):
        raise ContradictedProof(contradicted)
    if traced:
        from ..runs.plan.opinions import contradicted_trace

        if contradicted := contradicted_trace(traced):
            raise ContradictedProof(contradicted)
    if decision is not None:
        _refuse(decision)


def _refuse(decision: Decision) -> None:
    """Say on standard error which figures do not pass, and end with the exit code."""
    console = terminal.make_console(stderr=True)
    for requirement in decision.requirements:
        if requirement.outcome.value != "passed":
            terminal.say(console, f"Not passed, {requirement.name}: {requirement.sentence}")
    if decision.exit_code:
        raise typer.Exit(decision.exit_code)


def _show_ready(ready: Readiness) -> None:
    console = terminal.make_console()
    console.print()
    terminal.say(console, "Checked: train would begin this run")
    if (items := ready.items) is not None and items.left_out:
        terminal.say_indented(
            console,
            f"{items.left_out} records were left out, one at a time: the items of the others stay "
            "the same",
        )
    for command, why in (("attack", ready.attack), ("audit", ready.audit)):
        if why is not None:
            terminal.say_indented(console, f"overhear {command} would refuse it: {why}")


def _show_traced(traced: Mapping[str, TracedTwice]) -> None:
    """A line for each verdict of the second tracer, with its adversaries."""
    from ..runs.plan.opinions import trace_words
    from .terminal.tables import by_words

    for words, names in by_words((trace_words(one), name) for name, one in traced.items()):
        terminal.say(terminal.make_console(), f"second tracer on {names}: {words}")


def _show_plan(
    found: Mapping[str, Any],
    rows: Sequence[Guarantee],
    advice: Sequence[Advice],
    console: Console,
    *,
    opinions: Sequence[str],
) -> None:
    """Print the object of `--format json` and its rows as tables, and the advice."""
    from ..runs.numbers import bound, small
    from .terminal.tables import adversary_table, reasons

    target = found["target"]
    terminal.say(console, f"Noise multiplier {bound(found['noise_multiplier'], 4)}")
    if target.get("epsilon") is not None:
        aim = f"epsilon {bound(target['epsilon'])} at delta {small(target['delta'])}"
        terminal.say(console, f"Target: {aim} against {target['adversary']}")
    elif (reached := target.get("reached")) is not None:
        terminal.say(console, f"Target: {_risk_words(target, bound(reached, 4))}")
    if (taking := found.get("participation") or found.get("missing")) is not None:
        terminal.say(console, f"Participation: {taking['words']}")
    if (joined := found.get("joined_within")) is not None:
        rounds = "each round joins" if joined == 1 else f"any {joined} rounds in a row join"
        terminal.say(console, f"Graphs take turns: {rounds} all agents both ways (B = {joined})")
    console.print(adversary_table(rows))
    # What the advice says in full stands neither among the reasons nor among the warnings.
    words = " ".join(one.words for one in advice)
    said = {row.because for row in rows if row.because in words}
    for line in reasons(row for row in rows if row.because not in said):
        terminal.say(console, line)
    for line in opinions:
        terminal.say(console, line)
    _show_advice(advice, console)
    for warning in found["warnings"]:
        if not any(because in warning for because in said):
            terminal.say(console, f"Warning: {warning}")


def _risk_words(target: Mapping[str, Any], reached: str) -> str:
    """A target of membership inference, and what it comes to."""
    asked = f"advantage {target.get('advantage')}"
    if target.get("tpr") is not None:
        asked = f"TPR {target['tpr']} at FPR {target['fpr']}"
    return f"{asked} of membership tests against {target['adversary']}, which comes to {reached}"


def _show_advice(advice: Sequence[Advice], console: Console) -> None:
    leaks = [one.words for one in advice if one.what in _LEAKS]
    notes = [one.words for one in advice if one.what in _NOTES]
    fixes = [one.words for one in advice if one.what not in (*_LEAKS, *_NOTES)]
    for head, lines in (
        ("What leaks", leaks),
        ("How to fix it", fixes),
        ("How to set a target", notes),
    ):
        if lines:
            console.print()
            terminal.say(console, head)
        for line in lines:
            terminal.say_indented(console, line)


def _show_sweep(
    run: Path, sweeps: Sequence[str], overrides: Sequence[str], *, format: terminal.TextFormat
) -> None:
    from ..privacy.errors import InputError
    from ..runs.plan.sweep import plan_sweep

    found = [combination.to_json() for combination in plan_sweep(run, sweeps, overrides=overrides)]
    from .terminal.tables import sweep_markdown, sweep_tables

    if format is terminal.TextFormat.JSON:
        terminal.print_json(found)
    elif format is terminal.TextFormat.MARKDOWN:
        terminal.write(sweep_markdown(found), end="")
    else:
        terminal.make_console().print(*sweep_tables(found), sep="\n")
    if all(one["refused"] is not None for one in found):
        raise InputError(
            f"none of the {len(found)} combinations can be planned; the first: "
            f"{found[0]['refused']}"
        )


_MISSING = 5


def check_account(
    run: Annotated[
        Path,
        typer.Argument(metavar="RUN", help="A run file, or the folder of a run."),
        terminal.IsThere("no run file at {}"),
    ],
    overrides: terminal.Overrides = None,
    seconds: Annotated[
        float, typer.Option(help="How long the second tracer may take, above 0.")
    ] = 60.0,
    trust_code: terminal.TrustCode = False,
    format: terminal.Format = terminal.TableOrJson.TABLE,
) -> None:
    """Check the figures of a run against a second tracer.

    The second tracer shares no code with the one that the figures are from. The exit code is 0
    where no adversary learns more than is stated, 4 where one is, and 5 where a figure could not
    be checked.
    """
    from ..privacy.errors import InputError

    terminal.trust(trust_code)
    if not seconds > 0:
        raise InputError(f"--seconds {seconds:g} must be a number above 0")
    from .terminal.progress import waiting

    with waiting(
        terminal.make_console(stderr=True), "check-account", "tracing the algorithm twice"
    ):
        from ..runs.errors import ContradictedProof
        from ..runs.plan.opinions import contradicted_trace, second_traces
        from ..training.accounts.summary import Verdict

        config, plan = _planned(run, overrides or ())
        found = second_traces(config, plan, seconds=seconds)
    if format is terminal.TableOrJson.JSON:
        terminal.print_json(
            {"run": str(run), "figures": [_row_twice(one) for one in found.values()]}
        )
    else:
        _show_twice(found)
    if said := contradicted_trace(found):
        raise ContradictedProof(said)
    if not found or any(one.verdict is Verdict.NOT_CHECKED for one in found.values()):
        raise typer.Exit(_MISSING)


def _planned(run: Path, overrides: list[str] | tuple[()]) -> tuple[RunFile, Plan]:
    """A run file with its plan, or those of a folder."""
    from ..privacy.errors import InputError
    from ..runs.folder.resume import read_run
    from ..runs.plan.plan import make_plan
    from ..runs.run_file.run_file import load_run_file
    from ..runs.stop import tell

    if not run.is_dir():
        config = load_run_file(run, overrides, notice=tell)
        return config, make_plan(config, notice=tell)
    if overrides:
        raise InputError(f"--set changes a run file, and {run} is a run that was made; drop it")
    held = read_run(run)
    return held.config, held.plan


def _row_twice(one: TracedTwice) -> dict[str, object]:
    return {
        "adversary": one.adversary,
        "worst_adversary": one.who,
        "victim": one.victim,
        "first": one.first,
        "second": one.second,
        "verdict": str(one.verdict),
        "because": one.because,
    }


def _show_twice(found: dict[str, TracedTwice]) -> None:
    from ..runs.numbers import figure
    from .terminal.tables import rows_table

    console = terminal.make_console()
    rows: list[dict[str, str]] = [
        {
            "adversary": name if one.who == name else f"{name} ({one.who})",
            "victim": str(one.victim),
            "first": figure(one.first, 10),
            "second": "-" if one.second is None else figure(one.second, 10),
            "verdict": str(one.verdict),
        }
        for name, one in found.items()
    ]
    console.print(rows_table(rows, title="Joint sensitivity over all rounds, traced twice"))
    for name, one in found.items():
        if one.because:
            terminal.say(console, f"{name}: {one.because}")


_WIDE = 0.01  # epsilon whose columns are wide


def design(
    run: terminal.RunPath,
    overrides: terminal.Overrides = None,
    groups: Annotated[
        int | None,
        typer.Option(metavar="B", help="Let B groups of records take turns, one group a round."),
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option(
            metavar="KIND", help="Kind of noise of --out; by default the one with least noise."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write a run file that trains with this noise."),
    ] = None,
    trust_code: terminal.TrustCode = False,
    format: terminal.Format = terminal.TableOrJson.TABLE,
) -> None:
    """Find the best noise for a run's graph and rounds.

    Five kinds of noise are compared at equal epsilon. The exit code is 2 on bad input, or if with
    --out the kind cannot meet the target.
    """
    from ..privacy.errors import InputError
    from ..runs.run_file.run_file import load_run_file
    from ..runs.stop import tell

    terminal.trust(trust_code)
    if kind is not None and out is None:
        raise InputError("--kind says which noise --out writes; give --out FILE too")
    config = load_run_file(run, overrides or (), notice=tell)
    from ..runs.plan.design_compare import compare

    found = compare(config, groups=groups)
    written = None if out is None else _write_design(config, found, out, kind)
    if format is terminal.TableOrJson.JSON:
        terminal.print_json(found.dump())
        return
    _show_design(found)
    if written is not None:
        console = terminal.make_console()
        console.print()
        terminal.say(console, f"Written to {out}: {written.kind}, algorithm {written.algorithm}")


def _write_design(config: RunFile, found: Compared, out: Path, kind: str | None) -> Row:
    """Write the run file of the requested kind, or of the least noise."""
    from ..privacy.errors import InputError
    from ..runs.plan.trainable import run_file_with

    if kind is not None and kind not in (names := [row.kind for row in found.rows]):
        raise InputError(f"kind={kind!r} is unknown; use one of {', '.join(names)}")
    asked = [row for row in found.rows if kind in (None, row.kind)]
    rows = [row for row in asked if row.meets]
    if not rows:
        raise InputError(
            f"noise {asked[0].kind!r} cannot meet the target against {found.adversary}; choose "
            "another --kind"
        )
    text = run_file_with(config, rows[0], epsilon=found.epsilon).to_toml()
    try:
        with out.open("x", encoding="utf-8") as opened:
            opened.write(text)
    except FileExistsError:
        raise InputError(
            f"{out} is there already and is not written over; name another file"
        ) from None
    return rows[0]


def _show_design(found: Compared) -> None:
    from ..runs.numbers import bound, small

    console = terminal.make_console()
    terminal.say(
        console,
        f"Every kind at epsilon {bound(found.epsilon)}, delta {small(found.delta)} against "
        f"{found.adversary}; {found.rounds} rounds at sampling rate {found.sampling_rate:g}",
    )
    console.print(_design_table(found))
    for title, lines in (
        ("Who can undo it", _undone(found)),
        ("What to use", found.advice),
        ("What trains it", _trained(found)),
    ):
        console.print()
        terminal.say(console, title)
        for line in lines:
            terminal.say_indented(console, line)


def _undone(found: Compared) -> list[str]:
    from .terminal.tables import by_words

    said = by_words((row.undone_by, row.kind) for row in found.rows)
    return [f"{kinds}: {who}" for who, kinds in said]


def _trained(found: Compared) -> list[str]:
    said = []
    for row in found.rows:
        settings = "".join(f", {key} = {value}" for key, value in row.settings.items())
        said.append(f"{row.kind}: {row.algorithm}{settings}")
    return said


def _share(gap: float) -> str:
    """A relative gap, rounded up."""
    return "< 1e-4" if gap < 1e-4 else f"{gap:.1e}" if gap < 0.01 else f"{gap:.2f}"


def _design_table(found: Compared) -> Table:
    from rich.text import Text

    from ..runs.numbers import bound, figure

    table = terminal.make_table("Noise in the models")
    table.pad_edge = False  # it is as wide as a terminal
    table.collapse_padding = found.epsilon < _WIDE
    table.add_column("kind", style="bold", no_wrap=True)
    for head in (
        "groups",
        "p",
        "noise",
        "less\nenergy",
        "above\nbound",
        "out-\nsider",
        "one\nagent",
        "all\nelse",
    ):
        table.add_column(head, justify="right", no_wrap=True)
    for row in found.rows:
        cells = (
            row.kind.replace("secrets over", "secrets\nover").replace("s a", "s\na"),
            str(row.groups),
            str(row.coefficients),
            figure(row.noise, 4) if row.meets else "-",
            figure(row.less_energy) if row.meets else "-",
            "-" if row.gap is None else _share(row.gap),
            *(bound(value) for value in (row.outsider, row.one_agent, row.all_others)),
        )
        table.add_row(*(Text(cell) for cell in cells))
    table.caption = (
        "groups: of records that take turns; p: coefficients of the strategy over time\n"
        "noise: root mean square, in clip norms of a sum\n"
        "less energy: times less squared noise than independent noise\n"
        "above bound: squared noise over a proven lower bound, less 1\n"
        "last three: epsilon against an outsider, the worst agent, all agents but the\n"
        "victim; sampling does not amplify pair secrets over time against an agent\n"
        "that hears some links only"
    )
    return table
