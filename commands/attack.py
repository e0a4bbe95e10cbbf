"""The commands `overhear attack`, on the folder of a run, and `attack-sweep`, on a run file."""

from __future__ import annotations

import enum
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from .terminal.options import (
    Device,
    Folder,
    Format,
    FormatOfTable,
    IsThere,
    TableOrJson,
    TextFormat,
    TrustCode,
    trust,
)
from .terminal.signals import stop_of_command
from .terminal.terminal import make_console, print_json, say, write


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
    folder: Folder,
    keys: AttackKeys,
    *,
    name: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Name of the attack's folder below DIR/attacks."),
    ] = None,
    convention: Convention = None,
    device: Device = None,
    trust_code: TrustCode = False,
    format: Format = TableOrJson.TABLE,
) -> None:
    """Try to rebuild records from what was intercepted.

    A folder of `overhear train` may be attacked as often as you like. The result stands beside a
    blind guess and beside what no defence, and clipping alone, would have given away. `overhear
    attack-sweep` trains a run file first; `overhear invert` takes gradients from elsewhere.
    """
    from ..privacy.errors import InputError
    from .terminal.progress import attack_progress

    trust(trust_code)
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
    with attack_progress(make_console(stderr=True)) as progress:
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
    if format is TableOrJson.JSON:
        print_json(result.dump())
        return
    from .terminal.tables import attack_table, columns_table

    # Every attacked point: rows, what they say, and what the proof allows.
    console = make_console()
    for scenario in result.scenarios:
        title = (
            f"{scenario.scenario}, round {scenario.round}: agent {scenario.victim} "
            f"by {scenario.preset}"
        )
        console.print(attack_table(scenario.rows, title=title, convention=scale))
        if scenario.rows[-1].columns:
            console.print(columns_table(scenario.rows))
        say(console, scenario.conclusion)
        say(console, scenario.bound.sentence)
        if scenario.known:
            say(console, f"The attacker was taken to know {scenario.known}.")


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
        IsThere("no run file at {}"),
    ],
    *,
    out: Annotated[Path, typer.Option(metavar="DIR", help="The folder for its runs.")],
    keys: SweepKeys,
    convention: Convention = None,
    device: Device = None,
    trust_code: TrustCode = False,
    format: FormatOfTable = TextFormat.TABLE,
) -> None:
    """Train a run file, once for each combination of values, and attack each.

    Every combination of --sweep gets a run folder in --out, which goes on where it stopped. The
    results are one table, with a row for each combination.
    """
    from ..runs.attack import sweep
    from ..runs.errors import ContradictedProof
    from .terminal.progress import attack_progress
    from .terminal.tables import rows_markdown, rows_table

    trust(trust_code)
    with attack_progress(make_console(stderr=True)) as progress:
        found = sweep.attack_sweep(
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
    rows = list(sweep.attack_sweep_rows(found, convention=scale))
    if format is TextFormat.JSON:
        print_json([one.dump() for one in found])
    elif format is TextFormat.MARKDOWN:
        write(rows_markdown(rows), end="")
    else:
        make_console().print(rows_table(rows, title="Reconstruction, mean PSNR or MSE/PSNR/SSIM"))
    if contradicted := sweep.contradictions(found):
        raise ContradictedProof("; ".join(contradicted))
