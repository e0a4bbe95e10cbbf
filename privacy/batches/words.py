"""How batches are drawn, in a sentence."""

from __future__ import annotations

from collections.abc import Sequence

from .drawing import Drawing, Scheme
from .patterns import Pattern

__all__ = ["CONSTANTS", "counts_words", "drawn_words", "entry_words", "total_words", "turn_words"]

CONSTANTS = (
    "The rate, the normaliser, the weights, the graph and the number of rounds are public "
    "constants; where they come from the number of records in all, that number is public."
)


def drawn_words(drawn: Sequence[Drawing], sampling_rate: float) -> str:
    """The sentence, without its full stop.

    >>> drawn_words([Drawing(Scheme.CYCLIC, 25, 10, 25)], 0.4)
    'Each agent takes 10 of its records a round in one fixed order, leaves out 5 at most at the end'
    """
    size = drawn[0].size
    left = max(one.records % size for one in drawn)
    rest = f", leaves out {left} at most at the end" if left else ""
    match drawn[0].scheme:
        case Scheme.FIXED:
            return f"Each agent draws {size} of its records without replacement, anew each round"
        case Scheme.SHUFFLED:
            return (
                f"Each agent shuffles its records, takes {size} a round in that order{rest}, and "
                "shuffles them anew"
            )
        case Scheme.CYCLIC:
            return f"Each agent takes {size} of its records a round in one fixed order{rest}"
        case _:
            return (
                f"Each agent draws each of its records with probability {sampling_rate:.6g} a "
                f"round, and of more than {size} keeps {size} by chance"
            )


def entry_words(drawn: Drawing | None) -> str:
    """The batches of one agent in a few words, with all numbers that a figure rests on.

    >>> entry_words(None), entry_words(Drawing(Scheme.FIXED, 50, 5, 50))
    ('Poisson batches', "batches='fixed' of 5 of 50 records")
    """
    if drawn is None:
        return "Poisson batches"
    if drawn.scheme is Scheme.TRUNCATED:
        return f"Poisson batches of {drawn.records} records, cut at {drawn.size}"
    return f"{drawn.named} of {drawn.size} of {drawn.records} records"


def counts_words(drawn: Sequence[Drawing]) -> str:
    """That numbers of records are public, without a full stop.

    >>> counts_words([Drawing(Scheme.FIXED, 25, 10, 25), Drawing(Scheme.FIXED, 30, 10, 30)])
    'How many records each agent holds (25 to 30) counts as public'
    """
    least, most = min(one.records for one in drawn), max(one.most for one in drawn)
    held = f"{least}" if least == most else f"{least} to {most}"
    return f"How many records each agent holds ({held}) counts as public"


def total_words(derived: Sequence[str]) -> str:
    """That the number of all records is public, where one record more or less changes it.

    Args:
        derived: what is computed from it; at least one.

    >>> total_words(["the sampling rate"])[:72]
    'The number of records in all counts as public: the sampling rate comes f'
    """
    what = " and ".join(derived)
    comes = "comes" if len(derived) == 1 else "come"
    return (
        f"The number of records in all counts as public: {what} {comes} from it and would show a "
        'record more or less. With adjacency "zero-out" or "replace-one" that number stays the same'
    )


def turn_words(pattern: Pattern, coin: float) -> str:
    """In which rounds a record may be, and how it is drawn in these, in sentences.

    >>> from .patterns import PatternKind
    >>> turn_words(Pattern(PatternKind.CYCLE, 10), 0.2)[:67]
    'A record takes part at most every 10th round, in its turn, which th'
    """
    return (
        f"A record takes part {pattern.words}, which the sampler enforces: its turns follow from "
        "a hash of the record itself and the seed, and count as public. In its turn it is drawn "
        f"with probability {coin:.6g}."
    )
