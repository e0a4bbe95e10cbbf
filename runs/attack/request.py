"""What `overhear invert` is asked: options, keywords, and metadata of the file of gradients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated

from ..requests import RequestField, fields_of


@dataclass(frozen=True, kw_only=True)
class BatchRequest:
    """What can be said of an intercepted batch, in the metadata of its file too.

    Of several local steps the file holds their mean, (before - after) / (steps rate).
    `mean`, `std`, `low` and `high` have one value, or one per channel: the network is fed
    (pixel - mean) / std of pixels in [0, 1], or `low` and `high` are what black and white become.
    """

    input_shape: Annotated[tuple[int, ...] | None, "C,H,W"] = None
    """Shape of one record."""
    classes: int | None = None
    """Number of logits."""
    records: int | None = None
    """Number of records in the batch; 1 by default."""
    labels: Annotated[tuple[int, ...] | None, "Y,..."] = None
    """Labels of the records, where they are known."""
    clip_norm: float | None = None
    """L2 bound on each record's gradient."""
    clip_batch: bool | None = None
    """The bound is on the mean of the batch instead."""
    noise_std: float | None = None
    """Noise on each coordinate of the mean, as it was sent."""
    local_steps: int | None = None
    """Gradient steps of which FILE holds the mean; 1 by default."""
    local_rate: float | None = None
    """Size of such a step."""
    mean: Annotated[tuple[float, ...] | None, "M,..."] = None
    """Means that are subtracted from pixels in [0, 1]."""
    std: Annotated[tuple[float, ...] | None, "S,..."] = None
    """Standard deviations that pixels are divided by then."""
    low: Annotated[tuple[float, ...] | None, "L,..."] = None
    """The number that stands for a pixel of 0."""
    high: Annotated[tuple[float, ...] | None, "H,..."] = None
    """The number that stands for a pixel of 1."""


BATCH: Mapping[str, RequestField] = fields_of(BatchRequest)


@dataclass(frozen=True)
class GradientRequest(BatchRequest):
    """What is asked of gradients in a file; where the batch is not described, their metadata are.

    Where nobody says the number of classes, the gradients do.
    """

    gradients: Annotated[Path, "FILE"]
    """File of gradients: safetensors, npz, or what torch.save wrote."""
    _: KW_ONLY
    model: str
    """A ready network, or module:function.

    It is called as ``function(input_shape, classes)`` and found in the current folder too.
    """
    out: Annotated[Path, "DIR"]
    """New folder for the result.

    Or one that holds nothing but the state of a search that was interrupted, which goes on if
    everything else is given as before.
    """
    weights: Annotated[Path | None, "FILE"] = None
    """State dict of the parameters, if FILE has none."""
    before: Annotated[Path | None, "FILE"] = None
    """State dict before a step of --local-rate, where FILE is the one after it."""
    prior: Annotated[Path | None, "FILE"] = None
    """Public records: one as the blind guess, several to weigh.

    A picture, a folder or a file of tensors; mid-grey where None. What the gradient does not speak
    for falls back to their mean, and under noise a single record is weighed against several of
    them, under each label where none is known. Of a model of tokens whole numbers, `tokens` or
    `inputs`; with `columns` csv or parquet too.
    """
    denoiser: Annotated[str | None, "module:NAME"] = None
    """A function of your own that removes noise from pictures.

    f(pixels (B, *shape) in [0, 1], noise_std) is what they are without; of one record under noise.
    """
    truth: Annotated[Path | None, "FILE"] = None
    """The true records, to score against.

    All of the batch, in a file such as that of `prior`.
    """
    vocabulary: Annotated[Path | None, "FILE"] = None
    """Words of the tokens: one a line, or JSON."""
    columns: Annotated[Path | None, "FILE"] = None
    """A run file whose [data] declares the columns of a table.

    Records are its rows then, and what is found is told by column.
    """
    preset: str = "matched"
    """The attack."""
    restarts: int | None = None
    """Number of starts of the search; by default the preset's."""
    seed: int = 0
    """Seed of the starts."""
    device: Annotated[str, "DEVICE"] = "auto"
    """Where to search: auto, cpu, cuda, cuda:N or mps."""
