"""The text of a small run file: digits, a linear network, and the tables that a test is about."""

from typing import Any

import tomli_w


def run_text(algorithm: str, /, *, agents: int | None = None, **tables: dict[str, Any]) -> str:
    """A run file as TOML; `data`, `model` and `algorithm` add keys to those tables, or change them.

    >>> print(run_text("dsgd", agents=3, training={"rounds": 2}).splitlines()[:3])
    ['[data]', 'name = "digits"', 'agents = 3']
    """
    data = {"name": "digits"} | ({} if agents is None else {"agents": agents})
    own = {"data": data, "model": {"name": "linear"}, "algorithm": {"name": algorithm}}
    return tomli_w.dumps(own | {name: own.get(name, {}) | keys for name, keys in tables.items()})
