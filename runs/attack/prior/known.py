"""Records of a file as candidates of the posterior, none of them one that is planted.

Shape letters: N records, P planted ones.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from ....attacks.posterior.candidates import MOST, Candidates
from ....privacy.errors import InputError
from .record_file import Records

_HALF_A_LEVEL = 0.5 / 255  # the same picture, saved in another way
_ROUNDING = 1e-6
_PICTURE = 4  # dimensions of (N, channels, height, width)
_NAMED = 4  # records that a refusal lists


def candidates_of(
    known: Records, *, to_inputs: Callable[[Tensor], Tensor], classes: int, seed: int
) -> Candidates:
    """Records as candidates: at most 2,000 of them, a random part where there are more.

    Args:
        to_inputs: (N, *shape) numbers on the unit box as inputs of the network.
        classes: number of classes; each is tried of records whose label is not known.
        seed: decides which part.
    """
    each = 1 if known.labels is not None else classes
    order = torch.randperm(len(known.pixels), generator=torch.Generator().manual_seed(seed))
    chosen = order[: max(MOST // each, 1)]
    inputs = to_inputs(known.pixels[chosen]).float()
    if known.labels is not None:
        return Candidates(inputs=inputs, labels=known.labels[chosen])
    records = torch.arange(len(chosen)).repeat_interleave(classes)
    return Candidates(
        inputs=inputs[records],
        labels=torch.arange(classes).repeat(len(chosen)),
        records=records,
    )


def check_unplanted(path: Path, known: Records, planted: Tensor) -> None:
    """Refuse records among which the planted ones are: whoever holds them has nothing to rebuild.

    Args:
        planted: (P, *shape) on the unit box.

    Raises:
        ValueError: one is the same as a planted one, pictures to half a grey level.
    """
    slack = _HALF_A_LEVEL if planted.ndim == _PICTURE else _ROUNDING
    rows = known.pixels.flatten(1)
    same = set[int]()
    for record in planted.flatten(1).to(rows):
        same |= set(torch.nonzero((rows - record).abs().amax(dim=1) <= slack)[:, 0].tolist())
    if same:
        listed = ", ".join(map(str, sorted(same)[:_NAMED]))
        more = f" and {len(same) - _NAMED} more" if len(same) > _NAMED else ""
        raise InputError(
            f"{path} holds records that are to be rebuilt, which would be found and not rebuilt: "
            f"record {listed}{more}, counted from 0; leave them out"
        )
