"""Accounting: adversaries' views, guarantees, and the accountant of sampled Gaussian rounds.

Each name is imported when it is first asked for.
"""

TYPE_CHECKING = False  # what type checkers see, and `lazy_names` reads
if TYPE_CHECKING:
    from .accounting.accountant import composed_delta as composed_delta
    from .accounting.accountant import composed_epsilon as composed_epsilon
    from .accounting.accountant import delta as delta
    from .accounting.accountant import epsilon as epsilon
    from .accounting.accountant import noise_multiplier as noise_multiplier
    from .accounting.gaussian import delta_from_mu as delta_from_mu
    from .accounting.gaussian import epsilon_from_mu as epsilon_from_mu
    from .accounting.gaussian import mu_from as mu_from
    from .accounting.limits import max_rounds as max_rounds
    from .accounting.limits import max_sampling_rate as max_sampling_rate
    from .accounting.limits import scale_for as scale_for
    from .accounting.request import Accountant as Accountant
    from .accounting.request import Adjacency as Adjacency
    from .accounting.request import Bound as Bound
    from .accounting.risk import Risk as Risk
    from .accounting.risk import composed_risk as composed_risk
    from .accounting.risk import risk as risk
    from .accounting.risk import risk_of_mu as risk_of_mu
    from .accounting.trade_off import TradeOff as TradeOff
    from .accounting.trade_off import trade_off as trade_off
    from .batches.sampling import Sampling as Sampling
    from .errors import UnsupportedView as UnsupportedView
    from .guarantee import ALL_OTHERS as ALL_OTHERS
    from .guarantee import EAVESDROPPER as EAVESDROPPER
    from .guarantee import FINAL_MODELS as FINAL_MODELS
    from .guarantee import SINGLE_MESSAGE as SINGLE_MESSAGE
    from .guarantee import WORST_NEIGHBOUR as WORST_NEIGHBOUR
    from .guarantee import Adversary as Adversary
    from .guarantee import Guarantee as Guarantee
    from .guarantee import Sees as Sees
    from .guarantee import Statement as Statement
    from .guarantee import Status as Status
    from .guarantee import Unit as Unit
    from .guarantee import coalition as coalition
    from .guarantee import neighbour as neighbour
    from .guarantee import parse_adversary as parse_adversary
    from .noise.correlated import WhisperNoise as WhisperNoise
    from .noise.correlated import decor_covariance as decor_covariance
    from .noise.correlated import decor_factor as decor_factor
    from .noise.correlated import factor as factor
    from .noise.correlated import noise_floor as noise_floor
    from .noise.correlated import optimise_covariance as optimise_covariance
    from .noise.correlated import victim_information as victim_information
    from .noise.correlated import whisper_covariance as whisper_covariance
    from .noise.schedule import Schedule as Schedule
    from .noise.schedule import calibrated_schedule as calibrated_schedule
    from .noise.schedule import scheduled_epsilon as scheduled_epsilon
    from .participation import Event as Event
    from .participation import ParticipationPattern as ParticipationPattern
    from .participation import Reach as Reach
    from .participation import always as always
    from .participation import cohort as cohort
    from .participation import group as group
    from .participation import poisson as poisson
    from .published.claim import PublishedClaim as PublishedClaim
    from .published.claim import dpdl_theorem_1 as dpdl_theorem_1
    from .published.claim import dpmixsgd_theorem_3 as dpmixsgd_theorem_3
    from .published.claim import dyn_d2p_clt as dyn_d2p_clt
    from .published.claim import dyn_d2p_proposition_4 as dyn_d2p_proposition_4
    from .published.whisper import muffliato_bound as muffliato_bound
    from .published.whisper import muffliato_losses as muffliato_losses
    from .published.whisper import whisper_constraint_10 as whisper_constraint_10
    from .published.whisper import whisper_information as whisper_information
    from .published.whisper import whisper_theorem_2 as whisper_theorem_2
    from .reference.second_opinion import SecondOpinion as SecondOpinion
    from .reference.second_opinion import second_opinion as second_opinion
    from .releases.ledger import Ledger as Ledger
    from .releases.ledger import Spent as Spent
    from .releases.ledger import read_ledger as read_ledger
    from .view.view import View as View
    from .view.whole_run import Rows as Rows
    from .view.whole_run import StreamedView as StreamedView

if not TYPE_CHECKING:  # to a type checker an unknown name is an error
    from .. import lazy_names

    __all__, __getattr__, __dir__ = lazy_names(__name__)
