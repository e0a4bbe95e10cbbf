"""The algorithms, each one a step in terms of the round's operations.

The imports are the registry: a file here ends in its `ALGORITHM`, and a line below lists it.
"""

# ruff: noqa: F401 - an import that nothing else uses is an entry of the registry

from types import ModuleType

from .algorithm import Algorithm, Form, bind

# One line each, in the order in which they are shown.
# isort: off
from . import dsgd
from . import dp_dpsgd
from . import dpdl
from . import dp_cga
from . import muffliato
from . import dp_netfleet
from . import dyn_d2p
from . import dp_fedavg
from . import whisper
from . import decor
from . import ldp_dsgd
from . import cdp_dsgd
from . import mafalda
from . import dp_ftrl
from . import joint
from . import decor_over_time
from . import choco_sgd
from . import porter
from . import dpmixsgd
from . import dm_hsgd
from . import sgda
from . import dp_sgda
# isort: on

_FILES = [value for value in list(vars().values()) if isinstance(value, ModuleType)]
_LISTED: list[Algorithm] = [file.ALGORITHM for file in _FILES if hasattr(file, "ALGORITHM")]
ALGORITHMS: dict[str, Algorithm] = {algorithm.name: algorithm for algorithm in _LISTED}

__all__ = ["ALGORITHMS", "Algorithm", "Form", "bind"]
