"""Values: what counts as known is what its trace says, and not merely what was recorded.

A trace counts the models at which gradients are taken, what functions are given and what they
return as known: noisy values, or functions of such. A round that handed a function a clean gradient
in place of the noisy one would look as it should in every message, because what the function made
of it is believed. So each of these values is formed again: what an operation was given from the
gradients, the noise and the messages that its row names; what a function was called with from that;
what the round went on with from what the function returned; the initial model from the setting.
What a function returns is formed again by the check of functions.

Beside known values that are too large for noise which comes in late, floats lose that noise, and
the engine stops. So their norms are measured again and compared with the floor of the trace.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from ...privacy.noise.floor import MOST_LOST
from ...training.models.parameters import flatten
from ...training.step.floor import INITIAL, UNIT, Floor
from ...training.step.values import Edges, Value
from ...training.tracing.linear_forms import Contributions, Known
from ..watching.recorded_columns import RecordedColumns
from ..watching.result import Check
from ..watching.watched_round import WatchedRound
from ..watching.watched_run import WatchedRun

_NAME = "values"


def value_check(run: WatchedRun) -> Check:
    """Form every value that counts as known again.

    Args:
        run: a watched run.

    Returns:
        Passed if what operations were given differs from its row by no more than rounding, what
        functions were called with and returned not at all, and no noise is lost in rounding.
    """
    if run.mismatch:
        return Check.not_as_traced(_NAME, run.mismatch)
    compared, wrong, first = 0, 0, ""
    for watched in run.rounds:
        for fault, count in _faults(run, watched):
            compared += count
            wrong += bool(fault)
            first = first or (fault and f"in round {watched.number} {fault}")
    words = (
        f"{compared} values that count as known were formed again: what gradients are taken at, "
        "what is sent, what functions are given and return"
    )
    words += f"; {wrong} differ, first: {first}" if wrong else "; none differs"
    return Check.exact(_NAME, f"{words}.", tests=compared, passed=not wrong)


def _faults(run: WatchedRun, watched: WatchedRound) -> Iterator[tuple[str, int]]:
    """For each thing that is compared what is wrong, if something is, and how many values."""
    recorded, traced = watched.recorded, watched.trace.record.given
    yield (
        "operations are given more values, or fewer, than in the trace"
        if len(traced) != len(recorded.given)
        else "",
        1,
    )
    columns = RecordedColumns(watched)
    for place, (rows, value) in enumerate(zip(traced, recorded.given, strict=False)):
        yield _unexplained(columns, rows, value, place=place), len(value.base)
    yield from _functions(run, watched)
    yield from _floor(run.engine.scripts.floor_of(watched.number, None), watched)


def _floor(floor: Floor, watched: WatchedRound) -> Iterator[tuple[str, int]]:
    """Whether the round's late noise is large enough beside its known values."""
    norms, eps = dict[str, float](), 0.0
    groups = [group for group in watched.trace.groups if isinstance(group, Known)]
    for group, rows in zip(groups, watched.known, strict=False):
        if group.what in floor.names:
            norm = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64).max()
            norms[group.what] = max(norms.get(group.what, 0.0), float(norm))
            norms[UNIT] = max(norms.get(UNIT, 0.0), float(rows.shape[1]) ** 0.5)
            eps = torch.finfo(rows.dtype).eps
    if floor.parts:
        lost = floor.mu_lost(norms, eps=eps)
        what = f"its noise is lost beside {floor.worst(norms, eps=eps).what}, which adds {lost:.2g}"
        yield "" if lost <= MOST_LOST else f"{what} to mu", len(norms)


def _unexplained(columns: RecordedColumns, rows: object, value: Value, *, place: int) -> str:
    """How far a value is from its row."""
    found = value.base.double().numpy()
    unit = max(columns.unit, torch.finfo(value.base.dtype).eps)
    allowed = 64 * unit * np.linalg.norm(found, axis=1)
    if isinstance(rows, Tensor):
        expected = rows.double().numpy()
    else:
        expected = columns.value(rows, width=found.shape[1])
        allowed = allowed + columns.rounding(rows)
    if expected.shape != found.shape:
        return f"value {place + 1} that an operation is given has another shape than in its trace"
    left = np.linalg.norm(found - expected, axis=1)
    wrong = ~(left <= allowed)
    if not wrong.any():
        return ""
    at = int(wrong.argmax())
    return (
        f"value {place + 1} that an operation is given is off in row {at} by {left[at]:.2g} of "
        f"{np.linalg.norm(found[at]):.2g}, where rounding accounts for {allowed[at]:.2g}"
    )


