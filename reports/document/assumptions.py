"""What the figures of declared releases rest on: nothing here shows that the list is true.

An assumption is checked where a check of kept releases passed, and the entry says in which rounds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ...privacy.releases.lines import Header


class Assumed(NamedTuple):
    """One thing that the figures rest on.

    Attributes:
        number: "A1" to "A6".
        text: what must hold.
        how: what speaks for it: that it is assumed, or which checks passed in which rounds.
        checked: whether some check passed that bears on it.
    """

    number: str
    text: str
    how: str
    checked: bool


CHECKS: Mapping[str, tuple[str, ...]] = {
    "A1": (),
    "A2": ("points",),
    "A3": ("messages", "residuals", "sums", "rows"),
    "A4": ("sampler",),
    "A5": ("residuals", "knowledge"),
    "A6": (),
}
"""The checks that bear on each assumption; none of them shows it in full."""

_TEXTS = {
    "A1": "The list is complete: whatever depends on records and leaves an agent has a line, also "
    "losses, counts, the round in which training stops, and statistics of a normalisation.",
    "A2": "Everything else in a release, and each point at which a gradient is taken, is a "
    "function of {released}.",
    "A3": "What one {unit} adds to a vector is at most its clip norm long; a mean that is clipped "
    "as a whole, and not its parts, is declared with twice that norm.",
    "A4": "Batches are drawn as they are declared: {sampler}.",
    "A5": "The noise is Gaussian, fresh where no id says otherwise, and secret "
    "but to those who are declared to know it.",
    "A6": "Each {unit} is held by one agent.",
}
_ASSUMED = "assumed: no one looked"


def assumed(
    header: Header,
    *,
    sampled: bool | None = None,
    stated: Sequence[str] = (),
    noise_first: int = 0,
    passed: Sequence[str] = (),
    rounds: Sequence[int] = (),
) -> list[Assumed]:
    """The assumptions of a log.

    Args:
        sampled: whether some release counts as made of a batch, as it may say for itself; what the
            header says when None.
        stated: which releases count as public because they say so, in sentences.
        noise_first: how many releases say that their noise met the bare sum first.
        passed: names of the checks of kept releases that passed.
        rounds: the rounds in which they looked.

    >>> from overhear.privacy.releases.lines import read_header
    >>> found = assumed(read_header({"schema": "releases-1", "agents": 2, "clip": 1.0}))
    >>> found[3].text
    'Batches are drawn as they are declared: every record may be in every batch.'
    """
    unit = str(header.unit)
    words = {
        "released": "public releases alone" if header.public else "what was released before",
        "unit": unit,
        "sampler": (
            f"each {unit} on its own, at its rate, in secret and anew each time that a round is "
            "gone through, without weights; no one sees who takes part, and a rate or a divisor "
            "that comes from the number of records makes that number public"
            if (header.poisson if sampled is None else sampled)
            else f"every {unit} may be in every batch"
        ),
    }
    found = []
    for number, text in _TEXTS.items():
        by = [name for name in CHECKS[number] if name in passed]
        checks = f"the {'check' if len(by) == 1 else 'checks'} of {' and '.join(by)}"
        how = f"{checks} passed in {_of(rounds)}; otherwise assumed" if by else _ASSUMED
        said = text.format(**words)
        if number == "A2":
            said = " ".join([said, *(f"{one.removesuffix('.')}." for one in stated)])
        if number == "A5" and noise_first:
            said += (
                f" In {noise_first} of the releases it was added to the sum before anything else, "
                "as they say."
            )
        found.append(Assumed(number, said, how, bool(by)))
    return found


def _of(rounds: Sequence[int]) -> str:
    shown = ", ".join(map(str, rounds[:8])) + (f" and {len(rounds) - 8} more" * (len(rounds) > 8))
    return f"{'round' if len(rounds) == 1 else 'rounds'} {shown}"
