"""What can be said of an intercepted batch: options of a command, keywords, metadata of a file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class BatchOption(NamedTuple):
    """One thing that can be said; with a `metavar` it is several numbers, separated by commas."""

    kind: type[int] | type[float]
    help: str
    metavar: str | None = None

    def read(self, text: str, name: str) -> Any:
        """The value of a text.

        Args:
            text: as it stands in the metadata, or after the option.

        Raises:
            ValueError: something is no number, or neither true nor false.

        >>> OPTIONS["mean"].read("0.5, -1", "mean")
        (0.5, -1.0)
        """
        from ....privacy.errors import InputError  # the command line starts without numpy

        if self.kind is bool:
            if text.lower() not in ("true", "false"):
                raise InputError(f"{name}={text!r} must be true or false")
            return text.lower() == "true"
        try:
            values = [self.kind(part.strip()) for part in text.split(",")]
        except ValueError as error:
            what = "whole numbers" if self.kind is int else "numbers"
            raise InputError(f"{name}={text!r} must be {what} separated by commas") from error
        if self.metavar:
            return tuple(values)
        if len(values) > 1:
            raise InputError(f"{name}={text!r} must be one number")
        return values[0]


OPTIONS: Mapping[str, BatchOption] = {
    "input_shape": BatchOption(int, "Shape of one record.", "C,H,W"),
    "classes": BatchOption(int, "Number of logits."),
    "records": BatchOption(int, "Number of records in the batch; 1 by default."),
    "labels": BatchOption(int, "Labels of the records, where they are known.", "Y,..."),
    "clip_norm": BatchOption(float, "L2 bound on each record's gradient."),
    "clip_batch": BatchOption(bool, "The bound is on the mean of the batch instead."),
    "noise_std": BatchOption(float, "Noise on each coordinate of the mean, as it was sent."),
    "local_steps": BatchOption(int, "Gradient steps of which FILE holds the mean; 1 by default."),
    "local_rate": BatchOption(float, "Size of such a step."),
    "mean": BatchOption(float, "Means that are subtracted from pixels in [0, 1].", "M,..."),
    "std": BatchOption(float, "Standard deviations that pixels are divided by then.", "S,..."),
    "low": BatchOption(float, "The number that stands for a pixel of 0.", "L,..."),
    "high": BatchOption(float, "The number that stands for a pixel of 1.", "H,..."),
}
"""Of several local steps the file holds their mean, (before - after) / (steps rate).

`mean`, `std`, `low` and `high` have one value, or one per channel: the network is fed
(pixel - mean) / std of pixels in [0, 1], or `low` and `high` are what black and white become.
"""
