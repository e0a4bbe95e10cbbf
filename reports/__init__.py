"""Run files, commands and the privacy report."""
