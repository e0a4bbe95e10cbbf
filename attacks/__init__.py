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

# Each public name, and the module that it is taken from; here by module.
_STANDS_IN = {
    name: module
    for module, names in {
        "interception.best_linear_estimate": "best_weights",
        "interception.estimate": "Estimate estimate",
        "interception.names": "Scenario scenarios_of",
        "interception.replay": "Protection Replay ReplayedRun replay trace_of",
        "interception.scenarios": "intercept intercept_momentum join",
        "inversion.inversion": "Reconstruction reconstruct",
        "problem.labels": "recover_labels",
        "problem.objective": "PRESETS Preset",
        "problem.observation": "Observation observe",
        "scoring.conclusion": "conclusion",
        "scoring.evaluation": "Row attack_images",
        "scoring.metrics": "Scores blind_guess match mse psnr ssim",
        "tokens.certificate": "TokenReconstruction",
        "tokens.reconstruct": "reconstruct_tokens",
    }.items()
    for name in names.split()
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
