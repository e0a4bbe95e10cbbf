"""All planted faults, by name.

Each is what somebody has really written, or might: the run goes on, the accuracy looks right or
better, and epsilon is not what is stated.
"""

from collections.abc import Mapping

from tests.attacks.planted import (
    accounting,
    batches,
    gradients,
    noise,
    shapes,
    streams,
    training,
    values,
)
from tests.attacks.planted.accounting import APPLIED
from tests.attacks.planted.planted import Origin, Planted

_MODULES = (noise, shapes, streams, gradients, batches, values, training, accounting)
GROUPS: Mapping[str, tuple[Planted, ...]] = {
    module.__name__.rpartition(".")[2]: tuple(module.fault.held) for module in _MODULES
}
CATALOGUE: Mapping[str, Planted] = {one.name: one for of in GROUPS.values() for one in of}


def of_origin(*origins: Origin) -> dict[str, Planted]:
    """The faults of some origins."""
    return {name: one for name, one in CATALOGUE.items() if one.origin in origins}


# The first catalogue's, of the engine and the trace.
PATCHES: Mapping[str, Planted] = {
    name: one for name, one in of_origin(Origin.FIRST).items() if name not in APPLIED
}
