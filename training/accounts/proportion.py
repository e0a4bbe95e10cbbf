"""Whether a step's noise keeps its proportion to what is clipped, whatever the noise multiplier.

A joint sensitivity is mu times the noise multiplier of the trace that it comes from. Epsilon at
another multiplier, and the multiplier for a target, follow from it only if mu falls as the noise
grows. A step may do otherwise: it ignores noise_std, squares it, caps it, adds noise of its own, or
behaves differently from some noise on. So a figure is that of a trace at the very noise for which
it is printed, and it holds at other noise only where a second trace agrees: at another multiplier,
clip norm and batch size. Where the two differ by rounding, the larger one counts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from ...privacy.view.view import UnsupportedView
from ..exposure.sensitivity import JointSensitivity, Release, bound_of

__all__ = ["proportional", "without_noise"]

_TOLERANCE = 1e-6  # of two traces of one step, by which the larger figure counts
_ROUNDING = 1e-9  # of two figures that count as one


def proportional(
    first: Mapping[str, JointSensitivity],
    second: Mapping[str, JointSensitivity],
    *,
    noise_multiplier: float,
) -> dict[str, JointSensitivity]:
    """The joint sensitivities on which two traces agree; they hold at any noise multiplier.

    Args:
        first: by adversary, as the figures are given.
        second: of the same step at another noise multiplier, clip norm or batch size.
        noise_multiplier: of the one of the two that is not the reference, for the words.

    Raises:
        UnsupportedView: they differ.
    """
    found = {}
    for name, one in first.items():
        other = second[name]
        same = (one.whole_run, one.status) == (other.whole_run, other.status)
        # Where agents are absent the releases of each record are compared, which bound all.
        lists = list(zip(one.each, other.each, strict=False)) or [(one.releases, other.releases)]
        same = same and len(one.each) == len(other.each)
        if not same or any(len(a) != len(b) for a, b in lists):
            raise UnsupportedView(
                f"the step does something else at noise_multiplier={noise_multiplier:g} than at "
                f"other noise: what {name} sees of it differs in kind; let noise_std scale the "
                "noise and decide nothing"
            )
        agreed = tuple(
            tuple(_agreed(name, a, b, noise_multiplier) for a, b in zip(*pair, strict=True))
            for pair in lists
        )
        found[name] = one._replace(
            releases=bound_of(agreed, like=one.releases) if one.each else agreed[0],
            each=agreed if one.each else (),
            noise_multiplier=None,
        )
    return found


def _agreed(name: str, one: Release, other: Release, noise_multiplier: float) -> Release:
    """The larger of two releases that differ by rounding."""
    a, b = one.joint_sensitivity, other.joint_sensitivity
    alike = one._replace(joint_sensitivity=0.0) == other._replace(joint_sensitivity=0.0)
    if not alike or not math.isclose(a, b, rel_tol=_TOLERANCE):
        raise UnsupportedView(
            "the step's noise does not keep its proportion to the clipped sums at "
            f"noise_multiplier={noise_multiplier:g} and another batch_size or clip_norm: {name} "
            f"has joint sensitivity {b:g} where {a:g} was expected; scale every noise by "
            "noise_std, and everything that is clipped by clip_norm"
        )
    return other if b > a * (1 + _ROUNDING) else one


def without_noise(
    first: Mapping[str, JointSensitivity], silent: Mapping[str, JointSensitivity]
) -> dict[str, JointSensitivity]:
    """The joint sensitivities of a run without noise: infinite is what costs anything.

    Args:
        first: of the step with noise, as the figures are given.
        silent: of the same step at noise multiplier 0.

    Raises:
        UnsupportedView: the step releases without noise what it does not release with it.
    """
    for name, one in first.items():
        if one.largest == 0 and silent[name].largest > 0:
            raise UnsupportedView(
                f"the step releases to {name} without noise what it does not release with it; let "
                "noise_std scale the noise and decide nothing"
            )
    return {name: one._replace(noise_multiplier=None) for name, one in first.items()}
