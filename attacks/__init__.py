"""Attacks: what an onlooker rebuilds from what it intercepted, and how good that is."""

from .evaluation import SCENARIOS, Protection, Row, Trial, attack_images, conclusion, observe_round
from .interception import (
    Scenario,
    intercept_cross_gradient,
    intercept_momentum,
    intercept_update,
)
from .inversion import Reconstruction, reconstruct
from .labels import recover_labels
from .metrics import Scores, blind_guess, match, mse, psnr, ssim
from .observation import Observation, observe
from .presets import PRESETS, Preset

__all__ = [
    "PRESETS",
    "SCENARIOS",
    "Observation",
    "Preset",
    "Protection",
    "Reconstruction",
    "Row",
    "Scenario",
    "Scores",
    "Trial",
    "attack_images",
    "blind_guess",
    "conclusion",
    "intercept_cross_gradient",
    "intercept_momentum",
    "intercept_update",
    "match",
    "mse",
    "observe",
    "observe_round",
    "psnr",
    "reconstruct",
    "recover_labels",
    "ssim",
]
