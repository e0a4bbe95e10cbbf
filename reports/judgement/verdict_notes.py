"""What a reader of the verdict must know beside it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from markupsafe import Markup

from ..cited import Cited
from .evidence_places import suspicions_in
from .row_words import adversary_phrase, epsilon_kind, epsilon_sign

__all__ = ["verdict_notes"]

_MOST_STRETCHES = 4  # of rounds that follow each other


def verdict_notes(report: Mapping[str, Any]) -> tuple[Markup, ...]:
    """Sentences: who learns more, what was interrupted, repeated, duplicated or suspicious.

    Args:
        report: the object of privacy.json.

    Raises:
        KeyError: the report lacks a figure that a sentence cites.
    """
    cited = Cited(report)
    return (
        *_larger(report, cited),
        *_interrupted(report, cited),
        *_duplicates(report, cited),
        *_audited(report),
    )


def _larger(report: Mapping[str, Any], cited: Cited) -> tuple[Markup, ...]:
    """Adversaries beside the target that learn more than it."""
    spent, target = report["ledger"]["epsilon"], report["plan"]["target"]["adversary"]
    if target not in spent:
        return ()
    rows = {row["name"]: row for row in report["plan"]["adversaries"]}
    return tuple(
        Markup("Beside the target, ε {} {} at the same δ and unit against {}.").format(
            epsilon_sign(rows[name], epsilon),
            cited(epsilon_kind(rows[name]), "ledger", "epsilon", name),
            adversary_phrase(name),
        )
        for name, epsilon in spent.items()
        if name in rows and float(epsilon) > float(spent[target])
    )


def _interrupted(report: Mapping[str, Any], cited: Cited) -> tuple[Markup, ...]:
    run = report["run"]
    notes = [*_ended(run, cited), *_resumed(report, cited)]
    if report["ledger"]["torn"]:
        notes.append(
            Markup("The last line of the ledger is torn; the release it announces is counted.")
        )
    if run["evaluation_noise_seed"] is not None:
        notes.append(
            Markup(
                "The noise was drawn from evaluation_noise_seed: whoever knows it can subtract "
                "the noise."
            )
        )
    return tuple(notes)


def _ended(run: Mapping[str, Any], cited: Cited) -> Iterator[Markup]:
    """Where the run ended, if that is not the planned end."""
    stopped, rounds = run["stopped"], cited("whole", "run", "rounds")
    if run["finished"]:
        if stopped is not None:
            yield Markup(
                "The budget ended the run after round {} of {}: rounds that were released more "
                "than once had used up the rest, and one more release would have exceeded the "
                "target of {}."
            ).format(
                cited("whole", "run", "stopped", "round"),
                rounds,
                adversary_phrase(stopped["adversary"]),
            )
        return
    yield Markup(
        "The run is not finished: {} of {} rounds were released. What stopped it may depend on the "
        "data, so the planned rounds are accounted for. "
        "<code>overhear train DIR/run.toml --out DIR --resume</code> continues it{}."
    ).format(
        cited("whole", "run", "rounds_done"),
        rounds,
        ""
        if stopped is None
        else Markup(", to round {} at the most, where its budget ends it").format(
            cited("whole", "run", "stopped", "round")
        ),
    )


def _resumed(report: Mapping[str, Any], cited: Cited) -> Iterator[Markup]:
    """How often the run was resumed, and what it released more than once."""
    ledger = report["ledger"]
    times = len(ledger["resumed_after"])
    if not times:
        return
    often = "once" if times == 1 else f"{times} times"
    if not ledger["repeated"]:
        yield Markup("The run was resumed {}, and no round was released again.").format(often)
        return
    yield Markup(
        "The run was resumed {}. Released more than once: {}. Each of the {} releases of rounds is "
        "counted.{}"
    ).format(
        often,
        _which(ledger["repeated"], cited),
        cited("whole", "ledger", "rounds"),
        # A bound on a sum whose length was not fixed beforehand needs more than composition.
        Markup(
            " They are more than the {} planned, so the figures hold if what cut the run off did "
            "not depend on the data."
        ).format(cited("whole", "run", "rounds"))
        if ledger["rounds_accounted"] > report["run"]["rounds"]
        else "",
    )


def _which(repeated: Sequence[Sequence[int]], cited: Cited) -> Markup:
    """The rounds of (round, how often), those that follow each other as one stretch."""
    stretches: list[list[int]] = []  # places of the first and the last
    for at, (number, _) in enumerate(repeated):
        if stretches and number > 1 and repeated[at - 1][0] == number - 1:
            stretches[-1][1] = at
        else:
            stretches.append([at, at])
    shown = []
    for first, last in stretches[:_MOST_STRETCHES]:
        begins, ends = (cited("whole", "ledger", "repeated", at, 0) for at in (first, last))
        if repeated[first][0] == 0:
            shown.append(Markup("the start"))
        elif first == last:
            shown.append(Markup("round {}").format(begins))
        else:
            shown.append(Markup("rounds {} to {}").format(begins, ends))
    if len(stretches) > _MOST_STRETCHES:
        shown.append(Markup("others"))
    most = Markup(", ").join(shown[:-1])
    return Markup("{} and {}").format(most, shown[-1]) if most else shown[-1]


def _duplicates(report: Mapping[str, Any], cited: Cited) -> tuple[Markup, ...]:
    """Records that occur more than once: the statement is for each copy alone."""
    if not report["run"].get("duplicate_records"):
        return ()
    return (
        Markup(
            "{} records occur more than once. The figure holds for one copy: whoever is in the "
            "data k times is protected less."
        ).format(cited("whole", "run", "duplicate_records")),
    )


def _audited(report: Mapping[str, Any]) -> tuple[Markup, ...]:
    if not suspicions_in(report):
        return ()
    return (Markup("The audit is suspicious: once it measured more than is proven (section 6)."),)
