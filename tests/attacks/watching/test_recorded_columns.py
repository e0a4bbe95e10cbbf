"""Rows of a trace over recorded columns are the values that were sent."""

import numpy as np
import torch

from overhear.attacks.checks.recording import RecordedColumns, influence
from tests.attacks.checks.watched import sound_run


def test_a_row_of_the_trace_is_what_was_sent():
    for watched in sound_run("dpdl").rounds[1:]:
        columns = RecordedColumns(watched)
        for group, message in zip(watched.trace.messages, watched.messages, strict=True):
            found = columns.value(group.rows, width=message.rows.shape[1])
            left = np.linalg.norm(found - message.rows.numpy(), axis=1)
            assert (left <= columns.rounding(group.rows)).all()
            assert columns.rounding(group.rows).max() < 1e-9


def test_an_influence_is_linear_in_what_changes():
    watched = sound_run("dp-dpsgd").rounds[1]
    group = next(g for g in watched.trace.groups if hasattr(g, "bounds"))
    rows = watched.trace.record.end_state["x"]
    change = torch.randn(5, 7, generator=torch.Generator().manual_seed(1)).numpy()
    found = influence(rows, [group.start], [change], width=7)
    assert np.allclose(2 * found, influence(rows, [group.start], [2 * change], width=7))
