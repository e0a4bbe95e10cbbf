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
from .gaussian import delta_from_mu, epsilon_from_mu, mu_from
from .guarantee import Guarantee, Sampling, Status, Unit
from .ledger import Ledger, Spent, read_ledger
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
    "Sampling",
    "Sees",
    "Spent",
    "Status",
    "Unit",
    "UnsupportedView",
    "View",
    "coalition",
    "composed_epsilon",
    "delta",
    "delta_from_mu",
    "epsilon",
    "epsilon_from_mu",
    "mu_from",
    "neighbour",
    "noise_multiplier",
    "parse_adversary",
    "read_ledger",
]
