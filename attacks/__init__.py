"""Attacks and audits: what an adversary rebuilds from what it saw, and what it can tell.

Each name is imported when it is first asked for, as those of `overhear.training`.
"""

TYPE_CHECKING = False  # what type checkers see, and `lazy_names` reads
if TYPE_CHECKING:
    from .interception.estimate import Estimate as Estimate
    from .interception.estimate import estimate as estimate
    from .interception.estimate import intercept as intercept
    from .interception.estimate import intercept_momentum as intercept_momentum
    from .interception.estimate import join as join
    from .interception.names import Scenario as Scenario
    from .interception.names import scenarios_of as scenarios_of
    from .interception.replay import Protection as Protection
    from .interception.replay import Replay as Replay
    from .interception.replay import ReplayedRun as ReplayedRun
    from .interception.replay import best_weights as best_weights
    from .interception.replay import replay as replay
    from .interception.replay import trace_of as trace_of
    from .inversion.inversion import Reconstruction as Reconstruction
    from .inversion.inversion import reconstruct as reconstruct
    from .problem.labels import recover_labels as recover_labels
    from .problem.objective import PRESETS as PRESETS
    from .problem.objective import Preset as Preset
    from .problem.observation import Observation as Observation
    from .problem.observation import observe as observe
    from .scoring.conclusion import conclusion as conclusion
    from .scoring.evaluation import Row as Row
    from .scoring.evaluation import attack_images as attack_images
    from .scoring.metrics import Scores as Scores
    from .scoring.metrics import blind_guess as blind_guess
    from .scoring.metrics import match as match
    from .scoring.metrics import mse as mse
    from .scoring.metrics import psnr as psnr
    from .scoring.metrics import ssim as ssim
    from .tokens.certificate import TokenReconstruction as TokenReconstruction
    from .tokens.reconstruct import reconstruct_tokens as reconstruct_tokens

if not TYPE_CHECKING:  # to a type checker an unknown name is an error
    from .. import lazy_names

    __all__, __getattr__, __dir__ = lazy_names(__name__)
