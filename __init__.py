"""Overhear: what each adversary can learn about one record from what a decentralized run sends.

Each name is imported when it is first asked for, so that `import overhear` costs nothing.

>>> import overhear
>>> overhear.budget(noise_multiplier=1, delta=1e-5, rounds=1000, sampling_rate=0.01).epsilon < 1.83
True
"""

TYPE_CHECKING = False  # as `typing` has it, whose own import would take most of ours
if TYPE_CHECKING:  # what editors and type checkers see; Python goes by `_STANDS_IN`
    from .attacks.foreign.audit_training import canaries
    from .interface.attack import attack
    from .interface.audit import audit
    from .interface.budget import budget
    from .interface.commands import check, compare, design, invert, plot, sweep, table
    from .interface.plan import plan
    from .interface.report import report
    from .interface.run import Run
    from .interface.train import train
    from .runs.recorder.record import record
    from .training.accounts.account import account

    __version__: str

__all__ = [
    "Run",
    "__version__",
    "account",
    "attack",
    "audit",
    "budget",
    "canaries",
    "check",
    "compare",
    "design",
    "invert",
    "plan",
    "plot",
    "record",
    "report",
    "sweep",
    "table",
    "train",
]

DISTRIBUTION = "overhear-dp"  # for an index, on which `overhear` is another project's

# Each public name, and the module that defines it.
_STANDS_IN = {
    "Run": "interface.run",
    "account": "training.accounts.account",
    "attack": "interface.attack",
    "audit": "interface.audit",
    "budget": "interface.budget",
    "canaries": "attacks.foreign.audit_training",
    "check": "interface.commands",
    "compare": "interface.commands",
    "design": "interface.commands",
    "invert": "interface.commands",
    "plan": "interface.plan",
    "plot": "interface.commands",
    "record": "runs.recorder.record",
    "report": "interface.report",
    "sweep": "interface.commands",
    "table": "interface.commands",
    "train": "interface.train",
}

# Packages of which an index has another name than an import.
_IMPORTED_AS = {"PIL": "pillow", "skimage": "scikit-image", "sklearn": "scikit-learn"}


def requirement(module: str) -> str | None:
    """What an index is asked for where a module is missing; None where none of ours needs it.

    >>> requirement("PIL.Image")
    'pillow>=12.3'
    """
    import re
    from importlib.metadata import requires

    stem = module.partition(".")[0]
    package = _IMPORTED_AS.get(stem, stem.replace("_", "-"))
    for line in requires(DISTRIBUTION) or ():
        found = line.partition(";")[0].strip()
        if re.split(r"[^\w.-]", found)[0] == package:
            return found
    return None


if not TYPE_CHECKING:  # to a type checker an unknown name is an error

    def __getattr__(name):
        """A public name, imported when it is first asked for."""
        from importlib import import_module

        if name == "__version__":
            from importlib.metadata import version

            found = version(DISTRIBUTION)
        elif name in _STANDS_IN:
            found = getattr(import_module(f".{_STANDS_IN[name]}", __name__), name)
        else:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = found
        return found


def __dir__() -> list[str]:
    """The public names, whether or not they were imported already."""
    return sorted({*globals(), *__all__})
