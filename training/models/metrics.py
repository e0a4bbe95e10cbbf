"""What is measured of the agents' models after a round: a line of metrics.jsonl."""

from __future__ import annotations

from dataclasses import dataclass

from ...privacy.formats.codec import Count, Fraction, Score, described


@described(title="MetricsLine", whole=True)
@dataclass(frozen=True, kw_only=True)
class Metrics:
    """A line of metrics.jsonl: test metrics of a round.

    Attributes:
        accuracy, loss, auroc, rmse, r2: (A,) of each agent's model, the same of the mean model as
            `consensus_`; of a regression R2 is None where all targets are equal, and there is no
            accuracy.
        auroc: of two classes, class 1 being the positive one; of up to 20 the mean over classes,
            each against the rest (`auroc_of_classes`); None of more.
    """

    round: Count
    accuracy: tuple[Fraction, ...] | None = None
    """Of each agent's model; None of a regression."""
    loss: tuple[Score, ...] = ()
    consensus_accuracy: Fraction | None = None
    """Of the mean model; None of a regression."""
    consensus_loss: Score
    consensus_distance: Score
    """Root mean squared distance of the models from their mean."""
    auroc: tuple[Score, ...] | None = None
    consensus_auroc: Score | None = None
    rmse: tuple[Score, ...] | None = None
    """Of a regression, of each agent's model: root of the mean squared error."""
    consensus_rmse: Score | None = None
    r2: tuple[Score, ...] | None = None
    """Of a regression: how much of the targets' variance each agent's model explains."""
    consensus_r2: Score | None = None
    constant_accuracy: Fraction | None = None
    """Of the most frequent class of the test records, said of all; None of a regression."""
    constant_loss: Score | None = None
    """Of the shares of the classes, said of every record; None where the loss is the user's."""
    constant_rmse: Score | None = None
    """Of the mean of the test targets, said of every record; None of classes."""
    optimum_distance: tuple[Score, ...] | None = None
    """Of each agent's model from the optimum, where that is known: of data that were made."""
    consensus_optimum_distance: Score | None = None
    consensus_gradient_norm: Score | None = None
    """Of the mean model, over the training records, where [training] gradient_norm asks for it; no
    epsilon counts what it tells of them."""
