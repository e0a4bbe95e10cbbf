"""What an attack on a file of gradients writes to attack.json, as types."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from ...described import Count, Described, NotNegative, Score
from ...evidence.schema import Means

__all__ = ["GradientAttack", "TruthScores"]


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
    images: list[str]
    originals: list[str]
    reconstruction: str
    notes: list[str]
    conclusion: str
