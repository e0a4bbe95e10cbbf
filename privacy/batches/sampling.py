"""What a statement calls the way in which units come to take part."""

from __future__ import annotations

import enum

from ..errors import InputError
from .drawing import Scheme

__all__ = ["Sampling"]


class Sampling(enum.StrEnum):
    """How a batch is drawn, or whether an agent takes part."""

    POISSON = "poisson"
    FULL = "full batch"
    FIXED = "fixed"
    SHUFFLED = "shuffled"
    CYCLIC = "cyclic"
    TRUNCATED = "truncated"
    ANY = "any: a record may be in every batch"
    TURNS = "in turns: a record may be in some rounds alone, and in all of these"
    POISSON_TURNS = "poisson, in turns"
    EVERY = "none: an agent takes part in every round"
    COHORT = "secret cohort"
    FIXED_COHORT = "secret cohort of fixed size"
    SHUFFLED_COHORT = "shuffled cohorts"
    CYCLIC_COHORT = "cohorts in one order"

    @classmethod
    def _missing_(cls, value: object) -> Sampling:
        raise InputError(
            f"sampling={value!r} must be 'poisson', 'full batch', 'fixed', 'shuffled', 'cyclic' or "
            "'truncated': no bound is known here for batches drawn otherwise, and amplification by "
            "Poisson sampling does not hold for them; draw each record on its own"
        )

    @staticmethod
    def of_cohort(scheme: Scheme) -> Sampling:
        """Who takes part in a round, by how a cohort is drawn.

        >>> Sampling.of_cohort(Scheme.SHUFFLED)
        <Sampling.SHUFFLED_COHORT: 'shuffled cohorts'>
        """
        return {
            Scheme.FIXED: Sampling.FIXED_COHORT,
            Scheme.SHUFFLED: Sampling.SHUFFLED_COHORT,
            Scheme.CYCLIC: Sampling.CYCLIC_COHORT,
        }.get(scheme, Sampling.COHORT)

    @property
    def is_secret_cohort(self) -> bool:
        """Whether it rests on nobody knowing who takes part.

        >>> [str(one) for one in Sampling if one.is_secret_cohort]
        ['secret cohort', 'secret cohort of fixed size']
        """
        return self in (Sampling.COHORT, Sampling.FIXED_COHORT)
