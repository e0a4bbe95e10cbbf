"""Checks for one's own tests: of an algorithm of the registry, and of any training."""

from .algorithm import check_algorithm
from .asserts import assert_noise, assert_private, replay
from .tape import released

__all__ = ["assert_noise", "assert_private", "check_algorithm", "released", "replay"]
