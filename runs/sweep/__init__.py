"""A grid of runs with seeds: one file, one command, resumable."""
