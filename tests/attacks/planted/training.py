"""Faults that are there while a folder is trained and gone when it is audited."""

import math
from contextlib import AbstractContextManager

from tests.attacks.planted.planted import Faults, Kind, Origin
from tests.attacks.planted.seams import ROUNDS, scaled_draws

fault = Faults(Kind.TRAINED)

_LESS = 1.0 / math.sqrt(2.0)


@fault(
    "less noise in training than the ledger says",
    "Noise over sqrt 2: 15.2 for the epsilon 8 of the ledger.",
    Origin.OUTSIDE,
    statistical=True,
    folder=True,
)
def root_of_half() -> AbstractContextManager[None]:
    """All noise of a run at its deviation over sqrt 2."""
    return scaled_draws(lambda at, width: _LESS)


@fault(
    "less noise in the last round of training",
    "Noise over sqrt 2 in one of 24 rounds: 8.60 for epsilon 8.",
    Origin.OUTSIDE,
    statistical=True,
    folder=True,
)
def last_round() -> AbstractContextManager[None]:
    """The same in the last round alone."""
    return scaled_draws(lambda at, width: _LESS if at.round == ROUNDS else 1.0)


@fault(
    "no noise in the last round of training",
    "The last messages are gradients: epsilon is infinite.",
    Origin.HOLDOUT,
    folder=True,
)
def last_round_clean() -> AbstractContextManager[None]:
    """No noise in the last round, whose models are what is published."""
    return scaled_draws(lambda at, width: 0.0 if at.round == ROUNDS else 1.0)
