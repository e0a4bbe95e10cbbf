"""Attacks and audits: what an adversary rebuilds from what it saw, and what it can tell."""

from .interception.best_linear_estimate import best_weights
from .interception.estimate import Estimate, estimate
from .interception.momentum import intercept_momentum
from .interception.replay import Protection, Replay, Trial, replay, trace_of
from .interception.scenarios import Scenario, intercept, join, scenarios_of
from .inversion.inversion import Reconstruction, reconstruct
from .problem.labels import recover_labels
from .problem.observation import Observation, observe
from .problem.presets import PRESETS, Preset
from .scoring.conclusion import conclusion
from .scoring.evaluation import Row, attack_images
from .scoring.metrics import Scores, blind_guess, match, mse, psnr, ssim
from .tokens.reconstruct import TokenReconstruction, reconstruct_tokens

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
    "TokenReconstruction",
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
    "reconstruct_tokens",
    "recover_labels",
    "replay",
    "scenarios_of",
    "ssim",
    "trace_of",
]
