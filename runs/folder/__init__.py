"""Training into a run folder, resuming it, and spreading it over the ranks of several hosts."""
