"""A published claim: what a formula in a paper says of a setting, beside what is proven of it.

A claim is never a `Guarantee`, never passes a policy, and may be smaller than the truth. What it
leaves out is said in `caveats`; nothing is corrected unless an argument asks for it. What a figure
covers is stated in our words. Papers are cited from `citations.toml` alone.

| file        | paper                                        | claim                              |
|-------------|----------------------------------------------|------------------------------------|
| `dpdl`      | Yuan, Xiao, Wang, Li 2026                    | Theorem 1, a moments accountant's  |
| `dpmixsgd`  | Quan, Wang, Zhai, Fang, Liu 2025             | Theorem 3, of the same form        |
| `dyn_d2p`   | Zhu, Huang, Wang, Ji, Xu 2025                | a central limit, Proposition 4     |
| `muffliato` | Cyffers, Even, Bellet, Massoulie 2022        | pairwise Renyi losses              |
| `whisper`   | Rodio, Chen, Larsson 2025                    | Theorem 2, constraint (10)         |
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources

from ..accounting.request import Accountant, Adjacency, check_delta, check_epsilon, check_setting
from ..errors import InputError, within


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishedClaim:
    """What a paper's formula says of a setting, and what is proven of it.

    Attributes:
        paper: authors, year and identifier.
        statement: the formula.
        adversary: against whom.
        epsilon: as claimed, in nats.
        delta: of both figures.
        noise_multiplier: noise std over clip norm that the claim is about; of the first round
            where rounds differ.
        caveats: why the claim may not hold; at least one.
        proven_epsilon: the accountant's upper bound for the same setting; None where none is known.
        proven_by: how it was computed, or why there is none.

    Raises:
        ValueError: a figure that is no figure, or a text that is missing.

    >>> claim = PublishedClaim(paper="A. Author 2020", statement="epsilon = 1", adversary="none",
    ...     epsilon=1.0, delta=1e-5, noise_multiplier=2.0, caveats=("it is an example",),
    ...     proven_epsilon=None, proven_by="nothing is known")
    >>> claim.epsilon, claim.proven_epsilon
    (1.0, None)
    """

    paper: str
    statement: str
    adversary: str
    epsilon: float
    delta: float
    noise_multiplier: float
    caveats: tuple[str, ...]
    proven_epsilon: float | None
    proven_by: str

    def __post_init__(self) -> None:
        """Check that a claim is complete."""
        for name in ("epsilon", "noise_multiplier", "proven_epsilon"):
            value = getattr(self, name)
            if value is not None and not value >= 0.0:
                raise InputError(f"{name}={value} must be a number >= 0")
        check_delta(self.delta)
        texts = {n: getattr(self, n) for n in ("paper", "statement", "adversary", "proven_by")}
        missing = [name for name, text in texts.items() if not text]
        if missing or not self.caveats or not all(self.caveats):
            raise InputError(f"{', '.join(missing) or 'caveats'} is empty; a claim says all of it")


def check_one_given(noise: float | None, epsilon: float | None, *, name: str) -> None:
    """Either the noise, called `name`, or epsilon; the other one follows."""
    if (noise is None) == (epsilon is None):
        raise InputError(
            f"{name}={noise} and epsilon={epsilon}: give exactly one of them, the other follows"
        )


def epsilon_and_noise(
    spread: float, noise: float | None, epsilon: float | None, *, name: str
) -> tuple[float, float]:
    """(epsilon, noise) with epsilon * noise = spread, of which one is given; noise is `name`."""
    check_one_given(noise, epsilon, name=name)
    if noise is None:
        claimed = float(epsilon or 0.0)
        check_epsilon(claimed, positive=True)
        return claimed, spread / claimed
    within(name, noise, "[0, inf]")
    return (spread / noise if noise > 0.0 else math.inf), noise


def check_run(rounds: int, sampling_rate: float, delta: float) -> None:
    """Rounds, rate and delta as the accountant takes them."""
    check_setting(rounds, sampling_rate, Adjacency.ADD_OR_REMOVE_ONE, Accountant.PLD)
    check_delta(delta)


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
