"""From a release and what its caller gave to the transcript that is kept of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...privacy.errors import InputError
from ...privacy.releases.lines import Release
from .conformance.keeping import Kept
from .conformance.rows import kept_rows
from .conformance.vectors import check_precise, each_of, vector_of
from .drawn import Drawn

__all__ = ["transcribed"]


def transcribed(
    release: Release,
    *,
    drawn: Drawn,
    value: Tensor,
    batches: Sequence[NDArray[np.int64] | None],
    point: Any,
    known: Tensor | None,
    scale: float,
    records: int | None,
    rows: Any,
    order: Any,
) -> Kept:
    """The transcript of a release.

    Args:
        release: as its line says it.
        drawn: what the recorder drew for its round.
        value: (D,) what leaves.
        batches: positions of each vector, None where none were given.
        point: one for all vectors, or a tuple of one for each.
        known: (D,) what of the value everybody may know, None for nothing.
        scale: of the sum and its noise.
        records: that batches were drawn from which the recorder did not draw.
        rows: (B, D) of a vector, what each record of its batch added before it was clipped, one for
            all or a tuple; None where it is not kept.
        order: positions in the order of the rows, as the caller gave the batch.

    Raises:
        ValueError: sizes that do not fit.
    """
    check_precise(value, "value")
    mine = {(one.owner, one.name): one for one in drawn.batches}
    positions, held, points = dict[int, Tensor](), dict[int, int](), dict[int, Tensor]()
    given = each_of(point, len(release.of), "point")
    for j, vector in enumerate(release.of):
        if given[j] is not None:
            points[j] = vector_of(given[j], "point")
        one = mine.get((vector.owner, vector.batch)) if vector.round is None else None
        at = batches[j] if j < len(batches) else None
        if at is None and one is not None:
            at = one.positions
        if at is not None:
            positions[j] = torch.from_numpy(at.copy())
        if one is not None:
            held[j] = one.records
        elif records is not None and at is not None:
            held[j] = records
    if known is not None and known.shape != value.shape:
        raise InputError(
            f"known has {len(known)} coordinates and value {len(value)}; they are added up"
        )
    return Kept(
        value=value,
        known=known,
        scale=scale,
        batches=positions,
        records=held,
        points=points,
        noise=_noise(release, drawn, len(value)),
        rows=_rows(release, rows, order, positions),
    )


def _noise(release: Release, drawn: Drawn, width: int) -> dict[int, Tensor]:
    """Of each source that the recorder drew what is in the sum; an unnamed draw is used once."""
    found = dict[int, Tensor]()
    for j, source in enumerate(release.noise):
        if source.id is not None:
            one = drawn.named.get(source.id)
        else:
            free = (of for of in drawn.noise if of.id is None and not of.used)
            fits = (of for of in free if of.std == abs(source.std) and of.values == width)
            one = next(fits, None)
        if one is not None and one.values == width:
            one.used = True
            found[j] = (source.std / one.std) * drawn.made(one).cpu()
    return found


def _rows(
    release: Release, rows: Any, order: Any, positions: Mapping[int, Tensor]
) -> dict[int, Tensor]:
    """Sketches of what each record of a vector's batch added, in the order of its positions."""
    found = dict[int, Tensor]()
    given = each_of(order, len(release.of), "batch")
    for j, one in enumerate(each_of(rows, len(release.of), "rows")):
        if one is None:
            continue
        if j not in positions:
            raise InputError("rows are given without a batch; give batch=, whose records they are")
        at = positions[j] if given[j] is None else torch.as_tensor(given[j]).reshape(-1)
        found[j] = kept_rows(one, at.cpu(), release.of[j].clip)
    return found
