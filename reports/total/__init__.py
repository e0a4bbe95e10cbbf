"""Several runs on the same records together."""
