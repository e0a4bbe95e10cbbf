"""Flower: `record`, a client mod that writes a line for each reply before it leaves.

app = ClientApp(mods=[record("ledger", unit="client", clip=1.0, noise_std=2.0), noise, clipping])
"""

from .record import record

__all__ = ["record"]
