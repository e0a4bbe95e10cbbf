"""Overhear: what each adversary can learn about one record from what a decentralized run sends.

Each name is imported when it is first asked for, so that `import overhear` costs nothing.

>>> import overhear
>>> overhear.budget(noise_multiplier=1, delta=1e-5, rounds=1000, sampling_rate=0.01).epsilon < 1.83
True
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # as `typing` has it, whose own import would take most of ours
if TYPE_CHECKING:  # what editors and type checkers see, and `lazy_names` reads
    from collections.abc import Callable

    from .attacks.foreign.audit_training import canaries as canaries
    from .interface.budget import budget as budget
    from .interface.commands import attack as attack
    from .interface.commands import check as check
    from .interface.commands import compare as compare
    from .interface.commands import design as design
    from .interface.commands import invert as invert
    from .interface.commands import plot as plot
    from .interface.commands import sweep as sweep
    from .interface.commands import table as table
    from .interface.run import Run as Run
    from .interface.run import report as report
    from .interface.train import audit as audit
    from .interface.train import plan as plan
    from .interface.train import train as train
    from .runs.recorder.record import record as record
    from .testing.neighbours import replay as replay
    from .training.accounts.account import account as account

    __version__: str

DISTRIBUTION = "overhear-dp"  # for an index, on which `overhear` is another project's

# Packages of which an index has another name than an import.
_IMPORTED_AS = {"PIL": "pillow", "skimage": "scikit-image", "sklearn": "scikit-learn"}


def package_of(module: str) -> str:
    """The package of an index that a module is of.

    >>> package_of("PIL.Image")
    'pillow'
    """
    stem = module.partition(".")[0]
    return _IMPORTED_AS.get(stem, stem.replace("_", "-"))


def requirement(module: str) -> str | None:
    """What an index is asked for where a module is missing; None where none of ours needs it.

    Of what trains it is all of that, since who misses one of it mostly misses the rest.

    >>> requirement("typer.main"), requirement("torch") == requirement("PIL.Image")
    ('typer>=0.16', True)
    """
    import re
    from importlib.metadata import requires

    package = package_of(module)
    lines = [line.replace("'", '"').split(";") for line in requires(DISTRIBUTION) or ()]
    trains = [line[0].strip() for line in lines if line[-1].strip() == 'extra == "train"']
    for line in (line[0].strip() for line in lines):
        if re.split(r"[^\w.-]", line)[0] == package:
            return '" "'.join(trains) if line in trains else line
    return None


def lazy_names(
    package: str, *more: str
) -> tuple[list[str], Callable[[str], object], Callable[[], list[str]]]:
    """The `__all__`, `__getattr__` and `__dir__` of a package that imports names when asked for.

    Args:
        package: its name; its public names, and the modules that they are taken from, are what it
            imports for type checkers, a line each: `from .module import name as name`.
        more: public names that it makes itself.
    """
    own = sys.modules[package]  # whose loader may read it out of an archive
    text = own.__loader__.get_data(own.__file__).decode()  # type: ignore[union-attr]
    lines = [line.split() for line in text.splitlines() if line.startswith("    from .")]
    places = {line[3]: line[1] for line in lines if line[4:] == ["as", line[3]]}

    def imported(name: str) -> object:
        from importlib import import_module

        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            found = getattr(import_module(places[name], package), name)
        except ModuleNotFoundError:
            from .privacy.errors import needed

            with needed(name):
                raise
        setattr(sys.modules[package], name, found)
        return found

    names = sorted({*places, *more}, key=lambda name: (not name.isupper(), name[0].islower(), name))
    return names, imported, lambda: sorted({*vars(sys.modules[package]), *names})


if not TYPE_CHECKING:  # to a type checker an unknown name is an error
    __all__, _imported, __dir__ = lazy_names(__name__, "__version__")

    def __getattr__(name):
        """A public name, imported when it is first asked for."""
        if name != "__version__":
            return _imported(name)
        from importlib.metadata import version

        return version(DISTRIBUTION)
