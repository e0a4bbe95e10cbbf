"""Faults that are there while a folder is trained and gone when it is audited."""

import math
from contextlib import AbstractContextManager

from tests.attacks.planted.planted import Kind, Origin, Planted
from tests.attacks.planted.seams import ROUNDS, scaled_draws

_LESS = 1.0 / math.sqrt(2.0)


def root_of_half() -> AbstractContextManager[None]:
    """All noise of a run at its deviation over sqrt 2."""
    return scaled_draws(lambda at, width: _LESS)


def last_round() -> AbstractContextManager[None]:
    """The same in the last round alone."""
    return scaled_draws(lambda at, width: _LESS if at.round == ROUNDS else 1.0)


def last_round_clean() -> AbstractContextManager[None]:
    """No noise in the last round, whose models are what is published."""
    return scaled_draws(lambda at, width: 0.0 if at.round == ROUNDS else 1.0)


FAULTS = (
    Planted(
        name="less noise in training than the ledger says",
        sentence="Noise over sqrt 2: 15.2 for the epsilon 8 of the ledger.",
        plant=root_of_half,
        kind=Kind.TRAINED,
        origin=Origin.OUTSIDE,
        statistical=True,
        folder=True,
    ),
    Planted(
        name="less noise in the last round of training",
        sentence="Noise over sqrt 2 in one of 24 rounds: 8.60 for epsilon 8.",
        plant=last_round,
        kind=Kind.TRAINED,
        origin=Origin.OUTSIDE,
        statistical=True,
        folder=True,
    ),
    Planted(
        name="no noise in the last round of training",
        sentence="The last messages are gradients: epsilon is infinite.",
        plant=last_round_clean,
        kind=Kind.TRAINED,
        origin=Origin.HOLDOUT,
        folder=True,
    ),
)
