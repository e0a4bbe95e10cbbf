"""The command `overhear attack`: on a run's folder, on a run file, or on a file of gradients."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from ...privacy.errors import InputError
from ..terminal.terminal import make_console, print_json, say

__all__ = ["attack"]


class ConventionName(enum.StrEnum):
    """Another scale of scores than ours."""

    DPDL = "dpdl"


Target = Annotated[
    Path | None,
    typer.Argument(metavar="DIR|RUN.toml", help="Folder of a run, or a run file to train first."),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]


def attack(
    target: Target = None,
    *,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="table.key=value", help="Of RUN.toml: override a key."),
    ] = None,
    sweeps: Annotated[
        list[str] | None,
        typer.Option(
            "--sweep", metavar="table.key=a,b,c", help="Of RUN.toml: train and attack all of them."
        ),
    ] = None,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Of RUN.toml: print a Markdown table.")
    ] = False,
    convention: Annotated[
        ConventionName | None,
        typer.Option(help="Scores as that paper scales images: in [-1, 1], data range 2."),
    ] = None,
    gradients: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Safetensors file of gradients, in place of a run."),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Of --gradients: a ready network or module:function.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Of RUN.toml and --gradients: the result.")
    ] = None,
    input_shape: Annotated[str | None, typer.Option(metavar="C,H,W", help="Of one record.")] = None,
    classes: Annotated[int | None, typer.Option(help="Number of logits.")] = None,
    records: Annotated[int | None, typer.Option(help="Size of the batch; else 1.")] = None,
    labels: Annotated[
        str | None, typer.Option(metavar="Y,...", help="Of the records, where known.")
    ] = None,
    clip_norm: Annotated[
        float | None, typer.Option(help="L2 bound on each record's gradient.")
    ] = None,
    clip_batch: Annotated[
        bool | None,
        typer.Option("--clip-batch", help="The bound is on the mean of the batch instead."),
    ] = None,
    noise_std: Annotated[
        float | None, typer.Option(help="Noise on each coordinate of the mean, as it was sent.")
    ] = None,
    mean: Annotated[
        str | None, typer.Option(metavar="M,...", help="Taken from pixels in [0, 1].")
    ] = None,
    std: Annotated[
        str | None, typer.Option(metavar="S,...", help="Divides the pixels then.")
    ] = None,
    low: Annotated[
        str | None, typer.Option(metavar="L,...", help="What a pixel of 0 is fed as.")
    ] = None,
    high: Annotated[
        str | None, typer.Option(metavar="H,...", help="What a pixel of 1 is fed as.")
    ] = None,
    weights: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Safetensors state dict, if FILE has no parameters."),
    ] = None,
    prior: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Public guess: picture or safetensors.")
    ] = None,
    truth: Annotated[
        Path | None, typer.Option(metavar="FILE", help="To score against: likewise.")
    ] = None,
    preset: Annotated[
        str | None, typer.Option(help="Of --gradients: the attack; else matched.")
    ] = None,
    restarts: Annotated[int | None, typer.Option(help="Number of starts.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of the starts; else 0.")] = None,
    json: Json = False,
) -> None:
    """Try to rebuild records from what was intercepted, beside three references.

    On a folder of `overhear train`; or on a run file, which is trained before, with every
    combination that --sweep gives; or with --gradients on a file from any framework, which takes
    the other options; those of the batch may stand in the file's metadata.
    """
    options: dict[str, Any] = {
        "model": model,
        "out": out,
        "input_shape": input_shape,
        "classes": classes,
        "records": records,
        "labels": labels,
        "clip_norm": clip_norm,
        "clip_batch": clip_batch,
        "noise_std": noise_std,
        "mean": mean,
        "std": std,
        "low": low,
        "high": high,
        "weights": weights,
        "prior": prior,
        "truth": truth,
        "preset": preset,
        "restarts": restarts,
        "seed": seed,
    }
    given = {name: value for name, value in options.items() if value is not None}
    if (target is None) == (gradients is None):
        raise InputError("give DIR, RUN.toml or --gradients FILE, one of them")
    run = target is not None and target.suffix == ".toml"
    if (overrides or sweeps or markdown) and not run:
        raise InputError("--set, --sweep and --markdown belong to RUN.toml; give a run file")
    if gradients is not None:
        if convention is not None:
            raise InputError("--convention belongs to runs; leave it out with --gradients")
        _attack_file(gradients, given, json=json)
        return
    stray = next((name for name in given if not (run and name == "out")), None)
    if stray is not None:
        raise InputError(
            f"--{stray.replace('_', '-')} belongs to --gradients FILE; a run says it itself"
        )
    assert target is not None  # noqa: S101 # one of the two was given
    shown = None if convention is None else convention.value
    if not run:
        _attack_folder(target, convention=shown, json=json)
        return
    if out is None:
        raise InputError("RUN.toml needs --out too, the folder for its runs")
    _attack_runs(target, out, sweeps or (), overrides or (), how=(shown, markdown, json))


def _attack_runs(
    run: Path,
    out: Path,
    sweeps: Sequence[str],
    overrides: Sequence[str],
    *,
    how: tuple[str | None, bool, bool],
) -> None:
    from ...runs.attack.sweep import attack_sweep, attack_sweep_rows, contradictions
    from ...runs.errors import ContradictedProof
    from ..terminal.progress import attack_progress
    from ..terminal.tables import rows_markdown, rows_table

    convention, markdown, json = how
    if json and markdown:
        raise InputError("--json and --markdown exclude each other; give one of them")
    with attack_progress(make_console(stderr=True)) as progress:
        found = attack_sweep(run, out, sweeps=sweeps, overrides=overrides, progress=progress)
    rows = list(attack_sweep_rows(found, convention=convention))
    if json:
        print_json([one.dump() for one in found])
    elif markdown:
        print(rows_markdown(rows), end="")
    else:
        make_console().print(rows_table(rows, title="Reconstruction, mean PSNR or MSE/PSNR/SSIM"))
    if contradicted := contradictions(found):
        raise ContradictedProof("; ".join(contradicted))


def _attack_folder(folder: Path, *, convention: str | None, json: bool) -> None:
    from ...runs.attack.attack import attack_run
    from ..terminal.progress import attack_progress

    with attack_progress(make_console(stderr=True)) as progress:
        result = attack_run(folder, progress=progress)
    if json:
        print_json(result.dump())
        return
    from ..terminal.tables import attack_table

    console = make_console()
    for scenario in result.scenarios:
        title = (
            f"{scenario.scenario}, round {scenario.round}: agent {scenario.victim} "
            f"by {scenario.preset}"
        )
        console.print(attack_table(scenario.rows, title=title, convention=convention))
        say(console, scenario.conclusion)
        say(console, scenario.bound.sentence)


def _attack_file(gradients: Path, given: dict[str, Any], *, json: bool) -> None:
    from ...runs.attack.gradients.batch import counts, numbers
    from ...runs.attack.gradients.invert import attack_gradients
    from ...runs.attack.gradients.words import summary_lines
    from ..terminal.progress import attack_progress

    missing = [name for name in ("model", "out") if name not in given]
    if missing:
        raise InputError(f"--gradients needs --{missing[0]} too")
    for read, names in ((counts, ("input_shape", "labels")), (numbers, _PER_CHANNEL)):
        for name in names:
            if name in given:
                given[name] = read(given[name], name=name)
    with attack_progress(make_console(stderr=True)) as show:
        result = attack_gradients(
            gradients, **given, progress=lambda step, total: show(step, total, "")
        )
    if json:
        print_json(result.dump())
        return
    console = make_console()
    for line in summary_lines(result, given["out"]):
        say(console, line)


_PER_CHANNEL = ("mean", "std", "low", "high")
