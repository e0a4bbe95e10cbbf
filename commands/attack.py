"""Attacks: `attack` on a run, `attack-sweep` on a run file, `invert` on gradients, `membership`."""

from __future__ import annotations

import enum
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..runs.requests import GradientRequest, MembershipRequest
from .terminal import terminal
from .terminal.signals import stop_of_command

if TYPE_CHECKING:
    from ..runs.audit.evidence import Membership


class ConventionName(enum.StrEnum):
    """Another scale of scores than ours."""

    DPDL = "dpdl"


Convention = Annotated[
    ConventionName | None,
    typer.Option(help="Give scores in that paper's scale: pixels in [-1, 1], data range 2."),
]


@dataclass(frozen=True, kw_only=True)
class AttackKeys:
    """Keys of [attack]: any by --set, and those that have an option of their own."""

    overrides: Annotated[Sequence[str], "--set table.key=value"] = ()
    """Override a key of [attack]; may be repeated."""
    presets: Annotated[Sequence[str], "--preset NAME"] = ()
    """The attack to run; may be repeated."""
    images: Annotated[int | None, "N"] = None
    """How many records are planted."""
    adversary: Annotated[str | None, "WHO"] = None
    """Whose messages are used."""
    prior: Annotated[Path | None, "FILE"] = None
    """Records that the attacker is taken to know."""
    prior_only: bool = False
    """It knows these in place of public test records."""
    denoiser: Annotated[str | None, "module:NAME"] = None
    """A function of your own that removes noise."""

    def as_overrides(self) -> list[str]:
        """All of them, as --set takes it."""
        given = {
            "presets": list(self.presets),
            "images": self.images,
            "adversary": self.adversary,
            "prior": None if self.prior is None else str(self.prior),
            "prior_only": self.prior_only or None,
            "denoiser": self.denoiser,
        }
        return [
            *self.overrides,
            *(
                f"attack.{key}={'true' if value is True else repr(value)}"
                for key, value in given.items()
                if value not in (None, [])
            ),
        ]


@dataclass(frozen=True, kw_only=True)
class SweepKeys:
    """Keys of a run file: one value for all runs, or several of which each is tried."""

    overrides: Annotated[Sequence[str], "--set table.key=value"] = ()
    """Override a key of the run file; may be repeated."""
    sweeps: Annotated[Sequence[str], "--sweep table.key=a,b,c"] = ()
    """Train and attack every combination of these values; may be repeated."""


def attack(
    folder: terminal.Folder,
    keys: AttackKeys,
    *,
    name: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Name of the attack's folder below DIR/attacks."),
    ] = None,
    convention: Convention = None,
    device: terminal.Device = None,
    trust_code: terminal.TrustCode = False,
    format: terminal.Format = terminal.TableOrJson.TABLE,
) -> None:
    """Try to rebuild records from what was intercepted.

    A folder of `overhear train` may be attacked as often as you like. The result stands beside a
    blind guess and beside what no defence, and clipping alone, would have given away. `overhear
    attack-sweep` trains a run file first; `overhear invert` takes gradients from elsewhere.
    """
    from ..privacy.errors import InputError
    from .terminal.progress import attack_progress

    terminal.trust(trust_code)
    # A folder of a run, and neither a run file nor gradients.
    if folder.suffix == ".toml":
        sets = [word for override in keys.as_overrides() for word in ("--set", override)]
        raise InputError(
            "attack takes the folder of a run; to train a run file and attack it, type `"
            f"{shlex.join(['overhear', 'attack-sweep', str(folder), *sets])} --out DIR`"
        )
    if folder.is_file():
        raise InputError(
            f"{folder} is a file, no folder of a run; of gradients use `overhear invert "
            f"{folder} --model ... --out ...`"
        )
    # The attack, and what it found as JSON or in tables.
    scale = None if convention is None else convention.value
    with attack_progress(terminal.make_console(stderr=True)) as progress:
        from ..runs.attack.attack import attack_run  # torch takes a while

        result = attack_run(
            folder,
            overrides=keys.as_overrides(),
            name=name,
            device=device,
            convention=scale,
            progress=progress,
            expect=progress.expect,
            stop=stop_of_command(),
        )
    if format is terminal.TableOrJson.JSON:
        terminal.print_json(result.dump())
        return
    from .terminal.tables import attack_table, columns_table

    # Every attacked point: rows, what they say, and what the proof allows.
    console = terminal.make_console()
    for scenario in result.scenarios:
        title = (
            f"{scenario.scenario}, round {scenario.round}: agent {scenario.victim} "
            f"by {scenario.preset}"
        )
        console.print(attack_table(scenario.rows, title=title, convention=scale))
        if scenario.rows[-1].columns:
            console.print(columns_table(scenario.rows))
        terminal.say(console, scenario.conclusion)
        terminal.say(console, scenario.bound.sentence)
        if scenario.known:
            terminal.say(console, f"The attacker was taken to know {scenario.known}.")


