"""The commands `overhear membership`, of a run, and `membership-training`, of your own training."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..runs.audit.requests import MembershipRequest
from .terminal.options import NO_RUN, Format, IsThere, TableOrJson, TrustCode, trust
from .terminal.signals import stop_of_command
from .terminal.terminal import make_console, print_json, say

if TYPE_CHECKING:
    from ..runs.audit.evidence import Membership


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
        IsThere(NO_RUN),
    ],
    request: MembershipRequest,
    *,
    trust_code: TrustCode = False,
    format: Format = TableOrJson.TABLE,
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

    trust(trust_code)
    contradicted: ContradictedProof | None = None
    with audit_progress(make_console(stderr=True)) as progress:
        from ..runs.audit.membership import audit_membership  # torch takes a while

        try:
            found = audit_membership(folder, request, progress=progress, stop=stop_of_command())
        except ContradictedProof as error:
            kept = read_membership(folder)
            if kept is None:
                raise
            contradicted, found = error, kept
    if format is TableOrJson.JSON:
        print_json(found.dump())
    else:
        _show(found)
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
    format: Format = TableOrJson.TABLE,
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
    if format is TableOrJson.JSON:
        print_json(found.dump())
    else:
        say(make_console(), str(found.table()))


def _show(found: Membership) -> None:
    from .terminal.tables import membership_table

    console = make_console()
    parts = (
        ("The run itself: records that it was trained on, against held-out ones", found.run),
        (f"{found.games} games with random assignment", found.played),
    )
    for title, part in parts:
        if part is not None:
            say(console, f"{part.plain}.")
            console.print(membership_table(part, title=title))
    say(
        console,
        f"{found.references} references; intervals at {100 * found.confidence:g} % as if records "
        "were independent. An attack that fails shows no leak; it does not show that there is "
        "none.",
    )
    for exposed_record in found.exposed:
        say(
            console,
            f"Record {exposed_record.record} of agent {exposed_record.agent}: score "
            f"{exposed_record.score:.2f} nats.",
        )
    say(console, f"{found.words}.")
    say(console, f"Verdict: {found.verdict}.")
