"""An account as data: rows for pandas, and the object that `overhear plan --json` prints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ...privacy.formats.codec import dump, finite
from ...privacy.goal import Target
from ...privacy.guarantee import Guarantee
from ...privacy.missing import needs
from .summary import Summary

if TYPE_CHECKING:
    from pandas import DataFrame


def as_json(summary: Summary) -> dict[str, Any]:
    """The object of a plan, without what only a run file knows; infinite figures are "inf"."""
    return {
        "schema": 1,
        "noise_multiplier": finite(summary.noise_multiplier),
        "target": dump(
            Target.of(
                summary.goal,
                delta=summary.statement.delta,
                adversary=summary.target,
                reached=summary.reached,
            )
        ),
        "adversaries": [dump(stated) for stated in summary.guarantees],
        "published_bound": None,
        "warnings": list(summary.warnings),
    }


def as_frame(guarantees: Sequence[Guarantee]) -> DataFrame:
    """A row an adversary, worst first.

    Raises:
        ImportError: pandas is not installed.
    """
    try:
        from pandas import DataFrame
    except ImportError as error:
        raise ImportError(needs("to_pandas", "pandas")) from error
    return DataFrame([dump(stated, mode="python") for stated in guarantees])
