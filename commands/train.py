"""Commands by which a run begins: `new` and `schema`, `train`, and `demo`, which does it all."""

from __future__ import annotations

import enum
import json
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated

import typer

from .terminal import terminal
from .terminal.signals import stop_of_command

if TYPE_CHECKING:
    from rich.console import Console

    from ..runs.folder.ranks import Group
    from ..runs.folder.records import TrainSummary
    from ..runs.run_file.run_file import RunFile
    from ..runs.stop import Stop

# Files to start from, `overhear new`, and what files and outputs may hold, `overhear schema`.


class What(enum.StrEnum):
    """What a file is for."""

    RUN = "run"
    ALGORITHM = "algorithm"
    POLICY = "policy"
    OPACUS_POLICY = "opacus-policy"
    FLOWER_POLICY = "flower-policy"
    SYSTEM = "system"
    CI = "ci"


_FILES = {
    What.RUN: "run.toml",
    What.ALGORITHM: "algorithm.py.txt",  # a template of a module is no module of ours
    What.POLICY: "policy.toml",
    What.OPACUS_POLICY: "opacus-policy.toml",
    What.FLOWER_POLICY: "flower-policy.toml",
    What.SYSTEM: "system.jsonl",
    What.CI: "ci.yml",
}


def new(
    what: Annotated[What, typer.Argument(metavar="what", help="What to start from.")],
    file: Annotated[
        Path | None,
        typer.Argument(metavar="FILE", help="Where to write it; without FILE it is printed."),
    ] = None,
) -> None:
    """Write a commented file to start from: run, algorithm, policy.

    It is a run file, a module with an algorithm, a policy of a run or of a system elsewhere, a log
    of what such a system releases, or a workflow of GitHub that holds a run file and a log to a
    policy at every change. Without FILE it is printed; a folder of FILE that is missing is made. A
    file that exists is never written over.
    """
    text = template(what, module=None if file is None else file.stem)
    if file is None:
        terminal.write(text, end="")
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    try:
        with file.open("x", encoding="utf-8") as opened:
            opened.write(text)
    except FileExistsError:
        from ..privacy.errors import InputError

        raise InputError(
            f"{file} is there already and is not written over; name another file"
        ) from None
    terminal.write(f"Written to {file}.")


def template(what: What, *, module: str | None = None) -> str:
    """The text of a template.

    Args:
        module: the name under which an algorithm will be imported; None where it is not known.

    >>> template(What.RUN).splitlines()[0]
    '# A run of decentralized training, and how much one record may cost.'
    """
    text = files("overhear.commands").joinpath("templates", _FILES[what])
    found = text.read_text(encoding="utf-8")
    if what is What.CI:
        from .. import __version__

        return found.replace("VERSION", __version__)
    if what is What.ALGORITHM:
        return found.replace("FILE", module or "mine")
    return found


class SchemaName(enum.StrEnum):
    """What has a schema."""

    RUN = "run"
    POLICY = "policy"
    PLAN = "plan"
    TRAIN = "train"
    SWEEP = "sweep"
    REPORT = "report"
    TOTAL = "total"
    PERSON = "person"
    ATTACK = "attack"
    INVERT = "invert"
    AUDIT = "audit"
    MEMBERSHIP = "membership"
    LAST_MODEL = "last-model"


# Where each is made: a module, and a function; or a type and its title.
_MADE = {
    SchemaName.RUN: ("runs.run_file.run_file", "run_file_schema", ""),
    SchemaName.POLICY: ("reports.judgement.policy", "policy_schema", ""),
    SchemaName.PLAN: ("runs.plan.schema", "Planned", "overhear plan --format json, version 1"),
    SchemaName.TRAIN: ("runs.folder.records", "TrainSummary", "overhear train --format json"),
    SchemaName.SWEEP: ("runs.sweep.results", "PointResult", "a run of overhear sweep"),
    SchemaName.REPORT: ("reports.schema", "report_schema", ""),
    SchemaName.TOTAL: ("reports.schema", "Total", "overhear total --format json, version 1"),
    SchemaName.PERSON: (
        "reports.schema",
        "PersonTotal",
        "overhear person --format json, version 1",
    ),
    SchemaName.ATTACK: ("runs.audit.evidence_schema", "Attack", "attack.json of a run, version 1"),
    SchemaName.INVERT: (
        "runs.attack.gradients_schema",
        "GradientAttack",
        "attack.json of overhear invert, version 1",
    ),
    SchemaName.AUDIT: ("runs.audit.evidence_schema", "Audit", "audit.json of overhear, version 2"),
    SchemaName.MEMBERSHIP: (
        "runs.audit.evidence",
        "Membership",
        "membership.json of overhear, version 1",
    ),
    SchemaName.LAST_MODEL: (
        "runs.audit.evidence",
        "LastModel",
        "last-model.json of overhear, version 1",
    ),
}


def schema(what: Annotated[SchemaName, typer.Argument(help="What to describe.")]) -> None:
    """Print the JSON schema of a run file, a policy or an output."""
    from ..privacy.formats.codec import schema_of

    module, name, title = _MADE[what]
    found = getattr(import_module(f"overhear.{module}"), name)
    terminal.write(json.dumps(schema_of(found, title) if title else found(), indent=2))


@dataclass(frozen=True, kw_only=True)
class TrainRequest:
    """What is trained, and where it is written."""

    out: Annotated[Path, "DIR"]
    """Folder for the run; it must be new, except with --resume."""
    overrides: Annotated[Sequence[str], "--set table.key=value"] = ()
    """Override a key of the run file; may be repeated."""
    resume: bool = False
    """Continue the unfinished run in DIR."""
    device: Annotated[str | None, "DEVICE"] = None
    """auto, cpu, cuda or cuda:N, in place of [training] device."""


