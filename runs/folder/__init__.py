"""Training into a run folder, resuming it, and spreading it over ranks."""
