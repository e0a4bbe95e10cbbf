"""The command `overhear plan`: a table, what leaks and what would fix it, or a sweep of plans."""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .terminal.options import FormatOfTable, RunPath, TextFormat, TrustCode, trust
from .terminal.terminal import make_console, print_json, say, write

if TYPE_CHECKING:
    from rich.console import Console

    from ..privacy.guarantee import Guarantee
    from ..reports.judgement.advice import Advice
    from ..reports.judgement.gate import Decision
    from ..runs.readiness import Readiness
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
    run: RunPath,
    asked: PlanRequest,
    *,
    trust_code: TrustCode = False,
    format: FormatOfTable = TextFormat.TABLE,
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
    trust(trust_code)
    sweeps, every_agent, check = asked.sweeps, asked.every_agent, asked.check
    json = format is TextFormat.JSON
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
    if asked.statement and (sweeps or format is not TextFormat.TABLE):
        raise InputError("--statement prints a paragraph; leave --format and --sweep out")
    if sweeps:
        _show_sweep(run, sweeps, asked.overrides, format=format)
        return
    if format is TextFormat.MARKDOWN:
        raise InputError("--format markdown prints a sweep; give --sweep table.key=a,b,c too")
    config, ready = load_run_file(run, asked.overrides, notice=tell), None
    from .terminal.progress import waiting

    told = make_console(stderr=True)
    with waiting(told, "plan", "loading what traces the algorithm"):
        # Only now: a bad run file is told without torch, and its import takes a while.
        from ..reports.judgement.advice import advise
        from ..runs.errors import ContradictedProof
        from ..runs.plan.opinions import contradiction, with_opinions
        from ..runs.plan.plan import make_plan
        from .terminal.tables import second_opinions

    def notice(text: str) -> None:
        say(told, text)

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
            said["strict"] = _decided(decision)
        print_json(found | {"advice": [one.to_json() for one in advice]} | said)
    elif asked.statement:
        write(planned.statement())
    else:
        _show_plan(
            found, described.adversaries, advice, make_console(), opinions=second_opinions(opinions)
        )
        if far is not None:
            from .terminal.recipients import show_recipients

            show_recipients(far, make_console())
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


def _decided(decision: Decision) -> dict[str, object]:
    """What --strict adds to the JSON."""
    return {
        "exit_code": decision.exit_code,
        "requirements": [
            {
                "name": requirement.name,
                "outcome": requirement.outcome.value,
                "sentence": requirement.sentence,
            }
            for requirement in decision.requirements
        ],
    }


def _refuse(decision: Decision) -> None:
    """Say on standard error which figures do not pass, and end with the exit code."""
    console = make_console(stderr=True)
    for requirement in decision.requirements:
        if requirement.outcome.value != "passed":
            say(console, f"Not passed, {requirement.name}: {requirement.sentence}")
    if decision.exit_code:
        raise typer.Exit(decision.exit_code)


def _show_ready(ready: Readiness) -> None:
    console = make_console()
    console.print()
    say(console, "Checked: train would begin this run")
    if (items := ready.items) is not None and items.left_out:
        _say_indented(
            console,
            f"{items.left_out} records were left out, one at a time: the items of the others stay "
            "the same",
        )
    for command, why in (("attack", ready.attack), ("audit", ready.audit)):
        if why is not None:
            _say_indented(console, f"overhear {command} would refuse it: {why}")


def _show_traced(traced: Mapping[str, TracedTwice]) -> None:
    """A line for each verdict of the second tracer, with its adversaries."""
    from ..runs.plan.opinions import trace_words

    console, grouped = make_console(), dict[str, list[str]]()
    for name, one in traced.items():
        grouped.setdefault(trace_words(one), []).append(name)
    for words, names in grouped.items():
        say(console, f"second tracer on {', '.join(names)}: {words}")


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
    say(console, f"Noise multiplier {bound(found['noise_multiplier'], 4)}")
    if target.get("epsilon") is not None:
        aim = f"epsilon {bound(target['epsilon'])} at delta {small(target['delta'])}"
        say(console, f"Target: {aim} against {target['adversary']}")
    elif (reached := target.get("reached")) is not None:
        say(console, f"Target: {_risk_words(target, bound(reached, 4))}")
    if (taking := found.get("participation") or found.get("missing")) is not None:
        say(console, f"Participation: {taking['words']}")
    if (joined := found.get("joined_within")) is not None:
        rounds = "each round joins" if joined == 1 else f"any {joined} rounds in a row join"
        say(console, f"Graphs take turns: {rounds} all agents both ways (B = {joined})")
    console.print(adversary_table(rows))
    # What the advice says in full stands neither among the reasons nor among the warnings.
    words = " ".join(one.words for one in advice)
    said = {row.because for row in rows if row.because in words}
    for line in reasons(row for row in rows if row.because not in said):
        say(console, line)
    for line in opinions:
        say(console, line)
    _show_advice(advice, console)
    for warning in found["warnings"]:
        if not any(because in warning for because in said):
            say(console, f"Warning: {warning}")


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
            say(console, head)
        for line in lines:
            _say_indented(console, line)


def _say_indented(console: Console, text: str) -> None:
    from rich.padding import Padding
    from rich.text import Text

    console.print(Padding(Text(text), (0, 0, 0, 2), expand=False))


def _show_sweep(
    run: Path, sweeps: Sequence[str], overrides: Sequence[str], *, format: TextFormat
) -> None:
    from ..privacy.errors import InputError
    from ..runs.plan.sweep import plan_sweep

    found = [combination.to_json() for combination in plan_sweep(run, sweeps, overrides=overrides)]
    from .terminal.tables import sweep_markdown, sweep_tables

    if format is TextFormat.JSON:
        print_json(found)
    elif format is TextFormat.MARKDOWN:
        write(sweep_markdown(found), end="")
    else:
        make_console().print(*sweep_tables(found), sep="\n")
    if all(one["refused"] is not None for one in found):
        raise InputError(
            f"none of the {len(found)} combinations can be planned; the first: "
            f"{found[0]['refused']}"
        )
