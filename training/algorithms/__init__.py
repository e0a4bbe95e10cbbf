"""training/algorithms."""
