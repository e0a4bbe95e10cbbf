"""Clipping in the run's own layout: records whose gradients are from a half to 1,000 clip norms.

Canaries meet the clipping of torch.func's layout, because no network has the gradients that they
need. So real records are clipped by the layout that the run settles on, on its device and in its
precision, one record a row, at bounds C from twice to a thousandth of their norms, and each row is
held against

    min(1, C / |g|) g        g: by the oracle of `reference_sums`

in the run's precision and in double precision, where nothing but a difference is left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from ...training.engine.engine import Setting, gradients_of
from ...training.gradients.gradients import Batch
from ...training.models.parameters import flatten
from ..watching.reference_sums import Oracle
from ..watching.result import Check

_NAME = "layout"
_RECORDS, _BOUNDS = 24, 32
_LEAST, _MOST = 0.5, 1000.0  # norms of records, in clip norms
_ALLOWED = {torch.float64: 1e-6, torch.float32: 0.1}  # in clip norms; a ReLU at 0 may turn


def layout_check(setting: Setting) -> Check:
    """Clip real records at many bounds in the run's own layout, and compare with the oracle.

    Args:
        setting: graph, model and data of the run.

    Returns:
        Passed if every row agrees with the oracle; nothing is left to chance.
    """
    batches = _single(setting)
    start = setting.task.initial() if setting.task else flatten(setting.model)
    point = start.detach()[None]
    rows = range(len(batches))
    clean = Oracle(setting.task or setting.model).sums(
        point[None], [0] * len(batches), holders=list(rows), batches=batches, clip_norm=None
    )
    norms = torch.linalg.vector_norm(clean, dim=1)
    kept = [b for b in rows if float(norms[b]) > 1e-6 * float(norms.max())]
    tests, fault, layouts = 0, "", list[str]()
    for dtype in sorted({setting.dtype, torch.float64}, key=str):
        gradients = gradients_of(replace(setting, dtype=dtype))
        for share in np.geomspace(_LEAST, _MOST, _BOUNDS) if kept else ():
            bound = float(norms[kept].median()) / float(share)
            found = gradients.clipped_sums(
                point.to(setting.device, dtype),
                ([0] * len(batches), list(rows)),
                batches,
                clip_norm=bound,
            )
            expected = clean * (bound / norms.clamp_min(1e-300)).clamp_max(1.0)[:, None]
            off = torch.linalg.vector_norm(found.cpu().double() - expected, dim=1)[kept] / bound
            tests += len(kept)
            worst = int(off.argmax())
            if not fault and not float(off[worst]) <= _ALLOWED[dtype]:
                fault = (
                    f"a gradient of {float(norms[kept[worst]]) / bound:.3g} clip norms is off by "
                    f"{float(off[worst]):.2g} clip norms"
                )
        layouts.append(str(getattr(gradients, "layout", "given")))
    words = (
        f"{tests} gradients of {len(kept)} records were clipped in the run's own layout "
        f"({', '.join(sorted(set(layouts)))}) at bounds that make them {_LEAST:g} to {_MOST:,.0f} "
        "clip norms long"
    )
    words += f"; {fault}" if fault else "; each is as long as it may be"
    return Check.exact(_NAME, f"{words}.", tests=tests, passed=not fault)


def _single(setting: Setting) -> Sequence[Batch]:
    """Records of all agents, the first of each before the second of any, one a batch."""
    batches, depth = list[Batch](), 0
    most = max(shard.size for shard in setting.shards)
    while len(batches) < _RECORDS and depth < most:
        for shard in setting.shards:
            if depth < shard.size and len(batches) < _RECORDS:
                taken = shard.take(torch.tensor([depth]))
                batches.append((taken.inputs, taken.targets))
        depth += 1
    return batches
