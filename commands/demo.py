"""The command `overhear demo`: train DPDL, attack, audit, report, and the leak that was mended."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated

import typer

from .terminal.signals import stop_of_command
from .terminal.terminal import make_console, say

if TYPE_CHECKING:
    from rich.console import Console

    from ..runs.folder.records import TrainSummary
    from ..runs.run_file.run_file import RunFile


_LEAKS = "What would leak, with the same noise and DPDL as it was published:"
_SECONDS = 40  # of one core, measured
_BEGINS = """\
Ten agents on a ring train on digits with DPDL, and somebody reads the links.
Target: epsilon {epsilon:g} at delta {delta} for one record.
Four steps follow, in about {seconds} seconds of one core:
  1. train: 150 rounds, with the noise that the target needs
  2. attack: rebuild digits from the messages of one round
  3. audit: plant 1000 canaries, and measure what they give away
  4. report: write the page that a person reads and signs
"""
RUN = """
[data]
name = "digits"
agents = 10
partition = "dirichlet"
concentration = 0.5

[graph]
name = "ring"

[model]
name = "mlp"

[algorithm]
name = "dpdl"
form = "repaired"
alpha = 0.1

[privacy]
epsilon = 3
delta = 1e-4
adversary = "eavesdropper"

[training]
rounds = 150
sampling_rate = 0.2
learning_rate = 0.2
evaluate_every = 10

[intercept]
rounds = [1]

[attack]
presets = ["matched"]
scenarios = ["cross-gradient", "view"]
restarts = 1

[audit]
canaries = 1000
checked_rounds = 6
"""


def demo(
    out: Annotated[Path, typer.Option(metavar="DIR", help="New folder for the run.")] = Path(
        "overhear-demo"
    ),
    device: Annotated[
        str,
        typer.Option(
            "--device",
            metavar="DEVICE",
            help="Where to compute: auto, cpu, cuda or cuda:N; a CPU is faster on its network.",
        ),
    ] = "cpu",
) -> None:
    """Train, attack, audit and report on bundled digits, in a minute."""
    _run_demo(out, make_console(), device=device)


def _run_demo(out: Path, console: Console, *, device: str = "cpu") -> None:
    """Run the demo into a new folder.

    Raises:
        FileExistsError: the folder holds files.
        ValueError: there is no such device.
    """
    from ..reports.document.collect import report_run
    from ..runs.attack.attack import attack_run
    from ..runs.audit.audit import audit_folder
    from ..runs.folder.folder import RUN as RUN_FILE
    from ..runs.folder.folder import claim
    from ..runs.folder.run import train_run
    from ..runs.numbers import small
    from ..runs.run_file.run_file import RunFile
    from ..runs.run_file.tables import find_device
    from ..runs.stop import naming
    from .terminal.progress import attack_progress, audit_progress, train_progress
    from .terminal.tables import adversary_table, attack_table, measured_table

    # All that can be refused, before the folder is there.
    started = perf_counter()
    tables = tomllib.loads(RUN)
    find_device(device, rounds=True)  # before the folder is there
    tables["training"]["device"] = device
    config = RunFile.model_validate(tables)
    stop, kept = stop_of_command(), out / RUN_FILE
    with stop.held():
        claim(out)
    limit = tables["privacy"]["epsilon"]
    delta = tables["privacy"]["delta"]
    say(console, _BEGINS.format(epsilon=limit, delta=small(delta), seconds=_SECONDS))
    # Trained, attacked and audited, each of which says how to go on if it is cut off.
    with (
        naming(f"`overhear train {kept} --out {out} --resume`", run_file=kept),
        train_progress(console, limit=limit, delta=delta) as progress,
    ):
        summary = train_run(config, out, progress=progress, stop=stop)
    rest = f"`overhear audit {out}`, then `overhear report {out}`"
    with (
        naming(f"`overhear attack {out}`, {rest}", run_file=kept),
        attack_progress(console) as progress,
    ):
        stop.note("the run is trained, and not attacked yet")
        stop.go_on()
        result = attack_run(out, progress=progress, expect=progress.expect, stop=stop)
    with naming(rest, run_file=kept), audit_progress(console) as progress:
        stop.note("the run is trained and attacked, and not audited yet")
        stop.go_on()
        audited = audit_folder(out, progress=progress, expect=progress.expect, stop=stop)
    # The report, and its figures in tables.
    stop.note(f"{out} holds the run, the attack and the audit; `overhear report {out}` goes on")
    page = report_run(out)
    accuracy = summary.metrics.consensus_accuracy
    console.print(adversary_table(summary.adversaries))
    for scenario in result.scenarios:
        title = f"{scenario.scenario}, round {scenario.round}, {scenario.preset}"
        console.print(attack_table(scenario.rows, title=title))
        console.print(scenario.conclusion + "\n")
    console.print(measured_table(audited))
    _show_leak(config, summary, console)
    say(console, _meaning(page, limit))
    constant = summary.metrics.constant_accuracy
    console.print(
        f"Accuracy of the consensus model: {accuracy:.1%}; of the most frequent class, given "
        f"for every record: {constant:.1%}"
    )
    console.print(f"Done in {perf_counter() - started:.0f} s. The report: {page}")


def _show_leak(config: RunFile, summary: TrainSummary, console: Console) -> None:
    """What the same noise is worth under DPDL as it was published, beside what mends it."""
    from ..reports.judgement.advice import What, advise
    from ..runs.numbers import bound
    from ..runs.plan.plan import make_plan
    from .terminal.tables import rows_table

    if config.privacy is None:
        return
    # The published form at the same noise, planned alone.
    published = config.model_copy(
        update={
            "algorithm": config.algorithm.model_copy(update={"form": "published"}),
            "privacy": config.privacy.model_copy(
                update={"epsilon": None, "noise_multiplier": summary.noise_multiplier}
            ),
        }
    )
    plan = make_plan(published)
    rows = [
        {
            "adversary": other.adversary,
            "as published": f"{bound(guarantee.epsilon)}, {guarantee.status}",
            "repaired, as it ran": f"{bound(other.epsilon)}, {other.status}",
        }
        for guarantee, other in zip(plan.guarantees, summary.adversaries, strict=True)
    ]
    console.print(rows_table(rows, title="Epsilon of DPDL with the same noise"))
    advice = advise(published, plan)
    for head, what in ((_LEAKS, What.LEAK), ("What mends it:", What.REPAIR)):
        say(console, head)
        for words in (one.words for one in advice if one.what is what):
            say(console, f"  {words}")


def _meaning(page: Path, epsilon: float) -> str:
    """What the target is worth to a person, by the report's own figures."""
    from ..runs.folder.folder import PRIVACY

    odds = json.loads((page.parent / PRIVACY).read_text(encoding="utf-8"))["risk"]["eavesdropper"]
    hits = next(one for one in odds["hits"] if one["false_positives"] == 1 and one["of"] == 100)
    return (
        f"What epsilon {epsilon:g} means here: of 100 people whose record was trained on, a test "
        f"that accuses 1 of 100 others wrongly finds at most {hits['hits']:g}; guessing finds 1."
    )
