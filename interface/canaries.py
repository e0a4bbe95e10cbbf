"""The public name `canaries`: records of one's own making in a data set, each by a fair coin."""

from __future__ import annotations

from ..attacks.foreign.planted import canaries

__all__ = ["canaries"]
