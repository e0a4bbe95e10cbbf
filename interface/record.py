"""The public name `record`: a recorder for training code of one's own."""

from __future__ import annotations

from ..runs.recorder.record import record

__all__ = ["record"]
