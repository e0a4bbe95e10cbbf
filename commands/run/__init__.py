"""Commands that make a run, and evidence about it."""
