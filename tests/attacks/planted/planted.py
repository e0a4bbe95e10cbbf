"""What a planted fault is, and by which check each kind of fault has to be named."""

import enum
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

CONTRADICTED = "contradicted"  # named by an adversary whose bound is above the proof, by no check
TRAINING = "training"  # that ended by itself before anything was released


class Origin(enum.Enum):
    """Where a fault comes from."""

    FIRST = "the first catalogue"
    OUTSIDE = "planted from outside, by people who did not write the checks"
    HOLDOUT = "kept apart, of the same kinds, to see whether checks find kinds and not names"


class Kind(enum.Enum):
    """What is wrong, which decides what has to find it."""

    NOISE_SIZE = "noise of another size than declared"
    NOISE_SHAPE = "noise of another law than the normal one"
    STREAMS = "noise that comes twice"
    CLIPPING = "a record's influence beyond its bound"
    SECRECY = "noise, batches or cohorts that others can draw, too"
    SAMPLING = "batches that are not Poisson at the declared rate"
    RECORDS = "a record that counts more than once"
    VALUES = "a value that carries data without its noise"
    KNOWLEDGE = "a seed that more know than declared"
    TRAINED = "a folder whose messages are not what its ledger says"
    MEASURED = "epsilon larger than stated, which the canaries themselves have to show"


# Names of checks, of which one has to fail; a fault of a kind may be seen from several sides.
NAMED_BY: Mapping[Kind, frozenset[str]] = {
    Kind.NOISE_SIZE: frozenset({"residuals", "messages", "absent canaries", CONTRADICTED}),
    Kind.NOISE_SHAPE: frozenset({"residuals", "absent canaries"}),
    Kind.STREAMS: frozenset({"residuals", "streams"}),
    Kind.CLIPPING: frozenset({"messages", "sensitivity", "clipping", "layout", CONTRADICTED}),
    Kind.SECRECY: frozenset({"secrecy"}),
    Kind.SAMPLING: frozenset({"sampler"}),
    Kind.RECORDS: frozenset({"sampler", "records", "sensitivity"}),
    Kind.VALUES: frozenset({"messages", "values", "functions"}),
    Kind.KNOWLEDGE: frozenset({"knowledge"}),
    Kind.TRAINED: frozenset({TRAINING, "transcript"}),
    Kind.MEASURED: frozenset({"absent canaries", CONTRADICTED}),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Planted:
    """A fault that is there while the context of `plant()` is open.

    Attributes:
        name: of the fault.
        sentence: what it does to the true epsilon.
        plant: opens it. It patches what the engine, the trace or the accounting computes, below
            the script that a round follows, so that the run goes on as if nothing were wrong.
        kind: what is wrong.
        origin: where it comes from.
        statistical: whether it is found by chance, 18 times of 20; the others every time.
        folder: whether it is there while a folder is trained and gone when that is audited; the
            others are there while a run file is audited.
        settings: overrides of the run file that is audited (`audits.RUN`).
        holders: on which values of noise it acts: "any", "edges" (a noise for each link), "factor"
            (shared sources).
    """

    name: str
    sentence: str
    plant: Callable[[], AbstractContextManager[None]]
    kind: Kind
    origin: Origin
    statistical: bool = False
    folder: bool = False
    settings: tuple[str, ...] = ()
    holders: str = "any"

    @property
    def named_by(self) -> frozenset[str]:
        """Checks of which one has to fail; `CONTRADICTED` for a contradicted adversary."""
        return NAMED_BY[self.kind]

    def enough(self, audits: int) -> int:
        """In how many of so many audits it has to be found: all, or nine in ten by chance.

        >>> one = Planted(name="", sentence="", plant=None, kind=Kind.STREAMS,
        ...     origin=Origin.FIRST, statistical=True)
        >>> one.enough(20), one.enough(1)
        (18, 1)
        """
        return -(-9 * audits // 10) if self.statistical else audits


@dataclass(frozen=True, slots=True)
class Faults:
    """Those of a file: each stands above what plants it, with its name, sentence and origin."""

    kind: Kind
    held: list[Planted] = field(default_factory=list)

    def __call__(self, name: str, sentence: str, origin: Origin, **more: Any) -> Callable:
        def keep(plant: Callable[[], AbstractContextManager[None]]) -> Callable:
            of = {"name": name, "sentence": sentence, "origin": origin, "plant": plant}
            self.held.append(Planted(**{"kind": self.kind, **of, **more}))
            return plant

        return keep
