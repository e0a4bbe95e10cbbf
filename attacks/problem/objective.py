"""How far a candidate batch's gradients are from the observed ones.

Three measures, all of the form f(candidate, observation) with gradients of shape (..., K, D):

- `squared_distance`: ||g - o||^2, of Zhu, Liu, Han (2019), "Deep Leakage from Gradients";
- `cosine_distance`: 1 - <g, o> / (||g|| ||o||), of Geiping et al. (2020), "Inverting Gradients";
- `whitened_residual`: the squared Mahalanobis distance, minus twice the log-likelihood of the
  candidate under the declared noise, up to a constant. Under the truth it is chi-squared with K D
  degrees of freedom, which makes it a test as well as an objective.

Several intercepts whose noise differs or is correlated are whitened first; `squared_distance` is
then in the units of the best average of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import torch
from torch import Tensor

from ...privacy.errors import InputError, within
from .observation import Observation

Objective = Callable[[Tensor, Observation], Tensor]
"""f(candidate (..., K, D), observation) -> (...,), smaller is nearer."""


def squared_distance(candidate: Tensor, observation: Observation) -> Tensor:
    """Squared L2 distance ||g - o||^2.

    Args:
        candidate: (..., K, D) gradients g.
        observation: supplies o.

    Returns:
        (...,) distances.
    """
    return observation.whiten(candidate - observation.gradient).square().sum(dim=(-2, -1))


def cosine_distance(candidate: Tensor, observation: Observation) -> Tensor:
    """One minus the cosine of the angle between the gradients; blind to a batch-1 clip.

    Returns:
        (...,) distances in [0, 2]; 1 where one of the gradients is 0.
    """
    tiny = torch.finfo(candidate.dtype).tiny
    ours = observation.whiten(candidate).flatten(-2)
    theirs = observation.whiten(observation.gradient).flatten()
    norms = torch.linalg.vector_norm(ours, dim=-1) * torch.linalg.vector_norm(theirs)
    return 1 - (ours * theirs).sum(dim=-1) / norms.clamp_min(tiny)


def whitened_residual(candidate: Tensor, observation: Observation) -> Tensor:
    """Squared distance in units of the noise.

    Args:
        observation: supplies o and the noise.

    Returns:
        (...,) residuals; about K D for the true batch.

    Raises:
        ValueError: the observation carries no noise, so that nothing can be whitened.
    """
    if not observation.is_noisy:
        raise InputError(
            "an observation without noise leaves nothing to whiten by; use squared_distance or "
            "cosine_distance"
        )
    return squared_distance(candidate, observation) / observation.noise_std**2


# Named settings of the optimisation attacks, each a published one or ours.
#
# - `dlg`: Zhu, Liu, Han (2019), "Deep Leakage from Gradients". L2 distance, L-BFGS, labels
#   optimised
#   together with the inputs. Made for smooth networks: on ReLU convolutions it often stops early.
# - `idlg`: the same with the labels read from the last layer (Zhao, Mopuri, Bilen 2020).
# - `inverting-gradients`: Geiping et al. (2020), "Inverting Gradients". 1 - cosine plus total
#   variation, signed Adam, box, step decay.
# - `matched`: algebra first, then cosine or whitened residual on a network whose ReLUs start smooth
#   and sharpen (`smoothing`), with a prior of photos whose weight fades to what the noise asks for,
#   several starts, and an L-BFGS finish where there is no noise. Under noise it ends with
#   `posterior` where public records are given, one record is observed and the search finds nothing.
# - `posterior`: public records weighed by the likelihood of one record's noisy gradient (Hayes,
#   Mahloujifar, Balle 2023, "Bounding Training Data Reconstruction in DP-SGD"). Nothing is
#   searched.
#
# Where we differ from the papers: every candidate gradient passes through the observation's clip
# (an attacker knows it), L-BFGS searches its line (strong Wolfe) in float64 and starts at a grey
# picture with a tenth of noise, pixels are optimised on the unit box, and several starts are
# compared by the objective.

_MOST_STARTS = 10_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Preset:
    """Settings of one attack.

    Attributes:
        objective: distance between gradients.
        adam_steps: signed Adam steps per start; 0 for none.
        step_size: first step of Adam on the unit box; falls tenfold at 3/8, 5/8 and 7/8.
        tv_weight: weight of the mean total variation per pixel.
        colour: the prior is `colour_variation` in place of the anisotropic total variation.
        fade: fraction of the steps over which `tv_weight` falls to the weight the noise asks for
            (0 without noise); None keeps it.
        newton_steps: outer L-BFGS steps after Adam, 20 inner ones each; 0 for none.
        starts: number of starts.
        softness: width of the smoothed ReLU at the first Adam step, in units of the layer's root
            mean square; falls geometrically to nothing. 0 leaves the network as it is.
        joint_labels: optimise unknown labels instead of reading them from the last layer.
        exact: try the algebraic stages first.
        follow_noise: use the log-likelihood of the declared noise, with the prior it asks for.
        posterior: weigh public records, where they are given, under noise; without steps of a
            search, always.

    >>> PRESETS["inverting-gradients"].step_size
    0.1
    """

    objective: Objective
    adam_steps: int = 0
    step_size: float = 0.1
    tv_weight: float = 0.0
    colour: bool = False
    fade: float | None = None
    newton_steps: int = 0
    starts: int = 1
    softness: float = 0.0
    joint_labels: bool = False
    exact: bool = False
    follow_noise: bool = False
    posterior: bool = False

    def __post_init__(self) -> None:
        steps = self.adam_steps + self.newton_steps
        weighs = self.posterior and not self.exact
        if min(self.adam_steps, self.newton_steps) < 0 or (steps == 0 and not weighs):
            raise InputError(
                f"adam_steps={self.adam_steps} and newton_steps={self.newton_steps} must not be "
                "negative, nor both 0"
            )
        within("starts", self.starts, "[1, inf)")
        within("starts", self.starts, f"(-inf, {_MOST_STARTS}]", "lower the number of restarts")
        within("softness", self.softness, "[0, inf]", "0 smooths nothing")
        if self.tv_weight < 0 or self.step_size <= 0:
            raise InputError(
                f"tv_weight={self.tv_weight} must be at least 0 and step_size={self.step_size} "
                "positive"
            )
        if self.fade is not None and not 0 < self.fade <= 1:
            raise InputError(f"fade={self.fade} must lie in (0, 1], or be None")

    @property
    def searches(self) -> bool:
        """Whether anything is optimised."""
        return self.adam_steps + self.newton_steps > 0


_DLG = Preset(objective=squared_distance, newton_steps=300, starts=4, joint_labels=True)

_MATCHED = Preset(
    objective=cosine_distance,
    adam_steps=1000,
    tv_weight=0.03,
    colour=True,
    fade=0.7,
    newton_steps=20,
    starts=3,
    softness=1.0,
    exact=True,
    follow_noise=True,
    posterior=True,
)

PRESETS: Mapping[str, Preset] = MappingProxyType(
    {
        "dlg": _DLG,
        "idlg": replace(_DLG, joint_labels=False),
        "inverting-gradients": Preset(objective=cosine_distance, adam_steps=2400, tv_weight=1e-4),
        "matched": _MATCHED,
        "posterior": replace(_MATCHED, adam_steps=0, newton_steps=0, exact=False),
    }
)


def preset_of(name: str, starts: int | None = None) -> Preset:
    """A preset by its name, with so many starts, or as many as it has.

    Raises:
        ValueError: there is none of that name, or no start.
    """
    if name not in PRESETS:
        raise InputError(f"preset={name!r} is unknown; choose one of {', '.join(PRESETS)}")
    return PRESETS[name] if starts is None else replace(PRESETS[name], starts=starts)
