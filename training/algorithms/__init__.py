"""The algorithms, each one a step in terms of the round's operations."""

from . import dp_dpsgd, dpdl, dsgd
from .algorithm import Algorithm, bind
from .form import Form

ALGORITHMS: dict[str, Algorithm] = {
    "dsgd": Algorithm(name="dsgd", init=dsgd.init, step=dsgd.step, private=False),
    "dp-dpsgd": Algorithm(
        name="dp-dpsgd", init=dp_dpsgd.init, step=dp_dpsgd.step, settings=dp_dpsgd.Settings
    ),
    "dpdl": Algorithm(name="dpdl", init=dpdl.init, step=dpdl.step, settings=dpdl.Settings),
}

__all__ = ["ALGORITHMS", "Algorithm", "Form", "bind"]
