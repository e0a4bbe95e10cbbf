"""What a round recorded, read back from the device that it ran on: once, and whole.

Attacks and checks compute in float64 by other means than the run, on the host. What the run itself
has to be given again, such as the values that a replay is held to, is put back where it runs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from ...training.engine.recording import Recorded
from ...training.step.values import Value

_Of = TypeVar("_Of")
_HOST = torch.device("cpu")


def on_host(recorded: Recorded) -> Recorded:
    """A record of a round whose tensors are on the host; calls of functions stay where they are.

    >>> on_host(Recorded(noise=[torch.zeros(2, 3)])).noise[0].device
    device(type='cpu')
    """
    return replace(
        recorded,
        contributions=placed(recorded.contributions, _HOST),
        calls=placed(recorded.calls, _HOST),
        local={at: placed(made, _HOST) for at, made in recorded.local.items()},
        noise=placed(recorded.noise, _HOST),
        added=placed(recorded.added, _HOST),
        known=placed(recorded.known, _HOST),
        given=placed(recorded.given, _HOST),
    )


def placed(what: _Of, device: torch.device) -> _Of:
    """The same on a device: a tensor, a value, or a list or tuple of what is among these.

    >>> placed([(torch.ones(1), 2.0)], torch.device("meta"))[0]
    (tensor(..., device='meta', size=(1,)), 2.0)
    """
    found: Any = what
    if isinstance(what, Tensor):
        found = what.to(device)
    elif isinstance(what, Value):
        found = type(what)(placed(what.base, device), placed(what.pick, device))
    elif isinstance(what, tuple) and hasattr(what, "_fields"):
        found = type(what)(*(placed(part, device) for part in what))
    elif isinstance(what, list | tuple):
        found = type(what)(placed(part, device) for part in what)
    return found
