"""The command `overhear design`: kinds of noise for a run file at equal epsilon."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .terminal.options import Format, Overrides, RunPath, TableOrJson, TrustCode, trust
from .terminal.terminal import make_console, make_table, print_json, say

if TYPE_CHECKING:
    from rich.table import Table

    from ..runs.plan.design_words import Compared, Row
    from ..runs.run_file.run_file import RunFile


_WIDE = 0.01  # epsilon whose columns are wide


def design(
    run: RunPath,
    overrides: Overrides = None,
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
    trust_code: TrustCode = False,
    format: Format = TableOrJson.TABLE,
) -> None:
    """Find the best noise for a run's graph and rounds.

    Five kinds of noise are compared at equal epsilon. The exit code is 2 on bad input, or if with
    --out the kind cannot meet the target.
    """
    from ..privacy.errors import InputError
    from ..runs.run_file.run_file import load_run_file
    from ..runs.stop import tell

    trust(trust_code)
    if kind is not None and out is None:
        raise InputError("--kind says which noise --out writes; give --out FILE too")
    config = load_run_file(run, overrides or (), notice=tell)
    from ..runs.plan.design_compare import compare  # after: a bad run file is told without torch

    found = compare(config, groups=groups)
    written = None if out is None else _write(config, found, out, kind)
    if format is TableOrJson.JSON:
        print_json(found.dump())
        return
    _show(found)
    if written is not None:
        console = make_console()
        console.print()
        say(console, f"Written to {out}: {written.kind}, algorithm {written.algorithm}")


def _write(config: RunFile, found: Compared, out: Path, kind: str | None) -> Row:
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


def _show(found: Compared) -> None:
    from ..runs.numbers import bound, small

    console = make_console()
    say(
        console,
        f"Every kind at epsilon {bound(found.epsilon)}, delta {small(found.delta)} against "
        f"{found.adversary}; {found.rounds} rounds at sampling rate {found.sampling_rate:g}",
    )
    console.print(_table(found))
    for title, lines in (
        ("Who can undo it", _undone(found)),
        ("What to use", found.advice),
        ("What trains it", _trained(found)),
    ):
        console.print()
        say(console, title)
        for line in lines:
            _say_indented(line)


def _say_indented(text: str) -> None:
    from rich.padding import Padding
    from rich.text import Text

    make_console().print(Padding(Text(text), (0, 0, 0, 2), expand=False))


def _undone(found: Compared) -> list[str]:
    grouped: dict[str, list[str]] = {}
    for row in found.rows:
        grouped.setdefault(row.undone_by, []).append(row.kind)
    return [f"{', '.join(kinds)}: {who}" for who, kinds in grouped.items()]


def _trained(found: Compared) -> list[str]:
    said = []
    for row in found.rows:
        settings = "".join(f", {key} = {value}" for key, value in row.settings.items())
        said.append(f"{row.kind}: {row.algorithm}{settings}")
    return said


def _share(gap: float) -> str:
    """A relative gap, rounded up."""
    return "< 1e-4" if gap < 1e-4 else f"{gap:.1e}" if gap < 0.01 else f"{gap:.2f}"


def _table(found: Compared) -> Table:
    from rich.text import Text

    from ..runs.numbers import bound, figure

    table = make_table("Noise in the models")
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
    table.caption_justify = "left"
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
