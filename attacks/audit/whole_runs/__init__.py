"""Canaries in runs that are one release: planted in their turns, and scored over all rounds."""
