"""The command `overhear invert`: on a file of gradients from any framework."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Annotated, Any

import typer

from ...runs.attack.gradients.options import OPTIONS
from ..terminal import completion
from ..terminal.options import Json
from ..terminal.signals import stop_of_command
from ..terminal.terminal import make_console, print_json, say

__all__ = ["invert"]


def invert(
    gradients: Annotated[
        Path, typer.Argument(metavar="FILE", help="Safetensors file of gradients.")
    ],
    *,
    model: Annotated[str, typer.Option(help="A ready network, or module:function.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="New folder for the result.")],
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
        typer.Option(
            metavar="FILE", help="A run file whose [data] declares the columns of a table."
        ),
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
    **batch: Any,
) -> None:
    """Try to rebuild the records behind gradients from elsewhere.

    The gradients may come from any framework. The file holds one gradient for each parameter of
    the network, and the parameters themselves unless --weights has them. What describes the batch
    may stand in its metadata.
    """
    from ..terminal.progress import attack_progress

    given: dict[str, Any] = {
        "weights": weights, "prior": prior, "truth": truth, "vocabulary": vocabulary,
        "columns": columns, "denoiser": denoiser, "preset": preset, "restarts": restarts,
        "seed": seed, "device": device,
    }  # fmt: skip
    given |= {
        name: OPTIONS[name].read(value, name) if isinstance(value, str) else value
        for name, value in batch.items()
    }
    with attack_progress(make_console(stderr=True)) as show:
        from ...runs.attack.gradients.invert import attack_gradients  # torch takes a while

        result = attack_gradients(
            gradients,
            model=model,
            out=out,
            **{name: value for name, value in given.items() if value is not None},
            progress=lambda step, total: show(step, total, ""),
            stop=stop_of_command(),
        )
    if json:
        print_json(result.dump())
        return
    from ...runs.attack.gradients.words import summary_lines

    console = make_console()
    for line in summary_lines(result, out):
        say(console, line)


def _signature() -> inspect.Signature:
    """That of `invert`, with options for all that can be stated of the batch after its own two."""
    *every, _ = inspect.signature(invert, eval_str=True).parameters.values()
    said = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[
                (str if of.metavar else of.kind) | None,
                typer.Option(*_flag(name, of.kind), metavar=of.metavar, help=of.help),
            ],
        )
        for name, of in OPTIONS.items()
    ]
    return inspect.Signature([*every[:3], *said, *every[3:]])


def _flag(name: str, kind: type) -> tuple[str, ...]:
    """The one spelling of an option without a value, which would else have its opposite too."""
    return (f"--{name.replace('_', '-')}",) if kind is bool else ()


invert.__signature__ = _signature()  # type: ignore[attr-defined] # typer reads it
