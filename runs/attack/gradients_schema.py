"""What an attack on a file of gradients writes to attack.json, as types."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from ...attacks.interception.names import ColumnScore
from ...privacy.formats.codec import Count, Fraction, NotNegative, Score
from ..audit.evidence_schema import Means
from ..described import Described


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
    axes: str = ""
    """In which other order of its pixels what algebra found is the truth; empty where in none."""


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
    windows: list[list[int]]
    """Runs of tokens that stand side by side in a record, where no order of it is known."""
    window_words: list[list[str]] | None
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


class Defended(Described):
    """What a shorter search makes of the gradient, had it been clipped and noisy."""

    clip_norm: NotNegative
    """L2 bound on each record's gradient."""
    noise_multiplier: NotNegative
    """Noise on each coordinate of the sum of these, over the clip norm."""
    epsilon: NotNegative
    """Of the one release, at `delta`, for a record that is there or not."""
    delta: Fraction
    steps: Count
    """Of the search, from one start."""
    psnr: list[Score]
    """Of each record: the true ones, or those that were found where no truth is known."""
    better: list[bool]
    """Whether it is nearer to its record than the blind guess is."""
    images: list[str]


class GradientAttack(Described):
    """The object of attack.json."""

    version: Annotated[Literal[1], Field(alias="schema")]
    model: str
    parameters_from: str
    """Where the parameters came from at which the gradients were taken."""
    parameters: Count
    """How many the model has."""
    held: Fraction = 1.0
    """Share of their gradient's numbers that the file holds."""
    open: Count = 0
    """Numbers of a record that is certified, of which the gradient gives a bound alone."""
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
    guess: list[str] = Field(default_factory=list)
    """The picture of the blind guess, where it is one."""
    defended: Defended | None = None
    """Null where the gradient was clipped or noisy, or nothing was found."""
    reconstruction: str
    notes: list[str]
    conclusion: str
