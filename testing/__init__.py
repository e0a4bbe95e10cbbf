"""Checks for one's own tests: that an algorithm is what its privacy figures speak of."""

from .algorithm import check_algorithm

__all__ = ["check_algorithm"]
