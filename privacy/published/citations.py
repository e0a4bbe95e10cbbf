"""The papers that are reproduced or claimed here, each cited from `citations.toml` alone."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources


@dataclass(frozen=True, kw_only=True, slots=True)
class Citation:
    """A paper.

    Attributes:
        name: what its algorithm is called; both names where a version renamed it.
        authors: given names and surnames.
        title: in full.
        where: venue where there is one, year, and number.
    """

    name: str
    authors: Sequence[str]
    title: str
    where: str

    @property
    def full(self) -> str:
        """Authors by initials, title, and where it was published.

        >>> CITATIONS["pdsl"].full.partition(", PDSL")[0]
        'L. Wang, Y. Yuan, C. Wang, F. Li'
        """
        return f"{', '.join(map(_initials, self.authors))}, {self.title}, {self.where}"

    def short(self, place: str = "") -> str:
        """Surnames, name and number, and a place in it.

        >>> CITATIONS["dpdl"].short("Theorem 1")
        'Yuan, Xiao, Wang, Li, DPDL, 2026, arXiv 2606.04399, Theorem 1'
        """
        surnames = (author.rpartition(" ")[2] for author in self.authors)
        return ", ".join(filter(None, (*surnames, self.name, self.where, place)))


def _initials(author: str) -> str:
    *given, surname = author.split()
    return " ".join([*(f"{name[0]}." for name in given), surname])


CITATIONS: Mapping[str, Citation] = {
    name: Citation(**held)
    for name, held in tomllib.loads(
        resources.files("overhear.privacy.published").joinpath("citations.toml").read_text("utf-8")
    ).items()
}
