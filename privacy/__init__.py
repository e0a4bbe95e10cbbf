"""Accounting: adversaries' views, guarantees, and the accountant of sampled Gaussian rounds."""

from .accountant import Accountant, Adjacency, composed_epsilon, delta, epsilon, noise_multiplier
from .adversary import (
    ALL_OTHERS,
    EAVESDROPPER,
    FINAL_MODELS,
    SINGLE_MESSAGE,
    WORST_NEIGHBOUR,
    Adversary,
    Sees,
    coalition,
    neighbour,
    parse_adversary,
)
from .correlated import (
    WhisperNoise,
    decor_covariance,
    decor_factor,
    factor,
    noise_floor,
    optimise_covariance,
    victim_information,
    whisper_covariance,
)
from .gaussian import delta_from_mu, epsilon_from_mu, mu_from
from .guarantee import Guarantee, Sampling, Status, Unit
from .ledger import Ledger, Spent, read_ledger
from .risk import Risk, composed_risk, risk, risk_of_mu
from .trade_off import TradeOff, trade_off
from .view import UnsupportedView, View

__all__ = [
    "ALL_OTHERS",
    "EAVESDROPPER",
    "FINAL_MODELS",
    "SINGLE_MESSAGE",
    "WORST_NEIGHBOUR",
    "Accountant",
    "Adjacency",
    "Adversary",
    "Guarantee",
    "Ledger",
    "Risk",
    "Sampling",
    "Sees",
    "Spent",
    "Status",
    "TradeOff",
    "Unit",
    "UnsupportedView",
    "View",
    "WhisperNoise",
    "coalition",
    "composed_epsilon",
    "composed_risk",
    "decor_covariance",
    "decor_factor",
    "delta",
    "delta_from_mu",
    "epsilon",
    "epsilon_from_mu",
    "factor",
    "mu_from",
    "neighbour",
    "noise_floor",
    "noise_multiplier",
    "optimise_covariance",
    "parse_adversary",
    "read_ledger",
    "risk",
    "risk_of_mu",
    "trade_off",
    "victim_information",
    "whisper_covariance",
]
