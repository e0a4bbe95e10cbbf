"""How a cohort of agents is drawn otherwise than by coins, and how an agent comes to be in it.

    scheme      a cohort is                                    an agent is in it
    fixed       m of A agents, every round anew                with probability m / A, for another
    shuffled    the next m of an order, anew every epoch       once an epoch of floor(A / m) rounds
    cyclic      the next m of one order                        in the same round of every epoch

An agent is to a cohort what a record is to a batch, so the figures are those of `drawing`. But an
agent knows whether it takes part, as no record does. Of a fixed cohort that tells about the others:
with a_S of the adversary's S agents in it, the other A - S fill m - a_S places. However they fall,
an agent is in it with probability min(m, A - S) / (A - S) at most, and a rate that is larger costs
no less: at rate 0 nothing is lost, and hockey-stick divergences are convex in the rate.
"""

from __future__ import annotations

from ..errors import InputError
from ..participation import Draws
from .drawing import Drawing, Scheme

__all__ = ["COHORTS", "cohort_words", "drawing_of_cohort", "scheme_of_cohort", "size_of_cohort"]

COHORTS = (Scheme.POISSON, Scheme.FIXED, Scheme.SHUFFLED, Scheme.CYCLIC)
_ROUNDING = 1e-9  # by which a rate times a number of agents may miss an integer


def scheme_of_cohort(scheme: object) -> Scheme:
    """The scheme by its name.

    Raises:
        ValueError: no cohort is drawn so.

    >>> scheme_of_cohort("fixed")
    <Scheme.FIXED: 'fixed'>
    """
    if not isinstance(scheme, str) or scheme not in COHORTS:
        known = ", ".join(repr(str(one)) for one in COHORTS)
        raise InputError(
            f"scheme={scheme!r:.40} must be one of {known}; no bound is known here for cohorts "
            "drawn otherwise, so let each agent take part by a coin of its own"
        )
    return Scheme(scheme)


def size_of_cohort(rate: float, agents: int, *, scheme: Scheme) -> int:
    """How many agents a cohort has that is not Poisson.

    Args:
        rate: share of the agents, in (0, 1].
        agents: A.

    Raises:
        ValueError: it is no whole number of agents.

    >>> size_of_cohort(0.01, 10_000, scheme=Scheme.FIXED)
    100
    """
    size = round(rate * agents)
    if size < 1 or abs(rate * agents - size) > _ROUNDING * size:
        near = max(size, 1)
        raise InputError(
            f"a cohort at rate {rate:.12g} of {agents} agents has {rate * agents:.12g} members; "
            f"with cohorts '{scheme}' it must be a whole number of them: use a rate such as "
            f"{near}/{agents} = {near / agents:.12g}, or cohorts 'poisson'"
        )
    return size


def drawing_of_cohort(draws: Draws, *, agents: int, known: int = 0) -> Drawing | None:
    """How an agent comes to be in a cohort, for an adversary of some agents; None if by a coin.

    Args:
        draws: of a contribution.
        agents: A, of the run.
        known: S, how many of them the adversary is.

    Raises:
        ValueError: a cohort of no whole number of agents.

    >>> drawn = Draws((), 0.01, "fixed")
    >>> seen = drawing_of_cohort(drawn, agents=100), drawing_of_cohort(drawn, agents=100, known=50)
    >>> [one.rate for one in seen if one]
    [0.01, 0.02]
    """
    if draws.scheme == Scheme.POISSON:
        return None
    scheme = scheme_of_cohort(draws.scheme)
    size = size_of_cohort(draws.cohort, agents, scheme=scheme)
    if scheme.in_epochs:  # their order counts as public
        return Drawing(scheme, agents, size, agents, of_agents=True)
    others = max(agents - known, 1)
    return Drawing(scheme, others, min(size, others), others, of_agents=True)


def cohort_words(draws: Draws) -> str:
    """How an agent comes to take part, after "in".

    >>> cohort_words(Draws((), 0.01)), cohort_words(Draws((), 0.01, "fixed"))[:29]
    ('a secret cohort with probability 0.01', 'a secret cohort of fixed size')
    """
    share = f"{draws.cohort:g}"
    match draws.scheme:
        case Scheme.FIXED:
            return f"a secret cohort of fixed size, {share} of the agents"
        case Scheme.SHUFFLED:
            return f"one cohort of every epoch, {share} of the agents, which are shuffled anew"
        case Scheme.CYCLIC:
            return f"one cohort of every epoch, {share} of the agents in one order"
        case _:
            return f"a secret cohort with probability {share}"