def _check_run_file(run: Path) -> Path:
    from ..privacy.errors import InputError

    if run is not None and run.suffix != ".toml":  # None while a line is completed
        raise InputError(
            "attack-sweep takes a run file, RUN.toml; of the folder of a run: "
            f"`{shlex.join(['overhear', 'attack', str(run)])}`"
        )
    return run


def attack_sweep(
    run: Annotated[
        Path,
        typer.Argument(metavar="RUN.toml", help="The run file.", callback=_check_run_file),
        terminal.IsThere("no run file at {}"),
    ],
    *,
    out: Annotated[Path, typer.Option(metavar="DIR", help="The folder for its runs.")],
    keys: SweepKeys,
    convention: Convention = None,
    device: terminal.Device = None,
    trust_code: terminal.TrustCode = False,
    format: terminal.FormatOfTable = terminal.TextFormat.TABLE,
) -> None:
    """Train a run file, once for each combination of values, and attack each.

    Every combination of --sweep gets a run folder in --out, which goes on where it stopped. The
    results are one table, with a row for each combination.
    """
    from ..runs.attack.attack import attack_sweep as sweep_attacks
    from ..runs.attack.attack import attack_sweep_rows, contradictions
    from ..runs.errors import ContradictedProof
    from .terminal.progress import attack_progress
    from .terminal.tables import rows_markdown, rows_table

    terminal.trust(trust_code)
    with attack_progress(terminal.make_console(stderr=True)) as progress:
        found = sweep_attacks(
            run,
            out,
            sweeps=keys.sweeps,
            overrides=keys.overrides,
            device=device,
            progress=progress,
            expect=progress.expect,
            stop=stop_of_command(),
        )
    # One row for each combination; contradictions are told last.
    scale = None if convention is None else convention.value
    rows = list(attack_sweep_rows(found, convention=scale))
    if format is terminal.TextFormat.JSON:
        terminal.print_json([one.dump() for one in found])
    elif format is terminal.TextFormat.MARKDOWN:
        terminal.write(rows_markdown(rows), end="")
    else:
        terminal.make_console().print(
            rows_table(rows, title="Reconstruction, mean PSNR or MSE/PSNR/SSIM")
        )
    if contradicted := contradictions(found):
        raise ContradictedProof("; ".join(contradicted))


def invert(
    request: GradientRequest, *, format: terminal.Format = terminal.TableOrJson.TABLE
) -> None:
    """Try to rebuild the records behind gradients from elsewhere.

    The gradients may come from any framework. The file holds one gradient for each parameter of
    the network, and the parameters themselves unless --weights has them; or it is a model after a
    step, and --before the one it began with. What describes the batch may stand in its metadata.
    What was found is on a page, report.html, too.
    """
    read = (
        request.weights,
        request.before,
        request.prior,
        request.truth,
        request.vocabulary,
        request.columns,
    )
    terminal.IsThere("{}: No such file or directory").look([request.gradients, *read])
    from .terminal.progress import attack_progress

    with attack_progress(terminal.make_console(stderr=True)) as progress:
        from ..runs.attack.invert import attack_gradients

        result = attack_gradients(request, progress=progress, stop=stop_of_command())
    from ..reports.document.html import write_found

    write_found(request.out)
    if format is terminal.TableOrJson.JSON:
        terminal.print_json(result.dump())
        return
    from ..runs.attack.words import summary_lines

    console = terminal.make_console()
    for line in summary_lines(result, request.out):
        terminal.say(console, line)


