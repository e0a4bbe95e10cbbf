"""How a leak is named: the messages whose combination is free of noise, and when they were sent."""

from __future__ import annotations

import re
from collections.abc import Sequence

_END = "at the end of the round"
_FINAL = re.compile(r"final (?:model|field (\w+)), row \d+")
_SENT = (" of agent ", " of the server")


def final_row(row: int, field: str | None = None) -> str:
    """What is released after the last round: a model, or a row of another field of the state.

    >>> final_row(1), final_row(1, "v")
    ('final model, row 1', 'final field v, row 1')
    """
    return f"final {'model' if field is None else f'field {field}'}, row {row}"


def in_round(name: str, number: int) -> str:
    """What was sent or kept in a round, which is the start where the number is 0.

    >>> in_round("model of agent 0 to 1, 3", 2)
    'model of agent 0 to 1, 3 in round 2'
    >>> in_round("state x at the end of the round, row 1", 0)
    'state x after the start, row 1'
    """
    if _FINAL.fullmatch(name):
        return name
    if _END in name:
        return name.replace(_END, f"at the end of round {number}" if number else "after the start")
    return f"{name} in round {number}" if number else f"{name} at the start"


def leak_sentence(messages: Sequence[str]) -> str:
    """What is shown without noise: one message alone, or several whose noise cancels.

    Args:
        messages: their names, in the order of sending.

    >>> leak_sentence(["first of agent 0 in round 1", "second of agent 0 in round 2"])[:71]
    'the noise cancels between: first of agent 0 in round 1, which showed it'
    >>> leak_sentence(["final field v, row 0"]).split("; ")[1].split(":")[0]
    'the field v counts as released after the last round'
    """
    first, *others = messages
    ends = (_FINAL.fullmatch(name) for name in messages)
    field = next((end[1] for end in ends if end is not None and end[1] is not None), None)
    remedy = (
        ""
        if field is None
        else f"; the field {field} counts as released after the last round: where it never leaves "
        f"its agent, declare released=(...), with the fields that do, and without {field!r}"
    )
    if not others:
        return f"sent or kept without noise that the adversary does not know: {first}{remedy}"
    if any(sender in first for sender in _SENT):
        first += ", which showed it"
    return f"the noise cancels between: {'; '.join((first, *others))}{remedy}"
