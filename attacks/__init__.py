"""Attacks and audits: what an adversary rebuilds from what it saw, and what it can tell.

Each name is imported when it is first asked for, as those of `overhear.training`.
"""

TYPE_CHECKING = False  # what type checkers see; Python goes by `_STANDS_IN`
if TYPE_CHECKING:
    from .interception.best_linear_estimate import best_weights
    from .interception.estimate import Estimate, estimate
    from .interception.names import Scenario, scenarios_of
    from .interception.replay import Protection, Replay, ReplayedRun, replay, trace_of
    from .interception.scenarios import intercept, intercept_momentum, join
    from .inversion.inversion import Reconstruction, reconstruct
    from .problem.labels import recover_labels
    from .problem.objective import PRESETS, Preset
    from .problem.observation import Observation, observe
    from .scoring.conclusion import conclusion
    from .scoring.evaluation import Row, attack_images
    from .scoring.metrics import Scores, blind_guess, match, mse, psnr, ssim
    from .tokens.certificate import TokenReconstruction
    from .tokens.reconstruct import reconstruct_tokens

__all__ = [
    "PRESETS",
    "Estimate",
    "Observation",
    "Preset",
    "Protection",
    "Reconstruction",
    "Replay",
    "ReplayedRun",
    "Row",
    "Scenario",
    "Scores",
    "TokenReconstruction",
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

# Each public name, and the module that it is taken from.
_STANDS_IN = {
    "PRESETS": "problem.objective",
    "Estimate": "interception.estimate",
    "Observation": "problem.observation",
    "Preset": "problem.objective",
    "Protection": "interception.replay",
    "Reconstruction": "inversion.inversion",
    "Replay": "interception.replay",
    "Row": "scoring.evaluation",
    "Scenario": "interception.names",
    "Scores": "scoring.metrics",
    "TokenReconstruction": "tokens.certificate",
    "ReplayedRun": "interception.replay",
    "attack_images": "scoring.evaluation",
    "best_weights": "interception.best_linear_estimate",
    "blind_guess": "scoring.metrics",
    "conclusion": "scoring.conclusion",
    "estimate": "interception.estimate",
    "intercept": "interception.scenarios",
    "intercept_momentum": "interception.scenarios",
    "join": "interception.scenarios",
    "match": "scoring.metrics",
    "mse": "scoring.metrics",
    "observe": "problem.observation",
    "psnr": "scoring.metrics",
    "reconstruct": "inversion.inversion",
    "reconstruct_tokens": "tokens.reconstruct",
    "recover_labels": "problem.labels",
    "replay": "interception.replay",
    "scenarios_of": "interception.names",
    "ssim": "scoring.metrics",
    "trace_of": "interception.replay",
}

if not TYPE_CHECKING:  # to a type checker an unknown name is an error

    def __getattr__(name):
        """A public name, imported when it is first asked for."""
        from importlib import import_module

        if name not in _STANDS_IN:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = getattr(import_module(f".{_STANDS_IN[name]}", __name__), name)
        globals()[name] = found
        return found


def __dir__() -> list[str]:
    """The public names, whether or not they were imported already."""
    return sorted({*globals(), *__all__})
