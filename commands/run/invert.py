"""The command `overhear invert`: on a file of gradients from any framework."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ..terminal import completion
from ..terminal.options import Json
from ..terminal.signals import stop_of_command
from ..terminal.terminal import make_console, print_json, say

__all__ = ["invert"]

_PER_CHANNEL = ("mean", "std", "low", "high")


def invert(
    gradients: Annotated[
        Path, typer.Argument(metavar="FILE", help="Safetensors file of gradients.")
    ],
    *,
    model: Annotated[str, typer.Option(help="A ready network, or module:function.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="New folder for the result.")],
    input_shape: Annotated[
        str | None, typer.Option(metavar="C,H,W", help="Shape of one record.")
    ] = None,
    classes: Annotated[int | None, typer.Option(help="Number of logits.")] = None,
    records: Annotated[
        int | None, typer.Option(help="Number of records in the batch; 1 by default.")
    ] = None,
    labels: Annotated[
        str | None,
        typer.Option(metavar="Y,...", help="Labels of the records, where they are known."),
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
    local_steps: Annotated[
        int | None, typer.Option(help="Gradient steps of which FILE holds the mean; 1 by default.")
    ] = None,
    local_rate: Annotated[float | None, typer.Option(help="Size of such a step.")] = None,
    mean: Annotated[
        str | None,
        typer.Option(metavar="M,...", help="Means that are subtracted from pixels in [0, 1]."),
    ] = None,
    std: Annotated[
        str | None,
        typer.Option(metavar="S,...", help="Standard deviations that pixels are divided by then."),
    ] = None,
    low: Annotated[
        str | None, typer.Option(metavar="L,...", help="The number that stands for a pixel of 0.")
    ] = None,
    high: Annotated[
        str | None, typer.Option(metavar="H,...", help="The number that stands for a pixel of 1.")
    ] = None,
    weights: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Parameters as a safetensors state dict, if FILE has none."
        ),
    ] = None,
    prior: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Public records: one as the blind guess, several to weigh."
        ),
    ] = None,
    denoiser: Annotated[
        str | None,
        typer.Option(
            metavar="module:NAME", help="A function of your own that removes noise from pictures."
        ),
    ] = None,
    truth: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The true records, to score against.")
    ] = None,
    vocabulary: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Words of the tokens: one a line, or JSON.")
    ] = None,
    columns: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Of a table: a run file whose [data] declares them."),
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(help="The attack; matched by default.", autocompletion=completion.presets),
    ] = None,
    restarts: Annotated[int | None, typer.Option(help="Number of starts of the search.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the starts; 0 by default.")] = None,
    device: Annotated[
        str | None,
        typer.Option(
            "--device", metavar="DEVICE", help="auto, cpu, cuda, cuda:N or mps; auto by default."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Try to rebuild the records behind gradients from elsewhere.

    The gradients may come from any framework. The file holds one gradient for each parameter of
    the network, and the parameters themselves unless --weights has them. What describes the batch
    may stand in its metadata.
    """
    from ...runs.attack.gradients.batch import counts, numbers
    from ...runs.attack.gradients.words import summary_lines
    from ..terminal.progress import attack_progress

    options: dict[str, Any] = {
        "input_shape": input_shape,
        "classes": classes,
        "records": records,
        "labels": labels,
        "clip_norm": clip_norm,
        "clip_batch": clip_batch,
        "noise_std": noise_std,
        "local_steps": local_steps,
        "local_rate": local_rate,
        "mean": mean,
        "std": std,
        "low": low,
        "high": high,
        "weights": weights,
        "prior": prior,
        "truth": truth,
        "vocabulary": vocabulary,
        "columns": columns,
        "denoiser": denoiser,
        "preset": preset,
        "restarts": restarts,
        "seed": seed,
        "device": device,
    }
    given = {name: value for name, value in options.items() if value is not None}
    for read, names in ((counts, ("input_shape", "labels")), (numbers, _PER_CHANNEL)):
        for name in names:
            if name in given:
                given[name] = read(given[name], name=name)
    with attack_progress(make_console(stderr=True)) as show:
        from ...runs.attack.gradients.invert import attack_gradients  # torch takes a while

        result = attack_gradients(
            gradients,
            model=model,
            out=out,
            **given,
            progress=lambda step, total: show(step, total, ""),
            stop=stop_of_command(),
        )
    if json:
        print_json(result.dump())
        return
    console = make_console()
    for line in summary_lines(result, out):
        say(console, line)
