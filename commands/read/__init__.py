"""Commands that read a run folder."""
