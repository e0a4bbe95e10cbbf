"""What metrics.jsonl says of some rounds and not of others is refused, before it is drawn."""

from dataclasses import replace
from pathlib import Path

import pytest

from overhear.privacy.errors import InputError
from overhear.reports.document.summary import utility
from overhear.runs.folder.records import read_metrics

LINES = Path(__file__).parents[2] / "museum" / "schema-3-finished" / "metrics.jsonl"


@pytest.mark.parametrize(
    "changed", [{"consensus_accuracy": None}, {"accuracy": None}, {"accuracy": []}, {"rmse": [1.0]}]
)
def test_lines_that_measure_different_things_are_refused(changed):
    first, *others = read_metrics(LINES)
    assert len(utility([first, *others]).rounds) == 4
    with pytest.raises(InputError, match=r"some lines of metrics\.jsonl have no "):
        utility([replace(first, **changed), *others])
