"""What an attack on a file of gradients writes to attack.json, as types.

What `overhear invert` is asked: options, keywords, and metadata of the file of gradients.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from ...privacy.formats.codec import Count, Fraction, NotNegative, Score
from ..audit.evidence_schema import ColumnScore, Means
from ..numbers import Described
from ..requests import RequestField, fields_of


class TruthScores(Described):
    """Scores against the true batch, each record matched with one that was found."""

    mse: list[Score]
    psnr: list[Score]
    ssim: list[Score]
    order: list[Count]
    """Of each true record, which of those that were found is its match."""
    mean: Means
    blind: Means
    """Of the blind guess."""


class ScoredTokens(Described):
    """Tokens that are right; one that is not known is the public guess, where there is one."""

    placed: Fraction | None
    """Share of the batch's tokens that are right at their place; null where no order is known."""
    multiset: Fraction
    """Share of them that are right, wherever they stand."""
    whole: Count | None
    """Records in which every token is right at its place; null where no order is known."""
    present: Fraction
    """Share of the different tokens of the batch that are known to be in it."""
    false: Count
    """Tokens that are said to be in the batch and are not."""


class BlindTokens(Described):
    """The same of the most frequent tokens of public records, at each place and in the batch."""

    placed: Fraction
    multiset: Fraction
    whole: Count


class TokensFound(Described):
    """What is known of a batch of tokens."""

    vocabulary: Count
    """How many tokens the embedding has."""
    decided: str
    """"sequences", "multisets" (of each record), "batch" (one multiset), "set" or "nothing"."""
    tokens: list[list[int]]
    """Of each record; -1 is not known."""
    present: list[int]
    """Tokens that are in the batch; under noise those that stand out."""
    words: list[list[str]] | None
    present_words: list[str] | None
    runner_up: NotNegative | None
    """Least relative residual of another batch that was tried and is told apart."""
    tried: Count
    """How many others were tried."""
    false_alarm: Fraction
    """Probability that any token that is said to be in the batch is not; 0 without noise."""
    power: Fraction
    """Share of the tokens of random batches that would be found under this noise."""
    scores: ScoredTokens | None
    """Null without the truth."""
    blind: BlindTokens | None
    """Null without the truth or public records."""


class GradientAttack(Described):
    """The object of attack.json."""

    version: Annotated[Literal[1], Field(alias="schema")]
    model: str
    parameters_from: str
    """Where the parameters came from at which the gradients were taken."""
    parameters: Count
    """How many the model has."""
    intercepts: Count
    device: str = ""
    """Where it searched; empty in files of older versions."""
    exact_device: str = ""
    """Where all that needs float64 was computed."""
    preset: str
    input_shape: list[Count]
    classes: Count
    records: Count
    clip_norm: NotNegative | None
    clip_batch: bool
    noise_std: NotNegative
    """On each coordinate of the mean gradient."""
    labels: list[int]
    """-1 where one is not known, which happens with tokens alone."""
    labels_given: bool
    stage: list[str]
    """What made each record; "prior" is the public guess."""
    supported: list[bool]
    """Whether the gradient speaks for each record, over the public guess."""
    objective: Score
    iterations: Count
    relative_residual: Score
    """Of the gradient, what the records found leave unexplained."""
    residual_of_noise: Score
    """What the noise alone leaves of it, in expectation."""
    scores: TruthScores | None
    """Null without the truth."""
    tokens: TokensFound | None = None
    """Where the model looks tokens up; null for pictures and numbers."""
    values: list[list[str]] = Field(default_factory=list)
    """Of rows of a table with declared columns: the text of every column, record by record."""
    columns: list[ColumnScore] = Field(default_factory=list)
    """Their scores by column; empty without the truth."""
    whole: Count | None = None
    """Records that are right in every column; null without the truth or columns."""
    images: list[str]
    originals: list[str]
    reconstruction: str
    notes: list[str]
    conclusion: str


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
    """Safetensors file of gradients."""
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
    """Parameters as a safetensors state dict, if FILE has none."""
    prior: Annotated[Path | None, "FILE"] = None
    """Public records: one as the blind guess, several to weigh.

    A picture, a folder, safetensors or npz; mid-grey where None. What the gradient does not speak
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
