"""The audit of a run file or a run folder."""
