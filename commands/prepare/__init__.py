"""Commands before a run."""
