"""Data sets, and their records over agents."""
