"""torch, imported when a name of it is used first.

Budgets, accounts of declared logs, recorders and reports hold no tensor unless somebody gives them
one, so they work where torch is not installed; a module of theirs takes `torch` from here.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, TypeGuard

__all__ = ["is_network", "is_tensor", "torch"]

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn
else:

    class _Later:
        def __getattr__(self, name: str) -> Any:
            import torch

            return getattr(torch, name)

    torch = _Later()


def is_tensor(found: object) -> TypeGuard[Tensor]:
    """Whether it is a tensor, of which there is none before torch is imported."""
    # While another thread imports torch, it lacks names; nothing is a tensor until it has them.
    kind = getattr(sys.modules.get("torch"), "Tensor", None)
    return kind is not None and isinstance(found, kind)


def is_network(found: object) -> TypeGuard[nn.Module]:
    """Whether it is a network of torch."""
    kind = getattr(getattr(sys.modules.get("torch"), "nn", None), "Module", None)
    return kind is not None and isinstance(found, kind)