def train(
    run: terminal.RunPath,
    asked: TrainRequest,
    *,
    ranks: Annotated[
        int | None, typer.Option(metavar="R", min=1, help="Spread the agents over R processes.")
    ] = None,
    rank_timeout: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            min=1,
            max=86400,
            help="Longest time that a process may keep the others waiting.",
        ),
    ] = 60.0,
    trust_code: terminal.TrustCode = False,
    format: terminal.Format = terminal.TableOrJson.TABLE,
) -> None:
    """Train, write the ledger, and record intercepted rounds.

    As a rank of torchrun it trains its share of the agents. A first SIGINT, SIGTERM or SIGHUP
    ends it after the round that is running, with a checkpoint; a second one ends it at once.
    """
    from ..runs.folder.launch import exit_with_parent, launch
    from ..runs.folder.place import Place
    from ..runs.run_file.tables import check_rounds_device

    # What the command line decides, before a run file is read.
    terminal.trust(trust_code)
    if asked.device is not None:
        check_rounds_device(asked.device)
        on_device = f'training.device="{asked.device}"'
        asked = replace(asked, overrides=(*asked.overrides, on_device))
    stop = stop_of_command()
    place = Place.of_environment()
    # Without a rank's environment it starts the ranks itself.
    if place is None and ranks is not None and ranks > 1:
        given = ["--out", str(asked.out), *(f"--set={override}" for override in asked.overrides)]
        given += ["--resume"] * asked.resume + [f"--format={format}"]
        given += ["--trust-code"] * trust_code + [f"--rank-timeout={rank_timeout}"]
        code = launch(
            [*terminal.current_log().options, "train", *given, "--", str(run)],
            out=asked.out,
            ranks=ranks,
            timeout=rank_timeout,
            stop=stop,
        )
        raise typer.Exit(code)
    from ..runs.stop import keep_freed_memory

    keep_freed_memory()
    if place is None or place.size == 1:
        _train(run, asked, format=format, stop=stop)
        return
    place.check_size(ranks)
    place.quieten_libraries()
    exit_with_parent()
    from ..runs.folder.ranks import joined

    with joined(place, timeout=rank_timeout, stop=stop) as group:
        _train(run, asked, format=format, stop=stop, group=group)


def _train(
    run: Path,
    asked: TrainRequest,
    *,
    format: terminal.TableOrJson,
    stop: Stop,
    group: Group | None = None,
) -> None:
    from ..runs.run_file.run_file import load_run_file
    from ..runs.stop import tell

    # The run file is read without torch; only rank 0 speaks.
    out, first = asked.out, group is None or group.place.rank == 0
    config = load_run_file(run, asked.overrides, notice=tell if first else None)
    from .terminal.progress import train_progress

    # A rank beside the first joins, and writes nothing.
    if group is not None:
        from ..runs.folder.ranks import take_device
        from ..runs.folder.run import join_run

        take_device(config.training.device, group.place)
        if group.place.rank > 0:
            join_run(config, out, group=group, stop=stop)
            return
    privacy = config.privacy
    limit = None if privacy is None else privacy.epsilon
    delta = None if privacy is None else privacy.delta
    with train_progress(terminal.make_console(stderr=True), limit=limit, delta=delta) as progress:
        # Only now: a bad run file is told without torch, and its import takes a while.
        from ..runs.audit.evidence import keep_trail
        from ..runs.folder.run import train_run

        if asked.resume:
            from ..runs.folder.resume import resume_run

            told = terminal.make_console(stderr=format is terminal.TableOrJson.JSON)
            summary = resume_run(
                config,
                out,
                progress=progress,
                notice=lambda text: told.print(text, soft_wrap=True),
                group=group,
                stop=stop,
            )
        else:
            summary = train_run(config, out, progress=progress, group=group, stop=stop)
    keep_trail(run, out)
    if format is terminal.TableOrJson.JSON:
        terminal.print_json(summary.dump())
        return
    from .terminal.tables import adversary_table

    console = terminal.make_console()
    console.print(adversary_table(summary.adversaries))
    terminal.say(console, f"The run is in {out}.")


# The command `overhear demo`: train DPDL, attack, audit, report, and the leak that was mended.


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
    _run_demo(out, terminal.make_console(), device=device)


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
    terminal.say(console, _BEGINS.format(epsilon=limit, delta=small(delta), seconds=_SECONDS))
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
    terminal.say(console, _meaning(page, limit))
    constant = summary.metrics.constant_accuracy
    console.print(
        f"Accuracy of the consensus model: {accuracy:.1%}; of the most frequent class, given "
        f"for every record: {constant:.1%}"
    )
    console.print(f"Done in {perf_counter() - started:.0f} s. The report: {page}")


def _show_leak(config: RunFile, summary: TrainSummary, console: Console) -> None:
    """What the same noise is worth under DPDL as it was published, beside what mends it."""
    from ..reports.judgement.remedies import What, advise
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
        terminal.say(console, head)
        for words in (one.words for one in advice if one.what is what):
            terminal.say(console, f"  {words}")


def _meaning(page: Path, epsilon: float) -> str:
    """What the target is worth to a person, by the report's own figures."""
    from ..runs.folder.folder import PRIVACY

    odds = json.loads((page.parent / PRIVACY).read_text(encoding="utf-8"))["risk"]["eavesdropper"]
    hits = next(one for one in odds["hits"] if one["false_positives"] == 1 and one["of"] == 100)
    return (
        f"What epsilon {epsilon:g} means here: of 100 people whose record was trained on, a test "
        f"that accuses 1 of 100 others wrongly finds at most {hits['hits']:g}; guessing finds 1."
    )
