"""The accountants by name: how rounds may be added up, and what each figure is then called.

What one of another tool answers is a row of `other_accountants.COMPARED`.
"""

from __future__ import annotations

from enum import StrEnum

from ..errors import InputError


class Bound(StrEnum):
    """How epsilon was found; every one but the last two is an upper bound.

    PROFILE: of a pair that dominates, without being one that an adversary meets; dearer than PLD.
    """

    CLOSED_FORM = "closed form"
    PLD = "privacy loss distribution"
    PROFILE = "privacy loss distribution of a dominating profile"
    DP_ACCOUNTING = "privacy loss distribution by dp-accounting"
    RENYI = "Renyi divergence"
    PRV = "PRV"
    CENTRAL_LIMIT = "central limit: approximation, may be too small"
    NOT_STATED = "not stated"

    @property
    def is_upper(self) -> bool:
        """Whether a figure that is found so is never too small."""
        return self not in (Bound.CENTRAL_LIMIT, Bound.NOT_STATED)


class Accountant(StrEnum):
    """How rounds are added up.

    >>> Accountant("gdp-clt").kind
    'approximation, may be too small'
    """

    PLD = "pld"
    RDP = "rdp"
    PRV = "prv"
    DP_ACCOUNTING = "dp-accounting"
    GDP_CLT = "gdp-clt"

    @classmethod
    def _missing_(cls, value: object) -> Accountant:
        raise unknown("accountant", value, cls)

    @property
    def bound(self) -> Bound:
        """How it finds epsilon where there is no closed form."""
        return _BOUNDS[self]

    @property
    def kind(self) -> str:
        """'upper bound', or 'approximation, may be too small', which proves nothing."""
        return "upper bound" if self.bound.is_upper else "approximation, may be too small"

    @property
    def by_losses(self) -> bool:
        """Whether it composes distributions of the privacy loss, of rounds that differ too."""
        return self in (Accountant.PLD, Accountant.DP_ACCOUNTING)


_BOUNDS = {
    Accountant.PLD: Bound.PLD,
    Accountant.RDP: Bound.RENYI,
    Accountant.PRV: Bound.PRV,
    Accountant.DP_ACCOUNTING: Bound.DP_ACCOUNTING,
    Accountant.GDP_CLT: Bound.CENTRAL_LIMIT,
}


def unknown(name: str, value: object, kind: type[StrEnum]) -> InputError:
    """The refusal of a word that is none of an enumeration."""
    known = ", ".join(f"'{member}'" for member in kind)
    return InputError(f"{name}={value!r} must be one of {known}")
