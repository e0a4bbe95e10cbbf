"""How work of many steps says how far it is."""

from collections.abc import Callable

Progress = Callable[[int, int], None]
"""f(done, total), called after each step."""

StatedProgress = Callable[[int, int, str], None]
"""f(done, total, words), called after each step."""
