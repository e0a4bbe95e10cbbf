"""The command `overhear attack`: on the folder of a run, or on a run file that is trained first."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from ..terminal import completion
from ..terminal.options import Device, Json, TrustCode, trust
from ..terminal.signals import stop_of_command
from ..terminal.terminal import make_console, print_json, say, write
from .own_training import TrainingWanted, run_training

__all__ = ["attack"]


class ConventionName(enum.StrEnum):
    """Another scale of scores than ours."""

    DPDL = "dpdl"


def attack(
    target: Annotated[
        Path | None,
        typer.Argument(metavar="[DIR|RUN.toml]", help="Folder of a run, or a run file to train."),
    ] = None,
    *,
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="table.key=value",
            help="Override a key; of DIR a key of [attack].",
            autocompletion=completion.overrides,
        ),
    ] = None,
    presets: Annotated[
        list[str] | None,
        typer.Option(
            "--preset", metavar="NAME", help="The attack to run; may be repeated (DIR only)."
        ),
    ] = None,
    images: Annotated[
        int | None, typer.Option(metavar="N", help="How many records are planted (DIR only).")
    ] = None,
    adversary: Annotated[
        str | None, typer.Option(metavar="WHO", help="Whose messages are used (DIR only).")
    ] = None,
    prior: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Records that the attacker is taken to know (DIR only)."),
    ] = None,
    prior_only: Annotated[
        bool,
        typer.Option(
            "--prior-only", help="It knows them instead of public test records (DIR only)."
        ),
    ] = False,
    denoiser: Annotated[
        str | None,
        typer.Option(
            metavar="module:NAME", help="A function of your own that removes noise (DIR only)."
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Name of the attack's folder below DIR/attacks (DIR only)."
        ),
    ] = None,
    sweeps: Annotated[
        list[str] | None,
        typer.Option(
            "--sweep",
            metavar="table.key=a,b,c",
            help="Train and attack every combination (RUN.toml only).",
            autocompletion=completion.sweeps,
        ),
    ] = None,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print a Markdown table (RUN.toml only).")
    ] = False,
    convention: Annotated[
        ConventionName | None,
        typer.Option(help="Give scores in that paper's scale: pixels in [-1, 1], data range 2."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The folder for its runs (RUN.toml only).")
    ] = None,
    training: Annotated[
        str | None,
        typer.Option(
            "--train",
            metavar="module:NAME",
            help="Instead of a run: infer membership in models that this function trains.",
        ),
    ] = None,
    data: Annotated[
        str | None, typer.Option(metavar="module:NAME", help="The data set (--train only).")
    ] = None,
    method: Annotated[
        str | None, typer.Option(metavar="NAME", help="Lira, rmia or loss (--train only).")
    ] = None,
    references: Annotated[
        int | None,
        typer.Option(metavar="K", help="Number of reference models, 8 by default (--train only)."),
    ] = None,
    records: Annotated[
        int | None,
        typer.Option(metavar="N", help="Number of target records, 400 by default (--train only)."),
    ] = None,
    device: Device = None,
    trust_code: TrustCode = False,
    json: Json = False,
) -> None:
    """Try to rebuild records from what was intercepted.

    Give a folder of `overhear train`, as often as you like. Or give a run file: it is trained
    first, once for every combination of --sweep. The result stands beside a blind guess and beside
    what no defence, and clipping alone, would have given away. For gradients from elsewhere there
    is `overhear invert`.
    """
    from ...privacy.errors import InputError

    wanted = TrainingWanted(data=data, method=method, references=references, records=records)
    if training is not None:
        given: dict[str, object] = {"--set": overrides, "--sweep": sweeps}
        given |= {"--markdown": markdown, "a run": target}
        given |= {"--preset": presets, "--images": images is not None, "--name": name}
        given |= {
            "--adversary": adversary,
            "--prior": prior,
            "--prior-only": prior_only,
            "--denoiser": denoiser,
            "--convention": convention,
            "--out": out,
            "--device": device,
        }
        stray = [name for name, value in given.items() if value]
        run_training(training, wanted, others=stray, json=json)
        return
    wanted.check_unused()
    if target is None:
        raise InputError("a run's folder or a run file is missing; or give --train module:NAME")
    trust(trust_code)
    asked = _keys(
        presets=presets,
        images=images,
        adversary=adversary,
        prior=None if prior is None else str(prior),
        prior_only=prior_only or None,
        denoiser=denoiser,
    )
    shown = None if convention is None else convention.value
    if target.suffix != ".toml":
        if sweeps or markdown or out is not None:
            raise InputError("--sweep, --markdown and --out belong to RUN.toml; give a run file")
        if target.is_file():
            raise InputError(
                f"{target} is a file, no folder of a run; of gradients use `overhear invert "
                f"{target} --model ... --out ...`"
            )
        keys = (*(overrides or ()), *asked)
        _attack_folder(target, keys, name=name, device=device, convention=shown, json=json)
        return
    if asked or name is not None:
        raise InputError(
            "--preset, --images, --adversary, --prior, --denoiser and --name belong to the folder "
            "of a run; of RUN.toml give --set attack.presets=..., and so on"
        )
    if out is None:
        raise InputError("RUN.toml needs --out too, the folder for its runs")
    how = (shown, markdown, json)
    _attack_runs(target, out, sweeps or (), overrides or (), device=device, how=how)


def _keys(**given: object) -> list[str]:
    """What the options for keys of [attack] mean, as --set takes it."""
    return [
        f"attack.{key}={'true' if value is True else repr(value)}"
        for key, value in given.items()
        if value not in (None, [])
    ]


def _attack_runs(
    run: Path,
    out: Path,
    sweeps: Sequence[str],
    overrides: Sequence[str],
    *,
    device: str | None,
    how: tuple[str | None, bool, bool],
) -> None:
    from ...privacy.errors import InputError
    from ...runs.attack.sweep import attack_sweep, attack_sweep_rows, contradictions
    from ...runs.errors import ContradictedProof
    from ..terminal.progress import attack_progress
    from ..terminal.tables import rows_markdown, rows_table

    convention, markdown, json = how
    if json and markdown:
        raise InputError("--json and --markdown exclude each other; give one of them")
    with attack_progress(make_console(stderr=True)) as progress:
        found = attack_sweep(
            run,
            out,
            sweeps=sweeps,
            overrides=overrides,
            device=device,
            progress=progress,
            expect=progress.expect,
            stop=stop_of_command(),
        )
    rows = list(attack_sweep_rows(found, convention=convention))
    if json:
        print_json([one.dump() for one in found])
    elif markdown:
        write(rows_markdown(rows), end="")
    else:
        make_console().print(rows_table(rows, title="Reconstruction, mean PSNR or MSE/PSNR/SSIM"))
    if contradicted := contradictions(found):
        raise ContradictedProof("; ".join(contradicted))


def _attack_folder(
    folder: Path,
    overrides: Sequence[str],
    *,
    name: str | None,
    device: str | None,
    convention: str | None,
    json: bool,
) -> None:
    from ..terminal.progress import attack_progress

    with attack_progress(make_console(stderr=True)) as progress:
        from ...runs.attack.attack import attack_run  # torch takes a while

        result = attack_run(
            folder,
            overrides=overrides,
            name=name,
            device=device,
            convention=convention,
            progress=progress,
            expect=progress.expect,
            stop=stop_of_command(),
        )
    if json:
        print_json(result.dump())
        return
    from ..terminal.tables import attack_table, columns_table

    console = make_console()
    for scenario in result.scenarios:
        title = (
            f"{scenario.scenario}, round {scenario.round}: agent {scenario.victim} "
            f"by {scenario.preset}"
        )
        console.print(attack_table(scenario.rows, title=title, convention=convention))
        if scenario.rows[-1].columns:
            console.print(columns_table(scenario.rows))
        say(console, scenario.conclusion)
        say(console, scenario.bound.sentence)
        if scenario.known:
            say(console, f"The attacker was taken to know {scenario.known}.")