def _functions(run: WatchedRun, watched: WatchedRound) -> Iterator[tuple[str, int]]:
    """What functions were called with and returned, and what the round went on with."""
    agents, recorded, graph = (
        run.setting.graph.agents,
        watched.recorded,
        run.setting.graph.at(watched.number),
    )
    yield from _initial(run, watched)
    each = [watched.calls[i : i + agents] for i in range(0, len(watched.calls), agents)]
    results = _results(watched)
    if not len(each) == len(recorded.arguments) == len(results):
        yield "functions are called more often, or more rarely, than operations name them", 1
        return
    for calls, arguments, (went_on, hides) in zip(each, recorded.arguments, results, strict=True):
        values = [recorded.given[at] for at in arguments]
        same = len(calls) == len(went_on) and all(
            _equal(call.output, row) for call, row in zip(calls, went_on, strict=True)
        )
        what = f"{calls[0].name} returned another value than the round goes on with"
        yield "" if same else what, agents
        for agent, call in enumerate(calls):
            mine = graph.receivers == agent
            edges = np.flatnonzero(mine & (graph.senders != agent) if hides else mine)
            expected = [_given(v, agent, edges, like=call.output) for v in values]
            same = len(expected) == len(call.inputs) and all(
                _equal(a, b) for a, b in zip(expected, call.inputs, strict=True)
            )
            what = f"{call.name} (agent {agent}) is called with another value than it is given"
            yield "" if same else what, len(expected)


def _given(value: Value, agent: int, edges: np.ndarray, *, like: Tensor) -> Tensor:
    """What a function of an agent gets of a value."""
    rows = value.rows
    mine = rows[torch.from_numpy(edges)] if isinstance(value, Edges) else rows[agent]
    return mine.to(like.dtype)


def _equal(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and torch.equal(one.nan_to_num(), other.nan_to_num())


def _results(watched: WatchedRound) -> list[tuple[Tensor, bool]]:
    """What the round went on with of each function, and whether that hides a secret."""
    known, calls = iter(watched.recorded.known), iter(watched.recorded.calls)
    made, of_state = iter(watched.recorded.contributions), len(watched.before)
    found = list[tuple[Tensor, bool]]()
    for group in watched.trace.groups:
        if isinstance(group, Contributions):
            rows = next(made)
            if next(calls) is None:
                found.append((rows, True))
        elif isinstance(group, Known):
            if of_state:
                of_state -= 1
                continue
            if group.table is not None:  # public: its numbers are the trace's
                continue
            rows = next(known)
            if group.what != INITIAL and group.public is None:
                found.append((rows, False))
    return found


def _initial(run: WatchedRun, watched: WatchedRound) -> Iterator[tuple[str, int]]:
    """The initial model is the public one, and public random numbers are those of their seed."""
    of_state, task = len(watched.before), run.setting.task
    groups = [g for g in watched.trace.groups if isinstance(g, Known) and g.table is None]
    public = (task.initial() if task else flatten(run.setting.model)).detach().cpu()
    blocks = public.split(task.dimensions) if task else (public,)
    for group, rows in zip(groups[of_state:], watched.recorded.known, strict=True):
        if group.what == INITIAL:
            expected = blocks[group.block].to(rows.dtype).expand(len(rows), -1)
            same = _equal(rows, expected)
            yield "" if same else "the initial model is not the public one", len(rows)
        elif group.public is not None:
            asked = group.public._replace(round=watched.number)  # one trace may stand for more
            expected = asked.rows(range(len(rows)), width=rows.shape[1]).to(rows.dtype)
            same = _equal(rows, expected)
            yield "" if same else "public random numbers are not those of their seed", len(rows)
