"""Opacus: `watch` a training while it runs, or declare a finished one by its accountant's history.

with oh.record("runs/opacus", system=opacus.watch(optimizer, loader), keep="all") as log:
    ...                                                # the training as it stands
"""

from .oracle import DeclaredHistory, from_history
from .watch import watch

__all__ = ["DeclaredHistory", "from_history", "watch"]
