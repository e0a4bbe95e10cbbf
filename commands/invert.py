"""The command `overhear invert`: on a file of gradients from any framework."""

from __future__ import annotations

from ..runs.attack.request import GradientRequest
from .terminal.options import Format, IsThere, TableOrJson
from .terminal.signals import stop_of_command
from .terminal.terminal import make_console, print_json, say


def invert(request: GradientRequest, *, format: Format = TableOrJson.TABLE) -> None:
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
    IsThere("{}: No such file or directory").look([request.gradients, *read])
    from .terminal.progress import attack_progress

    with attack_progress(make_console(stderr=True)) as progress:
        from ..runs.attack.invert import attack_gradients  # torch takes a while

        result = attack_gradients(request, progress=progress, stop=stop_of_command())
    from ..reports.document.found import write_found

    write_found(request.out)
    if format is TableOrJson.JSON:
        print_json(result.dump())
        return
    from ..runs.attack.words import summary_lines

    console = make_console()
    for line in summary_lines(result, request.out):
        say(console, line)
