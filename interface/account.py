"""The public name `account`: what an algorithm costs each adversary."""

from __future__ import annotations

from ..training.accounts.account import account

__all__ = ["account"]
