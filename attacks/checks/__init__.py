"""Checks of a run that need no canaries, each against its trace."""
