"""The command that runs the papers' tables."""