def _check_folder(folder: Path) -> Path:
    from ..privacy.errors import InputError

    if folder is not None and folder.suffix == ".toml":  # None while a line is completed
        line = shlex.join(["overhear", "train", str(folder)])
        raise InputError(
            "membership takes the folder of a run: it asks which records its final models were "
            f"trained on; train the run file first: `{line} --out DIR`"
        )
    return folder


def membership(
    folder: Annotated[
        Path,
        typer.Argument(metavar="DIR", help="Folder of a run.", callback=_check_folder),
        terminal.IsThere(terminal.NO_RUN),
    ],
    request: MembershipRequest,
    *,
    trust_code: terminal.TrustCode = False,
    format: terminal.Format = terminal.TableOrJson.TABLE,
) -> None:
    """Infer from final models which records a run was trained on.

    Real records are looked for, with references that are trained as the run was, and in further
    runs in which each record is in or out at random.

    The result is kept as membership.json. The exit code is 4 if more guesses are right than the
    proof allows.
    """
    from ..runs.audit.evidence import read_membership
    from ..runs.errors import ContradictedProof
    from .terminal.progress import audit_progress

    terminal.trust(trust_code)
    contradicted: ContradictedProof | None = None
    with audit_progress(terminal.make_console(stderr=True)) as progress:
        from ..runs.audit.membership import audit_membership

        try:
            found = audit_membership(folder, request, progress=progress, stop=stop_of_command())
        except ContradictedProof as error:
            kept = read_membership(folder)
            if kept is None:
                raise
            contradicted, found = error, kept
    if format is terminal.TableOrJson.JSON:
        terminal.print_json(found.dump())
    else:
        _show_membership(found)
    if contradicted is not None:
        raise contradicted


def membership_training(
    train: Annotated[
        str,
        typer.Argument(metavar="module:NAME", help="The function that trains: dataset -> model."),
    ],
    *,
    data: Annotated[
        str,
        typer.Option(
            metavar="module:NAME", help="The data set, or a function without arguments for it."
        ),
    ],
    method: Annotated[str, typer.Option(metavar="NAME", help="lira, rmia or loss.")] = "lira",
    references: Annotated[int, typer.Option(metavar="K", help="Number of reference models.")] = 8,
    records: Annotated[
        int, typer.Option(metavar="N", help="Number of records that are in or out at random.")
    ] = 400,
    format: terminal.Format = terminal.TableOrJson.TABLE,
) -> None:
    """Infer membership in models that a function of yours trains.

    It is called with subsets of the data, once for each reference and once for the model that is
    attacked, in which each of some records is in or out at random.
    """
    from ..attacks.foreign import inference
    from ..privacy.errors import InputError
    from ..training.own.names import own_object

    function: Any = own_object(train, key="train")
    if not callable(function) and not hasattr(function, "fit"):
        raise InputError(
            f"{train!r:.60} must name a function, train(dataset) -> model, or an estimator"
        )
    held: Any = own_object(data, key="--data")
    found = inference.membership(
        function,
        held() if callable(held) and not hasattr(held, "__getitem__") else held,
        method=method,
        references=references,
        records=records,
    )
    if format is terminal.TableOrJson.JSON:
        terminal.print_json(found.dump())
    else:
        terminal.say(terminal.make_console(), str(found.table()))


def _show_membership(found: Membership) -> None:
    from .terminal.tables import membership_table

    console = terminal.make_console()
    parts = (
        ("The run itself: records that it was trained on, against held-out ones", found.run),
        (f"{found.games} games with random assignment", found.played),
    )
    for title, part in parts:
        if part is not None:
            terminal.say(console, f"{part.plain}.")
            console.print(membership_table(part, title=title))
    terminal.say(
        console,
        f"{found.references} references; intervals at {100 * found.confidence:g} % as if records "
        "were independent. An attack that fails shows no leak; it does not show that there is "
        "none.",
    )
    for exposed_record in found.exposed:
        terminal.say(
            console,
            f"Record {exposed_record.record} of agent {exposed_record.agent}: score "
            f"{exposed_record.score:.2f} nats.",
        )
    terminal.say(console, f"{found.words}.")
    terminal.say(console, f"Verdict: {found.verdict}.")
