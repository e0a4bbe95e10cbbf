"""Before a run: code of the user is called on two records in every layout that may be chosen.

What a network or a loss raises only where it is differentiated, and what it keeps from call to
call, is told here, before anything was released. Both general layouts are tried whichever is asked
for: under vmap a value that several records went into cannot be written to what lies outside, and
the two differ where records meet in a rule for vmap. What vmap alone has no batch for, such as a
branch on the data or a mask, is no error where the loop is asked for.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from ...privacy.errors import InputError
from ..data.dataset import Examples
from ..gradients.gradients import PairGradients
from ..models.evaluation import AT_ONCE, evaluate
from ..models.forward_calls import FailedForward, is_for_the_loop
from ..models.parameters import flatten
from ..own.kept import Watch
from .engine import gradients_of

if TYPE_CHECKING:
    from .engine import Setting

__all__ = ["rehearse"]

_FEW = 2
_GENERAL = ("loop", "vmap")
# By how much a gradient may differ from layout to layout, of its length.
_ROUNDING = 1e-2


def rehearse(setting: Setting, test: Examples) -> None:
    """Call the network and the loss as a run does, if they are the user's; nothing is sent.

    Args:
        setting: of the run.
        test: records on which models are evaluated.

    Raises:
        InputError: the code raises something, keeps something, or lets records meet.
    """
    records = next((held for held in setting.shards if held.size), None)
    if records is None:
        return
    few = records.take(torch.arange(min(_FEW, records.size)))
    batches = [(few.inputs[i : i + 1], few.targets[i : i + 1]) for i in range(len(few.targets))]
    first = setting.task.initial() if setting.task else flatten(setting.model)
    point = first.detach().to(setting.device, setting.dtype)[None]
    rows = range(len(batches))
    found = []
    asked = () if setting.layout in _GENERAL else (setting.layout,)
    for layout in (*_GENERAL, *asked):
        gradients = cast("PairGradients", gradients_of(replace(setting, layout=layout)))
        if not gradients.runs_own_code:
            return
        try:
            for row in (*rows, *rows[::-1]):  # one by one, and in another order
                gradients.clipped_sums(point, ([0], [0]), [batches[row]], clip_norm=1.0)
        except FailedForward as error:
            if layout != "vmap" or not is_for_the_loop(error):
                raise
            if setting.layout == "loop":
                continue
            raise FailedForward(f'{error}; layout = "loop" takes it as it is') from error
        _evaluate(setting, point, test)
        together = gradients.clipped_sums(
            point, ([0] * len(rows), list(rows)), batches, clip_norm=1.0
        )
        gradients.check()
        found.append(together)
    if len(found) > 1 and _differ(*found[:2]):
        raise InputError(
            "the network or its loss has other gradients for two records together, under vmap, "
            "than one by one; it must treat the examples of a batch separately"
        )


def _evaluate(setting: Setting, point: Tensor, test: Examples) -> None:
    """As a run does, which may fill a table, and on others, which must leave nothing behind."""

    def evaluate_on(at: slice) -> None:
        evaluate(
            copy.deepcopy(setting.model),  # to which it may write
            point[:, : flatten(setting.model).numel()],
            Examples(test.inputs[at], test.targets[at]),
            round=0,
            task=setting.task,
        )

    for most in (_FEW, AT_ONCE):
        evaluate_on(slice(most))
    with Watch(setting.model, setting.task).calls("the loss, or the network's forward,"):
        evaluate_on(slice(-_FEW, None))


def _differ(one: Tensor, other: Tensor) -> bool:
    return float((one - other).norm()) > _ROUNDING * float(one.norm())
