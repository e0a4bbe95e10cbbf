"""Accounting: adversaries' views, guarantees, and the accountant of sampled Gaussian rounds."""

from .accounting.accountant import (
    composed_delta,
    composed_epsilon,
    delta,
    epsilon,
    noise_multiplier,
)
from .accounting.gaussian import delta_from_mu, epsilon_from_mu, mu_from
from .accounting.limits import max_rounds, max_sampling_rate, scale_for
from .accounting.request import Accountant, Adjacency, Bound
from .accounting.risk import Risk, composed_risk, risk, risk_of_mu
from .accounting.trade_off import TradeOff, trade_off
from .batches.sampling import Sampling
from .errors import UnsupportedView
from .guarantee import (
    ALL_OTHERS,
    EAVESDROPPER,
    FINAL_MODELS,
    SINGLE_MESSAGE,
    WORST_NEIGHBOUR,
    Adversary,
    Guarantee,
    Sees,
    Statement,
    Status,
    Unit,
    coalition,
    neighbour,
    parse_adversary,
)
from .noise.correlated import (
    WhisperNoise,
    decor_covariance,
    decor_factor,
    factor,
    noise_floor,
    optimise_covariance,
    victim_information,
    whisper_covariance,
)
from .noise.schedule import Schedule, calibrated_schedule, scheduled_epsilon
from .participation import Event, ParticipationPattern, Reach, always, cohort, group, poisson
from .published.claim import (
    PublishedClaim,
    dpdl_theorem_1,
    dpmixsgd_theorem_3,
    dyn_d2p_clt,
    dyn_d2p_proposition_4,
)
from .published.whisper import (
    muffliato_bound,
    muffliato_losses,
    whisper_constraint_10,
    whisper_information,
    whisper_theorem_2,
)
from .reference.second_opinion import SecondOpinion, second_opinion
from .releases.ledger import Ledger, Spent, read_ledger
from .view.view import View
from .view.whole_run import Rows, StreamedView

__all__ = [
    "ALL_OTHERS",
    "EAVESDROPPER",
    "FINAL_MODELS",
    "SINGLE_MESSAGE",
    "WORST_NEIGHBOUR",
    "Accountant",
    "Adjacency",
    "Adversary",
    "Bound",
    "Event",
    "Guarantee",
    "Ledger",
    "ParticipationPattern",
    "PublishedClaim",
    "Reach",
    "Risk",
    "Rows",
    "Sampling",
    "Schedule",
    "SecondOpinion",
    "Sees",
    "Spent",
    "Statement",
    "Status",
    "StreamedView",
    "TradeOff",
    "Unit",
    "UnsupportedView",
    "View",
    "WhisperNoise",
    "always",
    "calibrated_schedule",
    "coalition",
    "cohort",
    "composed_delta",
    "composed_epsilon",
    "composed_risk",
    "decor_covariance",
    "decor_factor",
    "delta",
    "delta_from_mu",
    "dpdl_theorem_1",
    "dpmixsgd_theorem_3",
    "dyn_d2p_clt",
    "dyn_d2p_proposition_4",
    "epsilon",
    "epsilon_from_mu",
    "factor",
    "group",
    "max_rounds",
    "max_sampling_rate",
    "mu_from",
    "muffliato_bound",
    "muffliato_losses",
    "neighbour",
    "noise_floor",
    "noise_multiplier",
    "optimise_covariance",
    "parse_adversary",
    "poisson",
    "read_ledger",
    "risk",
    "risk_of_mu",
    "scale_for",
    "scheduled_epsilon",
    "second_opinion",
    "trade_off",
    "victim_information",
    "whisper_constraint_10",
    "whisper_covariance",
    "whisper_information",
    "whisper_theorem_2",
]
