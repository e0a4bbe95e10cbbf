"""Attacks and audits: what an onlooker rebuilds from what it saw, and what it can tell."""

from .conclusion import conclusion
from .estimate import Estimate, estimate
from .evaluation import Row, attack_images
from .interception import intercept_momentum
from .inversion import Reconstruction, reconstruct
from .labels import recover_labels
from .linear_estimate import best_weights
from .metrics import Scores, blind_guess, match, mse, psnr, ssim
from .observation import Observation, observe
from .presets import PRESETS, Preset
from .scenarios import Scenario, intercept, join, scenarios_of
from .trial import Protection, Replay, Trial, replay, trace_of

__all__ = [
    "PRESETS",
    "Estimate",
    "Observation",
    "Preset",
    "Protection",
    "Reconstruction",
    "Replay",
    "Row",
    "Scenario",
    "Scores",
    "Trial",
    "attack_images",
    "best_weights",
    "blind_guess",
    "conclusion",
    "estimate",
    "intercept",
    "intercept_momentum",
    "join",
    "match",
    "mse",
    "observe",
    "psnr",
    "reconstruct",
    "recover_labels",
    "replay",
    "scenarios_of",
    "ssim",
    "trace_of",
]
